# SPDX-License-Identifier: Apache-2.0
"""KV memory of an engine whose ranks are processes of their own: what runs in them, and who asks them for it.

vLLM runs a callable in each worker, between two batches, in their order, on the thread and stream of the model; it is pickled by
its name. So a range is opened, and attended, in the worker, and marks are set. All else goes over sockets (_vllm_ranks).
"""
from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import tempfile
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from vllm.logger import init_logger

from . import _vllm_kv as kv
from ._vllm_plan import Plan
from ._vllm_ranks import Gone, Ranks
from ._vllm_steps import Steps

logger = init_logger("vllm.glake")

#: of what a worker says first over a socket: its rank, and whether the socket is for commits
_HELLO = struct.Struct("=II")
#: For all to connect, who have been told to
_CONNECT_S = 10.0
_PEER = struct.Struct("=iii")


# ---- in a worker ----

class _Range:
    """The one of this worker."""

    def __init__(self) -> None:
        self.arena: Optional[kv.Arena] = None
        self.doors = contextlib.ExitStack()

    def leave(self) -> Optional[kv.Arena]:
        self.doors.close()
        arena, self.arena = self.arena, None
        return arena


_range = _Range()


def open_range(worker: Any, configs: List[Any]) -> Tuple[str, Any]:
    """Why not, or how its blocks lie. What vLLM allocates for its cache from now on is the range."""
    _range.leave()
    try:
        plan = Plan(configs[worker.global_rank])
        _range.arena = kv.open_arena(worker.vllm_config, plan)
    except kv.PLAIN as error:
        return str(error) or type(error).__name__, None
    _range.doors.enter_context(_range.arena.doors())
    return "", _shape(plan)


def _shape(plan: Plan) -> Tuple[int, ...]:
    layout = plan.layout
    return plan.n_lanes, layout.chunk_bytes, layout.n_steps, layout.block_bytes, layout.n_blocks


def close_range(worker: Any) -> None:
    arena = _range.leave()
    if arena is not None:
        arena.elastic.close()


def why_plain(worker: Any) -> str:
    """It has allocated."""
    _range.doors.close()
    return _range.arena.why_plain() if _range.arena is not None else "there is no range"


def make_plain(worker: Any) -> None:
    arena = _range.leave()
    if arena is not None:
        arena.make_plain()


def attend_range(worker: Any, path: str) -> str:
    """Why not. Who listens there keeps the books from now on."""
    try:
        for is_for_commits in (0, 1):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
                sock.settimeout(_CONNECT_S)
                sock.connect(path)
                sock.send(_HELLO.pack(worker.global_rank, is_for_commits))
                sock.setblocking(True)
                fd = os.dup(sock.fileno())
            try:
                assert _range.arena is not None
                _range.arena.elastic.attend(fd)
            except BaseException:
                os.close(fd)
                raise
    except kv.PLAIN as error:
        return str(error) or type(error).__name__
    return ""


def set_mark(worker: Any, number: int) -> None:
    """What fails here passes with the next one."""
    arena = _range.arena
    if arena is None:
        return
    try:
        arena.elastic.mark(number, torch.cuda.current_stream(arena.ordinal).cuda_stream)
    except kv.PLAIN as error:
        logger.warning("glake: no mark is set: %s", error)


# ---- in the engine's process ----

def _listen(n: int) -> Tuple[str, socket.socket]:
    """Where nobody else can connect."""
    folder = tempfile.mkdtemp(prefix="glake-kv-")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(os.path.join(folder, "ranks"))
        listener.listen(n)
        listener.settimeout(_CONNECT_S)
    except BaseException:
        listener.close()
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder, listener


def _accept(listener: socket.socket, n_ranks: int, stack: contextlib.ExitStack) -> List[Tuple[socket.socket, socket.socket]]:
    """Both sockets of each rank."""
    found: Dict[Tuple[int, int], socket.socket] = {}
    while len(found) < 2 * n_ranks:
        sock, _ = listener.accept()
        stack.callback(sock.close)
        sock.settimeout(_CONNECT_S)
        hello = sock.recv(_HELLO.size + 1)
        _, uid, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        if uid != os.geteuid() or len(hello) != _HELLO.size or _HELLO.unpack(hello) in found:
            raise ConnectionError("not a rank has connected")
        found[_HELLO.unpack(hello)] = sock
    return [(found[rank, 0], found[rank, 1]) for rank in range(n_ranks)]


class Workers:
    """The ranges of all ranks of one engine."""

    def __init__(self, executor: Any, plan: Plan) -> None:
        self._plan = plan
        self._executor = weakref.ref(executor)
        self._n_ranks = executor.vllm_config.parallel_config.world_size
        self._ranks: Optional[Ranks] = None
        self._steps: Optional[Steps] = None

    def _run(self, function: Callable[..., Any], *arguments: Any) -> List[Any]:
        """In each worker, by rank."""
        executor = self._executor()
        assert executor is not None
        answers: List[Any] = executor.collective_rpc(function, args=arguments)
        return answers

    def open(self, configs: List[Any]) -> bool:
        answers = self._run(open_range, configs)
        for rank, (why, shape) in enumerate(answers):
            if why or shape != _shape(self._plan):
                logger.warning("glake: KV memory is plain: rank %d: %s", rank, why or "its blocks lie otherwise than those of rank 0")
                self._run(close_range)
                return False
        return True

    def attend(self) -> bool:
        """All have allocated. False: their caches are plain ones."""
        try:
            why = next((f"rank {rank}: {why}" for rank, why in enumerate(self._run(why_plain)) if why), "")
            why = why or self._connect()
        except (Gone, OSError, KeyError) as error:
            why = str(error)
        if why:
            logger.warning("glake: KV memory is plain: %s", why)
            self._run(make_plain)
        return not why

    def _connect(self) -> str:
        folder, listener = _listen(2 * self._n_ranks)
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            stack.callback(listener.close)
            for rank, why in enumerate(self._run(attend_range, os.path.join(folder, "ranks"))):
                if why:
                    return f"rank {rank}: {why}"
            with contextlib.ExitStack() as undo:
                layout = self._plan.layout
                self._ranks = Ranks(_accept(listener, self._n_ranks, undo), layout.chunk_bytes, self._plan.n_lanes, layout.n_steps)
                undo.pop_all()
        return ""

    def _set_mark(self, number: int) -> None:
        executor = self._executor()
        try:
            if executor is not None:
                executor.collective_rpc(set_mark, args=(number,), non_block=True, unique_reply_rank=0)
        except RuntimeError as error:  # the engine ends
            logger.debug("glake: no mark is set: %s", error)

    def adopt(self, scheduler: Any) -> None:
        assert self._ranks is not None
        self._steps = Steps(self._ranks)
        kv.adopt(scheduler, self._plan, self._steps, self._ranks.marker(self._set_mark), f", in each of {self._n_ranks} ranks")

    def close_dead(self) -> bool:
        """Whether its engine had gone."""
        if self._executor() is not None or (self._steps is not None and not self._steps.close(10.0)):
            return False
        if self._ranks is not None:
            self._ranks.close()
        return True
