//! Opens `libfabric` at run time.
//!
//! Few functions are symbols of the library; everything else is in tables of functions behind the objects that it makes (`bindings.rs`).
//! Those that take a `struct fi_info` have versions (`nm -D`: `fi_getinfo@FABRIC_1.0` to `@FABRIC_1.3`, and later ones behind), and the
//! the layouts here are version 1.3's, which later libraries keep under that version.

use core::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use anabranch_hip::with_causes;
use anabranch_transport_rdma::symbols::{c_text, find};
use anabranch_transport_rdma::{NicError, Result};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::bindings::{FiFabricAttr, FiInfo, FiParam, FidFabric};
use crate::signals;

/// The library's name as the loader knows it; its first version is the only one.
const SONAME: &str = "libfabric.so.1";

macro_rules! fabric_table {
    ($($(#[$doc:meta])* fn $name:ident ($($arg:ty),*) -> $ret:ty, $version:literal, $c:literal;)*) => {
        /// `libfabric` as a table of functions, named as in its header. Each has the contract of its C namesake.
        pub(crate) struct Libfabric {
            $($(#[$doc])* pub(crate) $name: unsafe extern "C" fn($($arg),*) -> $ret,)*
        }

        impl Libfabric {
            /// Fills the table from a lookup of symbols by name and version.
            ///
            /// # Errors
            /// The first symbol that `lookup` does not know.
            ///
            /// # Safety
            /// Each address that `lookup` returns is the function of that name and version of `libfabric`, valid for ever.
            unsafe fn from_lookup(lookup: impl Fn(&CStr, &CStr) -> Option<*const c_void>) -> Result<Self, String> {
                Ok(Self {
                    $($name: {
                        let (name, version) = (c_text(concat!(stringify!($name), "\0")), c_text(concat!($version, "\0")));
                        let address = lookup(name, version).ok_or_else(|| format!("{}@{}", stringify!($name), $version))?;
                        // SAFETY: the caller promises that it is this function, whose signature the header gives; data and
                        // function pointers have the same size on every supported target.
                        unsafe { core::mem::transmute::<*const c_void, unsafe extern "C" fn($($arg),*) -> $ret>(address) }
                    },)*
                })
            }
        }

        /// Name and C type of each function, for the test that compares them with the header.
        #[cfg(test)]
        pub(crate) const FUNCTIONS: &[(&str, &str)] = &[$((stringify!($name), $c),)*];
    };
}

fabric_table! {
    fn fi_getinfo(u32, *const c_char, *const c_char, u64, *const FiInfo, *mut *mut FiInfo) -> c_int, "FABRIC_1.3",
        "int (*)(uint32_t, const char *, const char *, uint64_t, const fi_info *, fi_info **)";
    fn fi_freeinfo(*mut FiInfo) -> (), "FABRIC_1.3", "void (*)(fi_info *)";
    fn fi_dupinfo(*const FiInfo) -> *mut FiInfo, "FABRIC_1.3", "fi_info *(*)(const fi_info *)";
    fn fi_fabric(*mut FiFabricAttr, *mut *mut FidFabric, *mut c_void) -> c_int, "FABRIC_1.1",
        "int (*)(fi_fabric_attr *, fid_fabric **, void *)";
    fn fi_getparams(*mut *mut FiParam, *mut c_int) -> c_int, "FABRIC_1.0", "int (*)(fi_param **, int *)";
    fn fi_freeparams(*mut FiParam) -> (), "FABRIC_1.0", "void (*)(fi_param *)";
    fn fi_version() -> u32, "FABRIC_1.0", "uint32_t (*)()";
    fn fi_strerror(c_int) -> *const c_char, "FABRIC_1.0", "const char *(*)(int)";
}

impl fmt::Debug for Libfabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Libfabric").field("version", &self.version()).finish()
    }
}

impl Libfabric {
    /// Opens `libfabric.so.1` by the loader's path. It is never unloaded: providers that it loads keep threads and handlers.
    ///
    /// # Errors
    /// [`NicError::Library`]: what was looked for, and the loader's error.
    pub(crate) fn open() -> Result<Arc<Self>> {
        Self::open_named(SONAME)
    }

    fn open_named(name: &'static str) -> Result<Arc<Self>> {
        let _handlers = signals::keep();
        // SAFETY: opening the library runs its initialisers, which is what the caller asks for.
        let opened = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) };
        let library = ManuallyDrop::new(opened.map_err(|error| NicError::Library {
            library: "libfabric",
            looked: format!("{name}, by the loader's path; Debian's package is libfabric1"),
            cause: with_causes(&error),
        })?);
        // SAFETY: the names and versions are those of libfabric, which stays open.
        let table = unsafe { Self::from_lookup(|symbol, version| find(&library, symbol, version)) };
        table.map(Arc::new).map_err(|symbol| NicError::Library {
            library: "libfabric",
            looked: format!("{symbol} in {name}"),
            cause: "the library has no such function; libfabric 1.17 or later is needed".to_owned(),
        })
    }

    /// Its version, as major and minor number.
    pub(crate) fn version(&self) -> (u32, u32) {
        // SAFETY: the function takes nothing and reads a constant.
        let version = unsafe { (self.fi_version)() };
        (version >> 16, version & 0xffff)
    }

    /// What environment variables the library and its providers know, in capitals as in the environment, and the values of those that are
    /// set.
    pub(crate) fn parameters(&self) -> Result<Vec<(String, Option<String>)>> {
        let _handlers = signals::keep();
        let (mut first, mut count) = (core::ptr::null_mut(), 0);
        // SAFETY: the call writes one pointer and one number.
        let code = unsafe { (self.fi_getparams)(&raw mut first, &raw mut count) };
        self.check("fi_getparams", code, "any provider")?;
        let text = |at: *const c_char| {
            // SAFETY: texts of the list end in a zero byte, and live as long as it.
            (!at.is_null()).then(|| unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned())
        };
        let mut known = Vec::new();
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has that many elements.
            let parameter = unsafe { &*first.add(index) };
            known.extend(text(parameter.name).map(|name| (name.to_uppercase(), text(parameter.value))));
        }
        if !first.is_null() {
            // SAFETY: the list is the library's, freed once.
            unsafe { (self.fi_freeparams)(first) };
        }
        Ok(known)
    }

    /// What an error number says; the library's functions return them negative, and its completions carry them positive.
    pub(crate) fn words(&self, code: c_int) -> String {
        // SAFETY: the function returns a text that ends in a zero byte and lives for ever, for any number.
        let text = unsafe { CStr::from_ptr((self.fi_strerror)(code.saturating_abs())) };
        format!("{} ({})", text.to_string_lossy(), code.saturating_abs())
    }

    /// The error of a call that returned a negative number.
    pub(crate) fn check(&self, call: &'static str, code: c_int, nic: &str) -> Result<()> {
        if code >= 0 {
            return Ok(());
        }
        Err(NicError::Call { call, nic: nic.to_owned(), cause: self.words(code) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_error_names_what_was_looked_for() {
        let error = Libfabric::open_named("libfabric-that-nobody-has.so.9").unwrap_err().to_string();
        assert!(error.contains("libfabric-that-nobody-has.so.9") && error.contains("libfabric1"), "{error}");
    }

    #[test]
    fn a_library_without_the_functions_names_the_first() {
        // Every process has a C library, and it has no fabrics.
        let error = Libfabric::open_named("libc.so.6").unwrap_err().to_string();
        assert!(error.contains("fi_getinfo@FABRIC_1.3 in libc.so.6"), "{error}");
    }
}
