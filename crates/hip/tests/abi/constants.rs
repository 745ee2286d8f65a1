//! Enum values, flags and attributes.

use anabranch_hip::types;

use crate::abi::{Old, new, old};

/// One constant: `module::NAME` of ours, and what the two witnesses say.
#[derive(Clone, Copy)]
struct Row {
    module: &'static str,
    name: &'static str,
    ours: i64,
    new: i64,
    old: Old<i64>,
}

macro_rules! old {
    (same $($path:ident)::+) => { Old::Same(old::$($path)::+ as i64) };
    (was $value:literal as $($path:ident)::+) => {
        Old::Differs { said: old::$($path)::+ as i64, expected: $value }
    };
    (absent) => { Old::Absent };
}

/// Each line: our name, the new witness's name, and in brackets the old witness's: `same` value, `was` another value,
/// or `absent`.
macro_rules! rows {
    ($($module:ident { $($name:ident = $new:ident [$($old:tt)+];)* })*) => {
        vec![$($(Row {
            module: stringify!($module),
            name: stringify!($name),
            ours: types::$module::$name as i64,
            new: new::$new as i64,
            old: old!($($old)+),
        },)*)*]
    };
}

#[rustfmt::skip]
#[expect(clippy::cast_lossless, reason = "integers of several types and enums alike")]
fn rows() -> Vec<Row> {
    rows! {
        memcpy_kind {
            HOST_TO_HOST = hipMemcpyKind_hipMemcpyHostToHost [same hipMemcpyKind::hipMemcpyHostToHost];
            HOST_TO_DEVICE = hipMemcpyKind_hipMemcpyHostToDevice [same hipMemcpyKind::hipMemcpyHostToDevice];
            DEVICE_TO_HOST = hipMemcpyKind_hipMemcpyDeviceToHost [same hipMemcpyKind::hipMemcpyDeviceToHost];
            DEVICE_TO_DEVICE = hipMemcpyKind_hipMemcpyDeviceToDevice [same hipMemcpyKind::hipMemcpyDeviceToDevice];
            DEFAULT = hipMemcpyKind_hipMemcpyDefault [same hipMemcpyKind::hipMemcpyDefault];
        }
        // Renumbered in ROCm 6, after CUDA.
        memory_type {
            UNREGISTERED = hipMemoryType_hipMemoryTypeUnregistered [absent];
            HOST = hipMemoryType_hipMemoryTypeHost [was 0 as hipMemoryType::hipMemoryTypeHost];
            DEVICE = hipMemoryType_hipMemoryTypeDevice [was 1 as hipMemoryType::hipMemoryTypeDevice];
            MANAGED = hipMemoryType_hipMemoryTypeManaged [was 4 as hipMemoryType::hipMemoryTypeManaged];
        }
        flags {
            STREAM_NON_BLOCKING = hipStreamNonBlocking [same hipStreamNonBlocking];
            EVENT_DEFAULT = hipEventDefault [same hipEventDefault];
            EVENT_DISABLE_TIMING = hipEventDisableTiming [same hipEventDisableTiming];
            EVENT_RECORD_EXTERNAL = hipEventRecordExternal [absent];
            EVENT_WAIT_EXTERNAL = hipEventWaitExternal [absent];
            HOST_MALLOC_PORTABLE = hipHostMallocPortable [same hipHostMallocPortable];
            HOST_MALLOC_MAPPED = hipHostMallocMapped [same hipHostMallocMapped];
            HOST_MALLOC_COHERENT = hipHostMallocCoherent [same hipHostMallocCoherent];
            HOST_REGISTER_PORTABLE = hipHostRegisterPortable [same hipHostRegisterPortable];
            HOST_REGISTER_MAPPED = hipHostRegisterMapped [same hipHostRegisterMapped];
            DEVICE_MALLOC_FINE_GRAINED = hipDeviceMallocFinegrained [same hipDeviceMallocFinegrained];
            DEVICE_MALLOC_UNCACHED = hipDeviceMallocUncached [absent];
            // 0 in 5.4, 1 (CUDA's value) since.
            IPC_LAZY_ENABLE_PEER_ACCESS = hipIpcMemLazyEnablePeerAccess [was 0 as hipIpcMemLazyEnablePeerAccess];
            WAIT_VALUE_GREATER_OR_EQUAL = hipStreamWaitValueGte [same hipStreamWaitValueGte];
            WAIT_VALUE_EQUAL = hipStreamWaitValueEq [same hipStreamWaitValueEq];
            WAIT_VALUE_AND = hipStreamWaitValueAnd [same hipStreamWaitValueAnd];
            WAIT_VALUE_NOR = hipStreamWaitValueNor [same hipStreamWaitValueNor];
            CAPTURE_MODE_GLOBAL = hipStreamCaptureMode_hipStreamCaptureModeGlobal
                [same hipStreamCaptureMode::hipStreamCaptureModeGlobal];
            CAPTURE_MODE_THREAD_LOCAL = hipStreamCaptureMode_hipStreamCaptureModeThreadLocal
                [same hipStreamCaptureMode::hipStreamCaptureModeThreadLocal];
            CAPTURE_MODE_RELAXED = hipStreamCaptureMode_hipStreamCaptureModeRelaxed
                [same hipStreamCaptureMode::hipStreamCaptureModeRelaxed];
            CAPTURE_STATUS_NONE = hipStreamCaptureStatus_hipStreamCaptureStatusNone
                [same hipStreamCaptureStatus::hipStreamCaptureStatusNone];
            CAPTURE_STATUS_ACTIVE = hipStreamCaptureStatus_hipStreamCaptureStatusActive
                [same hipStreamCaptureStatus::hipStreamCaptureStatusActive];
            CAPTURE_STATUS_INVALIDATED = hipStreamCaptureStatus_hipStreamCaptureStatusInvalidated
                [same hipStreamCaptureStatus::hipStreamCaptureStatusInvalidated];
            MEM_HANDLE_TYPE_POSIX_FD = hipMemAllocationHandleType_hipMemHandleTypePosixFileDescriptor
                [same hipMemAllocationHandleType::hipMemHandleTypePosixFileDescriptor];
            MEM_ALLOCATION_TYPE_PINNED = hipMemAllocationType_hipMemAllocationTypePinned
                [same hipMemAllocationType::hipMemAllocationTypePinned];
            MEM_ALLOCATION_TYPE_UNCACHED = hipMemAllocationType_hipMemAllocationTypeUncached [absent];
            MEM_LOCATION_TYPE_DEVICE = hipMemLocationType_hipMemLocationTypeDevice
                [same hipMemLocationType::hipMemLocationTypeDevice];
            MEM_ACCESS_READ_WRITE = hipMemAccessFlags_hipMemAccessFlagsProtReadWrite
                [same hipMemAccessFlags::hipMemAccessFlagsProtReadWrite];
            MEM_RANGE_HANDLE_DMABUF = hipMemRangeHandleType_hipMemRangeHandleTypeDmaBufFd [absent];
        }
        device_attribute {
            MULTIPROCESSOR_COUNT = hipDeviceAttribute_t_hipDeviceAttributeMultiprocessorCount
                [same hipDeviceAttribute_t::hipDeviceAttributeMultiprocessorCount];
            MAX_SHARED_MEMORY_PER_BLOCK = hipDeviceAttribute_t_hipDeviceAttributeMaxSharedMemoryPerBlock
                [same hipDeviceAttribute_t::hipDeviceAttributeMaxSharedMemoryPerBlock];
            WARP_SIZE = hipDeviceAttribute_t_hipDeviceAttributeWarpSize
                [same hipDeviceAttribute_t::hipDeviceAttributeWarpSize];
            VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED =
                hipDeviceAttribute_t_hipDeviceAttributeVirtualMemoryManagementSupported
                [same hipDeviceAttribute_t::hipDeviceAttributeVirtualMemoryManagementSupported];
            WALL_CLOCK_RATE = hipDeviceAttribute_t_hipDeviceAttributeWallClockRate
                [same hipDeviceAttribute_t::hipDeviceAttributeWallClockRate];
        }
        function_attribute {
            MAX_THREADS_PER_BLOCK = hipFunction_attribute_HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
                [same hipFunction_attribute::HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK];
            SHARED_SIZE_BYTES = hipFunction_attribute_HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
                [same hipFunction_attribute::HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES];
            LOCAL_SIZE_BYTES = hipFunction_attribute_HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES
                [same hipFunction_attribute::HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES];
            NUM_REGS = hipFunction_attribute_HIP_FUNC_ATTRIBUTE_NUM_REGS
                [same hipFunction_attribute::HIP_FUNC_ATTRIBUTE_NUM_REGS];
        }
    }
}

fn differences(rows: &[Row]) -> Vec<String> {
    let mut found = Vec::new();
    for Row { module, name, ours, new, old } in rows {
        if ours != new {
            found.push(format!("{module}::{name}: {ours} here, {new} in ROCm 7"));
        }
        match old {
            Old::Same(value) if value != ours => {
                found.push(format!("{module}::{name}: {ours} here, {value} in 5.4"));
            }
            Old::Differs { said, expected } if said != expected || said == ours => {
                found.push(format!("{module}::{name}: {ours} here, {said} in 5.4, not {expected}"));
            }
            _ => {}
        }
    }
    found
}

#[test]
fn constants_agree_with_both_witnesses_but_for_the_listed_differences() {
    assert_eq!(differences(&rows()), Vec::<String>::new());
}

/// Reads the crate's own source: macros cannot list a module's items.
#[test]
fn every_constant_of_the_modules_is_compared() {
    let mut module = "";
    let mut declared = Vec::new();
    for line in include_str!("../../src/types.rs").lines() {
        if let Some(rest) = line.strip_prefix("pub mod ") {
            module = rest.trim_end_matches(" {");
        } else if line == "}" {
            module = "";
        } else if let Some(rest) = line.strip_prefix("    pub const ").filter(|_| !module.is_empty()) {
            declared.push((module, rest.split(':').next().unwrap_or_default()));
        }
    }
    let compared: Vec<_> = rows().iter().map(|row| (row.module, row.name)).collect();
    assert_eq!(compared, declared, "in the order of types.rs");
}

#[test]
fn wrong_values_and_unlisted_differences_are_found() {
    let right = Row { module: "m", name: "N", ours: 1, new: 1, old: Old::Same(1) };
    assert!(differences(&[right, Row { old: Old::Absent, ..right }]).is_empty());
    assert_eq!(differences(&[Row { new: 2, ..right }]), ["m::N: 1 here, 2 in ROCm 7"]);
    assert_eq!(differences(&[Row { old: Old::Same(0), ..right }]), ["m::N: 1 here, 0 in 5.4"]);
    let listed = |said| Row { old: Old::Differs { said, expected: 0 }, ..right };
    assert!(differences(&[listed(0)]).is_empty());
    assert_eq!(differences(&[listed(3)]), ["m::N: 1 here, 3 in 5.4, not 0"]);
    assert_eq!(differences(&[listed(1)]), ["m::N: 1 here, 1 in 5.4, not 0"]);
}
