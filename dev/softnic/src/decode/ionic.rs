//! Send queue entries of AMD's ionic: entries of 64 bytes, fields big-endian but for the index.
//!
//! Sources: `ionic_v1_base_hdr`, `ionic_v1_common_bdy`, `ionic_v2_atomic_bdy`, `ionic_v1_op` (flags) and `ionic_v2_op` of
//! `ionic_fw_types.h` in rdma-core's provider.

use super::field::{Field, pair};
use super::{AtomicOperation, Entry, Expected, POISON, Remote, Request, Segment, Source, Wrong};

/// Bytes of an entry.
pub const ENTRY_BYTES: u32 = 64;
/// Where the flags lie.
pub const FLAGS_AT: usize = 10;
/// The flag that tells laps apart, in the low byte of the flags: set in the first lap and in every second one.
pub const COLOUR: u8 = 0x10;

// The base header; its first 8 bytes are the index.
const OPCODE: Field = Field::new("op", 2, 31, 24);
const SEGMENTS: Field = Field::new("num_sge_key", 2, 23, 16);
const FENCE: Field = Field::new("fence", 2, 0, 0);
const SOLICITED: Field = Field::new("solicited event", 2, 1, 1);
const INLINE: Field = Field::new("inline", 2, 2, 2);
const SIGNALED: Field = Field::new("signaled", 2, 3, 3);
const COLOUR_BIT: Field = Field::new("colour", 2, 4, 4);
const FLAGS_ZERO: Field = Field::new("reserved flags", 2, 15, 5);
const IMMEDIATE: Field = Field::new("imm_data_key", 3, 31, 0);

// The body, behind the address of 64 bits.
const REMOTE_KEY: Field = Field::new("rkey", 6, 31, 0);
const LENGTH: Field = Field::new("length", 7, 31, 0);
const SEGMENT_LENGTH: Field = Field::new("length of the segment", 10, 31, 0);
const SEGMENT_KEY: Field = Field::new("lkey", 11, 31, 0);
const ATOMIC_KEY: Field = Field::new("lkey of an atomic operation", 11, 31, 0);

const WRITE: u32 = 0x21;
const WRITE_IMMEDIATE: u32 = 0x61;
const READ: u32 = 0x02;
const COMPARE_SWAP: u32 = 0x04;
const FETCH_ADD: u32 = 0x05;

/// The most bytes of inline data: where two segments would be.
const MOST_INLINE: u32 = 32;

/// Whether an entry of this position has the colour.
pub fn has_colour(position: u64, entries: u32) -> bool {
    position & u64::from(entries) == 0
}

/// Reads a doorbell of a ring with `entries`, whose owner's value is `value`: the producer modulo the ring.
///
/// # Errors
/// [`Wrong`].
pub fn doorbell(rung: u64, value: u64, entries: u32) -> Result<u32, Wrong> {
    let differs = rung ^ value;
    if differs >= u64::from(entries) || value & u64::from(entries - 1) != 0 {
        return Err(Wrong::Differs {
            field: "the owner's part of the doorbell",
            given: rung,
            expected: value,
        });
    }
    Ok(differs as u32)
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
    // All but the flags, whose colour stays.
    if bytes[..8].iter().chain(&bytes[16..]).all(|byte| *byte == POISON) {
        return Err(Wrong::NotRewritten);
    }
    let words = words(bytes);
    let index = u64::from_le_bytes(words_of_index(bytes));
    let mask = u64::from(expected.entries - 1);
    // Drivers count on, or within the ring.
    if index != expected.position & mask && index != expected.position {
        let (field, expected) = ("wqe_idx", expected.position);
        return Err(Wrong::Differs { field, given: index, expected });
    }
    differs(COLOUR_BIT, &words, u32::from(has_colour(expected.position, expected.entries)))?;
    differs(FLAGS_ZERO, &words, 0)?;
    differs(SOLICITED, &words, 0)?;
    let (waits, completes) = (FENCE.of(&words) == 1, SIGNALED.of(&words) == 1);
    let request = request(bytes, &words, expected)?;
    Ok(Entry { blocks: 1, waits, completes, request })
}

fn request(bytes: &[u8], words: &[u32], expected: &Expected) -> Result<Request, Wrong> {
    let opcode = OPCODE.of(words);
    let is_inline = INLINE.of(words) == 1;
    if is_inline && opcode != WRITE {
        return Err(Wrong::Meaning { field: "inline of an op", value: opcode });
    }
    if opcode != WRITE_IMMEDIATE {
        differs(IMMEDIATE, words, 0)?;
    }
    let remote = Remote { address: pair(words, 4), key: REMOTE_KEY.of(words) };
    match opcode {
        WRITE | WRITE_IMMEDIATE | READ => {
            let length = LENGTH.of(words);
            let immediate = (opcode == WRITE_IMMEDIATE).then_some(IMMEDIATE.of(words));
            if is_inline {
                differs(SEGMENTS, words, 0)?;
                let most = MOST_INLINE.min(expected.most_inline);
                if length == 0 || length > most {
                    let allowed = format!("1 to {most}");
                    return Err(Wrong::Bytes { what: "inline data", bytes: length.into(), allowed });
                }
                let source = Source::Inline(bytes[32..32 + length as usize].to_vec());
                return Ok(Request::Write { source, remote, immediate });
            }
            if length == 0 && immediate.is_some() {
                differs(SEGMENTS, words, 0)?;
                return Ok(Request::Write { source: Source::Gather(Vec::new()), remote, immediate });
            }
            differs(SEGMENTS, words, 1)?;
            differs(SEGMENT_LENGTH, words, length)?;
            if length == 0 {
                return Err(Wrong::Bytes { what: "a segment", bytes: 0, allowed: "1 and more".to_owned() });
            }
            let segment = Segment { address: pair(words, 8), bytes: length, key: SEGMENT_KEY.of(words) };
            if opcode == READ {
                return Ok(Request::Read { targets: vec![segment], remote });
            }
            Ok(Request::Write { source: Source::Gather(vec![segment]), remote, immediate })
        }
        COMPARE_SWAP | FETCH_ADD => {
            differs(SEGMENTS, words, 1)?;
            let (swap, compare) = (pair(words, 7), pair(words, 9));
            let operation = if opcode == FETCH_ADD {
                AtomicOperation::FetchAdd { value: swap }
            } else {
                AtomicOperation::CompareSwap { compare, swap }
            };
            let target = Segment { address: pair(words, 12), bytes: 8, key: ATOMIC_KEY.of(words) };
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

fn words_of_index(bytes: &[u8]) -> [u8; 8] {
    let mut index = [0; 8];
    index.copy_from_slice(&bytes[..8]);
    index
}

fn words(bytes: &[u8]) -> Vec<u32> {
    let word = |chunk: &[u8]| chunk.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
    bytes.chunks_exact(4).map(word).collect()
}

fn differs(field: Field, words: &[u32], expected: u32) -> Result<(), Wrong> {
    let given = field.of(words);
    if given == expected {
        Ok(())
    } else {
        Err(Wrong::Differs { field: field.name, given: given.into(), expected: expected.into() })
    }
}
