//! Collectives of members on several machines, as steps over links: launches after each other, each a call that the seed chooses, directly or
//! by node, over links of few and small slots, so that every slot is used many times and every chunk waits for room. Two ranks are on
//! a machine; with `staged` each is on one of its own, so that all goes through the device functions of the heap.

use anabranch_ccl::kernels::{NETWORK_MOVE, NETWORK_REDUCE, spec};
use anabranch_ccl::lowered::internode::LinkLayout;
use anabranch_ccl::lowered::internode::{self as schedule, Exchange, Step};
use anabranch_ccl::lowered::internode::{NetworkArgs, Reduction};
use anabranch_ccl::lowered::internode::{Tensors, list};
use anabranch_ccl::{DataType, OPERATION, ReduceOp};
use anabranch_hip::DeviceAddress;
use anabranch_hip_jit::{DevicePointer, Kernel};
use anabranch_ranks::Nodes;
use anabranch_weakmem::SeededKernel;

use super::bench::{Bench, Grid, Kernels, OnBench, UNTOUCHED, WAVE, mixed};
use crate::{Case, Failure, Outcome, RunOptions, ScenarioError};

/// Bytes of a chunk, and of each piece of a packed one.
const PIECE: u64 = 16;
/// Ranks of a machine.
const MACHINE: u32 = 2;
/// Bytes of a slot.
const SLOT: u64 = PIECE * MACHINE as u64;
/// Bytes before, between and behind tensors.
const GUARD: u64 = 16;
/// Bytes of an element.
const EACH: u64 = 4;

#[derive(Debug)]
pub(crate) struct Network {
    case: Case,
    bench: Bench,
    moves: SeededKernel,
    reduces: SeededKernel,
    layout: LinkLayout,
    nodes: Nodes,
}

/// One call of all ranks.
struct Called {
    exchange: Exchange,
    steps: Vec<Vec<Step>>,
    number: u64,
}

impl Called {
    /// The element at a place of a rank's input: a number so small that sums are exact.
    fn element(&self, rank: u32, at: u64) -> u32 {
        let value = mixed(self.number << 24 ^ u64::from(rank) << 16 ^ at) % 61;
        (value as f32).to_bits()
    }

    fn input(&self, rank: u32, first: u64, count: u64) -> Vec<u32> {
        (first..first + count).map(|at| self.element(rank, at)).collect()
    }

    fn sum(&self, ranks: u32, first: u64, count: u64) -> Vec<u32> {
        let value = |at| (0..ranks).map(|rank| f32::from_bits(self.element(rank, at))).sum::<f32>().to_bits();
        (first..first + count).map(value).collect()
    }

    /// A rank's input and what its output has to be, `None` where it is not touched.
    fn tensors(&self, ranks: u32, me: u32) -> (Vec<u32>, Option<Vec<u32>>) {
        let of = |rank: u32, first, bytes: u64| self.input(rank, first / EACH, bytes / EACH);
        let all = |bytes: u64| (0..ranks).flat_map(|rank| of(rank, 0, bytes)).collect();
        let n = u64::from(ranks);
        match &self.exchange {
            Exchange::AllGather { bytes } => {
                let output = (0..ranks).zip(bytes).flat_map(|(rank, bytes)| of(rank, 0, *bytes)).collect();
                (of(me, 0, bytes[me as usize]), Some(output))
            }
            Exchange::AllToAll { sent, .. } => {
                let part = sent[me as usize];
                let output = (0..ranks).flat_map(|rank| of(rank, u64::from(me) * part, part)).collect();
                (of(me, 0, n * part), Some(output))
            }
            Exchange::Broadcast { bytes, root } => {
                (of(me, 0, *bytes), (me != *root).then(|| of(*root, 0, *bytes)))
            }
            Exchange::Gather { bytes, root } => (of(me, 0, *bytes), (me == *root).then(|| all(*bytes))),
            Exchange::Scatter { bytes, root } => {
                (of(me, 0, n * bytes), Some(of(*root, u64::from(me) * bytes, *bytes)))
            }
            Exchange::AllReduce { bytes } => (of(me, 0, *bytes), Some(self.sum(ranks, 0, bytes / EACH))),
            Exchange::ReduceScatter { bytes } => {
                let first = bytes[..me as usize].iter().sum::<u64>() / EACH;
                let own = bytes[me as usize] / EACH;
                (of(me, 0, bytes.iter().sum()), Some(self.sum(ranks, first, own)))
            }
            Exchange::Reduce { bytes, root } => {
                (of(me, 0, *bytes), (me == *root).then(|| self.sum(ranks, 0, bytes / EACH)))
            }
            Exchange::Barrier => (Vec::new(), None),
        }
    }

    fn reduces(&self) -> bool {
        self.exchange.collective().reduces()
    }
}

impl Network {
    pub(crate) fn new(case: Case, kernels: &mut Kernels<'_>) -> Result<Self, ScenarioError> {
        let layout = LinkLayout::with(0, case.ranks, case.blocks, SLOT);
        let lanes = case.ranks * case.blocks * case.waves * WAVE;
        let own = u64::from(case.rounds) * Self::stride(&case) + GUARD;
        let bench = Bench::new(&case, lanes, layout.end, own)?;
        let mut load =
            |kernel: Kernel<NetworkArgs>| kernels.load(spec(kernel.unit(), DataType::F32), kernel.entry());
        let moves = load(NETWORK_MOVE)?;
        let reduces = load(NETWORK_REDUCE)?;
        let machines: Vec<u32> =
            (0..case.ranks).map(|rank| if case.staged { rank } else { rank / MACHINE }).collect();
        Ok(Self { bench, moves, reduces, layout, nodes: Nodes::new(&machines), case })
    }

    /// Bytes of the longest tensor.
    fn most_bytes(case: &Case) -> u64 {
        (u64::from(case.tokens) * 8 + 4) * EACH * u64::from(case.ranks)
    }

    /// Bytes of a round's input and output.
    fn stride(case: &Case) -> u64 {
        2 * (Self::most_bytes(case) + GUARD).next_multiple_of(16)
    }

    fn call(&self, seed: u64, round: u32) -> Called {
        let number = mixed(seed ^ u64::from(round) << 40 ^ 0x006e_6574);
        let draw = |place: u64, end: u64| mixed(number ^ place) % end;
        let ranks = self.case.ranks;
        let most = u64::from(self.case.tokens) * 8 + 4;
        let bytes = [0, 1, 3, most, most - 1, draw(1, most)][draw(2, 6) as usize] * EACH;
        let root = draw(3, ranks.into()) as u32;
        let all = |bytes| vec![bytes; ranks as usize];
        let of = |rank: u32| draw(8 + u64::from(rank), most + 1) * EACH;
        let different = || (0..ranks).map(of).collect();
        // One kernel after the other.
        let exchange = match (round % 2, draw(4, 6)) {
            (0, 0) => Exchange::ReduceScatter { bytes: all(bytes) },
            (0, 1) => Exchange::ReduceScatter { bytes: different() },
            (0, 2) => Exchange::Reduce { bytes, root },
            (0, _) => Exchange::AllReduce { bytes },
            (_, 0) => Exchange::AllGather { bytes: all(bytes) },
            (_, 1) => Exchange::AllGather { bytes: different() },
            (_, 2) => Exchange::AllToAll { sent: all(bytes), received: all(bytes) },
            (_, 3) => Exchange::Broadcast { bytes, root },
            (_, 4) if draw(5, 2) == 0 => Exchange::Gather { bytes, root },
            (_, 4) => Exchange::Scatter { bytes, root },
            _ => Exchange::Barrier,
        };
        let by_node = draw(6, 2) == 0;
        let steps = (0..ranks).map(|me| {
            let by_node = by_node.then(|| schedule::by_node(&self.nodes, me, &exchange).ok()).flatten();
            by_node.unwrap_or_else(|| schedule::direct(ranks, me, &exchange))
        });
        Called { steps: steps.collect(), exchange, number }
    }

    /// Where a round's tensors are in a rank's own memory.
    fn places(&self, round: u32) -> (u64, u64) {
        let stride = Self::stride(&self.case);
        let input = Bench::own_start(self.case.ranks) + u64::from(round) * stride + GUARD;
        (input, input + stride / 2)
    }
}

impl OnBench for Network {
    fn case(&self) -> &Case {
        &self.case
    }

    fn bench(&self) -> &Bench {
        &self.bench
    }

    fn run_and_judge(&mut self, seed: u64, options: &RunOptions) -> Result<Outcome, Failure> {
        self.bench.reset(options)?;
        let ranks = self.case.ranks;
        let calls: Vec<Called> = (0..self.case.rounds).map(|round| self.call(seed, round)).collect();
        let local_bytes = LinkLayout::local_bytes(ranks);
        let (blocks, threads) = (self.case.blocks, self.case.waves * WAVE);
        for me in 0..ranks {
            let memory = self.bench.ranks[me as usize];
            let heap = DeviceAddress(memory.heap.address());
            let links = self.layout.links_at(self.bench.team(me), 0, heap, OPERATION.0);
            for (round, called) in (0..).zip(&calls) {
                let (input, output) = self.places(round);
                self.bench.put(memory.own, input, &called.tensors(ranks, me).0)?;
                let (input, output) = (memory.own.address() + input, memory.own.address() + output);
                let tensors = Tensors { input, output };
                let listed = list(&self.nodes, me, &called.steps[me as usize], tensors, PIECE, blocks);
                let reduction =
                    Reduction { op: ReduceOp::Sum.torch_value(), size: ranks, scalar: 0, scalar_at: 0 };
                let args = listed.arguments(&links, DevicePointer::NULL, reduction, PIECE);
                let kernel = if called.reduces() { &self.reduces } else { &self.moves };
                self.bench.launch(me, kernel, Grid { blocks, threads, local_bytes }, &*args)?;
            }
        }
        let run = self.bench.run(seed)?;
        for me in 0..ranks {
            for (round, called) in (0..).zip(&calls) {
                let (_, output) = self.places(round);
                let bytes = Self::stride(&self.case) as usize / 2 - GUARD as usize;
                let mut expected = vec![UNTOUCHED; bytes];
                let elements = called.tensors(ranks, me).1.unwrap_or_default();
                for (place, element) in expected.chunks_exact_mut(4).zip(elements) {
                    place.copy_from_slice(&element.to_ne_bytes());
                }
                let found = self.bench.get::<u8>(self.bench.ranks[me as usize].own, output, bytes)?;
                if let Some(byte) = (0..bytes).find(|byte| found[*byte] != expected[*byte]) {
                    return Err(Failure::new(format!(
                        "rank {me}, round {round}, {}: byte {byte} of its output is {:#x}, expected {:#x}",
                        called.exchange.collective(),
                        found[byte],
                        expected[byte]
                    )));
                }
            }
        }
        Ok(Outcome { run })
    }
}
