//! Packets, and the words that they are.

use crate::error::{Error, Result};
use crate::format::{
    ATOMIC_ADD_64, FILL_BY_WORDS, FLUSH_ADDRESS_HIGH, Field, Format, atomic, copy, copy_broadcast, fence,
    fill, nop, poll, timestamp, trap, write,
};
use crate::generation::Generation;

/// How a poll compares the masked word with its reference, as unsigned numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Compare {
    /// Always true.
    Always = 0,
    /// Below.
    Less = 1,
    /// Not above.
    LessOrEqual = 2,
    /// Equal.
    Equal = 3,
    /// Not equal.
    NotEqual = 4,
    /// Not below.
    GreaterOrEqual = 5,
    /// Above.
    Greater = 6,
}

impl Compare {
    /// All of them, by code.
    pub const ALL: [Self; 7] = [
        Self::Always,
        Self::Less,
        Self::LessOrEqual,
        Self::Equal,
        Self::NotEqual,
        Self::GreaterOrEqual,
        Self::Greater,
    ];

    /// Whether a word passes.
    pub const fn holds(self, word: u32, reference: u32) -> bool {
        match self {
            Self::Always => true,
            Self::Less => word < reference,
            Self::LessOrEqual => word <= reference,
            Self::Equal => word == reference,
            Self::NotEqual => word != reference,
            Self::GreaterOrEqual => word >= reference,
            Self::Greater => word > reference,
        }
    }
}

/// An engine's packets. Addresses are those of the GPU that owns the engine. Packets of one ring are done in order, but a write
/// may overlap the copy before it: a fence or an atomic says that copies are done, a write does not.
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
    /// Copies bytes to two places, where the generation has it.
    CopyBroadcast {
        /// From here.
        source: u64,
        /// To here and here.
        destinations: [u64; 2],
        /// Bytes.
        bytes: u32,
    },
    /// Writes words that stand in the packet. At least one.
    Write {
        /// To here, a multiple of 4.
        destination: u64,
        /// The words.
        words: Vec<u32>,
    },
    /// Writes 32 bits when every packet before it is done.
    Fence {
        /// To here, a multiple of 4.
        address: u64,
        /// The value.
        value: u32,
    },
    /// Interrupts the host.
    Trap {
        /// What the interrupt says, 28 bits.
        context: u32,
    },
    /// Waits until a word of memory compares. Ends without a word about it when the retries are used up.
    Poll {
        /// The word, a multiple of 4.
        address: u64,
        /// How.
        compare: Compare,
        /// With what.
        reference: u32,
        /// Bits of the word that count.
        mask: u32,
        /// Between two looks, in the engine's clock.
        interval: u32,
        /// Looks, 12 bits; all ones is for ever.
        retries: u32,
    },
    /// Flushes what the host has written over the bus.
    FlushHost,
    /// Adds 64 bits, atomically, when every packet before it is done.
    Add {
        /// To this word, a multiple of 8.
        address: u64,
        /// What is added; wraps.
        value: u64,
    },
    /// Fills with a word.
    Fill {
        /// To here, a multiple of 4.
        destination: u64,
        /// The word.
        pattern: u32,
        /// Bytes, a multiple of 4, at most [`Generation::most_fill_bytes`].
        bytes: u32,
    },
    /// Writes the GPU's clock, 64 bits.
    Timestamp {
        /// To here, a multiple of 32.
        address: u64,
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
            Self::CopyBroadcast { .. } => &copy_broadcast::FORMAT,
            Self::Write { .. } => &write::FORMAT,
            Self::Fence { .. } => &fence::FORMAT,
            Self::Trap { .. } => &trap::FORMAT,
            Self::Poll { .. } | Self::FlushHost => &poll::FORMAT,
            Self::Add { .. } => &atomic::FORMAT,
            Self::Fill { .. } => &fill::FORMAT,
            Self::Timestamp { .. } => &timestamp::FORMAT,
        }
    }

    /// Words of the packet, with those that it carries; not those that a `Nop` passes over.
    pub fn word_count(&self) -> usize {
        let carried = if let Self::Write { words, .. } = self { words.len() } else { 0 };
        self.format().words + carried
    }

    /// Appends the packet's words to `out`, which is unchanged on an error.
    ///
    /// # Errors
    /// [`Error::Empty`], [`Error::TooLong`], [`Error::Misaligned`], [`Error::Field`], [`Error::Absent`].
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
            Self::Nop { .. } | Self::Trap { .. } | Self::FlushHost => Ok(()),
            Self::Copy { bytes, .. } => copied(*bytes),
            Self::CopyBroadcast { bytes, .. } if generation.broadcasts => copied(*bytes),
            Self::CopyBroadcast { .. } => Err(Error::Absent { packet, generation: generation.name }),
            Self::Write { destination, words } => {
                aligned("the destination", *destination, 4)?;
                let most = 4u64 << generation.write_count_bits;
                long(4 * words.len() as u64, most, most)
            }
            Self::Fence { address, .. } | Self::Poll { address, .. } => aligned("the address", *address, 4),
            Self::Add { address, .. } => aligned("the address", *address, 8),
            Self::Fill { destination, bytes, .. } => {
                aligned("the destination", *destination, 4)?;
                aligned("the length", u64::from(*bytes), 4)?;
                long((*bytes).into(), generation.most_fill_bytes.into(), 1 << 22)
            }
            Self::Timestamp { address } => aligned("the address", *address, 32),
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
            Self::CopyBroadcast { source, destinations, bytes } => words
                .set(copy_broadcast::BROADCAST, 1u32)?
                .set(copy_broadcast::COUNT, bytes - 1)?
                .set_pair(copy_broadcast::SOURCE_LOW, copy_broadcast::SOURCE_HIGH, *source)?
                .set_pair(copy_broadcast::DESTINATION_LOW, copy_broadcast::DESTINATION_HIGH, destinations[0])?
                .set_pair(copy_broadcast::SECOND_LOW, copy_broadcast::SECOND_HIGH, destinations[1]),
            Self::Write { destination, words: data } => {
                words
                    .set_pair(write::DESTINATION_LOW, write::DESTINATION_HIGH, *destination)?
                    .set(write::COUNT, data.len() as u64 - 1)?;
                out.extend_from_slice(data);
                return Ok(());
            }
            Self::Fence { address, value } => words
                .set(fence::MEMORY_TYPE, generation.fence_memory_type)?
                .set_pair(fence::ADDRESS_LOW, fence::ADDRESS_HIGH, *address)?
                .set(fence::DATA, *value),
            Self::Trap { context } => words.set(trap::CONTEXT, *context),
            Self::Poll { address, compare, reference, mask, interval, retries } => words
                .set(poll::MEMORY, 1u32)?
                .set(poll::FUNCTION, *compare as u32)?
                .set_pair(poll::ADDRESS_LOW, poll::ADDRESS_HIGH, *address)?
                .set(poll::REFERENCE, *reference)?
                .set(poll::MASK, *mask)?
                .set(poll::INTERVAL, *interval)?
                .set(poll::RETRIES, *retries),
            // The words that ROCr writes.
            Self::FlushHost => words.set(poll::ADDRESS_HIGH, FLUSH_ADDRESS_HIGH),
            Self::Add { address, value } => words
                .set(atomic::OPERATION, ATOMIC_ADD_64)?
                .set_pair(atomic::ADDRESS_LOW, atomic::ADDRESS_HIGH, *address)?
                .set_pair(atomic::DATA_LOW, atomic::DATA_HIGH, *value),
            Self::Fill { destination, pattern, bytes } => words
                .set(fill::SIZE, FILL_BY_WORDS)?
                .set_pair(fill::DESTINATION_LOW, fill::DESTINATION_HIGH, *destination)?
                .set(fill::DATA, *pattern)?
                .set(fill::COUNT, bytes - 1),
            Self::Timestamp { address } => {
                words.set_pair(timestamp::ADDRESS_LOW, timestamp::ADDRESS_HIGH, *address)
            }
        }?;
        Ok(())
    }
}
