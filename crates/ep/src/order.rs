//! Plans whose kernels run one after the other.

use std::sync::{Arc, Mutex};

use anabranch_hip::{Event, Stream};
use anabranch_shmem::{ResidencyShare, World};

use crate::error::Result;
use crate::lock::lock;

/// An order of the launches of several plans on one rank ([`ExpertParallel::in_order`](crate::ExpertParallel::in_order)).
///
/// Each launch of these plans waits for the one before, on whatever streams they are. So their grids share one part of the device, as
/// large as the largest of them needs, where plans without an order have a part each for as long as they live. The members of the plans
/// make the calls of all of them in the same order, and each member makes one at a time, from any thread. Within one capture the order holds
/// as well, while no other of these plans' launches is captured. The caller orders replays of graphs with each other and with other calls:
/// grids that run at the same time may not fit on the device together, and then wait until their deadline.
///
/// Why no rank waits forever: a kernel waits for kernels of peers with the same number in the common order, or a lower one. Of the kernels
/// that have not ended, one with the lowest number on any rank is the first of its rank, so it is on the device; those that it waits for are
/// the first of their ranks, too, or have ended.
///
/// A clone is the same order.
#[derive(Clone, Debug)]
pub struct LaunchOrder(Arc<Ordered>);

#[derive(Debug)]
struct Ordered {
    share: Arc<ResidencyShare>,
    last: Mutex<Last>,
}

/// Events after the last launches.
#[derive(Debug, Default)]
struct Last {
    eager: Option<Arc<Event>>,
    /// Of the last capture, with its number.
    captured: Option<(u64, Arc<Event>)>,
}

impl LaunchOrder {
    /// An order without plans. Not collective.
    pub fn new(world: &World) -> Self {
        Self(Arc::new(Ordered { share: world.residency_share(), last: Mutex::default() }))
    }

    pub(crate) fn share(&self) -> &Arc<ResidencyShare> {
        &self.0.share
    }

    /// Makes the stream wait for the last launch.
    pub(crate) fn order_after(&self, stream: &Stream) -> Result<()> {
        let capture = capture_of(stream)?;
        let last = lock(&self.0.last);
        let event = match (capture, &last.captured) {
            (None, _) => last.eager.as_ref(),
            (Some(number), Some((of, event))) if *of == number => Some(event),
            (Some(_), _) => None,
        };
        Ok(event.map_or(Ok(()), |event| stream.wait_event(event))?)
    }

    /// Notes a launch, after which the stream has recorded the event.
    pub(crate) fn launched(&self, stream: &Stream, event: &Arc<Event>) -> Result<()> {
        let capture = capture_of(stream)?;
        let mut last = lock(&self.0.last);
        match capture {
            None => last.eager = Some(Arc::clone(event)),
            Some(number) => last.captured = Some((number, Arc::clone(event))),
        }
        Ok(())
    }
}

/// The capture that a stream is in. Outside of captures the runtime need not be able to number them.
fn capture_of(stream: &Stream) -> Result<Option<u64>> {
    Ok(if stream.is_capturing()? { stream.capture_number()? } else { None })
}
