//! The functions of AMD's libraries that queues need, and the structures that they take, with C names and C layouts.
//!
//! Sources, all of ROCm/rocm-systems (`projects/rocr-runtime`): `hsa.h`, `hsa_ext_amd.h` (interface 1.34), `hsakmt.h`,
//! `hsakmttypes.h`. What a C compiler makes of these headers' declarations is compared in `tests/amd_runtime.rs`.

use core::ffi::c_void;
use core::mem::{offset_of, size_of};

use libloading::os::unix::Library;

/// `hsa_status_t` or `HSAKMT_STATUS`; 0 is success in both.
pub(super) type Status = u32;

/// `hsa_agent_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Agent {
    pub(super) handle: u64,
}

/// `hsa_queue_t` for 64-bit machines.
#[repr(C)]
pub(super) struct HsaQueue {
    queue_type: u32,
    features: u32,
    pub(super) base_address: *mut c_void,
    doorbell_signal: u64,
    /// For queues of copy engines in bytes.
    pub(super) size: u32,
    reserved: u32,
    id: u64,
}

const _: () = assert!(size_of::<HsaQueue>() == 40);
const _: () = assert!(offset_of!(HsaQueue, base_address) == 8);
const _: () = assert!(offset_of!(HsaQueue, size) == 24);

/// `hsa_amd_queue_create_desc_t`, version 1, with the arm of its union for copy engines.
#[repr(C)]
pub(super) struct QueueDescriptor {
    pub(super) version: u16,
    pub(super) flags: u16,
    pub(super) engine_type: u8,
    reserved_header: [u8; 3],
    pub(super) queue_size_bytes: u32,
    pub(super) priority: u32,
    callback: *mut c_void,
    callback_data: *mut c_void,
    pub(super) queue: *mut HsaQueue,
    pub(super) sdma_engine_id: u32,
    reserved_engine: [u32; 7],
    traffic_class: u32,
    reserved: [u8; 20],
}

const _: () = assert!(size_of::<QueueDescriptor>() == 96);
const _: () = assert!(offset_of!(QueueDescriptor, queue_size_bytes) == 8);
const _: () = assert!(offset_of!(QueueDescriptor, priority) == 12);
const _: () = assert!(offset_of!(QueueDescriptor, callback) == 16);
const _: () = assert!(offset_of!(QueueDescriptor, queue) == 32);
const _: () = assert!(offset_of!(QueueDescriptor, sdma_engine_id) == 40);
const _: () = assert!(offset_of!(QueueDescriptor, traffic_class) == 72);

impl QueueDescriptor {
    /// `HSA_AMD_QUEUE_CREATE_DESC_VERSION`.
    const VERSION: u16 = 1;
    /// `HSA_AMD_QUEUE_CREATE_SYSTEM_MEM`: the ring lies in memory of the host.
    const SYSTEM_MEMORY: u16 = 0;
    /// `HSA_AMD_QUEUE_ENGINE_SDMA`.
    const SDMA: u8 = 1;
    /// `HSA_AMD_QUEUE_PRIORITY_NORMAL`. It must be one of the three; copy engines' queues get the highest whatever it says.
    const NORMAL: u32 = 1;

    pub(super) fn sdma(engine: u32, ring_bytes: u32) -> Self {
        Self {
            version: Self::VERSION,
            flags: Self::SYSTEM_MEMORY,
            engine_type: Self::SDMA,
            reserved_header: [0; 3],
            queue_size_bytes: ring_bytes,
            priority: Self::NORMAL,
            callback: core::ptr::null_mut(),
            callback_data: core::ptr::null_mut(),
            queue: core::ptr::null_mut(),
            sdma_engine_id: engine,
            reserved_engine: [0; 7],
            traffic_class: 0,
            reserved: [0; 20],
        }
    }
}

/// The first members of `hsa_amd_pointer_info_t`, which only grows; `size` says how many there are.
#[repr(C)]
pub(super) struct PointerInfo {
    pub(super) size: u32,
    kind: u32,
    pub(super) agent_base: u64,
    pub(super) host_base: u64,
    pub(super) bytes: u64,
    user_data: u64,
    agent_owner: u64,
}

const _: () = assert!(size_of::<PointerInfo>() == 48);

impl PointerInfo {
    /// An empty one. It has more members than are read, because the oldest runtimes refuse less than 40 bytes.
    pub(super) fn empty() -> Self {
        let size = size_of::<Self>() as u32;
        Self { size, kind: 0, agent_base: 0, host_base: 0, bytes: 0, user_data: 0, agent_owner: 0 }
    }
}

/// `HsaVersionInfo`.
#[derive(Default)]
#[repr(C)]
pub(super) struct VersionInfo {
    pub(super) major: u32,
    pub(super) minor: u32,
}

/// `HsaQueueResource`; `hsakmttypes.h` packs to 4 bytes. The thunk reads `error_reason`, so it is cleared before.
#[derive(Clone, Copy, Default)]
#[repr(C, packed(4))]
pub(super) struct QueueResource {
    pub(super) queue_id: u64,
    pub(super) doorbell: u64,
    pub(super) write_pointer: u64,
    pub(super) read_pointer: u64,
    error_reason: u64,
}

const _: () = assert!(size_of::<QueueResource>() == 40);

/// `HsaPointerInfo`, packed to 4 bytes.
#[derive(Clone, Copy, Default)]
#[repr(C, packed(4))]
pub(super) struct ThunkPointerInfo {
    pub(super) kind: u32,
    node: u32,
    flags: u32,
    pub(super) host_address: u64,
    pub(super) gpu_address: u64,
    pub(super) bytes: u64,
    registered_count: u32,
    pub(super) mapped_count: u32,
    registered_nodes: u64,
    mapped_nodes: u64,
    user_data: u64,
}

const _: () = assert!(size_of::<ThunkPointerInfo>() == 68);
const _: () = assert!(offset_of!(ThunkPointerInfo, gpu_address) == 20);
const _: () = assert!(offset_of!(ThunkPointerInfo, mapped_count) == 40);

/// `callback` of `hsa_iterate_agents`.
pub(super) type AgentCallback = unsafe extern "C" fn(Agent, *mut c_void) -> Status;

macro_rules! functions {
    ($(#[$meta:meta])* $name:ident { $( fn $function:ident ( $($argument:ident : $type:ty),* $(,)? ); )* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy)]
        #[allow(non_snake_case, clippy::struct_field_names, reason = "fields carry the C names")]
        pub(super) struct $name {
            $( pub(super) $function: unsafe extern "C" fn($($type),*) -> Status, )*
        }

        #[allow(non_snake_case, reason = "variables carry the C names")]
        impl $name {
            /// Finds the functions in a library, or in those that it was linked with.
            ///
            /// # Errors
            /// The names of all that are missing.
            pub(super) fn of(library: &Library) -> Result<Self, Vec<&'static str>> {
                let missing: Vec<&'static str> = [$( stringify!($function) ),*]
                    .into_iter()
                    .filter(|name| address(library, name).is_none())
                    .collect();
                $(
                    let Some($function) = address(library, stringify!($function)) else { return Err(missing) };
                )*
                Ok(Self {
                    $( $function: {
                        // SAFETY: the library is AMD's runtime, in which this name has the signature listed here (see the
                        // headers above); data and function pointers have the same size.
                        unsafe {
                            core::mem::transmute::<*const c_void, unsafe extern "C" fn($($type),*) -> Status>(
                                $function,
                            )
                        }
                    }, )*
                })
            }
        }
    };
}

fn address(library: &Library, name: &str) -> Option<*const c_void> {
    // SAFETY: the symbol is only carried as an address; `functions!` gives it its type.
    let symbol = unsafe { library.get::<*const c_void>(name.as_bytes()) };
    symbol.ok().map(|symbol| symbol.as_raw_ptr().cast_const()).filter(|address| !address.is_null())
}

functions! {
    /// `hsa.h` and `hsa_ext_amd.h`: what every version of the runtime has.
    HsaFunctions {
        fn hsa_init();
        fn hsa_shut_down();
        fn hsa_system_get_info(attribute: u32, value: *mut c_void);
        fn hsa_iterate_agents(callback: AgentCallback, data: *mut c_void);
        fn hsa_agent_get_info(agent: Agent, attribute: u32, value: *mut c_void);
        fn hsa_amd_pointer_info(
            pointer: *const c_void,
            info: *mut PointerInfo,
            allocate: *mut c_void,
            accessible_count: *mut u32,
            accessible: *mut *mut Agent,
        );
    }
}

functions! {
    /// `hsa_ext_amd.h`: queues made by descriptor, since interface 1.26.
    QueueFunctions {
        fn hsa_amd_queue_create(agent: Agent, descriptors: *mut QueueDescriptor, count: u32);
        fn hsa_amd_queue_get_info(queue: *mut HsaQueue, attribute: u32, value: *mut c_void);
        fn hsa_queue_destroy(queue: *mut HsaQueue);
    }
}

functions! {
    /// `hsakmt.h`. `HSA_QUEUE_PRIORITY` has values from -3 to 0xffffffff and therefore 64 bits; `HsaMemFlags` is a union of 32 bits and
    /// is passed as such.
    ThunkFunctions {
        fn hsaKmtOpenKFD();
        fn hsaKmtCloseKFD();
        fn hsaKmtGetVersion(version: *mut VersionInfo);
        fn hsaKmtAllocMemory(node: u32, bytes: u64, flags: u32, address: *mut *mut c_void);
        fn hsaKmtFreeMemory(address: *mut c_void, bytes: u64);
        fn hsaKmtMapMemoryToGPU(address: *mut c_void, bytes: u64, alternate: *mut u64);
        fn hsaKmtUnmapMemoryToGPU(address: *mut c_void);
        fn hsaKmtQueryPointerInfo(pointer: *const c_void, info: *mut ThunkPointerInfo);
        fn hsaKmtCreateQueueExt(
            node: u32,
            queue_type: u32,
            percentage: u32,
            priority: i64,
            engine: u32,
            ring: *mut c_void,
            ring_bytes: u64,
            event: *mut c_void,
            resource: *mut QueueResource,
        );
        fn hsaKmtDestroyQueue(queue_id: u64);
    }
}
