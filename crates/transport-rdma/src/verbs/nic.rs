//! The NIC that was opened, by the library.

use core::ffi::{CStr, c_int, c_uint};
use std::fmt;
use std::net::Ipv6Addr;
use std::sync::Arc;

use super::library::Verbs;
use crate::bindings::{
    IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_ATOMIC_GLOB,
    IBV_ATOMIC_HCA, IBV_PORT_ACTIVE, IbvContext, IbvDevice, IbvDeviceAttr, IbvGid, IbvGidEntry, IbvPd,
    IbvPortAttr,
};
use crate::driver::Atomics;
use crate::error::{NicError, Result};
use crate::nics::{ChosenPort, Gid};

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

    /// The atomic operations that verbs have on it.
    pub(crate) fn atomics(&self) -> Atomics {
        match self.attributes.atomic_cap {
            IBV_ATOMIC_HCA | IBV_ATOMIC_GLOB => Atomics::Standard,
            _ => Atomics::None,
        }
    }

    /// What peers may do to queue pairs and memory: atomic operations only where the NIC has them. Linux's `mlx5_ib` refuses a queue
    /// pair that allows what the NIC lacks (`set_qpc_atomic_flags`).
    pub(crate) fn remote_access(&self) -> c_uint {
        let plain = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
        match self.atomics() {
            Atomics::None => plain,
            Atomics::Standard | Atomics::Masked => plain | IBV_ACCESS_REMOTE_ATOMIC,
        }
    }

    /// What the library reports about a port.
    pub(crate) fn port(&self, port: u8) -> Result<IbvPortAttr> {
        // SAFETY: all bits zero are a value of this plain struct.
        let mut attributes: IbvPortAttr = unsafe { core::mem::zeroed() };
        // SAFETY: the context is open; the call writes no more than the struct (its last word stays zero).
        let code = unsafe { (self.verbs.ibv_query_port)(self.context, port, &raw mut attributes) };
        self.check("ibv_query_port", code).map(|()| attributes)
    }

    /// An entry of a port's table of addresses; `None` for one that is empty.
    ///
    /// # Errors
    /// [`NicError::Call`] where the library cannot ask.
    fn gid(&self, port: u8, index: u8) -> Result<Option<[u8; 16]>> {
        let mut entry =
            IbvGidEntry { gid: IbvGid([0; 16]), gid_index: 0, port_num: 0, gid_type: 0, ndev_ifindex: 0 };
        let (port, index, size) = (u32::from(port), u32::from(index), size_of::<IbvGidEntry>());
        // SAFETY: the context is open, and the call writes at most `size` bytes.
        let code =
            unsafe { (self.verbs._ibv_query_gid_ex)(self.context, port, index, &raw mut entry, 0, size) };
        // The manual page's "no data in this index".
        if code == rustix::io::Errno::NODATA.raw_os_error() {
            return Ok(None);
        }
        self.check("ibv_query_gid_ex", code)?;
        Ok((entry.gid.0 != [0; 16]).then_some(entry.gid.0))
    }

    /// Whether a port's table still has the address that was chosen.
    fn check_gid(&self, port: u8, index: u8, chosen: &Gid) -> Result<()> {
        let what = match self.gid(port, index)? {
            Some(address) if address == chosen.value.octets() => return Ok(()),
            Some(address) => format!("is another one now, {}", Ipv6Addr::from(address)),
            None => "is gone: the table's entry is empty".to_owned(),
        };
        let reasons = format!("{}:{port}: its GID {chosen} {what}", self.name);
        Err(NicError::NoNic { reasons })
    }
}

/// A port that was chosen, opened.
pub(crate) struct OpenPort {
    pub(crate) nic: Arc<Nic>,
    /// Its number.
    pub(crate) number: u8,
    /// Its address, as an index of its table.
    pub(crate) gid_index: u8,
    /// What the library reports about it now.
    pub(crate) live: IbvPortAttr,
}

impl OpenPort {
    /// Opens the NIC and looks whether the port still is as it was when it was chosen.
    ///
    /// # Errors
    /// [`NicError::Library`] without `libibverbs`; [`NicError::NoNic`] for a NIC that it does not show, or a port that is not as the
    /// kernel said; [`NicError::Limit`] for numbers that do not fit the fields of verbs; [`NicError::Call`].
    pub(crate) fn open(chosen: &ChosenPort) -> Result<Self> {
        let (number, gid_index) = chosen.numbers()?;
        let nic = Nic::open_named(&Verbs::open()?, &chosen.nic.name)?;
        let live = nic.port(number)?;
        let changed =
            |problem: String| Err(NicError::NoNic { reasons: format!("{}:{number}: {problem}", nic.name) });
        if live.state != IBV_PORT_ACTIVE {
            return changed(format!("it is not active any more (state {})", live.state));
        }
        nic.check_gid(number, gid_index, &chosen.gid.gid)?;
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

#[cfg(test)]
mod tests {
    use core::ffi::c_void;

    use super::*;
    use crate::nics::GidKind;

    const ADDRESS: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];

    /// A table whose entry 0 is [`ADDRESS`]; entry 1 is empty; the query of any other fails with the number of the entry.
    unsafe extern "C" fn query_gid(
        _: *mut IbvContext,
        _: u32,
        index: u32,
        entry: *mut IbvGidEntry,
        _: u32,
        _: usize,
    ) -> c_int {
        match index {
            0 => {
                // SAFETY: the caller gives one entry.
                unsafe { (*entry).gid = IbvGid(ADDRESS) };
                0
            }
            1 => rustix::io::Errno::NODATA.raw_os_error(),
            other => other as c_int,
        }
    }

    unsafe extern "C" fn close(_: *mut IbvContext) -> c_int {
        0
    }

    unsafe extern "C" fn nothing_else() {
        std::process::abort();
    }

    /// A NIC of a library that knows a table of addresses and nothing else.
    fn nic() -> Nic {
        let function = |name: &'static CStr, _: &'static CStr| {
            Some(match name.to_bytes() {
                b"_ibv_query_gid_ex" => query_gid as *const c_void,
                b"ibv_close_device" => close as *const c_void,
                _ => nothing_else as *const c_void,
            })
        };
        // SAFETY: the functions that are called have the types of their namesakes; any other ends the process.
        let verbs = Arc::new(unsafe { Verbs::from_lookup(function) }.unwrap());
        // SAFETY: all bits zero are a value of this plain struct.
        let attributes = unsafe { core::mem::zeroed() };
        let (context, pd) = (core::ptr::null_mut(), core::ptr::null_mut());
        Nic { verbs, name: "mlx5_7".to_owned(), context, pd, attributes }
    }

    #[test]
    fn a_gid_that_cannot_be_asked_for_is_not_one_that_has_changed() {
        let nic = nic();
        let gid = |last| {
            let mut octets = ADDRESS;
            octets[15] = last;
            Gid { index: 3, value: octets.into(), kind: GidKind::RoceV2, interface: None }
        };
        nic.check_gid(1, 0, &gid(7)).unwrap();
        let words = |index, last| nic.check_gid(1, index, &gid(last)).unwrap_err().to_string();
        assert_eq!(
            words(0, 8),
            "no NIC can be used: mlx5_7:1: its GID 3 fe80::8 is another one now, fe80::7"
        );
        assert_eq!(
            words(1, 7),
            "no NIC can be used: mlx5_7:1: its GID 3 fe80::7 is gone: the table's entry is empty"
        );
        let denied = rustix::io::Errno::ACCESS.raw_os_error() as u8;
        assert_eq!(words(denied, 7), "ibv_query_gid_ex failed on mlx5_7: Permission denied (os error 13)");
    }
}
