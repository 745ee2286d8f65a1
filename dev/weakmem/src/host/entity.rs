//! What takes turns, as far as everybody has to know to draw who is next.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar};

/// A stream, an engine, a block or an attached thread.
#[derive(Debug)]
pub(super) struct Entity {
    /// The rank that it works for.
    pub(super) owner: u32,
    pub(super) priority: u64,
    pub(super) what: What,
}

#[derive(Debug)]
pub(super) enum What {
    /// A stream or an engine, which looks again after any change since the one that it has seen.
    Task {
        seen: Option<u64>,
        waits_for: &'static str,
    },
    /// A block: whether a lane can go on at once, and the oldest count of changes of memory that a lane polls behind.
    Block {
        ready: bool,
        polls: Option<u64>,
        again: bool,
        kernel: Arc<str>,
        index: u32,
    },
    Seat(SeatState),
}

/// An attached thread.
#[derive(Debug)]
pub(super) struct SeatState {
    pub(super) seat: u32,
    pub(super) wakes: Arc<Condvar>,
    pub(super) waits: Option<Wait>,
    /// Its last switching point.
    pub(super) at: &'static str,
}

/// What a thread waits for.
#[derive(Debug)]
pub(super) struct Wait {
    pub(super) signal: Option<(Arc<AtomicU64>, u64)>,
    pub(super) until_ns: Option<u64>,
}

/// What readiness depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    /// All changes, of memory only, and of the clock.
    pub(super) changes: u64,
    pub(super) memory: u64,
    pub(super) ns: u64,
}

impl Wait {
    fn is_over(&self, now: Now) -> bool {
        let notified = |(counter, seen): &(Arc<AtomicU64>, u64)| counter.load(Ordering::SeqCst) != *seen;
        self.signal.as_ref().is_some_and(notified) || self.until_ns.is_some_and(|until| until <= now.ns)
    }
}

impl Entity {
    /// Whether it could do something. `lost` says that its device is lost: its blocks are to end.
    pub(super) fn is_ready(&self, now: Now, lost: bool) -> bool {
        match &self.what {
            What::Task { seen, .. } => seen.is_none_or(|seen| seen != now.changes),
            What::Block { ready, polls, again, .. } => {
                lost || *ready || *again || polls.is_some_and(|seen| seen != now.memory)
            }
            What::Seat(seat) => seat.waits.as_ref().is_none_or(|wait| wait.is_over(now)),
        }
    }

    /// What it is and waits for, in words.
    pub(super) fn describe(&self) -> String {
        match &self.what {
            What::Task { waits_for, .. } if self.owner == super::NO_OWNER => {
                format!("an engine waits for {waits_for}")
            }
            What::Task { waits_for, .. } => {
                format!("a stream of device {} waits for {waits_for}", self.owner)
            }
            What::Block { polls, kernel, index, .. } => {
                let how = if polls.is_some() { "polls" } else { "cannot go on" };
                format!("device {}, kernel {kernel}, block {index} {how}", self.owner)
            }
            What::Seat(seat) => {
                let SeatState { seat, at, waits, .. } = seat;
                let until = waits.as_ref().and_then(|wait| wait.until_ns);
                let until =
                    until.map_or_else(|| "without deadline".to_owned(), |ns| format!("until {ns} ns"));
                format!("a thread of rank {} (seat {seat}) waits in {at}, {until}", self.owner)
            }
        }
    }
}
