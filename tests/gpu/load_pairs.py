# SPDX-License-Identifier: Apache-2.0
"""Compare the loads of several builds, one load of each by turns, on one machine.

    python3 load_pairs.py FILE TREE TREE... [--rounds 40] [--seed 1]

TREE is an unpacked tarball (make dist). Each tree's glaked runs all the time, with its mover, and its
store is emptied after each load. A machine's speed drifts by a fifth within a minute, so builds that are
measured one after the other cannot be compared: the rows give the median of each build and the median
difference to the first one within a round, with its 95 % interval (bootstrap).
"""
import argparse
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile

RESAMPLES = 2000


class Build:
    """A tree and its running glaked."""

    def __init__(self, tree):
        self.tree = os.path.abspath(tree)
        folder = tempfile.mkdtemp(prefix="glake-pairs-")
        self.socket = os.path.join(folder, "glaked.sock")
        self.milliseconds = []
        config = os.path.join(folder, "glaked.conf")
        with open(config, "w", encoding="ascii") as file:
            file.write("mover_idle_ms = 3600000;\n")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify, \
                open(os.path.join(folder, "log"), "w", encoding="utf-8") as log:
            notify.bind(os.path.join(folder, "notify"))
            notify.settimeout(60)
            self.glaked = subprocess.Popen(
                [self.program("glaked"), "--config", config, "--socket", self.socket], stderr=log,
                env={**os.environ, "NOTIFY_SOCKET": os.path.join(folder, "notify")})
            while b"READY=1" not in notify.recv(4096):
                pass

    def program(self, name, folder="bin"):
        return os.path.join(self.tree, folder, name)

    def load(self, path):
        """Milliseconds from the request until the model is mapped, in a fresh process."""
        out = subprocess.run([self.program("bench_model", "tests/bench"), path, "--loads", "1",
                              "--runs", "0", "--socket", self.socket],
                             capture_output=True, text=True, check=False)
        line = re.search(r"^ *load +([0-9.]+) ms", out.stdout, re.MULTILINE)
        if not line:
            sys.exit(f"{self.tree}: {out.stdout}{out.stderr}")
        subprocess.run([self.program("glakectl"), "--socket", self.socket, "evict", "--all"],
                       capture_output=True, check=True)
        return float(line.group(1))

    def stop(self):
        self.glaked.send_signal(signal.SIGTERM)
        self.glaked.wait(timeout=60)


def interval(values):
    medians = sorted(statistics.median(random.choices(values, k=len(values)))
                     for _ in range(RESAMPLES))
    return medians[RESAMPLES // 40], medians[-RESAMPLES // 40 - 1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("trees", nargs="+", metavar="TREE")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    random.seed(options.seed)
    builds = [Build(tree) for tree in options.trees]
    try:
        for build in builds:
            build.load(options.file)  # starts the mover
        for _ in range(options.rounds):
            for build in random.sample(builds, len(builds)):
                build.milliseconds.append(build.load(options.file))
    finally:
        for build in builds:
            build.stop()
    gigabytes = os.path.getsize(options.file) / 1e9
    for build in builds:
        median = statistics.median(build.milliseconds)
        differences = [mine - first for mine, first in zip(build.milliseconds,
                                                           builds[0].milliseconds)]
        low, high = interval(differences)
        print(f"{build.tree}: {median:.1f} ms ({gigabytes / median * 1e3:.1f} GB/s), to the first "
              f"{statistics.median(differences):+.1f} ms ({low:+.1f} .. {high:+.1f})")


if __name__ == "__main__":
    main()
