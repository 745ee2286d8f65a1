//! Where a plan's launch shapes come from.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex};

use anabranch_ranks::digest;

use super::{LaunchKey, LaunchTable, Launches};
use crate::lock::lock;
use crate::plan::EpConfig;

/// The source of the launch shapes that the configuration does not set; numbers of [`EpConfig::launch`] override all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LaunchChoice {
    /// The plan's arithmetic, for a plan without a device.
    #[default]
    Plan,
    /// The configuration has both numbers.
    Configured,
    /// An entry of a table.
    Table {
        /// The table's device.
        device: String,
        /// The entry.
        launches: Arc<Launches>,
    },
    /// The plan's arithmetic, because nothing was measured for the device or the rows.
    Missing {
        /// The device.
        device: String,
        /// The key without an entry.
        key: LaunchKey,
        /// The device of the searched table; `None` where the device has no table.
        table: Option<String>,
    },
}

impl LaunchChoice {
    /// The choice for a device of this name, from the configuration's table or this crate's table for the device. A table of
    /// another device does not apply.
    pub fn new(config: &EpConfig, ranks: u32, device: &str) -> Self {
        if config.max_blocks != 0 && config.waves_per_block != 0 {
            return Self::Configured;
        }
        let key = LaunchKey::new(config, ranks);
        let table = table_of(config, device);
        match entry(table.as_deref(), &key, device) {
            Some(launches) => Self::Table { device: device.to_owned(), launches: Arc::new(launches.clone()) },
            None => Self::Missing {
                device: device.to_owned(),
                key,
                table: table.map(|table| table.device.clone()),
            },
        }
    }

    /// What was measured, if a table has it.
    pub fn launches(&self) -> Option<&Launches> {
        match self {
            Self::Table { launches, .. } => Some(launches),
            _ => None,
        }
    }

    /// One word for reports.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Configured => "configured",
            Self::Table { .. } => "table",
            Self::Plan | Self::Missing { .. } => "default",
        }
    }

    /// Logs that no entry was found, once per process for each device and key.
    pub(crate) fn report(&self) {
        static LOGGED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
        if let Self::Missing { .. } = self
            && lock(&LOGGED).insert(self.to_string())
        {
            tracing::warn!("{self}. `anabranch tune ep` measures and writes a table, which ep.table names");
        }
    }
}

/// The configuration's table, or this crate's for the device.
fn table_of(config: &EpConfig, device: &str) -> Option<Arc<LaunchTable>> {
    config.table.clone().or_else(|| LaunchTable::embedded(device))
}

/// The table's entry for exactly this key.
fn entry<'a>(table: Option<&'a LaunchTable>, key: &LaunchKey, device: &str) -> Option<&'a Launches> {
    table.filter(|table| table.device == device)?.find(key)
}

/// The value that members compare: the device, and a hash of the table's entry for the plan, even if the configuration overrides it.
pub(crate) fn compared(config: &EpConfig, ranks: u32, device: &str) -> String {
    let (table, key) = (table_of(config, device), LaunchKey::new(config, ranks));
    let text = |launches: &Launches| format!("{device} {:016x}", digest(launches.to_string().as_bytes()));
    entry(table.as_deref(), &key, device).map_or_else(|| "none".to_owned(), text)
}

impl fmt::Display for LaunchChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plan => f.write_str("launches are shaped by the plan's defaults"),
            Self::Configured => f.write_str("launches are shaped by the configuration"),
            Self::Table { device, launches } => {
                write!(f, "launches are shaped by the table of {device:?} for {}", launches.key())
            }
            Self::Missing { device, key, table: None } => {
                write!(f, "no launches were measured on {device:?}; those for {key} are shaped by default")
            }
            Self::Missing { device, key, table: Some(other) } if other == device => {
                write!(f, "the table of {device:?} has no launches for {key}; they are shaped by default")
            }
            Self::Missing { device, key, table: Some(other) } => write!(
                f,
                "the table given is of {other:?} and not of {device:?}; launches for {key} are shaped by default"
            ),
        }
    }
}
