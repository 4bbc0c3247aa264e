# SPDX-License-Identifier: Apache-2.0
"""Models that take turns on a GPU that holds some of them: whoever is asked wakes, and the coldest sleep.

    python3 tests/gpu/turns.py [--models 12] [--device-gib 40] [--hits 20] [--seconds 60] [--rate 4] [--rate-seconds 60]
                               [--seed 1] [--out FILE.json]

Each model is a process under `glake run` with 4 to 8 GB of weights, which its request reads. `on_pressure = "sleep"` makes
room. Three parts, of so many seconds each: requests to models that are awake, for comparison; models by Zipf's law (exponent
1.0), one request at a time; the same at so many requests a second. A request whose program slept is a miss. Shown is what misses
took beyond their bytes at 45 GB/s: in all, and in glaked from the grant of their memory on. Each result has to be that
of the first request. Exit 1 when a request fails, or a result differs.
"""
import argparse
import json
import random
import statistics
import sys
import threading
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


def told(values):
    return (f"median {statistics.median(values) * 1e3:.1f} ms, p99 {percentile(values, 0.99) * 1e3:.1f} ms"
            if values else "none")


class Part:
    """Requests and what became of them; any thread, each model's one at a time."""

    def __init__(self, daemon, models, sizes, first):
        self.daemon, self.models, self.sizes, self.first = daemon, models, sizes, first
        self.turns = [threading.Lock() for _ in models]
        self.hits, self.misses, self.queued = [], [], []
        self.over, self.granted = [], []
        self.unseen = {}

    def sleepers(self):
        """Of programs that sleep again glaked tells what their last wake took."""
        rows = {row["pid"]: row for row in self.daemon.ctl("sleepers")["sleepers"]}
        for i in list(self.unseen):
            row = rows.get(self.models[i].process.pid)
            if row and row["state"] == "asleep":
                self.unseen.pop(i, None)
                self.granted.append(row["woke_ns"] / 1e9 - self.sizes[i] / 45e9)
        return rows

    def ask(self, i):
        """False: it failed."""
        start = time.perf_counter()
        with self.turns[i]:
            slept = self.models[i].process.pid in self.sleepers()
            self.queued.append(time.perf_counter() - start)
            answer = self.models[i].ask("request")
        if not answer:
            return False
        expect(answer[1] == self.first[i], f"model {i}: another result")
        if slept:
            self.misses.append(answer[0])
            self.over.append(answer[0] - self.sizes[i] / 45e9)
            self.unseen[i] = True
        else:
            self.hits.append(answer[0])
        return True

    def one_at_a_time(self, seconds, choose):
        end = time.monotonic() + seconds
        while time.monotonic() < end and not failures and self.ask(choose()):
            pass

    def at_a_rate(self, seconds, rate, choose):
        start, threads = time.monotonic(), []
        while time.monotonic() < start + seconds and not failures:
            threads.append(threading.Thread(target=self.ask, args=(choose(),)))
            threads[-1].start()
            time.sleep(max(0, start + len(threads) / rate - time.monotonic()))
        for thread in threads:
            thread.join()

    def show(self, name):
        self.sleepers()
        print(f"{name}: {len(self.hits)} hits, {told(self.hits)}; {len(self.misses)} misses, {told(self.misses)}")
        if self.misses:
            print(f"    beyond bytes / 45 GB/s: {told(self.over)}; from the grant of its memory on: {told(self.granted)}")
            print(f"    before it, for others of the same model: {told(self.queued)}", flush=True)
        return {"hits": self.hits, "misses": self.misses, "over": self.over, "granted": self.granted,
                "queued": self.queued}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--serve", nargs=2, type=int)
    parser.add_argument("--models", type=int, default=12)
    parser.add_argument("--device-gib", type=int, default=40)
    parser.add_argument("--hits", type=float, default=20)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=float, default=4)
    parser.add_argument("--rate-seconds", type=float, default=60)
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
    slept = {row["pid"] for row in daemon.ctl("sleepers")["sleepers"]}
    awake = [i for i, model in enumerate(models) if model.process.pid not in slept]
    result = {}

    def zipf():
        return chance.choices(range(options.models), weights)[0]

    part = Part(daemon, models, sizes, first)
    part.one_at_a_time(options.hits, lambda: chance.choice(awake))
    result["all awake"] = part.show("all awake")
    part = Part(daemon, models, sizes, first)
    part.one_at_a_time(options.seconds, zipf)
    result["one at a time"] = part.show("one at a time")
    part = Part(daemon, models, sizes, first)
    part.at_a_rate(options.rate_seconds, options.rate, zipf)
    result["at a rate"] = part.show(f"{options.rate:g} a second")
    after = counters(daemon)
    moved = {name: after[name] - before[name] for name in after if "sleep" in name or "wak" in name or "slept" in name
             or "woken" in name}
    hosts = daemon.ctl("status")["hosts"]
    for model in models:
        model.end()
    print(daemon.stop()[-1500:])
    print("#", json.dumps(moved))
    print(f"{options.models} models, {sum(sizes) / 1e9:.1f} GB, on {options.device_gib} GiB")
    result.update({"sizes": sizes, "moved": moved, "hosts": hosts})
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
    print("\n".join(failures) or "OK")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
