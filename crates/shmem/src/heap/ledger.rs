//! Who still uses which range of the heap. Pure; property-tested in `ledger_tests.rs`.
//!
//! A range may be used again only when *every* member of the allocation's group has dropped it: a member that has
//! not may still write to the range on its peers. Members get each other's drops from the announcements that
//! travel with every collective call of the heap. The scheme:
//!
//! * A rank that drops an allocation announces its id in every exchange, until every other member has received it.
//! * A rank takes the range back when it has dropped the allocation and all other members have announced the same.
//! * What a rank believes free is what it proposes; a place is free only when all members propose it.
//!
//! Why this is sound. A rank counts a range as free only after every member of its group announced the drop, and
//! an announced drop is never withdrawn; so no member uses the range, on any rank, when it is allocated again.
//! Why nothing leaks: two members that take part in one exchange after both dropped have informed each other; the group's
//! next collective call is such an exchange for all of them.

use std::collections::{BTreeMap, BTreeSet};

use anabranch_ranks::Group;

use super::ranges::{ByteRange, FreeRanges};

/// Names one allocation; equal on all its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub(crate) struct AllocationId {
    /// The group's id.
    pub(crate) group: u64,
    /// The group's count of collective calls when it was made.
    pub(crate) sequence: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    range: ByteRange,
    purpose: Purpose,
    members: BTreeSet<u32>,
    dropped: bool,
    /// The range was given back; the entry stays until all members are informed.
    returned: bool,
    heard: BTreeSet<u32>,
    informed: BTreeSet<u32>,
}

/// What an allocation was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Purpose {
    pub(crate) tag: String,
    pub(crate) bytes: u64,
    pub(crate) group: Group,
}

/// One rank's view of its heap.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    me: u32,
    free: FreeRanges,
    entries: BTreeMap<AllocationId, Entry>,
}

impl Ledger {
    /// An empty heap over `range`, as seen by the rank numbered `me`.
    pub(crate) fn new(me: u32, range: ByteRange) -> Self {
        Self { me, free: FreeRanges::new(range), entries: BTreeMap::new() }
    }

    /// What this rank believes free.
    pub(crate) fn free(&self) -> &FreeRanges {
        &self.free
    }

    /// Allocations that this rank has not dropped.
    pub(crate) fn live(&self) -> usize {
        self.entries.values().filter(|entry| !entry.dropped).count()
    }

    /// Enters an allocation. False, with nothing changed, when the range is not free here or the id is taken.
    pub(crate) fn enter(
        &mut self,
        id: AllocationId,
        range: ByteRange,
        purpose: Purpose,
        members: impl IntoIterator<Item = u32>,
    ) -> bool {
        if self.entries.contains_key(&id) || !self.free.take(range) {
            return false;
        }
        let entry = Entry {
            range,
            purpose,
            members: members.into_iter().filter(|member| *member != self.me).collect(),
            dropped: false,
            returned: false,
            heard: BTreeSet::new(),
            informed: BTreeSet::new(),
        };
        self.entries.insert(id, entry);
        true
    }

    /// The allocation that holds the byte at `offset` and that this rank has not dropped: the offset in it, and its purpose.
    pub(crate) fn find(&self, offset: u64) -> Option<(u64, &Purpose)> {
        self.entries.values().filter(|entry| !entry.dropped).find_map(|entry| {
            let inside = offset.checked_sub(entry.range.offset).filter(|at| *at < entry.purpose.bytes)?;
            Some((inside, &entry.purpose))
        })
    }

    /// Takes an allocation out at once: one that failed on all members before it could be used.
    pub(crate) fn revoke(&mut self, id: AllocationId) {
        if let Some(entry) = self.entries.remove(&id)
            && !entry.returned
        {
            self.free.give_back(entry.range);
        }
    }

    /// This rank does not use the allocation any more.
    pub(crate) fn drop_allocation(&mut self, id: AllocationId) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.dropped = true;
        }
        self.settle(id);
    }

    /// The drops to be announced in the next exchange.
    pub(crate) fn announcements(&self) -> Vec<AllocationId> {
        self.entries.iter().filter(|(_, entry)| entry.dropped).map(|(id, _)| *id).collect()
    }

    /// An exchange among `members` has come to its end; `announced` is what each of them (this rank included)
    /// announced in it, in the same order.
    pub(crate) fn exchanged<'a>(
        &mut self,
        members: &[u32],
        announced: impl IntoIterator<Item = &'a [AllocationId]>,
    ) {
        for (member, ids) in members.iter().zip(announced) {
            for id in ids {
                let Some(entry) = self.entries.get_mut(id) else { continue };
                if *member == self.me {
                    entry.informed.extend(members.iter().filter(|other| **other != self.me));
                } else {
                    entry.heard.insert(*member);
                }
            }
        }
        let ids: Vec<_> = self.entries.keys().copied().collect();
        for id in ids {
            self.settle(id);
        }
    }

    fn settle(&mut self, id: AllocationId) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if !entry.dropped || !entry.members.is_subset(&entry.heard) {
            return;
        }
        if !entry.returned {
            entry.returned = true;
            self.free.give_back(entry.range);
        }
        if entry.members.is_subset(&entry.informed) {
            self.entries.remove(&id);
        }
    }
}
