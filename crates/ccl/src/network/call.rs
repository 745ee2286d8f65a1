//! Conversion of a call to an exchange of bytes.

use anabranch_ranks::GroupRank;

use super::schedule::Exchange;
use crate::lower::Counts;
use crate::types::{Collective, Shape};

/// The exchange of a call; `None` for sends and receives.
pub(crate) fn exchange_of(shape: &Shape, counts: Counts<'_>) -> Option<Exchange> {
    let (bytes, size) = (shape.bytes(), u64::from(shape.data_type.bytes()));
    let root = shape.root.map_or(0, GroupRank::get);
    let in_bytes = |counts: &[u64]| counts.iter().map(|count| count * size).collect::<Vec<_>>();
    let of_all = || vec![bytes; shape.members as usize];
    Some(match (shape.collective, counts) {
        (Collective::AllGather, Counts::AllGather(counts)) => Exchange::AllGather { bytes: in_bytes(counts) },
        (Collective::AllGather, _) => Exchange::AllGather { bytes: of_all() },
        (Collective::AllToAll, Counts::AllToAll { input_splits, output_splits }) => {
            Exchange::AllToAll { sent: in_bytes(input_splits), received: in_bytes(output_splits) }
        }
        (Collective::AllToAll, _) => Exchange::AllToAll { sent: of_all(), received: of_all() },
        (Collective::Broadcast, _) => Exchange::Broadcast { bytes, root },
        (Collective::Gather, _) => Exchange::Gather { bytes, root },
        (Collective::Scatter, _) => Exchange::Scatter { bytes, root },
        (Collective::AllReduce, _) => Exchange::AllReduce { bytes },
        (Collective::ReduceScatter, Counts::ReduceScatter(counts)) => {
            Exchange::ReduceScatter { bytes: in_bytes(counts) }
        }
        (Collective::ReduceScatter, _) => Exchange::ReduceScatter { bytes: of_all() },
        (Collective::Reduce, _) => Exchange::Reduce { bytes, root },
        (Collective::Barrier, _) => Exchange::Barrier,
        (Collective::SendReceive, _) => return None,
    })
}
