# SPDX-License-Identifier: Apache-2.0
"""Writes to sealed memory on a full GPU: the private copy lies in host memory, and comes back.

    python3 tests/gpu/refuge.py [--mib 512] [--tensors 4]

Two processes under `glake run` share sealed tensors, and a third one fills the GPU. One of the two then writes to each tensor by
the driver's API. Its bytes and those of the other are compared with what plain CUDA would hold: while they are in host memory,
after a kernel has written to them there, and when the third process has ended and all of it is on the GPU again. Printed is what
each step took, and what the driver says of the memory's type meanwhile. Exit 1 when a byte is wrong, or nothing went to host memory.
"""
import argparse
import ctypes
import os
import sys
import time

from child import Child, serve
from run import Daemon, expect, failures, row

MIB = 1 << 20
MEMORY_TYPE, IS_MANAGED, DEVICE_ORDINAL = 2, 8, 9


class Program:
    def __init__(self, n_tensors, n_bytes):
        import torch
        self.torch = torch
        generator = torch.Generator().manual_seed(1)
        first = torch.randint(0, 256, (n_bytes,), generator=generator, dtype=torch.uint8)
        self.wanted = [first.roll(4099 * i) for i in range(n_tensors)]
        self.tensors = [t.cuda() for t in self.wanted]
        torch.cuda.synchronize()
        # Their first time is not the write's.
        self.is_right(0)

    def seal(self):
        import glake
        return vars(glake.seal([(t.data_ptr(), t.nbytes) for t in self.tensors]))

    def timed(self, function):
        self.torch.cuda.synchronize()
        start = time.perf_counter()
        function()
        self.torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e3

    def write(self, number):
        """In its middle, by a copy; ms."""
        tensor, n = self.tensors[number], self.tensors[number].nbytes
        new = self.torch.full((n // 2,), 17 + number, dtype=self.torch.uint8)
        self.wanted[number][n // 4:n // 4 + n // 2] = new
        return self.timed(lambda: tensor[n // 4:n // 4 + n // 2].copy_(new))

    def add(self, number):
        """To what was written, by a kernel; ms."""
        tensor, n = self.tensors[number], self.tensors[number].nbytes
        self.wanted[number][n // 4:n // 4 + n // 2] += 3
        return self.timed(lambda: tensor[n // 4:n // 4 + n // 2].add_(3))

    def is_right(self, number):
        """Read by a kernel, and by a copy."""
        tensor, wanted = self.tensors[number], self.wanted[number]
        total = int(tensor.to(self.torch.int64).sum()) if tensor.nbytes <= 64 * MIB else int(tensor.sum(dtype=self.torch.int64))
        return total == int(wanted.sum(dtype=self.torch.int64)) and bool((tensor.cpu() == wanted).all())

    def kind(self, number):
        """What the driver says of it."""
        driver, said = ctypes.CDLL("libcuda.so.1"), {}
        for name, attribute in (("type", MEMORY_TYPE), ("managed", IS_MANAGED), ("device", DEVICE_ORDINAL)):
            value = ctypes.c_int(-1)
            code = driver.cuPointerGetAttribute(ctypes.byref(value), attribute, ctypes.c_uint64(self.tensors[number].data_ptr()))
            said[name] = value.value if code == 0 else f"error {code}"
        return said


class Hog:
    def __init__(self):
        import torch
        self.torch, self.rows = torch, []
        torch.cuda.init()
        torch.empty(1, device="cuda")

    def fill(self):
        """MiB that were to be had."""
        for n_bytes in (1024 * MIB, 128 * MIB, 2 * MIB):
            while True:
                try:
                    self.rows.append(self.torch.empty(n_bytes, dtype=self.torch.uint8, device="cuda"))
                except self.torch.OutOfMemoryError:
                    break
        return sum(t.nbytes for t in self.rows) // MIB


def host_bytes(daemon, pid):
    return sum(r["host_bytes"] for r in daemon.ctl("sessions")["sessions"] if r["pid"] == pid)


def compare(writer, reader, n, when):
    for child in (writer, reader):
        wrong = [i for i in range(n) if child.ask("is_right", i) is not True]
        expect(not wrong, f"{when}: wrong bytes of the {child.name} in tensors {wrong}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--tensors", type=int, default=4)
    parser.add_argument("--child", choices=("program", "hog"))
    options = parser.parse_args()
    if options.child:
        serve(Program(options.tensors, options.mib * MIB) if options.child == "program" else Hog())
    daemon = Daemon('host_bytes = "16GiB";\n')
    me, n = os.path.abspath(__file__), options.tensors
    writer, reader = (Child(daemon, name, [me, "--child", "program", "--mib", str(options.mib), "--tensors", str(n)])
                      for name in ("writer", "reader"))
    for child in (writer, reader):
        child.ask("seal")
    hog = Child(daemon, "hog", [me, "--child", "hog"])
    row("memory that another program took", f"{hog.ask('fill')} MiB")
    before = writer.ask("kind", 0)
    took = [writer.ask("write", i) for i in range(n)]
    moved = host_bytes(daemon, writer.process.pid)
    expect(moved, "nothing went to host memory")
    row("a write that needs its copy in host memory", " ".join(f"{ms:.0f}" for ms in took) + f" ms for {options.mib // 2} MiB each")
    row("of the program in host memory", f"{moved // MIB} MiB")
    kinds = [writer.ask("kind", i) for i in range(n)]
    expect(kinds == [before] * n, f"the program sees where its memory is: {kinds}, before {before}")
    row("the driver's word on such memory, as before", before)
    compare(writer, reader, n, "in host memory")
    row("a kernel adds to it there", f"{writer.ask('add', 0)} ms for {options.mib // 2} MiB")
    compare(writer, reader, n, "in host memory, after a kernel")
    hog.end()
    start = time.perf_counter()
    while host_bytes(daemon, writer.process.pid) and time.perf_counter() - start < 60:
        time.sleep(0.1)
    left = host_bytes(daemon, writer.process.pid)
    expect(not left, f"{left} bytes are in host memory after a minute")
    row("all of it on the GPU again after", f"{time.perf_counter() - start:.1f} s")
    row("a kernel adds to it", f"{writer.ask('add', 0)} ms")
    compare(writer, reader, n, "back on the GPU")
    for child in (writer, reader):
        child.end()
    daemon.stop()
    print("OK" if not failures else f"{len(failures)} FAILED")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
