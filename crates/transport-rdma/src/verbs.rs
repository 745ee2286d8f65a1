//! NICs by `libibverbs`, opened at run time: the driver whose queues a thread of the host serves.
//!
//! Layouts and constants are those of rdma-core's `infiniband/verbs.h` (`bindings.rs`, checked against the system's header by a test);
//! functions are looked up by name and version (`library.rs`). [`PostedDriver`] serves every NIC that has verbs. It has run on the kernel's
//! own NIC in software (`rdma_rxe`, see `scripts/rdma-vm`), where there is no device memory: registration of a GPU's memory
//! (`memory.rs`) has not run on hardware.

#[cfg(test)]
mod abi;
#[cfg(test)]
mod access_tests;
pub(crate) mod library;
pub(crate) mod memory;
pub(crate) mod nic;
mod posted;
mod queue_pair;

pub use posted::PostedDriver;
