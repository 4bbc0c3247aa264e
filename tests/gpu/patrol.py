# SPDX-License-Identifier: Apache-2.0
"""The patrol finds a block that was written to behind glaked's back, raises no wrong alarm, and costs nothing.

    python3 tests/gpu/patrol.py [--mib 2048]

Starts its own glaked. Root: it takes a descriptor of a block out of glaked (pidfd_getfd) and changes one byte through
it, as a hostile process of the realm could. Needs no PyTorch. If there is an MPS control daemon to start, it
also shows that glaked and glake-mover join no server of it. The last line is one JSON object; exit 1 when something
is wrong.

    python3 tests/gpu/patrol.py --child PATH      opens the model, says whether its bytes are right, and waits
"""
import argparse
import ctypes
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
MIB = 1 << 20
TENSOR_BYTES = 128 * MIB
SYS_PIDFD_OPEN, SYS_PIDFD_GETFD = 434, 438
POSIX_FD, READ_WRITE = 1, 3


# ---- the driver ---------------------------------------------------------------------------------

class Access(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int), ("flags", ctypes.c_int)]


class Driver:
    def __init__(self):
        self._library = ctypes.CDLL(os.environ.get("GLAKE_LIBCUDA", "libcuda.so.1"))
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)

    def try_call(self, name, *arguments):
        return getattr(self._library, name)(*arguments)

    def call(self, name, *arguments):
        result = self.try_call(name, *arguments)
        assert result == 0, f"{name}: {result}"

    def map(self, fd, n_bytes):
        """The memory of a descriptor, if it is memory of that size, or 0."""
        handle, ptr = ctypes.c_ulonglong(), ctypes.c_ulonglong()
        if self.try_call("cuMemImportFromShareableHandle", ctypes.byref(handle),
                         ctypes.c_void_p(fd), POSIX_FD) != 0:
            return 0
        size = ctypes.c_size_t(n_bytes)
        zero = ctypes.c_ulonglong(0)
        self.call("cuMemAddressReserve", ctypes.byref(ptr), size, ctypes.c_size_t(0), zero, zero)
        result = self.try_call("cuMemMap", ptr, size, ctypes.c_size_t(0), handle, zero)
        if result == 0:
            access = Access(1, 0, READ_WRITE)
            self.call("cuMemSetAccess", ptr, size, ctypes.byref(access), ctypes.c_size_t(1))
        self.call("cuMemRelease", handle)
        return ptr.value if result == 0 else 0

    def read(self, ptr, n_bytes):
        to = ctypes.create_string_buffer(n_bytes)
        self.call("cuMemcpyDtoH_v2", to, ctypes.c_ulonglong(ptr), ctypes.c_size_t(n_bytes))
        return to.raw

    def write(self, ptr, data):
        self.call("cuMemcpyHtoD_v2", ctypes.c_ulonglong(ptr), data, ctypes.c_size_t(len(data)))


# ---- the model ----------------------------------------------------------------------------------

def content(number, n_bytes):
    """A tensor's bytes, which differ from any other's."""
    return random.Random(number).randbytes(MIB) * (n_bytes // MIB)


def write_model(path, n_tensors):
    header = {f"w{i}": {"dtype": "U8", "shape": [TENSOR_BYTES],
                        "data_offsets": [i * TENSOR_BYTES, (i + 1) * TENSOR_BYTES]}
              for i in range(n_tensors)}
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for i in range(n_tensors):
            file.write(content(i, TENSOR_BYTES))


def be_child(path):
    import glake
    driver = Driver()
    model = glake.Model(path)
    wrong = []
    for i, name in enumerate(sorted(model.keys(), key=lambda name: int(name[1:]))):
        if driver.read(model[name].ptr, TENSOR_BYTES) != content(i, TENSOR_BYTES):
            wrong.append(name)
    print(json.dumps({"wrong": wrong, "was_loaded": bool(model.was_loaded)}), flush=True)
    sys.stdin.readline()


def open_model(daemon, path):
    child = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--child", path],
                             env=daemon.environment, stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)
    return child, json.loads(child.stdout.readline())


def end(child):
    child.stdin.close()
    child.wait(timeout=60)


# ---- the damage ---------------------------------------------------------------------------------

def fds_of(pid):
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = libc.syscall(SYS_PIDFD_OPEN, pid, 0)
    assert pidfd >= 0, "pidfd_open"
    for name in os.listdir(f"/proc/{pid}/fd"):
        target = os.readlink(f"/proc/{pid}/fd/{name}")
        if "nvidia" not in target and "memfd" not in target and "anon_inode" not in target:
            continue
        fd = libc.syscall(SYS_PIDFD_GETFD, pidfd, int(name), 0)
        if fd >= 0:
            yield fd
            os.close(fd)
    os.close(pidfd)


def damage(pid, number):
    """One byte in the middle of the block that holds the tensor of that number."""
    driver = Driver()
    want = content(number, MIB)[:4096]
    for fd in fds_of(pid):
        ptr = driver.map(fd, TENSOR_BYTES)
        if ptr and driver.read(ptr, len(want)) == want:
            byte = driver.read(ptr + 77 * MIB + 5, 1)
            driver.write(ptr + 77 * MIB + 5, bytes([byte[0] ^ 0x10]))
            return True
    return False


# ---- all of it ----------------------------------------------------------------------------------

def counter(daemon, name):
    return next(row["value"] for row in daemon.ctl("stats")["metrics"] if row["name"] == name)


def wait_for(what, seconds=120):
    limit = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.05)


def verify_all(daemon, rounds):
    """Returns the blocks looked at per second."""
    n_blocks = len(daemon.ctl("blocks")["blocks"])
    first, start = counter(daemon, "blocks_verified"), time.monotonic()
    wait_for(lambda: counter(daemon, "blocks_verified") >= first + rounds * n_blocks)
    return (counter(daemon, "blocks_verified") - first) / (time.monotonic() - start)


def patrol(path, options):
    from run import Daemon, expect
    result = {}
    daemon = Daemon('verify = "always";\nmover_idle_ms = 0;\n')
    keeper, said = open_model(daemon, path)
    expect(not said["wrong"], f"tensors are wrong at once: {said}")
    result["looks_per_second"] = round(verify_all(daemon, 3), 1)
    expect(counter(daemon, "blocks_damaged") == 0, "a wrong alarm")
    expect(damage(daemon.process.pid, 1), "no descriptor of the block was found")
    wait_for(lambda: counter(daemon, "blocks_damaged") > 0)
    events = daemon.ctl("events")["events"]
    expect(len(events) == 1 and events[0]["kind"] == "block_damaged" and
           str(keeper.pid) in events[0]["text"], f"events: {events}")
    result["event"] = events[0]["text"] if events else None
    again, said = open_model(daemon, path)
    expect(not said["wrong"] and not said["was_loaded"], f"opened after the damage: {said}")
    verify_all(daemon, 2)
    expect(counter(daemon, "blocks_damaged") == 1, "an alarm too many")
    end(again)
    end(keeper)
    daemon.stop()
    return result


def mps_servers(environment):
    said = subprocess.run(["nvidia-cuda-mps-control"], input="get_server_list\n", text=True,
                          env=environment, capture_output=True, check=False)
    return [line for line in said.stdout.split() if line.isdigit()]


def mps(path):
    """glaked's own environment names a control daemon. None of its processes starts a server there."""
    from run import Daemon, expect
    if not shutil.which("nvidia-cuda-mps-control"):
        return "no nvidia-cuda-mps-control"
    with tempfile.TemporaryDirectory(prefix="glake-mps-") as folder:
        os.environ["CUDA_MPS_PIPE_DIRECTORY"] = os.environ["CUDA_MPS_LOG_DIRECTORY"] = folder
        environment = dict(os.environ)
        started = subprocess.run(["nvidia-cuda-mps-control", "-d"], env=environment, check=False)
        if started.returncode != 0:
            return f"nvidia-cuda-mps-control -d: {started.returncode}"
        try:
            daemon = Daemon("mover_idle_ms = 0;\n")
            daemon.ctl("load", path)
            running = daemon.ctl("status")["mover"]
            servers = mps_servers(environment)
            expect(running.startswith("running") and not servers,
                   f"mover {running}, MPS servers {servers}")
            client, said = open_model(daemon, path)
            with_client = mps_servers(environment)
            expect(not said["wrong"], f"under MPS: {said}")
            end(client)
            daemon.stop()
        finally:
            subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True,
                           env=environment, check=False)
            del os.environ["CUDA_MPS_PIPE_DIRECTORY"], os.environ["CUDA_MPS_LOG_DIRECTORY"]
    return {"servers_with_glaked": len(servers), "servers_with_a_client": len(with_client)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=2048)
    parser.add_argument("--child")
    options = parser.parse_args()
    if options.child:
        be_child(options.child)
        return
    from run import failures
    with tempfile.TemporaryDirectory(prefix="glake-patrol-") as folder:
        path = os.path.join(folder, "m.safetensors")
        write_model(path, max(2, options.mib * MIB // TENSOR_BYTES))
        result = {"patrol": patrol(path, options), "mps": mps(path)}
    print(json.dumps({**result, "failures": failures}), flush=True)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    sys.path.insert(0, HERE)
    main()
