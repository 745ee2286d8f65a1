//! The memory that a plan allocates on each rank.

use std::fmt;

use anabranch_shmem::DEFAULT_ALIGNMENT;

use super::{Plan, own, placement};
use crate::args::RankMask;

/// The kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryPlace {
    /// The symmetric heap, the same size on every rank.
    Heap,
    /// The rank's own device memory.
    Own,
}

impl MemoryPlace {
    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Heap => "heap",
            Self::Own => "own",
        }
    }
}

/// One part of a plan's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryItem {
    /// What it is for.
    pub name: &'static str,
    /// The kind of memory.
    pub place: MemoryPlace,
    /// Bytes of one, with the padding before the next part.
    pub bytes: u64,
    /// How many there are: one per slot, or one.
    pub count: u32,
}

impl MemoryItem {
    /// Bytes of all of them.
    pub const fn total(&self) -> u64 {
        self.bytes * self.count as u64
    }
}

/// The memory that a plan allocates on each rank: exactly the bytes that [`ExpertParallel::new`](crate::ExpertParallel::new) allocates in the
/// symmetric heap and requests from the runtime, which may round each allocation up to pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    items: Vec<MemoryItem>,
    slots: u32,
}

impl MemoryPlan {
    /// All parts, the heap's first.
    pub fn items(&self) -> &[MemoryItem] {
        &self.items
    }

    /// Slots.
    pub const fn slots(&self) -> u32 {
        self.slots
    }

    /// Bytes of one kind of memory.
    pub fn bytes_in(&self, place: MemoryPlace) -> u64 {
        self.items.iter().filter(|item| item.place == place).map(MemoryItem::total).sum()
    }

    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.items.iter().map(MemoryItem::total).sum()
    }
}

/// A small table: each part, of a slot and of all.
impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = format!("{} slot{}", self.slots, if self.slots == 1 { "" } else { "s" });
        writeln!(f, "{:<5}{:<24}{:>16}{all:>16}", "", "bytes", "a slot")?;
        for item in &self.items {
            let one = if item.is_of_slot() { item.bytes.to_string() } else { "-".to_owned() };
            writeln!(f, "{:<5}{:<24}{one:>16}{:>16}", item.place.name(), item.name, item.total())?;
        }
        let sums = [
            ("heap", self.bytes_in(MemoryPlace::Heap)),
            ("own", self.bytes_in(MemoryPlace::Own)),
            ("", self.bytes()),
        ];
        for (index, (place, bytes)) in sums.into_iter().enumerate() {
            let end = if index + 1 == sums.len() { "" } else { "\n" };
            let mebibytes = bytes as f64 / f64::from(1 << 20);
            write!(f, "{place:<5}{:<24}{:>16}{bytes:>16}  {mebibytes:.1} MiB{end}", "in all", "")?;
        }
        Ok(())
    }
}

impl MemoryItem {
    /// Whether each slot has one.
    pub(crate) fn is_of_slot(&self) -> bool {
        ![TEAM_FLAGS, PLACEMENT, MASK, NODES].contains(&self.name)
    }
}

const TEAM_FLAGS: &str = "barrier flags";
const PLACEMENT: &str = "placement table";
const MASK: &str = "rank mask";
const NODES: &str = "node table";

impl Plan {
    /// The memory that this plan allocates on each rank, part by part.
    pub fn memory(&self) -> MemoryPlan {
        let slots = self.config.slots;
        let layout = &self.layout;
        let masks = self.route.masks();
        let rows = if self.config.combine_source.pulls() || masks { "combine rows" } else { "pushed rows" };
        let mut starts = vec![
            ("dispatch flags", layout.dispatch_flags),
            ("combine flags", layout.combine_flags),
            ("counts of all ranks", layout.count_matrix),
            ("received rows", layout.rows),
            ("received meta records", layout.meta),
            ("totals of pairs", layout.pair_totals),
            (rows, layout.combine_rows),
            ("combine weights", layout.combine_weights),
            ("pushed weights", layout.pushed_weights),
            ("late weights", layout.late_weights),
            ("late weights' flags", layout.late_flags),
            ("returned rows", layout.returned_rows),
            ("staged rows", layout.staged_rows),
            ("staged meta records", layout.staged_meta),
            ("relay flags", layout.relay_flags),
            ("relayed rows", layout.relay_rows),
            ("relayed meta records", layout.relay_meta),
        ];
        if masks {
            starts.insert(7, ("pushed rows", layout.push_rows));
        }
        let ends = starts.iter().skip(1).map(|(_, start)| *start).chain([layout.bytes]);
        let windows = starts.iter().zip(ends).map(|((name, start), end)| (*name, end.saturating_sub(*start)));
        let item = |place, count| move |(name, bytes)| MemoryItem { name, place, bytes, count };
        let team = (u64::from(self.ranks) * 8).next_multiple_of(DEFAULT_ALIGNMENT);
        let mask = if masks { u64::from(self.ranks) * size_of::<RankMask>() as u64 } else { 0 };
        let nodes = self.node_table_words() as u64 * 4;
        let placed = [(PLACEMENT, placement::table_bytes(self)), (MASK, mask), (NODES, nodes)];
        let items = windows
            .map(item(MemoryPlace::Heap, slots))
            .chain([(TEAM_FLAGS, team)].map(item(MemoryPlace::Heap, 1)))
            .chain(own::own_parts(self).map(item(MemoryPlace::Own, slots)))
            .chain(placed.map(item(MemoryPlace::Own, 1)));
        MemoryPlan { items: items.filter(|item| item.bytes > 0).collect(), slots }
    }
}
