# SPDX-License-Identifier: Apache-2.0
"""The key under which one engine's weights are published: all that decides what vLLM makes of a checkpoint.

What is not known to leave the weights alone is in it: two engines that differ in it load one copy each, and
nothing is wrong. It follows from the configuration, so it is known before a module is built; which kernels vLLM
has then chosen is in the manifest (_vllm_manifest.kernels_of).
"""
from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import Any, Dict, List, Mapping, Optional, Tuple

#: of the manifest's form
_FORM = 1

#: Switches of vLLM that say where and how it runs, not what it computes. All others are in the key.
_NO_MATTER = ("VLLM_API_KEY", "VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT", "VLLM_CONFIGURE_LOGGING",
              "VLLM_DP_MASTER_IP", "VLLM_DP_MASTER_PORT", "VLLM_DP_RANK", "VLLM_DP_RANK_LOCAL",
              "VLLM_DO_NOT_TRACK", "VLLM_ENGINE_READY_TIMEOUT_S", "VLLM_HOST_IP", "VLLM_INSTANCE_ID",
              "VLLM_LOGGING_", "VLLM_NO_USAGE_STATS", "VLLM_PLUGINS", "VLLM_PORT",
              "VLLM_RPC_BASE_PATH", "VLLM_USAGE_")

#: Parts of the parallel configuration that change a rank's weights.
_PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
             "enable_expert_parallel", "expert_placement_strategy", "prefill_context_parallel_size",
             "decode_context_parallel_size")

#: Groups by whose ranks processes of one engine have other weights. Those of experts follow from them.
RANKS = ("tp", "pp", "dp")

#: Whole parts of the configuration; a version may lack one.
_CONFIGS = ("kernel_config", "attention_config", "lora_config", "offload_config")


def switches(environment: Mapping[str, str]) -> Dict[str, str]:
    return {name: value for name, value in environment.items()
            if name.startswith("VLLM_") and not name.startswith(_NO_MATTER)}


def _files(folder: str) -> List[Tuple[str, int, int]]:
    """A file that is written anew is another one. Weights, and what is read beside them."""
    with os.scandir(folder) as entries:
        stats = [(entry.name, entry.stat()) for entry in entries if entry.is_file()]
    return sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


def checkpoint(model_config: Any) -> Optional[Dict[str, Any]]:
    """What the weights are made from, as it is now. None: it cannot be told."""
    path = str(model_config.model)
    if os.path.isdir(path):
        return {"path": os.path.realpath(path), "files": [list(file) for file in _files(path)]}
    commit = getattr(model_config.hf_config, "_commit_hash", None)
    return {"name": path, "commit": commit} if commit else None


def _plain(value: Any) -> Any:
    """For JSON, the same in each process: no addresses, and sets in order."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(item) for item in value), key=repr)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "to_dict"):
        return _plain(value.to_dict())
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name, None)) for name in sorted(value.__dataclass_fields__)}
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    # An object's address makes it another key in each process: nothing is shared by mistake.
    return str(value)


def parts(vllm_config: Any, model_config: Any, prefix: str, ranks: Mapping[str, int],
          machine: Mapping[str, str]) -> Dict[str, Any]:
    """All of the key, for people as well. ``ranks``: of this process, by group. ``machine``: the GPU and the
    versions."""
    parallel = vllm_config.parallel_config
    return _plain({
        "form": _FORM,
        "checkpoint": checkpoint(model_config),
        "revision": model_config.revision,
        "hf_config": model_config.hf_config,
        "max_model_len": model_config.max_model_len,
        "dtype": str(model_config.dtype),
        "quantization": model_config.quantization,
        "kv_cache_dtype": vllm_config.cache_config.cache_dtype,
        "prefix": prefix,
        "ranks": ranks,
        "parallel": {name: getattr(parallel, name, None) for name in _PARALLEL},
        "configs": {name: getattr(vllm_config, name, None) for name in _CONFIGS},
        "switches": switches(os.environ),
        "machine": machine,
    })


def why_not_kept(vllm_config: Any, environment: Mapping[str, str]) -> Optional[str]:
    """Why what this engine computes is of no use to the next one."""
    if environment.get("PYTHONHASHSEED", "random") == "random":
        return "PYTHONHASHSEED is not set: hashes of blocks are other ones in each process"
    if not vllm_config.cache_config.enable_prefix_caching:
        return "prefix caching is off"
    if getattr(vllm_config, "lora_config", None) is not None:
        return "hashes of blocks have the name of an adapter, and not its content"
    if getattr(vllm_config, "speculative_config", None) is not None:
        return "it has a draft"
    if getattr(vllm_config.cache_config, "calculate_kv_scales", False):
        return "scales of its KV cache are computed while it runs"
    if getattr(getattr(vllm_config, "parallel_config", None), "enable_eplb", False) or \
            getattr(vllm_config, "weight_transfer_config", None) is not None:
        return "its weights may change"
    if checkpoint(vllm_config.model_config) is None:
        return "the revision of its files is not known"
    return None


def range_key(weights: Mapping[str, Any], vllm_config: Any, kv_cache_config: Any, layout: Mapping[str, int]) -> bytes:
    """All that decides what is in a block with some hash, and where: of the weights (see parts()), of hashes, of the cache."""
    cache = vllm_config.cache_config
    load = getattr(vllm_config, "load_config", None)
    return hashlib.sha256(json.dumps(_plain({
        "weights": weights,
        "load": {name: getattr(load, name, None) for name in ("load_format", "model_loader_extra_config")},
        "seed": getattr(vllm_config.model_config, "seed", None),
        "hash": [os.environ.get("PYTHONHASHSEED"), getattr(cache, "prefix_caching_hash_algo", None),
                 list(sys.version_info)],
        "cache": {name: getattr(cache, name, None) for name in ("block_size", "cache_dtype", "sliding_window")},
        "groups": [[list(group.layer_names), type(group.kv_cache_spec).__name__, group.kv_cache_spec]
                   for group in kv_cache_config.kv_cache_groups],
        "tensors": [getattr(tensor, "shared_by", None) or getattr(tensor, "layers", None) for tensor in kv_cache_config.kv_cache_tensors],
        "layout": layout,
    }), sort_keys=True).encode()).digest()


def key_of(key_parts: Mapping[str, Any]) -> str:
    """`vllm/NAME/tpR.ppR/DIGEST`: `glakectl models` is to be read."""
    place = key_parts["checkpoint"]
    name = os.path.basename(str(place.get("path") or place.get("name")))[:80]
    ranks = ".".join(f"{group}{key_parts['ranks'][group]}" for group in RANKS)
    digest = hashlib.sha256(json.dumps(key_parts, sort_keys=True).encode()).hexdigest()
    return f"vllm/{name}/{ranks}/{digest[:32]}"
