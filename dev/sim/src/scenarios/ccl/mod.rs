//! Collectives on one communicator: a few calls after each other, as a program makes them, with kernels before each that write its
//! buffers and kernels behind it that read them. All buffers lie in the same few places, so that every call meets what the one
//! before it left, at members that are ahead and members that are behind.

mod channels;
mod engine;
mod gather_many;
mod norm;
mod round;
#[cfg(test)]
mod tests;

use anabranch_ccl::OPERATION;
use anabranch_ccl::lowered::ChannelLayout;
use anabranch_ccl::lowered::Launch;
use anabranch_ccl::lowered::{BufferView, CommView};
use anabranch_ccl::lowered::{Buffers, Counts, Engine, Job, Norm, Tensors, lowered};
use anabranch_ccl::{Algorithm, Collective, DataType, LocationKind, kernels};
use anabranch_conformance::ccl::{Layout, judge, oracle};
use anabranch_hip::{DeviceAddress, LaunchShape};
use anabranch_hip_jit::{DevicePointer, KernelSpec};
use anabranch_ranks::GroupRank;
use anabranch_weakmem::{Allocation, Owner, SeededKernel};

use super::bench::{Bench, Grid, Kernels, OnBench, WAVE, at, mixed};
use crate::kernels::COPY;
use crate::{Case, Failure, Outcome, Protocol, RunOptions, ScenarioError};
pub(crate) use gather_many::GatherMany;
use norm::Rows;
use round::{Draw, PACKET_UNITS, PIECE, Round, most_bytes, plan_of, rounds};

/// Bytes around buffers, and what they begin at.
const AROUND: u64 = 16;

/// One rank's buffers, beside the bench's.
#[derive(Debug)]
struct Memory {
    /// What peers do not reach.
    local: Allocation,
    /// What they reach somewhere else at each rank.
    registered: Allocation,
    /// Its addresses.
    table: Allocation,
    /// `[rounds][region]`: what buffers hold before a call.
    prepared: Allocation,
    /// ... and after it.
    log: Allocation,
    /// `[rounds][norm_region]`: weights, normed rows and scales.
    normed: Allocation,
}

#[derive(Debug)]
pub(crate) struct Collectives {
    case: Case,
    bench: Bench,
    memory: Vec<Memory>,
    layout: ChannelLayout,
    /// Bytes of a place for buffers; in the heap it follows the communicator's own memory.
    region: u64,
    /// Bytes of a round in the memory of norms.
    norm_region: u64,
    copy: SeededKernel,
    copy_bytes: SeededKernel,
    /// A meeting of calls by copy engine that is left out, by mistake.
    left_out: Option<engine::Meeting>,
    kernels: Vec<(&'static str, SeededKernel)>,
}

/// What a round has at each rank before it and must have behind it.
#[derive(Debug)]
struct Expectation {
    round: Round,
    inputs: Vec<Vec<u8>>,
    layouts: Vec<Layout>,
    images: Vec<Vec<u8>>,
}

impl Collectives {
    pub(crate) fn new(case: Case, loader: &mut Kernels<'_>) -> Result<Self, ScenarioError> {
        let layout = ChannelLayout::with(case.ranks, case.blocks, PACKET_UNITS, PIECE);
        // Two buffers of all parts, each up to three elements longer than it was drawn and as far behind its start.
        let most = most_bytes(&case, Algorithm::Packets).max(most_bytes(&case, Algorithm::Direct));
        let region = (2 * u64::from(case.ranks) * (most + 64) + 8 * AROUND).next_multiple_of(AROUND);
        let norm_region = Rows::most_bytes(most_bytes(&case, Algorithm::Packets));
        let lanes = case.ranks * case.blocks * case.waves * WAVE;
        let mut bench = Bench::new(&case, lanes, layout.bytes + region, 0)?;
        let mut memory = Vec::new();
        for rank in 0..case.ranks {
            let (own, all) = (Owner::Device(rank), u64::from(case.rounds) * region);
            memory.push(Memory {
                local: bench.allocate("local", rank, own, region)?,
                // Not at one offset of all.
                registered: bench.allocate(
                    "registered",
                    rank,
                    Owner::Shared,
                    region + 16 * u64::from(rank),
                )?,
                table: bench.allocate("table", rank, own, u64::from(case.ranks) * 8)?,
                prepared: bench.allocate("prepared", rank, own, all)?,
                log: bench.allocate("log", rank, own, all)?,
                normed: bench.allocate("normed", rank, own, u64::from(case.rounds) * norm_region)?,
            });
        }
        let bits = channels::epoch_bits(&case);
        let mut loaded = Vec::new();
        for (protocol, unit, entries) in [
            (Protocol::CclMove, &kernels::MOVE_UNIT, MOVES),
            (Protocol::CclPackets, &kernels::PACKET_REDUCE_UNIT, PACKETS),
            (Protocol::CclBulk, &kernels::BULK_REDUCE_UNIT, BULK),
            (Protocol::CclEngine, &kernels::MOVE_UNIT, engine::MOVES),
            (Protocol::CclEngine, &kernels::BULK_REDUCE_UNIT, engine::REDUCES),
            (Protocol::CclHops, &kernels::TWO_HOP_UNIT, &[kernels::TWO_HOP.entry()][..]),
            (Protocol::CclHops, &kernels::PUSH_TO_ROOT_UNIT, &[kernels::PUSH_TO_ROOT.entry()]),
            (Protocol::CclNorm, &kernels::REDUCE_NORM_UNIT, NORM),
            (Protocol::CclNorm, &kernels::BULK_REDUCE_UNIT, &[kernels::PUSH.entry()]),
            // A reduce of one member.
            (Protocol::CclHops, &kernels::BULK_REDUCE_UNIT, &[kernels::PUSH.entry()]),
        ] {
            let has_all = case.protocol == Protocol::Ccl
                && !matches!(protocol, Protocol::CclEngine | Protocol::CclNorm);
            if case.protocol != protocol && !has_all {
                continue;
            }
            for entry in entries {
                let spec = kernels::spec(unit, DataType::F32)
                    .with("CCL_TILE", PIECE as u32)
                    .with("CCL_EPOCH_BITS", bits);
                loaded.push((*entry, loader.load(spec, entry)?));
            }
        }
        let copy = loader.load_right(KernelSpec::new(&COPY), "anabranch_sim_copy")?;
        let copy_bytes = loader.load_right(KernelSpec::new(&COPY), "anabranch_sim_copy_bytes")?;
        let left_out = None;
        Ok(Self {
            case,
            bench,
            memory,
            layout,
            region,
            norm_region,
            copy,
            copy_bytes,
            left_out,
            kernels: loaded,
        })
    }

    /// Where buffers of a kind are at a rank.
    fn place(&self, location: LocationKind, rank: u32) -> (Allocation, u64) {
        let memory = &self.memory[rank as usize];
        match location {
            LocationKind::Local => (memory.local, 0),
            LocationKind::Symmetric => (self.bench.ranks[rank as usize].heap, self.layout.bytes),
            LocationKind::Registered => (memory.registered, 16 * u64::from(rank)),
        }
    }

    fn comm(&self, rank: u32) -> CommView {
        let heap = DeviceAddress(self.bench.ranks[rank as usize].heap.address());
        self.layout.view_at(self.bench.team(rank), 0, heap, OPERATION.0)
    }

    /// Memory before the first call. Channels have been used before: as often as brings their counters' wrap into the run, or never.
    fn prepare(&mut self, options: &RunOptions, draw: &mut Draw) -> Result<(), Failure> {
        self.bench.reset(options)?;
        let ranks = self.case.ranks;
        channels::prepare(&mut self.bench, &self.case, &self.layout, draw)?;
        for rank in 0..ranks as usize {
            let bases: Vec<u64> = (0..ranks)
                .map(|rank| self.place(LocationKind::Registered, rank))
                .map(|(allocation, offset)| allocation.address() + offset)
                .collect();
            self.bench.put(self.memory[rank].table, 0, &bases)?;
        }
        Ok(())
    }

    fn expectation(&self, round: Round, number: u32) -> Expectation {
        let (ranks, call) = (self.case.ranks, &round.call);
        let layouts: Vec<Layout> =
            (0..ranks).map(|rank| Layout::with(call, ranks, rank, AROUND, AROUND)).collect();
        let inputs = call.inputs(ranks);
        let image = |rank: u32| {
            let rank_here = rank as usize;
            let mut image = layouts[rank_here].image(call, &inputs[rank_here], GroupRank::new(rank));
            if call.collective == Collective::Barrier {
                let words = 0..u64::from(self.case.tokens);
                image = words
                    .flat_map(|word| {
                        mixed(u64::from(number) << 32 | u64::from(rank) << 16 | word).to_le_bytes()
                    })
                    .collect();
            }
            image.resize(image.len().next_multiple_of(8), 0);
            image
        };
        let images = (0..ranks).map(image).collect();
        Expectation { round, inputs, layouts, images }
    }

    /// A round of one rank: its buffers are written, the call is made, its buffers are read.
    fn queue(&mut self, rank: u32, number: u32, expected: &Expectation) -> Result<(), Failure> {
        let ranks = self.case.ranks;
        let memory = &self.memory[rank as usize];
        let entry_of_round = u64::from(number) * self.region;
        let (prepared, log) = ((memory.prepared, entry_of_round), (memory.log, entry_of_round));
        let image = &expected.images[rank as usize];
        let place = self.place(expected.round.call.location, rank);
        self.bench.put(prepared.0, prepared.1, image)?;
        if expected.round.call.collective == Collective::Barrier {
            // Into the next rank's memory, once all have read what was there; and read there, once all have written.
            self.call(rank, number, expected)?;
            let next = self.place(LocationKind::Symmetric, (rank + 1) % ranks);
            self.bench.copy((rank, self.case.waves), &self.copy, next, prepared, image.len())?;
            self.call(rank, number, expected)?;
            let own = self.place(LocationKind::Symmetric, rank);
            return self.bench.copy((rank, self.case.waves), &self.copy, log, own, image.len());
        }
        self.bench.copy((rank, self.case.waves), &self.copy, place, prepared, image.len())?;
        self.call(rank, number, expected)?;
        self.bench.copy((rank, self.case.waves), &self.copy, log, place, image.len())
    }

    /// The memory of a norm.
    fn normed(&self, rank: u32, number: u32) -> (Allocation, u64) {
        (self.memory[rank as usize].normed, u64::from(number) * self.norm_region)
    }

    fn call(&mut self, rank: u32, number: u32, expected: &Expectation) -> Result<(), Failure> {
        let (round, members) = (&expected.round, u64::from(self.case.ranks));
        let (call, layout) = (&round.call, expected.layouts[rank as usize]);
        let shape = round.shape(self.case.ranks);
        let (allocation, start) = self.place(call.location, rank);
        let team = self.bench.team(rank);
        let place = |offset: u64| match call.location {
            LocationKind::Local => {
                let own = allocation.address() + start + offset;
                BufferView { bases: DevicePointer::NULL, offset: own, own }
            }
            LocationKind::Symmetric => {
                let own = allocation.address() + start + offset;
                BufferView { bases: team.peer_bases, offset: start + offset, own }
            }
            LocationKind::Registered => {
                let own = allocation.address() + start + offset;
                BufferView { bases: at(self.memory[rank as usize].table, 0), offset, own }
            }
        };
        let alignment = |offset: u64| 1 << (start + offset).trailing_zeros().min(4);
        let has_input = call.collective != Collective::Scatter || call.root.get() == rank;
        let is_barrier = call.collective == Collective::Barrier;
        let buffers = Buffers {
            input: if has_input && !is_barrier { place(layout.input) } else { Buffers::NOWHERE },
            output: if is_barrier { Buffers::NOWHERE } else { place(layout.output) },
            alignment: u64::min(alignment(layout.input), alignment(layout.output)),
        };
        let here = u64::from(rank);
        let (counts, to, from): (_, Vec<u64>, Vec<u64>) = (
            call.counts(members),
            (0..members).map(|to| call.pair(here, to)).collect(),
            (0..members).map(|from| call.pair(from, here)).collect(),
        );
        let counts = match call.collective {
            Collective::AllGather if call.uneven => Counts::AllGather(&counts),
            Collective::ReduceScatter if call.uneven => Counts::ReduceScatter(&counts),
            Collective::AllToAll if call.uneven => {
                Counts::AllToAll { input_splits: &to, output_splits: &from }
            }
            _ => Counts::Even,
        };
        let outputs = (0..self.case.ranks).map(|member| {
            let (allocation, start) = self.place(call.location, member);
            allocation.address() + start + layout.output
        });
        let outputs: Vec<u64> = outputs.collect();
        let heaps: Vec<u64> = self.bench.ranks.iter().map(|rank| rank.heap.address()).collect();
        let plan = plan_of(&shape, round.algorithm, (round.blocks, round.threads), round.phased)?;
        let normed = self.normed(rank, number);
        let norm = round.rows.map(|rows| rows.arguments(&mut self.bench, normed, buffers.input.own));
        let comm = self.comm(rank);
        let norm = norm.transpose()?.map(|row| Norm {
            comm: &comm,
            row,
            blocks: round.blocks,
            threads: round.threads,
        });
        let stages = lowered(&Job {
            comm: &comm,
            shape: &shape,
            plan: &plan,
            tensors: Tensors::One(&buffers, counts),
            engine: Engine {
                channels: self.case.blocks,
                barrier_threads: WAVE,
                heaps: &heaps,
                outputs: &outputs,
            },
            norm,
        });
        self.queue_stages(rank, stages.map_err(|error| Failure::new(error.to_string()))?)
    }

    fn launch(&mut self, rank: u32, launch: &Launch) -> Result<(), Failure> {
        let entry = launch.entry();
        let Some((_, kernel)) = self.kernels.iter().find(|(name, _)| *name == entry) else {
            return Err(Failure::new(format!("the kernel {entry} is not loaded")));
        };
        Ok(self.bench.launch_bytes(rank, kernel, grid_of(launch), launch.arguments())?)
    }

    fn judge(&self, rank: u32, number: u32, expected: &Expectation) -> Result<(), String> {
        let here = rank as usize;
        let log = self.memory[here].log;
        let image = &expected.images[here];
        let seen = self
            .bench
            .get::<u8>(log, u64::from(number) * self.region, image.len())
            .map_err(|error| error.to_string())?;
        if expected.round.call.collective == Collective::Barrier {
            let before = &expected.images[(here + expected.images.len() - 1) % expected.images.len()];
            let wrong = before.iter().zip(&seen).position(|(before, seen)| before != seen);
            return wrong
                .map_or(Ok(()), |byte| Err(format!("byte {byte} is not what the rank before wrote")));
        }
        let layout = &expected.layouts[here];
        let mut seen = seen;
        if let Some(rows) = &expected.round.rows {
            let call = &expected.round.call;
            let sums = oracle::all_reduce(call.data_type, call.op, &expected.inputs);
            let sums = sums.map_err(|error| error.to_string())?;
            let sum = sums.output(GroupRank::new(rank)).ok_or("every rank has the sum")?;
            rows.judge(&self.bench, self.normed(rank, number), sum)?;
            if rows.has_residual {
                // The call uses the input up.
                seen[layout.output as usize..][..sum.len()].copy_from_slice(sum);
            }
        }
        judge(&expected.round.call, layout, &expected.inputs, GroupRank::new(rank), image, &seen)
            .map_err(|failure| failure.to_string())
    }
}

/// How a communicator launches a kernel.
fn grid_of(launch: &Launch) -> Grid {
    let LaunchShape { grid_blocks, block_threads, local_bytes } = launch.shape;
    Grid { blocks: grid_blocks, threads: block_threads, local_bytes }
}

const MOVES: &[&str] = &[
    kernels::BARRIER.entry(),
    kernels::MOVE_PACKETS.entry(),
    kernels::MOVE_STAGED.entry(),
    kernels::MOVE_DIRECT.entry(),
    kernels::UNEVEN_PACKETS.entry(),
    kernels::UNEVEN_STAGED.entry(),
    kernels::UNEVEN_DIRECT.entry(),
];
const PACKETS: &[&str] = &[
    kernels::ONE_SHOT.entry(),
    kernels::TWO_SHOT.entry(),
    kernels::SCATTER_PACKETS.entry(),
    kernels::UNEVEN_SCATTER_PACKETS.entry(),
];
const NORM: &[&str] =
    &[kernels::ONE_SHOT_NORM.entry(), kernels::TWO_SHOT_NORM.entry(), kernels::RMS_NORM.entry()];
const BULK: &[&str] = &[kernels::PULL.entry(), kernels::PUSH.entry(), kernels::UNEVEN_PUSH.entry()];

impl OnBench for Collectives {
    fn case(&self) -> &Case {
        &self.case
    }

    fn bench(&self) -> &Bench {
        &self.bench
    }

    fn run_and_judge(&mut self, seed: u64, options: &RunOptions) -> Result<Outcome, Failure> {
        let mut draw = Draw::new(seed);
        self.prepare(options, &mut draw)?;
        let all: Vec<Expectation> = rounds(&self.case, &mut draw)
            .into_iter()
            .zip(0..)
            .map(|(round, number)| self.expectation(round, number))
            .collect();
        for rank in 0..self.case.ranks {
            for (number, expected) in (0..).zip(&all) {
                self.queue(rank, number, expected)?;
            }
        }
        let run = self.bench.run(seed)?;
        for (number, expected) in (0..).zip(&all) {
            for rank in 0..self.case.ranks {
                self.judge(rank, number, expected).map_err(|problem| {
                    let Round { algorithm, call, .. } = &expected.round;
                    Failure::new(format!("rank {rank}: round {number}, {algorithm}, {call}: {problem}"))
                })?;
            }
        }
        channels::judge(&self.bench, &self.case, &self.layout)?;
        Ok(Outcome { run })
    }
}
