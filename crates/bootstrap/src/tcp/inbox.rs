//! What has arrived on a connection: bytes in, checked frames out. No I/O.

use super::noise::Cipher;
use crate::frame::{FrameError, HEADER, Header};

/// A frame that has arrived and been checked.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) header: Header,
    pub(super) payload: Vec<u8>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    /// Records that are still to be opened; empty as long as nothing is encrypted.
    sealed: Vec<u8>,
    /// Bytes of frames; those before `taken` are used up.
    plain: Vec<u8>,
    taken: usize,
    encrypted: bool,
    limit: u64,
}

impl Inbox {
    /// For frames whose payload has at most `limit` bytes.
    pub(super) fn new(limit: u64) -> Self {
        Self { limit, ..Self::default() }
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    pub(super) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// What has not been taken yet, and what arrives from here on, is records.
    pub(super) fn encrypt(&mut self) {
        self.sealed = self.plain.split_off(self.taken);
        self.encrypted = true;
    }

    /// Takes in what has arrived.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let arrived = if self.encrypted { &mut self.sealed } else { &mut self.plain };
        arrived.extend_from_slice(bytes);
    }

    /// Throws away what has arrived.
    pub(super) fn discard(&mut self) {
        self.sealed = Vec::new();
        self.plain = Vec::new();
        self.taken = 0;
    }

    /// The next frame, if it has arrived whole. After an error the connection is of no more use.
    ///
    /// Memory is taken for what has arrived, never for what a header announces.
    pub(super) fn next_frame(
        &mut self,
        mut cipher: Option<&mut Cipher>,
    ) -> Result<Option<Frame>, FrameError> {
        let mut opened = 0;
        let frame = loop {
            if let Some(frame) = self.parse()? {
                break Some(frame);
            }
            let (Some(cipher), true) = (cipher.as_deref_mut(), self.encrypted) else { break None };
            self.plain.drain(..self.taken);
            self.taken = 0;
            match cipher.open(&self.sealed[opened..], &mut self.plain)? {
                Some(record) => opened += record,
                None => break None,
            }
        };
        self.sealed.drain(..opened);
        if frame.is_none() {
            self.plain.drain(..self.taken);
            self.taken = 0;
        }
        Ok(frame)
    }

    fn parse(&mut self) -> Result<Option<Frame>, FrameError> {
        let rest = &self.plain[self.taken..];
        let Some((head, rest)) = rest.split_first_chunk::<HEADER>() else { return Ok(None) };
        let header = Header::decode(head, self.limit)?;
        let Some(payload) = usize::try_from(header.length).ok().and_then(|length| rest.get(..length)) else {
            return Ok(None);
        };
        header.check(payload)?;
        let frame = Frame { header, payload: payload.to_vec() };
        self.taken += HEADER + frame.payload.len();
        Ok(Some(frame))
    }

    /// Bytes of memory held.
    #[cfg(test)]
    fn held(&self) -> usize {
        self.sealed.capacity() + self.plain.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::super::noise::tests::pair;
    use super::*;
    use crate::frame::Kind;
    use proptest::prelude::*;

    const LIMIT: u64 = 300;

    /// Twice what a frame can have and what arrives at once, since a growing vector doubles.
    const MOST: usize = 2 * (HEADER + LIMIT as usize + 2 * 64);

    fn frames() -> impl Strategy<Value = Vec<(u64, Vec<u8>)>> {
        prop::collection::vec((any::<u64>(), prop::collection::vec(any::<u8>(), 0..=LIMIT as usize)), 0..6)
    }

    fn encode(frames: &[(u64, Vec<u8>)]) -> Vec<Vec<u8>> {
        let frame = |(sequence, payload): &(u64, Vec<u8>)| {
            [&Header::of(Kind::Set, 1, *sequence, payload).encode()[..], payload].concat()
        };
        frames.iter().map(frame).collect()
    }

    /// What comes out when bytes arrive in pieces of this size.
    fn receive(
        inbox: &mut Inbox,
        mut cipher: Option<&mut Cipher>,
        bytes: &[u8],
        piece: usize,
    ) -> Result<Vec<(u64, Vec<u8>)>, FrameError> {
        let mut out = Vec::new();
        for part in bytes.chunks(piece) {
            inbox.push(part);
            while let Some(frame) = inbox.next_frame(cipher.as_deref_mut())? {
                out.push((frame.header.sequence, frame.payload));
            }
        }
        Ok(out)
    }

    proptest! {
        #[test]
        fn frames_come_out_whole_in_any_pieces_clear_and_sealed(frames in frames(), piece in 1_usize..400, clear in 0_usize..6) {
            let clear = clear.min(frames.len());
            let (mut newcomer, mut root) = pair();
            let encoded = encode(&frames);
            let mut bytes = encoded[..clear].concat();
            let mut inbox = Inbox::new(LIMIT);
            // The first sealed bytes may arrive together with the last clear ones.
            for frame in &encoded[clear..] {
                bytes.extend(newcomer.seal(frame).unwrap());
            }
            let mut out = Vec::new();
            let mut rest = bytes.as_slice();
            while out.len() < clear {
                let (part, behind) = rest.split_at(piece.min(rest.len()));
                rest = behind;
                inbox.push(part);
                while out.len() < clear && let Some(frame) = inbox.next_frame(None).unwrap() {
                    out.push((frame.header.sequence, frame.payload));
                }
            }
            inbox.encrypt();
            out.extend(receive(&mut inbox, Some(&mut root), &[], 1).unwrap());
            while let Some(frame) = inbox.next_frame(Some(&mut root)).unwrap() {
                out.push((frame.header.sequence, frame.payload));
            }
            out.extend(receive(&mut inbox, Some(&mut root), rest, piece).unwrap());
            prop_assert_eq!(out, frames);
        }

        /// Whatever arrives: no panic, and no memory beyond what a frame may have.
        #[test]
        fn noise_neither_panics_nor_fills_memory(noise in prop::collection::vec(any::<u8>(), 0..3000), piece in 1_usize..64, encrypted: bool) {
            let (_, mut root) = pair();
            let mut inbox = Inbox::new(LIMIT);
            // A record on each side of the key, which has at most 64 KiB.
            let most = MOST + usize::from(encrypted) * 4 * (64 << 10);
            if encrypted {
                inbox.encrypt();
            }
            for part in noise.chunks(piece) {
                inbox.push(part);
                let ended = inbox.next_frame(encrypted.then_some(&mut root)).is_err();
                prop_assert!(inbox.held() <= most);
                if ended {
                    break;
                }
            }
        }

        /// Good headers with any length and any bytes behind them: frames up to the limit, an error above.
        #[test]
        fn announced_lengths_take_no_memory(length: u64, behind in prop::collection::vec(any::<u8>(), 0..600), piece in 1_usize..64) {
            let header = Header { kind: Kind::Set, sender: 0, sequence: 0, length, payload_checksum: 0 };
            let mut inbox = Inbox::new(LIMIT);
            inbox.push(&header.encode());
            let first = inbox.next_frame(None).map(|_| ());
            prop_assert_eq!(first.is_err(), length > LIMIT);
            if first.is_ok() {
                for part in behind.chunks(piece) {
                    inbox.push(part);
                    let ended = inbox.next_frame(None).is_err();
                    prop_assert!(inbox.held() <= MOST);
                    if ended {
                        break;
                    }
                }
            }
        }
    }
}
