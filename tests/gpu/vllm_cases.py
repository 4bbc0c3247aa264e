# SPDX-License-Identifier: Apache-2.0
"""What is dangerous in vLLM, on small models: the same tokens plain, under `glake run`, and with the plugin.

    KIT=FOLDER KIT_SITE=/tmp/vllm-site python3 tests/gpu/vllm_cases.py [--cases NAME,...] [--jobs 6] [--logs FILE]

Each case runs plain; under `glake run` with vLLM's own loader and sleep mode; and three times with the plugin: the first
loads and publishes, the second attaches, the third attaches, sleeps, wakes, and generates again. A process that has
imported vLLM forks one engine for each. FOLDER has kitlib.py, KIT_SITE a vLLM. Exit 1 when tokens differ, a sleep is
none, or an engine attaches what it should not, or does not what it should.
"""
import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

KIT = os.environ.get("KIT", "")
SITE = os.environ.get("KIT_SITE", "/tmp/vllm-site")
PLACE = os.environ.get("KIT_MODELS", "/tmp/vllm-models")

# model, arguments of vllm.LLM, environment, whether the second engine attaches
CASES = {
    "eager, runner 1": ("llama", {"enforce_eager": True}, {"VLLM_USE_V2_MODEL_RUNNER": "0"}, True),
    "eager, runner 2": ("llama", {"enforce_eager": True}, {"VLLM_USE_V2_MODEL_RUNNER": "1"}, True),
    "graphs": ("llama", {}, {}, True),
    "compiled": ("llama", {"compilation_config": {"cudagraph_capture_sizes": [1, 2, 4, 8]}}, {}, True),
    "prefix caching": ("llama", {"enable_prefix_caching": True}, {}, True),
    "tied embeddings": ("tied", {}, {}, True),
    "mixture of experts": ("mixture", {}, {}, False),
    "latent attention": ("latent", {"attention_backend": "TRITON_MLA"}, {}, None),
    "LoRA": ("llama", {"enable_lora": True, "max_loras": 1, "max_lora_rank": 8}, {}, True),
    "fp8": ("llama", {"quantization": "fp8"}, {}, False),
}
GRAPHS = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 2, 4, 8]}
KINDS = ("plain", "shim", "first", "second", "third")


# ---- in the processes ----------------------------------------------------------------------------


def arguments_of(case, kind):
    from vllm_models import make
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


def tokens(llm, lora):
    from vllm import SamplingParams
    params = SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True, detokenize=False)
    # With the same beginning, for prefix caching, and of odd lengths.
    begin = [3 + 7919 * j % 4000 for j in range(64)]
    rows = []
    for i in range(6):
        prompt = begin + [3 + (31 * i + 17 * j) % 4000 for j in range(1 + 29 * i)]
        out = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False, lora_request=lora)
        rows.append(list(out[0].outputs[0].token_ids))
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:12]


def engine(case, kind):
    options, environment = arguments_of(case, kind)
    os.environ.update(environment)
    from vllm import LLM
    start = time.monotonic()
    llm = LLM(**options)
    result = {"load_s": round(time.monotonic() - start, 2)}
    lora = None
    if options.get("enable_lora"):
        from vllm.lora.request import LoRARequest
        from vllm_models import make_adapter
        lora = LoRARequest("adapter", 1, make_adapter(PLACE))
    result["hashes"] = [tokens(llm, lora), tokens(llm, lora)]
    if options.get("enable_sleep_mode"):
        for part in ("sleep", "wake"):
            start = time.monotonic()
            if part == "sleep":
                llm.sleep(level=1)
            else:
                llm.wake_up()
            result[f"{part}_ms"] = round((time.monotonic() - start) * 1e3)
        # A sleep empties the prefix cache: the first after it is as the first was.
        result["woken"] = tokens(llm, lora)
    return result


def serve():
    """Forks an engine for each line on stdin, [number, case, kind, log]; says [number, result] of each that ended."""
    sys.path.insert(0, KIT)
    import kitlib
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    kitlib.environment(log="INFO")
    import vllm.entrypoints.llm  # noqa: F401
    import vllm.v1.engine.llm_engine  # noqa: F401
    lock = threading.Lock()

    def follow(number, pid, place):
        status = os.waitpid(pid, 0)[1]
        try:
            with open(place, encoding="utf-8") as file:
                result = json.load(file)
        except (OSError, ValueError):
            result = {"error": f"status {status}"}
        with lock:
            print(json.dumps([number, result]), flush=True)

    followers = []
    print("[-1, {}]", flush=True)
    for line in sys.stdin:
        number, case, kind, log = json.loads(line)
        place = log + ".json"
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                to = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                os.dup2(to, 1)
                os.dup2(to, 2)
                result = engine(case, kind)
                with open(place, "w", encoding="utf-8") as file:
                    json.dump(result, file)
                code = 0
            except BaseException:
                import traceback
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(code)
        followers.append(threading.Thread(target=follow, args=(number, pid, place)))
        followers[-1].start()
    for follower in followers:
        follower.join()


# ---- outside -------------------------------------------------------------------------------------


class Forks:
    """A process that has imported vLLM, and what it forks."""

    def __init__(self, daemon, path, folder, shim):
        from run import ROOT
        prefix = [os.path.join(ROOT, "bin", "glake"), "run", "--socket", daemon.socket, "--"]
        self.folder, self.answers, self.n = folder, {}, 0
        self.changed = threading.Condition()
        self.log = os.path.join(folder, f"forks-{shim}")
        self.process = subprocess.Popen(
            [*(prefix if shim else []), sys.executable, os.path.abspath(__file__), "--serve"],
            env={**os.environ, "GLAKE_SOCKET": daemon.socket, "PYTHONPATH": os.pathsep.join([SITE, path])},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(self.log, "w", encoding="utf-8"), text=True)
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        for line in self.process.stdout:
            if line.startswith("["):
                number, result = json.loads(line)
                with self.changed:
                    self.answers[number] = result
                    self.changed.notify_all()
        with self.changed:
            self.answers[None] = {}
            self.changed.notify_all()

    def run(self, case, kind):
        """Its result and its log."""
        with self.changed:
            number, self.n = self.n, self.n + 1
            log = os.path.join(self.folder, f"{kind}-{case.replace(' ', '-').replace(',', '')}")
            self.process.stdin.write(json.dumps([number, case, kind, log]) + "\n")
            self.process.stdin.flush()
            self.changed.wait_for(lambda: number in self.answers or None in self.answers, timeout=400)
            result = self.answers.get(number, {"error": "no answer"})
        with open(log, encoding="utf-8", errors="replace") as file:
            return result, file.read()


def judge(case, results, logs):
    from run import expect, row
    attaches = CASES[case][3]
    for kind in KINDS:
        expect("error" not in results[kind], f"{case}, {kind}: {results[kind].get('error')}\n{logs[kind][-1500:]}")
    want = results["plain"].get("hashes")
    if want is None:
        return
    for kind in KINDS[1:]:
        got = results[kind]
        expect(got.get("hashes") == want, f"{case}, {kind}: other tokens: {got.get('hashes')}, plain {want}")
        if "woken" in got:
            expect(got["woken"] == want[0], f"{case}, {kind}: other tokens after the wake")
    attached = [kind for kind in KINDS if "glake: attached" in logs[kind]]
    if attaches is not None:
        # The first may find what the same model has published in another case.
        expect(attached[-2:] == ["second", "third"] if attaches else not attached, f"{case}: attached: {attached}")
    why = [line.split("glake: ", 1)[1] for line in logs["second"].splitlines() if "glake: " in line]
    row(case, f"load {', '.join(str(results[kind].get('load_s')) for kind in KINDS)} s; sleep, wake of the third "
              f"{results['third'].get('sleep_ms')}, {results['third'].get('wake_ms')} ms; {'; '.join(why)[:150]}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", default=",,".join(CASES), help="names, with ,, between them")
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--logs")
    parser.add_argument("--serve", action="store_true")
    options = parser.parse_args()
    if options.serve:
        return serve()
    if not os.path.isfile(os.path.join(KIT, "kitlib.py")) or not os.path.isdir(os.path.join(SITE, "vllm")):
        print("# skipped: no vLLM in $KIT_SITE, or no kitlib.py in $KIT")
        return 0
    from run import Daemon, expect, failures
    from vllm_engines import plugin
    from vllm_models import MODELS, make, make_adapter
    for model in MODELS:
        make(model, PLACE)
    make_adapter(PLACE)
    cases, told = options.cases.split(",,"), {}
    daemon = Daemon('host_bytes = "32GiB"; host_ready_bytes = "2GiB"; mover_idle_ms = 0;')
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "plugin"))
        path = plugin(os.path.join(folder, "plugin"))
        plain, shim = Forks(daemon, path, folder, False), Forks(daemon, path, folder, True)
        room = threading.Semaphore(options.jobs)

        def follow(case):
            results, logs = {}, {}
            for kind in KINDS:
                with room:
                    results[kind], logs[kind] = (plain if kind == "plain" else shim).run(case, kind)
            told[case] = results, logs

        threads = [threading.Thread(target=follow, args=(case,)) for case in cases]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for forks in (plain, shim):
            forks.process.stdin.close()
            expect(forks.process.wait(60) == 0, f"forks ended: {open(forks.log, encoding='utf-8').read()[-2000:]}")
    for case in cases:
        judge(case, *told[case])
    if options.logs:
        with open(options.logs, "w", encoding="utf-8") as file:
            for case, (results, logs) in told.items():
                for kind in KINDS:
                    file.write(f"\n===== {case}, {kind}: {json.dumps(results[kind])}\n{logs[kind][-20000:]}")
    time.sleep(1)
    left = daemon.device()["private_bytes"]
    expect(left == 0, f"left on the GPU: {left}")
    daemon.stop()
    print("\n".join(failures) or "OK")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
