//! The thread that moves a rank's requests.

use core::time::Duration;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use anabranch_clock::{Moment, Signal};

use super::post_queue::Turn;
use crate::error::{NicError, Result};

/// How long the thread looks again at once after something moved.
const EAGER: Duration = Duration::from_micros(50);
/// The longest rest between two looks: what a first request after long quiet may wait.
const LONGEST_REST: Duration = Duration::from_micros(500);
/// The longest rest while a queue that answers peers when it is polled may have some to answer: each step of what a peer does with this
/// rank's memory waits so long.
const REST_OF_ANSWERING: Duration = Duration::from_micros(50);
/// For how long after something moved it may. Peers that a rank waits for have answered it, or asked it, not long ago; after that the
/// thread would use the processor for nothing.
const ANSWERING: Duration = Duration::from_millis(20);
/// A rest is this part of the quiet before it, so that looking late adds little to what took long anyhow.
const PART_OF_QUIET: u32 = 8;

/// What queues say that the thread served when it panicked.
const PANICKED: &str = "the thread of the host that posts its requests has panicked";

/// A queue as the thread sees it.
pub(crate) trait Advance: Send + Sync + fmt::Debug {
    /// One turn, which waits for nothing.
    fn advance(&self) -> Turn;

    /// Ends the queue with this reason: no thread serves it any more.
    fn end(&self, reason: &str);
}

/// The thread. Dropping it ends it and waits for its last turn.
#[derive(Debug)]
pub struct Progress {
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
    post_queues: Vec<Arc<dyn Advance>>,
    /// Counts changes of `post_queues`.
    changes: u64,
    ended: bool,
    /// The thread has panicked: no queue is served any more.
    panicked: bool,
}

impl Progress {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`NicError::System`].
    pub fn start(name: String) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread =
            std::thread::Builder::new().name(name).spawn(move || serve(&theirs)).map_err(|source| {
                NicError::System { what: "starting the thread that posts requests".to_owned(), source }
            })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Has a queue served from now on.
    pub(crate) fn add(&self, post_queue: Arc<dyn Advance>) {
        let mut state = self.shared.lock();
        if state.panicked {
            drop(state);
            post_queue.end(PANICKED);
            return;
        }
        state.post_queues.push(post_queue);
        state.changes += 1;
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Has a queue served no more. A turn of it may still be under way.
    pub(crate) fn remove(&self, post_queue: &Arc<dyn Advance>) {
        let mut state = self.shared.lock();
        state.post_queues.retain(|other| !Arc::ptr_eq(other, post_queue));
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
            tracing::error!("{PANICKED}");
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves the queues until the end. Kernels that wait for an unserved queue would fail only at their deadline, without
/// a reason, so a panic ends all queues.
fn serve(shared: &Shared) {
    // The queues are ended, whatever state the panic left them in; `State` is never changed in parts.
    if catch_unwind(AssertUnwindSafe(|| run(shared))).is_ok() {
        return;
    }
    tracing::error!("{PANICKED}");
    let mut state = shared.lock();
    state.panicked = true;
    let post_queues = std::mem::take(&mut state.post_queues);
    drop(state);
    for post_queue in post_queues {
        post_queue.end(PANICKED);
    }
}

/// How long the thread rests after so much quiet.
fn rest_after(quiet: Duration, found: Turn) -> Duration {
    let longest =
        if found == Turn::Answering && quiet <= ANSWERING { REST_OF_ANSWERING } else { LONGEST_REST };
    longest.min(quiet / PART_OF_QUIET)
}

fn run(shared: &Shared) {
    let mut post_queues: Vec<Arc<dyn Advance>> = Vec::new();
    let mut changes = 0;
    let mut moved = Moment::now();
    loop {
        let found = post_queues.iter().map(|post_queue| post_queue.advance()).max().unwrap_or(Turn::Stopped);
        if found == Turn::Moved {
            moved = Moment::now();
        }
        let mut state = shared.lock();
        let quiet = moved.elapsed();
        if found != Turn::Moved && quiet > EAGER && state.changes == changes && !state.ended {
            // Where every queue has stopped there is nothing to look at until that changes.
            let rest = (found != Turn::Stopped).then(|| Moment::now().after(rest_after(quiet, found)));
            state = shared.changed.wait(&shared.state, state, rest);
        }
        if state.ended {
            return;
        }
        if state.changes != changes {
            changes = state.changes;
            post_queues.clone_from(&state.post_queues);
            moved = Moment::now();
        }
        drop(state);
        if matches!(found, Turn::Quiet | Turn::Answering) {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use anabranch_clock::sleep;

    use super::*;

    /// A queue with an amount of work, and a count of its turns.
    #[derive(Debug, Default)]
    struct Counted {
        work: AtomicU64,
        turns: AtomicU64,
        panics: AtomicBool,
        ended: OnceLock<String>,
    }

    impl Advance for Counted {
        fn advance(&self) -> Turn {
            self.turns.fetch_add(1, Ordering::Relaxed);
            assert!(!self.panics.load(Ordering::Relaxed), "a panic that a test wants");
            let less = |work: u64| work.checked_sub(1);
            match self.work.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) {
                Ok(_) => Turn::Moved,
                Err(_) => Turn::Quiet,
            }
        }

        fn end(&self, reason: &str) {
            self.ended.set(reason.to_owned()).expect("it ends once");
        }
    }

    fn wait_until(what: impl Fn() -> bool) {
        let until = Moment::now().after(Duration::from_secs(60));
        while !what() {
            assert!(!until.remaining().is_zero(), "it does not happen");
            sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn queues_are_served_in_turn_from_when_they_are_added_to_when_they_are_removed() {
        let progress = Progress::start("test".to_owned()).unwrap();
        let post_queues: Vec<_> =
            (0..3).map(|_| Arc::new(Counted { work: 1000.into(), ..Counted::default() })).collect();
        let handles: Vec<Arc<dyn Advance>> =
            post_queues.iter().map(|post_queue| Arc::clone(post_queue) as Arc<dyn Advance>).collect();
        for handle in &handles {
            progress.add(Arc::clone(handle));
        }
        wait_until(|| post_queues.iter().all(|post_queue| post_queue.work.load(Ordering::Relaxed) == 0));
        // After a quiet while there is work again.
        sleep(Duration::from_millis(5));
        post_queues[1].work.store(10, Ordering::Relaxed);
        wait_until(|| post_queues[1].work.load(Ordering::Relaxed) == 0);
        progress.remove(&handles[1]);
        // The turn under way is over when others have had two.
        let seen = post_queues[0].turns.load(Ordering::Relaxed);
        wait_until(|| post_queues[0].turns.load(Ordering::Relaxed) > seen + 2);
        let removed = post_queues[1].turns.load(Ordering::Relaxed);
        wait_until(|| post_queues[0].turns.load(Ordering::Relaxed) > seen + 10);
        assert_eq!(post_queues[1].turns.load(Ordering::Relaxed), removed);
        drop(progress);
        let ended = post_queues[0].turns.load(Ordering::Relaxed);
        sleep(Duration::from_millis(5));
        assert_eq!(post_queues[0].turns.load(Ordering::Relaxed), ended, "the thread is gone");
    }

    #[test]
    fn a_panic_ends_every_queue_with_words() {
        let progress = Progress::start("test".to_owned()).unwrap();
        let post_queues: Vec<_> = (0..3).map(|_| Arc::new(Counted::default())).collect();
        for post_queue in &post_queues[..2] {
            progress.add(Arc::clone(post_queue) as Arc<dyn Advance>);
        }
        wait_until(|| post_queues[0].turns.load(Ordering::Relaxed) > 0);
        post_queues[1].panics.store(true, Ordering::Relaxed);
        wait_until(|| post_queues[..2].iter().all(|post_queue| post_queue.ended.get().is_some()));
        // One that comes later hears it too.
        progress.add(Arc::clone(&post_queues[2]) as Arc<dyn Advance>);
        assert_eq!(post_queues[2].ended.get().map(String::as_str), Some(PANICKED));
        assert_eq!(post_queues[0].ended.get(), post_queues[1].ended.get());
    }

    #[test]
    fn rests_grow_with_the_quiet_and_less_where_peers_may_wait() {
        let millis = Duration::from_millis;
        for (quiet, found, expected) in [
            (Duration::from_micros(80), Turn::Quiet, Duration::from_micros(10)),
            (Duration::from_micros(80), Turn::Answering, Duration::from_micros(10)),
            (millis(2), Turn::Quiet, Duration::from_micros(250)),
            (millis(2), Turn::Answering, Duration::from_micros(50)),
            (millis(20), Turn::Answering, Duration::from_micros(50)),
            (millis(21), Turn::Answering, Duration::from_micros(500)),
            (millis(20), Turn::Quiet, Duration::from_micros(500)),
        ] {
            assert_eq!(rest_after(quiet, found), expected, "{quiet:?} {found:?}");
        }
    }

    #[test]
    fn a_thread_with_nothing_to_do_rests() {
        let progress = Progress::start("test".to_owned()).unwrap();
        let post_queue = Arc::new(Counted::default());
        progress.add(Arc::clone(&post_queue) as Arc<dyn Advance>);
        wait_until(|| post_queue.turns.load(Ordering::Relaxed) > 0);
        // Rests are half a millisecond after 4 ms of quiet; before that there may be some hundred turns.
        sleep(Duration::from_millis(10));
        let begun = Moment::now();
        let before = post_queue.turns.load(Ordering::Relaxed);
        sleep(Duration::from_millis(50));
        let turns = post_queue.turns.load(Ordering::Relaxed) - before;
        // Twice as many: waits may end early.
        let most = 2 * begun.elapsed().as_micros() / LONGEST_REST.as_micros();
        assert!(u128::from(turns) <= most, "{turns} turns in {:?}", begun.elapsed());
    }
}
