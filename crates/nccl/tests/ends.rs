//! Ranks that abort or die: the others get an error that names them.

use std::time::Duration;

use anabranch_testkit::{Ranks, role, test_path};

use crate::collectives::{alone, file, meet};
use crate::common::{Buffer, Comm, INT32, IdValue, LIMIT, Nccl, Rank, SUM, nccl, on_threads};
use crate::lifecycle::{init_nonblocking, settled};

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
#[expect(clippy::disallowed_methods, reason = "a thread aborts in the machine's time")]
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
                    std::thread::sleep(Duration::from_millis(300));
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
    let nccl = Nccl::open(&[("ANABRANCH__DEADLINE__OPERATION", "300 s")]);
    let id = meet(&nccl, role.rank, &role.argument);
    let (stream, size) = (nccl.stream(), role.size);
    let rank = Rank { nccl: &nccl, comm: nccl.init(size, id, role.rank), stream, number: role.rank, size };
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
        #[expect(clippy::disallowed_methods, reason = "ranks wait in the machine's time")]
        std::thread::sleep(Duration::from_millis(500));
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
