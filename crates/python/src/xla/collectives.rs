//! Collectives.

use std::collections::HashSet;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use anabranch::ccl::{self, DataType, ReduceOp, Tensor};
use anabranch::hip::{HostBuffer, Stream};
use anabranch::{GroupRank, RuntimeKind};
use pyo3::prelude::*;

use super::ffi::{Call, Frame, Operand, handle};
use super::{Member, Registry, report, run_on_device};
use crate::communicator::Communicator;
use crate::errors::{raise, usage};
use crate::raw::numbered;
use crate::state::State;

/// What the handler runs on one device.
#[derive(Debug)]
struct Collectives {
    state: Arc<State>,
    communicator: Arc<Mutex<ccl::Communicator>>,
    starts: Mutex<Starts>,
}

/// The starts of programs whose order of devices was right.
#[derive(Debug)]
struct Starts {
    numbers: HashSet<i64>,
    /// Where the host reads the device's place. Made early: an allocation may wait for kernels, and these for other devices.
    place: HostBuffer,
}

impl Member for Collectives {
    fn state(&self) -> &State {
        &self.state
    }
}

static GROUPS: Registry<Collectives> = Registry::new();

/// Keeps communicators of one group, one for each device of this process in the order of the devices, and returns the group's number.
#[pyfunction]
pub(crate) fn xla_register(communicators: Vec<PyRef<'_, Communicator>>) -> PyResult<i64> {
    let member = |communicator: PyRef<'_, Communicator>| {
        let (state, communicator) = communicator.parts();
        let place = state.world.device().allocate_host(size_of::<f32>()).map_err(raise)?;
        let starts = Mutex::new(Starts { numbers: HashSet::new(), place });
        Ok(Collectives { state: Arc::clone(state), communicator: Arc::clone(communicator), starts })
    };
    let members = communicators.into_iter().map(member).collect::<PyResult<_>>()?;
    Ok(GROUPS.insert(members))
}

/// Lets go of a group. Programs that name it fail from now on.
#[pyfunction]
pub(crate) fn xla_unregister(py: Python<'_>, number: i64) {
    py.detach(|| drop(GROUPS.remove(number)));
}

/// The address of the handler of collectives.
#[pyfunction]
pub(crate) fn xla_collective_handler() -> usize {
    collective as *const () as usize
}

/// The address of the handler of starts.
#[pyfunction]
pub(crate) fn xla_start_handler() -> usize {
    start as *const () as usize
}

/// The number of an operator in the handler's attributes: torch's.
#[pyfunction]
pub(crate) fn xla_operator(name: &str) -> PyResult<i64> {
    let known =
        ReduceOp::all(1.0).into_iter().find(|op| op.name() == name && !matches!(op, ReduceOp::PreMulSum(_)));
    known.map(|op| i64::from(op.torch_value())).ok_or_else(|| usage(format!("unknown operator {name:?}")))
}

unsafe extern "C" fn collective(frame: *mut Frame) -> *mut c_void {
    // SAFETY: XLA calls this with a frame of its own.
    unsafe { handle(frame, run) }
}

unsafe extern "C" fn start(frame: *mut Frame) -> *mut c_void {
    // SAFETY: XLA calls this with a frame of its own.
    unsafe { handle(frame, run_start) }
}

/// A program begins: its argument is the device's place on the mesh's axis, and has to be the rank. A program on GPUs is asked the first time
/// that it runs outside of a capture, as the host waits for the answer.
fn run_start(call: Call<'_>) -> Result<(), String> {
    let number = call.integer("number")?;
    let ([place], [_]) = (call.arguments()?, call.results()?);
    run_on_device(&GROUPS, call, |member, stream| {
        let mut starts = member.starts.lock().unwrap_or_else(PoisonError::into_inner);
        let is_host = member.state.home.runtime == RuntimeKind::Host;
        let is_asked =
            is_host || (!starts.numbers.contains(&number) && !stream.is_capturing().map_err(report)?);
        if is_asked {
            member.check_place(stream, place, &starts.place)?;
            starts.numbers.insert(number);
        }
        Ok(None)
    })
}

impl Collectives {
    fn check_place(&self, stream: &Stream, of: Operand<'_>, read: &HostBuffer) -> Result<(), String> {
        if of.data_type != DataType::F32 || of.count() != 1 {
            return Err(format!("the place is {} of {}; one f32 is needed", of.count(), of.data_type));
        }
        let mut bytes = [0; size_of::<f32>()];
        // SAFETY: both are four bytes, which live until the wait below is over, and the lock of `read` is held.
        unsafe { stream.copy_async(read.device_address(), of.address, bytes.len()) }.map_err(report)?;
        stream.synchronize().map_err(report)?;
        read.read(0, &mut bytes).map_err(report)?;
        let (rank, place) = (self.state.world.rank().get(), f32::from_ne_bytes(bytes));
        if (place - rank as f32).abs() > 0.5 {
            return Err(format!(
                "the device of rank {rank} is at place {place} of the mesh's axis; make the mesh of jax.devices(), in their order"
            ));
        }
        Ok(())
    }
}

fn run(call: Call<'_>) -> Result<(), String> {
    let (op, number) = (call.integer("op")?, call.integer("call")?);
    let op = u32::try_from(op).map_err(|error| error.to_string())?;
    let op = ReduceOp::from_torch(op, None).map_err(|error| error.to_string())?;
    let ([input, _], [output, _]) = (call.arguments()?, call.results()?);
    run_on_device(&GROUPS, call, |member, stream| {
        let collective = numbered(number, (tensor(output), tensor(input)), op, GroupRank::new(0));
        let collective = collective.ok_or_else(|| format!("call {number} is unknown"))?;
        let mut communicator = member.communicator.lock().unwrap_or_else(PoisonError::into_inner);
        communicator.run(&collective, stream).map(Some).map_err(report)
    })
}

fn tensor(of: Operand<'_>) -> Tensor<'_> {
    // SAFETY: buffers of the frame are valid until the work is over: on the CPU the call waits for it, on GPUs XLA's stream is behind it.
    unsafe { Tensor::local(of.address, of.data_type, of.count()) }
}
