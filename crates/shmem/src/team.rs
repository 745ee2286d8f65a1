//! A group with what kernels need to reach its members.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anabranch_hip::{DeviceAddress, Stream};
use anabranch_hip_jit::control::WaitControl;
use anabranch_hip_jit::{
    DevicePointer, DeviceStruct, KernelSpec, KernelUnit, LOCAL_RESERVED_BYTES, PRELUDE, TypedKernel,
    device_struct,
};
use anabranch_ranks::{Group, GroupRank};
use anabranch_transport::{Operation, Scope};
use anabranch_transport_rdma::RdmaQueue;
use anabranch_transport_sdma::SdmaQueue;

use crate::activity::{LaunchNote, NoteText};
use crate::collective::group_id;
use crate::engine_legs;
use crate::error::{Error, Result};
use crate::fault::OperationCode;
use crate::flight::{Held, InFlight, Keep, MemoryUse, launch_tracked};
use crate::heap::{DEFAULT_ALIGNMENT, SymmetricMemory};
use crate::host_api::TeamSignalArgs;
use crate::legs::LegStreams;
use crate::nic_team::{self, NicKernels};
use crate::residency::ResidencyPermit;
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
        /// The queues of copy engines by which members are reached: `queues_per_peer` for each, in group order. Null where there
        /// are none.
        pub queues: DevicePointer<SdmaQueue>,
        /// The queue pairs by which members are reached: `nics_per_peer` for each, in group order. Null where there are none.
        pub nics: DevicePointer<RdmaQueue>,
        /// Entries for each member in `queues`; 0 without a table.
        pub queues_per_peer: u32,
        /// Entries for each member in `nics`; 0 without a table.
        pub nics_per_peer: u32,
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

/// The barrier and the signals in stream order, for building ahead.
pub static TEAM_BARRIER_UNIT: KernelUnit = KernelUnit {
    name: "team_barrier",
    source: include_str!("../kernels/team_barrier.hip"),
    headers: &[PRELUDE],
    entries: &[TEAM_BARRIER_ENTRY, SIGNAL_ENTRY, SIGNAL_WAIT_ENTRY],
    layouts: &[TeamBarrierArgs::c_declaration, TeamSignalArgs::c_declaration],
};
const TEAM_BARRIER_ENTRY: &str = "anabranch_team_barrier";
const SIGNAL_ENTRY: &str = "anabranch_team_signal";
const SIGNAL_WAIT_ENTRY: &str = "anabranch_team_signal_wait";
const MOST_BARRIER_THREADS: u32 = 256;
/// Between the numbers of two teams of one group: odd, so that no two of a world are equal but by accident.
const TEAMS: u64 = 0x9e37_79b9_7f4a_7c15;

/// A group of ranks, ready for kernels: its peer table in device memory, and a barrier of its own.
///
/// Several teams of one group are independent of each other. Dropping one needs no peer and waits for nobody: what its
/// barriers in flight use is kept until they are over. Whoever drops it has seen to it that no other kernel uses its view
/// any more, and that no graph with a captured barrier of it is in flight or will be replayed.
#[derive(Debug)]
pub struct Team {
    world: World,
    group: Group,
    rank: GroupRank,
    view: TeamView,
    /// Its work in flight is the barriers.
    flags: SymmetricMemory,
    epoch: DeviceAddress,
    kernels: TeamKernels,
    /// What is kept until the last barrier is over: the peer table with the barrier's epoch behind it, and the share of the
    /// device that a barrier takes.
    kept: Option<(Table, ResidencyPermit)>,
    /// What crates above gave to keep as long.
    held: Mutex<Vec<Box<dyn Held>>>,
    /// For copies side by side, when there are any.
    legs: Mutex<Option<LegStreams>>,
    /// For the completion of what was put by NIC, once there is any.
    completions: Mutex<Option<Arc<Stream>>>,
    /// For reports.
    name: Arc<str>,
    barriers: AtomicU64,
    /// Of the host API.
    operations: AtomicU64,
}

/// The kernels of teams, loaded once for a world.
#[derive(Clone, Debug)]
pub(crate) struct TeamKernels {
    barrier: TypedKernel,
    /// Where copies go by queues.
    engine_legs: Option<TypedKernel>,
    /// Where members may be reached by NIC.
    nic: Option<NicKernels>,
    pub(crate) signal: TypedKernel,
    pub(crate) signal_wait: TypedKernel,
}

impl World {
    /// Makes a team of the group. Collective over the group. Compiles and loads the barrier kernel if need be.
    ///
    /// # Errors
    /// Those of [`World::allocate`] and of the kernel pipeline, on all members alike.
    pub fn team(&self, group: &Group) -> Result<Team> {
        let prepared = self.prepare_team(group);
        let (prepared, status) = match prepared {
            Ok(prepared) => (Some(prepared), Ok(())),
            Err(error) => (None, Err(error)),
        };
        let flag_bytes = u64::from(group.size()) * size_of::<u64>() as u64;
        let flags = self.allocate_after(group, flag_bytes, DEFAULT_ALIGNMENT, "team flags", status)?;
        // Without it the allocation had failed.
        let Some((kernels, permit)) = prepared else { return Err(Error::Left) };
        // The group contains this rank, or the collective call above had failed.
        let rank = group.rank_of(self.rank()).unwrap_or(GroupRank::new(0));
        let bases = group.members().iter().map(|member| self.peer_base(*member).map_or(0, |base| base.0));
        let mut words: Vec<u64> = bases.collect();
        words.push(0);
        // Behind them, in the same table: its lifetime is the team's.
        let queues_at = words.len() as u64 * 8;
        let (queues, queues_per_peer) = self.engine_queues(group);
        words.extend_from_slice(bytemuck::cast_slice(&queues));
        let nics_at = words.len() as u64 * 8;
        let (nics, nics_per_peer) = self.nic_queues(group);
        words.extend_from_slice(bytemuck::cast_slice(&nics));
        let written = self.inner.tables.write(&words);
        let status = written.as_ref().map(|_| ()).map_err(|error| anabranch_hip::with_causes(error));
        self.agree_status(group, "team table", status)?;
        let table = written?;
        // Its own, so that a fault record names the team.
        let id = group_id(group)
            .wrapping_add(TEAMS.wrapping_mul(self.inner.collectives.activity().count("view", 0)));
        self.inner.groups.lock().unwrap_or_else(PoisonError::into_inner).insert(id, group.clone());
        let view = TeamView {
            size: group.size(),
            rank: rank.get(),
            group: id,
            peer_bases: DevicePointer::new(table.address()),
            control: self.control(),
            queues: match queues_per_peer {
                0 => DevicePointer::NULL,
                _ => DevicePointer::new(table.address().offset(queues_at)),
            },
            nics: match nics_per_peer {
                0 => DevicePointer::NULL,
                _ => DevicePointer::new(table.address().offset(nics_at)),
            },
            queues_per_peer,
            nics_per_peer,
        };
        let epoch = table.address().offset(u64::from(group.size()) * 8);
        let (world, group, kept) = (self.clone(), group.clone(), Some((table, permit)));
        let (held, legs, completions) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (name, barriers) = (self.name_in_group("team", &group).into(), AtomicU64::new(0));
        Ok(Team {
            world,
            group,
            rank,
            view,
            flags,
            epoch,
            kernels,
            kept,
            held,
            legs,
            completions,
            name,
            barriers,
            operations: AtomicU64::new(0),
        })
    }

    /// The kernels, and a share of the device for one barrier: those of one team run one after the other.
    fn prepare_team(&self, group: &Group) -> Result<(TeamKernels, ResidencyPermit)> {
        self.barrier_is_possible(group)?;
        let kernels = self.team_kernels()?;
        let threads = barrier_threads(group.size(), self.device().wave_size());
        let mut resident = self.max_resident_blocks(kernels.barrier.raw(), threads, LOCAL_RESERVED_BYTES)?;
        if let Some(nic) = &kernels.nic {
            let of_nic = self.max_resident_blocks(nic.barrier.raw(), threads, LOCAL_RESERVED_BYTES)?;
            resident = resident.min(of_nic);
        }
        let permit = self.reserve_residency(1, resident)?;
        Ok((kernels, permit))
    }

    fn barrier_is_possible(&self, group: &Group) -> Result<()> {
        for route in group.members().iter().filter_map(|member| self.routes().get(member.index())) {
            let (operation, scope) = (Operation::TeamBarrier, Scope::Stream);
            self.support(route.peer, operation, scope).require(operation, scope, route.kind)?;
        }
        Ok(())
    }

    fn team_kernels(&self) -> Result<TeamKernels> {
        let mut kernels = self.inner.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(loaded) = &*kernels {
            return Ok(loaded.clone());
        }
        let unit = self.jit().load(self.device(), &KernelSpec::new(&TEAM_BARRIER_UNIT))?;
        let loaded = TeamKernels {
            barrier: unit.kernel(TEAM_BARRIER_ENTRY)?.clone(),
            engine_legs: engine_legs::load(self)?,
            nic: nic_team::load(self)?,
            signal: unit.kernel(SIGNAL_ENTRY)?.clone(),
            signal_wait: unit.kernel(SIGNAL_WAIT_ENTRY)?.clone(),
        };
        Ok(kernels.insert(loaded).clone())
    }
}

fn barrier_threads(members: u32, wave: u32) -> u32 {
    members.next_multiple_of(wave).min(MOST_BARRIER_THREADS.max(wave))
}

impl Team {
    pub(crate) fn kernels(&self) -> &TeamKernels {
        &self.kernels
    }

    pub(crate) fn engine_legs(&self) -> Option<&TypedKernel> {
        self.kernels.engine_legs.as_ref()
    }

    /// What reaches members by NIC; `None` without one.
    pub(crate) fn nic(&self) -> Option<&NicKernels> {
        self.kernels.nic.as_ref()
    }

    /// Whether a member is reached by NIC ([`World::is_by_nic`]).
    pub fn is_by_nic(&self, peer: GroupRank) -> bool {
        self.group.global(peer).is_some_and(|rank| self.world.is_by_nic(rank))
    }

    /// Whether all members are mapped, so that kernels may load from and store to the heap of each.
    pub fn is_mapped(&self) -> bool {
        self.group.ranks().all(|rank| self.peer_base(rank).is_some())
    }

    pub(crate) fn legs(&self) -> &Mutex<Option<LegStreams>> {
        &self.legs
    }

    /// The stream for completions by NIC, which is made when it is first asked for and kept until the last launch is over.
    pub(crate) fn completions(&self) -> Result<Arc<Stream>> {
        let mut made = self.completions.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(match &*made {
            Some(stream) => Arc::clone(stream),
            None => Arc::clone(made.insert(Arc::new(self.world.device().create_stream()?))),
        })
    }

    /// Everything launched in order.
    pub(crate) fn flight(&self) -> &Arc<InFlight> {
        self.flags.flight()
    }

    /// The barrier that reaches all members.
    fn barrier_kernel(&self) -> &TypedKernel {
        match &self.kernels.nic {
            Some(nic) if self.group.ranks().any(|rank| self.is_by_nic(rank)) => &nic.barrier,
            _ => &self.kernels.barrier,
        }
    }

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
    /// members, and sees its writes to the heap. Returns at once. All members call, in the same order; barriers of one team
    /// on several streams run in the order of the calls. May be captured into a graph that all members replay; whoever
    /// launches it keeps its replays in order with other barriers of the team, and ends them before the team is dropped or
    /// the world is left.
    ///
    /// # Errors
    /// What made the world fail, or the launch's error. That a member did not come shows at the next
    /// [`World::check`] or [`World::synchronize`].
    pub fn barrier(&self, stream: &Stream) -> Result<()> {
        let _mapped = self.world.stay()?;
        let threads = barrier_threads(self.size(), self.world.device().wave_size());
        let arguments = TeamBarrierArgs {
            team: self.view,
            flags: self.flags.offset(),
            epoch: DevicePointer::new(self.epoch),
            operation: OperationCode::TEAM_BARRIER.0,
            reserved: 0,
        };
        let barrier = self.barrier_kernel();
        self.flags.flight().ordered(stream, || {
            // SAFETY: the struct is the kernel's (its layout is asserted by the device compiler). The table and the flags are
            // not used again before the event behind this launch has passed: dropping the team parks them. The control
            // words, the heap and the peers' mappings stay until all events have: `leave` and the end of the world wait for
            // them, and leak what they cannot wait for; `leave` of another thread waits for `_mapped`. In a capture nothing
            // runs yet, and whoever launches the graph (which is unsafe) has promised the same.
            unsafe { barrier.launch(1, threads, 0, stream, &arguments) }?;
            Ok(())
        })?;
        let number = self.barriers.fetch_add(1, Ordering::Relaxed) + 1;
        let note = LaunchNote {
            of: Arc::clone(&self.name),
            kind: "call",
            number,
            what: NoteText::Fixed("barrier"),
            operations: &[OperationCode::TEAM_BARRIER],
        };
        self.note_launch(stream, note);
        Ok(())
    }

    /// Notes an operation of the host API that was put on the stream.
    pub(crate) fn note_operation(
        &self,
        stream: &Stream,
        what: &'static str,
        operations: &'static [OperationCode],
    ) {
        let number = self.operations.fetch_add(1, Ordering::Relaxed) + 1;
        let (of, what) = (Arc::clone(&self.name), NoteText::Fixed(what));
        self.note_launch(stream, LaunchNote { of, kind: "operation", number, what, operations });
    }

    /// Notes what was put on the stream with this team's view, so that reports of waits in it name it, and other ranks that wait for this
    /// one hear of it. Stays in this rank's memory, and costs no more than a lock. Captured work is not noted: when it runs is not known. The
    /// answer is for [`World::note_done`].
    pub fn note_launch(&self, stream: &Stream, note: LaunchNote) -> u64 {
        if stream.is_capturing().unwrap_or(false) {
            return 0;
        }
        self.world.inner.collectives.activity().launched(self.view.group, stream.raw() as usize, note)
    }
}

impl Team {
    /// Launches a kernel that uses the team's view: in the order of this team's earlier launches and barriers, on whatever
    /// streams those are, and tracked, so that the team's table, what was given to [`Self::hold`], and `uses` stay until it is
    /// over, also when their owners drop them before. Not collective by itself. In a capture nothing is ordered or tracked:
    /// that is in the hands of whoever launches the graph.
    ///
    /// # Errors
    /// Those of [`World::check`]; [`Error::MemoryGone`] when an allocation was dropped before; the launch's;
    /// [`Error::Untracked`] when no event could be left behind it.
    pub fn launch_in_order(
        &self,
        stream: &Stream,
        uses: &[MemoryUse],
        launch: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let _mapped = self.world.stay()?;
        launch_tracked(self.flags.flight(), stream, uses, launch)
    }

    /// Keeps a value until the last launch of this team is over, also when the team is dropped before.
    pub fn hold(&self, value: impl Send + fmt::Debug + 'static) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(value));
    }

    /// Whether everything launched in order is over; captured work is not seen.
    pub fn is_idle(&self) -> bool {
        self.flags.flight().is_over()
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        if let Some((table, permit)) = self.kept.take() {
            let flight = Arc::clone(self.flags.flight());
            let mut held = std::mem::take(self.held.get_mut().unwrap_or_else(PoisonError::into_inner));
            if let Some(legs) = self.legs.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
                held.push(Box::new(legs));
            }
            let completions = self.completions.get_mut().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(stream) = completions {
                held.push(Box::new(stream));
            }
            self.world.inner.park(
                &flight,
                Keep::Team { view: self.view.group, _table: table, _permit: permit, _held: held },
            );
        }
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
