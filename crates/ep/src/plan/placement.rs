//! Experts placed by a table: unevenly, or on several ranks.

use std::sync::Arc;

use anabranch_ranks::GroupRank;

use crate::error::{Error, Result};

mod file;

/// For each expert of the group the ranks that work on it, at least one. Cheap to clone.
///
/// An expert on several ranks is replicated: of its n ranks, in the order of the table, token t of rank s goes to number (s + t) mod
/// n, so that the tokens of every rank spread over all of them.
#[derive(Clone, PartialEq, Eq)]
pub struct PlacementTable(Arc<[Vec<GroupRank>]>);

impl PlacementTable {
    /// A table: entry e holds the ranks of expert e. It is checked against the group when a plan is made.
    pub fn new(ranks_of_experts: impl IntoIterator<Item = Vec<GroupRank>>) -> Self {
        Self(ranks_of_experts.into_iter().collect())
    }

    /// Experts in the table.
    pub fn experts(&self) -> usize {
        self.0.len()
    }

    /// The ranks of an expert, in the order of the table; none for a number that is no expert.
    pub fn ranks_of(&self, expert: u32) -> &[GroupRank] {
        self.0.get(expert as usize).map_or(&[], Vec::as_slice)
    }

    /// The rank to which token `token` of rank `source` goes for an expert. `None` for a number that is no expert.
    pub fn destination(&self, expert: u32, source: GroupRank, token: u32) -> Option<GroupRank> {
        let ranks = self.ranks_of(expert);
        let replica = (u64::from(source.get()) + u64::from(token)).checked_rem(ranks.len() as u64)?;
        ranks.get(replica as usize).copied()
    }

    /// The experts that a rank works on, ascending.
    pub fn experts_on(&self, rank: GroupRank) -> Vec<u32> {
        let here = self.0.iter().enumerate().filter(|(_, ranks)| ranks.contains(&rank));
        here.map(|(expert, _)| expert as u32).collect()
    }

    /// Checks the table for a group.
    pub(crate) fn check(&self, experts: u32, ranks: u32) -> Result<()> {
        if self.experts() != experts as usize {
            let allowed = format!("the placement's table has {} experts", self.experts());
            return Err(Error::config("experts", experts, allowed));
        }
        for (expert, owners) in self.0.iter().enumerate() {
            let wrong = |given: String, allowed: String| Err(Error::config("placement", given, allowed));
            if owners.is_empty() {
                return wrong(format!("expert {expert} on no rank"), "every expert is on a rank".to_owned());
            }
            if let Some(rank) = owners.iter().find(|rank| rank.get() >= ranks) {
                return wrong(format!("expert {expert} on {rank}"), format!("the group has {ranks} ranks"));
            }
            let mut sorted = owners.clone();
            sorted.sort_unstable();
            if let Some([rank, _]) = sorted.windows(2).find(|two| two[0] == two[1]) {
                let allowed = "an expert is on a rank once".to_owned();
                return wrong(format!("expert {expert} on {rank} twice"), allowed);
            }
        }
        Ok(())
    }
}

/// As configurations of ranks are compared: `0+2;1;...`, the ranks of each expert.
impl std::fmt::Display for PlacementTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (expert, ranks) in self.0.iter().enumerate() {
            let ranks: Vec<_> = ranks.iter().map(|rank| rank.get().to_string()).collect();
            write!(f, "{}{}", if expert == 0 { "" } else { ";" }, ranks.join("+"))?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for PlacementTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PlacementTable({self})")
    }
}

/// Bytes of a plan's table where kernels read it; none without one.
pub(super) fn table_bytes(plan: &super::Plan) -> u64 {
    let words = |table: &PlacementTable| table.experts() + 1 + table.copies();
    plan.config().placement.as_ref().map_or(0, |table| words(table) as u64 * 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{EpConfig, EpShape, Plan};

    fn table(ranks: &[&[u32]]) -> PlacementTable {
        PlacementTable::new(ranks.iter().map(|ranks| ranks.iter().copied().map(GroupRank::new).collect()))
    }

    #[test]
    fn tokens_spread_over_the_replicas() {
        let placed = table(&[&[2, 0], &[1], &[0, 1, 2]]);
        let to = |expert, source, token| {
            placed.destination(expert, GroupRank::new(source), token).map(GroupRank::get)
        };
        assert_eq!(
            [to(0, 0, 0), to(0, 0, 1), to(0, 1, 0), to(0, 1, 1)],
            [Some(2), Some(0), Some(0), Some(2)]
        );
        assert_eq!([to(1, 2, 5), to(2, 2, 5), to(3, 0, 0)], [Some(1), Some(1), None]);
        assert_eq!(to(2, u32::MAX, u32::MAX), Some((2 * u64::from(u32::MAX) % 3) as u32));
        let on: Vec<_> = (0..4).map(|rank| placed.experts_on(GroupRank::new(rank))).collect();
        assert_eq!(on, [vec![0, 2], vec![1, 2], vec![0, 2], vec![]]);
        assert_eq!(placed.to_string(), "2+0;1;0+1+2");
    }

    #[test]
    fn tables_that_cannot_be_are_refused() {
        let refused = |placed| {
            let config =
                EpConfig::new(EpShape { hidden: 128, experts: 2, top_k: 1, max_tokens: 4 }).placement(placed);
            Plan::new(config, 3).unwrap_err().to_string()
        };
        assert_eq!(refused(table(&[&[0]])), "experts is 2; the placement's table has 1 experts");
        assert_eq!(
            refused(table(&[&[0], &[]])),
            "placement is expert 1 on no rank; every expert is on a rank"
        );
        let text = refused(table(&[&[3], &[0]]));
        assert_eq!(text, format!("placement is expert 0 on {}; the group has 3 ranks", GroupRank::new(3)));
        let text = refused(table(&[&[0], &[1, 0, 1]]));
        assert_eq!(
            text,
            format!("placement is expert 1 on {} twice; an expert is on a rank once", GroupRank::new(1))
        );
    }
}
