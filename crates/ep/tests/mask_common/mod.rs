//! Rounds without some ranks, judged by an oracle that leaves them out.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

use std::time::Duration;

use anabranch_conformance::ep::oracle::{Oracle, RankInput, Shape};
use anabranch_conformance::ep::reference::ReferenceExpert;
use anabranch_ep::{Dispatched, Error, ExpertParallel, MaskCause, MaskedRank, OnTimeout};
use anabranch_hip::Stream;
use anabranch_ranks::GroupRank;
use anabranch_shmem::World;

use crate::common::{
    Case, Input, Uploaded, judge_dropped, judge_output, judge_rows, judge_weights, round, run_expert,
    window_bytes,
};

/// Long beside the pauses of a busy machine, short beside the deadline of a test's operations.
pub const PATIENCE: Duration = Duration::from_secs(4);
pub const LIMIT: Duration = Duration::from_secs(60);

/// A case whose plan masks.
pub fn masking(ranks: u32, wave: u32) -> Case {
    let mut case = Case::new(ranks, wave);
    case.config = case.config.on_timeout(OnTimeout::Mask { patience: PATIENCE });
    case
}

pub fn group_ranks(ranks: &[u32]) -> Vec<GroupRank> {
    ranks.iter().copied().map(GroupRank::new).collect()
}

/// All ranks of the case but these.
pub fn others(case: &Case, ranks: &[u32]) -> Vec<u32> {
    (0..case.ranks).filter(|rank| !ranks.contains(rank)).collect()
}

pub fn oracle_without<'a>(case: &Case, inputs: &'a [Input], masked: &[u32]) -> Oracle<'a> {
    let given = inputs.iter().map(|input| RankInput {
        tokens: &input.tokens,
        ids: &input.ids,
        weights: Some(&input.weights),
        scales: &input.scales,
    });
    Oracle::without(Shape::new(&case.config, case.ranks), given.collect(), &group_ranks(masked)).unwrap()
}

/// One rank's plan and what it works with.
pub struct Rank<'w> {
    pub world: &'w World,
    pub ep: ExpertParallel,
    pub expert: ReferenceExpert,
    pub stream: Stream,
    pub case: Case,
}

impl<'w> Rank<'w> {
    pub fn new(world: &'w World, case: &Case) -> Result<Self, Error> {
        let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
        let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
        Ok(Self { world, ep, expert, stream: world.device().create_stream()?, case: case.clone() })
    }

    pub fn me(&self) -> u32 {
        self.ep.rank().get()
    }

    pub fn meet(&self, step: &str) -> Result<(), Error> {
        Ok(self.world.barrier(self.world.group(), step)?)
    }

    /// An ordinary round with everybody.
    pub fn round(&self, number: u64) -> Result<(), Error> {
        round(&self.ep, &self.expert, &self.stream, self.world, &self.case, number)
    }

    pub fn dispatch(&self, number: u64) -> Result<(Uploaded, Dispatched), Error> {
        let uploaded =
            Uploaded::new(self.world.device(), &self.case.config, &self.case.input(self.me(), number));
        let dispatched = self.ep.dispatch(&self.stream, &uploaded.tokens(&self.case.config))?;
        self.world.synchronize(&self.stream)?;
        Ok((uploaded, dispatched))
    }

    /// The reference expert and the combine; the output is as if `masked` were not there.
    pub fn combine(&self, number: u64, held: (Uploaded, Dispatched), masked: &[u32]) -> Result<(), Error> {
        let uploaded = self.launch_combine(held)?;
        self.judge_output(number, &uploaded, masked);
        Ok(())
    }

    /// The same, as if those were not there that this rank masks after it.
    pub fn combine_any(&self, number: u64, held: (Uploaded, Dispatched)) -> Result<(), Error> {
        let uploaded = self.launch_combine(held)?;
        let masked: Vec<_> = self.masked()?.into_iter().map(|one| one.rank.get()).collect();
        self.judge_output(number, &uploaded, &masked);
        Ok(())
    }

    fn launch_combine(&self, (uploaded, dispatched): (Uploaded, Dispatched)) -> Result<Uploaded, Error> {
        let staging = self.world.device().allocate(window_bytes(&self.ep))?;
        let experts = run_expert(&self.expert, &self.stream, &dispatched, &self.case, &staging)?;
        self.ep.combine(&self.stream, experts, dispatched, uploaded.combine_output(&self.case.config))?;
        self.world.synchronize(&self.stream)?;
        Ok(uploaded)
    }

    fn judge_output(&self, number: u64, uploaded: &Uploaded, masked: &[u32]) {
        let inputs = self.case.inputs(number);
        let oracle = oracle_without(&self.case, &inputs, masked);
        judge_output(&oracle, self.ep.rank(), &uploaded.read_output(&self.case.config));
        if self.case.config.combine_weights {
            judge_weights(&oracle, self.ep.rank(), &uploaded.read_weights(&self.case.config));
        }
    }

    /// What this rank got is as if `masked` were not there.
    pub fn judge_rows(&self, number: u64, dispatched: &Dispatched, masked: &[u32]) {
        let inputs = self.case.inputs(number);
        let oracle = oracle_without(&self.case, &inputs, masked);
        judge_rows(&oracle, self.ep.rank(), self.world.device(), &self.ep, dispatched);
    }

    /// Copies for the masked, counted by the oracle without masks.
    pub fn judge_masked_count(&self, number: u64, dispatched: &Dispatched, masked: &[u32]) {
        let inputs = self.case.inputs(number);
        let oracle = oracle_without(&self.case, &inputs, &[]);
        let (me, masked) = (self.ep.rank(), group_ranks(masked));
        let sent = oracle.combine(me).unwrap();
        let sent = (0..oracle.tokens(me)).flat_map(|token| sent.copies(token));
        let dropped = oracle.dropped(me).unwrap();
        let lost = dropped.iter().filter(|(_, destination)| masked.contains(destination)).count();
        let expected = sent.filter(|copy| masked.contains(&copy.destination)).count() + lost;
        let mut count = [0; 4];
        // SAFETY: the word belongs to the slot that the handle holds.
        unsafe { self.world.device().read_memory(dispatched.masked_count(), &mut count).unwrap() };
        assert_eq!(u32::from_ne_bytes(count) as usize, expected, "{me}: the count of masked copies");
    }

    /// A round in which this rank knows from the start that it works without `masked`.
    pub fn round_without(&self, number: u64, masked: &[u32]) -> Result<(), Error> {
        let (uploaded, dispatched) = self.dispatch(number)?;
        self.judge_rows(number, &dispatched, masked);
        self.judge_masked_count(number, &dispatched, masked);
        let inputs = self.case.inputs(number);
        let oracle = oracle_without(&self.case, &inputs, masked);
        judge_dropped(&oracle, self.world.device(), &self.ep, &self.stream, &dispatched)?;
        self.combine(number, (uploaded, dispatched), masked)
    }

    pub fn masked(&self) -> Result<Vec<MaskedRank>, Error> {
        self.ep.masked(&self.stream)
    }

    pub fn mask(&self, ranks: &[u32]) -> Result<(), Error> {
        group_ranks(ranks).into_iter().try_for_each(|rank| self.ep.mask_rank(&self.stream, rank))
    }

    pub fn reset(&self, together: &[u32]) -> Result<(), Error> {
        self.ep.reset_mask(&self.stream, &group_ranks(together), LIMIT)
    }

    /// Exactly these are masked, each after a wait in this operation.
    pub fn judge_timed_out(&self, ranks: &[u32], operation: &str, epoch: u64) -> Result<(), Error> {
        let masked = self.masked()?;
        let seen: Vec<_> = masked.iter().map(|one| one.rank.get()).collect();
        assert_eq!(seen, ranks, "rank {}: {masked:?}", self.me());
        for one in masked {
            let MaskCause::TimedOut { operation: seen, epoch: at, waited, phase, .. } = &one.cause else {
                panic!("rank {}: {one}", self.me());
            };
            assert_eq!((seen.as_str(), *at), (operation, epoch), "rank {}: {one}", self.me());
            assert!(*waited > PATIENCE && *waited < PATIENCE * 3 && !phase.is_empty(), "{one}");
        }
        Ok(())
    }
}
