# SPDX-License-Identifier: Apache-2.0
"""Allocators that map memory by themselves: `glakectl seal` shares what three processes load through each.

    python3 tests/gpu/allocators.py --from FOLDER [--only NAME,...] [--layers 3] [--out FILE.json]

    cumem             vLLM's CuMemAllocator, in use_memory_pool(tag="weights"); then sleep and wake_up
    saver             torch_memory_saver, preloaded, in region(enable_cpu_backup=True); then pause and resume
    kvcached          its KVCacheManager with contiguous pages, the default: all layers in one
    kvcached_layers   the same with pages of 2 MiB, each of one layer
    pool              no program of others: the driver calls of llama.cpp's ggml_cuda_pool_vmm. That pool has scratch
                      memory of kernels, which is never like weights; here it is filled from the host
    expandable        PyTorch's expandable segments

FOLDER has, unpacked: vllm-VERSION (vllm/cumem_allocator.abi3.so, vllm/device_allocator/__init__.py and cumem.py,
vllm/distributed/device_communicators/cuda_wrapper.py), torch_memory_saver-VERSION, kvcached-VERSION (with its compiled
kvcached/vmm_ops) and posix_ipc-VERSION, which kvcached needs. What is missing is skipped. kvcached runs without
preallocation (KVCACHED_PAGE_PREALLOC_ENABLED): its pages made ahead are never filled, so they stay private.

Three processes under `glake run` fill tensors in the shapes of Llama-3-8B's layers, as vLLM fuses them, with equal
bytes by copies from the host. `glakectl seal PID` for each; all bytes are compared with what was loaded. The
allocators that can sleep do so in one process, wake up, and are sealed again. One process writes to parts of two
tensors, by a copy from the host and one on the device; the others must not see it. Last all free what they have.
`copies` is the memory of all three, private and blocks, over the bytes of one. Exit 1 when a process fails, bytes are
wrong, nothing is shared, or glaked does not have all back; no other number decides.

    python3 tests/gpu/allocators.py --child NAME     one of the processes
"""
import argparse
import contextlib
import ctypes
import gc
import glob
import json
import os
import sys
import time
import types

from child import Child, ask_all, serve
from run import Daemon, expect, failures
from structs import Access, Location, Prop

KIB, MIB = 1 << 10, 1 << 20
PROCESSES = 3
CAUSES = ("small", "unfilled", "rewritten", "pinned", "failed")
#: of a layer: qkv, output, gate and up, down, two norms
SIZES = (48 * MIB, 32 * MIB, 224 * MIB, 112 * MIB, 8 * KIB, 8 * KIB)
# Their tensors are strided, so PyTorch copies to memory of its own and fills them from there by kernels. What copies from
# the host have not filled does not look like weights: `unfilled` is the reason that `glakectl seal` gives.
FILLED_BY_KERNELS = {"kvcached"}
#: of kvcached: bytes of a token in a layer's K or V, tokens of a block, layers
CELL, BLOCK, KV_LAYERS = KIB, 16, 8


# ---- a process ----------------------------------------------------------------------------------

def content(number, size):
    """The bytes of a tensor, by its number."""
    import numpy
    return numpy.random.default_rng(number).integers(0, 1 << 64, size // 8, dtype="uint64").view("uint8")


class Program:
    """Bytes at numbers. A class below has place(), and fetch(), store() and move() for what it placed."""

    def __init__(self, options):
        self.sizes = list(SIZES) * options.layers
        self.parts = []
        #: (number, begin) -> what was written there later
        self.written = {}

    def ready(self):
        return {"pid": os.getpid()}

    def load(self):
        self.place()
        for number, size in enumerate(self.sizes):
            self.store(number, 0, content(number, size))
        return {"bytes": sum(self.sizes)}

    def look(self):
        """How many bytes are not what they should be."""
        wrong = 0
        for number, size in enumerate(self.sizes):
            wanted = content(number, size)
            for (of, begin), data in self.written.items():
                if of == number:
                    wanted[begin:begin + len(data)] = data
            wrong += int((self.fetch(number) != wanted).sum())
        return {"wrong": wrong}

    def write(self):
        """To a part of the first by a copy from the host, and of it to the second by one on the device."""
        place = self.sizes[0] // 4 + 12345 * 8
        part = content(10**6, MIB)
        self.store(0, place, part)
        begin = self.sizes[1] // 4
        self.move(0, place, 1, begin, len(part))
        self.written = {(0, place): part, (1, begin): part}
        return {"bytes": 2 * len(part)}


class Driver(Program):
    """By the driver's calls alone. A part is an address."""

    def __init__(self, options):
        super().__init__(options)
        self.cuda = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        result = getattr(self.cuda, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name}: {result}")

    def store(self, number, begin, data):
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(self.parts[number] + begin),
                  data.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(len(data)))

    def fetch(self, number):
        import numpy
        data = numpy.empty(self.sizes[number], "uint8")
        self.call("cuMemcpyDtoH_v2", data.ctypes.data_as(ctypes.c_void_p),
                  ctypes.c_uint64(self.parts[number]), ctypes.c_size_t(len(data)))
        return data

    def move(self, source, source_begin, target, begin, size):
        self.call("cuMemcpyDtoD_v2", ctypes.c_uint64(self.parts[target] + begin),
                  ctypes.c_uint64(self.parts[source] + source_begin), ctypes.c_size_t(size))
        self.call("cuCtxSynchronize")


class Pool(Driver):
    """As ggml_cuda_pool_vmm: one range of 32 GiB, which grows at its end; the handles are released at once."""

    RANGE = 1 << 35
    PINNED = DEVICE = RECOMMENDED = 1
    READ_WRITE = 3

    def place(self):
        location = Location(self.DEVICE, 0)
        self.properties = Prop(type=self.PINNED, location=location)
        self.access = Access(location, self.READ_WRITE)
        granularity = ctypes.c_size_t()
        self.call("cuMemGetAllocationGranularity", ctypes.byref(granularity),
                  ctypes.byref(self.properties), self.RECOMMENDED)
        self.granularity = granularity.value
        self.address, self.size, self.used = ctypes.c_uint64(), 0, 0
        self.parts = [self.alloc(size) for size in self.sizes]

    def alloc(self, size):
        size = -(-size // 128) * 128
        if size > self.size - self.used:
            self.grow(-(-(size - (self.size - self.used)) // self.granularity) * self.granularity)
        self.used += size
        return self.address.value + self.used - size

    def grow(self, size):
        handle, n = ctypes.c_uint64(), ctypes.c_size_t(size)
        self.call("cuMemCreate", ctypes.byref(handle), n, ctypes.byref(self.properties), ctypes.c_uint64(0))
        if not self.address.value:
            self.call("cuMemAddressReserve", ctypes.byref(self.address), ctypes.c_size_t(self.RANGE),
                      ctypes.c_size_t(0), ctypes.c_uint64(0), ctypes.c_uint64(0))
        end = ctypes.c_uint64(self.address.value + self.size)
        self.call("cuMemMap", end, n, ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
        self.call("cuMemRelease", handle)
        self.call("cuMemSetAccess", end, n, ctypes.byref(self.access), ctypes.c_size_t(1))
        self.size += size

    def free(self):
        self.call("cuMemUnmap", self.address, ctypes.c_size_t(self.size))
        self.call("cuMemAddressFree", self.address, ctypes.c_size_t(self.RANGE))
        self.parts = []
        return {}


class Torch(Program):
    """By PyTorch. A part is a tensor of bytes, and a copy is a copy of the driver: no kernel writes."""

    def __init__(self, options):
        super().__init__(options)
        import torch
        self.torch = torch
        torch.cuda.init()
        torch.cuda.set_device(0)

    def tensors(self):
        return [self.torch.empty(size, dtype=self.torch.uint8, device="cuda") for size in self.sizes]

    def place(self):
        self.parts = self.tensors()

    def store(self, number, begin, data):
        self.parts[number][begin:begin + len(data)].copy_(self.torch.from_numpy(data))
        self.torch.cuda.synchronize()

    def fetch(self, number):
        return self.parts[number].cpu().numpy()

    def move(self, source, source_begin, target, begin, size):
        self.parts[target][begin:begin + size].copy_(self.parts[source][source_begin:source_begin + size])
        self.torch.cuda.synchronize()

    def drop(self):
        self.parts = []
        gc.collect()

    def free(self):
        self.drop()
        self.torch.cuda.empty_cache()
        return {}


class Cumem(Torch):
    def __init__(self, options):
        super().__init__(options)
        cut_vllm(unpacked(options.folder, "vllm"), os.path.dirname(os.path.dirname(self.torch.__file__)))
        from vllm.device_allocator.cumem import CuMemAllocator
        self.allocator = CuMemAllocator.get_instance()

    def place(self):
        with self.allocator.use_memory_pool(tag="weights"):
            self.parts = self.tensors()

    def sleep(self):
        self.allocator.sleep(offload_tags=("weights",))
        return {}

    def wake(self):
        self.allocator.wake_up()
        self.torch.cuda.synchronize()
        return {}

    def free(self):
        self.drop()
        self.allocator.release_pools()
        return {"left": self.allocator.get_current_usage()}


def cut_vllm(folder, packages):
    """The allocator's own files, unchanged, and in place of the modules that they import what they use of them."""
    import logging
    # Its library is linked with more than it uses.
    for path in ("libnvrtc.so.13", *glob.glob(os.path.join(packages, "nvidia", "*", "lib", "libnvrtc.so.13"))):
        with contextlib.suppress(OSError):
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
            break

    def module(name, path=None, **names):
        made = types.ModuleType(name)
        if path is not None:
            made.__path__ = [os.path.join(folder, *path.split("/"))]
        for key, value in names.items():
            setattr(made, key, value)
        sys.modules[name] = made

    def find_loaded_library(name):
        with open("/proc/self/maps", encoding="utf-8") as file:
            return next((line[line.index("/"):].strip() for line in file
                         if "/" in line and os.path.basename(line.strip()).startswith(name)), None)

    module("vllm", "vllm")
    module("vllm.envs", VLLM_CUDART_SO_PATH=None)
    module("vllm.logger", init_logger=logging.getLogger)
    module("vllm.platforms", current_platform=types.SimpleNamespace(
        is_rocm=lambda: False, is_cuda_alike=lambda: True, is_xpu=lambda: False))
    module("vllm.utils", "vllm/utils")
    module("vllm.utils.system_utils", find_loaded_library=find_loaded_library)
    module("vllm.utils.torch_utils", PIN_MEMORY=True)
    module("vllm.distributed", "vllm/distributed")
    module("vllm.distributed.device_communicators", "vllm/distributed/device_communicators")
    for name in ("envs", "logger", "platforms", "utils", "distributed"):
        setattr(sys.modules["vllm"], name, sys.modules["vllm." + name])


class Saver(Torch):
    def __init__(self, options):
        use(options.folder, "torch_memory_saver")
        preload_saver()
        super().__init__(options)
        from torch_memory_saver import torch_memory_saver
        self.saver = torch_memory_saver
        self.saver.hook_mode = "preload"

    def place(self):
        with self.saver.region(tag="weights", enable_cpu_backup=True):
            self.parts = self.tensors()

    def sleep(self):
        self.saver.pause("weights")
        return {}

    def wake(self):
        self.saver.resume("weights")
        self.torch.cuda.synchronize()
        return {}

    def free(self):
        self.drop()
        # It has no call that gives its pools up.
        self.saver._impl._mem_pools.clear()
        return super().free()


def preload_saver():
    """This process anew, with its library before the shim. The preloaded library must find PyTorch's cudart."""
    if "torch_memory_saver" in os.environ.get("LD_PRELOAD", ""):
        return
    from torch_memory_saver.hooks.mode_preload import configure_subprocess
    with open("/proc/self/maps", encoding="utf-8") as file:
        folders = {os.path.dirname(line[line.index("/"):].strip()) for line in file if "/libcudart.so." in line}
    old = os.environ.get("LD_LIBRARY_PATH")
    os.environ["LD_LIBRARY_PATH"] = ":".join([*sorted(folders), *([old] if old else [])])
    with configure_subprocess():
        os.execv(sys.executable, [sys.executable, *sys.argv])


class Kvcached(Torch):
    """K and V of some tokens in all layers. A part is what one call of its mapping makes a page of."""

    CONTIGUOUS = "true"

    def __init__(self, options):
        os.environ.update(KVCACHED_CONTIGUOUS_LAYOUT=self.CONTIGUOUS, KVCACHED_PAGE_PREALLOC_ENABLED="false",
                          KVCACHED_IPC_NAME=f"glake-allocators-{os.getpid()}", KVCACHED_LOG_LEVEL="WARNING")
        use(options.folder, "posix_ipc")
        use(options.folder, "kvcached")
        super().__init__(options)
        from kvcached import kv_cache_manager, utils, vmm_ops
        self.ops, self.page = vmm_ops, utils.PAGE_SIZE
        self.ops.init_kvcached("cuda:0", self.page, self.CONTIGUOUS == "true")
        # Addresses for all memory of the device, as its alloc_kv_cache() takes.
        total = self.torch.cuda.get_device_properties(0).total_memory
        self.buffer = total // KV_LAYERS // 2 // self.page * self.page
        self.raw = [tensor.view(self.torch.uint8) for tensor in
                    self.ops.create_kv_tensors(2 * self.buffer, 2, "cuda:0", KV_LAYERS, num_kv_buffers=2)]
        self.manager = kv_cache_manager.KVCacheManager(self.buffer // (BLOCK * CELL), BLOCK, CELL, KV_LAYERS)

    def place(self):
        wanted = sum(self.sizes)
        per_page = self.page // (BLOCK * CELL)
        n_pages = wanted // (2 * KV_LAYERS * self.page)
        self.blocks = self.manager.alloc(n_pages * per_page)
        if self.blocks is None:
            raise RuntimeError(f"no {n_pages} pages")
        pages = sorted({block // per_page for block in self.blocks})
        if len(pages) != n_pages:
            raise RuntimeError(f"{len(pages)} pages instead of {n_pages}")
        if self.CONTIGUOUS == "true":
            size = 2 * KV_LAYERS * self.page
            self.parts = [self.raw[0][page * size:(page + 1) * size] for page in pages]
        else:
            self.parts = [tensor[begin + page * self.page:begin + (page + 1) * self.page]
                          for tensor in self.raw for begin in (0, self.buffer) for page in pages]
        self.sizes = [len(part) for part in self.parts]

    def free(self):
        self.drop()
        self.raw = []
        self.manager.free(self.blocks)
        self.manager.trim()
        self.manager.page_allocator.mem_info_tracker.cleanup()
        self.ops.shutdown_kvcached()
        return {}


class KvcachedLayers(Kvcached):
    CONTIGUOUS = "false"


def unpacked(folder, name):
    found = sorted(glob.glob(os.path.join(folder, f"{name}-[0-9]*")))
    return found[-1] if found else None


def use(folder, name):
    path = unpacked(folder, name)
    if path:
        sys.path.insert(0, path)


#: the program, and what FOLDER must have
ALLOCATORS = {"cumem": (Cumem, ("vllm",)), "saver": (Saver, ("torch_memory_saver",)),
              "kvcached": (Kvcached, ("kvcached", "posix_ipc")),
              "kvcached_layers": (KvcachedLayers, ("kvcached", "posix_ipc")),
              "pool": (Pool, ()), "expandable": (Torch, ())}
ENVIRONMENTS = {"expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}}


# ---- all of them --------------------------------------------------------------------------------

def memory(daemon):
    """Of all processes: private, and in blocks."""
    device = daemon.device()
    return {key: device[key] for key in ("private_bytes", "used_block_bytes", "logical_block_bytes")}


def copies(state, copy):
    return round((state["private_bytes"] + state["used_block_bytes"]) / copy, 4)


def settled(daemon, condition):
    """What ends or is given back does so a moment later."""
    end = time.monotonic() + 20
    while not condition(memory(daemon)) and time.monotonic() < end:
        time.sleep(0.05)
    return memory(daemon)


def seal(daemon, name, pid):
    """What glakectl says of the process."""
    answer = daemon.ctl("seal", str(pid))
    outcomes = answer.get("sessions", [])
    if len(outcomes) != 1:
        expect(False, f"{name}: glakectl seal {pid}: {answer}")
        return None
    print(f"# {name}: glakectl seal {pid}: {told(outcomes[0])}", flush=True)
    return outcomes[0]


def mib(n_bytes):
    return f"{n_bytes / MIB:.0f}" if n_bytes % MIB == 0 else f"{n_bytes / MIB:.1f}"


def why(outcome):
    """What stays private, in MiB, and the reason in glaked's words if there is one."""
    causes = [f"{cause} {mib(outcome[cause + '_bytes'])}" for cause in CAUSES if outcome[cause + "_bytes"]]
    return ", ".join(causes) + (f" ({outcome['why']})" if outcome["why"] else "") or "nothing"


def told(outcome):
    return (f"{mib(outcome['sealed_bytes'])} MiB sealed, {mib(outcome['shared_bytes'])} shared; private: "
            f"{why(outcome)}; {outcome['took_ns'] / 1e6:.0f} ms, held back {outcome['held_ns'] / 1e6:.1f}")


def check(name, children, when):
    """All bytes in all of them."""
    answers = ask_all(children, "look")
    wrong = [answer.get("wrong") for answer in answers]
    expect(wrong == [0] * len(children), f"{name}: {when}: wrong bytes by process: {wrong}")


def nap(daemon, name, children, report):
    """One sleeps and wakes up between the others, which have the memory that it had."""
    sleeper = children[1]
    copy = report["copy_bytes"]
    sleeper.ask("sleep")
    report["asleep"] = memory(daemon)
    check(name, [children[0], *children[2:]], "while one sleeps")
    sleeper.ask("wake")
    report["woken"] = memory(daemon)
    check(name, children, "after waking up")
    report["sealed_again"] = seal(daemon, name, report["pids"][1])
    report["again"] = memory(daemon)
    check(name, children, "sealed again")
    print(f"# {name}: copies asleep {copies(report['asleep'], copy)}, woken up {copies(report['woken'], copy)}, "
          f"sealed again {copies(report['again'], copy)}", flush=True)


def scenario(name, options, report):
    daemon = Daemon()
    command = [os.path.abspath(__file__), "--child", name, "--layers", str(options.layers), "--from", options.folder]
    children = [Child(daemon, f"{name} {number}", command, environment=ENVIRONMENTS.get(name))
                for number in range(PROCESSES)]
    try:
        share(daemon, name, children, report)
    finally:
        for child in children:
            child.end()
        ended = settled(daemon, lambda state: not any(state.values()))
        expect(not any(ended.values()), f"{name}: not back after all have ended: {ended}")
        daemon.ctl("evict", "--all")
        report["ended"] = daemon.device()
        device = report["ended"]
        expect(device["block_bytes"] == 0 and device["physical_bytes"] == device["pool_bytes"],
               f"{name}: the books are not level: {device}")
        daemon.stop()


def share(daemon, name, children, report):
    ready = ask_all(children, "ready")
    report["begin"] = memory(daemon)
    loaded = ask_all(children, "load") if all(ready) else []
    if not loaded or not all(loaded):
        return
    report["pids"] = [answer["pid"] for answer in ready]
    copy = report["copy_bytes"] = loaded[0]["bytes"]
    report["before"] = memory(daemon)
    check(name, children, "before sealing")
    report["seals"] = [seal(daemon, name, pid) for pid in report["pids"]]
    report["sealed"] = memory(daemon)
    report["copies"] = [copies(report[when], copy) for when in ("before", "sealed")]
    report["dedup"] = daemon.ctl("dedup")
    check(name, children, "sealed")
    if name not in FILLED_BY_KERNELS:
        expect(all(outcome and outcome["shared_bytes"] for outcome in report["seals"][1:]),
               f"{name}: nothing is shared")
    if hasattr(ALLOCATORS[name][0], "sleep"):
        nap(daemon, name, children, report)
    children[-1].ask("write")
    report["written"] = memory(daemon)
    check(name, children, "after one has written")
    report["freed_answers"] = ask_all(children, "free")
    expect(all(not answer.get("left") for answer in report["freed_answers"]), f"{name}: {report['freed_answers']}")
    report["freed"] = settled(daemon, lambda state: all(state[key] <= report["begin"][key] for key in state))
    expect(all(report["freed"][key] <= report["begin"][key] for key in report["freed"]),
           f"{name}: not back after all have freed theirs: {report['freed']}, {report['begin']} before they loaded")
    print(f"# {name}: copies {report['copies'][0]} before, {report['copies'][1]} sealed, "
          f"{copies(report['written'], copy)} after a write of 1 MiB to two tensors; "
          f"{mib(report['freed']['private_bytes'])} MiB are left when all have freed theirs", flush=True)


def run_one(name, options):
    missing = [need for need in ALLOCATORS[name][1] if not unpacked(options.folder, need)]
    if missing:
        return {"name": name, "skipped": "no " + ", ".join(missing)}
    before = len(failures)
    report = {"name": name, "version": os.path.basename(unpacked(options.folder, ALLOCATORS[name][1][0]))
              if ALLOCATORS[name][1] else ""}
    begin = time.perf_counter()
    try:
        scenario(name, options, report)
    except Exception as error:  # the others are wanted as well
        expect(False, f"{name}: {type(error).__name__}: {error}")
    report["seconds"] = time.perf_counter() - begin
    report["failures"] = failures[before:]
    return report


def print_table(reports):
    print(f"\n{'allocator':16} {'version':26} {'before':>7} {'copies':>7} {'again':>7} {'shared, MiB':>14}  result  "
          "private in the last one, MiB")
    for report in reports:
        if "skipped" in report:
            print(f"{report['name']:16} skipped: {report['skipped']}")
            continue
        seals = [outcome for outcome in report.get("seals", []) if outcome]
        before, after = report.get("copies", ("-", "-"))
        again = copies(report["again"], report["copy_bytes"]) if "again" in report else "-"
        shared = " ".join(mib(outcome["shared_bytes"]) for outcome in seals) or "-"
        print(f"{report['name']:16} {report['version']:26} {before:>7} {after:>7} {again:>7} {shared:>14}  "
              f"{'FAILED' if report['failures'] else 'ok':6}  {why(seals[-1]) if seals else '-'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="folder", default=".")
    parser.add_argument("--only", default=",".join(ALLOCATORS))
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--out")
    parser.add_argument("--child", choices=ALLOCATORS)
    options = parser.parse_args()
    options.folder = os.path.abspath(options.folder)
    if options.child:
        serve(ALLOCATORS[options.child][0](options))
    reports = [run_one(name, options) for name in options.only.split(",")]
    print_table(reports)
    for failure in failures:
        print(f"FAILED: {failure.splitlines()[0]}")
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(reports, file, indent=1)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
