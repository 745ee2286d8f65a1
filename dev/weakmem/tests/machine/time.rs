//! The virtual clock, and runs that do not end.

use core::time::Duration;

use anabranch_clock::{Moment, Signal, sleep};
use anabranch_hip::{HipError, Result};
use anabranch_weakmem::{Fault, SeededError, SeededSchedule};

use anabranch_hip_jit::Kernel;

use crate::machine::lab::{self, MachineArgs, WIDTH, args, seeded, words, world};

#[test]
fn deadlines_of_seconds_expire_at_once() {
    let begun = Moment::now();
    for seed in 0..10 {
        let outcome = world(2, SeededSchedule::new(seed), |rank| -> Result<(Vec<u64>, Duration)> {
            let gpu = rank.gpu()?;
            let (flag, out) = (gpu.zeroed(1)?, gpu.zeroed(2)?);
            let before = Moment::now();
            let wait = args(flag.address(), flag.address(), out.address(), 1);
            gpu.launch(lab::WAIT, 1, &MachineArgs { mode: 20_000, ..wait })?;
            sleep(Duration::from_secs(3));
            gpu.stream.synchronize()?;
            Ok((words(&out, 2)?, before.elapsed()))
        });
        assert!(outcome.failure.is_none(), "{}", outcome.failure.unwrap());
        for got in outcome.ranks {
            let (out, elapsed) = got.unwrap();
            assert_eq!(out[0], 0, "nobody raised the flag");
            assert!(out[1] > 20_000_000_000 && out[1] < 80_000_000_000, "{out:?}");
            assert!(elapsed >= Duration::from_secs(20), "{elapsed:?}");
        }
        assert!(outcome.run.steps < 5_000, "{} steps", outcome.run.steps);
    }
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?} for 400 virtual seconds", begun.elapsed());
}

#[test]
fn a_deadline_of_a_thread_ends_its_wait() {
    let outcome = world(1, SeededSchedule::new(3), |_| {
        let (mutex, signal) = (std::sync::Mutex::new(()), Signal::new());
        let until = Moment::now().after(Duration::from_secs(1000));
        let mut guard = mutex.lock().unwrap();
        while !until.remaining().is_zero() {
            guard = signal.wait(&mutex, guard, Some(until));
        }
        drop(guard);
        Moment::now().since_origin()
    });
    assert!(outcome.ranks[0] >= Duration::from_secs(1000) && outcome.failure.is_none());
}

#[test]
fn a_run_in_which_all_wait_for_ever_is_reported_and_ends() {
    let outcome = world(2, SeededSchedule::new(5), |rank| -> Result<()> {
        let gpu = rank.gpu()?;
        let word = gpu.zeroed(1)?;
        // SAFETY: the word is never freed before the stream is idle or lost.
        unsafe { gpu.stream.wait_value64_at_least(word.address(), 1) }?;
        gpu.stream.synchronize()
    });
    for result in outcome.ranks {
        assert_eq!(result.unwrap_err().code(), Some(HipError::LAUNCH_FAILURE));
    }
    let failure = outcome.failure.expect("the hang is reported");
    assert!(matches!(*failure.cause, SeededError::Hang { .. }), "{failure}");
    let text = failure.to_string();
    for part in
        ["a stream of device 1 waits for a word in memory", "rank 0 (seat 0) waits in hipStreamSynchronize"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn kernels_that_poll_for_ever_end_with_the_clock() {
    let schedule = SeededSchedule { longest_virtual_ns: 1_000_000_000, ..SeededSchedule::new(5) };
    let outcome = world(1, schedule, |rank| -> Result<()> {
        let gpu = rank.gpu()?;
        let word = gpu.zeroed(1)?;
        gpu.launch(lab::ANSWER, 1, &args(word.address(), word.address(), word.address(), 1))?;
        gpu.stream.synchronize()
    });
    assert_eq!(outcome.ranks[0].as_ref().unwrap_err().code(), Some(HipError::LAUNCH_FAILURE));
    let failure = outcome.failure.unwrap();
    assert!(matches!(*failure.cause, SeededError::Hang { .. }), "{failure}");
    assert!(failure.to_string().contains("kernel machine_answer, block 0 polls"), "{failure}");
}

#[test]
fn a_run_of_too_many_steps_ends() {
    let schedule = SeededSchedule { most_steps: 300, ..SeededSchedule::new(5) };
    let outcome = world(2, schedule, |rank| crate::machine::exchange::ring(rank, 0, 0));
    let failure = outcome.failure.unwrap();
    assert!(matches!(*failure.cause, SeededError::Steps { steps: 300 }), "{failure}");
    assert!(outcome.ranks.iter().any(Result::is_err));
}

#[test]
fn a_thread_that_nothing_can_wake_is_ended() {
    let outcome = world(1, SeededSchedule::new(5), |_| {
        let ended = std::panic::catch_unwind(|| {
            let (mutex, signal) = (std::sync::Mutex::new(()), Signal::new());
            let mut guard = mutex.lock().unwrap();
            loop {
                guard = signal.wait(&mutex, guard, None);
            }
        });
        let cause: Box<dyn std::any::Any + Send> = ended.err().unwrap();
        cause.downcast_ref::<String>().unwrap().clone()
    });
    assert!(outcome.ranks[0].contains("waits for ever"), "{}", outcome.ranks[0]);
    assert!(outcome.failure.is_some());
}

#[test]
fn a_deadline_that_no_clock_reaches_is_none() {
    for duration in [Duration::MAX, Duration::from_nanos(u64::MAX), Duration::from_nanos(u64::MAX - 1)] {
        let outcome = world(2, SeededSchedule::new(5), |rank| {
            if rank.number == 1 {
                sleep(Duration::from_secs(5));
                return String::new();
            }
            let cause = std::panic::catch_unwind(|| sleep(duration)).unwrap_err();
            cause.downcast_ref::<String>().unwrap().clone()
        });
        assert!(outcome.ranks[0].contains("waits for ever"), "{}", outcome.ranks[0]);
        let failure = outcome.failure.unwrap();
        assert!(matches!(*failure.cause, SeededError::Hang { .. }), "{failure}");
        assert!(outcome.run.virtual_ns < 6_000_000_000, "{} virtual ns", outcome.run.virtual_ns);
    }
}

#[test]
fn kernels_that_look_at_nothing_but_the_clock_let_others_go_on() {
    let schedule = SeededSchedule { most_steps: 20_000, ..SeededSchedule::new(5) };
    let outcome = world(2, schedule.clone(), |rank| -> Result<u64> {
        let gpu = rank.gpu()?;
        let out = gpu.zeroed(1)?;
        let clock = args(out.address(), out.address(), out.address(), 0);
        gpu.launch(lab::CLOCK, 1, &MachineArgs { mode: 500, ..clock })?;
        gpu.stream.synchronize()?;
        Ok(words(&out, 1)?[0])
    });
    assert!(outcome.failure.is_none(), "{}", outcome.failure.unwrap());
    assert!(outcome.ranks.iter().all(|took| *took.as_ref().unwrap() >= 500), "{:?}", outcome.ranks);

    let for_ever = |kernel: Kernel<MachineArgs>, threads: u32| {
        let outcome = world(2, schedule.clone(), |rank| -> Result<()> {
            let gpu = rank.gpu()?;
            let out = gpu.zeroed(1)?;
            let args = args(out.address(), out.address(), out.address(), u64::MAX);
            gpu.launch_threads(&gpu.stream, kernel, (1, threads), &args)?;
            gpu.stream.synchronize()
        });
        for result in outcome.ranks {
            assert_eq!(result.unwrap_err().code(), Some(HipError::LAUNCH_FAILURE), "{kernel:?}");
        }
        let failure = outcome.failure.unwrap();
        assert!(matches!(*failure.cause, SeededError::Steps { steps: 20_000 }), "{kernel:?}: {failure}");
        outcome.run.digest
    };
    for (kernel, threads) in [(lab::CLOCK, WIDTH), (lab::BARRIER, WIDTH), (lab::BARRIER, 2 * WIDTH)] {
        assert_eq!(for_ever(kernel, threads), for_ever(kernel, threads));
    }
}

#[test]
fn a_rank_stands_still_at_a_barrier() {
    let at_barrier = |at| {
        let ns = 7_000_000_000;
        let faults = vec![Fault::Stall { rank: 0, at, ns }];
        let outcome = world(1, SeededSchedule { faults, ..seeded(5) }, |rank| -> Result<()> {
            let gpu = rank.gpu()?;
            let out = gpu.zeroed(1)?;
            let args = args(out.address(), out.address(), out.address(), 20);
            gpu.launch_threads(&gpu.stream, lab::BARRIER, (1, WIDTH), &args)?;
            gpu.stream.synchronize()
        });
        assert!(outcome.failure.is_none() && outcome.run.virtual_ns >= ns, "{}", outcome.run.virtual_ns);
        outcome.run.events
    };
    let is_barrier = |line: &String| line.ends_with("block barrier");
    let lines: Vec<_> = at_barrier(0).iter().map(ToString::to_string).collect();
    let first = lines.iter().position(is_barrier).unwrap() as u64;
    // Whether its lane is the last to come or not.
    for at in first..first + 8 {
        at_barrier(at);
    }
}
