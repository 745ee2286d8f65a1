//! Sends and receives: the order in which a launch works on them, and its arguments.

use std::collections::BTreeMap;

use anabranch_hip_jit::DevicePointer;
use anabranch_hip_jit::bytemuck::{self, Zeroable};
use anabranch_shmem::{Team, TeamTable};

use crate::call::message::PointToPoint;
use crate::device::args::{Pipes, PipesArgs, Transfer};
use crate::device::pipes::PipeLayout;
use crate::plan::Plan;
use crate::types::Result;

/// The messages of a launch, in one list for each peer and direction, receives first. Message i is the first of list i. Each message names
/// the next of its list.
#[derive(Clone, Debug)]
pub struct TransferLists {
    /// All messages.
    pub transfers: Vec<Transfer>,
    /// Number of lists.
    pub lists: u32,
    /// Number of lists of receives.
    pub receive_lists: u32,
    /// The most pipes that one message needs.
    pub used_pipes: u32,
}

const LAST: u32 = u32::MAX;

impl TransferLists {
    /// The lists of checked messages. They start with the next rank, so that not all ranks start with the same peer.
    pub(crate) fn new(messages: &[PointToPoint<'_>], team: &Team, layout: &PipeLayout) -> Result<Self> {
        let mut given = Vec::with_capacity(messages.len());
        for message in messages {
            let (tensor, peer) = (message.tensor(), message.peer()?.get());
            given.push((message.is_receive(), peer, tensor.address(team)?.0, tensor.bytes()));
        }
        Ok(Self::of(&given, team.rank().get(), team.size(), layout))
    }

    /// The lists of `(is_receive, peer, address, bytes)` at member `me`.
    pub fn of(given: &[(bool, u32, u64, u64)], me: u32, members: u32, layout: &PipeLayout) -> Self {
        let mut lists: BTreeMap<(bool, u32), Vec<Transfer>> = BTreeMap::new();
        for &(is_receive, peer, address, bytes) in given {
            let distance = (peer + members - me - 1) % members;
            let transfer = Transfer { address, bytes, peer, next: LAST };
            // Receives sort first.
            lists.entry((!is_receive, distance)).or_default().push(transfer);
        }
        let count = lists.len();
        let mut transfers = vec![Transfer::zeroed(); count];
        for (list, of_peer) in lists.values().enumerate() {
            let mut at = list;
            for (index, transfer) in of_peer.iter().enumerate() {
                let is_last = index + 1 == of_peer.len();
                let next = if is_last { LAST } else { transfers.len() as u32 };
                let placed = Transfer { next, ..*transfer };
                transfers[at] = placed;
                if !is_last {
                    at = transfers.len();
                    transfers.push(Transfer::zeroed());
                }
            }
        }
        Self {
            used_pipes: given.iter().map(|given| layout.pipes_of(given.3)).max().unwrap_or(1),
            receive_lists: lists.keys().filter(|(is_send, _)| !is_send).count() as u32,
            lists: count as u32,
            transfers,
        }
    }
}

/// The arguments of a launch, and the list in device memory if it is too long for them.
///
/// # Errors
/// Allocation of device memory for the list.
pub(crate) fn arguments(
    lists: &TransferLists,
    team: &Team,
    pipes: Pipes,
) -> Result<(Box<PipesArgs>, Option<TeamTable>)> {
    let mut args = Box::new(PipesArgs {
        pipes,
        lists: lists.lists,
        receive_lists: lists.receive_lists,
        used_pipes: lists.used_pipes,
        ..PipesArgs::zeroed()
    });
    if let Some(places) = args.transfers.get_mut(..lists.transfers.len()) {
        places.copy_from_slice(&lists.transfers);
        return Ok((args, None));
    }
    let table = team.table(bytemuck::cast_slice(&lists.transfers))?;
    args.table = DevicePointer::new(table.address());
    Ok((args, Some(table)))
}

/// Description of the launch for logs and reports.
pub(crate) fn describe(messages: &[PointToPoint<'_>], plan: &Plan) -> String {
    let Plan { algorithm, blocks, threads, .. } = plan;
    let what = match messages {
        [PointToPoint::Send { tensor, to }] => format!("send of {} bytes to {to}", tensor.bytes()),
        [PointToPoint::Receive { tensor, from: Some(from) }] => {
            format!("receive of {} bytes from {from}", tensor.bytes())
        }
        _ => {
            let bytes = |is_receive| -> (usize, u64) {
                let all = messages.iter().filter(|message| message.is_receive() == is_receive);
                (all.clone().count(), all.map(|message| message.tensor().bytes()).sum())
            };
            let ((sends, sent), (receives, received)) = (bytes(false), bytes(true));
            format!("batch of {sends} sends of {sent} bytes and {receives} receives of {received} bytes")
        }
    };
    format!("{what}: {algorithm}, {blocks} blocks of {threads} threads")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_message_is_in_the_list_of_its_peer_in_order(
            given in proptest::collection::vec((any::<bool>(), 0u32..5, any::<u64>(), 0u64..100_000), 0..40),
            me in 0u32..5,
        ) {
            let layout = PipeLayout::new(0, 5, 8, 1 << 20);
            let made = TransferLists::of(&given, me, 5, &layout);
            prop_assert_eq!(made.transfers.len(), given.len());
            let mut found = Vec::new();
            for list in 0..made.lists {
                let mut at = list;
                let is_receive = list < made.receive_lists;
                while at != LAST {
                    let transfer = made.transfers[at as usize];
                    found.push((is_receive, transfer.peer, transfer.address, transfer.bytes));
                    at = transfer.next;
                }
            }
            let key = |message: &(bool, u32, u64, u64)| (message.0, message.1);
            let mut sorted = given.clone();
            // The sort is stable, which keeps the order within a list.
            sorted.sort_by_key(key);
            found.sort_by_key(key);
            prop_assert_eq!(found, sorted);
            let most = given.iter().map(|message| layout.pipes_of(message.3)).max().unwrap_or(1);
            prop_assert_eq!(made.used_pipes, most);
        }
    }
}
