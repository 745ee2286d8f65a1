//! A queue's progress over a NIC that does what a test says.

use std::sync::atomic::{AtomicU64, Ordering};

use anabranch_hip::DeviceOrdinal;
use anabranch_hip_host::{HostConfig, HostMachine};

use super::*;
use crate::driver::Atomics;
use crate::posted::PostedOpcode;

const LIMITS: NicLimits =
    NicLimits { most_message_bytes: 1 << 30, inline_bytes: 8, atomics: Atomics::Standard };
const PATIENCE: Duration = Duration::from_secs(60);

/// A NIC that completes when it is told to.
#[derive(Debug, Default)]
struct Scripted {
    posted: Vec<(u64, PostedRequest)>,
    ready: VecDeque<Completion>,
    /// The position whose posting is refused.
    refuse: Option<u64>,
    broken: bool,
    flushes: bool,
    stopped: bool,
    /// The word by which kernels hear of a failure, and what it was when the queue was stopped.
    watched: Option<&'static AtomicU64>,
    told_before: u64,
}

impl WorkQueue for Scripted {
    const ANSWERS_WHEN_POLLED: bool = true;
    const WHEN_SILENT: &'static str = "; look elsewhere";

    fn post(&mut self, requests: &[(u64, PostedRequest)]) -> Result<(), (usize, String)> {
        for (index, request) in requests.iter().enumerate() {
            if self.refuse == Some(request.0) {
                return Err((index, "no room".to_owned()));
            }
            self.posted.push(*request);
        }
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), Fault> {
        if self.broken {
            return Err(Fault { status: IBV_WC_FATAL_ERR, words: "it is gone".to_owned() });
        }
        if self.flushes {
            return Err(Fault { status: IBV_WC_WR_FLUSH_ERR, words: "the peer's".to_owned() });
        }
        completions.extend(self.ready.drain(..self.ready.len().min(TURN)));
        Ok(())
    }

    fn stop(&mut self) {
        self.stopped = true;
        self.told_before = self.watched.map_or(0, |word| word.load(Ordering::Acquire));
    }
}

/// A post queue, and what a kernel knows of it.
struct Stage {
    post_queue: PostQueue<Scripted>,
    stopped: Arc<OnceLock<Ended>>,
    next: u64,
}

impl Stage {
    fn new(entries: u32, patience: Duration) -> Self {
        let machine = HostMachine::new(HostConfig::default()).unwrap();
        let device = machine.runtime().device(DeviceOrdinal(0)).unwrap();
        let ring = Arc::new(Ring::new(&device, entries).unwrap());
        let stopped = Arc::new(OnceLock::new());
        let name = "queue pair 5 to rank 1".to_owned();
        let watched = Some(Self::word(ring.completions_address(), 1));
        let nic = Scripted { watched, ..Scripted::default() };
        let post_queue = PostQueue::new(ring, nic, LIMITS, patience, name, Arc::clone(&stopped));
        Self { post_queue, stopped, next: 0 }
    }

    /// A word at an address that kernels of the machine of threads use, which is one of this process.
    fn word(address: anabranch_hip::DeviceAddress, index: u64) -> &'static AtomicU64 {
        // SAFETY: within the ring, which tests keep as long as they use the word.
        unsafe { AtomicU64::from_ptr(address.offset(index * 8).as_ptr().cast()) }
    }

    /// Fills the next entry without its stamp.
    fn fill(&mut self, change: impl Fn(&mut PostedRequest)) -> u64 {
        let mut request: PostedRequest = bytemuck::Zeroable::zeroed();
        (request.opcode, request.bytes, request.local, request.remote) =
            (PostedOpcode::Write as u32, 16, 64, 128);
        request.value = self.next;
        change(&mut request);
        let words: [u64; 8] = bytemuck::cast(request);
        let slot = self.next % self.post_queue.ring.entries() * 8;
        for (index, word) in words.iter().enumerate().skip(1) {
            Self::word(self.post_queue.ring.entries_address(), slot + index as u64)
                .store(*word, Ordering::Relaxed);
        }
        self.next += 1;
        self.next - 1
    }

    fn stamp(&self, position: u64) {
        let slot = position % self.post_queue.ring.entries() * 8;
        Self::word(self.post_queue.ring.entries_address(), slot).store(position + 1, Ordering::Release);
    }

    fn ring_doorbell(&self, filled: u64) {
        Self::word(self.post_queue.ring.doorbell_address(), 0).store(filled, Ordering::Release);
    }

    /// What a kernel does for `count` writes.
    fn ask(&mut self, count: u64) {
        for _ in 0..count {
            let position = self.fill(|_| ());
            self.stamp(position);
        }
        self.ring_doorbell(self.next);
    }

    fn finish(&mut self, positions: std::ops::Range<u64>) {
        let done =
            positions.map(|position| Completion { position, status: IBV_WC_SUCCESS, cause: String::new() });
        self.post_queue.queue.ready.extend(done);
    }

    fn told(&self) -> (u64, u64) {
        let word =
            |index| Self::word(self.post_queue.ring.completions_address(), index).load(Ordering::Acquire);
        (word(0), word(1))
    }

    /// The post queue has ended: with this word for kernels, and these words for people.
    fn ended(&mut self, complete: u64, position: u64, status: u32, expected: &[&str]) {
        assert_eq!(self.post_queue.turn(), Turn::Stopped);
        assert_eq!(self.told(), (complete, (position << 8) | u64::from(status + 1)));
        let Ended { words: text, is_flushed } = self.stopped.get().expect("it says why");
        assert_eq!(*is_flushed, status == IBV_WC_WR_FLUSH_ERR);
        for part in expected {
            assert!(text.contains(part), "{text}");
        }
        assert!(text.starts_with("queue pair 5 to rank 1: "), "{text}");
        assert!(self.post_queue.queue.stopped);
        assert_eq!(self.post_queue.queue.told_before, 0, "kernels hear of it when nothing moves any more");
        let posted = self.post_queue.queue.posted.len();
        assert_eq!(self.post_queue.turn(), Turn::Stopped);
        assert_eq!(self.post_queue.queue.posted.len(), posted, "nothing moves any more");
    }
}

#[test]
fn requests_go_in_order_a_bounded_number_a_turn_for_many_laps() {
    let mut stage = Stage::new(64, PATIENCE);
    for lap in 0..5 {
        let begun = lap * 64;
        stage.ask(64);
        assert_eq!(stage.post_queue.turn(), Turn::Moved);
        assert_eq!(stage.post_queue.queue.posted.len() as u64, begun + TURN as u64, "others have their turn");
        assert_eq!(stage.post_queue.turn(), Turn::Moved);
        assert_eq!(stage.post_queue.turn(), Turn::Answering);
        assert_eq!(stage.told(), (begun, 0), "nothing is complete yet");
        stage.finish(begun..begun + 64);
        assert_eq!(stage.post_queue.turn(), Turn::Moved);
        assert_eq!(stage.told(), (begun + TURN as u64, 0));
        assert_eq!(stage.post_queue.turn(), Turn::Moved);
        assert_eq!(stage.told(), (begun + 64, 0));
    }
    let posted = &stage.post_queue.queue.posted;
    assert!(posted.iter().enumerate().all(|(index, (position, _))| index as u64 == *position));
    assert!(posted.iter().all(|(position, request)| request.value == *position), "each is its own");
    assert_eq!(stage.stopped.get(), None);
}

#[test]
fn an_entry_without_its_stamp_holds_back_what_follows() {
    let mut stage = Stage::new(16, PATIENCE);
    let first = stage.fill(|_| ());
    let second = stage.fill(|_| ());
    stage.stamp(second);
    stage.ring_doorbell(2);
    assert_eq!(stage.post_queue.turn(), Turn::Answering);
    stage.stamp(first);
    assert_eq!(stage.post_queue.turn(), Turn::Moved);
    assert_eq!(stage.post_queue.queue.posted.len(), 2);
}

#[test]
fn an_entry_without_its_doorbell_waits() {
    let mut stage = Stage::new(16, PATIENCE);
    let position = stage.fill(|_| ());
    stage.stamp(position);
    assert_eq!(stage.post_queue.turn(), Turn::Answering);
    assert!(stage.post_queue.queue.posted.is_empty());
}

#[test]
fn a_failed_request_ends_the_queue_with_the_nics_report() {
    let mut stage = Stage::new(16, PATIENCE);
    stage.ask(3);
    stage.post_queue.turn();
    stage.finish(0..1);
    stage.post_queue.queue.ready.push_back(Completion {
        position: 1,
        status: 10,
        cause: "vendor syndrome 0x88".to_owned(),
    });
    stage.post_queue.queue.ready.push_back(Completion {
        position: 2,
        status: 5,
        cause: "vendor syndrome 0xf5".to_owned(),
    });
    stage.ended(
        1,
        1,
        10,
        &["entry 1", "Write of 16 bytes", "access refused by the peer's NIC", "vendor syndrome 0x88"],
    );
}

#[test]
fn a_forbidden_request_fails_after_earlier_requests() {
    let mut stage = Stage::new(16, PATIENCE);
    stage.ask(2);
    let position = stage.fill(|request| request.opcode = 99);
    stage.stamp(position);
    stage.ring_doorbell(3);
    assert_eq!(stage.post_queue.turn(), Turn::Moved);
    assert_eq!(stage.post_queue.turn(), Turn::Answering, "two are under way");
    stage.finish(0..2);
    stage.ended(2, 2, IBV_WC_LOC_QP_OP_ERR, &["entry 2", "operation 99", "no such operation"]);
}

#[test]
fn what_the_nic_refuses_to_take_is_named() {
    let mut stage = Stage::new(16, PATIENCE);
    stage.post_queue.queue.refuse = Some(1);
    stage.ask(3);
    stage.ended(0, 1, IBV_WC_LOC_QP_OP_ERR, &["entry 1", "no room"]);
}

#[test]
fn a_doorbell_beyond_the_ring_is_no_doorbell() {
    let mut stage = Stage::new(16, PATIENCE);
    stage.ring_doorbell(17);
    stage.ended(0, 0, IBV_WC_LOC_QP_OP_ERR, &["the doorbell says 17", "room up to 16"]);
}

#[test]
fn a_completion_out_of_order_is_not_believed() {
    let mut stage = Stage::new(16, PATIENCE);
    stage.ask(2);
    stage.post_queue.turn();
    stage.finish(1..2);
    stage.ended(0, 0, IBV_WC_FATAL_ERR, &["completed entry 1 before this one"]);
}

#[test]
fn a_nic_that_cannot_be_asked_ends_the_queue() {
    let mut stage = Stage::new(16, PATIENCE);
    stage.ask(1);
    stage.post_queue.turn();
    stage.post_queue.queue.broken = true;
    stage.ended(0, 0, IBV_WC_FATAL_ERR, &["it is gone"]);
}

#[test]
fn a_failure_caused_by_the_peer_is_marked_as_a_consequence() {
    let mut stage = Stage::new(16, PATIENCE);
    stage.post_queue.queue.flushes = true;
    stage.ended(0, 0, IBV_WC_WR_FLUSH_ERR, &["entry 0", "the peer's"]);
}

#[test]
fn a_silent_nic_is_given_up_within_the_patience() {
    let mut stage = Stage::new(16, Duration::ZERO);
    stage.fill(|request| request.bytes = 0);
    stage.stamp(0);
    stage.ring_doorbell(1);
    // The patience is over in the turn that posts, or in the next where the clock is coarse.
    while stage.post_queue.turn() != Turn::Stopped {}
    stage.ended(0, 0, IBV_WC_RESP_TIMEOUT_ERR, &["entry 0", "patience of 0ns; look elsewhere"]);
}

#[test]
fn a_long_message_has_longer() {
    let mut stage = Stage::new(16, Duration::ZERO);
    stage.fill(|request| request.bytes = 1 << 30);
    stage.stamp(0);
    stage.ring_doorbell(1);
    assert_eq!(stage.post_queue.turn(), Turn::Moved);
    assert_eq!(stage.post_queue.turn(), Turn::Answering, "its bytes at the least rate take an hour");
    assert_eq!(stage.stopped.get(), None);
}

#[test]
fn an_atomic_operation_has_no_longer_whatever_its_unused_fields_say() {
    let mut stage = Stage::new(16, Duration::ZERO);
    stage.fill(|request| (request.opcode, request.bytes) = (PostedOpcode::FetchAdd as u32, u32::MAX));
    stage.stamp(0);
    stage.ring_doorbell(1);
    while stage.post_queue.turn() != Turn::Stopped {}
    stage.ended(0, 0, IBV_WC_RESP_TIMEOUT_ERR, &["entry 0", "FetchAdd", "response timeout"]);
}

#[test]
fn a_doorbell_for_an_entry_that_is_never_filled_is_given_up() {
    let mut stage = Stage::new(16, Duration::ZERO);
    stage.ring_doorbell(1);
    while stage.post_queue.turn() != Turn::Stopped {}
    stage.ended(0, 0, IBV_WC_LOC_QP_OP_ERR, &["never filled"]);
}

#[test]
fn a_queue_ended_from_outside_reports_the_reason_once() {
    let mut stage = Stage::new(16, PATIENCE);
    stage.ask(2);
    stage.post_queue.turn();
    stage.finish(0..1);
    stage.post_queue.turn();
    stage.post_queue.end("nobody serves it");
    stage.post_queue.end("another reason");
    stage.ended(1, 1, IBV_WC_FATAL_ERR, &["entry 1, nobody serves it"]);
}

/// A NIC that answers peers by itself.
#[derive(Debug, Default)]
struct Hardware {
    polls: u32,
}

impl WorkQueue for Hardware {
    fn post(&mut self, _: &[(u64, PostedRequest)]) -> Result<(), (usize, String)> {
        Ok(())
    }

    fn poll(&mut self, _: &mut Vec<Completion>) -> Result<(), Fault> {
        self.polls += 1;
        Ok(())
    }

    fn stop(&mut self) {}
}

#[test]
fn a_nic_that_answers_by_itself_is_polled_for_what_is_on_its_way_alone() {
    let Stage { post_queue: PostQueue { ring, .. }, stopped, .. } = Stage::new(8, PATIENCE);
    let mut stage = Stage::new(8, PATIENCE);
    let mut post_queue = PostQueue::new(
        ring,
        Hardware::default(),
        LIMITS,
        PATIENCE,
        "queue pair 6 to rank 2".to_owned(),
        stopped,
    );
    assert_eq!((post_queue.turn(), post_queue.turn(), post_queue.queue.polls), (Turn::Quiet, Turn::Quiet, 0));
    // One that is served when it is polled always is.
    assert_eq!(stage.post_queue.turn(), Turn::Answering);
}

#[test]
fn what_is_on_its_way_is_the_oldest_entry_that_is_not_complete() {
    let mut stage = Stage::new(16, PATIENCE);
    assert!(stage.post_queue.ring.incomplete().is_none(), "nothing was filled");
    for _ in 0..3 {
        let position = stage.fill(|_| ());
        stage.stamp(position);
    }
    let position = stage.fill(|_| ());
    stage.ring_doorbell(position + 1);
    let oldest = |stage: &Stage| {
        let (count, oldest, request) = stage.post_queue.ring.incomplete()?;
        Some((count, oldest, request.map(|request| request.value)))
    };
    assert_eq!(oldest(&stage), Some((4, 0, Some(0))));
    stage.post_queue.ring.complete(2);
    assert_eq!(oldest(&stage), Some((2, 2, Some(2))));
    stage.post_queue.ring.complete(3);
    assert_eq!(oldest(&stage), Some((1, 3, None)), "its stamp is not there yet");
    stage.post_queue.ring.complete(4);
    assert_eq!(oldest(&stage), None, "all is complete");
}
