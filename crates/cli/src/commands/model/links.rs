//! The speeds that times follow from: measured ones, assumed ones, or those given.

use clap::Args;
use serde::Serialize;

/// Plain stores of four H200 to all others at once, 64 MiB a peer: docs/performance.md, "How cost grows".
const INSIDE_GB_PER_S: f64 = 339.0;
/// A flag from one H200 to another, one way; in the same place.
const INSIDE_HOP_US: f64 = 0.64;
/// A port of 400 Gbit/s, nominal. Nothing here was measured on a NIC.
const NIC_GB_PER_S: f64 = 50.0;
/// A write through two NICs and a switch, assumed.
const NIC_HOP_US: f64 = 2.0;
/// Between two requests of one NIC, assumed: ten million a second.
const NIC_MESSAGE_US: f64 = 0.1;

/// The flags of links.
#[derive(Clone, Debug, Args)]
pub(super) struct LinkArgs {
    /// GB/s (10^9 bytes a second) of a rank to all others of its node, in each direction [default: 339, measured on four H200].
    #[arg(long, value_name = "GB/S", value_parser = positive)]
    inside_rate: Option<f64>,
    /// Microseconds from a flag's store to where it is seen inside a node [default: 0.64, measured on H200].
    #[arg(long, value_name = "US", value_parser = not_negative)]
    inside_hop: Option<f64>,
    /// GB/s of a rank's NIC, in each direction [default: 50, assumed].
    #[arg(long, value_name = "GB/S", value_parser = positive)]
    nic_rate: Option<f64>,
    /// Microseconds from a request in a NIC's queue to where its bytes are seen at the peer [default: 2, assumed].
    #[arg(long, value_name = "US", value_parser = not_negative)]
    nic_hop: Option<f64>,
    /// Microseconds between two requests of one NIC [default: 0.1, assumed].
    #[arg(long, value_name = "US", value_parser = not_negative)]
    nic_message: Option<f64>,
}

fn number(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().map_err(|error| error.to_string())?;
    if number.is_finite() { Ok(number) } else { Err("it has to be finite".to_owned()) }
}

fn positive(text: &str) -> Result<f64, String> {
    let number = number(text)?;
    if number > 0.0 { Ok(number) } else { Err("it has to be above 0".to_owned()) }
}

fn not_negative(text: &str) -> Result<f64, String> {
    let number = number(text)?;
    if number >= 0.0 { Ok(number) } else { Err("it must not be below 0".to_owned()) }
}

/// Where a number is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum Origin {
    #[serde(rename = "measured on four H200")]
    Measured,
    #[serde(rename = "assumed, not measured")]
    Assumed,
    #[serde(rename = "given")]
    Given,
}

impl Origin {
    const fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured on four H200",
            Self::Assumed => "assumed, not measured",
            Self::Given => "given",
        }
    }
}

/// A speed, and where it is from.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Speed {
    pub(super) value: f64,
    pub(super) origin: Origin,
}

impl Speed {
    fn of(given: Option<f64>, value: f64, origin: Origin) -> Self {
        given.map_or(Self { value, origin }, |value| Self { value, origin: Origin::Given })
    }

    fn text(self, unit: &str) -> String {
        format!("{} {unit} ({})", self.value, self.origin.name())
    }
}

/// The links of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Links {
    pub(super) inside_gb_per_s: Speed,
    pub(super) inside_hop_us: Speed,
    pub(super) nic_gb_per_s: Speed,
    pub(super) nic_hop_us: Speed,
    pub(super) nic_message_us: Speed,
}

impl LinkArgs {
    /// As given, or by default.
    pub(super) fn links(&self) -> Links {
        Links {
            inside_gb_per_s: Speed::of(self.inside_rate, INSIDE_GB_PER_S, Origin::Measured),
            inside_hop_us: Speed::of(self.inside_hop, INSIDE_HOP_US, Origin::Measured),
            nic_gb_per_s: Speed::of(self.nic_rate, NIC_GB_PER_S, Origin::Assumed),
            nic_hop_us: Speed::of(self.nic_hop, NIC_HOP_US, Origin::Assumed),
            nic_message_us: Speed::of(self.nic_message, NIC_MESSAGE_US, Origin::Assumed),
        }
    }
}

impl Links {
    /// Microseconds that bytes take inside a node.
    pub(super) fn inside_us(&self, bytes: u64) -> f64 {
        bytes as f64 / self.inside_gb_per_s.value / 1e3
    }

    /// Microseconds that bytes take through a NIC.
    pub(super) fn between_us(&self, bytes: u64) -> f64 {
        bytes as f64 / self.nic_gb_per_s.value / 1e3
    }

    /// Microseconds that a NIC takes for requests, whatever is in them.
    pub(super) fn messages_us(&self, messages: u64) -> f64 {
        messages as f64 * self.nic_message_us.value
    }

    /// Microseconds of hops one after the other.
    pub(super) fn hops_us(&self, between: u32, inside: u32) -> f64 {
        f64::from(between) * self.nic_hop_us.value + f64::from(inside) * self.inside_hop_us.value
    }

    /// What they are, for people.
    pub(super) fn lines(&self) -> [String; 2] {
        [
            format!(
                "inside a node: {} a rank and direction, {} a hop",
                self.inside_gb_per_s.text("GB/s"),
                self.inside_hop_us.text("us")
            ),
            format!(
                "between nodes, a NIC a rank: {}, {} a hop, {} a message",
                self.nic_gb_per_s.text("GB/s"),
                self.nic_hop_us.text("us"),
                self.nic_message_us.text("us")
            ),
        ]
    }
}
