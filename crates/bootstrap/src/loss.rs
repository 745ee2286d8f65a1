//! Ranks that are no longer there.

use anabranch_ranks::GlobalRank;
use std::fmt;

/// How a rank went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossKind {
    /// It left with a goodbye.
    Left,
    /// It went without a goodbye: its process ended, it was dropped, or it fell silent.
    Died,
}

impl fmt::Display for LossKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Left => "left",
            Self::Died => "died",
        })
    }
}

/// A rank that left or died.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The lost rank.
    pub rank: GlobalRank,
    /// Whether it left or died.
    pub kind: LossKind,
    /// What was observed, for people.
    pub detail: String,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({})", self.rank, self.kind, self.detail)
    }
}

/// Receives losses. Closures of the same shape are observers too.
pub trait LossObserver: Send + Sync {
    /// A rank was lost. Called once for each loss, on whatever thread noticed it, with no lock held; it must
    /// not block, since other notices wait for it.
    fn lost(&self, loss: &Loss);
}

impl<F: Fn(&Loss) + Send + Sync> LossObserver for F {
    fn lost(&self, loss: &Loss) {
        self(loss);
    }
}
