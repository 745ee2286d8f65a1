"""The class of a group: of torch's two kinds of Python classes the one that this version calls."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch._C import _distributed_c10d as c10d
from torch.distributed import PrefixStore

from ._collectives import Collectives
from ._register import NAME


def _version() -> tuple[int, int]:
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


class _ProcessGroup(Collectives, c10d.ProcessGroup):
    """A group of torch 2.13 and older. It takes the place of torch's own object, and so has to answer for its properties."""

    _is_called_by_message = True

    def __init__(self, options, pg_options) -> None:
        super().__init__(options.group_rank, options.group_size)
        self._name, self._description = options.group_id, ""
        self._start(options, pg_options)

    @property
    def group_name(self) -> str:
        return self._name

    def getGroupName(self) -> str:
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_desc(self) -> str:
        return self._description

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def getGroupDesc(self) -> str:
        return self._description

    def getBackendName(self) -> str:
        return NAME

    def _get_backend_name(self) -> str:
        return NAME

    def name(self) -> str:
        return NAME

    @property
    def supports_splitting(self) -> bool:
        return True

    @property
    def options(self) -> None:
        """What ``split_group`` hands on to :meth:`split_group`: nothing, settings are of the world."""

    def get_group_store(self):
        return self._store

    def split_group(self, ranks, timeout=None, opts=None, group_name=None, group_desc=None) -> _ProcessGroup | None:
        """The group of these ranks of the group; ``None`` where this rank is not one of them. Collective over its ranks."""
        if self.rank() not in ranks:
            return None
        store = PrefixStore(f"{group_name}/", self._store)
        group = _ProcessGroup(_part(self, store, ranks, timeout or self._timeout, group_name), opts)
        group._set_group_desc(group_desc or f"{self._description}:split")
        return group

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), torch.device("cuda")] if self._shared.is_gpu else [torch.device("cpu")]

    def _get_backend(self, device: torch.device):
        device = torch.device(device)
        if device.type == "cpu" and self._shared.is_gpu:
            return self._gloo()
        if device.type not in ("cpu", "cuda"):
            raise RuntimeError(f"the backend anabranch has no device of the type {device.type}")
        return self


class _Backend(Collectives, c10d.Backend):
    """A group of torch 2.14 and newer, below torch's own object.

    Every property is defined here: an inherited one calls this class again, without end.
    """

    supports_coalescing = True
    supports_splitting = True
    supports_time_estimate = False
    supports_shrinking = False
    supports_reconfigure = False
    supports_window = False
    supports_abort_hooks = False
    supports_completion_hooks = False

    def __init__(self, options, pg_options) -> None:
        super().__init__(options.group_rank, options.group_size)
        self._options = c10d.Backend.Options(NAME, timeout=options.timeout)
        self._options.global_ranks_in_group = options.global_ranks_in_group
        self._options.group_name = options.group_id
        self._start(options, pg_options)

    @property
    def options(self):
        return self._options

    def split(self, store, ranks, opts) -> _Backend:
        """The group of these ranks of the group. Collective over them."""
        if self.rank() not in ranks:
            # torch 2.15 crashes in `PyBackend::split` where a Python class returns `None`.
            raise ValueError(f"rank {self.rank()} is in no part of split_group; with torch 2.14 and newer every rank of the group has to be in one")
        # Some versions call it once for each type of device.
        for group in self._shared.groups:
            if isinstance(group, _Backend) and group._options.group_name == opts.group_name:
                return group
        return _Backend(_part(self, store, ranks, opts._timeout, opts.group_name), None)

    def getBackendName(self) -> str:
        return NAME


def _part(group: Collectives, store, ranks, timeout, name) -> SimpleNamespace:
    """What torch hands over for a new group: here the one of these ranks of `group`."""
    return SimpleNamespace(
        store=store,
        group_rank=ranks.index(group.rank()),
        group_size=len(ranks),
        timeout=timeout,
        group_id=name,
        global_ranks_in_group=[group._ranks[rank] for rank in ranks],
    )


def create(options, pg_options):
    """A group for ``torch.distributed``. Collective over its ranks."""
    return (_ProcessGroup if _version() < (2, 14) else _Backend)(options, pg_options)
