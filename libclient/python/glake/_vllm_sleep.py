# SPDX-License-Identifier: Apache-2.0
"""vLLM's sleep of level 1 as a sleep of the whole process, under ``glake run``.

vLLM asks a backend to suspend and to resume. Weights, KV memory, graphs and workspace leave together and come
back at the same addresses; vLLM's own allocator copies nothing. What glake cannot do by parts stays with vLLM's
allocator: level 2, discard(), and everything where the process does not run under ``glake run``.
"""
from __future__ import annotations

import dataclasses
from typing import Any, List, Optional, Set, Tuple

from vllm.device_allocator.sleep_mode_backend import CuMemBackend
from vllm.logger import init_logger

from ._torch_sleep import sleep_shim, wake
from .errors import Error

logger = init_logger("vllm.glake")


class GlakeBackend(CuMemBackend):
    """Who has put it to sleep wakes it. After a sleep of the whole process the first tag wakes all of it, and
    the others find it awake."""

    def __init__(self) -> None:
        super().__init__()
        self._is_ours = False
        #: what vLLM's allocator has taken away, and alone can bring back
        self._theirs: Set[str] = set()

    def suspend(self, level: int = 1) -> None:
        self._is_ours = level == 1 and not self._theirs and self._suspend_all()
        if self._is_ours:
            self._state = "SUSPENDED"
        else:
            self._theirs = {"weights", "kv_cache"}
            super().suspend(level)

    def resume(self, tags: Optional[List[str]] = None) -> None:
        if not self._is_ours:
            super().resume(tags)
            self._theirs -= set(self._theirs if tags is None else tags)
            return
        wake()
        self._state = "RUNNING"

    def discard(self, tags: Tuple[str, ...]) -> None:
        """vLLM's allocator has all of its memory then, and gives some of it up."""
        if self._is_ours:
            wake()
            self._is_ours = False
        self._theirs |= set(tags)
        super().discard(tags)

    @staticmethod
    def _suspend_all() -> bool:
        try:
            report = sleep_shim()
        except (Error, OSError) as error:
            logger.warning("glake: vLLM's own allocator goes to sleep, since the process could not: %s", error)
            return False
        if report is None:
            logger.info("glake: not under `glake run`: vLLM's own allocator goes to sleep")
        return report is not None


def _can_be_chosen() -> bool:
    """This vLLM has --sleep-mode-backend."""
    from vllm.engine.arg_utils import EngineArgs
    return any(field.name == "sleep_mode_backend" for field in dataclasses.fields(EngineArgs))


def enable(factory: Any) -> None:
    """``--sleep-mode-backend glake``; where vLLM has no such option, its only backend becomes ours."""
    if "glake" not in factory._registry:
        factory.register_backend("glake", __name__, GlakeBackend.__name__)
    original = factory.create_backend
    if getattr(original, "is_glakes", False):
        return

    def create_backend(cls: Any, model_config: Any) -> Any:
        if model_config.sleep_mode_backend == "cumem" and not _can_be_chosen():
            return GlakeBackend()
        return original(model_config)

    create_backend.is_glakes = True  # type: ignore[attr-defined]
    factory.create_backend = classmethod(create_backend)
