//! Which form a call takes between machines, its steps, and in which pieces they go. Pure arithmetic.

use super::lower::slot_pieces;
use super::schedule::{self, Step};
use super::{Across, Nodes, exchange_of};
use crate::call::{Collective, Shape};
use crate::error::{Error, Result};
use crate::lower::Counts;
use crate::plan::Algorithm;

/// Bytes of a message from which it goes by node: hops inside and, for sums, from machine to machine, are paid for by fewer bytes
/// between machines. Arithmetic, not measured: a hop takes some microseconds, in which a NIC of 400 Gbit/s moves about this.
const BY_NODE_FROM: u64 = 256 << 10;

/// The form of a call.
///
/// # Errors
/// [`Error::Algorithm`] for [`Across::Node`] where these machines or the collective cannot.
pub(crate) fn algorithm_of(nodes: &Nodes, across: Across, shape: &Shape) -> Result<Algorithm> {
    let (collective, node) = (shape.collective, Algorithm::NetworkByNode);
    Ok(match (across, schedule::allows(nodes, collective)) {
        _ if collective == Collective::Barrier => Algorithm::NetworkDirect,
        (Across::Node, Err(reason)) => {
            return Err(Error::Algorithm { collective, algorithm: node, reason });
        }
        (Across::Node, Ok(())) => node,
        (Across::Auto, Ok(())) if shape.message_bytes() >= BY_NODE_FROM => node,
        _ => Algorithm::NetworkDirect,
    })
}

/// What member `me` does for a call in this form.
///
/// # Errors
/// [`Error::Unmapped`] for messages, [`Error::Algorithm`] for a form that these machines or the collective do not have.
pub(crate) fn steps_of(
    nodes: &Nodes,
    me: u32,
    algorithm: Algorithm,
    shape: &Shape,
    counts: Counts<'_>,
) -> Result<Vec<Step>> {
    let Some(exchange) = exchange_of(shape, counts) else {
        let (what, instead) = ("a message between two members", "use collectives");
        return Err(Error::Unmapped { what, machines: nodes.count(), instead });
    };
    match algorithm {
        Algorithm::NetworkByNode => schedule::by_node(nodes, me, &exchange)
            .map_err(|reason| Error::Algorithm { collective: shape.collective, algorithm, reason }),
        _ => Ok(schedule::direct(shape.members, me, &exchange)),
    }
}

/// Bytes of a tensor that a chunk holds, for slots of so many bytes and so many blocks. The same for all members, which have the longest
/// part in their steps, or in a call whose counts pairs alone know none.
pub(crate) fn piece_bytes_of(steps: &[Step], shape: &Shape, slot_bytes: u64, blocks: u32) -> u64 {
    let most = slot_pieces(slot_bytes, shape.data_type, shape.collective.reduces());
    let longest = steps.iter().map(|step| step.bytes).max().unwrap_or(0);
    let share = longest.div_ceil(blocks.into()).next_multiple_of(16).clamp(16, most);
    let known = !(shape.uneven && shape.collective == Collective::AllToAll);
    if known { share } else { most }
}
