# SPDX-License-Identifier: Apache-2.0
"""Events on pods: a real glaked, glakectl and events.py, and an API server that is false, but speaks TLS."""

import http.server
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import unittest

from tests.integration.with_glaked import BUILD, PATIENCE_S, until
from tests.integration.with_metrics import WithMetrics

UID = "0b5c2d3e-1f20-4a5b-8c6d-7e8f90a1b2c3"
NOBODY = 65534
OTHER = "1b5c2d3e-1f20-4a5b-8c6d-7e8f90a1b2c3"

# A program that reports so many faults, as the shim does. Each is a session: one of them has five events at once.
FAULTS = """
import os, re, socket, sys

def field(number, value):
    head = number << 3 | (0 if isinstance(value, int) else 2)
    out = b""
    for number in ([head, value] if isinstance(value, int) else [head, len(value)]):
        while number > 127:
            out, number = out + bytes([number & 127 | 128]), number >> 7
        out += bytes([number])
    return out if isinstance(value, int) else out + value

proto = open("proto/glake.proto", encoding="utf-8").read()
HELLO, FAULT = (int(re.search(name + r" = (\\d+);", proto).group(1)) for name in ("Hello hello", "FaultReport fault_report"))
os.setuid(int(sys.argv[4]))
for i in range(int(sys.argv[2])):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(sys.argv[1])
        connection.send(field(1, 1) + field(HELLO, field(1, 1) + field(2, b"p")))
        connection.recv(65536)
        connection.send(field(1, 2) + field(FAULT, field(1, 700) + field(2, sys.argv[3].encode())))
        connection.recv(65536)
"""


class Api(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        api = self.server
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with api.lock:
            api.asked.append((self.path, self.headers["Authorization"], json.loads(body)))
            status, headers = api.answers.pop(0) if api.answers else (201, {})
        text = b'{"kind": "Status", "message": "of this test"}'
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(text))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_PUT = do_PATCH = do_DELETE = lambda self: self.server.others.append(self.path)

    def log_message(self, *_arguments):
        pass


class Secure(http.server.ThreadingHTTPServer):
    """A handshake is in the thread of its connection: who makes none holds up nobody."""
    daemon_threads = True

    def finish_request(self, request, client_address):
        try:
            request.settimeout(30)
            with self.context.wrap_socket(request, server_side=True) as secure:
                self.RequestHandlerClass(secure, client_address, self)
        except (ssl.SSLError, OSError):
            self.refused.append(client_address)


@unittest.skipUnless(shutil.which("openssl"), "not installed: openssl")
class KubernetesEvents(WithMetrics):
    CONFIG = f'tenants = ( {{ name = "other"; uids = [ {NOBODY} ]; }} );\n'

    def setUp(self):
        super().setUp()
        self.account = os.path.join(self.folder, "account")
        os.mkdir(self.account)
        self.write_token("first")
        self.certificate("ca", self.account)
        self.logs = os.path.join(self.folder, "logs")
        os.makedirs(os.path.join(self.logs, "pods", f"prod_chat-0_{UID}"))
        os.makedirs(os.path.join(self.logs, "pods", f"prod_chat-1_{OTHER}"))
        os.makedirs(os.path.join(self.logs, "containers"))
        self.start_api()

    def write_token(self, token):
        with open(os.path.join(self.account, "token"), "w", encoding="ascii") as file:
            file.write(token + "\n")

    def certificate(self, name, into):
        key, made = os.path.join(self.folder, name + ".key"), os.path.join(into, "ca.crt")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                        "-keyout", key, "-out", made, "-days", "2", "-subj", "/CN=api", "-addext",
                        "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
        return made, key

    def start_api(self, port=0, identity=None):
        self.api = Secure(("127.0.0.1", port), Api)
        self.api.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.api.context.load_cert_chain(*(identity or (os.path.join(self.account, "ca.crt"),
                                                        os.path.join(self.folder, "ca.key"))))
        self.api.lock, self.api.asked, self.api.answers = threading.Lock(), [], []
        self.api.others, self.api.refused = [], []
        threading.Thread(target=self.api.serve_forever, daemon=True).start()
        self.addCleanup(self.stop_api, self.api)

    def stop_api(self, api):
        api.shutdown()
        api.server_close()

    def start_events(self):
        self.err = open(os.path.join(self.folder, "events.err"), "a+", encoding="utf-8")
        self.addCleanup(self.err.close)
        events = subprocess.Popen(
            [sys.executable, "deploy/kubernetes/events.py", "--account", self.account, "--",
             os.path.join(BUILD, "bin", "glakectl"), "--socket", self.socket],
            env={**os.environ, "NODE_NAME": "node7", "GLAKE_POD_LOGS": self.logs,
                 "KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self.api.server_address[1])},
            stderr=self.err)
        self.addCleanup(events.wait)
        self.addCleanup(events.terminate)
        return events

    def said(self):
        self.err.seek(0)
        return self.err.read()

    def wait_until(self, is_so):
        until(is_so, lambda: f"{self.api.asked} {self.said()}")

    def enter(self, uid):
        """What a process does first that is to be in the pod."""
        return self.cgroup(f"glake{os.getpid()}{uid[0]}.slice/kubepods-pod{uid.replace('-', '_')}.slice")

    def faults(self, enter, n=1, name="CUDA_ERROR_ILLEGAL_ADDRESS", uid=0):
        subprocess.run([sys.executable, "-c", FAULTS, self.socket, str(n), name, str(uid)], check=True, preexec_fn=enter)

    def test_an_event_is_on_its_pod(self):
        pod = self.enter(UID)
        events = self.start_events()
        # Of no pod: nobody is told.
        self.faults(None)
        self.faults(pod, name="<b>\x1b[2J\" \u202e " + "x" * 900)
        self.wait_until(lambda: self.api.asked)
        (path, authorization, event), = self.api.asked
        self.assertEqual((path, authorization), ("/api/v1/namespaces/prod/events", "Bearer first"))
        self.assertEqual((event["apiVersion"], event["kind"], event["type"], event["reason"], event["count"]),
                         ("v1", "Event", "Warning", "GpuFault", 1))
        self.assertEqual(event["involvedObject"],
                         {"apiVersion": "v1", "kind": "Pod", "namespace": "prod", "name": "chat-0", "uid": UID})
        self.assertEqual(event["metadata"]["namespace"], "prod")
        self.assertRegex(event["metadata"]["name"], r"\Achat-0\.[0-9a-f]{12,}\Z")
        self.assertEqual((event["source"], event["reportingInstance"]), ({"component": "glake", "host": "node7"}, "node7"))
        self.assertRegex(event["lastTimestamp"], r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\Z")
        (row,) = (row for row in self.ask("events")["events"] if row["pod_uid"])
        self.assertEqual(event["message"], row["text"])
        self.assertLess(len(event["message"].encode()), 1024)
        self.assertNotIn("\x1b", event["message"])
        # It only creates: that is all that its account may do.
        self.assertEqual(self.api.others, [])
        # After a restart the same has the same name, and it is there already.
        events.terminate()
        self.assertEqual(events.wait(PATIENCE_S), 0)
        self.api.answers += [(409, {})]
        self.start_events()
        self.wait_until(lambda: len(self.api.asked) == 2)
        self.assertEqual(self.api.asked[1], self.api.asked[0])
        # The kubelet changes the token now and then.
        self.write_token("second")
        self.faults(pod)
        self.wait_until(lambda: len(self.api.asked) == 3)
        self.assertEqual(self.api.asked[2][1], "Bearer second")
        self.assertEqual(self.said(), "")

    def test_a_pod_that_is_refused_memory(self):
        """The program has ended long before anybody looks."""
        pod = self.enter(UID)
        self.assertEqual(self.ctl("quota", "default", "--device", "0", "--bytes", "8MiB").returncode, 0)
        refused = subprocess.run([sys.executable, "-c", "import glake; glake.connect(program='chat').alloc(10 << 20)"],
                                 env={**os.environ, "GLAKE_SOCKET": self.socket}, preexec_fn=pod, capture_output=True,
                                 check=False)
        self.assertNotEqual(refused.returncode, 0)
        self.start_events()
        self.wait_until(lambda: self.api.asked)
        (_, _, event), = self.api.asked
        self.assertEqual((event["reason"], event["involvedObject"]["name"]), ("GpuMemoryRefused", "chat-0"))
        self.assertRegex(event["message"], "chat was refused 10.0 MiB more on device 0: tenant default uses 0.* of 8.0 MiB")

    def test_an_api_server_that_has_a_bad_day(self):
        pod = self.enter(UID)
        self.api.answers += [(500, {}), (429, {"Retry-After": "1"}), (401, {}), (201, {}), (403, {})]
        events = self.start_events()
        self.faults(pod)
        self.wait_until(lambda: len(self.api.asked) == 4)
        self.assertEqual(len({json.dumps(asked) for asked in self.api.asked}), 1)
        self.assertIn("the API server does not take events: 500 ", self.said())
        # What it forbids is not asked for again; what follows is.
        self.faults(pod)
        self.faults(pod)
        self.wait_until(lambda: len(self.api.asked) == 6)
        names = [event["metadata"]["name"] for _, _, event in self.api.asked]
        self.assertEqual(len(set(names)), 3)
        self.assertIn("does not take events: 403 ", self.said())
        # While it is away, and while another one is in its place, nothing is lost, and nobody else gets the token.
        port = self.api.server_address[1]
        self.stop_api(self.api)
        self.faults(self.enter(OTHER), uid=NOBODY)
        self.wait_until(lambda: "Connection refused" in self.said())
        false = tempfile.mkdtemp(dir=self.folder)
        self.start_api(port, self.certificate("false", false))
        self.wait_until(lambda: self.api.refused)
        self.assertEqual(self.api.asked, [])
        self.stop_api(self.api)
        self.start_api(port)
        self.wait_until(lambda: self.api.asked)
        self.assertIsNone(events.poll())

    def test_many_events_are_few_for_the_server(self):
        pod, other = self.enter(UID), self.enter(OTHER)
        self.start_events()
        self.faults(pod, 60)
        self.wait_until(lambda: "prod/chat-0: more events than one in a minute are left out" in self.said())
        kept = [row for row in self.ask("events")["events"] if row["pod_uid"] == UID]
        self.assertGreater(len(kept), len(self.api.asked))

        # Another pod is heard all the same.
        self.faults(other, uid=NOBODY)
        self.wait_until(lambda: self.api.asked[-1][2]["involvedObject"]["name"] == "chat-1")
        self.assertEqual(self.said().count("left out"), 1)

    def test_it_ends_with_glakectl_and_goes_on_without_glaked(self):
        pod, other = self.enter(UID), self.enter(OTHER)
        events = self.start_events()
        # glakectl ends if there is no glaked when it begins.
        self.faults(pod)
        self.wait_until(lambda: self.api.asked)
        self.stop_daemon()
        self.start_daemon()
        self.faults(other)
        self.wait_until(lambda: len(self.api.asked) == 2)
        (child,) = subprocess.run(["pgrep", "-P", str(events.pid)], capture_output=True, text=True, check=True).stdout.split()
        os.kill(int(child), signal.SIGKILL)
        self.assertEqual(events.wait(PATIENCE_S), 1)
        self.assertIn("glakectl has ended", self.said())


if __name__ == "__main__":
    unittest.main()
