//! Communicators: the registry of their numbers, joining, the start of leaving.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use anabranch::bootstrap::{JoinStop, TcpRoot, UniqueId};
use anabranch::ccl::ReduceOp;

use crate::abi::{self, CommConfig, Handle};
use crate::error::Failure;
use crate::joined::Joined;
use crate::leave::{self, Leave};
use crate::process::Process;
use crate::steps::{Step, Steps};
use crate::window::Window;

/// Why calls of a communicator fail whose initialisation did not run.
pub(crate) const NOT_INITIALISED: &str =
    "the communicator was not initialised: its group failed before, or was not run";

const ABORTED: &str = "the communicator was aborted";

pub(crate) type Id = [u8; UniqueId::BYTES];

/// Communicators by the numbers that programs hold.
static COMMS: Mutex<Option<HashMap<usize, Arc<Comm>>>> = Mutex::new(None);
/// The sockets of ids that this process made, until rank 0 comes for them.
static ROOTS: Mutex<Option<HashMap<Id, TcpRoot>>> = Mutex::new(None);
/// Ranks of one id in this process.
static CLIQUES: Mutex<Option<HashMap<Id, Arc<Clique>>>> = Mutex::new(None);
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The ranks of a communicator that are devices of this process.
#[derive(Debug, Default)]
struct Clique {
    alive: AtomicUsize,
}

/// One rank of a communicator.
#[derive(Debug)]
pub(crate) struct Comm {
    handle: usize,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) device: u32,
    pub(crate) id: Id,
    pub(crate) config: CommConfig,
    clique: Arc<Clique>,
    pub(crate) process: u32,
    /// Rank 0's, until it joins.
    root: Mutex<Option<TcpRoot>>,
    /// Ends an initialisation.
    stop: JoinStop,
    joined: OnceLock<Result<Arc<Joined>, Failure>>,
    /// Held where `joined` is set, and where leaving or an abort begins: the later one sees the other.
    turn: Mutex<()>,
    is_aborted: AtomicBool,
    is_leaving: AtomicBool,
    pub(crate) has_left: AtomicBool,
    operators: Mutex<HashMap<c_int, ReduceOp>>,
    windows: Mutex<Vec<Arc<Window>>>,
    pub(crate) steps: Steps,
    /// Why a nonblocking one or the end failed.
    failed_step: OnceLock<Failure>,
}

/// A new id, whose socket listens in this process.
///
/// # Errors
/// Wrong settings; a socket that cannot be opened.
pub(crate) fn unique_id() -> Result<Id, Failure> {
    let (root, id) = bind()?;
    lock(&ROOTS).get_or_insert_default().insert(id, root);
    Ok(id)
}

/// A socket for rank 0, and its id.
///
/// # Errors
/// As [`unique_id`].
pub(crate) fn bind() -> Result<(TcpRoot, Id), Failure> {
    let root = anabranch::bind_root(Process::get()?.config())?;
    let id = root.unique_id()?.to_bytes();
    Ok((root, id))
}

/// The socket of an id that this process made.
///
/// # Errors
/// An id of another process, or one that was used.
pub(crate) fn take_root(id: &Id) -> Result<TcpRoot, Failure> {
    UniqueId::from_bytes(id)
        .map_err(|error| Failure::argument(format!("the id is not one of this library's: {error}")))?;
    lock(&ROOTS).get_or_insert_default().remove(id).ok_or_else(|| {
        Failure::usage(
            "rank 0 must be in the process that called ncclGetUniqueId, and an id serves one communicator",
        )
    })
}

/// The communicator of a number.
///
/// # Errors
/// A number that was not given out, or whose communicator was destroyed; a process that was forked from the one that made it.
pub(crate) fn find(handle: Handle) -> Result<Arc<Comm>, Failure> {
    let found = lock(&COMMS).get_or_insert_default().get(&(handle as usize)).cloned();
    let comm = found.ok_or_else(|| {
        Failure::argument(format!("{handle:p} is no communicator, or it was destroyed or aborted"))
    })?;
    let now = std::process::id();
    if now != comm.process {
        let text =
            format!("process {} made this communicator, and process {now} was forked from it", comm.process);
        return Err(Failure::usage(text));
    }
    Ok(comm)
}

impl Comm {
    /// A communicator of an id that programs pass on: not joined yet, in the registry.
    ///
    /// # Errors
    /// A rank that is not below the size; a device that this process does not have; no socket of the id for rank 0.
    pub(crate) fn new(
        id: Id,
        rank: c_int,
        size: c_int,
        device: u32,
        config: CommConfig,
    ) -> Result<Arc<Self>, Failure> {
        if size < 1 || !(0..size).contains(&rank) {
            return Err(Failure::argument(format!(
                "rank is {rank} and nranks {size}; ranks are 0 to nranks - 1"
            )));
        }
        Process::get()?.local_rank(device)?;
        let root = if rank == 0 { Some(take_root(&id)?) } else { None };
        Ok(Self::with_root(id, root, (rank as u32, size as u32), device, config))
    }

    /// The same for a rank below the size and a device that are known to be right.
    pub(crate) fn with_root(
        id: Id,
        root: Option<TcpRoot>,
        (rank, size): (u32, u32),
        device: u32,
        config: CommConfig,
    ) -> Arc<Self> {
        static NUMBER: AtomicUsize = AtomicUsize::new(1);
        leave::retry();
        let clique = Arc::clone(lock(&CLIQUES).get_or_insert_default().entry(id).or_default());
        clique.alive.fetch_add(1, Ordering::AcqRel);
        let comm = Arc::new(Self {
            // Aligned like an address, and none.
            handle: NUMBER.fetch_add(1, Ordering::Relaxed) << 6,
            rank,
            size,
            device,
            id,
            config,
            clique,
            process: std::process::id(),
            root: Mutex::new(root),
            stop: JoinStop::default(),
            joined: OnceLock::new(),
            turn: Mutex::default(),
            is_aborted: AtomicBool::new(false),
            is_leaving: AtomicBool::new(false),
            has_left: AtomicBool::new(false),
            operators: Mutex::default(),
            windows: Mutex::default(),
            steps: Steps::default(),
            failed_step: OnceLock::new(),
        });
        lock(&COMMS).get_or_insert_default().insert(comm.handle, Arc::clone(&comm));
        comm
    }

    /// Ends the waits for an initialisation that will not run.
    pub(crate) fn give_up(self: &Arc<Self>) {
        // Its socket serves no other communicator.
        drop(lock(&self.root).take());
        self.settle(Err(Failure::usage(NOT_INITIALISED).on(self.rank, self.size)));
    }

    /// Notes the outcome of the initialisation, and leaves again where the program has ended the communicator meanwhile. The first one stays.
    pub(crate) fn settle(self: &Arc<Self>, outcome: Result<Arc<Joined>, Failure>) {
        let turn = lock(&self.turn);
        if self.joined.set(outcome).is_err() {
            return;
        }
        let is_leaving = self.is_leaving.load(Ordering::Acquire);
        let is_aborted = self.is_aborted.load(Ordering::Acquire);
        drop(turn);
        if is_aborted {
            self.strike("ncclCommAbort");
        }
        if is_leaving {
            self.leave();
        }
    }

    pub(crate) fn handle(&self) -> Handle {
        self.handle as Handle
    }

    /// Notes why a nonblocking call or the end failed: the state from now on. The first one stays.
    pub(crate) fn note(&self, failure: &Failure) {
        let _ = self.failed_step.set(failure.clone());
    }

    /// Refuses a nonblocking communicator whose initialisation goes on, as NCCL does. Blocking ones are waited for.
    ///
    /// # Errors
    /// As described.
    pub(crate) fn check_joined(&self) -> Result<(), Failure> {
        if !self.config.is_nonblocking || self.joined.get().is_some() {
            return Ok(());
        }
        Err(Failure::usage(
            "the communicator is being initialised: wait until ncclCommGetAsyncError says ncclSuccess",
        ))
    }

    /// Meets the other ranks. Collective.
    ///
    /// # Errors
    /// Ranks that did not come; different settings; the device's. [`Self::joined`] has the same afterwards.
    pub(crate) fn join(self: &Arc<Self>) -> Result<(), Failure> {
        let result = self.meet().map(Arc::new).map_err(|failure| {
            let failure = if self.stop.is_stopped() { Failure::usage(ABORTED) } else { failure };
            failure.on(self.rank, self.size)
        });
        let outcome = result.as_ref().map(|_| ()).map_err(Clone::clone);
        self.settle(result);
        outcome
    }

    fn meet(&self) -> Result<Joined, Failure> {
        let process = Process::get()?;
        let id = UniqueId::from_bytes(&self.id)
            .map_err(|error| Failure::argument(format!("the id is not one of this library's: {error}")))?;
        let local = (process.local_rank(self.device)?, process.platform.ranks());
        let root = lock(&self.root).take();
        let place = (self.rank, self.size);
        let rank = anabranch::rendezvous_by_id(process.config(), &id, root, place, Some(local), &self.stop)?;
        Joined::new(&process, &rank, self.config.max_blocks).inspect_err(|_| {
            if self.stop.is_stopped()
                && let Err(error) = rank.rendezvous.leave()
            {
                tracing::debug!(%error, "leaving the rendezvous of an initialisation that was aborted");
            }
        })
    }

    /// The joined world. Waits for an initialisation that is under way.
    ///
    /// # Errors
    /// Why it failed; that it does not end; a communicator that is being left or was aborted.
    pub(crate) fn joined(self: &Arc<Self>) -> Result<Arc<Joined>, Failure> {
        self.check_open()?;
        if self.joined.get().is_none() {
            Step::new(self, false).wait()?;
        }
        self.outcome()
    }

    /// The same for a later step, which may have begun before the communicator was left.
    pub(crate) fn outcome(&self) -> Result<Arc<Joined>, Failure> {
        self.joined.wait().clone()
    }

    /// Refuses a communicator that is being left or was aborted.
    ///
    /// # Errors
    /// As described.
    pub(crate) fn check_open(&self) -> Result<(), Failure> {
        if self.is_aborted.load(Ordering::Acquire) {
            return Err(Failure::usage(ABORTED).on(self.rank, self.size));
        }
        if self.is_leaving.load(Ordering::Acquire) {
            return Err(Failure::usage("the communicator was finalized").on(self.rank, self.size));
        }
        Ok(())
    }

    /// What `ncclCommGetAsyncError` reports: nothing, [`abi::IN_PROGRESS`], or why the communicator is unusable.
    ///
    /// # Errors
    /// As described.
    pub(crate) fn state(&self) -> Result<(), Failure> {
        let in_progress = || Failure::new(abi::IN_PROGRESS, "in progress");
        let Some(joined) = self.joined.get() else { return Err(in_progress()) };
        let joined = joined.as_ref().map_err(Clone::clone)?;
        if self.is_leaving.load(Ordering::Acquire) {
            if !self.has_left.load(Ordering::Acquire) {
                leave::retry();
                return Err(in_progress());
            }
        } else if self.steps.are_in_progress() {
            return Err(in_progress());
        } else {
            joined.world.check().map_err(|error| Failure::from(error).on(self.rank, self.size))?;
        }
        self.failed_step.get().map_or(Ok(()), |failure| Err(failure.clone()))
    }

    /// Adds the failure of the world, which names the rank, to that of a call.
    pub(crate) fn explain(&self, failure: Failure) -> Failure {
        let failure = failure.on(self.rank, self.size);
        match self.joined.get() {
            Some(Ok(joined)) => match joined.world.check() {
                Err(error) if !failure.text.contains(&error.to_string()) => {
                    let cause = Failure::from(error);
                    Failure { code: cause.code, text: format!("{}; {}", failure.text, cause.text) }
                }
                _ => failure,
            },
            _ => failure,
        }
    }

    /// Makes the world fail, here and on the other ranks. Takes no lock that a launch holds.
    pub(crate) fn strike(&self, reason: &str) {
        match self.joined.get() {
            Some(Ok(joined)) => {
                joined.world.poison(reason);
                if let Err(error) = joined.world.rendezvous().leave() {
                    tracing::debug!(%error, "leaving the rendezvous after: {reason}");
                }
            }
            Some(Err(_)) => {}
            None => self.stop.stop(),
        }
    }

    /// `ncclCommAbort`: kernels of this rank end, and so does its initialisation; the other ranks get an error that names this one.
    pub(crate) fn abort(self: &Arc<Self>) {
        let turn = lock(&self.turn);
        self.is_aborted.store(true, Ordering::Release);
        drop(turn);
        self.strike("ncclCommAbort");
        self.discard();
    }

    /// Leaves the world, when there is one.
    pub(crate) fn start_leaving(self: &Arc<Self>) {
        let turn = lock(&self.turn);
        let (was_leaving, is_settled) =
            (self.is_leaving.swap(true, Ordering::AcqRel), self.joined.get().is_some());
        drop(turn);
        if was_leaving {
            return;
        }
        leave::retry();
        if is_settled {
            self.leave();
        }
        self.leave_clique();
    }

    fn leave(self: &Arc<Self>) {
        match self.joined.get().cloned() {
            Some(Ok(joined)) => Leave::new(self, joined).start(),
            _ => self.has_left.store(true, Ordering::Release),
        }
    }

    fn leave_clique(&self) {
        if self.clique.alive.fetch_sub(1, Ordering::AcqRel) == 1 {
            lock(&CLIQUES).get_or_insert_default().remove(&self.id);
        }
    }

    /// Waits until this process has left, unless other ranks of the communicator in it have not begun to.
    pub(crate) fn wait_left(&self) {
        if self.clique.alive.load(Ordering::Acquire) == 0 {
            leave::wait_for(&self.id);
        }
    }

    /// Keeps an operator, and returns its number.
    pub(crate) fn keep_operator(&self, op: ReduceOp) -> c_int {
        static NUMBER: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(5);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        lock(&self.operators).insert(number, op);
        number
    }

    pub(crate) fn drop_operator(&self, number: c_int) -> Result<(), Failure> {
        let known = lock(&self.operators).remove(&number);
        known
            .map(drop)
            .ok_or_else(|| Failure::argument(format!("{number} is no operator of this communicator")))
    }

    /// `ncclRedOp_t`.
    ///
    /// # Errors
    /// A number that is no operator.
    pub(crate) fn operator(&self, number: c_int) -> Result<ReduceOp, Failure> {
        Ok(match number {
            0 => ReduceOp::Sum,
            1 => ReduceOp::Product,
            2 => ReduceOp::Max,
            3 => ReduceOp::Min,
            4 => ReduceOp::Avg,
            _ => {
                let known = lock(&self.operators).get(&number).copied();
                known.ok_or_else(|| {
                    Failure::argument(format!("{number} is no operator of this communicator"))
                })?
            }
        })
    }

    pub(crate) fn windows(&self) -> Vec<Arc<Window>> {
        lock(&self.windows).clone()
    }

    pub(crate) fn take_windows(&self) -> Vec<Arc<Window>> {
        std::mem::take(&mut *lock(&self.windows))
    }

    pub(crate) fn keep_window(&self, window: Arc<Window>) {
        lock(&self.windows).push(window);
    }

    pub(crate) fn take_window(&self, number: usize) -> Result<Arc<Window>, Failure> {
        let mut windows = lock(&self.windows);
        let place = windows.iter().position(|window| window.number == number);
        let place = place
            .ok_or_else(|| Failure::argument(format!("{number:#x} is no window of this communicator")))?;
        Ok(windows.remove(place))
    }

    /// Leaves the world, and takes the communicator's number out of the registry.
    pub(crate) fn discard(self: &Arc<Self>) {
        self.start_leaving();
        lock(&COMMS).get_or_insert_default().remove(&self.handle);
    }
}
