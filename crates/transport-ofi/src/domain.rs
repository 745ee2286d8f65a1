//! An open provider, which registers memory and creates endpoints.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use anabranch_transport_rdma::Result;

use crate::bindings::{Fid, FidDomain, FidFabric};
use crate::info::Info;
use crate::region::OfiRegion;
use crate::signals;

/// A fabric and a domain of it. Calls are made by any thread: the provider was asked for `FI_THREAD_SAFE`.
pub(crate) struct Domain {
    pub(crate) info: Info,
    /// [`Info::describe`].
    pub(crate) name: String,
    fabric: *mut FidFabric,
    open: *mut FidDomain,
    regions: Mutex<Regions>,
}

// SAFETY: the pointers are this value's, and the provider lets any thread use them.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domain").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What is registered, by the numbers that requests name.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    pub(crate) by_number: BTreeMap<u32, Weak<OfiRegion>>,
    /// The last number that was given out.
    last: u32,
}

impl Regions {
    /// A number that no range had before.
    pub(crate) fn next_number(&mut self) -> u32 {
        self.last += 1;
        self.last
    }
}

impl Domain {
    /// Opens what was found.
    ///
    /// # Errors
    /// [`NicError::Call`](anabranch_transport_rdma::NicError::Call).
    pub(crate) fn open(info: &Info) -> Result<Arc<Self>> {
        let (library, name) = (info.library(), info.describe());
        let _handlers = signals::keep();
        let none = core::ptr::null_mut();
        let mut made = Self {
            info: info.clone(),
            name,
            fabric: core::ptr::null_mut(),
            open: core::ptr::null_mut(),
            regions: Mutex::default(),
        };
        // SAFETY: elements of `fi_getinfo` have all parts.
        let attributes = unsafe { (*info.raw()).fabric_attr };
        // SAFETY: the attributes are the library's own, and the call writes one pointer.
        let code = unsafe { (library.fi_fabric)(attributes, &raw mut made.fabric, none) };
        library.check("fi_fabric", code, &made.name)?;
        // SAFETY: the fabric is open, and its table of functions is the provider's.
        let open = unsafe { (*(*made.fabric).ops).domain };
        // SAFETY: the element is of the provider whose fabric it is, and the call writes one pointer.
        let code = unsafe { open(made.fabric, info.raw(), &raw mut made.open, none) };
        library.check("fi_domain", code, &made.name)?;
        Ok(Arc::new(made))
    }

    /// One that is not open, for tests of what is created from one.
    #[cfg(test)]
    pub(crate) fn of_test(info: Info) -> Arc<Self> {
        let (fabric, open, name) = (core::ptr::null_mut(), core::ptr::null_mut(), info.describe());
        Arc::new(Self { info, name, fabric, open, regions: Mutex::default() })
    }

    pub(crate) fn raw(&self) -> *mut FidDomain {
        self.open
    }

    pub(crate) fn regions(&self) -> MutexGuard<'_, Regions> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The registered range of a number.
    pub(crate) fn region(&self, number: u32) -> Option<Arc<OfiRegion>> {
        self.regions().by_number.get(&number).and_then(Weak::upgrade)
    }
}

/// Closes an object that was opened, where it was. Whether it is closed now: who has memory that the object uses keeps it otherwise.
pub(crate) fn close(call: &'static str, object: *mut Fid, domain: &Domain) -> bool {
    if object.is_null() {
        return true;
    }
    // SAFETY: the object is open, and its table of functions is the provider's.
    let close = unsafe { (*(*object).ops).close };
    // SAFETY: the object's owner closes it, once, after everything created from it.
    let code = unsafe { close(object) };
    let closed = domain.info.library().check(call, code, &domain.name);
    if let Err(error) = &closed {
        tracing::error!("{error}");
    }
    closed.is_ok()
}

impl Drop for Domain {
    fn drop(&mut self) {
        // Registrations and endpoints hold this value, so none is left. What cannot be closed stays, with what it is made of.
        if close("fi_close (domain)", self.open.cast(), self) {
            close("fi_close (fabric)", self.fabric.cast(), self);
        }
    }
}
