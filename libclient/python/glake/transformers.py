# SPDX-License-Identifier: Apache-2.0
"""For transformers (5.8 and later): from_pretrained() takes its tensors from the store.

    import glake.transformers
    glake.transformers.enable()
    model = AutoModelForCausalLM.from_pretrained(path, device_map="cuda:0", dtype="auto")

For a program that is to stay as it is: ``python -m glake.transformers PROGRAM.py ...``
"""
from __future__ import annotations

import inspect
import json
import os
import runpy
import sys
import threading
import warnings
from typing import Any, Callable, List, Optional, Union

import torch

from . import _torch_version  # noqa: F401 # first: it refuses a PyTorch that is too old
from ._torch_seal import seal as seal_module
from ._torch_tensors import mapped_storages
from .sealing import PAGE_BYTES
from .torch import load_file

__all__ = ["disable", "enable"]

_INDEX = "model.safetensors.index.json"
_LOAD_PARAMETERS = ["model", "state_dict", "checkpoint_files", "load_config"]


class _Loading(threading.local):
    """What this thread is loading from the store."""

    is_under_way = False
    # It is to be sealed when all of it is there.
    model: Any = None


_loading = _Loading()
_undo: List[Callable[[], None]] = []


# ---- which loads ----

def _cuda_of(device: Any) -> Optional[torch.device]:
    """None: it is not a CUDA device."""
    if isinstance(device, int):
        return torch.device("cuda", device)
    if not str(device).startswith("cuda"):
        return None
    device = torch.device(device)
    return device if device.index is not None else torch.device("cuda", torch.cuda.current_device())


def _why_not(modeling: Any, model: Any, state_dict: Any, files: Any, config: Any) -> Optional[str]:
    """Why transformers has to load it by itself."""
    if len({str(_cuda_of(device)) for device in config.device_map.values()}) > 1:
        return "it is spread over several devices"
    if config.hf_quantizer is not None:
        return "a quantizer loads it"
    if config.device_mesh is not None or \
            any(hasattr(parameter, "device_mesh") for parameter in model.parameters()):
        return "its tensors are split"
    if modeling.is_deepspeed_zero3_enabled():
        return "DeepSpeed loads it"
    if state_dict is not None:
        return "its tensors do not come from files"
    if not files or not all(str(file).endswith(".safetensors") for file in files):
        return "its files are not safetensors"
    return None


def _path_of(files: List[str]) -> Union[str, List[str]]:
    """By the index, if there is one: the store then finds what was loaded as a folder."""
    if len(files) == 1:
        return files[0]
    folder = os.path.dirname(files[0])
    try:
        with open(os.path.join(folder, _INDEX), encoding="utf-8") as file:
            shards = set(json.load(file)["weight_map"].values())
    except OSError:
        return files
    is_all = {os.path.join(folder, shard) for shard in shards} == set(files)
    return os.path.join(folder, _INDEX) if is_all else files


# ---- doors ----

def _replace(owner: Any, name: str, function: Callable[..., Any]) -> None:
    original = owner.__dict__[name]
    is_static = isinstance(original, staticmethod)
    setattr(owner, name, staticmethod(function) if is_static else function)
    _undo.append(lambda: setattr(owner, name, original))


def _load_from_store(modeling: Any) -> None:
    original = modeling.PreTrainedModel._load_pretrained_model

    def load(model: Any, state_dict: Any, checkpoint_files: Any, load_config: Any,
             *more: Any, **options: Any) -> Any:
        devices = [_cuda_of(device) for device in (load_config.device_map or {}).values()]
        why = _why_not(modeling, model, state_dict, checkpoint_files, load_config) \
            if any(devices) else None
        if why:
            warnings.warn(f"glake: transformers loads {type(model).__name__} by itself: {why}",
                          stacklevel=2)
        if why or not any(devices):
            return original(model, state_dict, checkpoint_files, load_config, *more, **options)
        tensors = load_file(_path_of(checkpoint_files), devices[0])
        _loading.is_under_way = True
        try:
            result = original(model, tensors, checkpoint_files, load_config, *more, **options)
        finally:
            _loading.is_under_way = False
        _leave_if_few(model, sum(tensor.nbytes for tensor in tensors.values()))
        _loading.model = model
        return result

    _replace(modeling.PreTrainedModel, "_load_pretrained_model", load)


def _no_warmup(modeling: Any) -> None:
    """It would allocate all of the model's memory once more."""
    original = modeling.caching_allocator_warmup

    def warm_up(*arguments: Any, **options: Any) -> Any:
        if not _loading.is_under_way:
            return original(*arguments, **options)

    _replace(modeling, "caching_allocator_warmup", warm_up)


def _seal_the_rest(modeling: Any) -> None:
    original = modeling.PreTrainedModel._finalize_model_loading

    def finalize(model: Any, *arguments: Any, **options: Any) -> Any:
        result = original(model, *arguments, **options)
        if _loading.model is model:
            _loading.model = None
            _share_converted(model)
        return result

    _replace(modeling.PreTrainedModel, "_finalize_model_loading", finalize)


def _tensors_of(model: torch.nn.Module, is_mapped: bool) -> List[torch.Tensor]:
    return [tensor for tensor in (*model.parameters(), *model.buffers()) if tensor.is_cuda and
            (tensor.untyped_storage() in mapped_storages) == is_mapped]


def _leave_if_few(model: torch.nn.Module, n_bytes: int) -> None:
    """A model is mapped as a whole: for the few tensors that are used as they are, all of it would be
    in use."""
    mapped = _tensors_of(model, True)
    if 2 * sum(tensor.nbytes for tensor in mapped) < n_bytes:
        for tensor in mapped:
            tensor.data = tensor.data.clone()


def _share_converted(model: torch.nn.Module) -> None:
    """What transformers has converted or fused is private memory."""
    if sum(tensor.nbytes for tensor in _tensors_of(model, False)) >= PAGE_BYTES:
        try:
            seal_module(model)
        except PermissionError:
            pass  # GLAKE_DEDUP=off


def enable(*, seal: bool = True) -> None:
    """From now on, ``from_pretrained()`` of a model of transformers takes safetensors files from
    glake's store, if ``device_map`` names one CUDA device: they are loaded there if they are not there
    yet, and mapped. Other loads are transformers' own; a warning says why if they use a GPU.

    The tensors are **read-only**, as those of ``glake.torch.load_file()``: load for inference, or
    train adapters. A tensor whose type is converted on the way, or that is fused with others, is private
    memory; so is all of a model of which less than half is left as it is in the files. With ``seal``
    private parameters and buffers are sealed at the end, with ``glake.torch.seal()``, so that processes
    that convert alike share them as well.

    ImportError: this transformers loads in another way than those that glake knows (5.8 to 5.23).
    """
    if _undo:
        disable()
    from transformers import __version__, modeling_utils as modeling
    base = modeling.PreTrainedModel
    known = all(isinstance(base.__dict__.get(name), staticmethod)
                for name in ("_load_pretrained_model", "_finalize_model_loading")) and \
        all(hasattr(modeling, name) for name in ("caching_allocator_warmup",
                                                 "is_deepspeed_zero3_enabled")) and \
        list(inspect.signature(base._load_pretrained_model).parameters)[:4] == _LOAD_PARAMETERS
    if not known:
        raise ImportError(f"glake does not know how transformers {__version__} loads models; it "
                          "knows 5.8 to 5.23. glake.torch.seal() shares what any version has loaded")
    _load_from_store(modeling)
    _no_warmup(modeling)
    if seal:
        _seal_the_rest(modeling)


def disable() -> None:
    """Make transformers load by itself again. Loaded models stay as they are."""
    while _undo:
        _undo.pop()()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python -m glake.transformers PROGRAM.py [ARGUMENT...]")
    from glake import transformers as door
    door.enable()
    del sys.argv[0]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
