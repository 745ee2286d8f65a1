//! Routings that are kept: of every three dispatches the first is kept, the second has another routing, and the third goes the way of
//! the first with other rows. So rows of the compact mode come to other owners without an exchange of counts between. Weights are
//! combined too.

use anabranch_ep::args::{
    DispatchAgainArgs, DispatchArgs, FillWeightsArgs, KeepRoutingArgs, KeptRouting, RoutingHead,
};
use anabranch_ep::expert_major::args::ReceivedView;
use anabranch_hip_host::seeded::{Allocation, Owner, SeededKernel};
use anabranch_shmem::TeamView;
use bytemuck::Zeroable as _;

use super::{Ep, Given, Kernels, ScenarioError, TOP_K, at, kernels};
use crate::scenarios::bench::WAVE;

/// The kernels, and each rank's memory for a routing.
#[derive(Debug)]
pub(super) struct Replay {
    pub(super) keep: SeededKernel,
    pub(super) again: SeededKernel,
    /// Fills the weight window behind each dispatch.
    pub(super) fill: SeededKernel,
    kept: Vec<Allocation>,
}

impl Replay {
    pub(super) fn load(kernels: &mut Kernels<'_>) -> Result<Self, ScenarioError> {
        Ok(Self {
            keep: kernels.load(kernels::keep_routing(), "anabranch_ep_keep_routing")?,
            fill: kernels.load(kernels::fill_weights(), "anabranch_ep_fill_weights")?,
            // Tiles of one wave, as for the dispatch that routes.
            again: kernels
                .load(kernels::dispatch_again().with("EP_TILE", WAVE), "anabranch_ep_dispatch_again")?,
            kept: Vec::new(),
        })
    }
}

/// Whether the routing of an epoch's dispatch is kept.
pub(super) fn is_kept(epoch: u32) -> bool {
    epoch.is_multiple_of(3)
}

impl Ep {
    /// The epoch whose routing this one's dispatch has, where it routes nothing itself.
    pub(super) fn replayed_epoch(&self, epoch: u32) -> Option<u32> {
        (self.replay.is_some() && epoch % 3 == 2).then(|| epoch - 2)
    }

    /// What a rank brings to an epoch: with the ids and weights of the one that is replayed, if one is.
    pub(super) fn replayed(&self, given: Given, epoch: u32, of: impl Fn(u32) -> Given) -> Given {
        let Some(kept) = self.replayed_epoch(epoch) else { return given };
        Given { tokens: given.tokens, ..of(kept) }
    }

    pub(super) fn allocate_routing(&mut self, rank: u32) -> Result<(), ScenarioError> {
        let bytes = self.kept_parts().bytes;
        if self.replay.is_some() {
            let kept = self.bench.allocate("kept", rank, Owner::Device(rank), bytes)?;
            self.replay.iter_mut().for_each(|replay| replay.kept.push(kept));
        }
        Ok(())
    }

    fn kept_parts(&self) -> Parts {
        Parts::new(self.case.ranks, self.case.tokens, self.plan.fan_out())
    }

    fn kept(&self, rank: u32) -> KeptRouting {
        let parts = self.kept_parts();
        let memory = self.replay.as_ref().map(|replay| replay.kept[rank as usize]);
        // Only asked for where there is one.
        let memory = memory.unwrap_or(self.bench.ranks[rank as usize].own);
        KeptRouting {
            head: at(memory, 0),
            sent: at(memory, parts.sent),
            counts: at(memory, parts.counts),
            send_map: at(memory, parts.send_map),
            ids: at(memory, parts.ids),
            weights: at(memory, parts.weights),
        }
    }

    pub(super) fn keep_args(&self, team: TeamView, rank: u32) -> KeepRoutingArgs {
        let (plan, own) = (&self.plan, self.bench.ranks[rank as usize].own);
        KeepRoutingArgs {
            team,
            kept: self.kept(rank),
            send_map: at(own, self.own.send_map),
            routed: at(own, self.own.routed),
            room: at(own, self.own.room),
            counts: at(own, self.own.counts),
            state: at(own, self.own.state),
            meta_offset: plan.layout().meta,
            token_count: self.case.tokens,
            row_stride: plan.row_stride(),
            top_k: TOP_K,
            fan_out: plan.fan_out(),
            meta_bytes: plan.meta_bytes(),
            slot: 0,
        }
    }

    pub(super) fn fill_args(&self, rank: u32) -> FillWeightsArgs {
        let (plan, layout, memory) = (&self.plan, self.plan.layout(), self.bench.ranks[rank as usize]);
        let received = ReceivedView {
            meta: at(memory.heap, layout.meta),
            offsets: at(memory.own, self.own.offsets),
            ranks: self.case.ranks,
            row_stride: plan.row_stride(),
            top_k: TOP_K,
            meta_bytes: plan.meta_bytes(),
            ..ReceivedView::zeroed()
        };
        FillWeightsArgs { received, window: at(memory.heap, layout.combine_weights) }
    }

    pub(super) fn again_args(&self, dispatch: &DispatchArgs, rank: u32) -> DispatchAgainArgs {
        let kept = self.kept(rank);
        DispatchAgainArgs {
            dispatch: DispatchArgs { ids: kept.ids, weights: kept.weights, ..*dispatch },
            kept,
        }
    }
}

/// The parts of a kept routing, bytes from its start.
struct Parts {
    sent: u64,
    counts: u64,
    send_map: u64,
    ids: u64,
    weights: u64,
    bytes: u64,
}

impl Parts {
    fn new(ranks: u32, tokens: u32, fan_out: u32) -> Self {
        let sent = size_of::<RoutingHead>() as u64;
        let counts = sent + u64::from(ranks) * 4;
        let send_map = (counts + u64::from(ranks) * 4).next_multiple_of(64);
        let ids = send_map + u64::from(tokens) * u64::from(fan_out) * 8;
        let weights = ids + u64::from(tokens) * u64::from(TOP_K) * 4;
        Self {
            sent,
            counts,
            send_map,
            ids,
            weights,
            bytes: weights + u64::from(tokens) * u64::from(TOP_K) * 4,
        }
    }
}

#[cfg(test)]
mod tests {
    use anabranch_ep::DISPATCH;

    use super::super::Grid;
    use super::*;
    use crate::{Case, Protocol, RunOptions, Scenario, scratch};

    /// The phase of `dispatch_again.hip` in which another routing is told.
    const OTHER_ROUTING: u32 = 3;

    fn three(staged: bool) -> Ep {
        let jit = scratch::jit();
        let case = Case { staged, ..Case::new(Protocol::EpReplay, 3) };
        Ep::new(case.clone(), &mut Kernels::new(&jit, &case)).unwrap()
    }

    #[test]
    fn a_rank_that_does_not_come_to_the_replay_is_named_by_all_others() {
        for staged in [false, true] {
            let mut ep = three(staged);
            for seed in 0..50 {
                ep.prepare(&RunOptions::default()).unwrap();
                for rank in 0..3 {
                    for epoch in 0..if rank == 2 { 2 } else { 3 } {
                        ep.queue(rank, epoch).unwrap();
                    }
                }
                ep.bench.run_to_a_fault(seed).unwrap();
                for rank in 0..2 {
                    let record = ep.bench.record(rank).unwrap();
                    let told = (record.state, record.operation, record.peer, record.epoch, record.rank);
                    assert_eq!(told, (2, DISPATCH.0, 2, 3, rank), "seed {seed}: {record:?}");
                    let own = ep.bench.ranks[rank as usize].own;
                    let counts = ep.bench.get::<u32>(own, ep.own.counts, 3).unwrap();
                    assert_eq!(counts, [0; 3], "seed {seed}, rank {rank}: counts behind a fault");
                }
                ep.run(seed, &RunOptions::default()).unwrap();
            }
        }
    }

    /// Rank 1 keeps the second dispatch, too, and so comes with another routing than the others; or it routes anew.
    #[test]
    fn another_routing_is_told_by_all_whom_it_reaches() {
        for anew in [false, true] {
            let mut ep = three(true);
            for seed in 0..50 {
                ep.prepare(&RunOptions::default()).unwrap();
                for rank in 0..3 {
                    ep.queue(rank, 0).unwrap();
                    ep.queue(rank, 1).unwrap();
                    let (team, wrong) = (ep.bench.team(rank), rank == 1);
                    let dispatch = ep.dispatch_args(team, rank, 2);
                    let (again, keep) = (ep.again_args(&dispatch, rank), ep.keep_args(team, rank));
                    let Ep { bench, replay, sending, dispatch: routes, .. } = &mut ep;
                    let grid = Grid {
                        blocks: sending.blocks,
                        threads: sending.block_threads,
                        local_bytes: sending.local_bytes,
                    };
                    let replay = replay.as_ref().unwrap();
                    if wrong && anew {
                        bench.launch(rank, routes, grid, &dispatch).unwrap();
                        continue;
                    }
                    if wrong {
                        bench.launch(rank, &replay.keep, Grid { local_bytes: 0, ..grid }, &keep).unwrap();
                    }
                    bench.launch(rank, &replay.again, grid, &again).unwrap();
                }
                ep.bench.run_to_a_fault(seed).unwrap();
                for rank in [0, 2] {
                    let record = ep.bench.record(rank).unwrap();
                    let told = (record.operation, record.phase, record.peer, record.epoch);
                    assert_eq!(told, (DISPATCH.0, OTHER_ROUTING, 1, 3), "seed {seed}: {record:?}");
                }
            }
        }
    }
}
