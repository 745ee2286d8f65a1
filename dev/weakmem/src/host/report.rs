//! What a seeded machine has to tell of its run.

use core::fmt;
use std::sync::Arc;

use super::{Turn, Turns};
use crate::sync::{lock, wait};
use crate::{Event, SeededError};

/// What a seeded machine did so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineRun {
    /// Primitives of lanes, operations of streams, and HIP calls and waits of attached threads.
    pub steps: u64,
    /// What the clock shows.
    pub virtual_ns: u64,
    /// A digest of all events, kept or not: equal for equal runs.
    pub digest: u64,
    /// The events, if the schedule keeps them.
    pub events: Vec<Event>,
    /// Of each rank, what [`Fault::Kill`](crate::Fault::Kill) counts.
    pub primitives: Vec<u64>,
    /// Of each rank, HIP calls of its attached threads.
    pub calls: Vec<u64>,
}

/// Why a seeded run failed.
#[derive(Clone, Debug)]
pub struct SeededFailure {
    /// What happened.
    pub cause: Arc<SeededError>,
    /// Steps until then.
    pub steps: u64,
    /// What the clock showed.
    pub virtual_ns: u64,
    /// Who waited then, and for what.
    pub waiting: Vec<String>,
}

impl fmt::Display for SeededFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cause, steps, virtual_ns, waiting } = self;
        write!(f, "after {steps} steps, at {virtual_ns} virtual ns: {cause}")?;
        waiting.iter().try_for_each(|who| write!(f, "; {who}"))
    }
}

impl Turns {
    /// The run until now. A thread that is not attached first waits until the machine rests.
    pub(crate) fn run(&self) -> MachineRun {
        let mut state = lock(&self.state);
        while !self.has_seat() && !matches!(state.turn, Turn::Idle) && !self.is_stopped() {
            state = wait(&self.rests, state);
        }
        let world = self.world.borrow();
        MachineRun {
            steps: world.steps,
            virtual_ns: world.clock_ns(),
            digest: world.digest,
            events: world.events.clone().unwrap_or_default(),
            primitives: world.injected.primitives.clone(),
            calls: world.injected.calls.clone(),
        }
    }

    pub(crate) fn failure(&self) -> Option<SeededFailure> {
        lock(&self.state).failure.clone()
    }
}
