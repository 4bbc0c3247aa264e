# SPDX-License-Identifier: Apache-2.0
"""Sealing the tensors of a torch module: where they lie, and how they move.

Blocks are equal where whole pages of 2 MiB are equal, so a tensor's place within its page decides.
PyTorch's allocator puts it where there is room. A move gives each tensor a place that follows from
the module alone, in a home: one allocation of glake_alloc(), zero where no tensor lies.
"""
from __future__ import annotations

import ctypes
import errno
import sys
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Deque, Dict, Iterable, Iterator, List, Optional, Tuple

import torch
import torch.utils.dlpack

from ._torch_devices import check_number
from ._torch_tensors import mapped_storages
from .errors import OutOfMemoryError, QuotaError
from .sealing import PAGE_BYTES, Sealed
from .sealing import seal as seal_spans
from .sealing import unseal_spans
from .session import Session, default_session
from .tensor import DELETER, KDL_CUDA, DLManagedTensor, keep_forever, new_capsule

#: Tensors in one home lie as far apart as PyTorch would put them.
_ALIGN_BYTES = 512
#: The largest block: a home of several tensors is one.
_PACK_BYTES = 128 << 20
#: A tensor has a home of its own if that wastes no more than this part of it.
_WASTE = 8
#: Homes that are made and filled together.
_WAVE_BYTES = 1 << 30

_KDL_UINT = 1

#: Storages of torch's own memory, sealed in place. Its allocator would hand the memory of dead ones
#: to the next tensor, and a kernel that writes there faults.
_kept: Dict[int, torch.UntypedStorage] = {}


# ---- homes ----

@dataclass
class _Home:
    session: Session
    ordinal: int
    ptr: int
    n_bytes: int
    # DLPack borrows both.
    shape: Any
    managed: DLManagedTensor


#: by address; each as long as a tensor is in it
_homes: Dict[int, _Home] = {}
#: No tensor is in them, and they are not freed yet.
_dead: List[_Home] = []


def _free_dead() -> None:
    later: List[_Home] = []
    try:
        while _dead:
            home = _dead.pop()
            # A closed session has taken its memory along.
            if not home.session._handle:
                continue
            if home.session.is_asleep():
                # free() would wait for the wake: glake.torch.wake() comes here again.
                later.append(home)
                continue
            try:
                torch.cuda.synchronize(home.ordinal)
            except Exception:  # noqa: B902
                # A stream is being captured, or the context is lost: the next call tries again.
                later.append(home)
                return
            home.session.free(home.ptr)
    finally:
        _dead.extend(later)


@DELETER
def _drop(managed: int, is_finalizing: Any = sys.is_finalizing) -> None:
    """The last tensor in a home is gone."""
    if not is_finalizing():
        _dead.append(_homes.pop(DLManagedTensor.from_address(managed).data))
        _free_dead()


keep_forever(_drop)


def _new_home(session: Session, ordinal: int, ptr: int, n_bytes: int) -> torch.UntypedStorage:
    """Memory at ``ptr``, zeroed, is a home from now on."""
    shape = (ctypes.c_int64 * 1)(n_bytes)
    managed = DLManagedTensor(data=ptr, device_type=KDL_CUDA, device_id=ordinal, n_dims=1,
                              type_code=_KDL_UINT, type_bits=8, type_lanes=1, shape=shape,
                              deleter=_drop)
    _homes[ptr] = _Home(session, ordinal, ptr, n_bytes, shape, managed)
    capsule = new_capsule(ctypes.addressof(managed))
    return torch.utils.dlpack.from_dlpack(capsule).untyped_storage()


# ---- units ----

@dataclass
class _Unit:
    """Tensors of one storage that overlap, and move together: most often one, or tied ones."""

    name: str  # the first of its tensors
    storage: torch.UntypedStorage
    begin: int  # of their bytes in the storage
    end: int
    shift: int  # the tensors' alignment in the unit is that in the storage
    tensors: List[Tuple[str, torch.Tensor]]

    @property
    def ptr(self) -> int:
        return self.storage.data_ptr() + self.begin

    @property
    def n_bytes(self) -> int:
        return self.end - self.begin

    @property
    def ordinal(self) -> int:
        return self.storage.device.index


def plain(name: str, tensor: torch.Tensor) -> Iterator[Tuple[str, torch.Tensor]]:
    """A tensor, or the tensors that a wrapper (a DTensor, a quantized one) consists of."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield name, tensor
        return
    for part in tensor.__tensor_flatten__()[0]:
        yield from plain(f"{name}.{part}", getattr(tensor, part))


def tensors_of(module: torch.nn.Module) -> Iterator[Tuple[str, torch.Tensor]]:
    """All names, tied tensors under each of theirs."""
    for name, tensor in (*module.named_parameters(remove_duplicate=False),
                         *module.named_buffers(remove_duplicate=False)):
        yield from plain(name, tensor)


def why_not(tensor: torch.Tensor) -> Optional[str]:
    if tensor.layout != torch.strided:
        return "it is not dense"
    if tensor.is_conj() or tensor.is_neg():
        return "it is a conjugate or negative view"
    return None


def _bytes_of(tensor: torch.Tensor) -> Tuple[int, int]:
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride()))
    begin = tensor.storage_offset() * tensor.element_size()
    return begin, begin + (last + 1) * tensor.element_size()


def _units_of(module: torch.nn.Module, private: Dict[str, str]) -> List[_Unit]:
    """In the order of names. What cannot be sealed is noted in ``private``."""
    by_storage: Dict[int, List[Tuple[int, int, str, torch.Tensor]]] = {}
    seen = set()
    for name, tensor in sorted(tensors_of(module), key=lambda named: named[0]):
        if not tensor.is_cuda or id(tensor) in seen:
            continue
        seen.add(id(tensor))
        why = why_not(tensor)
        if why:
            private[name] = why
        elif tensor.numel() > 0 and tensor.untyped_storage().data_ptr() and \
                tensor.untyped_storage() not in mapped_storages:
            by_storage.setdefault(tensor.untyped_storage().data_ptr(), []).append(
                (*_bytes_of(tensor), name, tensor))
    units = []
    for rows in by_storage.values():
        units.extend(_overlapping(rows))
    return sorted(units, key=lambda unit: unit.name)


def _overlapping(rows: List[Tuple[int, int, str, torch.Tensor]]) -> Iterator[_Unit]:
    """Tensors of one storage as units."""
    unit: Optional[_Unit] = None
    for begin, end, name, tensor in sorted(rows, key=lambda row: row[:3]):
        if unit is None or begin >= unit.end:
            if unit is not None:
                yield unit
            unit = _Unit(name, tensor.untyped_storage(), begin, end, 0, [])
        unit.name = min(unit.name, name)
        unit.end = max(unit.end, end)
        unit.shift = max(unit.shift, unit.begin % tensor.element_size())
        unit.tensors.append((name, tensor))
    if unit is not None:
        yield unit


# ---- moving ----

#: The units of a home, with their places in it.
_Layout = List[Tuple[_Unit, int]]


def _round_up(n_bytes: int, to: int) -> int:
    return -(-n_bytes // to) * to


def _is_alone(unit: _Unit) -> bool:
    """It has a home of its own: equal tensors of different modules can be shared then."""
    n_bytes = unit.shift + unit.n_bytes
    return (_round_up(n_bytes, PAGE_BYTES) - n_bytes) * _WASTE <= n_bytes


def _plan(units: List[_Unit]) -> Iterator[_Layout]:
    """The homes of one device: the units of each, with their places. It follows from names and
    sizes alone."""
    pack: _Layout = []
    n_used = 0
    for unit in units:
        if _is_alone(unit):
            yield [(unit, unit.shift)]
            continue
        place = _round_up(n_used, _ALIGN_BYTES) + unit.shift
        if pack and place + unit.n_bytes > _PACK_BYTES:
            yield pack
            pack, place = [], unit.shift
        pack.append((unit, place))
        n_used = place + unit.n_bytes
    if pack:
        yield pack


def _raw(storage: torch.UntypedStorage, begin: int, n_bytes: int) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, begin,
                                                                         (n_bytes,), (1,))


def _home_bytes(layout: _Layout) -> int:
    last, place = layout[-1]
    return place + last.n_bytes


def _waves(layouts: Iterable[_Layout]) -> Iterator[List[_Layout]]:
    """Homes, as many at a time as are made and filled together."""
    wave: List[_Layout] = []
    n_bytes = 0
    for layout in layouts:
        if wave and n_bytes + _home_bytes(layout) > _WAVE_BYTES:
            yield wave
            wave, n_bytes = [], 0
        wave.append(layout)
        n_bytes += _home_bytes(layout)
    if wave:
        yield wave


#: A home, and what is to be in it.
_Filled = Tuple[torch.UntypedStorage, _Layout]


class _Moving:
    """Moves units of one device to sealed homes, a wave at a time. Of four waves the first is sealed,
    the second copied, the third made, and the memory that was the fourth's goes back to the driver:
    each waits for somebody else, and so each has a thread. The program knows no home before it is
    sealed, and so nothing of its work is waited for or held back."""

    def __init__(self, session: Session, ordinal: int) -> None:
        self._session = session
        self._ordinal = ordinal
        self._sealer = ThreadPoolExecutor(max_workers=1)
        self._emptier = ThreadPoolExecutor(max_workers=1)
        #: not sealed yet, perhaps; the tensors are still where they were
        self._copied: Deque[Tuple[List[_Filled], "Future[Sealed]"]] = deque()
        self._sealed = Sealed()

    def move(self, waves: List[List[_Layout]]) -> Sealed:
        _free_dead()
        ahead: Optional["Future[List[int]]"] = None
        with ThreadPoolExecutor(max_workers=1) as maker, self._sealer, self._emptier:
            try:
                for wave, following in zip(waves, [*waves[1:], None]):
                    ptrs = self._made(ahead or maker.submit(self._make, wave))
                    ahead = maker.submit(self._make, following) if ptrs and following else None
                    if ptrs:
                        self._copy(wave, ptrs)
                    else:
                        self._move_sparingly(wave)
                self._settle(0)
            finally:
                if ahead:
                    self._give_back(ahead)
        return self._sealed

    def _make(self, wave: List[_Layout]) -> List[int]:
        """Zeroed and fresh: what lies between and behind tensors is equal in all processes."""
        return self._session.alloc_many([_home_bytes(layout) for layout in wave], self._ordinal,
                                        zero=True)

    @staticmethod
    def _made(homes: "Future[List[int]]") -> List[int]:
        """None of them: there is no memory for all."""
        try:
            return homes.result()
        except (OutOfMemoryError, QuotaError):
            return []

    def _give_back(self, homes: "Future[List[int]]") -> None:
        if not homes.exception():
            for ptr in homes.result():
                self._session.free(ptr)

    def _copy(self, wave: List[_Layout], ptrs: List[int]) -> None:
        storages = [_new_home(self._session, self._ordinal, ptr, _home_bytes(layout))
                    for ptr, layout in zip(ptrs, wave)]
        for storage, layout in zip(storages, wave):
            for unit, place in layout:
                _raw(storage, place, unit.n_bytes).copy_(
                    _raw(unit.storage, unit.begin, unit.n_bytes))
        copied = torch.cuda.current_stream(self._ordinal).record_event()
        spans = [(ptr, _home_bytes(layout)) for ptr, layout in zip(ptrs, wave)]
        self._copied.append((list(zip(storages, wave)),
                             self._sealer.submit(self._seal, copied, spans)))
        self._settle(1)

    def _seal(self, copied: torch.cuda.Event, spans: List[Tuple[int, int]]) -> Sealed:
        # In a new thread device 0 is the current one, and may have no context yet.
        with torch.cuda.device(self._ordinal):
            copied.synchronize()
        return seal_spans(spans, idle=True)

    def _move_sparingly(self, wave: List[_Layout]) -> None:
        """torch still has what was moved before."""
        for layout in wave:
            try:
                ptrs = self._make([layout])
            except (OutOfMemoryError, QuotaError):
                self._settle(0)
                torch.cuda.empty_cache()
                ptrs = self._make([layout])
            self._copy([layout], ptrs)

    def _settle(self, n_left: int) -> None:
        """Let the tensors be where they were copied to, but for the last waves."""
        while len(self._copied) > n_left:
            filled, sealed = self._copied.popleft()
            self._sealed += sealed.result()
            for storage, layout in filled:
                for unit, place in layout:
                    _let_be(unit, storage, place)
            self._emptier.submit(self._empty_cache)

    def _empty_cache(self) -> None:
        with torch.cuda.device(self._ordinal):
            torch.cuda.empty_cache()


def _let_be(unit: _Unit, storage: torch.UntypedStorage, place: int) -> None:
    for _, tensor in unit.tensors:
        offset = place + _bytes_of(tensor)[0] - unit.begin
        tensor.data = torch.empty(0, dtype=tensor.dtype, device=storage.device).set_(
            storage, offset // tensor.element_size(), tensor.shape, tensor.stride())
    unit.storage = storage
    unit.begin, unit.end = place, place + unit.n_bytes


def _move_all(units: List[_Unit]) -> Sealed:
    session = default_session()
    sealed = Sealed()
    for ordinal in sorted({unit.ordinal for unit in units}):
        check_number(session, ordinal)
        layouts = _plan([unit for unit in units if unit.ordinal == ordinal])
        sealed += _Moving(session, ordinal).move(list(_waves(layouts)))
    return sealed


# ---- sealing in place ----

def _seal_one(unit: _Unit) -> Optional[Sealed]:
    """None: it is not an allocation of glake."""
    start = unit.storage.data_ptr()
    was_kept = start in _kept
    _kept[start] = unit.storage
    try:
        return seal_spans([(unit.ptr, unit.n_bytes)])
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        if not was_kept:
            del _kept[start]
        return None


def _note(private: Dict[str, str], unit: _Unit, why: str) -> None:
    private.update((name, why) for name, _ in unit.tensors)


def _note_edges(units: List[_Unit], private: Dict[str, str]) -> None:
    """Units that touch fill pages together; what has no page even so stays private."""
    regions: List[List[_Unit]] = []
    end = 0
    for unit in sorted(units, key=lambda unit: unit.ptr):
        if not regions or unit.ptr >= end + _ALIGN_BYTES:
            regions.append([])
        regions[-1].append(unit)
        end = unit.ptr + unit.n_bytes
    for region in regions:
        first = _round_up(region[0].ptr, PAGE_BYTES)
        last = (region[-1].ptr + region[-1].n_bytes) // PAGE_BYTES * PAGE_BYTES
        for unit in region:
            if max(first, unit.ptr) >= min(last, unit.ptr + unit.n_bytes):
                _note(private, unit, "its pages of 2 MiB hold other memory, too")


def _seal_in_place(units: List[_Unit], private: Dict[str, str]) -> Sealed:
    """Of torch's own memory. One call is not enough: one stranger fails all."""
    shared_bytes = 0
    ours = []
    for unit in units:
        sealed = _seal_one(unit)
        if sealed is None:
            _note(private, unit, "it is not an allocation of glake")
            continue
        ours.append(unit)
        shared_bytes += sealed.shared_bytes
        if sealed.pinned_why:
            _note(private, unit, sealed.pinned_why)
    # What only neighbours fill.
    together = seal_spans((unit.ptr, unit.n_bytes) for unit in ours)
    together.shared_bytes += shared_bytes
    _note_edges([unit for unit in ours if unit.name not in private], private)
    return together


# ---- modules ----

def _wait(units: List[_Unit]) -> None:
    for ordinal in {unit.ordinal for unit in units}:
        torch.cuda.synchronize(ordinal)


def seal(module: torch.nn.Module, *, move: bool = True) -> Sealed:
    """Share the parameters and buffers of ``module`` on GPUs with every process of the realm that
    seals equal bytes, however they came there.

    With ``move`` (the default) all tensors move to *homes*, memory of ``glake.default_session()``:
    their places there follow from their names and sizes alone, so that two processes with the same
    module have equal pages whatever loaded it. Large tensors get a home each, starting on 2 MiB, the
    others are packed one behind the other. Parameters stay the same objects: ``param.data`` is
    replaced, with its strides; tied and overlapping ones stay so. The old memory goes back to torch,
    and from there to the driver. A home belongs to its tensors: with the last of them, views
    included, it waits for the device and is freed. It works without ``glake run``. torch's statistics
    do not count homes. torch's own memory is never sealed like this, because torch's allocator would
    give the memory of a dead tensor, read-only as it is, to the next one.

    ``move=False`` seals tensors where they are. It is for modules whose addresses are in captured
    CUDA graphs or in other hands. It needs ``glake run``, and only pages of 2 MiB that hold nothing
    else and that lie alike in other processes can be shared. What is sealed like this is never freed
    before ``unseal()``, dead or not, for the reason above.

    The tensors are **read-only** afterwards, buffers included. Modules in training, or whose
    parameters require gradients, can be sealed, but a kernel that writes to them faults, and the
    process loses its CUDA context: an optimizer's, that of ``copy_()`` or ``load_state_dict()``, of a
    batch norm's running mean, of a cache that is a buffer. ``unseal()`` first.

    Call it when no other thread uses the module, and no stream is being captured; it waits for the
    devices. Tensors of ``load_file()`` are shared already: they stay, and are not counted. Returns
    the sums, and in ``private`` the tensors that could not be shared and why. Exceptions are those
    of ``glake.seal()`` and ``Session.alloc()``; behind one the module works as before, some of its
    tensors moved or sealed.
    """
    seal_spans([])  # GLAKE_DEDUP=off says so before anything moves
    private: Dict[str, str] = {}
    units = _units_of(module, private)
    _wait(units)
    moved = Sealed()
    old = {unit.storage.data_ptr() for unit in units} & _homes.keys()
    if move:
        if any(unit.storage.data_ptr() in _kept for unit in units):
            unseal(module)
        moved = _move_all([unit for unit in units if unit.storage.data_ptr() not in old])
    sealed = seal_spans((ptr, _homes[ptr].n_bytes) for ptr in sorted(old))
    sealed += moved
    in_homes = {unit.storage.data_ptr() for unit in units} & _homes.keys()
    others = [unit for unit in units if unit.storage.data_ptr() not in in_homes]
    if others:
        sealed += _seal_in_place(others, private)
    sealed.private = private
    return sealed


def _unseal_units(units: List[_Unit]) -> None:
    try:
        unseal_spans((unit.ptr, unit.n_bytes) for unit in units)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        if len(units) > 1:
            # Some is not memory of glake, which was never sealed.
            for unit in units:
                _unseal_units([unit])


def unseal(module: torch.nn.Module) -> None:
    """Make the parameters and buffers of ``module`` private and writable again, where they are.
    Tensors of ``load_file()`` stay read-only. Waits for the devices."""
    units = _units_of(module, {})
    _wait(units)
    _unseal_units(units)
    for unit in units:
        _kept.pop(unit.storage.data_ptr(), None)
