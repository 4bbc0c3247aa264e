# SPDX-License-Identifier: Apache-2.0
"""The manifests by the API's schema, and what tenants.py makes of pods: `make check-deploy`."""

import glob
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

BUILD = os.environ["GLAKE_BUILD"]
RELEASE = "1.34"


def pod(name, uid, limit):
    return {"metadata": {"name": name, "namespace": "default", "uid": uid,
                         "annotations": {"glake/device-bytes": limit}}}


class Kubernetes(unittest.TestCase):
    def test_schema(self):
        """Of the manifests, and of what the documentation makes of them."""
        import kubernetes_validate
        import yaml
        kinds, images = [], []
        with open("docs/kubernetes.md", encoding="utf-8") as file:
            text = file.read()
        name = re.search("(?m)^IMAGE=([^ ]+)", text).group(1)
        named = re.findall(r"(?m)^(sed .*deploy/kubernetes/\S+\.yaml) \| kubectl apply -f -$", text)
        for command in (*named, *("cat " + path for path in glob.glob("deploy/kubernetes/*.yaml"))):
            done = subprocess.run(["sh", "-c", command], env={**os.environ, "IMAGE": name}, check=True,
                                  capture_output=True, text=True)
            for document in yaml.safe_load_all(done.stdout):
                with self.subTest(command=command, kind=document["kind"]):
                    kubernetes_validate.validate(document, RELEASE, strict=True)
                kinds.append(document["kind"])
            if command in named:
                images += re.findall("image: (.*)", done.stdout)
        self.assertEqual(sorted(kinds), sorted(2 * kinds[:len(kinds) // 2]))
        self.assertEqual({"DaemonSet", "Pod", "Service"} - set(kinds), set())
        self.assertEqual(set(images), {name, "serve"})

    def test_events_patch(self):
        """As kubectl merges it: containers and volumes by their names."""
        import kubernetes_validate
        import yaml
        with open("deploy/kubernetes/glake-metrics.yaml", encoding="utf-8") as file:
            (whole,) = (document for document in yaml.safe_load_all(file) if document["kind"] == "DaemonSet")
        with open("deploy/kubernetes/events/patch.yaml", encoding="utf-8") as file:
            patch = yaml.safe_load(file)["spec"]["template"]["spec"]
        with open("deploy/kubernetes/events/account.yaml", encoding="utf-8") as file:
            account = list(yaml.safe_load_all(file))
        for document in account:
            kubernetes_validate.validate(document, RELEASE, strict=True)
        self.assertEqual([document["rules"] for document in account if document["kind"] == "ClusterRole"],
                         [[{"apiGroups": [""], "resources": ["events"], "verbs": ["create"]}]])
        spec = whole["spec"]["template"]["spec"]
        for key, value in patch.items():
            spec[key] = spec[key] + value if isinstance(value, list) else value
        kubernetes_validate.validate(whole, RELEASE, strict=True)
        # One container has the token of the account.
        self.assertFalse(spec["automountServiceAccountToken"])
        volumes = {volume["name"] for volume in spec["volumes"]}
        mounts = {container["name"]: {mount["name"] for mount in container["volumeMounts"]} for container in spec["containers"]}
        self.assertEqual([name for name, has in mounts.items() if "account" in has], ["events"])
        self.assertEqual(set().union(*mounts.values()) - volumes, set())
        self.assertIn({"kind": "ServiceAccount", "name": spec["serviceAccountName"], "namespace": "glake"},
                      [subject for document in account for subject in document.get("subjects", [])])

    def test_the_config_map_is_what_tenants_py_expects(self):
        import yaml
        with open("deploy/kubernetes/glaked.yaml", encoding="utf-8") as file:
            config = next(document["data"]["glaked.conf"] for document in yaml.safe_load_all(file)
                          if document["kind"] == "ConfigMap")
        uids = [f"{n:08x}-0000-4000-8000-000000000000" for n in range(8)]
        pods = [pod("a-name-that-is-longer-than-a-tenant-may-have", uids[0], "24GiB"),
                pod("plain", uids[1], "1073741824"),
                pod("of-another-driver", uids[2], "8GB"),
                pod("without-a-cgroup", uids[3], "8GB"),
                # glaked would refuse its whole configuration, or the pod would have no limit.
                pod("unit", uids[5], "5KB"), pod("huge", uids[6], "999999999999999TiB"), pod("zero", uids[7], "0"),
                pod("bad", uids[4], '1"; }, { name = "x"; priority = 1000; device_bytes = "1')]
        with tempfile.TemporaryDirectory() as folder:
            for path in ("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"
                         + uids[0].replace("-", "_") + ".slice",
                         "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod"
                         + uids[1].replace("-", "_") + ".slice",
                         f"kubepods/besteffort/pod{uids[2]}",
                         *(f"kubepods/pod{uid}" for uid in uids[4:])):
                os.makedirs(f"{folder}/cgroup/{path}/cri-containerd-0.scope")
            for name, text in (("base", config), ("pods", json.dumps({"items": pods}))):
                with open(f"{folder}/{name}", "w", encoding="utf-8") as file:
                    file.write(text)
            done = subprocess.run([sys.executable, "deploy/kubernetes/tenants.py", "--once",
                                   f"--config={folder}/base", f"--out={folder}/out",
                                   f"--pods={folder}/pods", f"--cgroups={folder}/cgroup"],
                                  check=True, capture_output=True, text=True)
            self.assertIn("default/bad: glake/device-bytes is no size", done.stderr)
            with open(folder + "/out", encoding="utf-8") as file:
                made = file.read()
            self.assertEqual(made.count("cgroup ="), 3)
            self.assertIn(f'"of-another-driver.{uids[2]}"; cgroup = "/kubepods/besteffort/pod{uids[2]}";'
                          ' device_bytes = "8GB"', made)
            subprocess.run([BUILD + "/bin/glaked", "--check-config", "--config", folder + "/out"],
                           check=True)


if __name__ == "__main__":
    unittest.main()
