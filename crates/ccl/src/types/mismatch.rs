//! How the calls of two members differ, where calls are compared.

use std::fmt;

use anabranch_ranks::GlobalRank;

/// Two members made different calls where all have to make the same. Equal on all members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The first member, in group order, whose call is not the one that most made; of splits that do not fit, the sender.
    pub rank: GlobalRank,
    /// Its call, in full.
    pub call: String,
    /// The first member with the call that most made; of splits, the receiver.
    pub other: GlobalRank,
    /// That call.
    pub other_call: String,
    /// What is different between the two.
    pub differences: Vec<Difference>,
    /// The first splits that do not fit, when all members gave such.
    pub splits: Option<SplitMismatch>,
    /// Where lists of tensors differ, when both gave such.
    pub list: Option<ListMismatch>,
}

/// One thing in which two calls differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// What.
    pub field: &'static str,
    /// As [`Mismatch::rank`] has it.
    pub value: String,
    /// As [`Mismatch::other`] has it.
    pub other_value: String,
}

/// What one member sends to another is not what that one expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitMismatch {
    /// The sender.
    pub from: GlobalRank,
    /// Elements that it sends.
    pub sent: u64,
    /// The receiver.
    pub to: GlobalRank,
    /// Elements that it expects.
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
