# SPDX-License-Identifier: Apache-2.0
"""Elastic ranges: addresses that stay, and memory that comes, is lent, and goes (glake_elastic.h)."""
from __future__ import annotations

import ctypes
import errno
from typing import Any, Dict, Iterable, List, Optional, Sequence

from . import _lib
from .session import DeviceLike, Session, default_session, parse_ordinal

#: What Elastic.states() has.
HOLE, COMING, HELD, LENT, GOING, LOST, SHOWN, READ = range(8)
_SERVE, _GUARD, _SHARED = 1, 2, 4
_RECORD_BYTES = 32768


def runs_of(steps: Iterable[int]) -> List[range]:
    """Neighbours among them together: each is one call."""
    runs: List[range] = []
    for step in sorted(steps):
        if runs and runs[-1].stop == step:
            runs[-1] = range(runs[-1].start, step + 1)
        else:
            runs.append(range(step, step + 1))
    return runs


class Elastic:
    """A range of ``steps`` in ``lanes``: step ``i`` is ``chunk_bytes`` at ``base + lane * stride + i * chunk_bytes`` in
    each lane. A step has its memory in all lanes, or in none. What is lent stays until others need it; the highest
    steps go first. Nothing of it may be in use on the GPU when it is lent, or when the range is closed. With ``guard``
    holes read zero; without, a kernel that reads one faults. With a ``key``, 64 bytes at most, steps can be sealed and
    adopted: it says all that must be the same for their content to be of use. What is sealed of a ``shared`` one others may
    read meanwhile."""

    def __init__(self, chunk_bytes: int, steps: int, lanes: int = 1, stride: Optional[int] = None,
                 floor: int = 0, device: DeviceLike = 0, session: Optional[Session] = None, *,
                 guard: bool = False, key: bytes = b"", shared: bool = False) -> None:
        self._handle = ctypes.c_void_p()
        self._session = session or default_session()
        #: bytes from lane to lane
        self.stride: int = chunk_bytes * steps if stride is None else stride
        self.chunk_bytes: int = chunk_bytes
        self.lanes: int = lanes
        self.steps: int = steps
        desc = _lib.ElasticDesc(
            ctypes.sizeof(_lib.ElasticDesc), self._session.device_index(parse_ordinal(device)),
            _lib.unsigned(lanes, "lanes", 32), _lib.unsigned(self.stride, "stride"),
            _lib.unsigned(chunk_bytes, "chunk_bytes"), _lib.unsigned(steps, "steps", 32),
            _lib.unsigned(floor, "floor", 32), _SERVE | (_GUARD if guard else 0) | (_SHARED if shared else 0), key or None, len(key))
        handle, base = ctypes.c_void_p(), ctypes.c_uint64()
        _lib.check(_lib.library().glake_elastic_open(self._session.handle, ctypes.byref(desc),
                                                     ctypes.byref(handle), ctypes.byref(base)))
        self._handle = handle
        #: of the last adopt() that found nothing: the number of such steps of processes that have not ended yet
        self.n_living: int = 0
        #: the device address of the first lane
        self.base: int = base.value

    @property
    def handle(self) -> ctypes.c_void_p:
        """For calls of the C library. It ends with the session, too."""
        if not self._handle or not self._session._handle:
            raise ValueError("the elastic range is closed")
        return self._handle

    def ptr(self, step: int, lane: int = 0) -> int:
        """The device address of a step in a lane."""
        if not (0 <= step < self.steps and 0 <= lane < self.lanes):
            raise IndexError(f"step {step}, lane {lane}: there are {self.steps} and {self.lanes}")
        return self.base + lane * self.stride + step * self.chunk_bytes

    def _call(self, name: str, first: int, n: int, *rest: Any) -> int:
        return getattr(_lib.library(), name)(self.handle, _lib.unsigned(first, "first", 32),
                                             _lib.unsigned(n, "n", 32), *rest)

    def commit(self, first: int, n: int) -> None:
        """Have ``n`` steps: what is lent is taken, what is a hole gets memory, which reads zero. With an exception the
        steps in front of the one that failed have come."""
        _lib.check(self._call("glake_elastic_commit", first, n, None))

    def ahead(self, first: int, n: int) -> None:
        """Those that are holes will be needed: a thread makes them LENT of memory that is free, and waits for none."""
        _lib.check(self._call("glake_elastic_ahead", first, n))

    def lend(self, first: int, n: int) -> None:
        """Those that are held are not needed now. Costs no call of the driver."""
        _lib.check(self._call("glake_elastic_lend", first, n))

    def take(self, first: int, n: int) -> int:
        """Have lent steps back, up to the first that has gone. Returns how many, from ``first`` on, are held."""
        return self._call("glake_elastic_take", first, n)

    def give_back(self, first: int, n: int) -> int:
        """Give those that are lent to glaked now. Returns how many went."""
        return _lib.check(self._call("glake_elastic_return", first, n))

    def seal(self, step: int, record: bytes = b"") -> None:
        """If this process is killed, the next one can adopt the step, with this record of what it has. Nothing writes
        to that from now on, no work that is queued either, until it is unsealed."""
        _lib.check(_lib.library().glake_elastic_seal(self.handle, _lib.unsigned(step, "step", 32),
                                                     record, len(record)))

    def unseal(self, first: int, n: int = 1) -> None:
        """These steps may be written to. Costs a call of glaked for each that is sealed; with an exception some may be still."""
        _lib.check(self._call("glake_elastic_unseal", first, n))

    def adopt(self, step: int) -> Optional[bytes]:
        """A step that a process has left comes to this hole, sealed, and its record is returned; None: there is none
        (``n_living``)."""
        record = ctypes.create_string_buffer(_RECORD_BYTES)
        n_bytes, n_living = ctypes.c_size_t(), ctypes.c_uint32()
        result = _lib.library().glake_elastic_adopt(self.handle, _lib.unsigned(step, "step", 32), record,
                                                    ctypes.byref(n_bytes), ctypes.byref(n_living))
        if result == -errno.ENOENT:
            self.n_living = n_living.value
            return None
        _lib.check(result)
        return record.raw[:n_bytes.value]

    def show(self, first: int, source: "Elastic", steps: Sequence[int]) -> None:
        """These steps of ``source`` stand a second time, read-only and in this order, in the holes of this range from ``first``
        on: all or none. Until they are hidden they are SHOWN: neither lent nor unsealed, and nobody writes to them."""
        numbers = (ctypes.c_uint32 * len(steps))(*[_lib.unsigned(step, "steps", 32) for step in steps])
        _lib.check(_lib.library().glake_elastic_show(self.handle, _lib.unsigned(first, "first", 32), source.handle,
                                                     numbers, len(steps)))

    def read(self, step: int, name: bytes = b"") -> Optional[bytes]:
        """A step that another session has sealed, or a process has left, comes to this hole to be read, and its record, which begins
        with ``name``, is returned; None: there is none that this session does not read yet."""
        record = ctypes.create_string_buffer(_RECORD_BYTES)
        n_bytes = ctypes.c_size_t()
        result = _lib.library().glake_elastic_read(self.handle, _lib.unsigned(step, "step", 32), name, len(name), record,
                                                   ctypes.byref(n_bytes))
        if result == -errno.ENOENT:
            return None
        _lib.check(result)
        return record.raw[:n_bytes.value]

    def hide(self, first: int, n: int = 1) -> None:
        """Those that are second places are holes again. Nothing on the GPU reads there."""
        _lib.check(self._call("glake_elastic_hide", first, n))

    def states(self) -> List[int]:
        """Of each step: HOLE, HELD, LENT and so on. Others may change them at any time."""
        return list(_lib.library().glake_elastic_states(self.handle)[:self.steps])

    def stats(self) -> Dict[str, int]:
        """How many steps are held and lent, and how many came and went, ever."""
        stats = _lib.ElasticStats(ctypes.sizeof(_lib.ElasticStats))
        _lib.check(_lib.library().glake_elastic_stats(self.handle, ctypes.byref(stats)))
        return {name: getattr(stats, name) for name, _ in stats._fields_ if name != "size"}

    def attend(self, fd: int) -> None:
        """Have a thread of the library do what the process at the other end of this socket asks for (struct glake_elastic_request). It is
        the library's from now on."""
        _lib.check(_lib.library().glake_elastic_attend(self.handle, fd))

    def mark(self, number: int, stream: int = 0) -> None:
        """The number has passed when what is queued on this stream by now has ended; who is attended sees it."""
        _lib.check(_lib.library().glake_elastic_mark(self.handle, _lib.unsigned(number, "number"), stream or None))

    def close(self) -> None:
        """Give all of it back. Nothing on the GPU uses it any more. While another range shows some of it that is refused."""
        if not self._handle or not self._session._handle:
            self._handle = ctypes.c_void_p()
            return
        result = _lib.library().glake_elastic_close(self._handle)
        if result != -errno.EBUSY:
            self._handle = ctypes.c_void_p()
        _lib.check(result)

    def __enter__(self) -> "Elastic":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
