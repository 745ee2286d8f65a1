//! Experts placed by a table: unevenly, or on several ranks.

use std::sync::Arc;

use anabranch_hip::{Device, DeviceBuffer};
use anabranch_hip_jit::{DevicePointer, bytemuck};
use anabranch_ranks::GroupRank;

use crate::args::PlacementView;
use crate::error::{Error, Result};
use crate::plan::Plan;

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
            return Err(Error::Config { field: "experts", given: experts.into(), allowed });
        }
        for (expert, owners) in self.0.iter().enumerate() {
            let wrong = |problem: String| Err(Error::Placement { expert: expert as u32, problem });
            if owners.is_empty() {
                return wrong("it is on no rank".to_owned());
            }
            if let Some(rank) = owners.iter().find(|rank| rank.get() >= ranks) {
                return wrong(format!("it is on {rank}, and the group has {ranks} ranks"));
            }
            let mut sorted = owners.clone();
            sorted.sort_unstable();
            if let Some([rank, _]) = sorted.windows(2).find(|two| two[0] == two[1]) {
                return wrong(format!("it is on {rank} twice"));
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
pub(crate) fn table_bytes(plan: &Plan) -> u64 {
    let words = |table: &PlacementTable| table.experts() + 1 + table.copies();
    plan.config().placement.as_ref().map_or(0, |table| words(table) as u64 * 4)
}

/// A plan's placement where kernels read it.
#[derive(Debug)]
pub(crate) struct DevicePlacement {
    experts: u32,
    ranks: u32,
    table: Option<DeviceBuffer>,
}

impl DevicePlacement {
    /// Uploads the table, if the plan has one: `[experts + 1]` starts, then the ranks.
    pub(crate) fn new(device: &Device, plan: &Plan) -> Result<Self> {
        let experts = plan.config().experts;
        let upload = |table: &PlacementTable| {
            let mut words = vec![0];
            let mut owners = Vec::new();
            for expert in 0..experts {
                owners.extend(table.ranks_of(expert).iter().map(|rank| rank.get()));
                words.push(owners.len() as u32);
            }
            words.extend(owners);
            let mut buffer = device.allocate(words.len() * 4)?;
            buffer.copy_from_host(0, bytemuck::cast_slice(&words))?;
            Ok::<_, Error>(buffer)
        };
        let table = plan.config().placement.as_ref().map(upload).transpose()?;
        Ok(Self { experts, ranks: plan.ranks(), table })
    }

    /// As kernels take it; valid as long as `self` lives.
    pub(crate) fn view(&self) -> PlacementView {
        let even = PlacementView::even(self.experts, self.ranks);
        let Some(table) = &self.table else { return even };
        let owners = table.address().offset((u64::from(self.experts) + 1) * 4);
        PlacementView {
            starts: DevicePointer::new(table.address()),
            owners: DevicePointer::new(owners),
            ..even
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::EpConfig;

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
            let config = EpConfig::new(128, 2, 1, 4).placement(placed);
            Plan::new(config, 3).unwrap_err().to_string()
        };
        assert_eq!(refused(table(&[&[0]])), "experts is 2; the placement's table has 1 experts");
        assert_eq!(refused(table(&[&[0], &[]])), "the placement of expert 1 cannot be: it is on no rank");
        let text = refused(table(&[&[3], &[0]]));
        assert_eq!(
            text,
            format!(
                "the placement of expert 0 cannot be: it is on {}, and the group has 3 ranks",
                GroupRank::new(3)
            )
        );
        let text = refused(table(&[&[0], &[1, 0, 1]]));
        assert_eq!(
            text,
            format!("the placement of expert 1 cannot be: it is on {} twice", GroupRank::new(1))
        );
    }
}
