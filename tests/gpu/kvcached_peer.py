# SPDX-License-Identifier: Apache-2.0
"""kvcached with its own library, and with glake in its place: its tests for a GPU, and what a page costs.

    python3 tests/gpu/kvcached_peer.py --pack FOLDER [--python PYTHON --torch SITE-PACKAGES]     where there are sources
    KVCACHED=FOLDER python3 tests/gpu/kvcached_peer.py [--gib 8] [--only PART ...]               where there is a GPU

Parts: tests, pages (contiguous), layers (pages of the layout per layer), neighbour, engines.

FOLDER gets kvcached's Python and tests of build/engines (tests/engines/fetch), its library, built for PYTHON with a C++ compiler,
PyTorch's headers and those of CUDA, and ``site/``, for packages that the GPU's machine lacks (posix_ipc, wrapt). With a vLLM that
kvcached knows in $KIT_SITE, and smoke.py of $KIT (see vllm_engines.py), it serves a model by itself, with kvcached, and with glake
behind kvcached. Exit 1 when a test fails with glake that passes without, a page has other bytes than it should, or an engine says
other tokens.
"""
import argparse
import concurrent.futures
import glob
import hashlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.environ.get("KVCACHED", "")
KIT = os.environ.get("KIT", "")
SITE = os.environ.get("KIT_SITE", "/tmp/vllm-site")
PARTS = ("tests", "pages", "layers", "neighbour", "engines")
PAGE = 2 << 20
LAYERS = 32

# Those for which kvcached wants a GPU, and four of its layouts. Others want an engine, or its C++ sources.
TESTS = ("vmm_transaction", "contiguous_layout_default", "kvcache_manager", "page_allocator_resize",
         "page_allocator_snapshot", "native_shm_cleanup", "prealloc_gil_deadlock", "alloc_kv_cache_alignment",
         "hetero_contiguous_layout", "hybrid_contiguous_layout", "vllm_packed_kv")
# It compiles a file that the source distribution lacks.
LEFT_OUT = "not test_native_identity_syscall_failures_and_retries"


# ---- the folder ----

def source():
    with open(os.path.join(HERE, "..", "engines", "sources.txt"), encoding="utf-8") as file:
        rows = [line.split() for line in file if line.startswith("kvcached ")]
    return os.path.join(HERE, "..", "..", "build", "engines", rows[0][2])


def build_library(python, site, csrc, folder):
    """As its setup.py does, without CUDA's compiler: there is no code for a GPU in it."""
    asked = subprocess.run([python, "-c", "import sysconfig as s; print(s.get_paths()['include'],"
                                          "s.get_config_var('EXT_SUFFIX'))"],
                           check=True, capture_output=True, text=True).stdout.split()
    cuda = os.path.join(site, "nvidia", "cu13")
    defines = ["-DKVCACHED_USE_CUDA", "-DUSE_CUDA", "-D_GLIBCXX_USE_CXX11_ABI=1", "-DNDEBUG", "-DTORCH_STABLE_ONLY",
               "-DTORCH_TARGET_VERSION=0x020a000000000000", "-DTORCH_EXTENSION_NAME=_C"]
    includes = [os.path.join(csrc, "inc"), os.path.join(site, "torch", "include"),
                os.path.join(site, "torch", "include", "torch", "csrc", "api", "include"),
                os.path.join(cuda, "include"), "/usr/local/cuda/include", asked[0]]
    stub = os.path.join(folder, "libcuda.so.1")
    with open(os.path.join(folder, "stub.c"), "w", encoding="ascii") as file:
        file.write("int glake_stub;\n")
    subprocess.run(["cc", "-shared", "-Wl,-soname,libcuda.so.1", os.path.join(folder, "stub.c"), "-o", stub], check=True)
    libraries = [*(f"-l{name}" for name in ("torch", "torch_cpu", "torch_cuda", "torch_python", "c10", "c10_cuda")),
                 f"-L{os.path.join(site, 'torch', 'lib')}", f"-L{os.path.join(cuda, 'lib')}", "-l:libcudart.so.13",
                 f"-L{folder}", "-Wl,--no-as-needed", "-l:libcuda.so.1", "-Wl,--unresolved-symbols=ignore-all"]
    subprocess.run(["c++", "-shared", "-O2", "-fPIC", "-std=c++17", *defines, *(f"-I{path}" for path in includes),
                    *sorted(glob.glob(os.path.join(csrc, "*.cpp"))), "-o",
                    os.path.join(folder, "kvcached", "_C" + asked[1]), *libraries], check=True)
    os.remove(stub)
    os.remove(os.path.join(folder, "stub.c"))


def pack(folder, python, site):
    path = source()
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(os.path.join(folder, "site"))
    for part in ("kvcached", "tests"):
        shutil.copytree(os.path.join(path, part), os.path.join(folder, part))
    if site:
        build_library(python, site, os.path.join(path, "csrc"), folder)
    # An installed kvcached is found by this at the start of each program.
    with open(os.path.join(folder, "site", "sitecustomize.py"), "w", encoding="ascii") as file:
        file.write("import os\nimport site\n\nif os.environ.get('ENABLE_KVCACHED') == 'true':\n"
                   "    site.addsitedir(os.path.dirname(os.path.abspath(__file__)))\n")
    shutil.copy(os.path.join(path, "kvcached_autopatch.pth"), os.path.join(folder, "site"))
    return 0


# ---- its tests ----

def trees(folder):
    """Two copies of it, with its library and with glake's."""
    for kind in ("kvcached", "glake"):
        os.makedirs(os.path.join(folder, kind))
        for part in ("kvcached", "tests"):
            shutil.copytree(os.path.join(FOLDER, part), os.path.join(folder, kind, part))


def environment(daemon, folder, kind):
    paths = [os.path.join(folder, kind), os.path.join(FOLDER, "site"), daemon.environment["PYTHONPATH"]]
    return {**daemon.environment, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1",
            "ENABLE_KVCACHED": "false", "KVCACHED_LOG_LEVEL": "ERROR"}


def run_tests(daemon, folder, kind, name):
    """Outcome by test."""
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-rA", "--no-header", "-p", "no:cacheprovider", "--tb=short",
                           "-k", LEFT_OUT, f"tests/test_{name}.py"],
                          cwd=os.path.join(folder, kind), env=environment(daemon, folder, kind), capture_output=True,
                          text=True, timeout=240, check=False, start_new_session=True)
    found = dict(reversed(pair) for pair in re.findall(r"^(PASSED|FAILED|ERROR) (\S+)", done.stdout, re.M))
    if any(outcome != "PASSED" for outcome in found.values()) or not found:
        print(done.stdout[-3000:], done.stderr[-1000:], flush=True)
    return found


def tests(daemon, folder):
    # A process group each: kvcached names its files by that.
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        runs = {(kind, name): pool.submit(run_tests, daemon, folder, kind, name)
                for name in TESTS for kind in ("kvcached", "glake")}
    outcomes = {"kvcached": {}, "glake": {}}
    for (kind, name), done in runs.items():
        try:
            outcomes[kind].update(done.result())
        except subprocess.TimeoutExpired:
            outcomes[kind][name] = "TIMEOUT"
    for test, outcome in outcomes["kvcached"].items():
        if outcome == "PASSED":
            expect(outcomes["glake"].get(test) == "PASSED", f"{test}: {outcomes['glake'].get(test)}")
    n_passed = {kind: sum(outcome == "PASSED" for outcome in found.values()) for kind, found in outcomes.items()}
    sums = {kind: (n_passed[kind], len(found) - n_passed[kind]) for kind, found in outcomes.items()}
    for kind, (n_passed, n_failed) in sums.items():
        row(f"its tests with {kind}", f"{n_passed} passed, {n_failed} failed")
        expect(n_passed > 0, f"no test of {kind} passed")


# ---- what a page costs: in a process of its own ----

def timed(call):
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def is_glake(vmm):
    return vmm.PageAllocator.__module__.startswith("glake")


def setup(is_contiguous, n_pages):
    """The calls, tensors, and the offset of a page. A page is 128 MiB: 2 MiB of K and V in 32 layers."""
    import torch
    from kvcached import vmm_ops as vmm
    torch.cuda.init()
    vmm.init_kvcached("cuda:0", PAGE, is_contiguous)
    start = time.perf_counter()
    tensors = vmm.create_kv_tensors(n_pages * PAGE * 2, 2, "cuda:0", LAYERS, 2, 0, False)
    created_ms = (time.perf_counter() - start) * 1e3
    return torch, vmm, tensors, created_ms, PAGE * LAYERS * 2 if is_contiguous else PAGE


def bench(is_contiguous, gib):
    n_pages = gib * (1 << 30) // (PAGE * LAYERS * 2)
    # Page 0 has its memory always with glake.
    torch, vmm, tensors, created_ms, stride = setup(is_contiguous, n_pages + 1)
    offsets = [page * stride for page in range(1, n_pages + 1)]
    result = {"create_ms": created_ms}

    def both(name):
        result[f"{name} map"] = timed(lambda: vmm.map_to_kv_tensors(offsets)) / gib
        torch.cuda.synchronize()
        result[f"{name} unmap"] = timed(lambda: vmm.unmap_from_kv_tensors(offsets)) / gib

    both("first")
    both("second")
    result["in turn map"], result["in turn unmap"] = 0, 0
    for offset in offsets:
        result["in turn map"] += timed(lambda: vmm.map_to_kv_tensors([offset])) / gib
    # Every page of every tensor is its own memory.
    for page in range(1, n_pages + 1):
        for layer, tensor in enumerate(tensors):
            for at in parts(tensor, page, is_contiguous):
                tensor[at:at + 1024].fill_((page * 37 + layer) % 30000)
    torch.cuda.synchronize()
    wrong = sum(int((tensor[at:at + 1024] != (page * 37 + layer) % 30000).sum())
                for page in range(1, n_pages + 1) for layer, tensor in enumerate(tensors)
                for at in parts(tensor, page, is_contiguous))
    result["wrong"] = wrong
    for offset in offsets:
        result["in turn unmap"] += timed(lambda: vmm.unmap_from_kv_tensors([offset])) / gib
    if is_glake(vmm):
        from glake import _kvcached_pool as pools
        pool = pools.find(0)
        result["given back"] = timed(pool.give_back) / gib
        both("after that")
        pool.give_back()
    result["in turn, cold, map"] = sum(timed(lambda: vmm.map_to_kv_tensors([offset])) for offset in offsets) / gib
    vmm.unmap_from_kv_tensors(offsets)
    vmm.shutdown_kvcached()
    return result


def parts(tensor, page, is_contiguous):
    """Where a page is in a tensor, in elements of two bytes."""
    if is_contiguous:
        return [page * PAGE * LAYERS * 2 // 2 + i * PAGE // 2 for i in range(0, LAYERS * 2, 7)]
    return [page * PAGE // 2, tensor.numel() // 2 + page * PAGE // 2]


def bench_allocator(is_contiguous):
    """alloc_page() and free_page() as an engine calls them: p50 and p99 in microseconds."""
    _, vmm, _, _, _ = setup(is_contiguous, 64)
    allocator = vmm.PageAllocator(LAYERS, 64 * PAGE, PAGE, contiguous_layout=is_contiguous,
                                  ipc_name=f"glake-bench-{os.getpid()}")
    allocator.start_prealloc_thread()
    time.sleep(1)
    times = {"one": [], "burst of 32": [], "free 32": []}
    for _ in range(200):
        start = time.perf_counter()
        page = allocator.alloc_page()
        times["one"].append((time.perf_counter() - start) * 1e6)
        allocator.free_page(page.page_id)
        time.sleep(0.0005)
    for _ in range(20):
        start = time.perf_counter()
        pages = [allocator.alloc_page().page_id for _ in range(32)]
        middle = time.perf_counter()
        allocator.free_pages(pages)
        times["burst of 32"].append((middle - start) * 1e6)
        times["free 32"].append((time.perf_counter() - middle) * 1e6)
        time.sleep(0.02)
    allocator.stop_prealloc_thread()
    del allocator
    vmm.shutdown_kvcached()
    return {name: {"p50": statistics.median(values), "p99": sorted(values)[int(len(values) * 0.99)]}
            for name, values in times.items()}


def hold(gib):
    """A neighbour: it has used almost all of the GPU, frees it at a word, and then does nothing."""
    n_pages = gib * (1 << 30) // (PAGE * LAYERS * 2)
    _, vmm, _, _, stride = setup(True, n_pages + 1)
    offsets = [page * stride for page in range(1, n_pages + 1)]
    vmm.map_to_kv_tensors(offsets)
    print("full", flush=True)
    sys.stdin.readline()
    took = timed(lambda: vmm.unmap_from_kv_tensors(offsets))
    print(json.dumps({"unmap": took / gib}), flush=True)
    sys.stdin.readline()
    vmm.shutdown_kvcached()


def need(gib):
    """Memory of a neighbour, a GiB at a time."""
    _, vmm, _, _, stride = setup(True, gib * 8 + 1)
    times = [timed(lambda: vmm.map_to_kv_tensors([page * stride for page in range(first, first + 8)]))
             for first in range(1, gib * 8, 8)]
    vmm.shutdown_kvcached()
    return {"p50": statistics.median(times), "p99": sorted(times)[int(len(times) * 0.99)], "sum": sum(times) / gib}


def create(is_contiguous, gib):
    """Tensors of an engine: as large as the GPU."""
    *_, created_ms, _ = setup(is_contiguous, gib * 8)
    return {"create_ms": created_ms}


def child(daemon, folder, kind, *arguments, guard=True, **more):
    variables = {**environment(daemon, folder, kind), "GLAKE_KVCACHED_GUARD": "1" if guard else "0"}
    # Without the folder of this file in its path.
    return subprocess.Popen([sys.executable, "-P", os.path.abspath(__file__), *arguments], text=True, cwd=folder,
                            env=variables, stdout=subprocess.PIPE, **more)


def measure(daemon, folder, kind, *arguments, guard=True):
    process = child(daemon, folder, kind, *arguments, guard=guard)
    out, _ = process.communicate(timeout=300)
    lines = [line for line in out.splitlines() if line.startswith("{")]
    expect(process.returncode == 0 and lines, f"{kind} {arguments}: exit {process.returncode}")
    return json.loads(lines[-1]) if lines else {}


def hand_over(daemon, folder, kind, held_gib, gib):
    """What the neighbour pays to free, and a process that then needs the memory to get it."""
    neighbour = child(daemon, folder, kind, "--hold", str(held_gib), stdin=subprocess.PIPE)
    try:
        while True:
            line = neighbour.stdout.readline()
            if not line:
                expect(False, f"{kind}: the neighbour has ended")
                return
            if line == "full\n":
                break
        neighbour.stdin.write("\n")
        neighbour.stdin.flush()
        freed = {}
        while not freed:
            line = neighbour.stdout.readline()
            freed = json.loads(line) if line.startswith("{") else {}
        got = measure(daemon, folder, kind, "--need", str(gib))
    finally:
        neighbour.communicate("\n", timeout=60)
    if got:
        row(f"{kind}: {gib} GiB of an idle neighbour, contiguous",
            f"it frees in {freed['unmap']:.2f} ms/GiB; the other maps a GiB in {got['p50']:.2f} ms (p99 {got['p99']:.2f}, "
            f"mean {got['sum']:.2f})")


def benches(daemon, folder, is_contiguous, gib):
    layout = "contiguous" if is_contiguous == "true" else "per layer"
    for kind, guard in (("kvcached", True), ("glake", True), ("glake", False)) * 2:
        name = kind if guard else kind + " without guard"
        got = measure(daemon, folder, kind, "--bench", is_contiguous, str(gib), guard=guard)
        expect(got.get("wrong") == 0, f"{name}, {layout}: {got.get('wrong')} wrong elements")
        row(f"{name}: {layout}, ms/GiB", ", ".join(f"{what} {value:.3f}" for what, value in got.items()
                                                   if what not in ("wrong", "create_ms")))
    for kind in ("kvcached", "glake"):
        got = measure(daemon, folder, kind, "--allocator", is_contiguous)
        row(f"{kind}: {layout}, page allocator, us", ", ".join(
            f"{what} {value['p50']:.1f} (p99 {value['p99']:.1f})" for what, value in got.items()))
        got = measure(daemon, folder, kind, "--create", is_contiguous, str(total_gib()))
        row(f"{kind}: {layout}, tensors as large as the GPU", f"{got.get('create_ms', 0):.0f} ms")


# ---- an engine ----

def engine(daemon, folder, kind):
    """What smoke.py reports of one engine; ``kind`` None: vLLM by itself."""
    variables = environment(daemon, folder, kind or "kvcached")
    variables["PYTHONPATH"] = SITE + os.pathsep + variables["PYTHONPATH"]
    if kind:
        variables.update(ENABLE_KVCACHED="true", KVCACHED_AUTOPATCH="1", KVCACHED_LOG_LEVEL="INFO",
                         KVCACHED_IPC_NAME=f"glake-peer-{kind}")
    done = subprocess.run([sys.executable, os.path.join(KIT, "smoke.py"), "--runner", "v1", "--util", "0.5", "--log", "INFO"],
                          env=variables, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    found = re.search(r"^RESULT (\{.*\})$", done.stdout, re.M)
    if not found:
        print(done.stdout[-4000:], done.stderr[-6000:], flush=True)
    return json.loads(found[1]) if found else None


def engines(daemon, folder):
    if not os.path.isfile(os.path.join(KIT, "smoke.py")) or not os.path.isdir(os.path.join(SITE, "vllm")):
        print("# engines skipped: no vLLM in $KIT_SITE, or no smoke.py in $KIT")
        return
    hashes = {}
    for kind in (None, "kvcached", "glake"):
        got = engine(daemon, folder, kind)
        expect(got is not None or kind == "kvcached", f"no result of vLLM with {kind}")
        if got:
            hashes[kind] = got["hash"]
            row(f"vLLM with {kind or 'its own cache'}",
                f"start {got['load_s']} s, {got['tok_s']} tokens/s, batch {got['batch_tok_s']}; "
                f"{got['mib_loaded']} MiB loaded, {got['mib_after']} after")
    expect(hashes.get("glake") == hashes.get(None), f"tokens differ: {hashes}")


def total_gib():
    out = subprocess.run(["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"], check=True,
                         capture_output=True, text=True)
    return int(out.stdout.split()[0]) // 1024


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pack")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--torch", help="site-packages with PyTorch and its CUDA headers")
    parser.add_argument("--gib", type=int, default=8)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--bench", nargs=2)
    parser.add_argument("--allocator")
    parser.add_argument("--create", nargs=2)
    parser.add_argument("--hold", type=int)
    parser.add_argument("--need", type=int)
    options = parser.parse_args()
    if options.pack:
        return pack(options.pack, options.python, options.torch)
    if options.bench:
        print(json.dumps(bench(options.bench[0] == "true", int(options.bench[1]))))
        return 0
    if options.create:
        print(json.dumps(create(options.create[0] == "true", int(options.create[1]))))
        return 0
    if options.allocator:
        print(json.dumps(bench_allocator(options.allocator == "true")))
        return 0
    if options.need:
        print(json.dumps(need(options.need)))
        return 0
    if options.hold:
        hold(options.hold)
        return 0
    if not os.path.isdir(os.path.join(FOLDER, "kvcached")):
        print("# skipped: no kvcached in $KVCACHED")
        return 0
    daemon = Daemon()
    with tempfile.TemporaryDirectory() as folder:
        trees(folder)
        subprocess.run([sys.executable, "-m", "glake.kvcached", "install"], check=True,
                       env=environment(daemon, folder, "glake"), cwd=folder)
        row("kvcached's library", ", ".join(hashlib.sha256(open(path, "rb").read()).hexdigest()[:12] for path in
                                            glob.glob(os.path.join(FOLDER, "kvcached", "_C*.so"))) or "none")
        if "tests" in options.only:
            tests(daemon, folder)
        if "pages" in options.only:
            benches(daemon, folder, "true", options.gib)
        if "layers" in options.only:
            # 64 handles for each 128 MiB
            benches(daemon, folder, "false", max(options.gib // 4, 1))
        if "neighbour" in options.only:
            # More than what is free beside it.
            held = int(total_gib() * 0.8)
            for kind in ("kvcached", "glake"):
                hand_over(daemon, folder, kind, held, held // 2)
        if "engines" in options.only:
            engines(daemon, folder)
    daemon.stop()
    for failure in failures:
        print(f"# FAILED: {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    if not any(word in sys.argv for word in ("--pack", "--bench", "--allocator", "--hold", "--need",
                                             "--create")):
        from run import Daemon, expect, failures, row
    sys.exit(main())
