//! The one table of packets and their fields. The encoder fills words by it, and the device header is rendered from it; the
//! decoder does without, so that it can contradict.

/// A run of bits in one word of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name, in capitals.
    pub name: &'static str,
    /// The word, from 0.
    pub word: usize,
    /// Its lowest bit.
    pub shift: u32,
    /// Its bits.
    pub bits: u32,
}

impl Field {
    /// The most it holds.
    pub const fn most(&self) -> u64 {
        (1 << self.bits) - 1
    }
}

/// A packet: the code in its first word, its length, its fields. An address is two words, the low one first, and has one entry
/// for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Its name.
    pub name: &'static str,
    /// Bits 7:0 of the first word.
    pub op: u32,
    /// Bits 15:8 of the first word.
    pub sub_op: u32,
    /// Words, without those that a count adds.
    pub words: usize,
    /// Everything else.
    pub fields: &'static [Field],
}

/// A packet's module: its fields by name, and its format.
macro_rules! packet {
    (
        $(#[doc = $doc:literal])* $module:ident: $name:literal, $op:literal.$sub_op:literal, $words:literal words,
        { $($(#[doc = $field_doc:literal])* $field:ident = $word:literal [$high:literal:$low:literal],)* }
    ) => {
        $(#[doc = $doc])*
        pub mod $module {
            use super::{Field, Format};

            $(
                $(#[doc = $field_doc])*
                pub const $field: Field =
                    Field { name: stringify!($field), word: $word, shift: $low, bits: $high - $low + 1 };
            )*

            /// The whole.
            pub const FORMAT: Format =
                Format { name: $name, op: $op, sub_op: $sub_op, words: $words, fields: &[$($field),*] };
        }
    };
}

packet! {
    /// No operation.
    nop: "nop", 0 . 0, 1 words, {
        /// Words behind it that are passed over.
        SKIP = 0 [29:16],
    }
}

packet! {
    /// Copies `count + 1` bytes.
    copy: "copy", 1 . 0, 7 words, {
        /// Bytes - 1; narrower where [`Generation::copy_count_bits`](crate::Generation::copy_count_bits) says so.
        COUNT = 1 [29:0],
        /// Low half of the source's address.
        SOURCE_LOW = 3 [31:0],
        /// High half.
        SOURCE_HIGH = 4 [31:0],
        /// Low half of the destination's address.
        DESTINATION_LOW = 5 [31:0],
        /// High half.
        DESTINATION_HIGH = 6 [31:0],
    }
}

packet! {
    /// Copies `count + 1` bytes to two places.
    copy_broadcast: "broadcast copy", 1 . 0, 9 words, {
        /// Says that there are two destinations.
        BROADCAST = 0 [27:27],
        /// Bytes - 1.
        COUNT = 1 [29:0],
        /// Low half of the source's address.
        SOURCE_LOW = 3 [31:0],
        /// High half.
        SOURCE_HIGH = 4 [31:0],
        /// Low half of the first destination's address.
        DESTINATION_LOW = 5 [31:0],
        /// High half.
        DESTINATION_HIGH = 6 [31:0],
        /// Low half of the second destination's address.
        SECOND_LOW = 7 [31:0],
        /// High half.
        SECOND_HIGH = 8 [31:0],
    }
}

packet! {
    /// Writes the `count + 1` words that follow it.
    write: "write", 2 . 0, 4 words, {
        /// Low half of the destination's address.
        DESTINATION_LOW = 1 [31:0],
        /// High half.
        DESTINATION_HIGH = 2 [31:0],
        /// Words - 1; narrower where [`Generation::write_count_bits`](crate::Generation::write_count_bits) says so.
        COUNT = 3 [21:0],
    }
}

packet! {
    /// Writes a word when all packets before it are done.
    fence: "fence", 5 . 0, 4 words, {
        /// How the word passes the caches.
        MEMORY_TYPE = 0 [18:16],
        /// Low half of the word's address.
        ADDRESS_LOW = 1 [31:0],
        /// High half.
        ADDRESS_HIGH = 2 [31:0],
        /// The word.
        DATA = 3 [31:0],
    }
}

packet! {
    /// Interrupts the host.
    trap: "trap", 6 . 0, 2 words, {
        /// What the interrupt says.
        CONTEXT = 1 [27:0],
    }
}

packet! {
    /// Waits until a word of memory compares; flushes the host's bus when it is not about memory.
    poll: "poll", 8 . 0, 6 words, {
        /// The comparison.
        FUNCTION = 0 [30:28],
        /// Says that the word is in memory.
        MEMORY = 0 [31:31],
        /// Low half of the word's address.
        ADDRESS_LOW = 1 [31:0],
        /// High half.
        ADDRESS_HIGH = 2 [31:0],
        /// What the word is compared with.
        REFERENCE = 3 [31:0],
        /// Bits of the word that count.
        MASK = 4 [31:0],
        /// Between two looks.
        INTERVAL = 5 [15:0],
        /// Looks; all ones is for ever.
        RETRIES = 5 [27:16],
    }
}

packet! {
    /// An atomic operation on 64 bits, when all packets before it are done.
    atomic: "atomic", 10 . 0, 8 words, {
        /// Which one.
        OPERATION = 0 [31:25],
        /// Low half of the word's address.
        ADDRESS_LOW = 1 [31:0],
        /// High half.
        ADDRESS_HIGH = 2 [31:0],
        /// Low half of the operand.
        DATA_LOW = 3 [31:0],
        /// High half.
        DATA_HIGH = 4 [31:0],
    }
}

packet! {
    /// Fills `count + 1` bytes with a word.
    fill: "fill", 11 . 0, 5 words, {
        /// What the pattern is: 0 a byte, 2 a word.
        SIZE = 0 [31:30],
        /// Low half of the destination's address.
        DESTINATION_LOW = 1 [31:0],
        /// High half.
        DESTINATION_HIGH = 2 [31:0],
        /// The pattern.
        DATA = 3 [31:0],
        /// Bytes - 1.
        COUNT = 4 [21:0],
    }
}

packet! {
    /// Writes the GPU's clock, 64 bits.
    timestamp: "timestamp", 13 . 2, 3 words, {
        /// Low half of the address.
        ADDRESS_LOW = 1 [31:0],
        /// High half.
        ADDRESS_HIGH = 2 [31:0],
    }
}

/// All packets.
pub const FORMATS: &[&Format] = &[
    &nop::FORMAT,
    &copy::FORMAT,
    &copy_broadcast::FORMAT,
    &write::FORMAT,
    &fence::FORMAT,
    &trap::FORMAT,
    &poll::FORMAT,
    &atomic::FORMAT,
    &fill::FORMAT,
    &timestamp::FORMAT,
];

/// The atomic operation that adds 64 bits: the only one that is known from a runtime's own packets.
pub(crate) const ATOMIC_ADD_64: u32 = 47;
/// A fill by words.
pub(crate) const FILL_BY_WORDS: u32 = 2;
/// The high half of the address of a poll that flushes the host's bus, as ROCr writes it.
pub(crate) const FLUSH_ADDRESS_HIGH: u32 = 0x8000_0000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_packet_do_not_overlap_each_other_or_the_code() {
        for format in FORMATS {
            let mut taken = vec![0u64; format.words];
            taken[0] = 0xffff;
            for field in format.fields {
                let bits = field.most() << field.shift;
                assert!(u32::try_from(bits).is_ok(), "{} {}", format.name, field.name);
                assert_eq!(taken[field.word] & bits, 0, "{} {}", format.name, field.name);
                taken[field.word] |= bits;
            }
        }
    }
}
