# SPDX-License-Identifier: Apache-2.0
"""Metrics of real programs: who has what adds up to the byte, and programs make no series."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest

from tests.integration.with_glaked import BUILD, MIB, PATIENCE_S, started, until
from tests.integration.with_metrics import WithMetrics, parse, series, total

ID = "0123456789abcdef" * 3
POD_A, POD_B = "0b5c2d3e-1f20-4a5b-8c6d-7e8f90a1b2c3", "1b5c2d3e-1f20-4a5b-8c6d-7e8f90a1b2c3"

REFUSED = """
import glake
n = 0
with glake.connect() as session:
    for _ in range(7):
        try:
            session.alloc(10 << 20)
        except glake.Error:
            n += 1
print(n)
"""

# Two allocations that do not fit together.
WAITS = """
import glake
with glake.connect() as session:
    session.alloc(6 << 20)
    session.alloc(4 << 20)
"""

# 200 programs, one after the other, each with memory, a name and a command line of its own.
SHORT = """
import sys
import glake
for i in range(200):
    with glake.connect(program='job %d \\x1b[2J"\\\\' % i) as session:
        session.alloc(2 << 20)
        if i % 50 == 49:
            print("ready", flush=True)
            sys.stdin.readline()
"""


class Metrics(WithMetrics):
    def pod(self, uid, container):
        """As the kubelet makes it. A function that enters it."""
        return self.cgroup(f"glake{os.getpid()}{uid[0]}.slice/kubepods-pod{uid.replace('-', '_')}.slice/"
                           f"cri-containerd-{container}.scope")

    def two_pods(self):
        """Functions that enter them. The kubelet knows the first: prod/chat-0, container server."""
        logs = os.path.join(self.folder, "logs")
        os.makedirs(os.path.join(logs, "pods", f"prod_chat-0_{POD_A}"))
        os.makedirs(os.path.join(logs, "containers"))
        os.symlink("/nowhere", os.path.join(logs, "containers", f"chat-0_prod_server-{ID}{'a' * 16}.log"))
        os.environ["GLAKE_POD_LOGS"] = logs
        self.addCleanup(os.environ.pop, "GLAKE_POD_LOGS")
        return self.pod(POD_A, ID + "a" * 16), self.pod(POD_B, ID + "b" * 16)

    def settled(self):
        """Samples of a moment at which nothing is being made, loaded or given back: all memory is somebody's."""
        def samples():
            found = self.now()
            return found if total(found, "glake_pod_bytes", kind="other") == 0 else None

        return until(samples, lambda: "memory that nobody has")

    def check_sums(self, samples):
        for name, labels, physical in samples:
            if name == "glake_device_physical_bytes":
                gpu = {"UUID": labels["UUID"], "gpu": labels["gpu"], "Hostname": labels["Hostname"]}
                self.assertEqual(total(samples, "glake_pod_bytes", **gpu), physical)
                for kind, use in (("private", "private"), ("shared", "blocks_used")):
                    self.assertEqual(total(samples, "glake_pod_bytes", kind=kind, **gpu),
                                     total(samples, "glake_device_bytes", use=use, **gpu), kind)

    def test_shares_of_pods_add_up_to_what_there_is(self):
        """One block that two programs of a pod have, and one of another: two thirds and one third of it, to the byte."""
        a, b = self.two_pods()
        programs = [self.serve(preexec_fn=enter) for enter in (a, a, b)]
        self.serve()
        self.ask("load", "--pin", self.model("m.safetensors", seed=7))
        for program in programs:
            self.assertEqual(self.ctl("seal", str(program.pid)).returncode, 0)
        samples = self.settled()
        self.check_sums(samples)
        first = {"namespace": "prod", "pod": "chat-0", "container": "server"}
        # Nobody knows the name of the other one.
        second = {"namespace": "", "pod": POD_B, "container": ""}
        shares = [total(samples, "glake_pod_bytes", kind="shared", **pod) for pod in (first, second)]
        self.assertEqual(sum(shares), 2 * MIB)
        self.assertAlmostEqual(shares[0], 4 * MIB / 3, delta=1)
        self.assertEqual(total(samples, "glake_pod_sessions", **first), 2)
        self.assertEqual(total(samples, "glake_pod_bytes", kind="cache", tenant="cache"),
                         total(samples, "glake_device_bytes", use="pool") +
                         total(samples, "glake_device_bytes", use="blocks_cached"))
        # One goes, and the others have more of it.
        programs[0].communicate("\n", timeout=PATIENCE_S)
        samples = self.settled()
        self.check_sums(samples)
        self.assertEqual(total(samples, "glake_pod_bytes", kind="shared", **first), MIB)
        for program in programs[1:]:
            program.communicate("\n", timeout=PATIENCE_S)
        samples = self.settled()
        self.check_sums(samples)
        # A pod that has gone has no series; what is in no pod stays as it is.
        self.assertNotIn("chat-0", {labels.get("pod") for _, labels, _ in samples})

    def test_refusals_and_waits_by_tenant(self):
        """Who was refused, and by what: the counters tell, before anybody was, too."""
        before = series(self.now())
        refused = {"tenant": "default", "bound": "quota"}
        self.assertEqual(total(self.now(), "glake_tenant_refusals_total", **refused), 0)
        self.assertEqual(self.ctl("quota", "default", "--device", "0", "--bytes", "8MiB").returncode, 0)
        done = subprocess.run([sys.executable, "-c", REFUSED], env={**os.environ, "GLAKE_SOCKET": self.socket},
                              capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout, "7\n")
        samples = self.now()
        self.assertEqual(total(samples, "glake_tenant_refusals_total", **refused), 7)
        self.assertEqual(total(samples, "glake_tenant_refusals_total", tenant="cache"), 0)
        # A limit has a sample now, and nothing else has come.
        self.assertEqual({name for name, *_ in series(samples) - before}, {"glake_tenant_quota_bytes"})
        # One that waits is seen while it waits.
        with open(self.config, "a", encoding="utf-8") as file:
            file.write('pressure = "wait";\nwait_ms = 600000;\n'
                       'tenants = ( { name = "default"; device_bytes = "8MiB"; } );\n')
        self.daemon.send_signal(signal.SIGHUP)
        waiting = subprocess.Popen([sys.executable, "-c", WAITS], env={**os.environ, "GLAKE_SOCKET": self.socket})
        self.addCleanup(waiting.wait)
        self.addCleanup(waiting.kill)

        def samples():
            found = self.now()
            return found if total(found, "glake_pod_waiting_seconds", tenant="default") > 0 else None

        self.assertEqual(total(until(samples), "glake_pod_waiting", tenant="default"), 1)

    def test_refusals_by_pod(self):
        """Of programs that have ended, by a glake-metrics that was there; what was before is not counted again."""
        a, b = self.two_pods()
        self.assertEqual(self.ctl("quota", "default", "--device", "0", "--bytes", "8MiB").returncode, 0)

        def be_refused(enter):
            done = subprocess.run([sys.executable, "-c", REFUSED], env={**os.environ, "GLAKE_SOCKET": self.socket},
                                  capture_output=True, text=True, check=True, preexec_fn=enter)
            self.assertEqual(done.stdout, "7\n")

        first = {"namespace": "prod", "pod": "chat-0", "container": "server", "tenant": "default"}
        be_refused(a)
        port = self.free_port()
        self.serve_metrics(f"127.0.0.1:{port}")

        def served():
            time.sleep(1.1)
            return parse(self.get(port)[1])

        self.assertNotIn("glake_pod_refusals_total", {name for name, *_ in served()})
        be_refused(a)
        be_refused(b)
        samples = served()
        self.assertEqual(total(samples, "glake_pod_refusals_total", **first), 7)
        # The other pod's name is not known, and nothing of it runs: it is in the sum of its tenant.
        self.assertEqual(total(samples, "glake_pod_refusals_total"), 7)
        self.assertEqual(total(samples, "glake_tenant_refusals_total", tenant="default"), 21)
        # A thousand refusals of a hundred programs are the same series.
        before = series(samples)
        for _ in range(5):
            be_refused(a)
        samples = served()
        self.assertEqual(series(samples), before)
        self.assertEqual(total(samples, "glake_pod_refusals_total", **first), 42)
        # Each glaked numbers its events anew.
        self.kill_and_start_daemon()
        served()
        self.assertEqual(self.ctl("quota", "default", "--device", "0", "--bytes", "8MiB").returncode, 0)
        be_refused(a)
        self.assertEqual(total(served(), "glake_pod_refusals_total", **first), 49)
        # The kubelet forgets the pod, and so does the metric.
        for name in ("pods", "containers"):
            shutil.rmtree(os.path.join(os.environ["GLAKE_POD_LOGS"], name))
        self.assertNotIn("chat-0", {labels.get("pod") for _, labels, _ in served()})
        # Who looks once has seen nothing.
        self.assertNotIn("glake_pod_refusals_total", self.ctl("metrics").stdout)

    def test_programs_make_no_series(self):
        before = series(self.now())
        program = started(self, [sys.executable, "-c", SHORT], env={**os.environ, "GLAKE_SOCKET": self.socket})
        counted = 0
        while program.stdout.readline() == "ready\n":
            samples = self.now()
            self.assertEqual(series(samples), before)
            counted = max(counted, total(samples, "glake_pod_bytes", kind="private"))
            program.stdin.write("\n")
            program.stdin.flush()
        self.assertEqual(program.wait(PATIENCE_S), 0)
        self.assertGreaterEqual(counted, 2 * MIB)
        samples = self.now()
        self.assertEqual(series(samples), before)
        self.assertGreater(total(samples, "glake_sessions_total"), 200)
        keys = {key for _, labels, _ in samples for key in labels}
        self.assertEqual(keys & {"session", "pid", "program", "user", "uid", "realm", "model", "arguments"}, set())

    def test_names_of_models_are_hostile(self):
        """What a program calls a model is a label, if it is asked for, and is nothing else to who reads it."""
        names = [b'"} 1\nglake_up{x="', b"\xff\xfe\xc0\xaf", b"\x1b]0;owned\x07\x1b[2J", "\u202egnp.exe".encode(), b"a\\", b"other",
                 b"x" * 900 + b"1", b"x" * 900 + b"2", b"#", b"{}", b"%s%n", "\u00e9".encode() * 150]
        for i, name in enumerate(names):
            path = self.model(f"{i}.safetensors", seed=i, n_tensors=1)
            done = subprocess.run([os.path.join(BUILD, "bin", "glakectl"), "--socket", self.socket, "load", "--pin", "--name",
                                   name, path], capture_output=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
        done = self.ctl("metrics", "--models")
        self.assertEqual(done.returncode, 0)
        samples = parse(done.stdout)
        self.assertEqual(len(series(samples)), len(samples))
        self.assertEqual([value for name, _, value in samples if name == "glake_up"], [1])
        models = {labels["model"]: value for name, labels, value in samples if name == "glake_model_pinned"}
        # The two long names that begin in the same way are one.
        self.assertEqual((len(models), sum(models.values())), (len(names) - 1, len(names)))
        self.assertEqual(models["x" * 200], 2)
        self.assertIn(r"a\\x5c", models)
        self.assertNotRegex(done.stdout, "[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]")
        if shutil.which("promtool"):
            checked = subprocess.run(["promtool", "check", "metrics"], input=done.stdout, capture_output=True, text=True,
                                     check=False)
            self.assertEqual((checked.returncode, checked.stdout + checked.stderr), (0, ""))

    def test_labels_are_those_of_dcgm(self):
        os.environ["NODE_NAME"] = 'node "7"\\'
        self.addCleanup(os.environ.pop, "NODE_NAME")
        (labels,) = (labels for name, labels, _ in self.now() if name == "glake_device_info")
        self.assertEqual(labels["gpu"], "0")
        self.assertRegex(labels["UUID"], r"\AGPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
        self.assertEqual(labels["Hostname"], 'node \\"7\\"\\\\x5c')
        self.assertEqual(labels["name"], self.ask("status")["devices"][0]["name"])
        os.environ["NODE_NAME"] = ""
        (labels,) = (labels for name, labels, _ in self.now() if name == "glake_device_info")
        self.assertEqual(labels["Hostname"], socket.gethostname())


if __name__ == "__main__":
    unittest.main()
