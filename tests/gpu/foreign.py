# SPDX-License-Identifier: Apache-2.0
"""Programs and tests of other projects, with and without the shim: each ends the same.

    python3 tests/gpu/foreign.py --from FOLDER [--only NAME,...] [--out FILE.json]

FOLDER has what is not a Python package, unpacked: cupy-VERSION and kvcached-VERSION (PyPI's source archives, for their
tests), tinygrad-VERSION (likewise), pytorch-VERSION (its tests), samples (NVIDIA's, compiled), llama.cpp (llama-simple,
and a vocabulary in GGUF that a small random model is made with). numba-cuda brings its tests along; they need filecheck
and cffi. What is missing is skipped. Each row runs alone, because some read how much of the GPU is in use: first
without the shim, then with `glake run`. A row is a test of the project, or a finding that one of the programs below
prints. Exit 1 when a row differs that DIFFERENT does not name, a program hangs, or glaked does not have all back.

    python3 tests/gpu/foreign.py --program NAME      one of the programs, in this process
"""
import argparse
import glob
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

HERE = os.path.dirname(os.path.abspath(__file__))
GIB = 1 << 30
PATIENCE_SECONDS = 150

# What differs on purpose: docs/compatibility.md says why.
DIFFERENT = {"TestMemoryAsyncPool::test_free_all_blocks_large_chunk"}


# ---- programs -----------------------------------------------------------------------------------

def finding(name, value):
    print(f"finding {name}: {value}", flush=True)


def rmm():
    """Its allocators one upon the other, with CuPy's arrays in them."""
    import cupy
    import rmm as library
    from rmm.allocators.cupy import rmm_cupy_allocator
    mr = library.mr
    cupy.cuda.set_allocator(rmm_cupy_allocator)
    makers = {"cuda": mr.CudaMemoryResource,
              "pool": lambda: mr.PoolMemoryResource(mr.CudaMemoryResource(), 1 << 28, 1 << 30),
              "arena": lambda: mr.ArenaMemoryResource(mr.CudaMemoryResource(), 1 << 28),
              "async": mr.CudaAsyncMemoryResource,
              "managed": mr.ManagedMemoryResource}
    for name, make in makers.items():
        resource = make()
        mr.set_current_device_resource(resource)
        arrays = [cupy.arange(n * 100003, dtype=cupy.int64) for n in range(1, 9)]
        del arrays[::2]
        arrays += [cupy.full(n * 50021, n, dtype=cupy.int64) for n in range(1, 9)]
        finding(name, sum(int(array.sum()) for array in arrays))
        del arrays
        buffer = library.DeviceBuffer.to_device(bytes(range(256)) * 5000)
        finding(f"{name} buffer", hash(buffer.tobytes()) == hash(bytes(range(256)) * 5000))
        del buffer


def graph_nodes():
    """A graph by the driver's generic calls, whose nodes name no context."""
    from cuda.bindings import driver

    def ok(result):
        if result[0] != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(result[0])
        return result[1] if len(result) > 1 else None

    ok(driver.cuInit(0))
    context = ok(driver.cuDevicePrimaryCtxRetain(0))
    ok(driver.cuCtxSetCurrent(context))
    n = 1 << 16
    ptr = ok(driver.cuMemAlloc(n))
    graph = ok(driver.cuGraphCreate(0))
    params = driver.CUgraphNodeParams()
    params.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMSET
    params.memset.dst, params.memset.value = ptr, 5
    params.memset.elementSize, params.memset.width, params.memset.height = 1, n, 1
    node = ok(driver.cuGraphAddNode(graph, None, None, 0, params))
    executable = ok(driver.cuGraphInstantiate(graph, 0))
    for value in (5, 9):
        params.memset.value = value
        ok(driver.cuGraphNodeSetParams(node, params))
        ok(driver.cuGraphExecNodeSetParams(executable, node, params))
        ok(driver.cuGraphLaunch(executable, 0))
        ok(driver.cuCtxSynchronize())
        out = bytearray(n)
        ok(driver.cuMemcpyDtoH(out, ptr, n))
        finding(f"value {value}", set(out) == {value})


def _saver_child(training):
    import torch
    from torch_memory_saver import torch_memory_saver as saver
    saver.hook_mode = "preload"

    def used():
        return torch.cuda.device_memory_used(0)

    normal = torch.full((1 << 24,), 7, dtype=torch.uint8, device="cuda")
    with saver.region(enable_cpu_backup=True):
        paused = torch.arange(1 << 30, dtype=torch.int32, device="cuda")
    address, before = paused.data_ptr(), used()
    saver.pause()
    asleep = used()
    finding("pause gives it back", before - asleep > 3.9 * GIB)
    if training:
        with saver.disable():
            inside = torch.ones(1 << 30, dtype=torch.float32, device="cuda")
            finding("beside what is paused", used() - asleep > 3.9 * GIB and inside.mean().item() == 1)
            del inside
        finding("and gone again", used() - asleep < 0.1 * GIB)
    saver.resume()
    finding("resume has it back", used() - asleep > 3.9 * GIB)
    finding("at its address, with its content",
            paused.data_ptr() == address and bool((paused[::4097] == torch.arange(
                0, 1 << 30, 4097, dtype=torch.int32, device="cuda")).all()))
    finding("the rest", int(normal.sum()))
    total = torch.cuda.mem_get_info()[1]
    halves = [torch.full((int(total * 0.3),), i, dtype=torch.uint8, device="cuda") for i in (1, 2)]
    del halves
    large = torch.full((int(total * 0.6),), 3, dtype=torch.uint8, device="cuda")
    finding("what was freed is there for one that is larger", int(large[-1]))
    # Its hooks fail when tensors outlive them, with and without the shim.
    sys.stdout.flush()
    os._exit(0)


def torch_memory_saver():
    """Tensors that leave the GPU and come back, as inference engines use it between two batches."""
    import multiprocessing
    import torch_memory_saver as library
    for training in (False, True):
        with library.configure_subprocess():
            child = multiprocessing.get_context("spawn").Process(target=_saver_child,
                                                                 args=(training,))
            child.start()
            child.join()
        finding(f"training {training}: exit", child.exitcode)


PROGRAMS = {"rmm": (rmm, ("rmm", "cupy"), "rmm-cu13"),
            "graph_nodes": (graph_nodes, ("cuda.bindings",), "cuda-bindings"),
            "torch_memory_saver": (torch_memory_saver, ("torch", "torch_memory_saver"),
                                   "torch_memory_saver")}


# ---- tests of projects --------------------------------------------------------------------------

def outcomes_of(path):
    """Test -> how it ended, of a file that pytest wrote."""
    result = {}
    for case in xml.etree.ElementTree.parse(path).iter("testcase"):
        name = f"{case.get('classname', '').rsplit('.', 1)[-1]}::{case.get('name')}"
        kinds = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        result[name] = kinds[0] if kinds else "passed"
    return result


class Project:
    """Tests that pytest runs in @folder of an unpacked archive."""

    def __init__(self, folder, arguments, env=None):
        self.folder, self.arguments, self.env = folder, arguments, env or {}

    def run(self, prefix, environment):
        report = tempfile.mktemp(suffix=".xml")
        status, text = started([*prefix, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
                                f"--junitxml={report}", *self.arguments], self.folder,
                               {**environment, **self.env})
        rows = outcomes_of(report) if os.path.exists(report) else {}
        if status not in (0, 1):
            print(text[-3000:], flush=True)
        return rows if status in (0, 1) else {**rows, "exit": status}


class Script:
    """A command whose findings are its lines that begin with one of @marks."""

    def __init__(self, folder, command, marks=("finding ",), env=None):
        self.folder, self.command, self.marks, self.env = folder, command, marks, env or {}

    def run(self, prefix, environment):
        status, text = started([*prefix, *self.command], self.folder, {**environment, **self.env})
        lines = [line for line in text.splitlines() if line.startswith(self.marks)]
        if status != 0:
            print(text[-3000:], flush=True)
        return {**{f"line {i}": line for i, line in enumerate(lines)}, "exit": status}


def started(command, folder, environment):
    """(exit status or "hangs", what it printed)."""
    with tempfile.TemporaryFile("w+", errors="replace") as out:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=out,
                                   stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = process.wait(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            status = "hangs"
        out.seek(0)
        return status, out.read()


def llama_model(folder):
    """A random model of Llama's kind, with the vocabulary that lies there; the same each time."""
    path = os.path.join(tempfile.gettempdir(), "glake-random-llama.gguf")
    if os.path.exists(path):
        return path
    import gguf
    import numpy
    vocabulary = gguf.GGUFReader(glob.glob(os.path.join(folder, "*vocab*.gguf"))[0])
    writer = gguf.GGUFWriter(path, "llama")
    n_layers, width, n_heads, inner = 8, 512, 8, 1376
    writer.add_block_count(n_layers)
    writer.add_context_length(2048)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(n_heads)
    writer.add_head_count_kv(n_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // n_heads)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    for name, field in vocabulary.fields.items():
        if name.startswith("tokenizer."):
            value = field.contents()
            sub = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, value, field.types[0], sub)
    n_words = len(vocabulary.fields["tokenizer.ggml.tokens"].data)
    random = numpy.random.default_rng(1)

    def matrix(name, rows, columns):
        values = random.standard_normal((rows, columns), dtype=numpy.float32) * columns ** -0.5
        writer.add_tensor(name, values.astype(numpy.float16))

    def norm(name):
        writer.add_tensor(name, numpy.ones(width, dtype=numpy.float32))

    matrix("token_embd.weight", n_words, width)
    for i in range(n_layers):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            matrix(f"blk.{i}.{name}.weight", width, width)
        matrix(f"blk.{i}.ffn_gate.weight", inner, width)
        matrix(f"blk.{i}.ffn_up.weight", inner, width)
        matrix(f"blk.{i}.ffn_down.weight", width, inner)
        norm(f"blk.{i}.attn_norm.weight")
        norm(f"blk.{i}.ffn_norm.weight")
    norm("output_norm.weight")
    matrix("output.weight", n_words, width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def find_rows(folder):
    """Name -> (what to run, its version); None instead: it is not there."""
    def unpacked(name):
        found = sorted(glob.glob(os.path.join(folder, f"{name}-[0-9]*")))
        return found[-1] if found else None

    rows = {}
    for name, (_, needs, package) in PROGRAMS.items():
        is_there = all(importlib.util.find_spec(need.split(".")[0]) for need in needs)
        rows[name] = is_there and (
            Script(folder, [sys.executable, os.path.abspath(__file__), "--program", name]),
            importlib.metadata.version(package))
    cupy = unpacked("cupy")
    rows["cupy"] = cupy and (
        Project(os.path.join(cupy, "tests", "cupy_tests", "cuda_tests"),
                ["test_memory.py", "test_stream.py", "test_graph.py"]), os.path.basename(cupy))
    tinygrad = unpacked("tinygrad")
    rows["tinygrad"] = tinygrad and (
        Project(tinygrad, ["test/test_tiny.py"], {"DEV": "CUDA", "CUDA": "1"}),
        os.path.basename(tinygrad))
    pytorch = unpacked("pytorch")
    alone = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
    for name, arguments in (("torch_two_gpus", ["test_cuda_multigpu.py"]),
                            ("torch_symmetric", ["distributed/test_symmetric_memory.py", "-k", "not multimem"])):
        rows[name] = pytorch and (Project(os.path.join(pytorch, "test"), arguments, alone),
                                  os.path.basename(pytorch))
    # Of another version than PyTorch, some of it ends the process: xdist goes on behind that.
    chosen = ("(graph or stream or copy or pinned or pool or record or caching or alloc) and "
              "not (large or huge or compile or cpp or leak or Autocast or Optims)")
    rows["torch_cuda"] = pytorch and (
        Project(os.path.join(pytorch, "test"), ["test_cuda.py", "-n", "1", "--max-worker-restart=40", "--timeout=40", "-k", chosen]),
        os.path.basename(pytorch))
    # Each wants a process in which no context has been made.
    rows["torch_contexts"] = pytorch and (
        Script(os.path.join(pytorch, "test"),
               ["sh", "-c", 'for name in test_str_repr test_copy test_pin_memory; do "$@" -k $name >&2; '
                            'echo "finding $name: $?"; done', "sh", sys.executable, "-m", "pytest", "-q",
                "-p", "no:cacheprovider", "test_cuda_primary_ctx.py"]), os.path.basename(pytorch))
    # Its tests of the driver, and what else queues work in ways of its own. Left out is what starts processes, which cannot
    # import the tests by the names that pytest gives them, and what fails behind a test that leaves a capture open.
    rows["numba"] = all(importlib.util.find_spec(need) for need in ("numba_cuda", "filecheck", "cffi")) and (
        Project(folder, ["-p", "numba_plugin", "-n", "8", "--import-mode=importlib", "--timeout=60", "-k",
                         "not test_init and not test_runtime and not test_detect and not test_select_device", "--pyargs",
                         *(f"numba.cuda.tests.{part}" for part in (
                             "cudadrv", "nrt.test_nrt", "cudapy.test_stream_api", "cudapy.test_cuda_array_interface",
                             "cudapy.test_cooperative_groups", "cudapy.test_device_array_capture", "cudapy.test_sync"))],
                {"PYTHONPATH": os.pathsep.join(path for path in (HERE, os.environ.get("PYTHONPATH")) if path)}),
        importlib.metadata.version("numba-cuda"))
    kvcached = unpacked("kvcached")
    rows["kvcached"] = kvcached and (
        Script(kvcached, [sys.executable, "tests/test_paged_allocator_aliasing.py"],
               ("[PASS]", "[FAIL]", "Results")), os.path.basename(kvcached))
    samples = sorted(glob.glob(os.path.join(folder, "samples", "*")))
    rows["samples"] = samples and (
        Script(folder, ["sh", "-c", 'for name; do timeout 60 "$name" >&2; echo "finding $(basename "$name"): $?"; done', "sh",
                        *samples]), "of two GPUs")
    llama = os.path.join(folder, "llama.cpp")
    simple = os.path.join(llama, "llama-simple")
    if os.path.exists(simple):
        # What it makes of the prompt: words of no sense, and always the same.
        rows["llama.cpp"] = (Script(llama, ["sh", "-c", 'echo "finding words: $("$@" 2>/dev/null | md5sum)"',
                                            "sh", simple, "-m", llama_model(llama), "-n", "64",
                                            "Once upon a time"],
                                    env={"LD_LIBRARY_PATH": llama + ":" +
                                         os.environ.get("LD_LIBRARY_PATH", "")}), "llama-simple")
    else:
        rows["llama.cpp"] = None
    return rows


# ---- all ----------------------------------------------------------------------------------------

def compare(name, row, version):
    from run import Daemon
    from shim import glake_run, is_all_back, private_bytes
    begin = time.perf_counter()
    plain = row.run([], dict(os.environ))
    middle = time.perf_counter()
    daemon = Daemon()
    shimmed = row.run(glake_run(daemon), daemon.environment)
    end = time.perf_counter()
    differing = [test for test in {**plain, **shimmed} if plain.get(test) != shimmed.get(test)]
    wrong = [test for test in differing if test not in DIFFERENT]
    if not is_all_back(daemon):
        wrong.append(f"{private_bytes(daemon)} bytes not back")
    daemon.stop()
    for test in differing:
        print(f"# {name}: {test}: {plain.get(test)!r} without, {shimmed.get(test)!r} with", flush=True)
    passed = sum(outcome == "passed" or str(outcome).startswith(("finding", "[PASS]"))
                 for outcome in plain.values())
    return {"name": name, "version": version, "rows": len(plain), "passed": passed,
            "as_known": len(differing) - len([test for test in differing if test in wrong]),
            "wrong": wrong, "seconds": [middle - begin, end - middle], "plain": plain,
            "shimmed": shimmed}


def print_table(results):
    print(f"\n{'program':20} {'version':18} {'rows':>5} {'well':>5} {'same':>5} {'without':>9} {'with':>9}")
    for result in results:
        if "skipped" in result:
            print(f"{result['name']:20} skipped: not there")
            continue
        same = result["rows"] - len(result["wrong"]) - result["as_known"]
        print(f"{result['name']:20} {result['version']:18} {result['rows']:5} {result['passed']:5} "
              f"{same:5} {result['seconds'][0]:8.1f}s {result['seconds'][1]:8.1f}s"
              + (f"  as known: {result['as_known']}" if result["as_known"] else "")
              + (f"  WRONG: {', '.join(result['wrong'][:5])}" if result["wrong"] else ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program")
    parser.add_argument("--from", dest="folder", default=".")
    parser.add_argument("--only", default="")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    if arguments.program:
        PROGRAMS[arguments.program][0]()
        return 0
    sys.path.insert(0, HERE)
    import run
    rows = find_rows(os.path.abspath(arguments.folder))
    chosen = arguments.only.split(",") if arguments.only else list(rows)
    results = [compare(name, *rows[name]) if rows[name] else {"name": name, "skipped": True}
               for name in chosen]
    print_table(results)
    for failure in run.failures:
        print(f"FAILED: {failure.splitlines()[0]}")
    if arguments.out:
        with open(arguments.out, "w", encoding="ascii") as file:
            json.dump(results, file, indent=1)
    return 1 if run.failures or any(result.get("wrong") for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
