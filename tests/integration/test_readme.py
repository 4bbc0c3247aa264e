# SPDX-License-Identifier: Apache-2.0
"""What README.md has a newcomer type and copy."""

import ast
import glob
import os
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from with_glaked import BUILD, PATIENCE_S, WithGlaked  # noqa: E402


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def blocks(page, language):
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```", read(page))


class ExampleInC(WithGlaked):
    PATH = "/srv/models/llama-8b"
    WEIGHT = "lm_head.weight"

    def compile(self):
        (source,) = blocks("README.md", "c")
        self.assertIn(self.PATH, source)
        self.assertIn(f'"{self.WEIGHT}"', source)
        program = os.path.join(self.folder, "load")
        library = os.path.dirname(os.environ["GLAKE_CLIENT_LIB"])
        subprocess.run(["gcc", "-Wall", "-Wextra", "-Werror", "-Ilibclient", "-x", "c", "-", "-o", program,
                        "-L" + library, "-Wl,-rpath," + library, "-lglake-client"],
                       input=source.replace(self.PATH, self.folder), text=True, check=True)
        return program

    def run_it(self, program, socket):
        done = subprocess.run([program], env={**os.environ, "GLAKE_SOCKET": socket}, capture_output=True,
                              text=True, timeout=PATIENCE_S)
        return done.returncode, done.stdout, done.stderr

    def test_it_runs_and_says_what_is_not_there(self):
        program = self.compile()
        code, out, error = self.run_it(program, "/nowhere")
        self.assertEqual((code, out), (1, ""))
        self.assertIn("/nowhere", error)
        code, out, error = self.run_it(program, self.socket)
        self.assertEqual((code, out), (1, ""))
        self.assertIn("neither model.safetensors.index.json nor", error)
        self.model("model.safetensors", seed=1)
        code, out, error = self.run_it(program, self.socket)
        self.assertEqual((code, out), (1, ""))
        self.assertIn(self.WEIGHT, error)
        self.write_weight()
        self.assertEqual(self.run_it(program, self.socket), (0, "", ""))

    def write_weight(self):
        path = self.model("model.safetensors", seed=2, n_tensors=1)
        with open(path, "rb") as file:
            content = file.read()
        n = int.from_bytes(content[:8], "little")
        header = content[8:8 + n].replace(b'"t0"', f'"{self.WEIGHT}"'.encode())
        with open(path, "wb") as file:
            file.write(len(header).to_bytes(8, "little") + header + content[8 + n:])


class ExamplesInPython(unittest.TestCase):
    def test_they_can_be_read(self):
        found = [(page, block) for page in ["README.md", "libclient/python/README.md"] + glob.glob("docs/*.md")
                 for block in blocks(page, "python")]
        for page, block in found:
            with self.subTest(page):
                ast.parse(block)


class Play(unittest.TestCase):
    """`make play`: its shell is given lines here."""

    def play(self, text, folder):
        env = {**os.environ, "SHELL": "/bin/bash", "TMPDIR": folder}
        done = subprocess.run(["tests/demo/play.sh", BUILD], input=text, env=env, capture_output=True,
                              text=True, timeout=500)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done

    def test_what_it_offers_works_and_nothing_is_left(self):
        with tempfile.TemporaryDirectory() as folder:
            done = self.play("", folder)
            self.assertEqual((done.stderr, os.listdir(folder)), ("", []))
            offered = re.findall(r"(?m)^  (\S.*?)(?:   .*)?$", done.stdout)
            # Of the next glaked, which takes over what there is.
            checks = ["set -ex", "glakectl --json models | grep -c '\"pinned\": true'", "echo it is $PWD"]
            offered = [line.replace("top", "top --once") for line in offered]
            done = self.play("\n".join([checks[0], *offered, *checks[1:]]), folder)
            self.assertIn(f"it is {folder}/glake-play.", done.stdout)
            self.assertEqual(os.listdir(folder), [])


class Makefile(unittest.TestCase):
    def test_sub_makes_share_the_jobs(self):
        """Else `make -j2 demo` says "jobserver unavailable": make sees no make in a variable of ours."""
        rules = re.findall(r"^\t.*\$\((?:submake\)|call sanitized,).*$", read("Makefile"), re.M)
        for rule in rules:
            self.assertRegex(rule, r"^\t@\+")

    def test_who_has_no_toolkit_learns_where_it_is(self):
        env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        done = subprocess.run(["make", "-n", "CUDA_HOME=/nowhere"], env=env, capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        (where,) = re.findall(r"https://[a-z./-]*cuda-downloads", done.stderr)
        self.assertIn(f"<{where}>", read("README.md"))
        for part in ("CUDA toolkit 12.4 or newer", "none in /nowhere", "CUDA_HOME"):
            self.assertIn(part, done.stderr)


if __name__ == "__main__":
    unittest.main()
