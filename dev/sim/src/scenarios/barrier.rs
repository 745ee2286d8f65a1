//! The team barrier in the order of a stream: every rank writes its heap, all meet, every rank reads every heap, all meet.

use anabranch_hip_jit::KernelSpec;
use anabranch_shmem::{OperationCode, TEAM_BARRIER_UNIT, TeamBarrierArgs};
use anabranch_weakmem::SeededKernel;

use super::bench::{Bench, Grid, Kernels, OnBench, WAVE, at};
use crate::kernels::{AROUND, AroundArgs};
use crate::{Case, Failure, Outcome, RunOptions, ScenarioError};

#[derive(Debug)]
pub(crate) struct Barrier {
    case: Case,
    bench: Bench,
    meet: SeededKernel,
    write: SeededKernel,
    read: SeededKernel,
    /// In the heap, behind the flags.
    data: u64,
    /// In a rank's own memory: the barrier's epoch, then the count of wrong words.
    epoch: u64,
}

impl Barrier {
    pub(crate) fn new(case: Case, kernels: &mut Kernels<'_>) -> Result<Self, ScenarioError> {
        let threads = case.waves * WAVE;
        let data = u64::from(case.ranks) * 8;
        let bench = Bench::new(&case, case.ranks * threads, data + u64::from(threads) * 8, 16)?;
        let around = || KernelSpec::new(&AROUND);
        Ok(Self {
            bench,
            meet: kernels.load(KernelSpec::new(&TEAM_BARRIER_UNIT), "anabranch_team_barrier")?,
            write: kernels.load_right(around(), "anabranch_sim_write")?,
            read: kernels.load_right(around(), "anabranch_sim_read")?,
            data,
            epoch: Bench::own_start(case.ranks),
            case,
        })
    }

    fn queue(&mut self, rank: u32) -> Result<(), Failure> {
        let grid = Grid { blocks: 1, threads: self.case.waves * WAVE, local_bytes: 0 };
        let (team, own) = (self.bench.team(rank), self.bench.ranks[rank as usize].own);
        let operation = OperationCode::TEAM_BARRIER.0;
        let meet = TeamBarrierArgs { team, flags: 0, epoch: at(own, self.epoch), operation, reserved: 0 };
        for value in 1..=u64::from(self.case.rounds) {
            let wrong = at(own, self.epoch + 8);
            let around = AroundArgs { team, data: self.data, value, wrong, peer: 0, reserved: 0 };
            self.bench.launch(rank, &self.write, grid, &around)?;
            self.bench.launch(rank, &self.meet, grid, &meet)?;
            self.bench.launch(rank, &self.read, grid, &around)?;
            self.bench.launch(rank, &self.meet, grid, &meet)?;
        }
        Ok(())
    }

    fn prepare(&mut self, options: &RunOptions) -> Result<(), Failure> {
        self.bench.reset(options)?;
        for rank in 0..self.case.ranks as usize {
            let own = self.bench.ranks[rank].own;
            self.bench.put(own, self.epoch, &[0_u64, 0])?;
        }
        Ok(())
    }
}

impl OnBench for Barrier {
    fn case(&self) -> &Case {
        &self.case
    }

    fn bench(&self) -> &Bench {
        &self.bench
    }

    fn run_and_judge(&mut self, seed: u64, options: &RunOptions) -> Result<Outcome, Failure> {
        self.prepare(options)?;
        for rank in 0..self.case.ranks {
            self.queue(rank)?;
        }
        let run = self.bench.run(seed)?;
        let epochs = u64::from(self.case.rounds) * 2;
        for (number, rank) in self.bench.ranks.iter().enumerate() {
            let words = self.bench.get::<u64>(rank.own, self.epoch, 2)?;
            if words != [epochs, 0] {
                let [epoch, wrong] = [words[0], words[1]];
                return Err(Failure::new(format!(
                    "rank {number} is at epoch {epoch} of {epochs} and read {wrong} words of another round"
                )));
            }
            let flags = self.bench.get::<u64>(rank.heap, 0, self.case.ranks as usize)?;
            if flags.iter().any(|flag| *flag != epochs) {
                return Err(Failure::new(format!(
                    "rank {number} has flags {flags:?}, all should be {epochs}"
                )));
            }
        }
        Ok(Outcome { run })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::bench::BUDGET_NS;
    use crate::{Protocol, scratch};

    #[test]
    fn a_member_that_never_comes_is_named() {
        let jit = scratch::jit();
        // A rank that gives up orders nothing: accesses after its barrier race.
        let case = Case { values_only: true, ..Case::new(Protocol::Barrier, 3) };
        let mut barrier = Barrier::new(case.clone(), &mut Kernels::new(&jit, &case)).unwrap();
        for seed in 0..100 {
            barrier.prepare(&RunOptions::default()).unwrap();
            barrier.queue(0).unwrap();
            barrier.queue(2).unwrap();
            let run = barrier.bench.run_to_a_fault(seed).unwrap();
            assert!(run.virtual_ns > BUDGET_NS, "{run:?}");
            for rank in [0, 2] {
                let record = barrier.bench.record(rank).unwrap();
                let told = (record.state, record.peer, record.epoch, record.rank, record.operation);
                assert_eq!(told, (2, 1, 1, rank, OperationCode::TEAM_BARRIER.0), "seed {seed}");
            }
        }
    }
}
