//! The driver for every NIC that has verbs: a thread of the host posts what kernels ask for.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use anabranch_hip::{Device, DeviceAddress, RuntimeKind};
use anabranch_ranks::GlobalRank;
use anabranch_transport::Region;

use super::bindings::{IBV_ATOMIC_GLOB, IBV_ATOMIC_HCA, IBV_MTU_256, IBV_MTU_4096, IbvPortAttr};
use super::choice::{Candidate, Chosen, NicChoice, choose};
use super::endpoint::Endpoint;
use super::lane::{Lane, Turn};
use super::library::Verbs;
use super::memory::MemoryRegion;
use super::nic::{Nic, place_of};
use super::progress::{Advance, Progress};
use super::queue_pair::{INLINE_BYTES, Path, QueuePair};
use super::ring::Ring;
use crate::config::RdmaConfig;
use crate::driver::{
    Atomics, NicDriver, NicLimits, NicQueue, QueueSpec, QueueWords, Registered, orders_reads_from_host,
};
use crate::error::{NicError, Result};
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

/// The ports of all NICs that the system's verbs show, in words; of those that cannot be used, why. For reports.
///
/// # Errors
/// [`NicError::Library`] without `libibverbs`, [`NicError::Call`] where it cannot list them.
pub fn survey() -> Result<Vec<String>> {
    let opened = Nic::open_all(&Verbs::open()?)?;
    let lines = opened.into_iter().flat_map(|nic| match nic {
        Ok(nic) => nic.candidates().iter().map(Candidate::describe).collect(),
        Err(error) => vec![error.to_string()],
    });
    Ok(lines.collect())
}

impl PostedDriver {
    /// Opens the NIC that serves a device, and starts the thread. Not collective.
    ///
    /// # Errors
    /// [`NicError::Library`] without `libibverbs`, [`NicError::NoNic`] with each port and why it was not taken, [`NicError::Call`],
    /// [`NicError::System`].
    pub fn open(device: &Device, choice: &NicChoice, config: &RdmaConfig) -> Result<Self> {
        if device.runtime().driver().is_some() {
            let reasons = "the device is simulated, and a NIC would run on another clock".to_owned();
            return Err(NicError::NoNic { reasons });
        }
        let verbs = Verbs::open()?;
        let mut reasons = Vec::new();
        let mut nics = Vec::new();
        for opened in Nic::open_all(&verbs)? {
            opened.map_or_else(|error| reasons.push(error.to_string()), |nic| nics.push(nic));
        }
        let candidates: Vec<_> = nics.iter().map(Nic::candidates).collect();
        let nic_of: Vec<usize> =
            candidates.iter().enumerate().flat_map(|(nic, ports)| ports.iter().map(move |_| nic)).collect();
        let candidates = candidates.concat();
        let place = match device.runtime().kind() {
            RuntimeKind::Host => None,
            RuntimeKind::Amd | RuntimeKind::Nvidia => place_of(&device.pci_bus_id()?),
        };
        let chosen =
            choose(&candidates, choice, place.as_deref(), device.ordinal().0).map_err(|refused| {
                reasons.push(refused);
                NicError::NoNic { reasons: reasons.join("; ") }
            })?;
        let port = candidates[chosen.index].port;
        let nic = nics.swap_remove(nic_of[chosen.index]);
        Self::with_port(Arc::new(nic), port, &chosen, device, choice, config)
    }

    fn with_port(
        nic: Arc<Nic>,
        port: u8,
        chosen: &Chosen,
        device: &Device,
        choice: &NicChoice,
        config: &RdmaConfig,
    ) -> Result<Self> {
        let attributes = nic.port(port)?;
        let limit = |what, given: u64, allowed: &str| NicError::Limit {
            what,
            given,
            allowed: allowed.to_owned(),
            nic: nic.name.clone(),
        };
        let gid_index = u8::try_from(chosen.gid.index);
        let gid_index =
            gid_index.map_err(|_| limit("index of the gid", u64::from(chosen.gid.index), "up to 255"))?;
        if choice.service_level > 15 {
            return Err(limit("service level", u64::from(choice.service_level), "up to 15"));
        }
        let path = Path {
            port,
            gid_index,
            traffic_class: choice.traffic_class,
            service_level: choice.service_level,
        };
        let ethernet = attributes.link_layer == super::bindings::IBV_LINK_LAYER_ETHERNET;
        let own = Endpoint {
            format: Endpoint::FORMAT.to_owned(),
            number: 0,
            first_packet: 0,
            ethernet,
            lid: attributes.lid,
            gid: chosen.gid.raw,
            gid_kind: chosen.gid.kind,
            mtu: attributes.active_mtu.clamp(IBV_MTU_256, IBV_MTU_4096),
            most_answered: nic.attributes.max_qp_rd_atom.clamp(0, 255) as u8,
        };
        let link = if ethernet { "Ethernet" } else { "InfiniBand" };
        let description = format!("{} port {port} ({link}), posted by the host: {}", nic.name, chosen.why);
        let progress = Arc::new(Progress::start(format!("rdma {}", nic.name))?);
        let limits = limits(&nic, &attributes);
        Ok(Self {
            nic,
            device: device.clone(),
            config: config.clone(),
            path,
            own,
            limits,
            description,
            progress,
        })
    }

    fn check_entries(&self, entries: u32) -> Result<()> {
        let attributes = &self.nic.attributes;
        let most = attributes.max_qp_wr.min(attributes.max_cqe).max(0) as u32;
        if entries.is_power_of_two() && entries <= most {
            return Ok(());
        }
        let allowed = format!("a power of two up to {most}");
        Err(NicError::Limit {
            what: "entries of a queue",
            given: u64::from(entries),
            allowed,
            nic: self.nic.name.clone(),
        })
    }
}

fn limits(nic: &Nic, port: &IbvPortAttr) -> NicLimits {
    let atomics = match nic.attributes.atomic_cap {
        IBV_ATOMIC_HCA | IBV_ATOMIC_GLOB => Atomics::Standard,
        _ => Atomics::None,
    };
    NicLimits {
        most_message_bytes: port.max_msg_sz.min(MOST_MESSAGE_BYTES),
        inline_bytes: INLINE_BYTES,
        atomics,
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

    fn orders_reads(&self) -> bool {
        orders_reads_from_host(&self.device)
    }

    fn register(&self, region: Region) -> Result<Arc<dyn Registered>> {
        Ok(Arc::new(MemoryRegion::new(&self.nic, &self.device, region)?))
    }

    fn create_queue(&self, spec: QueueSpec) -> Result<Arc<dyn NicQueue>> {
        self.check_entries(spec.entries)?;
        let ring = Arc::new(Ring::new(&self.device, spec.entries)?);
        let pair = QueuePair::new(&self.nic, self.path, spec.entries)?;
        let own = Endpoint { number: pair.number(), first_packet: pair.first_packet(), ..self.own.clone() };
        let QueueSpec { peer, channel, entries } = spec;
        let name = format!("queue pair {} of {} to {peer} (channel {channel})", own.number, self.nic.name);
        let stopped = Arc::default();
        Ok(Arc::new(PostedQueue {
            entries,
            name,
            own,
            mtu: OnceLock::new(),
            ring,
            limits: self.limits,
            config: self.config.clone(),
            stopped,
            service: Arc::new(Service { state: Mutex::new(State::New(pair)) }),
            progress: Arc::clone(&self.progress),
        }))
    }
}

/// A queue of [`PostedDriver`].
#[derive(Debug)]
struct PostedQueue {
    entries: u32,
    name: String,
    own: Endpoint,
    /// `enum ibv_mtu` of the path, once connected.
    mtu: OnceLock<u32>,
    ring: Arc<Ring>,
    limits: NicLimits,
    config: RdmaConfig,
    stopped: Arc<OnceLock<String>>,
    service: Arc<Service>,
    progress: Arc<Progress>,
}

/// What the thread serves. The lock is held for a turn, which waits for nothing.
#[derive(Debug)]
struct Service {
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    New(QueuePair),
    Connected(Box<Lane<QueuePair>>),
    Ended,
}

impl Service {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Advance for Service {
    fn advance(&self) -> Turn {
        match &mut *self.lock() {
            State::Connected(lane) => lane.turn(),
            State::New(_) | State::Ended => Turn::Stopped,
        }
    }

    fn end(&self, reason: &str) {
        match &mut *self.lock() {
            State::Connected(lane) => lane.end(reason),
            State::New(_) | State::Ended => {}
        }
    }
}

impl PostedQueue {
    fn as_advance(&self) -> Arc<dyn Advance> {
        Arc::clone(&self.service) as Arc<dyn Advance>
    }
}

impl NicQueue for PostedQueue {
    fn endpoint(&self) -> Vec<u8> {
        self.own.to_bytes()
    }

    fn connect(&self, peer: GlobalRank, endpoint: &[u8]) -> Result<()> {
        let unfit = |problem: String| NicError::Endpoint { peer, driver: self.name.clone(), problem };
        let theirs = Endpoint::from_peer(endpoint, &self.own).map_err(unfit)?;
        let mut state = self.service.lock();
        if !matches!(&*state, State::New(_)) {
            return Err(unfit("the queue pair is connected already".to_owned()));
        }
        // A queue pair whose connecting fails is used no more.
        let State::New(mut pair) = core::mem::replace(&mut *state, State::Ended) else { return Ok(()) };
        pair.connect(&self.own, &theirs, self.config.patience)?;
        let _ = self.mtu.set(self.own.mtu.min(theirs.mtu));
        let (ring, stopped) = (Arc::clone(&self.ring), Arc::clone(&self.stopped));
        let patience = self.config.patience * PATIENCE_FACTOR;
        let lane = Lane::new(ring, pair, self.limits, patience, self.name.clone(), stopped);
        *state = State::Connected(Box::new(lane));
        drop(state);
        self.progress.add(self.as_advance());
        Ok(())
    }

    fn words(&self) -> QueueWords {
        let mtu = self.mtu.get().copied().unwrap_or(self.own.mtu);
        QueueWords {
            ring: self.ring.entries_address(),
            entries: self.entries,
            completions: self.ring.completions_address(),
            doorbell_record: DeviceAddress::NULL,
            doorbell: self.ring.doorbell_address(),
            sequence_table: DeviceAddress::NULL,
            number: self.own.number,
            // The codes count powers of two from 256 bytes.
            path_mtu: 256 << (mtu - IBV_MTU_256),
            doorbell_value: 0,
        }
    }

    fn describe(&self) -> String {
        self.name.clone()
    }

    fn stop(&self, reason: &str) {
        self.progress.remove(&self.as_advance());
        // Waits for a turn under way. Kernels hear of it in the ring, which stays.
        self.service.end(reason);
    }

    fn stopped(&self) -> Option<String> {
        self.stopped.get().cloned()
    }
}

impl Drop for PostedQueue {
    fn drop(&mut self) {
        self.progress.remove(&self.as_advance());
        // Waits for a turn under way; the queue pair ends here and not with the last handle on the service.
        *self.service.lock() = State::Ended;
    }
}

#[cfg(test)]
mod tests {
    use anabranch_hip::DeviceOrdinal;
    use anabranch_hip_host::{HostConfig, HostMachine, Schedule, SeededSchedule};

    use super::*;

    fn open(schedule: Schedule, nic: &str) -> NicError {
        let machine = HostMachine::new(HostConfig { devices: 1, schedule, ..HostConfig::default() }).unwrap();
        let device = machine.runtime().device(DeviceOrdinal(0)).unwrap();
        let choice = NicChoice { nic: Some(nic.to_owned()), ..NicChoice::default() };
        PostedDriver::open(&device, &choice, &RdmaConfig::default()).unwrap_err()
    }

    #[test]
    fn a_nic_that_is_not_there_is_named_with_those_that_are() {
        let error = open(Schedule::Free, "no_such_nic_0");
        match survey() {
            Err(missing) => assert_eq!(error.to_string(), missing.to_string(), "without the library"),
            Ok(ports) if ports.is_empty() => {
                assert_eq!(error.to_string(), "no NIC can be used: there is none");
            }
            Ok(ports) => {
                let text = error.to_string();
                assert!(text.contains("no_such_nic_0 is asked for"), "{text}");
                assert_eq!(text.matches("; ").count() + 1, ports.len(), "a reason for each: {text}");
            }
        }
    }

    #[test]
    fn a_simulated_device_has_no_nic() {
        let error = open(Schedule::Seeded(SeededSchedule::new(1)), "rxe0").to_string();
        assert!(error.contains("simulated"), "{error}");
    }
}
