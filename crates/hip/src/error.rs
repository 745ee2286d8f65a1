//! What can go wrong with a runtime, as values.

use core::ffi::{c_int, c_uint};
use std::path::PathBuf;
use std::time::Duration;

use anabranch_ranks::ErrorKind;

use crate::types::HipError;
use crate::{DeviceOrdinal, RuntimeKind};

/// An error of the HIP layer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A runtime function returned an error code.
    #[error("{call}: {code} on {runtime} {device}")]
    Call {
        /// The C name of the function.
        call: &'static str,
        /// The runtime that returned the code.
        runtime: RuntimeKind,
        /// The device that was current.
        device: DeviceOrdinal,
        /// The code.
        code: HipError,
    },
    /// A runtime function failed before any device was chosen.
    #[error("{call}: {code} from the {runtime} runtime")]
    Runtime {
        /// The C name of the function.
        call: &'static str,
        /// The runtime that returned the code.
        runtime: RuntimeKind,
        /// The code.
        code: HipError,
    },
    /// The runtime has no such optional function.
    #[error("the {runtime} runtime ({origin}) has no {function}")]
    Missing {
        /// The runtime asked.
        runtime: RuntimeKind,
        /// Where it was loaded from.
        origin: String,
        /// The C name of the function.
        function: &'static str,
    },
    /// The runtime's library was not found or not usable.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// There is no such device.
    #[error("{device} does not exist: the {runtime} runtime shows {count} device(s)")]
    NoSuchDevice {
        /// The device asked for.
        device: DeviceOrdinal,
        /// The runtime asked.
        runtime: RuntimeKind,
        /// How many there are.
        count: u32,
    },
    /// A copy or fill would leave its buffer.
    #[error("{what}: bytes {offset}..{end} are outside a buffer of {length} bytes")]
    OutOfRange {
        /// The operation.
        what: &'static str,
        /// First byte.
        offset: usize,
        /// One past the last byte.
        end: usize,
        /// Length of the buffer.
        length: usize,
    },
    /// Two handles belong to different devices or runtimes.
    #[error("{what}: {left} and {right} are different devices")]
    DeviceMismatch {
        /// The operation.
        what: &'static str,
        /// Device of the first handle.
        left: DeviceOrdinal,
        /// Device of the second handle.
        right: DeviceOrdinal,
    },
    /// Two handles belong to different runtimes, or to two instances of one kind.
    #[error("{what}: handles of two runtimes, {left} and {right}, cannot be used together")]
    RuntimeMismatch {
        /// The operation.
        what: &'static str,
        /// Runtime of the first handle.
        left: RuntimeKind,
        /// Runtime of the second handle.
        right: RuntimeKind,
    },
    /// A call that succeeded returned something that cannot be used.
    #[error("{call} on {runtime} {device} succeeded and returned the file descriptor {descriptor}")]
    Descriptor {
        /// The C name of the function.
        call: &'static str,
        /// The runtime.
        runtime: RuntimeKind,
        /// The device.
        device: DeviceOrdinal,
        /// What it returned.
        descriptor: c_int,
    },
    /// A name cannot be passed to C.
    #[error("the kernel name {name:?} holds a zero byte")]
    KernelName {
        /// The name.
        name: String,
    },
    /// The device's properties make no sense, so the struct layout is not the expected one.
    #[error(
        "{device} reports the architecture {arch:?}, which is no architecture name; is the runtime older than ROCm 6?"
    )]
    Properties {
        /// The device.
        device: DeviceOrdinal,
        /// What was read at the architecture's place.
        arch: String,
    },
    /// A device has one trace at a time.
    #[error("{device} is already traced; end that trace first")]
    Traced {
        /// The device.
        device: DeviceOrdinal,
    },
    /// A trace cannot relate the device's clock to the host's.
    #[error(
        "{device} did not pass an event on an idle stream within {waited:?}, so its clock cannot be compared with the host's"
    )]
    ClockSilent {
        /// The device.
        device: DeviceOrdinal,
        /// How long the host waited.
        waited: Duration,
    },
}

/// A runtime's library could not be opened.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// No candidate opened.
    #[error("no {runtime} runtime found; tried {}", list(tried))]
    NotFound {
        /// The runtime looked for.
        runtime: RuntimeKind,
        /// Each candidate, and the loader's words about it.
        tried: Vec<(PathBuf, String)>,
    },
    /// A library opened but lacks a required function.
    #[error("{path}: no {symbol}; the {runtime} runtime is too old or another library", path = path.display())]
    MissingSymbol {
        /// The runtime looked for.
        runtime: RuntimeKind,
        /// The library.
        path: PathBuf,
        /// The symbol.
        symbol: String,
    },
    /// The library opened but could not be initialised.
    #[error("{path}: {call} returned {code}", path = path.display())]
    Init {
        /// The library.
        path: PathBuf,
        /// The call.
        call: &'static str,
        /// Its code, in the library's own numbering.
        code: c_uint,
    },
}

fn list(tried: &[(PathBuf, String)]) -> String {
    let words: Vec<_> = tried.iter().map(|(path, why)| format!("{} ({why})", path.display())).collect();
    words.join(", ")
}

/// The result of calls in this crate.
pub type Result<T, E = Error> = core::result::Result<T, E>;

impl Error {
    /// Who can do something about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Load(_) | Self::Missing { .. } | Self::NoSuchDevice { .. } | Self::Properties { .. } => {
                ErrorKind::Environment
            }
            Self::OutOfRange { .. }
            | Self::DeviceMismatch { .. }
            | Self::RuntimeMismatch { .. }
            | Self::KernelName { .. }
            | Self::Traced { .. } => ErrorKind::Usage,
            _ => ErrorKind::Device,
        }
    }

    /// The runtime's error code, when there is one.
    pub fn code(&self) -> Option<HipError> {
        match self {
            Self::Call { code, .. } | Self::Runtime { code, .. } => Some(*code),
            _ => None,
        }
    }
}

/// Converts an ordinal for a C call.
pub(crate) fn c_ordinal(device: DeviceOrdinal) -> c_int {
    device.0 as c_int
}
