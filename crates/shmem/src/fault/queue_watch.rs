//! The queue pairs of a rank, watched from the host.
//!
//! A failed request is reported where requests are completed: to the rank that made it. Its kernels look there when they put more, or
//! wait for what they put; a kernel that waits for a *peer's* word does not, and the peer, to which nothing comes, has nothing to look at.
//! So a thread of the host looks at all queue pairs while the world is joined. When one has stopped it ends the waits of this rank's
//! kernels, as the loss of a peer does, and publishes whose request failed and how: ranks that miss this one find it there
//! (`root_cause.rs`).
//!
//! Under a driver, which runs the threads of a simulation one at a time, there is no such thread: a rank whose wait expires looks then.

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use anabranch_clock::{Moment, Signal};
use anabranch_transport::Origin;

use super::report::FaultReports;
use super::state::FaultState;
use crate::error::{Error, Result};
use crate::route::Connections;

/// Between two looks at all queue pairs, each of which reads a few bytes of host memory for each of them.
const LOOK: Duration = Duration::from_millis(20);

/// Dropping it ends the thread, which holds nothing of the world from then on.
#[derive(Debug)]
pub(crate) struct QueueWatch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    ended: Mutex<bool>,
    changed: Signal,
    state: Arc<FaultState>,
    connections: Arc<RwLock<Connections>>,
}

impl QueueWatch {
    /// Begins to watch, where some peer is reached by queues alone; `None` where there is nothing to watch, or in a simulation.
    pub(crate) fn start(
        reports: FaultReports,
        connections: &Arc<RwLock<Connections>>,
        grace: Duration,
    ) -> Result<Option<Self>> {
        let is_used = {
            let connections = connections.read().unwrap_or_else(PoisonError::into_inner);
            connections.memory.iter().any(|memory| memory.origin() == Origin::Remote)
        };
        if !is_used || reports.is_simulated {
            return Ok(None);
        }
        let shared = Arc::new(Shared {
            ended: Mutex::new(false),
            changed: Signal::new(),
            state: Arc::clone(&reports.state),
            connections: Arc::clone(connections),
        });
        let watched = Arc::clone(&shared);
        let named = std::thread::Builder::new().name(format!("queue pairs of rank {}", reports.rank.get()));
        let started = named.spawn(move || watched.run(grace, &reports));
        let thread = started.map_err(Error::thread("the watch of queue pairs"))?;
        Ok(Some(Self { shared, thread: Some(thread) }))
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

    fn run(&self, grace: Duration, reports: &FaultReports) {
        while self.rest(LOOK) {
            let stopped = {
                let connections = self.connections.read().unwrap_or_else(PoisonError::into_inner);
                // An operation that tolerates the loss of a rank tolerates that of its queue pairs.
                connections.stopped_nic(|rank| self.state.tolerated(|tolerated| tolerated.names(rank)))
            };
            let Some(stopped) = stopped else { continue };
            tracing::debug!(peer = stopped.peer.get(), words = stopped.words, "a queue pair has stopped");
            self.state.stopped(stopped.clone());
            // A peer that died is a loss, whose notice may still be in flight; the NIC does not know the cause.
            let goes_on = || self.state.losses().is_empty() && self.rest(Duration::from_millis(2));
            let end = Moment::now().after(grace);
            while !end.remaining().is_zero() && goes_on() {}
            let theirs = reports.of_peer(&stopped, grace, goes_on);
            if self.state.losses().is_empty() {
                reports.publish_stopped(&stopped, theirs);
            }
            return;
        }
    }
}

impl Drop for QueueWatch {
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
