//! NICs that the library shows, and the one that was opened.

use core::ffi::{CStr, c_int};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::bindings::{
    IBV_LINK_LAYER_ETHERNET, IBV_LINK_LAYER_INFINIBAND, IBV_LINK_LAYER_UNSPECIFIED, IBV_PORT_ACTIVE,
    IbvContext, IbvDevice, IbvDeviceAttr, IbvGid, IbvGidEntry, IbvPd, IbvPortAttr,
};
use super::choice::Candidate;
use super::gid::Gid;
use super::library::Verbs;
use crate::error::{NicError, Result};

/// Where the kernel shows NICs.
const CLASS_FOLDER: &str = "/sys/class/infiniband";

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
    /// Opens every NIC of the machine; those that cannot be opened are told with the reason.
    ///
    /// # Errors
    /// [`NicError::Call`] where the library cannot list them.
    pub(crate) fn open_all(verbs: &Arc<Verbs>) -> Result<Vec<Result<Self>>> {
        let mut count: c_int = 0;
        // SAFETY: the call writes one int and returns an array of that many devices, or null.
        let list = unsafe { (verbs.ibv_get_device_list)(&raw mut count) };
        if list.is_null() {
            let error = std::io::Error::last_os_error();
            // So the library says that the kernel has no RDMA at all.
            if error.raw_os_error() == Some(rustix::io::Errno::NOSYS.raw_os_error()) {
                return Ok(Vec::new());
            }
            let nic = "any NIC".to_owned();
            return Err(NicError::Call { call: "ibv_get_device_list", nic, cause: error.to_string() });
        }
        // SAFETY: the library says that so many devices follow.
        let devices = unsafe { core::slice::from_raw_parts(list, count.max(0) as usize) };
        let opened = devices.iter().map(|device| Self::open(verbs, *device)).collect();
        // SAFETY: the list is the library's and freed once; contexts that were opened stay valid.
        unsafe { (verbs.ibv_free_device_list)(list) };
        Ok(opened)
    }

    fn open(verbs: &Arc<Verbs>, device: *mut IbvDevice) -> Result<Self> {
        // SAFETY: the device is one of the list, whose names are texts that end in a zero byte.
        let name =
            unsafe { CStr::from_ptr((verbs.ibv_get_device_name)(device)) }.to_string_lossy().into_owned();
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

    /// Every port, as a candidate.
    pub(crate) fn candidates(&self) -> Vec<Candidate> {
        (1..=self.attributes.phys_port_cnt).map(|port| self.candidate(port)).collect()
    }

    fn candidate(&self, port: u8) -> Candidate {
        let attributes = self.port(port);
        let layer =
            attributes.as_ref().map_or(IBV_LINK_LAYER_UNSPECIFIED, |attributes| attributes.link_layer);
        let unusable = match &attributes {
            Err(error) => Some(error.to_string()),
            Ok(attributes) if attributes.state != IBV_PORT_ACTIVE => {
                Some(format!("it is not active (state {})", attributes.state))
            }
            // Of old InfiniBand providers.
            Ok(_)
                if [IBV_LINK_LAYER_ETHERNET, IBV_LINK_LAYER_INFINIBAND, IBV_LINK_LAYER_UNSPECIFIED]
                    .contains(&layer) =>
            {
                None
            }
            Ok(_) => Some(format!("its link layer is {layer}, neither InfiniBand nor Ethernet")),
        };
        let folder = Path::new(CLASS_FOLDER).join(&self.name);
        let rate = std::fs::read_to_string(folder.join(format!("ports/{port}/rate"))).ok();
        Candidate {
            nic: self.name.clone(),
            port,
            unusable,
            ethernet: layer == IBV_LINK_LAYER_ETHERNET,
            gids: attributes.map(|attributes| self.gids(port, attributes.gid_tbl_len)).unwrap_or_default(),
            rate: rate.and_then(|text| gigabits(&text)).unwrap_or(0),
            place: std::fs::canonicalize(folder.join("device")).ok(),
        }
    }

    fn gids(&self, port: u8, length: c_int) -> Vec<Gid> {
        (0..length.max(0) as u32).filter_map(|index| self.gid(port, index)).collect()
    }

    /// An entry of a port's table; `None` for one that is empty.
    fn gid(&self, port: u8, index: u32) -> Option<Gid> {
        let mut entry =
            IbvGidEntry { gid: IbvGid([0; 16]), gid_index: 0, port_num: 0, gid_type: 0, ndev_ifindex: 0 };
        let (port, size) = (u32::from(port), size_of::<IbvGidEntry>());
        // SAFETY: the context is open, and the call writes at most `size` bytes.
        let code =
            unsafe { (self.verbs._ibv_query_gid_ex)(self.context, port, index, &raw mut entry, 0, size) };
        let gid = Gid { index, kind: entry.gid_type, raw: entry.gid.0 };
        (code == 0 && gid.raw != [0; 16]).then_some(gid)
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

/// The number at the start of what the kernel says of a port's rate: "100 Gb/sec (4X EDR)", "2.5 Gb/sec (1X SDR)".
fn gigabits(text: &str) -> Option<u64> {
    let number = text.split_whitespace().next()?;
    number.split('.').next()?.parse().ok()
}

/// Where a device of this PCI address is in the system's tree.
pub(crate) fn place_of(pci: &str) -> Option<PathBuf> {
    std::fs::canonicalize(Path::new("/sys/bus/pci/devices").join(pci.to_ascii_lowercase())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_the_kernel_writes_them() {
        assert_eq!(gigabits("100 Gb/sec (4X EDR)\n"), Some(100));
        assert_eq!(gigabits("2.5 Gb/sec (1X SDR)\n"), Some(2));
        assert_eq!(gigabits(""), None);
    }
}
