# SPDX-License-Identifier: Apache-2.0
"""The errors of the library as exceptions.

Codes of POSIX become the OSError that Python has for them (FileNotFoundError, PermissionError, ...);
those of glake become an Error.
"""
from __future__ import annotations

import os
from typing import Dict, Type


class Error(RuntimeError):
    """A request failed: ``code`` is one of glake.h (-4000 and below), ``text`` says why."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text

    def __str__(self) -> str:
        return self.text


class GoneError(Error, ConnectionError):
    """The daemon is not there (any more). Mapped memory stays mapped."""


class QuotaError(Error):
    """The tenant's limit."""


class OutOfMemoryError(Error, MemoryError):
    """The device, or the daemon's host, has no memory left."""


class PermissionDeniedError(Error, PermissionError):
    """For admins only, or another realm's."""


class NotFoundError(Error, LookupError):
    """No such model or block."""


class BadFileError(Error, ValueError):
    """Not a valid safetensors file or index, or it changed while it was loaded."""


class BusyError(Error):
    """In use, or too much under way."""


class DrainedError(BusyError):
    """An operator lets no new program in, until he ends that."""


class DriverError(Error):
    """A CUDA driver call failed, or there is no usable driver."""


class ForkedError(Error):
    """The session belongs to the parent process."""


_CLASSES: Dict[int, Type[Error]] = {
    -4000: GoneError,
    -4004: NotFoundError,
    -4005: PermissionDeniedError,
    -4006: QuotaError,
    -4007: OutOfMemoryError,
    -4008: OutOfMemoryError,
    -4010: BadFileError,
    -4011: BadFileError,
    -4015: BusyError,
    -4017: DriverError,
    -4018: DriverError,
    -4019: ForkedError,
    -4020: DrainedError,
}


def make(code: int, text: str) -> Exception:
    """The exception for a negative return value."""
    if code <= -4000:
        return _CLASSES.get(code, Error)(code, text)
    return OSError(-code, text or os.strerror(-code))
