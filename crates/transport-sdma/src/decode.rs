//! The words of a ring, read as an engine reads them. Shares nothing with the encoder but what it gives: [`Packet`]; the bits are
//! written out here once more, after the driver's headers. Stricter than hardware, which takes wrong packets for others: whatever
//! is not in a known form is refused with its position.

use crate::generation::Generation;
use crate::packet::Packet;

/// What an engine refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("word {word}: {what}")]
pub struct Refused {
    pub word: usize,
    pub what: Wrong,
}

/// What is wrong with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Wrong {
    #[error("op {op} with sub op {sub_op} is no packet")]
    Unknown {
        /// Bits 7:0.
        op: u32,
        /// Bits 15:8.
        sub_op: u32,
    },
    #[error("a packet of {needed} words, and {left} are left")]
    Short { needed: usize, left: usize },
    #[error("word {index} of the packet is {value:#010x}, where {bits:#010x} must be zero")]
    Reserved { index: usize, value: u32, bits: u32 },
    #[error("address {address:#x} is not a multiple of {multiple}")]
    Misaligned { address: u64, multiple: u64 },
    #[error("{bytes} bytes, and the engine takes at most {most}")]
    TooLong { bytes: u64, most: u64 },
    #[error("{what} {value} is not known")]
    Meaning { what: &'static str, value: u32 },
}

/// Reads one packet at `words[0]`, and how many words it takes, with those that it carries or passes over. `words` ends where the
/// ring ends or the write pointer stands.
///
/// # Errors
/// [`Wrong`].
pub fn packet(words: &[u32], generation: &Generation) -> Result<(Packet, usize), Wrong> {
    let Some(&head) = words.first() else { return Err(Wrong::Short { needed: 1, left: 0 }) };
    let (op, sub_op) = (head & 0xff, (head >> 8) & 0xff);
    let reader = Reader { words };
    match (op, sub_op) {
        (0x00, 0) => {
            reader.zero(0, 0xc000_0000)?;
            let skip = (head >> 16) & 0x3fff;
            reader.has(1 + skip as usize)?;
            Ok((Packet::Nop { skip }, 1 + skip as usize))
        }
        (0x01, 0) => copy(&reader, generation),
        (0x05, 0) => {
            reader.has(4)?;
            reader.zero(0, 0xfff8_0000)?;
            let memory_type = (head >> 16) & 7;
            if memory_type != generation.fence_memory_type {
                return Err(Wrong::Meaning { what: "memory type", value: memory_type });
            }
            Ok((Packet::Fence { address: reader.address(1, 4)?, value: words[3] }, 4))
        }
        (0x0a, 0) => {
            reader.has(8)?;
            reader.zero(0, 0x01ff_0000)?;
            let operation = head >> 25;
            if operation != 0x2f {
                return Err(Wrong::Meaning { what: "atomic operation", value: operation });
            }
            for index in 5..8 {
                reader.zero(index, u32::MAX)?;
            }
            Ok((Packet::Add { address: reader.address(1, 8)?, value: reader.pair(3) }, 8))
        }
        _ => Err(Wrong::Unknown { op, sub_op }),
    }
}

/// Reads all packets of a run of words.
///
/// # Errors
/// [`Refused`]: the first packet that is wrong, and where it begins.
pub fn packets(words: &[u32], generation: &Generation) -> Result<Vec<Packet>, Refused> {
    let mut found = Vec::new();
    let mut word = 0;
    while word < words.len() {
        let (packet, taken) = packet(&words[word..], generation).map_err(|what| Refused { word, what })?;
        found.push(packet);
        word += taken;
    }
    Ok(found)
}

struct Reader<'a> {
    words: &'a [u32],
}

impl Reader<'_> {
    fn has(&self, needed: usize) -> Result<(), Wrong> {
        let left = self.words.len();
        if needed > left { Err(Wrong::Short { needed, left }) } else { Ok(()) }
    }

    fn zero(&self, index: usize, bits: u32) -> Result<(), Wrong> {
        let value = self.words[index];
        if value & bits != 0 { Err(Wrong::Reserved { index, value, bits }) } else { Ok(()) }
    }

    fn pair(&self, index: usize) -> u64 {
        u64::from(self.words[index]) | u64::from(self.words[index + 1]) << 32
    }

    fn address(&self, index: usize, multiple: u64) -> Result<u64, Wrong> {
        let address = self.pair(index);
        if address.is_multiple_of(multiple) {
            Ok(address)
        } else {
            Err(Wrong::Misaligned { address, multiple })
        }
    }
}

fn copy(reader: &Reader<'_>, generation: &Generation) -> Result<(Packet, usize), Wrong> {
    reader.has(7)?;
    reader.zero(0, 0xffff_0000)?;
    reader.zero(2, u32::MAX)?;
    reader.zero(1, !((1u32 << generation.copy_count_bits) - 1))?;
    let bytes = reader.words[1] + 1;
    if bytes > generation.most_copy_bytes {
        return Err(Wrong::TooLong { bytes: bytes.into(), most: generation.most_copy_bytes.into() });
    }
    Ok((Packet::Copy { source: reader.pair(3), destination: reader.pair(5), bytes }, 7))
}
