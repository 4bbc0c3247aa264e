# SPDX-License-Identifier: Apache-2.0
"""Where vLLM makes its KV cache, by module, class and name; not every version has each."""
from __future__ import annotations

_RUNNER, _UTILS = "vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.attn_utils"

#: It allocates: 0.25.1 one tensor for each layer, later ones one for all.
ALLOCATES = ((_UTILS, "", "_allocate_kv_cache"), (_RUNNER, "GPUModelRunner", "_allocate_kv_cache_tensors"),
             (_UTILS, "", "allocate_kv_cache"), (_RUNNER, "", "allocate_kv_cache"))

#: It makes views of that for the layers.
VIEWS = ((_UTILS, "", "_reshape_kv_cache"), (_RUNNER, "GPUModelRunner", "_reshape_kv_cache_tensors"), *ALLOCATES[2:])
