//! Reaches peers by mapping their memory.
//!
//! Three mechanisms, chosen per peer: this rank's own address; between threads of one process the address that the
//! other rank uses, with peer access enabled between the devices; between processes of one host an IPC handle.
//! A handle of one's own process is never opened (GPUs refuse it). All three can occur in one world.
//!
//! How an address came about is part of the type that holds it ([`Mapping`]), so that only what was mapped is
//! unmapped. Handles are opened once for each exporting allocation and shared: closing one registration cannot
//! pull the mapping from under another.

//!
//! A [`FlatWindow`] takes the place of all three for memory that every rank maps into one range of addresses, in the order
//! of the ranks: physical memory without an address of its own, found within a process by its handle, and between
//! processes by a file descriptor.

mod descriptors;
mod letter;
mod mapping;
mod offer;
mod transport;
mod window;

pub use descriptors::{ExchangeError, Patience};
pub use mapping::Mapping;
pub use transport::P2pTransport;
pub use window::{FlatLayout, FlatWindow, WindowError};
