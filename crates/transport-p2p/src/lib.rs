//! Reaches peers by mapping their memory.
//!
//! Three mechanisms, chosen per peer: this rank's own address; between threads of one process the address that the
//! other rank uses, with peer access enabled between the devices; between processes of one host an IPC handle.
//! A handle of one's own process is never opened (GPUs refuse it). All three can occur in one world.
//!
//! How an address came about is part of the type that holds it ([`Mapping`]), so that only what was mapped is
//! unmapped. Handles are opened once for each exporting allocation and shared: closing one registration cannot
//! pull the mapping from under another.

mod mapping;
mod offer;
mod transport;

pub use mapping::Mapping;
pub use transport::P2pTransport;
