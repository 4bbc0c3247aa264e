#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A busy node to look at: a glaked on simulated GPUs, models, and many programs of several tenants.

    tests/demo/crowd.py [--gpus N] [--programs N] [--build BUILD] [COMMAND [ARGUMENT...]]

COMMAND runs beside it, with GLAKE_SOCKET and a PATH that has glakectl; without one it prints the socket and stays until its
input ends. What programs have is the same each time. It needs root: tenants are told apart by groups.
"""
import argparse
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

MIB = 1024 * 1024
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TENANTS = (("research", 61001, "5GiB", 60), ("production", 61002, "6GiB", 64), ("batch", 61003, "3GiB", 50),
           ("students", 61004, "2GiB", 50))
NAMES = ("serve.py", "-m vllm.entrypoints.openai.api_server", "train_lora.py", "notebook", "evaluate.py",
         "embeddings-service", "rerank.py", "whisper-batch", "sd-webui", "agent-tools")


def random_numbers(seed):
    while True:
        seed = (seed * 1103515245 + 12345) & 0x7fffffff
        yield seed >> 8


def write_model(path, seed, n_tensors, tensor_bytes):
    header = {f"t{i}": {"dtype": "U8", "shape": [tensor_bytes],
                        "data_offsets": [i * tensor_bytes, (i + 1) * tensor_bytes]} for i in range(n_tensors)}
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for i in range(n_tensors):
            file.write(bytes([(seed * 16 + i) % 256]) * tensor_bytes)


def work(plan):
    """The programs of one process. They have what the plan says until the input ends."""
    import glake  # the binding is found by the environment that the parent has made

    held = []
    for program in json.loads(plan):
        session = glake.Session(program=program["name"])
        for gpu, n_bytes in program["memory"]:
            try:
                held.append(session.alloc(n_bytes, gpu))
            except MemoryError:
                pass  # its tenant's limit: that is a part of the picture
        held += [session] + [glake.Model(path, gpu, session=session) for gpu, path in program["models"]]
    print("ready", flush=True)
    sys.stdin.read()


class Crowd:
    """With it a glaked and its programs run; its end ends them."""

    def __init__(self, n_gpus, n_programs, build, gpu_bytes="12GiB", per_process=5):
        self.build = os.path.abspath(build)
        self.folder = tempfile.mkdtemp(prefix="glake-crowd.")
        self.children = []
        self.env = {**os.environ, "GLAKE_SOCKET": os.path.join(self.folder, "glaked.sock"),
                    "GLAKE_LIBCUDA": os.path.join(self.build, "cudasim", "libcuda.so.1"),
                    "CUDASIM_STATE": os.path.join(self.folder, "cudasim"), "CUDASIM_DEVICES": f"{n_gpus}x{gpu_bytes}",
                    "GLAKE_LIBRARY": os.path.join(self.build, "lib", "libglake-client.so"),
                    "PYTHONPATH": os.path.join(ROOT, "libclient", "python"),
                    "PATH": os.path.join(self.build, "bin") + ":" + os.environ["PATH"]}
        try:
            self.start_daemon()
            self.start_programs(n_gpus, n_programs, per_process)
        except BaseException:
            self.close()
            raise

    def start_daemon(self):
        config = os.path.join(self.folder, "glaked.conf")
        with open(config, "w", encoding="utf-8") as file:
            file.write(f'socket_path = "{self.env["GLAKE_SOCKET"]}";\nmax_sessions_per_user = 1000;\ntenants = (\n')
            for name, gid, limit, n_sessions in TENANTS:
                file.write(f'\t{{ name = "{name}"; gids = [ {gid} ]; device_bytes = "{limit}"; '
                           f'max_sessions = {n_sessions}; }},\n')
            file.write('\t{ name = "default"; device_bytes = "8GiB"; }\n);\n')
        with open(os.path.join(self.folder, "log"), "w", encoding="utf-8") as log:
            self.daemon = subprocess.Popen([os.path.join(self.build, "bin", "glaked"), "-c", config], stderr=log,
                                           env=self.env)
        self.children.append(self.daemon)
        for _ in range(400):
            if subprocess.run(["glakectl", "status"], env=self.env, capture_output=True, check=False).returncode == 0:
                return
            time.sleep(0.05)
        raise RuntimeError(open(os.path.join(self.folder, "log"), encoding="utf-8").read())

    def plan(self, n_gpus, n_programs):
        numbers = random_numbers(7)
        models = []
        for seed, n_tensors in ((1, 12), (2, 6), (3, 9)):
            models.append(os.path.join(self.folder, ("llama-8b", "bge-large", "whisper-v3")[seed - 1] + ".safetensors"))
            write_model(models[-1], seed, n_tensors, 16 * MIB)
        for i in range(n_programs):
            gpu = next(numbers) % n_gpus
            share = 12 * n_gpus // max(n_programs, 1) * 512
            n_bytes = (next(numbers) % max(share, 64) + 32) * MIB
            program = {"name": NAMES[i % len(NAMES)], "memory": [(gpu, min(n_bytes, 2560 * MIB))], "models": []}
            if i % 9 == 4 and n_gpus > 1:
                program["memory"].append(((gpu + 1) % n_gpus, n_bytes // 2))
            if i % 3 == 0:
                program["models"].append((gpu % min(n_gpus, 2), models[i % 4 % 3]))
            yield program

    def start_programs(self, n_gpus, n_programs, per_process):
        programs = list(self.plan(n_gpus, n_programs))
        starting = []
        for i in range(0, len(programs), per_process):
            gid = (*(tenant[1] for tenant in TENANTS), 0)[i // per_process % 5]
            child = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--work",
                                      json.dumps(programs[i:i + per_process])], env=self.env, stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, text=True, group=gid, extra_groups=[])
            starting.append(child)
            self.children.append(child)
            # A few at a time.
            if len(starting) == 4:
                self.wait_for(starting.pop(0))
        for child in starting:
            self.wait_for(child)

    def wait_for(self, child):
        if child.stdout.readline() != "ready\n":
            raise RuntimeError("a program did not start")

    def close(self):
        for child in reversed(self.children):
            if child.stdin:
                child.stdin.close()
            child.terminate()
        for child in reversed(self.children):
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            if child.stdout:
                child.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


def main():
    if sys.argv[1:2] == ["--work"]:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        work(sys.argv[2])
        return 0
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--programs", type=int, default=50)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    with Crowd(arguments.gpus, arguments.programs, arguments.build) as crowd:
        if arguments.command:
            return subprocess.run(arguments.command, env=crowd.env, check=False).returncode
        print(crowd.env["GLAKE_SOCKET"], flush=True)
        sys.stdin.read()
        return 0


if __name__ == "__main__":
    sys.exit(main())
