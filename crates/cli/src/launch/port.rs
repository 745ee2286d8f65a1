//! Reserves a port until rank 0 listens on it.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

/// Two TCP ports of the loopback interface: the launcher's, and the rendezvous', which is held.
///
/// It is held by a socket that is bound and does not listen. The system then assigns the port to no request for any free
/// port and to no outgoing connection, and still lets rank 0 bind and listen: sockets with `SO_REUSEADDR`, as every
/// listener of the standard library is, may share an address as long as only one of them listens.
#[derive(Debug)]
pub(crate) struct ReservedPort {
    port: u16,
    _held: OwnedFd,
}

impl ReservedPort {
    /// Finds a port such that it and the `offset`-th after it are free, and holds the latter.
    ///
    /// # Errors
    /// The system's, and [`io::ErrorKind::AddrInUse`] when there is no such pair.
    pub(crate) fn new(offset: u16) -> io::Result<Self> {
        for _ in 0..64 {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            let port = listener.local_addr()?.port();
            let Some(rendezvous) = port.checked_add(offset) else { continue };
            if offset == 0 {
                drop(listener);
            }
            match hold(rendezvous) {
                Ok(held) => return Ok(Self { port, _held: held }),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::new(io::ErrorKind::AddrInUse, "no free pair of ports after 64 tries"))
    }

    /// The launcher's port, from which ranks count the offset.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

/// Binds without listening, if no other socket is bound. Ranks do not inherit the socket.
fn hold(port: u16) -> io::Result<OwnedFd> {
    let held = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    bind(&held, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
    // Only now: with it, the call above would have shared the port that another launcher holds.
    sockopt::set_socket_reuseaddr(&held, true)?;
    Ok(held)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::net::TcpStream;

    #[test]
    fn the_rendezvous_port_is_held_and_can_be_listened_on() {
        for offset in [0, 1, 7] {
            let reserved = ReservedPort::new(offset).unwrap();
            let address = (Ipv4Addr::LOCALHOST, reserved.port() + offset);
            let root = TcpListener::bind(address).unwrap();
            TcpStream::connect(address).unwrap();
            root.accept().unwrap();
            drop(root);
            // Another launcher does not get it, whether rank 0 listens or not.
            assert!(hold(address.1).is_err(), "offset {offset}");
        }
    }

    #[test]
    fn worlds_that_start_together_get_different_ports() {
        let reserved: Vec<_> = (0..32).map(|_| ReservedPort::new(0).unwrap()).collect();
        let ports: BTreeSet<u16> = reserved.iter().map(ReservedPort::port).collect();
        assert_eq!(ports.len(), reserved.len());
    }
}
