# SPDX-License-Identifier: Apache-2.0
"""Looking and steering: glake_admin.h. One's own realm, or everything for an admin.

Without a session these open one of their own for the call, which does not touch the driver.
"""
from __future__ import annotations

import ctypes
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from . import _lib
from .session import Session

Row = Dict[str, Any]


@contextmanager
def _session(session: Optional[Session]) -> Iterator[Session]:
    if session is not None:
        yield session
    else:
        with Session(cuda=False, only_looks=True) as own:
            yield own


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return _lib.text(value)
    if isinstance(value, ctypes.Array):
        return bytes(value).hex()
    return value


def _row(struct: ctypes.Structure, flags: Tuple[str, ...] = ()) -> Row:
    """A struct as a dict: texts decoded, None for none, the lists put in as lists."""
    row: Row = {}
    for field in struct._fields_:
        name = field[0]
        value = getattr(struct, name)
        if name in flags:
            row[name] = bool(value)
        elif isinstance(value, ctypes.POINTER(ctypes.c_char_p)):
            row[name] = [_plain(value[i]) for i in range(getattr(struct, "n_" + name))]
        elif isinstance(value, ctypes._Pointer):
            row[name] = [_row(value[i], ("rdma",)) for i in range(getattr(struct, "n_" + name))]
        elif name not in ("n_devices", "n_unsealed", "n_pools", "n_hosts", "n_stays") or not hasattr(struct, name[2:]):
            row[name] = "" if value is None else _plain(value)
    return row


def _collect(function: str, callback: Any, session: Optional[Session],
             flags: Tuple[str, ...] = (), before: Tuple[Any, ...] = (), after: Tuple[Any, ...] = ()) -> List[Row]:
    """``before`` and ``after`` are the function's other arguments, around the callback and its user."""
    rows: List[Row] = []
    failures: List[BaseException] = []

    def take(_user: Any, struct: Any) -> int:
        # An exception cannot cross the library.
        try:
            rows.append(_row(struct.contents, flags))
            return 0
        except BaseException as error:  # noqa: B036
            failures.append(error)
            return 1

    with _session(session) as open_session:
        _lib.check(getattr(_lib.library(), function)(open_session.handle, *before, callback(take), None, *after))
    if failures:
        raise failures[0]
    return rows


def status(session: Optional[Session] = None) -> Row:
    """The daemon and its devices."""
    return _collect("glake_get_status", _lib.STATUS_ROW, session,
                    ("draining", "sleeps_idle", "sleeps_on_pressure", "waits", "drained"))[0]


def stats(session: Optional[Session] = None) -> Dict[str, int]:
    """The daemon's counters and gauges, by name."""
    values: Dict[str, int] = {}

    def take(_user: Any, name: bytes, value: int, _help: bytes) -> int:
        values[_lib.text(name)] = value
        return 0

    with _session(session) as open_session:
        _lib.check(_lib.library().glake_get_stats(open_session.handle, _lib.METRIC_ROW(take),
                                                  None))
    return values


def sessions(session: Optional[Session] = None) -> List[Row]:
    """The sessions: who they are, and what they have. Keys are the members of struct glake_session_row."""
    return _collect("glake_list_sessions", _lib.SESSION_ROW, session, ("detached",))


def tenants(session: Optional[Session] = None) -> List[Row]:
    """The tenants: limits, use and peak on each device. Keys are the members of struct glake_tenant_row."""
    return _collect("glake_list_tenants", _lib.TENANT_ROW, session)


def models(session: Optional[Session] = None) -> List[Row]:
    """The models in the store, open or not. Keys are the members of struct glake_model_row."""
    return _collect("glake_list_models", _lib.MODEL_ROW, session, ("pinned", "is_published"))


def blocks(session: Optional[Session] = None) -> List[Row]:
    """The blocks that models consist of. Keys are the members of struct glake_block_row."""
    return _collect("glake_list_blocks", _lib.BLOCK_ROW, session)


def events(session: Optional[Session] = None) -> List[Row]:
    """What an operator must know, oldest first."""
    return _collect("glake_list_events", _lib.EVENT_ROW, session)


def candidates(number: int, session: Optional[Session] = None) -> List[Row]:
    """What a program that seals without being asked has to seal: its allocations that copies from the host have filled.

    ``number`` is ``row["session"]`` of sessions(). The largest first, 256 at most. The program is asked, and answers within ten
    seconds. Keys are the members of struct glake_candidate_row.
    """
    _lib.unsigned(number, "number")
    return _collect("glake_list_candidates", _lib.CANDIDATE_ROW, session, before=(number,), after=(None,))


def mistakes(session: Optional[Session] = None) -> List[Row]:
    """Programs that lost their context while they were sealed without being asked, and are not sealed so again.

    Those of the own user, or of all as admin. Keys are the members of struct glake_mistake_row.
    """
    return _collect("glake_list_mistakes", _lib.MISTAKE_ROW, session)


def forgive(number: int = 0, session: Optional[Session] = None) -> None:
    """Processes of a program that begin from now on may be sealed without being asked again.

    ``number`` is ``row["id"]`` of mistakes(); 0: all of them.
    """
    _lib.unsigned(number, "number")
    _act(lambda s: _lib.library().glake_forgive(s.handle, number), session)


def _act(call: Callable[[Session], int], session: Optional[Session]) -> None:
    with _session(session) as open_session:
        _lib.check(call(open_session))


def pin(model: str, session: Optional[Session] = None) -> None:
    """Never evict ``model`` until it is unpinned.

    It is a name of models(), or, since several may have that, an id in digits: ``str(row["id"])``.
    """
    _act(lambda s: _lib.library().glake_pin(s.handle, model.encode(), 1), session)


def unpin(model: str, session: Optional[Session] = None) -> None:
    """``model``, as for pin(), may be evicted again when memory is wanted."""
    _act(lambda s: _lib.library().glake_pin(s.handle, model.encode(), 0), session)


def evict(model: Optional[str] = None, session: Optional[Session] = None) -> Tuple[int, int]:
    """Evict one model (as for pin()), or everything unused. Returns (models, bytes)."""
    n_models = ctypes.c_uint64()
    n_bytes = ctypes.c_uint64()
    name = model.encode() if model is not None else None
    _act(lambda s: _lib.library().glake_evict(s.handle, name, ctypes.byref(n_models),
                                              ctypes.byref(n_bytes)), session)
    return n_models.value, n_bytes.value


def seal_session(number: int, dry_run: bool = False, session: Optional[Session] = None) -> Row:
    """Ask the program of a session, ``row["session"]`` of sessions(), to seal what looks like weights.

    It must be under ``glake run``. Nobody sees what kernels write: see docs/dedup.md. Returns what is sealed,
    and what stays private, by reason, in bytes. ``dry_run`` only tells how much it would be.
    """
    options = _lib.SealOptions(size=ctypes.sizeof(_lib.SealOptions), dry_run=dry_run)
    report = _lib.SealReport(size=ctypes.sizeof(_lib.SealReport))
    _act(lambda s: _lib.library().glake_seal_session(s.handle, number, ctypes.byref(options),
                                                     ctypes.byref(report)), session)
    row = _row(report)
    del row["size"]
    return row


def sleep_session(number: int, wakes: bool = False, session: Optional[Session] = None) -> Row:
    """Ask the program of a session, ``row["session"]`` of sessions(), to sleep: its GPU memory goes to host
    memory, until it submits work again. ``wakes`` asks it to wake instead.

    It must be under ``glake run``, or the session made with ``sleep_when_asked``. Blocks until it has. Returns what has left the GPU or came back, in bytes,
    and as ``stays`` what is still there, by reason.
    """
    options = _lib.SleepOptions(size=ctypes.sizeof(_lib.SleepOptions), wakes=wakes)
    rows: List[Row] = []

    def take(_user: Any, report: Any) -> int:
        rows.append(_row(report.contents, ("is_asleep",)))
        return 0

    _act(lambda s: _lib.library().glake_sleep_session(s.handle, number, ctypes.byref(options),
                                                      _lib.SLEEP_ROW(take), None), session)
    return rows[0]


def sleepers(session: Optional[Session] = None) -> List[Row]:
    """The sessions that sleep. Keys are the members of struct glake_sleeper_row."""
    return _collect("glake_list_sleepers", _lib.SLEEPER_ROW, session)


def drain(reason: Optional[str] = None, session: Optional[Session] = None) -> None:
    """Admin. No new program is let in, also by later daemons of this boot, until ``undrain()``; those that run go on."""
    _act(lambda s: _lib.library().glake_drain(s.handle, reason.encode() if reason else None), session)


def undrain(session: Optional[Session] = None) -> None:
    """Admin. New programs are let in again."""
    _act(lambda s: _lib.library().glake_undrain(s.handle), session)


def set_quota(tenant: str, device: int, quota_bytes: int, session: Optional[Session] = None, *,
              force: bool = False) -> None:
    """Admin. ``device`` is glaked's number; 0 bytes = no limit. ``force``: also if a program that sleeps needs more,
    which then sleeps until the limit is raised."""
    _lib.unsigned(device, "device", 32)
    _lib.unsigned(quota_bytes, "quota_bytes")
    library = _lib.library()
    call = library.glake_force_quota if force else library.glake_set_quota
    _act(lambda s: call(s.handle, tenant.encode(), device, quota_bytes), session)


def set_host_quota(tenant: str, node: int, quota_bytes: int,
                   session: Optional[Session] = None) -> None:
    """Admin. ``node`` is a NUMA node of the host, as in ``status()["hosts"]``; 0 bytes = no limit."""
    _lib.unsigned(node, "node", 32)
    _lib.unsigned(quota_bytes, "quota_bytes")
    _act(lambda s: _lib.library().glake_set_host_quota(s.handle, tenant.encode(), node,
                                                       quota_bytes), session)


def set_max_sessions(tenant: str, max_sessions: int, session: Optional[Session] = None) -> None:
    """Admin: how many sessions the tenant may have. 0 = no limit."""
    _lib.unsigned(max_sessions, "max_sessions", 32)
    _act(lambda s: _lib.library().glake_set_max_sessions(s.handle, tenant.encode(),
                                                         max_sessions), session)


def set_manifest_quota(tenant: str, quota_bytes: int, session: Optional[Session] = None) -> None:
    """Admin. glaked's memory for the manifests of models in use or pinned; 0 bytes = no limit."""
    _lib.unsigned(quota_bytes, "quota_bytes")
    _act(lambda s: _lib.library().glake_set_manifest_quota(s.handle, tenant.encode(),
                                                           quota_bytes), session)
