//! Structs of `xla/ffi/api/c_api.h`, API version 0.3, declared by hand, and what a handler does with them.
//!
//! Every struct begins with its size: a later minor version may append fields, and what is here stays at its place.

use std::collections::BTreeSet;
use std::ffi::{CString, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

use anabranch::ccl::DataType;
use anabranch::hip::DeviceAddress;

/// `XLA_FFI_Extension_Base`.
#[repr(C)]
struct Extension {
    size: usize,
    kind: i32,
    next: *mut Self,
}

/// `XLA_FFI_Extension_Metadata`.
const METADATA: i32 = 1;

#[repr(C)]
struct Version {
    size: usize,
    extensions: *mut Extension,
    major: i32,
    minor: i32,
}

#[repr(C)]
struct Metadata {
    size: usize,
    version: Version,
    traits: u32,
    state: i64,
}

#[repr(C)]
struct MetadataExtension {
    base: Extension,
    metadata: *mut Metadata,
}

#[repr(C)]
struct Buffer {
    size: usize,
    extensions: *mut Extension,
    data_type: i32,
    data: *mut c_void,
    rank: i64,
    dimensions: *const i64,
}

/// `XLA_FFI_Args` and `XLA_FFI_Rets`.
#[repr(C)]
struct Buffers {
    size: usize,
    extensions: *mut Extension,
    count: i64,
    kinds: *const i32,
    values: *const *const Buffer,
}

#[repr(C)]
struct Span {
    start: *const u8,
    length: usize,
}

#[repr(C)]
struct Scalar {
    data_type: i32,
    value: *const c_void,
}

#[repr(C)]
struct Attributes {
    size: usize,
    extensions: *mut Extension,
    count: i64,
    kinds: *const i32,
    names: *const *const Span,
    values: *const *const c_void,
}

/// `XLA_FFI_AttrType_SCALAR`, and the type of scalars that are read.
const SCALAR: i32 = 3;
const S64: i32 = 5;

/// `XLA_FFI_CallFrame`.
#[repr(C)]
pub(super) struct Frame {
    size: usize,
    extensions: *mut Extension,
    api: *const Api,
    context: *mut c_void,
    stage: i32,
    arguments: Buffers,
    results: Buffers,
    attributes: Attributes,
    future: *mut c_void,
}

/// `XLA_FFI_ExecutionStage_INSTANTIATE`: XLA makes or loads an executable.
const INSTANTIATE: i32 = 0;
/// `XLA_FFI_ExecutionStage_EXECUTE`.
const EXECUTE: i32 = 3;

#[repr(C)]
struct ErrorCreate {
    size: usize,
    extensions: *mut Extension,
    message: *const i8,
    code: i32,
}

/// `XLA_FFI_Error_Code_INTERNAL`.
const INTERNAL: i32 = 13;

#[repr(C)]
struct StreamGet {
    size: usize,
    extensions: *mut Extension,
    context: *mut c_void,
    stream: *mut c_void,
}

#[repr(C)]
struct OrdinalGet {
    size: usize,
    extensions: *mut Extension,
    context: *mut c_void,
    ordinal: i32,
}

/// `XLA_FFI_State_Set_Args` and `XLA_FFI_State_Get_Args`.
#[repr(C)]
struct State {
    size: usize,
    extensions: *mut Extension,
    context: *mut c_void,
    stage: i32,
    type_id: *const AtomicI64,
    kept: *mut c_void,
}

/// `XLA_FFI_TypeInfo`.
#[repr(C)]
struct TypeInfo {
    size: usize,
    extensions: *mut Extension,
    delete: unsafe extern "C" fn(*mut c_void),
}

// SAFETY: it is never written, and its list is empty.
unsafe impl Sync for TypeInfo {}

/// What a call of an executable keeps as long as the executable: the ranks that have run it.
pub(super) type Kept = Mutex<BTreeSet<u32>>;

/// `XLA_FFI_TypeId` of [`Kept`], which XLA writes at registration.
static KEPT_ID: AtomicI64 = AtomicI64::new(0);
static KEPT_INFO: TypeInfo =
    TypeInfo { size: size_of::<TypeInfo>(), extensions: std::ptr::null_mut(), delete: delete_kept };

/// # Safety
/// XLA calls it once for what [`Call::keep`] gave it.
unsafe extern "C" fn delete_kept(kept: *mut c_void) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(kept.cast::<Kept>()) });
}

/// The addresses of the id and the description by which XLA knows [`Kept`].
pub(super) fn kept_type() -> (usize, usize) {
    ((&raw const KEPT_ID).expose_provenance(), (&raw const KEPT_INFO).expose_provenance())
}

type Unused = *const c_void;

/// `XLA_FFI_Api`.
#[repr(C)]
struct Api {
    size: usize,
    extensions: *mut Extension,
    version: Version,
    internal: Unused,
    error_create: unsafe extern "C" fn(*mut ErrorCreate) -> *mut c_void,
    error_get_message: Unused,
    error_destroy: Unused,
    handler_register: Unused,
    stream_get: unsafe extern "C" fn(*mut StreamGet) -> *mut c_void,
    type_register: Unused,
    context_get: Unused,
    state_set: unsafe extern "C" fn(*mut State) -> *mut c_void,
    state_get: unsafe extern "C" fn(*mut State) -> *mut c_void,
    memory_allocate: Unused,
    memory_free: Unused,
    pool_schedule: Unused,
    pool_threads: Unused,
    future_create: Unused,
    future_set_available: Unused,
    future_set_error: Unused,
    run_id_get: Unused,
    ordinal_get: unsafe extern "C" fn(*mut OrdinalGet) -> *mut c_void,
}

/// Types of `XLA_FFI_DataType`.
const TYPES: [(i32, DataType); 17] = [
    (1, DataType::Bool),
    (2, DataType::I8),
    (3, DataType::I16),
    (4, DataType::I32),
    (5, DataType::I64),
    (6, DataType::U8),
    (7, DataType::U16),
    (8, DataType::U32),
    (9, DataType::U64),
    (10, DataType::F16),
    (11, DataType::F32),
    (12, DataType::F64),
    (16, DataType::Bf16),
    (19, DataType::F8E5m2),
    (20, DataType::F8E4m3),
    (24, DataType::F8E5m2Fnuz),
    (25, DataType::F8E4m3Fnuz),
];

/// A buffer of a call: an argument or a result.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operand<'a> {
    pub(super) address: DeviceAddress,
    pub(super) data_type: DataType,
    pub(super) extents: &'a [i64],
}

impl Operand<'_> {
    /// Its elements.
    pub(super) fn count(&self) -> u64 {
        self.extents.iter().map(|extent| extent.unsigned_abs()).product()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.count() * u64::from(self.data_type.bytes())
    }
}

/// A call that XLA makes.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    frame: &'a Frame,
}

/// The error of a call that panicked.
pub(super) const PANICKED: &str = "the library panicked; see standard error";

/// What XLA knows of a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Its host part runs at each execution.
    EachTime,
    /// It puts work on the stream and nothing else, which a graph may repeat: `XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE`.
    Repeatable,
    /// As `EachTime`, with a [`Kept`] in each of its calls of an executable.
    Keeps,
}

/// `XLA_FFI_HandlerTraitsBits`.
const COMMAND_BUFFER_COMPATIBLE: u32 = 1;

/// What XLA calls: answers questions about the handler, else runs it and reports its error.
///
/// # Safety
/// The frame is XLA's.
pub(super) unsafe fn handle(
    frame: *mut Frame,
    kind: Kind,
    run: impl FnOnce(Call<'_>) -> Result<(), String>,
) -> *mut c_void {
    // SAFETY: XLA passes a frame of its own, which is valid during the call.
    let frame = unsafe { &mut *frame };
    // SAFETY: as above.
    if unsafe { answer_metadata(frame, kind) } {
        return std::ptr::null_mut();
    }
    let at_stage = |call: Call<'_>| match call.frame.stage {
        EXECUTE => run(call),
        INSTANTIATE if kind == Kind::Keeps => call.keep(),
        _ => Ok(()),
    };
    // SAFETY: as above.
    let result = catch_unwind(AssertUnwindSafe(|| unsafe { Call::new(frame) }.and_then(at_stage)));
    let message = match result {
        Ok(Ok(())) => return std::ptr::null_mut(),
        Ok(Err(message)) => message,
        Err(_) => PANICKED.to_owned(),
    };
    let message = CString::new(message.replace('\0', " ")).unwrap_or_default();
    let mut arguments = ErrorCreate {
        size: size_of::<ErrorCreate>(),
        extensions: std::ptr::null_mut(),
        message: message.as_ptr().cast(),
        code: INTERNAL,
    };
    // SAFETY: XLA copies the message.
    unsafe { ((*frame.api).error_create)(&raw mut arguments) }
}

/// At registration XLA asks for the handler's version and traits.
///
/// # Safety
/// The frame is XLA's.
unsafe fn answer_metadata(frame: &mut Frame, kind: Kind) -> bool {
    let mut extension = frame.extensions;
    // SAFETY: a list that ends with null; the kind says what an entry is.
    while let Some(entry) = unsafe { extension.as_mut() } {
        if entry.kind == METADATA {
            // SAFETY: as above.
            let metadata = unsafe { &mut *(*extension.cast::<MetadataExtension>()).metadata };
            (metadata.version.major, metadata.version.minor) = (0, 3);
            metadata.traits = if kind == Kind::Repeatable { COMMAND_BUFFER_COMPATIBLE } else { 0 };
            if kind == Kind::Keeps {
                metadata.state = KEPT_ID.load(Ordering::Relaxed);
            }
            return true;
        }
        extension = entry.next;
    }
    false
}

impl<'a> Call<'a> {
    /// # Safety
    /// The frame is XLA's, and valid for `'a`: so are its buffers, their extents and its attributes.
    unsafe fn new(frame: &'a Frame) -> Result<Self, String> {
        // SAFETY: the API's table is XLA's.
        let api = unsafe { &*frame.api };
        if api.version.major != 0
            || api.version.minor < 3
            || api.size < size_of::<Api>()
            || frame.size < std::mem::offset_of!(Frame, future)
        {
            return Err(format!(
                "XLA's FFI has version {}.{}; 0.3 is needed",
                api.version.major, api.version.minor
            ));
        }
        Ok(Self { frame })
    }

    fn api(self) -> &'a Api {
        // SAFETY: the promise of `new`.
        unsafe { &*self.frame.api }
    }

    /// The device's number among those of this process.
    pub(super) fn ordinal(self) -> Result<i32, String> {
        let mut asked = OrdinalGet {
            size: size_of::<OrdinalGet>(),
            extensions: std::ptr::null_mut(),
            context: self.frame.context,
            ordinal: 0,
        };
        // SAFETY: the call fills one struct.
        let error = unsafe { (self.api().ordinal_get)(&raw mut asked) };
        error.is_null().then_some(asked.ordinal).ok_or_else(|| "XLA does not say the device".to_owned())
    }

    /// XLA's stream of the device.
    pub(super) fn stream(self) -> Result<*mut c_void, String> {
        let mut asked = StreamGet {
            size: size_of::<StreamGet>(),
            extensions: std::ptr::null_mut(),
            context: self.frame.context,
            stream: std::ptr::null_mut(),
        };
        // SAFETY: the call fills one struct.
        let error = unsafe { (self.api().stream_get)(&raw mut asked) };
        error.is_null().then_some(asked.stream).ok_or_else(|| "XLA does not say the stream".to_owned())
    }

    fn state_of(self, kept: *mut c_void) -> State {
        State {
            size: size_of::<State>(),
            extensions: std::ptr::null_mut(),
            context: self.frame.context,
            stage: INSTANTIATE,
            type_id: &raw const KEPT_ID,
            kept,
        }
    }

    /// Gives XLA what this call of the executable keeps.
    fn keep(self) -> Result<(), String> {
        let kept = Box::into_raw(Box::<Kept>::default());
        let mut given = self.state_of(kept.cast());
        // SAFETY: the call reads one struct. What it names is XLA's from then on, which drops it by `delete_kept`.
        if unsafe { (self.api().state_set)(&raw mut given) }.is_null() {
            return Ok(());
        }
        // SAFETY: XLA did not take it.
        drop(unsafe { Box::from_raw(kept) });
        Err("XLA keeps no state of this call".to_owned())
    }

    /// What this call of the executable keeps.
    pub(super) fn kept(self) -> Result<&'a Kept, String> {
        let mut asked = self.state_of(std::ptr::null_mut());
        // SAFETY: the call fills one struct.
        let error = unsafe { (self.api().state_get)(&raw mut asked) };
        if !error.is_null() {
            return Err("XLA has kept no state of this call".to_owned());
        }
        // SAFETY: XLA compares the type with that of `keep`, which made it. It lives as long as the executable, and so during this call.
        Ok(unsafe { &*asked.kept.cast::<Kept>() })
    }

    /// An attribute that is a 64-bit integer.
    pub(super) fn integer(self, name: &str) -> Result<i64, String> {
        let attributes = &self.frame.attributes;
        for index in 0..usize::try_from(attributes.count).unwrap_or(0) {
            // SAFETY: the promise of `new`: the arrays have an entry for each attribute; a scalar's value is of its type.
            unsafe {
                let span = &**attributes.names.add(index);
                if std::slice::from_raw_parts(span.start, span.length) != name.as_bytes() {
                    continue;
                }
                let scalar = &*(*attributes.values.add(index)).cast::<Scalar>();
                if *attributes.kinds.add(index) == SCALAR && scalar.data_type == S64 {
                    return Ok(scalar.value.cast::<i64>().read_unaligned());
                }
            }
        }
        Err(format!("the attribute {name} is missing, or no 64-bit integer"))
    }

    pub(super) fn arguments<const N: usize>(self) -> Result<[Operand<'a>; N], String> {
        operands(&self.frame.arguments)
    }

    pub(super) fn results<const N: usize>(self) -> Result<[Operand<'a>; N], String> {
        operands(&self.frame.results)
    }
}

/// The buffers of a call, which has so many.
fn operands<const N: usize>(buffers: &Buffers) -> Result<[Operand<'_>; N], String> {
    if usize::try_from(buffers.count) != Ok(N) {
        return Err(format!("{} buffers were given; {N} are needed", buffers.count));
    }
    // SAFETY: the frame is XLA's (`Call::new`): the array has an entry for each buffer.
    let all = (0..N).map(|index| unsafe { operand(&**buffers.values.add(index)) });
    let all = all.collect::<Result<Vec<_>, _>>()?;
    all.try_into().map_err(|_| format!("{N} buffers are needed"))
}

/// # Safety
/// The buffer is XLA's.
unsafe fn operand(buffer: &Buffer) -> Result<Operand<'_>, String> {
    let rank = usize::try_from(buffer.rank).unwrap_or(0);
    let extents = if rank == 0 {
        &[]
    } else {
        // SAFETY: a buffer has as many extents as its rank.
        unsafe { std::slice::from_raw_parts(buffer.dimensions, rank) }
    };
    let found = TYPES.iter().find(|(code, _)| *code == buffer.data_type);
    let (_, data_type) =
        found.ok_or_else(|| format!("XLA's element type {} is not supported", buffer.data_type))?;
    Ok(Operand { address: DeviceAddress(buffer.data as u64), data_type: *data_type, extents })
}
