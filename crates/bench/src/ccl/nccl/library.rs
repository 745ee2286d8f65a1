//! Opening `libnccl.so.2` at run time, and its functions.
#![expect(
    unsafe_code,
    reason = "functions of a library that is opened at run time have the types that its header says"
)]

use core::ffi::{c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use anabranch::Environment;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::error::{NcclError, Version};

/// The name that all versions since 2.0 have.
const SONAME: &str = "libnccl.so.2";

/// Where NVIDIA's wheels (`nvidia-nccl-cu12`, `nvidia-nccl-cu13`) put it, below a `site-packages` folder.
const IN_SITE_PACKAGES: &str = "nvidia/nccl/lib";

/// `ncclUniqueId`, which the C interface takes by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct UniqueId(pub(super) [u8; UNIQUE_ID_BYTES]);

/// `NCCL_UNIQUE_ID_BYTES`.
pub(super) const UNIQUE_ID_BYTES: usize = 128;

/// `NCCL_WIN_COLL_SYMMETRIC`.
pub(super) const WINDOW_SYMMETRIC: c_int = 1;

/// `ncclSuccess`.
pub(super) const SUCCESS: c_int = 0;

/// `ncclComm_t`.
pub(super) type RawCommunicator = *mut c_void;
/// `ncclWindow_t`.
pub(super) type RawWindow = *mut c_void;
/// `cudaStream_t`, which is the driver's `CUstream`.
pub(super) type RawStream = *mut c_void;

/// Declares the table from the header's signatures: `required` are in every supported version, `optional` came later.
macro_rules! functions {
    (
        required { $($name:ident: fn($($argument:ty),* $(,)?) -> $result:ty;)* }
        optional { $($late:ident: fn($($late_argument:ty),* $(,)?) -> $late_result:ty;)* }
    ) => {
        /// NCCL's functions, by their C names. Signatures: nccl.h of NCCL 2.32.3 (`nvidia/nccl/include/nccl.h` of the wheel
        /// nvidia-nccl-cu13); enums are ints there.
        #[derive(Clone, Copy, Debug)]
        #[expect(non_snake_case, reason = "fields have the C names")]
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> $result,)*
            $(pub(super) $late: Option<unsafe extern "C" fn($($late_argument),*) -> $late_result>,)*
        }

        impl Functions {
            /// The first missing one is the error.
            fn load(library: &Library) -> Result<Self, &'static str> {
                Ok(Self {
                    // SAFETY: the field has the type that the header gives for the name.
                    $($name: *unsafe { library.get(stringify!($name)) }.map_err(|_| stringify!($name))?,)*
                    // SAFETY: as above.
                    $($late: unsafe { library.get(stringify!($late)) }.ok().map(|symbol| *symbol),)*
                })
            }
        }
    };
}

functions! {
    required {
        ncclGetVersion: fn(*mut c_int) -> c_int;
        ncclGetUniqueId: fn(*mut UniqueId) -> c_int;
        ncclCommInitRank: fn(*mut RawCommunicator, c_int, UniqueId, c_int) -> c_int;
        ncclCommDestroy: fn(RawCommunicator) -> c_int;
        ncclCommAbort: fn(RawCommunicator) -> c_int;
        ncclGetErrorString: fn(c_int) -> *const c_char;
        ncclAllReduce: fn(*const c_void, *mut c_void, usize, c_int, c_int, RawCommunicator, RawStream) -> c_int;
        ncclAllGather: fn(*const c_void, *mut c_void, usize, c_int, RawCommunicator, RawStream) -> c_int;
        ncclReduceScatter: fn(*const c_void, *mut c_void, usize, c_int, c_int, RawCommunicator, RawStream) -> c_int;
        ncclBroadcast: fn(*const c_void, *mut c_void, usize, c_int, c_int, RawCommunicator, RawStream) -> c_int;
        ncclReduce:
            fn(*const c_void, *mut c_void, usize, c_int, c_int, c_int, RawCommunicator, RawStream) -> c_int;
        ncclSend: fn(*const c_void, usize, c_int, c_int, RawCommunicator, RawStream) -> c_int;
        ncclRecv: fn(*mut c_void, usize, c_int, c_int, RawCommunicator, RawStream) -> c_int;
        ncclGroupStart: fn() -> c_int;
        ncclGroupEnd: fn() -> c_int;
    }
    optional {
        // 2.13.
        ncclGetLastError: fn(RawCommunicator) -> *const c_char;
        // 2.19.
        ncclMemAlloc: fn(*mut *mut c_void, usize) -> c_int;
        ncclMemFree: fn(*mut c_void) -> c_int;
        // 2.27.
        ncclCommWindowRegister: fn(RawCommunicator, *mut c_void, usize, *mut RawWindow, c_int) -> c_int;
        ncclCommWindowDeregister: fn(RawCommunicator, RawWindow) -> c_int;
        // 2.28.
        ncclAlltoAll: fn(*const c_void, *mut c_void, usize, c_int, RawCommunicator, RawStream) -> c_int;
    }
}

/// An open library. Never unloaded: it keeps threads and device state of its own.
#[derive(Clone, Debug)]
pub(crate) struct NcclLibrary {
    pub(super) functions: Functions,
    path: PathBuf,
    version: Version,
}

impl NcclLibrary {
    /// Opens the library that `named` names, or else the first that opens: by the loader's own search, then in Python's
    /// `site-packages`.
    ///
    /// # Errors
    /// [`NcclError::NotFound`] with every candidate.
    pub(crate) fn open(named: Option<&Path>, environment: &Environment) -> Result<Self, NcclError> {
        let mut tried = Vec::new();
        for candidate in candidates(named, &environment.python_sites()) {
            match Self::open_path(&candidate) {
                Ok(library) => return Ok(library),
                Err(why) => tried.push((candidate, why)),
            }
        }
        Err(NcclError::NotFound { tried })
    }

    fn open_path(path: &Path) -> Result<Self, String> {
        if path.is_absolute() && !path.exists() {
            return Err("no such file".to_owned());
        }
        // SAFETY: the library is NVIDIA's; its initialisers have no preconditions.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|error| anabranch_hip::with_distinct_causes(&error))?;
        let library = ManuallyDrop::new(library);
        let functions = Functions::load(&library).map_err(|symbol| format!("has no {symbol}"))?;
        let mut version = 0;
        // SAFETY: the call writes one int.
        let code = unsafe { (functions.ncclGetVersion)(&raw mut version) };
        if code != SUCCESS {
            return Err(format!("ncclGetVersion returns {code}"));
        }
        Ok(Self { functions, path: path.to_owned(), version: Version(version) })
    }

    /// Its version.
    pub(crate) fn version(&self) -> Version {
        self.version
    }

    /// A function that came later than the first supported version.
    ///
    /// # Errors
    /// [`NcclError::TooOld`].
    pub(super) fn since<F>(
        &self,
        function: Option<F>,
        symbol: &'static str,
        since: &'static str,
    ) -> Result<F, NcclError> {
        let (library, version) = (self.path.clone(), self.version);
        function.ok_or(NcclError::TooOld { library, version, symbol, since })
    }
}

/// What is tried, in this order. A library that the user names is the only one.
fn candidates(named: Option<&Path>, python_sites: &[PathBuf]) -> Vec<PathBuf> {
    match named {
        Some(named) if named.is_dir() => vec![named.join(SONAME)],
        Some(named) => vec![named.to_owned()],
        None => {
            let wheels = python_sites.iter().map(|site| site.join(IN_SITE_PACKAGES).join(SONAME));
            std::iter::once(PathBuf::from(SONAME)).chain(wheels).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loader_comes_before_wheels_and_a_named_file_is_the_only_one() {
        let sites = [PathBuf::from("/a"), PathBuf::from("/b")];
        let all = ["libnccl.so.2", "/a/nvidia/nccl/lib/libnccl.so.2", "/b/nvidia/nccl/lib/libnccl.so.2"];
        assert_eq!(candidates(None, &sites), all.map(PathBuf::from));
        let named = Path::new("/opt/nccl/libnccl.so.2.99");
        assert_eq!(candidates(Some(named), &sites), [named]);
        let folder = std::env::temp_dir();
        assert_eq!(candidates(Some(&folder), &sites), [folder.join("libnccl.so.2")]);
    }

    #[test]
    fn a_library_that_does_not_open_is_named_with_the_reason() {
        let environment = Environment::default();
        let missing = Path::new("/nonexistent/libnccl.so.2");
        let Err(NcclError::NotFound { tried }) = NcclLibrary::open(Some(missing), &environment) else {
            panic!("it opened")
        };
        assert_eq!(tried, [(missing.to_owned(), "no such file".to_owned())]);
        // A library, but not NCCL.
        let other = Path::new("libc.so.6");
        let Err(NcclError::NotFound { tried }) = NcclLibrary::open(Some(other), &environment) else {
            panic!("it opened")
        };
        assert_eq!(tried, [(other.to_owned(), "has no ncclGetVersion".to_owned())]);
    }

    #[test]
    fn the_id_is_passed_as_the_header_has_it() {
        assert_eq!((size_of::<UniqueId>(), align_of::<UniqueId>()), (128, 1));
    }
}
