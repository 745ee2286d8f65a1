//! Payload on its way into memory, in pieces.

use std::collections::VecDeque;

use anabranch_hip::NoMemory;

use super::Context;

/// Pieces of payload that are still to be written.
#[derive(Debug)]
pub(super) struct Placing {
    pieces: VecDeque<(u64, Vec<u8>)>,
    /// Pieces of one step.
    at_once: usize,
}

impl Placing {
    /// Payload for one or several places. An adversary's pieces begin and end at multiples of 8, as far as the payload does, and are
    /// written in any order, some of them in one step.
    pub(super) fn new(parts: Vec<(u64, Vec<u8>)>, context: &mut Context<'_>) -> Self {
        let piece = context.config.adversary.map_or(0, |adversary| u64::from(adversary.piece_bytes) & !7);
        if piece == 0 {
            return Self { pieces: parts.into(), at_once: usize::MAX };
        }
        let mut pieces = Vec::new();
        for (mut address, bytes) in parts {
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let here = (piece - address % piece).min(rest.len() as u64);
                let (first, behind) = rest.split_at(here as usize);
                pieces.push((address, first.to_vec()));
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
    pub(super) fn step(&mut self, context: &Context<'_>) -> Result<bool, NoMemory> {
        for _ in 0..self.at_once.min(self.pieces.len()) {
            if let Some((address, bytes)) = self.pieces.pop_front() {
                context.memory.write(address, &bytes)?;
            }
        }
        Ok(self.pieces.is_empty())
    }
}
