//! The first cause of a world's failure.

use std::fmt;
use std::time::Duration;

use anabranch_bootstrap::LossKind;
use anabranch_ranks::GlobalRank;
use serde::{Deserialize, Serialize};

/// Why a world is unusable. Kept for good; every later call returns it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A peer left or died while the world was in use.
    #[error("{rank} {kind} ({detail}); the world cannot be used any more")]
    PeerLost {
        /// The lost rank.
        rank: GlobalRank,
        /// Whether it left or died.
        #[serde(with = "loss_kind")]
        kind: LossKind,
        /// What was observed, for people.
        detail: String,
    },
    /// A kernel waited for a peer longer than the operation deadline.
    #[error("{0}; the deadline is deadline.operation, and the world cannot be used any more")]
    DeadlineExpired(Box<ExpiredWait>),
    /// A kernel found an error that waiting does not cure; the operation's [`ExplainFault`](crate::ExplainFault) describes it.
    #[error("{rank} found in {operation} ({phase}): {detail}; the world cannot be used any more")]
    Reported {
        /// The rank whose kernel found it.
        rank: GlobalRank,
        /// The operation's name.
        operation: String,
        /// The phase's name.
        phase: String,
        /// What was found.
        detail: String,
    },
    /// A collective call of the host did not come to its end.
    #[error("{step} did not complete: {detail}; the world cannot be used any more")]
    CollectiveFailed {
        /// What was being agreed on.
        step: String,
        /// The rendezvous's error.
        detail: String,
        /// Ranks that had not come, if that was the error.
        missing: Vec<GlobalRank>,
    },
    /// The user, or a crate above, gave up the world.
    #[error("{rank} gave the world up: {reason}")]
    Poisoned {
        /// The rank that gave it up.
        rank: GlobalRank,
        /// Why.
        reason: String,
    },
}

/// A wait of a kernel for a peer that expired.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpiredWait {
    /// The rank that waited.
    pub rank: GlobalRank,
    /// The operation's name.
    pub operation: String,
    /// The phase's name.
    pub phase: String,
    /// The epoch of the operation.
    pub epoch: u64,
    /// The rank that was waited for.
    pub peer: GlobalRank,
    /// The word waited for.
    pub expected: u64,
    /// The word last read.
    pub seen: u64,
    /// How long the kernel had been running.
    pub waited: Duration,
    /// The call of which it was a kernel, where that was noted for the operation ([`crate::Team::note_launch`]).
    pub call: Option<String>,
    /// What the peer is doing, as far as its host knows: the rest of a sentence that begins with the peer.
    pub doing: Option<String>,
}

impl fmt::Display for ExpiredWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, operation, phase, epoch, peer, expected, seen, waited, call, doing } = self;
        write!(f, "{rank} waited {waited:?} for {peer} in {operation} ({phase}), epoch {epoch}: ")?;
        write!(f, "expected {expected:#x}, saw {seen:#x}; ")?;
        match call {
            Some(call) => write!(f, "{rank} was in {call}")?,
            None => write!(f, "no call was noted at {rank} for this operation")?,
        }
        doing.as_ref().map_or(Ok(()), |doing| write!(f, "; {peer} {doing}"))
    }
}

/// [`LossKind`] as whether the rank left.
mod loss_kind {
    use anabranch_bootstrap::LossKind;
    use serde::{Deserialize as _, Deserializer, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
    pub(super) fn serialize<S: Serializer>(kind: &LossKind, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bool(*kind == LossKind::Left)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<LossKind, D::Error> {
        Ok(if bool::deserialize(deserializer)? { LossKind::Left } else { LossKind::Died })
    }
}
