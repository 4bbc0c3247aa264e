# SPDX-License-Identifier: Apache-2.0
"""KV memory from one real vLLM to another: two elastic engines whose caches together do not fit.

    KIT=FOLDER KIT_SITE=/tmp/vllm-site python3 tests/gpu/vllm_kv.py [--size 1b] [--rounds 8]

Each engine in turn prefills nearly as much as its cache can have, so that it gets what the other has lent: while that one is idle,
and then while it decodes. What is reported: how long steps of KV memory took to come, per GiB, from the need of the scheduler on. Exit 1
when tokens are other ones than before, a request fails, or no memory moved. KIT as in vllm_engines.py.
"""
import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
KIT = os.environ.get("KIT", "")
SITE = os.environ.get("KIT_SITE", "/tmp/vllm-site")
GIB = 1 << 30
#: of a prompt and what follows it
N_TOKENS = 1900


# ---- an engine, in a process of its own ----

def child():
    sys.path.insert(0, KIT)
    import kitlib
    parser = argparse.ArgumentParser()
    kitlib.add_arguments(parser, util=0.2, sleep=False)
    engine = kitlib.Engine(parser.parse_args(sys.argv[2:]))
    from vllm import SamplingParams

    def generate(seed, n_prompts, n_tokens, n_out):
        n_words = engine.vocab - 3
        prompts = [{"prompt_token_ids": [3 + (7919 * (seed * 4096 + i + 1) + 104729 * j) % n_words
                                         for j in range(n_tokens)]} for i in range(n_prompts)]
        params = SamplingParams(temperature=0.0, max_tokens=n_out, ignore_eos=True, detokenize=False)
        start = time.monotonic()
        outputs = engine.llm.generate(prompts, params, use_tqdm=False)
        return {"s": time.monotonic() - start, "n": sum(len(output.outputs[0].token_ids) for output in outputs)}

    cache = engine.llm.llm_engine.vllm_config.cache_config
    calls = {"fixed": engine.generate, "generate": generate, "tokens": lambda: cache.num_gpu_blocks * cache.block_size}
    print("READY", flush=True)
    for line in sys.stdin:
        words = line.split()
        result = calls[words[0]](*map(int, words[1:]))
        print("DONE " + json.dumps(result), flush=True)


class Engine:
    def __init__(self, daemon, path, name, options):
        import run
        self.name, self.log_path = name, os.path.join(daemon.folder, f"{name}.log")
        self.log = open(self.log_path, "w", encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([SITE, path]), "GLAKE_SOCKET": daemon.socket,
                       "VLLM_PLUGINS": "glake", "GLAKE_VLLM_KV": "elastic"}
        command = [os.path.join(run.ROOT, "bin", "glake"), "run", "--socket", daemon.socket, "--", sys.executable,
                   os.path.abspath(__file__), "--child", "--log", "DEBUG", *options]
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.log, text=True)
        self._wait("READY", 500)

    def _wait(self, word, seconds):
        end = time.monotonic() + seconds
        for line in self.process.stdout:
            self.log.write(line)
            self.log.flush()
            if line.startswith(word):
                return line[len(word):]
            if time.monotonic() > end:
                break
        raise RuntimeError(f"{self.name} does not answer:\n" + self.text()[-4000:])

    def start(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def end(self):
        return json.loads(self._wait("DONE", 300))

    def do(self, *words):
        self.start(*words)
        return self.end()

    def text(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()


def handovers(engine):
    """(steps, MiB, ms) of each time that memory was committed."""
    found = re.findall(r"glake: (\d+) KV steps of (\d+) MiB came in ([\d.]+) ms", engine.text())
    return [(int(n), int(n) * int(mib), float(ms)) for n, mib, ms in found]


def percentile(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def rounds(a, b, busy, n):
    import run
    counts = [len(handovers(engine)) for engine in (a, b)]
    took, name = [], "the other decodes" if busy else "the other is idle"
    n_prompts = int(a.do("tokens") * 0.85 / N_TOKENS)
    for i in range(n):
        for engine, other in ((a, b), (b, a)):
            if busy:
                other.start("generate", 7, 4, 64, 512)
            result = engine.do("generate", 100 + 2 * i + (engine is b) + 64 * busy, n_prompts, N_TOKENS - 8, 8)
            took.append(result["s"])
            run.expect(result["n"] == n_prompts * 8, f"{engine.name}: {result['n']} tokens")
            if busy:
                other.end()
    rows = [row for engine, n_before in zip((a, b), counts) for row in handovers(engine)[n_before:]]
    run.row(f"{name}: {n_prompts} prompts of {N_TOKENS} tokens at once", run.spread(took, 3) + " s")
    run.expect(bool(rows), "no memory moved")
    if rows:
        per_gib = [ms / mib * 1024 for _, mib, ms in rows]
        mib = sum(mib for _, mib, _ in rows)
        run.row(f"{name}: KV memory that came", f"{mib} MiB in {len(rows)} times, {sum(ms for *_, ms in rows) / mib * 1024:.2f} "
                                                "ms/GiB over all")
        run.row(f"{name}: one time", f"p50 {percentile([ms for *_, ms in rows], 0.5):.2f} ms, "
                                     f"p99 {percentile([ms for *_, ms in rows], 0.99):.2f} ms")
        run.row(f"{name}: ms/GiB", f"p50 {percentile(per_gib, 0.5):.2f}, p99 {percentile(per_gib, 0.99):.2f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", default="1b")
    parser.add_argument("--mode", default="graphs", choices=["eager", "graphs", "compile"])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--kv-mib", type=int, default=4096, help="the most that each engine's cache may have")
    options = parser.parse_args()
    if not os.path.isfile(os.path.join(KIT, "smoke.py")) or not os.path.isdir(os.path.join(SITE, "vllm")):
        print("# skipped: no vLLM in $KIT_SITE, or no smoke.py in $KIT")
        return 0
    import run
    from vllm_engines import plugin
    sys.path.insert(0, run.PYTHON)
    daemon = run.Daemon("mover_idle_ms = 0;")
    os.environ["GLAKE_SOCKET"] = daemon.socket
    import glake
    arguments = ["--size", options.size, "--mode", options.mode, "--load", "glake", "--kv-mib", str(options.kv_mib), "--max-seqs", "256",
                 "--extra", json.dumps({"enable_prefix_caching": True})]
    with tempfile.TemporaryDirectory() as folder:
        path = plugin(folder)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            a, b = pool.map(lambda name: Engine(daemon, path, name, arguments), ("A", "B"))
        before = [engine.do("fixed")["hash"] for engine in (a, b)]
        run.expect(before[0] == before[1], f"two engines, other tokens: {before}")
        # What is left is not enough for both.
        free = glake.status()["devices"][0]["free_bytes"]
        # It answers when glaked asks: for who does not, requests that cannot be met wait a second.
        ballast = glake.Elastic(64 << 20, (free - options.kv_mib * (1 << 20) * 5 // 4) // (64 << 20))
        ballast.commit(0, ballast.steps)
        run.row("free for both", f"{glake.status()['devices'][0]['free_bytes'] / GIB:.2f} GiB, each may have "
                                 f"{options.kv_mib / 1024:.2f}")
        for busy in (False, True):
            rounds(a, b, busy, options.rounds)
        after = [engine.do("fixed")["hash"] for engine in (a, b)]
        run.expect(after == before, f"tokens changed: {before}, {after}")
        for engine in (a, b):
            run.expect("Traceback" not in engine.text(), f"{engine.name}: an exception:\n" + engine.text()[-3000:])
            lines = re.findall(r"glake: .*", engine.text())
            print(f"# {engine.name}:", *lines[:6], sep="\n#   ")
            engine.close()
        ballast.close()
    daemon.stop()
    return 1 if run.failures else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child()
    else:
        sys.exit(main())
