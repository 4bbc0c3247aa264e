# SPDX-License-Identifier: Apache-2.0
"""tests/check-calls: what it calls a circle of folders, in a small tree of C files."""

import os
import subprocess
import tempfile
import unittest

SCRIPT = os.path.abspath("tests/check-calls")

PLAIN = {
    "daemon/base/list.h": "void list_add(void (*on_added)(void));\n",
    "daemon/base/list.c": '#include "daemon/base/list.h"\nvoid list_add(void (*f)(void)) { f(); }\n',
    "daemon/net/conn.h": "void conn_open(void);\n",
    "daemon/net/conn.c": '#include "daemon/base/list.h"\n#include "daemon/net/conn.h"\n'
                         "static void on_added(void) {}\n"
                         "void conn_open(void) { list_add(on_added); }\n",
}


class CheckCalls(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = folder.name
        for path, text in PLAIN.items():
            self.write(path, text)

    def write(self, path, text):
        path = os.path.join(self.tree, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="ascii") as file:
            file.write(text)

    def build(self):
        for folder, _, names in os.walk(self.tree):
            for name in (name for name in names if name.endswith(".c")):
                source = os.path.relpath(os.path.join(folder, name), self.tree)
                made = os.path.join(self.tree, "build/obj", source[:-2] + ".o")
                os.makedirs(os.path.dirname(made), exist_ok=True)
                subprocess.run(["gcc", "-I.", "-c", "-o", made, source], cwd=self.tree, check=True)

    def check(self, *words):
        done = subprocess.run(["python3", SCRIPT, *words, "build"], cwd=self.tree,
                              capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def make_circle(self):
        """The list is declared without a header of the other folder: grep sees nothing."""
        self.write("daemon/base/list.c", "void conn_open(void);\n"
                                         "void list_add(void (*f)(void)) { f(); conn_open(); }\n")
        self.build()

    def test_news_may_travel_upward_by_a_pointer(self):
        self.build()
        self.assertEqual(self.check(), (0, ""))

    def test_a_call_upward_is_a_circle(self):
        self.make_circle()
        status, text = self.check()
        self.assertEqual(status, 1)
        self.assertIn("daemon/base needs daemon/net: conn_open()\n", text)
        self.assertIn("daemon/net needs daemon/base: daemon/base/list.h in", text)

    def test_an_include_upward_is_a_circle(self):
        self.write("daemon/base/list.h", '#include "daemon/net/conn.h"\n'
                   + PLAIN["daemon/base/list.h"])
        self.build()
        status, text = self.check()
        self.assertEqual(status, 1)
        self.assertIn("daemon/net/conn.h in daemon/base/list.h", text)

    def test_programs_apart_may_call_things_the_same(self):
        self.write("daemon/mover/list.c", "void list_add(void) {}\n"
                                          "void use(void) { extern void conn_open(void); conn_open(); }\n")
        self.write("daemon/mover/conn.c", "void conn_open(void) {}\n")
        self.build()
        self.assertEqual(self.check(), (0, ""))

    def test_what_is_not_built_is_an_error_unless_only_what_is_built_is_asked_for(self):
        self.assertEqual(self.check("--if-built"), (0, ""))
        status, text = self.check()
        self.assertEqual(status, 1)
        self.assertIn("is not built", text)


if __name__ == "__main__":
    unittest.main()
