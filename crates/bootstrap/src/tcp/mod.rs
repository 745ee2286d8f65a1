//! Ranks that are processes: rank 0 serves a store over TCP, every rank (0 too) is its client.
//!
//! One thread per rank does that rank's socket work, and one more in rank 0's process serves all
//! connections. No thread blocks in a socket call: all sockets are polled, and what is to be sent waits in
//! queues.
//!
//! Every connection begins with a handshake that proves that both sides know the secret, and is encrypted from there
//! on (`handshake.rs`, `noise.rs`).

mod connection;
pub(crate) mod handshake;
mod inbox;
mod interface;
mod link;
mod noise;
mod root;
mod server;
mod stop;
#[cfg(test)]
mod tests;
mod waker;

pub use root::TcpRoot;
pub use stop::JoinStop;

use crate::client::{Client, rendezvous_by_client};
use crate::mailbox::Mailbox;
use crate::{Deadline, Error, Secret, Session, UniqueId};
use anabranch_ranks::{GlobalRank, Group};
use link::TcpLink;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use stop::Wait;

/// The call that joining ends with.
const JOIN: &str = "join";

/// How connections are kept under watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Each side sends something at least this often.
    pub interval: Duration,
    /// A side that was silent for this long counts as dead. Several intervals, and longer than any pause that
    /// a loaded machine makes.
    pub limit: Duration,
}

impl Heartbeat {
    /// The shortest interval.
    pub const LEAST_INTERVAL: Duration = Duration::from_millis(1);
}

impl Default for Heartbeat {
    /// Every second; dead after ten of silence.
    fn default() -> Self {
        Self { interval: Duration::from_secs(1), limit: Duration::from_secs(10) }
    }
}

/// What a rank needs to join. [`TcpConfig::new`] fills in what need not be chosen.
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// Where the root is, as `host:port`; IPv6 addresses in brackets. Several are separated by commas, and tried in turn.
    pub address: String,
    /// This rank. Rank 0 is the root.
    pub rank: GlobalRank,
    /// The number of ranks.
    pub size: u32,
    /// The secret that all ranks of the job share. [`Secret::none`] is refused where other machines reach the root.
    pub secret: Secret,
    /// Whether to go on without a secret although other machines reach the root: every process that reaches the port can then join as
    /// any rank, and gets what peers need to write to GPU memory. Connections are encrypted all the same.
    pub insecure: bool,
    /// Which run of the job this is; the same on all ranks.
    pub session: Session,
    /// When all ranks must have joined. Resolving a host name is up to the system and may take longer.
    pub deadline: Deadline,
    /// Where the root listens, as `host:port`, when that is not what the others connect to. Without it and without
    /// `interface` the root listens on those of the addresses of `address` that are this machine's; when its name
    /// resolves only to a loopback address on itself, as on many machines, on all interfaces, at that port.
    pub bind: Option<String>,
    /// The network interface that the root listens on, at the port of `address`. It has no part in it with `bind`, or when
    /// `address` is a loopback address.
    pub interface: Option<String>,
    /// How long a connection has to show that it knows the secret, at the root.
    pub handshake_limit: Duration,
    /// The root's value counts for all.
    pub heartbeat: Heartbeat,
    /// The most bytes of one message, framing included. The root's value counts for all.
    pub max_message_bytes: u64,
    /// How long [`leave`](crate::Rendezvous::leave) of the root waits for the others to leave, and that of
    /// another rank for the root's confirmation.
    pub linger: Duration,
    /// Ends the join from another thread.
    pub stop: JoinStop,
}

impl TcpConfig {
    /// No secret, the session of [`Session::default`], 5 s for a handshake, heartbeats as in [`Heartbeat::default`], messages up
    /// to 256 MiB, 10 s of linger.
    pub fn new(address: impl Into<String>, rank: GlobalRank, size: u32, deadline: Deadline) -> Self {
        Self {
            address: address.into(),
            rank,
            size,
            secret: Secret::none(),
            insecure: false,
            session: Session::default(),
            deadline,
            bind: None,
            interface: None,
            handshake_limit: Duration::from_secs(5),
            heartbeat: Heartbeat::default(),
            max_message_bytes: 256 << 20,
            linger: Duration::from_secs(10),
            stop: JoinStop::default(),
        }
    }

    /// What a root that called [`TcpRoot::unique_id`] handed to all ranks: its addresses, the secret and the session.
    pub fn with_unique_id(id: &UniqueId, rank: GlobalRank, size: u32, deadline: Deadline) -> Self {
        let addresses: Vec<String> = id.addresses().iter().map(SocketAddr::to_string).collect();
        Self {
            secret: id.secret(),
            session: id.session(),
            ..Self::new(addresses.join(","), rank, size, deadline)
        }
    }

    fn candidates(&self) -> impl Iterator<Item = &str> {
        self.address.split(',').map(str::trim)
    }

    /// Whether the root may be at this address, as far as the secret goes.
    fn may_meet_at(&self, address: SocketAddr) -> bool {
        self.insecure || !self.secret.is_none() || address.ip().to_canonical().is_loopback()
    }

    fn check(&self) -> Result<Group, Error> {
        let refuse = |name, given: &dyn std::fmt::Display, expected| Error::Config {
            name,
            given: given.to_string(),
            expected,
        };
        let world = Group::world(self.size)
            .map_err(|_| refuse("size", &self.size, "a world has at least one rank"))?;
        if self.rank.get() >= self.size {
            return Err(refuse("rank", &self.rank.get(), "ranks are below the size"));
        }
        let Heartbeat { interval, limit } = self.heartbeat;
        if interval < Heartbeat::LEAST_INTERVAL || interval >= limit {
            return Err(refuse(
                "heartbeat.interval",
                &format_args!("{interval:?}"),
                "at least 1 ms, and below heartbeat.limit",
            ));
        }
        if self.handshake_limit.is_zero() {
            return Err(refuse("handshake_limit", &"0 s", "longer than nothing"));
        }
        if self.session.run.len() > Session::MAX_RUN_BYTES {
            return Err(refuse("session.run", &self.session.run, "at most 512 bytes"));
        }
        if self.max_message_bytes < handshake::MAX_BYTES {
            return Err(refuse("max_message_bytes", &self.max_message_bytes, "at least 4096"));
        }
        Ok(world)
    }
}

/// One rank of a world whose ranks are processes.
///
/// Dropping it without [`leave`](crate::Rendezvous::leave) counts as having died; so does the end of its
/// process, which the others notice as soon as the system closes its connection, or after
/// [`Heartbeat::limit`] when its machine goes silent. When the root dies, every rank learns that rank 0 did,
/// and all its calls fail. When the root leaves, it serves the others until they have left too, for at most
/// [`TcpConfig::linger`].
///
/// [`LossObserver`](crate::LossObserver)s run on the thread that does this rank's socket work.
#[derive(Debug)]
pub struct TcpRendezvous {
    client: Client,
}

rendezvous_by_client!(TcpRendezvous);

impl TcpRendezvous {
    /// Joins the world; returns when all ranks have. Ranks may start before the root.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Unprotected`], [`Error::Interface`] (root), [`Error::System`], [`Error::Connect`],
    /// [`Error::Refused`], [`Error::CannotForm`], [`Error::RootUnproven`], [`Error::Frame`]; [`Error::Expired`] with the
    /// ranks that did not come, and [`Error::PeerLost`] when one joined and was lost.
    pub fn join(config: TcpConfig) -> Result<Self, Error> {
        config.check()?;
        let root = if config.rank.get() == 0 { Some(root::listen(&config)?) } else { None };
        Self::start(config, root)
    }

    /// Joins as rank 0 with a root that listens already; `address` and `bind` are not looked at.
    ///
    /// # Errors
    /// [`Error::Config`] when the rank is not 0, and those of [`TcpRendezvous::join`].
    pub fn join_with_root(config: TcpConfig, root: TcpRoot) -> Result<Self, Error> {
        config.check()?;
        if config.rank.get() != 0 {
            return Err(Error::Config {
                name: "rank",
                given: config.rank.get().to_string(),
                expected: "the root is rank 0",
            });
        }
        Self::start(config, Some(root))
    }

    fn start(mut config: TcpConfig, root: Option<TcpRoot>) -> Result<Self, Error> {
        let world = config.check()?;
        if config.insecure && config.secret.is_none() {
            tracing::warn!(
                rank = config.rank.get(),
                address = %config.address,
                "INSECURE: the rendezvous has no secret; any process that reaches its port can join as any rank and write to GPU memory"
            );
        }
        let serving = match root {
            Some(root) => {
                config.address = root::own_address(root.address()).to_string();
                Some(root::serve(root, &config)?)
            }
            None => None,
        };
        let (connection, heartbeat) = handshake::connect_to_root(&config)?;
        let limit = connection.limit();
        let mailbox = Arc::new(Mailbox::default());
        config.stop.waits_for(Wait::Answers(Arc::clone(&mailbox)));
        let link =
            TcpLink::start(config.rank, connection, heartbeat, config.linger, Arc::clone(&mailbox), serving)?;
        // A root that answers at all answers well within the time after which it would count as dead.
        let grace = heartbeat.limit.min(Duration::from_millis(500));
        let client = Client::new(config.rank, config.size, limit, grace, mailbox, Box::new(link));
        match client.all_gather(&world, JOIN, &[], config.deadline) {
            Ok(_) => Ok(Self { client }),
            Err(error) => {
                if matches!(error, Error::CannotForm { .. } | Error::Left { .. }) {
                    // The root stays until late ranks have got it too; failing to inform all is expected then. A join that was
                    // stopped says goodbye.
                    drop(client.leave());
                }
                Err(error)
            }
        }
    }
}
