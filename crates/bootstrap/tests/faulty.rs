//! A link that is cut or slow, over both forms.

use crate::common::{Barrier, Form, run_boxed, soon};
use anabranch_bootstrap::{Deadline, Error, Loss, LossKind, Rendezvous, threads};
use anabranch_clock::Moment;
use anabranch_lockstep::Lockstep;
use anabranch_ranks::{GlobalRank, Group};
use anabranch_testkit::{FaultyRendezvous, RendezvousFaults};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SIZE: u32 = 3;

/// Five calls that need everybody; which of them failed first, and how.
fn five_calls(rendezvous: &dyn Rendezvous) -> (usize, Result<(), Error>) {
    let world = Group::world(SIZE).unwrap();
    let me = rendezvous.rank().get();
    let calls: [&dyn Fn() -> Result<(), Error>; 5] = [
        &|| rendezvous.all_gather(&world, "rows", &[me as u8], soon()).map(drop),
        &|| rendezvous.barrier(&world, "rows", soon()),
        &|| rendezvous.all_gather(&world, "plan", b"plan", soon()).map(drop),
        &|| rendezvous.set(&format!("from {me}"), b"value"),
        &|| rendezvous.wait(&format!("from {}", (me + 1) % SIZE), soon()).map(drop),
    ];
    for (index, call) in calls.iter().enumerate() {
        if let Err(error) = call() {
            return (index, Err(error));
        }
    }
    (calls.len(), Ok(()))
}

fn lost_rank(error: &Error) -> GlobalRank {
    match error {
        Error::PeerLost { loss, .. } | Error::GivenUp { loss, .. } => {
            assert_eq!(loss.kind, LossKind::Died, "{loss}");
            loss.rank
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_cut_link_fails_from_that_call_on_and_the_others_see_the_rank_die() {
    for form in [Form::Threads, Form::Tcp] {
        for victim in [0, 2] {
            // Not at the `set`: the others would wait for the key until their deadlines.
            for after in [0, 1, 2, 4] {
                let ended = run_boxed(form, SIZE, move |inner| {
                    let me = inner.rank().get();
                    let cut_after = (me == victim).then_some(after);
                    let faults = RendezvousFaults { cut_after, ..RendezvousFaults::default() };
                    let rendezvous = FaultyRendezvous::new(inner, faults);
                    let told = Arc::new(Mutex::new(Vec::new()));
                    let sink = Arc::clone(&told);
                    rendezvous
                        .observe(Arc::new(move |loss: &Loss| sink.lock().unwrap().push(loss.rank.get())));
                    let (failed_at, result) = five_calls(&rendezvous);
                    // Nothing works afterwards either, and leaving does not hang.
                    let later = rendezvous.set("later", b"");
                    let losses: Vec<_> = rendezvous.losses().iter().map(|loss| loss.rank.get()).collect();
                    rendezvous.leave().unwrap();
                    let told = told.lock().unwrap().clone();
                    (failed_at, result, later, losses, told, rendezvous.is_cut())
                });
                for (rank, (failed_at, result, later, losses, told, cut)) in (0..).zip(ended) {
                    let at = format!("{form:?}: {victim} is cut after {after}: rank {rank}: {result:?}");
                    assert_eq!(cut, rank == victim, "{at}");
                    if rank == victim {
                        assert_eq!(failed_at, after as usize, "{at}");
                        assert_eq!(lost_rank(&result.unwrap_err()), GlobalRank::new(0), "{at}");
                        assert_eq!(lost_rank(&later.unwrap_err()), GlobalRank::new(0), "{at}");
                        // Rank 0 does not lose itself; the others lose it, be it that it had left before.
                        let root = losses.iter().filter(|lost| **lost == 0).count();
                        let expected = usize::from(victim != 0);
                        assert_eq!(
                            (root, told.iter().filter(|lost| **lost == 0).count()),
                            (expected, expected)
                        );
                    } else if after == 4 && result.is_ok() {
                        // All that the others need had got through.
                    } else {
                        assert!(after < 4 || victim == 0, "only the store's end can end this wait: {at}");
                        let error = result.unwrap_err();
                        assert_eq!(lost_rank(&error), GlobalRank::new(victim), "{at}");
                        // (Observers hear of it soon after; this rank may have left by then.)
                        assert!(losses.contains(&victim), "{at}: {losses:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_slow_link_gets_everything_through() {
    for form in [Form::Threads, Form::Tcp] {
        let slow =
            RendezvousFaults { slow_by: Duration::from_millis(20), seed: 5, ..RendezvousFaults::default() };
        let ended = run_boxed(form, SIZE, move |inner| {
            let faults = if inner.rank().get() == 1 { slow } else { RendezvousFaults::default() };
            let rendezvous = FaultyRendezvous::new(inner, faults);
            five_calls(&rendezvous).1.unwrap();
            let calls = (rendezvous.calls(), rendezvous.is_cut());
            rendezvous.leave().unwrap();
            calls
        });
        assert_eq!(ended, [(5, false); 3]);
    }
}

/// On a virtual clock the delays are exact: the same at every run, other with another seed, none without.
#[test]
fn delays_come_from_the_seed() {
    let took = |seed: u64, slow_by: Duration| {
        let lockstep = Lockstep::new(0);
        let bodies = threads(2)
            .into_iter()
            .map(|inner| {
                move || {
                    let faults = RendezvousFaults { slow_by, seed, cut_after: None };
                    let rendezvous = FaultyRendezvous::new(Box::new(inner), faults);
                    let world = Group::world(2).unwrap();
                    for _ in 0..10 {
                        rendezvous.barrier(&world, "b", Deadline::after(Duration::from_secs(9))).unwrap();
                    }
                    let took = Moment::now().since_origin();
                    rendezvous.leave().unwrap();
                    took
                }
            })
            .collect();
        lockstep.run(bodies).into_iter().map(Result::unwrap).max().unwrap()
    };
    let second = Duration::from_secs(1);
    assert_eq!(took(1, Duration::ZERO), Duration::ZERO);
    assert_eq!(took(1, second), took(1, second));
    assert_ne!(took(1, second), took(2, second));
    assert!(took(1, second) > second && took(1, second) < 10 * second);
}
