//! Ranks that allocate, drop and exchange in any order: no range is allocated again while a member uses it, and none leaks.

use super::ledger::{AllocationId, Ledger, Purpose};
use super::ranges::ByteRange;
use anabranch_ranks::Group;
use proptest::collection::vec;
use proptest::prelude::*;

const RANKS: u32 = 4;
const SEGMENT: ByteRange = ByteRange { offset: 256, bytes: 4096 };

#[derive(Clone, Debug)]
enum Step {
    /// The members with a bit in the mask allocate.
    Allocate { mask: u8, bytes: u64 },
    /// A rank drops one of the allocations that it holds.
    Drop { rank: u32, index: usize },
    /// The members with a bit in the mask exchange announcements.
    Exchange { mask: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1..16u8, 1..6u64).prop_map(|(mask, units)| Step::Allocate { mask, bytes: units * 256 }),
        (0..RANKS, any::<usize>()).prop_map(|(rank, index)| Step::Drop { rank, index }),
        (0..RANKS, any::<usize>()).prop_map(|(rank, index)| Step::Drop { rank, index }),
        (1..16u8).prop_map(|mask| Step::Exchange { mask }),
    ]
}

fn members(mask: u8) -> Vec<u32> {
    (0..RANKS).filter(|rank| mask & (1 << rank) != 0).collect()
}

struct Model {
    ledgers: Vec<Ledger>,
    /// Who still uses what.
    users: Vec<(AllocationId, ByteRange, Vec<u32>)>,
    sequence: u64,
}

impl Model {
    fn exchange(&mut self, members: &[u32]) {
        let announced: Vec<_> =
            members.iter().map(|rank| self.ledgers[*rank as usize].announcements()).collect();
        for rank in members {
            self.ledgers[*rank as usize].exchanged(members, announced.iter().map(Vec::as_slice));
        }
    }

    fn drop_one(&mut self, rank: u32, index: usize) {
        let mut held: Vec<_> = self.users.iter_mut().filter(|(_, _, users)| users.contains(&rank)).collect();
        if held.is_empty() {
            return;
        }
        let index = index % held.len();
        let (id, _, users) = &mut *held[index];
        users.retain(|user| *user != rank);
        self.ledgers[rank as usize].drop_allocation(*id);
        self.users.retain(|(_, _, users)| !users.is_empty());
    }

    fn allocate(&mut self, mask: u8, bytes: u64) -> Result<(), TestCaseError> {
        let members = members(mask);
        self.exchange(&members);
        self.sequence += 1;
        let id = AllocationId { group: u64::from(mask), sequence: self.sequence };
        let mut common = self.ledgers[members[0] as usize].free().clone();
        for rank in &members[1..] {
            common = common.intersection(&self.ledgers[*rank as usize].free().to_vec());
        }
        let Some(offset) = common.lowest_fit(bytes, 256) else { return Ok(()) };
        let range = ByteRange { offset, bytes };
        for (_, other, users) in &self.users {
            let overlaps = range.offset < other.end() && other.offset < range.end();
            // A member that has not dropped writes to all members of its own allocation: none of them may be in the new one.
            let group = self.users.iter().find(|(_, r, _)| r == other).map(|(id, _, _)| id.group as u8);
            let shared = group.is_some_and(|group| group & mask != 0);
            prop_assert!(!(overlaps && shared), "{range:?} is still used by {users:?}");
        }
        for rank in &members {
            prop_assert!(self.ledgers[*rank as usize].enter(
                id,
                range,
                purpose(bytes),
                members.iter().copied()
            ));
        }
        self.users.push((id, range, members));
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_range_is_given_away_while_a_member_uses_it(steps in vec(step(), 0..80)) {
        let mut model = Model {
            ledgers: (0..RANKS).map(|rank| Ledger::new(rank, SEGMENT)).collect(),
            users: Vec::new(),
            sequence: 0,
        };
        for step in steps {
            match step {
                Step::Allocate { mask, bytes } => model.allocate(mask, bytes)?,
                Step::Drop { rank, index } => model.drop_one(rank, index),
                Step::Exchange { mask } => model.exchange(&members(mask)),
            }
        }
        while !model.users.is_empty() {
            for rank in 0..RANKS {
                model.drop_one(rank, 0);
            }
        }
        // One exchange of all members settles everything.
        model.exchange(&members(15));
        for ledger in &model.ledgers {
            prop_assert_eq!(ledger.free().to_vec(), vec![SEGMENT]);
            prop_assert_eq!(ledger.live(), 0);
            prop_assert!(ledger.announcements().is_empty());
        }
    }
}

fn purpose(bytes: u64) -> Purpose {
    Purpose { tag: "test".to_owned(), bytes, group: Group::world(RANKS).unwrap() }
}

#[test]
fn bytes_between_allocations_belong_to_none() {
    let mut ledger = Ledger::new(0, SEGMENT);
    let id = AllocationId { group: 3, sequence: 1 };
    assert!(ledger.enter(id, ByteRange { offset: 256, bytes: 256 }, purpose(200), [0, 1]));
    let found = |ledger: &Ledger, at| ledger.find(at).map(|(offset, _)| offset);
    let places = [255, 256, 455, 456].map(|at| found(&ledger, at));
    assert_eq!(places, [None, Some(0), Some(199), None]);
    ledger.drop_allocation(id);
    assert_eq!(found(&ledger, 256), None, "dropped here, not yet on rank 1");
}

#[test]
fn a_rank_that_forgets_to_ask_the_others_would_be_noticed() {
    // The check above can fail: a ledger that takes a range back on its own drop alone gives it away too early.
    let mut ledger = Ledger::new(0, SEGMENT);
    let id = AllocationId { group: 3, sequence: 1 };
    assert!(ledger.enter(id, ByteRange { offset: 256, bytes: 256 }, purpose(200), [0, 1]));
    ledger.drop_allocation(id);
    assert_eq!(ledger.free().total(), SEGMENT.bytes - 256, "rank 1 has not dropped it");
    ledger.exchanged(&[0, 1], [&[id][..], &[][..]]);
    assert_eq!(ledger.free().total(), SEGMENT.bytes - 256);
    ledger.exchanged(&[0, 1], [&[id][..], &[id][..]]);
    assert_eq!(ledger.free().to_vec(), [SEGMENT]);
    assert!(ledger.announcements().is_empty());
}
