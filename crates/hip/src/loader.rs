//! Opens AMD's runtime library at run time.

use core::ffi::c_void;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};

use crate::causes::with_causes;
use crate::error::{LoadError, Result};
use crate::runtime::{Runtime, RuntimeKind};
use crate::table::HipApi;
use crate::types::HipError;

/// Sonames, newest first: ROCm 7, ROCm 6, and the development link.
const SONAMES: [&str; 3] = ["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"];

/// `dlopen` flag: succeed only if the library is already mapped in this process.
const RTLD_NOLOAD: i32 = 4;

/// Opens `libamdhip64` and fills the table.
///
/// Order: a copy that is already mapped in this process (a framework's: two copies of the runtime do not share
/// pointers), then each of `search` (a library file, or a directory that holds one), then the loader's own path.
/// The library is never unloaded: its threads outlive any handle.
///
/// # Errors
/// [`LoadError`]: what was tried and the loader's words, the first missing symbol, or what `hipInit` returned.
pub fn load_amd(search: &[PathBuf]) -> Result<Runtime, LoadError> {
    let mut tried = Vec::new();
    for (candidate, flags) in candidates(search) {
        // SAFETY: opening AMD's runtime runs its initialisers, which is what the caller asks for.
        match unsafe { Library::open(Some(&candidate), flags) } {
            Ok(library) => return fill(&candidate, library),
            Err(error) => tried.push((candidate, with_causes(&error))),
        }
    }
    Err(LoadError::NotFound { runtime: RuntimeKind::Amd, tried })
}

fn candidates(search: &[PathBuf]) -> Vec<(PathBuf, i32)> {
    let mapped = SONAMES.iter().map(|name| (PathBuf::from(name), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD));
    let named = search.iter().flat_map(|place| {
        let files = if place.is_dir() {
            SONAMES.iter().map(|name| place.join(name)).collect()
        } else {
            vec![place.clone()]
        };
        files.into_iter().map(|file| (file, RTLD_NOW | RTLD_GLOBAL))
    });
    let loader = SONAMES.iter().map(|name| (PathBuf::from(name), RTLD_NOW | RTLD_GLOBAL));
    mapped.chain(named).chain(loader).collect()
}

fn fill(path: &Path, library: Library) -> Result<Runtime, LoadError> {
    // Its initialisers have run, so it may have threads: it stays mapped also when it turns out to be unusable.
    let library = ManuallyDrop::new(library);
    let lookup = |name: &'static str| {
        // SAFETY: the symbol is only carried as an address; `from_lookup` gives it its type.
        let symbol = unsafe { library.get::<*const c_void>(name.as_bytes()) };
        symbol.ok().map(|symbol| symbol.as_raw_ptr().cast_const())
    };
    // SAFETY: the names are HIP's, and the library that exports them is HIP's runtime, whose header gives
    // these signatures; it is never unloaded, so the addresses stay valid.
    let api = unsafe { HipApi::from_lookup(lookup) }.map_err(|symbol| LoadError::MissingSymbol {
        runtime: RuntimeKind::Amd,
        path: path.to_owned(),
        symbol: symbol.to_owned(),
    })?;
    // SAFETY: hipInit takes flags that must be zero.
    let code = unsafe { (api.hipInit)(0) };
    if code != HipError::SUCCESS && code != HipError::NO_DEVICE {
        return Err(LoadError::Init { path: path.to_owned(), call: "hipInit", code: code.0 });
    }
    Ok(Runtime::new(RuntimeKind::Amd, api, None, path.display().to_string()))
}
