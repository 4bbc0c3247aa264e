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


def _torch_stats(device: int) -> Dict[str, Any]:
    """memory_stats() as PyTorch's own allocators have it. It does not tell sizes apart."""
    ours = memory_stats(device)

    def stat(now: int = 0, peak: int = 0, total: int = 0) -> Dict[str, int]:
        return {"current": now, "peak": peak, "allocated": total, "freed": max(total - now, 0)}

    def by_pool(every: Dict[str, int]) -> Dict[str, Dict[str, int]]:
        return {"all": every, "large_pool": stat(), "small_pool": stat()}

    live = by_pool(stat(ours["live_bytes"], ours["peak_live_bytes"]))
    reserved = by_pool(stat(ours["reserved_bytes"], ours["peak_reserved_bytes"],
                            ours["grown_bytes"]))
    return {"allocated_bytes": live, "active_bytes": live, "requested_bytes": live,
            "reserved_bytes": reserved, "inactive_split_bytes": by_pool(stat()),
            "allocation": by_pool(stat(total=ours["n_allocs"])), "active": by_pool(stat()),
            "segment": by_pool(stat(total=ours["n_grows"])), "inactive_split": by_pool(stat()),
            "oversize_allocations": stat(), "oversize_segments": stat(), "num_alloc_retries": 0,
            "num_ooms": 0, "num_device_alloc": ours["n_grows"], "num_device_free": 0}


def _have_stats() -> None:
    """PyTorch raises an error where a program asks for statistics of a pluggable allocator, and many
    programs print them."""
    torch._C._cuda_memoryStats = _torch_stats
    torch._C._cuda_resetPeakMemoryStats = reset_peak_memory_stats
    torch._C._cuda_resetAccumulatedMemoryStats = lambda device: None


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
    _have_stats()


def mem_pool(**options: Any) -> torch.cuda.MemPool:
    """A torch.cuda.MemPool with memory from the daemon; ``options`` are MemPool's. PyTorch 2.5 and later
    have it.

        pool = glake.torch.mem_pool()
        with torch.cuda.use_mem_pool(pool):
            ...
    """
    if not hasattr(torch.cuda, "MemPool"):
        raise RuntimeError(f"this PyTorch, {torch.__version__}, has no torch.cuda.MemPool: 2.5 and "
                           "later have")
    return torch.cuda.MemPool(_allocator("glake_torch_pool_alloc"), **options)


class _Door(Session):
    """The session of the entry points. It is the library's."""

    def __init__(self) -> None:
        self._handle = ctypes.c_void_p(_lib.library().glake_torch_session())


def memory_stats(device: DeviceLike = "cuda") -> Dict[str, int]:
    """What use_allocator() and mem_pool() have on a device, as Session.pool_stats(). Small memory
    (below 128 KiB) is not counted."""
    door = _Door()
    if not door._handle:
        return {name: 0 for name, _ in _lib.PoolStats._fields_ if name != "size"}
    return door.pool_stats(parse_ordinal(device))


def reset_peak_memory_stats(device: DeviceLike = "cuda") -> None:
    """Both peaks of memory_stats() begin anew, at the present values."""
    door = _Door()
    if door._handle:
        door.reset_pool_peaks(parse_ordinal(device))
