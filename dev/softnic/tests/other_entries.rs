//! What the decoders make of entries of `bnxt_re` and ionic that are written by hand.

use anabranch_softnic::decode::{
    AtomicOperation, Entry, Expected, POISON, Remote, Request, Segment, Source, Wrong, bnxt, ionic,
};

const EXPECTED: Expected = Expected { position: 0x1_2345, entries: 32, number: 0x00ab_cdef, most_inline: 28 };
const REMOTE: Remote = Remote { address: 0x0011_2233_4455_6678, key: 0x8899_aabb };

fn bytes(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

fn write(source: Source, immediate: Option<u32>) -> Request {
    Request::Write { source, remote: REMOTE, immediate }
}

fn segment(address: u64, bytes: u32) -> Segment {
    Segment { address, bytes, key: 0x0102_0304 }
}

/// Every bit of an entry that is changed makes it something else, or nothing; but for bits of `free` bytes.
fn no_bit_is_overlooked(entry: &[u8], decode: impl Fn(&[u8]) -> Result<Entry, Wrong>, free: &[usize]) {
    let was = decode(entry);
    assert!(was.is_ok(), "{was:?}");
    for at in (0..entry.len()).filter(|at| !free.contains(at)) {
        for bit in 0..8 {
            let mut changed = entry.to_vec();
            changed[at] ^= 1 << bit;
            assert_ne!(decode(&changed), was, "byte {at} bit {bit}");
        }
    }
}

// Of bnxt_re: slots of 16 bytes, little-endian words.
const BNXT_WRITE: &str = "04010300 00000000 40000000 00000000  7866554433221100 bbaa9988 00000000
                          0110000000000000 04030201 40000000";
const BNXT_IMMEDIATE: &str = "05010300 efbeadde 03000000 00000000  7866554433221100 bbaa9988 00000000
                              0110000000000000 04030201 03000000";
const BNXT_INLINE: &str = "04110300 00000000 08000000 00000000  7866554433221100 bbaa9988 00000000
                           6162636465666768 eeeeeeeeeeeeeeee";
const BNXT_READ: &str = "06030300 00000000 40000000 00000000  7866554433221100 bbaa9988 00000000
                         0110000000000000 04030201 40000000";
const BNXT_SWAP: &str = "08010300 bbaa9988 7866554433221100  0700000000000000 0200000001000000
                         0010000000000000 04030201 08000000";
const BNXT_ADD: &str = "0b010300 bbaa9988 7866554433221100  0700000001000000 dbdbdbdbdbdbdbdb
                        0010000000000000 04030201 08000000";

#[test]
fn entries_of_bnxt() {
    let gathered = |bytes| Source::Gather(vec![segment(0x1001, bytes)]);
    let atomic = |operation| Request::Atomic { operation, remote: REMOTE, target: segment(0x1000, 8) };
    let cases = [
        (BNXT_WRITE, false, write(gathered(64), None)),
        (BNXT_IMMEDIATE, false, write(gathered(3), Some(0xdead_beef))),
        (BNXT_INLINE, false, write(Source::Inline(b"abcdefgh".to_vec()), None)),
        (BNXT_READ, true, Request::Read { targets: vec![segment(0x1001, 64)], remote: REMOTE }),
        (BNXT_SWAP, false, atomic(AtomicOperation::CompareSwap { swap: 7, compare: 0x1_0000_0002 })),
        (BNXT_ADD, false, atomic(AtomicOperation::FetchAdd { value: 0x1_0000_0007 })),
    ];
    for (text, waits, request) in cases {
        let entry = bytes(text);
        assert_eq!(bnxt::entry(&entry, &EXPECTED), Ok(Entry { blocks: 1, waits, completes: true, request }));
        let decode = |entry: &[u8]| bnxt::entry(entry, &EXPECTED);
        let free: Vec<usize> = match text {
            BNXT_INLINE => (40..48).collect(),
            BNXT_ADD => (24..32).collect(),
            _ => Vec::new(),
        };
        if waits {
            // Either fence waits.
            let mut both = entry.clone();
            both[1] |= 4;
            assert_eq!(decode(&both), decode(&entry));
        } else {
            no_bit_is_overlooked(&entry, decode, &free);
        }
    }
    assert_eq!(bnxt::entry(&[POISON; 48], &EXPECTED), Err(Wrong::NotRewritten));
    assert!(matches!(bnxt::entry(&bytes(BNXT_WRITE)[..47], &EXPECTED), Err(Wrong::Bytes { .. })));
    let mut long = bytes(BNXT_INLINE);
    long[8] = 17;
    assert!(matches!(bnxt::entry(&long, &EXPECTED), Err(Wrong::Bytes { what: "inline data", .. })));
    let mut send = bytes(BNXT_WRITE);
    send[0] = 0;
    assert!(matches!(bnxt::entry(&send, &EXPECTED), Err(Wrong::Opcode { opcode: 0, .. })));
    for at in [8, 32] {
        let mut off = bytes(BNXT_ADD);
        off[at] |= 4;
        assert!(matches!(bnxt::entry(&off, &EXPECTED), Err(Wrong::Misaligned { multiple: 8, .. })), "{at}");
    }
}

#[test]
fn doorbells_and_sequences_of_bnxt() {
    let number = EXPECTED.number;
    // Slot 9 in an odd lap of a ring of 32 entries; the queue's low 20 bits, and the valid bit.
    let doorbell = bytes("09000001 efcd0b04").try_into().unwrap();
    assert_eq!(bnxt::doorbell(doorbell, number, 32), Ok(3 + 32));
    for change in ["08000001 efcd0b04", "60000001 efcd0b04", "09000003 efcd0b04", "09000001 eecd0b04"] {
        assert!(bnxt::doorbell(bytes(change).try_into().unwrap(), number, 32).is_err(), "{change}");
    }
    for change in ["09000001 efcd0b00", "09000001 efcd0b14", "09000005 efcd0b04"] {
        assert!(bnxt::doorbell(bytes(change).try_into().unwrap(), number, 32).is_err(), "{change}");
    }
    let sequence = bnxt::sequence(bytes("030201 060504 0807").try_into().unwrap());
    assert_eq!(sequence, bnxt::Sequence { slot: 0x0708, first: 0x0001_0203, next: 0x0004_0506 });
}

// Of ionic: the index little-endian, everything else big-endian; position 0x12345 lies in an even lap of a ring of 32 (0x12345 / 32 =
// 0x91a), which has the colour.
const IONIC_WRITE: &str = "4523010000000000 21 01 0018 00000000  00112233 44556678 8899aabb 00000040
                           0000000000001001 00000040 01020304  0000000000000000 0000000000000000";
const IONIC_IMMEDIATE: &str = "0500000000000000 61 01 0018 deadbeef  00112233 44556678 8899aabb 00000003
                               0000000000001001 00000003 01020304  0000000000000000 0000000000000000";
const IONIC_INLINE: &str = "4523010000000000 21 00 001c 00000000  00112233 44556678 8899aabb 00000008
                            6162636465666768 eeeeeeeeeeeeeeee  eeeeeeeeeeeeeeee eeeeeeeeeeeeeeee";
const IONIC_READ: &str = "4523010000000000 02 01 0019 00000000  00112233 44556678 8899aabb 00000040
                          0000000000001001 00000040 01020304  0000000000000000 0000000000000000";
const IONIC_SWAP: &str = "4523010000000000 04 01 0018 00000000  00112233 44556678 8899aabb
                          00000000 00000007 00000001 00000002 01020304 0000000000001000 0000000000000000";
const IONIC_ADD: &str = "4523010000000000 05 01 0018 00000000  00112233 44556678 8899aabb
                         00000001 00000007 dbdbdbdb dbdbdbdb 01020304 0000000000001000 0000000000000000";

#[test]
fn entries_of_ionic() {
    let gathered = |bytes| Source::Gather(vec![segment(0x1001, bytes)]);
    let atomic = |operation| Request::Atomic { operation, remote: REMOTE, target: segment(0x1000, 8) };
    let unused: Vec<usize> = (48..64).collect();
    let cases: [(&str, bool, Request, Vec<usize>); 6] = [
        (IONIC_WRITE, false, write(gathered(64), None), unused.clone()),
        (IONIC_IMMEDIATE, false, write(gathered(3), Some(0xdead_beef)), unused.clone()),
        (IONIC_INLINE, false, write(Source::Inline(b"abcdefgh".to_vec()), None), (40..64).collect()),
        (IONIC_READ, true, Request::Read { targets: vec![segment(0x1001, 64)], remote: REMOTE }, unused),
        (
            IONIC_SWAP,
            false,
            atomic(AtomicOperation::CompareSwap { swap: 7, compare: 0x1_0000_0002 }),
            (56..64).collect(),
        ),
        (
            IONIC_ADD,
            false,
            atomic(AtomicOperation::FetchAdd { value: 0x1_0000_0007 }),
            (36..44).chain(56..64).collect(),
        ),
    ];
    for (text, waits, request, free) in cases {
        let entry = bytes(text);
        let decode = |entry: &[u8]| ionic::entry(entry, &EXPECTED);
        assert_eq!(decode(&entry), Ok(Entry { blocks: 1, waits, completes: true, request }), "{text}");
        no_bit_is_overlooked(&entry, decode, &free);
    }
    let poisoned: Vec<u8> = (0..64).map(|at| if (8..16).contains(&at) { 0 } else { POISON }).collect();
    assert_eq!(ionic::entry(&poisoned, &EXPECTED), Err(Wrong::NotRewritten));
    // The lap before and behind has the other colour.
    let entry = bytes(IONIC_IMMEDIATE);
    for lap in [EXPECTED.position - 32, EXPECTED.position + 32] {
        let expected = Expected { position: lap, ..EXPECTED };
        assert!(matches!(ionic::entry(&entry, &expected), Err(Wrong::Differs { field: "colour", .. })));
    }
    let mut long = bytes(IONIC_INLINE);
    long[31] = 29;
    assert!(matches!(ionic::entry(&long, &EXPECTED), Err(Wrong::Bytes { what: "inline data", .. })));
}

#[test]
fn doorbells_of_ionic() {
    let value = 0x0000_abcd_ef00_0000;
    assert_eq!(ionic::doorbell(value | 31, value, 32), Ok(31));
    assert!(ionic::doorbell(value | 32, value, 32).is_err());
    assert!(ionic::doorbell((value + (1 << 24)) | 3, value, 32).is_err());
    assert!(ionic::doorbell(3, value, 32).is_err());
}
