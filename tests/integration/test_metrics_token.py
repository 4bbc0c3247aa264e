# SPDX-License-Identifier: Apache-2.0
"""Metrics for other hosts: who has no token learns nothing, and costs glaked nothing."""

import concurrent.futures
import http.client
import os
import secrets
import time
import unittest

from tests.integration.with_glaked import PATIENCE_S, until
from tests.integration.with_metrics import WithMetrics, total


class Token(WithMetrics):
    def refused(self, *options):
        done = self.ctl("metrics", *options)
        self.assertEqual(done.stdout, "")
        self.assertNotEqual(done.returncode, 0)
        return done.stderr

    def test_elsewhere_needs_a_token_and_the_error_says_why(self):
        for address in ("0.0.0.0:0", "[::]:9464", "192.0.2.1:9464"):
            text = self.refused("--serve", address)
            self.assertIn("anybody could see who runs what", text)
            self.assertIn("--token-file", text)
            self.assertIn("ssh -L", text)
        self.assertIn("not unix:/PATH, localhost:PORT", self.refused("--serve", "node7:9464", "--token-file", "x"))

    def test_this_host_needs_none(self):
        for host in ("127.0.0.1", "127.0.0.2", "localhost"):
            port = self.free_port()
            self.serve_metrics(f"{host}:{port}")
            self.assertEqual(self.get(port, host=host)[0], 200)

    def test_a_token_that_others_could_know_is_refused(self):
        address = f"0.0.0.0:{self.free_port()}"
        for mode in (0o644, 0o604, 0o602, 0o660):
            path = self.token(mode)
            text = self.refused("--serve", address, "--token-file", path)
            self.assertIn(f"(mode {mode:04o}): chmod 640", text)
        for text, why in (("", "has 0 characters"), ("short\n", "has 5 characters"), ("x" * 513, "has 513 characters"),
                          ("\n" + "x" * 64, "has 0 characters"), ("a token with blanks", "no header may have"),
                          ("t\u00f6ken" * 8, "no header may have"), ("x" * 20 + "\0", None)):
            path = self.token(0o600, text)
            if why:
                self.assertIn(why, self.refused("--serve", address, "--token-file", path))
        os.chown(path, 1234, 0)
        self.assertIn("belongs to uid 1234", self.refused("--serve", address, "--token-file", path))
        os.unlink(path)
        self.assertIn("No such file", self.refused("--serve", address, "--token-file", path))
        # It waits for no writer.
        os.mkfifo(path, 0o600)
        self.assertIn("not a regular file", self.refused("--serve", address, "--token-file", path))
        self.assertIn("not a regular file", self.refused("--serve", address, "--token-file", self.folder))

    def test_a_token_opens(self):
        port = self.free_port()
        path = self.token(0o640)
        server = self.serve_metrics(f"0.0.0.0:{port}", "--token-file", path)
        status, text, headers = self.get(port)
        self.assertEqual((status, headers["WWW-Authenticate"]), (401, 'Bearer realm="glake"'))
        self.assertNotIn("glake_up", text)
        for wrong in ("Bearer", "Bearer ", f"Basic {self.secret}", f"Bearer {self.secret[:-1]}", f"Bearer {self.secret}x",
                      f"Bearer x{self.secret}", f"Bearer {self.secret} {self.secret}", f"Bearer{self.secret}", self.secret,
                      f"Bearer {'x' * 4000}", f"Bearer {self.secret.upper()}"):
            self.assertEqual(self.get(port, Authorization=wrong)[0], 401, wrong)
        # Nobody learns what there is.
        for url in ("/", "/api/v1/memory", "/else", "/metrics?token=" + self.secret):
            self.assertEqual(self.get(port, url)[0], 401, url)
        right = f"Bearer {self.secret}"
        for spelled in (right, f"bearer {self.secret}", f"BEARER  {self.secret}"):
            status, text, _ = self.get(port, Authorization=spelled)
            self.assertEqual(status, 200)
            self.assertIn("\nglake_up 1\n", text)
        # A proxy keeps the name that it was asked for.
        self.assertEqual(self.get(port, Authorization=right, Host="gpu.example")[0], 200)
        self.assertEqual(self.get(port, "/", Authorization=right)[0], 200)
        # The next one is read without a restart, and a bad one is not taken.
        old = self.secret
        os.rename(self.token(0o600), path)
        self.wait_for(port, 200)
        self.assertEqual(self.get(port, Authorization=f"Bearer {old}")[0], 401)
        os.chmod(path, 0o666)
        self.assertIn("the token stays as it was", server.stderr.readline())
        self.assertEqual(self.get(port, Authorization=f"Bearer {self.secret}")[0], 200)

    def wait_for(self, port, status):
        until(lambda: self.get(port, Authorization=f"Bearer {self.secret}")[0] == status)

    def test_a_wrong_token_ten_thousand_times(self):
        port = self.free_port()
        server = self.serve_metrics(f"127.0.0.1:{port}", "--token-file", self.token())
        self.wait_for(port, 200)
        asked = total(self.now(), "glake_requests_total")
        n_fds = len(os.listdir(f"/proc/{server.pid}/fd"))

        def guess(n):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
            statuses = set()
            for _ in range(n):
                connection.request("GET", "/metrics", headers={"Authorization": "Bearer " + secrets.token_hex(32)})
                answer = connection.getresponse()
                answer.read()
                statuses.add(answer.status)
            connection.close()
            return statuses
        began = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            self.assertEqual(set().union(*pool.map(guess, [500] * 20)), {401})
        took = time.monotonic() - began
        self.wait_for(port, 200)
        # They cost glaked nothing: samples are taken each 5 s, and self.now() asks, too.
        self.assertLess(total(self.now(), "glake_requests_total") - asked, 20 * (took / 5 + 4))
        # Nor this one, when they have gone.
        until(lambda: len(os.listdir(f"/proc/{server.pid}/fd")) <= n_fds + 1)
        server.terminate()
        self.assertEqual(server.wait(PATIENCE_S), 0)
        self.assertEqual(server.stderr.read(), "")

    def test_many_scrapes_cost_glaked_one(self):
        port = self.free_port()
        self.serve_metrics(f"127.0.0.1:{port}")
        self.get(port)
        before = total(self.now(), "glake_requests_total")
        for_one = total(self.now(), "glake_requests_total") - before
        began = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(50) as pool:
            done = list(pool.map(lambda _: self.get(port)[:2], range(500)))
        took = time.monotonic() - began
        self.assertEqual({status for status, _ in done}, {200})
        self.assertTrue(all("\nglake_up 1\n" in text for _, text in done))
        asked = total(self.now(), "glake_requests_total") - before - for_one
        # One look a second, one each five, and those of self.now().
        self.assertLessEqual(asked, for_one * (took * 1.2 + 4))
        self.assertLess(asked, for_one * 500 / 2)


if __name__ == "__main__":
    unittest.main()
