# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus that scrapes a real glake-metrics: what the dashboard and the rules ask it has an answer."""

import http.server
import json
import os
import re
import shutil
import subprocess
import threading
import unittest
import urllib.parse
import urllib.request

from tests.integration.with_glaked import PATIENCE_S, until
from tests.integration.with_metrics import WithMetrics

RULES = "deploy/prometheus-glake.rules.yml"
MISSING = [program for program in ("prometheus", "promtool") if not shutil.which(program)]

# As dcgm-exporter has it, which names another number and another device.
DCGM = """# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{{gpu="7",UUID="{uuid}",pci_bus_id="00000000:0F:00.0",device="nvidia7",modelName="NVIDIA H200",\
Hostname="{host}",container="c1",namespace="n",pod="p1"}} 4096
DCGM_FI_DEV_FB_USED{{gpu="7",UUID="{uuid}",pci_bus_id="00000000:0F:00.0",device="nvidia7",modelName="NVIDIA H200",\
Hostname="{host}",container="c2",namespace="n",pod="p2"}} 4096
# TYPE DCGM_FI_DEV_POWER_USAGE gauge
DCGM_FI_DEV_POWER_USAGE{{gpu="7",UUID="{uuid}",device="nvidia7",modelName="NVIDIA H200",Hostname="{host}"}} 500
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{{gpu="7",UUID="{uuid}",device="nvidia7",modelName="NVIDIA H200",Hostname="{host}"}} 0
"""


def promtool(*words, **more):
    return subprocess.run(["promtool", *words], capture_output=True, text=True, check=False, **more)


@unittest.skipIf(MISSING, "not installed: " + ", ".join(MISSING) + " (tests/deps prometheus)")
class Rules(unittest.TestCase):
    def test_format(self):
        done = promtool("check", "rules", RULES)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def alerts(self, name, minutes, **series):
        """Does the alert fire after so many minutes of these values, one a minute? JSON is YAML."""
        test = {"rule_files": [os.path.abspath(RULES)], "evaluation_interval": "1m", "tests": [{
            "interval": "1m",
            "input_series": [{"series": f'{metric}{{instance="node7:9464",{labels}}}', "values": values}
                             for metric, (labels, values) in series.items()],
            "promql_expr_test": [{"expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)',
                                  "eval_time": f"{minutes}m", "exp_samples": [{"labels": "{}", "value": 1}]}]}]}
        path = os.path.join(os.environ["TMPDIR"], "rules.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(test, file)
        done = promtool("test", "rules", path)
        self.assertIn(done.returncode, (0, 1), done.stdout + done.stderr)
        if done.returncode:
            self.assertIn("got:", done.stdout + done.stderr)
        return done.returncode == 0

    def test_each_alert_fires_when_it_should(self):
        gpu = 'gpu="0",UUID="GPU-1",Hostname="node7"'
        cases = {
            "GlakeDown": (5, {"glake_up": ("", "0x60")}, {"glake_up": ("", "1x60")}),
            "GlakeRefusals": (40, {"glake_tenant_refusals_total": (gpu + ',tenant="t",bound="quota"', "0+1x60")},
                              {"glake_tenant_refusals_total": (gpu + ',tenant="t",bound="quota"', "9x60")}),
            "GlakeWaits": (10, {"glake_pod_waiting_seconds": ('pod="p",tenant="t"', "30+60x60")},
                           {"glake_pod_waiting_seconds": ('pod="p",tenant="t"', "59x60")}),
            "GlakeTenantFull": (20, {"glake_tenant_bytes": (gpu + ',tenant="t"', "96x60"),
                                     "glake_tenant_quota_bytes": (gpu + ',tenant="t"', "100x60")},
                                {"glake_tenant_bytes": (gpu + ',tenant="t"', "96x60"),
                                 "glake_tenant_quota_bytes": (gpu + ',tenant="u"', "10x60")}),
            "GlakeUnaccounted": (20, {"glake_device_bytes": (gpu + ',use="unaccounted"', "2000000000x60")},
                                 {"glake_device_bytes": (gpu + ',use="free"', "2000000000x60")}),
            "GlakeDrained": (730, {"glake_draining": ("", "1x800")}, {"glake_draining": ("", "1x700 0x100")}),
            "GlakeFdsLow": (10, {"glake_fds_used": ("", "91x60"), "glake_fds_budget": ("", "100x60")},
                            {"glake_fds_used": ("", "89x60"), "glake_fds_budget": ("", "100x60")}),
            "GlakeBlocksUnkept": (20, {"glake_max_kept_fds": ("", "9x60"), "glake_unkept_blocks": ("", "1x60")},
                                  {"glake_max_kept_fds": ("", "0x60"), "glake_unkept_blocks": ("", "1x60")}),
            "GlakeSleeperWaits": (5, {"glake_sleepers_waiting_seconds": ("", "61x60")},
                                  {"glake_sleepers_waiting_seconds": ("", "59x60")}),
            "GlakeMoverDies": (40, {"glake_mover_deaths_total": ("", "0+1x60")}, {"glake_mover_deaths_total": ("", "5x60")}),
            "GlakeBlocksDamaged": (40, {"glake_blocks_damaged_total": ("", "0x20 1x40")},
                                   {"glake_blocks_damaged_total": ("", "1x60")}),
        }
        with open(RULES, encoding="utf-8") as file:
            self.assertEqual(set(re.findall(r"- alert: (\w+)", file.read())), set(cases))
        with open("docs/monitoring.md", encoding="utf-8") as file:
            self.assertEqual(set(re.findall(r"(?m)^\| `(Glake\w+)`", file.read())), set(cases))
        for name, (minutes, bad, good) in cases.items():
            with self.subTest(name):
                self.assertTrue(self.alerts(name, minutes, **bad))
                self.assertFalse(self.alerts(name, minutes, **good))


class Manifest(unittest.TestCase):
    def test_the_prometheus_rule_is_the_same(self):
        with open(RULES, encoding="utf-8") as file:
            rules = file.read()
        with open("deploy/kubernetes/monitoring/prometheus-rules.yaml", encoding="utf-8") as file:
            manifest = file.read()
        rules = "".join(f"  {line}\n" for line in rules[rules.index("groups:"):].splitlines())
        self.assertEqual(manifest[manifest.index("\nspec:\n") + len("\nspec:\n"):], rules)


class Dcgm(http.server.BaseHTTPRequestHandler):
    """What Prometheus finds in place of dcgm-exporter."""

    def do_GET(self):
        text = self.server.text.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_arguments):
        pass


@unittest.skipIf(MISSING, "not installed: " + ", ".join(MISSING) + " (tests/deps prometheus)")
class Prometheus(WithMetrics):
    CONFIG = 'tenants = ( { name = "default"; device_bytes = "64MiB"; } );\n'

    def setUp(self):
        super().setUp()
        (device,) = (labels for name, labels, _ in self.now() if name == "glake_device_info")
        dcgm = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Dcgm)
        dcgm.text = DCGM.format(uuid=device["UUID"], host=device["Hostname"])
        threading.Thread(target=dcgm.serve_forever, daemon=True).start()
        self.addCleanup(dcgm.server_close)
        self.addCleanup(dcgm.shutdown)
        self.program = self.serve()
        self.ask("load", "--pin", self.model("m.safetensors", seed=3))
        self.metrics = self.free_port()
        self.serve_metrics(f"0.0.0.0:{self.metrics}", "--token-file", self.token(0o640), "--models")
        self.start_prometheus(dcgm.server_address[1])

    def start_prometheus(self, dcgm):
        path = os.path.join(self.folder, "prometheus.yml")
        with open(path, "w", encoding="utf-8") as file:
            json.dump({
                "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
                "rule_files": [os.path.abspath(RULES)],
                "scrape_configs": [
                    {"job_name": "glake", "authorization": {"credentials_file": os.path.join(self.folder, "token")},
                     "static_configs": [{"targets": [f"127.0.0.1:{self.metrics}"]}]},
                    {"job_name": "dcgm", "static_configs": [{"targets": [f"127.0.0.1:{dcgm}"]}]}]}, file)
        done = promtool("check", "config", path)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.port = self.free_port()
        log = open(os.path.join(self.folder, "prometheus.log"), "w", encoding="utf-8")
        self.addCleanup(log.close)
        server = subprocess.Popen(
            ["prometheus", f"--config.file={path}", f"--storage.tsdb.path={self.folder}/tsdb",
             f"--web.listen-address=127.0.0.1:{self.port}"], stdout=log, stderr=log)
        self.addCleanup(server.wait)
        self.addCleanup(server.terminate)
        # Rates need two samples of each.
        self.wait_until(lambda: self.query("min(min_over_time(up[10m]) + count_over_time(up[10m]) > 3)"), log.name)

    def api(self, path, **words):
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(words)}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            text = error.read().decode()
            # While it starts it says so, and not in JSON.
            return json.loads(text) if text.startswith("{") else {"status": "error", "error": text}
        except OSError:
            return {"status": "error", "error": "not there"}

    def query(self, expression):
        answer = self.api("query", query=expression)
        return answer["data"]["result"] if answer["status"] == "success" else []

    def wait_until(self, is_so, log):
        def tail():
            with open(log, encoding="utf-8") as file:
                return file.read()[-4000:]

        until(is_so, tail)

    def value(self, expression):
        (row,) = self.query(expression)
        return float(row["value"][1])

    # Nothing that happens to be so: a query may find nothing.
    MAY_BE_EMPTY = {"Asleep by pod and tenant", "Time of a load", "Time of a request for private memory"}

    def test_what_the_dashboard_asks(self):
        with open("deploy/grafana-glake.json", encoding="utf-8") as file:
            dashboard = json.load(file)
        values = {"instance": f"127.0.0.1:{self.metrics}", "gpu": "0"}
        for variable in dashboard["templating"]["list"]:
            asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"])
            if asked:
                metric, label = asked.groups()
                found = {row["metric"][label] for row in self.query(metric)}
                self.assertEqual(found, {values[variable["name"]]})
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                expression = re.sub(r"\$(\w+)", lambda match: values[match.group(1)], target["expr"])
                with self.subTest(panel=panel["title"], expression=expression):
                    answer = self.api("query", query=expression)
                    self.assertEqual(answer["status"], "success", answer)
                    rows = answer["data"]["result"]
                    if panel["title"] not in self.MAY_BE_EMPTY:
                        self.assertGreater(len(rows), 0)
                    # A legend asks for no label that is not there.
                    for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                        self.assertTrue(all(label in row["metric"] or label in ("namespace", "pod")
                                            for row in rows), label)

    def test_rules_are_healthy(self):
        def rules():
            groups = self.api("rules").get("data", {"groups": []})["groups"]
            return [rule for group in groups for rule in group["rules"]]
        self.wait_until(lambda: rules() and all(rule["health"] != "unknown" for rule in rules()),
                        os.path.join(self.folder, "prometheus.log"))
        self.assertEqual([rule["name"] for rule in rules() if rule["health"] != "ok"], [])
        self.wait_until(lambda: self.query("pod:glake_bytes:sum") and self.query("gpu:glake_saved_bytes"),
                        os.path.join(self.folder, "prometheus.log"))

    def test_it_joins_with_dcgm(self):
        """As docs/monitoring.md says it, word by word."""
        with open("docs/monitoring.md", encoding="utf-8") as file:
            (block,) = re.findall(r"(?s)```\n(# used, but not by glaked.*?)```", file.read())
        queries = [re.sub(r"(?m)^#.*\n", "", part).strip() for part in block.split("\n\n")]
        self.assertEqual(len(queries), 3)
        physical = self.value("glake_device_physical_bytes")
        self.assertEqual(self.value(queries[0]), 4096 * 2**20 - physical)
        watts = {row["metric"]["UUID"]: float(row["value"][1]) for row in self.query(queries[1])}
        had = self.value('sum(glake_pod_bytes{kind=~"private|shared"})')
        self.assertAlmostEqual(sum(watts.values()), 500 * had / physical, delta=1e-6)
        self.assertEqual(len(self.query(queries[2])), 1)
        # The invariant, where an operator would ask for it.
        self.assertEqual(self.query("sum by (UUID) (glake_pod_bytes) != on(UUID) glake_device_physical_bytes"), [])
        # Neither DCGM's labels nor ours were renamed, and none was dropped as a duplicate.
        self.assertEqual(self.query('{__name__=~"glake.*",exported_pod!=""}'), [])
        with open(os.path.join(self.folder, "prometheus.log"), encoding="utf-8") as file:
            self.assertNotIn("duplicate", file.read())


if __name__ == "__main__":
    unittest.main()
