# SPDX-License-Identifier: Apache-2.0
"""A table of readers of what programs launch: `glake learn` with programs as they are in use.

    python3 tests/gpu/learn.py [--out learned.readers] [--state FILE] [--seconds 600]
                               [--only raw,llama8b,llama1b,unet,cupy,jax,writers]

    raw       kernels of CuPy's that read, write, do both, and follow a pointer in device memory: what is learned of
              them has to be that
    llama8b   transformers' Llama of Llama-3-8B's shapes, of --layers layers, in bf16, loaded on the CPU and moved; generate()
              with batches of 1, 2 and 4, sdpa and eager attention, greedy and sampled; and a captured decoding step
    llama8b-map   the same, loaded onto the GPU: all weights in one allocation (not run unless it is named)
    llama1b   the same as llama8b of a Llama of 1.1 B parameters, 4 layers
    unet      convolutions, group norms and attention, in half precision, as image pipelines have them
    cupy      matrix products and ufuncs
    jax       inference of an MLP
    writers   weights that are updated in place: each of these ends a run

Each program runs until no kernel of it faults any more, at most so long that all take --seconds. They share one
state, and make one table. Programs that are not installed are left out. Printed last is what the table has.
Numbers are not judged. Exit 1 when no program could be learned from, or what is known of `raw` is not so.
"""
import argparse
import ctypes
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback

SELF = os.path.abspath(__file__)
#: glake looks four times a second, waits for half a second, and may have to cut large chunks
SETTLE_SECONDS = 20
N_TOKENS = 6
NOT_INSTALLED = 3
MODELS = {
    "two": dict(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=2,
                num_attention_heads=32, num_key_value_heads=8),
    "small4": dict(vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=4,
                   num_attention_heads=32, num_key_value_heads=4)}


# ---- in a process -------------------------------------------------------------------------------

def count(name):
    """Of the shim's; 0 without it."""
    try:
        function = ctypes.CDLL(None).glake_shim_count
    except AttributeError:
        return 0
    function.restype = ctypes.c_uint64
    return function(name.encode())


def n_looked_at():
    return count("looked_at")


def settle():
    """Until what was loaded is what launches are given or not."""
    begin = since = time.monotonic()
    last = 0
    while time.monotonic() - begin < SETTLE_SECONDS:
        now = count("learn_bytes")
        since = since if now == last else time.monotonic()
        last = now
        if time.monotonic() - since > (1.5 if now else 8):
            break
        time.sleep(0.1)
    print(f"# {last >> 20} MiB to learn with after {time.monotonic() - begin:.1f} s", flush=True)


def lost(error):
    text = str(error).lower().replace("_", " ")
    return any(part in text for part in ("illegal memory", "illegal address", "illegaladdress",
                                         "launch failure"))


def attempt(what, function):
    """What a version does not have is left out; a fault ends the program."""
    begin = time.perf_counter()
    try:
        function()
        note = ""
    except Exception as error:
        if lost(error):
            raise
        note = f" {type(error).__name__}: {str(error)[:200]}"
    print(f"# {what}: {time.perf_counter() - begin:.1f} s, {n_looked_at()} launches looked at{note}",
          flush=True)


def generate(model, batch, sampled=False):
    import torch
    generator = torch.Generator("cuda").manual_seed(7)
    tokens = torch.randint(0, 32000, (batch, 64), device="cuda", generator=generator)
    with torch.no_grad():
        out = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=N_TOKENS,
                             min_new_tokens=N_TOKENS, do_sample=sampled, pad_token_id=0,
                             return_dict_in_generate=True, output_logits=True)
    torch.stack(out.logits).cpu()
    return out.sequences.tolist()


def forward(model, batch):
    """Without a cache."""
    import torch
    tokens = torch.randint(0, 32000, (batch, 33), device="cuda")
    with torch.no_grad():
        model(tokens, use_cache=False).logits.float().softmax(-1).argmax(-1).cpu()


class Decoder:
    """Decodes token by token, and has a graph that reads all weights for one token."""

    CONTEXT = 64

    def __init__(self, model):
        import torch
        self.torch = torch
        self.model = model
        self.one = torch.full((1, 1), 17, device="cuda")
        # With four dimensions it is taken as it is: looking at it would end a capture.
        self.mask = torch.zeros((1, 1, 1, 1), device="cuda", dtype=torch.bfloat16)
        self.start_over()

    def start_over(self):
        from transformers import DynamicCache
        self.cache = DynamicCache()
        self.next = self.torch.full((1, 1), 17, device="cuda")
        self.n_tokens = 0

    def token(self):
        if self.n_tokens == self.CONTEXT:
            self.start_over()
        with self.torch.no_grad():
            out = self.model(self.next, past_key_values=self.cache, use_cache=True)
        self.next = out.logits[:, -1:].argmax(-1)
        self.n_tokens += 1
        return int(self.next)

    def step(self):
        with self.torch.no_grad():
            return self.model(self.one, attention_mask=self.mask,
                              use_cache=False).logits[:, -1].argmax(-1)

    def capture(self):
        torch = self.torch
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(4):
                self.step()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self.step()

    def replay(self):
        self.graph.replay()
        return int(self.out)


def decode(model):
    decoder = Decoder(model)
    for _ in range(6):
        decoder.token()
    decoder.start_over()
    decoder.token()


def decode_captured(model):
    decoder = Decoder(model)
    decoder.capture()
    for _ in range(4):
        decoder.replay()


def capture(model, batch):
    """A decoding step over a static cache, as in a graph; first as it is."""
    import torch
    from transformers import StaticCache
    cache = StaticCache(config=model.config, max_cache_len=128)
    prompt = torch.randint(0, 32000, (batch, 16), device="cuda")
    token = torch.randint(0, 32000, (batch, 1), device="cuda")
    place = torch.tensor([16], device="cuda")

    def step():
        return model(token, past_key_values=cache, cache_position=place, position_ids=place[None],
                     use_cache=True).logits[:, -1].argmax(-1)

    with torch.no_grad():
        model(prompt, past_key_values=cache, use_cache=True,
              cache_position=torch.arange(16, device="cuda"))
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = step()
        for _ in range(3):
            graph.replay()
            place += 1
            token.copy_(out[:, None])
    torch.cuda.synchronize()


def set_attention(model, name):
    if hasattr(model, "set_attn_implementation"):
        model.set_attn_implementation(name)
    else:
        model.config._attn_implementation = name


def llama(folder, is_moved):
    import torch
    from transformers import AutoModelForCausalLM
    torch.zeros(1, device="cuda")
    if is_moved:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to("cuda")
    else:
        model = AutoModelForCausalLM.from_pretrained(folder, device_map="cuda:0",
                                                     dtype=torch.bfloat16)
    model.eval()
    torch.cuda.synchronize()
    settle()
    for attention in ("sdpa", "eager"):
        attempt(f"{attention}: attention", lambda: set_attention(model, attention))
        for batch in (1, 2, 4):
            attempt(f"{attention}, batch {batch}", lambda: generate(model, batch))
        attempt(f"{attention}, sampled", lambda: generate(model, 1, True))
        attempt(f"{attention}, decoded", lambda: decode(model))
        attempt(f"{attention}, a step captured", lambda: decode_captured(model))
        attempt(f"{attention}, forward", lambda: forward(model, 2))
        attempt(f"{attention}, static cache captured", lambda: capture(model, 1))
        attempt(f"{attention}, static cache captured, batch 4", lambda: capture(model, 4))


def unet():
    import torch
    from workloads import Unet
    torch.zeros(1, device="cuda")
    torch.manual_seed(1)
    model = Unet((128, 320, 640, 1280)).half()
    layer = torch.nn.TransformerEncoderLayer(1280, 16, 5120, batch_first=True)
    mixer = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).half()
    model, mixer = model.eval().to("cuda"), mixer.eval().to("cuda")
    torch.cuda.synchronize()
    settle()

    def images(batch, side):
        with torch.no_grad():
            image = torch.randn(batch, 3, side, side, device="cuda").half()
            for _ in range(2):
                image = image - 0.1 * model(image)
            image.clamp(-1, 1).float().cpu()

    def mixed(batch):
        with torch.no_grad():
            mixer(torch.randn(batch, 77, 1280, device="cuda").half()).float().cpu()

    for batch in (1, 2):
        attempt(f"attention, batch {batch}", lambda: mixed(batch))
        for side in (64, 96):
            attempt(f"images, batch {batch}, {side}", lambda: images(batch, side))


RAW = r"""
extern "C" __global__ void raw_read(const int *x, int *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { y[i] = x[i] + 1; }
}
extern "C" __global__ void raw_write(int *x, int value) { x[threadIdx.x] = value; }
extern "C" __global__ void raw_same(int *x) { volatile int *at = x + threadIdx.x; *at = *at; }
extern "C" __global__ void raw_pair(const int *x, int *y) { y[threadIdx.x] = x[threadIdx.x]; }
extern "C" __global__ void raw_hidden(int **place, int *y) { y[threadIdx.x] = (*place)[threadIdx.x]; }
extern "C" __global__ void raw_beside(int *y) { y[threadIdx.x] = 7; }
"""
#: what the table has to say
RAW_TABLE = {"raw_read": ["reads 0"], "raw_write": ["# writes 0"], "raw_same": ["# writes 0"],
             "raw_pair": ["reads 0", "# writes 8"], "raw_hidden": None, "raw_beside": []}


def raw():
    import cupy as cp
    import numpy as np
    n = 8 << 20
    x, w, v = (cp.asarray(np.arange(n, dtype=np.int32) + i) for i in range(3))
    y = cp.empty(n, dtype=np.int32)
    place = cp.empty(1, dtype=np.uint64)
    kernels = {name: cp.RawKernel(RAW, name) for name in RAW_TABLE}
    cp.cuda.Device().synchronize()
    settle()
    # Of the program's own, so that what is launched is these alone.
    place.data.copy_from_host(np.array([v.data.ptr], dtype=np.uint64).ctypes.data_as(
        ctypes.c_void_p), 8)

    def check(what, condition):
        if not condition:
            raise AssertionError(what)

    def many(name, *arguments, grid=1, block=32):
        def run():
            for _ in range(6):
                kernels[name]((grid,), (block,), arguments)
            cp.cuda.Device().synchronize()
        attempt(name, run)

    many("raw_beside", y)
    for source in (x, w, v):
        many("raw_read", source, y, np.int32(n), grid=n // 256, block=256)
    check("raw_read", (y.get() == np.arange(n) + 3).all())
    many("raw_write", w, np.int32(5))
    check("raw_write", (w.get()[:32] == 5).all())
    many("raw_same", x)
    many("raw_pair", x, w)
    check("raw_pair", (w.get()[:32] == np.arange(32)).all())
    many("raw_hidden", place, y)
    check("raw_hidden", (y.get()[:32] == np.arange(32) + 2).all())
    check("raw", (x.get() == np.arange(n)).all() and (v.get() == np.arange(n) + 2).all())


def check_raw(path):
    """What is wrong in the table; "": nothing."""
    functions = {}
    words = None
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            first, _, rest = line.partition(" ")
            if first in ("function", "opaque"):
                words = [] if first == "function" else None
                functions[rest.split()[0]] = words
            elif words is not None and line.startswith("  "):
                text = line.strip()
                words.append(text if text.startswith("#") else text.split(" #")[0])
    return "; ".join(f"{name} is {functions.get(name, 'not there')}" for name, want in RAW_TABLE.items()
                     if name not in functions or functions[name] != want)


def cupy():
    import cupy as cp
    import numpy as np
    generator = np.random.default_rng(1)
    weights = {}
    for dtype in ("float32", "float16"):
        weights[dtype] = [cp.asarray(generator.standard_normal((4096, 4096)).astype(dtype))
                          for _ in range(3)]
    cp.cuda.Device().synchronize()
    settle()

    def multiply(dtype, rows):
        x = cp.ones((rows, 4096), dtype=dtype)
        for w in weights[dtype]:
            x = cp.tanh(x @ w) + w[0]
        return cp.asnumpy(x.sum(axis=1))

    for dtype in weights:
        for rows in (1, 16, 512):
            attempt(f"{dtype}, {rows} rows", lambda: multiply(dtype, rows))


def jax():
    import jax as j
    import jax.numpy as jnp
    import numpy as np
    generator = np.random.default_rng(1)
    params = [j.device_put(generator.standard_normal((4096, 4096)).astype("float32") * 0.02)
              for _ in range(3)]
    half = [j.device_put((generator.standard_normal((4096, 4096)) * 0.02).astype(jnp.bfloat16))
            for _ in range(3)]
    j.block_until_ready((params, half))
    settle()

    @j.jit
    def forward(params, x):
        for w in params:
            x = j.nn.gelu(x @ w)
        return j.nn.softmax(x.astype(jnp.float32))

    def run(params, rows):
        x = jnp.ones((rows, 4096), params[0].dtype)
        for _ in range(5):
            np.asarray(forward(params, x))

    for rows in (1, 8, 256):
        attempt(f"float32, {rows} rows", lambda: run(params, rows))
        attempt(f"bfloat16, {rows} rows", lambda: run(half, rows))


def writers():
    import torch
    torch.manual_seed(1)
    weights = [torch.randn(4096, 4096).bfloat16().to("cuda") for _ in range(4)]
    step = torch.randn(4096, 4096, dtype=torch.bfloat16, device="cuda")
    narrow = torch.randn(4096, 16, dtype=torch.bfloat16, device="cuda")
    rows = torch.arange(0, 4096, 7, device="cuda")
    torch.cuda.synchronize()
    settle()
    ways = {
        "read": lambda w: (step + w) * w,
        "add_": lambda w: w.add_(step),
        "cast": lambda w: w.copy_(step.float()),
        "merge": lambda w: torch.addmm(w, narrow, narrow.T, out=w),
        "fill_": lambda w: w.fill_(0.5),
        "index_fill_": lambda w: w.index_fill_(0, rows, 0.5),
    }
    for name, function in ways.items():
        def run():
            for w in weights[:2]:
                function(w)
                torch.cuda.synchronize()
        attempt(name, run)


#: name: what it needs, its model, the function
PROGRAMS = {
    "raw": ("cupy", None, lambda folder: raw()),
    "llama8b": ("transformers", "two", lambda folder: llama(folder, True)),
    "llama1b": ("transformers", "small4", lambda folder: llama(folder, True)),
    "llama8b-map": ("transformers", "two", lambda folder: llama(folder, False)),
    "unet": ("torch", None, lambda folder: unet()),
    "cupy": ("cupy", None, lambda folder: cupy()),
    "jax": ("jax", None, lambda folder: jax()),
    "writers": ("torch", None, lambda folder: writers()),
}
#: kernels in graphs alone cannot be known, and memory in one piece is never whole
ENVIRONMENT = {
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "XLA_PYTHON_CLIENT_ALLOCATOR": "platform",
    "XLA_FLAGS": "--xla_gpu_enable_command_buffer=",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def run_child(name, folder):
    """A context that is lost cannot be torn down."""
    needs, model, function = PROGRAMS[name]
    try:
        __import__(needs)
    except ImportError as error:
        print(f"# {error}", flush=True)
        os._exit(NOT_INSTALLED)
    try:
        function(model and os.path.join(folder, model))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    print(f"# {n_looked_at()} launches looked at", flush=True)
    os._exit(0)


# ---- models -------------------------------------------------------------------------------------

def write(folder):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    for name, shape in MODELS.items():
        if os.path.exists(os.path.join(folder, name, "model.safetensors")):
            continue
        torch.manual_seed(1)
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            model = LlamaForCausalLM(LlamaConfig(tie_word_embeddings=False, dtype="bfloat16",
                                                 eos_token_id=None, **shape))
        model.save_pretrained(os.path.join(folder, name), max_shard_size="100GB")


# ---- the report ---------------------------------------------------------------------------------

def run_for(command, environment, seconds):
    """`glake learn`: how it ended, and what it printed. It ends its program when the time is over, and writes what it has."""
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace")
    try:
        text, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.terminate()
        text, _ = process.communicate(timeout=60)
    return process.returncode, text


def learn(daemon, root, name, options, seconds):
    """How it ended, and what it printed."""
    command = [os.path.join(root, "bin", "glake"), "learn", "--socket", daemon.socket,
               f"--out={options.out}", f"--state={options.state}", f"--runs={options.runs}",
               f"--seconds={options.run_seconds}", f"--least={options.least}", f"--for={options.what}", "--", sys.executable,
               SELF, "--child", name, "--folder", options.folder]
    return run_for(command, {**daemon.environment, **ENVIRONMENT}, seconds)


def describe(name, code, text, seconds):
    runs = re.findall(r"^glake: run (\d+): (.*)$", text, re.M)
    faults = [line for _, line in runs if "fault" in line]
    ended = ("learned" if code == 0 else "not installed" if "# No module named" in text
             else f"ended with {code}")
    line = f"{name}: {ended}, {len(runs)} runs, {len(faults)} faults, {seconds:.0f} s"
    return line + (f"; {runs[-1][1]}" if runs else "")


RARE = "# never launched beside weights"


def sum_up(path):
    """Of the table."""
    if not os.path.exists(path):
        return "no table"
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = file.read().splitlines()
    n = {word: sum(line.startswith(word) for line in lines)
         for word in ("image ", "function ", "  reads ", "opaque ", "  # writes ")}
    for line in lines:
        if line.startswith(("opaque ", RARE)) or "launches are too few" in line:
            print(f"# {line[:200]}")
    rare = sum(line.startswith(RARE) or "launches are too few" in line for line in lines)
    nameless = sum(line.startswith("# code that no table can name") for line in lines)
    return (f"{n['image ']} images, {n['function ']} functions, {n['  reads ']} words that read, "
            f"{n['  # writes ']} that write, {n['opaque ']} opaque, {rare} seen too "
            f"seldom, {nameless} that no table can name")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="learned.readers")
    parser.add_argument("--state")
    parser.add_argument("--what", default="PyTorch, CuPy and JAX, as learned")
    parser.add_argument("--only", default="raw,llama8b,llama1b,unet,cupy,jax,writers")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--least", type=int, default=4)
    parser.add_argument("--run-seconds", type=int, default=90)
    parser.add_argument("--runs", type=int, default=25)
    parser.add_argument("--folder", default=os.path.join(tempfile.gettempdir(), "glake-learn"))
    parser.add_argument("--layers", type=int, default=2, help="of llama8b's model")
    parser.add_argument("--child", choices=PROGRAMS)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.child:
        run_child(options.child, options.folder)
    if options.write:
        MODELS["two"]["num_hidden_layers"] = options.layers
        write(options.folder)
        return
    from run import ROOT, Daemon
    options.out = os.path.abspath(options.out)
    options.state = os.path.abspath(options.state or options.out + ".state")
    end = time.monotonic() + options.seconds
    names = options.only.split(",")
    report = []
    if any(PROGRAMS[name][1] for name in names):
        begin = time.perf_counter()
        subprocess.run([sys.executable, SELF, "--write", "--folder", options.folder, "--layers",
                        str(options.layers)], check=False,
                       env={**os.environ, **ENVIRONMENT})
        print(f"# models written in {time.perf_counter() - begin:.0f} s", flush=True)
    daemon = Daemon()
    n_learned = n_wrong = 0
    for name in names:
        left = end - time.monotonic()
        if left < 10:
            report.append(f"{name}: no time left")
            continue
        begin = time.perf_counter()
        code, text = learn(daemon, ROOT, name, options, left)
        print(f"\n# ---- {name}\n{text[-4000:]}", flush=True)
        report.append(describe(name, code, text, time.perf_counter() - begin))
        n_learned += code == 0
        if name == "raw" and code == 0:
            wrong = check_raw(options.out)
            report.append(f"    raw: {wrong or 'as it has to be'}")
            n_wrong += bool(wrong)
        for line in text.splitlines():
            if line.startswith("glake: run ") and "; a fault: " in line:
                report.append("    " + line[len("glake: "):][:240])
    daemon.stop()
    print("\n".join(["", *report, sum_up(options.out), "OK" if n_learned and not n_wrong else "FAILED"]),
          flush=True)
    sys.exit(not n_learned or n_wrong > 0)


if __name__ == "__main__":
    main()
