//! The NIC that was opened, by the library.

use core::ffi::{CStr, c_int};
use std::fmt;
use std::sync::Arc;

use super::bindings::{
    IBV_PORT_ACTIVE, IbvContext, IbvDevice, IbvDeviceAttr, IbvGid, IbvGidEntry, IbvPd, IbvPortAttr,
};
use super::library::Verbs;
use crate::error::{NicError, Result};
use crate::nics::ChosenPort;

/// An opened NIC with a protection domain; closed when the last queue pair and registration are gone.
pub(crate) struct Nic {
    pub(crate) verbs: Arc<Verbs>,
    pub(crate) name: String,
    pub(crate) context: *mut IbvContext,
    pub(crate) pd: *mut IbvPd,
    pub(crate) attributes: IbvDeviceAttr,
}

// SAFETY: libibverbs is thread-safe by its manual page (ibv_open_device's contexts and all objects made of them may be used by any
// thread); the pointers are owned by this value and freed once, in `drop`.
unsafe impl Send for Nic {}
// SAFETY: as above.
unsafe impl Sync for Nic {}

impl fmt::Debug for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nic").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The last error of the system, as a call of the library left it.
pub(crate) fn last_error(call: &'static str, nic: &str) -> NicError {
    NicError::Call { call, nic: nic.to_owned(), cause: std::io::Error::last_os_error().to_string() }
}

impl Nic {
    /// Opens the NIC of a name.
    ///
    /// # Errors
    /// [`NicError::Call`] where the library cannot list or open it, [`NicError::NoNic`] with those that it shows.
    fn open_named(verbs: &Arc<Verbs>, name: &str) -> Result<Self> {
        let none = |shown: &[String]| {
            let shown = if shown.is_empty() { "none".to_owned() } else { shown.join(", ") };
            NicError::NoNic { reasons: format!("verbs do not show {name}: they show {shown}") }
        };
        let mut count: c_int = 0;
        // SAFETY: the call writes one int and returns an array of that many devices, or null.
        let list = unsafe { (verbs.ibv_get_device_list)(&raw mut count) };
        if list.is_null() {
            let error = std::io::Error::last_os_error();
            // So the library says that the kernel has no RDMA at all.
            if error.raw_os_error() == Some(rustix::io::Errno::NOSYS.raw_os_error()) {
                return Err(none(&[]));
            }
            let nic = "any NIC".to_owned();
            return Err(NicError::Call { call: "ibv_get_device_list", nic, cause: error.to_string() });
        }
        // SAFETY: the library says that so many devices follow.
        let devices = unsafe { core::slice::from_raw_parts(list, count.max(0) as usize) };
        let names: Vec<String> = devices.iter().map(|device| Self::name_of(verbs, *device)).collect();
        let found = devices.iter().zip(&names).find(|(_, shown)| *shown == name);
        let opened = found.map_or_else(|| Err(none(&names)), |(device, _)| Self::open(verbs, *device));
        // SAFETY: the list is the library's and freed once; contexts that were opened stay valid.
        unsafe { (verbs.ibv_free_device_list)(list) };
        opened
    }

    /// The name of a device of the library's list.
    fn name_of(verbs: &Verbs, device: *mut IbvDevice) -> String {
        // SAFETY: the device is one of the list, whose names are texts that end in a zero byte.
        unsafe { CStr::from_ptr((verbs.ibv_get_device_name)(device)) }.to_string_lossy().into_owned()
    }

    fn open(verbs: &Arc<Verbs>, device: *mut IbvDevice) -> Result<Self> {
        let name = Self::name_of(verbs, device);
        // SAFETY: the device is one of the list.
        let context = unsafe { (verbs.ibv_open_device)(device) };
        if context.is_null() {
            return Err(last_error("ibv_open_device", &name));
        }
        // SAFETY: all bits zero are a value of this plain struct.
        let attributes: IbvDeviceAttr = unsafe { core::mem::zeroed() };
        let mut nic = Self { verbs: Arc::clone(verbs), name, context, pd: core::ptr::null_mut(), attributes };
        // SAFETY: the context is open, and the call writes one struct of the header's layout (abi.rs).
        let code = unsafe { (verbs.ibv_query_device)(context, &raw mut nic.attributes) };
        nic.check("ibv_query_device", code)?;
        // SAFETY: the context is open.
        nic.pd = unsafe { (verbs.ibv_alloc_pd)(context) };
        if nic.pd.is_null() { Err(last_error("ibv_alloc_pd", &nic.name)) } else { Ok(nic) }
    }

    /// Turns the return value of a call that returns an error number into a result.
    pub(crate) fn check(&self, call: &'static str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // Most return the number; some return -1 and leave it.
        let cause =
            if code > 0 { std::io::Error::from_raw_os_error(code) } else { std::io::Error::last_os_error() };
        Err(NicError::Call { call, nic: self.name.clone(), cause: cause.to_string() })
    }

    /// What the library says of a port.
    pub(crate) fn port(&self, port: u8) -> Result<IbvPortAttr> {
        // SAFETY: all bits zero are a value of this plain struct.
        let mut attributes: IbvPortAttr = unsafe { core::mem::zeroed() };
        // SAFETY: the context is open; the call writes no more than the struct (its last word stays zero).
        let code = unsafe { (self.verbs.ibv_query_port)(self.context, port, &raw mut attributes) };
        self.check("ibv_query_port", code).map(|()| attributes)
    }

    /// An entry of a port's table of addresses; `None` for one that is empty.
    fn gid(&self, port: u8, index: u8) -> Option<[u8; 16]> {
        let mut entry =
            IbvGidEntry { gid: IbvGid([0; 16]), gid_index: 0, port_num: 0, gid_type: 0, ndev_ifindex: 0 };
        let (port, index, size) = (u32::from(port), u32::from(index), size_of::<IbvGidEntry>());
        // SAFETY: the context is open, and the call writes at most `size` bytes.
        let code =
            unsafe { (self.verbs._ibv_query_gid_ex)(self.context, port, index, &raw mut entry, 0, size) };
        (code == 0 && entry.gid.0 != [0; 16]).then_some(entry.gid.0)
    }
}

/// A port that was chosen, opened.
pub(crate) struct OpenPort {
    pub(crate) nic: Arc<Nic>,
    /// Its number.
    pub(crate) number: u8,
    /// Its address, as an index of its table.
    pub(crate) gid_index: u8,
    /// What the library says of it now.
    pub(crate) live: IbvPortAttr,
}

impl OpenPort {
    /// Opens the NIC and looks whether the port still is as it was when it was chosen.
    ///
    /// # Errors
    /// [`NicError::Library`] without `libibverbs`; [`NicError::NoNic`] for a NIC that it does not show, or a port that is not as the
    /// kernel said; [`NicError::Limit`] for numbers that verbs have no bits for; [`NicError::Call`].
    pub(crate) fn open(chosen: &ChosenPort) -> Result<Self> {
        let (number, gid_index) = chosen.numbers()?;
        let nic = Nic::open_named(&Verbs::open()?, &chosen.nic.name)?;
        let live = nic.port(number)?;
        let changed =
            |problem: String| Err(NicError::NoNic { reasons: format!("{}:{number}: {problem}", nic.name) });
        if live.state != IBV_PORT_ACTIVE {
            return changed(format!("it is not active any more (state {})", live.state));
        }
        let address = chosen.gid.gid.value.octets();
        if nic.gid(number, gid_index) != Some(address) {
            return changed(format!("its GID {} is another one now", chosen.gid.gid));
        }
        Ok(Self { nic: Arc::new(nic), number, gid_index, live })
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        if !self.pd.is_null() {
            // SAFETY: the domain is this value's; queue pairs and registrations hold this value, so none is left in it.
            let code = unsafe { (self.verbs.ibv_dealloc_pd)(self.pd) };
            if let Err(error) = self.check("ibv_dealloc_pd", code) {
                tracing::warn!("{error}");
            }
        }
        // SAFETY: the context is this value's, and nothing of it is left.
        let code = unsafe { (self.verbs.ibv_close_device)(self.context) };
        if let Err(error) = self.check("ibv_close_device", code) {
            tracing::warn!("{error}");
        }
    }
}
