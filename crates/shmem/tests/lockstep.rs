//! Ranks whose threads a driver runs one at a time, on a machine whose own threads are real.

use std::time::Duration;

use crate::support::driven::{driven, setup};
use crate::support::{Bench, all};
use anabranch_clock::{Moment, is_attached};
use anabranch_lockstep::Lockstep;
use anabranch_shmem::{DEFAULT_ALIGNMENT, Error, HeapMode, RankError, World, spawn_threads};

#[test]
fn ranks_are_attached_from_join_to_leave() {
    for seed in 0..10 {
        let mode = HeapMode::ALL[seed as usize % 2];
        let (bench, lockstep) = (Bench::in_mode(3, mode), Lockstep::new(seed));
        let runtime = driven(&bench, &lockstep);
        let offsets = all(spawn_threads(
            3,
            |rank| setup(&bench, &runtime, rank),
            |world: &World| {
                assert!(is_attached());
                anabranch_clock::sleep(Duration::from_secs(3600));
                assert!(Moment::now().since_origin() >= Duration::from_secs(3600));
                let memory = world.allocate(world.group(), 4096, DEFAULT_ALIGNMENT, "rows")?;
                world.barrier(world.group(), "all have it")?;
                Ok::<_, Error>(memory.offset())
            },
        ));
        assert!(offsets.iter().all(|offset| *offset == offsets[0]));
        assert!(!is_attached());
        assert_eq!(lockstep.problems(), Vec::<String>::new(), "seed {seed}");
        // The last thing that each rank does is to give its rendezvous up: nothing of it happens outside the order.
        let trace = lockstep.trace();
        for rank in 0..3 {
            let last = trace.iter().rfind(|step| step.seat.0 == rank).unwrap();
            assert!(["drop", "hip"].contains(&last.what), "{last:?}");
        }
        assert!(trace.iter().any(|step| step.what == "leave"));
    }
}

#[test]
fn a_rank_that_fails_or_panics_leaves_its_seat() {
    for seed in 0..10 {
        for how in ["setup", "work", "panic"] {
            let (bench, lockstep) = (Bench::new(3), Lockstep::new(seed));
            let runtime = driven(&bench, &lockstep);
            let results = spawn_threads(
                3,
                |rank| match how {
                    "setup" if rank.get() == 1 => Err(Error::Left),
                    _ => setup(&bench, &runtime, rank),
                },
                |world: &World| {
                    let odd = world.rank().get() == 1;
                    assert!(!odd || how != "panic", "on purpose");
                    if odd {
                        return Err(Error::Left);
                    }
                    world.barrier(world.group(), "in vain")
                },
            );
            let at = format!("seed {seed}, {how}: {results:?}");
            assert!(results.iter().all(Result::is_err), "{at}");
            let panicked =
                matches!(&results[1], Err(RankError::Panicked { message, .. }) if message == "on purpose");
            assert_eq!(panicked, how == "panic", "{at}");
            for result in [&results[0], &results[2]] {
                assert!(format!("{result:?}").contains("GlobalRank(1)"), "{at}");
            }
            assert_eq!(lockstep.problems(), Vec::<String>::new(), "{at}");
        }
    }
}

#[test]
fn ranks_under_different_drivers_are_refused() {
    let (bench, lockstep) = (Bench::new(2), Lockstep::new(0));
    let runtime = driven(&bench, &lockstep);
    let results = spawn_threads(
        2,
        |rank| if rank.get() == 0 { bench.setup(rank) } else { setup(&bench, &runtime, rank) },
        |_: &World| Ok::<_, Error>(()),
    );
    for result in results {
        let text = result.unwrap_err().to_string();
        assert_eq!(text, "the runtime of rank 1 is under another driver of host threads than that of rank 0");
    }
    assert_eq!(lockstep.steps(), 0);
}
