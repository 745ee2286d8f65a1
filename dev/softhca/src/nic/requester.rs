//! The side of a queue pair that has operations done by a peer.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::memory::{Memory, access};
use super::wire::{Action, Request, receive_answer, send_request};
use crate::prm::Syndrome;
use crate::prm::entry::{Area, Operation, Source};

/// When a peer that does not answer counts as lost: what the queue pair's timeout and retries would come to.
const PATIENCE: Duration = Duration::from_secs(8);

/// The connection to a peer's queue pair.
#[derive(Debug)]
pub(super) struct Requester {
    stream: Option<UnixStream>,
}

fn open(socket: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

impl Requester {
    /// Connects to the peer's socket; where that cannot be, requests fail as those to a NIC that is gone.
    pub(super) fn connect(socket: &Path) -> Self {
        Self { stream: open(socket).ok() }
    }

    /// Has the peer do something, and gives its answer.
    fn ask(&mut self, request: &Request) -> Result<Vec<u8>, Syndrome> {
        let Some(stream) = &mut self.stream else { return Err(Syndrome::TRANSPORT_RETRY_EXCEEDED) };
        let asked = send_request(stream, request).and_then(|()| receive_answer(stream));
        asked.unwrap_or(Err(Syndrome::TRANSPORT_RETRY_EXCEEDED))
    }

    /// Does an operation, and says how many bytes moved.
    pub(super) fn execute(&mut self, memory: &Memory, operation: Operation) -> Result<u32, Syndrome> {
        match operation {
            Operation::Nothing => Ok(0),
            Operation::Write { remote, sources } => self.write(memory, remote, sources),
            Operation::Read { remote, targets } => self.read(memory, remote, &targets),
            Operation::Atomic { remote, change, result } => {
                let old = self.ask(&Request { area: remote, action: Action::Change(change) })?;
                let old: [u8; 8] = old.try_into().map_err(|_| Syndrome::LOCAL_LENGTH)?;
                store(memory, result, u64::from_ne_bytes(old))?;
                Ok(remote.bytes as u32)
            }
            // The entries before it are done: each is, with its answer, before the next one is read. Nothing moves.
            Operation::Dump { source } => {
                let read = memory.read(source, access::LOCAL_READ);
                read.map(|_| 0).ok_or(Syndrome::LOCAL_PROTECTION)
            }
        }
    }

    fn write(&mut self, memory: &Memory, remote: Area, sources: Vec<Source>) -> Result<u32, Syndrome> {
        let mut bytes = Vec::new();
        for source in sources {
            match source {
                Source::Inline(held) => bytes.extend(held),
                Source::Memory(area) => {
                    let read = memory.read(area, access::LOCAL_READ);
                    bytes.extend(read.ok_or(Syndrome::LOCAL_PROTECTION)?);
                }
            }
        }
        // Nothing to move: the peer does not look at key and address.
        if !bytes.is_empty() {
            self.ask(&Request { area: remote, action: Action::Write(bytes) })?;
        }
        Ok(remote.bytes as u32)
    }

    fn read(&mut self, memory: &Memory, remote: Area, targets: &[Area]) -> Result<u32, Syndrome> {
        if remote.bytes == 0 {
            return Ok(0);
        }
        let bytes = self.ask(&Request { area: remote, action: Action::Read })?;
        let mut rest = bytes.as_slice();
        for target in targets {
            let (part, behind) =
                rest.split_at_checked(target.bytes as usize).ok_or(Syndrome::LOCAL_LENGTH)?;
            memory.write(*target, access::LOCAL_WRITE, part).ok_or(Syndrome::LOCAL_PROTECTION)?;
            rest = behind;
        }
        Ok(remote.bytes as u32)
    }
}

/// Puts an atomic's old value down: 8 bytes in the host's order (`atomic_req_8B_endianness_mode` is set), 4 bytes in the NIC's.
fn store(memory: &Memory, result: Area, old: u64) -> Result<(), Syndrome> {
    let stored = if result.bytes == 8 {
        memory.write(result, access::LOCAL_WRITE, &old.to_ne_bytes())
    } else {
        memory.write(result, access::LOCAL_WRITE, &(old as u32).to_be_bytes())
    };
    stored.ok_or(Syndrome::LOCAL_PROTECTION)
}
