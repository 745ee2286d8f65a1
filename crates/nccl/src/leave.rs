//! Leaving worlds, on threads: one thread may end the communicators of several devices one after the other.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use anabranch::bootstrap::Deadline;

use crate::comm::{Id, lock};
use crate::gpu::RelaxedCapture;
use crate::joined::Joined;
use crate::process::Process;
use crate::steps::Step;

/// How long `ncclCommDestroy` waits for the other ranks, which may end their communicators in another order. Leaving goes on behind it.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the end of the process waits for worlds that are being left.
const FAREWELL: Duration = Duration::from_secs(10);

/// Worlds that this process is leaving.
static LEAVING: Mutex<Vec<Going>> = Mutex::new(Vec::new());

/// A world that is being left, until its [`Gone`] is dropped.
struct Going {
    number: u64,
    id: Id,
    /// Processes that are forked from it have no such thread.
    process: u32,
    gone: Receiver<()>,
}

/// The other end of a [`Going`].
struct Gone {
    number: u64,
    sender: Option<Sender<()>>,
}

impl Drop for Gone {
    fn drop(&mut self) {
        // Both under the lock: a wait that has taken the entry out sees the end before it would put it back.
        let mut leaving = lock(&LEAVING);
        leaving.retain(|going| going.number != self.number);
        self.sender = None;
    }
}

/// The end of a communicator: its last step.
pub(crate) struct Leave {
    step: Step,
    joined: Arc<Joined>,
}

impl Leave {
    pub(crate) fn new(step: Step, joined: Arc<Joined>) -> Self {
        Self { step, joined }
    }

    /// Leaves behind the caller's back.
    pub(crate) fn start(self) {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        wait_at_exit();
        let (number, (sender, gone)) = (NUMBER.fetch_add(1, Ordering::Relaxed), channel());
        let id = self.step.comm.id;
        lock(&LEAVING).push(Going { number, id, process: std::process::id(), gone });
        let last = Gone { number, sender: Some(sender) };
        let leave = move || {
            self.run();
            drop(last);
        };
        if let Err(error) = std::thread::Builder::new().name("anabranch leave".to_owned()).spawn(leave) {
            tracing::warn!(%error, "no thread to leave a world: the other ranks will lose this one");
        }
    }

    fn run(self) {
        self.step.wait();
        let (joined, comm) = (self.joined, &self.step.comm);
        let (rank, size) = (comm.rank, comm.size);
        // Another thread may capture while this one asks for events, and frees.
        let relaxed = Process::get().and_then(|process| RelaxedCapture::new(process.kind()));
        if let Err(failure) = &relaxed {
            tracing::warn!(rank, size, "a capture of another thread may fail: {}", failure.text);
        }
        let windows = comm.take_windows();
        let left = if is_over(&joined) {
            // Kernels have used them until now.
            drop(windows);
            joined.world.leave()
        } else {
            tracing::warn!(
                rank,
                size,
                "work in flight did not end: its communicator's memory and windows stay"
            );
            // Kernels and graphs may still use both.
            let _kept = ManuallyDrop::new((Arc::clone(&joined), windows));
            Ok(())
        };
        let goodbye = joined.world.rendezvous().leave();
        if let Err(error) = left.map_err(anabranch::Error::from).and(goodbye.map_err(anabranch::Error::from))
        {
            tracing::info!(rank, size, "the end of a communicator: {error:?}");
        }
        comm.has_left.store(true, Ordering::Release);
    }
}

/// Whether all calls of a communicator are over: after the deadline of operations its world fails, which ends its kernels.
fn is_over(joined: &Joined) -> bool {
    let limit = Process::get().map_or(FAREWELL, |process| process.config().deadline.operation.duration());
    for limit in [limit, FAREWELL] {
        let deadline = Deadline::after(limit);
        if let Err(failure) = joined.order.wait(&joined.world, limit) {
            tracing::debug!("waiting for the calls of a communicator that ends: {}", failure.text);
        }
        if joined.order.is_over() {
            return true;
        }
        if !deadline.expired() && joined.world.check().is_ok() {
            // The runtime refuses to say.
            return false;
        }
        joined.world.poison("its communicator was ended, and calls of it did not end");
    }
    false
}

/// Waits for the worlds of an id, for a limited time.
pub(crate) fn wait_for(id: &Id) {
    wait(PATIENCE, |going| going.id == *id);
}

fn wait(limit: Duration, concerns: impl Fn(&Going) -> bool) {
    let leaving: Vec<_> = lock(&LEAVING).extract_if(.., |going| concerns(going)).collect();
    let deadline = Deadline::after(limit);
    for going in leaving {
        if going.gone.recv_timeout(deadline.remaining()) == Err(RecvTimeoutError::Timeout) {
            tracing::info!("other ranks have not ended a communicator that this process ended {limit:?} ago");
            let mut leaving = lock(&LEAVING);
            if going.gone.try_recv() == Err(TryRecvError::Empty) {
                leaving.push(going);
            }
        }
    }
}

extern "C" fn at_exit() {
    wait(FAREWELL, |going| going.process == std::process::id());
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
