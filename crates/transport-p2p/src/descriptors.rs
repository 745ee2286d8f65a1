//! File descriptors pass between the processes of a host.
//!
//! Every rank has a [`Mailbox`]: a UNIX socket with a name that nobody can foretell, in the kernel's abstract name space,
//! where a name goes with its socket, however the process ends. Its [`Address`] travels with the rank's offers. Then each
//! rank sends its descriptor into the mailboxes of the others and takes theirs out of its own; the kernel keeps what was sent
//! until it is taken, so nobody waits for anybody to answer, and one thread does it all.
//!
//! The names of abstract sockets can be listed by every user of the host. So both ends look at whom the kernel says is
//! there (`SO_PEERCRED`): the sender gives nothing to another user, the receiver takes nothing from one; and what
//! comes has to carry the secret of the mailbox.

use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use anabranch_ranks::GlobalRank;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recvmsg, sendmsg, socket_with, sockopt,
};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::letter::{LETTER_BYTES, Letter};

/// How long a loss of a rank, or room in a full mailbox, may go unnoticed.
const LOOK: Duration = Duration::from_millis(20);
/// Connections that wait for [`Mailbox::exchange`]; strangers' among them. The kernel has a limit of its own
/// (`net.core.somaxconn`).
const BACKLOG: i32 = 1024;

/// Why descriptors did not pass.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    #[error("no file descriptor came from {}, or none could be sent there, within {waited:?}", list(missing))]
    Expired { missing: Vec<GlobalRank>, waited: Duration },
    #[error("{peer} was lost while file descriptors were passed: {detail}")]
    Lost { peer: GlobalRank, detail: String },
    /// Another rank could not take part, and said so.
    #[error("{peer} could not pass file descriptors: {cause}")]
    FailedOn { peer: GlobalRank, cause: String },
    #[error(
        "the socket of {peer} is not there: its process is gone, or it is in another network namespace (containers have to \
         share one: --network=host)"
    )]
    Unreachable { peer: GlobalRank },
    #[error("the socket of {peer} belongs to user {found}, this rank to user {own}")]
    OtherUser { peer: GlobalRank, found: u32, own: u32 },
    #[error("{call} failed")]
    System {
        call: &'static str,
        #[source]
        source: std::io::Error,
    },
}

fn list(ranks: &[GlobalRank]) -> String {
    ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn system(call: &'static str) -> impl Fn(Errno) -> ExchangeError {
    move |error| ExchangeError::System { call, source: error.into() }
}

/// Where a mailbox is, and what letters to it have to carry. Goes to ranks of the same world only.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    name: [u8; 16],
    secret: [u8; 16],
}

impl Address {
    pub(crate) const BYTES: usize = 32;

    fn fresh() -> rustix::io::Result<Self> {
        let mut bytes = [0; Self::BYTES];
        // Up to 256 bytes come whole or not at all (getrandom(2)).
        getrandom(&mut bytes[..], GetRandomFlags::empty())?;
        Ok(Self::from_bytes(bytes))
    }

    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..16].copy_from_slice(&self.name);
        bytes[16..].copy_from_slice(&self.secret);
        bytes
    }

    pub(crate) fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let (mut name, mut secret) = ([0; 16], [0; 16]);
        name.copy_from_slice(&bytes[..16]);
        secret.copy_from_slice(&bytes[16..]);
        Self { name, secret }
    }

    fn socket(&self) -> rustix::io::Result<SocketAddrUnix> {
        let number = u128::from_be_bytes(self.name);
        SocketAddrUnix::new_abstract_name(format!("anabranch-{number:032x}").as_bytes())
    }
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Address(..)")
    }
}

/// What an exchange waits by: the caller's clock and the caller's news.
pub struct Patience<'a> {
    /// The time that is left, and how long it was waited already.
    pub time: &'a dyn Fn() -> (Duration, Duration),
    /// Whether one of the ranks is known to be lost, and what was seen.
    pub lost: &'a dyn Fn(GlobalRank) -> Option<String>,
}

impl std::fmt::Debug for Patience<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (left, waited) = (self.time)();
        f.debug_struct("Patience").field("left", &left).field("waited", &waited).finish_non_exhaustive()
    }
}

/// A rank's socket. Its name is gone when this is dropped.
#[derive(Debug)]
pub(crate) struct Mailbox {
    socket: OwnedFd,
    address: Address,
}

impl Mailbox {
    /// A fresh one, which takes letters from now on.
    pub(crate) fn open() -> Result<Self, ExchangeError> {
        let address = Address::fresh().map_err(system("getrandom"))?;
        let socket = unix_socket()?;
        let name = address.socket().map_err(system("bind"))?;
        bind(&socket, &name).map_err(system("bind"))?;
        listen(&socket, BACKLOG).map_err(system("listen"))?;
        Ok(Self { socket, address })
    }

    pub(crate) fn address(&self) -> Address {
        self.address
    }

    /// Gives `own` to every peer and returns what each of them gave. All peers call it, each with its own descriptor.
    ///
    /// # Errors
    /// [`ExchangeError`] with the peer; who could still be told has been told.
    pub(crate) fn exchange(
        &self,
        rank: GlobalRank,
        own: BorrowedFd<'_>,
        peers: &[(GlobalRank, Address)],
        patience: &Patience<'_>,
    ) -> Result<BTreeMap<GlobalRank, OwnedFd>, ExchangeError> {
        let mut unsent = peers.to_vec();
        let outcome = self.pass(rank, own, peers, &mut unsent, patience);
        if let Err(error) = &outcome {
            // They would wait for this rank until their time is over.
            let letter = Letter::failure(rank, &anabranch_hip::with_causes(error));
            for (peer, address) in unsent {
                if let Err(error) = send(rank, peer, address, &letter, None) {
                    tracing::debug!(%peer, %error, "a rank was not told that descriptors do not pass");
                }
            }
        }
        outcome
    }

    fn pass(
        &self,
        rank: GlobalRank,
        own: BorrowedFd<'_>,
        peers: &[(GlobalRank, Address)],
        unsent: &mut Vec<(GlobalRank, Address)>,
        patience: &Patience<'_>,
    ) -> Result<BTreeMap<GlobalRank, OwnedFd>, ExchangeError> {
        let letter = Letter::descriptor(rank);
        let mut callers = Vec::new();
        let mut received = BTreeMap::new();
        loop {
            let mut index = 0;
            while let Some((peer, address)) = unsent.get(index).copied() {
                if send(rank, peer, address, &letter, Some(own))? {
                    unsent.remove(index);
                } else {
                    index += 1;
                }
            }
            self.take(&mut callers, peers, &mut received)?;
            let missing = || {
                let silent = peers.iter().map(|(peer, _)| *peer).filter(|peer| !received.contains_key(peer));
                let mut missing: Vec<_> = silent.chain(unsent.iter().map(|(peer, _)| *peer)).collect();
                missing.sort_unstable();
                missing.dedup();
                missing
            };
            let missing = missing();
            if missing.is_empty() {
                return Ok(received);
            }
            if let Some((peer, detail)) =
                missing.iter().find_map(|peer| Some((*peer, (patience.lost)(*peer)?)))
            {
                return Err(ExchangeError::Lost { peer, detail });
            }
            let (left, waited) = (patience.time)();
            if left.is_zero() {
                return Err(ExchangeError::Expired { missing, waited });
            }
            wait(&self.socket, &callers, left.min(LOOK))?;
        }
    }

    /// Takes in who knocks, and reads what has come.
    fn take(
        &self,
        callers: &mut Vec<OwnedFd>,
        peers: &[(GlobalRank, Address)],
        received: &mut BTreeMap<GlobalRank, OwnedFd>,
    ) -> Result<(), ExchangeError> {
        loop {
            match accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(caller) if is_own_user(&caller).map_err(system("SO_PEERCRED"))?.is_ok() => {
                    callers.push(caller);
                }
                Ok(_) => tracing::warn!("another user's process called at a mailbox and was sent away"),
                Err(Errno::WOULDBLOCK) => break,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => return Err(system("accept")(error)),
            }
        }
        let mut waiting = Vec::new();
        for caller in std::mem::take(callers) {
            match receive(&caller) {
                Ok(None) => waiting.push(caller),
                Ok(Some((letter, descriptor))) => self.judge(&letter, descriptor, peers, received)?,
                Err(error) => return Err(system("recvmsg")(error)),
            }
        }
        *callers = waiting;
        Ok(())
    }

    /// Keeps a descriptor that a peer sent; throws away what nobody of this world can have sent.
    fn judge(
        &self,
        bytes: &[u8],
        descriptor: Option<OwnedFd>,
        peers: &[(GlobalRank, Address)],
        received: &mut BTreeMap<GlobalRank, OwnedFd>,
    ) -> Result<(), ExchangeError> {
        let Some(letter) = Letter::decode(bytes, &self.address.secret) else {
            tracing::warn!(bytes = bytes.len(), "a letter that is not of this world was thrown away");
            return Ok(());
        };
        let peer = letter.sender;
        if !peers.iter().any(|(known, _)| *known == peer) || received.contains_key(&peer) {
            tracing::warn!(%peer, "a letter that was not waited for was thrown away");
            return Ok(());
        }
        if let Some(cause) = letter.failure {
            return Err(ExchangeError::FailedOn { peer, cause });
        }
        let Some(descriptor) = descriptor else {
            let cause = "its message came without one (is the limit of open files reached here?)".to_owned();
            return Err(ExchangeError::FailedOn { peer, cause });
        };
        received.insert(peer, descriptor);
        Ok(())
    }
}

fn unix_socket() -> Result<OwnedFd, ExchangeError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(system("socket"))
}

/// Whether the process at the other end is this process's user's; if not, whose.
fn is_own_user(socket: &OwnedFd) -> rustix::io::Result<Result<(), u32>> {
    let (found, own) = (sockopt::socket_peercred(socket)?.uid, rustix::process::geteuid());
    Ok(if found == own { Ok(()) } else { Err(found.as_raw()) })
}

/// Puts a letter into a peer's mailbox; false when there is no room at the moment.
fn send(
    rank: GlobalRank,
    peer: GlobalRank,
    address: Address,
    letter: &Letter,
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<bool, ExchangeError> {
    let socket = unix_socket()?;
    match connect(&socket, &address.socket().map_err(system("connect"))?) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK | Errno::INTR) => return Ok(false),
        Err(Errno::CONNREFUSED) => return Err(ExchangeError::Unreachable { peer }),
        Err(error) => return Err(system("connect")(error)),
    }
    if let Err(found) = is_own_user(&socket).map_err(system("SO_PEERCRED"))? {
        let own = rustix::process::geteuid().as_raw();
        return Err(ExchangeError::OtherUser { peer, found, own });
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let rights = descriptor.map(|descriptor| [descriptor]);
    if let Some(rights) = &rights {
        ancillary.push(SendAncillaryMessage::ScmRights(rights));
    }
    let bytes = letter.encode(&address.secret);
    match sendmsg(&socket, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
        Ok(_) => {
            tracing::trace!(%rank, %peer, "sent a letter");
            Ok(true)
        }
        // Too many descriptors of this user are under way (RLIMIT_NOFILE): others take them out.
        Err(Errno::WOULDBLOCK | Errno::INTR | Errno::TOOMANYREFS | Errno::NOBUFS) => Ok(false),
        Err(Errno::CONNRESET | Errno::PIPE) => Err(ExchangeError::Unreachable { peer }),
        Err(error) => Err(system("sendmsg")(error)),
    }
}

/// What a caller sent: nothing yet, or bytes and the descriptor with them.
fn receive(caller: &OwnedFd) -> rustix::io::Result<Option<(Vec<u8>, Option<OwnedFd>)>> {
    let mut bytes = vec![0; LETTER_BYTES];
    // One more than there should be, so that a second one is closed here.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    match recvmsg(caller, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags) {
        Ok(message) => {
            bytes.truncate(message.bytes);
            let mut descriptors = Vec::new();
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = message {
                    descriptors.extend(rights);
                }
            }
            let only = if descriptors.len() == 1 { descriptors.pop() } else { None };
            Ok(Some((bytes, only)))
        }
        Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(None),
        Err(Errno::CONNRESET) => Ok(Some((Vec::new(), None))),
        Err(error) => Err(error),
    }
}

fn wait(mailbox: &OwnedFd, callers: &[OwnedFd], most: Duration) -> Result<(), ExchangeError> {
    let mut sockets: Vec<_> = std::iter::once(mailbox)
        .chain(callers)
        .map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN))
        .collect();
    let time = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: i64::from(most.subsec_nanos()) };
    match poll(&mut sockets, Some(&time)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(system("poll")(error)),
    }
}

#[cfg(test)]
#[path = "descriptors_tests.rs"]
mod tests;
