//! The device's clock beside the host's.
//!
//! An event on an idle stream is recorded between two looks at the host's clock; the shortest of some tries counts. Events give only
//! differences, as an f32 of milliseconds: over a second its last digit is 60 ns. So each anchor counts from the one before, a second
//! earlier.

use std::sync::Arc;
use std::time::Duration;

use anabranch_clock::Moment;

use super::{Trace, TraceRecord, lock};
use crate::error::{Error, Result};
use crate::stream::{Event, Stream};

/// A point in time from which events count.
#[derive(Debug)]
pub(super) struct Anchor {
    event: Event,
    device_ns: i64,
    made: Moment,
}

const TRIES: u32 = 8;
/// How long a try may take; the stream is idle, but the device may be busy.
const PATIENCE: Duration = Duration::from_millis(5);
const FIRST_PATIENCE: Duration = Duration::from_secs(2);
const INTERVAL: Duration = Duration::from_secs(1);

impl Anchor {
    /// An event's time by the device's clock.
    pub(super) fn time_of(&self, event: &Event) -> Result<i64> {
        Ok(self.device_ns + (self.event.microseconds_until(event)? * 1000.0) as i64)
    }
}

/// One look: the event, the host's time of it, and by how much that may be wrong. `None` when it took too long.
fn look(stream: &Stream, patience: Duration) -> Result<Option<(Event, u64, u64)>> {
    let event = stream.device().create_timing_event()?;
    let (begun, before) = (Moment::now(), Trace::now_ns());
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
    let half = (Trace::now_ns() - before) / 2;
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

/// The first anchor, the device clock's origin.
pub(super) fn first(stream: &Stream) -> Result<(Anchor, TraceRecord)> {
    let Some((event, host_ns, error_ns)) = best(stream, FIRST_PATIENCE)? else {
        return Err(Error::ClockSilent { device: stream.device().ordinal(), waited: FIRST_PATIENCE });
    };
    let anchor = Anchor { event, device_ns: 0, made: Moment::now() };
    Ok((anchor, TraceRecord::Clocks { device_ns: 0, host_ns, error_ns }))
}

impl Trace {
    /// What events that are recorded from now on count from.
    pub(super) fn anchor(&self) -> Arc<Anchor> {
        let anchor = Arc::clone(&lock(&self.anchor));
        if anchor.made.elapsed() < INTERVAL {
            return anchor;
        }
        self.look_at_clocks();
        Arc::clone(&lock(&self.anchor))
    }

    /// Records a moment by both clocks, and counts from it. Where the device does not answer in time, the earlier one serves on.
    pub(super) fn look_at_clocks(&self) {
        let Ok(Some((event, host_ns, error_ns))) = best(&self.stream, PATIENCE) else { return };
        let mut anchor = lock(&self.anchor);
        let Ok(device_ns) = anchor.time_of(&event) else { return };
        *anchor = Arc::new(Anchor { event, device_ns, made: Moment::now() });
        drop(anchor);
        self.push(TraceRecord::Clocks { device_ns, host_ns, error_ns });
    }
}
