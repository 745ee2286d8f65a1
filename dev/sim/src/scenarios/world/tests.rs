//! The judge, fed with runs that no world had.

use anabranch_hip::HipError;
use anabranch_ranks::GroupRank;

use super::blame::Blame;
use super::*;
use crate::{Protocol, scratch};

fn lives(endings: Vec<Ending>) -> Lives {
    let ranks = endings.len() as u32;
    let saw = |rank| Seen { rank, round: 0, wrong: None };
    Lives {
        run: Run { steps: 1, switches: 0, virtual_ns: 1, digest: 1, events: Vec::new(), next: None },
        seen: (0..ranks).flat_map(|rank| [saw(rank), saw(rank)]).collect(),
        endings,
        broken: None,
        primitives: Vec::new(),
        calls: Vec::new(),
        meetings: Vec::new(),
    }
}

fn failed(named: &[u32], code: Option<HipError>) -> Ending {
    Ending::Failed { text: "text".to_owned(), blame: Blame { ranks: named.iter().copied().collect(), code } }
}

fn faults(words: &[&str]) -> Vec<Fault> {
    words.iter().map(|word| word.parse().unwrap()).collect()
}

fn said(words: &[&str], lives: &Lives) -> String {
    judge(&faults(words), lives).map_or_else(|problem| format!("wrong: {problem}"), str::to_owned)
}

#[test]
fn a_failing_rank_is_the_faulty_one_or_names_it() {
    let dead = || failed(&[], Some(HipError::DEINITIALIZED));
    let by_kill = |endings| said(&["kill:1@5"], &lives(endings));
    assert_eq!(by_kill(vec![Ending::Right, Ending::Right]), "all right");
    assert_eq!(by_kill(vec![failed(&[1], None), dead()]), "every other rank names the faulty one");
    assert_eq!(by_kill(vec![Ending::Right, dead()]), "the faulty rank fails, the others are right");
    let some = by_kill(vec![Ending::Right, dead(), failed(&[1], None)]);
    assert_eq!(some, "some of the others name the faulty one, some are right");
    for (endings, words) in [
        (vec![failed(&[0], None), dead()], "wrong: rank 0 names another than the faulty rank: text"),
        (
            vec![failed(&[2], None), dead(), Ending::Right],
            "wrong: rank 0 names another than the faulty rank: text",
        ),
        (vec![dead(), dead()], "wrong: rank 0 names another than the faulty rank: text"),
        (
            vec![Ending::Right, failed(&[], Some(HipError::OUT_OF_MEMORY))],
            "wrong: faulty rank 1 fails with something else: text",
        ),
        (vec![Ending::Panicked("oh".to_owned()), dead()], "wrong: rank 0 panics: oh"),
    ] {
        assert_eq!(by_kill(endings), words);
    }
    let code = |code| said(&["fail:1@5:out-of-memory"], &lives(vec![failed(&[1], None), failed(&[], code)]));
    assert_eq!(code(Some(HipError::OUT_OF_MEMORY)), "every other rank names the faulty one");
    assert!(code(Some(HipError::INVALID_HANDLE)).starts_with("wrong: faulty rank 1"));
}

#[test]
fn what_does_no_harm_must_do_none() {
    let fails = || lives(vec![failed(&[1], None), Ending::Right]);
    for harmless in [&[][..], &["repeat:1@0"], &["stall:1@3:25ms"], &["slow:1:3ms"]] {
        assert_eq!(said(harmless, &fails()), "wrong: rank 0 fails without a cause: text");
    }
    assert!(!said(&["stall:1@3:26ms"], &fails()).starts_with("wrong"));
    let mut hangs = lives(vec![Ending::Right, Ending::Right]);
    hangs.broken = Some("why".to_owned());
    assert_eq!(said(&["kill:1@5"], &hangs), "wrong: the run does not end: why");
    let mut unseen = lives(vec![Ending::Right, Ending::Right]);
    unseen.seen.retain(|seen| seen.rank == 1);
    assert_eq!(said(&[], &unseen), "wrong: rank 0 is right without a comparison");
}

#[test]
fn wrong_rows_are_wrong_unless_a_store_was_lost_in_silence() {
    let mut lives = lives(vec![Ending::Right, Ending::Right]);
    lives.seen[2].wrong = Some("row 1".to_owned());
    for faults in [&[][..], &["kill:0@1"], &["lose:0>1@2:told"], &["repeat:0@0"]] {
        assert_eq!(said(faults, &lives), "wrong: rank 1 reports wrong rows in round 0: row 1");
    }
    assert_eq!(said(&["lose:0>1@2"], &lives), "the oracle says that rows are wrong");
}

/// Every byte of an output, and every rank's.
#[test]
fn no_wrong_byte_of_an_output_passes() {
    let world = World::new(Case::new(Protocol::World, 2), &scratch::jit()).unwrap();
    let given = &world.given[0];
    let oracle = super::super::ep::given::oracle(&world.config, given).unwrap();
    for rank in (0..2).map(GroupRank::new) {
        let mut output = oracle.combine(rank).unwrap().output(&oracle.reference_experts().unwrap());
        assert_eq!(world.output_is_wrong(given, rank, &output), None);
        for byte in 0..output.len() {
            output[byte] ^= 1;
            assert!(world.output_is_wrong(given, rank, &output).is_some(), "byte {byte} of {rank}");
            output[byte] ^= 1;
        }
        let other = GroupRank::new(1 - rank.get());
        assert!(world.output_is_wrong(given, other, &output).is_some(), "another rank's output");
        assert!(world.output_is_wrong(given, rank, &output[1..]).is_some(), "a byte too few");
    }
}
