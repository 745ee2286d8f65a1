//! What a run may come to, and that the judge sees a word that is wrong.

use std::collections::BTreeMap;

use super::*;
use crate::{Protocol, scratch};

fn staged(ranks: u32) -> Sdma {
    let case = Case { staged: true, ..Case::new(Protocol::Sdma, ranks) };
    Sdma::new(case, &scratch::jit()).unwrap()
}

#[test]
#[ignore = "extended"]
fn what_goes_wrong_is_made_up_for_or_named() {
    let mut ends: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    for (ranks, seeds) in [(2, 200), (3, 100), (1, 40)] {
        let sdma = staged(ranks);
        for seed in 0..seeds {
            let choice = Choice::draw(&sdma.case, seed);
            let lives = sdma.live(seed, &choice, false).unwrap();
            let end =
                sdma.judge(&choice, &lives).unwrap_or_else(|why| panic!("seed {seed}, {choice:?}: {why}"));
            let what = match choice.trouble.unwrap() {
                choice::Trouble::LostDoorbell { .. } => "lost doorbell",
                choice::Trouble::Stall { .. } => "stall",
                choice::Trouble::Dead { .. } => "dead",
                choice::Trouble::Gone { .. } => "gone",
                choice::Trouble::Nic { .. } => "nic",
            };
            *ends.entry((what, end)).or_default() += 1;
        }
    }
    let named = "waits end in vain and name the culprit";
    let gone = "the engine stops, and the wait names its peer";
    for (what, end) in [
        ("lost doorbell", "all right"),
        ("lost doorbell", named),
        ("stall", named),
        ("dead", named),
        ("dead", "all right"),
        ("gone", gone),
    ] {
        assert!(ends.contains_key(&(what, end)), "no {what} ends so: {end}; {ends:?}");
    }
}

#[test]
#[ignore = "extended"]
fn nics_that_go_wrong_are_named() {
    let mut ends: BTreeMap<(String, &str), u32> = BTreeMap::new();
    for (ranks, seeds) in [(2, 120), (3, 60)] {
        let case = Case { staged: true, ..Case::new(Protocol::Rdma, ranks) };
        let rdma = Sdma::new(case, &scratch::jit()).unwrap();
        for seed in 0..seeds {
            let choice = Choice::draw(&rdma.case, seed);
            let lives = rdma.live(seed, &choice, false).unwrap();
            let end =
                rdma.judge(&choice, &lives).unwrap_or_else(|why| panic!("seed {seed}, {choice:?}: {why}"));
            let what = match choice.trouble.unwrap() {
                choice::Trouble::Nic { how, .. } => format!("{how:?}"),
                choice::Trouble::Dead { .. } => "dead".to_owned(),
                other => panic!("{other:?} is no trouble of a NIC"),
            };
            *ends.entry((what, end)).or_default() += 1;
        }
    }
    let named = "waits end in vain and name the culprit";
    for what in
        ["Dies", "Silent", "Fails(RemoteAccess)", "Fails(RetryExceeded)", "Fails(ReceiverNotReady)", "dead"]
    {
        assert!(ends.contains_key(&(what.to_owned(), named)), "no {what} is named; {ends:?}");
    }
}

#[test]
#[ignore = "extended"]
fn no_wrong_word_and_no_missing_message_passes() {
    let sdma = Sdma::new(Case::new(Protocol::Sdma, 2), &scratch::jit()).unwrap();
    let choice = Choice::draw(&sdma.case, 1);
    let mut lives = sdma.live(1, &choice, false).unwrap();
    assert_eq!(sdma.judge(&choice, &lives), Ok("all right"));
    let count = lives.ranks.as_ref().unwrap()[1].as_ref().unwrap().log.len();
    for word in 0..count {
        lives.ranks.as_mut().unwrap()[1].as_mut().unwrap().log[word] ^= 1 << 40;
        assert!(sdma.judge(&choice, &lives).is_err(), "word {word}");
        lives.ranks.as_mut().unwrap()[1].as_mut().unwrap().log[word] ^= 1 << 40;
    }
    lives.ranks.as_mut().unwrap()[0].as_mut().unwrap().received[1] -= 1;
    let why = sdma.judge(&choice, &lives).unwrap_err();
    assert!(why.contains("right without its messages"), "{why}");
}
