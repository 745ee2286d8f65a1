//! Kernels with one mistake in what they write: a NIC in software notices each, or what they do is not what was asked.

use std::time::Duration;

use anabranch_clock::sleep;
use anabranch_softnic::{Adversary, SoftNicConfig};
use anabranch_testkit::mutant;
use anabranch_transport_rdma::{Provider, ReadOrder};

use crate::device::pair::{
    AskedRequest, COMPARE_SWAP, FETCH_ADD, POST_AND_QUIET, Pair, SWAP, Setup, WRITE_IMMEDIATE, WRITE_VALUE,
};

/// A record that is ahead of its doorbell is wrong only when no doorbell comes any more.
const AHEAD: &str = "CODEC_RECORD_OF_BLOCKS_MORE";
const PATIENCE: Duration = Duration::from_millis(100);

/// What came of some requests that say much: whether all is as it should be, and why queue pairs have stopped.
fn run(provider: Provider, mistake: Option<&str>, adversary: Option<Adversary>) -> (bool, Vec<String>) {
    let mut setup =
        Setup { queues: 1, ..Setup::new(SoftNicConfig { provider, adversary, ..SoftNicConfig::default() }) };
    if mistake == Some(AHEAD) {
        // All is well first, however slow the machine.
        setup.config.doorbell_patience = PATIENCE;
    } else if mistake.is_some() {
        setup.budget = Duration::from_secs(1);
    }
    let pair = Pair::new(setup);
    // Twice round the ring, and once round its table of sequence numbers.
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
    let spec = pair.spec().edited(&mistake.map(mutant).unwrap_or_default());
    let outcomes = pair.run(&spec, [&requests, &[]], requests.len() as u64, 1);
    let there = &pair.sides[1];
    let immediates: Vec<_> = there.nic.take_immediates().iter().map(|came| u64::from(came.value)).collect();
    let well = outcomes[0].iter().all(|outcome| outcome.status == 0)
        && there.load_64(128) == 9 * 0x0102
        && there.load_64(136) == 33
        && there.load_64(512) == 35
        && immediates == (2..36).step_by(4).collect::<Vec<u64>>();
    if mistake == Some(AHEAD) && well {
        sleep(3 * PATIENCE);
    }
    let stopped = pair.sides[0].stopped();
    (well && stopped.is_empty(), stopped)
}

/// Mutants of what is written, as far as mlx5 has it, and what the NIC says to each; nothing where only the values tell.
const MISTAKES: [(&str, &str, &[&str]); 10] = [
    ("CODEC_SLOT_FOR_INDEX", "the slot for the index", &["index"]),
    ("CODEC_UNTOLD", "no completion asked for", &["requests no completion"]),
    ("CODEC_NO_RECORD", "no record", &["its record entries up to 0"]),
    ("CODEC_LITTLE_ENDIAN_RECORD", "a little-endian record", &["high half of the doorbell record"]),
    ("CODEC_DOORBELL_OF_THE_FIRST", "the doorbell of the ring's beginning", &["doorbell"]),
    // The doorbell says how long the entry is, too.
    (
        "CODEC_ONE_SEGMENT_MORE",
        "a segment more",
        &["units", "the doorbell announces entries up to position 2, its record entries up to 1"],
    ),
    ("CODEC_NOT_INLINE", "no inline bit", &[]),
    ("CODEC_IMMEDIATE_ORDER", "the immediate's order", &[]),
    ("CODEC_OPERAND_ORDER", "the operands' order", &[]),
    (
        "CODEC_RECORD_OF_BLOCKS_MORE",
        "a record of more blocks",
        &["the doorbell record announces entries", "the entry at position", "the producer is"],
    ),
];

#[test]
fn without_a_mistake_all_is_well() {
    for provider in [Provider::Mlx5, Provider::Bnxt, Provider::Ionic] {
        for adversary in [None, Some(Adversary::new(1))] {
            assert_eq!(run(provider, None, adversary), (true, Vec::new()), "{provider}");
        }
    }
}

/// The same for others.
const OF_BNXT: [(&str, &str, &[&str]); 5] = [
    ("CODEC_UNTOLD", "no completion asked for", &["requests no completion"]),
    ("CODEC_IMMEDIATE_ORDER", "the immediate's order", &[]),
    ("CODEC_OPERAND_ORDER", "the operands' order", &[]),
    ("CODEC_STALE_SEQUENCE", "packet numbers that do not go on", &["the first packet in the sequence table"]),
    // On even laps of the ring the two walks agree.
    (
        "CODEC_SEQUENCE_ROW_OF_THE_RING",
        "a table with as many rows as the ring",
        &["the entry at position 16: the sequence table has no row for message 16"],
    ),
];
const OF_IONIC: [(&str, &str, &[&str]); 4] = [
    ("CODEC_UNTOLD", "no completion asked for", &["requests no completion"]),
    ("CODEC_IMMEDIATE_ORDER", "the immediate's order", &[]),
    ("CODEC_OPERAND_ORDER", "the operands' order", &[]),
    ("CODEC_STALE_COLOUR", "a colour that stays", &["colour"]),
];

/// A provider's mistakes, without and with an adversary.
fn all_are_caught(provider: Provider, mistakes: &[(&str, &str, &[&str])]) {
    for (mistake, what, texts) in mistakes {
        for adversary in [None, Some(Adversary::new(3))] {
            let (well, stopped) = run(provider, Some(mistake), adversary);
            assert!(!well, "{what} goes unnoticed");
            let said = |why: &String| texts.iter().any(|text| why.contains(text));
            assert!(texts.is_empty() || stopped.iter().any(said), "{what}: {stopped:?}");
        }
    }
}

#[test]
#[ignore = "extended"]
fn mistakes_in_entries_of_mlx5_are_caught() {
    all_are_caught(Provider::Mlx5, &MISTAKES);
}

#[test]
fn mistakes_in_entries_of_bnxt_are_caught() {
    all_are_caught(Provider::Bnxt, &OF_BNXT);
}

/// Whether a lane that fetches sees the values that its peer had, where completions lie in other memory than what is fetched.
fn fetches_well(mistake: Option<&str>, adversary: Option<Adversary>) -> bool {
    let config = SoftNicConfig { read_order: ReadOrder::Dumped, adversary, ..SoftNicConfig::default() };
    let pair = Pair::new(Setup { queues: 1, ..Setup::new(config) });
    // An addition takes a block and that of the dump behind it, a masked operation on 8 bytes three in all: they wrap at all places.
    let of = |value: u64| match value % 3 {
        0 => (pair.word(0, FETCH_ADD, 128, 8, 0x0102, 0), 0x0102 * (value / 3)),
        1 => (pair.word(0, SWAP, 136, 8, value, 0), value.saturating_sub(3)),
        _ => (pair.word(0, COMPARE_SWAP, 144, 4, value, value.saturating_sub(3)), value.saturating_sub(3)),
    };
    // What each word held first is zero.
    let (requests, mut expected): (Vec<_>, Vec<_>) = (0..60).map(of).unzip();
    (expected[1], expected[2]) = (0, 0);
    let spec = pair.spec().edited(&mistake.map(mutant).unwrap_or_default());
    let outcomes = pair.run(&spec, [&requests, &[]], requests.len() as u64, 1);
    assert_eq!(pair.sides[0].stopped(), Vec::<String>::new());
    outcomes[0].iter().zip(expected).all(|(outcome, old)| outcome.status == 0 && outcome.old == old)
}

#[test]
fn fetched_values_need_a_dump_that_waits_where_completions_lie_elsewhere() {
    for adversary in [None, Some(Adversary::new(3))] {
        assert!(fetches_well(None, adversary), "with a dump");
        for (mistake, what) in
            [("CODEC_NO_DUMP", "no dump"), ("CODEC_UNFENCED_DUMP", "a dump that does not wait")]
        {
            assert!(!fetches_well(Some(mistake), adversary), "{what} goes unnoticed");
        }
    }
}

#[test]
fn mistakes_in_entries_of_ionic_are_caught() {
    all_are_caught(Provider::Ionic, &OF_IONIC);
}
