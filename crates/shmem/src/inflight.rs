//! Work in flight: what has to be over before its memory is used again, unmapped or freed.
//!
//! Each call that puts work on a stream records an event after it. Captured work has none: an event of a capture has no
//! meaning outside of it, and the caller who launches the graph keeps the order of its replays.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use anabranch_hip::{Event, Stream};

use crate::error::{Error, Result};

/// The work of one user (a team, an allocation, the launches of crates above): an event for each stream.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    last: Mutex<Vec<(usize, Event)>>,
    /// What it is for was dropped: nothing may be launched any more.
    closed: AtomicBool,
    /// The error, where work was put on a stream and no event could be recorded after it: its end can never be shown.
    lost: OnceLock<Arc<anabranch_hip::Error>>,
}

impl InFlight {
    /// Launches in the order of this user's earlier work, on whatever streams that is.
    pub(crate) fn ordered(&self, stream: &Stream, launch: impl FnOnce() -> Result<()>) -> Result<()> {
        if stream.is_capturing()? {
            return launch();
        }
        // Held across the launch, so that two threads do not launch between each other's wait and record.
        let mut last = lock(&self.last);
        // Its own stream's too: the handle may be that of an earlier stream, whose work still runs.
        for (_, event) in last.iter() {
            stream.wait_event(event)?;
        }
        let launched = launch();
        // A launch that failed halfway has left something there.
        let recorded = self.record(&mut last, stream);
        launched?;
        recorded?;
        // It comes after all others.
        last.retain(|(raw, _)| *raw == id(stream));
        Ok(())
    }

    /// Notes that work was put on the stream.
    pub(crate) fn note(&self, stream: &Stream) -> Result<()> {
        match stream.is_capturing() {
            Ok(true) => Ok(()),
            Ok(false) => self.record(&mut lock(&self.last), stream),
            // The work is there all the same.
            Err(error) => Err(self.lose(error)),
        }
    }

    /// From now on it is known that not all of its work can be tracked.
    pub(crate) fn lose(&self, error: anabranch_hip::Error) -> Error {
        let error = self.lost.get_or_init(|| Arc::new(error));
        Error::Untracked { source: Arc::clone(error) }
    }

    fn record(&self, last: &mut Vec<(usize, Event)>, stream: &Stream) -> Result<()> {
        let recorded = (|| -> Result<(), anabranch_hip::Error> {
            if let Some((_, event)) = last.iter().find(|(raw, _)| *raw == id(stream)) {
                // The handle may be that of an earlier stream, which is gone: then its work still counts.
                stream.wait_event(event)?;
                return stream.record(event);
            }
            last.retain(|(_, event)| !event.is_over());
            let event = stream.device().create_event()?;
            stream.record(&event)?;
            last.push((id(stream), event));
            Ok(())
        })();
        recorded.map_err(|error| self.lose(error))
    }

    /// From now on nothing can be launched with it.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Whether all of it is over.
    pub(crate) fn is_over(&self) -> bool {
        self.lost.get().is_none() && self.known_is_over()
    }

    /// Whether all of it that can be seen is over.
    fn known_is_over(&self) -> bool {
        lock(&self.last).iter().all(|(_, event)| event.is_over())
    }
}

fn id(stream: &Stream) -> usize {
    stream.raw() as usize
}

/// An allocation, for launches that use it: they keep it until they are over. Holding this keeps nothing.
#[derive(Clone, Debug)]
pub struct MemoryUse {
    in_flight: Arc<InFlight>,
}

impl MemoryUse {
    pub(crate) fn new(in_flight: &Arc<InFlight>) -> Self {
        Self { in_flight: Arc::clone(in_flight) }
    }
}

/// Launches in the order of `user`'s earlier work, with an event after it for everything in `uses`.
pub(crate) fn launch_tracked(
    user: &InFlight,
    stream: &Stream,
    uses: &[MemoryUse],
    launch: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let mut used: Vec<&Arc<InFlight>> = uses.iter().map(|one| &one.in_flight).collect();
    // One order for all threads, and each once.
    used.sort_by_key(|one| Arc::as_ptr(one));
    used.dedup_by_key(|one| Arc::as_ptr(one));
    let capturing = stream.is_capturing()?;
    // Held across the launch: dropping an allocation checks whether its work is over, and so waits for what is noted here.
    let mut held: Vec<_> = used.iter().map(|one| (*one, lock(&one.last))).collect();
    if held.iter().any(|(one, _)| one.closed.load(Ordering::Acquire)) {
        let problem = "an allocation that this launch uses was dropped or freed before it".to_owned();
        return Err(Error::InvalidState { call: "launch", problem });
    }
    let launched = user.ordered(stream, launch);
    if capturing {
        return launched;
    }
    // All of them, whatever failed: what was launched may use them all.
    let recorded: Vec<_> = held.iter_mut().map(|(one, last)| one.record(last, stream)).collect();
    launched?;
    recorded.into_iter().collect()
}

/// All users of a world.
#[derive(Debug, Default)]
pub(crate) struct InFlightUsers {
    users: Mutex<Vec<Weak<InFlight>>>,
}

impl InFlightUsers {
    pub(crate) fn user(&self) -> Arc<InFlight> {
        let user = Arc::new(InFlight::default());
        let mut users = lock(&self.users);
        users.retain(|known| known.strong_count() > 0);
        users.push(Arc::downgrade(&user));
        user
    }

    fn users(&self) -> Vec<Arc<InFlight>> {
        lock(&self.users).iter().filter_map(Weak::upgrade).collect()
    }

    /// Whether all that can be seen is over.
    pub(crate) fn are_over(&self) -> bool {
        self.users().iter().all(|user| user.known_is_over())
    }

    /// Why some work can never be seen to be over, if there is such.
    pub(crate) fn untracked(&self) -> Result<()> {
        let source = self.users().iter().find_map(|user| user.lost.get().cloned());
        source.map_or(Ok(()), |source| Err(Error::Untracked { source }))
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
