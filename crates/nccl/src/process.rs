//! What all communicators of a process share: settings, the open runtime, and the device that a thread means.

use std::cell::Cell;
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

use anabranch::config::{ByteSize, LoadOptions, Origin, Period};
use anabranch::hip::{Device, DeviceOrdinal, RelaxedCapture};
use anabranch::{Config, Environment, Platform, ProcessLayout, RuntimeKind};

use crate::error::Failure;

/// Devices of the host runtime where `device.host.count` is not set.
const HOST_DEVICES: u32 = 8;
/// How long operations and meetings may last where no setting says it: torch's timeout of a collective.
const DEADLINE: Duration = Duration::from_secs(600);

/// The open runtime of this process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) platform: Platform,
}

static PROCESS: Mutex<Option<Arc<Process>>> = Mutex::new(None);

thread_local! {
    /// The current device of a thread on the host runtime, which has no function of its own for it.
    static HOST_DEVICE: Cell<u32> = const { Cell::new(0) };
}

/// Sends the log to stderr. `ANABRANCH_LOG` chooses what is in it; warnings and errors where it is not set.
pub(crate) fn start_log() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let environment = Environment::of_process();
        let filter = tracing_subscriber::EnvFilter::new(environment.get("ANABRANCH_LOG").unwrap_or("warn"));
        // A line that stderr does not take is lost: `tracing_subscriber` would report it there, and panic.
        let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
        let log = log.log_internal_errors(false).finish();
        // This library links its own copy of `tracing`, so that the program's subscriber is another one.
        let _ = tracing::subscriber::set_global_default(log);
    });
}

/// The settings of the environment, with the defaults of this library where it sets none.
fn settings(environment: &Environment) -> Result<(Config, bool), Failure> {
    let options = LoadOptions { environment: environment.to_vec(), ..LoadOptions::default() };
    let loaded = Config::load_with(&options).map_err(|error| Failure::from(anabranch::Error::from(error)))?;
    let (mut config, origins) = (loaded.config, loaded.origins);
    let is_unset = |key: &str| origins.of(key) == Origin::Default;
    let chooses_runtime = is_unset("device.runtime");
    if chooses_runtime {
        config.device.runtime = RuntimeKind::Nvidia;
    }
    let is_host = config.device.runtime == RuntimeKind::Host;
    for (key, period) in [
        ("deadline.operation", &mut config.deadline.operation),
        ("deadline.rendezvous", &mut config.deadline.rendezvous),
    ] {
        if is_unset(key) {
            *period = Period(DEADLINE);
        }
    }
    if is_host {
        config.device.host.count.get_or_insert(HOST_DEVICES);
    }
    // A world has one communicator, besides a small one of each rank alone: most of its heap is staging. Programs make many worlds.
    if is_unset("heap.bytes") {
        config.heap.bytes = Some(ByteSize(if is_host { 32 << 20 } else { 352 << 20 }));
        if !is_host {
            config.ccl.staging_bytes.get_or_insert(ByteSize(128 << 20));
            config.ccl.pipe_bytes.get_or_insert(ByteSize(128 << 20));
        }
    }
    Ok((config, chooses_runtime))
}

fn open(config: &Config) -> Result<Platform, anabranch::Error> {
    // Ranks are devices of this process, or of others; which ones is known when communicators are made.
    let one = ProcessLayout::Threads { ranks: 1 };
    let ranks = match &config.device.devices {
        Some(devices) => devices.len() as u32,
        None => match config.device.host.count.filter(|_| config.device.runtime == RuntimeKind::Host) {
            Some(count) => count,
            None => anabranch::open_runtime(config, one, &Environment::of_process())?.device_count()?,
        },
    };
    Platform::open(config, ProcessLayout::Threads { ranks })
}

impl Process {
    /// The process's runtime, opened by the first call: NVIDIA's, or AMD's where there is none, or the one of `device.runtime`.
    ///
    /// # Errors
    /// Wrong settings, and a runtime that does not open.
    pub(crate) fn get() -> Result<Arc<Self>, Failure> {
        let mut process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(process) = &*process {
            return Ok(Arc::clone(process));
        }
        let (mut config, chooses_runtime) = settings(&Environment::of_process())?;
        let platform = match open(&config) {
            Err(nvidia) if chooses_runtime => {
                config.device.runtime = RuntimeKind::Amd;
                // The first one is the error to report where both fail.
                open(&config).map_err(|_| nvidia)?
            }
            opened => opened?,
        };
        Ok(Arc::clone(process.insert(Arc::new(Self { platform }))))
    }

    pub(crate) fn config(&self) -> &Config {
        self.platform.config()
    }

    pub(crate) fn kind(&self) -> RuntimeKind {
        self.platform.runtime().kind()
    }

    /// Lets this thread allocate and load beside captures, as long as what it returns lives.
    ///
    /// # Errors
    /// The runtime's.
    pub(crate) fn relax_captures(&self) -> Result<Option<RelaxedCapture>, Failure> {
        Ok(RelaxedCapture::new(self.platform.runtime())?)
    }

    /// The ordinal of the calling thread's current device.
    ///
    /// # Errors
    /// The runtime's.
    pub(crate) fn current_device(&self) -> Result<u32, Failure> {
        match self.kind() {
            RuntimeKind::Host => Ok(HOST_DEVICE.get()),
            _ => Ok(self.platform.runtime().current_device()?.0),
        }
    }

    /// Sets the calling thread's device on the host runtime.
    pub(crate) fn set_host_device(ordinal: u32) {
        HOST_DEVICE.set(ordinal);
    }

    /// The number that [`Platform::join`] has for a device.
    ///
    /// # Errors
    /// A device that `device.devices` does not list, or that does not exist.
    pub(crate) fn local_rank(&self, ordinal: u32) -> Result<u32, Failure> {
        let device = &self.config().device;
        let found = match &device.devices {
            Some(devices) => devices.iter().position(|one| *one == ordinal).map(|place| place as u32),
            None => ordinal.checked_sub(device.first).filter(|place| *place < self.platform.ranks()),
        };
        found.ok_or_else(|| {
            let ranks = self.platform.ranks();
            Failure::argument(format!(
                "device {ordinal} is not one of the {ranks} devices of this process (device.devices)"
            ))
        })
    }

    /// A device by its ordinal.
    ///
    /// # Errors
    /// A device that does not exist.
    pub(crate) fn device(&self, ordinal: u32) -> Result<Device, Failure> {
        Ok(self.platform.runtime().device(DeviceOrdinal(ordinal))?)
    }
}
