"""GPU-initiated communication: a symmetric heap, collectives, and dispatch and combine for mixture-of-experts models.

Tensors are of any library (torch, JAX, numpy, cupy): they are taken by DLPack or an array interface, without a copy.

    import anabranch, numpy

    with anabranch.init() as world:              # torchrun, srun, mpirun, or python -m anabranch run
        comm = world.communicator()
        x = numpy.full(4, world.rank, numpy.float32)
        comm.all_reduce(x).join()

Without a launcher, ``anabranch.spawn_threads(work, 4)`` runs ``work(world)`` on four ranks of one process.
"""

from ._errors import (
    CompileError,
    ConfigError,
    DeviceError,
    Error,
    PeerError,
    PeerTimeout,
    SetupError,
    UsageError,
    WaitTimeout,
)
from ._native import (
    CombineSent,
    Communicator,
    Config,
    ContiguousExperts,
    Dispatched,
    DispatchSent,
    EpConfig,
    ExpertMajor,
    ExpertParallel,
    LaunchOrder,
    Memory,
    Profile,
    Routing,
    RowUnpacker,
    Work,
    World,
    flush_logs,
    init,
    profile,
    spawn_threads,
)

__all__ = [
    "CombineSent",
    "Communicator",
    "CompileError",
    "Config",
    "ConfigError",
    "ContiguousExperts",
    "DeviceError",
    "DispatchSent",
    "Dispatched",
    "EpConfig",
    "Error",
    "ExpertMajor",
    "ExpertParallel",
    "LaunchOrder",
    "Memory",
    "PeerError",
    "PeerTimeout",
    "Profile",
    "Routing",
    "RowUnpacker",
    "SetupError",
    "UsageError",
    "WaitTimeout",
    "Work",
    "World",
    "flush_logs",
    "init",
    "profile",
    "spawn_threads",
]
