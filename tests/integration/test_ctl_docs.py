# SPDX-License-Identifier: Apache-2.0
"""glakectl's man page says what the program says of itself: commands, options, exit codes."""

import os
import re
import subprocess
import unittest

BUILD = os.environ["GLAKE_BUILD"]
GLAKECTL = os.path.join(BUILD, "bin", "glakectl")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def help_of(*words):
    done = subprocess.run([GLAKECTL, *words, "--help"], capture_output=True, text=True, check=True)
    return done.stdout


def commands():
    section = help_of().split("Commands:\n")[1].split("\n\n")[0]
    return [line.split()[0] for line in section.splitlines()]


def options(text):
    return set(re.findall(r"^  (--[a-z-]+)[ []", text, re.M))


class ManPage(unittest.TestCase):
    def setUp(self):
        roff = read("libclient/ctl/glakectl.1")
        self.man = re.sub(r"\\f[BIRP]", "", roff).replace("\\-", "-")

    def test_every_command(self):
        self.assertGreaterEqual(len(commands()), 12)
        for command in commands():
            self.assertRegex(self.man, rf"(?m)^(\.B )?{command}( |$)", command)

    def test_every_option(self):
        named = options(help_of())
        for command in commands():
            named |= options(help_of(command))
        self.assertIn("--sessions", named)
        for option in named:
            self.assertIn(option, self.man)

    def test_every_exit_code(self):
        header = read("libclient/ctl/ctl.h")
        codes = set(re.findall(r"CTL_[A-Z_]+ = (\d),", header.split("enum ctl_exit")[1].split("}")[0]))
        section = self.man.split(".SH EXIT STATUS")[1].split(".SH ")[0]
        self.assertEqual(codes, set(re.findall(r"^\.B (\d)$", section, re.M)))
        self.assertGreaterEqual(len(codes), 6)

    def test_version(self):
        version = re.search(r"^VERSION := (.*)$", read("Makefile"), re.M).group(1)
        self.assertIn(f'"glake {version}"', self.man)


if __name__ == "__main__":
    unittest.main()
