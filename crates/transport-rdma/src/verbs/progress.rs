//! The thread that moves a rank's requests.

use core::time::Duration;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use anabranch_clock::{Moment, Signal};

use super::lane::Turn;
use crate::error::{NicError, Result};

/// How long the thread looks again at once after something moved.
const EAGER: Duration = Duration::from_micros(50);
/// The longest rest between two looks: what a first request after long quiet may wait.
const LONGEST_REST: Duration = Duration::from_micros(500);
/// A rest is this part of the quiet before it, so that looking late adds little to what took long anyhow.
const PART_OF_QUIET: u32 = 8;

/// A queue as the thread sees it.
pub(crate) trait Advance: Send + Sync + fmt::Debug {
    /// One turn, which waits for nothing.
    fn advance(&self) -> Turn;
}

/// The thread. Dropping it ends it and waits for its last turn.
#[derive(Debug)]
pub(crate) struct Progress {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Signal,
}

#[derive(Debug, Default)]
struct State {
    lanes: Vec<Arc<dyn Advance>>,
    /// Counts changes of `lanes`.
    changes: u64,
    ended: bool,
}

impl Progress {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`NicError::System`].
    pub(crate) fn start(name: String) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(move || run(&theirs))
            .map_err(|source| NicError::System { what: "starting the thread that posts requests".to_owned(), source })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Has a queue served from now on.
    pub(crate) fn add(&self, lane: Arc<dyn Advance>) {
        let mut state = self.shared.lock();
        state.lanes.push(lane);
        state.changes += 1;
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Has a queue served no more. A turn of it may still be under way.
    pub(crate) fn remove(&self, lane: &Arc<dyn Advance>) {
        let mut state = self.shared.lock();
        state.lanes.retain(|other| !Arc::ptr_eq(other, lane));
        state.changes += 1;
        drop(state);
        self.shared.changed.notify_all();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_all();
        let Some(thread) = self.thread.take() else { return };
        if thread.join().is_err() {
            tracing::error!("the thread that posts requests has panicked");
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn run(shared: &Shared) {
    let mut lanes: Vec<Arc<dyn Advance>> = Vec::new();
    let mut changes = 0;
    let mut moved = Moment::now();
    loop {
        let found = lanes.iter().map(|lane| lane.advance()).max().unwrap_or(Turn::Stopped);
        if found == Turn::Moved {
            moved = Moment::now();
        }
        let mut state = shared.lock();
        let quiet = moved.elapsed();
        if found != Turn::Moved && quiet > EAGER && state.changes == changes && !state.ended {
            // Where every queue has stopped there is nothing to look at until that changes.
            let rest = (found != Turn::Stopped).then(|| Moment::now().after(LONGEST_REST.min(quiet / PART_OF_QUIET)));
            state = shared.changed.wait(&shared.state, state, rest);
        }
        if state.ended {
            return;
        }
        if state.changes != changes {
            changes = state.changes;
            lanes.clone_from(&state.lanes);
            moved = Moment::now();
        }
        drop(state);
        if found == Turn::Quiet {
            std::thread::yield_now();
        }
    }
}
