//! The kernel ABI in Rust: mirrors the prelude's `anabranch/host_abi.h` field for field; both sides assert the same sizes and offsets.

use core::ffi::{c_uint, c_ulonglong, c_void};
use core::mem::offset_of;

/// What a kernel was compiled for: the versions of `host_abi.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelAbi {
    /// To run free: it touches memory itself.
    Free = 1,
    /// Instrumented: its loads, stores and fences are calls.
    Instrumented = 0x105,
    /// Instrumented, and it relies on cumulative fences, as kernels for NVIDIA GPUs do.
    Cumulative = 0x106,
}

/// What follows a kernel's name in the symbol of its descriptor.
pub(crate) const KERNEL_DESCRIPTOR_SUFFIX: &str = "_host_kernel";

/// `AnabranchHostLane`: what a kernel sees of the lane it runs on.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct HostLane {
    pub(crate) calls: *const HostCalls,
    pub(crate) local_memory: *mut c_void,
    pub(crate) local_bytes: c_uint,
    pub(crate) thread: c_uint,
    pub(crate) block: c_uint,
    pub(crate) block_threads: c_uint,
    pub(crate) grid_blocks: c_uint,
    pub(crate) wave_width: c_uint,
}

/// `AnabranchHostCalls`: the machine's functions for a lane.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct HostCalls {
    pub(crate) yield_lane: unsafe extern "C" fn(*mut HostLane, c_uint),
    pub(crate) block_barrier: unsafe extern "C" fn(*mut HostLane, c_uint),
    pub(crate) wave_exchange: unsafe extern "C" fn(*mut HostLane, c_ulonglong, c_uint) -> *const c_ulonglong,
    pub(crate) clock_ns: unsafe extern "C" fn(*mut HostLane) -> c_ulonglong,
}

/// `AnabranchHostInstrumentedCalls`: the functions for a lane of an instrumented kernel.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct InstrumentedCalls {
    pub(crate) base: HostCalls,
    pub(crate) load: unsafe extern "C" fn(*mut HostLane, *const c_void, c_uint, c_uint) -> c_ulonglong,
    pub(crate) store: unsafe extern "C" fn(*mut HostLane, *mut c_void, c_ulonglong, c_uint, c_uint),
    pub(crate) fence: unsafe extern "C" fn(*mut HostLane, c_uint, c_uint),
    pub(crate) modify: unsafe extern "C" fn(
        *mut HostLane,
        *mut c_void,
        c_ulonglong,
        c_ulonglong,
        c_uint,
        c_uint,
        c_uint,
    ) -> c_ulonglong,
    pub(crate) wave_barrier: unsafe extern "C" fn(*mut HostLane, c_uint),
    pub(crate) local: unsafe extern "C" fn(*mut HostLane, c_uint, c_uint, c_uint),
}

/// `AnabranchHostEntry`.
pub(crate) type HostEntry = unsafe extern "C" fn(*mut HostLane, *const c_void);

/// `AnabranchHostKernel`: a kernel's descriptor. The entry is nullable, as the shared object may be wrong.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostKernel {
    pub(crate) abi: c_uint,
    pub(crate) wave_width: c_uint,
    pub(crate) argument_bytes: c_uint,
    pub(crate) max_block_threads: c_uint,
    pub(crate) entry: Option<HostEntry>,
}

const _: () = {
    assert!(size_of::<HostCalls>() == 32 && offset_of!(HostCalls, clock_ns) == 24);
    assert!(size_of::<InstrumentedCalls>() == 80 && offset_of!(InstrumentedCalls, load) == 32);
    assert!(size_of::<HostLane>() == 40 && offset_of!(HostLane, thread) == 20);
    assert!(offset_of!(HostLane, wave_width) == 36);
    assert!(size_of::<HostKernel>() == 24 && offset_of!(HostKernel, entry) == 16);
};
