//! All runs of a tiny case, instead of some: depth first through the choices that a seed would make.

use core::ops::ControlFlow;

use super::choices::{Choices, Script};
use super::error::SeededError;
use super::random::Random;
use super::{Run, SeededMachine};

/// Which runs an exploration takes. Every load takes every value that it may have, and a store that lands may become visible
/// to its device first; a launch ends when nothing else can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The most times in a run that a lane gives way while it could go on. That it must, counts for nothing.
    pub switches: u64,
    /// The most times in a run that a store lands, or becomes visible farther, while lanes could go on.
    pub landings: u64,
    /// Runs after which the exploration is given up.
    pub runs: u64,
}

/// What an exploration was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explored<B> {
    /// Runs taken.
    pub runs: u64,
    /// Whether these were all runs within the bounds.
    pub complete: bool,
    /// What the judge stopped with, and the choices of that run.
    pub stopped: Option<(B, Choices)>,
}

/// How many choices of a kind a run may still make.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    pub(crate) used: u64,
    pub(crate) most: u64,
}

impl Allowance {
    pub(crate) fn new(most: Option<u64>) -> Self {
        Self { used: 0, most: most.unwrap_or(u64::MAX) }
    }

    pub(crate) fn is_left(self) -> bool {
        self.used < self.most
    }

    /// Uses one up, if one is left and wanted.
    pub(crate) fn takes(&mut self, wanted: bool) -> bool {
        let takes = wanted && self.is_left();
        self.used += u64::from(takes);
        takes
    }
}

impl SeededMachine {
    /// Takes every run within the bounds: `prepare` sets memory and queues launches before each, `judge` looks at the
    /// machine and the outcome after it, and may stop. A kernel that polls needs the launch that ends its wait.
    ///
    /// # Errors
    /// What `prepare` returned. Runs that fail are the judge's.
    pub fn explore<B>(
        &mut self,
        bounds: Bounds,
        mut prepare: impl FnMut(&mut Self) -> Result<(), SeededError>,
        mut judge: impl FnMut(&Self, Result<Run, SeededError>) -> ControlFlow<B>,
    ) -> Result<Explored<B>, SeededError> {
        let mut next = Some(Choices::default());
        let mut runs = 0;
        while let Some(given) = next.take_if(|_| runs < bounds.runs) {
            prepare(self)?;
            let (outcome, random) = self.run_by(Random::given(given), Some(bounds));
            runs += 1;
            let script = random.into_script().unwrap_or_default();
            if let ControlFlow::Break(found) = judge(self, outcome) {
                return Ok(Explored { runs, complete: false, stopped: Some((found, script.taken())) });
            }
            next = Script::next(script);
        }
        Ok(Explored { runs, complete: next.is_none(), stopped: None })
    }

    /// Runs what is queued as one run of an exploration with the same bounds went.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn replay(&mut self, bounds: Bounds, choices: &Choices) -> Result<Run, SeededError> {
        self.run_by(Random::given(choices.clone()), Some(bounds)).0
    }
}
