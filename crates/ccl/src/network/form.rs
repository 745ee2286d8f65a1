//! The form of an internode call (direct or by node), its steps and its chunk size. Pure arithmetic.

use anabranch_ranks::{Across, LinkSpeeds, Nodes};

use super::cost_model::{LinkModel, is_faster_by_node};
use super::exchange_of;
use super::hierarchical::PAIRS_ALONE;
use super::layout::full_chunk_bytes;
use super::lower::slot_pieces;
use super::schedule::{self, Step};
use crate::lower::Counts;
use crate::plan::{Choice, Limits, Plan};
use crate::types::{Algorithm, Collective, Error, Result, Shape};

/// The form of a call.
///
/// # Errors
/// [`Error::Algorithm`] for [`Across::Node`] if the nodes or the collective do not allow it.
fn algorithm_of(nodes: &Nodes, across: Across, shape: &Shape, links: &LinkModel) -> Result<Algorithm> {
    let (collective, node) = (shape.collective, Algorithm::NetworkByNode);
    let fits = || match most_piece(nodes, node, shape, links.slot_bytes) {
        _ if !knows_counts(shape) => Err(PAIRS_ALONE),
        (0, _) => Err("a slot of a link is too small for 16 bytes of each member of a node"),
        _ => Ok(()),
    };
    let allowed = schedule::allows(nodes, collective).and_then(|()| fits());
    Ok(match (across, allowed) {
        _ if collective == Collective::Barrier => Algorithm::NetworkDirect,
        (Across::Node, Err(reason)) => {
            return Err(Error::Algorithm { collective, algorithm: node, reason });
        }
        (Across::Node, Ok(())) => node,
        (Across::Auto, Ok(())) if is_faster_by_node(nodes, shape, links) => node,
        _ => Algorithm::NetworkDirect,
    })
}

/// The plan of a call: its form, and the number of blocks. Each block gets chunks that fill a NIC, or a slot if that is smaller, from the
/// longest part that one member sends to another. Equal on all members.
///
/// # Errors
/// As [`algorithm_of`] and [`Plan::internode`].
pub(crate) fn plan_of(
    nodes: &Nodes,
    across: Across,
    (shape, limits, choice): (&Shape, &Limits, Choice),
    (slot_bytes, speeds): (u64, LinkSpeeds),
) -> Result<Plan> {
    let links = LinkModel { slot_bytes, channels: limits.channels, speeds };
    let algorithm = algorithm_of(nodes, across, shape, &links)?;
    let plan = Plan::internode(shape, limits, algorithm, choice)?;
    let is_chosen = choice.blocks.is_some() || choice.block_bytes.is_some();
    // Computed for the first member, so that all members agree: others may have other counts, or none.
    if is_chosen || !knows_counts(shape) || exchange_of(shape, Counts::Even).is_none() {
        return Ok(plan);
    }
    let steps = steps_of(nodes, 0, algorithm, shape, Counts::Even)?;
    let (most, packed) = most_piece(nodes, algorithm, shape, slot_bytes);
    let chunks = longest_of(&steps).div_ceil(most.min((full_chunk_bytes(&speeds) / packed).max(16)));
    Ok(Plan { blocks: u64::from(plan.blocks).min(chunks).max(1) as u32, ..plan })
}

/// The steps of member `me` for a call in this form.
///
/// # Errors
/// [`Error::Unmapped`] for sends and receives; [`Error::Algorithm`] for a form that the nodes or the collective do not allow.
pub(crate) fn steps_of(
    nodes: &Nodes,
    me: u32,
    algorithm: Algorithm,
    shape: &Shape,
    counts: Counts<'_>,
) -> Result<Vec<Step>> {
    let Some(exchange) = exchange_of(shape, counts) else {
        let (what, instead) = ("a message between two members", "use collectives");
        return Err(Error::Unmapped { what, nodes: nodes.count(), instead });
    };
    match algorithm {
        Algorithm::NetworkByNode => schedule::by_node(nodes, me, &exchange)
            .map_err(|reason| Error::Algorithm { collective: shape.collective, algorithm, reason }),
        _ => Ok(schedule::direct(shape.members, me, &exchange)),
    }
}

/// Bytes of a tensor in a chunk, or in each piece of a packed chunk, for slots of `slot_bytes` bytes. Equal on all members: the longest
/// part is in the steps of all of them; with counts that only pairs know, it is not used.
pub(crate) fn piece_bytes_of(
    nodes: &Nodes,
    plan: &Plan,
    shape: &Shape,
    steps: &[Step],
    slot_bytes: u64,
) -> u64 {
    let (most, packed) = most_piece(nodes, plan.algorithm, shape, slot_bytes);
    debug_assert!(most >= 16 && most * packed <= slot_bytes, "{most} {packed} {slot_bytes}");
    let share = longest_of(steps).div_ceil(plan.blocks.into()).next_multiple_of(16).clamp(16, most);
    if knows_counts(shape) { share } else { most }
}

/// The most bytes of a tensor in a chunk, or in each piece of a packed chunk, and the most pieces of a chunk.
fn most_piece(nodes: &Nodes, algorithm: Algorithm, shape: &Shape, slot_bytes: u64) -> (u64, u64) {
    let by_node = algorithm == Algorithm::NetworkByNode;
    let packed = if by_node { schedule::most_packed(nodes, shape.collective) } else { 1 };
    let room = slot_bytes / packed / 16 * 16;
    (slot_pieces(room, shape.data_type, shape.collective.reduces()), packed)
}

/// Bytes of the longest part that one member sends to another. Equal on all members if all know all counts.
fn longest_of(steps: &[Step]) -> u64 {
    steps.iter().map(|step| step.bytes).max().unwrap_or(0)
}

/// Whether all members know all counts. Otherwise each pair knows only its own.
fn knows_counts(shape: &Shape) -> bool {
    !(shape.uneven && shape.collective == Collective::AllToAll)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::types::{DataType, ReduceOp};

    const LIMITS: Limits = Limits {
        channels: 32,
        block_threads: 256,
        barrier_threads: 32,
        row_channels: 0,
        row_threads: 256,
        row_bytes: 0,
    };

    fn shape(collective: Collective, members: u32, count: u64) -> Shape {
        let op = collective.reduces().then_some(ReduceOp::Sum);
        Shape { data_type: DataType::Bf16, op, ..Shape::of_bytes(collective, members, count) }
    }

    fn machines(nodes: u32, size: u32) -> Nodes {
        Nodes::new(&(0..nodes * size).map(|member| member / size).collect::<Vec<_>>())
    }

    proptest! {
        /// A launch fits into the channels, has no more blocks than an intranode launch, and no unnecessarily short chunks. Given blocks
        /// are kept.
        #[test]
        fn blocks_have_full_chunks(
            sizes in prop::collection::vec(1u32..6, 2..6),
            count in prop_oneof![Just(0), Just(1), 2..4_000_000_u64],
            collective in prop::sample::select(Collective::ALL.to_vec()),
            across in prop::sample::select(vec![Across::Auto, Across::Direct]),
            slot_power in 8u32..18,
        ) {
            let machines = (0..).zip(&sizes).flat_map(|(machine, size)| std::iter::repeat_n(machine, *size as usize));
            let nodes = Nodes::new(&machines.collect::<Vec<u32>>());
            let shape = shape(collective, nodes.size(), count);
            let slot_bytes = 1 << slot_power;
            let plan = |choice| plan_of(&nodes, across, (&shape, &LIMITS, choice), (slot_bytes, LinkSpeeds::default()));
            let chosen = plan(Choice::default()).unwrap();
            let most = Plan::internode(&shape, &LIMITS, chosen.algorithm, Choice::default()).unwrap();
            prop_assert!((1..=most.blocks).contains(&chosen.blocks));
            prop_assert_eq!((chosen.algorithm, chosen.threads), (most.algorithm, most.threads));
            let mut pieces = Vec::new();
            for me in 0..shape.members {
                let steps = steps_of(&nodes, me, chosen.algorithm, &shape, Counts::Even).unwrap();
                pieces.push(piece_bytes_of(&nodes, &chosen, &shape, &steps, slot_bytes));
                let (room, packed) = most_piece(&nodes, chosen.algorithm, &shape, slot_bytes);
                prop_assert!(packed == 1 || packed * pieces[0] <= slot_bytes);
                if chosen.blocks > 1 {
                    let full = room.min(full_chunk_bytes(&LinkSpeeds::default()) / packed);
                    prop_assert!(pieces[0] >= full / 2, "{} {}", pieces[0], chosen.blocks);
                }
            }
            prop_assert!(pieces.iter().all(|bytes| *bytes == pieces[0]), "{pieces:?}");
            let given = plan(Choice { blocks: Some(7), ..Choice::default() }).unwrap();
            prop_assert_eq!(given.blocks, 7);
        }
    }

    #[test]
    fn short_parts_use_few_blocks() {
        let blocks = |collective, nodes, count| {
            let (machines, shape) = (machines(nodes, 8), shape(collective, nodes * 8, count));
            plan_of(
                &machines,
                Across::Direct,
                (&shape, &LIMITS, Choice::default()),
                (128 << 10, LinkSpeeds::default()),
            )
            .unwrap()
            .blocks
        };
        // An all_to_all of 4 KiB to each of 255 peers is 1 MiB, of which blocks of 32 KiB would have 128 bytes per peer.
        assert_eq!(blocks(Collective::AllToAll, 32, 2048), 1);
        assert_eq!(blocks(Collective::AllToAll, 32, 1 << 20), 32);
        assert_eq!(blocks(Collective::AllToAll, 32, 64 << 10), 8);
        assert_eq!(blocks(Collective::AllGather, 2, 20_000), 3);
        assert_eq!(blocks(Collective::Barrier, 2, 0), 1);
        let uneven = Shape { uneven: true, ..shape(Collective::AllToAll, 16, 8) };
        let limits = (&uneven, &LIMITS, Choice::default());
        let plan =
            plan_of(&machines(2, 8), Across::Auto, limits, (128 << 10, LinkSpeeds::default())).unwrap();
        assert_eq!(plan.blocks, 32, "counts that only pairs know do not limit blocks");
    }
}
