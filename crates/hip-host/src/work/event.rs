//! Events: points of a stream that others wait for and that carry a time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use anabranch_clock::Signal;

use crate::sync::lock;
use crate::work::capture::CapturedPoint;
use crate::work::core::Core;
use crate::work::notice::await_notice;
// What a signal goes with.
use crate::sync::modelled::{Mutex as Guarded, lock as lock_guarded};

/// One recording of an event. Recording again makes a new one; those who wait keep the old one.
#[derive(Debug)]
pub(crate) struct Recording {
    /// The device of the stream that it was given to. A graph's is that of the launch, not that of the event.
    pub(crate) device: u32,
    /// Nanoseconds, or 0 while the stream has not reached it.
    time: AtomicU64,
    reached: Guarded<bool>,
    changed: Signal,
}

impl Recording {
    pub(crate) fn new(device: u32) -> Arc<Self> {
        let (time, reached, changed) = (AtomicU64::new(0), Guarded::new(false), Signal::new());
        Arc::new(Self { device, time, reached, changed })
    }

    pub(crate) fn is_reached(&self) -> bool {
        self.time.load(Ordering::Acquire) != 0
    }

    /// The stream has reached it.
    pub(crate) fn reach(&self, now_ns: u64) {
        self.time.store(now_ns.max(1), Ordering::Release);
        *lock_guarded(&self.reached) = true;
        self.changed.notify_all();
    }

    /// Blocks the calling thread until the stream has reached it.
    pub(crate) fn wait(&self, core: &Core) {
        let mut reached = lock_guarded(&self.reached);
        while !*reached && !core.scheduler.is_hopeless() {
            reached = await_notice(&self.changed, &self.reached, reached, core.scheduler.is_virtual());
        }
    }

    /// Nanoseconds, if reached.
    pub(crate) fn time(&self) -> Option<u64> {
        match self.time.load(Ordering::Acquire) {
            0 => None,
            time => Some(time),
        }
    }
}

/// What an event stands for at the moment.
#[derive(Clone, Debug, Default)]
pub(crate) enum Mark {
    #[default]
    Nothing,
    Recorded(Arc<Recording>),
    Captured(CapturedPoint),
}

/// An event.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) device: u32,
    pub(crate) timed: bool,
    pub(crate) mark: Mutex<Mark>,
}

impl Event {
    pub(crate) fn new(device: u32, timed: bool) -> Self {
        Self { device, timed, mark: Mutex::default() }
    }

    pub(crate) fn mark(&self) -> Mark {
        lock(&self.mark).clone()
    }
}
