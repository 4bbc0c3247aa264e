# SPDX-License-Identifier: Apache-2.0
"""Programs with memory on two GPUs: sealed, asleep, killed, crowded, and beside a glaked that is killed.

    python3 tests/gpu/two.py [--only PART,...] [--seconds 8] [--mib 16]

Parts, of which the first eight call the driver themselves and run on cudasim as well (CUDASIM_DEVICES=2x4GiB):
    copies     both ways between the GPUs, with and without peer access, while sources and destinations are
               sealed, written by API (which unseals) and put to sleep
    kills      the same while glaked is killed, 20 times
    wake       one wake brings back the memory of both GPUs; it waits while either GPU is full, and hurts nobody
    published  weights on both GPUs that one program publishes, one seals and one attaches to: all three sleep
    quota      a limit of a tenant is one for each GPU
    crowd      programs that allocate on both GPUs under a limit, of which some are killed
    places     memory made for one GPU while the other one's context is current, by all kinds of calls
    page       the map page has both GPUs, and who is on them
    kernels    PyTorch: kernels that read the other GPU's memory meanwhile
    stitch     PyTorch on both GPUs under --alloc=stitch, with copies between them
    model      transformers, layers on both GPUs: published and attached, sealed, asleep, killed, and glaked killed

Prints a line for each. Exit 1 when bits differ, a call fails, something hangs or is not given back; no time
decides. With one GPU there is nothing to do.
"""
import argparse
import ctypes
import errno
import hashlib
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.request

from child import Child, serve
import run
from run import ROOT, expect, failures, n_gpus
from structs import Access, Location, Prop

MIB = 1 << 20
READY = 'mover_idle_ms = 0;\nhost_bytes = "{}GiB";\n'
# Only a hang takes so long.
PATIENCE_SECONDS = 120


# ---- in the programs, by the driver's calls ---------------------------------------------------------

class Driver:
    """Two devices, with their primary contexts."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        self.cuInit(0)
        self.contexts = []
        for device in range(2):
            context = ctypes.c_void_p()
            self.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
            self.contexts.append(context)

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)
        function = getattr(self.library, name)

        def call(*arguments):
            result = function(*arguments)
            if result != 0:
                raise DriverError(name, result)
        return call

    def use(self, device):
        self.cuCtxSetCurrent(self.contexts[device])

    def alloc(self, device, n_bytes):
        self.use(device)
        ptr = ctypes.c_uint64()
        self.cuMemAlloc_v2(ctypes.byref(ptr), ctypes.c_size_t(n_bytes))
        return ptr

    def stream(self, device):
        self.use(device)
        stream = ctypes.c_void_p()
        self.cuStreamCreate(ctypes.byref(stream), 1)
        return stream

    def write(self, ptr, content):
        self.cuMemcpyHtoD_v2(ptr, content, ctypes.c_size_t(len(content)))

    def read(self, ptr, n_bytes):
        out = ctypes.create_string_buffer(n_bytes)
        self.cuMemcpyDtoH_v2(out, ptr, ctypes.c_size_t(n_bytes))
        return out.raw


class DriverError(Exception):
    def __init__(self, name, result):
        super().__init__(f"{name}: {result}")
        self.result = result


def some_bytes(seed, n_bytes):
    return random.Random(seed).randbytes(min(n_bytes, MIB)) * -(-n_bytes // MIB)


class Holder:
    """Memory on both GPUs, by cuMemAlloc()."""

    def __init__(self, mib):
        self.cuda = Driver()
        self.memory = []
        for i in range(8):
            content = some_bytes(i, mib * MIB)
            ptr = self.cuda.alloc(i % 2, len(content))
            self.cuda.write(ptr, content)
            self.memory.append((ptr, content))

    def same(self):
        """A read: it wakes the program."""
        return all(self.cuda.read(ptr, len(content)) == content for ptr, content in self.memory)

    def grow(self, device, n_bytes):
        """How much more it gets, in pieces of 64 MiB at most, until it has @n_bytes."""
        got, self.more = 0, getattr(self, "more", [])
        piece = 64 * MIB
        while piece >= 2 * MIB and got < n_bytes:
            try:
                self.more.append((device, self.cuda.alloc(device, piece)))
                got += piece
            except DriverError as error:
                if error.result != 2:
                    raise
                piece //= 2
        return got

    def shrink(self, device):
        for where, ptr in getattr(self, "more", []):
            if where == device:
                self.cuda.use(device)
                self.cuda.cuMemFree_v2(ptr)
        self.more = [one for one in getattr(self, "more", []) if one[0] != device]
        return True


class Copies:
    """A thread for each direction copies and compares; a third one seals."""

    N = 3

    def __init__(self, mib, is_peer):
        self.cuda, self.n_bytes = Driver(), mib * MIB
        for device in range(2):
            can = ctypes.c_int()
            self.cuda.cuDeviceCanAccessPeer(ctypes.byref(can), device, 1 - device)
            self.cuda.use(device)
            if is_peer and can.value:
                self.cuda.cuCtxEnablePeerAccess(self.cuda.contexts[1 - device], 0)
        # Nobody writes to the fixed ones. The sources of a GPU are written to by one thread.
        self.plain = {}
        self.fixed = self.make(1)
        self.sources = self.make(2)
        self.targets = [[self.cuda.alloc(device, self.n_bytes) for _ in range(self.N)] for device in range(2)]
        self.counts = {"copies": 0, "writes": 0, "wrong": 0, "refused": 0, "sealed": 0, "busy": 0}
        self.errors = []

    def make(self, seed):
        made = [[self.cuda.alloc(device, self.n_bytes) for _ in range(self.N)] for device in range(2)]
        for device in range(2):
            self.cuda.use(device)
            for i, ptr in enumerate(made[device]):
                # Equal on both GPUs, of which each has a copy of its own.
                self.set(ptr, some_bytes(seed * 100 + i, self.n_bytes))
        return made

    def set(self, ptr, content):
        self.cuda.write(ptr, content)
        self.plain[ptr.value] = content

    def copy(self, how, to, target, source, stream):
        contexts, size = self.cuda.contexts, ctypes.c_size_t(self.n_bytes)
        if how == 0:
            self.cuda.cuMemcpyPeerAsync(target, contexts[to], source, contexts[1 - to], size, stream)
            self.cuda.cuStreamSynchronize(stream)
        elif how == 1:
            self.cuda.cuMemcpyDtoDAsync_v2(target, source, size, stream)
            self.cuda.cuStreamSynchronize(stream)
        elif how == 2:
            self.cuda.cuMemcpyAsync(target, source, size, stream)
            self.cuda.cuStreamSynchronize(stream)
        else:
            self.cuda.cuMemcpyPeer(target, contexts[to], source, contexts[1 - to], size)
            self.cuda.cuCtxSynchronize()

    def compare(self, ptr, content):
        self.counts["copies"] += 1
        self.counts["wrong"] += self.cuda.read(ptr, self.n_bytes) != content

    def direction(self, here, end):
        """From @here to the other one, by streams and contexts of both."""
        streams = [self.cuda.stream(device) for device in range(2)]
        chance, there, step = random.Random(here), 1 - here, 0
        while time.monotonic() < end:
            current = step % 2
            self.cuda.use(current)
            i, how = chance.randrange(self.N), step // 2 % 4
            target, source = self.targets[there][i], chance.choice((self.fixed, self.sources))[here][i]
            step += 1
            try:
                self.cuda.cuMemsetD8Async(target, step % 256, ctypes.c_size_t(self.n_bytes), streams[current])
                self.cuda.cuStreamSynchronize(streams[current])
                self.copy(how, there, target, source, streams[current])
                self.compare(target, self.plain[source.value])
                if step % 5 == 0:
                    # To what may be sealed, from the other GPU.
                    source = self.fixed[there][chance.randrange(self.N)]
                    target = self.sources[here][i]
                    self.copy(how, here, target, source, streams[current])
                    self.plain[target.value] = self.plain[source.value]
                    self.counts["writes"] += 1
                    self.compare(target, self.plain[source.value])
                elif step % 5 == 1:
                    self.set(self.sources[here][i], some_bytes(step % 7, self.n_bytes))
                    self.counts["writes"] += 1
            except DriverError as error:
                # A write that found no moment for its copies: the old bytes stay.
                if error.result != 2:
                    raise
                self.counts["refused"] += 1

    def seal(self, end):
        import glake
        spans = [(ptr.value, self.n_bytes) for made in (self.fixed, self.sources) for row in made for ptr in row]
        chance = random.Random(3)
        while time.monotonic() < end:
            try:
                self.counts["sealed"] += glake.seal(chance.sample(spans, 4)).sealed_bytes > 0
            except Exception as error:
                # Memory from before a restart of glaked stays private; and it may be killed in the middle of a call.
                texts = "since glaked was restarted", "the daemon has closed the connection"
                if getattr(error, "errno", 0) != errno.EBUSY and not any(text in str(error) for text in texts):
                    raise
                self.counts["busy"] += 1
            time.sleep(chance.random() * 0.02)

    def work(self, seconds):
        end = time.monotonic() + seconds

        def guarded(function, *arguments):
            try:
                function(*arguments)
            except Exception as error:
                self.errors.append(f"{function.__name__}: {error}")
                traceback.print_exc()
        threads = [threading.Thread(target=guarded, args=(self.direction, here, end)) for here in range(2)]
        threads.append(threading.Thread(target=guarded, args=(self.seal, end)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for made in (self.fixed, self.sources):
            for device in range(2):
                self.cuda.use(device)
                for ptr in made[device]:
                    self.compare(ptr, self.plain[ptr.value])
        return {**self.counts, "errors": self.errors}


class Sharer(Holder):
    """The same on each GPU as every other of these: one publishes it, one seals it, one attaches to it."""

    def publish(self):
        import glake
        for device in range(2):
            weights = {str(i): glake.Weight(ptr.value, "U8", (len(content),))
                       for i, (ptr, content) in enumerate(self.memory) if i % 2 == device}
            glake.publish(f"sharer/{device}", weights, device)
        return True

    def seal(self):
        import glake
        return glake.seal([(ptr.value, len(content)) for ptr, content in self.memory]).shared_bytes

    def attach(self):
        import glake
        self.models = [glake.Model.attach(f"sharer/{device}", device) for device in range(2)]
        for i, (ptr, content) in enumerate(self.memory):
            self.cuda.use(i % 2)
            self.cuda.cuMemFree_v2(ptr)
            self.memory[i] = (ctypes.c_uint64(self.models[i % 2][str(i)].ptr), content)
        return True

    def same(self):
        """Published memory is open to its own GPU alone."""
        right = True
        for i, (ptr, content) in enumerate(self.memory):
            self.cuda.use(i % 2)
            right = self.cuda.read(ptr, len(content)) == content and right
        return right


class Places:
    """Memory of each GPU that was made while the other one's context was current."""

    KINDS = ("created", "in_order", "from_pool")

    def __init__(self, mib):
        self.cuda, self.n_bytes, self.memory = Driver(), mib * MIB, []
        self.streams = [self.cuda.stream(device) for device in range(2)]
        for device in range(2):
            self.cuda.use(device)
            self.cuda.cuCtxEnablePeerAccess(self.cuda.contexts[1 - device], 0)

    def make(self, kind, device):
        self.cuda.use(1 - device)
        ptr = getattr(self, kind)(device)
        content = some_bytes(len(self.memory), self.n_bytes)
        self.cuda.write(ptr, content)
        self.memory.append((ptr, content))
        where = ctypes.c_int()
        self.cuda.cuPointerGetAttribute(ctypes.byref(where), 9, ptr)
        return where.value

    def created(self, device):
        prop = Prop(1, 1, Location(1, device))
        handle, ptr, size = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_size_t(self.n_bytes)
        self.cuda.cuMemCreate(ctypes.byref(handle), size, ctypes.byref(prop), ctypes.c_uint64(0))
        self.cuda.cuMemAddressReserve(ctypes.byref(ptr), size, ctypes.c_size_t(0), ctypes.c_uint64(0), ctypes.c_uint64(0))
        self.cuda.cuMemMap(ptr, size, ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
        self.cuda.cuMemRelease(handle)
        access = (Access * 2)(*[Access(Location(1, i), 3) for i in range(2)])
        self.cuda.cuMemSetAccess(ptr, size, access, ctypes.c_size_t(2))
        return ptr

    def in_order(self, device):
        ptr = ctypes.c_uint64()
        self.cuda.cuMemAllocAsync(ctypes.byref(ptr), ctypes.c_size_t(self.n_bytes), self.streams[device])
        self.cuda.cuStreamSynchronize(self.streams[device])
        return ptr

    def from_pool(self, device):
        """In the order of the other GPU's stream."""
        pool, ptr = ctypes.c_void_p(), ctypes.c_uint64()
        self.cuda.cuDeviceGetDefaultMemPool(ctypes.byref(pool), device)
        access = Access(Location(1, 1 - device), 3)
        self.cuda.cuMemPoolSetAccess(pool, ctypes.byref(access), ctypes.c_size_t(1))
        self.cuda.cuMemAllocFromPoolAsync(ctypes.byref(ptr), ctypes.c_size_t(self.n_bytes), pool, self.streams[1 - device])
        self.cuda.cuStreamSynchronize(self.streams[1 - device])
        return ptr

    def seal(self):
        """What is glaked's: a pool's memory, for another GPU's stream, is the driver's."""
        import glake
        return vars(glake.seal([(ptr.value, self.n_bytes) for ptr, _ in self.memory[:4]]))

    def same(self):
        """By both contexts."""
        right = True
        for device in range(2):
            self.cuda.use(device)
            right = right and all(self.cuda.read(ptr, len(content)) == content for ptr, content in self.memory)
        return right

    def write(self):
        """By the context of the other GPU, by a set, which makes sealed memory private."""
        for i, (ptr, content) in enumerate(self.memory):
            self.cuda.use(i % 2)
            self.cuda.cuMemsetD8_v2(ptr, i, ctypes.c_size_t(self.n_bytes))
            self.cuda.cuCtxSynchronize()
            self.memory[i] = (ptr, bytes([i]) * self.n_bytes)
        return True


class Churn:
    """Allocates and frees on both GPUs, and looks at its bytes."""

    def __init__(self, mib):
        self.cuda, self.n_bytes = Driver(), mib * MIB

    def work(self, seconds):
        end, chance = time.monotonic() + seconds, random.Random(os.getpid())
        held, counts = [], {"steps": 0, "wrong": 0, "refused": 0}
        while time.monotonic() < end:
            counts["steps"] += 1
            if held and (len(held) > 4 or chance.random() < 0.4):
                ptr, n_bytes, value, device = held.pop(chance.randrange(len(held)))
                self.cuda.use(device)
                end_of_it = ctypes.c_uint64(ptr.value + n_bytes - 4096)
                counts["wrong"] += self.cuda.read(end_of_it, 4096) != bytes([value]) * 4096
                self.cuda.cuMemFree_v2(ptr)
                continue
            device, n_bytes = chance.randrange(2), self.n_bytes * chance.randrange(1, 5)
            try:
                ptr = self.cuda.alloc(device, n_bytes)
            except DriverError as error:
                if error.result != 2:
                    raise
                counts["refused"] += 1
                continue
            held.append((ptr, n_bytes, counts["steps"] % 256, device))
            # Set by the other device's context as often as by its own.
            self.cuda.use(chance.randrange(2))
            self.cuda.cuMemsetD8_v2(ptr, counts["steps"] % 256, ctypes.c_size_t(n_bytes))
            self.cuda.cuCtxSynchronize()
        for ptr, _, _, device in held:
            self.cuda.use(device)
            self.cuda.cuMemFree_v2(ptr)
        return counts


# ---- in the programs, by PyTorch ---------------------------------------------------------------------

class Kernels:
    """A copy to another layout is a kernel, which reads the other GPU's memory."""

    def __init__(self, mib):
        import torch
        self.torch = torch
        n = int((mib * MIB) ** 0.5) // 4 * 4
        self.plain = [torch.randint(0, 256, (n, n), dtype=torch.uint8, generator=torch.Generator().manual_seed(i))
                      for i in range(8)]
        self.weights = [plain.to(f"cuda:{i % 2}") for i, plain in enumerate(self.plain)]
        self.want = [plain.t().contiguous() for plain in self.plain]
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)

    def work(self, seconds):
        torch, end = self.torch, time.monotonic() + seconds
        counts = {"copies": 0, "wrong": 0, "writes": 0}
        while time.monotonic() < end:
            for i, weight in enumerate(self.weights):
                there = f"cuda:{1 - i % 2}"
                turned = torch.empty_like(weight, device=there)
                turned.copy_(weight.t())
                counts["copies"] += 1
                counts["wrong"] += not torch.equal(turned.cpu(), self.want[i])
            i = counts["copies"] // 8 % 8
            self.plain[i] = self.plain[i].roll(1, 0)
            self.want[i] = self.plain[i].t().contiguous()
            self.weights[i].copy_(self.plain[i])
            counts["writes"] += 1
        return counts


class Stitched:
    """Memory of changing sizes on both GPUs, in several streams, and copies between them."""

    def __init__(self):
        import torch
        self.torch = torch
        torch.zeros(1, device="cuda:0")
        torch.zeros(1, device="cuda:1")

    def work(self, seconds):
        torch, end = self.torch, time.monotonic() + seconds
        streams = [[torch.cuda.Stream(device) for _ in range(2)] for device in range(2)]
        chance, held, counts = random.Random(5), [], {"steps": 0, "wrong": 0, "copies": 0}
        while time.monotonic() < end:
            counts["steps"] += 1
            device, which = chance.randrange(2), chance.randrange(2)
            with torch.cuda.stream(streams[device][which]):
                n, value = chance.randrange(1, 64 * MIB), counts["steps"] % 251
                tensor = torch.full((n,), value, dtype=torch.uint8, device=f"cuda:{device}")
                if counts["steps"] % 3 == 0:
                    tensor = tensor.to(f"cuda:{1 - device}")
                    counts["copies"] += 1
            streams[device][which].synchronize()
            torch.cuda.current_stream(1 - device).synchronize()
            held.append((tensor, value))
            if len(held) > 24:
                tensor, value = held.pop(chance.randrange(len(held)))
                counts["wrong"] += not bool((tensor == value).all())
        counts["wrong"] += sum(not bool((tensor == value).all()) for tensor, value in held)
        return counts


class Model:
    """A Llama with its first layers on GPU 0, and its last ones on GPU 1."""

    LAYERS = 8

    def __init__(self, folder):
        import torch
        from transformers import AutoModelForCausalLM
        self.torch = torch
        where = {"model.embed_tokens": 0, "model.norm": 1, "model.rotary_emb": 0, "lm_head": 1}
        where.update({f"model.layers.{i}": int(i >= self.LAYERS // 2) for i in range(self.LAYERS)})
        self.module = AutoModelForCausalLM.from_pretrained(folder, device_map=where, dtype=torch.bfloat16).eval()
        self.tokens = torch.arange(7, 7 + 96, device="cuda:0").view(2, 48)

    @staticmethod
    def write(folder):
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM
        torch.manual_seed(1)
        config = LlamaConfig(vocab_size=16000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=Model.LAYERS,
                             num_attention_heads=16, num_key_value_heads=4, tie_word_embeddings=False)
        LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)

    def compute(self):
        with self.torch.no_grad():
            logits = self.module(self.tokens).logits
        return hashlib.sha256(logits.contiguous().view(self.torch.uint8).cpu().numpy().tobytes()).hexdigest()

    def compute_for(self, seconds):
        end, values = time.monotonic() + seconds, set()
        while time.monotonic() < end:
            values.add(self.compute())
        return sorted(values)

    def half(self, device):
        """The module of what is on one GPU."""
        return self.torch.nn.ModuleList(layer for i, layer in enumerate(self.module.model.layers)
                                        if (i >= self.LAYERS // 2) == bool(device))

    def seal(self):
        import glake.torch
        # As they are published: their homes follow from the modules.
        return {"shared_bytes": [glake.torch.seal(self.half(device)).shared_bytes for device in range(2)]}

    def publish(self):
        import glake.torch
        return [vars(glake.torch.publish(self.half(device), f"two/{device}")) for device in range(2)]

    def attach(self):
        """Instead of what it has loaded."""
        import glake.torch
        for device in range(2):
            glake.torch.attach(self.half(device), f"two/{device}", device=f"cuda:{device}")
        self.torch.cuda.empty_cache()
        return True


# ---- the parent ----------------------------------------------------------------------------------------

class Daemon(run.Daemon):
    """One that a part which fails leaves to main()."""

    all = []

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.all.append(self)


def program(daemon, what, *arguments, options=()):
    return Child(daemon, what, [os.path.abspath(__file__), "--serve", what, *map(str, arguments)],
                 environment={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, options=options)


def devices(daemon, field="private_bytes"):
    return [device[field] for device in daemon.ctl("status")["devices"]][:2]


def reserved(daemon, child):
    """Bytes of a program, by GPU."""
    rows = [row for row in daemon.ctl("sessions")["sessions"] if row["pid"] == child.process.pid]
    return [sum(one["reserved_bytes"] for row in rows for one in row["devices"] if one["device"] == device)
            for device in range(2)]


def until(condition):
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def order(daemon, what, pid):
    """What `glakectl sleep` or `wake` says: (whether it did, its text)."""
    try:
        out = subprocess.run([os.path.join(ROOT, "bin", "glakectl"), what, str(pid)], env=daemon.environment,
                             capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        expect(False, f"glakectl {what} hangs")
        return False, "hangs"
    return out.returncode == 0, out.stdout + out.stderr


def disturb(daemon, child, seconds, options):
    """Put it to sleep at random moments while it works; what it answers, and how often it slept."""
    child.tell("work", seconds)
    chance, end = random.Random(1), time.monotonic() + seconds - 0.5
    n = {"sleeps": 0, "too busy to": 0}
    while time.monotonic() < end:
        n["sleeps" if order(daemon, "sleep", child.process.pid)[0] else "too busy to"] += 1
        time.sleep(chance.random() * options.pause)
    return {**(child.hear("work") or {"errors": ["no answer"]}), **n}


def disturb_until(daemon, child, options, *wanted):
    """Once and again, until all that is wanted has happened: on a busy host it takes longer."""
    before, end = {}, time.monotonic() + 60
    while True:
        result = disturb(daemon, child, options.seconds, options)
        # What the child counts it goes on to count.
        for key in ("sleeps", "too busy to"):
            result[key] += before.get(key, 0)
        if result["errors"] or all(result.get(key, 0) > 0 for key in wanted) or time.monotonic() > end:
            return result
        before = result


def judge(name, result, *wanted):
    expect(result.get("wrong") == 0 and not result.get("errors"), f"{name}: {result}")
    for key in wanted:
        expect(result.get(key, 0) > 0, f"{name}: no {key}: {result}")
    print(f"{name:24} " + ", ".join(f"{value} {key}" for key, value in result.items() if key != "errors"), flush=True)


def end_well(daemon, children):
    for child in children:
        child.end()
    expect(until(lambda: not any(devices(daemon))), f"left: {devices(daemon)}")
    return daemon.stop()


def copies(options):
    wanted = ("copies", "writes", "sealed", "sleeps")
    for is_peer in (0, 1):
        daemon = Daemon(READY.format(4))
        child = program(daemon, "Copies", options.mib, is_peer)
        result = disturb_until(daemon, child, options, *wanted)
        judge("copies, peer access" if is_peer else "copies, no peer access", result, *wanted)
        end_well(daemon, [child])


def kills(options):
    from restart import kill
    daemon = Daemon(READY.format(4), keeper=True)
    child = program(daemon, "Copies", options.mib, 1)
    child.tell("work", options.seconds)
    chance, times, slept, end = random.Random(2), [], 0, time.monotonic() + options.seconds
    while len(times) < 20 and time.monotonic() < end:
        # One that was awake meanwhile does not sleep any more.
        slept += not times and until(lambda: order(daemon, "sleep", child.process.pid)[0])
        time.sleep(chance.random() * options.pause / 3)
        times.append(kill(daemon))
    result = child.hear("work") or {"errors": ["no answer"]}
    judge("copies, glaked killed", {**result, "kills": len(times), "sleeps": slept}, "copies", "writes", "kills")
    expect(child.ask("work", 1).get("wrong") == 0, "kills: other bytes afterwards")
    end_well(daemon, [child])


def wake(options):
    daemon = Daemon(READY.format(8) + 'tenants = ( { name = "default"; max_sessions = 100; } );\n')
    child, other = (program(daemon, "Holder", options.mib) for _ in range(2))
    child.ask("same")
    other.ask("same")
    for full in (None, 0, 1):
        done, text = order(daemon, "sleep", child.process.pid)
        expect(done, f"wake: it does not sleep: {text}")
        asleep = reserved(daemon, child)
        expect(not any(asleep), f"wake: asleep it has {asleep}")
        if full is None:
            expect(child.ask("same") is True, "wake: other bytes")
            continue
        n_bytes = other.ask("grow", full, 1 << 60)
        child.tell("same")
        time.sleep(1)
        expect(len(daemon.ctl("sleepers")["sleepers"]) == 1, f"wake: it is awake, and GPU {full} was full")
        # Who needs the other GPU gets memory there meanwhile.
        expect(other.ask("grow", 1 - full, 64 * MIB) >= 64 * MIB, f"wake: GPU {1 - full} is taken as well")
        other.ask("shrink", 1 - full)
        other.ask("shrink", full)
        expect(child.hear("same") is True, "wake: other bytes")
        print(f"wake, GPU {full} full        waited for {n_bytes >> 20} MiB to go, same bytes", flush=True)
        expect(until(lambda: all(reserved(daemon, child))), f"wake: awake it has {reserved(daemon, child)}")
    expect(other.ask("same") is True, "wake: other bytes of the other one")
    end_well(daemon, [child, other])


def published(options):
    daemon = Daemon(READY.format(8))
    children = one, two, three = [program(daemon, "Sharer", options.mib) for _ in range(3)]
    one.ask("publish")
    three.ask("attach")
    shared = two.ask("seal")
    expect(shared == 8 * options.mib * MIB, f"published: {shared} bytes are shared")
    for child in children:
        expect(child.ask("same") is True, f"published: {child.name}: other bytes")
    for child in children:
        done, text = order(daemon, "sleep", child.process.pid)
        expect(done, f"published: {text}")
    asleep = daemon.ctl("sleepers")["sleepers"]
    expect(len(asleep) == 3, f"published: asleep are {asleep}")
    print(f"published                {len(asleep)} of 3 asleep, {devices(daemon, 'physical_bytes')} bytes on the GPUs", flush=True)
    for child in children:
        expect(child.ask("same") is True, f"published: {child.name}: other bytes when it was awake")
    end_well(daemon, children)


def quota(options):
    limit = 16 * options.mib * MIB
    daemon = Daemon(f'tenants = ( {{ name = "default"; device_bytes = {limit}L; }} );\n')
    child = program(daemon, "Holder", options.mib)
    child.ask("same")
    got = [child.ask("grow", device, 1 << 60) for device in (1, 0)]
    used = [row["used_bytes"] for tenant in daemon.ctl("tenants")["tenants"] if tenant["name"] == "default"
            for row in tenant["devices"]]
    expect(all(limit - 2 * MIB < n <= limit for n in used[:2]), f"quota: of {limit} there are {used}")
    child.ask("shrink", 0)
    expect(child.ask("grow", 1, 64 * MIB) == 0, "quota: what was given back on GPU 0 counts on GPU 1")
    expect(child.ask("same") is True, "quota: other bytes")
    print(f"quota                    {limit >> 20} MiB on each: {[n >> 20 for n in got]} MiB more", flush=True)
    end_well(daemon, [child])


def crowd(options):
    limit = 24 * options.mib * MIB
    daemon = Daemon(f'tenants = ( {{ name = "default"; device_bytes = {limit}L; }} );\n')
    children = [program(daemon, "Churn", options.mib) for _ in range(6)]
    for child in children:
        child.tell("work", options.seconds)
    most, end = [0, 0], time.monotonic() + options.seconds
    victims = children[4:]
    while time.monotonic() < end:
        most = [max(a, b) for a, b in zip(most, devices(daemon))]
        if victims and time.monotonic() > end - options.seconds / 2:
            victims.pop().process.kill()
        time.sleep(0.05)
    results = [child.hear("work") for child in children[:4]]
    for child in children[4:]:
        child.process.wait()
    sums = {key: sum(result.get(key, 1) for result in results) for key in ("steps", "wrong", "refused")}
    expect(max(most) <= limit, f"crowd: {most} of {limit}")
    judge("crowd of six, two killed", {**sums, "MiB at most": max(most) >> 20}, "steps")
    end_well(daemon, children)


def places(options):
    daemon = Daemon(READY.format(4))
    child = program(daemon, "Places", options.mib)
    for kind in Places.KINDS:
        for device in range(2):
            before = reserved(daemon, child)
            where = child.ask("make", kind, device)
            expect(where == device, f"places: {kind}: made for GPU {device}, and it is on {where}")
            after = reserved(daemon, child)
            expect(after[1 - device] == before[1 - device], f"places: {kind}: for GPU {device}: {before} became {after}")
            expect(kind == "from_pool" or after[device] == before[device] + options.mib * MIB,
                   f"places: {kind}: for GPU {device}: {before} became {after}")
    expect(child.ask("same") is True, "places: other bytes")
    for step in ("seal", "sleep", "same", "write", "same", "seal", "write", "sleep", "same"):
        if step == "sleep":
            done, text = order(daemon, "sleep", child.process.pid)
            expect(done, f"places: it does not sleep: {text}")
            expect(not any(reserved(daemon, child)), f"places: asleep it has {reserved(daemon, child)}")
        elif step == "seal":
            sealed = child.ask("seal")
            expect(sealed.get("sealed_bytes", 0) == 4 * options.mib * MIB, f"places: {sealed}")
        else:
            expect(child.ask(step) is True, f"places: {step}: other bytes")
    print(f"places                   {', '.join(Places.KINDS)}: on their GPU, sealed, asleep, written, same bytes", flush=True)
    end_well(daemon, [child])


def page(options):
    daemon = Daemon()
    child = program(daemon, "Holder", options.mib)
    child.ask("same")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    server = subprocess.Popen([os.path.join(ROOT, "bin", "glakectl"), "metrics", "--serve", f"127.0.0.1:{port}"],
                              env=daemon.environment, stderr=subprocess.DEVNULL)
    text = ""
    end = time.monotonic() + 20
    while not text and time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer:
                expect(b"</html>" in answer.read(), "page: it is none")
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/memory", timeout=10) as answer:
                text = answer.read().decode()
        except OSError:
            time.sleep(0.05)
    server.terminate()
    server.wait()
    for device in daemon.ctl("status")["devices"]:
        expect(device["uuid"] in text, f"page: GPU {device['index']} is not on it")
    expect(f'{child.process.pid}' in text, "page: the program is not on it")
    expect(all(reserved(daemon, child)), f"page: on the GPUs it has {reserved(daemon, child)}")
    print(f"page                     {len(text)} bytes, both GPUs, the program on both", flush=True)
    end_well(daemon, [child])


def kernels(options):
    daemon = Daemon(READY.format(8))
    child = program(daemon, "Kernels", options.mib)
    order(daemon, "seal", child.process.pid)
    result = disturb(daemon, child, options.seconds, options)
    judge("kernels", result, "copies", "writes", "sleeps")
    end_well(daemon, [child])


def stitch(options):
    daemon = Daemon(READY.format(16))
    child = program(daemon, "Stitched", options=("--alloc=stitch",))
    result = disturb(daemon, child, options.seconds, options)
    judge("stitch", result, "steps", "copies")
    pools = [row for row in daemon.ctl("fragmentation")["sessions"] if row.get("pid") == child.process.pid]
    expect(pools, "stitch: no pool")
    end_well(daemon, [child])


def model(options):
    from restart import kill
    daemon = Daemon(READY.format(32), keeper=True)
    with tempfile.TemporaryDirectory() as folder:
        Model.write(folder)
        one, two, three = (program(daemon, "Model", folder) for _ in range(3))
        want = one.ask("compute")

        def same(child, when):
            got = child.ask("compute")
            expect(got == want, f"model: {child.name}: other bits {when}: {got}")

        for child in (two, three):
            same(child, "when it was loaded")
        published = one.ask("publish")
        same(one, "when it was published")
        three.ask("attach")
        same(three, "when it was attached")
        sealed = two.ask("seal")
        expect(all(sealed.get("shared_bytes", [0])), f"model: nothing is shared: {sealed}")
        same(two, "when it was sealed")
        blocks = devices(daemon, "used_block_bytes")
        for child in (one, two, three):
            done, text = order(daemon, "sleep", child.process.pid)
            expect(done, f"model: {text}")
        print(f"model                    published {published}, {blocks} bytes of blocks, asleep "
              f"{devices(daemon, 'physical_bytes')} on the GPUs", flush=True)
        # Each has a session of the shim, and one of glake.torch.
        pids = {child.process.pid for child in (one, two, three)}
        asleep = {row["pid"] for row in daemon.ctl("sleepers")["sleepers"]}
        expect(asleep == pids, f"model: of {pids} sleep {asleep}; {daemon.ctl('sessions')}")
        times = [kill(daemon)]
        asleep = {row["pid"] for row in daemon.ctl("sleepers")["sleepers"]}
        expect(asleep == pids, f"model: of {pids} sleep {asleep} behind a kill of glaked")
        for child in (one, two, three):
            same(child, "when it was awake again")
        two.process.kill()
        two.process.wait()
        for child in (one, three):
            child.tell("compute_for", 6)
        for _ in range(5):
            time.sleep(0.5)
            times.append(kill(daemon))
        for child in (one, three):
            got = child.hear("compute_for")
            expect(got == [want], f"model: other bits while glaked was killed: {got}")
        print(f"model                    6 kills of glaked, {max(times):.0f} ms at most, one program killed, same bits",
              flush=True)
    for child in (one, two, three):
        child.end()
    expect(until(lambda: not any(devices(daemon))), f"model: left: {devices(daemon)}")
    expect(until(lambda: not any(devices(daemon, "used_block_bytes"))), "model: blocks are in use")
    daemon.stop()


PARTS = {part.__name__: part for part in (copies, kills, wake, published, quota, crowd, places, page, kernels, stitch, model)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--serve", nargs="+")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--mib", type=int, default=16)
    # Between two sleeps, at most.
    parser.add_argument("--pause", type=float, default=0.3)
    options = parser.parse_args()
    if options.serve:
        kind, *arguments = options.serve
        serve(globals()[kind](*[int(a) if a.isdigit() else a for a in arguments]))
    if n_gpus() < 2:
        print("# skipped: less than two GPUs")
        sys.exit(0)
    for name in options.only.split(","):
        begin = time.monotonic()
        try:
            PARTS[name](options)
        except Exception as error:  # one part's failure must not hide the others' results
            traceback.print_exc()
            expect(False, f"{name}: {type(error).__name__}: {error}")
        for daemon in Daemon.all:
            if daemon.process.poll() is None:
                daemon.process.terminate()
        Daemon.all.clear()
        print(f"# {name}: {time.monotonic() - begin:.1f} s", flush=True)
    print("OK" if not failures else f"{len(failures)} FAILED")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
