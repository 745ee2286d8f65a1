//! The link speeds of the model: measured, assumed, or given.

use anabranch_ranks::{DeviceLinks, LinkSpeeds};
use clap::Args;
use serde::Serialize;

/// The flags of links.
#[derive(Clone, Debug, Args)]
pub(super) struct LinkArgs {
    /// GB/s (10^9 bytes a second) of a rank to all others of its node, in each direction [default: 339, measured on H200].
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
    /// Microseconds of a kernel's launch [default: 1.4, measured on H200].
    #[arg(long, value_name = "US", value_parser = not_negative)]
    launch: Option<f64>,
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
    #[serde(rename = "measured on H200")]
    Measured,
    #[serde(rename = "assumed, not measured")]
    Assumed,
    #[serde(rename = "given")]
    Given,
}

impl Origin {
    const fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured on H200",
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
    pub(super) launch_us: Speed,
}

impl LinkArgs {
    /// As given, or by default.
    pub(super) fn links(&self) -> Links {
        let usual = DeviceLinks::of("sm_90").speeds();
        Links {
            inside_gb_per_s: Speed::of(self.inside_rate, usual.inside_gb_per_s, Origin::Measured),
            inside_hop_us: Speed::of(self.inside_hop, usual.inside_hop_us, Origin::Measured),
            nic_gb_per_s: Speed::of(self.nic_rate, usual.nic_gb_per_s, Origin::Assumed),
            nic_hop_us: Speed::of(self.nic_hop, usual.nic_hop_us, Origin::Assumed),
            nic_message_us: Speed::of(self.nic_message, usual.nic_message_us, Origin::Assumed),
            launch_us: Speed::of(self.launch, usual.launch_us, Origin::Measured),
        }
    }
}

impl Links {
    /// The numbers alone.
    pub(super) fn speeds(&self) -> LinkSpeeds {
        LinkSpeeds {
            inside_gb_per_s: self.inside_gb_per_s.value,
            inside_hop_us: self.inside_hop_us.value,
            nic_gb_per_s: self.nic_gb_per_s.value,
            nic_hop_us: self.nic_hop_us.value,
            nic_message_us: self.nic_message_us.value,
            launch_us: self.launch_us.value,
        }
    }

    /// What they are, for people.
    pub(super) fn lines(&self) -> [String; 2] {
        let inside = [
            (self.inside_gb_per_s, "GB/s"),
            (self.inside_hop_us, "us a hop"),
            (self.launch_us, "us a launch"),
        ];
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

    const NONE: LinkArgs = LinkArgs {
        inside_rate: None,
        inside_hop: None,
        nic_rate: None,
        nic_hop: None,
        nic_message: None,
        launch: None,
    };

    #[test]
    fn unmeasured_links_are_marked() {
        let [inside, between] = NONE.links().lines();
        assert!(inside.ends_with("(measured on H200)") && !inside.contains("assumed"), "{inside}");
        assert!(between.ends_with("(assumed, not measured)") && !between.contains("(measured"), "{between}");
        let [_, between] = LinkArgs { nic_hop: Some(3.5), ..NONE }.links().lines();
        assert!(between.contains("3.5 us a hop (given)"), "{between}");
        assert_eq!(between.matches("(assumed, not measured)").count(), 2, "{between}");
    }

    #[test]
    fn speeds_are_those_given() {
        assert_eq!(NONE.links().speeds(), LinkSpeeds::default());
        let given = LinkArgs { nic_rate: Some(25.0), launch: Some(3.0), ..NONE };
        let expected = LinkSpeeds { nic_gb_per_s: 25.0, launch_us: 3.0, ..LinkSpeeds::default() };
        assert_eq!(given.links().speeds(), expected);
    }

    #[test]
    fn invalid_speeds_are_refused() {
        for text in ["0", "-1", "nan", "inf", "fast", ""] {
            assert!(positive(text).is_err(), "{text}");
        }
        assert_eq!((positive("0.5"), not_negative("0")), (Ok(0.5), Ok(0.0)));
        assert!(not_negative("-0.1").is_err());
    }
}
