//! The difference between the calls of two members.

use std::fmt;

use anabranch_ranks::GlobalRank;

/// Two members made different calls where all members have to make the same. Equal on all members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The first member, in group order, whose call differs from the most frequent one. With splits that do not match: the sender.
    pub rank: GlobalRank,
    /// Its call.
    pub call: String,
    /// The first member with the most frequent call. With splits that do not match: the receiver.
    pub other: GlobalRank,
    /// That call.
    pub other_call: String,
    /// The fields in which the two calls differ.
    pub differences: Vec<Difference>,
    /// The first pair whose splits do not match, if all members gave splits.
    pub splits: Option<SplitMismatch>,
    /// The first difference of the lists of tensors, if both calls have lists.
    pub list: Option<ListMismatch>,
}

/// One field in which two calls differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Name of the field.
    pub field: &'static str,
    /// Value in the call of [`Mismatch::rank`].
    pub value: String,
    /// Value in the call of [`Mismatch::other`].
    pub other_value: String,
}

/// A member sends another number of elements than the receiver expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitMismatch {
    /// The sender.
    pub from: GlobalRank,
    /// Elements sent.
    pub sent: u64,
    /// The receiver.
    pub to: GlobalRank,
    /// Elements expected.
    pub expected: u64,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, call, other, other_call, differences, splits, list } = self;
        write!(f, "{rank} made {call}, but {other} made {other_call}")?;
        for (index, Difference { field, value, other_value }) in differences.iter().enumerate() {
            let before = if index == 0 { "; different are" } else { "," };
            write!(f, "{before} {field} ({value} and {other_value})")?;
        }
        if let Some(SplitMismatch { from, sent, to, expected }) = splits {
            write!(f, "; {from} sends {sent} elements to {to}, which expects {expected}")?;
        }
        if let Some(list) = list {
            write!(f, "; {list}")?;
        }
        Ok(())
    }
}

/// The first difference of two lists of tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ListMismatch {
    /// This tensor differs first.
    Tensor {
        /// Its index in the lists.
        index: usize,
        /// In the call of [`Mismatch::rank`](crate::Mismatch::rank): elements, type and, if peers write the output, its offset.
        value: String,
        /// In the call of [`Mismatch::other`](crate::Mismatch::other).
        other_value: String,
    },
    /// A later tensor differs. Members exchange the first tensors of a list and a digest of the whole list.
    Later {
        /// Number of tensors that were exchanged, all equal.
        alike: usize,
    },
}

impl fmt::Display for ListMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tensor { index, value, other_value } => {
                write!(f, "the first tensor that differs is number {index} ({value} and {other_value})")
            }
            Self::Later { alike } => {
                write!(f, "the first {alike} tensors are equal, and a later one differs")
            }
        }
    }
}
