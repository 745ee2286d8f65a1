//! The transports of a world, and which one serves each peer.

use std::sync::Arc;
use std::time::Duration;

use anabranch_ranks::GlobalRank;
use anabranch_transport::{
    Audience, Operation, Origin, PeerInfo, PeerMemory, Refusal, Region, Route, Scope, Support, Transport,
    TransportKind,
};
use anabranch_transport_p2p::{FlatWindow, P2pTransport};
use anabranch_transport_rdma::{Atomics, Provider, RdmaQueue, RdmaTransport};
use anabranch_transport_sdma::{SdmaConfig, SdmaQueue, SdmaTransport};

use crate::config::WorldConfig;
use crate::error::{Error, Result};

/// The trait's text once more, for `enum_dispatch` to read; the generated code names the real trait.
mod replayed {
    use enum_dispatch::enum_dispatch;

    anabranch_transport::transport_trait! {
        #[enum_dispatch]
    }
}

/// One transport, dispatched without a table of functions where it is built in.
#[enum_dispatch::enum_dispatch(Transport)]
#[derive(Debug)]
pub(crate) enum AnyTransport {
    P2p(P2pTransport),
    Sdma(SdmaTransport),
    Rdma(RdmaTransport),
    /// One that the user brought.
    Boxed(Box<dyn Transport>),
}

/// The transports of a rank in the configured order.
#[derive(Debug)]
pub(crate) struct Transports {
    ordered: Vec<(TransportKind, Option<AnyTransport>)>,
}

/// What an engine gets for its first packets at least, on a machine with much else to do.
const LEAST_PATIENCE: Duration = Duration::from_secs(1);

/// The most of a reason that every peer is told, in characters.
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
    pub(crate) fn new(
        config: &WorldConfig,
        device: &anabranch_hip::Device,
        local: &PeerInfo,
        peers: &[PeerInfo],
        brought: Vec<Box<dyn Transport>>,
        window: Option<&Arc<FlatWindow>>,
    ) -> Self {
        let mut brought = brought;
        let ordered = config.transports.iter().map(|kind| {
            let own = brought.iter().position(|transport| transport.kind() == *kind);
            let transport = match (own, kind) {
                (Some(index), _) => Some(AnyTransport::Boxed(brought.swap_remove(index))),
                (None, TransportKind::P2p) => {
                    let (device, local) = (device.clone(), local.clone());
                    Some(AnyTransport::P2p(match window {
                        None => P2pTransport::new(device, local),
                        Some(window) => P2pTransport::with_window(device, local, Arc::clone(window)),
                    }))
                }
                (None, TransportKind::Sdma) => {
                    let (device, local, window) = (device.clone(), local.clone(), window.cloned());
                    // Engines to all ranks may be dead, and be found so in half the time that joining may take.
                    let share = config.rendezvous_deadline / (2 * peers.len().max(1) as u32);
                    let patience = share.max(LEAST_PATIENCE).min(config.sdma.patience);
                    let sdma = SdmaConfig { patience, ..config.sdma };
                    Some(AnyTransport::Sdma(SdmaTransport::new(device, local, window, sdma)))
                }
                (None, TransportKind::Rdma) => {
                    let driver = config.nic.open(device, local, peers, &config.rdma);
                    let (device, local, ranks) = (device.clone(), local.clone(), peers.len() as u32);
                    let rdma = RdmaTransport::new(device, local, ranks, driver, config.rdma.clone());
                    Some(AnyTransport::Rdma(rdma))
                }
            };
            (*kind, transport)
        });
        Self { ordered: ordered.collect() }
    }

    /// The place in the order of the built-in `p2p`, which maps flat ranges.
    pub(crate) fn built_in_p2p(&self) -> Option<usize> {
        self.ordered.iter().position(|(_, transport)| matches!(transport, Some(AnyTransport::P2p(_))))
    }

    pub(crate) fn kind(&self, place: usize) -> Option<TransportKind> {
        self.ordered.get(place).map(|(kind, _)| *kind)
    }

    /// The cell of the operation matrix for the transport of this kind.
    pub(crate) fn support(&self, kind: TransportKind, operation: Operation, scope: Scope) -> Support {
        let found = self.ordered.iter().find(|(other, _)| *other == kind);
        match found {
            Some((_, Some(transport))) => transport.support(operation, scope),
            _ => Support::Unsupported,
        }
    }

    /// Offers a region over every transport. One that cannot offer it says why in its place, unless no other can.
    pub(crate) fn export(&self, region: Region, audience: Audience) -> Result<Offers> {
        let mut offers = Vec::with_capacity(self.ordered.len());
        let mut first_error = None;
        for (kind, transport) in &self.ordered {
            let offer = match transport.as_ref().map(|transport| transport.export(region, audience)) {
                Some(Ok(offer)) => Ok(offer),
                Some(Err(error)) => {
                    tracing::debug!(%kind, %error, "no offer over this transport");
                    let reason = anabranch_hip::with_causes(&error).chars().take(MOST_REASON).collect();
                    first_error = first_error.or(Some(error));
                    Err(reason)
                }
                None => Err(Refusal::NotBuilt { feature: kind.feature() }.to_string()),
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
            let Some(transport) = transport else {
                considered.push((*kind, Refusal::NotBuilt { feature: kind.feature() }));
                continue;
            };
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
        let transport = self.ordered.get(place).and_then(|(_, transport)| transport.as_ref());
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

    /// The built-in `sdma`.
    pub(crate) fn sdma(&self) -> Option<&SdmaTransport> {
        self.ordered.iter().find_map(|(_, transport)| match transport {
            Some(AnyTransport::Sdma(transport)) => Some(transport),
            _ => None,
        })
    }

    /// The entries of a peer in a team's table of queues, where it has the rank `group_rank`: of its queues, if the transport at
    /// `place` is the built-in `sdma`, else as many that say that it is mapped.
    pub(crate) fn queues(&self, place: usize, peer: GlobalRank, group_rank: u32) -> Vec<SdmaQueue> {
        match (self.ordered.get(place), self.sdma()) {
            (Some((_, Some(AnyTransport::Sdma(sdma)))), _) => sdma.queues(peer, group_rank),
            (_, Some(sdma)) => vec![bytemuck::Zeroable::zeroed(); sdma.queues_per_peer() as usize],
            (_, None) => Vec::new(),
        }
    }

    /// The built-in `rdma`.
    pub(crate) fn rdma(&self) -> Option<&RdmaTransport> {
        self.ordered.iter().find_map(|(_, transport)| match transport {
            Some(AnyTransport::Rdma(transport)) => Some(transport),
            _ => None,
        })
    }

    /// Whose entries kernels write where some peer is reached by the built-in `rdma`, and which atomic operations its NIC has.
    pub(crate) fn nic_format(&self) -> Option<(Provider, Atomics)> {
        self.rdma().and_then(RdmaTransport::format)
    }

    /// Whether the transport at `place` is the built-in `rdma`.
    pub(crate) fn is_rdma(&self, place: usize) -> bool {
        matches!(self.ordered.get(place), Some((_, Some(AnyTransport::Rdma(_)))))
    }

    /// The entries of a peer in a team's table of queue pairs, as [`Self::queues`] says them of copy engines.
    pub(crate) fn nics(&self, place: usize, peer: GlobalRank, group_rank: u32) -> Vec<RdmaQueue> {
        match self.rdma().filter(|rdma| rdma.format().is_some()) {
            Some(rdma) if self.is_rdma(place) => rdma.queues(peer, group_rank),
            Some(rdma) => RdmaTransport::mapped(rdma.queues_per_peer(), group_rank),
            None => Vec::new(),
        }
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
            if let Some(transport) = transport {
                transport.abandon();
            }
        }
    }

    pub(crate) fn close(&mut self) {
        for (_, transport) in &mut self.ordered {
            if let Some(transport) = transport {
                transport.close();
            }
        }
    }
}

/// Whether loads and stores of a kernel reach memory of this origin.
pub(crate) const fn is_mapped(origin: Origin) -> bool {
    match origin {
        Origin::Own | Origin::SameProcess | Origin::Ipc | Origin::Virtual => true,
        Origin::Remote => false,
    }
}
