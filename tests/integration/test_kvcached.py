# SPDX-License-Identifier: Apache-2.0
"""kvcached's interface over elastic ranges, with the real glaked on the simulated GPU: its pages, its allocator, its limits.

kvcached's own tests run here, too, where PyTorch is installed and tests/engines/fetch has brought them.
"""
import errno
import fcntl
import gc
import importlib.util
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import textwrap
import threading
import types
import unittest
import unittest.mock

from tests.integration.driver_memory import Driver
from tests.integration.engine_sources import Source
from tests.integration.with_glaked import BUILD, PATIENCE_S, WithSessions, started, take_all, tell

import glake
from glake import _kvcached_pool as pools
from glake import kvcached
from glake.elastic import HELD, HOLE, LENT, LOST

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
PAGE = 2 << 20
SOURCE = Source("kvcached", "0.1.6")

# The simulator looks there for faults, from its first call on.
FAULTS = tempfile.NamedTemporaryFile("w", suffix=".faults")
os.environ["CUDASIM_FAULT_FILE"] = FAULTS.name


class Case(WithSessions):
    DEVICE = "1x1GiB"
    LAYERS = 4

    def setUp(self):
        os.environ["CUDASIM_DEVICES"] = self.DEVICE
        super().setUp()

    def forget(self):
        pools.stop()
        pools._device = None
        super().forget()

    def pool(self, n_pages=8, contiguous=True, layers=LAYERS, buffers=2, unified=False, group=0):
        """So many pages of 16 MiB in all layers."""
        if pools._device is None:
            kvcached.init_kvcached("cuda:0", PAGE, contiguous)
        return pools.create(n_pages * PAGE * buffers, layers, buffers, group, unified)

    def allocator(self, n_pages=8, prealloc=False, contiguous=True, **more):
        return kvcached.PageAllocator(self.LAYERS, n_pages * PAGE, PAGE, contiguous_layout=contiguous,
                                      enable_page_prealloc=prealloc, ipc_name=os.path.join(self.folder, "segment"),
                                      **more)

    def states(self, pool):
        return pool._range.states()

    def offset(self, page, contiguous=True):
        return page * (PAGE * self.LAYERS * 2 if contiguous else PAGE)

    def empty(self, allocator, pool):
        """What it had expected last may still come."""
        def is_empty():
            allocator.trim()
            return self.states(pool) == [HELD] + [HOLE] * (pool.layout.n_pages - 1)
        self.until(is_empty)


class Layouts(Case):
    def test_where_pages_are(self):
        def of(size, contiguous, buffers=2, unified=False):
            return tuple(pools.layout(PAGE, size, 4, buffers, contiguous, unified))
        size = 8 * PAGE
        self.assertEqual(of(size, True), (32 * PAGE, 1, 8 * PAGE, 4, 32 * PAGE, 1))
        self.assertEqual(of(size, True, buffers=1), (32 * PAGE, 1, 4 * PAGE, 8, 32 * PAGE, 1))
        self.assertEqual(of(size, False), (8 * PAGE, 4, PAGE, 4, 4 * PAGE, 8))
        self.assertEqual(of(size, False, unified=True), (8 * PAGE, 4, PAGE, 8, 8 * PAGE, 4))
        self.assertEqual(of(size, False, buffers=1), (8 * PAGE, 4, PAGE, 8, 8 * PAGE, 4))
        # A size that is no whole page is rounded up; a page that the tensor does not have whole is none.
        self.assertEqual(of(size - 1, True), of(size, True))
        self.assertEqual(pools.layout(PAGE, 3 * PAGE, 1, 2, True, False).n_pages, 2)
        with self.assertRaises(RuntimeError):
            of(3 * PAGE, False)

    def test_k_and_v_of_each_layer_have_their_own_memory(self):
        driver = Driver()
        pool = self.pool(contiguous=False)
        pool.map([3 * PAGE])
        places = [pool.base + layer * pool.layout.tensor_bytes + half * pool.layout.tensor_bytes // 2 + 3 * PAGE
                  for layer in range(self.LAYERS) for half in (0, 1)]
        for i, place in enumerate(places):
            self.assertEqual(driver.read(place, 4096), bytes(4096))
            driver.write(place, bytes([i + 1]) * 4096)
        self.assertEqual([driver.read(place, 4096) for place in places],
                         [bytes([i + 1]) * 4096 for i in range(len(places))])

    def test_a_page_that_the_tensor_does_not_have_whole_is_refused(self):
        kvcached.init_kvcached("cuda:0")
        pool = pools.create(3 * PAGE, 1, 2, 0, False)
        pool.map([0])
        with self.assertRaisesRegex(RuntimeError, "outside the reserved"):
            pool.map([2 * PAGE])


class Pages(Case):
    def test_what_is_unmapped_is_lent_and_taken_back(self):
        driver = Driver()
        for contiguous in (True, False):
            with self.subTest(contiguous=contiguous):
                pool = self.pool(contiguous=contiguous)
                offsets = [self.offset(page, contiguous) for page in (2, 3, 5)]
                self.assertEqual(kvcached.map_to_kv_tensors_with_result(offsets), (True, offsets))
                self.assertEqual(kvcached.map_to_kv_tensors_with_result(offsets[:2]), (True, []))
                place = pool.base + offsets[0]
                driver.write(place, b"x" * 100)
                before = pool.stats()
                self.assertTrue(kvcached.unmap_from_kv_tensors(offsets))
                self.assertEqual(self.states(pool), [HELD, HOLE, LENT, LENT, HOLE, LENT, HOLE, HOLE])
                self.assertTrue(kvcached.map_to_kv_tensors(offsets))
                after = pool.stats()
                self.assertEqual(after["n_commits"], before["n_commits"])
                self.assertEqual(after["n_takes"], 3)
                self.assertEqual(driver.read(place, 100), b"x" * 100)
                self.forget()

    def test_it_goes_to_who_needs_it_though_its_program_is_idle(self):
        driver = Driver()
        pool = self.pool(n_pages=50)
        offsets = [self.offset(page) for page in range(1, 50)]
        pool.map(offsets)
        driver.write(pool.base + offsets[0], b"x" * 100)
        pool.unmap(offsets)
        with glake.connect() as other:
            taken = take_all(other, 16 << 20)
            self.assertGreater(len(taken), 50)
            self.assertEqual(self.states(pool), [HELD] + [HOLE] * 49)
            # Now it is this one that gets nothing, and nothing is changed by it.
            with self.assertRaisesRegex(RuntimeError, "physical page map failed"):
                pool.map(offsets[:2])
            self.assertEqual(self.states(pool), [HELD] + [HOLE] * 49)
        self.assertEqual(pool.map(offsets[:2]), offsets[:2])
        self.assertEqual(driver.read(pool.base + offsets[0], 100), bytes(100))

    def test_all_or_none(self):
        pool = self.pool()
        pool.map([self.offset(1)])
        for wrong in (self.offset(8), -self.offset(1), self.offset(1) + 4096):
            with self.assertRaisesRegex(RuntimeError, "outside the reserved"):
                pool.map([self.offset(2), wrong, self.offset(3)])
            with self.assertRaisesRegex(RuntimeError, "outside the reserved"):
                pool.unmap([self.offset(1), wrong])
        self.assertEqual(self.states(pool), [HELD, HELD] + [HOLE] * 6)
        self.assertEqual(pool.map([self.offset(1), self.offset(2)]), [self.offset(2)])

    def test_a_hole_reads_zero(self):
        driver = Driver()
        for contiguous in (True, False):
            pool = self.pool(contiguous=contiguous)
            self.assertEqual(driver.read(pool.base + pool.layout.page_bytes, 4096), bytes(4096))
            self.forget()
        os.environ["GLAKE_KVCACHED_GUARD"] = "0"
        self.addCleanup(os.environ.pop, "GLAKE_KVCACHED_GUARD")
        pool = self.pool()
        with self.assertRaises(RuntimeError):
            driver.read(pool.base + pool.layout.page_bytes, 4096)

    def test_page_0_has_its_memory_always(self):
        driver = Driver()
        pool = self.pool()
        self.assertEqual(pool.map([0]), [0])
        driver.write(pool.base, b"x" * 100)
        pool.unmap([0])
        with glake.connect() as other:
            take_all(other, 16 << 20)
            self.assertEqual(driver.read(pool.base, 100), b"x" * 100)

    def test_groups_are_apart(self):
        first, second = self.pool(), self.pool(n_pages=4, buffers=1, group=7)
        kvcached.map_to_kv_tensors([self.offset(1)], 0)
        self.assertEqual(self.states(second), [HELD] + [HOLE] * 3)
        self.assertEqual((kvcached.kv_tensors_created(7), kvcached.kv_tensors_created(3)), (True, False))
        self.assertEqual(kvcached.map_to_kv_tensors_with_result([0], 3), (False, []))
        self.assertFalse(kvcached.unmap_from_kv_tensors([0], 3))
        self.assertIs(self.pool(), first)
        with self.assertRaisesRegex(RuntimeError, "another layout"):
            self.pool(n_pages=4)

    def test_nothing_stays_behind_the_end(self):
        self.pool().map([self.offset(1)])
        session = glake.default_session()
        pools.stop()
        self.assertEqual(session.usage()["reserved_bytes"], 0)
        self.assertFalse(kvcached.kv_tensors_created())

    def test_what_init_refuses(self):
        with self.assertRaises(ValueError):
            kvcached.init_kvcached("cuda:0", PAGE + 4096)
        with self.assertRaises(ValueError):
            kvcached.init_kvcached("cpu")
        with self.assertRaisesRegex(RuntimeError, "init_kvcached"):
            pools.create(PAGE, 1, 1, 0, False)


class Phases(Case):
    def test_a_prepared_unmap_is_committed_or_aborted(self):
        pool = self.pool()
        page = self.offset(1)
        pool.map([page])
        for call in (lambda: kvcached.prepare_unmap_from_kv_tensors([page], ""),
                     lambda: kvcached.commit_unmap_from_kv_tensors(""),
                     lambda: kvcached.abort_unmap_from_kv_tensors("")):
            with self.assertRaisesRegex(ValueError, "must not be empty"):
                call()
        for _ in range(2):
            self.assertTrue(kvcached.prepare_unmap_from_kv_tensors([page], "a"))
        self.assertEqual(self.states(pool)[1], HELD)
        for call in (lambda: pool.map([page]), lambda: pool.unmap([page]),
                     lambda: kvcached.prepare_unmap_from_kv_tensors([page], "b"),
                     lambda: kvcached.commit_unmap_from_kv_tensors("b"),
                     lambda: kvcached.abort_unmap_from_kv_tensors("b")):
            with self.assertRaisesRegex(RuntimeError, "pending"):
                call()
        for _ in range(2):
            self.assertTrue(kvcached.abort_unmap_from_kv_tensors("a"))
        self.assertEqual(pool.map([page]), [])
        with self.assertRaisesRegex(RuntimeError, "already aborted"):
            kvcached.prepare_unmap_from_kv_tensors([page], "a")
        with self.assertRaisesRegex(RuntimeError, "cannot commit an aborted"):
            kvcached.commit_unmap_from_kv_tensors("a")
        self.assertTrue(kvcached.prepare_unmap_from_kv_tensors([page], "c"))
        for _ in range(2):
            self.assertTrue(kvcached.commit_unmap_from_kv_tensors("c"))
        self.assertEqual(self.states(pool)[1], LENT)
        self.assertTrue(kvcached.prepare_unmap_from_kv_tensors([page], "c"))
        with self.assertRaisesRegex(RuntimeError, "cannot abort a committed"):
            kvcached.abort_unmap_from_kv_tensors("c")
        with self.assertRaisesRegex(RuntimeError, "unknown"):
            kvcached.commit_unmap_from_kv_tensors("d")
        # A prepare that comes behind its abort must not open it.
        self.assertTrue(kvcached.abort_unmap_from_kv_tensors("late"))
        with self.assertRaisesRegex(RuntimeError, "already aborted"):
            kvcached.prepare_unmap_from_kv_tensors([page], "late")
        self.assertEqual(pool.map([page]), [page])

    def test_outcomes_are_not_remembered_for_ever(self):
        pool = self.pool()
        for i in range(1000):
            pool.abort_unmap(str(i))
        self.assertLess(len(pool._outcomes), 100)


class Allocator(Case):
    def test_the_lowest_page_first(self):
        self.pool()
        allocator = self.allocator()
        pages = [allocator.alloc_page().page_id for _ in range(8)]
        self.assertEqual(pages, list(range(8)))
        with self.assertRaisesRegex(RuntimeError, "No free pages"):
            allocator.alloc_page()
        os.environ["KVCACHED_MAX_RESERVED_PAGES"] = "0"
        self.addCleanup(os.environ.pop, "KVCACHED_MAX_RESERVED_PAGES")
        allocator = self.allocator()
        pages = [allocator.alloc_page().page_id for _ in range(8)]
        allocator.free_pages([6, 1, 4])
        self.assertEqual([allocator.alloc_page().page_id for _ in range(3)], [1, 4, 6])

    def test_what_is_reserved_is_lent_until_it_is_used(self):
        pool = self.pool(n_pages=50)
        allocator = self.allocator(n_pages=50, prealloc=True)
        allocator.start_prealloc_thread()
        self.until(lambda: self.states(pool)[:6] == [HELD, LENT, LENT, LENT, LENT, HOLE])
        self.until(lambda: allocator.get_num_reserved_pages() == 5)
        with glake.connect() as other:
            take_all(other, 16 << 20)
            self.assertEqual(self.states(pool)[:6], [HELD] + [HOLE] * 5)
            self.assertEqual(allocator.get_num_reserved_pages(), 5)
            self.assertEqual(allocator.alloc_page().page_id, 0)
            # As if it had never been reserved: a miss, and the page is free.
            with self.assertRaisesRegex(RuntimeError, "Failed to map page 1"):
                allocator.alloc_page()
            self.assertEqual(allocator.get_page_state()["inuse_pages"], 1)
        self.until(lambda: self.states(pool)[1] in (LENT, HELD) or allocator.alloc_page().page_id)
        page = allocator.alloc_page()
        self.assertEqual(self.states(pool)[page.page_id], HELD)
        allocator.stop_prealloc_thread()

    def test_with_async_scheduling_what_is_reserved_stays(self):
        pool = self.pool()
        allocator = self.allocator(async_sched=True)
        page = allocator.alloc_page().page_id
        page = allocator.alloc_page().page_id
        allocator.free_page(page)
        self.assertEqual((self.states(pool)[page], allocator.get_num_reserved_pages()), (HELD, 1))
        allocator.trim()
        self.assertEqual((self.states(pool)[page], allocator.get_num_reserved_pages()), (HOLE, 0))

    def test_a_miss_by_quota(self):
        self.pool()
        allocator = self.allocator()
        first = allocator.alloc_page()
        second = allocator.alloc_page()
        tenant = glake.default_session().info()["tenant"]
        glake.set_quota(tenant, 0, 64 << 20)  # three pages, and the guard
        self.addCleanup(glake.set_quota, tenant, 0, 0)
        self.assertEqual(allocator.get_avail_physical_pages(), 0)
        third = allocator.alloc_page()
        with self.assertRaisesRegex(RuntimeError, "Failed to map page 3"):
            allocator.alloc_page()
        self.assertEqual(allocator.get_page_state(),
                         {"total_pages": 8, "free_pages": 5, "inuse_pages": 3, "reserved_pages": 0})
        allocator.free_pages([second.page_id, third.page_id])
        self.assertEqual(allocator.alloc_page().page_id, second.page_id)
        self.assertEqual(first.page_id, 0)

    def test_what_is_to_be_had(self):
        pool = self.pool(n_pages=50)
        allocator = self.allocator(n_pages=50)
        self.empty(allocator, pool)
        # 1 GiB less a context and what kvcached leaves. glaked asks the driver now and then: what is just gone may be missing still.
        self.until(lambda: allocator.get_avail_physical_pages() > 56)
        whole = allocator.get_avail_physical_pages()
        offsets = [self.offset(page) for page in range(1, 41)]
        pool.map(offsets)
        self.assertAlmostEqual(allocator.get_avail_physical_pages(), whole - 40, delta=1)
        pool.unmap(offsets)
        self.assertAlmostEqual(allocator.get_avail_physical_pages(), whole, delta=1)
        # What a neighbour has lent is to be had as well.
        neighbour = started(self, [sys.executable, "-c", textwrap.dedent("""
            import glake, sys
            elastic = glake.Elastic(16 << 20, steps=40)
            elastic.commit(0, 20)
            print(flush=True); sys.stdin.readline()
            elastic.lend(0, 20)
            glake.default_session().ping()
            print(flush=True); sys.stdin.readline()
            """)])
        neighbour.stdout.readline()
        self.assertAlmostEqual(allocator.get_avail_physical_pages(), whole - 20, delta=1)
        tell(neighbour, "")
        self.until(lambda: abs(allocator.get_avail_physical_pages() - whole) <= 1)

    def test_what_is_to_be_lent_waits_for_the_gpu(self):
        pool, seen = self.pool(), []

        def synchronize(_device):
            seen.append(self.states(pool)[1])
            if len(seen) == 4:
                raise ValueError("the context is lost")

        torch = types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=lambda: True, synchronize=synchronize))
        allocator = self.allocator()
        self.assertEqual([allocator.alloc_page().page_id for _ in range(2)], [0, 1])
        with unittest.mock.patch.dict(sys.modules, torch=torch):
            allocator.free_page(1)
            self.assertEqual((seen, self.states(pool)[1]), ([HELD], LENT))
            pool.map([self.offset(1)])
            pool.unmap([self.offset(1)])
            pool.map([self.offset(1)])
            pool.prepare_unmap([self.offset(1)], "a")
            self.assertEqual(seen, [HELD] * 3)
            pool.abort_unmap("a")
            with self.assertRaisesRegex(kvcached.StateConsistencyError, "the context is lost"):
                allocator.free_page(0)
            self.assertEqual(self.states(pool)[:2], [HELD, HELD])
        with self.assertRaises(kvcached.StateConsistencyError):
            allocator.alloc_page()

    def test_no_id_twice_after_another_size(self):
        self.pool(n_pages=20)
        allocator = self.allocator(n_pages=8)
        self.assertTrue(allocator.resize(5 * PAGE))
        self.assertTrue(allocator.resize(12 * PAGE))
        pages = [allocator.alloc_page().page_id for _ in range(12)]
        self.assertEqual(sorted(pages), list(range(12)))
        self.assertFalse(allocator.resize(11 * PAGE))
        allocator.free_pages(pages[:3])
        self.assertTrue(allocator.resize(9 * PAGE))
        self.assertEqual(allocator.get_page_state(),
                         {"total_pages": 9, "free_pages": 0, "inuse_pages": 9, "reserved_pages": 0})
        self.assertFalse(allocator.resize(-PAGE))

    def test_a_smaller_limit_gives_memory_back(self):
        pool = self.pool()
        allocator = self.allocator()
        for page in [allocator.alloc_page().page_id for _ in range(8)]:
            allocator.free_page(page)
        self.assertTrue(allocator.resize(4 * PAGE))
        self.assertEqual(self.states(pool), [HELD] + [HOLE] * 7)

    def test_a_page_of_no_use_is_left_out(self):
        pool = self.pool()
        allocator = self.allocator()
        for _ in range(4):
            allocator.alloc_page()
        allocator.free_page(2)
        allocator._unreserve()
        # The driver has unmapped a page, and maps neither the guard nor the page again.
        self.fail_maps(True)
        pool.give_back()
        self.fail_maps(False)
        self.assertEqual(self.states(pool)[2], LOST)
        with self.assertRaises(kvcached.MapQuarantinedError):
            allocator.alloc_page()
        state = allocator.get_transaction_state()
        self.assertEqual((state["state"], state["quarantined_page_ids"], state["quarantined_pages"]), ("DEGRADED", [2], 1))
        self.assertEqual(state["retained_bytes_upper_bound"], PAGE * self.LAYERS * 2)
        with self.assertRaises(kvcached.QuarantinedResizeError):
            allocator.resize(3 * PAGE)
        self.assertTrue(allocator.resize(8 * PAGE))
        self.assertEqual([allocator.alloc_page().page_id for _ in range(4)], [4, 5, 6, 7])
        self.assertEqual(allocator.get_num_free_pages(), 0)

    def fail_maps(self, is_wanted):
        FAULTS.seek(0)
        FAULTS.truncate()
        FAULTS.write("cuMemMap:*:fail=999\n" if is_wanted else "")
        FAULTS.flush()

    def test_without_a_glaked_there_is_a_miss(self):
        pool = self.pool()
        allocator = self.allocator()
        allocator.alloc_page()
        second = allocator.alloc_page()
        pool.unmap([self.offset(second.page_id)])
        self.stop_daemon(self.daemon)
        self.assertEqual(allocator.get_avail_physical_pages(), 0)
        # What is lent is still there.
        self.assertEqual(pool.map([self.offset(second.page_id)]), [self.offset(second.page_id)])
        with self.assertRaisesRegex(RuntimeError, "Failed to map page"):
            allocator.alloc_page()
        self.assertEqual(allocator.get_num_inuse_pages(), 2)
        allocator.free_page(second.page_id)
        self.assertEqual(allocator.alloc_page().page_id, second.page_id)

    def test_two_engines_in_turn(self):
        """Each needs most of the GPU, then nothing, and decides nothing meanwhile. By its clock glaked is given back all in
        time, however busy the machine is."""
        self.stop_daemon(self.daemon)
        self.start_daemon(LD_PRELOAD=os.path.join(BUILD, "clocksim.so"), CLOCKSIM_SLOWNESS="30")
        program = textwrap.dedent("""
            import sys
            from glake import _kvcached_pool as pools, kvcached
            kvcached.init_kvcached("cuda:0")
            pools.create(50 * (2 << 20) * 2, 4, 2, 0, False)
            allocator = kvcached.PageAllocator(4, 50 * (2 << 20), 2 << 20, ipc_name=sys.argv[1])
            allocator.start_prealloc_thread()
            for line in sys.stdin:
                pages = [allocator.alloc_page().page_id for _ in range(int(line))]
                allocator.free_pages(pages)
                print(len(set(pages)), flush=True)
            """)
        engines = [started(self, [sys.executable, "-c", program, self.path(str(i))]) for i in (0, 1)]
        for turn in range(20):
            self.assertEqual(tell(engines[turn % 2], "44"), "44\n")

    def test_threads_and_a_neighbour(self):
        pool = self.pool(n_pages=40)
        allocator = self.allocator(n_pages=40, prealloc=True)
        allocator.start_prealloc_thread()
        stop, failures, owners = threading.Event(), [], [None] * 40

        def work(number):
            pick = random.Random(number)
            mine = []
            try:
                while not stop.is_set():
                    if mine and pick.random() < 0.5:
                        page = mine.pop(pick.randrange(len(mine)))
                        self.assertEqual(owners[page], number)
                        owners[page] = None
                        allocator.free_page(page)
                    else:
                        try:
                            page = allocator.alloc_page().page_id
                        except RuntimeError:
                            continue
                        self.assertIsNone(owners[page])
                        owners[page] = number
                        self.assertEqual(self.states(pool)[page], HELD)
                        mine.append(page)
                allocator.free_pages(mine)
            except BaseException as error:  # noqa: B902
                failures.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        with glake.connect() as other:
            for _ in range(5):
                for ptr in take_all(other, 16 << 20):
                    other.free(ptr)
                glake._lib.library().glake_trim(other.handle, 0, 0)
        stop.set()
        for thread in threads:
            thread.join(60)
            self.assertFalse(thread.is_alive())
        self.assertEqual(failures, [])
        allocator.stop_prealloc_thread()
        self.assertEqual(allocator.get_num_free_pages(), 40)
        self.empty(allocator, pool)

    def test_it_ends_with_its_threads(self):
        self.pool()
        allocator = self.allocator(prealloc=True)
        allocator.start_prealloc_thread()
        threads = allocator._threads
        del allocator
        gc.collect()
        for thread in (threads.refiller, threads.watcher):
            thread.join(60)
            self.assertFalse(thread.is_alive())
        self.assertFalse(os.path.exists(os.path.join(self.folder, "segment")))


class Workers(Case):
    """The memory is in other processes, behind callbacks."""

    def allocator(self, *arguments, **more):
        allocator = super().allocator(*arguments, **more)
        self.calls = []
        allocator.set_use_worker_ipc(True)
        allocator.set_broadcast_map_callback(lambda n, offsets: self.calls.append(("map", n, offsets)))
        allocator.set_broadcast_unmap_callback(lambda n, offsets: self.calls.append(("unmap", n, offsets)))
        return allocator

    def test_they_are_told(self):
        for contiguous in (True, False):
            allocator = self.allocator(contiguous=contiguous)
            pages = [allocator.alloc_page().page_id for _ in range(8)]
            self.assertEqual(self.calls, [("map", 1, [self.offset(page, contiguous)]) for page in pages])
            self.calls.clear()
            allocator.trim()
            allocator.free_pages(pages)
            self.assertEqual(self.calls, [])
            allocator.trim()
            self.assertEqual(self.calls, [("unmap", 1, [self.offset(page, contiguous) for page in pages])])

    def test_what_they_refuse(self):
        allocator = self.allocator()

        def refuse(error):
            def call(_n, _offsets):
                raise error
            return call

        allocator.set_broadcast_map_callback(refuse(OSError(errno.EIO, "a socket")))
        with self.assertRaisesRegex(RuntimeError, "Failed to map page 0.*a socket"):
            allocator.alloc_page()
        self.assertEqual(allocator.get_num_free_pages(), 8)
        allocator.set_broadcast_map_callback(refuse(kvcached.MapQuarantinedError("half")))
        with self.assertRaises(kvcached.MapQuarantinedError):
            allocator.alloc_page()
        self.assertEqual(allocator.get_num_free_pages(), 7)
        allocator.set_broadcast_map_callback(refuse(kvcached.StateConsistencyError("lost")))
        with self.assertRaises(kvcached.StateConsistencyError):
            allocator.alloc_page()
        for call in (allocator.alloc_page, allocator.get_num_free_pages, allocator.trim, lambda: allocator.free_page(0),
                     lambda: allocator.resize(PAGE)):
            with self.assertRaisesRegex(kvcached.StateConsistencyError, "lost"):
                call()
        self.assertEqual(allocator.get_transaction_state()["state"], "FAILED")

    def test_an_unmap_that_fails_stops_the_pool(self):
        allocator = self.allocator()
        page = allocator.alloc_page().page_id
        allocator.free_page(page)
        allocator.set_broadcast_unmap_callback(lambda n, offsets: 1 / 0)
        with self.assertRaisesRegex(kvcached.StateConsistencyError, "could not complete"):
            allocator.trim()
        with self.assertRaises(kvcached.StateConsistencyError):
            allocator.alloc_page()

    def test_one_change_at_a_time(self):
        allocator = self.allocator()
        first = allocator.alloc_page().page_id
        allocator.free_page(first)
        entered, release, unmapped = threading.Event(), threading.Event(), threading.Event()

        def slow(_n, _offsets):
            entered.set()
            self.assertTrue(release.wait(PATIENCE_S))

        allocator.set_broadcast_map_callback(slow)
        allocator.set_broadcast_unmap_callback(lambda n, offsets: unmapped.set())
        self.assertEqual(allocator.alloc_page().page_id, first)
        mapping = threading.Thread(target=allocator.alloc_page)
        mapping.start()
        self.assertTrue(entered.wait(PATIENCE_S))
        allocator.free_page(first)
        trimming = threading.Thread(target=allocator.trim)
        trimming.start()
        self.assertFalse(unmapped.wait(0.2))
        release.set()
        mapping.join(60)
        trimming.join(60)
        self.assertTrue(unmapped.is_set())


class Limits(Case):
    def setUp(self):
        super().setUp()
        self.pool()
        self.segment = self.path("segment")

    def numbers(self):
        with open(self.segment, "rb") as file:
            return struct.unpack("=3q", file.read())

    def limit(self, n_pages):
        with open(self.segment, "r+b") as file:
            file.write(struct.pack("=q", n_pages * PAGE * self.LAYERS * 2))

    def test_what_is_shown(self):
        all_bytes = PAGE * self.LAYERS * 2
        allocator = self.allocator()
        self.assertEqual(self.numbers(), (8 * all_bytes, 0, 0))
        pages = [allocator.alloc_page().page_id for _ in range(3)]
        self.assertEqual(self.numbers(), (8 * all_bytes, 3 * all_bytes, 0))
        allocator.free_page(pages[2])
        self.assertEqual(self.numbers(), (8 * all_bytes, 2 * all_bytes, all_bytes))
        allocator.trim()
        self.assertEqual(self.numbers(), (8 * all_bytes, 2 * all_bytes, 0))

    def test_a_controllers_limit_is_seen(self):
        allocator = self.allocator(prealloc=True)
        self.assertEqual((allocator.get_resize_target(), allocator.check_and_get_resize_target(8 * PAGE)), (-1, -1))
        allocator.start_prealloc_thread()
        for n_pages in (3, 8):
            self.limit(n_pages)
            self.until(lambda: allocator.get_resize_target() == n_pages * PAGE)
            self.assertEqual(allocator.check_and_get_resize_target(5 * PAGE), n_pages * PAGE)
            self.assertTrue(allocator.resize(n_pages * PAGE))
        allocator.stop_prealloc_thread()

    def test_who_keeps_the_lock_holds_nobody_up(self):
        allocator = self.allocator(prealloc=True)
        with open(self.segment, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            allocator.alloc_page()
            self.assertEqual(self.numbers()[1], 0)
        allocator.start_prealloc_thread()
        self.until(lambda: self.numbers()[1] == PAGE * self.LAYERS * 2)
        allocator.stop_prealloc_thread()

    def test_a_file_that_is_cut_is_no_limit(self):
        allocator = self.allocator()
        os.truncate(self.segment, 0)
        self.assertEqual(allocator.check_and_get_resize_target(8 * PAGE), -1)
        allocator.alloc_page()

    def test_a_link_is_not_followed(self):
        victim = os.path.join(self.folder, "victim")
        with open(victim, "w", encoding="ascii") as file:
            file.write("mine")
        os.symlink(victim, self.segment)
        allocator = self.allocator()
        allocator.alloc_page()
        self.assertTrue(allocator.release_shared_segment())
        with open(victim, encoding="ascii") as file:
            self.assertEqual(file.read(), "mine")

    def test_only_its_own_file_is_removed(self):
        first, second = self.allocator(), self.allocator()
        self.assertTrue(first.release_shared_segment())
        self.assertTrue(os.path.exists(self.segment))
        os.unlink(self.segment)
        with open(self.segment, "wb") as file:
            file.write(b"another's")
        self.assertTrue(second.release_shared_segment())
        self.assertTrue(os.path.exists(self.segment))


class Installed(unittest.TestCase):
    """`python -m glake.kvcached`, beside a kvcached with a library of its own."""

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.package = os.path.join(self.folder, "kvcached")
        os.mkdir(self.package)
        for name, text in (("__init__.py", ""), ("_C.py", "OWN = True\n")):
            with open(os.path.join(self.package, name), "w", encoding="ascii") as file:
                file.write(text)

    def python(self, *arguments):
        path = os.pathsep.join([self.folder, os.environ["PYTHONPATH"]])
        return subprocess.run([sys.executable, *arguments], env={**os.environ, "PYTHONPATH": path}, text=True,
                              capture_output=True, timeout=PATIENCE_S, check=False)

    def test_installed_and_removed(self):
        for action, is_there in (("install", True), ("install", True), ("remove", False), ("remove", False)):
            done = self.python("-m", "glake.kvcached", action)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertEqual(os.path.isdir(os.path.join(self.package, "_C")), is_there)
            found = self.python("-c", "import importlib.util; print(importlib.util.find_spec('kvcached._C').origin)")
            self.assertEqual(found.stdout.strip().endswith("_C/__init__.py"), is_there, found)

    def test_what_is_not_ours_stays(self):
        os.mkdir(os.path.join(self.package, "_C"))
        with open(os.path.join(self.package, "_C", "__init__.py"), "w", encoding="ascii") as file:
            file.write("OTHER = True\n")
        for action in ("install", "remove"):
            done = self.python("-m", "glake.kvcached", action)
            self.assertEqual(done.returncode, 1)
            self.assertIn("not of glake", done.stderr)
            with open(os.path.join(self.package, "_C", "__init__.py"), encoding="ascii") as file:
                self.assertEqual(file.read(), "OTHER = True\n")

    def test_without_kvcached(self):
        shutil.rmtree(self.package)
        done = self.python("-m", "glake.kvcached", "install")
        self.assertEqual((done.returncode, done.stderr), (1, "glake.kvcached: kvcached is not installed here\n"))
        self.assertEqual(self.python("-m", "glake.kvcached").returncode, 2)


#: Of kvcached's tests: those that use what is behind vmm_ops, and do not put something else in its place.
OWN_TESTS = """alloc_kv_cache_alignment contiguous_layout_default get_max_cached_blocks hetero_contiguous_layout
hybrid_contiguous_layout kv_cache_shape_compat kvcache_manager native_shm_cleanup page_allocator_resize
page_allocator_snapshot pool_segment_names prealloc_gil_deadlock shared_kv_layer_binding shm_info_tracker vllm_packed_kv
vmm_transaction""".split()
# It compiles a file that is not in the source distribution.
LEFT_OUT = "not test_native_identity_syscall_failures_and_retries"


class Own(Case):
    DEVICE = "1x80GiB"

    def setUp(self):
        absent = [name for name in ("torch", "numpy", "pytest", "posix_ipc", "wrapt")
                  if importlib.util.find_spec(name) is None]
        if absent or SOURCE.why:
            self.skipTest(SOURCE.why or f"not installed: {', '.join(absent)}")
        super().setUp()

    def install(self):
        """A kvcached of its own, with glake in the place of its library. Returns what programs need to find it."""
        top = os.path.dirname(SOURCE.path)
        for part in ("kvcached", "tests"):
            shutil.copytree(os.path.join(top, part), os.path.join(self.folder, part))
        path = [self.folder, os.path.join(ROOT, "tests", "engines"), os.environ["PYTHONPATH"]]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "KVCACHED_LOG_LEVEL": "ERROR",
                       "KVCACHED_IPC_NAME": f"glake-test-{os.getpid()}", "TMPDIR": self.folder}
        subprocess.run([sys.executable, "-m", "glake.kvcached", "install"], env=environment, check=True,
                       stdout=subprocess.DEVNULL)
        return environment

    def program(self, environment, text):
        begin = """
            import kvcached_on_cudasim
            from kvcached.integration.vllm import interfaces
            """
        return started(self, [sys.executable, "-c", textwrap.dedent(begin) + textwrap.dedent(text)], env=environment)

    def line(self, process, word=None):
        """The next line, or the next that begins so."""
        while True:
            line = process.stdout.readline()
            self.assertTrue(line)
            if word is None or line.startswith(word):
                return line.split()

    def test_an_engine_and_its_worker(self):
        """The allocator is in one process, and the memory in another, behind kvcached's sockets."""
        environment = self.install()
        worker = self.program(environment, """
            import sys
            from kvcached.vmm_ops import create_kv_tensors
            from glake import _kvcached_pool as pools
            interfaces.init_kvcached(is_worker=True, device="cuda:0")
            create_kv_tensors(64 << 20, 2, "cuda:0", 4)
            print("ready", flush=True)
            for _ in sys.stdin:
                stats = pools.find(0).stats()
                print("stats", stats["n_held"], stats["n_lent"], flush=True)
            """)
        self.line(worker, "ready")
        engine = self.program(environment, """
            import sys
            from kvcached.kv_cache_manager import KVCacheManager
            interfaces.init_kvcached(is_worker=False, device="cuda:0")
            manager = KVCacheManager(num_blocks=2048, block_size=16, cell_size=1024, num_layers=4)
            for line in sys.stdin:
                blocks = manager.alloc(1024)
                print("blocks", len(set(blocks)), flush=True)
                sys.stdin.readline()
                manager.free(blocks)
                manager.trim()
                print("free", flush=True)
            manager.shutdown()
            """)

        def stats():
            worker.stdin.write("\n")
            worker.stdin.flush()
            return [int(word) for word in self.line(worker, "stats")[1:]]

        for _ in range(2):
            engine.stdin.write("\n")
            engine.stdin.flush()
            self.assertEqual(self.line(engine, "blocks"), ["blocks", "1024"])
            # 1024 blocks of 16 KiB are 8 pages, and what is reserved is mapped there.
            self.assertGreaterEqual(stats()[0], 8)
            engine.stdin.write("\n")
            engine.stdin.flush()
            self.line(engine, "free")
            n_held, n_lent = stats()
            self.assertGreaterEqual(n_lent, 3)
            self.assertLess(n_held, 8)
        engine.communicate(timeout=PATIENCE_S)
        self.assertEqual(engine.returncode, 0)

    def test_kvcacheds_own_tests(self):
        environment = self.install()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "kvcached_on_cudasim",
             "-k", LEFT_OUT, *(f"tests/test_{name}.py" for name in OWN_TESTS)], cwd=self.folder, env=environment,
            text=True, capture_output=True, timeout=500, check=False)
        self.assertEqual(done.returncode, 0, done.stdout[-5000:] + done.stderr[-1000:])
        self.assertGreater(int(re.search(r"(\d+) passed", done.stdout)[1]), 190)


if __name__ == "__main__":
    unittest.main()
