//! Entries, doorbells and doorbell records against bytes typed from the tables of the formats.

use anabranch_transport_rdma::{Atomics, POSTED_FENCED, PostedOpcode, PostedRequest, Provider, ReadOrder};
use bytemuck::Zeroable as _;

use crate::device::bench::{
    AskedRequest, Bench, COMPARE_SWAP, FETCH_ADD, FETCH_AND, FETCH_OR, FETCH_XOR, LOCAL_KEY, POST, READ,
    REMOTE_KEY, RESULTS_KEY, SWAP, Setup, WRITE, WRITE_IMMEDIATE, WRITE_VALUE, read,
};

/// Where the queues of this file begin: what a NIC counts in 16 bits is 0x3447, and the place in a ring of 64 is 7.
const FIRST: u64 = 0x2_3447;
/// Its row of `bnxt_re`'s sequence numbers: rings have 64 entries here, and the table 128 rows.
const FIRST_ROW: usize = FIRST as usize % 128;

fn bench(provider: Provider) -> Bench {
    Bench::new(Setup { first: FIRST, ..Setup::new(provider) })
}

/// Bytes from hexadecimal digits.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// Posts the requests one behind the other from one lane, with no NIC there, and checks that all was well.
fn post(bench: &Bench, requests: &[AskedRequest]) -> Vec<u64> {
    let requests: Vec<_> = requests.iter().map(|request| AskedRequest { how: POST, ..*request }).collect();
    let outcomes = bench.run(&bench.spec(), &requests, requests.len() as u64, 1);
    assert!(outcomes.iter().all(|outcome| outcome.status == 0), "{outcomes:?}, {:?}", bench.fault());
    outcomes.iter().map(|outcome| outcome.end).collect()
}

/// The bytes of the ring from slot `slot` on.
fn ring(bench: &Bench, slot: usize) -> Vec<u8> {
    read::<u8>(&bench.queues[0].ring).split_off(slot * 64)
}

/// Where unused values are put.
fn discard(bench: &Bench) -> [u8; 8] {
    (bench.queues[0].results.address().0 + u64::from(bench.setup.entries) * 16).to_be_bytes()
}

#[test]
fn mlx5_writes_and_reads() {
    let bench = bench(Provider::Mlx5);
    let (local, remote) = (bench.local.address().0, bench.remote.address().0);
    let immediate = AskedRequest {
        immediate: 0xa1b2_c3d4,
        fenced: 1,
        ..bench.ask(WRITE_IMMEDIATE, 0x100, 0x200, 0x1234)
    };
    let value = AskedRequest { value: 0x1122_3344_5566_7788, ..bench.ask(WRITE_VALUE, 0, 0x300, 8) };
    let short = AskedRequest { bytes: 2, ..value };
    let nothing_but_immediate = AskedRequest { bytes: 0, immediate: 7, fenced: 0, ..immediate };
    let requests = [
        bench.ask(WRITE, 0x40, 0x80, 0x0102),
        immediate,
        bench.ask(READ, 0x10, 0x20, 1),
        value,
        short,
        nothing_but_immediate,
        bench.ask(WRITE, 0x40, 0x80, 0),
    ];
    let ends = post(&bench, &requests);
    let at = |position: u64| FIRST + position;
    // The last is nothing, and done at once.
    assert_eq!(ends, [at(1), at(2), at(3), at(4), at(5), at(6), FIRST]);
    let parts: [&[&[u8]]; 6] = [
        &[
            &hex("00 3447 08  0abcde 03  00 00 00 08  00000000"),
            &(remote + 0x80).to_be_bytes(),
            &hex("11223344 00000000"),
            &hex("00000102 55667788"),
            &(local + 0x40).to_be_bytes(),
        ],
        &[
            &hex("00 3448 09  0abcde 03  00 00 00 88  a1b2c3d4"),
            &(remote + 0x200).to_be_bytes(),
            &hex("11223344 00000000"),
            &hex("00001234 55667788"),
            &(local + 0x100).to_be_bytes(),
        ],
        &[
            &hex("00 3449 10  0abcde 03  00 00 00 08  00000000"),
            &(remote + 0x20).to_be_bytes(),
            &hex("11223344 00000000"),
            &hex("00000001 55667788"),
            &(local + 0x10).to_be_bytes(),
        ],
        &[
            &hex("00 344a 08  0abcde 03  00 00 00 08  00000000"),
            &(remote + 0x300).to_be_bytes(),
            &hex("11223344 00000000"),
            &hex("80000008 88776655 44332211 00000000"),
        ],
        &[
            &hex("00 344b 08  0abcde 03  00 00 00 08  00000000"),
            &(remote + 0x300).to_be_bytes(),
            &hex("11223344 00000000"),
            &hex("80000002 88770000 00000000 00000000"),
        ],
        &[
            &hex("00 344c 09  0abcde 02  00 00 00 08  00000007"),
            &(remote + 0x200).to_be_bytes(),
            &hex("11223344 00000000"),
        ],
    ];
    let ring = ring(&bench, 7);
    for (index, parts) in parts.iter().enumerate() {
        let expected = parts.concat();
        assert_eq!(ring[index * 64..][..expected.len()], expected, "entry {index}");
    }
    let words = read::<u8>(&bench.queues[0].words);
    assert_eq!(words[64..72], hex("ffffffff 0000344d"), "the send queue's record is the second word");
    assert_eq!(
        words[72..80],
        hex("00 344c 09  0abcde 02"),
        "the doorbell has the last control segment's beginning"
    );
    assert_eq!(read::<u64>(&bench.queues[0].positions), [at(6), at(6), FIRST]);
}

#[test]
fn mlx5_operations_on_words() {
    let bench = bench(Provider::Mlx5);
    let remote = bench.remote.address().0;
    let (value, compare) = (0x0102_0304_0506_0708, 0x1112_1314_1516_1718);
    let of = |opcode, word_bytes| bench.word(opcode, 0x40, word_bytes, value, compare);
    let opcodes = [FETCH_ADD, COMPARE_SWAP, FETCH_XOR, SWAP, FETCH_AND, FETCH_OR];
    let requests: Vec<_> = opcodes.iter().flat_map(|opcode| [of(*opcode, 4), of(*opcode, 8)]).collect();
    let ends = post(&bench, &requests);
    // Control segment, operands, and how many bytes come back; those of 8 bytes that swap by masks are two blocks.
    let expected: [(&str, &str, &str); 12] = [
        ("08 3447 15  0abcde 04", "05060708 00000000 00000000 00000000", "00000004"),
        ("00 3448 12  0abcde 04", "0102030405060708 0000000000000000", "00000008"),
        ("08 3449 14  0abcde 04", "05060708 15161718 ffffffff ffffffff", "00000004"),
        ("00 344a 11  0abcde 04", "0102030405060708 1112131415161718", "00000008"),
        ("08 344b 15  0abcde 04", "05060708 ffffffff 00000000 00000000", "00000004"),
        ("09 344c 15  0abcde 04", "0102030405060708 ffffffffffffffff", "00000008"),
        ("08 344d 14  0abcde 04", "05060708 00000000 ffffffff 00000000", "00000004"),
        (
            "09 344e 14  0abcde 05",
            "0102030405060708 0000000000000000 ffffffffffffffff 0000000000000000",
            "00000008",
        ),
        ("08 3450 14  0abcde 04", "00000000 00000000 faf9f8f7 00000000", "00000004"),
        (
            "09 3451 14  0abcde 05",
            "0000000000000000 0000000000000000 fefdfcfbfaf9f8f7 0000000000000000",
            "00000008",
        ),
        ("08 3453 14  0abcde 04", "05060708 00000000 05060708 00000000", "00000004"),
        (
            "09 3454 14  0abcde 05",
            "0102030405060708 0000000000000000 0102030405060708 0000000000000000",
            "00000008",
        ),
    ];
    let ring = ring(&bench, 7);
    let mut position = 0;
    for (index, (control, operands, bytes)) in expected.iter().enumerate() {
        let parts: [&[u8]; 7] = [
            &hex(control),
            &hex("00000008 00000000"),
            &(remote + 0x40).to_be_bytes(),
            &hex("11223344 00000000"),
            &hex(operands),
            &hex(&format!("{bytes} 99aabbcc")),
            &discard(&bench),
        ];
        let entry = parts.concat();
        assert_eq!(ring[position * 64..][..entry.len()], entry, "entry {index}");
        // What the NIC tells of a completion is the first block.
        assert_eq!(ends[index], FIRST + position as u64 + 1);
        position += entry.len().div_ceil(64);
    }
    let words = read::<u8>(&bench.queues[0].words);
    assert_eq!(words[64..80], hex("ffffffff 00003456 09 3454 14 0abcde 05"));
}

/// The second block of an entry at the ring's end is its first place; and 16 bits of a count go round.
#[test]
fn mlx5_entries_of_two_blocks_wrap() {
    let bench = Bench::new(Setup { first: 0xffff, entries: 16, ..Setup::new(Provider::Mlx5) });
    let swap = bench.word(SWAP, 8, 8, 5, 0);
    assert_eq!(post(&bench, &[swap]), [0x1_0000]);
    let ring = read::<u8>(&bench.queues[0].ring);
    assert_eq!(ring[15 * 64..][..8], hex("09 ffff 14  0abcde 05"));
    assert_eq!(ring[..16], [hex("00000008 99aabbcc"), discard(&bench).to_vec()].concat());
    let words = read::<u8>(&bench.queues[0].words);
    assert_eq!(words[64..80], hex("ffffffff 00000001 09 ffff 14 0abcde 05"));
}

#[test]
fn posted_requests_field_by_field() {
    let bench = bench(Provider::Posted);
    let (local, remote) = (bench.local.address().0, bench.remote.address().0);
    let requests = [
        bench.ask(WRITE, 0x40, 0x80, 0x0102),
        AskedRequest { immediate: 0xa1b2_c3d4, fenced: 1, ..bench.ask(WRITE_IMMEDIATE, 0x100, 0x200, 0) },
        bench.ask(READ, 0x10, 0x20, 1),
        AskedRequest { value: 0x1122_3344_5566_7788, ..bench.ask(WRITE_VALUE, 0, 0x300, 4) },
        bench.word(FETCH_ADD, 0x40, 8, 5, 6),
        bench.word(COMPARE_SWAP, 0x48, 8, 7, 8),
    ];
    post(&bench, &requests);
    let base = PostedRequest { remote_key: REMOTE_KEY, ..PostedRequest::zeroed() };
    let results = u64::from_be_bytes(discard(&bench));
    let fetching = PostedRequest { local: results, local_key: RESULTS_KEY, bytes: 8, ..base };
    let moving = PostedRequest { local_key: LOCAL_KEY, ..base };
    let expected = [
        PostedRequest { local: local + 0x40, remote: remote + 0x80, bytes: 0x102, opcode: 1, ..moving },
        PostedRequest {
            local: local + 0x100,
            remote: remote + 0x200,
            opcode: 2,
            immediate: 0xa1b2_c3d4,
            flags: POSTED_FENCED,
            // Of no bytes, of no range.
            local_key: 0,
            ..moving
        },
        PostedRequest { local: local + 0x10, remote: remote + 0x20, bytes: 1, opcode: 3, ..moving },
        PostedRequest { remote: remote + 0x300, value: 0x5566_7788, bytes: 4, opcode: 4, ..base },
        PostedRequest { remote: remote + 0x40, value: 5, opcode: 5, ..fetching },
        PostedRequest { remote: remote + 0x48, value: 7, compare: 8, opcode: 6, ..fetching },
    ];
    let ring: Vec<PostedRequest> = read(&bench.queues[0].ring);
    for (index, expected) in expected.into_iter().enumerate() {
        let expected = PostedRequest { stamp: FIRST + index as u64 + 1, ..expected };
        assert_eq!(bytemuck::bytes_of(&ring[7 + index]), bytemuck::bytes_of(&expected), "entry {index}");
    }
    assert_eq!(read::<u64>(&bench.queues[0].words)[9], FIRST + 6, "the doorbell");
    let numbers = [
        PostedOpcode::Write,
        PostedOpcode::WriteImmediate,
        PostedOpcode::Read,
        PostedOpcode::WriteValue,
        PostedOpcode::FetchAdd,
        PostedOpcode::CompareSwap,
    ];
    assert_eq!(numbers.map(|opcode| opcode as u32), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn bnxt_entries_sequence_numbers_and_doorbell() {
    // The next packet's number is near its end, and packets have 1024 bytes.
    let bench = Bench::new(Setup { first: 0xff_fffe << 40 | FIRST, ..Setup::new(Provider::Bnxt) });
    let (local, remote) = (bench.local.address().0, bench.remote.address().0);
    let immediate =
        AskedRequest { immediate: 0xa1b2_c3d4, fenced: 1, ..bench.ask(WRITE_IMMEDIATE, 0, 0x200, 0) };
    let requests = [
        bench.ask(WRITE, 0x40, 0x80, 0x0801),
        immediate,
        bench.ask(READ, 0x10, 0x20, 1),
        AskedRequest { value: 0x1122_3344_5566_7788, ..bench.ask(WRITE_VALUE, 0, 0x300, 4) },
        bench.word(FETCH_ADD, 0x40, 8, 0x0102_0304_0506_0708, 9),
        bench.word(COMPARE_SWAP, 0x48, 8, 7, 8),
    ];
    let ends = post(&bench, &requests);
    assert_eq!(ends, [1, 2, 3, 4, 5, 6].map(|more| FIRST + more));
    let mut discard = discard(&bench);
    discard.reverse();
    let parts: [&[&[u8]]; 6] = [
        &[
            &hex("04 01 0300  00000000  01080000 00000000"),
            &(remote + 0x80).to_le_bytes(),
            &hex("44332211 00000000"),
            &(local + 0x40).to_le_bytes(),
            &hex("88776655 01080000"),
        ],
        &[
            &hex("05 03 0300  d4c3b2a1  00000000 00000000"),
            &(remote + 0x200).to_le_bytes(),
            &hex("44332211 00000000"),
            &local.to_le_bytes(),
            &hex("00000000 00000000"),
        ],
        &[
            &hex("06 01 0300  00000000  01000000 00000000"),
            &(remote + 0x20).to_le_bytes(),
            &hex("44332211 00000000"),
            &(local + 0x10).to_le_bytes(),
            &hex("88776655 01000000"),
        ],
        &[
            &hex("04 11 0300  00000000  04000000 00000000"),
            &(remote + 0x300).to_le_bytes(),
            &hex("44332211 00000000"),
            &hex("88776655 00000000 00000000 00000000"),
        ],
        &[
            &hex("0b 01 0300  44332211"),
            &(remote + 0x40).to_le_bytes(),
            &hex("0807060504030201 0000000000000000"),
            &discard,
            &hex("ccbbaa99 08000000"),
        ],
        &[
            &hex("08 01 0300  44332211"),
            &(remote + 0x48).to_le_bytes(),
            &hex("0700000000000000 0800000000000000"),
            &discard,
            &hex("ccbbaa99 08000000"),
        ],
    ];
    let ring = read::<u8>(&bench.queues[0].ring);
    for (index, parts) in parts.iter().enumerate() {
        assert_eq!(ring[(7 + index) * 48..][..48], parts.concat(), "entry {index}");
    }
    // First slot, next number, first number: the first message is three packets, the others one each.
    let table = &read::<u64>(&bench.queues[0].sequences)[FIRST_ROW..FIRST_ROW + 6];
    let expected = [
        0x0015_000001_fffffe,
        0x0018_000002_000001,
        0x001b_000003_000002,
        0x001e_000004_000003,
        0x0021_000005_000004,
        0x0024_000006_000005,
    ];
    assert_eq!(table, expected);
    assert_eq!(read::<u64>(&bench.queues[0].positions)[..2], [(6 << 40) | (FIRST + 6), FIRST + 6]);
    // 0x2344d is place 13 of an odd lap: slot 39.
    assert_eq!(read::<u64>(&bench.queues[0].words)[9], 0x040a_bcde_0100_0027);
}

/// The dump reads a byte of the queue's results behind the read, and is what is told of and rung for.
#[test]
fn mlx5_posts_a_dump_after_a_read_where_completions_need_one() {
    let read_order = ReadOrder::Dumped;
    let bench = Bench::new(Setup { first: FIRST, read_order, ..Setup::new(Provider::Mlx5) });
    let (local, remote) = (bench.local.address().0, bench.remote.address().0);
    let requests = [bench.ask(READ, 0x10, 0x20, 0x40), bench.ask(WRITE, 0x10, 0x20, 8)];
    assert_eq!(post(&bench, &requests[..1]), [FIRST + 2], "both are waited for");
    let words = read::<u8>(&bench.queues[0].words);
    assert_eq!(words[64..80], hex("ffffffff 00003449  00 3448 23  0abcde 02"), "record, doorbell");
    assert_eq!(post(&bench, &requests[1..]), [FIRST + 3], "a write brings nothing");
    let parts: [&[&[u8]]; 3] = [
        &[
            &hex("00 3447 10  0abcde 03  00 00 00 00  00000000"),
            &(remote + 0x20).to_be_bytes(),
            &hex("11223344 00000000"),
            &hex("00000040 55667788"),
            &(local + 0x10).to_be_bytes(),
        ],
        &[&hex("00 3448 23  0abcde 02  00 00 00 88  00000000  00000001 99aabbcc"), &discard(&bench)],
        &[&hex("00 3449 08  0abcde 03  00 00 00 08  00000000"), &(remote + 0x20).to_be_bytes()],
    ];
    let ring = ring(&bench, 7);
    for (index, parts) in parts.iter().enumerate() {
        let expected = parts.concat();
        assert_eq!(ring[index * 64..][..expected.len()], expected, "entry {index}");
    }
}

#[test]
fn ionic_entries_and_doorbell() {
    // An odd lap: no colour.
    let mut bench =
        Bench::new(Setup { first: FIRST, doorbell_value: 0x0500_0000, ..Setup::new(Provider::Ionic) });
    let (local, remote) = (bench.local.address().0, bench.remote.address().0);
    let immediate = AskedRequest {
        immediate: 0xa1b2_c3d4,
        fenced: 1,
        ..bench.ask(WRITE_IMMEDIATE, 0x100, 0x200, 0x1234)
    };
    let requests = [
        bench.ask(WRITE, 0x40, 0x80, 0x0102),
        immediate,
        bench.ask(READ, 0x10, 0x20, 1),
        AskedRequest { value: 0x1122_3344_5566_7788, ..bench.ask(WRITE_VALUE, 0, 0x300, 4) },
        bench.word(FETCH_ADD, 0x40, 8, 0x0102_0304_0506_0708, 9),
        bench.word(COMPARE_SWAP, 0x48, 8, 7, 0x1112_1314_1516_1718),
    ];
    post(&bench, &requests);
    let zeros = hex("00000000 00000000 00000000 00000000");
    let discard = discard(&bench);
    let parts: [&[&[u8]]; 6] = [
        &[
            &hex("4734020000000000  21 01 0008 00000000"),
            &(remote + 0x80).to_be_bytes(),
            &hex("11223344 00000102"),
            &(local + 0x40).to_be_bytes(),
            &hex("00000102 55667788"),
            &zeros,
        ],
        &[
            &hex("4834020000000000  61 01 0009 a1b2c3d4"),
            &(remote + 0x200).to_be_bytes(),
            &hex("11223344 00001234"),
            &(local + 0x100).to_be_bytes(),
            &hex("00001234 55667788"),
            &zeros,
        ],
        &[
            &hex("4934020000000000  02 01 0008 00000000"),
            &(remote + 0x20).to_be_bytes(),
            &hex("11223344 00000001"),
            &(local + 0x10).to_be_bytes(),
            &hex("00000001 55667788"),
            &zeros,
        ],
        &[
            &hex("4a34020000000000  21 00 000c 00000000"),
            &(remote + 0x300).to_be_bytes(),
            &hex("11223344 00000004"),
            &hex("88776655 00000000 00000000 00000000"),
            &zeros,
        ],
        &[
            &hex("4b34020000000000  05 01 0008 00000000"),
            &(remote + 0x40).to_be_bytes(),
            &hex("11223344 01020304 05060708 00000000 00000000 99aabbcc"),
            &discard,
            &hex("00000000 00000000"),
        ],
        &[
            &hex("4c34020000000000  04 01 0008 00000000"),
            &(remote + 0x48).to_be_bytes(),
            &hex("11223344 00000000 00000007 11121314 15161718 99aabbcc"),
            &discard,
            &hex("00000000 00000000"),
        ],
    ];
    let found = ring(&bench, 7);
    for (index, parts) in parts.iter().enumerate() {
        assert_eq!(found[index * 64..][..64], parts.concat(), "entry {index}");
    }
    assert_eq!(read::<u64>(&bench.queues[0].words)[9], 0x0500_000d);
    // An even lap has the colour.
    bench = Bench::new(Setup { first: 0x80, ..Setup::new(Provider::Ionic) });
    post(&bench, &[bench.ask(WRITE, 0, 0, 8)]);
    assert_eq!(ring(&bench, 0)[..16], hex("8000000000000000  21 01 0018 00000000"));
}

#[test]
fn long_messages_are_cut_and_the_immediate_is_the_last() {
    let setup = Setup { most_message_bytes: 1000, atomics: Atomics::None, ..Setup::new(Provider::Posted) };
    let bench = Bench::new(setup);
    let immediate = AskedRequest { immediate: 9, fenced: 1, ..bench.ask(WRITE_IMMEDIATE, 0x10, 0x20, 2500) };
    let ends = post(&bench, &[immediate, bench.ask(READ, 0, 0, 2000)]);
    assert_eq!(ends, [3, 5]);
    let ring: Vec<PostedRequest> = read(&bench.queues[0].ring);
    let seen = |index: usize| {
        let entry = ring[index];
        let at = entry.local - bench.local.address().0;
        (
            entry.opcode,
            at,
            entry.remote - bench.remote.address().0 - at,
            entry.bytes,
            entry.immediate,
            entry.flags,
        )
    };
    let expected = [
        (1, 0x10, 0x10, 1000, 0, 1),
        (1, 0x10 + 1000, 0x10, 1000, 0, 0),
        (2, 0x10 + 2000, 0x10, 500, 9, 0),
        (3, 0, 0, 1000, 0, 0),
        (3, 1000, 0, 1000, 0, 0),
    ];
    for (index, expected) in expected.into_iter().enumerate() {
        assert_eq!(seen(index), expected, "piece {index}");
    }
}
