# SPDX-License-Identifier: Apache-2.0
"""vLLM's BlockPool and Scheduler on memory that comes and goes.

Invariant: a block that is in use, or that vLLM may be handed, or finds by its hash, lies in steps that the engine has;
and a step leaves only when all work that was scheduled before its blocks became free has ended.

* *Memory that is free* comes ahead of the need: as many empty blocks as the next batches may want, lent until then.
* *Before vLLM looks for free blocks* it says how many it needs. What is lent is taken back; content that is not in use gives way
  only then, the engine's own first; and what is still missing comes from glaked, from what others have lent. If there is none, the
  pool says so by the number of its free blocks, and vLLM queues and preempts as ever.
* *A hash leads to a block whose step was lent*: the step is taken back, or, if others have its memory, all hashes there are
  forgotten and the look-up goes on.
* *After each output* idle steps are lent, when the GPU is done with what was queued by then.
"""
from __future__ import annotations

import logging
import math
import time
from typing import Any, Callable, Collection, Dict, List, Optional, Set

from ._vllm_blocks import FreeBlocks, Layout
from ._vllm_kept import Kept
from ._vllm_steps import AT_ONCE, COMING, HELD, HOLE, LENT, Steps
from .elastic import Elastic, runs_of
from .errors import Error

#: Idle steps that a working engine keeps
_KEPT = 1
#: The longest waits of the scheduler: for memory that is free, while it could evict cached blocks instead, and for memory of others,
#: while it would have to queue or preempt a request
_FREE_WAIT_S, _WAIT_S = 0.01, 0.03
#: The time between two looks at what came ahead; the time after which there is no free memory, if nothing has come; and the
#: time until it is asked for again
_LOOK_S, _PATIENCE_S, _NONE_FREE_S = 0.005, 0.003, 0.1


#: While the engine before has not ended: how often, and how long, the next one asks for what it leaves
_ADOPT_S, _ADOPT_FOR_S = 0.25, 60.0

logger = logging.getLogger("vllm.glake")


class Cache:
    """The KV blocks of one engine. Its scheduler's thread calls all of it."""

    def __init__(self, pool: Any, layout: Layout, floor: int, n_ahead: int, steps: Steps,
                 mark: Callable[[], Callable[[], bool]]) -> None:
        """`mark()`: how to ask later whether the GPU is done with what is queued now. `n_ahead`: blocks that the next batches
        may want."""
        self.pool, self.layout, self.floor, self.steps, self._mark = pool, layout, floor, steps, mark
        #: of steps that were scheduled, and of the last one whose output was processed
        self.n_scheduled = 0
        self.n_done = 0
        self._is_late = False
        #: what is known of blocks that outlive this process, if any do; when the range is asked again for what others left
        self.kept: Optional[Kept] = None
        self._next_adopt = self._last_adopt = math.inf
        self._low = max(1, layout.n_blocks // layout.n_steps // 4)
        self._n_ahead = n_ahead + self._low
        self._n_at_once = layout.n_blocks // layout.n_steps * AT_ONCE
        #: steps that were asked for ahead, and when; and before when none are any more
        self._asked: Set[int] = set()
        self._asked_at = self._looked_at = self._next_look = 0.0
        #: Steps that came in another way while it was not known that asking for them ahead was over, and of those that are away, how
        #: much had come ahead by then: their memory may have been replaced by empty memory since.
        self._open: Set[int] = set()
        self._doubtful: Dict[int, int] = {}
        # While a step is being scheduled it may use blocks that become free meanwhile.
        self._is_scheduling = False
        free = pool.free_block_queue.get_all_free_blocks()
        self.queue = FreeBlocks(pool.blocks, free, layout, self._now)
        used = {step for block in {*range(layout.n_blocks)} - {block.block_id for block in free}
                for step in layout.steps_of(block)}
        for step, state in enumerate(steps.states()):
            if state != HELD:
                if step in used:
                    raise RuntimeError(f"glake: step {step} has no memory, and vLLM uses its blocks")
                self.queue.step_leaves(step)
        pool.free_block_queue = self.queue
        pool.glake_cache = self
        pool.__class__ = type("ElasticBlockPool", (_ElasticPool, type(pool)), {})

    def _now(self) -> int:
        return self.n_scheduled + self._is_scheduling

    # ---- steps that come ----

    def _forget(self, step: int) -> None:
        """Its memory was given to others."""
        for block in self.layout.blocks_of(step):
            self.pool._maybe_evict_cached_block(self.pool.blocks[block])
            self.queue.empty(block)

    def _arrive(self, wait_s: float = 0.0) -> None:
        for step in self.steps.arrivals(wait_s):
            if step in self._open:
                self._doubtful[step] = 0
            # It may have come ahead, have been used, and have gone, while it was committed.
            self._forget(step)
            self.queue.step_comes(step)

    def _take_back(self, step: int) -> bool:
        """Whether it is there, with its content."""
        has_content = self.steps.take_back(step)
        if has_content is None:
            return False
        self.queue.step_comes(step)
        if not has_content or step in self._doubtful and self._doubtful[step] != self.steps.n_ahead():
            self._forget(step)
            return False
        self._open.discard(step)
        return True

    def is_here(self, block: Any) -> bool:
        """Whether a block that a hash led to has its content; if not, all hashes of what is lost are gone."""
        for step in self.queue.steps_of(block.block_id):
            if self.queue.is_away[step] and not self._take_back(step):
                self._forget(step)
                return False
        return True

    def _take_lent(self, is_enough: Callable[[], bool], with_content: bool) -> None:
        """From the lowest one on. Without content: only those that have empty blocks."""
        if is_enough():
            return
        states = self.steps.states()
        for step in self.queue.steps_away():
            if states[step] == LENT and (with_content or self.queue.n_empty_in[step]):
                self._take_back(step)
                if is_enough():
                    return

    def _holes(self, states: List[int], n_blocks: int, others: Collection[int] = ()) -> List[int]:
        """The holes that these blocks need, from the lowest step on. Nothing that was there before they come is found by a hash."""
        per_step = self.layout.n_blocks / self.layout.n_steps
        holes = [step for step in self.queue.steps_away() if states[step] == HOLE and step not in others]
        holes = holes[:max(0, math.ceil(n_blocks / per_step))]
        for step in holes:
            self._forget(step)
        return holes

    # ---- memory that is free ----

    def _ask_ahead(self, n_blocks: int) -> bool:
        """Whether some of this many empty blocks are still to come. The others are here, or lent, or are asked for ahead."""
        now = time.monotonic()
        if now < self._next_look:
            return bool(self._asked)
        states = self.steps.states()
        asked = {step for step in self._asked if states[step] in (HOLE, COMING)}
        if len(asked) < len(self._asked):
            self._asked_at = now
        self._asked = asked
        if self._asked and now > self._asked_at + _PATIENCE_S and all(states[step] == HOLE for step in self._asked):
            self._asked.clear()
            self._next_look = now + _NONE_FREE_S
            return False
        n_missing = n_blocks - self.queue.n_empty - sum(
            self.queue.n_empty_in[step] for step in self.queue.steps_away()
            if states[step] == LENT or step in self._asked)
        holes = self._holes(states, n_missing, self._asked)
        for run in runs_of(holes):
            self.steps.ahead(run)
        if holes:
            self._asked_at = now
            self._asked.update(holes)
            self._open.update(holes)
        return bool(self._asked)

    def _wait_ahead(self, n: int) -> None:
        """Until n blocks are empty, as long as free memory comes for them."""
        end = time.monotonic() + _FREE_WAIT_S
        while self.queue.n_empty < n and time.monotonic() < end and self._ask_ahead(n):
            time.sleep(0.0002)
            self._take_lent(lambda: self.queue.n_empty >= n, False)

    # ---- memory of others ----

    def _want(self, n_blocks: int) -> bool:
        holes = self._holes(self.steps.states(), n_blocks)
        return self.steps.want(holes)

    def _grow(self, n: int, n_behind: int) -> None:
        """Until n blocks are free, but not long; not at all for what has been waited for in vain. Asked for with it is as much for
        each request that waits behind this one, up to what one handover is good for."""
        self._is_late = self._is_late and self.steps.is_waiting
        end = time.monotonic() + (0.0 if self._is_late else _WAIT_S)
        while True:
            was_waiting = self.steps.is_waiting
            self._arrive()
            n_missing = n - self.queue.num_free_blocks
            n_wanted = max(n_missing, min(n_missing * (1 + n_behind), self._n_at_once))
            if n_missing <= 0 or not (was_waiting or self._want(n_wanted)):
                return
            left_s = end - time.monotonic()
            if left_s <= 0.0:
                self._is_late = True
                return
            self._arrive(left_s)

    def reserve(self, n: int, n_cached: int = 0, spare: int = 0, n_behind: int = 0) -> None:
        """vLLM is about to look whether n blocks are free, of which it has found some by their hash, and perhaps others to
        spare; behind that it will for n_behind other requests."""
        if self.steps.has_news:
            self._arrive()
        queue = self.queue
        if n >= self.layout.n_blocks:
            return
        n = min(n + spare, self.layout.n_blocks - 1)
        n_empty = n - n_cached
        if n_empty > queue.n_empty:
            self._take_lent(lambda: queue.n_empty >= n_empty, False)
            if n_empty > queue.n_empty:
                self._wait_ahead(n_empty)
        if n > queue.num_free_blocks:
            self._take_lent(lambda: queue.num_free_blocks >= n, True)
            self._grow(n, n_behind)

    # ---- steps that go ----

    def _leave(self, is_working: bool) -> None:
        queue = self.queue
        idle = [step for step in sorted(queue.idle) if step >= self.floor and queue.freed_at[step] <= self.n_done]
        n_kept = len(queue.idle) - len(idle)
        leaving: List[int] = []
        n_empty = queue.n_empty
        for step in reversed(idle):
            n_left = n_empty - queue.n_empty_in[step]
            if is_working and (len(idle) - len(leaving) + n_kept <= _KEPT or
                               (queue.n_empty_in[step] and n_left < 2 * self._low)):
                continue
            n_empty = n_left
            leaving.append(step)
        if not leaving:
            return
        has_ended = self._mark()
        self._keep(has_ended, leaving)
        for step in leaving:
            if step in self._doubtful:
                self._doubtful[step] = self.steps.n_ahead()
            queue.step_leaves(step)
        self.steps.leave(leaving, has_ended)

    # ---- blocks that outlive this process ----

    def keep(self, elastic: Elastic, where: bytes) -> None:
        """From now on, in a range with a key; and what others with this key have left is found."""
        self.kept = Kept(elastic, self.layout, self.pool, where)
        self._last_adopt = time.monotonic() + _ADOPT_FOR_S
        self._adopt(elastic)

    def _keep(self, has_ended: Optional[Callable[[], bool]], steps: Optional[Collection[int]], is_working: bool = False) -> None:
        seal = self.kept.to_seal(steps, is_working) if self.kept is not None else None
        if seal is not None:
            self.steps.when(has_ended or self._mark(), seal)

    def _adopt(self, elastic: Elastic) -> None:
        assert self.kept is not None
        self._next_adopt = math.inf
        if self.steps.is_waiting:
            self._next_adopt = time.monotonic()
            return
        start, n_steps, n_blocks = time.monotonic(), 0, 0
        states = elastic.states()
        try:
            for step in self.queue.steps_away():
                if states[step] != HOLE or step in self._asked:
                    continue
                self._forget(step)
                record = elastic.adopt(step)
                if record is None:
                    if elastic.n_living and start < self._last_adopt:
                        self._next_adopt = start + _ADOPT_S
                    break
                if step in self._open:
                    self._doubtful[step] = 0
                self.steps.adopted(step)
                found = self.kept.enter(step, record)
                for block in found:
                    self.queue.fill(block)
                self.queue.step_comes(step)
                n_steps, n_blocks = n_steps + 1, n_blocks + len(found)
        except (Error, OSError) as error:
            logger.warning("glake: KV steps that an engine left are not found: %s", error)
        if n_steps:
            logger.info("glake: found %d KV blocks in %d steps that an engine left, in %.1f ms", n_blocks, n_steps,
                        1000 * (time.monotonic() - start))

    # ---- the scheduler ----

    def before_schedule(self, is_working: bool) -> None:
        self._is_scheduling = True
        self.steps.rest(False)
        self._arrive()
        if self.kept is not None and not self.kept.is_off and time.monotonic() >= self._next_adopt:
            self._adopt(self.kept._elastic)
        if is_working:
            if self.queue.n_empty < self._low:
                self._take_lent(lambda: self.queue.n_empty >= self._low, False)
            if time.monotonic() > self._looked_at + _LOOK_S:
                self._looked_at = time.monotonic()
                self._ask_ahead(self._n_ahead)

    def after_schedule(self) -> int:
        """The number of the step."""
        self._is_scheduling = False
        if self.kept is not None:
            self.kept.flush()
        self.n_scheduled += 1
        return self.n_scheduled

    def after_output(self, step: Optional[int], is_working: bool) -> None:
        """Outputs come in order, and with them the end of whatever was queued before."""
        self.n_done = max(self.n_done, step or 0)
        if self.kept is not None:
            self.kept.settle(self.n_done)
            self._keep(None, None, is_working)
        self._leave(is_working)
        if not is_working:
            self.steps.rest(True)


class _ElasticPool:
    """What a BlockPool does otherwise, in front of its own class."""

    glake_cache: Cache

    def get_cached_block(self, *arguments: Any, **options: Any) -> Any:
        while True:
            blocks = super().get_cached_block(*arguments, **options)  # type: ignore[misc]
            if blocks is None or all([self.glake_cache.is_here(block) for block in blocks]):
                return blocks

    def cache_full_blocks(self, request: Any, blocks: Any, num_cached_blocks: int, num_full_blocks: int, *arguments: Any,
                          **options: Any) -> Any:
        result = super().cache_full_blocks(  # type: ignore[misc]
            request, blocks, num_cached_blocks, num_full_blocks, *arguments, **options)
        if self.glake_cache.kept is not None:
            self.glake_cache.kept.cached(blocks[num_cached_blocks:num_full_blocks], self.glake_cache._now())
        return result

    def _remove_cached_block_hashes(self, block: Any) -> Any:
        if self.glake_cache.kept is not None and not block.is_null:
            self.glake_cache.kept.lost(block.block_id)
        return super()._remove_cached_block_hashes(block)  # type: ignore[misc]

    def get_usage(self) -> float:
        """Of all blocks that there can be, those in use, as without glake: the null block is none."""
        cache = self.glake_cache
        n_blocks = cache.layout.n_blocks - 1
        return (cache.queue.n_used - 1) / n_blocks if n_blocks else 0.0

    def reset_prefix_cache(self) -> bool:
        """Blocks that are not in the line are not in use, either."""
        queue, n_blocks = self.glake_cache.queue, self.glake_cache.layout.n_blocks
        n_free, queue.num_free_blocks = queue.num_free_blocks, n_blocks - queue.n_used
        try:
            done: bool = super().reset_prefix_cache()  # type: ignore[misc]
        finally:
            queue.num_free_blocks = n_free
        for block in range(n_blocks if done else 0):
            queue.empty(block)
        if done and self.glake_cache.kept is not None:
            # It may be that there are new weights now, and they are not in the key.
            self.glake_cache.kept.end("the prefix cache was reset")
        return done


def attach(scheduler: Any, layout: Layout, floor: int, n_ahead: int, steps: Steps,
           mark: Callable[[], Callable[[], bool]]) -> Cache:
    """All that one scheduler does with blocks goes by way of the cache from now on."""
    manager = scheduler.kv_cache_manager
    cache = Cache(manager.block_pool, layout, floor, n_ahead, steps, mark)
    count, schedule, update = (manager.coordinator.get_num_blocks_to_allocate, scheduler.schedule,
                               scheduler.update_from_output)
    watermark = manager.watermark_blocks
    numbers: Dict[int, int] = {}

    def is_working() -> bool:
        return bool(scheduler.get_num_unfinished_requests())

    def get_num_blocks_to_allocate(*arguments: Any, **options: Any) -> int:
        n = count(*arguments, **options)
        if n > 0:
            found = options.get("new_computed_blocks", ())
            # The first that waits is still in the queue while blocks are looked for.
            cache.reserve(n, sum(not block.ref_cnt and not block.is_null for blocks in found for block in blocks), watermark,
                          max(0, len(scheduler.waiting) - 1))
        return n

    def glake_schedule(*arguments: Any, **options: Any) -> Any:
        cache.before_schedule(is_working())
        output = None
        try:
            output = schedule(*arguments, **options)
        finally:
            numbers[id(output)] = cache.after_schedule()
        return output

    def update_from_output(scheduler_output: Any, *arguments: Any, **options: Any) -> Any:
        result = update(scheduler_output, *arguments, **options)
        cache.after_output(numbers.pop(id(scheduler_output), None), is_working())
        return result

    manager.coordinator.get_num_blocks_to_allocate = get_num_blocks_to_allocate
    scheduler.schedule = glake_schedule
    scheduler.update_from_output = update_from_output
    cache.after_output(None, is_working())
    return cache
