# SPDX-License-Identifier: Apache-2.0
"""Keep a tenant in glaked's configuration for each pod of this node with the annotation glake/device-bytes.

Kubernetes names a pod's limit, and glaked knows cgroups: this finds the pod's cgroup, writes a configuration
with a tenant for it in place of the line "#pods", and has glaked read it again. It needs the unified cgroup
hierarchy at --cgroups, and to list pods.
"""

import argparse
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import time
import urllib.request

ANNOTATION = "glake/device-bytes"
# Whoever may annotate a pod writes this: nothing else gets into the configuration.
SIZE = re.compile(r"([1-9][0-9]{0,5}([KMGT]iB|kB|[MGT]B)|[1-9][0-9]{0,17})\Z")
UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


def pods_of_node(node):
    with open(ACCOUNT + "/token", encoding="ascii") as file:
        token = file.read().strip()
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    host = f"[{host}]" if ":" in host else host
    request = urllib.request.Request(
        f"https://{host}:{port}/api/v1/pods?fieldSelector=spec.nodeName%3D{node}",
        headers={"Authorization": "Bearer " + token})
    context = ssl.create_default_context(cafile=ACCOUNT + "/ca.crt")
    with urllib.request.urlopen(request, context=context, timeout=30) as answer:
        return json.load(answer)["items"]


def find_cgroups(root, uids):
    """Paths by uid: kubepods-burstable-pod<uid>.slice or pod<uid>, wherever the kubelet makes them."""
    names = {uid: (f"pod{uid}", f"pod{uid.replace('-', '_')}.slice") for uid in uids}
    found = {}
    for folder, folders, _files in os.walk(root):
        for uid, (plain, slice_end) in names.items():
            for name in folders:
                if name == plain or name.endswith(slice_end):
                    found[uid] = os.path.join(folder, name)[len(root.rstrip("/")):]
        folders[:] = [name for name in folders if re.search("kubelet|pod|burstable|besteffort", name)]
    return found


def tenants_of(pods, cgroups_root):
    limits = {}
    for pod in pods:
        meta = pod["metadata"]
        limit = meta.get("annotations", {}).get(ANNOTATION)
        if limit is None or not UID.match(meta["uid"]):
            continue
        if SIZE.match(limit):
            limits[meta["uid"]] = (meta["name"], limit)
        else:
            print(f"tenants: {meta['namespace']}/{meta['name']}: {ANNOTATION} is no size, like 24GiB;"
                  " the pod is of the tenant default", file=sys.stderr)
    cgroups = find_cgroups(cgroups_root, limits)
    for uid, cgroup in sorted(cgroups.items()):
        name, limit = limits[uid]
        yield f'\t{{ name = "{name[:26]}.{uid}"; cgroup = "{cgroup}"; device_bytes = "{limit}"; }},\n'


def write(path, text):
    """Whether the file has changed."""
    try:
        with open(path, encoding="utf-8") as file:
            if file.read() == text:
                return False
    except FileNotFoundError:
        pass
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.rename(path + ".new", path)
    return True


def reload_glaked():
    done = subprocess.run(["glakectl", "--json", "status"], check=False, stdout=subprocess.PIPE)
    if done.returncode == 0:
        os.kill(json.loads(done.stdout)["pid"], signal.SIGHUP)
    return done.returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True, help='with a line "#pods" in the list of tenants')
    parser.add_argument("--out", required=True, help="the configuration that glaked reads")
    parser.add_argument("--pods", help="a list of pods in JSON, instead of asking Kubernetes")
    parser.add_argument("--cgroups", default="/host/cgroup")
    parser.add_argument("--seconds", type=float, default=2, help="between two looks")
    parser.add_argument("--once", action="store_true", help="write, and do not reload glaked")
    options = parser.parse_args()
    is_read = True
    while True:
        try:
            if options.pods:
                with open(options.pods, encoding="utf-8") as file:
                    pods = json.load(file)["items"]
            else:
                pods = pods_of_node(os.environ["NODE_NAME"])
            with open(options.config, encoding="utf-8") as file:
                before, after = re.split(r"^[ \t]*#pods[ \t]*\n", file.read(), flags=re.M)
            text = before + "".join(tenants_of(pods, options.cgroups)) + after
            is_read = not write(options.out, text) and is_read
            if options.once:
                return
            is_read = is_read or reload_glaked()
        except (OSError, ValueError) as error:
            print(f"tenants: {error}", file=sys.stderr)
            if options.once:
                sys.exit(1)
        time.sleep(options.seconds)


if __name__ == "__main__":
    main()
