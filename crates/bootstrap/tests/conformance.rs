//! What holds for every form of rendezvous.
#![expect(
    clippy::disallowed_methods,
    reason = "tests of real threads and processes run on the machine's time"
)]

use crate::common::{Barrier, Form, run, short, soon};
use anabranch_bootstrap::{Error, LossKind, Rendezvous};
use anabranch_ranks::{GlobalRank, Group, GroupRank};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const FORMS: [Form; 2] = [Form::Threads, Form::Tcp];

fn rank(number: u32) -> GlobalRank {
    GlobalRank::new(number)
}

fn at(number: u32) -> GroupRank {
    GroupRank::new(number)
}

/// Bytes that say whose they are, of a length that differs by rank.
fn bytes_of(rank: GlobalRank, round: u32) -> Vec<u8> {
    let mut bytes = [rank.get().to_le_bytes(), round.to_le_bytes()].concat();
    bytes.resize(8 + rank.index() % 5, 0xee);
    bytes
}

fn gather_and_check(rendezvous: &dyn Rendezvous, group: &Group, tag: &str, round: u32) {
    let mine = bytes_of(rendezvous.rank(), round);
    let all = rendezvous.all_gather(group, tag, &mine, soon()).unwrap();
    let expected: Vec<Vec<u8>> = group.members().iter().map(|rank| bytes_of(*rank, round)).collect();
    assert_eq!(all, expected);
}

/// Everything, back to back, with sub-groups in turn with the world's group.
fn exercise(rendezvous: &dyn Rendezvous) {
    let size = rendezvous.size();
    let world = Group::world(size).unwrap();
    let me = world.rank_of(rendezvous.rank()).unwrap();
    // Not in rank order, and without rank 0 for those of odd rank.
    let parity = me.get() % 2;
    let same: Vec<GroupRank> = world.ranks().rev().filter(|rank| rank.get() % 2 == parity).collect();
    let half = world.subset(&same).unwrap();
    for round in 0..3 {
        gather_and_check(rendezvous, &world, "rows", round);
        gather_and_check(rendezvous, &half, "rows", round + 100);
        rendezvous.barrier(&world, "rows", soon()).unwrap();
    }
    let alone = world.subset(&[me]).unwrap();
    gather_and_check(rendezvous, &alone, "alone", 0);
    let left = world.previous(me).unwrap();
    rendezvous.set(&format!("from {}", me.get()), &bytes_of(rendezvous.rank(), 9)).unwrap();
    let got = rendezvous.wait(&format!("from {}", left.get()), soon()).unwrap();
    assert_eq!(got, bytes_of(world.global(left).unwrap(), 9));
    rendezvous.barrier(&world, "end", soon()).unwrap();
    assert!(rendezvous.losses().iter().all(|loss| loss.kind == LossKind::Left));
    rendezvous.leave().unwrap();
}

#[test]
fn all_calls_work_over_threads() {
    for size in [1, 2, 3, 8, 72] {
        run(Form::Threads, size, |rendezvous| exercise(&*rendezvous));
    }
}

#[test]
fn all_calls_work_over_tcp() {
    for size in [1, 2, 5, 64] {
        run(Form::Tcp, size, |rendezvous| exercise(&*rendezvous));
    }
}

#[test]
fn two_worlds_at_once_do_not_mix() {
    for form in FORMS {
        let worlds = [3, 4].map(|size| {
            std::thread::spawn(move || {
                run(form, size, |rendezvous| {
                    exercise(&*rendezvous);
                    rendezvous.size()
                })
            })
        });
        let sizes = worlds.map(|world| world.join().unwrap());
        assert_eq!(sizes, [vec![3; 3], vec![4; 4]]);
    }
}

#[test]
fn a_slow_rank_is_waited_for() {
    for form in FORMS {
        run(form, 3, |rendezvous| {
            let world = Group::world(3).unwrap();
            if rendezvous.rank() == rank(1) {
                std::thread::sleep(Duration::from_millis(150));
                rendezvous.set("late", b"value").unwrap();
            }
            gather_and_check(&*rendezvous, &world, "slow", 0);
            assert_eq!(rendezvous.wait("late", soon()).unwrap(), b"value");
            rendezvous.barrier(&world, "end", soon()).unwrap();
            rendezvous.leave().unwrap();
        });
    }
}

#[test]
fn a_missing_rank_is_listed_with_the_phase_on_every_member() {
    for form in FORMS {
        let errors = run(form, 4, |rendezvous| {
            let world = Group::world(4).unwrap();
            let result = match rendezvous.rank().get() {
                2 => rendezvous.wait("nothing", short()).map(drop),
                3 => rendezvous.wait("anything", short()).map(drop),
                _ => rendezvous.all_gather(&world, "rows", b"", short()).map(drop),
            };
            // So that no rank leaves while others wait.
            std::thread::sleep(Duration::from_millis(400));
            rendezvous.leave().unwrap();
            result.unwrap_err()
        });
        for error in &errors[..2] {
            let Error::Expired { phase, missing, elsewhere, .. } = error else { panic!("{error}") };
            assert_eq!(phase, "all_gather 'rows'");
            assert_eq!(missing, &[rank(2), rank(3)]);
            assert!(elsewhere.iter().all(|other| other.phase.starts_with("wait for key")), "{error}");
            assert!(error.to_string().contains("2 of 4 ranks have come; missing 2-3"), "{error}");
        }
        assert!(errors[..2].iter().any(|error| matches!(error, Error::Expired { waited: Some(_), .. })));
        assert!(errors[2].to_string().starts_with("wait for key 'nothing' expired"), "{}", errors[2]);
    }
}

#[test]
fn unequal_tags_show_where_the_others_wait() {
    for form in FORMS {
        let errors = run(form, 2, |rendezvous| {
            let world = Group::world(2).unwrap();
            let (tag, deadline) =
                if rendezvous.rank() == rank(0) { ("heap", short()) } else { ("team", soon()) };
            let error = rendezvous.barrier(&world, tag, deadline).unwrap_err();
            rendezvous.leave().unwrap();
            error
        });
        let text = errors[0].to_string();
        assert!(text.contains("rank 1 waits in all_gather 'team'"), "{text}");
        // Rank 0 gave up and left, which ends rank 1's wait long before its own deadline.
        assert!(matches!(&errors[1], Error::PeerLost { loss, .. } if loss.kind == LossKind::Left));
    }
}

#[test]
fn a_lost_rank_is_reported_to_all_and_ends_calls_that_need_it() {
    for (form, orderly) in [(FORMS[0], true), (FORMS[0], false), (FORMS[1], true), (FORMS[1], false)] {
        run(form, 4, move |rendezvous| {
            let world = Group::world(4).unwrap();
            let rest = world.excluding(&[at(2)]).unwrap();
            rendezvous.barrier(&world, "start", soon()).unwrap();
            if rendezvous.rank() == rank(2) {
                if orderly {
                    rendezvous.leave().unwrap();
                }
                drop(rendezvous);
                return;
            }
            let seen = Arc::new(Mutex::new(Vec::new()));
            let sink = Arc::clone(&seen);
            rendezvous.observe(Arc::new(move |loss: &anabranch_bootstrap::Loss| {
                sink.lock().unwrap().push((loss.rank, loss.kind));
            }));
            let started = Instant::now();
            let error = rendezvous.all_gather(&world, "rows", b"", soon()).unwrap_err();
            assert!(started.elapsed() < Duration::from_secs(2), "at once, not at the deadline");
            let kind = if orderly { LossKind::Left } else { LossKind::Died };
            let Error::PeerLost { phase, loss } = &error else { panic!("{error}") };
            assert_eq!((phase.as_str(), loss.rank, loss.kind), ("all_gather 'rows'", rank(2), kind));
            assert_eq!(rendezvous.losses().len(), 1);
            // The others go on among themselves.
            gather_and_check(&*rendezvous, &rest, "rows", 5);
            // Observers run on another thread, which may still be on its way; after the barrier others may have left.
            let reports = || -> Vec<_> {
                seen.lock().unwrap().iter().copied().filter(|(lost, _)| *lost == rank(2)).collect()
            };
            while reports().is_empty() {
                assert!(started.elapsed() < Duration::from_secs(20), "the observer was not called");
                std::thread::yield_now();
            }
            rendezvous.barrier(&rest, "end", soon()).unwrap();
            assert_eq!(reports(), [(rank(2), kind)]);
            rendezvous.leave().unwrap();
        });
    }
}

#[test]
fn a_loss_is_reported_once_to_early_and_late_observers() {
    for form in FORMS {
        run(form, 2, |rendezvous| {
            let world = Group::world(2).unwrap();
            rendezvous.barrier(&world, "start", soon()).unwrap();
            if rendezvous.rank() == rank(1) {
                return;
            }
            let count = Arc::new(AtomicUsize::new(0));
            let observer = || {
                let count = Arc::clone(&count);
                Arc::new(move |_: &anabranch_bootstrap::Loss| {
                    count.fetch_add(1, Ordering::SeqCst);
                })
            };
            rendezvous.observe(observer());
            while rendezvous.losses().is_empty() || count.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            rendezvous.observe(observer());
            assert_eq!(count.load(Ordering::SeqCst), 2);
            let third: Arc<dyn anabranch_bootstrap::LossObserver> = observer();
            rendezvous.observe(Arc::clone(&third));
            let held = Arc::strong_count(&count);
            rendezvous.unobserve(&third);
            drop(third);
            assert_eq!(Arc::strong_count(&count), held - 1, "it is let go, and the others are not");
            rendezvous.leave().unwrap();
            assert_eq!(Arc::strong_count(&count), 1, "leaving drops the observers");
        });
    }
}

#[test]
fn wrong_use_is_refused_before_anything_happens() {
    for form in FORMS {
        run(form, 3, |rendezvous| {
            let world = Group::world(3).unwrap();
            let pair = world.subset(&[at(0), at(1)]).unwrap();
            if rendezvous.rank() == rank(2) {
                let error = rendezvous.barrier(&pair, "t", soon()).unwrap_err();
                assert_eq!(
                    error.to_string(),
                    "all_gather 't': rank 2 is not a member of the group; its members are ranks 0-1"
                );
            }
            let four = Group::world(4).unwrap();
            let error = rendezvous.barrier(&four, "t", soon()).unwrap_err();
            assert_eq!(error.to_string(), "all_gather 't': rank 3 is in the group; the world has 3 ranks");
            // None of this put a rank out of step.
            gather_and_check(&*rendezvous, &world, "t", 1);
            rendezvous.barrier(&world, "end", soon()).unwrap();
            rendezvous.leave().unwrap();
            rendezvous.leave().unwrap();
            for error in [
                rendezvous.barrier(&world, "t", soon()).unwrap_err(),
                rendezvous.set("k", b"").unwrap_err(),
                rendezvous.wait("k", soon()).unwrap_err(),
            ] {
                assert!(matches!(error, Error::Left { .. }), "{error}");
            }
        });
    }
}

#[test]
fn leaving_ends_this_ranks_own_waits() {
    for form in FORMS {
        run(form, 2, |rendezvous| {
            if rendezvous.rank() == rank(1) {
                rendezvous.leave().unwrap();
                return;
            }
            let waiting = {
                let rendezvous = Arc::clone(&rendezvous);
                std::thread::spawn(move || rendezvous.wait("never", soon()).unwrap_err())
            };
            std::thread::sleep(Duration::from_millis(30));
            rendezvous.leave().unwrap();
            assert!(matches!(waiting.join().unwrap(), Error::Left { .. }));
        });
    }
}

#[test]
fn a_panicking_thread_counts_as_dead() {
    let mut ranks = anabranch_bootstrap::threads(2);
    let (other, here) = (ranks.pop().unwrap(), ranks.pop().unwrap());
    let panicked = std::thread::spawn(move || {
        let _other = other;
        panic!("on purpose");
    })
    .join();
    assert!(panicked.is_err());
    let error = here.barrier(&Group::world(2).unwrap(), "t", soon()).unwrap_err();
    assert_eq!(error.to_string(), "all_gather 't': rank 1 died (its thread panicked)");
}
