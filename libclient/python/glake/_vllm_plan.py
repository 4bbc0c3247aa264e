# SPDX-License-Identifier: Apache-2.0
"""Whether an engine's KV cache can come and go, and where its blocks are."""
from __future__ import annotations

import dataclasses
import math
from typing import Any, List, Tuple

from ._vllm_blocks import Layout

_MIB = 1 << 20
_GRANULARITY = 2 * _MIB
#: A step's chunk in a lane: a handle of the driver costs the same whatever its size, 0.12 ms to come on an H100.
_CHUNK_BYTES = (2 * _MIB, 32 * _MIB)
#: Small caches have about this many steps. One always stays.
_N_STEPS = 16

#: What vLLM keeps of a layer in a block of which nothing is read before it was written
_SPECS = frozenset({"FullAttentionSpec", "MLAAttentionSpec", "SlidingWindowSpec", "SlidingWindowMLASpec",
                    "ChunkedLocalAttentionSpec"})
_SCHEDULERS = ("vllm.v1.core.sched.scheduler.Scheduler", "vllm.v1.core.sched.async_scheduler.AsyncScheduler")

#: What makes ranks of an engine whose memory cannot come and go together yet (docs/decisions/090)
_SIZES = (
    ("pipeline_parallel_size", "ranks have other layers, and are done at other times"),
    ("prefill_context_parallel_size", "ranks have other parts of a block"),
    ("decode_context_parallel_size", "ranks have other parts of a block"),
    ("data_parallel_size", "ranks run dummy batches that their scheduler does not know of"),
    ("nnodes", "ranks are on other machines"),
)
#: Whether its ranks are processes of their own
_EXECUTORS = {"UniProcExecutor": False, "MultiprocExecutor": True}


class Unfit(Exception):
    """Why the cache is a plain one."""


# ---- whether ----

def has_processes(executor: Any) -> bool:
    """Its ranks are processes of their own, on this machine."""
    return _EXECUTORS.get(type(executor).__name__, False)


def check_engine(executor: Any) -> None:
    config = executor.vllm_config
    parallel = config.parallel_config
    scheduler = config.scheduler_config.get_scheduler_cls()
    for sizes, why in _SIZES:
        n = getattr(parallel, sizes, 1) or 1
        if n > 1:
            raise Unfit(f"{sizes} is {n}: {why}")
    n_ranks = getattr(parallel, "tensor_parallel_size", 1) or 1
    if parallel.world_size != n_ranks or (n_ranks > 1 and not has_processes(executor)):
        raise Unfit(f"the engine has {parallel.world_size} ranks, and it is not known how")
    if type(executor).__name__ not in _EXECUTORS:
        raise Unfit(f"its worker is in another process ({type(executor).__name__}), and its scheduler cannot lend that one's memory")
    if config.kv_transfer_config is not None:
        raise Unfit("a KV connector uses blocks when the scheduler does not know")
    if f"{scheduler.__module__}.{scheduler.__qualname__}" not in _SCHEDULERS:
        raise Unfit(f"its scheduler is {scheduler.__qualname__}")
    if config.model_config.is_encoder_decoder:
        raise Unfit("it has an encoder")
    if getattr(config.model_config, "enable_sleep_mode", False) and \
            config.cache_config.cache_dtype not in ("auto", "bfloat16", "float16"):
        raise Unfit("vLLM writes all of a quantized cache when it wakes")


def _chunk_bytes(lane_bytes: int, block_bytes: int) -> int:
    """A whole number of blocks, if that is possible."""
    wanted = min(max(lane_bytes // _N_STEPS, _CHUNK_BYTES[0]), _CHUNK_BYTES[1])
    unit = math.lcm(block_bytes, _GRANULARITY)
    if unit > _CHUNK_BYTES[1]:
        unit = _GRANULARITY
    return -(-wanted // unit) * unit


class Plan:
    """Where a KVCacheConfig of vLLM has its blocks, and where they go."""

    def __init__(self, config: Any) -> None:
        self.config = config
        tensors = config.kv_cache_tensors
        for group in config.kv_cache_groups:
            spec = group.kv_cache_spec
            for part in getattr(spec, "kv_cache_specs", {"": spec}).values():
                if type(part).__name__ not in _SPECS:
                    raise Unfit(f"it has a {type(part).__name__}")
        if not tensors:
            raise Unfit("it has no cache")
        #: one allocation of all lanes, and not one of each
        self.is_whole = hasattr(tensors[0], "layer_stride")
        lane_bytes = tensors[0].layer_stride if self.is_whole else tensors[0].size
        block_bytes, rest = divmod(lane_bytes, config.num_blocks)
        if self.is_whole:
            fits = all(tensor.layer_stride == lane_bytes and tensor.block_stride == block_bytes and
                       tensor.offset % lane_bytes == 0 and tensor.size % lane_bytes == 0 and not tensor.host_resident
                       for tensor in tensors)
            self.n_lanes = tensors[0].size // lane_bytes
        else:
            fits = all(tensor.size == lane_bytes and tensor.block_stride == 0 for tensor in tensors)
            self.n_lanes = len(tensors)
        if rest or not fits:
            raise Unfit("layers have blocks of several sizes, or blocks of all layers lie together")
        self.lane_bytes = lane_bytes
        self.layout = Layout(config.num_blocks, block_bytes, _chunk_bytes(lane_bytes, block_bytes))
        self.stride = self.layout.n_steps * self.layout.chunk_bytes

    def tensor_bytes(self) -> List[int]:
        """What vLLM allocates, of the moved configuration."""
        return [self.n_lanes * self.stride] if self.is_whole else self.n_lanes * [self.lane_bytes]

    def moved(self, config: Any) -> Any:
        """The same cache, with lanes at our distance."""
        if not self.is_whole:
            return config
        tensors = [dataclasses.replace(tensor, size=self.n_lanes * self.stride, layer_stride=self.stride,
                                       offset=tensor.offset // self.lane_bytes * self.stride)
                   for tensor in config.kv_cache_tensors]
        return dataclasses.replace(config, kv_cache_tensors=tensors)

    def has_blocks_at(self, view: Any, base: int) -> bool:
        """Block i of it begins at i times the size of a block, and ends there."""
        layout, item = self.layout, view.element_size()
        begin = (view.data_ptr() - base) % self.stride
        for dim, (size, stride) in enumerate(zip(view.shape, view.stride())):
            n_parts, rest = divmod(size, layout.n_blocks)
            if rest or n_parts == 0 or stride * item * n_parts != layout.block_bytes:
                continue
            end = begin + item * (1 + (n_parts - 1) * stride +
                                  sum((n - 1) * step for other, (n, step) in enumerate(zip(view.shape, view.stride()))
                                      if other != dim))
            return end <= layout.block_bytes
        return False

    def place_of(self, view: Any, base: int) -> Tuple[Any, ...]:
        """Where a layer has what in a block, however many blocks there are."""
        shape = [-1 if size == self.layout.n_blocks else size for size in view.shape]
        return (*divmod(view.data_ptr() - base, self.stride), shape, list(view.stride()))


def n_warm_blocks(config: Any, plan: Plan) -> int:
    """Blocks that vLLM uses to warm up, before it has a scheduler: requests of a few tokens, and one of a full batch,
    from block 1 on."""
    groups = plan.config.kv_cache_groups
    block_size = min(group.kv_cache_spec.block_size for group in groups)
    scheduler, speculative = config.scheduler_config, config.speculative_config
    n_tokens = 8 * (1 + (speculative.num_speculative_tokens or 0 if speculative is not None else 0))
    per_request = math.ceil(n_tokens / block_size) + 1
    full = math.ceil(scheduler.max_num_batched_tokens / block_size) + 2 * per_request
    return min(1 + len(groups) * max(scheduler.max_num_seqs * per_request, full), plan.layout.n_blocks)


def n_ahead_blocks(config: Any, plan: Plan) -> int:
    """What one batch may need at most."""
    groups = plan.config.kv_cache_groups
    block_size = min(group.kv_cache_spec.block_size for group in groups)
    return len(groups) * math.ceil(config.scheduler_config.max_num_batched_tokens / block_size)
