# SPDX-License-Identifier: Apache-2.0
"""The operator's views on a bad day: hostile names by the hundred, a narrow terminal, a calendar that jumps, and a user who may
see only his own. (The page in a browser: test_map.py; HTTP clients and tokens: test_metrics_abuse.py, test_metrics_token.py.)"""

import json
import os
import re
import unittest
import unittest.mock

from tests.integration import test_identity
from tests.integration.terminal import Terminal
from tests.integration.with_glaked import BUILD, PATIENCE_S, WithGlaked
from tests.integration.with_metrics import WithMetrics

NOBODY = test_identity.NOBODY
GLAKECTL = os.path.join(BUILD, "bin", "glakectl")
BAD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
VIEWS = (("status",), ("status", "-v"), ("sessions",), ("top", "--once"), ("fragmentation",), ("dedup",), ("tiers",), ("tenants",),
         ("models",), ("blocks",), ("sleepers",), ("events",), ("stats",))


class HostileNames(WithMetrics):
    HELLO, hello = test_identity.Identity.HELLO, test_identity.Identity.hello
    CONFIG = "max_sessions_per_user = 400;\n"
    NAMES = [b"<script>alert(1)</script>", b"\x1b]0;owned\x07\x1b[2J\x1b[31m", "\u202egnp.exe\u2066".encode(), b"\xff\xfe\xc0\xaf",
             b"x" * 256, b"a\nb\rc\td", "\u0085\u009b31m".encode(), b"%s%n%x", b'"},{"a":"', b"\\", b"", "\u4e2d\u6587".encode() * 40]

    def setUp(self):
        super().setUp()
        for i in range(200):
            name = self.NAMES[i % len(self.NAMES)]
            self.hello(name, name=name, script=name, arguments=name)

    def test_in_every_view(self):
        for view in VIEWS:
            done = self.ctl(*view)
            self.assertEqual((done.returncode, done.stderr), (0, ""), view)
            self.assertEqual(BAD.findall(done.stdout), [], view)
            done = self.ctl("--json", *view)
            self.assertEqual(done.returncode, 0, view)
            self.assertTrue(done.stdout.isascii(), view)
            json.loads(done.stdout)
        self.assertEqual(len(self.ask("sessions")["sessions"]), 201)
        # No name is a label.
        for line in self.ctl("metrics").stdout.splitlines():
            self.assertNotRegex(line, r"alert|owned|gnp|xxx|%n")
            self.assertEqual(BAD.findall(line), [])
        # A program names itself once more where it is refused memory.
        self.ask("quota", "default", "--bytes", "2MiB")
        with unittest.mock.patch.dict(os.environ, {"GLAKE_NAME": "\x1b[2J\u202e<b>"}):
            self.assertEqual(self.ctl("load", self.model("m.safetensors", seed=1)).returncode, 7)
        done = self.ctl("events")
        self.assertIn("was refused", done.stdout)
        self.assertEqual(BAD.findall(done.stdout), [])

    def test_in_top(self):
        top = Terminal(self.folder, [GLAKECTL, "--socket", self.socket, "top"], rows=60, columns=100)
        self.addCleanup(top.close)
        # The terminal of the tests fails at any sequence that is not ncurses' own.
        for keys in ("", "s", "s", "r", "\033[6~", "\033[6~", "\033[F", "m", "m", "m", "/", "script\r", "g"):
            top.type(keys)
            top.wait_for(r"(sessions|models|tenants) by ")
            self.assertEqual(BAD.findall(top.text()), [])
        top.type("/\x15\x08" + "\x08" * 10 + "\rg")
        top.wait_for(r"1 of 20\d ")
        self.assertNotIn("owned\x07", top.raw)
        top.resize(24, 40)
        top.wait_for("sessions by ")
        top.type("q")
        self.assertEqual(top.end(), 0)

    def test_in_a_page_and_its_data(self):
        port = self.free_port()
        self.serve_metrics(f"127.0.0.1:{port}")
        status, text, _ = self.get(port, "/api/v1/memory")
        self.assertEqual((status, text.isascii()), (200, True))
        self.assertEqual(len(json.loads(text)["sessions"]), 200)
        path = os.path.join(self.folder, "map.html")
        self.assertEqual(self.ctl("map", f"--html={path}").returncode, 0)
        with open(path, encoding="utf-8") as file:
            page = file.read()
        self.assertEqual(page.count("</script>"), 2)  # the data, and what shows it
        self.assertNotIn("<script>alert", page)
        self.assertEqual(BAD.findall(page.replace("\u200b", "")), [])


class NarrowTerminal(WithGlaked):
    def test_every_table_at_forty_columns(self):
        self.ask("load", self.model("a-model-with-a-rather-long-name.safetensors", seed=1))
        self.serve()
        for view in VIEWS + (("doctor",), ("--help",), ("drain", "--help")):
            terminal = Terminal(self.folder, [GLAKECTL, "--socket", self.socket, *view], rows=400, columns=40,
                                env={"NO_COLOR": "1"})
            self.addCleanup(terminal.close)
            status = terminal.end()
            self.assertIn(status, (0, 1) if view == ("doctor",) else (0,), view)
            self.assertTrue(terminal.text().strip(), view)
            self.assertNotIn("\x1b[3", terminal.raw, view)


class JumpingCalendar(WithMetrics):
    """No interval is measured by it, and nothing waits for it."""

    def setUp(self):
        folder = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"calendar-{os.getpid()}")
        self.calendar = folder
        self.jump(0)
        self.addCleanup(os.unlink, folder)
        env = unittest.mock.patch.dict(os.environ, {"CLOCKSIM_CALENDAR": self.calendar,
                                                    "LD_PRELOAD": os.path.join(BUILD, "clocksim.so")})
        env.start()
        self.addCleanup(env.stop)
        super().setUp()

    def jump(self, seconds):
        with open(self.calendar + ".new", "w", encoding="ascii") as file:
            file.write(f"{seconds}\n")
        os.rename(self.calendar + ".new", self.calendar)

    def test_views_go_on(self):
        port = self.free_port()
        self.serve_metrics(f"127.0.0.1:{port}")
        program = self.serve()
        years = 365 * 86400
        for i, seconds in enumerate((10 * years, -10 * years, 3600, -3600, 0)):
            with self.subTest(seconds=seconds):
                self.jump(seconds)
                self.ask("drain", "--reason", f"jump {i}")
                self.assertIn(f"jump {i}", self.ctl("status").stdout)
                self.assertNotRegex(self.ctl("doctor").stdout, r"for \d{5,}|for -")
                self.ask("drain", "--undo")
                status = self.ask("status")
                self.assertLess(status["uptime_ms"], 3600 * 1000)
                (row,) = (row for row in self.ask("sessions")["sessions"] if row["pid"] == program.pid)
                self.assertLess(row["age_ms"], 3600 * 1000)
                for view in VIEWS:
                    self.assertEqual(self.ctl(*view).returncode, 0, view)
                code, text, _ = self.get(port, "/metrics")
                self.assertEqual((code, "glake_up 1\n" in text), (200, True))
                self.assertEqual(self.get(port, "/api/v1/memory")[0], 200)
        # In the order of their coming, whatever the calendar says.
        events = self.ask("events")["events"]
        self.assertEqual([event["id"] for event in events], list(range(1, 11)))
        times = [event["time_ms"] for event in events]
        self.assertGreater(times[0], times[2])
        top = Terminal(self.folder, [GLAKECTL, "--socket", self.socket, "top"], rows=24, columns=100)
        self.addCleanup(top.close)
        for seconds in (years, -years):
            self.jump(seconds)
            # A rate is of the time that has gone by.
            top.wait_for(r"requests [0-9]+ ")
            self.assertNotRegex(top.text(), r"requests \d{6,}|requests -\d")
        program.communicate("\n", timeout=PATIENCE_S)


class OnlyHisOwn(WithMetrics):
    def test_nothing_of_others_in_any_view(self):
        self.ask("load", self.model("secret-model.safetensors", seed=1), "--pin")
        with unittest.mock.patch.dict(os.environ, {"GLAKE_NAME": "secret-program"}):
            program = self.serve()
        self.ask("sleep", str(program.pid))
        self.ask("drain", "--reason", "for all to see")
        self.ask("drain", "--undo")
        words = re.compile(rf"secret|\b{program.pid}\b")
        self.assertTrue(words.search(self.ctl("top", "--once").stdout))
        os.chmod(self.folder, 0o777)
        page = os.path.join(self.folder, "map.html")
        for view in VIEWS + (("metrics", "--models"), ("doctor",), ("names", "pids", "models"), ("map", f"--html={page}")):
            done = self.ctl(*view, uid=NOBODY)
            self.assertIn(done.returncode, (0, 1) if view == ("doctor",) else (0,), (view, done.stderr))
            self.assertIsNone(words.search(done.stdout), view)
            if view[0] == "map":
                with open(page, encoding="utf-8") as file:
                    self.assertIsNone(words.search(file.read()))
            if view[0] not in ("metrics", "names", "map"):
                self.assertIsNone(words.search(self.ctl("--json", *view, uid=NOBODY).stdout), view)
        top = Terminal(self.folder, ["/usr/bin/setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", GLAKECTL,
                                     "--socket", self.socket, "top"], rows=40, columns=120)
        self.addCleanup(top.close)
        for keys in ("", "m", "m"):
            top.type(keys)
            top.wait_for(r"(sessions|models|tenants) by ")
            self.assertIsNone(words.search(top.text()), top.text())


if __name__ == "__main__":
    unittest.main()
