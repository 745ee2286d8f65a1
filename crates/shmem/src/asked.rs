//! A rank that is waited for in vain tells what it is doing, when a rank that waits for it asks.
//!
//! A thread of each world waits for a key at the rendezvous; who asks sets it. So nothing is exchanged until a wait has failed. From then on
//! the answer is made anew every second, so that who asks later gets no old one. Under a driver, which runs the threads of a simulation one at a time, nobody answers.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anabranch_bootstrap::{Deadline, Rendezvous};
use anabranch_clock::{Moment, Signal};

use crate::activity::Activity;
use crate::error::{Error, Result};
use crate::world::World;

/// How long an answer may take. Longer than it takes on a busy machine, short beside the deadline that has passed.
const ANSWER: Duration = Duration::from_secs(1);
/// How old an answer may be.
const REFRESH: Duration = Duration::from_secs(1);
/// Longer than any world lives.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Answering {
    rendezvous: Arc<dyn Rendezvous>,
    key: String,
    ended: Arc<Ended>,
    thread: Option<JoinHandle<()>>,
}

/// Whether the world has ended, so that the thread is to end without an answer.
#[derive(Debug, Default)]
struct Ended {
    has_ended: Mutex<bool>,
    changed: Signal,
}

/// The key that is set to ask a rank. Its own wait for it is no place where the rank waits for others.
fn asked(world: u64, rank: u32) -> String {
    format!(".shmem/{world:016x}/asked/{rank}")
}

fn answered(world: u64, rank: u32) -> String {
    format!("shmem/{world:016x}/doing/{rank}")
}

impl World {
    /// Begins to answer. Where that fails, the others have no step left in which they would hear of it, and the world works without.
    pub(crate) fn answer(&self) {
        if let Err(error) = self.begin_to_answer() {
            tracing::warn!(%error, "this rank will not say what it is doing when others wait for it");
        }
    }

    fn begin_to_answer(&self) -> Result<()> {
        let inner = &self.inner;
        if self.size() == 1 || inner.device.runtime().driver().is_some() {
            return Ok(());
        }
        let (world, rank) = (inner.collectives.world(), self.rank().get());
        let (rendezvous, activity) =
            (Arc::clone(self.rendezvous()), Arc::clone(inner.collectives.activity()));
        let (key, answer) = (asked(world, rank), answered(world, rank));
        let waits = (Arc::clone(&rendezvous), key.clone());
        let ended = Arc::new(Ended::default());
        let until = Arc::clone(&ended);
        let named = std::thread::Builder::new().name(format!("answers of rank {rank}"));
        let started = named.spawn(move || wait_and_answer(waits, &answer, &activity, &until));
        let thread =
            started.map_err(|source| Error::Thread { what: "the answers to other ranks", source })?;
        let answering = Answering { rendezvous, key, ended, thread: Some(thread) };
        *inner.answering.lock().unwrap_or_else(PoisonError::into_inner) = Some(answering);
        Ok(())
    }

    /// What a rank is doing, as the rest of a sentence that begins with the rank; `None` where nobody can tell.
    pub(crate) fn doing_of(&self, rank: u32) -> Option<String> {
        if rank == self.rank().get() {
            return Some(self.inner.collectives.activity().doing());
        }
        if rank >= self.size() || self.inner.device.runtime().driver().is_some() {
            return None;
        }
        let world = self.inner.collectives.world();
        let rendezvous = self.rendezvous();
        rendezvous.set(&asked(world, rank), b"").ok()?;
        match rendezvous.wait(&answered(world, rank), Deadline::after(ANSWER)) {
            Ok(text) => String::from_utf8(text).ok(),
            Err(anabranch_bootstrap::Error::KeyNotSet { .. }) => {
                Some(format!("does not say within {ANSWER:?} what it is doing: its process may be stopped"))
            }
            Err(_) => None,
        }
    }
}

fn wait_and_answer(
    (rendezvous, key): (Arc<dyn Rendezvous>, String),
    answer: &str,
    activity: &Activity,
    ended: &Ended,
) {
    // An error is the end of the rendezvous: nobody asks any more.
    if rendezvous.wait(&key, Deadline::after(FOREVER)).is_err() {
        return;
    }
    let mut has_ended = ended.has_ended.lock().unwrap_or_else(PoisonError::into_inner);
    while !*has_ended {
        drop(has_ended);
        if let Err(error) = rendezvous.set(answer, activity.doing().as_bytes()) {
            tracing::debug!(%error, "what this rank is doing could not be told");
            return;
        }
        has_ended = ended.has_ended.lock().unwrap_or_else(PoisonError::into_inner);
        if !*has_ended {
            let next = Moment::now().after(REFRESH);
            has_ended = ended.changed.wait(&ended.has_ended, has_ended, Some(next));
        }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        *self.ended.has_ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.ended.changed.notify_all();
        // The thread's own wait for the key ends with this, or has ended with the rendezvous.
        if let Err(error) = self.rendezvous.set(&self.key, b"") {
            tracing::debug!(%error, "the rendezvous has ended before the answers");
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the thread that answers other ranks panicked");
        }
    }
}
