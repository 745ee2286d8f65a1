//! A device, and the guard that makes it current for a while.

use core::ffi::{c_char, c_int};
use std::marker::PhantomData;
use std::sync::Arc;

use crate::error::{Error, Result, c_ordinal};
use crate::runtime::{DeviceOrdinal, Runtime};
use crate::trace::TraceSlot;
use crate::transfer::Transfers;
use crate::types::{HipDeviceProperties, HipError, device_attribute};

/// An open device. Clones share its properties, a stream for copies and fills, and a trace.
#[derive(Clone, Debug)]
pub struct Device {
    runtime: Runtime,
    ordinal: DeviceOrdinal,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    properties: Box<HipDeviceProperties>,
    transfers: Transfers,
    trace: TraceSlot,
}

impl Device {
    pub(crate) fn open(runtime: Runtime, ordinal: DeviceOrdinal) -> Result<Self> {
        let mut properties = Box::new(HipDeviceProperties::zeroed());
        // SAFETY: the call fills hipDeviceProp_tR0600; the buffer is larger than any known version of it.
        let code =
            unsafe { (runtime.api().hipGetDevicePropertiesR0600)(&raw mut *properties, c_ordinal(ordinal)) };
        let transfers = Transfers::new(runtime.clone(), ordinal);
        let shared = Arc::new(Shared { properties, transfers, trace: TraceSlot::default() });
        let device = Self { runtime, ordinal, shared };
        device.check("hipGetDevicePropertiesR0600", code)?;
        let arch = device.arch();
        let plausible = ["gfx", "sm_", "host:"].iter().any(|prefix| arch.starts_with(prefix));
        if plausible { Ok(device) } else { Err(Error::Properties { device: ordinal, arch }) }
    }

    pub(crate) fn trace_slot(&self) -> &TraceSlot {
        &self.shared.trace
    }

    /// The runtime that shows this device.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Its index in this process.
    pub fn ordinal(&self) -> DeviceOrdinal {
        self.ordinal
    }

    /// All properties read.
    pub fn properties(&self) -> &HipDeviceProperties {
        &self.shared.properties
    }

    /// What it is called in tables and reports: its name, or the architecture where the runtime gives no name.
    pub fn name(&self) -> String {
        let name = self.properties().name();
        if name.trim().is_empty() { self.arch() } else { name }
    }

    /// The architecture with its features: `gfx942:sramecc+:xnack-`, `sm_90`, `host:wave4`.
    pub fn arch(&self) -> String {
        self.properties().arch()
    }

    /// Lanes of a wave.
    pub fn wave_size(&self) -> u32 {
        self.properties().warp_size().max(1) as u32
    }

    /// Compute units or multiprocessors.
    pub fn multiprocessors(&self) -> u32 {
        self.properties().multiprocessor_count().max(1) as u32
    }

    /// PCI address, as `0000:c1:00.0`.
    ///
    /// # Errors
    /// The code of `hipDeviceGetPCIBusId`.
    pub fn pci_bus_id(&self) -> Result<String> {
        let mut text: [c_char; 64] = [0; 64];
        // SAFETY: the call writes at most the given number of bytes, terminated.
        let code = unsafe {
            (self.runtime.api().hipDeviceGetPCIBusId)(text.as_mut_ptr(), 64, c_ordinal(self.ordinal))
        };
        self.check("hipDeviceGetPCIBusId", code)?;
        Ok(text.iter().take_while(|c| **c != 0).map(|c| *c as u8 as char).collect())
    }

    /// Free and total device memory, in bytes.
    ///
    /// # Errors
    /// The code of `hipMemGetInfo`.
    pub fn memory_info(&self) -> Result<(usize, usize)> {
        let _guard = self.guard()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the call writes two sizes.
        let code = unsafe { (self.runtime.api().hipMemGetInfo)(&raw mut free, &raw mut total) };
        self.check("hipMemGetInfo", code)?;
        Ok((free, total))
    }

    /// Makes this device current for the calling thread until the guard is dropped.
    ///
    /// # Errors
    /// The code of `hipGetDevice` or `hipSetDevice`.
    pub fn guard(&self) -> Result<DeviceGuard<'_>> {
        DeviceGuard::of(&self.runtime, self.ordinal)
    }

    /// Ticks a millisecond of the clock that AMD kernels read (`hipDeviceAttributeWallClockRate`).
    ///
    /// # Errors
    /// The code of `hipDeviceGetAttribute`: only AMD's runtime knows the attribute.
    pub fn wall_clock_khz(&self) -> Result<u32> {
        let mut khz: c_int = 0;
        // SAFETY: the call writes one int.
        let code = unsafe {
            (self.runtime.api().hipDeviceGetAttribute)(
                &raw mut khz,
                device_attribute::WALL_CLOCK_RATE,
                c_ordinal(self.ordinal),
            )
        };
        self.check("hipDeviceGetAttribute", code)?;
        Ok(khz.max(0) as u32)
    }

    /// Whether kernels of this device can reach `peer`'s memory.
    ///
    /// # Errors
    /// [`Error::RuntimeMismatch`], or the code of `hipDeviceCanAccessPeer`.
    pub fn can_access_peer(&self, peer: &Self) -> Result<bool> {
        self.check_runtime("ask for peer access", peer)?;
        if peer.ordinal == self.ordinal {
            return Ok(true);
        }
        let mut can: c_int = 0;
        // SAFETY: the call writes one int.
        let code = unsafe {
            (self.runtime.api().hipDeviceCanAccessPeer)(
                &raw mut can,
                c_ordinal(self.ordinal),
                c_ordinal(peer.ordinal),
            )
        };
        self.check("hipDeviceCanAccessPeer", code)?;
        Ok(can != 0)
    }

    /// Lets kernels of this device reach `peer`'s memory. Doing it again is no error.
    ///
    /// # Errors
    /// [`Error::RuntimeMismatch`], or the code of `hipDeviceEnablePeerAccess`, unless it says that access is already
    /// enabled.
    pub fn enable_peer_access(&self, peer: &Self) -> Result<()> {
        self.check_runtime("enable peer access", peer)?;
        if peer.ordinal == self.ordinal {
            return Ok(());
        }
        let _guard = self.guard()?;
        // SAFETY: the flags argument must be zero.
        let code = unsafe { (self.runtime.api().hipDeviceEnablePeerAccess)(c_ordinal(peer.ordinal), 0) };
        if code == HipError::PEER_ACCESS_ALREADY_ENABLED {
            // The code is sticky in hipGetLastError: left there, it would surface in somebody else's check.
            // SAFETY: no arguments; reads and clears the thread's last error.
            let _consumed = unsafe { (self.runtime.api().hipGetLastError)() };
            return Ok(());
        }
        self.check("hipDeviceEnablePeerAccess", code)
    }

    /// What copies and fills go by.
    pub(crate) fn transfers(&self) -> &Transfers {
        &self.shared.transfers
    }

    /// Turns a code into a result that names this device.
    pub(crate) fn check(&self, call: &'static str, code: HipError) -> Result<()> {
        check(&self.runtime, self.ordinal, call, code)
    }

    /// Refuses a device of another runtime instance, whose handles and ordinals mean nothing to this one.
    pub(crate) fn check_runtime(&self, what: &'static str, other: &Self) -> Result<()> {
        if self.runtime.is_same(&other.runtime) {
            return Ok(());
        }
        Err(Error::RuntimeMismatch { what, left: self.runtime.kind(), right: other.runtime.kind() })
    }

    /// Whether two handles mean the same device of the same runtime instance.
    pub fn is_same(&self, other: &Self) -> bool {
        self.ordinal == other.ordinal && self.runtime.is_same(&other.runtime)
    }
}

/// Turns a code into a result that names the device.
fn check(runtime: &Runtime, device: DeviceOrdinal, call: &'static str, code: HipError) -> Result<()> {
    if code == HipError::SUCCESS {
        Ok(())
    } else {
        Err(Error::Call { call, runtime: runtime.kind(), device, code })
    }
}

/// Restores the device that was current before, on every path.
#[derive(Debug)]
#[must_use = "the device is current only while the guard lives"]
pub struct DeviceGuard<'a> {
    runtime: &'a Runtime,
    ordinal: DeviceOrdinal,
    previous: c_int,
    /// The current device belongs to a thread, so the guard must not move to another one.
    thread_bound: PhantomData<*const ()>,
}

impl<'a> DeviceGuard<'a> {
    /// Makes an opened device of the runtime current; for what lives on without a [`Device`].
    pub(crate) fn of(runtime: &'a Runtime, ordinal: DeviceOrdinal) -> Result<Self> {
        let api = runtime.api();
        let mut previous: c_int = 0;
        // SAFETY: the call writes one int.
        let code = unsafe { (api.hipGetDevice)(&raw mut previous) };
        check(runtime, ordinal, "hipGetDevice", code)?;
        if previous != c_ordinal(ordinal) {
            // SAFETY: the ordinal was checked when the device was opened.
            let code = unsafe { (api.hipSetDevice)(c_ordinal(ordinal)) };
            check(runtime, ordinal, "hipSetDevice", code)?;
        }
        Ok(Self { runtime, ordinal, previous, thread_bound: PhantomData })
    }
}

impl Drop for DeviceGuard<'_> {
    fn drop(&mut self) {
        if self.previous == c_ordinal(self.ordinal) {
            return;
        }
        // SAFETY: the ordinal came from hipGetDevice on this thread.
        let code = unsafe { (self.runtime.api().hipSetDevice)(self.previous) };
        if code != HipError::SUCCESS {
            tracing::warn!(device = self.previous, %code, "the previous device could not be made current again");
        }
    }
}
