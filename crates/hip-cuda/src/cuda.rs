//! The CUDA driver's types and numbers as they cross the C boundary, from its public documentation.
//!
//! As in the HIP table, foreign enums are integers: a newer driver may return values that this list does not
//! know. Handles are opaque pointers; device pointers are 64-bit numbers.

use core::ffi::{c_int, c_uint, c_void};

/// `CUdevice`: a device handle.
pub(crate) type CuDevice = c_int;
/// `CUdeviceptr`.
pub(crate) type CuDevicePointer = u64;
/// `CUcontext`.
pub(crate) type CuContext = *mut c_void;
/// `CUstream`.
pub(crate) type CuStream = *mut c_void;
/// `CUevent`.
pub(crate) type CuEvent = *mut c_void;
/// `CUmodule`.
pub(crate) type CuModule = *mut c_void;
/// `CUfunction`.
pub(crate) type CuFunction = *mut c_void;
/// `CUgraph`.
pub(crate) type CuGraph = *mut c_void;
/// `CUgraphExec`.
pub(crate) type CuGraphExec = *mut c_void;
/// `CUmemGenericAllocationHandle`.
pub(crate) type CuMemHandle = u64;

// Device pointers travel through HIP's `void*`.
const _: () = assert!(size_of::<*mut c_void>() == size_of::<CuDevicePointer>());

/// `CUresult`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CuResult(pub(crate) c_uint);

impl CuResult {
    pub(crate) const SUCCESS: Self = Self(0);
    pub(crate) const STUB_LIBRARY: Self = Self(34);
    pub(crate) const NO_DEVICE: Self = Self(100);
}

/// `CUipcMemHandle`: 64 opaque bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct CuIpcMemHandle {
    pub(crate) reserved: [u8; 64],
}

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CuMemLocation {
    pub(crate) kind: c_int,
    pub(crate) id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct CuMemAllocationProperties {
    pub(crate) kind: c_int,
    pub(crate) requested_handle_types: c_int,
    pub(crate) location: CuMemLocation,
    pub(crate) win32_handle_meta_data: *mut c_void,
    pub(crate) compression_type: u8,
    pub(crate) gpu_direct_rdma_capable: u8,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 4],
}

const _: () = assert!(size_of::<CuMemAllocationProperties>() == 32);

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CuMemAccessDescriptor {
    pub(crate) location: CuMemLocation,
    pub(crate) flags: c_int,
}

const _: () = assert!(size_of::<CuMemAccessDescriptor>() == 12);

/// `CUdevice_attribute`.
pub(crate) mod device_attribute {
    use core::ffi::c_int;
    pub(crate) const MAX_THREADS_PER_BLOCK: c_int = 1;
    pub(crate) const WARP_SIZE: c_int = 10;
    pub(crate) const CLOCK_RATE: c_int = 13;
    pub(crate) const MULTIPROCESSOR_COUNT: c_int = 16;
    pub(crate) const COMPUTE_CAPABILITY_MAJOR: c_int = 75;
    pub(crate) const COMPUTE_CAPABILITY_MINOR: c_int = 76;
    pub(crate) const MAX_SHARED_MEMORY_PER_BLOCK_OPT_IN: c_int = 97;
    pub(crate) const HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: c_int = 103;
}

/// `CUfunction_attribute`.
pub(crate) mod function_attribute {
    use core::ffi::c_int;
    pub(crate) const SHARED_SIZE_BYTES: c_int = 1;
    pub(crate) const MAX_DYNAMIC_SHARED_SIZE_BYTES: c_int = 8;
    /// The first attribute that HIP does not number the same.
    pub(crate) const CLUSTER_SIZE_MUST_BE_SET: c_int = 10;
}

/// `CUpointer_attribute`.
pub(crate) mod pointer_attribute {
    use core::ffi::c_int;
    pub(crate) const MEMORY_TYPE: c_int = 2;
    pub(crate) const DEVICE_POINTER: c_int = 3;
    pub(crate) const HOST_POINTER: c_int = 4;
    pub(crate) const IS_MANAGED: c_int = 8;
    pub(crate) const DEVICE_ORDINAL: c_int = 9;
    pub(crate) const IS_LEGACY_IPC_CAPABLE: c_int = 10;
}

/// `CUmemorytype`.
pub(crate) mod memory_type {
    pub(crate) const HOST: u32 = 1;
    pub(crate) const DEVICE: u32 = 2;
    pub(crate) const ARRAY: u32 = 3;
    pub(crate) const UNIFIED: u32 = 4;
}

/// Flags of single calls.
pub(crate) mod flags {
    use core::ffi::{c_int, c_uint};
    pub(crate) const MEM_HOST_ALLOC_PORTABLE: c_uint = 1;
    pub(crate) const MEM_HOST_ALLOC_DEVICE_MAP: c_uint = 2;
    pub(crate) const MEM_HOST_ALLOC_WRITE_COMBINED: c_uint = 4;
    pub(crate) const MEM_HOST_REGISTER_PORTABLE: c_uint = 1;
    pub(crate) const MEM_HOST_REGISTER_DEVICE_MAP: c_uint = 2;
    pub(crate) const MEM_HOST_REGISTER_IO_MEMORY: c_uint = 4;
    pub(crate) const MEM_HOST_REGISTER_READ_ONLY: c_uint = 8;
    pub(crate) const EVENT_ALL: c_uint = 1 | 2 | 4;
    pub(crate) const STREAM_WRITE_VALUE_DEFAULT: c_uint = 0;
    pub(crate) const STREAM_WAIT_VALUE_GEQ: c_uint = 0;
    pub(crate) const STREAM_WAIT_VALUE_EQ: c_uint = 1;
    pub(crate) const STREAM_WAIT_VALUE_AND: c_uint = 2;
    pub(crate) const STREAM_WAIT_VALUE_NOR: c_uint = 3;
    pub(crate) const MEM_ALLOCATION_TYPE_PINNED: c_int = 1;
    pub(crate) const MEM_HANDLE_TYPE_NONE: c_int = 0;
    pub(crate) const MEM_HANDLE_TYPE_POSIX_FD: c_int = 1;
    pub(crate) const MEM_LOCATION_TYPE_DEVICE: c_int = 1;
    pub(crate) const MEM_RANGE_HANDLE_DMA_BUF: c_int = 1;
}
