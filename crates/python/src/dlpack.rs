//! DLPack: tensors of other libraries as addresses, and the library's memory as tensors of others.
//!
//! Structs of `dlpack.h`, version 1.1, and the table of functions of version 1.3 (`DLPackExchangeAPI`), declared by hand.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use anabranch::ccl::DataType;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

use crate::errors::usage;
use crate::memory::Owner;
use crate::unlocked::Unlocked;

/// `kDLCPU`.
pub(crate) const CPU: i32 = 1;
/// `kDLCUDA`.
pub(crate) const CUDA: i32 = 2;
/// `kDLROCM`.
pub(crate) const ROCM: i32 = 10;

const MAJOR: u32 = 1;
const NAME: &CStr = c"dltensor";
const NAME_VERSIONED: &CStr = c"dltensor_versioned";
const USED: &CStr = c"used_dltensor";
const USED_VERSIONED: &CStr = c"used_dltensor_versioned";

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DlDevice {
    pub(crate) kind: i32,
    pub(crate) ordinal: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DlDataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
#[derive(Debug)]
struct DlTensor {
    data: *mut c_void,
    device: DlDevice,
    dimensions: i32,
    data_type: DlDataType,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

#[repr(C)]
struct DlManaged {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct DlVersion {
    major: u32,
    minor: u32,
}

#[repr(C)]
struct DlManagedVersioned {
    version: DlVersion,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    flags: u64,
    tensor: DlTensor,
}

/// `DLPackExchangeAPI`.
#[repr(C)]
struct DlExchange {
    version: DlVersion,
    previous: *const Self,
    allocator: *const c_void,
    managed_from_object: *const c_void,
    managed_to_object: *const c_void,
    tensor_from_object: Option<unsafe extern "C" fn(*mut c_void, *mut DlTensor) -> i32>,
    current_stream: Option<unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> i32>,
}

/// What a tensor of another library is.
#[derive(Debug)]
pub(crate) struct Described {
    pub(crate) address: u64,
    pub(crate) shape: Vec<i64>,
    /// In elements; `None` for a contiguous tensor.
    pub(crate) strides: Option<Vec<i64>>,
    pub(crate) data_type: DataType,
    pub(crate) device: DlDevice,
    pub(crate) is_read_only: bool,
    /// What owns the memory besides the object itself.
    pub(crate) owner: Option<Py<PyAny>>,
}

/// Flags of a versioned tensor.
const READ_ONLY: u64 = 1;
const IS_COPIED: u64 = 2;

/// Codes of `DLDataTypeCode`.
const TYPES: [(DataType, u8, u8); 18] = [
    (DataType::F32, 2, 32),
    (DataType::F64, 2, 64),
    (DataType::F16, 2, 16),
    (DataType::Bf16, 4, 16),
    (DataType::F8E4m3, 10, 8),
    (DataType::F8E5m2, 12, 8),
    (DataType::F8E4m3Fnuz, 11, 8),
    (DataType::F8E5m2Fnuz, 13, 8),
    (DataType::I8, 0, 8),
    (DataType::U8, 1, 8),
    (DataType::I16, 0, 16),
    (DataType::U16, 1, 16),
    (DataType::I32, 0, 32),
    (DataType::U32, 1, 32),
    (DataType::I64, 0, 64),
    (DataType::U64, 1, 64),
    (DataType::Bool, 6, 8),
    (DataType::F4E2m1, 17, 4),
];

fn type_of(given: DlDataType) -> PyResult<DataType> {
    let found =
        TYPES.iter().find(|(_, code, bits)| (*code, *bits) == (given.code, given.bits) && given.lanes == 1);
    // torch's `float4_e2m1fn_x2` is one element of two lanes: a byte.
    let packed = (given.code, given.bits, given.lanes) == (17, 4, 2);
    found.map(|(of, ..)| *of).or(packed.then_some(DataType::U8)).ok_or_else(|| {
        let DlDataType { code, bits, lanes } = given;
        usage(format!(
            "no element type of anabranch has DLPack's code {code} with {bits} bits and {lanes} lanes"
        ))
    })
}

fn dl_type(of: DataType) -> DlDataType {
    let (_, code, bits) = *TYPES.iter().find(|(known, ..)| *known == of).unwrap_or(&TYPES[0]);
    DlDataType { code, bits, lanes: 1 }
}

/// # Safety
/// `tensor` points to as many dimensions as it says, in its shape and, unless null, strides.
unsafe fn describe(tensor: &DlTensor) -> PyResult<Described> {
    let dimensions = usize::try_from(tensor.dimensions).unwrap_or(0);
    let list = |values: *const i64| {
        if dimensions == 0 {
            return Vec::new();
        }
        // SAFETY: the producer's array has an entry for each dimension.
        unsafe { std::slice::from_raw_parts(values, dimensions) }.to_vec()
    };
    Ok(Described {
        address: (tensor.data as u64).wrapping_add(tensor.byte_offset),
        shape: list(tensor.shape),
        strides: (!tensor.strides.is_null()).then(|| list(tensor.strides)),
        data_type: type_of(tensor.data_type)?,
        device: tensor.device,
        is_read_only: false,
        owner: None,
    })
}

/// The table of functions of an object's type, if it has one of a version that is understood.
fn exchange<'a>(object: &Bound<'a, PyAny>) -> Option<&'a DlExchange> {
    let attribute = object.get_type().getattr("__dlpack_c_exchange_api__").ok()?;
    let capsule = attribute.cast_into::<PyCapsule>().ok()?;
    let table = capsule.pointer_checked(Some(c"dlpack_exchange_api")).ok()?;
    // SAFETY: the name of the capsule says what it points to; producers keep it for the life of the process.
    let table = unsafe { table.cast::<DlExchange>().as_ref() };
    (table.version.major == MAJOR).then_some(table)
}

/// By the table of functions: no allocation, no synchronisation. `None` where the type has none.
pub(crate) fn by_exchange(object: &Bound<'_, PyAny>) -> PyResult<Option<Described>> {
    let Some(function) = exchange(object).and_then(|table| table.tensor_from_object) else { return Ok(None) };
    let mut tensor = DlTensor {
        data: std::ptr::null_mut(),
        device: DlDevice { kind: 0, ordinal: 0 },
        dimensions: 0,
        data_type: DlDataType { code: 0, bits: 0, lanes: 0 },
        shape: std::ptr::null(),
        strides: std::ptr::null(),
        byte_offset: 0,
    };
    // SAFETY: the object is of the type that has the table; the call writes one tensor.
    let code = unsafe { function(object.as_ptr().cast(), &raw mut tensor) };
    if code != 0 {
        return Err(
            PyErr::take(object.py()).unwrap_or_else(|| PyBufferError::new_err("the tensor cannot be shared"))
        );
    }
    // SAFETY: what it wrote is valid while the object is.
    unsafe { describe(&tensor) }.map(Some)
}

/// The stream on which the object's library works now, on the object's device. `None` where the library does not say.
pub(crate) fn current_stream(object: &Bound<'_, PyAny>, device: DlDevice) -> PyResult<Option<u64>> {
    let Some(function) = exchange(object).and_then(|table| table.current_stream) else { return Ok(None) };
    let mut stream = std::ptr::null_mut();
    // SAFETY: the call writes one pointer.
    let code = unsafe { function(device.kind, device.ordinal, &raw mut stream) };
    if code != 0 {
        return Err(PyErr::take(object.py()).unwrap_or_else(|| PyBufferError::new_err("no current stream")));
    }
    Ok(Some(stream as u64))
}

/// By `__dlpack__`. The producer is asked not to synchronise: order is that of the stream of the call.
pub(crate) fn by_capsule(object: &Bound<'_, PyAny>) -> PyResult<Described> {
    let device: (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
    let options = PyDict::new(object.py());
    if device.0 != CPU {
        options.set_item("stream", -1)?;
    }
    let versioned = options.copy()?;
    versioned.set_item("max_version", (MAJOR, 1))?;
    let capsule = match object.call_method("__dlpack__", (), Some(&versioned)) {
        // Older producers know no versions.
        Err(error) if error.is_instance_of::<PyTypeError>(object.py()) => {
            object.call_method("__dlpack__", (), Some(&options))?
        }
        capsule => capsule?,
    };
    let capsule = capsule.cast_into::<PyCapsule>()?;
    // The capsule is not consumed: it is kept with the object, since it may own memory that the object does not.
    let mut described = if let Ok(managed) = capsule.pointer_checked(Some(NAME_VERSIONED)) {
        // SAFETY: the name says what the capsule points to, and it lives as long as the capsule.
        let managed = unsafe { managed.cast::<DlManagedVersioned>().as_ref() };
        if managed.flags & IS_COPIED != 0 {
            return Err(usage("the tensor can be shared only as a copy, which nobody would read"));
        }
        // SAFETY: as above.
        let described = unsafe { describe(&managed.tensor) }?;
        Described { is_read_only: managed.flags & READ_ONLY != 0, ..described }
    } else {
        let managed = capsule.pointer_checked(Some(NAME))?;
        // SAFETY: as above.
        unsafe { describe(&managed.cast::<DlManaged>().as_ref().tensor) }?
    };
    described.owner = Some(capsule.into_any().unbind());
    Ok(described)
}

/// What a capsule of ours keeps: the owner of the memory, and the arrays that its tensor points to.
struct Exported {
    shape: Vec<i64>,
    strides: Vec<i64>,
    _owner: Unlocked<Owner>,
    _use: Arc<()>,
}

/// A capsule for `__dlpack__`. `owner` keeps the memory until the consumer lets go of the capsule, and `counted` is dropped then.
pub(crate) fn export<'py>(
    py: Python<'py>,
    described: &Described,
    owner: Owner,
    counted: Arc<()>,
    versioned: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let shape = described.shape.clone();
    let strides = described.strides.clone().unwrap_or_else(|| contiguous(&shape));
    let exported = Box::new(Exported { shape, strides, _owner: Unlocked::new(owner), _use: counted });
    let tensor = DlTensor {
        data: described.address as *mut c_void,
        device: described.device,
        dimensions: exported.shape.len() as i32,
        data_type: dl_type(described.data_type),
        shape: exported.shape.as_ptr(),
        strides: exported.strides.as_ptr(),
        byte_offset: 0,
    };
    let context = Box::into_raw(exported).cast();
    let (pointer, name, destructor): (*mut c_void, _, pyo3::ffi::PyCapsule_Destructor) = if versioned {
        let managed = DlManagedVersioned {
            version: DlVersion { major: MAJOR, minor: 1 },
            context,
            deleter: Some(delete_versioned),
            flags: 0,
            tensor,
        };
        (Box::into_raw(Box::new(managed)).cast(), NAME_VERSIONED, destroy_versioned)
    } else {
        let managed = DlManaged { tensor, context, deleter: Some(delete) };
        (Box::into_raw(Box::new(managed)).cast(), NAME, destroy)
    };
    // SAFETY: the pointer is not null, the name is static, the destructor takes what the capsule holds.
    unsafe {
        let capsule = pyo3::ffi::PyCapsule_New(pointer, name.as_ptr(), Some(destructor));
        Bound::from_owned_ptr_or_err(py, capsule)
    }
}

/// Strides, in elements, of a row-major tensor.
pub(crate) fn contiguous(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1i64; shape.len()];
    for dimension in (1..shape.len()).rev() {
        strides[dimension - 1] = strides[dimension].saturating_mul(shape[dimension].max(1));
    }
    strides
}

unsafe extern "C" fn delete(managed: *mut DlManaged) {
    // SAFETY: made by `export`, and deleted once, as the protocol has it.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context.cast::<Exported>()));
    }
}

unsafe extern "C" fn delete_versioned(managed: *mut DlManagedVersioned) {
    // SAFETY: as in `delete`.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context.cast::<Exported>()));
    }
}

/// The pointer of a capsule that no consumer has taken.
///
/// # Safety
/// `capsule` is a capsule, and the interpreter's lock is held.
unsafe fn unused(capsule: *mut pyo3::ffi::PyObject, name: &CStr, used: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: the caller's promise.
    unsafe {
        if pyo3::ffi::PyCapsule_IsValid(capsule, used.as_ptr()) != 0 {
            return None;
        }
        NonNull::new(pyo3::ffi::PyCapsule_GetPointer(capsule, name.as_ptr()))
    }
}

unsafe extern "C" fn destroy(capsule: *mut pyo3::ffi::PyObject) {
    // SAFETY: the interpreter calls it once, with its lock held.
    if let Some(managed) = unsafe { unused(capsule, NAME, USED) } {
        // SAFETY: made by `export`; no consumer took it.
        unsafe { delete(managed.as_ptr().cast()) }
    }
}

unsafe extern "C" fn destroy_versioned(capsule: *mut pyo3::ffi::PyObject) {
    // SAFETY: as in `destroy`.
    if let Some(managed) = unsafe { unused(capsule, NAME_VERSIONED, USED_VERSIONED) } {
        // SAFETY: as in `destroy`.
        unsafe { delete_versioned(managed.as_ptr().cast()) }
    }
}
