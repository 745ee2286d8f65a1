//! The comparison of calls: fingerprints, and the mismatch between the calls of members. Pure.

mod list;
mod record;

use anabranch_hip_jit::bytemuck;
use anabranch_ranks::Group;

use crate::types::{
    Algorithm, Collective, DATA_TYPES, DataType, Difference, ListMismatch, LocationKind, Mismatch, ReduceOp,
    Shape, SplitMismatch,
};

use crate::call::Call;
use crate::call::tensor::Tensor;
use crate::device::args::{Fingerprint, NOTHING};
use crate::plan::Plan;

pub(crate) use record::CallRecord;

/// 64-bit words of a fingerprint.
pub(crate) const WORDS: usize = size_of::<Fingerprint>() / 8;

/// The names of the words, in the order of the struct.
const FIELDS: [&str; WORDS] = [
    "the number of the call",
    "the collective",
    "the data type",
    "the operator",
    "the scalar",
    "the count",
    "the root",
    "whether counts are given per member",
    "the memory of the input",
    "the registration of the input",
    "the offset of the input",
    "the memory of the output",
    "the registration of the output",
    "the offset of the output",
    "the algorithm",
    "the number of blocks",
    "whether it has phases",
    "the number of tensors",
    "the list of tensors",
    "the row of rms_norm",
];

impl Fingerprint {
    /// The fingerprint of a planned call. Its sequence number is 0 until the launch.
    pub(crate) fn new(call: &Call<'_>, shape: &Shape, plan: &Plan) -> Self {
        let (output, input) = call.tensors();
        let (inputs_are_read, outputs_are_written) = plan.recipe.reached_by_peers(shape);
        let at = |tensor: Option<Tensor<'_>>, is_reached: bool| {
            tensor.filter(|_| is_reached).map_or((NOTHING, NOTHING), |tensor| tensor.identity())
        };
        let (input_registration, input_offset) = at(input, inputs_are_read);
        let (output_registration, output_offset) = at(output, outputs_are_written);
        Self {
            sequence: 0,
            collective: place_in(&Collective::ALL, shape.collective),
            data_type: place_in(&DATA_TYPES, shape.data_type),
            op: shape.op.map_or(NOTHING, |op| op.torch_value().into()),
            scalar: match shape.op {
                // Only the kernels read it.
                Some(ReduceOp::PreMulSumAt(_)) => NOTHING,
                op => op.map_or(0, |op| op.scalar_bits(shape.data_type)),
            },
            count: if shape.uneven { NOTHING } else { shape.count },
            root: shape.root.map_or(NOTHING, |root| root.get().into()),
            uneven: shape.uneven.into(),
            input_kind: place_in(&KINDS, shape.input),
            input_registration,
            input_offset,
            output_kind: place_in(&KINDS, shape.output),
            output_registration,
            output_offset,
            algorithm: place_in(&Algorithm::ALL, plan.algorithm),
            blocks: plan.blocks.into(),
            phased: plan.phased.into(),
            tensors: NOTHING,
            list: NOTHING,
            norm_row: shape.norm_row.unwrap_or(NOTHING),
        }
    }

    fn words(&self) -> [u64; WORDS] {
        bytemuck::cast(*self)
    }

    /// The value of a word, as text.
    fn value(&self, field: usize) -> String {
        let word = self.words()[field];
        let named = |name: Option<&'static str>| name.map_or_else(|| format!("{word:#x}"), str::to_owned);
        match field {
            1 => named(from(&Collective::ALL, word).map(Collective::name)),
            2 => from(&DATA_TYPES, word).map_or_else(|| format!("{word:#x}"), |known| known.to_string()),
            3 if word != NOTHING => named(from(&ReduceOp::all(0.0), word).map(ReduceOp::name)),
            4 if word == NOTHING => "a scalar in device memory".to_owned(),
            4 => match from(&DATA_TYPES, self.data_type) {
                Some(DataType::F64) => f64::from_bits(word).to_string(),
                Some(known) if !known.is_float() => word.cast_signed().to_string(),
                _ => f32::from_bits(word as u32).to_string(),
            },
            7 | 16 => named(Some(if word == 0 { "no" } else { "yes" })),
            8 | 11 => named(from(&KINDS, word).map(kind_name)),
            14 => named(from(&Algorithm::ALL, word).map(Algorithm::name)),
            _ if word == NOTHING => "none".to_owned(),
            18 => format!("{word:016x}"),
            _ => word.to_string(),
        }
    }
}

const KINDS: [LocationKind; 3] = [LocationKind::Local, LocationKind::Symmetric, LocationKind::Registered];

const fn kind_name(kind: LocationKind) -> &'static str {
    match kind {
        LocationKind::Local => "local",
        LocationKind::Symmetric => "symmetric",
        LocationKind::Registered => "registered",
    }
}

fn place_in<T: Copy + PartialEq>(all: &[T], one: T) -> u64 {
    all.iter().position(|other| *other == one).map_or(NOTHING, |place| place as u64)
}

fn from<T: Copy>(all: &[T], word: u64) -> Option<T> {
    all.get(usize::try_from(word).ok()?).copied()
}

impl Mismatch {
    /// The first difference between the calls of all members, given in group order.
    pub(crate) fn find(group: &Group, records: &[CallRecord]) -> Option<Self> {
        let global = |index: usize| group.members().get(index).copied();
        let splits = first_split(records).and_then(|(from, to, sent, expected)| {
            Some((from, to, SplitMismatch { from: global(from)?, sent, to: global(to)?, expected }))
        });
        let (odd, usual) = odd_one_out(records).or_else(|| splits.map(|(from, to, _)| (from, to)))?;
        let (one, other) = (records.get(odd)?, records.get(usual)?);
        let (call, other_call) = (&one.fingerprint, &other.fingerprint);
        let fields = FIELDS.into_iter().zip(call.words().into_iter().zip(other_call.words())).enumerate();
        let differences =
            fields.filter(|(_, (_, (word, other)))| word != other).map(|(index, (field, _))| Difference {
                field,
                value: call.value(index),
                other_value: other_call.value(index),
            });
        Some(Self {
            rank: global(odd)?,
            call: one.describe(),
            other: global(usual)?,
            other_call: other.describe(),
            differences: differences.collect(),
            splits: splits.map(|(_, _, splits)| splits),
            list: ListMismatch::find(one, other),
        })
    }
}

/// The first member without the most frequent fingerprint, and the first member with it.
fn odd_one_out(records: &[CallRecord]) -> Option<(usize, usize)> {
    let words: Vec<_> = records.iter().map(|record| record.fingerprint.words()).collect();
    let (mut usual, mut most) = (0, 0);
    for (index, one) in words.iter().enumerate() {
        let count = words.iter().filter(|other| *other == one).count();
        if count > most {
            (usual, most) = (index, count);
        }
    }
    let right = words.get(usual)?;
    words.iter().position(|one| one != right).map(|odd| (odd, usual))
}

/// The first pair whose splits do not match: (sender, receiver, elements sent, elements expected).
fn first_split(records: &[CallRecord]) -> Option<(usize, usize, u64, u64)> {
    if records.iter().any(|record| record.fingerprint.uneven == 0) {
        return None;
    }
    let pairs = (0..records.len()).flat_map(|from| (0..records.len()).map(move |to| (from, to)));
    let at = |whose: usize, with: usize| records.get(whose).and_then(|record| record.splits.get(with));
    pairs
        .filter_map(|(from, to)| Some((from, to, at(from, to)?.sent, at(to, from)?.expected)))
        .find(|(_, _, sent, expected)| sent != expected)
}

#[cfg(test)]
mod tests;
