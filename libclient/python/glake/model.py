# SPDX-License-Identifier: Apache-2.0
"""Models: safetensors files, one physical copy for all processes of a realm."""
from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Mapping
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Union

from . import _lib
from .session import DeviceLike, Session, default_session, parse_ordinal
from .tensor import Tensor, delete_managed

Path = Union[str, "os.PathLike[str]"]
Progress = Callable[[int, int], None]


def _close(session: Session, handle: ctypes.c_void_p) -> None:
    # A closed session has taken its models along.
    if session._handle:
        _lib.library().glake_model_close(handle)


class Model(Mapping):
    """A model in GPU memory, mapped read-only: a mapping from names to Tensors.

    ``path`` is a .safetensors file, a folder with an index or a model.safetensors, or a list of
    shards. ``device`` is CUDA's number in this process, or "cuda:N". ``progress(done, total)`` is
    called with bytes while it is loaded.
    """

    def __init__(self, path: Union[Path, Sequence[Path]], device: DeviceLike = 0, *,
                 session: Optional[Session] = None, name: Optional[str] = None,
                 pin: bool = False, progress: Optional[Progress] = None) -> None:
        self._session = session if session is not None else default_session()
        #: CUDA's number of the device in this process
        self.ordinal = parse_ordinal(device)
        self._device = self._session.device_index(self.ordinal)
        failures: List[BaseException] = []
        self._own(self._open(path, self._options(name, pin, progress, failures)))
        if failures:
            self.close()
            raise failures[0]
        self._read_tables()

    @classmethod
    def attach(cls, key: str, device: DeviceLike = 0, *, wait: float = 0, pin: bool = False,
               session: Optional[Session] = None) -> "Model":
        """The model that a process of the realm has published under ``key``. ``wait``: seconds
        for it to be published; NotFoundError then."""
        self = cls.__new__(cls)
        self._session = session if session is not None else default_session()
        self.ordinal = parse_ordinal(device)
        self._device = self._session.device_index(self.ordinal)
        options = _lib.AttachOptions(ctypes.sizeof(_lib.AttachOptions), self._device,
                                     _lib.unsigned(int(wait * 1000), "wait in ms", 32),
                                     int(pin))
        handle = ctypes.c_void_p()
        _lib.check(_lib.library().glake_weights_attach(self._session.handle, key.encode(),
                                                       ctypes.byref(options),
                                                       ctypes.byref(handle)))
        self._own(handle)
        self._read_tables()
        return self

    def _own(self, handle: ctypes.c_void_p) -> None:
        self._handle: Optional[ctypes.c_void_p] = handle
        self._finalizer = weakref.finalize(self, _close, self._session, handle)
        # The process's end is the daemon's to see; other threads may still use the weights.
        self._finalizer.atexit = False

    def _options(self, name: Optional[str], pin: bool, progress: Optional[Progress],
                 failures: List[BaseException]) -> _lib.ModelOptions:
        options = _lib.ModelOptions(ctypes.sizeof(_lib.ModelOptions), self._device)
        options.name = name.encode() if name else None
        options.pin = 1 if pin else 0

        def report(_user: Any, done_bytes: int, total_bytes: int) -> None:
            # An exception cannot cross the library: it is raised when the call is over.
            try:
                if not failures and progress is not None:
                    progress(done_bytes, total_bytes)
            except BaseException as error:  # noqa: B036
                failures.append(error)

        if progress is not None:
            options.progress = _lib.PROGRESS(report)
        return options

    def _open(self, path: Union[Path, Sequence[Path]],
              options: _lib.ModelOptions) -> ctypes.c_void_p:
        lib = _lib.library()
        handle = ctypes.c_void_p()
        if isinstance(path, (str, bytes, os.PathLike)):
            result = lib.glake_model_open(self._session.handle, os.fsencode(path),
                                          ctypes.byref(options), ctypes.byref(handle))
        else:
            paths = [os.fsencode(shard) for shard in path]
            array = (ctypes.c_char_p * len(paths))(*paths)
            result = lib.glake_model_open_shards(self._session.handle, array, len(paths),
                                                 ctypes.byref(options), ctypes.byref(handle))
        _lib.check(result)
        return handle

    def _read_tables(self) -> None:
        lib = _lib.library()
        info = _lib.ModelInfo(ctypes.sizeof(_lib.ModelInfo))
        _lib.check(lib.glake_model_info(self.handle, ctypes.byref(info)))
        #: the store's name for it
        self.name = _lib.text(info.name)
        self.content_bytes: int = info.content_bytes
        self.mapped_bytes: int = info.mapped_bytes
        self.deduplicated_bytes: int = info.deduplicated_bytes
        #: it was in the store already
        self.was_loaded = bool(info.was_loaded)
        self.load_ns: int = info.load_ns
        self.map_ns: int = info.map_ns
        self._positions: Dict[str, int] = {}
        tensor = _lib.TensorInfo()
        for position in range(info.n_tensors):
            tensor.size = ctypes.sizeof(_lib.TensorInfo)
            _lib.check(lib.glake_model_tensor_at(self.handle, position, ctypes.byref(tensor)))
            self._positions[_lib.text(tensor.name)] = position

    # ---- a mapping ----

    def tensor(self, name: str) -> Tensor:
        """KeyError if there is none."""
        position = self._positions[name]
        info = _lib.TensorInfo(ctypes.sizeof(_lib.TensorInfo))
        _lib.check(_lib.library().glake_model_tensor_at(self.handle, position,
                                                        ctypes.byref(info)))
        return Tensor(self, position, info)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._positions)

    def __len__(self) -> int:
        return len(self._positions)

    def __contains__(self, name: object) -> bool:
        return name in self._positions

    def __repr__(self) -> str:
        state = f"{len(self)} tensors" if self._handle else "closed"
        return f"<glake.Model {self.name}: {state}>"

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    # ---- lifetime ----

    @property
    def handle(self) -> ctypes.c_void_p:
        """For calls of the C library."""
        if self._handle is None or not self._session._handle:
            raise ValueError("the model is closed")
        return self._handle

    def close(self) -> None:
        """Unmap, or, while tensors without a copy live, let the last of them do it. Kernels that
        use raw addresses (Tensor.ptr) have to be done."""
        self._handle = None
        self._finalizer()

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ---- for Tensor ----

    def export(self, position: int) -> int:
        """The address of a DLManagedTensor that holds the mapping."""
        managed = ctypes.c_void_p()
        _lib.check(_lib.library().glake_model_dlpack(self.handle, position,
                                                     ctypes.byref(managed)))
        assert managed.value is not None
        return managed.value

    def mark_exported(self) -> None:
        """The caller gets addresses: unmapping must wait for the device."""
        if self._positions:
            delete_managed(self.export(0))

    def read_into(self, buffer: Any, address: int) -> None:
        """Fill a writable buffer from device memory."""
        n_bytes = memoryview(buffer).nbytes
        if n_bytes:
            self.handle
            memory = (ctypes.c_char * n_bytes).from_buffer(buffer)
            _lib.check(_lib.library().glake_read(self._session.handle, self._device, memory,
                                                 address, n_bytes))
