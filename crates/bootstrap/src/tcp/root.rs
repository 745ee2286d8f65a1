//! The root's socket, and the thread that serves it.

use super::TcpConfig;
use super::server::{Command, Control, Server};
use super::waker::Waker;
use crate::{Deadline, Error, Token};
use anabranch_ranks::GlobalRank;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// A socket that listens for the ranks of a world, before rank 0 serves it.
///
/// It is bound once and kept, so that a port chosen by the system (port 0) stays this world's.
#[derive(Debug)]
pub struct TcpRoot {
    listener: TcpListener,
    address: SocketAddr,
}

impl TcpRoot {
    /// Listens on this address, as `host:port`; port 0 lets the system choose.
    ///
    /// # Errors
    /// [`Error::Bind`].
    pub fn bind(address: &str) -> Result<Self, Error> {
        TcpListener::bind(address)
            .and_then(Self::take)
            .map_err(|source| Error::Bind { address: address.to_owned(), source })
    }

    /// Takes over a socket that listens already; one that a launcher bound and handed down, say.
    ///
    /// # Errors
    /// [`Error::System`] when it is no listening socket.
    pub fn from_listener(listener: TcpListener) -> Result<Self, Error> {
        Self::take(listener)
            .map_err(|source| Error::System { call: "taking over a listening socket", source })
    }

    /// The address that it really listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn take(listener: TcpListener) -> std::io::Result<Self> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address })
    }
}

/// Listens where the configuration says; see [`TcpConfig::bind`].
pub(super) fn listen(config: &TcpConfig) -> Result<TcpRoot, Error> {
    if let Some(bind) = &config.bind {
        return TcpRoot::bind(bind);
    }
    let (host, port) = config.address.rsplit_once(':').ok_or_else(|| Error::Config {
        name: "address",
        given: config.address.clone(),
        expected: "host:port",
    })?;
    if config.address.parse::<SocketAddr>().is_ok() || host == "localhost" {
        return TcpRoot::bind(&config.address);
    }
    // IPv6 takes IPv4 connections too, where the machine has IPv6 at all.
    TcpRoot::bind(&format!("[::]:{port}")).or_else(|_| TcpRoot::bind(&format!("0.0.0.0:{port}")))
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

/// Whether other machines' users reach the socket and nothing tells them from ranks.
fn is_open_to_all(address: SocketAddr, token: &Token) -> bool {
    !address.ip().to_canonical().is_loopback() && *token == Token::none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_socket_beyond_loopback_without_a_token_is_open_to_all() {
        let open = |address: &str, token: &Token| is_open_to_all(address.parse().unwrap(), token);
        for (address, beyond) in [
            ("127.0.0.1:1", false),
            ("127.8.0.1:1", false),
            ("[::1]:1", false),
            ("[::ffff:127.0.0.1]:1", false),
            ("0.0.0.0:1", true),
            ("[::]:1", true),
            ("10.0.0.1:1", true),
        ] {
            assert_eq!(open(address, &Token::none()), beyond, "{address}");
            assert!(!open(address, &Token::new("secret")), "{address}");
        }
    }
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
    if is_open_to_all(root.address(), &config.token) {
        tracing::warn!(
            address = %root.address(),
            "the rendezvous listens beyond this machine without a token: whoever reaches it can join as a rank"
        );
    }
    let system = |call| move |source| Error::System { call, source };
    let waker = Waker::new().map_err(system("eventfd"))?;
    let control = Arc::new(Control::default());
    let (outcome_sender, outcome) = sync_channel(1);
    let server = Server::new(root.listener, waker.clone(), Arc::clone(&control), config)?;
    let thread = std::thread::Builder::new()
        .name("rendezvous root".to_owned())
        .spawn(move || {
            let remaining = server.run();
            // Nobody listens when it was stopped.
            drop(outcome_sender.send(remaining));
        })
        .map_err(system("starting a thread"))?;
    Ok(Serving { control, waker, thread: Some(thread), outcome })
}

impl Serving {
    /// Serves until all ranks have left, at most until the deadline.
    pub(super) fn finish(mut self, deadline: Deadline) -> Result<(), Error> {
        self.command(Command::Finish(deadline.remaining()));
        // The server keeps the deadline itself and then needs a moment to tell the ranks that remain.
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
