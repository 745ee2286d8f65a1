//! The search of a range of seeds, on several threads, for the lowest that fails.

use core::num::NonZeroUsize;
use core::ops::Range;
use core::time::Duration;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

use anabranch_clock::Moment;

use crate::{Failure, RunOptions, Scenario, ScenarioError};

/// How often progress is told.
const TELL: Duration = Duration::from_millis(100);

/// What is searched, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchOptions {
    /// The seeds.
    pub seeds: Range<u64>,
    /// Threads, each with its own scenario. The result does not depend on it.
    pub threads: NonZeroUsize,
    /// After how long no more seeds are begun, counted from when the first scenario was made.
    pub time_limit: Option<Duration>,
    /// [`RunOptions::most_switches`] of every run.
    pub most_switches: Option<u64>,
}

impl SearchOptions {
    /// One thread, no limits.
    pub const fn new(seeds: Range<u64>) -> Self {
        Self { seeds, threads: NonZeroUsize::MIN, time_limit: None, most_switches: None }
    }
}

/// How far a search is.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Progress {
    /// Seeds that ran and were right.
    pub done: u64,
    /// Seeds to run.
    pub of: u64,
    /// Primitives of those done.
    pub primitives: u64,
    /// Since the first scenario was made.
    pub wall: Duration,
}

impl Progress {
    /// The speed so far.
    pub fn seeds_per_second(&self) -> f64 {
        self.done as f64 / self.wall.as_secs_f64().max(1e-9)
    }
}

/// What a search came to.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// How the search ended.
    pub end: End,
    /// Seeds judged: up to and with the failing one, if there is one.
    pub seeds: u64,
    /// What was counted on the way. Seeds beyond a failing one may be in it.
    pub progress: Progress,
}

/// How a search ended.
#[derive(Clone, Debug)]
pub enum End {
    /// Every seed was right.
    Clean,
    /// The seeds that the time limit let begin were right; [`Report::seeds`] says how many.
    TimeLimit,
    /// This seed is the lowest of the range that fails. The failure has no events.
    Failed {
        /// The seed.
        seed: u64,
        /// What was wrong.
        failure: Failure,
    },
}

/// What threads share. Seeds are handed out in ascending order and each that is handed out is run to its end, so the lowest
/// failing one is found whatever the threads do.
struct Board {
    start: u64,
    count: u64,
    limit: Option<Duration>,
    begun: OnceLock<Moment>,
    /// How many seeds were handed out.
    taken: AtomicU64,
    /// The place of the lowest failing seed so far.
    lowest: AtomicU64,
    time_is_up: AtomicBool,
    broken: AtomicBool,
}

impl Board {
    fn next(&self) -> Option<u64> {
        let begun = *self.begun.get_or_init(Moment::now);
        if self.limit.is_some_and(|limit| begun.elapsed() >= limit) {
            self.time_is_up.store(true, Ordering::SeqCst);
        }
        if self.time_is_up.load(Ordering::SeqCst) || self.broken.load(Ordering::SeqCst) {
            return None;
        }
        let most = self.count.min(self.lowest.load(Ordering::SeqCst));
        let step = |taken: u64| (taken < most).then_some(taken + 1);
        let taken = self.taken.fetch_update(Ordering::SeqCst, Ordering::SeqCst, step).ok()?;
        Some(self.start + taken)
    }

    fn wall(&self) -> Duration {
        self.begun.get().map(|begun| begun.elapsed()).unwrap_or_default()
    }
}

/// Runs every seed of the range until one fails, the time limit is over, or the range ends.
///
/// `make` is called once by each thread, on that thread. `tell` is called every tenth of a second or so.
///
/// # Errors
/// What `make` failed with.
pub fn search<F>(
    make: F,
    options: &SearchOptions,
    tell: &mut dyn FnMut(&Progress),
) -> Result<Report, ScenarioError>
where
    F: Fn() -> Result<Box<dyn Scenario>, ScenarioError> + Sync,
{
    let SearchOptions { seeds, threads, time_limit, most_switches } = options;
    let board = Board {
        start: seeds.start,
        count: seeds.end.saturating_sub(seeds.start),
        limit: *time_limit,
        begun: OnceLock::new(),
        taken: AtomicU64::new(0),
        lowest: AtomicU64::new(u64::MAX),
        time_is_up: AtomicBool::new(false),
        broken: AtomicBool::new(false),
    };
    let threads = threads.get().min(usize::try_from(board.count.max(1)).unwrap_or(usize::MAX));
    let (ended, progress) = std::thread::scope(|scope| {
        let (sender, receiver) = channel();
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                let (sender, board, make) = (sender.clone(), &board, &make);
                scope.spawn(move || work(make, board, *most_switches, &sender))
            })
            .collect();
        drop(sender);
        let progress = listen(&receiver, &board, tell);
        let join = |worker: std::thread::ScopedJoinHandle<'_, _>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        (workers.into_iter().map(join).collect::<Vec<_>>(), progress)
    });
    let mut found: Option<(u64, Failure)> = None;
    for end in ended {
        let lower = |(seed, _): &(u64, Failure)| found.as_ref().is_none_or(|(lowest, _)| seed < lowest);
        found = end?.filter(lower).or(found);
    }
    let taken = board.taken.into_inner();
    let (end, seeds) = match found {
        Some((seed, failure)) => (End::Failed { seed, failure }, seed - seeds.start + 1),
        None if taken < board.count => (End::TimeLimit, taken),
        None => (End::Clean, taken),
    };
    Ok(Report { end, seeds, progress })
}

fn work<F>(
    make: &F,
    board: &Board,
    most_switches: Option<u64>,
    done: &Sender<u64>,
) -> Result<Option<(u64, Failure)>, ScenarioError>
where
    F: Fn() -> Result<Box<dyn Scenario>, ScenarioError>,
{
    let mut scenario = make().inspect_err(|_| board.broken.store(true, Ordering::SeqCst))?;
    let options = RunOptions { most_switches, ..RunOptions::default() };
    while let Some(seed) = board.next() {
        match scenario.run(seed, &options) {
            // Who listens goes last.
            Ok(outcome) => drop(done.send(outcome.run.steps)),
            Err(failure) => {
                board.lowest.fetch_min(seed - board.start, Ordering::SeqCst);
                return Ok(Some((seed, failure)));
            }
        }
    }
    Ok(None)
}

/// Counts until every thread has ended.
fn listen(done: &Receiver<u64>, board: &Board, tell: &mut dyn FnMut(&Progress)) -> Progress {
    let mut progress = Progress { done: 0, of: board.count, primitives: 0, wall: Duration::ZERO };
    let mut told = Moment::now();
    loop {
        match done.recv_timeout(TELL) {
            Ok(steps) => {
                progress.done += 1;
                progress.primitives += steps;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if told.elapsed() >= TELL {
            progress.wall = board.wall();
            tell(&progress);
            told = Moment::now();
        }
    }
    progress.wall = board.wall();
    progress
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::fake::{Fake, case};

    fn options(seeds: Range<u64>, threads: usize) -> SearchOptions {
        SearchOptions { threads: threads.try_into().unwrap(), ..SearchOptions::new(seeds) }
    }

    #[test]
    fn the_lowest_failing_seed_is_found_by_any_number_of_threads() {
        // The lower seeds take longer, so that a higher one fails first when there are threads.
        let judge = |_: &crate::Case, seed: u64, _: Option<u64>| {
            if seed < 40 {
                anabranch_clock::sleep(Duration::from_millis(2));
            }
            (seed >= 37 && seed % 3 == 1).then(|| format!("seed {seed} is wrong"))
        };
        for threads in [1, 4] {
            let make = || Ok(Fake::boxed(case(), judge));
            let report = search(make, &options(10..1000, threads), &mut |_| {}).unwrap();
            let End::Failed { seed, failure } = report.end else { panic!("{report:?}") };
            assert_eq!((seed, failure.problem.as_str(), report.seeds), (37, "seed 37 is wrong", 28));
        }
    }

    #[test]
    fn a_clean_range_is_run_once_and_counted() {
        for threads in [1, 4] {
            let ran = Arc::new(Mutex::new(Vec::new()));
            let make = || {
                let ran = Arc::clone(&ran);
                Ok(Fake::boxed(case(), move |_, seed, _| {
                    ran.lock().unwrap().push(seed);
                    None
                }))
            };
            let report = search(make, &options(5..505, threads), &mut |_| {}).unwrap();
            assert!(matches!(report.end, End::Clean), "{report:?}");
            assert_eq!((report.seeds, report.progress.done, report.progress.primitives), (500, 500, 5000));
            let mut ran = ran.lock().unwrap().clone();
            ran.sort_unstable();
            assert_eq!(ran, (5..505).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_time_limit_is_reported_and_begun_runs_are_judged() {
        let slow = |_: &crate::Case, _: u64, _: Option<u64>| {
            anabranch_clock::sleep(Duration::from_millis(5));
            None
        };
        let limited =
            SearchOptions { time_limit: Some(Duration::from_millis(50)), ..options(0..1_000_000, 2) };
        let mut told = Vec::new();
        let make = || Ok(Fake::boxed(case(), slow));
        let report = search(make, &limited, &mut |progress| told.push(*progress)).unwrap();
        assert!(matches!(report.end, End::TimeLimit), "{report:?}");
        assert!(report.seeds >= 1 && report.seeds < 100, "{report:?}");
        assert_eq!(report.seeds, report.progress.done);
        let none = SearchOptions { time_limit: Some(Duration::ZERO), ..options(0..10, 2) };
        let report = search(make, &none, &mut |_| {}).unwrap();
        assert!(matches!((report.end, report.seeds), (End::TimeLimit, 0)));
    }

    #[test]
    fn progress_is_reported_while_it_runs() {
        let slow = |_: &crate::Case, _: u64, _: Option<u64>| {
            anabranch_clock::sleep(Duration::from_millis(25));
            None
        };
        let mut told = Vec::new();
        let make = || Ok(Fake::boxed(case(), slow));
        search(make, &options(0..20, 1), &mut |progress| told.push(*progress)).unwrap();
        assert!(!told.is_empty() && told.iter().all(|progress| progress.of == 20), "{told:?}");
        assert!(told.is_sorted_by_key(|progress| progress.done) && told[0].seeds_per_second() < 50.0);
    }

    #[test]
    fn a_scenario_that_cannot_be_made_ends_the_search() {
        let make = || Err(ScenarioError::Plan("no".to_owned()));
        let refused = search(make, &options(0..1_000_000_000, 3), &mut |_| {}).unwrap_err();
        assert_eq!(refused.to_string(), "no");
    }
}
