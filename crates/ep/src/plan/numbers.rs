//! The numbers of pairs that a dispatch to experts sends: where they are, and a block's tables.

use super::{EpConfig, FLAG_STRIDE, Plan, numbers_at};

/// Bytes of a source's totals: a word for each expert of the group. No two sources write one cache line.
pub(super) fn pair_totals_stride(config: &EpConfig) -> u32 {
    (config.experts * 4).next_multiple_of(FLAG_STRIDE)
}

impl Plan {
    /// Bytes of a source's totals.
    pub fn pair_totals_stride(&self) -> u32 {
        pair_totals_stride(&self.config)
    }

    /// The word of a meta record with the number of the first pair.
    pub fn numbers_word(&self) -> u32 {
        numbers_at(&self.config) / 4
    }

    /// Experts, counted once for each rank that has them.
    pub fn expert_copies(&self) -> u32 {
        // A table's copies fit the memory of a list.
        self.config.placement.as_ref().map_or(self.config.experts, |table| table.copies() as u32)
    }

    /// Local memory of a block that numbers pairs and places rows by their numbers, on a rank with so many experts, beside that of a dispatch
    /// block: a word for each copy of an expert, for each rank and one for all; then a word for each source and expert, a word an expert, and
    /// the slots of each wave's row; with shared places a word an expert and one after the last.
    pub fn number_local_bytes(&self, local_experts: u32, waves: u32, is_contiguous: bool) -> u64 {
        let [copies, ranks, experts, waves] =
            [self.expert_copies(), self.ranks, local_experts, waves].map(u64::from);
        let starts = if is_contiguous { experts + 1 } else { 0 };
        4 * (starts + copies + (ranks + 1) + ranks * experts + experts + waves * u64::from(self.config.top_k))
    }
}
