//! The only source of chance of a run: a seed, or choices that are given.

use super::choices::{Choices, Script};

/// SplitMix64: small, quick, and every seed is a good one. Or a script, which draws nothing and leaves nothing out.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    state: u64,
    script: Option<Script>,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed, script: None }
    }

    pub(crate) fn given(choices: Choices) -> Self {
        Self { state: 0, script: Some(Script::new(choices)) }
    }

    pub(crate) fn is_script(&self) -> bool {
        self.script.is_some()
    }

    pub(crate) fn into_script(self) -> Option<Script> {
        self.script
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number below `end`, which is not 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        if let Some(script) = &mut self.script {
            return script.below(end);
        }
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }

    /// True `parts` times in 256; by a script, either way if both are possible.
    pub(crate) fn chance(&mut self, parts: u32) -> bool {
        if let Some(script) = &mut self.script {
            return parts >= 256 || (parts > 0 && script.below(2) == 1);
        }
        (self.next() >> 56) < u64::from(parts)
    }

    /// The same where it makes a difference only if `matters`. A seed draws all the same, a script does not.
    pub(crate) fn chance_if(&mut self, matters: bool, parts: u32) -> bool {
        if !matters && self.is_script() {
            return false;
        }
        let drawn = self.chance(parts);
        drawn && matters
    }

    pub(crate) fn pick<T: Copy, const N: usize>(&mut self, all: [T; N]) -> T {
        all[self.below(N)]
    }
}
