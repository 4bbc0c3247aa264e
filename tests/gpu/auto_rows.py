# SPDX-License-Identifier: Apache-2.0
"""What two programs of each kind share by themselves, with tables of readers, and why not more.

    python3 tests/gpu/auto_rows.py [--table FILE[,FILE]] [--only llama.cpp,vllm,vllm-graphs,cupy,jax,jax-arena,pipeline,training]
                                   [--learn 120] [--out NAME.readers] [--dedup auto]

    llama.cpp     random weights of 0.4 GB, all layers on the GPU ($LLAMA_CPP, as sleep.py has it)
    vllm          a Llama of 1 B parameters in a real vLLM without glake's plugin ($KIT, $KIT_SITE); eager
    vllm-graphs   the same with CUDA graphs
    cupy, jax     inference of an MLP; jax has an allocation for each array, jax-arena XLA's own allocator
    pipeline      a text encoder, a UNet and a decoder of images, in half precision, as diffusers has them
    training      a Llama that is evaluated all the time, and then trained

A plain process says what is right. Then two under --dedup=auto have to say the same all the time, while they become one. With
--learn, `glake learn` makes a table of the kind first, in at most so many seconds, and the packaged table is not needed.

Printed last: for each kind MiB of weights, how much of it is sealed in each process, and the reasons of what is not. Kinds that are
not installed are left out. Exit 1 when a program fails or says something else.
"""
import argparse
import hashlib
import os
import sys
import tempfile
import time

import auto
import learn
from child import Child, ask_all, serve
from run import ROOT, Daemon, expect, failures

SELF = os.path.abspath(__file__)
SIDE = 64
LLAMA_LAYERS = 4
#: of a program that learns: each is run alone
LEARN_TURNS = 6


# ---- what runs: each function returns the bytes of its weights, what a turn does, and perhaps what comes last ----

def llama_cpp():
    from sleep import Worker
    model = {"hidden": 2048, "inter": 5632, "layers": LLAMA_LAYERS}
    return 2 * (LLAMA_LAYERS * (4 * 2048 * 2048 + 3 * 2048 * 5632) + 2 * 1024 * 2048), Worker.make_llama(None, **model)


def vllm(mode):
    import kitlib
    parser = argparse.ArgumentParser()
    kitlib.add_arguments(parser, util=0.1, sleep=False)
    asked = parser.parse_args(["--inproc", "--mode", mode, "--kv-mib", "1024", "--tokens", "8", "--prompts", "3"])
    engine = kitlib.Engine(asked)
    return os.path.getsize(os.path.join(engine.model, "model.safetensors")), lambda: engine.generate()["hash"].encode()


def cupy():
    import cupy as cp
    import numpy as np
    generator = np.random.default_rng(1)
    weights = [cp.asarray(generator.standard_normal((4096, 4096)).astype("float32") / 64) for _ in range(4)]

    def turn():
        x = cp.ones((16, 4096), dtype="float32")
        for w in weights:
            x = cp.tanh(x @ w) + w[0]
        return cp.asnumpy(x).tobytes()
    return sum(w.nbytes for w in weights), turn


def jax():
    import jax as j
    import jax.numpy as jnp
    import numpy as np
    generator = np.random.default_rng(1)
    weights = [j.device_put((generator.standard_normal((4096, 4096)) / 64).astype("float32")) for _ in range(4)]

    @j.jit
    def forward(weights, x):
        for w in weights:
            x = j.nn.gelu(x @ w)
        return x

    return sum(w.nbytes for w in weights), lambda: np.asarray(forward(weights, jnp.ones((16, 4096)))).tobytes()


def pipeline():
    import torch
    from workloads import Unet
    torch.zeros(1, device="cuda")
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(1280, 16, 5120, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)
    shown = torch.nn.Linear(1280, 3 * 64)
    decoder = torch.nn.Sequential(torch.nn.ConvTranspose2d(3, 256, 4, 2, 1), torch.nn.SiLU(), torch.nn.Conv2d(256, 3, 3, padding=1))
    parts = [part.half().eval().to("cuda") for part in (encoder, shown, Unet((128, 320, 640, 1280)), decoder)]
    encoder, shown, unet, decoder = parts

    def turn():
        with torch.no_grad():
            generator = torch.Generator("cuda").manual_seed(1)
            text = shown(encoder(torch.randn(1, 77, 1280, device="cuda", generator=generator).half()))
            image = torch.randn(1, 3, SIDE, SIDE, device="cuda", generator=generator).half()
            image = image + text.mean(1).reshape(1, 3, 8, 8).repeat(1, 1, SIDE // 8, SIDE // 8)
            for _ in range(3):
                image = image - 0.1 * unet(image)
            return decoder(image).clamp(-1, 1).float().cpu().numpy().tobytes()
    return sum(p.nbytes for part in parts for p in part.parameters()), turn


def training():
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.zeros(1, device="cuda")
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(hidden_size=2048, intermediate_size=5632, num_hidden_layers=4, num_attention_heads=32,
                                         num_key_value_heads=4, vocab_size=32000)).to(torch.bfloat16).to("cuda")
    tokens = torch.arange(2 * 128, device="cuda").reshape(2, 128)

    def evaluate():
        with torch.no_grad():
            return model.eval()(tokens, use_cache=False).logits.float().cpu().numpy().tobytes()

    def train():
        optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-4)
        for _ in range(5):
            model(tokens, labels=tokens, use_cache=False).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return evaluate() + b"".join(p.detach().float().cpu().numpy().tobytes() for p in model.parameters())
    return sum(p.nbytes for p in model.parameters()), evaluate, train


#: name: environment variables and modules that it needs, what it is run with, the function
KINDS = {
    "llama.cpp": (("LLAMA_CPP",), (), {}, llama_cpp),
    "vllm": (("KIT", "KIT_SITE"), (), {}, lambda: vllm("eager")),
    "vllm-graphs": (("KIT", "KIT_SITE"), (), {}, lambda: vllm("graphs")),
    "cupy": ((), ("cupy",), {}, cupy),
    "jax": ((), ("jax",), {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, jax),
    "jax-arena": ((), ("jax",), {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".1"}, jax),
    "pipeline": ((), ("torch",), {}, pipeline),
    "training": ((), ("transformers",), {}, training),
}
#: kernels are chosen the same way each time
ALWAYS = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "HF_HUB_OFFLINE": "1"}
XLA = "--xla_gpu_autotune_level=0"
#: kernels are launched one by one where they are learned
ALONE = {"XLA_FLAGS": XLA + " --xla_gpu_enable_command_buffer=", "GGML_CUDA_DISABLE_GRAPHS": "1"}


def digest(content):
    return hashlib.sha256(bytes(content)).hexdigest()[:16]


class Program:
    def load(self, kind):
        n_bytes, self.step, *self.last = KINDS[kind][3]()
        return {"bytes": n_bytes, "digest": self.turn()}

    def turn(self):
        return digest(self.step())

    def end(self):
        return [digest(function()) for function in self.last]


def learn_here(kind):
    """In a process of `glake learn`. A context that is lost cannot be torn down."""
    try:
        _, step, *_ = KINDS[kind][3]()
        learn.settle()
        digests = {digest(step()) for _ in range(LEARN_TURNS)}
        print(f"# digests {digests}, {learn.n_looked_at()} launches looked at", flush=True)
    except BaseException:
        import traceback
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


# ---- beside them ---------------------------------------------------------------------------------

def is_there(kind):
    import importlib.util
    variables, modules, _, _ = KINDS[kind]
    return all(os.path.exists(os.environ.get(name, "")) for name in variables) and all(map(importlib.util.find_spec, modules))


def environment_of(daemon, kind, **more):
    """vLLM asks other processes about models."""
    paths = [os.environ.get(name, "") for name in ("KIT_SITE", "KIT")] if kind.startswith("vllm") else []
    return {**ALWAYS, **KINDS[kind][2], "VLLM_PLUGINS": "",
            "PYTHONPATH": os.pathsep.join([*paths, daemon.environment["PYTHONPATH"]]), **more}


def make_table(daemon, kind, options, folder):
    """Its path; "": none was made."""
    path = os.path.join(folder, f"{kind}.readers")
    command = [os.path.join(ROOT, "bin", "glake"), "learn", "--socket", daemon.socket, f"--out={path}", f"--state={path}.state",
               "--runs=40", "--seconds=200", "--least=4", f"--for={kind}, as learned", "--", sys.executable, SELF, "--learn-child", kind]
    environment = {**daemon.environment, **environment_of(daemon, kind, **ALONE)}
    begin = time.perf_counter()
    code, text = learn.run_for(command, environment, options.learn)
    auto.say(learn.describe(f"{kind}, learned", code, text, time.perf_counter() - begin))
    if not os.path.exists(path):
        print(text[-3000:], flush=True)
        return ""
    auto.say(f"{kind}, its table: {learn.sum_up(path)}")
    return path


def measure(daemon, kind, options, readers):
    environment = environment_of(daemon, kind, XLA_FLAGS=XLA, GLAKE_READERS=readers)
    command = [SELF, "--child"]
    plain = Child(daemon, f"{kind}, plain", command, shim=False, environment=environment)
    want, want_last = plain.ask("load", kind), plain.ask("end")
    plain.end()
    children = [Child(daemon, f"{kind} {i}", command, environment=environment, options=(f"--dedup={options.dedup}",))
                for i in range(2)]
    begin = time.perf_counter()
    # One after the other: each builds what it compiles, and two would write the same files.
    loaded = [child.ask("load", kind) for child in children]
    pids = [child.process.pid for child in children]
    n_turns, since = 0, time.perf_counter()
    while time.perf_counter() - since < options.seconds:
        told = ask_all(children, "turn")
        expect(all(one == want.get("digest") for one in told), f"{kind}: {told}, plain said {want}")
        if {} in told:
            break
        n_turns += 1
    rows = auto.rows_of(daemon, pids)
    n_bytes = want.get("bytes", 0) or 1
    expect(all(one.get("digest") == want.get("digest") for one in loaded), f"{kind}: {loaded}, plain said {want}")
    sealed = " and ".join(str(row["sealed_bytes"] >> 20) for row in rows) or "nothing"
    copies = auto.copies(daemon, children, n_bytes)
    auto.say(f"{kind}: {n_bytes >> 20} MiB of weights, {sealed} sealed, {copies:.3f} copies; {n_turns} turns of both, "
             f"{time.perf_counter() - begin:.0f} s")
    auto.explain(daemon, children, kind)
    last = ask_all(children, "end")
    expect(all(one == want_last for one in last), f"{kind}: {last} in the end, plain said {want_last}")
    if want_last:
        private = sum(row["sealed_bytes"] >> 20 for row in auto.rows_of(daemon, pids))
        auto.say(f"{kind}: the same in the end, {private} MiB of both sealed then")
    for child in children:
        child.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", default="")
    parser.add_argument("--only", default=",".join(KINDS))
    parser.add_argument("--learn", type=float, default=0, help="seconds; 0: only --table counts")
    parser.add_argument("--out", help="folder for what was learned")
    parser.add_argument("--seconds", type=float, default=15, help="of turns, behind the load")
    parser.add_argument("--dedup", default="auto", choices=("auto", "observed"))
    parser.add_argument("--child", action="store_true")
    parser.add_argument("--learn-child", choices=KINDS)
    options = parser.parse_args()
    if options.child:
        serve(Program())
    if options.learn_child:
        learn_here(options.learn_child)
    daemon = Daemon()
    with tempfile.TemporaryDirectory() as folder:
        for kind in options.only.split(","):
            if not is_there(kind):
                auto.say(f"{kind}: not installed")
                continue
            try:
                learned = make_table(daemon, kind, options, options.out or folder) if options.learn else ""
                measure(daemon, kind, options, auto.copy_tables(",".join(filter(None, (options.table, learned)))))
            except Exception as error:
                expect(False, f"{kind}: {type(error).__name__}: {error}")
    daemon.stop()
    print("\n".join(["", *auto.report, *(f"FAILED: {what[:600]}" for what in failures),
                     "OK" if not failures else f"{len(failures)} FAILED"]), flush=True)
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
