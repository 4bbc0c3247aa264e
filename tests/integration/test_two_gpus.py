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

    def test_copies_are_right_while_memory_is_sealed_and_asleep(self):
        self.run_part("copies")

    def test_copies_are_right_on_two_of_four(self):
        self.run_part("copies", "4x512MiB", "0,1")

    def test_copies_are_right_while_glaked_is_killed(self):
        self.run_part("kills")

    def test_one_wake_brings_both_and_waits_for_either(self):
        self.run_part("wake")

    def test_a_full_small_gpu_is_waited_for(self):
        self.run_part("wake", "128MiB,512MiB")

    def test_all_who_share_published_weights_sleep(self):
        self.run_part("published")

    def test_a_quota_is_of_each_gpu(self):
        self.run_part("quota")

    def test_a_crowd_on_both_keeps_its_bytes_and_its_limit(self):
        self.run_part("crowd")

    def test_memory_for_the_other_gpu_is_there(self):
        self.run_part("places")

    def test_the_map_has_both(self):
        self.run_part("page")


if __name__ == "__main__":
    unittest.main()
