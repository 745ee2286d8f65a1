//! A socket that never blocks, with frames on both sides of it.
#![expect(
    clippy::disallowed_methods,
    reason = "threads that do socket work live on the machine's time: no simulation drives them"
)]

use crate::Deadline;
use crate::frame::{FrameError, HEADER, Header, Kind};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// The most bytes taken from the socket at once, so that a busy peer does not keep others waiting.
const TAKE: usize = 256 << 10;

/// A frame that has arrived and been checked.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) header: Header,
    pub(super) payload: Vec<u8>,
}

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
    /// Bytes that have arrived; those before `taken` are used up.
    inbox: Vec<u8>,
    taken: usize,
    outbox: VecDeque<Vec<u8>>,
    /// Bytes of the outbox's first entry that are sent.
    sent_of_first: usize,
    limit: u64,
    sender: u32,
    heard: Instant,
    queued: Instant,
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
            inbox: Vec::new(),
            taken: 0,
            outbox: VecDeque::new(),
            sent_of_first: 0,
            limit,
            sender,
            heard: now,
            queued: now,
        })
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    pub(super) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
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
        self.outbox.push_back([&header, payload].concat());
        self.queued = Instant::now();
    }

    /// Sends what the socket takes now.
    pub(super) fn flush(&mut self) -> std::io::Result<()> {
        while let Some(first) = self.outbox.front() {
            // Not vectored: that could raise SIGPIPE in a process that does not ignore it.
            match self.stream.write(first.get(self.sent_of_first..).unwrap_or_default()) {
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
        self.inbox.drain(..self.taken);
        self.taken = 0;
        let mut chunk = [0_u8; 16 << 10];
        let mut total = 0;
        while total < TAKE {
            match self.stream.read(&mut chunk) {
                Ok(0) => return Ok(Stream::Ended),
                Ok(count) => {
                    self.inbox.extend_from_slice(chunk.get(..count).unwrap_or_default());
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
        let rest = self.inbox.get(self.taken..).unwrap_or_default();
        let Some((head, rest)) = rest.split_first_chunk::<HEADER>() else { return Ok(None) };
        let header = Header::decode(head, self.limit)?;
        let Some(payload) = usize::try_from(header.length).ok().and_then(|length| rest.get(..length)) else {
            return Ok(None);
        };
        header.check(payload)?;
        let frame = Frame { header, payload: payload.to_vec() };
        self.taken += HEADER + frame.payload.len();
        Ok(Some(frame))
    }

    /// Says that nothing more will be sent; the peer may still send.
    pub(super) fn finish_sending(&self) {
        // It fails only on a connection that is gone already.
        drop(self.stream.shutdown(Shutdown::Write));
    }

    /// Throws away what has arrived.
    pub(super) fn discard(&mut self) {
        self.inbox.clear();
        self.taken = 0;
    }

    /// Sends all that is queued and waits for one frame; for the greeting, where there is nothing else to do.
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
