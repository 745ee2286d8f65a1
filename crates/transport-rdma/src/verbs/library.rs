//! Opens `libibverbs` at run time.

use core::ffi::{CStr, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::sync::Arc;

use anabranch_hip::with_causes;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::bindings::{
    IbvAhAttr, IbvContext, IbvCq, IbvDevice, IbvDeviceAttr, IbvGidEntry, IbvMr, IbvPd, IbvPortAttr, IbvQp,
    IbvQpAttr, IbvQpInitAttr,
};
use crate::error::{NicError, Result};
use crate::symbols::{c_text, find};

/// The library's name as the loader knows it; its first version is the only one.
const SONAME: &str = "libibverbs.so.1";

macro_rules! verbs_table {
    (
        required { $(fn $name:ident ($($arg:ty),*) -> $ret:ty, $version:literal, $c:literal;)* }
        optional { $(fn $oname:ident ($($oarg:ty),*) -> $oret:ty, $oversion:literal, $oc:literal;)* }
    ) => {
        /// `libibverbs` as a table of functions, named as in its header. Each has the contract of its C namesake.
        #[allow(non_snake_case, reason = "fields carry the C names")]
        pub(crate) struct Verbs {
            $(pub(crate) $name: unsafe extern "C" fn($($arg),*) -> $ret,)*
            $(pub(crate) $oname: Option<unsafe extern "C" fn($($oarg),*) -> $oret>,)*
        }

        impl Verbs {
            /// Fills the table from a lookup of symbols by name and version.
            ///
            /// # Errors
            /// The first required symbol that `lookup` does not know.
            ///
            /// # Safety
            /// Each address that `lookup` returns is the function of that name and version of `libibverbs`, valid for ever.
            pub(super) unsafe fn from_lookup(
                lookup: impl Fn(&'static CStr, &'static CStr) -> Option<*const c_void>,
            ) -> Result<Self, String> {
                Ok(Self {
                    $($name: {
                        let (name, version) = (c_text(concat!(stringify!($name), "\0")), c_text(concat!($version, "\0")));
                        let address = lookup(name, version).ok_or_else(|| format!("{}@{}", stringify!($name), $version))?;
                        // SAFETY: the caller promises that it is this function, whose signature the header gives; data and
                        // function pointers have the same size on every supported target.
                        unsafe { core::mem::transmute::<*const c_void, unsafe extern "C" fn($($arg),*) -> $ret>(address) }
                    },)*
                    $($oname: {
                        let (name, version) = (c_text(concat!(stringify!($oname), "\0")), c_text(concat!($oversion, "\0")));
                        // SAFETY: as above.
                        lookup(name, version).map(|address| unsafe {
                            core::mem::transmute::<*const c_void, unsafe extern "C" fn($($oarg),*) -> $oret>(address)
                        })
                    },)*
                })
            }
        }

        /// Name and C type of each function, for the test that compares them with the header.
        #[cfg(test)]
        pub(crate) const FUNCTIONS: &[(&str, &str)] =
            &[$((stringify!($name), $c),)* $((stringify!($oname), $oc),)*];
    };
}

verbs_table! {
    required {
        fn ibv_get_device_list(*mut c_int) -> *mut *mut IbvDevice, "IBVERBS_1.1", "ibv_device **(*)(int *)";
        fn ibv_free_device_list(*mut *mut IbvDevice) -> (), "IBVERBS_1.1", "void (*)(ibv_device **)";
        fn ibv_get_device_name(*mut IbvDevice) -> *const c_char, "IBVERBS_1.1", "const char *(*)(ibv_device *)";
        fn ibv_open_device(*mut IbvDevice) -> *mut IbvContext, "IBVERBS_1.1", "ibv_context *(*)(ibv_device *)";
        fn ibv_close_device(*mut IbvContext) -> c_int, "IBVERBS_1.1", "int (*)(ibv_context *)";
        fn ibv_query_device(*mut IbvContext, *mut IbvDeviceAttr) -> c_int, "IBVERBS_1.1",
            "int (*)(ibv_context *, ibv_device_attr *)";
        // The header's third type is the attributes without their last word, of the same layout.
        fn ibv_query_port(*mut IbvContext, u8, *mut IbvPortAttr) -> c_int, "IBVERBS_1.1",
            "int (*)(ibv_context *, uint8_t, _compat_ibv_port_attr *)";
        fn _ibv_query_gid_ex(*mut IbvContext, u32, u32, *mut IbvGidEntry, u32, usize) -> c_int, "IBVERBS_1.11",
            "int (*)(ibv_context *, uint32_t, uint32_t, ibv_gid_entry *, uint32_t, size_t)";
        fn ibv_alloc_pd(*mut IbvContext) -> *mut IbvPd, "IBVERBS_1.1", "ibv_pd *(*)(ibv_context *)";
        fn ibv_dealloc_pd(*mut IbvPd) -> c_int, "IBVERBS_1.1", "int (*)(ibv_pd *)";
        fn ibv_reg_mr(*mut IbvPd, *mut c_void, usize, c_int) -> *mut IbvMr, "IBVERBS_1.1",
            "ibv_mr *(*)(ibv_pd *, void *, size_t, int)";
        fn ibv_dereg_mr(*mut IbvMr) -> c_int, "IBVERBS_1.1", "int (*)(ibv_mr *)";
        fn ibv_create_cq(*mut IbvContext, c_int, *mut c_void, *mut c_void, c_int) -> *mut IbvCq, "IBVERBS_1.1",
            "ibv_cq *(*)(ibv_context *, int, void *, ibv_comp_channel *, int)";
        fn ibv_destroy_cq(*mut IbvCq) -> c_int, "IBVERBS_1.1", "int (*)(ibv_cq *)";
        fn ibv_create_qp(*mut IbvPd, *mut IbvQpInitAttr) -> *mut IbvQp, "IBVERBS_1.1",
            "ibv_qp *(*)(ibv_pd *, ibv_qp_init_attr *)";
        fn ibv_modify_qp(*mut IbvQp, *mut IbvQpAttr, c_int) -> c_int, "IBVERBS_1.1",
            "int (*)(ibv_qp *, ibv_qp_attr *, int)";
        fn ibv_destroy_qp(*mut IbvQp) -> c_int, "IBVERBS_1.1", "int (*)(ibv_qp *)";
        fn ibv_create_ah(*mut IbvPd, *mut IbvAhAttr) -> *mut c_void, "IBVERBS_1.1",
            "ibv_ah *(*)(ibv_pd *, ibv_ah_attr *)";
        fn ibv_destroy_ah(*mut c_void) -> c_int, "IBVERBS_1.1", "int (*)(ibv_ah *)";
    }
    optional {
        fn ibv_reg_dmabuf_mr(*mut IbvPd, u64, usize, u64, c_int, c_int) -> *mut IbvMr, "IBVERBS_1.12",
            "ibv_mr *(*)(ibv_pd *, uint64_t, size_t, uint64_t, int, int)";
    }
}

impl core::fmt::Debug for Verbs {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Verbs").field("dmabuf", &self.ibv_reg_dmabuf_mr.is_some()).finish_non_exhaustive()
    }
}

impl Verbs {
    /// Opens `libibverbs.so.1` by the loader's path. It is never unloaded: providers that it loads keep threads and handlers.
    ///
    /// # Errors
    /// [`NicError::Library`]: what was looked for, and the loader's error.
    pub(crate) fn open() -> Result<Arc<Self>> {
        Self::open_named(SONAME)
    }

    fn open_named(name: &'static str) -> Result<Arc<Self>> {
        // SAFETY: opening the library runs its initialisers, which is what the caller asks for.
        let opened = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) };
        let library = ManuallyDrop::new(opened.map_err(|error| NicError::Library {
            library: "libibverbs",
            looked: format!("{name}, by the loader's path; it comes with rdma-core"),
            cause: with_causes(&error),
        })?);
        // SAFETY: the names and versions are those of libibverbs, which stays open.
        let table = unsafe { Self::from_lookup(|symbol, version| find(&library, symbol, version)) };
        table.map(Arc::new).map_err(|symbol| NicError::Library {
            library: "libibverbs",
            looked: format!("{symbol} in {name}"),
            cause: "the library has no such function; rdma-core 32 or later is needed".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_error_names_what_was_looked_for() {
        let error = Verbs::open_named("libibverbs-that-nobody-has.so.9").unwrap_err().to_string();
        assert!(error.contains("libibverbs-that-nobody-has.so.9") && error.contains("rdma-core"), "{error}");
    }

    #[test]
    fn a_library_without_the_functions_names_the_first() {
        // Every process has a C library, and it has no verbs.
        let error = Verbs::open_named("libc.so.6").unwrap_err().to_string();
        assert!(error.contains("ibv_get_device_list@IBVERBS_1.1 in libc.so.6"), "{error}");
    }
}
