# SPDX-License-Identifier: Apache-2.0
"""Models that take turns on a device that holds one: from host memory, beside the page cache.

    python3 tests/gpu/tiers.py [--layers 16] [--rounds 5] [--out FILE.json]

Writes a model (models.py) and one of which each number differs, and loads them in turn by load.py, each in a process of its own, with `demote` and
without it. The first loads of each glaked do not count: with `demote` they end when host memory has copies. Every
tensor of the last load is compared with its file. Exit 1 when something is wrong; no time decides.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import run
import torch
from safetensors.torch import load_file, save_file

GIB = 1 << 30


def write_other(path, other):
    """The same shapes, no equal number."""
    save_file({name: tensor.view(torch.int16).bitwise_xor(1).view(tensor.dtype)
               for name, tensor in load_file(path).items()}, other)


def counter(daemon, name):
    return next(row["value"] for row in daemon.ctl("stats")["metrics"] if row["name"] == name)


def wait_for_copies(daemon, n_blocks):
    start = time.perf_counter()
    while counter(daemon, "blocks_copied") < n_blocks:
        if time.perf_counter() - start > 60:
            run.expect(False, "the copies were not made in a minute")
            break
        time.sleep(0.005)
    return time.perf_counter() - start


def take_turns(paths, rounds, demotes, usable_bytes, total_bytes):
    daemon = run.Daemon(f'mover_idle_ms = 0;\npool = ();\ndemote = {"true" if demotes else "false"};\n'
                        f'host_bytes = "48GiB";\nreserve_bytes = {total_bytes - usable_bytes};\n')
    result = {"seconds": [], "gb_per_s": []}
    n_blocks = 0
    for path in paths:
        run.script(daemon, "load.py", "glake", path)
        if demotes:
            n_blocks = counter(daemon, "blocks_sealed")
            result.setdefault("copy_seconds", []).append(wait_for_copies(daemon, n_blocks))
    for i in range(rounds):
        for path in paths:
            last = ["--check"] if i + 1 == rounds else []
            done = run.script(daemon, "load.py", "glake", path, *last)
            result["seconds"].append(done["seconds"])
            result["gb_per_s"].append(done["gb_per_s"])
            if last:
                run.expect(done["equal"], f"{path}: other bytes")
    n_promoted = counter(daemon, "models_promoted")
    run.expect(n_promoted == (len(result["seconds"]) if demotes else 0), f"{n_promoted} promoted")
    result["hosts"] = daemon.ctl("status")["hosts"]
    daemon.ctl("evict", "--all")
    result["log"] = [line for line in daemon.stop().splitlines() if "loaded '" in line][-2:]
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out")
    options = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="glake-tiers-")
    subprocess.run([sys.executable, os.path.join(run.HERE, "models.py"), folder, "--layers",
                    str(options.layers)], check=True)
    paths = [os.path.join(folder, name) for name in ("base.safetensors", "other.safetensors")]
    write_other(*paths)
    n_bytes = os.path.getsize(paths[0])
    probe = run.Daemon()
    total = probe.device()["total_bytes"]
    probe.stop()
    results = {}
    for name, demotes in (("host memory", True), ("page cache", False)):
        results[name] = take_turns(paths, options.rounds, demotes, n_bytes * 3 // 2 // GIB * GIB, total)
    for name, result in results.items():
        print(f"{name}: {n_bytes / 1e9:.2f} GB, {run.spread(result['seconds'], 3)} s, "
              f"{run.spread(result['gb_per_s'], 1)} GB/s"
              + "".join(f", copied behind the load in {seconds:.3f} s"
                        for seconds in result.get("copy_seconds", ())))
        print("\n".join(result["log"]))
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
    print("\n".join(run.failures) or "OK")
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
