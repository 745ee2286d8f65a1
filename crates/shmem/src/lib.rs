//! Gives every rank the same heap, picks a route to every peer, and lets kernels reach it.
//!
//! * [`World`] is one rank's part of a set of ranks: [`World::join`] for processes, [`spawn_threads`] for threads.
//! * [`World::allocate`] gives the same offset on all members of a group; [`SymmetricMemory`] is the result.
//! * [`World::team`] gives kernels of a group their [`TeamView`]: a peer table in group order, and a barrier.
//! * [`Team::put`], [`Team::get`], [`Team::signal`] and [`Team::signal_wait`] work on the heap from the host, in stream order.
//! * [`Team::copy_to_peers`] copies to many members side by side, without kernels.
//! * [`World::register`] makes buffers that lie elsewhere reachable.
//! * [`World::check`] and [`World::synchronize`] return what failed, and on which rank.
//!
//! # Rules
//!
//! Every member of a group makes the calls marked collective, in the same order for each group. Each ends
//! with the members' statuses: a call that fails on one rank is an error on all, which names the rank. Errors about the
//! request leave the world as it was. A lost rank, an expired wait or a broken exchange poisons it for good, and every
//! later call returns the first cause. [`World::exchange_within`] may time out in a world that goes on;
//! [`World::tolerate_losses`] is for operations that continue without a lost rank.
//!
//! Nothing waits without a deadline: the host's exchanges have [`WorldConfig::rendezvous_deadline`], kernels
//! [`WorldConfig::operation_deadline`], kept in device memory beside the abort word that ends all waits at once.
#![warn(missing_docs)]

mod collective;
mod config;
pub mod device_api;
mod error;
mod fault;
mod heap;
mod inflight;
mod memory;
mod order;
pub mod p2p;
mod route;
mod team;
mod wait_trace;
mod world;

#[cfg(feature = "rdma")]
pub use anabranch_transport_rdma::{Atomics, NicDriver, NicError, NicSource, OpenNic, Provider, RdmaConfig};
#[cfg(feature = "sdma")]
pub use anabranch_transport_sdma::{EngineFaults, SdmaConfig, SoftwareConfig};
pub use config::{HeapMode, WorldConfig};
pub use error::{Error, ExpiredWait, Fault, Result};
pub use fault::{ExplainFault, LaunchNote, NoteText, OperationCode, OperationName, TracedWait};
pub use heap::{DEFAULT_ALIGNMENT, FlatHeap, MAX_ALIGNMENT};
pub use inflight::{LaunchEvent, MemoryUse};
pub use memory::{HeapLocation, HeapUsage, LocalRegistration, Registration, SymmetricMemory};
pub use order::{LaunchOrder, LaunchTurn};
pub use route::{
    ENGINE_COPIES_UNIT, EngineCopiesArgs, EngineCopy, NIC_TEAM_UNIT, NicCopiesArgs, NicCopy, NicDrainArgs,
    NicSignalArgs, TEAM_BARRIER_UNIT, TeamBarrierArgs, TeamSignalArgs, TeamView, engine_copies_kernel,
};
#[cfg(feature = "rdma")]
pub use route::{for_nic, nic_team_kernel};
pub use team::{MAX_COPY_STREAMS, PeerCopy, Signal, SignalOp, StreamBarrier, Team, TeamTable};
pub use wait_trace::{CLOCK, CLOCK_UNIT, ClockArgs, KernelClock, WaitTrace};
pub use world::{
    LaunchGuard, LossTolerance, RankError, RankSetup, ResidencyPermit, ResidencyShare, World, spawn_threads,
    spawn_threads_on,
};
