//! Producers and an engine in every order that the memory model allows. Words are atomics that are stored and loaded without
//! order: what makes them arrive is the protocol.

use std::sync::Arc;

use loom::sync::atomic::AtomicU32;
use loom::thread;

use super::*;
use crate::ring::UNIT;

struct Shared {
    words: Vec<AtomicU32>,
    read: AtomicU64,
    doorbell: AtomicU64,
}

impl Port for Arc<Shared> {
    fn read_pointer(&self) -> u64 {
        self.read.load(Ordering::Acquire)
    }

    fn write(&self, place: u64, words: &[u32]) {
        for (index, word) in words.iter().enumerate() {
            self.words[place as usize / 4 + index].store(*word, Ordering::Relaxed);
        }
    }

    fn publish(&self, end: u64) {
        self.doorbell.store(end, Ordering::Release);
    }
}

type Submit = fn(&Queue<Arc<Shared>>, &[u32]);

fn sound(queue: &Queue<Arc<Shared>>, words: &[u32]) {
    let patience = || {
        thread::yield_now();
        true
    };
    queue.submit(words, patience).unwrap();
}

/// Each producer submits some operations of a unit; the engine reads each unit that the doorbell promises, once.
fn all_arrive(bytes: u64, producers: u32, operations: u32, submit: Submit) {
    loom::model(move || {
        let ring = Ring::new(bytes).unwrap();
        let words = (0..ring.bytes() / 4).map(|_| AtomicU32::new(0)).collect();
        let shared = Arc::new(Shared { words, read: AtomicU64::new(0), doorbell: AtomicU64::new(0) });
        let queue = Arc::new(Queue::new(ring, Arc::clone(&shared)));
        let threads: Vec<_> = (1..=producers)
            .map(|producer| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || {
                    (0..operations).for_each(|count| submit(&queue, &[producer << 8 | count; 2]))
                })
            })
            .collect();
        let mut engine = Engine { read: 0, next: vec![0; producers as usize] };
        let all = u64::from(producers * operations) * UNIT;
        // Where there is room for all the engine may come late, so that it need not be waited for in every order.
        if all < bytes {
            engine.look(&shared, ring);
        } else {
            while engine.read < all {
                engine.look(&shared, ring);
                thread::yield_now();
            }
        }
        for thread in threads {
            thread.join().unwrap();
        }
        engine.look(&shared, ring);
        assert_eq!(engine.read, all, "the engine reads to the end");
    });
}

/// What has been read, and which operation of each producer comes next.
struct Engine {
    read: u64,
    next: Vec<u32>,
}

impl Engine {
    /// Reads what the doorbell promises.
    fn look(&mut self, shared: &Shared, ring: Ring) {
        let doorbell = shared.doorbell.load(Ordering::Acquire);
        assert!(
            doorbell >= self.read && doorbell - self.read < ring.bytes(),
            "the engine reads {doorbell} behind {}",
            self.read
        );
        while self.read < doorbell {
            let first = ring.place(self.read) as usize / 4;
            let unit = [first, first + 1].map(|index| shared.words[index].load(Ordering::Relaxed));
            assert_eq!(unit[0], unit[1], "the engine reads half of a unit");
            let (producer, count) = (unit[0] >> 8, unit[0] & 0xff);
            assert!(producer >= 1 && producer as usize <= self.next.len(), "the engine reads {unit:?}");
            let wanted = &mut self.next[producer as usize - 1];
            assert_eq!(count, *wanted, "the engine reads another operation");
            *wanted += 1;
            self.read += UNIT;
            shared.read.store(self.read, Ordering::Release);
        }
    }
}

#[test]
fn loom_producers_side_by_side() {
    all_arrive(128, 2, 1, sound);
}

#[test]
fn loom_a_producer_that_waits_for_room() {
    all_arrive(64, 1, 3, sound);
}

/// Rings before the words are there.
fn rings_first(queue: &Queue<Arc<Shared>>, words: &[u32]) {
    let mut patience = || {
        thread::yield_now();
        true
    };
    let placed = queue.reserve(words.len(), &mut patience).unwrap();
    queue.commit(&placed, &mut patience).unwrap();
    queue.fill(&placed, words);
}

#[test]
#[should_panic(expected = "the engine reads")]
fn loom_a_producer_that_rings_first_is_caught() {
    all_arrive(64, 1, 1, rings_first);
}

/// Does not look whether the engine has left the room.
fn takes_all(queue: &Queue<Arc<Shared>>, words: &[u32]) {
    queue.read.store(queue.reserved.load(Ordering::Relaxed), Ordering::Relaxed);
    sound(queue, words);
}

#[test]
#[should_panic(expected = "the engine reads")]
fn loom_a_producer_that_takes_all_is_caught() {
    all_arrive(64, 1, 2, takes_all);
}

/// Does not wait for those before it.
fn out_of_order(queue: &Queue<Arc<Shared>>, words: &[u32]) {
    let placed = queue.reserve(words.len(), &mut || true).unwrap();
    queue.fill(&placed, words);
    queue.port.publish(placed.end);
}

#[test]
#[should_panic(expected = "the engine reads")]
fn loom_a_producer_that_does_not_wait_for_others_is_caught() {
    all_arrive(128, 2, 1, out_of_order);
}
