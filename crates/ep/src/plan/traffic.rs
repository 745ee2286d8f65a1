//! The bytes and requests of a plan's hops, inside nodes and between them.

use std::collections::BTreeSet;

use anabranch_ranks::{Across, GroupRank};

use super::{Hop, Plan};

/// Bytes of a flag.
const FLAG_BYTES: u64 = 8;

/// The NIC writes for one rank's tokens in one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NicTraffic {
    /// Bytes of rows and, in a dispatch, of records.
    pub payload_bytes: u64,
    /// Writes of rows and of records, if the NIC does not split them.
    pub puts: u64,
    /// Writes of flags, 8 bytes each: one per target, after its rows or alone.
    pub flags: u64,
}

impl NicTraffic {
    /// NIC requests.
    pub fn requests(&self) -> u64 {
        self.puts + self.flags
    }

    /// All bytes that NICs write.
    pub fn bytes(&self) -> u64 {
        self.payload_bytes + self.flags * FLAG_BYTES
    }
}

impl Plan {
    /// Bytes of rows and records that these copies move between nodes.
    pub fn bytes_between_nodes(&self, hops: &[Hop]) -> u64 {
        let Some((nodes, _)) = self.across() else { return 0 };
        let crossing = hops.iter().filter(|hop| !nodes.are_together(hop.from, hop.to)).count();
        crossing as u64 * self.dispatched_bytes()
    }

    /// Bytes of rows that a combine moves between nodes for what came by these copies: every row, also where a token went once to each
    /// node, because the sum is over rows.
    pub fn returned_between_nodes(&self, hops: &[Hop]) -> u64 {
        let Some((nodes, _)) = self.across() else { return 0 };
        let returns =
            hops.iter().filter(|hop| hop.arrives && !nodes.are_together(hop.source, hop.to)).count();
        returns as u64 * u64::from(self.combine_row_bytes())
    }

    /// Bytes of rows and records that these copies move between ranks of one node in the first step: from the source itself.
    pub fn bytes_inside_nodes(&self, hops: &[Hop]) -> u64 {
        self.near(hops, |hop| hop.from == hop.source) * self.dispatched_bytes()
    }

    /// Bytes of rows and records that these copies move between ranks of one node in the second step: from ranks that forward them.
    pub fn forwarded_inside_nodes(&self, hops: &[Hop]) -> u64 {
        self.near(hops, |hop| hop.from != hop.source) * self.dispatched_bytes()
    }

    /// Bytes of rows that a combine moves between ranks of one node for what came by these copies.
    pub fn returned_inside_nodes(&self, hops: &[Hop]) -> u64 {
        self.near(hops, |hop| hop.arrives && hop.from == hop.source) * u64::from(self.combine_row_bytes())
    }

    /// What the NIC of `source` writes in a dispatch, for all [hops](Plan::hops) of its tokens: to each rank of other nodes, or by node to
    /// each rank that forwards, rows and records if there are any, and a flag.
    pub fn dispatch_traffic(&self, source: GroupRank, hops: &[Hop]) -> NicTraffic {
        let Some((nodes, way)) = self.across() else { return NicTraffic::default() };
        let crossing = hops.iter().filter(|hop| !nodes.are_together(hop.from, hop.to));
        let filled = crossing.map(|hop| hop.to).collect::<BTreeSet<_>>().len() as u64;
        let flags = match way {
            Across::Node => u64::from(nodes.count()) - 1,
            _ => self.far_ranks(source),
        };
        NicTraffic { payload_bytes: self.bytes_between_nodes(hops), puts: 2 * filled, flags }
    }

    /// What NICs of other nodes write in a combine for the tokens of `source`, for all [hops](Plan::hops) of these: each rank there its
    /// rows if there are any, and a flag.
    pub fn combine_traffic(&self, source: GroupRank, hops: &[Hop]) -> NicTraffic {
        let Some((nodes, _)) = self.across() else { return NicTraffic::default() };
        let returning = hops.iter().filter(|hop| hop.arrives && !nodes.are_together(hop.source, hop.to));
        let puts = returning.map(|hop| hop.to).collect::<BTreeSet<_>>().len() as u64;
        NicTraffic { payload_bytes: self.returned_between_nodes(hops), puts, flags: self.far_ranks(source) }
    }

    /// Bytes of a row and its record.
    fn dispatched_bytes(&self) -> u64 {
        u64::from(self.row_bytes()) + u64::from(self.meta_bytes())
    }

    /// Copies between two ranks of one node.
    fn near(&self, hops: &[Hop], is_counted: impl Fn(&Hop) -> bool) -> u64 {
        let is_near = |hop: &Hop| self.across().is_none_or(|(nodes, _)| nodes.are_together(hop.from, hop.to));
        hops.iter().filter(|hop| hop.from != hop.to && is_near(hop) && is_counted(hop)).count() as u64
    }

    /// Ranks of other nodes.
    fn far_ranks(&self, rank: GroupRank) -> u64 {
        let Some((nodes, _)) = self.across() else { return 0 };
        nodes.ranks().filter(|other| !nodes.are_together(rank, *other)).count() as u64
    }
}
