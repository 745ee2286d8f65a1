//! A reference to the runtime, and the GPUs that it shows.

use core::ffi::c_void;
use core::fmt;

use anabranch_transport::PciAddress;
use libloading::os::unix::Library;

use super::functions::{Agent, HsaFunctions, PointerInfo, Status};
use crate::amd::address::GpuAddress;
use crate::amd::error::{AmdError, AmdResult};
use crate::amd::topology::Gpu;

/// `HSA_AGENT_INFO_DEVICE`, and its value for a GPU.
const DEVICE_TYPE: u32 = 17;
const DEVICE_IS_GPU: u32 = 1;
/// `HSA_AMD_AGENT_INFO_DRIVER_NODE_ID`: the node in the thunk's numbering.
const DRIVER_NODE: u32 = 0xa004;
/// `HSA_AMD_AGENT_INFO_BDFID`: what the tree calls `location_id`.
const LOCATION: u32 = 0xa006;
/// `HSA_AMD_AGENT_INFO_DOMAIN`.
const DOMAIN: u32 = 0xa00f;
/// `HSA_AMD_SYSTEM_INFO_EXT_VERSION_MAJOR` and `_MINOR`, 16 bits each.
const INTERFACE: [u32; 2] = [0x207, 0x208];

/// The runtime counts who uses it: this is one user, until it is dropped.
pub(super) struct Session {
    name: &'static str,
    hsa: HsaFunctions,
    library: Library,
}

impl fmt::Debug for Session {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Session").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A GPU that the runtime shows.
pub(super) struct ShownGpu {
    pub(super) agent: Agent,
    pub(super) node: u32,
    location: u32,
    domain: u32,
}

impl Session {
    pub(super) fn open(name: &'static str, library: Library, hsa: HsaFunctions) -> AmdResult<Self> {
        // SAFETY: hsa_init takes nothing. HIP has called it before, and the runtime counts the calls.
        check("hsa_init", || name.to_owned(), unsafe { (hsa.hsa_init)() })?;
        Ok(Self { name, hsa, library })
    }

    pub(super) fn library(&self) -> &Library {
        &self.library
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Major and minor number of `hsa_ext_amd.h` that the runtime was built with.
    pub(super) fn interface(&self) -> AmdResult<(u16, u16)> {
        let mut version = [0u16; 2];
        for (attribute, value) in INTERFACE.into_iter().zip(&mut version) {
            // SAFETY: these attributes write 16 bits, and `value` is a place for them.
            let code = unsafe { (self.hsa.hsa_system_get_info)(attribute, (&raw mut *value).cast()) };
            check("hsa_system_get_info", || format!("attribute {attribute:#x}"), code)?;
        }
        Ok((version[0], version[1]))
    }

    /// The GPU of the tree as this runtime shows it, found by domain and location.
    pub(super) fn find(&self, gpu: &Gpu) -> AmdResult<ShownGpu> {
        let mut shown = Vec::new();
        let mut found = Vec::new();
        for agent in self.agents()? {
            if self.agent_info(agent, DEVICE_TYPE)? != DEVICE_IS_GPU {
                continue;
            }
            let this = ShownGpu {
                agent,
                node: self.agent_info(agent, DRIVER_NODE)?,
                location: self.agent_info(agent, LOCATION)?,
                domain: self.agent_info(agent, DOMAIN)?,
            };
            shown.push(this.address());
            if (this.domain, this.location) == (gpu.domain, gpu.location_id) {
                found.push(this);
            }
        }
        let (origin, place, count) = (self.name.to_owned(), gpu.pci().into(), found.len());
        match (found.pop(), count) {
            (Some(gpu), 1) => Ok(gpu),
            (Some(_), _) => Err(AmdError::ShownSeveralTimes { origin, gpu: place, count }),
            (None, _) => Err(AmdError::NotShown { origin, gpu: place, shown }),
        }
    }

    fn agents(&self) -> AmdResult<Vec<Agent>> {
        unsafe extern "C" fn collect(agent: Agent, data: *mut c_void) -> Status {
            // SAFETY: `data` is the vector below, which nothing else uses while the agents are gone through.
            let agents = unsafe { &mut *data.cast::<Vec<Agent>>() };
            agents.push(agent);
            0
        }
        let mut agents: Vec<Agent> = Vec::new();
        // SAFETY: the runtime calls `collect` on this thread before it returns, with `data` unchanged.
        let code = unsafe { (self.hsa.hsa_iterate_agents)(collect, (&raw mut agents).cast()) };
        check("hsa_iterate_agents", || self.name.to_owned(), code)?;
        Ok(agents)
    }

    fn agent_info(&self, agent: Agent, attribute: u32) -> AmdResult<u32> {
        let mut value = 0u32;
        // SAFETY: the agent is the runtime's, the attributes used here write 32 bits, and `value` is a place for them.
        let code = unsafe { (self.hsa.hsa_agent_get_info)(agent, attribute, (&raw mut value).cast()) };
        check("hsa_agent_get_info", || format!("attribute {attribute:#x}"), code)?;
        Ok(value)
    }

    /// Whether an address of this process is mapped for GPUs under the same value, as far as the runtime says.
    ///
    /// The thunk maps a doorbell for the GPU where it can, and for the host alone otherwise, and says nothing. The runtime's
    /// answer about the first holds the thunk's addresses, about the second none (`Runtime::PtrInfo`). In both cases it calls the
    /// memory unknown, and its header promises nothing about the other members then; if a version leaves them out, the answer
    /// here is no, and the host rings.
    pub(super) fn shows_mapping(&self, address: u64) -> AmdResult<bool> {
        let mut info = PointerInfo::empty();
        // SAFETY: the runtime only looks the address up; `info` says its own size; without an allocator no list is made.
        let code = unsafe {
            (self.hsa.hsa_amd_pointer_info)(
                address as *const c_void,
                &raw mut info,
                core::ptr::null_mut(),
                core::ptr::null_mut(),
                core::ptr::null_mut(),
            )
        };
        check("hsa_amd_pointer_info", || format!("{address:#x}"), code)?;
        Ok(covers(info.host_base, info.agent_base, info.bytes, address))
    }
}

/// Whether a mapping that begins at one address for the host and for GPUs holds the eight bytes at an address.
pub(super) fn covers(host_base: u64, gpu_base: u64, bytes: u64, address: u64) -> bool {
    let end = address.checked_add(8);
    gpu_base != 0
        && host_base == gpu_base
        && address >= gpu_base
        && end.is_some_and(|end| end <= gpu_base.saturating_add(bytes))
}

impl ShownGpu {
    fn address(&self) -> GpuAddress {
        GpuAddress {
            pci: PciAddress {
                domain: self.domain,
                bus: (self.location >> 8) as u8,
                device: (self.location >> 3) as u8 & 0x1f,
                function: self.location as u8 & 7,
            },
            partition: Some(self.location >> 28).filter(|partition| *partition != 0),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: it takes nothing, and undoes the hsa_init of `open`; other users keep the runtime.
        let code = unsafe { (self.hsa.hsa_shut_down)() };
        if code != 0 {
            tracing::warn!(code, "hsa_shut_down failed");
        }
    }
}

/// An error for a code that is not success.
pub(super) fn check(call: &'static str, place: impl FnOnce() -> String, code: Status) -> AmdResult<()> {
    if code == 0 { Ok(()) } else { Err(AmdError::Call { call, place: place(), code }) }
}
