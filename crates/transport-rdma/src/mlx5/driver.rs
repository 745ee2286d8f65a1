//! ConnectX as a driver.

use std::sync::Arc;
use std::time::Duration;

use anabranch_hip::Device;
use anabranch_ranks::GlobalRank;
use anabranch_transport::Region;

use super::capabilities::Capabilities;
use super::commands::LOG_MESSAGE;
use super::devx::Devx;
use super::doorbell::Doorbell;
use super::path::PortFacts;
use super::queue::Mlx5Queue;
use crate::driver::{NicDriver, NicLimits, NicQueue, QueueSpec, ReadOrder, Registered, order_from_host};
use crate::endpoint::{MTUS, check_reads, is_mtu};
use crate::error::{NicError, Result};
use crate::nics::RdmaConfig;
use crate::provider::Provider;

/// What an entry of 64 bytes has left after its control segment, its address segment and the word that says how many bytes follow.
const INLINE: u32 = 64 - 16 - 16 - 4;

/// What queue pairs need of the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) traffic_class: u8,
    pub(super) service_level: u8,
    pub(super) ack_timeout: u32,
}

/// What all queue pairs of a driver share. What is declared first is given back first.
#[derive(Debug)]
pub(super) struct Driven {
    pub(super) doorbell: Doorbell,
    pub(super) devx: Arc<dyn Devx>,
    pub(super) device: Device,
    pub(super) port: PortFacts,
    pub(super) capabilities: Capabilities,
    pub(super) settings: Settings,
    pub(super) event_queue: u32,
    pub(super) protection_domain: u32,
}

/// A ConnectX whose queue pairs kernels of a device write. See the [module](super).
#[derive(Debug)]
pub struct Mlx5Driver {
    driven: Arc<Driven>,
    limits: NicLimits,
    /// Of the queue pairs to peers, by the settings.
    entries: u32,
    reason: String,
}

impl Mlx5Driver {
    /// A driver for a device, on a NIC that was opened and a port of it that is active. `reason` is why this NIC, for people.
    /// Not collective.
    ///
    /// # Errors
    /// [`NicError::Limit`] for settings or a port that the NIC has no bits for; [`NicError::Call`]; [`NicError::Memory`] if the
    /// runtime does not map the NIC's registers.
    pub fn new(
        devx: Arc<dyn Devx>,
        device: &Device,
        port: PortFacts,
        config: &RdmaConfig,
        reason: String,
    ) -> Result<Self> {
        let nic = devx.nic();
        check(&port, config, &nic)?;
        let capabilities = Capabilities::ask(devx.as_ref())?;
        let atomics = capabilities.atomics.atomics();
        let doorbell = Doorbell::map(device, devx.allocate_doorbell()?, &nic)?;
        let settings = Settings {
            traffic_class: config.traffic_class,
            service_level: config.service_level,
            ack_timeout: ack_timeout(config.patience),
        };
        let (event_queue, protection_domain) = (devx.event_queue()?, devx.protection_domain()?);
        let device = device.clone();
        let driven =
            Driven { doorbell, devx, device, port, capabilities, settings, event_queue, protection_domain };
        let limits = NicLimits { most_message_bytes: 1 << LOG_MESSAGE, inline_bytes: INLINE, atomics };
        Ok(Self { driven: Arc::new(driven), limits, entries: config.entries, reason })
    }

    fn make(&self, spec: QueueSpec) -> Result<Mlx5Queue> {
        let range = RdmaConfig::LEAST_ENTRIES..=RdmaConfig::MOST_ENTRIES;
        if !spec.entries.is_power_of_two() || !range.contains(&spec.entries) {
            return Err(NicError::Limit {
                what: "entries of a send queue",
                given: spec.entries.into(),
                allowed: format!("a power of two from {} to {}", range.start(), range.end()),
                nic: self.driven.devx.nic(),
            });
        }
        Mlx5Queue::new(self.driven.clone(), spec)
    }

    /// Makes a queue pair with as many entries as those of peers, connects it to itself, so that it may send, and ends it: whether the
    /// NIC takes all commands that the queue pairs of peers need, and their size. Nothing is sent. Not collective.
    ///
    /// # Errors
    /// The errors of the commands, which name the refused command and the NIC's answer.
    pub fn probe(&self) -> Result<()> {
        let entries = self.entries;
        // Its peer is itself: no rank is meant.
        let peer = GlobalRank::new(0);
        let queue = self.make(QueueSpec { peer, channel: 0, entries })?;
        queue.connect(peer, &queue.endpoint())
    }
}

/// An error of a command.
pub(super) fn call(call: &'static str, driven: &Driven, cause: String) -> NicError {
    NicError::Call { call, nic: driven.devx.nic(), cause }
}

fn check(port: &PortFacts, config: &RdmaConfig, nic: &str) -> Result<()> {
    let limit = |what, given: u64, allowed: String| {
        Err(NicError::Limit { what, given, allowed, nic: nic.to_owned() })
    };
    config.check_service_level(port.link_layer, nic)?;
    if !is_mtu(port.mtu) {
        return limit("bytes of a packet", port.mtu.into(), MTUS.to_owned());
    }
    check_reads(port.most_answered, port.most_asked, nic)
}

/// The exponent of the time to an answer. The NIC sends a message eight times before it gives up (7 retries), each time waiting for
/// 4.096 us times 2 to this power (it may take up to four times as long, InfiniBand 1.4, 9.7.6.1.3), so that a peer has about
/// `patience`.
pub(super) fn ack_timeout(patience: Duration) -> u32 {
    const UNIT_NANOSECONDS: u128 = 4096;
    const TRIES: u128 = 8;
    let units = patience.as_nanos() / TRIES / UNIT_NANOSECONDS;
    // 0 would be for ever, and there are 5 bits.
    units.max(2).ilog2().min(31)
}

impl NicDriver for Mlx5Driver {
    fn provider(&self) -> Provider {
        Provider::Mlx5
    }

    fn describe(&self) -> String {
        let port = &self.driven.port;
        format!("{}:{} ({}, {})", self.driven.devx.nic(), port.number, port.link_layer, self.reason)
    }

    fn limits(&self) -> NicLimits {
        self.limits
    }

    fn read_order(&self) -> ReadOrder {
        order_from_host(&self.driven.device, ReadOrder::Dumped)
    }

    fn register(&self, region: Region) -> Result<Arc<dyn Registered>> {
        self.driven.devx.register(region)
    }

    fn create_queue(&self, spec: QueueSpec) -> Result<Arc<dyn NicQueue>> {
        Ok(Arc::new(self.make(spec)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_about_the_patience_to_answer() {
        for (patience, exponent) in
            [(0, 1), (1, 1), (100_000, 11), (1_000_000, 14), (10_000_000, 18), (u64::MAX, 31)]
        {
            assert_eq!(ack_timeout(Duration::from_micros(patience)), exponent, "{patience} us");
        }
    }
}
