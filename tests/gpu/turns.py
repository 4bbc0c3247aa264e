# SPDX-License-Identifier: Apache-2.0
"""Models that take turns on a GPU that holds some of them: whoever is asked wakes, and the coldest sleep.

    python3 tests/gpu/turns.py [--models 12] [--device-gib 40] [--seconds 60] [--seed 1] [--out FILE.json]

Each model is a process under `glake run` with 4 to 8 GB of weights, a part of which its request reads. Which model is asked
follows Zipf's law (exponent 1.0), one request at a time; `on_pressure = "sleep"` makes room. A request whose
program slept is a miss. Each result has to be that of the first request. Exit 1 when a request fails, or a result differs.
"""
import argparse
import json
import random
import statistics
import sys
import time

from child import Child, serve
from run import Daemon, expect, failures

MIB, GIB = 1 << 20, 1 << 30
PIECE = 128 * MIB


class Model:
    def __init__(self, number, n_bytes):
        import torch
        self.torch = torch
        generator = torch.Generator(device="cuda").manual_seed(number)
        self.tensors = [torch.empty(PIECE // 8, dtype=torch.int64, device="cuda").random_(generator=generator)
                        for _ in range(n_bytes // PIECE)]
        torch.cuda.synchronize()

    def request(self):
        """Reads all of it, once."""
        start = time.perf_counter()
        total = 0
        for tensor in self.tensors:
            total ^= int(tensor.sum())
        return [time.perf_counter() - start, total]


def percentile(values, part):
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def counters(daemon):
    return {row["name"]: row["value"] for row in daemon.ctl("stats")["metrics"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--serve", nargs=2, type=int)
    parser.add_argument("--models", type=int, default=12)
    parser.add_argument("--device-gib", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--host-gib", type=int, default=80)
    parser.add_argument("--ready-gib", type=int, default=40)
    parser.add_argument("--out")
    options = parser.parse_args()
    if options.serve:
        serve(Model(*options.serve))
    probe = Daemon()
    total = probe.device()["total_bytes"]
    probe.stop()
    daemon = Daemon(f'''mover_idle_ms = 0;
pool = ();
pressure = "wait";
wait_ms = 60000;
min_awake_ms = 500;
reserve_bytes = {total - options.device_gib * GIB};
host_bytes = "{options.host_gib}GiB";
host_ready_bytes = "{options.ready_gib}GiB";
tenants = ( {{ name = "default"; on_pressure = "sleep"; }} );
''')
    chance = random.Random(options.seed)
    sizes = [chance.randrange(int(4e9), int(8e9)) // PIECE * PIECE for _ in range(options.models)]
    models, first = [], []
    for i, size in enumerate(sizes):
        start = time.perf_counter()
        models.append(Child(daemon, f"model {i}", [__file__, "--serve", str(i), str(size)]))
        answer = models[-1].ask("request")
        expect(answer, f"model {i} does not start")
        first.append(answer[1] if answer else None)
        print(f"# model {i}: {size / 1e9:.2f} GB, started in {time.perf_counter() - start:.1f} s", flush=True)
    weights = [1 / (i + 1) for i in range(options.models)]
    before = counters(daemon)
    hits, misses, over = [], [], []
    end = time.monotonic() + options.seconds
    while time.monotonic() < end and not failures:
        i = chance.choices(range(options.models), weights)[0]
        slept = {row["pid"] for row in daemon.ctl("sleepers")["sleepers"]}
        answer = models[i].ask("request")
        if not answer:
            break
        expect(answer[1] == first[i], f"model {i}: another result")
        if models[i].process.pid in slept:
            misses.append(answer[0])
            over.append(answer[0] - sizes[i] / 45e9)
        else:
            hits.append(answer[0])
    after = counters(daemon)
    moved = {name: after[name] - before[name] for name in after if "sleep" in name or "wak" in name or "slept" in name
             or "woken" in name}
    hosts = daemon.ctl("status")["hosts"]
    for model in models:
        model.end()
    print(daemon.stop()[-1500:])
    result = {"sizes": sizes, "hits": hits, "misses": misses, "over": over, "moved": moved, "hosts": hosts}
    print("#", json.dumps(moved))
    if hits and misses:
        print(f"{options.models} models, {sum(sizes) / 1e9:.1f} GB, on {options.device_gib} GiB: {len(hits)} hits, "
              f"{len(misses)} misses in {options.seconds:.0f} s")
        print(f"hits: median {statistics.median(hits) * 1e3:.1f} ms, p99 {percentile(hits, 0.99) * 1e3:.1f} ms")
        print(f"misses: median {statistics.median(misses) * 1e3:.0f} ms, p99 {percentile(misses, 0.99) * 1e3:.0f} ms; "
              f"beyond bytes / 45 GB/s: median {statistics.median(over) * 1e3:.0f} ms, "
              f"p99 {percentile(over, 0.99) * 1e3:.0f} ms")
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
    print("\n".join(failures) or "OK")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
