# SPDX-License-Identifier: Apache-2.0
"""Elastic ranges: what steps cost, and 1 GiB of lent memory that goes from one process to another.

    python3 tests/gpu/elastic.py [--only costs,states,content,hand_over] [--chunks 2,4,8,16,64] [--lanes 32] [--gib 4]
                                 [--rounds 40] [--handed 16] [--where plain|shim|both] [--out FILE.json]

    costs      ms per GiB of a commit and of a return, by the size of chunks, all steps at once and step by step; with
               GPU memory that glaked makes on demand
    states     ns of a step that is lent, and taken back; ms of one that comes ahead
    content    what comes anew reads zero, whatever was in it; what is taken back is as it was; guarded holes read zero
    hand_over  two processes, on a device that a third has filled, take turns: one lends what it has, the other commits as much, and
               runs a kernel over it. Timed from the call on, in the process that needs it. The lender is idle, or its GPU
               and a thread of it are busy, or both are; without the shim, and under `glake run`

Starts its own glaked. PyTorch, where it is there, makes the kernels; without it memsets of the driver have to do, and nobody
is busy. No time decides. Exit 1 when something is wrong.
"""
import argparse
import ctypes
import json
import os
import statistics
import sys
import threading
import time

from child import Child, serve
from run import Daemon, expect, failures, row, rows, spread

MIB, GIB = 1 << 20, 1 << 30
#: of the memory that is handed over
HANDED_BYTES = GIB
#: what the driver may need while the device is full
RESERVE_BYTES = 512 * MIB
DIRT = 0x5A5A5A5A
LENT = 3
REPEATS = 5
N_STATES = 512


# ---- in a process --------------------------------------------------------------------------------

class Gpu:
    """The device's primary context, as PyTorch has it."""

    def __init__(self):
        self.lib = ctypes.CDLL(os.environ.get("GLAKE_LIBCUDA") or "libcuda.so.1")
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        try:
            import torch
            self.torch = torch if torch.cuda.is_available() else None
        except ImportError:
            self.torch = None

    def call(self, name, *arguments):
        result = getattr(self.lib, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name}: {result}")

    def fill(self, ptr, n_bytes, word=DIRT):
        self.call("cuMemsetD32_v2", ctypes.c_uint64(ptr), ctypes.c_uint(word), ctypes.c_size_t(n_bytes // 4))

    def read(self, ptr, n_bytes):
        buffer = ctypes.create_string_buffer(n_bytes)
        self.call("cuMemcpyDtoH_v2", buffer, ctypes.c_uint64(ptr), ctypes.c_size_t(n_bytes))
        return buffer.raw

    def wait(self):
        self.call("cuCtxSynchronize")

    def words(self, ptr, n_bytes):
        """A tensor over it, which has memory now. It stays valid while steps come and go."""
        class Words:
            __cuda_array_interface__ = {"shape": (n_bytes // 4,), "typestr": "<i4", "data": (ptr, False), "version": 3}
        return self.torch.as_tensor(Words(), device="cuda")


class Engine:
    def __init__(self):
        import glake
        self.glake = glake
        self.gpu = Gpu()
        self.elastic = None
        self.busy = None
        self.matrices = None
        self.kernels = []

    def open(self, chunk_bytes, steps, lanes):
        self.elastic = self.glake.Elastic(chunk_bytes, steps, lanes)

    def close(self):
        self.kernels = []
        self.elastic.close()

    # -- costs

    def costs(self, chunk_bytes, steps, lanes, one_by_one, guard):
        """Seconds to open, to commit and to return all of it."""
        begin = time.perf_counter()
        with self.glake.Elastic(chunk_bytes, steps, lanes, guard=guard) as elastic:
            opened = time.perf_counter()
            runs = [(i, 1) for i in range(steps)] if one_by_one else [(0, steps)]
            for run in runs:
                elastic.commit(*run)
            committed = time.perf_counter()
            elastic.lend(0, steps)
            lent = time.perf_counter()
            n_gone = sum(elastic.give_back(*run) for run in runs)
            return [opened - begin, committed - opened, time.perf_counter() - lent, n_gone]

    def states(self):
        """ns per step: lend and take, of many in a call, and of one in a call."""
        with self.glake.Elastic(2 * MIB, N_STATES) as elastic:
            elastic.commit(0, N_STATES)
            times = []
            for n in (N_STATES, 1):
                lend, take = [], []
                for i in range(200):
                    first = i % (N_STATES - n + 1)
                    begin = time.perf_counter_ns()
                    elastic.lend(first, n)
                    lent = time.perf_counter_ns()
                    n_taken = elastic.take(first, n)
                    take.append((time.perf_counter_ns() - lent) / n)
                    lend.append((lent - begin) / n)
                    if n_taken != n:
                        raise RuntimeError(f"{n_taken} of {n} steps were taken back")
                times += [statistics.median(lend), statistics.median(take)]
            return times

    def ahead(self, chunk_bytes, lanes):
        """Milliseconds from the wish to the state, for each of 8 steps; and ns to take all of them then."""
        with self.glake.Elastic(chunk_bytes, 8, lanes) as elastic:
            times = []
            for step in range(8):
                begin = time.perf_counter()
                elastic.ahead(step, 1)
                asked = time.perf_counter()
                while elastic.states()[step] != LENT:
                    if time.perf_counter() - begin > 10:
                        raise RuntimeError("it does not come")
                times.append([(asked - begin) * 1e3, (time.perf_counter() - begin) * 1e3])
            begin = time.perf_counter_ns()
            n_taken = elastic.take(0, 8)
            return [times, (time.perf_counter_ns() - begin) / 8, n_taken]

    # -- content

    def content(self, chunk_bytes, lanes):
        """How many bytes of fresh steps are not zero, and of a step that was lent meanwhile not what they were."""
        steps, n_wrong, n_lost = 2, 0, 0
        with self.glake.Elastic(chunk_bytes, steps, lanes) as elastic:
            places = [elastic.ptr(step, lane) for step in range(steps) for lane in range(lanes)]
            for _ in range(3):
                elastic.commit(0, steps)
                for ptr in places:
                    n_wrong += chunk_bytes - self.gpu.read(ptr, chunk_bytes).count(0)
                    self.gpu.fill(ptr, chunk_bytes)
                self.gpu.wait()
                elastic.lend(0, steps)
                if elastic.take(0, steps) != steps:
                    raise RuntimeError("nobody needed it, and it has gone")
                for ptr in places:
                    n_lost += chunk_bytes - self.gpu.read(ptr, chunk_bytes).count(DIRT & 0xFF)
                elastic.lend(0, steps)
                elastic.give_back(0, steps)
        return [n_wrong, n_lost]

    def guard(self, chunk_bytes, lanes):
        """How many bytes of guarded holes are not zero: before another step came, to kernels meanwhile, and behind it."""
        with self.glake.Elastic(chunk_bytes, 3, lanes, guard=True) as elastic:
            def wrong(step):
                return sum(chunk_bytes - self.gpu.read(elastic.ptr(step, lane), chunk_bytes).count(0)
                           for lane in range(lanes))
            n_wrong = sum(map(wrong, range(3)))
            sums = [0]
            is_over = threading.Event()

            def read_on():
                stay = [self.gpu.words(elastic.ptr(step, lane), chunk_bytes) for step in (1, 2) for lane in range(lanes)]
                with self.gpu.torch.cuda.stream(self.gpu.torch.cuda.Stream()):
                    while not is_over.is_set():
                        sums[0] += sum(int(words.count_nonzero()) for words in stay)

            reader = threading.Thread(target=read_on)
            if self.gpu.torch is not None:
                reader.start()
            for _ in range(50):
                elastic.commit(0, 1)
                for lane in range(lanes):
                    self.gpu.fill(elastic.ptr(0, lane), chunk_bytes)
                self.gpu.wait()
                elastic.lend(0, 1)
                elastic.give_back(0, 1)
            is_over.set()
            if self.gpu.torch is not None:
                reader.join()
            return [n_wrong, sums[0], sum(map(wrong, range(3)))]

    # -- hand-over

    def has_torch(self):
        return self.gpu.torch is not None

    def lend_all(self):
        """What it has is dirty, and not needed. Work on it has ended."""
        for lane in range(self.elastic.lanes):
            self.gpu.fill(self.elastic.ptr(0, lane), self.elastic.steps * self.elastic.chunk_bytes)
        self.gpu.wait()
        self.elastic.lend(0, self.elastic.steps)

    def need_all(self):
        """Seconds until it is there, and until a kernel over all of it has ended; and whether it read zero."""
        elastic, n_bytes = self.elastic, self.elastic.steps * self.elastic.chunk_bytes
        begin = time.perf_counter()
        elastic.commit(0, elastic.steps)
        committed = time.perf_counter()
        if self.gpu.torch is None:
            is_zero = all(self.gpu.read(elastic.ptr(0, lane), 4096).count(0) == 4096 for lane in range(elastic.lanes))
            for lane in range(elastic.lanes):
                self.gpu.fill(elastic.ptr(0, lane), n_bytes)
            self.gpu.wait()
            return [committed - begin, time.perf_counter() - begin, is_zero, begin]
        if not self.kernels:
            self.kernels = [self.gpu.words(elastic.ptr(0, lane), n_bytes) for lane in range(elastic.lanes)]
            self.stream = self.gpu.torch.cuda.Stream()
        with self.gpu.torch.cuda.stream(self.stream):
            for words in self.kernels:
                words.add_(1)
            self.stream.synchronize()
            done = time.perf_counter()
            # What the kernel left says what was there.
            is_zero = all(bool((words == 1).all()) for words in self.kernels)
        return [committed - begin, done - begin, is_zero, begin]

    def watch(self):
        """When the first lent step was on its way, and when the last one had gone; for who asks, as time.perf_counter()."""
        first, end, gone = 0, time.perf_counter() + 20, [self.glake.elastic.HOLE] * self.elastic.steps
        while time.perf_counter() < end:
            states = self.elastic.states()
            if not first and any(state != self.glake.elastic.LENT for state in states):
                first = time.perf_counter()
            if states == gone:
                return [first, time.perf_counter()]
            time.sleep(1e-4)
        return [0, 0]

    def be_busy(self, wanted):
        """Or not: matrices are multiplied on a stream and by a thread of their own, some ms ahead."""
        if bool(self.busy) == wanted or self.gpu.torch is None:
            return
        if self.busy:
            self.is_over.set()
            self.busy.join()
            self.busy = None
            return
        torch = self.gpu.torch
        if self.matrices is None:
            self.matrices = [torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
            self.busy_stream = torch.cuda.Stream()
            torch.cuda.synchronize()
        self.is_over = threading.Event()
        self.busy = threading.Thread(target=self._multiply)
        self.busy.start()
        time.sleep(0.05)

    def _multiply(self):
        torch, (a, b) = self.gpu.torch, self.matrices
        with torch.cuda.stream(self.busy_stream):
            while not self.is_over.is_set():
                for _ in range(8):
                    torch.matmul(a, a, out=b)
                self.busy_stream.synchronize()

    # -- a process that has the rest of the device

    def fill_device(self):
        session, n_bytes, size = self.glake.default_session(), 0, 4 * GIB
        while size >= 16 * MIB:
            try:
                session.alloc(size)
                n_bytes += size
            except self.glake.OutOfMemoryError:
                size //= 2
        return n_bytes


# ---- the report ----------------------------------------------------------------------------------

def start(daemon, name, shim=False):
    return Child(daemon, name, [os.path.abspath(__file__), "--child"], shim=shim)


def at(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def costs(options):
    daemon = Daemon("pool = ();\nwarm_bytes = 0;\n")
    child = start(daemon, "costs")
    result = {}
    for mib in map(int, options.chunks.split(",")):
        step_bytes = mib * MIB * options.lanes
        steps = max(1, int(options.gib * GIB) // step_bytes)
        gib = steps * step_bytes / GIB
        for how, one_by_one, guard in (("at once", False, False), ("step by step", True, False),
                                       ("at once, guarded", False, True)):
            took = [child.ask("costs", mib * MIB, steps, options.lanes, one_by_one, guard) for _ in range(REPEATS)]
            if not all(took):
                break
            expect(all(run[3] == steps for run in took), f"{mib} MiB: not all steps went")
            opening, commit, back = ([run[i] * 1e3 / (gib if i else 1) for run in took] for i in range(3))
            result[f"{mib} {how}"] = [opening, commit, back]
            row(f"{mib} MiB x {options.lanes} lanes, {steps} steps, {how}",
                f"open {spread(opening)} ms, commit {spread(commit)}, return {spread(back)} ms/GiB", "<= 5 ms/GiB each")
    child.end()
    daemon.stop()
    return result


def states(options):
    daemon = Daemon()
    child = start(daemon, "states")
    times = child.ask("states")
    if times:
        row(f"lend, take: {N_STATES} steps in a call of Python", f"{times[0]:.1f}, {times[1]:.1f} ns a step")
        row("lend, take: one step in a call of Python", f"{times[2]:.0f}, {times[3]:.0f} ns")
    ahead = child.ask("ahead", 16 * MIB, options.lanes)
    if ahead:
        expect(ahead[2] == 8, f"{ahead[2]} of 8 steps that came ahead could be taken")
        call, come = ([step[i] for step in ahead[0][1:]] for i in range(2))
        row(f"ahead: a step of 16 MiB x {options.lanes} lanes", f"the call {spread(call, 3)}, until it is there "
            f"{spread(come)} ms; taken in {ahead[1]:.0f} ns", "0 driver calls in a decode step")
    child.end()
    daemon.stop()
    return times


def content(options):
    daemon = Daemon()
    child = start(daemon, "content")
    wrong = child.ask("content", 2 * MIB, options.lanes)
    expect(wrong == [0, 0], f"bytes that were not zero, and not kept: {wrong}")
    row("bytes of fresh steps that were not zero; that were lost while lent", wrong, "none")
    guarded = child.ask("guard", 2 * MIB, options.lanes)
    expect(guarded == [0, 0, 0], f"holes did not read zero: {guarded}")
    row("bytes of guarded holes that were not zero: before, by kernels meanwhile, behind", guarded, "none")
    child.end()
    daemon.stop()
    return wrong


def hand_over(options):
    result = {}
    handed_chunk = options.handed * MIB
    for shim in (False, True):
        if (not shim and options.where == "shim") or (shim and options.where == "plain"):
            continue
        daemon = Daemon(f"reserve_bytes = {RESERVE_BYTES};\npool = ();\nwarm_bytes = 0;\n")
        engines = [start(daemon, f"engine {i}", shim) for i in range(2)]
        steps = max(1, HANDED_BYTES // (handed_chunk * options.lanes))
        for engine in engines:
            engine.ask("open", handed_chunk, steps, options.lanes)
            # Whatever PyTorch makes at first is there before the device is full.
            engine.ask("need_all")
            engine.ask("be_busy", True)
            engine.ask("be_busy", False)
        engines[1].ask("lend_all")
        daemon_full = start(daemon, "who has the rest")
        # The second one's goes, too: one of them has all of it from here on.
        filled = daemon_full.ask("fill_device")
        expect(filled, "the device cannot be filled")
        has_torch = engines[0].ask("has_torch")
        n_all = 0
        modes = (("both idle", (False, False)), ("lender busy", (True, False)), ("both busy", (True, True)))
        for name, busy in modes[:3 if has_torch else 1]:
            took, stages = [], []
            for _ in range(options.rounds):
                lender, other = engines[n_all % 2], engines[(n_all + 1) % 2]
                n_all += 1
                lender.ask("be_busy", busy[0])
                other.ask("be_busy", busy[1])
                lender.ask("lend_all")
                lender.tell("watch")
                answer = other.ask("need_all")
                first, gone = lender.hear("watch") or [0, 0]
                if not answer:
                    break
                stages.append([(first - answer[3]) * 1e3, (gone - first) * 1e3, answer[0] * 1e3 - (gone - answer[3]) * 1e3])
                expect(answer[2], f"{name}: the memory did not read zero")
                took.append([seconds * 1e3 for seconds in answer[:2]])
            for engine in engines:
                engine.ask("be_busy", False)
            if len(took) == options.rounds:
                where = "under glake run" if shim else "without the shim"
                result[f"{name}, {where}"] = took
                parts = [f"{statistics.median(part):.2f}" for part in zip(*stages)]
                row(f"of that, {name}, {where}", f"until the lender gives {parts[0]}, gives {parts[1]}, until the commit's end "
                    f"{parts[2]} ms")
                for k, what in enumerate(("to its commit's end", "to its first kernel's end")):
                    values = [times[k] for times in took]
                    row(f"{steps * handed_chunk * options.lanes / GIB:g} GiB, {name}, {where}, {what}",
                        f"p50 {at(values, .5):.2f}, p99 {at(values, .99):.2f}, min {min(values):.2f} ms",
                        "p50 <= 12, p99 <= 25 ms" if k else "")
        for child in (*engines, daemon_full):
            child.end()
        daemon.stop()
    return result


PARTS = {"costs": costs, "states": states, "content": content, "hand_over": hand_over}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--chunks", default="2,4,8,16,64")
    parser.add_argument("--lanes", type=int, default=32)
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--handed", type=int, default=16, help="MiB of a chunk of what is handed over")
    parser.add_argument("--where", choices=["plain", "shim", "both"], default="both")
    parser.add_argument("--out")
    parser.add_argument("--child", action="store_true")
    options = parser.parse_args()
    if options.child:
        serve(Engine())
    result = {}
    for name in options.only.split(","):
        begin = time.perf_counter()
        try:
            result[name] = PARTS[name](options)
        except Exception as error:  # the others' results are shown all the same
            expect(False, f"{name}: {type(error).__name__}: {error}")
        print(f"# {name}: {time.perf_counter() - begin:.1f} s", flush=True)
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
    width = max((len(name) for name, _, _ in rows), default=0)
    print("\n".join([f"{name:<{width}}  {value}" + (f"   [{target}]" if target else "") for name, value, target in rows]
                    + failures + ["OK" if not failures else f"{len(failures)} FAILED"]), flush=True)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
