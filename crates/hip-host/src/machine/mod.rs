//! The machine: its parts, how they come and go, and how a thread says which machine it means.

mod captures;
pub(crate) mod engines;
pub(crate) mod handles;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use anabranch_hip::{Actor, HipError, Step};

use crate::Error;
use crate::config::HostConfig;
use crate::fault::{Fault, FaultLog};
use crate::grid::module::{KernelEntry, Module};
use crate::grid::stack::StackArena;
use crate::memory::ipc::Process;
use crate::memory::mapping::Mapping;
use crate::memory::regions::{MemoryMap, Regions};
use crate::memory::virtual_memory::{Physical, Reservations};
use crate::sync::lock;
use crate::work::capture::CaptureGraph;
use crate::work::core::{Core, MachineParts};
use crate::work::device::DeviceState;
use crate::work::event::{Event, Recording};
use crate::work::graph::GraphPlan;
use crate::work::operation::Operation;
use crate::work::scheduler::{Begin, Scheduler, Task};
use crate::work::stream::{Stream, StreamKind};
use crate::workers::FreeRunning;
use handles::{HandleSource, Handles};

/// A GPU made of CPU threads, with any number of devices.
///
/// A process may have several. Dropping the last `Arc` (runtimes hold one each) stops its threads, unmaps its
/// memory and closes its files; kernels that still run are abandoned, after the lane that runs at that moment
/// has called the machine.
#[derive(Debug)]
pub struct HostMachine {
    pub(crate) core: Arc<Core>,
    pub(crate) devices: Vec<Arc<DeviceState>>,
    pub(crate) null_streams: Vec<Arc<Stream>>,
    pub(crate) regions: Arc<Regions>,
    pub(crate) reservations: Reservations,
    pub(crate) process: Process,
    pub(crate) handles: HandleSource,
    pub(crate) streams: Handles<Stream>,
    pub(crate) events: Handles<Event>,
    pub(crate) modules: Handles<Module>,
    pub(crate) kernels: Handles<KernelEntry>,
    pub(crate) graphs: Handles<GraphPlan>,
    pub(crate) executables: Handles<GraphPlan>,
    pub(crate) physical: Handles<Physical>,
    pub(crate) captures: Mutex<Vec<Arc<CaptureGraph>>>,
    pub(crate) capture_numbers: AtomicU64,
}

impl HostMachine {
    /// Starts a machine: reserves address space for its lanes' stacks and starts its workers, which rest until
    /// there is work.
    ///
    /// # Errors
    /// [`Error::WaveWidth`] and [`Error::Range`] for a configuration that no machine can have; the others when
    /// the system refuses threads or addresses.
    pub fn new(config: HostConfig) -> Result<Arc<Self>, Error> {
        let workers = config.workers.or(std::thread::available_parallelism().ok()).map_or(1, Into::into);
        let longest_rest = config.longest_rest;
        let start = |_: &MachineParts| Ok(Arc::new(FreeRunning::start(workers, longest_rest)?));
        Ok(Self::with_scheduler(config, start)?.0)
    }

    /// A machine under another scheduler, which `start` makes of the machine's parts; and that scheduler.
    ///
    /// # Errors
    /// As [`HostMachine::new`], and what `start` returns.
    pub fn with_scheduler<S: Scheduler + 'static>(
        config: HostConfig,
        start: impl FnOnce(&MachineParts) -> Result<Arc<S>, Error>,
    ) -> Result<(Arc<Self>, Arc<S>), Error> {
        config.check()?;
        let process = Process::current().map_err(|source| Error::Process { source })?;
        let slots = u64::from(config.lanes_per_device()) * u64::from(config.devices);
        let slots = u32::try_from(slots).map_err(|_| Error::Range {
            field: "devices * multiprocessors * lanes_per_multiprocessor",
            value: slots,
            least: 1,
            most: u64::from(u32::MAX),
        })?;
        let stacks = Arc::new(StackArena::new(slots, config.lane_stack_bytes)?);
        let faults = Arc::new(FaultLog::new(config.devices));
        let regions = Arc::new(Regions::default());
        let devices: Vec<_> =
            (0..config.devices).map(|ordinal| Arc::new(DeviceState::new(ordinal, &config))).collect();
        let peers = devices.iter().map(|device| Arc::clone(&device.peers)).collect();
        let memory = MemoryMap::new(Arc::clone(&regions), peers);
        let parts = MachineParts { memory, faults, stacks };
        let own = start(&parts)?;
        let scheduler: Arc<dyn Scheduler> = Arc::clone(&own) as _;
        let MachineParts { faults, stacks, .. } = parts;
        let core = Arc::new(Core { config, scheduler, stacks, faults });
        let null_streams = devices
            .iter()
            .map(|device| Stream::new(Arc::clone(device), StreamKind::Null, Arc::clone(&core)))
            .collect();
        tracing::debug!(
            devices = core.config.devices,
            scheduler = ?core.scheduler,
            wave = core.config.wave_width,
            "host machine started"
        );
        let machine = Self {
            core,
            devices,
            null_streams,
            regions,
            reservations: Reservations::default(),
            process,
            handles: HandleSource::new(),
            streams: Handles::default(),
            events: Handles::default(),
            modules: Handles::default(),
            kernels: Handles::default(),
            graphs: Handles::default(),
            executables: Handles::default(),
            physical: Handles::default(),
            captures: Mutex::default(),
            capture_numbers: AtomicU64::new(1),
        };
        Ok((Arc::new(machine), own))
    }

    /// What the machine was made with.
    pub fn config(&self) -> &HostConfig {
        &self.core.config
    }

    /// The last kernel that the machine stopped, if any: the cause of `hipErrorLaunchFailure`.
    pub fn last_fault(&self) -> Option<Fault> {
        self.core.faults.last()
    }

    /// Runs an engine under the machine's scheduler until it finishes or the machine is dropped. When it panics, all
    /// devices are lost, as the device that it worked for is unknown;
    /// [`Runtime::engines`](anabranch_hip::Runtime::engines) starts engines that work for one.
    pub fn spawn_actor(&self, actor: Box<dyn Actor>) {
        spawn_actor(&self.core, None, actor);
    }

    /// Notifies actors and waiting streams of a change, so that parked workers check at once.
    pub fn wake(&self) {
        self.core.scheduler.wake();
    }

    /// Ends the machine although runtimes, and what was made of them, still hold it: stops its threads and gives back memory,
    /// modules and files. For simulations in which ranks leak what they cannot show to be unused: each run would keep a
    /// machine.
    ///
    /// # Safety
    /// Nothing accesses memory of the machine any more, pinned memory included, nor runs code of its modules. Calls of its
    /// runtimes are allowed, and fail or do nothing.
    pub unsafe fn retire(&self) {
        self.stop();
        self.streams.clear();
        self.events.clear();
        self.graphs.clear();
        self.executables.clear();
        self.kernels.clear();
        self.modules.clear();
        self.physical.clear();
        self.regions.clear();
        self.core.stacks.discard();
    }

    fn stop(&self) {
        self.core.scheduler.stop();
        // What is queued may hold its own stream or device.
        for device in &self.devices {
            lock(&device.lanes).forget_pending();
            for stream in device.streams() {
                stream.forget_queue();
            }
        }
    }

    /// The state of a device by HIP's number.
    pub(crate) fn device(&self, ordinal: i32) -> Result<&Arc<DeviceState>, HipError> {
        usize::try_from(ordinal)
            .ok()
            .and_then(|index| self.devices.get(index))
            .ok_or(HipError::INVALID_DEVICE)
    }

    pub(crate) fn check_alive(&self, device: u32) -> Result<(), HipError> {
        if self.core.faults.is_lost(device) { Err(HipError::LAUNCH_FAILURE) } else { Ok(()) }
    }

    /// Whether what came before a record was done: on a lost device records are reached without it.
    pub(crate) fn check_recorded(&self, event: &Event, recording: &Recording) -> Result<(), HipError> {
        self.check_alive(event.device)?;
        self.check_alive(recording.device)
    }

    /// Lets go of memory once the work that is queued now, on any stream, is done.
    pub(crate) fn release_after_work(&self, mapping: &Arc<Mapping>) {
        for stream in self.devices.iter().flat_map(|device| device.streams()) {
            if !stream.is_idle() {
                stream.queue(Operation::Release { _mapping: Arc::clone(mapping) });
            }
        }
    }
}

impl Drop for HostMachine {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Runs an engine, for one device or for all.
pub(crate) fn spawn_actor(core: &Arc<Core>, device: Option<u32>, actor: Box<dyn Actor>) {
    let shared = Arc::clone(core);
    let begin: Begin = Box::new(move || Box::new(ActorTask { actor, device, core: shared }));
    core.scheduler.spawn(device, begin);
}

/// An engine, and the machine that learns of its panic.
struct ActorTask {
    actor: Box<dyn Actor>,
    device: Option<u32>,
    core: Arc<Core>,
}

impl Task for ActorTask {
    fn step(&mut self) -> Step {
        self.actor.step()
    }

    /// Engines of a device write by their [`EngineMemory`](anabranch_hip::EngineMemory), others as they like.
    fn reports_writes(&self) -> bool {
        self.device.is_some()
    }

    fn panicked(&mut self) -> Step {
        let all = 0..self.core.faults.devices();
        for device in all.filter(|device| self.device.is_none_or(|own| own == *device)) {
            self.core.faults.record_panic(device, "(engine)");
        }
        self.core.scheduler.wake();
        Step::Finished
    }
}
