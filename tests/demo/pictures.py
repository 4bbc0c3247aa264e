#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pictures of the memory map, by headless Chromium, and of `top`, beside busy nodes of simulated GPUs. Those of
docs/pictures are made like this:

    tests/demo/pictures.py FOLDER [--png] [--top] [GPUSxPROGRAMS...]    (1x6 8x50 16x200)

Those of `top` are SVG, text that scales, and need no browser: with --top only they are made.
"""
import base64
import html
import itertools
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


# Of a dark terminal: black, red, green, yellow, blue, magenta, cyan, white; each 4.5:1 on its paper or more.
COLOURS = ("#16191d", "#ff7a72", "#63c174", "#d9a83a", "#79b8ff", "#d2a8ff", "#56d4dd", "#d6dae0")
INK, PAPER, CELL, LINE, SIZE = COLOURS[7], COLOURS[0], 8.4, 18, 14


def inks(look):
    """The colours of a character and of what is behind it."""
    ink = INK if look["ink"] is None else COLOURS[look["ink"]]
    paper = PAPER if look["paper"] is None else COLOURS[look["paper"]]
    return (paper, ink) if look["reversed"] else (ink, paper)


def runs(terminal, y):
    """Neighbours that look alike: (x, text, look)."""
    x = 0
    for look, group in itertools.groupby(zip(terminal.cells[y], terminal.looks[y]), key=lambda cell: cell[1]):
        text = "".join(character for character, _ in group)
        yield x, text, look
        x += len(text)


def draw(terminal, path, title):
    """The screen as it is seen."""
    width, height = round(terminal.columns * CELL + 20), terminal.rows * LINE + 20
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
             f'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="{SIZE}" xml:space="preserve">',
             f"<title>{html.escape(title)}</title>", f'<rect width="{width}" height="{height}" rx="6" fill="{PAPER}"/>']
    for y in range(terminal.rows):
        for x, text, look in runs(terminal, y):
            ink, paper = inks(look)
            at, wide = round(10 + x * CELL, 1), round(len(text) * CELL, 1)
            if paper != PAPER:
                lines.append(f'<rect x="{at}" y="{10 + y * LINE}" width="{wide}" height="{LINE}" fill="{paper}"/>')
            if text.strip():
                more = ' font-weight="bold"' if look["bold"] else ""
                more += ' text-decoration="underline"' if look["underlined"] else ""
                # Each character has its column, whatever the font.
                lines.append(f'<text x="{at}" y="{10 + y * LINE + 13}" textLength="{wide}" fill="{ink}"{more}>'
                             f"{html.escape(text)}</text>")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n</svg>\n")
    print(path, flush=True)


def pictures_of_top(folder, crowd, name):
    terminal = Terminal(crowd.folder, [os.path.join(BUILD, "bin", "glakectl"), "top"], rows=32, columns=120,
                        env={"GLAKE_SOCKET": crowd.env["GLAKE_SOCKET"]})
    try:
        terminal.wait_for(r"requests [0-9][\s\S]*\nGPU +PID[^\n]*\n +\d")
        draw(terminal, os.path.join(folder, f"top-{name}.svg"), "glakectl top: the sessions that have most memory")
        terminal.type("mm")
        terminal.wait_for("tenants by used")
        draw(terminal, os.path.join(folder, f"top-{name}-tenants.svg"), "glakectl top: the tenants")
    finally:
        terminal.close()


def pictures_of_the_map(folder, crowd, name):
    path = os.path.join(folder, f"map-{name}")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    with tempfile.TemporaryDirectory() as profile:
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
                shoot(browser, f"{path}-{scheme}.{KIND}")
            browser.scheme("light")
            browser.value("document.querySelector('.gpu').click()")
            shoot(browser, f"{path}-chosen.{KIND}")
            browser.size(390, 844, mobile=True)
            shoot(browser, f"{path}-phone.{KIND}")
            print("complaints:", browser.complaints())
            print("height of the overview:", browser.value("document.querySelector('#chosen').offsetTop"))
        finally:
            browser.close()
            server.terminate()
            server.wait()


def pictures(folder, n_gpus, n_programs, only_top):
    name = f"{n_gpus}x{n_programs}"
    with Crowd(n_gpus, n_programs, BUILD) as crowd:
        if not only_top:
            pictures_of_the_map(folder, crowd, name)
        pictures_of_top(folder, crowd, name)


def main():
    folder = sys.argv[1]
    sizes = [word for word in sys.argv[2:] if not word.startswith("--")]
    os.makedirs(folder, exist_ok=True)
    for size in sizes or ("1x6", "8x50", "16x200"):
        pictures(folder, *(int(number) for number in size.split("x")), "--top" in sys.argv)


if __name__ == "__main__":
    main()
