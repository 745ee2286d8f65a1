//! Sockets of streams, of this host and between hosts, that never block.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// Where a NIC listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A unix socket with a name that is no file's (Linux). Processes of other users are refused.
    Abstract,
    /// A unix socket in a folder that no other user may enter (mode 0700, of this user), such as `$XDG_RUNTIME_DIR`.
    Folder(PathBuf),
    /// A port of this address that the system picks. Connections to others leave from this address too.
    Tcp(IpAddr),
}

/// A listening socket.
#[derive(Debug)]
pub(super) enum Listener {
    Unix(UnixListener, Option<PathBuf>),
    Tcp(TcpListener, IpAddr),
}

/// A connection.
#[derive(Debug)]
pub(super) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

const ABSTRACT: &str = "unix-abstract";
const UNIX: &str = "unix";
const TCP: &str = "tcp";

impl Listener {
    /// Opens a socket; `name` is what no other socket is called. Gives its address as text.
    pub(super) fn open(listen: &Listen, name: &str) -> io::Result<(Self, String)> {
        let (listener, address) = match listen {
            Listen::Abstract => {
                let listener = UnixListener::bind_addr(&UnixAddress::from_abstract_name(name)?)?;
                (Self::Unix(listener, None), format!("{ABSTRACT}:{name}"))
            }
            Listen::Folder(folder) => {
                private(folder)?;
                let path = folder.join(name);
                let text = path.to_str().ok_or_else(|| io::Error::other("the folder's name is not UTF-8"))?;
                let address = format!("{UNIX}:{text}");
                (Self::Unix(UnixListener::bind(&path)?, Some(path)), address)
            }
            Listen::Tcp(ip) => {
                if ip.is_unspecified() {
                    let text =
                        format!("{ip} is every address and leads nowhere: name one that the others reach");
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
                }
                let listener = TcpListener::bind(SocketAddr::new(*ip, 0))?;
                let address = format!("{TCP}:{}", listener.local_addr()?);
                (Self::Tcp(listener, *ip), address)
            }
        };
        match &listener {
            Self::Unix(listener, _) => listener.set_nonblocking(true)?,
            Self::Tcp(listener, _) => listener.set_nonblocking(true)?,
        }
        Ok((listener, address))
    }

    /// Takes a connection that has come.
    pub(super) fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Unix(listener, _) => {
                let (socket, _) = listener.accept()?;
                let peer = rustix::net::sockopt::socket_peercred(&socket)?;
                if peer.uid != rustix::process::geteuid() {
                    return Err(io::Error::new(io::ErrorKind::PermissionDenied, "a process of another user"));
                }
                socket.set_nonblocking(true)?;
                Ok(Socket::Unix(socket))
            }
            Self::Tcp(listener, _) => {
                let (socket, _) = listener.accept()?;
                socket.set_nonblocking(true)?;
                socket.set_nodelay(true)?;
                Ok(Socket::Tcp(socket))
            }
        }
    }

    /// Begins a connection to a socket of the same kind.
    pub(super) fn connect(&self, address: &str) -> io::Result<Socket> {
        let strange = || io::Error::other(format!("{address:?} is no address that this NIC can reach"));
        let (kind, place) = address.split_once(':').ok_or_else(strange)?;
        match (self, kind) {
            (Self::Unix(..), ABSTRACT | UNIX) => {
                let at = if kind == UNIX {
                    UnixAddress::from_pathname(place)?
                } else {
                    UnixAddress::from_abstract_name(place)?
                };
                let socket = UnixStream::connect_addr(&at)?;
                socket.set_nonblocking(true)?;
                Ok(Socket::Unix(socket))
            }
            (Self::Tcp(_, from), TCP) => {
                let to: SocketAddr = place.parse().map_err(|_| strange())?;
                let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
                let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
                let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
                rustix::net::bind(&socket, &SocketAddr::new(*from, 0))?;
                match rustix::net::connect(&socket, &to) {
                    // It goes on by itself; what is written before it is there has to wait.
                    Ok(()) | Err(Errno::INPROGRESS) => {}
                    Err(cause) => return Err(cause.into()),
                }
                let socket = TcpStream::from(socket);
                socket.set_nodelay(true)?;
                Ok(Socket::Tcp(socket))
            }
            _ => Err(strange()),
        }
    }
}

/// A folder of this user's that no other user may enter.
fn private(folder: &Path) -> io::Result<()> {
    let about = std::fs::metadata(folder)?;
    // The low six bits are those of the group and of others.
    if about.is_dir()
        && about.uid() == rustix::process::geteuid().as_raw()
        && about.mode().trailing_zeros() >= 6
    {
        return Ok(());
    }
    let text = format!("{} is not a folder of this user's with mode 0700", folder.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(listener, _) => listener.as_fd(),
            Self::Tcp(listener, _) => listener.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, Some(path)) = self
            && let Err(cause) = std::fs::remove_file(&*path)
        {
            tracing::debug!(path = %path.display(), %cause, "the socket of a NIC stays behind");
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(socket) => socket.as_fd(),
            Self::Tcp(socket) => socket.as_fd(),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(socket) => socket.read(target),
            Self::Tcp(socket) => socket.read(target),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, source: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(socket) => socket.write(source),
            Self::Tcp(socket) => socket.write(source),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
