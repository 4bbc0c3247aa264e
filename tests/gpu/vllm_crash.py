# SPDX-License-Identifier: Apache-2.0
"""A real vLLM is killed while it serves, and the next one has its cached prefixes.

    KIT=FOLDER KIT_SITE=/tmp/vllm-site python3 tests/gpu/vllm_crash.py [--size 1b] [--kv-mib 4096] [--prompts 40] [--tokens 1800]

An engine with GLAKE_VLLM_KV=kept serves prompts, and is killed with SIGKILL while it serves more of them. The next one, started at once, gets
the same prompts again: reported is how many of its blocks it found, in what time after its start it had its first hit, what the prompts took, and
what they took where nothing is kept. Tokens have to be those of an engine with a plain cache. vllm_forks.py says what it needs. Exit 1
when tokens differ, or nothing was found.
"""
import argparse
import contextlib
import os
import re
import signal
import sys
import tempfile
import threading
import time

import vllm_forks
from run import Daemon, expect, failures, row
from vllm_engines import plugin

MIB = 1 << 20
N_OUT = 8


def prompts(seed, n, n_tokens):
    return [[3 + (7919 * (seed * 4096 + i + 1) + 104729 * j) % 4000 for j in range(n_tokens)] for i in range(n)]


def serve(engine, given):
    """Digests of all, and seconds."""
    start = time.monotonic()
    return engine.ask("generate_each", given, N_OUT), time.monotonic() - start


def serve_until_killed(engine, given):
    with contextlib.suppress(vllm_forks.Failed):
        engine.ask("generate_each", given, N_OUT)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", default="1b")
    parser.add_argument("--kv-mib", type=int, default=4096)
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=1800)
    options = parser.parse_args()
    if not vllm_forks.is_there():
        print("# skipped: no vLLM in $KIT_SITE, or no kitlib.py in $KIT")
        return 0
    sys.path.insert(0, vllm_forks.KIT)
    import kitlib
    given = {
        "model": kitlib.make_model(options.size), "dtype": "float32", "max_model_len": 2048, "gpu_memory_utilization": 0.2,
        "kv_cache_memory_bytes": options.kv_mib * MIB, "seed": 0, "skip_tokenizer_init": True, "disable_log_stats": True,
        "attention_backend": "TRITON_ATTN", "enable_flashinfer_autotune": False, "max_num_seqs": 16, "max_num_batched_tokens": 2048,
        "enforce_eager": True, "enable_prefix_caching": True, "load_format": "glake"}
    asked, more = prompts(1, options.prompts, options.tokens), prompts(2, options.prompts, options.tokens)
    daemon = Daemon("mover_idle_ms = 0;")
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "plugin"))
        shim = vllm_forks.Forks(daemon, plugin(os.path.join(folder, "plugin")), folder, "shim",
                                environment={"VLLM_LOGGING_LEVEL": "DEBUG"})
        try:
            plain = shim.start(VLLM_PLUGINS="glake")
            plain.ask("load", given)
            want, cold_s = serve(plain, asked)
            again, warm_s = serve(plain, asked)
            expect(want == again, "the plain engine differs from itself")
            plain.end()
            first = shim.start(VLLM_PLUGINS="glake", GLAKE_VLLM_KV="kept")
            first.ask("load", given)
            got, _ = serve(first, asked)
            expect(got == want, "the first engine has other tokens")
            time.sleep(1.5)
            pid = first.ask("pid")
            threading.Thread(target=serve_until_killed, args=(first, more), daemon=True).start()
            time.sleep(0.5)
            killed = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            second = shim.start(VLLM_PLUGINS="glake", GLAKE_VLLM_KV="kept")
            load_s = second.ask("load", given)
            loaded = time.monotonic()
            one, _ = serve(second, asked[:1])
            hit_s = time.monotonic() - loaded
            expect(one == want[:1], "the first prompt of the next engine has other tokens")
            got, kept_s = serve(second, asked)
            expect(got == want, f"the next engine has other tokens for {sum(a != b for a, b in zip(got, want))} of {len(want)}")
            found = re.findall(r"glake: (\d+) blocks of an earlier engine are here again, in ([\d.]+) ms", second.log())
            expect(found and int(found[-1][0]) > 0, f"nothing was found: {second.said()}")
            row("blocks that the next engine found", f"{found[-1][0]} in {found[-1][1]} ms" if found else "none")
            row("its start behind the kill; its first prompt, a hit, behind that",
                f"{loaded - killed:.1f} s (load {load_s} s); {hit_s * 1e3:.0f} ms", "<= 1 s")
            row(f"{len(asked)} prompts of {options.tokens} tokens: nothing cached; all cached; the next engine",
                f"{cold_s:.2f}; {warm_s:.2f}; {kept_s:.2f} s")
            for name, engine in (("first", first), ("second", second)):
                expect("Traceback" not in engine.log(), f"{name}: an exception:\n{engine.log()[-2000:]}")
            second.end()
        except vllm_forks.Failed as error:
            expect(False, str(error))
        shim.end()
    daemon.stop()
    print("\n".join(failures) or "OK")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
