# SPDX-License-Identifier: Apache-2.0
"""Programs on two of several GPUs: the parts of tests/gpu/two.py that call the driver alone, on the simulator."""

import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "gpu", "two.py")
# Only a hang takes so long.
PATIENCE_SECONDS = 300


class TwoGpus(unittest.TestCase):
    def run_part(self, part, devices="2x512MiB", visible=None):
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "CUDASIM_DEVICES": devices, "CUDASIM_STATE": os.path.join(folder, "cudasim")}
            if visible:
                environment["CUDA_VISIBLE_DEVICES"] = visible
            with open(os.path.join(folder, "out"), "w+", encoding="utf-8") as out:
                code = subprocess.run([sys.executable, SCRIPT, "--only", part, "--mib", "4", "--seconds", "3"],
                                      env=environment, stdout=out, stderr=subprocess.STDOUT, check=False,
                                      timeout=PATIENCE_SECONDS).returncode
                out.seek(0)
                text = out.read()
        self.assertEqual(code, 0, text)
        self.assertNotIn("skipped", text)

    def test_each_part(self):
        for what, *arguments in (
                ("copies are right while memory is sealed and asleep", "copies"),
                ("copies are right on two of four", "copies", "4x512MiB", "0,1"),
                ("copies are right while glaked is killed", "kills"),
                ("one wake brings both and waits for either", "wake"),
                ("a full small GPU is waited for", "wake", "128MiB,512MiB"),
                ("all who share published weights sleep", "published"),
                ("a quota is of each GPU", "quota"),
                ("a crowd on both keeps its bytes and its limit", "crowd"),
                ("memory for the other GPU is there", "places"),
                ("the map has both", "page")):
            with self.subTest(what):
                self.run_part(*arguments)


if __name__ == "__main__":
    unittest.main()
