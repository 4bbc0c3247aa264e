# SPDX-License-Identifier: Apache-2.0
"""Sealing: memory in place becomes blocks, which processes with equal bytes share."""
from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Dict, Iterable, Optional, Tuple

from . import _lib

#: Memory is shared by pages of this many bytes.
PAGE_BYTES = 2 << 20


@dataclass
class Sealed:
    """What became of memory that was to be sealed."""

    #: in blocks now, those included that were before
    sealed_bytes: int = 0
    #: of them: an equal block was there, and this process's copy is gone
    shared_bytes: int = 0
    #: private still, because others may write to them by another way
    pinned_bytes: int = 0
    #: private still: pages that the spans do not fill
    edge_bytes: int = 0
    #: the reason, for one of the pinned pages
    pinned_why: Optional[str] = None
    #: the time that the program's work was held back, in sum; 0 without ``glake run``
    held_ns: int = 0
    #: and at a time
    longest_held_ns: int = 0
    #: of glake.torch.seal(): tensors that could not be shared, and why
    private: Dict[str, str] = field(default_factory=dict)

    def __iadd__(self, other: "Sealed") -> "Sealed":
        self.sealed_bytes += other.sealed_bytes
        self.shared_bytes += other.shared_bytes
        self.pinned_bytes += other.pinned_bytes
        self.edge_bytes += other.edge_bytes
        self.pinned_why = self.pinned_why or other.pinned_why
        self.held_ns += other.held_ns
        self.longest_held_ns = max(self.longest_held_ns, other.longest_held_ns)
        return self


def seal(spans: Iterable[Tuple[int, int]], *, idle: bool = False) -> Sealed:
    """Seal memory in place: ``spans`` are (address, bytes), each in one allocation of
    Session.alloc() or, under ``glake run``, of the program.

    What the spans hold becomes blocks, found by their content and read-only at the same addresses.
    Memory is shared by whole pages of 2 MiB: pages that hold anything else stay private. First wait
    for all that may write to it on the GPU. A kernel that writes to it afterwards faults, until
    unseal(). ``GLAKE_DEDUP=off`` in the environment makes this a PermissionError.

    ``idle`` says that no work uses the memory, neither queued nor begun before this returns: then
    none is waited for, nor held back, under ``glake run`` either.

    What an error leaves unsealed is private and writable, as before; the exception's ``sealed``
    tells what was sealed.
    """
    rows = [_lib.Span(ptr, n_bytes) for ptr, n_bytes in spans]
    out = _lib.Sealed(ctypes.sizeof(_lib.Sealed))
    call = _lib.library().glake_seal_idle if idle else _lib.library().glake_seal
    result = call((_lib.Span * len(rows))(*rows), len(rows), ctypes.byref(out))
    sealed = Sealed(out.sealed_bytes, out.shared_bytes, out.pinned_bytes, out.edge_bytes,
                    _lib.text(out.pinned_why) if out.pinned_why else None,
                    out.held_ns, out.longest_held_ns)
    try:
        _lib.check(result)
    except Exception as error:
        error.sealed = sealed  # type: ignore[attr-defined]
        raise
    return sealed


def unseal(ptr: int, n_bytes: int) -> None:
    """Make memory private and writable again, at the same addresses: each block that the span
    touches is replaced by a copy. Memory that is not sealed stays as it is. First wait for all
    that uses it on the GPU; under ``glake run`` that is done here."""
    _lib.check(_lib.library().glake_unseal(ptr, n_bytes))


def unseal_spans(spans: Iterable[Tuple[int, int]]) -> None:
    """unseal() of many spans, (address, bytes), at once: under ``glake run`` the program is held
    back once for all of them, as far as memory is free. After an error some may be private."""
    rows = [_lib.Span(ptr, n_bytes) for ptr, n_bytes in spans]
    _lib.check(_lib.library().glake_unseal_spans((_lib.Span * len(rows))(*rows), len(rows)))
