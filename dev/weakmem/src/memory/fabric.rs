//! What a bad link does to stores on their way.

use super::{Buffered, Mark, Memory, NEVER, Scope, lanes};
use crate::fault::{Fault, Loss};
use crate::memory::Place;
use crate::random::Random;

/// A store that is lost on its way, counted per rule.
#[derive(Clone, Debug)]
struct Lossy {
    from: u32,
    to: u32,
    which: Loss,
    told: bool,
    seen: u64,
}

/// A flag store that arrives twice.
#[derive(Clone, Copy, Debug)]
struct Repeat {
    from: u32,
    nth: u64,
}

/// The faults of the links between devices, and what they have done so far.
#[derive(Debug, Default)]
pub(crate) struct Fabric {
    lossy: Vec<Lossy>,
    repeats: Vec<Repeat>,
    /// Flag stores of each device so far.
    flags: Vec<u64>,
    /// Stores that come a second time, each behind the first of its wave.
    echoes: Vec<(u32, Buffered)>,
    /// Whose memory an allocation is.
    pub(crate) homes: Vec<Option<u32>>,
    /// Devices whose link has reported an error.
    pub(crate) told: Vec<u32>,
    random: Option<Random>,
}

impl Fabric {
    /// The links of `devices` devices under these faults; `seed` decides what they leave to chance.
    pub(crate) fn new(devices: u32, faults: &[Fault], seed: u64) -> Self {
        let mut fabric = Self { flags: vec![0; devices as usize], ..Self::default() };
        fabric.random = Some(Random::new(seed ^ 0x6c69_6e6b));
        for fault in faults {
            fabric.add(fault);
        }
        fabric
    }

    /// Adds a fault, if it is one of links.
    pub(crate) fn add(&mut self, fault: &Fault) {
        match *fault {
            Fault::LoseStore { from, to, which, told } => {
                self.lossy.push(Lossy { from, to, which, told, seen: 0 });
            }
            Fault::RepeatFlag { from, nth } => self.repeats.push(Repeat { from, nth }),
            _ => {}
        }
    }

    fn loses(&mut self, from: u32, allocation: u32) -> bool {
        let Some(Some(to)) = self.homes.get(allocation as usize).copied() else { return false };
        let Some(random) = &mut self.random else { return false };
        let mut lost = false;
        for rule in self.lossy.iter_mut().filter(|rule| (rule.from, rule.to) == (from, to)) {
            let applies = match rule.which {
                Loss::Nth(nth) => rule.seen == nth,
                Loss::Chance(parts) => random.chance(parts),
            };
            rule.seen += 1;
            if applies && rule.told {
                self.told.push(from);
            }
            lost |= applies;
        }
        lost
    }
}

impl Memory {
    /// A store of a wave leaves its buffer: it lands, or is lost.
    pub(super) fn leave(&mut self, wave: u32, store: Buffered, scope: Scope) {
        let allocation = self.words[store.word as usize].allocation;
        if self.fabric.loses(self.views[wave as usize].device, allocation) {
            self.changes += 1;
        } else {
            self.land(wave, store, scope);
        }
    }

    /// A wave has stored a flag, which a bad link may deliver twice.
    pub(crate) fn flag_stored(&mut self, wave: u32, place: Place, bytes: u32, value: u64, mark: Mark) {
        if self.fabric.repeats.is_empty() {
            return;
        }
        let device = self.views[wave as usize].device;
        let Some(count) = self.fabric.flags.get_mut(device as usize) else { return };
        let nth = *count;
        *count += 1;
        if self.fabric.repeats.iter().any(|repeat| (repeat.from, repeat.nth) == (device, nth)) {
            let word = self.word(place);
            let (mask, shift) = lanes(place.1, bytes);
            self.fabric.echoes.push((wave, Buffered { mark, word, mask, value: (value << shift) & mask }));
        }
    }

    /// Delivers a store that comes twice, behind its first coming; its wave and place.
    pub(crate) fn echo(&mut self) -> Option<(u32, Place)> {
        let first_came = |(wave, echo): &(u32, Buffered)| {
            !self.views[*wave as usize].buffer.iter().any(|store| store.word == echo.word)
        };
        let found = self.fabric.echoes.iter().position(first_came)?;
        let (wave, store) = self.fabric.echoes.remove(found);
        self.land(wave, store, Scope::System);
        Some((wave, self.place(store.word)))
    }

    /// Whether a store is to come a second time.
    pub(crate) fn has_echoes(&self) -> bool {
        !self.fabric.echoes.is_empty()
    }

    /// A device has died: each of its stores that is under way arrives or vanishes.
    pub(crate) fn scatter(&mut self, device: u32, random: &mut Random) {
        let mut vanished = Vec::new();
        for wave in 0..self.views.len() {
            if self.views[wave].device != device {
                continue;
            }
            for store in core::mem::take(&mut self.views[wave].buffer) {
                self.buffered -= 1;
                if random.chance(128) {
                    self.land(wave as u32, store, Scope::System);
                } else {
                    vanished.push((wave as u32, store.mark.step));
                }
            }
        }
        let mut arrived = Vec::new();
        let (words, views, now) = (&mut self.words, &self.views, self.now);
        self.inflight.retain(|&(word, index)| {
            let store = &mut words[word as usize].stores[index as usize];
            if views[store.wave as usize].device != device {
                return true;
            }
            if random.chance(128) {
                store.since.iter_mut().filter(|since| **since == NEVER).for_each(|since| *since = now);
                arrived.push(word);
            } else {
                // Its place in the order stays, as others count from there; an atomic must not find its value.
                (store.mask, store.value) = (0, 0);
                vanished.push((store.wave, store.mark.step));
            }
            false
        });
        // What never came does not come again. A wave does one primitive a step.
        self.fabric.echoes.retain(|(wave, echo)| !vanished.contains(&(*wave, echo.mark.step)));
        for word in arrived {
            self.show(word);
        }
        self.changes += 1;
    }
}
