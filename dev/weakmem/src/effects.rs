//! What the primitives do to the world: memory, then, if they are checked, order and races.

use super::error::SeededError;
use super::memory::{Mark, Place, Scope};
use super::races::{Access, Race, Races, Whole, named};
use super::world::{Who, World};

/// The kinds of access, by the numbers of `host_abi.h`.
const ACCESS_FLAG: u32 = 2;
const ACCESS_FLAG_ACQUIRE: u32 = 3;

fn whole_of(kind: u32) -> Whole {
    if kind >= ACCESS_FLAG { Whole::System } else { Whole::No }
}

/// The bytes of its word that an access touches.
fn bytes_of(byte: u32, bytes: u32) -> u8 {
    (0xff_u8 >> (8 - bytes)) << (byte % 8)
}

impl World {
    /// Loads; `None` after noting a failure.
    pub(crate) fn load(&mut self, who: &Who, address: u64, bytes: u32, kind: u32) -> Option<u64> {
        let what =
            ["load", "private load", "flag load", "flag load"].get(kind as usize).copied().unwrap_or("load");
        let place = self.access(who, what, address, bytes, kind)?;
        // Data behind a flag that was read afresh may still be old.
        let afresh = self.memory.fresh && kind >= ACCESS_FLAG;
        let stale = self.random.chance(self.odds.stale) && !afresh;
        let (value, flag) = self.memory.load(who.view, place, bytes, stale, &mut self.random);
        if kind >= ACCESS_FLAG {
            self.read_flag(who, flag, kind == ACCESS_FLAG_ACQUIRE);
        }
        self.look_for_race(who, what, place, bytes, whole_of(kind));
        Some(value)
    }

    /// Stores; `None` after noting a failure.
    pub(crate) fn store(&mut self, who: &Who, address: u64, bytes: u32, value: u64, kind: u32) -> Option<()> {
        let what = ["store", "private store", "flag store"].get(kind as usize).copied().unwrap_or("store");
        let place = self.access(who, what, address, bytes, kind)?;
        let step = self.steps;
        let mut mark = Mark { lane: who.lane, step, flag: 0 };
        if let Some(order) = &mut self.order
            && kind == ACCESS_FLAG
        {
            mark.flag = order.write_flag(who.lane, Scope::System, step);
        }
        self.memory.store(who.view, place, bytes, value, mark);
        if kind == ACCESS_FLAG {
            self.memory.flag_stored(who.view, place, bytes, value, mark);
        }
        self.look_for_race(who, what, place, bytes, whole_of(kind));
        Some(())
    }

    /// Reads, changes and writes at once, but writes nothing unless it finds `only_at`; returns the old value, or `None` after noting a failure.
    pub(crate) fn modify(
        &mut self,
        who: &Who,
        address: u64,
        bytes: u32,
        scope: Scope,
        only_at: Option<u64>,
        change: impl FnOnce(u64) -> u64,
    ) -> Option<u64> {
        let place = self.access(who, "atomic", address, bytes, ACCESS_FLAG)?;
        let step = self.steps;
        let flag = self.order.as_mut().map_or(0, |order| order.write_flag(who.lane, scope, step));
        let mark = Mark { lane: who.lane, step, flag };
        let (old, before) = self.memory.atomic(who.view, place, bytes, only_at, change, mark);
        let wrote = only_at.is_none_or(|expected| expected == old);
        if let Some(order) = &mut self.order {
            order.pass_on(flag, before, wrote);
        }
        self.read_flag(who, before, false);
        let whole = if scope == Scope::System { Whole::System } else { Whole::Device };
        self.look_for_race(who, "atomic", place, bytes, whole);
        Some(old)
    }

    /// A fence; false when its rank is dead and must not do it.
    pub(crate) fn fence(&mut self, who: &Who, releases: bool, scope: Scope) -> bool {
        let names = match scope {
            Scope::System => ["acquire system", "release system"],
            _ => ["acquire device", "release device"],
        };
        if !self.sync(who, names[usize::from(releases)]) {
            return false;
        }
        let (step, now) = (self.steps, self.memory.now());
        if let Some(order) = &mut self.order {
            order.fence(who.lane, releases, scope, step, now);
        }
        if self.cumulative {
            self.memory.acquire(who.view, scope);
            self.follow(who);
            let Some(order) = &self.order else { return true };
            let known = order.known(who.lane);
            self.memory.release_all(scope, |mark| known.of(mark.lane).block >= mark.step);
        } else if releases {
            self.memory.release(who.view, scope);
        } else {
            self.memory.acquire(who.view, scope);
        }
        true
    }

    /// Flags of a lane carry from now on what earlier launches of its stream released; false when its rank is dead.
    pub(crate) fn name_earlier(&mut self, who: &Who) -> bool {
        if !self.sync(who, "names earlier work") {
            return false;
        }
        if let Some(order) = &mut self.order {
            order.name_earlier(who.lane);
        }
        true
    }

    fn read_flag(&mut self, who: &Who, flag: u32, acquires: bool) {
        let now = self.memory.now();
        if let Some(order) = &mut self.order {
            order.read_flag(who.lane, flag, acquires, now);
        }
        if acquires {
            self.memory.acquire(who.view, Scope::System);
            self.follow(who);
        }
    }

    /// A cumulative acquire also covers what those who released had acquired themselves.
    fn follow(&mut self, who: &Who) {
        if let Some(order) = &self.order
            && self.cumulative
        {
            self.memory.raise_floor(who.view, order.known(who.lane).floor);
        }
    }

    /// The lanes of a block have met at a barrier; `waves` are theirs.
    pub(crate) fn meet_block(&mut self, who: &Who, waves: core::ops::Range<u32>) {
        self.memory.meet(waves);
        if let Some(order) = &mut self.order {
            order.meet_block(who.lane, self.steps);
        }
    }

    /// The lanes of a wave have met at a barrier.
    pub(crate) fn meet_wave(&mut self, who: &Who) {
        if let Some(order) = &mut self.order {
            order.meet_wave(who.lane, self.steps);
        }
    }

    /// Begins a block of a stream; returns the numbers of its lanes, if they have any.
    pub(crate) fn begin_block(&mut self, stream: usize, threads: impl Iterator<Item = Who>) -> Vec<u32> {
        let (step, now) = (self.steps, self.memory.now());
        self.order.as_mut().map_or_else(Vec::new, |order| order.begin_block(stream, step, now, threads))
    }

    /// The launch of a stream has ended, all its stores visible.
    pub(crate) fn end_launch(&mut self, stream: usize, blocks: u32) {
        let step = self.steps;
        if let Some(order) = &mut self.order {
            order.end_launch(stream, blocks, step);
        }
    }

    /// A lane is about to touch its block's local memory, of which `local` knows. The bytes themselves are the block's, never
    /// stale: what a GPU may show without a barrier follows from the order alone.
    pub(crate) fn touch_local(&mut self, who: &Who, local: &mut Races, byte: u32, bytes: u32, kind: u32) {
        let (Some(_), Some(order)) = (&self.races, &self.order) else { return };
        let (primitive, whole) = match kind {
            0 => ("local load", Whole::No),
            1 => ("local store", Whole::No),
            _ => ("local atomic", Whole::Device),
        };
        // Later than the last primitive, and ordered by the next one if that is a barrier.
        let (lane, device, step) = (who.lane, who.device, self.steps + 1);
        let end = byte + bytes;
        for word in byte / 8..end.div_ceil(8) {
            let [first, last] = [byte, end].map(|at| at.clamp(word * 8, word * 8 + 8) - word * 8);
            let bytes = ((1_u16 << last) - (1 << first)) as u8;
            let access = Access { lane, device, step, bytes, whole, latest: kind > 1, primitive };
            let found = match kind {
                0 => local.load(order, word, access),
                _ => local.store(order, word, access),
            };
            let Some((first, second, at, missing)) = found else { continue };
            let race = Race {
                first: named(order, &first),
                second: named(order, &second),
                allocation: "local memory".into(),
                byte: word * 8 + at,
                missing,
            };
            self.failure.get_or_insert(SeededError::Race(Box::new(race)));
        }
    }

    fn look_for_race(&mut self, who: &Who, primitive: &'static str, place: Place, bytes: u32, whole: Whole) {
        let (Some(races), Some(order)) = (&mut self.races, &self.order) else { return };
        let word = self.memory.word(place);
        let bytes = bytes_of(place.1, bytes);
        let (lane, device, step) = (who.lane, who.device, self.steps);
        let latest = primitive == "atomic";
        let access = Access { lane, device, step, bytes, whole, latest, primitive };
        let found = match primitive {
            "load" | "private load" | "flag load" => races.load(order, word, access),
            _ => races.store(order, word, access),
        };
        let Some((first, second, byte, missing)) = found else { return };
        let race = Race {
            first: named(order, &first),
            second: named(order, &second),
            allocation: self.name_of(place.0),
            byte: place.1 / 8 * 8 + byte,
            missing,
        };
        self.failure.get_or_insert(SeededError::Race(Box::new(race)));
    }
}
