//! Collectives by copy engine: the copies and the kernels between them. Pure arithmetic. Public only for the seeded tests.
//!
//! In stream order: a barrier kernel of one block, a copy to each member ([`anabranch_shmem::PeerCopy`]), and a second barrier kernel.
//! Reductions have a kernel between the copies: every member copies the parts of its input to the staging of their owners, each owner
//! passes a barrier and reduces its part, and copies the result to the outputs.
//!
//! Why no buffer is used too early:
//! - Peers copy to an output after the first barrier. Its owner enters that barrier after all earlier work of its stream on the output. A
//!   member that has left the last barrier finds its output complete, because every member enters it after its copies.
//! - Only its owner reads an input, by copies and kernels that are complete when the stream passes the call.
//! - The call owns the staging from its first barrier to its end, whatever the layout is for other algorithms. Each member enters the first
//!   barrier after its earlier launches have read their staging. It enters the last barrier after its own last read, and a peer leaves that
//!   barrier before a later call of that peer writes. Within the call, a part that does not fit is moved in rounds, which alternate between
//!   the two halves of the staging: the copies of a peer in round r + 2 follow its kernel of round r + 1, and this rank enters the barrier
//!   of that kernel after its kernel of round r, the last reader.
//! - In place, a part of the input lies where its result is written. The copies from that part are complete when their rank enters the
//!   barrier of the round, and the owner copies results after that barrier.
//! - The barriers use the flags of the communicator's channels (`device/ccl/meet.h`). Copies touch no flag, so the argument there holds.
//!   All members pass the same barriers on every channel of a launch.

use anabranch_hip::DeviceAddress;
use anabranch_ranks::GroupRank;
use anabranch_shmem::PeerCopy;

use crate::device::args::{CommView, EngineReduceArgs, MOVE_ALL, MoveArgs, ReduceArgs};
use crate::device::uneven::{ReducePart, UnevenArgs};

/// A step of a reduction by copy engine, in the order of the stream.
#[derive(Clone, Debug)]
pub(crate) enum EngineStep {
    /// A barrier kernel of one block.
    Barrier,
    /// Copies to members, concurrently.
    Copies(Vec<PeerCopy>),
    /// The kernel with a barrier and the reduction.
    Reduce(Box<EngineReduceArgs>),
}

/// All members from the next one on, this rank last.
fn members_from_next(rank: u32, size: u32) -> impl Iterator<Item = u32> {
    (1..=size).map(move |by| (rank + by) % size)
}

/// The address of a member in a list with one address per member.
fn of_member(addresses: &[u64], member: u32) -> u64 {
    #[expect(
        clippy::expect_used,
        reason = "a list that is too short would drop copies, and the call would leave outputs stale"
    )]
    *addresses.get(member as usize).expect("a copy by engine has one address per member")
}

fn copy(peer: u32, target: u64, source: u64, bytes: u64) -> PeerCopy {
    PeerCopy {
        peer: GroupRank::new(peer),
        target: DeviceAddress(target),
        source: DeviceAddress(source),
        bytes,
    }
}

/// Whether the copy moves bytes to another address.
fn moving(copy: &PeerCopy) -> bool {
    copy.bytes > 0 && copy.target != copy.source
}

/// The copies of a collective with equal counts. `outputs`: start of the output of each member, in group order.
pub(crate) fn moves(args: &MoveArgs, outputs: &[u64]) -> Vec<PeerCopy> {
    let team = &args.comm.team;
    let named = |member: &u32| args.send_to == MOVE_ALL || args.send_to == *member;
    let copies = members_from_next(team.rank, team.size).filter(named).map(|member| {
        let target = of_member(outputs, member) + u64::from(team.rank) * args.remote_stride;
        copy(member, target, args.input.own + u64::from(member) * args.send_stride, args.bytes)
    });
    copies.filter(moving).collect()
}

/// The copies of an `all_gather` with different counts, which all members know.
pub(crate) fn uneven_gather(args: &UnevenArgs, outputs: &[u64]) -> Vec<PeerCopy> {
    let (even, team) = (&args.even, &args.even.comm.team);
    #[expect(clippy::expect_used, reason = "a call with different counts is refused in larger groups")]
    let own = args.entries.get(team.rank as usize).expect("the arguments have an entry for each rank");
    let copies = members_from_next(team.rank, team.size).map(|member| {
        let target = of_member(outputs, member) + own.receive_offset;
        copy(member, target, even.input.own + own.send_offset, own.send_bytes)
    });
    copies.filter(moving).collect()
}

/// One of several gathered tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gathered {
    /// Address of the input of this rank.
    pub input: u64,
    /// Bytes of the input.
    pub bytes: u64,
    /// Start of the output of each member, in group order.
    pub outputs: Vec<u64>,
}

/// The copies of an `all_gather` of several tensors: all members of one tensor, then the next tensor, so that all links get work early.
pub(crate) fn gathers(rank: u32, tensors: &[Gathered]) -> Vec<PeerCopy> {
    let of_one = |one: &Gathered| {
        let copies = members_from_next(rank, one.outputs.len() as u32).map(|member| {
            let target = of_member(&one.outputs, member) + u64::from(rank) * one.bytes;
            copy(member, target, one.input, one.bytes)
        });
        copies.filter(moving).collect::<Vec<_>>()
    };
    tensors.iter().flat_map(of_one).collect()
}

/// Bytes per member of one half of the staging when one call uses the staging of all `channels` channels.
pub(crate) const fn staged_at_once(comm: &CommView, channels: u32) -> u64 {
    comm.staging_bytes * channels as u64
}

/// The steps of a reduction, round by round. `args`: the arguments of `push` with its parts and pieces, and the part of each member of a
/// reduce_scatter with different counts. `channels`: channels of the
/// communicator. `bases` and `outputs`: start of the heap and of the output of each member, in group order; a reduce_scatter does not use
/// `outputs`.
pub(crate) fn reduces(
    (args, uneven): (&ReduceArgs, Option<&[ReducePart]>),
    channels: u32,
    element_bytes: u64,
    bases: &[u64],
    outputs: &[u64],
) -> Vec<EngineStep> {
    let (rank, size) = (args.comm.team.rank, args.comm.team.size);
    let (is_scatter, part) = (args.is_scatter != 0, args.part_bytes);
    let total = if is_scatter { part * u64::from(size) } else { args.count * element_bytes };
    let even = |member: u32| {
        let start = u64::from(member) * part;
        ReducePart { start, bytes: part.min(total.saturating_sub(start)) }
    };
    let part_of = |member: u32| uneven.map_or_else(|| even(member), |parts| parts[member as usize]);
    let at_once = staged_at_once(&args.comm, channels);
    let cut = |bytes: u64, first: u64| bytes.saturating_sub(first).min(at_once);
    // All members have the rounds of the longest part.
    let rounds = part.min(total).div_ceil(at_once);
    let ReducePart { start: mine, bytes: own_bytes } = part_of(rank);
    let scatter = |round: u64| {
        let (first, place) = (round * at_once, (round % 2) * u64::from(size) + u64::from(rank));
        members_from_next(rank, size).filter(|member| *member != rank).map(move |member| {
            let target = of_member(bases, member) + args.comm.staging + place * at_once;
            let source = args.input.own + part_of(member).start + first;
            copy(member, target, source, cut(part_of(member).bytes, first))
        })
    };
    let gather = |round: u64| {
        let first = round * at_once;
        // Each member keeps its part of a scatter.
        let others = move |member: &u32| *member != rank && !is_scatter;
        members_from_next(rank, size).filter(others).map(move |member| {
            let target = of_member(outputs, member) + mine + first;
            copy(member, target, args.output.own + mine + first, cut(own_bytes, first))
        })
    };
    let mut steps = vec![EngineStep::Barrier];
    for round in 0..rounds {
        // The results of the previous round are copied together with the inputs of this round.
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
            bytes: cut(own_bytes, first),
            half: (round % 2) as u32,
            ends_with_barrier: u32::from(is_last && is_scatter),
        })));
    }
    steps.push(EngineStep::Copies(
        rounds.checked_sub(1).into_iter().flat_map(gather).filter(moving).collect(),
    ));
    // The kernel of the last round of a reduce_scatter ends with a barrier.
    if rounds == 0 || !is_scatter {
        steps.push(EngineStep::Barrier);
    }
    steps.retain(|step| !matches!(step, EngineStep::Copies(copies) if copies.is_empty()));
    steps
}

#[cfg(test)]
mod tests {
    use anabranch_hip_jit::bytemuck::Zeroable;

    use super::*;
    use crate::device::args::MOST_UNEVEN;

    /// A call of rank 1 of `size`.
    fn args(size: u32) -> MoveArgs {
        let mut args = MoveArgs { send_to: MOVE_ALL, bytes: 8, remote_stride: 8, ..MoveArgs::zeroed() };
        (args.comm.team.rank, args.comm.team.size, args.input.own) = (1, size, 0x100);
        args
    }

    #[test]
    fn every_member_gets_a_copy_this_rank_last() {
        let expected = [(2, 0x3008), (0, 0x1008), (1, 0x2008)];
        let expected = expected.map(|(peer, target)| copy(peer, target, 0x100, 8));
        assert_eq!(moves(&args(3), &[0x1000, 0x2000, 0x3000]), expected);
    }

    #[test]
    #[should_panic = "one address per member"]
    fn a_missing_output_drops_no_copy() {
        moves(&args(3), &[0x1000, 0x2000]);
    }

    #[test]
    #[should_panic = "an entry for each rank"]
    fn a_rank_without_an_entry_does_not_skip_its_copies() {
        let mut even = args(MOST_UNEVEN as u32 + 1);
        even.comm.team.rank = MOST_UNEVEN as u32;
        uneven_gather(&UnevenArgs { even, ..UnevenArgs::zeroed() }, &[0; MOST_UNEVEN + 1]);
    }
}
