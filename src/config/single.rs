//! One setting given by itself: `a.b=c` on the command line, `ANABRANCH__A__B=c` in the environment.

use super::Config;
use super::error::ConfigError;
use super::file::suggest;
use super::nearest::nearest;
use super::origin::Origin;
use super::settings::{SETTINGS, Setting, SettingKind, VARIABLE_PREFIX, setting_named};

/// Reads `a.b=c`.
pub(crate) fn from_argument(argument: &str) -> Result<(&'static Setting, toml::Value, Origin), ConfigError> {
    let origin = Origin::Set { argument: argument.to_owned() };
    let Some((key, text)) = argument.split_once('=') else {
        return Err(ConfigError::Syntax { origin, problem: "expected `table.key=value`".to_owned() });
    };
    let key = key.trim();
    let Some(setting) = setting_named(key) else {
        let suggestion = suggest(key, false);
        return Err(ConfigError::UnknownKey { origin, what: "key", key: key.to_owned(), suggestion });
    };
    let value = read(setting, text.trim(), &origin)?;
    Ok((setting, value, origin))
}

/// Reads an environment variable that begins with [`VARIABLE_PREFIX`].
pub(crate) fn from_variable(
    name: &str,
    text: &str,
) -> Result<(&'static Setting, toml::Value, Origin), ConfigError> {
    let origin = Origin::Environment { variable: name.to_owned() };
    let Some(setting) = SETTINGS.iter().find(|setting| setting.variable() == name) else {
        return Err(unknown_variable(name));
    };
    let value = read(setting, text.trim(), &origin)?;
    Ok((setting, value, origin))
}

/// The error for a variable with our prefix that means nothing.
pub(crate) fn unknown_variable(name: &str) -> ConfigError {
    let names: Vec<String> = SETTINGS.iter().map(Setting::variable).collect();
    // `ANABRANCH_HEAP_BYTES` is a nearer miss than its edit distance says.
    let squeezed = |text: &str| text.replace("__", "_").to_ascii_uppercase();
    let same = names.iter().find(|known| squeezed(known) == squeezed(name)).map(String::as_str);
    let suggestion = same.or_else(|| nearest(name, names.iter().map(String::as_str))).map(str::to_owned);
    let origin = Origin::Environment { variable: name.to_owned() };
    debug_assert!(VARIABLE_PREFIX.ends_with("__"), "single underscores separate words, double ones tables");
    ConfigError::UnknownKey { origin, what: "variable", key: name.to_owned(), suggestion }
}

/// Turns the text into the TOML value that the setting takes, and checks it alone.
fn read(setting: &Setting, text: &str, origin: &Origin) -> Result<toml::Value, ConfigError> {
    let value = if setting.kind.is_list() { list(setting.kind, text) } else { word(setting.kind, text) };
    let mut table = toml::Table::new();
    insert(&mut table, setting.name, value.clone());
    match table.try_into::<Config>() {
        Ok(_) => Ok(value),
        Err(error) => Err(ConfigError::Value {
            origin: origin.clone(),
            key: setting.name.to_owned(),
            problem: error.message().to_owned(),
        }),
    }
}

/// A quoted or bare word; bare ones become numbers only where a number is wanted, so that a token of digits
/// stays a text.
fn word(kind: SettingKind, text: &str) -> toml::Value {
    if text.starts_with(['"', '\''])
        && let Some(value) = toml_value(text)
    {
        return value;
    }
    if kind == SettingKind::Boolean
        && let Ok(truth) = text.parse::<bool>()
    {
        return toml::Value::Boolean(truth);
    }
    match text.parse::<i64>() {
        Ok(number) if kind.is_numeric() || kind == SettingKind::Size => toml::Value::Integer(number),
        _ => toml::Value::String(text.to_owned()),
    }
}

/// `["a", "b"]`, or `a,b`; an empty text is the empty list.
fn list(kind: SettingKind, text: &str) -> toml::Value {
    if text.starts_with('[')
        && let Some(value) = toml_value(text)
    {
        return value;
    }
    let words = text.split(',').map(str::trim).filter(|text| !text.is_empty());
    toml::Value::Array(words.map(|text| word(kind, text)).collect())
}

fn toml_value(text: &str) -> Option<toml::Value> {
    let mut table: toml::Table = toml::from_str(&format!("value = {text}")).ok()?;
    (table.len() == 1).then(|| table.remove("value")).flatten()
}

/// Sets a dotted key, making the tables on the way.
pub(crate) fn insert(table: &mut toml::Table, name: &str, value: toml::Value) {
    match name.split_once('.') {
        None => {
            table.insert(name.to_owned(), value);
        }
        Some((first, rest)) => {
            let inner = table.entry(first).or_insert_with(|| toml::Value::Table(toml::Table::new()));
            if let toml::Value::Table(inner) = inner {
                insert(inner, rest, value);
            }
        }
    }
}
