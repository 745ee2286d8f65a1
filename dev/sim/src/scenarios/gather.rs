//! Every rank puts a row to every rank behind a signal; everyone waits for all of them, and reads. The seed also chooses how
//! everyone waits: for all words, for any, by looking, or for a sum.

use anabranch_hip_jit::KernelSpec;
use anabranch_shmem::OperationCode;
use anabranch_weakmem::SeededKernel;

use super::bench::{Bench, Grid, Kernels, OnBench, WAVE, at, mixed};
use crate::kernels::{GATHER, GatherArgs};
use crate::{Case, Failure, Outcome, RunOptions, ScenarioError};

/// Forms, by the numbers of the kernel.
const FORMS: u64 = 6;
const ANY: [u32; 2] = [2, 3];
const SUM: u32 = 5;
const NOTHING: u64 = u64::from_ne_bytes([super::bench::UNTOUCHED; 8]);

#[derive(Debug)]
pub(crate) struct Gather {
    case: Case,
    bench: Bench,
    kernel: SeededKernel,
}

impl Gather {
    pub(crate) fn new(case: Case, kernels: &mut Kernels<'_>) -> Result<Self, ScenarioError> {
        let pairs = u64::from(case.rounds * case.ranks);
        let words = u64::from(case.tokens);
        // A row more than is used: a guard.
        let heap = pairs * 8 + (pairs + 1) * words * 8;
        let own = 8 + u64::from(case.rounds) * words * 8 + (pairs + 1) * words * 8;
        let lanes = case.ranks * 2 * case.waves * WAVE;
        let bench = Bench::new(&case, lanes, heap, own)?;
        let kernel = kernels.load(KernelSpec::new(&GATHER), "anabranch_sim_gather")?;
        Ok(Self { case, bench, kernel })
    }

    fn row(&self, from: u32, round: u32) -> Vec<u64> {
        let number = u64::from(from) << 32 | u64::from(round) << 16;
        (0..u64::from(self.case.tokens)).map(|word| mixed(number | word)).collect()
    }

    fn judge(&self, me: u32, form: u32, [status, log]: [u64; 2]) -> Result<(), Failure> {
        let (ranks, rounds, words) = (self.case.ranks, self.case.rounds, self.case.tokens as usize);
        let memory = self.bench.ranks[me as usize];
        let told = self.bench.get::<u32>(memory.own, status, 1)?[0];
        if told != 0 {
            return Err(Failure::new(format!("rank {me} answers {told}")));
        }
        let sent = |from: u32, round: u32| !ANY.contains(&form) || round % ranks == from;
        let pairs = (0..rounds).flat_map(|round| (0..ranks).map(move |from| (round, from)));
        let mut flags = vec![0; (rounds * ranks) as usize];
        let (mut logged, mut arrived) = (Vec::new(), Vec::new());
        for (round, from) in pairs {
            let row = self.row(from, round);
            if sent(from, round) {
                let place = if form == SUM { 0 } else { round * ranks + from };
                flags[place as usize] += 1;
            }
            logged.extend(row.iter().map(|word| if sent(from, round) { *word } else { NOTHING }));
            arrived.extend(row.iter().map(|word| if sent(from, round) { *word } else { 0 }));
        }
        logged.resize(logged.len() + words, NOTHING);
        arrived.resize(arrived.len() + words, 0);
        let flag_bytes = flags.len() as u64 * 8;
        for (what, from, offset, expected) in [
            ("what was read", memory.own, log, &logged),
            ("the signals", memory.heap, 0, &flags),
            ("the rows in the end", memory.heap, flag_bytes, &arrived),
        ] {
            let found = self.bench.get::<u64>(from, offset, expected.len())?;
            if let Some(word) = (0..found.len()).find(|word| found[*word] != expected[*word]) {
                return Err(Failure::new(format!(
                    "rank {me}: word {word} of {what} is {:#x}, expected {:#x}",
                    found[word], expected[word]
                )));
            }
        }
        Ok(())
    }
}

impl OnBench for Gather {
    fn case(&self) -> &Case {
        &self.case
    }

    fn bench(&self) -> &Bench {
        &self.bench
    }

    fn run_and_judge(&mut self, seed: u64, options: &RunOptions) -> Result<Outcome, Failure> {
        self.bench.reset(options)?;
        let form = (mixed(seed ^ 0x6761_7468_6572) % FORMS) as u32;
        let (ranks, rounds) = (self.case.ranks, self.case.rounds);
        let words = u64::from(self.case.tokens);
        let status = Bench::own_start(ranks);
        let prepared = status + 8;
        let log = prepared + u64::from(rounds) * words * 8;
        for me in 0..ranks {
            let own = self.bench.ranks[me as usize].own;
            for round in 0..rounds {
                self.bench.put(own, prepared + u64::from(round) * words * 8, &self.row(me, round))?;
            }
            let args = GatherArgs {
                team: self.bench.team(me),
                prepared: at(own, prepared),
                log: at(own, log),
                status: at(own, status),
                rows: u64::from(rounds * ranks) * 8,
                flags: 0,
                words: self.case.tokens,
                rounds,
                form,
                operation: OperationCode::SIGNAL_WAIT.0,
            };
            let grid = Grid { blocks: 2, threads: self.case.waves * WAVE, local_bytes: 0 };
            self.bench.launch(me, &self.kernel, grid, &args)?;
        }
        let of_form =
            |failure: Failure| Failure { problem: format!("form {form}: {}", failure.problem), ..failure };
        let run = self.bench.run(seed).map_err(of_form)?;
        for me in 0..ranks {
            self.judge(me, form, [status, log]).map_err(of_form)?;
        }
        Ok(Outcome { run })
    }
}
