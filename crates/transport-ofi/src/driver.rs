//! The driver.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anabranch_hip::{Device, RuntimeKind};
use anabranch_transport::{PeerInfo, Region};
use anabranch_transport_rdma::posting::{Making, Progress, Served};
use anabranch_transport_rdma::{
    Atomics, NicDriver, NicError, NicLimits, NicQueue, OpenNic, Provider, QueueSpec, RdmaConfig, Registered,
    Result,
};

use crate::choose::{Chosen, Reach, choose};
use crate::domain::Domain;
use crate::endpoint::Endpoint;
use crate::flights::Flights;
use crate::line::Line;
use crate::queue::OfiQueue;
use crate::region::OfiRegion;

/// The most bytes of one message, whatever the provider says: the queue's deadline for a message grows with its bytes, and more in one
/// piece is not faster.
const MOST_MESSAGE_BYTES: usize = 16 << 20;
/// Bytes that a request carries itself: a value.
const INLINE_BYTES: u32 = 8;

/// libfabric as the NIC of one rank: a [`NicDriver`] of [`Provider::Posted`].
///
/// A thread of the host takes requests in the order of their positions, and posts them to an endpoint of each queue's own. It rests when
/// nothing moves: what kernels or peers ask for may wait 50 µs, and half a millisecond where this rank's queues have been quiet for 20 ms (what
/// peers ask for does not count: libfabric does not report it). A queue fails when libfabric
/// reports an error, when the peer does not answer within [`RdmaConfig::patience`] (longer for long messages), and when a kernel asks for
/// what is not allowed: keys and bytes that are not registered, `WRITE_IMMEDIATE`, misaligned atomic operations, unknown operations. The
/// reason names the peer. What is sent before the peer has connected its queue arrives if the peer connects it within the patience.
#[derive(Debug)]
pub struct OfiDriver {
    domain: Arc<Domain>,
    device: Device,
    config: RdmaConfig,
    description: String,
    made: AtomicU32,
    progress: Arc<Progress>,
}

impl OfiDriver {
    /// Opens what serves the rank that uses this device, and starts the thread. `provider` is a name of libfabric's (`tcp`, `shm`,
    /// `verbs;ofi_rxm`), and `None` the first that serves; `transport.rdma.nics` says which interfaces. `reach` says where its peers are. Not
    /// collective.
    ///
    /// # Errors
    /// [`NicError::Library`] without libfabric 1.17 or later; [`NicError::NoNic`] for a device whose memory is not the host's, and with the
    /// reason of each interface that does not serve; [`NicError::Call`], [`NicError::System`].
    pub fn open(device: &Device, provider: Option<&str>, config: &RdmaConfig, reach: Reach) -> Result<Self> {
        refuse(device)?;
        let Chosen { domain, why } = choose(provider, &config.nics, reach)?;
        let description = format!("libfabric's {}, posted by the host: {why}", domain.name);
        let progress = Arc::new(Progress::start("rdma libfabric".to_owned())?);
        let (device, config, made) = (device.clone(), config.clone(), AtomicU32::new(1));
        Ok(Self { domain, device, config, description, made, progress })
    }
}

/// Refuses devices that libfabric does not serve here.
fn refuse(device: &Device) -> Result<()> {
    let reasons = if device.runtime().driver().is_some() {
        "the device is simulated, and libfabric would run on another clock".to_owned()
    } else if device.runtime().kind() == RuntimeKind::Host {
        return Ok(());
    } else {
        let (kind, ordinal) = (device.runtime().kind(), device.ordinal());
        format!(
            "the driver libfabric registers memory of the host alone, and {kind} device {ordinal} has memory of its own; device.runtime = \"host\" has not, and transport.rdma.driver = \"verbs\" registers it"
        )
    };
    Err(NicError::NoNic { reasons })
}

impl NicDriver for OfiDriver {
    fn provider(&self) -> Provider {
        Provider::Posted
    }

    fn describe(&self) -> String {
        self.description.clone()
    }

    fn limits(&self) -> NicLimits {
        NicLimits {
            most_message_bytes: self.domain.info.most_message_bytes().min(MOST_MESSAGE_BYTES) as u32,
            inline_bytes: INLINE_BYTES,
            // Who has less was not chosen.
            atomics: Atomics::Standard,
        }
    }

    fn register(&self, region: Region) -> Result<Arc<dyn Registered>> {
        Ok(OfiRegion::new(&self.domain, region)?)
    }

    fn create_queue(&self, spec: QueueSpec) -> Result<Arc<dyn NicQueue>> {
        let QueueSpec { peer, channel, entries } = spec;
        let range = RdmaConfig::LEAST_ENTRIES..=RdmaConfig::MOST_ENTRIES;
        if !range.contains(&entries) || !entries.is_power_of_two() {
            let allowed = format!("powers of two from {} to {}", range.start(), range.end());
            let (what, given, nic) = ("entries of a queue", entries.into(), self.domain.name.clone());
            return Err(NicError::Limit { what, given, allowed, nic });
        }
        let line = Line::new(&self.domain, entries)?;
        let info = &self.domain.info;
        let own = Endpoint::new(info.provider(), info.address_format(), channel, line.address()?);
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let name =
            format!("queue {number} of libfabric's {} to {peer} (channel {channel})", self.domain.name);
        let making = Making { entries, limits: self.limits(), patience: self.config.patience, name };
        let served = Served::new(&self.device, &self.progress, Flights::new(line, entries), making)?;
        Ok(Arc::new(OfiQueue { domain: Arc::clone(&self.domain), own, peer, number, served }))
    }
}

/// Opens libfabric for each rank, as [`OpenNic`] is asked to (`transport.rdma.driver = "libfabric"`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OfiNics {
    provider: Option<String>,
}

impl OfiNics {
    /// By this provider (`transport.rdma.fabric_provider`), or the first that serves.
    pub fn new(provider: Option<String>) -> Self {
        Self { provider }
    }

    /// What would serve a rank of this machine, and why; `nics` as in [`RdmaConfig::nics`]. Where nothing leads to other machines, what serves
    /// ranks of this one. For reports.
    ///
    /// # Errors
    /// The errors of [`OfiDriver::open`], but for the device's.
    pub fn survey(&self, nics: &[String]) -> Result<String> {
        let found = |reach| choose(self.provider.as_deref(), nics, reach);
        let (Chosen { domain, why }, alone) = match found(Reach::OtherMachines) {
            Ok(chosen) => (chosen, ""),
            Err(_) => (found(Reach::ThisMachine)?, " (for ranks of this machine alone)"),
        };
        Ok(format!("{}{alone}: {why}", domain.name))
    }
}

/// Where the peers are. Ranks of one machine that count as on several reach each other by any of its interfaces.
fn reach(local: &PeerInfo, peers: &[PeerInfo]) -> Reach {
    if peers.iter().all(|peer| peer.same_nics(local)) { Reach::ThisMachine } else { Reach::OtherMachines }
}

impl OpenNic for OfiNics {
    fn open(
        &self,
        device: &Device,
        local: &PeerInfo,
        peers: &[PeerInfo],
        config: &RdmaConfig,
    ) -> Result<Arc<dyn NicDriver>> {
        Ok(Arc::new(OfiDriver::open(device, self.provider.as_deref(), config, reach(local, peers))?))
    }
}

#[cfg(test)]
mod tests {
    use anabranch_ranks::GlobalRank;
    use anabranch_transport::{HostIdentity, ProcessIdentity};

    use super::*;

    #[test]
    fn peers_of_other_machines_are_known_by_whose_nics_they_have() {
        let rank = |host: &str, machine: &str| PeerInfo {
            rank: GlobalRank::new(0),
            host: HostIdentity(host.to_owned()),
            nics_of: HostIdentity(machine.to_owned()),
            process: ProcessIdentity { pid: 1, nonce: 1 },
            runtime: "host".to_owned(),
            instance: 0,
            device: 0,
            pci: String::new(),
            arch: String::new(),
        };
        let (here, node, far) = (rank("a", "a"), rank("node 1", "a"), rank("b", "b"));
        assert_eq!(reach(&here, &[here.clone(), node.clone()]), Reach::ThisMachine);
        assert_eq!(reach(&here, &[here.clone(), node, far]), Reach::OtherMachines);
    }
}
