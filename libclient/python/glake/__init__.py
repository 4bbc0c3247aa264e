# SPDX-License-Identifier: Apache-2.0
"""glake: borrow GPU memory from glaked, the one owner of it on this node. See README.md."""
from ._version import VERSION as __version__
from .admin import (blocks, candidates, drain, events, evict, forgive, mistakes, models, pin, seal_session, sessions,
                    set_host_quota,
                    set_manifest_quota,
                    set_max_sessions, set_quota, sleep_session, sleepers, stats, status, tenants, undrain, unpin)
from .elastic import Elastic
from .errors import (BadFileError, BusyError, DrainedError, DriverError, Error, ForkedError, GoneError,
                     NotFoundError, OutOfMemoryError, PermissionDeniedError, QuotaError)
from .model import Model
from .publishing import Published, Weight, publish
from .sealing import Sealed, seal, unseal, unseal_spans
from .session import Session, connect, default_session
from .tensor import Tensor

__all__ = [
    "BadFileError", "BusyError", "DrainedError", "DriverError", "Elastic", "Error", "ForkedError", "GoneError", "Model",
    "NotFoundError", "OutOfMemoryError", "PermissionDeniedError", "Published", "QuotaError",
    "Sealed", "Session", "Tensor", "Weight", "__version__", "blocks", "candidates", "connect",
    "default_session", "drain", "events", "evict", "forgive", "mistakes", "models", "pin", "publish", "seal", "seal_session",
    "sessions", "set_host_quota", "set_manifest_quota", "set_max_sessions", "set_quota", "sleep_session",
    "sleepers", "stats", "status", "tenants", "undrain", "unpin", "unseal", "unseal_spans",
]
