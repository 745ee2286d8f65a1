//! What a world does with all queue pairs of its rank: the first read of every peer's memory while it is joined, and their completion before
//! it is left.

#[cfg(feature = "rdma")]
mod queues;

use std::sync::PoisonError;

use anabranch_bootstrap::Deadline;
use anabranch_transport::{PeerInfo, TransportKind};

use super::World;
use crate::error::Result;
use crate::fault::queue_watch::QueueWatch;

impl World {
    /// Reads the first word of each peer's heap by each queue pair to it, where some rank is reached by NIC: to memory of the host where
    /// nothing orders reads into memory of the device. Collective over all ranks then; others do nothing.
    ///
    /// # Errors
    /// [`Error::Probe`](crate::Error::Probe); what made the world fail, with the NIC's error; [`Error::FailedOn`](crate::Error::FailedOn).
    pub(crate) fn probe_nics(&self, expected: impl Fn(&PeerInfo) -> u64, deadline: Deadline) -> Result<()> {
        // Equal on all ranks: the order of transports is.
        if !self.config().transports.contains(&TransportKind::Rdma) {
            return Ok(());
        }
        // Both here: after the last step in which all ranks agree, nothing fails on one of them only.
        let probed = self.probe(expected).and_then(|()| self.watch_queues());
        let status = probed.as_ref().map_err(|error| anabranch_hip::with_causes(error)).copied();
        self.agree_status_by(self.group(), "read the peers' heaps by NIC", status, deadline)?;
        probed
    }

    fn watch_queues(&self) -> Result<()> {
        let inner = &self.inner;
        let watch = QueueWatch::start(inner.reports(), &inner.connections, inner.config.loss_grace)?;
        *inner.queue_watch.lock().unwrap_or_else(PoisonError::into_inner) = watch;
        Ok(())
    }
}

/// In a build without NICs, no kernel has queue pairs.
#[cfg(not(feature = "rdma"))]
impl World {
    fn probe(&self, _: impl Fn(&PeerInfo) -> u64) -> Result<()> {
        Ok(())
    }

    pub(crate) fn complete_nics(&self) -> Result<()> {
        Ok(())
    }
}
