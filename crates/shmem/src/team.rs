//! A group with what kernels need to reach its members.

use std::sync::PoisonError;

use anabranch_hip::{DeviceAddress, Stream};
use anabranch_hip_jit::control::WaitControl;
use anabranch_hip_jit::{DevicePointer, DeviceStruct, KernelSpec, KernelUnit, PRELUDE, device_struct};
use anabranch_ranks::{Group, GroupRank};
use anabranch_transport::{Operation, Scope};

use crate::collective::group_id;
use crate::error::Result;
use crate::fault::OperationCode;
use crate::heap::{DEFAULT_ALIGNMENT, SymmetricMemory};
use crate::tables::Table;
use crate::world::World;

device_struct! {
    /// What a kernel knows about its group. Passed by value inside argument structs; a kernel sees group ranks only.
    pub struct TeamView {
        /// Members.
        pub size: u32,
        /// This rank's place in the group.
        pub rank: u32,
        /// The group's number, for fault records.
        pub group: u64,
        /// Where each member's heap starts as this rank sees it, in group order, its own included. Null for a member that
        /// is not mapped here.
        pub peer_bases: DevicePointer<u64>,
        /// The world's words for bounded waits.
        pub control: DevicePointer<WaitControl>,
    }
}

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

/// The barrier kernel, for building ahead.
pub static TEAM_BARRIER_UNIT: KernelUnit = KernelUnit {
    name: "team_barrier",
    source: include_str!("../kernels/team_barrier.hip"),
    headers: &[PRELUDE],
    entries: &[TEAM_BARRIER_ENTRY],
    layouts: &[TeamBarrierArgs::c_declaration],
};
const TEAM_BARRIER_ENTRY: &str = "anabranch_team_barrier";
const MOST_BARRIER_THREADS: u32 = 256;

/// A group of ranks, ready for kernels: its peer table in device memory, and a barrier of its own.
///
/// Several teams of one group are independent of each other. Dropping one needs no peer; whoever drops it has seen to it
/// that no kernel uses its view any more.
#[derive(Debug)]
pub struct Team {
    world: World,
    group: Group,
    rank: GroupRank,
    view: TeamView,
    flags: SymmetricMemory,
    /// The peer table and, behind it, the barrier's epoch.
    table: Table,
}

impl World {
    /// Makes a team of the group. Collective over the group. Compiles and loads the barrier kernel if need be.
    ///
    /// # Errors
    /// Those of [`World::allocate`] and of the kernel pipeline, on all members alike.
    pub fn team(&self, group: &Group) -> Result<Team> {
        let loaded = self.barrier_is_possible(group).and_then(|()| self.barrier_kernel());
        let flag_bytes = u64::from(group.size()) * size_of::<u64>() as u64;
        let flags = self.allocate_after(group, flag_bytes, DEFAULT_ALIGNMENT, "team flags", loaded)?;
        // The group contains this rank, or the collective call above had failed.
        let rank = group.rank_of(self.rank()).unwrap_or(GroupRank::new(0));
        let bases = group.members().iter().map(|member| self.peer_base(*member).map_or(0, |base| base.0));
        let mut words: Vec<u64> = bases.collect();
        words.push(0);
        let written = self.inner.tables.write(&words);
        let status = written.as_ref().map(|_| ()).map_err(|error| crate::error::with_causes(error));
        self.agree_status(group, "team table", status)?;
        let table = written?;
        let id = group_id(group);
        self.inner.groups.lock().unwrap_or_else(PoisonError::into_inner).insert(id, group.clone());
        let view = TeamView {
            size: group.size(),
            rank: rank.get(),
            group: id,
            peer_bases: DevicePointer::new(table.address()),
            control: self.control(),
        };
        Ok(Team { world: self.clone(), group: group.clone(), rank, view, flags, table })
    }

    fn barrier_is_possible(&self, group: &Group) -> Result<()> {
        for route in group.members().iter().filter_map(|member| self.routes().get(member.index())) {
            let (operation, scope) = (Operation::TeamBarrier, Scope::Stream);
            self.support(route.peer, operation, scope).require(operation, scope, route.kind)?;
        }
        Ok(())
    }

    fn barrier_kernel(&self) -> Result<()> {
        let mut kernel = self.inner.barrier_kernel.lock().unwrap_or_else(PoisonError::into_inner);
        if kernel.is_none() {
            let unit = self.jit().load(self.device(), &KernelSpec::new(&TEAM_BARRIER_UNIT))?;
            *kernel = Some(unit.kernel(TEAM_BARRIER_ENTRY)?.clone());
        }
        Ok(())
    }
}

impl Team {
    /// What kernels get. Valid while the team is.
    pub fn view(&self) -> TeamView {
        self.view
    }

    /// The group.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// This rank's place in the group.
    pub fn rank(&self) -> GroupRank {
        self.rank
    }

    /// Members.
    pub fn size(&self) -> u32 {
        self.group.size()
    }

    /// The world.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Where a member's heap starts as kernels of this rank see it; `None` when it is not mapped, or not a member.
    pub fn peer_base(&self, peer: GroupRank) -> Option<DeviceAddress> {
        self.world.peer_base(self.group.global(peer)?)
    }

    /// Puts a barrier on the stream: what follows on it runs after what came before the barrier on the streams of all
    /// members, and sees its writes to the heap. Returns at once. All members call, in the same order; may be captured
    /// into a graph that all members replay.
    ///
    /// # Errors
    /// What made the world fail, or the launch's error. That a member did not come shows at the next
    /// [`World::check`] or [`World::synchronize`].
    pub fn barrier(&self, stream: &Stream) -> Result<()> {
        self.world.check()?;
        let kernel = self.world.inner.barrier_kernel.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Set when the team was made.
        let Some(kernel) = kernel else { return Ok(()) };
        let wave = self.world.device().wave_size();
        let threads = self.size().next_multiple_of(wave).min(MOST_BARRIER_THREADS.max(wave));
        let arguments = TeamBarrierArgs {
            team: self.view,
            flags: self.flags.offset(),
            epoch: DevicePointer::new(self.table.address().offset(u64::from(self.size()) * 8)),
            operation: OperationCode::TEAM_BARRIER.0,
            reserved: 0,
        };
        // SAFETY: the struct is the kernel's (its layout is asserted by the device compiler). The table, the control words
        // and the heap live as long as the world's inner part, which waits for the device before it frees them; peers'
        // mappings are closed by `leave`, which waits for the device too, and the check above refuses after it.
        unsafe { kernel.launch(1, threads, 0, stream, &arguments) }?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_passes_the_lints() {
        let found = anabranch_hip_jit::lint::lint_source("team_barrier.hip", TEAM_BARRIER_UNIT.source);
        assert!(found.is_empty(), "{found:#?}");
    }
}
