//! ConnectX opened by verbs, as [`LibMlx5`] wants it.

use core::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use anabranch_hip::Device;
use anabranch_transport::Region;

use super::devx::VerbsDevice;
use super::driver::Mlx5Driver;
use super::library::LibMlx5;
use super::path::{PathRequest, PortFacts};
use crate::config::RdmaConfig;
use crate::driver::Registered;
use crate::error::{NicError, Result};
use crate::nics::{Nic as FoundNic, Port, choose_gid};
use crate::provider::Provider;
use crate::verbs::bindings::{IbvAhAttr, IbvGid, IbvGlobalRoute};
use crate::verbs::library::Verbs;
use crate::verbs::memory::MemoryRegion;
use crate::verbs::nic::{Nic, last_error};

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

impl Mlx5Driver {
    /// Opens a port by verbs and libmlx5, for a device. `found` and `port` are what [`Machine::read`](crate::nics::Machine::read) says
    /// of them, `reason` why they were chosen ([`Assignment::reason`](crate::nics::Assignment::reason)). Not collective.
    ///
    /// # Errors
    /// [`NicError::Library`]; [`NicError::NoNic`] for a NIC that is no ConnectX, that verbs do not show, or whose port has no address that
    /// can be used; [`NicError::Limit`], [`NicError::Call`] and [`NicError::Memory`] as [`Self::new`].
    pub fn open(
        device: &Device,
        found: &FoundNic,
        port: &Port,
        config: &RdmaConfig,
        reason: &str,
    ) -> Result<Self> {
        let name = &found.name;
        let none =
            |problem: String| NicError::NoNic { reasons: format!("{name}:{}: {problem}", port.number) };
        if found.provider() != Provider::Mlx5 {
            return Err(none(format!("its queue entries are not those of mlx5: {}", found.provider())));
        }
        let gid = choose_gid(port.link_layer, &port.gids, config.gid_index)
            .map_err(|error| none(error.to_string()))?;
        let limit = |what, given: u32, most: u8| NicError::Limit {
            what,
            given: given.into(),
            allowed: format!("0 to {most}"),
            nic: name.clone(),
        };
        let gid_index = gid
            .gid
            .index
            .try_into()
            .map_err(|_| limit("transport.rdma.gid_index", gid.gid.index, u8::MAX))?;
        let number = port.number.try_into().map_err(|_| limit("port", port.number, u8::MAX))?;
        let nic = Nic::open_all(&Verbs::open()?)?.into_iter().flatten().find(|nic| nic.name == *name);
        let nic = Arc::new(nic.ok_or_else(|| none("verbs do not show it, or cannot open it".to_owned()))?);
        let live = nic.port(number)?;
        let reads = nic.attributes.max_qp_rd_atom.min(nic.attributes.max_qp_init_rd_atom);
        let facts = PortFacts {
            number,
            link_layer: port.link_layer,
            lid: live.lid,
            gid_index,
            gid: gid.gid.value.octets(),
            // `IBV_MTU_256` is 1; what is beyond the codes is refused with its number of bytes.
            mtu: 128u32.checked_shl(live.active_mtu).unwrap_or(0),
            most_reads: reads.max(0) as u32,
        };
        let pointers = NonNull::new(nic.context.cast()).zip(NonNull::new(nic.pd.cast()));
        let (context, protection_domain) = pointers.ok_or_else(|| none("verbs opened nothing".to_owned()))?;
        let opened = Opened { nic, context, protection_domain, device: device.clone() };
        let devx = Arc::new(LibMlx5::open(Arc::new(opened))?);
        Self::new(devx, device, facts, config, format!("{reason}; GID {}: {}", gid.gid, gid.reason))
    }
}
