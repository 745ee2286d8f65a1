//! The settings of one file, each with its line.

use std::path::Path;

use serde::Deserialize as _;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::Given;
use super::error::ConfigError;
use super::nearest::nearest;
use super::origin::Origin;
use super::settings::SETTINGS;
use super::table::{is_table, setting_named};

/// The settings in the text of one file, in its order; `path` is for messages.
pub(crate) fn parse(path: &Path, text: &str) -> Result<Vec<Given>, ConfigError> {
    let mut walk = Walk { text, path, found: Vec::new() };
    let document = DeTable::parse(text).map_err(|error| walk.syntax(&error))?;
    walk.table("", document.into_inner());
    // Tables are not walked in the file's order, and the first unknown key is reported.
    walk.found.sort_by_key(|(offset, _)| *offset);
    walk.found.into_iter().map(|(_, given)| given).collect()
}

struct Walk<'a> {
    text: &'a str,
    path: &'a Path,
    /// With the offset of each key.
    found: Vec<(usize, Result<Given, ConfigError>)>,
}

impl Walk<'_> {
    fn at(&self, offset: usize) -> Origin {
        let newlines = self.text.bytes().take(offset).filter(|byte| *byte == b'\n').count();
        Origin::File { path: self.path.to_owned(), line: newlines + 1 }
    }

    fn syntax(&self, error: &toml::de::Error) -> ConfigError {
        let offset = error.span().map_or(0, |span| span.start);
        ConfigError::Syntax { origin: self.at(offset), problem: error.message().to_owned() }
    }

    fn table(&mut self, prefix: &str, table: DeTable<'_>) {
        for (key, value) in table {
            let offset = key.span().start;
            let key = format!("{prefix}{}", key.into_inner());
            if let Some(given) = self.entry(key, offset, value).transpose() {
                self.found.push((offset, given));
            }
        }
    }

    fn entry(
        &mut self,
        key: String,
        offset: usize,
        value: Spanned<DeValue<'_>>,
    ) -> Result<Option<Given>, ConfigError> {
        let origin = self.at(offset);
        if let Some(setting) = setting_named(&key) {
            let value = toml::Value::deserialize(ValueDeserializer::from(value));
            let value = value.map_err(|error| self.syntax(&error))?;
            return Ok(Some(Given { setting, value, origin }));
        }
        match value.into_inner() {
            DeValue::Table(inner) if is_table(&key) => {
                self.table(&format!("{key}."), inner);
                Ok(None)
            }
            value if is_table(&key) => {
                let problem = format!("is a table, and not {}", value.type_str());
                Err(ConfigError::Value { origin, key, problem })
            }
            value => {
                let what = if matches!(value, DeValue::Table(_)) { "table" } else { "key" };
                let suggestion = suggest(&key, what == "table");
                Err(ConfigError::UnknownKey { origin, what, key, suggestion })
            }
        }
    }
}

/// What may have been meant by an unknown key: the nearest name, or the setting whose last word it is.
pub(crate) fn suggest(key: &str, table: bool) -> Option<String> {
    if table {
        let names = SETTINGS.iter().flat_map(|setting| parents(setting.name));
        return nearest(key, names).map(str::to_owned);
    }
    let last = key.rsplit_once('.').map_or(key, |(_, last)| last);
    let names = || SETTINGS.iter().map(|setting| setting.name);
    let elsewhere = names().find(|name| name.ends_with(&format!(".{last}")));
    // The right word in the wrong table is a nearer miss than a similar word in the same one.
    elsewhere.or_else(|| nearest(key, names())).map(str::to_owned)
}

/// `a` and `a.b` for `a.b.c`.
fn parents(name: &'static str) -> impl Iterator<Item = &'static str> {
    name.match_indices('.').map(move |(at, _)| &name[..at])
}
