//! The order of a communicator's calls, as NCCL keeps it: over streams, captures, and launches of graphs.
//!
//! Launches outside of captures are in order by themselves ([`anabranch::ccl::Communicator`]). This adds the calls of one capture, which may
//! be on several of its streams; graphs beside each other and beside other calls; and what a call does before its launch.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use anabranch::World;
use anabranch::ccl::Work;
use anabranch::hip::{Event, Stream};

use crate::comm::lock;
use crate::error::Failure;

/// The order of a communicator's calls.
#[derive(Debug, Default)]
pub(crate) struct Order(Mutex<Calls>);

#[derive(Debug, Default)]
struct Calls {
    /// The last call, until one is captured: calls pay for what graphs need only then.
    last: Option<Work>,
    /// After the last call, also of a launched graph. Graphs hold it.
    shared: Option<Event>,
    captured: Vec<Captured>,
}

/// The last call in a capture. Runtimes do not report that a capture is over; a stream that was in it and is no longer shows that.
#[derive(Debug)]
struct Captured {
    capture: u64,
    stream: usize,
    event: Event,
}

/// The turn of a call. Other threads' calls wait for its end.
pub(crate) struct Turn<'a> {
    calls: MutexGuard<'a, Calls>,
    capture: Option<u64>,
}

/// The capture that a stream is in.
fn capture_of(stream: &Stream) -> Result<Option<u64>, Failure> {
    // The default stream cannot be captured, and cannot be asked while another stream is.
    if stream.raw().is_null() || !stream.is_capturing()? { Ok(None) } else { Ok(stream.capture_number()?) }
}

impl Order {
    /// Orders what the stream gets next after all earlier calls.
    ///
    /// # Errors
    /// The runtime's.
    pub(crate) fn begin(&self, stream: &Stream) -> Result<Turn<'_>, Failure> {
        let mut calls = lock(&self.0);
        let capture = capture_of(stream)?;
        let raw = stream.raw() as usize;
        calls.captured.retain(|last| last.stream != raw || Some(last.capture) == capture);
        match (capture, &calls.shared) {
            (None, Some(shared)) => stream.wait_event(shared)?,
            (None, None) => calls.last.iter().try_for_each(|last| last.wait_on(stream))?,
            (Some(number), Some(shared)) => match calls.captured.iter().find(|last| last.capture == number) {
                Some(before) => stream.wait_event(&before.event)?,
                None => stream.wait_event_in_replays(shared)?,
            },
            (Some(_), None) => {
                let shared = stream.device().create_event()?;
                if let Some(last) = &calls.last {
                    let between = stream.device().create_stream()?;
                    last.wait_on(&between)?;
                    between.record(&shared)?;
                }
                // From here on the event stands for the earlier calls, also if its wait is refused.
                calls.last = None;
                stream.wait_event_in_replays(calls.shared.insert(shared))?;
            }
        }
        Ok(Turn { calls, capture })
    }

    /// Whether all calls are known to be over, also those of launched graphs.
    pub(crate) fn is_over(&self) -> bool {
        let calls = lock(&self.0);
        match (&calls.shared, &calls.last) {
            (Some(shared), _) => shared.is_over(),
            (None, Some(last)) => last.is_over(),
            (None, None) => true,
        }
    }

    /// Waits for all calls, and for launches of graphs that hold some.
    ///
    /// # Errors
    /// What made the world fail; calls that are not over in time.
    pub(crate) fn wait(&self, world: &World, limit: Duration) -> Result<(), Failure> {
        let calls = lock(&self.0);
        match (&calls.shared, &calls.last) {
            (Some(shared), _) => Ok(world.wait_within(shared, limit)?),
            (None, Some(last)) => Ok(last.join(limit)?),
            (None, None) => Ok(()),
        }
    }
}

impl Turn<'_> {
    /// Notes the call, which is on the stream.
    ///
    /// # Errors
    /// The runtime's.
    pub(crate) fn end(mut self, work: Work, stream: &Stream) -> Result<(), Failure> {
        let calls = &mut *self.calls;
        match (self.capture, &calls.shared) {
            (Some(number), Some(shared)) => {
                stream.record_in_replays(shared)?;
                let raw = stream.raw() as usize;
                if let Some(last) = calls.captured.iter_mut().find(|last| last.capture == number) {
                    stream.record(&last.event)?;
                    last.stream = raw;
                } else {
                    let event = stream.device().create_event()?;
                    stream.record(&event)?;
                    calls.captured.push(Captured { capture: number, stream: raw, event });
                }
            }
            (None, Some(shared)) => stream.record(shared)?,
            _ => calls.last = Some(work),
        }
        Ok(())
    }
}
