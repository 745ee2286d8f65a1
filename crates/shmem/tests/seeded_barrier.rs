//! The team barrier's kernel as it is, under seeds; its broken twin; and a member that never comes.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, missing_docs, reason = "helpers of tests")]

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

use anabranch_hip::DeviceAddress;
use anabranch_hip_host::seeded::MemoryProfile::{self, Cumulative, PerWave};
use anabranch_hip_host::seeded::{
    Allocation, Bounds, Explored, Owner, SeededConfig, SeededKernel, SeededMachine, Shape,
};
use anabranch_hip_jit::control::{FaultRecord, WaitControl};
use anabranch_hip_jit::{
    DevicePointer, DeviceStruct as _, Jit, JitConfig, KernelSpec, KernelUnit, PRELUDE, Target, ToolSearch,
    bytemuck, device_struct,
};
use anabranch_shmem::{OperationCode, TEAM_BARRIER_UNIT, TeamBarrierArgs, TeamView};

device_struct! {
    /// Arguments of the kernels around the barrier.
    pub struct BarrierTestArgs {
        pub team: TeamView,
        pub data: u64,
        pub value: u64,
        pub wrong: DevicePointer<u32>,
    }
}

static UNIT: KernelUnit = KernelUnit {
    name: "seeded_barrier",
    source: include_str!("seeded_barrier.hip"),
    headers: &[PRELUDE],
    entries: &["barrier_write", "barrier_read"],
    layouts: &[TeamView::c_declaration, BarrierTestArgs::c_declaration],
};

const RANKS: u32 = 3;
const ROUNDS: u64 = 3;
const WAVE: u32 = 4;
const THREADS: u32 = 8;
/// In the heap: flags, then the data.
const DATA: u64 = 64;
/// In a rank's own words: peer bases, the barrier's epoch, the count of wrong words.
const EPOCH: u64 = 64;
const WRONG: u64 = 72;
const BUDGET_NS: u64 = 1_000_000_000_000;

struct Kernels {
    barrier: SeededKernel,
    write: SeededKernel,
    read: SeededKernel,
}

impl Kernels {
    fn compile(mutant: u32, profile: MemoryProfile) -> Self {
        let folder: PathBuf = env!("CARGO_TARGET_TMPDIR").into();
        let path = ["/usr/local/bin", "/usr/bin", "/bin"].map(PathBuf::from).to_vec();
        let jit = Jit::new(
            JitConfig::new(folder.join("seeded-cache")),
            ToolSearch { path, ..ToolSearch::default() },
        );
        let load = |unit, name| {
            let mut spec = KernelSpec::new(unit).with("HOST_INSTRUMENTED", 1).with("PRELUDE_MUTANT", mutant);
            if profile == Cumulative {
                spec = spec.with("HOST_CUMULATIVE", 1);
            }
            let object = jit.compile(&spec, &Target::host(WAVE).unwrap()).unwrap();
            // SAFETY: the object was compiled from the prelude with HOST_INSTRUMENTED.
            unsafe { SeededKernel::load_for(&object.bytes, name, WAVE, profile) }.unwrap()
        };
        Self {
            barrier: load(&TEAM_BARRIER_UNIT, "anabranch_team_barrier"),
            write: load(&UNIT, "barrier_write"),
            read: load(&UNIT, "barrier_read"),
        }
    }
}

struct Rank {
    heap: Allocation,
    words: Allocation,
    control: Allocation,
    record: Allocation,
}

fn at<T>(allocation: Allocation, offset: u64) -> DevicePointer<T> {
    DevicePointer::new(DeviceAddress(allocation.address() + offset))
}

struct Harness {
    /// Threads of a block.
    threads: u32,
    kernels: Kernels,
    machine: SeededMachine,
    ranks: Vec<Rank>,
}

impl Harness {
    fn new(mutant: u32, profile: MemoryProfile, find_races: bool) -> Self {
        Self::of(RANKS, THREADS, mutant, profile, find_races)
    }

    fn of(count: u32, threads: u32, mutant: u32, profile: MemoryProfile, find_races: bool) -> Self {
        let config = SeededConfig { find_races, profile, ..SeededConfig::default() };
        let mut machine = SeededMachine::new(config).unwrap();
        let mut make = |name: &str, rank: u32, owner, bytes| {
            machine.allocate(&format!("{name}{rank}"), owner, bytes).unwrap()
        };
        let ranks = (0..count).map(|rank| Rank {
            heap: make("heap", rank, Owner::Shared, 128),
            words: make("words", rank, Owner::Device(rank), 128),
            control: make("control", rank, Owner::Device(rank), size_of::<WaitControl>() as u64),
            record: make("record", rank, Owner::Shared, size_of::<FaultRecord>() as u64),
        });
        let ranks = ranks.collect();
        Self { threads, kernels: Kernels::compile(mutant, profile), machine, ranks }
    }

    fn reset(&mut self) {
        let bases: Vec<u64> = self.ranks.iter().map(|rank| rank.heap.address()).collect();
        for rank in &self.ranks {
            for zeroed in [rank.heap, rank.words, rank.record] {
                self.machine.fill(zeroed, 0);
            }
            self.machine.write(rank.words, 0, bytemuck::cast_slice(&bases)).unwrap();
            let fault = at(rank.record, 0);
            let wait = WaitControl { abort: 0, budget_ns: BUDGET_NS, fault, claimed: 0, reserved: 0 };
            self.machine.write(rank.control, 0, bytemuck::bytes_of(&wait)).unwrap();
        }
    }

    fn launch(machine: &mut SeededMachine, kernel: &SeededKernel, rank: u32, threads: u32, args: &[u8]) {
        let mut bytes = bytemuck::bytes_of(&[1, threads, 0, 0]).to_vec();
        bytes.extend_from_slice(args);
        let shape = Shape { blocks: 1, block_threads: threads, local_bytes: 64 };
        machine.launch(rank, 0, kernel, shape, &bytes).unwrap();
    }

    fn queue(&mut self, number: u32, rounds: u64) {
        let Self { threads, kernels, machine, ranks } = self;
        let threads = *threads;
        let rank = &ranks[number as usize];
        let team = TeamView {
            size: ranks.len() as u32,
            rank: number,
            group: 4,
            peer_bases: at(rank.words, 0),
            control: at(rank.control, 0),
        };
        let operation = OperationCode::TEAM_BARRIER.0;
        let meet = TeamBarrierArgs { team, flags: 0, epoch: at(rank.words, EPOCH), operation, reserved: 0 };
        for value in 1..=rounds {
            let around = BarrierTestArgs { team, data: DATA, value, wrong: at(rank.words, WRONG) };
            Self::launch(machine, &kernels.write, number, threads, bytemuck::bytes_of(&around));
            Self::launch(machine, &kernels.barrier, number, threads, bytemuck::bytes_of(&meet));
            Self::launch(machine, &kernels.read, number, threads, bytemuck::bytes_of(&around));
            // Behind the last reads nobody writes again.
            if value < rounds {
                Self::launch(machine, &kernels.barrier, number, threads, bytemuck::bytes_of(&meet));
            }
        }
    }

    fn record(&self, rank: usize) -> FaultRecord {
        let bytes = self.machine.read(self.ranks[rank].record, 0, size_of::<FaultRecord>()).unwrap();
        bytemuck::pod_read_unaligned(&bytes)
    }

    fn run(&mut self, seed: u64) -> Result<(), String> {
        self.reset();
        for rank in 0..RANKS {
            self.queue(rank, ROUNDS);
        }
        self.machine.run(seed).map_err(|error| error.to_string())?;
        for rank in 0..RANKS as usize {
            let record = self.record(rank);
            if record.state != 0 {
                return Err(format!("rank {rank}: {record:?}"));
            }
            let wrong = self.machine.read(self.ranks[rank].words, WRONG, 4).unwrap();
            if wrong != [0; 4] {
                return Err(format!("rank {rank} read {wrong:?} words of another round"));
            }
        }
        Ok(())
    }
}

#[test]
fn nobody_passes_early_under_any_seed() {
    const SEEDS: u64 = 1000;
    for profile in [PerWave, Cumulative] {
        let mut harness = Harness::new(0, profile, true);
        let start = Instant::now();
        for seed in 0..SEEDS {
            harness.run(seed).unwrap_or_else(|problem| panic!("{profile:?}, seed {seed}: {problem}"));
        }
        println!("{profile:?}: {:.0} seeds/s", SEEDS as f64 / start.elapsed().as_secs_f64());
    }
}

/// Twenty searches for a twin, of 200 seeds each.
fn catch(mutant: u32, profile: MemoryProfile, find_races: bool) {
    let mut harness = Harness::new(mutant, profile, find_races);
    let mut taken: Vec<u64> = (0..20)
        .map(|search| {
            let seeds = search * 100_000..search * 100_000 + 200;
            1 + seeds.clone().position(|seed| harness.run(seed).is_err()).unwrap() as u64
        })
        .collect();
    taken.sort_unstable();
    println!("twin {mutant}, {profile:?}: median {}, most {} seeds", taken[10], taken[19]);
}

#[test]
fn a_looser_epoch_is_caught() {
    for profile in [PerWave, Cumulative] {
        catch(4, profile, false);
        catch(4, profile, true);
    }
}

#[test]
fn a_wait_that_does_not_acquire_is_a_race() {
    for profile in [PerWave, Cumulative] {
        catch(5, profile, true);
    }
}

#[test]
fn a_member_that_never_comes_is_named() {
    // Behind a fault the test's kernels go on, and nothing orders them.
    let mut harness = Harness::new(0, PerWave, false);
    for seed in 0..100 {
        harness.reset();
        harness.queue(0, ROUNDS);
        harness.queue(2, ROUNDS);
        let run = harness.machine.run(seed).unwrap();
        assert!(run.virtual_ns > BUDGET_NS, "{run:?}");
        for rank in [0, 2] {
            let record = harness.record(rank);
            let told = (record.state, record.peer, record.epoch, record.rank, record.operation);
            assert_eq!(told, (2, 1, 1, rank as u32, OperationCode::TEAM_BARRIER.0), "seed {seed}");
        }
    }
}

/// The first runs within the bounds of two ranks of one lane: each writes a word, meets the other, and reads both words.
fn explore(mutant: u32, profile: MemoryProfile, bounds: Bounds) -> (Explored<()>, u64) {
    let mut harness = Harness::of(2, 1, mutant, profile, false);
    let words: Vec<_> = harness.ranks.iter().map(|rank| rank.words).collect();
    let mut wrong = 0;
    // The harness queues on the machine that it owns; between runs it has it.
    let spare = SeededMachine::new(SeededConfig { lanes: 1, ..SeededConfig::default() }).unwrap();
    let mut machine = std::mem::replace(&mut harness.machine, spare);
    let explored = machine.explore(
        bounds,
        |machine| {
            std::mem::swap(machine, &mut harness.machine);
            harness.reset();
            for rank in 0..2 {
                harness.queue(rank, 1);
            }
            std::mem::swap(machine, &mut harness.machine);
            Ok(())
        },
        |machine, outcome| {
            outcome.unwrap();
            wrong += u64::from(words.iter().any(|words| machine.read(*words, WRONG, 4).unwrap() != [0; 4]));
            ControlFlow::Continue(())
        },
    );
    (explored.unwrap(), wrong)
}

#[test]
fn none_of_the_first_runs_within_bounds_passes_early_and_the_twin_does() {
    // All of them would be too many: each order in which the stores of four launches land is one.
    let bounds = Bounds { switches: 1, landings: 1, runs: 20_000 };
    for profile in [PerWave, Cumulative] {
        let (explored, wrong) = explore(0, profile, bounds);
        assert_eq!((explored.runs, wrong), (bounds.runs, 0), "{profile:?}");
        let (explored, wrong) = explore(4, profile, bounds);
        println!("{profile:?}, twin: {wrong} of {} runs", explored.runs);
        assert!(wrong > 0, "{profile:?}");
    }
}
