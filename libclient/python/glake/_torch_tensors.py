# SPDX-License-Identifier: Apache-2.0
"""Tensors of glake as torch has them."""
from __future__ import annotations

import weakref
from typing import Tuple

import torch
import torch.utils.dlpack

from .tensor import Tensor

#: Storages that a Model maps: shared already.
mapped_storages: "weakref.WeakSet[torch.UntypedStorage]" = weakref.WeakSet()

#: Names that this torch lacks are missing.
DTYPES = {name: getattr(torch, kind) for name, kind in (
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
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:
        raise TypeError(f"{tensor.name}: this torch has no type for {tensor.dtype}")
    shape = _shape_of(tensor)
    if tensor.nbytes == 0:
        return torch.empty(shape, dtype=dtype, device=f"cuda:{tensor.device}")
    # With the capsule itself torch does not look for a stream to wait for.
    view = torch.utils.dlpack.from_dlpack(tensor.__dlpack__())
    mapped_storages.add(view.untyped_storage())
    return view.reshape(shape).view(dtype) if tensor.dtype in _AS_BYTES else view
