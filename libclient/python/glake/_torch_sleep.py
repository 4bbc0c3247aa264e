# SPDX-License-Identifier: Apache-2.0
"""Sleep of a PyTorch program: whose memory it is, and who may put it to sleep.

Under ``glake run`` PyTorch's memory is that of the shim's session, which no call gives to the program. So
glaked is asked to put this process to sleep, as `glakectl sleep PID` does, and the shim follows. The calling
thread waits in a call that submits nothing to the GPU: what it submits afterwards wakes the process.
"""
from __future__ import annotations

import gc
import sys
from typing import Any, Dict, List, Optional

import torch

from . import admin
from ._torch_alloc import _Door
from .errors import Error
from .session import Session, default_session

_BAD_REQUEST = -4003


def _empty() -> None:
    """PyTorch keeps nothing that it does not use: that need not be copied."""
    if not torch.cuda.is_initialized():
        return
    # Tensors in cycles are collected first, for their memory to be in the cache.
    gc.collect()
    for ordinal in range(torch.cuda.device_count()):
        torch.cuda.synchronize(ordinal)
    torch.cuda.empty_cache()


def _free_dead() -> None:
    """Homes of glake.torch.seal() whose last tensor died while they were asleep."""
    seals: Any = sys.modules.get("glake._torch_seal")
    if seals:
        seals._free_dead()


def _ask_shim(wakes: bool) -> Optional[Dict[str, Any]]:
    """None: no session of this process is the shim's."""
    with Session(cuda=False) as session:
        own = session.info()["session"]
        rows = admin.sessions(session)
        # By glaked's number of the process: in a container it has another one for itself.
        pid = next(row["pid"] for row in rows if row["session"] == own)
        for row in rows:
            if row["pid"] != pid or row["session"] == own or row["detached"]:
                continue
            try:
                return admin.sleep_session(row["session"], wakes, session)
            except Error as error:
                # It is not the shim's.
                if error.code != _BAD_REQUEST:
                    raise
    return None


def _sum(parts: List[Dict[str, Any]]) -> Dict[str, Any]:
    keys = ("private_bytes", "shared_bytes", "took_ns", "held_ns")
    total: Dict[str, Any] = {key: sum(part[key] for part in parts) for key in keys}
    total["stays"] = [stay for part in parts for stay in part["stays"]]
    return total


def _own_sessions() -> List[Session]:
    door: Any = _Door()
    return [default_session(), *([door] if door._handle else [])]


def sleep_shim() -> Optional[Dict[str, Any]]:
    """Put the whole process to sleep, as sleep() does under ``glake run``. None: it does not run under that,
    and nothing sleeps."""
    _empty()
    return _ask_shim(False)


def sleep(timeout_ms: int = 5000) -> Dict[str, Any]:
    """Give the GPU memory of this process to others; its addresses stay. PyTorch's work is waited for, and its
    cache is emptied first.

    Under ``glake run`` whatever any thread submits next wakes the process, and waits until it is awake. Models
    sleep too, and memory that glake.torch.seal() has moved tensors to.

    Else the memory of use_allocator(), of seal() and of Session.alloc() sleeps, and models with what attach() and
    load_file() gave, not that which PyTorch has of the driver. Then nothing may use it before wake(): PyTorch
    does not know. ``timeout_ms`` is for work that is queued.

    Returns the bytes that left the GPU, and as ``stays`` what is still there, by reason.
    """
    report = sleep_shim()
    if report is None:
        slept: List[Session] = []
        parts = []
        try:
            for session in _own_sessions():
                parts.append(session.sleep(timeout_ms))
                slept.append(session)
        except BaseException:
            for session in slept:
                session.wake()
            raise
        return _sum(parts)
    return _sum([report])


def wake() -> Dict[str, Any]:
    """All of it comes back. Waits until glaked has room. Does nothing if this process is awake."""
    report = _ask_shim(True)
    woke = _sum([report] if report is not None else
                [session.wake() for session in _own_sessions()])
    _free_dead()
    return woke
