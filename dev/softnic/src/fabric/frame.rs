//! What NICs say to each other, and how it lies in a stream.

use crate::decode::{AtomicOperation, Width};
use crate::syndrome::Syndrome;

/// One thing that a queue pair says to its peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Number of the queue pair that says it.
    pub source: u32,
    /// Number of the queue pair that it is for.
    pub target: u32,
    /// Of a request: its place among the requests of its queue pair. Of an answer: that of the request.
    pub sequence: u64,
    /// What is said.
    pub body: Body,
}

/// A request or its answer. Requests are done in the order of their sequence; each has one answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A part of a write.
    Write {
        /// Where the whole message goes.
        address: u64,
        /// Bytes of the whole message.
        total: u64,
        /// Where in the message this part is.
        offset: u64,
        /// The remote key.
        key: u32,
        /// With the last part: what the receive queue gets.
        immediate: Option<u32>,
        /// The part.
        bytes: Vec<u8>,
    },
    /// A part of a read; answered by `Data`.
    Read {
        /// Where the whole message comes from.
        address: u64,
        /// Bytes of the whole message.
        total: u64,
        /// Where in the message this part is.
        offset: u64,
        /// The remote key.
        key: u32,
        /// Bytes of the part.
        bytes: u32,
    },
    /// An atomic operation; answered by `Old`.
    Atomic {
        /// Where.
        address: u64,
        /// The remote key.
        key: u32,
        /// Which.
        operation: AtomicOperation,
    },
    /// Answer to a part of a write: it is placed.
    Placed,
    /// Answer to a part of a read.
    Data(Vec<u8>),
    /// Answer to an atomic operation: the old value.
    Old(u64),
    /// Answer to any request: it was not done, nor is any after it.
    Refused(Syndrome),
}

impl Body {
    /// Whether it is an answer.
    pub fn is_answer(&self) -> bool {
        matches!(self, Self::Placed | Self::Data(_) | Self::Old(_) | Self::Refused(_))
    }
}

/// Why bytes are no frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadFrame {
    #[error("a frame of {bytes} bytes; the maximum is {most}")]
    Long { bytes: usize, most: usize },
    /// It ends too early or too late, or has a number that means nothing.
    #[error("a frame with an undefined {what}")]
    Meaning { what: &'static str },
}

/// Bytes before a frame that say how many follow.
const LENGTH: usize = 4;

/// Puts a frame behind what is to be sent.
pub(crate) fn encode(frame: &Frame, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend([0; LENGTH]);
    out.extend(frame.source.to_le_bytes());
    out.extend(frame.target.to_le_bytes());
    out.extend(frame.sequence.to_le_bytes());
    match &frame.body {
        Body::Write { address, total, offset, key, immediate, bytes } => {
            out.push(1);
            numbers(out, &[*address, *total, *offset, u64::from(*key)]);
            numbers(out, &[u64::from(immediate.is_some()), u64::from(immediate.unwrap_or(0))]);
            out.extend(bytes);
        }
        Body::Read { address, total, offset, key, bytes } => {
            out.push(2);
            numbers(out, &[*address, *total, *offset, u64::from(*key), u64::from(*bytes)]);
        }
        Body::Atomic { address, key, operation } => {
            out.push(3);
            numbers(out, &[*address, u64::from(*key)]);
            let (code, width) = match operation {
                AtomicOperation::FetchAdd { .. } => (1, Width::Eight),
                AtomicOperation::CompareSwap { .. } => (2, Width::Eight),
                AtomicOperation::MaskedFetchAdd { width, .. } => (3, *width),
                AtomicOperation::MaskedCompareSwap { width, .. } => (4, *width),
            };
            let operands = match *operation {
                AtomicOperation::FetchAdd { value } => [value, 0, 0, 0],
                AtomicOperation::CompareSwap { compare, swap } => [compare, swap, 0, 0],
                AtomicOperation::MaskedFetchAdd { value, boundary, .. } => [value, boundary, 0, 0],
                AtomicOperation::MaskedCompareSwap { compare, compare_mask, swap, swap_mask, .. } => {
                    [compare, compare_mask, swap, swap_mask]
                }
            };
            numbers(out, &[code, u64::from(width.bytes())]);
            numbers(out, &operands);
        }
        Body::Placed => out.push(4),
        Body::Data(bytes) => {
            out.push(5);
            out.extend(bytes);
        }
        Body::Old(value) => {
            out.push(6);
            numbers(out, &[*value]);
        }
        Body::Refused(syndrome) => {
            out.push(7);
            out.push(syndrome.number());
        }
    }
    let length = (out.len() - start - LENGTH) as u32;
    out[start..start + LENGTH].copy_from_slice(&length.to_le_bytes());
}

/// Takes the first frame off what has come, and how many bytes it took; none where it is not all there yet.
pub(crate) fn decode(bytes: &[u8], most: usize) -> Result<Option<(Frame, usize)>, BadFrame> {
    let Some(length) = bytes.first_chunk::<LENGTH>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if length > most {
        return Err(BadFrame::Long { bytes: length, most });
    }
    let Some(all) = bytes.get(LENGTH..LENGTH + length) else { return Ok(None) };
    let mut rest = Rest(all);
    let (source, target, sequence) = (rest.short()?, rest.short()?, rest.number()?);
    let body = match rest.byte()? {
        1 => {
            let (address, total, offset, key) = (rest.number()?, rest.number()?, rest.number()?, rest.key()?);
            let (has, value) = (rest.number()?, rest.key()?);
            let immediate = (has == 1).then_some(value);
            Body::Write { address, total, offset, key, immediate, bytes: rest.all() }
        }
        2 => {
            let (address, total, offset, key) = (rest.number()?, rest.number()?, rest.number()?, rest.key()?);
            Body::Read { address, total, offset, key, bytes: rest.key()? }
        }
        3 => {
            let (address, key) = (rest.number()?, rest.key()?);
            Body::Atomic { address, key, operation: rest.operation()? }
        }
        4 => Body::Placed,
        5 => Body::Data(rest.all()),
        6 => Body::Old(rest.number()?),
        7 => Body::Refused(Syndrome::of(rest.byte()?).ok_or(BadFrame::Meaning { what: "syndrome" })?),
        _ => return Err(BadFrame::Meaning { what: "kind" }),
    };
    if !rest.0.is_empty() {
        return Err(BadFrame::Meaning { what: "end" });
    }
    Ok(Some((Frame { source, target, sequence, body }, LENGTH + length)))
}

fn numbers(out: &mut Vec<u8>, numbers: &[u64]) {
    for number in numbers {
        out.extend(number.to_le_bytes());
    }
}

/// What is left of a frame.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn take<const BYTES: usize>(&mut self) -> Result<[u8; BYTES], BadFrame> {
        let (first, rest) = self.0.split_first_chunk().ok_or(BadFrame::Meaning { what: "length" })?;
        self.0 = rest;
        Ok(*first)
    }

    fn byte(&mut self) -> Result<u8, BadFrame> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn short(&mut self) -> Result<u32, BadFrame> {
        self.take().map(u32::from_le_bytes)
    }

    fn number(&mut self) -> Result<u64, BadFrame> {
        self.take().map(u64::from_le_bytes)
    }

    /// A number of 32 bits that has 64.
    fn key(&mut self) -> Result<u32, BadFrame> {
        u32::try_from(self.number()?).map_err(|_| BadFrame::Meaning { what: "number of 32 bits" })
    }

    fn all(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.0).to_vec()
    }

    fn operation(&mut self) -> Result<AtomicOperation, BadFrame> {
        let code = self.number()?;
        let width = match self.number()? {
            4 => Width::Four,
            8 => Width::Eight,
            _ => return Err(BadFrame::Meaning { what: "width" }),
        };
        let [first, second, third, fourth] = [self.number()?, self.number()?, self.number()?, self.number()?];
        match code {
            1 => Ok(AtomicOperation::FetchAdd { value: first }),
            2 => Ok(AtomicOperation::CompareSwap { compare: first, swap: second }),
            3 => Ok(AtomicOperation::MaskedFetchAdd { width, value: first, boundary: second }),
            4 => Ok(AtomicOperation::MaskedCompareSwap {
                width,
                compare: first,
                compare_mask: second,
                swap: third,
                swap_mask: fourth,
            }),
            _ => Err(BadFrame::Meaning { what: "operation" }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_operation() -> impl Strategy<Value = AtomicOperation> {
        (0..4u32, any::<bool>(), any::<[u64; 4]>()).prop_map(
            |(kind, wide, [first, second, third, fourth])| {
                let width = if wide { Width::Eight } else { Width::Four };
                match kind {
                    0 => AtomicOperation::FetchAdd { value: first },
                    1 => AtomicOperation::CompareSwap { compare: first, swap: second },
                    2 => AtomicOperation::MaskedFetchAdd { width, value: first, boundary: second },
                    _ => AtomicOperation::MaskedCompareSwap {
                        width,
                        compare: first,
                        compare_mask: second,
                        swap: third,
                        swap_mask: fourth,
                    },
                }
            },
        )
    }

    fn any_body() -> impl Strategy<Value = Body> {
        let payload = || prop::collection::vec(any::<u8>(), 0..100);
        let place = || any::<(u64, u64, u64, u32)>();
        prop_oneof![
            (place(), any::<Option<u32>>(), payload()).prop_map(
                |((address, total, offset, key), immediate, bytes)| Body::Write {
                    address,
                    total,
                    offset,
                    key,
                    immediate,
                    bytes
                }
            ),
            (place(), any::<u32>()).prop_map(|((address, total, offset, key), bytes)| Body::Read {
                address,
                total,
                offset,
                key,
                bytes
            }),
            (any::<u64>(), any::<u32>(), any_operation())
                .prop_map(|(address, key, operation)| Body::Atomic { address, key, operation }),
            Just(Body::Placed),
            payload().prop_map(Body::Data),
            any::<u64>().prop_map(Body::Old),
            prop::sample::select(Syndrome::ALL.to_vec()).prop_map(Body::Refused),
        ]
    }

    proptest! {
        #[test]
        fn frames_come_back(source: u32, target: u32, sequence: u64, body in any_body(), behind in 0usize..9) {
            let frame = Frame { source, target, sequence, body };
            let mut bytes = Vec::new();
            encode(&frame, &mut bytes);
            let whole = bytes.len();
            for short in 0..whole {
                prop_assert_eq!(decode(&bytes[..short], 1 << 20), Ok(None));
            }
            bytes.extend(vec![0xff; behind]);
            prop_assert_eq!(decode(&bytes, 1 << 20), Ok(Some((frame, whole))));
        }

        #[test]
        fn other_bytes_are_refused_or_wait(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            // Whatever it says, nothing is taken that is not there.
            if let Ok(Some((_, taken))) = decode(&bytes, 100) {
                prop_assert!(taken <= bytes.len() && taken <= 104);
            }
        }
    }

    #[test]
    fn a_frame_that_is_too_long_is_not_waited_for() {
        assert_eq!(decode(&[1, 1, 0, 0], 256), Err(BadFrame::Long { bytes: 257, most: 256 }));
    }
}
