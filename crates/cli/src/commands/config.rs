//! `anabranch config show` and `config check`.

use std::path::PathBuf;

use anabranch::config::{Config, ConfigError, LoadedConfig, Origin, SETTINGS, Setting};
use clap::{Args, Subcommand};
use serde::Serialize;

use anabranch_bench::print;
use anabranch_bench::settings::SettingsArgs;

/// `anabranch config`.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print the effective configuration, as a file that loads to the same.
    Show(ShowArgs),
    /// Check each file on its own.
    Check(CheckArgs),
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    settings: SettingsArgs,
    /// Print the origin of each value.
    #[arg(long)]
    origin: bool,
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct CheckArgs {
    /// The files.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct SettingRow {
    setting: &'static str,
    value: Option<serde_json::Value>,
    origin: String,
    help: &'static str,
}

#[derive(Serialize)]
struct CheckRow {
    file: String,
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Runs one of them.
///
/// # Errors
/// A configuration that does not load.
pub(crate) fn run(command: &ConfigCommand) -> anyhow::Result<()> {
    match command {
        ConfigCommand::Show(arguments) => show(arguments),
        ConfigCommand::Check(arguments) => check(arguments),
    }
}

fn show(arguments: &ShowArgs) -> anyhow::Result<()> {
    let loaded = arguments.settings.load(&[])?;
    if arguments.json {
        return SETTINGS.iter().try_for_each(|setting| print::json(&row(&loaded, setting)));
    }
    let (mut plain, mut secrets, mut unset) = (Vec::new(), Vec::new(), Vec::new());
    for setting in SETTINGS {
        let name = setting.name;
        match setting.value(&loaded.config) {
            // A comment, so that the secret is missed and not replaced where the output is loaded.
            Some(_) if setting.secret => secrets.push((setting, format!("# {name} = {HIDDEN}"))),
            Some(value) => plain.push((setting, format!("{name} = {value}"))),
            None => unset.push(format!("# {name} is not set: {}", setting.unset)),
        }
    }
    let width = plain.iter().map(|(_, text)| text.len()).max().unwrap_or(0);
    for (setting, text) in plain.iter().chain(&secrets) {
        let width = if setting.secret { 0 } else { width };
        if arguments.origin {
            print::line(&format!("{text:<width$}  # {}", origin(&loaded, setting)))?;
        } else {
            print::line(text)?;
        }
    }
    unset.iter().try_for_each(|text| print::line(text))
}

/// Printed in place of a secret.
const HIDDEN: &str = "(set)";

/// The origin of a value; for a secret's `--set` without the value.
fn origin(loaded: &LoadedConfig, setting: &Setting) -> String {
    match loaded.origins.of(setting.name) {
        Origin::Set { .. } if setting.secret => format!("--set {}={HIDDEN}", setting.name),
        origin => origin.to_string(),
    }
}

fn row(loaded: &LoadedConfig, setting: &'static Setting) -> SettingRow {
    let shown = |value| if setting.secret { Some(HIDDEN.into()) } else { serde_json::to_value(value).ok() };
    SettingRow {
        setting: setting.name,
        value: setting.value(&loaded.config).and_then(shown),
        origin: origin(loaded, setting),
        help: setting.help,
    }
}

fn check(arguments: &CheckArgs) -> anyhow::Result<()> {
    let mut first: Option<ConfigError> = None;
    for path in &arguments.files {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.clone(), source })?;
        let result = Config::from_toml(path, &text).and_then(LoadedConfig::check_paths);
        let row = CheckRow {
            file: path.display().to_string(),
            ok: result.is_ok(),
            error: result.as_ref().err().map(ToString::to_string),
        };
        if arguments.json {
            print::json(&row)?;
        } else if row.ok {
            print::line(&format!("{}: ok", row.file))?;
        }
        if let Err(error) = result {
            if first.is_some() && !arguments.json {
                // The first is the command's own error; the others are named where they are found.
                print::line(&error.to_string())?;
            }
            first.get_or_insert(error);
        }
    }
    first.map_or(Ok(()), |error| Err(error.into()))
}
