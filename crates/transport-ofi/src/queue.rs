//! A queue of the driver.

use std::sync::Arc;

use anabranch_ranks::GlobalRank;
use anabranch_transport_rdma::posting::Served;
use anabranch_transport_rdma::{NicError, NicQueue, QueueWords, Result};

use crate::domain::Domain;
use crate::endpoint::Endpoint;
use crate::flights::Flights;
use crate::line::Line;

/// Bytes of a packet on the path, which kernels of posted queues do not count by.
const PATH_MTU: u32 = 4096;

/// A queue of [`OfiDriver`](crate::OfiDriver).
#[derive(Debug)]
pub(crate) struct OfiQueue {
    pub(crate) domain: Arc<Domain>,
    /// Its description, without ranges.
    pub(crate) own: Endpoint,
    pub(crate) peer: GlobalRank,
    pub(crate) number: u32,
    pub(crate) served: Served<Flights<Line>>,
}

impl NicQueue for OfiQueue {
    fn endpoint(&self) -> Vec<u8> {
        // Every range that is registered by now.
        let regions: Vec<_> = self.domain.regions().by_number.values().cloned().collect();
        let ranges = regions.iter().filter_map(std::sync::Weak::upgrade).map(|region| region.for_peers());
        let mut own = self.own.clone();
        own.ranges = ranges.collect();
        own.to_bytes()
    }

    fn connect(&self, peer: GlobalRank, endpoint: &[u8]) -> Result<()> {
        let driver = || self.served.name().to_owned();
        let unfit = |problem: String| NicError::Endpoint { peer, driver: driver(), problem };
        if peer != self.peer {
            return Err(unfit(format!("this queue is for {}", self.peer)));
        }
        let theirs = self.own.of_peer(endpoint).map_err(unfit)?;
        let mut flights = self.served.begin_connecting().map_err(unfit)?;
        if let Err(error) = flights.carrier.connect(&theirs.address, theirs.ranges) {
            // A queue whose connecting fails is used no more.
            self.served.end_connecting(None);
            return Err(error);
        }
        self.served.end_connecting(Some(flights));
        Ok(())
    }

    fn words(&self) -> QueueWords {
        self.served.words(self.number, PATH_MTU)
    }

    fn describe(&self) -> String {
        self.served.name().to_owned()
    }

    fn stop(&self, reason: &str) {
        self.served.stop(reason);
    }

    fn stopped(&self) -> Option<String> {
        self.served.stopped()
    }

    fn is_consequence(&self) -> bool {
        self.served.is_consequence()
    }
}
