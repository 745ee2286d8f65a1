//! Barriers within a kernel: every thread puts a value to every rank and stores one in its own heap, the team meets, every
//! thread reads what others put here and gets what the next rank stored there. Buffers alternate by the round.

use anabranch_conformance::shmem::{BARRIER_UNIT, BarrierArgs, spec};
use anabranch_shmem::OperationCode;
use anabranch_shmem::device_api::BarrierWorkspace;
use anabranch_weakmem::SeededKernel;

use super::bench::{Bench, Grid, Kernels, OnBench, WAVE, at, mixed};
use crate::{Case, Failure, Outcome, RunOptions, ScenarioError};

#[derive(Debug)]
pub(crate) struct DeviceBarrier {
    case: Case,
    bench: Bench,
    kernel: SeededKernel,
    threads: u32,
}

impl DeviceBarrier {
    pub(crate) fn new(case: Case, kernels: &mut Kernels<'_>) -> Result<Self, ScenarioError> {
        let threads = case.waves * WAVE;
        let words = Self::words(&case) as u64;
        // The heap has a row more than is used: a guard.
        let heap = Self::slots(&case) + 2 * words * 8 + u64::from(threads) * 8;
        let own = 64 + u64::from(case.rounds) * words * 8 + u64::from(threads) * 4;
        let bench = Bench::new(&case, case.ranks * threads, heap, own)?;
        let kernel = kernels.load(spec(&BARRIER_UNIT), "anabranch_shmem_conformance_barrier")?;
        Ok(Self { case, bench, kernel, threads })
    }

    /// Words that one rank has to read in a round: one of every rank for each thread, and one that it gets.
    fn words(case: &Case) -> usize {
        ((case.ranks + 1) * case.waves * WAVE) as usize
    }

    fn slots(case: &Case) -> u64 {
        BarrierWorkspace::flag_bytes(case.ranks).next_multiple_of(64)
    }

    /// What `rank` must have read after the barrier of `round`.
    fn expected(&self, rank: u32, round: u32) -> Vec<u64> {
        let (ranks, threads) = (self.case.ranks, self.threads);
        let value = |from: u32, thread: u32| {
            let number = (u64::from(round) * u64::from(ranks) + u64::from(from)) * u64::from(threads);
            mixed(number + u64::from((thread + 1) % threads))
        };
        let put = (0..ranks).flat_map(|peer| {
            (0..threads).map(move |thread| value(peer, thread).wrapping_add(u64::from(rank)))
        });
        let got = (0..threads).map(|thread| !value((rank + 1) % ranks, thread));
        put.chain(got).collect()
    }
}

impl OnBench for DeviceBarrier {
    fn case(&self) -> &Case {
        &self.case
    }

    fn bench(&self) -> &Bench {
        &self.bench
    }

    fn run_and_judge(&mut self, seed: u64, options: &RunOptions) -> Result<Outcome, Failure> {
        self.bench.reset(options)?;
        let (case, threads, words) = (&self.case, self.threads, Self::words(&self.case));
        let epoch = Bench::own_start(case.ranks);
        let log = epoch + 64;
        let statuses = log + u64::from(case.rounds) * words as u64 * 8;
        for rank in 0..case.ranks {
            let own = self.bench.ranks[rank as usize].own;
            self.bench.put(own, epoch, &[0_u64])?;
            let args = BarrierArgs {
                team: self.bench.team(rank),
                workspace: BarrierWorkspace { flags: 0, epoch: at(own, epoch) },
                log: at(own, log),
                statuses: at(own, statuses),
                slots: Self::slots(case),
                skew_ns: 0,
                first_round: 0,
                rounds: case.rounds,
                kind: u32::from(case.staged),
                operation: OperationCode::TEAM_BARRIER.0,
            };
            let grid = Grid { blocks: 1, threads, local_bytes: 0 };
            self.bench.launch(rank, &self.kernel, grid, &args)?;
        }
        let run = self.bench.run(seed)?;
        for rank in 0..case.ranks {
            let memory = self.bench.ranks[rank as usize];
            let told = self.bench.get::<u32>(memory.own, statuses, threads as usize)?;
            if told.iter().any(|status| *status != 0) {
                return Err(Failure::new(format!("rank {rank} answers {told:?}")));
            }
            for round in 0..case.rounds {
                let at = log + u64::from(round) * words as u64 * 8;
                let read = self.bench.get::<u64>(memory.own, at, words)?;
                if let Some(place) =
                    (0..words).find(|place| read[*place] != self.expected(rank, round)[*place])
                {
                    let (row, thread) = (place as u32 / threads, place as u32 % threads);
                    return Err(Failure::new(format!(
                        "rank {rank}, round {round}, thread {thread}: word {row} is {:#x}, expected {:#x}",
                        read[place],
                        self.expected(rank, round)[place]
                    )));
                }
            }
            let rounds = u64::from(case.rounds);
            let flags = self.bench.get::<u64>(memory.heap, 0, case.ranks as usize)?;
            let epoch = self.bench.get::<u64>(memory.own, epoch, 1)?[0];
            let guard = self.bench.get::<u64>(
                memory.heap,
                Self::slots(case) + 2 * words as u64 * 8,
                threads as usize,
            )?;
            if epoch != rounds
                || flags.iter().any(|flag| *flag != rounds)
                || guard.iter().any(|word| *word != 0)
            {
                return Err(Failure::new(format!(
                    "rank {rank} is at epoch {epoch} with flags {flags:?}, all should be {rounds}; the guard is {guard:?}"
                )));
            }
        }
        Ok(Outcome { run })
    }
}
