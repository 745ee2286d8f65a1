//! Gives every rank the same heap, picks a route to every peer, and lets kernels reach it.
//!
//! * [`World`] is one rank's part of a set of ranks: [`World::join`] for processes, [`spawn_threads`] for threads.
//! * [`World::allocate`] gives the same offset on all members of a group; [`SymmetricMemory`] is the result.
//! * [`World::team`] gives kernels of a group their [`TeamView`]: a peer table in group order, and a barrier.
//! * [`Team::put`], [`Team::get`], [`Team::signal`] and [`Team::signal_wait`] work on the heap from the host, in stream order.
//! * [`Team::copy_legs`] copies to many members side by side, without kernels.
//! * [`World::register`] makes buffers that lie elsewhere reachable.
//! * [`World::check`] and [`World::synchronize`] say what failed, and name the rank.
//!
//! # Rules
//!
//! Calls that are marked collective are made by every member of their group, in the same order for each group. Each ends
//! with the members' statuses: a call that fails on one rank is an error on all, which names the rank. Errors about the
//! request leave the world as it was. A lost rank, an expired wait or a broken exchange poisons it for good, and every
//! later call returns the first cause. [`World::monitored_barrier`] and [`World::exchange_within`] alone may time out in a world
//! that goes on, and [`World::tolerate_losses`] is for operations that can do without a rank.
//!
//! Nothing waits without a deadline: the host's exchanges have [`WorldConfig::rendezvous_deadline`], kernels
//! [`WorldConfig::operation_deadline`], kept in device memory beside the abort word that ends all waits at once.

mod activity;
mod alarm;
mod asked;
mod cause;
mod collective;
mod config;
mod control;
pub mod device_api;
mod engine_legs;
mod error;
mod fault;
mod flight;
mod frame;
pub mod heap;
mod host_api;
mod identity;
mod join;
mod legs;
mod local_registration;
mod monitored;
mod nic_probe;
mod nic_team;
mod nic_watch;
pub mod p2p;
mod reach;
mod registration;
mod residency;
mod stream_meeting;
mod tables;
mod team;
mod team_table;
mod threads;
mod told;
mod tolerance;
mod transports;
mod turns;
mod watch;
mod world;

pub use activity::{LaunchNote, NoteText};
pub use anabranch_transport_rdma::{Atomics, NicDriver, NicError, NicSource, OpenNic, Provider, RdmaConfig};
pub use anabranch_transport_sdma::{EngineFaults, SdmaConfig, SoftwareConfig};
pub use collective::group_id;
pub use config::{HeapMode, MIN_HEAP_BYTES, WorldConfig};
pub use engine_legs::{ENGINE_LEGS_UNIT, EngineLeg, EngineLegsArgs, engine_legs_kernel};
pub use error::{Error, Result};
pub use fault::{Circumstances, ExplainFault, Fault, OperationCode, OperationName};
pub use flight::{LaunchGuard, MemoryUse};
pub use heap::{DEFAULT_ALIGNMENT, FlatHeap, HeapUsage, MAX_ALIGNMENT, MemoryGuard, SymmetricMemory};
pub use host_api::{Signal, SignalOp, TeamSignalArgs};
pub use legs::{Leg, MOST_LEG_STREAMS};
pub use local_registration::LocalRegistration;
pub use nic_team::{NIC_TEAM_UNIT, NicCopiesArgs, NicCopy, NicDrainArgs, NicSignalArgs, nic_team_kernel};
pub use reach::for_nic;
pub use registration::Registration;
pub use residency::ResidencyPermit;
pub use stream_meeting::StreamMeeting;
pub use team::{TEAM_BARRIER_UNIT, Team, TeamBarrierArgs, TeamView};
pub use team_table::TeamTable;
pub use threads::{RankError, RankSetup, spawn_threads, spawn_threads_on};
pub use tolerance::LossTolerance;
pub use world::World;
