//! How a world's ranks are reached: routes, what they support, and the queues of copy engines and NICs that lead there.

use std::sync::PoisonError;

use anabranch_hip::LaunchShape;
use anabranch_hip_jit::{KernelSpec, KernelUnit};
use anabranch_ranks::{GlobalRank, Group};
use anabranch_transport::{Operation, Route, Scope, Support};

use super::World;
use crate::error::Result;
#[cfg(feature = "rdma")]
use crate::route::for_nic;
use crate::route::{NIC_TEAM_UNIT, RdmaQueue, SdmaQueue, TeamKernels, Transports};

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
        let engines = self.inner.with_connections(|connections| connections.transports.has_engines());
        let spec = if engines { spec.with("SHMEM_ENGINES", 1) } else { spec };
        self.nic_kernel(spec.clone()).unwrap_or(spec)
    }

    /// A unit as it reaches peers by this rank's NIC; `None` without one.
    pub(crate) fn nic_kernel(&self, spec: KernelSpec) -> Option<KernelSpec> {
        #[cfg(feature = "rdma")]
        return self.inner.with_connections(|connections| {
            let (provider, atomics) = connections.transports.nic_format()?;
            Some(for_nic(spec, provider, atomics))
        });
        #[cfg(not(feature = "rdma"))]
        {
            drop(spec);
            None
        }
    }

    /// The table of queue pairs for kernels of a group, and the entries for each member.
    pub(crate) fn nic_queues(&self, group: &Group) -> (Vec<RdmaQueue>, u32) {
        self.queues_of(group, Transports::nic_entries)
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

    /// The queues of the transport that serves a rank: a description of each, and the reason of those that have stopped. Empty where the
    /// route has none.
    pub fn queues_to(&self, rank: GlobalRank) -> Vec<(String, Option<String>)> {
        self.inner
            .with_connections(|connections| Some(connections.route_to(rank)?.describe_queues(rank)))
            .unwrap_or_default()
    }

    /// Whether kernels of this rank reach a rank by NIC: its memory is not mapped, and the device functions of the heap put requests into
    /// queue pairs.
    pub fn is_by_nic(&self, rank: GlobalRank) -> bool {
        self.inner.with_connections(|connections| {
            let place = connections.places.get(rank.index());
            rank != self.rank() && place.is_some_and(|place| connections.transports.is_rdma(*place))
        })
    }

    /// The shape of kernels that ask for copies and signals: one block of one wave.
    pub(crate) fn one_wave(&self) -> LaunchShape {
        LaunchShape { grid_blocks: 1, block_threads: self.device().wave_size(), local_bytes: 0 }
    }

    /// The kernels of teams, loaded when they are first asked for.
    pub(crate) fn team_kernels(&self) -> Result<TeamKernels> {
        let mut kernels = self.inner.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(loaded) = &*kernels {
            return Ok(loaded.clone());
        }
        let nic = self.nic_kernel(KernelSpec::new(&NIC_TEAM_UNIT));
        let loaded = TeamKernels::load(self.jit(), self.device(), self.has_engine_queues(), nic.as_ref())?;
        Ok(kernels.insert(loaded).clone())
    }

    /// Whether kernels put packets into queues of copy engines.
    fn has_engine_queues(&self) -> bool {
        self.inner.with_connections(|connections| connections.transports.has_engine_queues())
    }

    /// The table of queues for kernels of a group, and the entries for each member.
    pub(crate) fn engine_queues(&self, group: &Group) -> (Vec<SdmaQueue>, u32) {
        self.queues_of(group, Transports::engine_entries)
    }
}
