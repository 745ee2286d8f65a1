//! libmlx5, opened at run time: signatures and layouts are those of `infiniband/mlx5dv.h` of rdma-core (44 and later).

use core::ffi::{c_int, c_void};
use core::fmt;
use std::mem::ManuallyDrop;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use anabranch_transport::Region;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::devx::{Devx, DevxDoorbell, DevxMemory, DevxObject, VerbsDevice};
use super::path::{NextHop, PathRequest};
use crate::driver::Registered;
use crate::error::{NicError, Result};

const SONAME: &str = "libmlx5.so.1";
/// `MLX5DV_UAR_ALLOC_TYPE_NC`.
const NOT_COMBINED: u32 = 1;
/// `IBV_ACCESS_LOCAL_WRITE`.
const LOCAL_WRITE: u32 = 1;
/// `MLX5DV_OBJ_AH` and `MLX5DV_OBJ_PD`.
const OBJECT_AH: u64 = 1 << 5;
const OBJECT_PD: u64 = 1 << 6;

/// `struct mlx5dv_devx_umem`.
#[repr(C)]
pub(super) struct Umem {
    pub(super) umem_id: u32,
}

/// `struct mlx5dv_devx_uar`.
#[repr(C)]
pub(super) struct Uar {
    pub(super) reg_addr: *mut c_void,
    pub(super) base_addr: *mut c_void,
    pub(super) page_id: u32,
    pub(super) mmap_off: i64,
    pub(super) comp_mask: u64,
}

/// `struct mlx5dv_pd`.
#[repr(C)]
pub(super) struct DvPd {
    pub(super) pdn: u32,
    pub(super) comp_mask: u64,
}

/// `struct mlx5dv_ah`.
#[repr(C)]
pub(super) struct DvAh {
    pub(super) av: *mut AddressVector,
    pub(super) comp_mask: u64,
}

/// `struct mlx5_wqe_av`, as far as the Ethernet address.
#[repr(C)]
pub(super) struct AddressVector {
    pub(super) before: [u8; 20],
    pub(super) rmac: [u8; 6],
}

/// Kinds of objects that [`DvObject`] has room for. rdma-core 44 knows seven, rdma-core 54 eight: the library reads those that it is asked
/// for, and there is room for more than any known one has.
pub(super) const KINDS: usize = 32;

/// `struct mlx5dv_obj`: what goes in and what comes out, for each kind.
#[repr(C)]
pub(super) struct DvObject {
    pub(super) kinds: [[*mut c_void; 2]; KINDS],
}

/// Places of kinds in [`DvObject`].
pub(super) const KIND_AH: usize = 5;
pub(super) const KIND_PD: usize = 6;

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Functions {
            fn of(library: &Library) -> core::result::Result<Self, String> {
                Ok(Self {
                    $($name: {
                        // SAFETY: the name is mlx5dv.h's, and so are the types.
                        let symbol = unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) };
                        *symbol.map_err(|error| anabranch_hip::with_distinct_causes(&error))?
                    },)*
                })
            }
        }
    };
}

functions! {
    mlx5dv_devx_general_cmd: fn(*mut c_void, *const c_void, usize, *mut c_void, usize) -> c_int;
    mlx5dv_devx_obj_create: fn(*mut c_void, *const c_void, usize, *mut c_void, usize) -> *mut c_void;
    mlx5dv_devx_obj_modify: fn(*mut c_void, *const c_void, usize, *mut c_void, usize) -> c_int;
    mlx5dv_devx_obj_query: fn(*mut c_void, *const c_void, usize, *mut c_void, usize) -> c_int;
    mlx5dv_devx_obj_destroy: fn(*mut c_void) -> c_int;
    mlx5dv_devx_umem_reg: fn(*mut c_void, *mut c_void, usize, u32) -> *mut Umem;
    mlx5dv_devx_umem_dereg: fn(*mut Umem) -> c_int;
    mlx5dv_devx_alloc_uar: fn(*mut c_void, u32) -> *mut Uar;
    mlx5dv_devx_free_uar: fn(*mut Uar);
    mlx5dv_devx_query_eqn: fn(*mut c_void, u32, *mut u32) -> c_int;
    mlx5dv_init_obj: fn(*mut DvObject, u64) -> c_int;
}

/// libmlx5 on a NIC that verbs opened.
pub(crate) struct LibMlx5 {
    inner: Arc<Inner>,
}

struct Inner {
    functions: Functions,
    verbs: Arc<dyn VerbsDevice>,
}

impl fmt::Debug for LibMlx5 {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("LibMlx5").field("verbs", &self.inner.verbs).finish_non_exhaustive()
    }
}

impl LibMlx5 {
    /// Opens the library. It stays mapped: libibverbs holds its tables.
    ///
    /// # Errors
    /// [`NicError::Library`]: the library or a function of it is not there.
    pub(crate) fn open(verbs: Arc<dyn VerbsDevice>) -> Result<Self> {
        let failed = |looked: String, cause| NicError::Library { library: SONAME, looked, cause };
        // SAFETY: the library's initialiser registers a provider with libibverbs and does nothing else.
        let library = unsafe { Library::open(Some(SONAME), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| {
            failed("by the loader's path".to_owned(), anabranch_hip::with_distinct_causes(&error))
        })?;
        let library = ManuallyDrop::new(library);
        let functions =
            Functions::of(&library).map_err(|cause| failed("functions mlx5dv_*".to_owned(), cause))?;
        Ok(Self { inner: Arc::new(Inner { functions, verbs }) })
    }
}

impl Inner {
    fn context(&self) -> *mut c_void {
        self.verbs.context().as_ptr()
    }

    /// The error of a call. Functions that make something leave the code in `errno`; others return it.
    fn failed(&self, call: &'static str, code: Option<c_int>) -> NicError {
        let error = match code {
            Some(code) => std::io::Error::from_raw_os_error(code.abs()),
            None => std::io::Error::last_os_error(),
        };
        NicError::Call { call, nic: self.verbs.name(), cause: error.to_string() }
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<()> {
        if code == 0 { Ok(()) } else { Err(self.failed(call, Some(code))) }
    }

    /// Asks for what is behind an object of verbs.
    ///
    /// # Safety
    /// `object` is of the kind that `place` and `kind` say, and `out` is that kind's structure.
    unsafe fn inside(
        &self,
        place: usize,
        kind: u64,
        object: NonNull<c_void>,
        out: *mut c_void,
    ) -> Result<()> {
        let mut dv = DvObject { kinds: [[null_mut(); 2]; KINDS] };
        if let Some(pair) = dv.kinds.get_mut(place) {
            *pair = [object.as_ptr(), out];
        }
        // SAFETY: by the caller.
        let code = unsafe { (self.functions.mlx5dv_init_obj)(&raw mut dv, kind) };
        self.check("mlx5dv_init_obj", code)
    }
}

impl Devx for LibMlx5 {
    fn nic(&self) -> String {
        self.inner.verbs.name()
    }

    fn query(&self, command: &[u8], answer: &mut [u8]) -> Result<()> {
        let inner = &self.inner;
        // SAFETY: the context is live; both ranges have the lengths given.
        let code = unsafe {
            (inner.functions.mlx5dv_devx_general_cmd)(
                inner.context(),
                command.as_ptr().cast(),
                command.len(),
                answer.as_mut_ptr().cast(),
                answer.len(),
            )
        };
        inner.check("mlx5dv_devx_general_cmd", code)
    }

    fn create(&self, what: &'static str, command: &[u8], answer: &mut [u8]) -> Result<Box<dyn DevxObject>> {
        let inner = &self.inner;
        // SAFETY: the context is live; both ranges have the lengths given.
        let object = unsafe {
            (inner.functions.mlx5dv_devx_obj_create)(
                inner.context(),
                command.as_ptr().cast(),
                command.len(),
                answer.as_mut_ptr().cast(),
                answer.len(),
            )
        };
        let object = NonNull::new(object).ok_or_else(|| inner.failed(what, None))?;
        Ok(Box::new(Object { inner: inner.clone(), object }))
    }

    unsafe fn register_queue_memory(&self, address: *mut u8, bytes: usize) -> Result<Box<dyn DevxMemory>> {
        let inner = &self.inner;
        // SAFETY: the context is live; the range is by the caller.
        let umem = unsafe {
            (inner.functions.mlx5dv_devx_umem_reg)(inner.context(), address.cast(), bytes, LOCAL_WRITE)
        };
        let umem = NonNull::new(umem).ok_or_else(|| inner.failed("mlx5dv_devx_umem_reg", None))?;
        Ok(Box::new(Memory { inner: inner.clone(), umem }))
    }

    fn allocate_doorbell(&self) -> Result<Box<dyn DevxDoorbell>> {
        let inner = &self.inner;
        // SAFETY: the context is live.
        let uar = unsafe { (inner.functions.mlx5dv_devx_alloc_uar)(inner.context(), NOT_COMBINED) };
        let uar = NonNull::new(uar).ok_or_else(|| inner.failed("mlx5dv_devx_alloc_uar", None))?;
        // SAFETY: what was made is live until it is freed, and nothing writes it.
        let (register, start, page) =
            unsafe { ((*uar.as_ptr()).reg_addr, (*uar.as_ptr()).base_addr, (*uar.as_ptr()).page_id) };
        let (Some(register), Some(start)) = (NonNull::new(register.cast()), NonNull::new(start.cast()))
        else {
            // SAFETY: made above, and not given away.
            unsafe { (inner.functions.mlx5dv_devx_free_uar)(uar.as_ptr()) };
            let cause = "the page is not mapped".to_owned();
            return Err(NicError::Call { call: "mlx5dv_devx_alloc_uar", nic: inner.verbs.name(), cause });
        };
        Ok(Box::new(Page { inner: inner.clone(), uar, number: page, start, register }))
    }

    fn event_queue(&self) -> Result<u32> {
        let mut number = 0;
        // SAFETY: the context is live; the call writes one number.
        let code =
            unsafe { (self.inner.functions.mlx5dv_devx_query_eqn)(self.inner.context(), 0, &raw mut number) };
        self.inner.check("mlx5dv_devx_query_eqn", code)?;
        Ok(number)
    }

    fn protection_domain(&self) -> Result<u32> {
        let mut found = DvPd { pdn: 0, comp_mask: 0 };
        let domain = self.inner.verbs.protection_domain();
        // SAFETY: a live protection domain, and its structure.
        unsafe { self.inner.inside(KIND_PD, OBJECT_PD, domain, (&raw mut found).cast()) }?;
        Ok(found.pdn)
    }

    fn next_hop(&self, path: &PathRequest) -> Result<NextHop> {
        let inner = &self.inner;
        let handle = inner.verbs.create_address_handle(path)?;
        let mut found = DvAh { av: null_mut(), comp_mask: 0 };
        // SAFETY: a live address handle, and its structure.
        let asked = unsafe { inner.inside(KIND_AH, OBJECT_AH, handle, (&raw mut found).cast()) };
        // SAFETY: what libmlx5 points to is within the handle, which is live until the next line.
        let mac = NonNull::new(found.av).map(|av| unsafe { (*av.as_ptr()).rmac });
        inner.verbs.destroy_address_handle(handle);
        asked?;
        let cause = "an address handle without an address".to_owned();
        let mac =
            mac.ok_or_else(|| NicError::Call { call: "mlx5dv_init_obj", nic: inner.verbs.name(), cause })?;
        Ok(NextHop { mac })
    }

    fn register(&self, region: Region) -> Result<Arc<dyn Registered>> {
        self.inner.verbs.register(region)
    }
}

macro_rules! handle {
    ($name:ident { $pointer:ident: $kind:ty $(, $field:ident: $type:ty)* }, $free:ident) => {
        struct $name {
            inner: Arc<Inner>,
            $pointer: NonNull<$kind>,
            $($field: $type,)*
        }

        // SAFETY: what the pointers name belongs to this value, and libmlx5's functions may be called from any thread
        // (`Documentation/libibverbs.md` of rdma-core: the library is thread-safe).
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl fmt::Debug for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(out, concat!(stringify!($name), " of {}"), self.inner.verbs.name())
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: created by the function's counterpart, and destroyed once. The kernel frees the rest.
                let _ = unsafe { (self.inner.functions.$free)(self.$pointer.as_ptr()) };
            }
        }
    };
}

handle!(Object { object: c_void }, mlx5dv_devx_obj_destroy);
handle!(Memory { umem: Umem }, mlx5dv_devx_umem_dereg);
handle!(Page { uar: Uar, number: u32, start: NonNull<u8>, register: NonNull<u8> }, mlx5dv_devx_free_uar);

/// `mlx5dv_devx_obj_modify` and `mlx5dv_devx_obj_query`.
type CallOfObject = unsafe extern "C" fn(*mut c_void, *const c_void, usize, *mut c_void, usize) -> c_int;

impl Object {
    fn call(&self, call: CallOfObject, what: &'static str, command: &[u8], answer: &mut [u8]) -> Result<()> {
        // SAFETY: the object is live; both ranges have the lengths given.
        let code = unsafe {
            call(
                self.object.as_ptr(),
                command.as_ptr().cast(),
                command.len(),
                answer.as_mut_ptr().cast(),
                answer.len(),
            )
        };
        self.inner.check(what, code)
    }
}

impl DevxObject for Object {
    fn modify(&self, what: &'static str, command: &[u8], answer: &mut [u8]) -> Result<()> {
        self.call(self.inner.functions.mlx5dv_devx_obj_modify, what, command, answer)
    }

    fn query(&self, what: &'static str, command: &[u8], answer: &mut [u8]) -> Result<()> {
        self.call(self.inner.functions.mlx5dv_devx_obj_query, what, command, answer)
    }
}

impl DevxMemory for Memory {
    fn number(&self) -> u32 {
        // SAFETY: live until this value is dropped, and nothing writes it.
        unsafe { (*self.umem.as_ptr()).umem_id }
    }
}

impl DevxDoorbell for Page {
    fn page(&self) -> u32 {
        self.number
    }

    fn mapped(&self) -> (NonNull<u8>, NonNull<u8>) {
        (self.start, self.register)
    }
}

#[cfg(test)]
#[path = "library_tests.rs"]
mod tests;
