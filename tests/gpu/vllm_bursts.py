# SPDX-License-Identifier: Apache-2.0
"""Two engines with opposite bursts: seconds to the first token, with KV memory that flows and with a static split.

    KIT=FOLDER KIT_SITE=/tmp/vllm-site [KVCACHED=FOLDER] python3 tests/gpu/vllm_bursts.py [--kinds static,glake,kvcached] [--seconds 60]
                                       [--size 1b] [--kv-mib 4096] [--rate 10] [--out FILE.json]

For --seconds the first engine gets --rate requests a second and the other a tenth of that, then the other way round; all at random
moments that are the same for each kind. Together they have --kv-mib of KV memory:

    static     half of it each, plain vLLM
    glake      elastic ranges, each cache may have nine tenths; the tenant's quota is the limit
    kvcached   its own library ($KVCACHED, as kvcached_peer.py packs it), plain vLLM; what is left of the GPU is the limit

vllm_forks.py says what it needs. Exit 1 when a request fails; no time decides.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time

import vllm_forks
from run import Daemon, expect, failures, gpu_used_mib, row
from vllm_engines import plugin

MIB = 1 << 20
N_IN, N_OUT, VOCABULARY = 1024, 512, 4000
#: for what engines allocate later: they were loaded and have worked before.
SLACK_MIB = 1024
#: From when requests are told until the first is due.
LEAD_SECONDS = 3
KVCACHED = os.environ.get("KVCACHED", "")


def arrivals(options, which):
    """(seconds, prompt, tokens to follow): a burst, and a calm, or the other way round."""
    chance, rows, at = random.Random(17 + which), [], 0.0
    while True:
        is_burst = (at < options.seconds) == (which == 0)
        at += chance.expovariate(options.rate if is_burst else options.rate / 10)
        if at >= 2 * options.seconds:
            return rows
        rows.append((at, [3 + chance.randrange(VOCABULARY) for _ in range(N_IN)], N_OUT))


def percentile(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else 0.0


# ---- the three kinds -----------------------------------------------------------------------------


class Ballast:
    """All of the GPU but @free_mib, by a process without glake."""

    CODE = ("import sys, torch; n = torch.cuda.mem_get_info()[0] - int(sys.argv[1]); "
            "keep = torch.empty(max(n, 0), dtype=torch.uint8, device='cuda'); print('ready', flush=True); sys.stdin.read()")

    def __init__(self, free_mib):
        self.process = subprocess.Popen([sys.executable, "-c", self.CODE, str(free_mib * MIB)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        expect(self.process.stdout.readline() == "ready\n", "no ballast")

    def end(self):
        self.process.stdin.close()
        self.process.wait(60)


def limit_glake(daemon, options):
    tenant = next(one for one in daemon.ctl("tenants")["tenants"] if one["name"] == "default")
    daemon.ctl("quota", "default", "--device", "0", "--bytes",
               str(tenant["devices"][0]["used_bytes"] + options.kv_mib * MIB))


def kvcached_environment():
    return {"PYTHONPATH": os.pathsep.join([vllm_forks.SITE, KVCACHED, os.path.join(KVCACHED, "site")]),
            "ENABLE_KVCACHED": "true", "KVCACHED_AUTOPATCH": "1", "KVCACHED_LOG_LEVEL": "WARNING"}


def start(kind, options, daemon, path, folder):
    """Forks, two engines and what is to be ended behind them."""
    import kitlib
    share = {"static": 0.5, "glake": 0.9, "kvcached": 0.9}[kind]
    given = {
        "model": kitlib.make_model(options.size), "dtype": "bfloat16", "max_model_len": 2048, "gpu_memory_utilization": 0.2,
        "kv_cache_memory_bytes": int(options.kv_mib * share) * MIB, "seed": 0, "skip_tokenizer_init": True,
        "disable_log_stats": True, "attention_backend": "FLASH_ATTN", "enable_flashinfer_autotune": False, "max_num_seqs": 256,
        "enable_prefix_caching": False,
        "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY",
                               "cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32, 64, 128]}}
    environment = {"VLLM_PLUGINS": ""}
    if kind == "glake":
        forks = vllm_forks.Forks(daemon, path, folder, kind)
        given["load_format"] = "glake"
        environment = {"VLLM_PLUGINS": "glake", "GLAKE_VLLM_KV": "elastic"}
    else:
        forks = vllm_forks.Forks(daemon, path, folder, kind, None, kvcached_environment() if kind == "kvcached" else None)
    engines = []
    for i in range(2):
        # kvcached counts on runner 1.
        engines.append(forks.start(**environment, VLLM_USE_V2_MODEL_RUNNER="0", KVCACHED_IPC_NAME=f"glake-bursts-{i}"))
        engines[i].ask("load", given)
        engines[i].ask("generate", [[3 + j for j in range(N_IN)]] * 4, 16, None, True)
    ballast = None
    if kind == "glake":
        limit_glake(daemon, options)
    elif kind == "kvcached":
        ballast = Ballast(options.kv_mib + SLACK_MIB)
    return forks, engines, ballast


def run(kind, options, daemon, path, folder, result):
    forks, engines, ballast = start(kind, options, daemon, path, folder)
    told, wanted = [None, None], [arrivals(options, which) for which in range(2)]
    at = time.monotonic() + LEAD_SECONDS

    def follow(which):
        try:
            told[which] = engines[which].ask("serve", at, wanted[which])
        except vllm_forks.Failed as error:
            expect(False, f"{kind}, engine {which}: {error}\n{engines[which].log()[-1500:]}")

    threads = [threading.Thread(target=follow, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(LEAD_SECONDS + options.seconds / 2)
    used = gpu_used_mib()
    for thread in threads:
        thread.join()
    result[kind] = told
    for which in range(2):
        times = told[which] or []
        burst = [t for t, (due, *_) in zip(times, wanted[which]) if (due < options.seconds) == (which == 0)]
        calm = [t for t, (due, *_) in zip(times, wanted[which]) if (due < options.seconds) != (which == 0)]
        row(f"{kind}, engine {which}: first token", f"burst of {len(burst)}: p50 {percentile(burst, 0.5):.3f}, p99 "
            f"{percentile(burst, 0.99):.3f} s; calm of {len(calm)}: p50 {percentile(calm, 0.5):.3f}, p99 "
            f"{percentile(calm, 0.99):.3f} s; GPU {used} MiB in the first burst")
        engines[which].end()
    forks.end()
    if ballast:
        ballast.end()
    if kind == "glake":
        daemon.ctl("quota", "default", "--device", "0", "--bytes", "none")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kinds", default="static,glake,kvcached")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--size", default="1b")
    parser.add_argument("--kv-mib", type=int, default=4096)
    parser.add_argument("--rate", type=float, default=10)
    parser.add_argument("--out")
    options = parser.parse_args()
    if not vllm_forks.is_there():
        print("# skipped: no vLLM in $KIT_SITE, or no kitlib.py in $KIT")
        return 0
    sys.path.insert(0, vllm_forks.KIT)
    vllm_forks.PATIENCE_SECONDS = max(vllm_forks.PATIENCE_SECONDS, 6 * options.seconds)
    result, daemon = {}, Daemon("mover_idle_ms = 0;")
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "plugin"))
        path = plugin(os.path.join(folder, "plugin"))
        for kind in options.kinds.split(","):
            if kind == "kvcached" and not os.path.isdir(os.path.join(KVCACHED, "kvcached")):
                print("# kvcached skipped: none in $KVCACHED")
                continue
            try:
                run(kind, options, daemon, path, folder, result)
            except vllm_forks.Failed as error:
                expect(False, f"{kind}: {error}")
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
    daemon.stop()
    print("\n".join(failures) or "OK")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
