# SPDX-License-Identifier: Apache-2.0
"""`glakectl top` on a terminal, as its user sees it."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import unittest
import unittest.mock

from tests.integration.terminal import Terminal
from tests.integration.with_glaked import BUILD, WithGlaked, started, until

GLAKECTL = os.path.join(BUILD, "bin", "glakectl")


class TopOfTwoGpus(WithGlaked):
    def setUp(self):
        with unittest.mock.patch.dict(os.environ, {"CUDASIM_DEVICES": "2x2GiB"}):
            super().setUp()

    def test_live_is_that_of_the_gpu(self):
        program = started(
            self, [sys.executable, "-c", "import glake, sys\ns = glake.Session(sys.argv[1], program='both')\n"
                   "s.alloc(64 << 20, 0)\ns.alloc(32 << 20, 1)\nprint(flush=True)\nsys.stdin.read()", self.socket],
            env={**os.environ, "CUDASIM_DEVICES": "2x2GiB"})
        program.stdout.readline()

        def rows():
            found = re.findall(r"(?m)^ *([01]) +\d+ +\S+ +(\S+ MiB) +(\S+ MiB) +(\S+) %.* both$", self.ctl("top", "--once").stdout)
            return found if len(found) == 2 else None

        self.assertEqual(sorted(until(rows)),
                         [("0", "64.0 MiB", "64.0 MiB", "100.0"), ("1", "32.0 MiB", "32.0 MiB", "100.0")])


class Top(WithGlaked):
    def top(self, *words, **more):
        terminal = Terminal(self.folder, [GLAKECTL, "--socket", self.socket, "top", *words], **more)
        self.addCleanup(terminal.close)
        return terminal

    def test_it_is_steered_by_keys(self):
        self.ask("load", self.model("m.safetensors", seed=1))
        program = self.serve()
        top = self.top()
        top.wait_for(rf"sessions by reserved, 1 of 1 [\s\S]*\nGPU +PID +USER +RESERVED[\s\S]*\n +0 +{program.pid} ")
        self.assertTrue(top.is_other)
        self.assertFalse(termios.tcgetattr(top.fd)[3] & (termios.ICANON | termios.ECHO))
        top.type("s")
        top.wait_for("sessions by live, 1 of 1 ")
        # Both ways round, and to the last one.
        pids = sorted((program.pid, self.serve().pid))
        top.type("ssss")
        rows = r"[\s\S]*\nGPU +PID [^\n]*\n +0 +(\d+) [^\n]*\n +0 +(\d+) "
        found = top.wait_for("sessions by pid, 1 of 2 " + rows)
        self.assertEqual([int(pid) for pid in found.groups()], pids[::-1])
        top.type("r")
        found = top.wait_for("sessions by pid up, 1 of 2 " + rows)
        self.assertEqual([int(pid) for pid in found.groups()], pids)
        top.type("\033[B")
        top.wait_for("sessions by pid up, 2 of 2 ")
        top.type("\033[H")
        top.wait_for("sessions by pid up, 1 of 2 ")
        top.type("m")
        top.wait_for(r"models by span[\s\S]*m.safetensors")
        top.type("\033[Bm")
        top.wait_for(r"tenants by used[\s\S]*default")
        self.stop_daemon()
        top.wait_for("the daemon is not there; trying again")
        self.start_daemon()
        top.wait_for("tenants by used.*q quit")
        # A glaked that is stopped holds up no key.
        self.daemon.send_signal(signal.SIGSTOP)
        self.addCleanup(self.daemon.send_signal, signal.SIGCONT)
        top.wait_for("glaked does not answer; trying again")
        top.type("m")
        top.wait_for("sessions by pid")
        top.type("q")
        self.assertEqual(top.end(), 0)
        self.assertFalse(top.is_other)
        self.assertEqual(termios.tcgetattr(top.fd)[3], top.before[3])

    def test_a_filter_and_a_gpu(self):
        pids = [self.serve().pid, self.serve().pid]
        os.environ["GLAKE_NAME"] = "Käse \\ \u202e"
        self.addCleanup(os.environ.pop, "GLAKE_NAME")
        third = self.serve().pid
        top = self.top(columns=120)
        top.wait_for("sessions by reserved, 1 of 3 ")
        top.type("/kÄ")
        # Its case does not matter where the locale's does not: only of ASCII.
        top.wait_for(r"with 'kÄ_'")
        top.type("\x7fä")
        top.wait_for(rf"1 of 1 .*with 'kä_'[\s\S]*\n +0 +{third} .*Käse \\x5c ")
        top.type("\r")
        top.wait_for(r"with 'kä'  q quit")
        top.type("/\x7f\x7f" + str(pids[0]) + "\r")
        top.wait_for(rf"1 of 1 .*with '{pids[0]}'  q quit[\s\S]*\n +0 +{pids[0]} ")
        top.type("/\033")
        top.wait_for("1 of 3   q quit")
        top.type("g")
        top.wait_for("1 of 3  on GPU 0")
        top.type("g")
        top.wait_for("1 of 3   q quit")
        top.type("/nobody has it")
        top.wait_for("0 of 0 ")
        # Ctrl-C ends it even so.
        top.type("\003")
        self.assertEqual(top.end(), 0)

    def test_colours_and_none(self):
        self.serve()
        for env, has_colours in ((None, True), ({"NO_COLOR": "1"}, False)):
            top = self.top(env=env)
            top.wait_for("sessions by reserved, 1 of 1 ")
            top.type("q")
            self.assertEqual(top.end(), 0)
            self.assertEqual(bool(re.search(r"\x1b\[3\dm", top.raw)), has_colours, env)

    def test_a_narrow_screen_and_a_new_size(self):
        program = self.serve()
        top = self.top(rows=12, columns=40)
        top.wait_for(rf"\nGPU +PID +USER +RESERVED +PROGRAM\n +0 +{program.pid} .*outside")
        self.assertIn("sessions by reserved, 1 of 1   q quit", top.text())
        top.resize(24, 130)
        top.wait_for(rf"TENANT +PROGRAM\n +0 +{program.pid} .*outside")
        top.resize(3, 10)
        top.wait_for("sessions")
        top.resize(24, 80)
        top.wait_for(r"PROGRAM\n")
        os.kill(top.pid, signal.SIGTERM)
        self.assertEqual(top.end(), 0)
        self.assertEqual(termios.tcgetattr(top.fd)[3], top.before[3])

    def test_terminals_that_can_do_nothing(self):
        for name in ("dumb", "no-such-terminal"):
            top = self.top(columns=200, env={"TERM": name, "TERMINFO": ""})
            top.wait_for(f"TERM={name} .*--once")
            self.assertEqual(top.end(), 2)

    def test_without_the_package(self):
        """glakectl itself needs no library for screens."""
        needed = subprocess.run(["ldd", GLAKECTL], capture_output=True, text=True, check=True).stdout
        self.assertNotIn("curses", needed)
        self.assertNotIn("tinfo", needed)
        tree = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, tree)
        os.mkdir(os.path.join(tree, "bin"))
        alone = shutil.copy(GLAKECTL, os.path.join(tree, "bin"))
        top = Terminal(self.folder, [alone, "--socket", self.socket, "top"], columns=200,
                       env={"LD_LIBRARY_PATH": os.path.abspath(os.path.join(BUILD, "lib"))})
        self.addCleanup(top.close)
        top.wait_for("cannot be run: No such file or directory. Install the package glake-top; --once and --seconds N")
        self.assertEqual(top.end(), 2)

    def test_lines_and_json_need_no_terminal(self):
        program = self.serve()
        done = self.ctl("top", "--once")
        self.assertRegex(done.stdout, rf"(?m)^ +0 +{program.pid} .* outside$")
        (row,) = self.ask("top", "--once")["sessions"]
        self.assertEqual((row["pid"], row["device"], row["label"]), (program.pid, 0, "outside"))


if __name__ == "__main__":
    unittest.main()
