//! What goes wrong on purpose.

use core::mem::ManuallyDrop;

use anabranch_hip::{DeviceAddress, HipError, Result};
use anabranch_weakmem::{Fault, Loss, SeededSchedule};

use crate::machine::lab::{self, MachineArgs, Outcome, Rank, THREADS, args, seeded, words, world};

const DEADLINE_MS: u32 = 20_000;

/// Each rank writes to the next one and waits, for a while, for what the one before writes: the flag and the data seen;
/// `None` when a rank gave up before.
fn pass_on(rank: &Rank<'_>) -> Result<Option<Vec<u64>>> {
    let done = try_pass_on(rank);
    if done.is_err() {
        rank.meet_if_not_yet(&[DeviceAddress::NULL]);
    }
    done
}

fn try_pass_on(rank: &Rank<'_>) -> Result<Option<Vec<u64>>> {
    let gpu = rank.gpu()?;
    let out = gpu.zeroed(2)?;
    // A rank that fails must not free what the others write to.
    let (data, flag) = (ManuallyDrop::new(gpu.zeroed(THREADS as usize)?), ManuallyDrop::new(gpu.zeroed(1)?));
    let taken = gpu.zeroed(THREADS as usize)?;
    let Some(all) = rank.meet(&[data.address(), flag.address()]) else { return Ok(None) };
    let next = &all[((rank.number + 1) % rank.ranks) as usize];
    gpu.launch(lab::PUT, 1, &args(next[0], next[1], out.address(), 5))?;
    let wait = args(data.address(), flag.address(), out.address(), 5);
    gpu.launch(lab::WAIT, 1, &MachineArgs { mode: DEADLINE_MS, ..wait })?;
    gpu.stream.synchronize()?;
    let mut seen = words(&out, 1)?;
    if seen[0] == 5 {
        gpu.launch(lab::TAKE, 1, &args(data.address(), flag.address(), taken.address(), 5))?;
        gpu.stream.synchronize()?;
        seen.extend(words(&taken, THREADS as usize)?);
    }
    Ok(Some(seen))
}

impl Rank<'_> {
    fn meet_if_not_yet(&self, mine: &[DeviceAddress]) {
        let mut addresses = self.shared.addresses.lock().unwrap();
        if addresses[self.number as usize].is_empty() {
            addresses[self.number as usize] = mine.to_vec();
            self.shared.changed.notify_all();
        }
    }
}

fn whole() -> Vec<u64> {
    core::iter::once(5).chain(5..5 + u64::from(THREADS)).collect()
}

fn run(seed: u64, faults: Vec<Fault>) -> Outcome<Result<Option<Vec<u64>>>> {
    let outcome = world(3, SeededSchedule { faults, ..seeded(seed) }, pass_on);
    assert!(outcome.failure.is_none(), "{}", outcome.failure.unwrap());
    outcome
}

#[test]
#[ignore = "extended"]
fn a_rank_can_die_at_every_point_and_the_others_end() {
    let clean = run(4, Vec::new());
    assert!(clean.ranks.iter().all(|seen| seen.as_ref().unwrap().as_ref() == Some(&whole())));
    let points = clean.run.primitives[1];
    assert!(points > 100, "{points} points");
    let (mut without, mut late) = (0, 0);
    for at in 0..points {
        let killed = run(4, vec![Fault::Kill { rank: 1, at }]);
        let code = killed.ranks[1].as_ref().err().and_then(anabranch_hip::Error::code);
        // A rank that dies behind its last result dies unnoticed.
        let known = [Some(HipError::DEINITIALIZED), Some(HipError::LAUNCH_FAILURE), None];
        assert!(known.contains(&code), "{code:?} at {at}");
        late += u64::from(code.is_none());
        for survivor in [0, 2] {
            let seen = killed.ranks[survivor].as_ref().unwrap();
            // All, nothing, or a flag whose data vanished on the way.
            without += u64::from(seen.as_ref().is_none_or(|seen| *seen != whole()));
        }
        assert_eq!(killed.run.primitives[1], at + 1, "nothing of it runs behind its death");
    }
    assert!(
        without > 0 && late < points / 4,
        "{without} survivors without data, {late} deaths behind the end"
    );
    let again = [(); 2].map(|()| run(4, vec![Fault::Kill { rank: 1, at: points / 2 }]).run.digest);
    assert_eq!(again[0], again[1]);
}

#[test]
fn a_rank_that_stands_still_holds_the_others_up_for_that_time() {
    let ns = 5_000_000_000;
    for (seed, at) in [(1, 3), (2, 60), (3, 90)] {
        let stalled = run(seed, vec![Fault::Stall { rank: 2, at, ns }]);
        assert!(stalled.ranks.iter().all(|seen| seen.as_ref().unwrap().as_ref() == Some(&whole())));
        assert!(stalled.run.virtual_ns >= ns, "{} virtual ns", stalled.run.virtual_ns);
        assert!(run(seed, Vec::new()).run.virtual_ns < ns);
    }
}

/// The calls of a rank's thread in a run, by name.
fn calls(outcome: &Outcome<Result<Option<Vec<u64>>>>, rank: u32) -> Vec<String> {
    let start = format!("rank {rank} ");
    let names = outcome.run.events.iter().map(ToString::to_string).filter_map(|line| {
        let (_, rest) = line.split_once(' ')?;
        let name = rest.starts_with(&start).then(|| rest.rsplit(' ').next())??;
        name.starts_with("hip").then(|| name.to_owned())
    });
    names.collect()
}

#[test]
fn every_call_can_fail() {
    let clean = run(6, Vec::new());
    let names = calls(&clean, 0);
    assert_eq!(names.len() as u64, clean.run.calls[0]);
    let mut told = 0;
    for nth in 0..clean.run.calls[0] {
        let failed = run(6, vec![Fault::FailCall { rank: 0, nth, code: HipError::OUT_OF_MEMORY }]);
        match &failed.ranks[0] {
            Err(error) => {
                assert_eq!(error.code(), Some(HipError::OUT_OF_MEMORY), "{error}");
                told += 1;
            }
            // Those of destructors, at the end.
            Ok(seen) => assert_eq!(seen.as_ref(), Some(&whole()), "{}", names[nth as usize]),
        }
    }
    assert!(told > clean.run.calls[0] / 2, "{told} of {}", clean.run.calls[0]);
}

#[test]
fn a_launch_that_fails_loses_the_device() {
    let clean = run(6, Vec::new());
    let nth = calls(&clean, 0).iter().position(|name| name == "hipModuleLaunchKernel").unwrap() as u64;
    let failed = run(6, vec![Fault::FailCall { rank: 0, nth, code: HipError::LAUNCH_FAILURE }]);
    assert_eq!(failed.ranks[0].as_ref().unwrap_err().code(), Some(HipError::LAUNCH_FAILURE));
    let device = failed.machine.runtime().device(anabranch_hip::DeviceOrdinal(0)).unwrap();
    assert_eq!(device.allocate(8).unwrap_err().code(), Some(HipError::LAUNCH_FAILURE));
}

#[test]
fn stores_are_lost_on_the_link_that_is_named() {
    let lose = |from, to, which, told| vec![Fault::LoseStore { from, to, which, told }];
    let mut torn = 0;
    for nth in 0..=u64::from(THREADS) {
        let outcome = run(nth, lose(0, 1, Loss::Nth(nth), false));
        let seen = outcome.ranks[1].as_ref().unwrap().clone().unwrap();
        assert_ne!(seen, whole(), "one of its stores is missing");
        // The flag, so that the wait expired; or a word.
        torn += u64::from(seen.len() > 1);
        for other in [0, 2] {
            assert_eq!(outcome.ranks[other].as_ref().unwrap().as_ref(), Some(&whole()), "another link");
        }
    }
    assert!(torn >= u64::from(THREADS) / 2, "{torn}");
    let nothing = run(3, lose(0, 1, Loss::Chance(256), false));
    assert_eq!(nothing.ranks[1].as_ref().unwrap().as_ref(), Some(&vec![0]));
    // The other direction of the same link.
    let unharmed = run(3, lose(1, 0, Loss::Chance(256), false));
    assert!(unharmed.ranks.iter().all(|seen| seen.as_ref().unwrap().as_ref() == Some(&whole())));
    let told = run(3, lose(0, 1, Loss::Nth(2), true));
    assert_eq!(told.ranks[0].as_ref().unwrap_err().code(), Some(HipError::LAUNCH_FAILURE));
}

#[test]
fn a_flag_that_arrives_twice_goes_back() {
    const COUNT: u64 = 6;
    let goes_back = |seed: u64, faults: Vec<Fault>| {
        let outcome =
            world(2, SeededSchedule { faults, ..SeededSchedule::new(seed) }, |rank| -> Result<u64> {
                let gpu = rank.gpu()?;
                let (flag, out) = (gpu.zeroed(1)?, gpu.zeroed(1)?);
                let all = rank.meet(&[flag.address()]).unwrap();
                let kernel = if rank.number == 0 { lab::COUNT } else { lab::WATCH };
                gpu.launch(kernel, 1, &args(out.address(), all[1][0], out.address(), COUNT))?;
                gpu.stream.synchronize()?;
                Ok(words(&out, 1)?[0])
            });
        assert!(outcome.failure.is_none(), "{}", outcome.failure.unwrap());
        *outcome.ranks[1].as_ref().unwrap() == 1
    };
    let twice = |seed: &u64| goes_back(*seed, vec![Fault::RepeatFlag { from: 0, nth: 2 }]);
    let found = (0..100).filter(twice).count();
    println!("a repeated flag is seen in {found} of 100 seeds");
    assert!(found > 0);
    assert!(!(0..100).any(|seed| goes_back(seed, Vec::new())));
}

/// A rank that is a thread may run what others gave it to run when it ends: that is theirs, and is done.
#[test]
fn a_dead_rank_still_works_for_the_streams_of_others() {
    let faults = vec![Fault::Kill { rank: 1, at: 1 }];
    let given = std::sync::Mutex::new(None);
    let outcome = world(2, SeededSchedule { faults, ..SeededSchedule::new(9) }, |rank| -> Result<Vec<u64>> {
        if rank.number == 1 {
            let dead = rank.gpu().unwrap_err();
            rank.meet(&[DeviceAddress(1)]);
            rank.barrier();
            let (stream, target, source): (anabranch_hip::Stream, _, _) =
                given.lock().unwrap().take().unwrap();
            // SAFETY: rank 0 keeps both words and waits for the stream.
            unsafe { stream.copy_async(target, source, 8) }.unwrap();
            rank.barrier();
            drop(stream);
            return Err(dead);
        }
        let alone = rank.alone();
        let gpu = alone.gpu()?;
        let (flag, mut word, out) = (gpu.zeroed(1)?, gpu.zeroed(1)?, gpu.zeroed(2)?);
        word.copy_from_host(0, &1_u64.to_ne_bytes())?;
        rank.meet(&[DeviceAddress(1)]);
        let wait = args(flag.address(), flag.address(), out.address(), 1);
        gpu.launch(lab::WAIT, 1, &MachineArgs { mode: DEADLINE_MS, ..wait })?;
        *given.lock().unwrap() = Some((gpu.device.create_stream()?, flag.address(), word.address()));
        rank.barrier();
        rank.barrier();
        gpu.stream.synchronize()?;
        words(&out, 1)
    });
    assert_eq!(outcome.ranks[0].as_ref().unwrap(), &[1], "the copy came before the deadline");
    assert_eq!(outcome.ranks[1].as_ref().unwrap_err().code(), Some(HipError::DEINITIALIZED));
    assert!(outcome.run.virtual_ns < 1_000_000_000);
}
