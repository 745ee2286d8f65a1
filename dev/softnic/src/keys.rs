//! Registered memory and its keys.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use anabranch_transport::Region;
use anabranch_transport_rdma::Registered;

/// What a local key and a remote key of one registration differ in: who takes one for the other is refused.
const REMOTE: u32 = 0x8000_0000;

/// The memory that a NIC may touch.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    regions: BTreeMap<u32, (Region, Side)>,
    made: u32,
}

/// Whose memory a region is, where that makes a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Device,
    Host,
}

impl Table {
    fn covers(&self, key: u32, address: u64, bytes: u64) -> bool {
        let Some((region, _)) = self.regions.get(&key) else { return false };
        let Some(offset) = address.checked_sub(region.address) else { return false };
        offset.checked_add(bytes).is_some_and(|end| end <= region.bytes)
    }
}

impl Keys {
    pub(crate) fn register(self: &Arc<Self>, region: Region, of_host: bool) -> Registration {
        let mut table = self.lock();
        table.made = table.made.wrapping_add(1);
        // As on hardware, an index with eight bits of variant below it; never used twice while there are fewer than 2^23.
        let key = table.made << 8 & !REMOTE | 0x5a;
        table.regions.insert(key, (region, if of_host { Side::Host } else { Side::Device }));
        drop(table);
        Registration { keys: Arc::clone(self), key }
    }

    /// Whether entries of this rank may name these bytes.
    pub(crate) fn allows_local(&self, key: u32, address: u64, bytes: u64) -> bool {
        key & REMOTE == 0 && self.covers(key, address, bytes)
    }

    /// Whether a local key is of memory of the host.
    pub(crate) fn is_of_host(&self, key: u32) -> bool {
        self.lock().regions.get(&key).is_some_and(|(_, side)| *side == Side::Host)
    }

    /// Whether peers may name these bytes.
    pub(crate) fn allows_remote(&self, key: u32, address: u64, bytes: u64) -> bool {
        key & REMOTE != 0 && self.covers(key & !REMOTE, address, bytes)
    }

    /// Touches bytes that a key of either side opened when they were named; `None` where it does not any more. Whoever drops the
    /// registration meanwhile waits until this has ended, and nothing is touched behind that.
    pub(crate) fn touch<T>(
        &self,
        key: u32,
        address: u64,
        bytes: u64,
        access: impl FnOnce() -> T,
    ) -> Option<T> {
        let table = self.lock();
        table.covers(key & !REMOTE, address, bytes).then(access)
    }

    fn covers(&self, key: u32, address: u64, bytes: u64) -> bool {
        self.lock().covers(key, address, bytes)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One registration.
#[derive(Debug)]
pub(crate) struct Registration {
    keys: Arc<Keys>,
    key: u32,
}

impl Registered for Registration {
    fn local_key(&self) -> u32 {
        self.key
    }

    fn remote_key(&self) -> u32 {
        self.key | REMOTE
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.keys.lock().regions.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_open_their_range_only_and_their_side_only() {
        let keys = Arc::new(Keys::default());
        let registration = keys.register(Region { address: 4096, bytes: 64 }, false);
        let (local, remote) = (registration.local_key(), registration.remote_key());
        assert!(keys.allows_local(local, 4096, 64) && keys.allows_remote(remote, 4100, 60));
        assert!(!keys.allows_local(remote, 4096, 64) && !keys.allows_remote(local, 4096, 64));
        for (address, bytes) in [(4095, 2), (4096, 65), (4160, 1), (0, u64::MAX), (u64::MAX, 2)] {
            assert!(!keys.allows_local(local, address, bytes), "{address} {bytes}");
        }
        assert!(!keys.allows_local(local + 256, 4096, 8));
        let other = keys.register(Region { address: 0, bytes: 8 }, true);
        assert_ne!(other.local_key(), local);
        assert_eq!(keys.touch(remote, 4096, 64, || 7), Some(7));
        assert_eq!(keys.touch(local, 4096, 65, || 7), None);
        drop(registration);
        assert!(!keys.allows_local(local, 4096, 64));
        assert_eq!(keys.touch(remote, 4096, 64, || 7), None, "what was named before is closed too");
    }
}
