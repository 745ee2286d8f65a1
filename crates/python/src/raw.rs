//! Collectives by numbers and addresses, for callers to which every microsecond of the host counts: `anabranch.torch`.

use std::sync::{Arc, PoisonError};

use anabranch::ccl::{self, Call, DataType, ReduceOp, Tensor};
use anabranch::hip::{DeviceAddress, Stream};
use anabranch::shmem::SymmetricMemory;
use anabranch::{GroupRank, RuntimeKind};
use pyo3::prelude::*;

use crate::array;
use crate::communicator::Communicator;
use crate::errors::{raise, usage};
use crate::logs;
use crate::memory::Memory;
use crate::state::{State, member};
use crate::work::Work;
use crate::world::World;

/// The collective of a number. 4 and 5 use the root.
pub(crate) const fn numbered<'a>(
    number: i64,
    (output, input): (Tensor<'a>, Tensor<'a>),
    op: ReduceOp,
    root: GroupRank,
) -> Option<Call<'a>> {
    Some(match number {
        0 => Call::AllReduce { output, input, op },
        1 => Call::AllGather { output, input },
        2 => Call::ReduceScatter { output, input, op },
        3 => Call::AllToAll { output, input },
        4 => Call::Broadcast { tensor: output, root },
        5 => Call::Reduce { output, input, op, root },
        _ => return None,
    })
}

/// A tensor: an address of local memory, or memory of the heap.
enum Operand {
    Local(u64),
    Symmetric(Arc<SymmetricMemory>, u64),
}

impl Operand {
    fn new(given: &Bound<'_, PyAny>) -> PyResult<Self> {
        let Ok(memory) = given.cast::<Memory>() else { return Ok(Self::Local(given.extract()?)) };
        let of_heap = memory.get().symmetric().filter(|_| memory.get().is_contiguous());
        let (memory, offset) =
            of_heap.ok_or_else(|| usage("the memory is not contiguous memory of World.empty"))?;
        Ok(Self::Symmetric(memory, offset))
    }

    /// # Safety
    /// As [`Tensor::local`].
    unsafe fn tensor(&self, data_type: DataType, count: u64) -> Result<Tensor<'_>, ccl::Error> {
        match self {
            // SAFETY: the caller's promise.
            Self::Local(address) => Ok(unsafe { Tensor::local(DeviceAddress(*address), data_type, count) }),
            Self::Symmetric(memory, offset) => Tensor::symmetric(memory, *offset, data_type, count),
        }
    }
}

/// A stream of the caller.
///
/// # Errors
/// `UsageError` on the host runtime, which has one stream a rank.
fn borrowed(state: &State, stream: u64) -> PyResult<Stream> {
    if state.home.runtime == RuntimeKind::Host {
        return Err(usage("the host runtime has one stream a rank; leave `stream` out"));
    }
    // SAFETY: the caller says that it is a stream of this device, and keeps it until its work is over.
    Ok(unsafe { state.world.device().borrow_stream(stream as *mut _) })
}

/// The number of an element type, for [`raw_call`]; `None` for one that the library does not know.
#[pyfunction]
pub(crate) fn raw_type(data_type: &Bound<'_, PyAny>) -> Option<u8> {
    array::data_type(data_type).ok().map(|data_type| data_type as u8)
}

/// Runs a collective, by the number of its call. `output` and `input` are an address of local memory, or `Memory` of the heap, with the
/// elements there; `kind` is the element type ([`raw_type`]), the operator ([`xla_operator`](crate::xla::xla_operator)) and the root. Returns
/// the work if `is_kept`.
///
/// The caller keeps the memory until the work is over: nothing here does.
#[pyfunction]
#[pyo3(signature = (communicator, call, output, input, kind, stream, is_kept, /))]
pub(crate) fn raw_call(
    py: Python<'_>,
    communicator: &Bound<'_, Communicator>,
    call: i64,
    output: (Bound<'_, PyAny>, u64),
    input: (Bound<'_, PyAny>, u64),
    kind: (u8, u32, u32),
    stream: Option<u64>,
    is_kept: bool,
) -> PyResult<Option<Work>> {
    let ((output, output_count), (input, input_count), (data_type, op, root)) = (output, input, kind);
    let communicator = communicator.get();
    let (state, inner) = communicator.parts();
    state.live()?;
    let root = member(communicator.group(), root, "the root")?;
    let op = ReduceOp::from_torch(op, None).map_err(|error| usage(error.to_string()))?;
    let data_type = DataType::ALL.into_iter().find(|known| *known as u8 == data_type);
    let data_type = data_type.ok_or_else(|| usage("the element type has no number of raw_type"))?;
    let (output, input) = (Operand::new(&output)?, Operand::new(&input)?);
    let own;
    let stream = match stream {
        Some(stream) => {
            own = borrowed(state, stream)?;
            &own
        }
        None => state.own_stream(),
    };
    let result = py.detach(|| {
        // SAFETY: the caller keeps the memory.
        let tensors =
            unsafe { (output.tensor(data_type, output_count)?, input.tensor(data_type, input_count)?) };
        let Some(call) = numbered(call, tensors, op, root) else { return Ok(None) };
        let work = inner.lock().unwrap_or_else(PoisonError::into_inner).run(&call, stream)?;
        Ok::<_, anabranch::Error>(Some(is_kept.then_some(work)))
    });
    logs::flush(py);
    let work = result.map_err(raise)?.ok_or_else(|| usage(format!("no call has the number {call}")))?;
    Ok(work.map(|work| communicator.work(work)))
}

/// Makes later work on `stream` wait for what is on the stream `after` now.
#[pyfunction]
#[pyo3(signature = (world, stream, after, /))]
pub(crate) fn raw_order(world: &Bound<'_, World>, stream: u64, after: u64) -> PyResult<()> {
    let state = &world.get().state;
    state.live()?;
    state.order(&borrowed(state, stream)?, &borrowed(state, after)?).map_err(raise)
}

/// Keeps an object until what is on the stream now is over. Does nothing under capture.
#[pyfunction]
#[pyo3(signature = (world, stream, object, /))]
pub(crate) fn raw_hold(world: &Bound<'_, World>, stream: u64, object: Py<PyAny>) -> PyResult<()> {
    let state = &world.get().state;
    state.live()?;
    let stream = borrowed(state, stream)?;
    state.release_before(&stream);
    state.hold(&stream, None, vec![object]);
    Ok(())
}
