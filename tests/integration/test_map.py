# SPDX-License-Identifier: Apache-2.0
"""The memory map in a real browser: what it draws, how it is steered, and that a phone has room for it."""

import http.client
import json
import os
import shutil
import subprocess
import tempfile
import time
import unittest

from tests.demo.crowd import Crowd
from tests.integration.browser import CHROMIUM, Browser
from tests.integration.with_glaked import BUILD, PATIENCE_S, WithGlaked

# Of what is filled, against the page; WCAG 2.1.
CONTRAST = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const luminance = colour => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const back = luminance(getComputedStyle(document.body).backgroundColor);
  return [...document.querySelectorAll(".seg:not(.free), #legend i:not(.limit), #tenants i")].map(element => {
    const of = luminance(getComputedStyle(element).backgroundColor);
    return [(Math.max(of, back) + 0.05) / (Math.min(of, back) + 0.05), element.className];
  });
})()"""


class InBrowser(WithGlaked):
    def setUp(self):
        super().setUp()
        profile = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, profile, ignore_errors=True)
        self.browser = Browser(profile)
        self.addCleanup(self.browser.close)

    def open(self, url):
        self.browser.open(url)
        self.browser.wait("data !== null")

    def serve_page(self):
        port = self.free_port()
        self.serve_metrics(f"127.0.0.1:{port}")
        return f"http://127.0.0.1:{port}/"

    def rows(self, table="sessions"):
        return self.browser.value(f"[...document.querySelectorAll('[data-id={table}] tbody tr')].map(row => row.innerText)")


@unittest.skipUnless(CHROMIUM, "no Chromium here")
class Map(InBrowser):
    def check_page(self, url, program):
        value = self.browser.value
        self.browser.size(390, 844, mobile=True)
        self.open(url)
        (row,) = (row for row in self.rows() if f"\t{program.pid}\t" in row)
        self.assertIn("outside", row)
        self.assertIn("2.0 MiB", row)
        (model,) = self.rows("models")
        self.assertIn("m <b>.safetensors", model)
        self.assertIn("6.0 MiB", model)
        self.assertIn("pinned", model)
        # A phone has room for all of it.
        self.assertEqual(value("document.documentElement.scrollWidth"), 390)
        # Nothing is from elsewhere, and of a file nothing is asked for at all.
        asked = value("performance.getEntriesByType('resource').map(entry => entry.name)")
        self.assertEqual(set(asked), set() if url.startswith("file:") else {url + "api/v1/memory"})
        # Parts stand side by side, each as wide as it is large, and what is there is seen.
        parts = value("[...document.querySelectorAll('[data-key=g0] .seg')].map(part => {"
                      " const box = part.getBoundingClientRect(); return [box.left, box.width]; })")
        self.assertGreater(len(parts), 2)
        for (left, width), (next_left, _) in zip(parts, parts[1:]):
            self.assertAlmostEqual(left + width, next_left, delta=0.1)
            self.assertGreaterEqual(width, 1)
        for scheme, back in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(20, 23, 27)")):
            self.browser.scheme(scheme)
            self.assertEqual(value("getComputedStyle(document.body).backgroundColor"), back)
            for contrast, name in value(CONTRAST):
                self.assertGreaterEqual(contrast, 3, (scheme, name))
        self.browser.scheme("")
        self.assertEqual(self.browser.complaints(), [])

    def test_file_and_live_page(self):
        program = self.serve()
        self.ask("load", "--pin", self.model("m <b>.safetensors", seed=1))
        path = os.path.join(self.folder, "map.html")
        done = self.ctl("map", f"--html={path}", "--seconds", "1")
        self.assertEqual((done.returncode, done.stdout), (0, f"{path}: 2 samples of 1 devices\n"))
        self.check_page("file://" + path, program)
        self.assertGreaterEqual(self.browser.value("document.querySelectorAll('svg polygon').length"), 2)
        self.check_page(self.serve_page(), program)

    def test_it_goes_on_in_place(self):
        """Beside a glaked that comes and goes."""
        program = self.serve()
        url = self.serve_page()
        self.open(url)
        value = self.browser.value
        value("PERIOD_MS; document.querySelector('tbody tr').focus(); document.querySelector('tbody tr').mine = true")
        other = self.serve()
        self.browser.wait("document.querySelectorAll('[data-id=sessions] tbody tr').length === 2")
        # The row is the same element, and has the focus still.
        self.assertTrue(value("document.activeElement.mine && document.activeElement.innerText.includes('%d')" % program.pid))
        self.stop_daemon()
        self.browser.wait("document.querySelector('#state').className === 'bad'")
        self.assertRegex(value("document.querySelector('#state').textContent"), "^glaked does not answer. What is shown is of ")
        self.assertEqual(len(self.rows()), 2)
        self.start_daemon()
        self.browser.wait("document.querySelector('#state').className === ''")
        value("document.querySelector('#pause').click()")
        self.assertIn("; paused", value("document.querySelector('#state').textContent"))
        other.communicate("\n", timeout=PATIENCE_S)
        self.assertEqual(self.browser.complaints(), [])

    def test_hostile_names_are_text(self):
        os.environ["GLAKE_NAME"] = "<img src=x onerror=alert(1)></script><b>\u202egnp\x1b[31m\n&quot;" + "y" * 100
        self.addCleanup(os.environ.pop, "GLAKE_NAME")
        self.serve()
        path = os.path.join(self.folder, "map.html")
        self.assertEqual(self.ctl("map", f"--html={path}").returncode, 0)
        for url in ("file://" + path, self.serve_page()):
            self.open(url)
            (row,) = self.rows()
            self.assertTrue(row.startswith("<img src=x onerror="), row)
            self.assertIn("\u2026", row)
            self.assertEqual(self.browser.value("document.images.length + document.querySelectorAll('b').length"), 0)
            titles = self.browser.value("[...document.querySelectorAll('.seg')].map(seg => seg.title).join()")
            for bad in ("\u202e", "\x1b", "\n"):
                self.assertNotIn(bad, row + titles)
            self.assertEqual(self.browser.complaints(), [])

    def test_the_api(self):
        os.environ["GLAKE_NAME"] = "api"
        self.addCleanup(os.environ.pop, "GLAKE_NAME")
        program = self.serve()
        url = self.serve_page()
        connection = http.client.HTTPConnection(url.split("/")[2], timeout=PATIENCE_S)
        self.addCleanup(connection.close)
        connection.request("GET", "/api/v1/memory")
        answer = connection.getresponse()
        self.assertEqual((answer.status, answer.getheader("Content-Type")), (200, "application/json"))
        document = json.loads(answer.read())
        self.assertEqual((document["version"], document["error"]), (1, None))
        (session,) = (row for row in document["sessions"] if row["pid"] == program.pid)
        self.assertEqual((session["name"], session["devices"][0]["reserved_bytes"] > 0), ("api", True))
        # Whoever can connect sees it.
        self.assertNotIn("arguments", session)
        # One writer: things are as the command line has them.
        (listed,) = (row for row in self.ask("sessions")["sessions"] if row["pid"] == program.pid)
        self.assertEqual(set(listed) - set(session), {"arguments"})
        for key in ("tenants", "models", "sleepers"):
            self.assertEqual([set(row) for row in document[key]], [set(row) for row in self.ask(key)[key]], key)
        self.assertEqual([set(row) for row in document["devices"]], [set(row) for row in self.ask("status")["devices"]])
        self.assertEqual(len(document["history"][0]["private"]), len(document["history_ms"]))
        connection.request("GET", "/")
        answer = connection.getresponse()
        page = answer.read().decode()
        self.assertEqual(answer.getheader("X-Frame-Options"), "DENY")
        self.assertRegex(page, r"content=\"default-src 'none'; style-src 'nonce-[0-9a-f]{32}'; script-src 'nonce-[0-9a-f]{32}';")
        connection.request("GET", "/")
        self.assertNotEqual(connection.getresponse().read().decode(), page)
        self.stop_daemon()
        end = time.monotonic() + PATIENCE_S
        while document["error"] is None:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.1)
            connection.request("GET", "/api/v1/memory")
            document = json.loads(connection.getresponse().read())
        self.assertEqual(document["error"], "glaked does not answer")


@unittest.skipUnless(CHROMIUM and os.geteuid() == 0, "no Chromium here, or not root")
class Crowded(unittest.TestCase):
    def test_eight_gpus_and_fifty_programs_on_one_screen(self):
        with Crowd(8, 50, BUILD) as crowd, tempfile.TemporaryDirectory() as profile:
            path = os.path.join(crowd.folder, "map.html")
            subprocess.run(["glakectl", "map", f"--html={path}"], env=crowd.env, capture_output=True, check=True)
            browser = Browser(profile)
            try:
                self.check(browser, path)
            finally:
                browser.close()

    def check(self, browser, path):
        value = browser.value
        browser.size(1280, 800)
        browser.open("file://" + path)
        self.assertEqual(value("document.querySelectorAll('.row[data-key^=g]').length"), 8)
        self.assertEqual(value("document.documentElement.scrollWidth"), 1280 - value("innerWidth - document.documentElement.clientWidth"))
        # GPUs, colours and tenants are seen without scrolling, and the first rows below them.
        self.assertLess(value("document.querySelector('#chosen').offsetTop"), 500)
        self.assertGreater(value("document.querySelectorAll('[data-id=sessions] tbody tr').length"), 50)
        # Tenants have colours of their own, and their limits are marked.
        swatches = value("[...document.querySelectorAll('#tenants i')].map(i => getComputedStyle(i).backgroundColor)")
        self.assertGreaterEqual(len(set(swatches)), 5)
        self.assertEqual(len(set(swatches)), len(swatches))
        self.assertGreater(value("document.querySelectorAll('.mark').length"), 8)
        # A model that many have open is one part.
        readers = value("data.models.map(m => [m.id, m.n_open]).filter(m => m[1] > 1)")
        self.assertGreater(len(readers), 0)
        for model, _ in readers:
            self.assertEqual(value(f"document.querySelectorAll('.seg[data-key=m{model}]').length"), 1)
        # Row and part light up together, by hover, focus and click.
        lit = "[...document.querySelectorAll('.hot')].map(element => element.dataset.link ?? element.dataset.key)"
        key = value("(() => { const row = document.querySelector('tbody tr'); row.focus(); return row.dataset.link; })()")
        self.assertGreaterEqual(value(lit).count(key), 2)
        self.assertEqual(set(value(lit)), {key})
        # A GPU is chosen by the keyboard, and arrows go along its bar.
        value("document.querySelector('.row[data-key=g3] .gpu').focus()")
        value("document.activeElement.click()")
        self.assertEqual(set(value("[...document.querySelectorAll('[data-id=sessions] tbody tr')].map(row => row.cells[1].innerText)")), {"3"})
        browser.press("ArrowRight", 39)
        first = value("document.activeElement.title")
        browser.press("ArrowRight", 39)
        self.assertNotEqual(value("document.activeElement.title"), first)
        self.assertTrue(value("document.activeElement.matches('.seg')"))
        browser.press("Escape", 27)
        self.assertEqual(value("document.querySelector('#chosen h2').textContent"), "All GPUs")
        # Filter and sort.
        value("(() => { const filter = document.querySelector('#filter'); filter.value = 'VLLM'; filter.dispatchEvent(new Event('input')); })()")
        rows = value("[...document.querySelectorAll('[data-id=sessions] tbody tr')].map(row => row.cells[0].innerText)")
        self.assertGreater(len(rows), 0)
        self.assertTrue(all("vllm" in row for row in rows), rows)
        value("(() => { const filter = document.querySelector('#filter'); filter.value = ''; filter.dispatchEvent(new Event('input')); })()")
        value("[...document.querySelectorAll('[data-id=sessions] th button')].find(b => b.textContent === 'PID').click()")
        pids = value("[...document.querySelectorAll('[data-id=sessions] tbody tr')].map(row => Number(row.cells[3].innerText))")
        self.assertEqual(pids, sorted(pids, reverse=True))
        self.assertEqual(value("document.querySelector('[data-id=sessions] th[aria-sort]').getAttribute('aria-sort')"), "descending")
        for scheme in ("light", "dark"):
            browser.scheme(scheme)
            for contrast, name in value(CONTRAST):
                self.assertGreaterEqual(contrast, 3, (scheme, name))
        self.assertEqual(browser.complaints(), [])


if __name__ == "__main__":
    unittest.main()
