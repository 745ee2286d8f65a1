//! A send queue of NVIDIA ConnectX with a collapsed completion queue.
//!
//! The NIC acts on a store to the doorbell, whose value is how the last entry begins, and takes the producer from the doorbell record
//! (`MLX5_SND_DBR`). Hardware fetches up to the record whatever the doorbell's value; here entries count as known when a doorbell for
//! them has come, so that one that never comes is noticed. A completion of the collapsed queue says the index of the entry's first
//! block (`mlx5_cqe64`, `mlx5_err_cqe` of rdma-core's `mlx5dv.h`).

use std::collections::VecDeque;

use anabranch_hip::NoMemory;
use anabranch_transport_rdma::QueueWords;

use super::{Fetched, Ring};
use crate::decode::{Expected, POISON, mlx5};
use crate::memory::{NicMemory, word};
use crate::stopped::Stopped;
use crate::syndrome::Syndrome;

/// Bytes of a block.
const BLOCK: u64 = 64;
/// The send queue's word of the doorbell record.
const SEND_RECORD: u64 = 4;

/// Opcodes of completions: a request, and one that failed.
const REQUEST: u8 = 0;
const REQUEST_ERROR: u8 = 13;
/// Where a completion's last 8 bytes begin: what was asked, the index, and the opcode that makes it valid.
const CQE_END: usize = 56;
const CQE: usize = 64;

/// How an entry began that was fetched and not rung yet.
#[derive(Clone, Copy, Debug)]
struct Begun {
    position: u64,
    end: u64,
    first: [u8; 8],
    completes: bool,
}

/// What a doorbell said that is not checked yet.
#[derive(Clone, Copy, Debug)]
struct Ringing {
    position: u64,
    end: u64,
    value: [u8; 8],
}

#[derive(Debug)]
pub(crate) struct Mlx5Ring {
    words: QueueWords,
    most_inline: u32,
    /// What the doorbell said last.
    value: [u8; 8],
    /// Where the last doorbell's entry ends.
    rung: u64,
    /// Up to which may be fetched.
    producer: u64,
    fetched: u64,
    /// Up to which completions were told.
    told: u64,
    begun: VecDeque<Begun>,
    ringing: VecDeque<Ringing>,
}

impl Mlx5Ring {
    /// The queue of these words, and what its memory holds before the first entry: poison in the ring, zeros in the record and at the
    /// doorbell, and a completion that is none.
    pub(crate) fn start(
        memory: &dyn NicMemory,
        words: QueueWords,
        most_inline: u32,
    ) -> Result<Self, NoMemory> {
        let poison = vec![POISON; BLOCK as usize * words.entries as usize];
        memory.write(words.ring.0, &poison)?;
        memory.write(words.doorbell_record.0, &[0; 8])?;
        memory.write(words.doorbell.0, &[0; 8])?;
        memory.write(words.completions.0, &[0xff; CQE])?;
        Ok(Self {
            words,
            most_inline,
            value: [0; 8],
            rung: 0,
            producer: 0,
            fetched: 0,
            told: 0,
            begun: VecDeque::new(),
            ringing: VecDeque::new(),
        })
    }

    fn expected(&self) -> Expected {
        Expected {
            position: self.fetched,
            entries: self.words.entries,
            number: self.words.number,
            most_inline: self.most_inline,
        }
    }

    fn block_address(&self, position: u64) -> u64 {
        self.words.ring.0 + (position & u64::from(self.words.entries - 1)) * BLOCK
    }

    fn read_blocks(&self, memory: &dyn NicMemory, position: u64, blocks: u32) -> Result<Vec<u8>, NoMemory> {
        let mut bytes = vec![0; BLOCK as usize * blocks as usize];
        for (block, at) in bytes.chunks_exact_mut(BLOCK as usize).zip(position..) {
            memory.read(self.block_address(at), block)?;
        }
        Ok(bytes)
    }

    /// The producer as the record says it.
    fn recorded(&self, memory: &dyn NicMemory) -> Result<u64, Stopped> {
        let mut bytes = [0; 4];
        memory.read(self.words.doorbell_record.0 + SEND_RECORD, &mut bytes)?;
        let low = mlx5::record(bytes).map_err(|wrong| Stopped::Doorbell { position: self.rung, wrong })?;
        let ahead = low.wrapping_sub(self.rung as u16);
        // A queue has at most half of what 16 bits count.
        if ahead > u16::MAX / 2 + 1 {
            let behind = u64::from(low.wrapping_neg().wrapping_add(self.rung as u16));
            return Err(Stopped::RecordBehind {
                rung: self.rung,
                recorded: self.rung.saturating_sub(behind),
            });
        }
        let producer = self.rung + u64::from(ahead);
        if producer.saturating_sub(self.told) > u64::from(self.words.entries) {
            return Err(Stopped::Overrun { producer, told: self.told, entries: self.words.entries });
        }
        Ok(producer)
    }

    /// Every doorbell must have told how an entry begins that was fetched.
    fn check_rung(&mut self) -> Result<(), Stopped> {
        while let Some(ringing) = self.ringing.front().copied() {
            if ringing.end > self.fetched {
                break;
            }
            let given = u64::from_be_bytes(ringing.value);
            let mut last = None;
            while self.begun.front().is_some_and(|begun| begun.end <= ringing.end) {
                last = self.begun.pop_front();
            }
            let fits = |begun: &Begun| begun.position == ringing.position && begun.first == ringing.value;
            let Some(last) = last.filter(fits) else {
                return Err(Stopped::DoorbellValue { given, end: ringing.end });
            };
            if !last.completes {
                return Err(Stopped::NotCompleting { position: last.position });
            }
            self.ringing.pop_front();
        }
        Ok(())
    }

    /// A completion of an entry that asked for `asked`.
    fn cqe(&self, asked: u8, position: u64, opcode: u8, bit: bool) -> [u8; CQE] {
        let mut cqe = [0; CQE];
        let what = u32::from(asked) << 24 | self.words.number & 0x00ff_ffff;
        cqe[CQE_END..60].copy_from_slice(&what.to_be_bytes());
        cqe[60..62].copy_from_slice(&(position as u16).to_be_bytes());
        cqe[63] = opcode << 4 | u8::from(bit);
        cqe
    }

    /// The end last and in one piece: it makes the rest valid.
    fn write_cqe(&self, memory: &dyn NicMemory, cqe: &[u8; CQE]) -> Result<(), NoMemory> {
        memory.write(self.words.completions.0, &cqe[..CQE_END])?;
        memory.write(self.words.completions.0 + CQE_END as u64, &cqe[CQE_END..])
    }
}

impl Ring for Mlx5Ring {
    fn look(&mut self, memory: &dyn NicMemory, beyond: bool) -> Result<bool, Stopped> {
        let value = word(memory, self.words.doorbell.0)?;
        let news = value != self.value;
        if news {
            self.value = value;
            let position = self.rung;
            let said = mlx5::doorbell(value, self.words.number)
                .map_err(|wrong| Stopped::Doorbell { position, wrong })?;
            let ahead = said.index.wrapping_sub(self.rung as u16);
            if ahead > u16::MAX / 2 {
                return Err(Stopped::Backwards { index: said.index, rung: self.rung });
            }
            let recorded = self.recorded(memory)?;
            let position = self.rung + u64::from(ahead);
            let end = position + u64::from(said.blocks);
            if end > recorded {
                return Err(Stopped::RecordBehind { rung: end, recorded });
            }
            self.rung = end;
            self.producer = self.producer.max(end);
            self.ringing.push_back(Ringing { position, end, value });
            self.check_rung()?;
        }
        if beyond && self.rung > 0 {
            self.producer = self.producer.max(self.recorded(memory)?);
        }
        Ok(news)
    }

    fn fetch(&mut self, memory: &dyn NicMemory) -> Result<Option<Fetched>, Stopped> {
        if self.fetched == self.producer {
            return Ok(None);
        }
        let position = self.fetched;
        let wrong = |wrong| Stopped::Entry { position, wrong };
        let expected = self.expected();
        let first = self.read_blocks(memory, position, 1)?;
        let blocks = mlx5::blocks(&first, &expected).map_err(wrong)?;
        let end = position + u64::from(blocks);
        if end > self.producer {
            return Err(Stopped::Unfinished { position, blocks, producer: self.producer });
        }
        let bytes = self.read_blocks(memory, position, blocks)?;
        let entry = mlx5::entry(&bytes, &expected).map_err(wrong)?;
        let mut first = [0; 8];
        first.copy_from_slice(&bytes[..8]);
        self.begun.push_back(Begun { position, end, first, completes: entry.completes });
        self.fetched = end;
        self.check_rung()?;
        Ok(Some(Fetched { position, bytes, entry }))
    }

    fn is_settled(&self, memory: &dyn NicMemory) -> Result<(), Stopped> {
        match self.recorded(memory)? {
            recorded if recorded > self.rung => Err(Stopped::RecordAhead { rung: self.rung, recorded }),
            _ => Ok(()),
        }
    }

    fn release(&mut self, memory: &dyn NicMemory, done: &Fetched) -> Result<(), Stopped> {
        let position = done.position;
        if self.read_blocks(memory, position, done.entry.blocks)? != done.bytes {
            return Err(Stopped::Overwritten { position });
        }
        for at in position..done.end() {
            memory.write(self.block_address(at), &[POISON; BLOCK as usize])?;
        }
        self.told = done.end();
        Ok(())
    }

    fn tell(&mut self, memory: &dyn NicMemory, done: &Fetched, bit: bool) -> Result<(), NoMemory> {
        // The opcode is the last byte of the first word.
        self.write_cqe(memory, &self.cqe(done.bytes[3], done.position, REQUEST, bit))
    }

    fn tell_failure(
        &mut self,
        memory: &dyn NicMemory,
        position: u64,
        syndrome: Syndrome,
        vendor: u8,
    ) -> Result<(), NoMemory> {
        let mut cqe = self.cqe(0, position, REQUEST_ERROR, false);
        cqe[54] = vendor;
        cqe[55] = syndrome.number();
        self.write_cqe(memory, &cqe)
    }

    fn rung_anew(&mut self, memory: &dyn NicMemory) -> Option<u64> {
        let value = word(memory, self.words.doorbell.0).ok().filter(|value| *value != self.value)?;
        self.value = value;
        // The index stands behind the opcode's modifier. A completion carries no more of a position.
        Some(u64::from(u16::from_be_bytes([value[1], value[2]])))
    }

    fn next(&self) -> u64 {
        self.fetched
    }
}
