//! What a configuration must satisfy beyond the types of its values.

use std::time::Duration;

use anabranch_bootstrap::Secret;
use anabranch_ep::LaunchTable;
use anabranch_hip::RuntimeKind;
use anabranch_hip_host::seeded::Fault;
use anabranch_hip_jit::{CompilerSetting, TargetKind};
use anabranch_transport_rdma::RdmaConfig as RdmaLimits;
use anabranch_transport_rdma::nics::NicFilter;

use super::error::ConfigError;
use super::origin::{Origin, Origins};
use super::sections::{CompileMode, HeapMode, Schedule};
use super::transport::{NicDriverName, TransportName};
use super::units::ByteSize;
use super::{Config, LoadedConfig};
use crate::world::ccl_config;

/// So that every runtime can align it to a page.
const MIN_HEAP_BYTES: u64 = 1 << 20;
const WAVES: [u32; 4] = [1, 4, 32, 64];

/// Checks values and their combinations; `origins` tells the message who set the wrong one.
pub(crate) fn check(config: &Config, origins: &Origins) -> Result<(), ConfigError> {
    let check = Check { origins };
    check.device(config)?;
    check.transport(config)?;
    let flat = config.heap.mode == HeapMode::Flat;
    check.require(!flat || config.transport.order.contains(&TransportName::P2p), "heap.mode", || {
        "\"flat\" needs p2p in transport.order, which maps the peers' memory".into()
    })?;
    check.require(config.heap.bytes.bytes() >= MIN_HEAP_BYTES, "heap.bytes", || {
        format!("a heap of {} is too small; it has at least 1 MiB", config.heap.bytes)
    })?;
    for (key, period) in [
        ("deadline.rendezvous", config.deadline.rendezvous),
        ("deadline.operation", config.deadline.operation),
        ("kernels.patience", config.kernels.patience),
    ] {
        let allowed = Duration::from_millis(1)..=Duration::from_secs(24 * 3600);
        check
            .require(allowed.contains(&period.duration()), key, || "must be between 1 ms and 24 h".into())?;
    }
    let heartbeat = config.bootstrap.heartbeat;
    check.require(heartbeat < config.bootstrap.silence, "bootstrap.silence", || {
        format!("must be longer than bootstrap.heartbeat, which is {heartbeat}")
    })?;
    check.require(heartbeat.duration() >= Duration::from_millis(1), "bootstrap.heartbeat", || {
        "must be at least 1 ms".into()
    })?;
    if let Some(address) = &config.bootstrap.address {
        let valid = address.split(',').all(|one| {
            let parts = one.trim().rsplit_once(':');
            parts.is_some_and(|(host, port)| {
                !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
            })
        });
        check.require(valid, "bootstrap.address", || format!("{address:?} is not `host:port`"))?;
    }
    if let Some(secret) = &config.bootstrap.secret {
        check.require(secret.len() >= Secret::MIN_BYTES, "bootstrap.secret", || {
            format!("has {} bytes; a secret has at least {}", secret.len(), Secret::MIN_BYTES)
        })?;
        check.require(config.bootstrap.secret_file.is_none(), "bootstrap.secret_file", || {
            "bootstrap.secret is set as well; one of the two says the secret".into()
        })?;
    }
    check.positive("kernels.jobs", config.kernels.jobs)?;
    let compiler = config.kernels.compiler.parse::<CompilerSetting>();
    check.require(compiler.is_ok(), "kernels.compiler", || {
        compiler.err().map(|error| error.to_string()).unwrap_or_default()
    })?;
    check.positive("ccl.max_blocks", config.ccl.max_blocks)?;
    for (name, bytes) in
        [("ccl.staging_bytes", config.ccl.staging_bytes), ("ccl.pipe_bytes", config.ccl.pipe_bytes)]
    {
        check.require(bytes != Some(ByteSize(0)), name, || {
            "must be at least 4096 B; without the setting it is chosen".into()
        })?;
    }
    // The crate knows what it takes, and says it under the setting's name.
    let ccl = ccl_config(config);
    check.require(ccl.is_ok(), "ccl.table", || {
        ccl.as_ref().err().map(ToString::to_string).unwrap_or_default()
    })?;
    if let Ok(Err(anabranch_ccl::Error::Config { field, given, allowed })) = ccl.map(|ccl| ccl.check()) {
        check.require(false, field, || format!("is {given}; allowed is {allowed}"))?;
    }
    check.positive("ep.slots", Some(config.ep.slots))?;
    check.positive("ep.blocks", config.ep.blocks)?;
    check.positive("ep.waves_per_block", config.ep.waves_per_block)?;
    let table = config.ep.table.as_deref().map(LaunchTable::read).transpose();
    check
        .require(table.is_ok(), "ep.table", || table.err().map(|error| error.to_string()).unwrap_or_default())
}

struct Check<'a> {
    origins: &'a Origins,
}

impl Check<'_> {
    fn require(&self, holds: bool, key: &str, problem: impl FnOnce() -> String) -> Result<(), ConfigError> {
        if holds {
            return Ok(());
        }
        Err(ConfigError::Value { origin: self.origins.of(key), key: key.to_owned(), problem: problem() })
    }

    fn positive(&self, key: &str, value: Option<u32>) -> Result<(), ConfigError> {
        self.require(value != Some(0), key, || "must be at least 1".into())
    }

    fn device(&self, config: &Config) -> Result<(), ConfigError> {
        let device = &config.device;
        let host = &device.host;
        self.require(WAVES.contains(&host.wave_width()), "device.host.wave", || {
            format!("a wave of {} lanes does not exist; it has 1, 4, 32 or 64", host.wave_width())
        })?;
        self.positive("device.host.count", host.count)?;
        self.require(host.count.is_none_or(|count| count <= 1024), "device.host.count", || {
            "a host machine shows at most 1024 devices".into()
        })?;
        self.positive("device.host.workers", host.workers)?;
        // The setting that was written; with both, the memory.
        let (memory, heap) = (self.origins.of("device.host.memory"), self.origins.of("heap.bytes"));
        let is_heap = memory == Origin::Default && heap != Origin::Default;
        let key = if is_heap { "heap.bytes" } else { "device.host.memory" };
        // Other runtimes' devices have their own memory.
        let fits = !config.is_host() || host.memory.bytes() >= config.heap.bytes.bytes();
        self.require(fits, key, || {
            let (memory, bytes) = (host.memory, config.heap.bytes);
            if is_heap {
                format!(
                    "a heap of {bytes} does not fit into device.host.memory, which is {memory} by default"
                )
            } else {
                format!("{memory} cannot hold a heap of {bytes} ({heap})")
            }
        })?;
        let seeded = host.schedule == Schedule::Seeded;
        self.require(!seeded || host.seed.is_some(), "device.host.schedule", || {
            "\"seeded\" needs device.host.seed".into()
        })?;
        self.require(seeded || host.seed.is_none(), "device.host.seed", || {
            "has no effect with device.host.schedule = \"free\"".into()
        })?;
        self.require(seeded || host.faults.is_empty(), "device.host.faults", || {
            "has no effect with device.host.schedule = \"free\"".into()
        })?;
        if let Some(wrong) = host.faults.iter().find_map(|words| words.parse::<Fault>().err()) {
            self.require(false, "device.host.faults", || wrong.to_string())?;
        }
        self.require(host.steps > 0, "device.host.steps", || "must be at least 1".into())?;
        let Some(devices) = &device.devices else { return Ok(()) };
        self.require(!devices.is_empty(), "device.devices", || "name at least one device".into())?;
        self.require(device.first == 0, "device.first", || {
            "has no effect beside device.devices; set one of the two".into()
        })?;
        let mut seen = devices.clone();
        seen.sort_unstable();
        let twice = seen.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
        self.require(twice.is_none(), "device.devices", || {
            format!("device {} is listed twice; two ranks cannot share one", twice.unwrap_or_default())
        })
    }

    fn transport(&self, config: &Config) -> Result<(), ConfigError> {
        let key = "transport.order";
        let order = &config.transport.order;
        self.require(!order.is_empty(), key, || "name at least one transport".into())?;
        for (index, name) in order.iter().enumerate() {
            self.require(!order[..index].contains(name), key, || {
                format!("{} is listed twice", name.as_str())
            })?;
        }
        let flat_over_nics = config.heap.mode == HeapMode::Flat && order.contains(&TransportName::Rdma);
        self.require(!flat_over_nics, "heap.mode", || {
            "flat maps the memory of all ranks, and `rdma` in transport.order is for those that cannot be"
                .into()
        })?;
        self.rdma(config)?;
        let sdma = &config.transport.sdma;
        self.require((1..=64).contains(&sdma.queues), "transport.sdma.queues", || {
            format!("is {}; allowed is 1 to 64", sdma.queues)
        })?;
        let ring = sdma.ring_bytes.bytes();
        let fits = ring.is_power_of_two() && (256..=64 << 20).contains(&ring);
        self.require(fits, "transport.sdma.ring_bytes", || {
            format!("is {ring}; allowed are powers of two from 256 to 67108864")
        })?;
        let most = sdma.most_copy_bytes.map_or(32, ByteSize::bytes);
        let fits = most > 0 && most.is_multiple_of(32) && u32::try_from(most).is_ok();
        self.require(fits, "transport.sdma.most_copy_bytes", || {
            format!("is {most}; allowed are multiples of 32 below 4 GiB")
        })
    }
}

impl Check<'_> {
    fn rdma(&self, config: &Config) -> Result<(), ConfigError> {
        let rdma = &config.transport.rdma;
        self.require((1..=64).contains(&rdma.queues), "transport.rdma.queues", || {
            format!("is {}; allowed is 1 to 64", rdma.queues)
        })?;
        let (least, most) = (RdmaLimits::LEAST_ENTRIES, RdmaLimits::MOST_ENTRIES);
        let fits = rdma.entries.is_power_of_two() && (least..=most).contains(&rdma.entries);
        self.require(fits, "transport.rdma.entries", || {
            format!("is {}; allowed are powers of two from {least} to {most}", rdma.entries)
        })?;
        let patience = rdma.patience.duration();
        let fits = (Duration::from_millis(1)..=Duration::from_secs(3600)).contains(&patience);
        self.require(fits, "transport.rdma.patience", || "must be between 1 ms and 1 h".into())?;
        let filter = NicFilter::parse(&rdma.nics);
        self.require(filter.is_ok(), "transport.rdma.nics", || {
            filter.err().map(|error| error.to_string()).unwrap_or_default()
        })?;
        let key = "transport.rdma.fabric_provider";
        let has_effect = rdma.fabric_provider.is_none() || rdma.driver == NicDriverName::Libfabric;
        self.require(has_effect, key, || {
            "has no effect without transport.rdma.driver = \"libfabric\"".into()
        })?;
        let by_libfabric = rdma.driver == NicDriverName::Libfabric;
        for (key, is_set) in [
            ("transport.rdma.gid_index", rdma.gid_index.is_some()),
            ("transport.rdma.traffic_class", rdma.traffic_class != 0),
            ("transport.rdma.service_level", rdma.service_level != 0),
        ] {
            self.require(!(by_libfabric && is_set), key, || {
                "has no effect with transport.rdma.driver = \"libfabric\", whose providers have settings of their own in the environment".into()
            })?;
        }
        let key = "transport.rdma.software_address";
        let has_effect = rdma.software_address.is_none() || rdma.driver == NicDriverName::Software;
        self.require(has_effect, key, || {
            "has no effect without transport.rdma.driver = \"software\"".into()
        })?;
        let has_effect = rdma.software_atomics || rdma.driver == NicDriverName::Software;
        self.require(has_effect, "transport.rdma.software_atomics", || {
            "has no effect without transport.rdma.driver = \"software\"".into()
        })?;
        let leads_somewhere = rdma.software_address.is_none_or(|address| !address.is_unspecified());
        self.require(leads_somewhere, key, || {
            "is every address of a machine; name one by which the other machines reach it".into()
        })?;
        let level = rdma.service_level;
        self.require(level <= RdmaLimits::MOST_SERVICE_LEVEL, "transport.rdma.service_level", || {
            format!("is {level}; allowed is 0 to {}", RdmaLimits::MOST_SERVICE_LEVEL)
        })
    }
}

impl LoadedConfig {
    /// Whether the compiler that a path names is on this machine. Loading does not look: a configuration may be for another machine,
    /// and prebuilt kernels need none.
    ///
    /// # Errors
    /// [`ConfigError::Value`].
    pub fn check_paths(self) -> Result<Self, ConfigError> {
        let compiler = self.config.kernels.compiler.parse::<CompilerSetting>();
        let problem = compiler.ok().and_then(|setting| setting.check().err());
        let check = Check { origins: &self.origins };
        check.require(problem.is_none(), "kernels.compiler", || {
            format!("{:?}: {}", self.config.kernels.compiler, problem.unwrap_or_default())
        })?;
        Ok(self)
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
        let compiler = self.kernels.compiler.parse::<CompilerSetting>().ok();
        let problem = compiler.and_then(|setting| setting.check_serves(kind).err());
        // Where nothing may be compiled, no compiler is needed.
        let holds = problem.is_none() || self.kernels.compile == CompileMode::Deny;
        Check { origins: &Origins::default() }.require(holds, "kernels.compiler", || {
            format!("{:?} {} (device.runtime)", self.kernels.compiler, problem.unwrap_or_default())
        })
    }

    /// Whether the host runtime is configured.
    pub fn is_host(&self) -> bool {
        self.device.runtime == RuntimeKind::Host
    }
}
