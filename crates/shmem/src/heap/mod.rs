//! The symmetric heap: one segment a rank, divided the same way by all members of a group.

mod allocate;
pub mod ledger;
mod memory;
pub mod ranges;

pub use allocate::{DEFAULT_ALIGNMENT, HeapUsage, MAX_ALIGNMENT, SymmetricMemory};
pub use memory::{FlatHeap, MemoryGuard};
pub(crate) use memory::{HEADER_BYTES, HeapMemory};
