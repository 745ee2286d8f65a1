//! What one rank puts into a collective exchange: who speaks about what, whether it has failed, and bytes.

use serde::{Deserialize, Serialize};

/// Version of all messages between ranks of this crate.
pub(crate) const PROTOCOL: u32 = 1;
const MAGIC: [u8; 8] = *b"anbrshm\0";

/// The checked part of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    /// The world that it belongs to; 0 before the ranks have agreed on a number.
    pub(crate) world: u64,
    /// What the ranks are doing.
    pub(crate) step: String,
    /// The sender's count of exchanges of this group.
    pub(crate) sequence: u64,
    /// The sender's error, when it has failed.
    pub(crate) failure: Option<String>,
}

/// Why a message is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("it does not begin as a message of this library")]
    Magic,
    #[error("it has protocol version {given}, this rank has version {PROTOCOL}")]
    Version { given: u32 },
    #[error("it is truncated")]
    Short,
    #[error("its header is malformed: {0}")]
    Header(String),
}

/// Magic, version, length of the header, header, bytes.
#[expect(clippy::expect_used, reason = "JSON has a form for strings and numbers")]
pub(crate) fn encode(header: &Header, bytes: &[u8]) -> Vec<u8> {
    let text = serde_json::to_vec(header).expect("a struct of strings and numbers has a JSON form");
    let mut message = Vec::with_capacity(16 + text.len() + bytes.len());
    message.extend(MAGIC);
    message.extend(PROTOCOL.to_le_bytes());
    message.extend((text.len() as u32).to_le_bytes());
    message.extend(text);
    message.extend(bytes);
    message
}

pub(crate) fn decode(message: &[u8]) -> Result<(Header, &[u8]), FrameError> {
    let (magic, rest) = message.split_first_chunk::<8>().ok_or(FrameError::Magic)?;
    if *magic != MAGIC {
        return Err(FrameError::Magic);
    }
    let (version, rest) = rest.split_first_chunk::<4>().ok_or(FrameError::Short)?;
    let given = u32::from_le_bytes(*version);
    if given != PROTOCOL {
        return Err(FrameError::Version { given });
    }
    let (length, rest) = rest.split_first_chunk::<4>().ok_or(FrameError::Short)?;
    let (text, bytes) =
        rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or(FrameError::Short)?;
    let header = serde_json::from_slice(text).map_err(|error| FrameError::Header(error.to_string()))?;
    Ok((header, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_and_damage_is_noticed() {
        let header = Header { world: 7, step: "allocate".into(), sequence: 3, failure: Some("no".into()) };
        let message = encode(&header, b"bytes");
        assert_eq!(decode(&message).unwrap(), (header, &b"bytes"[..]));
        assert_eq!(decode(b"anbrshm"), Err(FrameError::Magic));
        assert_eq!(decode(&message[..20]), Err(FrameError::Short));
        let mut other = message.clone();
        other[8] = 9;
        assert_eq!(decode(&other), Err(FrameError::Version { given: 9 }));
        let mut foreign = message.clone();
        foreign[0] = b'X';
        assert_eq!(decode(&foreign), Err(FrameError::Magic));
        let mut garbled = message;
        garbled[16] = b'?';
        assert!(matches!(decode(&garbled), Err(FrameError::Header(_))));
    }
}
