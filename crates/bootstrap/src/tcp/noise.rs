//! How a connection is authenticated and encrypted: `Noise_NNpsk0_25519_ChaChaPoly_SHA256` of the Noise Protocol
//! Framework, revision 34 (<https://noiseprotocol.org/noise.html>), by the `snow` crate.
//!
//! * The pre-shared key is the secret's; the newcomer is the initiator. Both messages of the handshake are encrypted under
//!   it (modifier `psk0`), so that only who knows the secret can make or read either.
//! * The prologue is a purpose string and the root's challenge, which is new with every connection: a recorded handshake
//!   opens no other one. Rank, size and session are the first message's payload, and so part of what both sides'
//!   keys come from.
//! * The keys come from fresh Diffie-Hellman shares too and differ by direction. A secret that leaks later does not open
//!   what was recorded before.
//!
//! After the handshake, frames travel in records: two bytes of length (big-endian, as in the Noise specification), then that many
//! bytes of ciphertext with its tag of 16 bytes.

use crate::FrameError;
use crate::secret::{Bytes32, Secret};
use snow::{Builder, HandshakeState, TransportState};

/// The name of the protocol, which both sides' hashes begin with.
const PROTOCOL: &str = "Noise_NNpsk0_25519_ChaChaPoly_SHA256";
/// Sets this use of Noise apart from any other.
const PURPOSE: &[u8] = b"anabranch rendezvous 2\0";
/// What a message of the handshake has besides its payload: a public key and a tag.
const HANDSHAKE_OVERHEAD: usize = 32 + TAG;
/// Bytes of a tag.
const TAG: usize = 16;
/// Bytes of a record's length.
const LENGTH: usize = 2;
/// The most bytes of a record, as Noise has it.
const MAX_RECORD: usize = u16::MAX as usize;

fn builder_error(source: &snow::Error) -> std::io::Error {
    std::io::Error::other(format!("the handshake cannot be made: {source}"))
}

fn start(secret: &Secret, challenge: &Bytes32, initiator: bool) -> Result<HandshakeState, snow::Error> {
    let (key, prologue) = (secret.key(), [PURPOSE, challenge].concat());
    let builder = Builder::new(PROTOCOL.parse()?).psk(0, &key)?.prologue(&prologue)?;
    if initiator { builder.build_initiator() } else { builder.build_responder() }
}

fn write(state: &mut HandshakeState, payload: &[u8]) -> Result<Vec<u8>, snow::Error> {
    let mut message = vec![0; payload.len() + HANDSHAKE_OVERHEAD];
    let written = state.write_message(payload, &mut message)?;
    message.truncate(written);
    Ok(message)
}

fn read(state: &mut HandshakeState, message: &[u8]) -> Result<Vec<u8>, snow::Error> {
    let mut payload = vec![0; message.len()];
    let read = state.read_message(message, &mut payload)?;
    payload.truncate(read);
    Ok(payload)
}

/// The newcomer's side.
#[derive(Debug)]
pub(super) struct Initiator(HandshakeState);

impl Initiator {
    /// Begins; gives the first message.
    ///
    /// # Errors
    /// The system's random generator does not work.
    pub(super) fn begin(
        secret: &Secret,
        challenge: &Bytes32,
        payload: &[u8],
    ) -> std::io::Result<(Self, Vec<u8>)> {
        let begin = || {
            let mut state = start(secret, challenge, true)?;
            let message = write(&mut state, payload)?;
            Ok((Self(state), message))
        };
        begin().map_err(|error: snow::Error| builder_error(&error))
    }

    /// Takes the answer; gives its payload and the keys. `None` when it was not made with the secret, in answer to the first
    /// message.
    pub(super) fn finish(mut self, answer: &[u8]) -> Option<(Vec<u8>, Cipher)> {
        let payload = read(&mut self.0, answer).ok()?;
        Some((payload, Cipher(self.0.into_transport_mode().ok()?)))
    }
}

/// The root's side.
#[derive(Debug)]
pub(super) struct Responder(HandshakeState);

impl Responder {
    /// Takes the first message; gives its payload. `None` when it was not made with the secret, for this challenge.
    pub(super) fn begin(secret: &Secret, challenge: &Bytes32, message: &[u8]) -> Option<(Self, Vec<u8>)> {
        let mut state = start(secret, challenge, false).ok()?;
        let payload = read(&mut state, message).ok()?;
        Some((Self(state), payload))
    }

    /// Gives the answer and the keys.
    ///
    /// # Errors
    /// The system's random generator does not work.
    pub(super) fn finish(mut self, payload: &[u8]) -> std::io::Result<(Vec<u8>, Cipher)> {
        let answer = write(&mut self.0, payload).map_err(|error| builder_error(&error))?;
        let cipher = self.0.into_transport_mode().map_err(|error| builder_error(&error))?;
        Ok((answer, Cipher(cipher)))
    }
}

/// The keys of a connection, one for each direction, and how many records each has sealed.
#[derive(Debug)]
pub(super) struct Cipher(TransportState);

impl Cipher {
    /// Seals bytes into as many records as they take.
    ///
    /// # Errors
    /// [`FrameError::Sealed`] after 2^64 records, which no run reaches.
    pub(super) fn seal(&mut self, plain: &[u8]) -> Result<Vec<u8>, FrameError> {
        let most = MAX_RECORD - TAG;
        let records = plain.len().div_ceil(most);
        let mut sealed = vec![0; plain.len() + records * (LENGTH + TAG)];
        let mut rest = sealed.as_mut_slice();
        for part in plain.chunks(most) {
            let bytes = part.len() + TAG;
            let (record, behind) = rest.split_at_mut_checked(LENGTH + bytes).ok_or(FrameError::Sealed)?;
            let (length, body) = record.split_at_mut_checked(LENGTH).ok_or(FrameError::Sealed)?;
            length.copy_from_slice(&(bytes as u16).to_be_bytes());
            self.0.write_message(part, body).map_err(|_| FrameError::Sealed)?;
            rest = behind;
        }
        Ok(sealed)
    }

    /// Opens the first record of `sealed`, if it is there whole, and appends its bytes to `plain`; gives the bytes that the
    /// record took.
    ///
    /// # Errors
    /// [`FrameError::Sealed`]: it was not made by the other side, or is not the next one.
    pub(super) fn open(&mut self, sealed: &[u8], plain: &mut Vec<u8>) -> Result<Option<usize>, FrameError> {
        let Some((length, rest)) = sealed.split_first_chunk::<LENGTH>() else { return Ok(None) };
        let bytes = usize::from(u16::from_be_bytes(*length));
        // An empty record would be free to send and never end.
        let content = bytes.checked_sub(TAG).filter(|content| *content > 0).ok_or(FrameError::Sealed)?;
        let Some(body) = rest.get(..bytes) else { return Ok(None) };
        let old = plain.len();
        plain.resize(old + content, 0);
        let opened =
            plain.get_mut(old..).map(|room| self.0.read_message(body, room)).ok_or(FrameError::Sealed)?;
        match opened {
            Ok(read) if read == content => Ok(Some(LENGTH + bytes)),
            _ => {
                plain.truncate(old);
                Err(FrameError::Sealed)
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Both sides of a connection.
    pub(in crate::tcp) fn pair() -> (Cipher, Cipher) {
        let (secret, challenge) = (Secret::new("secret"), [3; 32]);
        let (initiator, first) = Initiator::begin(&secret, &challenge, b"hello").unwrap();
        let (responder, payload) = Responder::begin(&secret, &challenge, &first).unwrap();
        assert_eq!(payload, b"hello");
        let (second, root) = responder.finish(b"welcome").unwrap();
        let (payload, newcomer) = initiator.finish(&second).unwrap();
        assert_eq!(payload, b"welcome");
        (newcomer, root)
    }

    fn open_all(cipher: &mut Cipher, mut sealed: &[u8]) -> Result<Vec<u8>, FrameError> {
        let mut plain = Vec::new();
        while let Some(taken) = cipher.open(sealed, &mut plain)? {
            sealed = &sealed[taken..];
        }
        assert!(sealed.is_empty());
        Ok(plain)
    }

    #[test]
    fn only_who_knows_the_secret_and_the_challenge_makes_or_reads_a_message() {
        let (secret, challenge) = (Secret::new("secret"), [3; 32]);
        let (initiator, first) = Initiator::begin(&secret, &challenge, b"rank 1").unwrap();
        assert!(Responder::begin(&Secret::new("guess"), &challenge, &first).is_none());
        assert!(Responder::begin(&Secret::none(), &challenge, &first).is_none());
        assert!(Responder::begin(&secret, &[4; 32], &first).is_none(), "a recorded message opens nothing");
        assert!(!first.windows(6).any(|part| part == b"rank 1"), "the payload is not in the clear");
        let (false_root, _) = Initiator::begin(&secret, &challenge, b"rank 1").unwrap();
        assert!(false_root.finish(&first).is_none(), "a message reflected is no answer");
        // An answer to another peer's message.
        let (_, other) = Initiator::begin(&secret, &challenge, b"rank 1").unwrap();
        let (responder, _) = Responder::begin(&secret, &challenge, &other).unwrap();
        assert!(initiator.finish(&responder.finish(b"").unwrap().0).is_none());
    }

    #[test]
    fn bytes_cross_and_records_neither_repeat_nor_swap_nor_reflect() {
        let (mut newcomer, mut root) = pair();
        for length in [1, 65_519, 65_520, 200_000] {
            let plain: Vec<u8> = (0..length).map(|i: u32| i as u8).collect();
            let sealed = newcomer.seal(&plain).unwrap();
            assert_eq!(open_all(&mut root, &sealed).unwrap(), plain);
        }
        assert!(newcomer.seal(b"").unwrap().is_empty());
        let (first, second) = (newcomer.seal(b"first").unwrap(), newcomer.seal(b"second").unwrap());
        assert_eq!(open_all(&mut newcomer, &first), Err(FrameError::Sealed), "its own record");
        assert_eq!(open_all(&mut root, &second), Err(FrameError::Sealed), "not its turn");
        assert_eq!(open_all(&mut root, &first).unwrap(), b"first");
        assert_eq!(open_all(&mut root, &first), Err(FrameError::Sealed), "again");
        assert_eq!(open_all(&mut root, &[0, 16, 0, 0]), Err(FrameError::Sealed), "without content");
    }

    proptest! {
        #[test]
        fn no_flipped_bit_is_opened(plain in prop::collection::vec(any::<u8>(), 1..60), at: prop::sample::Index) {
            let (mut newcomer, mut root) = pair();
            let mut sealed = newcomer.seal(&plain).unwrap();
            let bit = at.index(sealed.len() * 8);
            sealed[bit / 8] ^= 1 << (bit % 8);
            let mut opened = Vec::new();
            // A longer length may wait for more; nothing is ever given out.
            prop_assert!(!matches!(root.open(&sealed, &mut opened), Ok(Some(_))));
            prop_assert!(opened.is_empty());
        }
    }
}
