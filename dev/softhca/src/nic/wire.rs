//! What NICs say to one another over UNIX sockets: a request with its bytes, an answer with its own.

use std::io::{self, Read, Write};

use bytemuck::{Pod, Zeroable, bytes_of, bytes_of_mut};

use crate::prm::Syndrome;
use crate::prm::entry::{Area, Change};

/// More than a message may hold (`max_msg_sz` of the port).
pub(crate) const MOST_BYTES: u64 = 1 << 30;

const WRITE: u32 = 1;
const READ: u32 = 2;
const ADD: u32 = 3;
const SWAP: u32 = 4;

/// Both sides run on one machine: numbers are in its order.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Head {
    kind: u32,
    key: u32,
    address: u64,
    bytes: u64,
    arguments: [u64; 4],
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Answer {
    syndrome: u32,
    reserved: u32,
    bytes: u64,
}

/// What a peer is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Write(Vec<u8>),
    Read,
    Change(Change),
}

/// An action and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) area: Area,
    pub(crate) action: Action,
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

pub(crate) fn send_request(to: &mut impl Write, request: &Request) -> io::Result<()> {
    let (kind, arguments) = match request.action {
        Action::Write(_) => (WRITE, [0; 4]),
        Action::Read => (READ, [0; 4]),
        Action::Change(Change::Add { value, boundary }) => (ADD, [value, boundary, 0, 0]),
        Action::Change(Change::Swap { value, compare, mask, compare_mask }) => {
            (SWAP, [value, compare, mask, compare_mask])
        }
    };
    let Area { key, address, bytes } = request.area;
    to.write_all(bytes_of(&Head { kind, key, address, bytes, arguments }))?;
    if let Action::Write(bytes) = &request.action {
        to.write_all(bytes)?;
    }
    Ok(())
}

pub(crate) fn receive_request(from: &mut impl Read) -> io::Result<Request> {
    let mut head = Head::zeroed();
    from.read_exact(bytes_of_mut(&mut head))?;
    let Head { kind, key, address, bytes, arguments: [value, second, mask, compare_mask] } = head;
    if bytes > MOST_BYTES {
        return Err(wrong("a message is too long"));
    }
    let action = match kind {
        WRITE => {
            let mut payload = vec![0; bytes as usize];
            from.read_exact(&mut payload)?;
            Action::Write(payload)
        }
        READ => Action::Read,
        ADD => Action::Change(Change::Add { value, boundary: second }),
        SWAP => Action::Change(Change::Swap { value, compare: second, mask, compare_mask }),
        _ => return Err(wrong("a request of no kind")),
    };
    Ok(Request { area: Area { key, address, bytes }, action })
}

/// What a read brings, the old value of an atomic, or nothing; or why not.
pub(crate) fn send_answer(to: &mut impl Write, answer: &Result<Vec<u8>, Syndrome>) -> io::Result<()> {
    let (syndrome, bytes) = match answer {
        Ok(bytes) => (0, bytes.as_slice()),
        Err(Syndrome(syndrome)) => ((*syndrome).into(), &[][..]),
    };
    to.write_all(bytes_of(&Answer { syndrome, reserved: 0, bytes: bytes.len() as u64 }))?;
    to.write_all(bytes)
}

pub(crate) fn receive_answer(from: &mut impl Read) -> io::Result<Result<Vec<u8>, Syndrome>> {
    let mut answer = Answer::zeroed();
    from.read_exact(bytes_of_mut(&mut answer))?;
    if answer.syndrome != 0 {
        return Ok(Err(Syndrome(answer.syndrome as u8)));
    }
    if answer.bytes > MOST_BYTES {
        return Err(wrong("an answer is too long"));
    }
    let mut bytes = vec![0; answer.bytes as usize];
    from.read_exact(&mut bytes)?;
    Ok(Ok(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_arrive_as_they_were_sent() {
        let area = Area { key: 1, address: 2, bytes: 3 };
        let swap = Change::Swap { value: 1, compare: 2, mask: 3, compare_mask: 4 };
        for action in [Action::Write(vec![1, 2, 3]), Action::Read, Action::Change(swap)] {
            let request = Request { area, action };
            let mut bytes = Vec::new();
            send_request(&mut bytes, &request).unwrap();
            assert_eq!(receive_request(&mut bytes.as_slice()).unwrap(), request);
            bytes.pop();
            assert!(receive_request(&mut bytes.as_slice()).is_err());
        }
        for answer in [Ok(vec![5; 9]), Ok(Vec::new()), Err(Syndrome::REMOTE_ACCESS)] {
            let mut bytes = Vec::new();
            send_answer(&mut bytes, &answer).unwrap();
            assert_eq!(receive_answer(&mut bytes.as_slice()).unwrap(), answer);
        }
    }
}
