# SPDX-License-Identifier: Apache-2.0
"""Sessions: one connection to the daemon each, and the process's own default one."""
from __future__ import annotations

import ctypes
import errno
import os
import threading
import weakref
from typing import Any, Dict, List, Optional, Sequence, Union

from . import _lib

DeviceLike = Union[int, str, Any]

#: No machine has this many: a higher number would not fit C's int.
_MOST_DEVICES = 1 << 30


class Session:
    """One connection. Threads may share it. Closing it ends all that came from it but tensors that
    were exported without a copy (DLPack): these stay mapped as long as they live, unless it sleeps."""

    def __init__(self, socket: Optional[str] = None, program: Optional[str] = None,
                 cuda: bool = True, libcuda: Optional[str] = None, stitch: bool = False,
                 sleep_when_asked: bool = False, promise: Optional[str] = None,
                 only_looks: bool = False) -> None:
        self._handle = ctypes.c_void_p()
        options = _lib.ConnectOptions(
            ctypes.sizeof(_lib.ConnectOptions), os.fsencode(socket) if socket else None,
            program.encode() if program else None, os.fsencode(libcuda) if libcuda else None,
            0 if cuda else 1, 1 if stitch else 0, 1 if sleep_when_asked else 0,
            promise.encode() if promise else None, 1 if only_looks else 0)
        handle = ctypes.c_void_p()
        _lib.check(_lib.library().glake_connect(ctypes.byref(options), ctypes.byref(handle)))
        self._handle = handle
        # Models hold their session, so a session that is garbage has no memory in use. At the end of
        # the process other threads may still be at work, so the daemon ends the session then.
        self._finalizer = weakref.finalize(self, _lib.library().glake_disconnect, handle)
        self._finalizer.atexit = False

    @property
    def handle(self) -> ctypes.c_void_p:
        """For calls of the C library."""
        if not self._handle:
            raise ValueError("the session is closed")
        return self._handle

    def close(self) -> None:
        """Everything that uses memory of this session on the GPU has to be done."""
        if self._handle:
            self._handle = ctypes.c_void_p()
            self._finalizer()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def is_alive(self) -> bool:
        """Open, of this process, and the daemon was there when last asked."""
        return bool(self._handle) and _lib.library().glake_fd(self._handle) >= 0

    def _comes_back(self) -> bool:
        """The daemon is there again and knows the session. Waits for one that is restarted."""
        return bool(self._handle) and _lib.library().glake_ping(self._handle) == 0

    def info(self) -> Dict[str, Any]:
        """What glaked says of this session: its number, ``session``, its ``tenant`` and ``realm``, and whether
        it may see and steer everything."""
        info = _lib.SessionInfo(ctypes.sizeof(_lib.SessionInfo))
        _lib.check(_lib.library().glake_session_info(self.handle, ctypes.byref(info)))
        return {"session": info.session, "is_admin": bool(info.is_admin),
                "tenant": _lib.text(info.tenant), "realm": _lib.text(info.realm),
                "daemon_version": _lib.text(info.daemon_version)}

    def devices(self) -> List[Dict[str, Any]]:
        """glaked's devices; ``ordinal`` is CUDA's number in this process, None if not visible."""
        info = _lib.SessionInfo(ctypes.sizeof(_lib.SessionInfo))
        _lib.check(_lib.library().glake_session_info(self.handle, ctypes.byref(info)))
        devices = []
        for position in range(info.n_devices):
            device = _lib.Device()
            _lib.check(_lib.library().glake_device_at(self.handle, position,
                                                      ctypes.byref(device)))
            devices.append({"index": device.index,
                            "ordinal": device.ordinal if device.ordinal >= 0 else None,
                            "uuid": bytes(device.uuid).hex(), "name": _lib.text(device.name),
                            "total_bytes": device.total_bytes,
                            "quota_bytes": device.quota_bytes})
        return devices

    def device_index(self, ordinal: int) -> int:
        """glaked's number for CUDA's device ``ordinal`` of this process, matched by UUID. ValueError:
        glaked does not own it, or this process does not see it."""
        result = _lib.library().glake_device_index(self.handle, min(ordinal, _MOST_DEVICES))
        if result != -errno.ENOENT:
            return _lib.check(result)
        there = [f"cuda:{device['ordinal']} ({device['name']})" for device in self.devices()
                 if device["ordinal"] is not None]
        raise ValueError(f"no cuda:{ordinal} of glaked in this process: " +
                         (f"there {'are' if len(there) > 1 else 'is'} {', '.join(there)}" if there
                          else "it sees none, or has not looked (cuda=False)"))

    def device_view(self, device: DeviceLike = 0) -> Dict[str, int]:
        """What the tenant can still get on a device, in bytes: the members of struct glake_device_view. One round trip."""
        view = _lib.DeviceView(ctypes.sizeof(_lib.DeviceView))
        index = self.device_index(parse_ordinal(device))
        _lib.check(_lib.library().glake_device_view(self.handle, index, ctypes.byref(view)))
        return {name: getattr(view, name) for name, _ in view._fields_ if name != "size"}

    def alloc(self, n_bytes: int, device: DeviceLike = 0, *, zero: bool = False) -> int:
        """The address of private memory: whole pages of 2 MiB from 2 MiB on. With ``zero`` it reads
        zero, and no earlier memory of the process is used again for it."""
        index = self.device_index(parse_ordinal(device))
        ptr = ctypes.c_uint64()
        _lib.unsigned(n_bytes, "n_bytes")
        _lib.check(_lib.library().glake_alloc(self.handle, index, n_bytes, 1 if zero else 0,
                                              ctypes.byref(ptr)))
        return ptr.value

    def alloc_many(self, sizes: Sequence[int], device: DeviceLike = 0, *,
                   zero: bool = False) -> List[int]:
        """alloc() of all or none, faster than one by one."""
        index = self.device_index(parse_ordinal(device))
        many = ctypes.c_uint64 * len(sizes)
        ptrs = many()
        for n_bytes in sizes:
            _lib.unsigned(n_bytes, "sizes")
        _lib.check(_lib.library().glake_alloc_many(self.handle, index, many(*sizes), len(sizes),
                                                   1 if zero else 0, ptrs))
        return list(ptrs)

    def free(self, ptr: int) -> None:
        """Everything that uses the memory on the GPU has to be done."""
        _lib.check(_lib.library().glake_free(self.handle, ptr))

    def sleep(self, timeout_ms: int = 5000) -> Dict[str, Any]:
        """All memory of this session on GPUs, that of alloc(), what is sealed, and models, goes to host memory; its
        addresses stay, and so do models and their tensors. Nothing may use the memory before wake(); work
        under way is waited for, ``timeout_ms`` at most, only under ``glake run``. Does nothing if it sleeps.

        Nor may memory of the session be shared or sealed before wake(). alloc() wakes it first; free() does if it must.
        After an exception it is awake; is_asleep() tells if not even that worked."""
        _lib.unsigned(timeout_ms, "timeout_ms", 32)
        slept = _lib.Slept(ctypes.sizeof(_lib.Slept))
        _lib.check(_lib.library().glake_sleep(self.handle, timeout_ms, ctypes.byref(slept)))
        return _slept(slept)

    def wake(self) -> Dict[str, Any]:
        """All of it comes back, at the same addresses. Waits until glaked has room. Does nothing if it is awake."""
        slept = _lib.Slept(ctypes.sizeof(_lib.Slept))
        _lib.check(_lib.library().glake_wake(self.handle, ctypes.byref(slept)))
        return _slept(slept)

    def fileno(self) -> int:
        """For select and poll: readable when dispatch() has something to do. Another one after each dispatch(), perhaps;
        -1 while the daemon is gone."""
        return _lib.library().glake_fd(self.handle)

    def dispatch(self) -> int:
        """Take notices of glaked, and return how many there were. Does not wait for any.

        A session made with ``sleep_when_asked`` sleeps here, and wakes, when glaked wants that: ``glakectl sleep``, and programs
        that need the room. Nothing may use its memory meanwhile, nor after it before wake(), if is_asleep(). Call it
        at least once a second, asleep too. If it could not, who asked is told, and nothing is raised here."""
        return _lib.check(_lib.library().glake_dispatch(self.handle))

    def is_asleep(self) -> bool:
        """Between sleep() and wake(), or after a dispatch() that glaked had asked to sleep."""
        return bool(_lib.library().glake_is_asleep(self.handle))

    def usage(self) -> Dict[str, int]:
        """This session's own counters."""
        usage = _lib.Usage(ctypes.sizeof(_lib.Usage))
        _lib.check(_lib.library().glake_usage(self.handle, ctypes.byref(usage)))
        return {name: getattr(usage, name) for name, _ in usage._fields_ if name != "size"}

    def pool_stats(self, device: DeviceLike = 0) -> Dict[str, int]:
        """Of memory in stream order, of a session that stitches; all 0 for another."""
        stats = _lib.PoolStats(ctypes.sizeof(_lib.PoolStats))
        index = self.device_index(parse_ordinal(device))
        _lib.check(_lib.library().glake_pool_stats(self.handle, index, ctypes.byref(stats)))
        return {name: getattr(stats, name) for name, _ in stats._fields_ if name != "size"}

    def reset_pool_peaks(self, device: DeviceLike = 0) -> None:
        """Both peaks of pool_stats() begin anew, at the present values."""
        index = self.device_index(parse_ordinal(device))
        _lib.check(_lib.library().glake_pool_reset_peaks(self.handle, index))

    def pool_snapshot(self, device: DeviceLike = 0) -> List[Dict[str, Any]]:
        """All memory in stream order, by address. ``state`` is "free", "parked" (only its ``stream``
        can have it yet) or "used", by ``allocation``, which is its address for the program."""
        index = self.device_index(parse_ordinal(device))
        ranges = ctypes.POINTER(_lib.PoolRange)()
        n_ranges = ctypes.c_size_t()
        _lib.check(_lib.library().glake_pool_snapshot(
            self.handle, index, ctypes.byref(ranges), ctypes.byref(n_ranges)))
        try:
            return [{"ptr": row.ptr, "bytes": row.bytes,
                     "state": ("free", "parked", "used")[row.state],
                     "is_stitched": bool(row.is_stitched), "allocation": row.allocation,
                     "stream": None if row.stream == 2**64 - 1 else row.stream,
                     "chunk_bytes": row.chunk_bytes}
                    for row in ranges[:n_ranges.value]]
        finally:
            free = ctypes.CDLL(None).free
            free.argtypes, free.restype = [ctypes.c_void_p], None
            free(ctypes.cast(ranges, ctypes.c_void_p))

    def ping(self) -> None:
        """Ask glaked for an answer. Waits for one that is restarted; GoneError: it is not there, or does not
        know the session any more."""
        _lib.check(_lib.library().glake_ping(self.handle))


def _slept(slept: _lib.Slept) -> Dict[str, Any]:
    row: Dict[str, Any] = {name: getattr(slept, name)
                           for name in ("private_bytes", "shared_bytes", "took_ns", "held_ns")}
    row["stays"] = [{"why": _lib.text(stay.why), "bytes": stay.bytes}
                    for stay in slept.stays[:slept.n_stays]]
    return row


_lock = threading.Lock()
_default: Optional[Session] = None


def _after_fork() -> None:
    """In a child: another thread of the parent may have held the lock."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def default_session() -> Session:
    """The process's session, made on first use, and anew after a fork or when the daemon is gone."""
    global _default
    with _lock:
        if _default is None or not (_default.is_alive or _default._comes_back()):
            _default = Session()
        return _default


def connect(socket: Optional[str] = None, program: Optional[str] = None, cuda: bool = True,
            libcuda: Optional[str] = None, stitch: bool = False,
            sleep_when_asked: bool = False, promise: Optional[str] = None) -> Session:
    """A new session. ``cuda=False`` never opens the driver: enough to look and steer. ``stitch``:
    memory in stream order is stitched of free memory, as with ``GLAKE_ALLOC=stitch``.
    ``sleep_when_asked``: dispatch() may put it to sleep; of no effect under ``glake run``.
    ``promise``: the part of each device that is this process's, whatever others do, and no more: a size as ``"20GiB"``, or
    ``"0=20GiB,1=10GiB"`` by the daemon's numbers of devices. Without it ``GLAKE_PROMISE`` counts."""
    return Session(socket, program, cuda, libcuda, stitch, sleep_when_asked, promise)


def parse_ordinal(device: DeviceLike) -> int:
    """0, "cuda", "cuda:1" or a torch.device, as CUDA's number of a device in this process."""
    if isinstance(device, int) and not isinstance(device, bool):
        ordinal: Any = device
    else:
        kind, _, number = str(device).partition(":")
        if kind != "cuda":
            raise ValueError(f"{device}: glake maps GPU memory; the device is cuda or cuda:N")
        ordinal = number or None
        if ordinal is None:
            ordinal = _current_ordinal()
        elif not number.isdigit():
            raise ValueError(f"{device}: not a device")
    ordinal = int(ordinal)
    if ordinal < 0:
        raise ValueError(f"{device}: not a device")
    return ordinal


def _current_ordinal() -> int:
    """"cuda" alone is torch's current device, where torch is in use."""
    import sys
    torch = sys.modules.get("torch")
    return torch.cuda.current_device() if torch is not None else 0
