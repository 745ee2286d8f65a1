//! The functions of the CUDA driver that the table is made of, under the names of their current versions.
//!
//! One list feeds the struct, the symbol names and the loader. *Required* functions exist in every driver
//! since CUDA 11.4; an *optional* one that is missing leaves the matching HIP function out of the table.

use core::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use crate::cuda::{
    CuContext, CuDevice, CuDevicePointer, CuEvent, CuFunction, CuGraph, CuGraphExec, CuIpcMemHandle,
    CuMemAccessDescriptor, CuMemAllocationProperties, CuMemHandle, CuModule, CuResult, CuStream,
};

macro_rules! driver_functions {
    (
        required { $( fn $rname:ident ( $($rarg:ident : $rty:ty),* $(,)? ); )* }
        optional { $( fn $oname:ident ( $($oarg:ident : $oty:ty),* $(,)? ); )* }
    ) => {
        /// The driver's entry points; each has the contract of its C namesake and returns a `CUresult`.
        #[allow(non_snake_case, reason = "fields carry the C names")]
        pub(crate) struct DriverFunctions {
            $( pub(crate) $rname: unsafe extern "C" fn($($rarg: $rty),*) -> CuResult, )*
            $( pub(crate) $oname: Option<unsafe extern "C" fn($($oarg: $oty),*) -> CuResult>, )*
        }

        /// Every symbol that is looked up in the CUDA driver, and whether a driver must have it.
        pub const DRIVER_SYMBOLS: &[(&str, bool)] = &[
            $( (stringify!($rname), true), )*
            $( (stringify!($oname), false), )*
        ];

        impl DriverFunctions {
            /// Resolves every function through `lookup`; the error is the first required name it lacks.
            ///
            /// # Safety
            /// Each address that `lookup` returns must be the CUDA driver's function of that name, valid for
            /// as long as the result is used.
            pub(crate) unsafe fn from_lookup(
                mut lookup: impl FnMut(&'static str) -> Option<*const c_void>,
            ) -> Result<Self, &'static str> {
                Ok(Self {
                    $( $rname: {
                        let address = lookup(stringify!($rname)).ok_or(stringify!($rname))?;
                        // SAFETY: the caller promises that the address is the function of this name, whose
                        // C signature is the one listed; data and function pointers have the same size.
                        unsafe {
                            core::mem::transmute::<
                                *const c_void,
                                unsafe extern "C" fn($($rarg: $rty),*) -> CuResult,
                            >(address)
                        }
                    }, )*
                    $( $oname: lookup(stringify!($oname)).map(|address| {
                        // SAFETY: as above.
                        unsafe {
                            core::mem::transmute::<
                                *const c_void,
                                unsafe extern "C" fn($($oarg: $oty),*) -> CuResult,
                            >(address)
                        }
                    }), )*
                })
            }
        }
    };
}

driver_functions! {
    required {
        // Initialisation, versions, devices, contexts.
        fn cuInit(flags: c_uint);
        fn cuDriverGetVersion(version: *mut c_int);
        fn cuGetErrorName(error: CuResult, text: *mut *const c_char);
        fn cuGetErrorString(error: CuResult, text: *mut *const c_char);
        fn cuDeviceGetCount(count: *mut c_int);
        fn cuDeviceGet(device: *mut CuDevice, ordinal: c_int);
        fn cuDeviceGetName(name: *mut c_char, length: c_int, device: CuDevice);
        fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CuDevice);
        fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: CuDevice);
        fn cuDeviceGetPCIBusId(id: *mut c_char, length: c_int, device: CuDevice);
        fn cuDeviceCanAccessPeer(can: *mut c_int, device: CuDevice, peer: CuDevice);
        fn cuDevicePrimaryCtxRetain(context: *mut CuContext, device: CuDevice);
        fn cuDevicePrimaryCtxGetState(device: CuDevice, flags: *mut c_uint, active: *mut c_int);
        fn cuCtxGetCurrent(context: *mut CuContext);
        fn cuCtxSetCurrent(context: CuContext);
        fn cuCtxGetDevice(device: *mut CuDevice);
        fn cuCtxSynchronize();
        fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int);
        fn cuCtxEnablePeerAccess(peer: CuContext, flags: c_uint);

        // Memory.
        fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
        fn cuMemAlloc_v2(pointer: *mut CuDevicePointer, bytes: usize);
        fn cuMemFree_v2(pointer: CuDevicePointer);
        fn cuMemHostAlloc(pointer: *mut *mut c_void, bytes: usize, flags: c_uint);
        fn cuMemFreeHost(pointer: *mut c_void);
        fn cuMemHostGetDevicePointer_v2(device: *mut CuDevicePointer, host: *mut c_void, flags: c_uint);
        fn cuMemHostRegister_v2(pointer: *mut c_void, bytes: usize, flags: c_uint);
        fn cuMemHostUnregister(pointer: *mut c_void);
        fn cuMemcpy(target: CuDevicePointer, source: CuDevicePointer, bytes: usize);
        fn cuMemcpyAsync(target: CuDevicePointer, source: CuDevicePointer, bytes: usize, stream: CuStream);
        fn cuMemsetD8Async(target: CuDevicePointer, value: u8, bytes: usize, stream: CuStream);
        fn cuPointerGetAttribute(data: *mut c_void, attribute: c_int, pointer: CuDevicePointer);
        fn cuPointerGetAttributes(
            count: c_uint, attributes: *mut c_int, data: *mut *mut c_void, pointer: CuDevicePointer,
        );
        fn cuMemGetAddressRange_v2(base: *mut CuDevicePointer, bytes: *mut usize, pointer: CuDevicePointer);
        fn cuIpcGetMemHandle(handle: *mut CuIpcMemHandle, pointer: CuDevicePointer);
        fn cuIpcOpenMemHandle_v2(pointer: *mut CuDevicePointer, handle: CuIpcMemHandle, flags: c_uint);
        fn cuIpcCloseMemHandle(pointer: CuDevicePointer);

        // Streams and events.
        fn cuStreamCreate(stream: *mut CuStream, flags: c_uint);
        fn cuStreamCreateWithPriority(stream: *mut CuStream, flags: c_uint, priority: c_int);
        fn cuStreamDestroy_v2(stream: CuStream);
        fn cuStreamSynchronize(stream: CuStream);
        fn cuStreamQuery(stream: CuStream);
        fn cuStreamWaitEvent(stream: CuStream, event: CuEvent, flags: c_uint);
        fn cuEventCreate(event: *mut CuEvent, flags: c_uint);
        fn cuEventDestroy_v2(event: CuEvent);
        fn cuEventRecord(event: CuEvent, stream: CuStream);
        fn cuEventSynchronize(event: CuEvent);
        fn cuEventQuery(event: CuEvent);
        fn cuEventElapsedTime(milliseconds: *mut f32, start: CuEvent, end: CuEvent);

        // Modules and launches.
        fn cuModuleLoadData(module: *mut CuModule, image: *const c_void);
        fn cuModuleUnload(module: CuModule);
        fn cuModuleGetFunction(function: *mut CuFunction, module: CuModule, name: *const c_char);
        fn cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: CuFunction);
        fn cuFuncSetAttribute(function: CuFunction, attribute: c_int, value: c_int);
        fn cuLaunchKernel(
            function: CuFunction,
            grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
            block_x: c_uint, block_y: c_uint, block_z: c_uint,
            shared_bytes: c_uint, stream: CuStream,
            parameters: *mut *mut c_void, extra: *mut *mut c_void,
        );
        fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
            blocks: *mut c_int, function: CuFunction, block_size: c_int, shared_bytes: usize,
        );

        // Graphs.
        fn cuStreamBeginCapture_v2(stream: CuStream, mode: c_int);
        fn cuStreamEndCapture(stream: CuStream, graph: *mut CuGraph);
        fn cuStreamIsCapturing(stream: CuStream, status: *mut c_int);
        fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int);
        fn cuGraphInstantiateWithFlags(exec: *mut CuGraphExec, graph: CuGraph, flags: c_ulonglong);
        fn cuGraphLaunch(exec: CuGraphExec, stream: CuStream);
        fn cuGraphExecDestroy(exec: CuGraphExec);
        fn cuGraphDestroy(graph: CuGraph);

        // Virtual memory.
        fn cuMemAddressReserve(
            pointer: *mut CuDevicePointer, bytes: usize, alignment: usize, address: CuDevicePointer,
            flags: c_ulonglong,
        );
        fn cuMemAddressFree(pointer: CuDevicePointer, bytes: usize);
        fn cuMemGetAllocationGranularity(
            granularity: *mut usize, properties: *const CuMemAllocationProperties, option: c_int,
        );
        fn cuMemCreate(
            handle: *mut CuMemHandle, bytes: usize, properties: *const CuMemAllocationProperties,
            flags: c_ulonglong,
        );
        fn cuMemRelease(handle: CuMemHandle);
        fn cuMemMap(
            pointer: CuDevicePointer, bytes: usize, offset: usize, handle: CuMemHandle, flags: c_ulonglong,
        );
        fn cuMemUnmap(pointer: CuDevicePointer, bytes: usize);
        fn cuMemSetAccess(
            pointer: CuDevicePointer, bytes: usize, access: *const CuMemAccessDescriptor, count: usize,
        );
        fn cuMemExportToShareableHandle(
            shareable: *mut c_void, handle: CuMemHandle, kind: c_int, flags: c_ulonglong,
        );
        fn cuMemImportFromShareableHandle(handle: *mut CuMemHandle, shareable: *mut c_void, kind: c_int);
    }
    optional {
        // CUDA 10.1, in the form without the graph; headers have named a later one since.
        fn cuStreamGetCaptureInfo(stream: CuStream, status: *mut c_int, number: *mut c_ulonglong);
        // CUDA 11.1.
        fn cuEventRecordWithFlags(event: CuEvent, stream: CuStream, flags: c_uint);
        // CUDA 12.4: loads a function now, whatever CUDA_MODULE_LOADING says.
        fn cuFuncLoad(function: CuFunction);
        // CUDA 11.7.
        fn cuMemGetHandleForAddressRange(
            handle: *mut c_void, pointer: CuDevicePointer, bytes: usize, kind: c_int, flags: c_ulonglong,
        );
        fn cuStreamWriteValue64_v2(stream: CuStream, pointer: CuDevicePointer, value: u64, flags: c_uint);
        fn cuStreamWaitValue64_v2(stream: CuStream, pointer: CuDevicePointer, value: u64, flags: c_uint);
    }
}
