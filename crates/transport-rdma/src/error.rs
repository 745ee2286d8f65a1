//! What can go wrong between a rank and its NIC.

use anabranch_ranks::GlobalRank;

use crate::driver::Atomics;

/// An error of a driver.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NicError {
    #[error("{library} cannot be opened ({looked}): {cause}")]
    Library {
        library: &'static str,
        /// What was looked for, and where.
        looked: String,
        cause: String,
    },
    #[error("no NIC can be used: {reasons}")]
    NoNic {
        /// Each that was found and why it was not taken, or that there is none.
        reasons: String,
    },
    #[error("{call} failed on {nic}: {cause}")]
    Call {
        call: &'static str,
        nic: String,
        /// The code in words.
        cause: String,
    },
    #[error("the endpoint of {peer} is not one of {driver}: {problem}")]
    Endpoint { peer: GlobalRank, driver: String, problem: String },
    /// Two ranks' NICs do not have the same atomic operations, which kernels of both are compiled for.
    #[error("the NIC of {own} has {ours}, that of {peer} {theirs}: kernels of all ranks use the same")]
    Atomics { own: GlobalRank, ours: Atomics, peer: GlobalRank, theirs: Atomics },
    #[error("{what}: {given} given, {allowed} allowed on {nic}")]
    Limit { what: &'static str, given: u64, allowed: String, nic: String },
    #[error("the memory of a NIC's queue")]
    Memory(#[from] anabranch_hip::Error),
    #[error("{what}")]
    System {
        what: String,
        #[source]
        source: std::io::Error,
    },
}

/// The result of calls in this crate.
pub type Result<T, E = NicError> = core::result::Result<T, E>;
