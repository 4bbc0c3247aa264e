# SPDX-License-Identifier: Apache-2.0
"""Equal weights that become one copy without anybody asking, with tables of readers, in programs that know nothing.

    python3 tests/gpu/auto.py --table FILE[,FILE] [--only share,speed,alone,replays,unseal] [--layers 32] [--pairs 20]
                              [--rounds 3] [--dedup auto] [--loader map]

    share    three transformers processes with one model of Llama-3-8B's shapes, which generate all the time: how
             many copies there are, and how long after the last of them was loaded
    speed    decoding of a Llama of 1.1 B parameters in pairs of stretches: a process with --dedup=auto, whose weights
             are shared with another process, and two with --dedup=off; eager, and as a graph
    alone    the same where nobody has the same weights
    replays  the graph, and launch by launch, in many processes, plain and guarded, before and behind sealing: processes
             differ among each other, so each is compared with itself
    unseal   a kernel that no table knows is launched while a graph decodes: how long its tokens are held up until
             all is private

The tables are copied to a folder of root's. Tokens have to be the same bits all the time. Printed last are
the numbers, and what was not sealed and why; numbers are not judged. Exit 1 when a process fails or has
other tokens.
"""
import argparse
import contextlib
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import learn
from child import Child, ask_all, serve
from run import Daemon, expect, failures

SELF = os.path.abspath(__file__)
MODELS = {
    "8b": dict(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_attention_heads=32,
               num_key_value_heads=8),
    "1b": dict(vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=22,
               num_attention_heads=32, num_key_value_heads=4)}
STRETCH = 24
#: the states of glake's candidates take twice five seconds at most
PATIENCE_SECONDS = 40
N_RESAMPLES = 2000
#: of `replays`: nothing is marked for half of this
QUIET_SECONDS = 70
report = []


def say(line):
    report.append(line)
    print(f"# {line}", flush=True)


# ---- in a process -------------------------------------------------------------------------------

class Program:
    def __init__(self):
        import torch
        self.torch = torch
        torch.zeros(1, device="cuda")
        from torch.cuda.jiterator import _create_jit_fn
        self.stranger = _create_jit_fn(
            "template <typename T> T stranger(T x) { return x + T(1); }")
        self.place = torch.zeros(16, device="cuda")

    def load(self, folder, loader):
        """`map` puts all weights into one allocation of PyTorch's, `to` most into one each."""
        from transformers import AutoModelForCausalLM
        where = {"device_map": "cuda:0"} if loader == "map" else {}
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=self.torch.bfloat16,
                                                          **where).eval().to("cuda")
        self.torch.cuda.synchronize()
        return {"bytes": sum(p.nbytes for p in self.model.parameters()), "pid": os.getpid()}

    def pin(self):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, -20)

    def tokens(self):
        return learn.generate(self.model, 1)

    # ---- generating all the time

    def start(self):
        self.want = self.tokens()
        self.is_over, self.n_turns, self.error = False, 0, ""

        def run():
            try:
                while not self.is_over:
                    if self.tokens() != self.want:
                        raise AssertionError("other tokens")
                    self.n_turns += 1
            except Exception as error:
                self.error = f"{type(error).__name__}: {error}"[:500]

        self.thread = threading.Thread(target=run)
        self.thread.start()
        return self.want

    def stop(self):
        self.is_over = True
        self.thread.join()
        if self.error:
            raise AssertionError(self.error)
        return self.n_turns

    # ---- stretches

    def prepare(self):
        self.decoder = learn.Decoder(self.model)
        self.decoder.capture()
        return [self.decoder.replay(), [self.decoder.token() for _ in range(8)]]

    def stretch(self, kind, n_tokens=STRETCH):
        """Milliseconds of its median token, and the last one."""
        function = self.decoder.replay if kind == "graph" else self.decoder.token
        if kind == "eager":
            self.decoder.start_over()
        function()
        times = []
        for _ in range(n_tokens):
            begin = time.perf_counter()
            token = function()
            times.append((time.perf_counter() - begin) * 1e3)
        return [statistics.median(times), token]

    # ---- unsealing

    def launch_stranger(self):
        """NVRTC's: in no table."""
        self.stranger(self.place)
        self.torch.cuda.synchronize()

    def held(self):
        """Milliseconds of the launch, tokens meanwhile, and by how much they took too long, in sum and at most."""
        times = []
        done = threading.Event()
        took = []

        def run():
            begin = time.perf_counter()
            try:
                self.launch_stranger()
            except Exception as error:
                took.append(repr(error))
            took.append((time.perf_counter() - begin) * 1e3)
            done.set()

        usual = self.stretch("graph")[0]
        thread = threading.Thread(target=run)
        thread.start()
        while not done.is_set() or len(times) < 20:
            begin = time.perf_counter()
            self.decoder.replay()
            times.append((time.perf_counter() - begin) * 1e3)
        thread.join()
        over = [t - usual for t in times if t > usual + 0.2]
        # An answer with an "error" is a failed one.
        return {"ms": took[-1], "failed": "" if len(took) == 1 else took[0], "n": len(times),
                "usual": usual, "sum": sum(over), "most": max(over, default=0)}


# ---- models -------------------------------------------------------------------------------------

def write(folder, name, layers, seed):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    shape = dict(MODELS[name])
    shape.setdefault("num_hidden_layers", layers)
    torch.manual_seed(seed)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(LlamaConfig(tie_word_embeddings=False, dtype="bfloat16",
                                             eos_token_id=None, **shape))
    model.save_pretrained(folder, max_shard_size="100GB")


def model_of(options, name, seed=1):
    folder = os.path.join(options.folder, f"{name}-{options.layers if name == '8b' else 0}-{seed}")
    if not os.path.exists(os.path.join(folder, "config.json")):
        subprocess.run([sys.executable, SELF, "--write", name, "--seed", str(seed), "--layers",
                        str(options.layers), "--folder", folder], check=True)
    return folder


# ---- processes ----------------------------------------------------------------------------------

def start(daemon, options, name, dedup, **environment):
    return Child(daemon, name, [SELF, "--child"], options=(f"--dedup={dedup}",),
                 environment={"GLAKE_READERS": options.readers, "HF_HUB_OFFLINE": "1",
                              "CUBLAS_WORKSPACE_CONFIG": ":4096:8", **environment})


def rows_of(daemon, pids, *command):
    return [row for row in daemon.ctl(*(command or ("dedup",))).get("sessions", ()) if row["pid"] in pids]


def explain(daemon, children, what):
    for row in rows_of(daemon, [child.process.pid for child in children]):
        states = ", ".join(f"{state} {row.get(state + '_bytes', 0) >> 20}"
                           for state in ("filling", "quiet", "alone", "refused"))
        private = "; ".join(f"{part['bytes'] >> 20} {part['why']}" for part in row["unsealed"])
        say(f"{what}: {row['pid']}: MiB {states}; {row.get('refused_why') or '-'}; took "
            f"{row['seal_ms']} ms, held {row['held_ms']}; unsealed: {private or '-'}")
    if children:
        explain_private(daemon, children[0].process.pid, what)


def explain_private(daemon, pid, what):
    """What of one process stays private, by reason."""
    reasons = {}
    for row in rows_of(daemon, [pid], "dedup", str(pid)):
        for one in row["candidates"]:
            if one["state"] != "sealed":
                key = (one["state"], one["refused_why"] or "-")
                n, filled, size = reasons.get(key, (0, 0, 0))
                reasons[key] = (n + 1, filled + one["filled_bytes"], size + one["bytes"])
    for (state, why), (n, filled, size) in sorted(reasons.items(), key=lambda item: -item[1][1])[:8]:
        say(f"{what}: {pid}: {state}: {n} allocations, {filled >> 20} of {size >> 20} MiB filled: {why}")


# ---- measurements -------------------------------------------------------------------------------

def copies(daemon, children, n_bytes):
    rows = rows_of(daemon, [child.process.pid for child in children])
    blocks = daemon.device()["used_block_bytes"]
    private = sum(max(0, n_bytes - row["sealed_bytes"]) for row in rows)
    private += (len(children) - len(rows)) * n_bytes
    return (blocks + private) / n_bytes


def share(options):
    daemon = Daemon()
    children = [start(daemon, options, f"share {i}", options.dedup) for i in range(3)]
    begin = time.perf_counter()
    loaded = ask_all(children, "load", model_of(options, "8b"), options.loader)
    load_seconds = time.perf_counter() - begin
    begin = time.perf_counter()
    wants = ask_all(children, "start")
    expect(wants[0] and all(want == wants[0] for want in wants), f"share: other tokens: {wants}")
    n_bytes = loaded[0].get("bytes", 1)
    first = None
    at_ten = None
    now = 3.0
    while time.perf_counter() - begin < PATIENCE_SECONDS and (first is None or at_ten is None):
        now = copies(daemon, children, n_bytes)
        seconds = time.perf_counter() - begin
        first = seconds if first is None and now <= 1.05 else first
        at_ten = now if at_ten is None and seconds >= 10 else at_ten
        time.sleep(0.3)
    time.sleep(3)
    last = copies(daemon, children, n_bytes)
    turns = ask_all(children, "stop")
    say(f"share: {n_bytes / 1e9:.1f} GB, loaded in {load_seconds:.1f} s; "
        + (f"<= 1.05 copies {first:.1f} s after the last load" if first else "never <= 1.05 copies")
        + f"; {at_ten or now:.3f} after 10 s, {last:.3f} at last; generated {turns} times"
        "  [<= 1.05 within 10 s]")
    explain(daemon, children, "share")
    for child in children:
        child.end()
    daemon.stop()


def ratio(rows, which):
    """How much faster than the first one, in the median of rows of times."""
    return statistics.median(row[0] / row[which] for row in rows)


def say_speed(what, rounds):
    """Of rounds of rows: milliseconds of a plain process, of another plain one, and of the one that is measured."""
    rows = [row for one in rounds for row in one]
    if not rows:
        return
    for which, name in ((2, what), (1, "    two plain ones")):
        drawn = sorted(ratio(random.choices(rows, k=len(rows)), which) for _ in range(N_RESAMPLES))
        say(f"{name}: x {ratio(rows, which):.4f} ({drawn[N_RESAMPLES // 40]:.4f} .. {drawn[-N_RESAMPLES // 40]:.4f}), "
            f"{statistics.median(row[0] for row in rows):.3f} ms a token plain, {len(rows)} pairs; each set of processes: "
            + ", ".join(f"{ratio(one, which):.4f}" for one in rounds if one))


def stretches(children, kind, n, n_tokens=STRETCH):
    """Milliseconds of a token of each, one after the other, in changing order."""
    rows = []
    tokens = set()
    for number in range(n):
        row = {}
        for i in range(len(children)):
            child = children[(i + number) % len(children)]
            answer = child.ask("stretch", kind, n_tokens)
            if not answer:
                return rows
            row[child] = answer[0]
            tokens.add(answer[1])
        rows.append([row[child] for child in children])
    expect(len(tokens) == 1, f"{kind}: other tokens: {tokens}")
    return rows


def measure_round(options, what, daemon, seeds, rounds):
    """Two plain processes, the one that is measured, and perhaps one that has the weights that are shared."""
    ways = ["off", "off", options.dedup, options.dedup][:len(seeds)]
    children = [start(daemon, options, f"{what} {i}", way) for i, way in enumerate(ways)]
    for child, seed in zip(children, seeds):
        child.tell("load", model_of(options, "1b", seed), "to")
    loaded = [child.hear("load") for child in children]
    for child in children[:3]:
        child.ask("pin")
    prepared = ask_all(children, "prepare")
    expect(prepared[0] and all(one == prepared[0] for one in prepared[:3]), f"{what}: other tokens: {prepared}")
    n_bytes = loaded[0].get("bytes", 1)
    rounds["graph, not yet sealed"].append(stretches(children[:3], "graph", 10))
    # Work goes on meanwhile: without any, nothing is sealed.
    guarded = children[2:]
    begin = time.perf_counter()
    seconds = None
    while seconds is None and time.perf_counter() - begin < PATIENCE_SECONDS:
        for child in guarded:
            child.ask("stretch", "eager")
        rows = rows_of(daemon, [child.process.pid for child in guarded])
        if len(rows) == len(guarded) and all(r["sealed_bytes"] >= 0.9 * n_bytes for r in rows):
            seconds = time.perf_counter() - begin
    say(f"{what}: " + (f"sealed {seconds:.1f} s after loading" if seconds else "not all is sealed"))
    for kind in ("eager", "graph"):
        rounds[kind].append(stretches(children[:3], kind, options.pairs))
    explain(daemon, guarded, what)
    for child in children:
        child.end()


def measure_speed(options, what, seeds, target):
    """In several sets of processes: where their memory lies on the GPU makes a difference, too."""
    daemon = Daemon()
    rounds = {"graph, not yet sealed": [], "eager": [], "graph": []}
    for _ in range(options.rounds):
        measure_round(options, what, daemon, seeds, rounds)
    for kind, rows in rounds.items():
        say_speed(f"{what}, {kind}, {options.dedup} to off  {target}", rows)
    daemon.stop()


def interval(plain, guarded):
    """The ratio of their medians, and where 95 % of those of processes drawn again lie."""
    drawn = sorted(statistics.median(random.choices(plain, k=len(plain))) / statistics.median(random.choices(guarded, k=len(guarded)))
                   for _ in range(N_RESAMPLES))
    return (f"x {statistics.median(plain) / statistics.median(guarded):.4f} ({drawn[N_RESAMPLES // 40]:.4f} .. "
            f"{drawn[-N_RESAMPLES // 40]:.4f})")


def replays(options):
    """Whether processes become slower by being sealed, while plain ones do not."""
    daemon = Daemon()
    quiet = {"GLAKE_DEDUP_QUIET_MS": str(QUIET_SECONDS * 1000)}
    children = [start(daemon, options, f"{way} {i}", way, **quiet) for i in range(options.processes) for way in ("off", options.dedup)]
    loaded = ask_all(children, "load", model_of(options, "1b"), "to")
    since = time.perf_counter()
    prepared = ask_all(children, "prepare")
    expect(prepared[0] and all(one == prepared[0] for one in prepared), f"replays: other tokens: {prepared}")
    ask_all(children, "pin")
    guarded = [child.process.pid for child in children[1::2]]
    medians = {}
    for phase in ("before", "behind"):
        for kind, part in (("graph", 0.3), ("eager", 0.7)):
            begin, rows = time.perf_counter(), []
            # Before: memory is marked when half the quiet time is over.
            while time.perf_counter() - begin < part * 0.4 * QUIET_SECONDS:
                rows += stretches(children, kind, 1, 6)
            medians[phase, kind] = [statistics.median(times) for times in zip(*rows)]
            say(f"replays, {kind}, {phase}: {len(rows)} stretches of each, {interval(*split(medians[phase, kind]))}")
        sealed = [row["sealed_bytes"] / loaded[0]["bytes"] for row in rows_of(daemon, guarded)]
        say(f"replays, {phase}: {time.perf_counter() - since:.0f} s behind the load, {min(sealed, default=0):.3f} sealed at least")
        while phase == "before" and time.perf_counter() - since < 2 * QUIET_SECONDS and min(sealed, default=0) < 0.9:
            ask_all(children, "stretch", "graph")
            sealed = [row["sealed_bytes"] / loaded[0]["bytes"] for row in rows_of(daemon, guarded)]
    for kind in ("graph", "eager"):
        change = [behind / before for before, behind in zip(medians["before", kind], medians["behind", kind])]
        slower = [", ".join(f"{one:.4f}" for one in part) for part in split(change)]
        say(f"replays, {kind}, each process compared with itself: {interval(*split(change))}; became slower: plain ones by "
            f"{slower[0]}; guarded by {slower[1]}  [>= 0.997]")
    explain(daemon, children[1:2], "replays")
    for child in children:
        child.end()
    daemon.stop()


def split(values):
    """Those of plain processes, and those of guarded ones."""
    return values[0::2], values[1::2]


def speed(options):
    measure_speed(options, "speed", (1, 1, 1, 1), "[>= 0.997]")


def alone(options):
    measure_speed(options, "alone", (1, 1, 1), "[>= 0.998]")


def unseal(options):
    daemon = Daemon("mover_idle_ms = 600000;\n")
    children = [start(daemon, options, f"unseal {i}", options.dedup) for i in range(2)]
    # Compiled, and launched once, while nothing is sealed.
    ask_all(children, "launch_stranger")
    loaded = ask_all(children, "load", model_of(options, "8b"), options.loader)
    prepared = ask_all(children, "prepare")
    expect(prepared[0] and prepared[0] == prepared[1], f"unseal: other tokens: {prepared}")
    n_bytes = loaded[0].get("bytes", 1)
    begin = time.perf_counter()
    is_sealed = False
    while not is_sealed and time.perf_counter() - begin < PATIENCE_SECONDS:
        ask_all(children, "stretch", "graph")
        rows = rows_of(daemon, [child.process.pid for child in children])
        is_sealed = len(rows) == 2 and all(r["sealed_bytes"] >= 0.9 * n_bytes for r in rows)
    say("unseal: " + ("sealed" if is_sealed else "not all is sealed"))
    explain(daemon, children, "unseal, before")
    held = children[0].ask("held")
    if held:
        say(f"unseal: {n_bytes / 1e9:.1f} GB in {held['ms']:.0f} ms, {held['n']} tokens meanwhile of "
            f"{held['usual']:.2f} ms; held {held['sum']:.1f} ms in sum, {held['most']:.1f} at most "
            f"{held['failed']}  [<= 50 ms held]")
    time.sleep(0.5)
    explain(daemon, children, "unseal, behind")
    same = ask_all(children, "stretch", "graph")
    expect(same[0] and same[1] and same[0][1] == same[1][1], f"unseal: other tokens: {same}")
    for child in children:
        child.end()
    daemon.stop()


MEASURE = {"share": share, "speed": speed, "alone": alone, "replays": replays, "unseal": unseal}


def copy_tables(names):
    """Only what root alone may write to counts."""
    folder = tempfile.mkdtemp(prefix="glake-readers-")
    os.chmod(folder, 0o755)
    for number, name in enumerate(filter(None, names.split(","))):
        path = os.path.join(folder, f"{number:02}-{os.path.basename(name)}")
        path += "" if path.endswith(".readers") else ".readers"
        shutil.copyfile(name, path)
        os.chmod(path, 0o644)
        from run import ROOT
        subprocess.run([os.path.join(ROOT, "bin", "glake"), "readers", path], check=False)
    return folder


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", default="")
    parser.add_argument("--only", default=",".join(MEASURE))
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--loader", default="map", choices=("map", "to"))
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=6, help="of replays: so many plain ones, and so many guarded")
    parser.add_argument("--dedup", default="auto", choices=("auto", "observed"))
    parser.add_argument("--folder", default=os.path.join(tempfile.gettempdir(), "glake-auto"))
    parser.add_argument("--child", action="store_true")
    parser.add_argument("--write", choices=MODELS)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.child:
        serve(Program())
    if options.write:
        write(options.folder, options.write, options.layers, options.seed)
        return
    random.seed(1)
    options.readers = copy_tables(options.table)
    for name in options.only.split(","):
        begin = time.perf_counter()
        try:
            MEASURE[name](options)
        except Exception as error:
            expect(False, f"{name}: {type(error).__name__}: {error}")
        print(f"# {name}: {time.perf_counter() - begin:.1f} s", flush=True)
    shutil.rmtree(options.readers, ignore_errors=True)
    print("\n".join(["", *report, *(f"FAILED: {what[:600]}" for what in failures),
                     "OK" if not failures else f"{len(failures)} FAILED"]), flush=True)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
