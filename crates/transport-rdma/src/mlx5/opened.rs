//! ConnectX opened by verbs, as [`LibMlx5`] wants it.

use core::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use anabranch_hip::Device;
use anabranch_transport::Region;

use super::devx::VerbsDevice;
use super::path::{PathRequest, PortFacts};
use crate::bindings::{IbvAhAttr, IbvGid, IbvGlobalRoute};
use crate::driver::Registered;
use crate::endpoint::mtu_bytes;
use crate::error::{NicError, Result};
use crate::nics::ChosenPort;
use crate::verbs::memory::MemoryRegion;
use crate::verbs::nic::{Nic, OpenPort, last_error};

/// Routers that a packet may pass.
const HOPS: u8 = 64;

/// An opened NIC, and the device whose memory is registered with it.
struct Opened {
    nic: Arc<Nic>,
    context: NonNull<c_void>,
    protection_domain: NonNull<c_void>,
    device: Device,
}

// SAFETY: the pointers are to what `nic` owns, and libibverbs is thread-safe.
unsafe impl Send for Opened {}
// SAFETY: as above.
unsafe impl Sync for Opened {}

impl fmt::Debug for Opened {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Opened").field("nic", &self.nic).finish_non_exhaustive()
    }
}

// SAFETY: `nic` keeps context and protection domain until the value is gone; handles are made of that protection domain.
unsafe impl VerbsDevice for Opened {
    fn name(&self) -> String {
        self.nic.name.clone()
    }

    fn context(&self) -> NonNull<c_void> {
        self.context
    }

    fn protection_domain(&self) -> NonNull<c_void> {
        self.protection_domain
    }

    fn create_address_handle(&self, path: &PathRequest) -> Result<NonNull<c_void>> {
        let mut attributes = IbvAhAttr {
            grh: IbvGlobalRoute {
                dgid: IbvGid(path.remote_gid),
                flow_label: 0,
                sgid_index: path.gid_index,
                hop_limit: HOPS,
                traffic_class: path.traffic_class,
            },
            dlid: 0,
            sl: path.service_level,
            src_path_bits: 0,
            static_rate: 0,
            is_global: 1,
            port_num: path.port,
        };
        // SAFETY: the protection domain is live; the call reads one structure of the header's layout.
        let handle = unsafe { (self.nic.verbs.ibv_create_ah)(self.nic.pd, &raw mut attributes) };
        NonNull::new(handle).ok_or_else(|| last_error("ibv_create_ah", &self.nic.name))
    }

    fn destroy_address_handle(&self, handle: NonNull<c_void>) {
        // SAFETY: made above, and given back once by the trait's contract.
        let code = unsafe { (self.nic.verbs.ibv_destroy_ah)(handle.as_ptr()) };
        if let Err(error) = self.nic.check("ibv_destroy_ah", code) {
            tracing::warn!("{error}");
        }
    }

    fn register(&self, region: Region) -> Result<Arc<dyn Registered>> {
        Ok(Arc::new(MemoryRegion::new(&self.nic, &self.device, region)?))
    }
}

/// Opens a port by verbs, for a device, as [`LibMlx5`](super::LibMlx5) wants it, and says what the port is. Not collective.
///
/// # Errors
/// The errors of [`OpenPort::open`].
pub(crate) fn open_verbs(device: &Device, chosen: &ChosenPort) -> Result<(Arc<dyn VerbsDevice>, PortFacts)> {
    let OpenPort { nic, number, gid_index, live } = OpenPort::open(chosen)?;
    let facts = PortFacts {
        number,
        link_layer: chosen.port.link_layer,
        lid: live.lid,
        gid_index,
        gid: chosen.gid.gid.value.octets(),
        gid_kind: chosen.gid.gid.kind,
        mtu: mtu_bytes(live.active_mtu),
        most_answered: nic.attributes.max_qp_rd_atom.max(0) as u32,
        most_asked: nic.attributes.max_qp_init_rd_atom.max(0) as u32,
    };
    let pointers = NonNull::new(nic.context.cast()).zip(NonNull::new(nic.pd.cast()));
    let (context, protection_domain) = pointers.ok_or_else(|| {
        let reasons = format!("{}:{number}: verbs opened nothing", nic.name);
        NicError::NoNic { reasons }
    })?;
    Ok((Arc::new(Opened { nic, context, protection_domain, device: device.clone() }), facts))
}
