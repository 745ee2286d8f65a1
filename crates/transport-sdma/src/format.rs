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

/// All packets.
pub const FORMATS: &[&Format] = &[&nop::FORMAT, &copy::FORMAT, &fence::FORMAT, &atomic::FORMAT];

/// The atomic operation that adds 64 bits: the only one that is known from a runtime's own packets.
pub(crate) const ATOMIC_ADD_64: u32 = 47;

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
