//! A group with what kernels need to reach its members.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anabranch_hip::{CallSpan, DeviceAddress, HostCall, LaunchShape, Stream};
use anabranch_hip_jit::{DevicePointer, LOCAL_RESERVED_BYTES, LoadedKernel};
use anabranch_ranks::{Group, GroupRank};
use anabranch_transport::{Operation, Scope};

use crate::collective::group_id;
use crate::error::Result;
use crate::fault::{LaunchNote, NoteText, OperationCode};
use crate::heap::DEFAULT_ALIGNMENT;
use crate::inflight::{InFlight, LaunchEvent, MemoryUse, launch_tracked};
use crate::memory::SymmetricMemory;
use crate::route::{EngineCopiesArgs, NicKernels, Table, TeamBarrierArgs, TeamKernels, TeamView};
use crate::world::{Held, Keep, ResidencyPermit, World};

mod copies;
mod engine_copies;
mod host_api;
mod nic;
mod stream_barrier;
mod table;

pub use copies::{MAX_COPY_STREAMS, PeerCopy};
pub use host_api::{Signal, SignalOp};
pub use stream_barrier::StreamBarrier;
pub use table::TeamTable;

use copies::CopyStreams;

const MOST_BARRIER_THREADS: u32 = 256;
/// Between the numbers of two teams of one group: odd, so that no two of a world are equal but by accident.
const TEAMS: u64 = 0x9e37_79b9_7f4a_7c15;

/// A group of ranks, ready for kernels: its peer table in device memory, and a barrier.
///
/// Several teams of one group are independent of each other. Dropping one needs no peer and does not block: what its
/// barriers in flight use is kept until they are over. Before you drop it, make sure that no other kernel uses its view
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
    /// What is kept until the last barrier is over: the peer table followed by the barrier's epoch, and the share of the
    /// device that a barrier takes. A single member's barrier waits for no peer and has no permit.
    kept: Option<(Table, Option<ResidencyPermit>)>,
    /// What crates above gave to keep as long.
    held: Mutex<Vec<Box<dyn Held>>>,
    /// For copies side by side, when there are any.
    copies: Mutex<Option<CopyStreams>>,
    /// For the completion of what was put by NIC, once there is any.
    completions: Mutex<Option<Arc<Stream>>>,
    /// For reports.
    name: Arc<str>,
    barriers: AtomicU64,
    /// Of the host API.
    operations: AtomicU64,
}

impl World {
    /// Makes a team of the group. Collective over the group. Compiles and loads the barrier kernel if need be.
    ///
    /// # Errors
    /// The errors of [`World::allocate`] and of the kernel pipeline, on all members alike.
    #[expect(
        clippy::expect_used,
        clippy::missing_panics_doc,
        reason = "the allocation in between fails in both cases"
    )]
    pub fn team(&self, group: &Group) -> Result<Team> {
        let prepared = self.prepare_team(group);
        let (prepared, status) = match prepared {
            Ok(prepared) => (Some(prepared), Ok(())),
            Err(error) => (None, Err(error)),
        };
        let flag_bytes = u64::from(group.size()) * size_of::<u64>() as u64;
        let flags = self.allocate_after(group, flag_bytes, DEFAULT_ALIGNMENT, "team flags", status)?;
        let (kernels, permit) = prepared.expect("the allocation would have failed with it");
        let rank = group.rank_of(self.rank()).expect("the allocation fails on ranks that are no members");
        let bases = group.members().iter().map(|member| self.peer_base(*member).map_or(0, |base| base.0));
        let mut words: Vec<u64> = bases.collect();
        words.push(0);
        // After them, in the same table: its lifetime is the team's.
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
        let (held, copies, completions) = (Mutex::default(), Mutex::default(), Mutex::default());
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
            copies,
            completions,
            name,
            barriers,
            operations: AtomicU64::new(0),
        })
    }

    /// The kernels, and a share of the device for one barrier: barriers of one team run one after the other.
    fn prepare_team(&self, group: &Group) -> Result<(TeamKernels, Option<ResidencyPermit>)> {
        self.barrier_is_possible(group)?;
        let kernels = self.team_kernels()?;
        if group.size() == 1 {
            return Ok((kernels, None));
        }
        let threads = barrier_threads(group.size(), self.device().wave_size());
        let mut resident = self.max_resident_blocks(kernels.barrier.raw(), threads, LOCAL_RESERVED_BYTES)?;
        if let Some(nic) = &kernels.nic {
            let of_nic = self.max_resident_blocks(nic.barrier.raw(), threads, LOCAL_RESERVED_BYTES)?;
            resident = resident.min(of_nic);
        }
        let permit = self.residency_share().reserve_up_to(1, 1, resident)?;
        Ok((kernels, Some(permit)))
    }

    fn barrier_is_possible(&self, group: &Group) -> Result<()> {
        for route in group.members().iter().filter_map(|member| self.routes().get(member.index())) {
            let (operation, scope) = (Operation::TeamBarrier, Scope::Stream);
            self.support(route.peer, operation, scope).require(operation, scope, route.kind)?;
        }
        Ok(())
    }
}

fn barrier_threads(members: u32, wave: u32) -> u32 {
    members.next_multiple_of(wave).min(MOST_BARRIER_THREADS.max(wave))
}

impl Team {
    pub(crate) fn kernels(&self) -> &TeamKernels {
        &self.kernels
    }

    pub(crate) fn engine_copies(&self) -> Option<&LoadedKernel<EngineCopiesArgs>> {
        self.kernels.engine_copies.as_ref()
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

    pub(crate) fn copies(&self) -> &Mutex<Option<CopyStreams>> {
        &self.copies
    }

    /// The stream for completions by NIC, created on first use and kept until the last launch is over.
    pub(crate) fn completions(&self) -> Result<Arc<Stream>> {
        let mut made = self.completions.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(match &*made {
            Some(stream) => Arc::clone(stream),
            None => Arc::clone(made.insert(Arc::new(self.world.device().create_stream()?))),
        })
    }

    /// Everything launched in order.
    pub(crate) fn in_flight(&self) -> &Arc<InFlight> {
        self.flags.in_flight()
    }

    /// The barrier that reaches all members.
    fn barrier_kernel(&self) -> &LoadedKernel<TeamBarrierArgs> {
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
    /// on several streams run in the order of the calls. May be captured into a graph that all members replay; keep its
    /// replays in order with other barriers of the team, and end them before the team is dropped or the world is left.
    ///
    /// # Errors
    /// What made the world fail, or the launch's error. That a member did not come shows at the next
    /// [`World::check`] or [`World::synchronize`].
    pub fn barrier(&self, stream: &Stream) -> Result<()> {
        let _call = self.record("barrier", None);
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
        launch_tracked(self.flags.in_flight(), stream, &[], || {
            // SAFETY: the struct is the kernel's (its layout is asserted by the device compiler). The table and the flags are
            // not used again before the event after this launch has passed: dropping the team parks them. The control
            // words, the heap and the peers' mappings stay until all events have: `leave` and the end of the world wait for
            // them, and leak what they cannot wait for; `leave` of another thread waits for `_mapped`. In a capture nothing
            // runs yet, and launching the graph (which is unsafe) promises the same.
            unsafe {
                barrier.launch(
                    LaunchShape { block_threads: threads, ..self.world.one_wave() },
                    stream,
                    &arguments,
                )
            }?;
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

    /// Records a call of this team in a trace of the device.
    pub(crate) fn record(&self, name: &'static str, bytes: Option<usize>) -> CallSpan {
        self.world.device().record_call(|| HostCall::on(name, Arc::clone(&self.name), bytes))
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

    /// Notes what was put on the stream with this team's view, so that reports of waits in it name it, also on other ranks that wait for
    /// this one. Stays in this rank's memory, and costs no more than a lock. Captured work is not noted, as it is not known when it runs. The
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
    /// over, also when their owners drop them before. Returns the event after it. Not collective by itself. In a capture nothing is ordered
    /// or tracked, and the event is one of the capture: the caller who launches the graph keeps the order.
    ///
    /// # Errors
    /// The errors of [`World::check`]; [`Error::InvalidState`](crate::Error::InvalidState) when an allocation was dropped before; the launch's;
    /// [`Error::Untracked`](crate::Error::Untracked) when no event could be recorded after it.
    pub fn launch_in_order(
        &self,
        stream: &Stream,
        uses: &[MemoryUse],
        launch: impl FnOnce() -> Result<()>,
    ) -> Result<LaunchEvent> {
        let _mapped = self.world.stay()?;
        launch_tracked(self.flags.in_flight(), stream, uses, launch)
    }

    /// Keeps a value until the last launch of this team is over, also when the team is dropped before.
    pub fn hold(&self, value: impl Send + fmt::Debug + 'static) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(value));
    }

    /// Whether everything launched in order is over; captured work is not seen.
    pub fn is_idle(&self) -> bool {
        self.flags.in_flight().is_over()
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        if let Some((table, permit)) = self.kept.take() {
            let in_flight = Arc::clone(self.flags.in_flight());
            let mut held = std::mem::take(self.held.get_mut().unwrap_or_else(PoisonError::into_inner));
            if let Some(copies) = self.copies.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
                held.push(Box::new(copies));
            }
            let completions = self.completions.get_mut().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(stream) = completions {
                held.push(Box::new(stream));
            }
            self.world.inner.park(
                &in_flight,
                Keep::Team { view: self.view.group, _table: table, _permit: permit, _held: held },
            );
        }
    }
}
