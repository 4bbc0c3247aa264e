# SPDX-License-Identifier: Apache-2.0
"""What glake learn must find: kernels that write to weights, or touch what they do not name.

    python3 tests/gpu/learn_wrong.py [--only adds,same,hidden,peeks,beyond,graph]

    adds     adds to a part of a weight, in place
    same     writes what is there already: no digest changes
    hidden   writes through a pointer that lies in device memory
    peeks    reads through such a pointer, and writes elsewhere
    beyond   reads behind the allocation that it names, in the next one
    graph    adds in place, in a captured graph alone

`glake learn` runs each of them (CuPy) until nothing faults any more. Its table must not say that the kernel reads through the word
by which it writes, nor list one that touches what it does not name. A kernel that only reads runs beside: it must be in each
table. Then each program runs under --dedup=auto with its table, and has to have the bytes that it would have without. Exit 1 when
one of that is not so.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

from run import ROOT, Daemon, expect, failures

SELF = os.path.abspath(__file__)
SECONDS = 150
#: kernel, and whether the table may list it at all
KERNELS = {"adds": True, "same": True, "hidden": False, "peeks": False, "beyond": False, "graph": True}
CODE = r'''
extern "C" __global__ void honest(const float *from, float *to, long n)
{
	float sum = 0;
	for (long i = threadIdx.x; i < n; i += blockDim.x) { sum += from[i]; }
	to[threadIdx.x] = sum;
}
extern "C" __global__ void adds(float *x, float value) { x[threadIdx.x] += value; }
extern "C" __global__ void graph(float *x, float value) { x[threadIdx.x] += value; }
extern "C" __global__ void same(float *x) { volatile float *y = x; y[threadIdx.x] = y[threadIdx.x]; }
extern "C" __global__ void hidden(float **place, float value) { (*place)[threadIdx.x] += value; }
extern "C" __global__ void peeks(float **place, float *to) { to[threadIdx.x] = (*place)[threadIdx.x]; }
extern "C" __global__ void beyond(const float *from, float *to, long distance) { to[threadIdx.x] = from[distance + threadIdx.x]; }
'''
N = 8 << 20  # of floats in a weight: an allocation of its own


def child(kind):
    import time

    import cupy as cp
    import numpy as np
    # Without CuPy's pool: it would put weights and results into one allocation.
    cp.cuda.set_allocator(None)
    module = cp.RawModule(code=CODE)
    honest, wrong = module.get_function("honest"), module.get_function(kind)
    want = [np.random.default_rng(i).standard_normal(N, dtype=np.float32) for i in range(2)]
    weights = [cp.asarray(w) for w in want]
    out, stream = cp.zeros(256, cp.float32), cp.cuda.Stream(non_blocking=True)
    place = cp.array([weights[0].data.ptr], dtype=cp.uint64)
    cp.cuda.Device().synchronize()
    arguments = {"adds": (weights[0], np.float32(1)), "graph": (weights[0], np.float32(1)), "same": (weights[0],),
                 "hidden": (place, np.float32(1)), "peeks": (place, out),
                 "beyond": (weights[0], out, np.int64((weights[1].data.ptr - weights[0].data.ptr) // 4))}[kind]
    with stream:
        graph = None
        if kind == "graph":
            stream.begin_capture()
            wrong((1,), (256,), arguments)
            graph = stream.end_capture()
        for _ in range(30):
            time.sleep(0.1)
            for weight in weights:
                honest((1,), (256,), (weight, out, np.int64(N)))
            stream.synchronize()
        for _ in range(8):
            if graph:
                graph.launch(stream)
            else:
                wrong((1,), (256,), arguments)
            stream.synchronize()
            for weight in weights:
                honest((1,), (256,), (weight, out, np.int64(N)))
            stream.synchronize()
    if kind in ("adds", "graph", "hidden"):
        for _ in range(8):
            want[0][:256] += np.float32(1)
    right = all(bool((cp.asnumpy(weight) == w).all()) for weight, w in zip(weights, want))
    print("right" if right else "wrong bytes", flush=True)
    os._exit(0 if right else 1)


def run(daemon, command, environment):
    try:
        done = subprocess.run([os.path.join(ROOT, "bin", "glake"), *command, "--", sys.executable, SELF, "--child"], text=True,
                              env={**daemon.environment, **environment}, capture_output=True, timeout=SECONDS, check=False,
                              stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        return "a hang", str(error.stdout)[-2000:]
    return done.returncode, (done.stdout + done.stderr)[-2000:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(KERNELS))
    parser.add_argument("--child", action="store_true")
    options = parser.parse_args()
    if options.child:
        child(os.environ["WRONG"])
    try:
        import cupy  # noqa: F401
    except ImportError as error:
        print(f"# skipped: {error}")
        return
    daemon = Daemon()
    for kind in options.only.split(","):
        folder = tempfile.mkdtemp(prefix="glake-wrong-")
        table, environment = os.path.join(folder, "wrong.readers"), {"WRONG": kind, "GLAKE_DEDUP_QUIET_MS": "1000"}
        code, text = run(daemon, ["learn", "--out", table, "--runs", "12", "--seconds", "60"], environment)
        expect(code == 0, f"{kind}: learning ended with {code}:\n{text}")
        with open(table, encoding="utf-8") as file:
            listed = dict(re.findall(r"^function (\w+).*\n((?:  .*\n)*)", file.read(), re.M))
        expect("  reads 0" in listed.get("honest", ""), f"{kind}: the table does not know who only reads: {listed}")
        expect(KERNELS[kind] or kind not in listed, f"{kind}: the table lists it: {listed.get(kind)}")
        expect("  reads 0" not in listed.get(kind, ""), f"{kind}: the table says that it reads: {listed.get(kind)}")
        faults = len(re.findall(r"^glake: run \d+: .*fault", text, re.M))
        code, text = run(daemon, ["run", "--dedup=auto"], {**environment, "GLAKE_READERS": folder})
        expect(code == 0, f"{kind}: with its table it ended with {code}:\n{text}")
        print(f"{kind}: {faults} faults; listed: {json_of(listed)}; with the table: {text.strip().splitlines()[-1:]}", flush=True)
        shutil.rmtree(folder)
    daemon.stop()
    print("OK" if not failures else f"{len(failures)} FAILED")
    sys.exit(bool(failures))


def json_of(listed):
    return {name: re.findall(r"reads (\d+)", words) for name, words in listed.items()}


if __name__ == "__main__":
    main()
