# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest: kvcached's tests for a GPU run on the simulated one. PyTorch does not; so its tensors are made on the
CPU, over addresses that the CPU cannot reach, and what else the tests ask of torch.cuda is answered here: none of them looks
at bytes. glaked, the library and the simulator are the real ones.
"""
import os
import types

import torch
from glake import _kvcached_torch
from glake import kvcached

_KDL_CPU = 1

_kvcached_torch.KDL_CUDA = _KDL_CPU
torch.cuda.init = lambda: None
torch.cuda.is_available = lambda: True
torch.cuda.current_device = lambda: 0
torch.cuda.device_count = lambda: 1
torch.cuda.set_device = lambda device: None
torch.cuda.synchronize = lambda device=None: None
torch.cuda.get_device_properties = lambda device=None: types.SimpleNamespace(
    total_memory=int(os.environ.get("KVCACHED_TEST_GIB", "8")) << 30)

kvcached.use()
