//! Joining a world, and what a world has.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anabranch::Group;
use anabranch::ccl::{CclConfig, DataType};
use anabranch::hip::DeviceAddress;
use anabranch::shmem;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::array::{self, Array};
use crate::communicator::Communicator;
use crate::ep::{EpConfig, ExpertParallel, LaunchOrder};
use crate::errors::{raise, usage};
use crate::logs;
use crate::memory::{Memory, Owner};
use crate::state::{State, collective, wait_in_slices};
use crate::unlocked::Unlocked;
use crate::work::seconds;

/// One rank of a joined world: its device, the symmetric heap, and what is made from them.
///
/// A context manager: leaving the block leaves the world, which all ranks do.
#[pyclass(frozen, module = "anabranch", name = "World")]
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) state: Unlocked<Arc<State>>,
}

#[pymethods]
impl World {
    /// This rank, from 0.
    #[getter]
    fn rank(&self) -> u32 {
        self.state.world.rank().get()
    }

    /// Ranks of the world.
    #[getter]
    fn size(&self) -> u32 {
        self.state.world.size()
    }

    /// This rank among those of its machine.
    #[getter]
    fn local_rank(&self) -> u32 {
        self.state.local_rank
    }

    /// The runtime: `"amd"`, `"nvidia"` or `"host"`.
    #[getter]
    fn runtime(&self) -> &'static str {
        self.state.home.runtime.word()
    }

    /// The number of this rank's device.
    #[getter]
    fn device(&self) -> u32 {
        self.state.home.ordinal
    }

    /// The device's name.
    #[getter]
    fn device_name(&self) -> String {
        self.state.world.device().name()
    }

    /// Memory of the symmetric heap, at the same offset on all ranks of the group (`ranks`; `None` is all), which all call this in the same
    /// order with the same shape and dtype. Its content is undefined.
    #[pyo3(signature = (shape, dtype, *, ranks = None, tag = "memory"))]
    fn empty(
        &self,
        py: Python<'_>,
        shape: &Bound<'_, PyAny>,
        dtype: &Bound<'_, PyAny>,
        ranks: Option<Vec<u32>>,
        tag: &str,
    ) -> PyResult<Memory> {
        let world = self.state.live()?;
        let shape = match shape.extract::<u64>() {
            Ok(extent) => vec![extent],
            Err(_) => shape.extract::<Vec<u64>>()?,
        };
        let data_type: DataType = array::data_type(dtype)?;
        let elements = shape.iter().try_fold(1u64, |all, extent| all.checked_mul(*extent));
        let bytes = elements.and_then(|elements| elements.checked_mul(u64::from(data_type.bits())));
        if data_type.bits() < 8 {
            return Err(usage(format!("elements of {data_type} share bytes; allocate uint8")));
        }
        let Some(bytes) = bytes.map(|bits| bits.div_ceil(8)) else {
            return Err(usage(format!("shape {shape:?} has more elements than memory can hold")));
        };
        if bytes == 0 {
            return Err(usage(format!("shape {shape:?} has no elements")));
        }
        let group = self.state.group(ranks)?;
        let tag = tag.to_owned();
        let memory = Arc::new(collective(py, world, move |world| {
            Ok(world.allocate(&group, bytes, shmem::DEFAULT_ALIGNMENT, &tag)?)
        })?);
        self.state.note(&memory);
        let address = memory.address().0;
        Ok(Memory::new(address, shape, None, data_type, self.state.home, Owner::Symmetric(memory)))
    }

    /// The allocation of this rank's heap that a tensor starts in: its tag, the offset in it in bytes, and its ranks. `None` for other memory.
    fn locate(&self, tensor: &Bound<'_, PyAny>) -> PyResult<Option<(String, u64, Vec<u32>)>> {
        let tensor = Array::new("tensor", tensor, self.state.home)?;
        let found = self.state.live()?.locate(DeviceAddress(tensor.address()));
        let ranks = |group: &Group| group.members().iter().map(|rank| rank.get()).collect();
        Ok(found.map(|found| (found.tag, found.offset, ranks(&found.group))))
    }

    /// A tensor that was made from memory of `empty`, as that memory, so that collectives reach it directly. Not collective; but all ranks
    /// give collectives the same part of the memory, which nothing checks unless `ccl.check` is "fingerprint".
    fn symmetric(&self, tensor: &Bound<'_, PyAny>) -> PyResult<Memory> {
        let array = Array::new("tensor", tensor, self.state.home)?;
        let address = array.address();
        let Some(memory) = self.state.allocation_at(address, array.bytes()) else {
            let found = self.state.live()?.locate(DeviceAddress(address));
            let place = found.map_or_else(
                || "outside the heap".to_owned(),
                |found| format!("in the allocation {:?}", found.tag),
            );
            return Err(usage(format!(
                "tensor at {address:#x} is not in memory of World.empty: it is {place}"
            )));
        };
        let (shape, data_type) = (array.shape().to_vec(), array.data_type());
        Ok(Memory::new(address, shape, None, data_type, self.state.home, Owner::Symmetric(memory)))
    }

    /// Collectives among these ranks, in this order; `None` is all. All of them call it.
    ///
    /// A communicator of two ranks or more takes blocks of the device for as long as it lives. `shared_blocks` is for programs with many: the
    /// most blocks of this one, up to 1024, and at most a third of those that are free. 0: at most 128, and five eighths. A configured
    /// `ccl.max_blocks` replaces both.
    #[pyo3(signature = (ranks = None, *, shared_blocks = 0))]
    fn communicator(
        &self,
        py: Python<'_>,
        ranks: Option<Vec<u32>>,
        shared_blocks: u32,
    ) -> PyResult<Communicator> {
        let world = self.state.live()?;
        let group = self.state.group(ranks)?;
        let members = group.clone();
        let made = collective(py, world, move |world| {
            let config = CclConfig { shared_blocks, ..anabranch::ccl_config(world.settings())? };
            Ok(anabranch::Communicator::new(world, &members, config)?)
        })?;
        Ok(Communicator::new(Arc::clone(&self.state), group, made))
    }

    /// An order for the launches of plans. Not collective.
    fn launch_order(&self) -> PyResult<LaunchOrder> {
        shmem::LaunchOrder::new(self.state.live()?).map(LaunchOrder).map_err(raise)
    }

    /// Dispatch and combine of expert parallelism among these ranks, in this order; `None` is all. All of them call it, with equal plans.
    ///
    /// A plan takes the part of the device that its grids need, for as long as it lives. With `order` it shares that of the other plans of
    /// the order; all members give one then.
    #[pyo3(signature = (config, ranks = None, *, order = None))]
    fn expert_parallel(
        &self,
        py: Python<'_>,
        config: &EpConfig,
        ranks: Option<Vec<u32>>,
        order: Option<&LaunchOrder>,
    ) -> PyResult<ExpertParallel> {
        let world = self.state.live()?;
        let group = self.state.group(ranks)?;
        let (plan, order) = (config.plan.clone(), order.map(|order| order.0.clone()));
        let made = collective(py, world, move |world| match &order {
            None => world.expert_parallel(&group, plan),
            Some(order) => world.expert_parallel_in_order(&group, plan, order),
        })?;
        Ok(ExpertParallel::new(Arc::clone(&self.state), made))
    }

    /// Gives these bytes to every rank of the group and returns those of all, in the group's order.
    #[pyo3(signature = (data, *, ranks = None, tag = "exchange"))]
    fn exchange<'py>(
        &self,
        py: Python<'py>,
        data: Vec<u8>,
        ranks: Option<Vec<u32>>,
        tag: &str,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let world = self.state.live()?;
        let (group, tag) = (self.state.group(ranks)?, tag.to_owned());
        let all = collective(py, world, move |world| Ok(world.exchange(&group, &tag, &data)?))?;
        Ok(all.iter().map(|bytes| PyBytes::new(py, bytes)).collect())
    }

    /// Waits on the host until all ranks of the group have come.
    #[pyo3(signature = (*, ranks = None, tag = "barrier"))]
    fn barrier(&self, py: Python<'_>, ranks: Option<Vec<u32>>, tag: &str) -> PyResult<()> {
        let world = self.state.live()?;
        let (group, tag) = (self.state.group(ranks)?, tag.to_owned());
        collective(py, world, move |world| Ok(world.barrier(&group, &tag)?))
    }

    /// Waits on the host until all work on the stream is done, and raises what made it fail.
    #[pyo3(signature = (stream = None, *, timeout = None))]
    fn synchronize(
        &self,
        py: Python<'_>,
        stream: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let world = self.state.live()?;
        let timeout: Option<Duration> = timeout.map(seconds).transpose()?;
        let stream = self.state.stream(py, stream, None)?;
        let result = wait_in_slices(py, timeout, |slice| Ok(world.synchronize_within(&stream, slice)?));
        self.state.release();
        logs::flush(py);
        result
    }

    /// Traces this rank until the end of the block; all ranks do, and rank 0 then writes a picture of all to `path`. Leaving the block waits
    /// for the other ranks. After an exception in the block there is no file.
    #[pyo3(signature = (path))]
    fn profile(&self, path: PathBuf) -> Profile {
        Profile::new(Arc::clone(&self.state), path)
    }

    /// Raises what made the world fail, if it did. Does not wait.
    fn check(&self) -> PyResult<()> {
        self.state.live()?.check().map_err(raise)
    }

    /// Makes the world fail: every later call raises, here with this reason, and on the other ranks when they notice.
    fn poison(&self, reason: &str) -> PyResult<()> {
        self.state.live()?.poison(reason);
        Ok(())
    }

    /// Leaves the world: all ranks do, after their last call. Doing it again does nothing.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let state = Arc::clone(&self.state);
        let left = collective(py, &self.state.world, move |_| state.leave());
        self.state.release();
        left
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (kind, error, trace))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        error: &Bound<'_, PyAny>,
        trace: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let _ = trace;
        if kind.is_none() {
            self.leave(py)?;
            return Ok(false);
        }
        // The other ranks learn the cause now and not by a deadline; the exception of the block is the one to raise.
        let reason = format!("an exception in Python: {}", PyErr::from_value(error.clone()));
        py.detach(|| self.state.abandon(&reason));
        Ok(false)
    }

    fn __repr__(&self) -> String {
        format!("anabranch.World(rank={}, size={}, runtime={:?})", self.rank(), self.size(), self.runtime())
    }
}

/// A context manager: what all ranks do in its block becomes a picture.
#[pyclass(frozen, module = "anabranch", name = "Profile")]
#[derive(Debug)]
pub(crate) struct Profile {
    state: Unlocked<Arc<State>>,
    path: PathBuf,
    running: Unlocked<Mutex<Option<anabranch::Profile>>>,
}

impl Profile {
    fn new(state: Arc<State>, path: PathBuf) -> Self {
        Self { state: Unlocked::new(state), path, running: Unlocked::new(Mutex::new(None)) }
    }

    fn take(&self) -> Option<anabranch::Profile> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// `world.profile(path)`; without `world`, of the only world that this process is in.
#[pyfunction]
#[pyo3(signature = (path, world = None))]
pub(crate) fn profile(path: PathBuf, world: Option<&Bound<'_, World>>) -> PyResult<Profile> {
    let state = world.map_or_else(State::only, |world| Ok(Arc::clone(&world.get().state)))?;
    Ok(Profile::new(state, path))
}

#[pymethods]
impl Profile {
    fn __enter__(slf: Py<Self>, py: Python<'_>) -> PyResult<Py<Self>> {
        let profile = slf.get();
        let world = profile.state.live()?;
        let started = py.detach(|| world.profile()).map_err(raise)?;
        *profile.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(started);
        Ok(slf)
    }

    #[pyo3(signature = (kind, error, trace))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        error: &Bound<'_, PyAny>,
        trace: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let _ = (error, trace);
        let Some(running) = self.take() else { return Ok(false) };
        if !kind.is_none() {
            py.detach(|| drop(running));
            return Ok(false);
        }
        let path = self.path.clone();
        collective(py, self.state.live()?, move |_| running.finish(&path))?;
        Ok(false)
    }
}
