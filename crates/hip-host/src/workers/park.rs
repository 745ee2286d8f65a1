//! A thread that parks until another wakes it, where waking one that is not parked is one store and one load.

use core::time::Duration;
use std::sync::OnceLock;

use crate::sync::modelled::{AtomicBool, Ordering, Thread, current, fence, park, park_timeout};

/// One thread's park state. Any number of others wake it.
///
/// A wake is never lost: the waker stores `woken` and then looks at `resting`, the thread stores `resting` and then looks
/// at `woken`, and between the two steps of each stands a sequentially consistent fence. Whichever fence comes first, its
/// store is visible after the other: the waker unparks the thread, or the thread does not park.
#[derive(Debug)]
pub(crate) struct Park {
    resting: AtomicBool,
    woken: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Park {
    pub(crate) fn new() -> Self {
        Self { resting: AtomicBool::new(false), woken: AtomicBool::new(false), thread: OnceLock::new() }
    }

    /// Says which thread rests: to be called by itself, before it does.
    pub(crate) fn is_of_this_thread(&self) {
        let _ = self.thread.set(current());
    }

    /// Wakes the thread. What was written before is visible to it after [`Park::take_woken`].
    pub(crate) fn wake(&self) {
        // Not a plain store: over another waker's it would hide from the thread what that one wrote.
        self.woken.swap(true, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        self.unpark_if_resting();
    }

    fn unpark_if_resting(&self) {
        // Acquire: the thread said who it is before it rested.
        if self.resting.load(Ordering::Acquire)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// Whether the thread was woken since it last asked.
    pub(crate) fn take_woken(&self) -> bool {
        self.woken.swap(false, Ordering::AcqRel)
    }

    /// Rests until woken, for `longest` at most, or now and then for no reason. Not at all when woken since
    /// [`Park::take_woken`], or when `over` says that there is no more to wait for.
    pub(crate) fn park(&self, longest: Option<Duration>, over: impl FnOnce() -> bool) {
        self.resting.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        self.park_unless_woken(longest, over);
    }

    fn park_unless_woken(&self, longest: Option<Duration>, over: impl FnOnce() -> bool) {
        if !self.woken.load(Ordering::Acquire) && !over() {
            match longest {
                Some(longest) => park_timeout(longest),
                None => park(),
            }
        }
        self.resting.store(false, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::atomic::AtomicU32;
    use loom::thread::spawn;
    use std::sync::Arc;

    type Steps = (fn(&Park), fn(&Park, &AtomicBool));

    const SOUND: Steps = (Park::wake, |park, stop| park.park(None, || stop.load(Ordering::SeqCst)));

    /// The worker's loop: it ends when all work has come, or when it is stopped.
    fn work(shared: &(Park, AtomicU32, AtomicBool), wanted: u32, park: fn(&Park, &AtomicBool)) {
        let (own, work, stop) = shared;
        own.is_of_this_thread();
        while !stop.load(Ordering::SeqCst) {
            // Relaxed: taking the wake is what makes the work visible.
            if own.take_woken() && work.load(Ordering::Relaxed) == wanted {
                return;
            }
            park(own, stop);
        }
    }

    fn all_wakes_arrive(wakers: u32, (wake, park): Steps) {
        loom::model(move || {
            let shared = Arc::new((Park::new(), AtomicU32::new(0), AtomicBool::new(false)));
            let worker = spawn({
                let shared = Arc::clone(&shared);
                move || work(&shared, wakers, park)
            });
            let others: Vec<_> = (1..wakers)
                .map(|_| {
                    let shared = Arc::clone(&shared);
                    spawn(move || {
                        shared.1.fetch_add(1, Ordering::Relaxed);
                        wake(&shared.0);
                    })
                })
                .collect();
            shared.1.fetch_add(1, Ordering::Relaxed);
            wake(&shared.0);
            for thread in others.into_iter().chain([worker]) {
                thread.join().unwrap();
            }
        });
    }

    fn a_stop_arrives((wake, park): Steps) {
        loom::model(move || {
            let shared = Arc::new((Park::new(), AtomicU32::new(0), AtomicBool::new(false)));
            let worker = spawn({
                let shared = Arc::clone(&shared);
                move || work(&shared, u32::MAX, park)
            });
            shared.2.store(true, Ordering::SeqCst);
            wake(&shared.0);
            worker.join().unwrap();
        });
    }

    #[test]
    fn loom_no_wake_is_lost() {
        all_wakes_arrive(1, SOUND);
        all_wakes_arrive(2, SOUND);
    }

    #[test]
    fn loom_no_stop_is_lost() {
        a_stop_arrives(SOUND);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn loom_catches_a_waker_that_hides_what_another_wrote() {
        let wake = |park: &Park| {
            park.woken.store(true, Ordering::Release);
            fence(Ordering::SeqCst);
            park.unpark_if_resting();
        };
        all_wakes_arrive(2, (wake, SOUND.1));
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn loom_catches_a_waker_without_its_fence() {
        let wake = |park: &Park| {
            park.woken.swap(true, Ordering::AcqRel);
            park.unpark_if_resting();
        };
        all_wakes_arrive(1, (wake, SOUND.1));
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn loom_catches_a_rester_without_its_fence() {
        let park = |park: &Park, stop: &AtomicBool| {
            park.resting.store(true, Ordering::Release);
            park.park_unless_woken(None, || stop.load(Ordering::SeqCst));
        };
        all_wakes_arrive(1, (SOUND.0, park));
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn loom_catches_a_waker_that_looks_before_it_stores() {
        let wake = |park: &Park| {
            park.unpark_if_resting();
            fence(Ordering::SeqCst);
            park.woken.swap(true, Ordering::AcqRel);
        };
        all_wakes_arrive(1, (wake, SOUND.1));
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn loom_catches_a_rester_that_does_not_look_for_a_stop() {
        a_stop_arrives((SOUND.0, |park, _| park.park(None, || false)));
    }
}
