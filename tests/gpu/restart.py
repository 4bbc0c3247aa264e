# SPDX-License-Identifier: Apache-2.0
"""glaked is killed again and again under glake-keeper, while processes compute with its memory.

    python3 tests/gpu/restart.py [--kills 20] [--layers 32] [--every 1.5] [--devices 1]

Nine processes: two read a model file of Llama-3-8B's shapes (16 GB with 32 layers) through the store; one
allocates alone, for the time that an allocation takes; the others have a net of 24 square matrices each, under
`glake run`: two with PyTorch's own allocator, one with its cudaMallocAsync backend, one with --alloc=stitch, and
two whose weights are equal and sealed. All compute on and allocate memory of changing sizes. Each result has to
have the bits of the first. Meanwhile glaked is killed with SIGKILL. With --devices 2 all of this is on each of two
GPUs at once.

Printed are the times until glaked answers again, the longest time that an allocation took with and without
kills, bytes before and after, and what glaked said when it took longest. Exit 1 when a process fails, when bits
differ, when a byte of the store is gone or loaded again, or when bytes are left in the end; no time decides.
"""
import argparse
import datetime
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from child import Child, ask_all, serve
from run import ROOT, Daemon, expect, failures, gpu_used_mib, spread

MIB = 1 << 20
HIDDEN, DEPTH = 4096, 24
KINDS = {  # PyTorch's configuration, and options of `glake run`
    "native 1": ("", ()),
    "native 2": ("", ()),
    "async": ("backend:cudaMallocAsync", ()),
    "stitch": ("", ("--alloc=stitch",)),
    "sealed 1": ("", ()),
    "sealed 2": ("", ()),
}


def digest(tensor):
    import torch
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes()).hexdigest()


class Net:
    """A stack of matrices, and garbage of changing sizes."""

    def __init__(self, is_sealed):
        import torch
        self.torch = torch
        torch.manual_seed(1)
        self.module = torch.nn.Sequential(*[
            torch.nn.Linear(HIDDEN, HIDDEN, bias=False, device="cuda", dtype=torch.bfloat16)
            for _ in range(DEPTH)]).requires_grad_(False)
        self.input = torch.randn(256, HIDDEN, device="cuda", dtype=torch.bfloat16)
        if is_sealed:
            import glake.torch
            glake.torch.seal(self.module)
        self.want = self.once(0)

    def once(self, step):
        garbage = self.torch.empty((1 + step % 7) * 24 * MIB, dtype=self.torch.uint8, device="cuda")
        garbage.fill_(step % 251)
        result = digest(self.module(self.input))
        right = bool((garbage == step % 251).all())
        del garbage
        if step % 5 == 0:
            self.torch.cuda.empty_cache()
        return result if right else "the garbage has other bits"

    def compute(self, seconds):
        end, step, wrong = time.monotonic() + seconds, 0, 0
        while time.monotonic() < end:
            wrong += self.once(step) != self.want
            step += 1
        return {"steps": step, "wrong": wrong}


class Allocator:
    """cuMemAlloc() of fresh sizes, and how long the longest took."""

    def __init__(self):
        import torch
        self.torch = torch
        torch.zeros(1, device="cuda")

    def compute(self, seconds):
        end, step, longest = time.monotonic() + seconds, 0, 0.0
        while time.monotonic() < end:
            began = time.perf_counter()
            memory = self.torch.empty((256 + 2 * (step % 50)) * MIB, dtype=self.torch.uint8,
                                      device="cuda")
            longest = max(longest, time.perf_counter() - began)
            memory.fill_(1)
            del memory
            self.torch.cuda.empty_cache()
            step += 1
        return {"steps": step, "wrong": 0, "longest_ms": longest * 1e3}


class Reader:
    """Has a model of the store open, and opens it once more now and then."""

    def __init__(self, path):
        import glake.torch
        import torch
        self.load, self.path, self.torch = glake.torch.load_file, path, torch
        self.tensors = self.load(path, device="cuda:0")
        self.want = self.sum(self.tensors)

    def sum(self, tensors):
        words = [t.view(self.torch.int16).sum(dtype=self.torch.int64) for t in tensors.values()]
        return self.torch.stack(words).cpu().tolist()

    def compute(self, seconds):
        end, step, wrong = time.monotonic() + seconds, 0, 0
        while time.monotonic() < end:
            wrong += self.sum(self.tensors) != self.want
            if step % 4 == 0:
                again = self.load(self.path, device="cuda:0")
                wrong += self.sum(again) != self.want
                del again
            step += 1
            time.sleep(0.05)
        return {"steps": step, "wrong": wrong}


def program(what, path):
    if what == "allocator":
        return Allocator()
    if what == "reader":
        return Reader(path)
    return Net(what.startswith("sealed"))


# ---- the parent ---------------------------------------------------------------------------------

def write_model(path, layers):
    import torch
    from models import shapes
    from safetensors.torch import save_file
    torch.manual_seed(1)
    save_file({name: torch.randn(shape, dtype=torch.bfloat16, device="cuda")
               for name, shape in shapes(layers)}, path)


def start(daemon, path, device):
    where = f" on GPU {device}" if device else ""

    def child(name, what, shim, environment, options):
        return Child(daemon, name + where, [os.path.abspath(__file__), "--child", what, "--file", path],
                     shim, {**environment, "CUDA_VISIBLE_DEVICES": str(device)}, options)
    children = [child(f"reader {i}", "reader", False, {}, ()) for i in (1, 2)]
    children.append(child("allocator", "allocator", True, {}, ()))
    for name, (configuration, options) in KINDS.items():
        environment = {"PYTORCH_CUDA_ALLOC_CONF": configuration} if configuration else {}
        children.append(child(name, name, True, environment, options))
    return children


def totals(daemon, fields):
    """Of all GPUs, each field's list."""
    devices = daemon.ctl("status")["devices"]
    return {field: [device[field] for device in devices] for field in fields}


def glaked_pid(keeper):
    """The keeper's child; 0 while there is none."""
    with open(f"/proc/{keeper}/task/{keeper}/children", encoding="ascii") as file:
        pids = file.read().split()
    for pid in pids:
        try:
            with open(f"/proc/{pid}/comm", encoding="ascii") as file:
                if file.read().strip() == "glaked":
                    return int(pid)
        except OSError:
            pass
    return 0


def answers(daemon):
    out = subprocess.run([os.path.join(ROOT, "bin", "glakectl"), "--json", "status"],
                         env=daemon.environment, capture_output=True, check=False)
    return out.returncode == 0


def stamp():
    """The time, as in glaked's log."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")[:23]


def kill(daemon):
    """Returns the milliseconds until glaked answers again."""
    pid = glaked_pid(daemon.process.pid)
    began = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    while time.perf_counter() - began < 60:
        if glaked_pid(daemon.process.pid) not in (0, pid) and answers(daemon):
            return (time.perf_counter() - began) * 1e3
        time.sleep(0.001)
    expect(False, "glaked does not come back")
    return 60e3


STORE = ("block_bytes", "used_block_bytes", "logical_block_bytes")
FIELDS = ("physical_bytes", "private_bytes", *STORE)


def until(condition):
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def check(answers_of, names):
    for name, answer in zip(names, answers_of):
        expect(answer.get("steps", 0) > 0, f"{name}: it did not compute")
        expect(answer.get("wrong", 1) == 0, f"{name}: {answer.get('wrong')} results of other bits")


def measure(daemon, path, options):
    children = [child for device in range(options.devices) for child in start(daemon, path, device)]
    names = [child.name for child in children]
    quiet = ask_all(children, "compute", 3)
    check(quiet, names)
    before = totals(daemon, FIELDS)
    pids = [child.process.pid for child in children]
    seconds = options.kills * options.every + 2
    for child in children:
        child.tell("compute", seconds)
    times = []
    slowest = (0, "", "")
    for _ in range(options.kills):
        time.sleep(max(0.1, options.every - (times[-1] / 1e3 if times else 0)))
        begin = stamp()
        times.append(kill(daemon))
        slowest = max(slowest, (times[-1], begin, stamp()))
        now = totals(daemon, FIELDS)
        for field in STORE[:1]:
            expect(now[field] == before[field], f"{field}: {before[field]} became {now[field]}")
    got = [child.hear("compute") for child in children]
    check(got, names)
    check(ask_all(children, "compute", 1), names)
    after = totals(daemon, FIELDS)
    for field in STORE:
        expect(after[field] == before[field], f"{field}: {before[field]} became {after[field]}")
    expect(pids == [child.process.pid for child in children], "a process was restarted")
    late = got[names.index("allocator")].get("longest_ms", 0)
    calm = quiet[names.index("allocator")].get("longest_ms", 0)
    print(f"\nkills {len(times)}; answers again after {spread(times, 0)} ms  [<= 500 ms]")
    print(f"the longest allocation {late:.0f} ms, without kills {calm:.0f} ms  [<= 1000 ms more]")
    print(f"steps {[answer.get('steps') for answer in got]}")
    print("bytes before " + ", ".join(f"{field} {before[field]}" for field in FIELDS))
    print("bytes after  " + ", ".join(f"{field} {after[field]}" for field in FIELDS))
    for child in children:
        child.end()
    used = ("private_bytes", "used_block_bytes")
    expect(until(lambda: not any(map(any, totals(daemon, used).values()))), f"memory is left: {totals(daemon, used)}")
    daemon.ctl("evict", "--all")
    expect(until(lambda: not any(totals(daemon, STORE[:1])["block_bytes"])), "blocks are left")
    return slowest


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--every", type=float, default=1.5)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--child")
    parser.add_argument("--file")
    options = parser.parse_args()
    if options.child:
        serve(program(options.child, options.file))
    folder = tempfile.mkdtemp(prefix="glake-restart-")
    path = os.path.join(folder, "base.safetensors")
    write_model(path, options.layers)
    before_mib = gpu_used_mib()
    daemon = Daemon("mover_idle_ms = 0;\n", keeper=True)
    try:
        slowest, begin, end = measure(daemon, path, options)
        log = daemon.stop()
        print(f"what glaked said meanwhile, the slowest time ({begin}, {slowest:.0f} ms):")
        print("\n".join(line for line in log.splitlines() if begin <= line[:23] <= end))
        n_loads = sum(" loaded '" in line for line in log.splitlines())
        expect(n_loads == options.devices, f"the model was loaded {n_loads} times")
        expect(until(lambda: gpu_used_mib() <= before_mib + 64),
               f"{gpu_used_mib() - before_mib} MiB are left on the GPU")
    finally:
        shutil.rmtree(folder)
    print(log[-1500:] if failures else "", "\n" + ("OK" if not failures else f"{len(failures)} FAILED"))
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
