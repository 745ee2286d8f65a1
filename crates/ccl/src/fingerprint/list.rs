//! Lists of tensors, as members have to give them alike.

use std::fmt;

use anabranch_hip_jit::bytemuck;

use crate::DataType;
use crate::args::{ListedTensor, NOTHING};
use crate::tensor::Tensor;
use anabranch_tuning::digest;

use super::{Said, from, place_in};

/// What is compared of an entry (output, input) of a list; its place where peers write it.
pub(super) fn listed((output, input): &(Tensor<'_>, Tensor<'_>), is_written: bool) -> ListedTensor {
    // Where nothing is written no place is.
    let is_written = is_written && input.count() > 0;
    let (registration, offset) = if is_written { output.identity() } else { (NOTHING, NOTHING) };
    let data_type = place_in(&DataType::ALL, input.data_type());
    ListedTensor { data_type, count: input.count(), registration, offset }
}

/// Of all entries, in their order.
pub(super) fn digest_of(tensors: &[ListedTensor]) -> u64 {
    digest(bytemuck::cast_slice(tensors))
}

/// An entry, in words.
pub(super) fn describe(tensor: &ListedTensor) -> String {
    let ListedTensor { data_type, count, registration, offset } = *tensor;
    let data_type = from(&DataType::ALL, data_type)
        .map_or_else(|| format!("{data_type:#x}"), |data_type| data_type.to_string());
    let place = match (registration, offset) {
        (_, NOTHING) => String::new(),
        (NOTHING, offset) => format!(" at byte {offset}"),
        (registration, offset) => format!(" at byte {offset} of registration {registration}"),
    };
    format!("{count} {data_type}{place}")
}

/// Where two members' lists of tensors differ.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ListMismatch {
    /// In this tensor first.
    Tensor {
        /// Its place in the lists, from 0 on.
        index: usize,
        /// As [`Mismatch::rank`](crate::Mismatch::rank) has it: elements, type and, where peers write it, the output's place.
        value: String,
        /// As [`Mismatch::other`](crate::Mismatch::other) has it.
        other_value: String,
    },
    /// Behind the first tensors, which are all that members tell each other of beside a digest of all.
    Behind {
        /// So many are alike.
        alike: usize,
    },
}

impl ListMismatch {
    /// Between two calls that both have lists.
    pub(super) fn find(one: &Said, other: &Said) -> Option<Self> {
        let (call, other_call) = (&one.fingerprint, &other.fingerprint);
        if call.tensors == NOTHING || other_call.tensors == NOTHING || call.list == other_call.list {
            return None;
        }
        let value =
            |said: &Said, index: usize| said.tensors.get(index).map_or_else(|| "none".to_owned(), describe);
        let most = one.tensors.len().max(other.tensors.len());
        let first = (0..most).find(|index| one.tensors.get(*index) != other.tensors.get(*index));
        Some(match first {
            Some(index) => Self::Tensor { index, value: value(one, index), other_value: value(other, index) },
            None => Self::Behind { alike: most },
        })
    }
}

impl fmt::Display for ListMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tensor { index, value, other_value } => {
                write!(f, "the first tensor that differs is number {index} ({value} and {other_value})")
            }
            Self::Behind { alike } => {
                write!(f, "the first {alike} tensors are alike, and one behind them differs")
            }
        }
    }
}
