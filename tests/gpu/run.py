# SPDX-License-Identifier: Apache-2.0
"""Every GPU test and benchmark in one go, with a short table last.

    python3 tests/gpu/run.py [--models FOLDER] [--out FOLDER] [--layers 32] [--runs 5]

Runs from an unpacked tarball (make dist) or from a source tree after make; needs PyTorch,
safetensors and transformers; fastsafetensors and runai-model-streamer are measured if they are
there. Starts its own glaked on a temporary socket. Exit 1 when something is wrong; no time decides.
"""
import argparse
import ctypes
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def find_root():
    """The folder with bin/ and lib/: the tarball's top, or build/."""
    for folder in (os.path.join(HERE, "..", ".."), os.path.join(HERE, "..", "..", "build")):
        if os.path.exists(os.path.join(folder, "bin", "glaked")):
            return os.path.abspath(folder)
    sys.exit("no bin/glaked: run make first")


ROOT = find_root()
PYTHON = next(p for p in (os.path.join(ROOT, "python"), os.path.join(HERE, "..", "..", "libclient",
                                                                     "python")) if os.path.isdir(p))
rows = []
failures = []


def row(name, value, target=""):
    rows.append((name, value, target))
    print(f"# {name}: {value}", flush=True)


def expect(condition, what):
    if not condition:
        failures.append(what)
        print(f"# FAILED: {what}", flush=True)


def spread(values, digits=2):
    return (f"{statistics.median(values):.{digits}f} "
            f"({min(values):.{digits}f}..{max(values):.{digits}f})")


def n_gpus():
    """As the driver says; 0 without one."""
    try:
        cuda, count = ctypes.CDLL(os.environ.get("GLAKE_LIBCUDA") or "libcuda.so.1"), ctypes.c_int()
    except OSError:
        return 0
    return count.value if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0


class Daemon:
    """A glaked of our own, started and told ready by its own notification; @keeper: under glake-keeper."""

    def __init__(self, config="", keeper=False):
        self.folder = tempfile.mkdtemp(prefix="glake-gpu-")
        self.socket = os.path.join(self.folder, "glaked.sock")
        config_path = os.path.join(self.folder, "glaked.conf")
        with open(config_path, "w", encoding="ascii") as file:
            # Files of models lie where the machine has room, an overlay or tmpfs it may be.
            file.write("trust_file_times = true;\n" + config)
        notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notify.bind(os.path.join(self.folder, "notify"))
        notify.settimeout(60)
        self.log = open(os.path.join(self.folder, "log"), "w+", encoding="utf-8")
        start = time.perf_counter()
        prefix = [os.path.join(ROOT, "bin", "glake-keeper"), "--"] if keeper else []
        self.process = subprocess.Popen(
            [*prefix, os.path.join(ROOT, "bin", "glaked"), "--config", config_path, "--socket",
             self.socket],
            stderr=self.log, env={**os.environ, "NOTIFY_SOCKET": os.path.join(self.folder,
                                                                             "notify")})
        while b"READY=1" not in notify.recv(4096):
            pass
        self.start_seconds = time.perf_counter() - start
        self.environment = {**os.environ, "GLAKE_SOCKET": self.socket,
                            "PYTHONPATH": PYTHON + ":" + os.environ.get("PYTHONPATH", "")}

    def ctl(self, *arguments):
        out = subprocess.run([os.path.join(ROOT, "bin", "glakectl"), "--json", *arguments],
                             env=self.environment, capture_output=True, text=True, check=False)
        if out.returncode != 0:
            print(out.stdout, out.stderr)
        return json.loads(out.stdout)

    def device(self):
        return self.ctl("status")["devices"][0]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=60)
        self.log.seek(0)
        text = self.log.read()
        expect(code == 0, f"glaked ended with {code}:\n{text[-3000:]}")
        return text


def script(daemon, name, *arguments, visible=None):
    environment = dict(daemon.environment if daemon else os.environ)
    if visible is not None:
        environment["CUDA_VISIBLE_DEVICES"] = str(visible)
    out = subprocess.run([sys.executable, os.path.join(HERE, name), *arguments], env=environment,
                         capture_output=True, text=True, check=False)
    lines = [line for line in out.stdout.splitlines() if line.startswith("{")]
    if not lines:
        print(out.stdout[-2000:], out.stderr[-3000:], flush=True)
        return None
    return json.loads(lines[-1])


def gpu_used_mib():
    out = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                         capture_output=True, text=True, check=True)
    return int(out.stdout.split()[0])


def bench_program(daemon, name, *arguments):
    for folder in ("tests/bench", "bin"):
        path = os.path.join(ROOT, folder, name)
        if os.path.exists(path):
            break
    else:
        failures.append(f"{name} is missing")
        return
    environment = {**os.environ, "GLAKED": os.path.join(ROOT, "bin", "glaked")}
    out = subprocess.run([path, *arguments], env=environment, capture_output=True, text=True,
                         check=False)
    print(out.stdout[-3000:], out.stderr[-2000:], flush=True)
    expect(out.returncode == 0, f"{name} ended with {out.returncode}")


def peers(base, runs):
    for loader in ("safetensors", "fastsafetensors", "runai"):
        results = [script(None, "load.py", loader, base) for _ in range(min(runs, 3))]
        results = [r for r in results if r]
        if results:
            row(f"{loader}: load", spread([r["gb_per_s"] for r in results]) + " GB/s")
        else:
            row(f"{loader}: load", "not available")


def first_loads(base, runs):
    """Into an empty store each time; the mover started by the load, and running already."""
    cold, warm, starts = [], [], []
    for i in range(4):
        daemon = Daemon("mover_idle_ms = 0;\n")
        starts.append(daemon.start_seconds * 1e3)
        result = script(daemon, "load.py", "glake", base)
        expect(result, "glake cannot load the base model")
        cold.append(result["gb_per_s"])
        if i < 3:
            daemon.stop()
    for i in range(runs):
        daemon.ctl("evict", "--all")
        result = script(daemon, "load.py", "glake", base, *(["--check"] if i == 0 else []))
        warm.append(result["gb_per_s"])
        if i == 0:
            expect(result["equal"], "tensors from glake differ from safetensors")
    row("glaked: start to READY", spread(starts, 0) + " ms", "<= 300 ms")
    row("glake: the very first load on this machine", f"{cold[0]:.2f} GB/s", ">= 40 GB/s")
    row("glake: first load, starting the mover", spread(cold[1:]) + " GB/s", ">= 40 GB/s")
    row("glake: first load, mover running", spread(warm) + " GB/s", ">= 40 GB/s")
    print(daemon.stop()[-6000:])


def sharing(base, tune, runs):
    before = gpu_used_mib()
    daemon = Daemon("mover_idle_ms = 2000;\n")
    row("glaked: GPU memory of its own", f"{gpu_used_mib() - before} MiB (pool and anchor)", "0 MiB")
    servers, remap = [], []
    copy = 0
    for i in range(4 + runs):
        server = subprocess.Popen([sys.executable, os.path.join(HERE, "server.py"), base],
                                  env=daemon.environment, stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, text=True)
        said = json.loads(server.stdout.readline())
        if i == 0:
            copy = said and os.path.getsize(base)
        else:
            remap.append(said["ms"])
        if i < 4:
            servers.append(server)
        else:
            server.stdin.close()
            server.wait()
    device = daemon.device()
    row("second process: request to all tensors mapped", spread(remap, 1) + " ms", "<= 15 ms")
    row("weights of 4 processes", f"{device['used_block_bytes'] / copy:.4f} x one copy",
        "<= 1.005 x")
    expect(device["logical_block_bytes"] == 4 * device["used_block_bytes"],
           "logical is not 4 x physical")
    tuned = script(daemon, "load.py", "glake", tune, "--check")
    expect(tuned and tuned["equal"], "the fine-tune's tensors differ")
    row("base and fine-tune together", f"{daemon.device()['block_bytes'] / copy:.4f} x one copy",
        "<= 1.105 x")
    servers[0].kill()
    servers[0].wait()
    for server in servers[1:]:
        server.stdin.close()
        server.wait()
    time.sleep(0.5)
    expect(daemon.device()["used_block_bytes"] == 0, "blocks are in use with no session left")
    time.sleep(3)
    physical = daemon.device()["physical_bytes"] >> 20
    row("device used less physical, idle", f"{gpu_used_mib() - before - physical} MiB")
    print(daemon.stop()[-4000:])


def llama(folder):
    daemon = Daemon()
    result = script(daemon, "llama.py", folder)
    expect(result and result["bit_identical"] and result["finite"], "llama logits differ")
    row("transformers Llama, logits", json.dumps(result), "bit-identical")
    result = script(daemon, "dtypes.py", folder)
    expect(result and not result["wrong"] and result["writer_faulted"] and result["reader_intact"],
           "element types differ, or a write went through")
    row("every element type of torch", json.dumps(result), "none wrong")
    daemon.stop()


def devices(base):
    """Every GPU has its own copy, and programs that see only one of them call it number 0."""
    daemon = Daemon()
    count = len(daemon.ctl("status")["devices"])
    for number in range(count):
        result = script(daemon, "load.py", "glake", base, "--check", visible=number)
        expect(result and result["equal"], f"tensors on device {number} differ")
    held = [device["block_bytes"] for device in daemon.ctl("status")["devices"]]
    expect(all(held) and len(set(held)) == 1, f"block bytes per device: {held}")
    row("devices, each with its copy, renumbered", count)
    daemon.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=os.path.join(tempfile.gettempdir(), "glake-models"))
    parser.add_argument("--out")
    parser.add_argument("--layers", default="32")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--skip", default="", help="comma list: llama,load,devices,sharing,bench,peers")
    options = parser.parse_args()
    skip = set(options.skip.split(","))
    base = os.path.join(options.models, "base.safetensors")
    tune = os.path.join(options.models, "tune.safetensors")
    if not os.path.exists(tune):
        start = time.perf_counter()
        subprocess.run([sys.executable, os.path.join(HERE, "models.py"), options.models,
                        "--layers", options.layers], check=True)
        print(f"# models written in {time.perf_counter() - start:.0f} s", flush=True)
    steps = [("llama", lambda: llama(options.models)), ("load", lambda: first_loads(base,
                                                                                    options.runs)),
             ("devices", lambda: devices(base)),
             ("sharing", lambda: sharing(base, tune, options.runs)),
             ("bench", lambda: [bench_program(None, "bench_digest"),
                                bench_program(None, "bench_alloc")]),
             ("peers", lambda: peers(base, options.runs))]
    for name, step in steps:
        if name in skip:
            continue
        try:
            step()
        except Exception as error:  # one step's failure must not hide the others' results
            failures.append(f"{name}: {error!r}")
            print(f"# FAILED: {name}: {error!r}", flush=True)
    width = max((len(name) for name, _, _ in rows), default=0)
    table = [f"{name:<{width}}  {value}" + (f"   [{target}]" if target else "")
             for name, value, target in rows]
    table += [f"FAILED: {what}" for what in failures]
    table.append("OK" if not failures else f"{len(failures)} FAILED")
    print("\n".join(["", *table]), flush=True)
    if options.out:
        os.makedirs(options.out, exist_ok=True)
        with open(os.path.join(options.out, "gpu-results.txt"), "w", encoding="utf-8") as file:
            file.write("\n".join(table) + "\n")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
