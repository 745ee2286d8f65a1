//! A payload and a flag to and fro between the ranks of a pair, in two launches; every fourth seed sends the flag alone.

use anabranch_hip_jit::KernelSpec;
use anabranch_shmem::OperationCode;
use anabranch_shmem::p2p::{P2P_UNIT, P2pPingArgs};
use anabranch_weakmem::SeededKernel;

use super::bench::{Bench, Grid, Kernels, OnBench, WAVE, at, mixed};
use crate::{Case, CaseError, Failure, Outcome, RunOptions, ScenarioError};

/// Units that a thread sends (`PAYLOAD_UNITS`), and launches.
const UNITS_A_THREAD: u32 = 2;
const LAUNCHES: u64 = 2;
/// Local memory of the kernel.
const LOCAL_BYTES: u32 = 16;

#[derive(Debug)]
pub(crate) struct Ping {
    case: Case,
    bench: Bench,
    kernel: SeededKernel,
    /// Of the payload.
    units: u32,
}

impl Ping {
    pub(crate) fn new(case: Case, kernels: &mut Kernels<'_>) -> Result<Self, ScenarioError> {
        if case.ranks < 2 {
            let (protocol, given) = (case.protocol, case.ranks);
            return Err(CaseError::Range { protocol, what: "ranks", given, least: 2, most: 8 }.into());
        }
        let threads = case.waves * WAVE;
        let units = case.tokens.min(UNITS_A_THREAD * threads);
        // Flags, what is sent, what comes, and a unit that must stay untouched.
        let heap = Self::outgoing(&case) + u64::from(2 * units + 1) * 16;
        let bench = Bench::new(&case, case.ranks * threads, heap, 16)?;
        let kernel = kernels.load(KernelSpec::new(&P2P_UNIT), "anabranch_p2p_ping")?;
        Ok(Self { case, bench, kernel, units })
    }

    fn outgoing(case: &Case) -> u64 {
        (u64::from(case.ranks) * 8).next_multiple_of(16)
    }

    /// The other rank of the pair; the last of an odd number of ranks has none.
    fn peer(&self, rank: u32) -> Option<u32> {
        Some(rank ^ 1).filter(|peer| *peer < self.case.ranks)
    }

    fn judge(&self, rank: u32, units: u32, [words, incoming]: [u64; 2]) -> Result<(), Failure> {
        let memory = self.bench.ranks[rank as usize];
        let peer = self.peer(rank);
        let last = if peer.is_some() { LAUNCHES * u64::from(self.case.rounds) } else { 0 };
        let told = self.bench.get::<u64>(memory.own, words, 2)?;
        if told != [last, 0] {
            let [base, wrong] = [told[0], told[1]];
            return Err(Failure::new(format!(
                "rank {rank} is at round {base} of {last} and found {wrong} units of another round"
            )));
        }
        let mut flags = vec![0; self.case.ranks as usize];
        let mut units_expected = Vec::new();
        if let Some(peer) = peer {
            flags[peer as usize] = last;
            units_expected = (0..units).map(|unit| [peer, last as u32, (last >> 32) as u32, unit]).collect();
        }
        units_expected.resize(self.units as usize + 1, [0; 4]);
        let found = self.bench.get::<u64>(memory.heap, 0, flags.len())?;
        let came = self.bench.get::<[u32; 4]>(memory.heap, incoming, units_expected.len())?;
        if found != flags || came != units_expected {
            return Err(Failure::new(format!(
                "rank {rank} has flags {found:?}, expected {flags:?}, and {came:?}, expected {units_expected:?}"
            )));
        }
        Ok(())
    }
}

impl OnBench for Ping {
    fn case(&self) -> &Case {
        &self.case
    }

    fn bench(&self) -> &Bench {
        &self.bench
    }

    fn run_and_judge(&mut self, seed: u64, options: &RunOptions) -> Result<Outcome, Failure> {
        self.bench.reset(options)?;
        let units = if mixed(seed ^ 0x7069_6e67).is_multiple_of(4) { 0 } else { self.units };
        let words = Bench::own_start(self.case.ranks);
        let outgoing = Self::outgoing(&self.case);
        let incoming = outgoing + u64::from(self.units) * 16;
        let grid = Grid { blocks: 1, threads: self.case.waves * WAVE, local_bytes: LOCAL_BYTES };
        for rank in 0..self.case.ranks {
            let own = self.bench.ranks[rank as usize].own;
            self.bench.put(own, words, &[0_u64, 0])?;
            let Some(peer) = self.peer(rank) else { continue };
            let args = P2pPingArgs {
                team: self.bench.team(rank),
                base: at(own, words),
                wrong: at(own, words + 8),
                flags_offset: 0,
                outgoing,
                incoming,
                bytes: u64::from(units) * 16,
                flag_stride: 8,
                peer,
                first: u32::from(rank < peer),
                rounds: self.case.rounds,
                operation: OperationCode::SIGNAL_WAIT.0,
                verify: 1,
            };
            for _ in 0..LAUNCHES {
                self.bench.launch(rank, &self.kernel, grid, &args)?;
            }
        }
        let run = self.bench.run(seed)?;
        for rank in 0..self.case.ranks {
            self.judge(rank, units, [words, incoming])?;
        }
        Ok(Outcome { run })
    }
}
