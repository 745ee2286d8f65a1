//! Producers in threads, or in turns, against the engine; and producers that do it wrong.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;
use std::thread;

use proptest::prelude::*;

use super::*;
use crate::engine::{Did, Engine, Fault, Memory, Stopped};
use crate::{Generation, Packet};

/// Ring words and pointers in ordinary memory.
#[derive(Debug)]
struct Shared {
    words: Vec<AtomicU32>,
    read: AtomicU64,
    /// The write pointer and doorbell in one.
    doorbell: AtomicU64,
    /// Doorbells that were not above the one before.
    backwards: AtomicU64,
}

impl Shared {
    fn new(ring: Ring) -> Self {
        let words = (0..ring.bytes() / 4).map(|_| AtomicU32::new(0xffff_ffff)).collect();
        Self { words, read: AtomicU64::new(0), doorbell: AtomicU64::new(0), backwards: AtomicU64::new(0) }
    }
}

impl Port for &Shared {
    fn read_pointer(&self) -> u64 {
        self.read.load(Ordering::Acquire)
    }

    fn write(&self, place: u64, words: &[u32]) {
        for (index, word) in words.iter().enumerate() {
            // Past the end is where a producer that wraps wrong comes to; the ring begins again there.
            let at = (place as usize / 4 + index) % self.words.len();
            self.words[at].store(*word, Ordering::Relaxed);
        }
    }

    fn publish(&self, end: u64) {
        if self.doorbell.swap(end, Ordering::Release) >= end {
            self.backwards.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Memory of an engine: words by address, and in which order they were stored.
#[derive(Debug, Default)]
struct Words {
    words: BTreeMap<u64, u32>,
    stored: Vec<(u64, u32)>,
}

impl Words {
    fn load(&self, address: u64) -> Result<u32, Fault> {
        self.words.get(&address).copied().ok_or(Fault { address, bytes: 4 })
    }
}

impl Memory for Words {
    fn copy(&mut self, source: u64, destination: u64, bytes: u64) -> Result<(), Fault> {
        for offset in (0..bytes).step_by(4) {
            let word = self.load(source + offset)?;
            self.words.insert(destination + offset, word);
        }
        Ok(())
    }

    fn store(&mut self, address: u64, word: u32) -> Result<(), Fault> {
        self.stored.push((address, word));
        self.words.insert(address, word);
        Ok(())
    }

    fn add(&mut self, address: u64, value: u64) -> Result<(), Fault> {
        let old = u64::from(*self.words.get(&address).unwrap_or(&0));
        self.store(address, (old + value) as u32)
    }
}

fn generation() -> &'static Generation {
    Generation::of_target("gfx942").unwrap()
}

/// Where fences write; data lies below.
const FENCES: u64 = 1 << 32;

/// A producer's number `count`, as one operation: a write whose words all say who and when, and a fence that says it once more.
fn operation(producer: u32, count: u32, words: usize) -> Vec<u32> {
    let stamp = producer << 24 | count;
    let mut out = Vec::new();
    let data = Packet::Write { destination: u64::from(producer) << 16, words: vec![stamp; words] };
    data.encode(generation(), &mut out).unwrap();
    let fence = Packet::Fence { address: FENCES, value: stamp };
    fence.encode(generation(), &mut out).unwrap();
    out
}

/// Lets the engine do what it can.
fn drain(shared: &Shared, engine: &mut Engine, memory: &mut Words) -> Result<(), Stopped> {
    loop {
        let write = shared.doorbell.load(Ordering::Acquire);
        let word = |place: u64| shared.words[place as usize / 4].load(Ordering::Relaxed);
        let did = engine.step(write, word, memory, true)?;
        shared.read.store(engine.read(), Ordering::Release);
        if did == Did::Waits {
            return Ok(());
        }
    }
}

/// All operations of all producers, each once, whole, and in the order of its producer.
fn judge(memory: &Words, producers: u32, operations: u32, words: usize) -> Result<(), String> {
    let mut next = vec![0; producers as usize];
    let mut data = Vec::new();
    for (address, stamp) in &memory.stored {
        let (producer, count) = (stamp >> 24, stamp & 0xff_ffff);
        if *address == FENCES {
            if data != vec![*stamp; words] {
                return Err(format!("the data behind fence {stamp:#x} is {data:x?}"));
            }
            if next.get(producer as usize) != Some(&count) {
                return Err(format!("fence {stamp:#x} comes when {next:?} are wanted"));
            }
            next[producer as usize] += 1;
            data.clear();
        } else {
            data.push(*stamp);
        }
    }
    if next.iter().all(|count| *count == operations) {
        Ok(())
    } else {
        Err(format!("{next:?} of {operations}"))
    }
}

/// How a producer puts an operation into a queue.
type Submit = fn(&Queue<&Shared>, &[u32], &mut dyn FnMut() -> bool) -> Result<u64, QueueError>;

fn sound(
    queue: &Queue<&Shared>,
    words: &[u32],
    patience: &mut dyn FnMut() -> bool,
) -> Result<u64, QueueError> {
    queue.submit(words, patience)
}

/// Producers in threads beside an engine in another.
fn race(bytes: u64, producers: u32, operations: u32, words: usize, submit: Submit) -> Result<(), String> {
    let ring = Ring::new(bytes).unwrap();
    let shared = Shared::new(ring);
    let queue = Queue::new(ring, &shared);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let engine = scope.spawn(|| {
            let (mut engine, mut memory) = (Engine::new(ring, generation(), 64), Words::default());
            loop {
                let ends = over.load(Ordering::Acquire);
                if let Err(stopped) = drain(&shared, &mut engine, &mut memory) {
                    over.store(true, Ordering::Release);
                    return Err(stopped.to_string());
                }
                if ends {
                    return judge(&memory, producers, operations, words);
                }
                thread::yield_now();
            }
        });
        let threads: Vec<_> = (0..producers)
            .map(|producer| {
                let (queue, over) = (&queue, &over);
                scope.spawn(move || {
                    let mut looks = 0u32;
                    let mut patience = || {
                        thread::yield_now();
                        looks += 1;
                        // A ring that was corrupted may never come free.
                        looks < 2_000_000 && !over.load(Ordering::Acquire)
                    };
                    (0..operations)
                        .try_for_each(|count| {
                            submit(queue, &operation(producer, count, words), &mut patience).map(drop)
                        })
                        .map_err(|error| error.to_string())
                })
            })
            .collect();
        let submitted: Result<Vec<()>, String> =
            threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        over.store(true, Ordering::Release);
        engine.join().unwrap().and(submitted.map(drop))
    })?;
    match shared.backwards.load(Ordering::Relaxed) {
        0 => Ok(()),
        count => Err(format!("{count} doorbells went back")),
    }
}

#[test]
fn every_operation_is_done_once_and_whole() {
    for producers in [1, 2, 3, 8] {
        // The smallest ring that holds the operation at all, up to one that holds many; the lengths make it leave the end.
        for (bytes, words) in [(128, 6), (256, 1), (256, 9), (4096, 13)] {
            race(bytes, producers, 400, words, sound).unwrap_or_else(|error| {
                panic!("{producers} producers, {bytes} bytes, {words} words: {error}")
            });
        }
    }
}

/// Gives way until others have done something, so that a mistake shows also where threads take turns of their own.
fn linger(until: impl Fn() -> bool) {
    for _ in 0..1000 {
        if until() {
            return;
        }
        thread::yield_now();
    }
}

/// Makes its packets known without waiting for those before.
fn out_of_order(
    queue: &Queue<&Shared>,
    words: &[u32],
    patience: &mut dyn FnMut() -> bool,
) -> Result<u64, QueueError> {
    let placed = queue.reserve(words.len(), &mut || patience())?;
    // Every other one is late, so that the next one's packets are known before its own are there.
    let is_late = (placed.start / 64).is_multiple_of(2);
    linger(|| !is_late);
    queue.fill(&placed, words);
    queue.port.publish(placed.end);
    Ok(placed.end)
}

/// Takes each packet for an operation of its own: the fence may stand behind another's data.
fn in_two(
    queue: &Queue<&Shared>,
    words: &[u32],
    patience: &mut dyn FnMut() -> bool,
) -> Result<u64, QueueError> {
    let (data, fence) = words.split_at(words.len() - 4);
    let end = queue.submit(data, &mut *patience)?;
    linger(|| queue.reserved.load(Ordering::Relaxed) != end);
    queue.submit(fence, patience)
}

/// The signal before what it speaks of.
fn fence_first(
    queue: &Queue<&Shared>,
    words: &[u32],
    patience: &mut dyn FnMut() -> bool,
) -> Result<u64, QueueError> {
    let (data, fence) = words.split_at(words.len() - 4);
    queue.submit(&[fence, data].concat(), patience)
}

/// Lets packets cross the ring's end.
fn wraps(
    queue: &Queue<&Shared>,
    words: &[u32],
    patience: &mut dyn FnMut() -> bool,
) -> Result<u64, QueueError> {
    let mut placed = queue.reserve(words.len(), &mut || patience())?;
    placed.end -= core::mem::take(&mut placed.padding);
    let (start, end) = (placed.start, placed.end);
    queue.fill(&placed, words);
    queue
        .reserved
        .compare_exchange(queue.reserved.load(Ordering::Relaxed), end, Ordering::Relaxed, Ordering::Relaxed)
        .ok();
    queue.commit(&Placement { start, padding: 0, end }, &mut || patience())?;
    Ok(end)
}

/// Rings before its words are there.
fn rings_first(
    queue: &Queue<&Shared>,
    words: &[u32],
    patience: &mut dyn FnMut() -> bool,
) -> Result<u64, QueueError> {
    let placed = queue.reserve(words.len(), &mut || patience())?;
    queue.commit(&placed, &mut || patience())?;
    linger(|| queue.port.read_pointer() >= placed.end);
    queue.fill(&placed, words);
    Ok(placed.end)
}

/// Takes room without looking whether the engine has left it.
fn takes_all(
    queue: &Queue<&Shared>,
    words: &[u32],
    patience: &mut dyn FnMut() -> bool,
) -> Result<u64, QueueError> {
    queue.read.store(queue.reserved.load(Ordering::Relaxed), Ordering::Relaxed);
    queue.submit(words, patience)
}

#[test]
fn each_mutant_of_the_producer_is_caught() {
    let mutants: [(&str, Submit); 6] = [
        ("out of order", out_of_order),
        ("in two", in_two),
        ("fence first", fence_first),
        ("wraps", wraps),
        ("rings first", rings_first),
        ("takes all", takes_all),
    ];
    for (name, mutant) in mutants {
        let caught = (0..200).any(|_| race(256, 3, 50, 9, mutant).is_err());
        assert!(caught, "{name}");
    }
}

proptest! {
    /// One thread in the place of all: any lengths, an engine that comes when it likes.
    #[test]
    fn any_lengths_at_any_wrap(power in 6u32..11, lengths in prop::collection::vec((0..40usize, any::<bool>()), 1..120)) {
        let ring = Ring::new(1 << power).unwrap();
        let shared = Shared::new(ring);
        let queue = Queue::new(ring, &shared);
        let (mut engine, mut memory) = (Engine::new(ring, generation(), 64), Words::default());
        let mut done = 0;
        for (words, comes) in lengths {
            let operation = operation(0, done, words + 1);
            let mut submitted = queue.submit(&operation, || false);
            if matches!(submitted, Err(QueueError::Full { .. })) {
                drain(&shared, &mut engine, &mut memory).unwrap();
                submitted = queue.submit(&operation, || false);
            }
            match submitted {
                Ok(end) => {
                    done += 1;
                    prop_assert_eq!(queue.committed(), end);
                }
                Err(error) => {
                    let too_long = operation.len() as u64 > ring.most_words();
                    prop_assert!(too_long && matches!(error, QueueError::Operation(_)), "{error}");
                }
            }
            if comes {
                drain(&shared, &mut engine, &mut memory).unwrap();
            }
        }
        drain(&shared, &mut engine, &mut memory).unwrap();
        prop_assert!(engine.is_idle());
        prop_assert_eq!(engine.read(), queue.committed());
        let fences = memory.stored.iter().filter(|(address, _)| *address == FENCES).count();
        prop_assert_eq!(fences, done as usize);
    }
}

/// How far a producer's operation is.
#[derive(Clone, Copy, Debug, Default)]
enum At {
    #[default]
    Nothing,
    Reserved(Placement, usize),
    Filled(Placement),
}

proptest! {
    /// One to eight producers, step by step in any order, in rings from two operations on; the engine comes between any two steps,
    /// a step at a time.
    #[test]
    fn any_steps_of_any_producers(
        producers in 1usize..=8,
        power in 7u32..10,
        steps in prop::collection::vec((0..9usize, 0..12usize, 1..4u32), 1..400),
    ) {
        let ring = Ring::new(1 << power).unwrap();
        let shared = Shared::new(ring);
        let queue = Queue::new(ring, &shared);
        let (mut engine, mut memory) = (Engine::new(ring, generation(), 8), Words::default());
        let mut at = vec![At::default(); producers];
        let mut counts = vec![0; producers];
        let most = ring.most_words() as usize - 9;
        let mut go = |who: usize, words: usize, engine_steps: u32, begins: bool| -> Result<(), TestCaseError> {
            let Some(own) = at.get_mut(who) else {
                for _ in 0..engine_steps {
                    let write = shared.doorbell.load(Ordering::Acquire);
                    let word = |place: u64| shared.words[place as usize / 4].load(Ordering::Relaxed);
                    let did = engine.step(write, word, &mut memory, true);
                    prop_assert!(did.is_ok(), "{did:?}");
                    shared.read.store(engine.read(), Ordering::Release);
                }
                return Ok(());
            };
            *own = match *own {
                At::Nothing if begins => {
                    let words = words.min(most) + 1;
                    let operation = operation(who as u32, counts[who], words);
                    match queue.reserve(operation.len(), &mut || false) {
                        Ok(placed) => At::Reserved(placed, words),
                        Err(QueueError::Full { .. }) => At::Nothing,
                        Err(error) => return Err(TestCaseError::fail(error.to_string())),
                    }
                }
                At::Nothing => At::Nothing,
                At::Reserved(placed, words) => {
                    queue.fill(&placed, &operation(who as u32, counts[who], words));
                    At::Filled(placed)
                }
                // It would wait.
                At::Filled(placed) if queue.committed() != placed.start => At::Filled(placed),
                At::Filled(placed) => {
                    let committed = queue.commit(&placed, &mut || false);
                    prop_assert!(committed.is_ok(), "{committed:?}");
                    counts[who] += 1;
                    At::Nothing
                }
            };
            Ok(())
        };
        for (who, words, engine_steps) in steps {
            go(who % (producers + 1), words, engine_steps, true)?;
        }
        // A producer that has begun ends, whichever is before it.
        for _ in 0..3 * producers {
            for who in 0..producers {
                go(who, 0, 0, false)?;
            }
        }
        drain(&shared, &mut engine, &mut memory).map_err(|stopped| TestCaseError::fail(stopped.to_string()))?;
        prop_assert!(at.iter().all(|at| matches!(at, At::Nothing)), "{at:?}");
        prop_assert_eq!(shared.backwards.load(Ordering::Relaxed), 0);
        prop_assert_eq!(engine.read(), queue.committed());
        prop_assert!(engine.is_idle());
        // Each operation's words stand before its fence, whole, and each producer's in their order.
        let mut next = vec![0; producers];
        let mut data = Vec::new();
        for (address, stamp) in &memory.stored {
            let (producer, count) = ((stamp >> 24) as usize, stamp & 0xff_ffff);
            data.push(*stamp);
            if *address == FENCES {
                prop_assert!(data.len() > 1 && data.iter().all(|word| word == stamp), "{data:x?}");
                prop_assert_eq!(next[producer], count);
                next[producer] += 1;
                data.clear();
            }
        }
        prop_assert!(data.is_empty());
        prop_assert_eq!(next, counts);
    }
}

#[test]
fn no_words_are_no_operation() {
    let ring = Ring::new(64).unwrap();
    let shared = Shared::new(ring);
    let queue = Queue::new(ring, &shared);
    // Another producer has taken a range, and does not continue.
    queue.reserve(8, &mut || false).unwrap();
    assert_eq!(queue.submit(&[], || false), Ok(32));
    assert_eq!((queue.committed(), shared.doorbell.load(Ordering::Relaxed)), (0, 0));
}

#[test]
fn an_unread_queue_fills_until_it_is_read() {
    let ring = Ring::new(128).unwrap();
    let shared = Shared::new(ring);
    let queue = Queue::new(ring, &shared);
    let words = operation(0, 0, 1);
    queue.submit(&words, || false).unwrap();
    let mut looks = 0;
    let refused = queue.submit(&words, || {
        looks += 1;
        looks < 10
    });
    assert_eq!(refused, Err(QueueError::Full { read: 0, reserved: 64, words: 9 }));
    assert_eq!(looks, 10);
    shared.read.store(64, Ordering::Release);
    assert_eq!(queue.submit(&words, || false), Ok(128));
}

#[test]
fn a_stuck_producer_fails_the_queue_for_later_producers() {
    let ring = Ring::new(256).unwrap();
    let shared = Shared::new(ring);
    let queue = Queue::new(ring, &shared);
    // It takes room, and is never heard of again.
    queue.reserve(8, &mut || false).unwrap();
    let words = operation(1, 0, 1);
    assert_eq!(queue.submit(&words, || false), Err(QueueError::Stuck { committed: 0, start: 32 }));
    assert_eq!(queue.submit(&words, || true), Err(QueueError::Failed));
    assert_eq!(shared.doorbell.load(Ordering::Relaxed), 0, "the engine hears nothing of them");
}
