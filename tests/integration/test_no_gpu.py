# SPDX-License-Identifier: Apache-2.0
"""glaked --wait-for-gpu where there is no driver: clients are told why, and the next glaked looks again later and later."""

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

from tests.integration.test_drain import Program
from tests.integration.with_glaked import BUILD, PATIENCE_S, listens, until

GLAKED, CTL = (os.path.join(BUILD, "bin", name) for name in ("glaked", "glakectl"))
WHY = "glaked owns no GPU: cannot open the CUDA driver library: "


def boot_ms():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000000


class WithoutGpu(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.socket = os.path.join(self.folder, "s")
        self.waits = self.socket + ".state.no-gpu"
        self.config = os.path.join(self.folder, "c")
        with open(self.config, "w", encoding="utf-8") as file:
            file.write(f'socket_path = "{self.socket}";\n')
        self.driver = os.path.join(self.folder, "libcuda.so.1")  # is not there
        self.log = open(os.path.join(self.folder, "log"), "w", encoding="utf-8")
        self.addCleanup(self.log.close)

    def start(self, *command):
        daemon = subprocess.Popen([*command, GLAKED, "--wait-for-gpu", "-c", self.config], stderr=self.log,
                                  env={**os.environ, "GLAKE_LIBCUDA": self.driver})
        self.addCleanup(daemon.wait)
        self.addCleanup(daemon.kill)
        self.wait_for(lambda: listens(self.socket))
        return daemon

    def wait_for(self, condition):
        until(condition, lambda: "it does not happen: " + self.log_text())

    def log_text(self):
        with open(self.log.name, encoding="utf-8") as file:
            return file.read()

    def ctl(self, *words):
        return subprocess.run([CTL, "--socket", self.socket, *words], capture_output=True, text=True, check=False, timeout=PATIENCE_S,
                              env={**os.environ, "GLAKE_LIBCUDA": self.driver})

    def have_waited(self, ms):
        """glaked has looked for so long already: so long it waits now, a minute at most."""
        with open(self.waits, "w", encoding="ascii") as file:
            file.write(f"{max(1, boot_ms() - ms)}\n")

    def test_each_command_says_why(self):
        self.have_waited(60000)
        self.start()
        for words in (("status",), ("tenants",), ("load", self.config), ("top", "--once"), ("drain",)):
            done = self.ctl(*words)
            self.assertEqual((done.returncode, done.stdout), (3, ""), done.stderr)
            self.assertRegex(done.stderr, rf"\Aglakectl: {words[0]}: .*{WHY}{self.driver}: .*; it looks again in \d+ s\n")
        # What the doctor would say.
        lines = re.sub(r"\s+", " ", self.ctl("status").stderr)
        self.assertIn(f"error driver {self.driver}: cannot open shared object file", lines)
        self.assertIn("-> install the driver", lines)
        self.assertIn("systemctl restart glaked looks again at once", lines)
        self.assertIn('"GLAKE_E_NO_DRIVER"', self.ctl("--json", "status").stdout)
        self.assertEqual(self.ctl("doctor").returncode, 3)
        metrics = self.ctl("metrics")
        self.assertEqual(metrics.returncode, 3)

    def test_a_program_is_told(self):
        self.start()
        done = subprocess.run([os.path.join(BUILD, "bin", "glake"), "run", "--socket", self.socket, "--", "true"],
                              capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(WHY, done.stderr)

    def test_it_waits_longer_each_time(self):
        for waited_ms, seconds in ((None, 2), (500, 2), (4500, 4), (31000, 31), (10**7, 60), (-10**6, 2)):
            with self.subTest(waited_ms):
                if waited_ms is not None:
                    self.have_waited(waited_ms)
                before = len(self.log_text())
                daemon = self.start()
                self.wait_for(lambda: "looks again in" in self.log_text()[before:])
                self.assertIn(f"looks again in {seconds} s\n", self.log_text()[before:])
                daemon.terminate()
                self.assertEqual(daemon.wait(PATIENCE_S), 75)

    def test_it_ends_by_itself_to_be_started_again(self):
        began = time.monotonic()
        self.assertEqual(self.start().wait(PATIENCE_S), 75)
        self.assertGreater(time.monotonic() - began, 1.9)
        # The row of them has one beginning.
        with open(self.waits, encoding="ascii") as file:
            first = file.read()
        self.start().send_signal(signal.SIGHUP)
        time.sleep(0.3)
        with open(self.waits, encoding="ascii") as file:
            self.assertEqual(file.read(), first)

    def test_signals(self):
        for number, status in ((signal.SIGTERM, 75), (signal.SIGHUP, 75), (signal.SIGINT, 0)):
            daemon = self.start()
            self.wait_for(lambda: self.ctl("status").returncode == 3 and WHY in self.ctl("status").stderr)
            daemon.send_signal(number)
            self.assertEqual(daemon.wait(PATIENCE_S), status, number)

    def test_who_says_nothing_or_nonsense_keeps_nobody_out(self):
        self.have_waited(40000)
        daemon = self.start()
        callers = []
        for i in range(300):
            caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.addCleanup(caller.close)
            caller.settimeout(20)
            caller.setblocking(False)
            try:
                caller.connect(self.socket)
                if i % 3:
                    caller.send(b"\xff" * (1 + i * 97 % 65000))
            except (BlockingIOError, ConnectionError, OSError):
                pass
            callers.append(caller)
        done = self.ctl("status")
        self.assertIn(WHY, done.stderr)
        self.assertIsNone(daemon.poll())

    def test_a_wrong_file_in_its_place_is_no_harm(self):
        for make in (lambda: os.symlink("/etc/passwd", self.waits), lambda: os.mkdir(self.waits), lambda: os.mkfifo(self.waits)):
            make()
            daemon = self.start()
            self.wait_for(lambda: WHY in self.ctl("status").stderr)
            daemon.terminate()
            self.assertEqual(daemon.wait(PATIENCE_S), 75)
            if os.path.isdir(self.waits) and not os.path.islink(self.waits):
                os.rmdir(self.waits)
            else:
                os.unlink(self.waits)

    def test_what_was_kept_is_there_when_the_driver_is(self):
        os.symlink(os.environ["GLAKE_LIBCUDA"], self.driver)
        keeper = self.start(os.path.join(BUILD, "bin", "glake-keeper"), "--")
        self.wait_for(lambda: self.ctl("status").returncode == 0)
        program = Program(self)
        self.assertEqual(program.tell("alloc"), "done")
        pid = int(re.search(r"(?m)^pid +(\d+)", self.ctl("status", "-v").stdout)[1])
        os.unlink(self.driver)
        os.kill(pid, signal.SIGKILL)
        self.wait_for(lambda: WHY in self.ctl("status").stderr)
        # It has no glaked now, and keeps its session.
        self.assertRegex(program.tell("alloc"), "GoneError")
        self.assertIsNone(keeper.poll())
        os.symlink(os.environ["GLAKE_LIBCUDA"], self.driver)
        self.wait_for(lambda: self.ctl("status").returncode == 0)
        self.assertEqual(program.tell("alloc"), "done")
        self.assertRegex(self.ctl("sessions").stdout, r"app\.py +\S.*4\.0 MiB")
        self.assertFalse(os.path.exists(self.waits))


if __name__ == "__main__":
    unittest.main()
