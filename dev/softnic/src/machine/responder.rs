//! The side of a queue pair that does what the peer asks.

use std::collections::VecDeque;

use super::Context;
use super::placing::{NotPlaced, Piece, Placing};
use crate::fabric::{Body, Frame};
use crate::syndrome::Syndrome;

/// Immediate values of a NIC that were not consumed.
const MOST_IMMEDIATES: usize = 1 << 16;

/// What came of one look at the peer's requests.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Nothing to do.
    Idle,
    /// Something was done, nothing to say yet.
    Working,
    /// An answer to the request of this sequence.
    Says(u64, Body),
}

/// Requests of the peer, in their order.
#[derive(Debug, Default)]
pub(super) struct Responder {
    inbox: VecDeque<Frame>,
    /// Reads and atomic operations that an adversary lets writes overtake, in their order.
    deferred: VecDeque<Frame>,
    /// The write that is being placed: nothing behind it begins before it is.
    placing: Option<(u64, Option<u32>, Placing)>,
    /// Immediate values that came.
    received: u32,
    /// The immediate value that has to be told of.
    pub(super) immediate: Option<u32>,
    /// A request was refused: nothing more is done.
    refused: bool,
}

impl Responder {
    pub(super) fn take(&mut self, frame: Frame, window: u32) {
        if self.refused {
            return;
        }
        if self.inbox.len() + self.deferred.len() < window as usize {
            self.inbox.push_back(frame);
        } else {
            tracing::debug!(sequence = frame.sequence, "a request beyond the peer's window");
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.inbox.is_empty() && self.deferred.is_empty() && self.placing.is_none()
    }

    pub(super) fn step(&mut self, context: &mut Context<'_>) -> Answer {
        if self.refused {
            return Answer::Idle;
        }
        if let Some((sequence, immediate, placing)) = &mut self.placing {
            let (sequence, immediate) = (*sequence, *immediate);
            return match placing.step(context.memory, context.keys) {
                Ok(false) => Answer::Working,
                Ok(true) => {
                    self.placing = None;
                    self.immediate = immediate;
                    Answer::Says(sequence, Body::Placed)
                }
                Err(NotPlaced::Unregistered) => self.refuse(sequence, Syndrome::RemoteAccess),
                Err(NotPlaced::NoMemory) => self.refuse(sequence, Syndrome::RemoteOperation),
            };
        }
        let overtaken = context.config.adversary.map_or(0, |adversary| adversary.overtaken);
        let next_writes = self.inbox.front().is_some_and(|frame| matches!(frame.body, Body::Write { .. }));
        let deferred_first =
            !self.deferred.is_empty() && (self.inbox.is_empty() || !context.random.chance(overtaken));
        if deferred_first || (!self.deferred.is_empty() && !next_writes) {
            return match self.deferred.pop_front() {
                Some(frame) => self.serve(frame, context),
                None => Answer::Idle,
            };
        }
        let Some(frame) = self.inbox.pop_front() else { return Answer::Idle };
        if !next_writes && context.random.chance(overtaken) {
            self.deferred.push_back(frame);
            return Answer::Working;
        }
        self.serve(frame, context)
    }

    fn refuse(&mut self, sequence: u64, syndrome: Syndrome) -> Answer {
        self.refused = true;
        self.inbox.clear();
        self.deferred.clear();
        self.placing = None;
        Answer::Says(sequence, Body::Refused(syndrome))
    }

    fn serve(&mut self, frame: Frame, context: &mut Context<'_>) -> Answer {
        let sequence = frame.sequence;
        let allows = |key, address, bytes| context.keys.allows_remote(key, address, bytes);
        match frame.body {
            Body::Write { address, total, offset, key, immediate, bytes } => {
                let end = offset.checked_add(bytes.len() as u64);
                if end.is_none_or(|end| end > total) {
                    return self.refuse(sequence, Syndrome::RemoteInvalidRequest);
                }
                // Nothing is checked of a message without payload.
                if total > 0 && !allows(key, address, total) {
                    return self.refuse(sequence, Syndrome::RemoteAccess);
                }
                if immediate.is_some() {
                    if self.received >= context.config.receives || context.immediates.len() >= MOST_IMMEDIATES
                    {
                        return self.refuse(sequence, Syndrome::ReceiverNotReady);
                    }
                    self.received = self.received.saturating_add(1).min(u32::MAX - 1);
                }
                let placing = Placing::new(vec![Piece { key, address: address + offset, bytes }], context);
                self.placing = Some((sequence, immediate, placing));
                Answer::Working
            }
            Body::Read { address, total, offset, key, bytes } => {
                let end = offset.checked_add(bytes.into());
                if end.is_none_or(|end| end > total) || bytes > context.config.frame_bytes {
                    return self.refuse(sequence, Syndrome::RemoteInvalidRequest);
                }
                if !allows(key, address, total) {
                    return self.refuse(sequence, Syndrome::RemoteAccess);
                }
                let mut data = vec![0; bytes as usize];
                let at = address + offset;
                match context.keys.touch(key, at, bytes.into(), || context.memory.read(at, &mut data)) {
                    Some(Ok(())) => Answer::Says(sequence, Body::Data(data)),
                    Some(Err(_)) => self.refuse(sequence, Syndrome::RemoteOperation),
                    None => self.refuse(sequence, Syndrome::RemoteAccess),
                }
            }
            Body::Atomic { address, key, operation } => {
                let bytes = u64::from(operation.width().bytes());
                if !context.config.atomics || !address.is_multiple_of(bytes) {
                    return self.refuse(sequence, Syndrome::RemoteInvalidRequest);
                }
                if !allows(key, address, bytes) {
                    return self.refuse(sequence, Syndrome::RemoteAccess);
                }
                match context.keys.touch(key, address, bytes, || context.memory.atomic(address, &operation)) {
                    Some(Ok(old)) => Answer::Says(sequence, Body::Old(old)),
                    Some(Err(_)) => self.refuse(sequence, Syndrome::RemoteOperation),
                    None => self.refuse(sequence, Syndrome::RemoteAccess),
                }
            }
            Body::Placed | Body::Data(_) | Body::Old(_) | Body::Refused(_) => Answer::Idle,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_requests_wait_than_the_peers_window_has() {
        let mut responder = Responder::default();
        for sequence in 0..9 {
            let body = Body::Read { address: 0, total: 8, offset: 0, key: 1, bytes: 8 };
            responder.take(Frame { source: 1, target: 2, sequence, body }, 3);
        }
        let waiting: Vec<u64> = responder.inbox.iter().map(|frame| frame.sequence).collect();
        assert_eq!(waiting, [0, 1, 2]);
    }
}
