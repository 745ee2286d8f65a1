//! Memory shared between processes by handle.

use crate::device::Device;
use crate::error::Result;
use crate::memory::{DeviceAddress, DeviceBuffer};
use crate::types::{HipError, HipIpcMemHandle, flags};

/// Names an allocation to other processes of this machine. 64 bytes without alignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpcHandle(pub HipIpcMemHandle);

impl IpcHandle {
    /// Bytes of a handle.
    pub const BYTES: usize = 64;

    /// The bytes to send to a peer.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        self.0.reserved
    }

    /// A handle from the bytes that a peer sent.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(HipIpcMemHandle { reserved: bytes })
    }
}

impl DeviceBuffer {
    /// A handle that other processes open with [`Device::open_ipc`]. The process that made the allocation
    /// cannot open it: ranks of one process use the plain address.
    ///
    /// # Errors
    /// The code of `hipIpcGetMemHandle`; `hipErrorNotSupported` where the memory cannot be shared.
    pub fn ipc_handle(&self) -> Result<IpcHandle> {
        let _guard = self.device().guard()?;
        let mut handle = HipIpcMemHandle { reserved: [0; 64] };
        // SAFETY: the call fills 64 bytes; the address is this live allocation's base.
        let code = unsafe {
            (self.device().runtime().api().hipIpcGetMemHandle)(&raw mut handle, self.address().as_ptr())
        };
        self.device().check("hipIpcGetMemHandle", code)?;
        Ok(IpcHandle(handle))
    }
}

impl Device {
    /// Maps another process's allocation for kernels of this device.
    ///
    /// # Errors
    /// The code of `hipIpcOpenMemHandle`: the exporting process is gone, or is this very process.
    pub fn open_ipc(&self, handle: &IpcHandle) -> Result<IpcMapping> {
        let _guard = self.guard()?;
        let mut pointer = std::ptr::null_mut();
        // SAFETY: the call writes one pointer; the handle is passed by value and may hold any bytes.
        let code = unsafe {
            (self.runtime().api().hipIpcOpenMemHandle)(
                &raw mut pointer,
                handle.0,
                flags::IPC_LAZY_ENABLE_PEER_ACCESS,
            )
        };
        self.check("hipIpcOpenMemHandle", code)?;
        Ok(IpcMapping { device: self.clone(), address: DeviceAddress(pointer as usize as u64) })
    }
}

/// A peer process's allocation, mapped here; unmapped when dropped. The peer's memory itself is not freed.
#[derive(Debug)]
pub struct IpcMapping {
    device: Device,
    address: DeviceAddress,
}

impl IpcMapping {
    /// Where the peer's allocation starts in this process.
    pub fn address(&self) -> DeviceAddress {
        self.address
    }
}

impl Drop for IpcMapping {
    fn drop(&mut self) {
        let Ok(_guard) = self.device.guard() else {
            tracing::warn!(address = %self.address, "mapping leaked: its device cannot be made current");
            return;
        };
        // SAFETY: the address came from hipIpcOpenMemHandle and is closed once, here.
        let code = unsafe { (self.device.runtime().api().hipIpcCloseMemHandle)(self.address.as_ptr()) };
        if code != HipError::SUCCESS {
            tracing::warn!(address = %self.address, %code, "hipIpcCloseMemHandle failed");
        }
    }
}
