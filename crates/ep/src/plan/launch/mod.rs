//! Tables of measured launch shapes: for each group size, row types, row length and top-k, the fastest shapes of dispatch and combine
//! by number of tokens. `anabranch tune ep` measures and writes tables, and this crate contains some. A plan uses the entry for exactly
//! its rows, or none.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Deserializer};

use crate::error::{Error, Result};
use crate::options::CombineCodec;
use crate::plan::{EpConfig, MAX_TOP_K};
use crate::tensor::{COMBINED_TYPES, ROW_TYPES};
use anabranch_elements::data_type::DataType;

mod choice;

pub use choice::LaunchChoice;
pub(crate) use choice::compared;

/// Most waves of a block that a table or a configuration may ask for.
pub(crate) const MAX_WAVES: u32 = 16;

/// The operations that tables have launch shapes for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LaunchOperation {
    /// Dispatch, and the count before it.
    Dispatch,
    /// Combine from the window.
    CombinePull,
    /// Combine from a buffer.
    CombinePush,
}

impl LaunchOperation {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Dispatch, Self::CombinePull, Self::CombinePush];

    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dispatch => "dispatch",
            Self::CombinePull => "combine_pull",
            Self::CombinePush => "combine_push",
        }
    }
}

impl fmt::Display for LaunchOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Limits of a launch, from which the plan computes blocks, parts and segments for the tokens of the call and the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Launch {
    /// Most blocks of the grid.
    pub max_blocks: u32,
    /// Waves of a block, 1 to 16.
    pub waves_per_block: u32,
    /// Most waves that share a row.
    pub segments: u32,
}

/// The launch up to a number of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchStep {
    /// The step's most tokens of this rank in the call; `None` in the last step.
    #[serde(default)]
    pub up_to: Option<u32>,
    /// [`Launch::max_blocks`].
    pub max_blocks: u32,
    /// [`Launch::waves_per_block`].
    pub waves_per_block: u32,
    /// [`Launch::segments`].
    pub segments: u32,
}

impl LaunchStep {
    /// Without its tokens.
    pub const fn launch(&self) -> Launch {
        let Self { max_blocks, waves_per_block, segments, .. } = *self;
        Launch { max_blocks, waves_per_block, segments }
    }
}

/// The key of measured launches in a table. It does not include the mode, casts, combined weights, device token counts and masks: plans
/// with them use the launches that were measured without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaunchKey {
    /// Ranks of the group.
    pub ranks: u32,
    /// Type of the rows that dispatch sends.
    pub dispatch_type: DataType,
    /// Type of the rows that combine sums.
    pub combine_type: DataType,
    /// Encoding of the rows that combine pushes.
    pub combine_codec: CombineCodec,
    /// Elements of a row.
    pub hidden: u32,
    /// Experts per token.
    pub top_k: u32,
}

impl LaunchKey {
    /// Of a plan with this configuration for a group of `ranks`.
    pub fn new(config: &EpConfig, ranks: u32) -> Self {
        Self {
            ranks,
            dispatch_type: config.dispatch_type,
            combine_type: config.combine_type,
            combine_codec: config.combine_codec,
            hidden: config.hidden,
            top_k: config.top_k,
        }
    }
}

impl fmt::Display for LaunchKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ranks, dispatch_type, combine_type, combine_codec, hidden, top_k } = self;
        write!(f, "{ranks} ranks, {dispatch_type} to {combine_type}, hidden {hidden}, top-k {top_k}")?;
        match combine_codec {
            CombineCodec::None => Ok(()),
            codec => write!(f, ", codec {codec}"),
        }
    }
}

/// The launches that were measured for one key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Launches {
    /// [`LaunchKey::ranks`].
    pub ranks: u32,
    /// [`LaunchKey::dispatch_type`].
    #[serde(deserialize_with = "word")]
    pub dispatch_type: DataType,
    /// [`LaunchKey::combine_type`].
    #[serde(deserialize_with = "word")]
    pub combine_type: DataType,
    /// [`LaunchKey::combine_codec`].
    #[serde(default = "no_codec", deserialize_with = "word")]
    pub combine_codec: CombineCodec,
    /// [`LaunchKey::hidden`].
    pub hidden: u32,
    /// [`LaunchKey::top_k`].
    pub top_k: u32,
    /// Steps of dispatch, ascending by tokens. For an operation without steps the plan chooses.
    #[serde(default)]
    pub dispatch: Vec<LaunchStep>,
    /// Steps of the combine that pulls.
    #[serde(default)]
    pub combine_pull: Vec<LaunchStep>,
    /// Steps of the combine that pushes.
    #[serde(default)]
    pub combine_push: Vec<LaunchStep>,
}

/// A name in a table.
fn word<'de, D: Deserializer<'de>, T: FromStr<Err: fmt::Display>>(deserializer: D) -> Result<T, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

const fn no_codec() -> CombineCodec {
    CombineCodec::None
}

impl Launches {
    /// Launches without any steps.
    pub const fn new(key: LaunchKey) -> Self {
        let LaunchKey { ranks, dispatch_type, combine_type, combine_codec, hidden, top_k } = key;
        Self {
            ranks,
            dispatch_type,
            combine_type,
            combine_codec,
            hidden,
            top_k,
            dispatch: Vec::new(),
            combine_pull: Vec::new(),
            combine_push: Vec::new(),
        }
    }

    /// The key.
    pub const fn key(&self) -> LaunchKey {
        let Self { ranks, dispatch_type, combine_type, combine_codec, hidden, top_k, .. } = *self;
        LaunchKey { ranks, dispatch_type, combine_type, combine_codec, hidden, top_k }
    }

    /// The steps of an operation.
    pub fn steps(&self, operation: LaunchOperation) -> &[LaunchStep] {
        match operation {
            LaunchOperation::Dispatch => &self.dispatch,
            LaunchOperation::CombinePull => &self.combine_pull,
            LaunchOperation::CombinePush => &self.combine_push,
        }
    }

    /// The launch of an operation on `tokens` of this rank: the first step that covers them. `None` where the operation was not
    /// measured.
    pub fn launch(&self, operation: LaunchOperation, tokens: u32) -> Option<Launch> {
        let steps = self.steps(operation);
        let step = steps.iter().find(|step| step.up_to.is_none_or(|up_to| tokens <= up_to));
        step.map(LaunchStep::launch)
    }

    /// All launches for calls of up to `max_tokens`.
    pub(crate) fn launches_up_to(&self, max_tokens: u32) -> impl Iterator<Item = Launch> {
        LaunchOperation::ALL.into_iter().flat_map(move |operation| {
            let steps = self.steps(operation);
            let last = steps.iter().position(|step| step.up_to.is_none_or(|up_to| max_tokens <= up_to));
            steps.iter().take(last.map_or(0, |last| last + 1)).map(LaunchStep::launch)
        })
    }

    fn check(&self) -> Result<(), String> {
        let key = self.key();
        let wrong = |problem: String| Err(format!("{key}: {problem}"));
        if self.ranks == 0 || self.hidden == 0 || !(1..=MAX_TOP_K).contains(&self.top_k) {
            return wrong(format!("ranks and hidden are at least 1, top_k is 1 to {MAX_TOP_K}"));
        }
        if !ROW_TYPES.contains(&self.dispatch_type) {
            return wrong(format!("{} is no type that dispatch sends", self.dispatch_type));
        }
        if !COMBINED_TYPES.contains(&self.combine_type) {
            return wrong(format!("{} is no type that combine sums", self.combine_type));
        }
        if self.combine_codec != CombineCodec::None && !self.combine_pull.is_empty() {
            return wrong(format!("rows of the codec {} are not pulled", self.combine_codec));
        }
        if LaunchOperation::ALL.iter().all(|operation| self.steps(*operation).is_empty()) {
            return wrong("no steps".to_owned());
        }
        for operation in LaunchOperation::ALL {
            check_steps(self.steps(operation)).or_else(|problem| wrong(format!("{operation}: {problem}")))?;
        }
        Ok(())
    }
}

fn check_steps(steps: &[LaunchStep]) -> Result<(), String> {
    let Some((last, others)) = steps.split_last() else { return Ok(()) };
    if last.up_to.is_some() {
        return Err("the last step has an up_to, and more tokens have no step".to_owned());
    }
    let mut below = 0;
    for step in others {
        let Some(up_to) = step.up_to else {
            return Err("a step that is not the last has no up_to".to_owned());
        };
        if up_to <= below {
            return Err(format!("up_to = {up_to} after {below}; numbers of tokens ascend"));
        }
        below = up_to;
    }
    for LaunchStep { max_blocks, waves_per_block, segments, .. } in steps {
        if *max_blocks == 0 || *segments == 0 || !(1..=MAX_WAVES).contains(waves_per_block) {
            return Err(format!(
                "max_blocks = {max_blocks}, waves_per_block = {waves_per_block}, segments = {segments}: blocks and segments are at \
                 least 1, waves 1 to {MAX_WAVES}"
            ));
        }
    }
    Ok(())
}

/// The measured launches of one device model.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchTable {
    /// The device's name, as its runtime reports it.
    pub device: String,
    /// The entries, one per key.
    #[serde(default)]
    pub launches: Vec<Launches>,
}

/// The tables of this crate.
static EMBEDDED: LazyLock<Vec<Arc<LaunchTable>>> = LazyLock::new(|| {
    let texts = [
        include_str!("../../../tables/host.toml"),
        include_str!("../../../tables/nvidia-h100.toml"),
        include_str!("../../../tables/nvidia-h200.toml"),
    ];
    // That they can be read is a test.
    texts.iter().filter_map(|text| LaunchTable::parse(text).ok()).map(Arc::new).collect()
});

impl LaunchTable {
    /// The table of this crate for a device of this name.
    pub fn embedded(device: &str) -> Option<Arc<Self>> {
        EMBEDDED.iter().find(|table| table.device == device).cloned()
    }

    /// Reads a file that `anabranch tune ep` wrote.
    ///
    /// # Errors
    /// [`Error::File`]: no such file, or an error of [`Self::parse`].
    pub fn read(path: &Path) -> Result<Self> {
        let refuse = |problem| Error::File { what: "table of launches", path: path.to_owned(), problem };
        let text = std::fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
        Self::parse(&text).map_err(refuse)
    }

    /// Reads a table.
    ///
    /// # Errors
    /// The problem as text: not TOML of this form, steps out of order, values out of range, a key twice.
    pub fn parse(text: &str) -> Result<Self, String> {
        let table: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        for (index, launches) in table.launches.iter().enumerate() {
            launches.check()?;
            if table.launches[..index].iter().any(|other| other.key() == launches.key()) {
                return Err(format!("{}: given twice", launches.key()));
            }
        }
        Ok(table)
    }

    /// The entry for exactly this key.
    pub fn find(&self, key: &LaunchKey) -> Option<&Launches> {
        self.launches.iter().find(|launches| launches.key() == *key)
    }

    /// Adds an entry, or replaces the entry of the same key.
    pub fn put(&mut self, launches: Launches) {
        match self.launches.iter_mut().find(|other| other.key() == launches.key()) {
            Some(other) => *other = launches,
            None => self.launches.push(launches),
        }
    }
}

/// As [`LaunchTable::parse`] reads it.
impl fmt::Display for LaunchTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "device = {}", toml::Value::from(self.device.as_str()))?;
        self.launches.iter().try_for_each(|launches| write!(f, "\n{launches}"))
    }
}

impl fmt::Display for Launches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LaunchKey { ranks, dispatch_type, combine_type, combine_codec, hidden, top_k } = self.key();
        writeln!(f, "[[launches]]\nranks = {ranks}")?;
        writeln!(f, "dispatch_type = \"{dispatch_type}\"\ncombine_type = \"{combine_type}\"")?;
        if combine_codec != CombineCodec::None {
            writeln!(f, "combine_codec = \"{combine_codec}\"")?;
        }
        writeln!(f, "hidden = {hidden}\ntop_k = {top_k}")?;
        for operation in LaunchOperation::ALL {
            let steps = self.steps(operation);
            if steps.is_empty() {
                continue;
            }
            writeln!(f, "{operation} = [")?;
            for LaunchStep { up_to, max_blocks, waves_per_block, segments } in steps {
                let up_to = up_to.map_or_else(String::new, |tokens| format!("up_to = {tokens}, "));
                writeln!(
                    f,
                    "    {{ {up_to}max_blocks = {max_blocks}, waves_per_block = {waves_per_block}, segments = {segments} }},"
                )?;
            }
            writeln!(f, "]")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
