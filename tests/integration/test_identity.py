# SPDX-License-Identifier: Apache-2.0
"""Who is who in lists: user, script, name, pod; and what a hostile program makes of that."""

import json
import os
import pwd
import re
import signal
import socket
import subprocess
import sys
import unittest

from tests.integration.with_glaked import BUILD, WithGlaked, started

NOBODY = 65534
UID = "0b5c2d3e-1f20-4a5b-8c6d-7e8f90a1b2c3"
CONTAINER = "0123456789abcdef" * 4

SERVE = """
import sys
import glake
session = glake.Session(cuda=False)
print("ready", flush=True)
sys.stdin.read()
"""


def field(number, value):
    """One of a message, as protobuf has it."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    size = len(value)
    return bytes([number << 3 | 2, *([size] if size < 128 else [size & 0x7f | 0x80, size >> 7])]) + value


class Identity(WithGlaked):
    CONFIG = 'realms = ( { name = "both"; uids = [ 0, 65534 ]; } );\nadmin_group = "daemon";\n'

    def row(self, pid, **more):
        (row,) = (row for row in json.loads(self.ctl("--json", "sessions", **more).stdout)["sessions"]
                  if row["pid"] == pid)
        return row

    def start(self, words, env=None, **more):
        program = started(self, words, env={**os.environ, "GLAKE_SOCKET": self.socket, **(env or {})}, **more)
        self.assertEqual(program.stdout.readline(), "ready\n")
        return program

    def serve_python(self, *arguments, **more):
        path = os.path.join(self.folder, "serve.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(SERVE)
        return self.start([sys.executable, path, *arguments], **more)

    def test_a_script_is_called_what_it_is_called(self):
        program = self.serve_python("--key=hush")
        row = self.row(program.pid)
        self.assertRegex(row["program"], "^python")
        self.assertEqual((row["script"], row["name"], row["label"]), ("serve.py", "", "serve.py"))
        self.assertEqual(row["user"], pwd.getpwuid(os.getuid()).pw_name)
        self.assertIn("serve.py --key=hush", row["arguments"])
        self.assertRegex(self.ctl("sessions").stdout, r"(?m) root +serve\.py ")
        self.assertNotIn("hush", self.ctl("sessions").stdout)

    def test_arguments_are_for_the_user_and_for_root(self):
        ours = self.serve_python("--key=hush")
        theirs = self.start(["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
                             os.path.join(BUILD, "bin", "glake"), "run", "--",
                             os.path.join(BUILD, "tests", "shim", "outside"), "serve"])
        self.assertRegex(self.row(theirs.pid)["arguments"], "outside serve$")
        self.assertRegex(self.row(theirs.pid, uid=NOBODY)["arguments"], "outside serve$")
        row = self.row(ours.pid, uid=NOBODY)
        self.assertEqual((row["script"], row["arguments"]), ("serve.py", ""))
        # An admin who is not root has no business with them either.
        admin = subprocess.run(["setpriv", "--reuid=12345", "--regid=daemon", "--clear-groups",
                                os.path.join(BUILD, "bin", "glakectl"), "--socket", self.socket, "--json", "sessions"],
                               capture_output=True, text=True, check=True)
        self.assertEqual({row["arguments"] for row in json.loads(admin.stdout)["sessions"]
                          if row["pid"] in (ours.pid, theirs.pid)}, {""})

    def test_who_may_see_only_his_own_is_told_so(self):
        realm = self.CONFIG.replace("[ 0, 65534 ]", "[ 0 ]")
        with open(self.config, "w", encoding="utf-8") as file:
            file.write(f'socket_path = "{self.socket}";\n' + realm)
        self.daemon.send_signal(signal.SIGHUP)
        program = self.start([os.path.join(BUILD, "bin", "glake"), "run", "--",
                              os.path.join(BUILD, "tests", "shim", "outside"), "serve"])
        self.assertIn(f"outside (root, pid {program.pid})", self.ctl("status").stdout)
        theirs = self.ctl("status", uid=NOBODY).stdout
        self.assertIn("others, whom only admins see", theirs)
        self.assertNotIn("outside", theirs)
        self.assertNotIn(str(program.pid), self.ctl("sessions", uid=NOBODY).stdout)

    def test_a_name_that_is_given(self):
        command = [os.path.join(BUILD, "bin", "glake"), "run", "--name=chat, production", "--",
                   os.path.join(BUILD, "tests", "shim", "outside"), "serve"]
        row = self.row(self.start(command).pid)
        self.assertEqual((row["name"], row["label"], row["script"]), ("chat, production",) * 2 + ("",))
        self.assertRegex(self.ctl("sessions").stdout, r"(?m) chat, production +default ")
        for name in ("", "x" * 256):
            done = subprocess.run([*command[:2], "--name=" + name, *command[3:]], capture_output=True, text=True,
                                  check=False)
            self.assertEqual((done.returncode, done.stderr), (125, "glake: --name: must have 1 to 255 bytes\n"))

    def test_a_pod_by_its_cgroup(self):
        path = f"/glake{os.getpid()}.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope"
        program = self.serve_python(preexec_fn=self.cgroup(path))
        row = self.row(program.pid)
        self.assertEqual((row["cgroup"], row["pod_uid"], row["container_id"]), (path, UID, CONTAINER))
        self.assertEqual((row["pod"], row["namespace"], row["container"]), ("", "", ""))
        self.assertRegex(self.ctl("sessions").stdout, rf"(?m) POD$[\s\S]* {UID}$")
        # The kubelet names folders after it.
        logs = os.path.join(self.folder, "logs")
        os.makedirs(os.path.join(logs, "pods", f"prod_chat-0_{UID}"))
        os.environ["GLAKE_POD_LOGS"] = logs
        self.addCleanup(os.environ.pop, "GLAKE_POD_LOGS")
        row = self.row(program.pid)
        self.assertEqual((row["pod"], row["namespace"], row["container"]), ("chat-0", "prod", ""))
        os.makedirs(os.path.join(logs, "containers"))
        os.symlink("/nowhere", os.path.join(logs, "containers", f"chat-0_prod_the-server-{CONTAINER}.log"))
        row = self.row(program.pid)
        self.assertEqual((row["pod"], row["namespace"], row["container"]), ("chat-0", "prod", "the-server"))
        self.assertRegex(self.ctl("sessions").stdout, r"(?m) POD$[\s\S]* prod/chat-0$")
        program.communicate()

    def hello(self, program, **more):
        """As a client that knows only what `more` says. It stays connected."""
        body = field(1, 1) + field(2, program)
        for number, value in ((8, "name"), (9, "script"), (10, "arguments")):
            body += field(number, more[value]) if value in more else b""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(connection.close)
        connection.connect(self.socket)
        # Request: id, and the body.
        connection.send(field(1, 1) + field(self.HELLO, body))
        self.assertNotEqual(connection.recv(65536), b"")
        return connection

    HELLO = int(re.search(r"Hello hello = (\d+);", open("proto/glake.proto", encoding="utf-8").read()).group(1))

    def test_an_old_client_sends_no_name(self):
        self.hello(b"old")
        (row,) = (row for row in self.ask("sessions")["sessions"] if row["program"] == "old")
        self.assertEqual([row[key] for key in ("name", "script", "arguments", "label")], ["", "", "", "old"])

    def test_hostile_names_in_every_list(self):
        names = [b"<script>alert(1)</script>", b"\x1b]0;owned\x07\x1b[2J", "\u202egnp.exe\u2066".encode(), b"\xff\xfe\xc0\xaf",
                 b"x" * 255, b"a\nb\rc\td", "\u0085\u009b31m".encode(), b"%s%n%x", b'"},{"a":"']
        for name in names:
            self.hello(name, name=name, script=name, arguments=name)
        self.hello(b"p" * 1024)
        rows = self.ask("sessions")["sessions"]
        self.assertGreaterEqual(len(rows), len(names) + 1)
        for view in (("sessions",), ("top", "--once"), ("fragmentation",), ("dedup",), ("tiers",), ("status",),
                     ("--json", "sessions")):
            done = self.ctl(*view)
            self.assertEqual((done.returncode, done.stderr), (0, ""), view)
            bad = re.findall("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]", done.stdout)
            self.assertEqual(bad, [], view)
        # A long name leaves room for the others.
        self.assertIn(f"x{'x' * 18}...", self.ctl("sessions").stdout)
        self.assertNotIn("x" * 60, self.ctl("sessions").stdout)

    def test_a_name_that_is_too_long_is_refused(self):
        for more in ({"name": b"x" * 257}, {"script": b"x" * 257}, {"arguments": b"x" * 1025}):
            connection = self.hello(b"long", **more)
            self.assertEqual(connection.recv(65536), b"")
        self.assertEqual([row for row in self.ask("sessions")["sessions"] if row["program"] == "long"], [])


if __name__ == "__main__":
    unittest.main()
