//! A queue's way to its peer: what requests name is looked up and checked before libfabric is given it.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use anabranch_transport_rdma::posting::{Fault, opcode, status};
use anabranch_transport_rdma::{PostedOpcode, PostedRequest, Result};

use crate::domain::Domain;
use crate::endpoint::RemoteRange;
use crate::flights::{Carrier, Started};
use crate::region::OfiRegion;
use crate::wire::{Local, Target, Wire};

/// A [`Carrier`] over an endpoint.
#[derive(Debug)]
pub(crate) struct Line {
    domain: Arc<Domain>,
    /// `None` once it has stopped.
    wire: Option<Wire>,
    peer: Option<Peer>,
    /// The local side of what is on its way, which stays registered that long.
    held: Box<[Option<Arc<OfiRegion>>]>,
}

/// Whom it goes to.
#[derive(Debug)]
struct Peer {
    /// What operations name it by.
    address: u64,
    ranges: Vec<RemoteRange>,
}

fn refused<T>(status: u32, words: String) -> Result<T, Fault> {
    Err(Fault { status, words })
}

impl Line {
    /// With that many slots, and no peer yet.
    ///
    /// # Errors
    /// The errors of [`Wire::new`].
    pub(crate) fn new(domain: &Arc<Domain>, slots: u32) -> Result<Self> {
        let wire = Some(Wire::new(domain, slots)?);
        let held = (0..slots).map(|_| None).collect();
        Ok(Self { domain: Arc::clone(domain), wire, peer: None, held })
    }

    /// The endpoint's address.
    ///
    /// # Errors
    /// The errors of [`Wire::address`].
    pub(crate) fn address(&self) -> Result<Vec<u8>> {
        self.wire.as_ref().map_or_else(|| Ok(Vec::new()), Wire::address)
    }

    /// Learns whom it goes to.
    ///
    /// # Errors
    /// The errors of [`Wire::insert`].
    pub(crate) fn connect(&mut self, address: &[u8], ranges: Vec<RemoteRange>) -> Result<()> {
        if let Some(wire) = &self.wire {
            self.peer = Some(Peer { address: wire.insert(address)?, ranges });
        }
        Ok(())
    }

    /// The local side of a request.
    fn local(&self, request: &PostedRequest, bytes: u64) -> Result<Arc<OfiRegion>, Fault> {
        let PostedRequest { local, local_key, .. } = *request;
        match self.domain.region(local_key) {
            Some(region) if region.contains(local, bytes) => Ok(region),
            Some(_) => refused(
                status::LOCAL_PROTECTION,
                format!("{bytes} bytes at {local:#x} are not in this rank's range of key {local_key:#x}"),
            ),
            None => refused(
                status::LOCAL_PROTECTION,
                format!("this rank registered no range of key {local_key:#x}"),
            ),
        }
    }

    /// The side of the peer.
    fn target(&self, request: &PostedRequest, bytes: u64) -> Result<Target, Fault> {
        let PostedRequest { remote, remote_key, .. } = *request;
        let Some(peer) = &self.peer else {
            return refused(status::GENERAL, "it has no peer".to_owned());
        };
        let Some(range) = peer.ranges.iter().find(|range| range.number == remote_key) else {
            let words =
                format!("the peer described no range of key {remote_key:#x} when it described this queue");
            return refused(status::REMOTE_ACCESS, words);
        };
        match range.target(remote, bytes) {
            Some(address) => Ok(Target { peer: peer.address, address, key: range.key }),
            None => refused(
                status::REMOTE_ACCESS,
                format!("{bytes} bytes at {remote:#x} are not in the peer's range of key {remote_key:#x}"),
            ),
        }
    }
}

impl Carrier for Line {
    fn start(&mut self, slot: usize, request: &PostedRequest) -> Result<Started, Fault> {
        use PostedOpcode as O;
        let Some(wire) = &self.wire else {
            return refused(status::FLUSHED, "the endpoint has ended".to_owned());
        };
        let PostedRequest { local: address, value, compare, bytes, .. } = *request;
        let operation = opcode(request);
        let moved = match operation {
            Some(O::FetchAdd | O::CompareSwap) => 8,
            _ => u64::from(bytes),
        };
        let target = self.target(request, moved)?;
        if operation == Some(O::WriteValue) {
            return wire.write_value(slot, value, bytes, target);
        }
        let region = self.local(request, moved)?;
        let local = Local { region: &region, address };
        let started = match operation {
            Some(O::Write | O::Read) if moved == 0 => Ok(Started::Done),
            Some(O::Write) => wire.write(slot, local, bytes as usize, target),
            Some(O::Read) => wire.read(slot, local, bytes as usize, target),
            Some(O::FetchAdd) => wire.fetch_add(slot, value, local, target),
            Some(O::CompareSwap) => wire.compare_swap(slot, (value, compare), local, target),
            _ => {
                refused(status::GENERAL, format!("operation {} is not one of this driver's", request.opcode))
            }
        }?;
        if started == Started::Flying {
            self.held[slot] = Some(region);
        }
        Ok(started)
    }

    fn poll(&mut self, ended: &mut Vec<(usize, Result<(), Fault>)>) -> Result<(), Fault> {
        let Some(wire) = &self.wire else { return Ok(()) };
        wire.poll(ended)?;
        for (slot, _) in ended.iter() {
            self.held[*slot] = None;
        }
        Ok(())
    }

    fn stop(&mut self) {
        let Some(mut wire) = self.wire.take() else { return };
        let has_ended = wire.end();
        for region in self.held.iter_mut().filter_map(Option::take) {
            if !has_ended {
                // The provider may still use it.
                let _kept = ManuallyDrop::new(region);
            }
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // The endpoint before what its operations read and write is registered no more.
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use anabranch_transport::Region;

    use super::*;
    use crate::fake;

    #[test]
    fn what_an_endpoint_may_still_use_stays_registered() {
        for (code, kept) in [(0, 1), (-16, 2)] {
            let domain = Domain::of_test(fake::info(|_| ()));
            let wire = Wire::of_test(&domain, fake::endpoint(code), fake::queue(), fake::vector(), 2);
            let region = OfiRegion::of_test(&domain, Region { address: 4096, bytes: 16 });
            let held = [Some(Arc::clone(&region)), None].into();
            let mut line = Line { domain, wire: Some(wire), peer: None, held };
            line.stop();
            line.stop();
            drop(line);
            assert_eq!(Arc::strong_count(&region), kept, "closing returned {code}");
        }
    }
}
