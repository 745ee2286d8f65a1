//! The comparison of calls: every rank says what it calls, all meet and compare. Calls are alike, and new in each round, so that
//! what an earlier round left in the staging is a difference; or, in the end, one rank's differs, and all have to find it.

use anabranch_ccl::CHECK_OPERATION;
use anabranch_ccl::kernels::FINGERPRINT;
use anabranch_ccl::lowered::{
    ChannelLayout, ChannelState, CommView, Fingerprint, FingerprintArgs, ROW_WORDS,
};
use anabranch_weakmem::SeededKernel;
use bytemuck::Zeroable as _;

use super::bench::{Bench, Grid, Kernels, OnBench, WAVE, at, mixed};
use crate::{Case, Failure, Outcome, RunOptions, ScenarioError};

/// `PHASE_FINGERPRINT` in `ccl/channel.h`.
const PHASE: u32 = 3;
/// Words of a fingerprint.
const WORDS: usize = size_of::<Fingerprint>() / 8;
/// Which word says whether a row of splits follows.
const UNEVEN: usize = std::mem::offset_of!(Fingerprint, uneven) / 8;

#[derive(Debug)]
pub(crate) struct CclFingerprint {
    case: Case,
    bench: Bench,
    layout: ChannelLayout,
    kernel: SeededKernel,
}

/// What one rank calls in a round.
#[derive(Clone, Copy)]
struct Called {
    words: [u64; WORDS],
    row: [u64; ROW_WORDS],
    row_words: usize,
}

impl CclFingerprint {
    pub(crate) fn new(case: Case, kernels: &mut Kernels<'_>) -> Result<Self, ScenarioError> {
        let layout = ChannelLayout::of_check(case.ranks);
        let bench = Bench::new(&case, case.ranks * case.waves * WAVE, layout.bytes, 0)?;
        Ok(Self {
            bench,
            kernel: kernels
                .load(anabranch_hip_jit::KernelSpec::new(FINGERPRINT.unit()), FINGERPRINT.entry())?,
            layout,
            case,
        })
    }

    /// The call of a rank, the same for all; every other one has splits, and the rest a row that nobody compares.
    fn called(&self, seed: u64, round: u32, rank: u32) -> Called {
        let number = mixed(seed) ^ (u64::from(round) << 32);
        let mut words = [0; WORDS];
        for (word, place) in words.iter_mut().zip(0..) {
            *word = mixed(number + place);
        }
        words[UNEVEN] = u64::from(round % 2);
        let mut row = [0; ROW_WORDS];
        if words[UNEVEN] == 0 {
            let row_words = (mixed(number) % 9) as usize;
            row[..row_words].fill(mixed(number ^ u64::from(rank)));
            return Called { words, row, row_words };
        }
        let sent =
            |from: u32, to: u32| mixed(number ^ ((1 + u64::from(from)) << 16) ^ ((1 + u64::from(to)) << 24));
        for (split, peer) in row.chunks_exact_mut(2).zip(0..self.case.ranks) {
            split.copy_from_slice(&[sent(rank, peer), sent(peer, rank)]);
        }
        Called { words, row, row_words: 2 * self.case.ranks as usize }
    }

    /// The same, with one thing changed that the seed chooses.
    fn changed(&self, mut called: Called, seed: u64) -> Called {
        let choice = mixed(seed ^ 0x0dd);
        // A group of one has nobody to differ from.
        let places = if called.words[UNEVEN] == 0 || self.case.ranks == 1 {
            WORDS
        } else {
            WORDS + 2 * self.case.ranks as usize
        };
        match (choice % places as u64) as usize {
            UNEVEN => called.words[UNEVEN] ^= 1,
            word if word < WORDS => called.words[word] ^= 1 << ((choice >> 32) % 64),
            place => called.row[place - WORDS] ^= 1 << ((choice >> 32) % 64),
        }
        called
    }

    fn queue(&mut self, rank: u32, called: &Called) -> Result<(), Failure> {
        let heap = self.bench.ranks[rank as usize].heap;
        let local_bytes = anabranch_ccl::lowered::local_bytes(self.case.ranks);
        let grid = Grid { blocks: 1, threads: self.case.waves * WAVE, local_bytes };
        let comm = CommView {
            team: self.bench.team(rank),
            channels: at(heap, self.layout.channels),
            flags: self.layout.flags,
            packets: self.layout.packets,
            staging: self.layout.staging,
            staging_bytes: self.layout.staging_bytes,
            heap: heap.address(),
            packet_units: self.layout.packet_units,
            operation: CHECK_OPERATION.0,
        };
        let mine = bytemuck::cast(called.words);
        let row_words = called.row_words as u64;
        let args = FingerprintArgs { comm, mine, row: called.row, row_words };
        Ok(self.bench.launch(rank, &self.kernel, grid, &args)?)
    }

    /// Every rank has met so often, and has seen a difference or none.
    fn judge(&self, differs: bool, meets: u32) -> Result<(), Failure> {
        for rank in 0..self.case.ranks {
            let record = self.bench.record(rank)?;
            let expected = if differs { (2, PHASE) } else { (0, 0) };
            if (record.state, record.phase) != expected {
                return Err(Failure::new(format!("rank {rank}, differs: {differs}: {record:?}")));
            }
            let heap = self.bench.ranks[rank as usize].heap;
            let state = self.bench.get::<ChannelState>(heap, self.layout.channels, 1)?[0];
            if (state.meets, state.inside) != (meets.into(), 0) {
                return Err(Failure::new(format!("rank {rank} has {state:?}; it met {meets} times")));
            }
        }
        Ok(())
    }
}

impl OnBench for CclFingerprint {
    fn case(&self) -> &Case {
        &self.case
    }

    fn bench(&self) -> &Bench {
        &self.bench
    }

    fn run_and_judge(&mut self, seed: u64, options: &RunOptions) -> Result<Outcome, Failure> {
        self.bench.reset(options)?;
        let odd = self.case.staged.then(|| (mixed(seed ^ 0x5eed) % u64::from(self.case.ranks)) as u32);
        for rank in 0..self.case.ranks {
            let heap = self.bench.ranks[rank as usize].heap;
            let state = ChannelState { is_watched: 1, ..ChannelState::zeroed() };
            self.bench.put(heap, self.layout.channels, &[state])?;
            for round in 0..self.case.rounds {
                let called = self.called(seed, round, rank);
                let last = round + 1 == self.case.rounds;
                let called = if odd == Some(rank) && last { self.changed(called, seed) } else { called };
                self.queue(rank, &called)?;
            }
            if odd.is_some() {
                // What comes behind a difference ends at once, and changes nothing.
                self.queue(rank, &self.called(seed, self.case.rounds, rank))?;
            }
        }
        let run = match odd {
            None => self.bench.run(seed)?,
            Some(_) => self.bench.run_to_a_fault(seed)?,
        };
        let differs = odd.is_some() && self.case.ranks > 1;
        self.judge(differs, self.case.rounds + u32::from(odd.is_some() && !differs))?;
        Ok(Outcome { run })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Protocol, Scenario as _, scratch};

    #[test]
    fn calls_are_compared_under_every_seed() {
        let jit = scratch::jit();
        for (ranks, waves, cumulative, staged) in [
            (2, 2, false, false),
            (3, 2, false, false),
            (4, 1, true, false),
            (1, 1, false, false),
            (2, 1, false, true),
            (3, 2, false, true),
            (3, 2, true, true),
        ] {
            let case = Case { waves, staged, cumulative, ..Case::new(Protocol::CclFingerprint, ranks) };
            let mut scenario = CclFingerprint::new(case.clone(), &mut Kernels::new(&jit, &case)).unwrap();
            for seed in 0..150 {
                let outcome = scenario.run(seed, &RunOptions::default());
                assert!(outcome.is_ok(), "{case:?}, seed {seed}: {:?}", outcome.err());
            }
        }
    }

    #[test]
    fn the_judge_notices_a_difference_that_was_not_found_or_not_there() {
        let jit = scratch::jit();
        for staged in [false, true] {
            let case = Case { staged, ..Case::new(Protocol::CclFingerprint, 2) };
            let mut scenario = CclFingerprint::new(case.clone(), &mut Kernels::new(&jit, &case)).unwrap();
            assert!(scenario.run(3, &RunOptions::default()).is_ok());
            assert!(scenario.judge(staged, case.rounds).is_ok());
            assert!(scenario.judge(!staged, case.rounds).is_err());
            assert!(scenario.judge(staged, case.rounds + 1).is_err());
        }
    }
}
