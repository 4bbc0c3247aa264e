# SPDX-License-Identifier: Apache-2.0
"""Engines of a real vLLM, forked by a process that has imported it: importing takes 17 seconds, and a fork nothing.

$KIT is a folder with kitlib.py (what vLLM needs in its environment), $KIT_SITE one that has vLLM.
"""
import hashlib
import json
import multiprocessing.connection
import os
import subprocess
import sys
import threading
import time

KIT = os.environ.get("KIT", "")
SITE = os.environ.get("KIT_SITE", "/tmp/vllm-site")
PATIENCE_SECONDS = 300


def is_there():
    return os.path.isfile(os.path.join(KIT, "kitlib.py")) and os.path.isdir(os.path.join(SITE, "vllm"))


# ---- in the processes ----------------------------------------------------------------------------


def digest(rows):
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:12]


class Engine:
    """What an engine is asked for, by name."""

    def __init__(self):
        self.llm = None

    def load(self, options):
        from vllm import LLM
        start = time.monotonic()
        self.llm = LLM(**options)
        return round(time.monotonic() - start, 3)

    def generate(self, prompts, n_tokens, adapter=None, at_once=False):
        """A digest of all tokens, and seconds."""
        rows, seconds = self._generate(prompts, n_tokens, adapter, at_once)
        return digest(rows), seconds

    def generate_each(self, prompts, n_tokens):
        """All at once; a digest for each prompt."""
        return [digest(row) for row in self._generate(prompts, n_tokens, None, True)[0]]

    def _generate(self, prompts, n_tokens, adapter, at_once):
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest
        params = SamplingParams(temperature=0.0, max_tokens=n_tokens, ignore_eos=True, detokenize=False)
        lora = LoRARequest("adapter", 1, adapter) if adapter else None
        start = time.monotonic()
        rows = []
        for part in [prompts] if at_once else [[prompt] for prompt in prompts]:
            out = self.llm.generate([{"prompt_token_ids": ids} for ids in part], params, use_tqdm=False, lora_request=lora)
            rows += [list(one.outputs[0].token_ids) for one in out]
        return rows, time.monotonic() - start

    def pid(self):
        return os.getpid()

    def first_hit(self, prompt, n_tokens):
        """One request: seconds to its first token, how many tokens of the prompt were found cached, and a digest of all."""
        from vllm import SamplingParams
        engine, first, out = self.llm.llm_engine, None, None
        start = time.monotonic()
        engine.add_request("first", {"prompt_token_ids": prompt},
                           SamplingParams(temperature=0.0, max_tokens=n_tokens, ignore_eos=True, detokenize=False))
        while engine.has_unfinished_requests():
            for out in engine.step():
                first = first or time.monotonic() - start
        return first, out.num_cached_tokens or 0, digest(list(out.outputs[0].token_ids))

    def fresh_prefill(self, n):
        """Seconds to the first token of a prompt of so many tokens that nobody has asked before."""
        return self.first_hit([11 + (31 * i) % 3989 for i in range(n)], 1)[0]

    def cache_tokens(self):
        cache = self.llm.llm_engine.vllm_config.cache_config
        return cache.num_gpu_blocks * cache.block_size

    def serve(self, start, requests):
        """Requests (seconds behind @start of the monotonic clock, prompt, tokens to follow), in order. Seconds to the first
        token of each, from when it was due."""
        from vllm import SamplingParams
        engine, first, n_done, due = self.llm.llm_engine, {}, 0, 0
        while n_done < len(requests):
            while due < len(requests) and requests[due][0] <= time.monotonic() - start:
                _, prompt, n_tokens = requests[due]
                engine.add_request(str(due), {"prompt_token_ids": prompt},
                                   SamplingParams(temperature=0.0, max_tokens=n_tokens, ignore_eos=True, detokenize=False))
                due += 1
            if not engine.has_unfinished_requests():
                time.sleep(0.001)
                continue
            for out in engine.step():
                first.setdefault(int(out.request_id), time.monotonic() - start)
                n_done += out.finished
        return [first[i] - requests[i][0] for i in range(len(requests))]

    def sleep(self, level=1):
        start = time.monotonic()
        self.llm.sleep(level=level)
        return time.monotonic() - start

    def wake(self):
        start = time.monotonic()
        self.llm.wake_up()
        return time.monotonic() - start

    def shutdown(self):
        """Its ranks have ended when this returns, if they are processes of their own."""
        self.llm.llm_engine.engine_core.shutdown()


def run_engine(place, log, environment):
    """In the fork. Answers are [True, what it returned] or [False, the error]."""
    to = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(to, 1)
    os.dup2(to, 2)
    os.environ.update(environment)
    engine = Engine()
    with multiprocessing.connection.Client(place, "AF_UNIX") as connection:
        while True:
            try:
                name, *arguments = connection.recv()
            except EOFError:
                return
            try:
                answer = [True, getattr(engine, name)(*arguments)]
            except Exception as error:
                import traceback
                traceback.print_exc()
                answer = [False, f"{type(error).__name__}: {error}"[:500]]
            sys.stdout.flush()
            sys.stderr.flush()
            connection.send(answer)


def serve():
    """Forks an engine for each line on stdin: where it is to connect, its log, its environment."""
    sys.path.insert(0, KIT)
    import kitlib
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    kitlib.environment(log=os.environ.get("VLLM_LOGGING_LEVEL", "INFO"))
    import vllm.entrypoints.llm  # noqa: F401
    import vllm.v1.engine.llm_engine  # noqa: F401
    print("ready", flush=True)
    for line in sys.stdin:
        arguments = json.loads(line)
        if os.fork() == 0:
            try:
                run_engine(*arguments)
            finally:
                os._exit(0)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


# ---- outside -------------------------------------------------------------------------------------


class Failed(Exception):
    pass


class Handle:
    """An engine, from outside."""

    def __init__(self, forks, number, environment):
        self.place = os.path.join(forks.folder, f"{forks.name}-{number}")
        self.log_path = self.place + ".log"
        self.listener = multiprocessing.connection.Listener(self.place, "AF_UNIX")
        self.listener._listener._socket.settimeout(PATIENCE_SECONDS)
        forks.tell([self.place, self.log_path, environment])
        self.connection = self.listener.accept()

    def ask(self, name, *arguments):
        try:
            self.connection.send([name, *arguments])
            if not self.connection.poll(PATIENCE_SECONDS):
                raise Failed(f"{name}: no answer in {PATIENCE_SECONDS} s")
            is_well, answer = self.connection.recv()
        except (OSError, EOFError) as error:
            raise Failed(f"{name}: the engine has ended: {error!r}") from None
        if not is_well:
            raise Failed(f"{name}: {answer}")
        return answer

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def said(self):
        """What glake says in it."""
        return [line.split("glake: ", 1)[1] for line in self.log().splitlines() if "glake: " in line]

    def end(self):
        self.connection.close()
        self.listener.close()


class Forks:
    """The process that has imported vLLM, under `glake run` with @options, or without the shim (None)."""

    def __init__(self, daemon, path, folder, name, options=(), environment=None):
        from run import ROOT
        prefix = [] if options is None else [os.path.join(ROOT, "bin", "glake"), "run", "--socket", daemon.socket,
                                             *options, "--"]
        self.folder, self.name, self.n, self.lock = folder, name, 0, threading.Lock()
        self.log = open(os.path.join(folder, name + ".log"), "w+", encoding="utf-8")
        self.process = subprocess.Popen(
            [*prefix, sys.executable, os.path.abspath(__file__)],
            env={**os.environ, "GLAKE_SOCKET": daemon.socket, "PYTHONPATH": os.pathsep.join([SITE, path]),
                 **(environment or {})},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.is_ready = False

    def tell(self, line):
        with self.lock:
            while not self.is_ready:
                read = self.process.stdout.readline()
                if not read:
                    self.log.seek(0)
                    raise Failed(f"vLLM cannot be imported:\n{self.log.read()[-2000:]}")
                self.is_ready = read == "ready\n"
            self.process.stdin.write(json.dumps(line) + "\n")
            self.process.stdin.flush()

    def start(self, **environment):
        with self.lock:
            number, self.n = self.n, self.n + 1
        return Handle(self, number, environment)

    def end(self):
        self.process.stdin.close()
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


if __name__ == "__main__":
    serve()
