# SPDX-License-Identifier: Apache-2.0
"""What glaked says of itself, its manual page, and the exit statuses that page promises."""

import os
import re
import subprocess
import tempfile
import unittest

GLAKED = os.path.join(os.environ.get("GLAKE_BUILD", "build"), "bin", "glaked")


def run(*arguments):
    env = {key: value for key, value in os.environ.items() if key != "GLAKE_CONFIG"}
    return subprocess.run(
        [GLAKED, *arguments], capture_output=True, text=True, timeout=60, env=env
    )


def manual():
    with open("daemon/glaked.8", encoding="utf-8") as page:
        return page.read().replace("\\-", "-")


class Docs(unittest.TestCase):
    def test_every_option_is_in_the_manual(self):
        options = set(re.findall(r"--[a-z][a-z-]+", run("--help").stdout))
        options.discard("--usage")
        self.assertIn("--config", options)
        for option in options:
            self.assertIn(option, manual())

    def test_every_option_of_the_manual_exists(self):
        text = run("--help").stdout
        section = manual().split(".SH OPTIONS")[1].split(".SH ")[0]
        for option in re.findall(r"^\.BR? (?:-. \", \" )?(--[a-z-]+)", section, re.M):
            self.assertIn(option, text)

    def test_version(self):
        done = run("--version")
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stdout, r"^glaked \d+\.\d+\.\d+\n$")
        self.assertIn(done.stdout.replace("glaked", "glake").strip(), manual())

    def test_wrong_usage_is_2(self):
        self.assertEqual(run("--no-such-option").returncode, 2)
        self.assertEqual(run("operand").returncode, 2)

    def test_example_is_right(self):
        done = run("--check-config", "--config", "deploy/glaked.conf")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_wrong_config_is_2_with_its_line(self):
        with tempfile.NamedTemporaryFile("w", suffix=".conf") as config:
            config.write("drain_ms = 5;\nno_such_key = 1;\n")
            config.flush()
            for mode in (["--check-config"], []):
                done = run(*mode, "--config", config.name)
                self.assertEqual(done.returncode, 2)
                self.assertIn(f"{config.name}:2: unknown key no_such_key", done.stderr)

    def test_missing_config_is_2(self):
        done = run("--check-config", "--config", "/nonexistent/glaked.conf")
        self.assertEqual(done.returncode, 2)
        self.assertIn("No such file", done.stderr)


if __name__ == "__main__":
    unittest.main()
