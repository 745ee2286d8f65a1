//! Collectives.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use anabranch::GroupRank;
use anabranch::ccl::{self, DataType, ReduceOp, Tensor};
use anabranch::hip::{HostBuffer, Stream};
use pyo3::prelude::*;

use super::ffi::{Call, Frame, Kept, Kind, Operand, handle, kept_type};
use super::{Member, Registry, report, run_on_device, wait_for};
use crate::communicator::Communicator;
use crate::errors::{raise, usage};
use crate::raw::numbered;
use crate::state::State;

/// What the handler runs on one device.
#[derive(Debug)]
struct Collectives {
    state: Arc<State>,
    communicator: Arc<Mutex<ccl::Communicator>>,
    /// Where the host reads the places of all devices. Made early: an allocation may wait for kernels, and these for other devices.
    places: Mutex<HostBuffer>,
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
        let bytes = state.world.size() as usize * size_of::<f32>();
        let places = state.world.device().allocate_host(bytes).map_err(raise)?;
        let places = Mutex::new(places);
        Ok(Collectives { state: Arc::clone(state), communicator: Arc::clone(communicator), places })
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

/// The addresses of the id and the description of what a start keeps with an executable.
#[pyfunction]
pub(crate) fn xla_start_state() -> (usize, usize) {
    kept_type()
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
    unsafe { handle(frame, Kind::Repeatable, run) }
}

unsafe extern "C" fn start(frame: *mut Frame) -> *mut c_void {
    // SAFETY: XLA calls this with a frame of its own.
    unsafe { handle(frame, Kind::Keeps, run_start) }
}

/// A program begins: its argument is the device's place on the mesh's axis, and has to be the rank. The first run of an executable asks, as
/// the host waits for the answer. All devices learn all places, so that none waits for one that has failed. Each run reports a world that has
/// failed: calls in a command buffer have no host part.
fn run_start(call: Call<'_>) -> Result<(), String> {
    let ([place], [_]) = (call.arguments()?, call.results()?);
    let kept = call.kept()?;
    run_on_device(&GROUPS, call, |member, stream| member.check_places(stream, place, kept).map(|()| None))
}

impl Collectives {
    fn check_places(&self, stream: &Stream, own: Operand<'_>, kept: &Kept) -> Result<(), String> {
        if own.data_type != DataType::F32 || own.count() != 1 {
            return Err(format!("the place is {} of {}; one f32 is needed", own.count(), own.data_type));
        }
        self.state.world.check().map_err(report)?;
        // Until the ranks are noted: two runs of an executable at once gather once on each device.
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let own_rank = self.state.world.rank().get();
        if kept.lock().unwrap_or_else(PoisonError::into_inner).contains(&own_rank) {
            return Ok(());
        }
        // SAFETY: it has an f32 for each rank, the device may write it, and the wait below is over before the lock is given back.
        let output = unsafe {
            Tensor::local(places.device_address(), DataType::F32, u64::from(self.state.world.size()))
        };
        let gather = ccl::Call::AllGather { output, input: tensor(own) };
        let run = self.communicator.lock().unwrap_or_else(PoisonError::into_inner).run(&gather, stream);
        let work = run.map_err(report)?;
        wait_for(|slice| Ok(work.join(slice)?))?;
        for rank in 0..self.state.world.size() {
            let mut bytes = [0; size_of::<f32>()];
            places.read(rank as usize * bytes.len(), &mut bytes).map_err(report)?;
            let place = f32::from_ne_bytes(bytes);
            if (place - rank as f32).abs() > 0.5 {
                return Err(format!(
                    "the device of rank {rank} is at place {place} of the mesh's axis; make the mesh of jax.devices(), in their order"
                ));
            }
        }
        kept.lock().unwrap_or_else(PoisonError::into_inner).insert(own_rank);
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
