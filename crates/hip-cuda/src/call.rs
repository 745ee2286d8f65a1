//! What every function of the table does around its driver call: find the driver, have a context, remember
//! the error.

use core::cell::Cell;

use anabranch_hip::HipError;

use crate::context;
use crate::driver::{self, Driver};

thread_local! {
    /// What `hipGetLastError` returns next.
    static LAST: Cell<HipError> = const { Cell::new(HipError::SUCCESS) };
}

/// Runs `action` with the driver; for calls that need no current context.
pub(crate) fn with_driver(action: impl FnOnce(&'static Driver) -> Result<(), HipError>) -> HipError {
    let outcome = driver::get().ok_or(HipError::NOT_INITIALIZED).and_then(action);
    finish(outcome)
}

/// Runs `action` with the driver and some context current.
pub(crate) fn in_context(action: impl FnOnce(&'static Driver) -> Result<(), HipError>) -> HipError {
    with_driver(|driver| {
        context::ensure(driver)?;
        action(driver)
    })
}

/// Turns an outcome into a code, and remembers an error. "Not ready" is an answer and no error.
pub(crate) fn finish(outcome: Result<(), HipError>) -> HipError {
    let code = outcome.err().unwrap_or(HipError::SUCCESS);
    if code != HipError::SUCCESS && code != HipError::NOT_READY {
        LAST.set(code);
    }
    code
}

/// The thread's last error, which is forgotten by asking.
pub(crate) fn take_last_error() -> HipError {
    LAST.replace(HipError::SUCCESS)
}

/// Writes through a caller's out pointer, or says that it is null.
///
/// # Safety
/// `place` is null or valid for a write of `T`.
pub(crate) unsafe fn give<T>(place: *mut T, value: T) -> Result<(), HipError> {
    if place.is_null() {
        return Err(HipError::INVALID_VALUE);
    }
    // SAFETY: not null, and valid by this function's contract.
    unsafe { place.write(value) };
    Ok(())
}

/// Functions of the table that are one driver call with converted arguments. `via` names the driver function;
/// `maybe via` one that the driver may lack.
macro_rules! forward {
    ($( $(#[$meta:meta])* fn $hip:ident($($arg:ident: $ty:ty),* $(,)?) via $cuda:ident($($value:expr),*); )*) => { $(
        $(#[$meta])*
        pub(crate) unsafe extern "C" fn $hip($($arg: $ty),*) -> anabranch_hip::HipError {
            crate::call::in_context(|driver| {
                // SAFETY: the driver function has the contract of the HIP function of the same meaning, which
                // this function's caller keeps; the arguments differ only in how C spells their types. The
                // driver itself refuses null out pointers.
                crate::convert::check(unsafe { (driver.cuda.$cuda)($($value),*) })
            })
        }
    )* };
}
macro_rules! forward_optional {
    ($( $(#[$meta:meta])* fn $hip:ident($($arg:ident: $ty:ty),* $(,)?) via $cuda:ident($($value:expr),*); )*) => { $(
        $(#[$meta])*
        pub(crate) unsafe extern "C" fn $hip($($arg: $ty),*) -> anabranch_hip::HipError {
            crate::call::in_context(|driver| {
                let function = driver.cuda.$cuda.ok_or(anabranch_hip::HipError::NOT_SUPPORTED)?;
                // SAFETY: as for `forward`.
                crate::convert::check(unsafe { function($($value),*) })
            })
        }
    )* };
}
pub(crate) use {forward, forward_optional};
