//! Waits that kernels have noted, in words.

use anabranch_hip_jit::control::WaitNote;
use anabranch_ranks::GlobalRank;

pub(crate) const NOTE_BYTES: usize = size_of::<WaitNote>();

/// A wait of a kernel's first block that lasted some microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedWait {
    /// The operation, as errors name it.
    pub operation: String,
    /// What in it was waited for.
    pub phase: String,
    /// The number of the operation's call among its kernels.
    pub epoch: u64,
    /// The rank that was waited for; of several, the first that was missing.
    pub peer: GlobalRank,
    /// By the clock of kernels.
    pub begin_ns: u64,
    /// By the clock of kernels.
    pub end_ns: u64,
}
