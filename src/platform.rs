//! From a configuration to an open runtime, a kernel pipeline and a device for each rank.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::available_parallelism;

use anabranch_hip::{Device, DeviceOrdinal, Runtime, RuntimeKind};
#[cfg(feature = "host")]
use anabranch_hip_host::HostConfig;
use anabranch_hip_jit::{Jit, JitConfig, JitObserver, Target};

use anabranch_ranks::GlobalRank;
use anabranch_transport::HostIdentity;

use crate::config::{Config, KernelsConfig, Schedule};
use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::runtime::{RuntimeConfig, open};
use crate::trace::TraceFile;

/// How the ranks of this machine are spread over processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProcessLayout {
    /// One rank a process.
    Processes {
        /// Ranks on this machine.
        ranks: u32,
    },
    /// All ranks of this machine are threads of this process.
    Threads {
        /// Ranks on this machine.
        ranks: u32,
    },
}

impl ProcessLayout {
    /// Ranks on this machine.
    pub fn ranks(self) -> u32 {
        match self {
            Self::Processes { ranks } | Self::Threads { ranks } => ranks,
        }
    }

    /// Whether ranks of one world are in several processes.
    fn is_divided(self) -> bool {
        self.processes() > 1
    }

    fn processes(self) -> u32 {
        match self {
            Self::Processes { ranks } => ranks.max(1),
            Self::Threads { .. } => 1,
        }
    }
}

/// What the ranks of one process share: the open runtime, the kernel pipeline, and the device of each rank.
/// Clones share it.
#[derive(Clone, Debug)]
pub struct Platform {
    config: Config,
    runtime: Runtime,
    jit: Jit,
    ranks: u32,
    machines: Option<NonZeroU32>,
    /// Where ranks write what they do.
    trace: Option<PathBuf>,
}

impl Platform {
    /// Opens what the configuration names; tools and caches are found by the process's environment.
    ///
    /// # Errors
    /// See [`Platform::open_with`].
    pub fn open(config: &Config, layout: ProcessLayout) -> Result<Self> {
        Self::open_with(config, layout, &Environment::of_process(), None)
    }

    /// As [`Platform::open`], with a given environment and an observer of compilations.
    ///
    /// # Errors
    /// [`Error::TooManyRanks`] when there are fewer devices than ranks on this machine; the configuration's own
    /// errors; [`Error::Jit`] when the runtime cannot be opened. With `ANABRANCH_TRACE` in the environment its ranks are traced
    /// ([`crate::trace`]).
    pub fn open_with(
        config: &Config,
        layout: ProcessLayout,
        environment: &Environment,
        observer: Option<Arc<dyn JitObserver>>,
    ) -> Result<Self> {
        config.check()?;
        crate::features::check(config)?;
        config.check_compiler()?;
        let jit = kernel_pipeline(&config.kernels, environment, observer)?;
        let runtime = open_checked(config, layout, environment)?;
        let platform = Self {
            config: config.clone(),
            runtime,
            jit,
            ranks: layout.ranks(),
            machines: None,
            trace: environment.get("ANABRANCH_TRACE").map(PathBuf::from),
        };
        platform.check_devices()?;
        Ok(platform)
    }

    /// The same, with the ranks of a world as if they were on so many machines, in blocks of neighbours ([`machine_of`]): ranks of
    /// different blocks take none of the ways that only one machine has. For tests and measurements of what goes between machines;
    /// the same on all ranks.
    #[must_use]
    pub fn as_machines(mut self, machines: NonZeroU32) -> Self {
        self.machines = Some(machines);
        self
    }

    /// The name of the simulated machine of a rank, among `ranks` ranks; `None` for the real machine.
    pub(crate) fn host_identity(&self, rank: GlobalRank, ranks: u32) -> Option<HostIdentity> {
        let machines = self.machines?;
        Some(HostIdentity(format!("machine {} of {machines}", machine_of(rank, ranks, machines))))
    }

    /// Starts the trace of a rank, where the environment asks for one.
    pub(crate) fn trace(&self, device: &Device, rank: GlobalRank) -> Result<Option<Arc<TraceFile>>> {
        let start = |folder: &PathBuf| TraceFile::start(folder, device, rank).map(Arc::new);
        self.trace.as_ref().map(start).transpose()
    }

    /// The configuration it was opened with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Ranks on this machine.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The runtime.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// The kernel pipeline.
    pub fn jit(&self) -> &Jit {
        &self.jit
    }

    /// The device of a rank of this machine.
    ///
    /// # Errors
    /// [`Error::NoSuchLocalRank`], and what opening the device returned.
    pub fn device(&self, local_rank: u32) -> Result<Device> {
        if local_rank >= self.ranks {
            return Err(Error::NoSuchLocalRank { local_rank, ranks: self.ranks });
        }
        Ok(self.runtime.device(ordinal(&self.config, local_rank))?)
    }

    fn check_devices(&self) -> Result<()> {
        let count = self.runtime.device_count()?;
        let highest = (0..self.ranks).map(|rank| ordinal(&self.config, rank)).max();
        let Some(absent) = highest.filter(|highest| highest.0 >= count) else { return Ok(()) };
        if self.ranks > count || self.config.device.devices.is_none() && self.config.device.first == 0 {
            return Err(Error::too_few_devices(self.ranks, self.runtime.kind(), count));
        }
        // Enough devices, but one that was named does not exist.
        self.runtime.device(absent)?;
        Ok(())
    }
}

/// The block that a rank is in when `ranks` are divided into so many blocks of neighbours: their sizes differ by one at the most, the
/// larger ones come first. With more machines than ranks each rank is a block. What [`Platform::as_machines`] goes by.
pub fn machine_of(rank: GlobalRank, ranks: u32, machines: NonZeroU32) -> u32 {
    let (least, larger) = (ranks / machines, ranks % machines);
    let in_larger = larger * (least + 1);
    match rank.get().checked_sub(in_larger) {
        None => rank.get() / (least + 1),
        Some(behind) => larger + behind / least.max(1),
    }
}

fn ordinal(config: &Config, local_rank: u32) -> DeviceOrdinal {
    let device = &config.device;
    DeviceOrdinal(match &device.devices {
        // `runtime_config` refuses shorter lists.
        Some(devices) => devices[local_rank as usize],
        None => device.first.saturating_add(local_rank),
    })
}

/// Opens the configured runtime. Each call for the host makes a new machine; the others are one per process.
///
/// # Errors
/// [`Error::TooManyRanks`] when `device.devices` or `device.host.count` is smaller than the ranks on this machine; [`Error::NotBuilt`];
/// [`Error::Runtime`] with the loader's error: what was tried, and why each did not serve.
pub fn open_runtime(config: &Config, layout: ProcessLayout, environment: &Environment) -> Result<Runtime> {
    config.check()?;
    open_checked(config, layout, environment)
}

fn open_checked(config: &Config, layout: ProcessLayout, environment: &Environment) -> Result<Runtime> {
    open(config.device.runtime, &runtime_config(config, layout, environment)?)
}

fn runtime_config(
    config: &Config,
    layout: ProcessLayout,
    environment: &Environment,
) -> Result<RuntimeConfig> {
    let ranks = layout.ranks();
    let device = &config.device;
    if let Some(devices) = &device.devices
        && (devices.len() as u32) < ranks
    {
        return Err(Error::TooManyRanks {
            ranks,
            available: format!("device.devices lists {}", devices.len()),
        });
    }
    // The host runtime has as many devices as ranks ask for, unless a number is set.
    let asked = (0..ranks).map(|rank| ordinal(config, rank).0.saturating_add(1)).max().unwrap_or(1);
    let count = device.host.count.unwrap_or(asked);
    if config.is_host() && count < ranks {
        return Err(Error::TooManyRanks { ranks, available: format!("device.host.count is {count}") });
    }
    if config.is_host() && device.host.schedule == Schedule::Seeded && layout.is_divided() {
        return Err(Error::SeededProcesses { ranks });
    }
    let search = match device.runtime {
        RuntimeKind::Amd => environment.rocm_roots().iter().map(|root| root.join("lib")).collect(),
        RuntimeKind::Nvidia | RuntimeKind::Host => Vec::new(),
    };
    Ok(RuntimeConfig {
        #[cfg(feature = "host")]
        host: host_config(config, layout.processes(), count),
        #[cfg(feature = "seeded")]
        seeded: seeded_schedule(&device.host),
        library: device.library.clone(),
        search,
    })
}

#[cfg(feature = "host")]
pub(crate) fn host_config(config: &Config, processes: u32, devices: u32) -> HostConfig {
    let host = &config.device.host;
    let cores = available_parallelism().map_or(1, NonZeroUsize::get);
    let share = (cores / processes as usize).clamp(1, HostConfig::MOST_WORKERS);
    let workers = host.workers.map_or(share, |workers| workers as usize);
    HostConfig {
        devices,
        wave_width: host.wave_width(),
        workers: NonZeroUsize::new(workers),
        memory_bytes: host.memory.bytes(),
        ..HostConfig::default()
    }
}

#[cfg(feature = "seeded")]
#[expect(clippy::expect_used, reason = "`Config::check` refuses other words")]
fn seeded_schedule(host: &crate::config::HostDeviceConfig) -> Option<anabranch_weakmem::SeededSchedule> {
    let seed = host.seed.filter(|_| host.schedule == Schedule::Seeded)?;
    let fault = |words: &String| words.parse().expect("the configuration was checked");
    Some(anabranch_weakmem::SeededSchedule {
        most_steps: host.steps,
        faults: host.faults.iter().map(fault).collect(),
        ..anabranch_weakmem::SeededSchedule::new(seed)
    })
}

/// The kernel pipeline of a configuration; needs no device.
///
/// # Errors
/// [`Error::Jit`] for a compiler or target that does not exist, [`Error::NoCacheDirectory`].
pub fn kernel_pipeline(
    kernels: &KernelsConfig,
    environment: &Environment,
    observer: Option<Arc<dyn JitObserver>>,
) -> Result<Jit> {
    let mut config = JitConfig::new(environment.cache_root(kernels)?);
    config.prebuilt.clone_from(&kernels.prebuilt);
    config.compile = kernels.compile;
    config.constants = kernels.constants;
    config.source_dir.clone_from(&kernels.source_dir);
    config.extra_options.clone_from(&kernels.extra_options);
    config.debug_info = kernels.debug_info;
    if kernels.note_waits {
        config.parameters.push((anabranch_hip_jit::control::NOTE_WAITS, 1.into()));
    }
    let arch = kernels.arch.as_deref().map(str::parse::<Target>).transpose();
    config.arch = arch.map_err(anabranch_hip_jit::Error::from)?;
    config.set_patience(kernels.patience.duration());
    config.keep_failed = kernels.keep_failed as usize;
    // A cache that cannot be written must not stop a run: compile into the temporary directory then.
    config.scratch = Some(environment.scratch_folder());
    config.observer = observer;
    Ok(Jit::new(config, environment.tool_search(kernels)?))
}

/// How many compilers may run at once.
pub fn compile_jobs(kernels: &KernelsConfig) -> usize {
    kernels.jobs.map_or_else(|| available_parallelism().map_or(1, NonZeroUsize::get), |jobs| jobs as usize)
}

#[cfg(test)]
#[cfg(feature = "host")]
mod tests {
    use super::*;

    fn config(set: &[&str]) -> Config {
        let options = crate::config::LoadOptions {
            set: set.iter().map(|text| (*text).to_owned()).collect(),
            ..Default::default()
        };
        Config::load_with(&options).unwrap().config
    }

    fn host(set: &[&str], layout: ProcessLayout) -> Result<HostConfig> {
        runtime_config(&config(set), layout, &Environment::default()).map(|runtime| runtime.host)
    }

    #[test]
    fn machines_are_blocks_of_neighbours_of_nearly_one_size() {
        let blocks = |ranks: u32, machines| {
            let machines = NonZeroU32::new(machines).unwrap();
            (0..ranks).map(|rank| machine_of(GlobalRank::new(rank), ranks, machines)).collect::<Vec<_>>()
        };
        assert_eq!(blocks(4, 2), [0, 0, 1, 1]);
        assert_eq!(blocks(7, 3), [0, 0, 0, 1, 1, 2, 2]);
        assert_eq!(blocks(3, 1), [0, 0, 0]);
        assert_eq!(blocks(2, 5), [0, 1]);
        for (ranks, machines) in (1..20).flat_map(|ranks| (1..=ranks).map(move |machines| (ranks, machines)))
        {
            let blocks = blocks(ranks, machines);
            assert!(blocks.is_sorted() && blocks.last() == Some(&(machines - 1)), "{blocks:?}");
            let sizes = (0..machines).map(|block| blocks.iter().filter(|of| **of == block).count());
            let (least, most) = (sizes.clone().min().unwrap(), sizes.max().unwrap());
            assert!(least >= 1 && most <= least + 1, "{blocks:?}");
        }
    }

    #[test]
    fn the_host_has_as_many_devices_as_ranks_ask_for() {
        let threads = |ranks| ProcessLayout::Threads { ranks };
        assert_eq!(host(&[], threads(16)).unwrap().devices, 16);
        assert_eq!(host(&["device.first=3"], threads(2)).unwrap().devices, 5);
        assert_eq!(host(&["device.devices=6,2"], threads(2)).unwrap().devices, 7);
        assert_eq!(host(&["device.host.count=9"], threads(2)).unwrap().devices, 9);
        for (set, words) in [
            ("device.host.count=3", "device.host.count is 3"),
            ("device.devices=0,1", "device.devices lists 2"),
        ] {
            let error = host(&[set], threads(4)).unwrap_err();
            assert!(
                matches!(error, Error::TooManyRanks { ranks: 4, .. }) && error.to_string().contains(words),
                "{error}"
            );
        }
    }

    #[test]
    fn a_compiler_for_other_devices_than_the_runtimes_is_refused() {
        let opened = |set: &[&str]| {
            let config = config(&[set, &["kernels.compiler=/opt/rocm/bin/hipcc"]].concat());
            let environment = [("HOME".to_owned(), "/nonexistent".to_owned())].into_iter().collect();
            Platform::open_with(&config, ProcessLayout::Threads { ranks: 1 }, &environment, None)
        };
        let error = opened(&[]).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Config);
        let text = error.to_string();
        assert!(
            text.contains("kernels.compiler") && text.contains("compiles for amd alone, not for host"),
            "{text}"
        );
        // No compiler is needed where nothing is compiled, and `jit build` opens no runtime.
        opened(&["kernels.compile=deny"]).unwrap();
    }

    #[test]
    fn patience_reaches_the_compilers() {
        let environment = Environment::default();
        let deadlines = |set: &[&str]| {
            let kernels = config(&[set, &["kernels.cache=/nonexistent"]].concat()).kernels;
            let jit = kernel_pipeline(&kernels, &environment, None).unwrap();
            let asked = environment.tool_search(&kernels).unwrap().patience;
            [jit.config().compile_deadline, jit.config().wait_deadline, asked].map(|time| time.as_secs())
        };
        assert_eq!(deadlines(&["kernels.patience=30 s"]), [30, 90, 60]);
        let standard = deadlines(&[]);
        assert!(
            standard[0] >= 600 && standard[2] == 60,
            "asking a compiler for its version has a shorter deadline: {standard:?}"
        );
    }

    #[test]
    fn processes_share_the_cores_and_threads_have_them_all() {
        let cores = available_parallelism().map_or(1, NonZeroUsize::get);
        let workers = |set: &[&str], layout| host(set, layout).unwrap().workers.map(NonZeroUsize::get);
        assert_eq!(workers(&[], ProcessLayout::Threads { ranks: 8 }), Some(cores));
        assert_eq!(workers(&[], ProcessLayout::Processes { ranks: 1 }), Some(cores));
        assert_eq!(workers(&[], ProcessLayout::Processes { ranks: 1000 }), Some(1));
        assert_eq!(workers(&["device.host.workers=3"], ProcessLayout::Processes { ranks: 8 }), Some(3));
    }
}
