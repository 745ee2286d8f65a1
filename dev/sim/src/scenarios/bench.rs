//! What scenarios share: a machine with a heap, a peer table, control words and a fault record for each rank.

use core::fmt::Debug;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anabranch_hip::DeviceAddress;
use anabranch_hip_jit::control::{FaultRecord, WaitControl};
use anabranch_hip_jit::{DevicePointer, Jit, KernelSpec, LOCAL_RESERVED_BYTES, SourceEdit, Target};
use anabranch_shmem::TeamView;
use anabranch_weakmem::{
    Allocation, Bounds, Choices, MemoryProfile, Owner, Run, SeededConfig, SeededError, SeededKernel,
    SeededMachine, Shape,
};
use bytemuck::{Pod, Zeroable as _};

use crate::kernels::CopyArgs;
use crate::{Case, Failure, Outcome, RunOptions, Scenario, ScenarioError};

/// Lanes of a wave: the fewest that show what is missing within a wave.
pub(crate) const WAVE: u32 = 4;
/// How long a wait may take, in virtual time: far longer than any run.
pub(crate) const BUDGET_NS: u64 = 1_000_000_000_000;
/// What memory holds before a run where zeros are not promised, and after it where nothing was written.
pub(crate) const UNTOUCHED: u8 = 0xcb;
/// The group's number in fault records.
const GROUP: u64 = 5;

/// What fences do in a case.
fn profile(case: &Case) -> MemoryProfile {
    if case.cumulative { MemoryProfile::Cumulative } else { MemoryProfile::PerWave }
}

/// The kernels of a case, compiled with its mutant.
#[derive(Debug)]
pub(crate) struct Kernels<'a> {
    jit: &'a Jit,
    edits: &'static [SourceEdit],
    profile: MemoryProfile,
    /// By what they are compiled from: the label, and whether with the mutant.
    units: BTreeMap<(String, bool), Arc<[u8]>>,
}

impl<'a> Kernels<'a> {
    pub(crate) fn new(jit: &'a Jit, case: &Case) -> Self {
        Self { jit, edits: case.edits(), profile: profile(case), units: BTreeMap::new() }
    }

    pub(crate) fn load(&mut self, spec: KernelSpec, entry: &str) -> Result<SeededKernel, ScenarioError> {
        self.load_as(spec.edited(self.edits), !self.edits.is_empty(), entry)
    }

    /// The objects of all kernels that were loaded.
    pub(crate) fn into_objects(self) -> BTreeSet<Arc<[u8]>> {
        self.units.into_values().collect()
    }

    /// A kernel that has no part in the protocol: never with the mutant, whatever this one changes.
    pub(crate) fn load_right(
        &mut self,
        spec: KernelSpec,
        entry: &str,
    ) -> Result<SeededKernel, ScenarioError> {
        self.load_as(spec, false, entry)
    }

    fn load_as(
        &mut self,
        spec: KernelSpec,
        is_edited: bool,
        entry: &str,
    ) -> Result<SeededKernel, ScenarioError> {
        let mut spec = spec.with("HOST_INSTRUMENTED", 1);
        if self.profile == MemoryProfile::Cumulative {
            spec = spec.with("HOST_CUMULATIVE", 1);
        }
        let unit = (spec.label(), is_edited);
        if !self.units.contains_key(&unit) {
            let target = Target::host(WAVE).map_err(|error| ScenarioError::Plan(error.to_string()))?;
            self.units.insert(unit.clone(), self.jit.compile(&spec, &target)?.bytes);
        }
        let bytes = &self.units[&unit];
        // SAFETY: the object was compiled from the prelude with HOST_INSTRUMENTED, and the cache has verified it; kernels of
        // this workspace touch memory through the primitives only (the lints and the machine's addresses hold them to it).
        Ok(unsafe { SeededKernel::load_for(bytes, entry, WAVE, self.profile) }?)
    }
}

/// One rank's memory. `own` begins with the peer table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rank {
    pub(crate) heap: Allocation,
    pub(crate) own: Allocation,
    pub(crate) control: Allocation,
    pub(crate) record: Allocation,
}

/// The grid of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    /// Local memory of the kernel's own.
    pub(crate) local_bytes: u32,
}

/// A machine with ranks.
#[derive(Debug)]
pub(crate) struct Bench {
    machine: SeededMachine,
    allocations: Vec<Allocation>,
    pub(crate) ranks: Vec<Rank>,
    /// [`RunOptions::way`] of the run to come.
    way: Option<(Bounds, Choices)>,
}

/// A place in an allocation, as kernels know it.
pub(crate) fn at<T>(allocation: Allocation, offset: u64) -> DevicePointer<T> {
    DevicePointer::new(DeviceAddress(allocation.address() + offset))
}

/// A number that depends on everything it is made from, known to kernels too (`mixed` in `conformance/shmem.h`).
pub(crate) fn mixed(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

impl Bench {
    /// `lanes` is the most that run at once, of all ranks.
    pub(crate) fn new(
        case: &Case,
        lanes: u32,
        heap_bytes: u64,
        own_bytes: u64,
    ) -> Result<Self, ScenarioError> {
        let (ranks, lanes, find_races) = (case.ranks, lanes.max(WAVE), !case.values_only);
        let config = SeededConfig {
            wave_width: WAVE,
            lanes,
            find_races,
            profile: profile(case),
            ..SeededConfig::default()
        };
        let machine = SeededMachine::new(config)?;
        let mut bench = Self { machine, allocations: Vec::new(), ranks: Vec::new(), way: None };
        for rank in 0..ranks {
            let device = Owner::Device(rank);
            let made = Rank {
                heap: bench.allocate("heap", rank, Owner::Shared, heap_bytes)?,
                own: bench.allocate("own", rank, device, Self::own_start(ranks) + own_bytes)?,
                control: bench.allocate("control", rank, device, size_of::<WaitControl>() as u64)?,
                record: bench.allocate("record", rank, Owner::Shared, size_of::<FaultRecord>() as u64)?,
            };
            bench.ranks.push(made);
        }
        Ok(bench)
    }

    /// Where a rank's own memory is behind the peer table.
    pub(crate) fn own_start(ranks: u32) -> u64 {
        (u64::from(ranks) * 8).next_multiple_of(64)
    }

    pub(crate) fn allocate(
        &mut self,
        what: &str,
        rank: u32,
        owner: Owner,
        bytes: u64,
    ) -> Result<Allocation, ScenarioError> {
        let name = format!("{what}{rank}");
        let allocation = self.machine.allocate(&name, owner, bytes)?;
        self.allocations.push(allocation);
        Ok(allocation)
    }

    /// Memory as it is before the first operation: the heap zero, as its allocation leaves it; the rest undefined, but for
    /// the peer table and the control words. The same for every run, so that a seed is a run.
    pub(crate) fn reset(&mut self, options: &RunOptions) -> Result<(), Failure> {
        self.machine.set_keep_events(options.keep_events);
        self.machine.set_most_switches(options.most_switches);
        self.way.clone_from(&options.way);
        for allocation in &self.allocations {
            self.machine.fill(*allocation, UNTOUCHED);
        }
        let bases: Vec<u64> = self.ranks.iter().map(|rank| rank.heap.address()).collect();
        for rank in &self.ranks {
            self.machine.fill(rank.heap, 0);
            self.machine.fill(rank.record, 0);
            self.machine.write(rank.own, 0, bytemuck::cast_slice(&bases))?;
            let fault = at(rank.record, 0);
            let wait = WaitControl { budget_ns: BUDGET_NS, fault, ..WaitControl::zeroed() };
            self.machine.write(rank.control, 0, bytemuck::bytes_of(&wait))?;
        }
        Ok(())
    }

    pub(crate) fn team(&self, rank: u32) -> TeamView {
        let Rank { own, control, .. } = self.ranks[rank as usize];
        let size = self.ranks.len() as u32;
        let (peer_bases, control) = (at(own, 0), at(control, 0));
        TeamView { size, rank, group: GROUP, peer_bases, control, ..TeamView::zeroed() }
    }

    pub(crate) fn put<T: Pod>(
        &mut self,
        to: Allocation,
        offset: u64,
        values: &[T],
    ) -> Result<(), SeededError> {
        self.machine.write(to, offset, bytemuck::cast_slice(values))
    }

    pub(crate) fn get<T: Pod>(
        &self,
        from: Allocation,
        offset: u64,
        count: usize,
    ) -> Result<Vec<T>, SeededError> {
        let bytes = self.machine.read(from, offset, count * size_of::<T>())?;
        Ok(bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect())
    }

    /// Launches the kernel that copies `bytes` bytes, a multiple of 8, by one block of so many waves.
    pub(crate) fn copy(
        &mut self,
        (rank, waves): (u32, u32),
        kernel: &SeededKernel,
        to: (Allocation, u64),
        from: (Allocation, u64),
        bytes: usize,
    ) -> Result<(), Failure> {
        let grid = Grid { blocks: 1, threads: waves * WAVE, local_bytes: 0 };
        let words = (bytes / 8) as u32;
        let args = CopyArgs { to: at(to.0, to.1), from: at(from.0, from.1), words, reserved: 0 };
        Ok(self.launch(rank, kernel, grid, &args)?)
    }

    pub(crate) fn launch<A: Pod>(
        &mut self,
        rank: u32,
        kernel: &SeededKernel,
        grid: Grid,
        args: &A,
    ) -> Result<(), SeededError> {
        self.launch_bytes(rank, kernel, grid, bytemuck::bytes_of(args))
    }

    /// The same for an argument struct whose bytes these are.
    pub(crate) fn launch_bytes(
        &mut self,
        rank: u32,
        kernel: &SeededKernel,
        grid: Grid,
        args: &[u8],
    ) -> Result<(), SeededError> {
        let mut bytes = bytemuck::bytes_of(&[grid.blocks, grid.threads, grid.local_bytes, 0]).to_vec();
        bytes.extend_from_slice(args);
        let shape = Shape {
            blocks: grid.blocks,
            block_threads: grid.threads,
            local_bytes: grid.local_bytes + LOCAL_RESERVED_BYTES,
        };
        self.machine.launch(rank, 0, kernel, shape, &bytes)
    }

    pub(crate) fn record(&self, rank: u32) -> Result<FaultRecord, SeededError> {
        let bytes = self.machine.read(self.ranks[rank as usize].record, 0, size_of::<FaultRecord>())?;
        Ok(bytemuck::pod_read_unaligned(&bytes))
    }

    /// Runs what is queued. A fault record of any rank is a failure.
    pub(crate) fn run(&mut self, seed: u64) -> Result<Run, Failure> {
        let run = self.run_to_a_fault(seed)?;
        for rank in 0..self.ranks.len() as u32 {
            let record = self.record(rank)?;
            if record.state != 0 {
                return Err(Failure::new(format!("rank {rank} reports {record:?}")));
            }
        }
        Ok(run)
    }

    /// Runs what is queued, whatever the fault records say.
    pub(crate) fn run_to_a_fault(&mut self, seed: u64) -> Result<Run, SeededError> {
        match &self.way {
            Some((bounds, choices)) => self.machine.replay(*bounds, choices),
            None => self.machine.run(seed),
        }
    }

    /// The failure with what led to it, if that was kept.
    pub(crate) fn with_events(&self, mut failure: Failure) -> Failure {
        failure.events = self.machine.last_events().to_vec();
        failure
    }
}

/// A scenario on a bench's machine.
pub(crate) trait OnBench: Debug {
    fn case(&self) -> &Case;

    fn bench(&self) -> &Bench;

    /// All operations of the case under a seed, judged.
    fn run_and_judge(&mut self, seed: u64, options: &RunOptions) -> Result<Outcome, Failure>;
}

impl<T: OnBench> Scenario for T {
    fn case(&self) -> &Case {
        OnBench::case(self)
    }

    fn run(&mut self, seed: u64, options: &RunOptions) -> Result<Outcome, Failure> {
        self.run_and_judge(seed, options).map_err(|failure| self.bench().with_events(failure))
    }
}

impl From<SeededError> for Failure {
    fn from(error: SeededError) -> Self {
        Self::new(error.to_string())
    }
}
