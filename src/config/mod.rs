//! The configuration: plain tables, layered from defaults, one file, the environment and the command line.
//!
//! Each value is parsed alone, so that an error names its line, variable or argument; then it replaces the value of the layers below, and
//! [`LoadedConfig::origins`] keeps its origin.

mod error;
mod file;
mod nearest;
mod origin;
mod settings;
mod single;
mod table;
mod units;
mod value;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anabranch_ccl::{CclConfig, LinkSettings, Table};

pub use error::ConfigError;
pub use origin::{Origin, Origins};
pub use settings::{
    BootstrapConfig, CclSettings, Config, DeadlineConfig, DeviceConfig, EpSettings, HeapConfig,
    HostDeviceConfig, KernelsConfig, LinkTable, RdmaConfig, SETTINGS, SdmaConfig, TransportConfig,
};
pub use table::{Setting, setting_named, settings_markdown};
pub use units::{ByteSize, Period, UnitError};
pub use value::{NicDriverName, Schedule, SettingKind};

/// Variables that begin with our name and are no settings: what launchers give to ranks, the log filter, the folder of
/// a trace, and what Python's `deep_ep` and `mori` modules and the drop-in for NCCL read.
const OTHER_VARIABLES: &[&str] = &[
    "ANABRANCH_BOOTSTRAP",
    "ANABRANCH_SECRET",
    "ANABRANCH_SECRET_FILE",
    "ANABRANCH_INSECURE",
    "ANABRANCH_IFNAME",
    "ANABRANCH_RANK",
    "ANABRANCH_WORLD_SIZE",
    "ANABRANCH_LOCAL_RANK",
    "ANABRANCH_LOCAL_WORLD_SIZE",
    "ANABRANCH_RUN_ID",
    "ANABRANCH_RESTART_COUNT",
    "ANABRANCH_LOG",
    "ANABRANCH_TRACE",
    "ANABRANCH_DEEP_EP",
    "ANABRANCH_DEEP_EP_MAX_TOKENS",
    "ANABRANCH_DEEP_EP_SLOTS",
    "ANABRANCH_DEEP_EP_MASK_SECONDS",
    "ANABRANCH_MORI",
    "ANABRANCH_NCCL_FALLBACK",
    "ANABRANCH_NCCL_VERSION",
];

fn is_other_variable(name: &str) -> bool {
    // For the processes that tests start.
    OTHER_VARIABLES.contains(&name) || name.starts_with("ANABRANCH_TEST_")
}

/// The layers above the defaults. The default has none of them: the process's environment is not read unless
/// the environment of the process is given here.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// One file.
    pub file: Option<PathBuf>,
    /// The text of a file, on top of `file`.
    pub text: Option<String>,
    /// Environment variables; those that do not begin with `ANABRANCH_` are ignored.
    pub environment: Vec<(String, String)>,
    /// `table.key=value`, each.
    pub set: Vec<String>,
}

/// A configuration, and the origin of each of its values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadedConfig {
    /// The effective settings.
    pub config: Config,
    /// Their origins.
    pub origins: Origins,
}

/// A setting in one layer.
pub(crate) struct Given {
    setting: &'static Setting,
    value: toml::Value,
    origin: Origin,
}

impl LoadedConfig {
    fn set(&mut self, given: Given) -> Result<(), ConfigError> {
        let Given { setting, value, origin } = given;
        let key = setting.name.to_owned();
        match (setting.access.set)(&mut self.config, value) {
            Ok(()) => {
                self.origins.insert(key, origin);
                Ok(())
            }
            Err(problem) => Err(ConfigError::Value { origin, key, problem }),
        }
    }
}

/// Where a configuration comes from:
///
/// | call | file | environment |
/// |---|---|---|
/// | [`Config::load`] | the one given | on top of it |
/// | [`Config::from_environment`] | none | on top of the defaults |
/// | [`Config::default`] | none | not read |
/// | [`Config::load_with`] | [`LoadOptions::file`] | [`LoadOptions::environment`]: empty by default, so not read |
impl Config {
    /// Loads a file, with the process's environment on top.
    ///
    /// # Errors
    /// See [`Config::load_with`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let options = LoadOptions {
            file: Some(path.as_ref().to_owned()),
            environment: process_variables(),
            ..LoadOptions::default()
        };
        Ok(Self::load_with(&options)?.config)
    }

    /// The defaults, with the process's environment on top and no file.
    ///
    /// # Errors
    /// See [`Config::load_with`].
    pub fn from_environment() -> Result<Self, ConfigError> {
        let environment = process_variables();
        Ok(Self::load_with(&LoadOptions { environment, ..LoadOptions::default() })?.config)
    }

    /// Loads the layers given and no others: the file, the text, the environment on top of them, the `set` arguments on top of all.
    ///
    /// # Errors
    /// [`ConfigError`] about the first wrong thing of the lowest layer that has one. A value that is replaced
    /// by a higher layer must be right too.
    pub fn load_with(options: &LoadOptions) -> Result<LoadedConfig, ConfigError> {
        let mut loaded = LoadedConfig::default();
        if let Some(path) = &options.file {
            let text = std::fs::read_to_string(path)
                .map_err(|source| ConfigError::Read { path: path.clone(), source })?;
            file::parse(path, &text)?.into_iter().try_for_each(|given| loaded.set(given))?;
        }
        if let Some(text) = &options.text {
            let name = Path::new("text of the configuration");
            file::parse(name, text)?.into_iter().try_for_each(|given| loaded.set(given))?;
        }
        for (name, text) in &options.environment {
            if name.starts_with(table::VARIABLE_PREFIX) {
                loaded.set(single::from_variable(name, text)?)?;
            } else if name.starts_with("ANABRANCH_") && !is_other_variable(name) {
                return Err(single::unknown_variable(name));
            }
        }
        for argument in &options.set {
            loaded.set(single::from_argument(argument)?)?;
        }
        loaded.checked()
    }

    /// Parses the text of one file, without any other layer; `name` is for messages.
    ///
    /// # Errors
    /// [`ConfigError`] about the first wrong thing.
    pub fn from_toml(name: impl AsRef<Path>, text: &str) -> Result<LoadedConfig, ConfigError> {
        let mut loaded = LoadedConfig::default();
        file::parse(name.as_ref(), text)?.into_iter().try_for_each(|given| loaded.set(given))?;
        loaded.checked()
    }

    /// The values that all ranks of a world must share, as (dotted key, value), in a fixed order. Ranks
    /// exchange them when they join, and the first difference is named.
    pub fn fields(&self) -> Vec<(String, String)> {
        let field = |setting: &Setting| {
            let value = setting.value(self);
            (setting.name.to_owned(), value.map_or_else(|| "unset".to_owned(), |value| value.to_string()))
        };
        SETTINGS.iter().filter(|setting| setting.shared).map(field).collect()
    }

    /// All values that are set, by default or otherwise, as (dotted key, TOML value), in the table's order.
    pub fn values(&self) -> Vec<(String, toml::Value)> {
        let value = |setting: &Setting| Some((setting.name.to_owned(), setting.value(self)?));
        SETTINGS.iter().filter_map(value).collect()
    }
}

impl HeapConfig {
    /// `heap.bytes`; `u64::MAX` where the world chooses it, from the devices of all ranks.
    pub fn most_bytes(&self) -> u64 {
        self.bytes.map_or(u64::MAX, ByteSize::bytes)
    }
}

/// The configuration of a communicator, from the `[ccl]` table. Reads the file of `ccl.table`.
///
/// # Errors
/// [`anabranch_ccl::Error::Table`]: a file that is not there, or is no table.
pub fn ccl_config(config: &Config) -> anabranch_ccl::Result<CclConfig> {
    let ccl = &config.ccl;
    let table = ccl.table.as_deref().map(Table::read).transpose()?;
    Ok(CclConfig {
        algorithm: ccl.algorithm,
        max_blocks: ccl.max_blocks.unwrap_or(0),
        shared_blocks: 0,
        staging_bytes: ccl.staging_bytes.map_or(0, ByteSize::bytes),
        pipe_bytes: ccl.pipe_bytes.map_or(0, ByteSize::bytes),
        copy_streams: ccl.copy_streams,
        barriers: ccl.meetings,
        check: ccl.check,
        across: ccl.across,
        nodes: None,
        links: link_settings(config),
        table: table.map(Arc::new),
    })
}

/// The process's variables that are text.
pub(crate) fn process_variables() -> Vec<(String, String)> {
    let pairs = std::env::vars_os();
    pairs.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))).collect()
}

/// The speeds of links that the `[links]` table sets.
pub(crate) fn link_settings(config: &Config) -> LinkSettings {
    let links = &config.links;
    LinkSettings {
        inside_gb_per_s: links.inside_gb_per_s,
        inside_hop_us: links.inside_hop_us,
        nic_gb_per_s: links.nic_gb_per_s,
        nic_hop_us: links.nic_hop_us,
        nic_message_us: links.nic_message_us,
        launch_us: links.launch_us,
    }
}
