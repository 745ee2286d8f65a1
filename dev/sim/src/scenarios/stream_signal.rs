//! Signals in the order of a stream: every rank writes into the next rank's heap and signals there; the next rank waits and
//! compares. Each round has words of its own, so that a rank may be several rounds ahead of the next.

use anabranch_hip_jit::KernelSpec;
use anabranch_shmem::{OperationCode, TEAM_BARRIER_UNIT, TeamSignalArgs};
use anabranch_weakmem::SeededKernel;

use super::bench::{Bench, Grid, Kernels, OnBench, WAVE, at};
use crate::kernels::{AROUND, AroundArgs};
use crate::{Case, Failure, Outcome, RunOptions, ScenarioError};

/// In the heap: the word that is set, the word that is added to, the data.
const SET: u64 = 0;
const SUM: u64 = 8;
const DATA: u64 = 16;

#[derive(Debug)]
pub(crate) struct StreamSignal {
    case: Case,
    bench: Bench,
    signal: SeededKernel,
    wait: SeededKernel,
    push: SeededKernel,
    look: SeededKernel,
    /// In a rank's own memory.
    wrong: u64,
}

impl StreamSignal {
    pub(crate) fn new(case: Case, kernels: &mut Kernels<'_>) -> Result<Self, ScenarioError> {
        let threads = case.waves * WAVE;
        let heap = DATA + u64::from(case.rounds * threads) * 8;
        let team = || KernelSpec::new(&TEAM_BARRIER_UNIT);
        let around = || KernelSpec::new(&AROUND);
        Ok(Self {
            bench: Bench::new(&case, case.ranks * threads, heap, 8)?,
            signal: kernels.load(team(), "anabranch_team_signal")?,
            wait: kernels.load(team(), "anabranch_team_signal_wait")?,
            push: kernels.load_right(around(), "anabranch_sim_push")?,
            look: kernels.load_right(around(), "anabranch_sim_look")?,
            wrong: Bench::own_start(case.ranks),
            case,
        })
    }

    fn queue(&mut self, rank: u32) -> Result<(), Failure> {
        let threads = self.case.waves * WAVE;
        let (grid, one) = (Grid { blocks: 1, threads, local_bytes: 0 }, WAVE);
        let (next, before) = ((rank + 1) % self.case.ranks, (rank + self.case.ranks - 1) % self.case.ranks);
        let (team, mine) = (self.bench.team(rank), self.bench.ranks[rank as usize]);
        let theirs = self.bench.ranks[next as usize].heap;
        let around = |round: u64| AroundArgs {
            team,
            data: DATA + (round - 1) * u64::from(threads) * 8,
            value: round << 8 | 1,
            wrong: at(mine.own, self.wrong),
            peer: next,
            reserved: 0,
        };
        let word = |word, value, how, operation: OperationCode| TeamSignalArgs {
            team,
            word,
            value,
            how,
            operation: operation.0,
        };
        let narrow = Grid { threads: one, ..grid };
        for round in 1..=u64::from(self.case.rounds) {
            self.bench.launch(rank, &self.push, grid, &around(round))?;
            let set = word(at(theirs, SET), round, 0, OperationCode::SIGNAL_WAIT);
            self.bench.launch(rank, &self.signal, narrow, &set)?;
            // Everybody adds to the word of rank 0.
            let sum = word(at(self.bench.ranks[0].heap, SUM), 1, 1, OperationCode::SIGNAL_WAIT);
            self.bench.launch(rank, &self.signal, narrow, &sum)?;
        }
        for round in 1..=u64::from(self.case.rounds) {
            let wait = word(at(mine.heap, SET), round, before, OperationCode::SIGNAL_WAIT);
            self.bench.launch(rank, &self.wait, narrow, &wait)?;
            self.bench.launch(rank, &self.look, grid, &around(round))?;
        }
        Ok(())
    }
}

impl OnBench for StreamSignal {
    fn case(&self) -> &Case {
        &self.case
    }

    fn bench(&self) -> &Bench {
        &self.bench
    }

    fn run_and_judge(&mut self, seed: u64, options: &RunOptions) -> Result<Outcome, Failure> {
        self.bench.reset(options)?;
        for rank in 0..self.case.ranks {
            let own = self.bench.ranks[rank as usize].own;
            self.bench.put(own, self.wrong, &[0_u64])?;
            self.queue(rank)?;
        }
        let run = self.bench.run(seed)?;
        for (number, rank) in self.bench.ranks.iter().enumerate() {
            let wrong = self.bench.get::<u64>(rank.own, self.wrong, 1)?[0];
            let words = self.bench.get::<u64>(rank.heap, 0, 2)?;
            let all = if number == 0 { u64::from(self.case.ranks * self.case.rounds) } else { 0 };
            if wrong != 0 || words != [u64::from(self.case.rounds), all] {
                return Err(Failure::new(format!(
                    "rank {number} found {wrong} words of another round; its signals are {words:?}, the sum should be {all}"
                )));
            }
        }
        Ok(Outcome { run })
    }
}
