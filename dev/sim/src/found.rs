//! A failure that a command line reproduces.

use core::fmt::Write as _;

use anabranch_weakmem::Event;

use crate::kind::Kind;
use crate::{Case, RunOptions, Scenario, ScenarioError};

/// A failure with all it takes to see it again.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// What was run.
    pub case: Case,
    /// Under which seed.
    pub seed: u64,
    /// With which [`RunOptions::most_switches`].
    pub most_switches: Option<u64>,
    /// What was wrong.
    pub problem: String,
    /// Everything that happened, in order.
    pub events: Vec<Event>,
}

/// Why a failure could not be looked into.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FoundError {
    /// The scenario cannot be made.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The same seed gave another run, which is a mistake of the scenario or the machine.
    #[error("{case:?} with seed {seed} is not reproducible: it failed with {first:?}, then with {second:?}")]
    NotTheSame {
        case: Box<Case>,
        seed: u64,
        first: String,
        /// What is wrong now; `None` is nothing.
        second: Option<String>,
    },
}

impl Found {
    /// Runs a failing seed again, with its events kept.
    ///
    /// # Errors
    /// [`FoundError::NotTheSame`] when what is wrong is not `problem`.
    pub fn again(
        scenario: &mut dyn Scenario,
        seed: u64,
        most_switches: Option<u64>,
        problem: &str,
    ) -> Result<Self, FoundError> {
        let run =
            scenario.run(seed, &RunOptions { keep_events: true, most_switches, ..RunOptions::default() });
        let case = scenario.case().clone();
        match run {
            Err(failure) if failure.problem == problem => {
                Ok(Self { case, seed, most_switches, problem: failure.problem, events: failure.events })
            }
            other => Err(FoundError::NotTheSame {
                case: Box::new(case),
                seed,
                first: problem.to_owned(),
                second: other.err().map(|failure| failure.problem),
            }),
        }
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> Kind {
        Kind::of(&self.problem)
    }

    /// The command that runs exactly this again.
    pub fn command_line(&self) -> String {
        let Case {
            protocol,
            ranks,
            rounds,
            tokens,
            blocks,
            waves,
            staged,
            cumulative,
            values_only,
            mutant,
            faults,
        } = &self.case;
        let mut line = format!(
            "anabranch sim {protocol} --ranks {ranks} --rounds {rounds} --tokens {tokens} --blocks {blocks} --waves {waves}"
        );
        for (given, flag) in
            [(staged, " --staged"), (cumulative, " --cumulative"), (values_only, " --values-only")]
        {
            if *given {
                line.push_str(flag);
            }
        }
        // Writing to a string does not fail.
        if let Some(name) = mutant {
            let _ = write!(line, " --mutant {name}");
        }
        if let Some(most) = self.most_switches {
            let _ = write!(line, " --most-switches {most}");
        }
        for fault in faults {
            // Quoted where a shell would take it for something else.
            let quote = if fault.to_string().contains(['>', '~']) { "'" } else { "" };
            let _ = write!(line, " --fault {quote}{fault}{quote}");
        }
        let _ = write!(line, " --seeds {}..{} --no-shrink", self.seed, self.seed + 1);
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Fake, case};

    #[test]
    fn a_run_that_differs_when_repeated_is_reported() {
        let mut calm = Fake::boxed(case(), |_, _, _| None);
        let refused = Found::again(calm.as_mut(), 7, None, "wrong").unwrap_err();
        let FoundError::NotTheSame { seed: 7, second: None, .. } = refused else { panic!("{refused}") };
        let mut other = Fake::boxed(case(), |_, _, _| Some("right".to_owned()));
        let refused = Found::again(other.as_mut(), 7, None, "wrong").unwrap_err();
        assert!(
            refused.to_string().contains("failed with \"wrong\", then with Some(\"right\")"),
            "{refused}"
        );
    }

    #[test]
    fn the_command_line_has_all_that_is_not_ordinary() {
        let mut odd = case();
        (odd.staged, odd.mutant) = (true, Some("EPOCH_LOOSE"));
        odd.faults = ["kill:1@37", "lose:0>1@3"].map(|text| text.parse().unwrap()).to_vec();
        let mut scenario = Fake::boxed(odd, |_, _, _| Some("wrong".to_owned()));
        let found = Found::again(scenario.as_mut(), 7, Some(12), "wrong").unwrap();
        assert_eq!(
            found.command_line(),
            "anabranch sim barrier --ranks 3 --rounds 2 --tokens 3 --blocks 2 --waves 2 --staged \
             --mutant EPOCH_LOOSE --most-switches 12 --fault kill:1@37 --fault 'lose:0>1@3' --seeds 7..8 --no-shrink"
        );
        assert_eq!(found.events.len(), 1, "with its events");
    }
}
