//! Groups in random orders, with several messages of each pair of ranks, and with several collectives of one communicator.

use std::ffi::{c_int, c_void};

use crate::common::{Buffer, Comm, INT32, Nccl, Rank, SUM, Stream, alone, nccl, on_threads};
use crate::groups::{receive, send};

/// Random numbers of a seed (SplitMix64, <https://prng.di.unimi.it/splitmix64.c>).
struct Random(u64);

impl Random {
    /// Those of a round, the same on all ranks, or of one rank in it.
    fn new(round: u64, rank: Option<u32>) -> Self {
        let mut random = Self(round << 8 | rank.map_or(0xff, u64::from));
        random.next();
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// One of the numbers below a limit.
    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn shuffle<T>(&mut self, list: &mut [T]) {
        for place in (1..list.len()).rev() {
            list.swap(place, self.below(place + 1));
        }
    }
}

/// The elements of the messages between two ranks, in their order.
type Lengths = Vec<usize>;

/// A message that no other one is equal to.
fn text(from: usize, to: usize, place: usize, length: usize) -> Vec<f64> {
    let first = 1_000_000 * (1 + from) + 100_000 * to + 10_000 * place;
    (first..first + length).map(|value| value as f64).collect()
}

/// One group: all messages of this rank in an order of its own. Between two ranks they keep their order, which is all that NCCL demands.
fn exchange(rank: &Rank<'_>, round: u64, streams: &[Stream]) {
    let (size, me) = (rank.size as usize, rank.number as usize);
    let mut random = Random::new(round, None);
    // Most are short, some are empty, and one of sixteen is longer than the packets of a channel hold.
    let lengths: Vec<Lengths> = (0..size * size)
        .map(|_| {
            let length = |random: &mut Random| match random.below(16) {
                0 => 5003,
                1 => 0,
                _ => 1 + random.below(40),
            };
            (0..random.below(4)).map(|_| length(&mut random)).collect()
        })
        .collect();
    let between = |from: usize, to: usize| &lengths[from * size + to];
    let sent: Vec<Vec<Buffer>> = (0..size)
        .map(|to| {
            let messages = between(me, to).iter().enumerate();
            messages.map(|(place, length)| Buffer::of(INT32, &text(me, to, place, *length))).collect()
        })
        .collect();
    let received: Vec<Vec<Buffer>> = (0..size)
        .map(|from| between(from, me).iter().map(|length| Buffer::zeros(INT32, *length)).collect())
        .collect();
    // The buffers of each peer in their order; which peer and which direction is next is random.
    let mut calls: Vec<(bool, usize)> = Vec::new();
    for peer in 0..size {
        calls.extend(sent[peer].iter().map(|_| (true, peer)));
        calls.extend(received[peer].iter().map(|_| (false, peer)));
    }
    let mut random = Random::new(round, Some(rank.number));
    random.shuffle(&mut calls);
    let (mut sends, mut receives) = (vec![0; size], vec![0; size]);
    rank.nccl.group(|| {
        for (is_send, peer) in calls {
            let stream = streams[random.below(streams.len())];
            if is_send {
                send(rank, &sent[peer][sends[peer]], peer as u32, stream);
                sends[peer] += 1;
            } else {
                receive(rank, &received[peer][receives[peer]], peer as u32, stream);
                receives[peer] += 1;
            }
        }
    });
    for stream in streams {
        rank.nccl.synchronize(*stream);
    }
    for (from, messages) in received.iter().enumerate() {
        for (place, message) in messages.iter().enumerate() {
            let wanted = text(from, me, place, message.count);
            assert_eq!(
                message.values(),
                wanted,
                "round {round}: message {place} of rank {from} to rank {me}"
            );
        }
    }
}

#[test]
fn random_groups_deliver_every_message() {
    alone!("random_groups_deliver_every_message");
    let nccl = Nccl::open(&[]);
    on_threads(&nccl, 4, |rank| {
        let streams = [rank.stream, nccl.stream(), nccl.stream()];
        for round in 0..100 {
            // On one, two or three streams.
            exchange(rank, round, &streams[..=round as usize % 3]);
        }
    });
}

/// A call of a group.
#[derive(Clone, Copy, Debug)]
enum Step {
    Send,
    Receive,
    Collective,
}

const COUNT: usize = 700;

/// What a rank sends: its number in each element, and a place.
fn token(rank: u32) -> Vec<f64> {
    (0..COUNT as u32).map(|index| f64::from(1000 * (rank + 1) + index)).collect()
}

/// Three collectives, of which each reads what the one before has written.
struct Chain {
    input: Buffer,
    gathered: Buffer,
    part: Buffer,
    sum: Buffer,
}

impl Chain {
    fn new(rank: &Rank<'_>, input: Buffer) -> Self {
        let zeros = |count| Buffer::zeros(INT32, count);
        Self { input, gathered: zeros(COUNT * rank.size as usize), part: zeros(COUNT), sum: zeros(COUNT) }
    }

    fn call(&self, rank: &Rank<'_>, number: usize, stream: Stream) {
        let Rank { nccl, comm, .. } = *rank;
        let (input, gathered) = (self.input.address(), self.gathered.address());
        let (part, sum) = (self.part.address(), self.sum.address());
        nccl.ok(match number {
            0 => nccl!(nccl, ncclAllGather(input => *const c_void, gathered => *mut c_void, COUNT => usize, INT32 => c_int, comm => Comm, stream => Stream)),
            1 => nccl!(nccl, ncclReduceScatter(gathered => *const c_void, part => *mut c_void, COUNT => usize, INT32 => c_int, SUM => c_int, comm => Comm, stream => Stream)),
            _ => nccl!(nccl, ncclAllReduce(part => *const c_void, sum => *mut c_void, COUNT => usize, INT32 => c_int, SUM => c_int, comm => Comm, stream => Stream)),
        });
    }

    /// Checks all outputs, where rank `of(r)` gave the input of rank r.
    fn check(&self, rank: &Rank<'_>, of: impl Fn(u32) -> u32, what: &str) {
        let size = f64::from(rank.size);
        let gathered: Vec<f64> = (0..rank.size).flat_map(|from| token(of(from))).collect();
        assert_eq!(self.gathered.values(), gathered, "{what}");
        let part: Vec<f64> = token(of(rank.number)).iter().map(|value| size * value).collect();
        assert_eq!(self.part.values(), part, "{what}");
        let tokens: Vec<_> = (0..rank.size).map(token).collect();
        let sum: Vec<f64> = (0..COUNT).map(|at| tokens.iter().map(|token| size * token[at]).sum()).collect();
        assert_eq!(self.sum.values(), sum, "{what}");
    }
}

#[test]
fn collectives_of_a_communicator_in_a_group_go_in_order() {
    alone!("collectives_of_a_communicator_in_a_group_go_in_order");
    let nccl = Nccl::open(&[]);
    on_threads(&nccl, 3, |rank| {
        let streams = [rank.stream, nccl.stream()];
        for round in 0..40 {
            let chain = Chain::new(rank, Buffer::of(INT32, &token(rank.number)));
            // On one stream, and with each call on another stream than the one before, which differs between the ranks.
            let stream =
                |number: usize| streams[if round % 2 == 0 { 0 } else { (number + rank.number as usize) % 2 }];
            nccl.group(|| (0..3).for_each(|number| chain.call(rank, number, stream(number))));
            for stream in streams {
                nccl.synchronize(stream);
            }
            chain.check(rank, |from| from, &format!("round {round} on rank {}", rank.number));
        }
    });
}

#[test]
fn messages_of_a_group_go_before_its_collectives() {
    alone!("messages_of_a_group_go_before_its_collectives");
    let nccl = Nccl::open(&[]);
    on_threads(&nccl, 3, |rank| {
        let (next, before) = ((rank.number + 1) % 3, (rank.number + 2) % 3);
        let streams = [rank.stream, nccl.stream()];
        let sent = Buffer::of(INT32, &token(rank.number));
        for round in 0..60 {
            // The collectives read what the message brings, wherever its calls are in the group.
            let chain = Chain::new(rank, Buffer::zeros(INT32, COUNT));
            let mut random = Random::new(round, Some(rank.number));
            let mut steps = [Step::Send, Step::Receive, Step::Collective, Step::Collective, Step::Collective];
            random.shuffle(&mut steps);
            let mut number = 0;
            nccl.group(|| {
                for step in &steps {
                    let stream = streams[if round % 2 == 0 { 0 } else { random.below(2) }];
                    match step {
                        Step::Send => send(rank, &sent, next, stream),
                        Step::Receive => receive(rank, &chain.input, before, stream),
                        Step::Collective => {
                            chain.call(rank, number, stream);
                            number += 1;
                        }
                    }
                }
            });
            for stream in streams {
                nccl.synchronize(stream);
            }
            let what = format!("round {round} on rank {}: {steps:?}", rank.number);
            assert_eq!(chain.input.values(), token(before), "{what}");
            chain.check(rank, |from| (from + 2) % 3, &what);
        }
    });
}

#[test]
fn random_orders_differ_between_ranks() {
    let order = |rank| {
        let mut order: Vec<usize> = (0..12).collect();
        Random::new(3, Some(rank)).shuffle(&mut order);
        order
    };
    assert_ne!(order(0), order(1));
    let mut sorted = order(0);
    sorted.sort_unstable();
    assert_eq!(sorted, (0..12).collect::<Vec<_>>());
    assert_ne!(text(0, 1, 0, 9), text(1, 0, 0, 9));
}
