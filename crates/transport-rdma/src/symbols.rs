//! Functions of shared libraries by name and version, for tables that are filled when a library is opened.

use core::ffi::{CStr, c_char, c_void};

use libloading::os::unix::Library;

/// A text that ends in a zero byte, for names in tables of functions; empty for another.
pub const fn c_text(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        // Macros end every text so.
        Err(_) => c"",
    }
}

type FindVersion = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// The address of a function of a version; `None` where the library has none. Functions may have two versions of different signatures or
/// layouts, and an unversioned lookup finds one of them. Where the C library knows no versions (musl), there are none in the library either.
/// Not collective; nothing is called.
pub fn find(library: &Library, symbol: &CStr, version: &CStr) -> Option<*const c_void> {
    // SAFETY: the type is that of the C library's dlvsym.
    let by_version = unsafe { Library::this().get::<FindVersion>(b"dlvsym\0") }.ok().map(|found| *found);
    if let Some(by_version) = by_version {
        // SAFETY: a handle that borrows the library's, not to be closed.
        let handle = unsafe { core::ptr::read(library) }.into_raw();
        // SAFETY: the handle is open, and both texts end in a zero byte.
        let address = unsafe { by_version(handle, symbol.as_ptr(), version.as_ptr()) };
        return (!address.is_null()).then_some(address.cast_const());
    }
    // SAFETY: the symbol is only carried as an address.
    let found = unsafe { library.get::<*const c_void>(symbol.to_bytes_with_nul()) };
    found.ok().map(|symbol| symbol.as_raw_ptr().cast_const())
}
