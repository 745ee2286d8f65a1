//! NICs of one process, which hand frames to each other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anabranch_transport_rdma::NicError;

use super::{Event, Fabric, Frame, NicNumber};

/// A fabric for the NICs of one process: all of them join it. What one NIC sends is there for the other at its next look, so the order
/// of everything is that of the NICs' steps.
#[derive(Clone, Debug, Default)]
pub struct InProcess {
    hub: Arc<Mutex<Hub>>,
}

#[derive(Debug, Default)]
struct Hub {
    /// By NIC: what came for it. A NIC that has left has none.
    boxes: BTreeMap<NicNumber, VecDeque<Event>>,
    joined: u64,
}

impl InProcess {
    /// A fabric without NICs.
    pub fn new() -> Self {
        Self::default()
    }

    /// A place for a NIC. Numbers are given in order, from 1.
    pub fn join(&self) -> InProcessPort {
        let mut hub = lock(&self.hub);
        hub.joined += 1;
        let number = NicNumber(hub.joined);
        hub.boxes.insert(number, VecDeque::new());
        drop(hub);
        InProcessPort { hub: Arc::clone(&self.hub), number, opened: BTreeSet::new() }
    }
}

/// A NIC's place on an [`InProcess`]. Dropped, the NIC is gone.
#[derive(Debug)]
pub struct InProcessPort {
    hub: Arc<Mutex<Hub>>,
    number: NicNumber,
    opened: BTreeSet<NicNumber>,
}

impl Fabric for InProcessPort {
    fn kind(&self) -> &'static str {
        "in process"
    }

    fn number(&self) -> NicNumber {
        self.number
    }

    fn address(&self) -> String {
        // Tells fabrics of one process apart.
        format!("{:x}", Arc::as_ptr(&self.hub).addr())
    }

    fn open(&mut self, peer: NicNumber, address: &str) -> Result<(), NicError> {
        if address != self.address() {
            let source = std::io::Error::other("it has joined another fabric");
            return Err(NicError::System { what: format!("reach {peer} in this process"), source });
        }
        self.opened.insert(peer);
        if !lock(&self.hub).boxes.contains_key(&peer) {
            self.gone(peer);
        }
        Ok(())
    }

    fn send(&mut self, peer: NicNumber, frame: Frame) {
        if let Some(events) = lock(&self.hub).boxes.get_mut(&peer) {
            events.push_back(Event::Came { from: self.number, frame });
        }
    }

    fn is_full(&self, _peer: NicNumber) -> bool {
        false
    }

    fn poll(&mut self) -> Option<Event> {
        lock(&self.hub).boxes.get_mut(&self.number)?.pop_front()
    }
}

impl InProcessPort {
    /// Tells this NIC that another has left.
    fn gone(&self, peer: NicNumber) {
        if let Some(events) = lock(&self.hub).boxes.get_mut(&self.number) {
            events.push_back(Event::Gone { peer, why: "it has left the fabric".to_owned() });
        }
    }
}

impl Drop for InProcessPort {
    fn drop(&mut self) {
        let mut hub = lock(&self.hub);
        hub.boxes.remove(&self.number);
        for events in hub.boxes.values_mut() {
            events.push_back(Event::Gone { peer: self.number, why: "it has left the fabric".to_owned() });
        }
    }
}

fn lock(hub: &Mutex<Hub>) -> MutexGuard<'_, Hub> {
    hub.lock().unwrap_or_else(PoisonError::into_inner)
}
