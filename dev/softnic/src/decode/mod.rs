//! Entries of send queues, read as NICs read them.
//!
//! Shares nothing with what writes them: each format is a table of fields typed from public descriptions. Stricter than hardware,
//! which takes a wrong entry for another: whatever is not said in a known way is refused.

pub mod bnxt;
mod field;
pub mod ionic;
pub mod mlx5;
mod wrong;

pub use wrong::Wrong;

/// What an entry of a send queue asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Blocks of 64 bytes that it takes.
    pub blocks: u32,
    /// Whether it waits until all reads and atomic operations before it are done.
    pub waits: bool,
    /// Whether its completion is to be told.
    pub completes: bool,
    /// What is asked for.
    pub request: Request,
}

/// A request of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Nothing.
    Nop,
    /// Bytes of this side that are read and dropped.
    Dump {
        /// What is read.
        source: Segment,
    },
    /// Bytes to the peer.
    Write {
        /// What is written.
        source: Source,
        /// Where to.
        remote: Remote,
        /// What the peer's receive queue gets behind the bytes, in host byte order.
        immediate: Option<u32>,
    },
    /// Bytes from the peer, into the segments in their order.
    Read {
        /// Where to.
        targets: Vec<Segment>,
        /// Where from.
        remote: Remote,
    },
    /// An atomic operation at the peer; the old value goes to `target`.
    Atomic {
        /// Which.
        operation: AtomicOperation,
        /// Of as many bytes as the operation is wide.
        target: Segment,
        /// Where.
        remote: Remote,
    },
}

/// A range of registered memory of this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its first byte.
    pub address: u64,
    /// Bytes, more than none.
    pub bytes: u32,
    /// The local key.
    pub key: u32,
}

/// A place at the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The address.
    pub address: u64,
    /// The peer's remote key.
    pub key: u32,
}

/// Where written bytes come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The entry itself.
    Inline(Vec<u8>),
    /// Registered memory, in this order.
    Gather(Vec<Segment>),
}

impl Source {
    /// Bytes of it.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Gather(segments) => segments.iter().map(|segment| u64::from(segment.bytes)).sum(),
        }
    }
}

/// An atomic operation, with values in host byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOperation {
    /// Adds 64 bits; wraps.
    FetchAdd {
        /// What is added.
        value: u64,
    },
    /// Stores 64 bits where `compare` is.
    CompareSwap {
        /// What is expected.
        compare: u64,
        /// What is stored.
        swap: u64,
    },
    /// Adds fields of a word: nothing is carried out of a bit that is set in `boundary`.
    MaskedFetchAdd {
        /// The word's width.
        width: Width,
        /// What is added.
        value: u64,
        /// The highest bits of the fields; none is one field.
        boundary: u64,
    },
    /// Stores the bits of `swap_mask` where those of `compare_mask` are as in `compare`.
    MaskedCompareSwap {
        /// The word's width.
        width: Width,
        /// What is expected.
        compare: u64,
        /// Which bits are compared.
        compare_mask: u64,
        /// What is stored.
        swap: u64,
        /// Which bits are stored.
        swap_mask: u64,
    },
}

/// The width of the word of a masked atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// 32 bits.
    Four,
    /// 64 bits.
    Eight,
}

impl Width {
    /// Bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::Four => 4,
            Self::Eight => 8,
        }
    }
}

impl AtomicOperation {
    /// The word's width.
    pub const fn width(&self) -> Width {
        match self {
            Self::FetchAdd { .. } | Self::CompareSwap { .. } => Width::Eight,
            Self::MaskedFetchAdd { width, .. } | Self::MaskedCompareSwap { width, .. } => *width,
        }
    }

    /// What becomes of an old value; a word of 32 bits is the low half.
    pub fn apply(&self, old: u64) -> u64 {
        match *self {
            Self::FetchAdd { value } => old.wrapping_add(value),
            Self::CompareSwap { compare, swap } => {
                if old == compare {
                    swap
                } else {
                    old
                }
            }
            Self::MaskedFetchAdd { width, value, boundary } => {
                let mut sum = 0;
                let mut carry = 0;
                for bit in 0..width.bytes() * 8 {
                    let here = (old >> bit & 1) + (value >> bit & 1) + carry;
                    sum |= (here & 1) << bit;
                    carry = if boundary >> bit & 1 == 1 { 0 } else { here >> 1 };
                }
                sum
            }
            Self::MaskedCompareSwap { compare, compare_mask, swap, swap_mask, .. } => {
                if (old ^ compare) & compare_mask == 0 { old & !swap_mask | swap & swap_mask } else { old }
            }
        }
    }
}

/// What a NIC knows of an entry before it reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The position of its first block, a running count of blocks.
    pub position: u64,
    /// Blocks of the ring, a power of two.
    pub entries: u32,
    /// Number of the queue pair.
    pub number: u32,
    /// The most bytes that an entry may carry itself.
    pub most_inline: u32,
}

/// What a NIC writes over blocks that it is done with: an entry that still has it was not written anew.
pub const POISON: u8 = 0xdb;
