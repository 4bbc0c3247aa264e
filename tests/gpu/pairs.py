# SPDX-License-Identifier: Apache-2.0
"""What an allocation and its free cost in PyTorch, by allocator, in microseconds.

    python3 tests/gpu/pairs.py [--laps 15] [--pairs 20000]

    pair    a tensor of 8 MiB (or 4 KiB) is made and dropped
    churn   of 200 live tensors of 256 KiB to 32 MiB one is replaced

A process for each allocator, one after the other on the idle GPU: the median of all laps (lowest .. highest). The clock
of idle cores rises with the first of them, so the lowest say more. The allocators are those of fragment.py. Numbers are not judged.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time

from run import Daemon, ROOT

ALLOCATORS = {  # PyTorch's configuration, and whether under the shim
    "native": ("", False),
    "async": ("backend:cudaMallocAsync", False),
    "stitch": ("", True),
    "pluggable": ("", False)}
KIB, MIB = 1 << 10, 1 << 20
N_LIVE = 200


def pair(torch, n_bytes, n):
    for _ in range(n):
        torch.empty(n_bytes, dtype=torch.uint8, device="cuda")


def churn(torch, live, sizes):
    for at, n_bytes in sizes:
        live[at] = None
        live[at] = torch.empty(n_bytes, dtype=torch.uint8, device="cuda")


def measure(name, n_laps, n_pairs):
    import torch
    if name == "pluggable":
        import glake.torch
        glake.torch.use_allocator()
    live, randoms, laps = [None] * N_LIVE, random.Random(1), {}
    for lap in range(n_laps + 2):
        sizes = [(randoms.randrange(N_LIVE), int(256 * KIB * 2 ** (7 * randoms.random())))
                 for _ in range(n_pairs)]
        for label, call in (("8 MiB", lambda: pair(torch, 8 * MIB, n_pairs)),
                            ("4 KiB", lambda: pair(torch, 4 * KIB, n_pairs)),
                            ("churn", lambda: churn(torch, live, sizes))):
            begin = time.perf_counter()
            call()
            if lap >= 2:
                laps.setdefault(label, []).append((time.perf_counter() - begin) / n_pairs * 1e6)
    print(json.dumps(laps))


def run(daemon, name, arguments):
    configuration, is_shimmed = ALLOCATORS[name]
    environment = dict(daemon.environment, PYTORCH_CUDA_ALLOC_CONF=configuration)
    if not configuration:
        del environment["PYTORCH_CUDA_ALLOC_CONF"]
    command = [sys.executable, os.path.abspath(__file__), "--inside", name, *arguments]
    if is_shimmed:
        command = [os.path.join(ROOT, "bin", "glake"), "run", "--alloc=stitch", "--", *command]
    out = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in out.stdout.splitlines() if line.startswith("{")]
    if out.returncode != 0 or not lines:
        sys.exit(f"{name}: {out.stdout[-1000:]}{out.stderr[-2000:]}")
    cells = [f"{label} {statistics.median(laps):.2f} ({min(laps):.2f}..{max(laps):.2f})"
             for label, laps in json.loads(lines[-1]).items()]
    print(f"{name:10}", "   ".join(cells), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--laps", type=int, default=15)
    parser.add_argument("--pairs", type=int, default=20000)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        measure(options.inside, options.laps, options.pairs)
        return
    daemon = Daemon()
    for name in ALLOCATORS:
        run(daemon, name, ["--laps", str(options.laps), "--pairs", str(options.pairs)])
    daemon.stop()


main()
