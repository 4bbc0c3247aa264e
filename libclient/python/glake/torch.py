# SPDX-License-Identifier: Apache-2.0
"""For PyTorch: load_file() as in safetensors.torch, without a copy, and seal() for modules that
something else has loaded.

The tensors are views of the node's one copy of the weights, mapped read-only. PyTorch does not know
that: writing to one in place is an illegal memory access. Clone what is to change, or unseal().
"""
from __future__ import annotations

from typing import Dict, Optional, Sequence, Tuple, Union

import torch
import torch.utils.dlpack

from ._torch_devices import check_number
from ._torch_seal import mapped_storages, seal, unseal
from .model import Model, Path, Progress
from .session import DeviceLike, Session, parse_ordinal
from .tensor import Tensor

__all__ = ["as_tensor", "load_file", "open_model", "seal", "unseal"]

# Names that this torch lacks are missing.
_DTYPES = {name: getattr(torch, kind) for name, kind in (
    ("BOOL", "bool"), ("U8", "uint8"), ("I8", "int8"), ("I16", "int16"), ("U16", "uint16"),
    ("F16", "float16"), ("BF16", "bfloat16"), ("I32", "int32"), ("U32", "uint32"),
    ("F32", "float32"), ("C64", "complex64"), ("F64", "float64"), ("I64", "int64"),
    ("U64", "uint64"), ("F8_E4M3", "float8_e4m3fn"), ("F8_E5M2", "float8_e5m2"),
    ("F8_E8M0", "float8_e8m0fnu"), ("F4", "float4_e2m1fn_x2")) if hasattr(torch, kind)}
# Types that DLPack shows as bytes
_AS_BYTES = ("F8_E4M3", "F8_E5M2", "F8_E8M0", "F4")


def _shape_of(tensor: Tensor) -> Tuple[int, ...]:
    """Two F4 are one element of torch, along the last dimension, as in safetensors.torch."""
    if tensor.dtype != "F4" or not tensor.shape:
        return tensor.shape
    return (*tensor.shape[:-1], tensor.shape[-1] // 2)


def as_tensor(tensor: Tensor) -> torch.Tensor:
    """A torch view of a glake tensor. The mapping lives as long as it does."""
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None:
        raise TypeError(f"{tensor.name}: this torch has no type for {tensor.dtype}")
    shape = _shape_of(tensor)
    if tensor.nbytes == 0:
        return torch.empty(shape, dtype=dtype, device=f"cuda:{tensor.device}")
    # With the capsule itself torch does not look for a stream to wait for.
    view = torch.utils.dlpack.from_dlpack(tensor.__dlpack__())
    mapped_storages.add(view.untyped_storage())
    return view.reshape(shape).view(dtype) if tensor.dtype in _AS_BYTES else view


def _ordinal_of(device: DeviceLike) -> int:
    if str(device).partition(":")[0] == "cpu":
        raise ValueError("glake maps GPU memory; for device='cpu' use safetensors.torch.load_file")
    return parse_ordinal(device)


def _start_cuda(ordinal: int) -> None:
    """Views need the primary context, and the numbering is only right once torch has read it."""
    torch.cuda.init()
    with torch.cuda.device(ordinal):
        torch.cuda.current_stream()
        torch.cuda.synchronize()


def open_model(filename: Union[Path, Sequence[Path]], device: DeviceLike = "cuda", *,
               session: Optional[Session] = None,
               progress: Optional[Progress] = None) -> Model:
    """A glake.Model on a device as torch numbers them."""
    ordinal = _ordinal_of(device)
    _start_cuda(ordinal)
    model = Model(filename, ordinal, session=session, progress=progress)
    try:
        check_number(model._session, ordinal)
    except RuntimeError:
        model.close()
        raise
    return model


def load_file(filename: Union[Path, Sequence[Path]], device: DeviceLike = "cuda", *,
              backend: Optional[str] = None, session: Optional[Session] = None,
              progress: Optional[Progress] = None) -> Dict[str, torch.Tensor]:
    """safetensors.torch.load_file() for a GPU: ``filename`` may also be a folder or a list of
    shards; ``backend`` is taken and not used."""
    with open_model(filename, device, session=session, progress=progress) as model:
        return {name: as_tensor(model[name]) for name in model}
