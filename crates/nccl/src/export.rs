//! How functions are exported, and their arguments.

use crate::abi::Handle;
use crate::comm::{self, Comm};
use crate::error::Failure;
use std::sync::Arc;

/// A function, and the same with the prefix `p`. The body's failures become codes.
macro_rules! export {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $body:block)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $kind),*) -> crate::abi::ResultCode {
                crate::process::start_log();
                crate::error::call(stringify!($name), move || $body)
            }
        )*
        mod with_prefix {
            use super::*;
            $(
                #[unsafe(export_name = concat!("p", stringify!($name)))]
                unsafe extern "C" fn $name($($argument: $kind),*) -> crate::abi::ResultCode {
                    // SAFETY: the caller's contract is the same.
                    unsafe { super::$name($($argument),*) }
                }
            )*
        }
    };
}

pub(crate) use export;

/// Functions that return no code.
macro_rules! export_plain {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)? $body:block)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $kind),*) $(-> $result)? $body
        )*
        mod plain_with_prefix {
            use super::*;
            $(
                #[unsafe(export_name = concat!("p", stringify!($name)))]
                unsafe extern "C" fn $name($($argument: $kind),*) $(-> $result)? {
                    // SAFETY: the caller's contract is the same.
                    unsafe { super::$name($($argument),*) }
                }
            )*
        }
    };
}
pub(crate) use export_plain;

/// An argument that a job writes through when it is done: NCCL demands that it stays valid until then.
pub(crate) struct Out<T>(*mut T);

// SAFETY: the program gives the place to the call that the job is of, and does not use it before that is done.
unsafe impl<T> Send for Out<T> {}

impl<T> Out<T> {
    pub(crate) fn new(place: *mut T, name: &str) -> Result<Self, Failure> {
        if place.is_null() { Err(Failure::argument(format!("{name} is null"))) } else { Ok(Self(place)) }
    }

    pub(crate) fn put(&self, value: T) {
        // SAFETY: the caller's out pointer, which is not null.
        unsafe { self.0.write(value) }
    }
}

/// Writes an argument.
///
/// # Errors
/// A null place.
pub(crate) fn out<T>(place: *mut T, name: &str, value: T) -> Result<(), Failure> {
    Out::new(place, name)?.put(value);
    Ok(())
}

/// What a function does with its communicator. Its failures name the rank.
///
/// # Errors
/// As [`comm::find`], and those of `body`.
pub(crate) fn with<T>(
    comm: Handle,
    body: impl FnOnce(&Arc<Comm>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let comm = comm::find(comm)?;
    body(&comm).map_err(|failure| failure.on(comm.rank, comm.size))
}
