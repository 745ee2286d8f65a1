//! A NIC in software: it consumes the queue entries that kernels write for real ones, and moves the bytes. For tests, simulation,
//! and machines without a NIC.
//!
//! [`SoftNic`] is a driver of the RDMA transport. Kernels write entries, doorbell records and doorbells as for the real NIC; it reads
//! them with a decoder of its own ([`decode`]), refuses whatever is not as it must be ([`Stopped`]), and carries requests over a
//! [`Fabric`] to the peer's NIC, which checks keys and ranges and answers. Completions are written as the real NIC writes them. What
//! the specification leaves open, an [`Adversary`] decides by a seed.
//!
//! Within a queue pair requests are done in order and once; the payload of a message is placed before anything of a later message;
//! reads and atomic operations may be overtaken by later writes unless those wait (fence). Atomic operations are atomic towards other
//! requests to the same NIC; on the runtime made of CPU threads also towards kernels.
#![deny(unsafe_code)]

mod config;
pub mod decode;
mod device_memory;
mod endpoint;
pub mod fabric;
mod keys;
mod machine;
mod memory;
mod nic;
mod open;
mod place;
mod random;
mod register;
mod ring;
mod stopped;
mod syndrome;

pub use config::{Adversary, NicFaults, Placement, SoftNicConfig};
pub use fabric::{Fabric, InProcess, Listen, StreamPort};
pub use machine::{Immediate, Traffic};
pub use memory::NicMemory;
pub use nic::SoftNic;
pub use open::SoftNics;
pub use stopped::Stopped;
pub use syndrome::Syndrome;

/// What messages call the NIC that is not opened yet.
const NIC: &str = "a NIC in software";
