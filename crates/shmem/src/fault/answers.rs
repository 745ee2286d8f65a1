//! A rank reports what it is doing when another rank's wait for it has failed.
//!
//! A thread of each world waits for a key at the rendezvous, and a rank whose wait failed sets it. So nothing is exchanged before that.
//! From then on the thread renews its answer every second, so that later questions get no old one. In a simulation, where a driver runs
//! one thread at a time, there is no such thread.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anabranch_bootstrap::{Deadline, Rendezvous};
use anabranch_clock::{Moment, Signal};

use anabranch_ranks::GlobalRank;

use super::activity::Activity;
use super::report::FaultReports;
use crate::error::{Error, Result};

/// How long an answer may take. Longer than it takes on a busy machine, short beside the deadline that has passed.
const ANSWER: Duration = Duration::from_secs(1);
/// How old an answer may be.
const REFRESH: Duration = Duration::from_secs(1);
/// How long the end of a world waits for the thread. It ends by a message of the rendezvous, whose process may be stopped.
const END: Duration = Duration::from_millis(500);
/// Longer than any world lives.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Dropping it ends the thread, now or when the rendezvous answers again.
#[derive(Debug)]
pub(crate) struct Answering {
    rendezvous: Arc<dyn Rendezvous>,
    key: String,
    answer: String,
    activity: Arc<Activity>,
    ends: Arc<Ends>,
    thread: Option<JoinHandle<()>>,
}

/// What the world and its thread share of their ends.
#[derive(Debug, Default)]
struct Ends {
    state: Mutex<EndState>,
    changed: Signal,
}

#[derive(Debug, Default)]
struct EndState {
    /// The world has ended: the thread ends without an answer.
    of_world: bool,
    /// The thread has nothing left to do.
    of_thread: bool,
}

impl Ends {
    fn lock(&self) -> MutexGuard<'_, EndState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reports the end of the thread, also when it panics.
struct ThreadEnd<'a>(&'a Ends);

impl Drop for ThreadEnd<'_> {
    fn drop(&mut self) {
        self.0.lock().of_thread = true;
        self.0.changed.notify_all();
    }
}

/// The key that is set to ask a rank. Its own wait for it is no place where the rank waits for others.
fn asked(world: u64, rank: u32) -> String {
    format!(".shmem/{world:016x}/asked/{rank}")
}

fn answered(world: u64, rank: u32) -> String {
    format!("shmem/{world:016x}/doing/{rank}")
}

impl Answering {
    /// Starts the thread, where there are other ranks and no driver of a simulation.
    ///
    /// # Errors
    /// [`Error::System`].
    pub(crate) fn start(reports: &FaultReports, size: u32) -> Result<Option<Self>> {
        if size == 1 || reports.is_simulated {
            return Ok(None);
        }
        let (world, rank) = (reports.world, reports.rank.get());
        let (rendezvous, activity) = (Arc::clone(&reports.rendezvous), Arc::clone(&reports.activity));
        let (key, answer) = (asked(world, rank), answered(world, rank));
        let waits = (Arc::clone(&rendezvous), key.clone());
        let ends = Arc::new(Ends::default());
        let (until, noted, answers) = (Arc::clone(&ends), Arc::clone(&activity), answer.clone());
        let named = std::thread::Builder::new().name(format!("answers of rank {rank}"));
        let started = named.spawn(move || wait_and_answer(waits, &answers, &noted, &until));
        let thread = started.map_err(Error::thread("the answers to other ranks"))?;
        Ok(Some(Self { rendezvous, key, answer, activity, ends, thread: Some(thread) }))
    }
}

impl FaultReports {
    /// What a rank of a world of `size` ranks is doing, as the rest of a sentence that begins with the rank; `None` where that cannot be
    /// known.
    pub(crate) fn doing_of(&self, rank: GlobalRank, size: u32) -> Option<String> {
        if rank == self.rank {
            return Some(self.activity.doing());
        }
        if rank.get() >= size || self.is_simulated {
            return None;
        }
        self.rendezvous.set(&asked(self.world, rank.get()), b"").ok()?;
        match self.rendezvous.wait(&answered(self.world, rank.get()), Deadline::after(ANSWER)) {
            Ok(text) => String::from_utf8(text).ok(),
            Err(anabranch_bootstrap::Error::KeyNotSet { .. }) => {
                Some(format!("did not report within {ANSWER:?} what it is doing: its process may be stopped"))
            }
            Err(_) => None,
        }
    }
}

fn wait_and_answer(
    (rendezvous, key): (Arc<dyn Rendezvous>, String),
    answer: &str,
    activity: &Activity,
    ends: &Ends,
) {
    let _end = ThreadEnd(ends);
    // An error is the end of the rendezvous: no rank can ask any more.
    if rendezvous.wait(&key, Deadline::after(FOREVER)).is_err() {
        return;
    }
    let mut state = ends.lock();
    while !state.of_world {
        drop(state);
        if let Err(error) = rendezvous.set(answer, activity.doing().as_bytes()) {
            tracing::debug!(%error, "what this rank is doing could not be reported");
            return;
        }
        state = ends.lock();
        if !state.of_world {
            let next = Moment::now().after(REFRESH);
            state = ends.changed.wait(&ends.state, state, Some(next));
        }
    }
}

impl Answering {
    /// Leaves a last answer for ranks that ask after this world has ended: a world that fails may end before the waits of the others
    /// expire.
    pub(crate) fn leave_answer(&self) {
        let doing = format!("{}; its world has ended since", self.activity.doing());
        if let Err(error) = self.rendezvous.set(&self.answer, doing.as_bytes()) {
            tracing::debug!(%error, "the last answer of this rank could not be left");
        }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.ends.lock().of_world = true;
        self.ends.changed.notify_all();
        // The thread's own wait for the key ends with this, or has ended with the rendezvous.
        if let Err(error) = self.rendezvous.set(&self.key, b"") {
            tracing::debug!(%error, "the rendezvous has ended before the answers");
        }
        let end = Moment::now().after(END);
        let mut state = self.ends.lock();
        while !state.of_thread {
            if end.remaining().is_zero() {
                tracing::warn!(
                    "the rendezvous does not answer: this rank stays connected to it until it does or is lost"
                );
                return;
            }
            state = self.ends.changed.wait(&self.ends.state, state, Some(end));
        }
        drop(state);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the thread that answers other ranks panicked");
        }
    }
}
