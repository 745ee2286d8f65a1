//! A whole host machine under a seed.

use core::ops::Deref;
use std::sync::Arc;

use anabranch_hip_host::{Error, HostConfig, HostMachine};

use super::{MachineRun, SeededFailure, Turns};
use crate::Fault;

/// How a seed decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeededSchedule {
    /// The same seed gives the same run.
    pub seed: u64,
    /// Steps after which the run is given up.
    pub most_steps: u64,
    /// Where the virtual clock ends: a run that waits until then hangs. A deadline further away than this is none: a thread
    /// that waits for it alone is ended as one that waits for ever is.
    pub longest_virtual_ns: u64,
    /// Whether the run's events are kept; its digest always is.
    pub keep_events: bool,
    /// What goes wrong.
    pub faults: Vec<Fault>,
}

impl SeededSchedule {
    /// A run without faults, of at most 20 million steps and a virtual day, that keeps no events.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            most_steps: 20_000_000,
            longest_virtual_ns: 86_400_000_000_000,
            keep_events: false,
            faults: Vec::new(),
        }
    }
}

/// A [`HostMachine`] of which a seed decides every step, of kernels, streams, engines, and the host threads that attach to
/// its runtime's driver. Its devices report that kernels must be instrumented, and `anabranch_hip_jit` compiles what they
/// report. It has one thread of its own, whatever [`HostConfig::workers`] is.
#[derive(Clone, Debug)]
pub struct SeededHost {
    machine: Arc<HostMachine>,
    pub(super) scheduler: Arc<Turns>,
}

impl Deref for SeededHost {
    type Target = Arc<HostMachine>;

    fn deref(&self) -> &Arc<HostMachine> {
        &self.machine
    }
}

impl SeededHost {
    /// Starts a machine.
    ///
    /// # Errors
    /// As [`HostMachine::new`].
    pub fn new(config: HostConfig, schedule: &SeededSchedule) -> Result<Self, Error> {
        let shape = config.clone();
        let (machine, scheduler) =
            HostMachine::with_scheduler(config, |parts| Turns::start(&shape, schedule, parts))?;
        Ok(Self { machine, scheduler })
    }

    /// What it did so far.
    ///
    /// A thread that is not attached first waits until nothing can go on any more: until all attached threads have left, and
    /// all streams are done or wait for something from outside.
    pub fn run(&self) -> MachineRun {
        self.scheduler.run()
    }

    /// Why the run failed, if it did: the cause of devices that are lost without a fault of a kernel.
    pub fn failure(&self) -> Option<SeededFailure> {
        self.scheduler.failure()
    }

    /// Adds a fault to those of the schedule.
    pub fn add_fault(&self, fault: Fault) {
        self.scheduler.add_fault(fault);
    }
}
