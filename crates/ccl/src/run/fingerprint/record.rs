//! The record of the call of one member: the fingerprint, and the row after it.

use anabranch_hip_jit::bytemuck;
use anabranch_ranks::GroupRank;

use crate::call::Call;
use crate::device::args::{Fingerprint, ListedTensor, MOST_LISTED, MOST_UNEVEN, NOTHING, ROW_WORDS, Split};
use crate::plan::Plan;
use crate::types::{Collective, ReduceOp, Shape};

use super::{list, place_in};

/// 64-bit words of a split, and of a tensor in a list.
const SPLIT_WORDS: usize = size_of::<Split>() / 8;
const LISTED_WORDS: usize = size_of::<ListedTensor>() / 8;

/// The call of one member, as members exchange it.
#[derive(Clone, Debug)]
pub(crate) struct CallRecord {
    pub(crate) fingerprint: Fingerprint,
    /// The elements exchanged with each member; empty if counts are equal.
    pub(crate) splits: Vec<Split>,
    /// The first [`MOST_LISTED`] tensors of a list.
    pub(crate) tensors: Vec<ListedTensor>,
}

impl CallRecord {
    /// The record of a planned call. Its sequence number is 0 until the launch.
    pub(crate) fn new(call: &Call<'_>, shape: &Shape, plan: &Plan, rank: GroupRank) -> Self {
        let mut fingerprint = Fingerprint::new(call, shape, plan);
        let mut tensors = Vec::new();
        if let Call::AllGatherMany(pairs) = call {
            let (_, outputs_are_written) = plan.recipe.reached_by_peers(shape);
            tensors = pairs.iter().map(|pair| list::listed(pair, outputs_are_written)).collect();
            fingerprint.tensors = tensors.len() as u64;
            fingerprint.list = list::digest_of(&tensors);
            tensors.truncate(MOST_LISTED);
        }
        Self { fingerprint, splits: splits(call, rank), tensors }
    }

    /// Decodes the fingerprint and the row of a member of a group of `members`. The row has [`Self::row_words`] words.
    pub(crate) fn of(fingerprint: Fingerprint, row: &[u64; ROW_WORDS], members: u32) -> Self {
        let written = &row[..Self::row_words(&fingerprint, members)];
        if fingerprint.uneven == 0 {
            Self { fingerprint, splits: Vec::new(), tensors: bytemuck::cast_slice(written).to_vec() }
        } else {
            Self { fingerprint, splits: bytemuck::cast_slice(written).to_vec(), tensors: Vec::new() }
        }
    }

    /// Words of the row after a fingerprint.
    pub(crate) fn row_words(fingerprint: &Fingerprint, members: u32) -> usize {
        match fingerprint {
            Fingerprint { uneven: 0, tensors: NOTHING, .. } => 0,
            Fingerprint { uneven: 0, tensors, .. } => {
                (*tensors).min(MOST_LISTED as u64) as usize * LISTED_WORDS
            }
            _ => (members as usize).min(MOST_UNEVEN) * SPLIT_WORDS,
        }
    }

    /// The row, and the number of its words in use.
    pub(crate) fn row(&self) -> ([u64; ROW_WORDS], u64) {
        let words: &[u64] = if self.fingerprint.uneven == 0 {
            bytemuck::cast_slice(&self.tensors)
        } else {
            bytemuck::cast_slice(&self.splits)
        };
        let mut row = [0; ROW_WORDS];
        for (place, word) in row.iter_mut().zip(words) {
            *place = *word;
        }
        (row, words.len().min(ROW_WORDS) as u64)
    }

    /// The call, as text.
    pub(crate) fn describe(&self) -> String {
        let Self { fingerprint: call, splits, tensors } = self;
        let value = |field| call.value(field);
        let mut words = vec![format!("call {}: {}", value(0), value(1))];
        if call.tensors == NOTHING {
            words.push(value(2));
        }
        let is_collective = |collective| call.collective == place_in(&Collective::ALL, collective);
        if call.op != NOTHING {
            words.push(value(3));
        }
        if call.op == u64::from(ReduceOp::PreMulSum(0.0).torch_value()) {
            words.push(format!("by {}", value(4)));
        }
        let list = |of: fn(&Split) -> u64| {
            splits.iter().map(|split| of(split).to_string()).collect::<Vec<_>>().join(", ")
        };
        let (sent, expected) = (list(|split| split.sent), list(|split| split.expected));
        if call.tensors != NOTHING {
            let written = tensors.iter().map(list::describe).collect::<Vec<_>>().join(", ");
            let more = if call.tensors > tensors.len() as u64 { ", .." } else { "" };
            words.push(format!("of {} tensors [{written}{more}]", value(17)));
        } else if call.uneven == 0 {
            words.push(format!("of {} elements", value(5)));
        } else if is_collective(Collective::AllGather) {
            words.push(format!("with counts [{expected}]"));
        } else if is_collective(Collective::ReduceScatter) {
            words.push(format!("with counts [{sent}]"));
        } else {
            words.push(format!("with output splits [{expected}], input splits [{sent}]"));
        }
        if call.root != NOTHING {
            words.push(format!("with root {}", value(6)));
        }
        let place = |kind: usize| {
            let (registration, offset) = (value(kind + 1), value(kind + 2));
            let registration =
                if registration == "none" { String::new() } else { format!(" {registration}") };
            let offset = if offset == "none" { String::new() } else { format!(" at byte {offset}") };
            format!("{}{registration}{offset}", value(kind))
        };
        words.push(format!("from {} to {} memory", place(8), place(11)));
        let phases = if call.phased == 0 { "" } else { " in phases" };
        words.push(format!("by {}{phases} on {} blocks", value(14), value(15)));
        words.join(" ")
    }
}

/// The elements that this rank sends to each member and expects from each; empty if counts are equal.
fn splits(call: &Call<'_>, rank: GroupRank) -> Vec<Split> {
    match *call {
        Call::AllGatherUneven { counts, .. } => {
            let sent = counts[rank.index()];
            counts.iter().map(|expected| Split { sent, expected: *expected }).collect()
        }
        Call::ReduceScatterUneven { counts, .. } => {
            let expected = counts[rank.index()];
            counts.iter().map(|sent| Split { sent: *sent, expected }).collect()
        }
        Call::AllToAllUneven { output_splits, input_splits, .. } => {
            let pairs = input_splits.iter().zip(output_splits);
            pairs.map(|(sent, expected)| Split { sent: *sent, expected: *expected }).collect()
        }
        _ => Vec::new(),
    }
}
