//! A joined world as the objects of the module share it.

use std::collections::{HashMap, VecDeque};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use anabranch::bootstrap::Deadline;
use anabranch::hip::Stream;
use anabranch::shmem::{LaunchEvent, SymmetricMemory};
use anabranch::{GlobalRank, Group, GroupRank, RuntimeKind, World};
use pyo3::prelude::*;

use crate::array::{Array, Home, default_stream};
use crate::errors::{expired, raise, usage};
use crate::logs;
use crate::unlocked::Unlocked;

/// How long the host waits between looks at Python's signals.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// The worlds of this process, for calls that name none.
static WORLDS: Mutex<Vec<Weak<State>>> = Mutex::new(Vec::new());

/// A joined world, with what its objects in Python need.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) world: World,
    pub(crate) home: Home,
    pub(crate) local_rank: u32,
    /// The stream of calls that name none, on the host runtime. Frameworks have none of their own there.
    stream: Arc<Stream>,
    process: u32,
    left: AtomicBool,
    /// By stream, in its order: only the first event of a stream is asked whether it is done.
    held: Mutex<HashMap<usize, VecDeque<Held>>>,
    /// The allocations of `World.empty`.
    allocations: Mutex<Vec<Weak<SymmetricMemory>>>,
}

/// Python objects whose memory launches still use, until the event.
type Held = (LaunchEvent, Vec<Py<PyAny>>);

impl State {
    pub(crate) fn new(world: World, local_rank: u32) -> Result<Arc<Self>, anabranch::Error> {
        let device = world.device();
        let home = Home { runtime: device.runtime().kind(), ordinal: device.ordinal().0 };
        let stream = Arc::new(device.create_stream()?);
        let state = Arc::new(Self {
            world,
            home,
            local_rank,
            stream,
            process: std::process::id(),
            left: AtomicBool::new(false),
            held: Mutex::default(),
            allocations: Mutex::default(),
        });
        let mut worlds = WORLDS.lock().unwrap_or_else(PoisonError::into_inner);
        worlds.retain(|world| world.strong_count() > 0);
        worlds.push(Arc::downgrade(&state));
        Ok(state)
    }

    /// The only world that this process is in.
    ///
    /// # Errors
    /// `UsageError` where it is in none, or in several, as ranks that are threads are.
    pub(crate) fn only() -> PyResult<Arc<Self>> {
        // Each may be the last to hold its world, whose drop waits: neither under the lock of the list nor under the interpreter's.
        let mut worlds: Vec<_> = {
            let all = WORLDS.lock().unwrap_or_else(PoisonError::into_inner);
            all.iter().filter_map(Weak::upgrade).map(Unlocked::new).collect()
        };
        worlds.retain(|world| world.live().is_ok());
        match worlds.as_slice() {
            [world] => Ok(Arc::clone(world)),
            _ => Err(usage(format!(
                "this process is in {} worlds; give `world`, unless there is exactly one",
                worlds.len()
            ))),
        }
    }

    /// The world, for a call.
    ///
    /// # Errors
    /// `UsageError` in a process that was forked from the one that joined, and after [`Self::leave`].
    pub(crate) fn live(&self) -> PyResult<&World> {
        let now = std::process::id();
        if now != self.process {
            return Err(usage(format!(
                "process {} joined this world, and process {now} was forked from it; device memory and connections do not \
                 survive a fork: join a world in the new process",
                self.process
            )));
        }
        if self.left.load(Ordering::Acquire) {
            return Err(usage("this rank has left the world"));
        }
        Ok(&self.world)
    }

    /// Notes an allocation, for [`Self::allocation_at`].
    pub(crate) fn note(&self, memory: &Arc<SymmetricMemory>) {
        let mut all = self.allocations.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(memory));
    }

    /// The allocation of `World.empty` that holds these bytes.
    pub(crate) fn allocation_at(&self, address: u64, bytes: u64) -> Option<Arc<SymmetricMemory>> {
        // Released after the lock: each may be the last to hold its memory.
        let all: Vec<_> = {
            let all = self.allocations.lock().unwrap_or_else(PoisonError::into_inner);
            all.iter().filter_map(Weak::upgrade).collect()
        };
        all.into_iter().find(|memory| {
            let offset = address.checked_sub(memory.address().0);
            offset.and_then(|offset| offset.checked_add(bytes)).is_some_and(|end| end <= memory.bytes())
        })
    }

    /// The stream of calls that name none, on the host runtime.
    pub(crate) fn own_stream(&self) -> &Stream {
        &self.stream
    }

    /// The group of these ranks of the world, in this order; `None` is the world.
    pub(crate) fn group(&self, ranks: Option<Vec<u32>>) -> PyResult<Group> {
        let world = self.world.group();
        match ranks {
            None => Ok(world.clone()),
            Some(ranks) => {
                let ranks = ranks.into_iter().map(GlobalRank::new).collect::<Vec<_>>();
                let group = world.subset_of_ranks(&ranks);
                group.map_err(|error| raise(anabranch::shmem::Error::from(error)))
            }
        }
    }

    /// The stream of a call: the one that was given, else the one on which the first tensor's library works now. A call without tensors
    /// takes that of torch or cupy, where the program has imported one of them.
    ///
    /// # Errors
    /// `UsageError` where neither is known.
    pub(crate) fn stream(
        &self,
        py: Python<'_>,
        given: Option<&Bound<'_, PyAny>>,
        array: Option<&Array>,
    ) -> PyResult<Arc<Stream>> {
        let given = given.filter(|given| !given.is_none());
        if self.home.runtime == RuntimeKind::Host {
            return match given {
                None => Ok(Arc::clone(&self.stream)),
                Some(_) => Err(usage("the host runtime has one stream a rank; leave `stream` out")),
            };
        }
        let address = match given {
            Some(given) => Some(stream_address(given)?),
            // Memory of the heap knows no stream.
            None => match array.map(|array| array.current_stream(py, self.home)).transpose()?.flatten() {
                None => default_stream(py, self.home)?,
                known => known,
            },
        };
        let address = address.ok_or_else(|| {
            usage("no stream: give `stream` (a number, or an object with cuda_stream or __cuda_stream__)")
        })?;
        // SAFETY: the caller, or the tensor's library, says that it is a stream of this device. It is used in this call, and by handles that
        // the call returns, which keep the caller's object.
        Ok(Arc::new(unsafe { self.world.device().borrow_stream(address as *mut _) }))
    }

    /// Keeps Python objects until what is on the stream now is over: `event`, or one that is recorded here. Not under capture, where the
    /// graph's owner keeps the memory. Where the end cannot be known, for good.
    pub(crate) fn hold(&self, stream: &Stream, event: Option<LaunchEvent>, objects: Vec<Py<PyAny>>) {
        let recorded = match stream.is_capturing() {
            Ok(true) => return,
            Ok(false) => event.map_or_else(|| self.world.event_after(stream), Ok),
            Err(error) => Err(error.into()),
        };
        match recorded {
            Ok(event) => {
                let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
                held.entry(stream.raw().addr()).or_default().push_back((event, objects));
            }
            Err(error) => {
                tracing::warn!(%error, "tensors of a call are kept for good: the end of its work cannot be known");
                let _kept = ManuallyDrop::new(objects);
            }
        }
    }

    /// Makes later work on `stream` wait for what is on the stream `after` now.
    pub(crate) fn order(&self, stream: &Stream, after: &Stream) -> Result<(), anabranch::Error> {
        let before = self.world.event_after(after)?;
        Ok(stream.wait_event(&before)?)
    }

    /// [`Self::release`] before a launch on this stream; nothing under capture, which a thread's query of an event invalidates.
    pub(crate) fn release_before(&self, stream: &Stream) {
        if !stream.is_capturing().unwrap_or(true) {
            self.release();
        }
    }

    /// Lets go of what no launch uses any more. Called while the interpreter's lock is held, and not while this thread captures.
    pub(crate) fn release(&self) {
        let mut over = Vec::new();
        self.held.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, held| {
            while held.front().is_some_and(|(event, _)| event.is_done().unwrap_or(false)) {
                over.extend(held.pop_front());
            }
            !held.is_empty()
        });
        // Not with the lock: dropping an object may run Python code that calls back.
        drop(over);
    }

    /// Leaves the world and the rendezvous. Doing it again does nothing, and neither does a forked process.
    pub(crate) fn leave(&self) -> Result<(), anabranch::Error> {
        if std::process::id() != self.process || self.left.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let left = self.world.leave();
        let goodbye = self.world.rendezvous().leave();
        left?;
        Ok(goodbye?)
    }

    /// Marks the world as failed after an exception: the other ranks notice at once, and not by a deadline. Does not wait: the thread that it
    /// returns does, until kernels of this rank have ended.
    pub(crate) fn abandon(&self, reason: &str) -> Option<JoinHandle<()>> {
        if std::process::id() != self.process || self.left.swap(true, Ordering::AcqRel) {
            return None;
        }
        self.world.poison(reason);
        // They may be gone already; the exception is the error to report.
        if let Err(error) = self.world.rendezvous().leave() {
            tracing::debug!(%error, "leaving the rendezvous after an exception");
        }
        let world = self.world.clone();
        let leave = move || {
            if let Err(error) = world.leave() {
                tracing::debug!(%error, "leaving the world after an exception");
            }
        };
        // Where no thread can be started, the world is left when its last object is dropped.
        std::thread::Builder::new().name("anabranch leave".to_owned()).spawn(leave).ok()
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let held = self.held.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (event, objects) in std::mem::take(held).into_values().flatten() {
            // A kernel that may still run must not find its memory gone.
            if !event.is_done().unwrap_or(false) {
                let _kept = ManuallyDrop::new(objects);
            }
        }
    }
}

/// A stream as users name it: a number, torch's `cuda_stream`, or the protocol `__cuda_stream__`, which gives `(version, address)`.
fn stream_address(given: &Bound<'_, PyAny>) -> PyResult<u64> {
    if let Ok(address) = given.extract::<u64>() {
        return Ok(address);
    }
    if let Ok(address) = given.getattr("cuda_stream") {
        return address.extract();
    }
    if let Ok(method) = given.getattr("__cuda_stream__") {
        let answer = if method.is_callable() { method.call0()? } else { method };
        return Ok(answer.extract::<(u64, u64)>()?.1);
    }
    let kind = given.get_type().name()?;
    Err(usage(format!(
        "`stream` is of type {kind}; a number, or an object with cuda_stream or __cuda_stream__ is needed"
    )))
}

/// The rank of a group that an argument names.
///
/// # Errors
/// `UsageError` for a rank outside the group.
pub(crate) fn member(group: &Group, rank: u32, name: &str) -> PyResult<GroupRank> {
    if rank < group.size() {
        return Ok(GroupRank::new(rank));
    }
    Err(usage(format!("{name} is {rank}; the group has ranks 0 to {}", group.size() - 1)))
}

/// Waits in slices, without the interpreter's lock, until `wait` no longer says that work goes on. Python's signals, Ctrl-C among them, end
/// the wait.
///
/// # Errors
/// Those of `wait`, the signal's, and `WaitTimeout` after `timeout`.
pub(crate) fn wait_in_slices(
    py: Python<'_>,
    timeout: Option<Duration>,
    wait: impl Fn(Duration) -> Result<(), anabranch::Error> + Sync,
) -> PyResult<()> {
    let deadline = timeout.map(Deadline::after);
    loop {
        let slice = deadline.as_ref().map_or(SLICE, |deadline| deadline.remaining().min(SLICE));
        match py.detach(|| wait(slice)) {
            Ok(()) => return Ok(()),
            Err(error) if error.is_busy() => py.check_signals()?,
            Err(error) => return Err(raise(error)),
        }
        if let Some(deadline) = &deadline
            && deadline.expired()
        {
            let text = format!("not done after {:?}; the work goes on", deadline.waited());
            return Err(expired(&text));
        }
    }
}

/// Runs a call that may wait for other ranks. Ctrl-C ends the wait, and the world.
pub(crate) fn collective<T: Send + 'static>(
    py: Python<'_>,
    world: &World,
    call: impl FnOnce(&World) -> Result<T, anabranch::Error> + Send + 'static,
) -> PyResult<T> {
    let (world, poisoned) = (world.clone(), world.clone());
    let result = interruptible(py, false, move || interrupted(&poisoned), move || call(&world));
    logs::flush(py);
    result
}

/// What ends the wait of a call that Ctrl-C interrupted.
pub(crate) fn interrupted(world: &World) {
    world.poison("interrupted from Python");
}

/// Runs a call that may wait for other ranks on a thread of its own, so that Ctrl-C ends the wait. `interrupted` is called then: it makes
/// the call end soon. With `joins`, the wait goes on until the call has ended, or until another signal.
pub(crate) fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    joins: bool,
    interrupted: impl Fn(),
    call: impl FnOnce() -> Result<T, anabranch::Error> + Send + 'static,
) -> PyResult<T> {
    let (sender, receiver) = sync_channel(1);
    let body = move || {
        // The receiver is gone after an interrupt.
        let _ = sender.send(call());
    };
    let spawned = std::thread::Builder::new().name("anabranch call".to_owned()).spawn(body);
    spawned.map_err(|source| raise(anabranch::Error::Thread { rank: 0, source }))?;
    let receiver = Mutex::new(receiver);
    let mut signal: Option<PyErr> = None;
    loop {
        let received =
            py.detach(|| receiver.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(SLICE));
        match (received, signal.take()) {
            (Ok(_), Some(signal)) => return Err(signal),
            (Ok(result), None) => return result.map_err(raise),
            (Err(RecvTimeoutError::Timeout), first) => match py.check_signals() {
                Ok(()) => signal = first,
                Err(error) => {
                    interrupted();
                    if !joins || first.is_some() {
                        return Err(error);
                    }
                    signal = Some(error);
                }
            },
            (Err(RecvTimeoutError::Disconnected), _) => {
                return Err(pyo3::exceptions::PyRuntimeError::new_err(
                    "the library panicked; see standard error",
                ));
            }
        }
    }
}
