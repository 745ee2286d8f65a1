//! A port that nobody uses.

use std::io;
use std::net::TcpListener;

/// A TCP port of the loopback interface such that it and the `offset`-th after it are free now. Nothing
/// reserves it, so a rank that loses the race to it reports the address as in use.
pub(crate) fn free_port(offset: u16) -> io::Result<u16> {
    for _ in 0..64 {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        let Some(store) = port.checked_add(offset) else { continue };
        if offset == 0 || TcpListener::bind(("127.0.0.1", store)).is_ok() {
            return Ok(port);
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, "no free pair of ports after 64 tries"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_port_and_its_store_can_be_bound() {
        for offset in [0, 1, 7] {
            let port = super::free_port(offset).unwrap();
            std::net::TcpListener::bind(("127.0.0.1", port + offset)).unwrap();
        }
    }
}
