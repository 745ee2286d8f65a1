//! The filled table.

use anabranch_hip::HipApi;

use crate::functions::DriverFunctions;
use crate::shims::{device, graph, ipc, memory, module, stream, virtual_memory};

/// Every function of the HIP table; optional ones only where the driver has what they need.
pub(crate) fn table(cuda: &DriverFunctions) -> HipApi {
    HipApi {
        hipInit: device::hipInit,
        hipDriverGetVersion: device::hipDriverGetVersion,
        hipRuntimeGetVersion: device::hipRuntimeGetVersion,
        hipGetErrorName: device::hipGetErrorName,
        hipGetErrorString: device::hipGetErrorString,
        hipGetLastError: device::hipGetLastError,
        hipGetDeviceCount: device::hipGetDeviceCount,
        hipSetDevice: device::hipSetDevice,
        hipGetDevice: device::hipGetDevice,
        hipGetDevicePropertiesR0600: device::hipGetDevicePropertiesR0600,
        hipDeviceGetAttribute: device::hipDeviceGetAttribute,
        hipDeviceGetPCIBusId: device::hipDeviceGetPCIBusId,
        hipDeviceSynchronize: device::hipDeviceSynchronize,
        hipDeviceCanAccessPeer: device::hipDeviceCanAccessPeer,
        hipDeviceEnablePeerAccess: device::hipDeviceEnablePeerAccess,
        hipMemGetInfo: memory::hipMemGetInfo,
        hipMalloc: memory::hipMalloc,
        hipFree: memory::hipFree,
        hipHostMalloc: memory::hipHostMalloc,
        hipHostFree: memory::hipHostFree,
        hipHostGetDevicePointer: memory::hipHostGetDevicePointer,
        hipHostRegister: memory::hipHostRegister,
        hipHostUnregister: memory::hipHostUnregister,
        hipMemcpy: memory::hipMemcpy,
        hipMemcpyAsync: memory::hipMemcpyAsync,
        hipMemset: memory::hipMemset,
        hipMemsetAsync: memory::hipMemsetAsync,
        hipPointerGetAttributes: memory::hipPointerGetAttributes,
        hipMemGetAddressRange: memory::hipMemGetAddressRange,
        hipIpcGetMemHandle: ipc::hipIpcGetMemHandle,
        hipIpcOpenMemHandle: ipc::hipIpcOpenMemHandle,
        hipIpcCloseMemHandle: ipc::hipIpcCloseMemHandle,
        hipStreamCreateWithFlags: stream::hipStreamCreateWithFlags,
        hipStreamCreateWithPriority: stream::hipStreamCreateWithPriority,
        hipDeviceGetStreamPriorityRange: stream::hipDeviceGetStreamPriorityRange,
        hipStreamDestroy: stream::hipStreamDestroy,
        hipStreamSynchronize: stream::hipStreamSynchronize,
        hipStreamQuery: stream::hipStreamQuery,
        hipStreamWaitEvent: stream::hipStreamWaitEvent,
        hipEventCreateWithFlags: stream::hipEventCreateWithFlags,
        hipEventDestroy: stream::hipEventDestroy,
        hipEventRecord: stream::hipEventRecord,
        hipEventSynchronize: stream::hipEventSynchronize,
        hipEventQuery: stream::hipEventQuery,
        hipEventElapsedTime: stream::hipEventElapsedTime,
        hipModuleLoadData: module::hipModuleLoadData,
        hipModuleUnload: module::hipModuleUnload,
        hipModuleGetFunction: module::hipModuleGetFunction,
        hipFuncGetAttribute: module::hipFuncGetAttribute,
        hipModuleLaunchKernel: module::hipModuleLaunchKernel,
        hipModuleOccupancyMaxActiveBlocksPerMultiprocessor:
            module::hipModuleOccupancyMaxActiveBlocksPerMultiprocessor,
        hipStreamBeginCapture: graph::hipStreamBeginCapture,
        hipStreamEndCapture: graph::hipStreamEndCapture,
        hipStreamIsCapturing: graph::hipStreamIsCapturing,
        hipGraphInstantiateWithFlags: graph::hipGraphInstantiateWithFlags,
        hipGraphLaunch: graph::hipGraphLaunch,
        hipGraphExecDestroy: graph::hipGraphExecDestroy,
        hipGraphDestroy: graph::hipGraphDestroy,
        hipExtMallocWithFlags: Some(memory::hipExtMallocWithFlags),
        hipStreamWriteValue64: cuda
            .cuStreamWriteValue64_v2
            .is_some()
            .then_some(stream::hipStreamWriteValue64),
        hipStreamWaitValue64: cuda.cuStreamWaitValue64_v2.is_some().then_some(stream::hipStreamWaitValue64),
        hipStreamGetCaptureInfo: cuda
            .cuStreamGetCaptureInfo
            .is_some()
            .then_some(graph::hipStreamGetCaptureInfo),
        hipThreadExchangeStreamCaptureMode: Some(graph::hipThreadExchangeStreamCaptureMode),
        hipEventRecordWithFlags: cuda
            .cuEventRecordWithFlags
            .is_some()
            .then_some(stream::hipEventRecordWithFlags),
        hipMemGetHandleForAddressRange: cuda
            .cuMemGetHandleForAddressRange
            .is_some()
            .then_some(virtual_memory::hipMemGetHandleForAddressRange),
        hipMemAddressReserve: Some(virtual_memory::hipMemAddressReserve),
        hipMemAddressFree: Some(virtual_memory::hipMemAddressFree),
        hipMemGetAllocationGranularity: Some(virtual_memory::hipMemGetAllocationGranularity),
        hipMemCreate: Some(virtual_memory::hipMemCreate),
        hipMemRelease: Some(virtual_memory::hipMemRelease),
        hipMemMap: Some(virtual_memory::hipMemMap),
        hipMemUnmap: Some(virtual_memory::hipMemUnmap),
        hipMemSetAccess: Some(virtual_memory::hipMemSetAccess),
        hipMemExportToShareableHandle: Some(virtual_memory::hipMemExportToShareableHandle),
        hipMemImportFromShareableHandle: Some(virtual_memory::hipMemImportFromShareableHandle),
    }
}
