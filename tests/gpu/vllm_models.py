# SPDX-License-Identifier: Apache-2.0
"""Small models with random weights for vLLM, the same bytes each time: what is dangerous to share."""
import json
import os

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY, INTER = 512, 4, 8, 4, 64, 4096, 1024

_COMMON = {
    "hidden_size": HIDDEN, "intermediate_size": INTER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS, "vocab_size": VOCABULARY, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
    "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
}


def _attention(prefix):
    return {f"{prefix}.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN), f"{prefix}.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN), f"{prefix}.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM)}


def _mlp(prefix):
    return {f"{prefix}.gate_proj.weight": (INTER, HIDDEN), f"{prefix}.up_proj.weight": (INTER, HIDDEN),
            f"{prefix}.down_proj.weight": (HIDDEN, INTER)}


def _model(layer, tied=False):
    shapes = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "model.norm.weight": (HIDDEN,)}
    if not tied:
        shapes["lm_head.weight"] = (VOCABULARY, HIDDEN)
    for i in range(LAYERS):
        shapes.update({f"model.layers.{i}.input_layernorm.weight": (HIDDEN,),
                       f"model.layers.{i}.post_attention_layernorm.weight": (HIDDEN,)})
        shapes.update(layer(f"model.layers.{i}"))
    return shapes


def _llama(tied=False):
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "head_dim": HEAD_DIM, **_COMMON,
              "tie_word_embeddings": tied}
    return config, _model(lambda p: {**_attention(f"{p}.self_attn"), **_mlp(f"{p}.mlp")}, tied)


def _mixture():
    experts = 4
    config = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "head_dim": HEAD_DIM, **_COMMON,
              "num_local_experts": experts, "num_experts_per_tok": 2, "sliding_window": None}

    def layer(prefix):
        shapes = _attention(f"{prefix}.self_attn")
        moe = f"{prefix}.block_sparse_moe"
        shapes[f"{moe}.gate.weight"] = (experts, HIDDEN)
        for e in range(experts):
            shapes.update({f"{moe}.experts.{e}.w1.weight": (INTER, HIDDEN), f"{moe}.experts.{e}.w2.weight": (HIDDEN, INTER),
                           f"{moe}.experts.{e}.w3.weight": (INTER, HIDDEN)})
        return shapes
    return config, _model(layer)


def _latent():
    """Multi-head latent attention, as DeepSeek V2 Lite has it; no experts."""
    rank, nope, rope, v_dim = 512, 128, 64, 128
    config = {"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", **_COMMON,
              "num_key_value_heads": HEADS, "kv_lora_rank": rank, "q_lora_rank": None, "qk_nope_head_dim": nope,
              "qk_rope_head_dim": rope, "v_head_dim": v_dim, "n_routed_experts": 4, "n_shared_experts": 1,
              "first_k_dense_replace": LAYERS, "moe_layer_freq": 1, "moe_intermediate_size": INTER,
              "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "topk_method": "greedy",
              "routed_scaling_factor": 1.0}

    def layer(prefix):
        a = f"{prefix}.self_attn"
        return {f"{a}.q_proj.weight": (HEADS * (nope + rope), HIDDEN), f"{a}.kv_a_proj_with_mqa.weight": (rank + rope, HIDDEN),
                f"{a}.kv_a_layernorm.weight": (rank,), f"{a}.kv_b_proj.weight": (HEADS * (nope + v_dim), rank),
                f"{a}.o_proj.weight": (HIDDEN, HEADS * v_dim), **_mlp(f"{prefix}.mlp")}
    return config, _model(layer)


MODELS = {"llama": _llama, "tied": lambda: _llama(tied=True), "mixture": _mixture, "latent": _latent}


def _tensor(seed, name, shape):
    import torch
    if len(shape) == 1:
        return torch.ones(shape, dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(1000 + seed)
    scale = 1.0 if "embed" in name else 1.5 / shape[1] ** 0.5
    return (torch.randn(shape, generator=generator) * scale).to(torch.bfloat16)


def _save(folder, config_name, config, shapes, weights_name):
    from safetensors.torch import save_file
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, config_name), "w", encoding="utf-8") as file:
        json.dump(config, file, indent=1)
    save_file({name: _tensor(i, name, shape) for i, (name, shape) in enumerate(sorted(shapes.items()))},
              os.path.join(folder, weights_name), metadata={"format": "pt"})


def make(kind, place):
    """The folder of a model; made once."""
    folder = os.path.join(place, kind)
    if not os.path.exists(os.path.join(folder, "model.safetensors")):
        config, shapes = MODELS[kind]()
        _save(folder, "config.json", config, shapes, "model.safetensors")
    return folder


def make_adapter(place):
    """A LoRA adapter for "llama"."""
    folder, rank, shapes = os.path.join(place, "adapter"), 8, {}
    if os.path.exists(os.path.join(folder, "adapter_model.safetensors")):
        return folder
    for i in range(LAYERS):
        for name, n_out in (("q_proj", HEADS * HEAD_DIM), ("v_proj", KV_HEADS * HEAD_DIM)):
            at = f"base_model.model.model.layers.{i}.self_attn.{name}"
            shapes.update({f"{at}.lora_A.weight": (rank, HIDDEN), f"{at}.lora_B.weight": (n_out, rank)})
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 16, "lora_dropout": 0.0, "bias": "none",
              "target_modules": ["q_proj", "v_proj"], "base_model_name_or_path": "llama", "inference_mode": True}
    _save(folder, "adapter_config.json", config, shapes, "adapter_model.safetensors")
    return folder
