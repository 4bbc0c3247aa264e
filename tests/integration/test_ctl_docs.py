# SPDX-License-Identifier: Apache-2.0
"""glakectl's man page says what the program says of itself: commands, options, exit codes."""

import os
import re
import shutil
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


class Completions(unittest.TestCase):
    """Of each shell that is here."""

    def script(self, shell):
        return subprocess.run([GLAKECTL, "completion", shell], capture_output=True, text=True,
                              check=True).stdout

    def bash(self, *words):
        line = " ".join(f"'{word}'" for word in words)
        done = subprocess.run(
            ["bash", "-c", f"{self.script('bash')}\nCOMP_WORDS=({line})\nCOMP_CWORD={len(words) - 1}\n"
             '_glakectl\nprintf "%s\\n" "${COMPREPLY[@]}"'], capture_output=True, text=True, check=True)
        self.assertEqual(done.stderr, "")
        return done.stdout.split()

    def test_bash(self):
        self.assertEqual(set(commands()) - set(self.bash("glakectl", "")), set())
        self.assertEqual(self.bash("glakectl", "--json", "sta"), ["status", "stats"])
        self.assertEqual(self.bash("glakectl", "-s", "/x", "ev"), ["events", "evict"])
        self.assertEqual(self.bash("glakectl", "events", "--f"), ["--follow"])
        self.assertEqual(self.bash("glakectl", "completion", "z"), ["zsh"])
        self.assertEqual(self.bash("glakectl", "load", "Makef"), ["Makefile"])
        self.assertEqual(self.bash("glakectl", "quota", "--bytes", ""), [])
        for command in commands():
            self.assertEqual(set(self.bash("glakectl", command, "--")), options(help_of(command)) |
                             {"--socket", "--json", "--help"})

    def test_zsh_and_fish(self):
        for shell, check in (("zsh", "-n"), ("fish", "--no-execute")):
            script = self.script(shell)
            for command in commands():
                self.assertIn(command, script)
            if shutil.which(shell):
                done = subprocess.run([shell, check], input=script, capture_output=True, text=True,
                                      check=False)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
        if shutil.which("fish"):
            done = subprocess.run(["fish", "-c", self.script("fish") + "\ncomplete -C 'glakectl load --p'"],
                                  capture_output=True, text=True, check=True)
            self.assertEqual(done.stdout.split()[0], "--pin")


if __name__ == "__main__":
    unittest.main()
