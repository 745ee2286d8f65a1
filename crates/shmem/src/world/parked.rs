//! Launches, and what is freed when their work is over.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLockReadGuard};
use std::time::Duration;

use anabranch_clock::Moment;
use anabranch_hip::Stream;

use super::check::{DRAIN, rest};
use super::residency::ResidencyPermit;
use super::{Inner, World};
use crate::error::{Error, Result};
use crate::heap::ledger::AllocationId;
use crate::inflight::{InFlight, LaunchEvent, lock};
use crate::route::{Connections, Table};

/// What is freed when work is over.
#[derive(Debug)]
pub(crate) enum Keep {
    Allocation(AllocationId),
    Team { view: u64, _table: Table, _permit: Option<ResidencyPermit>, _held: Vec<Box<dyn Held>> },
    Table { _table: Table },
}

/// What a team keeps for the crates above until the last launch is over: kernels, shares of the device.
pub(crate) trait Held: Send + fmt::Debug {}
impl<T: Send + fmt::Debug> Held for T {}

impl Inner {
    /// Gives back at once, or as soon as the work is over. Does not block.
    pub(crate) fn park(&self, in_flight: &Arc<InFlight>, keep: Keep) {
        lock(&self.parked).push((Arc::clone(in_flight), keep));
        self.sweep();
    }

    /// Gives back what waited for work that is over now.
    pub(crate) fn sweep(&self) {
        let over: Vec<_> = {
            let mut parked = lock(&self.parked);
            parked.extract_if(.., |(in_flight, _)| in_flight.is_over()).collect()
        };
        for (_, keep) in over {
            match keep {
                Keep::Allocation(id) => lock(&self.ledger).drop_allocation(id),
                // A fault record of its last launch, and notes of its waits, may still be read.
                Keep::Team { view, .. } if !self.state.is_raised().unwrap_or(true) && !self.notes_waits() => {
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
            if self.in_flight.are_over() && self.service.is_idle()? {
                return self.in_flight.untracked();
            }
            if raised_at.is_none() && self.state.is_raised()? {
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
/// anything; after [`Self::launched`], else when it is dropped, what was put on the stream meanwhile counts as work in flight, which `leave`
/// and the end of the world wait for (unless it was captured). Short-lived: hold it around the launch only.
#[derive(Debug)]
#[must_use = "it protects the launch while it lives"]
pub struct LaunchGuard<'a> {
    _mapped: RwLockReadGuard<'a, Connections>,
    world: &'a World,
    stream: &'a Stream,
    is_noted: bool,
}

impl LaunchGuard<'_> {
    /// Notes what was put on the stream so far, and returns the event after it. The drop then notes nothing: call it after the last launch.
    ///
    /// # Errors
    /// [`Error::Untracked`] when no event could be recorded.
    pub fn launched(&mut self) -> Result<LaunchEvent> {
        self.is_noted = true;
        let noted = self.world.inner.launches.note(self.stream)?;
        noted.map_or_else(|| self.world.event_after(self.stream), Ok)
    }
}

impl World {
    /// Begins a launch: checks the world, as [`World::check`] does, and keeps it from being left until the guard is dropped.
    ///
    /// # Errors
    /// The errors of [`World::check`].
    pub fn launching<'a>(&'a self, stream: &'a Stream) -> Result<LaunchGuard<'a>> {
        Ok(LaunchGuard { _mapped: self.stay()?, world: self, stream, is_noted: false })
    }

    /// An event after the work on the stream so far. Also in a capture. Not collective.
    ///
    /// # Errors
    /// The runtime's.
    pub fn event_after(&self, stream: &Stream) -> Result<LaunchEvent> {
        Ok(self.inner.in_flight.pool().record(stream)?)
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
        if self.is_noted {
            return;
        }
        if let Err(error) = self.world.inner.launches.note(self.stream) {
            tracing::warn!(%error, "no event could be recorded after a launch");
        }
    }
}
