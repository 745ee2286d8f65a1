//! Modules and launches.

use core::ffi::{c_char, c_int, c_uint, c_void};
use std::ffi::CStr;
use std::sync::Arc;

use anabranch_hip::HipError;
use anabranch_hip::types::{HipFunction, HipModule, HipStream, function_attribute};

use super::give;
use crate::calls::current::call;
use crate::config::{MAX_BLOCK_THREADS, MAX_LOCAL_BYTES};
use crate::grid::abi::KernelAbi;
use crate::grid::module::Module;
use crate::grid::plan::LaunchPlan;
use crate::work::device::DeviceState;
use crate::work::operation::Operation;

pub(super) unsafe extern "C" fn load(module: *mut HipModule, image: *const c_void) -> HipError {
    call("hipModuleLoadData", |current| {
        let machine = &current.machine;
        machine.refuse_in_capture()?;
        machine.check_alive(current.device)?;
        if module.is_null() {
            return Err(HipError::INVALID_VALUE);
        }
        // SAFETY: hipModuleLoadData's caller promises a complete code object.
        let loaded = unsafe { Module::load(image, current.device) }?;
        // SAFETY: the out pointer.
        unsafe { give(module, machine.modules.insert(&machine.handles, Arc::new(loaded))) }
    })
}

/// The code stays loaded until launches of its kernels that are queued or in graphs are gone.
pub(super) unsafe extern "C" fn unload(module: HipModule) -> HipError {
    call("hipModuleUnload", |current| {
        current.machine.refuse_in_capture()?;
        let module = current.machine.modules.remove(module)?;
        current.machine.kernels.remove_where(|kernel| module.has(kernel));
        Ok(())
    })
}

pub(super) unsafe extern "C" fn function(
    function: *mut HipFunction,
    module: HipModule,
    name: *const c_char,
) -> HipError {
    call("hipModuleGetFunction", |current| {
        let machine = &current.machine;
        let module = machine.modules.get(module)?;
        if function.is_null() || name.is_null() {
            return Err(HipError::INVALID_VALUE);
        }
        // SAFETY: not null, hence a C string by HIP's contract.
        let name = unsafe { CStr::from_ptr(name) };
        let instrumented = machine.core.scheduler.is_virtual();
        let abi = if instrumented { KernelAbi::Instrumented } else { KernelAbi::Free };
        let kernel = module.kernel_of(name, machine.config().wave_width, abi)?;
        // SAFETY: the out pointer.
        unsafe { give(function, machine.kernels.insert(&machine.handles, Arc::new(kernel))) }
    })
}

/// Registers and scratch memory are reported as 0: lanes have the CPU's registers and a stack.
pub(super) unsafe extern "C" fn attribute(
    value: *mut c_int,
    attribute: c_int,
    function: HipFunction,
) -> HipError {
    call("hipFuncGetAttribute", |current| {
        let kernel = current.machine.kernels.get(function)?;
        let found = match attribute {
            function_attribute::MAX_THREADS_PER_BLOCK => kernel.max_block_threads.min(MAX_BLOCK_THREADS),
            function_attribute::SHARED_SIZE_BYTES
            | function_attribute::LOCAL_SIZE_BYTES
            | function_attribute::NUM_REGS => 0,
            _ => return Err(HipError::INVALID_VALUE),
        };
        // SAFETY: the out pointer.
        unsafe { give(value, found as c_int) }
    })
}

/// Grids and blocks have one dimension here. A grid larger than the device keeps resident runs its blocks as
/// lanes become free, as on a GPU; its blocks cannot all wait for one another.
pub(super) unsafe extern "C" fn launch(
    function: HipFunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    local_bytes: c_uint,
    stream: HipStream,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> HipError {
    call("hipModuleLaunchKernel", |current| {
        let kernel = current.machine.kernels.get(function)?;
        let stream = current.stream(stream)?;
        if kernel.device != stream.device.ordinal {
            return Err(HipError::INVALID_HANDLE);
        }
        if (grid_y, grid_z, block_y, block_z) != (1, 1, 1, 1) {
            return Err(HipError::INVALID_CONFIGURATION);
        }
        if parameters.is_null() || !extra.is_null() {
            return Err(HipError::INVALID_VALUE);
        }
        // SAFETY: not null, hence one pointer per parameter of the kernel by HIP's contract; kernels here
        // have exactly one.
        let argument = unsafe { parameters.read() };
        if argument.is_null() {
            return Err(HipError::INVALID_VALUE);
        }
        let bytes = kernel.argument_bytes as usize;
        let mut arguments = vec![0_u128; bytes.div_ceil(size_of::<u128>())].into_boxed_slice();
        // SAFETY: the parameter points to the kernel's argument struct, of the size that its descriptor
        // states; the target has at least as many bytes.
        unsafe {
            core::ptr::copy_nonoverlapping(argument.cast::<u8>(), arguments.as_mut_ptr().cast(), bytes);
        }
        let plan = LaunchPlan::new(kernel, grid_x, block_x, local_bytes, arguments);
        plan.check(current.machine.config())?;
        let device = Arc::clone(&stream.device);
        stream.push(Operation::Launch { plan: Arc::new(plan), device }).map(|_| ())
    })
}

pub(super) unsafe extern "C" fn occupancy(
    blocks: *mut c_int,
    function: HipFunction,
    block_size: c_int,
    local_bytes: usize,
) -> HipError {
    call("hipModuleOccupancyMaxActiveBlocksPerMultiprocessor", |current| {
        let kernel = current.machine.kernels.get(function)?;
        let threads = u32::try_from(block_size).map_err(|_| HipError::INVALID_VALUE)?;
        let fits = threads <= kernel.max_block_threads && local_bytes <= MAX_LOCAL_BYTES as usize;
        let found =
            if fits { DeviceState::blocks_per_multiprocessor(current.machine.config(), threads) } else { 0 };
        // SAFETY: the out pointer.
        unsafe { give(blocks, found as c_int) }
    })
}
