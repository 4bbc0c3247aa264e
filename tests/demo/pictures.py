#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pictures of the memory map, by headless Chromium, and of `top`, beside busy nodes of simulated GPUs. Those of
docs/pictures are made like this:

    tests/demo/pictures.py FOLDER [--png] [GPUSxPROGRAMS...]    (1x6 8x50 16x200)
"""
import base64
import os
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)
from tests.demo.crowd import Crowd  # noqa: E402
from tests.integration.browser import Browser  # noqa: E402
from tests.integration.terminal import Terminal  # noqa: E402

KIND = "png" if "--png" in sys.argv else "webp"
BUILD = os.environ.get("GLAKE_BUILD", os.path.join(ROOT, "build"))


def shoot(browser, path):
    with open(path, "wb") as file:
        form = {"format": "png"} if path.endswith(".png") else {"format": "webp", "quality": 80}
        file.write(base64.b64decode(browser.ask("Page.captureScreenshot", form)["data"]))
    print(path, flush=True)


def pictures(folder, n_gpus, n_programs):
    name = os.path.join(folder, f"map-{n_gpus}x{n_programs}")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    with Crowd(n_gpus, n_programs, BUILD) as crowd, tempfile.TemporaryDirectory() as profile:
        server = subprocess.Popen(["glakectl", "metrics", "--serve", address], env=crowd.env, stderr=subprocess.PIPE, text=True)
        browser = Browser(profile)
        try:
            server.stderr.readline()
            time.sleep(11)
            browser.size(1280, 800)
            for scheme in ("light", "dark"):
                browser.scheme(scheme)
                browser.open(f"http://{address}/")
                browser.wait("data !== null")
                shoot(browser, f"{name}-{scheme}.{KIND}")
            browser.scheme("light")
            browser.value("document.querySelector('.gpu').click()")
            shoot(browser, f"{name}-chosen.{KIND}")
            browser.size(390, 844, mobile=True)
            shoot(browser, f"{name}-phone.{KIND}")
            print("complaints:", browser.complaints())
            print("height of the overview:", browser.value("document.querySelector('#chosen').offsetTop"))
        finally:
            browser.close()
            server.terminate()
            server.wait()
        terminal = Terminal(crowd.folder, [os.path.join(BUILD, "bin", "glakectl"), "top"], rows=32, columns=120,
                            env={"GLAKE_SOCKET": crowd.env["GLAKE_SOCKET"]})
        try:
            terminal.wait_for(r"1 of [1-9][\s\S]*\nGPU +PID[^\n]*\n +\d")
            with open(os.path.join(folder, f"top-{n_gpus}x{n_programs}.txt"), "w", encoding="utf-8") as file:
                file.write(terminal.text() + "\n")
        finally:
            terminal.close()


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    for size in [word for word in sys.argv[2:] if word != "--png"] or ("1x6", "8x50", "16x200"):
        pictures(folder, *(int(number) for number in size.split("x")))


if __name__ == "__main__":
    main()
