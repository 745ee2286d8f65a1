//! Frames: how messages are delimited on a connection.
//!
//! A header of 40 bytes, numbers little-endian, then the payload:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 8 | magic, `anabrnch` |
//! | 8 | 2 | version of the protocol |
//! | 10 | 2 | type |
//! | 12 | 4 | rank of the sender (0 for the root's server) |
//! | 16 | 8 | sequence: the number of the request that this is or answers, 0 for notices |
//! | 24 | 8 | length of the payload |
//! | 32 | 4 | CRC-32 of the payload |
//! | 36 | 4 | CRC-32 of bytes 0 to 35 |
//!
//! The magic is looked at first, then the version (other versions may place the rest otherwise), then the
//! header's checksum, and only then is the length believed, up to a stated maximum.

/// Bytes of a header.
pub(crate) const HEADER: usize = 40;
/// The first bytes of every frame.
pub(crate) const MAGIC: [u8; 8] = *b"anabrnch";
/// The version that this build speaks.
pub(crate) const VERSION: u16 = 3;

/// What is wrong with bytes that should be a frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// Something else talks here.
    #[error("it begins with {found:02x?} instead of {:02x?}: the peer speaks another protocol", MAGIC)]
    Magic {
        /// The first eight bytes.
        found: [u8; 8],
    },
    /// Another version of this protocol.
    #[error("it has version {theirs}, but this side speaks version {ours}")]
    Version {
        /// This side's version.
        ours: u16,
        /// The frame's.
        theirs: u16,
    },
    /// The header's checksum is wrong.
    #[error("the checksum of its header is {found:#010x} instead of {expected:#010x}")]
    HeaderChecksum {
        /// The frame's.
        found: u32,
        /// What the bytes give.
        expected: u32,
    },
    /// The payload's checksum is wrong.
    #[error("the checksum of its payload is {found:#010x} instead of {expected:#010x}")]
    PayloadChecksum {
        /// The frame's.
        found: u32,
        /// What the bytes give.
        expected: u32,
    },
    /// A type that this version does not have.
    #[error("it has the unknown type {found}")]
    Type {
        /// The type.
        found: u16,
    },
    /// More bytes than allowed.
    #[error("it announces {length} bytes, and at most {limit} are allowed here")]
    TooLong {
        /// The length.
        length: u64,
        /// The maximum.
        limit: u64,
    },
    /// A payload that its type does not have.
    #[error("its payload is not that of a {what}")]
    Malformed {
        /// The type.
        what: &'static str,
    },
    /// A frame that has no place at this point.
    #[error("a {kind} is not expected here")]
    Unexpected {
        /// The type.
        kind: &'static str,
    },
    /// Bytes on an encrypted connection that the other side did not seal, or not as the next ones.
    #[error("its encryption is damaged, or another process has put bytes into the connection")]
    Sealed,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $words:literal;)*) => {
        /// The type of a frame.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Kind { $($(#[$doc])* $name = $number,)* }

        impl Kind {
            /// All of them.
            #[cfg(test)]
            pub(crate) const ALL: &[Self] = &[$(Self::$name,)*];

            fn from_number(number: u16) -> Result<Self, FrameError> {
                match number {
                    $($number => Ok(Self::$name),)*
                    found => Err(FrameError::Type { found }),
                }
            }

            /// The type in words.
            pub(crate) fn words(self) -> &'static str {
                match self { $(Self::$name => $words,)* }
            }
        }
    };
}

kinds! {
    /// Root to newcomer: a nonce.
    Challenge = 1, "challenge";
    /// Newcomer to root: the first message of the handshake, with who it is.
    Hello = 2, "hello";
    /// Root to newcomer: the second message of the handshake, with the values that hold for all, or why not.
    Answer = 3, "answer";
    /// Root to a process that has not proven that it knows the secret: the refusal.
    Refuse = 4, "refusal";
    /// A member's part of a collective call.
    Contribute = 5, "contribution";
    /// A member's deadline has passed.
    Withdraw = 6, "withdrawal";
    /// Store a value.
    Set = 7, "set request";
    /// Wait for a value.
    Wait = 8, "wait request";
    /// Wait no longer.
    Cancel = 9, "cancellation";
    /// The parts of a collective call.
    Gathered = 10, "gathered answer";
    /// A collective call failed.
    Failed = 11, "failure";
    /// A value.
    Value = 12, "value";
    /// A rank was lost.
    Lost = 13, "loss notice";
    /// The sender leaves.
    Goodbye = 14, "goodbye";
    /// The sender is there.
    Heartbeat = 15, "heartbeat";
    /// The world cannot form: a rank was refused that would have to be in it.
    Verdict = 16, "verdict";
}

/// A decoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) sender: u32,
    pub(crate) sequence: u64,
    pub(crate) length: u64,
    pub(crate) payload_checksum: u32,
}

impl Header {
    /// The header of this payload.
    pub(crate) fn of(kind: Kind, sender: u32, sequence: u64, payload: &[u8]) -> Self {
        Self { kind, sender, sequence, length: payload.len() as u64, payload_checksum: crc32(payload) }
    }

    pub(crate) fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10..12].copy_from_slice(&(self.kind as u16).to_le_bytes());
        bytes[12..16].copy_from_slice(&self.sender.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.length.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.payload_checksum.to_le_bytes());
        let checksum = crc32(&bytes[..36]);
        bytes[36..40].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads a header and checks everything in it; the payload is checked by [`Header::check`].
    pub(crate) fn decode(bytes: &[u8; HEADER], limit: u64) -> Result<Self, FrameError> {
        let magic: [u8; 8] = part(bytes, 0);
        if magic != MAGIC {
            return Err(FrameError::Magic { found: magic });
        }
        let version = u16::from_le_bytes(part(bytes, 8));
        if version != VERSION {
            return Err(FrameError::Version { ours: VERSION, theirs: version });
        }
        let (found, expected) = (u32::from_le_bytes(part(bytes, 36)), crc32(&bytes[..36]));
        if found != expected {
            return Err(FrameError::HeaderChecksum { found, expected });
        }
        let header = Self {
            kind: Kind::from_number(u16::from_le_bytes(part(bytes, 10)))?,
            sender: u32::from_le_bytes(part(bytes, 12)),
            sequence: u64::from_le_bytes(part(bytes, 16)),
            length: u64::from_le_bytes(part(bytes, 24)),
            payload_checksum: u32::from_le_bytes(part(bytes, 32)),
        };
        if header.length > limit {
            return Err(FrameError::TooLong { length: header.length, limit });
        }
        Ok(header)
    }

    /// Checks that this payload is the header's.
    pub(crate) fn check(&self, payload: &[u8]) -> Result<(), FrameError> {
        let expected = crc32(payload);
        if self.payload_checksum == expected {
            Ok(())
        } else {
            Err(FrameError::PayloadChecksum { found: self.payload_checksum, expected })
        }
    }
}

/// `N` bytes at a constant offset. `N` and the offset lie within the header for every use above.
fn part<const N: usize>(bytes: &[u8; HEADER], offset: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[offset + i])
}

/// CRC-32 as in Ethernet and zlib (reflected 0xEDB88320).
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0_u32; 256];
        let mut i = 0;
        while i < 256 {
            let mut value = i as u32;
            let mut bit = 0;
            while bit < 8 {
                value = if value & 1 == 1 { 0xEDB8_8320 ^ (value >> 1) } else { value >> 1 };
                bit += 1;
            }
            table[i] = value;
            i += 1;
        }
        table
    };
    !bytes.iter().fold(!0, |crc: u32, byte| TABLE[usize::from(crc as u8 ^ byte)] ^ (crc >> 8))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_checksum_is_the_published_one() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
        assert_eq!(crc32(b""), 0);
    }

    #[test]
    fn kinds_have_distinct_numbers_that_read_back() {
        for kind in Kind::ALL {
            assert_eq!(Kind::from_number(*kind as u16), Ok(*kind));
        }
        assert_eq!(Kind::from_number(99), Err(FrameError::Type { found: 99 }));
    }

    proptest! {
        #[test]
        fn frames_read_back(
            kind in prop::sample::select(Kind::ALL),
            sender: u32,
            sequence: u64,
            payload in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let header = Header::of(kind, sender, sequence, &payload);
            prop_assert_eq!(Header::decode(&header.encode(), 200), Ok(header));
            prop_assert_eq!(header.check(&payload), Ok(()));
        }

        #[test]
        fn no_flipped_bit_goes_unnoticed(
            sender: u32,
            payload in prop::collection::vec(any::<u8>(), 1..50),
            bit in 0_usize..(HEADER + 1) * 8,
        ) {
            let header = Header::of(Kind::Set, sender, 7, &payload);
            let (mut head, mut body) = (header.encode(), payload.clone());
            match head.get_mut(bit / 8) {
                Some(byte) => *byte ^= 1 << (bit % 8),
                None => body[0] ^= 1 << (bit % 8),
            }
            let read = Header::decode(&head, 50).and_then(|header| header.check(&body));
            prop_assert!(read.is_err());
        }

        #[test]
        fn lengths_over_the_limit_are_refused(length in 11_u64.., limit in 0_u64..=10) {
            let header = Header { kind: Kind::Set, sender: 0, sequence: 0, length, payload_checksum: 0 };
            prop_assert_eq!(Header::decode(&header.encode(), limit), Err(FrameError::TooLong { length, limit }));
        }
    }

    #[test]
    fn other_versions_and_protocols_are_named() {
        let mut bytes = Header::of(Kind::Hello, 3, 0, b"").encode();
        bytes[8] = 9;
        assert_eq!(
            Header::decode(&bytes, 0).unwrap_err().to_string(),
            "it has version 9, but this side speaks version 3"
        );
        bytes[..8].copy_from_slice(b"GET / HT");
        assert!(
            matches!(Header::decode(&bytes, 0), Err(FrameError::Magic { found }) if &found == b"GET / HT")
        );
    }
}
