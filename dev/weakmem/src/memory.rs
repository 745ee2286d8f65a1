//! What every wave may see of memory: store buffers, visibility by scope, stale loads. `docs/memory-model.md` says what
//! the model is and what it leaves out.
//!
//! Time is a count of primitives. A store waits in its wave's buffer, then *lands*: it gets its place in the order of its
//! word and becomes visible, to its block, its device or the whole system, at a time of its own for each. A load reads
//! the word as of some landed store that its wave may still take for the latest.

mod atomic;
mod fabric;
mod real;

use std::collections::HashMap;

use super::random::Random;
pub(crate) use fabric::Fabric;
pub(crate) use real::{Home, RealMemory};

/// How far a store is visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    Block,
    Device,
    System,
}

/// An 8-byte word: its number in [`Memory::words`].
type WordIndex = u32;

const NEVER: u64 = u64::MAX;

/// Owner of a store, where more than its wave is needed; otherwise zeros.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mark {
    /// The lane and its step, as `order.rs` numbers them.
    pub(crate) lane: u32,
    pub(crate) step: u64,
    /// The write to a flag that this is, from 1.
    pub(crate) flag: u32,
}

/// A store that has landed.
#[derive(Clone, Debug)]
struct Landed {
    mark: Mark,
    mask: u64,
    value: u64,
    wave: u32,
    /// When it became visible to the block, the device, and the system.
    since: [u64; 3],
}

/// A word that this run has touched: what it was before, and its stores in order.
#[derive(Clone, Debug)]
struct Word {
    allocation: u32,
    index: u32,
    before: u64,
    stores: Vec<Landed>,
}

/// A store on its way, in a wave's buffer.
#[derive(Clone, Copy, Debug)]
struct Buffered {
    mark: Mark,
    word: WordIndex,
    mask: u64,
    value: u64,
}

/// What a wave sees.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) device: u32,
    /// Number of the block among all of the run.
    pub(crate) block: u32,
    buffer: Vec<Buffered>,
    /// Stores that had become visible at a scope by this time must be seen.
    floor: [u64; 3],
    /// Stores of a word that it has seen: a later load does not go back.
    seen: HashMap<WordIndex, u32>,
}

impl View {
    pub(crate) fn new(device: u32, block: u32, now: u64) -> Self {
        Self { device, block, buffer: Vec::new(), floor: [now; 3], seen: HashMap::new() }
    }
}

/// Probabilities of this run for stores and loads, parts of 256, drawn from the seed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreOdds {
    /// A store lands at a primitive.
    pub(crate) land: u32,
    /// A landing store reaches the system at once.
    pub(crate) far: u32,
    /// The newest store of a wave lands first: often the flag.
    pub(crate) newest: u32,
    /// A load that may read an older value does.
    pub(crate) stale: u32,
}

impl StoreOdds {
    pub(crate) fn draw(random: &mut Random) -> Self {
        if random.is_script() {
            // Everything may happen. The newest store lands first when it is chosen.
            return Self { land: 128, far: 128, newest: 0, stale: 256 };
        }
        Self {
            land: random.pick([0, 4, 32, 128, 224]),
            far: random.pick([32, 128, 256]),
            newest: random.pick([0, 128]),
            stale: random.pick([0, 32, 128, 224]),
        }
    }
}

/// A word of memory as a place to report: allocation, and byte within.
pub(crate) type Place = (u32, u32);

/// Global memory of all devices, as the waves of one run see it.
#[derive(Debug)]
pub(crate) struct Memory {
    /// `[allocation][8-byte word]`: contents before the run.
    contents: Vec<Vec<u64>>,
    /// `[allocation][word]`: its number in `words` plus one, or 0.
    touched: Vec<Vec<WordIndex>>,
    words: Vec<Word>,
    views: Vec<View>,
    /// Landed stores that the system does not see yet: word and place in its order.
    inflight: Vec<(WordIndex, u32)>,
    /// Stores in all buffers.
    buffered: usize,
    now: u64,
    /// Until something lands, flags are read as the latest that can be seen: nothing else is left to happen.
    pub(crate) fresh: bool,
    /// Counts what a polling thread may have waited for.
    pub(crate) changes: u64,
    /// The contents are a machine's memory, and `contents` and `touched` are empty.
    pub(crate) real: Option<RealMemory>,
    pub(crate) fabric: Fabric,
}

impl Memory {
    pub(crate) fn new(contents: Vec<Vec<u64>>) -> Self {
        let touched = contents.iter().map(|words| vec![0; words.len()]).collect();
        Self {
            contents,
            touched,
            words: Vec::new(),
            views: Vec::new(),
            inflight: Vec::new(),
            buffered: 0,
            now: 1,
            fresh: false,
            changes: 0,
            real: None,
            fabric: Fabric::default(),
        }
    }

    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    pub(crate) fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// A wave that begins now; returns its number.
    pub(crate) fn begin_wave(&mut self, device: u32, block: u32) -> u32 {
        self.views.push(View::new(device, block, self.now));
        self.views.len() as u32 - 1
    }

    /// The number of a place's word in this run.
    pub(crate) fn word(&mut self, (allocation, byte): Place) -> WordIndex {
        let index = byte / 8;
        if self.real.is_some() {
            return self.real_word(allocation, index);
        }
        let touched = &mut self.touched[allocation as usize][index as usize];
        if *touched == 0 {
            let before = self.contents[allocation as usize][index as usize];
            self.words.push(Word { allocation, index, before, stores: Vec::new() });
            *touched = self.words.len() as u32;
        }
        *touched - 1
    }

    /// Puts a store at the end of its word's order, visible as far as `scope`.
    fn land(&mut self, wave: u32, store: Buffered, scope: Scope) {
        self.notice(store.word);
        let mut since = [NEVER; 3];
        since[..=scope as usize].fill(self.now);
        let stores = &mut self.words[store.word as usize].stores;
        stores.push(Landed { mark: store.mark, mask: store.mask, value: store.value, wave, since });
        self.fresh = false;
        if scope < Scope::System {
            self.inflight.push((store.word, stores.len() as u32 - 1));
        }
        self.changes += 1;
        self.show(store.word);
    }

    fn land_all(&mut self, wave: u32, scope: Scope) {
        for store in core::mem::take(&mut self.views[wave as usize].buffer) {
            self.buffered -= 1;
            self.leave(wave, store, scope);
        }
    }

    /// Makes landed stores visible as far as `scope`, those of `waves` only.
    fn extend(&mut self, waves: core::ops::Range<u32>, scope: Scope) {
        let (words, now, changes) = (&mut self.words, self.now, &mut self.changes);
        let mut shown = Vec::new();
        self.inflight.retain(|&(word, index)| {
            let store = &mut words[word as usize].stores[index as usize];
            if !waves.contains(&store.wave) {
                return true;
            }
            *changes += u64::from(extend_one(store, scope, now));
            let settled = store.since[Scope::System as usize] != NEVER;
            if settled {
                shown.push(word);
            }
            !settled
        });
        for word in shown {
            self.show(word);
        }
    }

    /// A release fence of a wave: its own stores only.
    pub(crate) fn release(&mut self, wave: u32, scope: Scope) {
        self.land_all(wave, scope);
        self.extend(wave..wave + 1, scope);
    }

    /// A cumulative release: every store that `covers` says is behind it, of whatever wave.
    pub(crate) fn release_all(&mut self, scope: Scope, covers: impl Fn(Mark) -> bool) {
        for wave in 0..self.views.len() as u32 {
            self.land_covered(wave, scope, &covers);
        }
        let (words, now, changes) = (&mut self.words, self.now, &mut self.changes);
        let mut shown = Vec::new();
        self.inflight.retain(|&(word, index)| {
            let store = &mut words[word as usize].stores[index as usize];
            if covers(store.mark) {
                *changes += u64::from(extend_one(store, scope, now));
            }
            let settled = store.since[Scope::System as usize] != NEVER;
            if settled {
                shown.push(word);
            }
            !settled
        });
        for word in shown {
            self.show(word);
        }
    }

    fn land_covered(&mut self, wave: u32, scope: Scope, covers: &impl Fn(Mark) -> bool) {
        let all = core::mem::take(&mut self.views[wave as usize].buffer);
        // Stores to one word stay in order, so what precedes a covered one goes too.
        let goes = |at: usize| {
            let word = all[at].word;
            all[at..].iter().any(|later| later.word == word && covers(later.mark))
        };
        let (gone, left): (Vec<_>, Vec<_>) = (0..all.len()).partition(|at| goes(*at));
        self.views[wave as usize].buffer = left.iter().map(|at| all[*at]).collect();
        for at in gone {
            self.buffered -= 1;
            self.leave(wave, all[at], scope);
        }
    }

    /// Stores that the system saw by `floor` are known to a wave.
    pub(crate) fn raise_floor(&mut self, wave: u32, floor: u64) {
        let mine = &mut self.views[wave as usize].floor[Scope::System as usize];
        *mine = floor.max(*mine);
    }

    /// An acquire fence of a wave.
    pub(crate) fn acquire(&mut self, wave: u32, scope: Scope) {
        let now = self.now;
        self.views[wave as usize].floor[..=scope as usize].fill(now);
    }

    /// The waves of a block have met: they see each other's stores, and what any of them had acquired.
    pub(crate) fn meet(&mut self, waves: core::ops::Range<u32>) {
        let mut floor = [0; 3];
        for wave in waves.clone() {
            self.land_all(wave, Scope::Block);
            for (all, one) in floor.iter_mut().zip(self.views[wave as usize].floor) {
                *all = one.max(*all);
            }
        }
        floor[Scope::Block as usize] = self.now;
        for wave in waves {
            self.views[wave as usize].floor = floor;
        }
    }

    /// A kernel has ended: everybody sees its stores.
    pub(crate) fn end_kernel(&mut self, waves: core::ops::Range<u32>) {
        for wave in waves.clone() {
            self.land_all(wave, Scope::System);
        }
        self.extend(waves, Scope::System);
    }

    pub(crate) fn store(&mut self, wave: u32, place: Place, bytes: u32, value: u64, mark: Mark) {
        let word = self.word(place);
        let (mask, shift) = lanes(place.1, bytes);
        let value = (value << shift) & mask;
        self.views[wave as usize].buffer.push(Buffered { mark, word, mask, value });
        self.buffered += 1;
    }

    /// Returns the value, and the write to a flag that it is from or 0.
    pub(crate) fn load(
        &mut self,
        wave: u32,
        place: Place,
        bytes: u32,
        stale: bool,
        random: &mut Random,
    ) -> (u64, u32) {
        let index = self.word(place);
        let (mask, shift) = lanes(place.1, bytes);
        let view = &self.views[wave as usize];
        let word = &self.words[index as usize];
        let all = word.stores.len();
        let visible = |store: &Landed| scope_of(&self.views, store, wave, view);
        let mut read = all;
        if stale {
            let least = view.seen.get(&index).map_or(0, |seen| *seen as usize);
            let known = word.stores.iter().rposition(|store| match visible(store) {
                None => true,
                Some(scope) => store.since[scope as usize] <= view.floor[scope as usize],
            });
            let least = least.max(known.map_or(0, |last| last + 1));
            read = least + random.below(all - least + 1);
        }
        let (mut value, mut flag) = (word.before, 0);
        for store in &word.stores[..read] {
            if visible(store).is_none_or(|scope| store.since[scope as usize] != NEVER) {
                value = (value & !store.mask) | store.value;
                flag = if store.mask & mask == 0 { flag } else { store.mark.flag };
            }
        }
        for store in view.buffer.iter().filter(|store| store.word == index) {
            value = (value & !store.mask) | store.value;
            flag = if store.mask & mask == 0 { flag } else { store.mark.flag };
        }
        if read > 0 {
            self.views[wave as usize].seen.insert(index, read as u32);
        }
        ((value & mask) >> shift, flag)
    }

    /// Whether a store is not yet visible to everybody.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.buffered > 0 || !self.inflight.is_empty()
    }

    /// Whether two waves have stores under way to one word, so that their order decides what it holds in the end.
    pub(crate) fn has_rivals(&self) -> bool {
        let waves = self.views.iter().enumerate();
        let mut stores: Vec<_> =
            waves.flat_map(|(wave, view)| view.buffer.iter().map(move |store| (store.word, wave))).collect();
        stores.sort_unstable();
        stores.dedup();
        stores.windows(2).any(|pair| pair[0].0 == pair[1].0)
    }

    /// Moves one store on: out of a buffer, or to the whole system. Returns its wave and place.
    pub(crate) fn settle_one(&mut self, odds: StoreOdds, random: &mut Random) -> Option<(u32, Place)> {
        if !self.is_unsettled() {
            return None;
        }
        let chosen = random.below(self.buffered + self.inflight.len());
        if let Some(place) = chosen.checked_sub(self.buffered) {
            let (word, index) = self.inflight.swap_remove(place);
            let store = &mut self.words[word as usize].stores[index as usize];
            extend_one(store, Scope::System, self.now);
            self.changes += 1;
            let wave = store.wave;
            self.show(word);
            return Some((wave, self.place(word)));
        }
        let mut rest = chosen;
        let newest = random.chance(odds.newest);
        let wave = self.views.iter().position(|view| match rest.checked_sub(view.buffer.len()) {
            Some(more) => {
                rest = more;
                false
            }
            None => true,
        })?;
        let buffer = &mut self.views[wave].buffer;
        // Stores to one word stay in order.
        let word = buffer[if newest { buffer.len() - 1 } else { rest }].word;
        let first = buffer.iter().position(|store| store.word == word)?;
        let store = buffer.remove(first);
        self.buffered -= 1;
        let scope = if random.chance(odds.far) { Scope::System } else { Scope::Device };
        self.leave(wave as u32, store, scope);
        Some((wave as u32, self.place(word)))
    }

    fn place(&self, word: WordIndex) -> Place {
        let word = &self.words[word as usize];
        (word.allocation, word.index * 8)
    }

    /// The contents after the run.
    pub(crate) fn into_contents(mut self) -> Vec<Vec<u64>> {
        for word in &self.words {
            let value =
                word.stores.iter().fold(word.before, |value, store| (value & !store.mask) | store.value);
            self.contents[word.allocation as usize][word.index as usize] = value;
        }
        self.contents
    }
}

/// Through which scope a wave sees a store; `None` for its own, which it always sees.
fn scope_of(views: &[View], store: &Landed, wave: u32, view: &View) -> Option<Scope> {
    let writer = &views[store.wave as usize];
    if store.wave == wave {
        None
    } else if writer.block == view.block {
        Some(Scope::Block)
    } else if writer.device == view.device {
        Some(Scope::Device)
    } else {
        Some(Scope::System)
    }
}

fn extend_one(store: &mut Landed, scope: Scope, now: u64) -> bool {
    let mut changed = false;
    for since in &mut store.since[..=scope as usize] {
        if *since == NEVER {
            *since = now;
            changed = true;
        }
    }
    changed
}

/// The bytes of a word that an access covers, as a mask, and by how much its value is shifted.
fn lanes(byte: u32, bytes: u32) -> (u64, u32) {
    let shift = byte % 8 * 8;
    (u64::MAX >> (64 - 8 * bytes) << shift, shift)
}
