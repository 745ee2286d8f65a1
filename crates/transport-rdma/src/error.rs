//! What can go wrong between a rank and its NIC.

use anabranch_ranks::GlobalRank;

use crate::driver::Atomics;

/// An error of a driver.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NicError {
    /// A library of the NIC's is not on this machine.
    #[error("{library} cannot be opened ({looked}): {cause}")]
    Library {
        /// The library.
        library: &'static str,
        /// What was looked for, and where.
        looked: String,
        /// The loader's words.
        cause: String,
    },
    /// No NIC can serve.
    #[error("no NIC can be used: {reasons}")]
    NoNic {
        /// Each that was found and why it was not taken, or that there is none.
        reasons: String,
    },
    /// A call of the NIC's library failed.
    #[error("{call} failed on {nic}: {cause}")]
    Call {
        /// The call.
        call: &'static str,
        /// The NIC.
        nic: String,
        /// The code in words.
        cause: String,
    },
    /// What a peer sent does not describe a queue pair that this driver can connect to.
    #[error("the endpoint of {peer} is not one of {driver}: {problem}")]
    Endpoint {
        /// The peer.
        peer: GlobalRank,
        /// The driver.
        driver: String,
        /// What does not fit.
        problem: String,
    },
    /// Two ranks' NICs do not have the same atomic operations, which kernels of both are compiled for.
    #[error("the NIC of {own} has {ours}, that of {peer} {theirs}: kernels of all ranks use the same")]
    Atomics {
        /// This rank.
        own: GlobalRank,
        /// What its NIC has.
        ours: Atomics,
        /// The peer.
        peer: GlobalRank,
        /// What the peer's NIC has.
        theirs: Atomics,
    },
    /// The NIC has not what was asked for.
    #[error("{what}: {given} given, {allowed} allowed on {nic}")]
    Limit {
        /// The quantity.
        what: &'static str,
        /// What was given.
        given: u64,
        /// What is allowed.
        allowed: String,
        /// The NIC.
        nic: String,
    },
    /// The runtime refused memory.
    #[error("the memory of a NIC's queue")]
    Memory(#[from] anabranch_hip::Error),
    /// The system refused something.
    #[error("{what}")]
    System {
        /// What was tried.
        what: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

/// The result of calls in this crate.
pub type Result<T, E = NicError> = core::result::Result<T, E>;
