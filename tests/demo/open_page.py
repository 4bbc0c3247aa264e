#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a page that stays open costs: processor time of glaked and of glake-metrics beside many sessions, while a page asks as
map_page.html does, each five seconds, and a Prometheus scrapes each 15.

    tests/demo/open_page.py [--gpus N] [--programs N] [--minutes N] [--build BUILD]

It asks by HTTP itself, so no browser competes for the processor. It needs root, as crowd.py does.
"""
import argparse
import http.client
import os
import socket
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)
from tests.demo.crowd import Crowd  # noqa: E402

PERIOD_S, SCRAPES = 5, 3


def spent_s(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid):
    with open(f"/proc/{pid}/statm", encoding="utf-8") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def ask(connection, path):
    connection.request("GET", path)
    answer = connection.getresponse()
    text = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{path}: {answer.status}")
    return len(text)


def watch(crowd, port, minutes):
    server = subprocess.Popen(["glakectl", "metrics", "--serve", f"127.0.0.1:{port}"], env=crowd.env,
                              stderr=subprocess.PIPE, text=True)
    try:
        server.stderr.readline()
        ask(http.client.HTTPConnection("127.0.0.1", port, timeout=60), "/")
        time.sleep(PERIOD_S)
        pids = (crowd.daemon.pid, server.pid)
        began, before = time.monotonic(), [spent_s(pid) for pid in pids]
        sizes, rounds, slowest = {}, 0, 0
        while time.monotonic() - began < minutes * 60:
            for path in ["/api/v1/memory"] + (["/metrics"] if rounds % SCRAPES == 0 else []):
                asked = time.monotonic()
                sizes[path] = ask(http.client.HTTPConnection("127.0.0.1", port, timeout=60), path)
                slowest = max(slowest, time.monotonic() - asked)
            rounds += 1
            time.sleep(max(0, began + rounds * PERIOD_S - time.monotonic()))
        took = time.monotonic() - began
        parts = [100 * (spent_s(pid) - was) / took for pid, was in zip(pids, before)]
        print(f"{took / 60:.1f} minutes, {rounds} rounds, bytes {sizes}, slowest answer {slowest:.2f} s, load "
              f"{os.getloadavg()[2]:.1f}")
        print(f"glaked {parts[0]:.2f} % of a core, glake-metrics {parts[1]:.2f} %, together {sum(parts):.2f} %; "
              f"resident {resident_mib(pids[0]):.0f} and {resident_mib(pids[1]):.0f} MiB")
    finally:
        server.terminate()
        server.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    arguments = parser.parse_args()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    with Crowd(arguments.gpus, arguments.programs, arguments.build) as crowd:
        watch(crowd, port, arguments.minutes)


if __name__ == "__main__":
    main()
