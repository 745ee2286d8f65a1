//! One setting given by itself: `a.b=c` on the command line, `ANABRANCH__A__B=c` in the environment.

use super::Given;
use super::error::ConfigError;
use super::file::suggest;
use super::nearest::nearest;
use super::origin::Origin;
use super::settings::SETTINGS;
use super::table::{Setting, setting_named};
use super::value::SettingKind;

/// Reads `a.b=c`.
pub(crate) fn from_argument(argument: &str) -> Result<Given, ConfigError> {
    let origin = Origin::Set { argument: argument.to_owned() };
    let Some((key, text)) = argument.split_once('=') else {
        return Err(ConfigError::Syntax { origin, problem: "expected `table.key=value`".to_owned() });
    };
    let key = key.trim();
    let Some(setting) = setting_named(key) else {
        let suggestion = suggest(key, false);
        return Err(ConfigError::UnknownKey { origin, what: "key", key: key.to_owned(), suggestion });
    };
    Ok(Given { setting, value: value(setting.kind, text.trim()), origin })
}

/// Reads an environment variable that begins with [`VARIABLE_PREFIX`](super::table::VARIABLE_PREFIX).
pub(crate) fn from_variable(name: &str, text: &str) -> Result<Given, ConfigError> {
    let setting = SETTINGS.iter().find(|setting| setting.variable() == name);
    let setting = setting.ok_or_else(|| unknown_variable(name))?;
    let origin = Origin::Environment { variable: name.to_owned() };
    Ok(Given { setting, value: value(setting.kind, text.trim()), origin })
}

/// The error for a variable with our prefix that means nothing.
pub(crate) fn unknown_variable(name: &str) -> ConfigError {
    let names: Vec<String> = SETTINGS.iter().map(Setting::variable).collect();
    // `ANABRANCH_HEAP_BYTES` is nearer than its edit distance.
    let squeezed = |text: &str| text.replace("__", "_").to_ascii_uppercase();
    let same = names.iter().find(|known| squeezed(known) == squeezed(name)).map(String::as_str);
    let suggestion = same.or_else(|| nearest(name, names.iter().map(String::as_str))).map(str::to_owned);
    let origin = Origin::Environment { variable: name.to_owned() };
    ConfigError::UnknownKey { origin, what: "variable", key: name.to_owned(), suggestion }
}

/// The text as TOML. Lists are `["a", "b"]`, or `a,b`; an empty text is the empty list.
fn value(kind: SettingKind, text: &str) -> toml::Value {
    if !kind.is_list() {
        return word(kind, text);
    }
    if text.starts_with('[')
        && let Some(value) = toml_value(text)
    {
        return value;
    }
    let words = text.split(',').map(str::trim).filter(|text| !text.is_empty());
    toml::Value::Array(words.map(|text| word(kind, text)).collect())
}

/// A quoted or bare word; bare ones become numbers only where a number is wanted, so that a token of digits
/// stays a text.
fn word(kind: SettingKind, text: &str) -> toml::Value {
    if text.starts_with(['"', '\''])
        && let Some(value) = toml_value(text)
    {
        return value;
    }
    let value = match kind {
        SettingKind::Boolean => text.parse::<bool>().ok().map(Into::into),
        SettingKind::Integer | SettingKind::Integers | SettingKind::Size => {
            text.parse::<i64>().ok().map(Into::into)
        }
        SettingKind::Number => text.parse::<f64>().ok().map(Into::into),
        _ => None,
    };
    value.unwrap_or_else(|| toml::Value::String(text.to_owned()))
}

fn toml_value(text: &str) -> Option<toml::Value> {
    let mut table: toml::Table = toml::from_str(&format!("value = {text}")).ok()?;
    (table.len() == 1).then(|| table.remove("value")).flatten()
}
