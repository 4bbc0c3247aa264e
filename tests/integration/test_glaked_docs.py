# SPDX-License-Identifier: Apache-2.0
"""What glaked and glake-keeper say of themselves, their pages, and the exit statuses these promise."""

import os
import re
import shutil
import subprocess
import tempfile
import unittest

from tests.integration.with_glaked import PATIENCE_S

PAGES = {"glaked": "daemon/glaked.8", "glake-keeper": "daemon/keeper/glake-keeper.8",
         "glake-mover": "daemon/mover/glake-mover.8"}


def run(*arguments, program="glaked"):
    env = {key: value for key, value in os.environ.items() if key != "GLAKE_CONFIG"}
    path = os.path.join(os.environ.get("GLAKE_BUILD", "build"), "bin", program)
    return subprocess.run(
        [path, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, env=env
    )


def manual(program):
    with open(PAGES[program], encoding="utf-8") as page:
        return page.read().replace("\\-", "-")


def config_manual():
    return subprocess.run(["awk", "-v", "version=1.2.3", "-f", "deploy/glaked.conf.5.awk",
                           "docs/configuration.md"], capture_output=True, text=True, check=True).stdout


class Docs(unittest.TestCase):
    def test_every_option_is_in_the_manual(self):
        for program in PAGES:
            options = set(re.findall(r"--[a-z][a-z-]+", run("--help", program=program).stdout))
            options.discard("--usage")
            for option in options:
                self.assertIn(option, manual(program))

    def test_every_option_of_the_manual_exists(self):
        for program in PAGES:
            text = run("--help", program=program).stdout
            section = manual(program).split(".SH OPTIONS")[1].split(".SH ")[0]
            for option in re.findall(r"^\.BR? (?:-. \", \" )?(--[a-z-]+)", section, re.M):
                self.assertIn(option, text)

    def test_the_table_of_user_accounts(self):
        with open("daemon/net/users.def", encoding="utf-8") as source:
            text = re.sub(r"/\*.*?\*/", "", source.read(), flags=re.S)
        string = r'((?:"[^"]*"\s*)+)'
        rows = re.findall(r"USER_ROW\(\w+,[^,]+,[^,]+,\s*(true|false),\s*" + ",\\s*".join([string] * 3)
                          + r"\)", text)
        self.assertEqual(len(rows), text.count("USER_ROW("))
        want = []
        for binds_root, *texts in rows:
            cells = ["".join(re.findall(r'"([^"]*)"', cell)) for cell in texts]
            cells.append("yes" if binds_root == "true" else "no")
            want.append("| " + " | ".join(cells) + " |")
        with open("docs/security.md", encoding="utf-8") as page:
            section = page.read().split("## What a user may have\n")[1].split("\n## ")[0]
        table = section.split("| root, too |\n")[1].split("\n\n")[0]
        self.assertEqual(table.splitlines()[1:], want)

    def test_version(self):
        for program in PAGES:
            done = run("--version", program=program)
            self.assertEqual(done.returncode, 0)
            self.assertRegex(done.stdout, rf"^{program} \d+\.\d+\.\d+\n$")
            self.assertIn(done.stdout.replace(program, "glake").strip(), manual(program))
        with open("shim/run/glake.1", encoding="utf-8") as page:
            self.assertIn(done.stdout.replace(program, "glake").strip(), page.read())

    def test_every_key_is_in_the_manual(self):
        """That of the configuration is made of the page, which test_config holds against the code."""
        text = config_manual()
        with open("deploy/glaked.conf", encoding="utf-8") as example:
            keys = set(re.findall(r"(?:^|[{;\t])[# ]*([a-z_]+) = ", example.read(), re.M))
        section = text.split(".SH KEYS")[1].split(".SH ")[0]
        named = re.findall(r"^\.TP\n\\fB(?:[a-z]+\.)?([a-z_]+)\\fP( \(.*\))?$", section, re.M)
        self.assertEqual({name for name, _ in named}, keys)
        self.assertIn(r'.TP' '\n' r'\fBverify\fP (\fB"sample"\fP)' '\n', section)
        for markdown in ("](", "`", "**", "|"):
            self.assertNotIn(markdown, text)

    @unittest.skipUnless(shutil.which("groff"), "no groff")
    def test_the_manuals_are_set_without_warnings(self):
        texts = {"glaked.conf": config_manual(), **{name: manual(name) for name in PAGES}}
        for name in ("libclient/ctl/glakectl.1", "shim/run/glake.1", "shim/run/glake-readers.5"):
            with open(name, encoding="utf-8") as page:
                texts[name] = page.read()
        for name, text in texts.items():
            done = subprocess.run(["groff", "-man", "-ww", "-z"], input=text, capture_output=True,
                                  text=True, check=True)
            self.assertEqual(done.stderr, "", name)

    def test_wrong_usage_of_the_keeper(self):
        self.assertEqual(run("--no-such-option", program="glake-keeper").returncode, 2)
        self.assertEqual(run("--watchdog=soon", "glaked", program="glake-keeper").returncode, 2)
        self.assertEqual(run("--max-fds=1", program="glake-keeper").returncode, 2)
        done = run("--", "/nowhere/glaked", program="glake-keeper")
        self.assertEqual(done.returncode, 127)
        self.assertIn("cannot start /nowhere/glaked: No such file", done.stderr)
        self.assertEqual(run("--", "false", program="glake-keeper").returncode, 1)

    def test_wrong_usage_is_2(self):
        self.assertEqual(run("--no-such-option").returncode, 2)
        self.assertEqual(run("operand").returncode, 2)

    def test_the_mover_is_started_by_glaked_only(self):
        done = run("--help", program="glake-mover")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(run("operand", program="glake-mover").returncode, 2)
        done = run(program="glake-mover")
        self.assertEqual(done.returncode, 1)
        self.assertIn("started by glaked only", done.stderr)

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

    def test_a_check_of_no_file_is_2(self):
        done = run("--check-config")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("which file?", done.stderr)

    def test_missing_config_is_2(self):
        done = run("--check-config", "--config", "/nonexistent/glaked.conf")
        self.assertEqual(done.returncode, 2)
        self.assertIn("No such file", done.stderr)


if __name__ == "__main__":
    unittest.main()
