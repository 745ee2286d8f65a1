//! The symmetric heap: one segment a rank, divided the same way by all members of a group.

pub(crate) mod ledger;
#[cfg(test)]
mod ledger_tests;
mod memory;
pub(crate) mod ranges;
#[cfg(test)]
mod ranges_tests;

pub use memory::FlatHeap;
pub(crate) use memory::{HEADER_BYTES, HeapMemory, MemoryGuard};

/// The alignment to ask for where nothing else is needed; also the granularity of sizes.
pub const DEFAULT_ALIGNMENT: u64 = 256;
/// The largest alignment: a page, to which every runtime aligns large allocations.
pub const MAX_ALIGNMENT: u64 = 4096;
