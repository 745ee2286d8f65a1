//! A socket that never blocks, with frames on both sides of it.
#![expect(
    clippy::disallowed_methods,
    reason = "threads that do socket work live on the machine's time: no simulation drives them"
)]

pub(super) use super::inbox::Frame;
use super::inbox::Inbox;
use super::noise::Cipher;
use crate::Deadline;
use crate::frame::{FrameError, Header, Kind};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// The most bytes taken from the socket at once, so that a busy peer does not keep others waiting.
const TAKE: usize = 256 << 10;

/// Whether the peer may still send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Open,
    Ended,
}

/// Why receiving in step failed.
#[derive(Debug)]
pub(super) enum ReceiveError {
    Frame(FrameError),
    Io(std::io::Error),
    Ended,
    Expired,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    inbox: Inbox,
    /// Seals and opens what travels, once both sides have shown that they know the secret.
    cipher: Option<Cipher>,
    outbox: VecDeque<Vec<u8>>,
    /// Bytes of the outbox's first entry that are sent.
    sent_of_first: usize,
    sender: u32,
    heard: Instant,
    queued: Instant,
    /// Why nothing can be sent any more.
    broken: Option<FrameError>,
}

impl Connection {
    /// Takes over a connected socket. Frames it sends carry `sender`; payloads it takes have at most `limit`
    /// bytes.
    pub(super) fn new(stream: TcpStream, sender: u32, limit: u64) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let now = Instant::now();
        Ok(Self {
            stream,
            inbox: Inbox::new(limit),
            cipher: None,
            outbox: VecDeque::new(),
            sent_of_first: 0,
            sender,
            heard: now,
            queued: now,
            broken: None,
        })
    }

    pub(super) fn limit(&self) -> u64 {
        self.inbox.limit()
    }

    pub(super) fn set_limit(&mut self, limit: u64) {
        self.inbox.set_limit(limit);
    }

    /// From here on, both directions are encrypted. What is queued already goes out as it is.
    pub(super) fn encrypt(&mut self, cipher: Cipher) {
        self.cipher = Some(cipher);
        self.inbox.encrypt();
    }

    /// How long nothing has arrived.
    pub(super) fn silent_for(&self) -> Duration {
        self.heard.elapsed()
    }

    /// How long nothing has been sent.
    pub(super) fn idle_for(&self) -> Duration {
        self.queued.elapsed()
    }

    /// Whether there is something to send.
    pub(super) fn has_output(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// What to poll for.
    pub(super) fn poll_fd(&self) -> PollFd<'_> {
        let output = if self.has_output() { PollFlags::OUT } else { PollFlags::empty() };
        PollFd::new(&self.stream, PollFlags::IN | output)
    }

    /// Puts a frame in the queue.
    pub(super) fn queue(&mut self, kind: Kind, sequence: u64, payload: &[u8]) {
        let header = Header::of(kind, self.sender, sequence, payload).encode();
        // In one piece, since the socket sends each piece at once.
        let frame = [&header, payload].concat();
        let sealed = match &mut self.cipher {
            None => Ok(frame),
            Some(cipher) => cipher.seal(&frame),
        };
        match sealed {
            Ok(bytes) => self.outbox.push_back(bytes),
            Err(error) => self.broken = Some(error),
        }
        self.queued = Instant::now();
    }

    /// Sends what the socket takes now.
    pub(super) fn flush(&mut self) -> std::io::Result<()> {
        if let Some(error) = &self.broken {
            return Err(std::io::Error::other(error.clone()));
        }
        while let Some(first) = self.outbox.front() {
            // Not vectored: that could raise SIGPIPE in a process that does not ignore it.
            match self.stream.write(&first[self.sent_of_first..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(sent) => self.sent_of_first += sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if self.sent_of_first == first.len() {
                self.outbox.pop_front();
                self.sent_of_first = 0;
            }
        }
        Ok(())
    }

    /// Takes what has arrived.
    pub(super) fn fill(&mut self) -> std::io::Result<Stream> {
        let mut chunk = [0_u8; 16 << 10];
        let mut total = 0;
        // No more than two frames of those that have not shown that they know the secret.
        let take = TAKE.min(usize::try_from(self.inbox.limit()).unwrap_or(TAKE).saturating_mul(2));
        while total < take {
            match self.stream.read(&mut chunk) {
                Ok(0) => return Ok(Stream::Ended),
                Ok(count) => {
                    self.inbox.push(&chunk[..count]);
                    self.heard = Instant::now();
                    total += count;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Stream::Open)
    }

    /// The next frame, if it has arrived whole. After an error the connection is of no more use.
    pub(super) fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        self.inbox.next_frame(self.cipher.as_mut())
    }

    /// Says that nothing more will be sent; the peer may still send.
    pub(super) fn finish_sending(&self) {
        // It fails only on a connection that is gone already.
        drop(self.stream.shutdown(Shutdown::Write));
    }

    /// Throws away what has arrived.
    pub(super) fn discard(&mut self) {
        self.inbox.discard();
    }

    /// Sends all that is queued and waits for one frame; for the handshake, where there is nothing else to do.
    pub(super) fn exchange(&mut self, deadline: Deadline) -> Result<Frame, ReceiveError> {
        loop {
            self.flush().map_err(ReceiveError::Io)?;
            if let Some(frame) = self.next_frame().map_err(ReceiveError::Frame)? {
                return Ok(frame);
            }
            if deadline.expired() {
                return Err(ReceiveError::Expired);
            }
            poll(&mut [self.poll_fd()], deadline.remaining()).map_err(ReceiveError::Io)?;
            if self.fill().map_err(ReceiveError::Io)? == Stream::Ended {
                // A last word may have come with the end.
                return self.next_frame().map_err(ReceiveError::Frame)?.ok_or(ReceiveError::Ended);
            }
        }
    }
}

/// Waits until one of these is ready, at most this long. Being interrupted counts as nothing being ready.
pub(super) fn poll(fds: &mut [PollFd<'_>], at_most: Duration) -> std::io::Result<()> {
    // Up to a millisecond longer than asked for, so that a caller who waits for a point in time does not come
    // back just before it.
    let at_most = at_most.min(Duration::from_secs(60)) + Duration::from_micros(500);
    let timeout =
        Timespec { tv_sec: at_most.as_secs().cast_signed(), tv_nsec: i64::from(at_most.subsec_nanos()) };
    match rustix::event::poll(fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
