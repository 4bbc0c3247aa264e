# SPDX-License-Identifier: Apache-2.0
"""`glake replay` against PyTorch: do its models reserve what PyTorch's allocators reserved?

    python3 tests/gpu/replay.py [--only lora,full,generate,unet] [--steps 8] [--out FOLDER]

Runs workloads (workloads.py) with the history of allocations on, with PyTorch's caching allocator and
with expandable segments. Converts each history (`python -m glake.trace`) and replays it. In the table
    live      the peak of the trace, and PyTorch's own
    torch     what PyTorch's allocator reserved
    model     what the model of it reserves for the same trace
    stitch    what glake's allocator reserves for it on this GPU, without the program's kernels
Exit 1 when a model is off by more than 2 %, a live peak by anything, or a replay fails. FOLDER keeps traces.
"""
import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile

from run import ROOT, Daemon, expect, failures, script

WORKLOADS = ("lora", "full", "generate", "unet")
CONFIGURATIONS = {"caching": "", "expandable": "expandable_segments:True"}
MIB = 1 << 20


def record(workload, n_steps, path):
    """In a process of its own: the history must begin with the first allocation."""
    import torch
    torch.cuda.memory._record_memory_history(context=None)
    from workloads import WORKLOADS as by_name
    program = by_name[workload]("cuda", False)
    for _ in range(n_steps):
        program.step()
    torch.cuda.synchronize()
    torch.cuda.memory._dump_snapshot(path)
    stats = torch.cuda.memory_stats()
    print(json.dumps({"live": stats["requested_bytes.all.peak"],
                      "reserved": stats["reserved_bytes.all.peak"]}))


def replay(daemon, snapshot, trace, on):
    """Rows by allocator, and the trace's peak."""
    with open(trace, "w", encoding="ascii") as file:
        subprocess.run([sys.executable, "-m", "glake.trace", snapshot], stdout=file,
                       env=daemon.environment, check=True)
    done = subprocess.run([os.path.join(ROOT, "bin", "glake"), "replay", "--json", "--on", on, trace],
                          env=daemon.environment, capture_output=True, text=True, check=False)
    expect(done.returncode == 0, f"{trace}: {done.stderr}")
    answer = json.loads(done.stdout)
    return {row["name"]: row for row in answer["allocators"]}, answer


def compare(daemon, workload, name, options, folder):
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = CONFIGURATIONS[name]
    path = os.path.join(folder, f"{workload}-{name}")
    torch = script(None, "replay.py", "--record", path + ".pickle", "--only", workload, "--steps",
                   str(options.steps))
    if not torch:
        expect(False, f"{workload}, {name}: the program failed")
        return
    rows, trace = replay(daemon, path + ".pickle", path + ".trace", f"stitch,{name}")
    live, model = trace["peak_live_bytes"], rows[name]["peak_reserved_bytes"]
    ours = rows.get("stitch")
    print(f"{workload:9} {name:11} {trace['n_allocations']:8} {live / MIB:9.1f} "
          f"{torch['live'] / MIB:9.1f} {torch['reserved'] / MIB:9.0f} {model / MIB:9.0f} "
          f"{ours['peak_reserved_bytes'] / MIB if ours else 0:9.0f} "
          f"{ours['time_ns'] / 1e3 / trace['n_events'] if ours else 0:9.2f}", flush=True)
    expect(live == torch["live"], f"{workload}, {name}: another live peak")
    expect(abs(model / torch["reserved"] - 1) <= 0.02, f"{workload}, {name}: another reserved peak")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=",".join(WORKLOADS))
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--out")
    parser.add_argument("--record", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.record:
        record(options.only, options.steps, options.record)
        return
    daemon = Daemon()
    print(f"{'workload':9} {'allocator':11} {'allocs':>8} {'live':>9} {'torch':>9} {'torch':>9} "
          f"{'model':>9} {'stitch':>9} {'us/call':>9}", flush=True)
    with contextlib.ExitStack() as stack:
        folder = options.out or stack.enter_context(tempfile.TemporaryDirectory())
        os.makedirs(folder, exist_ok=True)
        for workload in options.only.split(","):
            for name in CONFIGURATIONS:
                compare(daemon, workload, name, options, folder)
    daemon.stop()
    print("\n".join(f"FAILED: {failure}" for failure in failures) or "OK")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
