# SPDX-License-Identifier: Apache-2.0
"""What is dangerous in vLLM, on small models: the same tokens plain, under `glake run`, and with the plugin.

    KIT=FOLDER KIT_SITE=/tmp/vllm-site python3 tests/gpu/vllm_cases.py [--cases NAME,,NAME...] [--jobs 6] [--logs FILE]

Each case runs plain; under `glake run` with vLLM's own loader and sleep mode; and three times with the plugin: the first
loads and publishes, the second attaches, the third attaches, sleeps, wakes, and generates again. vllm_forks.py says
what it needs. Exit 1 when tokens differ, a sleep is none, or an engine attaches what it should not, or does not what it
should.
"""
import argparse
import json
import os
import sys
import tempfile
import threading
import time

import vllm_forks
from run import Daemon, expect, failures, row
from vllm_engines import plugin
from vllm_models import MODELS, make, make_adapter

PLACE = os.environ.get("KIT_MODELS", "/tmp/vllm-models")

# model, arguments of vllm.LLM, environment, whether the second engine attaches
CASES = {
    "eager, runner 1": ("llama", {"enforce_eager": True}, {"VLLM_USE_V2_MODEL_RUNNER": "0"}, True),
    "eager, runner 2": ("llama", {"enforce_eager": True}, {"VLLM_USE_V2_MODEL_RUNNER": "1"}, True),
    "graphs": ("llama", {}, {}, True),
    "compiled": ("llama", {"compilation_config": {"cudagraph_capture_sizes": [1, 2, 4, 8]}}, {}, True),
    "prefix caching": ("llama", {"enable_prefix_caching": True}, {}, True),
    "elastic KV, runner 1": ("llama", {"enable_prefix_caching": True}, {"VLLM_USE_V2_MODEL_RUNNER": "0", "GLAKE_VLLM_KV": "elastic"},
                             True),
    "elastic KV, runner 2": ("llama", {"enable_prefix_caching": True}, {"VLLM_USE_V2_MODEL_RUNNER": "1", "GLAKE_VLLM_KV": "elastic"},
                             True),
    "tied embeddings": ("tied", {}, {}, True),
    "mixture of experts": ("mixture", {}, {}, False),
    "latent attention": ("latent", {"attention_backend": "TRITON_MLA"}, {}, None),
    "LoRA": ("llama", {"enable_lora": True, "max_loras": 1, "max_lora_rank": 8}, {}, True),
    "fp8": ("llama", {"quantization": "fp8"}, {}, False),
}
GRAPHS = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 2, 4, 8]}
KINDS = ("plain", "shim", "first", "second", "third")


# With the same beginning, for prefix caching, and of odd lengths.
PROMPTS = [[3 + 7919 * j % 4000 for j in range(64)] + [3 + (31 * i + 17 * j) % 4000 for j in range(1 + 29 * i)]
           for i in range(6)]


def arguments_of(case, kind):
    model, options, environment, _ = CASES[case]
    options = {"compilation_config": GRAPHS, "enable_prefix_caching": False, **options}
    if options.get("enforce_eager"):
        del options["compilation_config"]
    if kind in ("shim", "third"):
        options["enable_sleep_mode"] = True
    if kind in ("first", "second", "third"):
        options["load_format"] = "glake"
    options = {"model": make(model, PLACE), "dtype": "bfloat16", "max_model_len": 1024, "gpu_memory_utilization": 0.02,
               "kv_cache_memory_bytes": 256 << 20, "seed": 0, "skip_tokenizer_init": True, "disable_log_stats": True,
               "attention_backend": "FLASH_ATTN", "enable_flashinfer_autotune": False, "max_num_seqs": 8, **options}
    plugins = {"VLLM_PLUGINS": "glake" if kind in ("first", "second", "third") else ""}
    return options, {**environment, **plugins}


def run_one(forks, case, kind):
    """What came out, and the log."""
    options, environment = arguments_of(case, kind)
    result, adapter = {}, make_adapter(PLACE) if options.get("enable_lora") else None
    engine = forks.start(**environment)
    try:
        result["load_s"] = engine.ask("load", options)
        result["hashes"] = [engine.ask("generate", PROMPTS, 32, adapter)[0] for _ in range(2)]
        if options.get("enable_sleep_mode"):
            result["sleep_ms"] = round(engine.ask("sleep") * 1e3)
            result["wake_ms"] = round(engine.ask("wake") * 1e3)
            # A sleep empties the prefix cache: the first after it is as the first was.
            result["woken"] = engine.ask("generate", PROMPTS, 32, adapter)[0]
    except vllm_forks.Failed as error:
        result["error"] = str(error)
    engine.end()
    return result, engine.log(), engine.said()


def judge(case, told):
    attaches = CASES[case][3]
    for kind in KINDS:
        result, log, _ = told[kind]
        expect("error" not in result, f"{case}, {kind}: {result.get('error')}\n{log[-700:]}")
    want = told["plain"][0].get("hashes")
    if want is None:
        return
    for kind in KINDS[1:]:
        got = told[kind][0]
        expect(got.get("hashes") == want, f"{case}, {kind}: other tokens: {got.get('hashes')}, plain {want}")
        if "woken" in got:
            expect(got["woken"] == want[0], f"{case}, {kind}: other tokens after the wake")
    attached = [kind for kind in KINDS if any(line.startswith("attached") for line in told[kind][2])]
    if attaches is not None:
        # The first may find what the same model has published in another case.
        expect(attached[-2:] == ["second", "third"] if attaches else not attached, f"{case}: attached: {attached}")
    if "elastic" in case:
        for kind in ("first", "second", "third"):
            expect(any("KV memory is elastic" in line for line in told[kind][2]), f"{case}, {kind}: KV memory is plain")
    third = told["third"][0]
    row(case, f"load {', '.join(str(told[kind][0].get('load_s')) for kind in KINDS)} s; sleep, wake of the third "
              f"{third.get('sleep_ms')}, {third.get('wake_ms')} ms; {'; '.join(told['second'][2])[:200]}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", default=",,".join(CASES), help="names, with ,, between them")
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--logs")
    options = parser.parse_args()
    if not vllm_forks.is_there():
        print("# skipped: no vLLM in $KIT_SITE, or no kitlib.py in $KIT")
        return 0
    for model in MODELS:
        make(model, PLACE)
    make_adapter(PLACE)
    cases = options.cases.split(",,")
    told = {case: {} for case in cases}
    daemon = Daemon('host_bytes = "32GiB"; host_ready_bytes = "2GiB"; mover_idle_ms = 0;')
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "plugin"))
        path = plugin(os.path.join(folder, "plugin"))
        plain = vllm_forks.Forks(daemon, path, folder, "plain", None)
        shim = vllm_forks.Forks(daemon, path, folder, "shim")
        room = threading.Semaphore(options.jobs)

        def follow(case):
            for kind in KINDS:
                with room:
                    told[case][kind] = run_one(plain if kind == "plain" else shim, case, kind)

        threads = [threading.Thread(target=follow, args=(case,)) for case in cases]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for forks in (plain, shim):
            expect(forks.end() == 0, "the process that forks did not end well")
    for case in cases:
        judge(case, told[case])
    if options.logs:
        with open(options.logs, "w", encoding="utf-8") as file:
            for case in cases:
                for kind in KINDS:
                    result, log, _ = told[case][kind]
                    file.write(f"\n===== {case}, {kind}: {json.dumps(result)}\n{log[-20000:]}")
    time.sleep(1)
    left = daemon.device()["private_bytes"]
    expect(left == 0, f"left on the GPU: {left}")
    daemon.stop()
    print("\n".join(failures) or "OK")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
