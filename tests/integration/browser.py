# SPDX-License-Identifier: Apache-2.0
"""A real browser for tests of pages."""

import json
import os
import shutil
import subprocess
import time

from tests.integration.with_glaked import PATIENCE_S

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
        self.ask("Runtime.enable")

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

    def size(self, width, height, mobile=False):
        self.ask("Emulation.setDeviceMetricsOverride",
                 {"width": width, "height": height, "deviceScaleFactor": 2 if mobile else 1, "mobile": mobile})

    def scheme(self, name):
        self.ask("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": name}]})

    def value(self, expression):
        """Of the expression, or of what it promises."""
        answer = self.ask("Runtime.evaluate", {"expression": expression, "returnByValue": True, "awaitPromise": True})
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def wait(self, expression, seconds=PATIENCE_S):
        """Until it is true."""
        end = time.monotonic() + seconds
        while not self.value(expression):
            if time.monotonic() > end:
                raise AssertionError(f"not true: {expression}")
            time.sleep(0.05)

    def press(self, key, code=None):
        more = {"windowsVirtualKeyCode": code} if code else {}
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", {"type": kind, "key": key, **more})

    def complaints(self):
        """Of the browser: policies that are broken, errors of scripts."""
        return [event["params"]["entry"]["text"] for event in self.events if event["method"] == "Log.entryAdded"] + \
            [str(event["params"]["exceptionDetails"]) for event in self.events if event["method"] == "Runtime.exceptionThrown"]

    def close(self):
        os.close(self.to_browser)
        self.process.terminate()
        self.process.wait(PATIENCE_S)
        os.close(self.from_browser)
