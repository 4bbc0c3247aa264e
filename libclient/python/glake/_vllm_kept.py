# SPDX-License-Identifier: Apache-2.0
"""Cached prefixes that outlive their engine: which blocks glaked is told of, and those of an engine that was killed.

Invariant: of a block that a record names nothing is written before glaked has another record, or none. glaked hands a step and
its record to the next engine only when this process has ended. So an engine finds by a hash what was computed for it, or nothing.

* A record names blocks that are full, have their hash, and whose work has ended, of one step. Others of that step may be in use, empty or
  be written to: the next engine takes them for empty.
* A named block that is handed out again is named no more first: the step is unsealed, which costs a request to glaked, once for all
  blocks of it. Such a step is left alone for a while, so an engine that evicts all the time asks seldom.
* A thread seals, one step after the other, so the scheduler waits for none; and seals again when more blocks are full.
* The bytes are of use for the next engine if all is the same that they depend on: that is the key of the range (range_key()).

Threads: the scheduler's, and one of its own. What they share is under one lock, which is not held while glaked is asked.
"""
from __future__ import annotations

import hashlib
import json
import logging
import os
import struct
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Set, Tuple

from ._vllm_blocks import Layout
from .elastic import HOLE, Elastic
from .errors import Error

logger = logging.getLogger("vllm.glake")

#: A step is sealed again so long after it was, and after a named block of it was handed out, while the engine works.
_AGAIN_S, _DISTURBED_S = 1.0, 2.0
#: Between two looks at what may be sealed; and at whether the work of it has ended
_LOOK_S, _POLL_S = 0.1, 0.001
#: So long is glaked asked again for what must be, such as while it restarts.
_PATIENCE_S = 20.0
_RECORD_BYTES = 32768
_HEADER = struct.Struct("<4sHHI")
_MAGIC, _FORM = b"vLKV", 1
#: vLLM takes the first one if the environment has no other. With a random one no hash is found again.
SEED_VARIABLE, SEED = "PYTHONHASHSEED", "0"

#: (block of the step, number of tokens up to its end, hash with the number of its group)
Named = Tuple[int, int, bytes]


def why_not(vllm_config: Any, plan: Any) -> Optional[str]:
    """Why blocks of this engine are of no use for another one; None: they are."""
    cache, groups = vllm_config.cache_config, plan.config.kv_cache_groups
    if not cache.enable_prefix_caching:
        return "it has no prefix caching"
    if not str(cache.prefix_caching_hash_algo).startswith("sha256"):
        return f"others may make prompts with the same {cache.prefix_caching_hash_algo}"
    if getattr(cache, "calculate_kv_scales", False):
        return "the scales of its cache follow from its first prompts"
    if vllm_config.lora_config is not None:
        return "a hash does not tell the content of an adapter"
    if getattr(vllm_config, "weight_transfer_config", None) is not None:
        return "weight transfer updates its weights"
    if len(groups) > 1:
        return "its layers keep several kinds of blocks"
    if plan.layout.chunk_bytes % plan.layout.block_bytes:
        return "blocks lie in two steps"
    if plan.n_lanes > 253:
        return "it has more than 253 layers"
    return None


def range_key(parts: Mapping[str, Any], plan: Any) -> bytes:
    """Of all that the bytes of a block depend on, beside its hash: weights, how they are computed with, the layout, and the seed of
    hashes."""
    layout, spec = plan.layout, plan.config.kv_cache_groups[0].kv_cache_spec
    what = [_FORM, parts, str(spec), plan.is_whole, plan.n_lanes, layout.block_bytes, layout.chunk_bytes,
            os.environ.get(SEED_VARIABLE, "")]
    return b"vllm-kv " + hashlib.sha256(json.dumps(what, sort_keys=True).encode()).digest()


# ---- records ----

def pack(named: List[Named]) -> bytes:
    """As many as fit."""
    n_hash = len(named[0][2])
    entry = struct.Struct(f"<II{n_hash}s")
    rows = [row for row in named if len(row[2]) == n_hash][:(_RECORD_BYTES - _HEADER.size) // entry.size]
    return _HEADER.pack(_MAGIC, _FORM, n_hash, len(rows)) + b"".join(entry.pack(*row) for row in rows)


def unpack(record: bytes, n_blocks: int) -> List[Named]:
    """Nothing, if it is none of ours."""
    if len(record) < _HEADER.size:
        return []
    magic, form, n_hash, n = _HEADER.unpack_from(record)
    entry = struct.Struct(f"<II{n_hash}s")
    if magic != _MAGIC or form != _FORM or n_hash == 0 or len(record) != _HEADER.size + n * entry.size:
        return []
    rows: List[Named] = list(entry.iter_unpack(record[_HEADER.size:]))
    places = {row[0] for row in rows}
    return rows if len(places) == n and all(place < n_blocks for place in places) else []


# ---- steps ----

class _Step:
    """`named`: what glaked may have been told of, or is told now. The others are the scheduler's."""

    def __init__(self) -> None:
        self.named: Set[int] = set()
        #: blocks that are full, with the batch that fills them
        self.filled: Dict[int, int] = {}
        self.has_more = False
        self.not_before = 0.0


class Kept:
    def __init__(self, elastic: Elastic, layout: Layout, blocks: List[Any], block_size: int,
                 mark: Callable[[], Callable[[], bool]]) -> None:
        self._elastic, self._layout, self._blocks, self._mark = elastic, layout, blocks, mark
        self._block_size = block_size
        self._steps = [_Step() for _ in range(layout.n_steps)]
        self._next_look = 0.0
        self._changed = threading.Condition()
        #: what to seal, in order: the record's blocks, the record, and whether their work has ended
        self._waiting: Dict[int, Tuple[Set[int], bytes, Callable[[], bool]]] = {}
        self._sealing: Optional[int] = None
        self._is_closed = self._is_over = False
        self._thread = threading.Thread(target=self._loop, name="glake-kept", daemon=True)
        self._thread.start()

    def close(self, wait_s: float) -> bool:
        """Whether its thread has ended: if not, it uses the range."""
        with self._changed:
            self._is_closed = True
            self._waiting.clear()
            self._changed.notify_all()
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    # ---- the scheduler's thread: what is full ----

    def fill(self, block: int, number: int) -> None:
        """It has its hash, and its content when the batch with this number has ended."""
        if self._is_over:
            return
        step = self._steps[block * self._layout.block_bytes // self._layout.chunk_bytes]
        step.filled[block] = number
        step.has_more = True

    def look(self, n_done: int, is_working: bool, is_doubtful: Callable[[int], bool]) -> None:
        """Have sealed what is full, up to that batch. `is_doubtful`: the step may have other memory than the scheduler knows."""
        now = time.monotonic()
        if is_working and now < self._next_look:
            return
        self._next_look = now + _LOOK_S
        has_ended: Optional[Callable[[], bool]] = None
        for number, step in enumerate(self._steps):
            if not step.has_more or is_working and now < step.not_before or is_doubtful(number):
                continue
            named = self._named(number, step, n_done)
            if not named:
                continue
            has_ended = has_ended or self._mark()
            step.not_before = now + _AGAIN_S
            first = self._layout.blocks_of(number).start
            with self._changed:
                self._waiting[number] = ({first + place for place, _, _ in named}, pack(named), has_ended)
                self._changed.notify_all()

    def _named(self, number: int, step: _Step, n_done: int) -> List[Named]:
        first, rows = self._layout.blocks_of(number).start, []
        step.has_more = False
        for block, batch in sorted(step.filled.items()):
            key, n_tokens = self._blocks[block].block_hash, self._blocks[block].block_hash_num_tokens
            if batch > n_done:
                step.has_more = True
            elif key is not None and n_tokens and n_tokens % self._block_size == 0:
                rows.append((block - first, n_tokens, bytes(key)))
        return rows

    # ---- the scheduler's thread: what changes ----

    def hand_out(self, block: int) -> None:
        """It is about to be written to."""
        number = block * self._layout.block_bytes // self._layout.chunk_bytes
        step = self._steps[number]
        if step.filled.pop(block, None) is not None:
            self._unname(number, block)

    def _unname(self, number: int, block: Optional[int]) -> None:
        step = self._steps[number]
        with self._changed:
            self._waiting.pop(number, None)
            while self._sealing == number:
                self._changed.wait()
            is_named = bool(step.named) if block is None else block in step.named
        if is_named:
            self._insist(number)
            step.named.clear()
            step.not_before = time.monotonic() + _DISTURBED_S
        step.has_more = bool(step.filled)

    def _insist(self, number: int) -> None:
        end = time.monotonic() + _PATIENCE_S
        while True:
            try:
                self._elastic.unseal(number)
                return
            except (Error, OSError) as error:
                if time.monotonic() > end:
                    raise RuntimeError(f"glake: a cached block cannot be used again: {error}") from error
                time.sleep(0.02)

    def gone(self, number: int) -> None:
        """Its memory is others', and the record with it; or nothing of it is cached any more."""
        step = self._steps[number]
        with self._changed:
            self._waiting.pop(number, None)
            while self._sealing == number:
                self._changed.wait()
            step.named.clear()
        step.filled.clear()
        step.has_more = False

    def leave_out(self, number: int) -> None:
        """It is not sealed any more from where it is now; what it was sealed with stays."""
        with self._changed:
            self._waiting.pop(number, None)
            while self._sealing == number:
                self._changed.wait()

    def forget(self) -> None:
        """No hash is true any more."""
        for number, step in enumerate(self._steps):
            step.filled.clear()
            self._unname(number, None)

    def end(self) -> None:
        """The key is not true any more: the next engine gets nothing of this one."""
        self._is_over = True
        self.forget()

    # ---- the thread ----

    def _loop(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._is_closed:
                    self._changed.wait()
                if self._is_closed:
                    return
                number, (named, record, has_ended) = next(iter(self._waiting.items()))
            try:
                is_time = has_ended()
            except RuntimeError as error:  # the GPU is lost to this process
                logger.warning("glake: no blocks are kept any more: %s", error)
                return
            if not is_time:
                time.sleep(_POLL_S)
                continue
            with self._changed:
                if self._waiting.get(number, (None,))[0] is not named:
                    continue
                del self._waiting[number]
                self._sealing = number
                self._steps[number].named |= named
            try:
                self._elastic.seal(number, record)
            except (Error, OSError, ValueError) as error:
                logger.debug("glake: blocks of step %d are not kept: %s", number, error)
            finally:
                with self._changed:
                    self._sealing = None
                    self._changed.notify_all()

    # ---- what an engine has left ----

    def adopt(self, come: Callable[[int], None], enter: Callable[[int, int, bytes], bool]) -> int:
        """Into holes, from the lowest on: `come(step)`, and then `enter(block, n_tokens, hash)` for what it has, which says whether it
        is found by that from now on. Returns how many are."""
        n_found = 0
        for number, state in enumerate(self._elastic.states()):
            if state != HOLE:
                continue
            try:
                record = self._elastic.adopt(number)
            except (Error, OSError) as error:
                logger.warning("glake: blocks of an earlier engine stay where they are: %s", error)
                break
            if record is None:
                break
            first, step = self._layout.blocks_of(number).start, self._steps[number]
            come(number)
            rows = unpack(record, len(self._layout.blocks_of(number)))
            # All that the record names stays named, as long as glaked has it.
            step.named = {first + place for place, _, _ in rows}
            for place, n_tokens, key in rows:
                step.filled[first + place] = 0
                n_found += enter(first + place, n_tokens, key)
            if not rows:
                self._insist(number)
        return n_found


__all__ = ["Kept", "SEED", "SEED_VARIABLE", "pack", "range_key", "unpack", "why_not"]
