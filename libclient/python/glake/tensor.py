# SPDX-License-Identifier: Apache-2.0
"""One tensor of a mapped model: where it is, and how other libraries get at it."""
from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple

from . import _lib

if TYPE_CHECKING:
    import numpy

    from .model import Model

# safetensors name: numpy's type string; what numpy has no type for is in _ML_DTYPES.
_TYPESTR = {"BOOL": "|b1", "U8": "|u1", "I8": "|i1", "I16": "<i2", "U16": "<u2", "F16": "<f2",
            "I32": "<i4", "U32": "<u4", "F32": "<f4", "C64": "<c8", "F64": "<f8", "I64": "<i8",
            "U64": "<u8"}
# name in ml_dtypes, and the raw type without it
_ML_DTYPES = {"BF16": ("bfloat16", "<u2"), "F8_E4M3": ("float8_e4m3fn", "|u1"),
              "F8_E5M2": ("float8_e5m2", "|u1"), "F8_E8M0": ("float8_e8m0fnu", "|u1")}

KDL_CUDA = 2
_CAPSULE_NAME = b"dltensor"

# Prototypes of our own: other modules share the attributes of ctypes.pythonapi.
_capsule_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p,
                                 ctypes.c_void_p)(("PyCapsule_New", ctypes.pythonapi))
_inc_ref = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_IncRef", ctypes.pythonapi))


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("n_dims", ctypes.c_int32),
                ("type_code", ctypes.c_uint8), ("type_bits", ctypes.c_uint8),
                ("type_lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class DLManagedTensor(_DLTensor):
    """That of dlpack.h, version 0.8 and before."""

    _fields_ = [("context", ctypes.c_void_p), ("deleter", DELETER)]


def delete_managed(address: int) -> None:
    """Call the C deleter of a DLManagedTensor that no consumer took."""
    DLManagedTensor.from_address(address).deleter(address)


def keep_forever(callback: Any) -> None:
    """What it ends may be the last thing to go when the interpreter ends."""
    _inc_ref(callback)


def new_capsule(managed: int) -> Any:
    """A classic (unversioned) capsule of the DLManagedTensor at an address, which it owns."""
    try:
        destructor = _lib.library().glake_capsule_destructor()
        if destructor is None:
            raise ImportError("glake: the symbols of Python cannot be found in this process")
        return _capsule_new(managed, _CAPSULE_NAME, destructor)
    except BaseException:
        delete_managed(managed)
        raise


class Tensor:
    """A tensor in GPU memory, read-only. It holds its Model."""

    __slots__ = ("_model", "_position", "name", "dtype", "shape", "strides", "nbytes", "ptr")

    def __init__(self, model: "Model", position: int, info: _lib.TensorInfo) -> None:
        self._model = model
        self._position = position
        self.name: str = _lib.text(info.name)
        #: safetensors' name of the element type, "BF16"
        self.dtype: str = _lib.text(_lib.library().glake_dtype_name(info.dtype))
        self.shape: Tuple[int, ...] = tuple(info.shape[:info.n_dims])
        #: in elements; None: row-major, without gaps
        self.strides: Optional[Tuple[int, ...]] = \
            tuple(info.strides[:info.n_dims]) if info.strides else None
        #: from the first element to the end of the last
        self.nbytes: int = info.bytes
        #: the device address; 0 for a tensor of no bytes
        self.ptr: int = info.ptr

    def __repr__(self) -> str:
        return f"<glake.Tensor {self.name} {self.dtype}{list(self.shape)} at 0x{self.ptr:x}>"

    @property
    def model(self) -> "Model":
        """The model that it is of."""
        return self._model

    @property
    def device(self) -> int:
        """CUDA's number of the device in this process."""
        return self._model.ordinal

    # ---- copies ----

    def tobytes(self) -> bytes:
        """A copy on the host: ``nbytes`` bytes, from the first element to the end of the last."""
        buffer = bytearray(self.nbytes)
        self._model.read_into(buffer, self.ptr)
        return bytes(buffer)

    def numpy(self) -> "numpy.ndarray":
        """A copy on the host. For types that numpy lacks see README.md."""
        import numpy
        raw = numpy.empty(self.nbytes, numpy.uint8)
        self._model.read_into(raw, self.ptr)
        dtype = self._numpy_dtype()
        if dtype is None:
            return raw
        if self.strides is None:
            return raw.view(dtype).reshape(self.shape)
        return numpy.ndarray(self.shape, dtype, raw, strides=self._strides_bytes(dtype.itemsize))

    def _strides_bytes(self, item_bytes: int) -> Optional[Tuple[int, ...]]:
        return None if self.strides is None else tuple(n * item_bytes for n in self.strides)

    def _numpy_dtype(self) -> Any:
        """None for types smaller than a byte."""
        import numpy
        if self.dtype in _TYPESTR:
            return numpy.dtype(_TYPESTR[self.dtype])
        if self.dtype not in _ML_DTYPES:
            return None
        name, raw = _ML_DTYPES[self.dtype]
        try:
            import ml_dtypes
            return numpy.dtype(getattr(ml_dtypes, name))
        except (ImportError, AttributeError):
            return numpy.dtype(raw)

    # ---- without a copy ----

    def __dlpack__(self, *, stream: Optional[Any] = None, max_version: Optional[Any] = None,
                   dl_device: Optional[Tuple[int, int]] = None,
                   copy: Optional[bool] = None) -> Any:
        """The weights were there before any stream of ours, so there is nothing to wait for. Bytes
        of 8-bit floats come as uint8."""
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError("the tensor is on another device")
        if copy:
            raise BufferError("clone the tensor in the library that takes it")
        return new_capsule(self._model.export(self._position))

    def __dlpack_device__(self) -> Tuple[int, int]:
        return (KDL_CUDA, self._model.ordinal)

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        if self.dtype not in _TYPESTR:
            raise AttributeError(f"{self.dtype} has no type string of numpy")
        self._model.mark_exported()
        return {"shape": self.shape, "typestr": _TYPESTR[self.dtype], "data": (self.ptr, True),
                "version": 3, "strides": self._strides_bytes(int(_TYPESTR[self.dtype][2:]))}
