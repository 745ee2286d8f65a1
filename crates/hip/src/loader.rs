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
/// Order: a copy that is already mapped in this process, under whatever file name (a framework's: two copies of the
/// runtime do not share pointers and streams), then each of `search` (a library file, or a directory that holds one),
/// then the loader's own path. [`Runtime::origin`] is the file.
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

/// This process's mappings, a line each: `address range, permissions, offset, device, inode, path` (proc(5)). Empty
/// where they cannot be read: then libraries are known by their sonames only.
fn mappings() -> String {
    std::fs::read_to_string("/proc/self/maps").unwrap_or_default()
}

fn path_of(mapping: &str) -> Option<&Path> {
    mapping.find('/').map(|start| Path::new(&mapping[start..]))
}

/// The mapped files that are AMD's runtime by their names, in the order of addresses: `libamdhip64.so`, with a version
/// or without, and what wheels rename it to, `libamdhip64-0123abcd.so`.
fn mapped_runtimes(mappings: &str) -> Vec<PathBuf> {
    let is_runtime = |path: &&Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libamdhip64.so") || (name.starts_with("libamdhip64-") && name.contains(".so"))
    };
    let mut files: Vec<PathBuf> =
        mappings.lines().filter_map(path_of).filter(is_runtime).map(Path::to_owned).collect();
    files.dedup();
    files
}

/// The file that is mapped at an address.
fn file_at(mappings: &str, address: usize) -> Option<PathBuf> {
    let holds = |line: &&str| {
        let range = line.split_whitespace().next().and_then(|range| range.split_once('-'));
        let number = |text| usize::from_str_radix(text, 16).ok();
        range
            .and_then(|(start, end)| Some((number(start)?, number(end)?)))
            .is_some_and(|(start, end)| (start..end).contains(&address))
    };
    mappings.lines().find(holds).and_then(path_of).map(Path::to_owned)
}

fn candidates(search: &[PathBuf]) -> Vec<(PathBuf, i32)> {
    let files = mapped_runtimes(&mappings());
    if files.len() > 1 {
        tracing::warn!(
            ?files,
            "several copies of AMD's runtime in one process: they do not share pointers and streams"
        );
    }
    let sonames = SONAMES.iter().map(PathBuf::from);
    let mapped = files.into_iter().chain(sonames).map(|name| (name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD));
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
    let file = file_at(&mappings(), api.hipInit as usize).unwrap_or_else(|| path.to_owned());
    Ok(Runtime::new(RuntimeKind::Amd, api, None, file.display().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPPINGS: &str = "\
7f0000000000-7f0000001000 r--p 00000000 08:01 7 /venv/torch/lib/libamdhip64-0a1b2c3d.so.6
7f0000001000-7f0000009000 r-xp 00001000 08:01 7 /venv/torch/lib/libamdhip64-0a1b2c3d.so.6
7f0000010000-7f0000020000 rw-p 00000000 00:00 0
7f0000020000-7f0000030000 r-xp 00000000 08:01 8 /a folder/libamdhip64.so.7.2
7f0000030000-7f0000040000 r-xp 00000000 08:01 9 /usr/lib/libamdhip64_helper.so
7ffd00000000-7ffd00001000 rw-p 00000000 00:00 0 [stack]
";

    #[test]
    fn runtimes_are_found_by_their_file_names() {
        let files = ["/venv/torch/lib/libamdhip64-0a1b2c3d.so.6", "/a folder/libamdhip64.so.7.2"];
        assert_eq!(mapped_runtimes(MAPPINGS), files.map(PathBuf::from));
    }

    #[test]
    fn addresses_are_found_in_files() {
        let at = |address| file_at(MAPPINGS, address);
        assert_eq!(at(0x7f00_0002_0000), Some("/a folder/libamdhip64.so.7.2".into()));
        assert_eq!(at(0x7f00_0002_ffff), Some("/a folder/libamdhip64.so.7.2".into()));
        assert_eq!(at(0x7f00_0001_0000), None, "memory of no file");
        assert_eq!(at(0x7f00_0000_a000), None, "not mapped");
    }
}
