//! What a queue pair says that has failed, or that does not answer: completion entries, requests and answers to `QUERY_QP` as bytes.

use std::sync::Arc;

use crate::NicQueue;

use super::commands::{driver, ethernet, queue};
use super::fake::{CAN_SAY_ERRORS, Fake, GENERAL};

/// Where the parts of a queue pair with 256 entries are in its memory.
const COMPLETIONS: usize = 0x4000;
const RECORD_OF_SENDS: usize = 0x8004;

/// An error with this syndrome, at entry 258.
fn error(syndrome: u8) -> [u8; 64] {
    let mut entry = [0; 64];
    (entry[54], entry[55], entry[60], entry[61], entry[63]) = (0x88, syndrome, 0x01, 0x02, 0xd0);
    entry
}

/// A queue pair whose last completion is that.
fn failed(fake: &Fake, syndrome: u8) -> Arc<dyn NicQueue> {
    let queue = queue(&driver(fake, ethernet()));
    fake.write(COMPLETIONS, &error(syndrome));
    queue
}

fn queries(fake: &Fake) -> usize {
    fake.calls().iter().filter(|call| *call == "QUERY_QP").count()
}

#[test]
fn the_error_that_a_flush_has_overwritten_is_asked_for_once() {
    for (syndrome, words) in [
        (0x12, "invalid request at the peer (syndrome 0x12, vendor's 0x68)"),
        (0x13, "access refused by the peer's NIC (syndrome 0x13, vendor's 0x68)"),
        (0x15, "transport retries exceeded: the peer's NIC does not answer (syndrome 0x15, vendor's 0x68)"),
    ] {
        let fake = Fake::new();
        fake.say_context(&[(0x11c, 0x6800 | syndrome)]);
        let queue = failed(&fake, 0x05);
        let behind = ", by QUERY_QP; later requests were flushed, the last at entry 258 (16 bits)";
        assert_eq!(queue.stopped(), Some(format!("{words}{behind}")));
        assert!(!queue.is_consequence(), "a request of this rank failed");
        assert_eq!((queue.stopped(), queries(&fake)), (queue.stopped(), 1));
        // qpc_ext, and the queue pair.
        assert_eq!(fake.command("QUERY_QP"), (16, vec![(0x00, 0x050b_0000), (0x08, 0x80ab_cdef)]));
    }
}

#[test]
fn an_error_that_is_in_the_last_completion_is_not_asked_for() {
    let fake = Fake::new();
    let queue = failed(&fake, 0x13);
    let words = "access refused by the peer's NIC (syndrome 0x13, vendor's 0x88) at entry 258 (16 bits)";
    assert_eq!((queue.stopped().as_deref(), queue.is_consequence()), (Some(words), false));
    assert_eq!(queries(&fake), 0);
}

#[test]
fn an_error_that_was_seen_is_kept_when_a_flush_overwrites_it() {
    for (syndrome, is_consequence) in [(0x13, false), (0x11, true)] {
        let fake = Fake::new();
        let queue = failed(&fake, syndrome);
        let words = queue.stopped().unwrap();
        assert!(words.contains(&format!("syndrome {syndrome:#04x}")), "{words}");
        // Between two questions of one look, too.
        fake.write(COMPLETIONS, &error(0x05));
        assert_eq!((queue.is_consequence(), queue.stopped()), (is_consequence, Some(words)));
        assert_eq!(queries(&fake), 0, "the NIC need not be asked");
    }
}

#[test]
fn a_nic_that_hides_the_first_error_is_reported_as_such() {
    let unknown = |fake: &Fake, why: &str| {
        let queue = failed(fake, 0x05);
        let words = queue.stopped().unwrap();
        assert!(words.starts_with("flushed, as the queue pair had failed before (syndrome 0x05"), "{words}");
        assert!(
            words.contains("the completion of the first error was overwritten") && words.contains(why),
            "{words}"
        );
        assert!(queue.is_consequence(), "the peer may know more");
    };
    unknown(&Fake::new(), "QUERY_QP says nothing of it");
    for has in [&CAN_SAY_ERRORS[..1], &CAN_SAY_ERRORS[1..]] {
        let fake = Fake::new();
        fake.say(GENERAL, has);
        unknown(&fake, "no qp_error_syndrome");
        assert_eq!(queries(&fake), 0, "a NIC that does not know the question is not asked");
    }
    let fake = Fake::new();
    fake.say_context(&[(0x11c, 0x8813)]);
    // Of opening 6, of making 4.
    fake.fail(10);
    unknown(&fake, "the NIC refuses QUERY_QP");
    // A request of the peer's that was refused here: the peer knows which.
    let fake = Fake::new();
    fake.say_context(&[(0x11c, 0x8811)]);
    let queue = failed(&fake, 0x05);
    assert!(queue.stopped().unwrap().starts_with("local access error") && queue.is_consequence());
}

/// The first 64 bytes of a request of the fake's first queue pair.
fn request(operation: u8, index: u16, segments: u8, bytes: u32) -> [u8; 64] {
    let mut entry = [0; 64];
    entry[..4].copy_from_slice(&(u32::from(index) << 8 | u32::from(operation)).to_be_bytes());
    entry[4..8].copy_from_slice(&(0x00ab_cdef << 8 | u32::from(segments)).to_be_bytes());
    entry[16..24].copy_from_slice(&0x7f00_0000_1000_u64.to_be_bytes());
    entry[32..36].copy_from_slice(&bytes.to_be_bytes());
    entry
}

fn oldest(queue: &Arc<dyn NicQueue>) -> Option<(u64, String)> {
    queue.unanswered().map(|requests| (requests.oldest, requests.words))
}

fn done(index: u16) -> [u8; 64] {
    let mut entry = [0; 64];
    entry[60..62].copy_from_slice(&index.to_be_bytes());
    entry
}

#[test]
fn the_oldest_request_that_a_nic_does_not_answer_is_named() {
    let fake = Fake::new();
    let queue = queue(&driver(&fake, ethernet()));
    assert_eq!(queue.unanswered(), None, "it was given nothing");
    let given = |index: u16, request: &[u8; 64], next: u16| {
        fake.write(usize::from(index % 256) * 64, request);
        fake.write(RECORD_OF_SENDS, &u32::from(next).to_be_bytes());
    };
    given(0, &request(0x08, 0, 3, 4096), 1);
    let write = "1 entries are on their way, the oldest is a write of 4096 bytes at 0x7f0000001000 of the peer, entry 0 (16 bits)";
    assert_eq!(oldest(&queue), Some((0, write.to_owned())), "nothing was ever answered");
    fake.write(COMPLETIONS, &done(0));
    assert_eq!(queue.unanswered(), None, "all is answered");
    // A request of two entries was the last that was done: its completion says the first of them. Counters wrap.
    fake.write(COMPLETIONS, &done(0xfffe));
    given(0xffff, &[0xff; 64], 0);
    given(0, &request(0x12, 0, 4, 0), 3);
    let atomic = "3 entries are on their way, the oldest is a fetch-and-add of 8 bytes at 0x7f0000001000 of the peer, entry 0 (16 bits)";
    assert_eq!(oldest(&queue), Some((0, atomic.to_owned())));
    // One of another lap of the ring has another index.
    given(0, &request(0x12, 256, 4, 0), 3);
    assert_eq!(queue.unanswered(), None);
    given(0, &request(0x12, 0, 4, 0), 3);
    fake.write(COMPLETIONS, &error(0x13));
    assert_eq!(queue.unanswered(), None, "one that has stopped says why");
}
