//! Finds the runtime that this process has mapped, and the way it offers to make queues; and the host's side of a queue.

mod functions;
mod port;
mod runtime;
mod session;
mod thunk;

use core::ffi::c_int;
use std::sync::Arc;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

pub(super) use self::port::HostPort;

use self::functions::{HsaFunctions, QueueFunctions, ThunkFunctions};
use self::runtime::RuntimeDriver;
use self::session::Session;
use self::thunk::MappedThunk;
use super::driver::Driver;
use super::error::{AmdError, AmdResult};
use super::thunk::ThunkDriver;

/// Names of the runtime: the one that every ROCm gives itself, and the one under which some frameworks load their copy.
const NAMES: [&str; 2] = ["libhsa-runtime64.so.1", "libhsa-runtime64.so"];

/// `RTLD_NOLOAD` of Linux: a handle only if the library is mapped already.
const RTLD_NOLOAD: c_int = 4;

/// Opens the first way to make queues that the runtime of this process offers: its own function, then the thunk's. HIP's AMD
/// runtime must be open; a second copy of it is never loaded. Any thread; not collective.
///
/// # Errors
/// [`AmdError::NotMapped`]; [`AmdError::Symbols`] for a library that is no such runtime; [`AmdError::NoWay`], which reports about each
/// way what it lacks; [`AmdError::Call`] if the runtime refuses to be used.
pub fn open_driver() -> AmdResult<Arc<dyn Driver>> {
    let (name, library) = mapped()?;
    let hsa = HsaFunctions::of(&library)
        .map_err(|symbols| AmdError::Symbols { library: name.to_owned(), symbols })?;
    let session = Arc::new(Session::open(name, library, hsa)?);
    let mut tried = Vec::new();
    match QueueFunctions::of(session.library()) {
        Err(symbols) => tried.push(format!("its own function: no {}", symbols.join(", "))),
        Ok(functions) => match RuntimeDriver::new(Arc::clone(&session), functions) {
            Ok(driver) => return Ok(Arc::new(driver)),
            Err(why) => tried.push(format!("its own function: {why}")),
        },
    }
    match ThunkFunctions::of(session.library()) {
        Err(symbols) => tried.push(format!("the thunk's functions: no {}", symbols.join(", "))),
        Ok(functions) => match MappedThunk::open(session, functions).and_then(ThunkDriver::new) {
            Ok(driver) => return Ok(Arc::new(driver)),
            Err(why) => tried.push(format!("the thunk's functions: {why}")),
        },
    }
    Err(AmdError::NoWay { library: name.to_owned(), tried })
}

fn mapped() -> AmdResult<(&'static str, Library)> {
    for name in NAMES {
        // SAFETY: nothing is loaded, so no code of the library runs.
        if let Ok(library) = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD) } {
            return Ok((name, library));
        }
    }
    Err(AmdError::NotMapped { tried: NAMES.join(", ") })
}
