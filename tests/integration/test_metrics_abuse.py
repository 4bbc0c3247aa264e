# SPDX-License-Identifier: Apache-2.0
"""What anybody may send to `glakectl metrics --serve`: it answers with its pages or an error, and goes on."""

import os
import socket
import unittest

from tests.integration.with_glaked import WithGlaked

LINE = b" HTTP/1.1\r\nHost: localhost\r\n"
PAGES = {
    b"GET /": 200, b"GET /metrics": 200, b"GET /api/v1/memory": 200, b"GET /api/v1/memory/": 404, b"GET /api/v2/memory": 404,
    b"GET /api": 404, b"POST /api/v1/memory": 405, b"GET /metrics?x=/etc/passwd": 200, b"HEAD /metrics": 200,
    b"GET //metrics": 404, b"GET /metrics/": 404, b"GET /metrics/../metrics": 404, b"GET /METRICS": 404,
    b"GET /../../../../etc/passwd": 404, b"GET /%2e%2e/%2e%2e/etc/passwd": 404, b"GET /..%2f..%2fetc/passwd": 404,
    b"GET /metrics%00.html": None, b"GET http://elsewhere.example/metrics": None, b"GET *": None,
    b"POST /metrics": 405, b"PUT /metrics": 405, b"DELETE /": 405, b"TRACE /metrics": 405, b"OPTIONS *": 405,
    b"CONNECT localhost:22": None, b"get /metrics": 405, b"G\x00T /metrics": None, b"\xff\xfe /metrics": None,
    b"M" * 60000 + b" /metrics": None, b"GET /" + b"m" * 200000: None,
}
BAD = (
    b"", b"\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(500), os.urandom(4096),
    b"GET /metrics" + LINE + b"X: " + b"y" * (1 << 20) + b"\r\n\r\n",
    b"GET /metrics" + LINE + b"X: y\r\n" * 200000 + b"\r\n",
    b"POST /metrics" + LINE + b"Content-Length: 18446744073709551617\r\n\r\n",
    b"POST /metrics" + LINE + b"Content-Length: 4294967295\r\n\r\n" + b"z" * (1 << 20),
    b"GET /metrics" + LINE + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nfffffffffffffffff\r\n",
    b"GET /metrics HTTP/9.9\r\n\r\n", b"GET /metrics HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET /metrics" + LINE + b"Content-Length: -1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
)


class Abuse(WithGlaked):
    def setUp(self):
        super().setUp()
        self.address = os.path.join(self.folder, "metrics.sock")
        self.server = self.serve_metrics("unix:" + self.address)

    def connect(self):
        connection = socket.socket(socket.AF_UNIX)
        self.addCleanup(connection.close)
        # With a timeout it does not wait for the backlog.
        connection.connect(self.address)
        connection.settimeout(60)
        return connection

    def send(self, text):
        """All that comes back until the end. The server may have heard enough before."""
        answer = b""
        with self.connect() as connection:
            try:
                connection.sendall(text)
                connection.shutdown(socket.SHUT_WR)
                while part := connection.recv(1 << 16):
                    answer += part
            except (BrokenPipeError, ConnectionResetError):
                pass
        return answer

    def serves(self):
        answer = self.send(b"GET /metrics" + LINE + b"Connection: close\r\n\r\n")
        self.assertTrue(answer.startswith(b"HTTP/1.1 200 "), answer[:200])
        self.assertIn(b"\nglake_up 1\n", answer)

    def n_fds(self):
        return len(os.listdir(f"/proc/{self.server.pid}/fd"))

    def test_requests_that_make_no_sense(self):
        self.serves()
        before = self.n_fds()
        for what, wanted in PAGES.items():
            with self.subTest(what[:50]):
                answer = self.send(what + LINE + b"Connection: close\r\n\r\n")
                self.assertNotIn(b"root:", answer)
                status = int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0
                if wanted:
                    self.assertEqual(status, wanted, answer[:200])
        for text in BAD:
            with self.subTest(text[:50]):
                self.assertNotIn(b"root:", self.send(text))
        self.serves()
        self.assertIsNone(self.server.poll())
        # Those closed last may be on their way.
        for _ in range(100):
            if self.n_fds() <= before:
                return
            self.serves()
        self.fail(f"{self.n_fds()} fds, not {before}")

    def test_others_are_served_beside_slow_ones(self):
        """A part of a request, and answers that nobody reads."""
        for text in (b"G", b"GET /metrics HT", b"GET /metrics" + LINE + b"X:", b"GET / HTTP/1.1\r\n\r\n" * 20):
            for _ in range(2):
                self.connect().sendall(text)
            self.serves()

    def test_others_are_served_beside_as_many_silent_ones_as_there_is_room_for(self):
        """Who has asked stays longest: a scraper keeps its connection."""
        scraper = self.connect()
        request = b"GET /metrics" + LINE + b"\r\n"

        def scrape():
            scraper.sendall(request)
            answer = b""
            while b"glake_up 1\n" not in answer:
                part = scraper.recv(1 << 16)
                self.assertTrue(part, "the scraper's connection was closed")
                answer += part
        scrape()
        silent = [self.connect() for _ in range(400)]
        self.serves()
        scrape()
        # The oldest have gone, and nobody had to wait until all others have: that is after 15 s.
        self.assertEqual(silent[0].recv(1), b"")
        silent[-1].setblocking(False)
        self.assertRaises(BlockingIOError, silent[-1].recv, 1)


if __name__ == "__main__":
    unittest.main()
