//! The function table: every HIP function that the workspace calls, named and typed as in `hip_runtime_api.h`.
//!
//! One list feeds the struct, the list of symbol names (which `doctor` prints) and the loader, so that they
//! cannot disagree. A *required* function is present in every supported runtime; an *optional* one is a
//! capability, and its absence is asked for, never guessed.

use core::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use crate::types::{
    HipDeviceProperties, HipError, HipEvent, HipFunction, HipGraph, HipGraphExec, HipIpcMemHandle,
    HipMemAccessDescriptor, HipMemAllocationProperties, HipMemGenericAllocationHandle, HipModule,
    HipPointerAttributes, HipStream,
};

macro_rules! hip_table {
    (
        required { $( $(#[$rmeta:meta])* fn $rname:ident ( $($rarg:ident : $rty:ty),* $(,)? ) -> $rret:ty; )* }
        optional { $( $(#[$ometa:meta])* fn $oname:ident ( $($oarg:ident : $oty:ty),* $(,)? ) -> $oret:ty; )* }
    ) => {
        /// The HIP runtime as a table of functions. Field names are the C names, unchanged, so that a reader can
        /// look each one up in AMD's documentation.
        ///
        /// The functions are unsafe to call: each has the contract of its C namesake.
        ///
        /// `hipMemcpy`, `hipMemset` and `hipDeviceSynchronize` are here for tests of runtimes. Nothing else calls them, which a test
        /// (`dev/repo/tests/synchronisations.rs`) holds: beside a capture of any thread HIP refuses them and invalidates the capture.
        #[derive(Clone, Copy)]
        #[allow(non_snake_case, reason = "fields carry the C names")]
        #[allow(missing_docs, reason = "each field is documented by HIP under the same name")]
        pub struct HipApi {
            $( $(#[$rmeta])* pub $rname: unsafe extern "C" fn($($rarg: $rty),*) -> $rret, )*
            $( $(#[$ometa])* pub $oname: Option<unsafe extern "C" fn($($oarg: $oty),*) -> $oret>, )*
        }

        impl HipApi {
            /// Every symbol of the table, and whether a runtime must have it.
            pub const SYMBOLS: &'static [(&'static str, bool)] = &[
                $( (stringify!($rname), true), )*
                $( (stringify!($oname), false), )*
            ];

            /// Fills the table from a lookup of symbols by name.
            ///
            /// # Errors
            /// The name of the first required symbol that `lookup` does not know.
            ///
            /// # Safety
            /// Each address that `lookup` returns must be a function with the C signature of the name asked
            /// for, valid for as long as the table is used.
            pub unsafe fn from_lookup(
                mut lookup: impl FnMut(&'static str) -> Option<*const c_void>,
            ) -> Result<Self, &'static str> {
                Ok(Self {
                    $( $rname: {
                        let address = lookup(stringify!($rname)).ok_or(stringify!($rname))?;
                        // SAFETY: the caller promises that the address is a function of this signature;
                        // data and function pointers have the same size on every supported target.
                        unsafe {
                            core::mem::transmute::<
                                *const c_void,
                                unsafe extern "C" fn($($rarg: $rty),*) -> $rret,
                            >(address)
                        }
                    }, )*
                    $( $oname: lookup(stringify!($oname)).map(|address| {
                        // SAFETY: as above.
                        unsafe {
                            core::mem::transmute::<
                                *const c_void,
                                unsafe extern "C" fn($($oarg: $oty),*) -> $oret,
                            >(address)
                        }
                    }), )*
                })
            }

            /// The optional functions, and whether this runtime has each.
            pub fn optional(&self) -> Vec<(&'static str, bool)> {
                vec![ $( (stringify!($oname), self.$oname.is_some()), )* ]
            }
        }
    };
}

hip_table! {
    required {
        // Initialisation, versions, devices.
        fn hipInit(flags: c_uint) -> HipError;
        fn hipDriverGetVersion(version: *mut c_int) -> HipError;
        fn hipRuntimeGetVersion(version: *mut c_int) -> HipError;
        fn hipGetErrorName(error: HipError) -> *const c_char;
        fn hipGetErrorString(error: HipError) -> *const c_char;
        fn hipGetLastError() -> HipError;
        fn hipGetDeviceCount(count: *mut c_int) -> HipError;
        fn hipSetDevice(device: c_int) -> HipError;
        fn hipGetDevice(device: *mut c_int) -> HipError;
        fn hipGetDevicePropertiesR0600(properties: *mut HipDeviceProperties, device: c_int) -> HipError;
        fn hipDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) -> HipError;
        fn hipDeviceGetPCIBusId(id: *mut c_char, length: c_int, device: c_int) -> HipError;
        fn hipDeviceSynchronize() -> HipError;
        fn hipDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) -> HipError;
        fn hipDeviceEnablePeerAccess(peer: c_int, flags: c_uint) -> HipError;

        // Memory.
        fn hipMemGetInfo(free: *mut usize, total: *mut usize) -> HipError;
        fn hipMalloc(pointer: *mut *mut c_void, bytes: usize) -> HipError;
        fn hipFree(pointer: *mut c_void) -> HipError;
        fn hipHostMalloc(pointer: *mut *mut c_void, bytes: usize, flags: c_uint) -> HipError;
        fn hipHostFree(pointer: *mut c_void) -> HipError;
        fn hipHostGetDevicePointer(device: *mut *mut c_void, host: *mut c_void, flags: c_uint) -> HipError;
        fn hipHostRegister(pointer: *mut c_void, bytes: usize, flags: c_uint) -> HipError;
        fn hipHostUnregister(pointer: *mut c_void) -> HipError;
        fn hipMemcpy(target: *mut c_void, source: *const c_void, bytes: usize, kind: c_int) -> HipError;
        fn hipMemcpyAsync(
            target: *mut c_void, source: *const c_void, bytes: usize, kind: c_int, stream: HipStream,
        ) -> HipError;
        fn hipMemset(target: *mut c_void, value: c_int, bytes: usize) -> HipError;
        fn hipMemsetAsync(target: *mut c_void, value: c_int, bytes: usize, stream: HipStream) -> HipError;
        fn hipPointerGetAttributes(attributes: *mut HipPointerAttributes, pointer: *const c_void) -> HipError;
        fn hipMemGetAddressRange(base: *mut *mut c_void, bytes: *mut usize, pointer: *mut c_void) -> HipError;
        fn hipIpcGetMemHandle(handle: *mut HipIpcMemHandle, pointer: *mut c_void) -> HipError;
        fn hipIpcOpenMemHandle(pointer: *mut *mut c_void, handle: HipIpcMemHandle, flags: c_uint) -> HipError;
        fn hipIpcCloseMemHandle(pointer: *mut c_void) -> HipError;

        // Streams and events.
        fn hipStreamCreateWithFlags(stream: *mut HipStream, flags: c_uint) -> HipError;
        fn hipStreamCreateWithPriority(stream: *mut HipStream, flags: c_uint, priority: c_int) -> HipError;
        fn hipDeviceGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) -> HipError;
        fn hipStreamDestroy(stream: HipStream) -> HipError;
        fn hipStreamSynchronize(stream: HipStream) -> HipError;
        fn hipStreamQuery(stream: HipStream) -> HipError;
        fn hipStreamWaitEvent(stream: HipStream, event: HipEvent, flags: c_uint) -> HipError;
        fn hipEventCreateWithFlags(event: *mut HipEvent, flags: c_uint) -> HipError;
        fn hipEventDestroy(event: HipEvent) -> HipError;
        fn hipEventRecord(event: HipEvent, stream: HipStream) -> HipError;
        fn hipEventSynchronize(event: HipEvent) -> HipError;
        fn hipEventQuery(event: HipEvent) -> HipError;
        fn hipEventElapsedTime(milliseconds: *mut f32, start: HipEvent, end: HipEvent) -> HipError;

        // Modules and launches.
        fn hipModuleLoadData(module: *mut HipModule, image: *const c_void) -> HipError;
        fn hipModuleUnload(module: HipModule) -> HipError;
        fn hipModuleGetFunction(function: *mut HipFunction, module: HipModule, name: *const c_char) -> HipError;
        fn hipFuncGetAttribute(value: *mut c_int, attribute: c_int, function: HipFunction) -> HipError;
        fn hipModuleLaunchKernel(
            function: HipFunction,
            grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
            block_x: c_uint, block_y: c_uint, block_z: c_uint,
            local_bytes: c_uint, stream: HipStream,
            parameters: *mut *mut c_void, extra: *mut *mut c_void,
        ) -> HipError;
        fn hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(
            blocks: *mut c_int, function: HipFunction, block_size: c_int, local_bytes: usize,
        ) -> HipError;

        // Graphs.
        fn hipStreamBeginCapture(stream: HipStream, mode: c_int) -> HipError;
        fn hipStreamEndCapture(stream: HipStream, graph: *mut HipGraph) -> HipError;
        fn hipStreamIsCapturing(stream: HipStream, status: *mut c_int) -> HipError;
        fn hipGraphInstantiateWithFlags(exec: *mut HipGraphExec, graph: HipGraph, flags: c_ulonglong) -> HipError;
        fn hipGraphLaunch(exec: HipGraphExec, stream: HipStream) -> HipError;
        fn hipGraphExecDestroy(exec: HipGraphExec) -> HipError;
        fn hipGraphDestroy(graph: HipGraph) -> HipError;
    }
    optional {
        /// Uncached or fine-grained device memory; where it is absent `hipMalloc` memory is used.
        fn hipExtMallocWithFlags(pointer: *mut *mut c_void, bytes: usize, flags: c_uint) -> HipError;
        fn hipStreamWriteValue64(stream: HipStream, pointer: *mut c_void, value: u64, flags: c_uint) -> HipError;
        fn hipStreamWaitValue64(
            stream: HipStream, pointer: *mut c_void, value: u64, flags: c_uint, mask: u64,
        ) -> HipError;
        fn hipStreamGetCaptureInfo(stream: HipStream, status: *mut c_int, id: *mut c_ulonglong) -> HipError;
        fn hipThreadExchangeStreamCaptureMode(mode: *mut c_int) -> HipError;
        /// Since ROCm 6.4.2.
        fn hipEventRecordWithFlags(event: HipEvent, stream: HipStream, flags: c_uint) -> HipError;
        fn hipMemGetHandleForAddressRange(
            handle: *mut c_void, pointer: *mut c_void, bytes: usize, kind: c_int, flags: c_ulonglong,
        ) -> HipError;

        // Virtual memory.
        fn hipMemAddressReserve(
            pointer: *mut *mut c_void, bytes: usize, alignment: usize, address: *mut c_void, flags: c_ulonglong,
        ) -> HipError;
        fn hipMemAddressFree(pointer: *mut c_void, bytes: usize) -> HipError;
        fn hipMemGetAllocationGranularity(
            granularity: *mut usize, properties: *const HipMemAllocationProperties, option: c_int,
        ) -> HipError;
        fn hipMemCreate(
            handle: *mut HipMemGenericAllocationHandle, bytes: usize,
            properties: *const HipMemAllocationProperties, flags: c_ulonglong,
        ) -> HipError;
        fn hipMemRelease(handle: HipMemGenericAllocationHandle) -> HipError;
        fn hipMemMap(
            pointer: *mut c_void, bytes: usize, offset: usize,
            handle: HipMemGenericAllocationHandle, flags: c_ulonglong,
        ) -> HipError;
        fn hipMemUnmap(pointer: *mut c_void, bytes: usize) -> HipError;
        fn hipMemSetAccess(
            pointer: *mut c_void, bytes: usize, access: *const HipMemAccessDescriptor, count: usize,
        ) -> HipError;
        fn hipMemExportToShareableHandle(
            shareable: *mut c_void, handle: HipMemGenericAllocationHandle, kind: c_int, flags: c_ulonglong,
        ) -> HipError;
        fn hipMemImportFromShareableHandle(
            handle: *mut HipMemGenericAllocationHandle, shareable: *mut c_void, kind: c_int,
        ) -> HipError;
    }
}

impl core::fmt::Debug for HipApi {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let absent: Vec<_> =
            self.optional().into_iter().filter(|(_, has)| !has).map(|(name, _)| name).collect();
        f.debug_struct("HipApi").field("absent", &absent).finish_non_exhaustive()
    }
}
