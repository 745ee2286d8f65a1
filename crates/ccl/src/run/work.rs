//! A collective that was launched.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anabranch_hip::{Device, Event, Stream};
use anabranch_shmem::World;

use crate::run::checker::Checker;
use crate::types::{Error, Result};

/// Events that are used again: making one for every launch would cost more than the launch.
#[derive(Debug, Default)]
pub(crate) struct EventPool {
    free: Mutex<Vec<Event>>,
}

impl EventPool {
    pub(crate) fn take(self: &Arc<Self>, device: &Device) -> Result<PooledEvent> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let event = free.map_or_else(|| device.create_event(), Ok)?;
        Ok(PooledEvent { pool: Arc::clone(self), event: Some(event) })
    }
}

/// An event that goes back when it is dropped. Streams that were told to wait for it wait for what it recorded before.
#[derive(Debug)]
pub(crate) struct PooledEvent {
    pool: Arc<EventPool>,
    event: Option<Event>,
}

impl Drop for PooledEvent {
    fn drop(&mut self) {
        if let Some(event) = self.event.take() {
            self.pool.free.lock().unwrap_or_else(PoisonError::into_inner).push(event);
        }
    }
}

/// A collective on its stream. What follows there is behind it already; other streams are put behind it with
/// [`Self::wait_on`], the host with [`Self::join`]. Dropping it cancels nothing.
#[derive(Debug)]
#[must_use = "the work is under way: order a stream behind it, join it, or say `drop` where its stream's order is enough"]
pub struct Work {
    world: World,
    event: PooledEvent,
    sequence: u64,
    /// Its number in the world's notes.
    noted: u64,
    description: Arc<str>,
    checker: Option<Arc<Checker>>,
}

impl Work {
    pub(crate) fn new(
        world: &World,
        event: PooledEvent,
        (sequence, noted): (u64, u64),
        description: &Arc<str>,
        checker: Option<Arc<Checker>>,
    ) -> Self {
        Self { world: world.clone(), event, sequence, noted, description: Arc::clone(description), checker }
    }

    fn explain(&self, error: anabranch_shmem::Error) -> Error {
        match &self.checker {
            Some(checker) => checker.explain(error),
            None => error.into(),
        }
    }

    pub(crate) fn record(event: &PooledEvent, stream: &Stream) -> Result<()> {
        event.event.as_ref().map_or(Ok(()), |event| Ok(stream.record(event)?))
    }

    /// Makes everything that is put on `stream` from now on wait for the work. Does not wait itself.
    ///
    /// # Errors
    /// The runtime's.
    pub fn wait_on(&self, stream: &Stream) -> Result<()> {
        self.event.event.as_ref().map_or(Ok(()), |event| Ok(stream.wait_event(event)?))
    }

    /// Waits on the host until the work is done, but no longer than `timeout`. Not for captured work.
    ///
    /// # Errors
    /// What made the world fail, with the peer that was missing; [`Error::Mismatch`] where calls are compared and differ;
    /// [`anabranch_shmem::Error::StreamBusy`] after `timeout`, which changes nothing.
    pub fn join(&self, timeout: Duration) -> Result<()> {
        match &self.event.event {
            Some(event) => self.world.wait_within(event, timeout),
            None => self.world.check(),
        }
        .map_err(|error| self.explain(error))?;
        self.world.note_done(self.noted);
        Ok(())
    }

    /// Whether the work is done.
    ///
    /// # Errors
    /// As [`Self::join`]; an error of the work itself.
    pub fn poll(&self) -> Result<bool> {
        self.world.check().map_err(|error| self.explain(error))?;
        let Some(event) = &self.event.event else { return Ok(true) };
        let is_done = event.is_done()?;
        if is_done {
            self.world.note_done(self.noted);
        }
        Ok(is_done)
    }

    /// The number of this launch on its communicator, from 1. Collectives are counted for themselves, with the same number on
    /// all members; sends and receives are counted for themselves, too.
    pub const fn sequence(&self) -> u64 {
        self.sequence
    }

    /// What runs, and how.
    pub fn describe(&self) -> &str {
        &self.description
    }
}
