//! The transport.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use anabranch_hip::{Device, DeviceAddress, RuntimeKind};
use anabranch_ranks::GlobalRank;
use anabranch_transport::{
    Audience, Error, Operation, Origin, PeerInfo, PeerMemory, Reach, Refusal, Region, Result, Scope, Support,
    Transport, TransportKind,
};
use anabranch_transport_p2p::{FlatWindow, P2pTransport};

use crate::config::SdmaConfig;
use crate::device_queue::{DeviceQueue, DeviceQueueError, ROUTE_HOST, SdmaQueue};
use crate::maker::Maker;

/// What does a rank's copies.
#[derive(Debug)]
enum Driving {
    /// Queues that kernels write.
    Queues(Box<Maker>),
    /// Streams that the host writes.
    Streams,
}

/// Peers by copy engines, for one rank. Their memory is mapped as [`P2pTransport`] maps it: engines use the addresses of the
/// device that they belong to; single values and atomics go by these mappings.
pub struct SdmaTransport {
    device: Device,
    local: Box<PeerInfo>,
    config: SdmaConfig,
    driving: Result<Driving, Refusal>,
    mapping: Box<P2pTransport>,
    /// The queues to each peer, as long as any of its memory is open.
    peers: Mutex<HashMap<GlobalRank, Weak<Vec<DeviceQueue>>>>,
}

impl fmt::Debug for SdmaTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SdmaTransport").field("config", &self.config).finish_non_exhaustive()
    }
}

impl SdmaTransport {
    /// The transport of the rank that `local` describes, on its `device`; in the flat range that `window` is, where there is one.
    /// Starts nothing: queues are created when the first memory of a peer is opened.
    pub fn new(device: Device, local: PeerInfo, window: Option<Arc<FlatWindow>>, config: SdmaConfig) -> Self {
        let driving = driving(&device, &config);
        let mapping = match window {
            None => P2pTransport::new(device.clone(), local.clone()),
            Some(window) => P2pTransport::with_window(device.clone(), local.clone(), window),
        };
        Self {
            device,
            local: Box::new(local),
            config,
            driving,
            mapping: Box::new(mapping),
            peers: Mutex::default(),
        }
    }

    /// Whether kernels put packets into queues of their own; else the host drives the engines.
    pub fn is_device_initiated(&self) -> bool {
        matches!(self.driving, Ok(Driving::Queues(_)))
    }

    /// The queues by which kernels of this rank reach a peer whose memory is open, for a group in which it has the rank
    /// `group_rank`. Where the host drives the engines, the same number of entries that say so.
    pub fn queues(&self, peer: GlobalRank, group_rank: u32) -> Vec<SdmaQueue> {
        let known = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queues) = known.get(&peer).and_then(Weak::upgrade) {
            return queues.iter().map(|queue| queue.view(group_rank)).collect();
        }
        let none = SdmaQueue { route: ROUTE_HOST, peer: group_rank, ..bytemuck::Zeroable::zeroed() };
        vec![none; self.config.queues as usize]
    }

    /// Queues to each peer.
    pub fn queues_per_peer(&self) -> u32 {
        self.config.queues
    }

    /// The queues to a peer whose memory starts at `source`, made if there are none.
    fn connect(
        &self,
        maker: &Maker,
        peer: &PeerInfo,
        source: DeviceAddress,
    ) -> Result<Arc<Vec<DeviceQueue>>> {
        let mut known = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queues) = known.get(&peer.rank).and_then(Weak::upgrade) {
            return Ok(queues);
        }
        let SdmaConfig { queues, most_copy_bytes, patience, .. } = self.config;
        let make = |channel| {
            let engine = maker.make(&self.device, &self.local, peer, channel)?;
            DeviceQueue::new(&self.device, engine, maker.generation, most_copy_bytes, source, patience)
        };
        let made = (0..queues).map(make).collect::<Result<Vec<_>, DeviceQueueError>>();
        let queues = Arc::new(made.map_err(|error| Error::Open {
            peer: peer.rank,
            kind: TransportKind::Sdma,
            source: Box::new(error),
        })?);
        known.insert(peer.rank, Arc::downgrade(&queues));
        Ok(queues)
    }
}

/// What a device has for copies.
fn driving(device: &Device, config: &SdmaConfig) -> Result<Driving, Refusal> {
    for (name, given, allowed) in config.shared() {
        if let Some(allowed) = allowed {
            return Err(Refusal::Failed { cause: format!("{name}: {given} given, {allowed} allowed") });
        }
    }
    match device.runtime().kind() {
        RuntimeKind::Nvidia => Ok(Driving::Streams),
        RuntimeKind::Host | RuntimeKind::Amd => Maker::new(device, config).map(Box::new).map(Driving::Queues),
    }
}

impl Transport for SdmaTransport {
    fn kind(&self) -> TransportKind {
        TransportKind::Sdma
    }

    fn support(&self, operation: Operation, scope: Scope) -> Support {
        use Operation as O;
        let bulk = matches!(
            operation,
            O::Put | O::PutNbi | O::Get | O::GetNbi | O::PutSignal | O::PutSignalNbi | O::Signal
        );
        match &self.driving {
            Err(_) => Support::Unsupported,
            // Kernels cannot write the queues.
            Ok(Driving::Streams) if bulk && scope != Scope::Stream => Support::Unsupported,
            Ok(_) => self.mapping.support(operation, scope),
        }
    }

    fn reaches(&self, peer: &PeerInfo) -> Result<Reach, Refusal> {
        let driving = self.driving.as_ref().map_err(Clone::clone)?;
        let reach = self.mapping.reaches(peer)?;
        let how = match driving {
            Driving::Queues(maker) => {
                let generation = maker.generation;
                format!("{} queues of {generation} packets, written by kernels", self.config.queues)
            }
            Driving::Streams => "copy engines, driven by streams of the host".to_owned(),
        };
        Ok(Reach { reason: format!("{how}; mapped: {}", reach.reason), ..reach })
    }

    fn export(&self, region: Region, audience: Audience) -> Result<Vec<u8>> {
        self.mapping.export(region, audience)
    }

    fn open(&self, peer: &PeerInfo, offer: &[u8], bytes: u64) -> Result<Box<dyn PeerMemory>> {
        let memory = self.mapping.open(peer, offer, bytes)?;
        let queues = match &self.driving {
            Err(refusal) => {
                let (peer, kind, refusal) = (peer.rank, TransportKind::Sdma, refusal.clone());
                return Err(Error::Refused { peer, kind, refusal });
            }
            Ok(Driving::Streams) => None,
            Ok(Driving::Queues(maker)) => Some(self.connect(maker, peer, DeviceAddress(memory.address()))?),
        };
        Ok(Box::new(Opened { _queues: queues, memory }))
    }

    fn describe_queues(&self, peer: GlobalRank) -> Vec<(String, Option<String>)> {
        let known = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let queues = known.get(&peer).and_then(Weak::upgrade);
        let describe = |queue: &DeviceQueue| (queue.engine().describe(), queue.engine().stopped());
        queues.iter().flat_map(|queues| queues.iter()).map(describe).collect()
    }

    fn close(&mut self) {
        self.peers.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
        self.mapping.close();
    }
}

/// A peer's memory, and the engines that reach it. The last one of a peer that goes stops them, before its mapping goes.
#[derive(Debug)]
struct Opened {
    _queues: Option<Arc<Vec<DeviceQueue>>>,
    memory: Box<dyn PeerMemory>,
}

impl PeerMemory for Opened {
    fn address(&self) -> u64 {
        self.memory.address()
    }

    fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    fn origin(&self) -> Origin {
        self.memory.origin()
    }
}
