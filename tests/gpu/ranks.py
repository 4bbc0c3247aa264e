# SPDX-License-Identifier: Apache-2.0
"""Ranks that wait for each other in NCCL while memory of one is sealed, or leaves the GPU. Needs two GPUs.

    python3 tests/gpu/ranks.py [--seconds 6] [--only threads,processes,threads-sleep,processes-sleep,waits]

Two programs under `glake run` hold equal weights on GPU 0. One only keeps them. In the other, two ranks
of NCCL, one on each GPU, sum without end, and meanwhile its weights are sealed, written by API, and
sealed again. With `threads` the ranks are threads of one process: a thread that waits at the gate may
be the one that the other's work on the GPU waits for, so the drain has to give up and try again. With
`processes` the other rank is a process of its own. With `-sleep` the ranks are put to sleep as well, at
random moments. With `waits` one rank's sum waits on its GPU for the other one, which has not begun: the
first is busy and says so, the second one sleeps, and both come to the end. What NCCL itself has stays on
the GPU. All sums and all bytes have to be right, and both ranks have to go on. Prints how often sealing
succeeded, was put off (busy), and how long the program's work was held back; how often ranks slept, and
what stayed, with its reasons. Exit 1 when something is wrong; no time decides.
"""
import argparse
import ctypes
import errno
import json
import os
import random
import subprocess
import sys
import threading
import time

from child import Child, serve
from run import ROOT, Daemon, expect, failures, n_gpus

MIB = 1 << 20
N_WEIGHTS = 16
WEIGHT_BYTES = 24 * MIB
N_ELEMENTS = 1 << 20
# A rank looks at its sums every so many.
N_SUMS = 50
# A program that works is busy after 5 seconds; only a hang takes so long.
HANG_SECONDS = 60
NCCL_FLOAT32, NCCL_SUM = 7, 0


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


class Nccl:
    def __init__(self):
        import torch
        torch.cuda.nccl.version()
        with open("/proc/self/maps", encoding="ascii") as file:
            path = next((line.split()[-1] for line in file if "/libnccl" in line), "libnccl.so.2")
        self._library = ctypes.CDLL(path)

    def call(self, name, *arguments):
        result = getattr(self._library, name)(*arguments)
        assert result == 0, f"{name}: {result}"


class Rank(threading.Thread):
    """Sums on one GPU until it is told to stop. Both ranks have to make equally many."""

    def __init__(self, nccl, communicator, ordinal):
        super().__init__(daemon=True)
        self.nccl, self.communicator, self.ordinal = nccl, communicator, ordinal
        self.n_rounds = 0
        self.n_wrong = 0
        self.error = None

    def run(self):
        import torch
        try:
            torch.cuda.set_device(self.ordinal)
            self.stream = torch.cuda.Stream()
            with torch.cuda.stream(self.stream):
                self.buffer = torch.empty(N_ELEMENTS, device="cuda")
                self.go = torch.empty(1, device="cuda")
                while self.round(torch):
                    self.n_rounds += 1
        except Exception as error:
            self.error = f"rank {self.ordinal}: {error}"

    def sum(self, tensor):
        self.nccl.call("ncclAllReduce", ctypes.c_void_p(tensor.data_ptr()),
                       ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.numel()),
                       NCCL_FLOAT32, NCCL_SUM, self.communicator,
                       ctypes.c_void_p(self.stream.cuda_stream))

    def round(self, torch):
        for _ in range(N_SUMS):
            self.buffer.fill_(self.ordinal + 1)
            self.sum(self.buffer)
        # Who of both knows that it is over says it to the other.
        self.go.fill_(1 if time.monotonic() < self.until else 0)
        self.sum(self.go)
        self.n_wrong += int((self.buffer != 3).sum())
        return self.go.item() == 2


class Program:
    def __init__(self):
        import torch
        self.torch = torch
        generator = torch.Generator().manual_seed(7)
        self.plain = [torch.randint(0, 256, (WEIGHT_BYTES,), generator=generator, dtype=torch.uint8)
                      for _ in range(N_WEIGHTS)]
        self.weights = [weight.cuda(0) for weight in self.plain]
        torch.cuda.synchronize()
        self.ranks = []

    def spans(self):
        return [(weight.data_ptr(), weight.nbytes) for weight in self.weights]

    def seal(self):
        import glake
        return vars(glake.seal(self.spans()))

    def unique_id(self):
        unique_id = UniqueId()
        Nccl().call("ncclGetUniqueId", ctypes.byref(unique_id))
        return bytes(unique_id).hex()

    def start(self, ordinals, seconds, unique_id):
        """Ranks on these GPUs, of two in all."""
        nccl = Nccl()
        communicators = [ctypes.c_void_p() for _ in ordinals]
        nccl.call("ncclGroupStart")
        for ordinal, communicator in zip(ordinals, communicators):
            self.torch.cuda.set_device(ordinal)
            nccl.call("ncclCommInitRank", ctypes.byref(communicator), 2,
                      UniqueId.from_buffer_copy(bytes.fromhex(unique_id)), ordinal)
        nccl.call("ncclGroupEnd")
        self.torch.cuda.set_device(0)
        for ordinal, communicator in zip(ordinals, communicators):
            rank = Rank(nccl, communicator, ordinal)
            # Joining NCCL takes seconds.
            rank.until = time.monotonic() + seconds
            self.ranks.append(rank)
            rank.start()
        return {}

    def seal_and_write(self):
        """Until the ranks are done."""
        import glake
        n = {"sealed": 0, "shared": 0, "busy": 0, "writes": 0, "refused writes": 0, "held_ms": 0,
             "longest_ms": 0}
        number = 0
        while any(rank.is_alive() for rank in self.ranks):
            try:
                sealed = glake.seal(self.spans())
                n["sealed"] += sealed.sealed_bytes == N_WEIGHTS * WEIGHT_BYTES
                n["shared"] += sealed.shared_bytes > 0
                n["held_ms"] += sealed.held_ns / 1e6
                n["longest_ms"] = max(n["longest_ms"], sealed.longest_held_ns / 1e6)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                n["busy"] += 1
            number = (number + 1) % N_WEIGHTS
            plain = self.plain[number].roll(1)
            try:
                self.weights[number].copy_(plain)
                self.plain[number] = plain
                n["writes"] += 1
            except self.torch.OutOfMemoryError:
                n["refused writes"] += 1
            except RuntimeError as error:
                if "out of memory" not in str(error):
                    raise
                n["refused writes"] += 1
        return n

    def finish(self):
        for rank in self.ranks:
            rank.join()
        return {"rounds": [rank.n_rounds for rank in self.ranks],
                "wrong": sum(rank.n_wrong for rank in self.ranks),
                "errors": [rank.error for rank in self.ranks if rank.error]}

    def sum_once(self):
        """All that a rank does between two sleeps, from its first launch on: the sum's first element."""
        rank = self.ranks[0]
        with self.torch.cuda.device(rank.ordinal), self.torch.cuda.stream(rank.stream):
            rank.buffer.fill_(rank.ordinal + 1)
            rank.sum(rank.buffer)
            rank.stream.synchronize()
            return {"sum": rank.buffer[-1].item(), "wrong": int((rank.buffer != 3).sum())}

    def look(self):
        return {"wrong": sum(int((weight.cpu() != plain).sum())
                             for weight, plain in zip(self.weights, self.plain))}


def put_to_sleep(program, daemon, n):
    """What stayed on the GPU, or None: it was busy."""
    try:
        out = subprocess.run([os.path.join(ROOT, "bin", "glakectl"), "--json", "sleep", str(program.process.pid)],
                             env=daemon.environment, capture_output=True, text=True, check=False,
                             timeout=HANG_SECONDS)
    except subprocess.TimeoutExpired:
        expect(False, f"{program.name}: glakectl sleep hangs")
        return None
    n["sleeps" if out.returncode == 0 else "too busy to"] += 1
    if out.returncode != 0:
        return None
    n["stays"] = json.loads(out.stdout)["stays"]
    return n["stays"]


def run_waits(daemon, kind):
    """A rank that waits on its GPU for one that sleeps."""
    child = [os.path.abspath(__file__), "--child"]
    ranks = [Child(daemon, f"{kind}: rank {i}", child, environment={"NCCL_NVLS_ENABLE": "0"}) for i in range(2)]
    unique_id = ranks[0].ask("unique_id")
    for rank, one in enumerate(ranks):
        one.tell("start", [rank], 1, unique_id)
    for one in ranks:
        one.hear("start")
    for one in ranks:
        one.tell("finish")
    expect(all(one.hear("finish").get("errors") == [] for one in ranks), f"{kind}: the ranks do not sum")
    n = {"sleeps": 0, "too busy to": 0}
    for first in (0, 1):
        one, other = ranks[first], ranks[1 - first]
        one.tell("sum_once")
        time.sleep(0.5)
        expect(put_to_sleep(one, daemon, n) is None, f"{one.name} sleeps, and its sum waits")
        expect(put_to_sleep(other, daemon, n) is not None, f"{other.name} does not sleep")
        time.sleep(0.5)
        sleepers = [row["pid"] for row in daemon.ctl("sleepers")["sleepers"]]
        expect(sleepers == [other.process.pid], f"{kind}: asleep are {sleepers}")
        other.tell("sum_once")
        for program in (one, other):
            got = program.hear("sum_once")
            expect(got.get("wrong") == 0, f"{program.name}: {got}")
        # Both asleep, and both awake.
        for program in ranks:
            expect(put_to_sleep(program, daemon, n) is not None, f"{program.name} does not sleep")
        for program in ranks:
            program.tell("sum_once")
        for program in ranks:
            got = program.hear("sum_once")
            expect(got.get("wrong") == 0, f"{program.name}, after both have slept: {got}")
    for program in ranks:
        expect(program.ask("look").get("wrong") == 0, f"{program.name}: wrong bytes")
        program.end()
    return n


def run(daemon, kind, seconds):
    if kind == "waits":
        return run_waits(daemon, kind)
    child = [os.path.abspath(__file__), "--child"]
    environment = {"NCCL_NVLS_ENABLE": "0"}
    keeper, worker = (Child(daemon, f"{kind}: {name}", child, environment=environment)
                      for name in ("keeper", "worker"))
    programs = [worker]
    total = N_WEIGHTS * WEIGHT_BYTES
    expect(keeper.ask("seal").get("sealed_bytes") == total, f"{kind}: the keeper's are not sealed")
    unique_id = worker.ask("unique_id")
    if kind.startswith("threads"):
        worker.ask("start", [0, 1], seconds, unique_id)
    else:
        programs.append(Child(daemon, f"{kind}: other rank", child, environment=environment))
        for rank, program in enumerate(programs):
            program.tell("start", [rank], seconds, unique_id)
        for program in programs:
            program.hear("start")
    worker.tell("seal_and_write")
    n = {"sleeps": 0, "too busy to": 0}
    chance, end = random.Random(1), time.monotonic() + seconds - 1
    while kind.endswith("sleep") and time.monotonic() < end:
        put_to_sleep(chance.choice(programs), daemon, n)
        time.sleep(chance.random() * 0.5)
    counts = {**worker.hear("seal_and_write"), **(n if kind.endswith("sleep") else {})}
    expect(not kind.endswith("sleep") or n["sleeps"] > 0, f"{kind}: nobody slept: {n}")
    ends = [program.ask("finish") for program in programs]
    rounds = [n for end in ends for n in end.get("rounds", [])]
    expect(len(set(rounds)) == 1 and len(rounds) == 2 and rounds[0] > 0, f"{kind}: rounds: {rounds}")
    expect(all(end.get("wrong") == 0 and end.get("errors") == [] for end in ends), f"{kind}: {ends}")
    for program in (keeper, worker):
        expect(program.ask("look").get("wrong") == 0, f"{program.name}: wrong bytes")
    expect(counts.get("sealed", 0) > 0 and counts.get("writes", 0) > 0, f"{kind}: {counts}")
    for program in (keeper, *programs):
        program.end()
    return {"rounds": rounds[:1], **counts}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--child", action="store_true")
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--only", default="threads,processes,threads-sleep,processes-sleep,waits")
    arguments = parser.parse_args()
    if arguments.child:
        serve(Program())
    if n_gpus() < 2:
        print("# skipped: less than two GPUs")
        sys.exit(0)
    daemon = Daemon('mover_idle_ms = 0;\nhost_bytes = "8GiB";\n')
    rows = {kind: run(daemon, kind, arguments.seconds) for kind in arguments.only.split(",")}
    daemon.stop()
    for kind, counts in rows.items():
        print(f"{kind:16} " + ", ".join(f"{key} {value:.1f}" if isinstance(value, float)
                                        else f"{key} {value}" for key, value in counts.items()))
    print("OK" if not failures else f"{len(failures)} FAILED")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
