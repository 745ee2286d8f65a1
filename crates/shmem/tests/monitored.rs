//! The monitored barrier: late ranks, dead ranks, both modes. Mostly on a driver's clock, so that who is late is certain.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::driven::{driven, setup};
use crate::support::{Bench, all};
use anabranch_bootstrap::{
    Deadline, Loss, LossObserver, Rendezvous, TcpConfig, TcpRendezvous, TcpRoot, ThreadRendezvous,
};
use anabranch_clock::{Moment, sleep};
use anabranch_lockstep::Lockstep;
use anabranch_ranks::{GlobalRank, Group, GroupRank};
use anabranch_shmem::{DEFAULT_ALIGNMENT, Error, Fault, RankError, World, spawn_threads, spawn_threads_on};

const SEEDS: u64 = 20;
const SHORT: Duration = Duration::from_secs(2);
/// Comes after the short timeout, and long before the long one.
const LATE: Duration = Duration::from_secs(10);
const LONG: Duration = Duration::from_secs(1000);

fn ranks(numbers: &[u32]) -> Vec<GlobalRank> {
    numbers.iter().copied().map(GlobalRank::new).collect()
}

/// What a [`Error::RanksMissing`] says: who is missing, whether these are all, who gave up, who is lost.
#[derive(Debug, PartialEq, Eq)]
struct Report {
    missing: Vec<u32>,
    all: bool,
    by: Option<u32>,
    lost: Vec<u32>,
}

fn report(result: Result<(), Error>) -> Report {
    match result {
        Err(Error::RanksMissing { missing, all, by, lost, .. }) => Report {
            missing: missing.into_iter().map(GlobalRank::get).collect(),
            all,
            by: by.map(GlobalRank::get),
            lost: lost.into_iter().map(|loss| loss.rank.get()).collect(),
        },
        other => panic!("{other:?}"),
    }
}

/// Runs ranks on a driver's clock, under several seeds.
fn under_seeds<T: Send + std::fmt::Debug>(
    size: u32,
    work: impl Fn(&World) -> Result<T, Error> + Sync,
    judge: impl Fn(Vec<Result<T, RankError<Error>>>),
) {
    for seed in 0..SEEDS {
        let (bench, lockstep) = (Bench::new(size), Lockstep::new(seed));
        let runtime = driven(&bench, &lockstep);
        judge(spawn_threads(size, |rank| setup(&bench, &runtime, rank), &work));
        assert_eq!(lockstep.problems(), Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn late_ranks_are_named_everywhere_and_the_world_goes_on() {
    for wait_all in [false, true] {
        let work = |world: &World| {
            let late = [1, 3].contains(&world.rank().get());
            if late {
                sleep(LATE);
            }
            let started = Moment::now();
            let timeout = if late { LONG } else { SHORT };
            let first = report(world.monitored_barrier(world.group(), timeout, wait_all));
            // A late member gets the error at once, however long its timeout.
            assert_eq!(started.elapsed() >= SHORT, !late);
            assert!(started.elapsed() < LATE);
            // The next call meets the others' next, on ranks that came late and on those that waited.
            world.monitored_barrier(world.group(), LONG, wait_all)?;
            // The world has not failed: it still agrees on things.
            world.check()?;
            let memory = world.allocate(world.group(), 64, DEFAULT_ALIGNMENT, "afterwards")?;
            Ok((first, memory.offset()))
        };
        under_seeds(5, work, |results| {
            let results = all(results);
            let missing = if wait_all { vec![1, 3] } else { vec![1] };
            let by = results[0].0.by;
            assert!(by.is_some_and(|by| by % 2 == 0), "{by:?}");
            for (seen, offset) in results {
                assert_eq!(seen, Report { missing: missing.clone(), all: wait_all, by, lost: Vec::new() });
                assert_eq!(offset, 256);
            }
        });
    }
}

#[test]
fn who_tries_again_and_again_meets_in_the_end() {
    let work = |world: &World| {
        if world.rank().get() == 2 {
            sleep(SHORT * 7 / 2);
        }
        let mut failures = 0;
        while let Err(error) = world.monitored_barrier(world.group(), SHORT, true) {
            assert_eq!(report(Err(error)).missing, [2]);
            failures += 1;
        }
        world.barrier(world.group(), "all have met")?;
        Ok(failures)
    };
    under_seeds(3, work, |results| {
        let failures = all(results);
        // Three at 2, 4 and 6 seconds; ranks may start a little apart, but count the same.
        assert_eq!(failures, [3; 3]);
    });
}

#[test]
fn a_rank_in_another_call_is_reported_with_that_call() {
    let work = |world: &World| {
        let pair = world.group().subset_of_ranks(&ranks(&[2, 0]))?;
        let wrong = world.rank().get() == 2;
        if !wrong {
            let error = world.monitored_barrier(world.group(), SHORT, false).unwrap_err();
            let text = error.to_string();
            assert!(
                text.starts_with("monitored barrier of 3 ranks: missing after ")
                    && text.contains(": rank 2, and perhaps others (wait_all_ranks names all); rank ")
                    && text.contains(
                        " was the first whose timeout passed; rank 2 waits in all_gather 'shmem' (call "
                    ),
                "{text}"
            );
        }
        // Rank 2 was here from the start, and the others reach it.
        world.barrier(world.group(), "where rank 2 is")?;
        // Calls of another group are counted apart from that one.
        if pair.contains(world.rank()) {
            world.monitored_barrier(&pair, LONG, true)?;
        }
        if wrong {
            report(world.monitored_barrier(world.group(), LONG, false));
        }
        world.monitored_barrier(world.group(), LONG, false)
    };
    under_seeds(3, work, |results| drop(all(results)));
}

#[test]
fn a_dead_rank_ends_it_at_once_with_the_fault() {
    let work = |world: &World| {
        if world.rank().get() == 2 {
            sleep(SHORT);
            return Err(Error::Left);
        }
        let started = Moment::now();
        let error = world.monitored_barrier(world.group(), LONG, false).unwrap_err();
        assert!(started.elapsed() < LATE);
        // No rank leaves before all have the report.
        sleep(LATE);
        Err::<(), _>(error)
    };
    under_seeds(4, work, |results| {
        for index in [0, 1, 3] {
            let Err(RankError::Work { error: Error::Fault(fault), .. }) = &results[index] else {
                panic!("{results:?}")
            };
            assert!(matches!(fault, Fault::PeerLost { rank, .. } if rank.get() == 2), "{fault}");
        }
    });
}

/// Ranks 3 and 5 die, one after the other, and rank 1 comes after `delay`. `judge` gets the report, which is equal on all survivors.
fn after_two_deaths(delay: Duration, judge: impl Fn(&Report)) {
    let survivors = Mutex::new(Vec::new());
    let work = |world: &World| {
        match world.rank().get() {
            1 => sleep(delay),
            3 => return Err(Error::Left),
            5 => {
                sleep(Duration::from_millis(500));
                return Err(Error::Left);
            }
            _ => {}
        }
        let seen = report(world.monitored_barrier(world.group(), SHORT, true));
        // The loss has ended the world, here too.
        assert!(matches!(world.check(), Err(Error::Fault(Fault::PeerLost { .. }))));
        survivors.lock().unwrap().push(seen);
        // No rank leaves before all have the report.
        sleep(LATE * 2);
        Ok(())
    };
    under_seeds(6, work, |results| {
        let seen = std::mem::take(&mut *survivors.lock().unwrap());
        assert_eq!(seen.len(), 4, "{results:?}");
        for one in &seen {
            assert_eq!(one, &seen[0], "{results:?}");
        }
        judge(&seen[0]);
    });
}

#[test]
fn all_dead_and_all_late_ranks_are_named() {
    // Rank 1 comes when the others have given up, and gets the same report.
    after_two_deaths(LATE, |seen| {
        assert_eq!((seen.missing.as_slice(), seen.lost.as_slice()), (&[1, 3, 5][..], &[3, 5][..]));
        assert!(seen.all && seen.by.is_some_and(|by| [0, 2, 4].contains(&by)), "{seen:?}");
    });
}

#[test]
fn a_rank_that_comes_in_time_is_not_named_beside_the_dead() {
    after_two_deaths(Duration::from_secs(1), |seen| {
        assert_eq!(seen, &Report { missing: vec![3, 5], all: true, by: None, lost: vec![3, 5] });
    });
}

/// A link on which answers to the monitored barrier take a second: what happens meanwhile is seen after them.
#[derive(Debug)]
struct SlowAnswers(ThreadRendezvous);

impl Rendezvous for SlowAnswers {
    fn rank(&self) -> GlobalRank {
        self.0.rank()
    }

    fn size(&self) -> u32 {
        self.0.size()
    }

    fn all_gather(
        &self,
        group: &Group,
        tag: &str,
        bytes: &[u8],
        deadline: Deadline,
    ) -> Result<Vec<Vec<u8>>, anabranch_bootstrap::Error> {
        let answer = self.0.all_gather(group, tag, bytes, deadline);
        if tag.starts_with("monitored barrier") {
            sleep(Duration::from_secs(1));
        }
        answer
    }

    fn broadcast(
        &self,
        group: &Group,
        tag: &str,
        root: GroupRank,
        bytes: &[u8],
        deadline: Deadline,
    ) -> Result<Vec<u8>, anabranch_bootstrap::Error> {
        self.0.broadcast(group, tag, root, bytes, deadline)
    }

    fn barrier(
        &self,
        group: &Group,
        tag: &str,
        deadline: Deadline,
    ) -> Result<(), anabranch_bootstrap::Error> {
        self.0.barrier(group, tag, deadline)
    }

    fn set(&self, key: &str, value: &[u8]) -> Result<(), anabranch_bootstrap::Error> {
        self.0.set(key, value)
    }

    fn wait(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>, anabranch_bootstrap::Error> {
        self.0.wait(key, deadline)
    }

    fn losses(&self) -> Vec<Loss> {
        self.0.losses()
    }

    fn observe(&self, observer: Arc<dyn LossObserver>) {
        self.0.observe(observer);
    }

    fn unobserve(&self, observer: &Arc<dyn LossObserver>) {
        self.0.unobserve(observer);
    }

    fn leave(&self) -> Result<(), anabranch_bootstrap::Error> {
        self.0.leave()
    }
}

/// Ranks 0 and 3 have slow answers, and rank 2 dies as soon as its own is there.
#[test]
fn who_came_is_not_missing_though_it_dies_soon_after() {
    for late in [false, true] {
        for seed in 0..SEEDS {
            let (bench, lockstep) = (Bench::new(4), Lockstep::new(seed));
            let runtime = driven(&bench, &lockstep);
            let links = anabranch_bootstrap::threads(4).into_iter().map(|link| match link.rank().get() {
                0 | 3 => Arc::new(SlowAnswers(link)) as Arc<dyn Rendezvous>,
                _ => Arc::new(link),
            });
            let work = |world: &World| {
                let (me, started) = (world.rank().get(), Moment::now());
                if me == 1 && late {
                    sleep(LATE);
                }
                let ended = world.monitored_barrier(world.group(), SHORT, true);
                if me == 2 {
                    return Err(Error::Left);
                }
                if me == 1 && late {
                    // Rank 2 is known to be dead: the roll is called anew, and the others are done with theirs.
                    let expected = Report { missing: vec![0, 2, 3], all: true, by: Some(1), lost: vec![2] };
                    assert_eq!(report(ended), expected);
                } else if late {
                    let seen = report(ended);
                    assert_eq!((seen.missing, seen.lost), (vec![1], Vec::new()));
                } else {
                    ended?;
                }
                if me != 1 {
                    assert!(started.elapsed() >= Duration::from_secs(1));
                    assert_eq!(
                        world.rendezvous().losses().len(),
                        1,
                        "rank 2 went before the answer was read"
                    );
                }
                sleep(LATE * 2);
                Err::<(), _>(Error::FailedOn {
                    step: "seen".into(),
                    rank: world.rank(),
                    cause: String::new(),
                })
            };
            let results = spawn_threads_on(links.collect(), |rank| setup(&bench, &runtime, rank), work);
            for index in [0, 1, 3] {
                let Err(RankError::Work { error: Error::FailedOn { step, .. }, .. }) = &results[index] else {
                    panic!("{results:?}")
                };
                assert_eq!(step, "seen");
            }
            assert_eq!(lockstep.problems(), Vec::<String>::new(), "seed {seed}");
        }
    }
}

#[test]
fn modes_that_differ_are_an_error_on_all_and_harmless() {
    let work = |world: &World| {
        let error = world.monitored_barrier(world.group(), LONG, world.rank().get() == 1).unwrap_err();
        assert_eq!(
            error.to_string(),
            "monitored barrier: wait_all_ranks differs: rank 1 has true, rank 0 has false"
        );
        world.monitored_barrier(world.group(), LONG, true)
    };
    under_seeds(3, work, |results| drop(all(results)));
}

#[test]
fn a_rank_outside_the_group_is_refused_and_one_alone_passes() {
    let work = |world: &World| {
        let first = Group::world(1)?;
        if world.rank().get() == 0 {
            return world.monitored_barrier(&first, Duration::ZERO, false);
        }
        let error = world.monitored_barrier(&first, LONG, true).unwrap_err();
        assert_eq!(error.to_string(), "monitored barrier: rank 1 is not a member of the group");
        Ok(())
    };
    under_seeds(2, work, |results| drop(all(results)));
}

/// Two ranks that meet over TCP.
fn over_tcp() -> Vec<Arc<dyn Rendezvous>> {
    let root = TcpRoot::bind("127.0.0.1:0").unwrap();
    let address = root.address().to_string();
    let config = |rank| TcpConfig::new(&address, GlobalRank::new(rank), 2, Deadline::after(LONG));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| TcpRendezvous::join_with_root(config(0), root).unwrap());
        let second = scope.spawn(|| TcpRendezvous::join(config(1)).unwrap());
        vec![Arc::new(first.join().unwrap()) as Arc<dyn Rendezvous>, Arc::new(second.join().unwrap())]
    })
}

fn over_threads() -> Vec<Arc<dyn Rendezvous>> {
    anabranch_bootstrap::threads(2).into_iter().map(|link| Arc::new(link) as Arc<dyn Rendezvous>).collect()
}

#[test]
fn after_a_timeout_streams_and_teams_still_work() {
    // On the machine's own time and threads. One rank is there in time and one is not, so that no load changes who is missing.
    let bench = Bench::new(2);
    for (wait_all, links) in
        [(false, over_threads()), (true, over_threads()), (false, over_tcp()), (true, over_tcp())]
    {
        all(spawn_threads_on(
            links,
            |rank| bench.setup(rank),
            |world: &World| {
                let team = world.team(world.group())?;
                let stream = world.device().create_stream()?;
                team.barrier(&stream)?;
                if world.rank().get() == 0 {
                    let error = world.monitored_barrier(world.group(), Duration::from_millis(50), wait_all);
                    assert_eq!(report(error).missing, [1]);
                }
                world.barrier(world.group(), "rank 0 has given up")?;
                if world.rank().get() == 1 {
                    let error = world.monitored_barrier(world.group(), LONG, wait_all);
                    assert_eq!(
                        report(error),
                        Report { missing: vec![1], all: wait_all, by: Some(0), lost: Vec::new() }
                    );
                }
                world.monitored_barrier(world.group(), LONG, wait_all)?;
                team.barrier(&stream)?;
                world.synchronize(&stream)
            },
        ));
    }
}

#[test]
fn when_the_rank_that_serves_the_rendezvous_dies_it_is_named_as_any_other() {
    let bench = Bench::new(2);
    for wait_all in [false, true] {
        let results = spawn_threads_on(
            over_tcp(),
            |rank| bench.setup(rank),
            |world: &World| {
                if world.rank().get() == 0 {
                    return Err(Error::Left);
                }
                world.monitored_barrier(world.group(), LONG, wait_all)
            },
        );
        // Its store answers for a second after its end. Who comes later has the fault, which names it too.
        let Err(RankError::Work { error, .. }) = &results[1] else { panic!("{results:?}") };
        let lost: Vec<_> = match error {
            Error::RanksMissing { lost, .. } if wait_all => lost.iter().map(|loss| loss.rank.get()).collect(),
            Error::Fault(Fault::PeerLost { rank, .. }) => vec![rank.get()],
            other => panic!("{other}"),
        };
        assert_eq!(lost, [0]);
    }
}

#[test]
fn a_call_that_was_left_out_does_not_reach_the_next_world() {
    let bench = Bench::new(2);
    std::thread::scope(|scope| {
        for rendezvous in anabranch_bootstrap::threads(2) {
            let bench = &bench;
            scope.spawn(move || {
                let rendezvous: Arc<dyn Rendezvous> = Arc::new(rendezvous);
                for _ in 0..3 {
                    let setup = bench.setup(rendezvous.rank()).unwrap();
                    let world =
                        World::join(setup.config, setup.device, setup.jit, Arc::clone(&rendezvous)).unwrap();
                    world.monitored_barrier(world.group(), LONG, true).unwrap();
                    if world.rank().get() == 0 {
                        let error = world.monitored_barrier(world.group(), Duration::from_millis(20), true);
                        assert_eq!(report(error).missing, [1]);
                    }
                    world.leave().unwrap();
                    assert!(matches!(world.monitored_barrier(world.group(), LONG, true), Err(Error::Left)));
                }
                rendezvous.leave().unwrap();
            });
        }
    });
}
