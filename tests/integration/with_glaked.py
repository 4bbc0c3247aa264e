# SPDX-License-Identifier: Apache-2.0
"""What tests of glakectl begin with: a glaked on simulated GPUs, and ways to ask it."""

import json
import os
import shutil
import struct
import subprocess
import tempfile
import time
import unittest

BUILD = os.environ.get("GLAKE_BUILD", "build")
MIB = 1024 * 1024


def write_model(path, seed, n_tensors=3, tensor_bytes=2 * MIB):
    header, data = {}, b""
    for i in range(n_tensors):
        header[f"t{i}"] = {"dtype": "U8", "shape": [tensor_bytes],
                           "data_offsets": [len(data), len(data) + tensor_bytes]}
        data += bytes([seed + i]) * tensor_bytes
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def start_glaked(test, folder, environment):
    """One without a configuration, at the socket that @environment names, until @test ends."""
    with open(os.path.join(folder, "log"), "w", encoding="utf-8") as log:
        daemon = subprocess.Popen([os.path.join(BUILD, "bin", "glaked"), "-s", environment["GLAKE_SOCKET"]],
                                  stdout=log, stderr=log, env=environment)
    test.addCleanup(daemon.wait)
    test.addCleanup(daemon.kill)
    deadline = time.monotonic() + 30
    while not os.path.exists(environment["GLAKE_SOCKET"]):
        test.assertLess(time.monotonic(), deadline)
        time.sleep(0.01)


class WithGlaked(unittest.TestCase):
    CONFIG = ""
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
            file.write(f'socket_path = "{self.socket}";\nmover_idle_ms = 500;\n{self.CONFIG}')
        self.log = open(os.path.join(self.folder, "log"), "w", encoding="utf-8")
        self.addCleanup(self.log.close)
        self.daemon = subprocess.Popen([*self.COMMAND, os.path.join(BUILD, "bin", "glaked"), "-c", self.config],
                                       stderr=self.log)
        self.addCleanup(self.stop_daemon)
        for _ in range(200):
            if self.ctl("status").returncode == 0:
                return
            time.sleep(0.05)
        self.fail("glaked did not start: " + open(self.log.name, encoding="utf-8").read())

    def stop_daemon(self):
        if self.daemon.poll() is None:
            self.daemon.terminate()
            self.assertEqual(self.daemon.wait(30), 0)

    def ctl(self, *words, uid=None):
        command = [os.path.join(BUILD, "bin", "glakectl"), "--socket", self.socket, *words]
        if uid is not None:
            command = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *command]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

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

    def serve(self, scenario="serve"):
        """A program that knows nothing of glake. It has loaded 2 MiB."""
        program = subprocess.Popen(
            [os.path.join(BUILD, "bin", "glake"), "run", "--socket", self.socket, "--",
             os.path.join(BUILD, "tests", "shim", "outside"), scenario],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(program.communicate)
        self.addCleanup(program.kill)
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

    def serve_metrics(self, address, *options):
        server = subprocess.Popen([os.path.join(BUILD, "bin", "glakectl"), "--socket", self.socket, "metrics",
                                   "--serve", address, *options], stderr=subprocess.PIPE, text=True)
        self.addCleanup(server.communicate)
        self.addCleanup(server.terminate)
        self.assertIn(f"serving {address}", server.stderr.readline())
        return server
