//! Copies to peers side by side, by whatever moves bytes without kernels: copy engines on GPUs, threads on the host runtime.
//!
//! A *leg* is a copy to one member. The legs of a call go on streams of the team's own: one or more for each member, so that each link has
//! an engine at work; or one for all other members, where a single copy fills what this rank can send, and one for its own part. They fork from the caller's stream and join it again: what was on that stream before is done before the first leg
//! begins, and what follows there finds all legs done. Forks and joins are events, so the whole may be captured into a graph.
//!
//! Where the route to a member has queues that kernels write (transport `sdma`), a kernel of one wave gives its legs to the engines and waits
//! until they are done, instead of a stream.
//!
//! Legs to members that are reached by NIC are put into queue pairs by a kernel of one wave, too.
//!
//! Legs wait for nobody. That a peer's buffer may be overwritten, and that it has been, is for kernels before and behind to settle,
//! whose waits have a deadline. Behind a fault of the former the legs still run: what the targets hold is undefined from then on, also
//! for a member's own work that had not ended before.

use std::sync::PoisonError;

use anabranch_hip::{Device, DeviceAddress, Event, RuntimeKind, Stream};
use anabranch_ranks::GroupRank;

use crate::engine_legs::EngineLeg;
use crate::error::{Error, Result};
use crate::fault::OperationCode;
use crate::flight::MemoryUse;
use crate::nic_team::NicCopy;
use crate::team::Team;

/// A copy to one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leg {
    /// Whose memory is written; this rank's own too.
    pub peer: GroupRank,
    /// Where, as mapped here. Of a member that is reached by NIC: the same place in this rank's own heap. Any alignment.
    pub target: DeviceAddress,
    /// Where the bytes are.
    pub source: DeviceAddress,
    /// How many; zero is no copy.
    pub bytes: u64,
}

/// The most streams for the legs to one member.
pub const MOST_LEG_STREAMS: u32 = 16;
/// Legs are not cut into pieces smaller than this: a copy has a fixed cost of some microseconds, in which a link moves about as much.
const LEAST_PIECE: u64 = 256 << 10;
/// Pieces begin at multiples of this.
const PIECE_ALIGNMENT: u64 = 256;

/// The streams of a team's legs: a set for work that runs, and one for captures, of which there is one at a time. A stream that is captured takes no other work until
/// its capture has ended, and calls in between may be of either kind.
#[derive(Debug)]
pub(crate) struct LegStreams {
    /// 0: one for all other members, and one for this rank.
    per_member: u32,
    running: Branches,
    captured: Branches,
}

/// Streams that fork from one and join it again.
#[derive(Debug)]
struct Branches {
    fork: Event,
    /// `[members][per_member]`, or two, each with the event behind its last leg.
    list: Vec<(Stream, Event)>,
}

impl Branches {
    fn new(device: &Device, count: u32) -> Result<Self> {
        let one = |_| Ok((device.create_priority_stream()?, device.create_event()?));
        Ok(Self { fork: device.create_event()?, list: (0..count).map(one).collect::<Result<_>>()? })
    }

    /// # Safety
    /// That of [`Team::copy_legs`].
    unsafe fn run(&self, stream: &Stream, pieces: &[(usize, Leg)]) -> (Result<()>, Vec<usize>) {
        let mut used = Vec::new();
        let copied = (|| {
            stream.record(&self.fork)?;
            for (index, leg) in pieces {
                let Some((branch, _)) = self.list.get(*index) else { continue };
                if !used.contains(index) {
                    used.push(*index);
                    branch.wait_event(&self.fork)?;
                }
                // SAFETY: the caller's promise.
                unsafe { branch.copy_async(leg.target, leg.source, leg.bytes as usize) }?;
            }
            Ok(())
        })();
        (copied, used)
    }

    /// Puts the stream behind the fork.
    fn follow(&self, stream: &Stream) -> Result<(), anabranch_hip::Error> {
        stream.wait_event(&self.fork)
    }

    /// Puts the stream behind these branches.
    fn join(&self, stream: &Stream, used: &[usize]) -> Result<(), anabranch_hip::Error> {
        for (branch, joined) in used.iter().filter_map(|index| self.list.get(*index)) {
            branch.record(joined)?;
            stream.wait_event(joined)?;
        }
        Ok(())
    }
}

/// The pieces of the legs, and the branch of each: a long leg is cut into as many as its member has streams. Where `per_member` is 0, all
/// share branch 0 but those within the memory of `own`, which use none of its links and have branch 1.
fn pieces(legs: &[Leg], own: GroupRank, per_member: u32) -> Vec<(usize, Leg)> {
    let mut pieces = Vec::with_capacity(legs.len());
    for leg in legs.iter().filter(|leg| leg.bytes > 0) {
        let wanted = (leg.bytes / LEAST_PIECE).clamp(1, per_member.max(1).into());
        let length = leg.bytes.div_ceil(wanted).next_multiple_of(PIECE_ALIGNMENT);
        let starts = (0..wanted).map(|piece| piece * length).take_while(|start| *start < leg.bytes);
        for (piece, start) in starts.enumerate() {
            let (target, source) = (leg.target.offset(start), leg.source.offset(start));
            let cut = Leg { target, source, bytes: length.min(leg.bytes - start), ..*leg };
            let branch = match per_member {
                0 => usize::from(leg.peer == own),
                _ => leg.peer.index() * per_member as usize + piece,
            };
            pieces.push((branch, cut));
        }
    }
    pieces
}

impl Team {
    /// Streams for the legs to each member that suit this rank's device: 0, one for all others, on NVIDIA GPUs, where all links go to a
    /// switch and copies that run at once slow each other down (`docs/performance.md`); else 1, for a link to each.
    pub fn usual_leg_streams(&self) -> u32 {
        match self.world().device().runtime().kind() {
            RuntimeKind::Nvidia => 0,
            RuntimeKind::Amd | RuntimeKind::Host => 1,
        }
    }

    /// Makes the streams for legs, unless they are there: `per_member` for each member, or with 0 one for all other members, whose legs then
    /// follow each other in their order, and one for this rank. Before the first [`Self::enqueue_legs`], and outside of captures. Not collective.
    ///
    /// # Errors
    /// [`Error::Config`] for more than [`MOST_LEG_STREAMS`]; the runtime's.
    pub fn prepare_legs(&self, per_member: u32) -> Result<()> {
        if per_member > MOST_LEG_STREAMS {
            let (field, given) = ("streams for the legs to one member", per_member.to_string());
            return Err(Error::Config { field, given, expected: "0 to 16" });
        }
        let mut legs = self.legs().lock().unwrap_or_else(PoisonError::into_inner);
        if legs.as_ref().is_some_and(|known| known.per_member == per_member) {
            return Ok(());
        }
        let (device, count) = (self.world().device(), (self.size() * per_member).max(2));
        let (running, captured) = (Branches::new(device, count)?, Branches::new(device, count)?);
        if let Some(before) = legs.replace(LegStreams { per_member, running, captured }) {
            // Work may be under way on them.
            self.hold(before);
        }
        Ok(())
    }

    /// Copies all legs on the team's streams for them ([`Self::prepare_legs`], else [`Self::usual_leg_streams`]), behind what is on `stream`; what follows there is behind them. Returns at once. Several
    /// legs to one member may be cut and share streams; those to different members go side by side, in the order given: begin with the
    /// next member, so that not all ranks begin with the same one. Tracked as a launch of the team is, with `uses` ([`Team::launch_in_order`]).
    /// May be captured. Not collective.
    ///
    /// # Errors
    /// Before anything moves: [`Error::NoPart`] for who is no member, and [`Error::LegsNotPrepared`] in a capture. Those of
    /// [`Team::launch_in_order`], and the runtime's.
    ///
    /// # Safety
    /// Targets and sources are memory that this rank's device reaches, and stay so until the stream has passed the join. Until then nobody
    /// else writes a source or touches a target, and no target overlaps another leg's target or source.
    pub unsafe fn copy_legs(&self, stream: &Stream, legs: &[Leg], uses: &[MemoryUse]) -> Result<()> {
        self.check_legs(legs)?;
        if !stream.is_capturing()? && self.legs().lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            self.prepare_legs(self.usual_leg_streams())?;
        }
        // SAFETY: the caller's promise is the same.
        self.launch_in_order(stream, uses, || unsafe { self.enqueue_legs(stream, legs) })?;
        self.note_operation(
            stream,
            "copies to several members",
            &[OperationCode::ENGINE_COPY, OperationCode::NIC_COPY],
        );
        Ok(())
    }

    /// [`Self::copy_legs`] as a part of a launch that is tracked: to be called in the closure of [`Team::launch_in_order`] only, on its stream.
    ///
    /// # Errors
    /// Before anything moves: [`Error::NoPart`], [`Error::LegsNotPrepared`]. The runtime's; [`Error::Untracked`] when legs are under way and
    /// the stream could not be put behind them.
    ///
    /// # Safety
    /// That of [`Self::copy_legs`].
    pub unsafe fn enqueue_legs(&self, stream: &Stream, legs: &[Leg]) -> Result<()> {
        self.check_legs(legs)?;
        // Held to the end: forks and joins of two calls must not mix.
        let streams = self.legs().lock().unwrap_or_else(PoisonError::into_inner);
        let streams = streams.as_ref().ok_or(Error::LegsNotPrepared)?;
        let nics = self.by_nic(legs)?;
        let mapped = legs.iter().filter(|leg| !self.is_by_nic(leg.peer));
        let (posted, legs): (Vec<Leg>, Vec<Leg>) =
            mapped.partition(|leg| leg.bytes > 0 && self.copies_by_queues(leg.peer));
        let pieces = pieces(&legs, self.rank(), streams.per_member);
        let branches = if stream.is_capturing()? { &streams.captured } else { &streams.running };
        // Copies of streams first: the kernel that gives the others to the queues waits until those are done.
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
        branches.join(stream, &used).map_err(|error| self.flight().lose(error))?;
        copied.and(posted)
    }

    /// Copies all legs behind what is on `stream`, and puts `joins`, another stream of the same device, behind them and behind that:
    /// `stream` goes on beside them. Whoever wants it behind the legs puts it behind an event on `joins`; within a capture that
    /// has to happen before the capture ends. Legs whose route has queues that kernels write are given to these by a kernel on `joins`. The
    /// caller tracks `joins` ([`World::launching`](crate::World::launching)), and keeps the team until it has passed. Not collective.
    ///
    /// # Errors
    /// As [`Self::enqueue_legs`].
    ///
    /// # Safety
    /// That of [`Self::copy_legs`], until `joins` has passed the legs.
    pub unsafe fn fork_legs(&self, stream: &Stream, joins: &Stream, legs: &[Leg]) -> Result<()> {
        self.check_legs(legs)?;
        let streams = self.legs().lock().unwrap_or_else(PoisonError::into_inner);
        let streams = streams.as_ref().ok_or(Error::LegsNotPrepared)?;
        let nics = self.by_nic(legs)?;
        let mapped = legs.iter().filter(|leg| !self.is_by_nic(leg.peer));
        let (posted, legs): (Vec<Leg>, Vec<Leg>) =
            mapped.partition(|leg| leg.bytes > 0 && self.copies_by_queues(leg.peer));
        let branches = if stream.is_capturing()? { &streams.captured } else { &streams.running };
        // SAFETY: the caller's promise.
        let (copied, used) = unsafe { branches.run(stream, &pieces(&legs, self.rank(), streams.per_member)) };
        branches.follow(joins).map_err(|error| self.flight().lose(error))?;
        branches.join(joins, &used).map_err(|error| self.flight().lose(error))?;
        copied?;
        // SAFETY: the caller's promise.
        unsafe { self.post_all(joins, &posted, &nics) }
    }

    fn check_legs(&self, legs: &[Leg]) -> Result<()> {
        let stranger = legs.iter().find(|leg| self.group().global(leg.peer).is_none());
        stranger.map_or(Ok(()), |leg| Err(Error::NoPart { what: "a leg", peer: leg.peer }))?;
        self.by_nic(legs).map(|_| ())
    }

    /// The legs that go by NIC.
    fn by_nic(&self, legs: &[Leg]) -> Result<Vec<NicCopy>> {
        let heap = &self.world().inner.heap;
        let (base, size) = (heap.address().0, heap.bytes());
        let of_leg = |leg: &Leg| {
            let Leg { peer, target, source, bytes } = *leg;
            let offset = target
                .0
                .checked_sub(base)
                .filter(|offset| offset.checked_add(bytes).is_some_and(|end| end <= size));
            let offset = offset.ok_or(Error::LegTarget { peer, address: target.0, bytes })?;
            Ok(NicCopy::put(peer, offset, source, bytes))
        };
        legs.iter().filter(|leg| leg.bytes > 0 && self.is_by_nic(leg.peer)).map(of_leg).collect()
    }

    /// Gives legs to queues of engines and to queue pairs, by kernels on the stream: these work side by side as they are.
    ///
    /// # Safety
    /// That of [`Self::copy_legs`].
    unsafe fn post_all(&self, stream: &Stream, engines: &[Leg], nics: &[NicCopy]) -> Result<()> {
        let post = |leg: &Leg| EngineLeg::new(leg.peer, leg.target, leg.source, leg.bytes);
        // SAFETY: the caller's promise.
        unsafe { self.post_legs(stream, &engines.iter().map(post).collect::<Vec<_>>()) }?;
        // SAFETY: the caller's promise; the targets are places of the members' heaps.
        unsafe { self.copy_by_nic(stream, nics) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn leg(peer: u32, start: u64, bytes: u64) -> Leg {
        let peer = GroupRank::new(peer);
        Leg { peer, target: DeviceAddress(0x1000 + start), source: DeviceAddress(0x9000 + start), bytes }
    }

    #[test]
    fn short_legs_are_whole_and_none_is_no_copy() {
        let legs = [leg(2, 0, LEAST_PIECE * 2 - 1), leg(0, 7, 0), leg(1, 3, 1)];
        let own = GroupRank::new(1);
        assert_eq!(pieces(&legs, own, 4), [(8, legs[0]), (4, legs[2])]);
        assert_eq!(pieces(&legs, own, 0), [(0, legs[0]), (1, legs[2])]);
    }

    proptest! {
        #[test]
        fn every_byte_goes_once_and_to_its_member(
            given in proptest::collection::vec((0u32..5, 0u64..1000, 0u64..(8 << 20)), 0..6),
            per_member in 0u32..=MOST_LEG_STREAMS,
        ) {
            let legs: Vec<_> = given.iter().map(|(peer, start, bytes)| leg(*peer, *start, *bytes)).collect();
            let own = GroupRank::new(3);
            let mut pieces = pieces(&legs, own, per_member).into_iter().peekable();
            for leg in legs {
                let mut moved = 0;
                while let Some((branch, piece)) = pieces.next_if(|_| moved < leg.bytes) {
                    let shared = usize::from(leg.peer == own);
                    let expected = if per_member == 0 { shared } else { leg.peer.index() };
                    prop_assert_eq!(branch / per_member.max(1) as usize, expected);
                    prop_assert_eq!((piece.peer, piece.target), (leg.peer, leg.target.offset(moved)));
                    prop_assert_eq!(piece.source, leg.source.offset(moved));
                    prop_assert!(piece.bytes > 0);
                    moved += piece.bytes;
                }
                prop_assert_eq!(moved, leg.bytes);
            }
            prop_assert!(pieces.next().is_none());
        }
    }
}
