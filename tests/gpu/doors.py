# SPDX-License-Identifier: Apache-2.0
"""glake.transformers, and glake.torch.publish() and attach(): small models of many kinds, the same bits.

    python3 tests/gpu/doors.py

Each model is saved, loaded by transformers itself, and loaded from the store; the logits have to be the
same bits, and each of its parameters has to be in the memory that is expected: mapped, or private and sealed.
Models are then published, and attached to modules on the meta device and elsewhere, in this process. A
line for each; exit 1 when one is wrong.
"""
import os
import subprocess
import sys
import tempfile

from run import PYTHON, Daemon, expect, failures

SMALL = dict(vocab_size=8192, hidden_size=1024, intermediate_size=2816, num_hidden_layers=3,
             num_attention_heads=16, num_key_value_heads=4)
UNCHANGED = """
import sys
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], device_map="cuda:0", dtype="auto")
import torch
print(torch.cuda.memory_allocated(), sum(p.nbytes for p in model.parameters()))
"""


def line(what, is_right, more=""):
    expect(is_right, what)
    print(f"{what:48} {'right' if is_right else 'WRONG'}  {more}", flush=True)


def configs():
    from transformers import GemmaConfig, LlamaConfig, MixtralConfig, Qwen3MoeConfig
    yield "llama", LlamaConfig(**SMALL), {}
    yield "llama, tied", LlamaConfig(**SMALL, tie_word_embeddings=True), {}
    yield "llama, five shards", LlamaConfig(**SMALL), {"max_shard_size": "20MB"}
    yield "gemma", GemmaConfig(**SMALL, head_dim=64), {}
    yield "mixtral: experts are fused", MixtralConfig(**SMALL, num_local_experts=4), {}
    yield ("qwen3-moe: experts are fused",
           Qwen3MoeConfig(**SMALL, num_experts=4, moe_intermediate_size=512, head_dim=64,
                          num_experts_per_tok=2), {})


def logits_of(model):
    import torch
    tokens = torch.arange(32, device="cuda")[None] * 7
    with torch.no_grad():
        return model(tokens).logits


def is_mapped(tensor):
    from glake._torch_tensors import mapped_storages
    return tensor.untyped_storage() in mapped_storages


def is_at_home(tensor):
    """In memory that seal() moves tensors to."""
    from glake._torch_seal import _homes
    return tensor.untyped_storage().data_ptr() in _homes


def transformers_loads(folder):
    import torch
    import glake.transformers
    from transformers import AutoModelForCausalLM

    def load(path, dtype):
        return AutoModelForCausalLM.from_pretrained(path, device_map="cuda:0", dtype=dtype)

    for number, (name, config, how) in enumerate(configs()):
        torch.manual_seed(1)
        path = os.path.join(folder, str(number))
        AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(path, **how)
        for dtype in (torch.bfloat16, torch.float32) if number == 0 else (torch.bfloat16,):
            wanted = logits_of(load(path, dtype))
            glake.transformers.enable()
            model = load(path, dtype)
            glake.transformers.disable()
            places = {key: "mapped" if is_mapped(p) else "sealed" if is_at_home(p) else "private"
                      for key, p in model.named_parameters()}
            if dtype == torch.float32 or "fused" in name:
                converted = {key: "sealed" for key in places
                             if dtype == torch.float32 or "experts" in key}
            else:
                converted = {}
            expected = {**dict.fromkeys(places, "mapped"), **converted}
            if name.startswith("mixtral"):
                # Less than half is left.
                expected = dict.fromkeys(places, "sealed")
            same = torch.equal(logits_of(model), wanted)
            line(f"{name}, {dtype}", same and places == expected,
                 f"same logits: {same}, {list(places.values()).count('mapped')} mapped, "
                 f"{list(places.values()).count('sealed')} sealed")
            del model
    script = os.path.join(folder, "unchanged.py")
    with open(script, "w", encoding="ascii") as file:
        file.write(UNCHANGED)
    out = subprocess.run([sys.executable, "-m", "glake.transformers", script,
                          os.path.join(folder, "0")], capture_output=True, text=True, check=False,
                         env={**os.environ, "PYTHONPATH": PYTHON})
    allocated, n_bytes = map(int, out.stdout.split() or (1, 0))
    line("a program that is not changed", allocated < n_bytes // 10,
         f"{allocated} of {n_bytes} bytes are PyTorch's {out.stderr[-300:] if not n_bytes else ''}")


def published_modules():
    import torch
    import glake.torch
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(**SMALL, tie_word_embeddings=True)
    torch.manual_seed(2)
    first = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
    wanted = logits_of(first)
    published = glake.torch.publish(first, "small@1")
    line("published: the same logits", torch.equal(logits_of(first), wanted))
    line("published: nothing is copied", published.copied_bytes == 0, str(published))
    with torch.device("meta"):
        empty = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    other = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
    for name, module in (("meta", empty), ("cuda", other)):
        glake.torch.attach(module, "small@1")
        line(f"attached, {name}: the same logits", torch.equal(logits_of(module), wanted))
        line(f"attached, {name}: tied", module.lm_head.weight is module.model.embed_tokens.weight)
        line(f"attached, {name}: mapped, without gradients",
             all(is_mapped(p) and not p.requires_grad for p in module.parameters()))
    del first, other
    torch.cuda.empty_cache()
    line("attached: as before without the publisher", torch.equal(logits_of(empty), wanted))

    # A type that DLPack lacks, a turned tensor, an empty one; and a module that lacks one of them.
    odd = torch.nn.Module()
    odd.fp8 = torch.nn.Parameter(torch.randn(512, 512, device="cuda").to(torch.float8_e4m3fn), False)
    odd.turned = torch.nn.Parameter(torch.randn(300, 700, device="cuda").t(), False)
    odd.register_buffer("none", torch.empty(0, 3, device="cuda"))
    bits = {name: t.contiguous().view(torch.uint8).clone() for name, t in odd.state_dict().items()}
    glake.torch.publish(odd, "odd")
    again = torch.nn.Module()
    for name, tensor in odd.state_dict().items():
        again.register_buffer(name, torch.empty_like(tensor, device="meta"))
    glake.torch.attach(again, "odd")
    line("attached: odd tensors", all(
        torch.equal(t.contiguous().view(torch.uint8), bits[name]) and
        t.stride() == odd.state_dict()[name].stride()
        for name, t in again.state_dict().items()))
    again.register_buffer("more", torch.zeros(1))
    again.turned = torch.zeros(2, device="cuda")
    try:
        glake.torch.attach(again, "odd")
        line("a module that does not fit is refused", False)
    except RuntimeError as error:
        line("a module that does not fit is refused", "more" in str(error) and
             "turned" in str(error) and again.turned.numel() == 2, str(error))


def main():
    daemon = Daemon()
    os.environ["GLAKE_SOCKET"] = daemon.socket
    sys.path.insert(0, PYTHON)
    with tempfile.TemporaryDirectory() as folder:
        for step in (lambda: transformers_loads(folder), published_modules):
            try:
                step()
            except Exception as error:
                import traceback
                traceback.print_exc()
                expect(False, f"{type(error).__name__}: {error}")
    print("OK" if not failures else f"{len(failures)} FAILED", flush=True)
    # Before glaked: its end is not what is tested.
    sys.stdout.flush()
    daemon.process.terminate()
    os._exit(bool(failures))


if __name__ == "__main__":
    main()
