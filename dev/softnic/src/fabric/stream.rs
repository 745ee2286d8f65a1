//! NICs of several processes or hosts, which send frames by sockets.
//!
//! Each NIC listens, and connects to every NIC that it sends to: a connection carries frames one way. A NIC that connects first says a
//! token that only the listener's address has, and who it is; who does not say it is let go before anything of it is read.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use anabranch_clock::Moment;
use anabranch_transport_rdma::NicError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::rand::{GetRandomFlags, getrandom};

use super::address::Address;
use super::frame::{decode, encode};
use super::socket::{Listen, Listener, Socket};
use super::{Event, Fabric, Frame, NicNumber};

/// What every connection begins with: this, the listener's token, and the number of the NIC that connects.
const MAGIC: [u8; 8] = *b"softnic1";
const TOKEN: usize = 16;
const HELLO: usize = MAGIC.len() + TOKEN + 8;
/// The longest frame that is taken: payload, and what stands before it.
const MOST_FRAME: usize = (16 << 20) + 256;
/// Bytes that may wait to be sent to a NIC.
const MOST_WAITING: usize = 8 << 20;
/// Connections that have not said who they are, and how long they have for it.
const MOST_STRANGERS: usize = 64;
const HELLO_TIME: Duration = Duration::from_secs(5);
/// Bytes that one read takes, and reads of a connection in one look: a NIC that sends without end does not block the others.
const READ: usize = 256 << 10;
const READS: usize = 16;
/// Reads of a connection whose other end has gone: more than sockets hold.
const LAST_READS: usize = 1024;
/// What is left to send when a NIC ends has so many times 10 ms.
const LAST_LOOKS: u32 = 100;

/// A connection to another NIC.
struct Outgoing {
    socket: Socket,
    waiting: Vec<u8>,
    sent: usize,
}

/// A connection that another NIC made.
struct Incoming {
    socket: Socket,
    came: Vec<u8>,
    from: Option<NicNumber>,
    since: Moment,
}

/// A NIC's sockets.
pub struct StreamPort {
    number: NicNumber,
    listener: Listener,
    address: Address,
    token: [u8; TOKEN],
    outgoing: BTreeMap<NicNumber, Outgoing>,
    /// Where NICs are, those that are gone included.
    opened: BTreeMap<NicNumber, Address>,
    incoming: Vec<Incoming>,
    /// NICs that are gone: told once.
    gone: Vec<NicNumber>,
    events: VecDeque<Event>,
    buffer: Vec<u8>,
}

/// Without the tokens, and without what is under way, which begins with one.
impl fmt::Debug for StreamPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamPort")
            .field("number", &self.number)
            .field("address", &self.address)
            .field("opened", &self.opened)
            .field("gone", &self.gone)
            .finish_non_exhaustive()
    }
}

impl StreamPort {
    /// Listens. Not collective. Frames go over TCP as they are, unencrypted, which a warning says unless the address is a loopback one.
    ///
    /// # Errors
    /// [`NicError::System`] where the system refuses the socket, the folder is one that others may enter, or the address is none that
    /// others could connect to (`0.0.0.0`, `::`).
    pub fn open(listen: &Listen) -> Result<Self, NicError> {
        let failed = |source| NicError::System { what: format!("listen for NICs ({listen:?})"), source };
        let mut random = [0; TOKEN + 16];
        let mut filled = 0;
        while filled < random.len() {
            let more = getrandom(&mut random[filled..], GetRandomFlags::empty());
            filled += more.map_err(|cause| failed(cause.into()))?;
        }
        let mut token = [0; TOKEN];
        token.copy_from_slice(&random[..TOKEN]);
        let (mut number, mut name) = ([0; 8], [0; 8]);
        number.copy_from_slice(&random[TOKEN..TOKEN + 8]);
        name.copy_from_slice(&random[TOKEN + 8..]);
        let name = format!("anabranch-nic-{:016x}", u64::from_ne_bytes(name));
        let (listener, place) = Listener::open(listen, &name).map_err(failed)?;
        if let Listen::Tcp(ip) = listen
            && !ip.to_canonical().is_loopback()
        {
            tracing::warn!(
                address = place,
                "UNENCRYPTED: NICs in software send heaps over TCP as they are; whoever is on the way can read and change them"
            );
        }
        let address = Address(format!("{}/{place}", hexadecimal(&token)));
        Ok(Self {
            number: NicNumber(u64::from_ne_bytes(number)),
            listener,
            address,
            token,
            outgoing: BTreeMap::new(),
            opened: BTreeMap::new(),
            incoming: Vec::new(),
            gone: Vec::new(),
            events: VecDeque::new(),
            buffer: vec![0; READ],
        })
    }

    /// Looks at all sockets once, and does what can be done.
    fn look(&mut self, timeout: Option<&Timespec>) {
        let flags = |outgoing: &Outgoing| {
            if outgoing.sent < outgoing.waiting.len() {
                PollFlags::IN | PollFlags::OUT
            } else {
                PollFlags::IN
            }
        };
        let mut sockets = vec![PollFd::new(&self.listener, PollFlags::IN)];
        sockets.extend(self.outgoing.values().map(|out| PollFd::new(&out.socket, flags(out))));
        sockets.extend(self.incoming.iter().map(|came| PollFd::new(&came.socket, PollFlags::IN)));
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut sockets, Some(timeout.unwrap_or(&now))).is_err() {
            return;
        }
        let ready: Vec<_> = sockets.iter().map(|socket| !socket.revents().is_empty()).collect();
        let (outgoing, incoming) = (self.outgoing.len(), self.incoming.len());
        let peers: Vec<_> = self.outgoing.keys().copied().collect();
        // From the back, so that places stay as they are.
        for place in (0..incoming).rev().filter(|place| ready[1 + outgoing + place]) {
            self.receive(place, READS);
        }
        for (peer, _) in peers.into_iter().zip(&ready[1..]).filter(|(_, ready)| **ready) {
            self.serve(peer);
        }
        if ready[0] {
            self.accept();
        }
        self.incoming.retain(|incoming| incoming.from.is_some() || incoming.since.elapsed() < HELLO_TIME);
    }

    fn accept(&mut self) {
        match self.listener.accept() {
            Ok(_)
                if self.incoming.iter().filter(|incoming| incoming.from.is_none()).count()
                    >= MOST_STRANGERS =>
            {
                tracing::warn!("too many connections to a NIC that do not say who they are");
            }
            Ok(socket) => {
                self.incoming.push(Incoming { socket, came: Vec::new(), from: None, since: Moment::now() });
            }
            Err(cause) if cause.kind() == ErrorKind::WouldBlock => {}
            Err(cause) => tracing::warn!(%cause, "a connection to a NIC was refused"),
        }
    }

    /// Reads a connection that another NIC made until nothing more is there, so many times at most.
    fn receive(&mut self, place: usize, reads: usize) {
        // A number is one NIC's: a second connection with it is another NIC's.
        let taken: Vec<NicNumber> = if self.incoming[place].from.is_some() {
            Vec::new()
        } else {
            let there = self.incoming.iter().filter_map(|other| other.from);
            there.chain(self.gone.iter().copied()).collect()
        };
        for _ in 0..reads {
            let incoming = &mut self.incoming[place];
            let over = match incoming.socket.read(&mut self.buffer) {
                Ok(0) => "it has closed its connection".to_owned(),
                Ok(bytes) => {
                    incoming.came.extend(&self.buffer[..bytes]);
                    match understand(incoming, &self.token, &taken, &mut self.events) {
                        Ok(()) if bytes < self.buffer.len() => return,
                        Ok(()) => continue,
                        Err(why) => why,
                    }
                }
                Err(cause) if matches!(cause.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    return;
                }
                Err(cause) => cause.to_string(),
            };
            if let Some(peer) = self.incoming.swap_remove(place).from {
                self.lose(peer, over);
            } else {
                tracing::warn!(why = over, "a connection to a NIC was refused");
            }
            return;
        }
    }

    /// Sends what can be sent to a NIC, and notices that it has gone.
    fn serve(&mut self, peer: NicNumber) {
        let Some(outgoing) = self.outgoing.get_mut(&peer) else { return };
        let mut over = send(outgoing).err();
        if over.is_none() {
            // Nothing is ever sent back.
            over = match outgoing.socket.read(&mut [0]) {
                Ok(0) => Some("it has closed the connection".to_owned()),
                Ok(_) => Some("it has sent something where nothing is sent".to_owned()),
                Err(cause) if matches!(cause.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => None,
                Err(cause) => Some(cause.to_string()),
            };
        }
        let Some(why) = over else { return };
        self.outgoing.remove(&peer);
        // What it has sent before comes first.
        if let Some(place) = self.incoming.iter().position(|incoming| incoming.from == Some(peer)) {
            self.receive(place, LAST_READS);
        }
        self.lose(peer, why);
    }

    fn lose(&mut self, peer: NicNumber, why: String) {
        if !self.gone.contains(&peer) {
            self.gone.push(peer);
            self.events.push_back(Event::Gone { peer, why });
        }
    }
}

/// Writes until nothing is left or the socket is full.
fn send(outgoing: &mut Outgoing) -> Result<(), String> {
    while outgoing.sent < outgoing.waiting.len() {
        match outgoing.socket.write(&outgoing.waiting[outgoing.sent..]) {
            Ok(bytes) => outgoing.sent += bytes,
            Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
            // Also while the connection is being made.
            Err(cause) if matches!(cause.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => {
                return Ok(());
            }
            Err(cause) => return Err(cause.to_string()),
        }
    }
    outgoing.waiting.clear();
    outgoing.sent = 0;
    Ok(())
}

/// Takes whole frames off what has come, behind the greeting.
fn understand(
    incoming: &mut Incoming,
    token: &[u8; TOKEN],
    taken_numbers: &[NicNumber],
    events: &mut VecDeque<Event>,
) -> Result<(), String> {
    let mut taken = 0;
    let from = if let Some(from) = incoming.from {
        from
    } else {
        let Some(hello) = incoming.came.first_chunk::<HELLO>() else { return Ok(()) };
        let (magic, rest) = hello.split_at(MAGIC.len());
        let (given, number) = rest.split_at(TOKEN);
        // Every byte is looked at: how long it takes says nothing about where they differ.
        let differs = given.iter().zip(token).fold(0, |differs, (left, right)| differs | (left ^ right));
        if magic != MAGIC || differs != 0 {
            return Err("it does not know this NIC's token".to_owned());
        }
        taken = HELLO;
        let from = number.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
        if taken_numbers.contains(&NicNumber(from)) {
            return Err(format!("it calls itself {}, which is another one", NicNumber(from)));
        }
        *incoming.from.insert(NicNumber(from))
    };
    while let Some((frame, bytes)) =
        decode(&incoming.came[taken..], MOST_FRAME).map_err(|why| why.to_string())?
    {
        taken += bytes;
        events.push_back(Event::Came { from, frame });
    }
    incoming.came.drain(..taken);
    Ok(())
}

impl Fabric for StreamPort {
    fn kind(&self) -> &'static str {
        match self.listener {
            Listener::Unix(..) => "unix sockets",
            Listener::Tcp(..) => "TCP",
        }
    }

    fn number(&self) -> NicNumber {
        self.number
    }

    fn address(&self) -> String {
        self.address.0.clone()
    }

    fn open(&mut self, peer: NicNumber, address: &str) -> Result<(), NicError> {
        let failed = |source| NicError::System { what: format!("reach {peer}"), source };
        match self.opened.get(&peer) {
            Some(known) if known.0 == address => return Ok(()),
            Some(known) => {
                let text = format!("it was opened at {known:?}, and a NIC has one address");
                return Err(failed(std::io::Error::other(text)));
            }
            None => {}
        }
        let strange = || failed(std::io::Error::other("its address is none of a NIC's"));
        let (token, place) = address.split_once('/').ok_or_else(strange)?;
        let token = bytes_of(token).filter(|token| token.len() == TOKEN).ok_or_else(strange)?;
        let socket = self.listener.connect(place).map_err(failed)?;
        let mut waiting = MAGIC.to_vec();
        waiting.extend(token);
        waiting.extend(self.number.0.to_le_bytes());
        self.outgoing.insert(peer, Outgoing { socket, waiting, sent: 0 });
        self.opened.insert(peer, Address(address.to_owned()));
        Ok(())
    }

    fn send(&mut self, peer: NicNumber, frame: Frame) {
        let Some(outgoing) = self.outgoing.get_mut(&peer) else { return };
        encode(&frame, &mut outgoing.waiting);
        // What goes wrong is noticed at the next look.
        let _later = send(outgoing);
    }

    fn is_full(&self, peer: NicNumber) -> bool {
        self.outgoing.get(&peer).is_some_and(|out| out.waiting.len() - out.sent > MOST_WAITING)
    }

    fn poll(&mut self) -> Option<Event> {
        if self.events.is_empty() {
            self.look(None);
        }
        self.events.pop_front()
    }
}

impl Drop for StreamPort {
    fn drop(&mut self) {
        // Answers that peers wait for.
        let pause = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        for _ in 0..LAST_LOOKS {
            if self.outgoing.values().all(|out| out.sent == out.waiting.len()) {
                return;
            }
            self.look(Some(&pause));
        }
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to text does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn bytes_of(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = text.chars().map(|digit| digit.to_digit(16)).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect())
}
