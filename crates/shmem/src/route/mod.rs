//! Transports, and what kernels need of them to reach the members of a group.

mod connections;
mod kernels;
mod tables;
mod transports;
mod view;

pub(crate) use connections::{Connections, base_of, is_mapped};
#[cfg(feature = "rdma")]
pub(crate) use kernels::NicProbeArgs;
pub use kernels::{
    ENGINE_COPIES_UNIT, EngineCopiesArgs, EngineCopy, NIC_TEAM_UNIT, NicCopiesArgs, NicCopy, NicDrainArgs,
    NicSignalArgs, TEAM_BARRIER_UNIT, TeamBarrierArgs, TeamSignalArgs, engine_copies_kernel,
};
pub(crate) use kernels::{NicKernels, TeamKernels};
#[cfg(feature = "rdma")]
pub use kernels::{for_nic, nic_team_kernel};
pub(crate) use tables::{Table, Tables};
pub(crate) use transports::{Offers, RdmaQueue, SdmaQueue, Transports};
pub use view::TeamView;
