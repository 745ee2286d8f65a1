//! Working without ranks that do not come: the policy of a plan, and reports of masked ranks.

use std::fmt;
use std::time::Duration;

use anabranch_ranks::GroupRank;

/// What an operation does when a wait for a peer expires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnTimeout {
    /// After the world's operation deadline the world fails: every rank's operation ends with a fault that names the peer.
    #[default]
    Fault,
    /// The waiting rank masks the peer and continues without it: the peer's counts are zero, sums leave out its rows,
    /// nothing is sent to it and nothing is awaited from it, until a reset of the mask
    /// ([`ExpertParallel::reset_mask`](crate::ExpertParallel::reset_mask)).
    ///
    /// Each rank has its own mask, and masks may differ. A rank that dies while it flags its peers leaves some of them waiting; others
    /// wait as long for those, so healthy ranks may mask each other. Reset the mask after any rank was masked. A member whose
    /// process ends is masked in the same way, and does not fail the world while the plan lives. If rank 0 of the world ends, which
    /// serves the rendezvous, the others continue but cannot reset the mask.
    ///
    /// Only for the slotted mode: with more than 512 tokens per rank set [`Mode::Slotted`](crate::Mode::Slotted), because `Auto` is then
    /// compact. With [`CombineSource::Any`](crate::CombineSource::Any) the two combine windows do not share memory, and the window for
    /// pushed rows has a row for every token and rank.
    Mask {
        /// How long a kernel waits for a peer before it masks the peer. It must exceed the usual skew of the ranks, experts included: it
        /// applies to each wait, and the waits of a block may follow each other. It must be below the world's operation deadline, which
        /// still ends a kernel with a fault.
        patience: Duration,
    },
}

impl OnTimeout {
    /// Whether ranks may be masked.
    pub const fn masks(self) -> bool {
        matches!(self, Self::Mask { .. })
    }

    /// Zero when no rank is masked.
    pub(crate) fn patience(self) -> Duration {
        match self {
            Self::Fault => Duration::ZERO,
            Self::Mask { patience } => patience,
        }
    }
}

impl fmt::Display for OnTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fault => f.write_str("fault"),
            Self::Mask { patience } => write!(f, "mask after {patience:?}"),
        }
    }
}

/// A rank that this rank has masked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MaskedRank {
    /// The rank.
    pub rank: GroupRank,
    /// Why.
    pub cause: MaskCause,
}

/// Why a rank is masked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MaskCause {
    /// [`ExpertParallel::mask_rank`](crate::ExpertParallel::mask_rank), or a reset without it.
    ByHand,
    /// A wait for it in an operation of this rank expired.
    TimedOut {
        /// The operation's name, as in faults.
        operation: String,
        /// The phase's name.
        phase: String,
        /// The slot of the operation.
        slot: u32,
        /// The slot's epoch, which numbers its operations.
        epoch: u64,
        /// How long the wait lasted.
        waited: Duration,
    },
}

impl fmt::Display for MaskedRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            MaskCause::ByHand => write!(f, "{} was masked by hand", self.rank),
            MaskCause::TimedOut { operation, phase, slot, epoch, waited } => write!(
                f,
                "{} was masked by {operation} ({phase}), epoch {epoch} of slot {slot}, after {waited:?}",
                self.rank
            ),
        }
    }
}
