//! Expert-major rows, and their judge: count and expand after a dispatch, or a dispatch that expands; then the reference experts and
//! contract.

use anabranch_conformance::ep::oracle::{Contracted, ExpertMajorDelivery, FactorExperts, Oracle};
use anabranch_conformance::ep::reference::{ReferenceExpertMajorArgs, reference_expert_major};
use anabranch_ep::expert_major::{ExpertRowSource, ExpertTable};
use anabranch_ep::simulation::{
    DispatchExpertsArgs, ExpertContractArgs, ExpertCountArgs, ExpertExpandArgs, LateWeightsArgs, ReceivedView,
};
use anabranch_ep::{DispatchCast, ExpertMajorConfig, ExpertMajorPlan, ExpertMajorRows, ScaleLayout};
use anabranch_ranks::GroupRank;
use anabranch_shmem::TeamView;
use anabranch_weakmem::SeededError;

use super::contiguous::Contiguous;
use super::{
    Allocation, Bench, Case, DataType, DevicePointer, Ep, Failure, Grid, HIDDEN, Kernels, Owner, Plan,
    ScenarioError, SeededKernel, TOP_K, WAVE, at, kernels,
};
use crate::scenarios::bench::UNTOUCHED;

/// Rows to a multiple of which an expert's rows are padded.
pub(super) const ALIGNMENT: u32 = 2;
/// Rows that a block of expand places at a time: few, so that it has several such tiles.
const TILE_ROWS: u32 = 2;

/// One rank's memory for the layout.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) plan: ExpertMajorPlan,
    layout: Allocation,
    run_counts: Allocation,
    expert_ids: Allocation,
    /// The experts' output.
    output: Allocation,
    /// The rows of all experts one after the other ([`Contiguous`]).
    pub(super) contiguous: Allocation,
}

#[derive(Debug)]
pub(super) struct Experts {
    count: SeededKernel,
    expand: SeededKernel,
    expand_contiguous: SeededKernel,
    reference: SeededKernel,
    contract: SeededKernel,
    /// Weights after a dispatch.
    late: SeededKernel,
    /// Dispatch with expand.
    dispatch: SeededKernel,
    /// Dispatch for an expand of its own.
    numbered: SeededKernel,
    memory: Vec<Memory>,
    /// Whether all ranks dispatch and expand in steps in even epochs; else they do so in odd ones.
    even_in_steps: bool,
}

impl Experts {
    /// Kernels and memory of all ranks. Some experts get more rows than they have room for.
    pub(super) fn new(
        case: &Case,
        plan: &Plan,
        bench: &mut Bench,
        kernels: &mut Kernels<'_>,
    ) -> Result<Self, ScenarioError> {
        let capacity = (case.tokens / ALIGNMENT * ALIGNMENT).max(ALIGNMENT);
        let config = ExpertMajorConfig::new().capacity(capacity).alignment(ALIGNMENT);
        let mut memory = Vec::new();
        for rank in 0..case.ranks {
            let plan = ExpertMajorPlan::new(plan, GroupRank::new(rank), config);
            let plan = plan.map_err(|error| ScenarioError::Plan(error.to_string()))?;
            let local = u64::from(plan.local_experts()) * 4;
            let mut allocate = |what, bytes| bench.allocate(what, rank, Owner::Device(rank), bytes);
            memory.push(Memory {
                layout: allocate("layout", plan.bytes())?,
                run_counts: allocate("run counts", u64::from(case.blocks) * local)?,
                expert_ids: allocate("expert ids", local)?,
                output: allocate("experts' output", plan.output_bytes())?,
                contiguous: allocate("contiguous rows", Contiguous::of(&plan).bytes())?,
                plan,
            });
        }
        let by_expert = || kernels::dispatch_experts(DataType::F32, DispatchCast::None).with("EP_TILE", WAVE);
        let reference_experts = reference_expert_major(DataType::F32, DataType::F32);
        Ok(Self {
            count: kernels.load(kernels::expert_count(), "anabranch_ep_expert_count")?,
            expand: kernels.load(kernels::expert_expand(), "anabranch_ep_expert_expand")?,
            expand_contiguous: kernels
                .load(kernels::contiguous(kernels::expert_expand()), "anabranch_ep_expert_expand")?,
            reference: kernels.load_right(reference_experts, "anabranch_ep_reference_expert_major")?,
            contract: kernels
                .load(kernels::expert_contract(DataType::F32), "anabranch_ep_expert_contract")?,
            late: kernels.load(kernels::late_weights(), "anabranch_ep_late_weights")?,
            dispatch: kernels.load(by_expert(), "anabranch_ep_dispatch_experts")?,
            numbered: kernels.load(by_expert(), "anabranch_ep_dispatch_numbered")?,
            memory,
            even_in_steps: false,
        })
    }

    /// Whether all ranks dispatch without the numbers of pairs, and expand in a kernel of its own.
    pub(super) fn is_in_steps(&self, epoch: u32) -> bool {
        epoch.is_multiple_of(2) == self.even_in_steps
    }

    /// What the seed decides.
    pub(super) fn draw(&mut self, seed: u64) {
        self.even_in_steps = seed.is_multiple_of(2);
    }

    pub(super) fn prepare(&self, bench: &mut Bench) -> Result<(), Failure> {
        for memory in &self.memory {
            bench.put(memory.expert_ids, 0, memory.plan.experts())?;
        }
        Ok(())
    }

    fn capacity(&self) -> usize {
        self.memory[0].plan.capacity() as usize
    }

    /// What experts and contracts make of the rows.
    pub(super) fn contracted<'o>(
        &self,
        oracle: &'o Oracle<'o>,
    ) -> Result<Contracted<'o, FactorExperts>, String> {
        oracle.contracted(self.capacity(), FactorExperts).map_err(|error| error.to_string())
    }

    /// The layout that a rank must have.
    pub(super) fn delivery<'o>(
        &self,
        oracle: &'o Oracle<'o>,
        who: GroupRank,
    ) -> Result<ExpertMajorDelivery<'o>, String> {
        let delivery = oracle.expert_major(who, self.capacity(), ALIGNMENT as usize);
        delivery.map_err(|error| error.to_string())
    }

    /// Rows of each expert of a rank, with their padding.
    pub(super) fn padded(delivery: &ExpertMajorDelivery<'_>) -> Vec<usize> {
        let experts = 0..delivery.experts().len();
        experts.map(|local| delivery.kept(local).len().next_multiple_of(ALIGNMENT as usize)).collect()
    }
}

impl Experts {
    /// Bytes of local memory of an expand.
    fn tables(plan: &ExpertMajorPlan) -> u32 {
        (plan.dispatch_plan().ranks() + 1) * 4 + plan.local_experts() * 8 + TILE_ROWS * TOP_K * 8
    }

    pub(super) fn expand_args(&self, received: ReceivedView) -> ExpertExpandArgs {
        let Memory { plan, layout, .. } = &self.memory[received.rank as usize];
        let places = plan.layout();
        ExpertExpandArgs {
            received,
            rows: at(*layout, places.rows),
            scales: at(*layout, places.scales),
            counts: at(*layout, places.counts),
            pairs: at(*layout, places.pairs),
            source_offsets: at(*layout, places.source_offsets),
            sources: at(*layout, places.sources),
            starts: DevicePointer::NULL,
            weights: DevicePointer::NULL,
            slot_map: at(*layout, places.slot_map),
            row_bytes: plan.dispatch_plan().row_bytes(),
            scale_bytes: 0,
            capacity: plan.capacity(),
            alignment: ALIGNMENT,
            tile_rows: TILE_ROWS,
            scale_layout: ScaleLayout::Rows as u32,
            scale_column: plan.capacity(),
            has_zeros: 1,
        }
    }

    fn contract_args(
        &self,
        received: ReceivedView,
        output: DevicePointer<u8>,
        late: DevicePointer<u32>,
    ) -> ExpertContractArgs {
        let Memory { plan, layout, output: made, .. } = &self.memory[received.rank as usize];
        ExpertContractArgs {
            received,
            slot_map: at(*layout, plan.layout().slot_map),
            experts: at(*made, 0),
            weights: DevicePointer::NULL,
            late,
            output,
            row_bytes: plan.dispatch_plan().combine_row_bytes(),
            places: 0,
            is_unweighted: 0,
            reserved: 0,
        }
    }

    fn queue_reference(&self, bench: &mut Bench, rank: u32, grid: Grid) -> Result<(), SeededError> {
        let Memory { plan, layout, expert_ids, output, .. } = &self.memory[rank as usize];
        let working = ReferenceExpertMajorArgs {
            rows: at(*layout, plan.layout().rows),
            output: at(*output, 0),
            counts: at(*layout, plan.layout().counts),
            expert_ids: at(*expert_ids, 0),
            local_experts: plan.local_experts(),
            reserved: 0,
            capacity: plan.capacity(),
            hidden: HIDDEN,
        };
        bench.launch(rank, &self.reference, grid, &working)
    }

    /// Whether a rank's dispatch expands. Rank 1 always has a kernel of its own for that.
    pub(super) fn is_in_one(&self, rank: u32, epoch: u32) -> bool {
        rank != 1 && !self.is_in_steps(epoch)
    }

    /// Queues a dispatch with the numbers of pairs, which expands but for rank 1.
    pub(super) fn queue_dispatch(
        &self,
        bench: &mut Bench,
        args: &DispatchExpertsArgs,
        sending: Grid,
    ) -> Result<(), SeededError> {
        let rank = args.experts.received.rank;
        let plan = &self.memory[rank as usize].plan;
        let (sent, waves) = (plan.dispatch_plan(), sending.threads / WAVE);
        let placing = sent.placing_local_bytes(plan.local_experts(), waves, false);
        let tables = sent.numbering_local_bytes() + if rank == 1 { 0 } else { placing };
        let local_bytes = tables as u32; // a few words
        let kernel = if rank == 1 { &self.numbered } else { &self.dispatch };
        bench.launch(rank, kernel, Grid { local_bytes, ..sending }, args)
    }

    /// Queues the kernels between a dispatch that does not expand and the experts. The rows of all experts one after the other are only judged.
    pub(super) fn queue_expand(
        &self,
        bench: &mut Bench,
        received: ReceivedView,
        grid: Grid,
    ) -> Result<(), SeededError> {
        let rank = received.rank;
        let Memory { plan, run_counts, .. } = &self.memory[rank as usize];
        let counting = ExpertCountArgs { received, run_counts: at(*run_counts, 0) };
        let (counts, tables) = (plan.local_experts() * 4, Self::tables(plan));
        bench.launch(rank, &self.count, Grid { local_bytes: counts, ..grid }, &counting)?;
        let (expanding, grid) = (self.expand_args(received), Grid { local_bytes: tables, ..grid });
        bench.launch(rank, &self.expand, grid, &expanding)?;
        let lined_up = self.memory[rank as usize].contiguous_args(&expanding);
        let grid = Grid { local_bytes: tables + (plan.local_experts() + 1) * 4, ..grid };
        bench.launch(rank, &self.expand_contiguous, grid, &lined_up)
    }

    /// Queues experts, weights after the dispatch where there are some, and contract.
    pub(super) fn queue_work(
        &self,
        bench: &mut Bench,
        received: ReceivedView,
        (output, weights): (DevicePointer<u8>, Option<(LateWeightsArgs, DevicePointer<u32>)>),
        grid: Grid,
    ) -> Result<(), SeededError> {
        let rank = received.rank;
        self.queue_reference(bench, rank, grid)?;
        let mut late = DevicePointer::NULL;
        if let Some((args, window)) = weights {
            bench.launch(rank, &self.late, grid, &args)?;
            late = window;
        }
        bench.launch(rank, &self.contract, grid, &self.contract_args(received, output, late))
    }
}

impl Ep {
    /// The weights that a rank sends after a dispatch, in two epochs of three, and its window of them.
    pub(super) fn late_weights_args(
        &self,
        team: TeamView,
        rank: u32,
        epoch: u32,
    ) -> Option<(LateWeightsArgs, DevicePointer<u32>)> {
        let (slot, tokens) = (self.slot(rank), self.tokens(rank, epoch));
        let weights = tokens.weights.filter(|_| epoch % 3 != 2)?;
        let args = self.arguments(team).late_weights(&slot, self.case.tokens, weights, self.mask_view(rank));
        Some((args, DevicePointer::new(slot.late_weights())))
    }

    /// What a dispatch delivered to a rank.
    pub(super) fn received(&self, rank: u32) -> ReceivedView {
        let (plan, layout, memory) = (&self.plan, self.plan.layout(), self.bench.ranks[rank as usize]);
        let experts = plan.placement().range(GroupRank::new(rank));
        ReceivedView {
            placement: self.placement(),
            local_numbers: DevicePointer::NULL,
            rows: at(memory.heap, layout.rows),
            meta: at(memory.heap, layout.meta),
            offsets: at(memory.own, self.own.offsets),
            ranks: self.case.ranks,
            row_stride: plan.row_stride(),
            top_k: TOP_K,
            meta_bytes: plan.meta_bytes(),
            first_expert: experts.start,
            local_experts: experts.end - experts.start,
            rank,
            reserved: 0,
        }
    }

    /// The layout of a rank as the last expand left it.
    pub(super) fn judge_layout(
        &self,
        experts: &Experts,
        oracle: &Oracle<'_>,
        who: GroupRank,
    ) -> Result<(), String> {
        let get = |error: SeededError| error.to_string();
        let Memory { plan, layout, .. } = &experts.memory[who.index()];
        let (places, local) = (plan.layout(), plan.local_experts() as usize);
        let words = |place, count| self.bench.get::<u32>(*layout, place, count).map_err(get);
        let mut seen = ExpertMajorRows {
            counts: words(places.counts, local)?,
            pairs: words(places.pairs, local)?,
            source_offsets: words(places.source_offsets, local * (self.case.ranks as usize + 1))?,
            slot_map: words(places.slot_map, self.plan.rows() as usize * TOP_K as usize)?,
            experts: Vec::new(),
        };
        let (capacity, row) = (plan.capacity() as usize, self.plan.row_bytes() as usize);
        let record = size_of::<ExpertRowSource>();
        for (expert, count) in seen.counts.iter().enumerate() {
            // A wrong count is reported below.
            let rows = (*count as usize).min(capacity).next_multiple_of(ALIGNMENT as usize);
            let first = expert * capacity;
            let sources = self.bench.get(*layout, places.sources + (first * record) as u64, rows);
            let payload = self.bench.get(*layout, places.rows + (first * row) as u64, rows * row);
            seen.experts.push(ExpertTable {
                sources: sources.map_err(get)?,
                rows: payload.map_err(get)?,
                scales: Vec::new(),
            });
        }
        let delivered =
            experts.delivery(oracle, who)?.compare(&seen).map_err(|mismatch| mismatch.to_string());
        delivered?;
        if experts.is_in_one(who.get(), self.case.rounds - 1) {
            return Ok(());
        }
        self.judge_contiguous(&experts.memory[who.index()], &seen)
    }

    /// Rows after the last that an expert of the rank ever had are as they were.
    pub(super) fn judge_past_experts(
        &self,
        experts: &Experts,
        rank: usize,
        most: &[usize],
    ) -> Result<(), String> {
        let Memory { plan, layout, .. } = &experts.memory[rank];
        let places = plan.layout();
        let capacity = plan.capacity() as usize;
        let widths =
            [(places.rows, self.plan.row_bytes() as usize), (places.sources, size_of::<ExpertRowSource>())];
        for (expert, rows) in most.iter().enumerate() {
            for (place, width) in widths {
                let from = place + ((expert * capacity + rows) * width) as u64;
                let rest = self.bench.get::<u8>(*layout, from, (capacity - rows) * width);
                if rest.map_err(|error| error.to_string())?.iter().any(|byte| *byte != UNTOUCHED) {
                    return Err(format!("the layout was written after row {rows} of expert {expert}"));
                }
            }
        }
        Ok(())
    }
}
