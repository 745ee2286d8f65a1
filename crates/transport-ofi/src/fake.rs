//! A library and what it would have made, for tests of what this crate does with them.

use core::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

use crate::bindings::{
    FI_ATOMIC, FI_DELIVERY_COMPLETE, FI_EAVAIL, FI_ENODATA, FI_EP_RDM, FI_MR_VIRT_ADDR, FI_RMA,
    FI_THREAD_SAFE, FiCqErrEntry, FiDomainAttr, FiEpAttr, FiFabricAttr, FiInfo, FiOps, FiOpsCq, FiParam,
    FiTxAttr, Fid, FidAv, FidCq, FidEp, FidFabric,
};
use crate::info::Info;
use crate::library::Libfabric;

unsafe extern "C" fn get_info(
    _: u32,
    _: *const c_char,
    _: *const c_char,
    _: u64,
    _: *const FiInfo,
    _: *mut *mut FiInfo,
) -> c_int {
    -FI_ENODATA
}
unsafe extern "C" fn free_info(_: *mut FiInfo) {}
unsafe extern "C" fn duplicate(_: *const FiInfo) -> *mut FiInfo {
    core::ptr::null_mut()
}
unsafe extern "C" fn open_fabric(_: *mut FiFabricAttr, _: *mut *mut FidFabric, _: *mut c_void) -> c_int {
    -FI_ENODATA
}
unsafe extern "C" fn get_parameters(_: *mut *mut FiParam, _: *mut c_int) -> c_int {
    -FI_ENODATA
}
unsafe extern "C" fn free_parameters(_: *mut FiParam) {}
unsafe extern "C" fn version() -> u32 {
    0x0001_0011
}
unsafe extern "C" fn words(_: c_int) -> *const c_char {
    c"a made-up error".as_ptr()
}

fn library() -> Arc<Libfabric> {
    Arc::new(Libfabric {
        fi_getinfo: get_info,
        fi_freeinfo: free_info,
        fi_dupinfo: duplicate,
        fi_fabric: open_fabric,
        fi_getparams: get_parameters,
        fi_freeparams: free_parameters,
        fi_version: version,
        fi_strerror: words,
    })
}

/// A value whose bytes are zero. It lives as long as the test.
fn zeroed<T: Copy>() -> &'static mut T {
    // SAFETY: used for the plain structs of `bindings.rs` without function pointers, of which all bits zero are a value.
    Box::leak(Box::new(unsafe { core::mem::zeroed() }))
}

/// What a test may change of an [`Info`].
pub(crate) struct Parts {
    pub(crate) info: &'static mut FiInfo,
    pub(crate) sending: &'static mut FiTxAttr,
    pub(crate) endpoint: &'static mut FiEpAttr,
    pub(crate) domain: &'static mut FiDomainAttr,
    fabric: &'static mut FiFabricAttr,
}

/// An element as of a provider that serves, but for the change.
pub(crate) fn info(change: impl FnOnce(&mut Parts)) -> Info {
    let mut parts =
        Parts { info: zeroed(), sending: zeroed(), endpoint: zeroed(), domain: zeroed(), fabric: zeroed() };
    let text = |text: &'static CStr| text.as_ptr().cast_mut();
    parts.info.caps = FI_RMA | FI_ATOMIC;
    parts.sending.op_flags = FI_DELIVERY_COMPLETE;
    parts.endpoint.kind = FI_EP_RDM;
    (parts.domain.threading, parts.domain.mr_mode) = (FI_THREAD_SAFE, FI_MR_VIRT_ADDR);
    parts.domain.name = text(c"made-up0");
    (parts.fabric.name, parts.fabric.prov_name) = (text(c"10.0.0.0/8"), text(c"made-up"));
    change(&mut parts);
    let Parts { info, sending, endpoint, domain, fabric } = parts;
    (info.tx_attr, info.ep_attr, info.domain_attr, info.fabric_attr) = (sending, endpoint, domain, fabric);
    Info::of_test(library(), info)
}

/// An object of the library's that can be closed: any of them, as far as it is used.
#[repr(C)]
pub(crate) struct Object<T> {
    fid: T,
    /// What closing it returns.
    code: c_int,
    pub(crate) closed: u32,
}

unsafe extern "C" fn close<T>(object: *mut Fid) -> c_int {
    // SAFETY: the objects below are all made so, and the identity is their first field.
    let object = unsafe { &mut *object.cast::<Object<T>>() };
    object.closed += 1;
    object.code
}
unsafe extern "C" fn bind(_: *mut Fid, _: *mut Fid, _: u64) -> c_int {
    0
}
unsafe extern "C" fn control(_: *mut Fid, _: c_int, _: *mut c_void) -> c_int {
    0
}

fn identity<T>() -> Fid {
    let ops = FiOps { size: size_of::<FiOps>(), close: close::<T>, bind, control };
    Fid { fclass: 0, context: core::ptr::null_mut(), ops: Box::leak(Box::new(ops)) }
}

fn object<T>(fid: T, code: c_int) -> &'static mut Object<T> {
    Box::leak(Box::new(Object { fid, code, closed: 0 }))
}

/// An endpoint that returns this number when it is closed.
pub(crate) fn endpoint(code: c_int) -> &'static mut Object<FidEp> {
    let mut made = *zeroed::<FidEp>();
    made.fid = identity::<FidEp>();
    object(made, code)
}

pub(crate) fn vector() -> &'static mut Object<FidAv> {
    let mut made = *zeroed::<FidAv>();
    made.fid = identity::<FidAv>();
    object(made, 0)
}

unsafe extern "C" fn read(_: *mut FidCq, _: *mut c_void, _: usize) -> isize {
    -(FI_EAVAIL as isize)
}

/// Reports an operation that was not posted here, in an entry as long as that of later libraries.
unsafe extern "C" fn read_error(_: *mut FidCq, entry: *mut FiCqErrEntry, _: u64) -> isize {
    // SAFETY: the caller has room for what is declared.
    unsafe { (*entry).err = crate::bindings::FI_EACCES };
    // SAFETY: and for one more field behind it.
    unsafe { entry.add(1).cast::<u64>().write(u64::MAX) };
    1
}

/// A completion queue with an error of an operation without a context.
pub(crate) fn queue() -> &'static mut Object<FidCq> {
    let none = core::ptr::null_mut();
    let operations = FiOpsCq {
        size: size_of::<FiOpsCq>(),
        read,
        readfrom: none,
        readerr: read_error,
        sread: none,
        sreadfrom: none,
        signal: none,
        strerror: None,
    };
    let mut made = *zeroed::<FidCq>();
    (made.fid, made.ops) = (identity::<FidCq>(), Box::leak(Box::new(operations)));
    object(made, 0)
}
