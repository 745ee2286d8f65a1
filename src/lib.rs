//! GPU-initiated communication: a symmetric heap, run-time compiled kernels, collectives, expert-parallel dispatch
//! and combine.
//!
//! This crate is the facade, and the public interface of the project: its modules list by name what a user needs of the crates below it,
//! which are internal. It loads the [configuration](config), and turns one into an open runtime, the NICs that it names, and a joined world.
//!
//! ```no_run
//! # fn main() -> anabranch::Result<()> {
//! let config = anabranch::Config::load("config/host-4.toml")?;
//! let rank = anabranch::rendezvous_from_launcher(&config)?; // torchrun, srun, mpirun, `anabranch run`
//! let world = anabranch::join(&config, &rank)?;
//! println!("{} of {} ranks", world.rank(), world.size());
//! world.leave()?;
//! # Ok(())
//! # }
//! ```
//!
//! With threads instead of processes, `anabranch::spawn_threads(&config, 4, |world| ...)`.
//!
//! # Cargo features
//!
//! `host`, `nvidia`, `amd` (runtimes), `sdma` and `rdma` (transports besides p2p) are on by default; `libfabric` and `software-nic` (drivers
//! of `rdma`) are not. A configuration that names what a build lacks is an error that names the feature ([`Error::NotBuilt`]).
//!
//! # Who checks what
//!
//! The [`config`] module checks settings before anything happens. Making a plan (a world, a
//! [`Communicator`], an [`ep::ExpertParallel`]) checks shapes and that all ranks agree; a collective checks its call. Kernels check what only they can see.
#![warn(missing_docs)]

mod check;
pub mod config;
pub mod environment;

mod error;
mod features;
#[cfg(feature = "rdma")]
mod nics;
mod platform;
mod profile;
mod registry;
mod runtime;
pub mod trace;
mod unique_id;
mod world;

pub use ccl::{CclConfig, Communicator};
pub use config::{Config, ccl_config};
pub use environment::Environment;
pub use ep::{EpConfig, EpShape, ExpertParallel};
pub use error::{Error, Result};
pub use hip::RuntimeKind;
pub use platform::{Platform, ProcessLayout, compile_jobs, kernel_pipeline, machine_of, open_runtime};
pub use profile::Profile;
pub use ranks::{ErrorKind, GlobalRank, Group, GroupRank};
pub use registry::kernel_registry;
pub use shmem::RankError;
pub use unique_id::{bind_root, rendezvous_by_id};
pub use world::{
    JoinedRank, World, join, rendezvous_from, rendezvous_from_launcher, spawn_threads, with_ep_settings,
    world_config,
};

pub mod hip {
    //! Devices, streams, events, buffers and graphs: safe handles of the runtime.

    pub use anabranch_hip::types::HipStream;
    pub use anabranch_hip::{
        Device, DeviceAddress, DeviceBuffer, DeviceGuard, DeviceOrdinal, Error, Event, Graph, GraphExec,
        HipError, HostBuffer, LaunchShape, LoadError, RelaxedCapture, Result, Runtime, RuntimeKind, Stream,
        with_causes,
    };
}

pub mod jit {
    //! Kernels of your own: sources, arguments, compilation at run time or ahead of it.

    pub use anabranch_hip_jit::{
        AheadReport, AheadRow, CacheKey, CodeObject, CompileError, CompileMode, Constant, ConstantField,
        Constants, ConstantsMode, DeviceField, DevicePointer, DeviceStruct, Error, FailureReason, Header,
        Jit, JitObserver, Kernel, KernelSpec, KernelUnit, LoadedKernel, LoadedUnit, Looked, Nearest,
        NullPointer, Origin, Outcome, PRELUDE, ParameterValue, Result, SharedIo, Target, TargetError,
        TargetKind, constants, device_struct, kernel_unit,
    };

    pub mod control {
        //! How a kernel's waits end.

        pub use anabranch_hip_jit::control::WaitControl;
    }
}

pub mod shmem {
    //! The symmetric heap: worlds, memory that peers reach, teams, faults.

    pub use anabranch_shmem::{
        DEFAULT_ALIGNMENT, Error, ExpiredWait, Fault, FlatHeap, HeapLocation, HeapMode, HeapUsage,
        KernelClock, LaunchEvent, LaunchOrder, LocalRegistration, LossTolerance, MAX_ALIGNMENT, MemoryUse,
        PeerCopy, RankError, Registration, Result, Signal, SignalOp, StreamBarrier, SymmetricMemory, Team,
        TeamView, TracedWait, WaitTrace, World, WorldConfig,
    };

    pub mod device_api {
        //! What kernels need that use the heap: the headers, and the layout of a barrier's memory.

        pub use anabranch_shmem::device_api::{BarrierWorkspace, DEVICE_HEADERS};
    }
}

pub mod ccl {
    //! Collectives with the names and semantics of torch.distributed.

    pub use anabranch_ccl::float8::{F8E4m3, F8E4m3Fnuz, F8E5m2, F8E5m2Fnuz};
    pub use anabranch_ccl::{
        Across, Algorithm, Avg, BarrierMode, BitAnd, BitOr, BitXor, Call, CclConfig, Check, Collective,
        Communicator, DataType, DeviceScalar, Element, Error, Max, Min, Mismatch, Options, PointToPoint,
        PreMulSum, Prepared, Product, Quantised, ReduceOp, ReduceOperator, Result, RmsNorm, Sum, Tensor,
        TypedTensor, UnknownReduceOp, UnsupportedDataType, Work,
    };
}

pub mod ep {
    //! Dispatch and combine for mixture-of-experts layers.

    pub use anabranch_ep::plan::Hop;
    pub use anabranch_ep::{
        Across, CombineCodec, CombineOutput, CombineSent, CombineSource, ContiguousExperts, ContiguousLayout,
        ContiguousOutput, ContiguousRows, ContiguousWeights, DataType, DeviceSlice, DispatchCast,
        DispatchSent, Dispatched, DroppedCopy, EpConfig, EpShape, Error, ExpertMajor, ExpertMajorConfig,
        ExpertMajorPlan, ExpertOutput, ExpertParallel, Fp8Format, HostElement, LayoutOutput,
        LocalExpertCounter, MaskCause, MaskedRank, MemoryPlan, Mode, OnTimeout, Payload, PlacementTable,
        Plan, ReceivedRow, ReceivedRows, ReplayedTokens, Result, Routing, RowUnpacker, ScaleLayout, Tokens,
        Unpacked,
    };
}

pub mod ranks {
    //! Ranks, groups, meshes and nodes.

    pub use anabranch_ranks::{
        Axis, Error, ErrorKind, GlobalRank, Group, GroupRank, LinkSettings, Mesh, Nodes, SplitChoice,
        UnknownSpeed, UnknownWord,
    };
}

pub mod bootstrap {
    //! How ranks find each other, exchange bytes and notice losses.

    pub use anabranch_bootstrap::{
        Deadline, Error, FrameError, Heartbeat, JoinStop, Loss, LossKind, LossObserver, OtherCall, Refusal,
        Rendezvous, Secret, Session, TcpConfig, TcpRendezvous, TcpRoot, ThreadRendezvous, UniqueId,
        UniqueIdError, threads,
    };
}

pub mod transport {
    //! What a transport of your own implements. [`World::join_with`](crate::shmem::World::join_with) takes it.

    pub use anabranch_transport::{
        Audience, Error, Explanation, HostIdentity, LocalMemory, Operation, Origin, PeerInfo, PeerMemory,
        ProcessIdentity, Reach, Refusal, Region, Result, Route, Scope, StoppedQueue, Support, Transport,
        TransportKind, UnansweredQueue,
    };
}

/// The examples of the README, compiled as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
