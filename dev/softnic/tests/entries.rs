//! What the decoder makes of entries that are written by hand, and of random ones.

use anabranch_softnic::decode::{
    AtomicOperation, Entry, Expected, POISON, Remote, Request, Segment, Source, Width, Wrong, mlx5,
};
use proptest::prelude::*;

use crate::common::encode::{self, Control, fields, halves};

const EXPECTED: Expected = Expected { position: 0x1_2345, entries: 32, number: 0x00ab_cdef, most_inline: 28 };

fn decode(bytes: &[u8]) -> Result<Entry, Wrong> {
    mlx5::entry(bytes, &EXPECTED)
}

/// An entry from hexadecimal digits, filled up to a block with what was there before.
fn golden(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|digit| digit.to_digit(16)).collect();
    let mut bytes: Vec<u8> = digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect();
    bytes.resize(bytes.len().div_ceil(64) * 64, 0x77);
    bytes
}

const REMOTE: Remote = Remote { address: 0x0011_2233_4455_6678, key: 0x8899_aabb };

#[test]
fn entries_written_by_hand() {
    let segment = |address, bytes| Segment { address, bytes, key: 0x0102_0304 };
    let write = |source, immediate| Request::Write { source, remote: REMOTE, immediate };
    let atomic =
        |operation, bytes| Request::Atomic { operation, remote: REMOTE, target: segment(0x1_0000, bytes) };
    let cases = [
        ("00234500 abcdef01 00000008 00000000", Request::Nop),
        (
            "00234508 abcdef03 00000008 00000000  00112233 44556678 8899aabb 00000000  00000040 01020304 00000000 00001001",
            write(Source::Gather(vec![segment(0x1001, 64)]), None),
        ),
        (
            "00234508 abcdef04 00000008 00000000  00112233 44556678 8899aabb 00000000
             80000010 61626364 65666768 696a6b6c  6d6e6f70 00000000 00000000 00000000",
            write(Source::Inline(b"abcdefghijklmnop".to_vec()), None),
        ),
        (
            "00234509 abcdef03 00000008 deadbeef  00112233 44556678 8899aabb 00000000  00000003 01020304 00000000 00001001",
            write(Source::Gather(vec![segment(0x1001, 3)]), Some(0xdead_beef)),
        ),
        (
            "00234509 abcdef02 00000008 00000001  00112233 44556678 8899aabb 00000000",
            write(Source::Gather(Vec::new()), Some(1)),
        ),
        (
            "00234510 abcdef05 00000008 00000000  00112233 44556678 8899aabb 00000000  00000008 01020304 00000000 00001001
             7fffffff 01020304 00000002 00001001  00000001 01020304 00000000 00000003",
            Request::Read {
                targets: vec![segment(0x1001, 8), segment(0x2_0000_1001, 0x7fff_ffff), segment(3, 1)],
                remote: REMOTE,
            },
        ),
        (
            "00234511 abcdef04 00000008 00000000  00112233 44556678 8899aabb 00000000
             00000000 00000007 00000001 00000002  00000008 01020304 00000000 00010000",
            atomic(AtomicOperation::CompareSwap { swap: 7, compare: 0x1_0000_0002 }, 8),
        ),
        (
            "00234512 abcdef04 00000008 00000000  00112233 44556678 8899aabb 00000000
             00000001 00000007 db0bdb0b db0bdb0b  00000008 01020304 00000000 00010000",
            atomic(AtomicOperation::FetchAdd { value: 0x1_0000_0007 }, 8),
        ),
        (
            "08234514 abcdef04 00000008 00000000  00112233 44556678 8899aabb 00000000
             00000001 00000002 00000003 00000004  00000004 01020304 00000000 00010000",
            atomic(
                AtomicOperation::MaskedCompareSwap {
                    width: Width::Four,
                    swap: 1,
                    compare: 2,
                    swap_mask: 3,
                    compare_mask: 4,
                },
                4,
            ),
        ),
        (
            "09234514 abcdef05 00000008 00000000  00112233 44556678 8899aabb 00000000
             00000001 00000002 00000003 00000004  00000005 00000006 00000007 00000008  00000008 01020304 00000000 00010000",
            atomic(
                AtomicOperation::MaskedCompareSwap {
                    width: Width::Eight,
                    swap: halves(1, 2),
                    compare: halves(3, 4),
                    swap_mask: halves(5, 6),
                    compare_mask: halves(7, 8),
                },
                8,
            ),
        ),
        (
            "08234515 abcdef04 00000008 00000000  00112233 44556678 8899aabb 00000000
             00000001 80000000 00000000 00000000  00000004 01020304 00000000 00010000",
            atomic(AtomicOperation::MaskedFetchAdd { width: Width::Four, value: 1, boundary: 0x8000_0000 }, 4),
        ),
        (
            "09234515 abcdef04 00000008 00000000  00112233 44556678 8899aabb 00000000
             00000001 00000002 00000003 00000004  00000008 01020304 00000000 00010000",
            atomic(
                AtomicOperation::MaskedFetchAdd { width: Width::Eight, value: halves(1, 2), boundary: halves(3, 4) },
                8,
            ),
        ),
    ];
    for (text, request) in cases {
        let bytes = golden(text);
        let blocks = (bytes.len() / 64) as u32;
        assert_eq!(decode(&bytes), Ok(Entry { blocks, waits: false, completes: true, request }), "{text}");
    }
}

#[test]
fn what_the_flags_say() {
    for (fence, waits) in [(0, false), (1, true), (4, true)] {
        for completes in [false, true] {
            let control = Control { completes, fence, ..Control::new(EXPECTED.position, EXPECTED.number) };
            let entry = decode(&encode::nop(&control)).unwrap();
            assert_eq!((entry.waits, entry.completes), (waits, completes));
        }
    }
}

#[test]
fn every_reserved_bit_must_be_zero() {
    let control = Control::new(EXPECTED.position, EXPECTED.number);
    let entry = encode::write(&control, (REMOTE.address, REMOTE.key), &[(4096, 8, 1)]);
    decode(&entry).unwrap();
    // (word, bits): what a write leaves at zero.
    let reserved = [(1, 0x0000_00c0), (2, 0xffff_ff13), (3, u32::MAX), (7, u32::MAX)];
    for (word, bits) in reserved {
        for bit in (0..32).filter(|bit| bits >> bit & 1 == 1) {
            let mut changed = entry.clone();
            changed[word * 4 + 3 - bit / 8] |= 1 << (bit % 8);
            let refused = decode(&changed);
            assert!(matches!(refused, Err(Wrong::Reserved { .. })), "word {word} bit {bit}: {refused:?}");
        }
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let control = Control::new(EXPECTED.position, EXPECTED.number);
    let to = (REMOTE.address, REMOTE.key);
    let with = |index: u64, number| encode::nop(&Control::new(index, number));
    assert_eq!(decode(&[POISON; 64]), Err(Wrong::NotRewritten));
    assert!(matches!(
        decode(&with(EXPECTED.position + 1, EXPECTED.number)),
        Err(Wrong::Differs { field: "wqe_index", .. })
    ));
    // The slot: the position within the ring.
    assert!(matches!(decode(&with(EXPECTED.position & 31, EXPECTED.number)), Err(Wrong::Differs { .. })));
    assert!(matches!(decode(&with(EXPECTED.position, 5)), Err(Wrong::Differs { field: "qpn", .. })));
    for units in [0, 16, 63] {
        let mut entry = encode::nop(&control);
        entry[7] = units;
        assert!(matches!(decode(&entry), Err(Wrong::Units { .. })), "{units}");
    }
    for (modifier, opcode) in
        [(0, 0x01), (0, 0x0a), (0, 0x0b), (0, 0x14), (0, 0x15), (1, 0x08), (8, 0x12), (10, 0x15)]
    {
        let entry = fields(4, &control.fields(modifier, opcode, 4));
        assert_eq!(decode(&entry), Err(Wrong::Opcode { opcode, modifier }));
    }
    let empty = encode::write(&control, to, &[(4096, 0, 1)]);
    assert!(matches!(decode(&empty), Err(Wrong::Bytes { what: "a data segment", .. })));
    assert!(matches!(decode(&encode::write(&control, to, &[])), Err(Wrong::Units { .. })));
    assert!(matches!(decode(&encode::read(&control, to, &[])), Err(Wrong::Units { .. })));
    let long = encode::write_inline(&control, to, &[1; 29]);
    assert!(matches!(decode(&long), Err(Wrong::Bytes { what: "inline data", bytes: 29, .. })));
    let mut inline_read = encode::read(&control, to, &[(4096, 8, 1)]);
    inline_read[32] |= 0x80;
    assert!(matches!(decode(&inline_read), Err(Wrong::Bytes { .. })));
    let mut mixed = encode::write(&control, to, &[(4096, 8, 1), (4096, 8, 1)]);
    mixed[48] |= 0x80;
    assert!(matches!(decode(&mixed), Err(Wrong::Bytes { what: "inline data among segments", .. })));
    let mut nop = encode::nop(&control);
    nop[7] = 2;
    assert!(matches!(decode(&nop), Err(Wrong::Units { .. })));
    assert!(matches!(decode(&encode::nop(&control)[..32]), Err(Wrong::Bytes { .. })));
    // Atomic operations: units, boundaries, sizes.
    let old = (4096, 8, 1);
    let make = |kind, to, old| encode::atomic(&control, kind, to, &[1, 0], old);
    decode(&make(encode::FETCH_ADD, to, old)).unwrap();
    for units in [3, 5] {
        let mut entry = make(encode::FETCH_ADD, to, old);
        entry[7] = units;
        entry.resize(usize::from(units).div_ceil(4) * 64, 0);
        assert!(matches!(decode(&entry), Err(Wrong::Units { .. })), "{units}");
    }
    for offset in [1, 2, 4] {
        let entry = make(encode::FETCH_ADD, (to.0 + offset, to.1), old);
        assert!(matches!(decode(&entry), Err(Wrong::Misaligned { what: "remote address", multiple: 8, .. })));
        let entry = make(encode::FETCH_ADD, to, (old.0 + offset, 8, 1));
        assert!(matches!(decode(&entry), Err(Wrong::Misaligned { what: "local address", .. })));
    }
    let four = make(encode::MASKED_FETCH_ADD_4, (to.0 + 4, to.1), (4100, 4, 1));
    decode(&four).unwrap();
    let two = make(encode::MASKED_FETCH_ADD_4, (to.0 + 2, to.1), (4100, 4, 1));
    assert!(matches!(decode(&two), Err(Wrong::Misaligned { multiple: 4, .. })));
    for (kind, bytes) in [(encode::FETCH_ADD, 4), (encode::MASKED_FETCH_ADD_4, 8), (encode::COMPARE_SWAP, 16)]
    {
        let entry = make(kind, to, (4096, bytes, 1));
        assert!(matches!(decode(&entry), Err(Wrong::Bytes { what: "the old value's segment", .. })));
    }
}

#[test]
fn doorbells_and_records() {
    let rung = mlx5::doorbell(*b"\x00\x23\x45\x08\xab\xcd\xef\x05", EXPECTED.number).unwrap();
    assert_eq!((rung.index, rung.number, rung.blocks), (0x2345, EXPECTED.number, 2));
    assert!(mlx5::doorbell(*b"\x00\x23\x45\x08\xab\xcd\xee\x05", EXPECTED.number).is_err());
    assert!(mlx5::doorbell(*b"\x00\x23\x45\x08\xab\xcd\xef\x45", EXPECTED.number).is_err());
    assert!(mlx5::doorbell(*b"\x00\x23\x45\x08\xab\xcd\xef\x00", EXPECTED.number).is_err());
    assert_eq!(mlx5::record([0, 0, 0x12, 0x34]), Ok(0x1234));
    assert!(mlx5::record([0x34, 0x12, 0, 0]).is_err());
}

#[test]
fn masked_operations() {
    let add = |width, value, boundary| AtomicOperation::MaskedFetchAdd { width, value, boundary };
    assert_eq!(add(Width::Four, 1, 0).apply(0xffff_ffff), 0, "nothing is carried out of 32 bits");
    assert_eq!(add(Width::Eight, 1, 0).apply(0xffff_ffff), 1 << 32);
    assert_eq!(add(Width::Eight, 1, 1 << 31).apply(0xffff_ffff), 0);
    assert_eq!(add(Width::Eight, 0x01_01, 0x80_80).apply(0xff_ff), 0, "fields of 8 bits");
    let swap = |compare, compare_mask| AtomicOperation::MaskedCompareSwap {
        width: Width::Eight,
        compare,
        compare_mask,
        swap: 0xabcd,
        swap_mask: 0xff,
    };
    assert_eq!(swap(0x1200, 0xff00).apply(0x1234), 0x12cd);
    assert_eq!(swap(0x1300, 0xff00).apply(0x1234), 0x1234);
    assert_eq!(swap(0, 0).apply(0x1234), 0x12cd, "without a mask it always swaps");
}

/// Any request, with the bytes that ask for it.
fn any_request() -> impl Strategy<Value = (Request, Vec<u8>)> {
    let segments = prop::collection::vec((any::<u64>(), 1u32..=0x7fff_ffff, any::<u32>()), 1..=6);
    let segments = segments.prop_map(|parts| {
        parts.into_iter().map(|(address, bytes, key)| Segment { address, bytes, key }).collect::<Vec<_>>()
    });
    let inline = prop::collection::vec(any::<u8>(), 1..=28);
    let operands = any::<[u64; 4]>();
    (0..12u32, segments, inline, any::<(u64, u32, u32)>(), operands).prop_map(
        |(kind, segments, inline, (address, key, value), operands)| {
            let control = Control::new(EXPECTED.position, EXPECTED.number);
            let plain: Vec<_> = segments.iter().map(|part| (part.address, part.bytes, part.key)).collect();
            let place = Remote { address, key };
            let to = (address, key);
            let gather = Source::Gather(segments.clone());
            match kind {
                0 => (Request::Nop, encode::nop(&control)),
                1 | 2 => {
                    let request = Request::Write { source: gather, remote: place, immediate: None };
                    (request, encode::write(&control, to, &plain))
                }
                3 => {
                    let request = Request::Write { source: gather, remote: place, immediate: Some(value) };
                    (request, encode::write_immediate(&control, to, &plain, value))
                }
                4 => {
                    let entry = encode::write_inline(&control, to, &inline);
                    (Request::Write { source: Source::Inline(inline), remote: place, immediate: None }, entry)
                }
                5 => (Request::Read { targets: segments, remote: place }, encode::read(&control, to, &plain)),
                _ => any_atomic(kind, &control, to, operands),
            }
        },
    )
}

fn any_atomic(kind: u32, control: &Control, to: (u64, u32), operands: [u64; 4]) -> (Request, Vec<u8>) {
    let [first, second, third, fourth] = operands;
    let half = |value: u64| value & 0xffff_ffff;
    let pair = |high: u64, low: u64| half(high) << 32 | half(low);
    let (code, operation, words) = match kind {
        6 => (
            encode::COMPARE_SWAP,
            AtomicOperation::CompareSwap { swap: first, compare: second },
            vec![first, second],
        ),
        7 => (encode::FETCH_ADD, AtomicOperation::FetchAdd { value: first }, vec![first, second]),
        8 => {
            let (value, boundary) = (half(first), half(second));
            let operation = AtomicOperation::MaskedFetchAdd { width: Width::Four, value, boundary };
            (encode::MASKED_FETCH_ADD_4, operation, vec![pair(first, second), 0])
        }
        9 => {
            let operation =
                AtomicOperation::MaskedFetchAdd { width: Width::Eight, value: first, boundary: second };
            (encode::MASKED_FETCH_ADD_8, operation, vec![first, second])
        }
        10 => {
            let operation = AtomicOperation::MaskedCompareSwap {
                width: Width::Four,
                swap: half(first),
                compare: half(second),
                swap_mask: half(third),
                compare_mask: half(fourth),
            };
            (encode::MASKED_COMPARE_SWAP_4, operation, vec![pair(first, second), pair(third, fourth)])
        }
        _ => {
            let operation = AtomicOperation::MaskedCompareSwap {
                width: Width::Eight,
                swap: first,
                compare: second,
                swap_mask: third,
                compare_mask: fourth,
            };
            (encode::MASKED_COMPARE_SWAP_8, operation, vec![first, second, third, fourth])
        }
    };
    let to = (to.0 & !7, to.1);
    let target = Segment { address: 0x10_0000, bytes: operation.width().bytes(), key: 3 };
    let old = (target.address, target.bytes, target.key);
    let remote = Remote { address: to.0, key: to.1 };
    (Request::Atomic { operation, target, remote }, encode::atomic(control, code, to, &words, old))
}

proptest! {
    #[test]
    fn random_requests_are_understood((request, bytes) in any_request()) {
        let blocks = (bytes.len() / 64) as u32;
        prop_assert_eq!(decode(&bytes), Ok(Entry { blocks, waits: false, completes: true, request }));
    }

    /// A bit that differs is refused or means something else, but for those that mean nothing.
    #[test]
    fn no_bit_is_overlooked((request, bytes) in any_request(), at in any::<prop::sample::Index>(), bit in 0..8u32) {
        let units = usize::from(bytes[7]);
        let at = at.index(units * 16);
        let adds = matches!(&request, Request::Atomic { operation: AtomicOperation::FetchAdd { .. }, .. });
        let padding = match &request {
            Request::Write { source: Source::Inline(inline), .. } => at >= 36 + inline.len(),
            _ => adds && (40..48).contains(&at),
        };
        prop_assume!(!padding);
        let mut changed = bytes.clone();
        changed[at] ^= 1 << bit;
        let was = Ok(Entry { blocks: (bytes.len() / 64) as u32, waits: false, completes: true, request });
        prop_assert_ne!(decode(&changed), was);
    }

    #[test]
    fn random_bytes_are_never_more_than_an_error(bytes in prop::collection::vec(any::<u8>(), 64..=64)) {
        let _ = decode(&bytes);
    }
}
