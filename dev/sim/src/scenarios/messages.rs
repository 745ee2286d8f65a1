//! Messages of the device API between all pairs, or to the next rank only, over two slots a pair. The seed also chooses who
//! sends together (thread, wave, block), how, how the signal is given, how long messages are and how they are aligned.

use anabranch_shmem::OperationCode;
use anabranch_weakmem::SeededKernel;

use super::bench::{Bench, Grid, Kernels, OnBench, UNTOUCHED, WAVE, at, mixed};
use crate::kernels::{MessagesArgs, messages};
use crate::{Case, Failure, Outcome, Protocol, RunOptions, ScenarioError};

/// Slots of a pair; `WINDOW` in the kernel.
const WINDOW: u32 = 2;
/// Bytes before, between and behind messages.
const GUARD: u32 = 16;

/// What the seed chooses beside the order of things.
#[derive(Clone, Copy, Debug)]
struct Choice {
    form: u32,
    scope: u32,
    adds: u32,
    bytes: u32,
    /// Bytes by which slots are off their alignment.
    skew: u32,
}

#[derive(Debug)]
pub(crate) struct Messages {
    case: Case,
    bench: Bench,
    kernel: SeededKernel,
    stride: u32,
}

impl Messages {
    pub(crate) fn new(case: Case, kernels: &mut Kernels<'_>) -> Result<Self, ScenarioError> {
        let stride = (case.tokens * 8 + 8 + GUARD).next_multiple_of(16);
        let all = u64::from(case.ranks * stride);
        let heap = Self::slots(&case) + all * u64::from(WINDOW) + u64::from(GUARD);
        let own = 2 * all * u64::from(case.rounds) + u64::from(case.ranks) * 8;
        let lanes = case.ranks * Self::blocks(&case) * case.waves * WAVE;
        let bench = Bench::new(&case, lanes, heap, own)?;
        let kernel =
            kernels.load(messages(case.protocol == Protocol::PutSignal), "anabranch_sim_messages")?;
        Ok(Self { case, bench, kernel, stride })
    }

    fn blocks(case: &Case) -> u32 {
        if case.staged { 2 } else { 2 * case.ranks }
    }

    fn slots(case: &Case) -> u64 {
        u64::from(case.ranks * 16).next_multiple_of(64)
    }

    fn choose(&self, seed: u64) -> Choice {
        let chosen = mixed(seed ^ 0x006d_6573_7361_6765);
        let pick = |shift: u32, count: u64| ((chosen >> shift) % count) as u32;
        let whole = self.case.tokens * 8;
        let bytes = [whole, whole, whole, whole, whole + 3, whole - 1, 1, 0][pick(0, 8) as usize];
        let (form, scope) = match self.case.protocol {
            Protocol::PutSignal => (0, pick(16, 3)),
            // Fences are a thread's.
            _ => [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0)][pick(8, 5) as usize],
        };
        Choice { form, scope, adds: pick(24, 2), bytes, skew: [0, 0, 8, 1][pick(32, 4) as usize] }
    }

    /// The message of a round, with the guard behind it.
    fn message(&self, from: u32, to: u32, round: u32, bytes: u32, guard: u8) -> Vec<u8> {
        let number = u64::from(from) << 48 | u64::from(to) << 32 | u64::from(round) << 16;
        let byte = |i: u32| if i < bytes { mixed(number | u64::from(i)) as u8 } else { guard };
        (0..self.stride).map(byte).collect()
    }

    /// Whether `from` sends to `to`.
    fn pair(&self, from: u32, to: u32) -> bool {
        !self.case.staged || (from + 1) % self.case.ranks == to
    }

    fn of(chosen: Choice, failure: Failure) -> Failure {
        Failure { problem: format!("{chosen:?}: {}", failure.problem), ..failure }
    }

    fn judge(&self, me: u32, chosen: Choice, [log, statuses]: [u64; 2]) -> Result<(), Failure> {
        let (ranks, rounds, stride) = (self.case.ranks, self.case.rounds, self.stride as usize);
        let memory = self.bench.ranks[me as usize];
        let told = self.bench.get::<u32>(memory.own, statuses, Self::blocks(&self.case) as usize)?;
        if told.iter().any(|status| *status != 0) {
            return Err(Failure::new(format!("rank {me} answers {told:?}")));
        }
        let words = self.bench.get::<u64>(memory.heap, 0, ranks as usize * 2)?;
        let expected =
            (0..ranks).map(|peer| self.pair(peer, me)).chain((0..ranks).map(|peer| self.pair(me, peer)));
        let expected: Vec<u64> = expected.map(|sends| if sends { u64::from(rounds) } else { 0 }).collect();
        if words != expected {
            return Err(Failure::new(format!("rank {me} has signals {words:?}, expected {expected:?}")));
        }
        for (round, peer) in (1..=rounds).flat_map(|round| (0..ranks).map(move |peer| (round, peer))) {
            let read = self.bench.get::<u8>(
                memory.own,
                log + u64::from((round - 1) * ranks + peer) * stride as u64,
                stride,
            )?;
            let bytes = if self.pair(peer, me) { chosen.bytes } else { 0 };
            let message = self.message(peer, me, round, bytes, UNTOUCHED);
            if let Some(byte) = (0..stride).find(|byte| read[*byte] != message[*byte]) {
                return Err(Failure::new(format!(
                    "rank {me}, message {round} from rank {peer}: byte {byte} is {:#x}, expected {:#x}",
                    read[byte], message[byte]
                )));
            }
        }
        self.judge_slots(me, chosen)
    }

    /// The slots hold the last messages, and nothing around them was touched.
    fn judge_slots(&self, me: u32, chosen: Choice) -> Result<(), Failure> {
        let (ranks, rounds) = (self.case.ranks, self.case.rounds);
        let mut expected = vec![0; chosen.skew as usize];
        for (peer, slot) in (0..ranks).flat_map(|peer| (0..WINDOW).map(move |slot| (peer, slot))) {
            let last = (1..=rounds).rev().find(|round| round % WINDOW == slot);
            let bytes = if self.pair(peer, me) && last.is_some() { chosen.bytes } else { 0 };
            expected.extend(self.message(peer, me, last.unwrap_or(0), bytes, 0));
        }
        expected.resize((ranks * WINDOW * self.stride + GUARD) as usize, 0);
        let heap = self.bench.ranks[me as usize].heap;
        let found = self.bench.get::<u8>(heap, Self::slots(&self.case), expected.len())?;
        match (0..found.len()).find(|byte| found[*byte] != expected[*byte]) {
            Some(byte) => Err(Failure::new(format!(
                "rank {me}: byte {byte} of the slots is {:#x} in the end, expected {:#x}",
                found[byte], expected[byte]
            ))),
            None => Ok(()),
        }
    }
}

impl OnBench for Messages {
    fn case(&self) -> &Case {
        &self.case
    }

    fn bench(&self) -> &Bench {
        &self.bench
    }

    fn run_and_judge(&mut self, seed: u64, options: &RunOptions) -> Result<Outcome, Failure> {
        self.bench.reset(options)?;
        let chosen = self.choose(seed);
        let (ranks, rounds) = (self.case.ranks, self.case.rounds);
        let prepared = Bench::own_start(ranks);
        let row = |round: u32, peer: u32| u64::from((round - 1) * ranks + peer) * u64::from(self.stride);
        let log = prepared + row(rounds + 1, 0);
        let statuses = log + row(rounds + 1, 0);
        for me in 0..ranks {
            let own = self.bench.ranks[me as usize].own;
            for (round, peer) in (1..=rounds).flat_map(|round| (0..ranks).map(move |peer| (round, peer))) {
                let message = self.message(me, peer, round, chosen.bytes, UNTOUCHED);
                self.bench.put(own, prepared + row(round, peer), &message)?;
            }
            let args = MessagesArgs {
                team: self.bench.team(me),
                prepared: at(own, prepared),
                log: at(own, log),
                statuses: at(own, statuses),
                slots: Self::slots(&self.case) + u64::from(chosen.skew),
                arrived: 0,
                consumed: u64::from(ranks) * 8,
                bytes: chosen.bytes,
                stride: self.stride,
                rounds,
                form: chosen.form,
                scope: chosen.scope,
                adds: chosen.adds,
                operation: OperationCode::SIGNAL_WAIT.0,
                reserved: 0,
            };
            let grid =
                Grid { blocks: Self::blocks(&self.case), threads: self.case.waves * WAVE, local_bytes: 0 };
            self.bench.launch(me, &self.kernel, grid, &args)?;
        }
        let run = self.bench.run(seed).map_err(|failure| Self::of(chosen, failure))?;
        for me in 0..ranks {
            self.judge(me, chosen, [log, statuses]).map_err(|failure| Self::of(chosen, failure))?;
        }
        Ok(Outcome { run })
    }
}
