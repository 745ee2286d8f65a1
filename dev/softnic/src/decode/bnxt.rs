//! Send queue entries of Broadcom's `bnxt_re`: little-endian words, in slots of 16 bytes, three slots to an entry.
//!
//! Sources: `bnxt_re_bsqe`, `bnxt_re_rdma`, `bnxt_re_atomic`, `bnxt_re_sge`, `bnxt_re_msns`, `bnxt_re_wr_opcode`, `bnxt_re_wr_flags`
//! and `bnxt_re_db_mask` of rdma-core's `bnxt_re-abi.h`.

use super::field::Field;
use super::{AtomicOperation, Entry, Expected, POISON, Remote, Request, Segment, Source, Wrong};

/// Bytes of an entry, and of its slots.
pub const ENTRY_BYTES: u32 = 48;
/// Slots of an entry.
pub const SLOTS: u32 = 3;

// The header slot.
const OPCODE: Field = Field::new("wqe type", 0, 7, 0);
const SIZE: Field = Field::new("wqe size", 0, 23, 16);
const SIGNALED: Field = Field::new("signaled", 0, 8, 8);
const READ_FENCE: Field = Field::new("rd_fence", 0, 9, 9);
const FENCE: Field = Field::new("uc_fence", 0, 10, 10);
const INLINE: Field = Field::new("inline", 0, 12, 12);
const HEADER_ZERO: [Field; 3] = [
    Field::new("solicited event", 0, 11, 11),
    Field::new("debug and time stamp flags", 0, 15, 13),
    Field::new("reserved bits 24 to 31", 0, 31, 24),
];
const KEY_OR_IMMEDIATE: Field = Field::new("key_immd", 1, 31, 0);
const LENGTH: Field = Field::new("length", 2, 31, 0);
const LENGTH_ZERO: Field = Field::new("high half of the length", 3, 31, 0);

// The slot of a write or read.
const REMOTE_KEY: Field = Field::new("rkey", 6, 31, 0);
const REMOTE_ZERO: Field = Field::new("reserved word behind rkey", 7, 31, 0);

// The data segment.
const LOCAL_KEY: Field = Field::new("lkey", 10, 31, 0);
const LOCAL_LENGTH: Field = Field::new("length of the data segment", 11, 31, 0);

const WRITE: u32 = 0x04;
const WRITE_IMMEDIATE: u32 = 0x05;
const READ: u32 = 0x06;
const COMPARE_SWAP: u32 = 0x08;
const FETCH_ADD: u32 = 0x0b;

/// The most bytes of inline data: the third slot.
const MOST_INLINE: u32 = 16;

// The doorbell: the producer's slot and, in the high word, whose it is.
const PRODUCER: Field = Field::new("index of the doorbell", 0, 23, 0);
const EPOCH: Field = Field::new("epoch of the doorbell", 0, 24, 24);
const DOORBELL_ZERO: [Field; 5] = [
    Field::new("toggle of the doorbell", 0, 25, 25),
    Field::new("reserved bits 26 to 31 of the doorbell", 0, 31, 26),
    Field::new("reserved bits 52 to 57 of the doorbell", 1, 25, 20),
    Field::new("reserved bit 59 of the doorbell", 1, 27, 27),
    Field::new("type of the doorbell", 1, 31, 28),
];
const QUEUE: Field = Field::new("qid of the doorbell", 1, 19, 0);
const VALID: Field = Field::new("valid bit of the doorbell", 1, 26, 26);

/// Reads a doorbell of a ring with `entries`: the producer, counted in entries modulo twice the ring.
///
/// # Errors
/// [`Wrong`].
pub fn doorbell(bytes: [u8; 8], number: u32, entries: u32) -> Result<u32, Wrong> {
    let words = words(&bytes);
    for field in DOORBELL_ZERO {
        zero(field, &words)?;
    }
    differs(QUEUE, &words, number & 0x000f_ffff)?;
    differs(VALID, &words, 1)?;
    let slot = PRODUCER.of(&words);
    if !slot.is_multiple_of(SLOTS) || slot / SLOTS >= entries {
        return Err(Wrong::Meaning { field: PRODUCER.name, value: slot });
    }
    Ok(slot / SLOTS + EPOCH.of(&words) * entries)
}

/// Bytes of a row of the table of message sequence numbers (`bnxt_re_msns`).
pub const SEQUENCE_BYTES: u64 = 8;

/// Rows of the table of message sequence numbers beside a ring with `entries`. The NIC finds the packets of a message in the row of the
/// message's number modulo this: `msn_tbl_sz` of `bnxt_re_alloc_queues` in rdma-core's `providers/bnxt_re/verbs.c`, for entries of
/// variable size.
pub const fn sequence_rows(entries: u32) -> u32 {
    (entries * SLOTS).next_power_of_two() / 2
}

/// What the table of message sequence numbers says of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// The first slot.
    pub slot: u16,
    /// The first packet's number, 24 bits.
    pub first: u32,
    /// The number behind the last packet's.
    pub next: u32,
}

/// Reads an entry of the table of message sequence numbers.
pub fn sequence(bytes: [u8; 8]) -> Sequence {
    let value = u64::from_le_bytes(bytes);
    let number = |low: u32| (value >> low) as u32 & 0x00ff_ffff;
    Sequence { slot: (value >> 48) as u16, first: number(0), next: number(24) }
}

/// Reads an entry.
///
/// # Errors
/// [`Wrong`].
pub fn entry(bytes: &[u8], expected: &Expected) -> Result<Entry, Wrong> {
    if bytes.len() != ENTRY_BYTES as usize {
        let allowed = ENTRY_BYTES.to_string();
        return Err(Wrong::Bytes { what: "an entry", bytes: bytes.len() as u64, allowed });
    }
    if bytes[..16].iter().all(|byte| *byte == POISON) {
        return Err(Wrong::NotRewritten);
    }
    let words = words(bytes);
    for field in HEADER_ZERO {
        zero(field, &words)?;
    }
    differs(SIZE, &words, SLOTS)?;
    let waits = READ_FENCE.of(&words) == 1 || FENCE.of(&words) == 1;
    let completes = SIGNALED.of(&words) == 1;
    let request = request(bytes, &words, expected)?;
    Ok(Entry { blocks: 1, waits, completes, request })
}

fn request(bytes: &[u8], words: &[u32], expected: &Expected) -> Result<Request, Wrong> {
    let opcode = OPCODE.of(words);
    let is_inline = INLINE.of(words) == 1;
    if is_inline && opcode != WRITE {
        return Err(Wrong::Meaning { field: "inline of an opcode", value: opcode });
    }
    let key = KEY_OR_IMMEDIATE.of(words);
    match opcode {
        WRITE | WRITE_IMMEDIATE | READ => {
            zero(LENGTH_ZERO, words)?;
            zero(REMOTE_ZERO, words)?;
            let remote = Remote { address: pair(words, 4), key: REMOTE_KEY.of(words) };
            let length = LENGTH.of(words);
            if opcode != WRITE_IMMEDIATE {
                zero(KEY_OR_IMMEDIATE, words)?;
            }
            if opcode == READ {
                return Ok(Request::Read { targets: vec![data(words, length)?], remote });
            }
            let immediate = (opcode == WRITE_IMMEDIATE).then_some(key);
            let source = if is_inline {
                let most = MOST_INLINE.min(expected.most_inline);
                if length == 0 || length > most {
                    let allowed = format!("1 to {most}");
                    return Err(Wrong::Bytes { what: "inline data", bytes: length.into(), allowed });
                }
                Source::Inline(bytes[32..32 + length as usize].to_vec())
            } else if length == 0 && immediate.is_some() {
                Source::Gather(Vec::new())
            } else {
                Source::Gather(vec![data(words, length)?])
            };
            Ok(Request::Write { source, remote, immediate })
        }
        COMPARE_SWAP | FETCH_ADD => {
            let remote = Remote { address: pair(words, 2), key };
            let (swap, compare) = (pair(words, 4), pair(words, 6));
            let operation = if opcode == FETCH_ADD {
                AtomicOperation::FetchAdd { value: swap }
            } else {
                AtomicOperation::CompareSwap { compare, swap }
            };
            let target = data(words, 8)?;
            for (what, address) in [("remote address", remote.address), ("local address", target.address)] {
                if !address.is_multiple_of(8) {
                    return Err(Wrong::Misaligned { what, address, multiple: 8 });
                }
            }
            Ok(Request::Atomic { operation, target, remote })
        }
        _ => Err(Wrong::Opcode { opcode, modifier: 0 }),
    }
}

/// The data segment, which must be as long as the header says.
fn data(words: &[u32], length: u32) -> Result<Segment, Wrong> {
    differs(LOCAL_LENGTH, words, length)?;
    if length == 0 {
        return Err(Wrong::Bytes { what: "a data segment", bytes: 0, allowed: "1 and more".to_owned() });
    }
    Ok(Segment { address: pair(words, 8), bytes: length, key: LOCAL_KEY.of(words) })
}

fn words(bytes: &[u8]) -> Vec<u32> {
    let word = |chunk: &[u8]| chunk.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
    bytes.chunks_exact(4).map(word).collect()
}

/// 64 bits, the low half first.
fn pair(words: &[u32], word: usize) -> u64 {
    u64::from(words[word]) | u64::from(words[word + 1]) << 32
}

fn zero(field: Field, words: &[u32]) -> Result<(), Wrong> {
    differs(field, words, 0)
}

fn differs(field: Field, words: &[u32], expected: u32) -> Result<(), Wrong> {
    let given = field.of(words);
    if given == expected {
        Ok(())
    } else {
        Err(Wrong::Differs { field: field.name, given: given.into(), expected: expected.into() })
    }
}
