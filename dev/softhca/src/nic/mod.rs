//! The device: registered memory, send queues that it reads, and the wire between the NICs of all processes.

pub(crate) mod memory;
pub(crate) mod queue;
mod requester;
mod responder;
mod wire;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use self::memory::Memory;
use self::queue::SendQueue;
pub(crate) use self::wire::MOST_BYTES;
use crate::Errno;
use crate::controls::Controls;
use crate::prm::Syndrome;
use crate::violations::Violations;

/// Polls without work after which the NIC's thread sleeps between them.
const IDLE_POLLS: u32 = 3000;
const IDLE_SLEEP: Duration = Duration::from_micros(30);

/// What the NICs of this process are: one device, whichever of them a program opens.
#[derive(Debug)]
pub(crate) struct Nic {
    pub(crate) memory: Memory,
    pub(crate) violations: Violations,
    controls: Controls,
    queues: Mutex<Vec<SendQueue>>,
    /// Entries read so far.
    entries: AtomicU64,
    /// Requests of peers so far.
    requests: AtomicU64,
}

impl Nic {
    pub(crate) fn new(controls: Controls) -> Self {
        Self {
            memory: Memory::default(),
            violations: Violations::new(&controls.folder),
            controls,
            queues: Mutex::default(),
            entries: AtomicU64::new(0),
            requests: AtomicU64::new(0),
        }
    }

    /// Starts the thread that reads entries, which lives as long as the process.
    pub(crate) fn start(self: &Arc<Self>) -> Result<(), Errno> {
        let nic = Arc::clone(self);
        let run = move || {
            let mut idle = 0;
            loop {
                idle = if nic.poll() { 0 } else { IDLE_POLLS.min(idle + 1) };
                if idle < IDLE_POLLS {
                    std::thread::yield_now();
                } else {
                    #[expect(clippy::disallowed_methods, reason = "a device has the system's time alone")]
                    std::thread::sleep(IDLE_SLEEP);
                }
            }
        };
        let started = std::thread::Builder::new().name("softhca".to_owned()).spawn(run);
        started.map(drop).map_err(|_| Errno(libc::EAGAIN))
    }

    /// Where peers reach a queue pair.
    fn socket(&self, number: u32) -> PathBuf {
        self.controls.folder.join(format!("qp-{number:06x}"))
    }

    /// Takes a queue pair on, for peers too.
    pub(crate) fn add(self: &Arc<Self>, queue: SendQueue) -> Result<(), Errno> {
        let (number, alive) = (queue.number(), queue.alive());
        responder::listen(self, &self.socket(number), alive).map_err(|error| {
            crate::report(format_args!("queue pair {number:#x} cannot be reached: {error}"));
            Errno(libc::ENOMEM)
        })?;
        self.queues().push(queue);
        Ok(())
    }

    /// From here on entries of the queue pair go to that of a peer.
    pub(crate) fn connect(&self, number: u32, destination: u32) {
        let socket = self.socket(destination);
        for queue in self.queues().iter_mut().filter(|queue| queue.number() == number) {
            queue.connect(&socket);
        }
    }

    /// From here on entries of the queue pair are flushed.
    pub(crate) fn fail(&self, number: u32) {
        for queue in self.queues().iter_mut().filter(|queue| queue.number() == number) {
            queue.fail();
        }
    }

    /// Which error stopped the queue pair.
    pub(crate) fn first_error(&self, number: u32) -> Option<Syndrome> {
        self.queues().iter().find(|queue| queue.number() == number)?.first_error()
    }

    /// Forgets a queue pair: behind this the NIC touches none of its memory, and peers reach it no more.
    pub(crate) fn remove(&self, number: u32) {
        let mut queues = self.queues();
        for queue in queues.iter().filter(|queue| queue.number() == number) {
            queue.alive().store(false, Ordering::Release);
        }
        queues.retain(|queue| queue.number() != number);
        // A socket that does not exist is no error.
        let _ = std::fs::remove_file(self.socket(number));
    }

    fn queues(&self) -> std::sync::MutexGuard<'_, Vec<SendQueue>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads what was posted; whether there was anything.
    fn poll(&self) -> bool {
        self.queues().iter_mut().map(|queue| queue.poll(self)).fold(false, std::ops::BitOr::bitor)
    }

    /// Whether the entry that is read now is the one to damage.
    fn is_damaged_entry(&self) -> bool {
        let count = self.entries.fetch_add(1, Ordering::Relaxed) + 1;
        self.controls.damaged_entry == Some(count)
    }
}

/// Whether a queue pair still exists.
type Alive = Arc<AtomicBool>;
