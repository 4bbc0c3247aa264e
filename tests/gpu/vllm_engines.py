# SPDX-License-Identifier: Apache-2.0
"""A real vLLM: plain, under `glake run`, and with the plugin. Same tokens; the second engine's weights; sleep and wake.

    KIT=FOLDER KIT_SITE=/tmp/vllm-site python3 tests/gpu/vllm_engines.py [--size 1b] [--mode graphs] [--kv] [--ranks 2] [--only plain,...]

With --kv it is about KV memory on elastic ranges instead: both model runners, with prefix caching, against a plain one.

With --ranks the model is over so many GPUs, by tensor parallelism.

FOLDER has kitlib.py and smoke.py, KIT_SITE a vLLM that they can use; without them there is nothing to do. Exit 1 when
tokens differ, the second engine attaches nothing, or a sleep is none.
"""
import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

from run import PYTHON, ROOT, Daemon, expect, failures, row

KIT = os.environ.get("KIT", "")
SITE = os.environ.get("KIT_SITE", "/tmp/vllm-site")
# Only an engine that hangs takes so long.
PATIENCE_SECONDS = 240
LOAD = ("--load", "glake")
#: one after the other; those with options have the plugin
ENGINES = {"plain": (), "under glake run": (), "first with the plugin": LOAD, "second with the plugin": LOAD,
           "asleep and awake": (*LOAD, "--sleep-mode")}


def plugin(folder):
    """What the wheel would install: where vLLM finds the plugin."""
    place = os.path.join(folder, "glake-0.dist-info")
    os.makedirs(place)
    with open(os.path.join(place, "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\nName: glake\nVersion: 0\n")
    with open(os.path.join(place, "entry_points.txt"), "w") as file:
        file.write("[vllm.general_plugins]\nglake = glake.vllm:register\n")
    return os.pathsep.join([folder, PYTHON])


def smoke(daemon, path, *options, shim=True, kv="plain"):
    """One engine: what smoke.py reports, and its log."""
    command = [sys.executable, os.path.join(KIT, "smoke.py"), "--log", "INFO", *options]
    if shim:
        command = [os.path.join(ROOT, "bin", "glake"), "run", "--socket", daemon.socket, "--", *command]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([SITE, *([path] if path else [])]),
                   "GLAKE_SOCKET": daemon.socket, "VLLM_PLUGINS": "glake" if path else "",
                   "GLAKE_VLLM_KV": kv}
    begin = time.monotonic()
    with tempfile.TemporaryFile("w+") as log:
        # A group of its own: with several ranks there are workers, which must not outlive it.
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            print(f"# an engine hangs: {' '.join(options)}", flush=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.seek(0)
        text = log.read()
    found = re.search(r"^RESULT (\{.*\})$", text, re.M)
    print(f"# {'with' if path else 'no'} plugin, {'with' if shim else 'no'} shim: {time.monotonic() - begin:.0f} s"
          f"{'' if found else ', no result: ' + text[-4000:]}", flush=True)
    return (json.loads(found[1]), text) if found else (None, "")


def those_with_results(engines):
    """All of them have to have one, and the same tokens."""
    there = [(name, *told) for name, told in engines if told[0] is not None]
    for name, (result, _) in engines:
        expect(result is not None, f"{name}: no result")
    hashes = {result["hash"] for _, result, _ in there}
    expect(len(hashes) == 1, f"tokens differ: {hashes}")
    return there


def kv(daemon, same):
    """Tokens of a plain engine and of elastic ones; a prefix that is found again; a sleep in between."""
    cached = ["--extra", json.dumps({"enable_prefix_caching": True}), "--kv-mib", "2048"]
    with tempfile.TemporaryDirectory() as folder:
        path = plugin(folder)
        engines = [("plain", smoke(daemon, path, *same, *cached))]
        for runner in ("v1", "v2"):
            engines.append((f"elastic, {runner}", smoke(daemon, path, *same, *cached, "--runner", runner, kv="elastic")))
        engines.append(("elastic, no shim", smoke(daemon, path, *same, *cached, shim=False, kv="elastic")))
        engines.append(("elastic, asleep and awake",
                        smoke(daemon, path, *same, *cached, "--sleep-mode", kv="elastic")))
    there = those_with_results(engines)
    for name, result, log in there:
        row(name, f"{result['tok_s']} tokens/s, {result['batch_tok_s']} in a batch; {result['mib_loaded']} MiB loaded, "
                  f"{result['mib_after']} after; " + " ".join(re.findall(r"glake: KV memory .*", log)[-1:]))
        expect(name == "plain" or "glake: KV memory is elastic" in log, f"{name}: KV memory is plain")
        # With a cached prefix the shapes of the work are others: a plain engine's tokens differ as well.
        expect(result["hash2"] == there[0][1]["hash2"], f"{name}: other tokens the second time than the plain one's")
        expect(result.get("hash_woken", result["hash"]) == result["hash"], f"{name}: other tokens after the wake")


def tell(name, told, n_attached):
    """What an engine reported, of which the plugin has attached so many times at least if there are weights to attach to."""
    result, log = told
    if result is None:
        return
    took = re.findall(r"[Mm]odel loading took .*", log)
    row(name, f"start {result['load_s']} s, {result['tok_s']} tokens/s, {result['mib_loaded']} MiB; {took[-1] if took else ''}; "
              + "; ".join(re.findall(r"glake: (?:published|attached) .*", log)))
    if ENGINES[name]:
        expect(log.count("glake: attached") >= n_attached, f"{name}: it attached not all")
    if "--sleep-mode" in ENGINES[name]:
        row("sleep, wake", f"{result['sleep_s']} s, {result['wake_s']} s; "
                           f"{result['mib_loaded']} -> {result['mib_asleep']} -> {result['mib_awake']} MiB")
        expect(result["hash_woken"] == result["hash"], "other tokens after the wake")
        expect(result["mib_asleep"] < result["mib_loaded"], "nothing left the GPU")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", default="1b")
    parser.add_argument("--mode", default="graphs", choices=["eager", "graphs", "compile"])
    parser.add_argument("--kv", action="store_true")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--only", default=",".join(ENGINES))
    options = parser.parse_args()
    if not os.path.isfile(os.path.join(KIT, "smoke.py")) or not os.path.isdir(os.path.join(SITE, "vllm")):
        print("# skipped: no vLLM in $KIT_SITE, or no smoke.py in $KIT")
        return 0
    same = ["--size", options.size, "--mode", options.mode, "--util", "0.3"]
    if options.ranks > 1:
        # NCCL alone: the other ways need memory that the ranks open of each other.
        same += ["--extra", json.dumps({"tensor_parallel_size": options.ranks, "disable_custom_all_reduce": True})]
    daemon = Daemon('host_bytes = "32GiB"; host_ready_bytes = "8GiB"; mover_idle_ms = 0;')
    if options.kv:
        kv(daemon, same)
        daemon.stop()
        return 1 if failures else 0
    with tempfile.TemporaryDirectory() as folder:
        path = plugin(folder)
        engines = []
        for name in options.only.split(","):
            engines.append((name, smoke(daemon, path if ENGINES[name] else "", *same, *ENGINES[name], shim=name != "plain")))
            tell(*engines[-1], n_attached=options.ranks if LOAD in (ENGINES[one][:2] for one, _ in engines[:-1]) else 0)
    those_with_results(engines)
    daemon.stop()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
