# SPDX-License-Identifier: Apache-2.0
"""How much of the memory that it reserves PyTorch uses, and how fast it is, by allocator.

    python3 tests/gpu/fragment.py [--only PART,...] [--allocators NAME,...] [--turns 15] [--cores N]
                                  [--out FILE.json]

Parts, of which the first four are the default (tests/gpu/workloads.py has the programs):
    lora      LoRA and recomputation, 16 layers of Llama shapes, batch 1-6, 200-2600 tokens
    full      full training with Adam and recomputation, the same sizes
    generate  transformers' generate(), batch 1-32, prompts of 64-2500 tokens
    unet      a convolution net's training, batch 1-8, sizes 48-200
    twins     a model trained from two streams: memory and speed against one stream
    phases    two processes under a quota of 24 GiB; one has 16-20 GiB while the other has 2
    batch     the largest batch of lora that 20 GiB hold
    cold      eight processes that only grow: bench_shim_crowd
Allocators:
    native, expandable, async     PyTorch's three, without glake
    stitch      under `glake run --alloc=stitch`
    pluggable   glake.torch.use_allocator(), without the shim
    again       native once more: what its speed differs by is what the measurement makes of nothing
    shim, shim-async    native and async, under the shim as it is

A workload has a process for each allocator, all at once: up to 120 GiB of the GPU. They warm up together,
until none reserves more, and then take turns, one lap each, in the same order. All draw the same sizes.
A lap is short, so that clocks, heat and neighbours are the same for all of a turn, and a turn is over before
a pool of glake gives back what it did not use for two rounds of five seconds. In the table
    live      the peak of what the program held, in bytes as asked for: the same number for all of a
              workload, from its native run
    reserved  the peak of what the allocator held for that: as glaked knows it of a process that
              stitches (`glakectl fragmentation`), else as PyTorch does
    torch     max_memory_allocated() over max_memory_reserved(), which for async and stitch are the
              pool's attributes
    speed     time of native's lap over that of this allocator's, in the same turn: the median of all
              turns, the quartiles, and in which bounds the true median is, 95 times of 100
    driver    handles mapped and unmapped per timed step
Each part's table is printed as soon as the part is over, and once more at the end; --out is written as it
goes. Numbers are not judged. Exit 1 when a process fails, when what it computes is not what native computes,
and when the two processes of `phases` do not both end well with stitch.
"""
import argparse
import contextlib
import gc
import json
import math
import os
import random
import signal
import statistics
import sys
import time

from child import Child, ask_all, serve
from run import Daemon, bench_program, expect, failures

GIB = 1 << 30
TABLE = ("lora", "full", "generate", "unet")
ALLOCATORS = {  # PyTorch's configuration, whether under the shim, and its options
    "native": ("", False, ()),
    "again": ("", False, ()),
    "expandable": ("expandable_segments:True", False, ()),
    "async": ("backend:cudaMallocAsync", False, ()),
    "stitch": ("", True, ("--alloc=stitch",)),
    "pluggable": ("", False, ()),
    "shim": ("", True, ()),
    "shim-async": ("backend:cudaMallocAsync", True, ())}
DEFAULT = {"table": "native,expandable,async,stitch,pluggable,again",
           "twins": "native,async,stitch", "phases": "stitch,shim,shim-async",
           "batch": "native,expandable,stitch"}
TWINS = ("one", "halves", "opposite")
#: Steps that are not timed: at first, and as often again while somebody reserves more than this part more.
N_WARM = {"lora": 8, "full": 8, "generate": 5, "unet": 30, "twins": 3}
MAX_WARM, GROWTH = 4, 0.01
LAP_SECONDS, N_TRIAL_STEPS = 0.4, 3
PHASES_QUOTA, SMALL_PHASE, BIG_PHASES, N_PHASES = 24 * GIB, 2, (16, 20), 8
BATCH_BYTES, N_BATCH_STEPS = 20 * GIB, 6
CONFIGURATIONS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "GLAKE_ALLOC")


# ---- in a process -------------------------------------------------------------------------------

class Program:
    def __init__(self, allocator, device):
        import torch
        self.torch = torch
        self.device = device
        self.is_tiny = device == "cpu"
        self.tensors = []
        if allocator == "pluggable" and device == "cuda":
            import glake.torch
            glake.torch.use_allocator()

    def pin(self, n_cores):
        """To the same ones as all others, of which one works at a time."""
        if n_cores:
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:n_cores])

    def synchronize(self):
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def start(self, name):
        from workloads import WORKLOADS
        self.workload = WORKLOADS[name](self.device, self.is_tiny)
        self.values = []

    def lap(self, n_steps):
        """Seconds."""
        begin = time.perf_counter()
        for _ in range(n_steps):
            self.values.append(self.workload.step())
        self.synchronize()
        return time.perf_counter() - begin

    def end(self):
        """What was computed."""
        return {"values": [float(value) for value in self.values]}

    def peaks(self):
        """As far as PyTorch knows them."""
        try:
            stats = self.torch.cuda.memory_stats()
        except (RuntimeError, AssertionError):  # of a pluggable allocator; without a GPU
            stats = {}
        return {name: stats.get(f"{name}_bytes.all.peak", 0)
                for name in ("requested", "allocated", "reserved")}

    def start_batch(self, n_bytes):
        """@n_bytes limits what PyTorch reserves, if not 0."""
        from workloads import Training
        torch = self.torch
        if n_bytes:
            torch.cuda.set_per_process_memory_fraction(
                n_bytes / torch.cuda.get_device_properties(0).total_memory)
        self.workload = Training(self.device, self.is_tiny, True)

    def fits(self, batch, n_steps):
        """Whether steps with that batch fit, of which one has the most tokens."""
        torch, training = self.torch, self.workload
        training.batch, training.random = (batch, batch), random.Random(1)
        if self.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        try:
            for i in range(n_steps):
                training.step(training.tokens[1] if i == n_steps // 2 else None)
            self.synchronize()
            return {"fits": True, **self.peaks()}
        except torch.OutOfMemoryError as error:
            why = str(error)[:300]
        # What the step had is gone with the error.
        training.optimizer.zero_grad()
        gc.collect()
        return {"fits": False, "why": why}

    def hold(self, gib, seed):
        """Holds tensors of so much in sum, others than before, and says how long that took."""
        torch, dice = self.torch, random.Random(seed)
        unit = 1 << (10 if self.is_tiny else 20)
        begin = time.perf_counter()
        self.tensors = []
        left = gib << 10
        try:
            while left:
                n_units = min(left, dice.randint(1, 700))
                left -= n_units
                value = dice.randint(1, 100)
                self.tensors.append((value, torch.full((n_units * unit,), value, dtype=torch.uint8,
                                                       device=self.device)))
            self.synchronize()
        except torch.OutOfMemoryError as error:
            return {"fits": False, "why": str(error)[:500]}
        return {"fits": True, "ms": (time.perf_counter() - begin) * 1e3}

    def check(self):
        """Whether every byte is as it was written."""
        return all(bool((tensor == value).all()) for value, tensor in self.tensors)


# ---- in the parent ------------------------------------------------------------------------------

@contextlib.contextmanager
def running(config=""):
    """A glaked."""
    daemon = Daemon(config)
    try:
        yield daemon
    finally:
        daemon.stop()


def quota(n_bytes):
    return f'tenants = ( {{ name = "default"; device_bytes = {n_bytes}L; }} );\n'


def start_child(daemon, allocator, device, what):
    conf, shim, options = ALLOCATORS[allocator]
    environment = {"PYTORCH_CUDA_ALLOC_CONF": conf} if conf else {}
    if allocator == "pluggable":
        environment["GLAKE_ALLOC"] = "stitch"
    return Child(daemon, f"{what}, {allocator}",
                 [os.path.abspath(__file__), "--child", allocator, "--device", device],
                 shim=shim, environment=environment, options=options)


def has_session(allocator):
    return allocator == "pluggable" or ALLOCATORS[allocator][1]


def memory_of(daemon, child):
    """What glaked knows of a process's memory: rows of `glakectl fragmentation`."""
    rows = daemon.ctl("fragmentation")["sessions"]
    return [row for row in rows if row["pid"] == child.process.pid]


def peaks_of(daemon, child, allocator):
    """Of PyTorch, and what glaked knows."""
    rows = memory_of(daemon, child) if has_session(allocator) else []
    return {**child.ask("peaks"), "rows": rows}


def reserved(result):
    """The peak: by glaked of a process that stitches, with what else the process has; else by PyTorch."""
    if any(row.get("stitches") for row in result["rows"]):
        return sum(row["peak_reserved_bytes"] if row["stitches"] else row["reserved_bytes"]
                   for row in result["rows"])
    return result.get("reserved", 0)


def live(result):
    """The peak, as asked for where that is known."""
    if any(row.get("stitches") for row in result["rows"]):
        return sum(row["peak_live_bytes"] if row["stitches"] else row["live_bytes"]
                   for row in result["rows"])
    return result.get("requested") or result.get("allocated", 0)


def drop_failed(children, answers):
    for name, answer in answers.items():
        if answer == {}:
            children.pop(name).end()


def tell_all(children, what, *arguments):
    """At the same time. Those that fail are children no more."""
    drop_failed(children, dict(zip(children, ask_all(children.values(), what, *arguments))))


def warm_up(children, n_steps, measure):
    """Until hardly any reserves more."""
    before = None
    for _ in range(MAX_WARM):
        tell_all(children, "lap", n_steps)
        after = {name: reserved(measure(name)) for name in children}
        if before and all(after[name] <= (1 + GROWTH) * before[name] for name in after):
            return
        before = after


def take_turns(children, what, n_turns):
    """Laps by child, one after the other, and how many steps a lap has."""
    seconds = {name: child.ask("lap", N_TRIAL_STEPS) for name, child in children.items()}
    drop_failed(children, seconds)
    trial = statistics.median(filter(None, seconds.values())) / N_TRIAL_STEPS
    n_steps = max(1, round(LAP_SECONDS / trial))
    laps = {name: [] for name in children}
    for turn in range(n_turns):
        seconds = {name: child.ask("lap", n_steps) for name, child in children.items()}
        drop_failed(children, seconds)
        for name in children:
            laps[name].append(seconds[name])
        print(f"# {what}, turn {turn}, {n_steps} steps, ms: " +
              " ".join(f"{name} {seconds[name] * 1e3:.0f}" for name in children), flush=True)
    return laps, n_steps


def end_all(children):
    for child in children.values():
        child.close()
    for child in children.values():
        child.end()


def run_together(daemon, programs, n_warm, options):
    """
    Results by name, of what did not fail: the laps and peaks. @programs: allocator and workload by name.
    """
    begin = time.perf_counter()
    children = {name: start_child(daemon, allocator, options.device, workload)
                for name, (allocator, workload) in programs.items()}
    everybody = dict(children)
    what = "/".join(sorted({workload for _, workload in programs.values()}))

    def measure(name):
        return peaks_of(daemon, children[name], programs[name][0])

    def note(text):
        print(f"# {what}: {text} after {time.perf_counter() - begin:.0f} s", flush=True)

    try:
        tell_all(children, "pin", options.cores)
        for name, child in children.items():
            child.tell("start", programs[name][1])
        drop_failed(children, {name: child.hear("start") for name, child in children.items()})
        note("started")
        warm_up(children, n_warm, measure)
        note("warm")
        before = {name: measure(name) for name in children}
        laps, n_steps = take_turns(children, what, options.turns)
        results = {name: {**child.ask("end"), **measure(name), "laps": laps[name],
                          "n_timed": N_TRIAL_STEPS + n_steps * options.turns,
                          "before": before[name]["rows"]} for name, child in children.items()}
        note("over")
        return results
    finally:
        end_all(everybody)


def is_equal(value, other):
    return math.isfinite(value) and abs(value - other) <= 0.02 * abs(other)


def check_values(workload, results):
    """What was computed is what native computed, but for the order of additions."""
    native = results.get("native") or next(iter(results.values()), None)
    for name, result in results.items():
        n_equal = sum(map(is_equal, result["values"], native["values"]))
        expect(n_equal >= 0.9 * len(native["values"]),
               f"{workload}, {name}: {n_equal} of {len(native['values'])} steps as in native")


def median_bounds(values):
    """Of what the values are drawn from: in 95 of 100 cases, whatever the distribution (sign test)."""
    n, n_out, tail = len(values), 0, 1
    while 2 * tail <= 0.05 * 2 ** n:
        n_out += 1
        tail += math.comb(n, n_out)
    ordered = sorted(values)
    return ordered[max(n_out - 1, 0)], ordered[min(n - n_out, n - 1)]


def speed_of(laps, base):
    """Text: base's laps over those of the same turns."""
    ratios = [b / lap for b, lap in zip(base, laps)]
    if len(ratios) < 2:
        return "-"
    first, middle, third = statistics.quantiles(ratios, n=4, method="inclusive")
    low, high = median_bounds(ratios)
    return f"{middle:.3f}  {first:.3f}..{third:.3f}  {low:.3f}..{high:.3f}"


SPEED_TITLE = f"{'speed':5}  {'quartiles':12}  {'95 % in':12}"


def rate(value, total):
    return f"{100 * value / total:6.1f} %" if total else f"{'-':>8}"


def calls_per_step(result):
    before, after = (sum(row["n_vmm_calls"] for row in result[key] if row.get("stitches"))
                     for key in ("before", "rows"))
    return f"{(after - before) / result['n_timed']:.1f}" if after else "-"


def measure_workload(workload, options, report):
    allocators = (options.allocators or DEFAULT["table"]).split(",")
    with running() as daemon:
        results = run_together(daemon, {name: (name, workload) for name in allocators},
                               N_WARM[workload], options)
    check_values(workload, results)
    native = results.get("native") or next(iter(results.values()))
    report.save(workload, results)
    report.row("")
    report.row(f"{'workload':9} {'allocator':11} {'live':>7} {'reserved':>9} {'live/res':>8} "
               f"{'torch':>8}  {SPEED_TITLE} driver")
    for name in allocators:
        result = results.get(name)
        if not result:
            report.row(f"{workload:9} {name:11} FAILED")
            continue
        speed = speed_of(result["laps"], native["laps"]) if result is not native else "-"
        report.row(f"{workload:9} {name:11} {live(native) / GIB:7.2f} "
                   f"{reserved(result) / GIB:9.2f} {rate(live(native), reserved(result))} "
                   f"{rate(result.get('allocated', 0), result.get('reserved', 0))}  {speed:33} "
                   f"{calls_per_step(result)}")


def measure_twins(options, report):
    """Speed is batches' time with one stream over that with two, in the same turn."""
    report.row("")
    report.row(f"{'twins':11} {'streams':9} {'live':>7} {'reserved':>9} {'live/res':>8} {'of one':>8} "
               f"{SPEED_TITLE} driver")
    for name in (options.allocators or DEFAULT["twins"]).split(","):
        with running() as daemon:
            results = run_together(daemon, {way: (name, f"twins-{way}") for way in TWINS},
                                   N_WARM["twins"], options)
        report.save(f"twins, {name}", results)
        one = results.get("one")
        for way in TWINS:
            result = results.get(way)
            if not result or not one:
                report.row(f"{name:11} {way:9} FAILED")
                continue
            expect(all(map(math.isfinite, result["values"])), f"twins, {name}, {way}: not finite")
            speed = speed_of(result["laps"], one["laps"]) if result is not one else "-"
            report.row(f"{name:11} {way:9} {live(result) / GIB:7.2f} {reserved(result) / GIB:9.2f} "
                       f"{rate(live(result), reserved(result))} "
                       f"{rate(reserved(result), reserved(one))} {speed:33} "
                       f"{calls_per_step(result)}")


def alternate(children, name):
    """How many phases went well, and the milliseconds it took to hold what was to be held."""
    dice = random.Random(1)
    times = []
    for phase in range(N_PHASES):
        big, small = children[phase % 2], children[(phase + 1) % 2]
        for child, gib in ((small, SMALL_PHASE), (big, dice.randint(*BIG_PHASES))):
            answer = child.ask("hold", gib, phase)
            if not answer.get("fits"):
                print(f"# phases, {name}: {child.name} in phase {phase}: "
                      f"{answer.get('why', 'failed')}", flush=True)
                return phase, times
        times.append(answer["ms"])
        expect(ask_all(children, "check") == [True, True], f"phases, {name}: other bytes")
    return N_PHASES, times


def measure_phases(options, report):
    report.row("")
    report.row(f"{'phases':11} of {N_PHASES}, 16-20 and 2 GiB under a quota of 24 GiB; ms to grow")
    for name in (options.allocators or DEFAULT["phases"]).split(","):
        with running('pressure = "wait"; wait_ms = 2000;\n' + quota(PHASES_QUOTA)) as daemon:
            children = [start_child(daemon, name, options.device, f"phases {i}") for i in range(2)]
            n_phases, times = alternate(children, name)
            for child in children:
                child.end()
        expect(n_phases == N_PHASES or name not in ("stitch", "pluggable"),
               f"phases, {name}: stopped in phase {n_phases}")
        report.save(f"phases, {name}", {"n_phases": n_phases, "ms": times})
        end = "both to the end" if n_phases == N_PHASES else f"stopped in phase {n_phases}"
        report.row(f"{name:11} {end:18} {' '.join(f'{ms:.0f}' for ms in times)}")


def most_that_can_fit(child):
    """Batches: what is live at the peak grows evenly with them."""
    two, three = (child.ask("fits", batch, 1).get("allocated", 0) for batch in (2, 3))
    return 2 + (BATCH_BYTES - two) // (three - two) if three > two else 2


def largest_batch(child, name, most):
    """The batch and its peaks. One that cannot fit is the first to be tried."""
    for batch in range(most + 1, 0, -1):
        answer = child.ask("fits", batch, N_BATCH_STEPS)
        print(f"# batch, {name}: {batch}: {answer}", flush=True)
        if not answer or answer["fits"]:
            return (batch, answer) if answer else (0, {})
    return 0, {}


def measure_batch(options, report):
    """A process for each allocator, which goes on when it was short of memory."""
    names = (options.allocators or DEFAULT["batch"]).split(",")
    report.row("")
    with running(quota(BATCH_BYTES)) as daemon:
        children = {name: start_child(daemon, name, options.device, "batch") for name in names}
        try:
            for name, child in children.items():
                is_bound = has_session(name) or options.device == "cpu"
                child.tell("start_batch", 0 if is_bound else BATCH_BYTES)
            for child in children.values():
                child.hear("start_batch")
            most = most_that_can_fit(children[names[0]])
            report.row(f"{'batch':11} the largest that fits in 20 GiB; what is live fits up to {most}")
            for name, child in children.items():
                batch, best = largest_batch(child, name, most)
                report.save(f"batch, {name}", {"batch": batch, **best})
                report.row(f"{name:11} {batch:3}  live {best.get('allocated', 0) / GIB:.2f} GiB")
        finally:
            end_all(children)


def measure_cold(report):
    bench_program(None, "bench_shim_crowd", "2")
    report.row("cold: see bench_shim_crowd above")


class Report:
    def __init__(self, path):
        self.path = path
        self.rows = []
        self.results = {}

    def row(self, text):
        self.rows.append(text)
        print(text, flush=True)

    def save(self, name, result):
        self.results[name] = result
        if self.path:
            with open(self.path, "w", encoding="ascii") as file:
                json.dump(self.results, file, indent=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=",".join(TABLE))
    parser.add_argument("--allocators")
    parser.add_argument("--turns", type=int, default=15)
    # Processes of a workload stay on so many cores, the same ones.
    parser.add_argument("--cores", type=int, default=0)
    parser.add_argument("--out")
    # On a CPU all shapes are tiny: it tries this program, and measures nothing.
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        serve(Program(options.child, options.device))
        return
    for name in CONFIGURATIONS:
        os.environ.pop(name, None)
    # What is cut off stops its glaked.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    chosen = options.only.split(",")
    report = Report(options.out)
    parts = [*((name, lambda name=name: measure_workload(name, options, report)) for name in TABLE),
             ("twins", lambda: measure_twins(options, report)),
             ("phases", lambda: measure_phases(options, report)),
             ("batch", lambda: measure_batch(options, report)),
             ("cold", lambda: measure_cold(report))]
    for name, measure in parts:
        try:
            if name in chosen:
                measure()
        except Exception as error:  # one part's failure must not hide the others' results
            import traceback
            traceback.print_exc()
            expect(False, f"{name}: {type(error).__name__}: {error}")
    print("\n".join(["", *report.rows]))
    for failure in failures:
        print(f"FAILED: {failure.splitlines()[0]}")
    print("OK" if not failures else f"{len(failures)} FAILED", flush=True)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
