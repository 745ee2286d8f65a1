//! The functions of the table: `extern "C"` shims that find the calling thread's machine, check what they were
//! given and return a code. They never unwind.
//!
//! Each has the contract of its HIP namesake; where this machine does more or less, the function says so.
//! `SAFETY` comments speak of "the out pointer": HIP's contract is that a pointer through which a function
//! returns something is null (an error here) or valid for that write.

mod binding;
mod current;
mod device;
mod graph;
mod memory;
mod module;
mod stream;
mod transfer;
mod virtual_memory;

use anabranch_hip::{HipApi, HipError};

/// Writes through an out pointer.
///
/// # Safety
/// `target` is null or valid for the write.
unsafe fn give<T>(target: *mut T, value: T) -> Result<(), HipError> {
    if target.is_null() {
        return Err(HipError::INVALID_VALUE);
    }
    // SAFETY: not null, hence valid by the caller's word.
    unsafe { target.write(value) };
    Ok(())
}

/// The table of this machine. All machines share the functions; which machine a call is for is the thread's.
pub(crate) fn table() -> HipApi {
    HipApi {
        hipInit: device::init,
        hipDriverGetVersion: device::version,
        hipRuntimeGetVersion: device::version,
        hipGetErrorName: device::error_name,
        hipGetErrorString: device::error_name,
        hipGetLastError: device::last_error,
        hipGetDeviceCount: device::count,
        hipSetDevice: device::set,
        hipGetDevice: device::get,
        hipGetDevicePropertiesR0600: device::properties,
        hipDeviceGetAttribute: device::attribute,
        hipDeviceGetPCIBusId: device::pci_bus_id,
        hipDeviceSynchronize: device::synchronize,
        hipDeviceCanAccessPeer: device::can_access_peer,
        hipDeviceEnablePeerAccess: device::enable_peer_access,
        hipMemGetInfo: memory::info,
        hipMalloc: memory::malloc,
        hipFree: memory::free,
        hipHostMalloc: memory::host_malloc,
        hipHostFree: memory::host_free,
        hipHostGetDevicePointer: memory::host_device_pointer,
        hipHostRegister: memory::host_register,
        hipHostUnregister: memory::host_unregister,
        hipMemcpy: transfer::copy,
        hipMemcpyAsync: transfer::copy_async,
        hipMemset: transfer::fill,
        hipMemsetAsync: transfer::fill_async,
        hipPointerGetAttributes: memory::pointer_attributes,
        hipMemGetAddressRange: memory::address_range,
        hipIpcGetMemHandle: memory::ipc_get,
        hipIpcOpenMemHandle: memory::ipc_open,
        hipIpcCloseMemHandle: memory::ipc_close,
        hipStreamCreateWithFlags: stream::create,
        hipStreamCreateWithPriority: stream::create_with_priority,
        hipDeviceGetStreamPriorityRange: stream::priority_range,
        hipStreamDestroy: stream::destroy,
        hipStreamSynchronize: stream::synchronize,
        hipStreamQuery: stream::query,
        hipStreamWaitEvent: stream::wait_event,
        hipEventCreateWithFlags: stream::event_create,
        hipEventDestroy: stream::event_destroy,
        hipEventRecord: stream::event_record,
        hipEventSynchronize: stream::event_synchronize,
        hipEventQuery: stream::event_query,
        hipEventElapsedTime: stream::event_elapsed,
        hipModuleLoadData: module::load,
        hipModuleUnload: module::unload,
        hipModuleGetFunction: module::function,
        hipFuncGetAttribute: module::attribute,
        hipModuleLaunchKernel: module::launch,
        hipModuleOccupancyMaxActiveBlocksPerMultiprocessor: module::occupancy,
        hipStreamBeginCapture: graph::begin,
        hipStreamEndCapture: graph::end,
        hipStreamIsCapturing: graph::is_capturing,
        hipGraphInstantiateWithFlags: graph::instantiate,
        hipGraphLaunch: graph::launch,
        hipGraphExecDestroy: graph::destroy_executable,
        hipGraphDestroy: graph::destroy,
        hipExtMallocWithFlags: Some(memory::malloc_with_flags),
        hipStreamWriteValue64: Some(transfer::write_value64),
        hipStreamWaitValue64: Some(transfer::wait_value64),
        hipStreamGetCaptureInfo: Some(graph::capture_info),
        // A capture refuses nothing here.
        hipThreadExchangeStreamCaptureMode: None,
        hipEventRecordWithFlags: Some(stream::event_record_with_flags),
        // There is no dma-buf behind this memory.
        hipMemGetHandleForAddressRange: None,
        hipMemAddressReserve: Some(virtual_memory::reserve),
        hipMemAddressFree: Some(virtual_memory::free),
        hipMemGetAllocationGranularity: Some(virtual_memory::granularity),
        hipMemCreate: Some(virtual_memory::create),
        hipMemRelease: Some(virtual_memory::release),
        hipMemMap: Some(virtual_memory::map),
        hipMemUnmap: Some(virtual_memory::unmap),
        hipMemSetAccess: Some(virtual_memory::set_access),
        hipMemExportToShareableHandle: Some(virtual_memory::export),
        hipMemImportFromShareableHandle: Some(virtual_memory::import),
    }
}
