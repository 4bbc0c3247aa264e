# SPDX-License-Identifier: Apache-2.0
"""What `make install` puts into place is complete and works there."""

import glob
import os
import re
import subprocess
import tempfile
import unittest

BUILD = os.environ["GLAKE_BUILD"]


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def run(*words, **more):
    return subprocess.run(words, capture_output=True, text=True, check=False, **more)


class Install(unittest.TestCase):
    """Of what is built: a build folder of other flags (sanitizers) does not run Python tests."""

    def test_tree(self):
        with tempfile.TemporaryDirectory() as root:
            more = {"VERSION": "1.2.3", "SOVERSION": "0", "SYSCONFDIR": "/etc"}
            done = run("deploy/install", BUILD, root, "/opt/glake", env={**os.environ, **more})
            self.assertEqual(done.returncode, 0, done.stderr)
            tree = root + "/opt/glake/"
            pages = {os.path.basename(path) for path in glob.glob("*/**/*.[1-8]", recursive=True)
                     if not path.startswith(("build", "dist", "tests"))} | {"glaked.conf.5"}
            self.assertEqual({os.path.basename(path) for path in glob.glob(tree + "share/man/man?/*")}, pages)
            for page in glob.glob(tree + "share/doc/glake/docs/*.md"):
                for link in re.findall(r"\]\(([^):#]*\.md)(?:#[^)]*)?\)", read(page)):
                    # Those to sources and their pages lead nowhere here.
                    if "/" not in link or link.startswith("decisions/"):
                        self.assertTrue(os.path.exists(os.path.join(os.path.dirname(page), link)), link)
            self.assertEqual(os.readlink(tree + "lib/libglake-client.so"), "libglake-client.so.0")
            self.assertIn("ExecStart=/opt/glake/bin/glaked ",
                          read(tree + "lib/systemd/system/glaked.service"))
            self.assertIn("ExecStart=/opt/glake/bin/glakectl metrics",
                          read(tree + "lib/systemd/system/glake-metrics.service"))
            self.assertEqual(read(root + "/etc/glake/glaked.conf"), read("deploy/glaked.conf"))
            self.assertIn("prefix=/opt/glake\n", read(tree + "lib/pkgconfig/glake-client.pc"))
            self.assertEqual(run(tree + "bin/glakectl", "--version").returncode, 0)
            self.assert_compiles(tree)
            self.assert_imports(tree)

    def test_folders_of_a_distribution(self):
        with tempfile.TemporaryDirectory() as root:
            more = {"VERSION": "1.2.3", "SOVERSION": "0", "SYSCONFDIR": "/opt/etc",
                    "LIBDIR": "/opt/glake/lib/x86_64-linux-gnu"}
            done = run("deploy/install", BUILD, root, "/opt/glake", env={**os.environ, **more})
            self.assertEqual(done.returncode, 0, done.stderr)
            library = root + more["LIBDIR"] + "/libglake-client.so"
            self.assertEqual(os.path.realpath(library), os.path.realpath(library + ".1.2.3"))
            self.assertEqual(glob.glob(root + "/opt/glake/lib/libglake*"), [])
            done = run("pkg-config", "--libs", "glake-client",
                       env={**os.environ, "PKG_CONFIG_LIBDIR": root + more["LIBDIR"] + "/pkgconfig"})
            self.assertEqual(done.stdout.split(), [f"-L{more['LIBDIR']}", "-lglake-client"])
            units = root + "/opt/glake/lib/systemd/system/"
            self.assertEqual(sorted(os.listdir(units)),
                             ["glake-metrics.service", "glaked-devices.service", "glaked.service",
                              "glaked.socket"])
            self.assertIn("ExecStart=/opt/glake/bin/glaked --wait-for-gpu --config /opt/etc/glake/glaked.conf\n",
                          read(units + "glaked.service"))

    def assert_compiles(self, tree):
        """A program of somebody else: public headers and the shared library are enough."""
        source = tree + "use.c"
        with open(source, "w", encoding="utf-8") as file:
            file.write("#include <glake_admin.h>\nint main(void) { return !glake_version(); }\n")
        done = run("gcc", "-std=c99", "-pedantic-errors", "-Wall", "-Werror", "-o", tree + "use",
                   source, f"-I{tree}include", f"-L{tree}lib", "-lglake-client")
        self.assertEqual(done.returncode, 0, done.stderr)
        env = {**os.environ, "LD_LIBRARY_PATH": tree + "lib"}
        self.assertEqual(run(tree + "use", env=env).returncode, 0)


    def assert_imports(self, tree):
        """By the system's Python, which finds the library without being told where."""
        packages = glob.glob(tree + "lib/python3.*/dist-packages")
        self.assertEqual(len(packages), 1)
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": packages[0]}
        done = run("/usr/bin/python3", "-c",
                   "import glake._lib; print(glake._lib.library()._name)", env=env, cwd="/")
        self.assertEqual(done.stdout.strip(), tree + "lib/libglake-client.so.0", done.stderr)


if __name__ == "__main__":
    unittest.main()
