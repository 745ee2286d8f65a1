//! Tables of measured algorithms. For each collective, group size and kind of memory, a table lists the fastest algorithm by message size.
//! `anabranch tune` measures and writes tables. The crate embeds the tables in `tables/`.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};

use crate::types::{Algorithm, Collective, Error, Result, Shape};
use anabranch_ranks::digest;

/// The algorithm of messages up to a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The largest message of this step, in bytes as benchmarks count them ([`Shape::message_bytes`]). `None` in the last step of a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to: Option<u64>,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Bytes per block of the launch, of the message that each member sends.
    pub block_bytes: u64,
    /// [`Plan::phased`](crate::plan::Plan::phased).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub phased: bool,
}

/// The steps of one collective, group size and kind of memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choices {
    /// The collective.
    pub collective: Collective,
    /// Members of the group.
    pub members: u32,
    /// Whether input and output are symmetric or registered. Collectives without a reduction depend on the output only.
    pub reached: bool,
    /// Steps in ascending order of size.
    pub steps: Vec<Step>,
}

/// The measurements on one kind of device.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Name of the device, as its runtime reports it.
    pub device: String,
    /// All measurements.
    #[serde(default)]
    pub choices: Vec<Choices>,
}

/// The embedded tables.
static EMBEDDED: LazyLock<Vec<Arc<Table>>> = LazyLock::new(|| {
    let texts = [
        include_str!("../../tables/host.toml"),
        include_str!("../../tables/nvidia-h100.toml"),
        include_str!("../../tables/nvidia-h200.toml"),
    ];
    #[expect(clippy::expect_used, reason = "a test parses all of them")]
    let table = |text| Arc::new(Table::parse(text).expect("an embedded table parses"));
    texts.into_iter().map(table).collect()
});

impl Table {
    /// The embedded table for the device of this name; `None` if there is none.
    pub fn embedded(device: &str) -> Option<Arc<Self>> {
        EMBEDDED.iter().find(|table| table.device == device).cloned()
    }

    /// Reads a table file, as `anabranch tune` writes it.
    ///
    /// # Errors
    /// [`Error::Table`] if the file cannot be read or [`Self::parse`] fails.
    pub fn read(path: &Path) -> Result<Self> {
        let refuse = |problem| Error::Table { path: path.to_owned(), problem };
        let text = std::fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
        Self::parse(&text).map_err(refuse)
    }

    /// Parses a table.
    ///
    /// # Errors
    /// A description of the problem: not TOML of this form, steps out of order, or an algorithm that cannot run the collective.
    pub fn parse(text: &str) -> Result<Self, String> {
        let table: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        for (index, choices) in table.choices.iter().enumerate() {
            choices.check()?;
            let same = |other: &Choices| {
                (other.collective, other.members, other.reached)
                    == (choices.collective, choices.members, choices.reached)
            };
            if table.choices[..index].iter().any(same) {
                let Choices { collective, members, reached, .. } = choices;
                return Err(format!("{collective}, {members} members, reached = {reached}: given twice"));
            }
        }
        Ok(table)
    }

    /// Identifies the table: the name of the device and a digest of the contents.
    pub fn digest(&self) -> String {
        format!("{} {:016x}", self.device, digest(self.to_string().as_bytes()))
    }

    /// The step for a call of this shape, from the measurements of its collective, kind of memory and group size. If that group size was
    /// not measured, the next smaller measured size is used. `None` for groups larger than all measured ones, and if the step's algorithm
    /// cannot run the call.
    pub fn step(&self, shape: &Shape) -> Option<&Step> {
        // Without a reduction, members read only their own input.
        let input = !shape.collective.reduces() || shape.input.is_reached();
        let reached = input && shape.output.is_reached();
        let fitting = |of: &&Choices| {
            of.collective == shape.collective && of.reached == reached && !of.steps.is_empty()
        };
        let measured = || self.choices.iter().filter(fitting);
        let largest = measured().map(|of| of.members).max()?;
        let nearest = measured().filter(|of| of.members <= shape.members).max_by_key(|of| of.members)?;
        if shape.members > largest {
            return None;
        }
        let bytes = shape.message_bytes();
        let step = nearest.steps.iter().find(|step| step.up_to.is_none_or(|up_to| bytes <= up_to));
        step.filter(|step| step.algorithm.allows(shape).is_ok())
    }
}

/// The format that [`Table::parse`] reads.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "device = {}", toml::Value::from(self.device.as_str()))?;
        for Choices { collective, members, reached, steps } in &self.choices {
            writeln!(f, "\n[[choices]]\ncollective = \"{collective}\"\nmembers = {members}")?;
            writeln!(f, "reached = {reached}\nsteps = [")?;
            for Step { up_to, algorithm, block_bytes, phased } in steps {
                let up_to = up_to.map_or_else(String::new, |bytes| format!("up_to = {bytes}, "));
                let phased = if *phased { ", phased = true" } else { "" };
                writeln!(
                    f,
                    "    {{ {up_to}algorithm = \"{algorithm}\", block_bytes = {block_bytes}{phased} }},"
                )?;
            }
            writeln!(f, "]")?;
        }
        Ok(())
    }
}

impl Choices {
    fn check(&self) -> Result<(), String> {
        let Self { collective, members, reached, steps } = self;
        let place = format!("{collective}, {members} members, reached = {reached}");
        let Some((last, others)) = steps.split_last() else { return Err(format!("{place}: no steps")) };
        if last.up_to.is_some() {
            return Err(format!("{place}: the last step has an up_to, and larger messages have no step"));
        }
        let mut below = 0;
        for step in others {
            let Some(up_to) = step.up_to else {
                return Err(format!("{place}: a step that is not the last has no up_to"));
            };
            if up_to <= below {
                return Err(format!("{place}: up_to = {up_to} after {below}; sizes must ascend"));
            }
            below = up_to;
        }
        let location =
            if *reached { crate::types::LocationKind::Symmetric } else { crate::types::LocationKind::Local };
        let shape = Shape { input: location, output: location, ..Shape::of_bytes(*collective, *members, 1) };
        for step in steps {
            step.algorithm
                .allows(&shape)
                .map_err(|reason| format!("{place}: {} cannot do it: {reason}", step.algorithm))?;
            if step.block_bytes == 0 {
                return Err(format!("{place}: block_bytes = 0"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
