//! What a configuration must satisfy beyond the types and ranges of single values. Ranges that a library crate knows are checked by it,
//! under the setting's name.

use anabranch_bootstrap::Secret;
use anabranch_ep::LaunchTable;
use anabranch_hip::RuntimeKind;
use anabranch_hip_jit::{CompileMode, CompilerSetting, TargetKind};

use crate::config::{
    ByteSize, Config, ConfigError, LoadedConfig, NicDriverName, Origin, Origins, SETTINGS, Schedule, Setting,
    ccl_config,
};

/// A key, and what is wrong with its value.
type Problem = (&'static str, String);

/// Checks values and their combinations; errors name the value's origin.
pub(crate) fn check(config: &Config, origins: &Origins) -> Result<(), ConfigError> {
    let checked = ranges(config)
        .and_then(|()| device(config, origins))
        .and_then(|()| bootstrap(config))
        .and_then(|()| rdma(config))
        .and_then(|()| libraries(config));
    checked.map_err(|problem| refused(problem, origins))
}

fn refused((key, problem): Problem, origins: &Origins) -> ConfigError {
    ConfigError::Value { origin: origins.of(key), key: key.to_owned(), problem }
}

fn require(holds: bool, key: &'static str, problem: impl FnOnce() -> String) -> Result<(), Problem> {
    if holds { Ok(()) } else { Err((key, problem())) }
}

/// The ranges that settings are declared with.
fn ranges(config: &Config) -> Result<(), Problem> {
    let check = |setting: &Setting| setting.check(config).map_err(|problem| (setting.name, problem));
    SETTINGS.iter().try_for_each(check)
}

fn device(config: &Config, origins: &Origins) -> Result<(), Problem> {
    let device = &config.device;
    let host = &device.host;
    #[cfg(feature = "host")]
    machine(config)?;
    // The setting that was written; with both, the memory.
    let (memory, heap) = (origins.of("device.host.memory"), origins.of("heap.bytes"));
    let is_heap = memory == Origin::Default && heap != Origin::Default;
    let key = if is_heap { "heap.bytes" } else { "device.host.memory" };
    // Other runtimes' devices have their own memory.
    let heap_bytes = config.heap.bytes.filter(|_| config.is_host()).map_or(0, ByteSize::bytes);
    require(host.memory.bytes() >= heap_bytes, key, || {
        let (memory, bytes) = (host.memory, ByteSize(heap_bytes));
        if is_heap {
            format!("a heap of {bytes} does not fit into device.host.memory, which is {memory} by default")
        } else {
            format!("{memory} cannot hold a heap of {bytes} ({heap})")
        }
    })?;
    let seeded = host.schedule == Schedule::Seeded;
    require(!seeded || host.seed.is_some(), "device.host.schedule", || {
        "\"seeded\" needs device.host.seed".into()
    })?;
    for (key, is_set) in
        [("device.host.seed", host.seed.is_some()), ("device.host.faults", !host.faults.is_empty())]
    {
        require(seeded || !is_set, key, || "has no effect with device.host.schedule = \"free\"".into())?;
    }
    #[cfg(feature = "seeded")]
    for words in &host.faults {
        let fault = words.parse::<anabranch_weakmem::Fault>();
        fault.map_err(|error| ("device.host.faults", error.to_string()))?;
    }
    #[cfg(not(feature = "seeded"))]
    require(!seeded, "device.host.schedule", || "\"seeded\" needs a build with the feature `seeded`".into())?;
    let Some(devices) = &device.devices else { return Ok(()) };
    require(!devices.is_empty(), "device.devices", || "name at least one device".into())?;
    require(device.first == 0, "device.first", || {
        "has no effect beside device.devices; set one of the two".into()
    })?;
    Ok(())
}

/// The machine made of CPU threads.
#[cfg(feature = "host")]
fn machine(config: &Config) -> Result<(), Problem> {
    use anabranch_hip_host::Error;

    let devices = config.device.host.count.unwrap_or(1);
    let machine = crate::platform::host_config(config, 1, devices).check();
    machine.map_err(|error| match error {
        Error::Range { field, value, least, most } => {
            let key = match field {
                "devices" => "device.host.count",
                "workers" => "device.host.workers",
                _ => "device.host.memory",
            };
            (key, format!("is {value}; allowed is {least} to {most}"))
        }
        other => ("device.host.wave", other.to_string()),
    })
}

fn bootstrap(config: &Config) -> Result<(), Problem> {
    let bootstrap = &config.bootstrap;
    let heartbeat = bootstrap.heartbeat;
    require(heartbeat < bootstrap.silence, "bootstrap.silence", || {
        format!("must be longer than bootstrap.heartbeat, which is {heartbeat}")
    })?;
    if let Some(address) = &bootstrap.address {
        let valid = address.split(',').all(|one| {
            let parts = one.trim().rsplit_once(':');
            parts.is_some_and(|(host, port)| {
                !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
            })
        });
        require(valid, "bootstrap.address", || format!("{address:?} is not `host:port`"))?;
    }
    let Some(secret) = &bootstrap.secret else { return Ok(()) };
    require(secret.len() >= Secret::MIN_BYTES, "bootstrap.secret", || {
        format!("has {} bytes; a secret has at least {}", secret.len(), Secret::MIN_BYTES)
    })?;
    require(bootstrap.secret_file.is_none(), "bootstrap.secret_file", || {
        "bootstrap.secret is set as well; set one of the two".into()
    })
}

/// What has no effect, and what cannot be.
fn rdma(config: &Config) -> Result<(), Problem> {
    let rdma = &config.transport.rdma;
    let (libfabric, software) =
        (rdma.driver == NicDriverName::Libfabric, rdma.driver == NicDriverName::Software);
    let without = |driver| format!("has no effect without transport.rdma.driver = \"{driver}\"");
    for (key, is_set, has_effect, driver) in [
        ("transport.rdma.fabric_provider", rdma.fabric_provider.is_some(), libfabric, "libfabric"),
        ("transport.rdma.software_address", rdma.software_address.is_some(), software, "software"),
        ("transport.rdma.software_atomics", !rdma.software_atomics, software, "software"),
    ] {
        require(has_effect || !is_set, key, || without(driver))?;
    }
    for (key, is_set) in [
        ("transport.rdma.gid_index", rdma.gid_index.is_some()),
        ("transport.rdma.traffic_class", rdma.traffic_class != 0),
        ("transport.rdma.service_level", rdma.service_level != 0),
    ] {
        require(!(libfabric && is_set), key, || {
            "has no effect with transport.rdma.driver = \"libfabric\", whose providers read their settings from the environment".into()
        })?;
    }
    let is_one = rdma.software_address.is_none_or(|address| !address.is_unspecified());
    require(is_one, "transport.rdma.software_address", || {
        "is every address of a machine; name one by which the other machines reach it".into()
    })?;
    #[cfg(feature = "rdma")]
    anabranch_transport_rdma::nics::NicFilter::parse(&rdma.nics)
        .map_err(|error| ("transport.rdma.nics", error.to_string()))?;
    Ok(())
}

/// What the crates below check of their parts.
fn libraries(config: &Config) -> Result<(), Problem> {
    // To the library 0 means that no size is set.
    require(config.heap.bytes != Some(ByteSize(0)), "heap.bytes", || {
        "is 0; leave it out to have it chosen".into()
    })?;
    crate::world::world_config(config).check().map_err(|error| match error {
        anabranch_shmem::Error::Config { field, given, expected } => {
            (field, format!("is {given}; allowed is {expected}"))
        }
        other => unreachable!("checking a WorldConfig refuses a setting only: {other}"),
    })?;
    let compiler = config.kernels.compiler.parse::<CompilerSetting>();
    compiler.map_err(|error| ("kernels.compiler", error.to_string()))?;
    let ccl = ccl_config(config).and_then(|ccl| ccl.check());
    ccl.map_err(|error| match error {
        anabranch_ccl::Error::Config { field, given, allowed } => {
            (field, format!("is {given}; allowed is {allowed}"))
        }
        table => ("ccl.table", table.to_string()),
    })?;
    let table = config.ep.table.as_deref().map(LaunchTable::read).transpose();
    table.map_err(|error| ("ep.table", error.to_string()))?;
    Ok(())
}

impl LoadedConfig {
    /// The configuration, if its values go together.
    pub(crate) fn checked(self) -> Result<Self, ConfigError> {
        check(&self.config, &self.origins)?;
        Ok(self)
    }

    /// Whether the compiler that a path names is on this machine. Loading does not look: a configuration may be for another machine,
    /// and prebuilt kernels need none.
    ///
    /// # Errors
    /// [`ConfigError::Value`].
    pub fn check_paths(self) -> Result<Self, ConfigError> {
        let compiler = self.config.compiler(&self.origins)?;
        match compiler.check() {
            Ok(()) => Ok(self),
            Err(problem) => {
                let problem = format!("{:?}: {problem}", self.config.kernels.compiler);
                Err(refused(("kernels.compiler", problem), &self.origins))
            }
        }
    }
}

impl Config {
    /// Checks what a configuration made in code must satisfy; loaded ones are checked already.
    ///
    /// # Errors
    /// [`ConfigError::Value`].
    pub fn check(&self) -> Result<(), ConfigError> {
        check(self, &Origins::default())
    }

    /// Whether the compiler that a path names can serve the runtime: a program that opens it needs kernels for it. Loading does not
    /// look: `jit build` compiles for other targets.
    ///
    /// # Errors
    /// [`ConfigError::Value`].
    pub fn check_compiler(&self) -> Result<(), ConfigError> {
        let kind = match self.device.runtime {
            RuntimeKind::Amd => TargetKind::Amd,
            RuntimeKind::Nvidia => TargetKind::Nvidia,
            RuntimeKind::Host => TargetKind::Host,
        };
        let origins = Origins::default();
        match self.compiler(&origins)?.check_serves(kind) {
            // Where nothing may be compiled, no compiler is needed.
            Err(problem) if self.kernels.compile == CompileMode::Auto => {
                let problem = format!("{:?} {problem} (device.runtime)", self.kernels.compiler);
                Err(refused(("kernels.compiler", problem), &origins))
            }
            _ => Ok(()),
        }
    }

    fn compiler(&self, origins: &Origins) -> Result<CompilerSetting, ConfigError> {
        let compiler = self.kernels.compiler.parse::<CompilerSetting>();
        compiler.map_err(|error| refused(("kernels.compiler", error.to_string()), origins))
    }

    /// Whether the host runtime is configured.
    pub fn is_host(&self) -> bool {
        self.device.runtime == RuntimeKind::Host
    }
}
