//! Pure translation between HIP's numbers and the driver's. No call is made here.

use core::ffi::{c_int, c_uint};

use anabranch_hip::HipError;
use anabranch_hip::types::{
    HipMemAccessDescriptor, HipMemAllocationProperties, flags as hip, memory_type as hip_memory,
};

use crate::cuda::{
    CuMemAccessDescriptor, CuMemAllocationProperties, CuMemLocation, CuResult, flags as cuda,
    memory_type as cuda_memory,
};

/// A driver result as HIP's code.
///
/// The two numberings were made equal up to 910, so a code that HIP has no name for keeps its number and can
/// be looked up in CUDA's documentation. Above that they part.
pub(crate) const fn error(result: CuResult) -> HipError {
    match result.0 {
        // CUDA_ERROR_EXTERNAL_DEVICE and CUDA_ERROR_KEY_ROTATION: HIP uses the numbers for a channel
        // descriptor and a detached stream.
        911 | 916 => HipError::UNKNOWN,
        // CUDA_ERROR_INVALID_CLUSTER_SIZE: HIP uses 912 for a texture.
        912 => HipError::INVALID_CONFIGURATION,
        code => HipError(code),
    }
}

/// `Ok` for success.
pub(crate) const fn check(result: CuResult) -> Result<(), HipError> {
    match result {
        CuResult::SUCCESS => Ok(()),
        failure => Err(error(failure)),
    }
}

/// `hipDeviceAttribute_t` to `CUdevice_attribute`, for the ones that both have.
///
/// The shared memory of a block is the opt-in maximum: every kernel is given it when its function is looked
/// up, as on AMD, where it needs no asking.
pub(crate) const fn device_attribute(attribute: c_int) -> Option<c_int> {
    Some(match attribute {
        0 => 32,          // EccEnabled
        2 => 40,          // AsyncEngineCount
        3 => 19,          // CanMapHostMemory
        4 => 91,          // CanUseHostPointerForRegisteredMem
        5 => 13,          // ClockRate, kHz
        6 => 20,          // ComputeMode
        7 => 90,          // ComputePreemptionSupported
        8 => 31,          // ConcurrentKernels
        9 => 89,          // ConcurrentManagedAccess
        10 => 95,         // CooperativeLaunch
        15 => 86,         // HostNativeAtomicSupported
        16 => 18,         // Integrated
        17 => 84,         // IsMultiGpuBoard
        18 => 17,         // KernelExecTimeout
        19 => 38,         // L2CacheSize, bytes
        23 => 75,         // ComputeCapabilityMajor
        24 => 83,         // ManagedMemory
        25 => 106,        // MaxBlocksPerMultiProcessor
        26 => 2,          // MaxBlockDimX
        27 => 3,          // MaxBlockDimY
        28 => 4,          // MaxBlockDimZ
        29 => 5,          // MaxGridDimX
        30 => 6,          // MaxGridDimY
        31 => 7,          // MaxGridDimZ
        56 => 1,          // MaxThreadsPerBlock
        57 => 39,         // MaxThreadsPerMultiProcessor
        59 => 37,         // MemoryBusWidth, bits
        60 => 36,         // MemoryClockRate, kHz
        61 => 76,         // ComputeCapabilityMinor
        63 | 10015 => 16, // MultiprocessorCount, PhysicalMultiProcessorCount
        65 => 88,         // PageableMemoryAccess
        66 => 100,        // PageableMemoryAccessUsesHostPageTables
        67 => 33,         // PciBusId
        68 => 34,         // PciDeviceId
        69 => 50,         // PciDomainId
        71 => 12,         // MaxRegistersPerBlock
        72 => 82,         // MaxRegistersPerMultiprocessor
        73 => 111,        // ReservedSharedMemPerBlock
        74 | 75 => 97,    // MaxSharedMemoryPerBlock, SharedMemPerBlockOptin, bytes
        76 | 10002 => 81, // SharedMemPerMultiprocessor, MaxSharedMemoryPerMultiprocessor, bytes
        78 => 78,         // StreamPrioritiesSupported
        83 => 9,          // TotalConstantMemory, bytes
        85 => 41,         // UnifiedAddressing
        87 => 10,         // WarpSize
        88 => 115,        // MemoryPoolsSupported
        89 => 102,        // VirtualMemoryManagementSupported
        90 => 99,         // HostRegisterSupported
        92 => 134,        // HostNumaId
        93 => 124,        // DmaBufSupported
        94 => 110,        // GPUDirectRDMAWithHipVMMSupported
        _ => return None,
    })
}

/// Flags of `hipHostMalloc`. The memory is always portable and mapped; coherence is not a choice here.
pub(crate) fn host_malloc_flags(flags: c_uint) -> Result<c_uint, HipError> {
    const NUMA_USER: c_uint = 0x2000_0000;
    const NON_COHERENT: c_uint = 0x8000_0000;
    let known = cuda::MEM_HOST_ALLOC_PORTABLE
        | cuda::MEM_HOST_ALLOC_DEVICE_MAP
        | cuda::MEM_HOST_ALLOC_WRITE_COMBINED
        | NUMA_USER
        | hip::HOST_MALLOC_COHERENT
        | NON_COHERENT;
    if flags & !known != 0 {
        return Err(HipError::INVALID_VALUE);
    }
    Ok(cuda::MEM_HOST_ALLOC_PORTABLE
        | cuda::MEM_HOST_ALLOC_DEVICE_MAP
        | flags & cuda::MEM_HOST_ALLOC_WRITE_COMBINED)
}

/// Flags of `hipHostRegister`; the range is always portable and mapped.
pub(crate) fn host_register_flags(flags: c_uint) -> Result<c_uint, HipError> {
    let passed = cuda::MEM_HOST_REGISTER_IO_MEMORY | cuda::MEM_HOST_REGISTER_READ_ONLY;
    let always = cuda::MEM_HOST_REGISTER_PORTABLE | cuda::MEM_HOST_REGISTER_DEVICE_MAP;
    if flags & !(passed | always) != 0 {
        return Err(HipError::INVALID_VALUE);
    }
    Ok(always | flags & passed)
}

/// Flags of `hipEventCreateWithFlags`; AMD's fence hints mean nothing here and are dropped.
pub(crate) fn event_flags(flags: c_uint) -> Result<c_uint, HipError> {
    const FENCE_HINTS: c_uint = 0xe000_0000;
    if flags & !(cuda::EVENT_ALL | FENCE_HINTS) != 0 {
        return Err(HipError::INVALID_VALUE);
    }
    Ok(flags & cuda::EVENT_ALL)
}

/// A masked wait of HIP as `(value, flags)` of the driver, which has no mask. `full` is the mask that selects
/// every bit of the word.
///
/// "And" and "nor" can take the mask into their value; a comparison cannot and needs the full mask.
pub(crate) fn wait_value(flags: c_uint, value: u64, mask: u64, full: u64) -> Result<(u64, c_uint), HipError> {
    match flags {
        hip::WAIT_VALUE_GREATER_OR_EQUAL if mask == full => Ok((value, cuda::STREAM_WAIT_VALUE_GEQ)),
        hip::WAIT_VALUE_EQUAL if mask == full => Ok((value, cuda::STREAM_WAIT_VALUE_EQ)),
        hip::WAIT_VALUE_AND => Ok((value & mask, cuda::STREAM_WAIT_VALUE_AND)),
        hip::WAIT_VALUE_NOR => Ok(((value | !mask) & full, cuda::STREAM_WAIT_VALUE_NOR)),
        hip::WAIT_VALUE_GREATER_OR_EQUAL | hip::WAIT_VALUE_EQUAL => Err(HipError::NOT_SUPPORTED),
        _ => Err(HipError::INVALID_VALUE),
    }
}

/// `CUmemorytype` (0 where the driver does not know the pointer) as `hipMemoryType` of ROCm 6.
pub(crate) const fn memory_type(cuda_type: u32, managed: bool) -> c_int {
    if managed {
        return hip_memory::MANAGED;
    }
    match cuda_type {
        cuda_memory::HOST => hip_memory::HOST,
        cuda_memory::DEVICE | cuda_memory::ARRAY | cuda_memory::UNIFIED => hip_memory::DEVICE,
        _ => hip_memory::UNREGISTERED,
    }
}

/// Properties of a physical allocation. Uncached memory does not exist here: it is pinned device memory, which
/// the device keeps coherent for its peers.
pub(crate) fn allocation_properties(
    properties: &HipMemAllocationProperties,
) -> Result<CuMemAllocationProperties, HipError> {
    match properties.kind {
        hip::MEM_ALLOCATION_TYPE_PINNED | hip::MEM_ALLOCATION_TYPE_UNCACHED => {}
        _ => return Err(HipError::INVALID_VALUE),
    }
    let handle_type = match properties.requested_handle_type {
        0 => cuda::MEM_HANDLE_TYPE_NONE,
        other => handle_type(other)?,
    };
    Ok(CuMemAllocationProperties {
        kind: cuda::MEM_ALLOCATION_TYPE_PINNED,
        requested_handle_types: handle_type,
        location: location(properties.location.kind, properties.location.id)?,
        win32_handle_meta_data: core::ptr::null_mut(),
        compression_type: properties.compression_type,
        gpu_direct_rdma_capable: properties.gpu_direct_rdma_capable,
        usage: properties.usage,
        reserved: [0; 4],
    })
}

/// Who may access a mapped range; access flags (none, read, read and write) have the same numbers.
pub(crate) fn access(descriptor: &HipMemAccessDescriptor) -> Result<CuMemAccessDescriptor, HipError> {
    let location = location(descriptor.location.kind, descriptor.location.id)?;
    match descriptor.flags {
        0 | 1 | hip::MEM_ACCESS_READ_WRITE => Ok(CuMemAccessDescriptor { location, flags: descriptor.flags }),
        _ => Err(HipError::INVALID_VALUE),
    }
}

/// The kind of a shareable handle: only file descriptors.
pub(crate) fn handle_type(kind: c_int) -> Result<c_int, HipError> {
    if kind == hip::MEM_HANDLE_TYPE_POSIX_FD {
        Ok(cuda::MEM_HANDLE_TYPE_POSIX_FD)
    } else {
        Err(HipError::NOT_SUPPORTED)
    }
}

/// The kind of handle for a range of addresses: only DMA-BUF.
pub(crate) fn range_handle_type(kind: c_int) -> Result<c_int, HipError> {
    if kind == hip::MEM_RANGE_HANDLE_DMABUF {
        Ok(cuda::MEM_RANGE_HANDLE_DMA_BUF)
    } else {
        Err(HipError::NOT_SUPPORTED)
    }
}

fn location(kind: c_int, id: c_int) -> Result<CuMemLocation, HipError> {
    if kind == hip::MEM_LOCATION_TYPE_DEVICE {
        Ok(CuMemLocation { kind: cuda::MEM_LOCATION_TYPE_DEVICE, id })
    } else {
        Err(HipError::INVALID_VALUE)
    }
}

#[cfg(test)]
mod tests {
    use anabranch_hip::types::HipMemLocation;

    use super::*;

    #[test]
    fn named_errors_keep_their_number_and_others_do_not_get_a_wrong_name() {
        // Pairs of CUDA's numbers and HIP's names, from the two public enums.
        for (cuda, hip) in [
            (1, HipError::INVALID_VALUE),
            (2, HipError::OUT_OF_MEMORY),
            (100, HipError::NO_DEVICE),
            (209, HipError::NO_BINARY_FOR_GPU),
            (214, HipError::ECC_NOT_CORRECTABLE),
            (400, HipError::INVALID_HANDLE),
            (500, HipError::NOT_FOUND),
            (600, HipError::NOT_READY),
            (700, HipError::ILLEGAL_ADDRESS),
            (704, HipError::PEER_ACCESS_ALREADY_ENABLED),
            (709, HipError::CONTEXT_IS_DESTROYED),
            (719, HipError::LAUNCH_FAILURE),
            (801, HipError::NOT_SUPPORTED),
            (900, HipError::STREAM_CAPTURE_UNSUPPORTED),
            (908, HipError::STREAM_CAPTURE_WRONG_THREAD),
            (910, HipError::GRAPH_EXEC_UPDATE_FAILURE),
            (911, HipError::UNKNOWN),
            (912, HipError::INVALID_CONFIGURATION),
            (916, HipError::UNKNOWN),
            (999, HipError::UNKNOWN),
        ] {
            assert_eq!(error(CuResult(cuda)), hip, "{cuda}");
        }
        assert_eq!(error(CuResult(716)).0, 716);
        assert_eq!(error(CuResult(716)).name(), "hipError(unlisted)");
        assert_eq!(check(CuResult::SUCCESS), Ok(()));
    }

    #[test]
    fn attributes_that_the_crates_above_ask_for_exist() {
        use anabranch_hip::types::device_attribute as hip;

        use crate::cuda::device_attribute as cuda;
        assert_eq!(device_attribute(hip::MULTIPROCESSOR_COUNT), Some(cuda::MULTIPROCESSOR_COUNT));
        assert_eq!(device_attribute(hip::WARP_SIZE), Some(cuda::WARP_SIZE));
        assert_eq!(
            device_attribute(hip::MAX_SHARED_MEMORY_PER_BLOCK),
            Some(cuda::MAX_SHARED_MEMORY_PER_BLOCK_OPT_IN)
        );
        assert_eq!(device_attribute(64), None);
    }

    #[test]
    fn host_memory_is_always_portable_and_mapped() {
        assert_eq!(host_malloc_flags(0), Ok(3));
        assert_eq!(host_malloc_flags(hip::HOST_MALLOC_COHERENT | 4), Ok(7));
        assert_eq!(host_malloc_flags(0x100), Err(HipError::INVALID_VALUE));
        assert_eq!(host_register_flags(0), Ok(3));
        assert_eq!(host_register_flags(4), Ok(7));
        assert_eq!(host_register_flags(0x10), Err(HipError::INVALID_VALUE));
        assert_eq!(event_flags(hip::EVENT_DISABLE_TIMING | 0x8000_0000), Ok(2));
        assert_eq!(event_flags(8), Err(HipError::INVALID_VALUE));
    }

    #[test]
    fn a_masked_wait_is_folded_into_the_value_or_refused() {
        let full = u64::from(u32::MAX);
        assert_eq!(wait_value(0, 7, full, full), Ok((7, 0)));
        assert_eq!(wait_value(1, 7, full, full), Ok((7, 1)));
        assert_eq!(wait_value(0, 7, 0xff, full), Err(HipError::NOT_SUPPORTED));
        assert_eq!(wait_value(1, 7, 0xff, full), Err(HipError::NOT_SUPPORTED));
        assert_eq!(wait_value(4, 7, full, full), Err(HipError::INVALID_VALUE));
        // The folded conditions agree with the masked ones on every byte.
        for word in 0..=255_u64 {
            for (value, mask) in [(0x0f, 0x3c), (0xff, 0x01), (0x00, 0xf0), (0x81, 0xff)] {
                let (and, _) = wait_value(2, value, mask, 0xff).unwrap();
                assert_eq!(word & and != 0, word & mask & value != 0);
                let (nor, _) = wait_value(3, value, mask, 0xff).unwrap();
                assert_eq!(!(word | nor) & 0xff != 0, !(word | value) & mask & 0xff != 0);
            }
        }
    }

    #[test]
    fn memory_types_take_the_numbering_of_rocm_6() {
        assert_eq!(memory_type(0, false), hip_memory::UNREGISTERED);
        assert_eq!(memory_type(1, false), hip_memory::HOST);
        assert_eq!(memory_type(2, false), hip_memory::DEVICE);
        assert_eq!(memory_type(2, true), hip_memory::MANAGED);
    }

    #[test]
    fn uncached_allocations_become_pinned_ones() {
        let mut properties = HipMemAllocationProperties {
            kind: hip::MEM_ALLOCATION_TYPE_UNCACHED,
            requested_handle_type: hip::MEM_HANDLE_TYPE_POSIX_FD,
            location: HipMemLocation { kind: hip::MEM_LOCATION_TYPE_DEVICE, id: 3 },
            win32_handle_meta_data: core::ptr::null_mut(),
            compression_type: 0,
            gpu_direct_rdma_capable: 1,
            usage: 0,
        };
        let translated = allocation_properties(&properties).unwrap();
        assert_eq!((translated.kind, translated.requested_handle_types), (1, 1));
        assert_eq!(translated.location, CuMemLocation { kind: 1, id: 3 });
        assert_eq!(translated.gpu_direct_rdma_capable, 1);
        properties.kind = 2;
        assert_eq!(allocation_properties(&properties).unwrap_err(), HipError::INVALID_VALUE);
        let descriptor = HipMemAccessDescriptor { location: properties.location, flags: 3 };
        assert_eq!(access(&descriptor).unwrap().flags, 3);
        assert_eq!(access(&HipMemAccessDescriptor { flags: 2, ..descriptor }), Err(HipError::INVALID_VALUE));
    }
}
