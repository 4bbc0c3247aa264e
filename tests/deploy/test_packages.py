# SPDX-License-Identifier: Apache-2.0
"""The packages on a bare Debian with a real systemd: `make check-deploy`."""

import errno
import glob
import json
import os
import re
import shutil
import struct
import subprocess
import tempfile
import textwrap
import time
import unittest

from tests.deploy import debian

BUILD = os.environ["GLAKE_BUILD"]
# To upgrade from: packages of an earlier version, if not another revision of these.
OLD_PACKAGES = os.environ.get("GLAKE_OLD_PACKAGES")
# A folder with those of this build, if somebody has made them already.
NEW_PACKAGES = os.environ.get("GLAKE_NEW_PACKAGES")
PACKAGES = ("glaked", "glakectl", "glake-shim", "libglake-client0", "python3-glake")
# What a host with a GPU has. The books of all simulated processes are one file.
DRIVER = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
DROP_IN = "/etc/systemd/system/glaked.service.d/simulated.conf"
BOOKS = "CUDASIM_STATE=/dev/shm/books"
KEEPER = """ExecStart=
ExecStart=/usr/bin/glake-keeper -- /usr/bin/glaked --config /etc/glake/glaked.conf
FileDescriptorStoreMax=0
"""


def write_model(path):
    """Three tensors that are blocks of their own, and a small one."""
    sizes = {"a": 4 << 20, "b": 4 << 20, "c": 6 << 20, "d": 1000}
    header, at = {}, 0
    for name, size in sizes.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + os.urandom(at))


@unittest.skipIf(debian.why_not(), debian.why_not())
class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.debian = debian.Debian(cls.folder)
        cls.addClassCleanup(cls.debian.stop)
        for revision in ("1", "2"):
            made = OLD_PACKAGES or NEW_PACKAGES
            if revision == "1" and made:
                os.mkdir(f"{cls.debian.root}/srv/1")
                for package in glob.glob(made + "/*.deb"):
                    shutil.copy(package, f"{cls.debian.root}/srv/1")
                continue
            subprocess.run(["deploy/deb", BUILD, f"{cls.debian.root}/srv/{revision}"], check=True,
                           env={**os.environ, "DEB_REVISION": revision}, stdout=subprocess.DEVNULL)
        write_model(cls.debian.root + "/srv/model.safetensors")
        for program in ("client.py", "load.py"):
            shutil.copy("tests/deploy/" + program, cls.debian.root + "/srv")
        # Nobody is there to be asked.
        with open(cls.debian.root + "/srv/apt.conf", "w", encoding="utf-8") as file:
            file.write('APT::Get::Assume-Yes "true";\n')

    def inside(self, *words):
        """The output of a command that succeeds."""
        done = self.debian.run(*words)
        self.assertEqual(done.returncode, 0, f"{words}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
        return done.stdout

    def install(self, revision, packages=PACKAGES):
        files = [glob.glob(f"{self.debian.root}/srv/{revision}/{name}_*.deb")[0]
                 for name in packages]
        # A configuration that the test has changed, and a later version as well, stays.
        self.inside("apt-get", "install", "-y", "-qq", "--no-install-recommends",
                    "-o", "Dpkg::Options::=--force-confold",
                    *[file[len(self.debian.root):] for file in files])

    def property_of(self, unit, name):
        return self.inside("systemctl", "show", "--value", "-p", name, unit).strip()

    def status(self):
        return json.loads(self.inside("glakectl", "--json", "status"))

    def start_client(self):
        """A client, and the digest that it has of the model."""
        client = self.debian.start("env", BOOKS, "python3", "/srv/client.py", "/srv/model.safetensors")
        self.addCleanup(client.communicate)
        return client, self.answer(client)

    def answer(self, client):
        line = client.stdout.readline().strip()
        self.assertRegex(line, "^[0-9a-f]{64}$", line)
        return line

    def check(self, client):
        client.stdin.write("check\n")
        client.stdin.flush()
        return self.answer(client)

    def quit(self, client):
        self.assertEqual(client.communicate("quit\n")[0], "")
        self.assertEqual(client.returncode, 0)

    def put_driver(self, more=""):
        shutil.copy(BUILD + "/cudasim/libcuda.so.1", self.debian.root + DRIVER)
        os.makedirs(os.path.dirname(self.debian.root + DROP_IN), exist_ok=True)
        with open(self.debian.root + DROP_IN, "w", encoding="utf-8") as file:
            file.write(f"[Service]\nEnvironment={BOOKS}\n{more}")
        self.inside("systemctl", "daemon-reload")

    def remove_driver(self):
        os.unlink(self.debian.root + DRIVER)
        shutil.rmtree(os.path.dirname(self.debian.root + DROP_IN), ignore_errors=True)

    def test_life_of_the_packages(self):
        self.inside("apt-get", "update", "-qq")
        # What is not right in an earlier version is not tested again.
        if not OLD_PACKAGES:
            self.install(1, ("glakectl", "libglake-client0"))
            # The metrics' unit asks with it, also where glaked is not of a package.
            self.inside("getent", "group", "glake")
        self.install(1)
        self.assert_installed()
        if not OLD_PACKAGES:
            self.assert_waits_for_a_driver()
        self.put_driver()
        # By now it would look again in 8 seconds or more.
        self.inside("systemctl", "restart", "glaked")
        if not OLD_PACKAGES:
            self.assert_drains()
        self.assert_runs_in_its_sandbox()
        self.assert_charges_by_cgroup()

        client, digest = self.start_client()
        # The sandbox lets glake-mover see that nobody has the file open for writing.
        model, = json.loads(self.inside("glakectl", "--json", "models"))["models"]
        self.assertEqual(model["reload_reason"], "")
        self.assert_preloads_from_a_copy()
        self.assert_a_mistake_fails_the_reload()
        first = () if OLD_PACKAGES else (self.restart, self.kill)
        for change in first:
            with self.subTest(change.__name__):
                self.assert_loses_nothing(change, client, digest)
        with self.subTest("under load"):
            self.assert_loses_nothing_under_load(client, digest)
        for change in (self.restart, self.terminate, self.misconfigure):
            with self.subTest(change.__name__):
                self.assert_loses_nothing(change, client, digest)
        self.quit(client)
        self.run_demo()
        self.assert_nothing_left()

    def test_upgrade_below_the_keeper(self):
        """The unit's main process is glake-keeper, and stays."""
        self.inside("apt-get", "update", "-qq")
        self.install(1)
        self.put_driver(KEEPER)
        self.inside("systemctl", "start", "glaked")
        keeper = self.property_of("glaked.service", "MainPID")
        client, digest = self.start_client()
        for change in (self.upgrade, self.terminate):
            with self.subTest(change.__name__):
                self.assert_loses_nothing(change, client, digest)
        self.assertEqual(self.property_of("glaked.service", "MainPID"), keeper)
        self.quit(client)
        self.assert_nothing_left()

    def assert_waits_for_a_driver(self):
        """Nobody listens in vain, and it is started again later and later."""
        self.inside("systemctl", "start", "glaked")
        begin = time.monotonic()
        before = int(self.property_of("glaked.service", "NRestarts"))
        while time.monotonic() < begin + 15:
            done = self.debian.run("glakectl", "status")
            self.assertEqual((done.returncode, done.stdout), (3, ""))
            self.assertIn("glaked owns no GPU: cannot open the CUDA driver library: libcuda.so.1", done.stderr)
            self.assertRegex(done.stderr, r"error +driver .*libcuda.so.1.*\n +-> install the driver")
            time.sleep(0.5)
        # After 2, 4, 8 and 16 seconds.
        self.assertIn(int(self.property_of("glaked.service", "NRestarts")) - before, (2, 3, 4))
        self.assertEqual(self.property_of("glaked.service", "ActiveState"), "active")
        self.assertRegex(self.property_of("glaked.service", "StatusText"), "no GPU: cannot open the CUDA driver library")
        self.assertNotIn("Failed with result", self.inside("journalctl", "-u", "glaked", "--no-pager"))

    def assert_drains(self):
        """No client that comes by the socket unit undoes it."""
        self.inside("glakectl", "drain", "--wait", "--reason", "a new driver")
        self.inside("systemctl", "stop", "glaked")
        done = self.debian.run("env", BOOKS, "glakectl", "load", "/srv/model.safetensors")
        self.assertEqual(done.returncode, 6, done.stderr)
        self.assertIn("glaked is drained and takes no new programs: a new driver", done.stderr)
        self.inside("systemctl", "kill", "--kill-whom=main", "--signal=KILL", "glaked")
        self.wait_until(lambda: self.debian.run("glakectl", "status").returncode == 0, lambda: "it does not come back")
        self.assertTrue(self.status()["drained"])
        self.inside("glakectl", "drain", "--undo")
        self.inside("systemctl", "restart", "glaked")
        self.assertFalse(self.status()["drained"])

    def assert_installed(self):
        self.assertEqual(self.property_of("glaked.socket", "ActiveState"), "active")
        self.assertEqual(self.property_of("glaked.service", "UnitFileState"), "enabled")
        # There is no driver yet: nothing has been started, and so nothing has failed.
        self.assertEqual(self.property_of("glaked.service", "ActiveState"), "inactive")
        self.assertIn("(video)", self.inside("id", "glake"))
        self.assertEqual(self.inside("stat", "-c", "%a", "/run/glake/glaked.sock").strip(), "666")
        self.inside("glaked", "--check-config", "--config", "/etc/glake/glaked.conf")

    def assert_runs_in_its_sandbox(self):
        pid = self.property_of("glaked.service", "MainPID")
        self.assertEqual(self.inside("stat", "-c", "%U", f"/proc/{pid}").strip(), "glake")
        self.assertEqual(self.status()["pid"], int(pid))
        done = self.debian.run("systemd-analyze", "security", "--no-pager", "--threshold=16",
                               "glaked.service")
        self.assertEqual(done.returncode, 0, done.stdout)
        print(done.stdout.strip().splitlines()[-1])
        self.assert_sandbox_holds()

    def assert_sandbox_holds(self):
        """From inside: a program that systemd starts as it starts glaked."""
        shutil.copy("tests/deploy/escape.py", self.debian.root + "/srv")
        for folder, mode in (("/home/user", "700"), ("/root", "700"), ("/home/open", "777")):
            self.inside("install", "-d", "-m", mode, folder)
            self.inside("bash", "-c", f"echo secret >{folder}/secret")
        self.inside("touch", "/tmp/others")
        drop_in = os.path.dirname(DROP_IN) + "/escape.conf"
        with open(self.debian.root + drop_in, "w", encoding="utf-8") as file:
            file.write("[Service]\nExecStartPost=/usr/bin/python3 /srv/escape.py /run/glake/escape $MAINPID\n")
        self.inside("systemctl", "daemon-reload")
        self.inside("systemctl", "restart", "glaked")
        os.unlink(self.debian.root + drop_in)
        self.inside("systemctl", "daemon-reload")
        inside = json.loads(self.inside("cat", "/run/glake/escape"))
        self.inside("rm", "/run/glake/escape")

        lease = f"{1 << 28:016x}"
        self.assertEqual(inside["status"], {"CapBnd": lease, "CapEff": lease, "CapPrm": lease, "CapAmb": lease,
                                            "NoNewPrivs": "1", "Seccomp": "2"})
        self.assertEqual({name: error for name, error in inside["calls"].items() if error != errno.EPERM}, {})
        self.assertEqual(inside["attach"], errno.EPERM)
        self.assertEqual((inside["families"], inside["suid"], inside["secrets"]), ([], False, []))
        self.assertNotIn("others", inside["tmp"])
        # What everybody may write on any Debian, and its own folders.
        allowed = ("/dev/(full|mqueue|null|ptmx|pts/.*|random|shm|tty|urandom|zero)|/run/lock|"
                   "/run/glake|(/var)?/tmp")
        self.assertEqual([path for path in inside["writable"] if not re.fullmatch(allowed, path)], [])
        # And nothing that it told systemd was heard.
        shown = self.inside("systemctl", "show", "-p", "StatusText,MainPID,NFileDescriptorStore", "glaked")
        self.assertNotIn("forged", shown)
        self.assertEqual(self.status()["pid"], int(self.property_of("glaked.service", "MainPID")))
        self.assertEqual(self.property_of("glaked.service", "NFileDescriptorStore"), "1")

        # The same program finds ways where there is no sandbox.
        self.inside("setpriv", "--reuid=glake", "--regid=glake", "--clear-groups", "python3", "/srv/escape.py",
                    "/tmp/escape")
        outside = json.loads(self.inside("cat", "/tmp/escape"))
        self.assertEqual(outside["calls"]["ptrace"], 0)
        self.assertIn("AF_INET", outside["families"])
        self.assertIn("/home/open", outside["writable"])
        self.assertTrue(outside["suid"])
        self.inside("rm", "-r", "/tmp/escape", "/tmp/others", "/home/user", "/home/open", "/root/secret")

    def assert_charges_by_cgroup(self):
        """A pod's limit: glaked sees the cgroups of other users' processes."""
        uid = "0ccc0a7e-35f5-4a1c-9e0a-6b0f7e8f6c11"
        slice_name = f"kubepods-besteffort-pod{uid.replace('-', '_')}.slice"
        shutil.copy("deploy/kubernetes/tenants.py", self.debian.root + "/srv")
        pod = {"metadata": {"name": "serve", "namespace": "default", "uid": uid,
                            "annotations": {"glake/device-bytes": "64MiB"}}}
        with open(self.debian.root + "/srv/pods", "w", encoding="utf-8") as file:
            json.dump({"items": [pod]}, file)
        config = self.debian.root + "/etc/glake/glaked.conf"
        with open(config, encoding="utf-8") as file:
            text = file.read()
        with open(config + ".base", "w", encoding="utf-8") as file:
            file.write(text.replace("\ntenants = (\n", "\ntenants = (\n#pods\n"))
        self.inside("systemctl", "start", slice_name)
        # Of this machine's hierarchies, the unified one.
        cgroups = "/sys/fs/cgroup"
        if os.path.isdir("/sys/fs/cgroup/unified"):
            cgroups += "/unified"
        self.inside("python3", "/srv/tenants.py", "--once", "--config=/etc/glake/glaked.conf.base",
                    "--out=/etc/glake/glaked.conf", "--pods=/srv/pods", "--cgroups=" + cgroups)
        os.unlink(config + ".base")
        self.inside("systemctl", "reload", "glaked")
        program = """import glake
session = glake.connect()
print(session.info()["tenant"])
session.alloc(32 << 20)
try:
    session.alloc(128 << 20)
except glake.QuotaError as error:
    print(error)
"""
        out = self.inside("systemd-run", "--quiet", "--pipe", "--wait", "--slice=" + slice_name,
                          "--uid=nobody", "--setenv=" + BOOKS, "python3", "-c", program)
        self.assertIn(f"serve.{uid}\n", out)
        self.assertIn(f"tenant serve.{uid} uses 32.0 of 64.0 MiB\n", out)

    def kept(self):
        """What has to stay: memory, the model, and how many have it."""
        models = json.loads(self.inside("glakectl", "--json", "models"))["models"]
        device, = self.status()["devices"]
        used = [(model["id"], model["n_open"]) for model in models if model["n_open"] > 0]
        return device["private_bytes"], device["used_block_bytes"], used

    def assert_loses_nothing(self, change, client, digest):
        before, kept = self.status()["pid"], self.kept()
        change()
        self.wait_until(lambda: self.status()["pid"] != before, lambda: "it is the same glaked")
        self.assertEqual(self.kept(), kept)
        self.assertEqual(self.check(client), digest)
        other, other_digest = self.start_client()
        self.assertEqual(other_digest, digest)
        self.quit(other)
        # It was there for the other one.
        stats = json.loads(self.inside("glakectl", "--json", "stats"))["metrics"]
        loaded, = [metric["value"] for metric in stats if metric["name"] == "models_loaded"]
        self.assertEqual(loaded, 0)

    def assert_loses_nothing_under_load(self, client, digest):
        kept, kills = self.kept(), int(os.environ.get("GLAKE_KILLS", "5"))
        loads = [self.debian.start("env", BOOKS, "python3", "/srv/load.py",
                                   "/srv/model.safetensors", digest) for _ in range(2)]
        for load in loads:
            self.addCleanup(load.communicate)
        for change in [self.upgrade] + [self.kill] * kills:
            change()
            self.assertGreater(self.status()["pid"], 0)
            self.assertEqual(self.check(client), digest)
        for load in loads:
            out = load.communicate()[0]
            self.assertEqual(load.returncode, 0, out)
            self.assertGreater(int(out.split()[0]), 0, out)
            print(f"an upgrade, {kills} kills; good, failed: {out.strip()}")
        self.wait_until(lambda: self.kept() == kept, lambda: f"{self.kept()}, not {kept}")

    def wait_until(self, condition, otherwise):
        for _ in range(100):
            if condition():
                return
            time.sleep(0.1)
        self.fail(otherwise())

    def assert_preloads_from_a_copy(self):
        """As a pod does it, whose image has nothing of glake."""
        shutil.copy("tests/deploy/serve.py", self.debian.root + "/srv")
        self.inside("cp", "-r", "/usr/lib/glake", "/srv/")
        out = self.inside("env", BOOKS, "LD_PRELOAD=/srv/glake/libcuda.so.1",
                          "GLAKE_SHIM_ABSENT=refuse", "python3", "/srv/serve.py")
        self.assertEqual(out, "glaked's memory: True\n")

    def assert_a_mistake_fails_the_reload(self):
        config = self.debian.root + "/etc/glake/glaked.conf"
        with open(config, encoding="utf-8") as file:
            text = file.read()
        pid = self.property_of("glaked", "MainPID")
        with open(config, "a", encoding="utf-8") as file:
            file.write("warm_byts = 1;\n")
        self.assertNotEqual(self.debian.run("systemctl", "reload", "glaked").returncode, 0)
        self.assertIn("unknown key warm_byts", self.inside("journalctl", "-u", "glaked", "-n", "20", "--no-pager"))
        with open(config, "w", encoding="utf-8") as file:
            file.write(text)
        self.inside("systemctl", "reload", "glaked")
        self.assertEqual(self.property_of("glaked", "MainPID"), pid)

    def restart(self):
        self.inside("systemctl", "restart", "glaked")

    def upgrade(self):
        self.install(2)
        self.assertTrue(self.inside("dpkg-query", "-W", "-f", "${Version}", "glaked").endswith("-2"))

    def kill(self):
        self.inside("systemctl", "kill", "--kill-whom=main", "--signal=KILL", "glaked")
        self.inside("systemctl", "is-active", "--quiet", "glaked.socket")

    def terminate(self):
        """By somebody who does not know of systemctl."""
        self.inside("kill", str(self.status()["pid"]))

    def misconfigure(self):
        """It cannot start, which is tried again, though not all the time; what is kept stays."""
        config = self.debian.root + "/etc/glake/glaked.conf"
        with open(config, encoding="utf-8") as file:
            text = file.read()
        with open(config, "w", encoding="utf-8") as file:
            file.write(text + "no_such_key = 1;\n")
        begin = time.monotonic()
        before = int(self.property_of("glaked.service", "NRestarts"))
        self.debian.run("systemctl", "restart", "glaked")
        self.wait_until(lambda: int(self.property_of("glaked.service", "NRestarts")) >= before + 3,
                        lambda: "it is not tried again")
        self.assertGreater(time.monotonic() - begin, 4)
        with open(config, "w", encoding="utf-8") as file:
            file.write(text)

    def run_demo(self):
        """With what is installed, beside the service."""
        tree = self.debian.root + "/srv/demo"
        shutil.copytree(BUILD + "/tests/demo", tree + "/tests/demo",
                        ignore=shutil.ignore_patterns("*.d"))
        shutil.copy("tests/demo/run.sh", tree + "/tests/demo")
        shutil.copytree(BUILD + "/cudasim", tree + "/cudasim")
        os.symlink("/usr/bin", tree + "/bin")
        # /tmp is a tmpfs, where a file may change unnoticed.
        out = self.inside("env", "TMPDIR=/var/tmp", "/srv/demo/tests/demo/run.sh", "/srv/demo")
        self.assertRegex(out, "\ndemo: .* OK\n$")

    def remove_installation(self):
        self.inside("systemctl", "disable", "--now", "glaked.socket", "glaked.service")
        self.inside("find", "/usr/local", "/etc", "/run", "-depth", "-iname", "*glake*",
                    "-exec", "rm", "-r", "{}", ";")
        self.inside("systemctl", "daemon-reload")
        self.remove_driver()

    def test_make_install(self):
        """What the README says about an installation without packages, below /usr/local."""
        # What the packages depend on stays.
        self.inside("apt-get", "update", "-qq")
        self.install(1)
        self.inside("apt-get", "purge", "-y", "-qq", *PACKAGES)
        self.inside("userdel", "glake")
        subprocess.run(["deploy/install", BUILD, self.debian.root, "/usr/local"], check=True,
                       env={**os.environ, "SYSCONFDIR": "/etc"})
        self.inside("ldconfig")
        self.addCleanup(self.remove_installation)
        self.put_driver()
        for step in ("systemd-sysusers", "systemd-tmpfiles --create",
                     "systemctl enable --now glaked.socket"):
            self.inside(*step.split())
        # The first client starts it.
        self.assertEqual(len(self.status()["devices"]), 1)
        pid = self.property_of("glaked.service", "MainPID")
        self.assertEqual(os.path.basename(self.inside("readlink", f"/proc/{pid}/exe").strip()),
                         "glaked")
        self.assertEqual(self.inside("python3", "-c", "import glake; print(glake.status()['pid'])"),
                         pid + "\n")

    def test_readme_word_by_word(self):
        """What the README and the first hour tell an operator to type, after `make deb`."""
        with open("README.md", encoding="utf-8") as file:
            block = file.read().split("as root:\n\n```sh\n", 1)[1].split("```", 1)[0]
        with open("docs/first-hour.md", encoding="utf-8") as file:
            hour = "set -e\n" + "\n".join(re.findall(r"(?ms)^```sh\n(.*?)^```", file.read()))
        self.assertTrue(block.startswith("make deb "))
        steps = "set -e\n" + block.split("\n", 1)[1]
        home = self.debian.root + "/srv/readme"
        os.makedirs(home)
        shutil.copytree(self.debian.root + "/srv/1", home + "/dist")
        shutil.copy("tests/deploy/serve.py", home)
        os.makedirs(self.debian.root + "/srv/models/llama-8b")
        shutil.copy(self.debian.root + "/srv/model.safetensors",
                    self.debian.root + "/srv/models/llama-8b")
        self.put_driver()
        self.inside("apt-get", "update", "-qq")
        def follow(steps):
            return self.inside("env", "--chdir=/srv/readme", BOOKS, "APT_CONFIG=/srv/apt.conf", "bash",
                               "-c", steps)

        out = follow(steps)
        self.assertIn("CUDASIM", out)
        self.assertIn("\nglaked's memory: True\n", out)
        out = follow(hour)
        self.assertIn("glaked's memory: True\n", out)
        self.assertIn("\nquota on device 0: 5.0 GiB\n", out)
        self.assertRegex(out, r"(?s)KILL.*adopted from .*: 4 blocks .*, 1 models")
        self.assertRegex(out.split("quota on device")[1], r"\n +1  /srv/models/llama-8b .* yes ")
        page = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9464/metrics').read())"
        self.assertIn("glake_up 1", self.inside("python3", "-c", page))
        self.check_metrics_with_a_token()
        self.assert_nothing_left()

    def check_metrics_with_a_token(self):
        """The drop-in of docs/monitoring.md."""
        with open("docs/monitoring.md", encoding="utf-8") as file:
            (drop_in,) = re.findall(r"(?s)```\n(  \[Service\]\n  LoadCredential=token:.*?)```", file.read())
        folder, token = (self.debian.root + path for path in ("/etc/systemd/system/glake-metrics.service.d",
                                                               "/etc/glake/metrics.token"))
        os.mkdir(folder)
        with open(folder + "/token.conf", "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(drop_in))
        with open(token, "w", opener=lambda path, flags: os.open(path, flags, 0o600), encoding="utf-8") as file:
            file.write("0123456789abcdef" * 4)
        self.inside("systemctl", "daemon-reload")
        self.inside("systemctl", "restart", "glake-metrics")
        ask = """
import time, urllib.error, urllib.request
for headers in ({}, {"Authorization": "Bearer " + "0123456789abcdef" * 4}):
    for _ in range(600):
        try:
            answer = urllib.request.urlopen(urllib.request.Request("http://127.0.0.1:9464/metrics", headers=headers))
        except urllib.error.HTTPError as error:
            answer = error
        except urllib.error.URLError:
            time.sleep(0.1)
            continue
        print(answer.status, b"glake_up 1" in answer.read())
        break
"""
        self.assertEqual(self.inside("python3", "-c", ask), "401 False\n200 True\n")
        self.assertIn("0.0.0.0:9464", self.inside("cat", "/proc/" + self.property_of("glake-metrics", "MainPID") + "/cmdline"))
        os.unlink(token)
        shutil.rmtree(folder)
        self.inside("systemctl", "daemon-reload")

    def assert_nothing_left(self):
        self.inside("apt-get", "remove", "-y", "-qq", *PACKAGES)
        self.assertEqual(self.property_of("glaked.service", "LoadState"), "not-found")
        self.assertFalse(os.path.exists(self.debian.root + "/run/glake"))
        self.assertTrue(os.path.exists(self.debian.root + "/etc/glake/glaked.conf"))
        self.assertEqual(self.debian.run("pgrep", "glake").stdout, "")
        self.inside("apt-get", "purge", "-y", "-qq", "glaked", "glakectl")
        self.remove_driver()
        found = self.inside("find", "/", "-xdev", "-path", "/srv", "-prune", "-o",
                            "(", "-iname", "*glake*", "-o", "-user", "glake", ")", "-print",
                            "-o", "-path", "/run", "-prune")
        self.assertEqual(found, "")
        self.assertEqual(self.inside("find", "/run", "-iname", "*glake*"), "")


if __name__ == "__main__":
    unittest.main()
