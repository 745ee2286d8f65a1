//! Captures that were begun through the table, so that calls are refused beside them as HIP refuses them.
//!
//! CUDA lets other threads wait by way of the default stream while one captures a stream that does not wait for it; HIP 7.2 refuses that
//! for the whole process and invalidates the capture. CUDA also lets a thread that captures wait for a stream that is not captured;
//! HIP does not. A program must behave the same on both, so the shims refuse these calls too. They do not see captures that a framework
//! began with the CUDA driver directly: there the driver decides.

use core::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use anabranch_hip::HipError;
use anabranch_hip::types::{HipStream, flags};

/// The captures that are under way. No call of the driver is made under the lock.
#[derive(Debug, Default)]
pub(crate) struct Captures(Mutex<Vec<Capture>>);

/// A capture, by the stream that it began on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capture {
    stream: usize,
    mode: c_int,
    thread: ThreadId,
    /// A call that was refused has spoilt it.
    pub(crate) invalid: bool,
}

impl Captures {
    fn lock(&self) -> MutexGuard<'_, Vec<Capture>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The calling thread has begun a capture.
    pub(crate) fn begun(&self, stream: HipStream, mode: c_int) {
        let thread = thread::current().id();
        self.restore(Capture { stream: stream.addr(), mode, thread, invalid: false });
    }

    /// Takes out the capture of a stream that is about to end it, or to be destroyed.
    pub(crate) fn take(&self, stream: HipStream) -> Option<Capture> {
        let mut open = self.lock();
        let place = open.iter().position(|capture| capture.stream == stream.addr())?;
        Some(open.swap_remove(place))
    }

    /// Puts back one that did not end.
    pub(crate) fn restore(&self, capture: Capture) {
        self.lock().push(capture);
    }

    /// Refuses a call that waits by way of the default stream or for a whole device, and invalidates what is captured.
    pub(crate) fn refuse(&self, code: HipError) -> Result<(), HipError> {
        let mut open = self.lock();
        open.iter_mut().for_each(|capture| capture.invalid = true);
        if open.is_empty() { Ok(()) } else { Err(code) }
    }

    /// Refuses to wait for, or ask about, a stream: on any thread during a global capture, on its own during a thread-local one. The
    /// captures that refuse it are invalidated. The null stream is not refused; nor, beside other captures, is a stream that is
    /// captured itself, which the driver refuses.
    pub(crate) fn refuse_wait(&self, stream: HipStream) -> Result<(), HipError> {
        if stream.is_null() {
            return Ok(());
        }
        let mut refused = false;
        for capture in self.lock().iter_mut() {
            let concerned = match capture.mode {
                flags::CAPTURE_MODE_GLOBAL => true,
                flags::CAPTURE_MODE_THREAD_LOCAL => capture.thread == thread::current().id(),
                _ => false,
            };
            capture.invalid |= concerned;
            refused |= concerned;
        }
        if refused { Err(HipError::STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    /// A status of the driver, or that the capture is invalid.
    pub(crate) fn status(&self, stream: HipStream, of_driver: c_int) -> c_int {
        let spoilt = |capture: &Capture| capture.stream == stream.addr() && capture.invalid;
        if self.lock().iter().any(spoilt) { flags::CAPTURE_STATUS_INVALIDATED } else { of_driver }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_call_invalidates_what_is_captured_and_nothing_else() {
        let captures = Captures::default();
        let stream = |number: usize| core::ptr::without_provenance_mut(number);
        let code = HipError::STREAM_CAPTURE_IMPLICIT;
        assert_eq!(captures.refuse(code), Ok(()));
        captures.begun(stream(1), flags::CAPTURE_MODE_THREAD_LOCAL);
        captures.begun(stream(2), flags::CAPTURE_MODE_RELAXED);
        let valid = captures.take(stream(2)).unwrap();
        assert_eq!(captures.refuse(code), Err(code));
        captures.restore(valid);
        let status = |number| captures.status(stream(number), flags::CAPTURE_STATUS_ACTIVE);
        assert_eq!((status(1), status(2)), (flags::CAPTURE_STATUS_INVALIDATED, flags::CAPTURE_STATUS_ACTIVE));
        assert!(captures.take(stream(1)).unwrap().invalid);
        assert!(!captures.take(stream(2)).unwrap().invalid);
        assert_eq!((captures.take(stream(1)), captures.refuse(code)), (None, Ok(())));
    }

    #[test]
    fn waits_are_refused_by_the_mode_and_the_thread_of_a_capture() {
        let stream = |number: usize| core::ptr::without_provenance_mut(number);
        let refused = Err(HipError::STREAM_CAPTURE_UNSUPPORTED);
        for (mode, here, elsewhere) in [
            (flags::CAPTURE_MODE_GLOBAL, refused, refused),
            (flags::CAPTURE_MODE_THREAD_LOCAL, refused, Ok(())),
            (flags::CAPTURE_MODE_RELAXED, Ok(()), Ok(())),
        ] {
            for (there, expected) in [(false, here), (true, elsewhere)] {
                let captures = Captures::default();
                captures.begun(stream(1), mode);
                let wait = || (captures.refuse_wait(stream(0)), captures.refuse_wait(stream(2)));
                let seen =
                    if there { thread::scope(|scope| scope.spawn(wait).join().unwrap()) } else { wait() };
                assert_eq!(seen, (Ok(()), expected), "mode {mode}, another thread: {there}");
                assert_eq!(captures.take(stream(1)).unwrap().invalid, expected.is_err(), "mode {mode}");
            }
        }
    }
}
