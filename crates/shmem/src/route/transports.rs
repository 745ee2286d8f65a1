//! The transports of a world, and which one serves each peer.

use std::sync::Arc;
#[cfg(feature = "sdma")]
use std::time::Duration;

use anabranch_ranks::GlobalRank;
use anabranch_transport::{
    Audience, Operation, PeerInfo, PeerMemory, Refusal, Region, Route, Scope, Support, Transport,
    TransportKind,
};
use anabranch_transport_p2p::{FlatWindow, P2pTransport};
#[cfg(feature = "rdma")]
use anabranch_transport_rdma::{Atomics, Provider, RdmaTransport};
#[cfg(feature = "sdma")]
use anabranch_transport_sdma::{SdmaConfig, SdmaTransport};

use crate::config::WorldConfig;
use crate::error::{Error, Result};

#[cfg(feature = "rdma")]
pub(crate) use anabranch_transport_rdma::RdmaQueue;
#[cfg(feature = "sdma")]
pub(crate) use anabranch_transport_sdma::SdmaQueue;

/// An entry of a team's table of queue pairs, in a build whose kernels have no such table.
#[cfg(not(feature = "rdma"))]
pub(crate) type RdmaQueue = u64;
/// An entry of a team's table of copy engines' queues, in a build whose kernels have no such table.
#[cfg(not(feature = "sdma"))]
pub(crate) type SdmaQueue = u64;

/// A transport as a world holds it: of built-in ones the world knows more than [`Transport`] has.
#[enum_dispatch::enum_dispatch(AsTransport)]
#[derive(Debug)]
enum AnyTransport {
    P2p(P2pTransport),
    #[cfg(feature = "sdma")]
    Sdma(SdmaTransport),
    #[cfg(feature = "rdma")]
    Rdma(RdmaTransport),
    Custom(Custom),
}

/// A transport that the caller brought.
#[derive(Debug)]
struct Custom(Box<dyn Transport>);

#[enum_dispatch::enum_dispatch]
trait AsTransport {
    fn get(&self) -> &dyn Transport;
    fn get_mut(&mut self) -> &mut dyn Transport;
}

impl<T: Transport> AsTransport for T {
    fn get(&self) -> &dyn Transport {
        self
    }

    fn get_mut(&mut self) -> &mut dyn Transport {
        self
    }
}

impl AsTransport for Custom {
    fn get(&self) -> &dyn Transport {
        self.0.as_ref()
    }

    fn get_mut(&mut self) -> &mut dyn Transport {
        self.0.as_mut()
    }
}

/// The transports of a rank in the configured order.
#[derive(Debug)]
pub(crate) struct Transports {
    ordered: Vec<(TransportKind, AnyTransport)>,
}

/// What an engine gets for its first packets at least, on a machine with much else to do.
#[cfg(feature = "sdma")]
const LEAST_PATIENCE: Duration = Duration::from_secs(1);

/// The most characters of a reason that every peer gets.
const MOST_REASON: usize = 400;

/// What one rank offers of a region: one entry a transport, in the configured order; or why it offers nothing over it, for peers that
/// would have used it.
pub(crate) type Offers = Vec<Result<Vec<u8>, String>>;

/// A peer's region as opened by the transport at this place in the order.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) memory: Box<dyn PeerMemory>,
    pub(crate) route: Route,
    pub(crate) place: usize,
}

impl Transports {
    /// The transports that the configuration names, among these ranks; `brought` ones take precedence over built-in ones of their kind. The
    /// built-in `p2p` maps peers into `window` where there is one.
    ///
    /// # Errors
    /// [`Error::NotBuilt`].
    pub(crate) fn new(
        config: &WorldConfig,
        device: &anabranch_hip::Device,
        local: &PeerInfo,
        peers: &[PeerInfo],
        mut brought: Vec<Box<dyn Transport>>,
        window: Option<&Arc<FlatWindow>>,
    ) -> Result<Self> {
        let transport = |kind: &TransportKind| {
            if let Some(index) = brought.iter().position(|transport| transport.kind() == *kind) {
                return Ok((*kind, Custom(brought.swap_remove(index)).into()));
            }
            let (device, local) = (device.clone(), local.clone());
            let built = match kind {
                TransportKind::P2p => match window {
                    None => P2pTransport::new(device, local).into(),
                    Some(window) => P2pTransport::with_window(device, local, Arc::clone(window)).into(),
                },
                #[cfg(feature = "sdma")]
                TransportKind::Sdma => {
                    // Engines to all ranks may be dead, and be found so in half the time that joining may take.
                    let share = config.rendezvous_deadline / (2 * peers.len().max(1) as u32);
                    let patience = share.max(LEAST_PATIENCE).min(config.sdma.patience);
                    let sdma = SdmaConfig { patience, ..config.sdma };
                    SdmaTransport::new(device, local, window.cloned(), sdma).into()
                }
                #[cfg(feature = "rdma")]
                TransportKind::Rdma => {
                    let driver = config.nic.open(&device, &local, peers, &config.rdma);
                    RdmaTransport::new(device, local, peers.len() as u32, driver, config.rdma.clone()).into()
                }
                #[cfg(not(all(feature = "sdma", feature = "rdma")))]
                kind => {
                    // Peers serve the transports of other builds.
                    let _ = peers;
                    return Err(Error::NotBuilt { kind: *kind });
                }
            };
            Ok((*kind, built))
        };
        Ok(Self { ordered: config.transports.iter().map(transport).collect::<Result<_>>()? })
    }

    /// The place in the order of the built-in `p2p`, which maps flat ranges.
    pub(crate) fn built_in_p2p(&self) -> Option<usize> {
        self.ordered.iter().position(|(_, transport)| matches!(transport, AnyTransport::P2p(_)))
    }

    pub(crate) fn kind(&self, place: usize) -> Option<TransportKind> {
        self.ordered.get(place).map(|(kind, _)| *kind)
    }

    /// The cell of the operation matrix for the transport of this kind.
    pub(crate) fn support(&self, kind: TransportKind, operation: Operation, scope: Scope) -> Support {
        let found = self.ordered.iter().find(|(other, _)| *other == kind);
        match found {
            Some((_, transport)) => transport.get().support(operation, scope),
            None => Support::Unsupported,
        }
    }

    /// Offers a region over every transport. For one that cannot, the reason stands in its place, unless no transport can.
    pub(crate) fn export(&self, region: Region, audience: Audience) -> Result<Offers> {
        let mut offers = Vec::with_capacity(self.ordered.len());
        let mut first_error = None;
        for (kind, transport) in &self.ordered {
            let offer = match transport.get().export(region, audience) {
                Ok(offer) => Ok(offer),
                Err(error) => {
                    tracing::debug!(%kind, %error, "no offer over this transport");
                    let reason = anabranch_hip::with_causes(&error).chars().take(MOST_REASON).collect();
                    first_error = first_error.or(Some(error));
                    Err(reason)
                }
            };
            offers.push(offer);
        }
        match first_error {
            Some(error) if offers.iter().all(Result::is_err) => Err(error.into()),
            _ => Ok(offers),
        }
    }

    /// Opens a peer's region over the first transport in order that reaches the peer and has an offer.
    pub(crate) fn connect(&self, peer: &PeerInfo, offers: &Offers, bytes: u64) -> Result<Opened> {
        let mut considered = Vec::new();
        for (place, (kind, transport)) in self.ordered.iter().enumerate() {
            let transport = transport.get();
            let reach = match transport.reaches(peer) {
                Ok(reach) => reach,
                Err(refusal) => {
                    considered.push((*kind, refusal));
                    continue;
                }
            };
            let offer = match offers.get(place) {
                Some(Ok(offer)) => offer,
                nothing => {
                    let mut cause = "the peer offers nothing over it".to_owned();
                    if let Some(Err(reason)) = nothing {
                        cause = format!("{cause}: {reason}");
                    }
                    considered.push((*kind, Refusal::Failed { cause }));
                    continue;
                }
            };
            match transport.open(peer, offer, bytes) {
                Ok(memory) => {
                    let route = Route { peer: peer.rank, kind: *kind, reason: reach.reason, considered };
                    return Ok(Opened { memory, route, place });
                }
                Err(error) => {
                    let refusal = Refusal::from_error(&error);
                    tracing::warn!(peer = peer.rank.get(), %kind, %refusal, "a transport reaches a peer and does not open");
                    considered.push((*kind, refusal));
                }
            }
        }
        Err(Error::Unreachable { peer: peer.rank, considered })
    }

    /// Opens another region of a peer that is connected over the transport at `place`.
    pub(crate) fn open(
        &self,
        place: usize,
        peer: &PeerInfo,
        offers: &Offers,
        bytes: u64,
    ) -> Result<Box<dyn PeerMemory>> {
        let transport = self.at(place);
        match (transport, offers.get(place)) {
            (Some(transport), Some(Ok(offer))) => Ok(transport.open(peer, offer, bytes)?),
            (Some(transport), Some(Err(reason))) => {
                let cause = format!("the peer offers nothing over it: {reason}");
                let considered = vec![(transport.kind(), Refusal::Failed { cause })];
                Err(Error::Unreachable { peer: peer.rank, considered })
            }
            _ => Err(Error::Unreachable { peer: peer.rank, considered: Vec::new() }),
        }
    }

    /// The transport at a place of the order.
    pub(crate) fn at(&self, place: usize) -> Option<&dyn Transport> {
        self.ordered.get(place).map(|(_, transport)| transport.get())
    }

    /// All, in their order.
    pub(crate) fn all(&self) -> impl Iterator<Item = &dyn Transport> {
        self.ordered.iter().map(|(_, transport)| transport.get())
    }

    /// Whether the order has the built-in `sdma`.
    pub(crate) fn has_engines(&self) -> bool {
        #[cfg(feature = "sdma")]
        return self.sdma().is_some();
        #[cfg(not(feature = "sdma"))]
        false
    }

    /// Whether kernels put packets into queues of copy engines.
    pub(crate) fn has_engine_queues(&self) -> bool {
        #[cfg(feature = "sdma")]
        return self.sdma().is_some_and(SdmaTransport::is_device_initiated);
        #[cfg(not(feature = "sdma"))]
        false
    }

    #[cfg(feature = "sdma")]
    fn sdma(&self) -> Option<&SdmaTransport> {
        self.ordered.iter().find_map(|(_, transport)| match transport {
            AnyTransport::Sdma(transport) => Some(transport),
            _ => None,
        })
    }

    /// The entries of a peer in a team's table of queues, where it has the rank `group_rank`: of its queues, if the transport at
    /// `place` is the built-in `sdma`, else the same number that name a mapping.
    #[cfg(feature = "sdma")]
    pub(crate) fn engine_entries(&self, place: usize, peer: GlobalRank, group_rank: u32) -> Vec<SdmaQueue> {
        match (self.ordered.get(place), self.sdma()) {
            (Some((_, AnyTransport::Sdma(sdma))), _) => sdma.queues(peer, group_rank),
            (_, Some(sdma)) => vec![bytemuck::Zeroable::zeroed(); sdma.queues_per_peer() as usize],
            (_, None) => Vec::new(),
        }
    }

    #[cfg(not(feature = "sdma"))]
    pub(crate) fn engine_entries(&self, _: usize, _: GlobalRank, _: u32) -> Vec<SdmaQueue> {
        Vec::new()
    }

    /// The built-in `rdma`.
    #[cfg(feature = "rdma")]
    pub(crate) fn rdma(&self) -> Option<&RdmaTransport> {
        self.ordered.iter().find_map(|(_, transport)| match transport {
            AnyTransport::Rdma(transport) => Some(transport),
            _ => None,
        })
    }

    /// Whose entries kernels write where some peer is reached by the built-in `rdma`, and which atomic operations its NIC has.
    #[cfg(feature = "rdma")]
    pub(crate) fn nic_format(&self) -> Option<(Provider, Atomics)> {
        self.rdma().and_then(RdmaTransport::format)
    }

    /// Whether the transport at `place` is the built-in `rdma`.
    pub(crate) fn is_rdma(&self, place: usize) -> bool {
        #[cfg(feature = "rdma")]
        return matches!(self.ordered.get(place), Some((_, AnyTransport::Rdma(_))));
        #[cfg(not(feature = "rdma"))]
        {
            let _ = place;
            false
        }
    }

    /// The entries of a peer in a team's table of queue pairs, as [`Self::engine_entries`] has them of copy engines.
    #[cfg(feature = "rdma")]
    pub(crate) fn nic_entries(&self, place: usize, peer: GlobalRank, group_rank: u32) -> Vec<RdmaQueue> {
        match self.rdma().filter(|rdma| rdma.format().is_some()) {
            Some(rdma) if self.is_rdma(place) => rdma.queues(peer, group_rank),
            Some(rdma) => RdmaTransport::mapped(rdma.queues_per_peer(), group_rank),
            None => Vec::new(),
        }
    }

    #[cfg(not(feature = "rdma"))]
    pub(crate) fn nic_entries(&self, _: usize, _: GlobalRank, _: u32) -> Vec<RdmaQueue> {
        Vec::new()
    }

    /// Who of these peers has to open this rank's offers.
    pub(crate) fn audience<'a>(local: &PeerInfo, peers: impl IntoIterator<Item = &'a PeerInfo>) -> Audience {
        if peers.into_iter().all(|peer| peer.same_process(local)) {
            Audience::ThisProcess
        } else {
            Audience::ThisHost
        }
    }

    /// In the place of [`Self::close`] where kernels may be in flight that never end.
    pub(crate) fn abandon(&mut self) {
        for (_, transport) in &mut self.ordered {
            transport.get_mut().abandon();
        }
    }

    pub(crate) fn close(&mut self) {
        for (_, transport) in &mut self.ordered {
            transport.get_mut().close();
        }
    }
}
