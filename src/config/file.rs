//! One file, parsed and checked alone, so that every complaint has a line.

use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Config;
use super::error::ConfigError;
use super::nearest::nearest;
use super::origin::{Origin, Origins};
use super::settings::{SETTINGS, is_table, setting_named};

/// The tables of a file, and the line that set each key.
pub(crate) struct FileLayer {
    pub(crate) table: toml::Table,
    pub(crate) origins: Origins,
}

/// Parses and checks the text of one file; `path` is for messages.
pub(crate) fn parse(path: &Path, text: &str) -> Result<FileLayer, ConfigError> {
    let at = |offset: usize| Origin::File { path: path.to_owned(), line: line_of(text, offset) };
    let syntax = |error: &toml::de::Error| ConfigError::Syntax {
        origin: at(error.span().map_or(0, |span| span.start)),
        problem: error.message().to_owned(),
    };
    let document = DeTable::parse(text).map_err(|error| syntax(&error))?;

    let mut walk = Walk { text, path, origins: Origins::default(), unknown: None };
    walk.table("", document.get_ref());
    if let Some((_, error)) = walk.unknown {
        return Err(error);
    }
    let origins = walk.origins;

    // The keys are known, so what this finds is a value.
    toml::from_str::<Config>(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        let origin = at(offset);
        match origins.set_keys().find(|(_, set)| **set == origin) {
            Some((key, _)) => {
                ConfigError::Value { key: key.to_owned(), problem: error.message().to_owned(), origin }
            }
            None => syntax(&error),
        }
    })?;
    let table = toml::from_str(text).map_err(|error| syntax(&error))?;
    Ok(FileLayer { table, origins })
}

struct Walk<'a> {
    text: &'a str,
    path: &'a Path,
    origins: Origins,
    /// The first unknown key of the file, with its offset; tables are not walked in the file's order.
    unknown: Option<(usize, ConfigError)>,
}

impl Walk<'_> {
    fn table(&mut self, prefix: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let name = if prefix.is_empty() {
                key.get_ref().to_string()
            } else {
                format!("{prefix}.{}", key.get_ref())
            };
            let offset = key.span().start;
            let origin = Origin::File { path: self.path.to_owned(), line: line_of(self.text, offset) };
            if setting_named(&name).is_some() {
                self.origins.insert(name, origin);
            } else if is_table(&name) {
                self.inner(&name, value);
            } else if self.unknown.as_ref().is_none_or(|(first, _)| offset < *first) {
                let what = if matches!(value.get_ref(), DeValue::Table(_)) { "table" } else { "key" };
                let suggestion = suggest(&name, what == "table");
                self.unknown =
                    Some((offset, ConfigError::UnknownKey { origin, what, key: name, suggestion }));
            }
        }
    }

    fn inner(&mut self, name: &str, value: &Spanned<DeValue<'_>>) {
        // A table's name with a plain value is left to the typed parse, which says what it expected.
        if let DeValue::Table(table) = value.get_ref() {
            self.table(name, table);
        }
    }
}

/// What may have been meant by an unknown key: the nearest name, or the setting whose last word it is.
pub(crate) fn suggest(key: &str, table: bool) -> Option<String> {
    if table {
        let names: Vec<&str> = SETTINGS.iter().flat_map(|setting| parents(setting.name)).collect();
        return nearest(key, names).map(str::to_owned);
    }
    let last = |name: &'static str| name.rsplit('.').next().unwrap_or(name);
    let given = key.rsplit('.').next().unwrap_or(key);
    let elsewhere =
        || SETTINGS.iter().find(|setting| last(setting.name) == given).map(|setting| setting.name);
    // The right word in the wrong table is a nearer miss than a similar word in the same one.
    elsewhere().or_else(|| nearest(key, SETTINGS.iter().map(|setting| setting.name))).map(str::to_owned)
}

/// `a` and `a.b` for `a.b.c`.
fn parents(name: &'static str) -> impl Iterator<Item = &'static str> {
    name.match_indices('.').map(move |(at, _)| &name[..at])
}

fn line_of(text: &str, offset: usize) -> usize {
    text.get(..offset).unwrap_or(text).matches('\n').count() + 1
}
