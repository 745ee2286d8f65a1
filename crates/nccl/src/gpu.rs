//! The capture mode of the calling thread, for which HIP's table has no function.

use std::ffi::c_int;

use anabranch::RuntimeKind;
use anabranch::hip::Stream;
use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};

use crate::error::Failure;

/// `cuThreadExchangeStreamCaptureMode` and `hipThreadExchangeStreamCaptureMode`: the thread's mode for the old one.
type Exchange = unsafe extern "C" fn(*mut c_int) -> c_int;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`, `hipStreamCaptureModeRelaxed`.
const RELAXED: c_int = 2;

/// While it lives, this thread may load kernels and allocate beside a capture of any thread, as NCCL does. `None` where nothing is to be
/// done for that.
pub(crate) struct RelaxedCapture {
    exchange: Exchange,
    before: c_int,
    _library: Library,
}

impl RelaxedCapture {
    /// For work on streams: only where one is captured, since eager calls should not pay for it.
    ///
    /// # Errors
    /// A stream that says nothing about captures; those of [`Self::new`].
    pub(crate) fn for_streams(kind: RuntimeKind, streams: &[Stream]) -> Result<Option<Self>, Failure> {
        if kind == RuntimeKind::Host {
            return Ok(None);
        }
        // The default stream cannot be captured, and cannot be asked while another stream is.
        let mut is_captured = false;
        for stream in streams {
            is_captured |= !stream.raw().is_null() && stream.is_capturing()?;
        }
        if is_captured { Self::new(kind) } else { Ok(None) }
    }

    /// For whatever the thread does: it does not know what others capture. On the host runtime captures of other threads refuse nothing.
    ///
    /// # Errors
    /// A runtime library without the function.
    pub(crate) fn new(kind: RuntimeKind) -> Result<Option<Self>, Failure> {
        let (library, function) = match kind {
            RuntimeKind::Nvidia => ("libcuda.so.1", "cuThreadExchangeStreamCaptureMode"),
            RuntimeKind::Amd => ("libamdhip64.so", "hipThreadExchangeStreamCaptureMode"),
            RuntimeKind::Host => return Ok(None),
        };
        let failed = |error: libloading::Error| {
            Failure::usage(format!("captures need {function} of {library}: {error}"))
        };
        // SAFETY: the runtime's library, which this process has open already: no initialisers run.
        let library = unsafe { Library::open(Some(library), RTLD_LAZY | RTLD_LOCAL) }.map_err(failed)?;
        // SAFETY: both functions have this type in their headers.
        let exchange = *unsafe { library.get::<Exchange>(function) }.map_err(failed)?;
        let mut mode = RELAXED;
        // SAFETY: the function exchanges one word.
        let code = unsafe { exchange(&raw mut mode) };
        if code != 0 {
            return Err(Failure::usage(format!("{function} failed with {code} during a capture")));
        }
        Ok(Some(Self { exchange, before: mode, _library: library }))
    }
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        // SAFETY: as in the constructor; the library is open.
        let code = unsafe { (self.exchange)(&raw mut self.before) };
        if code != 0 {
            tracing::warn!(code, "the capture mode of this thread stays relaxed");
        }
    }
}
