//! A protocol with its judge.

use core::fmt::Debug;

use anabranch_weakmem::{Bounds, Choices, Run, SeededError};

use crate::{Case, CaseError, Failure};

/// How one run is done.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RunOptions {
    /// Whether a failure has its events.
    pub keep_events: bool,
    /// The most times that a lane gives way without having to; `None` leaves it to chance.
    pub most_switches: Option<u64>,
    /// Takes this run of an exploration within these bounds. The seed then decides only what the scenario itself draws.
    pub way: Option<(Bounds, Choices)>,
}

/// A run that was right.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What the machine counted.
    pub run: Run,
}

/// Something that one seed decides. Made once for a case, which compiles kernels; run for many seeds.
pub trait Scenario: Debug {
    /// What it runs.
    fn case(&self) -> &Case;

    /// Runs the case under a seed and judges what came of it. The same seed and options give the same run.
    ///
    /// # Errors
    /// What was wrong. A mutant is meant to give one for some seed.
    fn run(&mut self, seed: u64, options: &RunOptions) -> Result<Outcome, Failure>;
}

/// Why a scenario could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioError {
    /// The case has a number out of range.
    #[error(transparent)]
    Case(#[from] CaseError),
    #[error("the kernels of the scenario cannot be compiled")]
    Compile(#[from] anabranch_hip_jit::Error),
    #[error("the machine of the scenario cannot be made")]
    Machine(#[from] SeededError),
    #[error("{0}")]
    Plan(String),
}
