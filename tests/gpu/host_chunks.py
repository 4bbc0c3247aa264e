#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What chunks in host memory (HOST_NUMA) cost, who is charged for them, and how long they live.

    python3 tests/gpu/host_chunks.py [--mib 1024] [--cgroup] [--full]

It calls the driver itself ($GLAKE_LIBCUDA, else libcuda.so.1), runs on cudasim as well, needs no PyTorch, and prints
one table. Without a driver that makes such chunks it says so and ends with 0. --full also asks for twice the
machine's memory, which may wake the kernel's OOM killer; --cgroup makes a memory cgroup below its own for a moment, as
root, to see whether the limit there counts.
"""
import argparse
import array
import ctypes
import os
import resource
import socket
import subprocess
import sys
import time

from structs import Access, Location, Prop

MIB = 1 << 20
GIB = 1 << 30
DEVICE, HOST, HOST_NUMA = 1, 2, 3
PINNED, POSIX_FD, READ_WRITE = 1, 1, 3
NUMA_ID, HOST_VMM = 134, 141


class Failed(Exception):
    pass


class Driver:
    def __init__(self):
        self.lib = ctypes.CDLL(os.environ.get("GLAKE_LIBCUDA") or "libcuda.so.1")
        self.call("cuInit", 0)

    def name(self, result):
        text = ctypes.c_char_p()
        self.lib.cuGetErrorName(result, ctypes.byref(text))
        return (text.value or b"error %d" % result).decode()

    def call(self, name, *args):
        result = getattr(self.lib, name)(*args)
        if result != 0:
            raise Failed(f"{name}: {self.name(result)}")

    def attribute(self, which):
        value = ctypes.c_int()
        result = self.lib.cuDeviceGetAttribute(ctypes.byref(value), which, 0)
        return value.value if result == 0 else self.name(result)

    def context(self):
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)

    def create(self, n_bytes, kind=HOST_NUMA, index=0):
        handle = ctypes.c_uint64()
        prop = Prop(PINNED, POSIX_FD, Location(kind, index))
        self.call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(n_bytes), ctypes.byref(prop),
                  ctypes.c_uint64(0))
        return handle

    def release(self, handle):
        self.call("cuMemRelease", handle)

    def export(self, handle):
        fd = ctypes.c_int(-1)
        self.call("cuMemExportToShareableHandle", ctypes.byref(fd), handle, POSIX_FD, ctypes.c_uint64(0))
        return fd.value

    def take(self, fd):
        handle = ctypes.c_uint64()
        self.call("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(fd), POSIX_FD)
        return handle

    def map(self, handle, n_bytes):
        at = ctypes.c_uint64()
        self.call("cuMemAddressReserve", ctypes.byref(at), ctypes.c_size_t(n_bytes), ctypes.c_size_t(0),
                  ctypes.c_uint64(0), ctypes.c_uint64(0))
        self.call("cuMemMap", at, ctypes.c_size_t(n_bytes), ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
        return at

    def access(self, at, n_bytes, kind=DEVICE):
        access = Access(Location(kind, 0), READ_WRITE)
        self.call("cuMemSetAccess", at, ctypes.c_size_t(n_bytes), ctypes.byref(access), ctypes.c_size_t(1))

    def unmap(self, at, n_bytes):
        self.call("cuMemUnmap", at, ctypes.c_size_t(n_bytes))
        self.call("cuMemAddressFree", at, ctypes.c_size_t(n_bytes))

    def copy(self, to, source, n_bytes, stream=None):
        self.call("cuMemcpyDtoDAsync_v2", to, source, ctypes.c_size_t(n_bytes),
                  stream or ctypes.c_void_p(0))

    def stream(self):
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(1))
        return stream

    def wait(self):
        self.call("cuCtxSynchronize")


# ---- what the kernel says ----


def fields(path, names):
    found = {}
    try:
        for line in open(path):
            name, _, value = line.partition(":")
            if name in names:
                found[name] = int(value.split()[0]) * 1024
    except OSError:
        pass
    return found


def cgroup_file(name, name_of_v1):
    """The memory cgroup's file of this process, or None."""
    try:
        lines = open("/proc/self/cgroup").read().split()
    except OSError:
        return None
    for line in lines:
        number, kinds, path = line.split(":", 2)
        under = {"": "/sys/fs/cgroup", "memory": "/sys/fs/cgroup/memory"}.get(kinds)
        for place in (f"{under}{path}/", f"{under}/"):
            file = place + (name if kinds == "" else name_of_v1)
            if under and os.access(file, os.R_OK):
                return file
    return None


def look():
    seen = fields("/proc/self/status", ("VmRSS", "RssAnon", "RssFile", "RssShmem", "VmLck", "VmPin"))
    seen.update(fields("/proc/meminfo", ("MemFree", "MemAvailable", "Shmem", "Unevictable", "Mlocked")))
    file = cgroup_file("memory.current", "memory.usage_in_bytes")
    if file:
        seen["cgroup"] = int(open(file).read())
    return seen


def changes(before):
    now = look()
    return "  ".join(f"{name} {(now[name] - before[name]) / MIB:+.0f}" for name in before
                     if name in now and abs(now[name] - before[name]) >= 4 * MIB) or "nothing"


# ---- other processes ----


def child(role, *args, memlock=None, cgroup=None):
    """What it prints, or how it ended."""
    def begin():
        if cgroup:
            with open(cgroup + "/cgroup.procs", "w") as file:
                file.write(str(os.getpid()))
        if memlock is not None:
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (memlock, memlock))

    run = subprocess.run([sys.executable, __file__, "--role", role, *map(str, args)], preexec_fn=begin,
                         pass_fds=[arg for arg in args[:1] if role == "make"], capture_output=True, text=True,
                         timeout=300)
    text = run.stdout.strip() or (run.stderr.strip().splitlines() or [""])[-1]
    return text if run.returncode == 0 else f"ended with {run.returncode}: {text}"


def role_make(connection, n_bytes):
    """Write a pattern to a chunk, pass its fd on, and end without another word."""
    driver = Driver()
    driver.context()
    handle = driver.create(n_bytes)
    at = driver.map(handle, n_bytes)
    driver.access(at, n_bytes)
    driver.call("cuMemsetD32_v2", at, 0x600d600d, ctypes.c_size_t(n_bytes // 4))
    driver.wait()
    fd = driver.export(handle)
    peer = socket.socket(fileno=connection)
    peer.sendmsg([b"fd"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
    driver.unmap(at, n_bytes)
    driver.release(handle)


def role_create(n_bytes):
    driver = Driver()
    since = time.monotonic()
    driver.release(driver.create(n_bytes))
    print(f"made in {(time.monotonic() - since) * 1e3:.0f} ms")


# ---- the rows ----


def row(what, result):
    print(f"{what:<46} {result}", flush=True)


def timed(fn):
    since = time.monotonic()
    result = fn()
    return (time.monotonic() - since) * 1e3, result


def measure_costs(driver, n_bytes):
    for size in sorted({2 * MIB, 64 * MIB, 256 * MIB, n_bytes}):
        took, handle = timed(lambda: driver.create(size))
        gone, _ = timed(lambda: driver.release(handle))
        per = GIB / size
        row(f"create, release {size // MIB} MiB", f"{took:.2f}, {gone:.2f} ms = {took * per:.0f}, "
            f"{gone * per:.0f} ms per GiB")
    handle = driver.create(n_bytes)
    exported, fd = timed(lambda: driver.export(handle))
    closed, _ = timed(lambda: os.close(fd))
    row("export, close of that fd", f"{exported:.3f}, {closed:.3f} ms")
    mapped, at = timed(lambda: driver.map(handle, n_bytes))
    gpu, _ = timed(lambda: driver.access(at, n_bytes))
    cpu, _ = timed(lambda: driver.access(at, n_bytes, HOST_NUMA))
    unmapped, _ = timed(lambda: driver.unmap(at, n_bytes))
    per = GIB / n_bytes
    row("map; access of GPU, of CPU; unmap", f"{mapped:.2f}; {gpu * per:.1f}, {cpu * per:.1f}; "
        f"{unmapped * per:.1f} ms per GiB")
    driver.release(handle)


def measure_copies(driver, n_bytes):
    host, device = driver.create(n_bytes), driver.create(n_bytes, DEVICE)
    host_at, device_at = driver.map(host, n_bytes), driver.map(device, n_bytes)
    for at in (host_at, device_at):
        driver.access(at, n_bytes)
    for size in (2 * MIB, 64 * MIB, n_bytes):
        def all_of(to, source):
            for offset in range(0, n_bytes, size):
                n = min(size, n_bytes - offset)
                driver.copy(ctypes.c_uint64(to.value + offset), ctypes.c_uint64(source.value + offset), n)
            driver.wait()
        out = min(timed(lambda: all_of(host_at, device_at))[0] for _ in range(5))
        back = min(timed(lambda: all_of(device_at, host_at))[0] for _ in range(5))
        row(f"copy out, back, in pieces of {size // MIB} MiB", f"{n_bytes / out / 1e6:.1f}, "
            f"{n_bytes / back / 1e6:.1f} GB/s")
    streams = [driver.stream(), driver.stream()]
    half = n_bytes // 2
    for size in (8 * MIB, 64 * MIB):
        def both():
            for offset in range(0, half, size):
                n = min(size, half - offset)
                driver.copy(ctypes.c_uint64(host_at.value + offset),
                            ctypes.c_uint64(device_at.value + offset), n, streams[0])
                driver.copy(ctypes.c_uint64(device_at.value + half + offset),
                            ctypes.c_uint64(host_at.value + half + offset), n, streams[1])
            driver.wait()
        took = min(timed(both)[0] for _ in range(5))
        row(f"both at once, in pieces of {size // MIB} MiB", f"{n_bytes / took / 1e6:.1f} GB/s in sum")
    for at, handle in ((host_at, host), (device_at, device)):
        driver.unmap(at, n_bytes)
        driver.release(handle)


def measure_orphan(driver, n_bytes):
    ours, theirs = socket.socketpair()
    os.set_inheritable(theirs.fileno(), True)
    before = look()
    said = child("make", theirs.fileno(), n_bytes)
    theirs.close()
    try:
        _, ancillary, _, _ = ours.recvmsg(16, 64)
    except OSError:
        ancillary = []
    if said or not ancillary:
        row("an fd whose maker is dead", said or "did not come")
        return
    fd = array.array("i", ancillary[0][2])[0]
    row("its maker is dead, we have the fd alone", changes(before))
    handle = driver.take(fd)
    at = driver.map(handle, n_bytes)
    driver.access(at, n_bytes)
    words = (ctypes.c_uint32 * (n_bytes // 4))()
    driver.call("cuMemcpyDtoH_v2", words, at, ctypes.c_size_t(n_bytes))
    kept = bytes(words) == (0x600d600d).to_bytes(4, "little") * (n_bytes // 4)
    row("an fd whose maker is dead", "keeps its bytes" if kept else "HAS LOST ITS BYTES")
    driver.unmap(at, n_bytes)
    driver.release(handle)
    os.close(fd)


def measure_accounts(driver, n_bytes):
    row("cgroup's memory.current", cgroup_file("memory.current", "memory.usage_in_bytes") or "cannot be read")
    before = look()
    handle = driver.create(n_bytes)
    row(f"after create of {n_bytes // MIB} MiB (MiB)", changes(before))
    fd = driver.export(handle)
    at = driver.map(handle, n_bytes)
    driver.access(at, n_bytes)
    row("after map and access of the GPU", changes(before))
    driver.access(at, n_bytes, HOST_NUMA)
    row("after access of the CPU", changes(before))
    ctypes.memset(at.value, 1, n_bytes)
    row("after the CPU has written it", changes(before))
    driver.unmap(at, n_bytes)
    driver.release(handle)
    row("unmapped, released, the fd is open", changes(before))
    os.close(fd)
    row("the fd is closed", changes(before))


def measure_memlock(n_bytes):
    row("with RLIMIT_MEMLOCK of 64 KiB", child("create", n_bytes, memlock=64 * 1024))
    row("with RLIMIT_MEMLOCK of 0", child("create", n_bytes, memlock=0))


def measure_cgroup(n_bytes):
    file = cgroup_file("memory.max", "memory.limit_in_bytes")
    place = os.path.join(os.path.dirname(file), "glake-host-chunks") if file else None
    limit = place and os.path.join(place, os.path.basename(file))
    try:
        os.mkdir(place)
        with open(limit, "w") as out:
            out.write(str(n_bytes // 2 + 64 * MIB))
    except (OSError, TypeError) as error:
        row("in a cgroup with less than that", f"not tried: {error}")
    else:
        row("in a cgroup with less than that", child("create", n_bytes, cgroup=place))
    finally:
        if place and os.path.isdir(place):
            os.rmdir(place)


def attempt(what, fn):
    try:
        row(what, fn() or "works")
    except Failed as error:
        row(what, error)


def measure_without_context(n_bytes):
    """A driver call each that glaked may want to make; it has no context."""
    driver = Driver()
    handle = driver.create(n_bytes)
    at = driver.map(handle, n_bytes)
    attempt("without a context: access of the CPU", lambda: driver.access(at, n_bytes, HOST_NUMA))
    attempt("without a context: access of the GPU", lambda: driver.access(at, n_bytes))
    driver.unmap(at, n_bytes)
    driver.release(handle)
    attempt("node 63", lambda: driver.release(driver.create(n_bytes, index=63)))
    attempt("location HOST, as an fd", lambda: driver.release(driver.create(n_bytes, HOST)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--cgroup", action="store_true")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--role", nargs="+")
    options = parser.parse_args()
    if options.role:
        {"make": role_make, "create": role_create}[options.role[0]](*map(int, options.role[1:]))
        return
    driver = Driver()
    row("HOST_NUMA chunks, NUMA id of the GPU", f"{driver.attribute(HOST_VMM)}, {driver.attribute(NUMA_ID)}")
    if driver.attribute(HOST_VMM) != 1:
        return
    small = 256 * MIB
    measure_without_context(small)
    if options.full:
        total = fields("/proc/meminfo", ("MemTotal",))["MemTotal"] * 2 // GIB * GIB
        attempt("twice the machine's memory", lambda: driver.release(driver.create(total)))
    driver.context()
    measure_accounts(driver, small)
    measure_memlock(small)
    if options.cgroup:
        measure_cgroup(small)
    measure_orphan(driver, small)
    measure_costs(driver, options.mib * MIB)
    measure_copies(driver, options.mib * MIB)


main()
