//! Packets, and the words that they are.

use crate::error::{Error, Result};
use crate::format::{ATOMIC_ADD_64, Field, Format, atomic, copy, fence, nop};
use crate::generation::Generation;

/// An engine's packets. Addresses are those of the GPU that owns the engine. Packets of one ring are done in order, but copies
/// may overlap: a fence or an atomic says that the copies before it are done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Packet {
    /// Nothing; the engine passes over `skip` words behind this one.
    Nop {
        /// Words, at most 16383.
        skip: u32,
    },
    /// Copies bytes. Any alignment; at least one byte and at most [`Generation::most_copy_bytes`].
    Copy {
        /// From here.
        source: u64,
        /// To here.
        destination: u64,
        /// Bytes.
        bytes: u32,
    },
    /// Writes 32 bits when every packet before it is done.
    Fence {
        /// To here, a multiple of 4.
        address: u64,
        /// The value.
        value: u32,
    },
    /// Adds 64 bits, atomically, when every packet before it is done.
    Add {
        /// To this word, a multiple of 8.
        address: u64,
        /// What is added; wraps.
        value: u64,
    },
}

/// The words of one packet as they are filled.
struct Words<'a> {
    packet: &'static str,
    words: &'a mut [u32],
}

impl<'a> Words<'a> {
    fn new(out: &'a mut Vec<u32>, format: &'static Format) -> Self {
        let first = out.len();
        out.resize(first + format.words, 0);
        out[first] = format.op | format.sub_op << 8;
        Self { packet: format.name, words: &mut out[first..] }
    }

    fn set(&mut self, field: Field, value: impl Into<u64>) -> Result<&mut Self> {
        let (given, most) = (value.into(), field.most());
        if given > most {
            return Err(Error::Field { packet: self.packet, field: field.name, given, most });
        }
        self.words[field.word] |= (given as u32) << field.shift;
        Ok(self)
    }

    /// Sets two fields that make an address or a value of 64 bits.
    fn set_pair(&mut self, low: Field, high: Field, value: u64) -> Result<&mut Self> {
        self.set(low, value & u64::from(u32::MAX))?.set(high, value >> 32)
    }
}

impl Packet {
    /// The packet's format, for its name and length.
    pub const fn format(&self) -> &'static Format {
        match self {
            Self::Nop { .. } => &nop::FORMAT,
            Self::Copy { .. } => &copy::FORMAT,
            Self::Fence { .. } => &fence::FORMAT,
            Self::Add { .. } => &atomic::FORMAT,
        }
    }

    /// Appends the packet's words to `out`, which is unchanged on an error.
    ///
    /// # Errors
    /// [`Error::Empty`], [`Error::TooLong`], [`Error::Misaligned`], [`Error::Field`].
    pub fn encode(&self, generation: &Generation, out: &mut Vec<u32>) -> Result<()> {
        let before = out.len();
        let encoded = self.check(generation).and_then(|()| self.fill_words(generation, out));
        if encoded.is_err() {
            out.truncate(before);
        }
        encoded
    }

    fn check(&self, generation: &Generation) -> Result<()> {
        let packet = self.format().name;
        let aligned = |what, given: u64, multiple: u64| {
            if given.is_multiple_of(multiple) {
                Ok(())
            } else {
                Err(Error::Misaligned { packet, what, given, multiple })
            }
        };
        let long = |given: u64, most: u64, sayable: u64| match given {
            0 => Err(Error::Empty { packet, most: sayable }),
            _ if given > most => Err(Error::TooLong { packet, given, most, generation: generation.name }),
            _ => Ok(()),
        };
        let copied = |bytes: u32| {
            long(bytes.into(), generation.most_copy_bytes.into(), generation.sayable_copy_bytes())
        };
        match self {
            Self::Nop { .. } => Ok(()),
            Self::Copy { bytes, .. } => copied(*bytes),
            Self::Fence { address, .. } => aligned("the address", *address, 4),
            Self::Add { address, .. } => aligned("the address", *address, 8),
        }
    }

    fn fill_words(&self, generation: &Generation, out: &mut Vec<u32>) -> Result<()> {
        let mut words = Words::new(out, self.format());
        match self {
            Self::Nop { skip } => words.set(nop::SKIP, *skip),
            Self::Copy { source, destination, bytes } => words
                .set(copy::COUNT, bytes - 1)?
                .set_pair(copy::SOURCE_LOW, copy::SOURCE_HIGH, *source)?
                .set_pair(copy::DESTINATION_LOW, copy::DESTINATION_HIGH, *destination),
            Self::Fence { address, value } => words
                .set(fence::MEMORY_TYPE, generation.fence_memory_type)?
                .set_pair(fence::ADDRESS_LOW, fence::ADDRESS_HIGH, *address)?
                .set(fence::DATA, *value),
            Self::Add { address, value } => words
                .set(atomic::OPERATION, ATOMIC_ADD_64)?
                .set_pair(atomic::ADDRESS_LOW, atomic::ADDRESS_HIGH, *address)?
                .set_pair(atomic::DATA_LOW, atomic::DATA_HIGH, *value),
        }?;
        Ok(())
    }
}
