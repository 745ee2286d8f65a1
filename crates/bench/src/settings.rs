//! The flags that every command has which loads a configuration, and the loading.

use std::path::PathBuf;

use anabranch::config::{Config, LoadOptions, LoadedConfig};
use anabranch::{Environment, RuntimeKind};
use clap::Args;

/// Where settings come from.
#[derive(Clone, Debug, Default, Args)]
pub struct SettingsArgs {
    /// The configuration file.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// One setting, over file and environment; any number of times.
    #[arg(long, value_name = "TABLE.KEY=VALUE")]
    pub set: Vec<String>,
}

impl SettingsArgs {
    /// Loads defaults, file, environment and `--set`, in this order; then `more`, which stands for flags.
    ///
    /// # Errors
    /// The first complaint about a layer.
    pub fn load(&self, more: &[String]) -> anyhow::Result<LoadedConfig> {
        let options = LoadOptions {
            file: self.config.clone(),
            environment: Environment::of_process().to_vec(),
            set: self.set.iter().chain(more).cloned().collect(),
            ..LoadOptions::default()
        };
        Ok(Config::load_with(&options)?)
    }
}

/// Settings that have a flag of their own.
#[derive(Clone, Debug, Default, Args)]
pub struct RuntimeArgs {
    /// Where the other settings come from.
    #[command(flatten)]
    pub settings: SettingsArgs,
    /// The runtime: host, nvidia or amd (device.runtime).
    #[arg(long)]
    pub runtime: Option<RuntimeKind>,
    /// Lanes of a wave on the host runtime: 1, 4, 32 or 64 (device.host.wave).
    #[arg(long)]
    pub wave: Option<u32>,
}

impl RuntimeArgs {
    /// As [`SettingsArgs::load`], with these flags on top.
    ///
    /// # Errors
    /// The first complaint about a layer.
    pub fn load(&self) -> anyhow::Result<LoadedConfig> {
        let mut more = Vec::new();
        more.extend(self.runtime.map(|runtime| format!("device.runtime={runtime}")));
        more.extend(self.wave.map(|wave| format!("device.host.wave={wave}")));
        self.settings.load(&more)
    }
}
