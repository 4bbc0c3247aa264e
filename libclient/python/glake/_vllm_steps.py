# SPDX-License-Identifier: Apache-2.0
"""The steps of an elastic range as an engine's thread sees them: it never waits for the GPU, and for memory only as
long as it says.

Memory is committed by threads of its own, since glaked may have to ask others for it: each is at one step, so that one comes even
if there is no memory for the other. A step is lent by another thread, when work that was queued before has ended; until then the
engine can have it back without losing anything.
"""
from __future__ import annotations

import collections
import logging
import threading
import time
from typing import Callable, Deque, Dict, Iterable, List, Optional, Set, Tuple, Union

from ._vllm_ranks import Ranks
from .elastic import COMING, HELD, HOLE, LENT, Elastic
from .errors import Error

logger = logging.getLogger("vllm.glake")

#: Between two looks whether work has ended
_LOOK_S = (0.0005, 0.02)
#: No memory, or not for all: asked for again this much later; each time in a row that nothing came, twice as much
_AGAIN_S = (0.02, 0.25)
#: At most this many steps are asked for at the same time
AT_ONCE = 2


class Steps:
    """Its threads are daemons: they end with close(), or with the process."""

    def __init__(self, elastic: Union[Elastic, Ranks]) -> None:
        self._elastic = elastic
        self._changed = threading.Condition()
        self._is_closed = False
        #: the engine's: what else is HELD has come, and is not known to it, or is to be lent
        self._has = {step for step, state in enumerate(elastic.states()) if state == HELD}
        #: steps to be lent: whether the work that may use them has ended
        self._leaving: Dict[int, Callable[[], bool]] = {}
        #: what is asked in turn, in the order of the stream, and what is to be done then, before steps are lent
        self._marks: Deque[Tuple[Callable[[], bool], Optional[Callable[[], None]]]] = collections.deque()
        #: Since when they are, how many of them have come, and when the last one did
        self._wanted: List[int] = []
        self._wanted_at = self._came_at = 0.0
        self._n_came = 0
        #: a thread is at each
        self._coming: List[int] = []
        self._came: List[int] = []
        #: steps with memory that the engine does not know of
        self._new: Set[int] = set()
        self._rests = self._is_short = False
        self._again_s = _AGAIN_S[0]
        self._not_before = 0.0
        self._threads = [threading.Thread(target=loop, name="glake-kv", daemon=True)
                         for loop in (*[self._commit_loop] * AT_ONCE, self._lend_loop)]
        for thread in self._threads:
            thread.start()

    def close(self, wait_s: float) -> bool:
        """Its threads end when they are done with what they are at. Whether they have: if not, they use the range."""
        with self._changed:
            self._is_closed = True
            self._leaving.clear()
            self._marks.clear()
            self._changed.notify_all()
        end = time.monotonic() + wait_s
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def rest(self, rests: bool) -> None:
        """While it rests, the engine asks for no arrivals: what comes is lent at once."""
        with self._changed:
            self._rests = rests
            if rests:
                self._arrived([])

    # ---- memory that goes ----

    def leave(self, steps: Iterable[int], has_ended: Callable[[], bool]) -> None:
        """Lend them when `has_ended()`, which is asked by a thread, again and again."""
        with self._changed:
            for step in steps:
                self._has.discard(step)
                self._leaving[step] = has_ended
            self._marks.append((has_ended, None))
            self._changed.notify_all()

    def when(self, has_ended: Callable[[], bool], then: Callable[[], None]) -> None:
        """A thread calls `then()` when `has_ended()`, before it lends what leaves later."""
        with self._changed:
            self._marks.append((has_ended, then))
            self._changed.notify_all()

    def adopted(self, step: int) -> None:
        """A hole has come with content: it is the engine's."""
        with self._changed:
            self._has.add(step)

    def take_back(self, step: int) -> Optional[bool]:
        """Whether it is there with its content, or with empty memory; None: not at all. If it is, it is the engine's."""
        with self._changed:
            if self._leaving.pop(step, None) is None and self._elastic.take(step, 1) != 1:
                return None
            self._has.add(step)
            is_old = step not in self._new and step not in self._coming and step not in self._wanted
            self._new.discard(step)
            return is_old

    def _lend_loop(self) -> None:
        pause = _LOOK_S[0]
        while True:
            with self._changed:
                while not self._marks and not self._is_closed:
                    self._changed.wait()
                if self._is_closed:
                    return
                has_ended, then = self._marks[0]
                if then is None and has_ended not in self._leaving.values():
                    self._marks.popleft()
                    continue
            ended = self._look(has_ended)
            if ended:
                if then is not None:
                    then()
                with self._changed:
                    if self._marks:
                        self._marks.popleft()
                    # Not one that was taken back, or has left anew since.
                    ready = [step for step, other in self._leaving.items() if other is has_ended]
                    for step in ready:
                        del self._leaving[step]
                        self._elastic.lend(step, 1)
                pause = _LOOK_S[0]
            else:
                time.sleep(pause)
                pause = min(2 * pause, _LOOK_S[1])

    def _look(self, has_ended: Callable[[], bool]) -> bool:
        try:
            return has_ended()
        except RuntimeError as error:  # the GPU is lost to this process: nothing is lent any more
            logger.warning("glake: KV memory is not lent any more: %s", error)
            with self._changed:
                self._is_closed = True
            return False

    # ---- memory that comes ----

    def states(self) -> List[int]:
        """HELD: the engine's, or its again in no time. LENT: it may be there still. HOLE: it can be wanted."""
        states = self._elastic.states()
        with self._changed:
            for step in self._leaving:
                states[step] = LENT
        return states

    def ahead(self, steps: range) -> None:
        """Of memory that is free, if there is any, these holes become LENT."""
        try:
            self._elastic.ahead(steps.start, len(steps))
        except (Error, OSError) as error:
            logger.debug("glake: nothing comes ahead: %s", error)

    def n_ahead(self) -> int:
        """How many have come so, ever."""
        return self._elastic.stats()["n_ahead"]

    def want(self, steps: Iterable[int]) -> bool:
        """Commit these holes, in order. False: others are wanted still, or it was in vain a moment ago."""
        with self._changed:
            if self._is_closed or self._wanted or self._coming or time.monotonic() < self._not_before:
                return False
            self._wanted = list(steps)
            self._wanted_at = time.monotonic()
            self._changed.notify_all()
            return bool(self._wanted)

    def _arrived(self, steps: Iterable[int]) -> None:
        """With the lock. What came ahead while it was committed is the engine's already, or leaves already."""
        new = [step for step in steps if step not in self._has and step not in self._leaving]
        self._new.update(new)
        self._came.extend(new)
        if self._rests:
            for step in self._take_came():
                self._elastic.lend(step, 1)
        self._changed.notify_all()

    def _take_came(self) -> List[int]:
        """Those that the engine has not taken, or even used and left, since."""
        came, self._came = [step for step in self._came if step in self._new], []
        return came

    def arrivals(self, wait_s: float = 0.0) -> List[int]:
        """What has come since the last call, empty; it is the engine's. Waits for the first, if some are wanted."""
        with self._changed:
            if wait_s > 0.0 and not self._came:
                self._changed.wait_for(lambda: self._came or not (self._wanted or self._coming), wait_s)
            came = self._take_came()
            self._has.update(came)
            self._new.difference_update(came)
            return came

    @property
    def has_news(self) -> bool:
        return bool(self._came)

    @property
    def is_waiting(self) -> bool:
        return bool(self._wanted or self._coming)

    def _commit_loop(self) -> None:
        while True:
            with self._changed:
                while not self._wanted and not self._is_closed:
                    self._changed.wait()
                if self._is_closed:
                    return
                step = self._wanted.pop(0)
                self._coming.append(step)
            is_there = self._commit(step)
            with self._changed:
                if is_there:
                    self._n_came += 1
                    self._came_at = time.monotonic()
                    self._arrived([step])
                else:
                    self._wanted.clear()
                    self._is_short = True
                self._coming.remove(step)
                if not self._wanted and not self._coming:
                    self._end_want()
                self._changed.notify_all()

    def _commit(self, step: int) -> bool:
        try:
            self._elastic.commit(step, 1)
        except (RuntimeError, OSError, ValueError) as error:  # glake's own are RuntimeErrors
            logger.debug("glake: no memory for KV step %d: %s", step, error)
        return self._elastic.states()[step] == HELD

    def _end_want(self) -> None:
        """With the lock."""
        if self._n_came:
            logger.debug("glake: %d KV steps of %d MiB came in %.2f ms", self._n_came,
                         self._elastic.chunk_bytes * self._elastic.lanes >> 20, 1000 * (self._came_at - self._wanted_at))
        is_vain = self._is_short and not self._n_came
        self._not_before = time.monotonic() + self._again_s if self._is_short else 0.0
        self._again_s = min(2 * self._again_s, _AGAIN_S[1]) if is_vain else _AGAIN_S[0]
        self._n_came, self._is_short = 0, False


__all__ = ["AT_ONCE", "COMING", "HELD", "HOLE", "LENT", "Steps"]
