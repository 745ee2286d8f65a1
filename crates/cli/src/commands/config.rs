//! `anabranch config show` and `config check`.

use std::path::PathBuf;

use anabranch::config::{Config, ConfigError, LoadedConfig, Origin, SETTINGS};
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::print;
use crate::settings::SettingsArgs;

/// `anabranch config`.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print the effective configuration, as a file that loads to the same.
    Show(ShowArgs),
    /// Check files, each by itself.
    Check(CheckArgs),
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    settings: SettingsArgs,
    /// Say who set each value.
    #[arg(long)]
    origin: bool,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct CheckArgs {
    /// The files.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct SettingRow {
    setting: String,
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
        return rows(&loaded).iter().try_for_each(print::json);
    }
    let mut values = loaded.config.values();
    let secrets: Vec<_> = values.extract_if(.., |(name, _)| is_secret(name)).collect();
    let width =
        values.iter().map(|(name, value)| name.len() + value.to_string().len()).max().unwrap_or(0) + 3;
    for (name, value) in &values {
        let text = format!("{name} = {value}");
        if arguments.origin {
            print::line(&format!("{text:<width$}  # {}", loaded.origins.of(name)))?;
        } else {
            print::line(&text)?;
        }
    }
    // A comment, so that the secret is missed and not replaced where the output is loaded.
    for (name, _) in &secrets {
        let origin = if arguments.origin {
            format!("  # {}", origin(loaded.origins.of(name), name))
        } else {
            String::new()
        };
        print::line(&format!("# {name} = {HIDDEN}{origin}"))?;
    }
    let is_set = |name: &str| values.iter().chain(&secrets).any(|(set, _)| set == name);
    for setting in SETTINGS.iter().filter(|setting| !is_set(setting.name)) {
        print::line(&format!("# {} is not set: {}", setting.name, setting.unset))?;
    }
    Ok(())
}

/// What is shown of a secret.
const HIDDEN: &str = "(set)";

fn is_secret(name: &str) -> bool {
    SETTINGS.iter().any(|setting| setting.name == name && setting.secret)
}

/// Who set a value; of a secret's `--set` without what it was set to.
fn origin(origin: Origin, name: &str) -> String {
    match origin {
        Origin::Set { .. } if is_secret(name) => format!("--set {name}={HIDDEN}"),
        origin => origin.to_string(),
    }
}

fn rows(loaded: &LoadedConfig) -> Vec<SettingRow> {
    let values = loaded.config.values();
    let row = |setting: &anabranch::config::Setting| SettingRow {
        setting: setting.name.to_owned(),
        value: values.iter().find(|(name, _)| name == setting.name).and_then(|(_, value)| {
            if setting.secret { Some(HIDDEN.into()) } else { serde_json::to_value(value).ok() }
        }),
        origin: origin(loaded.origins.of(setting.name), setting.name),
        help: setting.help,
    };
    SETTINGS.iter().map(row).collect()
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
