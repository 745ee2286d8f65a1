//! Atomic operations of all threads of all ranks on one word of each rank. The seed also chooses the operation and the type.

use anabranch_conformance::shmem::{ATOMICS_UNIT, AtomicArgs, AtomicWays, spec};
use anabranch_shmem::OperationCode;
use anabranch_weakmem::SeededKernel;

use super::bench::{Bench, Grid, Kernels, OnBench, WAVE, at, mixed};
use crate::{Case, Failure, Outcome, RunOptions, ScenarioError};

/// Operations, by the numbers of the kernel.
const ADD: u32 = 0;
const FETCH_ADD: u32 = 1;
const OR: u32 = 2;
const AND: u32 = 3;
const XOR: u32 = 4;
const SWAP: u32 = 6;
const COMPARE_SWAP: u32 = 7;
const SIGNAL_ADD: u32 = 9;
const KINDS: [u32; 8] = [ADD, FETCH_ADD, OR, AND, XOR, SWAP, COMPARE_SWAP, SIGNAL_ADD];
/// What is added.
const VALUE: u64 = 3;
/// Bytes of the heap: the word, and zeros around it.
const HEAP: usize = 64;
/// Words of the heap that signals of thread, wave and block add to.
const SIGNALS: [usize; 3] = [0, 2, 4];

#[derive(Debug)]
pub(crate) struct Atomics {
    case: Case,
    bench: Bench,
    kernel: SeededKernel,
    grid: Grid,
}

#[derive(Clone, Copy, Debug)]
struct Choice {
    kind: u32,
    element_bytes: u32,
    is_signed: u32,
}

impl Choice {
    /// A value as the word holds it.
    fn cut(self, value: u64) -> u64 {
        if self.element_bytes == 4 { value & 0xffff_ffff } else { value }
    }
}

impl Atomics {
    pub(crate) fn new(case: Case, kernels: &mut Kernels<'_>) -> Result<Self, ScenarioError> {
        let grid = Grid { blocks: case.blocks, threads: case.waves * WAVE, local_bytes: 0 };
        let own = u64::from(case.ranks * grid.blocks * grid.threads * case.rounds) * 24;
        let bench = Bench::new(&case, case.ranks * grid.blocks * grid.threads, HEAP as u64, own)?;
        let kernel = kernels.load(spec(&ATOMICS_UNIT), "anabranch_shmem_conformance_atomics")?;
        Ok(Self { case, bench, kernel, grid })
    }

    fn participants(&self) -> u32 {
        self.grid.blocks * self.grid.threads
    }

    /// What every rank's threads logged of their operations on `target`: three words each.
    fn logged(&self, target: u32, log: u64) -> Result<Vec<[u64; 3]>, String> {
        let count = (self.participants() * self.case.rounds) as usize;
        let mut all = Vec::new();
        for rank in &self.bench.ranks {
            let from = log + u64::from(target) * count as u64 * 24;
            let words =
                self.bench.get::<u64>(rank.own, from, count * 3).map_err(|error| error.to_string())?;
            all.extend(words.chunks_exact(3).map(|three| [three[0], three[1], three[2]]));
        }
        Ok(all)
    }

    fn judge(&self, me: u32, chosen: Choice, log: u64) -> Result<(), String> {
        let heap = self.bench.ranks[me as usize].heap;
        let found = self.bench.get::<u64>(heap, 0, HEAP / 8).map_err(|error| error.to_string())?;
        let (threads, rounds) =
            (u64::from(self.participants() * self.case.ranks), u64::from(self.case.rounds));
        let bits = u64::from(chosen.element_bytes) * 8;
        let bit = |number: u64| 1 << (number % bits);
        let mut expected = vec![0; HEAP / 8];
        expected[0] = match chosen.kind {
            ADD => {
                let ranks = u64::from(self.case.ranks);
                VALUE * (ranks * (ranks + 1) / 2) * u64::from(self.participants()) * rounds
            }
            FETCH_ADD => VALUE * threads * rounds,
            OR => (0..threads).fold(0, |word, number| word | bit(number)),
            AND => !(0..threads).fold(0, |word, number| word | bit(number)),
            XOR => (0..threads * rounds).fold(0, |word, number| word ^ bit(number % threads)),
            COMPARE_SWAP => threads * rounds,
            // The last one stands; which, the log tells below.
            SWAP => found[0],
            _ => 0,
        };
        expected[0] = chosen.cut(expected[0]);
        if chosen.kind == SIGNAL_ADD {
            let groups = [threads, threads / u64::from(WAVE), u64::from(self.grid.blocks * self.case.ranks)];
            for (word, count) in SIGNALS.into_iter().zip(groups) {
                expected[word] = VALUE * count * rounds;
            }
        }
        if found != expected {
            return Err(format!("the heap is {found:?}, expected {expected:?}"));
        }
        let logged = self.logged(me, log)?;
        let mut old: Vec<u64> = logged.iter().map(|three| chosen.cut(three[0])).collect();
        let mut once: Vec<u64> = match chosen.kind {
            FETCH_ADD => (0..threads * rounds).map(|number| VALUE * number).collect(),
            COMPARE_SWAP => (0..threads * rounds).collect(),
            SWAP => {
                old.push(found[0]);
                logged.iter().map(|three| chosen.cut(three[1])).chain([0]).collect()
            }
            _ => return Ok(()),
        };
        old.sort_unstable();
        once.sort_unstable();
        if old != once {
            return Err(format!("old values {old:?}, expected each of {once:?} once"));
        }
        Ok(())
    }
}

impl OnBench for Atomics {
    fn case(&self) -> &Case {
        &self.case
    }

    fn bench(&self) -> &Bench {
        &self.bench
    }

    fn run_and_judge(&mut self, seed: u64, options: &RunOptions) -> Result<Outcome, Failure> {
        self.bench.reset(options)?;
        let drawn = mixed(seed ^ 0x0061_746f_6d69_6373);
        let chosen = Choice {
            kind: KINDS[(drawn % 8) as usize],
            element_bytes: if drawn >> 8 & 1 == 0 { 4 } else { 8 },
            is_signed: (drawn >> 9 & 1) as u32,
        };
        let log = Bench::own_start(self.case.ranks);
        for me in 0..self.case.ranks {
            let memory = self.bench.ranks[me as usize];
            if chosen.kind == AND {
                self.bench.put(memory.heap, 0, &[chosen.cut(u64::MAX)])?;
            }
            let args = AtomicArgs {
                team: self.bench.team(me),
                log: at(memory.own, log),
                words: 0,
                value: VALUE,
                participants: self.participants(),
                rounds: self.case.rounds,
                kind: chosen.kind,
                element_bytes: chosen.element_bytes,
                is_signed: chosen.is_signed,
                operation: OperationCode::SIGNAL_WAIT.0,
                ways: AtomicWays::Mapped as u32 | AtomicWays::Nic as u32,
                reserved: 0,
            };
            self.bench.launch(me, &self.kernel, self.grid, &args)?;
        }
        let run = self.bench.run(seed)?;
        for me in 0..self.case.ranks {
            self.judge(me, chosen, log)
                .map_err(|problem| Failure::new(format!("{chosen:?}, rank {me}: {problem}")))?;
        }
        Ok(Outcome { run })
    }
}
