//! What the host asks of members that are reached by NIC, in the order of a stream: kernels of one wave put requests into queue pairs and
//! wait until they are done.

use anabranch_hip::{DeviceAddress, Stream};
use anabranch_hip_jit::{
    DevicePointer, DeviceStruct as _, KernelSpec, KernelUnit, PRELUDE, TypedKernel, device_struct,
};
use anabranch_ranks::GroupRank;
use anabranch_transport_rdma::{Atomics, Provider};
use bytemuck::Zeroable as _;

use crate::device_api::{BarrierWorkspace, DEVICE_HEADERS};
use crate::error::{Error, Result};
use crate::fault::OperationCode;
use crate::flight::MemoryUse;
use crate::reach::for_nic;
use crate::team::{Team, TeamBarrierArgs, TeamView};

/// Copies of one launch.
const MOST_COPIES: usize = 32;

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

/// The unit as worlds load it whose NICs have this format, for building ahead.
pub fn nic_team_kernel(provider: Provider, atomics: Atomics) -> KernelSpec {
    for_nic(KernelSpec::new(&NIC_TEAM_UNIT), provider, atomics)
}

/// Barrier, copies and signals of a team by NIC, in stream order.
pub static NIC_TEAM_UNIT: KernelUnit = KernelUnit {
    name: "nic_team",
    source: include_str!("../kernels/nic_team.hip"),
    headers: &[PRELUDE, DEVICE_HEADERS],
    entries: &[BARRIER_ENTRY, COPIES_ENTRY, SIGNAL_ENTRY, DRAIN_ENTRY, PROBE_ENTRY],
    layouts: &[
        BarrierWorkspace::c_declaration,
        TeamBarrierArgs::c_declaration,
        NicCopiesArgs::c_declaration,
        NicSignalArgs::c_declaration,
        NicDrainArgs::c_declaration,
        NicProbeArgs::c_declaration,
    ],
};
const BARRIER_ENTRY: &str = "anabranch_nic_team_barrier";
const COPIES_ENTRY: &str = "anabranch_nic_copies";
const SIGNAL_ENTRY: &str = "anabranch_nic_signal";
const DRAIN_ENTRY: &str = "anabranch_nic_drain";
const PROBE_ENTRY: &str = "anabranch_nic_probe";

/// The kernels of a world with a NIC.
#[derive(Clone, Debug)]
pub(crate) struct NicKernels {
    pub(crate) barrier: TypedKernel,
    pub(crate) probe: TypedKernel,
    pub(crate) drain: TypedKernel,
    copies: TypedKernel,
    signal: TypedKernel,
}

pub(crate) fn load(world: &crate::World) -> Result<Option<NicKernels>> {
    let Some((provider, atomics)) = world.nic_format() else { return Ok(None) };
    let unit = world.jit().load(world.device(), &nic_team_kernel(provider, atomics))?;
    let kernel = |entry| unit.kernel(entry).cloned();
    Ok(Some(NicKernels {
        barrier: kernel(BARRIER_ENTRY)?,
        probe: kernel(PROBE_ENTRY)?,
        copies: kernel(COPIES_ENTRY)?,
        signal: kernel(SIGNAL_ENTRY)?,
        drain: kernel(DRAIN_ENTRY)?,
    }))
}

impl NicCopy {
    /// A copy of `bytes` at `local` to a member's heap.
    pub(crate) fn put(peer: GroupRank, offset: u64, local: DeviceAddress, bytes: u64) -> Self {
        Self { local: local.0, offset, bytes, peer: peer.get(), is_get: 0 }
    }

    /// A copy of `bytes` of a member's heap to `local`.
    pub(crate) fn get(peer: GroupRank, offset: u64, local: DeviceAddress, bytes: u64) -> Self {
        Self { is_get: 1, ..Self::put(peer, offset, local, bytes) }
    }
}

impl Team {
    fn nic_kernels(&self, peer: GroupRank) -> Result<&NicKernels> {
        let rank = self.group().global(peer).ok_or(Error::NoPart { what: "a copy by NIC", peer })?;
        self.nic().ok_or_else(|| Error::Unreachable { peer: rank, considered: Vec::new() })
    }

    /// Puts copies on the stream, in kernels of [`MOST_COPIES`] each. The members are reached by NIC.
    ///
    /// # Errors
    /// The launch's.
    ///
    /// # Safety
    /// The local sides are memory of this rank, stay so and are used by nobody else until the stream has passed the kernels, and so are the
    /// members' sides.
    pub(crate) unsafe fn copy_by_nic(&self, stream: &Stream, copies: &[NicCopy]) -> Result<()> {
        for some in copies.chunks(MOST_COPIES) {
            let Some(first) = some.first() else { continue };
            let kernels = self.nic_kernels(GroupRank::new(first.peer))?;
            let mut arguments = NicCopiesArgs {
                team: self.view(),
                count: some.len() as u32,
                operation: OperationCode::NIC_COPY.0,
                ..NicCopiesArgs::zeroed()
            };
            for (place, copy) in arguments.copies.iter_mut().zip(some) {
                *place = *copy;
            }
            let wave = self.world().device().wave_size();
            // SAFETY: the kernel's struct; the queue pairs stay while the world's connections do, and for the rest the caller has
            // promised.
            unsafe { kernels.copies.launch(1, wave, 0, stream, &arguments) }?;
        }
        Ok(())
    }

    /// Puts a signal on the stream, to the word at `offset` of the heap of a member that is reached by NIC. Its allocation is kept until the
    /// stream has passed it, by the caller.
    ///
    /// # Errors
    /// The launch's.
    pub(crate) fn signal_by_nic(
        &self,
        stream: &Stream,
        offset: u64,
        value: u64,
        adds: bool,
        peer: GroupRank,
    ) -> Result<()> {
        let kernels = self.nic_kernels(peer)?;
        let arguments = NicSignalArgs {
            team: self.view(),
            offset,
            value,
            peer: peer.get(),
            adds: adds.into(),
            operation: OperationCode::NIC_SIGNAL.0,
            reserved: 0,
        };
        let wave = self.world().device().wave_size();
        // SAFETY: the kernel's struct; queue pairs and control words stay while the world's connections do, and the word is one of an
        // allocation that the caller keeps.
        unsafe { kernels.signal.launch(1, wave, 0, stream, &arguments) }?;
        Ok(())
    }

    /// Completes what this rank has put to members by NIC, behind everything that this team has launched: for who is about to drop the
    /// team, or `uses`, and has launched kernels that end before their puts do. Returns at once, and the team's table and `uses` stay
    /// until the puts have come to their end, by which nobody gets their place of the heap. Nothing where no member is reached by NIC. Not
    /// collective; no peer's kernel is waited for.
    ///
    /// What is not done within the operation deadline, or failed, is a fault of the world, with the member and the NIC's syndrome.
    ///
    /// # Errors
    /// Those of [`World::check`](crate::World::check). Where it cannot be launched in a world that works, that world has failed with it:
    /// a NIC may go on with memory that somebody else would get.
    pub fn complete_by_nic(&self, uses: &[MemoryUse]) -> Result<()> {
        let Some(kernels) = self.nic() else { return Ok(()) };
        if !self.group().ranks().any(|rank| self.is_by_nic(rank)) {
            return Ok(());
        }
        self.world().check()?;
        let arguments =
            NicDrainArgs { team: self.view(), operation: OperationCode::NIC_DRAIN.0, reserved: 0 };
        let wave = self.world().device().wave_size();
        let launched = self.completions().and_then(|stream| {
            self.launch_in_order(&stream, uses, || {
                // SAFETY: the kernel's struct; the team's table stays until the launch is over, and queue pairs while the world's
                // connections do.
                unsafe { kernels.drain.launch(1, wave, 0, &stream, &arguments) }?;
                Ok(())
            })
        });
        match launched {
            Ok(()) | Err(Error::Fault(_) | Error::Left) => {}
            Err(ref error) => {
                self.world().poison(&format!("what was put by NIC cannot be completed: {error}"));
            }
        }
        launched
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_pass_the_lints() {
        let found = anabranch_hip_jit::lint::lint_source("nic_team.hip", NIC_TEAM_UNIT.source);
        assert!(found.is_empty(), "{found:#?}");
    }
}
