//! Status codes, the last error of a thread, and the border that no panic crosses.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use anabranch::ErrorKind;

/// The result of a call: `ANABRANCH_OK` or one of the errors below. `anabranch_last_error` has the text of an error.
pub type anabranch_status = u32;

/// Done, or launched.
pub const ANABRANCH_OK: anabranch_status = 0;
/// A wrong argument, or a call out of order. Nothing has happened.
pub const ANABRANCH_ERROR_USAGE: anabranch_status = 1;
/// A wrong setting, or settings in which ranks differ.
pub const ANABRANCH_ERROR_CONFIG: anabranch_status = 2;
/// A runtime, compiler, device or limit is missing. The command `anabranch doctor` lists them.
pub const ANABRANCH_ERROR_ENVIRONMENT: anabranch_status = 3;
/// A kernel does not compile.
pub const ANABRANCH_ERROR_COMPILE: anabranch_status = 4;
/// Another rank is lost, late or unreachable: `anabranch_error_ranks` names it. Leave the world and join again.
pub const ANABRANCH_ERROR_PEER: anabranch_status = 5;
/// The device failed. Leave the world.
pub const ANABRANCH_ERROR_DEVICE: anabranch_status = 6;
/// The time limit of a wait ended; the work goes on.
pub const ANABRANCH_ERROR_BUSY: anabranch_status = 7;
/// A defect of the library. The world of the call cannot be used any more.
pub const ANABRANCH_ERROR_INTERNAL: anabranch_status = 8;

/// An error on its way to the caller.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: anabranch_status,
    pub(crate) text: String,
    pub(crate) ranks: Vec<u32>,
}

pub(crate) type Result<T = (), E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// A wrong argument.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self { status: ANABRANCH_ERROR_USAGE, text: text.into(), ranks: Vec::new() }
    }

    /// A wrong setting.
    pub(crate) fn config(text: impl Into<String>) -> Self {
        Self { status: ANABRANCH_ERROR_CONFIG, ..Self::usage(text) }
    }

    fn panicked(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        let text = text.unwrap_or_else(|| "a panic without a text".to_owned());
        let text = format!("a defect of the library: {text}");
        Self { status: ANABRANCH_ERROR_INTERNAL, ..Self::usage(text) }
    }
}

impl From<anabranch::Error> for Failure {
    fn from(error: anabranch::Error) -> Self {
        let status = match error.kind() {
            _ if error.is_busy() => ANABRANCH_ERROR_BUSY,
            ErrorKind::Usage => ANABRANCH_ERROR_USAGE,
            ErrorKind::Config => ANABRANCH_ERROR_CONFIG,
            ErrorKind::Environment => ANABRANCH_ERROR_ENVIRONMENT,
            ErrorKind::Compile => ANABRANCH_ERROR_COMPILE,
            ErrorKind::Peer => ANABRANCH_ERROR_PEER,
            ErrorKind::Device => ANABRANCH_ERROR_DEVICE,
            // A kind that this version does not know.
            _ => ANABRANCH_ERROR_INTERNAL,
        };
        let ranks = error.ranks().into_iter().map(anabranch::GlobalRank::get).collect();
        // `Debug` is the sentence with all its causes.
        Self { status, text: format!("{error:?}"), ranks }
    }
}

/// The errors of the modules of the facade.
macro_rules! by_facade {
    ($($error:ty),* $(,)?) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                anabranch::Error::from(error).into()
            }
        }
    )*};
}

by_facade!(
    anabranch::bootstrap::Error,
    anabranch::ccl::Error,
    anabranch::config::ConfigError,
    anabranch::ep::Error,
    anabranch::hip::Error,
    anabranch::shmem::Error,
);

impl From<anabranch::ranks::Error> for Failure {
    fn from(error: anabranch::ranks::Error) -> Self {
        anabranch::shmem::Error::from(error).into()
    }
}

#[derive(Debug, Default)]
struct Last {
    text: CString,
    ranks: Vec<u32>,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::default();
}

fn record(failure: Failure) -> anabranch_status {
    let Failure { status, text, ranks } = failure;
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    // Gone only while the thread ends.
    let _ = LAST.try_with(|last| *last.borrow_mut() = Last { text, ranks });
    status
}

/// Runs the body of an exported function. A panic becomes a failure; `panicked` gets its text.
pub(crate) fn guard_with(body: impl FnOnce() -> Result, panicked: impl FnOnce(&str)) -> anabranch_status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => ANABRANCH_OK,
        Ok(Err(failure)) => record(failure),
        Err(panic) => {
            let failure = Failure::panicked(&*panic);
            panicked(&failure.text);
            record(failure)
        }
    }
}

/// The same for a function without a world.
pub(crate) fn guard(body: impl FnOnce() -> Result) -> anabranch_status {
    guard_with(body, |_| ())
}

/// The text of the last call of this thread that failed: which rank, what was given, what is allowed, and the causes. Empty before the
/// first. Valid until another call of this thread fails.
#[unsafe(no_mangle)]
pub extern "C" fn anabranch_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().text.as_ptr()).unwrap_or(c"".as_ptr())
}

/// The ranks of the world that the last error of this thread is about, ascending: lost, late, or the one that differs. Writes the first
/// `capacity` of them to `ranks` and returns how many there are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_error_ranks(ranks: *mut u32, capacity: usize) -> usize {
    let found = LAST.try_with(|last| last.borrow().ranks.clone()).unwrap_or_default();
    let shown = found.len().min(if ranks.is_null() { 0 } else { capacity });
    // SAFETY: the caller's `ranks` has `capacity` elements.
    unsafe { std::ptr::copy_nonoverlapping(found.as_ptr(), ranks, shown) };
    found.len()
}

/// What a status means, in a few words.
#[unsafe(no_mangle)]
pub extern "C" fn anabranch_status_text(status: anabranch_status) -> *const c_char {
    let text: &CStr = match status {
        ANABRANCH_OK => c"no error",
        ANABRANCH_ERROR_USAGE => c"wrong argument or order of calls",
        ANABRANCH_ERROR_CONFIG => c"wrong setting",
        ANABRANCH_ERROR_ENVIRONMENT => c"runtime, compiler, device or limit missing",
        ANABRANCH_ERROR_COMPILE => c"kernel does not compile",
        ANABRANCH_ERROR_PEER => c"another rank is lost, late or unreachable",
        ANABRANCH_ERROR_DEVICE => c"device failed",
        ANABRANCH_ERROR_BUSY => c"time limit ended, work goes on",
        ANABRANCH_ERROR_INTERNAL => c"defect of the library",
        _ => c"unknown status",
    };
    text.as_ptr()
}

const fn number(text: &str) -> u32 {
    let (bytes, mut value, mut index) = (text.as_bytes(), 0, 0);
    while index < bytes.len() {
        value = 10 * value + (bytes[index] - b'0') as u32;
        index += 1;
    }
    value
}

/// The version of the library: `major * 10000 + minor * 100 + patch`.
#[unsafe(no_mangle)]
pub extern "C" fn anabranch_version() -> u32 {
    const VERSION: u32 = number(env!("CARGO_PKG_VERSION_MAJOR")) * 10000
        + number(env!("CARGO_PKG_VERSION_MINOR")) * 100
        + number(env!("CARGO_PKG_VERSION_PATCH"));
    VERSION
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> String {
        // SAFETY: text of this thread, copied before another call fails.
        unsafe { CStr::from_ptr(anabranch_last_error()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn panic_becomes_a_status() {
        let mut seen = String::new();
        let status = guard_with(|| panic!("queue {} is gone", 3), |text| text.clone_into(&mut seen));
        assert_eq!(status, ANABRANCH_ERROR_INTERNAL);
        assert_eq!(text(), "a defect of the library: queue 3 is gone");
        assert_eq!(seen, text());
    }

    #[test]
    fn errors_are_kept_for_each_thread() {
        assert_eq!(guard(|| Err(Failure::usage("one"))), ANABRANCH_ERROR_USAGE);
        let other = std::thread::spawn(|| {
            let before = text();
            (before, guard(|| Err(Failure::config("a\0b"))), text())
        });
        assert_eq!(other.join().unwrap(), (String::new(), ANABRANCH_ERROR_CONFIG, "a b".to_owned()));
        assert_eq!(guard(|| Ok(())), ANABRANCH_OK);
        assert_eq!(text(), "one");
    }
}
