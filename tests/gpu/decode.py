# SPDX-License-Identifier: Apache-2.0
"""How fast sealed weights are read, and what sealing holds up in a program that decodes.

    python3 tests/gpu/decode.py [--only graph,eager] [--layers 32] [--pairs 24]

    graph    a captured graph that reads all weights of Llama-3-8B's shapes for one token: the GPU's time
    eager    transformers' Llama of 1.1 B parameters, a launch by a launch: the CPU's time

Two processes under `glake run` have the same weights, and share them. One of them decodes, in pairs of
stretches: one with sealed weights, one with private ones. Which comes first changes from pair to pair,
so that a drift of the machine is nobody's. The private weights of `graph` are a copy that was never
sealed, with a graph of its own; those of `eager` are the same ones, unsealed, so that nothing in the
process is sealed then. Printed is the median over pairs of the speed with sealed weights (by the median
token of a stretch) in parts of that with private ones, and its 95 % interval (bootstrap). Then it decodes on while it seals and unseals: printed is by how much
the tokens (and the launches of the graph) meanwhile took longer than their median, in sum and at
most, and the same for as long a time without sealing. Numbers are not judged. Exit 1 when a process
fails, or when the tokens have other bits.
"""
import argparse
import copy
import gc
import os
import random
import statistics
import sys
import threading
import time

from child import Child, serve
from load_pairs import interval
from run import Daemon, expect, failures

#: tokens of a stretch
STRETCH = {"graph": 40, "eager": 32}
CONTEXT = 64
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

    def begin(self, program, is_sealed):
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
        self.torch, self.module = llama()
        self.module.eval().requires_grad_(False)

    def prepare(self):
        self.start_over()

    def begin(self, program, is_sealed):
        program.set_sealed(is_sealed)
        self.start_over()

    def start_over(self):
        from transformers import DynamicCache
        self.cache = DynamicCache()
        self.next = self.torch.full((1, 1), 17, device="cuda")
        self.tokens = []

    def token(self):
        if len(self.tokens) == CONTEXT:
            self.start_over()
        with self.torch.no_grad():
            out = self.module(self.next, past_key_values=self.cache, use_cache=True)
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
        return vars(sealed)

    def set_sealed(self, wanted):
        import glake.torch
        begin = time.perf_counter()
        if wanted != self.is_sealed:
            (glake.torch.seal if wanted else glake.torch.unseal)(self.work.module)
        self.is_sealed = wanted
        return (time.perf_counter() - begin) * 1e3

    def stretch(self, is_sealed):
        """Milliseconds of its median token."""
        self.work.begin(self, is_sealed)
        for _ in range(4):
            self.work.token()
        times = []
        for _ in range(STRETCH[self.kind]):
            begin = time.perf_counter()
            self.work.token()
            times.append((time.perf_counter() - begin) * 1e3)
        return statistics.median(times)

    def pairs(self, n_pairs):
        self.set_sealed(True)
        gc.disable()
        rows = []
        for number in range(n_pairs):
            order = (True, False) if number % 2 else (False, True)
            row = {is_sealed: self.stretch(is_sealed) for is_sealed in order}
            rows.append([row[False], row[True]])
        gc.enable()
        return rows

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
        self.work.begin(self, True)
        self.set_sealed(True)
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


def measure(kind, other, child, options):
    """Prints what it finds as soon as it knows."""
    other.ask("start")
    sealed = child.ask("start")
    expect(sealed.get("shared_bytes"), f"{kind}: nothing is shared: {sealed}")
    digests = child.ask("bits")
    expect(digests and len(set(digests)) == 1, f"{kind}: other bits: {digests}")
    rows = child.ask("pairs", options.pairs)
    if rows:
        ratios = [private / sealed for private, sealed in rows]
        low, high = interval(ratios)
        say(f"{kind}: {statistics.median(p for p, _ in rows):.3f} ms a token; sealed x "
            f"{statistics.median(ratios):.4f} ({low:.4f} .. {high:.4f}) of private speed, "
            f"{len(rows)} pairs  [>= 0.998]")
    held = child.ask("held", 3)
    for what in ("seal", "unseal", "nothing"):
        mine = [row[1:] for row in held or () if row[0] == what and len(row) > 2]
        if mine:
            ms, n, sum_ms, most_ms, launch_sum, launch_most = (
                statistics.median(column) for column in zip(*mine))
            say(f"{kind}, decoding meanwhile: {what} {ms:.0f} ms, {n:.0f} tokens; held {sum_ms:.1f} ms, "
                f"{most_ms:.1f} at most (worst {max(row[3] for row in mine):.1f}); launches "
                f"{launch_sum:.1f} ms, {launch_most:.1f} at most (worst "
                f"{max(row[5] for row in mine):.1f}){'  [<= 35 ms, <= 5]' if what == 'seal' else ''}")
    for row in held or ():
        if len(row) == 2:
            say(f"{kind}: {row}")
    for one in (other, child):
        one.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="graph,eager")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--child", choices=STRETCH)
    parser.add_argument("--copy", action="store_true")
    options = parser.parse_args()
    if options.child:
        serve(Program(options.child, options.layers, options.copy))
    random.seed(1)
    daemon = Daemon("mover_idle_ms = 600000;\n")
    # All at once: they take longer to start than to measure.
    children = {kind: start(daemon, kind, options) for kind in options.only.split(",")}
    for kind, (other, child) in children.items():
        begin = time.perf_counter()
        try:
            measure(kind, other, child, options)
        except Exception as error:
            expect(False, f"{kind}: {type(error).__name__}: {error}")
        print(f"# {kind}: {time.perf_counter() - begin:.1f} s", flush=True)
    daemon.stop()
    print("\n".join(["", *report, "OK" if not failures else f"{len(failures)} FAILED"]))
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
