# SPDX-License-Identifier: Apache-2.0
"""kvcached's page allocator: which pages are whose, in the process that decides. Their memory is in this process, in a
pool of ours, or in workers, which a callback reaches.

A page is free, reserved (free, and mapped already), or in use. The lowest free page is given out first: what was lent
last is then taken back, and the highest, which goes to others first, is what was needed least.
"""
from __future__ import annotations

import heapq
import logging
import os
import threading
import weakref
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Set, Tuple

from . import _kvcached_pool as pools
from ._kvcached_errors import MapQuarantinedError, QuarantinedResizeError, StateConsistencyError
from ._kvcached_segment import Segment, default_name

_log = logging.getLogger("glake.kvcached")

#: How often a controller's limit is looked for, as in kvcached.
_POLL_SECONDS = 0.1
#: A thread that is asked to end may wait for glaked, or for workers.
_END_SECONDS = 60.0


class InternalPage:
    """The blocks of one page. A block that lies across two pages is of neither."""

    __slots__ = ("page_id", "page_size", "_free", "_n_blocks")

    def __init__(self, page_id: int, page_size: int) -> None:
        self.page_id = page_id
        self.page_size = page_size
        self._free: List[int] = []
        self._n_blocks = 0

    def init(self, block_mem_size: int) -> None:
        first, end = self.get_block_range(self.page_id, self.page_size, block_mem_size)
        self._free = list(range(first, end))
        self._n_blocks = end - first

    def alloc(self, num_blocks: int = 1) -> List[int]:
        if len(self._free) < num_blocks:
            raise RuntimeError("Not enough free blocks in page")
        blocks = self._free[:num_blocks]
        del self._free[:num_blocks]
        return blocks

    def free(self, block_id: int) -> None:
        self._free.append(block_id)

    def free_batch(self, block_ids: Sequence[int]) -> None:
        self._free.extend(block_ids)

    def empty(self) -> bool:
        return len(self._free) == self._n_blocks

    def full(self) -> bool:
        return not self._free

    def num_free_blocks(self) -> int:
        return len(self._free)

    def get_free_blocks(self) -> List[int]:
        return list(self._free)

    @staticmethod
    def get_block_range(page_id: int, page_size: int, block_mem_size: int) -> Tuple[int, int]:
        return -(-page_id * page_size // block_mem_size), (page_id + 1) * page_size // block_mem_size

    @staticmethod
    def get_num_blocks(page_size: int, block_mem_size: int) -> int:
        return page_size // block_mem_size


class _Threads:
    """What the threads of an allocator and it have in common. They do not hold it: it ends with its last user."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.is_running = False
        self.is_needed = False
        self.stop = threading.Event()
        self.refiller: Optional[threading.Thread] = None
        self.watcher: Optional[threading.Thread] = None

    def end(self) -> None:
        """They end soon."""
        with self.lock:
            self.is_running = False
            self.changed.notify_all()
        self.stop.set()


def _refill(threads: _Threads, find: "weakref.ref[PageAllocator]") -> None:
    while True:
        with threads.lock:
            while threads.is_running and not threads.is_needed:
                threads.changed.wait()
            if not threads.is_running:
                return
            threads.is_needed = False
        allocator = find()
        if allocator is None or not allocator._refill_reserve():
            return
        del allocator


def _watch(stop: threading.Event, find: "weakref.ref[PageAllocator]") -> None:
    while not stop.wait(_POLL_SECONDS):
        allocator = find()
        if allocator is None:
            return
        allocator._look_for_limit()
        del allocator


def _end(threads: _Threads, segment: Segment) -> None:
    threads.end()
    segment.release()


def _setting(name: str, default: int) -> int:
    try:
        return int(os.environ.get(name, default))
    except ValueError:
        return default


def _utilization() -> float:
    try:
        return float(os.environ.get("KVCACHED_GPU_UTILIZATION", 0.95))
    except ValueError:
        return 0.95


class PageAllocator:
    """kvcached's, call by call. Threads may share it."""

    def __init__(self, num_layers: int, mem_size_per_layer: int, page_size: int, world_size: int = 1,
                 pp_rank: int = 0, async_sched: bool = False, contiguous_layout: bool = True,
                 enable_page_prealloc: bool = True, num_kv_buffers: int = 2, group_id: int = 0,
                 ipc_name: str = "") -> None:
        self._page_bytes = page_size
        self._all_bytes = page_size * num_layers * num_kv_buffers  # of a page, in all layers
        self._n_parts = num_layers * num_kv_buffers
        self._offset_bytes = self._all_bytes if contiguous_layout else page_size
        self._world_size = world_size
        self._group_id = group_id
        self._is_async = async_sched
        self._refills = enable_page_prealloc
        n_pages = mem_size_per_layer // page_size
        self._n_total = n_pages
        self._n_free = n_pages  # reserved, and on their way between two states, too
        self._n_ever = n_pages  # ids that exist
        self._free = list(range(n_pages))  # a heap
        self._reserved: Deque[int] = deque()
        self._resting: Set[int] = set()  # of the reserved: lent
        self._taken_away: List[int] = []  # by a smaller limit
        self._quarantined: List[int] = []
        self._error = ""
        self._told = ""
        self._has_failed = False
        self._n_least = min(n_pages, _setting("KVCACHED_MIN_RESERVED_PAGES", 5))
        self._n_most = min(n_pages, _setting("KVCACHED_MAX_RESERVED_PAGES", 10))
        self._utilization = _utilization()
        self._threads = _Threads()
        self._lock = self._threads.lock
        self._changed = self._threads.changed
        # One change of what workers have mapped at a time. Never taken with _lock held.
        self._transaction = threading.Lock()
        self._control = threading.Lock()
        self._uses_workers = False
        self._map_workers: Optional[Callable[[int, List[int]], Any]] = None
        self._unmap_workers: Optional[Callable[[int, List[int]], Any]] = None
        self._limit = mem_size_per_layer  # as last read, of one buffer of one layer
        self._limit_wanted = -1
        self._segment = Segment(ipc_name or default_name(group_id), mem_size_per_layer * self._n_parts)
        weakref.finalize(self, _end, self._threads, self._segment)

    # ---- pages ----

    def alloc_page(self) -> InternalPage:
        """RuntimeError: there is none, or no memory for it, now."""
        with self._lock:
            page, is_reserved = self._take_locked()
        if is_reserved and page not in self._resting:
            return InternalPage(page, self._page_bytes)
        try:
            self._bring(page)
        except (MapQuarantinedError, StateConsistencyError) as error:
            with self._lock:
                self._quarantine_locked([page], error)
            raise
        except BaseException as error:
            with self._lock:
                heapq.heappush(self._free, page)
                self._n_free += 1
                self._changed.notify_all()
            if isinstance(error, Exception):
                raise RuntimeError(f"Failed to map page {page}: {error}") from error
            raise
        if not is_reserved:
            with self._lock:
                self._want_refill_locked()
                self._show_locked()
        return InternalPage(page, self._page_bytes)

    def _take_locked(self) -> Tuple[int, bool]:
        """A page that is nobody else's now, and whether it was reserved."""
        while True:
            self._refuse_failed_locked()
            if self._reserved:
                self._n_free -= 1
                page = self._reserved.popleft()
                if len(self._reserved) < self._n_least:
                    self._want_refill_locked()
                self._show_locked()
                return page, True
            if self._free:
                self._n_free -= 1
                return heapq.heappop(self._free), False
            if self._n_free <= 0:
                raise RuntimeError("No free pages left")
            # The rest is on its way: who has it puts it back, or reserves it.
            refiller = self._threads.refiller
            if not self._refills or refiller is None or not refiller.is_alive():
                raise RuntimeError("no free pages now: others are at work on them")
            self._changed.wait(_POLL_SECONDS)

    def _bring(self, page: int) -> None:
        """A page of ours has its memory."""
        pool = self._pool()
        if pool is not None and page in self._resting:
            self._resting.discard(page)
            pool.need(page)
        else:
            self._resting.discard(page)
            self._map([page])

    def free_page(self, page_id: int) -> None:
        self.free_pages([page_id])

    def free_pages(self, page_ids: Sequence[int]) -> None:
        """No work that is submitted later uses them. What is under way is waited for before they are lent, which
        those that stay reserved are not with ``async_sched``."""
        may_rest = not self._is_async and self._pool() is not None
        if may_rest:
            try:
                pools.wait_for_gpu()
            except Exception as error:
                raise self._failed_unmap(error) from error
        with self._lock:
            self._refuse_failed_locked()
            self._n_free += len(page_ids)
            n_reserved = max(min(self._n_most - len(self._reserved), len(page_ids)), 0)
            self._reserve_locked(page_ids[:n_reserved], may_rest)
            going = list(page_ids[n_reserved:])
            if not going:
                self._show_locked()
                self._changed.notify_all()
                return
        self._unmap(going)
        self._put_back(going)

    def _put_back(self, pages: List[int]) -> None:
        with self._lock:
            for page in pages:
                heapq.heappush(self._free, page)
            self._show_locked()
            self._changed.notify_all()

    def _reserve_locked(self, pages: Sequence[int], may_rest: bool) -> None:
        """``may_rest``: nothing on the GPU uses them. Then they are lent meanwhile."""
        self._reserved.extend(pages)
        pool = self._pool() if may_rest and pages else None
        if pool is not None:
            self._resting.update(pages)
            pool.rest(pages)

    def trim(self) -> None:
        """Reserved pages and what is lent go to others now, those without glake, too."""
        self._unreserve()
        pool = self._pool()
        if pool is not None:
            pool.give_back()

    def _unreserve(self) -> None:
        with self._lock:
            self._refuse_failed_locked()
            pages = list(self._reserved)
            self._reserved.clear()
            self._resting.difference_update(pages)
        if pages:
            self._unmap(pages)
        self._put_back(pages)

    def resize(self, new_mem_size: int) -> bool:
        """The limit of one buffer of one layer, in bytes. False: more is in use."""
        n_pages = new_mem_size // self._page_bytes
        if self._resize_free(n_pages):
            return True
        with self._lock:
            if n_pages < self._n_total - self._n_free or not self._reserved:
                return False
        self._unreserve()
        return self._resize_free(n_pages)

    def _resize_free(self, n_pages: int) -> bool:
        """With free pages alone."""
        with self._lock:
            self._refuse_failed_locked()
            n_more = n_pages - self._n_total
            if n_more == 0:
                return True
            if self._quarantined:
                raise QuarantinedResizeError("cannot resize a pool with quarantined pages")
            if n_pages < 0 or -n_more > len(self._free):
                return False
            if n_more > 0:
                self._add_locked(n_more)
            else:
                self._free.sort()  # a heap still
                self._taken_away.extend(self._free[n_more:])
                del self._free[n_more:]
            self._n_free += n_more
            self._n_total = n_pages
            self._show_locked()
            self._changed.notify_all()
        pool = self._pool()
        if n_more < 0 and pool is not None:
            pool.give_back()
        return True

    def _add_locked(self, n_pages: int) -> None:
        self._taken_away.sort(reverse=True)
        for _ in range(n_pages):
            if self._taken_away:
                heapq.heappush(self._free, self._taken_away.pop())
            else:
                heapq.heappush(self._free, self._n_ever)
                self._n_ever += 1

    def reset_free_page_order(self) -> None:
        """It is always the lowest page that is given out."""

    # ---- their memory ----

    def _workers(self, callback: Optional[Callable[[int, List[int]], Any]]) -> bool:
        return (self._world_size > 1 or self._uses_workers) and callback is not None

    def _pool(self) -> Optional[pools.Pool]:
        """None: the memory is in workers."""
        return None if self._workers(self._map_workers) else pools.find(self._group_id)

    def _offsets(self, pages: Sequence[int]) -> List[int]:
        return [page * self._offset_bytes for page in pages]

    def _change(self, workers: Optional[Callable[[int, List[int]], Any]],
                of_pool: Callable[[pools.Pool, List[int]], Any], pages: Sequence[int]) -> None:
        """In the workers, if they have the memory; else in this process."""
        offsets = self._offsets(pages)
        if workers is not None and self._workers(workers):
            with self._transaction:
                self._refuse_failed()
                workers(self._world_size, offsets)
            return
        pool = pools.find(self._group_id)
        if pool is None:
            raise RuntimeError("the KV tensors are not created")
        of_pool(pool, offsets)

    def _map(self, pages: Sequence[int]) -> None:
        try:
            self._change(self._map_workers, pools.Pool.map, pages)
        except StateConsistencyError as error:
            self._fail(error)
            raise

    def _unmap(self, pages: Sequence[int]) -> None:
        """Whoever frees cannot go on if it fails."""
        try:
            self._change(self._unmap_workers, pools.Pool.unmap, pages)
        except Exception as error:
            raise self._failed_unmap(error) from error

    def _failed_unmap(self, error: Exception) -> StateConsistencyError:
        failure = StateConsistencyError(f"KV unmap could not complete: {error}")
        self._fail(failure)
        return failure

    def _fail(self, error: Exception) -> None:
        with self._lock:
            self._error = str(error)
            self._has_failed = True
            self._changed.notify_all()

    def _refuse_failed_locked(self) -> None:
        if self._has_failed:
            raise StateConsistencyError(self._error)

    def _refuse_failed(self) -> None:
        with self._lock:
            self._refuse_failed_locked()

    def _quarantine_locked(self, pages: Sequence[int], error: Exception) -> None:
        self._quarantined.extend(pages)
        self._error = str(error)
        self._has_failed = self._has_failed or isinstance(error, StateConsistencyError)
        self._show_locked()
        self._changed.notify_all()

    # ---- threads: the reserve is filled, and a controller's limit is seen ----

    def start_prealloc_thread(self) -> None:
        if not self._refills:
            return
        threads, find = self._threads, weakref.ref(self)
        with self._control:
            if threads.refiller is None:
                threads.is_running = True
                threads.refiller = threading.Thread(target=_refill, args=(threads, find), daemon=True,
                                                    name="glake-kv-refill")
                threads.refiller.start()
                with self._lock:
                    self._want_refill_locked()
            if threads.watcher is None:
                threads.stop.clear()
                threads.watcher = threading.Thread(target=_watch, args=(threads.stop, find), daemon=True,
                                                   name="glake-kv-limit")
                threads.watcher.start()

    def stop_prealloc_thread(self) -> None:
        """RuntimeError: they are still at work. They end with it; call again."""
        threads = self._threads
        with self._control:
            threads.end()
            for name in ("refiller", "watcher"):
                thread = getattr(threads, name)
                if thread is not None and thread is not threading.current_thread():
                    thread.join(_END_SECONDS)
                    if thread.is_alive():
                        raise RuntimeError("the threads of the page allocator are still at work")
                setattr(threads, name, None)

    def _want_refill_locked(self) -> None:
        if self._refills:
            self._threads.is_needed = True
            self._changed.notify_all()

    def _refill_reserve(self) -> bool:
        """False: there is nothing to be done any more."""
        with self._lock:
            if self._has_failed:
                return False
            n_wanted = min(self._n_least - len(self._reserved), len(self._free))
        if n_wanted > 0:
            n_wanted = min(n_wanted, self.get_avail_physical_pages())
        with self._lock:
            pages = [heapq.heappop(self._free) for _ in range(min(n_wanted, len(self._free)))]
        if not pages:
            return True
        pool = self._pool()
        try:
            if pool is not None:
                pool.expect(pages)
            else:
                self._map(pages)
        except (MapQuarantinedError, StateConsistencyError) as error:
            with self._lock:
                self._n_free -= len(pages)
                self._quarantine_locked(pages, error)
            return not self._has_failed
        except Exception as error:  # noqa: B902 # who allocates has to do without
            self._put_back(pages)
            self._tell(f"no pages in reserve: {error}")
            return True
        with self._lock:
            self._reserve_locked(pages, pool is not None)
            self._show_locked()
            self._changed.notify_all()
        return True

    def _tell(self, text: str) -> None:
        """Not again what was told last."""
        if text != self._told:
            self._told = text
            _log.warning("%s", text)

    def _look_for_limit(self) -> None:
        self._segment.catch_up()
        limit = self.check_and_get_resize_target(self._limit)
        if limit >= 0:
            self._limit = self._limit_wanted = limit

    def get_resize_target(self) -> int:
        """What a controller last wanted the limit to be; -1: none did."""
        return self._limit_wanted

    def check_and_get_resize_target(self, current_mem_size: int) -> int:
        """The controller's limit, or -1 if it is that."""
        total = self._segment.total_bytes()
        limit = current_mem_size if total is None else total // self._n_parts
        return -1 if limit == current_mem_size else limit

    # ---- workers ----

    def set_broadcast_map_callback(self, callback: Callable[[int, List[int]], Any]) -> None:
        with self._lock:
            self._map_workers = callback

    def set_broadcast_unmap_callback(self, callback: Callable[[int, List[int]], Any]) -> None:
        with self._lock:
            self._unmap_workers = callback

    def set_use_worker_ipc(self, use_worker_ipc: bool) -> None:
        self._uses_workers = use_worker_ipc

    # ---- looking ----

    def _show_locked(self) -> None:
        self._segment.show((self._n_total - self._n_free) * self._all_bytes,
                           len(self._reserved) * self._all_bytes)

    def get_num_free_pages(self) -> int:
        if self._has_failed:
            self._refuse_failed()
        return self._n_free

    def get_num_inuse_pages(self) -> int:
        return self.get_page_state()["inuse_pages"]

    def get_num_total_pages(self) -> int:
        return self._n_total

    def get_num_reserved_pages(self) -> int:
        return len(self._reserved)

    def get_page_state(self) -> Dict[str, int]:
        with self._lock:
            return {"total_pages": self._n_total, "free_pages": self._n_free,
                    "inuse_pages": self._n_total - self._n_free, "reserved_pages": len(self._reserved)}

    def get_transaction_state(self) -> Dict[str, Any]:
        with self._lock:
            n = len(self._quarantined)
            return {"state": "FAILED" if self._has_failed else "DEGRADED" if n else "HEALTHY",
                    "quarantined_page_ids": list(self._quarantined), "quarantined_pages": n,
                    "retained_bytes_upper_bound": n * self._all_bytes, "last_error": self._error}

    def get_avail_physical_pages(self) -> int:
        """The number of pages that may get memory, as far as glaked knows now. One may be refused all the same."""
        usable, total = pools.room(pools.device())
        usable -= int(total * (1.0 - self._utilization))
        # Callers add what is reserved: what of it is lent is in it already.
        return max(usable // self._all_bytes - len(self._resting), 0)

    def get_page_id(self, block_id: int, block_mem_size: int) -> int:
        return block_id * block_mem_size // self._page_bytes

    def group_indices_by_page(self, indices: Sequence[int], block_mem_size: int) -> Dict[int, List[int]]:
        groups: Dict[int, List[int]] = {}
        page_bytes = self._page_bytes
        for index in indices:
            page = index * block_mem_size // page_bytes
            if page in groups:
                groups[page].append(index)
            else:
                groups[page] = [index]
        return groups

    def release_shared_segment(self) -> bool:
        """Its users have stopped. False: call again."""
        return self._segment.release()
