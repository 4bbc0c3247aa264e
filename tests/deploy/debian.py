# SPDX-License-Identifier: Apache-2.0
"""A Debian (or Ubuntu) of this machine's release with a systemd of its own, booted in a folder.

The bare root is made once, by debootstrap from where apt-get gets this machine's packages, and kept in the
build folder. Needs root, debootstrap and systemd-nspawn.
"""

import os
import shutil
import subprocess
import time

BUILD = os.environ["GLAKE_BUILD"]
SECONDS = 120  # for what hangs


def why_not():
    """Why none can be booted here; None if one can."""
    if os.geteuid() != 0:
        return "needs root"
    missing = [tool for tool in ("debootstrap", "systemd-nspawn") if not shutil.which(tool)]
    return "needs " + " and ".join(missing) if missing else None


def _release():
    with open("/etc/os-release", encoding="utf-8") as file:
        words = dict(line.rstrip("\n").split("=", 1) for line in file if "=" in line)
    return words["VERSION_CODENAME"].strip('"')


def bare_root():
    """The folder of the root that others are copies of."""
    release = _release()
    root = f"{BUILD}/deploy/{release}"
    if not os.path.isdir(root):
        mirror = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI)",
                                 "Created-By: Packages", f"Release: {release}"],
                                check=True, capture_output=True, text=True).stdout.split()[0]
        shutil.rmtree(root + ".new", ignore_errors=True)
        os.makedirs(root + ".new")
        made = subprocess.run(["debootstrap", "--variant=minbase", "--include=systemd-sysv,dbus",
                               release, root + ".new", mirror],
                              check=False, capture_output=True, text=True)
        if made.returncode != 0:
            raise RuntimeError("debootstrap: " + made.stdout[-2000:] + made.stderr)
        os.rename(root + ".new", root)
    return root


class Debian:
    def __init__(self, folder):
        self.root = folder + "/root"
        subprocess.run(["cp", "-a", "--reflink=auto", bare_root(), self.root], check=True)
        self._log = open(folder + "/console", "wb")  # pylint: disable=consider-using-with
        self._nspawn = subprocess.Popen(  # pylint: disable=consider-using-with
            ["systemd-nspawn", "--quiet", "--boot", "--register=no", "--keep-unit",
             "--link-journal=no", "--console=pipe", "--directory", self.root],
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT,
            # Its filter denies what it cannot name, as listmount(). A host has none.
            env={**os.environ, "SYSTEMD_SECCOMP": "0"})
        try:
            self._init = self._wait_for(self._find_init, "has no init")
            self._wait_for(self._is_up, "does not come up")
        except BaseException:
            self.stop()
            raise

    def _wait_for(self, condition, otherwise):
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline and self._nspawn.poll() is None:
            found = condition()
            if found:
                return found
            time.sleep(0.1)
        with open(self._log.name, encoding="utf-8", errors="replace") as file:
            raise RuntimeError(f"the booted Debian {otherwise}: {file.read()[-2000:]}")

    def _find_init(self):
        task = f"/proc/{self._nspawn.pid}/task/{self._nspawn.pid}/children"
        with open(task, encoding="ascii") as file:
            children = file.read().split()
        for pid in children:
            if os.readlink(f"/proc/{pid}/exe").endswith("/systemd"):
                return pid
        return None

    def _is_up(self):
        done = self.run("systemctl", "is-system-running")
        return done.stdout.strip() in ("running", "degraded")

    def command(self, *words):
        """The command line that runs words inside, in the environment of a login."""
        return ["nsenter", "--target", self._init, "--all", "env", "-i", "HOME=/root",
                "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", *words]

    def run(self, *words, **more):
        return subprocess.run(self.command(*words), check=False, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=SECONDS, **more)

    def start(self, *words):
        """A process that is asked and answers by lines."""
        return subprocess.Popen(  # pylint: disable=consider-using-with
            self.command(*words), stdin=subprocess.PIPE, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def stop(self):
        self._nspawn.terminate()  # powers it off
        try:
            self._nspawn.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self._nspawn.kill()
            self._nspawn.wait()
        self._log.close()
