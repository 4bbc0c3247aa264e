# SPDX-License-Identifier: Apache-2.0
"""The ways for PyTorch's memory to come from glaked: what they compute, their errors and their numbers.

    python3 tests/gpu/torch_alloc.py

Each program runs in a process of its own, and its way has to fit: without glake, with
glake.torch.use_allocator(), with glake.torch.mem_pool(), under `glake run`, and under
`glake run --alloc=stitch`. A line for each check; exit 1 when one is wrong.
"""
import contextlib
import hashlib
import json
import os
import subprocess
import sys

from run import ROOT, Daemon, expect, failures

MIB = 1 << 20
QUOTA_BYTES = 8 << 30


def bits(tensor):
    return hashlib.sha256(tensor.detach().contiguous().cpu().numpy().tobytes()).hexdigest()[:16]


def train(torch):
    """Sizes change, and another stream uses tensors that are freed meanwhile."""
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024, device="cuda") for _ in range(6)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    side = torch.cuda.Stream()
    sums = []
    for step in range(20):
        batch = torch.randn(64 + 96 * (step % 5), 1024, device="cuda")
        loss = model(batch).square().mean()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            sums.append(batch.double().sum())
        batch.record_stream(side)
        del batch
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 7 == 0:
            torch.cuda.empty_cache()
    torch.cuda.synchronize()
    return bits(torch.stack(sums)), bits(next(model.parameters()))


def capture(torch, pool=None):
    """What PyTorch's test_repeat_graph_capture_cublas_workspace_memory does: how much stays in use."""
    torch.backends.cuda.preferred_blas_library("cublas")
    a, b = torch.rand((1024, 512), device="cuda"), torch.rand((512, 64), device="cuda")
    wanted = torch.mm(a, b)
    before, total = torch.cuda.mem_get_info()
    used = []
    for _ in range(100):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, **({"pool": pool.id} if pool else {})):
            got = torch.mm(a, b)
        graph.replay()
        used.append((before - torch.cuda.mem_get_info()[0]) / MIB)
    return torch.equal(got, wanted), used


def short(torch, allocate):
    """How it fails, and that it goes on."""
    try:
        allocate(QUOTA_BYTES)
        return "no error"
    except RuntimeError as error:
        allocate(64 * MIB)
        return f"{type(error).__name__}: {error}".splitlines()[0]


def empty(n_bytes):
    import torch
    return torch.empty(n_bytes, dtype=torch.uint8, device="cuda")


def native():
    import torch
    yield "trained", train(torch)
    yield "captured", capture(torch)


def pluggable():
    import torch
    import glake.torch
    glake.torch.use_allocator()
    yield "backend", torch.cuda.get_allocator_backend()
    yield "trained", train(torch)
    yield "short", short(torch, empty)
    stats = glake.torch.memory_stats()
    yield "stats", stats
    yield "torch's stats", (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(),
                            torch.cuda.max_memory_reserved(), len(torch.cuda.memory_summary()))
    graph = torch.cuda.CUDAGraph()
    with contextlib.suppress(RuntimeError):
        with torch.cuda.graph(graph):
            empty(64 * MIB)
        yield "in a capture", "no error"
    yield "afterwards", train(torch)


def pool():
    import torch
    import glake.torch
    made = glake.torch.mem_pool()

    def allocate(n_bytes):
        with torch.cuda.use_mem_pool(made):
            return empty(n_bytes)

    with torch.cuda.use_mem_pool(made):
        yield "trained", train(torch)
    yield "short", short(torch, allocate)
    yield "stats", glake.torch.memory_stats()
    graphs = glake.torch.mem_pool()
    yield "captured", capture(torch, graphs)


def shim():
    import torch
    yield "backend", torch.cuda.get_allocator_backend()
    yield "trained", train(torch)
    yield "short", short(torch, empty)
    torch.cuda.empty_cache()
    yield "captured", capture(torch)
    free, total = torch.cuda.mem_get_info()
    held = empty(1024 * MIB)
    yield "taken", (free - torch.cuda.mem_get_info()[0]) / MIB
    del held
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    yield "kept", (free - torch.cuda.mem_get_info()[0]) / MIB


PROGRAMS = {"native": (native, None), "pluggable": (pluggable, None), "pool": (pool, None),
            "shim": (shim, ()), "stitch": (shim, ("--alloc=stitch",))}


def run(daemon, name):
    options = PROGRAMS[name][1]
    prefix = [] if options is None else [os.path.join(ROOT, "bin", "glake"), "run", *options, "--"]
    done = subprocess.run([*prefix, sys.executable, os.path.abspath(__file__), "--program", name],
                          env=daemon.environment, capture_output=True, text=True, timeout=300)
    expect(done.returncode == 0, f"{name}: {done.stderr[-2000:]}")
    return {key: value for key, value in map(json.loads, done.stdout.splitlines())}


def line(name, what, is_right, more=""):
    expect(is_right, f"{name}: {what}")
    print(f"{name:10} {what:34} {'right' if is_right else 'WRONG'}  {more}", flush=True)


def judge(name, got, wanted):
    line(name, "the same bits", got.get("trained") == wanted.get("trained"))
    if "afterwards" in got:
        line(name, "and again after all that", got["afterwards"] == wanted["trained"])
        line(name, "no allocation in a capture", "in a capture" not in got)
        live, peak, reserved, _ = got["torch's stats"]
        line(name, "torch's statistics", 0 < live <= peak <= reserved, f"{live} {peak} {reserved}")
    if "short" in got:
        line(name, "short of memory", "CUDA out of memory" in got["short"]
             or "exceed allowed memory" in got["short"], got["short"])
    if "stats" in got:
        line(name, "glake's statistics", got["stats"]["n_allocs"] > 0, json.dumps(got["stats"]))
    if "backend" in got:
        backend = {"stitch": "cudaMallocAsync", "shim": "native"}.get(name, name)
        line(name, "the allocator's name", got["backend"] == backend, got["backend"])
    if "captured" in got:
        is_equal, used = got["captured"]
        # Of PyTorch's test.
        line(name, "100 graphs, one after the other", is_equal and used[-1] < 1e8 / MIB,
             f"more in use: {used[0]:.1f} MiB after one, {used[9]:.1f} after 10, {used[-1]:.1f} after all")
    if "taken" in got:
        line(name, "cuMemGetInfo() sees 1 GiB go", got["taken"] >= 1024, f"{got['taken']:.1f} MiB")
        line(name, "and come back", abs(got["kept"]) <= 2, f"{got['kept']:.1f} MiB")


def main():
    if sys.argv[1:2] == ["--program"]:
        for row in PROGRAMS[sys.argv[2]][0]():
            print(json.dumps(row), flush=True)
        return
    daemon = Daemon(f'tenants = ({{ name = "default"; device_bytes = "{QUOTA_BYTES}"; }});')
    wanted = run(daemon, "native")
    for name in PROGRAMS:
        judge(name, wanted if name == "native" else run(daemon, name), wanted)
    daemon.stop()
    print("OK" if not failures else f"{len(failures)} FAILED")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
