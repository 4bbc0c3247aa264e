# SPDX-License-Identifier: Apache-2.0
"""Sealing from outside against programs that were written to break it (tests/shim/outside.c).

    python3 tests/gpu/adversary.py [--only adversary,endless,...] [--times 20]

Each runs under `glake run` and is asked to seal, again and again, while it ends contexts, captures streams, or fills
the GPU with kernels that wait for the host. It checks its own bytes and ends with 0. Exit 1 when one does not, or
hangs, when a context appears that the program does not have, or when an ask fails otherwise than by "busy".
"""
import argparse
import os
import subprocess
import sys

from run import ROOT, Daemon, expect, failures

# How often each waits for a line, and the MiB of blocks in the end (None: it depends).
PROGRAMS = {"carved": (1, 2), "own_context": (2, 12), "endless": (2, 4), "resets": (1, None),
            "releases": (1, None), "destroys": (1, None), "adversary": (2, 12)}
OK, BUSY = 0, 6
PATIENCE_SECONDS = 400


def seal(daemon, pid):
    return subprocess.run([os.path.join(ROOT, "bin", "glakectl"), "seal", str(pid)], env=daemon.environment,
                          capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)


def scenario(name, times):
    daemon = Daemon()
    n_lines, _ = PROGRAMS[name]
    program = subprocess.Popen([os.path.join(ROOT, "bin", "glake"), "run", "--socket", daemon.socket, "--",
                                os.path.join(ROOT, "tests", "shim", "outside"), name], env=daemon.environment,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    codes = []
    for line in range(n_lines):
        program.stdout.readline()
        for _ in range(times if line == 0 else 1):
            done = seal(daemon, program.pid)
            codes.append(done.returncode)
            expect(done.returncode in (OK, BUSY), f"{name}: {done.returncode}: {done.stderr}")
        if line + 1 == n_lines and PROGRAMS[name][1]:
            sealed = daemon.device()["used_block_bytes"] >> 20
            expect(sealed == PROGRAMS[name][1], f"{name}: {sealed} MiB are sealed")
        program.stdin.write("\n")
        program.stdin.flush()
    try:
        _, errors = program.communicate(timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        program.kill()
        _, errors = program.communicate()
    expect(program.returncode == 0, f"{name} ended with {program.returncode}: {errors[-2000:]}")
    daemon.stop()
    print(f"{name}: {codes.count(OK)} sealings, {codes.count(BUSY)} times busy", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(PROGRAMS))
    parser.add_argument("--times", type=int, default=20)
    options = parser.parse_args()
    for name in options.only.split(","):
        scenario(name, options.times if name not in ("endless",) else 2)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
