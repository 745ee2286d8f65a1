//! The driver for every NIC that has verbs: a thread of the host posts what kernels ask for.

use core::time::Duration;
use std::sync::{Arc, OnceLock};

use anabranch_hip::Device;
use anabranch_ranks::GlobalRank;
use anabranch_transport::Region;

use super::memory::MemoryRegion;
use super::nic::{Nic, OpenPort};
use super::queue_pair::{INLINE_BYTES, MOST_8_BITS, Path, QueuePair};
use crate::bindings::{IBV_MTU_256, IBV_MTU_4096, IbvPortAttr};
use crate::driver::{
    NicDriver, NicLimits, NicQueue, QueueSpec, QueueWords, ReadOrder, Registered, UnansweredRequests,
    order_from_host,
};
use crate::endpoint::{Endpoint, check_reads, mtu_bytes};
use crate::error::{NicError, Result};
use crate::nics::ChosenPort;
use crate::nics::RdmaConfig;
use crate::posting::{Making, Progress, Served};
use crate::provider::Provider;

/// The most bytes of one message, whatever the NIC says: the driver's own deadline for a message grows with its bytes, and more in one
/// piece is not faster.
const MOST_MESSAGE_BYTES: u32 = 16 << 20;
/// Before a queue is given up, its NIC's own retries are given this many times the configured patience: NICs may take longer than they
/// are told.
const PATIENCE_FACTOR: u32 = 2;

/// A NIC by verbs, whose requests one thread of the host posts ([`Provider::Posted`]).
///
/// Queues lie in pinned memory of the host that kernels write. The thread takes requests in the order of their positions, a bounded number of
/// each queue in turn, posts each signaled, and advances the completion words. It rests when nothing moves: what comes after a long quiet
/// may wait half a millisecond. A queue fails when the NIC reports an error, when the peer's NIC does not answer within
/// [`RdmaConfig::patience`] (the NIC's retries) or twice that (the driver's own deadline, longer for long messages), and when a
/// kernel asks for what is not allowed: `WRITE_IMMEDIATE` (peers post no receives), misaligned atomic operations, unknown operations.
/// What is sent before the peer has connected its queue pair arrives if the peer does so within the patience.
#[derive(Debug)]
pub struct PostedDriver {
    nic: Arc<Nic>,
    device: Device,
    config: RdmaConfig,
    path: Path,
    /// The port's side of every queue pair's endpoint.
    own: Endpoint,
    limits: NicLimits,
    description: String,
    progress: Arc<Progress>,
}

impl PostedDriver {
    /// The driver's word in endpoints, with the version of their form.
    const NAME: &'static str = "verbs 2";

    /// Opens the port that serves a device, and starts the thread. Not collective.
    ///
    /// # Errors
    /// [`NicError::Library`] without `libibverbs`; [`NicError::NoNic`] for a NIC that verbs do not show, or a port that is not as it was
    /// when it was chosen; [`NicError::Limit`] for settings that it has no bits for, or a NIC without reads; [`NicError::Call`],
    /// [`NicError::System`].
    pub fn open(device: &Device, chosen: &ChosenPort, config: &RdmaConfig) -> Result<Self> {
        config.check_service_level(chosen.port.link_layer, &chosen.nic.name)?;
        let OpenPort { nic, number: port, gid_index, live } = OpenPort::open(chosen)?;
        let most_answered = nic.attributes.max_qp_rd_atom.max(0) as u32;
        check_reads(most_answered, nic.attributes.max_qp_init_rd_atom.max(0) as u32, &nic.name)?;
        let (traffic_class, service_level) = (config.traffic_class, config.service_level);
        let path = Path { port, gid_index, traffic_class, service_level };
        let link_layer = chosen.port.link_layer;
        let own = Endpoint {
            driver: Self::NAME.to_owned(),
            number: 0,
            first_packet: 0,
            link_layer,
            lid: live.lid,
            gid: chosen.gid.gid.value.octets(),
            gid_kind: chosen.gid.gid.kind,
            mtu: mtu_bytes(live.active_mtu.clamp(IBV_MTU_256, IBV_MTU_4096)),
            most_answered: most_answered.min(MOST_8_BITS),
        };
        let why = chosen.why();
        let description = format!("{} port {port} ({link_layer}), posted by the host: {why}", nic.name);
        let progress = Arc::new(Progress::start(format!("rdma {}", nic.name))?);
        let limits = limits(&nic, &live);
        let (device, config) = (device.clone(), config.clone());
        Ok(Self { nic, device, config, path, own, limits, description, progress })
    }

    fn check_entries(&self, entries: u32) -> Result<()> {
        let attributes = &self.nic.attributes;
        let most = attributes.max_qp_wr.min(attributes.max_cqe).max(0) as u32;
        if entries.is_power_of_two() && entries <= most {
            return Ok(());
        }
        let allowed = format!("a power of two up to {most}");
        Err(NicError::Limit {
            what: "entries of a send queue",
            given: u64::from(entries),
            allowed,
            nic: self.nic.name.clone(),
        })
    }
}

fn limits(nic: &Nic, port: &IbvPortAttr) -> NicLimits {
    NicLimits {
        most_message_bytes: port.max_msg_sz.min(MOST_MESSAGE_BYTES),
        inline_bytes: INLINE_BYTES,
        atomics: nic.atomics(),
    }
}

impl NicDriver for PostedDriver {
    fn provider(&self) -> Provider {
        Provider::Posted
    }

    fn describe(&self) -> String {
        self.description.clone()
    }

    fn limits(&self) -> NicLimits {
        self.limits
    }

    /// The host sees completions in its own memory, and verbs have no request that reads the device's memory after a read.
    fn read_order(&self) -> ReadOrder {
        order_from_host(&self.device, ReadOrder::Unordered)
    }

    fn register(&self, region: Region) -> Result<Arc<dyn Registered>> {
        Ok(Arc::new(MemoryRegion::new(&self.nic, &self.device, region)?))
    }

    fn create_queue(&self, spec: QueueSpec) -> Result<Arc<dyn NicQueue>> {
        self.check_entries(spec.entries)?;
        let pair = QueuePair::new(&self.nic, self.path, spec.entries)?;
        let own = Endpoint { number: pair.number(), first_packet: pair.first_packet(), ..self.own.clone() };
        let QueueSpec { peer, channel, entries } = spec;
        let name = format!("queue pair {} of {} to {peer} (channel {channel})", own.number, self.nic.name);
        let (limits, patience) = (self.limits, self.config.patience);
        let making = Making { entries, limits, patience: patience * PATIENCE_FACTOR, name };
        let served = Served::new(&self.device, &self.progress, pair, making)?;
        Ok(Arc::new(PostedQueue { own, mtu: OnceLock::new(), patience, served }))
    }
}

/// A queue of [`PostedDriver`].
#[derive(Debug)]
struct PostedQueue {
    own: Endpoint,
    /// Bytes of a packet on the path, once connected.
    mtu: OnceLock<u32>,
    /// What the NIC's own retries are given.
    patience: Duration,
    served: Served<QueuePair>,
}

impl NicQueue for PostedQueue {
    fn endpoint(&self) -> Vec<u8> {
        self.own.to_bytes()
    }

    fn connect(&self, peer: GlobalRank, endpoint: &[u8]) -> Result<()> {
        let driver = || self.served.name().to_owned();
        let unfit = |problem: String| NicError::Endpoint { peer, driver: driver(), problem };
        let theirs = self.own.of_peer(endpoint).map_err(unfit)?;
        let mut pair = self.served.begin_connecting().map_err(unfit)?;
        if let Err(error) = pair.connect(&self.own, &theirs, self.patience) {
            // A queue pair whose connecting fails is used no more.
            self.served.end_connecting(None);
            return Err(error);
        }
        let _ = self.mtu.set(self.own.mtu.min(theirs.mtu));
        self.served.end_connecting(Some(pair));
        Ok(())
    }

    fn words(&self) -> QueueWords {
        self.served.words(self.own.number, self.mtu.get().copied().unwrap_or(self.own.mtu))
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

    fn unanswered(&self) -> Option<UnansweredRequests> {
        self.served.unanswered()
    }
}
