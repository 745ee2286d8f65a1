//! Where a case's buffers are.

use anabranch_ranks::GroupRank;

use super::{Case, UNTOUCHED, put};
use anabranch_ccl::Collective;

/// Bytes before, between and behind buffers that must stay untouched.
const CANARY: u64 = 64;

/// Where a case's buffers are: at the same offsets on all members.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// This rank's input.
    pub input: u64,
    /// Its output.
    pub output: u64,
    /// Behind the last byte that is looked at.
    pub end: u64,
}

impl Layout {
    pub(super) fn of(case: &Case, members: u32, me: u32) -> Self {
        Self::with(case, members, me, CANARY, 256)
    }

    /// With so many bytes before, between and behind buffers, which begin at multiples of `alignment` unless the case offsets
    /// them.
    pub fn with(case: &Case, members: u32, me: u32, canary: u64, alignment: u64) -> Self {
        let size = u64::from(case.data_type.bytes());
        let all = 0..u64::from(members);
        let most = |of: &dyn Fn((u64, u64)) -> u64| {
            all.clone().map(|rank| of(case.lengths(members.into(), rank))).max().unwrap_or(0)
        };
        let (inputs, outputs) = (most(&|pair| pair.0) * size, most(&|pair| pair.1) * size);
        let start = |after: u64| (after + canary).next_multiple_of(alignment) + case.offset * size;
        let mine = u64::from(me) * case.count * size;
        let in_place = case.in_place || case.collective == Collective::Broadcast;
        let (input, output, end) = match (in_place, case.collective) {
            (true, Collective::AllGather | Collective::Gather) => {
                (start(0) + mine, start(0), start(0) + outputs)
            }
            (true, Collective::ReduceScatter | Collective::Scatter) => {
                (start(0), start(0) + mine, start(0) + inputs)
            }
            (true, _) => (start(0), start(0), start(0) + inputs),
            (false, _) => {
                let input = start(start(0) + outputs);
                (input, start(0), input + inputs)
            }
        };
        Self { input, output, end: end + canary }
    }

    /// What memory holds before the call: the member's input, where the call reads one, between bytes that must stay untouched.
    pub fn image(&self, case: &Case, input: &[u8], me: GroupRank) -> Vec<u8> {
        let mut image = vec![UNTOUCHED; self.end as usize];
        if case.collective != Collective::Scatter || me == case.root {
            put(&mut image, self.input, input);
        }
        image
    }
}
