"""The worlds of buffers: one for each group of ranks."""

from __future__ import annotations

import atexit
import platform
import sys
from typing import Any

import torch
import torch.distributed as dist

import anabranch
from anabranch.torch import _world as backend

# The worlds that buffers joined, by the group's ranks.
_joined: dict[tuple[int, ...], Joined] = {}


class Joined:
    """A world, the group's ranks in it, and how many buffers use it."""

    def __init__(self, world: anabranch.World, ranks: list[int] | None, key: tuple[int, ...] | None) -> None:
        self.world, self.ranks, self._key, self._users = world, ranks, key, 0
        # All plans of the group, as in DeepEP: its kernels are on one stream.
        self.order = world.launch_order()
        self.device = torch.device("cpu") if world.runtime == "host" else torch.device("cuda", world.device)

    def settle(self) -> None:
        """Tensors of the CPU have no stream: results are there when a call returns."""
        if self.world.runtime == "host":
            self.world.synchronize()

    def drop(self) -> None:
        """A buffer ends. The last one of a world that buffers joined leaves it, on all ranks."""
        self._users -= 1
        if self._users == 0 and self._key is not None and _joined.get(self._key) is self:
            del _joined[self._key]
            self.world.leave()


def _leave_at_exit() -> None:
    for joined in _joined.values():
        try:
            joined.world.check()
            error = getattr(sys, "last_value", None)
        except anabranch.Error as failure:
            error = failure
        # After an exception, or in a world that has failed, the process does not wait for the others.
        if error is None:
            joined.world.leave()
        else:
            joined.world.__exit__(type(error), error, None)
    _joined.clear()


def _devices(group: dist.ProcessGroup) -> dict[str, Any]:
    """This rank's place on its machine, and the devices of the ranks there: those that are current in torch."""
    own = (platform.node(), torch.cuda.current_device())
    everyone: list[Any] = [None] * group.size()
    dist.all_gather_object(everyone, own, group)
    here = [rank for rank, (node, _) in enumerate(everyone) if node == own[0]]
    devices = [everyone[rank][1] for rank in here]
    return {"set": [f"device.devices={devices}"], "local_rank": here.index(group.rank()), "local_world_size": len(here)}


def _join(group: dist.ProcessGroup, ranks: tuple[int, ...], heap_bytes: int) -> anabranch.World:
    unset = backend.unset_settings()
    runtime = backend.runtime_of_torch(unset)
    place: dict[str, Any] = _devices(group) if runtime else {"set": []}
    place["set"] += [f"{key}={value}" for key, value in runtime.items()]
    if "heap.bytes" in unset and heap_bytes > 0:
        place["set"].append(f"heap.bytes={heap_bytes + (64 << 20)}")
    name = "deep_ep/" + ",".join(map(str, ranks))
    return anabranch.init(store=group.get_group_store(), name=name, rank=group.rank(), world_size=group.size(), **place)


def _world_of(group: dist.ProcessGroup, heap_bytes: int) -> Joined:
    """The world of the group's ranks. Collective over them.

    It is that of the backend ``anabranch``, if torch has such a group and all of these ranks are in it. Otherwise the ranks join one over the
    group's store, with a heap of ``heap_bytes`` unless ``heap.bytes`` is configured, and later buffers of the same ranks use it too.
    """
    ranks = tuple(dist.get_process_group_ranks(group))
    shared = backend._current
    if shared is not None and set(ranks) <= set(shared.ranks):
        return Joined(shared.world, [shared.ranks.index(rank) for rank in ranks], None)
    if ranks not in _joined:
        if not _joined:
            atexit.register(_leave_at_exit)
        _joined[ranks] = Joined(_join(group, ranks, heap_bytes), None, ranks)
    joined = _joined[ranks]
    joined._users += 1
    return joined


class User:
    """What the classes of buffers share: the use of a world by plans."""

    def __init__(self, group: dist.ProcessGroup, heap_bytes: int, *plans: dict[Any, Any]) -> None:
        self._joined, self._all_plans, self._is_destroyed = _world_of(group, heap_bytes), plans, False

    def destroy(self) -> None:
        """Drops the plans; the last buffer of a group leaves its world. Collective. Doing it again does nothing."""
        if self._is_destroyed:
            return
        self._is_destroyed = True
        for plans in self._all_plans:
            plans.clear()
        self._joined.drop()
