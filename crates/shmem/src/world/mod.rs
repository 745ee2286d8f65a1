//! One rank's part of a world.

mod check;
mod identity;
mod join;
mod nic_probe;
mod parked;
mod residency;
mod routes;
mod sharing;
mod threads;
mod tolerance;
mod turns;

use std::collections::HashMap;
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use anabranch_bootstrap::{Deadline, LossObserver, Rendezvous};
use anabranch_hip::{Device, DeviceAddress, HostCall, Stream};
use anabranch_hip_jit::control::{FaultRecord, NOTE_WAITS, WaitControl};
use anabranch_hip_jit::{DevicePointer, Jit};
use anabranch_ranks::{GlobalRank, Group, Nodes};
use anabranch_transport::{PeerInfo, Route};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::collective::{Agreed, Collectives, group_id};
use crate::config::WorldConfig;
use crate::error::{Error, Fault, Result};
use crate::fault::activity::members_in_words;
use crate::fault::answers::Answering;
use crate::fault::names::{ExplainFault, Explainers, OperationCode, OperationName, OperationNames};
use crate::fault::queue_watch::QueueWatch;
use crate::fault::report::FaultReports;
use crate::fault::root_cause::FaultContext;
use crate::fault::state::FaultState;
use crate::heap::ledger::Ledger;
use crate::heap::ranges::ByteRange;
use crate::heap::{FlatHeap, HeapMemory, MemoryGuard};
use crate::inflight::{InFlight, InFlightUsers};
use crate::route::{Connections, Tables, TeamKernels};

pub(crate) use check::DRAIN;
pub use parked::LaunchGuard;
pub(crate) use parked::{Held, Keep};
pub use residency::{ResidencyPermit, ResidencyShare};
pub use threads::{RankError, RankSetup, spawn_threads, spawn_threads_on};
pub use tolerance::LossTolerance;

use residency::Residency;
use turns::Turns;

/// The set of ranks that share a symmetric heap, as one of them sees it. Clones are the same world.
///
/// Everything hangs from it: heap, mappings, kernels, words for bounded waits. What is made from it (teams, memory,
/// registrations) keeps its memory alive, so that the order of drops does not matter.
///
/// End it with [`World::leave`] on all ranks. When the last clone goes without, the other ranks lose this rank as if it had
/// died.
#[derive(Clone)]
pub struct World {
    pub(crate) inner: Arc<Inner>,
}

/// Fields are dropped in this order: mappings of peers before anything of this rank's own, the heap last.
pub(crate) struct Inner {
    /// Ends before what it looks at.
    pub(crate) queue_watch: Mutex<Option<QueueWatch>>,
    pub(crate) answering: Mutex<Option<Answering>>,
    pub(crate) connections: Arc<RwLock<Connections>>,
    pub(crate) routes: Vec<Route>,
    pub(crate) bases: Vec<DeviceAddress>,
    pub(crate) kernels: Mutex<Option<TeamKernels>>,
    pub(crate) tables: Arc<Tables>,
    pub(crate) state: Arc<FaultState>,
    pub(crate) service: Stream,
    pub(crate) ledger: Mutex<Ledger>,
    pub(crate) heap_busy: AtomicBool,
    pub(crate) groups: Arc<Mutex<HashMap<u64, Group>>>,
    pub(crate) names: Arc<OperationNames>,
    pub(crate) explainers: Explainers,
    pub(crate) residency: Arc<Residency>,
    /// Launches of crates above.
    pub(crate) launches: Arc<InFlight>,
    pub(crate) in_flight: InFlightUsers,
    /// What is freed when the work of its user is over.
    pub(crate) parked: Mutex<Vec<(Arc<InFlight>, Keep)>>,
    /// The rendezvous's observer of losses, until the world is left.
    pub(crate) observer: Mutex<Option<Arc<dyn LossObserver>>>,
    pub(crate) left: AtomicBool,
    /// Work in flight did not end in time: what it may use is never freed.
    pub(crate) unproven: AtomicBool,
    /// Who maps and unmaps when.
    pub(crate) turns: Turns,
    pub(crate) peers: Vec<PeerInfo>,
    pub(crate) local: PeerInfo,
    pub(crate) group: Group,
    pub(crate) config: WorldConfig,
    pub(crate) jit: Jit,
    pub(crate) device: Device,
    pub(crate) collectives: Collectives,
    pub(crate) heap: Arc<HeapMemory>,
}

impl Inner {
    pub(crate) fn with_connections<T>(&self, use_them: impl FnOnce(&Connections) -> T) -> T {
        use_them(&self.connections.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends the watch of queue pairs.
    pub(crate) fn stop_watching(&self) {
        // Not dropped under the lock.
        let watch = self.queue_watch.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(watch);
    }

    /// Ends the answers to other ranks. Where the world ends without the others' knowledge, a last one remains.
    pub(crate) fn stop_answering(&self, others_know: bool) {
        // Not dropped under the lock.
        let answering = self.answering.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(answering) = answering.as_ref().filter(|_| !others_know) {
            answering.leave_answer();
        }
        drop(answering);
    }

    /// The reports of this world's ranks.
    pub(crate) fn reports(&self) -> FaultReports {
        FaultReports {
            rank: self.local.rank,
            world: self.collectives.world(),
            rendezvous: Arc::clone(self.collectives.rendezvous()),
            state: Arc::clone(&self.state),
            activity: Arc::clone(self.collectives.activity()),
            is_simulated: self.device.runtime().driver().is_some(),
        }
    }

    /// For the diagnosis of a failure.
    fn fault_context(&self) -> FaultContext<'_> {
        FaultContext {
            reports: self.reports(),
            state: &self.state,
            group: &self.group,
            groups: &self.groups,
            names: &self.names,
            explainers: &self.explainers,
            routes: &self.routes,
            connections: &self.connections,
            unproven: &self.unproven,
            loss_grace: self.config.loss_grace,
        }
    }

    /// Whether kernels are compiled so that they can note their waits.
    pub(crate) fn notes_waits(&self) -> bool {
        self.jit.config().parameters.iter().any(|(name, _)| *name == NOTE_WAITS)
    }

    /// Publishes why a queue pair has stopped, when this rank goes before any call of it has found out.
    fn publish_what_stopped(&self) {
        let is_left_out = |rank| self.state.tolerated(|tolerated| tolerated.names(rank));
        let found = || self.with_connections(|connections| connections.stopped_nic(is_left_out));
        let stopped = self.state.stopped_nic().cloned().or_else(found);
        if let Some(stopped) = stopped.filter(|_| self.state.losses().is_empty()) {
            self.reports().publish_stopped(&stopped, None);
        }
    }

    /// The rendezvous outlives the world and must not collect the observers of worlds that are gone.
    pub(crate) fn stop_observing(&self) {
        let observer = self.observer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(observer) = observer {
            self.collectives.rendezvous().unobserve(&observer);
        }
    }

    /// Sets a range of the own heap to zero and waits for it.
    pub(crate) fn zero(&self, range: ByteRange) -> Result<()> {
        let target = self.heap.address().offset(range.offset);
        // SAFETY: the range lies in the heap, which outlives the wait below; it was free on all members, so no kernel uses it.
        unsafe { self.service.fill_async(target, 0, range.bytes as usize) }?;
        self.service.synchronize()?;
        Ok(())
    }
}

impl World {
    /// Makes `fault` the cause, unless there is one, and publishes the cause.
    pub(crate) fn fail(&self, fault: Fault) {
        self.inner.fault_context().fail(fault);
    }

    /// Decides the cause of a wait that expired.
    pub(crate) fn judge(&self, record: &FaultRecord) {
        self.inner.fault_context().judge(Some(record));
    }

    /// This rank.
    pub fn rank(&self) -> GlobalRank {
        self.inner.local.rank
    }

    /// Ranks of the world.
    pub fn size(&self) -> u32 {
        self.inner.group.size()
    }

    /// All ranks, as a group.
    pub fn group(&self) -> &Group {
        &self.inner.group
    }

    /// What the world was made with.
    pub fn config(&self) -> &WorldConfig {
        &self.inner.config
    }

    /// This rank's device.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// The kernel pipeline.
    pub fn jit(&self) -> &Jit {
        &self.inner.jit
    }

    /// How the ranks talk beside the fast paths.
    pub fn rendezvous(&self) -> &Arc<dyn Rendezvous> {
        self.inner.collectives.rendezvous()
    }

    /// What the other ranks know about this one.
    pub fn local(&self) -> &PeerInfo {
        &self.inner.local
    }

    /// What is known about all ranks, in rank order.
    pub fn peers(&self) -> &[PeerInfo] {
        &self.inner.peers
    }

    /// The group divided by the machines of its members, as they named them ([`PeerInfo::host`]). Equal on all ranks; not
    /// collective.
    ///
    /// # Errors
    /// A group with members that are no ranks of this world.
    pub fn nodes_of(&self, group: &Group) -> Result<Nodes> {
        let hosts = group.members().iter().filter_map(|member| self.peer(*member)).map(|peer| &peer.host);
        Ok(group.nodes(&hosts.collect::<Vec<_>>())?)
    }

    /// [`Self::nodes_of`] all ranks.
    ///
    /// # Errors
    /// None in a world that was joined.
    pub fn nodes(&self) -> Result<Nodes> {
        self.nodes_of(self.group())
    }

    /// The number of a rank's machine in [`Self::nodes`]; `None` when the world has no such rank.
    pub fn node_of(&self, rank: GlobalRank) -> Option<u32> {
        self.nodes().ok()?.node_of(self.group().rank_of(rank)?)
    }

    pub(crate) fn peer(&self, rank: GlobalRank) -> Option<&PeerInfo> {
        self.inner.peers.get(rank.index())
    }

    /// Where a rank's heap starts as kernels of this rank see it; `None` when loads and stores do not reach it.
    pub fn peer_base(&self, rank: GlobalRank) -> Option<DeviceAddress> {
        self.inner.bases.get(rank.index()).copied().filter(|base| !base.is_null())
    }

    /// Where the heaps of all ranks lie, with `heap.mode = "flat"`: [`Self::peer_base`] of each rank is arithmetic then,
    /// on the host and in kernels that are given base and stride.
    pub fn flat_heap(&self) -> Option<FlatHeap> {
        let window = self.inner.heap.window()?;
        let layout = window.layout();
        Some(FlatHeap { base: window.base(), stride: layout.stride(), ranks: layout.ranks() })
    }

    /// The words for bounded waits, for argument structs. Valid while the world is.
    pub fn control(&self) -> DevicePointer<WaitControl> {
        DevicePointer::new(self.inner.state.control().address())
    }

    /// How long a kernel may run before its waits for peers fail.
    pub fn operation_deadline(&self) -> Duration {
        self.inner.config.operation_deadline
    }

    /// Keeps this rank's heap allocated after the world is gone; see [`MemoryGuard`].
    pub(crate) fn memory_guard(&self) -> MemoryGuard {
        MemoryGuard::new(Arc::clone(&self.inner.heap))
    }

    /// Gives an operation's code a name in reports. Each crate does so once for its own codes.
    pub fn name_operation(&self, code: OperationCode, name: OperationName) {
        self.inner.names.insert(code, name);
    }

    /// Lets `explainer` put into words what kernels of an operation report that is no expired wait, as long as it lives: the
    /// world's cause is then [`Fault::Reported`]. Several may serve one operation; the first that knows a cause decides. Not
    /// collective.
    pub fn explain_faults(&self, code: OperationCode, explainer: Weak<dyn ExplainFault>) {
        self.inner.explainers.insert(code, explainer);
    }

    /// A name for the next of a kind over the group, like `communicator 2 of ranks 0, 1`: equal on all members, when all make them in one
    /// order. For reports.
    pub fn name_in_group(&self, kind: &'static str, group: &Group) -> String {
        let number = self.inner.collectives.activity().count(kind, group_id(group));
        format!("{kind} {number} of {}", members_in_words(group))
    }

    /// Notes that what [`crate::Team::note_launch`] gave this number to is done, and what its team launched before. Reports name what is
    /// not known to be done.
    pub fn note_done(&self, launch: u64) {
        self.inner.collectives.activity().is_done(launch);
    }

    /// Gives this rank's bytes to every member of the group and returns all members' bytes in group order. Collective.
    ///
    /// # Errors
    /// [`Error::OutOfStep`] when members are in different calls; what made the world fail.
    pub fn exchange(&self, group: &Group, step: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let _call = self.device().record_call(|| HostCall::on("exchange", step, Some(bytes.len())));
        self.check()?;
        let agreed = self.inner.collectives.agree_bytes(group, step, Ok(bytes.to_vec()));
        Ok(self.survive(agreed)?.parts)
    }

    /// Ends a step that each member did separately: an error on all when it failed on one. `failure` is this
    /// rank's error, whose text goes to the others. Collective.
    ///
    /// # Errors
    /// [`Error::FailedOn`] with the first member that failed, this rank included; what made the world fail.
    pub fn agree_outcome(
        &self,
        group: &Group,
        step: &str,
        failure: Option<&(dyn std::error::Error + 'static)>,
    ) -> Result<()> {
        self.check()?;
        self.agree_status(group, step, failure.map_or(Ok(()), |error| Err(anabranch_hip::with_causes(error))))
    }

    /// Compares values that have to be equal on all members. Collective.
    ///
    /// # Errors
    /// [`Error::Differs`], on all members, with the field, both values and ranks; what made the world fail.
    pub fn compare(&self, group: &Group, step: &str, fields: Vec<(String, String)>) -> Result<()> {
        self.check()?;
        let compared = self.inner.collectives.compare(group, step, fields);
        self.survive(compared)
    }

    /// Waits on the host until all members of the group have come. Says nothing about streams; see
    /// [`crate::Team::barrier`]. Collective.
    ///
    /// # Errors
    /// [`Error::OutOfStep`]; what made the world fail.
    pub fn barrier(&self, group: &Group, step: &str) -> Result<()> {
        self.exchange(group, step, &[]).map(|_| ())
    }

    pub(crate) fn agree<T: Serialize + DeserializeOwned>(
        &self,
        group: &Group,
        step: &str,
        mine: Result<T>,
    ) -> Result<Agreed<T>> {
        let agreed = self.inner.collectives.agree(group, step, mine);
        self.survive(agreed)
    }

    /// Agreement on a status that is not an [`Error`] of this crate, or that is still needed afterwards.
    pub(crate) fn agree_status(&self, group: &Group, step: &str, status: Result<(), String>) -> Result<()> {
        let deadline = Deadline::after(self.inner.config.rendezvous_deadline);
        self.agree_status_by(group, step, status, deadline)
    }

    pub(crate) fn agree_status_by(
        &self,
        group: &Group,
        step: &str,
        status: Result<(), String>,
        deadline: Deadline,
    ) -> Result<()> {
        let agreed = self.inner.collectives.agree_by(group, step, Ok(status.err()), deadline);
        let parts = self.survive(agreed)?.parts;
        let first =
            parts.into_iter().zip(group.members()).find_map(|(failure, rank)| Some((failure?, *rank)));
        match first {
            None => Ok(()),
            Some((cause, rank)) => Err(Error::FailedOn { step: step.to_owned(), rank, cause }),
        }
    }

    /// A collective that broke off leaves the ranks in different places: the world has failed.
    pub(crate) fn survive<T>(&self, result: Result<T>) -> Result<T> {
        let Err(Error::Rendezvous { step, source }) = result else { return result };
        match &source {
            // Nothing was sent: a mistake of the caller, harmless to the others but for their waiting.
            anabranch_bootstrap::Error::Invalid { .. } => {}
            anabranch_bootstrap::Error::PeerLost { loss, .. } => {
                self.inner.state.lost_in_call(loss);
                self.check()?;
            }
            other => {
                self.fail(Fault::CollectiveFailed {
                    step: step.clone(),
                    detail: anabranch_hip::with_causes(other),
                    missing: other.missing().to_vec(),
                });
            }
        }
        Err(Error::Rendezvous { step, source })
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World")
            .field("rank", &self.rank().get())
            .field("size", &self.size())
            .field("device", &self.inner.device.ordinal())
            .field("fault", &self.inner.state.cause())
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.left.load(Ordering::Acquire) {
            tracing::debug!(rank = self.local.rank.get(), "a world is dropped without leave");
            if self.state.cause().is_none() {
                self.publish_what_stopped();
            }
            let reason = "its world was dropped without leave".to_owned();
            self.state.decide(Fault::Poisoned { rank: self.local.rank, reason });
        }
        self.stop_observing();
        self.stop_watching();
        self.stop_answering(self.left.load(Ordering::Acquire));
        // Kernels may still use what is freed below. Their waits have ended with the abort, or end with their budget.
        let drained = self.drain();
        if let Err(error) = &drained {
            tracing::warn!(%error, "work in flight did not end before the world did");
        }
        if drained.is_err() || self.unproven.load(Ordering::Acquire) {
            let (rank, bytes) = (self.local.rank.get(), self.heap.bytes());
            tracing::warn!(rank, bytes, "the world's memory is leaked: work in flight may still use it");
            let _heap = ManuallyDrop::new(Arc::clone(&self.heap));
            let _tables = ManuallyDrop::new(Arc::clone(&self.tables));
            let _words = ManuallyDrop::new(Arc::clone(&self.state));
            let kernels = self.kernels.get_mut().unwrap_or_else(PoisonError::into_inner);
            let _kernels = ManuallyDrop::new(kernels.take());
            let mut connections = self.connections.write().unwrap_or_else(PoisonError::into_inner);
            let _mappings = ManuallyDrop::new(std::mem::take(&mut connections.memory));
            connections.transports.abandon();
        }
    }
}
