//! One loaded runtime: its table, its kind, and what makes it current for a thread.

use core::ffi::c_int;
use std::fmt;
use std::sync::Arc;

use anabranch_clock::Driver;

use crate::actor::{Actor, EngineMemory};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::table::HipApi;
use crate::types::HipError;

anabranch_ranks::word_enum! {
    /// Which runtime fills the table.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum RuntimeKind, word, "runtime" {
        /// AMD's `libamdhip64`.
        Amd = "amd",
        /// The CUDA driver under HIP's names.
        Nvidia = "nvidia",
        /// CPU threads.
        Host = "host",
    }
}

/// HIP's index of a device within one process. Not an identity: two processes may number devices differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceOrdinal(pub u32);

impl fmt::Display for DeviceOrdinal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {}", self.0)
    }
}

/// Makes one instance of a runtime current for the calling thread.
///
/// HIP's functions carry no context, so a process that holds several host machines needs to say which one a
/// call is for. AMD's and NVIDIA's libraries are one instance a process and need no binding.
pub trait Binding: Send + Sync + fmt::Debug {
    /// Called before every table call, on the calling thread.
    fn bind(&self);

    /// What decides for threads that work with this instance, where something does: they attach to it.
    fn driver(&self) -> Option<Arc<dyn Driver>> {
        None
    }

    /// Where engines in software run for a device, on an instance that is software itself.
    fn engines(&self, _device: DeviceOrdinal) -> Option<SoftwareEngines> {
        None
    }
}

/// Where a device's engines in software run, and the memory that they see.
#[derive(Clone, Debug)]
pub struct SoftwareEngines {
    /// The device's memory and its peers'.
    pub memory: Arc<dyn EngineMemory>,
    /// Starts engines.
    pub starter: Arc<dyn StartActor>,
}

/// Starts engines in software under a runtime's scheduler.
pub trait StartActor: Send + Sync + fmt::Debug {
    /// Runs an engine until it finishes or the runtime ends. It touches the devices' memory by
    /// [`SoftwareEngines::memory`] only.
    fn start(&self, actor: Box<dyn Actor>);

    /// Tells engines that something has changed, so that resting threads look at once.
    fn wake(&self);
}

/// A loaded runtime. Clones share it.
#[derive(Clone, Debug)]
pub struct Runtime {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    kind: RuntimeKind,
    api: HipApi,
    binding: Option<Arc<dyn Binding>>,
    origin: String,
}

impl Runtime {
    /// Wraps a filled table. `origin` says where it came from (a library's path, "host"), for reports.
    pub fn new(kind: RuntimeKind, api: HipApi, binding: Option<Arc<dyn Binding>>, origin: String) -> Self {
        Self { inner: Arc::new(Inner { kind, api, binding, origin }) }
    }

    /// Which runtime this is.
    pub fn kind(&self) -> RuntimeKind {
        self.inner.kind
    }

    /// Where it came from.
    pub fn origin(&self) -> &str {
        &self.inner.origin
    }

    /// The table, after making this instance current for the calling thread.
    pub fn api(&self) -> &HipApi {
        if let Some(binding) = &self.inner.binding {
            binding.bind();
        }
        &self.inner.api
    }

    /// What runs threads one at a time on this instance; `None` where threads are free, as on every GPU.
    pub fn driver(&self) -> Option<Arc<dyn Driver>> {
        self.inner.binding.as_ref()?.driver()
    }

    /// Where engines in software run for a device; `None` on every GPU.
    pub fn engines(&self, device: DeviceOrdinal) -> Option<SoftwareEngines> {
        self.inner.binding.as_ref()?.engines(device)
    }

    /// Whether two handles are one and the same loaded instance.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// A number that tells instances of this process apart.
    pub fn instance(&self) -> usize {
        Arc::as_ptr(&self.inner) as usize
    }

    /// How many devices the runtime shows; 0 where it says that there is none.
    ///
    /// # Errors
    /// Any other error code of `hipGetDeviceCount`.
    pub fn device_count(&self) -> Result<u32> {
        let mut count: c_int = 0;
        // SAFETY: hipGetDeviceCount writes one int to the pointer.
        let code = unsafe { (self.api().hipGetDeviceCount)(&raw mut count) };
        match code {
            HipError::NO_DEVICE => Ok(0),
            _ => self.check("hipGetDeviceCount", code).map(|()| count.max(0) as u32),
        }
    }

    /// The calling thread's current device: for libraries whose callers choose devices by it, as NCCL's do.
    ///
    /// # Errors
    /// The code of `hipGetDevice`.
    pub fn current_device(&self) -> Result<DeviceOrdinal> {
        let mut device: c_int = 0;
        // SAFETY: hipGetDevice writes one int to the pointer.
        let code = unsafe { (self.api().hipGetDevice)(&raw mut device) };
        self.check("hipGetDevice", code).map(|()| DeviceOrdinal(device.max(0) as u32))
    }

    /// Opens a device.
    ///
    /// # Errors
    /// [`Error::NoSuchDevice`], or what reading its properties returned.
    pub fn device(&self, ordinal: DeviceOrdinal) -> Result<Device> {
        let count = self.device_count()?;
        if ordinal.0 >= count {
            return Err(Error::NoSuchDevice { device: ordinal, runtime: self.kind(), count });
        }
        Device::open(self.clone(), ordinal)
    }

    /// Driver and runtime version numbers as the runtime reports them.
    ///
    /// # Errors
    /// The code of the version calls.
    pub fn versions(&self) -> Result<(i32, i32)> {
        let (mut driver, mut runtime): (c_int, c_int) = (0, 0);
        // SAFETY: each call writes one int to the pointer.
        let code = unsafe { (self.api().hipDriverGetVersion)(&raw mut driver) };
        self.check("hipDriverGetVersion", code)?;
        // SAFETY: as above.
        let code = unsafe { (self.api().hipRuntimeGetVersion)(&raw mut runtime) };
        self.check("hipRuntimeGetVersion", code)?;
        Ok((driver, runtime))
    }

    /// Turns a code into a result for calls that concern no particular device.
    pub(crate) fn check(&self, call: &'static str, code: HipError) -> Result<()> {
        if code == HipError::SUCCESS {
            Ok(())
        } else {
            Err(Error::Runtime { call, runtime: self.kind(), code })
        }
    }

    /// An optional function, or the error that says it is missing.
    pub(crate) fn optional<T: Copy>(&self, function: &'static str, entry: Option<T>) -> Result<T> {
        entry.ok_or_else(|| Error::Missing {
            runtime: self.kind(),
            origin: self.origin().to_owned(),
            function,
        })
    }
}
