//! The kernels of teams: their arguments, and the units that have them.

use anabranch_hip::Device;
use anabranch_hip_jit::{DevicePointer, Jit, KernelSpec, LoadedKernel, device_struct, kernel_unit};

#[cfg(feature = "rdma")]
use anabranch_transport_rdma::{Atomics, Provider};

use super::view::TeamView;
use crate::device_api::{BarrierWorkspace, DEVICE_HEADERS};
use crate::error::Result;

device_struct! {
    /// Arguments of `anabranch_team_barrier`.
    pub struct TeamBarrierArgs {
        /// The team.
        pub team: TeamView,
        /// Offset in the heap of one 64-bit flag for each member.
        pub flags: u64,
        /// This rank's epoch of the barrier.
        pub epoch: DevicePointer<u64>,
        /// The operation's number in fault records.
        pub operation: u32,
        /// Zero.
        pub reserved: u32,
    }
}

device_struct! {
    /// Arguments of `anabranch_team_signal` and `anabranch_team_signal_wait`.
    pub struct TeamSignalArgs {
        /// The team.
        pub team: TeamView,
        /// The word, as mapped here.
        pub word: DevicePointer<u64>,
        /// What is set, added or waited for.
        pub value: u64,
        /// Of a signal: 0 sets, 1 adds. Of a wait: the group rank that signals.
        pub how: u32,
        /// The operation's number in fault records.
        pub operation: u32,
    }
}

kernel_unit! {
    /// The barrier and the signals in stream order.
    pub static TEAM_BARRIER_UNIT: "team_barrier", include_str!("../../kernels/team_barrier.hip");
    const BARRIER: Kernel<TeamBarrierArgs> = "anabranch_team_barrier";
    const SIGNAL: Kernel<TeamSignalArgs> = "anabranch_team_signal";
    const SIGNAL_WAIT: Kernel<TeamSignalArgs> = "anabranch_team_signal_wait";
}

device_struct! {
    /// One copy by the engines to a peer.
    pub struct EngineCopy {
        /// Where from, as this rank's device knows it.
        pub source: u64,
        /// Where to.
        pub target: u64,
        /// How many bytes.
        pub bytes: u64,
        /// Whose queues, as a rank of the group.
        pub peer: u32,
        /// Zero.
        pub reserved: u32,
    }
}

device_struct! {
    /// Arguments of `anabranch_engine_copies`. One block of one wave.
    pub struct EngineCopiesArgs {
        /// The team, with its queues.
        pub team: TeamView,
        /// The first `count` are copies.
        pub copies: [EngineCopy; 32],
        /// How many.
        pub count: u32,
        /// The operation's number in fault records.
        pub operation: u32,
    }
}

kernel_unit! {
    /// Copies by copy engines in stream order.
    pub static ENGINE_COPIES_UNIT: "engine_copies", include_str!("../../kernels/engine_copies.hip"), &[DEVICE_HEADERS], layouts [BarrierWorkspace];
    const ENGINE_COPIES: Kernel<EngineCopiesArgs> = "anabranch_engine_copies";
}

/// The unit as worlds with such queues load it, for building ahead.
pub fn engine_copies_kernel() -> KernelSpec {
    KernelSpec::new(&ENGINE_COPIES_UNIT).with("SHMEM_ENGINES", 1)
}

device_struct! {
    /// One copy by NIC.
    pub struct NicCopy {
        /// This rank's side: in its heap, or registered ([`World::register_local`](crate::World::register_local)).
        pub local: u64,
        /// Where in the peer's heap.
        pub offset: u64,
        /// How many bytes.
        pub bytes: u64,
        /// Whose queue pairs, as a rank of the group.
        pub peer: u32,
        /// Whether it is to this rank.
        pub is_get: u32,
    }
}

device_struct! {
    /// Arguments of `anabranch_nic_copies`. One block of one wave.
    pub struct NicCopiesArgs {
        /// The team, with its queue pairs.
        pub team: TeamView,
        /// The first `count` are copies.
        pub copies: [NicCopy; 32],
        /// How many.
        pub count: u32,
        /// The operation's number in fault records.
        pub operation: u32,
    }
}

device_struct! {
    /// Arguments of `anabranch_nic_signal`. One block of one wave.
    pub struct NicSignalArgs {
        /// The team.
        pub team: TeamView,
        /// Offset in the heap of the word.
        pub offset: u64,
        /// What is set or added.
        pub value: u64,
        /// Whose word, as a rank of the group.
        pub peer: u32,
        /// Whether the value is added; else it is set.
        pub adds: u32,
        /// The operation's number in fault records.
        pub operation: u32,
        /// Zero.
        pub reserved: u32,
    }
}

device_struct! {
    /// Arguments of `anabranch_nic_drain`. One block of one wave.
    pub struct NicDrainArgs {
        /// The team, with its queue pairs.
        pub team: TeamView,
        /// The operation's number in fault records.
        pub operation: u32,
        /// Zero.
        pub reserved: u32,
    }
}

device_struct! {
    /// Arguments of `anabranch_nic_probe`. One block of one wave.
    pub struct NicProbeArgs {
        /// All ranks, with their queue pairs.
        pub team: TeamView,
        /// A word for each queue pair, in the order of the table.
        pub seen: DevicePointer<u64>,
        /// The operation's number in fault records.
        pub operation: u32,
        /// Whether the NIC itself writes `seen`, which is registered memory of the host then.
        pub into_host: u32,
    }
}

kernel_unit! {
    /// Barrier, copies and signals of a team by NIC, in stream order.
    pub static NIC_TEAM_UNIT: "nic_team", include_str!("../../kernels/nic_team.hip"), &[DEVICE_HEADERS], layouts [BarrierWorkspace];
    const NIC_BARRIER: Kernel<TeamBarrierArgs> = "anabranch_nic_team_barrier";
    const NIC_COPIES: Kernel<NicCopiesArgs> = "anabranch_nic_copies";
    const NIC_SIGNAL: Kernel<NicSignalArgs> = "anabranch_nic_signal";
    const NIC_DRAIN: Kernel<NicDrainArgs> = "anabranch_nic_drain";
    const NIC_PROBE: Kernel<NicProbeArgs> = "anabranch_nic_probe";
}

/// The unit as worlds load it whose NICs have this format, for building ahead.
#[cfg(feature = "rdma")]
pub fn nic_team_kernel(provider: Provider, atomics: Atomics) -> KernelSpec {
    for_nic(KernelSpec::new(&NIC_TEAM_UNIT), provider, atomics)
}

/// A unit as [`World::kernel`](crate::World::kernel) gives it to kernels that reach peers by a NIC of this format, for building ahead.
#[cfg(feature = "rdma")]
pub fn for_nic(spec: KernelSpec, provider: Provider, atomics: Atomics) -> KernelSpec {
    spec.with("SHMEM_NIC", 1).with("RDMA_PROVIDER", provider.number()).with("RDMA_ATOMICS", atomics.number())
}

/// The kernels of teams, loaded once for a world.
#[derive(Clone, Debug)]
pub(crate) struct TeamKernels {
    pub(crate) barrier: LoadedKernel<TeamBarrierArgs>,
    pub(crate) signal: LoadedKernel<TeamSignalArgs>,
    pub(crate) signal_wait: LoadedKernel<TeamSignalArgs>,
    /// Where copies go by queues of copy engines.
    pub(crate) engine_copies: Option<LoadedKernel<EngineCopiesArgs>>,
    /// Where members may be reached by NIC.
    pub(crate) nic: Option<NicKernels>,
}

/// The kernels of a world with a NIC.
#[derive(Clone, Debug)]
pub(crate) struct NicKernels {
    pub(crate) barrier: LoadedKernel<TeamBarrierArgs>,
    pub(crate) copies: LoadedKernel<NicCopiesArgs>,
    pub(crate) signal: LoadedKernel<NicSignalArgs>,
    pub(crate) drain: LoadedKernel<NicDrainArgs>,
    #[cfg(feature = "rdma")]
    pub(crate) probe: LoadedKernel<NicProbeArgs>,
}

impl TeamKernels {
    /// `nic` is [`NIC_TEAM_UNIT`] as this rank's NIC needs it.
    pub(crate) fn load(
        jit: &Jit,
        device: &Device,
        has_engine_queues: bool,
        nic: Option<&KernelSpec>,
    ) -> Result<Self> {
        let unit = jit.load(device, &KernelSpec::new(&TEAM_BARRIER_UNIT))?;
        let engine_copies = has_engine_queues
            .then(|| jit.load(device, &engine_copies_kernel())?.get(ENGINE_COPIES))
            .transpose()?;
        Ok(Self {
            barrier: unit.get(BARRIER)?,
            signal: unit.get(SIGNAL)?,
            signal_wait: unit.get(SIGNAL_WAIT)?,
            engine_copies,
            nic: nic.map(|spec| NicKernels::load(jit, device, spec)).transpose()?,
        })
    }
}

impl NicKernels {
    pub(crate) fn load(jit: &Jit, device: &Device, spec: &KernelSpec) -> Result<Self> {
        let unit = jit.load(device, spec)?;
        Ok(Self {
            barrier: unit.get(NIC_BARRIER)?,
            copies: unit.get(NIC_COPIES)?,
            signal: unit.get(NIC_SIGNAL)?,
            drain: unit.get(NIC_DRAIN)?,
            #[cfg(feature = "rdma")]
            probe: unit.get(NIC_PROBE)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_pass_the_lints() {
        for unit in [&TEAM_BARRIER_UNIT, &ENGINE_COPIES_UNIT, &NIC_TEAM_UNIT] {
            let found = anabranch_testkit::lint::lint_source(unit.name, unit.source);
            assert!(found.is_empty(), "{found:#?}");
        }
    }
}
