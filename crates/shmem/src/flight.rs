//! Work in flight: what has to be over before its memory is used again, unmapped or freed.
//!
//! Whoever puts work of this library on a stream leaves an event behind it. Captured work leaves none: an event of a capture
//! means nothing outside of it, and replays are in the hands of whoever launches the graph.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLockReadGuard, Weak};
use std::time::Duration;

use anabranch_clock::Moment;
use anabranch_hip::{Event, HipError, Stream};

use crate::error::{Error, Result};
use crate::heap::ledger::AllocationId;
use crate::residency::ResidencyPermit;
use crate::tables::Table;
use crate::watch::{DRAIN, rest};
use crate::world::{Connections, Inner, World};

/// The codes of calls that have to do with captures.
const REFUSED_IN_CAPTURE: std::ops::RangeInclusive<u32> =
    HipError::STREAM_CAPTURE_UNSUPPORTED.0..=HipError::STREAM_CAPTURE_WRONG_THREAD.0;

/// The work of one user (a team, an allocation, the launches of crates above): an event for each stream.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    last: Mutex<Vec<(usize, Event)>>,
    /// What it is for was dropped: nothing may be launched any more.
    closed: AtomicBool,
    /// Work went onto a stream, and no event could be left behind it: that it is over can never be shown. Why.
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
        // It is behind all others.
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
            last.retain(|(_, event)| !is_over(event));
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
        lock(&self.last).iter().all(|(_, event)| is_over(event))
    }
}

fn id(stream: &Stream) -> usize {
    stream.raw() as usize
}

/// Work that ended with an error is over too. Runtimes that refuse to look, because this thread captures, have said nothing.
fn is_over(event: &Event) -> bool {
    event.is_done().unwrap_or_else(|error| {
        let refused = error.code().is_none_or(|code| REFUSED_IN_CAPTURE.contains(&code.0));
        tracing::debug!(%error, refused, "an event behind work in flight gave an error");
        !refused
    })
}

/// An allocation, for launches that use it: they keep it until they are over. Holding this keeps nothing.
#[derive(Clone, Debug)]
pub struct MemoryUse {
    flight: Arc<InFlight>,
}

impl MemoryUse {
    pub(crate) fn new(flight: &Arc<InFlight>) -> Self {
        Self { flight: Arc::clone(flight) }
    }
}

/// Launches in the order of `user`'s earlier work, with an event behind it for everything in `uses`.
pub(crate) fn launch_tracked(
    user: &InFlight,
    stream: &Stream,
    uses: &[MemoryUse],
    launch: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let mut flights: Vec<&Arc<InFlight>> = uses.iter().map(|one| &one.flight).collect();
    // One order for all threads, and each once.
    flights.sort_by_key(|flight| Arc::as_ptr(flight));
    flights.dedup_by_key(|flight| Arc::as_ptr(flight));
    let capturing = stream.is_capturing()?;
    // Held across the launch: whoever drops an allocation looks whether its work is over, and so waits for what is noted here.
    let mut held: Vec<_> = flights.iter().map(|flight| (*flight, lock(&flight.last))).collect();
    if held.iter().any(|(flight, _)| flight.closed.load(Ordering::Acquire)) {
        return Err(Error::MemoryGone);
    }
    let launched = user.ordered(stream, launch);
    if capturing {
        return launched;
    }
    // All of them, whatever failed: what was launched may use them all.
    let recorded: Vec<_> = held.iter_mut().map(|(flight, last)| flight.record(last, stream)).collect();
    launched?;
    recorded.into_iter().collect()
}

/// What is given back when work is over.
#[derive(Debug)]
pub(crate) enum Keep {
    Allocation(AllocationId),
    Team { view: u64, _table: Table, _permit: ResidencyPermit, _held: Vec<Box<dyn Held>> },
    Table { _table: Table },
}

/// What a team keeps for the crates above until the last launch is over: kernels, shares of the device.
pub(crate) trait Held: Send + fmt::Debug {}
impl<T: Send + fmt::Debug> Held for T {}

/// All work in flight of a world.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    users: Mutex<Vec<Weak<InFlight>>>,
    parked: Mutex<Vec<(Arc<InFlight>, Keep)>>,
}

impl Flights {
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
    fn are_over(&self) -> bool {
        self.users().iter().all(|user| user.known_is_over())
    }

    /// Why some work can never be seen to be over, if there is such.
    fn untracked(&self) -> Result<()> {
        let source = self.users().iter().find_map(|user| user.lost.get().cloned());
        source.map_or(Ok(()), |source| Err(Error::Untracked { source }))
    }
}

impl Inner {
    /// Gives back at once, or as soon as the work is over. Waits for nobody.
    pub(crate) fn park(&self, flight: &Arc<InFlight>, keep: Keep) {
        lock(&self.flights.parked).push((Arc::clone(flight), keep));
        self.sweep();
    }

    /// Gives back what waited for work that is over now.
    pub(crate) fn sweep(&self) {
        let over: Vec<_> = {
            let mut parked = lock(&self.flights.parked);
            parked.extract_if(.., |(flight, _)| flight.is_over()).collect()
        };
        for (_, keep) in over {
            match keep {
                Keep::Allocation(id) => lock(&self.ledger).drop_allocation(id),
                // A fault record of its last launch may still be read.
                Keep::Team { view, .. } if !self.alarm.is_raised().unwrap_or(true) => {
                    lock(&self.groups).remove(&view);
                }
                Keep::Team { .. } | Keep::Table { .. } => {}
            }
        }
    }

    /// Waits for all work in flight that the world knows of: what was launched under a [`LaunchGuard`], barriers and copies of
    /// teams. Others' work on the device is not waited for, but for what precedes it on the same streams.
    ///
    /// The wait ends with [`Error::StreamBusy`] a second after the operation deadline, or a second after the world's failure.
    /// Work that left no event cannot be waited for: [`Error::Untracked`], when all other work is over.
    pub(crate) fn drain(&self) -> Result<()> {
        let start = Moment::now();
        let whole = self.config.operation_deadline.saturating_add(DRAIN);
        let mut raised_at: Option<Moment> = None;
        for polls in 0u32.. {
            if self.flights.are_over() && self.service.is_idle()? {
                return self.flights.untracked();
            }
            if raised_at.is_none() && self.alarm.is_raised()? {
                raised_at = Some(Moment::now());
            }
            let too_long = |at: Moment, limit: Duration| at.elapsed() > limit;
            if raised_at.is_some_and(|at| too_long(at, DRAIN)) || too_long(start, whole) {
                return Err(Error::StreamBusy { waited: start.elapsed() });
            }
            rest(polls);
        }
        Err(Error::StreamBusy { waited: start.elapsed() })
    }
}

/// The right to launch a kernel that uses a world's memory. While it lives, [`World::leave`] of another thread does not unmap
/// anything; when it is dropped, what was put on the stream meanwhile counts as work in flight, which `leave` and the end
/// of the world wait for (unless it was captured). Short-lived: hold it around the launch only.
#[derive(Debug)]
#[must_use = "it protects the launch while it lives"]
pub struct LaunchGuard<'a> {
    _mapped: RwLockReadGuard<'a, Connections>,
    flight: &'a InFlight,
    stream: &'a Stream,
}

impl World {
    /// Begins a launch: checks the world, as [`World::check`] does, and keeps it from being left until the guard is dropped.
    ///
    /// # Errors
    /// Those of [`World::check`].
    pub fn launching<'a>(&'a self, stream: &'a Stream) -> Result<LaunchGuard<'a>> {
        Ok(LaunchGuard { _mapped: self.stay()?, flight: &self.inner.launches, stream })
    }

    /// The check, and the mappings kept open.
    pub(crate) fn stay(&self) -> Result<RwLockReadGuard<'_, Connections>> {
        // The check may take a while, which must not keep `leave` waiting.
        self.check()?;
        let mapped = self.inner.connections.read().unwrap_or_else(PoisonError::into_inner);
        if self.inner.left.load(Ordering::Acquire) { Err(Error::Left) } else { Ok(mapped) }
    }
}

impl Drop for LaunchGuard<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.flight.note(self.stream) {
            tracing::warn!(%error, "no event could be left behind a launch");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
