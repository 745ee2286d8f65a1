"""The backend ``anabranch`` of ``torch.distributed``.

    torch.distributed.init_process_group("anabranch")

No import of this module is needed: the package's entry points register the backend. ``init_process_group("cpu:gloo,cuda:anabranch")`` works
too. Without a GPU the ranks use the host runtime, and tensors are on the CPU.

The first group of a process joins a world over the group's store; later groups are communicators of that world. Settings come from the
configuration file and the environment (``ANABRANCH__HEAP__BYTES``), or from ``pg_options``, a mapping, of the first group:

    torch.distributed.init_process_group("anabranch", pg_options={"heap.bytes": "4 GiB"})

Every rank waits at most the timeout of the first group (``deadline.operation``). A lost or late rank raises
``torch.distributed.DistBackendError`` on the others; its ``__cause__`` is an ``anabranch.PeerError``, whose ``ranks`` names the rank.
"""

from ._register import register

__all__ = ["empty", "register", "rms_norm", "world"]


def __getattr__(name: str):
    if name in ("empty", "world"):
        from . import _world

        return getattr(_world, name)
    if name == "rms_norm":
        import importlib

        return importlib.import_module(".rms_norm", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
