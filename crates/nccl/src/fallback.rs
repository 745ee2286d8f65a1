//! Functions that this library does not have: refused, or handed to a real library that the user names.

use std::collections::BTreeSet;
use std::ffi::c_int;
use std::sync::{Mutex, OnceLock, PoisonError};

use anabranch::Environment;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};

use crate::abi::ResultCode;
use crate::error::{Failure, code};

/// The variable that names the real library.
const VARIABLE: &str = "ANABRANCH_NCCL_FALLBACK";
/// `RTLD_DEEPBIND` of glibc: the library uses its own functions, not those of this one that have the same names.
const RTLD_DEEPBIND: c_int = 8;

static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
static REFUSED: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

fn open() -> Option<Library> {
    let environment = Environment::of_process();
    let path = environment.get(VARIABLE)?;
    // SAFETY: the user names a library of NCCL's interface; its initialisers are those of any NCCL.
    let opened = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND) };
    let library = opened.inspect_err(|error| tracing::error!("{VARIABLE}={path}: {error}")).ok()?;
    // The loader gives this library for its path, and for its name without a folder.
    // SAFETY: only the address is used.
    let version = unsafe { library.get::<*const ()>("ncclGetVersion") }.ok().map(|symbol| *symbol);
    if version == Some(crate::lifecycle::own_function()) {
        tracing::error!("{VARIABLE}={path} is this library: give the path of the other one");
        return None;
    }
    Some(library)
}

/// The function of the real library, if the user names one that has it.
///
/// # Safety
/// `F` is the type of the function in NCCL's header.
pub(crate) unsafe fn function<F: Copy>(name: &str) -> Option<F> {
    let library = LIBRARY.get_or_init(open).as_ref()?;
    // SAFETY: the caller's contract.
    let found: Symbol<F> = unsafe { library.get(name) }.ok()?;
    Some(*found)
}

/// Refuses a function. Its name is logged once.
pub(crate) fn refuse(name: &'static str, reason: &str) -> ResultCode {
    let text = format!("not supported: {reason}");
    if REFUSED.lock().unwrap_or_else(PoisonError::into_inner).insert(name) {
        return code(name, Err(Failure::usage(text)));
    }
    crate::error::note(&format!("{name}: {text}"));
    crate::abi::INVALID_USAGE
}
