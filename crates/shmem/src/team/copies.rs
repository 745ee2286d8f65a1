//! Copies to peers side by side, by copy engines on GPUs, by threads on the host runtime, or by NIC.
//!
//! The copies of a call run on streams of the team: one or more for each member, so that each link has an engine at work; or one for
//! all other members, where a single copy fills what this rank can send, and one for this rank's part. They fork from the caller's
//! stream and join it again: what was on that stream before is done before the first copy begins, and what follows there finds all
//! copies done. Forks and joins are events, so the whole may be captured into a graph.
//!
//! Where the route to a member has queues that kernels write (transport `sdma`), a kernel of one wave posts the copies to the engines
//! and waits until they are done, instead of a stream. For members that are reached by NIC, a kernel of one wave posts them to queue
//! pairs.
//!
//! Copies wait for no peer. Kernels before and after them establish that a peer's buffer may be overwritten, and that it has been;
//! their waits have a deadline. After a fault of the former the copies still run: the contents of their targets are undefined then,
//! also for a member's work that had not ended before.

use std::sync::PoisonError;

use anabranch_hip::{Device, DeviceAddress, Event, RuntimeKind, Stream};
use anabranch_ranks::GroupRank;

use super::Team;
use crate::error::{Error, Result};
use crate::fault::names::OperationCode;
use crate::inflight::MemoryUse;
use crate::route::{EngineCopy, NicCopy};

/// A copy of bytes to one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCopy {
    /// Whose memory is written; this rank's own too.
    pub peer: GroupRank,
    /// Where, as mapped here. Of a member that is reached by NIC: the same place in this rank's own heap. Any alignment.
    pub target: DeviceAddress,
    /// Where the bytes are.
    pub source: DeviceAddress,
    /// How many; zero is no copy.
    pub bytes: u64,
}

/// The most streams for copies to one member.
pub const MAX_COPY_STREAMS: u32 = 16;
/// Copies are not cut into pieces smaller than this: a copy has a fixed cost of some microseconds, in which a link moves about as much.
const LEAST_PIECE: u64 = 256 << 10;
/// Pieces begin at multiples of this.
const PIECE_ALIGNMENT: u64 = 256;

/// The streams of a team's copies: a set for work that runs, and one for captures, of which there is one at a time. A captured
/// stream takes no other work until its capture has ended, and calls in between may be of either kind.
#[derive(Debug)]
pub(crate) struct CopyStreams {
    /// 0: one for all other members, and one for this rank.
    per_member: u32,
    running: Branches,
    captured: Branches,
}

/// Streams that fork from one and join it again.
#[derive(Debug)]
struct Branches {
    fork: Event,
    /// `[members][per_member]`, or two, each with the event after its last copy.
    list: Vec<(Stream, Event)>,
}

impl Branches {
    fn new(device: &Device, count: u32) -> Result<Self> {
        let one = |_| Ok((device.create_priority_stream()?, device.create_event()?));
        Ok(Self { fork: device.create_event()?, list: (0..count).map(one).collect::<Result<_>>()? })
    }

    /// # Safety
    /// That of [`Team::copy_to_peers`].
    unsafe fn run(&self, stream: &Stream, pieces: &[(usize, PeerCopy)]) -> (Result<()>, Vec<usize>) {
        let mut used = Vec::new();
        let copied = (|| {
            stream.record(&self.fork)?;
            for (index, copy) in pieces {
                let Some((branch, _)) = self.list.get(*index) else { continue };
                if !used.contains(index) {
                    used.push(*index);
                    branch.wait_event(&self.fork)?;
                }
                // SAFETY: the caller's promise.
                unsafe { branch.copy_async(copy.target, copy.source, copy.bytes as usize) }?;
            }
            Ok(())
        })();
        (copied, used)
    }

    /// Orders the stream after the fork.
    fn follow(&self, stream: &Stream) -> Result<(), anabranch_hip::Error> {
        stream.wait_event(&self.fork)
    }

    /// Orders the stream after these branches.
    fn join(&self, stream: &Stream, used: &[usize]) -> Result<(), anabranch_hip::Error> {
        for (branch, joined) in used.iter().filter_map(|index| self.list.get(*index)) {
            branch.record(joined)?;
            stream.wait_event(joined)?;
        }
        Ok(())
    }
}

/// The pieces of the copies, and the branch of each: a long copy is cut into one piece per stream of its member. Where `per_member` is 0, all
/// share branch 0 but those within the memory of `own`, which use none of its links and have branch 1.
fn pieces(copies: &[PeerCopy], own: GroupRank, per_member: u32) -> Vec<(usize, PeerCopy)> {
    let mut pieces = Vec::with_capacity(copies.len());
    for copy in copies.iter().filter(|copy| copy.bytes > 0) {
        let wanted = (copy.bytes / LEAST_PIECE).clamp(1, per_member.max(1).into());
        let length = copy.bytes.div_ceil(wanted).next_multiple_of(PIECE_ALIGNMENT);
        let starts = (0..wanted).map(|piece| piece * length).take_while(|start| *start < copy.bytes);
        for (piece, start) in starts.enumerate() {
            let (target, source) = (copy.target.offset(start), copy.source.offset(start));
            let cut = PeerCopy { target, source, bytes: length.min(copy.bytes - start), ..*copy };
            let branch = match per_member {
                0 => usize::from(copy.peer == own),
                _ => copy.peer.index() * per_member as usize + piece,
            };
            pieces.push((branch, cut));
        }
    }
    pieces
}

impl Team {
    /// Streams for the copies to each member that suit this rank's device: 0, one for all others, on NVIDIA GPUs, where all links go to a
    /// switch and copies that run at once slow each other down (`docs/performance.md`); else 1, for a link to each.
    pub fn default_copy_streams(&self) -> u32 {
        match self.world().device().runtime().kind() {
            RuntimeKind::Nvidia => 0,
            RuntimeKind::Amd | RuntimeKind::Host => 1,
        }
    }

    /// Makes the streams for copies, unless they are there: `per_member` for each member, or with 0 one for all other members, whose copies then
    /// follow each other in their order, and one for this rank. Before the first [`Self::enqueue_copies`], and outside of captures. Not collective.
    ///
    /// # Errors
    /// [`Error::Config`] for more than [`MAX_COPY_STREAMS`]; the runtime's.
    pub fn prepare_copies(&self, per_member: u32) -> Result<()> {
        if per_member > MAX_COPY_STREAMS {
            let (field, given) = ("streams for the copies to one member", per_member.to_string());
            return Err(Error::Config { field, given, expected: "0 to 16".into() });
        }
        let mut copies = self.copies().lock().unwrap_or_else(PoisonError::into_inner);
        if copies.as_ref().is_some_and(|known| known.per_member == per_member) {
            return Ok(());
        }
        let (device, count) = (self.world().device(), (self.size() * per_member).max(2));
        let (running, captured) = (Branches::new(device, count)?, Branches::new(device, count)?);
        if let Some(before) = copies.replace(CopyStreams { per_member, running, captured }) {
            // Work may be under way on them.
            self.hold(before);
        }
        Ok(())
    }

    /// Runs all copies on the team's streams for them ([`Self::prepare_copies`], else [`Self::default_copy_streams`]), after what is
    /// on `stream`; what follows there comes after them. Returns at once. Several
    /// copies to one member may be cut and share streams; those to different members go side by side, in the order given: begin with the
    /// next member, so that not all ranks begin with the same one. Tracked as a launch of the team is, with `uses` ([`Team::launch_in_order`]).
    /// May be captured. Not collective.
    ///
    /// # Errors
    /// Before anything moves: [`Error::Invalid`] for a peer that is not a member, and [`Error::InvalidState`] in a capture
    /// without [`Self::prepare_copies`]. Those of
    /// [`Team::launch_in_order`], and the runtime's.
    ///
    /// # Safety
    /// Targets and sources are memory that this rank's device reaches, and stay so until the stream has passed the join. Until then
    /// nothing else writes a source or accesses a target, and no target overlaps another copy's target or source.
    pub unsafe fn copy_to_peers(
        &self,
        stream: &Stream,
        copies: &[PeerCopy],
        uses: &[MemoryUse],
    ) -> Result<()> {
        self.check_copies(copies)?;
        if !stream.is_capturing()? && self.copies().lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            self.prepare_copies(self.default_copy_streams())?;
        }
        // SAFETY: the caller's promise is the same.
        drop(self.launch_in_order(stream, uses, || unsafe { self.enqueue_copies(stream, copies) })?);
        self.note_operation(
            stream,
            "copies to several members",
            &[OperationCode::ENGINE_COPY, OperationCode::NIC_COPY],
        );
        Ok(())
    }

    /// [`Self::copy_to_peers`] as a part of a tracked launch: call it only in the closure of [`Team::launch_in_order`], on its
    /// stream.
    ///
    /// # Errors
    /// Before anything moves: [`Error::Invalid`], [`Error::InvalidState`]. The runtime's; [`Error::Untracked`] when copies are under way and
    /// the stream could not be ordered after them.
    ///
    /// # Safety
    /// That of [`Self::copy_to_peers`].
    pub unsafe fn enqueue_copies(&self, stream: &Stream, copies: &[PeerCopy]) -> Result<()> {
        self.check_copies(copies)?;
        // Held to the end: forks and joins of two calls must not mix.
        let streams = self.copies().lock().unwrap_or_else(PoisonError::into_inner);
        let streams = streams.as_ref().ok_or_else(not_prepared)?;
        let nics = self.by_nic(copies)?;
        let mapped = copies.iter().filter(|copy| !self.is_by_nic(copy.peer));
        let (posted, copies): (Vec<PeerCopy>, Vec<PeerCopy>) =
            mapped.partition(|copy| copy.bytes > 0 && self.copies_by_queues(copy.peer));
        let pieces = pieces(&copies, self.rank(), streams.per_member);
        let branches = if stream.is_capturing()? { &streams.captured } else { &streams.running };
        // Copies of streams first: the kernel that posts the others waits until those are done.
        let (copied, used) = if pieces.is_empty() {
            (Ok(()), Vec::new())
        } else {
            // SAFETY: the caller's promise.
            unsafe { branches.run(stream, &pieces) }
        };
        // On the stream itself.
        // SAFETY: the caller's promise.
        let posted = unsafe { self.post_all(stream, &posted, &nics) };
        // Also when not all could be put there: what could is under way.
        branches.join(stream, &used).map_err(|error| self.in_flight().lose(error))?;
        copied.and(posted)
    }

    /// Runs all copies after what is on `stream`, and orders `joins`, another stream of the same device, after both; `stream` itself
    /// goes on beside the copies. To order it after them later, wait for an event on `joins`; in a capture this has to happen before
    /// the capture ends. Copies whose route has queues that kernels write are posted by a kernel on `joins`. The caller tracks `joins`
    /// ([`World::launching`](crate::World::launching)), and keeps the team until it has passed. Not collective.
    ///
    /// # Errors
    /// As [`Self::enqueue_copies`].
    ///
    /// # Safety
    /// That of [`Self::copy_to_peers`], until `joins` has passed the copies.
    pub unsafe fn fork_copies(&self, stream: &Stream, joins: &Stream, copies: &[PeerCopy]) -> Result<()> {
        self.check_copies(copies)?;
        let streams = self.copies().lock().unwrap_or_else(PoisonError::into_inner);
        let streams = streams.as_ref().ok_or_else(not_prepared)?;
        let nics = self.by_nic(copies)?;
        let mapped = copies.iter().filter(|copy| !self.is_by_nic(copy.peer));
        let (posted, copies): (Vec<PeerCopy>, Vec<PeerCopy>) =
            mapped.partition(|copy| copy.bytes > 0 && self.copies_by_queues(copy.peer));
        let branches = if stream.is_capturing()? { &streams.captured } else { &streams.running };
        // SAFETY: the caller's promise.
        let (copied, used) =
            unsafe { branches.run(stream, &pieces(&copies, self.rank(), streams.per_member)) };
        branches.follow(joins).map_err(|error| self.in_flight().lose(error))?;
        branches.join(joins, &used).map_err(|error| self.in_flight().lose(error))?;
        copied?;
        // SAFETY: the caller's promise.
        unsafe { self.post_all(joins, &posted, &nics) }
    }

    fn check_copies(&self, copies: &[PeerCopy]) -> Result<()> {
        let stranger = copies.iter().find(|copy| self.group().global(copy.peer).is_none());
        stranger.map_or(Ok(()), |copy| Err(Error::no_part("copy_to_peers", copy.peer)))?;
        self.by_nic(copies).map(|_| ())
    }

    /// The copies that go by NIC.
    fn by_nic(&self, copies: &[PeerCopy]) -> Result<Vec<NicCopy>> {
        let heap = &self.world().inner.heap;
        let (base, size) = (heap.address().0, heap.bytes());
        let nic_copy = |copy: &PeerCopy| {
            let PeerCopy { peer, target, source, bytes } = *copy;
            let offset = target
                .0
                .checked_sub(base)
                .filter(|offset| offset.checked_add(bytes).is_some_and(|end| end <= size));
            let offset = offset.ok_or_else(|| Error::Invalid {
                call: "copy_to_peers",
                given: format!("{bytes} bytes at {:#x} for {peer}, which is reached by NIC", target.0),
                allowed: "targets within this rank's heap, at the same offset as in the peer's".to_owned(),
            })?;
            Ok(NicCopy::put(peer, offset, source, bytes))
        };
        copies.iter().filter(|copy| copy.bytes > 0 && self.is_by_nic(copy.peer)).map(nic_copy).collect()
    }

    /// Posts copies to queues of engines and to queue pairs, by kernels on the stream.
    ///
    /// # Safety
    /// That of [`Self::copy_to_peers`].
    unsafe fn post_all(&self, stream: &Stream, engines: &[PeerCopy], nics: &[NicCopy]) -> Result<()> {
        let post = |copy: &PeerCopy| EngineCopy::new(copy.peer, copy.target, copy.source, copy.bytes);
        // SAFETY: the caller's promise.
        unsafe { self.post_copies(stream, &engines.iter().map(post).collect::<Vec<_>>()) }?;
        // SAFETY: the caller's promise; the targets are places of the members' heaps.
        unsafe { self.copy_by_nic(stream, nics) }
    }
}

fn not_prepared() -> Error {
    let problem = "there are no streams for copies yet: call prepare_copies before the capture or the launch";
    Error::InvalidState { call: "enqueue_copies", problem: problem.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn copy(peer: u32, start: u64, bytes: u64) -> PeerCopy {
        let peer = GroupRank::new(peer);
        PeerCopy { peer, target: DeviceAddress(0x1000 + start), source: DeviceAddress(0x9000 + start), bytes }
    }

    #[test]
    fn short_copies_are_whole_and_none_is_no_copy() {
        let copies = [copy(2, 0, LEAST_PIECE * 2 - 1), copy(0, 7, 0), copy(1, 3, 1)];
        let own = GroupRank::new(1);
        assert_eq!(pieces(&copies, own, 4), [(8, copies[0]), (4, copies[2])]);
        assert_eq!(pieces(&copies, own, 0), [(0, copies[0]), (1, copies[2])]);
    }

    proptest! {
        #[test]
        fn every_byte_goes_once_and_to_its_member(
            given in proptest::collection::vec((0u32..5, 0u64..1000, 0u64..(8 << 20)), 0..6),
            per_member in 0u32..=MAX_COPY_STREAMS,
        ) {
            let copies: Vec<_> = given.iter().map(|(peer, start, bytes)| copy(*peer, *start, *bytes)).collect();
            let own = GroupRank::new(3);
            let mut pieces = pieces(&copies, own, per_member).into_iter().peekable();
            for copy in copies {
                let mut moved = 0;
                while let Some((branch, piece)) = pieces.next_if(|_| moved < copy.bytes) {
                    let shared = usize::from(copy.peer == own);
                    let expected = if per_member == 0 { shared } else { copy.peer.index() };
                    prop_assert_eq!(branch / per_member.max(1) as usize, expected);
                    prop_assert_eq!((piece.peer, piece.target), (copy.peer, copy.target.offset(moved)));
                    prop_assert_eq!(piece.source, copy.source.offset(moved));
                    prop_assert!(piece.bytes > 0);
                    moved += piece.bytes;
                }
                prop_assert_eq!(moved, copy.bytes);
            }
            prop_assert!(pieces.next().is_none());
        }
    }
}
