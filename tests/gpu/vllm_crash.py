# SPDX-License-Identifier: Apache-2.0
"""A real vLLM is killed, and the next one finds its prefixes: how soon, and with the same tokens.

    KIT=FOLDER KIT_SITE=/tmp/vllm-site python3 tests/gpu/vllm_crash.py [--rounds 5] [--kv-mib 512] [--pairs 6]

An engine with GLAKE_VLLM_KV=kept computes prompts with common beginnings, and is killed with SIGKILL: in turn when it is idle, and
while it decodes. The next engine with the same configuration asks for them again. What is reported: how long its first prefix
hit takes from when it is ready, how long finding took at its start, and how many tokens were hits. Each prompt has to have
the tokens of an engine with a plain cache (numbers of 32 bits, as in vllm_kv_exact.py). Then an engine that keeps decodes beside one
that does not, in pairs. vllm_forks.py says what it needs. Exit 1 when tokens differ, nothing is found, or it takes more than a second.
"""
import argparse
import os
import re
import sys
import tempfile
import threading
import time

import vllm_forks
from run import Daemon, expect, failures, row, spread
from vllm_engines import plugin
from vllm_kv_exact import PLACE, prompts
from vllm_models import make

MIB = 1 << 20
N_TOKENS = 8
#: so long may the first prefix hit of the next engine take, from when it is ready
LIMIT_SECONDS = 1.0


def options_of(model, kv_mib):
    return {
        "model": model, "dtype": "float32", "max_model_len": 2048, "gpu_memory_utilization": 0.01,
        "kv_cache_memory_bytes": kv_mib * MIB, "seed": 0, "skip_tokenizer_init": True, "disable_log_stats": True,
        "attention_backend": "TRITON_ATTN", "enable_flashinfer_autotune": False, "max_num_seqs": 16, "enforce_eager": True,
        "max_num_batched_tokens": 2048, "enable_prefix_caching": True}


def kept_stats(daemon):
    stats = {one["name"]: one["value"] for one in daemon.ctl("stats")["metrics"]}
    return {name: value for name, value in stats.items() if name.startswith("steps_")}


def kill(engine, pid, is_busy, given):
    """The engine, in an instant; its answers are nobody's."""
    if is_busy:
        def ask():
            try:
                engine.ask("generate", given, 256, None, True)
            except vllm_forks.Failed:
                pass
        thread = threading.Thread(target=ask)
        thread.start()
        time.sleep(0.7)
        os.kill(pid, 9)
        thread.join()
    else:
        os.kill(pid, 9)
    engine.end()


def wait_for_its_end(pid):
    """Of its fork server it is a zombie for a moment; it has no memory by then."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii") as file:
                if file.read().rsplit(")", 1)[1].split()[0] in "ZX":
                    return
        except FileNotFoundError:
            return
        time.sleep(0.01)


def crashes(daemon, shim, engine_options, given, want, rounds):
    first, found_ms, hit_parts, cold = [], [], [], []
    engine = shim.start(VLLM_PLUGINS="glake", GLAKE_VLLM_KV="kept")
    engine.ask("load", engine_options)
    for i in range(rounds):
        got = engine.ask("generate_each", given, N_TOKENS)
        expect(got == want, f"round {i}: {sum(a != b for a, b in zip(got, want))} prompts have other tokens")
        pid = engine.ask("pid")
        if i == 0:
            cold.append(engine.ask("fresh_prefill", len(given[-1])))
        time.sleep(1.5)
        kill(engine, pid, i % 2 == 1, given[:16])
        wait_for_its_end(pid)
        before = kept_stats(daemon)
        engine = shim.start(VLLM_PLUGINS="glake", GLAKE_VLLM_KV="kept")
        load_seconds = engine.ask("load", engine_options)
        seconds, n_hit, answer = engine.ask("first_hit", given[-1], N_TOKENS)
        first.append(seconds)
        hit_parts.append(n_hit / len(given[-1]))
        expect(n_hit > 0, f"round {i}: the next engine has no prefix hit; {before}")
        expect(seconds <= LIMIT_SECONDS, f"round {i}: the first prefix hit took {seconds:.3f} s")
        expect(answer == want[-1], f"round {i}: the first answer has other tokens")
        found = re.findall(r"glake: found (\d+) KV blocks in (\d+) steps that an engine left, in ([\d.]+) ms", engine.log())
        expect(bool(found), f"round {i}: nothing was found:\n" + "\n".join(engine.said()))
        found_ms += [float(ms) for _, _, ms in found]
        busy = "while it decoded" if i % 2 == 1 else "idle"
        print(f"# round {i}: killed {busy}; start {load_seconds} s; found {found}; hit {n_hit} of {len(given[-1])} tokens "
              f"in {1000 * seconds:.1f} ms; {kept_stats(daemon)}", flush=True)
    got = engine.ask("generate_each", given, N_TOKENS)
    expect(got == want, f"in the end: {sum(a != b for a, b in zip(got, want))} prompts have other tokens")
    expect("Traceback" not in engine.log(), f"an exception:\n{engine.log()[-2000:]}")
    pid = engine.ask("pid")
    kill(engine, pid, False, given)
    wait_for_its_end(pid)
    row("first prefix hit, from ready", spread([1000 * one for one in first], 1) + " ms", "<= 1000")
    row("a prefill of that length with no hit", spread([1000 * one for one in cold], 1) + " ms")
    if found_ms:
        row("finding at the start", spread(found_ms, 1) + " ms")
    row("tokens of the first request that were hits", spread([100 * one for one in hit_parts], 0) + " %")


def pairs(shim, engine_options, n):
    """Seconds to decode, where blocks are sealed and where not."""
    engines = {name: shim.start(VLLM_PLUGINS="glake", GLAKE_VLLM_KV=name) for name in ("elastic", "kept")}
    for engine in engines.values():
        engine.ask("load", engine_options)
    batch = [[3 + (7919 * (k + 1) * (j + 1)) % 4000 for j in range(64)] for k in range(16)]
    took = {name: [] for name in engines}
    for i in range(n + 1):
        for name in sorted(engines, reverse=bool(i % 2)):
            given = [[5 + (i * 16 + k) % 3000, *ids] for k, ids in enumerate(batch)]
            seconds = engines[name].ask("generate", given, 400, None, True)[1]
            if i:
                took[name].append(seconds)
    row("decoding 16 x 400 tokens, kept / elastic", spread([b / a for a, b in zip(took["elastic"], took["kept"])], 4))
    for engine in engines.values():
        expect("Traceback" not in engine.log(), f"an exception:\n{engine.log()[-2000:]}")
        engine.end()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kv-mib", type=int, default=512)
    parser.add_argument("--pairs", type=int, default=6)
    options = parser.parse_args()
    if not vllm_forks.is_there():
        print("# skipped: no vLLM in $KIT_SITE, or no kitlib.py in $KIT")
        return 0
    given = prompts()
    engine_options = options_of(make("llama", PLACE), options.kv_mib)
    daemon = Daemon()
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "plugin"))
        shim = vllm_forks.Forks(daemon, plugin(os.path.join(folder, "plugin")), folder, "shim",
                                environment={"PYTHONHASHSEED": "0"})
        try:
            plain = shim.start(VLLM_PLUGINS="")
            plain.ask("load", engine_options)
            want = [plain.ask("generate_each", [prompt], N_TOKENS)[0] for prompt in given]
            plain.end()
            crashes(daemon, shim, engine_options, given, want, options.rounds)
            pairs(shim, engine_options, options.pairs)
        except vllm_forks.Failed as error:
            expect(False, str(error))
        shim.end()
    daemon.stop()
    print("\n".join(failures) or "OK")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
