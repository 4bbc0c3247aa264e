# SPDX-License-Identifier: Apache-2.0
"""Which of vLLM's blocks may be handed out, when the memory under them comes and goes in steps.

Blocks lie one behind the other in each lane, and so do steps, which are larger. A block may be handed out if it is free
and the engine has all steps that it lies in. The others keep their place in line, and their hash, until their step is
there again. Blocks without content come first, those of the lowest step, so that the highest steps become free; cached
blocks come after these, least recently used first, as in vLLM.
"""
from __future__ import annotations

import heapq
from typing import Any, Callable, Iterable, List, Optional, Set, Tuple


class Layout:
    def __init__(self, n_blocks: int, block_bytes: int, chunk_bytes: int) -> None:
        self.n_blocks, self.block_bytes, self.chunk_bytes = n_blocks, block_bytes, chunk_bytes
        self.n_steps = -(-n_blocks * block_bytes // chunk_bytes)

    def steps_of(self, block: int) -> range:
        """More than one where a block lies across a border."""
        begin = block * self.block_bytes
        return range(begin // self.chunk_bytes, (begin + self.block_bytes - 1) // self.chunk_bytes + 1)

    def blocks_of(self, step: int) -> range:
        """All that have a byte in it."""
        end = -(-(step + 1) * self.chunk_bytes // self.block_bytes)
        return range(step * self.chunk_bytes // self.block_bytes, min(end, self.n_blocks))


class FreeBlocks:
    """In place of a BlockPool's free_block_queue: the same methods, and `num_free_blocks`, of blocks that may be handed
    out. A step of which all blocks are free may leave, and come back. Not for several threads."""

    def __init__(self, blocks: List[Any], free: Iterable[Any], layout: Layout, now: Callable[[], int]) -> None:
        self._blocks, self.layout, self._now = blocks, layout, now
        n_blocks, n_steps = len(blocks), layout.n_steps
        self._steps = [layout.steps_of(block) for block in range(n_blocks)]
        #: of a free block, its place in line: its own number without content, a later one with content; None: in use
        self._place: List[Optional[int]] = [None] * n_blocks
        self._next_place = n_blocks
        #: how many steps of a block are away
        self._n_away = [0] * n_blocks
        #: of each step, empty blocks that begin in it, and the lowest step that may have some; and a heap of the places of
        #: those with content. What is no more true of them is skipped.
        self._empty: List[List[int]] = [[] for _ in range(n_steps)]
        self._lowest = n_steps
        self._cached: List[Tuple[int, int]] = []
        self._n_lacking = [len(layout.blocks_of(step)) for step in range(n_steps)]
        #: of each step: its free blocks without content
        self.n_empty_in = [0] * n_steps
        #: of each step: now() when the last block became free
        self.freed_at = [0] * n_steps
        self.is_away = [False] * n_steps
        #: steps that may leave
        self.idle: Set[int] = set()
        self.num_free_blocks = 0
        #: those of num_free_blocks that are without content
        self.n_empty = 0
        #: blocks in use; the others are free, wherever their steps are
        self.n_used = n_blocks
        self.prepend_n(list(free))

    # ---- one block ----

    def _show(self, block: int, place: int) -> None:
        self.num_free_blocks += 1
        if place != block:
            heapq.heappush(self._cached, (place, block))
            return
        self.n_empty += 1
        first = self._steps[block].start
        self._empty[first].append(block)
        if first < self._lowest:
            self._lowest = first

    def _hide(self, block: int, place: int) -> None:
        self.num_free_blocks -= 1
        self.n_empty -= place == block

    def _enter(self, block: int, place: int, now: int) -> None:
        self._place[block] = place
        self.n_used -= 1
        for step in self._steps[block]:
            self.n_empty_in[step] += place == block
            self.freed_at[step] = now
            self._n_lacking[step] -= 1
            if self._n_lacking[step] == 0 and not self.is_away[step]:
                self.idle.add(step)
        if self._n_away[block] == 0:
            self._show(block, place)

    def _leave(self, block: int) -> None:
        """It is in use from now on."""
        place = self._place[block]
        if place is None or self._n_away[block]:
            raise RuntimeError(f"block {block} is not free, or its memory is away")
        self._place[block] = None
        self.n_used += 1
        for step in self._steps[block]:
            self.n_empty_in[step] -= place == block
            if self._n_lacking[step] == 0:
                self.idle.discard(step)
            self._n_lacking[step] += 1
        self._hide(block, place)

    def _tidy(self) -> None:
        """What is no more true stays less than what is."""
        if len(self._cached) > 2 * len(self._blocks) + 64:
            self._cached = [(place, block) for block, place in enumerate(self._place)
                            if place is not None and place != block and self._n_away[block] == 0]
            heapq.heapify(self._cached)

    def _pop_empty(self) -> int:
        while self._lowest < len(self._empty):
            blocks = self._empty[self._lowest]
            while blocks:
                block = blocks.pop()
                if self._place[block] == block and self._n_away[block] == 0:
                    return block
            self._lowest += 1
        raise ValueError("No free blocks available")

    def _pop_cached(self) -> int:
        while self._cached:
            place, block = heapq.heappop(self._cached)
            if self._place[block] == place and self._n_away[block] == 0:
                return block
        raise ValueError("No free blocks available")

    # ---- as vLLM calls them ----

    def popleft(self) -> Any:
        block = self._pop_empty() if self.n_empty else self._pop_cached()
        self._leave(block)
        return self._blocks[block]

    def popleft_n(self, n: int) -> List[Any]:
        assert n <= self.num_free_blocks
        return [self.popleft() for _ in range(n)]

    def remove(self, block: Any) -> None:
        self._leave(block.block_id)

    def append(self, block: Any) -> None:
        self.append_n([block])

    def append_n(self, blocks: List[Any]) -> None:
        """The last to be used for something else."""
        now = self._now()
        for place, block in enumerate(blocks, self._next_place):
            self._enter(block.block_id, place, now)
        self._next_place += len(blocks)
        self._tidy()

    def prepend_n(self, blocks: List[Any]) -> None:
        """The first. vLLM takes those that it freed last, and we take the lowest step's."""
        now = self._now()
        for block in reversed(blocks):
            self._enter(block.block_id, block.block_id, now)

    def get_all_free_blocks(self) -> List[Any]:
        shown = sorted((place, block) for block, place in enumerate(self._place)
                       if place is not None and self._n_away[block] == 0)
        return [self._blocks[block] for _, block in shown]

    # ---- steps ----

    def empty(self, block: int) -> None:
        """A free block has no content any more."""
        place = self._place[block]
        if place is None or place == block:
            return
        self._place[block] = block
        for step in self._steps[block]:
            self.n_empty_in[step] += 1
        if self._n_away[block] == 0:
            self._hide(block, place)
            self._show(block, block)

    def fill(self, block: int) -> None:
        """A free block of a step that is away has content."""
        if self._place[block] != block or self._n_away[block] == 0:
            raise RuntimeError(f"block {block} is not an empty block that is away")
        self._place[block] = self._next_place
        self._next_place += 1
        for step in self._steps[block]:
            self.n_empty_in[step] -= 1

    def step_leaves(self, step: int) -> None:
        """An idle step: nobody is handed a block of it until it comes."""
        if step not in self.idle:
            raise RuntimeError(f"step {step} is in use, or away")
        self.idle.discard(step)
        self.is_away[step] = True
        for block in self.layout.blocks_of(step):
            place = self._place[block]
            if self._n_away[block] == 0 and place is not None:
                self._hide(block, place)
            self._n_away[block] += 1
        # What was true of it is said again when it comes.
        self._empty[step] = []

    def step_comes(self, step: int) -> None:
        self.is_away[step] = False
        self.idle.add(step)
        for block in self.layout.blocks_of(step):
            self._n_away[block] -= 1
            place = self._place[block]
            if self._n_away[block] == 0 and place is not None:
                begin = self._empty[self._steps[block].start]
                if place == block and self._steps[block].start != step and block in begin:
                    begin.remove(block)
                self._show(block, place)
        self._tidy()

    def steps_away(self) -> List[int]:
        return [step for step, is_away in enumerate(self.is_away) if is_away]

    def steps_of(self, block: int) -> range:
        return self._steps[block]
