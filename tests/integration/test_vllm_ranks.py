# SPDX-License-Identifier: Apache-2.0
"""KV memory of a vLLM whose ranks are processes: two of them, each with a simulated GPU and the range that vLLM's worker would have,
under the real KVCacheManager of each version in this process. All goes the way of _vllm_workers but what allocates: each process says
where its blocks are, and is asked by a MultiprocExecutor of which only collective_rpc() is left.

Where the sources (tests/engines/fetch) are absent, what needs them is skipped.
"""
import contextlib
import ctypes
import logging
import multiprocessing
import os
import pickle
import random
import signal
import threading
import time
import types
import unittest

from tests.integration import test_vllm_kv as kv
from tests.integration.test_vllm_kv import CHUNK, LANES, prompt
from tests.integration.with_glaked import PATIENCE_S

N_RANKS = 2
PR_SET_PDEATHSIG = 1


# ---- in the process of a rank ----

class RankPlan:
    """How its blocks lie: what a KVCacheConfig would tell."""

    def __init__(self, config):
        from glake._vllm_blocks import Layout
        from glake._vllm_plan import Unfit
        if config["why"]:
            raise Unfit(config["why"])
        self.config, self.n_lanes = config, LANES
        self.layout = Layout(config["n_blocks"], config["block_bytes"], CHUNK)


class RankArena:
    """With a range, and without PyTorch."""

    def __init__(self, plan):
        import glake
        self.plan, self.ordinal = plan, 0
        self.elastic = glake.Elastic(CHUNK, steps=plan.layout.n_steps, lanes=LANES, floor=1)
        self.elastic.commit(0, plan.config["warm"])
        self.doors = contextlib.nullcontext

    def why_plain(self):
        return self.plan.config["elsewhere"]

    def make_plain(self):
        self.elastic.commit(0, self.plan.layout.n_steps)


#: the last one is the worker's
opened = []


def patched():
    """glake's half of a worker, or of an engine, without PyTorch."""
    import glake._vllm_kv as glake_kv
    import glake._vllm_workers as workers
    glake_kv.open_arena = lambda config, plan, key=b"": opened.append(RankArena(plan)) or opened[-1]
    workers.Plan = RankPlan
    workers.torch = types.SimpleNamespace(cuda=types.SimpleNamespace(
        current_stream=lambda ordinal: types.SimpleNamespace(cuda_stream=0)))
    glake_kv.Plan = RankPlan
    glake_kv.n_ahead_blocks = lambda config, plan: 8


def serve(rank, connection):
    """Does what it is asked, in order. It ends with the engine's process: its connection would not end, since a fork has both ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.environ["CUDA_VISIBLE_DEVICES"] = str(rank)
    worker = types.SimpleNamespace(global_rank=rank, vllm_config=None, arena=None, gpu=None)
    while True:
        function, arguments = connection.recv()
        try:
            answer = (None, function(worker, *arguments))
        except Exception as error:
            answer = (f"{type(error).__name__}: {error}", None)
        connection.send(answer)


def _gpu(worker):
    from tests.integration.engine_cache import Gpu
    if worker.arena is not opened[-1]:
        worker.arena = opened[-1]
        worker.gpu = Gpu(worker.arena.elastic, worker.arena.plan.layout, LANES)
    return worker.gpu


def access(worker, *arguments):
    _gpu(worker).access(*arguments)


def states(worker):
    return _gpu(worker).elastic.states()


def give_back(worker, first, n):
    return _gpu(worker).elastic.give_back(first, n)


# ---- the engine's process ----

class MultiprocExecutor:
    def __init__(self):
        kept = types.SimpleNamespace
        self.vllm_config = kept(
            parallel_config=kept(world_size=N_RANKS, tensor_parallel_size=N_RANKS, data_parallel_size=1), kv_transfer_config=None,
            scheduler_config=kept(get_scheduler_cls=lambda: kept(
                __module__="vllm.v1.core.sched.scheduler", __qualname__="Scheduler")),
            model_config=kept(is_encoder_decoder=False, enable_sleep_mode=False))
        self.processes, self.connections = [], []
        #: what is queued, by rank, while that is behind
        self.behind = [None] * N_RANKS
        for rank in range(N_RANKS):
            ours, theirs = multiprocessing.Pipe()
            # Forked: it has all modules.
            process = multiprocessing.get_context("fork").Process(target=serve, args=(rank, theirs), daemon=True)
            process.start()
            self.processes.append(process)
            self.connections.append(ours)
            theirs.close()

    def shutdown(self):
        for process in self.processes:
            process.kill()
            process.join()

    def tell(self, rank, function, *arguments):
        self.connections[rank].send((function, arguments))

    def ask(self, rank, function, *arguments):
        """By itself, whatever is queued."""
        self.tell(rank, function, *arguments)
        return self.hear(rank)

    def hear(self, rank):
        assert self.connections[rank].poll(60), f"rank {rank} does not answer"
        error, answer = self.connections[rank].recv()
        assert error is None, f"rank {rank}: {error}"
        return answer

    def each(self, function, *arguments):
        """All of them, but those that are behind."""
        ahead = [rank for rank in range(N_RANKS) if self.behind[rank] is None]
        for rank in range(N_RANKS):
            if rank in ahead:
                self.tell(rank, function, *arguments)
            else:
                self.behind[rank].append((function, arguments))
        return [self.hear(rank) for rank in ahead]

    def lag(self, rank):
        self.behind[rank] = []

    def catch_up(self, rank):
        behind, self.behind[rank] = self.behind[rank], None
        for function, arguments in behind:
            self.ask(rank, function, *arguments)

    def initialize_from_config(self, configs):
        """What glake wraps. vLLM would allocate."""

    def collective_rpc(self, function, args=(), non_block=False, unique_reply_rank=None):
        # By its name, as vLLM does.
        function = pickle.loads(pickle.dumps(function))
        if not non_block:
            return self.each(function, *args)
        self.gpu.queue.append(lambda: self.each(function, *args))


class RanksGpu:
    """What is queued is done by all ranks. One may be behind."""

    def __init__(self, executor):
        self.executor, self.queue = executor, []

    def access(self, *arguments):
        self.executor.each(access, *arguments)

    def run(self, until=None, n=None):
        from tests.integration.engine_cache import Gpu
        Gpu.run(self, until, n)


class Machine(kv.Machine):
    def __init__(self, version):
        super().__init__(version)
        patched()
        import glake._vllm_kv as glake_kv
        machine = self

        class Scheduler(self.cache.Engine):
            def __init__(self, **options):
                super().__init__(None, machine.layout, LANES, **options)
                self.vllm_config = None
                self.gpu = machine.executor.gpu = RanksGpu(machine.executor)
        glake_kv.enable(MultiprocExecutor, Scheduler)
        self.kv, self.scheduler, self.executor, self.lines = glake_kv, Scheduler, None, []
        handler = logging.Handler()
        handler.emit = lambda record: self.lines.append(record.getMessage())
        logging.getLogger("vllm.glake").addHandler(handler)
        logging.getLogger("vllm.glake").setLevel(logging.INFO)

    def configs(self, n_blocks=64, block_bytes=CHUNK // 4, warm=1, why=("", ""), elsewhere=("", "")):
        return [{"n_blocks": n_blocks, "block_bytes": block_bytes, "warm": warm, "why": why[rank], "elsewhere": elsewhere[rank]}
                for rank in range(N_RANKS)]

    def start(self, configs):
        """Whether it is elastic."""
        if self.executor:
            from glake import admin
            self.executor.shutdown()
            # Their memory is free when glaked has seen it.
            self.wait_for(lambda: not any(device["private_bytes"] for device in admin.status()["devices"]))
        self.executor = MultiprocExecutor()
        self.executor.initialize_from_config(configs)
        return bool(self.kv._unadopted)

    def engine(self, n_blocks=64, block_bytes=CHUNK // 4, warm=1, **options):
        assert self.start(self.configs(n_blocks, block_bytes, warm)), self.lines
        workers = self.kv._unadopted[-1]
        self.elastic, self.layout = workers._ranks, workers._plan.layout
        self.one = self.scheduler(**options)
        self.one.glake, self.steps = self.one.pool.glake_cache, workers._steps
        self.elastic.give_back = lambda first, n: sum(self.executor.each(give_back, first, n))
        return self.one

    def rank_held(self, rank):
        from glake.elastic import HELD
        return [step for step, state in enumerate(self.executor.ask(rank, states)) if state == HELD]

    def check(self):
        """All ranks have what is used, or may be."""
        super().check()
        here = {step for step in range(self.layout.n_steps) if not self.one.glake.queue.is_away[step]}
        for rank in range(N_RANKS):
            held = self.rank_held(rank)
            assert here <= set(held), (rank, here, held)

    def finish(self, n=10000):
        super().finish(n)
        self.wait_for(lambda: not self.steps.is_waiting)
        self.wait_for(lambda: all(self.rank_held(rank) == self.held() for rank in range(N_RANKS)))


def both(m):
    """It says what it is; and all that one GPU has to prove."""
    kv.growth(m)
    assert "glake: KV memory is elastic: at most 16 steps of 4 MiB, in each of 2 ranks" in m.lines, m.lines


def not_kept(m):
    """What the ranks leave is of no use if one of them leaves nothing."""
    os.environ["GLAKE_VLLM_KV"] = "kept"
    engine = m.engine()
    assert "KV blocks are not kept for the next engine" in m.lines[0] and engine.glake.kept is None, m.lines


def one_lags(m):
    """A step is lent when all ranks are done with it, though the output has come."""
    m.patient()
    engine = m.engine()
    m.executor.lag(1)
    engine.add(prompt(1, 100), [7] * 8)
    while engine.get_num_unfinished_requests():
        engine.step()
    engine.idle()
    engine.gpu.run()
    time.sleep(0.1)
    assert len(m.steps._leaving) >= 5 and len(m.executor.behind[1]) > 10
    for rank in range(N_RANKS):
        assert set(m.steps._leaving) <= set(m.rank_held(rank))
    # It may go on meanwhile: what is on its way out comes back.
    engine.add(prompt(1, 100), [7] * 8)
    m.run(3)
    m.executor.catch_up(1)
    m.finish()
    m.check()
    # What was wanted and comes late is lent at once.
    m.wait_for(lambda: m.held() == [0])
    assert engine.n_done == 2 and engine.n_hit == 96, engine.n_hit


def one_has_no_memory(m):
    """Nobody keeps what another one lacks. Requests wait, and go on."""
    import glake
    from glake.elastic import HELD
    engine = m.engine()
    with glake.connect() as neighbour:
        taken = kv.take_all(neighbour, device=1)
        for seed in range(4):
            engine.add(prompt(seed, 30), [7] * 20)
        for _ in range(40):
            engine.step()
        m.check()
        assert engine.n_done == 0 and not engine.running and m.held() == [0]
        m.wait_for(lambda: not m.steps.is_waiting)
        assert m.rank_held(0) == m.rank_held(1) == [0]
        # The other GPU's memory is there for others, if some of it later.
        other = []

        def take():
            other.extend(kv.take_all(neighbour))
            return len(other) >= 30

        m.wait_for(take)
        for ptr in taken[:4]:
            neighbour.free(ptr)
        neighbour.dispatch()
        assert HELD not in m.states()[1:]
    end = time.monotonic() + PATIENCE_S
    while engine.n_done < 4:
        engine.step()
        m.check()
        assert time.monotonic() < end, (engine.n_done, m.states())
    m.finish()


def one_loses_a_prefix(m):
    """A prefix of which one rank has given a part is a miss."""
    engine = m.engine()
    m.serve()
    assert m.executor.ask(1, give_back, 4, m.layout.n_steps - 4) > 0
    m.serve()
    m.check()
    assert 0 < engine.n_hit < 96 and engine.n_done == 2, engine.n_hit


class Stopped:
    """A rank that does nothing for a while."""

    def __init__(self, m, rank):
        self.process = m.executor.processes[rank]

    def __enter__(self):
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def __exit__(self, *exception):
        os.kill(self.process.pid, signal.SIGCONT)


def one_does_not_answer(m):
    """What is held stays, nothing is taken or lent, and what was asked in vain is undone."""
    import glake._vllm_ranks as ranks
    from glake.elastic import COMING, GOING, HELD, LENT
    engine = m.engine()
    m.serve()
    lent = [step for step, state in enumerate(m.states()) if state == LENT]
    ranks._ANSWER_S = ranks._COMMIT_S = 0.2
    with Stopped(m, 1):
        assert m.elastic.take(lent[0], 1) == 0
        # The other one had it, and has lent it again.
        assert m.rank_held(0) == [0]
        start = time.monotonic()
        assert m.elastic.take(lent[1], 1) == 0 and m.states() == [HELD] + 15 * [GOING]
        m.elastic.lend(1, 15)
        assert not m.elastic.has_passed(10**6)
        assert m.elastic.stats()["n_ahead"] != m.elastic.stats()["n_ahead"]
        for _ in range(20):
            engine.step()
        # None of these waits for it.
        assert time.monotonic() < start + 10
        with contextlib.suppress(TimeoutError):
            m.elastic.commit(lent[0], 1)
            raise AssertionError("a step is committed by one rank")
    m.wait_for(lambda: GOING not in m.states())
    assert m.rank_held(0) == m.rank_held(1) == [0]
    # The same, and a commit is what is not answered.
    m.elastic.give_back(1, 15)
    m.wait_for(lambda: LENT not in m.states())
    with Stopped(m, 1), contextlib.suppress(TimeoutError):
        m.elastic.commit(1, 3)
        raise AssertionError("steps are committed by one rank")
    m.wait_for(lambda: COMING not in m.states() and GOING not in m.states())
    assert m.rank_held(0) == m.rank_held(1) == [0]
    ranks._ANSWER_S = ranks._COMMIT_S = 20.0
    # Not the first one again: nobody has told the engine that steps were committed, so it may find blocks of them by their hash.
    m.serve(2)
    m.check()
    assert engine.n_done == 2


def one_stops_at_random(m):
    """While all goes on: a rank is stopped again and again, for longer than is waited for."""
    import glake._vllm_ranks as ranks
    engine, dice = m.engine(depth=2), random.Random(int(os.environ.get("SEED", "7")))
    ranks._ANSWER_S, ranks._COMMIT_S = 0.01, 0.02
    stop = threading.Event()

    def meddle():
        while not stop.is_set():
            with Stopped(m, dice.randrange(N_RANKS)):
                time.sleep(dice.uniform(0.001, 0.05))
            time.sleep(dice.uniform(0.001, 0.05))
    thread = threading.Thread(target=meddle)
    thread.start()
    try:
        begin = time.monotonic()
        while time.monotonic() < begin + (60 if engine.n_done < 7 else 5):
            if engine.get_num_unfinished_requests() < 3:
                engine.add(prompt(dice.randint(1, 6), dice.randint(1, 60)), [7] * dice.randint(1, 12))
            if dice.random() < 0.1:
                m.elastic.give_back(1, m.layout.n_steps - 1)
            engine.step()
    finally:
        stop.set()
        thread.join()
    ranks._ANSWER_S = ranks._COMMIT_S = 20.0
    m.finish()
    m.check()
    assert engine.n_done > 5 and m.held() == [0], engine.n_done


def one_is_lent_during_a_commit(m):
    """What is held is not asked for: it may be lent, and would be held by ranks of which nobody knows it."""
    from glake.elastic import HELD, LENT
    m.engine()
    m.elastic.commit(1, 1)
    ask = m.elastic._slow.ask

    def lend_first(*arguments):
        m.elastic.lend(1, 1)
        return ask(*arguments)
    m.elastic._slow.ask = lend_first
    m.elastic.commit(1, 2)
    assert m.states()[:3] == [HELD, LENT, HELD], m.states()
    assert m.rank_held(0) == m.rank_held(1) == [0, 2]


def one_is_killed(m):
    """The engine ends with it. Until then nothing is taken or lent, nobody waits, and it is said once."""
    from glake.elastic import GOING, HELD
    engine = m.engine()
    m.serve()
    m.executor.processes[1].kill()
    m.executor.processes[1].join()
    start = time.monotonic()
    assert m.elastic.take(1, 3) == 0 and m.states() == [HELD] + 15 * [GOING]
    m.elastic.lend(0, 16)
    with contextlib.suppress(RuntimeError, OSError):
        m.elastic.commit(1, 1)
        raise AssertionError("a step is committed without a rank")
    engine.add(prompt(2, 100), [7] * 8)
    engine.step()
    assert time.monotonic() < start + 10
    assert sum("does not come or go any more: a rank" in line for line in m.lines) == 1, m.lines
    assert m.steps.close(20)


def plain(m):
    """If one rank cannot, none does, with a word about why."""
    for changes, why in (
            ({"why": ("", "it has no cache")}, "KV memory is plain: rank 1: it has no cache"),
            ({"elsewhere": ("", "blocks lie elsewhere")}, "KV memory is plain: rank 1: blocks lie elsewhere")):
        assert not m.start(m.configs(**changes))
        assert why in m.lines[-1], m.lines
    assert all(len(m.rank_held(rank)) == 16 for rank in range(N_RANKS))
    configs = m.configs()
    configs[1]["n_blocks"] = 60
    assert not m.start(configs) and "otherwise than those of rank 0" in m.lines[-1], m.lines
    # Nothing is left of the socket's place.
    both(m)
    assert not os.listdir(os.environ["TMPDIR"])


class Ranks(kv.Case):
    ENVIRONMENT = {**kv.Case.ENVIRONMENT, "CUDASIM_DEVICES": f"{N_RANKS}x128MiB"}
    machine = Machine

    def setUp(self):
        super().setUp()
        self.environment["TMPDIR"] = os.path.join(self.folder, "tmp")
        os.mkdir(self.environment["TMPDIR"])

    def test_memory_comes_by_need_and_goes(self):
        self.each(both)

    def test_nothing_goes_that_queued_work_may_use(self):
        self.each(kv.in_flight)

    def test_nothing_goes_that_is_still_to_be_queued(self):
        self.each(kv.deferred)

    def test_nothing_is_kept(self):
        self.each(not_kept)

    def test_a_rank_lags(self):
        self.each(one_lags)

    def test_a_rank_has_no_memory(self):
        self.each(one_has_no_memory)

    def test_a_rank_loses_a_prefix(self):
        self.each(one_loses_a_prefix)

    def test_a_rank_does_not_answer(self):
        self.each(one_does_not_answer)

    def test_a_rank_stops_at_random(self):
        self.each(one_stops_at_random)

    def test_a_step_is_lent_during_a_commit(self):
        self.each(one_is_lent_during_a_commit)

    def test_a_rank_is_killed(self):
        self.each(one_is_killed)

    def test_if_one_is_plain_all_are(self):
        self.each(plain)

    def test_free_memory_comes_ahead(self):
        self.each(kv.ahead)

    def test_at_random(self):
        self.each_way_at_random()

    def test_while_others_take(self):
        self.each(kv.while_others_take)


if __name__ == "__main__":
    unittest.main()
