//! Code objects and the kernels in them.

use core::ffi::c_void;
use std::ffi::CString;
use std::sync::Arc;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::stream::Stream;
use crate::types::{HipError, HipFunction, HipModule, function_attribute};

/// A loaded code object; unloaded when it and all its kernels are dropped. The owner makes sure that none of
/// them runs then.
#[derive(Clone, Debug)]
pub struct Module {
    inner: Arc<Loaded>,
}

#[derive(Debug)]
struct Loaded {
    device: Device,
    raw: HipModule,
}

// SAFETY: HIP modules may be used from any thread.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

impl Device {
    /// Loads a code object for this device.
    ///
    /// # Errors
    /// The code of `hipModuleLoadData`; `hipErrorNoBinaryForGpu` when it is for another architecture.
    ///
    /// # Safety
    /// `image` must be a whole, well-formed code object: loaders trust its headers, and a truncated one can end
    /// the process. Its code is trusted as much as the program's own.
    pub unsafe fn load_module(&self, image: &[u8]) -> Result<Module> {
        let _guard = self.guard()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the caller promises a whole code object; the runtime copies what it needs.
        let code = unsafe { (self.runtime().api().hipModuleLoadData)(&raw mut raw, image.as_ptr().cast()) };
        self.check("hipModuleLoadData", code)?;
        Ok(Module { inner: Arc::new(Loaded { device: self.clone(), raw }) })
    }
}

impl Module {
    /// The device it was loaded for.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Finds a kernel by its C name.
    ///
    /// # Errors
    /// The code of `hipModuleGetFunction`, mostly not found.
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        let c_name = CString::new(name).map_err(|_| Error::KernelName { name: name.to_owned() })?;
        let device = &self.inner.device;
        let _guard = device.guard()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the module is live; the name is a C string; the call writes one handle.
        let code = unsafe {
            (device.runtime().api().hipModuleGetFunction)(&raw mut raw, self.inner.raw, c_name.as_ptr())
        };
        device.check("hipModuleGetFunction", code)?;
        Ok(Kernel { module: self.clone(), raw, name: Arc::from(name) })
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let Ok(_guard) = self.device.guard() else {
            tracing::warn!("module leaked: its device cannot be made current");
            return;
        };
        // SAFETY: the handle came from hipModuleLoadData and is unloaded once, here.
        let code = unsafe { (self.device.runtime().api().hipModuleUnload)(self.raw) };
        if code != HipError::SUCCESS {
            tracing::warn!(%code, "hipModuleUnload failed");
        }
    }
}

/// A kernel of a loaded module, which it keeps loaded.
#[derive(Clone, Debug)]
pub struct Kernel {
    module: Module,
    raw: HipFunction,
    name: Arc<str>,
}

// SAFETY: HIP function handles may be used from any thread.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// The size of a launch, one-dimensional.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks of the grid.
    pub grid_blocks: u32,
    /// Threads of a block, a multiple of the wave size.
    pub block_threads: u32,
    /// Bytes of dynamic local memory a block.
    pub local_bytes: u32,
}

impl Kernel {
    /// Its C name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device it runs on.
    pub fn device(&self) -> &Device {
        self.module.device()
    }

    /// Puts one launch on the stream. `argument` is the kernel's one by-value struct; it is copied by the call.
    ///
    /// # Errors
    /// [`Error::DeviceMismatch`], or the code of `hipModuleLaunchKernel`.
    ///
    /// # Safety
    /// `argument` must have the layout of the kernel's parameter, and every address in it must stay valid, for
    /// the access that the kernel makes, until the kernel is done.
    pub unsafe fn launch(&self, shape: LaunchShape, stream: &Stream, argument: &[u8]) -> Result<()> {
        let device = self.device();
        if !stream.device().is_same(device) {
            return Err(Error::DeviceMismatch {
                what: "launch a kernel",
                left: device.ordinal(),
                right: stream.device().ordinal(),
            });
        }
        let _guard = device.guard()?;
        let mut parameters: [*mut c_void; 1] = [argument.as_ptr().cast_mut().cast()];
        // SAFETY: one parameter pointer, to the struct that the caller vouches for; the runtime copies it before
        // the call returns and does not write through it.
        let code = unsafe {
            (device.runtime().api().hipModuleLaunchKernel)(
                self.raw,
                shape.grid_blocks,
                1,
                1,
                shape.block_threads,
                1,
                1,
                shape.local_bytes,
                stream.raw(),
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        device.check("hipModuleLaunchKernel", code)
    }

    /// How many blocks of this shape one multiprocessor holds at once.
    ///
    /// # Errors
    /// The code of the occupancy query.
    pub fn blocks_per_multiprocessor(&self, block_threads: u32, local_bytes: u32) -> Result<u32> {
        let device = self.device();
        let _guard = device.guard()?;
        let mut blocks = 0;
        // SAFETY: the call writes one int; the function handle is live.
        let code = unsafe {
            (device.runtime().api().hipModuleOccupancyMaxActiveBlocksPerMultiprocessor)(
                &raw mut blocks,
                self.raw,
                block_threads as i32,
                local_bytes as usize,
            )
        };
        device.check("hipModuleOccupancyMaxActiveBlocksPerMultiprocessor", code)?;
        Ok(blocks.max(0) as u32)
    }

    /// The largest block that the kernel may be launched with.
    ///
    /// # Errors
    /// The code of `hipFuncGetAttribute`.
    pub fn max_block_threads(&self) -> Result<u32> {
        self.attribute(function_attribute::MAX_THREADS_PER_BLOCK)
    }

    fn attribute(&self, attribute: i32) -> Result<u32> {
        let device = self.device();
        let _guard = device.guard()?;
        let mut value = 0;
        // SAFETY: the call writes one int; the function handle is live.
        let code =
            unsafe { (device.runtime().api().hipFuncGetAttribute)(&raw mut value, attribute, self.raw) };
        device.check("hipFuncGetAttribute", code)?;
        Ok(value.max(0) as u32)
    }
}
