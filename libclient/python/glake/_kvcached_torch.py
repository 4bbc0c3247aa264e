# SPDX-License-Identifier: Apache-2.0
"""kvcached's tensors, and its operators as PyTorch knows them (torch.ops.kvcached)."""
from __future__ import annotations

import ctypes
from typing import Any, List, Tuple

import torch
import torch.utils.dlpack

from . import _kvcached_pool as pools
from .tensor import KDL_CUDA, DLManagedTensor, new_capsule

_DTYPES = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_KDL_INT = 0

#: What describes tensors, for good: PyTorch borrows it, and who has a tensor may have it longer than its pool, though not use it.
_described: List[Any] = []
_library: Any = None


def _tensor(ptr: int, n_bytes: int, ordinal: int) -> torch.Tensor:
    shape = (ctypes.c_int64 * 1)(n_bytes)
    managed = DLManagedTensor(data=ptr, device_type=KDL_CUDA, device_id=ordinal, n_dims=1, type_code=_KDL_INT,
                              type_bits=8, type_lanes=1, shape=shape)
    _described.append((shape, managed))
    # With the capsule itself torch does not look for a stream to wait for.
    return torch.utils.dlpack.from_dlpack(new_capsule(ctypes.addressof(managed)))


def create_kv_tensors(size: int, dtype_size: int, dev_str: str, num_layers: int, num_kv_buffers: int = 2,
                      group_id: int = 0, unified_pool: bool = False) -> List[torch.Tensor]:
    """Of ``size`` bytes for each layer: addresses. Page 0 has its memory."""
    if dtype_size not in _DTYPES:
        raise RuntimeError(f"Unsupported dtype size: {dtype_size}")
    pool = pools.create(size, num_layers, num_kv_buffers, group_id, unified_pool)
    if not pool.tensors:
        where = pool.layout
        pool.tensors = [
            _tensor(pool.base + i * where.tensor_bytes, where.tensor_bytes, pool.ordinal).view(_DTYPES[dtype_size])
            for i in range(where.n_tensors)]
    if pool.tensors[0].element_size() != dtype_size:
        raise RuntimeError(f"group {group_id} has KV tensors of {pool.tensors[0].element_size()} bytes an element")
    return list(pool.tensors)


def shutdown_kvcached() -> None:
    """All pools end; what the GPU still does with them is waited for."""
    try:
        pools.wait_for_gpu()
    finally:
        # Where that fails the context is lost, and its work with it.
        pools.stop()


def register(operators: List[Tuple[str, Any]]) -> None:
    """They are torch.ops.kvcached from now on. A process has either these or those of kvcached's library."""
    global _library
    if _library is not None:
        return
    library = torch.library.Library("kvcached", "DEF")
    for schema, function in operators:
        library.impl(library.define(schema), function, "CompositeExplicitAutograd")
    _library = library
