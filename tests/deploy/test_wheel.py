# SPDX-License-Identifier: Apache-2.0
"""The wheel, in a fresh virtual environment beside a running glaked: `make check-deploy`."""

import glob
import os
import subprocess
import sys
import tempfile
import unittest

from tests.deploy.test_packages import write_model

BUILD = os.environ["GLAKE_BUILD"]


class Wheel(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        # Nothing that leads to a build tree.
        self.env = {name: value for name, value in os.environ.items()
                    if name not in ("PYTHONPATH", "GLAKE_CLIENT_LIB", "GLAKE_BUILD")}
        self.env["GLAKE_SOCKET"] = self.folder + "/socket"
        self.env["LD_LIBRARY_PATH"] = BUILD + "/cudasim"

    def run_well(self, *words, **more):
        done = subprocess.run(words, check=False, capture_output=True, text=True, cwd=self.folder,
                              env=self.env, **more)
        self.assertEqual(done.returncode, 0, f"{words}: {done.stdout}{done.stderr}")
        return done.stdout

    def start_glaked(self):
        glaked = subprocess.Popen([BUILD + "/bin/glaked"], env=self.env, stderr=subprocess.PIPE,
                                  text=True)
        self.addCleanup(glaked.communicate)
        self.addCleanup(glaked.terminate)
        for line in glaked.stderr:
            if "is ready" in line:
                return
        self.fail("glaked does not start")

    def test_in_a_fresh_environment(self):
        wheel, = glob.glob("dist/glake-*.whl")
        wheel, client = os.path.abspath(wheel), os.path.abspath("tests/deploy/client.py")
        subprocess.run([sys.executable, "-m", "venv", self.folder + "/venv"], check=True)
        python = self.folder + "/venv/bin/python"
        self.run_well(python, "-m", "pip", "install", "-q", "--disable-pip-version-check",
                      "--no-index", wheel)
        where = "import glake._lib as lib; print(lib.library()._name)"
        self.assertRegex(self.run_well(python, "-c", where),
                         r"/venv/lib/.*/glake/libglake-client\.so\.0$")
        self.start_glaked()
        write_model(self.folder + "/model.safetensors")
        out = self.run_well(python, client, self.folder + "/model.safetensors", input="check\nquit\n")
        first, second = out.split()
        self.assertEqual(first, second)


if __name__ == "__main__":
    unittest.main()
