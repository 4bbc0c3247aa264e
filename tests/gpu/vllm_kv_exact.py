# SPDX-License-Identifier: Apache-2.0
"""Elastic KV memory of real vLLM engines gives the tokens of a plain one, whatever comes and goes.

    KIT=FOLDER KIT_SITE=/tmp/vllm-site python3 tests/gpu/vllm_kv_exact.py [--rounds 40] [--kv-mib 192] [--seed 1] [--ranks 2]

Two engines with prefix caching, on memory for little more than one of their caches, get random prompts in turns: with common
beginnings, some of which are cached still, in memory that was lent or has gone meanwhile. Numbers of 32 bits make the tokens of a
prompt independent of what is cached and of its neighbours, as far as rounding goes (with VLLM_BATCH_INVARIANT and bfloat16 6 of 48
prompts differed in a plain engine, H100); so each prompt has to have those of an engine with a plain cache. vllm_forks.py says what
it needs. With --ranks each engine has so many, in processes of their own, on a GPU each (tensor parallel): a step is there when
all have it. Exit 1 when tokens differ, no memory moved, or KV memory is plain.
"""
import argparse
import os
import random
import sys
import tempfile

import vllm_forks
from run import Daemon, expect, failures, row
from vllm_engines import plugin
from vllm_models import make

MIB = 1 << 20
PLACE = os.environ.get("KIT_MODELS", "/tmp/vllm-models")
#: enough that sixteen requests are at it at the same time
N_TOKENS = 24


def prompts():
    """Six beginnings of 40 blocks, and eight ends of different lengths for each."""
    rows = []
    for i in range(6):
        begin = [3 + (7919 * (i + 1) * (j + 1) + 31 * j * j) % 4000 for j in range(640)]
        rows += [begin + [3 + (104729 * (k + 1) + 17 * j * (i + 1)) % 4000 for j in range(100 + 150 * k)] for k in range(8)]
    return rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    # 16 requests at a time need most of it: only a real need takes what the other has lent.
    parser.add_argument("--kv-mib", type=int, default=192)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=1)
    options = parser.parse_args()
    if not vllm_forks.is_there():
        print("# skipped: no vLLM in $KIT_SITE, or no kitlib.py in $KIT")
        return 0
    given, chance = prompts(), random.Random(options.seed)
    # Each rank has its part of all blocks.
    kv_bytes = options.kv_mib * MIB // options.ranks
    engine_options = {
        "model": make("llama", PLACE), "dtype": "float32", "max_model_len": 2048, "gpu_memory_utilization": 0.01,
        "kv_cache_memory_bytes": kv_bytes, "seed": 0, "skip_tokenizer_init": True, "disable_log_stats": True,
        "attention_backend": "TRITON_ATTN", "enable_flashinfer_autotune": False, "max_num_seqs": 16, "enforce_eager": True,
        # Memory for a full batch is there from the beginning.
        "max_num_batched_tokens": 2048,
        "enable_prefix_caching": True}
    if options.ranks > 1:
        # NCCL alone: the other ways need memory that the ranks open of each other.
        engine_options.update(tensor_parallel_size=options.ranks, disable_custom_all_reduce=True)
    daemon = Daemon()
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "plugin"))
        shim = vllm_forks.Forks(daemon, plugin(os.path.join(folder, "plugin")), folder, "shim")
        try:
            plain = shim.start(VLLM_PLUGINS="")
            engines = [shim.start(VLLM_PLUGINS="glake", GLAKE_VLLM_KV="elastic") for _ in range(2)]
            for engine in (plain, *engines):
                engine.ask("load", engine_options)
            want = [plain.ask("generate_each", [prompt], N_TOKENS)[0] for prompt in given]
            again = plain.ask("generate_each", given, N_TOKENS)
            expect(want == again, f"the plain engine differs from itself: {sum(a != b for a, b in zip(want, again))} of {len(want)}")
            plain.ask("shutdown")
            plain.end()
            # What PyTorch needs beside the cache has come by then.
            for engine in engines:
                engine.ask("generate_each", given[7:8], N_TOKENS)
            # What the two have, and a quarter of a cache more: sixteen requests need what the other keeps.
            tenant = next(one for one in daemon.ctl("tenants")["tenants"] if one["name"] == "default")
            for device in tenant["devices"][:options.ranks]:
                limit = device["used_bytes"] + kv_bytes // 4 + 32 * MIB * (options.ranks > 1)
                daemon.ctl("quota", "default", "--device", str(device["device"]), "--bytes", str(limit))
            n_wrong, n_asked = 0, 0
            for i in range(options.rounds):
                engine = engines[i % 2]
                chosen = [chance.randrange(len(given)) for _ in range(chance.randrange(1, 33))]
                got = engine.ask("generate_each", [given[k] for k in chosen], N_TOKENS)
                n_asked += len(chosen)
                n_wrong += sum(answer != want[k] for answer, k in zip(got, chosen))
            row("prompts asked, with other tokens than the plain engine's", f"{n_asked}, {n_wrong}", "0")
            expect(n_wrong == 0, f"{n_wrong} of {n_asked} prompts have other tokens")
            for i, engine in enumerate(engines):
                expect("Traceback" not in engine.log(), f"engine {i}: an exception:\n{engine.log()[-2000:]}")
                expect(any("KV memory is elastic" in line for line in engine.said()), f"engine {i}: KV memory is plain")
                print(f"# engine {i}:", "; ".join(engine.said()[:4]), flush=True)
                engine.ask("shutdown")
                engine.end()
        except vllm_forks.Failed as error:
            expect(False, str(error))
        shim.end()
    stats = {one["name"]: one["value"] for one in daemon.ctl("stats")["metrics"]}
    row("requests that waited for what the other had lent", stats["quota_waits"])
    expect(stats["quota_waits"] > 0, "no memory moved")
    daemon.stop()
    print("\n".join(failures) or "OK")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
