# SPDX-License-Identifier: Apache-2.0
"""kvcached's errors: its own classes where it is installed, since its Python tells failures apart by them."""
try:
    from kvcached.errors import MapQuarantinedError, QuarantinedResizeError, StateConsistencyError
except ImportError:
    class MapQuarantinedError(RuntimeError):  # type: ignore[no-redef]
        """Pages that were to be mapped are of no use any more: leave them out."""

    class StateConsistencyError(RuntimeError):  # type: ignore[no-redef]
        """It is not known what is mapped: the engine has to stop."""

    class QuarantinedResizeError(ValueError):  # type: ignore[no-redef]
        """A pool with pages of no use does not change its size."""

__all__ = ["MapQuarantinedError", "QuarantinedResizeError", "StateConsistencyError"]
