# SPDX-License-Identifier: Apache-2.0
"""Cached blocks of vLLM outlive their engine: ``GLAKE_VLLM_KV=kept``.

A step is sealed with a record of its blocks: where each lies, and its hash, which stands for all tokens up to its end. The next
engine with the same range key adopts the step and enters the blocks in its pool, so its first look-up finds them.

Invariant: a record that glaked has names no block that work queued on the GPU may write to.

* A block is in a record when the output of the last batch that was scheduled by the time it got its hash was processed, and a
  mark on the stream behind that has passed.
* vLLM writes to a block again only when the scheduler has taken its hash away. So before the scheduler hands out its batch, steps
  with such a block are unsealed, and glaked has answered. They are sealed anew with what is left of them.
* Steps are sealed by a thread, twice a second, and before they are lent. A seal is a request to glaked, and no call of the driver.
"""
from __future__ import annotations

import collections
import logging
import struct
import threading
import time
from typing import Any, Callable, Deque, Dict, Iterable, List, Optional, Set, Tuple

from ._vllm_blocks import Layout
from .elastic import Elastic
from .errors import Error, GoneError

logger = logging.getLogger("vllm.glake")

_RECORD_BYTES = 32768
#: of a record: its form, bytes of a hash, entries, and the digest of where layers have what; and of an entry: the block in its
#: step, tokens up to its end
_FORM = 1
_HEAD = struct.Struct("<BBH8s")
_ENTRY = struct.Struct("<HI")
#: Between two seals of what a working engine has computed
_SEAL_S = 0.5
#: glaked that answers, but with an error: asked again so often
_TRIES, _AGAIN_S = 5, 0.02

#: block in its step: its hash with its group, and how many tokens end with it
Entries = Dict[int, Tuple[bytes, int]]


def pack(entries: Entries, where: bytes) -> Tuple[bytes, int]:
    """A record, and how many entries it has: those that were computed last, if not all."""
    n_hash = len(next(iter(entries.values()))[0]) if entries else 0
    rows = [(block, hash_, n) for block, (hash_, n) in entries.items() if len(hash_) == n_hash]
    rows = rows[-((_RECORD_BYTES - _HEAD.size) // (_ENTRY.size + n_hash)):]
    body = b"".join(_ENTRY.pack(block, n) + hash_ for block, hash_, n in rows)
    return _HEAD.pack(_FORM, n_hash, len(rows), where) + body, len(rows)


def unpack(record: bytes, where: bytes) -> Optional[Entries]:
    """None: it is not of this form, or of layers that lie otherwise."""
    if len(record) < _HEAD.size:
        return None
    form, n_hash, n, its_where = _HEAD.unpack_from(record)
    size = _ENTRY.size + n_hash
    if form != _FORM or its_where != where or len(record) != _HEAD.size + n * size:
        return None
    entries: Entries = {}
    for begin in range(_HEAD.size, len(record), size):
        block, n_tokens = _ENTRY.unpack_from(record, begin)
        entries[block] = record[begin + _ENTRY.size:begin + size], n_tokens
    return entries


class Kept:
    """The records of one engine's steps. The scheduler's thread calls all but what to_seal() returns."""

    def __init__(self, elastic: Elastic, layout: Layout, pool: Any, where: bytes) -> None:
        """`where`: 8 bytes, a digest of how layers use a block."""
        if layout.chunk_bytes % layout.block_bytes:
            raise ValueError("blocks lie across the borders of steps")
        self._elastic, self._pool, self._where = elastic, pool, where
        self._per_step = layout.chunk_bytes // layout.block_bytes
        n_steps = layout.n_steps
        #: blocks with a hash whose batch is under way: its number, the block, which of its contents, hash and tokens
        self._fresh: Deque[Tuple[int, int, int, bytes, int]] = collections.deque()
        self._content = [0] * layout.n_blocks
        #: of each step: blocks whose batch is done
        self._ready: List[Entries] = [{} for _ in range(n_steps)]
        #: steps whose record is not what is ready, and those whose record has a block that may be written to
        self._dirty: Set[int] = set()
        self._void: Set[int] = set()
        self._next_seal = 0.0
        self._lock = threading.Lock()
        #: with the lock: what is to be sealed, and which steps are
        self._pending: Dict[int, Entries] = {}
        self._is_sealed = [False] * n_steps
        #: with the lock: steps that may have a record that is not true, since glaked did not answer
        self._late: Set[int] = set()
        self.is_off = False

    # ---- what the pool tells ----

    def cached(self, blocks: Iterable[Any], number: int) -> None:
        """They have a hash since the batch of this number, or before it."""
        if self.is_off:
            return
        for block in blocks:
            if block.block_hash is not None and not block.is_null:
                self._fresh.append((number, block.block_id, self._content[block.block_id], block.block_hash,
                                    block.block_hash_num_tokens or 0))

    def lost(self, block: int) -> None:
        """It has no hash any more: it may be written to after the next flush()."""
        self._content[block] += 1
        step, entry = divmod(block, self._per_step)
        if self._ready[step].pop(entry, None) is not None:
            self._void.add(step)

    def flush(self) -> None:
        """No record has a block that was lost: before work is queued."""
        if not self._void:
            return
        with self._lock:
            for step in self._void:
                self._pending.pop(step, None)
                if self._is_sealed[step]:
                    self._unseal(step)
                if not self.is_off:
                    self._dirty.add(step)
            self._void.clear()

    def _unseal(self, step: int) -> None:
        for left in reversed(range(_TRIES)):
            try:
                self._elastic.unseal(step)
                break
            except GoneError:
                # Its next one has no seals of ours. If it comes back itself, it is told by the thread.
                self._late.add(step)
                break
            except (Error, OSError):
                if left == 0:
                    raise
                time.sleep(_AGAIN_S)
        self._is_sealed[step] = False

    def end(self, why: str) -> None:
        """Nothing is kept from now on, and nothing that was."""
        if self.is_off:
            return
        self.is_off = True
        self._fresh.clear()
        self._void.update(range(len(self._ready)))
        self.flush()
        self._dirty.clear()
        logger.info("glake: KV blocks are not kept any more: %s", why)

    # ---- sealing ----

    def settle(self, n_done: int) -> None:
        """The outputs of batches up to this number were processed."""
        fresh = self._fresh
        while fresh and fresh[0][0] <= n_done:
            _, block, content, hash_, n_tokens = fresh.popleft()
            if self._content[block] == content:
                step, entry = divmod(block, self._per_step)
                self._ready[step][entry] = hash_, n_tokens
                self._dirty.add(step)

    def to_seal(self, steps: Optional[Iterable[int]] = None, is_working: bool = False) -> Optional[Callable[[], None]]:
        """What a thread has to call when the work that is queued now has ended: it seals those of these steps that need it, or
        all, but not too often while the engine works."""
        if (self.is_off or not self._dirty) and not self._late:
            return None
        if steps is None:
            now = time.monotonic()
            if is_working and now < self._next_seal:
                return None
            self._next_seal = now + _SEAL_S
        chosen = self._dirty - self._void if steps is None else self._dirty.intersection(steps) - self._void
        self._dirty -= chosen
        with self._lock:
            snapshots = {step: {} if self.is_off else dict(self._ready[step]) for step in chosen | self._late
                         if self._ready[step] or step in self._late}
            self._pending.update(snapshots)
        if not snapshots:
            return None
        return lambda: self._seal_all(snapshots)

    def _seal_all(self, snapshots: Dict[int, Entries]) -> None:
        for step, entries in snapshots.items():
            record, _ = pack(entries, self._where)
            with self._lock:
                if self._pending.get(step) is not entries:
                    continue
                del self._pending[step]
                try:
                    # From before the call on: after an error it may have one.
                    self._is_sealed[step] = bool(entries)
                    if entries:
                        self._elastic.seal(step, record)
                    else:
                        self._elastic.unseal(step)
                    self._late.discard(step)
                except (Error, OSError, ValueError, RuntimeError) as error:
                    logger.debug("glake: KV step %d is not kept: %s", step, error)

    # ---- what another engine has left ----

    def enter(self, step: int, record: bytes) -> List[int]:
        """An adopted step: its blocks are in the pool's table of hashes. Which these are; others of it are free and empty."""
        self._is_sealed[step] = True
        entries, found = unpack(record, self._where), []
        first, table = step * self._per_step, self._pool.cached_block_hash_to_block
        for entry, (hash_, n_tokens) in (entries or {}).items():
            block = first + entry
            if entry >= self._per_step or block >= len(self._pool.blocks) or table.get_one_block(hash_) is not None:
                continue
            self._pool._insert_block_hash(hash_, self._pool.blocks[block], num_tokens=n_tokens)
            self._ready[step][entry] = hash_, n_tokens
            found.append(block)
        if entries is None or len(found) != len(entries):
            self._void.add(step)
            self.flush()
        return found
