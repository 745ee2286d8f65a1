//! All runs of a tiny case within bounds, instead of those of some seeds.

use core::time::Duration;

use anabranch_clock::Moment;
use anabranch_weakmem::{Bounds, Choices};

use crate::{Failure, RunOptions, Scenario};

/// What an exploration was.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Exploration {
    /// Runs taken, with the one that failed.
    pub runs: u64,
    /// Whether these were all runs within the bounds.
    pub complete: bool,
    /// Primitives of the runs that were right.
    pub primitives: u64,
    /// How long it took.
    pub wall: Duration,
    /// The first failure, with its events.
    pub failed: Option<Failure>,
}

/// Runs a case in every order within the bounds, depth first, until one fails or so many have run. `seed` is for what the
/// scenario itself draws. `observe` is told how many have run.
pub fn explore(
    scenario: &mut dyn Scenario,
    seed: u64,
    bounds: Bounds,
    observe: &mut dyn FnMut(u64),
) -> Exploration {
    let start = Moment::now();
    let mut explored =
        Exploration { runs: 0, complete: false, primitives: 0, wall: Duration::ZERO, failed: None };
    let mut next = Some(Choices::default());
    while let Some(choices) = next.take_if(|_| explored.runs < bounds.runs) {
        let mut options = RunOptions { way: Some((bounds, choices)), ..RunOptions::default() };
        explored.runs += 1;
        match scenario.run(seed, &options) {
            Ok(outcome) => {
                explored.primitives += outcome.run.steps;
                next = outcome.run.next;
            }
            Err(failure) => {
                options.keep_events = true;
                explored.failed = Some(scenario.run(seed, &options).err().unwrap_or(failure));
                break;
            }
        }
        observe(explored.runs);
    }
    explored.complete = next.is_none() && explored.failed.is_none();
    explored.wall = start.elapsed();
    explored
}
