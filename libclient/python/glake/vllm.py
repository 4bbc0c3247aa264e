# SPDX-License-Identifier: Apache-2.0
"""A plugin of vLLM (0.25.1 to 0.33), which finds it by its entry point: no file of vLLM is changed.

    vllm serve MODEL --load-format glake            # weights once per GPU: the second engine maps them
    glake run -- vllm serve MODEL --load-format glake --enable-sleep-mode

Under ``glake run`` a sleep of level 1 puts the whole process to sleep; from 0.33 on it is asked for with
``--sleep-mode-backend glake``. With ``GLAKE_VLLM_KV=elastic`` KV memory comes and goes as it is needed;
with ``kept`` the next engine finds the prefixes of one that crashed, too. ``VLLM_PLUGINS`` leaves the plugin out, as
any other. docs/engines.md has the rest.
"""
from __future__ import annotations

import logging
import os

__all__ = ["register"]


def register() -> None:
    """For vLLM, in each of its processes; more than once does no harm. What raises here would end vLLM: one
    that lacks a door goes on without what is behind it."""
    for door in (_load, _sleep, _kv):
        try:
            door()
        except (ImportError, AttributeError) as error:
            logging.getLogger("vllm.glake").warning("glake does not know this vLLM: %s", error)


def _load() -> None:
    from vllm.model_executor.model_loader import register_model_loader

    from ._vllm_loader import GlakeLoader
    register_model_loader("glake")(GlakeLoader)


def _sleep() -> None:
    from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory

    from ._vllm_sleep import enable
    enable(SleepModeBackendFactory)


def _kv() -> None:
    wanted = os.environ.get("GLAKE_VLLM_KV", "plain")
    if wanted not in ("plain", "elastic", "kept"):
        logging.getLogger("vllm.glake").warning("GLAKE_VLLM_KV is plain, elastic or kept, not %s", wanted)
    if wanted not in ("elastic", "kept"):
        return
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.executor.abstract import Executor

    from ._vllm_kv import enable
    enable(Executor, Scheduler)
