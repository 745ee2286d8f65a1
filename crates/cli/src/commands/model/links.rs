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
}

/// Speeds with their units; where all are from one place, that is said once.
fn text_of(speeds: &[(Speed, &str)]) -> String {
    let texts = |says: bool| {
        let text = |(Speed { value, origin }, unit): &(Speed, &str)| {
            if says { format!("{value} {unit} ({})", origin.name()) } else { format!("{value} {unit}") }
        };
        speeds.iter().map(text).collect::<Vec<_>>().join(", ")
    };
    let mut origins = speeds.iter().map(|(speed, _)| speed.origin);
    match origins.next() {
        Some(first) if origins.all(|origin| origin == first) => {
            format!("{} ({})", texts(false), first.name())
        }
        _ => texts(true),
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
        let inside = [(self.inside_gb_per_s, "GB/s"), (self.inside_hop_us, "us a hop")];
        let between = [
            (self.nic_gb_per_s, "GB/s"),
            (self.nic_hop_us, "us a hop"),
            (self.nic_message_us, "us a message"),
        ];
        [
            format!("a rank inside its node: {}", text_of(&inside)),
            format!("a rank's NIC: {}", text_of(&between)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: LinkArgs =
        LinkArgs { inside_rate: None, inside_hop: None, nic_rate: None, nic_hop: None, nic_message: None };

    #[test]
    fn what_was_not_measured_says_so() {
        let [inside, between] = NONE.links().lines();
        assert!(inside.ends_with("(measured on four H200)") && !inside.contains("assumed"), "{inside}");
        assert!(between.ends_with("(assumed, not measured)") && !between.contains("(measured"), "{between}");
        let [_, between] = LinkArgs { nic_hop: Some(3.5), ..NONE }.links().lines();
        assert!(between.contains("3.5 us a hop (given)"), "{between}");
        assert_eq!(between.matches("(assumed, not measured)").count(), 2, "{between}");
    }

    #[test]
    fn times_follow_from_the_speeds() {
        let given =
            LinkArgs { nic_rate: Some(25.0), inside_rate: Some(100.0), nic_message: Some(0.5), ..NONE };
        let links = given.links();
        for (us, expected) in [
            (links.between_us(1_000_000), 40.0),
            (links.inside_us(1_000_000), 10.0),
            (links.messages_us(8), 4.0),
            (links.hops_us(3, 0), 3.0 * NIC_HOP_US),
            (links.hops_us(0, 2), 2.0 * INSIDE_HOP_US),
        ] {
            assert!((us - expected).abs() < 1e-9, "{us} {expected}");
        }
    }

    #[test]
    fn speeds_that_cannot_be_are_refused() {
        for text in ["0", "-1", "nan", "inf", "fast", ""] {
            assert!(positive(text).is_err(), "{text}");
        }
        assert_eq!((positive("0.5"), not_negative("0")), (Ok(0.5), Ok(0.0)));
        assert!(not_negative("-0.1").is_err());
    }
}
