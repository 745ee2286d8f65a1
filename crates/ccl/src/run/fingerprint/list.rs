//! The comparison of lists of tensors.

use anabranch_hip_jit::bytemuck;

use crate::call::tensor::Tensor;
use crate::device::args::{ListedTensor, NOTHING};
use crate::types::{DATA_TYPES, ListMismatch};
use anabranch_ranks::digest;

use super::{CallRecord, from, place_in};

/// The compared properties of an entry (output, input) of a list. The offset counts if peers write the output.
pub(super) fn listed((output, input): &(Tensor<'_>, Tensor<'_>), is_written: bool) -> ListedTensor {
    // An empty output has no offset.
    let is_written = is_written && input.count() > 0;
    let (registration, offset) = if is_written { output.identity() } else { (NOTHING, NOTHING) };
    let data_type = place_in(&DATA_TYPES, input.data_type());
    ListedTensor { data_type, count: input.count(), registration, offset }
}

/// Digest of all entries, in order.
pub(super) fn digest_of(tensors: &[ListedTensor]) -> u64 {
    digest(bytemuck::cast_slice(tensors))
}

/// An entry, as text.
pub(super) fn describe(tensor: &ListedTensor) -> String {
    let ListedTensor { data_type, count, registration, offset } = *tensor;
    let data_type = from(&DATA_TYPES, data_type)
        .map_or_else(|| format!("{data_type:#x}"), |data_type| data_type.to_string());
    let place = match (registration, offset) {
        (_, NOTHING) => String::new(),
        (NOTHING, offset) => format!(" at byte {offset}"),
        (registration, offset) => format!(" at byte {offset} of registration {registration}"),
    };
    format!("{count} {data_type}{place}")
}

impl ListMismatch {
    /// The first difference of two calls; `None` unless both have lists.
    pub(super) fn find(one: &CallRecord, other: &CallRecord) -> Option<Self> {
        let (call, other_call) = (&one.fingerprint, &other.fingerprint);
        if call.tensors == NOTHING || other_call.tensors == NOTHING || call.list == other_call.list {
            return None;
        }
        let value = |record: &CallRecord, index: usize| {
            record.tensors.get(index).map_or_else(|| "none".to_owned(), describe)
        };
        let most = one.tensors.len().max(other.tensors.len());
        let first = (0..most).find(|index| one.tensors.get(*index) != other.tensors.get(*index));
        Some(match first {
            Some(index) => Self::Tensor { index, value: value(one, index), other_value: value(other, index) },
            None => Self::Later { alike: most },
        })
    }
}
