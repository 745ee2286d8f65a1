//! A queue that a host thread serves, from creation to its end.

use core::time::Duration;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use anabranch_hip::{Device, DeviceAddress};

use super::post_queue::{Ended, PostQueue, Turn, WorkQueue};
use super::progress::{Advance, Progress};
use super::request::words;
use super::ring::Ring;
use crate::driver::{NicLimits, QueueWords, UnansweredRequests};
use crate::error::Result;

/// Parameters of a queue.
#[derive(Clone, Debug)]
pub struct Making {
    /// Entries, a power of two.
    pub entries: u32,
    /// What a request may ask for.
    pub limits: NicLimits,
    /// How long an entry without bytes may be on its way; longer ones have time for their bytes.
    pub patience: Duration,
    /// The queue and its peer, as text: part of every failure.
    pub name: String,
}

/// A queue of a driver, in which `Q` posts. Dropping it ends `Q`, after the thread's current turn.
pub struct Served<Q: WorkQueue + 'static> {
    making: Making,
    ring: Arc<Ring>,
    stopped: Arc<OnceLock<Ended>>,
    service: Arc<Service<Q>>,
    progress: Arc<Progress>,
}

impl<Q: WorkQueue> fmt::Debug for Served<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Served").field("making", &self.making).finish_non_exhaustive()
    }
}

impl<Q: WorkQueue + 'static> Served<Q> {
    /// A queue that is not connected yet: the thread does not serve it.
    ///
    /// # Errors
    /// [`NicError::Memory`](crate::NicError::Memory) for want of pinned memory.
    pub fn new(device: &Device, progress: &Arc<Progress>, queue: Q, making: Making) -> Result<Self> {
        let ring = Arc::new(Ring::new(device, making.entries)?);
        let service = Arc::new(Service { state: Mutex::new(State::New(queue)) });
        Ok(Self { making, ring, stopped: Arc::default(), service, progress: Arc::clone(progress) })
    }

    /// Takes the queue to connect it, whatever time that takes; [`Self::end_connecting`] brings it back.
    ///
    /// # Errors
    /// That it was taken before, or has ended.
    pub fn begin_connecting(&self) -> Result<Q, String> {
        self.service.begin()
    }

    /// What connecting has led to: a queue that the thread serves from now on, or none, and it is used no more. Nothing where it was
    /// ended meanwhile.
    pub fn end_connecting(&self, connected: Option<Q>) {
        let Some(queue) = connected else {
            self.service.end_connecting(State::Ended);
            return;
        };
        let (ring, stopped) = (Arc::clone(&self.ring), Arc::clone(&self.stopped));
        let Making { limits, patience, name, .. } = self.making.clone();
        let post_queue = PostQueue::new(ring, queue, limits, patience, name, stopped);
        self.service.end_connecting(State::Connected(Box::new(post_queue)));
        self.progress.add(self.as_advance());
    }

    /// Where kernels find it.
    pub fn words(&self, number: u32, path_mtu: u32) -> QueueWords {
        QueueWords {
            ring: self.ring.entries_address(),
            entries: self.making.entries,
            completions: self.ring.completions_address(),
            doorbell_record: DeviceAddress::NULL,
            doorbell: self.ring.doorbell_address(),
            sequence_table: DeviceAddress::NULL,
            number,
            path_mtu,
            doorbell_value: 0,
        }
    }

    /// [`Making::name`].
    pub fn name(&self) -> &str {
        &self.making.name
    }

    /// [`NicQueue::stop`](crate::NicQueue::stop).
    pub fn stop(&self, reason: &str) {
        self.progress.remove(&self.as_advance());
        // Waits for a turn under way. Kernels hear of it in the ring, which stays.
        self.service.end(reason);
    }

    /// [`NicQueue::stopped`](crate::NicQueue::stopped).
    pub fn stopped(&self) -> Option<String> {
        self.stopped.get().map(|ended| ended.words.clone())
    }

    /// [`NicQueue::is_consequence`](crate::NicQueue::is_consequence).
    pub fn is_consequence(&self) -> bool {
        self.stopped.get().is_some_and(|ended| ended.is_flushed)
    }

    /// [`NicQueue::unanswered`](crate::NicQueue::unanswered).
    pub fn unanswered(&self) -> Option<UnansweredRequests> {
        if self.stopped.get().is_some() {
            return None;
        }
        let (count, oldest, request) = self.ring.incomplete()?;
        let request = request.map_or_else(|| "not filled yet".to_owned(), |request| words(&request));
        let words = format!("{count} entries are on their way, the oldest is entry {oldest}, {request}");
        Some(UnansweredRequests { oldest, words })
    }

    fn as_advance(&self) -> Arc<dyn Advance> {
        Arc::clone(&self.service) as Arc<dyn Advance>
    }
}

impl<Q: WorkQueue + 'static> Drop for Served<Q> {
    fn drop(&mut self) {
        self.progress.remove(&self.as_advance());
        // Waits for a turn under way; the queue ends here and not with the last handle on the service.
        *self.service.lock() = State::Ended;
    }
}

/// What the thread serves. The lock is held for a turn, which waits for nothing.
struct Service<Q> {
    state: Mutex<State<Q>>,
}

impl<Q> fmt::Debug for Service<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").finish_non_exhaustive()
    }
}

enum State<Q> {
    New(Q),
    /// Being connected by a thread that does not hold the lock: looking a peer up may take seconds.
    Connecting,
    Connected(Box<PostQueue<Q>>),
    Ended,
}

impl<Q> Service<Q> {
    fn lock(&self) -> MutexGuard<'_, State<Q>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the queue to connect it, with the lock given back.
    fn begin(&self) -> Result<Q, String> {
        let mut state = self.lock();
        match core::mem::replace(&mut *state, State::Connecting) {
            State::New(pair) => Ok(pair),
            other => {
                *state = other;
                Err("it is connected already, or has ended".to_owned())
            }
        }
    }

    /// What connecting has led to; nothing where the queue was ended meanwhile.
    fn end_connecting(&self, next: State<Q>) {
        let mut state = self.lock();
        if matches!(&*state, State::Connecting) {
            *state = next;
        }
    }
}

impl<Q: WorkQueue> Advance for Service<Q> {
    fn advance(&self) -> Turn {
        match &mut *self.lock() {
            State::Connected(post_queue) => post_queue.turn(),
            State::New(_) | State::Connecting | State::Ended => Turn::Stopped,
        }
    }

    fn end(&self, reason: &str) {
        let mut state = self.lock();
        match &mut *state {
            State::Connected(post_queue) => post_queue.end(reason),
            // Connecting it reports that.
            State::Connecting => *state = State::Ended,
            State::New(_) | State::Ended => {}
        }
    }
}
