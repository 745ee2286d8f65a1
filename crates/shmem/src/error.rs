//! What can go wrong in a world, as values.

use std::time::Duration;

use anabranch_bootstrap::{Elsewhere, Loss};
use anabranch_ranks::{GlobalRank, GroupRank};
use anabranch_transport::{Refusal, TransportKind};

use crate::fault::Fault;

/// The result of calls in this crate.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// An error of a world.
///
/// [`Error::Fault`] and [`Error::Rendezvous`] are final: the world is poisoned and every later call returns the first
/// cause. All others leave the world as it was, on every rank of the call alike; [`Error::RanksMissing`] with lost ranks comes
/// from a world that has failed by their loss.
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
    /// Members of a group did not come to a [`crate::World::monitored_barrier`] in time, or were lost. When nobody was lost the
    /// world goes on.
    #[error("monitored barrier of {size} ranks: {}", absence_text(*waited, *by, missing, *all, elsewhere, lost))]
    RanksMissing {
        /// Members of the group.
        size: u32,
        /// How long this rank was in the call; nearly nothing when the others had given up before.
        waited: Duration,
        /// The member whose timeout passed first; none when all but the lost ones came.
        by: Option<GlobalRank>,
        /// Who is missing, in group order, the lost included: all, or only the first.
        missing: Vec<GlobalRank>,
        /// Whether these are all; otherwise there may be more.
        all: bool,
        /// Those among them that wait in other calls.
        elsewhere: Vec<Elsewhere>,
        /// Those among them that left or died, in the order of the news.
        lost: Vec<Loss>,
    },
    /// Another rank failed in a step that all take together. That rank has its own error; this is its text.
    #[error("{step} failed on {rank}: {cause}")]
    Elsewhere {
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
        expected: &'static str,
    },
    /// What cannot be part of a graph was put on a stream that is being captured.
    #[error("{what} cannot be captured into a graph")]
    Capturing {
        /// What.
        what: &'static str,
    },
    /// The system did not start a thread.
    #[error("the thread for {what} could not be started")]
    Thread {
        /// What for.
        what: &'static str,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// Legs were captured, or made a part of a launch, before there were streams for them: [`crate::Team::prepare_legs`].
    #[error("there are no streams for legs yet: prepare them before the capture or the launch")]
    LegsNotPrepared,
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
    /// Two ranks use one GPU, where kernels that wait for each other could not run at the same time.
    #[error("{first} and {second} use the same device {pci}; give every rank its own")]
    SharedDevice {
        /// A rank.
        first: GlobalRank,
        /// Another one.
        second: GlobalRank,
        /// The PCI address of the device.
        pci: String,
    },
    /// The device has no room for the heap.
    #[error("no room for heap.bytes = {bytes} on {device}: {free} of {total} bytes are free")]
    HeapMemory {
        /// What was asked for.
        bytes: u64,
        /// The device.
        device: anabranch_hip::DeviceOrdinal,
        /// Free bytes of the device.
        free: u64,
        /// All bytes of the device.
        total: u64,
        /// The runtime's error.
        #[source]
        source: anabranch_hip::Error,
    },
    /// The heap's memory cannot be had in the way that the configuration names.
    #[error("heap.mode = flat with heap.bytes = {bytes} cannot be had on {device} of the {runtime} runtime")]
    FlatHeap {
        /// Bytes of the heap.
        bytes: u64,
        /// The device.
        device: anabranch_hip::DeviceOrdinal,
        /// Its runtime.
        runtime: anabranch_hip::RuntimeKind,
        /// What is missing.
        #[source]
        source: anabranch_transport_p2p::WindowError,
    },
    /// The ranks of this host did not get each other's heaps to map, with `heap.mode = "flat"`.
    #[error("the file descriptors of the heaps did not pass between the processes of this host")]
    PassDescriptors {
        /// Which rank, and why.
        #[source]
        source: anabranch_transport_p2p::ExchangeError,
    },
    /// The runtime placed the heap at an address of too small an alignment.
    #[error("the heap lies at {address:#x}, which is not a multiple of {alignment}")]
    HeapAlignment {
        /// Where it lies.
        address: u64,
        /// What is needed.
        alignment: u64,
    },
    /// The heap has no place for a request that is free on all members.
    #[error(
        "the symmetric heap has no room for {needed} bytes (alignment {alignment}, {tag}): the largest range free on all \
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
    /// The members agreed on a place that is taken here: a defect of this library.
    #[error(
        "the heap's place {offset}, {bytes} bytes, which all members took for free, is taken on this rank"
    )]
    HeapPlace {
        /// Where it starts.
        offset: u64,
        /// Its bytes.
        bytes: u64,
    },
    /// An alignment that cannot be had.
    #[error("alignment {given}: a power of two up to {max} expected")]
    Alignment {
        /// What was given.
        given: u64,
        /// The largest.
        max: u64,
    },
    /// Bytes outside an allocation.
    #[error("{what}: bytes {offset}..{end} are outside {length} bytes")]
    OutOfRange {
        /// The operation.
        what: &'static str,
        /// First byte.
        offset: u64,
        /// One past the last byte.
        end: u64,
        /// Length of the allocation.
        length: u64,
    },
    /// A word off its natural alignment.
    #[error("{what}: offset {offset} is no multiple of {alignment}")]
    Misaligned {
        /// The operation.
        what: &'static str,
        /// The offset in the allocation.
        offset: u64,
        /// What is needed.
        alignment: u64,
    },
    /// A peer that is not in the team, or has no part of the allocation.
    #[error("{what}: group rank {} is not in the team, or has no part of the allocation", peer.get())]
    NoPart {
        /// The operation.
        what: &'static str,
        /// The peer.
        peer: GroupRank,
    },
    /// An allocation of another world than the team's.
    #[error("{what}: the allocation belongs to another world than the team")]
    OtherWorld {
        /// The operation.
        what: &'static str,
    },
    /// This rank called a collective of a group that it is not in.
    #[error("{step}: {rank} is not a member of the group")]
    NotAMember {
        /// The call.
        step: String,
        /// This rank.
        rank: GlobalRank,
    },
    /// Another thread of this rank is in a collective call of the heap.
    #[error("{rank} is in another collective call of the heap; make them one after the other")]
    HeapBusy {
        /// This rank.
        rank: GlobalRank,
    },
    /// A stream was not done in time. The world is not affected, but when [`crate::World::leave`] says so; waiting again is
    /// possible.
    #[error("the stream is still at work after {waited:?}, and no wait for a peer has failed")]
    StreamBusy {
        /// How long it was waited for.
        waited: Duration,
    },
    /// A launch uses memory of the heap whose handle was dropped or freed before.
    #[error("an allocation that this launch uses was dropped or freed before it")]
    MemoryGone,
    /// Work was put on a stream, and no event could be left behind it, so that nobody will know when it is over: its memory
    /// stays for good.
    #[error("no event could be left behind work that was launched, so that it cannot be waited for")]
    Untracked {
        /// The runtime's error.
        #[source]
        source: std::sync::Arc<anabranch_hip::Error>,
    },
    /// More waiting blocks would be in flight than the device can run at the same time.
    #[error(
        "{asked} blocks that wait for peers were asked for; {resident} fit on the device and {in_use_percent} % of it is \
         taken by others in flight"
    )]
    Residency {
        /// Blocks asked for.
        asked: u32,
        /// Blocks of this kernel that the device runs at the same time.
        resident: u32,
        /// Share of the device that is taken.
        in_use_percent: u32,
    },
    /// A buffer of this rank could not be made known to its NIC.
    #[error("{bytes} bytes at {address:#x} cannot be registered with the NIC")]
    RegisterLocal {
        /// Start of the buffer.
        address: u64,
        /// Bytes of the buffer.
        bytes: u64,
        /// Why.
        #[source]
        source: anabranch_transport_rdma::NicError,
    },
    /// Two ranks reach each other in different ways, one of them by NIC, whose queue pairs have to be connected at both ends.
    #[error(
        "{first} reaches {second} over {kind}, but {second} reaches {first} over {back}; with a NIC both have to"
    )]
    OneWayRoute {
        /// A rank.
        first: GlobalRank,
        /// The other.
        second: GlobalRank,
        /// The route from the first to the second.
        kind: TransportKind,
        /// The route back.
        back: TransportKind,
    },
    /// A leg to a member that is reached by NIC has no place in its heap.
    #[error(
        "a leg of {bytes} bytes to {peer}, which is reached by NIC, has its target at {address:#x}, not within this rank's heap"
    )]
    LegTarget {
        /// The member.
        peer: GroupRank,
        /// The target.
        address: u64,
        /// Bytes.
        bytes: u64,
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
    /// The identity of this process or machine could not be read.
    #[error("cannot read {path}, which tells processes and machines apart")]
    Identity {
        /// The file.
        path: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

fn considered_text(considered: &[(TransportKind, Refusal)]) -> String {
    let words: Vec<_> = considered.iter().map(|(kind, why)| format!("{kind}: {why}")).collect();
    words.join("; ")
}

fn absence_text(
    waited: Duration,
    by: Option<GlobalRank>,
    missing: &[GlobalRank],
    all: bool,
    elsewhere: &[Elsewhere],
    lost: &[Loss],
) -> String {
    let ranks: Vec<_> = missing.iter().map(|rank| rank.get().to_string()).collect();
    let are = if ranks.len() == 1 { "rank" } else { "ranks" };
    let more = if all { "" } else { ", and perhaps others (wait_all_ranks names all)" };
    let mut words = vec![format!("missing after {waited:?}: {are} {}{more}", ranks.join(", "))];
    words.extend(by.map(|by| format!("{by} was the first whose timeout passed")));
    words.extend(elsewhere.iter().map(|other| format!("{} waits in {}", other.rank, other.phase)));
    words.extend(lost.iter().map(Loss::to_string));
    words.join("; ")
}
