# SPDX-License-Identifier: Apache-2.0
"""What kvcached 0.1.6 has in C++ (``kvcached._C``), over elastic ranges: its Python, its patches of engines and its tools stay as
they are, and the memory is glaked's.

    python -m glake.kvcached install        # all programs of this environment; "remove" undoes it

or, in one program, before it imports kvcached:

    import glake.kvcached
    glake.kvcached.use()

What kvcached unmaps is lent: it goes to whoever needs it, and costs nanoseconds to have again otherwise. docs/engines.md has
the rest.
"""
from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from typing import Any, List, Sequence, Tuple

from . import _kvcached_pool as pools
from ._kvcached_errors import MapQuarantinedError, QuarantinedResizeError, StateConsistencyError
from ._kvcached_pages import InternalPage, PageAllocator

__all__ = ["InternalPage", "MapQuarantinedError", "PageAllocator", "QuarantinedResizeError", "StateConsistencyError",
           "abort_unmap_from_kv_tensors", "commit_unmap_from_kv_tensors", "create_kv_tensors", "init_kvcached",
           "install", "kv_tensors_created", "map_to_kv_tensors", "map_to_kv_tensors_with_result",
           "prepare_unmap_from_kv_tensors", "remove", "shutdown_kvcached", "unmap_from_kv_tensors", "use"]

_NAME = "kvcached._C"
_STUB = '''\
# Of `python -m glake.kvcached install`: glake in place of kvcached's library. "remove" removes this folder.
import glake.kvcached

glake.kvcached.use()
'''

# ---- what kvcached.vmm_ops has ----


def init_kvcached(dev_str: str, page_size: int = 0, contiguous_layout: bool = True) -> None:
    """``page_size`` is a multiple of 2 MiB; 0: 2 MiB. Ends what was before."""
    pools.start(dev_str, page_size, contiguous_layout)


def shutdown_kvcached() -> None:
    """All tensors end."""
    from . import _kvcached_torch
    _kvcached_torch.shutdown_kvcached()


def create_kv_tensors(size: int, dtype_size: int, dev_str: str, num_layers: int, num_kv_buffers: int = 2,
                      group_id: int = 0, unified_pool: bool = False) -> List[Any]:
    """Tensors of ``size`` bytes for each layer, of which page 0 has memory."""
    from . import _kvcached_torch
    return _kvcached_torch.create_kv_tensors(size, dtype_size, dev_str, num_layers, num_kv_buffers, group_id,
                                             unified_pool)


def kv_tensors_created(group_id: int = 0) -> bool:
    """Of the group."""
    return pools.find(group_id) is not None


def map_to_kv_tensors(offsets: Sequence[int], group_id: int = 0) -> bool:
    """All of them, or, with an exception, none. False: there are no tensors."""
    return map_to_kv_tensors_with_result(offsets, group_id)[0]


def map_to_kv_tensors_with_result(offsets: Sequence[int], group_id: int = 0) -> Tuple[bool, List[int]]:
    """All or, with an exception, none; and those that were not mapped before. False: there are no tensors."""
    pool = pools.find(group_id)
    return (False, []) if pool is None else (True, pool.map(offsets))


def unmap_from_kv_tensors(offsets: Sequence[int], group_id: int = 0) -> bool:
    """They are lent. Waits for the work on the GPU that uses them."""
    pool = pools.find(group_id)
    if pool is not None:
        pool.unmap(offsets)
    return pool is not None


def _named(transaction_id: str) -> None:
    if not transaction_id:
        raise ValueError("unmap transaction id must not be empty")


def _pool(group_id: int, transaction_id: str) -> pools.Pool:
    _named(transaction_id)
    pool = pools.find(group_id)
    if pool is None:
        raise RuntimeError(f"unknown unmap transaction: {transaction_id}")
    return pool


def prepare_unmap_from_kv_tensors(offsets: Sequence[int], transaction_id: str, group_id: int = 0) -> bool:
    """Nothing is mapped or unmapped until it is committed or aborted, by its id. Each of the three may be repeated."""
    _named(transaction_id)
    pool = pools.find(group_id)
    if pool is not None:
        pool.prepare_unmap(offsets, transaction_id)
    return pool is not None


def commit_unmap_from_kv_tensors(transaction_id: str, group_id: int = 0) -> bool:
    """What was prepared is lent."""
    _pool(group_id, transaction_id).commit_unmap(transaction_id)
    return True


def abort_unmap_from_kv_tensors(transaction_id: str, group_id: int = 0) -> bool:
    """What was prepared stays mapped."""
    _pool(group_id, transaction_id).abort_unmap(transaction_id)
    return True


# ---- in the place of kvcached's library ----

_OPERATORS = [
    ("init_kvcached(str dev_str, int page_size=0, bool contiguous_layout=True) -> ()", init_kvcached),
    ("shutdown_kvcached() -> ()", shutdown_kvcached),
    ("create_kv_tensors(int size, int dtype_size, str dev_str, int num_layers, int num_kv_buffers=2, "
     "int group_id=0, bool unified_pool=False) -> Tensor[]", create_kv_tensors),
    ("kv_tensors_created(int group_id=0) -> bool", kv_tensors_created),
    ("map_to_kv_tensors(int[] offsets, int group_id=0) -> bool", map_to_kv_tensors),
    ("unmap_from_kv_tensors(int[] offsets, int group_id=0) -> bool", unmap_from_kv_tensors),
]


def use() -> None:
    """``import kvcached._C`` finds this module, in this process. RuntimeError: it has kvcached's own library already."""
    there = sys.modules.get(_NAME)
    if there is not None and there is not sys.modules[__name__] and hasattr(there, "PageAllocator"):
        raise RuntimeError("kvcached has loaded its own library: call glake.kvcached.use() before it is imported")
    from . import _kvcached_torch
    _kvcached_torch.register(_OPERATORS)
    sys.modules[_NAME] = sys.modules["glake.kvcached"]


def _place() -> str:
    spec = importlib.util.find_spec("kvcached")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("kvcached is not installed here")
    return os.path.join(next(iter(spec.submodule_search_locations)), "_C")


def _is_ours(place: str) -> bool:
    """False: there is none. RuntimeError: it is another's."""
    try:
        with open(os.path.join(place, "__init__.py"), encoding="utf-8") as file:
            if file.read() == _STUB:
                return True
    except FileNotFoundError:
        if not os.path.isdir(place):
            return False
    raise RuntimeError(f"{place} is not of glake")


def install() -> str:
    """Add a folder ``_C`` to the installed kvcached: Python looks there first. Returns its path."""
    place = _place()
    if not _is_ours(place):
        os.mkdir(place)
        with open(os.path.join(place, "__init__.py"), "w", encoding="utf-8") as file:
            file.write(_STUB)
    return place


def remove() -> str:
    """Remove what install() has added; kvcached's own library is in its place again."""
    place = _place()
    if _is_ours(place):
        shutil.rmtree(place)
    return place


def main(arguments: List[str]) -> int:
    """The command; returns its exit status."""
    actions = {"install": install, "remove": remove}
    if len(arguments) != 1 or arguments[0] not in actions:
        print("usage: python -m glake.kvcached install|remove", file=sys.stderr)
        return 2
    try:
        print(actions[arguments[0]]())
    except (ImportError, OSError, RuntimeError) as error:
        print(f"glake.kvcached: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
