//! Makes a failure smaller: fewer ranks, rounds, tokens, blocks and waves, then fewer switches of lanes.

use crate::found::{Found, FoundError};
use crate::kind::Kind;
use crate::smaller::smaller;
use crate::{Case, RunOptions, Scenario, ScenarioError};

/// What makes the scenario of a case.
pub type Make<'a> = dyn Fn(&Case) -> Result<Box<dyn Scenario>, ScenarioError> + 'a;

/// How hard is tried. Counted in runs, not in time, so that the same failure shrinks to the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShrinkOptions {
    /// How many seeds a smaller case gets, beginning with the one that failed.
    pub seeds: u64,
    /// Runs in all. What is left when they are used up stays as large as it is.
    pub most_runs: u64,
}

impl Default for ShrinkOptions {
    fn default() -> Self {
        Self { seeds: 64, most_runs: 3000 }
    }
}

/// A smaller failure.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shrunk {
    /// What is left: fails in the same way as what it was made from.
    pub found: Found,
    /// Runs that it took.
    pub runs: u64,
    /// False when [`ShrinkOptions::most_runs`] ended it before all smaller cases were tried.
    pub complete: bool,
}

/// Where shrinking is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ShrinkProgress<'a> {
    /// The smallest case that fails so far.
    pub case: &'a Case,
    /// Runs so far.
    pub runs: u64,
    /// [`ShrinkOptions::most_runs`].
    pub of: u64,
}

/// The smallest failure so far.
struct Best {
    case: Case,
    seed: u64,
    most_switches: Option<u64>,
    problem: String,
}

struct Shrinker<'a> {
    make: &'a Make<'a>,
    options: ShrinkOptions,
    tell: &'a mut dyn FnMut(&ShrinkProgress<'_>),
    kind: Kind,
    runs: u64,
    /// Whether a run was not done for want of runs.
    cut: bool,
    best: Best,
}

/// Makes a failure smaller. A smaller case is kept only if it fails in the same way ([`Kind`]).
///
/// # Errors
/// A scenario that cannot be made, other than for a case that the protocol does not have; a failure that is not there when
/// its seed is run again.
pub fn shrink(
    start: &Found,
    make: &Make<'_>,
    options: ShrinkOptions,
    tell: &mut dyn FnMut(&ShrinkProgress<'_>),
) -> Result<Shrunk, FoundError> {
    let Found { case, seed, most_switches, problem, .. } = start.clone();
    let best = Best { case, seed, most_switches, problem };
    let mut shrinker = Shrinker { make, options, tell, kind: start.kind(), runs: 0, cut: false, best };
    while shrinker.step()? {}
    shrinker.fewer_switches()?;
    let Shrinker { best, runs, cut, .. } = shrinker;
    let mut scenario = make(&best.case)?;
    let found = Found::again(scenario.as_mut(), best.seed, best.most_switches, &best.problem)?;
    Ok(Shrunk { found, runs, complete: !cut })
}

impl Shrinker<'_> {
    /// Finds one smaller case that fails; false when there is none or the runs are used up.
    fn step(&mut self) -> Result<bool, ScenarioError> {
        for case in smaller(&self.best.case) {
            let mut scenario = match (self.make)(&case) {
                Ok(scenario) => scenario,
                // The protocol has no such case.
                Err(ScenarioError::Case(_) | ScenarioError::Plan(_)) => continue,
                Err(error) => return Err(error),
            };
            let most_switches = self.best.most_switches;
            let (first, seeds) = (self.best.seed, self.options.seeds);
            for seed in first..first.saturating_add(seeds) {
                if self.is_over() {
                    return Ok(false);
                }
                if let Some(problem) = self.fails(scenario.as_mut(), seed, most_switches) {
                    self.best = Best { case, seed, most_switches, problem };
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Bisects for the fewest switches. More switches need not fail where fewer do, so it is a few, not the fewest.
    fn fewer_switches(&mut self) -> Result<(), ScenarioError> {
        /// More than any run that ends has.
        const MANY: u64 = 1 << 40;
        let mut scenario = (self.make)(&self.best.case)?;
        if !scenario.case().protocol.counts_switches() {
            return Ok(());
        }
        let seed = self.best.seed;
        let most = self.best.most_switches.unwrap_or(MANY);
        let mut passes = None;
        // From below: how many switches the run has is not known.
        let mut limit = 0;
        while limit < most {
            if self.is_over() {
                return Ok(());
            }
            if self.try_limit(scenario.as_mut(), seed, limit) {
                break;
            }
            passes = Some(limit);
            limit = (limit * 2).max(1);
        }
        let mut least = passes.map_or(0, |passes| passes + 1);
        while let Some(fails) = self.best.most_switches.filter(|fails| *fails > least) {
            let middle = least + (fails - least) / 2;
            if self.is_over() {
                return Ok(());
            }
            if !self.try_limit(scenario.as_mut(), seed, middle) {
                least = middle + 1;
            }
        }
        Ok(())
    }

    fn try_limit(&mut self, scenario: &mut dyn Scenario, seed: u64, limit: u64) -> bool {
        let problem = self.fails(scenario, seed, Some(limit));
        let failed = problem.is_some();
        if let Some(problem) = problem {
            (self.best.most_switches, self.best.problem) = (Some(limit), problem);
        }
        failed
    }

    /// Asked before each run.
    fn is_over(&mut self) -> bool {
        self.cut |= self.runs >= self.options.most_runs;
        self.cut
    }

    /// What is wrong, if it is of the kind that is looked for.
    fn fails(
        &mut self,
        scenario: &mut dyn Scenario,
        seed: u64,
        most_switches: Option<u64>,
    ) -> Option<String> {
        self.runs += 1;
        let Self { best, runs, options, .. } = self;
        (self.tell)(&ShrinkProgress { case: &best.case, runs: *runs, of: options.most_runs });
        let failure = scenario.run(seed, &RunOptions { most_switches, ..RunOptions::default() }).err()?;
        (Kind::of(&failure.problem) == self.kind).then_some(failure.problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Protocol;
    use crate::fake::Fake;

    fn large() -> Case {
        let mut case = Case::new(Protocol::Ep, 7);
        (case.rounds, case.tokens, case.blocks, case.waves) = (9, 12, 4, 4);
        case
    }

    /// Fails from 3 ranks, 2 rounds, 5 tokens and 9 switches on, under every seventh seed; below 3 ranks in another way.
    fn judge(case: &Case, seed: u64, most_switches: Option<u64>) -> Option<String> {
        if case.ranks < 3 {
            return Some("another mistake".to_owned());
        }
        let enough = case.rounds >= 2 && case.tokens >= 5 && most_switches.is_none_or(|most| most >= 9);
        // Which seeds fail depends on the case, as in life.
        let meets = (seed + u64::from(case.ranks + case.rounds + case.tokens)).is_multiple_of(7);
        (enough && meets).then(|| format!("rank {} lost {} rows", case.ranks - 1, case.tokens))
    }

    fn found(options: ShrinkOptions) -> Shrunk {
        let make = Fake::maker(judge);
        let (case, seed) = (large(), 7);
        let problem = judge(&case, seed, None).unwrap();
        let start = Found::again(make(&case).unwrap().as_mut(), seed, None, &problem).unwrap();
        shrink(&start, &make, options, &mut |_| {}).unwrap()
    }

    #[test]
    fn the_smallest_case_and_the_fewest_switches_are_found() {
        let shrunk = found(ShrinkOptions::default());
        let Case { ranks, rounds, tokens, blocks, waves, .. } = shrunk.found.case;
        assert_eq!((ranks, rounds, tokens, blocks, waves), (3, 2, 5, 1, 1));
        assert_eq!(shrunk.found.most_switches, Some(9));
        assert_eq!(shrunk.found.problem, "rank 2 lost 5 rows");
        assert!(shrunk.complete && shrunk.found.events.len() == 1);
        assert_eq!(found(ShrinkOptions::default()), shrunk, "the same every time");
    }

    #[test]
    fn what_is_left_when_runs_are_used_up_still_fails() {
        for most_runs in 0..200 {
            let shrunk = found(ShrinkOptions { most_runs, ..ShrinkOptions::default() });
            assert!(shrunk.runs <= most_runs, "{shrunk:?}");
            let Found { case, seed, most_switches, problem, .. } = &shrunk.found;
            assert_eq!(judge(case, *seed, *most_switches).as_ref(), Some(problem));
            assert!(case.ranks >= 3, "of the same kind");
        }
        assert!(!found(ShrinkOptions { most_runs: 20, ..ShrinkOptions::default() }).complete);
    }

    #[test]
    fn a_compiler_that_fails_is_not_taken_for_a_case_that_does_not_fail() {
        let sound = Fake::maker(judge);
        let make = |case: &Case| match case.ranks {
            7 => sound(case),
            _ => Err(ScenarioError::Machine(anabranch_weakmem::SeededError::Steps { steps: 1 })),
        };
        let problem = judge(&large(), 7, None).unwrap();
        let start = Found::again(make(&large()).unwrap().as_mut(), 7, None, &problem).unwrap();
        let refused = shrink(&start, &make, ShrinkOptions::default(), &mut |_| {}).unwrap_err();
        assert!(matches!(refused, FoundError::Scenario(ScenarioError::Machine(_))), "{refused}");
    }
}
