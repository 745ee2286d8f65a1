//! More communicators with calls in flight than a GPU has blocks for: on the host runtime their number has no limit.

use std::sync::Barrier;

use crate::captures::{capture, follow, replay};
use crate::common::{Buffer, INT32, Id, Nccl, Rank, SUM, Stream, alone, on_threads};

const COMMS: usize = 16;
const COUNT: usize = 3000;
/// A heap for each of so many communicators.
const SETTINGS: [(&str, &str); 2] =
    [("ANABRANCH__HEAP__BYTES", "8 MiB"), ("ANABRANCH__CCL__STAGING_BYTES", "1 MiB")];

/// Communicators of two ranks, with the buffers of a sum.
struct Sums<'a> {
    ranks: Vec<Rank<'a>>,
    inputs: Vec<Buffer>,
    outputs: Vec<Buffer>,
}

// SAFETY: numbers and buffers, which one thread uses.
unsafe impl Send for Sums<'_> {}

impl<'a> Sums<'a> {
    fn new(rank: &Rank<'a>, ids: &[Id]) -> Self {
        let nccl = rank.nccl;
        let ranks = ids.iter().map(|id| Rank {
            comm: nccl.init(2, *id, rank.number),
            stream: nccl.stream(),
            ..*rank
        });
        let zeros = || vec![Buffer::zeros(INT32, COUNT); ids.len()];
        Self { ranks: ranks.collect(), inputs: zeros(), outputs: zeros() }
    }

    /// New inputs, in the memory of the old ones.
    fn give(&mut self, round: usize) {
        for (number, input) in self.inputs.iter_mut().enumerate() {
            let value = (1 + number + 100 * round) as f64;
            let fresh = Buffer::of(INT32, &vec![value * f64::from(1 + self.ranks[number].number); COUNT]);
            // SAFETY: both have `COUNT` elements, and no call is in flight.
            unsafe { input.address().cast::<i32>().copy_from(fresh.address().cast(), COUNT) };
        }
    }

    /// Calls of all communicators, from one of them on.
    fn call(&mut self, first: usize) {
        for place in 0..self.ranks.len() {
            let number = (first + place) % self.ranks.len();
            let rank = &self.ranks[number];
            rank.nccl.ok(rank.nccl.all_reduce(rank, &self.inputs[number], &mut self.outputs[number], SUM));
        }
    }

    fn synchronize(&self) {
        self.ranks.iter().for_each(|rank| rank.nccl.synchronize(rank.stream));
    }

    #[track_caller]
    fn check(&self, round: usize) {
        for (number, output) in self.outputs.iter().enumerate() {
            let sum = 3 * (1 + number + 100 * round);
            assert_eq!(output.values(), vec![sum as f64; COUNT], "communicator {number}, round {round}");
        }
    }

    fn destroy(self) {
        self.ranks.iter().for_each(|rank| rank.nccl.destroy(rank.comm));
    }
}

#[test]
fn groups_of_two_threads_run_on_sixteen_communicators_beside_a_graph() {
    alone!("groups_of_two_threads_run_on_sixteen_communicators_beside_a_graph");
    let nccl = Nccl::open(&SETTINGS);
    let ids: Vec<Id> = (0..=COMMS).map(|_| nccl.unique_id()).collect();
    // Two threads with groups and one with a graph, on each of two ranks.
    let launched = &Barrier::new(6);
    on_threads(&nccl, 2, |rank| {
        let (graph_ids, group_ids) = ids.split_at(1);
        let halves = group_ids.chunks(COMMS / 2).map(|ids| Sums::new(rank, ids)).collect::<Vec<_>>();
        let mut of_graph = Sums::new(rank, graph_ids);
        // On the host runtime a capture loads no kernels.
        of_graph.give(0);
        of_graph.call(0);
        of_graph.synchronize();
        of_graph.check(0);
        let on_stream = of_graph.ranks[0].stream;
        let graph = capture(&Rank { stream: on_stream, ..*rank }, || of_graph.call(0));
        // The ranks take turns: one launches everything before the other launches anything, so that all 17 calls are in flight at once.
        let me = rank.number as usize;
        let turn = |round: usize, launch: &mut dyn FnMut()| {
            let is_first = round % 2 == me;
            if is_first {
                launch();
            }
            launched.wait();
            if !is_first {
                launch();
            }
        };
        std::thread::scope(|scope| {
            for mut half in halves {
                let turn = &turn;
                let (nccl, number) = (rank.nccl, rank.number);
                scope.spawn(move || {
                    nccl.set_device(number);
                    for round in 0..12 {
                        half.give(round);
                        // Groups of the two ranks name the communicators in different orders.
                        let first = round * (1 + 2 * number as usize);
                        turn(round, &mut || nccl.group(|| half.call(first)));
                        half.synchronize();
                        half.check(round);
                    }
                    half.destroy();
                });
            }
            for round in 0..12 {
                of_graph.give(round);
                turn(round, &mut || replay(&nccl, graph, on_stream));
                of_graph.synchronize();
                of_graph.check(round);
            }
        });
        of_graph.destroy();
    });
}

#[test]
fn one_graph_has_a_group_of_sixteen_communicators() {
    alone!("one_graph_has_a_group_of_sixteen_communicators");
    let nccl = Nccl::open(&SETTINGS);
    let ids: Vec<Id> = (0..COMMS).map(|_| nccl.unique_id()).collect();
    on_threads(&nccl, 2, |rank| {
        let mut sums = Sums::new(rank, &ids);
        sums.give(0);
        nccl.group(|| sums.call(0));
        sums.synchronize();
        sums.check(0);
        let streams: Vec<Stream> = sums.ranks.iter().map(|rank| rank.stream).collect();
        let graph = capture(rank, || {
            for stream in &streams {
                follow(&nccl, *stream, rank.stream);
            }
            nccl.group(|| sums.call(5 * rank.number as usize));
            for stream in &streams {
                follow(&nccl, rank.stream, *stream);
            }
        });
        for round in 1..8 {
            sums.give(round);
            replay(&nccl, graph, rank.stream);
            // A call of one more communicator beside the graph.
            let other = Rank { stream: streams[0], ..*rank };
            nccl.count_ranks(&other);
            nccl.synchronize(rank.stream);
            sums.check(round);
        }
        sums.destroy();
    });
}
