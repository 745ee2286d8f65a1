//! The device's clock beside the host's.
//!
//! An event on an idle stream is recorded between two looks at the host's clock; the shortest of some tries counts. Events give only
//! differences, as an f32 of milliseconds: over a second its last digit is 60 ns. So each anchor counts from the one before, a second
//! earlier.

use std::time::Duration;

use anabranch_clock::Moment;

use crate::error::{Error, Result};
use crate::stream::{Event, Stream};

/// A point in time from which events count.
#[derive(Debug)]
pub(crate) struct Anchor {
    event: Event,
    device_ns: i64,
    made: Moment,
}

/// One moment by both clocks, and by how much the host's may be wrong, in ns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub(crate) device: i64,
    pub(crate) host: u64,
    pub(crate) error: u64,
}

const TRIES: u32 = 8;
/// How long a try may take; the stream is idle, but the device may be busy.
const PATIENCE: Duration = Duration::from_millis(5);
const FIRST_PATIENCE: Duration = Duration::from_secs(2);
const INTERVAL: Duration = Duration::from_secs(1);

impl Anchor {
    /// The first anchor, the origin of the device's clock.
    ///
    /// # Errors
    /// [`Error::ClockSilent`]; the codes of events.
    pub(crate) fn first(stream: &Stream) -> Result<(Self, Look)> {
        let Some((event, host, error)) = best(stream, FIRST_PATIENCE)? else {
            return Err(Error::ClockSilent { device: stream.device().ordinal(), waited: FIRST_PATIENCE });
        };
        let anchor = Self { event, device_ns: 0, made: Moment::now() };
        Ok((anchor, Look { device: 0, host, error }))
    }

    /// A new one; `None` where the device does not answer in time.
    pub(crate) fn next(&self, stream: &Stream) -> Result<Option<(Self, Look)>> {
        let Some((event, host, error)) = best(stream, PATIENCE)? else { return Ok(None) };
        let device_ns = self.time_of(&event)?;
        let anchor = Self { event, device_ns, made: Moment::now() };
        Ok(Some((anchor, Look { device: device_ns, host, error })))
    }

    /// Whether events of now are better counted from a new one.
    pub(crate) fn is_old(&self) -> bool {
        self.made.elapsed() >= INTERVAL
    }

    /// An event's time by the device's clock.
    pub(crate) fn time_of(&self, event: &Event) -> Result<i64> {
        Ok(self.device_ns + (self.event.microseconds_until(event)? * 1000.0) as i64)
    }
}

/// The host's monotonic clock, in ns.
pub(crate) fn host_ns() -> u64 {
    Moment::now().since_origin().as_nanos() as u64
}

/// One look: the event, the host's time of it, and by how much that may be wrong. `None` when it took too long.
fn look(stream: &Stream, patience: Duration) -> Result<Option<(Event, u64, u64)>> {
    let event = stream.device().create_timing_event()?;
    let (begun, before) = (Moment::now(), host_ns());
    stream.record(&event)?;
    while !event.is_done()? {
        if begun.elapsed() > patience {
            return Ok(None);
        }
        if anabranch_clock::is_attached() {
            anabranch_clock::sleep(Duration::from_micros(1));
        } else {
            std::thread::yield_now();
        }
    }
    let half = (host_ns() - before) / 2;
    Ok(Some((event, before + half, half)))
}

/// The best of some looks.
fn best(stream: &Stream, patience: Duration) -> Result<Option<(Event, u64, u64)>> {
    let mut best: Option<(Event, u64, u64)> = None;
    for _ in 0..TRIES {
        let Some(found) = look(stream, patience)? else { break };
        if best.as_ref().is_none_or(|best| found.2 < best.2) {
            best = Some(found);
        }
    }
    Ok(best)
}
