//! Contents that are a machine's real memory: what the system sees of every word is kept there, and what others than
//! kernels write there is noticed as a store of the host.
//!
//! Copies, fills and host code work on real memory. A word that kernels have touched remembers what the model last put
//! there; a difference was written by another agent, in between.

use core::ops::Range;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::{Landed, Mark, Memory, NEVER, Scope, View, Word, WordIndex};
use anabranch_hip_host::scheduler::Mapping;

/// The wave that stands for the host and for copy engines: on no device, so that all see its stores as a peer's.
const HOST: u32 = 0;
const NO_DEVICE: u32 = u32::MAX;
/// The bytes of a word that is all of one allocation.
const WHOLE: Range<usize> = 0..8;

/// Where memory is mapped, and what keeps it there; without a mapping its owner does, until it is taken back.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    pub(crate) address: usize,
    pub(crate) mapping: Option<Weak<Mapping>>,
}

#[derive(Debug)]
struct RealAllocation {
    homes: Vec<Home>,
    /// Bytes of its first word that lie before it, and belong to something else.
    lead: usize,
    /// Behind its last byte, from its first word on.
    bytes: usize,
    /// Host code may write it at any time.
    on_host: bool,
    /// Where words are read and written while any is touched: memory that is freed stays as long.
    held: Option<(usize, Option<Arc<Mapping>>)>,
    touched: BTreeMap<u32, WordIndex>,
}

/// The memory of a machine.
#[derive(Debug, Default)]
pub(crate) struct RealMemory {
    allocations: Vec<RealAllocation>,
    /// Of each touched word: what the model last put or found there.
    shown: Vec<u64>,
}

impl RealMemory {
    /// Adds memory and returns its number. Its home is aligned to a word, of which the first `lead` bytes are not its own.
    pub(crate) fn add(&mut self, home: Home, lead: usize, bytes: usize, on_host: bool) -> u32 {
        let (homes, touched) = (vec![home], BTreeMap::new());
        self.allocations.push(RealAllocation { homes, lead, bytes, on_host, held: None, touched });
        self.allocations.len() as u32 - 1
    }

    /// The same memory is mapped at another place too; false if it had gone before, so that this is other memory.
    pub(crate) fn add_home(&mut self, number: u32, home: Home) -> bool {
        let allocation = &mut self.allocations[number as usize];
        let homes = &mut allocation.homes;
        homes.retain(|home| home.mapping.as_ref().is_none_or(|mapping| mapping.strong_count() > 0));
        if homes.is_empty() {
            return false;
        }
        homes.push(home);
        true
    }

    /// The caller takes its memory back: nothing is read or written there any more.
    pub(crate) fn take_back(&mut self, number: u32) {
        let allocation = &mut self.allocations[number as usize];
        allocation.homes.clear();
        allocation.held = None;
    }

    fn touch(&mut self, allocation: u32) {
        let allocation = &mut self.allocations[allocation as usize];
        if allocation.held.is_none() {
            allocation.held = allocation.homes.iter().find_map(|home| match &home.mapping {
                None => Some((home.address, None)),
                Some(mapping) => Some((home.address, Some(mapping.upgrade()?))),
            });
        }
    }

    /// The address of a word and which of its bytes belong to the allocation; `None` for memory that is gone.
    fn at(&self, allocation: u32, index: u32) -> Option<(usize, Range<usize>)> {
        let allocation = &self.allocations[allocation as usize];
        let (start, _) = allocation.held.as_ref()?;
        let byte = index as usize * 8;
        let lead = if index == 0 { allocation.lead } else { 0 };
        Some((start + byte, lead..8.min(allocation.bytes.saturating_sub(byte))))
    }

    fn read(&self, allocation: u32, index: u32) -> Option<u64> {
        let (address, bytes) = self.at(allocation, index)?;
        if bytes == WHOLE {
            // SAFETY: eight bytes, aligned as homes are, all of them of an allocation that `held` keeps, or that its owner
            // keeps until it is taken back; others access them with the machine's own primitives, copies, or the caller's
            // atomics, as HIP asks.
            return Some(unsafe { AtomicU64::from_ptr(address as *mut u64) }.load(Ordering::Acquire));
        }
        // SAFETY: as above, byte by byte: those of the word that are the allocation's.
        let byte =
            |at: usize| unsafe { AtomicU8::from_ptr((address + at) as *mut u8) }.load(Ordering::Acquire);
        Some(bytes.fold(0, |word, at| word | u64::from(byte(at)) << (8 * at)))
    }

    /// Writes a word that holds `old`; false when it holds something else by now.
    fn write(&self, allocation: u32, index: u32, old: u64, value: u64) -> bool {
        let Some((address, mut bytes)) = self.at(allocation, index) else { return true };
        if bytes == WHOLE {
            // SAFETY: as in `read`.
            let word = unsafe { AtomicU64::from_ptr(address as *mut u64) };
            return word.compare_exchange(old, value, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        }
        bytes.all(|at| {
            let (old, value) = ((old >> (8 * at)) as u8, (value >> (8 * at)) as u8);
            // SAFETY: as in `read`, byte by byte.
            let byte = unsafe { AtomicU8::from_ptr((address + at) as *mut u8) };
            old == value || byte.compare_exchange(old, value, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    }
}

impl Memory {
    /// Memory whose contents are real.
    pub(crate) fn of_machine() -> Self {
        let mut memory = Self::new(Vec::new());
        memory.real = Some(RealMemory::default());
        memory.begin_wave(NO_DEVICE, u32::MAX);
        memory
    }

    pub(super) fn real_word(&mut self, allocation: u32, index: u32) -> WordIndex {
        let Some(real) = &mut self.real else { return 0 };
        if let Some(known) = real.allocations[allocation as usize].touched.get(&index) {
            let known = *known;
            self.notice(known);
            return known;
        }
        real.touch(allocation);
        let before = real.read(allocation, index).unwrap_or(0);
        let number = self.words.len() as u32;
        real.shown.push(before);
        real.allocations[allocation as usize].touched.insert(index, number);
        self.words.push(Word { allocation, index, before, stores: Vec::new() });
        number
    }

    /// Takes what others have written into a word for a store of the host, now.
    pub(super) fn notice(&mut self, number: WordIndex) {
        let Some(real) = &mut self.real else { return };
        let word = &mut self.words[number as usize];
        let Some(value) = real.read(word.allocation, word.index) else { return };
        let differs = value ^ real.shown[number as usize];
        if differs == 0 {
            return;
        }
        let bytes = (0..8).map(|at| 0xff_u64 << (8 * at)).filter(|byte| differs & byte != 0);
        let mask = bytes.fold(0, |mask, byte| mask | byte);
        real.shown[number as usize] = value;
        word.stores.push(Landed {
            mark: Mark::default(),
            mask,
            value: value & mask,
            wave: HOST,
            since: [self.now; 3],
        });
        self.changes += 1;
    }

    /// Puts what the system sees of a word into real memory.
    pub(super) fn show(&mut self, number: WordIndex) {
        loop {
            self.notice(number);
            let Some(real) = &mut self.real else { return };
            let word = &self.words[number as usize];
            let seen = word.stores.iter().filter(|store| store.since[Scope::System as usize] != NEVER);
            let value = seen.fold(word.before, |value, store| (value & !store.mask) | store.value);
            let shown = real.shown[number as usize];
            if value == shown || real.write(word.allocation, word.index, shown, value) {
                real.shown[number as usize] = value;
                return;
            }
        }
    }

    /// Something was written to these bytes of an allocation by a copy or a stream.
    pub(crate) fn host_wrote(&mut self, allocation: u32, from: usize, bytes: usize) {
        let Some(real) = &self.real else { return };
        let range = (from / 8) as u32..=((from + bytes.saturating_sub(1)) / 8) as u32;
        let touched = &real.allocations[allocation as usize].touched;
        let words: Vec<_> = touched.range(range).map(|(_, word)| *word).collect();
        for word in words {
            self.notice(word);
        }
    }

    /// A host thread has had its turn: what it wrote to host memory is there from now on.
    pub(crate) fn notice_host_memory(&mut self) {
        let Some(real) = &self.real else { return };
        let on_host = real.allocations.iter().filter(|allocation| allocation.on_host);
        let words: Vec<_> = on_host.flat_map(|allocation| allocation.touched.values().copied()).collect();
        for word in words {
            self.notice(word);
        }
    }

    /// An engine has done something: what it wrote, wherever that is, is there from now on.
    pub(crate) fn notice_all(&mut self) {
        for word in 0..self.words.len() as u32 {
            self.notice(word);
        }
    }

    /// No wave is left and nothing is under way: real memory says all there is to know.
    pub(crate) fn forget(&mut self) {
        let Some(real) = &mut self.real else { return };
        for allocation in &mut real.allocations {
            allocation.touched.clear();
            allocation.held = None;
        }
        real.shown.clear();
        self.words.clear();
        self.views.clear();
        self.views.push(View::new(NO_DEVICE, u32::MAX, self.now));
    }
}
