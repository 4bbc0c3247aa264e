# SPDX-License-Identifier: Apache-2.0
"""Several real vLLM engines on one GPU: weights once, throughput beside a plain engine, starts at the same time.

    KIT=FOLDER KIT_SITE=/tmp/vllm-site python3 tests/gpu/vllm_share.py [--only weights,pairs,sleep,starts] [--size 7b]
                                       [--pairs 12] [--rounds 20] [--out FILE.json]

    weights   one engine plain, four with the plugin: GPU memory of weights, what the second one's took
    pairs     decode and prefill of a plain engine and of one with all of glake, by turns
    sleep     the four engines, level 1: all asleep, all awake, the same tokens
    starts    four small engines at once, profiling, each with a promise; and some rounds without one, for comparison

vllm_forks.py says what it needs. Exit 1 when something is wrong; no time decides.
"""
import argparse
import json
import os
import random
import re
import statistics
import sys
import tempfile
import threading
import time

import vllm_forks
from run import Daemon, expect, failures, gpu_used_mib, row
from vllm_engines import plugin
from vllm_models import make

MIB, GIB = 1 << 20, 1 << 30
GRAPHS = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 2, 4, 8, 16]}
PLACE = os.environ.get("KIT_MODELS", "/tmp/vllm-models")
N_ENGINES = 4


def prompts(n, n_tokens, seed=0):
    return [[3 + (7919 * (i + 1) * (j + 1) + 31 * j * j + seed) % 4000 for j in range(n_tokens)] for i in range(n)]


def options_of(model, **more):
    return {"model": model, "dtype": "bfloat16", "max_model_len": 2048, "gpu_memory_utilization": 0.02,
            "kv_cache_memory_bytes": 2 << 30, "seed": 0, "skip_tokenizer_init": True, "disable_log_stats": True,
            "attention_backend": "FLASH_ATTN", "enable_flashinfer_autotune": False, "max_num_seqs": 16,
            "enable_prefix_caching": False, "compilation_config": GRAPHS, **more}


def seconds_of(log, pattern):
    found = re.findall(pattern + r" ([0-9.]+) s", log)
    return float(found[-1]) if found else None


def blocks(daemon):
    device = daemon.device()
    return {name: device[name] for name in ("used_block_bytes", "logical_block_bytes", "private_bytes", "physical_bytes")}


# ---- a large model -------------------------------------------------------------------------------


def weights(plain, shim, model, daemon, result):
    one = plain.start(VLLM_PLUGINS="")
    load_s = one.ask("load", options_of(model))
    n_bytes = os.path.getsize(os.path.join(model, "model.safetensors"))
    row("plain: whole load, of which weights", f"{load_s:.1f} s, {seconds_of(one.log(), 'Loading weights took')} s; "
        f"{n_bytes / 1e9:.2f} GB")
    want, _ = one.ask("generate", prompts(8, 100), 32)
    engines = []
    for i in range(N_ENGINES):
        used = gpu_used_mib()
        engine = shim.start(VLLM_PLUGINS="glake")
        load_s = engine.ask("load", options_of(model, load_format="glake", enable_sleep_mode=True))
        got, _ = engine.ask("generate", prompts(8, 100), 32)
        expect(got == want, f"engine {i}: other tokens")
        engines.append(engine)
        row(f"engine {i}", f"load {load_s:.1f} s, GPU +{gpu_used_mib() - used} MiB; {'; '.join(engine.said())[:160]}; "
            f"{json.dumps(blocks(daemon))}")
        if i > 0:
            result.setdefault("attach_s", []).append(seconds_of(engine.log(), "tensors in"))
    there = blocks(daemon)
    times = there["used_block_bytes"] / n_bytes
    result["times"] = times
    row(f"weights of {N_ENGINES} engines on the GPU", f"{times:.4f} x the checkpoint", "<= 1.005 x")
    row("weights of the second: find, map and register", f"{result['attach_s']} s", "<= 0.1 s")
    return one, engines, want


def lower_bound(ratios):
    chance = random.Random(1)
    medians = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[int(0.05 * len(medians))]


def pairs(options, one, other, result):
    kinds = {"decode": (prompts(16, 32), 96), "prefill": (prompts(8, 1500), 1)}
    for kind, (given, n_tokens) in kinds.items():
        ratios = []
        for engine in (one, other):
            engine.ask("generate", given, n_tokens, None, True)
        for i in range(options.pairs):
            took = {}
            for engine in ((one, other), (other, one))[i % 2]:
                took[engine] = engine.ask("generate", given, n_tokens, None, True)[1]
            ratios.append(took[one] / took[other])
        result[kind] = ratios
        row(f"{kind}: throughput with glake, plain is 1", f"median {statistics.median(ratios):.4f}, lower 95 % "
            f"{lower_bound(ratios):.4f} ({min(ratios):.3f}..{max(ratios):.3f}, n {len(ratios)})", "median >= 0.995, lower >= 0.990")


def sleep(engines, want, daemon, result):
    used = gpu_used_mib()
    asleep = [engine.ask("sleep") * 1e3 for engine in engines]
    row("four engines asleep", f"{', '.join(f'{ms:.0f}' for ms in asleep)} ms; GPU {used} -> {gpu_used_mib()} MiB; "
        f"{json.dumps(blocks(daemon))}")
    awake = []
    for i, engine in enumerate(engines):
        awake.append(engine.ask("wake") * 1e3)
        got, _ = engine.ask("generate", prompts(8, 100), 32)
        expect(got == want, f"engine {i}: other tokens after the wake")
    result["sleep_ms"], result["wake_ms"] = asleep, awake
    row("awake one after the other", f"{', '.join(f'{ms:.0f}' for ms in awake)} ms")


# ---- starts --------------------------------------------------------------------------------------


def start_at_once(shim, model, environment, util):
    """What became of each."""
    told = [None] * N_ENGINES

    def follow(i):
        engine = shim.start(VLLM_PLUGINS="", **environment)
        try:
            engine.ask("load", options_of(model, enforce_eager=True, compilation_config=None, kv_cache_memory_bytes=None,
                                          gpu_memory_utilization=util, max_num_seqs=4, max_model_len=512))
            told[i] = engine.ask("generate", prompts(1, 20), 8)[0]
        except vllm_forks.Failed as error:
            told[i] = str(error)
        barrier.wait()
        engine.end()

    barrier = threading.Barrier(N_ENGINES)
    threads = [threading.Thread(target=follow, args=(i,)) for i in range(N_ENGINES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told


def starts(options, shim, daemon, result):
    model, want = make("llama", PLACE), None
    for name, environment, util, rounds in (("with a promise of 6 GiB each", {"GLAKE_PROMISE": "6GiB"}, 0.9, options.rounds),
                                            ("without", {}, 6 * GIB / daemon.device()["total_bytes"], min(4, options.rounds))):
        bad, start = [], time.monotonic()
        for _ in range(rounds):
            told = start_at_once(shim, model, environment, util)
            want = want or told[0]
            bad += [answer for answer in told if answer != want]
        result[name] = bad
        row(f"{rounds} times {N_ENGINES} engines at once, {name}", f"{len(bad)} failed, {(time.monotonic() - start) / rounds:.1f} s "
            f"a round; {bad[0][:200] if bad else ''}", "0 failed" if environment else "")
        if environment:
            expect(not bad, f"starts {name}: {bad[:2]}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="weights,pairs,sleep,starts")
    parser.add_argument("--size", default="7b")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out")
    options = parser.parse_args()
    if not vllm_forks.is_there():
        print("# skipped: no vLLM in $KIT_SITE, or no kitlib.py in $KIT")
        return 0
    sys.path.insert(0, vllm_forks.KIT)
    import kitlib
    only, result = options.only.split(","), {}
    daemon = Daemon('host_bytes = "48GiB"; host_ready_bytes = "24GiB"; mover_idle_ms = 0;')
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "plugin"))
        path = plugin(os.path.join(folder, "plugin"))
        shim = vllm_forks.Forks(daemon, path, folder, "shim")
        try:
            if "weights" in only:
                start = time.monotonic()
                model = kitlib.make_model(options.size)
                print(f"# model made in {time.monotonic() - start:.0f} s", flush=True)
                plain = vllm_forks.Forks(daemon, path, folder, "plain", None)
                one, engines, want = weights(plain, shim, model, daemon, result)
                if "pairs" in only:
                    pairs(options, one, engines[1], result)
                if "sleep" in only:
                    sleep(engines, want, daemon, result)
                for engine in (one, *engines):
                    engine.end()
                plain.end()
            if "starts" in only:
                starts(options, shim, daemon, result)
        except vllm_forks.Failed as error:
            expect(False, str(error))
        shim.end()
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
    print(daemon.stop()[-3000:])
    print("\n".join(failures) or "OK")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
