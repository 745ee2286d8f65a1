//! How a world's ranks are reached: routes, what they support, and the queues of copy engines and NICs that lead there.

use anabranch_hip_jit::{KernelSpec, KernelUnit};
use anabranch_ranks::{GlobalRank, Group};
use anabranch_transport::{Operation, Route, Scope, Support};
use anabranch_transport_rdma::{Atomics, Provider, RdmaQueue};
use anabranch_transport_sdma::{SdmaQueue, SdmaTransport};

use crate::transports::Transports;
use crate::world::{Connections, World};

impl World {
    /// The transport that serves each rank, and why, in rank order.
    pub fn routes(&self) -> &[Route] {
        &self.inner.routes
    }

    /// Whether kernels of this rank can do `operation` at `scope` to `peer`. A plan asks before anything is launched.
    pub fn support(&self, peer: GlobalRank, operation: Operation, scope: Scope) -> Support {
        let Some(route) = self.inner.routes.get(peer.index()) else { return Support::Unsupported };
        self.inner
            .with_connections(|connections| connections.transports.support(route.kind, operation, scope))
    }

    /// A unit as kernels of this world need it: those that use the device functions of the heap (`shmem/shmem.h`) are compiled for
    /// copy engines and for this rank's NIC where the configured order has them. Equal on all ranks.
    pub fn kernel(&self, unit: &'static KernelUnit) -> KernelSpec {
        let spec = KernelSpec::new(unit);
        let (engines, nic) = self.inner.with_connections(|connections| {
            (connections.transports.sdma().is_some(), connections.transports.nic_format())
        });
        let spec = if engines { spec.with("SHMEM_ENGINES", 1) } else { spec };
        let Some((provider, atomics)) = nic else { return spec };
        for_nic(spec, provider, atomics)
    }

    /// Whose entries kernels write where some rank may be reached by NIC, and which atomic operations the NIC has.
    pub(crate) fn nic_format(&self) -> Option<(Provider, Atomics)> {
        self.inner.with_connections(|connections| connections.transports.nic_format())
    }

    /// The table of queue pairs for kernels of a group, and the entries for each member.
    pub(crate) fn nic_queues(&self, group: &Group) -> (Vec<RdmaQueue>, u32) {
        self.queues_of(group, Transports::nics)
    }

    /// What leads to each member of a group by the transport at its place, in group order, and how many to each.
    fn queues_of<Q>(
        &self,
        group: &Group,
        to_member: impl Fn(&Transports, usize, GlobalRank, u32) -> Vec<Q>,
    ) -> (Vec<Q>, u32) {
        self.inner.with_connections(|connections| {
            let of_member = |(member, group_rank): (&GlobalRank, u32)| {
                let place = connections.places.get(member.index()).copied().unwrap_or(usize::MAX);
                to_member(&connections.transports, place, *member, group_rank)
            };
            let queues: Vec<_> = group.members().iter().zip(0..).flat_map(of_member).collect();
            let each = queues.len() as u32 / group.size().max(1);
            (queues, each)
        })
    }

    /// Of the queue pairs to a rank: which they are, and why those stopped that did. Empty where its route is no NIC.
    pub fn nics(&self, rank: GlobalRank) -> Vec<(String, Option<String>)> {
        let describe =
            |connections: &Connections| connections.transports.rdma().map(|rdma| rdma.describe(rank));
        self.inner.with_connections(describe).unwrap_or_default()
    }

    /// Whether kernels of this rank reach a rank by NIC: its memory is not mapped, and the device functions of the heap put requests into
    /// queue pairs.
    pub fn is_by_nic(&self, rank: GlobalRank) -> bool {
        self.inner.with_connections(|connections| {
            let place = connections.places.get(rank.index());
            rank != self.rank() && place.is_some_and(|place| connections.transports.is_rdma(*place))
        })
    }

    /// Whether any peer is reached by NIC.
    pub(crate) fn uses_nic(&self, connections: &Connections) -> bool {
        let mut others = connections.places.iter().zip(0..).filter(|(_, rank)| *rank != self.rank().get());
        others.any(|(place, _)| connections.transports.is_rdma(*place))
    }

    /// Whether kernels put packets into queues of copy engines.
    pub(crate) fn has_engine_queues(&self) -> bool {
        self.inner.with_connections(|connections| {
            connections.transports.sdma().is_some_and(SdmaTransport::is_device_initiated)
        })
    }

    /// The table of queues for kernels of a group, and the entries for each member.
    pub(crate) fn engine_queues(&self, group: &Group) -> (Vec<SdmaQueue>, u32) {
        self.queues_of(group, Transports::queues)
    }

    /// Of the copy engines' queues to a rank: which engines serve them, and why those stopped that did. Empty where its route
    /// has none.
    pub fn engines(&self, rank: GlobalRank) -> Vec<(String, Option<String>)> {
        let describe =
            |connections: &Connections| connections.transports.sdma().map(|sdma| sdma.describe(rank));
        self.inner.with_connections(describe).unwrap_or_default()
    }
}

/// A unit as [`World::kernel`] gives it to kernels that reach peers by a NIC of this format, for building ahead.
pub fn for_nic(spec: KernelSpec, provider: Provider, atomics: Atomics) -> KernelSpec {
    spec.with("SHMEM_NIC", 1).with("RDMA_PROVIDER", provider.number()).with("RDMA_ATOMICS", atomics.number())
}
