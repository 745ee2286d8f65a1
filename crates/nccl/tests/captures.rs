//! The order of a communicator's calls in captures, beside graphs, and behind its end.

use std::ffi::{c_int, c_void};

use anabranch_testkit::test_path;

use crate::common::{
    Buffer, Comm, FLOAT, INT32, Nccl, Rank, SUM, Stream, alone, nccl, on_processes, on_threads,
};

const COUNT: usize = 20_000;

/// A sum on a stream of its own; its input is `value` everywhere.
struct Sum {
    input: Buffer,
    output: Buffer,
    stream: Stream,
}

impl Sum {
    fn new(stream: Stream, value: u32) -> Self {
        let input = Buffer::of(INT32, &vec![f64::from(value); COUNT]);
        Self { input, output: Buffer::zeros(INT32, COUNT), stream }
    }

    fn call(&mut self, rank: &Rank<'_>) {
        let on_stream = Rank { stream: self.stream, ..*rank };
        rank.nccl.ok(rank.nccl.all_reduce(&on_stream, &self.input, &mut self.output, SUM));
    }

    #[track_caller]
    fn check(&self, rank: &Rank<'_>, value: u32) {
        assert_eq!(self.output.values(), vec![f64::from(value * rank.size); COUNT]);
    }
}

pub(crate) fn follow(nccl: &Nccl, stream: Stream, other: Stream) {
    nccl.ok(nccl!(nccl, anabranchHostStreamFollow(stream => Stream, other => Stream)));
}

pub(crate) fn capture(rank: &Rank<'_>, calls: impl FnOnce()) -> c_int {
    let (nccl, mut graph) = (rank.nccl, -1);
    nccl.ok(nccl!(nccl, anabranchHostBeginCapture(rank.stream => Stream)));
    calls();
    nccl.ok(nccl!(nccl, anabranchHostEndCapture(rank.stream => Stream, &raw mut graph => *mut c_int)));
    graph
}

pub(crate) fn replay(nccl: &Nccl, graph: c_int, stream: Stream) {
    nccl.ok(nccl!(nccl, anabranchHostGraphLaunch(graph => c_int, stream => Stream)));
}

#[test]
fn calls_on_the_streams_of_one_capture_are_ordered() {
    alone!("calls_on_the_streams_of_one_capture_are_ordered");
    let nccl = Nccl::open(&[]);
    on_threads(&nccl, 2, |rank| {
        let sides: Vec<Stream> = (0..4).map(|_| nccl.stream()).collect();
        let mut sums: Vec<Sum> =
            sides.iter().zip(1..).map(|(stream, value)| Sum::new(*stream, value)).collect();
        // On the host runtime a capture loads no kernels.
        sums[0].call(rank);
        nccl.synchronize(sides[0]);
        // Nothing but the communicator orders the calls.
        let graph = capture(rank, || {
            for side in &sides {
                follow(&nccl, *side, rank.stream);
            }
            for sum in &mut sums {
                sum.call(rank);
            }
            for side in &sides {
                follow(&nccl, rank.stream, *side);
            }
        });
        for _ in 0..10 {
            replay(&nccl, graph, rank.stream);
            nccl.synchronize(rank.stream);
            sums.iter().zip(1..).for_each(|(sum, value)| sum.check(rank, value));
        }
    });
}

#[test]
fn graphs_and_other_calls_are_ordered() {
    alone!("graphs_and_other_calls_are_ordered");
    let nccl = Nccl::open(&[]);
    on_threads(&nccl, 2, |rank| {
        let streams = [rank.stream, nccl.stream(), nccl.stream(), nccl.stream()];
        let on = [0, 0, 2, 3].map(|number| streams[number]);
        let mut sums: Vec<Sum> = on.iter().zip(1..).map(|(stream, value)| Sum::new(*stream, value)).collect();
        for _ in 0..10 {
            // In flight when the captures begin, and when the graphs are launched.
            sums[2].call(rank);
            let graphs = [0, 1].map(|number| capture(rank, || sums[number].call(rank)));
            replay(&nccl, graphs[0], streams[0]);
            sums[3].call(rank);
            replay(&nccl, graphs[1], streams[1]);
            sums[2].call(rank);
            replay(&nccl, graphs[0], streams[3]);
            for stream in &streams {
                nccl.synchronize(*stream);
            }
            sums.iter().zip(1..).for_each(|(sum, value)| sum.check(rank, value));
        }
    });
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a rank is late in the machine's time")]
fn windows_outlive_the_calls_that_are_in_flight_when_their_communicator_ends() {
    let test = test_path!("windows_outlive_the_calls_that_are_in_flight_when_their_communicator_ends");
    let Some(rank) = on_processes(test, 2) else { return };
    let Rank { nccl, comm, stream, .. } = rank;
    nccl.count_ranks(&rank);
    let bytes = 1usize << 22;
    let (mut memory, mut window) = (std::ptr::null_mut::<c_void>(), std::ptr::null_mut::<c_void>());
    nccl.ok(nccl!(nccl, ncclMemAlloc(&raw mut memory => *mut *mut c_void, bytes => usize)));
    nccl.ok(nccl!(nccl, ncclCommWindowRegister(comm => Comm, memory => *mut c_void, bytes => usize, &raw mut window => *mut *mut c_void, 1 => c_int)));
    assert!(!window.is_null());
    let (count, output) = (bytes / 8, memory.wrapping_byte_add(bytes / 2));
    let given = Buffer::of(FLOAT, &vec![f64::from(rank.number + 1); count]);
    // SAFETY: the first half of the allocation; no work is in flight.
    unsafe { std::ptr::copy(given.address().cast::<u8>(), memory.cast::<u8>(), 4 * count) };
    let late = |number| {
        if rank.number == number {
            std::thread::sleep(std::time::Duration::from_secs(1));
        }
    };
    // Rank 0 ends its communicator while its kernel waits for rank 1.
    late(1);
    nccl.ok(nccl!(nccl, ncclAllReduce(memory => *const c_void, output => *mut c_void, count => usize, FLOAT => c_int, SUM => c_int, comm => Comm, stream => Stream)));
    nccl.ok(nccl!(nccl, ncclCommFinalize(comm => Comm)));
    nccl.synchronize(stream);
    // SAFETY: the second half of the allocation, which the call has written.
    let sums = unsafe { std::slice::from_raw_parts(output.cast::<f32>(), count) };
    assert!(sums.iter().all(|sum| *sum == 3.0), "{:?}", &sums[..4]);
    while nccl.async_error(comm) == 7 {
        std::thread::yield_now();
    }
    nccl.destroy(comm);
    nccl.ok(nccl!(nccl, ncclMemFree(memory => *mut c_void)));
}

#[test]
fn broadcasts_of_1_mib_copy_the_roots_input_in_calls_and_in_graphs() {
    alone!("broadcasts_of_1_mib_copy_the_roots_input_in_calls_and_in_graphs");
    let large: usize = 300_000;
    let nccl = Nccl::open(&[]);
    on_threads(&nccl, 3, |rank| {
        let other = nccl.stream();
        let values =
            |value: u32| (0..large).map(|index| f64::from(value + index as u32 % 1000)).collect::<Vec<_>>();
        let of = |value| Buffer::of(INT32, &values(value));
        let (captured, input) = (of(100 * rank.number), of(7 + rank.number));
        let output = Buffer::zeros(INT32, large);
        let broadcast = |stream: Stream, input: &Buffer, root: u32| {
            let source = if rank.number == root { input.address() } else { std::ptr::null_mut() };
            let target = output.address();
            nccl.ok(nccl!(nccl, ncclBroadcast(source => *const c_void, target => *mut c_void, large => usize, INT32 => c_int, root as c_int => c_int, rank.comm => Comm, stream => Stream)));
        };
        let check = |value: u32| assert!(output.values() == values(value), "rank {}, {value}", rank.number);
        broadcast(other, &input, 1);
        nccl.synchronize(other);
        check(8);
        let graph = capture(rank, || {
            broadcast(rank.stream, &captured, 2);
            // The copy of this call is not in the capture.
            broadcast(other, &input, 0);
        });
        nccl.synchronize(other);
        check(7);
        for root in 0..2 {
            replay(&nccl, graph, rank.stream);
            nccl.synchronize(rank.stream);
            check(200);
            broadcast(other, &input, root);
            nccl.synchronize(other);
            check(7 + root);
        }
    });
}
