//! A plan that masks ranks: no rank is faulty, but the patience is so short that ranks are missed which come a little later, by some
//! ranks and not by others. So what a run must leave depends on which ranks each rank has missed; it is judged for each rank and epoch
//! by an oracle that leaves out those.

use std::time::Duration;

use anabranch_conformance::ep::oracle::{Oracle, OracleError, RankInput, Shape};
use anabranch_ep::OnTimeout;
use anabranch_ep::simulation::{MaskView, RankMask};
use anabranch_ranks::GroupRank;

use super::{Ep, Input, at};
use crate::Protocol;

/// In virtual time, of which each step takes one: within the time that a kernel takes, which differs from run to run by more.
const PATIENCE: Duration = Duration::from_nanos(700);

pub(super) fn on_timeout() -> OnTimeout {
    OnTimeout::Mask { patience: PATIENCE }
}

/// The ranks whose bit is set.
fn ranks_of(bits: u32) -> Vec<GroupRank> {
    (0..u32::BITS).filter(|rank| bits >> rank & 1 != 0).map(GroupRank::new).collect()
}

impl Ep {
    pub(super) fn masks(&self) -> bool {
        self.case.protocol == Protocol::EpMask
    }

    pub(super) fn mask_view(&self, rank: u32) -> MaskView {
        if !self.masks() {
            return MaskView::NONE;
        }
        let own = self.bench.ranks[rank as usize].own;
        MaskView {
            ranks: at(own, self.own.mask),
            settled: at(own, self.own.settled),
            patience_ns: PATIENCE.as_nanos() as u64,
            slot: 0,
            reserved: 0,
        }
    }

    /// The oracle of an epoch for ranks that mask these.
    pub(super) fn oracle(&self, epoch: u32, masked: &[GroupRank]) -> Result<Oracle<'_>, OracleError> {
        let inputs = self.memory.iter().map(|memory| {
            let Input { tokens, ids, weights, .. } = &memory.inputs[epoch as usize];
            RankInput { tokens, ids, weights: Some(weights), scales: &[] }
        });
        Oracle::without(Shape::new(self.plan.config(), self.case.ranks), inputs.collect(), masked)
    }

    /// Ranks that this one masks in the end, by bit.
    pub(super) fn masked_by(&self, rank: u32) -> Result<u32, String> {
        let own = self.bench.ranks[rank as usize].own;
        let entries = self.bench.get::<RankMask>(own, self.own.mask, self.case.ranks as usize);
        let entries = entries.map_err(|error| error.to_string())?;
        let mut bits = 0;
        for (peer, entry) in (0..).zip(entries) {
            match (entry.masked, entry.claimed) {
                (0, 0) => {}
                (1, 1..) if peer != rank && entry.operation != 0 && entry.epoch > 0 => bits |= 1 << peer,
                _ => return Err(format!("rank {rank} knows of rank {peer}: {entry:?}")),
            }
        }
        Ok(bits)
    }

    /// The output of one rank's combine is that without some of the ranks that it masks in the end, the same ones for every token;
    /// of equal ones, the fewest.
    pub(super) fn judge_masked_output(
        &self,
        epoch: u32,
        who: GroupRank,
        output: &[u8],
    ) -> Result<(), String> {
        let masked = self.masked_by(who.get())?;
        let mut problem = String::new();
        for bits in (0..1 << self.case.ranks).filter(|bits| bits & !masked == 0) {
            let oracle = self.oracle(epoch, &ranks_of(bits)).map_err(|error| error.to_string())?;
            let experts = oracle.reference_experts().map_err(|error| error.to_string())?;
            let combined = oracle.combine(who).map_err(|error| error.to_string())?;
            match combined.compare_output(output, &experts) {
                Ok(()) => return Ok(()),
                Err(mismatch) => problem = mismatch.to_string(),
            }
        }
        Err(format!("{problem}, whichever of the ranks {:?} it goes without", ranks_of(masked)))
    }

    /// The ranks of which this one counts nothing though they have sent something: each of them it masks.
    pub(super) fn unheard(
        &self,
        epoch: u32,
        who: GroupRank,
        counts: &[u32],
    ) -> Result<Vec<GroupRank>, String> {
        let masked = self.masked_by(who.get())?;
        let all = self.oracle(epoch, &[]).map_err(|error| error.to_string())?;
        let sent = all.dispatch(who).map_err(|error| error.to_string())?;
        let zero = |source: &usize| counts[*source] == 0 && sent.counts()[*source] > 0;
        let unheard: Vec<_> =
            (0..counts.len()).filter(zero).map(|source| GroupRank::new(source as u32)).collect();
        match unheard.iter().find(|rank| masked >> rank.get() & 1 == 0) {
            Some(rank) => Err(format!("{who} counts nothing of {rank}, and does not mask it")),
            None => Ok(unheard),
        }
    }
}
