# SPDX-License-Identifier: Apache-2.0
"""glake replay: the models keep their rules, the traces of tests/traces/make.py their peaks."""

import glob
import hashlib
import json
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from tests.integration.with_glaked import BUILD, PATIENCE_S, listens, until

GLAKE = os.path.join(BUILD, "bin", "glake")
TRACES = os.path.join(BUILD, "traces")
MIB = 1024 * 1024
MODELS = ["caching", "expandable", "driver"]

# Peak live in bytes; of each model peak reserved, and the GPU that the trace fits in, in MiB.
PEAKS = {
    "lora": (1484598432, (2890, 1714), (1488, 1428), (1432, 1432)),
    "generate": (6078177280, (9934, 7900), (5802, 5800), (5812, 5812)),
    "unet": (1378947584, (2340, 1374), (1346, 1344), (1356, 1356)),
    "moe": (970831872, (1664, 1116), (1010, 1010), (1020, 1020)),
    "pipeline": (2012305408, (2860, 2200), (1962, 1960), (1986, 1986)),
    "twins": (1720418304, (3108, 1746), (2984, 1684), (1782, 1782)),
}

# SHA-256 of each trace: what is measured with one is measured with these very bytes.
DIGESTS = {
    "lora": "7891f6fce90844e6", "generate": "3db6baba1ecf6175", "unet": "6987a32fadd7a4ff",
    "moe": "fd3b9f770b12b3fb", "pipeline": "81a09376b607590b", "twins": "a3f474850f3f8811",
}

# What the allocator that stitches reaches at least, of 1, and the handles that it maps for that at most.
UTILIZATION = {"lora": 0.99, "generate": 0.99, "unet": 0.99, "moe": 0.965, "pipeline": 0.98,
               "twins": 0.97}
MAPPED = {"lora": 2600, "generate": 2100, "unet": 1050, "moe": 1200, "pipeline": 1650, "twins": 4000}
# The same where all sizes are eight times as large.
MAPPED_LARGE = {"lora": 4600, "generate": 2200, "unet": 3100, "moe": 3000, "pipeline": 1650,
                "twins": 4600}


def glake_replay(*words, text=None, environment=None):
    environment = environment or dict(os.environ, CUDASIM_DEVICES="2x8GiB")
    return subprocess.run([GLAKE, "replay", *words], input=text, capture_output=True, timeout=300,
                          text=not isinstance(text, bytes), env=environment, check=False)


def replay(events, on=",".join(MODELS)):
    """Of each model what it reserves, and what it fits in, in MiB."""
    done = glake_replay("--json", "--on", on, "-", text="\n".join(events) + "\n")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    return {row["name"]: (row["peak_reserved_bytes"] / MIB, row["smallest_bytes"] / MIB)
            for row in answer["allocators"]}


def allocs(*sizes, first=0, stream=0):
    return [f"a {first + i} {int(size * MIB)} {stream}" for i, size in enumerate(sizes)]


def frees(*numbers, stream=0):
    return [f"f {number} {stream}" for number in numbers]


# What is proved, the events, and what models need for them.
RULES = [
    ("the smallest allocation", ["a 1 1 0"], dict(caching=(2, 2), expandable=(2, 2), driver=(2, 2))),
    ("small ones share", allocs(*[1 / 2048] * 4096), dict(caching=(2, 2), expandable=(2, 2), driver=(2, 2))),
    ("small ones share, but no more than fit", allocs(*[1 / 2048] * 4097),
     dict(caching=(4, 4), expandable=(4, 4), driver=(4, 4))),
    ("a segment for 1 MiB", allocs(1), dict(caching=(2, 2), expandable=(2, 2), driver=(2, 2))),
    ("a segment for a byte more", ["a 1 1048577 0"], dict(caching=(20, 20), expandable=(20, 20), driver=(2, 2))),
    ("a segment for four times 5 MiB", allocs(5, 5, 5, 5), dict(caching=(20, 20), expandable=(20, 20), driver=(24, 24))),
    ("a segment for 10 MiB", allocs(10), dict(caching=(10, 10), expandable=(20, 20), driver=(10, 10))),
    ("a segment for 21 MiB", allocs(21), dict(caching=(22, 22), expandable=(40, 40), driver=(22, 22))),
    ("a rest of 1 MiB stays with its block", allocs(20) + frees(0) + allocs(19, 1.5),
     dict(caching=(40, 40), expandable=(40, 40))),
    ("a larger rest does not", allocs(20) + frees(0) + allocs(18.5, 1.5), dict(caching=(20, 20), expandable=(20, 20))),
    ("a rest of the driver's does not", allocs(20) + frees(0) + allocs(18, 1.5), dict(driver=(20, 20))),
    ("the best fit is taken", allocs(40, 30) + frees(0, 1) + allocs(30, 40, first=2), dict(caching=(70, 70))),
    ("streams share nothing until memory is short", allocs(20) + frees(0) + allocs(20, stream=7),
     dict(caching=(40, 20), expandable=(40, 20), driver=(20, 20))),
    ("what is cached goes back and the request is tried again", allocs(30) + frees(0) + allocs(40),
     dict(caching=(70, 40), expandable=(40, 40))),
    ("a used part keeps a segment but not pages",
     allocs(80) + frees(0) + allocs(20, 20, 20, 20) + frees(0, 2) + allocs(40, first=8),
     dict(caching=(120, 120), expandable=(120, 80), driver=(80, 80))),
    # The hole in the middle joins the free block before it.
    ("free pages are mapped before new ones", allocs(20, 20, 20) + frees(0, 1) + allocs(60, first=4),
     dict(expandable=(120, 80))),
    ("ids come again and streams are any number",
     ["# a comment", "", "a 0xffffffffffffffff 512 18446744073709551615 12", "f 18446744073709551615 0",
      "a 0xffffffffffffffff 512 0"], dict(driver=(2, 2))),
]


class Models(unittest.TestCase):
    def test_each_rule(self):
        for what, events, expected in RULES:
            with self.subTest(what):
                self.assertEqual({name: replay(events)[name] for name in expected}, expected)


class Traces(unittest.TestCase):
    def test_peaks(self):
        self.assertEqual(sorted(PEAKS), sorted(os.path.basename(path)[:-6]
                                               for path in glob.glob(TRACES + "/*.trace")))
        for name, (live, *rows) in PEAKS.items():
            done = glake_replay("--json", "--on", ",".join(MODELS), f"{TRACES}/{name}.trace")
            answer = json.loads(done.stdout)
            found = [(row["peak_reserved_bytes"] // MIB, row["smallest_bytes"] // MIB)
                     for row in answer["allocators"]]
            self.assertEqual((answer["peak_live_bytes"], found), (live, rows), name)
            for row in answer["allocators"]:
                self.assertAlmostEqual(row["utilization"], live / row["peak_reserved_bytes"], 4)
                self.assertGreaterEqual(row["n_made"], row["n_freed"])
                self.assertIsNone(row["time_ns"])

    def test_traces_are_the_same_wherever_they_are_made(self):
        for name, digest in DIGESTS.items():
            with open(f"{TRACES}/{name}.trace", "rb") as file:
                self.assertEqual(hashlib.sha256(file.read()).hexdigest()[:16], digest, name)

    def test_the_table(self):
        done = glake_replay("--on=driver,caching", f"{TRACES}/lora.trace")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"(?m)^caching +1415\.8 +2890\.0 +49\.0 % .* 1714$")
        self.assertNotIn("expandable", done.stdout)


class WithDaemon(unittest.TestCase):
    """A real glaked on simulated GPUs."""

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.socket = os.path.join(self.folder, "glaked.sock")
        self.environment = dict(os.environ, CUDASIM_DEVICES="2x8GiB")

    def start_daemon(self, config=""):
        path = os.path.join(self.folder, "glaked.conf")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'socket_path = "{self.socket}";\n{config}\n')
        log = open(os.path.join(self.folder, "log"), "w", encoding="utf-8")
        self.addCleanup(log.close)
        daemon = subprocess.Popen([os.path.join(BUILD, "bin", "glaked"), "-c", path], stderr=log,
                                  env=self.environment)
        self.addCleanup(lambda: self.assertEqual(daemon.wait(PATIENCE_S), 0))
        self.addCleanup(daemon.terminate)
        until(lambda: listens(self.socket))


class Ours(WithDaemon):
    def allocators(self, *words, text=None, environment=None):
        done = glake_replay("--json", f"--socket={self.socket}", *words, text=text, environment=environment or self.environment)
        self.assertEqual((done.returncode, done.stderr), (0, ""), words)
        return json.loads(done.stdout)["allocators"]

    def test_every_allocation_is_served(self):
        self.start_daemon()
        for name, (live, *_) in PEAKS.items():
            rows = self.allocators("--on=stitch,plain", f"{TRACES}/{name}.trace")
            self.assertEqual([row["name"] for row in rows], ["stitch", "plain"])
            for row in rows:
                self.assertGreaterEqual(row["peak_reserved_bytes"], live)
                self.assertEqual(row["smallest_bytes"], row["peak_reserved_bytes"])
                self.assertGreater(row["time_ns"], 0)
            self.assertGreaterEqual(rows[0]["utilization"], UTILIZATION[name], name)
            self.assertGreater(rows[0]["n_made"], 0)
            self.assertLessEqual(rows[0]["n_made"], MAPPED[name], name)

    def test_larger_programs_have_larger_chunks(self):
        """All sizes eight times as large: hardly more chunks, and less is lost in parts of them."""
        self.environment["CUDASIM_DEVICES"] = "1x100GiB"
        self.start_daemon()
        for name in PEAKS:
            with open(f"{TRACES}/{name}.trace", encoding="ascii") as file:
                text = re.sub(r"(?m)^(a \d+ )(\d+)", lambda m: m[1] + str(int(m[2]) * 8), file.read())
            (row,) = self.allocators("--on=stitch", "-", text=text)
            self.assertGreaterEqual(row["utilization"], 0.98, name)
            self.assertLessEqual(row["n_made"], MAPPED_LARGE[name], name)

    def test_a_loop_makes_no_driver_calls_from_its_third_round_on(self):
        """What a trace frees is allocated again. Streams that wait for each other are not in it."""
        self.start_daemon()
        for name in ("lora", "generate", "unet", "moe"):
            with open(f"{TRACES}/{name}.trace", encoding="ascii") as file:
                lines = file.read().splitlines()[1:]
            n_kept = sum(1 if line[0] == "a" else -1 for line in lines)
            rows = []
            for n_rounds in (3, 6):
                text = "\n".join(lines[:n_kept] + lines[n_kept:] * n_rounds) + "\n"
                rows += self.allocators("--on=stitch", "-", text=text)
            first, second = ((row["n_made"], row["n_freed"], row["peak_reserved_bytes"])
                             for row in rows)
            self.assertEqual(first, second, name)

    def test_the_environment_does_not_choose(self):
        self.start_daemon()
        stitch, plain = self.allocators("--on=stitch,plain", f"{TRACES}/moe.trace",
                                        environment=dict(self.environment, GLAKE_ALLOC="stitch"))
        self.assertGreater(stitch["n_made"], 0)
        self.assertEqual(plain["n_made"], 0)
        self.assertGreater(plain["peak_reserved_bytes"], stitch["peak_reserved_bytes"])

    def test_without_a_glaked_there_are_the_models(self):
        done = glake_replay("--json", f"--socket={self.socket}", f"{TRACES}/moe.trace")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^glake: stitch: .+\nglake: plain: .+\n$")
        self.assertEqual([row["name"] for row in json.loads(done.stdout)["allocators"]], MODELS)

    def test_a_quota_too_small_names_the_line(self):
        self.start_daemon('tenants = ({ name = "default"; device_bytes = "64MiB"; });')
        done = glake_replay(f"--socket={self.socket}", "--on=stitch,driver", "-",
                            text="a 1 33554432 0\n# more than that\na 2 67108864 0\n")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^glake: stitch: line 3 of the trace: .+\n$")
        self.assertIn("driver", done.stdout)

    def test_a_device_that_is_not_there(self):
        self.start_daemon()
        done = glake_replay(f"--socket={self.socket}", "--on=stitch", "--device=77",
                            f"{TRACES}/moe.trace")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^glake: stitch: CUDA_ERROR_INVALID_DEVICE\n$")


class Recording(WithDaemon):
    """`glake run --record`: what a program allocates of glaked's memory becomes a trace."""

    def setUp(self):
        super().setUp()
        self.start_daemon()

    def run_program(self, command, environment):
        """Returns its pid."""
        with subprocess.Popen(command, cwd=self.folder, env=environment, stdin=subprocess.PIPE,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:
            error = child.communicate(b"\n" * 100, timeout=300)[1]
        self.assertEqual((child.returncode, error), (0, b""))
        return child.pid

    def run_recorded(self, *words, options=("--record=r.trace",), **more):
        """The traces by what their names have behind the pid, each as its lines. A child that the program forks may leave one of its
        own, if it is written before the child ends: that is whole as well."""
        environment = dict(self.environment, **more)
        program = os.path.join(BUILD, "tests", "shim", words[0])
        pid = self.run_program([GLAKE, "run", f"--socket={self.socket}", *options, "--", program, *words[1:]], environment)
        traces = {}
        for path in glob.glob(os.path.join(self.folder, "r.trace.*")):
            done = glake_replay("--on=driver", path)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            with open(path, encoding="ascii") as file:
                lines = file.read().splitlines()
            if f".{pid}" in path:
                traces[path.split(f".{pid}", 1)[1]] = lines
            os.unlink(path)
        return traces

    def test_every_allocation_is_in_it(self):
        counts = os.path.join(self.folder, "counts")
        (lines,) = self.run_recorded("runtime", SHIM_COUNTS=counts).values()
        with open(counts, encoding="utf-8") as file:
            n_owned = json.load(file)["owned"]
        self.assertGreater(n_owned, 0)
        self.assertEqual(sum(line[0] == "a" for line in lines), n_owned)
        self.assertEqual(sum(line[0] == "f" for line in lines), n_owned)
        self.assertGreater(len({line.split()[-1] for line in lines}), 1)

    def test_threads_and_contexts_that_end_leave_it_whole(self):
        for how in ("plain", "stitch"):
            for scenario in ("async_threads", "threads", "resets", "async_resets", "forks"):
                traces = self.run_recorded("program", "dlsym", scenario, GLAKE_ALLOC=how)
                self.assertEqual(list(traces), [""], scenario)

    def test_a_second_device_has_a_trace_of_its_own(self):
        self.assertIn(".1", self.run_recorded("program", "dlsym", "async"))

    def record_over(self, prepare):
        """What `prepare`, a line for the shell, has put where the trace goes, is there."""
        program = os.path.join(BUILD, "tests", "shim", "runtime")
        line = f'{prepare}; exec "{GLAKE}" run --socket="{self.socket}" --record=r.trace -- "{program}"'
        pid = self.run_program(["sh", "-c", line], self.environment)
        return os.path.join(self.folder, f"r.trace.{pid}")

    def test_no_link_is_followed(self):
        victim = os.path.join(self.folder, "victim")
        for link in ("ln -s", "ln"):
            with open(victim, "w", encoding="utf-8") as file:
                file.write("precious")
            self.record_over(f"{link} victim r.trace.$$")
            with open(victim, encoding="utf-8") as file:
                self.assertEqual(file.read(), "precious")
        self.record_over("ln -s new r.trace.$$")
        self.assertFalse(os.path.exists(os.path.join(self.folder, "new")))
        # Nor does anybody wait for a reader.
        self.record_over("mkfifo r.trace.$$")

    def test_an_own_file_is_written_anew(self):
        path = self.record_over("seq 100000 > r.trace.$$")
        done = glake_replay("--on=driver", path)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_folder_that_cannot_be_written_is_refused(self):
        done = subprocess.run([GLAKE, "run", f"--socket={self.socket}", "--record=/proc/no/r", "--",
                               "true"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 125)
        self.assertRegex(done.stderr, "^glake: /proc/no/r: .+\n$")

    def test_what_cannot_be_written_disturbs_nobody(self):
        counts = os.path.join(self.folder, "counts")
        self.run_recorded("runtime", options=(), SHIM_COUNTS=counts, GLAKE_SHIM_RECORD="/proc/no/r")
        with open(counts, encoding="utf-8") as file:
            self.assertEqual(json.load(file)["passed"], 0)


def event(action, address, size, stream=0):
    return {"action": action, "addr": address, "size": size, "stream": stream, "frames": []}


def freed(*where):
    return [event("free_requested", *where), event("free_completed", *where)]


class Snapshots(unittest.TestCase):
    """python -m glake.trace: PyTorch's memory snapshots."""

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def convert(self, snapshot, *words):
        path = os.path.join(self.folder, "snapshot.pickle")
        with open(path, "wb") as file:
            pickle.dump(snapshot, file)
        return subprocess.run([sys.executable, "-m", "glake.trace", *words, path], timeout=PATIENCE_S,
                              capture_output=True, text=True, check=False)

    def check(self, history, *expected, segments=()):
        done = self.convert({"segments": list(segments), "device_traces": [history]})
        self.assertEqual((done.stdout.splitlines(), done.stderr), (list(expected), ""))
        self.assertEqual(glake_replay("--on=caching", "-", text=done.stdout).returncode, 0)

    def test_allocations_and_frees(self):
        self.check([event("segment_alloc", 4096, 2 * MIB), event("alloc", 4096, 100),
                    event("alloc", 8192, 200, 7), *freed(4096, 100), event("alloc", 4096, 50),
                    event("snapshot", 0, 0), event("oom", 0, 1 << 40)],
                   "a 0x1000 100 0", "a 0x2000 200 7", "f 0x1000 0", "a 0x1000 50 0")

    def test_a_free_is_where_other_streams_are_done(self):
        self.check([event("alloc", 4096, 100), event("free_requested", 4096, 100),
                    event("alloc", 8192, 200), event("free_completed", 4096, 100)],
                   "a 0x1000 100 0", "a 0x2000 200 0", "f 0x1000 0")
        self.check([event("alloc", 4096, 100), event("free_requested", 4096, 100)],
                   "a 0x1000 100 0", "f 0x1000 0")

    def test_what_is_older_lives_from_the_beginning(self):
        blocks = [{"size": 1024, "requested_size": 1000, "state": "active_allocated"},
                  {"size": 3072, "state": "inactive"},
                  {"size": 512, "requested_size": 300, "state": "active_allocated"},
                  {"size": 512, "requested_size": 10, "state": "active_awaiting_free"}]
        segment = {"device": 0, "address": 4096, "stream": 3, "blocks": blocks}
        self.check([event("alloc", 8192, 300, 3), *freed(65536, 2000)],
                   "a 0x10000 2000 0", "a 0x1000 1000 3", "a 0x2200 10 3", "a 0x2000 300 3",
                   "f 0x10000 0", segments=[segment, {**segment, "device": 1}])

    def test_a_history_with_a_gap(self):
        self.check([event("alloc", 4096, 100), event("alloc", 4096, 200)],
                   "a 0x1000 100 0", "f 0x1000 0", "a 0x1000 200 0")

    def test_a_device_is_chosen(self):
        snapshot = {"segments": [], "device_traces": [[event("alloc", 1, 2)], [],
                                                      [event("alloc", 3, 4)]]}
        done = self.convert(snapshot)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("--device", done.stderr)
        self.assertEqual(self.convert(snapshot, "--device=2").stdout, "a 0x3 4 0\n")

    def test_a_file_that_is_not_there(self):
        done = subprocess.run([sys.executable, "-m", "glake.trace", "/nowhere"], capture_output=True, text=True,
                              check=False)
        self.assertEqual((done.returncode, done.stderr), (1, "glake.trace: /nowhere: No such file or directory\n"))

    def test_what_is_no_snapshot_is_refused(self):
        for wrong in ([], {"device_traces": [[]]}, {"device_traces": [[{"action": "alloc"}]]},
                      {"device_traces": [[unittest.TestCase()]]}):
            done = self.convert(wrong)
            self.assertEqual((done.returncode, done.stdout), (1, ""), wrong)
            self.assertRegex(done.stderr, r"^glake.trace: .+\n$")


class BadTraces(unittest.TestCase):
    def check(self, text, message, line=2):
        done = glake_replay("--on=driver", "-", text="a 1 512 0\n" + text)
        self.assertEqual((done.returncode, done.stdout), (1, ""), text)
        self.assertEqual(done.stderr, f"glake: stdin:{line}: {message}\n")

    def test_wrong_lines_are_named(self):
        self.check("b 2 512 0\n", "neither a nor f: b")
        # A terminal is not steered by a trace, nor by what it is called.
        self.check("\x1b]0;hello\x07\x1b[2J\n", r"neither a nor f: \x1b]0;hello\x07\x1b[2J")
        self.check("a \x9b31m 512 0\n", r"id is not a number: \xc2\x9b31m")
        self.assertEqual(glake_replay("no\x1b[31m").stderr, "glake: no\\x1b[31m: No such file or directory\n")
        self.check("a\n", "no id")
        self.check("a 2\n", "no size")
        self.check("a 2 512\n", "no stream")
        self.check("f 1\n", "no stream")
        self.check("a x 512 0\n", "id is not a number: x")
        self.check("a 2 -512 0\n", "size is not a number: -512")
        self.check("a 2 512KiB 0\n", "size is not a number: 512KiB")
        self.check("a 2 0x 0\n", "size is not a number: 0x")
        self.check("a 2 18446744073709551616 0\n", "size is not a number: 18446744073709551616")
        self.check("a 2 512 0 1 2\n", "a word too many: 2")
        self.check("f 1 0 now\n", "time is not a number: now")
        self.check("a 2 0 0\n", "size is 0")
        self.check("a 2 18446744073709551615 0\n", "over 16 TiB live")
        self.check("a 2 17592186044416 0\n", "over 16 TiB live")
        self.check("a 1 512 0\n", "id 1 is live already")
        self.check("f 2 0\n", "id 2 is not live")
        self.check("f 1 0\nf 1 0\n", "id 1 is not live", line=3)
        self.check("a 2 " + "5" * 300 + " 0\n", "the line is too long, or not text")

    def test_no_trace(self):
        for text in ("", "# nothing\n"):
            done = glake_replay("-", text=text)
            self.assertEqual((done.returncode, done.stderr), (1, "glake: stdin:no allocation in it\n"))
        for path in ("nosuch.trace", TRACES):
            done = glake_replay(path)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, rf"^glake: {path}:.+\n$")

    def test_damaged_traces_end_with_a_line(self):
        """Bytes are changed, left out and doubled."""
        generator = random.Random(12)
        with open(f"{TRACES}/moe.trace", "rb") as file:
            good = file.read()[:4000]
        n_refused = 0
        for _ in range(150):
            text = bytearray(good)
            for _ in range(generator.randrange(1, 4)):
                at = generator.randrange(len(text))
                text[at:at + generator.randrange(3)] = generator.choice(
                    [b"", b"\0", b" ", b"\n", b"a", b"9" * 9, bytes([generator.randrange(256)])])
            done = glake_replay("--on=expandable", "-", text=bytes(text))
            self.assertIn(done.returncode, (0, 1), bytes(text))
            if done.returncode == 1:
                self.assertRegex(done.stderr, rb"^glake: stdin:\d+: .+\n$")
                n_refused += 1
        self.assertGreater(n_refused, 50)


class Command(unittest.TestCase):
    def test_wrong_words(self):
        trace = f"{TRACES}/lora.trace"
        for words in ((), (trace, trace), ("--on=", trace), ("--on=caching,", trace),
                      ("--on=cache", trace), ("--nosuch", trace), ("--device=-1", trace),
                      ("--device=", trace)):
            done = glake_replay(*words)
            self.assertEqual((done.returncode, done.stdout), (125, ""), words)
            self.assertRegex(done.stderr, r"^glake: .+\nTry 'glake replay --help'.\n$")

    def test_a_wrong_allocator_is_told_all_of_them(self):
        help_text = glake_replay("--help").stdout
        done = glake_replay("--on=cache", f"{TRACES}/lora.trace")
        for name in ["stitch", "plain", *MODELS]:
            self.assertRegex(help_text, rf"\b{name} \(")
            self.assertRegex(done.stderr, rf"\b{name}\b")

    def test_the_man_page_has_every_option(self):
        done = glake_replay("--help")
        options = re.findall(r"^  (--[a-z]+)", done.stdout, re.M)
        self.assertEqual((done.returncode, len(options) >= 3), (0, True))
        run = subprocess.run([GLAKE, "--help"], capture_output=True, text=True, check=True)
        self.assertIn("glake replay", run.stdout)
        options += re.findall(r"^  (--[a-z]+)", run.stdout, re.M)
        with open("shim/run/glake.1", encoding="utf-8") as file:
            man = re.sub(r"\\f[BIRP]", "", file.read()).replace("\\-", "-")
        for option in options:
            self.assertIn(option, man)


if __name__ == "__main__":
    unittest.main()
