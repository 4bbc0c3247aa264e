# SPDX-License-Identifier: Apache-2.0
"""Real programs with and without the shim: the same bits, and whose memory it was.

    python3 tests/gpu/shim.py [--only NAME,...] [--out FILE.json]

Each program runs twice, in processes of its own: without the shim, and with `glake run`. It prints
what it computed, as a digest; both have to be equal. What is not installed is skipped. The last lines are a table.
Exit 1 when a digest differs or a program fails under the shim but not without it.

    python3 tests/gpu/shim.py --program NAME      one of the programs, in this process
"""
import argparse
import ctypes
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
programs = {}


def program(needs=(), env=None, gpus=1):
    """A program: a function that yields what it computed, as bytes or tensors."""
    def enter(function):
        programs[function.__name__] = (function, needs, env or {}, gpus)
        return function
    return enter


def bits(tensor):
    import torch
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes()


def deterministic():
    import torch
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cuda.matmul.allow_tf32 = False
    return torch


# ---- PyTorch ------------------------------------------------------------------------------------

def _small_llama(torch, layers=4):
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(vocab_size=8000, hidden_size=1024, intermediate_size=2816,
                         num_hidden_layers=layers, num_attention_heads=16, num_key_value_heads=4,
                         torch_dtype=torch.bfloat16)
    return config, LlamaForCausalLM(config).to("cuda", torch.bfloat16)


def _inference():
    torch = deterministic()
    config, model = _small_llama(torch)
    model.eval()
    tokens = torch.randint(0, config.vocab_size, (2, 64), device="cuda")
    with torch.no_grad():
        yield bits(model(tokens).logits)
        yield bits(model.generate(tokens, max_new_tokens=32, do_sample=False, pad_token_id=0))


def _training():
    torch = deterministic()
    layers = [torch.nn.Linear(1024, 1024, device="cuda") for _ in range(8)]
    model = torch.nn.Sequential(*[m for l in layers for m in (l, torch.nn.GELU())])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    from torch.utils.checkpoint import checkpoint
    for step in range(20):
        # Sizes that change, so that the allocator works.
        batch = torch.randn(64 + 32 * (step % 5), 1024, device="cuda")
        out = checkpoint(model, batch, use_reentrant=False)
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 7 == 0:
            torch.cuda.empty_cache()
    yield from (bits(p) for p in model.parameters())


@program(needs=("torch", "transformers"))
def torch_inference():
    yield from _inference()


@program(needs=("torch", "transformers"), env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
def torch_expandable_segments():
    yield from _inference()
    yield from _training()


@program(needs=("torch", "transformers"), env={"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"})
def torch_malloc_async():
    yield from _inference()
    yield from _training()


@program(needs=("torch",))
def torch_training():
    yield from _training()


@program(needs=("torch",), env={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})
def torch_without_cache():
    """Every tensor is a cuMemAlloc."""
    yield from _training()


@program(needs=("torch",))
def torch_graphs():
    torch = deterministic()
    a = torch.randn(512, 512, device="cuda")
    static = torch.zeros(512, 512, device="cuda")

    def work():
        return (static @ a).relu() @ a + torch.ones(512, 512, device="cuda")

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()
    for step in range(5):
        static.fill_(step * 0.25)
        graph.replay()
        yield bits(result)
    del graph, result
    torch.cuda.empty_cache()
    yield bits(work())


@program(needs=("torch", "triton"))
def torch_compile():
    torch = deterministic()

    @torch.compile
    def step(x, y):
        return torch.softmax(x * 2 + y.sin(), dim=-1).cumsum(-1)

    x, y = torch.randn(2, 257, 1025, device="cuda")
    yield bits(step(x, y))
    yield bits(step(x[:100], y[:100]))


def _sharing_child(queue, answers):
    for tensor in iter(queue.get, None):
        answers.put(hashlib.sha256(bits(tensor)).digest())
        tensor.mul_(2)
        import torch
        torch.cuda.synchronize()
        answers.put(None)
        del tensor


@program(needs=("torch",))
def torch_multiprocessing():
    torch = deterministic()
    import torch.multiprocessing as mp
    ctx = mp.get_context("spawn")
    queue, answers = ctx.Queue(), ctx.Queue()
    child = ctx.Process(target=_sharing_child, args=(queue, answers))
    child.start()
    for n in (100, 1 << 20, 5 << 20):
        tensor = torch.randn(n, device="cuda")
        queue.put(tensor)
        yield answers.get(timeout=120)
        answers.get(timeout=120)
        yield bits(tensor)
    queue.put(None)
    child.join()


@program(needs=("torch",))
def torch_pinned_loader():
    torch = deterministic()
    data = torch.utils.data.TensorDataset(torch.arange(4096 * 64, dtype=torch.float32).view(4096, 64))
    total = torch.zeros(64, device="cuda", dtype=torch.float64)
    for (batch,) in torch.utils.data.DataLoader(data, 256, pin_memory=True, num_workers=2):
        total += batch.to("cuda", non_blocking=True).double().sum(0)
    yield bits(total)


@program(needs=("torch",))
def torch_threads():
    torch = deterministic()
    import threading
    results = [None] * 8

    def work(i):
        with torch.cuda.stream(torch.cuda.Stream()):
            x = torch.full((256 + i, 512), float(i), device="cuda")
            for _ in range(50):
                x = (x @ x.T @ x) * 1e-6 + torch.ones_like(x)
            torch.cuda.current_stream().synchronize()
            results[i] = bits(x)
    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    yield from results


@program(needs=("torch",))
def torch_fork():
    """Nothing of CUDA in the parent, all of it in the child."""
    import torch  # noqa: F401 pylint: disable=unused-import
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        torch = deterministic()
        os.write(write, hashlib.sha256(bits(torch.randn(1 << 20, device="cuda") * 3)).digest())
        os._exit(0)
    os.close(write)
    yield os.read(read, 64)
    assert os.waitpid(pid, 0)[1] == 0


@program(needs=("torch",), gpus=2)
def torch_two_gpus():
    """Peer copies and a kernel that reads the other GPU's memory."""
    torch = deterministic()
    a = torch.randn(1 << 20, device="cuda:0")
    b = a.to("cuda:1") * 2
    yield bits(b)
    yield bits(b.to("cuda:0") + a)


def _nccl_child(rank, path, answers):
    import torch
    import torch.distributed as dist
    dist.init_process_group("nccl", init_method=f"file://{path}", rank=rank, world_size=2,
                            device_id=torch.device("cuda", rank))
    torch.manual_seed(rank)
    x = torch.randn(1 << 22, device=f"cuda:{rank}")
    dist.all_reduce(x)
    torch.cuda.synchronize()
    answers.put((rank, hashlib.sha256(bits(x)).digest()))
    dist.destroy_process_group()


@program(needs=("torch",), gpus=2)
def torch_nccl():
    import torch.multiprocessing as mp
    ctx = mp.get_context("spawn")
    answers = ctx.Queue()
    path = tempfile.mktemp(prefix="glake-nccl-")
    children = [ctx.Process(target=_nccl_child, args=(rank, path, answers)) for rank in range(2)]
    for child in children:
        child.start()
    got = dict(answers.get(timeout=240) for _ in children)
    for child in children:
        child.join()
    yield got[0]
    yield got[1]


# ---- others -------------------------------------------------------------------------------------

@program(needs=("torch", "triton"))
def triton_kernel():
    torch = deterministic()
    path = os.path.join(tempfile.mkdtemp(prefix="glake-triton-"), "kernel.py")
    with open(path, "w", encoding="ascii") as file:
        file.write("import triton\nimport triton.language as tl\n\n@triton.jit\n"
                   "def add(x, y, out, n, BLOCK: tl.constexpr):\n"
                   "    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
                   "    mask = at < n\n"
                   "    tl.store(out + at, tl.load(x + at, mask) + tl.load(y + at, mask), mask)\n")
    sys.path.insert(0, os.path.dirname(path))
    import kernel
    x, y = torch.randn(2, 100003, device="cuda")
    out = torch.empty_like(x)
    kernel.add[((100003 + 1023) // 1024,)](x, y, out, 100003, BLOCK=1024)
    yield bits(out)


@program(needs=("cupy",))
def cupy_arrays():
    import cupy
    x = cupy.arange(1 << 20, dtype=cupy.float32)
    for _ in range(5):
        x = cupy.sqrt(x + 1).reshape(1024, 1024).T.copy().ravel()
    yield x.get().tobytes()
    with cupy.cuda.using_allocator(cupy.cuda.MemoryAsyncPool().malloc):
        yield cupy.sort(x * 3).get().tobytes()


@program(needs=("jax",))
def jax_arrays():
    import jax
    import jax.numpy as jnp
    import numpy
    x = jax.random.normal(jax.random.PRNGKey(1), (1024, 1024))
    y = jax.jit(lambda a: jnp.tanh(a @ a.T / 32).sum(0))(x)
    yield numpy.asarray(y).tobytes()


STATIC_PROGRAM = r"""
#include <cstdio>
#include <cuda_runtime.h>
__global__ void square(float *x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] = x[i] * x[i] + i; }
int main() {
	const int n = 3000000; float *x, *y; static float host[n];
	size_t pitch; void *pitched; size_t f, t;
	for (int i = 0; i < n; i++) host[i] = i * 0.5f;
	for (int round = 0; round < 50; round++) {
		if (cudaMalloc(&x, n * sizeof(float)) || cudaMalloc(&y, 1000 * round + 4)) return 1;
		if (cudaMemcpy(x, host, n * sizeof(float), cudaMemcpyHostToDevice)) return 2;
		square<<<(n + 255) / 256, 256>>>(x, n);
		if (cudaMemcpy(host, x, n * sizeof(float), cudaMemcpyDeviceToHost)) return 3;
		for (int i = 0; i < n; i++) host[i] = (int)host[i] % 1000 * 0.25f;
		if (cudaFree(x) || cudaFree(y)) return 4;
	}
	if (cudaMallocPitch(&pitched, &pitch, 1000, 100) || cudaFree(pitched)) return 5;
	if (cudaMemGetInfo(&f, &t) || f > t) return 6;
	if (cudaMalloc(&x, (size_t)1 << 50) != cudaErrorMemoryAllocation) return 7;
	cudaGetLastError();
	if (cudaFree((void *)0x1234000) == cudaSuccess) return 8;
	printf("%zu\n", pitch);
	fwrite(host, sizeof(float), n, stdout);
	return cudaDeviceReset();
}
"""


@program(needs=("nvcc",))
def static_cudart():
    """A program linked statically with the runtime, as nvcc does it by default."""
    folder = tempfile.mkdtemp(prefix="glake-static-")
    source = os.path.join(folder, "program.cu")
    with open(source, "w", encoding="ascii") as file:
        file.write(STATIC_PROGRAM)
    clean = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    subprocess.run(["nvcc", "-O2", "-arch=native", "-cudart", "static", "-o", folder + "/program",
                    source], check=True, env=clean)
    yield subprocess.run([folder + "/program"], check=True, stdout=subprocess.PIPE).stdout


# ---- running ------------------------------------------------------------------------------------

def counts():
    """What the shim counted in this process; {} without it."""
    try:
        function = ctypes.CDLL(None).glake_shim_count
    except AttributeError:
        return {}
    function.restype = ctypes.c_uint64
    return {name: function(name.encode()) for name in ("owned", "passed", "refused", "connects")}


def run_here(name):
    digest = hashlib.sha256()
    begin = time.perf_counter()
    for part in programs[name][0]():
        digest.update(part if isinstance(part, bytes) else bytes(part))
    print(json.dumps({"digest": digest.hexdigest(), "seconds": time.perf_counter() - begin,
                      "counts": counts()}), flush=True)


def is_there(need):
    if need == "nvcc":
        return shutil.which("nvcc") is not None
    import importlib.util
    return importlib.util.find_spec(need) is not None


def run_child(name, prefix, environment):
    _, _, extra, _ = programs[name]
    environment = {**environment, **extra, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    done = subprocess.run([*prefix, sys.executable, os.path.abspath(__file__), "--program", name],
                          env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=600, check=False)
    lines = done.stdout.decode(errors="replace").strip().splitlines()
    try:
        result = json.loads(lines[-1])
    except (IndexError, ValueError):
        result = {"digest": None, "seconds": 0.0, "counts": {}}
    result["status"] = done.returncode
    result["stderr"] = done.stderr.decode(errors="replace")[-2000:]
    return result


def judge(plain, shimmed):
    if plain["status"] != 0:
        return "fails without the shim"
    if shimmed["status"] != 0:
        return "FAILS"
    return "same" if plain["digest"] == shimmed["digest"] else "DIFFERS"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program")
    parser.add_argument("--only", default="")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    if arguments.program:
        run_here(arguments.program)
        return 0
    sys.path.insert(0, HERE)
    from run import ROOT, Daemon
    daemon = Daemon()
    n_gpus = len(daemon.ctl("status")["devices"])
    prefix = [os.path.join(ROOT, "bin", "glake"), "run", "--socket", daemon.socket, "--"]
    rows = []
    for name, (_, needs, _, gpus) in programs.items():
        missing = [need for need in needs if not is_there(need)]
        if arguments.only and name not in arguments.only.split(","):
            continue
        if missing or gpus > n_gpus:
            rows.append((name, "skipped: " + (", ".join(missing) or f"{gpus} GPUs"), {}, {}))
            continue
        plain = run_child(name, [], dict(os.environ))
        shimmed = run_child(name, prefix, daemon.environment)
        verdict = judge(plain, shimmed)
        rows.append((name, verdict, plain, shimmed))
        print(f"# {name}: {verdict}", flush=True)
        if verdict in ("FAILS", "DIFFERS", "fails without the shim"):
            print((shimmed if plain["status"] == 0 else plain)["stderr"], flush=True)
    daemon.stop()
    print(f"\n{'program':28} {'result':24} {'without':>9} {'with':>9}  owned passed refused")
    for name, verdict, plain, shimmed in rows:
        counted = shimmed.get("counts", {}) if shimmed else {}
        print(f"{name:28} {verdict:24} {plain.get('seconds', 0):8.2f}s "
              f"{shimmed.get('seconds', 0):8.2f}s  {counted.get('owned', '-'):>5} "
              f"{counted.get('passed', '-'):>6} {counted.get('refused', '-'):>7}")
    if arguments.out:
        with open(arguments.out, "w", encoding="ascii") as file:
            json.dump([{"program": n, "result": v, "without": p, "with": s}
                       for n, v, p, s in rows], file, indent=1)
    return 1 if any(v in ("FAILS", "DIFFERS") for _, v, _, _ in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
