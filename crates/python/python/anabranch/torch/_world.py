"""The world of this process: joined by its first group, shared by all of its groups."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Mapping
from datetime import timedelta

import torch
from torch.distributed import DistBackendError

import anabranch

from ._heap import Heap

# Settings on GPUs where `heap.bytes` is not configured: memory for about 25 groups. Blocks suffice for a dozen of two or more ranks.
_GPU_SETTINGS = {"heap.bytes": "2 GiB", "ccl.staging_bytes": "64 MiB", "ccl.pipe_bytes": "16 MiB"}
# The most blocks of a group, unless `ccl.max_blocks` is configured. Later groups of an H200 get 64, 45, 30, 20, 14, 9, 6, 4, 3, 2 and 1.
_BLOCKS = 64

_LOG = logging.getLogger("anabranch.torch")
_current: Shared | None = None


class reported:
    """Raises ``DistBackendError`` for errors of peers and devices, with the library's error as its cause. A class: every call enters it, and a
    generator takes three times as long."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (anabranch.PeerError, anabranch.DeviceError)):
            raise DistBackendError(str(error)) from error


class Shared:
    """The world, the ranks of torch that are in it, and the groups that use it."""

    def __init__(self, world: anabranch.World, ranks: tuple[int, ...], timeout: timedelta) -> None:
        self.world = world
        self.timeout = timeout
        self.ranks = ranks
        self.groups: list = []
        # Whether the first group was aborted: the next `init_process_group` joins another world.
        self.is_aborted = False
        self.heap = Heap(world, ranks)
        self.is_gpu = world.runtime != "host"
        self.device = torch.device("cuda", world.device) if self.is_gpu else torch.device("cpu")
        if self.is_gpu:
            # torch's compiled code calls it too; `torch.cuda.current_stream` makes an object.
            self.current_stream = functools.partial(torch._C._cuda_getCurrentRawStream, world.device)

    def communicator(self, ranks: tuple[int, ...]) -> anabranch.Communicator:
        """The communicator of these ranks of torch. Collective over them."""
        absent = [rank for rank in ranks if rank not in self.ranks]
        if absent:
            raise DistBackendError(
                f"ranks {absent} are not in the world of the first group with the backend anabranch (ranks {list(self.ranks)}); make a "
                "group of all ranks first"
            )
        self.heap.purge()
        try:
            with reported():
                return self.world.communicator([self.ranks.index(rank) for rank in ranks], shared_blocks=_BLOCKS)
        except anabranch.ConfigError as error:
            if "heap" not in str(error):
                raise
            raise DistBackendError(
                f"{error}. Each of the {len(self.groups) + 1} groups takes memory of the heap: raise heap.bytes (ANABRANCH__HEAP__BYTES), or "
                "lower ccl.staging_bytes (ANABRANCH__CCL__STAGING_BYTES)"
            ) from error

    def leave(self) -> None:
        """Leaves the world; its groups cannot be used any more. Does not wait for the other ranks of a world that has failed."""
        global _current
        if _current is self:
            _current = None
        groups, self.groups = self.groups, []
        for group in groups:
            group.drop()
        self.heap.drop()
        try:
            self.world.check()
        except anabranch.Error as error:
            self.world.__exit__(type(error), error, None)
            return
        with reported():
            self.world.leave()


def world() -> anabranch.World:
    """The world of this process's groups: its symmetric heap and its dispatch and combine. Raises ``RuntimeError`` before
    ``init_process_group``."""
    return _shared().world


def _shared() -> Shared:
    if _current is None:
        raise RuntimeError("no group with the backend anabranch exists; call torch.distributed.init_process_group")
    return _current


def empty(*size: int | tuple[int, ...], dtype: torch.dtype | None = None, group: torch.distributed.ProcessGroup | None = None) -> torch.Tensor:
    """A tensor in the symmetric heap, at the same offset on all ranks of the group (``None``: all), which all call this in the same order
    with the same arguments. Zeros.

    Collectives of the backend read and write such tensors, and contiguous views of them, on the other ranks directly: give one on all ranks
    or on none. The memory is used again after all ranks have dropped their tensor. Raises ``RuntimeError`` before ``init_process_group``.
    """
    shared = _shared()
    first = size[0] if size else ()
    shape = tuple(first) if isinstance(first, (tuple, list)) else size
    ranks = shared.ranks if group is None else tuple(torch.distributed.get_process_group_ranks(group))
    with reported():
        return shared.heap.empty(shape, dtype or torch.get_default_dtype(), ranks)


def share(options, pg_options) -> tuple[Shared, bool]:
    """The world for a new group, and whether the group is the first, which joins it."""
    global _current
    if _current is not None and _current.is_aborted and not torch.distributed.is_initialized():
        _current.leave()
    if _current is not None:
        if pg_options:
            raise ValueError("pg_options are settings of the world; give them to the first group with the backend anabranch")
        if options.timeout < _current.timeout:
            _LOG.warning(
                "the group asks for a timeout of %s; waits of the world have one deadline, the %s of its first group", options.timeout, _current.timeout
            )
        return _current, False
    ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
    _current = Shared(_join(options, pg_options), ranks, options.timeout)
    return _current, True


def _join(options, pg_options) -> anabranch.World:
    given = pg_options or {}
    if not isinstance(given, Mapping):
        raise TypeError(f"pg_options is of type {type(given).__name__}; a mapping of settings is needed, {{'heap.bytes': '4 GiB'}}")
    settings = [f"{key}={value}" for key, value in _defaults(options.timeout).items() if key not in given]
    settings += [f"{key}={value}" for key, value in given.items()]
    local_rank, local_size = _local(options.group_size)
    with reported():
        return anabranch.init(
            set=settings,
            store=options.store,
            name="torch",
            rank=options.group_rank,
            world_size=options.group_size,
            local_rank=local_rank,
            local_world_size=local_size,
        )


def unset_settings() -> set[str]:
    """Settings that neither the configuration file nor the environment has."""
    return {key for key, _, origin in anabranch.Config.load().fields() if origin == "default"}


def runtime_of_torch(unset: set[str]) -> dict[str, str]:
    """The runtime of torch's GPUs as a setting: none where torch has no GPU, or a runtime is configured."""
    if "device.runtime" not in unset or not torch.cuda.is_available():
        return {}
    return {"device.runtime": "amd" if torch.version.hip else "nvidia"}


def _defaults(timeout) -> dict[str, str]:
    """Settings that torch or the machine imply, without those that the user configured."""
    unset = unset_settings()
    limit = f"{max(1, round(timeout.total_seconds() * 1000))} ms"
    defaults = {"deadline.rendezvous": limit, **runtime_of_torch(unset)}
    if torch.cuda.is_available() and "heap.bytes" in unset:
        defaults |= _GPU_SETTINGS
    defaults = {key: value for key, value in defaults.items() if key in unset}
    return defaults | {"deadline.operation": limit}


def _local(size: int) -> tuple[int | None, int | None]:
    """The rank on this machine and the number of ranks there, from torchrun. Without them ranks find out at the rendezvous."""
    names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE")
    if not all(os.environ.get(name, "").isdecimal() for name in names) or int(os.environ["WORLD_SIZE"]) != size:
        return None, None
    return int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
