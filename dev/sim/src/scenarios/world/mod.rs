//! A whole world under a seed: rank threads that join, dispatch and combine, and leave, by the public interface alone.

mod blame;
mod judge;
mod life;
#[cfg(test)]
mod tests;

use core::num::NonZeroUsize;
use core::time::Duration;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use anabranch_bootstrap::Rendezvous;
use anabranch_ep::{CombineCodec, DataType, EpConfig, EpShape, Plan, kernels};
use anabranch_hip::{DeviceOrdinal, with_causes};
use anabranch_hip_host::HostConfig;
use anabranch_hip_jit::Jit;
use anabranch_ranks::GlobalRank;
use anabranch_shmem::{RankError, RankSetup, WorldConfig, spawn_threads_on};
use anabranch_testkit::{FaultyRendezvous, RendezvousFaults};
use anabranch_weakmem::{Event, Run, SeededHost, SeededSchedule};

use super::bench::WAVE;
use super::ep::given::{Given, HIDDEN, TOP_K};
use crate::{Case, CaseError, Failure, Fault, Outcome, RunOptions, Scenario, ScenarioError};
pub(crate) use judge::{Ending, judge};
use life::Seen;

/// How long kernels wait for peers, in virtual time; also what a stall must stay well below to do no harm.
pub(crate) const OPERATION: Duration = Duration::from_millis(50);
/// How long the ranks wait for each other on the host.
pub(crate) const RENDEZVOUS: Duration = Duration::from_secs(2);
/// More than any run that ends takes.
const MOST_STEPS: u64 = 2_000_000;

/// What ranks do, the same in every run.
#[derive(Debug)]
pub(crate) struct World {
    case: Case,
    jit: Jit,
    config: EpConfig,
    /// `[round][rank]`.
    given: Vec<Vec<Given>>,
}

/// What came of a run.
#[derive(Debug)]
pub(crate) struct Lives {
    pub(crate) run: Run,
    /// Of each rank.
    pub(crate) endings: Vec<Ending>,
    /// What ranks read and compared, in the order of the run.
    pub(crate) seen: Vec<Seen>,
    /// Why the machine gave the run up, if it did.
    pub(crate) broken: Option<String>,
    /// Of each rank: primitives, HIP calls, and calls to the rendezvous.
    pub(crate) primitives: Vec<u64>,
    pub(crate) calls: Vec<u64>,
    pub(crate) meetings: Vec<u64>,
}

impl World {
    pub(crate) fn new(case: Case, jit: &Jit) -> Result<Self, ScenarioError> {
        refuse(&case)?;
        let config = EpConfig::new(EpShape {
            hidden: HIDDEN,
            experts: case.ranks * 2,
            top_k: TOP_K,
            max_tokens: case.tokens,
        })
        .dispatch_type(DataType::F32)
        .combine_type(DataType::F32)
        .launch(case.blocks, case.waves);
        let plan = Plan::new(config.clone(), case.ranks);
        plan.map_err(|error| ScenarioError::Plan(error.to_string()))?;
        let given = (0..case.rounds).map(|round| {
            let of = |rank| Given::new(rank, round, case.tokens, config.experts);
            (0..case.ranks).map(of).collect()
        });
        let world = Self { given: given.collect(), config, jit: jit.clone(), case };
        world.compile()?;
        Ok(world)
    }

    /// Compiles ahead, so that what a run prints of time is the run's.
    fn compile(&self) -> Result<(), ScenarioError> {
        let machine = self.machine(&SeededSchedule::new(0))?;
        let device = machine.runtime().device(DeviceOrdinal(0));
        let device = device.map_err(|error| ScenarioError::Plan(with_causes(&error)))?;
        let target = self.jit.device_target(&device)?;
        for spec in [
            kernels::dispatch(),
            kernels::combine(DataType::F32),
            kernels::combine_push(DataType::F32, CombineCodec::None),
            anabranch_conformance::ep::reference::reference_expert(DataType::F32, DataType::F32),
            anabranch_hip_jit::KernelSpec::new(&anabranch_shmem::TEAM_BARRIER_UNIT),
        ] {
            self.jit.compile(&spec, &target)?;
        }
        Ok(())
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

    /// Runs all ranks under a seed with the case's faults and these.
    pub(crate) fn live(&self, seed: u64, more: &[Fault], keep_events: bool) -> Result<Lives, ScenarioError> {
        let faults: Vec<Fault> = self.case.faults.iter().chain(more).copied().collect();
        let machine_fault = |fault: &Fault| match fault {
            Fault::Machine(fault) => Some(*fault),
            _ => None,
        };
        let machine = self.machine(&SeededSchedule {
            most_steps: MOST_STEPS,
            keep_events,
            faults: faults.iter().filter_map(machine_fault).collect(),
            ..SeededSchedule::new(seed)
        })?;
        let (links, counters): (Vec<_>, Vec<_>) = anabranch_bootstrap::threads(self.case.ranks)
            .into_iter()
            .map(|link| {
                let faults = link_faults(&faults, link.rank(), seed);
                let link = FaultyRendezvous::new(Box::new(link), faults);
                let counter = link.counter();
                (Arc::new(link) as Arc<dyn Rendezvous>, counter)
            })
            .unzip();
        let config = WorldConfig {
            heap_bytes: 1 << 20,
            rendezvous_deadline: RENDEZVOUS,
            operation_deadline: OPERATION,
            loss_grace: Duration::from_millis(20),
            ..WorldConfig::default()
        };
        let (runtime, seen) = (machine.runtime(), Mutex::new(Vec::new()));
        let ended: Vec<Result<(), RankError<anabranch_ep::Error>>> = spawn_threads_on(
            links,
            |rank| {
                let device = runtime.device(DeviceOrdinal(rank.get()))?;
                Ok(RankSetup { config: config.clone(), device, jit: self.jit.clone() })
            },
            |world| self.life(world, &seen),
        );
        let run = machine.run();
        let broken = machine.failure().map(|failure| failure.to_string());
        // SAFETY: the rank threads have ended, and took with them what was made from the runtime, but for what worlds leak,
        // which cannot be named any more.
        unsafe { machine.retire() };
        Ok(Lives {
            run: Run {
                steps: run.steps,
                switches: 0,
                virtual_ns: run.virtual_ns,
                digest: run.digest,
                events: run.events,
                next: None,
            },
            endings: ended.iter().map(Ending::of).collect(),
            seen: seen.into_inner().unwrap_or_else(PoisonError::into_inner),
            broken,
            primitives: run.primitives,
            calls: run.calls,
            meetings: counters.iter().map(|counter| counter.load(Ordering::SeqCst)).collect(),
        })
    }

    /// A run and what it is called, or what is wrong with it.
    pub(crate) fn run_and_judge(
        &self,
        seed: u64,
        more: &[Fault],
        keep_events: bool,
    ) -> (Result<&'static str, String>, Run) {
        match self.live(seed, more, keep_events) {
            Ok(lives) => {
                let faults: Vec<Fault> = self.case.faults.iter().chain(more).copied().collect();
                (judge(&faults, &lives), lives.run)
            }
            Err(error) => {
                let none: Vec<Event> = Vec::new();
                let run = Run { steps: 0, switches: 0, virtual_ns: 0, digest: 0, events: none, next: None };
                (Err(format!("the run could not begin: {}", with_causes(&error))), run)
            }
        }
    }
}

/// What a world does not have.
fn refuse(case: &Case) -> Result<(), CaseError> {
    let lacks = |what| CaseError::Lacks { protocol: case.protocol, what };
    for (asked, what) in [
        (case.mutant.is_some(), "mutants: its kernels are those of the library"),
        (case.cumulative, "cumulative form"),
        (case.values_only, "races to leave out: it is judged by values"),
    ] {
        if asked {
            return Err(lacks(what));
        }
    }
    let names_nobody = |fault: &&Fault| fault.ranks().iter().any(|rank| *rank >= case.ranks);
    match case.faults.iter().find(names_nobody) {
        Some(fault) => Err(CaseError::FaultRank { fault: *fault, ranks: case.ranks }),
        None => Ok(()),
    }
}

/// The faults of one rank's link.
fn link_faults(faults: &[Fault], rank: GlobalRank, seed: u64) -> RendezvousFaults {
    let mut own = RendezvousFaults { seed, ..RendezvousFaults::default() };
    for fault in faults {
        match *fault {
            Fault::Cut { rank: whom, call } if whom == rank.get() => {
                own.cut_after = Some(own.cut_after.map_or(call, |sooner| sooner.min(call)));
            }
            Fault::Slow { rank: whom, by } if whom == rank.get() => own.slow_by = own.slow_by.max(by),
            _ => {}
        }
    }
    own
}

impl Scenario for World {
    fn case(&self) -> &Case {
        &self.case
    }

    fn run(&mut self, seed: u64, options: &RunOptions) -> Result<Outcome, Failure> {
        if options.most_switches.is_some() {
            return Err(Failure::new("a world takes no limit of switches"));
        }
        match self.run_and_judge(seed, &[], options.keep_events) {
            (Ok(_), run) => Ok(Outcome { run }),
            (Err(problem), run) => Err(Failure { problem, events: run.events }),
        }
    }
}
