//! The numbers of pairs that a dispatch to experts sends: where they are, and a block's tables.

use super::{EpConfig, FLAG_STRIDE, Plan, Route, numbers_at};

/// Most copies of experts whose pairs a dispatch numbers: more words than a block of any GPU has in local memory.
const MOST_COPIES: u32 = 1 << 16;

/// Whether a dispatch can number pairs: the route can, and blocks can count them.
pub(super) fn numbers_pairs(config: &EpConfig, route: &Route) -> bool {
    route.numbers_pairs() && copies(config) <= MOST_COPIES
}

/// Experts, counted once for each rank that has them.
fn copies(config: &EpConfig) -> u32 {
    // Experts times ranks are below 2^32, and an expert is on a rank once.
    config.placement.as_ref().map_or(config.experts, |table| table.copies() as u32)
}

/// Bytes of a source's totals: a word for each expert of the group. No two sources write one cache line.
pub(super) fn pair_totals_stride(config: &EpConfig) -> u64 {
    (u64::from(config.experts) * 4).next_multiple_of(FLAG_STRIDE.into())
}

impl Plan {
    /// Whether a dispatch can number pairs.
    pub(crate) fn numbers_pairs(&self) -> bool {
        numbers_pairs(&self.config, &self.route)
    }

    /// Bytes of a source's totals, in a plan that numbers pairs.
    pub(crate) fn pair_totals_stride(&self) -> u32 {
        pair_totals_stride(&self.config) as u32 // at most 4 bytes times MOST_COPIES
    }

    /// The word of a meta record with the number of the first pair, in a plan that numbers pairs.
    pub(crate) fn numbers_word(&self) -> u32 {
        numbers_at(&self.config) / 4
    }

    /// Experts, counted once for each rank that has them.
    pub(crate) fn expert_copies(&self) -> u32 {
        copies(&self.config)
    }

    /// Local memory of a dispatch block that numbers pairs: a word more for each copy of an expert, for each rank, and one for all.
    pub fn numbering_local_bytes(&self) -> u64 {
        let words = u64::from(self.expert_copies()) + u64::from(self.ranks) + 1;
        u64::from(self.dispatch_local_bytes()) + words * 4
    }

    /// Local memory, beside that, of a block that also places rows by their numbers, on a rank with so many experts: a word for each source and
    /// expert, a word an expert, and the slots of each wave's row; with shared places a word an expert and one after the last.
    pub fn placing_local_bytes(&self, local_experts: u32, waves: u32, is_contiguous: bool) -> u64 {
        let [ranks, experts, waves] = [self.ranks, local_experts, waves].map(u64::from);
        let starts = if is_contiguous { experts + 1 } else { 0 };
        4 * (ranks * experts + experts + starts + waves * u64::from(self.config.top_k))
    }
}
