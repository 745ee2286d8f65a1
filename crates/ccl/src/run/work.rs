//! Launched calls.

use std::sync::Arc;
use std::time::Duration;

use anabranch_hip::{HostCall, Stream};
use anabranch_shmem::{LaunchEvent, World};

use crate::run::checker::Checker;
use crate::types::{Error, Result};

/// A launched call. Later work on its stream follows it. [`Self::wait_on`] makes another stream wait for it, [`Self::join`] the host.
/// Dropping it does not cancel the call.
#[derive(Debug)]
#[must_use = "the work is in flight: make a stream wait for it, join it, or `drop` it if the order of its stream is enough"]
pub struct Work {
    world: World,
    event: LaunchEvent,
    sequence: u64,
    /// Its number in the launch notes of the world.
    noted: u64,
    description: Arc<str>,
    checker: Option<Arc<Checker>>,
}

impl Work {
    pub(crate) fn new(
        world: &World,
        event: LaunchEvent,
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

    /// The event after it, for orders of launches ([`anabranch_shmem::LaunchTurn::launched_with`]).
    pub fn event(&self) -> &LaunchEvent {
        &self.event
    }

    /// Makes all later work on `stream` wait for this work. Does not block the host.
    ///
    /// # Errors
    /// Errors of the device runtime.
    pub fn wait_on(&self, stream: &Stream) -> Result<()> {
        Ok(stream.wait_event(&self.event)?)
    }

    /// Blocks the host until the work is complete, at most for `timeout`. Not for captured work.
    ///
    /// # Errors
    /// The failure of the world, with the missing peer; [`Error::Mismatch`] if calls are compared and differ;
    /// [`anabranch_shmem::Error::StreamBusy`] after `timeout`, after which the work continues and can be joined again.
    pub fn join(&self, timeout: Duration) -> Result<()> {
        let _call = self.world.device().record_call(|| HostCall {
            sequence: Some(self.sequence),
            ..HostCall::on("join", Arc::clone(&self.description), None)
        });
        self.world.wait_within(&self.event, timeout).map_err(|error| self.explain(error))?;
        self.world.note_done(self.noted);
        Ok(())
    }

    /// Whether the work is complete. Does not block.
    ///
    /// # Errors
    /// As [`Self::join`], except the timeout; an error of the device.
    pub fn poll(&self) -> Result<bool> {
        self.world.check().map_err(|error| self.explain(error))?;
        let is_done = self.event.is_done()?;
        if is_done {
            self.world.note_done(self.noted);
        }
        Ok(is_done)
    }

    /// Whether the work runs no more, also in a world that has failed. Work that ended with an error is over; captured work, and work that
    /// the runtime refuses to ask for because of a capture, is not known to be over. Does not block. On a thread that captures, or beside a
    /// capture of another thread, asking may end the capture with an error.
    pub fn is_over(&self) -> bool {
        self.event.is_over()
    }

    /// Number of this launch on its communicator, from 1. Collectives are numbered equally on all members. Sends and receives have numbers
    /// of their own.
    pub const fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Description of the call and its plan, for logs and reports.
    pub fn describe(&self) -> &str {
        &self.description
    }
}
