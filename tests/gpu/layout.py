# SPDX-License-Identifier: Apache-2.0
"""What two processes have equal in place, by loader and by PyTorch's allocator.

    python3 tests/gpu/layout.py [--only LOADER,...] [--models large,small] [--jobs 4]

Two processes under `glake run` load one model by themselves, at the same time. Of each page of 2 MiB
that holds weights they compute a digest, as the memory is, not as the tensors are. Printed is a row for
each model and loader, with two numbers for each allocator: how much of the weights lies in pages that
the other process has, too; and how much glake.torch.seal(module, move=False) shares of it.

Models: `large` has six layers of Llama-3-8B's shapes, `small` is a Llama of 1.1 B parameters.
Loaders:
    safetensors    safetensors.torch.load_file(device="cuda:0")
    threads        from_pretrained(device_map="cuda:0") of transformers 5, as it is
    one_thread     the same with HF_DEACTIVATE_ASYNC_LOAD=1
    state_dict     a module on the GPU, and load_state_dict() of torch.load(map_location="cpu")
    pickle         torch.load(map_location="cuda:0"), load_state_dict(assign=True)
    pickle_mmap    torch.load(mmap=True), load_state_dict(assign=True), to("cuda")
    to             from_pretrained() on the CPU, then to("cuda")
"""
import argparse
import concurrent.futures
import os
import subprocess
import sys
import tempfile
import time

from child import Child, ask_all, serve
from run import Daemon, expect, failures

PAGE = 2 << 20
MODELS = {
    "large": dict(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=6,
                  num_attention_heads=32, num_key_value_heads=8),
    "small": dict(vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=22,
                  num_attention_heads=32, num_key_value_heads=4)}
ALLOCATORS = {"native": "", "expandable segments": "expandable_segments:True",
              "cudaMallocAsync": "backend:cudaMallocAsync"}
LOADERS = ("safetensors", "threads", "one_thread", "state_dict", "pickle", "pickle_mmap", "to")


def config_of(model):
    from transformers import LlamaConfig
    return LlamaConfig(tie_word_embeddings=False, dtype="bfloat16", **MODELS[model])


def write(folder, model):
    """As from_pretrained() and as torch.load() want it."""
    import torch
    from transformers import LlamaForCausalLM
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        module = LlamaForCausalLM(config_of(model))
    module = module.cpu()
    module.save_pretrained(folder, max_shard_size="100GB")
    torch.save(module.state_dict(), os.path.join(folder, "model.pt"))


# ---- in a process -------------------------------------------------------------------------------

class Memory:
    """Bytes of the device for torch, by their address."""

    def __init__(self, ptr, n_bytes):
        self.__cuda_array_interface__ = {"shape": (n_bytes // 8,), "typestr": "<i8",
                                         "data": (ptr, False), "version": 3}


class Program:
    def __init__(self, folder, model, loader):
        import torch
        self.torch = torch
        self.folder = folder
        self.model = model
        torch.zeros(1, device="cuda")
        self.module = getattr(self, loader)()
        torch.cuda.synchronize()

    def path(self, name):
        return os.path.join(self.folder, name)

    def safetensors(self):
        from safetensors.torch import load_file
        module = self.torch.nn.Module()
        for name, tensor in load_file(self.path("model.safetensors"), device="cuda:0").items():
            module.register_buffer(name.replace(".", "_"), tensor)
        return module

    def threads(self):
        from transformers import AutoModelForCausalLM
        return AutoModelForCausalLM.from_pretrained(self.folder, device_map="cuda:0",
                                                    dtype=self.torch.bfloat16)

    def one_thread(self):
        os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"
        return self.threads()

    def to(self):
        from transformers import AutoModelForCausalLM
        return AutoModelForCausalLM.from_pretrained(self.folder,
                                                    dtype=self.torch.bfloat16).to("cuda")

    def empty(self, device):
        from transformers import LlamaForCausalLM
        self.torch.set_default_dtype(self.torch.bfloat16)
        with self.torch.device(device):
            module = LlamaForCausalLM(config_of(self.model))
        self.torch.set_default_dtype(self.torch.float32)
        return module

    def state_dict(self):
        module = self.empty("cuda")
        module.load_state_dict(self.torch.load(self.path("model.pt"), map_location="cpu"))
        return module

    def pickle(self):
        module = self.empty("meta")
        module.load_state_dict(self.torch.load(self.path("model.pt"), map_location="cuda:0"),
                               assign=True)
        return module

    def pickle_mmap(self):
        module = self.empty("meta")
        # Rotary frequencies are computed, not stored.
        module.model.rotary_emb = type(module.model.rotary_emb)(config=module.config, device="cpu")
        module.load_state_dict(self.torch.load(self.path("model.pt"), map_location="cpu", mmap=True),
                               assign=True)
        return module.to("cuda")

    def tensors(self):
        return [t for t in (*self.module.parameters(), *self.module.buffers())
                if t.is_cuda and t.nbytes]

    def pages(self):
        """Bytes of weights; and of pages with weights: digest, bytes of weights."""
        torch = self.torch
        weights = {}
        for tensor in self.tensors():
            begin, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
            for page in range(begin // PAGE, -(-end // PAGE)):
                n_bytes = min(end, (page + 1) * PAGE) - max(begin, page * PAGE)
                weights[page] = weights.get(page, 0) + n_bytes
        generator = torch.Generator().manual_seed(3)
        keys = torch.randint(-2**62, 2**62, (2, PAGE // 8), generator=generator).cuda() | 1
        digests = [(torch.as_tensor(Memory(page * PAGE, PAGE), device="cuda") * keys).sum(1)
                   for page in weights]
        rows = torch.stack(digests).tolist()
        return {"bytes": sum(weights.values()),
                "pages": [[f"{a:x}/{b:x}", n] for (a, b), n in zip(rows, weights.values())]}

    def seal(self):
        import glake.torch
        try:
            sealed = glake.torch.seal(self.module, move=False)
        except OSError as error:
            return {"refused": str(error), "shared_bytes": 0, "sealed_bytes": 0}
        return {"shared_bytes": sealed.shared_bytes, "sealed_bytes": sealed.sealed_bytes}


# ---- the report ---------------------------------------------------------------------------------

def cell(folder, model, loader, allocator):
    """Parts of the weights: equal in place, shared by sealing in place."""
    daemon = Daemon()
    begin = time.perf_counter()
    children = [
        Child(daemon, f"{model}, {loader}, {allocator}, {number}",
              [os.path.abspath(__file__), "--child", loader, "--folder", folder, "--models", model],
              environment={"PYTORCH_CUDA_ALLOC_CONF": ALLOCATORS[allocator]} if ALLOCATORS[allocator]
              else {})
        for number in range(2)]
    first, second = ask_all(children, "pages")
    sealed = [child.ask("seal") for child in children]
    for child in children:
        child.end()
    daemon.stop()
    if not first or not second:
        return None
    theirs = {digest for digest, _ in first["pages"]}
    equal = sum(n for digest, n in second["pages"] if digest in theirs)
    print(f"# {model}, {loader}, {allocator}: {equal} of {second['bytes']} equal, "
          f"sealed {sealed} in {time.perf_counter() - begin:.0f} s", flush=True)
    return equal / second["bytes"], sealed[1].get("shared_bytes", 0) / second["bytes"]


def show(value):
    return "failed" if value is None else f"{value[0]:.1%}; {value[1]:.1%}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(LOADERS))
    parser.add_argument("--models", default="large,small")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--folder", default=os.path.join(tempfile.gettempdir(), "glake-layout"))
    parser.add_argument("--write")
    parser.add_argument("--child", choices=LOADERS)
    options = parser.parse_args()
    if options.child:
        serve(Program(options.folder, options.models, options.child))
    if options.write:
        write(options.folder, options.write)
        return
    models = options.models.split(",")
    folders = {model: os.path.join(options.folder, model) for model in models}
    for model, folder in folders.items():
        if not os.path.exists(os.path.join(folder, "model.pt")):
            subprocess.run([sys.executable, os.path.abspath(__file__), "--write", model, "--folder",
                            folder], check=True)
    keys = [(model, loader, allocator) for model in models for loader in options.only.split(",")
            for allocator in ALLOCATORS]

    def one(key):
        try:
            return cell(folders[key[0]], *key)
        except Exception as error:
            expect(False, f"{key}: {type(error).__name__}: {error}")
            return None

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        found = dict(zip(keys, pool.map(one, keys)))
    print("\n| model, loader | " + " | ".join(ALLOCATORS) + " |")
    print("|---|" + "---|" * len(ALLOCATORS))
    for model in models:
        for loader in options.only.split(","):
            cells = " | ".join(show(found[model, loader, allocator]) for allocator in ALLOCATORS)
            print(f"| {model}, {loader} | {cells} |")
    print("OK" if not failures else f"{len(failures)} FAILED")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
