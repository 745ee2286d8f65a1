//! Expert-major rows between dispatch and combine: count, expand, the reference experts, contract; and their judge.

use anabranch_conformance::ep::oracle::{Contracted, ExpertMajorDelivery, FactorExperts, Oracle};
use anabranch_conformance::ep::reference::{ReferenceExpertMajorArgs, reference_expert_major};
use anabranch_ep::expert_major::{ExpertRowSource, ExpertTable};
use anabranch_ep::simulation::{ExpertContractArgs, ExpertCountArgs, ExpertExpandArgs, ReceivedView};
use anabranch_ep::{ExpertMajorConfig, ExpertMajorPlan, ExpertMajorRows};
use anabranch_ranks::GroupRank;
use anabranch_weakmem::SeededError;

use super::{
    Allocation, Bench, Case, DataType, DevicePointer, Ep, Failure, Grid, HIDDEN, Kernels, Owner, Plan,
    ScenarioError, SeededKernel, TOP_K, at, kernels,
};
use crate::scenarios::bench::UNTOUCHED;

/// Rows to a multiple of which an expert's rows are padded.
const ALIGNMENT: u32 = 2;
/// Rows that a block of expand places at a time: few, so that it has several such tiles.
const TILE_ROWS: u32 = 2;

/// One rank's memory for the layout.
#[derive(Debug)]
struct Memory {
    plan: ExpertMajorPlan,
    layout: Allocation,
    run_counts: Allocation,
    expert_ids: Allocation,
    /// The experts' output.
    output: Allocation,
}

#[derive(Debug)]
pub(super) struct Experts {
    count: SeededKernel,
    expand: SeededKernel,
    reference: SeededKernel,
    contract: SeededKernel,
    memory: Vec<Memory>,
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
                plan,
            });
        }
        let reference_experts = reference_expert_major(DataType::F32, DataType::F32);
        Ok(Self {
            count: kernels.load(kernels::expert_count(), "anabranch_ep_expert_count")?,
            expand: kernels.load(kernels::expert_expand(), "anabranch_ep_expert_expand")?,
            reference: kernels.load_right(reference_experts, "anabranch_ep_reference_expert_major")?,
            contract: kernels
                .load(kernels::expert_contract(DataType::F32), "anabranch_ep_expert_contract")?,
            memory,
        })
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

impl Ep {
    /// Queues the kernels between dispatch and combine.
    pub(super) fn queue_experts(
        bench: &mut Bench,
        experts: &Experts,
        rank: u32,
        received: ReceivedView,
        output: DevicePointer<u8>,
        grid: Grid,
    ) -> Result<(), SeededError> {
        let Memory { plan, layout, run_counts, expert_ids, output: made } = &experts.memory[rank as usize];
        let places = plan.layout();
        let local_experts = plan.local_experts();
        let counting = ExpertCountArgs { received, run_counts: at(*run_counts, 0) };
        let expanding = ExpertExpandArgs {
            received,
            run_counts: at(*run_counts, 0),
            rows: at(*layout, places.rows),
            scales: at(*layout, places.scales),
            counts: at(*layout, places.counts),
            pairs: at(*layout, places.pairs),
            source_offsets: at(*layout, places.source_offsets),
            sources: at(*layout, places.sources),
            slot_map: at(*layout, places.slot_map),
            row_bytes: plan.dispatch_plan().row_bytes(),
            scale_bytes: 0,
            capacity: plan.capacity(),
            alignment: ALIGNMENT,
            tile_rows: TILE_ROWS,
            reserved: 0,
        };
        let working = ReferenceExpertMajorArgs {
            rows: at(*layout, places.rows),
            output: at(*made, 0),
            counts: at(*layout, places.counts),
            expert_ids: at(*expert_ids, 0),
            local_experts,
            reserved: 0,
            capacity: plan.capacity(),
            hidden: HIDDEN,
        };
        let contracting = ExpertContractArgs {
            received,
            slot_map: at(*layout, places.slot_map),
            experts: at(*made, 0),
            output,
            row_bytes: plan.dispatch_plan().combine_row_bytes(),
            reserved: 0,
        };
        let tables = local_experts * 8 + TILE_ROWS * TOP_K * 8;
        bench.launch(rank, &experts.count, Grid { local_bytes: local_experts * 4, ..grid }, &counting)?;
        bench.launch(rank, &experts.expand, Grid { local_bytes: tables, ..grid }, &expanding)?;
        bench.launch(rank, &experts.reference, grid, &working)?;
        bench.launch(rank, &experts.contract, grid, &contracting)
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
        experts.delivery(oracle, who)?.compare(&seen).map_err(|mismatch| mismatch.to_string())
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
