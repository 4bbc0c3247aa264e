# SPDX-License-Identifier: Apache-2.0
"""Which PyTorch this is, and that it is new enough. Imported before all else that uses torch."""
from __future__ import annotations

import re

import torch

#: From then on a storage is one object of Python as long as it lives, and so can be known again.
LOWEST = (2, 2)


def is_too_old(version: str) -> bool:
    """One that cannot be read is of somebody's own build: it is taken as new."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) < LOWEST


if is_too_old(torch.__version__):
    raise ImportError(f"glake.torch needs PyTorch {LOWEST[0]}.{LOWEST[1]} or newer, and this is "
                      f"{torch.__version__} ({torch.__file__})")
