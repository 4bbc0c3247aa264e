# SPDX-License-Identifier: Apache-2.0
"""Programs sleep and wake: how fast, beside peers in the same run, and the same bits after many sleeps.

    python3 tests/gpu/sleep.py [--gib 8] [--sealed-gb 16] [--sleeps 200] [--skip figures,peers,bits,replicas,restart,devices] [--out FILE.json]

Figures: private memory in chunks of 32 MiB and of 2 MiB, written to before each sleep or not; sealed memory with and without a copy in host memory, a
second sleeper of weights that are on the GPU. A wake is measured in the program: from its first launch to the end of
that kernel. Peers: the same tensors copied to pinned memory and back, as vLLM's level 1 does; the driver's checkpoint.
Bits: programs compute while they are put to sleep at random moments; each result has to have the bits of the first.
Exit 1 when something is wrong; no time decides.
"""
import argparse
import ctypes
import hashlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from child import Child, serve
from restart import glaked_pid
from run import ROOT, Daemon, expect, failures, gpu_used_mib

MIB, GIB = 1 << 20, 1 << 30


# ---- in the programs -----------------------------------------------------------------------------


class Holder:
    """Holds memory, and says whether it is what it was."""

    def __init__(self, kind, n_bytes, piece):
        import torch
        self.torch = torch
        self.small = torch.zeros(1, device="cuda")
        generator = torch.Generator(device="cuda").manual_seed(7)
        n = n_bytes // piece
        if kind == "sealed":
            # From the host, as weights come.
            host = torch.empty(piece // 8, dtype=torch.int64).pin_memory()
            self.tensors = []
            for i in range(n):
                torch.arange(i << 40, (i << 40) + host.numel(), out=host)
                self.tensors.append(host.to("cuda"))
        elif kind == "raw":
            self.cuda = ctypes.CDLL("libcuda.so.1")
            self.pointers = []
            for i in range(n):
                pointer = ctypes.c_uint64()
                expect(self.cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(piece)) == 0,
                       "cuMemAlloc")
                self.pointers.append(pointer)
            self.n_words, self.base = piece // 4, 0
            self.fill()
            self.tensors = []
        elif kind == "both":
            # Each piece is a sum of one on either GPU, so that copies between them are under way.
            self.tensors = []
            for i in range(n):
                one = torch.full((piece // 8,), i, dtype=torch.int64, device=f"cuda:{i % 2}")
                self.tensors.append(one + torch.arange(piece // 8, device=f"cuda:{1 - i % 2}").to(one.device))
        else:
            self.tensors = [torch.empty(piece // 8, dtype=torch.int64, device="cuda").random_(
                generator=generator) for _ in range(n)]
        torch.cuda.synchronize()
        self.first = self.sums()


    def sums(self):
        if self.tensors:
            return [int(tensor.sum()) for tensor in self.tensors]
        word = ctypes.c_uint32()
        values = []
        for pointer in self.pointers:
            at = ctypes.c_uint64(pointer.value + 2 * MIB - 4)
            self.cuda.cuMemcpyDtoH_v2(ctypes.byref(word), at, ctypes.c_size_t(4))
            values.append(word.value)
        return values

    def fill(self):
        self.base += 1000000
        for i, pointer in enumerate(self.pointers):
            self.cuda.cuMemsetD32_v2(pointer, self.base + i, ctypes.c_size_t(self.n_words))

    def write(self):
        """All of it has changed."""
        if self.tensors:
            for tensor in self.tensors:
                tensor.add_(1)
        else:
            self.fill()
        self.torch.cuda.synchronize()
        self.first = self.sums()
        return True

    def tune(self, n):
        """Another @n of its tensors than replicas have, by one number each."""
        for i, tensor in enumerate(self.tensors[:n]):
            tensor[i] += 1
        self.torch.cuda.synchronize()
        self.first = self.sums()
        return True

    def same(self):
        return self.sums() == self.first

    def launch(self):
        """From the first launch to its end: it wakes the program."""
        start = time.perf_counter()
        self.small.add_(1)
        self.torch.cuda.synchronize()
        return time.perf_counter() - start

    def poll(self):
        """As a health check does: nothing of this wakes the program."""
        self.torch.cuda.synchronize()
        free, total = self.torch.cuda.mem_get_info()
        return [free, total, self.torch.cuda.memory_allocated()]

    def pinned(self):
        """vLLM's level 1: a fresh pinned copy of each allocation, and back."""
        out, back = 0.0, 0.0
        for tensor in self.tensors:
            start = time.perf_counter()
            host = self.torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            host.copy_(tensor)
            middle = time.perf_counter()
            tensor.copy_(host)
            self.torch.cuda.synchronize()
            back += time.perf_counter() - middle
            out += middle - start
            del host
        return [out, back]


class Worker:
    """Computes one thing again and again."""

    def __init__(self, kind):
        self.step = getattr(self, "make_" + kind)()
        self.want = None
        self.want = self.once()

    def once(self):
        return hashlib.sha256(self.step()).hexdigest()

    def compute(self, seconds):
        end, steps, wrong = time.monotonic() + seconds, 0, 0
        while time.monotonic() < end:
            wrong += self.once() != self.want
            steps += 1
        return {"steps": steps, "wrong": wrong}

    @staticmethod
    def net(torch):
        torch.manual_seed(1)
        return torch.nn.Sequential(*[layer for _ in range(8) for layer in (
            torch.nn.Linear(2048, 2048, device="cuda", dtype=torch.bfloat16), torch.nn.GELU())])

    def make_eager(self):
        import torch
        net, given = self.net(torch), torch.randn(64, 2048, device="cuda", dtype=torch.bfloat16)

        def step():
            with torch.no_grad():
                garbage = torch.full((random.randrange(1, 64) * MIB,), 3, dtype=torch.uint8, device="cuda")
                result = net(given)
                assert bool((garbage == 3).all())
            return result.view(torch.uint8).cpu().numpy().tobytes()
        return step

    def make_graph(self):
        import torch
        net, given = self.net(torch), torch.randn(64, 2048, device="cuda", dtype=torch.bfloat16)
        with torch.no_grad():
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                net(given)
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                result = net(given)

        def step():
            for _ in range(10):
                graph.replay()
            return result.view(torch.uint8).cpu().numpy().tobytes()
        return step

    def make_train(self):
        import torch
        net, given = self.net(torch), torch.randn(64, 2048, device="cuda", dtype=torch.bfloat16)

        def step():
            net.zero_grad()
            loss = net(given).float().square().mean()
            loss.backward()
            return b"".join(p.grad.view(torch.uint8).cpu().numpy().tobytes()[:4096]
                            for p in net.parameters())
        return step

    def make_compile(self):
        import torch
        net, given = self.net(torch), torch.randn(64, 2048, device="cuda", dtype=torch.bfloat16)
        compiled = torch.compile(net)

        def step():
            with torch.no_grad():
                return compiled(given).view(torch.uint8).cpu().numpy().tobytes()
        return step

    def make_threads(self):
        """Two threads with a stream each; pinned copies both ways."""
        import torch
        given = [torch.arange(8 * MIB, dtype=torch.int32, device="cuda") + i for i in range(2)]
        hosts = [torch.empty(8 * MIB, dtype=torch.int32).pin_memory() for _ in range(2)]

        def run(i):
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(20):
                    hosts[i].copy_(given[i] * 3, non_blocking=True)
            stream.synchronize()

        def step():
            threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return b"".join(host.numpy()[::997].tobytes() for host in hosts)
        return step

    def make_cupy(self):
        import cupy
        given = cupy.random.RandomState(1).rand(2048, 2048, dtype=cupy.float32)

        def step():
            return (given @ given).get().tobytes()
        return step

    def make_jax(self):
        import jax
        given = jax.random.normal(jax.random.PRNGKey(1), (2048, 2048))
        product = jax.jit(lambda a: a @ a)

        def step():
            import numpy
            return numpy.asarray(product(given)).tobytes()
        return step

    def make_static(self):
        """Code of nvcc's, which links the runtime statically; its memory comes and goes."""
        folder = tempfile.mkdtemp(prefix="glake-static-")
        source, library = os.path.join(folder, "step.cu"), os.path.join(folder, "step.so")
        with open(source, "w", encoding="ascii") as file:
            file.write(STATIC_SOURCE)
        clean = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
        subprocess.run(["nvcc", "-O2", "-arch=native", "-cudart", "static", "-shared", "-Xcompiler", "-fPIC", "-o", library,
                        source], check=True, env=clean)
        code, out = ctypes.CDLL(library), (ctypes.c_float * STATIC_N)()

        def step():
            error = code.step(out)
            assert error == 0, f"the runtime says {error}"
            return bytes(out)
        return step

    def make_llama(self, **sizes):
        """llama.cpp with all layers on the GPU: a folder in $LLAMA_CPP has llama_cpp, lib/ and what it imports."""
        sys.path.insert(0, os.environ["LLAMA_CPP"])
        os.environ["LLAMA_CPP_LIB_PATH"] = os.path.join(os.environ["LLAMA_CPP"], "lib")
        import llama_cpp as llama
        given = llama.llama_model_default_params()
        given.n_gpu_layers = 99
        place = os.path.join(tempfile.mkdtemp(prefix="glake-llama-"), "model.gguf")
        write_gguf(place, **sizes)
        llama.llama_backend_init()
        model = llama.llama_model_load_from_file(place.encode(), given)
        wanted = llama.llama_context_default_params()
        wanted.n_ctx = wanted.n_batch = 512
        context = llama.llama_init_from_model(model, wanted)
        assert model and context

        def decode(tokens):
            row = (llama.llama_token * len(tokens))(*tokens)
            assert llama.llama_decode(context, llama.llama_batch_get_one(row, len(tokens))) == 0
            return llama.llama_get_logits_ith(context, -1)[:GGUF_VOCABULARY]

        def step():
            llama.llama_memory_clear(llama.llama_get_memory(context), True)
            logits = decode([3 + 7919 * i % 1000 for i in range(100)])
            for _ in range(8):
                logits = decode([max(range(len(logits)), key=logits.__getitem__)])
            return (ctypes.c_float * len(logits))(*logits)
        return step


GGUF_VOCABULARY = 1024


def write_gguf(path, hidden=512, inter=1024, layers=4):
    """A Llama of random weights, for llama.cpp; a small one."""
    import gguf
    import numpy
    heads = hidden // 64
    numbers = numpy.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(GGUF_VOCABULARY)
    writer.add_context_length(2048)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inter)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(hidden // heads)
    writer.add_tokenizer_model("no_vocab")

    def add(name, *shape):
        content = numbers.standard_normal(shape, dtype=numpy.float32)
        writer.add_tensor(f"{name}.weight", (content * 1.5 / shape[-1] ** 0.5).astype(numpy.float16) if len(shape) > 1
                          else numpy.ones(shape, numpy.float32))

    add("token_embd", GGUF_VOCABULARY, hidden)
    add("output", GGUF_VOCABULARY, hidden)
    add("output_norm", hidden)
    for i in range(layers):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{i}.{name}", hidden, hidden)
        add(f"blk.{i}.ffn_gate", inter, hidden)
        add(f"blk.{i}.ffn_up", inter, hidden)
        add(f"blk.{i}.ffn_down", hidden, inter)
        add(f"blk.{i}.attn_norm", hidden)
        add(f"blk.{i}.ffn_norm", hidden)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


STATIC_N = 1 << 20
STATIC_SOURCE = f"enum {{ N = {STATIC_N} }};" + r"""
static float *kept;
static __global__ void add(float *to, const float *from, float by)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	to[i] = to[i] * 0.5f + from[i] + by;
}
extern "C" int step(float *out)
{
	float *fresh = 0;
	if (!kept) {
		cudaMalloc(&kept, N * sizeof(float));
		cudaMemset(kept, 0, N * sizeof(float));
		add<<<N / 256, 256>>>(kept, kept, 3);
	}
	cudaMalloc(&fresh, N * sizeof(float));
	cudaMemset(fresh, 0, N * sizeof(float));
	for (int i = 0; i < 50; i++)
		add<<<N / 256, 256>>>(fresh, kept, i);
	cudaMemcpy(out, fresh, N * sizeof(float), cudaMemcpyDeviceToHost);
	cudaFree(fresh);
	return cudaGetLastError();
}
"""


# ---- outside -------------------------------------------------------------------------------------


def program(daemon, what, *arguments, shim=True, environment=None):
    return Child(daemon, f"{what} {arguments[0]}",
                 [__file__, "--serve", what, *map(str, arguments)], shim=shim, environment=environment)


def put_to_sleep(daemon, pid):
    """None: it was busy."""
    out = subprocess.run([os.path.join(ROOT, "bin", "glakectl"), "--json", "sleep", str(pid)],
                         env=daemon.environment, capture_output=True, text=True, check=False)
    return json.loads(out.stdout)["sessions"][0] if out.returncode == 0 else (
        out.stderr.strip() or out.stdout.strip())


def pid_of(daemon, child):
    """Under `glake run` it is the process itself."""
    return child.process.pid


class Figures:
    def __init__(self):
        self.values = {}

    def add(self, name, seconds):
        self.values.setdefault(name, []).append(seconds)

    def show(self):
        for name, values in self.values.items():
            print(f"{name:<64} {statistics.median(values) * 1e3:9.1f} ms "
                  f"({min(values) * 1e3:.1f}..{max(values) * 1e3:.1f}, n {len(values)})", flush=True)


def cpu_seconds(daemon, child):
    """Of glaked, its mover, and the program."""
    mover = daemon.ctl("status")["mover"].split()[-1]
    seconds = []
    for pid in (daemon.process.pid, mover, child.process.pid):
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        seconds.append((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
    return seconds


def sleep_and_wake(daemon, child, figures, name, rounds, between=None, writes=False):
    for i in range(rounds):
        if writes:
            child.ask("write")
        if i == 1:
            spent = cpu_seconds(daemon, child)
        used = gpu_used_mib()
        done = put_to_sleep(daemon, pid_of(daemon, child))
        if not isinstance(done, dict):
            expect(False, f"{name}: {done}")
            return
        figures.add(f"{name}: sleep, as the program says", done["took_ns"] / 1e9)
        if i == 0:
            print(f"# {name}: {json.dumps(done)}; GPU {used} -> {gpu_used_mib()} MiB", flush=True)
            before = child.ask("poll")
            expect(daemon.ctl("sleepers")["sleepers"], f"{name}: polling has woken it: {before}")
        if between:
            between()
        figures.add(f"{name}: wake, launch to its end", child.ask("launch"))
        sleepers = daemon.ctl("sleepers")["sleepers"]
        expect(not sleepers, f"{name}: it sleeps on")
    spent = [round((b - a) / (rounds - 1) * 1e3) for a, b in zip(spent, cpu_seconds(daemon, child))]
    print(f"# {name}: ms of processors for a sleep and a wake: glaked {spent[0]}, glake-mover {spent[1]}, "
          f"the program {spent[2]}", flush=True)
    expect(child.ask("same") is True, f"{name}: other bytes")


def private_figures(daemon, options, figures):
    for kind, piece, name in (("torch", 32 * MIB, "32 MiB"), ("raw", 2 * MIB, "2 MiB")):
        child = program(daemon, "Holder", kind, options.gib * GIB, piece)
        child.ask("launch")
        sleep_and_wake(daemon, child, figures, f"{options.gib} GiB private, chunks of {name}",
                       options.rounds, writes=True)
        sleep_and_wake(daemon, child, figures, f"{options.gib} GiB private, unchanged, chunks of {name}",
                       options.rounds)
        child.end()


def sealed_figures(daemon, options, figures):
    piece = 128 * MIB
    n_bytes = int(options.sealed_gb * 1e9) // piece * piece
    one = program(daemon, "Holder", "sealed", n_bytes, piece)
    one.ask("launch")
    print("# sealed:", json.dumps(daemon.ctl("seal", str(pid_of(daemon, one)))), flush=True)
    name = f"{options.sealed_gb} GB sealed"
    done = put_to_sleep(daemon, pid_of(daemon, one))
    expect(isinstance(done, dict), f"{name}: {done}")
    if not isinstance(done, dict):
        return
    figures.add(f"{name}, no copy: sleep", done["took_ns"] / 1e9)
    daemon.ctl("evict", "--all")
    figures.add(f"{name}, no copy: wake from host memory", one.ask("launch"))
    sleep_and_wake(daemon, one, figures, f"{name}, copies there, from host memory", options.rounds,
                   lambda: daemon.ctl("evict", "--all"))
    two = program(daemon, "Holder", "sealed", n_bytes, piece)
    two.ask("launch")
    daemon.ctl("seal", str(pid_of(daemon, two)))
    sleep_and_wake(daemon, two, figures, f"{name}, another has them on the GPU", options.rounds)
    print("# hosts:", json.dumps(daemon.ctl("status")["hosts"]), flush=True)
    one.end()
    two.end()


def figures_of(options):
    figures = Figures()
    ready = (options.gib * GIB + int(options.sealed_gb * 1e9)) // GIB + 2
    daemon = Daemon(f'mover_idle_ms = 0;\nhost_bytes = "{ready + 4}GiB";\nhost_ready_bytes = "{ready}GiB";\n')
    time.sleep(options.ready_seconds)
    private_figures(daemon, options, figures)
    sealed_figures(daemon, options, figures)
    print(daemon.stop()[-3000:])
    return figures


def checkpoint(pid, figures):
    cuda = ctypes.CDLL("libcuda.so.1")
    cuda.cuInit(0)
    for name, call in (("driver's checkpoint: out", ("Lock", "Checkpoint")),
                       ("driver's checkpoint: back", ("Restore", "Unlock"))):
        start = time.perf_counter()
        for step in call:
            arguments = (ctypes.c_int(pid), None)
            result = getattr(cuda, "cuCheckpointProcess" + step)(*arguments)
            if result != 0:
                print(f"# cuCheckpointProcess{step}: {result}")
                return
        figures.add(name, time.perf_counter() - start)


def peers_of(options):
    figures = Figures()
    daemon = Daemon()
    child = program(daemon, "Holder", "torch", options.gib * GIB, 32 * MIB, shim=False)
    out, back = child.ask("pinned")
    figures.add(f"{options.gib} GiB to fresh pinned memory (vLLM's level 1)", out)
    figures.add(f"{options.gib} GiB back from pinned memory", back)
    checkpoint(child.process.pid, figures)
    expect(child.ask("same") is True, "the peer has other bytes")
    child.end()
    daemon.stop()
    return figures


def bits_of(options):
    daemon = Daemon('mover_idle_ms = 0;\nhost_bytes = "24GiB";\n')
    kinds = options.kinds.split(",")
    no_ahead = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    children = [program(daemon, "Worker", kind, environment=no_ahead if kind == "jax" else None)
                for kind in kinds]
    for child in children:
        child.tell("compute", 0.5)
    for child in children:
        child.hear("compute")
    n, n_busy, busy, seconds = 0, 0, {}, options.sleeps * 0.35 + 5
    for child in children:
        child.tell("compute", seconds)
    end = time.monotonic() + seconds - 1
    chance = random.Random(1)
    slept = dict.fromkeys(kinds, 0)
    while n < options.sleeps and time.monotonic() < end:
        child = chance.choice(children)
        done = put_to_sleep(daemon, pid_of(daemon, child))
        if isinstance(done, dict):
            n += 1
            slept[child.name.split()[1]] += 1
        else:
            n_busy += 1
            busy[child.name] = done
        time.sleep(chance.random() * 0.05)
    for child in children:
        result = child.hear("compute")
        print(f"# {child.name}: {json.dumps(result)}", flush=True)
        expect(result and result["wrong"] == 0 and result["steps"] > 0, f"{child.name}: {result}")
        child.end()
    print(f"# {n} sleeps {json.dumps(slept)}, {n_busy} times busy {json.dumps(busy)}", flush=True)
    time.sleep(0.5)
    device = daemon.device()
    expect(device["private_bytes"] == 0, f"left on the GPU: {device['private_bytes']}")
    print(daemon.stop()[-2000:])


def replicas_of(options):
    """Eight programs, of which two have changed an eighth of their tensors: host memory has what is unique, once."""
    daemon = Daemon('mover_idle_ms = 0;\nhost_bytes = "8GiB";\nhost_ready_bytes = "4GiB";\n')
    time.sleep(options.ready_seconds / 3)
    n_pieces, piece = 32, 32 * MIB
    children = [program(daemon, "Holder", "torch", n_pieces * piece, piece) for _ in range(8)]
    for i, child in enumerate(children):
        child.ask("tune", n_pieces // 8 * (i >= 6))
    for child in children:
        done = put_to_sleep(daemon, pid_of(daemon, child))
        expect(isinstance(done, dict), f"{child.name}: {done}")
    host = daemon.ctl("status")["hosts"][0]
    # The two have changed the same tensors in the same way. What PyTorch needs beside them is 2 MiB in each.
    unique = (n_pieces + n_pieces // 8) * piece
    print(f"# 8 replicas and fine-tunes asleep: {host['used_copy_bytes'] / unique:.4f} x the unique bytes, of "
          f"{8 * n_pieces / (n_pieces + n_pieces // 8):.1f} x; {json.dumps(host)}", flush=True)
    expect(host["used_copy_bytes"] <= 1.02 * unique, "more than the unique bytes")
    expect(host["physical_bytes"] <= host["limit_bytes"], "more host memory than there may be")
    for child in children:
        child.ask("launch")
        expect(child.ask("same") is True, f"{child.name}: other bytes")
        child.end()
    daemon.stop()


def restart_of(options):
    """glaked is killed under its keeper while programs sleep, and while one falls asleep or wakes."""
    daemon = Daemon('mover_idle_ms = 0;\nhost_bytes = "16GiB";\n', keeper=True)
    private = program(daemon, "Holder", "torch", 2 * GIB, 32 * MIB)
    sealed = program(daemon, "Holder", "sealed", GIB, 128 * MIB)
    for child in (private, sealed):
        child.ask("launch")
    daemon.ctl("seal", str(pid_of(daemon, sealed)))
    for i in range(options.kills):
        for child in (private, sealed):
            done = put_to_sleep(daemon, pid_of(daemon, child))
            if i == 0:
                expect(isinstance(done, dict), f"{child.name}: {done}")
        if i % 2:
            private.tell("launch")
            time.sleep(random.random() * 0.1)
        os.kill(glaked_pid(daemon.process.pid), signal.SIGKILL)
        if i % 2:
            private.hear("launch")
        for child in (private, sealed):
            child.ask("launch")
            expect(child.ask("same") is True, f"{child.name}: other bytes after kill {i}")
    print(f"# {options.kills} kills of glaked, sleepers the same", flush=True)
    private.end()
    sealed.end()
    daemon.stop()


def devices_of(options):
    """One program with memory on two GPUs: one wake brings back both."""
    daemon = Daemon('mover_idle_ms = 0;\nhost_bytes = "16GiB";\n')
    if len(daemon.ctl("status")["devices"]) > 1:
        child = program(daemon, "Holder", "both", 4 * GIB, 32 * MIB)
        child.ask("launch")
        figures = Figures()
        sleep_and_wake(daemon, child, figures, "4 GiB on two GPUs", options.rounds)
        left = [device["private_bytes"] for device in daemon.ctl("status")["devices"]]
        expect(all(left), f"awake again, with {left}")
        child.end()
        daemon.stop()
        return figures
    print("# devices: one GPU, skipped", flush=True)
    daemon.stop()
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--serve", nargs="+")
    parser.add_argument("--gib", type=int, default=8)
    parser.add_argument("--sealed-gb", type=float, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ready-seconds", type=float, default=15)
    parser.add_argument("--sleeps", type=int, default=200)
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--kinds", default="eager,graph,train,compile,threads,static,cupy,jax")
    parser.add_argument("--skip", default="")
    parser.add_argument("--out")
    options = parser.parse_args()
    if options.serve:
        kind, *arguments = options.serve
        serve(globals()[kind](*[int(a) if a.isdigit() else a for a in arguments]))
    skip = options.skip.split(",")
    figures = []
    for name, part in (("figures", figures_of), ("peers", peers_of), ("bits", bits_of), ("replicas", replicas_of), ("restart", restart_of),
                       ("devices", devices_of)):
        if name in skip:
            continue
        try:
            figures.append(part(options))
        except Exception as error:  # one part's failure must not hide the others' results
            failures.append(f"{name}: {error!r}")
            print(f"# FAILED: {name}: {error!r}", flush=True)
    for figure in filter(None, figures):
        figure.show()
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump([f.values for f in figures if f], file, indent=1)
    print("\n".join(failures) or "OK")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
