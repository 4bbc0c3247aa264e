# SPDX-License-Identifier: Apache-2.0
"""KV memory of vLLM on elastic ranges: the real KVCacheManager, BlockPool and Request of each version, the real glaked, the real
library, on the simulated GPU. Blocks are written and read by the CPU, and a neighbour takes what is lent.

Where the sources (tests/engines/fetch) are absent, what needs them is skipped.
"""
import contextlib
import importlib.util
import math
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import types
import unittest
from unittest import mock

from tests.integration import engine_process, with_glaked
from tests.integration.engine_sources import SOURCES, for_each_version
from tests.integration.with_glaked import BUILD, MIB, PATIENCE_S, Served

CHUNK = 2 * MIB
LANES = 2
#: of a range whose blocks outlive the engine: its key, and where layers have what
KEY, WHERE = b"key", b"12345678"


# ---- in a process of its own, for each version ----

class Machine:
    """A GPU of a few steps, an engine, and a neighbour."""

    def __init__(self, version):
        from tests.integration import engine_cache
        engine_cache.light_vllm(SOURCES[version])
        self.cache, self.version = engine_cache, version

    def engine(self, n_blocks=64, block_bytes=CHUNK // 4, warm=1, key=b"", **options):
        import glake
        from glake._vllm_blocks import Layout
        from glake._vllm_pool import attach
        from glake._vllm_steps import Steps
        self.layout = layout = Layout(n_blocks, block_bytes, CHUNK)
        self.elastic = glake.Elastic(CHUNK, steps=layout.n_steps, lanes=LANES, floor=1, key=key)
        self.elastic.commit(0, warm)
        self.steps = Steps(self.elastic)
        self.one = engine = self.cache.Engine(self.elastic, layout, LANES, **options)
        engine.glake = attach(engine, layout, 1, 8, self.steps, engine.gpu.mark)
        if key:
            engine.glake.keep(self.elastic, WHERE)
            engine.glake.after_output(None, False)
        return engine

    def patient(self, with_free=10.0):
        """A busy machine makes no difference: memory comes, however late. Where none can be free, that is not waited for."""
        import glake._vllm_pool as pool
        pool._FREE_WAIT_S = pool._PATIENCE_S = with_free
        pool._WAIT_S = 10.0

    def states(self):
        return self.elastic.states()

    def held(self):
        from glake.elastic import HELD
        return [step for step, state in enumerate(self.states()) if state == HELD]

    def n_waited_for(self):
        stats = self.elastic.stats()
        return stats["n_commits"] - stats["n_ahead"]

    def wait_for(self, what, seconds=PATIENCE_S):
        end = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < end, "it did not happen"
            time.sleep(0.001)

    def rests(self):
        """An idle engine keeps one step. What came late is held until it is lent."""
        self.wait_for(lambda: self.held() == [0])

    def settle(self):
        """All that may be lent is lent."""
        self.one.idle()
        self.one.gpu.run()
        self.wait_for(lambda: not self.steps._leaving)

    def sealed(self):
        """All that is done is in the record of a step."""
        kept = self.one.glake.kept
        self.settle()
        self.one.gpu.run()
        self.wait_for(lambda: not kept._pending and not kept._dirty)
        return [step for step, is_sealed in enumerate(kept._is_sealed) if is_sealed]

    def crash(self):
        """No handler runs."""
        os.kill(os.getpid(), signal.SIGKILL)

    def run(self, n=1):
        for _ in range(n):
            self.one.step()

    def finish(self, n=10000):
        while self.one.get_num_unfinished_requests():
            self.one.step()
            n -= 1
            assert n > 0, "requests do not end"
        self.settle()

    def serve(self, seed=1, n_tokens=100, n_answers=8):
        """A request, from its beginning to its end."""
        self.one.add(prompt(seed, n_tokens), [7] * n_answers)
        self.finish()

    def check(self):
        """The invariant, and the books."""
        from glake.elastic import HELD
        engine, queue, states = self.one, self.one.glake.queue, self.states()
        shown = {block.block_id for block in queue.get_all_free_blocks()}
        assert len(shown) == queue.num_free_blocks == engine.pool.get_num_free_blocks()
        assert queue.n_empty == sum(engine.pool.blocks[block].block_hash is None for block in shown)
        used = {block.block_id for block in engine.pool.blocks if block.ref_cnt > 0 or block.is_null}
        assert queue.n_used == len(used) and not used & shown
        for block in used | shown:
            for step in self.layout.steps_of(block):
                assert states[step] == HELD, (block, step, states)
        for step in range(self.layout.n_steps):
            blocks = list(self.layout.blocks_of(step))
            free = [block for block in blocks if block not in used]
            assert queue.n_empty_in[step] == sum(engine.pool.blocks[block].block_hash is None for block in free)
            assert (step in queue.idle) == (len(free) == len(blocks) and not queue.is_away[step])


def prompt(seed, n):
    return [seed * 1000 + i for i in range(n)]


def growth(m):
    """Memory comes by need, and goes when it is not needed."""
    m.patient()
    engine = m.engine()
    assert m.held() == [0]
    engine.add(prompt(1, 100), [7] * 8)
    m.run(2)
    m.check()
    assert len(m.held()) >= 3
    m.finish()
    m.check()
    m.rests()
    assert engine.n_done == 1 and engine.n_preempted == 0
    assert engine.pool.get_usage() == 0.0
    # No step is waited for to serve the same again: it is all there. Others may still come ahead.
    n_waited_for = m.n_waited_for()
    m.serve()
    assert engine.n_hit == 96 and m.n_waited_for() == n_waited_for, (engine.n_hit, m.elastic.stats())
    assert m.one.pool.reset_prefix_cache()
    m.check()
    m.serve()
    assert engine.n_hit == 96


def lost_prefix(m):
    """A look-up never leads to memory that others have, and others' content is never taken for a prefix."""
    m.patient()
    engine = m.engine()
    m.serve()
    # Memory that has come ahead, and goes here unseen, is not waited for.
    m.patient(with_free=0.0)
    # The highest steps go.
    assert m.elastic.give_back(4, m.layout.n_steps - 4) > 0
    m.serve()
    m.check()
    assert 0 < engine.n_hit < 96, engine.n_hit
    m.elastic.give_back(1, m.layout.n_steps - 1)
    before = engine.n_hit
    m.serve()
    # What is in the floor's step.
    assert engine.n_hit - before <= 12, engine.n_hit - before
    assert engine.n_done == 3


def in_flight(m):
    """A step is lent when all work that was queued before its blocks became free has ended: with its output, a draft
    behind it, and batches behind that."""
    m.patient()
    engine = m.engine(depth=3, budget=200)
    first = engine.add(prompt(1, 100), [7] * 8)
    m.run()
    second = engine.add(prompt(2, 40), [7] * 8)
    m.run()
    held = m.held()
    # Nine hold the 35 blocks and the empty one, but memory that comes late may make them lie in more.
    assert len(engine.batches) == 2 and len(held) >= 9, held
    # Aborted, while its batch is in flight.
    engine.drop(first)
    engine.drop(second)
    m.check()
    engine.idle()
    engine.step()
    assert m.held() == held and m.steps._leaving, m.states()
    # What is on its way out can be had back, without a call of anybody.
    engine.add(prompt(1, 100), [7] * 8)
    m.run()
    m.check()
    engine.gpu.run()
    m.finish()
    m.check()
    m.rests()
    assert engine.n_done == 1


def deferred(m):
    """The same where a part of a batch is queued later than the batch."""
    import glake
    engine = m.engine(depth=3, defers=True, budget=200)
    first = engine.add(prompt(1, 4), [7] * 8)
    m.run()
    second = engine.add(prompt(2, 100), [7] * 8)
    process = engine._process_oldest

    def aborted_before():
        """Between the model of the second batch and what is queued behind it"""
        engine.drop(second)
        process()
        engine.gpu.run()
        time.sleep(0.05)
        with glake.connect() as neighbour:
            take_all(neighbour)
        engine._process_oldest = process
    engine._process_oldest = aborted_before
    m.run()
    m.finish()
    m.check()
    assert engine.n_done == 1 and first not in engine.running


def late(m):
    """Memory that comes when the engine has fallen idle is lent, too."""
    engine = m.engine()
    commit, go = m.elastic.commit, threading.Event()

    def slow(first, n):
        assert go.wait(PATIENCE_S)
        commit(first, n)
    m.elastic.commit, m.elastic.ahead = slow, lambda first, n: None
    request = engine.add(prompt(1, 100), [7] * 8)
    m.run()
    # The scheduler has not waited for it.
    assert m.steps.is_waiting and not engine.running
    engine.drop(request)
    m.run()
    go.set()
    m.wait_for(lambda: not m.steps.is_waiting)
    m.rests()
    assert m.elastic.stats()["n_lent"] > 0, m.states()
    m.run()
    m.check()


def together(m):
    """Memory of others is asked for one step at a time; two at once, and not more, when others wait behind the request."""
    engine = m.engine()
    wanted, want = [], m.steps.want
    m.elastic.ahead = lambda first, n: None

    def wanting(steps):
        wanted.append(len(list(steps)))
        return want(steps)
    m.steps.want = wanting
    m.patient(with_free=0.0)
    engine.add(prompt(1, 16), [7] * 8)
    m.run()
    alone = wanted[0]
    m.finish()
    wanted.clear()
    for i in range(2, 8):
        engine.add(prompt(i, 16), [7] * 8)
    m.run()
    m.finish()
    m.check()
    assert alone == 1 and max(wanted) == 2, (alone, wanted)


def twice(m):
    """A step that comes ahead while it is committed is the engine's once."""
    engine = m.engine()
    commit, go, ahead = m.elastic.commit, threading.Event(), m.elastic.ahead

    def slow(first, n):
        assert go.wait(PATIENCE_S)
        commit(first, n)
    m.elastic.commit, m.elastic.ahead = slow, lambda first, n: None
    engine.add(prompt(1, 60), [7] * 8)
    m.run()
    assert m.steps.is_waiting
    ahead(1, 6)
    m.wait_for(lambda: m.elastic.stats()["n_lent"] >= 4)
    m.run()
    assert engine.running
    m.check()
    go.set()
    m.wait_for(lambda: not m.steps.is_waiting)
    m.run()
    m.check()
    m.finish()
    m.check()
    # The same, and it falls idle first.
    go.clear()
    m.elastic.give_back(1, 15)
    request = engine.add(prompt(2, 60), [7] * 8)
    m.run()
    assert m.steps.is_waiting
    ahead(1, 6)
    m.wait_for(lambda: m.elastic.stats()["n_lent"] >= 4)
    m.run()
    engine.drop(request)
    engine.idle()
    m.run()
    go.set()
    m.wait_for(lambda: not m.steps.is_waiting)
    m.check()


def no_memory(m):
    """Who has no memory queues and preempts, as vLLM ever did, and goes on when there is some."""
    import glake
    engine = m.engine()
    with glake.connect() as neighbour:
        taken = take_all(neighbour)
        for seed in range(4):
            engine.add(prompt(seed, 30), [7] * 20)
        for _ in range(60):
            engine.step()
        m.check()
        assert engine.n_done == 0 and not engine.running, (engine.n_done, engine.running)
        for ptr in taken[:4]:
            neighbour.free(ptr)
        trim(neighbour)
        end = time.monotonic() + PATIENCE_S
        while engine.n_done < 4:
            trim(neighbour)
            engine.step()
            m.check()
            assert time.monotonic() < end, (engine.n_done, m.states(), len(taken))
        m.settle()


def to_a_neighbour(m):
    """An idle engine's memory is there for others at once, and comes back."""
    import glake
    engine = m.engine()
    with glake.connect() as neighbour:
        n_free = len(take_all(neighbour))
        trim(neighbour)
    # Else later requests take blocks of earlier ones, when free memory comes late.
    m.patient()
    for seed in range(4):
        engine.add(prompt(seed, 60), [7] * 4)
    m.finish()
    assert m.elastic.stats()["n_lent"] > 8
    with glake.connect() as neighbour:
        assert len(take_all(neighbour)) == n_free, "an idle engine keeps memory"
        for seed in range(4):
            engine.add(prompt(seed, 60), [7] * 4)
        m.run(5)
        m.check()
    m.finish()
    assert engine.n_done == 8


# ---- blocks that outlive an engine: one crashes, and the next one finds them ----

def leave(m):
    # Else the second request takes blocks of the first, when free memory comes late.
    m.patient()
    engine = m.engine(key=KEY)
    engine.add(prompt(1, 100), [7] * 8)
    engine.add(prompt(2, 40), [7] * 8)
    m.finish()
    assert len(m.sealed()) > 8
    m.crash()


def find(m):
    """Its content is read by the GPU, and is that of the tokens."""
    # Else what was found gives way to a new block, when free memory comes late.
    m.patient()
    engine = m.engine(key=KEY)
    m.settle()
    m.check()
    assert m.elastic.stats()["n_commits"] > 8
    engine.add(prompt(1, 100), [7] * 8)
    engine.add(prompt(2, 40), [7] * 8)
    m.finish()
    m.check()
    assert engine.n_done == 2 and engine.n_hit == 96 + 36, engine.n_hit


def leave_while_working(m):
    """Blocks whose work is not done are in no record, though they have a hash."""
    import glake._vllm_kept as kept
    kept._SEAL_S = 0.0
    m.patient()
    engine = m.engine(key=KEY, depth=3, budget=200)
    # The floor's blocks are in use by another.
    engine.add(prompt(9, 8), [7] * 60)
    m.run(4)
    first = engine.add(prompt(1, 100), [7] * 30)
    m.run(8)
    assert first in engine.running
    engine.gpu.run()
    m.wait_for(lambda: not engine.glake.kept._pending)
    second = engine.add(prompt(2, 100), [7] * 30)
    m.run(2)
    assert second in engine.running and engine.pool.blocks[engine.kv_cache_manager.get_block_ids(second.request_id)[0][0]].block_hash
    time.sleep(0.2)
    m.crash()


def find_some(m):
    # Else what was found gives way to the first request, when free memory comes late.
    m.patient()
    engine = m.engine(key=KEY)
    m.settle()
    for seed in (2, 1):
        before = engine.n_hit
        m.serve(seed)
        m.check()
        n_hit = engine.n_hit - before
        assert (n_hit == 0) if seed == 2 else (n_hit == 96), (seed, n_hit)


def leave_after_reuse(m):
    """Content that gave way is in no record, from before it is written to."""
    engine = m.engine(key=KEY, n_blocks=32, budget=200)
    m.serve()
    assert len(m.sealed()) >= 6
    engine.add(prompt(2, 110), [7] * 4)

    def crash(output):
        engine.gpu.run()
        m.crash()
    engine._queue_rest = crash
    m.run()


def find_no_other(m):
    """The GPU finds each block as its tokens say."""
    engine = m.engine(key=KEY, n_blocks=32)
    m.settle()
    m.serve()
    assert engine.n_done == 1


def leave_after_reset(m):
    """Whoever resets the cache may have changed the weights."""
    engine = m.engine(key=KEY)
    m.serve()
    assert m.sealed()
    assert engine.pool.reset_prefix_cache()
    m.serve()
    assert not m.sealed()
    m.crash()


def find_nothing(m):
    engine = m.engine(key=KEY)
    m.settle()
    assert m.elastic.stats()["n_commits"] == 1
    m.serve()
    assert engine.n_hit == 0


def leave_at_random(m):
    """Killed anywhere: while it seals, unseals, lends, adopts."""
    import glake._vllm_kept as kept
    kept._SEAL_S = 0.0
    dice = random.Random()
    print(m.version, "crashes at random", file=sys.stderr)
    threading.Timer(dice.uniform(0.02, 1.0), m.crash).start()
    m.engine(key=KEY, n_blocks=48, depth=dice.randrange(1, 4))
    while True:
        rounds(m, dice, 10)


def take_all(session, size=CHUNK * LANES, device=0):
    return with_glaked.take_all(session, size, device)


def trim(session):
    """What it freed is not kept warm."""
    session.dispatch()


def cache_grows_first(m):
    """While there is memory, new content does not take the place of cached content."""
    m.patient()
    engine = m.engine()
    for seed in (0, 1, 2, 3, 0, 1, 2, 3):
        m.serve(seed, 40, 1)
    assert engine.n_hit >= 4 * 36, engine.n_hit


def own_first(m):
    """New content displaces an engine's own cached content, and takes what a neighbour has lent for a need alone."""
    import glake
    engine = m.engine()
    with glake.connect() as session:
        neighbour = glake.Elastic(CHUNK, steps=32, lanes=LANES, session=session)
        with contextlib.suppress(glake.OutOfMemoryError):
            for step in range(32):
                neighbour.commit(step, 1)
        n_all = neighbour.stats()["n_held"]
        neighbour.lend(0, 32)
        # Four steps are free.
        assert neighbour.give_back(n_all - 4, 4) == 4
        m.patient()
        # Five steps have twenty blocks, and one block is vLLM's.
        m.serve(30, 18 * 4, 1)
        # All of these have come, before or while they were needed, and nothing of the neighbour's.
        m.wait_for(lambda: m.elastic.stats()["n_commits"] >= 5)
        assert neighbour.stats()["n_lent"] == n_all - 4, (neighbour.stats(), m.elastic.stats())
        m.patient(with_free=0.01)
        for seed in range(10):
            m.serve(seed, 40, 1)
            m.check()
        assert neighbour.stats()["n_lent"] == n_all - 4, (neighbour.stats(), m.elastic.stats(), m.states())
        m.serve(20, 4 * 4 * 7, 1)
        assert engine.n_done == 12 and neighbour.stats()["n_lent"] < n_all - 4
        neighbour.close()


def ahead(m):
    """What a long answer needs comes before it does, of free memory; and where there is none, as ever."""
    m.patient()
    engine = m.engine()
    engine.add(prompt(1, 4), [7] * 150)
    m.run(3)
    before = m.elastic.stats()
    while engine.get_num_unfinished_requests():
        engine.step()
        time.sleep(0.01)
    after = m.elastic.stats()
    assert after["n_commits"] - before["n_commits"] >= 5
    assert after["n_ahead"] - before["n_ahead"] == after["n_commits"] - before["n_commits"], (before, after)


def ahead_too_late(m):
    """A step that was asked for ahead, came in another way, went with content, and comes ahead then: nobody finds the content."""
    engine, real, asked = m.engine(), m.elastic.ahead, []
    m.elastic.ahead = lambda first, n: asked.append((first, n))
    m.serve()
    assert asked
    m.elastic.give_back(1, 15)
    for first, n in asked:
        real(first, n)
    m.wait_for(lambda: m.elastic.stats()["n_ahead"] > 0)
    time.sleep(0.1)
    m.serve()
    m.check()
    assert engine.n_done == 2 and engine.n_hit <= 12, engine.n_hit


def watermark(m):
    """A request that only fits without the spare blocks is not kept waiting for them."""
    engine = m.engine(n_blocks=32, watermark=0.3)
    m.serve(1, 110, 4)
    assert engine.n_done == 1


def without_caching(m):
    engine = m.engine(caching=False)
    for seed in range(3):
        engine.add(prompt(seed, 50), [7] * 10)
    m.finish()
    m.check()
    m.rests()
    assert engine.n_done == 3


def across_borders(m):
    """Blocks that lie in two steps."""
    m.engine(n_blocks=40, block_bytes=CHUNK // 8 * 3)
    assert any(len(m.layout.steps_of(block)) == 2 for block in range(40))
    rounds(m, random.Random(1), 60)


def asleep(m):
    """What is held sleeps and comes back; what was lent is gone, and nobody finds it."""
    import glake
    m.patient()
    engine = m.engine()
    m.serve()
    engine.add(prompt(2, 40), [7] * 20)
    m.run(4)
    m.settle()
    m.wait_for(lambda: not m.steps.is_waiting)
    held, before = m.held(), m.elastic.stats()
    assert before["n_lent"] > 0
    session = glake.default_session()
    session.sleep()
    session.wake()
    after = m.elastic.stats()
    # What has come ahead since is lent, and empty.
    assert m.held() == held and after["n_lent"] <= after["n_ahead"] - before["n_ahead"], (before, after)
    # Perhaps none is free as soon as this.
    m.patient(with_free=0.0)
    m.serve()
    m.check()
    assert engine.n_done == 3 and engine.n_hit < 48, engine.n_hit


def rounds(m, dice, n):
    import glake
    engine, neighbour = m.one, glake.connect()
    mine = []
    for i in range(n):
        for _ in range(dice.randint(1, 6)):
            what = dice.random()
            if what < 0.25 and len(engine.waiting) < 6:
                engine.add(prompt(dice.randint(1, 8), dice.randint(1, 60)), [7] * dice.randint(1, 12))
            elif what < 0.30 and engine.get_num_unfinished_requests():
                engine.drop(dice.choice(engine.running + engine.waiting))
            elif what < 0.40:
                engine.gpu.run(n=dice.randint(0, 8))
            elif what < 0.45 and mine:
                neighbour.free(mine.pop(dice.randrange(len(mine))))
            elif what < 0.52:
                try:
                    mine.append(neighbour.alloc(CHUNK * dice.randint(1, 12)))
                except glake.OutOfMemoryError:
                    pass
            elif what < 0.55:
                m.elastic.give_back(0, m.layout.n_steps)
            else:
                engine.step()
        m.check()
    neighbour.close()
    m.finish()
    m.check()
    m.rests()


def at_random(m, depth, caching):
    dice = random.Random(int(os.environ.get("SEED", "0")) or hash((m.version, depth, caching)))
    engine = m.engine(depth=depth, caching=caching, warm=3)
    rounds(m, dice, 80)
    assert engine.n_done > 10, engine.n_done
    if caching:
        assert engine.n_hit > 0
    assert m.steps.close(20)
    m.elastic.close()


def while_others_take(m):
    """A neighbour that takes and gives all the time, on a thread of its own."""
    import glake
    engine = m.engine(depth=2)
    stop, dice = threading.Event(), random.Random(5)

    def neighbour():
        with glake.connect() as session:
            while not stop.is_set():
                for ptr in take_all(session, CHUNK * 4):
                    session.free(ptr)
    thread = threading.Thread(target=neighbour)
    thread.start()
    try:
        begin = time.monotonic()
        # For longer where that is too short for enough to happen.
        while time.monotonic() < begin + (60 if engine.n_done < 12 or m.elastic.stats()["n_returns"] == 0 else 4):
            if engine.get_num_unfinished_requests() < 3:
                engine.add(prompt(dice.randint(1, 6), dice.randint(1, 60)), [7] * dice.randint(1, 12))
            engine.step()
            if dice.random() < 0.3:
                engine.gpu.run()
            m.check()
    finally:
        stop.set()
        thread.join()
    m.finish()
    assert engine.n_done > 10 and m.elastic.stats()["n_returns"] > 0, (engine.n_done, m.elastic.stats())


# ---- what is read of the sources ----

class Names(unittest.TestCase):
    """What decides that a cache is plain."""

    @for_each_version
    def test_sizes_of_ranks_are_in_the_configuration(self, source):
        from glake._vllm_plan import _EXECUTORS, _SIZES
        for name in ("tensor_parallel_size", *(name for name, _ in _SIZES)):
            source.find("config/parallel.py", f"ParallelConfig.{name}")
        for name, path in zip(_EXECUTORS, ("uniproc_executor", "multiproc_executor")):
            source.find(f"v1/executor/{path}.py", name)
        # Of every executor; a subclass of several processes asks all ranks by it.
        source.find("v1/executor/abstract.py", "Executor.initialize_from_config")
        with self.assertRaises(KeyError):
            source.find("v1/executor/multiproc_executor.py", "MultiprocExecutor.initialize_from_config")

    @for_each_version
    def test_workers_run_what_they_are_asked_in_order(self, source):
        path = "v1/executor/multiproc_executor.py"
        parameters = source.parameters(path, "MultiprocExecutor.collective_rpc")
        self.assertEqual([name for name in parameters if name in ("method", "args", "non_block", "unique_reply_rank")],
                         ["method", "args", "non_block", "unique_reply_rank"])
        asks = source.code(path, "MultiprocExecutor.collective_rpc")
        self.assertIn("cloudpickle.dumps(method, protocol=pickle.HIGHEST_PROTOCOL)", asks)
        self.assertIn("self.rpc_broadcast_mq.enqueue((send_method, args, kwargs, output_rank))", asks)
        # A batch, and what is asked behind it, are asked in the same way.
        self.assertIn("self.collective_rpc('execute_model'", source.code(path, "MultiprocExecutor.execute_model"))
        code = source.text(path)
        self.assertIn("func = partial(cloudpickle.loads(method), self.worker)", code)
        self.assertIn("if output_rank is None or self.rank == output_rank:", code)
        # Answers that nobody waits for are read before the next one that somebody does.
        self.assertIn("self.futures_queue.pop()", source.code(path, "FutureWrapper.result"))
        worker = source.code("v1/worker/worker_base.py", "WorkerWrapperBase")
        self.assertIn("kv_cache_configs[self.global_rank]", worker)
        self.assertIn("self.vllm_config = vllm_config", worker)


# ---- doors, with PyTorch ----

METHODS = ("_allocate_kv_cache_tensors", "_reshape_kv_cache_tensors", "_has_mixed_attention_kv_layout")
UTILS, RUNNER = "vllm.v1.worker.gpu.attn_utils", "vllm.v1.worker.gpu_model_runner"


class Backend:
    """Of 0.25.1: blocks outermost, or keys of all blocks before all values."""

    keys_first = False

    @classmethod
    def get_kv_cache_shape(cls, n_blocks, block_size, n_heads, head_size, cache_dtype_str="auto"):
        return (2, n_blocks, block_size, n_heads, head_size) if cls.keys_first else \
            (n_blocks, 2, block_size, n_heads, head_size)

    @classmethod
    def get_kv_cache_block_dim(cls, *arguments, **options):
        return int(cls.keys_first)


def real(source, path, names, **names_it_uses):
    """Functions of a real file."""
    space = dict(names_it_uses)
    for name in names:
        exec(compile("from __future__ import annotations\n" + source.code(path, name), path, "exec"), space)  # noqa: S102
    return space


class Vllm:
    """As much of one as allocates a cache: real functions for that, a real configuration, and an executor around."""

    def __init__(self, machine, layers=2):
        import torch
        import vllm.v1.kv_cache_interface as interface
        self.machine, self.source, self.interface, self.torch = machine, SOURCES[machine.version], interface, torch
        self.is_old = machine.version.startswith("0.25")
        self.layers = [f"layer.{i}" for i in range(layers)]
        self.plain = []

    def config(self, **changes):
        kept = types.SimpleNamespace
        config = kept(
            parallel_config=kept(world_size=1, data_parallel_size=1, decode_context_parallel_size=1),
            scheduler_config=kept(get_scheduler_cls=lambda: self.scheduler, max_num_seqs=4, max_num_batched_tokens=64),
            model_config=kept(is_encoder_decoder=False, enable_sleep_mode=False), kv_transfer_config=None,
            cache_config=kept(cache_dtype="auto", num_gpu_blocks_override=None, prefix_cache_retention_interval=None,
                              get_resolved_kv_cache_layout=lambda: self.order, kv_cache_layout="LBNHC",
                              enable_cross_layers=False),
            attention_config=kept(hisparse_config=None), speculative_config=None)
        for path, value in changes.items():
            *owners, name = path.split("__")
            owner = config
            for part in owners:
                owner = getattr(owner, part)
            setattr(owner, name, value)
        return config

    def spec(self, kind="FullAttentionSpec", **options):
        return getattr(self.interface, kind)(**{**dict(block_size=16, num_kv_heads=8, head_size=1024,
                                                       dtype=self.torch.bfloat16), **options})

    def plan(self, config, groups=None, order="LBNHC"):
        """The real one of this version: 64 blocks of 512 KiB in each layer."""
        import importlib
        if not self.is_old:
            import vllm.v1.kv_cache_layout
            self.order = vllm.v1.kv_cache_layout.KVCacheLayout[order]
        utils = importlib.import_module("vllm.v1.core.kv_cache_utils")
        planning = importlib.import_module("vllm.v1.core.kv_cache_planning")
        if not hasattr(planning, "__file__"):
            planning = utils
        groups = groups or [self.interface.KVCacheGroupSpec(list(self.layers), self.spec())]
        n_bytes = 64 * (MIB // 2) * max(len(group.layer_names) for group in groups)
        return planning.get_kv_cache_config_from_groups(config, groups, n_bytes)

    def modules(self):
        """vLLM's own, with the real functions that allocate."""
        torch, kept = self.torch, types.SimpleNamespace
        uses = {name: getattr(self.interface, name) for name in dir(self.interface) if not name.startswith("__")}
        uses.update(torch=torch, get_dtype_size=lambda dtype: dtype.itemsize, prod=math.prod,
                    current_platform=kept(is_rocm=lambda: False), AttentionGroup=object)
        for name in (UTILS, RUNNER):
            sys.modules[name] = types.ModuleType(name)
        if self.is_old:
            path = "v1/worker/gpu/attn_utils.py"
            vars(sys.modules[UTILS]).update(real(
                self.source, path, ["_allocate_kv_cache", "_reshape_attention_kv_cache", "_reshape_kv_cache",
                                    "_align_mixed_attention_kv_cache_views"], **uses))
            names = real(self.source, "v1/worker/gpu_model_runner.py", [
                "GPUModelRunner." + name for name in METHODS],
                **uses, _reshape_attention_kv_cache=sys.modules[UTILS]._reshape_attention_kv_cache)
            sys.modules[RUNNER].GPUModelRunner = type("GPUModelRunner", (), {name: names[name] for name in METHODS})
        else:
            names = real(self.source, "v1/worker/utils.py", ["allocate_kv_cache"], **uses)
            for name in (UTILS, RUNNER):
                sys.modules[name].allocate_kv_cache = names["allocate_kv_cache"]

    def allocate(self, runner, config):
        """What the worker does, by one runner or the other."""
        device, groups = self.torch.device("cpu"), [
            types.SimpleNamespace(kv_cache_group_id=i, kv_cache_spec=group.kv_cache_spec, backend=Backend,
                                  layer_names=group.layer_names) for i, group in enumerate(config.kv_cache_groups)]
        sizes = [group.kv_cache_spec.block_size for group in groups]
        if not self.is_old:
            return sys.modules[UTILS if runner == "v2" else RUNNER].allocate_kv_cache(config, device, self.order, sizes)
        if runner == "v2":
            raw = sys.modules[UTILS]._allocate_kv_cache(config, {}, device)
            return sys.modules[UTILS]._reshape_kv_cache(groups, raw, "auto", sizes, {}, config)
        one = sys.modules[RUNNER].GPUModelRunner()
        vars(one).update(device=device, runner_only_attn_layers=set(), kv_cache_config=config, cache_config=None,
                         _kv_cache_spec_attn_group_iterator=lambda: groups)
        one.cache_config = types.SimpleNamespace(cache_dtype="auto")
        return one._reshape_kv_cache_tensors(one._allocate_kv_cache_tensors(config), sizes)

    def start(self, runner, **changes):
        """An engine from its executor to its scheduler. Returns views of layers, scheduler and what was logged."""
        import ctypes

        import glake._vllm_kv as kv
        import glake._vllm_workers as workers
        vllm, machine, torch = self, self.machine, self.torch
        self.modules()

        class UniProcExecutor:
            def __init__(self, config):
                self.vllm_config = config

            def initialize_from_config(self, configs):
                self.views = vllm.allocate(runner, configs[0])

            def collective_rpc(self, function, args=(), non_block=False, unique_reply_rank=None):
                """Of several processes: the only worker is this one."""
                return [function(types.SimpleNamespace(global_rank=0, vllm_config=self.vllm_config), *args)]

        class Scheduler(machine.cache.Engine):
            def __init__(self, config):
                from glake._vllm_blocks import Layout
                arena = kv._unadopted[-1] if kv._unadopted else None
                arena = arena if hasattr(arena, "elastic") else workers._range.arena
                elastic = arena.elastic if arena else None
                layout = arena.plan.layout if arena else Layout(64, MIB // 2, CHUNK)
                machine.layout, machine.elastic, machine.one, self.vllm_config = layout, elastic, self, config
                super().__init__(elastic, layout, LANES)

        UniProcExecutor.__name__ = changes.pop("executor", "UniProcExecutor")
        Scheduler.__module__, Scheduler.__qualname__ = "vllm.v1.core.sched.scheduler", "Scheduler"
        self.scheduler = Scheduler
        options = {name: changes.pop(name) for name in ("groups", "order") if name in changes}
        config = self.config(**changes)
        planned = self.plan(config, **options)
        kv.enable(UniProcExecutor, Scheduler)

        def tensor_at(ptr, n_bytes, ordinal, memories):
            buffer = (ctypes.c_byte * n_bytes).from_address(ptr)
            tensor = torch.frombuffer(buffer, dtype=torch.int8)
            memories.add(tensor.untyped_storage())
            return tensor

        log = mock.MagicMock()
        with mock.patch.object(workers, "logger", log), mock.patch.multiple(kv, tensor_at=tensor_at, start_cuda=lambda ordinal: None, logger=log,
                                 check_number=lambda session, ordinal: None), \
                mock.patch.object(torch.cuda, "current_device", return_value=0), \
                mock.patch.object(torch.cuda, "synchronize"), \
                mock.patch.object(kv.Arena, "_mark", lambda arena: machine.one.gpu.mark()):
            executor = UniProcExecutor(config)
            executor.initialize_from_config([planned])
            scheduler = Scheduler(config)
        if type(executor).__name__ == "MultiprocExecutor":
            # The engine asks it still.
            scheduler.executor = executor
        self.lines = [call.args[0] % call.args[1:] for call in log.method_calls]
        if hasattr(scheduler, "kv_cache_manager") and kv._arenas:
            machine.steps = kv._arenas[-1]._steps
        return executor.views, scheduler


def allocated(m):
    """Both runners get addresses of the range, where its lanes are, and the scheduler what it says."""
    import glake._vllm_kv as kv
    for runner in ("v1", "v2"):
        vllm = Vllm(m)
        views, engine = vllm.start(runner)
        assert vllm.lines == ["glake: KV memory is elastic: at most 16 steps of 4 MiB"], vllm.lines
        for lane, name in enumerate(vllm.layers):
            view = views[name]
            assert view.data_ptr() == m.elastic.ptr(0, lane)
            assert view.stride(0) * view.element_size() == MIB // 2 and view.shape[0] == 64
        engine.glake = engine.pool.glake_cache
        m.serve()
        m.check()
        m.rests()
        assert engine.n_done == 1
        # Its tensors have gone: another engine of this process closes it.
        del views, view
        old = m.elastic
        Vllm(m).start(runner)
        assert not old._handle and len(kv._arenas) == 1
        kv._arenas.clear()


def allocated_by_worker(m):
    """The same where the worker could be another process."""
    import torch

    from glake._vllm_ranks import Ranks
    stream = types.SimpleNamespace(cuda_stream=0)
    for runner in ("v1", "v2"):
        with mock.patch.object(torch.cuda, "current_stream", lambda ordinal: stream):
            vllm = Vllm(m)
            views, engine = vllm.start(runner, executor="MultiprocExecutor")
            assert vllm.lines == ["glake: KV memory is elastic: at most 16 steps of 4 MiB, in each of 1 ranks"], vllm.lines
            assert [views[name].data_ptr() for name in vllm.layers] == [m.elastic.ptr(0, lane) for lane in range(LANES)]
            engine.glake = engine.pool.glake_cache
            assert isinstance(m.steps._elastic, Ranks)
            m.serve()
            m.check()
            m.rests()
            assert engine.n_done == 1
    # A worker that finds its blocks elsewhere.
    if vllm.is_old:
        Backend.keys_first = True
        views, engine = vllm.start("v2", executor="MultiprocExecutor")
        assert "plain: rank 0: blocks of this vLLM lie elsewhere" in vllm.lines[0] and type(engine.pool).__name__ == "BlockPool", vllm.lines


def refused(m):
    """With a word about why."""
    vllm = Vllm(m)
    cases = [({"parallel_config__world_size": 2}, "has 2 ranks, and it is not known how"),
             ({"parallel_config__world_size": 2, "parallel_config__tensor_parallel_size": 2}, "has 2 ranks"),
             ({"parallel_config__world_size": 4, "parallel_config__pipeline_parallel_size": 4}, "pipeline_parallel_size is 4"),
             ({"parallel_config__nnodes": 2}, "nnodes is 2: ranks are on other machines"),
             ({"parallel_config__data_parallel_size": 2}, "data_parallel_size is 2"),
             ({"parallel_config__decode_context_parallel_size": 2}, "decode_context_parallel_size is 2"),
             ({"kv_transfer_config": types.SimpleNamespace(kv_connector_extra_config={})}, "connector"),
             ({"model_config__is_encoder_decoder": True}, "encoder"),
             ({"model_config__enable_sleep_mode": True, "cache_config__cache_dtype": "fp8"}, "when it wakes"),
             ({"scheduler_config__get_scheduler_cls": lambda: Machine}, "scheduler is Machine")]
    group = vllm.interface.KVCacheGroupSpec
    small = vllm.spec("SlidingWindowSpec", sliding_window=64)
    cases.append(({"groups": [group(["layer.0"], vllm.spec("SinkFullAttentionSpec", sink_len=4))]},
                  "SinkFullAttentionSpec"))
    if not vllm.is_old:
        cases.append(({"order": "BLNHC"}, "lie together"))
    for changes, why in cases:
        views, engine = vllm.start("v2", **changes)
        assert len(vllm.lines) == 1 and "KV memory is plain" in vllm.lines[0] and why in vllm.lines[0], vllm.lines
        assert type(engine.pool).__name__ == "BlockPool" and all(view.abs().sum() == 0 for view in views.values())
    # One rank, but in a process that is asked in a way of its own.
    views, engine = vllm.start("v2", executor="RayDistributedExecutor")
    assert "in another process (RayDistributedExecutor)" in vllm.lines[0], vllm.lines
    # Groups that share one pool of blocks are no reason.
    views, engine = vllm.start("v2", groups=[group(["layer.0", "layer.1"], vllm.spec()),
                                             group(["layer.2", "layer.3"], small)])
    assert "elastic" in vllm.lines[0], vllm.lines
    assert views["layer.3"].data_ptr() == views["layer.1"].data_ptr() == m.elastic.ptr(0, 1)


def elsewhere(m):
    """A backend that keeps all keys before all values: the cache has all of its memory then."""
    vllm = Vllm(m)
    if vllm.is_old:
        Backend.keys_first = True
        views, engine = vllm.start("v2")
        assert "elsewhere" in vllm.lines[0], vllm.lines
        assert type(engine.pool).__name__ == "BlockPool"
    else:
        # The layout in which heads come before blocks
        views, engine = vllm.start("v2", order="LHBNC")
        assert "elsewhere" in vllm.lines[0] or "plain" in vllm.lines[0], vllm.lines


def why_not_torch():
    return None if importlib.util.find_spec("torch") else "PyTorch is not here"


def play(machine, version, function, options):
    function(machine(version), **options)


class Case(Served):
    ENVIRONMENT = {"CUDASIM_DEVICES": "1x128MiB"}
    #: else a chunk of 64 MiB, made ahead, is half of the GPU, and not free to come ahead of a need
    CONFIG = "pool = ();"
    machine = Machine

    def await_end(self):
        """Of all engines: what they have left is there for the next one when glaked has seen it."""
        import glake
        from glake import admin
        with glake.Session(self.environment["GLAKE_SOCKET"], cuda=False, only_looks=True) as looks:
            deadline = time.monotonic() + PATIENCE_S
            while len(admin.sessions(looks)) > 1:
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.01)

    def each_way_at_random(self):
        for depth in (1, 3):
            for caching in (True, False):
                self.each(at_random, depth=depth, caching=caching)

    def each(self, *functions, **options):
        """Each in a process of its own, one after the other; those that leave something are killed."""
        absent = [source.why for source in SOURCES.values() if source.why]
        for version, source in SOURCES.items():
            if source.why:
                continue
            for function in functions:
                with self.subTest(version=version, function=function.__name__, **options):
                    ends = -signal.SIGKILL if function.__name__.startswith("leave") else 0
                    status, out, error = engine_process.run(1200, self.environment, play, self.machine, version, function, options)
                    self.assertEqual((status, out), (ends, ""), error[-4000:])
                    if ends:
                        self.await_end()
            if len(functions) > 1:
                self.evict()
        if absent:
            self.skipTest(absent[0])


class Kept(Case):
    def evict(self):
        subprocess.run([os.path.join(BUILD, "bin", "glakectl"), "-s", self.environment["GLAKE_SOCKET"], "evict", "--all"],
                       check=True, capture_output=True, env=self.environment)

    def test_the_next_engine_finds_them(self):
        self.each(leave, find, find)

    def test_what_is_not_computed_is_not_kept(self):
        self.each(leave_while_working, find_some)

    def test_what_may_be_written_to_is_not_kept(self):
        self.each(leave_after_reuse, find_no_other)

    def test_a_reset_ends_it(self):
        self.each(leave_after_reset, find_nothing)

    def test_glaked_does_not_answer_for_a_while(self):
        """What may be written to meanwhile is in no record as soon as it does."""
        from glake._vllm_blocks import Layout
        from glake._vllm_kept import Kept, unpack
        from glake.errors import GoneError
        calls, is_gone = [], [False]

        def call(name):
            def ask(step, record=b""):
                calls.append((name, step, record))
                if is_gone[0]:
                    raise GoneError("it is away", 0)
            return ask
        elastic = types.SimpleNamespace(seal=call("seal"), unseal=call("unseal"))
        blocks = [types.SimpleNamespace(block_id=i, block_hash=bytes([i]) * 36, block_hash_num_tokens=16, is_null=False)
                  for i in range(8)]
        kept = Kept(elastic, Layout(8, CHUNK // 4, CHUNK), None, b"w" * 8)
        kept.cached(blocks, 1)
        kept.settle(1)
        kept.to_seal()()
        self.assertEqual([(name, step) for name, step, _ in calls], [("seal", 0), ("seal", 1)])
        is_gone[0] = True
        kept.lost(1)
        for block in range(4, 8):
            kept.lost(block)
        kept.flush()
        kept.to_seal()()
        is_gone[0] = False
        del calls[:]
        kept.to_seal()()
        told = {step: (name, unpack(record, b"w" * 8)) for name, step, record in calls}
        self.assertEqual((told[0][0], sorted(told[0][1])), ("seal", [0, 2, 3]))
        self.assertEqual(told[1][0], "unseal")
        self.assertIsNone(kept.to_seal())

    def test_killed_at_random(self):
        self.each(*[leave_at_random] * 8, find_no_other)


class Cache(Case):
    def test_memory_comes_by_need_and_goes(self):
        self.each(growth)

    def test_a_prefix_whose_memory_went_is_a_miss(self):
        self.each(lost_prefix)

    def test_nothing_goes_that_queued_work_may_use(self):
        self.each(in_flight)

    def test_nothing_goes_that_is_still_to_be_queued(self):
        self.each(deferred)

    def test_memory_that_comes_late_is_lent(self):
        self.each(late)

    def test_memory_of_others_comes_two_steps_at_once(self):
        self.each(together)

    def test_what_comes_twice_is_there_once(self):
        self.each(twice)

    def test_without_memory_requests_wait(self):
        self.each(no_memory)

    def test_an_idle_engine_gives_all(self):
        self.each(to_a_neighbour)

    def test_the_cache_grows_before_it_evicts(self):
        self.each(cache_grows_first)

    def test_own_content_gives_way_first(self):
        self.each(own_first)

    def test_free_memory_comes_ahead(self):
        self.each(ahead)

    def test_what_comes_ahead_too_late_is_empty(self):
        self.each(ahead_too_late)

    def test_spare_blocks_are_no_condition(self):
        self.each(watermark)

    def test_without_prefix_caching(self):
        self.each(without_caching)

    def test_blocks_across_steps(self):
        self.each(across_borders)

    def test_sleep(self):
        self.each(asleep)

    def test_at_random(self):
        self.each_way_at_random()

    def test_while_others_take(self):
        self.each(while_others_take)


class Doors(unittest.TestCase):
    """What of vLLM the cache relies on is as it thinks."""

    @for_each_version
    def test_the_executor_allocates_and_then_the_scheduler_is_made(self, source):
        self.assertEqual(source.parameters("v1/executor/abstract.py", "Executor.initialize_from_config"),
                         ["self", "kv_cache_configs"])
        self.assertIn("collective_rpc('initialize_from_config', args=(kv_cache_configs,))",
                      source.code("v1/executor/abstract.py", "Executor.initialize_from_config"))
        names = [node.name for node in source.find("v1/executor/uniproc_executor.py", "UniProcExecutor").body
                 if hasattr(node, "name")]
        self.assertNotIn("initialize_from_config", names)
        # What is executed is queued on the GPU before the call returns.
        self.assertNotIn("submit(", source.code("v1/executor/uniproc_executor.py", "UniProcExecutor.collective_rpc"))
        init = source.code("v1/engine/core.py", "EngineCore.__init__")
        self.assertLess(init.index("self._initialize_kv_caches("), init.index("self.scheduler: SchedulerInterface"))
        self.assertIn("self.model_executor.initialize_from_config(kv_cache_configs)",
                      source.code("v1/engine/core.py", "EngineCore._initialize_kv_caches"))

    @for_each_version
    def test_each_batch_is_scheduled_and_its_output_processed_in_order(self, source):
        for name in ("step", "step_with_batch_queue"):
            code = source.code("v1/engine/core.py", f"EngineCore.{name}")
            self.assertIn("self.scheduler.schedule(", code)
            self.assertIn("self.scheduler.update_from_output(scheduler_output, model_output)", code)
        self.assertIn("batch_queue.appendleft((future, scheduler_output", code)
        self.assertIn("batch_queue.pop()", code)
        for name in ("get_num_unfinished_requests", "schedule", "update_from_output"):
            source.find("v1/core/sched/scheduler.py", f"Scheduler.{name}")

    @for_each_version
    def test_free_blocks_are_counted_behind_what_is_needed(self, source):
        code = source.code("v1/core/kv_cache_manager.py", "KVCacheManager.allocate_slots")
        needed, free = "self.coordinator.get_num_blocks_to_allocate(", "self.block_pool.get_num_free_blocks()"
        self.assertEqual((code.count(needed), code.count(free)), (2, 2))
        first, second = code.index(needed), code.rindex(needed)
        self.assertTrue(first < code.index(free) < second < code.rindex(free))
        self.assertEqual(code.count("new_computed_blocks=new_computed_block_list"), 3)

    @for_each_version
    def test_nobody_else_has_the_queue_of_free_blocks(self, source):
        used = set(re.findall(r"free_block_queue\.(\w+)", source.text("v1/core/block_pool.py")))
        self.assertLessEqual(used, {"popleft", "popleft_n", "remove", "append_n", "prepend_n", "num_free_blocks"})
        for folder, _, files in os.walk(os.path.join(source.path, "v1", "core")):
            for name in files:
                if name.endswith(".py") and name not in ("block_pool.py", "kv_cache_utils.py"):
                    with open(os.path.join(folder, name), encoding="utf-8") as file:
                        found = re.findall(r"free_block_queue[.\w]*", file.read())
                    # Blocks that are taken when the pool is made
                    self.assertLessEqual(set(found), {"free_block_queue.popleft_n"}, name)
        self.assertIn("get_cached_block(", source.text("v1/core/single_type_kv_cache_manager.py"))
        for name in ("get_cached_block", "_maybe_evict_cached_block", "get_usage", "reset_prefix_cache"):
            source.find("v1/core/block_pool.py", f"BlockPool.{name}")

    @for_each_version
    def test_the_cache_is_allocated_where_it_is_looked_for(self, source):
        from glake import _vllm_places as places
        found = []
        for module, owner, name in places.ALLOCATES:
            path = module.removeprefix("vllm.").replace(".", "/") + ".py"
            try:
                code = source.code(path, f"{owner}.{name}" if owner else name)
            except KeyError:
                if f"    {name}," not in source.text(path) or owner:
                    continue
                code = source.code("v1/worker/utils.py", name)
            found.append(module)
            self.assertRegex(code, r"torch\.zeros\([\w.]+, dtype=torch\.int8, device=")
        self.assertEqual(sorted(found), sorted({module for module, *_ in places.ALLOCATES}))


@unittest.skipIf(why_not_torch(), why_not_torch())
class Allocation(Case):
    def test_the_cache_is_the_range(self):
        self.each(allocated)

    def test_the_cache_is_the_range_of_a_worker(self):
        self.each(allocated_by_worker)

    def test_what_is_not_served_is_plain(self):
        self.each(refused)

    def test_blocks_that_lie_elsewhere(self):
        self.each(elsewhere)


if __name__ == "__main__":
    unittest.main()
