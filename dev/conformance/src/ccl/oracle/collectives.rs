//! What every rank holds after a collective.

use anabranch_ranks::GroupRank;

use super::arithmetic::{equal, reduce};
use super::error::{Mismatch, OracleError};
use anabranch_ccl::{DataType, ReduceOp};

/// The outputs that all ranks of a group must have.
#[derive(Clone, Debug)]
pub struct Expected {
    data_type: DataType,
    op: Option<ReduceOp>,
    outputs: Vec<Option<Vec<u8>>>,
}

impl Expected {
    /// A rank's output; `None` if it has none (not the root) or is not in the group.
    pub fn output(&self, rank: GroupRank) -> Option<&[u8]> {
        self.outputs.get(rank.index())?.as_deref()
    }

    /// Compares a rank's output, with [`equal`]. A rank that is not the root may hold anything.
    ///
    /// # Errors
    /// [`Mismatch::NoSuchRank`], [`Mismatch::Output`].
    pub fn check(&self, rank: GroupRank, seen: &[u8]) -> Result<(), Mismatch> {
        let Some(expected) = self.outputs.get(rank.index()) else {
            return Err(Mismatch::NoSuchRank { rank, ranks: self.outputs.len() });
        };
        let Some(expected) = expected else { return Ok(()) };
        equal(self.data_type, self.op, expected, seen)
            .map_err(|difference| Mismatch::Output { rank, difference })
    }

    /// Compares all ranks' outputs, in group order.
    ///
    /// # Errors
    /// [`Mismatch::Outputs`] if they are not one for each rank; the first [`Mismatch::Output`].
    pub fn check_all<B: AsRef<[u8]>>(&self, seen: &[B]) -> Result<(), Mismatch> {
        if seen.len() != self.outputs.len() {
            return Err(Mismatch::Outputs { given: seen.len(), ranks: self.outputs.len() });
        }
        seen.iter().enumerate().try_for_each(|(rank, seen)| self.check(rank_at(rank), seen.as_ref()))
    }
}

fn rank_at(index: usize) -> GroupRank {
    GroupRank::new(index as u32)
}

/// Every rank gets the reduction of all inputs. Inputs: one length.
///
/// # Errors
/// The errors of [`reduce`].
pub fn all_reduce<B: AsRef<[u8]>>(
    data_type: DataType,
    op: ReduceOp,
    inputs: &[B],
) -> Result<Expected, OracleError> {
    let result = reduce(data_type, op, inputs)?;
    Ok(Expected { data_type, op: Some(op), outputs: vec![Some(result); inputs.len()] })
}

/// The root gets the reduction of all inputs; what others hold is not defined. Inputs: one length.
///
/// # Errors
/// The errors of [`reduce`]; [`OracleError::Root`].
pub fn reduce_to_root<B: AsRef<[u8]>>(
    data_type: DataType,
    op: ReduceOp,
    inputs: &[B],
    root: GroupRank,
) -> Result<Expected, OracleError> {
    let result = reduce(data_type, op, inputs)?;
    let outputs = only_at(root, inputs.len(), result)?;
    Ok(Expected { data_type, op: Some(op), outputs })
}

/// Rank r gets the r-th of equal parts of the reduction. Inputs: one length, a multiple of the group's size in elements.
///
/// # Errors
/// The errors of [`reduce`]; [`OracleError::Multiple`].
pub fn reduce_scatter<B: AsRef<[u8]>>(
    data_type: DataType,
    op: ReduceOp,
    inputs: &[B],
) -> Result<Expected, OracleError> {
    let count = equal_parts(data_type, inputs)?.first().copied().unwrap_or_default();
    reduce_scatter_uneven(data_type, op, inputs, &vec![count; inputs.len()])
}

/// Rank r gets `counts[r]` elements of the reduction, behind those of the ranks before it. Inputs: the sum of the counts.
///
/// # Errors
/// The errors of [`reduce`]; [`OracleError::Counts`], [`OracleError::Length`].
pub fn reduce_scatter_uneven<B: AsRef<[u8]>>(
    data_type: DataType,
    op: ReduceOp,
    inputs: &[B],
    counts: &[u64],
) -> Result<Expected, OracleError> {
    check_counts(counts.len(), inputs.len())?;
    for (rank, input) in inputs.iter().enumerate() {
        check_length(rank, input.as_ref(), bytes_of(data_type, counts), "the sum of the counts")?;
    }
    let result = reduce(data_type, op, inputs)?;
    let outputs = cut(data_type, &result, counts).into_iter().map(|part| Some(part.to_vec())).collect();
    Ok(Expected { data_type, op: Some(op), outputs })
}

/// Every rank gets all inputs, one behind the other. Inputs: one length.
///
/// # Errors
/// [`OracleError::NoRanks`], [`OracleError::Length`], [`OracleError::Multiple`].
pub fn all_gather<B: AsRef<[u8]>>(data_type: DataType, inputs: &[B]) -> Result<Expected, OracleError> {
    let counts = equal_counts(data_type, inputs)?;
    all_gather_uneven(data_type, inputs, &counts)
}

/// Every rank gets all inputs, one behind the other. Inputs: `counts[r]` elements of rank r.
///
/// # Errors
/// [`OracleError::NoRanks`], [`OracleError::Counts`], [`OracleError::Length`].
pub fn all_gather_uneven<B: AsRef<[u8]>>(
    data_type: DataType,
    inputs: &[B],
    counts: &[u64],
) -> Result<Expected, OracleError> {
    let all = concatenated(data_type, inputs, counts)?;
    Ok(Expected { data_type, op: None, outputs: vec![Some(all); inputs.len()] })
}

/// The root gets all inputs, one behind the other; others get nothing. Inputs: one length.
///
/// # Errors
/// The errors of [`all_gather`]; [`OracleError::Root`].
pub fn gather<B: AsRef<[u8]>>(
    data_type: DataType,
    inputs: &[B],
    root: GroupRank,
) -> Result<Expected, OracleError> {
    let all = concatenated(data_type, inputs, &equal_counts(data_type, inputs)?)?;
    Ok(Expected { data_type, op: None, outputs: only_at(root, inputs.len(), all)? })
}

/// Rank r gets the r-th of equal parts of every input, in the order of their ranks. Inputs: one length, a multiple of the
/// group's size in elements.
///
/// # Errors
/// [`OracleError::NoRanks`], [`OracleError::Length`], [`OracleError::Multiple`].
pub fn all_to_all<B: AsRef<[u8]>>(data_type: DataType, inputs: &[B]) -> Result<Expected, OracleError> {
    let parts = equal_parts(data_type, inputs)?;
    all_to_all_splits(data_type, inputs, &vec![parts; inputs.len()])
}

/// Rank r gets, from each rank s in turn, `splits[s][r]` elements: the part of its input behind those for ranks before r.
/// Inputs: the sum of the rank's splits.
///
/// # Errors
/// [`OracleError::NoRanks`], [`OracleError::Counts`], [`OracleError::Length`].
pub fn all_to_all_splits<B: AsRef<[u8]>, S: AsRef<[u64]>>(
    data_type: DataType,
    inputs: &[B],
    splits: &[S],
) -> Result<Expected, OracleError> {
    check_counts(splits.len(), inputs.len())?;
    let mut outputs = vec![Vec::new(); inputs.len()];
    for (rank, (input, splits)) in inputs.iter().zip(splits).enumerate() {
        let (input, splits) = (input.as_ref(), splits.as_ref());
        check_counts(splits.len(), outputs.len())?;
        check_length(rank, input, bytes_of(data_type, splits), "the sum of its splits")?;
        for (output, part) in outputs.iter_mut().zip(cut(data_type, input, splits)) {
            output.extend_from_slice(part);
        }
    }
    Ok(Expected { data_type, op: None, outputs: outputs.into_iter().map(Some).collect() })
}

/// Every rank gets the root's input. Inputs: one length; only the root's is looked at otherwise.
///
/// # Errors
/// [`OracleError::NoRanks`], [`OracleError::Length`], [`OracleError::Multiple`], [`OracleError::Root`].
pub fn broadcast<B: AsRef<[u8]>>(
    data_type: DataType,
    inputs: &[B],
    root: GroupRank,
) -> Result<Expected, OracleError> {
    equal_counts(data_type, inputs)?;
    let ranks = inputs.len();
    let from = inputs.get(root.index()).ok_or(OracleError::Root { root, ranks })?;
    Ok(Expected { data_type, op: None, outputs: vec![Some(from.as_ref().to_vec()); ranks] })
}

/// Rank r of `ranks` gets the r-th of equal parts of the root's input, whose length is a multiple of `ranks` in elements.
///
/// # Errors
/// [`OracleError::NoRanks`], [`OracleError::Multiple`], [`OracleError::Root`].
pub fn scatter(
    data_type: DataType,
    input: &[u8],
    ranks: usize,
    root: GroupRank,
) -> Result<Expected, OracleError> {
    check_counts(1, ranks.min(1))?;
    if root.index() >= ranks {
        return Err(OracleError::Root { root, ranks });
    }
    let multiple = data_type.bytes() as usize * ranks;
    if !input.len().is_multiple_of(multiple) {
        let why = "an equal part of whole elements for each rank";
        return Err(OracleError::Multiple { rank: root, given: input.len(), multiple, why });
    }
    let counts = vec![(input.len() / multiple) as u64; ranks];
    let outputs = cut(data_type, input, &counts).into_iter().map(|part| Some(part.to_vec())).collect();
    Ok(Expected { data_type, op: None, outputs })
}

fn check_counts(given: usize, ranks: usize) -> Result<(), OracleError> {
    match ranks {
        0 => Err(OracleError::NoRanks),
        _ if given != ranks => Err(OracleError::Counts { given, ranks }),
        _ => Ok(()),
    }
}

fn check_length(rank: usize, input: &[u8], needed: usize, why: &'static str) -> Result<(), OracleError> {
    let (rank, given) = (rank_at(rank), input.len());
    if given == needed { Ok(()) } else { Err(OracleError::Length { rank, given, needed, why }) }
}

fn bytes_of(data_type: DataType, counts: &[u64]) -> usize {
    counts.iter().sum::<u64>() as usize * data_type.bytes() as usize
}

/// The elements of each rank's input, which are equally many.
fn equal_counts<B: AsRef<[u8]>>(data_type: DataType, inputs: &[B]) -> Result<Vec<u64>, OracleError> {
    let first = inputs.first().ok_or(OracleError::NoRanks)?.as_ref();
    for (rank, input) in inputs.iter().enumerate() {
        check_length(rank, input.as_ref(), first.len(), "as many as group rank 0 has")?;
    }
    let multiple = data_type.bytes() as usize;
    if !first.len().is_multiple_of(multiple) {
        let why = "whole elements";
        return Err(OracleError::Multiple { rank: rank_at(0), given: first.len(), multiple, why });
    }
    Ok(vec![(first.len() / multiple) as u64; inputs.len()])
}

/// The elements of each rank's part of an input.
fn equal_parts<B: AsRef<[u8]>>(data_type: DataType, inputs: &[B]) -> Result<Vec<u64>, OracleError> {
    let ranks = inputs.len() as u64;
    let counts = equal_counts(data_type, inputs)?;
    let uneven = counts.iter().position(|count| !count.is_multiple_of(ranks));
    if let Some(rank) = uneven {
        let given = counts[rank] as usize * data_type.bytes() as usize;
        let multiple = data_type.bytes() as usize * inputs.len();
        let why = "an equal part of whole elements for each rank";
        return Err(OracleError::Multiple { rank: rank_at(rank), given, multiple, why });
    }
    Ok(counts.iter().map(|count| count / ranks).collect())
}

fn concatenated<B: AsRef<[u8]>>(
    data_type: DataType,
    inputs: &[B],
    counts: &[u64],
) -> Result<Vec<u8>, OracleError> {
    check_counts(counts.len(), inputs.len())?;
    let mut all = Vec::with_capacity(bytes_of(data_type, counts));
    for (rank, (input, count)) in inputs.iter().zip(counts).enumerate() {
        check_length(rank, input.as_ref(), bytes_of(data_type, &[*count]), "its count")?;
        all.extend_from_slice(input.as_ref());
    }
    Ok(all)
}

/// Parts that lie one behind the other; `bytes` has the sum of their lengths.
fn cut<'b>(data_type: DataType, bytes: &'b [u8], counts: &[u64]) -> Vec<&'b [u8]> {
    let mut rest = bytes;
    let parts = counts.iter().map(|count| {
        let (part, behind) = rest.split_at(*count as usize * data_type.bytes() as usize);
        rest = behind;
        part
    });
    parts.collect()
}

fn only_at(root: GroupRank, ranks: usize, output: Vec<u8>) -> Result<Vec<Option<Vec<u8>>>, OracleError> {
    let mut outputs = vec![None; ranks];
    *outputs.get_mut(root.index()).ok_or(OracleError::Root { root, ranks })? = Some(output);
    Ok(outputs)
}
