//! The real dispatch, expert and combine kernels on a seeded machine: what `ExpertParallel` does, without a world.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking")]

use std::path::PathBuf;

use anabranch_ep::args::{CombineArgs, DispatchArgs, ReferenceExpertArgs, SlotState};
use anabranch_ep::oracle::{Oracle, RankInput, Shape as OracleShape, SlottedRows};
use anabranch_ep::plan::{DeviceLimits, FLAG_STRIDE, Geometry, Plan};
use anabranch_ep::{COMBINE, DISPATCH, DataType, EpConfig, kernels};
use anabranch_hip::DeviceAddress;
use anabranch_hip_host::seeded::{
    Allocation, MemoryProfile, Owner, Run, SeededConfig, SeededKernel, SeededMachine, Shape,
};
use anabranch_hip_jit::bytemuck::{self, Pod, Zeroable as _};
use anabranch_hip_jit::control::{FaultRecord, WaitControl};
use anabranch_hip_jit::{
    DevicePointer, Jit, JitConfig, KernelSpec, LOCAL_RESERVED_BYTES, Target, ToolSearch,
};
use anabranch_ranks::GroupRank;
use anabranch_shmem::TeamView;

/// What is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) ranks: u32,
    pub(crate) epochs: usize,
    /// Whether the experts write a buffer of their own, which combine stages.
    pub(crate) staged: bool,
    /// Blocks of a launch.
    pub(crate) blocks: u32,
    /// What fences do; the kernels are compiled for it.
    pub(crate) profile: MemoryProfile,
}

const WAVE: u32 = 4;
const TOKENS: u32 = 5;
const BUDGET_NS: u64 = 1_000_000_000_000;

/// The kernels, of one mutant.
#[derive(Debug)]
pub(crate) struct Kernels {
    dispatch: SeededKernel,
    expert: SeededKernel,
    combine: SeededKernel,
}

impl Kernels {
    pub(crate) fn compile(mutant: u32, profile: MemoryProfile) -> Self {
        let folder: PathBuf = env!("CARGO_TARGET_TMPDIR").into();
        let path = ["/usr/local/bin", "/usr/bin", "/bin"].map(PathBuf::from).to_vec();
        let jit = Jit::new(
            JitConfig::new(folder.join("seeded-cache")),
            ToolSearch { path, ..ToolSearch::default() },
        );
        let load = |spec: KernelSpec, name: &str| {
            let mut spec = spec.with("HOST_INSTRUMENTED", 1).with("PRELUDE_MUTANT", mutant);
            if profile == MemoryProfile::Cumulative {
                spec = spec.with("HOST_CUMULATIVE", 1);
            }
            let object = jit.compile(&spec, &Target::host(WAVE).unwrap()).unwrap();
            // SAFETY: the object was compiled from the prelude with HOST_INSTRUMENTED.
            unsafe { SeededKernel::load_for(&object.bytes, name, WAVE, profile) }.unwrap()
        };
        Self {
            dispatch: load(kernels::dispatch(), "anabranch_ep_dispatch"),
            expert: load(
                kernels::reference_expert(DataType::F32, DataType::F32),
                "anabranch_ep_reference_expert",
            ),
            combine: load(kernels::combine(DataType::F32), "anabranch_ep_combine"),
        }
    }
}

/// What one rank brings to one epoch, on the host and on its device.
struct Input {
    tokens: Vec<u8>,
    ids: Vec<i32>,
    weights: Vec<f32>,
    on_device: Allocation,
    output: Allocation,
}

/// One rank's memory.
struct Rank {
    heap: Allocation,
    bases: Allocation,
    control: Allocation,
    record: Allocation,
    own: Allocation,
    staged: Allocation,
    inputs: Vec<Input>,
}

/// The parts of a rank's own memory, bytes from its start.
const STATE: u64 = 0;
const SENT: u64 = 128;
const COUNTS: u64 = 256;
const OFFSETS: u64 = 384;
const SEND_MAP: u64 = 512;

pub(crate) struct Harness {
    case: Case,
    plan: Plan,
    dispatch_shape: Geometry,
    combine_shape: Geometry,
    kernels: Kernels,
    machine: SeededMachine,
    ranks: Vec<Rank>,
}

fn at<T>(allocation: Allocation, offset: u64) -> DevicePointer<T> {
    DevicePointer::new(DeviceAddress(allocation.address() + offset))
}

/// Some number of 24 bits, the same in every run.
fn number(words: [u64; 4]) -> u32 {
    let mut all = 0x9e37_79b9_7f4a_7c15_u64;
    for word in words {
        all = (all ^ word).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(29);
    }
    (all >> 40) as u32
}

impl Harness {
    pub(crate) fn new(case: Case, mutant: u32, keep_events: bool, find_races: bool) -> Self {
        let config = EpConfig::new(8, case.ranks * 2, 2, TOKENS)
            .dispatch_type(DataType::F32)
            .combine_type(DataType::F32)
            .launch(case.blocks, 2);
        let plan = Plan::new(config, case.ranks).unwrap();
        let limits = DeviceLimits {
            wave_size: WAVE,
            resident_blocks: case.blocks,
            multiprocessors: case.blocks,
            preferred_waves: 2,
            local_bytes: 60_000,
        };
        let mut combine_shape = plan.combine_geometry(TOKENS, &limits);
        if case.staged {
            combine_shape.blocks = combine_shape.blocks.max(plan.staging_blocks(&limits));
        }
        let machine = SeededMachine::new(SeededConfig {
            keep_events,
            find_races,
            profile: case.profile,
            ..SeededConfig::default()
        })
        .unwrap();
        let dispatch_shape = plan.dispatch_geometry(TOKENS, &limits).unwrap();
        let kernels = Kernels::compile(mutant, case.profile);
        let mut harness =
            Self { case, plan, dispatch_shape, combine_shape, kernels, machine, ranks: Vec::new() };
        for rank in 0..case.ranks {
            let made = harness.allocate(rank);
            harness.ranks.push(made);
        }
        harness
    }

    fn allocate(&mut self, rank: u32) -> Rank {
        let plan = &self.plan;
        let rows = u64::from(self.case.ranks) * u64::from(TOKENS);
        let mut make =
            |what: &str, owner, bytes| self.machine.allocate(&format!("{what}{rank}"), owner, bytes).unwrap();
        let own = Owner::Device(rank);
        let input = |epoch: usize| {
            let hidden = u64::from(plan.config().hidden);
            let word = |token: u32, k: u64, what| {
                number([u64::from(rank), epoch as u64, u64::from(token) << 8 | k, what])
            };
            let each = |count: u64| (0..TOKENS).flat_map(move |token| (0..count).map(move |k| (token, k)));
            let tokens =
                each(hidden).flat_map(|(token, k)| (word(token, k, 0) as f32 / 1024.0).to_ne_bytes());
            // A few ids are masked.
            let ids = each(2).map(|(token, k)| (word(token, k, 1) % (plan.config().experts + 1)) as i32 - 1);
            let weights = each(2).map(|(token, k)| word(token, k, 2) as f32 / 65_536.0);
            (tokens.collect(), ids.collect(), weights.collect())
        };
        let inputs: Vec<(Vec<u8>, Vec<i32>, Vec<f32>)> = (0..self.case.epochs).map(input).collect();
        let send_map = u64::from(TOKENS) * u64::from(plan.fan_out()) * 8;
        Rank {
            heap: make("heap", Owner::Shared, plan.heap_bytes()),
            bases: make("bases", own, u64::from(self.case.ranks) * 8),
            control: make("control", own, size_of::<WaitControl>() as u64),
            record: make("record", Owner::Shared, size_of::<FaultRecord>() as u64),
            own: make("slot", own, SEND_MAP + send_map),
            staged: make("staged", own, rows * u64::from(plan.combine_row_bytes())),
            inputs: inputs
                .into_iter()
                .map(|(tokens, ids, weights)| Input {
                    on_device: make("input", own, (tokens.len() + ids.len() * 4 + weights.len() * 4) as u64),
                    output: make("output", own, u64::from(TOKENS) * u64::from(plan.combine_row_bytes())),
                    tokens,
                    ids,
                    weights,
                })
                .collect(),
        }
    }

    fn put<T: Pod>(&mut self, to: Allocation, offset: u64, value: &[T]) {
        self.machine.write(to, offset, bytemuck::cast_slice(value)).unwrap();
    }

    fn get<T: Pod>(&self, from: Allocation, offset: u64, count: usize) -> Vec<T> {
        let bytes = self.machine.read(from, offset, count * size_of::<T>()).unwrap();
        bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
    }

    /// Memory as before the first operation. What starts undefined is left as the last run had it: a kernel that relies on
    /// it is wrong.
    fn reset(&mut self) {
        let bases: Vec<u64> = self.ranks.iter().map(|rank| rank.heap.address()).collect();
        for rank in 0..self.ranks.len() {
            let Rank { heap, bases: words, control, record, own, staged, .. } = self.ranks[rank];
            for zeroed in [heap, record] {
                self.machine.fill(zeroed, 0);
            }
            self.machine.fill(own, 0);
            self.machine.fill(staged, 0xcb);
            self.put(words, 0, &bases);
            let wait =
                WaitControl { abort: 0, budget_ns: BUDGET_NS, fault: at(record, 0), claimed: 0, reserved: 0 };
            self.put(control, 0, &[wait]);
            self.put(own, STATE, &[SlotState { invalid_first: u64::MAX, ..SlotState::zeroed() }]);
            for epoch in 0..self.case.epochs {
                let Input { on_device, output, .. } = self.ranks[rank].inputs[epoch];
                let input = &mut self.ranks[rank].inputs[epoch];
                let (tokens, ids, weights) = (
                    std::mem::take(&mut input.tokens),
                    std::mem::take(&mut input.ids),
                    std::mem::take(&mut input.weights),
                );
                self.machine.fill(output, 0xcb);
                self.put(on_device, 0, &tokens);
                self.put(on_device, tokens.len() as u64, &ids);
                self.put(on_device, (tokens.len() + ids.len() * 4) as u64, &weights);
                let input = &mut self.ranks[rank].inputs[epoch];
                (input.tokens, input.ids, input.weights) = (tokens, ids, weights);
            }
        }
    }

    fn launch<A: Pod>(
        &mut self,
        rank: u32,
        which: fn(&Kernels) -> &SeededKernel,
        shape: &Geometry,
        args: &A,
    ) {
        let mut bytes =
            bytemuck::bytes_of(&[shape.blocks, shape.block_threads, shape.local_bytes, 0]).to_vec();
        bytes.extend_from_slice(bytemuck::bytes_of(args));
        let launch = Shape {
            blocks: shape.blocks,
            block_threads: shape.block_threads,
            local_bytes: shape.local_bytes + LOCAL_RESERVED_BYTES,
        };
        self.machine.launch(rank, 0, which(&self.kernels), launch, &bytes).unwrap();
    }

    fn queue(&mut self, number: u32, epoch: usize) {
        let rank = &self.ranks[number as usize];
        let (plan, layout, input) = (&self.plan, *self.plan.layout(), &rank.inputs[epoch]);
        let team = TeamView {
            size: self.case.ranks,
            rank: number,
            group: 5,
            peer_bases: at(rank.bases, 0),
            control: at(rank.control, 0),
        };
        let dispatch = DispatchArgs {
            team,
            tokens: at(input.on_device, 0),
            ids: at(input.on_device, input.tokens.len() as u64),
            weights: at(input.on_device, (input.tokens.len() + input.ids.len() * 4) as u64),
            scales: DevicePointer::NULL,
            send_map: at(rank.own, SEND_MAP),
            sent: at(rank.own, SENT),
            counts: at(rank.own, COUNTS),
            offsets: at(rank.own, OFFSETS),
            state: at(rank.own, STATE),
            rows_offset: layout.rows,
            meta_offset: layout.meta,
            flags_offset: layout.dispatch_flags,
            token_count: TOKENS,
            max_tokens: TOKENS,
            top_k: 2,
            experts: plan.config().experts,
            fan_out: plan.fan_out(),
            row_bytes: plan.row_bytes(),
            meta_bytes: plan.meta_bytes(),
            scale_bytes: 0,
            parts: self.dispatch_shape.parts,
            segments: self.dispatch_shape.segments,
            flag_stride: FLAG_STRIDE,
            operation: DISPATCH.0,
        };
        let window = at(rank.heap, layout.combine_rows);
        let expert = ReferenceExpertArgs {
            rows: at(rank.heap, layout.rows),
            meta: at(rank.heap, layout.meta),
            output: if self.case.staged { at(rank.staged, 0) } else { window },
            counts: at(rank.own, COUNTS),
            ranks: self.case.ranks,
            rank: number,
            max_tokens: TOKENS,
            hidden: plan.config().hidden,
            top_k: 2,
            experts: plan.config().experts,
            meta_bytes: plan.meta_bytes(),
            reserved: 0,
        };
        let combine = CombineArgs {
            team,
            staged: if self.case.staged { at(rank.staged, 0) } else { DevicePointer::NULL },
            output: at(input.output, 0),
            send_map: at(rank.own, SEND_MAP),
            counts: at(rank.own, COUNTS),
            state: at(rank.own, STATE),
            rows_offset: layout.combine_rows,
            flags_offset: layout.combine_flags,
            token_count: TOKENS,
            max_tokens: TOKENS,
            fan_out: plan.fan_out(),
            row_bytes: plan.combine_row_bytes(),
            segments: self.combine_shape.segments,
            flag_stride: FLAG_STRIDE,
            operation: COMBINE.0,
            reserved: 0,
        };
        let (sending, summing) = (self.dispatch_shape, self.combine_shape);
        self.launch(number, |kernels| &kernels.dispatch, &sending, &dispatch);
        self.launch(number, |kernels| &kernels.expert, &Geometry { local_bytes: 0, ..summing }, &expert);
        self.launch(number, |kernels| &kernels.combine, &summing, &combine);
    }

    /// All epochs of all ranks under one seed, judged.
    pub(crate) fn run(&mut self, seed: u64) -> Result<Run, String> {
        self.reset();
        for rank in 0..self.case.ranks {
            for epoch in 0..self.case.epochs {
                self.queue(rank, epoch);
            }
        }
        let run = self.machine.run(seed).map_err(|error| error.to_string())?;
        for (number, rank) in self.ranks.iter().enumerate() {
            let record = self.get::<FaultRecord>(rank.record, 0, 1)[0];
            if record.state != 0 {
                return Err(format!("rank {number}: {record:?}"));
            }
        }
        for epoch in 0..self.case.epochs {
            self.judge(epoch)?;
        }
        Ok(run)
    }

    /// The fault records of all ranks before `absent`, which launches nothing; the counts of every dispatch must be zero.
    pub(crate) fn run_without(&mut self, absent: u32, seed: u64) -> Result<Vec<FaultRecord>, String> {
        self.reset();
        for rank in 0..absent {
            for epoch in 0..self.case.epochs {
                self.queue(rank, epoch);
            }
        }
        self.machine.run(seed).map_err(|error| error.to_string())?;
        let present = &self.ranks[..absent as usize];
        for (number, rank) in present.iter().enumerate() {
            let counts = self.get::<u32>(rank.own, COUNTS, self.ranks.len());
            if counts.iter().any(|count| *count != 0) {
                return Err(format!("rank {number} counts {counts:?} behind a fault"));
            }
        }
        Ok(present.iter().map(|rank| self.get::<FaultRecord>(rank.record, 0, 1)[0]).collect())
    }

    fn judge(&self, epoch: usize) -> Result<(), String> {
        let inputs = self.ranks.iter().map(|rank| {
            let Input { tokens, ids, weights, .. } = &rank.inputs[epoch];
            RankInput { tokens, ids, weights: Some(weights), scales: &[] }
        });
        let shape = OracleShape::new(self.plan.config(), self.case.ranks);
        let oracle = Oracle::new(shape, inputs.collect()).unwrap();
        let experts = oracle.stand_in().unwrap();
        for number in 0..self.case.ranks {
            let rank = &self.ranks[number as usize];
            let who = GroupRank::new(number);
            if epoch + 1 == self.case.epochs {
                self.judge_rows(&oracle, rank, who).map_err(|problem| format!("epoch {epoch}: {problem}"))?;
            }
            let output = self.get::<u8>(
                rank.inputs[epoch].output,
                0,
                (TOKENS * self.plan.combine_row_bytes()) as usize,
            );
            let combined = oracle.combine(who).unwrap().compare_output(&output, &experts);
            combined.map_err(|mismatch| format!("epoch {epoch}: {mismatch}"))?;
        }
        Ok(())
    }

    fn judge_rows(&self, oracle: &Oracle<'_>, rank: &Rank, who: GroupRank) -> Result<(), String> {
        let (ranks, layout) = (self.case.ranks as usize, self.plan.layout());
        let rows = ranks * TOKENS as usize;
        let words = self.plan.meta_bytes() as usize / 4;
        let meta = self.get::<u32>(rank.heap, layout.meta, rows * words);
        let field = |from: usize, count: usize| -> Vec<u32> {
            meta.chunks_exact(words).flat_map(|record| record[from..from + count].iter().copied()).collect()
        };
        let (counts, offsets) = (self.get(rank.own, COUNTS, ranks), self.get(rank.own, OFFSETS, ranks + 1));
        let weights = field(4, 2).into_iter().map(f32::from_bits).collect::<Vec<_>>();
        let row_bytes = self.plan.row_bytes() as usize;
        let seen = SlottedRows {
            counts: &counts,
            offsets: Some(&offsets),
            tokens: &field(0, 1),
            payload: &self.get::<u8>(rank.heap, layout.rows, rows * row_bytes),
            row_bytes,
            ids: &field(2, 2).into_iter().map(|id| id as i32).collect::<Vec<_>>(),
            top_k: 2,
            weights: &weights,
            scales: &[],
            scale_bytes: 0,
        };
        oracle.dispatch(who).unwrap().compare_rows(&seen).map_err(|mismatch| mismatch.to_string())
    }
}
