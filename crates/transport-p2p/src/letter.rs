//! The message that carries a file descriptor from rank to rank, or says why none comes.

use anabranch_ranks::GlobalRank;

const MAGIC: [u8; 8] = *b"anaDESC1";
const HEADER_BYTES: usize = 8 + 16 + 4 + 4;
/// Bytes of an error's text that travel.
const TEXT_BYTES: usize = 480;
/// The longest letter.
pub(crate) const LETTER_BYTES: usize = HEADER_BYTES + TEXT_BYTES;

/// A letter without the secret of the mailbox that it goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Letter {
    pub(crate) sender: GlobalRank,
    /// Why no descriptor comes with it.
    pub(crate) failure: Option<String>,
}

impl Letter {
    /// One that a descriptor comes with.
    pub(crate) fn descriptor(sender: GlobalRank) -> Self {
        Self { sender, failure: None }
    }

    /// One that says why none comes. The text is cut at a fixed length.
    pub(crate) fn failure(sender: GlobalRank, cause: &str) -> Self {
        let mut end = cause.len().min(TEXT_BYTES);
        while !cause.is_char_boundary(end) {
            end -= 1;
        }
        Self { sender, failure: Some(cause[..end].to_owned()) }
    }

    pub(crate) fn encode(&self, secret: &[u8; 16]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(LETTER_BYTES);
        bytes.extend(MAGIC);
        bytes.extend(secret);
        bytes.extend(self.sender.get().to_le_bytes());
        bytes.extend(u32::from(self.failure.is_some()).to_le_bytes());
        bytes.extend(self.failure.as_deref().unwrap_or_default().as_bytes());
        bytes
    }

    /// `None` for bytes that were not made for the mailbox with this secret.
    pub(crate) fn decode(bytes: &[u8], secret: &[u8; 16]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<8>()?;
        let (carried, rest) = rest.split_first_chunk::<16>()?;
        let (sender, rest) = rest.split_first_chunk::<4>()?;
        let (failed, text) = rest.split_first_chunk::<4>()?;
        // Without giving away by its time where the first difference is.
        let difference = carried.iter().zip(secret).fold(0, |difference, (a, b)| difference | (a ^ b));
        if *magic != MAGIC || std::hint::black_box(difference) != 0 {
            return None;
        }
        let sender = GlobalRank::new(u32::from_le_bytes(*sender));
        match u32::from_le_bytes(*failed) {
            0 if text.is_empty() => Some(Self { sender, failure: None }),
            1 => Some(Self { sender, failure: Some(String::from_utf8_lossy(text).into_owned()) }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_come_back_as_they_were_and_only_to_their_mailbox() {
        let rank = GlobalRank::new(7);
        let long = "no file descriptor could be had: é".repeat(40);
        for letter in [Letter::descriptor(rank), Letter::failure(rank, "why"), Letter::failure(rank, &long)] {
            let bytes = letter.encode(&[3; 16]);
            assert!(bytes.len() <= LETTER_BYTES);
            assert_eq!(Letter::decode(&bytes, &[3; 16]), Some(letter));
            assert_eq!(Letter::decode(&bytes, &[4; 16]), None);
            assert_eq!(Letter::decode(&bytes[1..], &[3; 16]), None);
            assert_eq!(Letter::decode(&bytes[..20], &[3; 16]), None);
            let mut strange = bytes;
            strange[28] = 2;
            assert_eq!(Letter::decode(&strange, &[3; 16]), None);
        }
    }
}
