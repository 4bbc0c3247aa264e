# SPDX-License-Identifier: Apache-2.0
"""How much of the memory that it reserves PyTorch uses, and how fast it is, by allocator.

    python3 tests/gpu/fragment.py [--only PART,...] [--allocators NAME,...] [--rounds 2] [--steps N]
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

Each workload has a process for each allocator and round. A round's processes start together, and then
work one after the other on the otherwise idle GPU: first steps that are not timed, then three laps. All
draw the same sizes. In the table
    live      the peak of what the program held, in bytes as asked for: the same number for all of a
              workload, from its native run
    reserved  the peak of what the allocator held for that: as glaked knows it of a process that
              stitches (`glakectl fragmentation`), else as PyTorch does
    torch     max_memory_allocated() over max_memory_reserved(), which for async and stitch are the
              pool's attributes
    speed     time of native's lap over that of this allocator's, in the same round: the median of all
              laps, with the lowest and highest; then of last laps only
    driver    handles mapped and unmapped per timed step
Numbers are not judged. Exit 1 when a process fails, when what it computes is not what native computes,
and when the two processes of `phases` do not both end well with stitch.
"""
import argparse
import contextlib
import json
import math
import os
import random
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
DEFAULT = {"table": "native,expandable,async,stitch,pluggable", "twins": "native,async,stitch",
           "phases": "stitch,shim,shim-async", "batch": "native,expandable,stitch"}
#: Steps that are not timed, and those of the three laps.
STEPS = {"lora": (6, 24), "full": (6, 24), "generate": (4, 15), "unet": (26, 90), "twins": (4, 15)}
N_LAPS = 3
PHASES_QUOTA, SMALL_PHASE, BIG_PHASES, N_PHASES = 24 * GIB, 2, (16, 20), 8
BATCH_BYTES, BATCHES, N_BATCH_STEPS = 20 * GIB, (1, 33), 10
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

    def ready(self):
        return True

    def synchronize(self):
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def start(self, name, n_steps):
        """Everything that is not timed."""
        from workloads import WORKLOADS
        self.workload = WORKLOADS[name](self.device, self.is_tiny)
        self.values = []
        return self.lap(n_steps)

    def lap(self, n_steps):
        """Seconds."""
        begin = time.perf_counter()
        for _ in range(n_steps):
            self.values.append(self.workload.step())
        self.synchronize()
        return time.perf_counter() - begin

    def end(self):
        """What was computed, and PyTorch's peaks, as far as it knows them."""
        return {"values": [float(value) for value in self.values], **self.peaks()}

    def peaks(self):
        try:
            stats = self.torch.cuda.memory_stats()
        except (RuntimeError, AssertionError):  # of a pluggable allocator; without a GPU
            stats = {}
        return {name: stats.get(f"{name}_bytes.all.peak", 0)
                for name in ("requested", "allocated", "reserved")}

    def fits(self, batch, n_bytes):
        """Whether some steps with that batch fit; @n_bytes limits what PyTorch reserves, if not 0."""
        from workloads import Training
        torch = self.torch
        if n_bytes:
            torch.cuda.set_per_process_memory_fraction(
                n_bytes / torch.cuda.get_device_properties(0).total_memory)
        try:
            training = Training(self.device, self.is_tiny, True, (batch, batch))
            for i in range(N_BATCH_STEPS):
                training.step(training.tokens[1] if i == N_BATCH_STEPS // 2 else None)
            self.synchronize()
        except torch.OutOfMemoryError as error:
            return {"fits": False, "why": str(error)[:500]}
        return {"fits": True, **self.peaks()}

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


def run_child(daemon, child, allocator, workload, n_steps):
    """A process's whole work."""
    n_warm, n_timed = n_steps
    if not child.ask("start", workload, n_warm):
        return None
    before = memory_of(daemon, child) if has_session(allocator) else []
    laps = []
    for _ in range(N_LAPS):
        laps.append(child.ask("lap", n_timed // N_LAPS))
        if not laps[-1]:
            return None
    result = child.ask("end")
    after = memory_of(daemon, child) if has_session(allocator) else []
    return {**result, "laps": laps, "before": before, "after": after} if result else None


def run_round(daemon, workload, allocators, n_steps, device):
    """Results by allocator; None of what failed."""
    children = {name: start_child(daemon, name, device, workload) for name in allocators}
    for child in children.values():
        child.tell("ready")
    for child in children.values():
        child.hear("ready")
    results = {}
    for name, child in children.items():
        results[name] = run_child(daemon, child, name, workload, n_steps)
        child.end()
        if results[name]:
            print(f"# {workload}, {name}: {sum(results[name]['laps']):.2f} s, reserved "
                  f"{reserved(results[name]) / GIB:.2f} GiB", flush=True)
    return results


def reserved(result):
    """The peak: by glaked of a process that stitches, with what else the process has; else by PyTorch."""
    if any(row.get("stitches") for row in result["after"]):
        return sum(row["peak_reserved_bytes"] if row["stitches"] else row["reserved_bytes"]
                   for row in result["after"])
    return result["reserved"]


def is_equal(value, other):
    return math.isfinite(value) and abs(value - other) <= 0.02 * abs(other)


def check_values(workload, results):
    """What was computed is what native computed, but for the order of additions."""
    native = results.get("native") or next(filter(None, results.values()), None)
    for name, result in results.items():
        if result:
            n_equal = sum(map(is_equal, result["values"], native["values"]))
            expect(n_equal >= 0.9 * len(native["values"]),
                   f"{workload}, {name}: {n_equal} of {len(native['values'])} steps as in native")


def paired(rounds, name):
    """Native's laps over those of the same rounds."""
    return [[base / lap for base, lap in zip(results["native"]["laps"], results[name]["laps"])]
            for results in rounds if results.get("native") and results.get(name)]


def rate(value, total):
    return f"{100 * value / total:6.1f} %" if total else f"{'-':>8}"


def calls_per_step(result, n_timed):
    before, after = (sum(row["n_vmm_calls"] for row in result[key] if row.get("stitches"))
                     for key in ("before", "after"))
    return f"{(after - before) / n_timed:.1f}" if after else "-"


def table_rows(workload, rounds, allocators, n_timed):
    """As text."""
    def median(of, name):
        values = [of(results[name]) for results in rounds if results.get(name)]
        return statistics.median(values) if values else 0

    live = median(lambda r: r["requested"] or r["allocated"],
                  "native" if "native" in allocators else allocators[0])
    for name in allocators:
        n_bytes = median(lambda r: reserved(r), name)
        torch = [median(lambda r: r[key], name) for key in ("allocated", "reserved")]
        laps = paired(rounds, name)
        ratios = [ratio for lap in laps for ratio in lap]
        speed = "-"
        if ratios and name != "native":
            speed = (f"{statistics.median(ratios):.3f} ({min(ratios):.3f}..{max(ratios):.3f})  "
                     f"{statistics.median(lap[-1] for lap in laps):.3f}")
        last = next((results[name] for results in rounds[::-1] if results.get(name)), None)
        yield (f"{workload:9} {name:11} {live / GIB:7.2f} {n_bytes / GIB:9.2f} "
               f"{rate(live, n_bytes)} {rate(*torch)}  {speed:32} "
               f"{calls_per_step(last, n_timed) if last else 'FAILED'}")


def measure_table(options, workloads):
    """The rows, and all results."""
    allocators = (options.allocators or DEFAULT["table"]).split(",")
    rows = [f"{'workload':9} {'allocator':11} {'live':>7} {'reserved':>9} {'live/res':>8} "
            f"{'torch':>8}  {'speed, native = 1; last lap':32} driver"]
    everything = {}
    for workload in workloads:
        n_warm, n_timed = STEPS[workload]
        n_timed = options.steps or n_timed
        rounds = []
        for number in range(options.rounds):
            # Not always the same one first.
            order = allocators[::-1] if number % 2 else allocators
            with running() as daemon:
                rounds.append(run_round(daemon, workload, order, (n_warm, n_timed),
                                        options.device))
            check_values(workload, rounds[-1])
        everything[workload] = rounds
        rows += table_rows(workload, rounds, allocators, n_timed // N_LAPS * N_LAPS)
    return rows, everything


def measure_twins(options):
    n_warm, n_timed = STEPS["twins"]
    n_timed = options.steps or n_timed
    rows = [f"{'twins':11} {'streams':9} {'reserved':>9} {'of one':>8} {'s/step':>8} {'speed':>8}"]
    everything = {}
    for name in (options.allocators or DEFAULT["twins"]).split(","):
        one = None
        for way in ("one", "halves", "opposite"):
            with running() as daemon:
                child = start_child(daemon, name, options.device, f"twins-{way}")
                result = run_child(daemon, child, name, f"twins-{way}", (n_warm, n_timed))
                child.end()
            everything[f"{name}, {way}"] = result
            if not result:
                rows.append(f"{name:11} {way:9} FAILED")
                continue
            expect(all(map(math.isfinite, result["values"])), f"twins, {name}, {way}: not finite")
            one = one or result
            n_bytes, seconds = reserved(result), statistics.median(result["laps"])
            rows.append(f"{name:11} {way:9} {n_bytes / GIB:9.2f} {rate(n_bytes, reserved(one))} "
                        f"{seconds / (n_timed // N_LAPS):8.4f} "
                        f"{statistics.median(one['laps']) / seconds:8.3f}")
    return rows, everything


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


def measure_phases(options):
    rows = [f"{'phases':11} of {N_PHASES}, 16-20 and 2 GiB under a quota of 24 GiB; ms to grow"]
    everything = {}
    for name in (options.allocators or DEFAULT["phases"]).split(","):
        with running('pressure = "wait"; wait_ms = 2000;\n' + quota(PHASES_QUOTA)) as daemon:
            children = [start_child(daemon, name, options.device, f"phases {i}") for i in range(2)]
            n_phases, times = alternate(children, name)
            for child in children:
                child.end()
        expect(n_phases == N_PHASES or name not in ("stitch", "pluggable"),
               f"phases, {name}: stopped in phase {n_phases}")
        everything[name] = {"n_phases": n_phases, "ms": times}
        end = "both to the end" if n_phases == N_PHASES else f"stopped in phase {n_phases}"
        rows.append(f"{name:11} {end:18} {' '.join(f'{ms:.0f}' for ms in times)}")
    return rows, everything


def largest_batch(daemon, name, device):
    """The batch and its peaks. A process for each try: one that was short of memory is no measure."""
    limit = 0 if has_session(name) or device == "cpu" else BATCH_BYTES
    low, high = BATCHES
    best = {}
    while high - low > 1:
        batch = (low + high) // 2
        child = start_child(daemon, name, device, f"batch {batch}")
        answer = child.ask("fits", batch, limit)
        child.end()
        if not answer:
            return 0, {}
        print(f"# batch, {name}: {batch}: {answer}", flush=True)
        if answer["fits"]:
            low, best = batch, answer
        else:
            high = batch
    return low, best


def measure_batch(options):
    rows = [f"{'batch':11} the largest that fits in 20 GiB"]
    everything = {}
    for name in (options.allocators or DEFAULT["batch"]).split(","):
        with running(quota(BATCH_BYTES)) as daemon:
            batch, best = largest_batch(daemon, name, options.device)
        everything[name] = {"batch": batch, **best}
        rows.append(f"{name:11} {batch:3}  live {best.get('allocated', 0) / GIB:.2f} GiB")
    return rows, everything


def measure_cold():
    bench_program(None, "bench_shim_crowd", "2")
    return ["cold: see bench_shim_crowd above"], {}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=",".join(TABLE))
    parser.add_argument("--allocators")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=0)
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
    chosen = options.only.split(",")
    parts = [(name, measure) for name, measure in (
        ("table", lambda: measure_table(options, [w for w in TABLE if w in chosen])),
        ("twins", lambda: measure_twins(options)), ("phases", lambda: measure_phases(options)),
        ("batch", lambda: measure_batch(options)), ("cold", measure_cold))
        if name in chosen or name == "table" and set(chosen) & set(TABLE)]
    rows, everything = [], {}
    for name, measure in parts:
        try:
            lines, everything[name] = measure()
            rows += ["", *lines]
        except Exception as error:  # one part's failure must not hide the others' results
            import traceback
            traceback.print_exc()
            expect(False, f"{name}: {type(error).__name__}: {error}")
    rows += [f"FAILED: {failure.splitlines()[0]}" for failure in failures]
    rows.append("OK" if not failures else f"{len(failures)} FAILED")
    print("\n".join(rows), flush=True)
    if options.out:
        with open(options.out, "w", encoding="ascii") as file:
            json.dump(everything, file, indent=1)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
