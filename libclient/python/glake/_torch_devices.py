# SPDX-License-Identifier: Apache-2.0
"""Devices as torch numbers them, and as the driver does."""
from __future__ import annotations

import torch

from .session import DeviceLike, Session, parse_ordinal


def cuda_ordinal(device: DeviceLike) -> int:
    if str(device).partition(":")[0] == "cpu":
        raise ValueError("glake maps GPU memory; for device='cpu' use safetensors.torch.load_file")
    return parse_ordinal(device)


def start_cuda(ordinal: int) -> None:
    """Views need the primary context, and the numbering is only right once torch has read it."""
    torch.cuda.init()
    with torch.cuda.device(ordinal):
        torch.cuda.current_stream()
        torch.cuda.synchronize()


def check_number(session: Session, ordinal: int) -> None:
    """RuntimeError: torch's device of that number is not the one that the session's is."""
    theirs = getattr(torch.cuda.get_device_properties(ordinal), "uuid", None)
    if theirs is None:
        return
    for device in session.devices():
        if device["ordinal"] == ordinal and \
                device["uuid"] != str(theirs).replace("-", "").lower():
            raise RuntimeError(f"torch and the driver number their devices differently: {theirs} "
                               f"is not {device['uuid']}")
