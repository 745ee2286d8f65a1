//! The team barrier's kernel as it is: every rank writes, all meet, every rank reads every rank's words, all meet.

use anabranch_hip::DeviceAddress;
use anabranch_hip_host::seeded::{
    Allocation, Owner, Run, SeededConfig, SeededError, SeededKernel, SeededMachine, Shape,
};
use anabranch_hip_jit::control::{FaultRecord, WaitControl};
use anabranch_hip_jit::{
    DevicePointer, DeviceStruct as _, Jit, KernelSpec, KernelUnit, PRELUDE, Target, bytemuck, device_struct,
};
use anabranch_shmem::{OperationCode, TEAM_BARRIER_UNIT, TeamBarrierArgs, TeamView};

use crate::{Case, CaseError, Failure, Outcome, RunOptions, Scenario, ScenarioError};

device_struct! {
    /// Arguments of the kernels around the barrier.
    pub struct BarrierAroundArgs {
        pub team: TeamView,
        pub data: u64,
        pub value: u64,
        pub wrong: DevicePointer<u32>,
    }
}

static UNIT: KernelUnit = KernelUnit {
    name: "sim_barrier",
    source: include_str!("barrier.hip"),
    headers: &[PRELUDE],
    entries: &["barrier_write", "barrier_read"],
    layouts: &[TeamView::c_declaration, BarrierAroundArgs::c_declaration],
};

const WAVE: u32 = 4;
const MOST_RANKS: u32 = 8;
const MOST_ROUNDS: u32 = 64;
const MOST_WAVES: u32 = 16;
/// In the heap: flags, then the data, one word a thread.
const DATA: u64 = 128;
/// In a rank's own words: peer bases, the barrier's epoch, the count of wrong words.
const EPOCH: u64 = 64;
const WRONG: u64 = 72;
const BUDGET_NS: u64 = 1_000_000_000_000;

#[derive(Debug)]
struct Kernels {
    barrier: SeededKernel,
    write: SeededKernel,
    read: SeededKernel,
}

impl Kernels {
    fn new(mutant: u32, jit: &Jit) -> Result<Self, ScenarioError> {
        let target = Target::host(WAVE).map_err(anabranch_hip_jit::Error::from)?;
        let load = |unit, name| {
            let spec = KernelSpec::new(unit).with("HOST_INSTRUMENTED", 1).with("PRELUDE_MUTANT", mutant);
            let object = jit.compile(&spec, &target)?;
            // SAFETY: the object was compiled from the prelude with HOST_INSTRUMENTED.
            Ok::<_, ScenarioError>(unsafe { SeededKernel::load(&object.bytes, name, WAVE) }?)
        };
        Ok(Self {
            barrier: load(&TEAM_BARRIER_UNIT, "anabranch_team_barrier")?,
            write: load(&UNIT, "barrier_write")?,
            read: load(&UNIT, "barrier_read")?,
        })
    }
}

#[derive(Debug)]
struct Rank {
    heap: Allocation,
    words: Allocation,
    control: Allocation,
    record: Allocation,
}

fn at<T>(allocation: Allocation, offset: u64) -> DevicePointer<T> {
    DevicePointer::new(DeviceAddress(allocation.address() + offset))
}

#[derive(Debug)]
pub(super) struct Barrier {
    case: Case,
    kernels: Kernels,
    machine: SeededMachine,
    ranks: Vec<Rank>,
}

impl Barrier {
    pub(super) fn new(case: Case, jit: &Jit) -> Result<Self, ScenarioError> {
        let ranges = [
            ("ranks", case.ranks, MOST_RANKS),
            ("rounds", case.rounds, MOST_ROUNDS),
            ("waves", case.waves, MOST_WAVES),
        ];
        for (what, given, most) in ranges {
            if !(1..=most).contains(&given) {
                return Err(CaseError::Range { protocol: case.protocol, what, given, least: 1, most }.into());
            }
        }
        let mut machine = SeededMachine::new(SeededConfig::default())?;
        let heap_bytes = DATA + u64::from(case.waves * WAVE) * 8;
        let mut ranks = Vec::new();
        for rank in 0..case.ranks {
            let mut make =
                |name: &str, owner, bytes| machine.allocate(&format!("{name}{rank}"), owner, bytes);
            ranks.push(Rank {
                heap: make("heap", Owner::Shared, heap_bytes)?,
                words: make("words", Owner::Device(rank), 128)?,
                control: make("control", Owner::Device(rank), size_of::<WaitControl>() as u64)?,
                record: make("record", Owner::Shared, size_of::<FaultRecord>() as u64)?,
            });
        }
        let kernels = Kernels::new(case.mutant, jit)?;
        Ok(Self { case, kernels, machine, ranks })
    }

    fn reset(&mut self) -> Result<(), SeededError> {
        let bases: Vec<u64> = self.ranks.iter().map(|rank| rank.heap.address()).collect();
        for rank in &self.ranks {
            for zeroed in [rank.heap, rank.words, rank.record] {
                self.machine.fill(zeroed, 0);
            }
            self.machine.write(rank.words, 0, bytemuck::cast_slice(&bases))?;
            let fault = at(rank.record, 0);
            let wait = WaitControl { abort: 0, budget_ns: BUDGET_NS, fault, claimed: 0, reserved: 0 };
            self.machine.write(rank.control, 0, bytemuck::bytes_of(&wait))?;
        }
        Ok(())
    }

    fn queue(&mut self, number: u32) -> Result<(), SeededError> {
        let Self { case, kernels, machine, ranks } = self;
        let rank = &ranks[number as usize];
        let team = TeamView {
            size: case.ranks,
            rank: number,
            group: 4,
            peer_bases: at(rank.words, 0),
            control: at(rank.control, 0),
        };
        let operation = OperationCode::TEAM_BARRIER.0;
        let meet = TeamBarrierArgs { team, flags: 0, epoch: at(rank.words, EPOCH), operation, reserved: 0 };
        let shape = Shape { blocks: 1, block_threads: case.waves * WAVE, local_bytes: 64 };
        let mut launch = |kernel: &SeededKernel, args: &[u8]| {
            let mut bytes = bytemuck::bytes_of(&[shape.blocks, shape.block_threads, 0, 0]).to_vec();
            bytes.extend_from_slice(args);
            machine.launch(number, 0, kernel, shape, &bytes)
        };
        for value in 1..=u64::from(case.rounds) {
            let around = BarrierAroundArgs { team, data: DATA, value, wrong: at(rank.words, WRONG) };
            launch(&kernels.write, bytemuck::bytes_of(&around))?;
            launch(&kernels.barrier, bytemuck::bytes_of(&meet))?;
            launch(&kernels.read, bytemuck::bytes_of(&around))?;
            launch(&kernels.barrier, bytemuck::bytes_of(&meet))?;
        }
        Ok(())
    }

    /// The run, and what is wrong with its outcome.
    fn attempt(&mut self, seed: u64) -> Result<(Run, Option<String>), SeededError> {
        self.reset()?;
        for rank in 0..self.case.ranks {
            self.queue(rank)?;
        }
        let run = self.machine.run(seed)?;
        for (number, rank) in self.ranks.iter().enumerate() {
            let record = self.machine.read(rank.record, 0, size_of::<FaultRecord>())?;
            let record: FaultRecord = bytemuck::pod_read_unaligned(&record);
            if record.state != 0 {
                return Ok((run, Some(format!("rank {number}: {record:?}"))));
            }
            let wrong = self.machine.read(rank.words, WRONG, 4)?;
            let wrong: u32 = bytemuck::pod_read_unaligned(&wrong);
            if wrong != 0 {
                let problem = format!(
                    "rank {number} read words of another round behind the barrier; it counted {wrong} at words{number}+{WRONG}"
                );
                return Ok((run, Some(problem)));
            }
        }
        Ok((run, None))
    }
}

impl Scenario for Barrier {
    fn case(&self) -> &Case {
        &self.case
    }

    fn run(&mut self, seed: u64, options: &RunOptions) -> Result<Outcome, Failure> {
        self.machine.set_keep_events(options.keep_events);
        self.machine.set_most_switches(options.most_switches);
        let problem = match self.attempt(seed) {
            Ok((run, None)) => return Ok(Outcome { run }),
            Ok((_, Some(problem))) => problem,
            Err(error) => error.to_string(),
        };
        Err(Failure { problem, events: self.machine.last_events().to_vec() })
    }
}
