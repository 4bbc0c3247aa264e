# SPDX-License-Identifier: Apache-2.0
"""glakectl against a real glaked on simulated GPUs: each command does what it says."""

import http.client
import json
import os
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import unittest
import unittest.mock

from tests.integration.with_glaked import BUILD, MIB, PATIENCE_S, WithGlaked, tell, until

NOBODY = 65534


class Glakectl(WithGlaked):
    def test_programs_are_sealed_by_their_pids(self):
        programs = [self.serve(), self.serve()]
        pids = [str(program.pid) for program in programs]
        (row,) = self.ask("seal", "--dry-run", pids[0])["sessions"]
        self.assertEqual((row["sealed_bytes"], self.ask("blocks")["blocks"]), (2 * MIB, []))
        (row,) = self.ask("seal", pids[0])["sessions"]
        self.assertEqual((row["pid"], row["sealed_bytes"], row["failed_bytes"]),
                         (programs[0].pid, 2 * MIB, 0))
        (other,) = (session["session"] for session in self.ask("sessions")["sessions"]
                    if session["pid"] == programs[1].pid)
        done = self.ctl("--bytes", "seal", str(other))
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stdout, rf"(?m)^ *{other} +{pids[1]} +2097152 +2097152 +\d")
        self.assertEqual(len(self.ask("blocks")["blocks"]), 1)
        self.assertIn("no session 1", self.refused(5, "GLAKE_E_NOT_FOUND", "seal", "1"))
        self.refused(5, "GLAKE_E_NOT_FOUND", "seal", pids[0], uid=NOBODY)
        for program in programs:
            program.communicate("\n", timeout=PATIENCE_S)
            self.assertEqual(program.returncode, 0)

    def test_a_program_that_is_busy_all_the_time_is_an_error(self):
        program = self.serve("endless")
        self.assertIn("held back", self.refused(6, "GLAKE_E_BUSY", "seal", str(program.pid)))
        self.assertEqual(tell(program, ""), "ready\n")
        (row,) = self.ask("seal", str(program.pid))["sessions"]
        self.assertEqual((row["sealed_bytes"], row["failed_bytes"]), (4 * MIB, 0))
        program.communicate("\n", timeout=PATIENCE_S)
        self.assertEqual(program.returncode, 0)

    def findings(self, code, *words):
        done = self.ctl("--json", "doctor", *words)
        self.assertEqual((done.returncode, done.stderr), (code, ""), done.stdout)
        return {row["check"]: row for row in json.loads(done.stdout)["findings"]}

    def test_the_doctor_finds_what_is_wrong(self):
        found = self.findings(0)
        self.assertEqual({found[check]["level"] for check in ("driver", "socket", "daemon", "events")}, {"ok"})
        self.assertIn("an admin", found["rights"]["text"])
        os.chmod(self.socket, 0o600)
        self.assertEqual(self.findings(0)["socket"]["level"], "note")
        self.daemon.send_signal(signal.SIGSTOP)
        self.addCleanup(self.daemon.send_signal, signal.SIGCONT)
        self.assertIn("kill -CONT", self.findings(3)["daemon"]["remedy"])
        self.daemon.send_signal(signal.SIGCONT)
        self.stop_daemon()
        found = self.findings(3)
        self.assertEqual(found["daemon"]["level"], "error")
        self.assertIn("systemctl start", found["daemon"]["remedy"])
        env = {**os.environ, "GLAKE_LIBCUDA": "/nowhere/libcuda.so.1"}
        done = subprocess.run([os.path.join(BUILD, "bin", "glakectl"), "doctor"], env=env,
                              capture_output=True, text=True, check=False)
        self.assertRegex(done.stdout, r"(?m)^error +driver +/nowhere/libcuda.so.1: cannot open")
        self.assertRegex(done.stdout, r"(?m)^ +-> install the driver")

    def parse_metrics(self, text):
        """Samples by name and labels; each family in one place, behind its type."""
        samples, types = {}, {}
        family = None
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                _, _, family, kind = line.split()
                self.assertNotIn(family, types)
                types[family] = kind
            elif not line.startswith("# HELP "):
                self.assertRegex(line, r'^[a-z_]+(\{([A-Za-z_]+="([^"\\\n]|\\["\\n])*",?)*\})? [0-9.e+-]+$')
                name = re.match("[a-z_]+", line).group()
                self.assertIn(name, [family + suffix for suffix in ("", "_bucket", "_sum", "_count")])
                key, value = line.rsplit(" ", 1)
                self.assertNotIn(key, samples)
                samples[key] = float(value)
        if shutil.which("promtool"):
            done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True,
                                  text=True, check=False)
            self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))
        return samples, types

    def get(self, connection, path="/metrics", method="GET", **headers):
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def test_metrics_are_served(self):
        address = os.path.join(self.folder, "metrics.sock")
        self.ask("load", "--pin", self.model("m.safetensors", seed=1))
        server = self.serve_metrics("unix:" + address, "--models")
        self.assertEqual(os.stat(address).st_mode & 0o777, 0o660)
        connection = http.client.HTTPConnection("metrics", timeout=PATIENCE_S)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(address)
        status, text = self.get(connection)
        samples, types = self.parse_metrics(text)
        self.assertEqual((status, samples["glake_up"], samples["glake_models_loaded_total"]), (200, 1, 1))
        (cached,) = (value for key, value in samples.items()
                     if key.startswith("glake_device_bytes{") and 'gpu="0"' in key and 'use="blocks_cached"' in key)
        self.assertEqual(cached, 6 * MIB)
        self.assertEqual(types["glake_load_seconds"], "histogram")
        self.assertEqual((samples["glake_load_seconds_count"], samples['glake_load_seconds_bucket{le="+Inf"}']),
                         (1, 1))
        buckets = [value for key, value in samples.items() if key.startswith("glake_request_seconds_bucket")]
        self.assertEqual(buckets, sorted(buckets))
        self.assertGreater(samples["glake_request_seconds_count"], 5)
        self.assertEqual(self.get(connection, "/else")[0], 404)
        self.check_dashboard(types)
        # It goes on without glaked, and with the next one.
        self.stop_daemon()
        self.wait_for_up(connection, 0)
        self.start_daemon()
        self.wait_for_up(connection, 1)
        # Nor does it wait for one that is stopped, longer than a scrape does.
        self.daemon.send_signal(signal.SIGSTOP)
        self.addCleanup(self.daemon.send_signal, signal.SIGCONT)
        connection.sock.settimeout(15)
        self.wait_for_up(connection, 0)
        self.assertEqual(self.parse_metrics(self.get(connection)[1])[0], {"glake_up": 0})
        server.terminate()
        self.assertEqual(server.wait(PATIENCE_S), 0)
        self.assertFalse(os.path.exists(address))

    def wait_for_up(self, connection, wanted):
        """What it was told a second ago it tells again."""
        def samples():
            found = self.parse_metrics(self.get(connection)[1])[0]
            return found if found["glake_up"] == wanted else None

        self.assertEqual(len(until(samples)) > 1, bool(wanted))

    def test_slow_clients_keep_nobody_out(self):
        address = os.path.join(self.folder, "metrics.sock")
        self.serve_metrics("unix:" + address)
        slow = []
        for _ in range(128):
            slow.append(socket.socket(socket.AF_UNIX))
            self.addCleanup(slow[-1].close)
            slow[-1].settimeout(15)
            slow[-1].connect(address)
            slow[-1].send(b"GET /metrics HTTP/1.1\r\nHost: ")
        connection = http.client.HTTPConnection("metrics")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(address)
        connection.request("GET", "/metrics")
        # Each sends a byte a second, so none is ever silent.
        for _ in range(60):
            ready, _, _ = select.select([connection.sock], [], [], 1)
            if ready:
                break
            for one in slow:
                try:
                    one.send(b"x")
                except OSError:
                    pass
        self.assertEqual(connection.getresponse().status, 200)

    def check_dashboard(self, types):
        """Each metric that it, and the documentation, asks for is there."""
        with open("deploy/grafana-glake.json", encoding="utf-8") as file:
            asked = " ".join(target["expr"] for panel in json.load(file)["panels"]
                             for target in panel["targets"])
        with open("docs/monitoring.md", encoding="utf-8") as file:
            asked += file.read().split("## Metrics")[1].split("\n## ")[0]
        names = set(re.findall(r"\bglake_[a-z_]*[a-z]\b", asked))
        # A bucket is of a histogram.
        self.assertEqual({re.sub("_bucket$", "", name) for name in names} - set(types), set())

    def test_metrics_are_for_this_host(self):
        port = self.free_port()
        self.serve_metrics(f"127.0.0.1:{port}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        self.assertEqual(self.get(connection)[0], 200)
        self.assertEqual(self.get(connection, Host="localhost")[0], 200)
        for host in ("LOCALHOST:1", "[::1]", "[::1]:9464", "127.0.0.2"):
            self.assertEqual(self.get(connection, Host=host)[0], 200, host)
        for host in ("elsewhere.example", "unix:/x", "10.0.0.1", "[::]", "localhost.", "localhost:9464:1", "127.1", "x" * 300):
            self.assertEqual(self.get(connection, Host=host)[0], 403, host)
        self.assertEqual(self.get(connection, Host="127.0.0.1.elsewhere.example")[0], 403)
        self.assertEqual(self.get(connection, method="POST")[0], 405)
        self.assertEqual(self.get(connection, method="HEAD"), (200, ""))
        # A body changes nothing.
        connection.request("GET", "/metrics", body="x")
        answer = connection.getresponse()
        self.assertEqual((answer.status, answer.read()[:6]), (200, b"# HELP"))
        done = self.ctl("metrics", "--serve", f"127.0.0.1:{port}")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("Address already in use", done.stderr)
        self.parse_metrics(self.ctl("metrics").stdout)

    def reload(self, text):
        with open(self.config, "a", encoding="utf-8") as file:
            file.write(text)
        with open(self.log.name, encoding="utf-8") as log:
            log.seek(0, os.SEEK_END)
            self.daemon.send_signal(signal.SIGHUP)
            lines = []

            def said():
                lines.append(log.read())
                text = "".join(lines)
                return text if re.search("the configuration (again[:,]|stays as it was).*\\n", text) else None

            return until(said, lambda: "no line about the configuration")

    def test_a_reload_says_what_needs_a_restart(self):
        self.assertNotIn("restarted", self.reload("drain_ms = 100;\n"))
        self.assertIn("until glaked is restarted: fd_budget, pool\n", self.reload("pool = ();\nfd_budget = 5000;\n"))
        self.assertRegex(self.reload("nonsense = 1;\n"), "stays as it was: .*glaked.conf:6: unknown key nonsense")

    def test_a_reload_says_what_has_changed(self):
        def changes(text):
            lines = self.reload(text)
            return re.findall(r"(?m)configuration: (.*)$", lines), lines

        said, lines = changes('warm_bytes = "2GiB";\nadmin_group = "daemon";\npool = ({ chunk_bytes = "4MiB"; n_chunks = 3; });\n'
                              'tenants = ( { name = "research"; uids = [ 7, 8 ]; device_bytes = ("5GiB", 1000); },\n'
                              '            { name = "batch"; cgroup = "/batch.slice"; idle_ms = 5; } );\n')
        self.assertEqual(said, ["admin_group not set -> daemon",
                                "pool 16 x 2MiB, 2 x 64MiB -> 3 x 4MiB after a restart of glaked",
                                "warm_bytes 1GiB -> 2GiB", "tenants.research added", "tenants.batch added"])
        self.assertRegex(lines, "restarted: pool\n")
        event = self.ask("events")["events"][-1]
        self.assertEqual((event["kind"], event["text"]),
                         ("config", "read the configuration again, 5 changes: admin_group not set -> daemon; pool 16 x 2MiB, "
                                    "2 x 64MiB -> 3 x 4MiB; warm_bytes 1GiB -> 2GiB; tenants.research added; tenants.batch added"))
        self.assertEqual(event["id"], len(self.ask("events")["events"]))
        # The same file again, and limits that the command line has set meanwhile.
        self.ask("quota", "research", "--sessions", "3")
        said, lines = changes("# no more\n")
        self.assertEqual(said, ["limits of tenant research that glakectl quota has set end"])
        self.assertIn("nothing has changed", lines)
        self.assertEqual(len(self.ask("events")["events"]), 1)
        said, _ = changes("")
        self.assertEqual(said, [])
        with open(self.config, encoding="utf-8") as file:
            text = file.read()
        with open(self.config, "w", encoding="utf-8") as file:
            file.write(text[:text.index("tenants")])
        said, lines = changes('tenants = ( { name = "batch"; cgroup = "/other.slice"; on_pressure = "sleep"; idle_ms = 5; } );\n'
                              'realms = ( { name = "team"; gids = [ 5, 6 ]; } );\n')
        self.assertEqual(said, ["realms.team added", "tenants.research removed",
                                "tenants.batch.cgroup /batch.slice -> /other.slice",
                                "tenants.batch.on_pressure none -> sleep"])
        with open(self.config, "w", encoding="utf-8") as file:
            file.write(text[:text.index("tenants")])
        many = ", ".join(f'{{ name = "t{i}"; uids = [ {1000 + i} ]; }}' for i in range(100))
        said, _ = changes(f"tenants = ( {many} );\n")
        self.assertEqual((len(said), said[-1]), (65, "and 38 changes more"))
        self.assertRegex(self.ask("events")["events"][-1]["text"], r"again, 102 changes: .*; and more, in the log$")
        # The first rule that matches is taken, so their order is a change.
        for order in ((0, 1), (1, 0)):
            with open(self.config, "w", encoding="utf-8") as file:
                file.write(text[:text.index("tenants")])
            both = ", ".join(f'{{ name = "t{i}"; uids = [ {1000 + i} ]; }}' for i in order)
            said, _ = changes(f"tenants = ( {both} );\n")
        self.assertEqual(said, ["order of tenants t0, t1, default -> t1, t0, default"])

    def test_a_model_comes_and_goes(self):
        path = self.model("m.safetensors", seed=1)
        loaded = self.ask("load", path, "--name", "first")
        self.assertEqual((loaded["n_tensors"], loaded["content_bytes"]), (3, 6 * MIB))
        self.assertFalse(loaded["was_loaded"])
        self.assertTrue(self.ask("load", path)["was_loaded"])
        (model,) = self.ask("models")["models"]
        self.assertEqual((model["state"], model["n_open"], model["pinned"]), ("ready", 0, False))
        self.assertEqual(len(self.ask("blocks")["blocks"]), model["n_blocks"])
        self.assertEqual(self.ask("status")["n_models"], 1)
        # As of a variable that is not set: nobody meant everything.
        self.refused(5, "GLAKE_E_NOT_FOUND", "evict", "")
        gone = self.ask("evict", model["name"])
        self.assertEqual((gone["n_models"], gone["freed_bytes"]), (1, 6 * MIB))
        self.assertEqual(self.ask("models")["models"], [])

    def test_equal_tensors_are_one_block(self):
        self.ask("load", self.model("a.safetensors", seed=1))
        second = self.ask("load", self.model("b.safetensors", seed=2))
        self.assertEqual(second["deduplicated_bytes"], 4 * MIB)
        (device,) = self.ask("status")["devices"]
        self.assertEqual(device["block_bytes"], 8 * MIB)
        self.assertIsNone(device["dedup_ratio"])
        self.assertEqual([m["unique_bytes"] for m in self.ask("models")["models"]],
                         [2 * MIB, 2 * MIB])

    def test_several_shards_are_one_model(self):
        first, second = self.model("1.safetensors", seed=1), os.path.join(self.folder, "2.safetensors")
        header = b'{"other":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}'
        with open(second, "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header + b"abcd")
        self.assertEqual(self.ask("load", first, second)["n_tensors"], 4)

    def test_pins_hold(self):
        self.ask("load", self.model("p.safetensors", seed=1), "--pin")
        self.ask("load", self.model("q.safetensors", seed=9))
        models = {m["name"]: m["pinned"] for m in self.ask("models")["models"]}
        pinned = next(name for name, is_pinned in models.items() if is_pinned)
        self.assertTrue(pinned.endswith("p.safetensors"))
        self.assertEqual(self.ask("evict", "--all")["n_models"], 1)
        self.assertEqual(self.ask("unpin", pinned), {"model": pinned, "pinned": False})
        # As it was loaded from here: the name is the full path.
        short = os.path.relpath(pinned)
        self.assertNotEqual(short, pinned)
        self.ask("pin", short)
        self.refused(6, "GLAKE_E_BUSY", "evict", short)
        self.ask("unpin", short)
        self.assertEqual(self.ask("evict", "--all")["n_models"], 1)
        self.refused(5, "GLAKE_E_NOT_FOUND", "pin", pinned)
        self.refused(5, "GLAKE_E_NOT_FOUND", "evict", pinned)

    def test_who_is_refused_is_told_with_the_bound(self):
        self.assertEqual(self.findings(0)["refused"]["level"], "ok")
        path = self.model("refused.safetensors", seed=3)
        self.ask("quota", "default", "--bytes", "2MiB")
        said = self.refused(7, "GLAKE_E_OVER_QUOTA", "load", path)
        why = re.search(r"[0-9.]+ MiB more on device 0: tenant default uses 0 of 2\.0 MiB", said)
        self.assertTrue(why, said)
        events = self.ask("events")["events"]
        n = len(events)  # each run of the command was a session
        event = events[0]
        self.assertEqual((event["kind"], event["text"]), ("memory_refused", f"glakectl was refused {why[0]}"))
        refusal = event["refusal"]
        self.assertEqual({key: refusal[key] for key in ("program", "tenant", "bound", "is_host", "location", "used",
                                                        "limit", "n_refused")},
                         {"program": "glakectl", "tenant": "default", "bound": "quota", "is_host": False, "location": 0,
                          "used": 0, "limit": 2 * MIB, "n_refused": 1})
        self.assertGreater(refusal["wanted"], 2 * MIB)
        tenants = {tenant["name"]: tenant for tenant in self.ask("tenants")["tenants"]}
        device = tenants["default"]["devices"][0]
        self.assertEqual((device["n_refused"], device["refused_quota"]), (n, n))
        found = self.findings(0)
        self.assertEqual((found["refused"]["level"], found["events"]["level"]), ("warning", "ok"))
        self.assertIn(f"tenant default, glakectl: {n} of the last {n} refusals", found["refused"]["text"])
        self.assertIn("glakectl quota", found["refused"]["remedy"])
        # Whoever has this text looks it up.
        with open("docs/troubleshooting.md", encoding="utf-8") as page:
            self.assertIn("`over the tenant's quota: ... more on ...: tenant ... uses ... of ...`", page.read())
        self.ask("quota", "default", "--bytes", "none")

    def test_quotas_refuse(self):
        path = self.model("m.safetensors", seed=1)
        self.ask("quota", "default", "--bytes", "4MiB", "--sessions", "7")
        tenants = {t["name"]: t for t in self.ask("tenants")["tenants"]}
        self.assertEqual(tenants["default"]["devices"][0]["quota_bytes"], 4 * MIB)
        self.assertEqual(tenants["default"]["max_sessions"], 7)
        self.refused(7, "GLAKE_E_OVER_QUOTA", "load", path)
        self.assertEqual(self.ask("models")["models"], [])
        self.ask("quota", "default", "--bytes", "none", "--sessions", "none")
        self.assertEqual(self.ask("quota", "default", "--manifests", "100B"),
                         {"tenant": "default", "quota_manifest_bytes": 100})
        self.refused(7, "GLAKE_E_OVER_QUOTA", "load", path)
        tenants = {t["name"]: t for t in self.ask("tenants")["tenants"]}
        self.assertEqual(tenants["default"]["quota_manifest_bytes"], 100)
        self.assertEqual(tenants["default"]["manifest_bytes"], 0)
        self.ask("quota", "default", "--manifests", "none")
        self.ask("load", path)
        self.refused(5, "GLAKE_E_NOT_FOUND", "quota", "nosuch", "--sessions", "1")

    def test_a_limit_of_bytes_is_for_every_device_or_one(self):
        def quotas():
            tenants = {t["name"]: t for t in self.ask("tenants")["tenants"]}
            return [device["quota_bytes"] for device in tenants["default"]["devices"]]

        self.stop_daemon()
        with unittest.mock.patch.dict(os.environ, CUDASIM_DEVICES="3x256MiB",
                                      CUDASIM_STATE=os.path.join(self.folder, "three")):
            self.start_daemon()
        self.assertEqual(self.ask("quota", "default", "--bytes", "5M"),
                         {"tenant": "default", "devices": [0, 1, 2], "quota_bytes": 5 * MIB})
        self.assertEqual(quotas(), 3 * [5 * MIB])
        self.assertEqual(self.ask("quota", "default", "--bytes", "1.5G", "--device", "1"),
                         {"tenant": "default", "devices": [1], "quota_bytes": 1536 * MIB})
        self.assertEqual(quotas(), [5 * MIB, 1536 * MIB, 5 * MIB])
        self.assertEqual(self.ctl("quota", "default", "--bytes", "none").stdout,
                         "".join(f"quota on device {i}: none\n" for i in range(3)))
        self.assertEqual(quotas(), [0, 0, 0])
        self.refused(1, "GLAKE_E_BAD_REQUEST", "quota", "default", "--bytes", "1G", "--device", "3")
        self.refused(1, "GLAKE_E_BAD_REQUEST", "quota", "default", "--bytes", "1G", "--device", str(2**32 - 1))

    def test_bad_files_are_told_from_absent_ones(self):
        bad = os.path.join(self.folder, "bad.safetensors")
        with open(bad, "wb") as file:
            file.write(struct.pack("<Q", 1 << 60) + b"{}")
        self.assertIn("bad.safetensors", self.refused(8, "GLAKE_E_BAD_FILE", "load", bad))
        absent = os.path.join(self.folder, "absent.safetensors")
        self.assertEqual(self.refused(5, "ENOENT", "load", absent),
                         absent + ": No such file or directory")

    @unittest.skipUnless(os.getuid() == 0, "needs root, to be somebody else")
    def test_others_see_and_steer_nothing(self):
        self.ask("load", self.model("m.safetensors", seed=1))
        (model,) = self.ask("models")["models"]
        done = self.ctl("--json", "models", uid=NOBODY)
        self.assertEqual(json.loads(done.stdout), {"models": []})
        self.assertEqual(self.ctl("evict", model["name"], uid=NOBODY).returncode, 5)
        self.refused(4, "GLAKE_E_NO_PERMISSION", "quota", "default", "--sessions", "1", uid=NOBODY)

    @unittest.skipUnless(os.getuid() == 0, "needs root, to be somebody else")
    def test_a_name_of_several_is_refused_with_their_ids(self):
        path = self.model("m.safetensors", seed=1)
        self.ask("load", path, "--name", "m")
        self.assertEqual(self.ctl("load", path, "--name", "m", uid=NOBODY).returncode, 0)
        ids = {m["realm"]: str(m["id"]) for m in self.ask("models")["models"]}
        for command in ("pin", "unpin", "evict"):
            text = self.refused(1, "GLAKE_E_BAD_REQUEST", command, "m")
            for realm, model in ids.items():
                self.assertIn(f"{model} (realm {realm}, device 0)", text)
        # His is the only one for him, and hers is not there for him.
        self.assertEqual(self.ctl("pin", "m", uid=NOBODY).returncode, 0)
        pinned = {m["realm"]: m["pinned"] for m in self.ask("models")["models"]}
        self.assertEqual(pinned, {"uid:0": False, f"uid:{NOBODY}": True})
        self.refused(5, "GLAKE_E_NOT_FOUND", "evict", ids["uid:0"], uid=NOBODY)
        # An admin names them by id; and what is left has its name to itself.
        self.ask("pin", ids["uid:0"])
        self.ask("unpin", ids[f"uid:{NOBODY}"])
        self.assertEqual(self.ask("evict", ids[f"uid:{NOBODY}"])["n_models"], 1)
        self.ask("unpin", "m")
        self.assertEqual(self.ask("evict", "m")["n_models"], 1)
        self.refused(5, "GLAKE_E_NOT_FOUND", "evict", ids["uid:0"])

    def test_a_changed_file_is_another_model(self):
        path = self.model("m.safetensors", seed=1)
        self.ask("load", path)
        os.remove(path)
        self.ask("load", self.model("m.safetensors", seed=2))
        first, second = self.ask("models")["models"]
        text = self.refused(1, "GLAKE_E_BAD_REQUEST", "evict", first["name"])
        self.assertIn(f"{first['id']} (", text)
        self.assertIn(f"{second['id']} (", text)
        self.assertRegex(self.ctl("models").stdout, rf"(?m)^ *{first['id']} ")
        self.ask("evict", str(first["id"]))
        (left,) = self.ask("models")["models"]
        self.assertEqual(left["id"], second["id"])

    def test_lists_say_who_is_there(self):
        (row,) = self.ask("sessions")["sessions"]
        self.assertEqual((row["program"], row["uid"], row["tenant"]),
                         ("glakectl", os.getuid(), "default"))
        fragmentation = self.ask("fragmentation")
        self.assertEqual(fragmentation["sessions"], [])
        self.assertEqual(fragmentation["reserved_by_others"], [{"device": 0, "others_bytes": 0}])
        self.refused(5, "GLAKE_E_NOT_FOUND", "fragmentation", "4194305")
        self.assertEqual(self.ask("dedup")["sessions"], [])
        metrics = {m["name"]: m["value"] for m in self.ask("stats")["metrics"]}
        self.assertGreater(metrics["sessions_total"], 1)

    def test_a_picture_ends_when_it_is_interrupted(self):
        path = os.path.join(self.folder, "memory.html")
        glakectl = subprocess.Popen(
            [os.path.join(BUILD, "bin", "glakectl"), "--socket", self.socket, "fragmentation",
             f"--html={path}", "--seconds=3600"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        until(lambda: os.path.exists(path))
        glakectl.send_signal(signal.SIGINT)
        out, err = glakectl.communicate(timeout=PATIENCE_S)
        self.assertEqual((glakectl.returncode, out), (0, f"{path}: 1 samples of 0 sessions\n"), err)
        with open(path, encoding="utf-8") as file:
            page = file.read()
        self.assertIn("No process had memory of glaked.", page)
        self.assertTrue(page.endswith("</html>\n"))

    def test_what_nobody_asks_the_device_is_not_0(self):
        """This glaked has no NVML."""
        (device,) = self.ask("status")["devices"]
        for key in ("free_bytes", "unaccounted_bytes", "foreign_bytes", "n_foreign"):
            self.assertIsNone(device[key], key)
        text = self.ctl("status", "-v").stdout
        self.assertRegex(text, r"free \?\n")
        self.assertRegex(text, r"\n  others +\?\n")
        self.assertRegex(text, r"\n  unaccounted +\?\n")

    def complete(self, *words):
        """As bash does, with glakectl in the PATH."""
        bin_folder = os.path.abspath(os.path.join(BUILD, "bin"))
        script = subprocess.run([os.path.join(bin_folder, "glakectl"), "completion", "bash"], capture_output=True, text=True,
                                check=True).stdout
        line = " ".join(f"'{word}'" for word in ("glakectl", *words))
        done = subprocess.run(["bash", "-c", f"{script}\nCOMP_WORDS=({line})\nCOMP_CWORD={len(words)}\n"
                               '_glakectl\nprintf "%s\\n" "${COMPREPLY[@]}"'], capture_output=True, text=True, check=True,
                              env={**os.environ, "PATH": bin_folder + ":" + os.environ["PATH"], "GLAKE_SOCKET": self.socket})
        self.assertEqual(done.stderr, "")
        return [word for word in done.stdout.split() if not word.startswith("-")]

    def test_completions_know_what_there_is(self):
        program = self.serve()
        path = self.model("m.safetensors", seed=1)
        self.ask("load", path)
        self.ask("load", self.model("$(touch owned);`x`'\"*.safetensors", seed=2))
        self.assertEqual(self.complete("seal", ""), [str(program.pid)])
        self.assertEqual(self.complete("pin", path[:-4]), [path])
        self.assertEqual(self.complete("quota", "d"), ["default"])
        self.assertEqual(set(self.complete("sleep", "")), {str(program.pid), "default", "cache", path})
        self.assertIn(self.socket, self.complete("-s", ""))
        self.assertEqual(self.complete("-s", "/nowhere", "quota", "d"), [])
        self.assertEqual(self.ask("names", "tenants", "pids")["names"], ["cache", "default", str(program.pid)])
        self.assertFalse(os.path.exists("owned"))
        # A glaked that is stopped holds nobody up for long.
        self.daemon.send_signal(signal.SIGSTOP)
        self.addCleanup(self.daemon.send_signal, signal.SIGCONT)
        self.assertEqual(self.complete("quota", "d"), [])
        self.daemon.send_signal(signal.SIGCONT)

    def test_without_a_daemon(self):
        self.stop_daemon()
        self.refused(3, "GLAKE_E_GONE", "status")
        self.refused(3, "GLAKE_E_GONE", "--socket", "/nowhere/sock", "models")


class Events(WithGlaked):
    CONFIG = "drain_ms = 200;"
    MOVER_IDLE_MS = 0

    def kill_mover(self, seed):
        self.ask("load", self.model("killed.safetensors", seed=seed))
        # Its load may be done before the keeper has told its pid.
        mover = until(lambda: re.fullmatch(r"running (\d+)", self.ask("status")["mover"]))
        os.kill(int(mover[1]), signal.SIGKILL)

    def test_they_are_followed_beyond_a_restart(self):
        self.kill_mover(1)
        command = [os.path.join(BUILD, "bin", "glakectl"), "--socket", self.socket, "--json", "events",
                   "--follow", f"--seconds={PATIENCE_S}"]
        follower = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(follower.communicate)
        self.addCleanup(follower.kill)
        first = json.loads(follower.stdout.readline())
        self.assertEqual((first["id"], first["kind"]), (1, "mover_failed"))
        self.kill_mover(2)
        self.assertEqual(json.loads(follower.stdout.readline())["id"], 2)
        self.stop_daemon()
        self.assertIn("trying again", follower.stderr.readline())
        self.start_daemon()
        self.kill_mover(3)
        self.assertEqual(json.loads(follower.stdout.readline())["id"], 1)


if __name__ == "__main__":
    unittest.main()
