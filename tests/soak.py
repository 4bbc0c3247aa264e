# SPDX-License-Identifier: Apache-2.0
"""glaked below glake-keeper for an hour: programs at random, and everything that can die dies.

    python3 tests/soak.py [--seconds 3600] [--seed N] [--clients 6] [--bin FOLDER] [--scale N]

Half of the clients use the library; half are programs under `glake run`, in turn with and without --alloc=stitch.
Each allocates, opens models of files, seals, unseals, publishes and attaches at random, and compares every byte
that it has. Meanwhile clients, glake-mover and glaked are killed, glaked is restarted and crashes, the configuration
is read again, the quota changes, and models are pinned and evicted.

Every 20 seconds all stop for a moment, and the sums have to be right: what glaked says is made is what the driver
says is used (on the simulator), what sessions and tenants have adds up to it, every session is a client's, and fds
are those of the sums. In the end all is given back. Exit 1 when a byte, a sum or an end is wrong; no time decides.

GLAKE_LIBCUDA: the driver; empty: the system's. Without it the simulator of the build folder, GLAKE_BUILD.
"""
import argparse
import collections
import contextlib
import ctypes
import errno
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

TREE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# What `make dist` has packed has another layout.
IS_PACKED = os.path.exists(os.path.join(TREE, "bin/glaked"))
sys.path.insert(0, os.path.join(TREE, "python" if IS_PACKED else "libclient/python"))
MIB = 1 << 20
PATIENCE_SECONDS = 300  # only a hang takes so long
CHECK_SECONDS = 20
OWN_FDS = 40  # of glaked and glake-keeper: the driver, logs, pipes, the mover's socket
N_MODELS, N_CONTENTS, N_KEYS = 6, 8, 4
SOCKET_ERRORS = (-4000, -4014)  # there is no glaked at the moment
# Quotas, full devices, what is in use or not there, and a mover that was killed.
REFUSALS = (*SOCKET_ERRORS, -4004, -4006, -4007, -4008, -4009, -4013, -4015)


def content(seed, n_bytes):
    """Bytes that are cheap to make, and say where they belong."""
    page = hashlib.sha512(str(seed).encode()).digest() * 64
    out = bytearray(page * (n_bytes // len(page) + 1))
    for at in range(0, n_bytes, 256 << 10):
        out[at:at + 8] = struct.pack("<Q", at)
    return bytes(out[:n_bytes])


def model_tensors(number, scale):
    """Name to (seed, bytes). Models have tensors in common."""
    return {f"t{i}": (f"tensor {(number + i) % (N_MODELS + 2)}", (2 + 2 * i) * MIB * scale)
            for i in range(3)}


def write_model(path, number, scale):
    header, data = {}, b""
    for name, (seed, n_bytes) in model_tensors(number, scale).items():
        header[name] = {"dtype": "U8", "shape": [n_bytes],
                        "data_offsets": [len(data), len(data) + n_bytes]}
        data += content(seed, n_bytes)
    text = json.dumps(header).encode()
    with open(path + ".new", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
    os.rename(path + ".new", path)


class Driver:
    """The few calls that are needed."""

    def __init__(self):
        self.lib = ctypes.CDLL(os.environ.get("SOAK_LIBCUDA") or os.environ.get("GLAKE_LIBCUDA")
                               or "libcuda.so.1")
        context = ctypes.c_void_p()
        self("cuInit", 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        return getattr(self.lib, name)(*arguments)

    def __call__(self, name, *arguments):
        result = self.call(name, *arguments)
        if result != 0:
            raise RuntimeError(f"{name}: {result}")

    def write(self, ptr, data):
        self("cuMemcpyHtoD_v2", ctypes.c_uint64(ptr), data, ctypes.c_size_t(len(data)))

    def read(self, ptr, n_bytes):
        out = ctypes.create_string_buffer(n_bytes)
        self("cuMemcpyDtoH_v2", out, ctypes.c_uint64(ptr), ctypes.c_size_t(n_bytes))
        return out.raw

    def used_bytes(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return total.value - free.value


# ---- a client ---------------------------------------------------------------------------------------------------


class Refused(Exception):
    """The driver's out of memory."""


class Client:
    """What it has, and what the bytes of that have to be."""

    def __init__(self, kind, folder, seed, scale):
        import glake
        import glake.errors
        self.glake, self.folder, self.scale = glake, folder, scale
        self.is_shimmed = kind != "library"
        self.random = random.Random(seed)
        self.cuda = Driver()
        self.session = glake.connect(program=f"soak {kind}")
        self.stream = ctypes.c_void_p()
        self.cuda("cuStreamCreate", ctypes.byref(self.stream), 1)
        self.live = []  # [ptr, bytes, seed, is_sealed, was_sealed]
        self.models = []  # (model, {name: seed})
        self.counts = collections.Counter()
        self.n_made = 0

    def wrong(self, what):
        raise AssertionError(f"{what} has other bytes than it had")

    # ---- memory ----

    def get(self, n_bytes):
        if not self.is_shimmed:
            return self.session.alloc(n_bytes)
        ptr, in_order = ctypes.c_uint64(), self.random.random() < 0.5
        if in_order:
            result = self.cuda.call("cuMemAllocAsync", ctypes.byref(ptr), ctypes.c_size_t(n_bytes), self.stream)
            self.cuda("cuStreamSynchronize", self.stream)
        else:
            result = self.cuda.call("cuMemAlloc_v2", ctypes.byref(ptr), ctypes.c_size_t(n_bytes))
        if result == 2:
            raise Refused
        if result != 0:
            raise RuntimeError(f"an allocation of {n_bytes} bytes: {result}")
        return ptr.value

    def put(self, ptr):
        if not self.is_shimmed:
            self.session.free(ptr)
        elif self.random.random() < 0.5:
            self.cuda("cuMemFreeAsync", ctypes.c_uint64(ptr), self.stream)
        else:
            self.cuda("cuMemFree_v2", ctypes.c_uint64(ptr))

    def compare(self, row):
        ptr, n_bytes, seed = row[:3]
        if self.cuda.read(ptr, n_bytes) != content(seed, n_bytes):
            self.wrong(f"memory at {ptr:#x} ({row})")

    def add(self, n_bytes, seed):
        ptr = self.get(n_bytes)
        row = [ptr, n_bytes, seed, False, False]
        self.live.append(row)
        self.cuda.write(ptr, content(seed, n_bytes))
        return row

    def alloc(self):
        if len(self.live) > 12:
            self.free()
        self.n_made += 1
        kind = self.random.random()
        if kind < 0.2:
            n_bytes = self.random.randrange(1, 1 << 20)
        elif kind < 0.9:
            n_bytes = self.random.randrange(1, 8 * self.scale) * MIB
        else:
            n_bytes = self.random.randrange(8, 24) * MIB * self.scale
        self.add(n_bytes, f"{os.getpid()} {self.n_made}")

    def free(self):
        if self.live:
            row = self.live.pop(self.random.randrange(len(self.live)))
            self.compare(row)
            self.put(row[0])

    def look(self):
        for row in self.random.sample(self.live, min(3, len(self.live))):
            self.compare(row)

    # ---- sharing ----

    def common(self):
        """What other clients have as well."""
        number = self.random.randrange(N_CONTENTS)
        return f"common {number}", (2 + 2 * (number % 3)) * MIB * self.scale

    def seal(self):
        seed, n_bytes = self.common()
        row = self.add(n_bytes, seed)
        row[3] = True  # in part, after an error
        self.counts["sealed MiB"] += self.glake.seal([(row[0], n_bytes)]).sealed_bytes // MIB
        self.compare(row)

    def unseal(self):
        for row in [row for row in self.live if row[3]][:1]:
            self.glake.unseal(row[0], row[1])
            row[3], row[4] = False, True
            self.compare(row)
            self.n_made += 1
            row[2] = f"{os.getpid()} {self.n_made}"
            self.cuda.write(row[0], content(row[2], row[1]))
            self.compare(row)

    def publish(self):
        seed, n_bytes = self.common()
        row = self.add(n_bytes, seed)
        row[3] = True
        self.glake.publish(f"key {self.random.randrange(N_KEYS)}",
                           {seed: self.glake.Weight(row[0], "U8", (n_bytes,))}, session=self.session)

    def attach(self):
        model = self.glake.Model.attach(f"key {self.random.randrange(N_KEYS)}", session=self.session)
        self.keep(model, {name: name for name in model})

    def open(self):
        number = self.random.randrange(N_MODELS)
        model = self.glake.Model(f"{self.folder}/model{number}.safetensors", session=self.session)
        self.keep(model, {name: seed for name, (seed, _) in model_tensors(number, self.scale).items()})

    def keep(self, model, seeds):
        self.models.append((model, seeds))
        self.compare_model(self.models[-1])
        if len(self.models) > 3:
            self.close()

    def compare_model(self, row):
        model, seeds = row
        if set(model) != set(seeds):
            raise AssertionError(f"{model.name} has {list(model)}, not {list(seeds)}")
        name = self.random.choice(list(seeds))
        if model[name].tobytes() != content(seeds[name], model[name].nbytes):
            self.wrong(f"{name} of {model.name}")

    def close(self):
        if self.models:
            row = self.models.pop(self.random.randrange(len(self.models)))
            self.compare_model(row)
            row[0].close()

    # ---- the whole ----

    def step(self):
        weights = {"alloc": 6, "free": 5, "look": 2, "seal": 2, "unseal": 1, "publish": 0.5, "attach": 1,
                   "open": 1.5, "close": 1}
        what, = self.random.choices(list(weights), weights.values())
        try:
            getattr(self, what)()
            self.counts[what] += 1
        except Refused:
            self.counts["refused by the driver"] += 1
        except self.glake.Error as error:
            # What seal() and publish() find sealed already, or made by an earlier glaked.
            if error.code not in REFUSALS and not (error.code == -4003 and what in ("seal", "publish")):
                raise
            why = re.sub("[0-9]+", "N", error.text) if error.code == -4003 else error.code
            self.counts[f"{what}: {why}"] += 1
            if error.code in SOCKET_ERRORS:
                time.sleep(0.05)
        except OSError as error:
            # When glaked ends again while an allocation waits for the next one, the shim asks the driver.
            if error.errno != errno.EINVAL or not self.is_shimmed or what != "seal":
                raise
            self.counts["seal: memory of the driver"] += 1

    def stop(self):
        """All sessions of the process have found the present glaked, and every byte is right."""
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                self.session.ping()
                self.put(self.get(MIB))
                break
            except Refused:
                break
            except self.glake.Error as error:
                if error.code not in SOCKET_ERRORS:
                    break
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)
        self.compare_all()

    def compare_all(self):
        for row in self.live:
            self.compare(row)
        for row in self.models:
            self.compare_model(row)

    def end(self):
        self.compare_all()
        while self.models:
            self.close()
        while self.live:
            self.free()
        self.cuda("cuStreamSynchronize", self.stream)
        self.session.close()


def play(kind, folder, seed, scale):
    """Until stdin ends. Between "stop" and "go" it does nothing."""
    lines = collections.deque()

    def read_lines():
        for line in sys.stdin:
            lines.append(line.strip())
        lines.append("end")

    client = Client(kind, folder, seed, scale)
    threading.Thread(target=read_lines, daemon=True).start()
    print(json.dumps("begun"), flush=True)
    while True:
        if not lines:
            client.step()
            continue
        line = lines.popleft()
        if line == "go":
            continue
        if line == "end":
            client.end()
        else:
            client.stop()
        # Without a glaked, the copies of unseal() are memory of the driver.
        client.counts["copies"] = sum(row[1] for row in client.live if row[4])
        client.counts["live"] = sum(row[1] for row in client.live)
        print(json.dumps(client.counts), flush=True)
        client.counts.clear()
        if line == "end":
            os._exit(0)
        while not lines:
            time.sleep(0.01)


# ---- the one who kills ----------------------------------------------------------------------------------------------


class Failure(Exception):
    pass


class Child:
    def __init__(self, soak, number):
        kind = ("library", "shim", "library", "stitch")[number % 4]
        self.number, self.kind = number, kind
        seed = soak.random.randrange(1 << 30)
        prefix = []
        if kind != "library":
            prefix = [soak.bin + "/glake", "run", "--socket", soak.socket]
            prefix += ["--alloc=stitch"] if kind == "stitch" else []
            prefix += ["--"]
        self.log = open(f"{soak.folder}/client{number}.log", "a+", encoding="utf-8", errors="replace")
        self.process = subprocess.Popen(
            [*prefix, sys.executable, os.path.abspath(__file__), "--play", kind, "--folder", soak.folder, "--seed",
             str(seed), "--scale", str(soak.scale)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
            env=soak.environment(kind != "library"))
        self.hear()

    @property
    def pid(self):
        return self.process.pid

    def tell(self, line):
        with contextlib.suppress(OSError):
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def hear(self):
        watchdog = threading.Timer(PATIENCE_SECONDS, self.process.kill)
        watchdog.start()
        line = self.process.stdout.readline()
        watchdog.cancel()
        if not line:
            status = self.process.wait()
            self.log.seek(0)
            raise Failure(f"client {self.number} ({self.kind}) ended with {status}:\n{self.log.read()[-3000:]}")
        return json.loads(line)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        self.log.close()

    def end(self):
        self.tell("end")
        counts = self.hear()
        del counts["copies"], counts["live"]
        if self.process.wait(PATIENCE_SECONDS) != 0:
            raise Failure(f"client {self.number} ended with {self.process.returncode}")
        self.process.stdin.close()
        self.process.stdout.close()
        self.log.close()
        return counts


def n_fds(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def rss_mib(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() // MIB


class Soak:
    def __init__(self, options):
        self.build = os.path.abspath(os.environ.get("GLAKE_BUILD", TREE if IS_PACKED else os.path.join(TREE, "build")))
        self.bin = os.path.join(self.build, "bin")
        self.daemons = os.path.abspath(options.bin or self.bin)
        self.scale = options.scale
        self.random = random.Random(options.seed)
        self.folder = tempfile.mkdtemp(prefix="soak.", dir=options.folder)
        self.socket = self.folder + "/glaked.sock"
        self.libcuda = os.environ.get("GLAKE_LIBCUDA", self.build + "/cudasim/libcuda.so.1")
        self.is_simulated = "cudasim" in self.libcuda
        self.counts, self.done = collections.Counter(), collections.Counter()
        self.most = collections.Counter()
        if self.libcuda:
            os.environ["GLAKE_LIBCUDA"] = self.libcuda
        else:
            os.environ.pop("GLAKE_LIBCUDA", None)
        os.environ["GLAKE_SOCKET"] = self.socket
        if self.is_simulated:
            os.environ.update(CUDASIM_DEVICES="1x512MiB", CUDASIM_STATE=f"/dev/shm/soak{os.getpid()}")
        os.environ.setdefault("GLAKE_CLIENT_LIB", self.build + "/lib/libglake-client.so")
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for number in range(N_MODELS):
            write_model(f"{self.folder}/model{number}.safetensors", number, self.scale)
        self.config = self.folder + "/glaked.conf"
        with open(self.config, "w", encoding="ascii") as file:
            # Files may lie on an overlay or tmpfs.
            file.write('trust_file_times = true;\nmover_idle_ms = 2000;\nload_window_bytes = "128MiB";\n'
                       'tenants = ( { name = "default"; device_bytes = "%dMiB"; } );\n' % (384 * self.scale))
        self.log = open(self.folder + "/log", "a+", encoding="utf-8", errors="replace")
        self.keeper = subprocess.Popen(
            [self.daemons + "/glake-keeper", "--", self.daemons + "/glaked", "--config", self.config, "--socket",
             self.socket], stderr=self.log,
            # A SIGSEGV of ours is no bug.
            env={**os.environ, "GLAKE_SHIM": "off", "ASAN_OPTIONS": "handle_segv=0:allocator_may_return_null=1"})
        import glake
        self.glake = glake
        self.cuda = Driver()
        self.wait(lambda: os.path.exists(self.socket), "glaked does not begin")
        self.eye = glake.connect(cuda=False, program="soak")
        self.first_rss = self.rss()
        self.clients = [Child(self, number) for number in range(options.clients)]

    def environment(self, is_shimmed):
        more = {}
        if is_shimmed:
            # The program finds the driver by its name, as any does.
            more["SOAK_LIBCUDA"] = "libcuda.so.1"
            if self.is_simulated:
                more["LD_LIBRARY_PATH"] = self.build + "/cudasim"
        return {**os.environ, **more}

    def wait(self, condition, otherwise):
        """For what has to be true soon."""
        end = time.monotonic() + PATIENCE_SECONDS
        said = time.monotonic() + 10
        while not condition():
            if time.monotonic() > said:
                print("waiting:", otherwise() if callable(otherwise) else otherwise, flush=True)
                said += 30
            if self.keeper.poll() is not None:
                raise Failure(f"glake-keeper ended with {self.keeper.returncode}")
            if time.monotonic() > end:
                raise Failure(otherwise() if callable(otherwise) else otherwise)
            time.sleep(0.05)

    def ask(self, what, *arguments):
        """Of a glaked that may be away for a moment."""
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return getattr(self.glake, what)(*arguments, session=self.eye)
            except self.glake.GoneError:
                if time.monotonic() > end or self.keeper.poll() is not None:
                    raise Failure("glaked does not come back") from None
                time.sleep(0.02)

    def status(self):
        return self.ask("status")

    def rss(self):
        return {"glaked": rss_mib(self.status()["pid"]), "glake-keeper": rss_mib(self.keeper.pid)}

    # ---- what happens ----

    def kill_client(self):
        number = self.random.randrange(len(self.clients))
        self.clients[number].kill()
        self.clients[number] = Child(self, number)

    def signal_glaked(self, number):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.status()["pid"], number)

    def kill_glaked(self):
        self.signal_glaked(signal.SIGKILL)

    def crash_glaked(self):
        self.signal_glaked(signal.SIGSEGV)

    def terminate_glaked(self):
        self.signal_glaked(signal.SIGTERM)

    def restart_glaked(self):
        self.keeper.send_signal(signal.SIGUSR2)

    def reload(self):
        self.signal_glaked(signal.SIGHUP)

    def kill_mover(self):
        words = self.status()["mover"].split()
        if words[0] == "running":
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(words[1]), signal.SIGKILL)

    def try_to(self, what, *arguments):
        """A refusal is an answer, too."""
        try:
            self.ask(what, *arguments)
        except self.glake.Error as error:
            self.counts[f"{what}: {error.code}"] += 1

    def change_quota(self):
        self.try_to("set_quota", "default", 0, self.random.choice((0, 128, 256, 384)) * MIB * self.scale)

    def evict(self):
        self.try_to("evict")

    def pin(self):
        rows = self.ask("models")
        if rows:
            row = self.random.choice(rows)
            self.try_to("unpin" if row["pinned"] else "pin", str(row["id"]))

    def happen(self):
        weights = {"kill_client": 4, "kill_glaked": 1.5, "crash_glaked": 0.5, "terminate_glaked": 0.5,
                   "restart_glaked": 0.5, "reload": 0.5, "kill_mover": 1, "change_quota": 2, "evict": 2, "pin": 2}
        what, = self.random.choices(list(weights), weights.values())
        getattr(self, what)()
        self.done[what] += 1

    # ---- what has to be true ----

    def why_not_level(self, of_driver, is_end):
        """One thing that is not as it has to be; None: all is. Others may move on between two questions."""
        status, sessions, tenants = self.status(), self.ask("sessions"), self.ask("tenants")
        device = status["devices"][0]
        physical = device["physical_bytes"]
        private = sum(row["reserved_bytes"] for row in sessions)
        used = sum(row["devices"][0]["used_bytes"] for row in tenants)
        fds = sum(row["n_fds"] for row in tenants)
        pids = sorted({row["pid"] for row in sessions})  # the shim's session is another one
        wanted = sorted([os.getpid(), *(client.pid for client in self.clients)])
        glaked_fds, keeper_fds = n_fds(status["pid"]), n_fds(self.keeper.pid)
        self.most["fds of glaked"] = max(self.most["fds of glaked"], glaked_fds)
        self.most["fds of glake-keeper"] = max(self.most["fds of glake-keeper"], keeper_fds)
        self.most["MiB"] = max(self.most["MiB"], physical // MIB)
        checks = [
            ("made", physical, device["private_bytes"] + device["block_bytes"] + device["pool_bytes"] + device["kept_bytes"]),
            ("private of sessions", private, device["private_bytes"]),
            # glaked has a page of its own.
            ("charged to tenants", used, physical - 2 * MIB),
            ("fds of tenants", fds, status["fds_used"]),
            ("processes", pids, wanted),
            ("detached", [row["pid"] for row in sessions if row["detached"]], []),
        ]
        if self.is_simulated:
            used = self.cuda.used_bytes()
            checks.append(("used of the driver", max(used - of_driver, min(used, physical)), physical))
        if is_end:
            checks += [("private", device["private_bytes"], 0), ("blocks", status["n_blocks"], 0),
                       ("models", status["n_models"], 0)]
        for name, have, want in checks:
            if have != want:
                return f"{name}: {have}, not {want}"
        # Chunks and connections have one each.
        if glaked_fds > OWN_FDS + status["fds_used"] + len(sessions):
            return f"glaked has {glaked_fds} fds for {status['fds_used']} and {len(sessions)} sessions"
        if keeper_fds > OWN_FDS + status["n_blocks"]:
            return f"glake-keeper has {keeper_fds} fds for {status['n_blocks']} blocks"
        return None

    def check(self, of_driver=0, is_end=False):
        why = []

        def is_level():
            why[:] = [self.why_not_level(of_driver, is_end)]
            return why[0] is None

        try:
            self.wait(is_level, lambda: f"the sums are wrong: {why[0]}")
        except FileNotFoundError:
            return self.check(of_driver, is_end)  # that glaked has just ended
        self.read_log()

    def read_log(self):
        self.log.seek(0)
        text = self.log.read()
        found = re.search(r".*(Assertion|AddressSanitizer|LeakSanitizer|runtime error|is damaged|not adopted|"
                          r"nothing is adopted|cannot start|is lost).*", text)
        if found:
            raise Failure(f"glaked's log: {text[max(0, found.start() - 500):found.end() + 3000]}")

    def stop_and_check(self):
        for client in self.clients:
            client.tell("stop")
        answers = {client.pid: client.hear() for client in self.clients}
        passed = {row["pid"] for row in self.ask("sessions") if row["n_passed"] > 0}
        of_driver = 0  # at most
        for pid, counts in answers.items():
            copies, live = counts.pop("copies"), counts.pop("live")
            of_driver += live if pid in passed else copies
            self.counts.update(counts)
        self.check(of_driver)
        for client in self.clients:
            client.tell("go")

    def run(self, seconds):
        begin = time.monotonic()
        next_check, next_line = begin + CHECK_SECONDS, begin + 60
        while time.monotonic() < begin + seconds:
            time.sleep(self.random.random())
            self.happen()
            for client in self.clients:
                if client.process.poll() is not None:
                    client.hear()
            if time.monotonic() > next_check:
                self.stop_and_check()
                self.done["checks"] += 1
                next_check = time.monotonic() + CHECK_SECONDS
            if time.monotonic() > next_line:
                print(f"{time.monotonic() - begin:.0f} s: {dict(self.done)}", flush=True)
                next_line += 60
        self.finish()

    def finish(self):
        self.try_to("set_quota", "default", 0, 0)
        for client in self.clients:
            self.counts.update(client.end())
        self.clients = []
        for row in self.ask("models"):
            if row["pinned"]:
                self.ask("unpin", str(row["id"]))

        def is_empty():
            self.try_to("evict")
            return self.status()["n_blocks"] == 0

        self.wait(is_empty, "blocks stay")
        self.check(is_end=True)
        last_rss = self.rss()
        self.eye.close()
        self.keeper.terminate()
        if self.keeper.wait(PATIENCE_SECONDS) != 0:
            raise Failure(f"glake-keeper ended with {self.keeper.returncode}")
        self.read_log()
        if self.is_simulated and self.cuda.used_bytes():
            raise Failure(f"{self.cuda.used_bytes()} bytes are left on the device")
        print(f"done to them:  {dict(self.done)}")
        print(f"clients did:   {dict(sorted(self.counts.items()))}")
        print(f"most:          {dict(self.most)}; RSS in MiB: {self.first_rss}, in the end {last_rss}")

    def clean(self, is_good):
        for client in getattr(self, "clients", []):
            if client.process.poll() is None:
                client.kill()
        self.keeper.kill()
        self.keeper.wait()
        if is_good:
            shutil.rmtree(self.folder)
        with contextlib.suppress(OSError, KeyError):
            os.unlink(os.environ["CUDASIM_STATE"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--bin", help="the folder of other daemons, for example with a sanitizer")
    parser.add_argument("--scale", type=int, default=1, help="how much larger everything is")
    parser.add_argument("--folder", help="where to put a folder with models and logs")
    parser.add_argument("--play", help="internal: be a client")
    options = parser.parse_args()
    if options.play:
        play(options.play, options.folder, options.seed, options.scale)
    print(f"soak: {options.seconds:.0f} s, --seed {options.seed}", flush=True)
    soak, is_good = Soak(options), False
    try:
        soak.run(options.seconds)
        is_good = True
    except Failure as failure:
        print(f"{dict(soak.done)}\nFAILED: {failure}\nlogs: {soak.folder}")
    finally:
        soak.clean(is_good)
    print("soak: OK" if is_good else "soak: FAILED")
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
