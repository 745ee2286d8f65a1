//! Sends and receives of `ccl`: launches after each other, each with random messages between random ranks, over pipes of few
//! and small slots, so that every slot is used many times and every message waits for room. The seed chooses who sends what to
//! whom and in which order each rank lists it; one form launches each message alone.

use anabranch_ccl::MESSAGE_OPERATION;
use anabranch_ccl::kernels::PIPES;
use anabranch_ccl::lowered::PipeLayout;
use anabranch_ccl::lowered::TransferLists;
use anabranch_ccl::lowered::{MOST_TRANSFERS, PipeState, PipesArgs, Transfer};
use anabranch_hip::DeviceAddress;
use anabranch_weakmem::SeededKernel;
use bytemuck::Zeroable as _;

use super::bench::{Bench, Grid, Kernels, OnBench, UNTOUCHED, WAVE, at, mixed};
use crate::{Case, Failure, Outcome, RunOptions, ScenarioError};

const WIDTH: u32 = 2;
const DEPTH: u32 = 2;
const SLOT: u64 = 16;
/// Bytes between two pipes' counters; `PIPE_LINE` in `ccl/pipe.h`.
const LINE: u64 = 64;
/// Bytes before, between and behind tensors.
const GUARD: u64 = 16;
/// Messages of a round, for each rank of the case, at most.
const MESSAGES: u64 = 2;

/// One message, and where its tensors are in the two ranks' own memory.
#[derive(Clone, Copy, Debug)]
struct Message {
    from: u32,
    to: u32,
    bytes: u64,
    number: u64,
    source: u64,
    target: u64,
}

impl Message {
    fn payload(&self) -> Vec<u8> {
        (0..self.bytes).map(|byte| mixed(self.number << 16 | byte) as u8).collect()
    }
}

/// Numbers drawn from a seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = mixed(self.0.wrapping_add(0x9e37_79b9_7f4a_7c15));
        self.0 % end
    }
}

#[derive(Debug)]
pub(crate) struct Exchange {
    case: Case,
    bench: Bench,
    kernel: SeededKernel,
    layout: PipeLayout,
    /// Bytes of a tensor with what lies around it.
    stride: u64,
}

impl Exchange {
    pub(crate) fn new(case: Case, kernels: &mut Kernels<'_>) -> Result<Self, ScenarioError> {
        let pipes = u64::from(case.ranks * WIDTH);
        let (arrived, consumed, slots) = (0, pipes * LINE, 2 * pipes * LINE);
        let states = slots + pipes * u64::from(DEPTH) * SLOT;
        let end = states + pipes * size_of::<PipeState>() as u64;
        let layout = PipeLayout {
            arrived,
            consumed,
            slots,
            states,
            end,
            width: WIDTH,
            depth: DEPTH,
            slot_bytes: SLOT,
        };
        let stride = (Self::most_bytes(&case) + 16 + GUARD).next_multiple_of(16);
        let lanes = case.ranks * case.blocks * case.waves * WAVE;
        let own = Self::tensors(&case) * stride + GUARD + Self::lists(&case);
        let bench = Bench::new(&case, lanes, end, own)?;
        let kernel = kernels.load(anabranch_hip_jit::KernelSpec::new(PIPES.unit()), PIPES.entry())?;
        Ok(Self { case, bench, kernel, layout, stride })
    }

    fn most_bytes(case: &Case) -> u64 {
        u64::from(case.tokens) * 24 + 5
    }

    /// Messages of all rounds, at most.
    fn most(case: &Case) -> u64 {
        u64::from(case.rounds * case.ranks) * MESSAGES
    }

    /// Tensors of a rank, at most: it may send to itself.
    fn tensors(case: &Case) -> u64 {
        2 * Self::most(case)
    }

    /// Bytes of the lists in a rank's memory.
    fn lists(case: &Case) -> u64 {
        Self::tensors(case) * size_of::<Transfer>() as u64
    }

    fn list_start(&self) -> u64 {
        (Bench::own_start(self.case.ranks) + Self::tensors(&self.case) * self.stride + GUARD)
            .next_multiple_of(8)
    }

    /// The messages of each launch, and each rank's own memory before and after them.
    fn draw(&self, draw: &mut Draw) -> (Vec<Vec<Message>>, Vec<[Vec<u8>; 2]>) {
        let ranks = self.case.ranks;
        let bytes = (Self::tensors(&self.case) * self.stride + GUARD) as usize;
        let mut images = vec![[vec![UNTOUCHED; bytes], vec![UNTOUCHED; bytes]]; ranks as usize];
        let mut used = vec![0u64; ranks as usize];
        let mut launches = Vec::new();
        let mut number = 0;
        for _ in 0..self.case.rounds {
            let count = draw.below(u64::from(ranks) * MESSAGES + 1);
            let mut round = Vec::new();
            for _ in 0..count {
                let whole = Self::most_bytes(&self.case);
                let sizes = [0, 1, 15, SLOT, 17, 2 * SLOT, whole, whole, whole - 5, draw.below(whole)];
                let bytes = sizes[draw.below(10) as usize].min(whole);
                let (from, to) = (draw.below(ranks.into()) as u32, draw.below(ranks.into()) as u32);
                if self.case.staged && from == to {
                    continue;
                }
                let mut place = |rank: u32| {
                    let start = used[rank as usize] * self.stride + GUARD;
                    used[rank as usize] += 1;
                    start + [0, 0, 8, 1][draw.below(4) as usize]
                };
                let message = Message { from, to, bytes, number, source: place(from), target: place(to) };
                number += 1;
                let payload = message.payload();
                let mut put = |rank: u32, image: usize, at: u64| {
                    let at = at as usize;
                    images[rank as usize][image][at..at + payload.len()].copy_from_slice(&payload);
                };
                put(from, 0, message.source);
                put(from, 1, message.source);
                put(to, 1, message.target);
                round.push(message);
            }
            if self.case.staged {
                launches.extend(round.into_iter().map(|message| vec![message]));
            } else {
                launches.push(round);
            }
        }
        (launches, images)
    }

    /// What a rank's heap has to be after messages: counters, headers and the last chunk of every slot.
    fn heap_after(&self, me: u32, messages: &[Message]) -> Vec<u8> {
        let mut heap = vec![0; self.layout.end as usize];
        let pipe = |other: u32, pipe: u64| u64::from(other * WIDTH) + pipe;
        let add = |heap: &mut Vec<u8>, at: u64| -> u64 {
            let at = at as usize;
            let mut word = [0; 8];
            word.copy_from_slice(&heap[at..at + 8]);
            let count = u64::from_ne_bytes(word);
            heap[at..at + 8].copy_from_slice(&(count + 1).to_ne_bytes());
            count
        };
        for message in messages {
            let payload = message.payload();
            let whole: Vec<&[u8]> = payload.chunks(SLOT as usize).collect();
            let chunks = if whole.is_empty() { vec![&[][..]] } else { whole };
            for (index, chunk) in (0u64..).zip(&chunks) {
                let lane = index % u64::from(WIDTH);
                if message.to == me {
                    let from = pipe(message.from, lane);
                    let count = add(&mut heap, self.layout.arrived + from * LINE);
                    add(&mut heap, self.layout.states + from * 16 + 8);
                    let slot = count % u64::from(DEPTH);
                    let header = (self.layout.arrived + from * LINE + 8 + slot * 8) as usize;
                    heap[header..header + 8].copy_from_slice(&message.bytes.to_ne_bytes());
                    let at = (self.layout.slots + (from * u64::from(DEPTH) + slot) * SLOT) as usize;
                    heap[at..at + chunk.len()].copy_from_slice(chunk);
                }
                if message.from == me {
                    let to = pipe(message.to, lane);
                    add(&mut heap, self.layout.consumed + to * LINE);
                    add(&mut heap, self.layout.states + to * 16);
                }
            }
        }
        heap
    }

    /// A rank's part of a launch, listed in an order of its own but for messages of one peer and direction.
    fn args(
        &mut self,
        me: u32,
        round: &[Message],
        listed: &mut u64,
        draw: &mut Draw,
    ) -> Result<PipesArgs, Failure> {
        let memory = self.bench.ranks[me as usize];
        let start = memory.own.address() + Bench::own_start(self.case.ranks);
        let mut given = Vec::new();
        for message in round {
            if message.from == me {
                given.push((false, message.to, start + message.source, message.bytes));
            }
            if message.to == me {
                given.push((true, message.from, start + message.target, message.bytes));
            }
        }
        // Lists of peers and directions in another order: what is listed first decides nothing.
        let turn = draw.below(given.len().max(1) as u64) as usize;
        let key = |message: &(bool, u32, u64, u64)| (message.0, message.1);
        let first: Vec<_> = given.iter().map(key).skip(turn).take(1).collect();
        given.sort_by_key(|message| !first.contains(&key(message)));
        let lists = TransferLists::of(&given, me, self.case.ranks, &self.layout);
        let team = self.bench.team(me);
        let heap = DeviceAddress(memory.heap.address());
        let mut args = PipesArgs {
            pipes: self.layout.pipes_at(team, 0, heap, MESSAGE_OPERATION.0),
            lists: lists.lists,
            receive_lists: lists.receive_lists,
            used_pipes: lists.used_pipes,
            ..PipesArgs::zeroed()
        };
        // A mistaken kernel may go anywhere: its list is where the machine looks.
        let count = lists.transfers.len();
        if self.case.mutant.is_none() && count <= MOST_TRANSFERS && draw.below(2) == 0 {
            args.transfers[..count].copy_from_slice(&lists.transfers);
        } else {
            let offset = self.list_start() + *listed * size_of::<Transfer>() as u64;
            self.bench.put(memory.own, offset, &lists.transfers)?;
            args.table = at(memory.own, offset);
            *listed += count as u64;
        }
        Ok(args)
    }
}

impl OnBench for Exchange {
    fn case(&self) -> &Case {
        &self.case
    }

    fn bench(&self) -> &Bench {
        &self.bench
    }

    fn run_and_judge(&mut self, seed: u64, options: &RunOptions) -> Result<Outcome, Failure> {
        self.bench.reset(options)?;
        let mut draw = Draw(seed ^ 0x0070_6970_6573);
        let (launches, images) = self.draw(&mut draw);
        let start = Bench::own_start(self.case.ranks);
        for me in 0..self.case.ranks {
            self.bench.put(self.bench.ranks[me as usize].own, start, &images[me as usize][0])?;
            let mut listed = 0;
            for round in &launches {
                let args = self.args(me, round, &mut listed, &mut draw)?;
                let served = args.lists * args.used_pipes;
                // Who has no part in a message alone makes no call.
                if served == 0 && self.case.staged {
                    continue;
                }
                let blocks = self.case.blocks.min(served.max(1));
                let local_bytes = PipeLayout::local_bytes(served, blocks);
                let grid = Grid { blocks, threads: self.case.waves * WAVE, local_bytes };
                self.bench.launch(me, &self.kernel, grid, &args)?;
            }
        }
        let run = self.bench.run(seed)?;
        let messages: Vec<Message> = launches.into_iter().flatten().collect();
        for me in 0..self.case.ranks {
            let memory = self.bench.ranks[me as usize];
            let heap = self.heap_after(me, &messages);
            for (what, from, offset, expected) in [
                ("its tensors", memory.own, start, &images[me as usize][1]),
                ("its pipes", memory.heap, 0, &heap),
            ] {
                let found = self.bench.get::<u8>(from, offset, expected.len())?;
                if let Some(byte) = (0..found.len()).find(|byte| found[*byte] != expected[*byte]) {
                    return Err(Failure::new(format!(
                        "rank {me}: byte {byte} of {what} is {:#x}, expected {:#x}",
                        found[byte], expected[byte]
                    )));
                }
            }
        }
        Ok(Outcome { run })
    }
}
