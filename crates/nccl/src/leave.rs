//! Leaving worlds, on threads: one thread may end the communicators of several devices one after the other.
//!
//! The end of a communicator makes a [`Leave`] and starts its thread. Until the thread drops its [`Gone`], a [`Going`] is in [`LEAVING`] for
//! those who wait. A [`Leave`] whose calls are not over goes to [`KEPT`], and [`retry`] starts it again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use crate::comm::{Comm, Id, lock};
use crate::error::of_panic;
use crate::in_use::{Calls, are_over, kept_on_panic};
use crate::joined::Joined;
use crate::process::Process;
use crate::steps::Step;
use crate::window::Window;

/// How long `ncclCommDestroy` waits for the other ranks, which may end their communicators in another order. Leaving goes on afterwards.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the end of the process waits for worlds that are being left.
const FAREWELL: Duration = Duration::from_secs(10);

/// Worlds that this process is leaving.
static LEAVING: Mutex<Vec<Going>> = Mutex::new(Vec::new());
/// Worlds that could not be left yet: calls did not end, even after the world's failure, or no thread could start.
static KEPT: Mutex<Vec<Leave>> = Mutex::new(Vec::new());

/// A world that is being left, until its [`Gone`] is dropped.
struct Going {
    number: u64,
    id: Id,
    /// Processes that are forked from it have no such thread.
    process: u32,
    /// Dropped with the entry, for those who wait.
    waiting: Vec<Sender<()>>,
}

/// The other end of a [`Going`].
struct Gone(u64);

impl Drop for Gone {
    fn drop(&mut self) {
        lock(&LEAVING).retain(|going| going.number != self.0);
    }
}

/// The end of a communicator.
pub(crate) struct Leave {
    comm: Arc<Comm>,
    joined: Arc<Joined>,
    /// The last step of the communicator, until it is over.
    step: Option<Step>,
    windows: Vec<Arc<Window>>,
}

impl Leave {
    pub(crate) fn new(comm: &Arc<Comm>, joined: Arc<Joined>) -> Self {
        let step = Some(Step::new(comm, false));
        Self { comm: Arc::clone(comm), joined, step, windows: Vec::new() }
    }

    /// Leaves on a thread of its own.
    pub(crate) fn start(self) {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        wait_at_exit();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let (id, process) = (self.comm.id, self.comm.process);
        lock(&LEAVING).push(Going { number, id, process, waiting: Vec::new() });
        let gone = Gone(number);
        // It is handed to the thread when there is one.
        let (sender, receiver) = channel::<Self>();
        let leave = move || {
            if let Ok(leave) = receiver.recv() {
                leave.run_or_keep();
            }
            drop(gone);
        };
        match std::thread::Builder::new().name("anabranch leave".to_owned()).spawn(leave) {
            // The thread waits for it.
            Ok(_) => drop(sender.send(self)),
            Err(error) => {
                let (rank, size) = (self.comm.rank, self.comm.size);
                tracing::warn!(rank, size, %error, "no thread to leave a world: a later call tries again");
                lock(&KEPT).push(self);
            }
        }
    }

    /// Leaves; keeps the memory of calls that are not over, and after a panic.
    fn run_or_keep(self) {
        let comm = Arc::clone(&self.comm);
        let (rank, size) = (comm.rank, comm.size);
        match kept_on_panic(self, Self::run) {
            Ok((_, true)) => {}
            Ok((leave, false)) => {
                tracing::warn!(
                    rank,
                    size,
                    "work in flight did not end: the memory of its communicator stays until it has"
                );
                lock(&KEPT).push(leave);
            }
            Err(panic) => {
                let failure = of_panic(panic.as_ref()).on(rank, size);
                tracing::error!("{}; the memory of a communicator that ends stays for good", failure.text);
                comm.note(&failure);
                comm.has_left.store(true, Ordering::Release);
                comm.strike(&failure.text);
            }
        }
    }

    /// Leaves, and returns whether its calls are over.
    fn run(&mut self) -> bool {
        let (rank, size) = (self.comm.rank, self.comm.size);
        // Another thread may capture while this one asks for events, and frees.
        let relaxed = Process::get().and_then(|process| process.relax_captures());
        if let Err(failure) = &relaxed {
            tracing::warn!(rank, size, "a capture of another thread may fail: {}", failure.text);
        }
        if let Some(step) = &self.step {
            if let Err(failure) = step.wait() {
                tracing::warn!("a communicator ends with an error: {}", failure.text);
                self.comm.note(&failure);
                self.joined.world.poison(&failure.text);
            }
            self.windows = self.comm.take_windows();
        }
        let limit = Process::get().map_or(FAREWELL, |process| process.config().deadline.operation.duration());
        let is_over = are_over(&*self.joined, limit);
        let left = if is_over {
            // Kernels have used them until now.
            self.windows.clear();
            self.joined.world.leave()
        } else {
            Ok(())
        };
        let goodbye = self.joined.world.rendezvous().leave();
        if let Err(error) = left.map_err(anabranch::Error::from).and(goodbye.map_err(anabranch::Error::from))
        {
            tracing::info!(rank, size, "the end of a communicator: {error:?}");
        }
        self.comm.has_left.store(true, Ordering::Release);
        self.step = None;
        is_over
    }
}

/// Leaves what could not be left before. New communicators and ends of others try it.
pub(crate) fn retry() {
    // A forked process has no part in its parent's worlds.
    let is_own = |leave: &Leave| leave.comm.process == std::process::id();
    if !lock(&KEPT).iter().any(is_own) {
        return;
    }
    let relaxed = Process::get().and_then(|process| process.relax_captures());
    if relaxed.is_err() {
        // Asking could fail a capture of another thread.
        return;
    }
    let can_leave =
        |leave: &mut Leave| is_own(leave) && (leave.step.is_some() || leave.joined.order.last().is_over());
    let leaves: Vec<_> = lock(&KEPT).extract_if(.., can_leave).collect();
    leaves.into_iter().for_each(Leave::start);
}

impl Calls for Joined {
    fn wait(&self, limit: Duration) {
        if let Err(error) = self.world.wait_within(&self.order.last(), limit) {
            tracing::debug!("waiting for the calls of a communicator that ends: {error:?}");
        }
    }

    fn are_over(&self) -> bool {
        self.order.last().is_over()
    }

    fn have_failed(&self) -> bool {
        self.world.check().is_err()
    }

    fn fail(&self) {
        self.world.poison("its communicator was ended, and calls of it did not end");
    }
}

/// Waits for the worlds of an id, for a limited time.
pub(crate) fn wait_for(id: &Id) {
    wait(PATIENCE, |going| going.id == *id);
}

fn wait(limit: Duration, concerns: impl Fn(&Going) -> bool) {
    let (waiting, gone) = channel();
    let process = std::process::id();
    for going in lock(&LEAVING).iter_mut().filter(|going| going.process == process && concerns(going)) {
        going.waiting.push(waiting.clone());
    }
    drop(waiting);
    // Nothing is sent: the wait ends when all entries are gone.
    if gone.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
        tracing::info!("other ranks have not ended a communicator that this process ended {limit:?} ago");
    }
}

extern "C" fn at_exit() {
    retry();
    wait(FAREWELL, |_| true);
}

/// Lets the end of the process wait for worlds that are being left, so that the other ranks do not lose this one.
fn wait_at_exit() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: the function is `extern "C"` without arguments. The library stays mapped: it has threads and is never closed.
        if unsafe { libc::atexit(at_exit) } != 0 {
            tracing::warn!("atexit failed: communicators that are destroyed at the end of the process may look like lost ranks");
        }
    });
}
