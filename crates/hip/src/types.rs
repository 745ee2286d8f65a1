//! HIP's types as they cross the C boundary: opaque handles, integers for enums, plain structs.
//!
//! A foreign enum is never a Rust enum: a newer runtime may return a value that this list does not know, and
//! receiving it in a Rust enum would be undefined behaviour. Values follow ROCm 6 and later (the enum
//! `hipMemoryType` was renumbered there); `tests/abi.rs` compares them with two public bindings.

use core::ffi::{c_int, c_uint, c_void};

/// `hipStream_t`; null is the default stream.
pub type HipStream = *mut c_void;
/// `hipEvent_t`.
pub type HipEvent = *mut c_void;
/// `hipModule_t`.
pub type HipModule = *mut c_void;
/// `hipFunction_t`.
pub type HipFunction = *mut c_void;
/// `hipGraph_t`.
pub type HipGraph = *mut c_void;
/// `hipGraphExec_t`.
pub type HipGraphExec = *mut c_void;
/// `hipMemGenericAllocationHandle_t`.
pub type HipMemGenericAllocationHandle = *mut c_void;

/// `hipError_t`: an integer with a looked-up name.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct HipError(pub c_uint);

macro_rules! errors {
    ($($constant:ident = $value:literal, $name:literal;)*) => {
        #[allow(missing_docs, reason = "the names are HIP's")]
        impl HipError {
            $(pub const $constant: Self = Self($value);)*

            /// The C name of the code, or `hipError(unlisted)` for one that this list does not know.
            pub const fn name(self) -> &'static str {
                match self.0 { $($value => $name,)* _ => "hipError(unlisted)" }
            }

            /// Every listed code, for runtimes that implement `hipGetErrorName`.
            pub const LISTED: &'static [Self] = &[$(Self($value)),*];
        }
    };
}

errors! {
    SUCCESS = 0, "hipSuccess";
    INVALID_VALUE = 1, "hipErrorInvalidValue";
    OUT_OF_MEMORY = 2, "hipErrorOutOfMemory";
    NOT_INITIALIZED = 3, "hipErrorNotInitialized";
    DEINITIALIZED = 4, "hipErrorDeinitialized";
    INVALID_CONFIGURATION = 9, "hipErrorInvalidConfiguration";
    INVALID_MEMCPY_DIRECTION = 21, "hipErrorInvalidMemcpyDirection";
    INSUFFICIENT_DRIVER = 35, "hipErrorInsufficientDriver";
    MISSING_CONFIGURATION = 52, "hipErrorMissingConfiguration";
    INVALID_DEVICE_FUNCTION = 98, "hipErrorInvalidDeviceFunction";
    NO_DEVICE = 100, "hipErrorNoDevice";
    INVALID_DEVICE = 101, "hipErrorInvalidDevice";
    INVALID_IMAGE = 200, "hipErrorInvalidImage";
    INVALID_CONTEXT = 201, "hipErrorInvalidContext";
    MAP_FAILED = 205, "hipErrorMapFailed";
    NO_BINARY_FOR_GPU = 209, "hipErrorNoBinaryForGpu";
    ECC_NOT_CORRECTABLE = 214, "hipErrorECCNotCorrectable";
    PEER_ACCESS_UNSUPPORTED = 217, "hipErrorPeerAccessUnsupported";
    INVALID_KERNEL_FILE = 218, "hipErrorInvalidKernelFile";
    SHARED_OBJECT_INIT_FAILED = 303, "hipErrorSharedObjectInitFailed";
    OPERATING_SYSTEM = 304, "hipErrorOperatingSystem";
    INVALID_HANDLE = 400, "hipErrorInvalidHandle";
    ILLEGAL_STATE = 401, "hipErrorIllegalState";
    NOT_FOUND = 500, "hipErrorNotFound";
    NOT_READY = 600, "hipErrorNotReady";
    ILLEGAL_ADDRESS = 700, "hipErrorIllegalAddress";
    LAUNCH_OUT_OF_RESOURCES = 701, "hipErrorLaunchOutOfResources";
    LAUNCH_TIME_OUT = 702, "hipErrorLaunchTimeOut";
    PEER_ACCESS_ALREADY_ENABLED = 704, "hipErrorPeerAccessAlreadyEnabled";
    PEER_ACCESS_NOT_ENABLED = 705, "hipErrorPeerAccessNotEnabled";
    SET_ON_ACTIVE_PROCESS = 708, "hipErrorSetOnActiveProcess";
    CONTEXT_IS_DESTROYED = 709, "hipErrorContextIsDestroyed";
    ASSERT = 710, "hipErrorAssert";
    HOST_MEMORY_ALREADY_REGISTERED = 712, "hipErrorHostMemoryAlreadyRegistered";
    HOST_MEMORY_NOT_REGISTERED = 713, "hipErrorHostMemoryNotRegistered";
    LAUNCH_FAILURE = 719, "hipErrorLaunchFailure";
    COOPERATIVE_LAUNCH_TOO_LARGE = 720, "hipErrorCooperativeLaunchTooLarge";
    NOT_SUPPORTED = 801, "hipErrorNotSupported";
    STREAM_CAPTURE_UNSUPPORTED = 900, "hipErrorStreamCaptureUnsupported";
    STREAM_CAPTURE_INVALIDATED = 901, "hipErrorStreamCaptureInvalidated";
    STREAM_CAPTURE_MERGE = 902, "hipErrorStreamCaptureMerge";
    STREAM_CAPTURE_UNMATCHED = 903, "hipErrorStreamCaptureUnmatched";
    STREAM_CAPTURE_UNJOINED = 904, "hipErrorStreamCaptureUnjoined";
    STREAM_CAPTURE_ISOLATION = 905, "hipErrorStreamCaptureIsolation";
    STREAM_CAPTURE_IMPLICIT = 906, "hipErrorStreamCaptureImplicit";
    CAPTURED_EVENT = 907, "hipErrorCapturedEvent";
    STREAM_CAPTURE_WRONG_THREAD = 908, "hipErrorStreamCaptureWrongThread";
    GRAPH_EXEC_UPDATE_FAILURE = 910, "hipErrorGraphExecUpdateFailure";
    UNKNOWN = 999, "hipErrorUnknown";
    RUNTIME_MEMORY = 1052, "hipErrorRuntimeMemory";
    RUNTIME_OTHER = 1053, "hipErrorRuntimeOther";
}

impl core::fmt::Debug for HipError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::fmt::Display::fmt(self, f)
    }
}

impl core::fmt::Display for HipError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

/// `hipMemcpyKind`.
#[allow(missing_docs, reason = "the names are HIP's")]
pub mod memcpy_kind {
    use core::ffi::c_int;
    pub const HOST_TO_HOST: c_int = 0;
    pub const HOST_TO_DEVICE: c_int = 1;
    pub const DEVICE_TO_HOST: c_int = 2;
    pub const DEVICE_TO_DEVICE: c_int = 3;
    pub const DEFAULT: c_int = 4;
}

/// `hipMemoryType`, ROCm 6 numbering.
#[allow(missing_docs, reason = "the names are HIP's")]
pub mod memory_type {
    use core::ffi::c_int;
    pub const UNREGISTERED: c_int = 0;
    pub const HOST: c_int = 1;
    pub const DEVICE: c_int = 2;
    pub const MANAGED: c_int = 3;
}

/// Flags and modes of single calls.
#[allow(missing_docs, reason = "the names are HIP's")]
pub mod flags {
    use core::ffi::{c_int, c_uint};
    pub const STREAM_NON_BLOCKING: c_uint = 1;
    pub const EVENT_DEFAULT: c_uint = 0;
    pub const EVENT_DISABLE_TIMING: c_uint = 2;
    pub const EVENT_RECORD_EXTERNAL: c_uint = 1;
    pub const EVENT_WAIT_EXTERNAL: c_uint = 1;
    pub const HOST_MALLOC_PORTABLE: c_uint = 1;
    pub const HOST_MALLOC_MAPPED: c_uint = 2;
    pub const HOST_MALLOC_COHERENT: c_uint = 0x4000_0000;
    pub const HOST_REGISTER_PORTABLE: c_uint = 1;
    pub const HOST_REGISTER_MAPPED: c_uint = 2;
    pub const DEVICE_MALLOC_FINE_GRAINED: c_uint = 1;
    pub const DEVICE_MALLOC_UNCACHED: c_uint = 3;
    pub const IPC_LAZY_ENABLE_PEER_ACCESS: c_uint = 1;
    pub const WAIT_VALUE_GREATER_OR_EQUAL: c_uint = 0;
    pub const WAIT_VALUE_EQUAL: c_uint = 1;
    pub const WAIT_VALUE_AND: c_uint = 2;
    pub const WAIT_VALUE_NOR: c_uint = 3;
    pub const CAPTURE_MODE_GLOBAL: c_int = 0;
    pub const CAPTURE_MODE_THREAD_LOCAL: c_int = 1;
    pub const CAPTURE_MODE_RELAXED: c_int = 2;
    pub const CAPTURE_STATUS_NONE: c_int = 0;
    pub const CAPTURE_STATUS_ACTIVE: c_int = 1;
    pub const CAPTURE_STATUS_INVALIDATED: c_int = 2;
    pub const MEM_HANDLE_TYPE_POSIX_FD: c_int = 1;
    pub const MEM_ALLOCATION_TYPE_PINNED: c_int = 1;
    pub const MEM_ALLOCATION_TYPE_UNCACHED: c_int = 0x4000_0000;
    pub const MEM_LOCATION_TYPE_DEVICE: c_int = 1;
    pub const MEM_ACCESS_READ_WRITE: c_int = 3;
    pub const MEM_RANGE_HANDLE_DMABUF: c_int = 1;
}

/// `hipDeviceAttribute_t`: the few that are asked for.
#[allow(missing_docs, reason = "the names are HIP's")]
pub mod device_attribute {
    use core::ffi::c_int;
    pub const MULTIPROCESSOR_COUNT: c_int = 63;
    pub const MAX_SHARED_MEMORY_PER_BLOCK: c_int = 74;
    pub const WARP_SIZE: c_int = 87;
    pub const VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: c_int = 89;
    pub const WALL_CLOCK_RATE: c_int = 10017;
}

/// `hipFunction_attribute`.
#[allow(missing_docs, reason = "the names are HIP's")]
pub mod function_attribute {
    use core::ffi::c_int;
    pub const MAX_THREADS_PER_BLOCK: c_int = 0;
    pub const SHARED_SIZE_BYTES: c_int = 1;
    pub const LOCAL_SIZE_BYTES: c_int = 3;
    pub const NUM_REGS: c_int = 4;
}

/// `hipIpcMemHandle_t`: 64 opaque bytes of alignment 1.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "opaque")]
pub struct HipIpcMemHandle {
    pub reserved: [u8; 64],
}

impl core::fmt::Debug for HipIpcMemHandle {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("HipIpcMemHandle(")?;
        for byte in &self.reserved[..16] {
            write!(f, "{byte:02x}")?;
        }
        f.write_str("..)")
    }
}

/// `hipPointerAttribute_t` of ROCm 6 and later.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the fields are HIP's")]
pub struct HipPointerAttributes {
    /// One of [`memory_type`].
    pub memory_type: c_int,
    pub device: c_int,
    pub device_pointer: *mut c_void,
    pub host_pointer: *mut c_void,
    pub is_managed: c_int,
    pub allocation_flags: c_uint,
}

impl Default for HipPointerAttributes {
    fn default() -> Self {
        Self {
            memory_type: memory_type::UNREGISTERED,
            device: -1,
            device_pointer: core::ptr::null_mut(),
            host_pointer: core::ptr::null_mut(),
            is_managed: 0,
            allocation_flags: 0,
        }
    }
}

/// `hipMemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are HIP's")]
pub struct HipMemLocation {
    pub kind: c_int,
    pub id: c_int,
}

/// `hipMemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the fields are HIP's")]
pub struct HipMemAllocationProperties {
    pub kind: c_int,
    pub requested_handle_type: c_int,
    pub location: HipMemLocation,
    pub win32_handle_meta_data: *mut c_void,
    pub compression_type: u8,
    pub gpu_direct_rdma_capable: u8,
    pub usage: u16,
}

/// `hipMemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are HIP's")]
pub struct HipMemAccessDescriptor {
    pub location: HipMemLocation,
    pub flags: c_int,
}

/// `hipDeviceProp_tR0600`, seen through accessors.
///
/// The C struct has 1472 bytes in ROCm 6 and 7. The buffer is larger, so that a runtime that appends fields
/// cannot write past it. Only the fields below are read or written.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct HipDeviceProperties {
    bytes: [u8; HipDeviceProperties::BUFFER],
}

macro_rules! property_fields {
    ($($(#[$meta:meta])* $get:ident, $set:ident: $ty:ty = $offset:literal;)*) => {
        $(
            $(#[$meta])*
            pub fn $get(&self) -> $ty {
                let mut raw = [0; size_of::<$ty>()];
                raw.copy_from_slice(&self.bytes[$offset..$offset + size_of::<$ty>()]);
                <$ty>::from_ne_bytes(raw)
            }

            #[doc = concat!("Sets what [`Self::", stringify!($get), "`] returns; for runtimes that fill the table.")]
            pub fn $set(&mut self, value: $ty) {
                self.bytes[$offset..$offset + size_of::<$ty>()].copy_from_slice(&value.to_ne_bytes());
            }
        )*

        /// `(accessor, offset, size)` of every numeric field, for the ABI test.
        pub const FIELDS: &'static [(&'static str, usize, usize)] =
            &[$((stringify!($get), $offset, size_of::<$ty>())),*];
    };
}

impl HipDeviceProperties {
    /// Bytes of the buffer handed to the runtime.
    pub const BUFFER: usize = 4096;
    /// Bytes of the C struct in ROCm 6 and 7.
    pub const C_SIZE: usize = 1472;
    /// Offset of `name`, 256 bytes.
    pub const NAME_OFFSET: usize = 0;
    /// Offset of `gcnArchName`, 256 bytes. (The unversioned symbol fills an older struct with 396 here.)
    pub const ARCH_OFFSET: usize = 1160;

    /// All bytes zero.
    pub fn zeroed() -> Self {
        Self { bytes: [0; Self::BUFFER] }
    }

    property_fields! {
        /// `totalGlobalMem`, bytes.
        total_global_memory, set_total_global_memory: usize = 288;
        /// `sharedMemPerBlock`, bytes.
        shared_memory_per_block, set_shared_memory_per_block: usize = 296;
        /// `warpSize`, lanes.
        warp_size, set_warp_size: c_int = 308;
        /// `maxThreadsPerBlock`.
        max_threads_per_block, set_max_threads_per_block: c_int = 320;
        /// `clockRate`, kHz.
        clock_rate_khz, set_clock_rate_khz: c_int = 348;
        /// `major`.
        major, set_major: c_int = 360;
        /// `minor`.
        minor, set_minor: c_int = 364;
        /// `multiProcessorCount`.
        multiprocessor_count, set_multiprocessor_count: c_int = 388;
    }

    /// `name`, up to the first zero byte.
    pub fn name(&self) -> String {
        self.text(Self::NAME_OFFSET)
    }

    /// `gcnArchName`: `gfx942:sramecc+:xnack-`, `sm_90`, `host:wave1`.
    pub fn arch(&self) -> String {
        self.text(Self::ARCH_OFFSET)
    }

    /// Sets what [`Self::name`] returns, cut to 255 bytes.
    pub fn set_name(&mut self, text: &str) {
        self.set_text(Self::NAME_OFFSET, text);
    }

    /// Sets what [`Self::arch`] returns, cut to 255 bytes.
    pub fn set_arch(&mut self, text: &str) {
        self.set_text(Self::ARCH_OFFSET, text);
    }

    fn text(&self, offset: usize) -> String {
        let field = &self.bytes[offset..offset + 256];
        let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
        String::from_utf8_lossy(&field[..end]).into_owned()
    }

    fn set_text(&mut self, offset: usize, text: &str) {
        let field = &mut self.bytes[offset..offset + 256];
        field.fill(0);
        let length = text.len().min(255);
        field[..length].copy_from_slice(&text.as_bytes()[..length]);
    }
}

impl core::fmt::Debug for HipDeviceProperties {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("HipDeviceProperties")
            .field("name", &self.name())
            .field("arch", &self.arch())
            .field("multiprocessors", &self.multiprocessor_count())
            .field("warp_size", &self.warp_size())
            .finish_non_exhaustive()
    }
}
