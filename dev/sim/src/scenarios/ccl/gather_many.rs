//! Many tensors gathered in one launch: a few calls after each other on one communicator, by each algorithm before one comes again, with
//! kernels before each that write its tensors and kernels behind it that read them and what lies around them. All calls have their
//! tensors in the same few places.

use anabranch_ccl::Shape;
use anabranch_ccl::kernels::{GATHER_MANY_DIRECT, GATHER_MANY_PACKETS, GATHER_MANY_STAGED, GATHER_MANY_UNIT};
use anabranch_ccl::lowered::ChannelLayout;
use anabranch_ccl::lowered::Segments;
use anabranch_ccl::lowered::Stage;
use anabranch_ccl::lowered::{BufferView, Segment};
use anabranch_ccl::lowered::{Engine, Job, Tensors, lowered};
use anabranch_ccl::{Algorithm, Collective, DataType, LocationKind, OPERATION};
use anabranch_hip::DeviceAddress;
use anabranch_hip_jit::{DevicePointer, KernelSpec};
use anabranch_weakmem::{Allocation, Owner, SeededKernel};

use super::super::bench::{Bench, Kernels, OnBench, UNTOUCHED, WAVE, at, mixed};
use super::channels;
use super::grid_of;
use super::round::{Draw, PACKET_UNITS, PIECE, most_bytes, plan_of};
use crate::kernels::COPY;
use crate::{Case, Failure, Outcome, RunOptions, ScenarioError};

/// Bytes around tensors.
const AROUND: u64 = 16;
/// The most tensors of a call.
const TENSORS: u64 = 4;
const ALGORITHMS: [Algorithm; 3] = [Algorithm::Packets, Algorithm::Staged, Algorithm::Direct];
/// Kinds of memory, each with a place for tensors.
const KINDS: [LocationKind; 3] = [LocationKind::Symmetric, LocationKind::Registered, LocationKind::Local];

/// Where a tensor is: which of [`KINDS`], and how far behind its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spot {
    kind: usize,
    offset: u64,
}

/// One tensor of each rank.
#[derive(Clone, Copy, Debug)]
struct Tensor {
    bytes: u64,
    output: Spot,
    /// Rank 0's; in place each rank's is its part of the output.
    input: Spot,
    in_place: bool,
}

impl Tensor {
    fn input_of(&self, rank: u32) -> Spot {
        let step = if self.in_place { u64::from(rank) * self.bytes } else { 0 };
        Spot { offset: self.input.offset + step, ..self.input }
    }
}

/// One call.
#[derive(Debug)]
struct Call {
    algorithm: Algorithm,
    blocks: u32,
    threads: u32,
    /// Whether the list lies in memory, as long ones do.
    is_listed: bool,
    tensors: Vec<Tensor>,
    /// `[rank][kind]`: what is in memory before it.
    before: Vec<[Vec<u8>; KINDS.len()]>,
    /// ... and behind it.
    after: Vec<[Vec<u8>; KINDS.len()]>,
}

/// One rank's memory, beside the bench's.
#[derive(Debug)]
struct Memory {
    registered: Allocation,
    local: Allocation,
    /// Where registrations are.
    table: Allocation,
    /// `[rounds][kind][region]`: what tensors hold before a call.
    prepared: Allocation,
    /// ... and after it.
    log: Allocation,
    /// `[rounds][TENSORS]`.
    lists: Allocation,
}

#[derive(Debug)]
pub(crate) struct GatherMany {
    case: Case,
    bench: Bench,
    memory: Vec<Memory>,
    layout: ChannelLayout,
    /// Bytes of a place for tensors; in the heap it follows the communicator's own memory.
    region: u64,
    copy: SeededKernel,
    kernels: Vec<(&'static str, SeededKernel)>,
}

impl GatherMany {
    pub(crate) fn new(case: Case, kernels: &mut Kernels<'_>) -> Result<Self, ScenarioError> {
        let layout = ChannelLayout::with(case.ranks, case.blocks, PACKET_UNITS, PIECE);
        let most = ALGORITHMS.map(|algorithm| most_bytes(&case, algorithm)).into_iter().max().unwrap_or(0);
        // Of each tensor the outputs and an input, each moved a little and with something before it.
        let of_tensors = u64::from(case.ranks + 1) * (most + TENSORS);
        let region = (of_tensors + (2 * TENSORS + 2) * 3 * AROUND).next_multiple_of(AROUND);
        let threads = case.ranks * case.blocks * case.waves * WAVE;
        let mut bench = Bench::new(&case, threads, layout.bytes + region, 0)?;
        let mut memory = Vec::new();
        for rank in 0..case.ranks {
            let (own, rounds) = (Owner::Device(rank), u64::from(case.rounds));
            let all = rounds * KINDS.len() as u64 * region;
            let list = rounds * TENSORS * size_of::<Segment>() as u64;
            // Not at one offset of all.
            let registered = region + AROUND * u64::from(rank);
            memory.push(Memory {
                registered: bench.allocate("registered", rank, Owner::Shared, registered)?,
                local: bench.allocate("local", rank, own, region)?,
                table: bench.allocate("table", rank, own, u64::from(case.ranks) * 8)?,
                prepared: bench.allocate("prepared", rank, own, all)?,
                log: bench.allocate("log", rank, own, all)?,
                lists: bench.allocate("lists", rank, own, list)?,
            });
        }
        let spec = KernelSpec::new(&GATHER_MANY_UNIT)
            .with("CCL_TILE", PIECE as u32)
            .with("CCL_EPOCH_BITS", channels::epoch_bits(&case));
        let mut loaded = Vec::new();
        for kernel in [GATHER_MANY_PACKETS, GATHER_MANY_STAGED, GATHER_MANY_DIRECT] {
            loaded.push((kernel.entry(), kernels.load(spec.clone(), kernel.entry())?));
        }
        let copy = kernels.load_right(KernelSpec::new(&COPY), "anabranch_sim_copy")?;
        Ok(Self { case, bench, memory, layout, region, copy, kernels: loaded })
    }

    /// Where tensors of a kind are at a rank.
    fn place(&self, kind: usize, rank: u32) -> (Allocation, u64) {
        let memory = &self.memory[rank as usize];
        match KINDS[kind] {
            LocationKind::Local => (memory.local, 0),
            LocationKind::Symmetric => (self.bench.ranks[rank as usize].heap, self.layout.bytes),
            LocationKind::Registered => (memory.registered, AROUND * u64::from(rank)),
        }
    }

    fn draw(&self, algorithm: Algorithm, number: u32, draw: &mut Draw) -> Call {
        let (case, ranks) = (&self.case, u64::from(self.case.ranks));
        let count = draw.below(TENSORS + 1);
        let most = most_bytes(case, algorithm) / count.max(1);
        let mut ends = [0; KINDS.len()];
        let mut spot = |draw: &mut Draw, kind: usize, bytes: u64| {
            let skew = [0, 0, 8, 1][draw.below(4) as usize];
            let offset = (ends[kind] + AROUND).next_multiple_of(AROUND) + skew;
            ends[kind] = offset + bytes;
            Spot { kind, offset }
        };
        let tensors: Vec<_> = (0..count)
            .map(|_| {
                let bytes = [0, 1, most, draw.below(most + 1)][draw.below(4) as usize];
                // Peers have to reach what goes straight.
                let reached = if algorithm == Algorithm::Direct { 2 } else { KINDS.len() as u64 };
                let (to, from) = (draw.below(reached) as usize, draw.below(KINDS.len() as u64) as usize);
                let output = spot(draw, to, ranks * bytes);
                let in_place = draw.below(4) == 0;
                let input = if in_place { output } else { spot(draw, from, bytes) };
                Tensor { bytes, output, input, in_place }
            })
            .collect();
        let ends = ends.map(|end| if end == 0 { 0 } else { (end + AROUND).next_multiple_of(8) as usize });
        let payload = |tensor: u64, rank: u32, byte: u64| {
            mixed(u64::from(number) << 40 | tensor << 32 | u64::from(rank) << 24 | byte) as u8
        };
        let put = |image: &mut [Vec<u8>; KINDS.len()], spot: Spot, at: u64, tensor: (u64, u64), rank: u32| {
            for byte in 0..tensor.1 {
                image[spot.kind][(spot.offset + at + byte) as usize] = payload(tensor.0, rank, byte);
            }
        };
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for rank in 0..case.ranks {
            let mut image = ends.map(|end| vec![UNTOUCHED; end]);
            for (index, tensor) in (0..).zip(&tensors) {
                put(&mut image, tensor.input_of(rank), 0, (index, tensor.bytes), rank);
            }
            before.push(image.clone());
            for (index, tensor) in (0..).zip(&tensors) {
                for from in 0..case.ranks {
                    let at = u64::from(from) * tensor.bytes;
                    put(&mut image, tensor.output, at, (index, tensor.bytes), from);
                }
            }
            after.push(image);
        }
        let mut fewer = |most: u32| {
            if draw.below(4) == 0 { 1 + draw.below(u64::from(most)) as u32 } else { most }
        };
        let (blocks, threads) = (fewer(case.blocks), fewer(case.waves) * WAVE);
        Call { algorithm, blocks, threads, is_listed: draw.below(4) == 0, tensors, before, after }
    }

    /// Where a call's image of a kind is, among those that are kept.
    fn kept(&self, number: u32, kind: usize) -> u64 {
        (u64::from(number) * KINDS.len() as u64 + kind as u64) * self.region
    }

    /// A call of one rank: its tensors are written, the call is made, its tensors are read.
    fn queue(&mut self, rank: u32, number: u32, call: &Call) -> Result<(), Failure> {
        for (kind, image) in call.before[rank as usize].iter().enumerate() {
            let prepared = (self.memory[rank as usize].prepared, self.kept(number, kind));
            self.bench.put(prepared.0, prepared.1, image)?;
            if !image.is_empty() {
                self.bench.copy(
                    (rank, self.case.waves),
                    &self.copy,
                    self.place(kind, rank),
                    prepared,
                    image.len(),
                )?;
            }
        }
        self.launch(rank, number, call)?;
        for (kind, image) in call.before[rank as usize].iter().enumerate() {
            let log = (self.memory[rank as usize].log, self.kept(number, kind));
            if !image.is_empty() {
                self.bench.copy(
                    (rank, self.case.waves),
                    &self.copy,
                    log,
                    self.place(kind, rank),
                    image.len(),
                )?;
            }
        }
        Ok(())
    }

    fn launch(&mut self, rank: u32, number: u32, call: &Call) -> Result<(), Failure> {
        let team = self.bench.team(rank);
        let given = call.tensors.iter().map(|tensor| {
            let (output, input) = (tensor.output, tensor.input_of(rank));
            let own = |spot: Spot| {
                let (allocation, start) = self.place(spot.kind, rank);
                allocation.address() + start + spot.offset
            };
            let (own_output, own_input) = (own(output), own(input));
            let (bases, offset) = match KINDS[output.kind] {
                LocationKind::Local => (DevicePointer::NULL, own_output),
                LocationKind::Symmetric => (team.peer_bases, self.layout.bytes + output.offset),
                LocationKind::Registered => (at(self.memory[rank as usize].table, 0), output.offset),
            };
            let alignment = |offset: u64| 1 << offset.trailing_zeros().min(4);
            let alignment = u64::min(alignment(output.offset), alignment(input.offset));
            (BufferView { bases, offset, own: own_output }, own_input, tensor.bytes, alignment)
        });
        let segments = Segments::of(given);
        let heap = DeviceAddress(self.bench.ranks[rank as usize].heap.address());
        let comm = self.layout.view_at(team, 0, heap, OPERATION.0);
        let (mut args, _) = segments.arguments(comm);
        if call.is_listed {
            let lists = self.memory[rank as usize].lists;
            let start = u64::from(number) * TENSORS * size_of::<Segment>() as u64;
            self.bench.put(lists, start, &segments.list)?;
            args.table = at(lists, start);
            args.segments.fill(bytemuck::Zeroable::zeroed());
        }
        // Where buffers are is in the arguments; that peers reach the outputs is what `direct` asks for.
        let location = LocationKind::Symmetric;
        let shape = Shape {
            collective: Collective::AllGather,
            data_type: DataType::U8,
            op: None,
            members: self.case.ranks,
            count: segments.total,
            uneven: false,
            root: None,
            input: location,
            output: location,
            norm_row: None,
        };
        let Call { algorithm, blocks, threads, .. } = *call;
        let plan = plan_of(&shape, algorithm, (blocks, threads), false)?;
        let (tensors, engine) = (Tensors::Many(&args), Engine::default());
        let stages = lowered(&Job { comm: &comm, shape: &shape, plan: &plan, tensors, engine, norm: None });
        for stage in stages.map_err(|error| Failure::new(error.to_string()))? {
            let Stage::Kernel(launch) = stage else {
                return Err(Failure::new(format!("{algorithm} does more than to launch a kernel")));
            };
            let Some((_, kernel)) = self.kernels.iter().find(|(entry, _)| *entry == launch.entry()) else {
                return Err(Failure::new(format!("{} is not loaded", launch.entry())));
            };
            self.bench.launch_bytes(rank, kernel, grid_of(&launch), launch.arguments())?;
        }
        Ok(())
    }

    /// The calls of a run: by every algorithm, in an order that the seed draws, before by one again.
    fn calls(&self, draw: &mut Draw) -> Vec<Call> {
        let mut bag: Vec<Algorithm> = Vec::new();
        let call = |number| {
            if bag.is_empty() {
                bag.extend(ALGORITHMS);
            }
            let algorithm = bag.swap_remove(draw.below(bag.len() as u64) as usize);
            self.draw(algorithm, number, draw)
        };
        (0..self.case.rounds).map(call).collect()
    }

    /// Memory before the first call.
    fn prepare(&mut self, options: &RunOptions, draw: &mut Draw) -> Result<(), Failure> {
        self.bench.reset(options)?;
        channels::prepare(&mut self.bench, &self.case, &self.layout, draw)?;
        let registered = |(rank, memory): (u64, &Memory)| memory.registered.address() + AROUND * rank;
        let bases: Vec<u64> = (0..).zip(&self.memory).map(registered).collect();
        for memory in &self.memory {
            self.bench.put(memory.table, 0, &bases)?;
        }
        Ok(())
    }

    fn judge(&self, rank: u32, number: u32, call: &Call) -> Result<(), Failure> {
        for (kind, image) in call.after[rank as usize].iter().enumerate() {
            let log = self.memory[rank as usize].log;
            let seen = self.bench.get::<u8>(log, self.kept(number, kind), image.len())?;
            if let Some(byte) = seen.iter().zip(image).position(|(seen, image)| seen != image) {
                let (seen, expected, tensors) = (seen[byte], image[byte], &call.tensors);
                return Err(Failure::new(format!(
                    "rank {rank}: round {number}, {}, {:?} memory: byte {byte} is {seen:#x} and not {expected:#x}: {tensors:?}",
                    call.algorithm, KINDS[kind]
                )));
            }
        }
        Ok(())
    }
}

impl OnBench for GatherMany {
    fn case(&self) -> &Case {
        &self.case
    }

    fn bench(&self) -> &Bench {
        &self.bench
    }

    fn run_and_judge(&mut self, seed: u64, options: &RunOptions) -> Result<Outcome, Failure> {
        let mut draw = Draw::new(seed);
        self.prepare(options, &mut draw)?;
        let calls = self.calls(&mut draw);
        for rank in 0..self.case.ranks {
            for (number, call) in (0..).zip(&calls) {
                self.queue(rank, number, call)?;
            }
        }
        let run = self.bench.run(seed)?;
        for (number, call) in (0..).zip(&calls) {
            for rank in 0..self.case.ranks {
                self.judge(rank, number, call)?;
            }
        }
        channels::judge(&self.bench, &self.case, &self.layout)?;
        Ok(Outcome { run })
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::bench::BUDGET_NS;
    use super::*;
    use crate::{Protocol, Scenario as _, scratch};

    fn made(case: &Case) -> GatherMany {
        GatherMany::new(case.clone(), &mut Kernels::new(&scratch::jit(), case)).unwrap()
    }

    #[test]
    fn calls_of_all_kinds_are_drawn_and_fit_their_places() {
        let scenario = made(&Case::new(Protocol::CclGatherMany, 3));
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..400 {
            let calls = scenario.calls(&mut Draw::new(seed));
            assert_eq!(calls.len(), 6);
            for algorithm in ALGORITHMS {
                assert_eq!(calls.iter().filter(|call| call.algorithm == algorithm).count(), 2);
            }
            for call in calls {
                for images in call.before.iter().chain(&call.after) {
                    assert!(images.iter().all(|image| image.len() as u64 <= scenario.region), "{call:?}");
                }
                for tensor in &call.tensors {
                    let is_reached = KINDS[tensor.output.kind].is_reached();
                    assert!(is_reached || call.algorithm != Algorithm::Direct, "{call:?}");
                    seen.insert((call.algorithm, tensor.output.kind, tensor.in_place, call.is_listed));
                }
            }
        }
        // By each of two all kinds of memory, straight into two, each in four ways.
        assert_eq!(seen.len(), (2 * 3 + 2) * 4);
    }

    #[test]
    fn the_judge_notices_a_byte_that_is_wrong() {
        let mut scenario = made(&Case::new(Protocol::CclGatherMany, 2));
        assert!(scenario.run(4, &RunOptions::default()).is_ok());
        let mut draw = Draw::new(4);
        channels::prepare(&mut scenario.bench, &scenario.case, &scenario.layout, &mut draw).unwrap();
        let calls = scenario.calls(&mut draw);
        let mut noticed = 0;
        for (number, call) in (0..).zip(&calls) {
            for kind in 0..KINDS.len() {
                let length = call.after[1][kind].len() as u64;
                assert!(scenario.judge(1, number, call).is_ok());
                for at in 0..length {
                    let (log, place) = (scenario.memory[1].log, scenario.kept(number, kind) + at);
                    let right = scenario.bench.get::<u8>(log, place, 1).unwrap()[0];
                    scenario.bench.put(log, place, &[right ^ 4]).unwrap();
                    assert!(scenario.judge(1, number, call).is_err(), "byte {at} of {call:?}");
                    scenario.bench.put(log, place, &[right]).unwrap();
                    noticed += 1;
                }
            }
        }
        assert!(noticed > 100, "{noticed}");
    }

    /// What a member that has not come must find as it was: the places of its tensors.
    fn places_of(scenario: &GatherMany, rank: u32) -> Vec<u8> {
        let read = |kind| {
            let (allocation, offset) = scenario.place(kind, rank);
            scenario.bench.get::<u8>(allocation, offset, scenario.region as usize).unwrap()
        };
        (0..KINDS.len()).flat_map(read).collect()
    }

    #[test]
    fn a_member_that_never_comes_is_named_and_its_tensors_are_left_alone() {
        let mut scenario =
            made(&Case { rounds: 1, values_only: true, ..Case::new(Protocol::CclGatherMany, 3) });
        let mut faults = [0; ALGORITHMS.len()];
        for seed in 0..200 {
            let mut draw = Draw::new(seed);
            scenario.prepare(&RunOptions::default(), &mut draw).unwrap();
            let call = scenario.calls(&mut draw).remove(0);
            let before = places_of(&scenario, 1);
            for rank in [0, 2] {
                scenario.queue(rank, 0, &call).unwrap();
            }
            let run = scenario.bench.run_to_a_fault(seed).unwrap();
            assert!(before == places_of(&scenario, 1), "seed {seed}: {call:?}");
            for rank in [0, 2] {
                let record = scenario.bench.record(rank).unwrap();
                if record.state == 0 {
                    // Nothing to move: through the staging nobody waits for anybody.
                    let is_empty = call.tensors.iter().all(|tensor| tensor.bytes == 0);
                    assert!(is_empty && call.algorithm == Algorithm::Staged, "seed {seed}: {call:?}");
                    continue;
                }
                assert!(run.virtual_ns > BUDGET_NS, "{run:?}");
                let told = (record.state, record.peer, record.rank, record.operation);
                assert_eq!(told, (2, 1, rank, OPERATION.0), "seed {seed}: {call:?}");
                faults[ALGORITHMS.iter().position(|algorithm| *algorithm == call.algorithm).unwrap()] += 1;
            }
        }
        assert!(faults.iter().all(|faults| *faults > 60), "{faults:?}");
    }
}
