//! What is on its way, and what waits.
//!
//! libfabric promises no order between operations of an endpoint, and its providers differ (`efa` has none), while kernels count on that of
//! a reliable connection: a later request is not visible before an earlier one. Two rules ensure that.
//!
//! 1. Operations complete when their effect is at the peer (`FI_DELIVERY_COMPLETE`; what reads and fetches bring, when it is here), and
//!    completions are reported in the order of positions.
//! 2. A *plain write*, one of more than 8 bytes, may be on its way together with other plain writes to other bytes. Everything else (values,
//!    writes of up to 8 bytes, reads, atomic operations) starts when nothing is on its way, and nothing starts before it is complete.
//!
//! So an operation can be overtaken by another only if both are plain writes to bytes of which none is the same. The bytes end up the same
//! in either order, and only a load between them can observe which came first. What makes a kernel of the peer
//! look is a flag or a counter, which is a value, a write of 8 bytes or an atomic operation: by rule 2 it starts after all earlier plain
//! writes. A kernel of this rank polls completions, which by rule 1 mean the same. (A kernel that polls the last bytes of a long message
//! instead of a flag would be wrong on a NIC as well: the bytes of one message have no order.) A plain write takes its bytes from memory that this rank may
//! write again once the write is complete; a read or fetch, which would write there, is not on its way together with it.

use std::collections::VecDeque;

use anabranch_transport_rdma::posting::{Completion, Fault, TURN, WorkQueue, opcode, status};
use anabranch_transport_rdma::{PostedOpcode, PostedRequest};

/// The most bytes of a write that may be a flag.
const MOST_FLAG_BYTES: u32 = 8;

/// What carries operations, in any order.
pub(crate) trait Carrier: Send {
    /// Begins an operation. `slot` is of nothing else that is on its way.
    ///
    /// # Errors
    /// Why it is refused, for good.
    fn start(&mut self, slot: usize, request: &PostedRequest) -> Result<Started, Fault>;

    /// Adds what has ended, by slots. Also does what peers ask for.
    ///
    /// # Errors
    /// Why the queue ends: it cannot be asked, or what a peer asked for failed here.
    fn poll(&mut self, ended: &mut Vec<(usize, Result<(), Fault>)>) -> Result<(), Fault>;

    /// Ends what is on its way: it touches memory of this process no more. Where that cannot be had it is an error in the log, and what is of
    /// the carrier's own stays.
    fn stop(&mut self);
}

/// What a carrier reports about an operation that it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Started {
    /// It is on its way.
    Flying,
    /// It is complete: there was nothing to do.
    Done,
    /// There is no room now.
    Later,
}

/// An operation that has started.
#[derive(Debug)]
struct Flight {
    position: u64,
    slot: usize,
    /// Of a plain write, the bytes at the peer.
    plain: Option<(u64, u64)>,
    ended: Option<Result<(), Fault>>,
}

/// A queue over a carrier.
#[derive(Debug)]
pub(crate) struct Flights<C> {
    pub(crate) carrier: C,
    /// Slots of the carrier: the most that is on its way.
    slots: usize,
    waiting: VecDeque<(u64, PostedRequest)>,
    /// In the order of positions; reported from the front.
    started: VecDeque<Flight>,
    ended: Vec<(usize, Result<(), Fault>)>,
    /// Behind something that failed nothing starts.
    has_failed: bool,
}

impl<C: Carrier> Flights<C> {
    /// Over a carrier with that many slots.
    pub(crate) fn new(carrier: C, slots: u32) -> Self {
        let slots = slots as usize;
        let (waiting, started) = (VecDeque::new(), VecDeque::new());
        Self { carrier, slots, waiting, started, ended: Vec::new(), has_failed: false }
    }

    /// Starts what may start.
    fn start(&mut self) {
        while let Some((position, request)) = self.waiting.front() {
            let plain = plain(request);
            if self.has_failed || !self.may_start(plain) {
                return;
            }
            let slot = (*position % self.slots as u64) as usize;
            let ended = match self.carrier.start(slot, request) {
                Ok(Started::Later) => return,
                Ok(Started::Flying) => None,
                Ok(Started::Done) => Some(Ok(())),
                Err(fault) => Some(Err(fault)),
            };
            self.has_failed |= matches!(ended, Some(Err(_)));
            self.started.push_back(Flight { position: *position, slot, plain, ended });
            self.waiting.pop_front();
        }
    }

    /// Rule 2.
    fn may_start(&self, next: Option<(u64, u64)>) -> bool {
        self.started.iter().all(|flight| match (&flight.ended, flight.plain, next) {
            (Some(_), ..) => true,
            (None, Some(one), Some(other)) => one.1 <= other.0 || other.1 <= one.0,
            (None, ..) => false,
        })
    }
}

/// Of a plain write, the bytes at the peer: the first, and the one after the last.
fn plain(request: &PostedRequest) -> Option<(u64, u64)> {
    let is_plain = opcode(request) == Some(PostedOpcode::Write) && request.bytes > MOST_FLAG_BYTES;
    is_plain.then(|| (request.remote, request.remote.saturating_add(request.bytes.into())))
}

impl<C: Carrier> WorkQueue for Flights<C> {
    const ANSWERS_WHEN_POLLED: bool = true;
    const WHEN_SILENT: &'static str = "; the peer has died, or the interface does not lead to it: transport.rdma.nics names the one that does";

    fn post(&mut self, requests: &[(u64, PostedRequest)]) -> Result<(), (usize, String)> {
        self.waiting.extend(requests);
        self.start();
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), Fault> {
        self.ended.clear();
        self.carrier.poll(&mut self.ended)?;
        for (slot, ended) in self.ended.drain(..) {
            let flight = self.started.iter_mut().find(|flight| flight.slot == slot && flight.ended.is_none());
            let Some(flight) = flight else {
                let words = format!("libfabric reported an operation in slot {slot}, which is empty");
                return Err(Fault { status: status::FATAL, words });
            };
            self.has_failed |= ended.is_err();
            flight.ended = Some(ended);
        }
        while completions.len() < TURN {
            let Some(Flight { position, ended: Some(ended), .. }) = self.started.front() else { break };
            let (status, cause) = match ended {
                Ok(()) => (status::SUCCESS, String::new()),
                Err(fault) => (fault.status, fault.words.clone()),
            };
            completions.push(Completion { position: *position, status, cause });
            self.started.pop_front();
        }
        self.start();
        Ok(())
    }

    fn stop(&mut self) {
        self.carrier.stop();
        self.waiting.clear();
        self.started.clear();
    }
}

#[cfg(test)]
mod tests;
