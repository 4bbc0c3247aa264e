# SPDX-License-Identifier: Apache-2.0
"""The elastic ranges of several ranks, each in a process of its own, as one: with the methods of `Elastic` that an engine's
scheduler calls. A step is there when all ranks have it, and not when one lacks it.

Invariant: what is HELD here is held by every rank, and no rank holds a step for long that is not: what some got in vain they lend again.

Each rank has two sockets, which a thread of the library attends in its process (glake_elastic_attend()): one for what is answered at
once, and one for commits, which may wait for memory. Nothing here waits without an end. A rank that has not answered in time is late:
nothing else is said to any rank over these sockets before it has, and what it did in vain is undone. Meanwhile no step is taken or lent,
and what is held stays.
"""
from __future__ import annotations

import ctypes
import functools
import logging
import select
import socket
import threading
import time
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

from . import _lib, errors
from .elastic import COMING, GOING, HELD, HOLE, LENT, LOST, runs_of

logger = logging.getLogger("vllm.glake")

LOOK, TAKE, LEND, AHEAD, COMMIT = range(1, 6)
_LOOK_STEPS = 65536
#: The longest waits for an answer, for that of a commit, and for one that is late
_ANSWER_S, _COMMIT_S, _NOW_S = 2.0, 10.0, 0.0
#: What a step is that not all ranks have, by what one of them says
_WORST_FIRST = (LOST, GOING, HOLE, COMING)


class Gone(RuntimeError):
    """A rank has ended, or does not say what it should: nothing comes or goes any more."""


class Answer(NamedTuple):
    result: int
    n: int
    passed: int
    states: bytes
    stats: _lib.ElasticStats


class Line:
    """A socket to a rank. One request at a time is under way."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        sock.setblocking(False)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._number = 0
        #: steps that the rank has to lend again if it got them: of a request that is not answered yet
        self.late: Optional[Sequence[int]] = None

    def tell(self, verb: int, first: int, n: int) -> None:
        self._number += 1
        try:
            self._socket.send(_lib.ElasticRequest(self._number, verb, first, n, 0))
        except OSError as error:
            raise Gone(f"a rank has ended: {error}") from None

    def hear(self, end: float) -> Optional[Answer]:
        """None: not before `end`."""
        try:
            if not self._poll.poll(max(0.0, 1000 * (end - time.monotonic()))):
                return None
            data = self._socket.recv(ctypes.sizeof(_lib.ElasticReply) + _LOOK_STEPS)
        except OSError as error:
            raise Gone(f"a rank has ended: {error}") from None
        if len(data) < ctypes.sizeof(_lib.ElasticReply):
            raise Gone("a rank has ended")
        reply = _lib.ElasticReply.from_buffer_copy(data)
        if reply.number != self._number:
            raise Gone("a rank answers what it was not asked")
        return Answer(reply.result, reply.n, reply.passed, data[ctypes.sizeof(reply):], reply.stats)

    def close(self) -> None:
        self._socket.close()


class Lines:
    """One to each rank. Not for several threads."""

    def __init__(self, sockets: Iterable[socket.socket]) -> None:
        self._lines = [Line(sock) for sock in sockets]

    @property
    def is_late(self) -> bool:
        return any(line.late is not None for line in self._lines)

    def ask(self, verb: int, first: int, n: int, wait_s: float, undo: Sequence[int] = ()) -> List[Optional[Answer]]:
        """All at once. None: that rank is late; if it gets some of `undo` it will lend them again."""
        for line in self._lines:
            line.tell(verb, first, n)
        end = time.monotonic() + wait_s
        answers = [line.hear(end) for line in self._lines]
        for line, answer in zip(self._lines, answers):
            if answer is None:
                line.late = undo
        return answers

    def lend(self, rank: int, steps: Sequence[int]) -> None:
        """By one rank alone."""
        line = self._lines[rank]
        for i, run in enumerate(runs_of(steps)):
            line.tell(LEND, run.start, len(run))
            if line.hear(time.monotonic() + _ANSWER_S) is None:
                line.late = [step for step in steps if step >= run.stop]
                return

    def settle(self) -> bool:
        """Whether all have answered what was asked last, and have lent again what they got in vain."""
        for rank, line in enumerate(self._lines):
            if line.late is None:
                continue
            answer = line.hear(_NOW_S)
            if answer is None:
                return False
            undo, line.late = line.late, None
            # Those that it does not hold it does not lend.
            self.lend(rank, undo)
        return not self.is_late

    def close(self) -> None:
        for line in self._lines:
            line.close()


class Ranks:
    """In place of an `Elastic`. Threads: any."""

    def __init__(self, sockets: Sequence[Tuple[socket.socket, socket.socket]], chunk_bytes: int, lanes: int, steps: int) -> None:
        """Of each rank: the socket for what is answered at once, and the one for commits."""
        self.chunk_bytes, self.lanes, self.steps = chunk_bytes, lanes, steps
        self._lock = threading.Lock()
        self._commits = threading.Lock()
        #: with the lock of its name
        self._fast = Lines(fast for fast, _ in sockets)
        self._slow = Lines(slow for _, slow in sockets)
        #: With the lock: the scheduler's, and what is being committed, or was by a rank that is late. Steps that are to be lent,
        #: but were not yet, since one is late.
        self._held: Set[int] = set()
        self._coming: Set[int] = set()
        self._owed: Set[int] = set()
        self._passed = self._n_marks = self._n_unknown = 0
        self._why_gone = ""
        rows = self._look()
        if rows is None:
            raise Gone("a rank does not answer")
        self._held = {step for step, row in enumerate(rows) if all(state == HELD for state in row)}

    # ---- asking ----

    def _end(self, error: Gone) -> None:
        if not self._why_gone:
            self._why_gone = str(error)
            logger.warning("glake: KV memory does not come or go any more: %s", error)

    def _settled(self) -> bool:
        """With the lock: all ranks are where the books are."""
        try:
            if self._why_gone or not self._fast.settle():
                return False
            while self._owed:
                # What was asked will be done.
                if None in self._fast.ask(LEND, self._owed.pop(), 1, _ANSWER_S):
                    return False
        except Gone as error:
            self._end(error)
            return False
        return True

    def _all(self, verb: int, first: int, n: int, undo: Sequence[int] = ()) -> Optional[List[Optional[Answer]]]:
        """With the lock. None: nothing was asked."""
        if not self._settled():
            return None
        try:
            return self._fast.ask(verb, first, n, _ANSWER_S, undo)
        except Gone as error:
            self._end(error)
            return None

    def _look(self) -> Optional[List[Tuple[int, ...]]]:
        """With the lock: of each step, what it is for each rank."""
        rows: List[Tuple[int, ...]] = []
        while len(rows) < self.steps:
            n = min(self.steps - len(rows), _LOOK_STEPS)
            answers = self._all(LOOK, len(rows), n)
            if not answers or any(answer is None or len(answer.states) != n for answer in answers):
                return None
            rows += zip(*(answer.states for answer in answers if answer))
        return rows

    # ---- as Elastic ----

    def states(self) -> List[int]:
        """GOING: it is not known."""
        self._settle_commits()
        with self._lock:
            rows = self._look()
            states = [GOING] * self.steps if rows is None else [_of_all(row) for row in rows]
            for steps, state in ((self._coming, COMING), (self._owed, LENT), (self._held, HELD)):
                for step in steps:
                    states[step] = state
            return states

    def take(self, first: int, n: int) -> int:
        """Up to the first that not all ranks have."""
        for step in range(first, first + n):
            if not self._take(step):
                return step - first
        return n

    def _take(self, step: int) -> bool:
        with self._lock:
            if step in self._owed:
                self._owed.remove(step)
                self._held.add(step)
            if step in self._held:
                return True
            answers = None if step in self._coming else self._all(TAKE, step, 1, [step])
            if not answers:
                return False
            if all(answer and answer.n == 1 for answer in answers):
                self._held.add(step)
                return True
            self._lend_again(self._fast, answers, step, 0, [step])
            return False

    def _lend_again(self, lines: Lines, answers: Sequence[Optional[Answer]], first: int, n: int, steps: Sequence[int]) -> None:
        """With the lock of the lines: of `steps`, those that ranks have got from first + n on."""
        try:
            for rank, answer in enumerate(answers):
                if answer is not None:
                    lines.lend(rank, [step for step in steps if first + n <= step < first + answer.n])
        except Gone as error:
            self._end(error)

    def lend(self, first: int, n: int) -> None:
        with self._lock:
            for step in range(first, first + n):
                if step in self._held:
                    self._held.remove(step)
                    if self._all(LEND, step, 1) is None:
                        self._owed.add(step)

    def ahead(self, first: int, n: int) -> None:
        with self._lock:
            self._all(AHEAD, first, n)

    def commit(self, first: int, n: int) -> None:
        """As many as all ranks get; who got more lends it again."""
        with self._commits:
            next_ = first
            while next_ < first + n:
                next_ = self._commit_run(next_, first + n)

    def _commit_run(self, first: int, stop: int) -> int:
        """With the lock of commits: those from the first on that are not held, which may be lent meanwhile. Returns the next one."""
        is_settled = self._settle()
        with self._lock:
            # Nor is a step among them that is taken in vain.
            if not is_settled or not self._settled():
                raise TimeoutError(self._why_gone or "a rank has not answered yet")
            while first < stop and first in self._held:
                first += 1
            n = 0
            while first + n < stop and first + n not in self._held:
                n += 1
            new = range(first, first + n)
            self._coming.update(new)
        if new:
            self._ask_commit(new)
        return new.stop

    def _ask_commit(self, new: range) -> None:
        """With the lock of commits. They are COMING."""
        try:
            answers: Sequence[Optional[Answer]] = self._slow.ask(COMMIT, new.start, len(new), _COMMIT_S, new)
        except Gone as error:
            self._end(error)
            raise
        n_all = min(answer.n if answer else 0 for answer in answers)
        self._lend_again(self._slow, answers, new.start, n_all, new)
        with self._lock:
            come = {step for step in new if step < new.start + n_all}
            self._held |= come
            # The others are nobody's until those who are late have answered.
            self._coming = set(new) - come if self._slow.is_late else set()
        for rank, answer in enumerate(answers):
            if answer is None:
                raise TimeoutError(f"rank {rank} does not answer")
            if answer.n < len(new):
                text = _lib.text(_lib.library().glake_strerror(answer.result))
                raise errors.make(answer.result or -1, f"rank {rank}: {text}")

    def _settle(self) -> bool:
        """With the lock of commits: no step is in between."""
        try:
            if self._why_gone or not self._slow.settle():
                return False
        except Gone as error:
            self._end(error)
            return False
        with self._lock:
            self._coming.clear()
        return True

    def _settle_commits(self) -> None:
        """If none is under way."""
        if self._coming and self._commits.acquire(blocking=False):
            try:
                self._settle()
            finally:
                self._commits.release()

    def stats(self) -> Dict[str, int]:
        """Of all ranks together. While it is not known how many came ahead, the number is one that was never told before."""
        with self._lock:
            answers = self._all(LOOK, 0, 0) or [None]
            known = [answer.stats for answer in answers if answer]
            total = {name: sum(getattr(stats, name) for stats in known)
                     for name, _ in _lib.ElasticStats._fields_ if name != "size"}
            if len(known) < len(answers):
                self._n_unknown -= 1
                total["n_ahead"] = self._n_unknown
            return total

    # ---- marks ----

    def marker(self, set_all: Callable[[int], None]) -> Callable[[], Callable[[], bool]]:
        """`set_all(number)`: have each rank set this mark behind what was queued for it by now."""
        def mark() -> Callable[[], bool]:
            self._n_marks += 1
            set_all(self._n_marks)
            return functools.partial(self.has_passed, self._n_marks)
        return mark

    def has_passed(self, number: int) -> bool:
        """Whether it has for all ranks."""
        with self._lock:
            if self._passed < number:
                answers = self._all(LOOK, 0, 0)
                if self._why_gone:
                    raise Gone(self._why_gone)
                if answers and None not in answers:
                    self._passed = min(answer.passed for answer in answers if answer)
            return self._passed >= number

    def close(self) -> None:
        """Nobody calls it meanwhile. The ranks keep what they hold."""
        self._fast.close()
        self._slow.close()


def _of_all(row: Tuple[int, ...]) -> int:
    """What a step is that is in no book, by what each rank says."""
    for state in _WORST_FIRST:
        if state in row:
            return state
    # Some hold it that are about to lend it again.
    return LENT if all(state == LENT for state in row) else COMING


__all__ = ["Gone", "Ranks"]
