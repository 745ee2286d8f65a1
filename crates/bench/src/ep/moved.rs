//! How much a dispatch and its combine move, counted by the oracle.

use anabranch::GroupRank;
use anabranch_conformance::ep::oracle::Oracle;

use super::EpBench;

impl EpBench<'_> {
    /// Bytes that a rank moves on average in each interval: over links, then, for expand and contract, in its own memory: each
    /// received row once and each expert's row once.
    pub(super) fn moved_bytes(
        &self,
        oracle: &Oracle<'_>,
        crossing_bytes: [u64; 2],
    ) -> anyhow::Result<Vec<u64>> {
        let mut moved = crossing_bytes.to_vec();
        moved.extend(self.replay.as_ref().map(|_| crossing_bytes[0]));
        if let Some(bench) = self.expert_major.as_ref().filter(|bench| bench.is_in_steps()) {
            let (ranks, plan) = (self.world().size(), self.ep.plan());
            let received = (0..ranks).map(|rank| oracle.dispatch(GroupRank::new(rank)));
            let received =
                received.map(|delivery| Ok(u64::from(delivery?.total()))).sum::<anyhow::Result<u64>>()?;
            let rows = received + bench.kept(oracle, ranks)?;
            moved.extend(
                [plan.row_bytes(), plan.combine_row_bytes()]
                    .map(|row| rows * u64::from(row) / u64::from(ranks)),
            );
        }
        Ok(moved)
    }
}

/// Dropped copies of all ranks.
pub(super) fn dropped_copies(oracle: &Oracle<'_>, ranks: u32) -> anyhow::Result<usize> {
    (0..ranks).map(|rank| Ok(oracle.dropped(GroupRank::new(rank))?.len())).sum()
}

/// Rows that cross a link, of all ranks, without rows that a rank sends to itself.
pub(super) fn crossing_rows(oracle: &Oracle<'_>, ranks: u32) -> anyhow::Result<u64> {
    let mut rows = 0;
    for destination in (0..ranks).map(GroupRank::new) {
        let delivery = oracle.dispatch(destination)?;
        let counts = delivery.counts().iter().enumerate();
        rows += counts
            .filter(|(source, _)| *source != destination.index())
            .map(|(_, n)| u64::from(*n))
            .sum::<u64>();
    }
    Ok(rows)
}
