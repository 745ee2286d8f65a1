//! Memory that programs have registered, by key.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};

use crate::prm::entry::{Area, Change};

/// Rights of a region: `enum ibv_access_flags`, `enum ib_uverbs_access_flags`.
pub(crate) mod access {
    pub(crate) const LOCAL_READ: u32 = 0;
    pub(crate) const LOCAL_WRITE: u32 = 1 << 0;
    pub(crate) const REMOTE_WRITE: u32 = 1 << 1;
    pub(crate) const REMOTE_READ: u32 = 1 << 2;
    pub(crate) const REMOTE_ATOMIC: u32 = 1 << 3;
}

/// A memory region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub(crate) key: u32,
    /// The address that requests name (`hca_va`).
    pub(crate) named: u64,
    pub(crate) bytes: u64,
    /// Where it is in this process.
    pub(crate) address: usize,
    pub(crate) access: u32,
}

/// The regions of the process.
#[derive(Debug, Default)]
pub(crate) struct Memory(Mutex<Vec<Region>>);

impl Memory {
    /// # Safety
    ///
    /// The region is memory of this process that can be read, and written where its rights say so, until it is removed. The program
    /// expects others to write there.
    pub(crate) unsafe fn add(&self, region: Region) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(region);
    }

    /// Behind this the region is not touched.
    pub(crate) fn remove(&self, key: u32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|region| region.key != key);
    }

    /// Does something at an area while no region goes; `None` where no region has all of it with these rights.
    fn at<T>(&self, area: Area, rights: u32, act: impl FnOnce(*mut u8) -> T) -> Option<T> {
        let regions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let region = regions.iter().find(|region| {
            let end = area.address.checked_add(area.bytes);
            region.key == area.key
                && region.access & rights == rights
                && area.address >= region.named
                && end.is_some_and(|end| end - region.named <= region.bytes)
        })?;
        Some(act((region.address + (area.address - region.named) as usize) as *mut u8))
    }

    /// The bytes of an area.
    pub(crate) fn read(&self, area: Area, rights: u32) -> Option<Vec<u8>> {
        fence(Ordering::SeqCst);
        self.at(area, rights, |from| {
            let mut bytes = vec![0; area.bytes as usize];
            // SAFETY: `at` found a region with all of the area, which lives while it runs (contract of `add`).
            unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
            bytes
        })
    }

    /// Puts bytes into an area, which is as large; a single word of 4 or 8 bytes at once.
    pub(crate) fn write(&self, area: Area, rights: u32, bytes: &[u8]) -> Option<()> {
        debug_assert_eq!(area.bytes, bytes.len() as u64);
        self.at(area, rights, |to| {
            fence(Ordering::SeqCst);
            match (<&[u8; 8]>::try_from(bytes).ok(), <&[u8; 4]>::try_from(bytes).ok()) {
                // SAFETY: a region with all of the area lives (as above), and the word is aligned.
                (Some(word), _) if (to as usize).is_multiple_of(8) => unsafe {
                    AtomicU64::from_ptr(to.cast()).store(u64::from_ne_bytes(*word), Ordering::SeqCst);
                },
                // SAFETY: likewise.
                (_, Some(word)) if (to as usize).is_multiple_of(4) => unsafe {
                    AtomicU32::from_ptr(to.cast()).store(u32::from_ne_bytes(*word), Ordering::SeqCst);
                },
                // SAFETY: a region with all of the area lives, which can be written (as above).
                _ => unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) },
            }
            fence(Ordering::SeqCst);
        })
    }

    /// Changes an aligned word of 4 or 8 bytes at once, and gives what was there.
    pub(crate) fn change(&self, area: Area, change: Change) -> Option<u64> {
        const SAME: Ordering = Ordering::SeqCst;
        self.at(area, access::REMOTE_ATOMIC, |word| {
            if area.bytes == 8 {
                // SAFETY: a region with all of the area lives (as above); the decoder and the responder hold its address to be aligned.
                let word = unsafe { AtomicU64::from_ptr(word.cast()) };
                word.fetch_update(SAME, SAME, |old| Some(changed(old, change, 64))).unwrap_or_else(|old| old)
            } else {
                // SAFETY: likewise.
                let word = unsafe { AtomicU32::from_ptr(word.cast()) };
                let old = word.fetch_update(SAME, SAME, |old| Some(changed(old.into(), change, 32) as u32));
                u64::from(old.unwrap_or_else(|old| old))
            }
        })
    }
}

/// What an atomic makes of a word of so many bits.
fn changed(old: u64, change: Change, bits: u32) -> u64 {
    match change {
        Change::Swap { value, compare, mask, compare_mask } => {
            let relevant = compare_mask & (u64::MAX >> (64 - bits));
            if (old ^ compare) & relevant == 0 { old & !mask | value & mask } else { old }
        }
        Change::Add { value, boundary } => {
            let mut sum = 0;
            let mut carry = 0;
            for bit in 0..bits {
                let digit = (old >> bit & 1) + (value >> bit & 1) + carry;
                sum |= (digit & 1) << bit;
                carry = if boundary >> bit & 1 == 1 { 0 } else { digit >> 1 };
            }
            sum
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_carry_up_to_a_boundary() {
        let add = |old, value, boundary, bits| changed(old, Change::Add { value, boundary }, bits);
        assert_eq!(add(u64::MAX, 3, 0, 64), 2);
        assert_eq!(add(0xffff_ffff, 2, 0, 32), 1);
        // Two numbers of 32 bits in one word.
        assert_eq!(add(0x1_ffff_ffff, 0x1_0000_0002, 1 << 31, 64), 0x2_0000_0001);
    }

    #[test]
    fn swaps_look_at_masked_bits_and_change_masked_bits() {
        let swap = |old, compare, compare_mask| {
            changed(old, Change::Swap { value: 0xabcd, compare, mask: 0xff00, compare_mask }, 64)
        };
        assert_eq!(swap(0x1234, 0x34, 0xff), 0xab34);
        assert_eq!(swap(0x1234, 0x35, 0xff), 0x1234);
        assert_eq!(swap(0x1234, 0, 0), 0xab34);
    }

    #[test]
    fn keys_ranges_and_rights_are_checked() {
        let mut words = [7u64, 8];
        let memory = Memory::default();
        let address = words.as_mut_ptr() as usize;
        let rights = access::REMOTE_READ | access::REMOTE_ATOMIC;
        // SAFETY: the words live as long as the memory is used.
        unsafe { memory.add(Region { key: 5, named: 0x100, bytes: 16, address, access: rights }) };
        let area = Area { key: 5, address: 0x108, bytes: 8 };
        assert_eq!(memory.read(area, access::REMOTE_READ), Some(8u64.to_ne_bytes().to_vec()));
        assert_eq!(memory.change(area, Change::Add { value: 1, boundary: 0 }), Some(8));
        assert_eq!(memory.write(area, access::REMOTE_WRITE, &[0; 8]), None);
        for wrong in [
            Area { key: 6, ..area },
            Area { bytes: 9, ..area },
            Area { address: 0xff, ..area },
            Area { address: u64::MAX, ..area },
        ] {
            assert_eq!(memory.read(wrong, access::REMOTE_READ), None, "{wrong:?}");
        }
        memory.remove(5);
        assert_eq!(memory.read(area, access::REMOTE_READ), None);
    }
}
