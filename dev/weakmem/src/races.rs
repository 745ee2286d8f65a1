//! Finds two accesses to the same bytes, one of them a store, that nothing orders: also in runs whose values came out
//! right. Accesses to flags and atomics do not race with one another; their kind says so, no list does.

use core::fmt;
use std::sync::Arc;

use super::order::{Missing, Order};
use super::world::Who;

/// One of the two accesses of a [`Race`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaceAccess {
    /// The device.
    pub device: u32,
    /// The kernel.
    pub kernel: Arc<str>,
    /// The block of its grid.
    pub block: u32,
    /// The wave of the block.
    pub wave: u32,
    /// The thread of the block.
    pub thread: u32,
    /// Primitives of the run so far, as in [`Event::step`](super::Event::step).
    pub step: u64,
    /// The primitive.
    pub primitive: &'static str,
}

impl fmt::Display for RaceAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, kernel, block, wave, thread, step, primitive } = self;
        write!(
            f,
            "{primitive} at step {step} by device {device} {kernel} block {block} wave {wave} thread {thread}"
        )
    }
}

/// Two accesses that conflict and that nothing orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Race {
    /// The one that came first in this run.
    pub first: RaceAccess,
    /// The one that came second.
    pub second: RaceAccess,
    /// The allocation.
    pub allocation: Arc<str>,
    /// The first byte of it that both touch.
    pub byte: u32,
    /// What is missing between the two.
    pub missing: Missing,
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, second, allocation, byte, missing } = self;
        let why = match missing {
            Missing::Order => "nothing orders the second access after the first",
            Missing::Fence => {
                "a flag orders it after the first, but a release of that scope, or an acquire, is missing"
            }
            Missing::Acquire => {
                "it was released as far as the second thread, which has not acquired it, nor has its block"
            }
        };
        write!(f, "race on {allocation}+{byte}: {first}; {second}: {why}")
    }
}

/// How far an access is one piece with others: not at all, or an atomic or flag among so many lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whole {
    No,
    Device,
    System,
}

/// An access to a word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(crate) lane: u32,
    pub(crate) device: u32,
    pub(crate) step: u64,
    /// Bytes of the word.
    pub(crate) bytes: u8,
    pub(crate) whole: Whole,
    /// It read the newest value as it wrote: coherence puts it, and so what its lane does next to the word, behind every
    /// flag and atomic before it.
    pub(crate) latest: bool,
    pub(crate) primitive: &'static str,
}

impl Access {
    fn conflicts(&self, other: &Self) -> bool {
        let whole = match (self.whole, other.whole) {
            (Whole::System, Whole::System) => true,
            (Whole::No, _) | (_, Whole::No) => false,
            _ => self.device == other.device,
        };
        self.bytes & other.bytes != 0 && !whole
    }
}

/// The accesses to a word that a later one has to be ordered behind.
#[derive(Debug, Default)]
struct Touched {
    /// The newest store of each byte, and those that it is not ordered behind.
    stores: Vec<Access>,
    /// Each lane's loads since then.
    loads: Vec<Access>,
}

/// The two accesses of a race, the first byte of the word that both touch, and what is missing.
type Found = (Access, Access, u32, Missing);

/// What has been done to each word, by [`Memory`](super::memory::Memory)'s number.
#[derive(Debug, Default)]
pub(crate) struct Races {
    words: Vec<Touched>,
}

impl Races {
    fn word(&mut self, index: u32) -> &mut Touched {
        let index = index as usize;
        if index >= self.words.len() {
            self.words.resize_with(index + 1, Touched::default);
        }
        &mut self.words[index]
    }

    /// A lane loads from a word now.
    pub(crate) fn load(&mut self, order: &Order, word: u32, access: Access) -> Option<Found> {
        let word = self.word(word);
        let found = Self::first_race(order, &word.stores, access, true);
        let replaced = |load: &&mut Access| {
            load.lane == access.lane && load.whole == access.whole && load.bytes & !access.bytes == 0
        };
        match word.loads.iter_mut().find(replaced) {
            Some(load) => *load = access,
            None => word.loads.push(access),
        }
        found
    }

    /// A lane stores to a word now, or reads and changes it at once.
    pub(crate) fn store(&mut self, order: &Order, word: u32, access: Access) -> Option<Found> {
        let word = self.word(word);
        let found = Self::first_race(order, &word.stores, access, false)
            .or_else(|| Self::first_race(order, &word.loads, access, false));
        // What comes later and is ordered behind this is, byte by byte, behind what this is behind. Among flags and atomics
        // that may be nothing: those are kept.
        for accesses in [&mut word.stores, &mut word.loads] {
            accesses.retain_mut(|earlier| {
                let behind = access.latest && earlier.whole != Whole::No
                    || order.missing((earlier.lane, earlier.step), access.lane, false).is_none();
                if behind {
                    earlier.bytes &= !access.bytes;
                }
                earlier.bytes != 0
            });
        }
        word.stores.push(access);
        found
    }

    fn first_race(order: &Order, earlier: &[Access], access: Access, must_see: bool) -> Option<Found> {
        earlier.iter().filter(|first| first.conflicts(&access)).find_map(|first| {
            let missing = order.missing((first.lane, first.step), access.lane, must_see)?;
            Some((*first, access, (first.bytes & access.bytes).trailing_zeros(), missing))
        })
    }
}

/// Names an access for a report.
pub(crate) fn named(order: &Order, access: &Access) -> RaceAccess {
    let who = order.name(access.lane, access.step);
    let nobody = || "".into();
    RaceAccess {
        device: access.device,
        kernel: who.map_or_else(nobody, |who: &Who| Arc::clone(&who.kernel)),
        block: who.map_or(0, |who| who.block),
        wave: who.map_or(0, |who| who.wave),
        thread: who.map_or(0, |who| who.thread),
        step: access.step,
        primitive: access.primitive,
    }
}
