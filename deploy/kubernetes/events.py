# SPDX-License-Identifier: Apache-2.0
"""Make a Kubernetes Event of each event of glaked that is about a pod of this node, so that `kubectl describe pod` says why.

It follows `glakectl events` and asks the API server for nothing but to create Events. One that is made again, after a
restart, has the same name and is there already. However many events come, a pod has three Events at once and then one in a
minute, and the API server gets two in a second: who is refused all the time is told of as often as somebody reads.
"""

import argparse
import collections
import datetime
import http.client
import json
import os
import queue
import re
import signal
import ssl
import subprocess
import sys
import threading
import time

REASONS = {
    "memory_refused": "GpuMemoryRefused",
    "device_fault": "GpuFault",
    "copy_damaged": "GpuMemoryDamaged",
    "wake_refused": "GpuWakeRefused",
    "limit_too_small": "GpuLimitTooSmall",
}
UID = re.compile(r"[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}\Z")
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?\Z")
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
MAX_WAITING = 256   # events that the API server has not taken yet
MAX_PODS = 1024     # whose Events are counted
TOO_OLD_S = 600     # nobody looks for what was then; an Event lives for an hour
TIMEOUT_S = 10


def say(text):
    print(f"events: {text}", file=sys.stderr, flush=True)


class Limit:
    """``burst`` at once, and then one each ``seconds``."""

    def __init__(self, burst, seconds):
        self.burst, self.seconds = burst, seconds
        self.left, self.at = float(burst), time.monotonic()

    def wait_s(self):
        now = time.monotonic()
        self.left = min(self.burst, self.left + (now - self.at) / self.seconds)
        self.at = now
        return 0 if self.left >= 1 else (1 - self.left) * self.seconds

    def take(self):
        if self.wait_s() > 0:
            return False
        self.left -= 1
        return True


class Server:
    """The API server, as a service account of this pod may ask it. The token changes while this runs."""

    def __init__(self, account):
        self.account = account
        self.host, self.port = os.environ["KUBERNETES_SERVICE_HOST"], int(os.environ["KUBERNETES_SERVICE_PORT"])

    def create(self, namespace, event):
        """The status, what the server says to it, and after how many seconds it wants to be asked again."""
        with open(os.path.join(self.account, "token"), encoding="ascii") as file:
            token = file.read().strip()
        context = ssl.create_default_context(cafile=os.path.join(self.account, "ca.crt"))
        connection = http.client.HTTPSConnection(self.host, self.port, context=context, timeout=TIMEOUT_S)
        try:
            connection.request("POST", f"/api/v1/namespaces/{namespace}/events", json.dumps(event),
                               {"Authorization": "Bearer " + token, "Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read(65536).decode(errors="replace")
            after = answer.headers.get("Retry-After", "")
            return answer.status, text, int(after) if after.isdecimal() else None
        finally:
            connection.close()


def cut(text, n_bytes):
    return text.encode()[:n_bytes].decode(errors="ignore")


def instant(time_ms):
    return datetime.datetime.fromtimestamp(time_ms // 1000, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def event_of(row, node):
    """None: it is about no pod, or of a kind that is for operators only."""
    pod, namespace, uid = (row.get(key) or "" for key in ("pod", "namespace", "pod_uid"))
    if row["kind"] not in REASONS or not (UID.match(uid) and NAME.match(pod) and NAME.match(namespace)):
        return None
    at = instant(row["time_ms"])
    return {
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"name": f"{pod[:200].rstrip('-.')}.{row['time_ms']:x}{row['id']:08x}", "namespace": namespace},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": pod, "uid": uid},
        "type": "Warning", "reason": REASONS[row["kind"]], "message": cut(row["text"], 1000),
        "source": {"component": "glake", "host": node}, "reportingComponent": "glake", "reportingInstance": node,
        "firstTimestamp": at, "lastTimestamp": at, "count": 1,
    }


class Poster:
    def __init__(self, server, node):
        self.server, self.node = server, node
        self.all = Limit(20, 0.5)
        self.pods = collections.OrderedDict()
        self.said = {}

    def say_seldom(self, text):
        now = time.monotonic()
        if now - self.said.get(text, -1e9) > 600:
            self.said = {key: at for key, at in self.said.items() if now - at <= 600}
            self.said[text] = now
            say(text)

    def may(self, uid):
        limit = self.pods.setdefault(uid, Limit(3, 60))
        self.pods.move_to_end(uid)
        while len(self.pods) > MAX_PODS:
            self.pods.popitem(last=False)
        return limit.take()

    def post(self, row):
        if time.time() - row["time_ms"] / 1000 > TOO_OLD_S:
            return
        event = event_of(row, self.node)
        if not event:
            return
        uid, place = event["involvedObject"]["uid"], f'{event["metadata"]["namespace"]}/{event["involvedObject"]["name"]}'
        if not self.may(uid):
            self.say_seldom(f"{place}: more events than one in a minute are left out")
            return
        time.sleep(self.all.wait_s())
        self.all.take()
        pause = 1
        # Who reads them waits for nothing newer than this: then it is given up.
        while time.time() - row["time_ms"] / 1000 <= TOO_OLD_S:
            wait = None
            try:
                status, text, wait = self.server.create(event["metadata"]["namespace"], event)
            except (OSError, ValueError, http.client.HTTPException) as error:
                status, text = 0, str(error)
            if status in (200, 201, 202, 409):
                return
            self.say_seldom(f"the API server does not take events: {status or ''} {cut(text, 300)}".replace("  ", " "))
            if status in range(400, 500) and status not in (401, 408, 429):
                return
            time.sleep(min(wait if wait is not None else pause, 60))
            pause = min(2 * pause, 60)


def follow(program, rows):
    """Fill @rows with what glakectl prints, and end with None. The newest are kept."""
    for line in program.stdout:
        try:
            row = json.loads(line)
        except ValueError:
            break
        while True:
            try:
                rows.put_nowait(row)
                break
            except queue.Full:
                rows.get_nowait()
    rows.put(None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--account", default=ACCOUNT, help="the folder with token and ca.crt of a service account")
    parser.add_argument("glakectl", nargs="*", default=["glakectl"], help="behind --: the program, with options")
    options = parser.parse_args()
    poster = Poster(Server(options.account), os.environ["NODE_NAME"])
    rows = queue.Queue(MAX_WAITING)
    program = subprocess.Popen([*options.glakectl, "--json", "events", "--follow"], stdout=subprocess.PIPE, text=True)

    def stop(*_signal):
        program.kill()
        os._exit(0)
    signal.signal(signal.SIGTERM, stop)
    threading.Thread(target=follow, args=(program, rows), daemon=True).start()
    while (row := rows.get()) is not None:
        poster.post(row)
    program.kill()
    say("glakectl has ended")
    sys.exit(1)


if __name__ == "__main__":
    main()
