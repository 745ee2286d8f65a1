//! Working without ranks that do not come: the policy of a plan, and reports of masked ranks.

use std::fmt;
use std::time::Duration;

use anabranch_ranks::GroupRank;

/// What becomes of an operation when a peer does not come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnTimeout {
    /// The world has failed: every rank ends with a fault that names the peer, after the world's operation deadline.
    #[default]
    Fault,
    /// The rank that waited masks the peer and goes on without it: the peer's counts are zero, its rows are left out of sums,
    /// nothing is sent to it, and no rank waits for it, until the ranks reset their masks
    /// ([`ExpertParallel::reset_mask`](crate::ExpertParallel::reset_mask)). The mask is each rank's own; ranks may differ in which
    /// they mask: one that ends while it flags its peers leaves the others waiting for its flag, and their peers as long for them, and
    /// ranks that are well may mask each other. Bring them together by a reset after any mask. A member whose process ends is masked in the same way, and does not end the world as long as the plan lives.
    ///
    /// For the slotted mode only: with more than 512 tokens a rank set [`Mode::Slotted`](crate::Mode::Slotted), as `Auto` is compact
    /// then. Without the rank that serves the rendezvous (rank 0 of the world) the others go on, but no mask can be reset. A plan for both ways of combine ([`CombineSource::Any`](crate::CombineSource::Any)) has
    /// windows of their own for them, and a window for pushed rows holds a row of every token and rank.
    Mask {
        /// How long a kernel waits for a peer before it masks it: longer than ranks are ordinarily apart from each other, experts
        /// included, as each wait has it anew and a block's waits may follow each other; and shorter than the world's operation deadline, which ends a kernel with a fault as ever.
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

/// A rank that this one works without.
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
    /// It did not come to an operation of this rank.
    TimedOut {
        /// The operation's name, as in faults.
        operation: String,
        /// The phase's name.
        phase: String,
        /// The slot of the operation.
        slot: u32,
        /// The slot's epoch: which of its operations.
        epoch: u64,
        /// How long it was waited for.
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
