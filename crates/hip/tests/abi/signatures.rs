//! Argument and return types of every function of the table.
//!
//! A type becomes a text in which an enum is the integer that it is in C, an opaque handle is a pointer to `void`, and
//! a struct is its name (its layout has its own test). Signed and unsigned integers of one width are one thing: they
//! are passed alike, and C's enums are unsigned in bindings and `c_int` here.

use std::ffi::{c_char, c_int, c_uint, c_void};

use anabranch_hip::types::{
    HipDeviceProperties, HipIpcMemHandle, HipMemAccessDescriptor, HipMemAllocationProperties,
    HipPointerAttributes,
};
use anabranch_hip::{HipApi, HipError};

use crate::abi::{Old, new, old};

/// A type as the C interface sees it.
trait Shape {
    fn shape() -> String;
}

macro_rules! shapes {
    ($($text:literal: $($type:ty),+;)*) => {
        $($(impl Shape for $type { fn shape() -> String { $text.to_owned() } })+)*
    };
}

shapes! {
    "nothing": ();
    "void": c_void;
    "char": c_char;
    "int": c_int, c_uint, HipError;
    "size": usize;
    "long": u64;
    "float": f32;
    "properties": HipDeviceProperties, new::hipDeviceProp_tR0600;
    "ipc": HipIpcMemHandle, new::hipIpcMemHandle_t, old::hipIpcMemHandle_t;
    "attributes": HipPointerAttributes, new::hipPointerAttribute_t, old::hipPointerAttribute_t;
    "allocation": HipMemAllocationProperties, new::hipMemAllocationProp, old::hipMemAllocationProp;
    "access": HipMemAccessDescriptor, new::hipMemAccessDesc, old::hipMemAccessDesc;
}

// Handles.
shapes! {
    "void": new::ihipStream_t, new::ihipEvent_t, new::ihipModule_t, new::ihipModuleSymbol_t, new::ihipGraph,
        new::hipGraphExec, new::ihipMemGenericAllocationHandle;
    "void": old::ihipStream_t, old::ihipEvent_t, old::ihipModule_t, old::ihipModuleSymbol_t, old::ihipGraph,
        old::hipGraphExec, old::ihipMemGenericAllocationHandle;
}

// Enums that the old witness has as enums of Rust, 32 bits wide.
shapes! {
    "int": old::hipError_t, old::hipMemcpyKind, old::hipDeviceAttribute_t, old::hipFunction_attribute,
        old::hipStreamCaptureMode, old::hipStreamCaptureStatus, old::hipMemAllocationGranularity_flags,
        old::hipMemAllocationHandleType;
}

impl<T: Shape> Shape for *mut T {
    fn shape() -> String {
        format!("{}*", T::shape())
    }
}

impl<T: Shape> Shape for *const T {
    fn shape() -> String {
        format!("const {}*", T::shape())
    }
}

/// An optional function of the table; a callback in bindings.
impl<T: Shape> Shape for Option<T> {
    fn shape() -> String {
        T::shape()
    }
}

macro_rules! functions {
    ($(($($argument:ident)*))*) => {
        $(impl<R: Shape, $($argument: Shape),*> Shape for unsafe extern "C" fn($($argument),*) -> R {
            fn shape() -> String {
                let arguments: &[String] = &[$($argument::shape()),*];
                format!("{}({})", R::shape(), arguments.join(", "))
            }
        })*
    };
}

functions! {
    () (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) (A B C D E F G H I J K)
}

/// The shape of what a closure would give; it is not called, so that what it names is not linked.
fn shape_of<A, T: Shape>(_never_called: impl Fn(A) -> T) -> String {
    T::shape()
}

/// One function of the table.
struct Row {
    name: &'static str,
    ours: String,
    new: String,
    old: Old<String>,
}

macro_rules! old_signature {
    (same $name:ident $holes:tt) => { Old::Same(signature!(old::$name $holes)) };
    (absent $name:ident $holes:tt) => { Old::Absent };
}

macro_rules! signature {
    ($module:ident::$name:ident ($($hole:tt)*)) => {
        shape_of(|()| $module::$name as unsafe extern "C" fn($($hole),*) -> _)
    };
}

/// Each line: whether the old witness has it, its name, and a hole for each argument.
macro_rules! rows {
    ($($old:ident $name:ident $holes:tt;)*) => {
        vec![$(Row {
            name: stringify!($name),
            ours: shape_of(|api: &HipApi| api.$name),
            new: signature!(new::$name $holes),
            old: old_signature!($old $name $holes),
        }),*]
    };
}

#[rustfmt::skip]
fn rows() -> Vec<Row> {
    rows! {
        same hipInit (_);
        same hipDriverGetVersion (_);
        same hipRuntimeGetVersion (_);
        same hipGetErrorName (_);
        same hipGetErrorString (_);
        same hipGetLastError ();
        same hipGetDeviceCount (_);
        same hipSetDevice (_);
        same hipGetDevice (_);
        absent hipGetDevicePropertiesR0600 (_ _);
        same hipDeviceGetAttribute (_ _ _);
        same hipDeviceGetPCIBusId (_ _ _);
        same hipDeviceSynchronize ();
        same hipDeviceCanAccessPeer (_ _ _);
        same hipDeviceEnablePeerAccess (_ _);
        same hipMemGetInfo (_ _);
        same hipMalloc (_ _);
        same hipFree (_);
        same hipHostMalloc (_ _ _);
        same hipHostFree (_);
        same hipHostGetDevicePointer (_ _ _);
        same hipHostRegister (_ _ _);
        same hipHostUnregister (_);
        same hipMemcpy (_ _ _ _);
        same hipMemcpyAsync (_ _ _ _ _);
        same hipMemset (_ _ _);
        same hipMemsetAsync (_ _ _ _);
        same hipPointerGetAttributes (_ _);
        same hipMemGetAddressRange (_ _ _);
        same hipIpcGetMemHandle (_ _);
        same hipIpcOpenMemHandle (_ _ _);
        same hipIpcCloseMemHandle (_);
        same hipStreamCreateWithFlags (_ _);
        same hipStreamCreateWithPriority (_ _ _);
        same hipDeviceGetStreamPriorityRange (_ _);
        same hipStreamDestroy (_);
        same hipStreamSynchronize (_);
        same hipStreamQuery (_);
        same hipStreamWaitEvent (_ _ _);
        same hipEventCreateWithFlags (_ _);
        same hipEventDestroy (_);
        same hipEventRecord (_ _);
        same hipEventSynchronize (_);
        same hipEventQuery (_);
        same hipEventElapsedTime (_ _ _);
        same hipModuleLoadData (_ _);
        same hipModuleUnload (_);
        same hipModuleGetFunction (_ _ _);
        same hipFuncGetAttribute (_ _ _);
        same hipModuleLaunchKernel (_ _ _ _ _ _ _ _ _ _ _);
        same hipModuleOccupancyMaxActiveBlocksPerMultiprocessor (_ _ _ _);
        same hipStreamBeginCapture (_ _);
        same hipStreamEndCapture (_ _);
        same hipStreamIsCapturing (_ _);
        same hipGraphInstantiateWithFlags (_ _ _);
        same hipGraphLaunch (_ _);
        same hipGraphExecDestroy (_);
        same hipGraphDestroy (_);
        same hipExtMallocWithFlags (_ _ _);
        same hipStreamWriteValue64 (_ _ _ _);
        same hipStreamWaitValue64 (_ _ _ _ _);
        same hipStreamGetCaptureInfo (_ _ _);
        same hipThreadExchangeStreamCaptureMode (_);
        absent hipEventRecordWithFlags (_ _ _);
        absent hipMemGetHandleForAddressRange (_ _ _ _ _);
        same hipMemAddressReserve (_ _ _ _ _);
        same hipMemAddressFree (_ _);
        same hipMemGetAllocationGranularity (_ _ _);
        same hipMemCreate (_ _ _ _);
        same hipMemRelease (_);
        same hipMemMap (_ _ _ _ _);
        same hipMemUnmap (_ _);
        same hipMemSetAccess (_ _ _ _);
        same hipMemExportToShareableHandle (_ _ _ _);
        same hipMemImportFromShareableHandle (_ _ _);
    }
}

fn differences(rows: &[Row]) -> Vec<String> {
    let mut found = Vec::new();
    for Row { name, ours, new, old } in rows {
        if ours != new {
            found.push(format!("{name}: {ours} here, {new} in ROCm 7"));
        }
        match old {
            Old::Same(old) if old != ours => found.push(format!("{name}: {ours} here, {old} in 5.4")),
            _ => {}
        }
    }
    found
}

#[test]
fn signatures_agree_with_both_witnesses() {
    let rows = rows();
    assert_eq!(differences(&rows), Vec::<String>::new());
    let compared: Vec<_> = rows.iter().map(|row| row.name).collect();
    let table: Vec<_> = HipApi::SYMBOLS.iter().map(|(name, _)| *name).collect();
    assert_eq!(compared, table, "every function is compared, in the table's order");
}

#[test]
fn shapes_tell_signatures_apart() {
    let shape = signature!(new::hipMemcpy (_ _ _ _));
    assert_eq!(shape, "int(void*, const void*, size, int)");
    assert_eq!(shape_of(|api: &HipApi| api.hipMemcpy), shape);
    let wrong = |ours: &str| {
        let (ours, new) = (ours.to_owned(), shape.clone());
        differences(&[Row { name: "f", ours, new, old: Old::Same(shape.clone()) }]).len()
    };
    assert_eq!(wrong(&shape), 0);
    // One level of pointer too many, a missing argument, a narrower length, the direction of the copy.
    for ours in [
        "int(void**, const void*, size, int)",
        "int(void*, const void*, size)",
        "int(void*, const void*, int, int)",
        "int(const void*, void*, size, int)",
    ] {
        assert_eq!(wrong(ours), 2, "{ours}");
    }
    assert_eq!(
        signature!(old::hipLaunchHostFunc (_ _ _)),
        "int(void*, nothing(void*), void*)",
        "callbacks are looked into"
    );
}
