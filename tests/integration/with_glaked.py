# SPDX-License-Identifier: Apache-2.0
"""What tests begin with that need a glaked on simulated GPUs: it, ways to ask it, and programs that use it."""

import gc
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import unittest

BUILD = os.environ.get("GLAKE_BUILD", "build")
MIB = 1024 * 1024
PATIENCE_S = 200  # nothing that works takes so long, on a busy machine either


def write_model(path, seed, n_tensors=3, tensor_bytes=2 * MIB):
    header, data = {}, b""
    for i in range(n_tensors):
        header[f"t{i}"] = {"dtype": "U8", "shape": [tensor_bytes],
                           "data_offsets": [len(data), len(data) + tensor_bytes]}
        data += bytes([seed + i]) * tensor_bytes
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def until(is_so, otherwise=lambda: "it does not happen"):
    """Wait for it. Returns what it is then; fails with the words of @otherwise."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := is_so()):
        if time.monotonic() > deadline:
            raise AssertionError(otherwise())
        time.sleep(0.01)
    return value


def listens(path):
    """Whether somebody accepts connections there: a socket's file is there a moment before."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
        return caller.connect_ex(path) == 0


def take_all(session, n_bytes, device=0):
    """All that a device has, in pieces; what others give back late, on a busy machine, too."""
    import glake
    taken, n_refused = [], 0
    while n_refused < 3:
        try:
            taken.append(session.alloc(n_bytes, device))
            n_refused = 0
        except glake.OutOfMemoryError:
            n_refused += 1
    return taken


class Served(unittest.TestCase):
    """A glaked for programs that have the environment."""
    ENVIRONMENT, CONFIG = {}, ""

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        at = os.path.join(self.folder, "socket")
        self.environment = {**os.environ, "GLAKE_SOCKET": at, **self.ENVIRONMENT}
        config = os.path.join(self.folder, "glaked.conf")
        with open(config, "w", encoding="utf-8") as file:
            file.write(self.CONFIG)
        with open(os.path.join(self.folder, "log"), "w", encoding="utf-8") as log:
            daemon = subprocess.Popen([os.path.join(BUILD, "bin", "glaked"), "-c", config, "-s", at], stdout=log, stderr=log,
                                      env=self.environment)
        self.addCleanup(daemon.wait)
        self.addCleanup(daemon.kill)
        until(lambda: listens(at))


def started(test, command, **more):
    """A program that is told things by its stdin, and ends with the test."""
    program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **more)
    test.addCleanup(program.communicate)
    test.addCleanup(program.kill)
    return program


def tell(program, line):
    """Returns the line that it answers."""
    program.stdin.write(line + "\n")
    program.stdin.flush()
    return program.stdout.readline()


class WithSessions(unittest.TestCase):
    """A glaked of which this process has sessions."""
    CONFIG = ""

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        os.environ["GLAKE_SOCKET"] = self.path("socket")
        self.addCleanup(self.forget)
        self.start_daemon()

    def forget(self):
        import glake
        glake.session._default = None
        gc.collect()

    def path(self, name):
        return os.path.join(self.folder, name)

    def start_daemon(self, **environment):
        import glake
        with open(self.path("glaked.conf"), "w", encoding="utf-8") as file:
            file.write(self.CONFIG)
        with open(self.path("log"), "ab") as log:
            self.daemon = subprocess.Popen([os.path.join(BUILD, "bin", "glaked"), "-c", self.path("glaked.conf")],
                                           env={**os.environ, **environment}, stdout=log, stderr=log)
        self.addCleanup(self.stop_daemon, self.daemon)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                glake.connect(cuda=False).close()
                return
            except glake.GoneError:
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.01)

    @staticmethod
    def stop_daemon(daemon):
        daemon.kill()
        daemon.wait()

    until = staticmethod(until)


class WithGlaked(unittest.TestCase):
    CONFIG = ""
    MOVER_IDLE_MS = 500
    COMMAND = ()  # that starts glaked

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        os.chmod(self.folder, 0o755)
        self.socket = os.path.join(self.folder, "glaked.sock")
        self.config = os.path.join(self.folder, "glaked.conf")
        self.start_daemon()

    def start_daemon(self):
        with open(self.config, "w", encoding="utf-8") as file:
            file.write(f'socket_path = "{self.socket}";\nmover_idle_ms = {self.MOVER_IDLE_MS};\n{self.CONFIG}')
        self.log = open(os.path.join(self.folder, "log"), "w", encoding="utf-8")
        self.addCleanup(self.log.close)
        self.daemon = subprocess.Popen([*self.COMMAND, os.path.join(BUILD, "bin", "glaked"), "-c", self.config],
                                       stderr=self.log)
        self.addCleanup(self.stop_daemon)
        until(lambda: self.ctl("status").returncode == 0,
              lambda: "glaked did not start: " + open(self.log.name, encoding="utf-8").read())

    def stop_daemon(self):
        if self.daemon.poll() is None:
            self.daemon.terminate()
            self.assertEqual(self.daemon.wait(PATIENCE_S), 0)

    def kill_and_start_daemon(self):
        self.daemon.kill()
        self.daemon.wait()
        self.start_daemon()

    def ctl(self, *words, uid=None):
        command = [os.path.join(BUILD, "bin", "glakectl"), "--socket", self.socket, *words]
        if uid is not None:
            command = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *command]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)

    def ask(self, *words):
        done = self.ctl("--json", *words)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        return json.loads(done.stdout)

    def refused(self, code, name, *words, uid=None):
        done = self.ctl("--json", *words, uid=uid)
        error = json.loads(done.stdout)["error"]
        self.assertEqual((done.returncode, error["name"]), (code, name), error)
        text = self.ctl(*words, uid=uid)
        self.assertEqual((text.returncode, text.stdout), (code, ""))
        self.assertRegex(text.stderr, r"(?m)^glakectl: .+$")
        return error["text"]

    def model(self, name, **more):
        path = os.path.join(self.folder, name)
        write_model(path, **more)
        return path

    def serve(self, scenario="serve", **more):
        """A program that knows nothing of glake. It has loaded 2 MiB."""
        program = started(self, [os.path.join(BUILD, "bin", "glake"), "run", "--socket", self.socket, "--",
                                 os.path.join(BUILD, "tests", "shim", "outside"), scenario], **more)
        self.assertEqual(program.stdout.readline(), "ready\n")
        return program

    def cgroup(self, path):
        """Makes a real one, where the unified hierarchy can be had. Returns a function that enters it."""
        top = tempfile.mkdtemp()
        if subprocess.run(["mount", "-t", "cgroup2", "none", top], capture_output=True, check=False).returncode:
            os.rmdir(top)
            self.skipTest("cgroups cannot be made here")
        self.addCleanup(os.rmdir, top)
        self.addCleanup(subprocess.run, ["umount", top], check=True)
        at = top
        for name in path.strip("/").split("/"):
            at = os.path.join(at, name)
            os.mkdir(at)
            self.addCleanup(os.rmdir, at)

        def enter():
            with open(os.path.join(at, "cgroup.procs"), "w", encoding="utf-8") as file:
                file.write("0")
        return enter

    def free_port(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            return taken.getsockname()[1]

    def serve_metrics(self, address, *options):
        server = subprocess.Popen([os.path.join(BUILD, "bin", "glakectl"), "--socket", self.socket, "metrics",
                                   "--serve", address, *options], stderr=subprocess.PIPE, text=True)
        self.addCleanup(server.communicate)
        self.addCleanup(server.terminate)
        self.assertIn(f"serving {address}", server.stderr.readline())
        return server
