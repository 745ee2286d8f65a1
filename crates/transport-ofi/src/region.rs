//! Memory that a provider may read and write.

use core::ffi::c_void;
use std::sync::Arc;

use anabranch_transport::Region;
use anabranch_transport_rdma::{NicError, Registered, Result};

use crate::bindings::{FI_READ, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_WRITE, FidMr};
use crate::domain::{Domain, close};
use crate::endpoint::RemoteRange;

/// What this rank does with it.
const OWN_ACCESS: u64 = FI_READ | FI_WRITE;
/// What peers do.
const PEERS_ACCESS: u64 = FI_REMOTE_READ | FI_REMOTE_WRITE;

/// A registration of memory of the host.
///
/// Dropping it ends what new operations may name, and not what is on its way: providers look the range up when an operation arrives, and
/// finish what they have begun. Before the memory is freed, the caller has quieted or stopped the queues of this rank, and knows that peers have
/// done so with theirs: the memory outlives both.
#[derive(Debug)]
pub(crate) struct OfiRegion {
    domain: Arc<Domain>,
    registration: *mut FidMr,
    range: Region,
    number: u32,
    key: u64,
}

// SAFETY: the registration is this value's, and the provider lets any thread use it.
unsafe impl Send for OfiRegion {}
// SAFETY: as above.
unsafe impl Sync for OfiRegion {}

impl OfiRegion {
    /// Registers a range of this process's memory, for requests and for peers.
    ///
    /// # Errors
    /// [`NicError::Limit`] for a range without bytes, [`NicError::Call`].
    pub(crate) fn new(domain: &Arc<Domain>, range: Region) -> Result<Arc<Self>> {
        let made = Self::register(domain, range, OWN_ACCESS | PEERS_ACCESS)?;
        domain.regions().by_number.insert(made.number, Arc::downgrade(&made));
        Ok(made)
    }

    /// Registers a range that this driver alone uses, and no request or peer names.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(crate) fn private(domain: &Arc<Domain>, range: Region) -> Result<Arc<Self>> {
        Self::register(domain, range, OWN_ACCESS)
    }

    fn register(domain: &Arc<Domain>, range: Region, access: u64) -> Result<Arc<Self>> {
        if range.bytes == 0 || range.address.checked_add(range.bytes).is_none() {
            let allowed = format!("1 or more, up to the end of the addresses from {:#x}", range.address);
            let (what, given, nic) = ("bytes of a registered range", range.bytes, domain.name.clone());
            return Err(NicError::Limit { what, given, allowed, nic });
        }
        let number = domain.regions().next_number();
        let mut registration: *mut FidMr = core::ptr::null_mut();
        // SAFETY: the domain is open, and its table of functions is the provider's.
        let register = unsafe { (*(*domain.raw()).mr).reg };
        let wanted = if domain.info.chooses_keys() { 0 } else { u64::from(number) };
        // SAFETY: the caller keeps the range mapped as long as this value; the call writes one pointer.
        let code = unsafe {
            register(
                domain.raw().cast(),
                range.address as *const c_void,
                range.bytes as usize,
                access,
                0,
                wanted,
                0,
                &raw mut registration,
                core::ptr::null_mut(),
            )
        };
        domain.info.library().check("fi_mr_reg", code, &domain.name)?;
        // SAFETY: the call made the registration, whose key does not change.
        let key = unsafe { (*registration).key };
        Ok(Arc::new(Self { domain: Arc::clone(domain), registration, range, number, key }))
    }

    /// One that is registered nowhere, for tests of who keeps it.
    #[cfg(test)]
    pub(crate) fn of_test(domain: &Arc<Domain>, range: Region) -> Arc<Self> {
        let (registration, number) = (core::ptr::null_mut(), domain.regions().next_number());
        Arc::new(Self { domain: Arc::clone(domain), registration, range, number, key: 0 })
    }

    /// What operations name the range by as their local side.
    pub(crate) fn descriptor(&self) -> *mut c_void {
        // SAFETY: the registration is live.
        unsafe { (*self.registration).mem_desc }
    }

    /// Whether all of these bytes are in it.
    pub(crate) fn contains(&self, address: u64, bytes: u64) -> bool {
        let end = self.range.address + self.range.bytes;
        address >= self.range.address && address.checked_add(bytes).is_some_and(|last| last <= end)
    }

    /// What peers have to know of it.
    pub(crate) fn for_peers(&self) -> RemoteRange {
        RemoteRange {
            number: self.number,
            address: self.range.address,
            bytes: self.range.bytes,
            key: self.key,
            by_address: self.domain.info.is_by_address(),
        }
    }
}

impl Registered for OfiRegion {
    fn local_key(&self) -> u32 {
        self.number
    }

    fn remote_key(&self) -> u32 {
        self.number
    }
}

impl Drop for OfiRegion {
    fn drop(&mut self) {
        self.domain.regions().by_number.remove(&self.number);
        close("fi_close (memory)", self.registration.cast(), &self.domain);
    }
}
