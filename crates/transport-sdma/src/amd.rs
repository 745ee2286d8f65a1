//! AMD's copy engines: queues in their own hardware, from the tree that the kernel shows to addresses that a GPU can use.
//!
//! [`Topology`] reads what the kernel driver (KFD) reports about the GPUs of a machine, [`choose`] says which engine serves which
//! peer, a [`Driver`] makes queues on engines, and [`AmdEngines`] puts the three together: one value per GPU and world, whose
//! [`AmdQueue`]s free what they hold when they are dropped. [`AmdEngine`] is such a queue with the crate's own
//! [`QueueEngine`](crate::QueueEngine).
//!
//! There are two ways to make a queue, tried in this order by [`open_driver`]. Both use the runtime that this process has
//! mapped already, because its thunk manages the process's address space on the GPUs: a second copy of the thunk fails or hides
//! the GPUs (ROCT-Thunk-Interface issue 77).
//!
//! * The runtime's own `hsa_amd_queue_create`, for engine type SDMA. Signatures and layouts are those of `hsa_ext_amd.h`
//!   of ROCm/rocm-systems, interface 1.34. At least 1.31 is needed: from there on the runtime reports where the read and the
//!   write pointer are, and its rings are uncached (pull request 9900). The runtime of ROCm 10.0.0 is reported to export it, that of
//!   7.2.4 not to.
//! * The thunk's functions `hsaKmt*` ([`Thunk`]), as in `hsakmt.h`. AMD's own builds of the runtime hide them (`hsacore.so.def`
//!   ends in `local: *`), and `libhsakmt.ver` does not list `hsaKmtCreateQueueExt`: the way is open only where a distribution
//!   exports it.
//!
//! The third way, the ioctls of `/dev/kfd`, is not built: it would be a second manager of an address space that the runtime's
//! thunk manages already.
//!
//! **Nothing here has run on hardware.** What is shown is shown with fake runtimes and with trees that were written by hand
//! after the kernel's sources.

mod address;
#[allow(unsafe_code, reason = "calls functions of a vendor's library through pointers resolved at run time")]
mod binding;
mod chooser;
mod driver;
mod engine;
mod error;
mod link;
mod queue;
mod thunk;
mod topology;

pub use address::GpuAddress;
pub use anabranch_transport::PciAddress;
pub use binding::open_driver;
pub use chooser::{Choice, choose, plan};
pub use driver::{Driver, DriverNode, DriverQueue, QueueToken, RingPlace};
pub use engine::AmdEngine;
pub use error::{AmdError, AmdResult};
pub use link::{Link, LinkKind};
pub use queue::{AmdEngines, AmdQueue, DEFAULT_RING_BYTES};
pub use thunk::{Allocation, KfdVersion, Thunk, ThunkDriver, ThunkQueue};
pub use topology::{Gpu, NODES_FOLDER, PCI_FOLDER, Topology};

#[cfg(test)]
mod tests;
