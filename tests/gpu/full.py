# SPDX-License-Identifier: Apache-2.0
"""A program that fills the GPU, and one that seals: each call on sealed memory comes back, and writes what it should.

    python3 tests/gpu/full.py [SCENARIO ...]

Runs the scenarios of tests/shim/full.c, and those of tests/shim/seal.c that a GPU can run,
under `glake run`, one after the other. A line for each, with its seconds. Exit 1 when one fails or hangs, or when
blocks are left at the end.
"""
import os
import subprocess
import sys
import time

from run import ROOT, Daemon, expect, failures

SCENARIOS = [("full", name) for name in (
    "writes_come_back", "crowds_come_back", "writes_wait", "writes_find_a_moment",
    "writes_wait_for_a_thread", "writes_wait_for_their_copy", "seals_come_back", "copies_given_up", "zeroes_given_up")]
SCENARIOS += [("seal", name) for name in (
    "all_writes", "graphs", "sealed_destinations", "captures", "captures_beside_work",
    "captures_behind_work", "work_under_way", "numbers", "contexts_end")]
# A scenario that hangs ends by its own alarm before.
SECONDS = 300


def run_one(daemon, program, scenario):
    start = time.perf_counter()
    try:
        out = subprocess.run([os.path.join(ROOT, "bin", "glake"), "run", "--",
                              os.path.join(ROOT, "tests", "shim", program), scenario],
                             env=daemon.environment, capture_output=True, text=True, check=False,
                             timeout=SECONDS)
        code, text = out.returncode, out.stderr[-1000:]
    except subprocess.TimeoutExpired:
        code, text = "a hang", ""
    print(f"{program} {scenario}: {time.perf_counter() - start:.1f} s", flush=True)
    expect(code == 0, f"{program} {scenario} ended with {code}: {text}")


def main():
    daemon = Daemon()
    try:
        for program, scenario in SCENARIOS:
            if len(sys.argv) == 1 or scenario in sys.argv[1:]:
                run_one(daemon, program, scenario)
        n_bytes = daemon.device()["used_block_bytes"]
        expect(n_bytes == 0, f"{n_bytes} bytes of blocks are left")
    finally:
        daemon.stop()
    sys.exit(1 if failures else 0)


main()
