//! Host code beside kernels: pinned flags, copies, streams, events, graphs.

use std::sync::atomic::{AtomicU64, Ordering};

use anabranch_hip::Result;
use anabranch_hip_host::{Actor, Step};
use anabranch_weakmem::SeededSchedule;

use crate::machine::lab::{self, THREADS, args, words, world};

const SEEDS: u64 = 30;

#[test]
fn flags_in_host_memory_work_both_ways() {
    for seed in 0..SEEDS {
        let outcome = world(2, SeededSchedule::new(seed), |rank| -> Result<Vec<u64>> {
            let gpu = rank.gpu()?;
            let host = gpu.device.allocate_host(64)?;
            host.write(0, &[0; 64])?;
            let at = |offset| host.device_address().offset(offset);
            let word = |offset| host.atomic_u64(offset).unwrap();
            let mut seen = Vec::new();
            for round in 1..=3_u64 {
                gpu.launch(lab::ANSWER, 1, &args(at(0), at(8), at(16), round))?;
                // Data before flag, from the host; then the same from the kernel.
                word(0).store(round * 10, Ordering::Relaxed);
                word(8).store(round, Ordering::Release);
                while word(16).load(Ordering::Acquire) < round {
                    anabranch_clock::sleep(core::time::Duration::from_micros(20));
                }
                seen.push(word(0).load(Ordering::Relaxed));
                gpu.stream.synchronize()?;
            }
            Ok(seen)
        });
        assert!(outcome.failure.is_none(), "seed {seed}: {}", outcome.failure.unwrap());
        for seen in outcome.ranks {
            assert_eq!(seen.unwrap(), [11, 21, 31], "seed {seed}");
        }
    }
}

#[test]
fn streams_wait_for_events_and_for_words() {
    for seed in 0..SEEDS {
        let outcome = world(1, SeededSchedule::new(seed), |rank| -> Result<(Vec<u64>, f64)> {
            let gpu = rank.gpu()?;
            let (first, second) = (gpu.device.create_stream()?, gpu.device.create_stream()?);
            let mut out = gpu.zeroed(THREADS as usize)?;
            out.fill(0)?;
            let word = gpu.zeroed(1)?;
            let (begun, ended) = (gpu.device.create_timing_event()?, gpu.device.create_timing_event()?);
            // SAFETY: the word and the buffers live until the streams are idle.
            unsafe {
                second.wait_value64_at_least(word.address(), 5)?;
                first.record(&begun)?;
                gpu.launch_on(&first, lab::ADD, 1, &args(word.address(), word.address(), out.address(), 1))?;
                first.record(&ended)?;
                first.wait_event(&begun)?;
                first.write_value64(word.address(), 5)?;
            }
            // The second stream's kernel doubles nothing before the first one's has ended.
            gpu.launch_on(&second, lab::ADD, 1, &args(word.address(), word.address(), out.address(), 100))?;
            second.synchronize()?;
            ended.synchronize()?;
            Ok((words(&out, THREADS as usize)?, begun.microseconds_until(&ended)?))
        });
        assert!(outcome.failure.is_none(), "seed {seed}: {}", outcome.failure.unwrap());
        let (out, microseconds) = outcome.ranks.into_iter().next().unwrap().unwrap();
        assert_eq!(out, [101; THREADS as usize], "seed {seed}");
        assert!(microseconds > 0.0 && microseconds < 100.0, "{microseconds} virtual microseconds");
    }
}

#[test]
fn graphs_replay_and_copies_see_what_kernels_stored() {
    for seed in 0..SEEDS {
        let outcome = world(2, SeededSchedule::new(seed), |rank| -> Result<Vec<u64>> {
            let gpu = rank.gpu()?;
            let (out, copy) = (gpu.zeroed(THREADS as usize)?, gpu.zeroed(THREADS as usize)?);
            let side = gpu.device.create_stream()?;
            let (fork, join) = (gpu.device.create_event()?, gpu.device.create_event()?);
            let add = |value, out: &anabranch_hip::DeviceBuffer| {
                args(out.address(), out.address(), out.address(), value)
            };
            gpu.stream.begin_capture()?;
            gpu.launch(lab::ADD, 1, &add(1, &out))?;
            gpu.stream.record(&fork)?;
            side.wait_event(&fork)?;
            gpu.launch_on(&side, lab::ADD, 1, &add(10, &out))?;
            side.record(&join)?;
            gpu.stream.wait_event(&join)?;
            // SAFETY: both buffers live until the stream is idle.
            unsafe { gpu.stream.copy_async(copy.address(), out.address(), THREADS as usize * 8) }?;
            gpu.launch(lab::ADD, 1, &add(1000, &copy))?;
            let graph = gpu.stream.end_capture()?.instantiate()?;
            for _ in 0..3 {
                // SAFETY: what the graph names lives until the stream is idle.
                unsafe { graph.launch(&gpu.stream) }?;
            }
            gpu.stream.synchronize()?;
            words(&copy, THREADS as usize)
        });
        assert!(outcome.failure.is_none(), "seed {seed}: {}", outcome.failure.unwrap());
        for copy in outcome.ranks {
            assert_eq!(copy.unwrap(), [1033; THREADS as usize], "seed {seed}");
        }
    }
}

/// A thread that is not attached really waits, and gets what it asks for.
#[test]
fn a_thread_without_a_seat_still_works() {
    let outcome = world(1, SeededSchedule::new(1), |_| ());
    let runtime = outcome.machine.runtime();
    let addresses = std::sync::Mutex::new(vec![Vec::new()]);
    let shared = lab::Shared { addresses, changed: anabranch_clock::Signal::new() };
    let machine = outcome.machine.clone();
    let rank =
        lab::Rank { number: 0, ranks: 1, runtime, shared: &shared, jit: lab::jit(Vec::new()), machine };
    let gpu = rank.gpu().unwrap();
    let out = gpu.zeroed(THREADS as usize).unwrap();
    for _ in 0..5 {
        gpu.launch(lab::ADD, 1, &args(out.address(), out.address(), out.address(), 7)).unwrap();
    }
    gpu.stream.synchronize().unwrap();
    assert_eq!(words(&out, THREADS as usize).unwrap(), [35; THREADS as usize]);
}

/// An engine that answers a kernel's flag in host memory by a word in device memory.
struct Engine {
    question: usize,
    answer: usize,
}

impl Actor for Engine {
    fn step(&mut self) -> Step {
        // SAFETY: the test keeps both words until the engine has finished, which the answer tells.
        let word = |address: usize| unsafe { AtomicU64::from_ptr(address as *mut u64) };
        if word(self.question).load(Ordering::Acquire) == 0 {
            return Step::Waiting;
        }
        word(self.answer).store(7, Ordering::Release);
        Step::Finished
    }
}

#[test]
fn engines_take_turns_and_kernels_see_what_they_write() {
    for seed in 0..SEEDS {
        let outcome = world(2, SeededSchedule::new(seed), |rank| -> Result<u64> {
            let gpu = rank.gpu()?;
            let host = gpu.device.allocate_host(16)?;
            host.write(0, &[0; 16])?;
            let (flag, out) = (gpu.zeroed(1)?, gpu.zeroed(2)?);
            let engine = Engine { question: host.as_ptr().addr(), answer: flag.address().0 as usize };
            rank.machine.spawn_actor(Box::new(engine));
            let side = gpu.device.create_stream()?;
            let wait = args(flag.address(), flag.address(), out.address(), 7);
            gpu.launch_on(&side, lab::WAIT, 1, &lab::MachineArgs { mode: 1000, ..wait })?;
            let ask = host.device_address();
            gpu.launch(lab::COUNT, 1, &args(ask, ask, ask, 1))?;
            gpu.stream.synchronize()?;
            side.synchronize()?;
            Ok(words(&out, 1)?[0])
        });
        assert!(outcome.failure.is_none(), "seed {seed}: {}", outcome.failure.unwrap());
        assert_eq!(outcome.ranks.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [7, 7], "seed {seed}");
        assert!(outcome.run.virtual_ns < 1_000_000_000, "no wait expired");
    }
}
