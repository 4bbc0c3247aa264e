# SPDX-License-Identifier: Apache-2.0
"""A module's tensors as a published model, and the other way."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

import torch

from ._torch_devices import check_number, cuda_ordinal, start_cuda
from ._torch_seal import plain, seal, tensors_of, why_not
from ._torch_tensors import DTYPES, as_tensor
from .model import Model
from .publishing import Published, Weight
from .publishing import publish as publish_weights
from .session import DeviceLike, Session

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


# ---- publish ----

def _refuse(tensor: torch.Tensor) -> Optional[str]:
    if not tensor.is_cuda:
        return f"it is on {tensor.device}"
    if tensor.dtype not in _NAMES:
        return f"glake has no type for {tensor.dtype}"
    if _NAMES[tensor.dtype] == "F4" and not tensor.is_contiguous():
        return "elements of 4 bits are not contiguous"
    return why_not(tensor)


def _weight(tensor: torch.Tensor) -> Weight:
    name = _NAMES[tensor.dtype]
    shape = tuple(tensor.shape)
    if name == "F4":
        # One element of torch is two of them.
        shape = (*shape[:-1], 2 * shape[-1]) if shape else (2,)
    strides = None if tensor.is_contiguous() else tuple(tensor.stride())
    return Weight(tensor.data_ptr(), name, shape, strides)


def publish(module: torch.nn.Module, key: str, *, move: bool = True, pin: bool = False) -> Published:
    """Leave the parameters and buffers of ``module`` in the store, under ``key``, for ``attach()`` in
    all processes of the realm: as they are now, quantized, fused or repacked. Tied tensors are there
    under each of their names; those of wrappers (quantized tensors) under the names of their parts.

    The module is sealed by that, as by ``seal(module, move=move)``, with all that is said there:
    its tensors move to homes, and are **read-only** afterwards. They and the published ones are one
    memory. Only what cannot be sealed is copied. The model stays in the store when this process has
    ended, as cache, until it is evicted; with ``pin``, until it is unpinned. A key that is there is
    replaced; modules that are attached keep what they have.

    All tensors have to be on one GPU (else ValueError). Other exceptions are those of ``seal()``.
    """
    named = dict(tensors_of(module))
    refused = [f"{name}: {why}" for name, why in ((name, _refuse(tensor))
                                                  for name, tensor in named.items()) if why]
    devices = {tensor.device for tensor in named.values()}
    if not refused and len(devices) != 1:
        refused = [f"tensors are on {len(devices)} devices"]
    if refused:
        raise ValueError("cannot be published: " + "; ".join(refused))
    seal(module, move=move)
    return publish_weights(key, {name: _weight(tensor) for name, tensor in named.items()},
                           devices.pop().index, pin=pin)


# ---- attach ----

@dataclass
class Attached:
    """What ``attach()`` with ``strict=False`` has left out."""

    #: the module's, not published: they stay as they are
    missing: List[str]
    #: published, not the module's
    unexpected: List[str]


@dataclass
class _Slot:
    """Where a module has a parameter or buffer."""

    owner: torch.nn.Module
    kind: str  # the owner's dictionary
    last: str
    name: str
    old: torch.Tensor
    parts: Dict[str, torch.Tensor]

    @property
    def is_computed(self) -> bool:
        """A buffer that no checkpoint has."""
        return self.kind == "_buffers" and self.last in self.owner._non_persistent_buffers_set


def _slots(module: torch.nn.Module) -> Iterator[_Slot]:
    for prefix, owner in module.named_modules(remove_duplicate=False):
        for kind in ("_parameters", "_buffers"):
            for last, old in getattr(owner, kind).items():
                if old is not None:
                    name = f"{prefix}.{last}" if prefix else last
                    yield _Slot(owner, kind, last, name, old, dict(plain(name, old)))


def _differences(slots: List[_Slot], tensors: Dict[str, torch.Tensor]) -> List[str]:
    def look(tensor: torch.Tensor) -> Tuple[Any, ...]:
        return tuple(tensor.shape), tensor.dtype

    return [f"{name} is {look(tensors[name])}, not {look(old)}"
            for slot in slots for name, old in slot.parts.items()
            if name in tensors and look(tensors[name]) != look(old)]


def _build(name: str, old: torch.Tensor, tensors: Dict[str, torch.Tensor]) -> torch.Tensor:
    if not hasattr(old, "__tensor_flatten__"):
        return tensors[name]
    parts, context = old.__tensor_flatten__()
    inner = {part: _build(f"{name}.{part}", getattr(old, part), tensors) for part in parts}
    return type(old).__tensor_unflatten__(inner, context, old.size(), old.stride())


def _parameter(old: torch.nn.Parameter, tensor: torch.Tensor) -> torch.nn.Parameter:
    """The same object if that can be: others may have it."""
    if hasattr(old, "__tensor_flatten__"):
        return torch.nn.Parameter(tensor, requires_grad=False)
    if old.is_meta:
        new = torch.nn.Parameter(tensor, requires_grad=False)
        # Engines have classes of their own, with attributes.
        new.__class__ = type(old)
        new.__dict__.update(old.__dict__)
        return new
    old.grad = None
    old.requires_grad_(False)
    old.data = tensor
    return old


class _Putting:
    """Puts tensors where a module has its own. What is one tensor for the publisher stays one."""

    def __init__(self) -> None:
        self._done: Dict[Any, torch.Tensor] = {}

    def put(self, slot: _Slot, tensor: torch.Tensor) -> None:
        # Two names, one object before: one object afterwards. So with one place in memory.
        keys: List[Any] = [id(slot.old)]
        if not hasattr(tensor, "__tensor_flatten__") and tensor.numel():
            keys.append((slot.kind, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype))
        new = next((self._done[key] for key in keys if key in self._done), None)
        if new is None:
            new = _parameter(slot.old, tensor) if slot.kind == "_parameters" else tensor
        self._done.update((key, new) for key in keys)
        getattr(slot.owner, slot.kind)[slot.last] = new


def attach(module: torch.nn.Module, key: str, device: DeviceLike = "cuda", *, strict: bool = True,
           wait: float = 0, pin: bool = False, session: Optional[Session] = None) -> Attached:
    """Let the parameters and buffers of ``module`` be those that were published under ``key``: mapped,
    read-only, without a copy. The module may have been made on the meta device, or have tensors of its own.

    Tensors that are tied where they were published are one object here. Parameters do not require
    gradients afterwards. Those that were on no meta device stay the same objects. Buffers that are not
    persistent and were not published stay as they are: make them by yourself on a meta device.
    The tensors live as long as anything has them; a key that is published again does not change them.

    With ``strict`` a RuntimeError names all that is missing, unexpected, or of another shape or type,
    and the module is as before. Without, missing and unexpected ones are left out and returned, and
    others take the published shape and type. ``wait``: seconds for somebody to publish the
    key, then NotFoundError.
    """
    ordinal = cuda_ordinal(device)
    start_cuda(ordinal)
    with Model.attach(key, ordinal, wait=wait, pin=pin, session=session) as model:
        check_number(model._session, ordinal)
        slots = list(_slots(module))
        wanted: Set[str] = {name for slot in slots for name in slot.parts}
        tensors = {name: as_tensor(model[name]) for name in model if name in wanted}
        unexpected = [name for name in model if name not in wanted]
    missing = [name for slot in slots if not slot.is_computed
               for name in slot.parts if name not in tensors]
    if strict:
        wrong = [f"{name} is not published" for name in missing] + \
            [f"{name} is not the module's" for name in unexpected] + _differences(slots, tensors)
        if wrong:
            raise RuntimeError(f"{key} does not fit the module: " + "; ".join(wrong))
    putting = _Putting()
    for slot in slots:
        if all(name in tensors for name in slot.parts):
            putting.put(slot, _build(slot.name, slot.old, tensors))
    return Attached(missing, unexpected)
