# SPDX-License-Identifier: Apache-2.0
"""KV memory from one real vLLM to another: two elastic engines whose caches together do not fit.

    KIT=FOLDER KIT_SITE=/tmp/vllm-site python3 tests/gpu/vllm_kv.py [--size 1b] [--rounds 8] [--kv-mib 4096]

Each engine in turn prefills nearly as much as its cache can have, so that it gets what the other has lent: while that one is idle,
and then while it decodes. What is reported: how long steps of KV memory took to come, per GiB, from the need of the scheduler on.
vllm_forks.py says what it needs; vllm_kv_exact.py compares tokens. Exit 1 when a request fails, or no memory moved.
"""
import argparse
import os
import re
import sys
import tempfile
import threading

import vllm_forks
from run import Daemon, expect, failures, row, spread
from vllm_engines import plugin

MIB = 1 << 20
#: of a prompt and what follows it: so much that all requests are at it at the same time
N_TOKENS = 1900
N_OUT = 64
VOCABULARY = 4000


def prompts(seed, n, n_tokens):
    return [[3 + (7919 * (seed * 4096 + i + 1) + 104729 * j) % VOCABULARY for j in range(n_tokens)] for i in range(n)]


def handovers(engine):
    """(MiB, ms) of each time that memory came."""
    found = re.findall(r"glake: (\d+) KV steps of (\d+) MiB came in ([\d.]+) ms", engine.log())
    return [(int(n) * int(mib), float(ms)) for n, mib, ms in found]


def gibs(rows):
    """Milliseconds that each GiB took, of what came in this order."""
    whole, mib, ms = [], 0, 0.0
    for more, took in rows:
        mib, ms = mib + more, ms + took
        if mib >= 1024:
            whole.append(ms * 1024 / mib)
            mib, ms = 0, 0.0
    return whole


def percentile(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


class Busy:
    """The engine decodes meanwhile."""

    def __init__(self, engine, is_wanted):
        self.thread = threading.Thread(target=engine.ask, args=("generate", prompts(7, 4, 64), 512, None, True))
        self.is_wanted = is_wanted

    def __enter__(self):
        if self.is_wanted:
            self.thread.start()

    def __exit__(self, *_):
        if self.is_wanted:
            self.thread.join()


def rounds(engines, is_busy, n):
    counts = [len(handovers(engine)) for engine in engines]
    took, name = [], "the other decodes" if is_busy else "the other is idle"
    n_prompts = int(engines[0].ask("cache_tokens") * 0.85 / N_TOKENS)
    for i in range(n):
        for k in range(2):
            with Busy(engines[1 - k], is_busy):
                given = prompts(100 + 2 * i + k + 64 * is_busy, n_prompts, N_TOKENS - N_OUT)
                took.append(engines[k].ask("generate", given, N_OUT, None, True)[1])
    rows = [one for engine, before in zip(engines, counts) for one in handovers(engine)[before:]]
    row(f"{name}: {n_prompts} prompts of {N_TOKENS} tokens at once", spread(took, 3) + " s")
    expect(bool(rows), f"{name}: no memory moved")
    if rows:
        times, per_gib = [ms for _, ms in rows], [ms / mib * 1024 for mib, ms in rows]
        mib = sum(mib for mib, _ in rows)
        row(f"{name}: KV memory that came", f"{mib} MiB in {len(rows)} times, {sum(times) / mib * 1024:.2f} ms/GiB over all")
        row(f"{name}: the longest", ", ".join(f"{mib} MiB in {ms:.1f} ms" for mib, ms in sorted(rows, key=lambda one: -one[1])[:5]))
        row(f"{name}: one time", f"p50 {percentile(times, 0.5):.2f} ms, p99 {percentile(times, 0.99):.2f} ms")
        row(f"{name}: ms/GiB", f"p50 {percentile(per_gib, 0.5):.2f}, p99 {percentile(per_gib, 0.99):.2f}")
        whole = gibs(rows)
        if whole:
            row(f"{name}: 1 GiB, of steps that followed each other", f"p50 {percentile(whole, 0.5):.2f} ms, "
                f"p99 {percentile(whole, 0.99):.2f} ms, {len(whole)} times", "12, 25 ms")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", default="1b")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--kv-mib", type=int, default=4096, help="the most that each engine's cache may have")
    options = parser.parse_args()
    if not vllm_forks.is_there():
        print("# skipped: no vLLM in $KIT_SITE, or no kitlib.py in $KIT")
        return 0
    sys.path.insert(0, vllm_forks.KIT)
    import kitlib
    daemon = Daemon("mover_idle_ms = 0;")
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "plugin"))
        shim = vllm_forks.Forks(daemon, plugin(os.path.join(folder, "plugin")), folder, "shim",
                                environment={"VLLM_LOGGING_LEVEL": "DEBUG"})
        given = {
            "model": kitlib.make_model(options.size), "dtype": "bfloat16", "max_model_len": 2048, "gpu_memory_utilization": 0.2,
            "kv_cache_memory_bytes": options.kv_mib * MIB, "seed": 0, "skip_tokenizer_init": True, "disable_log_stats": True,
            "attention_backend": "FLASH_ATTN", "enable_flashinfer_autotune": False, "max_num_seqs": 128,
            "enable_prefix_caching": True, "load_format": "glake",
            "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 2, 4, 8, 16]}}
        try:
            engines = [shim.start(VLLM_PLUGINS="glake", GLAKE_VLLM_KV="elastic") for _ in range(2)]
            for engine in engines:
                engine.ask("load", given)
            fixed = prompts(1, 4, 300)
            before = [engine.ask("generate", fixed, 32)[0] for engine in engines]
            expect(before[0] == before[1], f"two engines, other tokens: {before}")
            # What the two have, which is enough for a full batch, and three quarters of a cache.
            tenant = next(one for one in daemon.ctl("tenants")["tenants"] if one["name"] == "default")
            limit = tenant["devices"][0]["used_bytes"] + options.kv_mib * MIB * 3 // 4
            daemon.ctl("quota", "default", "--device", "0", "--bytes", str(limit))
            for is_busy in (False, True):
                rounds(engines, is_busy, options.rounds)
            for i, engine in enumerate(engines):
                expect("Traceback" not in engine.log(), f"engine {i}: an exception:\n{engine.log()[-3000:]}")
                print(f"# engine {i}:", "; ".join(engine.said()[:4]), flush=True)
                engine.end()
        except vllm_forks.Failed as error:
            expect(False, str(error))
        shim.end()
    daemon.stop()
    print("\n".join(failures) or "OK")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
