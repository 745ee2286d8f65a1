//! Groups whose calls copy or scale their inputs first, in memory that the calls of a communicator share.

use std::ffi::{c_int, c_void};

use crate::captures::{capture, follow, replay};
use crate::common::{Buffer, Comm, INT32, Nccl, Rank, SUM, Stream, alone, given, nccl, on_threads};
use crate::groups::{receive, send};

const RANKS: u32 = 3;
/// The scalar of a rank.
fn scalar(rank: u32) -> f64 {
    f64::from(2 + rank)
}

/// Elements of a part in the calls of a group. The second call needs more than 1 MiB, which the first one takes: the memory grows while the
/// group is prepared.
const PARTS: [usize; 4] = [50, 90_000, 700, 9000];
/// The same of a later call, which needs more again.
const MORE: usize = 180_000;

/// Buffers that are input and output: of a ring of messages, of two calls of alltoall, a reduce_scatter and an all_reduce with scalars.
struct Buffers {
    ring: Buffer,
    exchanged: [Buffer; 2],
    scattered: Buffer,
    sum: Buffer,
}

impl Buffers {
    fn new() -> Self {
        let zeros = |count| Buffer::zeros(INT32, count);
        let [first, second, third, fourth] = PARTS;
        let all = RANKS as usize;
        Self {
            ring: zeros(first),
            exchanged: [zeros(all * first), zeros(all * second)],
            scattered: zeros(all * third),
            sum: zeros(fourth),
        }
    }

    fn all(&self) -> [&Buffer; 5] {
        [&self.ring, &self.exchanged[0], &self.exchanged[1], &self.scattered, &self.sum]
    }

    /// The element that a rank gives at a place of the buffer `number`.
    fn element(number: usize, round: u32, rank: u32, index: usize) -> f64 {
        given(rank, index) + f64::from(round * 10) + (number * 100) as f64
    }

    /// New inputs, in the same memory.
    fn give(&self, rank: u32, round: u32) {
        for (number, buffer) in self.all().into_iter().enumerate() {
            let values: Vec<f64> =
                (0..buffer.count).map(|index| Self::element(number, round, rank, index)).collect();
            let fresh = Buffer::of(INT32, &values);
            // SAFETY: both have these bytes; no call is in flight.
            unsafe { buffer.address().cast::<u8>().copy_from(fresh.address().cast(), 4 * buffer.count) };
        }
    }

    /// The calls of a group. Each is on another stream than the one before, if there are two.
    fn call(&self, rank: &Rank<'_>, op: c_int, streams: &[Stream]) {
        let Rank { nccl, comm, number, .. } = *rank;
        let stream = |call: usize| streams[call % streams.len()];
        nccl.group(|| {
            for (call, (buffer, part)) in self.exchanged.iter().zip(PARTS).enumerate() {
                let data = buffer.address();
                nccl.ok(nccl!(nccl, ncclAlltoAll(data => *const c_void, data => *mut c_void, part => usize, INT32 => c_int, comm => Comm, stream(call) => Stream)));
                let (data, own) = (self.scattered.address(), self.scattered.at(number as usize * PARTS[2]));
                if call == 0 {
                    nccl.ok(nccl!(nccl, ncclReduceScatter(data => *const c_void, own => *mut c_void, PARTS[2] => usize, INT32 => c_int, op => c_int, comm => Comm, stream(1) => Stream)));
                }
            }
            let data = self.sum.address();
            nccl.ok(nccl!(nccl, ncclAllReduce(data => *const c_void, data => *mut c_void, PARTS[3] => usize, INT32 => c_int, op => c_int, comm => Comm, stream(0) => Stream)));
            send(rank, &self.ring, (number + 1) % RANKS, stream(0));
            receive(rank, &self.ring, (number + RANKS - 1) % RANKS, stream(1));
        });
    }

    #[track_caller]
    fn check(&self, rank: u32, round: u32) {
        let me = rank as usize;
        let before = (rank + RANKS - 1) % RANKS;
        let sum = |number, index| {
            (0..RANKS).map(|rank| scalar(rank) * Self::element(number, round, rank, index)).sum::<f64>()
        };
        let wanted = |number: usize, index: usize| match number {
            0 => Self::element(0, round, before, index),
            1 | 2 => {
                let part = PARTS[number - 1];
                Self::element(number, round, (index / part) as u32, me * part + index % part)
            }
            // In place the other parts stay.
            3 if index / PARTS[2] != me => Self::element(3, round, rank, index),
            _ => sum(number, index),
        };
        for (number, buffer) in self.all().into_iter().enumerate() {
            let values = buffer.values();
            let wrong = (0..buffer.count).find(|index| values[*index] != wanted(number, *index));
            assert_eq!(wrong, None, "buffer {number} on rank {rank}, round {round}");
        }
    }
}

#[test]
fn calls_of_a_group_share_the_memory_of_copies() {
    alone!("calls_of_a_group_share_the_memory_of_copies");
    let nccl = Nccl::open(&[]);
    on_threads(&nccl, RANKS, |rank| {
        let (mine, mut op) = (Buffer::of(INT32, &[scalar(rank.number)]), -1);
        nccl.ok(nccl!(nccl, ncclRedOpCreatePreMulSum(&raw mut op => *mut c_int, mine.address() => *mut c_void, INT32 => c_int, 1 => c_int, rank.comm => Comm)));
        let (buffers, other) = (Buffers::new(), nccl.stream());
        let streams = [rank.stream, other];
        // On one stream and on two.
        for round in 0..2 {
            buffers.give(rank.number, round);
            buffers.call(rank, op, &streams[..=round as usize]);
            for stream in streams {
                nccl.synchronize(stream);
            }
            buffers.check(rank.number, round);
        }
        let graph = capture(rank, || {
            follow(&nccl, other, rank.stream);
            buffers.call(rank, op, &streams);
            follow(&nccl, rank.stream, other);
        });
        // The graph keeps what the operator was.
        nccl.ok(nccl!(nccl, ncclRedOpDestroy(op => c_int, rank.comm => Comm)));
        // A call that needs more memory leaves that of the graph.
        let more = Buffer::zeros(INT32, MORE * RANKS as usize);
        let data = more.address();
        for round in 2..4 {
            buffers.give(rank.number, round);
            replay(&nccl, graph, rank.stream);
            nccl.ok(nccl!(nccl, ncclAlltoAll(data => *const c_void, data => *mut c_void, MORE => usize, INT32 => c_int, rank.comm => Comm, other => Stream)));
            for stream in streams {
                nccl.synchronize(stream);
            }
            buffers.check(rank.number, round);
        }
        let (input, mut output) = (Buffer::zeros(INT32, 1), Buffer::zeros(INT32, 1));
        assert_eq!(nccl.all_reduce(rank, &input, &mut output, op), 4, "a destroyed operator");
        nccl.ok(nccl.all_reduce(rank, &input, &mut output, SUM));
        nccl.synchronize(rank.stream);
    });
}
