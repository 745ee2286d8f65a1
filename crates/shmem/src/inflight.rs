//! Work in flight: what has to be over before its memory is used again, unmapped or freed.
//!
//! Each call that puts work on a stream records an event after it, which the work's users share where they can: each record costs the host and
//! the device time. Captured work is not tracked: an event of a capture has no meaning outside of it, and the caller who launches the graph keeps the
//! order of its replays.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use anabranch_hip::{Event, Stream};

use crate::error::{Error, Result};

/// Events that are used again: creating one costs more than a launch.
#[derive(Debug, Default)]
pub(crate) struct EventPool(Mutex<Vec<Event>>);

impl EventPool {
    /// An event after the work on the stream so far.
    pub(crate) fn record(
        self: &Arc<Self>,
        stream: &Stream,
    ) -> std::result::Result<LaunchEvent, anabranch_hip::Error> {
        let free = {
            let mut free = lock(&self.0);
            // All are of one device, but for streams of others that a caller gave.
            let place = free.iter().rposition(|event| event.device().is_same(stream.device()));
            place.map(|place| free.swap_remove(place))
        };
        let event = free.map_or_else(|| stream.device().create_event(), Ok)?;
        let recorded = LaunchEvent(Arc::new(Pooled { pool: Some(Arc::clone(self)), event: Some(event) }));
        stream.record(&recorded)?;
        Ok(recorded)
    }
}

#[derive(Debug)]
struct Pooled {
    /// Where the event returns to.
    pool: Option<Arc<EventPool>>,
    /// There until the drop.
    event: Option<Event>,
}

impl Drop for Pooled {
    fn drop(&mut self) {
        // Streams that wait for it wait for what it recorded before.
        if let Some(pool) = &self.pool {
            lock(&pool.0).extend(self.event.take());
        }
    }
}

/// An event after a launch. All that wait for the launch share it; until all have dropped it, it stands for that launch.
#[derive(Clone, Debug)]
pub struct LaunchEvent(Arc<Pooled>);

impl Deref for LaunchEvent {
    type Target = Event;

    fn deref(&self) -> &Event {
        #[expect(clippy::expect_used, reason = "as the message says")]
        self.0.event.as_ref().expect("the event is taken only by the drop of the last owner")
    }
}

impl LaunchEvent {
    /// An event that is never used for anything else.
    pub(crate) fn of(event: Event) -> Self {
        Self(Arc::new(Pooled { pool: None, event: Some(event) }))
    }

    /// Whether both are the event of one launch.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The work of one user (a team, an allocation, the launches of crates above): an event for each stream.
#[derive(Debug)]
pub(crate) struct InFlight {
    pool: Arc<EventPool>,
    last: Mutex<Vec<(usize, LaunchEvent)>>,
    /// What it is for was dropped: nothing may be launched any more.
    closed: AtomicBool,
    /// The error, where work was put on a stream and no event could be recorded after it: its end can never be shown.
    lost: OnceLock<Arc<anabranch_hip::Error>>,
}

impl InFlight {
    fn new(pool: &Arc<EventPool>) -> Self {
        let (last, closed, lost) = (Mutex::default(), AtomicBool::new(false), OnceLock::new());
        Self { pool: Arc::clone(pool), last, closed, lost }
    }

    /// Notes that work was put on the stream, by the event after it. `None` for captured work, which is not in flight.
    pub(crate) fn note(&self, stream: &Stream) -> Result<Option<LaunchEvent>> {
        match stream.is_capturing() {
            Ok(true) => return Ok(None),
            Ok(false) => {}
            // The work is there all the same.
            Err(error) => return Err(self.lose(error)),
        }
        let mut last = lock(&self.last);
        let waited = earlier(&last, stream).try_for_each(|event| stream.wait_event(event));
        let event = waited.and_then(|()| self.pool.record(stream)).map_err(|error| self.lose(error))?;
        replace(&mut last, stream, &event);
        Ok(Some(event))
    }

    /// From now on it is known that not all of its work can be tracked.
    pub(crate) fn lose(&self, error: anabranch_hip::Error) -> Error {
        self.lose_shared(&Arc::new(error))
    }

    fn lose_shared(&self, error: &Arc<anabranch_hip::Error>) -> Error {
        let error = self.lost.get_or_init(|| Arc::clone(error));
        Error::Untracked { source: Arc::clone(error) }
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

/// What a new event of the stream replaces. The handle may be that of an earlier stream, which is gone and whose work still runs: so the
/// stream waits for it before.
fn earlier<'a>(
    last: &'a [(usize, LaunchEvent)],
    stream: &Stream,
) -> impl Iterator<Item = &'a LaunchEvent> + use<'a> {
    let own = id(stream);
    last.iter().filter(move |(raw, _)| *raw == own).map(|(_, event)| event)
}

fn replace(last: &mut Vec<(usize, LaunchEvent)>, stream: &Stream, event: &LaunchEvent) {
    if let Some((_, before)) = last.iter_mut().find(|(raw, _)| *raw == id(stream)) {
        *before = event.clone();
        return;
    }
    last.retain(|(_, event)| !event.is_over());
    last.push((id(stream), event.clone()));
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

/// Launches in the order of `user`'s earlier work, on whatever streams that is. One event after it stands for it in `user` and in everything
/// in `uses`.
pub(crate) fn launch_tracked(
    user: &InFlight,
    stream: &Stream,
    uses: &[MemoryUse],
    launch: impl FnOnce() -> Result<()>,
) -> Result<LaunchEvent> {
    let mut used: Vec<&Arc<InFlight>> = uses.iter().map(|one| &one.in_flight).collect();
    // One order for all threads, and each once.
    used.sort_by_key(|one| Arc::as_ptr(one));
    used.dedup_by_key(|one| Arc::as_ptr(one));
    let is_captured = stream.is_capturing()?;
    // Held across the launch: dropping an allocation checks whether its work is over, and so waits for what is noted here.
    let mut held: Vec<_> = used.iter().map(|one| (*one, lock(&one.last))).collect();
    if held.iter().any(|(one, _)| one.closed.load(Ordering::Acquire)) {
        let problem = "an allocation that this launch uses was dropped or freed before it".to_owned();
        return Err(Error::InvalidState { call: "launch", problem });
    }
    if is_captured {
        launch()?;
        return Ok(user.pool.record(stream)?);
    }
    // Two threads do not launch between each other's wait and record.
    let mut own = lock(&user.last);
    // Mostly all are one event: that of the user's launch before.
    let mut before: Vec<&LaunchEvent> = own.iter().map(|(_, event)| event).collect();
    for event in held.iter().flat_map(|(_, last)| earlier(last, stream)) {
        if !before.iter().any(|one| one.is_same(event)) {
            before.push(event);
        }
    }
    before.into_iter().try_for_each(|event| stream.wait_event(event))?;
    let launched = launch();
    // A launch that failed halfway has left something there, which may use them all.
    let recorded = user.pool.record(stream).map_err(Arc::new);
    match &recorded {
        Ok(event) => {
            // It comes after all others of the user.
            own.clear();
            own.push((id(stream), event.clone()));
            for (_, last) in &mut held {
                replace(last, stream, event);
            }
        }
        Err(error) => {
            for (one, _) in &held {
                drop(one.lose_shared(error));
            }
        }
    }
    let recorded = recorded.map_err(|error| user.lose_shared(&error));
    launched?;
    recorded
}

/// All users of a world.
#[derive(Debug, Default)]
pub(crate) struct InFlightUsers {
    pool: Arc<EventPool>,
    users: Mutex<Vec<Weak<InFlight>>>,
}

impl InFlightUsers {
    pub(crate) fn pool(&self) -> &Arc<EventPool> {
        &self.pool
    }

    pub(crate) fn user(&self) -> Arc<InFlight> {
        let user = Arc::new(InFlight::new(&self.pool));
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
