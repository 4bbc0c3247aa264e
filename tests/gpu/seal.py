# SPDX-License-Identifier: Apache-2.0
"""Sealing with PyTorch: processes build one model, each in its own way, and share it afterwards.

    python3 tests/gpu/seal.py [--processes 3] [--layers 32] [--only moved,library,graph]

Starts its own glaked, and the processes under `glake run`. Their models have the shapes of
Llama-3-8B, with one weight tied, and random weights that follow from their names; each process lays
them out differently. Its logits before glake.torch.seal() and behind every step have to be the same
bits. Three scenarios: `moved` (the default move), `library` (the same without the shim) and `graph`
(move=False, with a captured CUDA graph). The last line is one JSON object: seconds of sealing by
process, bytes, failures. Exit 1 when something is wrong; no time decides.

    python3 tests/gpu/seal.py --child NUMBER      one of the processes
"""
import argparse
import gc
import hashlib
import json
import os
import random
import sys
import time
import zlib

from child import Child, serve
from run import Daemon, expect, failures

MIB = 1 << 20
TIED = "tied.embedding.weight"


# ---- a process ----------------------------------------------------------------------------------

def content(name, shape):
    import torch
    generator = torch.Generator("cuda").manual_seed(zlib.crc32(name.encode()))
    scale = 0.02 if len(shape) > 1 else 1.0
    return torch.randn(shape, generator=generator, dtype=torch.bfloat16, device="cuda") * scale


def put(root, name, parameter):
    import torch
    *folders, last = name.split(".")
    for folder in folders:
        if folder not in root._modules:
            root.add_module(folder, torch.nn.Module())
        root = root._modules[folder]
    root.register_parameter(last, parameter)


def one_by_one(shapes, number):
    """In a shuffled order, with holes between."""
    import torch
    order = sorted(shapes)
    shuffle = random.Random(number)
    shuffle.shuffle(order)
    tensors, holes = {}, []
    for name in order:
        holes.append(torch.empty(shuffle.randrange(1, 4 * MIB), dtype=torch.uint8, device="cuda"))
        tensors[name] = content(name, shapes[name])
    return tensors


def all_in_one(shapes, number):
    """Views of one buffer, as some loaders make them. None starts on a page."""
    import torch
    places, end = {}, 512 * (1 + number)
    for name, shape in sorted(shapes.items(), reverse=True):
        places[name] = end
        end += 2 * torch.Size(shape).numel()
        end += -end % 512 + 512
    buffer = torch.empty(end, dtype=torch.uint8, device="cuda")
    tensors = {}
    for name, begin in places.items():
        n_bytes = 2 * torch.Size(shapes[name]).numel()
        tensors[name] = buffer[begin:begin + n_bytes].view(torch.bfloat16).view(shapes[name])
        tensors[name].copy_(content(name, shapes[name]))
    return tensors


class Program:
    def __init__(self, number, layers, in_place):
        import torch
        from models import VOCABULARY, shapes
        self.torch = torch
        self.layers = layers
        self.in_place = in_place
        self.shapes = dict(shapes(layers))
        # Where nothing moves, equal order makes equal places.
        build = all_in_one if number % 2 and not in_place else one_by_one
        tensors = build(self.shapes, 0 if in_place else number)
        self.module = torch.nn.Module()
        for name in sorted(tensors):
            put(self.module, name, torch.nn.Parameter(tensors.pop(name), requires_grad=False))
        put(self.module, TIED, self.weight("model.embed_tokens.weight"))
        self.tokens = torch.randint(0, VOCABULARY, (2, 64), device="cuda",
                                    generator=torch.Generator("cuda").manual_seed(7))
        self.graph = self.capture() if in_place else None

    def weight(self, name):
        return self.module.get_parameter(name)

    @property
    def n_bytes(self):
        return sum(p.nbytes for p in self.module.parameters())

    def forward(self):
        torch = self.torch
        F = torch.nn.functional
        weights = dict(self.module.named_parameters(remove_duplicate=False))

        def norm(x, name):
            return F.rms_norm(x, x.shape[-1:], weights[name], 1e-5)

        def heads(x):
            return x.view(*x.shape[:2], -1, 128).transpose(1, 2)

        x = F.embedding(self.tokens, weights[TIED])
        for i in range(self.layers):
            layer = f"model.layers.{i}."

            def linear(x, name):
                return F.linear(x, weights[f"{layer}{name}.weight"])

            y = norm(x, layer + "input_layernorm.weight")
            q, k, v = (heads(linear(y, f"self_attn.{part}_proj")) for part in "qkv")
            k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], 1) for part in (k, v))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + linear(y.transpose(1, 2).flatten(2), "self_attn.o_proj")
            y = norm(x, layer + "post_attention_layernorm.weight")
            y = F.silu(linear(y, "mlp.gate_proj")) * linear(y, "mlp.up_proj")
            x = x + linear(y, "mlp.down_proj")
        return F.linear(norm(x, "model.norm.weight"), weights["lm_head.weight"])

    def capture(self):
        """A graph that knows the addresses of today."""
        torch = self.torch
        with torch.no_grad():
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                self.forward()
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.captured = self.forward()
        return graph

    def compute(self):
        torch = self.torch
        with torch.no_grad():
            logits = self.forward()
            digest = self.digest(logits)
            if self.graph is not None:
                self.captured.zero_()
                self.graph.replay()
                assert self.digest(self.captured) == digest, "the captured graph computes other bits"
        assert torch.isfinite(logits).all(), "the logits are not finite"
        return {"digest": digest, "bytes": self.n_bytes}

    def digest(self, tensor):
        raw = tensor.contiguous().view(self.torch.uint8).cpu().numpy().tobytes()
        return hashlib.sha256(raw).hexdigest()

    def look(self):
        return {name: (id(p), p.shape, p.stride(), p.requires_grad)
                for name, p in self.module.named_parameters(remove_duplicate=False)}

    def seal(self):
        import glake.torch
        before = self.look()
        begin = time.perf_counter()
        sealed = glake.torch.seal(self.module, move=not self.in_place)
        seconds = time.perf_counter() - begin
        assert self.look() == before, "a parameter is not what it was"
        assert self.weight(TIED) is self.weight("model.embed_tokens.weight"), "not tied any more"
        again = glake.torch.seal(self.module, move=not self.in_place)
        assert again.sealed_bytes == sealed.sealed_bytes and again.shared_bytes == 0, again
        return {"seconds": seconds, **vars(sealed), **self.compute()}

    def write(self):
        """All writes that a program makes to its weights."""
        import glake.torch
        torch = self.torch
        glake.torch.unseal(self.module)
        with torch.no_grad():
            for name in ("model.embed_tokens.weight", "model.norm.weight"):
                p = self.weight(name)
                old = p.clone()
                p.add_(1)
                assert torch.equal(p, old + 1), f"{name}: add_() is lost"
                p.copy_(old)
                assert torch.equal(p, old), f"{name}: copy_() is lost"
            for p in self.module.parameters():
                p.zero_()
            for name, shape in self.shapes.items():
                self.module.load_state_dict({name: content(name, shape)}, strict=False)
        return self.compute()

    def fault(self):
        """A kernel that writes to sealed memory: this process alone is lost."""
        torch = self.torch
        try:
            with torch.no_grad():
                self.weight("model.layers.0.self_attn.q_proj.weight").add_(1)
            torch.cuda.synchronize()
        except RuntimeError as error:
            return {"fault": str(error).splitlines()[0]}
        return {"fault": None}

    def free(self):
        import glake
        import glake.torch
        if self.in_place:
            glake.torch.unseal(self.module)
        self.module = self.graph = self.captured = None
        gc.collect()
        self.torch.cuda.empty_cache()
        return {"usage": glake.default_session().usage(),
                "allocated": self.torch.cuda.memory_allocated()}


# ---- all of them --------------------------------------------------------------------------------

def until(condition):
    """Sessions end a moment after their processes."""
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def note_sealed(kind, sealed, report):
    report["sealed"] = [{**one, "private": len(one["private"]), "digest": one["digest"][:8]}
                        for one in sealed if one]
    for number, one in enumerate(sealed):
        if not one:
            continue
        expect(one["pinned_bytes"] == 0, f"{kind}: {number}: pinned: {one['pinned_why']}")
        expect(one["sealed_bytes"] > 0, f"{kind}: {number}: nothing is sealed")
        expect(number == 0 or one["shared_bytes"] > 0, f"{kind}: {number}: nothing is shared")
        if kind != "graph":
            expect(not one["private"], f"{kind}: {number}: private: {one['private']}")
            expect(one["edge_bytes"] == 0, f"{kind}: {number}: {one['edge_bytes']} bytes of edges")
            expect(number == 0 or one["shared_bytes"] == one["sealed_bytes"],
                   f"{kind}: {number}: {one['shared_bytes']} of {one['sealed_bytes']} are shared")


def scenario(kind, options):
    daemon = Daemon()
    children = [
        Child(daemon, f"process {number}",
              [os.path.abspath(__file__), "--child", str(number), "--layers", str(options.layers),
               *(["--in-place"] if kind == "graph" else [])], shim=kind != "library",
              environment={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"})
        for number in range(options.processes)]
    digests = set()

    def ask(child, what):
        answer = child.ask(what)
        if answer:
            digests.add(answer["digest"])
            expect(len(digests) == 1, f"{kind}: {child.name}: other bits after {what}")
        return answer

    copy = [ask(child, "compute") for child in children][0].get("bytes", 1)
    report = {"copy_bytes": copy, "private_before": daemon.device()["private_bytes"]}
    note_sealed(kind, [ask(child, "seal") for child in children], report)
    device = daemon.device()
    report.update(block_bytes=device["used_block_bytes"], private_after=device["private_bytes"],
                  logical_bytes=device["logical_block_bytes"],
                  copies=round(device["used_block_bytes"] / copy, 4))
    if kind != "graph":
        # Rounding to pages is all that may be added.
        expect(device["used_block_bytes"] <= 1.02 * copy + 8 * MIB,
               f"{kind}: {report['copies']} copies of the weights")
        expect(device["logical_block_bytes"] == options.processes * device["used_block_bytes"],
               f"{kind}: {device['logical_block_bytes']} logical bytes of blocks")
    for child in children:
        ask(child, "compute")
    ask(children[-1], "write")
    ask(children[0], "compute")
    sealed = ask(children[-1], "seal")
    expect(sealed.get("shared_bytes"), f"{kind}: nothing is shared after unseal() and seal()")
    if options.processes > 2 and kind != "graph":
        report["fault"] = children[1].ask("fault").get("fault")
        expect(report["fault"], f"{kind}: a kernel wrote to sealed memory")
        children.pop(1).end()
        for child in children:
            ask(child, "compute")
    for child in children:
        free(kind, child)
    expect(until(lambda: daemon.device()["used_block_bytes"] == 0),
           f"{kind}: blocks are in use, and no module is there")
    for child in children:
        child.end()
    expect(until(lambda: daemon.device()["private_bytes"] == 0),
           f"{kind}: {daemon.device()['private_bytes']} bytes are not back")
    daemon.stop()
    return report


def free(kind, child):
    freed = child.ask("free")
    if freed:
        usage = freed["usage"]
        expect(usage["live_bytes"] == 0 and usage["shared_bytes"] == 0,
               f"{kind}: the module is gone, and of its memory there is {usage}")
        # Tokens, and what torch and cuBLAS keep for themselves.
        expect(freed["allocated"] < 512 * MIB, f"{kind}: torch still has {freed['allocated']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--only", default="moved,library,graph")
    parser.add_argument("--child", type=int)
    parser.add_argument("--in-place", action="store_true")
    options = parser.parse_args()
    if options.child is not None:
        serve(Program(options.child, options.layers, options.in_place))
    report = {}
    for kind in options.only.split(","):
        begin = time.perf_counter()
        try:
            report[kind] = scenario(kind, options)
        except Exception as error:
            expect(False, f"{kind}: {type(error).__name__}: {error}")
        print(f"# {kind}: {time.perf_counter() - begin:.1f} s", flush=True)
    print(json.dumps({"layers": options.layers, "processes": options.processes, **report,
                      "failures": failures}), flush=True)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
