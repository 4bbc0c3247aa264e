# SPDX-License-Identifier: Apache-2.0
"""Real programs with and without the shim: the same bits, and whose memory it was.

    python3 tests/gpu/shim.py [--only NAME,...] [--skip NAME,...] [--jobs 4] [--out FILE.json]

Each program runs twice, in processes of its own: without the shim, and with `glake run`. It prints
what it computed, as a digest; both have to be equal. Some rows run at a time. `crowd` is eight of
the programs at once, under a quota that holds three of them: each starts over when it is short of
memory. What is not installed is skipped. The last lines are a table, with what the shim counted in
all processes of a program. Exit 1 when a digest differs, a program fails under the shim but not
without it, or glaked does not have all memory back at the end.

    python3 tests/gpu/shim.py --program NAME      one of the programs, in this process
"""
import argparse
import concurrent.futures
import ctypes
import gc
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCES = os.path.dirname(os.path.dirname(HERE))
SHIM_PROGRAMS = os.path.join(SOURCES, "tests", "shim")
GIB = 1 << 30
COUNTS = ("owned", "passed", "refused", "connects")
programs = {}

# Eight at once: what each holds beside its work, and what they may have together.
CROWD = ("torch_inference", "torch_training", "torch_lora", "torch_expandable_segments",
         "torch_malloc_async", "torch_without_cache", "cupy_arrays", "jax_arrays")
CROWD_HOLD_BYTES = 3 * GIB
CROWD_QUOTA_BYTES = 12 * GIB
CROWD_PIECE_BYTES = 256 << 20
CROWD_PATIENCE_SECONDS = 240
# JAX's own allocator never gives back what it once had.
CROWD_ENVIRONMENT = {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}


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

def _small_llama(torch, layers=4, **more):
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(vocab_size=8000, hidden_size=1024, intermediate_size=2816,
                         num_hidden_layers=layers, num_attention_heads=16, num_key_value_heads=4,
                         torch_dtype=torch.bfloat16, **more)
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


def _lora():
    """peft's adapters, dropout, and gradient checkpointing, with sequences of changing length."""
    torch = deterministic()
    from peft import LoraConfig, get_peft_model
    # The backward passes of the fused kernels are not deterministic.
    config, model = _small_llama(torch, attn_implementation="eager", use_cache=False)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
    model = get_peft_model(model, LoraConfig(
        r=8, lora_alpha=16, lora_dropout=0.05, task_type="CAUSAL_LM",
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]))
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    for step in range(12):
        tokens = torch.randint(0, config.vocab_size, (2, 128 + 64 * (step % 4)), device="cuda")
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield bits(loss)
    yield from (bits(p) for p in trained)


@program(needs=("torch", "transformers", "peft"))
def torch_lora():
    yield from _lora()


@program(needs=("torch", "transformers", "peft"),
         env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
def torch_lora_expandable_segments():
    yield from _lora()


@program(needs=("torch", "transformers", "peft"),
         env={"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"})
def torch_lora_malloc_async():
    yield from _lora()


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


@program(needs=("torch", "triton"))
def torch_compile_graphs():
    """torch.compile that captures its graphs by itself, into a pool of theirs."""
    torch = deterministic()
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.GELU(),
                                torch.nn.Linear(1024, 512)).cuda()
    step = torch.compile(model, mode="reduce-overhead")
    with torch.no_grad():
        for n in (64, 64, 64, 96, 96, 96, 64):
            torch.compiler.cudagraph_mark_step_begin()
            yield bits(step(torch.full((n, 512), n / 100, device="cuda")))


@program(needs=("torch", "transformers", "triton"))
def torch_generate_compiled():
    """A static cache, and a decoding step that is compiled and captured."""
    torch = deterministic()
    config, model = _small_llama(torch, layers=2)
    model.eval()
    tokens = torch.randint(0, config.vocab_size, (2, 16), device="cuda")
    with torch.no_grad():
        for _ in range(2):
            yield bits(model.generate(tokens, max_new_tokens=16, do_sample=False, pad_token_id=0,
                                      cache_implementation="static"))


@program(needs=("torch",))
def torch_convolution():
    """cuDNN and its workspaces."""
    torch = deterministic()
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 3, padding=1), torch.nn.BatchNorm2d(64), torch.nn.ReLU(),
        torch.nn.Conv2d(64, 128, 5, stride=2), torch.nn.ReLU(), torch.nn.Conv2d(128, 10, 1)).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    for step in range(8):
        out = net(torch.randn(4 + step % 3, 3, 96 + 16 * (step % 4), 96, device="cuda"))
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    yield from (bits(p) for p in net.parameters())


@program(needs=("torch",))
def torch_pools():
    """Private pools of PyTorch, its statistics, and memory that is given back in between."""
    torch = deterministic()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.randn(3 << 20, device="cuda")
        y = torch.randn(100, device="cuda")
    yield bits(x.sort().values[:1000] * y[0])
    assert torch.cuda.memory_stats()["reserved_bytes.all.current"] >= 12 << 20
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total
    assert torch.cuda.memory_snapshot()
    del x
    torch.cuda.empty_cache()
    yield bits(torch.full((5 << 20,), 3.0, device="cuda") + y[1])
    del pool


def _event_child(handle, queue, answers):
    import torch
    event = torch.cuda.Event.from_ipc_handle(torch.device("cuda", 0), handle)
    tensor = queue.get()
    event.wait()
    answers.put(hashlib.sha256(bits(tensor)).digest())
    del tensor
    queue.get()
    note_counts()


@program(needs=("torch",))
def torch_events_between_processes():
    """Another process waits, on the GPU, for what this one is still computing."""
    torch = deterministic()
    import torch.multiprocessing as mp
    ctx = mp.get_context("spawn")
    queue, answers = ctx.Queue(), ctx.Queue()
    event = torch.cuda.Event(interprocess=True)
    x = torch.randn(2048, 2048, device="cuda")
    event.record()
    child = ctx.Process(target=_event_child, args=(event.ipc_handle(), queue, answers))
    child.start()
    for _ in range(50):
        x = (x @ x).tanh()
    event.record()
    queue.put(x)
    yield answers.get(timeout=120)
    queue.put(None)
    child.join()


def _sharing_child(queue, answers):
    for tensor in iter(queue.get, None):
        answers.put(hashlib.sha256(bits(tensor)).digest())
        tensor.mul_(2)
        import torch
        torch.cuda.synchronize()
        answers.put(None)
        del tensor
    note_counts()


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
        note_counts()
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


def _rank(compute, rank, path, answers):
    """One of two processes, each with a GPU of its own: the digest of what @compute returns."""
    import torch
    import torch.distributed as dist
    device = torch.device("cuda", rank)
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{path}", rank=rank, world_size=2,
                            device_id=device)
    torch.manual_seed(rank)
    result = compute(torch, dist, device)
    torch.cuda.synchronize()
    answers.put((rank, hashlib.sha256(bits(result)).digest()))
    del result
    dist.barrier()
    dist.destroy_process_group()
    note_counts()


def _two_ranks(compute):
    import torch.multiprocessing as mp
    ctx = mp.get_context("spawn")
    answers = ctx.Queue()
    path = tempfile.mktemp(prefix="glake-nccl-")
    children = [ctx.Process(target=_rank, args=(compute, rank, path, answers)) for rank in range(2)]
    for child in children:
        child.start()
    got = dict(answers.get(timeout=240) for _ in children)
    for child in children:
        child.join()
    yield got[0]
    yield got[1]


def _reduced(torch, dist, device):
    x = torch.randn(1 << 22, device=device)
    dist.all_reduce(x)
    return x


def _reduced_in_pool(torch, dist, device):
    # The communicator has to be there before memory is registered with it.
    dist.all_reduce(torch.ones(1, device=device))
    backend = dist.group.WORLD._get_backend(device)  # as PyTorch's own tests get it
    pool = torch.cuda.MemPool(backend.mem_allocator)
    with torch.cuda.use_mem_pool(pool):
        x = torch.randn(1 << 22, device=device)
    backend.register_mem_pool(pool)
    dist.all_reduce(x)
    result = x.clone()
    torch.cuda.synchronize()
    backend.deregister_mem_pool(pool)
    return result


def _read_from_peer(torch, dist, device):
    import torch.distributed._symmetric_memory as symmetric
    mine = symmetric.empty(1 << 20, dtype=torch.float32, device=device)
    handle = symmetric.rendezvous(mine, dist.group.WORLD)
    mine.copy_(torch.randn(1 << 20, device=device))
    handle.barrier()
    total = mine + handle.get_buffer(1 - device.index, (1 << 20,), torch.float32)
    handle.barrier()
    return total


@program(needs=("torch",), gpus=2)
def torch_nccl():
    yield from _two_ranks(_reduced)


@program(needs=("torch",), gpus=2, env={"NCCL_NVLS_ENABLE": "0"})
def torch_nccl_registered():
    """Tensors in memory of NCCL's own allocator, registered with it."""
    yield from _two_ranks(_reduced_in_pool)


@program(needs=("torch",), gpus=2,
         env={"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"})
def torch_symmetric_memory():
    """Each rank maps the other's memory (cuMemCreate, handles by fd) and reads it in a kernel."""
    yield from _two_ranks(_read_from_peer)


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


@program(needs=("cupy",))
def cupy_managed():
    """Managed memory is the driver's: counted, and left alone."""
    import cupy
    with cupy.cuda.using_allocator(cupy.cuda.malloc_managed):
        x = cupy.arange(1 << 20, dtype=cupy.float32)
        yield cupy.sort(cupy.sqrt(x[::-1] + 1)).get().tobytes()


def _jax():
    import jax
    import jax.numpy as jnp
    import numpy
    x = jax.random.normal(jax.random.PRNGKey(1), (1024, 1024))
    y = jax.jit(lambda a: jnp.tanh(a @ a.T / 32).sum(0))(x)
    yield numpy.asarray(y).tobytes()


# A fifth of the GPU, because others run beside it; and no choice of kernels by their time.
@program(needs=("jax",), env={"XLA_PYTHON_CLIENT_MEM_FRACTION": ".2",
                              "XLA_FLAGS": "--xla_gpu_autotune_level=0"})
def jax_arrays():
    yield from _jax()


@program(needs=("jax",), env={"XLA_PYTHON_CLIENT_ALLOCATOR": "platform",
                              "XLA_FLAGS": "--xla_gpu_autotune_level=0"})
def jax_without_cache():
    """Every array is a cuMemAlloc."""
    yield from _jax()


@program(needs=("jax",), env={"XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async",
                              "XLA_PYTHON_CLIENT_MEM_FRACTION": ".1",
                              "XLA_FLAGS": "--xla_gpu_autotune_level=0"})
def jax_cuda_async():
    yield from _jax()


STATIC_PROGRAM = r"""
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <dlfcn.h>
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
	unsigned long long (*count)(const char *) = (unsigned long long (*)(const char *))dlsym(RTLD_DEFAULT, "glake_shim_count");
	FILE *file = count && getenv("SHIM_COUNTS") ? fopen(getenv("SHIM_COUNTS"), "a") : NULL;
	if (file) {
		fprintf(file, "{\"owned\": %llu, \"passed\": %llu, \"refused\": %llu, \"connects\": %llu}\n",
			count("owned"), count("passed"), count("refused"), count("connects"));
		fclose(file);
	}
	return cudaDeviceReset();
}
"""


def _compiled(source, *options):
    """What a program prints that is compiled here."""
    path = os.path.join(tempfile.mkdtemp(prefix="glake-program-"), "program")
    clean = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    subprocess.run(["nvcc", "-O2", "-I", SOURCES, *options, "-o", path, source], check=True, env=clean)
    yield subprocess.run([path], check=True, stdout=subprocess.PIPE).stdout


@program(needs=("nvcc",))
def static_cudart():
    """A program linked statically with the runtime, as nvcc does it by default."""
    source = os.path.join(tempfile.mkdtemp(prefix="glake-static-"), "program.cu")
    with open(source, "w", encoding="ascii") as file:
        file.write(STATIC_PROGRAM)
    yield from _compiled(source, "-arch=native", "-cudart", "static")


@program(needs=("nvcc",))
def driver_api():
    yield from _compiled(os.path.join(SHIM_PROGRAMS, "driver_api.c"), "-lcuda")


@program(needs=("nvcc",))
def numbers():
    """Handles of cuMemCreate(), as allocators use them."""
    yield from _compiled(os.path.join(SHIM_PROGRAMS, "numbers.c"), "-lcuda")


@program(needs=("nvcc",))
def driver_api_per_thread():
    """The _ptsz and _ptds entries of the driver."""
    yield from _compiled(os.path.join(SHIM_PROGRAMS, "driver_api.c"), "-lcuda",
                         "-DCUDA_API_PER_THREAD_DEFAULT_STREAM")


@program(needs=("nvcc", "cuGreenCtxStreamCreate"))
def green_contexts():
    yield from _compiled(os.path.join(SHIM_PROGRAMS, "green_contexts.c"), "-lcuda")


@program(needs=("nvcc",))
def names_of_calls():
    """Every call that this driver exports can be looked up, as libnvcuvid and others do it."""
    library = ctypes.CDLL("libcuda.so.1")
    library.cuInit(0)
    with open("/proc/self/maps", encoding="ascii") as file:
        driver = next(line.split()[-1] for line in file if "/libcuda.so" in line)
    listing = subprocess.run(["nm", "-D", "--defined-only", driver], check=True,
                             stdout=subprocess.PIPE).stdout.decode()
    names = {line.split()[-1].split("@")[0] for line in listing.splitlines()}
    calls = sorted(name for name in names if name[:2] == "cu" and name[2:3].isupper())
    print(*(name for name in calls if not hasattr(library, name)), file=sys.stderr)
    yield from (name.encode() for name in calls if hasattr(library, name))


# The libraries of the toolkit, each used by a program of its own.
TOOLKIT = {"cufft": ("-lcufft",), "curand": ("-lcurand",), "cusolver": ("-lcusolver",),
           "cusparse": ("-lcusparse",), "nvjitlink": ("-lnvJitLink",), "nvjpeg": ("-lnvjpeg",),
           "npp": ("-lnppig", "-lnppif", "-lnppist", "-lnppisu", "-lnpps", "-lnppc")}


def _toolkit(name, libraries):
    def use():
        yield from _compiled(os.path.join(SHIM_PROGRAMS, f"toolkit_{name}.c"), *libraries, "-lcuda")
    use.__name__ = f"toolkit_{name}"
    program(needs=("nvcc", *libraries))(use)


for _name, _libraries in TOOLKIT.items():
    _toolkit(_name, _libraries)


# ---- running ------------------------------------------------------------------------------------

def note_counts():
    """What the shim counted in this process goes to the file that the parent named."""
    path = os.environ.get("SHIM_COUNTS")
    try:
        function = ctypes.CDLL(None).glake_shim_count
    except AttributeError:
        return
    function.restype = ctypes.c_uint64
    if path:
        with open(path, "a", encoding="ascii") as file:
            file.write(json.dumps({name: function(name.encode()) for name in COUNTS}) + "\n")


def add_counts(path):
    """The sums over all processes; {} without the shim."""
    with open(path, encoding="ascii") as file:
        rows = [json.loads(line) for line in file]
    sums = {name: sum(row[name] for row in rows) for name in COUNTS} if rows else {}
    return {**sums, "processes": len(rows)} if rows else {}


def digest_of(name):
    digest = hashlib.sha256()
    for part in programs[name][0]():
        digest.update(part if isinstance(part, bytes) else bytes(part))
    return digest.hexdigest()


def run_here(name):
    begin = time.perf_counter()
    result = {"digest": digest_of(name)}
    note_counts()
    print(json.dumps({**result, "seconds": time.perf_counter() - begin}), flush=True)


# ---- one of a crowd -----------------------------------------------------------------------------

def array_library(name):
    """By the name of the program: arrays of 32-bit integers, and their exact sum."""
    if name.startswith("cupy"):
        import cupy
        return (lambda n, i: cupy.arange(n, dtype=cupy.int32) * i,
                lambda array: int(array.sum(dtype=cupy.int64)),
                lambda: cupy.get_default_memory_pool().free_all_blocks())
    if name.startswith("jax"):
        import jax.numpy as jnp
        return (lambda n, i: (jnp.arange(n, dtype=jnp.int32) * i).block_until_ready(),
                lambda array: int(array.sum(dtype=jnp.int32)), lambda: None)
    import torch
    return (lambda n, i: torch.arange(n, dtype=torch.int32, device="cuda") * i,
            lambda array: int(array.sum(dtype=torch.int64)), torch.cuda.empty_cache)


def is_short_of_memory(error):
    text = f"{type(error).__name__} {error}".lower()
    # Libraries that cannot get their workspace say something else.
    return any(sign in text for sign in ("outofmemory", "out of memory", "out_of_memory",
                                         "resource_exhausted", "cublas", "cudnn", "cusolver"))


def compute_holding(name, make, total):
    """The program's digest while the held arrays are there, and then what is in them."""
    pieces = [make(CROWD_PIECE_BYTES // 4, i + 1)
              for i in range(CROWD_HOLD_BYTES // CROWD_PIECE_BYTES)]
    digest = hashlib.sha256(digest_of(name).encode())
    for piece in pieces:
        digest.update(str(total(piece)).encode())
    return digest.hexdigest()


def try_to_compute(*arguments):
    """None when memory ran out. What the exception holds is free on return."""
    try:
        return compute_holding(*arguments)
    except Exception as error:  # each library has its own
        if not is_short_of_memory(error):
            raise
        print(f"{type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
        return None


def run_in_crowd(name, folder):
    make, total, give_back = array_library(name)
    make(1, 1)
    open(os.path.join(folder, f"ready-{name}"), "w", encoding="ascii").close()
    while not os.path.exists(os.path.join(folder, "go")):
        time.sleep(0.01)
    begin = time.perf_counter()
    attempts = 0
    digest = None
    while digest is None and time.perf_counter() - begin < CROWD_PATIENCE_SECONDS:
        if attempts:
            gc.collect()
            give_back()
            time.sleep(random.uniform(0.1, 1.0))
        attempts += 1
        digest = try_to_compute(name, make, total)
    note_counts()
    print(json.dumps({"digest": digest, "attempts": attempts,
                      "seconds": time.perf_counter() - begin}), flush=True)


# ---- running ------------------------------------------------------------------------------------

def driver_has(symbol):
    try:
        return hasattr(ctypes.CDLL("libcuda.so.1"), symbol)
    except OSError:
        return False


def is_there(need):
    if need == "nvcc":
        return shutil.which("nvcc") is not None
    if need.startswith("-l"):
        folder = os.path.join(os.path.dirname(os.path.realpath(shutil.which("nvcc") or "")), "..")
        return os.path.exists(os.path.join(folder, "lib64", f"lib{need[2:]}.so"))
    if need.startswith("cu") and need[2:3].isupper():
        return driver_has(need)
    import importlib.util
    return importlib.util.find_spec(need) is not None


class Child:
    """A program in a process of its own."""

    def __init__(self, name, prefix, environment, *options):
        self.folder = tempfile.mkdtemp(prefix="glake-shim-")
        self.counts = self.path("counts")
        open(self.counts, "w", encoding="ascii").close()
        self.out, self.err = open(self.path("out"), "w+b"), open(self.path("err"), "w+b")
        self.process = subprocess.Popen(
            [*prefix, sys.executable, os.path.abspath(__file__), "--program", name, *options],
            env={**environment, **programs[name][2], "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
                 "SHIM_COUNTS": self.counts},
            stdout=self.out, stderr=self.err)

    def path(self, name):
        return os.path.join(self.folder, name)

    def result(self):
        try:
            status = self.process.wait(timeout=300)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            status = "too slow"
        self.out.seek(0)
        self.err.seek(0)
        lines = self.out.read().decode(errors="replace").strip().splitlines()
        try:
            result = json.loads(lines[-1])
        except (IndexError, ValueError):
            result = {"digest": None, "seconds": 0.0}
        result["counts"] = add_counts(self.counts)
        result["status"] = status
        result["stderr"] = self.err.read().decode(errors="replace")[-3000:]
        self.out.close()
        self.err.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        return result


def judge(plain, shimmed):
    if plain["status"] != 0 or not plain["digest"]:
        return "fails without the shim"
    if shimmed["status"] != 0 or not shimmed["digest"]:
        return "FAILS"
    return "same" if plain["digest"] == shimmed["digest"] else "DIFFERS"


def glake_run(daemon):
    from run import ROOT
    return [os.path.join(ROOT, "bin", "glake"), "run", "--socket", daemon.socket, "--"]


def run_both(name, daemon):
    plain = Child(name, [], dict(os.environ)).result()
    shimmed = Child(name, glake_run(daemon), daemon.environment).result()
    verdict = judge(plain, shimmed)
    if verdict != "same":
        print((shimmed if plain["status"] == 0 else plain)["stderr"], flush=True)
    print(f"# {name}: {verdict}", flush=True)
    return name, verdict, plain, shimmed


def private_bytes(daemon):
    return sum(device["private_bytes"] for device in daemon.ctl("status")["devices"])


def is_all_back(daemon):
    """Sessions end a moment after their processes."""
    end = time.monotonic() + 20
    while private_bytes(daemon) > 0 and time.monotonic() < end:
        time.sleep(0.05)
    return private_bytes(daemon) == 0


# ---- the crowd ----------------------------------------------------------------------------------

def run_crowd(names, prefix, environment, watch):
    folder = tempfile.mkdtemp(prefix="glake-crowd-")
    environment = {**environment, **CROWD_ENVIRONMENT}
    children = [Child(name, prefix, environment, "--crowd", folder) for name in names]
    go = os.path.join(folder, "go")
    while any(child.process.poll() is None for child in children):
        # One that ended before the start is told by its status.
        if not os.path.exists(go) and (len(os.listdir(folder)) == len(names) or
                                       any(child.process.poll() for child in children)):
            open(go, "w", encoding="ascii").close()
        watch()
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)
    return [child.result() for child in children]


def crowd_failures(names, plain, shimmed, peak_bytes):
    for name, one, other in zip(names, plain, shimmed):
        verdict = judge(one, other)
        if verdict != "same":
            yield f"{name}: {verdict}: {other['stderr'][-1000:]}"
    if peak_bytes > CROWD_QUOTA_BYTES:
        yield f"{peak_bytes} bytes of a quota of {CROWD_QUOTA_BYTES}"
    if peak_bytes + CROWD_HOLD_BYTES <= CROWD_QUOTA_BYTES:
        yield f"there was always room for one more: {peak_bytes} bytes at most"


def crowd():
    """Eight of the programs at once, under a quota for three."""
    from run import Daemon
    names = [name for name in CROWD if all(map(is_there, programs[name][1]))]
    plain = run_crowd(names, [], dict(os.environ), lambda: None)
    daemon = Daemon(f'pressure = "wait"; wait_ms = 1000;\n'
                    f'tenants = ( {{ name = "default"; device_bytes = {CROWD_QUOTA_BYTES}L; }} );\n')
    peaks = [0]
    shimmed = run_crowd(names, glake_run(daemon), daemon.environment,
                        lambda: peaks.append(private_bytes(daemon)))
    failures = list(crowd_failures(names, plain, shimmed, max(peaks)))
    if not is_all_back(daemon):
        failures.append(f"{private_bytes(daemon)} bytes are not back")
    stats = {row["name"]: row["value"] for row in daemon.ctl("stats")["metrics"]}
    daemon.stop()
    for failure in failures:
        print(f"# crowd: {failure}", flush=True)
    for name, one in zip(names, shimmed):
        print(f"# crowd: {name}: {one.get('attempts')} attempts, {one['seconds']:.1f} s, "
              f"refused {one['counts'].get('refused')}", flush=True)
    pressed = ", ".join(f"{name} {value}" for name, value in stats.items()
                        if name.startswith("quota_") or name == "reclaims_sent")
    print(f"# crowd: at most {max(peaks) / GIB:.2f} of {CROWD_QUOTA_BYTES / GIB:.0f} GiB; {pressed}",
          flush=True)
    counts = {name: sum(one["counts"].get(name, 0) for one in shimmed)
              for name in (*COUNTS, "processes")}
    return (f"crowd of {len(names)}", "FAILS" if failures else "same",
            {"seconds": max(one["seconds"] for one in plain), "each": plain},
            {"seconds": max(one["seconds"] for one in shimmed), "each": shimmed, "counts": counts,
             "peak_bytes": max(peaks), "stats": stats, "failures": failures})


# ---- all ----------------------------------------------------------------------------------------

def print_table(rows):
    print(f"\n{'program':32} {'result':24} {'without':>9} {'with':>9}  "
          f"{'owned':>6} {'passed':>6} {'refused':>7} {'processes':>9}")
    for name, verdict, plain, shimmed in rows:
        counted = shimmed.get("counts", {})
        print(f"{name:32} {verdict:24} {plain.get('seconds', 0):8.2f}s "
              f"{shimmed.get('seconds', 0):8.2f}s  {counted.get('owned', '-'):>6} "
              f"{counted.get('passed', '-'):>6} {counted.get('refused', '-'):>7} "
              f"{counted.get('processes', '-'):>9}")


def run_rows(names, jobs):
    from run import Daemon
    daemon = Daemon()
    n_gpus = len(daemon.ctl("status")["devices"])
    rows = {}
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for name in names:
            _, needs, _, gpus = programs[name]
            missing = [need for need in needs if not is_there(need)]
            if missing or gpus > n_gpus:
                why = ", ".join(missing) or f"{gpus} GPUs"
                rows[name] = (name, f"skipped: {why}", {}, {})
            else:
                rows[name] = pool.submit(run_both, name, daemon)
    rows = [row if isinstance(row, tuple) else row.result() for row in rows.values()]
    if not is_all_back(daemon):
        rows.append((f"{private_bytes(daemon)} bytes not back", "FAILS", {}, {}))
    daemon.stop()
    return rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program")
    parser.add_argument("--crowd")
    parser.add_argument("--only", default="")
    parser.add_argument("--skip", default="")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--out")
    arguments = parser.parse_args()
    if arguments.program and arguments.crowd:
        run_in_crowd(arguments.program, arguments.crowd)
        return 0
    if arguments.program:
        run_here(arguments.program)
        return 0
    sys.path.insert(0, HERE)
    chosen = arguments.only.split(",") if arguments.only else [*programs, "crowd"]
    chosen = [name for name in chosen if name not in arguments.skip.split(",")]
    import run
    rows = run_rows([name for name in chosen if name != "crowd"], arguments.jobs)
    if "crowd" in chosen:
        rows.append(crowd())
    # How each glaked ended.
    rows += [(failure.splitlines()[0], "FAILS", {}, {}) for failure in run.failures]
    print_table(rows)
    if arguments.out:
        with open(arguments.out, "w", encoding="ascii") as file:
            json.dump([{"program": n, "result": v, "without": p, "with": s}
                       for n, v, p, s in rows], file, indent=1)
    return 1 if any(v in ("FAILS", "DIFFERS") for _, v, _, _ in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
