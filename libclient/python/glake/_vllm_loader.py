# SPDX-License-Identifier: Apache-2.0
"""``--load-format glake``: the first process loads, processes and publishes; every other one attaches what came
out, and reads nothing.

vLLM's own load runs in each process, step by step. Where the key is published, parameters are made without
memory, and the step that would read the files maps them. Whatever speaks against that is found before anything
is mapped, and the load goes on plainly.
"""
from __future__ import annotations

import dataclasses
import functools
import sys
import time
from typing import Any, Dict, List, Optional, Set

import torch
import vllm
from vllm.logger import init_logger
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from . import _vllm_key as keys
from . import _vllm_manifest as manifest
from ._torch_devices import check_number, start_cuda
from ._torch_publish import publish
from ._torch_seal import seal, unseal
from ._torch_tensors import DTYPES, as_tensor, mapped_storages
from .errors import Error, NotFoundError
from .model import Model

logger = init_logger("vllm.glake")

#: Methods of vLLM's worker that write to weights where they are; not every version has each.
_WRITERS = ("reload_weights", "reset_weights", "start_weight_update", "_restore_sleep_parameters")

#: Not empty: this process has sealed weights, or tried to.
_sealed: List[bool] = []


# ---- whether ----

def who_writes(vllm_config: Any) -> Optional[str]:
    """What of this engine changes its weights while it serves: then they stay private."""
    if vllm_config.parallel_config.enable_eplb:
        return "EPLB moves experts"
    if vllm_config.weight_transfer_config is not None:
        return "weight transfer updates them"
    if getattr(vllm_config.cache_config, "calculate_kv_scales", False):  # not in all versions
        return "calculate_kv_scales writes scales"
    return None


def _is_draft(vllm_config: Any, model_config: Any) -> bool:
    speculative = vllm_config.speculative_config
    return speculative is not None and model_config is speculative.draft_model_config


def why_plain(vllm_config: Any, model_config: Any) -> Optional[str]:
    """Why it is neither published nor attached; it is sealed, all the same."""
    if model_config.quantization is not None:
        return f"glake has not compared what {model_config.quantization} makes yet"
    if _is_draft(vllm_config, model_config):
        return "it is a draft, which takes parts of another model"
    if getattr(model_config, "enable_cumem_allocator", False) and not _is_under_shim():
        return "--enable-sleep-mode keeps weights in vLLM's own allocator: start it with `glake run`"
    if keys.checkpoint(model_config) is None:
        return "the revision of its files is not known"
    return None


def _is_under_shim() -> bool:
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        return any("/libglake-shim.so" in line for line in maps)


def _ranks() -> Dict[str, int]:
    from vllm.distributed import parallel_state
    return {group: getattr(parallel_state, f"get_{group}_group")().rank_in_group for group in keys.RANKS}


def _machine() -> Dict[str, str]:
    device = torch.cuda.current_device()
    return {"gpu": torch.cuda.get_device_name(device),
            "architecture": str(torch.cuda.get_device_capability(device)),
            "vllm": vllm.__version__, "torch": torch.__version__}


def key_parts(vllm_config: Any, model_config: Any, prefix: str) -> Dict[str, Any]:
    return keys.parts(vllm_config, model_config, prefix, _ranks(), _machine())


# ---- one load ----

class _Load:
    """The load of one model, by vLLM, with what glake does in between."""

    def __init__(self, key: str) -> None:
        start = time.monotonic()
        self.key = key
        self.published = _find(key)
        #: of glake's part: finding, mapping and putting them in place
        self.seconds = time.monotonic() - start
        #: vLLM's step has found all in place.
        self.tensors: Dict[str, torch.Tensor] = {}
        self.why: Optional[str] = None
        self.loaded: Set[str] = set()
        self.contents: Dict[str, List[int]] = {}
        self.others: Set[str] = set()

    def attach(self, model: torch.nn.Module) -> bool:
        start = time.monotonic()
        there = self.published
        if there is None:
            return False
        looks = {}
        for name in there:
            tensor = there[name]
            looks[name] = (tuple(tensor.shape), DTYPES.get(tensor.dtype))
        why = manifest.unlisted(model) or manifest.why_not_these(model, looks)
        if why:
            logger.warning("glake: %s is not attached: %s", self.key, why)
            return False
        self.tensors = {name: as_tensor(there[name]) for name in there}
        manifest.put_parameters(model, self.tensors)
        self.seconds += time.monotonic() - start
        return True

    def complete(self, model: torch.nn.Module) -> None:
        """After processing: what it makes is the first one's, too."""
        start = time.monotonic()
        manifest.put_the_rest(model, self.tensors)
        self.seconds += time.monotonic() - start
        logger.info("glake: attached %s: %d tensors in %.3f s, nothing loaded", self.key, len(self.tensors), self.seconds)

    def before(self, model: torch.nn.Module) -> None:
        manifest.grow(model)
        self._state = manifest.state_of(model)

    def after(self, model: torch.nn.Module) -> None:
        what = manifest.changed(self._state, manifest.state_of(model))
        if what:
            self.why = f"loading has changed {what}, which is no tensor's content"
        self.why = self.why or manifest.unlisted(model)
        self.contents = {} if self.why else manifest.contents_of(model)
        self.loaded = set(manifest.parameters_of(model))
        self.others = set(manifest.others_of(model))


class GlakeLoader(DefaultModelLoader):
    """vLLM's default loader otherwise: where files are found, how they are read, how weights are loaded anew."""

    def __init__(self, load_config: Any) -> None:
        super().__init__(dataclasses.replace(load_config, load_format="auto"))
        self._load: Optional[_Load] = None

    def get_external_weight_memory(self, vllm_config: Any) -> int:
        """Asked by vLLM 0.33: what is not this process's own, and is to leave its budget."""
        model_config = vllm_config.model_config
        if who_writes(vllm_config) or why_plain(vllm_config, model_config):
            return 0
        published = _find(keys.key_of(key_parts(vllm_config, model_config, "")))
        if published is None:
            return 0
        with published:
            return published.mapped_bytes

    def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> torch.nn.Module:
        plainly = functools.partial(super().load_model, vllm_config=vllm_config, model_config=model_config,
                                    prefix=prefix)
        _guard_writers()
        why = who_writes(vllm_config)
        if why:
            logger.info("glake: weights are loaded plainly and stay private: %s", why)
            return plainly()
        # Under the shim all of the process sleeps. Else vLLM's allocator has to have what it is to take away.
        move = not getattr(model_config, "enable_cumem_allocator", False) or _is_under_shim()
        why = why_plain(vllm_config, model_config)
        if why:
            model = plainly()
            _seal(model, move, why)
            return model
        # Before a module is built: models of vLLM write to their configuration.
        made_from = key_parts(vllm_config, model_config, prefix)
        key = keys.key_of(made_from)
        load = self._load = _Load(key)
        try:
            with manifest.Shrinking(load.published is not None) as self._shrink:
                model = plainly()
        finally:
            self._load = None
        if load.tensors:
            load.complete(model)
            return model
        load.why = load.why or manifest.unlisted(model)
        if not load.why:
            processed = manifest.contents_of(model)
            what = manifest.changed(load.contents, {name: processed.get(name) for name in load.loaded})
            load.why = f"processing has written to {what}" if what else None
        if not load.why and keys.checkpoint(model_config) != made_from["checkpoint"]:
            load.why = "its files changed while it was loaded"
        if load.why:
            _seal(model, move, load.why)
        else:
            _publish(model, load, move)
        return model

    def load_weights(self, model: torch.nn.Module, model_config: Any) -> None:
        """A step of vLLM's load_model(), and by itself of a load into a model that is there."""
        load = self._load
        if load is None:
            super().load_weights(model, model_config)
            return
        self._shrink.stop()
        is_attached = load.attach(model)
        if not is_attached:
            load.before(model)
        if self._shrink.is_held():
            raise RuntimeError("glake: this model keeps views of its parameters, which would not see the weights: "
                               "start it with --load-format auto")
        if is_attached:
            return
        super().load_weights(model, model_config)
        load.after(model)


def _find(key: str) -> Optional[Model]:
    """None: nobody has published it, or there is no glaked."""
    ordinal = torch.cuda.current_device()
    try:
        start_cuda(ordinal)
        model = Model.attach(key, ordinal)
        check_number(model._session, ordinal)
        return model
    except NotFoundError:
        return None
    except (Error, OSError, RuntimeError) as error:
        logger.warning("glake: weights are loaded plainly: %s", error)
        return None


def _publish(model: torch.nn.Module, load: _Load, move: bool) -> None:
    _sealed[:] = [True]
    try:
        done = publish(manifest.bundle(model, load.loaded, load.others), load.key, move=move)
        logger.info("glake: published %s: %d MiB in place, %d MiB in copies", load.key,
                    done.in_place_bytes >> 20, done.copied_bytes >> 20)
    except (Error, OSError, RuntimeError, ValueError) as error:
        logger.warning("glake: %s could not be published: %s", load.key, error)


def _seal(model: torch.nn.Module, move: bool, why: str) -> None:
    """Parameters alone, and no small ones: kernels write to buffers, and to workspaces that are parameters."""
    large = {name: tensor for name, tensor in manifest.parameters_of(model).items()
             if tensor.is_cuda and tensor.numel() * tensor.element_size() >= 2 << 20}
    _sealed[:] = [True]
    try:
        sealed = seal(manifest.Bundle(large), move=move)
        logger.info("glake: loaded plainly and sealed, %d MiB are shared: %s", sealed.shared_bytes >> 20, why)
    except (Error, OSError, RuntimeError) as error:
        logger.warning("glake: loaded plainly (%s) and not sealed: %s", why, error)


# ---- weights that are written to ----

def make_writable(model: torch.nn.Module, has_graphs: bool) -> None:
    """Before anything writes to weights in place. What this process has loaded becomes private where it is.
    What it has attached moves to private memory, which graphs would not know of: RuntimeError then."""
    parameters = manifest.parameters_of(model)
    mapped = {name: tensor for name, tensor in parameters.items()
              if tensor.untyped_storage() in mapped_storages}
    if mapped and has_graphs:
        raise RuntimeError("glake: these weights are another process's, mapped read-only, and CUDA graphs know their "
                           "addresses. An engine that reloads weights needs --load-format auto, or --enforce-eager")
    manifest.private_copies(mapped)
    if not _sealed:
        return
    own = {name: tensor for name, tensor in {**parameters, **manifest.others_of(model)}.items()
           if name not in mapped}
    try:
        unseal(manifest.Bundle(own))
    except Error as error:
        raise RuntimeError(f"glake: sealed weights cannot be written to: {error}") from error


def guard(worker: Any) -> None:
    """Let methods of vLLM's worker class that write to weights make them writable first."""
    for name in _WRITERS:
        original = worker.__dict__.get(name)
        if original is None or getattr(original, "is_glakes", False):
            continue

        def writer(self: Any, *arguments: Any, _original: Any = original, **options: Any) -> Any:
            make_writable(self.get_model(), not self.vllm_config.model_config.enforce_eager)
            return _original(self, *arguments, **options)

        functools.update_wrapper(writer, original)
        writer.is_glakes = True  # type: ignore[attr-defined]
        setattr(worker, name, writer)


def _guard_writers() -> None:
    worker = getattr(sys.modules.get("vllm.v1.worker.gpu_worker"), "Worker", None)
    if worker is not None:
        guard(worker)
