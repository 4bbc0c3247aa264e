# SPDX-License-Identifier: Apache-2.0
"""Write the model files of the GPU benchmarks with the real safetensors library.

    python3 models.py FOLDER [--layers 32]

base.safetensors has the shapes of Llama-3-8B in bf16 with random weights; tune.safetensors is the
same but for tensors that make up 10 % of its bytes, as a fine-tune that changed some layers.
"""
import argparse
import os

import torch
from safetensors.torch import save_file

HIDDEN, MLP, VOCABULARY, KV = 4096, 14336, 128256, 1024


def shapes(n_layers):
    yield "model.embed_tokens.weight", (VOCABULARY, HIDDEN)
    for i in range(n_layers):
        layer = f"model.layers.{i}."
        yield layer + "input_layernorm.weight", (HIDDEN,)
        yield layer + "post_attention_layernorm.weight", (HIDDEN,)
        yield layer + "self_attn.q_proj.weight", (HIDDEN, HIDDEN)
        yield layer + "self_attn.k_proj.weight", (KV, HIDDEN)
        yield layer + "self_attn.v_proj.weight", (KV, HIDDEN)
        yield layer + "self_attn.o_proj.weight", (HIDDEN, HIDDEN)
        yield layer + "mlp.gate_proj.weight", (MLP, HIDDEN)
        yield layer + "mlp.up_proj.weight", (MLP, HIDDEN)
        yield layer + "mlp.down_proj.weight", (HIDDEN, MLP)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCABULARY, HIDDEN)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--layers", type=int, default=32)
    options = parser.parse_args()
    os.makedirs(options.folder, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    torch.manual_seed(1)
    tensors = {}
    for name, shape in shapes(options.layers):
        tensors[name] = torch.randn(shape, dtype=torch.bfloat16, device=device).cpu()
    total = sum(t.nbytes for t in tensors.values())
    save_file(tensors, os.path.join(options.folder, "base.safetensors"))

    changed = 0
    for name in tensors:
        if changed >= total // 10:
            break
        if "q_proj" in name or "o_proj" in name:
            shape = tensors[name].shape
            tensors[name] = torch.randn(shape, dtype=torch.bfloat16, device=device).cpu()
            changed += tensors[name].nbytes
    save_file(tensors, os.path.join(options.folder, "tune.safetensors"))
    print(f"{len(tensors)} tensors, {total} bytes, {changed / total:.1%} differ in the fine-tune")


if __name__ == "__main__":
    main()
