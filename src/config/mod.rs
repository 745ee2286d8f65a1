//! The configuration: plain tables, layered from defaults, one file, the environment and the command line.
//!
//! Each layer is parsed and checked alone, so that a complaint names a line, a variable or an argument; then
//! they are laid over each other, and [`LoadedConfig::origins`] remembers who set what.

mod check;
mod error;
mod file;
mod nearest;
mod origin;
mod sections;
mod settings;
mod single;
mod transport;
mod units;

use std::path::{Path, PathBuf};

pub use error::ConfigError;
pub use origin::{Origin, Origins};
pub use sections::{
    BootstrapConfig, CclSettings, CompileMode, Config, DeadlineConfig, DeviceConfig, EpSettings, HeapConfig,
    HeapMode, HostDeviceConfig, KernelsConfig, Schedule,
};
pub use settings::{SETTINGS, Setting, SettingKind, setting_named, settings_markdown};
pub use transport::{NicDriverName, P2pConfig, RdmaConfig, SdmaConfig, TransportConfig, TransportName};
pub use units::{ByteSize, Period, UnitError};

/// Variables that begin with our name and are no settings: what launchers give to ranks, and the log filter.
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
];

fn is_other_variable(name: &str) -> bool {
    // What tests tell their own processes is none of the loader's business.
    OTHER_VARIABLES.contains(&name) || name.starts_with("ANABRANCH_TEST_")
}

/// The layers above the defaults. The default has none of them: the process's environment is not read unless
/// the environment of the process is given here.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// One file.
    pub file: Option<PathBuf>,
    /// Environment variables; those that do not begin with `ANABRANCH_` are ignored.
    pub environment: Vec<(String, String)>,
    /// `table.key=value`, each.
    pub set: Vec<String>,
}

/// A configuration, and who set each of its values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadedConfig {
    /// The effective settings.
    pub config: Config,
    /// Who set them.
    pub origins: Origins,
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
            environment: crate::environment::variables(),
            set: Vec::new(),
        };
        Ok(Self::load_with(&options)?.config)
    }

    /// The defaults, with the process's environment on top and no file.
    ///
    /// # Errors
    /// See [`Config::load_with`].
    pub fn from_environment() -> Result<Self, ConfigError> {
        let environment = crate::environment::variables();
        Ok(Self::load_with(&LoadOptions { environment, ..LoadOptions::default() })?.config)
    }

    /// Loads the layers given and no others: the file, the environment on top of it, the `set` arguments on top of both.
    ///
    /// # Errors
    /// [`ConfigError`] about the first wrong thing of the lowest layer that has one. A value that is replaced
    /// by a higher layer must be right too.
    pub fn load_with(options: &LoadOptions) -> Result<LoadedConfig, ConfigError> {
        let mut origins = Origins::default();
        let mut table = toml::Table::new();
        if let Some(path) = &options.file {
            let text = std::fs::read_to_string(path)
                .map_err(|source| ConfigError::Read { path: path.clone(), source })?;
            let layer = file::parse(path, &text)?;
            table = layer.table;
            origins = layer.origins;
        }
        let mut singles = Vec::new();
        for (name, text) in &options.environment {
            if name.starts_with(settings::VARIABLE_PREFIX) {
                singles.push(single::from_variable(name, text)?);
            } else if name.starts_with("ANABRANCH_") && !is_other_variable(name) {
                return Err(single::unknown_variable(name));
            }
        }
        for argument in &options.set {
            singles.push(single::from_argument(argument)?);
        }
        for (setting, value, origin) in singles {
            single::insert(&mut table, setting.name, value);
            origins.insert(setting.name.to_owned(), origin);
        }
        let config: Self = table.try_into().map_err(|error: toml::de::Error| ConfigError::Syntax {
            origin: Origin::Default,
            problem: error.message().to_owned(),
        })?;
        check::check(&config, &origins)?;
        Ok(LoadedConfig { config, origins })
    }

    /// Parses the text of one file, without any other layer; `name` is for messages.
    ///
    /// # Errors
    /// [`ConfigError`] about the first wrong thing.
    pub fn from_toml(name: impl AsRef<Path>, text: &str) -> Result<LoadedConfig, ConfigError> {
        let layer = file::parse(name.as_ref(), text)?;
        let config: Self = layer.table.try_into().map_err(|error: toml::de::Error| ConfigError::Syntax {
            origin: Origin::File { path: name.as_ref().to_owned(), line: 0 },
            problem: error.message().to_owned(),
        })?;
        check::check(&config, &layer.origins)?;
        Ok(LoadedConfig { config, origins: layer.origins })
    }

    /// The values that all ranks of a world must share, as (dotted key, value), in a fixed order. Ranks
    /// exchange them when they join, and the first difference is named.
    pub fn fields(&self) -> Vec<(String, String)> {
        let values = settings::flatten(self);
        let shared = SETTINGS.iter().filter(|setting| setting.shared);
        let field = |setting: &Setting| {
            let value = values.iter().find(|(name, _)| name == setting.name);
            (
                setting.name.to_owned(),
                value.map_or_else(|| "unset".to_owned(), |(_, value)| value.to_string()),
            )
        };
        shared.map(field).collect()
    }

    /// All values that are set, by default or otherwise, as (dotted key, TOML value), in the table's order.
    pub fn values(&self) -> Vec<(String, toml::Value)> {
        settings::flatten(self)
    }
}
