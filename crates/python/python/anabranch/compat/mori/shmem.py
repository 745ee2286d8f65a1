"""The world of the ranks that dispatch and combine."""

from __future__ import annotations

import itertools
import os
import re
import weakref
from collections.abc import Mapping
from typing import Any

import torch

import anabranch

from ..deep_ep._world import Joined, User

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# mori's default.
_HEAP = "4G"

_current: User | None = None
_rank, _size = 0, 0
# Operators in the order in which all ranks made them; finalize ends what they have under way.
_operators: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def _heap_bytes(environment: Mapping[str, str] = os.environ) -> int:
    """``MORI_SHMEM_HEAP_SIZE``; ``anabranch.ConfigError`` for what is no size."""
    text = environment.get("MORI_SHMEM_HEAP_SIZE", _HEAP)
    found = re.fullmatch(r"(\d+)\s*([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None or int(found[1]) == 0:
        raise anabranch.ConfigError(f"MORI_SHMEM_HEAP_SIZE is {text!r}; allowed are positive numbers of bytes, or with K, M or G: 6G")
    return int(found[1]) * _UNITS[found[2].upper()]


def _user() -> User:
    if _current is None:
        raise anabranch.UsageError("mori.shmem is not initialized; call shmem_torch_process_group_init")
    return _current


def _joined() -> Joined:
    return _user()._joined


def shmem_torch_process_group_init(group_name: str) -> int:
    """Joins a world of the ranks of a group of torch, or takes that of the backend ``anabranch``. Collective over them. Returns 0.

    The heap has ``MORI_SHMEM_HEAP_SIZE`` (``6G``; default 4G), unless ``heap.bytes`` is configured.
    """
    global _current, _rank, _size
    if _current is not None:
        raise anabranch.UsageError(f"mori.shmem is initialized already, with {_size} ranks; call shmem_finalize before")
    group = torch._C._distributed_c10d._resolve_process_group(group_name)
    _current = User(group, _heap_bytes())
    _rank, _size = group.rank(), group.size()
    return 0


def shmem_finalize() -> int:
    """Drops what operators hold, and leaves a world that was joined here. Collective. Returns 0."""
    global _current
    user, _current = _user(), None
    try:
        for operator in list(_operators.values()):
            operator._drop()
    finally:
        _operators.clear()
        user.destroy()
    return 0


def shmem_mype() -> int:
    """This rank in the group."""
    _user()
    return _rank


def shmem_npes() -> int:
    """Ranks of the group."""
    _user()
    return _size
