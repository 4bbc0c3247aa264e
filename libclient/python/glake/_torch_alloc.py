# SPDX-License-Identifier: Apache-2.0
"""PyTorch's GPU memory from glaked, by its pluggable allocator and glake_torch.h."""
from __future__ import annotations

import ctypes
import os
import threading
import warnings
from typing import Any, Dict

import torch

from . import _lib
from .session import DeviceLike, Session, parse_ordinal

#: c10::detail::torchCheckFail(): it throws what Python gets as a RuntimeError.
_CHECK_FAIL = "_ZN3c106detail14torchCheckFailEPKcS2_jS2_"
_POLL_MS = 1000

_allocators: Dict[str, Any] = {}  # kept: PyTorch borrows them
_tender: Any = None


def _address(name: str) -> int:
    address = ctypes.cast(getattr(_lib.library(), name), ctypes.c_void_p).value
    assert address is not None
    return address


def _tend() -> None:
    library = _lib.library()
    while True:
        library.glake_torch_tend(_POLL_MS)


def _allocator(alloc: str) -> Any:
    global _tender
    if alloc not in _allocators:
        with Session(cuda=False):
            pass  # here its error is clear, and in an allocation it would be out of memory
        _allocators[alloc] = torch.cuda.memory.CUDAPluggableAllocator(
            _lib.library()._name, alloc, "glake_torch_free").allocator()
    if _tender is None or not _tender.is_alive():
        _tender = threading.Thread(target=_tend, name="glake", daemon=True)
        _tender.start()
    return _allocators[alloc]


def _raise_errors() -> None:
    """PyTorch does not look whether a pluggable allocator has failed."""
    path = os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so")
    try:
        raises = getattr(ctypes.CDLL(path), _CHECK_FAIL)
    except (OSError, AttributeError):
        warnings.warn("glake does not know this PyTorch: when memory is short, it will not raise "
                      "an error, but use address 0", RuntimeWarning, stacklevel=3)
        return
    _lib.library().glake_torch_set_raise(ctypes.cast(raises, ctypes.c_void_p))


def use_allocator() -> None:
    """All CUDA memory that PyTorch allocates from here on comes from the daemon, in stream order,
    and is given back to it when another process needs it. Call it before anything else uses
    torch.cuda.

    When memory is short, PyTorch raises RuntimeError("CUDA out of memory. ..."), since a pluggable
    allocator cannot raise its OutOfMemoryError. Programs that capture CUDA graphs use mem_pool()
    instead."""
    allocator = _allocator("glake_torch_alloc")
    allocator.set_record_stream_fn(_address("glake_torch_record_stream"))
    allocator.set_reset_fn(_address("glake_torch_empty_cache"))
    if torch.cuda.memory._get_current_allocator().allocator() is allocator:
        return
    _raise_errors()
    try:
        torch._C._cuda_changeCurrentAllocator(allocator)
    except RuntimeError as error:
        raise RuntimeError("PyTorch has an allocator in use already: call "
                           "glake.torch.use_allocator() before anything else uses torch.cuda"
                           ) from error


def mem_pool(**options: Any) -> torch.cuda.MemPool:
    """A torch.cuda.MemPool with memory from the daemon; ``options`` are MemPool's.

        pool = glake.torch.mem_pool()
        with torch.cuda.use_mem_pool(pool):
            ...
    """
    return torch.cuda.MemPool(_allocator("glake_torch_pool_alloc"), **options)


class _Door(Session):
    """The session of the entry points. It is the library's."""

    def __init__(self) -> None:
        self._handle = ctypes.c_void_p(_lib.library().glake_torch_session())


def memory_stats(device: DeviceLike = "cuda") -> Dict[str, int]:
    """What use_allocator() and mem_pool() have on a device, as Session.pool_stats();
    torch.cuda.memory_stats() knows only PyTorch's own allocators."""
    door = _Door()
    if not door._handle:
        return {name: 0 for name, _ in _lib.PoolStats._fields_ if name != "size"}
    return door.pool_stats(parse_ordinal(device))


def reset_peak_memory_stats(device: DeviceLike = "cuda") -> None:
    """Both peaks of memory_stats() begin anew, at the present values."""
    door = _Door()
    if door._handle:
        door.reset_pool_peaks(parse_ordinal(device))
