//! What can go wrong between a rank and a peer's memory.

use anabranch_ranks::GlobalRank;

use crate::{HostIdentity, Operation, Scope, TransportKind};

/// An error of a transport.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The cell of the operation matrix is empty, or has another form of the operation only.
    #[error("{operation} at {scope} scope is unsupported over {kind}{form}")]
    Unsupported {
        /// The operation.
        operation: Operation,
        /// The scope.
        scope: Scope,
        /// The transport.
        kind: TransportKind,
        /// The form that was asked for, and the one that is supported; empty where none is.
        form: String,
    },
    /// The transport does not reach the peer.
    #[error("{peer} is not reachable over {kind}")]
    Refused {
        /// The peer.
        peer: GlobalRank,
        /// The transport.
        kind: TransportKind,
        /// Why.
        #[source]
        refusal: Refusal,
    },
    /// A region of this rank's memory cannot be offered to peers.
    #[error("{bytes} bytes at {address:#x} cannot be offered over {kind}")]
    Export {
        /// The transport.
        kind: TransportKind,
        /// Start of the region.
        address: u64,
        /// Bytes of the region.
        bytes: u64,
        /// The runtime's error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A region reaches beyond the allocation that it starts in, or into another device's memory.
    #[error(
        "{bytes} bytes at {address:#x} are not within one allocation of device {device}: \
         the allocation there is of device {owner} and has {available} byte(s) from that address on"
    )]
    NotOneAllocation {
        /// Start of the region.
        address: u64,
        /// Bytes of the region.
        bytes: u64,
        /// The rank's device.
        device: u32,
        /// The device that owns the allocation.
        owner: u32,
        /// Bytes of the allocation from the address on.
        available: u64,
    },
    /// A peer's offer is not one of this transport, or of another version of it.
    #[error("the offer of {peer} is not one of {kind}: {problem}")]
    Offer {
        /// The peer.
        peer: GlobalRank,
        /// The transport.
        kind: TransportKind,
        /// What does not fit.
        problem: &'static str,
    },
    /// A peer's memory could not be mapped.
    #[error("the memory of {peer} cannot be opened over {kind}")]
    Open {
        /// The peer.
        peer: GlobalRank,
        /// The transport.
        kind: TransportKind,
        /// The runtime's error, with its code.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Why a transport was not taken for a peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The peer is on another machine.
    #[error("the peer is on another host ({peer}, here {local})")]
    OtherHost {
        /// This rank's host.
        local: HostIdentity,
        /// The peer's host.
        peer: HostIdentity,
    },
    /// The peer's runtime is another one.
    #[error("the peer uses the {peer} runtime, this rank the {local} runtime")]
    OtherRuntime {
        /// This rank's runtime.
        local: String,
        /// The peer's runtime.
        peer: String,
    },
    /// Same process, but another instance of the runtime, whose devices are not this one's.
    #[error("the peer uses another instance of the {runtime} runtime in this process; share one")]
    OtherInstance {
        /// The runtime.
        runtime: String,
    },
    /// The runtime says that the devices cannot reach each other.
    #[error("device {local} ({local_pci}) cannot access peer device {peer} ({peer_pci})")]
    NoPeerAccess {
        /// This rank's device.
        local: u32,
        /// Its PCI address.
        local_pci: String,
        /// The peer's device, by this process's count.
        peer: u32,
        /// Its PCI address.
        peer_pci: String,
    },
    /// A call failed on the way.
    #[error("{cause}")]
    Failed {
        /// The error with its causes, in words: the call, the device, the code.
        cause: String,
    },
}

impl Refusal {
    /// A refusal from an error and its chain of causes.
    pub fn from_error(error: &dyn std::error::Error) -> Self {
        let mut cause = error.to_string();
        let mut next = error.source();
        while let Some(error) = next {
            cause.push_str(": ");
            cause.push_str(&error.to_string());
            next = error.source();
        }
        Self::Failed { cause }
    }
}

/// The result of calls in this crate.
pub type Result<T, E = Error> = core::result::Result<T, E>;
