//! Collectives as a handler of XLA's FFI, so that compiled programs of JAX call them.
//!
//! Structs of `xla/ffi/api/c_api.h`, API version 0.3, declared by hand. Every struct begins with its size: a later minor version may append
//! fields, and what is here stays at its place.

use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use anabranch::ccl::{self, DataType, ReduceOp, Tensor};
use anabranch::hip::DeviceAddress;
use anabranch::{GroupRank, RuntimeKind};
use pyo3::prelude::*;

use crate::communicator::Communicator;
use crate::errors::usage;
use crate::raw::numbered;
use crate::state::{SLICE, State};

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
struct Frame {
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
    state_set: Unused,
    state_get: Unused,
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

/// A rank of this process: what the handler runs on one device.
#[derive(Debug)]
struct Member {
    state: Arc<State>,
    communicator: Arc<Mutex<ccl::Communicator>>,
}

/// Groups by number. A program of XLA can only name a number; none is used again.
static GROUPS: Mutex<Groups> = Mutex::new(Groups { last: 0, members: BTreeMap::new() });

#[derive(Debug)]
struct Groups {
    last: i64,
    /// By group, in the order of the devices.
    members: BTreeMap<i64, Arc<Vec<Member>>>,
}

/// Keeps communicators of one group, one for each device of this process in the order of the devices, and returns the group's number.
#[pyfunction]
pub(crate) fn xla_register(communicators: Vec<PyRef<'_, Communicator>>) -> i64 {
    let member = |communicator: PyRef<'_, Communicator>| {
        let (state, communicator) = communicator.parts();
        Member { state: Arc::clone(state), communicator: Arc::clone(communicator) }
    };
    let members = Arc::new(communicators.into_iter().map(member).collect());
    let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
    groups.last += 1;
    let number = groups.last;
    groups.members.insert(number, members);
    number
}

/// Lets go of a group. Programs that name it fail from now on.
#[pyfunction]
pub(crate) fn xla_unregister(py: Python<'_>, number: i64) {
    let members = GROUPS.lock().unwrap_or_else(PoisonError::into_inner).members.remove(&number);
    py.detach(|| drop(members));
}

/// The address of the handler of collectives.
#[pyfunction]
pub(crate) fn xla_collective_handler() -> usize {
    collective as *const () as usize
}

/// The number of an operator in the handler's attributes: torch's.
#[pyfunction]
pub(crate) fn xla_operator(name: &str) -> PyResult<i64> {
    let known =
        ReduceOp::all(1.0).into_iter().find(|op| op.name() == name && !matches!(op, ReduceOp::PreMulSum(_)));
    known.map(|op| i64::from(op.torch_value())).ok_or_else(|| usage(format!("unknown operator {name:?}")))
}

unsafe extern "C" fn collective(frame: *mut Frame) -> *mut c_void {
    // SAFETY: XLA passes a frame of its own, which is valid during the call.
    let frame = unsafe { &mut *frame };
    // SAFETY: as above.
    if unsafe { answer_metadata(frame) } || frame.stage != EXECUTE {
        return std::ptr::null_mut();
    }
    // SAFETY: as above.
    let result = catch_unwind(AssertUnwindSafe(|| unsafe { run(frame) }));
    let message = match result {
        Ok(Ok(())) => return std::ptr::null_mut(),
        Ok(Err(message)) => message,
        Err(_) => "the library panicked; see standard error".to_owned(),
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
unsafe fn answer_metadata(frame: &mut Frame) -> bool {
    let mut extension = frame.extensions;
    // SAFETY: a list that ends with null; the kind says what an entry is.
    while let Some(entry) = unsafe { extension.as_mut() } {
        if entry.kind == METADATA {
            // SAFETY: as above.
            let metadata = unsafe { &mut *(*extension.cast::<MetadataExtension>()).metadata };
            (metadata.version.major, metadata.version.minor) = (0, 3);
            metadata.traits = 0;
            return true;
        }
        extension = entry.next;
    }
    false
}

/// # Safety
/// The frame is XLA's.
unsafe fn run(frame: &Frame) -> Result<(), String> {
    // SAFETY: the API's table is XLA's.
    let api = unsafe { &*frame.api };
    if api.version.major != 0
        || api.size < size_of::<Api>()
        || frame.size < std::mem::offset_of!(Frame, future)
    {
        return Err(format!(
            "XLA's FFI has version {}.{}; 0.3 is needed",
            api.version.major, api.version.minor
        ));
    }
    let mut asked = OrdinalGet {
        size: size_of::<OrdinalGet>(),
        extensions: std::ptr::null_mut(),
        context: frame.context,
        ordinal: 0,
    };
    // SAFETY: the call fills one struct.
    if !unsafe { (api.ordinal_get)(&raw mut asked) }.is_null() {
        return Err("XLA does not say the device".to_owned());
    }
    // SAFETY: the attributes are XLA's.
    let attribute = |name: &str| unsafe { integer(&frame.attributes, name) };
    let number = attribute("group")?;
    let group = GROUPS.lock().unwrap_or_else(PoisonError::into_inner).members.get(&number).cloned();
    let group = group.ok_or_else(|| "the group of this program was left".to_owned())?;
    let ordinal = asked.ordinal;
    let member = usize::try_from(ordinal).ok().and_then(|ordinal| group.get(ordinal));
    let member =
        member.ok_or_else(|| format!("device {ordinal} is not in the group, which has {}", group.len()))?;
    // SAFETY: buffers of the frame are valid until the work is over: on the CPU the call waits for it, on GPUs XLA's stream is behind it.
    let (input, output) = unsafe { (tensor(&frame.arguments)?, tensor(&frame.results)?) };
    if member.state.home.runtime == RuntimeKind::Host {
        // SAFETY: the second argument is one f32 in memory of the host: the device's place on the mesh's axis.
        let place = unsafe { place(&frame.arguments) }?;
        if (place - ordinal as f32).abs() > 0.5 {
            return Err(format!(
                "device {ordinal} is at place {place} of the mesh's axis; make the mesh of jax.local_devices(), in their order"
            ));
        }
    }
    let op = u32::try_from(attribute("op")?).map_err(|error| error.to_string())?;
    let op = ReduceOp::from_torch(op, None).map_err(|error| error.to_string())?;
    let number = attribute("call")?;
    let call = numbered(number, (output, input), op, GroupRank::new(0));
    let call = call.ok_or_else(|| format!("call {number} is unknown"))?;
    let run = |stream: &anabranch::hip::Stream| {
        let mut communicator = member.communicator.lock().unwrap_or_else(PoisonError::into_inner);
        communicator.run(&call, stream).map_err(anabranch::Error::from)
    };
    if member.state.home.runtime != RuntimeKind::Host {
        let mut asked = StreamGet {
            size: size_of::<StreamGet>(),
            extensions: std::ptr::null_mut(),
            context: frame.context,
            stream: std::ptr::null_mut(),
        };
        // SAFETY: the call fills one struct.
        if !unsafe { (api.stream_get)(&raw mut asked) }.is_null() {
            return Err("XLA does not say the stream".to_owned());
        }
        // SAFETY: XLA's stream of this device, used in this call.
        let stream = unsafe { member.state.world.device().borrow_stream(asked.stream) };
        return run(&stream).map(drop).map_err(|error| format!("{error:?}"));
    }
    let work = run(member.state.own_stream()).map_err(|error| format!("{error:?}"))?;
    loop {
        match work.join(SLICE).map_err(anabranch::Error::from) {
            Ok(()) => return Ok(()),
            Err(error) if error.is_busy() => {}
            Err(error) => return Err(format!("{error:?}")),
        }
    }
}

/// An attribute that is a 64-bit integer.
///
/// # Safety
/// The attributes are XLA's.
unsafe fn integer(attributes: &Attributes, name: &str) -> Result<i64, String> {
    for index in 0..usize::try_from(attributes.count).unwrap_or(0) {
        // SAFETY: the arrays have an entry for each attribute; a scalar's value is of its type.
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

/// What the second buffer, which orders calls, holds.
///
/// # Safety
/// The buffers are XLA's, in memory of the host.
unsafe fn place(buffers: &Buffers) -> Result<f32, String> {
    // SAFETY: `tensor` has seen that there are two.
    let buffer = unsafe { &**buffers.values.add(1) };
    if buffer.data_type != 11 || buffer.data.is_null() {
        return Err("the second argument is no f32".to_owned());
    }
    // SAFETY: XLA's arrays are aligned for their elements.
    Ok(unsafe { buffer.data.cast::<f32>().read() })
}

/// The first buffer of a call's arguments or results. The second orders calls.
///
/// # Safety
/// The buffers are XLA's, and stay valid until the work is over.
unsafe fn tensor<'a>(buffers: &Buffers) -> Result<Tensor<'a>, String> {
    if buffers.count != 2 {
        return Err(format!("{} buffers were given; 2 are needed", buffers.count));
    }
    // SAFETY: the arrays have an entry for each buffer, and a buffer has as many extents as its rank.
    let (buffer, extents) = unsafe {
        let buffer = &**buffers.values;
        let rank = usize::try_from(buffer.rank).unwrap_or(0);
        let extents = if rank == 0 { &[] } else { std::slice::from_raw_parts(buffer.dimensions, rank) };
        (buffer, extents)
    };
    let found = TYPES.iter().find(|(code, _)| *code == buffer.data_type);
    let (_, data_type) =
        found.ok_or_else(|| format!("XLA's element type {} is not supported", buffer.data_type))?;
    let count = extents.iter().map(|extent| *extent as u64).product();
    // SAFETY: the caller's promise.
    Ok(unsafe { Tensor::local(DeviceAddress(buffer.data as u64), *data_type, count) })
}
