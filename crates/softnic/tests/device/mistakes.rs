//! Kernels with one mistake in what they write: a NIC in software notices each, or what they do is not what was asked.

use std::time::Duration;

use anabranch_clock::sleep;
use anabranch_softnic::{Adversary, SoftNicConfig};

use crate::pair::{
    AskedRequest, COMPARE_SWAP, FETCH_ADD, POST_AND_QUIET, Pair, Setup, WRITE_IMMEDIATE, WRITE_VALUE,
};

const PATIENCE: Duration = Duration::from_millis(200);

/// What came of some requests that say much: whether all is as it should be, and why queue pairs have stopped.
fn run(mistake: u32, adversary: Option<Adversary>) -> (bool, Vec<String>) {
    let config = SoftNicConfig { adversary, patience: PATIENCE, ..SoftNicConfig::default() };
    let setup = Setup { budget: Duration::from_millis(1500), queues: 1, ..Setup::new(config) };
    let pair = Pair::new(setup);
    // Twice round the ring.
    let mut requests = Vec::new();
    for value in 0..36u64 {
        requests.push(match value % 4 {
            0 => pair.word(0, FETCH_ADD, 128, 8, 0x0102, 0),
            1 => pair.word(0, COMPARE_SWAP, 136, 8, value, value.saturating_sub(4)),
            2 => AskedRequest {
                immediate: value as u32,
                how: POST_AND_QUIET,
                ..pair.ask(0, WRITE_IMMEDIATE, 0, 256, 64)
            },
            _ => AskedRequest { value, how: POST_AND_QUIET, ..pair.ask(0, WRITE_VALUE, 0, 512, 8) },
        });
    }
    let spec = pair.spec().with("RDMA_MUTANT", mistake);
    let outcomes = pair.run(&spec, [&requests, &[]], requests.len() as u64, 1);
    let there = &pair.sides[1];
    let immediates: Vec<_> = there.nic.take_immediates().iter().map(|came| u64::from(came.value)).collect();
    let well = outcomes[0].iter().all(|outcome| outcome.status == 0)
        && there.load_64(128) == 9 * 0x0102
        && there.load_64(136) == 33
        && there.load_64(512) == 35
        && immediates == (2..36).step_by(4).collect::<Vec<u64>>();
    // A record that is ahead of its doorbell is wrong when no doorbell comes any more.
    sleep(3 * PATIENCE);
    let stopped = pair.sides[0].stopped();
    (well && stopped.is_empty(), stopped)
}

/// `rdma::CodecMutant`, as far as mlx5 has it, and what the NIC says to it; nothing where only the values tell.
const MISTAKES: [(u32, &str, &[&str]); 10] = [
    (1, "the slot for the index", &["index"]),
    (2, "no completion asked for", &["asks for no completion"]),
    (3, "no record", &["and its record of those up to 0"]),
    (4, "a little-endian record", &["high half of the doorbell record"]),
    (5, "the doorbell of the ring's beginning", &["doorbell"]),
    // The doorbell says how long the entry is, too.
    (
        6,
        "a segment more",
        &["units", "the doorbell tells of entries up to position 2, and its record of those up to 1"],
    ),
    (7, "no inline bit", &[]),
    (8, "the immediate's order", &[]),
    (9, "the operands' order", &[]),
    (
        12,
        "a record of more blocks",
        &["the doorbell record tells of entries", "the entry at position", "the producer is"],
    ),
];

#[test]
fn without_a_mistake_all_is_well() {
    for adversary in [None, Some(Adversary::new(1))] {
        assert_eq!(run(0, adversary), (true, Vec::new()));
    }
}

#[test]
fn each_mistake_is_caught() {
    for (mistake, what, texts) in MISTAKES {
        for adversary in [None, Some(Adversary::new(3))] {
            let (well, stopped) = run(mistake, adversary);
            assert!(!well, "{what} goes unnoticed");
            let said = |why: &String| texts.iter().any(|text| why.contains(text));
            assert!(texts.is_empty() || stopped.iter().any(said), "{what}: {stopped:?}");
        }
    }
}
