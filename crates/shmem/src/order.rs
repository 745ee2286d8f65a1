//! Launches that run one after the other, whatever streams, captures and graphs they are in.
//!
//! Kernels that wait for peers hold their part of the device until the peers come. Those of one order share a part
//! ([`ResidencyShare`]), so no two of them may run at once. Why no launch runs beside another of its order:
//!
//! * Call after call: a call waits for the event of the call before, launches, and gets an event of its own, all in its turn. From the first
//!   capture on one event, "the event" of what follows, stands for the last launch that the device may still have to run, and each call waits
//!   for it and records it. The first capture records it after the calls before.
//! * Calls and captures: a captured call launches nothing. Its waits and records are nodes of its graph.
//! * Within a capture: a node that waits for the event comes before the first call, and each later call comes after the one before it in the
//!   same capture, and after the node that records the event for that. Captures that are open at once have different numbers.
//! * A graph after a call or a graph: the node waits for what the event recorded last before the graph was launched.
//! * A call after a graph: each captured call is followed by a node that records the event. The graph's last record comes after all others.
//!
//! Why no rank waits forever: the order of calls is equal on all ranks, and a kernel waits for kernels of peers at its own place in that
//! order, or at an earlier one. Of the kernels that have not ended, one at the earliest place on any rank is the first of its rank, so it is
//! on the device. Those that it waits for are the first of their ranks, too, or have ended.
//!
//! Where a runtime has no events in replays, a graph has no such nodes, and the last two cases are the caller's.
//!
//! What remains for the caller is in [`LaunchOrder`]: launches of graphs have no turn that the order could keep.

use std::sync::{Arc, Mutex, MutexGuard};

use anabranch_hip::Stream;

use crate::error::Result;
use crate::inflight::{EventPool, LaunchEvent, lock};
use crate::world::{ResidencyShare, World};

/// An order of launches on one rank, for all plans or calls that are given it.
///
/// Each launch waits for the one before, on whatever streams they are, also in captures and replays of graphs. So the grids share one part
/// of the device, as large as the largest of them needs, where those without an order have a part each for as long as they may be launched.
///
/// The caller sees to four things. All members make the calls of the order, and launch the graphs that hold some, in the same order. No
/// thread launches such a graph while another makes a call or launches a graph: their grids could run at the same time, and wait until their
/// deadline. A graph has the calls of one capture; where it has those of several (child graphs, captures into a graph that is there), the
/// caller orders them. And the order lives until the last launches of the graphs are over.
///
/// On AMD GPUs ([`anabranch_hip::Device::has_events_in_replays`]) the caller orders graphs with each other and with calls: all on one stream.
/// Each capture logs that as a warning.
///
/// A clone is the same order.
#[derive(Clone, Debug)]
pub struct LaunchOrder(Arc<Ordered>);

#[derive(Debug)]
struct Ordered {
    share: Arc<ResidencyShare>,
    events: Arc<EventPool>,
    /// The last launch of graphs and of calls, once there are captures.
    of_graphs: LaunchEvent,
    /// Where the first capture records it.
    carrier: Stream,
    launches: Mutex<Launches>,
    /// What the next call waits for. With a lock of its own, so that [`LaunchOrder::last`] does not wait for the turn of a call.
    last: Mutex<LaunchEvent>,
}

#[derive(Debug, Default)]
struct Launches {
    has_captures: bool,
    captured: Vec<Captured>,
}

/// The last call in a capture. Runtimes do not report that a capture is over; a stream that was in it and is no longer shows that.
#[derive(Debug)]
struct Captured {
    capture: u64,
    stream: usize,
    event: LaunchEvent,
}

/// The turn of a call. Other threads' calls wait for its end.
#[derive(Debug)]
pub struct LaunchTurn<'a> {
    order: &'a Ordered,
    launches: MutexGuard<'a, Launches>,
    capture: Option<u64>,
}

impl LaunchOrder {
    /// An order without launches. Not collective.
    ///
    /// # Errors
    /// The runtime's.
    pub fn new(world: &World) -> Result<Self> {
        let carrier = world.device().create_stream()?;
        let events = Arc::clone(world.inner.in_flight.pool());
        let of_graphs = LaunchEvent::of(world.device().create_event()?);
        let (share, launches) = (world.residency_share(), Mutex::default());
        let last = Mutex::new(of_graphs.clone());
        Ok(Self(Arc::new(Ordered { share, events, of_graphs, carrier, launches, last })))
    }

    /// The part of the device for the grids of the order.
    pub fn share(&self) -> &Arc<ResidencyShare> {
        &self.0.share
    }

    /// An event after the last call outside of captures, and once there are captures after the last launch of a graph, too.
    pub fn last(&self) -> LaunchEvent {
        lock(&self.0.last).clone()
    }

    /// Orders what the stream gets next after all earlier launches.
    ///
    /// # Errors
    /// The runtime's; in a capture [`anabranch_hip::Error::Missing`] for one that does not number captures.
    pub fn begin(&self, stream: &Stream) -> Result<LaunchTurn<'_>> {
        let order = &*self.0;
        let mut launches = lock(&order.launches);
        let capture = stream.capture_number()?;
        launches.captured.retain(|one| one.stream != stream.raw() as usize || Some(one.capture) == capture);
        let of_graphs = &order.of_graphs;
        match (capture, launches.captured.iter().find(|one| Some(one.capture) == capture)) {
            (None, _) => stream.wait_event(&self.last())?,
            (Some(_), Some(before)) => stream.wait_event(&before.event)?,
            (Some(_), None) if stream.device().has_events_in_replays() => {
                if !launches.has_captures {
                    order.carrier.wait_event(&self.last())?;
                    order.carrier.record(of_graphs)?;
                    *lock(&order.last) = order.of_graphs.clone();
                    launches.has_captures = true;
                }
                stream.wait_event_in_replays(of_graphs)?;
            }
            (Some(_), None) => tracing::warn!(
                "graphs of this runtime are not ordered with other launches; launch the graph, and make the calls of its plans or its communicator, on one stream"
            ),
        }
        Ok(LaunchTurn { order, launches, capture })
    }
}

impl LaunchTurn<'_> {
    /// Whether the call is captured.
    pub fn is_captured(&self) -> bool {
        self.capture.is_some()
    }

    /// Notes a launch on the turn's stream, or on one that waits for it. A turn may have several.
    ///
    /// # Errors
    /// The runtime's.
    pub fn launched(&mut self, stream: &Stream) -> Result<()> {
        let event = self.order.events.record(stream)?;
        self.launched_with(stream, event)
    }

    /// [`Self::launched`] with an event that was recorded on the stream after the launch, in this turn.
    ///
    /// # Errors
    /// The runtime's.
    pub fn launched_with(&mut self, stream: &Stream, event: LaunchEvent) -> Result<()> {
        let of_graphs = &self.order.of_graphs;
        let Some(capture) = self.capture else {
            if self.launches.has_captures {
                return Ok(stream.record(of_graphs)?);
            }
            *lock(&self.order.last) = event;
            return Ok(());
        };
        if stream.device().has_events_in_replays() {
            stream.record_in_replays(of_graphs)?;
            // After that node, which what waits for the event has to follow: the next call of the capture, and the capture's end.
            stream.record(&event)?;
        }
        let captured = &mut self.launches.captured;
        let one = Captured { capture, stream: stream.raw() as usize, event };
        // Work may end on a stream on which no turn begins.
        captured.retain(|before| before.stream != one.stream && before.capture != capture);
        captured.push(one);
        Ok(())
    }
}
