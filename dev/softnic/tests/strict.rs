//! Each way in which a kernel could write to its NIC wrongly is noticed, with and without an adversary.

use crate::common;

use std::time::Duration;

use anabranch_clock::sleep;
use anabranch_ranks::GlobalRank;
use anabranch_softnic::{Adversary, SoftNicConfig};

use crate::common::encode::{self, Control};
use crate::common::{Poster, Way, World};

const ENTRIES: u32 = 16;

/// Long enough for a busy machine, unless a test waits for its end.
const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(200);

fn configs(doorbell_patience: Duration) -> Vec<SoftNicConfig> {
    let adversaries = [None, Some(Adversary::new(1)), Some(Adversary::new(2))];
    adversaries
        .map(|adversary| SoftNicConfig { adversary, doorbell_patience, ..SoftNicConfig::default() })
        .to_vec()
}

/// Does something wrong, after some requests as they should be, and looks for why the queue pair has stopped.
fn caught(what: &str, before: u64, texts: &[&str], wrong: impl Fn(&mut World)) {
    caught_within(LONG, what, before, texts, wrong);
}

/// The same, by a NIC that waits for doorbells for so long.
fn caught_within(
    doorbell_patience: Duration,
    what: &str,
    before: u64,
    texts: &[&str],
    wrong: impl Fn(&mut World),
) {
    for config in configs(doorbell_patience) {
        let mut world = World::new(2, &Way::in_process(), ENTRIES, &config);
        for value in 0..before {
            let to = world.ranks[1].remote(0);
            world.poster(0, 1).post(|control| encode::write_inline(control, to, &value.to_ne_bytes()));
            world.poster(0, 1).quiet().unwrap();
        }
        wrong(&mut world);
        let why = world.poster(0, 1).stopped();
        assert!(
            texts.iter().any(|text| why.contains(text)),
            "{what} (adversary {:?}): {why}",
            config.adversary
        );
    }
}

/// A write of a word, which is right.
fn right(world: &World) -> impl Fn(&Control) -> Vec<u8> + use<> {
    let to = world.ranks[1].remote(0);
    move |control| encode::write_inline(control, to, &[1; 8])
}

/// Writes entries and tells of none.
fn put(world: &mut World, entries: u64) {
    let make = right(world);
    let poster = world.poster(0, 1);
    for _ in 0..entries {
        let entry = make(&poster.control());
        poster.put(&entry);
    }
}

/// Posts an entry after something was done to its bytes.
fn changed(world: &mut World, change: impl Fn(&mut Vec<u8>)) {
    let make = right(world);
    let poster = world.poster(0, 1);
    let mut entry = make(&poster.control());
    change(&mut entry);
    poster.put(&entry);
    poster.ring();
}

/// How the entry begins that was put at a position of the right kind.
fn first_bytes(world: &mut World, position: u64) -> [u8; 8] {
    let make = right(world);
    let control = Control::new(position, world.poster(0, 1).words.number);
    make(&control)[..8].try_into().unwrap()
}

#[test]
fn doorbells() {
    caught("no doorbell record", 3, &["its record entries up to 3"], |world| {
        put(world, 1);
        let value = first_bytes(world, 3);
        world.poster(0, 1).doorbell(value);
    });
    caught("a little-endian record", 3, &["high half of the doorbell record"], |world| {
        put(world, 1);
        let value = first_bytes(world, 3);
        let poster = world.poster(0, 1);
        poster.record(&(poster.posted as u32).to_le_bytes());
        poster.doorbell(value);
    });
    caught_within(
        SHORT,
        "the first entry's value at the doorbell",
        0,
        &["the last doorbell entries up to 1"],
        |world| {
            put(world, 2);
            let value = first_bytes(world, 0);
            let poster = world.poster(0, 1);
            poster.record(&(poster.posted as u32).to_be_bytes());
            poster.doorbell(value);
        },
    );
    caught(
        "a doorbell for no entry's beginning",
        2,
        &["not the start of the entry that ends at", "cannot be"],
        |world| {
            put(world, 1);
            let mut value = first_bytes(world, 2);
            value[3] = 0x09;
            let poster = world.poster(0, 1);
            poster.record(&(poster.posted as u32).to_be_bytes());
            poster.doorbell(value);
        },
    );
    caught_within(SHORT, "no doorbell", 0, &["the last doorbell entries up to 0"], |world| {
        put(world, 1);
        let poster = world.poster(0, 1);
        poster.record(&(poster.posted as u32).to_be_bytes());
    });
    caught("doorbells out of order", 0, &["went back to index 0x0000"], |world| {
        put(world, 2);
        let (first, second) = (first_bytes(world, 0), first_bytes(world, 1));
        let poster = world.poster(0, 1);
        poster.record(&(poster.posted as u32).to_be_bytes());
        poster.doorbell(second);
        poster.quiet().unwrap();
        poster.doorbell(first);
    });
    caught("another queue pair's number at the doorbell", 2, &["qpn"], |world| {
        put(world, 1);
        let mut value = first_bytes(world, 2);
        value[6] ^= 1;
        let poster = world.poster(0, 1);
        poster.record(&(poster.posted as u32).to_be_bytes());
        poster.doorbell(value);
    });
}

#[test]
fn positions() {
    caught(
        "the slot in place of the running counter",
        16,
        &["wqe_index is 0x0 and must be 0x10", "went back"],
        |world| {
            changed(world, |entry| entry[1..3].copy_from_slice(&[0, 0]));
        },
    );
    caught("a loose gate at the ring's end", 0, &["entries up to position 17 in a ring of 16"], |world| {
        put(world, 17);
        world.poster(0, 1).ring();
    });
    caught("an entry that was not written anew", 16, &["was not written since", "wqe_index"], |world| {
        // As if a store of the entry were still on its way.
        let value = first_bytes(world, 16);
        let poster = world.poster(0, 1);
        poster.posted += 1;
        poster.record(&(poster.posted as u32).to_be_bytes());
        poster.doorbell(value);
    });
    caught("an entry half of which is there", 1, &["of which", "the producer is 2"], |world| {
        let to = world.ranks[1].remote(0);
        let old = world.ranks[0].local(0, 8);
        let poster = world.poster(0, 1);
        let kind = encode::MASKED_COMPARE_SWAP_8;
        let entry = encode::atomic(&poster.control(), kind, to, &[1, 2, 3, 4], old);
        poster.put(&entry);
        // One block of two is told of, by the record and by a doorbell that follows its lead.
        poster.record(&2u32.to_be_bytes());
        let mut value: [u8; 8] = entry[..8].try_into().unwrap();
        value[7] = 4;
        poster.doorbell(value);
    });
}

#[test]
fn an_entry_that_is_overwritten_before_its_completion() {
    let machine = common::machine(2);
    let way = Way::in_process();
    let ranks = [0, 1].map(|rank| common::Rank::new(&machine, rank, &way, SoftNicConfig::default()));
    let (here, there) = (ranks[0].queue(1, 0, ENTRIES), ranks[1].queue(0, 0, ENTRIES));
    here.connect(GlobalRank::new(1), &there.endpoint()).unwrap();
    let mut poster = Poster::new(here, &ranks[0]);
    let to = ranks[1].remote(0);
    poster.post(|control| encode::write_inline(control, to, &[1; 8]));
    // The peer does not listen yet: the entry is fetched and not done.
    sleep(Duration::from_millis(50));
    poster.memory.write(poster.words.ring.0 + 36, &[9; 8]).unwrap();
    there.connect(GlobalRank::new(0), &poster.queue.endpoint()).unwrap();
    assert!(poster.stopped().contains("position 0 was overwritten before it was complete"));
    assert_eq!(ranks[1].load(0, 8), [1; 8]);
}

#[test]
fn a_doorbell_before_the_connection() {
    let machine = common::machine(2);
    let rank = common::Rank::new(&machine, 0, &Way::in_process(), SoftNicConfig::default());
    let mut poster = Poster::new(rank.queue(1, 0, ENTRIES), &rank);
    poster.post(encode::nop);
    assert!(poster.stopped().contains("before the queue pair was connected"));
}

#[test]
fn entries() {
    caught("the flag of completion on the wrong entry", 2, &["requests no completion"], |world| {
        let make = right(world);
        let poster = world.poster(0, 1);
        for completes in [true, false] {
            let control = Control { completes, ..poster.control() };
            let entry = make(&control);
            poster.put(&entry);
        }
        poster.ring();
    });
    // A unit more is one that was not written, as the NIC left it or of zeros.
    for change in [1i8, -1] {
        caught(
            "ds off by one",
            2,
            &["as many units as its inline data", "a data segment or inline data"],
            |world| {
                changed(world, |entry| entry[7] = entry[7].wrapping_add_signed(change));
            },
        );
    }
    caught("ds above 15", 0, &["an entry of 16 units", "1 to 15"], |world| {
        changed(world, |entry| entry[7] = 16);
    });
    caught("no inline bit", 2, &["local protection error"], |world| {
        changed(world, |entry| entry[32] &= 0x7f);
    });
    caught("a fence that is none", 2, &["fm 2 is undefined"], |world| {
        changed(world, |entry| entry[11] |= 2 << 5);
    });
    caught("a completion mode that is none", 2, &["ce 3 is undefined"], |world| {
        changed(world, |entry| entry[11] |= 3 << 2);
    });
    caught("another queue pair's number", 2, &["qpn"], |world| changed(world, |entry| entry[6] ^= 4));
    caught("an opcode that is none", 2, &["opcode 0x0a"], |world| changed(world, |entry| entry[3] = 0x0a));
    caught("a key of the wrong order", 2, &["remote access error"], |world| {
        changed(world, |entry| entry[24..28].reverse());
    });
}

#[test]
fn atomics() {
    type Change = fn(&mut Vec<u8>);
    let cases: [(&str, Change, &str); 5] = [
        (
            "a segment of 4 bytes for an old value of 8",
            |entry| entry[51] = 4,
            "the old value's segment of 4 bytes",
        ),
        ("a word off its boundary", |entry| entry[23] |= 4, "remote address"),
        ("an old value off its boundary", |entry| entry[63] |= 4, "local address"),
        ("ds off by one", |entry| entry[7] = 5, "5 units"),
        ("a modifier", |entry| entry[0] = 9, "with modifier 0x9"),
    ];
    for (what, change, text) in cases {
        caught(what, 1, &[text], |world| {
            let (to, old) = (world.ranks[1].remote(64), world.ranks[0].local(0, 8));
            let poster = world.poster(0, 1);
            let mut entry = encode::atomic(&poster.control(), encode::FETCH_ADD, to, &[1, 0], old);
            change(&mut entry);
            entry.resize((entry[7] as usize).div_ceil(4) * 64, 0);
            poster.put(&entry);
            poster.ring();
        });
    }
}

#[test]
fn completions_are_found_by_count_not_owner_bit() {
    let mut world = World::new(2, &Way::in_process(), ENTRIES, &SoftNicConfig::default());
    let mut bits = Vec::new();
    for _ in 0..4 {
        world.poster(0, 1).post(encode::nop);
        world.poster(0, 1).quiet().unwrap();
        let poster = world.poster(0, 1);
        let mut last = [0];
        poster.memory.read(poster.words.completions.0 + 63, &mut last).unwrap();
        bits.push(last[0] & 1);
    }
    assert_eq!(bits, [1, 0, 1, 0]);
}
