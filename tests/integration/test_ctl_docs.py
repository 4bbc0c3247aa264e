# SPDX-License-Identifier: Apache-2.0
"""glakectl's man page says what the program says of itself: commands, options, exit codes."""

import json
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
    """With those that the last line of a command's help names."""
    common = re.search(r"^  (--.*): see glakectl --help$", text, re.M)
    return set(re.findall(r"^  (--[a-z-]+)[ []", text, re.M)) | set(common.group(1).split(", ") if common else ())


def completed(script, function, words):
    """As bash does, with a script that has the function."""
    line = " ".join(f"'{word}'" for word in words)
    done = subprocess.run(["bash", "-c", f"{script}\nCOMP_WORDS=({line})\nCOMP_CWORD={len(words) - 1}\n"
                           f'{function}\nprintf "%s\\n" "${{COMPREPLY[@]}}"'], capture_output=True, text=True, check=True)
    assert done.stderr == "", done.stderr
    return done.stdout.split()


class ManPage(unittest.TestCase):
    def setUp(self):
        roff = read("libclient/ctl/glakectl.1")
        self.man = re.sub(r"\\f[BIRP]", "", roff).replace("\\-", "-")

    def test_every_option(self):
        named = options(help_of())
        for command in commands():
            named |= options(help_of(command))
        self.assertIn("--sessions", named)
        for option in named:
            self.assertIn(option, self.man)

    def test_each_paragraph_has_the_options_of_its_command(self):
        """Those that not all commands have: --bytes has a list of commands that do not take it."""
        section = self.man.split(".SH COMMANDS")[1].split(".SH WORDS")[0]
        paragraphs = {re.match(r"(?:\.B )?(\S+)", text).group(1): text for text in section.split(".TP\n")[1:]}
        self.assertEqual(set(paragraphs), set(commands()))
        without = set(re.findall(r"[a-z]+", self.man.split("not after\n")[1].split("After\n")[0]))
        for command in commands():
            text = help_of(command)
            self.assertTrue(text.startswith(f"Usage: glakectl {command}"), text)
            for option in options(text) - {"--socket", "--json", "--help", "--bytes"}:
                self.assertIn(option, paragraphs[command], command)
            for option in re.findall("--[a-z-]+", paragraphs[command].split("\n")[0]):
                self.assertIn(option, text, command)
            self.assertEqual(command in without, "--bytes" not in text, command)

    def test_json_is_where_the_help_has_it(self):
        """Also the error of a command line, or of a daemon that is not there, is a document."""
        words = {"completion": ["bash"], "names": ["pids"], "map": ["--html=/nowhere/x"], "seal": ["1"], "sleep": ["1"], "wake": ["1"], "quota": ["x", "--sessions=1"]}
        without = set(re.findall(r"[a-z]+", self.man.split("instead of text; not with\n")[1].split("which")[0])) \
            - {"and"}
        for command in commands():
            done = subprocess.run([GLAKECTL, "--json", "--socket", "/nowhere/sock", command,
                                   *words.get(command, ["x"] if command in ("load", "pin", "unpin", "evict") else [])],
                                  capture_output=True, text=True, check=False)
            document = json.loads(done.stdout)
            has_json = "--json" in help_of(command)
            self.assertEqual(document.get("error", {}).get("name") == "USAGE", not has_json, document)
            self.assertEqual(command in without, not has_json, command)
            self.assertEqual(done.stderr, "", command)

    def test_every_exit_code(self):
        header = read("libclient/ctl/ctl.h")
        codes = set(re.findall(r"CTL_[A-Z_]+ = (\d),", header.split("enum ctl_exit")[1].split("}")[0]))
        section = self.man.split(".SH EXIT STATUS")[1].split(".SH ")[0]
        self.assertEqual(codes, set(re.findall(r"^\.B (\d)$", section, re.M)))

    def test_version(self):
        version = re.search(r"^VERSION := (.*)$", read("Makefile"), re.M).group(1)
        self.assertIn(f'"glake {version}"', self.man)


# Commands whose operands are pids, tenants or models.
NAMED = {"dedup", "fragmentation", "seal", "sleep", "wake", "pin", "unpin", "evict", "quota"}


class Completions(unittest.TestCase):
    """Of each shell that is here."""

    def script(self, shell):
        return subprocess.run([GLAKECTL, "completion", shell], capture_output=True, text=True,
                              check=True).stdout

    def bash(self, *words):
        return completed(self.script("bash"), "_glakectl", words)

    def test_bash(self):
        self.assertEqual(set(commands()) - set(self.bash("glakectl", "")), set())
        self.assertEqual(self.bash("glakectl", "--json", "sta"), ["status", "stats"])
        self.assertEqual(self.bash("glakectl", "-s", "/x", "ev"), ["events", "evict"])
        self.assertEqual(self.bash("glakectl", "events", "--f"), ["--follow"])
        self.assertEqual(self.bash("glakectl", "completion", "z"), ["zsh"])
        self.assertEqual(self.bash("glakectl", "load", "Makef"), ["Makefile"])
        self.assertEqual(self.bash("glakectl", "quota", "--bytes", ""), [])
        for command in commands():
            self.assertEqual(set(self.bash("glakectl", command, "--")), options(help_of(command)), command)
        self.assertEqual(set(self.bash("glakectl", "--")), options(help_of()))

    def test_zsh_and_fish(self):
        for shell, check in (("zsh", "-n"), ("fish", "--no-execute")):
            script = self.script(shell)
            for command in commands():
                self.assertIn(command, script)
            if shutil.which(shell):
                done = subprocess.run([shell, check], input=script, capture_output=True, text=True,
                                      check=False)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
        # A command's line of zsh begins with those that all have.
        for command in commands():
            line = re.search(rf"\n\t{command}\)\n\t\t_arguments (.*?)\n\t\t;;", self.script("zsh"), re.S).group(1)
            found = set(re.findall(r"'(--[a-z-]+)", line)) | {"--socket", "--help"}
            self.assertEqual("(bash" in line, command == "completion")
            self.assertEqual("glakectl names" in line, command in NAMED, command)
            self.assertEqual(found | ({"--json"} if "$json" in line else set()), options(help_of(command)), command)

    @unittest.skipUnless(shutil.which("fish"), "no fish here")
    def test_fish(self):
        asked = [*commands(), ""]
        lines = "".join(f"\necho ==; complete -C 'glakectl {command} --'" for command in asked)
        lines += "\necho ==; complete -C 'glakectl completion '"
        done = subprocess.run(["fish", "-c", self.script("fish") + lines], capture_output=True, text=True, check=True)
        *found, shells = done.stdout.split("==\n")[1:]
        self.assertEqual(sorted(shells.split()), ["bash", "fish", "zsh"])
        for command, text in zip(asked, found):
            self.assertEqual({line.split()[0] for line in text.splitlines()},
                             options(help_of(*[command] if command else [])), command)


class Glake(unittest.TestCase):
    """The completions of `glake`, which are files, know its options."""

    def setUp(self):
        done = subprocess.run([os.path.join(BUILD, "bin", "glake"), "--help"], capture_output=True, text=True, check=True)
        of_run, of_learn = (set(re.findall(r"(?m)(--[a-z]+)(?:=|, | |$)", part)) - {"--"}
                            for part in done.stdout.split("\nglake replay --help")[0].split("usage: glake learn"))
        self.of_run, self.options = of_run, of_run | of_learn

    def test_each_shell_knows_each_option(self):
        for shell, form in (("glake.bash", "{}"), ("_glake", "{}"), ("glake.fish", "-l {} ")):
            script = read("shim/run/completion/" + shell)
            for option in self.options:
                self.assertIn(form.format(option if "l" not in form else option[2:]), script, shell)

    def test_they_are_scripts(self):
        for shell, check, name in (("bash", "-n", "glake.bash"), ("zsh", "-n", "_glake"), ("fish", "--no-execute", "glake.fish")):
            if shutil.which(shell):
                done = subprocess.run([shell, check, "shim/run/completion/" + name], capture_output=True, text=True, check=False)
                self.assertEqual((done.returncode, done.stderr), (0, ""), name)

    def bash(self, *words):
        return completed(read("shim/run/completion/glake.bash"), "_glake", words)

    def test_bash(self):
        self.assertEqual(self.bash("glake", "r"), ["run", "replay", "readers"])
        self.assertEqual({word.rstrip("=") for word in self.bash("glake", "run", "--")} - {"--"}, self.of_run)
        self.assertEqual({word.rstrip("=") for word in self.bash("glake", "learn", "--")} - {"--"},
                         self.options - {"--dedup"})
        self.assertEqual(self.bash("glake", "l"), ["learn"])
        self.assertIn("python3", self.bash("glake", "learn", "--runs", "=", "3", "--", "pytho"))
        self.assertEqual(self.bash("glake", "run", "--own", "=", "a"), ["alloc", "async"])
        self.assertEqual(self.bash("glake", "run", "--alloc", "="), ["plain", "stitch"])
        self.assertEqual(self.bash("glake", "run", "--dedup", "=", "o"), ["observed", "off"])
        self.assertIn("python3", self.bash("glake", "run", "--strict", "pytho"))
        self.assertIn("python3", self.bash("glake", "run", "--name", "=", "x", "--", "pytho"))
        self.assertEqual(self.bash("glake", "run", "--", "python3", "Makef"), ["Makefile"])
        self.assertEqual(self.bash("glake", "replay", "Makef"), ["Makefile"])


if __name__ == "__main__":
    unittest.main()
