//! The tables of the configuration, as plain nested structs.
//!
//! Every field is a setting; what it means, its default and whether ranks must agree on it is in
//! [`SETTINGS`](super::SETTINGS), which a test holds against these structs.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anabranch_ccl::{Across, Algorithm, Check, Meetings};
use anabranch_ep::Mode;
use anabranch_hip::RuntimeKind;
use anabranch_hip_jit::JitConfig;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::transport::TransportConfig;
use super::units::{ByteSize, Period};

/// The effective settings of one rank: `[device]`, `[heap]`, `[bootstrap]`, `[transport]`, `[kernels]`,
/// `[deadline]`, `[ccl]` and `[ep]`.
///
/// `Config::default()` is what an empty file means. See [`Config::load`] and [`Config::load_with`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Config {
    /// Which runtime and which of its devices.
    pub device: DeviceConfig,
    /// The symmetric heap.
    pub heap: HeapConfig,
    /// How ranks find each other.
    pub bootstrap: BootstrapConfig,
    /// How bytes move.
    pub transport: TransportConfig,
    /// How kernels are compiled and where they are kept.
    pub kernels: KernelsConfig,
    /// How long waits may last.
    pub deadline: DeadlineConfig,
    /// How collectives are done.
    pub ccl: CclSettings,
    /// Launch shapes of expert parallelism.
    pub ep: EpSettings,
}

/// `[device]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct DeviceConfig {
    /// The runtime.
    #[serde(serialize_with = "show_runtime", deserialize_with = "read_runtime")]
    pub runtime: RuntimeKind,
    /// Device ordinals by local rank; `None` means `first`, `first + 1`, ...
    #[serde(skip_serializing_if = "Option::is_none")]
    pub devices: Option<Vec<u32>>,
    /// Ordinal of local rank 0 when `devices` is not given.
    pub first: u32,
    /// The runtime's library (`libamdhip64.so`, `libcuda.so`); `None` means found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub library: Option<PathBuf>,
    /// The GPU made of CPU threads.
    pub host: HostDeviceConfig,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self {
            runtime: RuntimeKind::Host,
            devices: None,
            first: 0,
            library: None,
            host: HostDeviceConfig::default(),
        }
    }
}

/// `[device.host]`, used with the `host` runtime only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct HostDeviceConfig {
    /// Devices shown; `None` means as many as ranks on this machine ask for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// Lanes of a wave: 1, 4, 32 or 64. `None` is what [`HostDeviceConfig::wave_width`] says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wave: Option<u32>,
    /// Worker threads of one process; `None` means the cores divided by the ranks on this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<u32>,
    /// Memory of one device. Pages cost nothing until they are touched.
    pub memory: ByteSize,
    /// Who decides which lane runs next.
    pub schedule: Schedule,
    /// Seed of the `seeded` schedule, which needs one; refused with the other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Steps after which a run of the `seeded` schedule is given up; at least 1.
    pub steps: u64,
    /// What goes wrong in a run of the `seeded` schedule, in words like `kill:1@37`
    /// ([`FaultWords::FORMS`](anabranch_hip_host::seeded::FaultWords::FORMS)); ranks are devices.
    pub faults: Vec<String>,
}

impl Default for HostDeviceConfig {
    fn default() -> Self {
        Self {
            count: None,
            wave: None,
            workers: None,
            memory: ByteSize(16 << 30),
            schedule: Schedule::Free,
            seed: None,
            steps: 1_000_000_000,
            faults: Vec::new(),
        }
    }
}

impl HostDeviceConfig {
    /// Lanes of a wave: what is set, else 1, which is fast, or 4 under a seed, as waves of one lane hide mistakes within
    /// a wave.
    pub fn wave_width(&self) -> u32 {
        self.wave.unwrap_or(match self.schedule {
            Schedule::Free => 1,
            Schedule::Seeded => 4,
        })
    }
}

/// Who decides which lane of the host runtime runs next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Schedule {
    /// Worker threads, as they get to run.
    #[default]
    Free,
    /// One step at a time, in an order drawn from the seed, with a weak memory and a virtual clock
    /// (`docs/memory-model.md`). The ranks of a world are threads of one process.
    Seeded,
}

/// `[heap]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct HeapConfig {
    /// Size of every rank's heap.
    pub bytes: ByteSize,
    /// How its memory is obtained.
    pub mode: HeapMode,
}

impl Default for HeapConfig {
    fn default() -> Self {
        Self { bytes: ByteSize(256 << 20), mode: HeapMode::Static }
    }
}

/// How the heap's memory is obtained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum HeapMode {
    /// One allocation of the full size when the world is joined.
    #[default]
    Static,
    /// Physical memory of the full size when the world is joined, mapped with the peers' into one range of addresses in the
    /// order of the ranks.
    Flat,
}

impl HeapMode {
    /// The word in configurations.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Flat => "flat",
        }
    }
}

/// `[bootstrap]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct BootstrapConfig {
    /// `host:port` of the store that rank 0 runs, or several, separated by commas; `None` means what the launcher says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Added to the launcher's port, which the launcher's own store may occupy.
    pub port_offset: u16,
    /// The secret that ranks show each other; `None` means what the launcher says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// The file that holds the secret, which only its owner may read; `None` means what the launcher says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_file: Option<PathBuf>,
    /// Whether ranks meet without a secret where other machines reach them.
    pub insecure: bool,
    /// The network interface that rank 0 listens on; `None` means the one that the address is of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// How often a rank shows that it lives. The root's value counts for all.
    pub heartbeat: Period,
    /// A rank that was silent for this long counts as dead. The root's value counts for all.
    pub silence: Period,
}

impl Default for BootstrapConfig {
    fn default() -> Self {
        Self {
            address: None,
            port_offset: 1,
            secret: None,
            secret_file: None,
            insecure: false,
            interface: None,
            heartbeat: Period(Duration::from_secs(1)),
            silence: Period(Duration::from_secs(10)),
        }
    }
}

/// `[kernels]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct KernelsConfig {
    /// Whether a kernel that is nowhere compiled may be compiled.
    pub compile: CompileMode,
    /// Directory of compiled kernels; `None` means the user's cache directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<PathBuf>,
    /// Read-only directories searched before the cache.
    pub prebuilt: Vec<PathBuf>,
    /// `auto`, a tool chain's name, or the path of a compiler.
    pub compiler: String,
    /// How long one compilation may take.
    pub patience: Period,
    /// The target; `None` means what the device reports. Contradicting the device is an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arch: Option<String>,
    /// A checkout whose kernel sources and headers replace the embedded ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_dir: Option<PathBuf>,
    /// Options added to every compiler call; part of the cache key.
    pub extra_options: Vec<String>,
    /// Whether kernels carry debug information.
    pub debug_info: bool,
    /// Compilers run at once; `None` means one per core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jobs: Option<u32>,
    /// How many failed compilations are kept for reading.
    pub keep_failed: u32,
}

impl Default for KernelsConfig {
    fn default() -> Self {
        Self {
            compile: CompileMode::Auto,
            cache: None,
            prebuilt: Vec::new(),
            compiler: "auto".to_owned(),
            patience: Period(JitConfig::PATIENCE),
            arch: None,
            source_dir: None,
            extra_options: Vec::new(),
            debug_info: false,
            jobs: None,
            keep_failed: 8,
        }
    }
}

/// Whether a kernel that is nowhere compiled may be compiled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum CompileMode {
    /// It is compiled and put into the cache.
    #[default]
    Auto,
    /// It is an error.
    Deny,
}

/// `[deadline]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct DeadlineConfig {
    /// How long joining a world may take, waiting for all ranks included.
    pub rendezvous: Period,
    /// How long a kernel or a collective call waits for a peer.
    pub operation: Period,
}

impl Default for DeadlineConfig {
    fn default() -> Self {
        Self { rendezvous: Period(Duration::from_secs(60)), operation: Period(Duration::from_secs(10)) }
    }
}

/// `[ccl]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct CclSettings {
    /// How every call is done; `None`, written `"auto"`, chooses for each.
    #[serde(serialize_with = "show_algorithm", deserialize_with = "read_algorithm")]
    pub algorithm: Option<Algorithm>,
    /// Most blocks of a launch; `None` means chosen from the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_blocks: Option<u32>,
    /// Memory of the symmetric heap that a communicator takes for staging; `None` means chosen from heap and device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staging_bytes: Option<ByteSize>,
    /// Memory of the symmetric heap for messages that are not yet received; `None` means chosen from heap and device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pipe_bytes: Option<ByteSize>,
    /// Streams for the copies to each member in collectives by copy engine; 0 for one for all others; `None` means chosen by the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copy_streams: Option<u32>,
    /// How members meet before and behind copies by engine.
    pub meetings: Meetings,
    /// What is checked at every call.
    pub check: Check,
    /// Which way calls go where members are on several machines.
    pub across: Across,
    /// A file of choices that `anabranch tune` wrote; `None` means the one that comes with the library, if it has one for the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<PathBuf>,
}

/// `[ep]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct EpSettings {
    /// Dispatches that may be in flight without their combine.
    pub slots: u32,
    /// How received rows lie in plans that leave it open.
    pub mode: Mode,
    /// Most blocks of a dispatch or combine kernel; `None` means chosen from the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks: Option<u32>,
    /// Waves of each block; `None` means chosen from the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waves_per_block: Option<u32>,
    /// A file of launches that `anabranch tune ep` wrote; `None` means the one that comes with the library, if it has one for the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<PathBuf>,
}

impl Default for EpSettings {
    fn default() -> Self {
        Self { slots: 1, mode: Mode::Auto, blocks: None, waves_per_block: None, table: None }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
fn show_runtime<S: Serializer>(runtime: &RuntimeKind, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(runtime)
}

fn read_runtime<'de, D: Deserializer<'de>>(deserializer: D) -> Result<RuntimeKind, D::Error> {
    let text = String::deserialize(deserializer)?;
    RuntimeKind::from_str(&text).map_err(serde::de::Error::custom)
}

/// The word for no algorithm in particular.
pub(crate) const AUTO: &str = "auto";

#[expect(clippy::ref_option, clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
fn show_algorithm<S: Serializer>(algorithm: &Option<Algorithm>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(algorithm.map_or(AUTO, Algorithm::name))
}

fn read_algorithm<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Algorithm>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text == AUTO {
        return Ok(None);
    }
    let unknown = |error| serde::de::Error::custom(format_args!("{error}, or \"{AUTO}\""));
    Algorithm::from_str(&text).map(Some).map_err(unknown)
}
