//! What can go wrong in a world, as values.

mod fault;

use std::borrow::Cow;
use std::time::Duration;

use anabranch_ranks::{ErrorKind, GlobalRank, GroupRank};
use anabranch_transport::{Refusal, TransportKind};

pub use fault::{ExpiredWait, Fault};

/// The result of calls in this crate.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// An error of a world.
///
/// [`Error::Fault`] and [`Error::Rendezvous`] are final: the world is poisoned and every later call returns the first
/// cause. All others leave the world as it was, on every rank of the call alike.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The world has failed; this is the first cause.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// A collective call of the host did not come to its end.
    #[error("{step} failed")]
    Rendezvous {
        /// What was being agreed on.
        step: String,
        /// Who did not come, or was lost.
        #[source]
        source: anabranch_bootstrap::Error,
    },
    /// Another rank failed in a step that all take together. That rank has its own error, of which this is the text.
    #[error("{step} failed on {rank}: {cause}")]
    FailedOn {
        /// What was being done.
        step: String,
        /// The first rank, in group order, that failed.
        rank: GlobalRank,
        /// Its error with all causes.
        cause: String,
    },
    /// A setting makes no sense.
    #[error("{field} = {given}: {expected} expected")]
    Config {
        /// The setting.
        field: &'static str,
        /// What was given.
        given: String,
        /// What is allowed.
        expected: Cow<'static, str>,
    },
    /// The call comes at the wrong time. Nothing was done.
    #[error("{call}: {problem}")]
    InvalidState {
        /// The call.
        call: &'static str,
        /// Why it cannot be made now, and what to do first.
        problem: String,
    },
    /// The system refused something: a file, a thread.
    #[error("{what} failed")]
    System {
        /// What was tried.
        what: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// Two ranks have different values where all must have the same.
    #[error("{step}: {field} differs: {rank} has {value}, {other} has {other_value}")]
    Differs {
        /// What was being made.
        step: String,
        /// The field.
        field: String,
        /// The first rank that differs from most others.
        rank: GlobalRank,
        /// Its value.
        value: String,
        /// A rank with the value that most have.
        other: GlobalRank,
        /// That value.
        other_value: String,
    },
    /// Ranks of a group called different things, or in another order.
    #[error(
        "{rank} is in {called}, but {other} is in {other_called}: collective calls have to come in the same order"
    )]
    OutOfStep {
        /// The rank that differs.
        rank: GlobalRank,
        /// What it called.
        called: String,
        /// Another rank.
        other: GlobalRank,
        /// What that called.
        other_called: String,
    },
    /// A rank sent something that is not understood.
    #[error("{step}: {rank} sent a message that is not understood: {problem}")]
    Malformed {
        /// What was being agreed on.
        step: String,
        /// The sender.
        rank: GlobalRank,
        /// What is wrong with it.
        problem: String,
    },
    /// No transport reaches a peer.
    #[error("no transport reaches {peer}: {}", considered_text(considered))]
    Unreachable {
        /// The peer.
        peer: GlobalRank,
        /// Each transport in the configured order and why it does not.
        considered: Vec<(TransportKind, Refusal)>,
    },
    /// A peer's mapped memory does not hold what the peer wrote there.
    #[error(
        "the memory of {peer} mapped over {kind} is not that of {peer}: read {read:#x}, expected {expected:#x}"
    )]
    Probe {
        /// The peer.
        peer: GlobalRank,
        /// The transport.
        kind: TransportKind,
        /// The word that was read.
        read: u64,
        /// The word that the peer wrote.
        expected: u64,
    },
    /// Two ranks cannot work together: they use one GPU, where kernels that wait for each other could not run at the same time; or
    /// only one of them reaches the other by NIC, although queue pairs have to be connected at both ends.
    #[error("{first} and {second}: {problem}")]
    Pair {
        /// A rank.
        first: GlobalRank,
        /// Another one.
        second: GlobalRank,
        /// The device or the routes, and what is allowed.
        problem: String,
    },
    /// The device has no memory for the heap, or not of the kind that `heap.mode` asks for.
    #[error("no memory for heap.bytes = {bytes} on {device}: {problem}")]
    HeapMemory {
        /// The setting `heap.bytes`.
        bytes: u64,
        /// The device.
        device: anabranch_hip::DeviceOrdinal,
        /// What the device has, or cannot do.
        problem: String,
        /// The runtime's error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The runtime allocated the heap at an address that is not aligned.
    #[error("the heap on {device} is at {address:#x}, not at a multiple of {alignment}")]
    HeapAlignment {
        /// The device.
        device: anabranch_hip::DeviceOrdinal,
        /// The heap's address.
        address: u64,
        /// The alignment that the heap needs, bytes.
        alignment: u64,
    },
    /// The ranks of this host did not get each other's heaps to map, with `heap.mode = "flat"`.
    #[error("the file descriptors of the heaps did not pass between the processes of this host")]
    PassDescriptors {
        /// Which rank, and why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The heap has no place for a request that is free on all members.
    #[error(
        "the symmetric heap cannot hold {needed} bytes (alignment {alignment}, {tag}): the largest range free on all \
         members has {largest} of {total} free bytes, so {missing} are missing; raise heap.bytes (now {heap_bytes})"
    )]
    HeapExhausted {
        /// What the request was for.
        tag: String,
        /// Bytes asked for, rounded up to the granularity.
        needed: u64,
        /// Alignment asked for.
        alignment: u64,
        /// The largest range that is free on all members.
        largest: u64,
        /// All bytes that are free on all members.
        total: u64,
        /// How many bytes more the largest range would need.
        missing: u64,
        /// The setting `heap.bytes`.
        heap_bytes: u64,
    },
    /// An argument that the call does not take: bytes outside an allocation, a word off its alignment, a peer that is not in the
    /// team or has no part of the allocation, memory of another world. Nothing was done.
    #[error("{call}: {given}; allowed: {allowed}")]
    Invalid {
        /// The call.
        call: &'static str,
        /// What was given.
        given: String,
        /// What is allowed.
        allowed: String,
    },
    /// This rank called a collective of a group that it is not in.
    #[error("{step}: {rank} is not a member of the group")]
    NotAMember {
        /// The call.
        step: String,
        /// This rank.
        rank: GlobalRank,
    },
    /// A stream was not done in time. The world is not affected, except where [`crate::World::leave`] returns it; waiting again
    /// is possible.
    #[error("the stream has not completed after {waited:?}, and no wait for a peer has failed")]
    StreamBusy {
        /// How long it was waited for.
        waited: Duration,
    },
    /// Work was put on a stream, and no event could be recorded after it. Its end is unknown, so its memory is never freed.
    #[error("no event could be recorded after launched work, so its completion is unknown")]
    Untracked {
        /// The runtime's error.
        #[source]
        source: std::sync::Arc<anabranch_hip::Error>,
    },
    /// More waiting blocks would be in flight than the device can run at the same time.
    #[error(
        "{asked} blocks that wait for peers were requested; {resident} fit on the device, and communicators and plans have taken \
         {in_use_percent} % of it: drop some, or give each fewer blocks (ccl.max_blocks, ep.blocks)"
    )]
    Residency {
        /// Blocks asked for.
        asked: u32,
        /// Blocks of this kernel that the device runs at the same time.
        resident: u32,
        /// Share of the device that is taken.
        in_use_percent: u32,
    },
    /// A transport that was asked for, and that this build lacks.
    #[error("this build has no `{kind}`: enable the cargo feature `{kind}` of anabranch")]
    NotBuilt {
        /// The transport.
        kind: TransportKind,
    },
    /// The world was left.
    #[error("the world was left")]
    Left,
    /// An error of the runtime.
    #[error(transparent)]
    Hip(#[from] anabranch_hip::Error),
    /// An error of the kernel pipeline.
    #[error(transparent)]
    Jit(#[from] anabranch_hip_jit::Error),
    /// An error of a transport.
    #[error(transparent)]
    Transport(#[from] anabranch_transport::Error),
    /// A group that cannot be.
    #[error(transparent)]
    Group(#[from] anabranch_ranks::Error),
}

impl Error {
    /// A peer that is not in the team, or has no part of the allocation.
    pub(crate) fn no_part(call: &'static str, peer: GroupRank) -> Self {
        let allowed = "members of the team that have a part of the allocation".to_owned();
        Self::Invalid { call, given: peer.to_string(), allowed }
    }

    pub(crate) fn thread(purpose: &str) -> impl FnOnce(std::io::Error) -> Self {
        let what = format!("starting the thread for {purpose}");
        move |source| Self::System { what, source }
    }
}

impl Error {
    /// Who can do something about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Fault(_)
            | Self::FailedOn { .. }
            | Self::Malformed { .. }
            | Self::PassDescriptors { .. }
            | Self::Probe { .. } => ErrorKind::Peer,
            Self::Rendezvous { source, .. } => source.kind(),
            Self::Config { .. }
            | Self::NotBuilt { .. }
            | Self::Differs { .. }
            | Self::Pair { .. }
            | Self::HeapMemory { .. }
            | Self::Residency { .. }
            | Self::HeapExhausted { .. } => ErrorKind::Config,
            Self::Unreachable { .. } | Self::System { .. } | Self::Transport(_) => ErrorKind::Environment,
            Self::StreamBusy { .. } | Self::HeapAlignment { .. } => ErrorKind::Device,
            Self::Hip(error) => error.kind(),
            Self::Jit(error) => error.kind(),
            _ => ErrorKind::Usage,
        }
    }
}

fn considered_text(considered: &[(TransportKind, Refusal)]) -> String {
    let words: Vec<_> = considered.iter().map(|(kind, why)| format!("{kind}: {why}")).collect();
    words.join("; ")
}
