//! Dispatch, the reference expert and combine: what `ExpertParallel` does for one slot, without a world. Staged, the combine
//! that pushes. Of `ep-experts`, the experts work on expert-major rows.

mod contiguous;
mod experts;
pub(super) mod given;
mod judge;
mod mask;
mod nodes;
mod push;
mod replay;

use anabranch_conformance::ep::reference::{ReferenceExpertArgs, reference_expert};
use anabranch_ep::plan::{DeviceLimits, Geometry, Plan};
use anabranch_ep::simulation::{
    CombineArgs, CombinePushArgs, DispatchArgs, NodesView, PlacementView, Push, RankArguments, RankMask,
    SlotAddresses, SlotState,
};
use anabranch_ep::{
    CombineCodec, CombineOutput, CombineSource, DataType, DeviceSlice, EpConfig, EpShape, Mode, Tokens,
    kernels,
};
use anabranch_hip::DeviceAddress;
use anabranch_hip_jit::DevicePointer;
use anabranch_ranks::GroupRank;
use anabranch_shmem::TeamView;
use anabranch_weakmem::{Allocation, Owner, SeededKernel};
use bytemuck::Zeroable as _;

use super::bench::{Bench, Grid, Kernels, OnBench, WAVE, at};
use crate::{Case, Failure, Outcome, Protocol, RunOptions, ScenarioError};
use experts::Experts;
use given::{Given, HIDDEN, TOP_K};
use nodes::NodeKernels;
use push::Part;
use replay::Replay;

/// What one rank brings to one epoch, on the host and on its device.
#[derive(Debug)]
struct Input {
    tokens: Vec<u8>,
    ids: Vec<i32>,
    weights: Vec<f32>,
    on_device: Allocation,
    output: Allocation,
    /// Combined weights, where they are wanted.
    summed: Allocation,
}

/// One rank's memory, beside the bench's.
#[derive(Debug)]
struct Memory {
    staged: Allocation,
    inputs: Vec<Input>,
}

/// The parts of a rank's own memory, bytes from its start: the slot's, then what plans with masks or nodes have.
#[derive(Clone, Copy, Debug)]
struct Own {
    state: u64,
    tally: u64,
    counts: u64,
    offsets: u64,
    settled: u64,
    mask: u64,
    nodes: u64,
    bytes: u64,
}

impl Own {
    fn new(plan: &Plan) -> Self {
        let start = Bench::own_start(plan.ranks());
        let slot = SlotAddresses::new(plan, 0, (DeviceAddress::NULL, 0), DeviceAddress(start));
        let settled = slot.settled().0;
        let mask = start + SlotAddresses::own_bytes(plan);
        let nodes = mask + u64::from(plan.ranks()) * size_of::<RankMask>() as u64;
        let table = NodesView::table(plan, GroupRank::new(0)).len() as u64 * 4;
        Self {
            state: slot.state().0,
            tally: slot.tally().0,
            counts: slot.counts().0,
            offsets: slot.offsets().0,
            settled,
            mask,
            nodes,
            bytes: nodes + table - start,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Ep {
    case: Case,
    plan: Plan,
    own: Own,
    counting: Geometry,
    sending: Geometry,
    summing: Geometry,
    limits: DeviceLimits,
    bench: Bench,
    memory: Vec<Memory>,
    /// Of the compact mode.
    count: Option<SeededKernel>,
    dispatch: SeededKernel,
    expert: SeededKernel,
    combine: SeededKernel,
    /// Of ranks that do them in two.
    halves: Option<Halves>,
    /// Of experts that work on expert-major rows.
    experts: Option<Experts>,
    /// Of dispatches whose routing is kept.
    replay: Option<Replay>,
    /// Of ranks on several nodes.
    nodes: Option<NodeKernels>,
}

/// Dispatch and combine, each in two.
#[derive(Debug)]
struct Halves {
    send: SeededKernel,
    recv: SeededKernel,
    offer: SeededKernel,
    sum: SeededKernel,
}

impl Halves {
    fn load(kernels: &mut Kernels<'_>, staged: bool) -> Result<Self, ScenarioError> {
        let dispatch = || kernels::dispatch().with("EP_TILE", WAVE);
        Ok(Self {
            send: kernels.load(dispatch(), "anabranch_ep_dispatch_send")?,
            recv: kernels.load(dispatch(), "anabranch_ep_dispatch_recv")?,
            offer: push::load(kernels, (staged, false, false), Part::Send)?,
            sum: push::load(kernels, (staged, false, false), Part::Receive)?,
        })
    }
}

impl Ep {
    pub(crate) fn new(case: Case, kernels: &mut Kernels<'_>) -> Result<Self, ScenarioError> {
        let refused = |error: anabranch_ep::Error| ScenarioError::Plan(error.to_string());
        let replays = case.protocol == Protocol::EpReplay;
        let config = EpConfig::new(EpShape {
            hidden: HIDDEN,
            experts: case.ranks * 2,
            top_k: TOP_K,
            max_tokens: case.tokens,
        })
        .dispatch_type(DataType::F32)
        .combine_type(DataType::F32)
        .combine_source(if case.staged { CombineSource::Buffer } else { CombineSource::Window })
        .combine_weights(replays)
        .late_weights(case.protocol == Protocol::EpExperts)
        .launch(case.blocks, case.waves);
        let masks = case.protocol == Protocol::EpMask;
        let config = if masks { config.on_timeout(mask::on_timeout()) } else { config };
        let config = match nodes::way(case.protocol) {
            Some(way) => config.nodes(nodes::map(case.ranks)).across(way),
            None => config,
        };
        let compact = case.protocol == Protocol::EpCompact || replays && !case.staged;
        let config = if compact {
            config.mode(Mode::Compact).max_recv((case.ranks * case.tokens / 2).max(case.ranks))
        } else {
            config.mode(Mode::Slotted)
        };
        let plan = Plan::new(config, case.ranks).map_err(refused)?;
        let limits = DeviceLimits {
            wave_size: WAVE,
            resident_blocks: case.blocks,
            multiprocessors: case.blocks,
            preferred_waves: case.waves,
            local_bytes: 60_000,
        };
        // Tokens are few: as many blocks as others have.
        let counting = Geometry { blocks: case.blocks, ..plan.count_geometry(case.tokens, &limits) };
        let sending = plan.dispatch_geometry(case.tokens, &limits).map_err(refused)?;
        let summing = if case.staged {
            plan.combine_push_geometry(case.tokens, &limits)
        } else {
            plan.combine_geometry(case.tokens, &limits)
        };
        let own = Own::new(&plan);
        let lanes = |shape: &Geometry| shape.blocks * shape.block_threads;
        let lanes = case.ranks * lanes(&sending).max(lanes(&summing)).max(lanes(&counting));
        let bench = Bench::new(&case, lanes, plan.heap_bytes(), own.bytes)?;
        let expert = reference_expert(DataType::F32, DataType::F32);
        let dispatch = if masks { kernels::masking(kernels::dispatch()) } else { kernels::dispatch() };
        let mut ep = Self {
            count: if compact { Some(kernels.load(kernels::count(), "anabranch_ep_count")?) } else { None },
            // Tiles of one wave, so that few tokens are several tiles; of two where a block has many tokens, so that a tile is
            // routed in several steps. The plan's local memory is for larger ones.
            dispatch: kernels.load(
                dispatch.with("EP_TILE", if case.blocks == 1 { 2 * WAVE } else { WAVE }),
                "anabranch_ep_dispatch",
            )?,
            expert: kernels.load_right(expert, "anabranch_ep_reference_expert")?,
            combine: push::load(kernels, (case.staged, replays, masks), Part::Whole)?,
            halves: if case.protocol == Protocol::EpSplit {
                Some(Halves::load(kernels, case.staged)?)
            } else {
                None
            },
            experts: None,
            replay: if replays { Some(Replay::load(kernels)?) } else { None },
            nodes: if nodes::way(case.protocol).is_some() {
                Some(NodeKernels::load(kernels, &case)?)
            } else {
                None
            },
            limits,
            case,
            plan,
            own,
            counting,
            sending,
            summing,
            bench,
            memory: Vec::new(),
        };
        for rank in 0..ep.case.ranks {
            let made = ep.allocate(rank)?;
            ep.memory.push(made);
            ep.allocate_routing(rank)?;
        }
        if ep.case.protocol == Protocol::EpExperts {
            ep.experts = Some(Experts::new(&ep.case, &ep.plan, &mut ep.bench, kernels)?);
        }
        Ok(ep)
    }

    fn allocate(&mut self, rank: u32) -> Result<Memory, ScenarioError> {
        let owner = Owner::Device(rank);
        let (tokens, combined) = (self.case.tokens, u64::from(self.plan.combine_row_bytes()));
        let staged = self.bench.allocate("staged", rank, owner, self.plan.rows() * combined)?;
        let mut inputs = Vec::new();
        for epoch in 0..self.case.rounds {
            let given = |epoch| Given::new(rank, epoch, tokens, self.plan.config().experts);
            let Given { tokens: payload, ids, weights } = self.replayed(given(epoch), epoch, given);
            let bytes = payload.len() + ids.len() * 4 + weights.len() * 4;
            inputs.push(Input {
                on_device: self.bench.allocate("input", rank, owner, bytes as u64)?,
                output: self.bench.allocate("output", rank, owner, u64::from(tokens) * combined)?,
                summed: self.bench.allocate("summed", rank, owner, u64::from(tokens * TOP_K) * 4)?,
                tokens: payload,
                ids,
                weights,
            });
        }
        Ok(Memory { staged, inputs })
    }

    fn prepare(&mut self, options: &RunOptions) -> Result<(), Failure> {
        self.bench.reset(options)?;
        for (rank, memory) in self.bench.ranks.clone().into_iter().zip(&self.memory) {
            self.bench.put(rank.own, self.own.state, &[SlotState::fresh()])?;
            let ranks = self.case.ranks as usize;
            self.bench.put(rank.own, self.own.tally, &vec![0_u32; ranks])?;
            self.bench.put(rank.own, self.own.mask, &vec![RankMask::zeroed(); ranks])?;
            if self.masks() {
                self.bench.put(rank.own, self.own.settled, &vec![0_u64; ranks])?;
            }
            for Input { tokens, ids, weights, on_device, .. } in &memory.inputs {
                self.bench.put(*on_device, 0, tokens)?;
                self.bench.put(*on_device, tokens.len() as u64, ids)?;
                self.bench.put(*on_device, (tokens.len() + ids.len() * 4) as u64, weights)?;
            }
        }
        for rank in 0..self.case.ranks {
            self.prepare_nodes(rank)?;
        }
        if let Some(experts) = &self.experts {
            experts.prepare(&mut self.bench)?;
        }
        Ok(())
    }

    fn queue(&mut self, rank: u32, epoch: u32) -> Result<(), Failure> {
        let grid = |shape: &Geometry, local_bytes| Grid {
            blocks: shape.blocks,
            threads: shape.block_threads,
            local_bytes,
        };
        let sending = grid(&self.sending, self.sending.local_bytes);
        let summing = grid(&self.summing, self.summing.local_bytes);
        if self.nodes.is_some() {
            return self.queue_nodes(rank, epoch, sending, summing);
        }
        let team = self.bench.team(rank);
        let dispatch = self.dispatch_args(team, rank, epoch);
        let combine = self.way(team, rank, epoch, Part::Whole);
        let replays = self.replayed_epoch(epoch).is_some();
        if let Some(count) = self.count.as_ref().filter(|_| !replays) {
            let counting = grid(&self.counting, self.counting.local_bytes);
            let args = self.arguments(team).count(&self.slot(rank), &self.tokens(rank, epoch));
            self.bench.launch(rank, count, counting, &args)?;
        }
        let working = Grid { local_bytes: 0, ..summing };
        let (received, expert) = (self.received(rank), self.expert_args(rank));
        match &self.halves {
            Some(halves) if rank % 2 == 1 => {
                let one = Grid { blocks: 1, ..sending };
                let receive = self.receive_args(team, rank);
                let [offer, sum] = [Part::Send, Part::Receive].map(|part| self.way(team, rank, epoch, part));
                // Rows in the window need one block that reports them.
                let offering = if self.case.staged { summing } else { Grid { blocks: 1, ..summing } };
                self.bench.launch(rank, &halves.send, sending, &dispatch)?;
                self.bench.launch(rank, &halves.recv, one, &receive)?;
                self.bench.launch(rank, &self.expert, working, &self.expert_args(rank))?;
                offer.launch(&mut self.bench, rank, &halves.offer, offering)?;
                sum.launch(&mut self.bench, rank, &halves.sum, summing)?;
            }
            _ => {
                match (&self.replay, &self.experts) {
                    (Some(replay), _) if replays => {
                        let args = self.replay_args(team, rank, epoch);
                        self.bench.launch(rank, &replay.dispatch, sending, &args)?;
                    }
                    (_, Some(experts)) if !experts.is_in_steps(epoch) => {
                        let expand = experts.expand_args(received);
                        let args = self.arguments(team).dispatch_experts(&self.slot(rank), dispatch, expand);
                        experts.queue_dispatch(&mut self.bench, &args, sending)?;
                        if !experts.is_in_one(rank, epoch) {
                            experts.queue_expand(&mut self.bench, received, working)?;
                        }
                    }
                    (_, experts) => {
                        self.bench.launch(rank, &self.dispatch, sending, &dispatch)?;
                        if let Some(experts) = experts {
                            experts.queue_expand(&mut self.bench, received, working)?;
                        }
                    }
                }
                if let Some(replay) = &self.replay {
                    let (save, fill) =
                        (self.save_args(team, rank), self.arguments(team).fill(&self.slot(rank)));
                    self.bench.launch(rank, &replay.fill, working, &fill)?;
                    if replay::is_saved(epoch) {
                        self.bench.launch(rank, &replay.save, working, &save)?;
                    }
                }
                match &self.experts {
                    Some(experts) => {
                        let late = self.late_weights_args(team, rank, epoch);
                        experts.queue_work(&mut self.bench, received, (expert.output, late), working)?;
                    }
                    None => self.bench.launch(rank, &self.expert, working, &expert)?,
                }
                combine.launch(&mut self.bench, rank, &self.combine, summing)?;
            }
        }
        Ok(())
    }

    fn placement(&self) -> PlacementView {
        PlacementView::even(self.plan.config().experts, self.case.ranks)
    }

    fn slot(&self, rank: u32) -> SlotAddresses {
        let memory = self.bench.ranks[rank as usize];
        let own = memory.own.address() + Bench::own_start(self.case.ranks);
        SlotAddresses::new(&self.plan, 0, (DeviceAddress(memory.heap.address()), 0), DeviceAddress(own))
    }

    /// What the product makes all arguments of.
    fn arguments(&self, team: TeamView) -> RankArguments<'_> {
        RankArguments { plan: &self.plan, limits: &self.limits, team, placement: self.placement() }
    }

    fn tokens(&self, rank: u32, epoch: u32) -> Tokens {
        let input = &self.memory[rank as usize].inputs[epoch as usize];
        let (rows, ids, weights) = (input.tokens.len(), input.ids.len() * 4, input.weights.len() * 4);
        let part = |offset: usize, bytes| slice(input.on_device, offset as u64, bytes);
        Tokens {
            count: self.case.tokens as usize,
            data_type: DataType::F32,
            rows: part(0, rows),
            ids: part(rows, ids),
            weights: Some(part(rows + ids, weights)),
            scales: None,
            device_count: None,
        }
    }

    fn output(&self, rank: u32, epoch: u32) -> CombineOutput {
        let Input { output, summed, tokens, weights, .. } =
            &self.memory[rank as usize].inputs[epoch as usize];
        let summed = self.plan.config().combine_weights.then(|| slice(*summed, 0, weights.len() * 4));
        CombineOutput { rows: slice(*output, 0, tokens.len()), weights: summed }
    }

    fn dispatch_args(&self, team: TeamView, rank: u32, epoch: u32) -> DispatchArgs {
        let tokens = self.tokens(rank, epoch);
        let (slot, mask) = (self.slot(rank), self.mask_view(rank));
        self.arguments(team).dispatch(&slot, Some(&tokens), self.case.tokens, &self.sending, mask)
    }

    fn receive_args(&self, team: TeamView, rank: u32) -> DispatchArgs {
        let geometry = self.plan.receive_geometry(&self.limits);
        let (slot, mask) = (self.slot(rank), self.mask_view(rank));
        self.arguments(team).dispatch(&slot, None, self.case.tokens, &geometry, mask)
    }

    fn expert_args(&self, rank: u32) -> ReferenceExpertArgs {
        let (plan, layout, memory) = (&self.plan, self.plan.layout(), self.bench.ranks[rank as usize]);
        let staged = self.memory[rank as usize].staged;
        ReferenceExpertArgs {
            starts: DevicePointer::NULL,
            owners: DevicePointer::NULL,
            rows: at(memory.heap, layout.rows),
            meta: at(memory.heap, layout.meta),
            output: if self.case.staged { at(staged, 0) } else { at(memory.heap, layout.combine_rows) },
            counts: at(memory.own, self.own.counts),
            offsets: at(memory.own, self.own.offsets),
            ranks: self.case.ranks,
            rank,
            row_stride: self.plan.row_stride(),
            hidden: HIDDEN,
            top_k: TOP_K,
            experts: plan.config().experts,
            meta_bytes: plan.meta_bytes(),
            reserved: 0,
        }
    }
}

/// A part of a rank's memory, as calls take it.
fn slice(allocation: Allocation, offset: u64, bytes: usize) -> DeviceSlice {
    // SAFETY: the allocation lives as long as the bench, and only simulated kernels use the address.
    unsafe { DeviceSlice::from_raw(DeviceAddress(allocation.address() + offset), bytes) }
}

impl OnBench for Ep {
    fn case(&self) -> &Case {
        &self.case
    }

    fn bench(&self) -> &Bench {
        &self.bench
    }

    fn run_and_judge(&mut self, seed: u64, options: &RunOptions) -> Result<Outcome, Failure> {
        self.prepare(options)?;
        if let Some(experts) = &mut self.experts {
            experts.draw(seed);
        }
        for rank in 0..self.case.ranks {
            for epoch in 0..self.case.rounds {
                self.queue(rank, epoch)?;
            }
        }
        let run = self.bench.run(seed)?;
        self.judge()?;
        Ok(Outcome { run })
    }
}

#[cfg(test)]
mod tests;
