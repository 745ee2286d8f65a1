//! A rank's connection to the root, and the thread that does its socket work.

use super::Heartbeat;
use super::connection::{Connection, Stream, poll};
use super::handshake::{self, Verdict};
use super::root::Serving;
use super::waker::Waker;
use crate::client::{Link, TooLarge};
use crate::frame::Kind;
use crate::mailbox::{Closed, Mailbox};
use crate::message::{Reply, Request};
use crate::{Deadline, Error, Loss, LossKind};
use anabranch_clock::Signal;
use anabranch_ranks::GlobalRank;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

use crate::sync::Mutex;
use std::thread::JoinHandle;
use std::time::Duration;

/// How long rank 0's store answers the others when rank 0 goes without a goodbye.
const LINGER: Duration = Duration::from_secs(1);

/// What callers and the thread share.
#[derive(Debug)]
struct Shared {
    outbox: Mutex<Vec<(Kind, u64, Vec<u8>)>>,
    stop: AtomicBool,
    ended: Mutex<bool>,
    ended_changed: Signal,
    waker: Waker,
}

/// See the module. Dropping it closes the connection, without a goodbye if there was none.
#[derive(Debug)]
pub(super) struct TcpLink {
    rank: GlobalRank,
    limit: u64,
    linger: Duration,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The server, in rank 0's process.
    serving: Mutex<Option<Serving>>,
}

impl TcpLink {
    /// Starts the thread for a connection on which the root has welcomed this rank.
    pub(super) fn start(
        rank: GlobalRank,
        connection: Connection,
        heartbeat: Heartbeat,
        linger: Duration,
        mailbox: Arc<Mailbox>,
        serving: Option<Serving>,
    ) -> Result<Self, Error> {
        let waker = Waker::new().map_err(Error::system("eventfd"))?;
        let shared = Arc::new(Shared {
            outbox: Mutex::new(Vec::new()),
            stop: AtomicBool::new(false),
            ended: Mutex::new(false),
            ended_changed: Signal::new(),
            waker,
        });
        let limit = connection.limit();
        let worker = Worker { rank, connection, heartbeat, mailbox, shared: Arc::clone(&shared) };
        let thread = std::thread::Builder::new()
            .name(format!("rendezvous {}", rank.get()))
            .spawn(move || worker.run())
            .map_err(Error::system("starting a thread"))?;
        let (thread, serving) = (Mutex::new(Some(thread)), Mutex::new(serving));
        Ok(Self { rank, limit, linger, shared, thread, serving })
    }

    /// Ends the thread, at once, and waits for it unless this is it.
    fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.waker.wake();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::warn!(rank = self.rank.get(), "a loss observer panicked");
        }
    }

    fn on_own_thread(&self) -> bool {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.as_ref().is_some_and(|thread| thread.thread().id() == std::thread::current().id())
    }

    /// Waits until the root has closed the connection.
    fn wait_ended(&self, deadline: Deadline) -> bool {
        let mut ended = self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner);
        while !*ended && !deadline.expired() {
            ended = self.shared.ended_changed.wait(&self.shared.ended, ended, Some(deadline.end()));
        }
        *ended
    }
}

impl Link for TcpLink {
    fn send(&self, request: u64, what: Request) -> Result<(), TooLarge> {
        let (kind, payload) = what.encode();
        let bytes = payload.len() as u64;
        if bytes > self.limit {
            return Err(TooLarge { bytes, limit: self.limit });
        }
        self.shared.outbox.lock().unwrap_or_else(PoisonError::into_inner).push((kind, request, payload));
        self.shared.waker.wake();
        Ok(())
    }

    fn leave(&self) -> Result<(), Error> {
        let deadline = Deadline::after(self.linger);
        // A goodbye has no payload and so is never too large.
        drop(self.send(0, Request::Goodbye));
        // An observer that leaves runs on the very thread that would have to end.
        let confirmed = self.on_own_thread() || self.wait_ended(deadline);
        self.stop();
        let serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(serving) = serving {
            return serving.finish(deadline);
        }
        if confirmed {
            Ok(())
        } else {
            Err(Error::LeaveUnconfirmed { rank: self.rank, waited: deadline.waited() })
        }
    }
}

impl Drop for TcpLink {
    fn drop(&mut self) {
        // What was sent before goes out first: of a rank that failed, why. The store is in rank 0's process, and others that hear of rank 0's
        // end ask there.
        self.stop();
        let serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(serving) = serving {
            serving.linger(LINGER);
        }
    }
}

/// The thread's state.
struct Worker {
    rank: GlobalRank,
    connection: Connection,
    heartbeat: Heartbeat,
    mailbox: Arc<Mailbox>,
    shared: Arc<Shared>,
}

impl Worker {
    fn run(mut self) {
        let why = self.serve();
        if let Some(closed) = why {
            if let Closed::Root(loss) | Closed::GivenUp(loss) = &closed {
                tracing::debug!(rank = self.rank.get(), %loss, "the connection to the root has ended");
            }
            self.mailbox.close(closed);
            self.mailbox.tell_observers();
        }
        let shared = Arc::clone(&self.shared);
        // The socket is closed before the end is reported.
        drop(self);
        *shared.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        shared.ended_changed.notify_all();
    }

    /// Works until it is stopped (which gives `None`) or until the connection has ended.
    fn serve(&mut self) -> Option<Closed> {
        loop {
            let stop = self.shared.stop.load(Ordering::Acquire);
            let queued =
                std::mem::take(&mut *self.shared.outbox.lock().unwrap_or_else(PoisonError::into_inner));
            for (kind, request, payload) in queued {
                self.connection.queue(kind, request, &payload);
            }
            if !stop && self.connection.idle_for() >= self.heartbeat.interval {
                self.connection.queue(Kind::Heartbeat, 0, &[]);
            }
            if let Err(error) = self.connection.flush() {
                // What the root said before it went is still to be read.
                let said = self.receive();
                return said.or_else(|| Some(root_died(format!("sending to it failed: {error}"))));
            }
            if stop {
                return None;
            }
            let mut fds = [self.connection.poll_fd(), self.shared.waker.poll_fd()];
            let wait = self.heartbeat.interval.saturating_sub(self.connection.idle_for());
            if let Err(error) = poll(&mut fds, wait.min(self.heartbeat.limit / 2)) {
                return Some(root_died(format!("polling failed: {error}")));
            }
            self.shared.waker.clear();
            if let Some(closed) = self.receive() {
                return Some(closed);
            }
            // After reading, so that a process that was stopped for a while sees what came meanwhile.
            if self.connection.silent_for() > self.heartbeat.limit {
                return Some(root_died(format!("it was silent for {:?}", self.connection.silent_for())));
            }
        }
    }

    fn receive(&mut self) -> Option<Closed> {
        let filled = self.connection.fill();
        loop {
            match self.connection.next_frame() {
                Ok(Some(frame)) => {
                    if let Some(closed) =
                        self.accept(frame.header.kind, frame.header.sequence, &frame.payload)
                    {
                        return Some(closed);
                    }
                }
                Ok(None) => break,
                Err(error) => return Some(root_died(format!("it sent a bad frame: {error}"))),
            }
        }
        match filled {
            Ok(Stream::Open) => None,
            Ok(Stream::Ended) => Some(root_died("its connection closed without a goodbye".to_owned())),
            Err(error) => Some(root_died(format!("its connection failed: {error}"))),
        }
    }

    fn accept(&mut self, kind: Kind, sequence: u64, payload: &[u8]) -> Option<Closed> {
        match kind {
            Kind::Heartbeat => None,
            Kind::Goodbye => Some(Closed::Root(Loss {
                rank: GlobalRank::new(0),
                kind: LossKind::Left,
                detail: "the root stopped serving".to_owned(),
            })),
            Kind::Verdict => Some(match handshake::decode_verdict(payload) {
                Ok(Verdict { rank: by, refusal }) => Closed::CannotForm { by, refusal },
                Err(error) => root_died(format!("it sent a bad frame: {error}")),
            }),
            kind => match Reply::decode(kind, payload) {
                Ok(Reply::Lost(loss)) if loss.rank == self.rank => Some(Closed::GivenUp(loss)),
                Ok(reply) => {
                    let notice = matches!(reply, Reply::Lost(_));
                    self.mailbox.deliver(sequence, reply);
                    if notice {
                        self.mailbox.tell_observers();
                    }
                    None
                }
                Err(error) => Some(root_died(format!("it sent a bad frame: {error}"))),
            },
        }
    }
}

fn root_died(detail: String) -> Closed {
    Closed::Root(Loss { rank: GlobalRank::new(0), kind: LossKind::Died, detail })
}
