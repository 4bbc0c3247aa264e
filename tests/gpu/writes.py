# SPDX-License-Identifier: Apache-2.0
"""Writes by API to sealed memory: the writer has its new bytes, the other process its old ones.

    python3 tests/gpu/writes.py

Two processes under `glake run` allocate equal tensors with PyTorch, seal them in place, and share one
copy. One of them then writes in every way that the driver's and the runtime's API offer, each to a
tensor of its own: the whole tensor, or some bytes in its middle. After each write both processes
compare all bytes of that tensor with what plain CUDA would hold. A line for each way: milliseconds of
the write, the copy of sealed memory included, and of the same write to private memory. Exit 1 when a
byte is wrong, or when a write did not give the writer copies.
"""
import argparse
import ctypes
import os
import sys
import time

from child import Child, serve
from run import Daemon, expect, failures

MIB = 1 << 20
TENSOR_BYTES = 24 * MIB
# Some bytes in the middle, on no boundary.
PART = (5 * MIB + 12345, 70001)
WHOLE = (0, TENSOR_BYTES)


# ---- ways to write: each writes source's bytes [begin, begin + n) to the target's ----------------

def _host(source, pinned):
    host = source.cpu()
    return host.pin_memory() if pinned else host


def _span(tensor, begin, n_bytes):
    return tensor[begin:begin + n_bytes]


def copy_from_pinned(api, target, source, span):
    _span(target, *span).copy_(_span(_host(source, True), *span), non_blocking=True)


def copy_from_pageable(api, target, source, span):
    _span(target, *span).copy_(_span(_host(source, False), *span))


def copy_from_device(api, target, source, span):
    _span(target, *span).copy_(_span(source, *span))


def copy_on_a_stream(api, target, source, span):
    import torch
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        _span(target, *span).copy_(_span(source, *span))
    stream.synchronize()


def load_state_dict_of_host(api, target, source, span):
    api.module(target).load_state_dict({"weight": source.cpu()})


def load_state_dict_of_device(api, target, source, span):
    api.module(target).load_state_dict({"weight": source})


def runtime_memcpy(api, target, source, span):
    host = _host(source, False)
    api.runtime("cudaMemcpy", target.data_ptr() + span[0], host.data_ptr() + span[0], span[1], 1)


def runtime_memcpy_2d(api, target, source, span):
    # Rows of 1 MiB, of which the first half is copied; the rest is copied by the next call.
    for half in (0, MIB // 2):
        api.runtime("cudaMemcpy2D", target.data_ptr() + half, MIB, source.data_ptr() + half, MIB,
                    MIB // 2, TENSOR_BYTES // MIB, 3)


def driver_memcpy_dtod(api, target, source, span):
    api.driver("cuMemcpyDtoD_v2", target.data_ptr() + span[0], source.data_ptr() + span[0], span[1])


def driver_memcpy_htod_async(api, target, source, span):
    host = _host(source, True)
    api.driver("cuMemcpyHtoDAsync_v2", target.data_ptr() + span[0], host.data_ptr() + span[0],
               span[1], 0)
    api.driver("cuStreamSynchronize", 0)


def runtime_memset(api, target, source, span):
    api.runtime("cudaMemset", target.data_ptr() + span[0], 0x5a, span[1])


def driver_memset_d32_async(api, target, source, span):
    api.driver("cuMemsetD32Async", target.data_ptr() + span[0] // 4 * 4,
               ctypes.c_uint(0x5a5a5a5a), span[1] // 4, 0)


def stream_write_value(api, target, source, span):
    api.driver("cuStreamWriteValue32_v2", 0, target.data_ptr() + span[0] // 4 * 4,
               ctypes.c_uint(0x5a5a5a5a), 0)


def graph_with_a_copy(api, target, source, span):
    """Captured before the memory was sealed."""
    api.graphs["copy"].replay()


def graph_with_a_set(api, target, source, span):
    api.graphs["set"].replay()


#: name, function, span
WAYS = [(function.__name__ + suffix, function, span)
        for function in (copy_from_pinned, copy_from_pageable, copy_from_device, copy_on_a_stream,
                         runtime_memcpy, driver_memcpy_dtod, driver_memcpy_htod_async,
                         runtime_memset)
        for suffix, span in (("", WHOLE), ("_part", PART))]
WAYS += [(function.__name__, function, WHOLE)
         for function in (load_state_dict_of_host, load_state_dict_of_device, runtime_memcpy_2d,
                          driver_memset_d32_async, graph_with_a_copy, graph_with_a_set)]
WAYS += [("stream_write_value", stream_write_value, PART)]


# ---- a process ----------------------------------------------------------------------------------

class Api:
    def __init__(self):
        self._driver = ctypes.CDLL("libcuda.so.1")
        # The one that torch has.
        with open("/proc/self/maps", encoding="ascii") as file:
            path = next(line.split()[-1] for line in file if "/libcudart" in line)
        self._runtime = ctypes.CDLL(path)
        self.graphs = {}

    def _call(self, library, name, arguments):
        result = getattr(library, name)(*(a if isinstance(a, ctypes._SimpleCData)
                                          else ctypes.c_uint64(a) for a in arguments))
        assert result == 0, f"{name}: {result}"

    def driver(self, name, *arguments):
        self._call(self._driver, name, arguments)

    def runtime(self, name, *arguments):
        self._call(self._runtime, name, arguments)

    def module(self, target):
        import torch
        module = torch.nn.Module()
        module.weight = torch.nn.Parameter(target, requires_grad=False)
        return module


class Program:
    def __init__(self):
        import torch
        self.torch = torch
        # In host memory, to compare with.
        self.old = self.random(1)
        self.new = self.random(2)
        self.source = self.new.cuda()
        self.api = Api()
        self.tensors = {name: self.before(number).cuda() for number, (name, _, _) in enumerate(WAYS)}
        self.private = self.old.cuda()
        self.capture()
        torch.cuda.synchronize()

    def before(self, number):
        """No two tensors of a process are equal."""
        return self.old.roll(4099 * number)

    def random(self, seed):
        generator = self.torch.Generator().manual_seed(seed)
        return self.torch.randint(0, 256, (TENSOR_BYTES,), generator=generator,
                                  dtype=self.torch.uint8)

    def capture(self):
        torch = self.torch

        def record(kind, name):
            target = self.tensors[name]
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                if kind == "copy":
                    target.copy_(self.source)
                else:
                    stream = torch.cuda.current_stream().cuda_stream
                    self.api.runtime("cudaMemsetAsync", target.data_ptr(), 0x5a, TENSOR_BYTES, stream)
            self.api.graphs[kind] = graph

        record("copy", "graph_with_a_copy")
        record("set", "graph_with_a_set")

    def seal(self):
        import glake
        sealed = glake.seal([(t.data_ptr(), t.nbytes) for t in self.tensors.values()])
        return vars(sealed)

    def timed(self, function, target, span):
        self.torch.cuda.synchronize()
        begin = time.perf_counter()
        function(self.api, target, self.source, span)
        self.torch.cuda.synchronize()
        return (time.perf_counter() - begin) * 1e3

    def write(self, number):
        name, function, span = WAYS[number]
        # The first time of a call is not the write's.
        if "graph" not in name:
            self.timed(function, self.private, span)
            private_ms = self.timed(function, self.private, span)
        ms = self.timed(function, self.tensors[name], span)
        if "graph" in name:
            private_ms = self.timed(function, self.tensors[name], span)
        return {"ms": ms, "private_ms": private_ms}

    def expected(self, number):
        name, _, (begin, n_bytes) = WAYS[number]
        wanted = self.before(number)
        if "set" in name or "value" in name:
            if "d32" in name or "value" in name:
                begin, n_bytes = begin // 4 * 4, 4 if "value" in name else n_bytes // 4 * 4
            wanted[begin:begin + n_bytes] = 0x5a
        else:
            wanted[begin:begin + n_bytes] = self.new[begin:begin + n_bytes]
        return wanted

    def look(self, number, is_writer):
        """The number of wrong bytes."""
        wanted = self.expected(number) if is_writer else self.before(number)
        return {"wrong": int((self.tensors[WAYS[number][0]].cpu() != wanted).sum())}


# ---- both ---------------------------------------------------------------------------------------

def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--child", action="store_true")
    if parser.parse_args().child:
        serve(Program())
    daemon = Daemon()
    writer, reader = (Child(daemon, name, [os.path.abspath(__file__), "--child"])
                      for name in ("writer", "reader"))
    first = writer.ask("seal")
    second = reader.ask("seal")
    total = len(WAYS) * TENSOR_BYTES
    for sealed in (first, second):
        expect(sealed.get("sealed_bytes") == total, f"sealed: {sealed} of {total}")
    expect(second.get("shared_bytes") == total, f"shared: {second}")
    shared = daemon.device()["logical_block_bytes"]
    rows = []
    for number, (name, _, _) in enumerate(WAYS):
        answer = writer.ask("write", number)
        if not answer:
            break
        wrong = [child.ask("look", number, child is writer).get("wrong") for child in (writer, reader)]
        expect(wrong == [0, 0], f"{name}: wrong bytes of writer and reader: {wrong}")
        logical = daemon.device()["logical_block_bytes"]
        expect(logical < shared, f"{name}: no block of the writer became private")
        rows.append((name, answer["ms"], answer["private_ms"], (shared - logical) / MIB, wrong))
        shared = logical
    # Whoever wrote last has not changed what others wrote before.
    for number, (name, _, _) in enumerate(WAYS[:len(rows)]):
        wrong = [child.ask("look", number, child is writer).get("wrong") for child in (writer, reader)]
        expect(wrong == [0, 0], f"{name}: wrong bytes at the end: {wrong}")
    for child in (writer, reader):
        child.end()
    daemon.stop()
    print(f"{'way':32} {'sealed':>9} {'private':>9}  copied   wrong bytes")
    for name, ms, private_ms, mib, wrong in rows:
        print(f"{name:32} {ms:6.2f} ms {private_ms:6.2f} ms {mib:4.0f} MiB   {wrong}")
    print("OK" if not failures else f"{len(failures)} FAILED")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
