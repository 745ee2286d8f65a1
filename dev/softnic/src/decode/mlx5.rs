//! Send queue entries of NVIDIA ConnectX: big-endian words, in units of 16 bytes, four units to a block.
//!
//! Sources: `mlx5_wqe_ctrl_seg`, `mlx5_wqe_raddr_seg`, `mlx5_wqe_data_seg`, `mlx5_wqe_inl_data_seg`, `mlx5_wqe_atomic_seg` and
//! `mlx5dv_set_ctrl_seg` of rdma-core's `mlx5dv.h`; the extended atomic operations (modifier 8 for 32 bits, 9 for 64, operands one
//! behind the other, the masks behind the values) after `UCT_IB_MLX5_OPMOD_EXT_ATOMIC` and the masked segments of UCX and NVSHMEM.

use super::field::{Field, pair};
use super::{AtomicOperation, Entry, Expected, POISON, Remote, Request, Segment, Source, Width, Wrong};

// The control segment.
const MODIFIER: Field = Field::new("opcode modifier", 0, 31, 24);
const INDEX: Field = Field::new("wqe_index", 0, 23, 8);
const OPCODE: Field = Field::new("opcode", 0, 7, 0);
const NUMBER: Field = Field::new("qpn", 1, 31, 8);
const UNITS: Field = Field::new("ds", 1, 5, 0);
const FENCE: Field = Field::new("fm", 2, 7, 5);
const COMPLETION: Field = Field::new("ce", 2, 3, 2);
const IMMEDIATE: Field = Field::new("imm", 3, 31, 0);
/// Must be zero: no signatures, no streams, no solicited events are in use.
const CONTROL_ZERO: [Field; 6] = [
    Field::new("reserved bits beside ds", 1, 7, 6),
    Field::new("signature", 2, 31, 24),
    Field::new("dci_stream_channel_id", 2, 23, 8),
    Field::new("reserved bit 4 of fm_ce_se", 2, 4, 4),
    Field::new("se", 2, 1, 1),
    Field::new("reserved bit 0 of fm_ce_se", 2, 0, 0),
];

// The remote address segment, behind the address of 64 bits.
const REMOTE_KEY: Field = Field::new("rkey", 2, 31, 0);
const REMOTE_ZERO: Field = Field::new("reserved word of the remote address segment", 3, 31, 0);

// A data segment, before the address of 64 bits.
const INLINE: Field = Field::new("inline bit", 0, 31, 31);
const BYTE_COUNT: Field = Field::new("byte_count", 0, 30, 0);
const LOCAL_KEY: Field = Field::new("lkey", 1, 31, 0);

const NOP: u32 = 0x00;
const WRITE: u32 = 0x08;
const WRITE_IMMEDIATE: u32 = 0x09;
const READ: u32 = 0x10;
const COMPARE_SWAP: u32 = 0x11;
const FETCH_ADD: u32 = 0x12;
const MASKED_COMPARE_SWAP: u32 = 0x14;
const MASKED_FETCH_ADD: u32 = 0x15;
/// `MLX5_OPCODE_DUMP` of Linux's `include/linux/mlx5/device.h`; a control and a data segment, as in `mlx5e_dump_wqe` of its `ktls_tx.c`.
const DUMP: u32 = 0x23;

/// Extended atomic operations of 32 and 64 bits.
const MODIFIER_FOUR: u32 = 8;
const MODIFIER_EIGHT: u32 = 9;

/// Bytes of a unit, and of a block.
const UNIT: usize = 16;
const BLOCK: usize = 64;
/// Words of a unit.
const WORDS: usize = 4;
/// The most units of an entry: four blocks less one unit, in four bits where a NIC is set to those.
const MOST_UNITS: u32 = 15;

/// What a doorbell says: the first 8 bytes of the control segment of the last entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rung {
    /// The low 16 bits of the entry's position.
    pub index: u16,
    /// Number of the queue pair.
    pub number: u32,
    /// Blocks of the entry.
    pub blocks: u32,
}

/// Reads what was stored at the doorbell, in memory order.
///
/// # Errors
/// [`Wrong`], of what can be seen without the entry.
pub fn doorbell(bytes: [u8; 8], number: u32) -> Result<Rung, Wrong> {
    let words = words(&bytes);
    differs(NUMBER, &words, number)?;
    zero(CONTROL_ZERO[0], &words)?;
    let units = UNITS.of(&words);
    if units == 0 || units > MOST_UNITS {
        return Err(Wrong::Units { units, opcode: OPCODE.of(&words), allowed: "1 to 15" });
    }
    Ok(Rung { index: INDEX.of(&words) as u16, number, blocks: units.div_ceil(4) })
}

/// Reads what the doorbell record says of the send queue: the producer's low 16 bits.
///
/// # Errors
/// [`Wrong::Reserved`] where more than 16 bits are set.
pub fn record(bytes: [u8; 4]) -> Result<u16, Wrong> {
    let value = u32::from_be_bytes(bytes);
    if value >> 16 != 0 {
        return Err(Wrong::Reserved { field: "high half of the doorbell record", value: value.into() });
    }
    Ok(value as u16)
}

/// How many blocks the entry takes that begins with this block.
///
/// # Errors
/// [`Wrong`], of what the control segment shows.
pub fn blocks(block: &[u8], expected: &Expected) -> Result<u32, Wrong> {
    if block.iter().take(UNIT).all(|byte| *byte == POISON) {
        return Err(Wrong::NotRewritten);
    }
    let words = words(&block[..UNIT.min(block.len())]);
    let index = Wrong::Differs {
        field: INDEX.name,
        given: INDEX.of(&words).into(),
        expected: expected.position & 0xffff,
    };
    if u64::from(INDEX.of(&words)) != expected.position & 0xffff {
        return Err(index);
    }
    differs(NUMBER, &words, expected.number)?;
    let units = UNITS.of(&words);
    if units == 0 || units > MOST_UNITS {
        return Err(Wrong::Units { units, opcode: OPCODE.of(&words), allowed: "1 to 15" });
    }
    Ok(units.div_ceil(4))
}

/// Reads an entry; `bytes` are all of its blocks.
///
/// # Errors
/// [`Wrong`].
pub fn entry(bytes: &[u8], expected: &Expected) -> Result<Entry, Wrong> {
    let blocks = blocks(bytes, expected)?;
    let whole = blocks as usize * BLOCK;
    if bytes.len() != whole {
        let allowed = whole.to_string();
        return Err(Wrong::Bytes { what: "the entry's blocks", bytes: bytes.len() as u64, allowed });
    }
    let all = words(bytes);
    for field in CONTROL_ZERO {
        zero(field, &all)?;
    }
    let units = UNITS.of(&all);
    let waits = match FENCE.of(&all) {
        0 => false,
        // A small fence of the initiator, and a fence.
        1 | 4 => true,
        value => return Err(Wrong::Meaning { field: FENCE.name, value }),
    };
    let completes = match COMPLETION.of(&all) {
        0 => false,
        2 => true,
        value => return Err(Wrong::Meaning { field: COMPLETION.name, value }),
    };
    let segments = Segments { bytes, words: &all, units, opcode: OPCODE.of(&all) };
    let request = request(&segments, &all, expected)?;
    Ok(Entry { blocks, waits, completes, request })
}

fn request(segments: &Segments<'_>, all: &[u32], expected: &Expected) -> Result<Request, Wrong> {
    let (opcode, modifier) = (segments.opcode, MODIFIER.of(all));
    let width = match (opcode, modifier) {
        (NOP | WRITE | WRITE_IMMEDIATE | READ | COMPARE_SWAP | FETCH_ADD | DUMP, 0)
        | (MASKED_COMPARE_SWAP | MASKED_FETCH_ADD, MODIFIER_EIGHT) => Width::Eight,
        (MASKED_COMPARE_SWAP | MASKED_FETCH_ADD, MODIFIER_FOUR) => Width::Four,
        _ => return Err(Wrong::Opcode { opcode, modifier }),
    };
    if opcode != WRITE_IMMEDIATE {
        zero(IMMEDIATE, all)?;
    }
    match opcode {
        NOP => segments.exactly(1, "1").map(|()| Request::Nop),
        DUMP => {
            segments.exactly(2, "2")?;
            Ok(Request::Dump { source: segments.data(1)? })
        }
        WRITE => {
            let remote = segments.remote()?;
            Ok(Request::Write { source: segments.source(2, expected.most_inline)?, remote, immediate: None })
        }
        WRITE_IMMEDIATE => {
            let remote = segments.remote()?;
            // Kernels store it as the wire has it, its first byte first.
            let immediate = Some(IMMEDIATE.of(all));
            let source = if segments.units == 2 {
                Source::Gather(Vec::new())
            } else {
                segments.source(2, expected.most_inline)?
            };
            Ok(Request::Write { source, remote, immediate })
        }
        READ => {
            let remote = segments.remote()?;
            match segments.source(2, 0)? {
                Source::Gather(targets) => Ok(Request::Read { targets, remote }),
                Source::Inline(bytes) => Err(Wrong::Bytes {
                    what: "inline data of a read",
                    bytes: bytes.len() as u64,
                    allowed: "none".to_owned(),
                }),
            }
        }
        _ => atomic(segments, width),
    }
}

fn atomic(segments: &Segments<'_>, width: Width) -> Result<Request, Wrong> {
    let wide_compare = segments.opcode == MASKED_COMPARE_SWAP && width == Width::Eight;
    let operand_units = if wide_compare { 2 } else { 1 };
    segments.exactly(3 + operand_units, if wide_compare { "5" } else { "4" })?;
    let remote = segments.remote()?;
    let operands = &segments.words[2 * WORDS..];
    let half = |index: usize| u64::from(operands[index]);
    let whole = |index: usize| pair(operands, index * 2);
    let operation = match (segments.opcode, width) {
        // What is compared means nothing to an addition; drivers leave it unwritten.
        (FETCH_ADD, _) => AtomicOperation::FetchAdd { value: whole(0) },
        (COMPARE_SWAP, _) => AtomicOperation::CompareSwap { swap: whole(0), compare: whole(1) },
        (MASKED_FETCH_ADD, Width::Four) => {
            zero(Field::new("reserved half of the operands", 2, 31, 0), operands)?;
            zero(Field::new("reserved half of the operands", 3, 31, 0), operands)?;
            AtomicOperation::MaskedFetchAdd { width, value: half(0), boundary: half(1) }
        }
        (MASKED_FETCH_ADD, Width::Eight) => {
            AtomicOperation::MaskedFetchAdd { width, value: whole(0), boundary: whole(1) }
        }
        (_, Width::Four) => AtomicOperation::MaskedCompareSwap {
            width,
            swap: half(0),
            compare: half(1),
            swap_mask: half(2),
            compare_mask: half(3),
        },
        (_, Width::Eight) => AtomicOperation::MaskedCompareSwap {
            width,
            swap: whole(0),
            compare: whole(1),
            swap_mask: whole(2),
            compare_mask: whole(3),
        },
    };
    let bytes = width.bytes();
    if !remote.address.is_multiple_of(bytes.into()) {
        return Err(Wrong::Misaligned { what: "remote address", address: remote.address, multiple: bytes });
    }
    let target = segments.data(2 + operand_units)?;
    if target.bytes != bytes {
        return Err(Wrong::Bytes {
            what: "the old value's segment",
            bytes: target.bytes.into(),
            allowed: bytes.to_string(),
        });
    }
    if !target.address.is_multiple_of(bytes.into()) {
        return Err(Wrong::Misaligned { what: "local address", address: target.address, multiple: bytes });
    }
    Ok(Request::Atomic { operation, target, remote })
}

/// The segments of an entry.
struct Segments<'a> {
    bytes: &'a [u8],
    words: &'a [u32],
    units: u32,
    opcode: u32,
}

impl Segments<'_> {
    fn exactly(&self, units: u32, allowed: &'static str) -> Result<(), Wrong> {
        if self.units == units { Ok(()) } else { Err(self.units(allowed)) }
    }

    fn units(&self, allowed: &'static str) -> Wrong {
        Wrong::Units { units: self.units, opcode: self.opcode, allowed }
    }

    fn unit(&self, unit: u32) -> &[u32] {
        &self.words[unit as usize * WORDS..][..WORDS]
    }

    fn remote(&self) -> Result<Remote, Wrong> {
        if self.units < 2 {
            return Err(self.units("2 and more"));
        }
        let words = self.unit(1);
        zero(REMOTE_ZERO, words)?;
        Ok(Remote { address: pair(words, 0), key: REMOTE_KEY.of(words) })
    }

    fn data(&self, unit: u32) -> Result<Segment, Wrong> {
        let words = self.unit(unit);
        let bytes = BYTE_COUNT.of(words);
        if INLINE.of(words) == 1 {
            let what = "inline data among segments";
            return Err(Wrong::Bytes { what, bytes: bytes.into(), allowed: "none".to_owned() });
        }
        // Hardware takes none for 2 GiB.
        if bytes == 0 {
            let allowed = "1 and more".to_owned();
            return Err(Wrong::Bytes { what: "a data segment", bytes: 0, allowed });
        }
        Ok(Segment { address: pair(words, 2), bytes, key: LOCAL_KEY.of(words) })
    }

    /// Inline data or data segments, from a unit to the end.
    fn source(&self, from: u32, most_inline: u32) -> Result<Source, Wrong> {
        if self.units <= from {
            return Err(self.units("a data segment or inline data"));
        }
        if INLINE.of(self.unit(from)) == 0 {
            return (from..self.units)
                .map(|unit| self.data(unit))
                .collect::<Result<_, _>>()
                .map(Source::Gather);
        }
        let count = BYTE_COUNT.of(self.unit(from));
        if count == 0 || count > most_inline {
            let allowed = format!("1 to {most_inline}");
            return Err(Wrong::Bytes { what: "inline data", bytes: count.into(), allowed });
        }
        if self.units != from + (4 + count).div_ceil(16) {
            return Err(self.units("as many units as its inline data"));
        }
        let start = from as usize * UNIT + 4;
        Ok(Source::Inline(self.bytes[start..start + count as usize].to_vec()))
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    let word = |chunk: &[u8]| chunk.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
    bytes.chunks_exact(4).map(word).collect()
}

fn zero(field: Field, words: &[u32]) -> Result<(), Wrong> {
    match field.of(words) {
        0 => Ok(()),
        value => Err(Wrong::Reserved { field: field.name, value: value.into() }),
    }
}

fn differs(field: Field, words: &[u32], expected: u32) -> Result<(), Wrong> {
    let given = field.of(words);
    if given == expected {
        Ok(())
    } else {
        Err(Wrong::Differs { field: field.name, given: given.into(), expected: expected.into() })
    }
}
