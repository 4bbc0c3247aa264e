# SPDX-License-Identifier: Apache-2.0
"""The memory of kvcached's tensors: an elastic range for each group. A page of kvcached is a step.

What kvcached unmaps is lent: it stays where it is until others need it, and mapping it again is a compare-and-swap.
Page 0 always has its memory: engines read and write it in runs that mean nothing. Other holes read zero, by a guard, as in
kvcached, where they can be written as well.
"""
from __future__ import annotations

import collections
import contextlib
import os
import sys
import threading
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from ._kvcached_errors import MapQuarantinedError
from .admin import sessions, status
from .elastic import LOST, Elastic, runs_of
from .errors import Error
from .session import Session, default_session, parse_ordinal

#: kvcached's least page, and its page unless it says another
PAGE_BYTES = 2 << 20
#: At most this many outcomes of unmapping in two phases are remembered.
_MANY_OUTCOMES = 64


class Layout(NamedTuple):
    """Where the pages of a group are."""

    tensor_bytes: int
    n_tensors: int
    page_bytes: int  # of one page in one lane: what an offset is counted in
    n_pages: int
    lane_bytes: int
    n_lanes: int


def layout(page_bytes: int, size: int, n_layers: int, n_buffers: int, is_contiguous: bool,
           is_unified: bool) -> Layout:
    """``size`` is of a layer. Contiguous: one tensor, in which a page has the part of all layers. Else a tensor for each
    layer, of which the second half is V, and a page is in both; or that has K and V side by side, or no V."""
    size = -(-size // page_bytes) * page_bytes
    if size < 1 or n_layers < 1 or n_buffers < 1:
        raise RuntimeError("KV tensors have at least a byte, a layer and a buffer")
    if is_contiguous:
        compound = page_bytes * n_layers * n_buffers
        n_pages = -(-size * n_layers // compound)
        return Layout(size * n_layers, 1, compound, n_pages, n_pages * compound, 1)
    if is_unified or n_buffers == 1:
        return Layout(size, n_layers, page_bytes, size // page_bytes, size, n_layers)
    if size % (2 * page_bytes):
        raise RuntimeError(f"{size} bytes of K and V are not a multiple of two pages of {page_bytes}")
    return Layout(size, n_layers, page_bytes, size // 2 // page_bytes, size // 2, 2 * n_layers)


class Pool:
    """The tensors of one group. Threads may share it. ``is_mapped`` is what kvcached believes of a page."""

    def __init__(self, where: Layout, ordinal: int, session: Session) -> None:
        self.layout = where
        self.ordinal = ordinal
        self.tensors: List[Any] = []  # PyTorch's, when they are made
        self._range = Elastic(where.page_bytes, where.n_pages, where.n_lanes, where.lane_bytes, floor=1,
                              device=ordinal, session=session,
                              guard=os.environ.get("GLAKE_KVCACHED_GUARD", "1") != "0")
        self._lock = threading.Lock()
        self._is_mapped = bytearray(where.n_pages)
        self._pending: Optional[Tuple[str, List[int]]] = None
        self._outcomes: "collections.OrderedDict[str, str]" = collections.OrderedDict()

    @property
    def base(self) -> int:
        """The device address of the first tensor; the others follow."""
        return self._range.base

    def _pages(self, offsets: Sequence[int]) -> List[int]:
        pages = []
        for offset in offsets:
            page, beyond = divmod(offset, self.layout.page_bytes)
            if page < 0 or page >= self.layout.n_pages or beyond or \
                    self.layout.n_tensors == 1 and offset + self.layout.page_bytes > self.layout.tensor_bytes:
                raise RuntimeError(f"KV page offset {offset} is outside the reserved virtual address range, "
                                   f"or no multiple of {self.layout.page_bytes}")
            pages.append(page)
        return pages

    def _refuse_pending(self, what: str) -> None:
        if self._pending:
            raise RuntimeError(f"cannot {what} while unmap transaction is pending: {self._pending[0]}")

    def map(self, offsets: Sequence[int]) -> List[int]:
        """All of them, or, with an exception, none that was not mapped before. Returns those that were not. Blocks for
        glaked where memory has to come."""
        pages = self._pages(offsets)
        with self._lock:
            self._refuse_pending("map KV tensors")
            new = [page for page in dict.fromkeys(pages) if not self._is_mapped[page]]
            for page in new:
                self._is_mapped[page] = 1
        try:
            # Those that are mapped, too: they may rest.
            for run in runs_of(set(pages)):
                self._range.commit(run.start, len(run))
        except BaseException as error:
            with self._lock:
                self._lend_locked(new)
            if isinstance(error, Exception):
                raise self._failed_map(error, new) from error
            raise
        return [page * self.layout.page_bytes for page in new]

    def _failed_map(self, error: Exception, new: List[int]) -> Exception:
        with contextlib.suppress(ValueError):
            states = self._range.states()
            if any(states[page] == LOST for page in new):
                return MapQuarantinedError(f"physical page map failed: {error}")
        return RuntimeError(f"physical page map failed: {error}")

    def _lend_locked(self, pages: List[int]) -> None:
        for page in pages:
            self._is_mapped[page] = 0
        self._lend(pages)

    def _lend(self, pages: Iterable[int]) -> None:
        for run in runs_of(page for page in pages if page > 0):
            self._range.lend(run.start, len(run))

    def unmap(self, offsets: Sequence[int]) -> None:
        """Of those that are mapped. Work that uses them is waited for; none is submitted meanwhile."""
        pages = self._pages(offsets)
        wait_for_gpu()
        with self._lock:
            self._refuse_pending("unmap KV tensors")
            self._lend_locked([page for page in dict.fromkeys(pages) if self._is_mapped[page]])

    # ---- mapped, and not used: it may go to others meanwhile ----

    def rest(self, pages: Iterable[int]) -> None:
        """Mapped pages that nobody uses now, nor work on the GPU. need() before somebody does."""
        self._lend(pages)

    def expect(self, pages: Sequence[int]) -> None:
        """They are mapped, and rest: their memory comes by and by, if it is free."""
        for run in runs_of(pages):
            self._range.ahead(run.start, len(run))
        with self._lock:
            for page in pages:
                self._is_mapped[page] = 1

    def need(self, page: int) -> None:
        """It is there as if it had not rested, or an exception says why it cannot be."""
        if self._range.take(page, 1) == 0:
            try:
                self._range.commit(page, 1)
            except Exception as error:  # noqa: B902
                raise self._failed_map(error, [page]) from error

    def give_back(self) -> None:
        """What is lent goes to glaked now, so that programs without glake can have it. Blocks for the driver."""
        with contextlib.suppress(Error, OSError):
            self._range.give_back(0, self.layout.n_pages)

    # ---- in two phases, for several ranks ----

    def prepare_unmap(self, offsets: Sequence[int], transaction: str) -> None:
        """As unmap(), which the commit then does."""
        pages = self._pages(offsets)
        wait_for_gpu()
        with self._lock:
            if self._pending:
                if self._pending[0] == transaction:
                    return
                raise RuntimeError("state_inconsistency: another unmap transaction is pending: "
                                   f"{self._pending[0]}")
            outcome = self._outcomes.get(transaction)
            if outcome == "aborted":
                raise RuntimeError(f"unmap transaction was already aborted: {transaction}")
            if outcome is None:
                self._pending = (transaction,
                                 [page for page in dict.fromkeys(pages) if self._is_mapped[page]])

    def commit_unmap(self, transaction: str) -> None:
        """Its pages are lent."""
        with self._lock:
            if self._end_locked(transaction, "commit", "committed"):
                assert self._pending is not None
                self._lend_locked(self._pending[1])
                self._settle_locked(transaction, "committed")
            elif transaction not in self._outcomes:
                raise RuntimeError(f"unknown unmap transaction: {transaction}")

    def abort_unmap(self, transaction: str) -> None:
        """One that was never prepared cannot be any more."""
        with self._lock:
            self._end_locked(transaction, "abort", "aborted")
            self._settle_locked(transaction, "aborted")

    def _end_locked(self, transaction: str, verb: str, outcome: str) -> bool:
        """Whether it is the pending one."""
        if self._pending:
            if self._pending[0] == transaction:
                return True
            raise RuntimeError(f"state_inconsistency: {verb} does not match pending unmap transaction "
                               f"{self._pending[0]}")
        was = self._outcomes.get(transaction, outcome)
        if was != outcome:
            article = "an" if was == "aborted" else "a"
            raise RuntimeError(f"cannot {verb} {article} {was} unmap transaction: {transaction}")
        return False

    def _settle_locked(self, transaction: str, outcome: str) -> None:
        self._pending = None
        self._outcomes[transaction] = outcome
        while len(self._outcomes) > _MANY_OUTCOMES:
            self._outcomes.popitem(last=False)

    # ---- looking, and the end ----

    def stats(self) -> Dict[str, int]:
        """Of the elastic range."""
        return self._range.stats()

    def close(self) -> None:
        """No work on the GPU uses it."""
        self._range.close()


# ---- the process's pools ----

_lock = threading.Lock()
_pools: Dict[int, Pool] = {}
_device: Optional[int] = None
_page_bytes = PAGE_BYTES
_is_contiguous = True


def start(device: Any, page_bytes: int, is_contiguous: bool) -> None:
    """What the pools of this process will be like."""
    global _device, _page_bytes, _is_contiguous
    ordinal = parse_ordinal(device)
    page_bytes = page_bytes or PAGE_BYTES
    if page_bytes < 0 or page_bytes % PAGE_BYTES:
        raise ValueError(f"a page of {page_bytes} bytes is no multiple of 2 MiB")
    stop()
    with _lock:
        _device, _page_bytes, _is_contiguous = ordinal, page_bytes, is_contiguous


def stop() -> None:
    """All pools end. No work on the GPU uses them."""
    with _lock:
        pools = list(_pools.values())
        _pools.clear()
    for pool in pools:
        # Without its glaked it cannot end; the process's end is its own, then.
        with contextlib.suppress(Error, OSError):
            pool.close()


def device() -> int:
    """CUDA's number of the pools' device in this process."""
    return _device or 0


def wait_for_gpu() -> None:
    """What was submitted is done. Nothing if the program has not used the GPU by PyTorch."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize(device())


def find(group_id: int) -> Optional[Pool]:
    """None: its tensors are not created."""
    return _pools.get(group_id)


def create(size: int, n_layers: int, n_buffers: int, group_id: int, is_unified: bool) -> Pool:
    """The pool of a group; if there is one already, that, unless it is another kind of pool."""
    with _lock:
        if _device is None:
            raise RuntimeError("call init_kvcached() first")
        where = layout(_page_bytes, size, n_layers, n_buffers, _is_contiguous, is_unified)
        pool = _pools.get(group_id)
        if pool is None:
            pool = _pools[group_id] = Pool(where, _device, default_session())
        if pool.layout != where:
            raise RuntimeError(f"group {group_id} has KV tensors of another layout")
        return pool


def room(ordinal: int) -> Tuple[int, int]:
    """Bytes that the process may get on a device, and those of the device, within its quota or promise. What is lent counts,
    whoever lent it, as far as this session may see. All 0 without a glaked."""
    try:
        session = default_session()
        view = session.device_view(ordinal)
        index = session.device_index(ordinal)
        total = next(row["total_bytes"] for row in session.devices() if row["index"] == index)
        if view["promise_bytes"]:
            total = view["promise_bytes"]
            return min(view["left_bytes"] + view["warm_bytes"], total), total
        number, tenant = session.info()["session"], session.info()["tenant"]
        others = [row for row in sessions(session) if row["session"] != number and row["warm_bytes"] and
                  any(at["device"] == index for at in row["devices"])]
        free = next(row["free_bytes"] for row in status(session)["devices"] if row["index"] == index)
    except (Error, OSError, ValueError):
        return 0, 0
    warm = view["warm_bytes"] + sum(row["warm_bytes"] for row in others)
    usable = min(free or total, view["room_bytes"]) + view["idle_bytes"] + warm
    if view["quota_bytes"]:
        ours = view["warm_bytes"] + sum(row["warm_bytes"] for row in others if row["tenant"] == tenant)
        total = min(total, view["quota_bytes"])
        usable = min(usable, total - max(view["used_bytes"] - ours, 0))
    return max(min(usable, total), 0), total
