//! The queue pairs of a rank, watched from the host.
//!
//! A request that failed is told where requests are completed: to the rank that made it. Its kernels look there when they put more, or
//! wait for what they put; the kernel that waits for a *peer's* word does not, and the peer, to which nothing comes, has nothing to look at.
//! So a thread of the host looks at all queue pairs while the world is joined. When one has stopped it ends the waits of this rank's
//! kernels, as the loss of a peer does, and publishes whose request failed and how: ranks that miss this one find it there
//! (`cause.rs`).
//!
//! Under a driver, which runs the threads of a simulation one at a time, nobody watches: who waits in vain looks then, at its deadline.

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use anabranch_clock::{Moment, Signal};
use anabranch_ranks::GlobalRank;
use anabranch_transport_rdma::StoppedQueue;

use crate::alarm::Alarm;
use crate::error::{Error, Result};
use crate::told::Causes;
use crate::world::{Connections, World};

/// Between two looks at all queue pairs, each of which reads a few bytes of host memory for each of them.
const LOOK: Duration = Duration::from_millis(20);

/// Dropping it ends the thread, which holds nothing of the world from then on.
#[derive(Debug)]
pub(crate) struct NicWatch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    ended: Mutex<bool>,
    changed: Signal,
    alarm: Arc<Alarm>,
    connections: Arc<RwLock<Connections>>,
}

impl Connections {
    /// The first queue pair that has stopped, to a rank that is not left out.
    pub(crate) fn stopped_nic(&self, is_left_out: impl Fn(GlobalRank) -> bool) -> Option<StoppedQueue> {
        self.transports.rdma()?.first_stopped(is_left_out)
    }
}

impl World {
    /// Begins to watch, where some peer is reached by NIC.
    pub(crate) fn watch_nics(&self) -> Result<()> {
        let inner = &self.inner;
        let is_used = inner.with_connections(|connections| self.uses_nic(connections));
        if !is_used || inner.device.runtime().driver().is_some() {
            return Ok(());
        }
        let shared = Arc::new(Shared {
            ended: Mutex::new(false),
            changed: Signal::new(),
            alarm: Arc::clone(&inner.alarm),
            connections: Arc::clone(&inner.connections),
        });
        let (watched, causes) = (Arc::clone(&shared), self.causes());
        let named = std::thread::Builder::new().name(format!("queue pairs of rank {}", self.rank().get()));
        let grace = inner.config.loss_grace;
        let started = named.spawn(move || watched.run(grace, &causes));
        let thread = started.map_err(|source| Error::Thread { what: "the watch of queue pairs", source })?;
        let watch = NicWatch { shared, thread: Some(thread) };
        *inner.nic_watch.lock().unwrap_or_else(PoisonError::into_inner) = Some(watch);
        Ok(())
    }
}

impl Shared {
    /// Waits for so long, or until the watch ends: whether it goes on.
    fn rest(&self, length: Duration) -> bool {
        let until = Moment::now().after(length);
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        while !*ended && !until.remaining().is_zero() {
            ended = self.changed.wait(&self.ended, ended, Some(until));
        }
        !*ended
    }

    fn run(&self, grace: Duration, causes: &Causes) {
        while self.rest(LOOK) {
            let stopped = {
                let connections = self.connections.read().unwrap_or_else(PoisonError::into_inner);
                // Whoever can do without a rank can do without its queue pairs.
                connections.stopped_nic(|rank| self.alarm.tolerated(|tolerated| tolerated.names(rank)))
            };
            let Some(stopped) = stopped else { continue };
            tracing::debug!(peer = stopped.peer.get(), words = stopped.words, "a queue pair has stopped");
            self.alarm.stopped(stopped.clone());
            // A peer that went is a loss, and the news of it may be on its way; what it went of is not the NIC's to say.
            let goes_on = || self.alarm.losses().is_empty() && self.rest(Duration::from_millis(2));
            let end = Moment::now().after(grace);
            while !end.remaining().is_zero() && goes_on() {}
            let theirs = causes.told_by_peer(&stopped, grace, goes_on);
            if self.alarm.losses().is_empty() {
                causes.tell_stopped(&stopped, theirs);
            }
            return;
        }
    }
}

impl Drop for NicWatch {
    fn drop(&mut self) {
        *self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the thread that watches queue pairs panicked");
        }
    }
}
