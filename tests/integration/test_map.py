# SPDX-License-Identifier: Apache-2.0
"""The memory map in a real browser: what it draws, and that a phone has room for it."""

import json
import os
import shutil
import socket
import subprocess
import tempfile
import unittest

from tests.integration.with_glaked import WithGlaked

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


class Browser:
    """Headless Chromium, steered through its debugging pipe."""

    def __init__(self, folder):
        to_browser, self.to_browser = os.pipe()
        self.from_browser, from_browser = os.pipe()

        def take_pipes():
            # Not before both are out of each other's way.
            read, write = os.dup(to_browser), os.dup(from_browser)
            os.dup2(read, 3)
            os.dup2(write, 4)

        self.process = subprocess.Popen(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"],
            preexec_fn=take_pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.rest, self.n, self.events = b"", 0, []
        target = self.ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        self.page = self.ask("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        self.ask("Page.enable")
        self.ask("Log.enable")

    def read(self):
        while b"\0" not in self.rest:
            more = os.read(self.from_browser, 65536)
            if not more:
                raise EOFError("the browser has ended")
            self.rest += more
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def ask(self, method, params=None):
        self.n += 1
        message = {"id": self.n, "method": method, "params": params or {}}
        if hasattr(self, "page"):
            message["sessionId"] = self.page
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") == self.n:
                return answer["result"]
            self.events.append(answer)

    def open(self, url):
        self.events = []
        self.ask("Page.navigate", {"url": url})
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self.read())

    def size(self, width, height):
        self.ask("Emulation.setDeviceMetricsOverride",
                 {"width": width, "height": height, "deviceScaleFactor": 2, "mobile": True})

    def value(self, expression):
        return self.ask("Runtime.evaluate", {"expression": expression, "returnByValue": True})["result"]["value"]

    def complaints(self):
        return [event["params"]["entry"]["text"] for event in self.events
                if event["method"] == "Log.entryAdded"]

    def close(self):
        os.close(self.to_browser)
        self.process.terminate()
        self.process.wait(60)
        os.close(self.from_browser)


@unittest.skipUnless(CHROMIUM, "no Chromium here")
class Map(WithGlaked):
    def setUp(self):
        super().setUp()
        profile = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, profile, ignore_errors=True)
        self.browser = Browser(profile)
        self.addCleanup(self.browser.close)

    def check_page(self, url, program):
        self.browser.size(390, 844)
        self.browser.open(url)
        value = self.browser.value
        rows = value("[...document.querySelectorAll('.gpu li')].map(row => row.innerText)")
        self.assertTrue(any(f"({program.pid})" in row and "2.0 MiB" in row for row in rows), rows)
        (model,) = (row for row in rows if "m <b>.safetensors" in row)
        self.assertIn("6.0 MiB", model)
        self.assertIn("pinned", model)
        # A phone has room for all of it, and nothing is elsewhere or runs.
        self.assertEqual(value("document.documentElement.scrollWidth"), 390)
        self.assertEqual(value("document.scripts.length + performance.getEntriesByType('resource').length"), 0)
        # Parts stand side by side, each as wide as it is large.
        parts = value("[...document.querySelectorAll('.gpu .bar .whole')].map(part => {"
                      " const box = part.getBoundingClientRect(); return [box.left, box.width]; })")
        self.assertEqual(len(parts), len(rows))
        for (left, width), (next_left, _) in zip(parts, parts[1:]):
            self.assertAlmostEqual(left + width, next_left, delta=0.1)
        # A part of less than a pixel is seen, and not only its edges.
        self.assertEqual(value("[...document.querySelectorAll('.bar rect')].filter(part =>"
                               " part.getBoundingClientRect().width < 1 && getComputedStyle(part).stroke != 'none')"
                               ".map(part => part.className.baseVal)"), [])
        colour = "getComputedStyle(document.querySelector('.bar .private .whole')).fill"
        self.assertEqual(value(colour), "rgb(47, 111, 191)")
        self.browser.ask("Emulation.setEmulatedMedia",
                         {"features": [{"name": "prefers-color-scheme", "value": "dark"}]})
        self.assertEqual(value(colour), "rgb(79, 146, 222)")
        self.browser.ask("Emulation.setEmulatedMedia", {"features": []})
        self.assertEqual(self.browser.complaints(), [])

    def test_file_and_live_page(self):
        program = self.serve()
        self.ask("load", "--pin", self.model("m <b>.safetensors", seed=1))
        path = os.path.join(self.folder, "map.html")
        done = self.ctl("map", f"--html={path}", "--seconds", "1")
        self.assertEqual((done.returncode, done.stdout), (0, f"{path}: 2 samples of 1 devices\n"))
        self.check_page("file://" + path, program)
        self.assertGreater(self.browser.value("document.querySelectorAll('.time polygon').length"), 3)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
        self.serve_metrics(f"127.0.0.1:{port}")
        self.check_page(f"http://127.0.0.1:{port}/", program)
        self.assertIn("again each 5 s", self.browser.value("document.body.innerText"))


if __name__ == "__main__":
    unittest.main()
