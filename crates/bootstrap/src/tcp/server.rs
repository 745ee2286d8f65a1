//! The root's server: one thread, all connections, no blocking. Who may join is decided in `admission.rs`.
#![expect(
    clippy::disallowed_methods,
    reason = "threads that do socket work live on the machine's time: no simulation drives them"
)]

mod admission;

use super::TcpConfig;
use super::connection::{Connection, Stream, poll};
use super::handshake::{self, Verdict};
use super::waker::Waker;
use crate::frame::{FrameError, Kind};
use crate::hub::{Delivery, Hub};
use crate::message::{Reply, Request};
use crate::secret::Bytes32;
use crate::{Deadline, Error, Loss, LossKind, Refusal};
use admission::STRANGERS;
use anabranch_ranks::{GlobalRank, Group};
use rustix::event::{PollFd, PollFlags};
use std::collections::{BTreeMap, HashMap};
use std::io::ErrorKind;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A connection that is being closed has this long to take what it is owed.
const DRAINING: Duration = Duration::from_secs(1);
/// The pause after the system had no descriptor left for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often times are looked at while connections come or go.
const TICK: Duration = Duration::from_millis(20);

/// What the server is to do.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Command {
    /// Serve.
    #[default]
    Serve,
    /// Serve until no rank is left, but no longer than this. A duration, not a deadline: the server has its own clock.
    Finish(Duration),
    /// After rank 0 closed without leaving, its store answers the remaining ranks until all are gone, at most for this long.
    Linger(Duration),
    /// End at once.
    Stop,
}

/// Where the command is left, before waking the server.
pub(super) type Control = Mutex<Command>;

#[derive(Debug)]
enum Stage {
    /// Has not proven itself.
    Challenged { challenge: Bytes32, since: Instant },
    /// Is this rank.
    Joined(GlobalRank),
    /// Sends its last frames: a refusal, or what an authenticated rank still has to get.
    Draining { since: Instant, finished: bool, stranger: bool },
}

#[derive(Debug)]
struct Peer {
    connection: Connection,
    address: String,
    stage: Stage,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Server {
    listeners: Vec<TcpListener>,
    waker: Waker,
    control: Arc<Control>,
    config: TcpConfig,
    world: Group,
    hub: Hub,
    peers: BTreeMap<u64, Peer>,
    next_peer: u64,
    joined: HashMap<GlobalRank, u64>,
    accept_after: Option<Instant>,
    finishing: Option<Deadline>,
    lingering: Option<Deadline>,
    /// Ranks that the finishing deadline found still joined.
    remaining: Vec<GlobalRank>,
    /// Whether all ranks were there at some time.
    formed: bool,
    /// Why the world cannot form, and how many processes know it.
    verdict: Option<Verdict>,
    told: u32,
    /// Connections that had to go for others, for the log.
    pushed_out: u64,
}

impl Server {
    pub(super) fn new(
        listeners: Vec<TcpListener>,
        waker: Waker,
        control: Arc<Control>,
        config: &TcpConfig,
    ) -> Result<Self, Error> {
        Ok(Self {
            listeners,
            waker,
            control,
            config: config.clone(),
            world: config.check()?,
            hub: Hub::new(config.size, config.max_message_bytes),
            peers: BTreeMap::new(),
            next_peer: 0,
            joined: HashMap::new(),
            accept_after: None,
            finishing: None,
            lingering: None,
            remaining: Vec::new(),
            formed: false,
            verdict: None,
            told: 0,
            pushed_out: 0,
        })
    }

    /// Serves until commanded otherwise; gives the ranks that had not left by the finishing deadline.
    pub(super) fn run(mut self) -> Vec<GlobalRank> {
        loop {
            let command = *self.control.lock().unwrap_or_else(PoisonError::into_inner);
            match command {
                Command::Serve => {}
                Command::Finish(limit) => {
                    self.finishing.get_or_insert_with(|| Deadline::after(limit));
                }
                Command::Linger(limit) => {
                    let deadline = self.lingering.get_or_insert_with(|| Deadline::after(limit));
                    if deadline.expired() || !self.formed || self.joined.is_empty() {
                        return self.remaining;
                    }
                }
                Command::Stop => return self.remaining,
            }
            if let Some(deadline) = self.finishing {
                if deadline.expired() {
                    self.say_goodbye();
                }
                // Newcomers, and connections that have taken all that they are owed, are no reason to go on.
                let waiting = |peer: &Peer| {
                    matches!(peer.stage, Stage::Joined(_) | Stage::Draining { finished: false, .. })
                };
                let untold = self.verdict.is_some() && self.told < self.config.size;
                if !self.peers.values().any(waiting) && (!untold || deadline.expired()) {
                    return self.remaining;
                }
            }
            let ready = match self.poll() {
                Ok(ready) => ready,
                Err(error) => {
                    tracing::warn!(%error, "the rendezvous root cannot poll its sockets and ends");
                    return self.joined.into_keys().collect();
                }
            };
            self.waker.clear();
            for id in ready {
                self.receive(id);
            }
            self.accept();
            self.watch();
            self.flush();
        }
    }

    /// Waits for something to do; gives the connections with something to read.
    fn poll(&self) -> std::io::Result<Vec<u64>> {
        let accepting = self.accept_after.is_none_or(|after| Instant::now() >= after);
        let listen = if accepting { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = vec![self.waker.poll_fd()];
        fds.extend(self.listeners.iter().map(|listener| PollFd::new(listener, listen)));
        fds.extend(self.peers.values().map(|peer| peer.connection.poll_fd()));
        let heartbeat = self.config.heartbeat;
        let mut wait = (heartbeat.interval / 2).min(heartbeat.limit / 4);
        let changing = self.peers.values().any(|peer| !matches!(peer.stage, Stage::Joined(_)));
        if changing || !accepting || self.finishing.is_some() || self.lingering.is_some() {
            wait = wait.min(TICK);
        }
        poll(&mut fds, wait)?;
        let readable = |fd: &PollFd<'_>| !(fd.revents() - PollFlags::OUT).is_empty();
        Ok(self
            .peers
            .keys()
            .zip(fds.iter().skip(1 + self.listeners.len()))
            .filter(|(_, fd)| readable(fd))
            .map(|(id, _)| *id)
            .collect())
    }

    fn accept(&mut self) {
        let mut accepted = Vec::new();
        for listener in &self.listeners {
            loop {
                // The rest waits in the backlog for the next round, so that a flood does not keep members waiting.
                if accepted.len() == STRANGERS {
                    break;
                }
                match listener.accept() {
                    Ok(new) => accepted.push(new),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error)
                        if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                    Err(error) => {
                        // Out of descriptors, most likely: the connection stays in the backlog.
                        tracing::warn!(%error, "the rendezvous root cannot accept a connection");
                        self.accept_after = Some(Instant::now() + ACCEPT_PAUSE);
                        break;
                    }
                }
            }
        }
        if !accepted.is_empty() {
            self.accept_after = None;
        }
        for (stream, address) in accepted {
            if let Err(error) = self.challenge(stream, address) {
                tracing::warn!(%address, %error, "a connection to the rendezvous root was dropped");
            }
        }
    }

    /// Reads from a connection and does what it asks.
    fn receive(&mut self, id: u64) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let filled = peer.connection.fill();
        loop {
            let Some(peer) = self.peers.get_mut(&id) else { return };
            if matches!(peer.stage, Stage::Draining { .. }) {
                peer.connection.discard();
                break;
            }
            match peer.connection.next_frame() {
                Ok(Some(frame)) => {
                    let (kind, sender, request) =
                        (frame.header.kind, frame.header.sender, frame.header.sequence);
                    if let Err(error) = self.accept_frame(id, kind, sender, request, &frame.payload) {
                        self.bad_frame(id, &error);
                    }
                }
                Ok(None) => break,
                Err(error) => self.bad_frame(id, &error),
            }
        }
        match filled {
            Ok(Stream::Open) => {}
            Ok(Stream::Ended) => self.ended(id, "its connection closed without a goodbye".to_owned()),
            Err(error) => self.ended(id, format!("its connection failed: {error}")),
        }
    }

    fn accept_frame(
        &mut self,
        id: u64,
        kind: Kind,
        sender: u32,
        request: u64,
        payload: &[u8],
    ) -> Result<(), FrameError> {
        let Some(peer) = self.peers.get(&id) else { return Ok(()) };
        match (&peer.stage, kind) {
            (Stage::Challenged { challenge, .. }, Kind::Hello) => {
                let challenge = *challenge;
                self.hello(id, payload, &challenge)
            }
            (Stage::Joined(_), Kind::Heartbeat) => Ok(()),
            (Stage::Joined(rank), kind) if sender == rank.get() => {
                let rank = *rank;
                let request_value = Request::decode(kind, payload, rank, &self.world)?;
                let leaving = request_value == Request::Goodbye;
                let deliveries = self.hub.handle(rank, request, request_value);
                self.deliver(deliveries);
                if leaving {
                    tracing::debug!(rank = rank.get(), "left the rendezvous");
                    self.drain(id, false);
                }
                Ok(())
            }
            (_, kind) => Err(FrameError::Unexpected { kind: kind.words() }),
        }
    }

    fn refuse(&mut self, id: u64, refusal: Refusal) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.connection.queue(Kind::Refuse, 0, &handshake::encode_refusal(refusal));
        }
        self.drain(id, true);
    }

    fn bad_frame(&mut self, id: u64, error: &FrameError) {
        let Some(peer) = self.peers.get(&id) else { return };
        tracing::warn!(address = %peer.address, %error, "a bad frame at the rendezvous");
        match peer.stage {
            // The refusal also shows the other side which version this one speaks.
            Stage::Challenged { .. } => self.refuse(id, Refusal::Protocol),
            Stage::Joined(rank) => self.give_up(id, rank, format!("it sent a bad frame: {error}")),
            Stage::Draining { .. } => {}
        }
    }

    /// A connection is gone.
    fn ended(&mut self, id: u64, detail: String) {
        if let Some(Peer { stage: Stage::Joined(rank), .. }) = self.peers.remove(&id) {
            self.joined.remove(&rank);
            self.lose(&Loss { rank, kind: LossKind::Died, detail });
        }
    }

    /// Declares a rank dead whose connection is still open, and informs it.
    fn give_up(&mut self, id: u64, rank: GlobalRank, detail: String) {
        let loss = Loss { rank, kind: LossKind::Died, detail };
        if let Some(peer) = self.peers.get_mut(&id) {
            let (kind, payload) = Reply::Lost(loss.clone()).encode();
            peer.connection.queue(kind, 0, &payload);
        }
        self.drain(id, false);
        self.lose(&loss);
    }

    fn lose(&mut self, loss: &Loss) {
        tracing::debug!(%loss, "lost from the rendezvous");
        let deliveries = self.hub.lose(loss);
        self.deliver(deliveries);
    }

    /// Closes a connection once it has taken what it is owed, and a stranger's when it makes room for others too.
    fn drain(&mut self, id: u64, stranger: bool) {
        if let Some(peer) = self.peers.get_mut(&id) {
            if let Stage::Joined(rank) = peer.stage {
                self.joined.remove(&rank);
            }
            peer.stage = Stage::Draining { since: Instant::now(), finished: false, stranger };
        }
    }

    fn deliver(&mut self, deliveries: Vec<Delivery>) {
        for Delivery { to, request, reply } in deliveries {
            if let Some(peer) = self.joined.get(&to).and_then(|id| self.peers.get_mut(id)) {
                let (kind, payload) = reply.encode();
                peer.connection.queue(kind, request, &payload);
            }
        }
    }

    /// Heartbeats, and the ends of patience. Comes after reading, so that a root that was stopped for a while
    /// sees what came meanwhile.
    fn watch(&mut self) {
        let heartbeat = self.config.heartbeat;
        let mut silent = Vec::new();
        let mut gone = Vec::new();
        for (id, peer) in &mut self.peers {
            match &peer.stage {
                Stage::Joined(rank) => {
                    let silence = peer.connection.silent_for();
                    if silence > heartbeat.limit {
                        silent.push((*id, *rank, format!("it was silent for {silence:?}")));
                    } else if peer.connection.idle_for() >= heartbeat.interval / 2 {
                        peer.connection.queue(Kind::Heartbeat, 0, &[]);
                    }
                }
                Stage::Challenged { since, .. } if since.elapsed() > self.config.handshake_limit => {
                    tracing::warn!(address = %peer.address, "a connection to the rendezvous did not say who it is");
                    gone.push(*id);
                }
                Stage::Draining { since, .. } if since.elapsed() > DRAINING => gone.push(*id),
                Stage::Challenged { .. } | Stage::Draining { .. } => {}
            }
        }
        for (id, rank, detail) in silent {
            self.give_up(id, rank, detail);
        }
        for id in gone {
            self.peers.remove(&id);
        }
    }

    fn flush(&mut self) {
        let mut failed = Vec::new();
        for (id, peer) in &mut self.peers {
            if let Err(error) = peer.connection.flush() {
                failed.push((*id, error));
            } else if let Stage::Draining { finished, .. } = &mut peer.stage
                && !*finished
                && !peer.connection.has_output()
            {
                // The peer closes in answer; closing first, with its last bytes unread, could lose ours.
                peer.connection.finish_sending();
                *finished = true;
            }
        }
        for (id, error) in failed {
            self.ended(id, format!("sending to it failed: {error}"));
        }
    }

    /// The root has left and will not wait any longer.
    fn say_goodbye(&mut self) {
        let mut ranks: Vec<GlobalRank> = self.joined.keys().copied().collect();
        ranks.sort_unstable();
        for id in ranks.iter().filter_map(|rank| self.joined.get(rank).copied()).collect::<Vec<_>>() {
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.connection.queue(Kind::Goodbye, 0, &[]);
            }
            self.drain(id, false);
        }
        self.remaining.extend(ranks);
    }
}
