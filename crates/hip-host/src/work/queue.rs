//! What a stream has to do, in order: an addition to an idle queue starts a worker, and a worker that
//! finds it empty leaves. Which of the two acts is decided under one lock, so nothing that is added is forgotten.

use std::collections::VecDeque;

use anabranch_clock::Signal;

use crate::sync::modelled::{AtomicU64, Mutex, Ordering, lock};
use crate::work::notice::await_notice;

/// A queue that at most one worker at a time works off.
#[derive(Debug)]
pub(crate) struct WorkQueue<T> {
    state: Mutex<State<T>>,
    /// Items done, in order; written under `state`.
    completed: AtomicU64,
    progressed: Signal,
}

#[derive(Debug)]
struct State<T> {
    queue: VecDeque<T>,
    submitted: u64,
    /// Whether a worker works on the queue.
    active: bool,
    waiters: u32,
}

/// What came of [`WorkQueue::push`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pushed {
    /// The number of items up to this one.
    pub(crate) ticket: u64,
    /// No worker serves the queue: the caller starts a worker, which calls [`WorkQueue::next`] until it is `None`.
    pub(crate) start: bool,
}

impl<T> WorkQueue<T> {
    pub(crate) fn new() -> Self {
        let state = State { queue: VecDeque::new(), submitted: 0, active: false, waiters: 0 };
        Self { state: Mutex::new(state), completed: AtomicU64::new(0), progressed: Signal::new() }
    }

    pub(crate) fn push(&self, item: T) -> Pushed {
        let mut state = lock(&self.state);
        state.queue.push_back(item);
        state.submitted += 1;
        let start = !core::mem::replace(&mut state.active, true);
        Pushed { ticket: state.submitted, start }
    }

    /// For the worker: the next item. `None` ends its claim on the queue.
    pub(crate) fn next(&self) -> Option<T> {
        let mut state = lock(&self.state);
        let next = state.queue.pop_front();
        state.active = next.is_some();
        next
    }

    /// For the worker: one more item is done.
    pub(crate) fn complete(&self) {
        let state = lock(&self.state);
        self.completed.fetch_add(1, Ordering::Release);
        let waiters = state.waiters;
        drop(state);
        if waiters > 0 {
            self.progressed.notify_all();
        }
    }

    /// How many items are done.
    pub(crate) fn completed(&self) -> u64 {
        self.completed.load(Ordering::Acquire)
    }

    /// How many items were pushed.
    pub(crate) fn submitted(&self) -> u64 {
        lock(&self.state).submitted
    }

    /// Whether all that was pushed is done.
    pub(crate) fn is_idle(&self) -> bool {
        let state = lock(&self.state);
        self.completed() == state.submitted
    }

    /// Blocks the calling thread until the item with this ticket is done, or nothing will be any more. `driven` says that the
    /// thread's driver is the machine's own: another one does not know who works off the queue.
    pub(crate) fn wait(&self, ticket: u64, driven: bool, is_hopeless: impl Fn() -> bool) {
        let mut state = lock(&self.state);
        state.waiters += 1;
        while self.completed() < ticket && !is_hopeless() {
            state = await_notice(&self.progressed, &self.state, state, driven);
        }
        state.waiters -= 1;
    }

    /// Drops what is queued.
    pub(crate) fn forget(&self) {
        // Dropped without the lock: what an item owns may use the queue.
        let forgotten = core::mem::take(&mut lock(&self.state).queue);
        drop(forgotten);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::atomic::AtomicBool;
    use loom::thread::{JoinHandle, spawn};
    use std::sync::Arc;

    #[derive(Clone, Copy)]
    struct Steps {
        next: fn(&WorkQueue<u32>) -> Option<u32>,
        complete: fn(&WorkQueue<u32>),
    }

    const SOUND: Steps = Steps { next: WorkQueue::next, complete: WorkQueue::complete };

    struct Shared {
        queue: WorkQueue<u32>,
        working: AtomicBool,
    }

    /// A task as the scheduler runs it; two at once would be a panic.
    fn worker(shared: &Arc<Shared>, steps: Steps) -> JoinHandle<()> {
        let shared = Arc::clone(shared);
        spawn(move || {
            loop {
                let Some(_) = (steps.next)(&shared.queue) else { return };
                assert!(!shared.working.swap(true, Ordering::AcqRel), "two work on one queue");
                shared.working.store(false, Ordering::Release);
                (steps.complete)(&shared.queue);
            }
        })
    }

    fn push(shared: &Arc<Shared>, item: u32, steps: Steps) -> (u64, Option<JoinHandle<()>>) {
        let pushed = shared.queue.push(item);
        (pushed.ticket, pushed.start.then(|| worker(shared, steps)))
    }

    /// Two items, one after the other, and a wait for both: a lost item or wake is a deadlock.
    fn all_is_done(steps: Steps) {
        loom::model(move || {
            let shared = Arc::new(Shared { queue: WorkQueue::new(), working: AtomicBool::new(false) });
            let (_, first) = push(&shared, 1, steps);
            let (ticket, second) = push(&shared, 2, steps);
            shared.queue.wait(ticket, false, || false);
            assert_eq!(shared.queue.completed(), 2);
            assert!(shared.queue.is_idle());
            for thread in [first, second].into_iter().flatten() {
                thread.join().unwrap();
            }
        });
    }

    #[test]
    fn loom_nothing_queued_is_forgotten() {
        all_is_done(SOUND);
    }

    #[test]
    fn loom_two_who_push_at_once_start_one_worker_at_a_time() {
        loom::model(|| {
            let shared = Arc::new(Shared { queue: WorkQueue::new(), working: AtomicBool::new(false) });
            let other = spawn({
                let shared = Arc::clone(&shared);
                move || push(&shared, 1, SOUND).1
            });
            let (_, own) = push(&shared, 2, SOUND);
            let theirs = other.join().unwrap();
            shared.queue.wait(2, false, || false);
            for thread in [own, theirs].into_iter().flatten() {
                thread.join().unwrap();
            }
        });
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn loom_catches_a_claim_that_ends_after_the_lock() {
        let next = |queue: &WorkQueue<u32>| {
            let next = lock(&queue.state).queue.pop_front();
            lock(&queue.state).active = next.is_some();
            next
        };
        all_is_done(Steps { next, ..SOUND });
    }

    #[test]
    #[should_panic(expected = "two work on one queue")]
    fn loom_catches_a_claim_that_ends_with_the_last_item() {
        let next = |queue: &WorkQueue<u32>| {
            let mut state = lock(&queue.state);
            let next = state.queue.pop_front();
            state.active = !state.queue.is_empty();
            next
        };
        all_is_done(Steps { next, ..SOUND });
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn loom_catches_a_completion_that_looks_for_waiters_first() {
        let complete = |queue: &WorkQueue<u32>| {
            let waiters = lock(&queue.state).waiters;
            queue.completed.fetch_add(1, Ordering::Release);
            if waiters > 0 {
                queue.progressed.notify_all();
            }
        };
        all_is_done(Steps { complete, ..SOUND });
    }
}
