//! Collectives.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use anabranch::GroupRank;
use anabranch::ccl::{self, ReduceOp, Tensor};
use pyo3::prelude::*;

use super::ffi::{Call, Frame, Operand, handle};
use super::{Member, Registry, report, run_on_device};
use crate::communicator::Communicator;
use crate::errors::usage;
use crate::raw::numbered;
use crate::state::State;

/// What the handler runs on one device.
#[derive(Debug)]
struct Collectives {
    state: Arc<State>,
    communicator: Arc<Mutex<ccl::Communicator>>,
}

impl Member for Collectives {
    fn state(&self) -> &State {
        &self.state
    }
}

static GROUPS: Registry<Collectives> = Registry::new();

/// Keeps communicators of one group, one for each device of this process in the order of the devices, and returns the group's number.
#[pyfunction]
pub(crate) fn xla_register(communicators: Vec<PyRef<'_, Communicator>>) -> i64 {
    let member = |communicator: PyRef<'_, Communicator>| {
        let (state, communicator) = communicator.parts();
        Collectives { state: Arc::clone(state), communicator: Arc::clone(communicator) }
    };
    GROUPS.insert(communicators.into_iter().map(member).collect())
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
