//! The table of all settings, and the macro that declares them.

use std::fmt::Write as _;

use anabranch_transport::limits::Limits;

use super::Config;
use super::units::ByteSize;
use super::value::{Leaf, SettingKind};

/// One setting.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Setting {
    /// The dotted key, `heap.bytes`.
    pub name: &'static str,
    /// What its value looks like.
    pub kind: SettingKind,
    /// What its absence means, for settings without a default value; empty for the others.
    pub unset: &'static str,
    /// Whether all ranks of a world must have the same value.
    pub shared: bool,
    /// Whether its value is a secret, of which only is shown whether it is set.
    pub secret: bool,
    /// The numbers that it may have, where its transport states them.
    pub limits: Option<Limits>,
    /// What it does.
    pub help: &'static str,
    pub(super) access: Access,
}

/// A setting's field.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    /// Its value, if it is set.
    pub(super) get: fn(&Config) -> Option<toml::Value>,
    /// Sets it.
    pub(super) set: fn(&mut Config, toml::Value) -> Result<(), String>,
    /// Whether it is within the range that it is declared with.
    pub(super) check: fn(&Config) -> Result<(), String>,
    /// That range; `None` for a setting that is declared without one.
    pub(super) range: fn() -> Option<String>,
}

impl Setting {
    /// Its value in a configuration, if it has one.
    pub fn value(&self, config: &Config) -> Option<toml::Value> {
        (self.access.get)(config)
    }

    /// The default as TOML, or what absence means.
    pub fn default_text(&self) -> String {
        let default = self.value(&Config::default());
        default.map_or_else(|| self.unset.to_owned(), |value| value.to_string())
    }

    /// The environment variable that sets it.
    pub fn variable(&self) -> String {
        format!("{VARIABLE_PREFIX}{}", self.name.replace('.', "__").to_ascii_uppercase())
    }

    /// Whether its value is within the range that it is declared with.
    pub(crate) fn check(&self, config: &Config) -> Result<(), String> {
        (self.access.check)(config)?;
        let (Some(limits), Some(value)) = (self.limits, self.value(config)) else { return Ok(()) };
        let number = match &value {
            toml::Value::Integer(number) => u64::try_from(*number).ok(),
            size => size.as_str().and_then(|text| text.parse::<ByteSize>().ok()).map(ByteSize::bytes),
        };
        let is_allowed = number.is_some_and(|number| limits.allows(number));
        is_allowed.then_some(()).ok_or_else(|| format!("is {value}; allowed is {limits}"))
    }

    pub(super) const fn new<T: Leaf>(name: &'static str, help: &'static str, access: Access) -> Self {
        let help = help.trim_ascii_start();
        Self { name, kind: T::KIND, unset: "", shared: false, secret: false, limits: None, help, access }
    }
}

/// Environment variables that are settings begin with this.
pub(crate) const VARIABLE_PREFIX: &str = "ANABRANCH__";

/// Makes of each table a struct with its `Default`, and of all of them [`SETTINGS`](super::SETTINGS).
macro_rules! settings {
    ($(
        $(#[doc = $doc:literal])+
        $path:tt $Table:ident {
            $(
                $(#[doc = $help:literal])+
                $field:ident $(($($flag:ident),+))?: $Type:ty
                $(= $default:expr)? $(=> $unset:literal)? $(, within $range:expr)? $(, limits $limits:expr)?;
            )+
            $(table $inner:ident: $Inner:ty;)*
        }
    )+) => {
        $(
            $(#[doc = $doc])+
            #[derive(Clone, Debug, PartialEq)]
            #[non_exhaustive]
            pub struct $Table {
                $(
                    $(#[doc = $help])+
                    $(#[doc = concat!("\n\n`None`: ", $unset, ".")])?
                    pub $field: $Type,
                )+
                $(
                    #[doc = concat!("`[", $crate::config::table::key!($path $inner), "]`.")]
                    pub $inner: $Inner,
                )*
            }

            impl Default for $Table {
                fn default() -> Self {
                    Self {
                        $($field: $crate::config::table::or_none!($($default)?),)+
                        $($inner: <$Inner>::default(),)*
                    }
                }
            }
        )+

        /// All settings, in the order of the documentation.
        pub static SETTINGS: &[$crate::config::Setting] = {
            use $crate::config::table::{Access, Setting, field, key, range, within};
            use $crate::config::value::Leaf;
            &[$($(
                Setting {
                    $($($flag: true,)+)?
                    $(unset: $unset,)?
                    $(limits: Some($limits),)?
                    ..Setting::new::<$Type>(
                        key!($path $field),
                        concat!($($help),+),
                        Access {
                            get: |config| Leaf::get(&field!(config $path $field)),
                            set: |config, value| Leaf::set(&mut field!(config $path $field), value),
                            check: |config| within!(field!(config $path $field) $(, $range)?),
                            range: || range!($($range)?),
                        },
                    )
                },
            )+)+]
        };
    };
}

macro_rules! key {
    ([$($path:ident).+] $field:ident) => { concat!($(stringify!($path), ".",)+ stringify!($field)) };
}

macro_rules! field {
    ($config:ident [$($path:ident).+] $field:ident) => { $config$(.$path)+.$field };
}

macro_rules! or_none {
    () => {
        None
    };
    ($default:expr) => {
        $default
    };
}

macro_rules! within {
    ($field:expr) => {{
        let _ = &$field;
        Ok(())
    }};
    ($field:expr, $range:expr) => {
        $crate::config::value::within($field, $range)
    };
}

macro_rules! range {
    () => {
        None
    };
    ($range:expr) => {
        Some($crate::config::value::range_text(&$range))
    };
}

pub(super) use {field, key, or_none, range, settings, within};

/// The setting of a dotted key.
pub fn setting_named(name: &str) -> Option<&'static Setting> {
    super::SETTINGS.iter().find(|setting| setting.name == name)
}

/// Whether a dotted key is a table that settings live in.
pub(crate) fn is_table(name: &str) -> bool {
    let is_within =
        |setting: &Setting| setting.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
    // Peer memory has no settings.
    name == "transport.p2p" || super::SETTINGS.iter().any(is_within)
}

/// The table of all settings as Markdown, for `docs/configuration.md`.
pub fn settings_markdown() -> String {
    let mut text =
        String::from("| setting | value | default | same on all ranks | meaning |\n|---|---|---|---|---|\n");
    for setting in super::SETTINGS {
        let default = if setting.unset.is_empty() {
            format!("`{}`", setting.default_text())
        } else {
            setting.unset.to_owned()
        };
        let shared = if setting.shared { "yes" } else { "" };
        let limits = setting.limits.map(|limits| limits.to_string()).or_else(setting.access.range);
        let limits = limits.map_or_else(String::new, |limits| format!(", {limits}"));
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| `{}` | {}{limits} | {default} | {shared} | {} |",
            setting.name, setting.kind, setting.help
        );
    }
    text
}
