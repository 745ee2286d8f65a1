//! Collectives by copy engine: what is copied where, and which kernels meet in between. Pure arithmetic, public for the seeded tests only.
//!
//! In the order of the stream: a kernel of one block in which all members meet, the *legs* (a copy to each member, [`anabranch_shmem::PeerCopy`]),
//! a kernel in which they meet again. Where contributions are reduced there is a kernel in the middle: the parts of the inputs are copied to
//! their owners' staging, each owner meets the others and reduces, and the results are copied to the outputs.
//!
//! Why no buffer is used too early:
//! - An output is overwritten by peers' legs behind the first meeting, to which its owner comes behind everything that its stream had
//!   to do with it before. Who has left the last meeting finds the outputs whole: every member has come to it behind its legs.
//! - An input is read by its owner's legs and kernels alone, and these are done when the stream passes the call.
//! - The staging belongs to the call from the first meeting to its end, whatever its layout for other algorithms: each member comes to
//!   the first meeting behind its earlier launches, of which it has read all that it needs from its staging; and it has ended reading
//!   when it comes to the last meeting of the call, which a peer leaves before a later call of its writes. Within the call a part that does
//!   not fit goes in rounds, which use the staging's halves in turn: a peer's legs of round r + 2 are behind its kernel of round
//!   r + 1, whose meeting this rank comes to behind its kernel of round r, the last reader.
//! - In place, a part of the input lies where its result goes. Its legs are done when their rank comes to the meeting of their round, and the
//!   owner sends results behind that meeting.
//! - The words of meetings are those of the communicator's channels (`device/ccl/meet.h`), whose argument knows no other actor: copies touch
//!   no flag. All channels of a launch come to the same meetings on all members.

use anabranch_hip::DeviceAddress;
use anabranch_ranks::GroupRank;
use anabranch_shmem::PeerCopy;

use crate::device::args::{CommView, EngineReduceArgs, MOVE_ALL, MoveArgs, ReduceArgs, UnevenArgs};

/// A step of a reduction by copy engine, in the order of the stream.
#[derive(Clone, Debug)]
pub(crate) enum EngineStep {
    /// A kernel of one block in which all members meet.
    Barrier,
    /// Copies to members, side by side.
    Copies(Vec<PeerCopy>),
    /// The kernel that meets and reduces.
    Reduce(Box<EngineReduceArgs>),
}

/// All members from the next one on, this rank last.
fn members_from_next(rank: u32, size: u32) -> impl Iterator<Item = u32> {
    (1..=size).map(move |by| (rank + by) % size)
}

fn leg(peer: u32, target: u64, source: u64, bytes: u64) -> PeerCopy {
    PeerCopy {
        peer: GroupRank::new(peer),
        target: DeviceAddress(target),
        source: DeviceAddress(source),
        bytes,
    }
}

/// Keeps copies that do something: of bytes, from one place to another.
fn moving(leg: &PeerCopy) -> bool {
    leg.bytes > 0 && leg.target != leg.source
}

/// The legs of a collective that moves equal counts. `outputs`: where each member's output starts, in group order.
pub(crate) fn moves(args: &MoveArgs, outputs: &[u64]) -> Vec<PeerCopy> {
    let team = &args.comm.team;
    let named = |member: &u32| args.send_to == MOVE_ALL || args.send_to == *member;
    let legs = members_from_next(team.rank, team.size).filter(named).filter_map(|member| {
        let target = outputs.get(member as usize)? + u64::from(team.rank) * args.remote_stride;
        Some(leg(member, target, args.input.own + u64::from(member) * args.send_stride, args.bytes))
    });
    legs.filter(moving).collect()
}

/// The legs of an `all_gather` of counts that differ, which all members know.
pub(crate) fn uneven_gather(args: &UnevenArgs, outputs: &[u64]) -> Vec<PeerCopy> {
    let (even, team) = (&args.even, &args.even.comm.team);
    let Some(own) = args.entries.get(team.rank as usize) else { return Vec::new() };
    let legs = members_from_next(team.rank, team.size).filter_map(|member| {
        let target = outputs.get(member as usize)? + own.receive_offset;
        Some(leg(member, target, even.input.own + own.send_offset, own.send_bytes))
    });
    legs.filter(moving).collect()
}

/// One of many tensors that are gathered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gathered {
    /// Where this rank's input is.
    pub input: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Where each member's output starts, in group order.
    pub outputs: Vec<u64>,
}

/// The legs of an `all_gather` of many tensors: member by member within each tensor, so that all links have work soon.
pub(crate) fn gathers(rank: u32, tensors: &[Gathered]) -> Vec<PeerCopy> {
    let of_one = |one: &Gathered| {
        let legs = members_from_next(rank, one.outputs.len() as u32).filter_map(|member| {
            let target = one.outputs.get(member as usize)? + u64::from(rank) * one.bytes;
            Some(leg(member, target, one.input, one.bytes))
        });
        legs.filter(moving).collect::<Vec<_>>()
    };
    tensors.iter().flat_map(of_one).collect()
}

/// Bytes of one member's part of one half of the staging, where the whole of it serves one call: that of `channels` channels.
pub(crate) const fn staged_at_once(comm: &CommView, channels: u32) -> u64 {
    comm.staging_bytes * channels as u64
}

/// The steps of a reduction, round by round. `args` is that of a launch with parts and pieces as `push` has them; `bases`: where each
/// member's heap starts, `outputs`: where its output starts, in group order (a scatter looks at none); `channels`: of
/// the communicator.
pub(crate) fn reduces(
    args: &ReduceArgs,
    channels: u32,
    element_bytes: u64,
    bases: &[u64],
    outputs: &[u64],
) -> Vec<EngineStep> {
    let (rank, size) = (args.comm.team.rank, args.comm.team.size);
    let (is_scatter, part) = (args.is_scatter != 0, args.part_bytes);
    let total = if is_scatter { part * u64::from(size) } else { args.count * element_bytes };
    let part_of = |member: u32| part.min(total.saturating_sub(u64::from(member) * part));
    let at_once = staged_at_once(&args.comm, channels);
    let cut = |bytes: u64, first: u64| bytes.saturating_sub(first).min(at_once);
    let rounds = part_of(0).div_ceil(at_once);
    let mine = u64::from(rank) * part;
    let scatter = |round: u64| {
        let (first, place) = (round * at_once, (round % 2) * u64::from(size) + u64::from(rank));
        members_from_next(rank, size).filter(|member| *member != rank).filter_map(move |member| {
            let target = bases.get(member as usize)? + args.comm.staging + place * at_once;
            let source = args.input.own + u64::from(member) * part + first;
            Some(leg(member, target, source, cut(part_of(member), first)))
        })
    };
    let gather = |round: u64| {
        let first = round * at_once;
        // Each member keeps its part of a scatter.
        let others = move |member: &u32| *member != rank && !is_scatter;
        members_from_next(rank, size).filter(others).filter_map(move |member| {
            let target = outputs.get(member as usize)? + mine + first;
            Some(leg(member, target, args.output.own + mine + first, cut(part_of(rank), first)))
        })
    };
    let mut steps = vec![EngineStep::Barrier];
    for round in 0..rounds {
        // The results of the round before go beside this round's inputs.
        let results = round.checked_sub(1).into_iter().flat_map(gather);
        steps.push(EngineStep::Copies(results.chain(scatter(round)).filter(moving).collect()));
        let first = round * at_once;
        let mut reduce = *args;
        reduce.comm.staging_bytes = at_once;
        reduce.input.own += mine + first;
        reduce.output.own += if is_scatter { first } else { mine + first };
        let is_last = round + 1 == rounds;
        steps.push(EngineStep::Reduce(Box::new(EngineReduceArgs {
            reduce,
            bytes: cut(part_of(rank), first),
            half: (round % 2) as u32,
            meets_behind: u32::from(is_last && is_scatter),
        })));
    }
    steps.push(EngineStep::Copies(
        rounds.checked_sub(1).into_iter().flat_map(gather).filter(moving).collect(),
    ));
    // The last round of a scatter ends with a meeting.
    if rounds == 0 || !is_scatter {
        steps.push(EngineStep::Barrier);
    }
    steps.retain(|step| !matches!(step, EngineStep::Copies(legs) if legs.is_empty()));
    steps
}
