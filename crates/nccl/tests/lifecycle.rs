//! Communicators: splits, many of them, threads, captures, nonblocking ones.

use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;

use crate::common::{
    Buffer, Comm, FLOAT, INT32, IdValue, Nccl, Rank, SUM, Stream, alone, given, nccl, on_threads,
};

/// The first fields of `ncclConfig_t` since 2.17.
#[repr(C)]
pub(crate) struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    rest: [c_int; 3],
}

impl Config {
    pub(crate) fn new(blocking: c_int) -> Self {
        let undefined = c_int::MIN;
        Self { size: size_of::<Self>(), magic: 0xcafe_beef, version: 21700, blocking, rest: [undefined; 3] }
    }
}

/// `ncclConfig_t` of 2.14 to 2.16, all of it.
#[repr(C)]
struct OldConfig {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

#[test]
fn configurations_of_each_version_are_read() {
    alone!("configurations_of_each_version_are_read");
    let nccl = Nccl::open(&[]);
    let init = |config: *const c_void| {
        let (mut comm, id) = (std::ptr::null_mut(), nccl.unique_id());
        let code = nccl!(nccl, ncclCommInitRankConfig(&raw mut comm => *mut Comm, 1 => c_int, id => crate::common::Id, 0 => c_int, config => *const c_void));
        if code == 0 {
            nccl.destroy(comm);
        }
        code
    };
    let old = OldConfig { size: 24, magic: 0xcafe_beef, version: 21400, blocking: 1 };
    assert_eq!(size_of::<OldConfig>(), 24);
    assert_eq!(init((&raw const old).cast()), 0);
    let mut new = Config::new(1);
    new.rest[2] = 4;
    assert_eq!(init((&raw const new).cast()), 0);
    new.rest[2] = 0;
    assert_eq!(init((&raw const new).cast()), 4);
    assert!(nccl.last_error(std::ptr::null_mut()).contains("maxCTAs is 0"));
    // The place of maxCTAs is padding of an older one.
    new.version = 21400;
    assert_eq!(init((&raw const new).cast()), 0);
    new.magic = 1;
    assert_eq!(init((&raw const new).cast()), 4);
}

fn split(rank: &Rank<'_>, color: c_int, key: c_int) -> Comm {
    let (nccl, mut part) = (rank.nccl, std::ptr::null_mut());
    nccl.ok(nccl!(nccl, ncclCommSplit(rank.comm => Comm, color => c_int, key => c_int, &raw mut part => *mut Comm, std::ptr::null() => *const Config)));
    part
}

#[test]
fn parts_of_a_split_outlive_it() {
    alone!("parts_of_a_split_outlive_it");
    let nccl = Nccl::open(&[]);
    on_threads(&nccl, 4, |rank| {
        // Ranks 0 and 2, 1 and 3, in reverse order.
        let part = split(rank, (rank.number % 2) as c_int, -(rank.number as c_int));
        let mut place = -1;
        nccl.ok(nccl!(nccl, ncclCommUserRank(part => Comm, &raw mut place => *mut c_int)));
        assert_eq!(place, c_int::from(rank.number < 2));
        let part = Rank { comm: part, number: place as u32, size: 2, ..*rank };
        nccl.count_ranks(&part);
        let none = split(rank, if rank.number == 3 { -1 } else { 5 }, 0);
        assert_eq!(none.is_null(), rank.number == 3);
        if !none.is_null() {
            nccl.count_ranks(&Rank { comm: none, size: 3, ..*rank });
            nccl.destroy(none);
        }
        let whole = Rank { comm: split(rank, 0, 0), ..*rank };
        nccl.count_ranks(rank);
        nccl.count_ranks(&whole);
        // A part that is aborted leaves the others alone.
        nccl.ok(nccl!(nccl, ncclCommAbort(whole.comm => Comm)));
        nccl.count_ranks(&part);
        nccl.count_ranks(rank);
        nccl.destroy(part.comm);
    });
}

#[test]
fn sixteen_communicators_work_at_once() {
    alone!("sixteen_communicators_work_at_once");
    let nccl = Nccl::open(&[("ANABRANCH__HEAP__BYTES", "8 MiB"), ("ANABRANCH__CCL__STAGING_BYTES", "1 MiB")]);
    let ids: Vec<_> = (0..16).map(|_| nccl.unique_id()).collect();
    on_threads(&nccl, 2, |rank| {
        let ranks: Vec<_> = ids
            .iter()
            .map(|id| Rank { comm: nccl.init(2, *id, rank.number), stream: nccl.stream(), ..*rank })
            .collect();
        for round in 0..3 {
            let given: Vec<_> =
                (0..16).map(|number| Buffer::of(INT32, &vec![f64::from(number + round); 2000])).collect();
            let mut sums = vec![Buffer::zeros(INT32, 2000); 16];
            for ((one, given), sum) in ranks.iter().zip(&given).zip(&mut sums) {
                nccl.ok(nccl.all_reduce(one, given, sum, SUM));
            }
            for ((number, one), sum) in (0..).zip(&ranks).zip(&sums) {
                nccl.synchronize(one.stream);
                assert_eq!(sum.values(), vec![f64::from(2 * (number + round)); 2000]);
            }
        }
        for one in &ranks {
            nccl.destroy(one.comm);
        }
    });
}

#[test]
fn two_threads_of_a_rank_use_a_communicator_each() {
    alone!("two_threads_of_a_rank_use_a_communicator_each");
    let nccl = Nccl::open(&[]);
    let second = nccl.unique_id();
    on_threads(&nccl, 2, |rank| {
        let number = rank.number;
        std::thread::scope(|scope| {
            let nccl = &nccl;
            scope.spawn(move || {
                nccl.set_device(number);
                let (stream, comm) = (nccl.stream(), nccl.init(2, second, number));
                let other = Rank { nccl, comm, stream, number, size: 2 };
                (0..50).for_each(|_| nccl.count_ranks(&other));
                nccl.destroy(comm);
            });
            (0..50).for_each(|_| nccl.count_ranks(rank));
        });
    });
}

#[test]
fn a_captured_group_is_replayed_with_new_values() {
    alone!("a_captured_group_is_replayed_with_new_values");
    let nccl = Nccl::open(&[]);
    on_threads(&nccl, 2, |rank| {
        let (sum, got) = (Buffer::zeros(FLOAT, 100), Buffer::zeros(FLOAT, 100));
        let input = Buffer::zeros(FLOAT, 100);
        let peer = 1 - rank.number as c_int;
        let calls = || {
            nccl.group(|| {
                nccl.ok(nccl!(nccl, ncclAllReduce(input.address() => *const c_void, sum.address() => *mut c_void, 100 => usize, FLOAT => c_int, SUM => c_int, rank.comm => Comm, rank.stream => Stream)));
                nccl.ok(nccl!(nccl, ncclSend(input.address() => *const c_void, 100 => usize, FLOAT => c_int, peer => c_int, rank.comm => Comm, rank.stream => Stream)));
                nccl.ok(nccl!(nccl, ncclRecv(got.address() => *mut c_void, 100 => usize, FLOAT => c_int, peer => c_int, rank.comm => Comm, rank.stream => Stream)));
            });
        };
        calls();
        nccl.synchronize(rank.stream);
        let mut graph = -1;
        nccl.ok(nccl!(nccl, anabranchHostBeginCapture(rank.stream => Stream)));
        calls();
        nccl.ok(nccl!(nccl, anabranchHostEndCapture(rank.stream => Stream, &raw mut graph => *mut c_int)));
        for round in 0..4 {
            let values: Vec<f64> =
                (0..100).map(|index| given(rank.number, index) + f64::from(round)).collect();
            let fresh = Buffer::of(FLOAT, &values);
            // SAFETY: both are 400 bytes, and no work is in flight.
            unsafe { std::ptr::copy(fresh.address().cast::<u8>(), input.address().cast::<u8>(), 400) };
            nccl.ok(nccl!(nccl, anabranchHostGraphLaunch(graph => c_int, rank.stream => Stream)));
            nccl.synchronize(rank.stream);
            for index in 0..100 {
                let round = f64::from(round);
                assert_eq!(sum.values()[index], given(0, index) + given(1, index) + 2.0 * round);
                assert_eq!(got.values()[index], given(1 - rank.number, index) + round);
            }
        }
    });
}

/// Begins the initialisation of a rank on its device.
pub(crate) fn init_nonblocking(nccl: &Nccl, size: u32, id: IdValue, rank: u32) -> Rank<'_> {
    nccl.set_device(rank);
    let (mut comm, config) = (std::ptr::null_mut(), Config::new(0));
    let code = nccl!(nccl, ncclCommInitRankConfig(&raw mut comm => *mut Comm, size as c_int => c_int, id => IdValue, rank as c_int => c_int, &raw const config => *const Config));
    assert!([0, 7].contains(&code), "{}", nccl.last_error(std::ptr::null_mut()));
    Rank { nccl, comm, stream: nccl.stream(), number: rank, size }
}

/// The state of a communicator once it is not "in progress" any more.
pub(crate) fn settled(nccl: &Nccl, comm: Comm) -> c_int {
    loop {
        match nccl.async_error(comm) {
            7 => std::thread::yield_now(),
            code => return code,
        }
    }
}

#[test]
fn nonblocking_splits_go_on_behind_the_call() {
    alone!("nonblocking_splits_go_on_behind_the_call");
    let nccl = Nccl::open(&[]);
    let comms = nccl.init_all(2);
    let config = Config::new(0);
    let mut parts = [std::ptr::null_mut(); 2];
    // One thread splits both: a blocking call would wait for good.
    for (comm, part) in comms.iter().zip(&mut parts) {
        let code = nccl!(nccl, ncclCommSplit(*comm => Comm, 0 => c_int, 0 => c_int, &raw mut *part => *mut Comm, &raw const config => *const Config));
        assert_eq!(code, 7, "{}", nccl.last_error(std::ptr::null_mut()));
    }
    for comm in &comms {
        assert_eq!(settled(&nccl, *comm), 0, "the parent waits for the number of the part");
    }
    let parts: Vec<_> = (0..2)
        .zip(parts)
        .map(|(number, comm)| {
            nccl.set_device(number);
            assert_eq!(settled(&nccl, comm), 0);
            Rank { nccl: &nccl, comm, stream: nccl.stream(), number, size: 2 }
        })
        .collect();
    let inputs = [1.0, 2.0].map(|value| Buffer::of(INT32, &[value; 100]));
    let mut sums = [Buffer::zeros(INT32, 100), Buffer::zeros(INT32, 100)];
    nccl.group(|| {
        for ((rank, input), sum) in parts.iter().zip(&inputs).zip(&mut sums) {
            nccl.ok(nccl.all_reduce(rank, input, sum, SUM));
        }
    });
    for (rank, sum) in parts.iter().zip(&sums) {
        nccl.synchronize(rank.stream);
        assert_eq!(sum.values(), [3.0; 100]);
        nccl.destroy(rank.comm);
    }
    for comm in &comms {
        nccl.destroy(*comm);
    }
}

#[test]
fn nonblocking_communicators_join_behind_the_call() {
    alone!("nonblocking_communicators_join_behind_the_call");
    let nccl = Nccl::open(&[]);
    let id: IdValue = nccl.unique_id().into();
    // One thread makes both: a blocking call would wait for good.
    let comms: Vec<_> = (0..2).map(|rank| init_nonblocking(&nccl, 2, id, rank)).collect();
    for rank in &comms {
        assert_eq!(settled(&nccl, rank.comm), 0);
    }
    std::thread::scope(|scope| {
        for rank in &comms {
            let (nccl, comm, stream, number) = (&nccl, rank.comm as usize, rank.stream as usize, rank.number);
            scope.spawn(move || {
                let rank = Rank { nccl, comm: comm as Comm, stream: stream as Stream, number, size: 2 };
                nccl.count_ranks(&rank);
            });
        }
    });
    for rank in &comms {
        nccl.ok(nccl!(nccl, ncclCommFinalize(rank.comm => Comm)));
    }
    for rank in &comms {
        assert_eq!(settled(&nccl, rank.comm), 0);
        let (input, mut output) = (Buffer::zeros(INT32, 1), Buffer::zeros(INT32, 1));
        assert_eq!(nccl.all_reduce(rank, &input, &mut output, SUM), 5, "a finalized communicator");
        nccl.destroy(rank.comm);
        assert_eq!(nccl.all_reduce(rank, &input, &mut output, SUM), 4, "a destroyed communicator");
    }
}

#[test]
fn wrong_arguments_are_named() {
    alone!("wrong_arguments_are_named");
    let nccl = Nccl::open(&[]);
    let last = || nccl.last_error(std::ptr::null_mut());
    let id: IdValue = nccl.unique_id().into();
    let mut comm = std::ptr::null_mut();
    assert_eq!(
        nccl!(nccl, ncclCommInitRank(&raw mut comm => *mut Comm, 2 => c_int, id => IdValue, 2 => c_int)),
        4
    );
    assert!(last().contains("rank is 2 and nranks 2"), "{}", last());
    let strange: IdValue = [7; 128].into();
    assert_eq!(
        nccl!(nccl, ncclCommInitRank(&raw mut comm => *mut Comm, 1 => c_int, strange => IdValue, 0 => c_int)),
        4
    );
    assert!(comm.is_null() && last().contains("rank 0 of 1: the id is not one"), "{}", last());
    let mut config = Config::new(1);
    config.magic = 1;
    let id: IdValue = nccl.unique_id().into();
    assert_eq!(
        nccl!(nccl, ncclCommInitRankConfig(&raw mut comm => *mut Comm, 1 => c_int, id => IdValue, 0 => c_int, &raw const config => *const Config)),
        4
    );
    assert!(last().contains("rank 0 of 1: ") && last().contains("magic"), "{}", last());
    assert_eq!(nccl!(nccl, ncclCommDestroy(64 as Comm => Comm)), 4);
    for (device, what, wanted) in
        [(-1, "rank 1 of 2: device is -1", 4), (99, "rank 1 of 2: device 99", 4), (0, "device 0 twice", 5)]
    {
        let (mut comms, devices) = ([std::ptr::null_mut(); 2], [0, device]);
        let code = nccl!(nccl, ncclCommInitAll(comms.as_mut_ptr() => *mut Comm, 2 => c_int, devices.as_ptr() => *const c_int));
        assert!(code == wanted && last().contains(what), "{code} {}", last());
    }
    // One rank alone is a communicator.
    on_threads(&nccl, 1, |rank| {
        nccl.count_ranks(rank);
        let (input, mut output) = (Buffer::zeros(INT32, 1), Buffer::zeros(INT32, 1));
        assert_eq!(nccl.all_reduce(rank, &input, &mut output, 9), 4);
        assert_eq!(
            nccl!(nccl, ncclAllReduce(std::ptr::null() => *const c_void, output.address() => *mut c_void, 1 => usize, INT32 => c_int, SUM => c_int, rank.comm => Comm, rank.stream => Stream)),
            4
        );
        assert!(nccl.last_error(std::ptr::null_mut()).contains("null"));
        let named = |code: c_int, what: &str| {
            assert_eq!(code, 4, "{what}");
            assert!(last().contains("rank 0 of 1: ") && last().contains(what), "{what}: {}", last());
        };
        let (null, mut part) = (std::ptr::null_mut(), std::ptr::null_mut());
        named(nccl!(nccl, ncclCommCount(rank.comm => Comm, null => *mut c_int)), "count is null");
        named(nccl!(nccl, ncclRedOpDestroy(77 => c_int, rank.comm => Comm)), "77 is no operator");
        named(nccl!(nccl, ncclCommWindowDeregister(rank.comm => Comm, 64 as Comm => Comm)), "no window");
        named(
            nccl!(nccl, ncclCommSplit(rank.comm => Comm, -2 => c_int, 0 => c_int, &raw mut part => *mut Comm, std::ptr::null() => *const Config)),
            "color is -2",
        );
        named(
            nccl!(nccl, ncclAllReduce(input.address() => *const c_void, output.address() => *mut c_void, 1 => usize, 12 => c_int, SUM => c_int, rank.comm => Comm, rank.stream => Stream)),
            "datatype is 12",
        );
    });
}

#[test]
fn a_log_that_cannot_be_written_changes_nothing() {
    alone!("a_log_that_cannot_be_written_changes_nothing");
    let nccl = Nccl::open(&[]);
    let full = std::fs::File::create("/dev/full").unwrap();
    // SAFETY: both are open; the first one becomes this process's stderr too.
    assert_eq!(unsafe { libc::dup2(full.as_raw_fd(), 2) }, 2);
    assert_eq!(nccl!(nccl, ncclCommDestroy(64 as Comm => Comm)), 4);
}
