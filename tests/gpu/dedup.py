# SPDX-License-Identifier: Apache-2.0
"""How many copies of equal weights are left, and how long it takes: programs as they are in use.

    python3 tests/gpu/dedup.py [--only a,b,c,d,e,f,g] [--layers 32] [--models FOLDER]

    a  three transformers processes load one model of Llama-3-8B's shapes, each by itself, in one thread;
       `glakectl seal` from outside, then glake.torch.seal()
    b  the same model and two fine-tunes, LoRA adapters merged into the attention; glake.torch.seal()
    c  two pipelines with one text encoder, and a network of their own each; glake.torch.seal()
    d  six small programs that know no PyTorch: 1312 MB of initializers each, 242 MB of them twice, 418 MB
       equal in all; an allocation for each, and all in one arena; `glakectl seal`
    e  one process publishes the model with fused projections, others attach to it
    f  from_pretrained() of the model in the store, to the first token, with and without glake.transformers
    g  a base model of Llama-3.2-1B's shapes and its instruct model, in which all matrices of the layers are
       trained and some are as they were: embeddings (tied to the output) and norms; glake.torch.seal().
       Then 256 rows of the embeddings, for new tokens, differ as well

Starts a glaked for each part. Weights are what the modules' tensors have; physical memory of weights is the
blocks in use and what of the weights is in no block. Digests of all tensors, or logits, have to be
the same bits behind every step. Exit 1 when something is wrong; no number decides.
"""
import argparse
import concurrent.futures
import ctypes
import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time

from child import Child, ask_all, serve
from run import ROOT, Daemon, expect, failures

MIB = 1 << 20
WARM_MOVER = "mover_idle_ms = 600000;\n"
#: words that are digested at a time
CHUNK = 1 << 24
PAGE = 2 * MIB
SELF = os.path.abspath(__file__)
#: printed at the end
report = []


def say(line):
    report.append(line)
    print(f"# {line}", flush=True)


# ---- models -------------------------------------------------------------------------------------

def llama_config(layers):
    from transformers import LlamaConfig
    return LlamaConfig(vocab_size=128256, hidden_size=4096, intermediate_size=14336,
                       num_hidden_layers=layers, num_attention_heads=32, num_key_value_heads=8,
                       tie_word_embeddings=False, dtype="bfloat16", eos_token_id=None)


def base_config():
    from transformers import LlamaConfig
    return LlamaConfig(vocab_size=128256, hidden_size=2048, intermediate_size=8192,
                       num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
                       tie_word_embeddings=True, dtype="bfloat16", eos_token_id=None)


def write_llama(folder, config):
    """As from_pretrained() reads it: the larger one in two shards."""
    import torch
    from transformers import LlamaForCausalLM
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    model.save_pretrained(folder, max_shard_size="10GB")


def digest_of(tensors):
    """Of the bytes, computed on the GPU."""
    import torch
    whole = hashlib.sha256()
    keys = torch.arange(CHUNK, device="cuda") * 0x9E3779B1 | 1
    for name, tensor in sorted(tensors.items()):
        raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        words = raw[:raw.numel() // 2 * 2].view(torch.int16).split(CHUNK)
        values = torch.stack([(part * keys[:part.numel()]).sum() for part in words]).tolist()
        whole.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} {values}".encode())
    return whole.hexdigest()


def pages_of(tensor):
    """Digests of its parts of 2 MiB, and how long each is."""
    import torch
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    keys = torch.arange(PAGE // 2, device="cuda") * 0x9E3779B1 | 1
    digests = []
    for part in raw.split(16 * PAGE):
        words = part.view(torch.int16)
        words = torch.nn.functional.pad(words, (0, -words.numel() % keys.numel()))
        digests += (words.view(-1, keys.numel()) * keys).sum(1).tolist()
    return [(digest, min(PAGE, raw.numel() - number * PAGE))
            for number, digest in enumerate(digests)]


# ---- processes ----------------------------------------------------------------------------------

class Torch:
    """A process with modules."""

    def __init__(self, options):
        import torch
        self.torch = torch
        self.options = options
        self.modules = {}
        torch.zeros(1, device="cuda")

    def tensors(self):
        return {f"{part}.{name}": tensor for part, module in self.modules.items()
                for name, tensor in (*module.named_parameters(), *module.named_buffers())}

    def look(self):
        return {"bytes": sum(t.nbytes for t in self.tensors().values()), "pid": os.getpid(),
                "digest": digest_of(self.tensors())}

    def seal(self):
        import glake.torch
        begin = time.perf_counter()
        shared = sealed = 0
        for module in self.modules.values():
            result = glake.torch.seal(module)
            shared += result.shared_bytes
            sealed += result.sealed_bytes
            if result.private:
                raise AssertionError(result.private)
        ms = (time.perf_counter() - begin) * 1e3
        return {"ms": ms, "shared": shared, "sealed": sealed, "digest": digest_of(self.tensors())}

    def pretrained(self, in_threads=True, folder=None):
        from transformers import AutoModelForCausalLM
        if not in_threads:
            os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"
        self.modules["model"] = AutoModelForCausalLM.from_pretrained(
            folder or self.options.models, device_map="cuda:0",
            dtype=self.torch.bfloat16).requires_grad_(False)
        return self.look()

    def tuned(self, number):
        """The base, or a LoRA fine-tune of its attention, merged."""
        torch = self.torch
        self.pretrained()
        changed = 0
        if number:
            generator = torch.Generator("cuda").manual_seed(number)
            for name, p in self.modules["model"].named_parameters():
                if "self_attn" in name:
                    a = torch.randn((16, p.shape[1]), generator=generator, device="cuda") * 0.02
                    b = torch.randn((p.shape[0], 16), generator=generator, device="cuda") * 0.02
                    p.data += (b @ a).to(p.dtype)
                    changed += p.nbytes
        return {**self.look(), "changed": changed}

    def look_closely(self):
        """At each part that could be shared, too."""
        return {**self.look(), "pages": {name: pages_of(t) for name, t in self.tensors().items()}}

    def instruct(self, number):
        """The base, or what full training of its layers makes of it: little changes of most values."""
        torch = self.torch
        self.pretrained(folder=base_folder(self.options))
        if number:
            generator = torch.Generator("cuda").manual_seed(number)
            for name, p in self.modules["model"].named_parameters():
                if "proj" in name:
                    noise = torch.randn(p.shape, generator=generator, device="cuda", dtype=p.dtype)
                    p.data += noise * (0.02 * p.std())
        return self.look_closely()

    def new_tokens(self):
        """Their embeddings are trained later on."""
        import glake.torch
        model = self.modules["model"]
        glake.torch.unseal(model)
        model.get_input_embeddings().weight.data[-256:] += 0.01
        return self.look_closely()

    def pipeline(self, number):
        torch = self.torch
        from transformers import T5Config, T5EncoderModel
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("cuda"):
            torch.manual_seed(100)
            self.modules["text_encoder"] = T5EncoderModel(
                T5Config(d_model=2048, d_ff=5120, d_kv=64, num_heads=32, num_layers=24,
                         feed_forward_proj="gated-gelu", vocab_size=32128))
            torch.manual_seed(200 + number)
            layer = torch.nn.TransformerEncoderLayer(1536 + 256 * number, 16, 6144, batch_first=True)
            self.modules["transformer"] = torch.nn.TransformerEncoder(layer, 24,
                                                                      enable_nested_tensor=False)
            for p in self.modules["transformer"].parameters():
                torch.nn.init.normal_(p, std=0.02)
            self.modules["vae"] = torch.nn.Sequential(
                *(torch.nn.Conv2d(256 if i else 3, 256, 3) for i in range(8)))
        torch.set_default_dtype(torch.float32)
        for module in self.modules.values():
            module.requires_grad_(False)
        own = sum(t.nbytes for name, t in self.tensors().items() if not name.startswith("text_encoder"))
        return {**self.look(), "own": own}

    # published weights

    def fused(self):
        """What an engine runs: projections fused, one of them stored the other way round."""
        torch = self.torch
        self.pretrained()
        model = self.modules["model"].model
        for layer in model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            attention.qkv = torch.nn.Parameter(torch.cat(
                [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]), False)
            mlp.gate_up = torch.nn.Parameter(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]), False)
            mlp.down_proj.weight = torch.nn.Parameter(mlp.down_proj.weight.t().contiguous().t(), False)
            del attention.q_proj, attention.k_proj, attention.v_proj, mlp.gate_proj, mlp.up_proj
        model.norm.scale = torch.nn.Parameter(model.norm.weight.to(torch.float8_e4m3fn), False)
        torch.cuda.empty_cache()
        return self.look()

    def empty(self):
        """The same module without memory."""
        torch = self.torch
        from transformers import LlamaForCausalLM
        config = llama_config(self.options.layers)
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("meta"):
            self.modules["model"] = LlamaForCausalLM(config)
            model = self.modules["model"].model
            for layer in model.layers:
                attention, mlp = layer.self_attn, layer.mlp
                attention.qkv = torch.nn.Parameter(torch.empty(6144, 4096), False)
                mlp.gate_up = torch.nn.Parameter(torch.empty(28672, 4096), False)
                del attention.q_proj, attention.k_proj, attention.v_proj, mlp.gate_proj, mlp.up_proj
            model.norm.scale = torch.nn.Parameter(
                torch.empty(4096, dtype=torch.float8_e4m3fn), False)
        torch.set_default_dtype(torch.float32)
        return {"parameters": len(list(self.modules["model"].parameters()))}

    def publish(self, key):
        import glake.torch
        begin = time.perf_counter()
        published = glake.torch.publish(self.modules["model"], key)
        ms = (time.perf_counter() - begin) * 1e3
        return {"ms": ms, **vars(published), "digest": digest_of(self.tensors())}

    def attach(self, key):
        """And where its time goes: in the library, of that in its mapping, and in tensors of torch."""
        import types
        import glake.torch
        from glake import _torch_publish as doors
        parts = {"library": 0, "tensors": 0}
        models = []

        def timed(part, function):
            def call(*arguments, **options):
                begin = time.perf_counter()
                result = function(*arguments, **options)
                parts[part] += (time.perf_counter() - begin) * 1e3
                if part == "library":
                    models.append(result.map_ns / 1e6)
                    models.append(len(result))
                return result
            return call

        glake.default_session().ping()
        doors.Model = types.SimpleNamespace(attach=timed("library", doors.Model.attach))
        doors.as_tensor = timed("tensors", doors.as_tensor)
        begin = time.perf_counter()
        glake.torch.attach(self.modules["model"], key)
        ms = (time.perf_counter() - begin) * 1e3
        strides = self.modules["model"].model.layers[0].mlp.down_proj.weight.stride()
        return {"ms": ms, **parts, "mapping": models[0], "n_tensors": models[1],
                "strides": list(strides), **self.look()}

    # time to the first token

    def prepare(self, with_glake):
        """Imports are not the load."""
        from transformers import AutoModelForCausalLM, LlamaForCausalLM  # noqa: F401
        if with_glake:
            import glake.transformers
            glake.transformers.enable()
        x = self.torch.randn(64, 64, device="cuda")
        (x @ x).sum().item()
        return {}

    def first_token(self):
        torch = self.torch
        from transformers import AutoModelForCausalLM
        tokens = torch.arange(16, device="cuda")[None] * 17
        begin = time.perf_counter()
        model = AutoModelForCausalLM.from_pretrained(self.options.models, device_map="cuda:0",
                                                     dtype=torch.bfloat16)
        torch.cuda.synchronize()
        loaded = time.perf_counter()
        with torch.no_grad():
            logits = model(tokens).logits
        token = int(logits[0, -1].argmax())
        end = time.perf_counter()
        self.modules["model"] = model
        raw = logits.contiguous().view(torch.uint8).cpu().numpy().tobytes()
        return {"load": loaded - begin, "first_token": end - begin, "token": token,
                "digest": hashlib.sha256(raw).hexdigest(),
                "reserved": torch.cuda.memory_reserved()}


class Small:
    """A program that knows the driver alone. Its initializers are those of a network with big matrices
    and small vectors; the first ones are equal in all processes, some are there twice."""

    # A little more of them for the vectors, which are small.
    EQUAL, TWICE, TOTAL = 418 * MIB + MIB // 2, 242 * MIB + MIB // 2, 1312 * MIB

    def __init__(self, options):
        import numpy
        self.numpy = numpy
        self.number = options.number
        self.cuda = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.tensors = []

    def call(self, name, *arguments):
        result = getattr(self.cuda, name)(*arguments)
        assert result == 0, f"{name}: {result}"

    def initializers(self):
        """Bytes, and a seed for the content."""
        sizes = (16 * MIB, 16384, 4 * MIB, 4096, 4 * MIB, 4096, 2 * MIB, 4096, 4 * MIB, 16 * MIB, 4096)
        rows = []
        total = 0
        while total < self.TOTAL:
            size = min(sizes[len(rows) % len(sizes)], self.TOTAL - total)
            rows.append([size, 0])
            total += size
        equal = twice = 0
        for number, row in enumerate(rows):
            if equal + row[0] <= self.EQUAL:
                row[1] = number + 1
                equal += row[0]
            else:
                row[1] = 1000 * (self.number + 1) + number
        # From the end on, tensors are those of the same size before them.
        last = {}
        for row in rows[len(rows) // 2:]:
            if row[0] in last and twice + row[0] <= self.TWICE and row[1] >= 1000:
                row[1] = last[row[0]]
                twice += row[0]
            elif row[1] >= 1000:
                last[row[0]] = row[1]
        return rows

    def content(self, size, seed):
        return self.numpy.random.default_rng(seed).integers(0, 256, size, dtype="uint8")

    def load(self, in_arena):
        rows = self.initializers()
        arena = ctypes.c_uint64()
        place = 0
        if in_arena:
            self.call("cuMemAlloc_v2", ctypes.byref(arena),
                      ctypes.c_size_t(sum(-(-size // 256) * 256 for size, _ in rows)))
        for size, seed in rows:
            ptr = ctypes.c_uint64(arena.value + place)
            place += -(-size // 256) * 256
            if not in_arena:
                self.call("cuMemAlloc_v2", ctypes.byref(ptr), ctypes.c_size_t(size))
            host = self.content(size, seed)
            self.call("cuMemcpyHtoD_v2", ptr, host.ctypes.data_as(ctypes.c_void_p),
                      ctypes.c_size_t(size))
            self.tensors.append((ptr, size, seed))
        self.call("cuCtxSynchronize")
        return {"pid": os.getpid(), "bytes": sum(size for size, _ in rows), "seeds": rows}

    def check(self):
        wrong = 0
        for ptr, size, seed in self.tensors:
            host = self.numpy.empty(size, "uint8")
            self.call("cuMemcpyDtoH_v2", host.ctypes.data_as(ctypes.c_void_p), ptr,
                      ctypes.c_size_t(size))
            wrong += int((host != self.content(size, seed)).sum())
        return {"wrong": wrong}


# ---- parts --------------------------------------------------------------------------------------

def children(daemon, options, kind, count, shim=True, environment=None):
    return [Child(daemon, f"{kind} {number}",
                  [SELF, "--child", kind, "--number", str(number), "--models", options.models,
                   "--layers", str(options.layers)], shim=shim, environment=environment)
            for number in range(count)]


def physical(daemon, weights):
    """Of weights, in a device with nothing else sealed: blocks, and what is in none."""
    device = daemon.device()
    return device["used_block_bytes"] + max(0, weights - device["logical_block_bytes"])


def seal_outside(daemon, pids):
    """Milliseconds by process; None: this glakectl cannot."""
    times = []
    for pid in pids:
        begin = time.perf_counter()
        out = subprocess.run([os.path.join(ROOT, "bin", "glakectl"), "seal", str(pid)],
                             env=daemon.environment, capture_output=True, text=True, check=False)
        times.append((time.perf_counter() - begin) * 1e3)
        if out.returncode:
            expect(False, f"glakectl seal: {out.stderr[-500:]}")
            return None
        print(f"# glakectl seal {pid}: " + " / ".join(out.stdout.split("\n"))[:600], flush=True)
    return times


def ms(values):
    return ", ".join(f"{value:.0f}" for value in values) + " ms"


def same(answers, what):
    digests = {answer.get("digest") for answer in answers}
    expect(len(digests) == 1 and None not in digests, f"{what}: other bits: {digests}")


def end(daemon, processes):
    for process in processes:
        process.end()
    daemon.stop()


def part_a(options):
    daemon = Daemon(WARM_MOVER)
    processes = children(daemon, options, "torch", 3)
    before = ask_all(processes, "pretrained", False)
    copy = before[0]["bytes"]
    same(before, "a")
    times = seal_outside(daemon, [answer["pid"] for answer in before])
    if times:
        say(f"a, three loads of {copy / 1e9:.2f} GB, glakectl seal: {physical(daemon, 3 * copy) / copy:.4f} "
            f"x one copy [1.05]; {ms(times)}")
        same(before + ask_all(processes, "look"), "a, sealed from outside")
    answers = [process.ask("seal") for process in processes]
    same(before + answers, "a, glake.torch.seal")
    say(f"a, the same, glake.torch.seal: {physical(daemon, 3 * copy) / copy:.4f} x one copy [1.02]; "
        f"{ms([answer.get('ms', 0) for answer in answers])} [150 ms]")
    end(daemon, processes)


def part_b(options):
    daemon = Daemon(WARM_MOVER)
    processes = children(daemon, options, "torch", 3)
    for number, process in enumerate(processes):
        process.tell("tuned", number)
    before = [process.hear("tuned") for process in processes]
    answers = [process.ask("seal") for process in processes]
    for one, other in zip(before, answers):
        same([one, other], "fine-tunes")
    needed = before[0]["bytes"] + sum(answer["changed"] for answer in before)
    used = physical(daemon, sum(answer["bytes"] for answer in before))
    say(f"b, base and two merged LoRA: {used / 1e9:.2f} GB, {used / needed:.4f} x the {needed / 1e9:.2f} GB "
        f"that differ [1.03]; {ms([a.get('ms', 0) for a in answers])}")
    end(daemon, processes)


def part_c(options):
    daemon = Daemon(WARM_MOVER)
    processes = children(daemon, options, "torch", 2)
    for number, process in enumerate(processes):
        process.tell("pipeline", number)
    before = [process.hear("pipeline") for process in processes]
    answers = [process.ask("seal") for process in processes]
    for one, other in zip(before, answers):
        same([one, other], "pipelines")
    needed = before[0]["bytes"] + before[1]["own"]
    used = physical(daemon, sum(answer["bytes"] for answer in before))
    say(f"c, two pipelines, one text encoder: {used / 1e9:.2f} GB, {used / needed:.4f} x the "
        f"{needed / 1e9:.2f} GB that differ [1.03], of {sum(b['bytes'] for b in before) / 1e9:.2f} GB; "
        f"{ms([a.get('ms', 0) for a in answers])}")
    end(daemon, processes)


def part_d(options):
    for in_arena in (False, True):
        daemon = Daemon(WARM_MOVER)
        processes = children(daemon, options, "small", 6)
        before = ask_all(processes, "load", in_arena)
        total = sum(answer["bytes"] for answer in before)
        unique = sum({(size, seed): size for answer in before for size, seed in answer["seeds"]}.values())
        times = seal_outside(daemon, [answer["pid"] for answer in before])
        wrong = [answer.get("wrong") for answer in ask_all(processes, "check")]
        expect(wrong == [0] * 6, f"d: wrong bytes: {wrong}")
        used = physical(daemon, total)
        say(f"d, six small programs, {'an arena' if in_arena else 'one by one'}: {total / MIB:.0f} MB "
            f"to {used / MIB:.0f} MB (-{1 - used / total:.1%}) [-45 %]; {unique / MIB:.0f} MB differ; "
            f"{ms(times or [])}")
        end(daemon, processes)


def part_e(options):
    daemon = Daemon(WARM_MOVER)
    # Without the shim, as an engine that uses the library.
    first, *others, late = children(daemon, options, "torch", 5, shim=False)
    first.tell("fused")
    ask_all([*others, late], "empty")
    before = first.hear("fused")
    published = first.ask("publish", "llama-8b@1")
    attached = [process.ask("attach", "llama-8b@1") for process in others]
    same([before, published, *attached], "published")
    expect(all(answer.get("strides") == [1, 4096] for answer in attached), "strides are lost")
    copy = before["bytes"]
    say(f"e, publish: {published.get('ms', 0):.0f} ms, {published.get('copied_bytes', 0) / MIB:.1f} MiB "
        f"copied ({published.get('copied_why')}); attach "
        f"{', '.join(format(a.get('ms', 0), '.1f') for a in attached)} ms [15 ms]; weights of "
        f"4 processes {physical(daemon, 4 * copy) / copy:.4f} x [1.005]")
    parts = ("library", "mapping", "tensors", "n_tensors")
    n_blocks = daemon.ctl("models")["models"][0]["n_blocks"]
    say("e, of attach: " + "; ".join(
        "{:.1f} ms in the library, {:.1f} of that to map, {:.1f} for {} tensors of torch".format(
            *(answer.get(part, 0) for part in parts)) for answer in attached) + f"; {n_blocks} blocks")
    first.end()
    answer = late.ask("attach", "llama-8b@1")
    same([before, answer], "attached after the publisher's end")
    end(daemon, [*others, late])


def part_f(options):
    daemon = Daemon(WARM_MOVER)
    ways = [True, False, True, False, True, False, True]
    processes = children(daemon, options, "torch", len(ways), shim=False)
    for process, with_glake in zip(processes, ways):
        process.tell("prepare", with_glake)
    for process in processes:
        process.hear("prepare")
    answers = {True: [], False: []}
    for process, with_glake in zip(processes, ways):
        answers[with_glake].append(process.ask("first_token"))
        process.end()
    daemon.stop()
    same(answers[True] + answers[False], "f")
    if not all(answers[True] + answers[False]):
        return
    reserved = max(answer["reserved"] for answer in answers[True])
    expect(reserved < 2 << 30, f"f: PyTorch has allocated {reserved} by itself")
    # The first one loads the model into the store.
    first, *second = answers[True]
    plain, ours = ({key: statistics.median(answer[key] for answer in some)
                    for key in ("load", "first_token")} for some in (answers[False], second))
    say(f"f, to the first token: transformers {plain['first_token']:.2f} s (load {plain['load']:.2f}); "
        f"glake.transformers, second process {ours['first_token']:.2f} s (load {ours['load']:.2f}): "
        f"{plain['first_token'] / ours['first_token']:.1f} x [3 x]; first process "
        f"{first['first_token']:.2f} s")


def base_folder(options):
    return options.models + "-base"


def part_g(options):
    daemon = Daemon(WARM_MOVER)
    processes = children(daemon, options, "torch", 2)
    for number, process in enumerate(processes):
        process.tell("instruct", number)
    before = [process.hear("instruct") for process in processes]
    for what in ("embeddings and norms equal", "256 rows of the embeddings differ, too"):
        if "rows" in what:
            before[1] = processes[1].ask("new_tokens")
        answers = [process.ask("seal") for process in processes]
        for one, other in zip(before, answers):
            same([one, other], "instruct")
        base, tuned = (answer["pages"] for answer in before)
        equal = sum(page[1] for name in base for page, other in zip(base[name], tuned[name])
                    if page == other)
        total = sum(answer["bytes"] for answer in before)
        used = physical(daemon, total)
        say(f"g, base and instruct, {what}: {used / 1e9:.3f} GB, {used / (total - equal):.4f} x the "
            f"{(total - equal) / 1e9:.3f} GB that differ by pages of 2 MiB [1.03], of {total / 1e9:.3f} GB; "
            f"{ms([answer.get('ms', 0) for answer in answers])}")
    same([before[0], processes[0].ask("look")], "the base")
    end(daemon, processes)


PARTS = {"a": part_a, "b": part_b, "c": part_c, "d": part_d, "e": part_e, "f": part_f,
         "g": part_g}
#: Those of a row run at the same time: what they take is not asked for.
ROWS = (("a",), ("e",), ("f",), ("b", "c", "d", "g"))


def run_part(name, options):
    begin = time.perf_counter()
    try:
        PARTS[name](options)
    except Exception as error:
        expect(False, f"{name}: {type(error).__name__}: {error}")
    print(f"# {name}: {time.perf_counter() - begin:.0f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--models", default=os.path.join(tempfile.gettempdir(), "glake-dedup"))
    parser.add_argument("--child", choices=("torch", "small"))
    parser.add_argument("--number", type=int, default=0)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--write-base", action="store_true")
    options = parser.parse_args()
    if options.child:
        serve({"torch": Torch, "small": Small}[options.child](options))
    if options.write:
        write_llama(options.models, llama_config(options.layers))
        return
    if options.write_base:
        write_llama(base_folder(options), base_config())
        return
    only = options.only.split(",")
    for folder, how, needed in ((options.models, "--write", set(only) - {"c", "d", "g"}),
                                (base_folder(options), "--write-base", "g" in only)):
        if needed and not os.path.exists(os.path.join(folder, "config.json")):
            begin = time.perf_counter()
            subprocess.run([sys.executable, SELF, how, "--models", options.models,
                            "--layers", str(options.layers)], check=True)
            print(f"# model written in {time.perf_counter() - begin:.0f} s", flush=True)
    for row in ROWS:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            list(pool.map(lambda name: run_part(name, options), [n for n in row if n in only]))
    print("\n".join(["", *sorted(report), "OK" if not failures else f"{len(failures)} FAILED"]))
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
