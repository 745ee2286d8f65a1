//! Windows: collectives that reach them, memory that is not shared.

use std::ffi::{c_int, c_void};

use anabranch_testkit::test_path;

use crate::common::{
    Buffer, Comm, FLOAT, Nccl, Rank, SUM, Stream, all_given, alone, given, nccl, on_processes, on_threads,
};

/// Bytes of a window. The lower half has the input, the upper half the output.
const BYTES: usize = 1 << 20;

/// Memory of `ncclMemAlloc`, and its window.
struct Window {
    memory: *mut c_void,
    number: *mut c_void,
}

fn register(rank: &Rank<'_>, memory: *mut c_void, bytes: usize) -> *mut c_void {
    let (nccl, mut window) = (rank.nccl, std::ptr::null_mut());
    nccl.ok(nccl!(nccl, ncclCommWindowRegister(rank.comm => Comm, memory => *mut c_void, bytes => usize, &raw mut window => *mut *mut c_void, 1 => c_int)));
    window
}

impl Window {
    fn new(rank: &Rank<'_>) -> Self {
        let (nccl, mut memory) = (rank.nccl, std::ptr::null_mut());
        nccl.ok(nccl!(nccl, ncclMemAlloc(&raw mut memory => *mut *mut c_void, BYTES => usize)));
        let number = register(rank, memory, BYTES);
        assert!(!number.is_null(), "memory of ncclMemAlloc is shared");
        Self { memory, number }
    }

    fn output(&self) -> *mut c_void {
        self.memory.wrapping_byte_add(BYTES / 2)
    }

    /// Ends the window, which no call may use any more.
    fn end(self, rank: &Rank<'_>) {
        let nccl = rank.nccl;
        nccl.ok(nccl!(nccl, ncclCommWindowDeregister(rank.comm => Comm, self.number => *mut c_void)));
        nccl.ok(nccl!(nccl, ncclMemFree(self.memory => *mut c_void)));
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    AllReduce,
    AllGather,
    ReduceScatter,
    AlltoAll,
    Broadcast,
}

use Kind::{AllGather, AllReduce, AlltoAll, Broadcast, ReduceScatter};

impl Kind {
    const ALL: [Self; 5] = [AllReduce, AllGather, ReduceScatter, AlltoAll, Broadcast];

    /// Parts of the input and of the output.
    fn parts(self, size: usize) -> (usize, usize) {
        match self {
            AllReduce | Broadcast => (1, 1),
            AllGather => (1, size),
            ReduceScatter => (size, 1),
            AlltoAll => (size, size),
        }
    }

    /// Places of the input and of the output in one buffer, for a call in place.
    fn in_place(self, rank: &Rank<'_>, count: usize) -> (usize, usize) {
        let own = rank.number as usize * count;
        match self {
            AllGather => (own, 0),
            ReduceScatter => (0, own),
            AllReduce | AlltoAll | Broadcast => (0, 0),
        }
    }

    fn call(self, rank: &Rank<'_>, send: *mut c_void, receive: *mut c_void, count: usize) -> c_int {
        let Rank { nccl, comm, stream, .. } = *rank;
        match self {
            AllReduce => {
                nccl!(nccl, ncclAllReduce(send => *const c_void, receive => *mut c_void, count => usize, FLOAT => c_int, SUM => c_int, comm => Comm, stream => Stream))
            }
            AllGather => {
                nccl!(nccl, ncclAllGather(send => *const c_void, receive => *mut c_void, count => usize, FLOAT => c_int, comm => Comm, stream => Stream))
            }
            ReduceScatter => {
                nccl!(nccl, ncclReduceScatter(send => *const c_void, receive => *mut c_void, count => usize, FLOAT => c_int, SUM => c_int, comm => Comm, stream => Stream))
            }
            AlltoAll => {
                nccl!(nccl, ncclAlltoAll(send => *const c_void, receive => *mut c_void, count => usize, FLOAT => c_int, comm => Comm, stream => Stream))
            }
            Broadcast => {
                nccl!(nccl, ncclBroadcast(send => *const c_void, receive => *mut c_void, count => usize, FLOAT => c_int, 1 => c_int, comm => Comm, stream => Stream))
            }
        }
    }

    /// The element of the output at a place.
    fn wanted(self, rank: &Rank<'_>, count: usize, index: usize) -> f64 {
        let sum = |index| (0..rank.size).map(|rank| given(rank, index)).sum();
        let own = rank.number as usize * count;
        let (other, element) = ((index / count) as u32, index % count);
        match self {
            AllReduce => sum(index),
            AllGather => given(other, element),
            ReduceScatter => sum(own + index),
            AlltoAll => given(other, own + element),
            Broadcast => given(1, index),
        }
    }

    /// Calls with the input and the output at these addresses, out of place and in place, and checks the output.
    fn check(self, rank: &Rank<'_>, input: *mut c_void, output: *mut c_void, count: usize) {
        let (inputs, outputs) = self.parts(rank.size as usize);
        let values = Buffer::of(FLOAT, &all_given(rank.number, inputs * count));
        let at = |base: *mut c_void, place: usize| base.wrapping_byte_add(4 * place);
        let (send_at, receive_at) = self.in_place(rank, count);
        for (send, receive) in [(input, output), (at(output, send_at), at(output, receive_at))] {
            // SAFETY: the caller has memory for the parts at both addresses, which no call in flight uses.
            unsafe {
                output.cast::<u8>().write_bytes(0, 4 * count * rank.size as usize);
                send.cast::<u8>().copy_from(values.address().cast(), 4 * values.count);
            }
            rank.nccl.ok(self.call(rank, send, receive, count));
            rank.nccl.synchronize(rank.stream);
            // SAFETY: the call has written these floats, and is over.
            let found = unsafe { std::slice::from_raw_parts(receive.cast::<f32>(), outputs * count) };
            let wrong =
                (0..found.len()).find(|index| f64::from(found[*index]) != self.wanted(rank, count, *index));
            assert_eq!(
                wrong,
                None,
                "{self:?} of {count} on rank {}, in place: {}",
                rank.number,
                send != input
            );
        }
    }
}

/// Where the algorithm is set, calls in windows run, and the same calls in other memory are refused: so no window was staged.
fn only_windows_are_taken_by(algorithm: &str, kinds: &[Kind]) {
    let nccl = Nccl::open(&[("ANABRANCH__CCL__ALGORITHM", algorithm)]);
    on_threads(&nccl, 3, |rank| {
        let window = Window::new(rank);
        let other = Buffer::zeros(FLOAT, BYTES / 4);
        for kind in kinds {
            for count in [1, 1000, 40_000] {
                kind.check(rank, window.memory, window.output(), count);
            }
            let code = kind.call(rank, other.address(), other.at(BYTES / 8), 1000);
            let text = nccl.last_error(std::ptr::null_mut());
            assert!(code != 0 && text.contains(algorithm), "{kind:?}: {code} {text}");
            // The window goes on.
            kind.check(rank, window.memory, window.output(), 1000);
        }
        window.end(rank);
    });
}

#[test]
fn reductions_read_the_windows_of_peers() {
    alone!("reductions_read_the_windows_of_peers");
    only_windows_are_taken_by("pull", &[AllReduce, ReduceScatter]);
}

#[test]
fn movements_write_to_the_windows_of_peers() {
    alone!("movements_write_to_the_windows_of_peers");
    only_windows_are_taken_by("direct", &[AllGather, AlltoAll, Broadcast]);
}

#[test]
fn windows_take_the_direct_path() {
    alone!("windows_take_the_direct_path");
    let nccl = Nccl::open(&[]);
    on_threads(&nccl, 2, |rank| {
        let window = Window::new(rank);
        let mut user = std::ptr::null_mut::<c_void>();
        nccl.ok(nccl!(nccl, ncclWinGetUserPtr(rank.comm => Comm, window.number => *mut c_void, &raw mut user => *mut *mut c_void)));
        assert_eq!(user, window.memory);
        for kind in Kind::ALL {
            for count in [1, 1000, 60_000] {
                kind.check(rank, window.memory, window.output(), count);
            }
        }
        nccl.ok(nccl!(nccl, ncclCommWindowDeregister(rank.comm => Comm, window.number => *mut c_void)));
        // Without their window the calls stage the memory.
        for kind in Kind::ALL {
            kind.check(rank, window.memory, window.output(), 1000);
        }
        nccl.ok(nccl!(nccl, ncclMemFree(window.memory => *mut c_void)));
        assert_eq!(nccl!(nccl, ncclMemFree(window.memory => *mut c_void)), 4);
    });
}

#[test]
fn scaled_sums_of_windows_are_those_of_other_memory() {
    alone!("scaled_sums_of_windows_are_those_of_other_memory");
    let nccl = Nccl::open(&[]);
    on_threads(&nccl, 2, |rank| {
        let (window, comm, stream) = (Window::new(rank), rank.comm, rank.stream);
        let (input, output) = (window.memory, window.output());
        // Each rank has a scalar of its own, in device memory on the first one and in host memory on the second one, and the other way.
        let scalar_of = |rank: u32| f64::from(2 + rank);
        for (count, first) in [(1, 0), (1000, 1), (60_000, 0)] {
            let (scalar, mut op) = (Buffer::of(FLOAT, &[scalar_of(rank.number)]), -1);
            let residence = c_int::from(rank.number != first);
            nccl.ok(nccl!(nccl, ncclRedOpCreatePreMulSum(&raw mut op => *mut c_int, scalar.address() => *mut c_void, FLOAT => c_int, residence => c_int, comm => Comm)));
            let values = Buffer::of(FLOAT, &all_given(rank.number, 2 * count));
            let sum = |index: usize| (0..2).map(|rank| scalar_of(rank) * given(rank, index)).sum::<f64>();
            for (is_scatter, target) in [(false, output), (true, output), (false, input)] {
                // SAFETY: the first half of the window; no call is in flight.
                unsafe { input.cast::<u8>().copy_from(values.address().cast(), 8 * count) };
                nccl.ok(if is_scatter {
                    nccl!(nccl, ncclReduceScatter(input => *const c_void, target => *mut c_void, count => usize, FLOAT => c_int, op => c_int, comm => Comm, stream => Stream))
                } else {
                    nccl!(nccl, ncclAllReduce(input => *const c_void, target => *mut c_void, count => usize, FLOAT => c_int, op => c_int, comm => Comm, stream => Stream))
                });
                nccl.synchronize(stream);
                // SAFETY: the call has written these floats, and is over.
                let found = unsafe { std::slice::from_raw_parts(target.cast::<f32>(), count) };
                let own = if is_scatter { rank.number as usize * count } else { 0 };
                let wrong = (0..count).find(|index| f64::from(found[*index]) != sum(own + index));
                assert_eq!(wrong, None, "{count} on rank {}, scatter: {is_scatter}", rank.number);
            }
            nccl.ok(nccl!(nccl, ncclRedOpDestroy(op => c_int, comm => Comm)));
        }
        window.end(rank);
    });
}

#[test]
fn windows_of_processes_take_the_direct_path() {
    let Some(rank) = on_processes(test_path!("windows_of_processes_take_the_direct_path"), 2) else { return };
    let window = Window::new(&rank);
    for kind in Kind::ALL {
        kind.check(&rank, window.memory, window.output(), 60_000);
    }
    window.end(&rank);
    rank.nccl.destroy(rank.comm);
}

#[test]
fn memory_that_is_not_shared_is_staged() {
    alone!("memory_that_is_not_shared_is_staged");
    let nccl = Nccl::open(&[]);
    on_threads(&nccl, 2, |rank| {
        let other = Buffer::zeros(FLOAT, 4000);
        assert!(register(rank, other.address(), 16_000).is_null());
        for kind in Kind::ALL {
            kind.check(rank, other.address(), other.at(2000), 1000);
        }
    });
}
