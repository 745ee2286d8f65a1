//! Payload on its way into memory, in pieces.

use std::collections::VecDeque;

use super::Context;
use crate::keys::Keys;
use crate::memory::NicMemory;

/// Payload for one place.
#[derive(Debug)]
pub(super) struct Piece {
    /// What opened the place when it was named, and must do so still.
    pub(super) key: u32,
    pub(super) address: u64,
    pub(super) bytes: Vec<u8>,
}

/// Why payload cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotPlaced {
    /// The place's registration was dropped meanwhile.
    Unregistered,
    /// No memory is there.
    NoMemory,
}

/// Pieces of payload that are still to be written.
#[derive(Debug)]
pub(super) struct Placing {
    pieces: VecDeque<Piece>,
    /// Pieces of one step.
    at_once: usize,
}

impl Placing {
    /// Payload for one or several places. An adversary's pieces begin and end at multiples of 8, as far as the payload does, and are
    /// written in any order, some of them in one step.
    pub(super) fn new(mut parts: Vec<Piece>, context: &mut Context<'_>) -> Self {
        parts.retain(|part| !part.bytes.is_empty());
        let piece = context.config.adversary.map_or(0, |adversary| u64::from(adversary.piece_bytes) & !7);
        if piece == 0 {
            return Self { pieces: parts.into(), at_once: usize::MAX };
        }
        let mut pieces = Vec::new();
        for Piece { key, mut address, bytes } in parts {
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let here = (piece - address % piece).min(rest.len() as u64);
                let (first, behind) = rest.split_at(here as usize);
                pieces.push(Piece { key, address, bytes: first.to_vec() });
                address += here;
                rest = behind;
            }
        }
        for left in (1..pieces.len()).rev() {
            let other = context.random.below(left as u64 + 1) as usize;
            pieces.swap(left, other);
        }
        // Long payload must end some time.
        let at_once = 1 + pieces.len() / 8;
        Self { pieces: pieces.into(), at_once }
    }

    /// Writes some of it; true when all is written.
    pub(super) fn step(&mut self, memory: &dyn NicMemory, keys: &Keys) -> Result<bool, NotPlaced> {
        for _ in 0..self.at_once.min(self.pieces.len()) {
            if let Some(Piece { key, address, bytes }) = self.pieces.pop_front() {
                let write = || memory.write(address, &bytes);
                let written = keys.touch(key, address, bytes.len() as u64, write);
                written.ok_or(NotPlaced::Unregistered)?.map_err(|_| NotPlaced::NoMemory)?;
            }
        }
        Ok(self.pieces.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use anabranch_transport::Region;
    use anabranch_transport_rdma::Registered;

    use super::*;
    use crate::machine::written::Written;

    #[test]
    fn a_registration_that_is_dropped_ends_what_is_under_way() {
        let (memory, keys) = (Written::default(), Arc::new(Keys::default()));
        let registration = keys.register(Region { address: 64, bytes: 16 }, false);
        let piece = |address| Piece { key: registration.remote_key(), address, bytes: vec![1; 8] };
        let mut placing = Placing { pieces: [piece(64), piece(72)].into(), at_once: 1 };
        assert_eq!(placing.step(&memory, &keys), Ok(false));
        drop(registration);
        assert_eq!(placing.step(&memory, &keys), Err(NotPlaced::Unregistered));
        assert_eq!(*memory.0.lock().unwrap(), [64]);
    }
}
