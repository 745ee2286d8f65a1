//! Routings that are kept: of every three dispatches the first is kept, the second has another routing, and the third goes the way of
//! the first with other rows. So rows of the compact mode come to other owners without an exchange of counts between. Weights are
//! combined too.

use anabranch_ep::Tokens;
use anabranch_ep::simulation::{DispatchReplayArgs, SaveRoutingArgs, SavedRouting};
use anabranch_shmem::TeamView;
use anabranch_weakmem::{Allocation, Owner, SeededKernel};

use super::{DeviceAddress, DeviceSlice, Ep, Given, Kernels, ScenarioError, TOP_K, kernels};
use crate::scenarios::bench::WAVE;

/// The kernels, and each rank's memory for a routing.
#[derive(Debug)]
pub(super) struct Replay {
    pub(super) save: SeededKernel,
    pub(super) dispatch: SeededKernel,
    /// Fills the weight window after each dispatch.
    pub(super) fill: SeededKernel,
    saved: Vec<Allocation>,
}

impl Replay {
    pub(super) fn load(kernels: &mut Kernels<'_>) -> Result<Self, ScenarioError> {
        Ok(Self {
            save: kernels.load(kernels::save_routing(), "anabranch_ep_save_routing")?,
            fill: kernels.load(kernels::fill_weights(), "anabranch_ep_fill_weights")?,
            // Tiles of one wave, as for the dispatch that routes.
            dispatch: kernels
                .load(kernels::dispatch_replay().with("EP_TILE", WAVE), "anabranch_ep_dispatch_replay")?,
            saved: Vec::new(),
        })
    }
}

/// Whether the routing of an epoch's dispatch is kept.
pub(super) fn is_saved(epoch: u32) -> bool {
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
        if self.replay.is_some() {
            let bytes = SavedRouting::bytes(&self.plan);
            let saved = self.bench.allocate("saved", rank, Owner::Device(rank), bytes)?;
            self.replay.iter_mut().for_each(|replay| replay.saved.push(saved));
        }
        Ok(())
    }

    fn saved(&self, rank: u32) -> SavedRouting {
        let memory = self.replay.as_ref().map(|replay| replay.saved[rank as usize]);
        // Only used where there is one.
        let memory = memory.unwrap_or(self.bench.ranks[rank as usize].own);
        SavedRouting::new(&self.plan, DeviceAddress(memory.address()))
    }

    pub(super) fn save_args(&self, team: TeamView, rank: u32) -> SaveRoutingArgs {
        self.arguments(team).save(&self.slot(rank), self.case.tokens, self.saved(rank))
    }

    pub(super) fn replay_args(&self, team: TeamView, rank: u32, epoch: u32) -> DispatchReplayArgs {
        let saved = self.saved(rank);
        let bytes = (self.case.tokens * TOP_K * 4) as usize;
        // SAFETY: simulated kernels alone use the address; the allocation has these bytes.
        let ids = unsafe { DeviceSlice::from_raw(saved.ids.address(), bytes) };
        let tokens = Tokens { ids, weights: None, ..self.tokens(rank, epoch) };
        let (slot, mask) = (self.slot(rank), self.mask_view(rank));
        self.arguments(team).replay(&slot, &tokens, &self.sending, mask, saved)
    }
}

#[cfg(test)]
mod tests {
    use anabranch_ep::DISPATCH;

    use super::super::Grid;
    use super::*;
    use crate::{Case, Protocol, RunOptions, Scenario, scratch};

    /// The phase of `dispatch_replay.hip` that reports another routing.
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
                    let found = (record.state, record.operation, record.peer, record.epoch, record.rank);
                    assert_eq!(found, (2, DISPATCH.0, 2, 3, rank), "seed {seed}: {record:?}");
                    let own = ep.bench.ranks[rank as usize].own;
                    let counts = ep.bench.get::<u32>(own, ep.own.counts, 3).unwrap();
                    assert_eq!(counts, [0; 3], "seed {seed}, rank {rank}: counts after a fault");
                }
                ep.run(seed, &RunOptions::default()).unwrap();
            }
        }
    }

    /// Rank 1 keeps the second dispatch, too, and so comes with another routing than the others; or it dispatches without one.
    #[test]
    fn another_routing_is_reported_by_every_rank_it_reaches() {
        for anew in [false, true] {
            let mut ep = three(true);
            for seed in 0..50 {
                ep.prepare(&RunOptions::default()).unwrap();
                for rank in 0..3 {
                    ep.queue(rank, 0).unwrap();
                    ep.queue(rank, 1).unwrap();
                    let (team, wrong) = (ep.bench.team(rank), rank == 1);
                    let dispatch = ep.dispatch_args(team, rank, 2);
                    let (again, save) = (ep.replay_args(team, rank, 2), ep.save_args(team, rank));
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
                        bench.launch(rank, &replay.save, Grid { local_bytes: 0, ..grid }, &save).unwrap();
                    }
                    bench.launch(rank, &replay.dispatch, grid, &again).unwrap();
                }
                ep.bench.run_to_a_fault(seed).unwrap();
                for rank in [0, 2] {
                    let record = ep.bench.record(rank).unwrap();
                    let found = (record.operation, record.phase, record.peer, record.epoch);
                    assert_eq!(found, (DISPATCH.0, OTHER_ROUTING, 1, 3), "seed {seed}: {record:?}");
                }
            }
        }
    }
}
