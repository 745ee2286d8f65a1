//! Failures: a code of NCCL, and a text that names the rank.

use std::cell::UnsafeCell;
use std::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};

use anabranch::{Error, ErrorKind};

use crate::abi::{self, ResultCode};

/// Why a call fails.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) code: ResultCode,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(code: ResultCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self::new(abi::INVALID_ARGUMENT, text)
    }

    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::new(abi::INVALID_USAGE, text)
    }

    /// The failure with the rank that reports it.
    pub(crate) fn on(self, rank: u32, ranks: u32) -> Self {
        let reporter = format!("rank {rank} of {ranks}: ");
        if self.text.starts_with(&reporter) { self } else { Self { text: reporter + &self.text, ..self } }
    }
}

/// Deadlines are [`abi::SYSTEM`]: programs that were built before 2.32 do not know [`abi::TIMEOUT`].
fn code_of(error: &Error) -> ResultCode {
    if error.is_timeout() {
        return abi::SYSTEM;
    }
    match error.kind() {
        ErrorKind::Peer => abi::REMOTE,
        ErrorKind::Device => abi::UNHANDLED_DEVICE,
        ErrorKind::Usage => abi::INVALID_ARGUMENT,
        ErrorKind::Config => abi::INVALID_USAGE,
        ErrorKind::Environment => abi::SYSTEM,
        _ => abi::INTERNAL,
    }
}

macro_rules! from_errors {
    ($($error:ty),*) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                let error = Error::from(error);
                // `Debug` has all causes.
                Self::new(code_of(&error), format!("{error:?}"))
            }
        }
    )*};
}

from_errors!(
    Error,
    anabranch::bootstrap::Error,
    anabranch::ccl::Error,
    anabranch::hip::Error,
    anabranch::shmem::Error
);

/// Bytes of a text with the 0 at its end.
const CAPACITY: usize = 4096;

thread_local! {
    /// What `ncclGetLastError` returns on this thread: one place while the thread lives, as in NCCL.
    static LAST: UnsafeCell<[u8; CAPACITY]> = const { UnsafeCell::new([0; CAPACITY]) };
}

/// Notes a text for `ncclGetLastError` of this thread, cut where it does not fit, and returns it.
pub(crate) fn note(text: &str) -> *const c_char {
    let mut length = text.len().min(CAPACITY - 1);
    while !text.is_char_boundary(length) {
        length -= 1;
    }
    let place = last();
    LAST.try_with(|last| {
        // SAFETY: the thread's own place, and no other reference to it: callers get a pointer.
        let bytes = unsafe { &mut *last.get() };
        for (byte, of_text) in bytes.iter_mut().zip(&text.as_bytes()[..length]) {
            *byte = if *of_text == 0 { b' ' } else { *of_text };
        }
        bytes[length] = 0;
    })
    .map_or(c"".as_ptr(), |()| place)
}

/// The text of the thread's last failure.
pub(crate) fn last() -> *const c_char {
    LAST.try_with(|last| last.get().cast_const().cast()).unwrap_or(c"".as_ptr())
}

/// The body of an exported function: failures become codes, and no panic leaves it.
pub(crate) fn call(name: &'static str, body: impl FnOnce() -> Result<(), Failure>) -> ResultCode {
    code(name, caught(body))
}

/// Makes a panic of the body a failure.
pub(crate) fn caught<T>(body: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| Err(of_panic(panic.as_ref())))
}

/// Notes and logs a failure.
pub(crate) fn code(name: &str, result: Result<(), Failure>) -> ResultCode {
    match result {
        Ok(()) => abi::SUCCESS,
        Err(Failure { code: abi::IN_PROGRESS, .. }) => abi::IN_PROGRESS,
        Err(failure) => {
            let text = format!("{name}: {}", failure.text);
            tracing::warn!(code = failure.code, "{text}");
            note(&text);
            failure.code
        }
    }
}

pub(crate) fn of_panic(panic: &(dyn std::any::Any + Send)) -> Failure {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    Failure::new(abi::INTERNAL, format!("a panic in the library: {text}"))
}
