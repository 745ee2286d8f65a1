//! Link speeds by device, for what `[links]` does not set.

use super::LinkSpeeds;

/// How good a number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Measured, on this.
    Measured(&'static str),
    /// Assumed, for this reason.
    Assumed(&'static str),
}

impl Source {
    /// `measured` or `assumed`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Measured(_) => "measured",
            Self::Assumed(_) => "assumed",
        }
    }

    /// On what it was measured, or why it is assumed.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Measured(reason) | Self::Assumed(reason) => reason,
        }
    }
}

/// The link speeds of one kind of device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceLinks {
    /// The architecture, as the runtime names it without features (`sm_90`, `gfx942`, `host`); empty for every other one.
    pub architecture: &'static str,
    /// [`LinkSpeeds::inside_gb_per_s`].
    pub inside_gb_per_s: f64,
    /// Source of the rate inside a node.
    pub inside: Source,
    /// Source of the flag's latency and of the launch.
    pub latency: Source,
}

/// Source of everything about NICs, on which nothing was measured.
pub(super) const NIC: Source = Source::Assumed(
    "a port of 400 Gbit/s, nominal; a write through two NICs and a switch; ten million requests a second",
);

/// The share of NVLink's nominal rate that stores reached on H200 (339 of 450 GB/s), of other links' nominal rates.
const H200_SHARE: &str = "three quarters of the nominal rate, as measured on H200";
const AS_H200: Source = Source::Assumed("as on H200");

const fn assumed(architecture: &'static str, inside_gb_per_s: f64, reason: &'static str) -> DeviceLinks {
    DeviceLinks { architecture, inside_gb_per_s, inside: Source::Assumed(reason), latency: AS_H200 }
}

impl DeviceLinks {
    /// All kinds, the unknown one last.
    pub const ALL: [Self; 8] = [
        // Plain stores of each rank to all others at once, 64 MiB a peer; a flag from one to another, one way; the launch in a dispatch.
        Self {
            architecture: "sm_90",
            inside_gb_per_s: 339.0,
            inside: Source::Measured("four H200, docs/performance.md"),
            latency: Source::Measured("H200, docs/performance.md"),
        },
        // NVLink 3: 300 GB/s in each direction.
        assumed("sm_80", 225.0, H200_SHARE),
        // NVLink 5: 900 GB/s.
        assumed("sm_100", 675.0, H200_SHARE),
        assumed("sm_103", 675.0, H200_SHARE),
        // Seven links of 64 GB/s, and of 76.8 GB/s.
        assumed("gfx942", 336.0, H200_SHARE),
        assumed("gfx950", 403.0, H200_SHARE),
        assumed("host", 339.0, "as on H200, so that trials without GPUs take the same routes"),
        assumed("", 339.0, "as on H200"),
    ];

    /// That of an architecture, whose features (`gfx942:xnack-`) do not matter.
    pub fn of(architecture: &str) -> Self {
        let base = architecture.split(':').next().unwrap_or(architecture);
        let [.., unknown] = Self::ALL;
        Self::ALL.into_iter().find(|known| known.architecture == base).unwrap_or(unknown)
    }

    /// Its speeds, with a NIC's.
    pub const fn speeds(&self) -> LinkSpeeds {
        LinkSpeeds {
            inside_gb_per_s: self.inside_gb_per_s,
            inside_hop_us: 0.64,
            nic_gb_per_s: 50.0,
            nic_hop_us: 2.0,
            nic_message_us: 0.1,
            launch_us: 1.4,
        }
    }

    /// The source of each of [`LinkSettings::values`](crate::LinkSettings::values).
    pub const fn sources(&self) -> [Source; 6] {
        [self.inside, self.latency, NIC, NIC, NIC, self.latency]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_found_without_their_features() {
        assert_eq!(DeviceLinks::of("gfx942:sramecc+:xnack-").architecture, "gfx942");
        assert_eq!(DeviceLinks::of("host:wave32").architecture, "host");
        assert_eq!(DeviceLinks::of("sm_90").inside.name(), "measured");
        assert_eq!(DeviceLinks::of("sm_75"), DeviceLinks::of(""));
        assert_eq!(DeviceLinks::of("sm_75").inside.name(), "assumed");
    }
}
