//! Communicators: the registry of their numbers, joining, splitting, leaving.

use std::collections::HashMap;
use std::ffi::c_int;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use anabranch::bootstrap::{Deadline, TcpRoot, UniqueId};
use anabranch::ccl::{Communicator, ReduceOp};
use anabranch::{RuntimeKind, World};

use crate::abi::{self, CommConfig, Handle};
use crate::blocks::Blocks;
use crate::error::Failure;
use crate::process::Process;
use crate::scratch::Scratch;
use crate::window::Window;

/// How long `ncclCommDestroy` waits for the other ranks, which may end their communicators in another order. Leaving goes on behind it.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the end of the process waits for worlds that are being left.
const FAREWELL: Duration = Duration::from_secs(10);

type Id = [u8; UniqueId::BYTES];

/// Communicators by the numbers that programs hold.
static COMMS: Mutex<Option<HashMap<usize, Arc<Comm>>>> = Mutex::new(None);
/// The sockets of ids that this process made, until rank 0 joins.
static ROOTS: Mutex<Option<HashMap<Id, TcpRoot>>> = Mutex::new(None);
/// Ranks of one id in this process.
static CLIQUES: Mutex<Option<HashMap<Id, Arc<Clique>>>> = Mutex::new(None);
/// Worlds that are being left, each with the id of its communicator.
static LEAVING: Mutex<Vec<(Id, Receiver<()>)>> = Mutex::new(Vec::new());

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The ranks of a communicator that are devices of this process.
#[derive(Debug, Default)]
struct Clique {
    alive: AtomicUsize,
}

/// A world that was joined for a communicator.
pub(crate) struct Joined {
    pub(crate) world: World,
    pub(crate) communicator: Mutex<Communicator>,
    pub(crate) scratch: Scratch,
    /// Given back after the communicator.
    _blocks: Option<Blocks>,
}

impl fmt::Debug for Joined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Joined").field("world", &self.world).finish_non_exhaustive()
    }
}

/// One rank of a communicator.
#[derive(Debug)]
pub(crate) struct Comm {
    handle: usize,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) device: u32,
    id: Id,
    config: CommConfig,
    clique: Arc<Clique>,
    process: u32,
    joined: OnceLock<Result<Arc<Joined>, Failure>>,
    is_aborted: AtomicBool,
    is_leaving: AtomicBool,
    has_left: Arc<AtomicBool>,
    operators: Mutex<HashMap<c_int, ReduceOp>>,
    windows: Mutex<Vec<Arc<Window>>>,
}

/// A new id, whose socket listens in this process.
///
/// # Errors
/// Wrong settings; a socket that cannot be opened.
pub(crate) fn unique_id() -> Result<Id, Failure> {
    let root = anabranch::bind_root(Process::get()?.config())?;
    let id = root.unique_id()?.to_bytes();
    lock(&ROOTS).get_or_insert_default().insert(id, root);
    Ok(id)
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
    /// A communicator that is not joined yet, in the registry.
    ///
    /// # Errors
    /// A rank that is not below the size; a device that this process does not have.
    pub(crate) fn new(
        id: Id,
        rank: c_int,
        size: c_int,
        device: u32,
        config: CommConfig,
    ) -> Result<Arc<Self>, Failure> {
        static NUMBER: AtomicUsize = AtomicUsize::new(1);
        if size < 1 || !(0..size).contains(&rank) {
            return Err(Failure::argument(format!(
                "rank is {rank} and nranks {size}; ranks are 0 to nranks - 1"
            )));
        }
        Process::get()?.local_rank(device)?;
        let clique = Arc::clone(lock(&CLIQUES).get_or_insert_default().entry(id).or_default());
        clique.alive.fetch_add(1, Ordering::AcqRel);
        let comm = Arc::new(Self {
            // Aligned like an address, and none.
            handle: NUMBER.fetch_add(1, Ordering::Relaxed) << 6,
            rank: rank as u32,
            size: size as u32,
            device,
            id,
            config,
            clique,
            process: std::process::id(),
            joined: OnceLock::new(),
            is_aborted: AtomicBool::new(false),
            is_leaving: AtomicBool::new(false),
            has_left: Arc::default(),
            operators: Mutex::default(),
            windows: Mutex::default(),
        });
        lock(&COMMS).get_or_insert_default().insert(comm.handle, Arc::clone(&comm));
        Ok(comm)
    }

    /// Ends the waits for an initialisation that will not run.
    pub(crate) fn give_up(&self) {
        let text = "the communicator was not initialised: its group failed before, or was not run";
        // An outcome that is there stays.
        let _ = self.joined.set(Err(Failure::usage(text).on(self.rank, self.size)));
    }

    pub(crate) fn handle(&self) -> Handle {
        self.handle as Handle
    }

    pub(crate) fn is_nonblocking(&self) -> bool {
        self.config.is_nonblocking
    }

    /// Meets the other ranks. Collective.
    ///
    /// # Errors
    /// Ranks that did not come; different settings; the device's. [`Self::joined`] has the same afterwards.
    pub(crate) fn join(&self) -> Result<(), Failure> {
        let result = self.meet().map(Arc::new).map_err(|failure| failure.on(self.rank, self.size));
        let outcome = result.as_ref().map(|_| ()).map_err(Clone::clone);
        // Each communicator is joined once.
        let _ = self.joined.set(result);
        if self.is_aborted.load(Ordering::Acquire) {
            self.strike();
        }
        outcome
    }

    fn meet(&self) -> Result<Joined, Failure> {
        let process = Process::get()?;
        let id = UniqueId::from_bytes(&self.id)
            .map_err(|error| Failure::argument(format!("the id is not one of this library's: {error}")))?;
        let local = (process.local_rank(self.device)?, process.platform.ranks());
        let root = if self.rank == 0 {
            let root = lock(&ROOTS).get_or_insert_default().remove(&self.id).ok_or_else(|| {
                Failure::usage("rank 0 must be in the process that called ncclGetUniqueId, and an id serves one communicator")
            })?;
            Some(root)
        } else {
            None
        };
        let place = (self.rank, self.size);
        let rank = anabranch::rendezvous_by_id(process.config(), &id, root, place, Some(local))?;
        let world = process.platform.join(&rank)?;
        let mut config = anabranch::ccl_config(world.settings())?;
        // 0: no setting.
        let blocks = if config.max_blocks == 0 && process.kind() != RuntimeKind::Host {
            Some(Blocks::take(&world)?)
        } else {
            None
        };
        let offers = [
            config.max_blocks,
            blocks.as_ref().map_or(0, |blocks| blocks.number),
            self.config.max_blocks.unwrap_or(0),
        ];
        config.max_blocks = offers.into_iter().filter(|offer| *offer > 0).min().unwrap_or(0);
        let communicator = Communicator::new(&world, world.group(), config)?;
        let communicator = Mutex::new(communicator);
        Ok(Joined { world, communicator, scratch: Scratch::default(), _blocks: blocks })
    }

    /// The joined world. Waits for an initialisation that is under way.
    ///
    /// # Errors
    /// Why it failed; a communicator that is being left or was aborted.
    pub(crate) fn joined(&self) -> Result<Arc<Joined>, Failure> {
        if self.is_aborted.load(Ordering::Acquire) {
            return Err(Failure::usage("the communicator was aborted").on(self.rank, self.size));
        }
        if self.is_leaving.load(Ordering::Acquire) {
            return Err(Failure::usage("the communicator was finalized").on(self.rank, self.size));
        }
        self.joined.wait().clone()
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
            return if self.has_left.load(Ordering::Acquire) { Ok(()) } else { Err(in_progress()) };
        }
        joined.world.check().map_err(|error| Failure::from(error).on(self.rank, self.size))
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
    fn strike(&self) {
        if let Some(Ok(joined)) = self.joined.get() {
            joined.world.poison("ncclCommAbort");
            if let Err(error) = joined.world.rendezvous().leave() {
                tracing::debug!(%error, "leaving the rendezvous after ncclCommAbort");
            }
        }
    }

    /// `ncclCommAbort`: kernels of this rank end, the other ranks get an error that names this one.
    pub(crate) fn abort(&self) {
        self.is_aborted.store(true, Ordering::Release);
        self.strike();
        self.start_leaving();
        self.forget();
    }

    /// Leaves the world on a thread of its own: one thread may end the communicators of several devices one after the other.
    pub(crate) fn start_leaving(&self) {
        if self.is_leaving.swap(true, Ordering::AcqRel) {
            return;
        }
        lock(&self.windows).clear();
        let Some(Ok(joined)) = self.joined.get().cloned() else {
            self.has_left.store(true, Ordering::Release);
            self.leave_clique();
            return;
        };
        crate::exit::wait_at_exit();
        let (has_left, (sender, receiver)) = (Arc::clone(&self.has_left), channel());
        let (rank, size) = (self.rank, self.size);
        let leave = move || {
            let left = joined.world.leave();
            let goodbye = joined.world.rendezvous().leave();
            if let Err(error) =
                left.map_err(anabranch::Error::from).and(goodbye.map_err(anabranch::Error::from))
            {
                tracing::info!(rank, size, "the end of a communicator: {error:?}");
            }
            has_left.store(true, Ordering::Release);
            drop(joined);
            drop(sender);
        };
        match std::thread::Builder::new().name("anabranch leave".to_owned()).spawn(leave) {
            Ok(_) => lock(&LEAVING).push((self.id, receiver)),
            Err(error) => {
                tracing::warn!(%error, "no thread to leave a world: the other ranks will lose this one");
            }
        }
        self.leave_clique();
    }

    fn leave_clique(&self) {
        if self.clique.alive.fetch_sub(1, Ordering::AcqRel) == 1 {
            lock(&CLIQUES).get_or_insert_default().remove(&self.id);
        }
    }

    /// Waits until this process has left, unless other ranks of the communicator in it have not begun to.
    pub(crate) fn wait_left(&self) {
        if self.clique.alive.load(Ordering::Acquire) == 0 {
            wait(PATIENCE, |id| *id == self.id);
        }
    }

    /// Takes the communicator's number out of the registry.
    pub(crate) fn forget(&self) {
        lock(&COMMS).get_or_insert_default().remove(&self.handle);
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

    /// `ncclCommSplit`, with a world of its own for each color: it outlives its parent, and fails by itself. Collective over the parent.
    ///
    /// # Errors
    /// As [`Self::join`]; a color below -1.
    pub(crate) fn split(
        &self,
        color: c_int,
        key: c_int,
        config: Option<CommConfig>,
    ) -> Result<Option<Arc<Self>>, Failure> {
        let joined = self.joined()?;
        let world = &joined.world;
        if color < abi::NO_COLOR {
            return Err(Failure::argument(format!("color is {color}; -1 (none) and up are allowed")));
        }
        let mine: Vec<u8> = [color, key].iter().flat_map(|word| word.to_le_bytes()).collect();
        let all = world.exchange(world.group(), "ncclCommSplit", &mine)?;
        let word = |bytes: &[u8], place: usize| {
            bytes.get(place..place + 4)?.try_into().ok().map(c_int::from_le_bytes)
        };
        let mut members = Vec::new();
        for (rank, bytes) in all.iter().enumerate() {
            let (Some(their_color), Some(their_key)) = (word(bytes, 0), word(bytes, 4)) else {
                return Err(Failure::new(
                    abi::INTERNAL,
                    format!("rank {rank} sent {} bytes for a split", bytes.len()),
                ));
            };
            if their_color == color {
                members.push((their_key, rank as u32));
            }
        }
        members.sort_unstable();
        let place =
            members.iter().position(|(_, rank)| *rank == self.rank).filter(|_| color != abi::NO_COLOR);
        let own_id = if place == Some(0) { Some(unique_id()?) } else { None };
        let ids = world.exchange(
            world.group(),
            "ncclCommSplit ids",
            own_id.as_ref().map_or(&[][..], |id| &id[..]),
        )?;
        let Some(place) = place else { return Ok(None) };
        let id = Id::try_from(ids[members[0].1 as usize].as_slice())
            .map_err(|_| Failure::new(abi::INTERNAL, format!("rank {} sent no id", members[0].1)))?;
        let config = config.unwrap_or(self.config);
        let comm = Self::new(id, place as c_int, members.len() as c_int, self.device, config)?;
        comm.join().inspect_err(|_| comm.discard())?;
        Ok(Some(comm))
    }

    /// Ends a communicator that failed to join.
    pub(crate) fn discard(&self) {
        self.start_leaving();
        self.forget();
    }
}

/// Waits for all worlds that are being left, at the end of the process.
pub(crate) fn wait_all_left() {
    wait(FAREWELL, |_| true);
}

/// Waits for worlds that are being left, for a limited time.
fn wait(limit: Duration, concerns: impl Fn(&Id) -> bool) {
    let leaving: Vec<_> = lock(&LEAVING).extract_if(.., |(id, _)| concerns(id)).collect();
    let deadline = Deadline::after(limit);
    for (id, left) in leaving {
        if left.recv_timeout(deadline.remaining()) == Err(RecvTimeoutError::Timeout) {
            tracing::info!("other ranks have not ended a communicator that this process ended {limit:?} ago");
            lock(&LEAVING).push((id, left));
        }
    }
}
