//! The scheduler of a machine that runs free: worker threads that step blocks, streams and engines one after another.
//!
//! A worker steps all its tasks round and round, so all of them progress whatever they wait for.

mod block;
mod park;

use core::fmt;
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use anabranch_hip::Step;

use crate::work::launch::Launch;
use crate::work::scheduler::{Begin, Scheduler, Task, caught, step_caught};
use crate::{Error, sync::lock};
use block::{Block, Unbegun};
use park::Park;

/// What takes the place of a task that is over.
struct Over;

impl Task for Over {
    fn step(&mut self) -> Step {
        Step::Finished
    }

    fn panicked(&mut self) -> Step {
        Step::Finished
    }
}

/// The scheduler of ordinary runs: each worker steps its own tasks as fast as it can.
#[derive(Debug)]
pub(crate) struct FreeRunning {
    workers: Vec<Arc<Worker>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl FreeRunning {
    pub(crate) fn start(workers: usize, longest_rest: Duration) -> Result<Self, Error> {
        let scheduler = Self {
            workers: (0..workers).map(|_| Arc::new(Worker::new(longest_rest))).collect(),
            threads: Mutex::new(Vec::with_capacity(workers)),
        };
        for (index, worker) in scheduler.workers.iter().enumerate() {
            let shared = Arc::clone(worker);
            let started =
                std::thread::Builder::new().name(format!("host-gpu-{index}")).spawn(move || shared.run());
            match started {
                Ok(thread) => {
                    lock(&scheduler.threads).push(thread);
                }
                Err(source) => {
                    scheduler.stop();
                    return Err(Error::Thread { worker: index, source });
                }
            }
        }
        Ok(scheduler)
    }
}

impl Scheduler for FreeRunning {
    fn spawn(&self, _device: Option<u32>, begin: Begin) {
        if let Some(worker) = self.workers.iter().min_by_key(|worker| worker.load.load(Ordering::Relaxed)) {
            worker.spawn(begin);
        }
    }

    fn spawn_block(&self, launch: Arc<Launch>, index: u32) {
        let device = Some(launch.device());
        let begin = move || -> Box<dyn Task> {
            match caught(|| Block::begin(Arc::clone(&launch), index)) {
                Some(block) => Box::new(block),
                None => Box::new(Unbegun { launch, index }),
            }
        };
        self.spawn(device, Box::new(begin));
    }

    fn abandon_blocks(&self, launch: &Arc<Launch>, count: u32) {
        launch.end_blocks(count);
    }

    fn wake(&self) {
        for worker in &self.workers {
            worker.wake();
        }
    }

    fn stop(&self) {
        for worker in &self.workers {
            worker.stop.store(true, Ordering::SeqCst);
            worker.wake();
        }
        let threads = core::mem::take(&mut *lock(&self.threads));
        for thread in threads {
            if thread.thread().id() == std::thread::current().id() {
                continue;
            }
            if thread.join().is_err() {
                tracing::warn!("a worker of the host machine panicked");
            }
        }
    }
}

#[derive(Debug)]
struct Worker {
    inbox: Mutex<Inbox>,
    /// Tasks of this worker, including those in the inbox.
    load: AtomicUsize,
    stop: AtomicBool,
    park: Park,
    longest_rest: Duration,
}

#[derive(Default)]
struct Inbox {
    tasks: VecDeque<Begin>,
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inbox({})", self.tasks.len())
    }
}

/// Rounds without progress that only pause the core for a moment.
const SPIN_ROUNDS: u32 = 8;
/// Rounds without progress that offer the core to other threads.
const YIELD_ROUNDS: u32 = 64;
/// The first park; each round without progress doubles it.
const FIRST_REST: Duration = Duration::from_micros(2);

impl Worker {
    fn new(longest_rest: Duration) -> Self {
        Self {
            inbox: Mutex::default(),
            load: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            park: Park::new(),
            longest_rest,
        }
    }

    fn spawn(&self, begin: Begin) {
        self.load.fetch_add(1, Ordering::Relaxed);
        if !self.stop.load(Ordering::SeqCst) {
            lock(&self.inbox).tasks.push_back(begin);
        }
        self.wake();
    }

    fn wake(&self) {
        self.park.wake();
    }

    fn run(&self) {
        self.park.is_of_this_thread();
        let mut tasks: Vec<Box<dyn Task>> = Vec::new();
        let mut idle_rounds = 0_u32;
        while !self.stop.load(Ordering::SeqCst) {
            if self.park.take_woken() {
                idle_rounds = 0;
                let arrived = core::mem::take(&mut lock(&self.inbox).tasks);
                tasks.extend(arrived.into_iter().filter_map(|begin| self.begin(begin)));
            }
            if tasks.is_empty() {
                self.park(None);
                continue;
            }
            if self.round(&mut tasks) {
                idle_rounds = 0;
            } else {
                self.back_off(idle_rounds);
                idle_rounds = idle_rounds.saturating_add(1);
            }
        }
        drop(tasks);
        // Dropped outside the lock: what a task owns may spawn.
        let unborn = core::mem::take(&mut lock(&self.inbox).tasks);
        drop(unborn);
    }

    /// Makes a task; one whose making panics is no more than a message, and its maker's business.
    fn begin(&self, begin: Begin) -> Option<Box<dyn Task>> {
        let task = caught(begin);
        if task.is_none() {
            self.load.fetch_sub(1, Ordering::Relaxed);
        }
        task
    }

    /// Steps each task once; whether any of them did something.
    fn round(&self, tasks: &mut Vec<Box<dyn Task>>) -> bool {
        let mut progress = false;
        tasks.retain_mut(|task| match step_caught(task) {
            Step::Progress => {
                progress = true;
                true
            }
            Step::Waiting => true,
            Step::Finished => {
                progress = true;
                self.load.fetch_sub(1, Ordering::Relaxed);
                // Dropped here, so that a panic of its destructor ends neither this thread nor the other tasks.
                let finished = core::mem::replace(task, Box::new(Over));
                caught(|| drop(finished));
                false
            }
        });
        progress
    }

    fn back_off(&self, idle_rounds: u32) {
        if idle_rounds < SPIN_ROUNDS {
            core::hint::spin_loop();
        } else if idle_rounds < YIELD_ROUNDS {
            std::thread::yield_now();
        } else {
            let doubled = FIRST_REST.saturating_mul(1 << (idle_rounds - YIELD_ROUNDS).min(16));
            self.park(Some(doubled.min(self.longest_rest)));
        }
    }

    fn park(&self, longest: Option<Duration>) {
        self.park.park(longest, || self.stop.load(Ordering::SeqCst));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    struct Fragile(std::sync::mpsc::Sender<&'static str>);

    impl Task for Fragile {
        fn step(&mut self) -> Step {
            panic!("a step of this test")
        }

        fn panicked(&mut self) -> Step {
            let _ = self.0.send("told");
            Step::Finished
        }
    }

    impl Drop for Fragile {
        fn drop(&mut self) {
            let _ = self.0.send("dropped");
            panic!("a destructor of this test")
        }
    }

    struct Healthy(std::sync::mpsc::Sender<&'static str>);

    impl Task for Healthy {
        fn step(&mut self) -> Step {
            let _ = self.0.send("stepped");
            Step::Finished
        }

        fn panicked(&mut self) -> Step {
            Step::Finished
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "real threads are waited for, but not for ever")]
    fn a_worker_outlives_the_panics_of_its_tasks() {
        let scheduler = FreeRunning::start(1, Duration::from_millis(1)).unwrap();
        let (sender, events) = channel();
        let next = || events.recv_timeout(Duration::from_secs(20)).unwrap();
        let fragile = sender.clone();
        scheduler.spawn(None, Box::new(move || Box::new(Fragile(fragile))));
        assert_eq!([next(), next()], ["told", "dropped"]);
        scheduler.spawn(None, Box::new(|| panic!("a beginning of this test")));
        scheduler.spawn(None, Box::new(move || Box::new(Healthy(sender))));
        assert_eq!(next(), "stepped");
        let until = std::time::Instant::now() + Duration::from_secs(20);
        while scheduler.workers[0].load.load(Ordering::Relaxed) > 0 {
            assert!(std::time::Instant::now() < until, "tasks that are over still count");
            std::thread::yield_now();
        }
        scheduler.stop();
    }
}
