//! Messages by copy engines whose queues kernels write, on a whole machine: every group of every rank's grid puts packets into the
//! rings of all peers, engines in software take turns with them, and every message is compared. The seed also draws how messages go
//! and what the queues are like; with `staged` something goes wrong besides. The same by NICs in software, for ranks that map nobody
//! ([`Protocol::Rdma`]).

mod choice;
mod judge;
mod life;
mod nics;
#[cfg(test)]
mod tests;

use core::num::NonZeroUsize;
use std::sync::Arc;

use anabranch_clock::attach;
use anabranch_hip::{DeviceOrdinal, with_causes};
use anabranch_hip_host::HostConfig;
use anabranch_hip_jit::{Jit, KernelSpec};
use anabranch_transport_rdma::{Atomics, Provider};
use anabranch_weakmem::{Run, SeededHost, SeededSchedule};

use super::bench::WAVE;
use crate::kernels::ENGINES_UNIT;
use crate::{Case, CaseError, Failure, Outcome, Protocol, RunOptions, Scenario, ScenarioError};
use choice::Choice;
use life::Left;

/// More than any run that ends takes.
const MOST_STEPS: u64 = 5_000_000;

#[derive(Debug)]
pub(crate) struct Sdma {
    case: Case,
    jit: Jit,
}

/// What came of a run.
#[derive(Debug)]
struct Lives {
    run: Run,
    /// Of each rank; text where it could not tell.
    ranks: Result<Vec<Result<Left, String>>, String>,
    /// Why the machine gave the run up, if it did.
    broken: Option<String>,
}

/// The kernel, with the case's mistake.
fn spec(case: &Case) -> KernelSpec {
    let spec = KernelSpec::new(&ENGINES_UNIT).edited(case.edits());
    if case.protocol == Protocol::Rdma {
        // What NICs in software are.
        return spec
            .with("SHMEM_NIC", 1)
            .with("RDMA_PROVIDER", Provider::Mlx5.number())
            .with("RDMA_ATOMICS", Atomics::Masked.number());
    }
    spec.with("SHMEM_ENGINES", 1)
}

/// The object that the case's runs load.
pub(crate) fn object(case: &Case, jit: &Jit) -> Result<Arc<[u8]>, ScenarioError> {
    Sdma::new(case.clone(), jit)?.object()
}

impl Sdma {
    pub(crate) fn new(case: Case, jit: &Jit) -> Result<Self, ScenarioError> {
        if case.cumulative {
            return Err(CaseError::Lacks { protocol: case.protocol, what: "cumulative form" }.into());
        }
        let sdma = Self { case, jit: jit.clone() };
        // Ahead, so that what a run prints of time is the run's.
        sdma.object()?;
        Ok(sdma)
    }

    fn object(&self) -> Result<Arc<[u8]>, ScenarioError> {
        let machine = self.machine(&SeededSchedule::new(0))?;
        let device = machine.runtime().device(DeviceOrdinal(0));
        let device = device.map_err(|error| ScenarioError::Plan(with_causes(&error)))?;
        let target = self.jit.device_target(&device)?;
        Ok(self.jit.compile(&spec(&self.case), &target)?.bytes)
    }

    fn machine(&self, schedule: &SeededSchedule) -> Result<SeededHost, ScenarioError> {
        let config = HostConfig {
            devices: self.case.ranks,
            wave_width: WAVE,
            workers: Some(NonZeroUsize::MIN),
            memory_bytes: 16 << 20,
            multiprocessors: 1,
            ..HostConfig::default()
        };
        SeededHost::new(config, schedule).map_err(|error| ScenarioError::Plan(with_causes(&error)))
    }

    /// Groups of a grid at a scope.
    fn groups(&self, scope: u32) -> u32 {
        let Case { blocks, waves, .. } = self.case;
        match scope {
            0 => blocks * waves * WAVE,
            1 => blocks * waves,
            _ => blocks,
        }
    }

    fn live(&self, seed: u64, choice: &Choice, keep_events: bool) -> Result<Lives, ScenarioError> {
        let schedule = SeededSchedule { most_steps: MOST_STEPS, keep_events, ..SeededSchedule::new(seed) };
        let machine = self.machine(&schedule)?;
        let free = || ScenarioError::Plan("the machine runs free".to_owned());
        let driver = machine.runtime().driver().ok_or_else(free)?;
        // The thread's own rank is behind those of the case.
        let seat = driver.seats(&[self.case.ranks]).pop().ok_or_else(free)?;
        let ranks = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let _attached = attach(driver, seat);
                self.life(&machine, choice)
            });
            thread.join().unwrap_or_else(|_| Err("the host's thread was ended".to_owned()))
        });
        let run = machine.run();
        Ok(Lives {
            run: Run {
                steps: run.steps,
                switches: 0,
                virtual_ns: run.virtual_ns,
                digest: run.digest,
                events: run.events,
                next: None,
            },
            ranks,
            broken: machine.failure().map(|failure| failure.to_string()),
        })
    }
}

impl Scenario for Sdma {
    fn case(&self) -> &Case {
        &self.case
    }

    fn run(&mut self, seed: u64, options: &RunOptions) -> Result<Outcome, Failure> {
        if options.most_switches.is_some() || options.way.is_some() {
            return Err(Failure::new("a whole machine takes no limit of switches"));
        }
        let choice = Choice::draw(&self.case, seed);
        let lives = self.live(seed, &choice, options.keep_events);
        let lives = lives
            .map_err(|error| Failure::new(format!("the run could not begin: {}", with_causes(&error))))?;
        match self.judge(&choice, &lives) {
            Ok(_) => Ok(Outcome { run: lives.run }),
            Err(problem) => {
                Err(Failure { problem: format!("{choice:?}: {problem}"), events: lives.run.events })
            }
        }
    }
}
