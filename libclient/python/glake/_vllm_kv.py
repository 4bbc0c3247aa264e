# SPDX-License-Identifier: Apache-2.0
"""vLLM's KV cache in an elastic range: ``GLAKE_VLLM_KV=elastic``, or ``kept``, so that its prefixes outlive it, too.

vLLM plans a cache of as many blocks as ever; that is the most it can have. What it gets in place of torch.zeros() are
the addresses of a range with a lane for each layer, and memory for the first blocks only. All else comes and goes as its
scheduler needs blocks (_vllm_pool). That works where the scheduler and the only worker are one process, and with ranks that are
processes of their own and have all layers (_vllm_workers); with all else the cache is a plain one, and the log says why.
"""
from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sys
import weakref
from typing import Any, Callable, Dict, Iterator, List, Optional

import torch
from torch.overrides import TorchFunctionMode
from vllm.logger import init_logger

from . import _vllm_key as keys
from . import _vllm_places as places
from ._torch_devices import check_number, start_cuda
from ._vllm_plan import Plan, Unfit, check_engine, has_processes, n_ahead_blocks, n_warm_blocks
from ._vllm_pool import Cache, attach
from ._vllm_steps import Steps
from .elastic import Elastic
from .errors import Error
from .session import default_session

logger = init_logger("vllm.glake")

_MIB = 1 << 20
#: Step 0 stays: block 0 is what vLLM pads with.
_FLOOR = 1
#: of a step that outlives its process (glake_elastic.h)
_MAX_LANES = 253


# ---- memory ----

class _Memory:
    """It lives as long as a tensor of it does."""

    def __init__(self, ptr: int, n_bytes: int) -> None:
        self.__cuda_array_interface__ = {"shape": (n_bytes,), "typestr": "|i1", "data": (ptr, False), "version": 3}


def tensor_at(ptr: int, n_bytes: int, ordinal: int, memories: "weakref.WeakSet[Any]") -> torch.Tensor:
    memory = _Memory(ptr, n_bytes)
    memories.add(memory)
    return torch.as_tensor(memory, device=f"cuda:{ordinal}")


class _Instead(TorchFunctionMode):
    """These tensors in place of those that torch.zeros() would make, in order, of the same size."""

    def __init__(self, tensors: Iterator[torch.Tensor]) -> None:
        super().__init__()
        self._tensors = tensors

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.zeros and kwargs and kwargs.get("dtype") is torch.int8:
            tensor = next(self._tensors)
            if args[0] != tensor.numel():
                raise RuntimeError(f"glake: vLLM makes a KV cache of {args[0]} bytes where {tensor.numel()} are planned")
            return tensor
        return function(*args, **(kwargs or {}))


class Arena:
    """The elastic range of one engine."""

    def __init__(self, plan: Plan, ordinal: int, n_warm_blocks: int, key: bytes = b"") -> None:
        """With a key, what the engine computes is for the next one with the same."""
        layout = plan.layout
        self.plan, self.ordinal = plan, ordinal
        # With a guard, a read of a hole by a padded or stale table is not a fault.
        self.elastic = Elastic(layout.chunk_bytes, layout.n_steps, plan.n_lanes, plan.stride, _FLOOR, ordinal, guard=True,
                               key=key)
        self._is_kept = bool(key)
        self._where = hashlib.sha256()
        self._memories: "weakref.WeakSet[Any]" = weakref.WeakSet()
        self._steps: Optional[Steps] = None
        #: what vLLM has got, and whether its blocks are where they should be
        self.n_given = 0
        self.is_fit = True
        n_steps = layout.steps_of(n_warm_blocks - 1).stop
        try:
            self.elastic.commit(0, n_steps)
        except BaseException:
            self.elastic.close()
            raise

    # ---- while vLLM allocates ----

    def _tensors(self) -> Iterator[torch.Tensor]:
        for lane, n_bytes in enumerate(self.plan.tensor_bytes()):
            self.n_given += 1
            yield tensor_at(self.elastic.ptr(0, lane), n_bytes, self.ordinal, self._memories)

    def _allocating(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def moved(argument: Any) -> Any:
            return self.plan.moved(argument) if hasattr(argument, "kv_cache_tensors") else argument

        @functools.wraps(original)
        def allocate(*arguments: Any, **options: Any) -> Any:
            with _Instead(self._tensors()):
                return original(*map(moved, arguments), **{name: moved(value) for name, value in options.items()})
        return allocate

    def _looking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def look(*arguments: Any, **options: Any) -> Any:
            views = original(*arguments, **options)
            for name, view in sorted(views.items()):
                self.is_fit = self.is_fit and isinstance(view, torch.Tensor) and \
                    self.plan.has_blocks_at(view, self.elastic.base)
                if self.is_fit:
                    self._where.update(repr((name, str(view.dtype), *self.plan.place_of(view, self.elastic.base))).encode())
            return views
        return look

    @contextlib.contextmanager
    def doors(self) -> Iterator[None]:
        """What vLLM allocates for its cache meanwhile is the range."""
        with contextlib.ExitStack() as stack:
            for doors, wrap in ((places.ALLOCATES, self._allocating), (places.VIEWS, self._looking)):
                for module, owner, name in doors:
                    where: Any = sys.modules.get(module)
                    where = getattr(where, owner, None) if owner else where
                    original = getattr(where, name, None)
                    if original is not None:
                        stack.callback(setattr, where, name, original)
                        setattr(where, name, wrap(original))
            yield

    # ---- afterwards ----

    def why_plain(self) -> str:
        """Empty: vLLM has this memory, and its blocks are where they should be."""
        if self.n_given == 0:
            return "this vLLM allocates KV memory at no place that is known"
        if self.n_given == len(self.plan.tensor_bytes()) and self.is_fit:
            return ""
        return "blocks of this vLLM lie elsewhere than planned"

    def make_plain(self) -> None:
        """It has all of its memory, or vLLM has another one."""
        if self.n_given == 0:
            self.elastic.close()
        else:
            self.elastic.commit(0, self.plan.layout.n_steps)

    def is_elastic(self) -> bool:
        why = self.why_plain()
        if why:
            logger.warning("glake: KV memory is plain: %s", why)
            self.make_plain()
        return not why

    def _mark(self) -> Callable[[], bool]:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.ordinal))

        def has_ended() -> bool:
            """By a thread that has no device of its own."""
            with torch.cuda.device(self.ordinal):
                return bool(event.query())
        return has_ended

    def adopt(self, scheduler: Any) -> None:
        self._steps = Steps(self.elastic)
        cache = adopt(scheduler, self.plan, self._steps, self._mark)
        if self._is_kept:
            cache.keep(self.elastic, self._where.digest()[:8])

    def close_dead(self) -> bool:
        """Whether its engine had gone: no tensor of it is left."""
        if self._memories or (self._steps is not None and not self._steps.close(10.0)):
            return False
        torch.cuda.synchronize(self.ordinal)
        self.elastic.close()
        return True


def adopt(scheduler: Any, plan: Plan, steps: Steps, mark: Callable[[], Callable[[], bool]], where: str = "") -> Cache:
    """The scheduler has its blocks in these steps from now on."""
    cache = attach(scheduler, plan.layout, _FLOOR, n_ahead_blocks(scheduler.vllm_config, plan), steps, mark)
    logger.info("glake: KV memory is elastic: at most %d steps of %d MiB%s", plan.layout.n_steps,
                plan.n_lanes * plan.layout.chunk_bytes // _MIB, where)
    return cache


# ---- doors ----

#: of schedulers of this process: an Arena, or the Workers that have them; and those that a scheduler is yet to adopt
_arenas: List[Any] = []
_unadopted: List[Any] = []


def _weights(vllm_config: Any) -> Dict[str, Any]:
    from ._vllm_loader import key_parts
    return key_parts(vllm_config, vllm_config.model_config, "")


def _range_key(vllm_config: Any, plan: Plan) -> bytes:
    """Empty: nothing is kept."""
    if os.environ.get("GLAKE_VLLM_KV") != "kept":
        return b""
    why = keys.why_not_kept(vllm_config, os.environ)
    if plan.layout.chunk_bytes % plan.layout.block_bytes:
        why = "blocks lie across the borders of steps"
    elif plan.n_lanes > _MAX_LANES:
        why = f"it has {plan.n_lanes} layers, and a step that is kept {_MAX_LANES} at most"
    if why is not None:
        logger.warning("glake: KV blocks are not kept for the next engine: %s", why)
        return b""
    layout = {"lanes": plan.n_lanes, "chunk": plan.layout.chunk_bytes, "block": plan.layout.block_bytes}
    return keys.range_key(_weights(vllm_config), vllm_config, plan.config, layout)


def open_arena(vllm_config: Any, plan: Plan, key: bytes = b"") -> Arena:
    """On the current GPU of this process."""
    ordinal = torch.cuda.current_device()
    start_cuda(ordinal)
    check_number(default_session(), ordinal)
    return Arena(plan, ordinal, n_warm_blocks(vllm_config, plan), key)


#: Why a cache is plain
PLAIN = (Unfit, Error, OSError, RuntimeError, ValueError)


def _arena_for(executor: Any, plan: Plan) -> Optional[Arena]:
    try:
        return open_arena(executor.vllm_config, plan, _range_key(executor.vllm_config, plan))
    except PLAIN as error:
        logger.warning("glake: KV memory is plain: %s", error)
        return None


def _allocate_here(executor: Any, plan: Plan, allocate: Callable[[], Any]) -> Any:
    arena = _arena_for(executor, plan)
    if arena is None:
        return allocate()
    with arena.doors():
        result = allocate()
    if arena.is_elastic():
        _unadopted.append(arena)
    return result


def _allocate_in_ranks(executor: Any, plan: Plan, configs: List[Any], allocate: Callable[[], Any]) -> Any:
    from ._vllm_workers import Workers
    if os.environ.get("GLAKE_VLLM_KV") == "kept":
        logger.warning("glake: KV blocks are not kept for the next engine: the ranks are processes of their own")
    workers = Workers(executor, plan)
    if not workers.open(configs):
        return allocate()
    result = allocate()
    if workers.attend():
        _unadopted.append(workers)
    return result


def _wrap(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    original = getattr(owner, name)
    if not getattr(original, "is_glakes", False):
        wrapper: Any = functools.wraps(original)(make(original))
        wrapper.is_glakes = True
        setattr(owner, name, wrapper)


def _initialize(original: Callable[..., Any]) -> Callable[..., Any]:
    def initialize_from_config(self: Any, kv_cache_configs: List[Any]) -> Any:
        def allocate() -> Any:
            return original(self, kv_cache_configs)
        _arenas[:] = [arena for arena in _arenas if not arena.close_dead()]
        try:
            check_engine(self)
            plan = Plan(kv_cache_configs[0])
        except PLAIN as error:
            logger.warning("glake: KV memory is plain: %s", error)
            return allocate()
        if has_processes(self):
            return _allocate_in_ranks(self, plan, kv_cache_configs, allocate)
        return _allocate_here(self, plan, allocate)
    return initialize_from_config


def _adopt(original: Callable[..., Any]) -> Callable[..., Any]:
    def init(self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        while _unadopted:
            arena = _unadopted.pop()
            arena.adopt(self)
            _arenas.append(arena)
    return init


def enable(executor: Any, scheduler: Any) -> None:
    """The executor's class allocates the cache, the scheduler's class is made next."""
    _wrap(executor, "initialize_from_config", _initialize)
    _wrap(scheduler, "__init__", _adopt)
