//! A rank whose link to the others is cut, at each call in turn, under seeds: every rank ends, soon, and says who went.

use std::sync::Arc;
use std::time::Duration;

use crate::support::Bench;
use crate::support::driven::{driven, setup};
use anabranch_bootstrap::{Rendezvous, threads};
use anabranch_clock::Moment;
use anabranch_hip::{Runtime, with_causes};
use anabranch_lockstep::Lockstep;
use anabranch_shmem::{DEFAULT_ALIGNMENT, Error, World};
use anabranch_testkit::{FaultyRendezvous, RendezvousFaults};

const SIZE: u32 = 3;

/// Joins, works and leaves.
fn life(bench: &Bench, runtime: &Runtime, rendezvous: Arc<dyn Rendezvous>) -> Result<(), Error> {
    let setup = setup(bench, runtime, rendezvous.rank())?;
    let world = World::join(setup.config, setup.device, setup.jit, rendezvous)?;
    let memory = world.allocate(world.group(), 4096, DEFAULT_ALIGNMENT, "rows")?;
    world.barrier(world.group(), "between")?;
    drop(memory);
    world.exchange(world.group(), "bytes", &[1])?;
    world.leave()
}

struct Lives {
    /// In words.
    errors: Vec<Option<String>>,
    calls: u64,
    took: Duration,
}

fn lives(seed: u64, victim: u32, cut_after: Option<u64>) -> Lives {
    let (bench, lockstep) = (Bench::new(SIZE), Lockstep::new(seed));
    let runtime = driven(&bench, &lockstep);
    let bodies = threads(SIZE)
        .into_iter()
        .map(|inner| {
            let (bench, runtime) = (&bench, &runtime);
            move || {
                let cut_after = cut_after.filter(|_| inner.rank().get() == victim);
                // Every third seed without delays, so that ranks meet at one moment too.
                let slow_by = Duration::from_millis(seed % 3 * 5);
                let faults = RendezvousFaults { cut_after, slow_by, seed };
                let rendezvous = Arc::new(FaultyRendezvous::new(Box::new(inner), faults));
                let shared: Arc<dyn Rendezvous> = Arc::<FaultyRendezvous>::clone(&rendezvous);
                let ended = life(bench, runtime, shared);
                let calls = rendezvous.calls();
                // As one that comes to its end in order does; what failed goes as it is.
                if ended.is_ok() {
                    rendezvous.leave().unwrap();
                }
                (ended.err().map(|error| with_causes(&error)), calls, Moment::now().since_origin())
            }
        })
        .collect();
    let ended: Vec<_> = lockstep.run(bodies).into_iter().map(Result::unwrap).collect();
    assert_eq!(lockstep.problems(), Vec::<String>::new(), "seed {seed}, {victim} is cut after {cut_after:?}");
    Lives {
        calls: ended[victim as usize].1,
        took: ended.iter().map(|(_, _, took)| *took).max().unwrap(),
        errors: ended.into_iter().map(|(error, _, _)| error).collect(),
    }
}

#[test]
fn a_cut_at_any_call_ends_every_rank_and_is_named() {
    let mut runs = 0;
    for victim in [0, 1] {
        let whole = lives(0, victim, None);
        assert_eq!(whole.errors, [None, None, None]);
        assert_eq!(whole.took, Duration::ZERO, "nothing waits for a time");
        let died = format!("rank {victim} died");
        for cut_after in 0..whole.calls {
            for seed in 0..25 {
                let lives = lives(seed, victim, Some(cut_after));
                let at = format!("seed {seed}, {victim} is cut after {cut_after}: {:?}", lives.errors);
                for (rank, error) in (0..).zip(&lives.errors) {
                    let (words, must) =
                        if rank == victim { ("was cut at its call", true) } else { (died.as_str(), false) };
                    assert!(error.as_ref().map_or(!must, |error| error.contains(words)), "{at}");
                }
                // Up to the last step, in which a rank may have gone before, all of them fail.
                let failed = lives.errors.iter().flatten().count();
                assert!(failed == SIZE as usize || cut_after + 1 == whole.calls, "{at}");
                // No rank waits for the rendezvous' deadline of 20 s.
                assert!(lives.took < Duration::from_secs(3), "{at}: {:?}", lives.took);
                runs += 1;
            }
        }
    }
    println!("{runs} runs");
}
