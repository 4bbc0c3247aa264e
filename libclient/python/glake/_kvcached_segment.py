# SPDX-License-Identifier: Apache-2.0
"""The file in /dev/shm by which kvctl and kvtop see a pool of kvcached, and limit it: three int64, total, used and
preallocated bytes, of which a controller writes the first, under flock.

Others may hold its lock for as long as they like, and may cut it short: nothing here waits for the lock, and nothing
is mapped. The file that was opened stays the pool's, whatever has its name later. Pools of a process may share one.
"""
from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import threading
from typing import Dict, Optional, Tuple

_FORMAT = struct.Struct("=3q")
_USE = struct.Struct("=2q")
_TOTAL_BYTES = 8  # of the first

# Garbage collection may end a pool while another one begins, in the same thread.
_lock = threading.RLock()
#: By device and inode: how many pools of this process have it.
_n_users: Dict[Tuple[int, int], int] = {}


def default_name(group_id: int) -> str:
    """As kvcached's library names it."""
    name = os.environ.get("KVCACHED_IPC_NAME") or f"kvcached_engine_{os.getpgrp()}"
    return f"{name}_g{group_id}" if group_id else name


def _open(path: str) -> Optional[int]:
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    # In a folder as /dev/shm the kernel refuses O_CREAT for a file of another user.
    for more in (0, os.O_CREAT):
        try:
            return os.open(path, flags | more, 0o666)
        except OSError:
            pass
    return None


class Segment:
    """One pool's use of it. Without a file, which is no error, nothing is shown and nothing is limited."""

    def __init__(self, name: str, total_bytes: int) -> None:
        self.path = name if name.startswith("/") else os.path.join("/dev/shm", name)
        # Nobody uses the number of a file that is closed.
        self._guard = threading.Lock()
        self._fd: Optional[int] = None
        self._is_behind = False
        self._use = (0, 0)
        with _lock:
            fd = _open(self.path)
            if fd is None:
                return
            status = os.fstat(fd)
            self._identity = (status.st_dev, status.st_ino)
            _n_users[self._identity] = _n_users.get(self._identity, 0) + 1
            self._fd = fd
            # A full /dev/shm is no reason to have no cache.
            with contextlib.suppress(OSError):
                os.pwrite(fd, _FORMAT.pack(total_bytes, 0, 0), 0)

    def show(self, used_bytes: int, prealloc_bytes: int) -> None:
        """If the lock is taken, later: catch_up()."""
        with self._guard:
            self._use = (used_bytes, prealloc_bytes)
            self._show()

    def catch_up(self) -> None:
        """Show what could not be shown."""
        with self._guard:
            if self._is_behind:
                self._show()

    def _show(self) -> None:
        self._is_behind = self._fd is not None
        if self._fd is None:
            return
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        try:
            os.pwrite(self._fd, _USE.pack(*self._use), _TOTAL_BYTES)
            self._is_behind = False
        except OSError:
            pass
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def total_bytes(self) -> Optional[int]:
        """The limit; None: there is none to be read."""
        with self._guard:
            if self._fd is None:
                return None
            try:
                return _FORMAT.unpack(os.pread(self._fd, _FORMAT.size, 0))[0]
            except (OSError, struct.error):
                return None

    def release(self) -> bool:
        """The last pool that has the file removes it, unless its name is another file's by now. False: that failed, and
        the file is still the pool's. More than once does no harm."""
        with _lock, self._guard:
            if self._fd is None:
                return True
            if _n_users[self._identity] == 1:
                try:
                    status = os.stat(self.path)
                    if (status.st_dev, status.st_ino) == self._identity:
                        os.unlink(self.path)
                except FileNotFoundError:
                    pass
                except OSError:
                    return False
                del _n_users[self._identity]
            else:
                _n_users[self._identity] -= 1
            fd, self._fd = self._fd, None
            os.close(fd)
            return True
