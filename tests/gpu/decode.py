# SPDX-License-Identifier: Apache-2.0
"""How fast sealed weights are read, and what sealing holds up in a program that decodes.

    python3 tests/gpu/decode.py [--only graph,eager] [--layers 32] [--pairs 20] [--eager-pairs 200]

    graph    a captured graph that reads all weights of Llama-3-8B's shapes for one token: the GPU's time
    eager    transformers' Llama of the 1.1 B model's shapes, 4 layers of it, a launch by a launch: the
             CPU's time

Two processes under `glake run` have the same weights. One of them decodes in pairs of stretches: one with
sealed weights, one with private ones, a copy that was never sealed, in `graph` with a graph of its own.
Which comes first changes from pair to pair, so that a drift of the machine is nobody's. In `eager` the
shim also does more for a launch as long as anything is sealed. So the other process, when its weights are
private again, decodes in such pairs too: while one page beside them is sealed, and with nothing sealed. The
product of both is the speed of a sealed process in parts of one with nothing sealed. Both decode on one and
the same processor. Printed is the speed by the median token of a stretch: the median over pairs, and its 95 %
interval (bootstrap). Two controls say what such a pair shows without anything sealed: two copies that
are both private lie differently in memory, too. Then a process with the graph decodes on while it seals and unseals: printed is
by how much its tokens and launches meanwhile took longer than their median, in sum and at most, and the
same for as long a time without sealing. Numbers are not judged. Exit 1 when a process fails, or when the
tokens have other bits.
"""
import argparse
import copy
import gc
import math
import os
import random
import statistics
import sys
import threading
import time

from child import Child, serve
from run import Daemon, expect, failures

#: tokens of a stretch
STRETCH = {"graph": 40, "eager": 16}
EAGER_LAYERS = 4
CONTEXT = 64
#: glaked and the mover have memory to free when something has been unsealed: weights, or a page.
SETTLE_SECONDS = 2
PAGE_SETTLE_SECONDS = 0.02
N_RESAMPLES = 2000
#: printed at the end
report = []


# ---- in the process -----------------------------------------------------------------------------

class Graph:
    def __init__(self, layers, has_copy):
        import seal
        self.program = seal.Program(0, layers, False)
        self.program.tokens = self.program.tokens[:1, :1].clone()
        self.module = self.program.module
        self.private = copy.copy(self.program)
        if has_copy:
            self.private.module = copy.deepcopy(self.module)

    def prepare(self):
        """Once addresses are what they will be."""
        self.program.graph = self.now = self.program.capture()
        self.private.graph = self.private.capture()

    def begin(self, is_sealed):
        self.now = (self.program if is_sealed else self.private).graph

    def token(self):
        """Milliseconds of the launch."""
        begin = time.perf_counter()
        self.now.replay()
        launched = time.perf_counter()
        self.program.torch.cuda.synchronize()
        return (launched - begin) * 1e3

    def digest(self):
        self.program.captured.zero_()
        self.token()
        return self.program.digest(self.program.captured)


class Eager:
    def __init__(self, layers, has_copy):
        from shim_speed import llama
        self.torch, self.module = llama(EAGER_LAYERS)
        self.now = self.module.eval().requires_grad_(False)
        self.private = copy.deepcopy(self.module) if has_copy else None
        self.page = self.torch.nn.Linear(1024, 1024, bias=False, device="cuda",
                                         dtype=self.torch.bfloat16).requires_grad_(False)
        self.is_page_sealed = False

    def prepare(self):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        self.start_over()

    def begin(self, is_sealed):
        self.now = self.module if is_sealed or not self.private else self.private
        self.start_over()

    def seal_page(self, wanted):
        import glake.torch
        if wanted != self.is_page_sealed:
            (glake.torch.seal if wanted else glake.torch.unseal)(self.page)
            time.sleep(PAGE_SETTLE_SECONDS)
        self.is_page_sealed = wanted

    def start_over(self):
        from transformers import DynamicCache
        self.cache = DynamicCache()
        self.next = self.torch.full((1, 1), 17, device="cuda")
        self.tokens = []

    def token(self):
        if len(self.tokens) == CONTEXT:
            self.start_over()
        with self.torch.no_grad():
            out = self.now(self.next, past_key_values=self.cache, use_cache=True)
        self.next = out.logits[:, -1:].argmax(-1)
        self.tokens.append(int(self.next))
        return 0

    def digest(self):
        self.start_over()
        while len(self.tokens) < CONTEXT:
            self.token()
        return str(self.tokens)


class Program:
    def __init__(self, kind, layers, has_copy):
        self.kind = kind
        self.work = {"graph": Graph, "eager": Eager}[kind](layers, has_copy)
        # The decoding thread and the one that seals take turns with Python's lock.
        sys.setswitchinterval(1e-4)

    def start(self):
        """Tensors move here, once."""
        import glake.torch
        sealed = glake.torch.seal(self.work.module)
        self.is_sealed = True
        self.work.prepare()
        gc.collect()
        gc.freeze()
        return vars(sealed)

    def set_sealed(self, wanted):
        import glake.torch
        begin = time.perf_counter()
        if wanted != self.is_sealed:
            (glake.torch.seal if wanted else glake.torch.unseal)(self.work.module)
        self.is_sealed = wanted
        return (time.perf_counter() - begin) * 1e3

    def stretch(self, begin, is_sealed):
        """Milliseconds of its median token."""
        gc.collect()
        gc.disable()
        begin(is_sealed)
        for _ in range(4):
            self.work.token()
        times = []
        for _ in range(STRETCH[self.kind]):
            begin = time.perf_counter()
            self.work.token()
            times.append((time.perf_counter() - begin) * 1e3)
        gc.enable()
        return statistics.median(times)

    def take_pairs(self, n_pairs, begin):
        """Milliseconds of a token, sealed and private."""
        rows = []
        for number in range(n_pairs):
            row = {is_sealed: self.stretch(begin, is_sealed)
                   for is_sealed in ((True, False) if number % 2 else (False, True))}
            rows.append((row[True], row[False]))
        return rows

    def pairs(self, n_pairs):
        """The weights, sealed or not as they are, or a copy is used that is private."""
        return self.take_pairs(n_pairs, self.work.begin)

    def pairs_of_page(self, n_pairs, is_control=False):
        """
        The weights are private; something else is sealed, or nothing is. Each stretch comes behind a sealing and an
        unsealing: they leave the caches of the processor cold. The control has nothing sealed in either.
        """
        def begin(is_sealed):
            wanted = is_sealed and not is_control
            self.work.seal_page(not wanted)
            self.work.seal_page(wanted)
            self.work.begin(False)
        return self.take_pairs(n_pairs, begin)

    def bits(self):
        digests = []
        for wanted in (True, False, True):
            self.set_sealed(wanted)
            digests.append(self.work.digest())
        return digests

    def decode_while(self, function):
        """What the function returned, and tokens of meanwhile: (ms, ms of its launch)."""
        tokens, result = [], []
        done = threading.Event()

        def run():
            try:
                result.append(function())
            except Exception as error:
                result.append(error)
            done.set()

        for _ in range(8):
            self.work.token()
        thread = threading.Thread(target=run)
        thread.start()
        while not done.is_set():
            begin = time.perf_counter()
            launch_ms = self.work.token()
            tokens.append(((time.perf_counter() - begin) * 1e3, launch_ms))
        thread.join()
        if isinstance(result[0], Exception):
            raise result[0]
        return result[0], tokens

    def held(self, rounds):
        """Rows of what, ms of it, tokens, ms that tokens took too long in sum and at most, ms of
        launches likewise."""
        self.set_sealed(True)
        self.work.begin(True)
        rows = []
        for _ in range(rounds):
            for what, function in (("unseal", lambda: self.set_sealed(False)),
                                   ("seal", lambda: self.set_sealed(True)),
                                   ("nothing", lambda: time.sleep(0.4) or 400)):
                try:
                    ms, tokens = self.decode_while(function)
                except Exception as error:
                    return rows + [[what, repr(error)]]
                rows.append([what, ms, len(tokens), *too_long([t for t, _ in tokens]),
                             *too_long([launch for _, launch in tokens])])
        return rows


def too_long(values):
    usual = statistics.median(values)
    over = [value - usual for value in values if value > usual + 0.2]
    return sum(over), max(over, default=0)


# ---- the report ---------------------------------------------------------------------------------

def start(daemon, kind, options):
    arguments = [os.path.abspath(__file__), "--child", kind, "--layers", str(options.layers)]
    return [Child(daemon, f"{kind} {number}", [*arguments, *more])
            for number, more in enumerate(([], ["--copy"]))]


def say(line):
    report.append(line)
    print(f"# {line}", flush=True)


def turned(rows):
    """To divide by what they say."""
    return [(private, sealed) for sealed, private in rows or ()]


def speed(rows):
    """Of sealed weights in parts of that of private ones."""
    return statistics.median(private / sealed for sealed, private in rows)


def say_speed(what, *sets):
    """The product over sets of pairs."""
    if not all(sets):
        return
    drawn = sorted(math.prod(speed(random.choices(rows, k=len(rows))) for rows in sets)
                   for _ in range(N_RESAMPLES))
    say(f"{what}: {statistics.median(private for rows in sets for _, private in rows):.3f} ms a token; "
        f"x {math.prod(map(speed, sets)):.4f} ({drawn[N_RESAMPLES // 40]:.4f} .. "
        f"{drawn[-N_RESAMPLES // 40]:.4f}), {' and '.join(str(len(rows)) for rows in sets)} pairs  "
        "[>= 0.998]")


def same_bits(kind, child):
    digests = child.ask("bits")
    expect(digests and len(set(digests)) == 1, f"{kind}: other bits: {digests}")


def measure_eager(other, child, options):
    for process in (other, child):
        process.ask("start")
    same_bits("eager", child)
    time.sleep(SETTLE_SECONDS)
    weights = child.ask("pairs", options.eager_pairs)
    child.ask("set_sealed", False)
    time.sleep(SETTLE_SECONDS)
    copies = child.ask("pairs", options.eager_pairs)
    other.ask("set_sealed", False)
    time.sleep(SETTLE_SECONDS)
    page = other.ask("pairs_of_page", options.eager_pairs)
    nothing = other.ask("pairs_of_page", options.eager_pairs, True)
    say_speed("eager, sealed weights to a private copy", weights)
    say_speed("eager, control: the same weights, private, to that copy", copies)
    say_speed("eager, something else sealed to nothing", page)
    say_speed("eager, control: nothing sealed to nothing", nothing)
    say_speed("eager, sealed to nothing sealed, by the controls", weights, turned(copies), page,
              turned(nothing))


def measure_graph(other, child, options):
    other.ask("start")
    sealed = child.ask("start")
    expect(sealed.get("shared_bytes"), f"graph: nothing is shared: {sealed}")
    same_bits("graph", child)
    time.sleep(SETTLE_SECONDS)
    say_speed("graph, sealed weights to private ones", child.ask("pairs", options.pairs))
    held = child.ask("held", 3)
    for what in ("seal", "unseal", "nothing"):
        mine = [row[1:] for row in held or () if row[0] == what and len(row) > 2]
        if mine:
            ms, n, sum_ms, most_ms, launch_sum, launch_most = (
                statistics.median(column) for column in zip(*mine))
            say(f"graph, decoding meanwhile: {what} {ms:.0f} ms, {n:.0f} tokens; held {sum_ms:.1f} ms, "
                f"{most_ms:.1f} at most (worst {max(row[3] for row in mine):.1f}); launches "
                f"{launch_sum:.1f} ms, {launch_most:.1f} at most (worst "
                f"{max(row[5] for row in mine):.1f}){'  [<= 35 ms, <= 5]' if what == 'seal' else ''}")
    for row in held or ():
        if len(row) == 2:
            say(f"graph: {row}")


MEASURE = {"graph": measure_graph, "eager": measure_eager}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="graph,eager")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--eager-pairs", type=int, default=200)
    parser.add_argument("--child", choices=STRETCH)
    parser.add_argument("--copy", action="store_true")
    options = parser.parse_args()
    if options.child:
        serve(Program(options.child, options.layers, options.copy))
    random.seed(1)
    daemon = Daemon("mover_idle_ms = 600000;\n")
    # All at once: they take longer to start than to measure.
    children = {kind: start(daemon, kind, options) for kind in options.only.split(",")}
    for kind in children:
        begin = time.perf_counter()
        try:
            MEASURE[kind](*children[kind], options)
            for child in children[kind]:
                child.end()
        except Exception as error:
            expect(False, f"{kind}: {type(error).__name__}: {error}")
        print(f"# {kind}: {time.perf_counter() - begin:.1f} s", flush=True)
    daemon.stop()
    print("\n".join(["", *report, "OK" if not failures else f"{len(failures)} FAILED"]))
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
