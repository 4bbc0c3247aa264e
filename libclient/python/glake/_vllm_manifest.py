# SPDX-License-Identifier: Apache-2.0
"""What of a module of vLLM is shared, and how it gets there.

A name in the manifest is a kind and a path: ``p:`` a parameter (tied ones under each of their names), mapped
read-only; ``b:`` a buffer, of which everybody has a copy of their own, since vLLM writes to buffers (scales, what
it restores after a sleep of level 2); ``d:`` a tensor that processing made beside them, such as an MLA layer's
W_UV, unless it is a view of a parameter. Strides are those of the publisher.
"""
from __future__ import annotations

import gc
import hashlib
import weakref
from typing import Any, Dict, Iterator, List, Mapping, Optional, Set, Tuple

import torch

#: Methods of which the result is known to be tensors alone, and whose processing leaves loaded tensors as they
#: are on a GPU: what attached is what a plain load made.
METHODS = frozenset({"UnquantizedLinearMethod", "UnquantizedEmbeddingMethod"})

#: Smaller parameters stay as they were made until they are attached.
_SHRINK_BYTES = 1 << 20

#: of a parameter that are summed up together
_PIECE_BYTES = 64 << 20

_SIMPLE = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)


# ---- what a module has ----

def _modules(model: torch.nn.Module) -> Iterator[Tuple[str, torch.nn.Module]]:
    for prefix, owner in model.named_modules(remove_duplicate=False):
        yield f"{prefix}." if prefix else "", owner


def parameters_of(model: torch.nn.Module) -> Dict[str, torch.Tensor]:
    return {f"p:{prefix}{name}": tensor for prefix, owner in _modules(model)
            for name, tensor in owner._parameters.items() if tensor is not None}


def buffers_of(model: torch.nn.Module) -> Dict[str, torch.Tensor]:
    return {f"b:{prefix}{name}": tensor for prefix, owner in _modules(model)
            for name, tensor in owner._buffers.items() if tensor is not None}


def others_of(model: torch.nn.Module) -> Dict[str, torch.Tensor]:
    """Tensors that are neither: plain attributes."""
    return {f"d:{prefix}{name}": value for prefix, owner in _modules(model)
            for name, value in vars(owner).items() if isinstance(value, torch.Tensor)}


def _look(tensor: torch.Tensor) -> Tuple[Any, ...]:
    return tuple(tensor.shape), tensor.dtype


# ---- may it be shared ----

def unlisted(model: torch.nn.Module) -> Optional[str]:
    """Why no process could be given this module's tensors alone."""
    for prefix, owner in _modules(model):
        method = getattr(owner, "quant_method", None)
        if method is not None and type(method).__name__ not in METHODS:
            return f"{prefix[:-1] or 'the model'} has {type(method).__name__}, " \
                "whose result glake has not compared yet"
    return None


def kernels_of(model: torch.nn.Module) -> str:
    """A name in the manifest for what vLLM has chosen for each layer."""
    def kind(value: Any) -> str:
        return (value if isinstance(value, type) else type(value)).__qualname__

    chosen = [(prefix, kind(owner), [kind(getattr(owner, part, None))
                                     for part in ("quant_method", "impl", "attn_backend")])
              for prefix, owner in _modules(model)]
    return "kernels:" + hashlib.sha256(repr(chosen).encode()).hexdigest()[:32]


def _state(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return id(value), value._version
    if isinstance(value, _SIMPLE):
        return value
    if isinstance(value, (tuple, list, set, frozenset)):
        return type(value).__name__, [_state(item) for item in value]
    if isinstance(value, dict):
        return [(key, _state(item)) for key, item in value.items()]
    return id(value)


def state_of(model: torch.nn.Module) -> Dict[str, Any]:
    """All that a module has besides the content of its parameters and buffers: what loading changes of it, a
    process that attaches would lack."""
    own = ("_parameters", "_buffers", "_modules", "training")
    state: Dict[str, Any] = {f"{prefix}{name}": _state(value) for prefix, owner in _modules(model)
                             for name, value in vars(owner).items() if name not in own}
    state.update((name, _look(tensor)) for tensors in (parameters_of(model), buffers_of(model))
                 for name, tensor in tensors.items())
    return state


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> Optional[str]:
    for name in sorted({*before, *after}):
        if name not in before or name not in after or before[name] != after[name]:
            return name
    return None


def contents_of(model: torch.nn.Module) -> Dict[str, List[int]]:
    """A sum of each parameter's words by place. Processing that leaves it as it is has not written to the
    parameter, under whatever name, and will not where it is mapped."""
    sums: Dict[str, torch.Tensor] = {}
    for name, tensor in parameters_of(model).items():
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        parts = []
        for piece in flat.split(_PIECE_BYTES):
            words = piece.view(torch.int32) if piece.numel() % 4 == 0 and \
                piece.storage_offset() % 4 == 0 else piece.to(torch.int32)
            places = torch.arange(1, words.numel() + 1, dtype=torch.int32, device=words.device)
            parts.append((words * places).sum(dtype=torch.int64))
        sums[name] = torch.stack(parts)
    return {name: parts.tolist() for name, parts in sums.items()}


# ---- parameters without memory ----

def is_shrunk(tensor: torch.Tensor) -> bool:
    return tensor.numel() > 1 and not any(tensor.stride())


class Shrinking:
    """Until it is stopped, a large parameter gives its memory back as soon as a module has it. It stays the same
    object, of the same shape, type and device: all of its elements are one. Who writes to it meanwhile gets
    an error of torch. `grow()` gives memory to those that are left."""

    def __init__(self, is_on: bool) -> None:
        self._original: Any = None
        self._is_on = is_on
        self._storages: "weakref.WeakSet[torch.UntypedStorage]" = weakref.WeakSet()

    def __enter__(self) -> "Shrinking":
        if self._is_on:
            original = self._original = torch.nn.Module.register_parameter

            def register(module: torch.nn.Module, name: str, param: Any) -> None:
                original(module, name, param)
                if param is not None:
                    self._shrink(param)

            torch.nn.Module.register_parameter = register  # type: ignore[method-assign]
        return self

    def _shrink(self, parameter: torch.Tensor) -> None:
        if torch.nn.parameter.is_lazy(parameter) or is_shrunk(parameter) or \
                parameter.numel() * parameter.element_size() < _SHRINK_BYTES:
            return
        self._storages.add(parameter.untyped_storage())
        parameter.data = parameter.data.new_zeros(1).as_strided(parameter.shape, (0,) * parameter.dim())
        self._storages.add(parameter.untyped_storage())

    def is_held(self) -> bool:
        """Somebody still has what was a parameter's memory, when each parameter has got its own: a view that
        was made of it, which would never see the weights."""
        if self._storages:
            gc.collect()
        return len(self._storages) > 0

    def stop(self) -> None:
        if self._original is not None:
            torch.nn.Module.register_parameter = self._original  # type: ignore[method-assign]
            self._original = None

    def __exit__(self, *exception: object) -> None:
        self.stop()


def grow(model: torch.nn.Module) -> None:
    for tensor in parameters_of(model).values():
        if is_shrunk(tensor):
            tensor.data = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


# ---- attach ----

def why_not_these(model: torch.nn.Module, published: Mapping[str, Tuple[Any, ...]]) -> Optional[str]:
    """Why the module cannot take them. ``published``: shape and type of each, by name."""
    if kernels_of(model) not in published:
        return "vLLM has chosen other kernels here"
    own = parameters_of(model)
    for name in sorted({*own, *(name for name in published if name.startswith("p:"))}):
        if name not in published or name not in own or _look(own[name]) != published[name]:
            return f"parameter {name[2:]} is another one there"
    for name, tensor in buffers_of(model).items():
        if name in published and _look(tensor) != published[name]:
            return f"buffer {name[2:]} is another one there"
    return None


def put_parameters(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Each parameter stays the object that it is: kernels and other modules may have it."""
    for name, parameter in parameters_of(model).items():
        parameter.requires_grad_(False)
        parameter.data = tensors[name]


def put_the_rest(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """After processing, which made them here as well."""
    with torch.no_grad():
        for name, buffer in buffers_of(model).items():
            if name in tensors and _look(tensors[name]) == _look(buffer):
                buffer.copy_(tensors[name])
    for name, own in derived_of(model, {name for name in tensors if name.startswith("p:")}).items():
        there = tensors.get(name)
        if there is not None and (_look(there), there.stride()) == (_look(own), own.stride()):
            own.data = there


# ---- publish ----

def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def derived_of(model: torch.nn.Module, loaded: Set[str]) -> Dict[str, torch.Tensor]:
    """What processing has made, other than views of the parameters that were ``loaded``; attributes, and new
    parameters alike."""
    parameters = parameters_of(model)
    taken = {_storage(parameters[name]) for name in loaded if name in parameters}
    made = {f"d:{name[2:]}": tensor for name, tensor in parameters.items() if name not in loaded}
    return {name: tensor for name, tensor in {**made, **others_of(model)}.items()
            if tensor.layout == torch.strided and tensor.numel() and _storage(tensor) not in taken}


class Bundle(torch.nn.Module):
    """Tensors by the manifest's names, for glake.torch.publish(), seal() and unseal(): they move the very
    tensors that a model has."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            (self._parameters if isinstance(tensor, torch.nn.Parameter) else self._buffers)[name] = tensor


def bundle(model: torch.nn.Module, loaded: Set[str], before: Set[str]) -> Bundle:
    """All that is published. ``loaded``: names of the parameters before processing; ``before``: names of the
    attributes then, which every process makes by itself."""
    parameters = parameters_of(model)
    tensors = {name: parameters[name] for name in loaded if name in parameters}
    device = next((tensor.device for tensor in tensors.values()), torch.device("cpu"))
    tensors.update((name, tensor) for name, tensor in derived_of(model, loaded).items()
                   if name not in before and tensor.device == device)
    tensors.update((name, buffer.detach().clone()) for name, buffer in buffers_of(model).items()
                   if buffer.device == device and buffer.layout == torch.strided)
    tensors[kernels_of(model)] = torch.zeros(1, dtype=torch.uint8, device=device)
    return Bundle(tensors)


# ---- reload ----

def private_copies(tensors: Mapping[str, torch.Tensor]) -> None:
    """Each at a new place, with its strides; tied ones stay tied."""
    done: Dict[Tuple[Any, ...], torch.Tensor] = {}
    for tensor in tensors.values():
        place = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        if place not in done:
            done[place] = tensor.detach().clone()
        tensor.data = done[place]
