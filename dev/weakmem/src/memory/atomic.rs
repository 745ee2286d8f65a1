//! Atomics: they read the end of their word's order, whether it is visible yet or not.

use super::{Buffered, Landed, Mark, Memory, NEVER, Place, Scope, lanes, scope_of};

impl Memory {
    /// Reads, changes and writes a word at the end of its order, visible to all at once, but writes nothing unless it finds
    /// `only_at`; returns the old value, and the write to a flag that it is from or 0.
    pub(crate) fn atomic(
        &mut self,
        wave: u32,
        place: Place,
        bytes: u32,
        only_at: Option<u64>,
        change: impl FnOnce(u64) -> u64,
        mark: Mark,
    ) -> (u64, u32) {
        let index = self.word(place);
        let (mask, shift) = lanes(place.1, bytes);
        let view = &mut self.views[wave as usize];
        let mine: Vec<_> = view.buffer.iter().filter(|store| store.word == index).copied().collect();
        view.buffer.retain(|store| store.word != index);
        self.buffered -= mine.len();
        for store in mine {
            self.leave(wave, store, Scope::System);
        }
        let word = &self.words[index as usize];
        // What a wave has only looked at is no store: see `look`.
        let stores = || word.stores.iter().filter(|store| store.since[Scope::Block as usize] != NEVER);
        let latest = stores().fold(word.before, |value, store| (value & !store.mask) | store.value);
        let old = (latest & mask) >> shift;
        let before = stores().rfind(|store| store.mask & mask != 0).map_or(0, |store| store.mark.flag);
        if only_at.is_none_or(|expected| expected == old) {
            let value = (change(old) << shift) & mask;
            self.land(wave, Buffered { mark, word: index, mask, value }, Scope::System);
        } else {
            let mark = Mark { flag: before, ..mark };
            self.look(wave, Buffered { mark, word: index, mask, value: latest & mask });
        }
        let seen = self.words[index as usize].stores.len() as u32;
        self.views[wave as usize].seen.insert(index, seen);
        (old, before)
    }

    /// A wave has read a value that it cannot see yet, and publishes nothing by that. Its own later loads must not go back:
    /// to it alone the value is like a store of its own.
    fn look(&mut self, wave: u32, found: Buffered) {
        let view = &self.views[wave as usize];
        let word = &self.words[found.word as usize];
        let visible = |store: &&Landed| {
            scope_of(&self.views, store, wave, view).is_none_or(|scope| store.since[scope as usize] != NEVER)
        };
        let seen = word.stores.iter().filter(visible);
        let seen = seen.fold(word.before, |value, store| (value & !store.mask) | store.value);
        if (seen ^ found.value) & found.mask != 0 {
            let Buffered { mark, word, mask, value } = found;
            self.words[word as usize].stores.push(Landed { mark, mask, value, wave, since: [NEVER; 3] });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::{Fault, Loss};
    use crate::memory::Fabric;
    use crate::random::Random;

    const PLACE: Place = (0, 0);

    fn mark(step: u64) -> Mark {
        Mark { step, ..Mark::default() }
    }

    /// One word, one wave on each of two devices.
    fn memory(faults: &[Fault]) -> (Memory, u32, u32) {
        let mut memory = Memory::new(vec![vec![0]]);
        memory.fabric = Fabric::new(2, faults, 1);
        memory.fabric.homes.push(Some(1));
        let (first, second) = (memory.begin_wave(0, 0), memory.begin_wave(1, 1));
        (memory, first, second)
    }

    fn add(memory: &mut Memory, wave: u32, operand: u64) -> u64 {
        memory.atomic(wave, PLACE, 8, None, |old| old + operand, mark(9)).0
    }

    fn swap(memory: &mut Memory, wave: u32, expected: u64) -> u64 {
        memory.atomic(wave, PLACE, 8, Some(expected), |old| old + 1, mark(9)).0
    }

    fn load(memory: &mut Memory, wave: u32) -> u64 {
        memory.load(wave, PLACE, 8, false, &mut Random::new(1)).0
    }

    #[test]
    fn what_vanished_with_its_rank_does_not_come_back() {
        let vanished = (0..64).filter(|seed| {
            let (mut memory, first, second) = memory(&[Fault::RepeatFlag { from: 0, nth: 0 }]);
            memory.store(first, PLACE, 8, 5, mark(1));
            memory.flag_stored(first, PLACE, 8, 5, mark(1));
            if seed % 2 == 0 {
                memory.release(first, Scope::Device);
                assert_eq!((load(&mut memory, second), memory.inflight.len()), (0, 1));
            }
            memory.scatter(0, &mut Random::new(*seed));
            let found = load(&mut memory, second);
            assert_eq!(
                (add(&mut memory, second, 0), memory.has_echoes()),
                (found, found == 5),
                "seed {seed}"
            );
            found == 0
        });
        let vanished = vanished.count();
        assert!(vanished > 16 && vanished < 48, "{vanished} of 64");
    }

    #[test]
    fn a_store_that_an_atomic_sends_ahead_can_be_lost() {
        let lose = Fault::LoseStore { from: 0, to: 1, which: Loss::Nth(0), told: false };
        let (mut memory, first, _) = memory(&[lose]);
        memory.store(first, PLACE, 8, 5, mark(1));
        assert_eq!((add(&mut memory, first, 1), add(&mut memory, first, 1)), (0, 1));
        memory.store(first, PLACE, 8, 7, mark(2));
        assert_eq!(add(&mut memory, first, 1), 7, "only the first is lost");
    }

    #[test]
    fn a_swap_that_writes_nothing_publishes_nothing() {
        let (mut memory, first, second) = memory(&[]);
        let third = memory.begin_wave(1, 2);
        memory.store(first, PLACE, 8, 5, mark(1));
        memory.release(first, Scope::Device);
        assert_eq!(swap(&mut memory, second, 3), 5, "it finds the latest");
        assert_eq!((load(&mut memory, second), load(&mut memory, third)), (5, 0), "and does not go back");
        let words = memory.words[0].stores.len();
        assert_eq!((swap(&mut memory, second, 3), memory.words[0].stores.len()), (5, words));
        assert_eq!((swap(&mut memory, second, 5), load(&mut memory, third)), (5, 6));
    }
}
