//! The capture mode of the calling thread, for which HIP's table has no function.

use std::ffi::c_int;

use anabranch::RuntimeKind;
use anabranch::hip::Stream;
use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};

use crate::error::Failure;

/// `cuThreadExchangeStreamCaptureMode` and `hipThreadExchangeStreamCaptureMode`: the thread's mode for the old one.
type Exchange = unsafe extern "C" fn(*mut c_int) -> c_int;

/// `dlopen` finds only what is loaded (`bits/dlfcn.h` of glibc).
const RTLD_NOLOAD: c_int = 4;

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

    /// For whatever the thread does: it does not know what others capture. The host runtime has no such mode.
    ///
    /// # Errors
    /// A runtime library without the function.
    pub(crate) fn new(kind: RuntimeKind) -> Result<Option<Self>, Failure> {
        let (first, others, function): (_, &[&str], _) = match kind {
            RuntimeKind::Nvidia => ("libcuda.so.1", &[], "cuThreadExchangeStreamCaptureMode"),
            RuntimeKind::Amd => {
                let others = &["libamdhip64.so.7", "libamdhip64.so.6"];
                ("libamdhip64.so", others, "hipThreadExchangeStreamCaptureMode")
            }
            RuntimeKind::Host => return Ok(None),
        };
        let failed = |error: libloading::Error| {
            Failure::usage(format!("captures need {function} of {first}: {error}"))
        };
        // SAFETY: the runtime's library, which this process has open already: no initialisers run, and no second copy is mapped.
        let open = |name: &&str| unsafe { Library::open(Some(*name), RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD) };
        let library = others
            .iter()
            .find_map(|name| open(name).ok())
            .map_or_else(|| open(&first), Ok)
            .map_err(failed)?;
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
