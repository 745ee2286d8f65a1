//! What the ranks of a run do: a list of calls that all ranks go through in one order, drawn from a seed.

use anabranch_ranks::{GlobalRank, Group};
use std::time::Duration;

/// A source of numbers.
#[derive(Clone, Debug)]
pub(super) struct Draws(u64);

impl Draws {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x6a09_e667_f3bc_c909)
    }

    /// Splitmix64, below `bound`.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % bound
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }
}

#[derive(Clone, Debug)]
pub(super) enum What {
    Gather,
    /// The group's first member sets a key, the others wait for it.
    Key,
}

/// One call of all members of a group.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) what: What,
    pub(super) group: Group,
    pub(super) tag: &'static str,
    /// What each rank does before: nothing, or a pause of some milliseconds.
    pub(super) pauses: Vec<Duration>,
    /// Each rank's deadline.
    pub(super) limits: Vec<Duration>,
}

/// How a rank goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Leaves,
    Drops,
    Panics,
}

/// Who goes before which call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Victim {
    pub(super) rank: u32,
    pub(super) before: usize,
    pub(super) how: How,
}

#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) size: u32,
    pub(super) calls: Vec<Call>,
    pub(super) victims: Vec<Victim>,
}

impl Program {
    pub(super) fn draw(seed: u64) -> Self {
        let draws = &mut Draws::new(seed);
        let size = 2 + draws.below(3) as u32;
        let calls: Vec<Call> = (0..3 + draws.below(5)).map(|_| draw_call(size, draws)).collect();
        let mut victims = Vec::new();
        for _ in 0..draws.below(3) {
            let how = [How::Leaves, How::Drops, How::Panics][draws.below(3) as usize];
            let before = draws.below(calls.len() as u64) as usize;
            victims.push(Victim { rank: draws.below(u64::from(size)) as u32, before, how });
        }
        Self { size, calls, victims }
    }

    /// The bytes that a rank gives to a call: whose, to which, and of a length that differs.
    pub(super) fn bytes(rank: GlobalRank, call: usize) -> Vec<u8> {
        if call % 4 == 3 {
            return Vec::new(); // a barrier
        }
        let mut bytes = vec![rank.get() as u8, call as u8];
        bytes.resize(2 + (rank.index() * 3 + call) % 5, 0xee);
        bytes
    }
}

fn draw_call(size: u32, draws: &mut Draws) -> Call {
    let world = Group::world(size).unwrap();
    // A shuffle, of which the first few are taken.
    let mut order: Vec<GlobalRank> = world.members().to_vec();
    for at in (1..order.len()).rev() {
        order.swap(at, draws.below(at as u64 + 1) as usize);
    }
    let members = if draws.one_in(2) { order.len() } else { 2 + draws.below(u64::from(size) - 1) as usize };
    let group = world.subset_of_ranks(&order[..members]).unwrap();
    let what = match draws.below(10) {
        0..8 => What::Gather,
        _ => What::Key,
    };
    // Few lengths, so that deadlines and arrivals often fall on one moment; and now and then a rank misses several calls.
    let pause = |draws: &mut Draws| if draws.one_in(6) { 12 } else { draws.below(5).saturating_sub(1) };
    let pauses = (0..size).map(|_| Duration::from_millis(pause(draws))).collect();
    let hurried = draws.one_in(3);
    let limit = |draws: &mut Draws| if hurried { 1 + draws.below(4) } else { 10_000 };
    let limits = (0..size).map(|_| Duration::from_millis(limit(draws))).collect();
    Call { what, group, tag: ["one", "two"][draws.below(2) as usize], pauses, limits }
}
