//! A GPU made of CPU threads that fills the HIP function table.
//!
//! A [`HostMachine`] has any number of devices, each with memory that other processes can map, streams, events,
//! graphs and modules loaded from shared objects. Kernels are compiled against [`HOST_ABI_HEADER`] by the
//! system's C++ compiler. Each lane of a block is a coroutine; blocks are spread over worker threads, and all
//! blocks of all running kernels make progress, so they may wait for one another, within a kernel, between
//! streams, devices, and processes.
//!
//! What it keeps from GPUs: waves of width 1, 4, 32 or 64 whose operations are convergent (divergence is
//! reported in [`HostMachine::last_fault`]); peer access that has to be enabled; IPC handles that cannot be
//! opened by the process that made them; the capture rules; limits on resident blocks. What it cannot check:
//! that a kernel touches a peer's memory without access, or any memory that is not its own.
//!
//! With [`Schedule::Seeded`] a seed decides who runs and what memory shows, of the whole machine and of the host threads
//! that attach to it, and accesses are checked. A [`seeded::SeededMachine`] does the same for kernels alone.

mod abi;
mod block;
mod callback;
mod calls;
mod capture;
mod clock;
mod config;
mod current;
mod device;
mod engines;
mod error;
mod event;
mod fault;
mod graph;
mod handles;
mod ipc;
mod lane;
mod launch;
mod local_memory;
mod machine;
mod mapping;
mod memory;
mod module;
mod notice;
mod operation;
mod rest;
mod scheduler;
pub mod seeded;
mod stack;
mod stream;
mod sync;
mod turns;
mod virtual_memory;
mod work_queue;

pub use abi::{HOST_ABI_HEADER, HOST_ABI_VERSION, KERNEL_DESCRIPTOR_SUFFIX};
pub use anabranch_hip::{Actor, Step};
pub use config::{HostConfig, MAX_BLOCK_THREADS, MAX_LOCAL_BYTES, Schedule, SeededSchedule, WAVE_WIDTHS};
pub use error::Error;
pub use fault::{Fault, FaultKind};
pub use machine::HostMachine;
pub use turns::{MachineRun, SeededFailure};
