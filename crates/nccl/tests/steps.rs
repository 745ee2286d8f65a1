//! Collective calls on the host: their order, and where their failures are reported.

use std::ffi::{c_int, c_void};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anabranch_testkit::Resources;

use crate::common::{Buffer, Comm, INT32, IdValue, Nccl, Rank, SUM, alone, nccl, on_threads};
use crate::ends::sleep;
use crate::lifecycle::{Config, settled};

/// Begins a nonblocking split with one color.
fn split(rank: &Rank<'_>, key: c_int, part: *mut Comm) {
    let config = Config::new(0);
    let code = nccl!(rank.nccl, ncclCommSplit(rank.comm => Comm, 0 => c_int, key => c_int, part => *mut Comm, &raw const config => *const Config));
    assert_eq!(code, 7, "{}", rank.nccl.last_error(std::ptr::null_mut()));
}

/// Lets a rank be late.
fn late(rank: &Rank<'_>, number: u32) {
    if rank.number == number {
        #[expect(clippy::disallowed_methods, reason = "a rank is late in the machine's time")]
        std::thread::sleep(Duration::from_millis(500));
    }
}

#[track_caller]
fn check(rank: &Rank<'_>, part: Comm, number: u32) {
    assert_eq!(settled(rank.nccl, part), 0, "{}", rank.nccl.last_error(part));
    let mut place = -1;
    rank.nccl.ok(nccl!(rank.nccl, ncclCommUserRank(part => Comm, &raw mut place => *mut c_int)));
    assert_eq!(place, number as c_int);
    rank.nccl.count_ranks(&Rank { comm: part, number, ..*rank });
    rank.nccl.destroy(part);
}

/// Runs calls while this process may have no more of a resource.
fn limited<T>(resource: libc::__rlimit_resource_t, most: u64, calls: impl FnOnce() -> T) -> T {
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes the limits.
    assert_eq!(unsafe { libc::getrlimit(resource, &raw mut before) }, 0);
    // SAFETY: the call reads the limits.
    let set = |limit: libc::rlimit| assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0);
    set(libc::rlimit { rlim_cur: most, ..before });
    let result = calls();
    set(before);
    result
}

/// Runs calls while this process can start no threads: there is no memory for their stacks.
pub(crate) fn without_threads<T>(calls: impl FnOnce() -> T) -> T {
    // Threads that have just begun take 64 MiB each for an arena of malloc, which the limit has to include.
    let mut before = 0;
    let bytes = loop {
        let now = 1024 * Resources::now().unwrap().address_space_kib as u64;
        if now == before {
            break now;
        }
        before = now;
        sleep(50);
    };
    limited(libc::RLIMIT_AS, bytes + (1 << 20), || {
        let (sender, receiver) = channel::<()>();
        let receiver = Arc::new(Mutex::new(receiver));
        let start = || {
            let receiver = Arc::clone(&receiver);
            let wait = move || assert!(receiver.lock().unwrap().recv().is_err());
            std::thread::Builder::new().spawn(wait)
        };
        // They take the stacks of threads that have ended.
        let held: Vec<_> = std::iter::from_fn(|| start().ok()).collect();
        let result = calls();
        drop(sender);
        for thread in held {
            thread.join().unwrap();
        }
        result
    })
}

#[test]
fn collective_calls_of_a_communicator_run_in_the_order_of_the_program() {
    alone!("collective_calls_of_a_communicator_run_in_the_order_of_the_program");
    let nccl = Nccl::open(&[]);
    on_threads(&nccl, 2, |rank| {
        let (key, mut parts, memory) = (rank.number as c_int, [std::ptr::null_mut(); 3], [0u64; 512]);
        let mut window = std::ptr::null_mut::<c_void>();
        // The other rank has made the next calls before this one makes them.
        split(rank, key, &raw mut parts[0]);
        late(rank, 1);
        split(rank, -key, &raw mut parts[1]);
        late(rank, 0);
        nccl.ok(nccl!(nccl, ncclCommWindowRegister(rank.comm => Comm, memory.as_ptr().cast_mut().cast() => *mut c_void, 4096 => usize, &raw mut window => *mut *mut c_void, 0 => c_int)));
        late(rank, 1);
        split(rank, -key, &raw mut parts[2]);
        late(rank, 0);
        nccl.ok(nccl!(nccl, ncclCommFinalize(rank.comm => Comm)));
        assert_eq!(settled(&nccl, rank.comm), 0, "{}", nccl.last_error(rank.comm));
        for (part, number) in parts.into_iter().zip([rank.number, 1 - rank.number, 1 - rank.number]) {
            check(rank, part, number);
        }
    });
}

#[test]
fn nonblocking_calls_that_fail_are_reported_by_their_communicator() {
    alone!("nonblocking_calls_that_fail_are_reported_by_their_communicator");
    let nccl = Nccl::open(&[]);
    let comm = nccl.init(1, nccl.unique_id(), 0);
    let (id, config): (IdValue, _) = (nccl.unique_id().into(), Config::new(0));
    let (mut part, mut fresh) = (std::ptr::null_mut(), std::ptr::null_mut());
    let codes = without_threads(|| {
        [
            nccl!(nccl, ncclCommSplit(comm => Comm, 0 => c_int, 0 => c_int, &raw mut part => *mut Comm, &raw const config => *const Config)),
            nccl!(nccl, ncclCommInitRankConfig(&raw mut fresh => *mut Comm, 1 => c_int, id => IdValue, 0 => c_int, &raw const config => *const Config)),
        ]
    });
    assert_eq!(codes, [2, 2], "{}", nccl.last_error(std::ptr::null_mut()));
    for one in [comm, fresh] {
        assert_eq!(nccl.async_error(one), 2);
        let text = nccl.last_error(one);
        assert!(text.contains("rank 0 of 1: no thread"), "{text}");
        nccl.ok(nccl!(nccl, ncclCommFinalize(one => Comm)));
        assert_eq!(settled(&nccl, one), 2);
        nccl.destroy(one);
    }
}

#[test]
fn a_part_whose_first_rank_has_no_socket_fails_on_all_its_ranks() {
    alone!("a_part_whose_first_rank_has_no_socket_fails_on_all_its_ranks");
    let nccl = Nccl::open(&[("ANABRANCH__DEADLINE__OPERATION", "300 s")]);
    let comms = nccl.init_all(3);
    let ranks: Vec<_> = comms
        .iter()
        .zip(0..)
        .map(|(comm, number)| Rank {
            nccl: &nccl,
            comm: *comm,
            stream: std::ptr::null_mut(),
            number,
            size: 3,
        })
        .collect();
    let mut parts = [std::ptr::null_mut(); 3];
    // The sockets that are open go on.
    limited(libc::RLIMIT_NOFILE, Resources::now().unwrap().files as u64 + 8, || {
        let _held: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
        for (rank, part) in ranks.iter().zip(&mut parts) {
            // In reverse order: rank 2 is the first one of the part.
            split(rank, -(rank.number as c_int), &raw mut *part);
        }
        for rank in &ranks {
            assert_eq!(settled(&nccl, rank.comm), 2);
            let text = nccl.last_error(rank.comm);
            let own = format!("rank {} of 3: ", rank.number);
            assert!(text.contains(&own) && text.contains("rank 2 has no socket"), "{text}");
        }
    });
    assert!(parts.iter().all(|part| part.is_null()));
    for comm in comms {
        nccl.destroy(comm);
    }
}

/// Splits in the thread's group.
fn split_in_group(nccl: &Nccl, comm: Comm, part: *mut Comm) {
    nccl.ok(nccl!(nccl, ncclCommSplit(comm => Comm, 0 => c_int, 0 => c_int, part => *mut Comm, std::ptr::null() => *const Config)));
}

#[test]
fn a_communicator_does_not_end_in_a_group_that_has_calls_of_it() {
    alone!("a_communicator_does_not_end_in_a_group_that_has_calls_of_it");
    let nccl = Nccl::open(&[]);
    on_threads(&nccl, 1, |rank| {
        let ends: [&dyn Fn() -> c_int; 2] = [
            &|| nccl!(nccl, ncclCommFinalize(rank.comm => Comm)),
            &|| nccl!(nccl, ncclCommDestroy(rank.comm => Comm)),
        ];
        for end in ends {
            let mut part = std::ptr::null_mut();
            nccl.ok(nccl!(nccl, ncclGroupStart()));
            split_in_group(&nccl, rank.comm, &raw mut part);
            assert_eq!(end(), 5);
            let text = nccl.last_error(std::ptr::null_mut());
            assert!(text.contains("rank 0 of 1: ") && text.contains("ncclGroupEnd"), "{text}");
            assert_eq!(nccl!(nccl, ncclGroupEnd()), 5);
            assert!(part.is_null());
        }
        // It goes on, and ends in a group that has none.
        nccl.count_ranks(rank);
        nccl.group(|| nccl.destroy(rank.comm));
    });
}

#[test]
fn calls_after_a_group_that_does_not_end_fail_in_time() {
    alone!("calls_after_a_group_that_does_not_end_fail_in_time");
    let deadlines = [("ANABRANCH__DEADLINE__RENDEZVOUS", "2 s"), ("ANABRANCH__DEADLINE__OPERATION", "1 s")];
    let nccl = Nccl::open(&deadlines);
    let number = nccl.init(1, nccl.unique_id(), 0) as usize;
    let (comm, id): (_, IdValue) = (number as Comm, nccl.unique_id().into());
    let ((begun, begins), (done, ends)) = (channel::<usize>(), channel::<()>());
    std::thread::scope(|scope| {
        let nccl = &nccl;
        scope.spawn(move || {
            let (mut fresh, mut part) = (std::ptr::null_mut(), std::ptr::null_mut());
            nccl.ok(nccl!(nccl, ncclGroupStart()));
            split_in_group(nccl, number as Comm, &raw mut part);
            nccl.ok(nccl!(nccl, ncclCommInitRank(&raw mut fresh => *mut Comm, 1 => c_int, id => IdValue, 0 => c_int)));
            begun.send(fresh as usize).unwrap();
            assert!(ends.recv().is_err());
            assert_ne!(nccl!(nccl, ncclGroupEnd()), 0, "the world of the split was left");
            nccl.destroy(fresh);
        });
        let fresh =
            Rank { nccl, comm: begins.recv().unwrap() as Comm, stream: nccl.stream(), number: 0, size: 1 };
        let is_late = |code: c_int, text: String| {
            assert_eq!(code, 2, "{text}");
            assert!(text.contains("rank 0 of 1: ") && text.contains("is not over after 3s"), "{text}");
        };
        let (memory, mut window) = ([0u64; 512], std::ptr::null_mut::<c_void>());
        let code = nccl!(nccl, ncclCommWindowRegister(comm => Comm, memory.as_ptr().cast_mut().cast() => *mut c_void, 4096 => usize, &raw mut window => *mut *mut c_void, 0 => c_int));
        is_late(code, nccl.last_error(std::ptr::null_mut()));
        let (input, mut output) = (Buffer::zeros(INT32, 1), Buffer::zeros(INT32, 1));
        let code = nccl.all_reduce(&fresh, &input, &mut output, SUM);
        is_late(code, nccl.last_error(std::ptr::null_mut()));
        nccl.ok(nccl!(nccl, ncclCommFinalize(comm => Comm)));
        is_late(settled(nccl, comm), nccl.last_error(comm));
        nccl.destroy(comm);
        drop(done);
    });
}

#[test]
fn blocking_initialisations_that_no_thread_runs_leave_no_communicators() {
    alone!("blocking_initialisations_that_no_thread_runs_leave_no_communicators");
    let nccl = Nccl::open(&[]);
    nccl.set_device(0);
    let mut comms = [64 as Comm; 2];
    let code = without_threads(
        || nccl!(nccl, ncclCommInitAll(comms.as_mut_ptr() => *mut Comm, 2 => c_int, std::ptr::null() => *const c_int)),
    );
    let text = nccl.last_error(std::ptr::null_mut());
    assert!(code == 2 && text.contains("rank 0 of 2: no thread"), "{code} {text}");
    assert!(comms.iter().all(|comm| comm.is_null()), "{comms:?}");
    // The first numbers that the library gives out.
    for number in [64, 128] {
        assert_eq!(nccl!(nccl, ncclCommDestroy(number as Comm => Comm)), 4);
    }
}
