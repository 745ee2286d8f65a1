//! The capture mode of the calling thread.

use core::ffi::c_int;

use crate::error::Result;
use crate::runtime::{Runtime, RuntimeKind};
use crate::stream::{NULL_STREAM_BY_NAME, Stream};
use crate::types::{HipError, flags};

/// While it lives, this thread may load kernels and allocate beside a capture of any thread, as NCCL does
/// (`hipThreadExchangeStreamCaptureMode`). Drop it on the thread that made it.
#[derive(Debug)]
pub struct RelaxedCapture {
    runtime: Runtime,
    before: c_int,
}

impl RelaxedCapture {
    /// For work on streams: `None` where none of them is captured, since eager calls should not pay for it.
    ///
    /// # Errors
    /// A stream that says nothing about captures; those of [`Self::new`].
    pub fn for_streams(runtime: &Runtime, streams: &[Stream]) -> Result<Option<Self>> {
        if runtime.kind() == RuntimeKind::Host {
            return Ok(None);
        }
        // The null stream cannot be captured, and cannot be asked while another stream is.
        let named = streams.iter().filter(|stream| stream.raw() as usize > NULL_STREAM_BY_NAME);
        let mut is_captured = false;
        for stream in named {
            is_captured |= stream.is_capturing()?;
        }
        if is_captured { Self::new(runtime) } else { Ok(None) }
    }

    /// For whatever the thread does next: it does not know what other threads capture. `None` on the host runtime, whose captures
    /// refuse nothing.
    ///
    /// # Errors
    /// [`Error::Missing`](crate::Error::Missing) for a runtime without the function; its code.
    pub fn new(runtime: &Runtime) -> Result<Option<Self>> {
        if runtime.kind() == RuntimeKind::Host {
            return Ok(None);
        }
        let mut mode = flags::CAPTURE_MODE_RELAXED;
        exchange(runtime, &mut mode)?;
        Ok(Some(Self { runtime: runtime.clone(), before: mode }))
    }
}

/// Sets the thread's mode and reads the one before.
fn exchange(runtime: &Runtime, mode: &mut c_int) -> Result<()> {
    const NAME: &str = "hipThreadExchangeStreamCaptureMode";
    let exchange = runtime.optional(NAME, runtime.api().hipThreadExchangeStreamCaptureMode)?;
    // SAFETY: the function exchanges one int.
    let code: HipError = unsafe { exchange(mode) };
    runtime.check(NAME, code)
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        if let Err(error) = exchange(&self.runtime, &mut self.before) {
            tracing::warn!(%error, "the capture mode of this thread stays relaxed");
        }
    }
}
