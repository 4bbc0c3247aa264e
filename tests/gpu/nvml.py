# SPDX-License-Identifier: Apache-2.0
"""What NVML says under `glake run`, by a real NVML and a real driver.

    python3 tests/gpu/nvml.py [--quota-mib 4096] [--mib 1024]

A program asks NVML how much memory there is, before and after it starts CUDA and allocates, and who
has it; without the shim, and under it with a quota. Needs ctypes only. The last lines are a table.
Exit 1 when the numbers do not fit together.

    python3 tests/gpu/nvml.py --program MIB      the program, in this process
"""
import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time

MIB = 1 << 20


class Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class MemoryV2(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint)] + [
        (name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")]


class Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong),
                ("gpu_instance", ctypes.c_uint), ("compute_instance", ctypes.c_uint)]


def must(result):
    if result != 0:
        raise RuntimeError(f"a call gave {result}")


def fields(structure):
    return {name: getattr(structure, name) for name, _ in structure._fields_}


def memory(nvml, device):
    info = Memory()
    must(nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(info)))
    more = MemoryV2(version=2 << 24 | ctypes.sizeof(MemoryV2))
    must(nvml.nvmlDeviceGetMemoryInfo_v2(device, ctypes.byref(more)))
    return {"v1": fields(info), "v2": fields(more)}


def own_row(nvml, device):
    """Bytes of this process; -1: it has no row. In a container its number may be the host's."""
    rows = (Process * 64)()
    count = ctypes.c_uint(len(rows))
    must(nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), rows))
    own = [row.used for row in rows[:count.value] if row.pid == os.getpid()]
    return own[0] if own else rows[0].used if count.value == 1 else -1


def microseconds(call, *arguments):
    times = []
    for _ in range(100):
        start = time.perf_counter()
        call(*arguments)
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)


def program(n_bytes):
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    must(nvml.nvmlInit_v2())
    cuda = ctypes.CDLL("libcuda.so.1")
    device = ctypes.c_void_p()
    must(nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)))
    out = {"without_cuda": memory(nvml, device)}

    context = ctypes.c_void_p()
    uuid = (ctypes.c_ubyte * 16)()
    must(cuda.cuInit(0))
    must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    must(cuda.cuCtxSetCurrent(context))
    must(cuda.cuDeviceGetUuid(uuid, 0))
    text = bytes(uuid).hex()
    name = f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
    must(nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(device)))
    out["row_before"] = own_row(nvml, device)
    address = ctypes.c_ulonglong()
    must(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(n_bytes)))
    out["row_after"] = own_row(nvml, device)
    out["memory"] = memory(nvml, device)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    must(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    out["cuda"] = {"free": free.value, "total": total.value}
    info = Memory()
    out["memory_us"] = microseconds(nvml.nvmlDeviceGetMemoryInfo, device, ctypes.byref(info))
    out["rows_us"] = microseconds(own_row, nvml, device)
    print(json.dumps(out))


def run(command, environment, mib):
    out = subprocess.run([*command, sys.executable, __file__, "--program", str(mib)],
                         env=environment, capture_output=True, text=True, check=False)
    if out.returncode != 0 or not out.stdout:
        sys.exit(f"the program failed:\n{out.stdout}{out.stderr}")
    return json.loads(out.stdout)


def check(shimmed, quota_bytes, n_bytes):
    from run import expect
    for when in ("without_cuda", "memory"):
        v1, v2 = shimmed[when]["v1"], shimmed[when]["v2"]
        expect(v1["total"] == v2["total"] == quota_bytes, f"{when}: the quota is the device: {v1}")
        expect(v1["total"] == v1["free"] + v1["used"], f"{when}: the sum of {v1}")
        expect(v2["total"] == v2["reserved"] + v2["free"] + v2["used"], f"{when}: the sum of {v2}")
    v1 = shimmed["memory"]["v1"]
    expect(shimmed["without_cuda"]["v1"]["used"] == 0, "used before anything is allocated")
    expect(v1["used"] == n_bytes, f"used: {v1['used']}")
    expect({"free": v1["free"], "total": v1["total"]} == shimmed["cuda"],
           f"the driver says {shimmed['cuda']}, NVML {v1}")
    expect(shimmed["row_before"] >= 0, "no row of our own")
    expect(shimmed["row_after"] - shimmed["row_before"] == n_bytes,
           f"the row went from {shimmed['row_before']} to {shimmed['row_after']}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", type=int, metavar="MIB")
    parser.add_argument("--quota-mib", type=int, default=4096)
    parser.add_argument("--mib", type=int, default=1024)
    options = parser.parse_args()
    if options.program:
        program(options.program * MIB)
        return
    from run import Daemon, ROOT, failures
    plain = run([], dict(os.environ), options.mib)
    daemon = Daemon(f'tenants = ( {{ name = "default"; '
                    f'device_bytes = "{options.quota_mib}MiB"; }} );\n')
    glake = [os.path.join(ROOT, "bin", "glake"), "run", "--"]
    shimmed = run(glake, daemon.environment, options.mib)
    check(shimmed, options.quota_mib * MIB, options.mib * MIB)
    daemon.stop()
    print(f"{'':28} {'NVML':>12} {'under glake':>12}")
    for name in ("total", "free", "used"):
        print(f"{name + ', MiB':28} {plain['memory']['v1'][name] / MIB:12.1f} "
              f"{shimmed['memory']['v1'][name] / MIB:12.1f}")
    for name in ("row_before", "row_after"):
        print(f"{name + ', MiB':28} {plain[name] / MIB:12.1f} {shimmed[name] / MIB:12.1f}")
    for name in ("memory_us", "rows_us"):
        print(f"{name:28} {plain[name]:12.1f} {shimmed[name]:12.1f}")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
