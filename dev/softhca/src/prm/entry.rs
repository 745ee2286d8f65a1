//! Entries of a send queue (WQE), read strictly: what the PRM reserves must be zero, and what has no meaning here is an error.

use super::Syndrome;
use super::field::Field;

/// Bytes of a segment; sizes of entries are counted in them.
pub(crate) const SEGMENT: usize = 16;
/// Bytes of a block, by which the queue's index counts.
pub(crate) const BLOCK: usize = 64;

// The control segment: `struct mlx5_wqe_ctrl_seg` of rdma-core's `mlx5dv.h`, by the PRM's table.
const OPCODE_MODIFIER: Field = Field::of_word(0, 31, 24);
const INDEX: Field = Field::of_word(0, 23, 8);
const OPCODE: Field = Field::of_word(0, 7, 0);
const QUEUE: Field = Field::of_word(1, 31, 8);
const RESERVED_BY_SIZE: Field = Field::of_word(1, 7, 6);
const SEGMENTS: Field = Field::of_word(1, 5, 0);
const SIGNATURE: Field = Field::of_word(2, 31, 24);
const DCI_STREAM: Field = Field::of_word(2, 23, 8);
const FENCE: Field = Field::of_word(2, 7, 5);
const RESERVED_BY_FENCE: Field = Field::of_word(2, 4, 4);
const COMPLETION: Field = Field::of_word(2, 3, 2);
// The remote address segment: `struct mlx5_wqe_raddr_seg`.
const REMOTE_ADDRESS: Field = Field::new(0, 64);
const REMOTE_KEY: Field = Field::of_word(2, 31, 0);
const REMOTE_RESERVED: Field = Field::of_word(3, 31, 0);
// A data segment: `struct mlx5_wqe_data_seg`, `struct mlx5_wqe_inl_data_seg`.
const IS_INLINE: Field = Field::of_word(0, 31, 31);
const BYTE_COUNT: Field = Field::of_word(0, 30, 0);
const LOCAL_KEY: Field = Field::of_word(1, 31, 0);
const LOCAL_ADDRESS: Field = Field::new(64, 64);
/// Bytes before the data of an inline segment.
const INLINE_HEAD: usize = 4;
/// What a byte count of zero means in a data segment with a pointer.
const BYTES_OF_ZERO: u64 = 1 << 31;

/// `MLX5_OPCODE_*` of `mlx5dv.h`; the masked ones as `MLX5_OPCODE_ATOMIC_MASKED_*`.
pub(crate) mod opcode {
    pub(crate) const NOP: u8 = 0x00;
    pub(crate) const WRITE: u8 = 0x08;
    pub(crate) const READ: u8 = 0x10;
    pub(crate) const COMPARE_SWAP: u8 = 0x11;
    pub(crate) const FETCH_ADD: u8 = 0x12;
    pub(crate) const MASKED_COMPARE_SWAP: u8 = 0x14;
    pub(crate) const MASKED_FETCH_ADD: u8 = 0x15;
    /// `MLX5_OPCODE_DUMP` of Linux's `include/linux/mlx5/device.h`; `mlx5dv.h` has no name for it.
    pub(crate) const DUMP: u8 = 0x23;
}

/// The opcode's modifier of masked atomics says their size: 8 and the logarithm of its words of 4 bytes (NVSHMEM's
/// `IBGDA_4_BYTE_EXT_AMO_OPMOD`, `IBGDA_8_BYTE_EXT_AMO_OPMOD`).
const MASKED_OF_4_BYTES: u64 = 0x08;
const MASKED_OF_8_BYTES: u64 = 0x09;
/// `MLX5_FENCE_MODE_*` end here.
const LAST_FENCE: u64 = 4;
/// `MLX5_WQE_CTRL_CQ_UPDATE`, of the field: a completion in any case. Zero: one where there is an error.
const COMPLETION_ALWAYS: u64 = 2;

/// The first segment of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Control {
    pub(crate) opcode: u8,
    pub(crate) index: u16,
    pub(crate) queue: u32,
    /// Of 16 bytes, this one included.
    pub(crate) segments: usize,
    pub(crate) is_signaled: bool,
}

impl Control {
    pub(crate) fn of(entry: &[u8]) -> Self {
        Self {
            opcode: OPCODE.get(entry) as u8,
            index: INDEX.get(entry) as u16,
            queue: QUEUE.get(entry) as u32,
            segments: SEGMENTS.get(entry) as usize,
            is_signaled: COMPLETION.get(entry) == COMPLETION_ALWAYS,
        }
    }

    /// Blocks that the entry takes in the queue.
    pub(crate) fn blocks(&self) -> u32 {
        (self.segments.div_ceil(BLOCK / SEGMENT)).max(1) as u32
    }
}

/// What of an entry's control segment breaks the rules for the entry `counter` of queue pair `number`, although no error reports it.
pub(crate) fn irregularities(entry: &[u8], number: u32, counter: u16) -> Vec<String> {
    let control = Control::of(entry);
    let mut found = Vec::new();
    if control.queue != number {
        found.push(format!("an entry of queue pair {number:#x} names {:#x}", control.queue));
    }
    if control.index != counter {
        found.push(format!("entry {counter} of queue pair {number:#x} says that it is {}", control.index));
    }
    let is_masked = [opcode::MASKED_COMPARE_SWAP, opcode::MASKED_FETCH_ADD].contains(&control.opcode);
    let zero = [RESERVED_BY_SIZE, RESERVED_BY_FENCE, DCI_STREAM, SIGNATURE];
    if zero.iter().any(|field| field.get(entry) != 0) || (!is_masked && OPCODE_MODIFIER.get(entry) != 0) {
        found.push(format!("entry {counter} sets bits that are reserved: {:02x?}", &entry[..SEGMENT]));
    }
    if FENCE.get(entry) > LAST_FENCE {
        found.push(format!("entry {counter} has fence mode {}", FENCE.get(entry)));
    }
    if ![0, COMPLETION_ALWAYS].contains(&COMPLETION.get(entry)) {
        found.push(format!("entry {counter} has completion mode {}", COMPLETION.get(entry)));
    }
    found
}

/// Sets a bit that must be zero.
pub(crate) fn damage(entry: &mut [u8]) {
    RESERVED_BY_FENCE.set(entry, 1);
}

/// Registered memory, by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Area {
    pub(crate) key: u32,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}

/// Where the bytes of a write come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Inline(Vec<u8>),
    Memory(Area),
}

/// How an atomic changes its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Adds; no carry leaves a bit of `boundary`.
    Add { value: u64, boundary: u64 },
    /// Puts the bits of `mask` there where those of `compare_mask` are equal.
    Swap { value: u64, compare: u64, mask: u64, compare_mask: u64 },
}

/// What an entry asks for. The areas of the remote side are as large as what is moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Nothing,
    Write {
        remote: Area,
        sources: Vec<Source>,
    },
    Read {
        remote: Area,
        targets: Vec<Area>,
    },
    /// The old value goes to `result`.
    Atomic {
        remote: Area,
        change: Change,
        result: Area,
    },
    /// Reads memory of this side, and drops what it has read.
    Dump {
        source: Area,
    },
}

/// A data segment and the bytes that it takes.
fn data(bytes: &[u8]) -> Result<(Source, usize), Syndrome> {
    if bytes.len() < INLINE_HEAD {
        return Err(Syndrome::LOCAL_LENGTH);
    }
    let count = BYTE_COUNT.get(bytes);
    if IS_INLINE.get(bytes) == 1 {
        let end = INLINE_HEAD + count as usize;
        let held = bytes.get(INLINE_HEAD..end).ok_or(Syndrome::LOCAL_LENGTH)?;
        return Ok((Source::Inline(held.to_vec()), end.next_multiple_of(SEGMENT)));
    }
    if bytes.len() < SEGMENT {
        return Err(Syndrome::LOCAL_LENGTH);
    }
    let area = Area {
        key: LOCAL_KEY.get(bytes) as u32,
        address: LOCAL_ADDRESS.get(bytes),
        bytes: if count == 0 { BYTES_OF_ZERO } else { count },
    };
    Ok((Source::Memory(area), SEGMENT))
}

/// The data segments of a write or read, to the entry's end.
fn list(mut bytes: &[u8]) -> Result<Vec<Source>, Syndrome> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let (source, taken) = data(bytes)?;
        found.push(source);
        bytes = bytes.get(taken..).unwrap_or_default();
    }
    Ok(found)
}

/// The remote address segment, for so many bytes.
fn remote(entry: &[u8], bytes: u64) -> Result<Area, Syndrome> {
    let segment = entry.get(SEGMENT..2 * SEGMENT).ok_or(Syndrome::LOCAL_LENGTH)?;
    if REMOTE_RESERVED.get(segment) != 0 {
        return Err(Syndrome::LOCAL_QP_OPERATION);
    }
    Ok(Area { key: REMOTE_KEY.get(segment) as u32, address: REMOTE_ADDRESS.get(segment), bytes })
}

fn in_memory(source: &Source) -> Result<Area, Syndrome> {
    match source {
        Source::Memory(area) => Ok(*area),
        Source::Inline(_) => Err(Syndrome::LOCAL_QP_OPERATION),
    }
}

fn copy(entry: &[u8], is_read: bool) -> Result<Operation, Syndrome> {
    let segments = entry.get(2 * SEGMENT..).ok_or(Syndrome::LOCAL_LENGTH)?;
    let sources = list(segments)?;
    let size = |source: &Source| match source {
        Source::Inline(bytes) => bytes.len() as u64,
        Source::Memory(area) => area.bytes,
    };
    let remote = remote(entry, sources.iter().map(size).sum())?;
    if is_read {
        let targets = sources.iter().map(in_memory).collect::<Result<_, _>>()?;
        return Ok(Operation::Read { remote, targets });
    }
    Ok(Operation::Write { remote, sources })
}

/// The arguments of an atomic: so many, each of so many bytes, behind the remote address.
fn arguments(entry: &[u8], count: usize, bytes: usize) -> Result<[u64; 4], Syndrome> {
    let segment = entry.get(2 * SEGMENT..).filter(|segment| segment.len() >= count * bytes);
    let segment = segment.ok_or(Syndrome::LOCAL_LENGTH)?;
    let mut found = [0; 4];
    for (index, value) in found.iter_mut().take(count).enumerate() {
        *value = Field::new(8 * bytes * index, 8 * bytes).get(segment);
    }
    Ok(found)
}

/// `struct mlx5_wqe_atomic_seg` and `struct mlx5_wqe_masked_atomic_seg`: what an atomic does, and the bytes of its arguments.
fn change(entry: &[u8], control: Control, bytes: usize) -> Result<(Change, usize), Syndrome> {
    match control.opcode {
        opcode::FETCH_ADD => {
            let [value, ..] = arguments(entry, 1, bytes)?;
            Ok((Change::Add { value, boundary: 0 }, SEGMENT))
        }
        opcode::COMPARE_SWAP => {
            let [value, compare, ..] = arguments(entry, 2, bytes)?;
            Ok((Change::Swap { value, compare, mask: u64::MAX, compare_mask: u64::MAX }, SEGMENT))
        }
        opcode::MASKED_FETCH_ADD => {
            let [value, boundary, ..] = arguments(entry, 2, bytes)?;
            Ok((Change::Add { value, boundary }, SEGMENT))
        }
        _ => {
            let [value, compare, mask, compare_mask] = arguments(entry, 4, bytes)?;
            Ok((Change::Swap { value, compare, mask, compare_mask }, 4 * bytes))
        }
    }
}

fn atomic(entry: &[u8], control: Control) -> Result<Operation, Syndrome> {
    let is_masked = control.opcode >= opcode::MASKED_COMPARE_SWAP;
    let bytes = match OPCODE_MODIFIER.get(entry) {
        MASKED_OF_4_BYTES if is_masked => 4,
        MASKED_OF_8_BYTES if is_masked => 8,
        _ if is_masked => return Err(Syndrome::LOCAL_QP_OPERATION),
        _ => 8,
    };
    let (change, taken) = change(entry, control, bytes)?;
    let at = 2 * SEGMENT + taken;
    if entry.len() != at + SEGMENT {
        return Err(Syndrome::LOCAL_LENGTH);
    }
    let result = in_memory(&data(&entry[at..])?.0)?;
    if result.bytes != bytes as u64 {
        return Err(Syndrome::LOCAL_QP_OPERATION);
    }
    let remote = remote(entry, bytes as u64)?;
    if !remote.address.is_multiple_of(bytes as u64) {
        return Err(Syndrome::REMOTE_INVALID_REQUEST);
    }
    Ok(Operation::Atomic { remote, change, result })
}

/// A control segment and one data segment with a pointer, as `struct mlx5e_dump_wqe` of Linux (`tx_post_resync_dump` in `ktls_tx.c`) and
/// `ibgda_write_dump_wqe` of NVSHMEM (`ibgda_device.cuh`) have it.
fn dump(entry: &[u8]) -> Result<Operation, Syndrome> {
    if entry.len() != 2 * SEGMENT {
        return Err(Syndrome::LOCAL_LENGTH);
    }
    Ok(Operation::Dump { source: in_memory(&data(&entry[SEGMENT..])?.0)? })
}

/// What an entry asks for; `entry` ends with its last segment.
pub(crate) fn decode(entry: &[u8]) -> Result<Operation, Syndrome> {
    let control = Control::of(entry);
    match control.opcode {
        opcode::NOP => Ok(Operation::Nothing),
        opcode::WRITE | opcode::READ => copy(entry, control.opcode == opcode::READ),
        opcode::FETCH_ADD | opcode::COMPARE_SWAP | opcode::MASKED_FETCH_ADD | opcode::MASKED_COMPARE_SWAP => {
            atomic(entry, control)
        }
        opcode::DUMP => dump(entry),
        _ => Err(Syndrome::LOCAL_QP_OPERATION),
    }
}

#[cfg(test)]
#[path = "entry_tests.rs"]
mod tests;
