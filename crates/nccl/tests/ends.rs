//! Ranks that abort or die: the others get an error that names them.

#[path = "../src/in_use.rs"]
mod in_use;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use anabranch_testkit::{Ranks, Resources, role, test_path};

use crate::common::{
    Buffer, Comm, INT32, IdValue, LIMIT, Nccl, Rank, SUM, alone, file, join, nccl, on_processes, on_threads,
};
use crate::lifecycle::{init_nonblocking, settled};
use crate::steps::without_threads;

#[expect(clippy::disallowed_methods, reason = "ranks wait in the machine's time")]
pub(crate) fn sleep(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

/// Calls whose queries the runtime refuses for some time, as in a capture.
#[derive(Default)]
struct Refused {
    queries: Cell<u32>,
    has_failed: Cell<bool>,
}

impl in_use::Calls for Refused {
    fn wait(&self, _: Duration) {}

    fn are_over(&self) -> bool {
        self.queries.set(self.queries.get().wrapping_sub(1));
        self.queries.get() == 0
    }

    fn have_failed(&self) -> bool {
        self.has_failed.get()
    }

    fn fail(&self) {
        self.has_failed.set(true);
    }
}

#[test]
fn a_refused_query_is_repeated() {
    let some = Refused { queries: Cell::new(20), ..Refused::default() };
    assert!(in_use::are_over(&some, LIMIT) && !some.has_failed.get(), "its world is healthy");
    let all = Refused::default();
    assert!(!in_use::are_over(&all, Duration::from_millis(20)) && all.has_failed.get());
    // Those that end with their world.
    let late = Refused { queries: Cell::new(5), has_failed: Cell::new(true) };
    assert!(in_use::are_over(&late, LIMIT));
}

#[test]
fn memory_stays_after_a_panic_of_what_would_free_it() {
    let memory = Rc::new(());
    let panics = in_use::kept_on_panic(Rc::clone(&memory), |_| assert_eq!(Rc::strong_count(&memory), 0));
    assert!(panics.is_err());
    assert_eq!(Rc::strong_count(&memory), 2);
    let (kept, ()) = in_use::kept_on_panic(Rc::clone(&memory), |_| ()).unwrap();
    drop(kept);
    assert_eq!(Rc::strong_count(&memory), 2);
}

/// Waits for an error of the communicator.
fn failure(rank: &Rank<'_>) -> (i32, String) {
    loop {
        let code = rank.nccl.async_error(rank.comm);
        if code != 0 {
            return (code, rank.nccl.last_error(rank.comm));
        }
        std::thread::yield_now();
    }
}

/// A collective that waits for a rank that will not come.
fn wait_in_vain(rank: &Rank<'_>) {
    let (input, mut output) = (Buffer::zeros(INT32, 5000), Buffer::zeros(INT32, 5000));
    // Refused where the loss is known already.
    if rank.nccl.all_reduce(rank, &input, &mut output, SUM) == 0 {
        // Ends with the kernel, which ends with the abort; not with the deadline of 30 s.
        let _ = nccl!(rank.nccl, anabranchHostStreamSynchronize(rank.stream => *mut std::ffi::c_void));
    }
}

#[test]
fn abort_from_another_thread_ends_a_collective_that_waits() {
    alone!("abort_from_another_thread_ends_a_collective_that_waits");
    let nccl = Nccl::open(&[("ANABRANCH__DEADLINE__OPERATION", "300 s")]);
    on_threads(&nccl, 3, |rank| {
        nccl.count_ranks(rank);
        let number = rank.comm as usize;
        if rank.number == 1 {
            std::thread::scope(|scope| {
                let nccl = &nccl;
                scope.spawn(move || {
                    sleep(300);
                    nccl.ok(nccl!(nccl, ncclCommAbort(number as Comm => Comm)));
                });
                wait_in_vain(rank);
            });
        } else if rank.number == 0 {
            wait_in_vain(rank);
            let (code, text) = failure(rank);
            assert!(code == 6 || code == 3, "{code} {text}");
            assert!(text.contains("rank 1") && text.contains("ncclCommAbort"), "{text}");
        } else {
            // Rank 2 does not take part: without the abort the others would wait for it.
            let (_, text) = failure(rank);
            assert!(text.contains("rank 1"), "{text}");
        }
        if rank.number != 1 {
            nccl.ok(nccl!(nccl, ncclCommAbort(rank.comm => Comm)));
        }
    });
}

#[test]
fn a_killed_rank_is_named() {
    let Some(role) = role() else {
        let mut ranks = Ranks::start(test_path!("a_killed_rank_is_named"), 3, &file("killed")).unwrap();
        ranks.processes()[2].wait_for("@dying", LIMIT).unwrap();
        ranks.processes()[2].kill().unwrap();
        let outcomes = ranks.wait(LIMIT).unwrap();
        for outcome in &outcomes[..2] {
            assert!(outcome.status.success(), "{}", outcome.output);
        }
        return;
    };
    let rank = join(&role, &[("ANABRANCH__DEADLINE__OPERATION", "300 s")]);
    let nccl = rank.nccl;
    nccl.count_ranks(&rank);
    if rank.number == 2 {
        anabranch_testkit::say("dying", "");
        anabranch_testkit::end(true);
    }
    wait_in_vain(&rank);
    let (code, text) = failure(&rank);
    assert_eq!(code, 6, "{text}");
    assert!(text.contains("rank 2"), "{text}");
    let (input, mut output) = (Buffer::zeros(INT32, 1), Buffer::zeros(INT32, 1));
    assert_eq!(nccl.all_reduce(&rank, &input, &mut output, SUM), 6);
    assert!(nccl.last_error(std::ptr::null_mut()).contains("rank 2"));
    nccl.ok(nccl!(nccl, ncclCommAbort(rank.comm => Comm)));
}

#[test]
fn abort_ends_an_initialisation() {
    alone!("abort_ends_an_initialisation");
    let nccl = Nccl::open(&[("ANABRANCH__DEADLINE__RENDEZVOUS", "300 s")]);
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    // A rank waits for rank 0, which has not begun; rank 0 and another wait for a third.
    for ranks in [&[1][..], &[0, 1]] {
        let id: IdValue = nccl.unique_id().into();
        let before = threads();
        let comms: Vec<_> = ranks.iter().map(|rank| init_nonblocking(&nccl, 3, id, *rank)).collect();
        sleep(500);
        for rank in comms.iter().rev() {
            let is_alone = comms.len() == 1 || rank.number == 1;
            assert_eq!(nccl.async_error(rank.comm), if is_alone { 7 } else { 6 });
            nccl.ok(nccl!(nccl, ncclCommAbort(rank.comm => Comm)));
            // The others learn of it, and do not wait for the deadline.
            if rank.number == 1 && comms.len() == 2 {
                assert_eq!(settled(&nccl, comms[0].comm), 6);
                let text = nccl.last_error(comms[0].comm);
                assert!(text.contains("rank 0 of 3: ") && text.contains("rank 1"), "{text}");
            }
        }
        while threads() > before {
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_world_that_no_thread_leaves_is_left_by_a_later_call() {
    alone!("a_world_that_no_thread_leaves_is_left_by_a_later_call");
    let nccl = Nccl::open(&[]);
    let comms = nccl.init_all(2);
    without_threads(|| nccl.destroy(comms[0]));
    for _ in 0..50 {
        assert_eq!(nccl.async_error(comms[1]), 0, "{}", nccl.last_error(comms[1]));
        sleep(10);
    }
    nccl.ok(nccl!(nccl, ncclCommFinalize(comms[1] => Comm)));
    assert_eq!(settled(&nccl, comms[1]), 0);
    nccl.destroy(comms[1]);
}

/// Threads that leave worlds.
fn leaving() -> usize {
    let names = std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.filter(|name| name.trim() == "anabranch leave").count()
}

#[test]
#[ignore = "extended"]
fn memory_of_calls_that_outlive_an_abort_is_freed_by_a_later_call() {
    alone!("memory_of_calls_that_outlive_an_abort_is_freed_by_a_later_call");
    let nccl = Nccl::open(&[("ANABRANCH__DEADLINE__OPERATION", "300 s")]);
    let make = || -> Vec<_> {
        let comms = nccl.init_all(2).into_iter().zip(0..);
        let ranks: Vec<_> = comms
            .map(|(comm, number)| {
                nccl.set_device(number);
                Rank { nccl: &nccl, comm, stream: nccl.stream(), number, size: 2 }
            })
            .collect();
        // Kernels are loaded before one waits.
        let (input, mut output) = (Buffer::zeros(INT32, 50), Buffer::zeros(INT32, 50));
        nccl.group(|| ranks.iter().for_each(|rank| nccl.ok(nccl.all_reduce(rank, &input, &mut output, SUM))));
        for rank in &ranks {
            nccl.synchronize(rank.stream);
        }
        ranks
    };
    let outer = make();
    for rank in make() {
        nccl.destroy(rank.comm);
    }
    let before = Resources::at_rest().unwrap();
    let inner = make();
    let (input, mut output) = (Buffer::zeros(INT32, 50), Buffer::zeros(INT32, 50));
    // It waits for the other rank, and the next one on its stream with it.
    nccl.ok(nccl.all_reduce(&outer[0], &input, &mut output, SUM));
    nccl.ok(nccl.all_reduce(&Rank { stream: outer[0].stream, ..inner[0] }, &input, &mut output, SUM));
    for rank in &inner {
        nccl.ok(nccl!(nccl, ncclCommAbort(rank.comm => Comm)));
    }
    while leaving() > 0 {
        sleep(10);
    }
    let kept = Resources::at_rest().unwrap();
    assert!(kept.address_space_kib > before.address_space_kib + (16 << 10), "{kept:?}, {before:?}");
    nccl.ok(nccl.all_reduce(&outer[1], &input, &mut output, SUM));
    nccl.synchronize(outer[0].stream);
    // The others stay, so that what is left over shows.
    for rank in make() {
        nccl.destroy(rank.comm);
    }
    while leaving() > 0 {
        sleep(10);
    }
    let after = Resources::at_rest().unwrap();
    assert!(after.files <= before.files && after.threads <= before.threads, "{after:?}, {before:?}");
    assert!(after.address_space_kib < before.address_space_kib + (16 << 10), "{after:?}, {before:?}");
    for rank in &outer {
        nccl.destroy(rank.comm);
    }
}

#[test]
fn the_end_of_the_process_waits_beside_a_call_that_waits() {
    let test = test_path!("the_end_of_the_process_waits_beside_a_call_that_waits");
    let Some(Rank { nccl, comm, number, .. }) = on_processes(test, 2) else { return };
    if number == 0 {
        let number = comm as usize;
        std::thread::scope(|scope| {
            scope.spawn(move || nccl.destroy(number as Comm));
            sleep(500);
            // SAFETY: the other threads of this process may go on until it has ended.
            unsafe { libc::exit(0) };
        });
    }
    for _ in 0..150 {
        assert_eq!(nccl.async_error(comm), 0, "{}", nccl.last_error(comm));
        sleep(10);
    }
    nccl.destroy(comm);
}
