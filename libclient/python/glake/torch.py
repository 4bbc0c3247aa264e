# SPDX-License-Identifier: Apache-2.0
"""For PyTorch: load_file() as in safetensors.torch, without a copy; seal() for modules that
something else has loaded; publish() and attach() for modules that are ready to run;
use_allocator() and mem_pool() for all other memory; sleep() and wake() for a program that does nothing
for a while.

The tensors are views of the node's one copy of the weights, mapped read-only. PyTorch does not know
that: writing to one in place is an illegal memory access. Clone what is to change, or unseal().
"""
from __future__ import annotations

from typing import Dict, Optional, Sequence, Union

import torch

from . import _torch_version  # noqa: F401 # first: it refuses a PyTorch that is too old
from ._torch_alloc import mem_pool, memory_stats, reset_peak_memory_stats, use_allocator
from ._torch_devices import check_number, cuda_ordinal, start_cuda
from ._torch_publish import Attached, attach, publish
from ._torch_seal import seal, unseal
from ._torch_sleep import sleep, wake
from ._torch_tensors import as_tensor
from .model import Model, Path, Progress
from .session import DeviceLike, Session

__all__ = ["Attached", "as_tensor", "attach", "load_file", "mem_pool", "memory_stats", "open_model",
           "publish", "reset_peak_memory_stats", "seal", "sleep", "unseal", "use_allocator", "wake"]


def open_model(filename: Union[Path, Sequence[Path]], device: DeviceLike = "cuda", *,
               session: Optional[Session] = None,
               progress: Optional[Progress] = None) -> Model:
    """A glake.Model on a device as torch numbers them."""
    ordinal = cuda_ordinal(device)
    start_cuda(ordinal)
    model = Model(filename, ordinal, session=session, progress=progress)
    try:
        check_number(model._session, ordinal)
    except RuntimeError:
        model.close()
        raise
    return model


def load_file(filename: Union[Path, Sequence[Path]], device: DeviceLike = "cuda", *,
              backend: Optional[str] = None, session: Optional[Session] = None,
              progress: Optional[Progress] = None) -> Dict[str, torch.Tensor]:
    """safetensors.torch.load_file() for a GPU: ``filename`` may also be a folder or a list of
    shards; ``backend`` is taken and not used."""
    with open_model(filename, device, session=session, progress=progress) as model:
        return {name: as_tensor(model[name]) for name in model}
