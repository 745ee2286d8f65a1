//! The machine: its parts, how they come and go, and how a thread says which machine it means.

use std::sync::{Arc, Mutex};

use anabranch_hip::{Binding, HipError, Runtime, RuntimeKind};

use crate::callback::Callbacks;
use crate::capture::CaptureGraph;
use crate::config::HostConfig;
use crate::current;
use crate::device::DeviceState;
use crate::event::Event;
use crate::fault::{Fault, FaultLog};
use crate::graph::GraphPlan;
use crate::handles::{HandleSource, Handles};
use crate::ipc::Process;
use crate::mapping::Mapping;
use crate::memory::Regions;
use crate::module::{KernelEntry, Module};
use crate::operation::Operation;
use crate::scheduler::{Actor, FreeRunning, Scheduler, Step, Task};
use crate::stack::StackArena;
use crate::stream::{Stream, StreamKind};
use crate::sync::lock;
use crate::virtual_memory::{Physical, Reservations};
use crate::{Error, calls};

/// What running things share. Tasks hold it; it does not hold them, except through the scheduler, which drops
/// its tasks when it stops.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) config: HostConfig,
    pub(crate) scheduler: Arc<dyn Scheduler>,
    pub(crate) stacks: Arc<StackArena>,
    pub(crate) faults: FaultLog,
    pub(crate) callbacks: Callbacks,
}

/// A GPU made of CPU threads, with any number of devices.
///
/// A process may have several. Dropping the last `Arc` (runtimes hold one each) stops its threads, unmaps its
/// memory and closes its files; kernels that still run are abandoned, after the lane that runs at that moment
/// has called the machine, and a host function that still runs is waited for.
#[derive(Debug)]
pub struct HostMachine {
    pub(crate) core: Arc<Core>,
    pub(crate) devices: Vec<Arc<DeviceState>>,
    pub(crate) null_streams: Vec<Arc<Stream>>,
    pub(crate) regions: Regions,
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
}

impl HostMachine {
    /// Starts a machine: reserves address space for its lanes' stacks and starts its workers, which rest until
    /// there is work.
    ///
    /// # Errors
    /// [`Error::WaveWidth`] and [`Error::Range`] for a configuration that no machine can have; the others when
    /// the system refuses threads or addresses.
    pub fn new(config: HostConfig) -> Result<Arc<Self>, Error> {
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
        let workers = config.workers.or(std::thread::available_parallelism().ok()).map_or(1, Into::into);
        let scheduler = Arc::new(FreeRunning::start(workers, config.longest_rest)?);
        let faults = FaultLog::new(config.devices);
        let core = Arc::new(Core { config, scheduler, stacks, faults, callbacks: Callbacks::default() });
        let devices: Vec<_> = (0..core.config.devices)
            .map(|ordinal| Arc::new(DeviceState::new(ordinal, &core.config)))
            .collect();
        let null_streams = devices
            .iter()
            .map(|device| Stream::new(Arc::clone(device), StreamKind::Null, Arc::clone(&core)))
            .collect();
        tracing::debug!(
            devices = core.config.devices,
            workers,
            wave = core.config.wave_width,
            "host machine started"
        );
        Ok(Arc::new(Self {
            core,
            devices,
            null_streams,
            regions: Regions::default(),
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
        }))
    }

    /// The machine as a HIP runtime. Each runtime keeps the machine alive.
    pub fn runtime(self: &Arc<Self>) -> Runtime {
        let binding = Arc::new(MachineBinding { machine: Arc::clone(self) });
        Runtime::new(RuntimeKind::Host, calls::table(), Some(binding), "host".to_owned())
    }

    /// What the machine was made with.
    pub fn config(&self) -> &HostConfig {
        &self.core.config
    }

    /// The last kernel that the machine stopped, if any: the story behind `hipErrorLaunchFailure`.
    pub fn last_fault(&self) -> Option<Fault> {
        self.core.faults.last()
    }

    /// Runs an engine under the machine's scheduler until it finishes or the machine is dropped. When it panics, all
    /// devices are lost, as nobody knows for whom it worked.
    pub fn spawn_actor(&self, actor: Box<dyn Actor>) {
        let core = Arc::clone(&self.core);
        self.core.scheduler.spawn(Box::new(move || Box::new(ActorTask { actor, core })));
    }

    /// Tells actors and waiting streams that something has changed, so that resting workers look at once.
    pub fn wake(&self) {
        self.core.scheduler.wake();
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
        self.core.scheduler.stop();
        self.core.callbacks.stop();
        // What is queued may hold its own stream or device.
        for device in &self.devices {
            lock(&device.lanes).forget_pending();
            for stream in device.streams() {
                stream.forget_queue();
            }
        }
    }
}

/// An engine, and the machine that learns of its panic.
struct ActorTask {
    actor: Box<dyn Actor>,
    core: Arc<Core>,
}

impl Task for ActorTask {
    fn step(&mut self) -> Step {
        self.actor.step()
    }

    fn panicked(&mut self) -> Step {
        for device in 0..self.core.faults.devices() {
            self.core.faults.record_panic(device, "(engine)");
        }
        self.core.scheduler.wake();
        Step::Finished
    }
}

/// Makes a machine current for the calling thread before each call of its table.
#[derive(Debug)]
struct MachineBinding {
    machine: Arc<HostMachine>,
}

impl Binding for MachineBinding {
    fn bind(&self) {
        current::bind(&self.machine);
    }
}
