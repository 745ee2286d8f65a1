//! What libfabric has to offer on this machine.

use core::ffi::{CStr, c_char, c_int};
use std::ffi::CString;
use std::fmt;
use std::sync::Arc;

use anabranch_transport_rdma::{NicError, Result};

use crate::bindings::{
    FI_ATOMIC, FI_CONTEXT, FI_CONTEXT2, FI_DELIVERY_COMPLETE, FI_ENODATA, FI_EP_RDM, FI_MR_ALLOCATED,
    FI_MR_LOCAL, FI_MR_PROV_KEY, FI_MR_VIRT_ADDR, FI_PROGRESS_MANUAL, FI_RM_ENABLED, FI_RMA, FI_THREAD_SAFE,
    FiInfo,
};
use crate::library::Libfabric;
use crate::signals;

/// The version of the interface that is asked for: that of the headers that `bindings.rs` was written after.
const VERSION: u32 = version(1, 17);
/// A version as libfabric has it in one number (`FI_VERSION`).
const fn version(major: u32, minor: u32) -> u32 {
    (major << 16) | minor
}

/// What the driver does for a provider where it is asked to.
const MR_MODE: c_int = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;

/// The list that `fi_getinfo` made.
pub(crate) struct InfoList {
    library: Arc<Libfabric>,
    first: *mut FiInfo,
}

// SAFETY: the list is never changed once it is made.
unsafe impl Send for InfoList {}
// SAFETY: as above.
unsafe impl Sync for InfoList {}

impl fmt::Debug for InfoList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InfoList").finish_non_exhaustive()
    }
}

/// One element of the list: a provider on a domain (an interface, a NIC).
#[derive(Clone)]
pub(crate) struct Info {
    list: Arc<InfoList>,
    info: *mut FiInfo,
}

// SAFETY: the element is part of a list that is never changed, and that lives as long as this value.
unsafe impl Send for Info {}
// SAFETY: as above.
unsafe impl Sync for Info {}

impl fmt::Debug for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Info").field("provider", &self.provider()).finish_non_exhaustive()
    }
}

/// Which provider is meant, in words.
pub(crate) fn asked(provider: Option<&str>) -> String {
    provider.map_or_else(|| "any provider".to_owned(), |name| format!("provider {name:?}"))
}

impl InfoList {
    /// Asks for what can serve a queue: `provider` alone, as libfabric names them (`tcp`, `shm`, `verbs;ofi_rxm`), or any.
    ///
    /// # Errors
    /// [`NicError::NoNic`] where there is none; [`NicError::Call`]; [`NicError::Library`] for one that is too old.
    pub(crate) fn ask(library: &Arc<Libfabric>, provider: Option<&str>) -> Result<Vec<Info>> {
        let (major, minor) = library.version();
        if version(major, minor) < VERSION {
            return Err(NicError::Library {
                library: "libfabric",
                looked: format!("version {}.{} or later", VERSION >> 16, VERSION & 0xffff),
                cause: format!("it is {major}.{minor}"),
            });
        }
        let unfit = |_| NicError::NoNic { reasons: format!("{}: the name has a zero byte", asked(provider)) };
        let name = provider.map(CString::new).transpose().map_err(unfit)?;
        let nic = asked(provider);
        // SAFETY: with null the call makes an element with all of its parts, filled with zeros.
        let hints = unsafe { (library.fi_dupinfo)(core::ptr::null()) };
        if hints.is_null() {
            return Err(NicError::Call { call: "fi_dupinfo", nic, cause: "no memory".to_owned() });
        }
        fill(hints, name.as_ref().map_or(core::ptr::null_mut(), |name| name.as_ptr().cast_mut()));
        let mut first = core::ptr::null_mut();
        let none = core::ptr::null();
        let _handlers = signals::keep();
        // SAFETY: the hints are an element of the library's, and the call writes one pointer.
        let code = unsafe { (library.fi_getinfo)(VERSION, none, none, 0, hints, &raw mut first) };
        fill(hints, core::ptr::null_mut());
        // SAFETY: the element is the library's, freed once; the name that was this function's is not in it any more.
        unsafe { (library.fi_freeinfo)(hints) };
        if code == -FI_ENODATA {
            let reasons = format!(
                "libfabric {major}.{minor} finds nothing for {nic} with reliable datagrams, remote memory access, atomic operations, delivery-complete, and memory that no endpoint owns (fi_info -l lists providers, transport.rdma.fabric_provider names one)"
            );
            return Err(NicError::NoNic { reasons });
        }
        library.check("fi_getinfo", code, &nic)?;
        let list = Arc::new(Self { library: Arc::clone(library), first });
        let mut found = Vec::new();
        let mut info = first;
        while !info.is_null() {
            found.push(Info { list: Arc::clone(&list), info });
            // SAFETY: an element of the list, whose last has null here.
            info = unsafe { (*info).next };
        }
        Ok(found)
    }
}

/// Says what is asked for. `provider` is a text that outlives the use of the hints, or null.
fn fill(hints: *mut FiInfo, provider: *mut c_char) {
    // SAFETY: an element of the library that nothing else uses.
    let hints = unsafe { &mut *hints };
    hints.caps = FI_RMA | FI_ATOMIC;
    hints.mode = FI_CONTEXT | FI_CONTEXT2;
    // SAFETY: `fi_dupinfo` made the part.
    let part = unsafe { &mut *hints.ep_attr };
    part.kind = FI_EP_RDM;
    // SAFETY: as above.
    let part = unsafe { &mut *hints.tx_attr };
    part.op_flags = FI_DELIVERY_COMPLETE;
    // SAFETY: as above.
    let part = unsafe { &mut *hints.domain_attr };
    part.mr_mode = MR_MODE;
    part.threading = FI_THREAD_SAFE;
    part.data_progress = FI_PROGRESS_MANUAL;
    part.resource_mgmt = FI_RM_ENABLED;
    // SAFETY: as above.
    let part = unsafe { &mut *hints.fabric_attr };
    part.prov_name = provider;
}

impl Drop for InfoList {
    fn drop(&mut self) {
        // SAFETY: the list is the library's and freed once; no element is in use.
        unsafe { (self.library.fi_freeinfo)(self.first) };
    }
}

/// Whether what is named so is shared memory or a loopback interface.
fn stays_here(provider: &str, interface: &str, network: &str) -> bool {
    const FLAG_LOOPBACK: u32 = 0x8;
    let flags = std::fs::read_to_string(format!("/sys/class/net/{interface}/flags")).unwrap_or_default();
    let flags = u32::from_str_radix(flags.trim().trim_start_matches("0x"), 16).unwrap_or(0);
    layers(provider).any(|layer| layer == "shm")
        || flags & FLAG_LOOPBACK != 0
        || network.starts_with("127.")
        || network.starts_with("::1/")
}

/// The providers of a name, of which one may be over another.
pub(crate) fn layers(provider: &str) -> impl Iterator<Item = &str> {
    provider.split([';', '+', ':'])
}

/// A text of the library's.
fn text(at: *const c_char) -> String {
    if at.is_null() {
        return String::new();
    }
    // SAFETY: texts of the list end in a zero byte and live as long as it.
    unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
}

impl Info {
    /// One that a test made up.
    #[cfg(test)]
    pub(crate) fn of_test(library: Arc<Libfabric>, info: *mut FiInfo) -> Self {
        Self { list: Arc::new(InfoList { library, first: info }), info }
    }

    pub(crate) fn library(&self) -> &Arc<Libfabric> {
        &self.list.library
    }

    /// For calls that take the element; they do not change it.
    pub(crate) fn raw(&self) -> *mut FiInfo {
        self.info
    }

    fn get(&self) -> &FiInfo {
        // SAFETY: an element of a list that lives as long as this value and is not changed.
        unsafe { &*self.info }
    }

    /// The provider's name, with what is layered over it (`tcp;ofi_rxm`).
    pub(crate) fn provider(&self) -> String {
        // SAFETY: elements of `fi_getinfo` have all parts.
        text(unsafe { (*self.get().fabric_attr).prov_name })
    }

    /// The network (`10.0.0.0/24`), as the provider names it.
    pub(crate) fn network(&self) -> String {
        // SAFETY: as above.
        text(unsafe { (*self.get().fabric_attr).name })
    }

    /// The interface or NIC, as the provider names it.
    pub(crate) fn interface(&self) -> String {
        // SAFETY: as above.
        text(unsafe { (*self.get().domain_attr).name })
    }

    /// The form of its addresses.
    pub(crate) fn address_format(&self) -> u32 {
        self.get().addr_format
    }

    /// The most bytes of a message.
    pub(crate) fn most_message_bytes(&self) -> usize {
        // SAFETY: as above.
        unsafe { (*self.get().ep_attr).max_msg_size }
    }

    /// The kind of address vector that it has.
    pub(crate) fn vector_kind(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.get().domain_attr).av_type }
    }

    fn mr_mode(&self) -> c_int {
        // SAFETY: as above.
        unsafe { (*self.get().domain_attr).mr_mode }
    }

    /// Whether memory of this process has to be registered to be the local side of an operation.
    pub(crate) fn needs_local_registration(&self) -> bool {
        self.mr_mode() & FI_MR_LOCAL != 0
    }

    /// Whether peers name this rank's memory by its addresses, and not by the distance from where a range begins.
    pub(crate) fn is_by_address(&self) -> bool {
        self.mr_mode() & FI_MR_VIRT_ADDR != 0
    }

    /// Whether the provider chooses keys.
    pub(crate) fn chooses_keys(&self) -> bool {
        self.mr_mode() & FI_MR_PROV_KEY != 0
    }

    /// Whether it grants what was asked for, and asks for nothing that this driver does not do: what is in hints is a wish to some providers.
    ///
    /// # Errors
    /// What is not so, in words.
    pub(crate) fn check(&self) -> Result<(), String> {
        let info = self.get();
        // SAFETY: elements of `fi_getinfo` have all parts.
        let (flags, kind) = unsafe { ((*info.tx_attr).op_flags, (*info.ep_attr).kind) };
        // SAFETY: as above.
        let threading = unsafe { (*info.domain_attr).threading };
        let more = self.mr_mode() & !MR_MODE;
        let lacks = |what: &str| Err(format!("it does not grant {what}"));
        if kind != FI_EP_RDM {
            return lacks("reliable datagrams (FI_EP_RDM)");
        }
        if info.caps & (FI_RMA | FI_ATOMIC) != FI_RMA | FI_ATOMIC {
            return lacks("remote memory access and atomic operations (FI_RMA, FI_ATOMIC)");
        }
        if flags & FI_DELIVERY_COMPLETE == 0 {
            return lacks("completions after the effect at the peer (FI_DELIVERY_COMPLETE)");
        }
        if threading != FI_THREAD_SAFE {
            return Err(format!("it is not for any thread (threading {threading}, and not FI_THREAD_SAFE)"));
        }
        if more != 0 {
            return Err(format!(
                "it wants memory registered in ways that are not known here (FI_MR bits {more:#x})"
            ));
        }
        Ok(())
    }

    /// Whether only this machine can be reached by it.
    pub(crate) fn stays_on_this_machine(&self) -> bool {
        let (provider, interface, network) = (self.provider(), self.interface(), self.network());
        stays_here(&provider, &interface, &network)
    }

    /// For people.
    pub(crate) fn describe(&self) -> String {
        format!("{} on {} ({})", self.provider(), self.interface(), self.network())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Parts, info};

    #[test]
    fn a_provider_without_a_requested_capability_is_refused_by_name() {
        assert_eq!(info(|_| ()).check(), Ok(()));
        let check = |change: fn(&mut Parts), expected: &str| {
            let refused = info(change).check().unwrap_err();
            assert!(refused.contains(expected), "{refused}");
        };
        check(|parts| parts.sending.op_flags = 0, "FI_DELIVERY_COMPLETE");
        check(|parts| parts.sending.op_flags = !FI_DELIVERY_COMPLETE, "FI_DELIVERY_COMPLETE");
        check(|parts| parts.endpoint.kind = 1, "FI_EP_RDM");
        check(|parts| parts.info.caps = FI_RMA, "FI_ATOMIC");
        check(|parts| parts.domain.threading = 2, "threading 2");
        check(|parts| parts.domain.mr_mode |= 1 << 9, "FI_MR bits 0x200");
        assert_eq!(info(|parts| parts.domain.mr_mode = MR_MODE).check(), Ok(()));
    }

    #[test]
    fn what_reaches_this_machine_alone_is_known() {
        for (provider, interface, network, stays) in [
            ("tcp;ofi_rxm", "eth0", "10.0.0.0/8", false),
            ("tcp;ofi_rxm", "lo", "127.0.0.1/32", true),
            ("tcp;ofi_rxm", "none", "::1/128", true),
            ("shm", "shm", "shm", true),
            // By what the system reports about the interface.
            ("udp;ofi_rxd", "lo", "", true),
        ] {
            assert_eq!(stays_here(provider, interface, network), stays, "{provider} on {interface}");
        }
    }
}
