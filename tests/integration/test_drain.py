# SPDX-License-Identifier: Apache-2.0
"""glakectl drain: no new program is let in, and nothing but the operator ends that."""

import os
import re
import signal
import subprocess
import sys
import time
import unittest

import glake

from tests.integration.with_glaked import BUILD, MIB, PATIENCE_S, WithGlaked, started, tell

WHY = "a new driver at noon"
# A program that does what it is told, a line each.
PROGRAM = """
import sys, glake
held = [glake.Session(sys.argv[1], program=sys.argv[2])]
print("ready", flush=True)
for line in sys.stdin:
    try:
        if line == "alloc\\n":
            held[0].alloc(2 * 2**20)
        elif line == "ping\\n":
            held[0].ping()
        elif line == "again\\n":
            held.append(glake.Session(sys.argv[1], program=sys.argv[2]))
        print("done", flush=True)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
"""


class Program:
    def __init__(self, test, name="app.py", uid=None):
        self.process = started(test, [sys.executable, "-c", PROGRAM, test.socket, name], stderr=subprocess.PIPE, user=uid)
        test.assertEqual(self.process.stdout.readline(), "ready\n")

    def tell(self, word):
        return tell(self.process, word).strip()

    def end(self):
        self.process.communicate()


class TestDrain(WithGlaked):
    def mark(self):
        return self.socket + ".state.drained"

    def log_text(self):
        with open(self.log.name, encoding="utf-8") as file:
            return file.read()

    def start_drain(self, *options):
        drain = subprocess.Popen([os.path.join(BUILD, "bin", "glakectl"), "--socket", self.socket, "drain", *options],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(drain.kill)
        return drain

    def new_is_refused(self):
        with self.assertRaises(glake.DrainedError) as caught:
            glake.Session(self.socket, cuda=False)
        self.assertEqual(caught.exception.code, -4020)  # GLAKE_E_DRAINED
        return str(caught.exception)

    def test_no_new_program_and_the_others_go_on(self):
        path = self.model("m.safetensors", seed=1)
        program = Program(self)
        self.assertEqual(self.ask("drain", "--reason", WHY), {"drained": True, "n_programs": 1, "n_asleep": 0})
        # Root's as well: containers run as root.
        self.assertEqual(self.new_is_refused(), "glaked is drained and takes no new programs: " + WHY +
                         "; an operator ends that with 'glakectl drain --undo'")
        self.assertIn(WHY, self.refused(6, "GLAKE_E_DRAINED", "load", path))
        # That program has all it had, and more.
        self.assertEqual([program.tell(word) for word in ("alloc", "again", "alloc")], ["done"] * 3)
        # To look is for everybody.
        status = self.ask("status")
        self.assertEqual({key: status[key] for key in ("draining", "drained", "drain_reason", "drained_by", "n_programs")},
                         {"draining": True, "drained": True, "drain_reason": WHY, "drained_by": os.geteuid(),
                          "n_programs": 2})
        self.assertLess(abs(status["drained_at_ms"] / 1000 - time.time()), 60)
        self.assertEqual(self.ctl("sessions", uid=1001).returncode, 0)
        self.assertRegex(self.ctl("status").stdout, r"\Aglaked [^\n]*, drained: ")
        self.assertRegex(self.ctl("status").stdout, rf"daemon +warning[^\n]*drained[^\n]*{WHY}|drained[^\n]*{WHY}")
        self.assertIn("drained: takes no new programs", self.ctl("status", "-v").stdout)
        page = os.path.join(self.folder, "map.html")
        self.assertEqual(self.ctl("map", f"--html={page}").returncode, 0)
        with open(page, encoding="utf-8") as file:
            self.assertIn(f'"drain_reason":"{WHY}"', file.read().replace('": "', '":"'))
        doctor = self.ctl("doctor").stdout
        self.assertRegex(re.sub(r"\s+", " ", doctor), f"glaked is drained.*2 are left.*{WHY}")
        program.end()
        self.assertEqual(self.ask("drain", "--undo"), {"drained": False, "n_programs": 0, "n_asleep": 0})
        self.assertEqual(self.ask("load", path)["n_tensors"], 3)
        self.assertFalse(self.ask("status")["draining"])
        self.assertFalse(os.path.exists(self.mark()))

    def test_it_is_an_event_and_in_the_metrics(self):
        server = "unix:" + os.path.join(self.folder, "metrics.sock")
        self.serve_metrics(server)
        for _ in range(2):  # once more changes nothing
            self.ask("drain", "--reason", WHY)
        for _ in range(3):
            self.new_is_refused()
        self.assertEqual({m["name"]: m["value"] for m in self.ask("stats")["metrics"]}["sessions_drained"], 3)
        text = self.ctl("metrics").stdout
        self.assertRegex(text, r"(?m)^glake_draining 1$")
        self.assertRegex(text, r"(?m)^glake_programs 0$")
        self.assertRegex(text, r"(?m)^glake_sessions_drained_total 3$")
        for _ in range(2):
            self.ask("drain", "--undo")
        self.assertRegex(self.ctl("metrics").stdout, r"(?m)^glake_draining 0$")
        texts = [event["text"] for event in self.ask("events")["events"] if event["kind"] == "drain"]
        self.assertEqual(texts, [f"glaked is drained: no new program is let in, 0 are left; by uid {os.geteuid()}: {WHY}",
                                 f"glaked is not drained any more; by uid {os.geteuid()}"])

    def test_only_admins(self):
        for words in (("drain",), ("drain", "--undo")):
            self.assertIn("root or the admin group", self.refused(4, "GLAKE_E_NO_PERMISSION", *words, uid=1001))
        self.assertFalse(self.ask("status")["drained"])

    def test_wrong_words(self):
        for words in (("drain", "--undo", "--wait"), ("drain", "--undo", "--reason", "x"), ("drain", "--seconds", "1"),
                      ("drain", "--reason", "x" * 201), ("drain", "now")):
            self.assertEqual(self.ctl(*words).returncode, 2, words)
        self.assertFalse(self.ask("status")["drained"])

    def test_a_reason_is_text_and_nothing_else(self):
        self.ask("drain", "--reason", "x\x1b[31m\nuid 77\nsince 1\u202e<b>")
        said = self.ask("status")["drain_reason"]
        self.assertNotRegex(said, "[\x00-\x1f\x7f]")
        self.kill_and_start_daemon()
        status = self.ask("status")
        self.assertEqual((status["drain_reason"], status["drained_by"]), (said, os.geteuid()))
        self.assertNotIn("\x1b", self.ctl("status").stdout + self.ctl("doctor").stdout + self.new_is_refused())

    def test_wait_until_the_last_has_gone(self):
        programs = [Program(self, f"app{i}.py") for i in range(3)]
        waiting = self.start_drain("--wait")
        self.assertEqual(waiting.stderr.readline(), "3 programs are left\n")
        programs.pop().end()
        self.assertEqual(waiting.stderr.readline(), "2 programs are left\n")
        programs.pop().process.kill()
        self.assertEqual(waiting.stderr.readline(), "1 program is left\n")
        self.assertIsNone(waiting.poll())
        programs.pop().end()
        out, err = waiting.communicate(timeout=PATIENCE_S)
        self.assertEqual((waiting.returncode, err), (0, ""))
        self.assertIn("0 programs are left", out)
        self.assertTrue(self.ask("status")["drained"])

    def test_a_wait_ends(self):
        program = Program(self)
        done = self.ctl("drain", "--wait", "--seconds", "1")
        self.assertEqual(done.returncode, 6)
        self.assertIn("somebody is left: 1; glaked stays drained", done.stderr)
        self.assertTrue(self.ask("status")["drained"])
        waiting = self.start_drain("--wait")
        waiting.stderr.readline()
        self.ask("drain", "--undo")
        self.assertIn("somebody has ended it", waiting.communicate(timeout=PATIENCE_S)[1])
        self.assertEqual(waiting.returncode, 6)
        self.assertEqual(program.tell("alloc"), "done")

    def test_the_next_glaked_is_drained_too(self):
        for end in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
            self.ask("drain", "--reason", WHY)
            self.daemon.send_signal(end)
            self.daemon.wait(PATIENCE_S)
            self.start_daemon()
            self.assertIn(WHY, self.new_is_refused())
        self.assertIn(f"glaked is drained, as it was told before: no new program is let in until 'glakectl drain --undo': {WHY}",
                      self.log_text())
        self.ask("drain", "--undo")
        self.kill_and_start_daemon()
        glake.Session(self.socket, cuda=False).close()

    def test_killed_at_any_moment(self):
        for i in range(8):
            asking = self.start_drain(*(["--undo"] if i % 2 else []))
            time.sleep(0.002 * i)
            self.kill_and_start_daemon()
            error = asking.communicate(timeout=PATIENCE_S)[1]
            # It asks the next glaked, or has failed with a word; and what it was told holds.
            self.assertIn(asking.returncode, (0, 3), error)
            if asking.returncode == 0:
                self.assertEqual(self.ask("status")["drained"], i % 2 == 0)
        self.assertFalse(os.path.exists(self.mark() + ".new.new"))

    def test_a_mark_that_others_could_have_made_counts_for_nothing(self):
        def start_with_mark(make):
            self.daemon.kill()
            self.daemon.wait()
            if os.path.lexists(self.mark()):
                os.unlink(self.mark())
            make()
            self.start_daemon()
            drained = self.ask("status")["drained"]
            return drained, self.log_text()

        def write(mode=0o600, text="reason x\n", owner=0):
            with open(self.mark(), "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(self.mark(), mode)
            os.chown(self.mark(), owner, owner)

        self.assertTrue(start_with_mark(write)[0])
        self.assertTrue(start_with_mark(lambda: write(text=""))[0])
        self.assertTrue(start_with_mark(lambda: write(text="uid\nsince x\nreason \xff" + "y" * 5000))[0])
        for make in (lambda: write(mode=0o666), lambda: write(owner=1001), lambda: os.symlink("/etc/passwd", self.mark()),
                     lambda: os.mkfifo(self.mark())):
            drained, log = start_with_mark(make)
            self.assertFalse(drained)
            self.assertIn(self.mark(), log)

    def test_many_at_once(self):
        asking = [self.start_drain(*(["--undo"] if i % 2 else [])) for i in range(24)]
        for process in asking:
            error = process.communicate(timeout=PATIENCE_S)[1]
            self.assertIn(process.returncode, (0, 6), error)
            if process.returncode:  # GLAKE_E_BUSY
                self.assertIn("another order", error)
        self.assertEqual(os.path.exists(self.mark()), self.ask("status")["drained"])

    def test_what_cannot_be_kept_is_not_done(self):
        os.mkdir(self.mark() + ".new")
        text = self.refused(1, "GLAKE_E_INTERNAL", "drain")
        self.assertIn(f"cannot write {self.mark()}", text)
        self.assertFalse(self.ask("status")["drained"])
        glake.Session(self.socket, cuda=False).close()

    def test_who_said_that_he_only_looks_gets_nothing(self):
        path = self.model("m.safetensors", seed=2)
        with glake.Session(self.socket, only_looks=True) as session:
            for take in (lambda: session.alloc(2 * MIB), lambda: glake.Model(path, 0, session=session)):
                with self.assertRaisesRegex(glake.PermissionDeniedError, "only looks"):
                    take()

    def test_an_unmodified_program_is_told(self):
        self.ask("drain", "--reason", WHY)
        for options in ((), ("--optional",)):
            done = subprocess.run([os.path.join(BUILD, "bin", "glake"), "run", "--socket", self.socket, *options, "--",
                                   os.path.join(BUILD, "tests", "shim", "outside"), "serve"], input="", text=True,
                                  capture_output=True, check=False, timeout=PATIENCE_S,
                                  env={**os.environ, "GLAKE_SHIM_SAY": "refused"})
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(f"glaked is drained and takes no new programs: {WHY}", done.stderr)
            self.assertEqual("cuMemAlloc_v2(&ptr, n_bytes) gave 2" in done.stderr, bool(options), done.stderr)


class TestDrainWithAKeeper(WithGlaked):
    COMMAND = (os.path.join(BUILD, "bin", "glake-keeper"), "--")

    def test_what_a_program_uses_is_known_to_the_next_glaked(self):
        """Also if nothing has changed since it told the last one."""
        program = Program(self)
        self.assertEqual([program.tell(word) for word in ("alloc", "ping")], ["done", "done"])

        def row():
            (row,) = (row for row in self.ask("sessions")["sessions"] if row["pid"] == program.process.pid)
            return {key: row[key] for key in ("peak_bytes", "live_bytes")}

        time.sleep(0.2)  # a report has its time
        self.assertEqual(program.tell("ping"), "done")
        before = row()
        self.assertTrue(all(before.values()), before)
        os.kill(self.ask("status")["pid"], signal.SIGKILL)
        self.assertEqual(program.tell("ping"), "done")
        self.assertEqual(program.tell("ping"), "done")
        self.assertEqual(row(), before)

    def test_programs_go_on_through_a_killed_glaked(self):
        program = Program(self)
        self.assertEqual(program.tell("alloc"), "done")
        self.ask("drain")
        os.kill(self.ask("status")["pid"], signal.SIGKILL)
        # The same program connects again, the next glaked knows who is a program, and it is drained.
        self.assertEqual([program.tell(word) for word in ("alloc", "again")], ["done", "done"])
        status = self.ask("status")
        self.assertEqual((status["drained"], status["n_programs"]), (True, 2))
        with self.assertRaises(glake.DrainedError):
            glake.Session(self.socket, cuda=False)
        program.end()
        done = self.ctl("drain", "--wait", "--seconds", "20")
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
