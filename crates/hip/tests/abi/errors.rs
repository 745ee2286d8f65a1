//! Error codes and their names.

use anabranch_hip::HipError;

use crate::abi::{new, old};

/// One code: ours, its C name, and what the two witnesses say. `new_name` is `hipError_t_` and the C name, as bindgen
/// writes it.
struct Row {
    ours: HipError,
    name: &'static str,
    new_name: &'static str,
    new: u32,
    old: u32,
}

macro_rules! rows {
    ($($constant:ident: $name:ident = $new:ident;)*) => {
        vec![$(Row {
            ours: HipError::$constant,
            name: stringify!($name),
            new_name: stringify!($new),
            new: new::$new,
            old: old::hipError_t::$name as u32,
        }),*]
    };
}

#[rustfmt::skip]
fn rows() -> Vec<Row> {
    rows! {
        SUCCESS: hipSuccess = hipError_t_hipSuccess;
        INVALID_VALUE: hipErrorInvalidValue = hipError_t_hipErrorInvalidValue;
        OUT_OF_MEMORY: hipErrorOutOfMemory = hipError_t_hipErrorOutOfMemory;
        NOT_INITIALIZED: hipErrorNotInitialized = hipError_t_hipErrorNotInitialized;
        DEINITIALIZED: hipErrorDeinitialized = hipError_t_hipErrorDeinitialized;
        INVALID_CONFIGURATION: hipErrorInvalidConfiguration = hipError_t_hipErrorInvalidConfiguration;
        INVALID_MEMCPY_DIRECTION: hipErrorInvalidMemcpyDirection = hipError_t_hipErrorInvalidMemcpyDirection;
        INSUFFICIENT_DRIVER: hipErrorInsufficientDriver = hipError_t_hipErrorInsufficientDriver;
        MISSING_CONFIGURATION: hipErrorMissingConfiguration = hipError_t_hipErrorMissingConfiguration;
        INVALID_DEVICE_FUNCTION: hipErrorInvalidDeviceFunction = hipError_t_hipErrorInvalidDeviceFunction;
        NO_DEVICE: hipErrorNoDevice = hipError_t_hipErrorNoDevice;
        INVALID_DEVICE: hipErrorInvalidDevice = hipError_t_hipErrorInvalidDevice;
        INVALID_IMAGE: hipErrorInvalidImage = hipError_t_hipErrorInvalidImage;
        INVALID_CONTEXT: hipErrorInvalidContext = hipError_t_hipErrorInvalidContext;
        MAP_FAILED: hipErrorMapFailed = hipError_t_hipErrorMapFailed;
        NO_BINARY_FOR_GPU: hipErrorNoBinaryForGpu = hipError_t_hipErrorNoBinaryForGpu;
        ECC_NOT_CORRECTABLE: hipErrorECCNotCorrectable = hipError_t_hipErrorECCNotCorrectable;
        PEER_ACCESS_UNSUPPORTED: hipErrorPeerAccessUnsupported = hipError_t_hipErrorPeerAccessUnsupported;
        INVALID_KERNEL_FILE: hipErrorInvalidKernelFile = hipError_t_hipErrorInvalidKernelFile;
        SHARED_OBJECT_INIT_FAILED: hipErrorSharedObjectInitFailed = hipError_t_hipErrorSharedObjectInitFailed;
        OPERATING_SYSTEM: hipErrorOperatingSystem = hipError_t_hipErrorOperatingSystem;
        INVALID_HANDLE: hipErrorInvalidHandle = hipError_t_hipErrorInvalidHandle;
        ILLEGAL_STATE: hipErrorIllegalState = hipError_t_hipErrorIllegalState;
        NOT_FOUND: hipErrorNotFound = hipError_t_hipErrorNotFound;
        NOT_READY: hipErrorNotReady = hipError_t_hipErrorNotReady;
        ILLEGAL_ADDRESS: hipErrorIllegalAddress = hipError_t_hipErrorIllegalAddress;
        LAUNCH_OUT_OF_RESOURCES: hipErrorLaunchOutOfResources = hipError_t_hipErrorLaunchOutOfResources;
        LAUNCH_TIME_OUT: hipErrorLaunchTimeOut = hipError_t_hipErrorLaunchTimeOut;
        PEER_ACCESS_ALREADY_ENABLED: hipErrorPeerAccessAlreadyEnabled = hipError_t_hipErrorPeerAccessAlreadyEnabled;
        PEER_ACCESS_NOT_ENABLED: hipErrorPeerAccessNotEnabled = hipError_t_hipErrorPeerAccessNotEnabled;
        SET_ON_ACTIVE_PROCESS: hipErrorSetOnActiveProcess = hipError_t_hipErrorSetOnActiveProcess;
        CONTEXT_IS_DESTROYED: hipErrorContextIsDestroyed = hipError_t_hipErrorContextIsDestroyed;
        ASSERT: hipErrorAssert = hipError_t_hipErrorAssert;
        HOST_MEMORY_ALREADY_REGISTERED: hipErrorHostMemoryAlreadyRegistered = hipError_t_hipErrorHostMemoryAlreadyRegistered;
        HOST_MEMORY_NOT_REGISTERED: hipErrorHostMemoryNotRegistered = hipError_t_hipErrorHostMemoryNotRegistered;
        LAUNCH_FAILURE: hipErrorLaunchFailure = hipError_t_hipErrorLaunchFailure;
        COOPERATIVE_LAUNCH_TOO_LARGE: hipErrorCooperativeLaunchTooLarge = hipError_t_hipErrorCooperativeLaunchTooLarge;
        NOT_SUPPORTED: hipErrorNotSupported = hipError_t_hipErrorNotSupported;
        STREAM_CAPTURE_UNSUPPORTED: hipErrorStreamCaptureUnsupported = hipError_t_hipErrorStreamCaptureUnsupported;
        STREAM_CAPTURE_INVALIDATED: hipErrorStreamCaptureInvalidated = hipError_t_hipErrorStreamCaptureInvalidated;
        STREAM_CAPTURE_MERGE: hipErrorStreamCaptureMerge = hipError_t_hipErrorStreamCaptureMerge;
        STREAM_CAPTURE_UNMATCHED: hipErrorStreamCaptureUnmatched = hipError_t_hipErrorStreamCaptureUnmatched;
        STREAM_CAPTURE_UNJOINED: hipErrorStreamCaptureUnjoined = hipError_t_hipErrorStreamCaptureUnjoined;
        STREAM_CAPTURE_ISOLATION: hipErrorStreamCaptureIsolation = hipError_t_hipErrorStreamCaptureIsolation;
        STREAM_CAPTURE_IMPLICIT: hipErrorStreamCaptureImplicit = hipError_t_hipErrorStreamCaptureImplicit;
        CAPTURED_EVENT: hipErrorCapturedEvent = hipError_t_hipErrorCapturedEvent;
        STREAM_CAPTURE_WRONG_THREAD: hipErrorStreamCaptureWrongThread = hipError_t_hipErrorStreamCaptureWrongThread;
        GRAPH_EXEC_UPDATE_FAILURE: hipErrorGraphExecUpdateFailure = hipError_t_hipErrorGraphExecUpdateFailure;
        UNKNOWN: hipErrorUnknown = hipError_t_hipErrorUnknown;
        RUNTIME_MEMORY: hipErrorRuntimeMemory = hipError_t_hipErrorRuntimeMemory;
        RUNTIME_OTHER: hipErrorRuntimeOther = hipError_t_hipErrorRuntimeOther;
    }
}

fn differences(rows: &[Row]) -> Vec<String> {
    let mut found = Vec::new();
    for row in rows {
        let Row { ours, name, new_name, new, old } = row;
        if ours.name() != *name {
            found.push(format!("{name}: we call {} {}", ours.0, ours.name()));
        }
        if new_name.strip_prefix("hipError_t_") != Some(name) {
            found.push(format!("{name}: compared with {new_name}"));
        }
        if (*new, *old) != (ours.0, ours.0) {
            found.push(format!("{name}: {} here, {new} in ROCm 7, {old} in 5.4", ours.0));
        }
    }
    found
}

#[test]
fn codes_and_names_agree_with_both_witnesses() {
    let rows = rows();
    assert_eq!(differences(&rows), Vec::<String>::new());
    let compared: Vec<_> = rows.iter().map(|row| row.ours).collect();
    assert_eq!(compared, HipError::LISTED, "every listed code is compared, in order");
}

#[test]
fn a_wrong_code_and_a_wrong_name_are_found() {
    let row = |ours, name, new_name| Row { ours, name, new_name, new: 2, old: 2 };
    let right = row(HipError::OUT_OF_MEMORY, "hipErrorOutOfMemory", "hipError_t_hipErrorOutOfMemory");
    assert!(differences(&[right]).is_empty());
    let code = row(HipError::NOT_INITIALIZED, "hipErrorNotInitialized", "hipError_t_hipErrorNotInitialized");
    assert_eq!(differences(&[code]), ["hipErrorNotInitialized: 3 here, 2 in ROCm 7, 2 in 5.4"]);
    let name = row(HipError::OUT_OF_MEMORY, "hipErrorMemoryAllocation", "hipError_t_hipErrorOutOfMemory");
    assert_eq!(differences(&[name]).len(), 2, "our name, and the witness's");
}

#[test]
fn an_error_is_an_integer() {
    assert_eq!(size_of::<HipError>(), size_of::<new::hipError_t>());
    assert_eq!(align_of::<HipError>(), align_of::<new::hipError_t>());
    assert_eq!(size_of::<HipError>(), size_of::<old::hipError_t>());
    // 1054 is a code of ROCm 7 that is not listed: it arrives, and keeps its number.
    assert_eq!(HipError(1054).to_string(), "hipError(unlisted) (1054)");
}
