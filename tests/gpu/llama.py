# SPDX-License-Identifier: Apache-2.0
"""Llama-shaped transformers models: logits with weights from glake are those of safetensors.

    python3 llama.py FOLDER

Saves a small random Llama, loads it once by safetensors and once by glake.torch.load_file, runs both
on the same tokens, and prints one JSON line; exit 1 when a single bit differs.
"""
import json
import os
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

import glake.torch


def run(config, weights, tokens):
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.load_state_dict(weights, assign=True, strict=False)
    model = model.to_empty(device="cuda") if any(p.is_meta for p in model.parameters()) else model
    # Rotary frequencies are computed, not stored.
    model.model.rotary_emb = type(model.model.rotary_emb)(config=config, device="cuda")
    model.eval()
    with torch.no_grad():
        return model(tokens).logits


def main():
    folder = sys.argv[1]
    path = os.path.join(folder, "llama.safetensors")
    config = LlamaConfig(vocab_size=32000, hidden_size=2048, intermediate_size=5632,
                         num_hidden_layers=12, num_attention_heads=32, num_key_value_heads=4,
                         tie_word_embeddings=False, torch_dtype=torch.bfloat16)
    torch.manual_seed(2)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    save_file({name: p.detach().clone() for name, p in model.named_parameters()}, path)
    del model
    tokens = torch.randint(0, config.vocab_size, (2, 96), device="cuda")
    want = run(config, load_file(path, device="cuda:0"), tokens)
    have = run(config, glake.torch.load_file(path, device="cuda:0"), tokens)
    equal = torch.equal(want.view(torch.uint8), have.view(torch.uint8))
    print(json.dumps({"logits": list(want.shape), "finite": bool(torch.isfinite(want).all()),
                      "bit_identical": equal}), flush=True)
    sys.stdout.flush()
    sys.exit(0 if equal else 1)


if __name__ == "__main__":
    main()
