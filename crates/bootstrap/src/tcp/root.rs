//! The root's socket, and the thread that serves it.

use super::server::{Command, Control, Server};
use super::waker::Waker;
use super::{TcpConfig, interface};
use crate::{Deadline, Error, UniqueId};
use anabranch_ranks::GlobalRank;
use std::fmt::Display;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Sockets that listen for the ranks of a world, before rank 0 serves it.
///
/// They are bound once and kept, so that a port chosen by the system (port 0) stays this world's.
#[derive(Debug)]
pub struct TcpRoot {
    listeners: Vec<TcpListener>,
    addresses: Vec<SocketAddr>,
}

impl TcpRoot {
    /// Listens on this address, as `host:port`; port 0 lets the system choose.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn bind(address: &str) -> Result<Self, Error> {
        TcpListener::bind(address)
            .and_then(|listener| Self::take(vec![listener]))
            .map_err(listening_on(address))
    }

    /// Listens on all addresses of this network interface, at a port that the system chooses for each.
    ///
    /// # Errors
    /// [`Error::Interface`], [`Error::System`].
    pub fn bind_interface(name: &str) -> Result<Self, Error> {
        let addresses = interface::addresses(Some(name))?;
        Self::bind_all(&addresses.into_iter().map(|ip| SocketAddr::new(ip, 0)).collect::<Vec<_>>())
    }

    /// The first of [`TcpRoot::addresses`].
    pub fn address(&self) -> SocketAddr {
        // `take` refuses a root without listeners.
        self.addresses[0]
    }

    /// The addresses that it really listens on.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// An id with a new secret, for all ranks, this one included, to join with
    /// ([`TcpConfig::with_unique_id`](crate::TcpConfig::with_unique_id)). A socket that listens on all interfaces is listed
    /// with the address of each.
    ///
    /// # Errors
    /// [`Error::System`] when the system has no random bytes or does not list its interfaces.
    pub fn unique_id(&self) -> Result<UniqueId, Error> {
        let mut candidates = Vec::new();
        for address in &self.addresses {
            if !address.ip().is_unspecified() {
                candidates.push(*address);
                continue;
            }
            let reachable = interface::addresses(None)?;
            // A socket of IPv6 takes connections of both kinds.
            let reachable = reachable.into_iter().filter(|ip| ip.is_ipv4() || address.is_ipv6());
            candidates.extend(reachable.map(|ip| SocketAddr::new(ip, address.port())));
        }
        if candidates.is_empty() {
            candidates.push(own_address(self.address()));
        }
        UniqueId::for_root(&candidates)
    }

    pub(super) fn bind_all(addresses: &[SocketAddr]) -> Result<Self, Error> {
        let listen = |address: &SocketAddr| TcpListener::bind(address).map_err(listening_on(address));
        let listeners = addresses.iter().map(listen).collect::<Result<_, _>>()?;
        Self::take(listeners).map_err(Error::system("listening"))
    }

    fn take(listeners: Vec<TcpListener>) -> std::io::Result<Self> {
        let addresses = listeners
            .iter()
            .map(|listener| {
                listener.set_nonblocking(true)?;
                listener.local_addr()
            })
            .collect::<std::io::Result<Vec<_>>>()?;
        if addresses.is_empty() {
            return Err(ErrorKind::AddrNotAvailable.into());
        }
        Ok(Self { listeners, addresses })
    }
}

fn listening_on(address: impl Display) -> impl FnOnce(std::io::Error) -> Error {
    Error::system(format!("listening on {address} (where the root listens can be set with `bind`)"))
}

/// Listens where the configuration says; see [`TcpConfig::bind`].
pub(super) fn listen(config: &TcpConfig) -> Result<TcpRoot, Error> {
    if let Some(bind) = &config.bind {
        return TcpRoot::bind(bind);
    }
    let mut addresses = Vec::new();
    let mut by_name = None;
    for candidate in config.candidates() {
        let split =
            candidate.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
        let (host, port) = split.ok_or_else(|| Error::Config {
            name: "address",
            given: candidate.to_owned(),
            expected: "host:port, or several separated by commas",
        })?;
        let meant: Vec<SocketAddr> = candidate
            .to_socket_addrs()
            .map_err(Error::system(format!("{}: resolving the root's address {candidate}", config.rank)))?
            .collect();
        // Where only this machine reaches it, an interface to the others has no part in it.
        if let Some(name) = &config.interface
            && !meant.iter().all(|address| address.ip().is_loopback())
        {
            addresses
                .extend(interface::addresses(Some(name))?.into_iter().map(|ip| SocketAddr::new(ip, port)));
            break;
        }
        if candidate.parse::<SocketAddr>().is_err() && host != "localhost" {
            by_name = Some(port);
            addresses.extend(meant.into_iter().filter(|address| !address.ip().is_loopback()));
        } else {
            addresses.extend(meant);
        }
    }
    addresses.sort_unstable();
    addresses.dedup();
    let mut listeners = Vec::new();
    let mut failed = None;
    for address in &addresses {
        match TcpListener::bind(address) {
            Ok(listener) => listeners.push(listener),
            // Of a name's addresses, some may be another machine's, or of a kind that is switched off.
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable && addresses.len() > 1 => {}
            Err(source) => {
                failed.get_or_insert(listening_on(address)(source));
            }
        }
    }
    match (listeners.is_empty(), failed, by_name) {
        (false, None, _) => TcpRoot::take(listeners).map_err(Error::system("listening")),
        // To itself, this machine's name is a loopback address.
        (true, None, Some(port)) => {
            tracing::info!(
                port,
                "the root's name gives no address of its interfaces: it listens on all of them"
            );
            // IPv6 takes IPv4 connections too, where the machine has IPv6 at all.
            TcpRoot::bind(&format!("[::]:{port}")).or_else(|_| TcpRoot::bind(&format!("0.0.0.0:{port}")))
        }
        (_, Some(error), _) => Err(error),
        (true, None, None) => Err(listening_on(&config.address)(ErrorKind::AddrNotAvailable.into())),
    }
}

/// The address by which this machine reaches its own listening socket.
pub(super) fn own_address(mut bound: SocketAddr) -> SocketAddr {
    if bound.ip().is_unspecified() {
        bound.set_ip(match bound.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    bound
}

/// The serving thread. Dropping it stops serving at once.
#[derive(Debug)]
pub(super) struct Serving {
    control: Arc<Control>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
    /// Where the thread puts the ranks that had not left, as its last deed.
    outcome: Receiver<Vec<GlobalRank>>,
}

/// Starts serving.
pub(super) fn serve(root: TcpRoot, config: &TcpConfig) -> Result<Serving, Error> {
    if let Some(address) = root.addresses().iter().copied().find(|address| !config.may_meet_at(*address)) {
        return Err(Error::Unprotected { rank: config.rank, address });
    }
    let waker = Waker::new().map_err(Error::system("eventfd"))?;
    let control = Arc::new(Control::default());
    let (outcome_sender, outcome) = sync_channel(1);
    let server = Server::new(root.listeners, waker.clone(), Arc::clone(&control), config)?;
    let thread = std::thread::Builder::new()
        .name("rendezvous root".to_owned())
        .spawn(move || {
            let remaining = server.run();
            // It does not listen when it was stopped.
            drop(outcome_sender.send(remaining));
        })
        .map_err(Error::system("starting a thread"))?;
    Ok(Serving { control, waker, thread: Some(thread), outcome })
}

impl Serving {
    /// Serves until all ranks have left, at most until the deadline.
    pub(super) fn finish(mut self, deadline: Deadline) -> Result<(), Error> {
        self.command(Command::Finish(deadline.remaining()));
        // The server keeps the deadline itself and then needs a moment to inform the remaining ranks.
        let outcome = self.outcome.recv_timeout(deadline.remaining() + Duration::from_secs(2));
        self.end();
        match outcome {
            Ok(ranks) if ranks.is_empty() => Ok(()),
            Ok(ranks) => Err(Error::StillJoined { ranks, waited: deadline.waited() }),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                Err(Error::LeaveUnconfirmed { rank: GlobalRank::new(0), waited: deadline.waited() })
            }
        }
    }

    /// Serves ranks that read what rank 0 published before it left, at most for this time.
    pub(super) fn linger(mut self, limit: Duration) {
        self.command(Command::Linger(limit));
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the thread that served the rendezvous panicked");
        }
    }

    fn command(&self, command: Command) {
        *self.control.lock().unwrap_or_else(PoisonError::into_inner) = command;
        self.waker.wake();
    }

    fn end(&mut self) {
        self.command(Command::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the thread that served the rendezvous panicked");
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.end();
    }
}
