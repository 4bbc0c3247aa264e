# SPDX-License-Identifier: Apache-2.0
"""What tests of metrics begin with: a glaked, and ways to read what glakectl metrics says."""

import contextlib
import http.client
import os
import re
import secrets

from tests.integration.with_glaked import PATIENCE_S, WithGlaked

SAMPLE = re.compile(r"([a-zA-Z_]+)(?:\{(.*)\})? (\S+)\Z")
LABEL = re.compile(r'([a-zA-Z_]+)="((?:[^"\\]|\\.)*)"')


def parse(text):
    """A list of (name, labels, value)."""
    samples = []
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels, value = SAMPLE.match(line).groups()
            samples.append((name, dict(LABEL.findall(labels or "")), float(value)))
    return samples


def total(samples, name, **labels):
    return sum(value for other, had, value in samples
               if other == name and all(had.get(key) == wanted for key, wanted in labels.items()))


def series(samples):
    return {(name, *sorted(labels.items())) for name, labels, _ in samples}


class WithMetrics(WithGlaked):
    def get(self, port, path="/metrics", host="127.0.0.1", **headers):
        with contextlib.closing(http.client.HTTPConnection(host, port, timeout=PATIENCE_S)) as connection:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), answer.headers

    def now(self):
        done = self.ctl("metrics")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return parse(done.stdout)

    def token(self, mode=0o600, text=None):
        self.secret = secrets.token_hex(32)
        path = os.path.join(self.folder, "token")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"{self.secret}\n" if text is None else text)
        os.chmod(path, mode)
        return path
