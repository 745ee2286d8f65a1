//! The transport.

mod stopped;
#[cfg(test)]
mod tests;
mod words;

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use anabranch_hip::Device;
use anabranch_ranks::GlobalRank;
use anabranch_transport::{
    Audience, Error, Explanation, LocalMemory, Operation, Origin, PeerInfo, PeerMemory, Reach, Refusal,
    Region, Result, Scope, StoppedQueue, Support, Transport, TransportKind, UnansweredQueue, limits,
};

use crate::channel::{Channel, QueueMemory};
use crate::device::PHASE_NIC_ERROR;
use crate::driver::{Atomics, NicDriver, NicQueue, ReadOrder};
use crate::error::NicError;
use crate::nics::RdmaConfig;
use crate::offer::Offer;
use crate::provider::Provider;
use crate::ranges::{Entry, Ranges};
use crate::view::{ROUTE_MAPPING, RdmaQueue};

use words::fault_words;

/// Peers by NIC, for one rank. Their memory is not mapped: kernels write entries of queue pairs, which name it by offset and key.
///
/// The first region that is exported is the heap: peers reach it, and with it queue pairs to every other rank are created. Of later
/// regions peers learn the size alone; this rank's kernels may name them to the NIC only when they were given to
/// [`Self::register_local`].
#[derive(Debug)]
pub struct RdmaTransport {
    device: Device,
    local: Box<PeerInfo>,
    ranks: u32,
    config: RdmaConfig,
    driver: Result<Arc<dyn NicDriver>, Refusal>,
    made: Mutex<Option<Made>>,
    /// Why the heap was not registered or its queue pairs not created.
    failed: OnceLock<Refusal>,
}

/// Created with the heap. Queue pairs are closed before their memory is freed, and it is freed before its registration.
#[derive(Debug)]
struct Made {
    channels: HashMap<GlobalRank, Vec<Channel>>,
    _memory: QueueMemory,
    heap: Entry,
    ranges: Arc<Ranges>,
}

/// Memory of this rank that its NIC may read and write, as the local side of what kernels give to it. Dropping it ends that; no kernel
/// that names it is in flight then.
#[derive(Debug)]
pub struct LocalRange {
    _entry: Entry,
}

impl LocalMemory for LocalRange {}

impl RdmaTransport {
    /// The transport of the rank that `local` describes, on its `device`, in a world of `ranks` ranks, by the NIC that `driver` opened;
    /// or one that reaches no peer and reports why the NIC was not opened. Creates no queue pair yet.
    pub fn new(
        device: Device,
        local: PeerInfo,
        ranks: u32,
        driver: Result<Arc<dyn NicDriver>, NicError>,
        config: RdmaConfig,
    ) -> Self {
        let driver = driver.and_then(|driver| check(driver.as_ref(), &config).map(|()| driver));
        let driver = driver.map_err(|error| Refusal::from_error(&error));
        Self {
            device,
            local: Box::new(local),
            ranks,
            config,
            driver,
            made: Mutex::default(),
            failed: OnceLock::new(),
        }
    }

    /// The provider whose entries kernels write, and its atomic operations: what units are compiled for. `None` without a NIC.
    pub fn format(&self) -> Option<(Provider, Atomics)> {
        let driver = self.driver.as_ref().ok()?;
        Some((driver.provider(), driver.limits().atomics))
    }

    /// What orders what kernels read by the NIC before its completion. `None` without a NIC.
    pub fn read_order(&self) -> Option<ReadOrder> {
        Some(self.driver.as_ref().ok()?.read_order())
    }

    /// Queue pairs to each peer.
    pub fn queues_per_peer(&self) -> u32 {
        self.config.queues
    }

    /// The queue pairs by which kernels of this rank reach a peer that is open, for a group in which it has the rank `group_rank`; as many
    /// entries that name a mapping for a peer without queue pairs.
    pub fn queues(&self, peer: GlobalRank, group_rank: u32) -> Vec<RdmaQueue> {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        match made.as_ref().and_then(|made| made.channels.get(&peer)) {
            Some(channels) => channels.iter().map(|channel| channel.view(group_rank)).collect(),
            None => Self::mapped(self.config.queues, group_rank),
        }
    }

    /// Entries for a peer that is reached by loads and stores.
    pub fn mapped(count: u32, group_rank: u32) -> Vec<RdmaQueue> {
        let none = RdmaQueue { route: ROUTE_MAPPING, peer: group_rank, ..bytemuck::Zeroable::zeroed() };
        vec![none; count as usize]
    }

    /// Lets kernels name a range of this rank's memory as the local side of what they give to the NIC. Not collective.
    ///
    /// # Errors
    /// [`NicError::Limit`] when [`crate::MOST_RANGES`] are registered; [`NicError::NoNic`]; the driver's.
    pub fn register_local(&self, region: Region) -> Result<LocalRange, NicError> {
        let none = |reasons: String| NicError::NoNic { reasons };
        let driver = self.driver.as_ref().map_err(|refusal| none(refusal.to_string()))?;
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let made = made.as_ref().ok_or_else(|| none("its queue pairs were closed".to_owned()))?;
        Ok(LocalRange { _entry: made.ranges.add(driver.as_ref(), region)? })
    }

    /// The queue pairs to a peer.
    fn channels_to<'a>(&self, made: Option<&'a mut Made>, peer: GlobalRank) -> Result<&'a mut [Channel]> {
        let kind = TransportKind::Rdma;
        let cause = "this rank has no queue pairs: they were not created, or were closed".to_owned();
        let none = || self.failed.get().cloned().unwrap_or(Refusal::Failed { cause });
        let made = made.ok_or_else(|| Error::Refused { peer, kind, refusal: none() })?;
        let problem = "it names a rank that does not exist";
        let channels = made.channels.get_mut(&peer).ok_or(Error::Offer { peer, kind, problem })?;
        Ok(channels)
    }

    /// Registers the heap and creates the queue pairs.
    fn make(&self, driver: &dyn NicDriver, heap: Region) -> Result<Made, NicError> {
        let ranges = Ranges::new(&self.device)?;
        let entry = ranges.add(driver, heap)?;
        let peers: Vec<_> =
            (0..self.ranks).map(GlobalRank::new).filter(|rank| *rank != self.local.rank).collect();
        let count = peers.len() as u64 * u64::from(self.config.queues);
        let memory = QueueMemory::new(&self.device, driver, &self.config, count)?;
        let mut channels = HashMap::new();
        let mut index = 0..;
        for peer in peers {
            let numbered = (0..self.config.queues).zip(&mut index);
            let made = numbered
                .map(|(channel, index)| memory.channel(driver, &self.config, &ranges, peer, channel, index));
            channels.insert(peer, made.collect::<Result<Vec<_>, _>>()?);
        }
        Ok(Made { channels, _memory: memory, heap: entry, ranges })
    }
}

fn check(driver: &dyn NicDriver, config: &RdmaConfig) -> Result<(), NicError> {
    let of_driver = driver.limits();
    let refuse = |what, given: u64, allowed: &str| {
        Err(NicError::Limit { what, given, allowed: allowed.to_owned(), nic: driver.describe() })
    };
    let least = RdmaConfig::LEAST_ENTRIES;
    let most = match driver.provider() {
        Provider::Bnxt => RdmaConfig::MOST_ENTRIES_OF_BNXT,
        Provider::Mlx5 | Provider::Ionic | Provider::Posted => RdmaConfig::MOST_ENTRIES,
    };
    if !limits::QUEUES.allows(config.queues.into()) {
        return refuse("queue pairs to each peer", config.queues.into(), &limits::QUEUES.to_string());
    }
    if !config.entries.is_power_of_two() || !(least..=most).contains(&config.entries) {
        let allowed = format!("a power of two from {least} to {most}");
        return refuse("entries of a send queue", config.entries.into(), &allowed);
    }
    if of_driver.inline_bytes < 8 {
        return refuse("bytes that an entry carries itself", of_driver.inline_bytes.into(), "at least 8");
    }
    if driver.read_order() == ReadOrder::Dumped && driver.provider() != Provider::Mlx5 {
        let what = "providers whose entries have no DUMP, where completions need one";
        return refuse(what, driver.provider().number().into(), "mlx5");
    }
    if of_driver.most_message_bytes == 0 {
        return refuse("bytes of a message", 0, "at least 1");
    }
    Ok(())
}

/// Whether kernels read a value that the NIC wrote for an operation: of atomic operations all but additions, as operations
/// that a NIC lacks are emulated by compare-and-swap.
const fn brings_values(operation: Operation) -> bool {
    use Operation as O;
    match operation {
        O::Get | O::GetNbi | O::GetValue => true,
        O::AtomicAdd => false,
        other => other.is_atomic(),
    }
}

/// Whether a signal is part of it, which may set a word or add to it.
const fn has_signal(operation: Operation) -> bool {
    matches!(operation, Operation::Signal | Operation::PutSignal | Operation::PutSignalNbi)
}

impl Transport for RdmaTransport {
    fn kind(&self) -> TransportKind {
        TransportKind::Rdma
    }

    fn support(&self, operation: Operation, scope: Scope) -> Support {
        use Operation as O;
        let Ok(driver) = &self.driver else { return Support::Unsupported };
        let here = match operation {
            O::PutNbi | O::GetNbi | O::PutSignalNbi | O::Signal | O::SignalWait => true,
            O::Put | O::Get | O::PutSignal | O::Quiet => scope != Scope::Stream,
            O::TeamSync => scope == Scope::Block,
            O::TeamBarrier => matches!(scope, Scope::Block | Scope::Stream),
            O::PutValue
            | O::GetValue
            | O::SignalTest
            | O::Fence
            | O::AtomicAdd
            | O::AtomicAnd
            | O::AtomicOr
            | O::AtomicXor
            | O::AtomicFetchAdd
            | O::AtomicFetchAnd
            | O::AtomicFetchOr
            | O::AtomicFetchXor
            | O::AtomicSwap
            | O::AtomicCompareSwap => scope == Scope::Thread,
            _ => false,
        };
        if brings_values(operation) && driver.read_order() == ReadOrder::Unordered {
            return Support::Unsupported;
        }
        match (here, driver.limits().atomics) {
            (false, _) => Support::Unsupported,
            (true, Atomics::Standard) if operation.is_atomic() => Support::Words64,
            (true, Atomics::None) if operation.is_atomic() => Support::Unsupported,
            (true, Atomics::None) if has_signal(operation) => Support::SetOnly,
            (true, _) => Support::Implemented,
        }
    }

    fn reaches(&self, peer: &PeerInfo) -> Result<Reach, Refusal> {
        let driver = self.driver.as_ref().map_err(Clone::clone)?;
        if let Some(refusal) = self.failed.get() {
            return Err(refusal.clone());
        }
        if peer.rank == self.local.rank {
            return Ok(Reach { origin: Origin::Own, reason: "own memory".to_owned() });
        }
        let (queues, provider, nic) = (self.config.queues, driver.provider(), driver.describe());
        let mut reason = format!("{queues} queue pairs, {provider}, by {nic}");
        for lacks in driver.lacks() {
            reason.push_str("; ");
            reason.push_str(lacks);
        }
        Ok(Reach { origin: Origin::Remote, reason })
    }

    fn export(&self, region: Region, _: Audience) -> Result<Vec<u8>> {
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| Error::Export {
            kind: TransportKind::Rdma,
            address: region.address,
            bytes: region.bytes,
            source,
        };
        let driver = self.driver.as_ref().map_err(|refusal| failed(Box::new(refusal.clone())))?;
        // Not tried again: a later region is not the heap.
        if let Some(refusal) = self.failed.get() {
            return Err(failed(Box::new(refusal.clone())));
        }
        let mut offer = Offer {
            provider: driver.provider(),
            atomics: driver.limits().atomics,
            base: region.address,
            bytes: region.bytes,
            key: None,
            endpoints: Vec::new(),
        };
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if made.is_none() {
            let first = self.make(driver.as_ref(), region).map_err(|error| {
                let cause = anabranch_hip::with_causes(&error);
                let cause = format!("this rank's own queue pairs were not created: {cause}");
                let _ = self.failed.set(Refusal::Failed { cause });
                failed(Box::new(error))
            })?;
            offer.key = Some(first.heap.registered.remote_key());
            let of_rank = |rank| {
                let channels = first.channels.get(&rank);
                let channels = channels.iter().flat_map(|channels| channels.iter());
                channels.map(|channel| channel.queue.endpoint()).collect()
            };
            offer.endpoints = (0..self.ranks).map(GlobalRank::new).map(of_rank).collect();
            *made = Some(first);
        }
        Ok(offer.encode())
    }

    fn open(&self, peer: &PeerInfo, offer: &[u8], bytes: u64) -> Result<Box<dyn PeerMemory>> {
        let refused = |refusal: &Refusal| {
            let (peer, kind, refusal) = (peer.rank, TransportKind::Rdma, refusal.clone());
            Error::Refused { peer, kind, refusal }
        };
        let driver = match &self.driver {
            Ok(driver) => driver,
            Err(refusal) => return Err(refused(refusal)),
        };
        let offer = Offer::decode(peer.rank, offer)?;
        let malformed = |problem| Error::Offer { peer: peer.rank, kind: TransportKind::Rdma, problem };
        if offer.bytes < bytes {
            return Err(malformed("fewer bytes than asked for"));
        }
        if peer.rank == self.local.rank {
            return Ok(Box::new(Opened { address: offer.base, bytes: offer.bytes, origin: Origin::Own }));
        }
        let opened = Opened { address: offer.base, bytes: offer.bytes, origin: Origin::Remote };
        let failed = |source: NicError| Error::Open {
            peer: peer.rank,
            kind: TransportKind::Rdma,
            source: Box::new(source),
        };
        if offer.provider != driver.provider() {
            let problem = format!(
                "its kernels write entries of {}, those of this rank entries of {}; transport.rdma.driver = \"verbs\" on all ranks has the host post for both",
                offer.provider,
                driver.provider()
            );
            return Err(failed(NicError::Endpoint { peer: peer.rank, driver: driver.describe(), problem }));
        }
        let ours = driver.limits().atomics;
        if offer.atomics != ours {
            let (own, peer, theirs) = (self.local.rank, peer.rank, offer.atomics);
            return Err(failed(NicError::Atomics { own, ours, peer, theirs }));
        }
        // Connecting may wait for the way to the peer: the lock is not held meanwhile, so that other queue pairs go on.
        let queues: Vec<Arc<dyn NicQueue>> = {
            let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
            let channels = self.channels_to(made.as_mut(), peer.rank)?;
            if offer.key.is_none() && channels.iter().all(Channel::reaches) {
                return Ok(Box::new(opened));
            }
            channels.iter().map(|channel| Arc::clone(&channel.queue)).collect()
        };
        // Its heap comes first, and kernels would take queue pairs for connected that are not.
        let key = offer.key.ok_or_else(|| malformed("a region without a key before the heap's"))?;
        if offer.endpoints.len() != self.ranks as usize {
            return Err(malformed("queue pairs for another number of ranks"));
        }
        let endpoints = offer.endpoints.get(self.local.rank.index());
        let endpoints = endpoints.filter(|endpoints| endpoints.len() == queues.len());
        let endpoints = endpoints.ok_or_else(|| malformed("another number of queue pairs"))?;
        for (queue, endpoint) in queues.iter().zip(endpoints) {
            queue.connect(peer.rank, endpoint).map_err(failed)?;
        }
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        for channel in self.channels_to(made.as_mut(), peer.rank)? {
            channel.reach(offer.base, offer.bytes, key);
        }
        Ok(Box::new(opened))
    }

    fn keep_only(&self, kept: &dyn Fn(GlobalRank) -> bool) {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = made.as_mut() {
            made.channels.retain(|peer, _| kept(*peer));
        }
    }

    fn register_local(&self, region: Region) -> Result<Option<Box<dyn LocalMemory>>, Refusal> {
        match RdmaTransport::register_local(self, region) {
            Ok(range) => Ok(Some(Box::new(range))),
            Err(error) => Err(Refusal::from_error(&error)),
        }
    }

    fn describe_queues(&self, peer: GlobalRank) -> Vec<(String, Option<String>)> {
        let describe = |queue: Arc<dyn NicQueue>| (queue.describe(), queue.stopped());
        self.queues_to([peer]).into_iter().map(|(_, queue)| describe(queue)).collect()
    }

    fn first_stopped(&self, is_left_out: &dyn Fn(GlobalRank) -> bool) -> Option<StoppedQueue> {
        self.stopped_to(is_left_out)
    }

    fn unanswered(&self, peer: GlobalRank) -> Vec<UnansweredQueue> {
        self.unanswered_to(peer)
    }

    fn explain(&self, phase: u32, peer: GlobalRank, expected: u64, seen: u64) -> Option<Explanation> {
        let provider = self.format().map(|(provider, _)| provider);
        let words = fault_words(phase, peer, expected, seen, provider)?;
        Some(Explanation { words, has_stopped: phase == PHASE_NIC_ERROR })
    }

    fn close(&mut self) {
        *self.made.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn abandon(&mut self) {
        let made = self.made.get_mut().unwrap_or_else(PoisonError::into_inner);
        let (Some(made), Ok(driver)) = (made.take(), &self.driver) else { return };
        for channel in made.channels.values().flatten() {
            channel.queue.stop("the world has ended while kernels that may use it had not");
        }
        let queues = made.channels.len();
        tracing::warn!(
            queues,
            nic = driver.describe(),
            "the memory of queue pairs is leaked: kernels may still use it"
        );
        // The driver may own what its queues lie in.
        let _kept = ManuallyDrop::new((made, Arc::clone(driver)));
    }
}

/// A peer's memory, reached by the NIC; or this rank's own.
#[derive(Debug)]
struct Opened {
    address: u64,
    bytes: u64,
    origin: Origin,
}

impl PeerMemory for Opened {
    fn address(&self) -> u64 {
        self.address
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn origin(&self) -> Origin {
        self.origin
    }
}
