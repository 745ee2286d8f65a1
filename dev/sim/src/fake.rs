//! A scenario whose judge is a closure, for tests of what drives scenarios.

use core::fmt;

use anabranch_weakmem::{Action, Event, Run};

use crate::{Case, Failure, Outcome, Protocol, RunOptions, Scenario, ScenarioError};

/// What is wrong with a case under a seed and a limit of switches.
pub(crate) type Judge = Box<dyn Fn(&Case, u64, Option<u64>) -> Option<String>>;

pub(crate) struct Fake {
    case: Case,
    judge: Judge,
}

impl fmt::Debug for Fake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fake").field("case", &self.case).finish_non_exhaustive()
    }
}

pub(crate) fn case() -> Case {
    Case::new(Protocol::Barrier, 3)
}

/// An access by a thread, or by the fabric.
pub(crate) fn access(
    step: u64,
    device: u32,
    kernel: &str,
    thread: Option<u32>,
    what: &'static str,
    at: (&str, u32),
) -> Event {
    let action = Action::Access(what, at.0.into(), at.1, 8);
    let wave = thread.unwrap_or_default() / 4;
    Event { step, device, kernel: kernel.into(), block: 0, wave, thread, action }
}

/// What touches no memory.
pub(crate) fn sync(step: u64, device: u32, kernel: &str, thread: u32, what: &'static str) -> Event {
    let action = Action::Sync(what);
    Event { step, device, kernel: kernel.into(), block: 0, wave: thread / 4, thread: Some(thread), action }
}

impl Fake {
    pub(crate) fn boxed(
        case: Case,
        judge: impl Fn(&Case, u64, Option<u64>) -> Option<String> + 'static,
    ) -> Box<dyn Scenario> {
        Box::new(Self { case, judge: Box::new(judge) })
    }

    /// What makes fakes of any case with one judge.
    pub(crate) fn maker<J>(judge: J) -> impl Fn(&Case) -> Result<Box<dyn Scenario>, ScenarioError>
    where
        J: Fn(&Case, u64, Option<u64>) -> Option<String> + Clone + 'static,
    {
        move |case| Ok(Self::boxed(case.clone(), judge.clone()))
    }
}

impl Scenario for Fake {
    fn case(&self) -> &Case {
        &self.case
    }

    fn run(&mut self, seed: u64, options: &RunOptions) -> Result<Outcome, Failure> {
        match (self.judge)(&self.case, seed, options.most_switches) {
            None => Ok(Outcome {
                run: Run {
                    switches: 0,
                    steps: 10,
                    virtual_ns: 10,
                    digest: seed,
                    events: Vec::new(),
                    next: None,
                },
            }),
            Some(problem) => {
                let event = access(seed, 0, "fake", Some(0), "store", ("heap0", 8));
                let events = if options.keep_events { vec![event] } else { Vec::new() };
                Err(Failure { problem, events })
            }
        }
    }
}
