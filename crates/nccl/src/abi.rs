//! NCCL's types as they cross the border. Numbers and layouts are those of `nccl.h` of NCCL 2.32.3 (wheel nvidia-nccl-cu13); they have only
//! been added to since 2.10.

use std::ffi::{c_char, c_int, c_uint, c_void};

use anabranch::ccl::DataType;

use crate::error::Failure;

/// `ncclResult_t`.
pub(crate) type ResultCode = c_int;
/// `ncclComm_t`: a number that is never used again, not an address.
pub(crate) type Handle = *mut c_void;
/// `ncclWindow_t`: a number, as [`Handle`].
pub(crate) type WindowHandle = *mut c_void;
/// `cudaStream_t`, `hipStream_t`.
pub(crate) type RawStream = *mut c_void;

pub(crate) const SUCCESS: ResultCode = 0;
pub(crate) const UNHANDLED_DEVICE: ResultCode = 1;
pub(crate) const SYSTEM: ResultCode = 2;
pub(crate) const INTERNAL: ResultCode = 3;
pub(crate) const INVALID_ARGUMENT: ResultCode = 4;
pub(crate) const INVALID_USAGE: ResultCode = 5;
pub(crate) const REMOTE: ResultCode = 6;
pub(crate) const IN_PROGRESS: ResultCode = 7;
/// Since 2.32.
pub(crate) const TIMEOUT: ResultCode = 8;

/// `NCCL_VERSION_CODE` of the header that these declarations follow.
pub(crate) const VERSION: c_int = 23203;
/// `NCCL_CONFIG_UNDEF_INT`.
pub(crate) const UNDEFINED: c_int = c_int::MIN;
/// `NCCL_SPLIT_NOCOLOR`.
pub(crate) const NO_COLOR: c_int = -1;
/// `NCCL_API_MAGIC`.
const MAGIC: c_uint = 0xcafe_beef;
/// `NCCL_WIN_COLL_SYMMETRIC`.
pub(crate) const WINDOW_SYMMETRIC: c_int = 1;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct UniqueId {
    /// An [`anabranch::bootstrap::UniqueId`].
    pub(crate) internal: [u8; 128],
}

/// `ncclTeam_t`, since 2.28.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Team {
    /// Members.
    pub(crate) ranks: c_int,
    /// This rank among them.
    pub(crate) rank: c_int,
    /// From one member to the next.
    pub(crate) stride: c_int,
}

/// The beginning of `ncclConfig_t`, all of it in 2.14 to 2.16. Later fields but [`Resources`] choose what this library does not have.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

/// The fields from `blocking` on, since 2.17.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Resources {
    blocking: c_int,
    cluster_size: c_int,
    min_blocks: c_int,
    max_blocks: c_int,
}

const RESOURCES_AT: usize = std::mem::offset_of!(Config, blocking);
/// The version of the first `ncclConfig_t` with [`Resources`], as `NCCL_VERSION(2, 17, 0)`.
const WITH_RESOURCES: c_uint = 21700;

/// The beginning of `ncclCollConfig_t`, since 2.32, up to the event.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallConfig {
    size: usize,
    magic: c_uint,
    version: c_uint,
    extension: *const c_void,
    resources: [c_int; 4],
    algorithm: *const c_char,
    policy: [c_int; 2],
    tag: u64,
    launch_event: *const c_void,
}

/// The beginning of `ncclCommProperties_t`, since 2.28.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Properties {
    size: usize,
    magic: c_uint,
    version: c_uint,
    pub(crate) rank: c_int,
    pub(crate) ranks: c_int,
    pub(crate) device: c_int,
    pub(crate) nvml_device: c_int,
    pub(crate) has_device_api: bool,
    pub(crate) has_multimem: bool,
}

/// What this library takes of `ncclConfig_t`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CommConfig {
    /// `blocking = 0`: the call returns before the ranks have met.
    pub(crate) is_nonblocking: bool,
    /// `maxCTAs`.
    pub(crate) max_blocks: Option<u32>,
}

fn check_magic(what: &str, size: usize, least: usize, magic: c_uint) -> Result<(), Failure> {
    if magic == MAGIC && size >= least {
        return Ok(());
    }
    Err(Failure::argument(format!(
        "{what} has size {size} and magic {magic:#x}; initialise it with NCCL's macro (size {least} or more, magic {MAGIC:#x})"
    )))
}

impl Config {
    /// # Safety
    /// `config` is null or points to a `ncclConfig_t`, whose `size` is right.
    pub(crate) unsafe fn read(config: *const Self) -> Result<CommConfig, Failure> {
        if config.is_null() {
            return Ok(CommConfig::default());
        }
        let at = config;
        // SAFETY: the caller's contract; every version has these fields.
        let config = unsafe { at.read_unaligned() };
        check_magic("ncclConfig_t", config.size, size_of::<Self>(), config.magic)?;
        if ![0, 1, UNDEFINED].contains(&config.blocking) {
            return Err(Failure::argument(format!(
                "config.blocking is {}; 0 and 1 are allowed",
                config.blocking
            )));
        }
        let given =
            if config.version >= WITH_RESOURCES && config.size >= RESOURCES_AT + size_of::<Resources>() {
                // SAFETY: the struct has these bytes.
                unsafe { at.byte_add(RESOURCES_AT).cast::<Resources>().read_unaligned() }.max_blocks
            } else {
                UNDEFINED
            };
        let max_blocks = match given {
            UNDEFINED => None,
            blocks @ 1..=1024 => Some(blocks as u32),
            other => {
                return Err(Failure::argument(format!("config.maxCTAs is {other}; 1 to 1024 are allowed")));
            }
        };
        Ok(CommConfig { is_nonblocking: config.blocking == 0, max_blocks })
    }
}

impl CallConfig {
    /// Hints are not used. What a program would wait for is refused.
    ///
    /// # Safety
    /// `config` is null or points to a `ncclCollConfig_t`, whose `size` is right.
    pub(crate) unsafe fn check(config: *const Self) -> Result<(), Failure> {
        if config.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's contract.
        let config = unsafe { config.read_unaligned() };
        check_magic("ncclCollConfig_t", config.size, size_of::<Self>(), config.magic)?;
        if config.launch_event.is_null() {
            return Ok(());
        }
        Err(Failure::usage("launchCompletionEvent is not supported"))
    }
}

impl Properties {
    /// # Safety
    /// `properties` points to a `ncclCommProperties_t`, whose `size` is right.
    pub(crate) unsafe fn write(
        properties: *mut Self,
        rank: c_int,
        ranks: c_int,
        device: c_int,
    ) -> Result<(), Failure> {
        // SAFETY: the caller's contract; the bytes are integers until `has_device_api`, which is not read.
        let (size, magic) =
            unsafe { ((&raw const (*properties).size).read(), (&raw const (*properties).magic).read()) };
        check_magic("ncclCommProperties_t", size, size_of::<Self>(), magic)?;
        // SAFETY: the caller's contract. All other properties say that something is not there: zeros.
        unsafe {
            let head = size_of::<usize>() + 2 * size_of::<c_uint>();
            properties.cast::<u8>().add(head).write_bytes(0, size - head);
            (&raw mut (*properties).rank).write(rank);
            (&raw mut (*properties).ranks).write(ranks);
            (&raw mut (*properties).device).write(device);
            (&raw mut (*properties).nvml_device).write(device);
        }
        Ok(())
    }
}

/// `ncclDataType_t`; the 8-bit floats since 2.24.
pub(crate) fn data_type(code: c_int) -> Result<DataType, Failure> {
    Ok(match code {
        0 => DataType::I8,
        1 => DataType::U8,
        2 => DataType::I32,
        3 => DataType::U32,
        4 => DataType::I64,
        5 => DataType::U64,
        6 => DataType::F16,
        7 => DataType::F32,
        8 => DataType::F64,
        9 => DataType::Bf16,
        10 => DataType::F8E4m3,
        11 => DataType::F8E5m2,
        other => return Err(Failure::argument(format!("datatype is {other}; 0 to 11 are allowed"))),
    })
}

/// `ncclGetErrorString`.
pub(crate) fn text_of(code: ResultCode) -> &'static std::ffi::CStr {
    match code {
        SUCCESS => c"no error",
        UNHANDLED_DEVICE => c"unhandled cuda error (ncclGetLastError has the cause)",
        SYSTEM => c"unhandled system error (ncclGetLastError has the cause)",
        INTERNAL => c"internal error (ncclGetLastError has the cause)",
        INVALID_ARGUMENT => c"invalid argument (ncclGetLastError has the cause)",
        INVALID_USAGE => c"invalid usage (ncclGetLastError has the cause)",
        REMOTE => c"remote process exited or there was a network error (ncclGetLastError names the rank)",
        IN_PROGRESS => c"operation in progress",
        TIMEOUT => c"timeout (ncclGetLastError has the cause)",
        _ => c"unknown result code",
    }
}
