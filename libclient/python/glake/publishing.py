# SPDX-License-Identifier: Apache-2.0
"""Published weights: models that programs leave in the store, under a key."""
from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Mapping, Optional, Tuple

from . import _lib
from .session import DeviceLike, Session, default_session, parse_ordinal


@dataclass(frozen=True)
class Weight:
    """A tensor in GPU memory that is to be published."""

    ptr: int
    #: safetensors' name of the element type, "BF16"
    dtype: str
    shape: Tuple[int, ...]
    #: in elements; None: row-major, without gaps
    strides: Optional[Tuple[int, ...]] = None


@dataclass
class Published:
    """Where the model's bytes are."""

    #: in the weights' own memory, read-only now
    in_place_bytes: int
    #: in copies: the weights' own memory stayed as it was
    copied_bytes: int
    #: the reason, for one of the copied pages
    copied_why: Optional[str]
    #: the key had these tensors already, in the same memory
    was_published: bool


def _numbers() -> Mapping[str, int]:
    name = _lib.library().glake_dtype_name
    return {_lib.text(name(number)): number for number in range(1, 64) if name(number) != b"?"}


def _sizes(values: Tuple[int, ...]) -> "ctypes.Array[ctypes.c_uint64]":
    return (ctypes.c_uint64 * len(values))(*values)


def publish(key: str, weights: Mapping[str, Weight], device: DeviceLike = 0, *, pin: bool = False,
            session: Optional[Session] = None) -> Published:
    """Leave a model of these weights in the store, for ``Model.attach(key)`` in all processes of the
    realm. Memory that can be shared is sealed, as by ``seal()``, and read-only afterwards; the rest is
    copied. First wait for all that may write to it on the GPU. A key that is there is replaced; who
    has attached to it keeps what was there. The model stays in the store after the end of this
    process, as cache, until it is evicted; with ``pin``, until it is unpinned."""
    session = session if session is not None else default_session()
    numbers = _numbers()
    rows = (_lib.TensorInfo * len(weights))()
    for row, (name, weight) in zip(rows, weights.items()):
        row.size = ctypes.sizeof(_lib.TensorInfo)
        row.name = name.encode()
        row.dtype = numbers[weight.dtype]
        row.n_dims = len(weight.shape)
        row.shape = _sizes(weight.shape)
        if weight.strides is not None:
            row.strides = _sizes(weight.strides)
        row.ptr = weight.ptr
    options = _lib.PublishOptions(ctypes.sizeof(_lib.PublishOptions),
                                  session.device_index(parse_ordinal(device)), int(pin))
    out = _lib.Published(ctypes.sizeof(_lib.Published))
    _lib.check(_lib.library().glake_weights_publish(session.handle, key.encode(), rows, len(rows),
                                                    ctypes.byref(options), ctypes.byref(out)))
    return Published(out.in_place_bytes, out.copied_bytes,
                     _lib.text(out.copied_why) if out.copied_why else None,
                     bool(out.was_published))
