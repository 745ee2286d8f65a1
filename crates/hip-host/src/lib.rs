//! A GPU made of CPU threads that fills the HIP function table.
//!
//! A [`HostMachine`] has any number of devices, each with memory that other processes can map, streams, events,
//! graphs and modules loaded from shared objects. Kernels are compiled against the prelude's `host_abi.h` by the
//! system's C++ compiler. Each lane of a block is a coroutine; blocks are spread over worker threads, and all
//! blocks of all running kernels make progress, so they may wait for one another, within a kernel, between
//! streams, devices, and processes.
//!
//! What it keeps from GPUs: waves of width 1, 4, 32 or 64 whose operations are convergent (divergence is
//! reported in [`HostMachine::last_fault`]); peer access that has to be enabled; IPC handles that cannot be
//! opened by the process that made them; the capture rules; limits on resident blocks. What it cannot check:
//! that a kernel touches a peer's memory without access, or any memory that is not its own.
//!
//! [`scheduler`] is the seam at which a simulation takes over: what runs when, and what memory shows.

mod calls;
mod clock;
mod config;
mod error;
mod fault;
mod grid;
mod machine;
mod memory;
mod sync;
mod work;
mod workers;

/// The seam between what a machine does and what decides when it is done.
///
/// Streams, blocks and engines are [`Task`]s. A [`Scheduler`] steps them: the machine's own spreads them over worker
/// threads as fast as they go. A simulation brings another ([`HostMachine::with_scheduler`]) that draws every step from a
/// seed, keeps a virtual clock, and models memory: such a *virtual* scheduler runs instrumented kernels in
/// [`BlockLanes`], whose loads and stores are calls of [`Memory`]. Free-running kernels touch memory themselves, so nothing
/// of this is on their path.
///
/// [`Task`]: scheduler::Task
/// [`Scheduler`]: scheduler::Scheduler
/// [`BlockLanes`]: scheduler::BlockLanes
/// [`Memory`]: scheduler::Memory
pub mod scheduler {
    pub use crate::fault::FaultLog;
    pub use crate::grid::abi::KernelAbi;
    pub use crate::grid::lane::{Arrival, Calls, Change, Lane, Memory};
    pub use crate::grid::lanes::BlockLanes;
    pub use crate::grid::module::KernelEntry;
    pub use crate::grid::plan::LaunchPlan;
    pub use crate::grid::stack::StackArena;
    pub use crate::memory::mapping::Mapping;
    pub use crate::memory::regions::{MemoryMap, RegionKind, TrackedRange};
    pub use crate::work::core::MachineParts;
    pub use crate::work::launch::Launch;
    pub use crate::work::scheduler::{Begin, NewMemory, Scheduler, Task, caught, step_caught};
}

pub use anabranch_hip::{Actor, Step};
pub use config::{HostConfig, MAX_BLOCK_THREADS, MAX_LOCAL_BYTES, WAVE_WIDTHS};
pub use error::Error;
pub use fault::{Fault, FaultKind};
pub use machine::HostMachine;
