//! Link speeds that were set.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{DeviceLinks, LinkSpeeds};

/// The speeds that were set (`[links]`); the others come from the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LinkSettings {
    /// [`LinkSpeeds::inside_gb_per_s`].
    pub inside_gb_per_s: Option<f64>,
    /// [`LinkSpeeds::inside_hop_us`].
    pub inside_hop_us: Option<f64>,
    /// [`LinkSpeeds::nic_gb_per_s`].
    pub nic_gb_per_s: Option<f64>,
    /// [`LinkSpeeds::nic_hop_us`].
    pub nic_hop_us: Option<f64>,
    /// [`LinkSpeeds::nic_message_us`].
    pub nic_message_us: Option<f64>,
    /// [`LinkSpeeds::launch_us`].
    pub launch_us: Option<f64>,
}

/// A speed that no link can have.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("links.{name} = {given}; allowed are {allowed}")]
pub struct UnknownSpeed {
    /// The key.
    pub name: &'static str,
    /// The number given.
    pub given: f64,
    /// What may be given.
    pub allowed: &'static str,
}

impl LinkSettings {
    /// Each key of `[links]` with what was set.
    pub const fn values(&self) -> [(&'static str, Option<f64>); 6] {
        [
            ("inside_gb_per_s", self.inside_gb_per_s),
            ("inside_hop_us", self.inside_hop_us),
            ("nic_gb_per_s", self.nic_gb_per_s),
            ("nic_hop_us", self.nic_hop_us),
            ("nic_message_us", self.nic_message_us),
            ("launch_us", self.launch_us),
        ]
    }

    /// Checks every number: rates above 0, times not below 0, all finite.
    ///
    /// # Errors
    /// The first that is not so.
    pub fn check(&self) -> Result<(), UnknownSpeed> {
        for (name, given) in self.values() {
            let Some(given) = given else { continue };
            let (is_allowed, allowed) = if name.ends_with("gb_per_s") {
                (given.is_finite() && given > 0.0, "finite numbers above 0, in GB/s")
            } else {
                (given.is_finite() && given >= 0.0, "finite numbers not below 0, in microseconds")
            };
            if !is_allowed {
                return Err(UnknownSpeed { name, given, allowed });
            }
        }
        Ok(())
    }

    /// With the speeds of a device of this architecture where nothing was set.
    pub fn on(&self, architecture: &str) -> LinkSpeeds {
        let known = DeviceLinks::of(architecture).speeds();
        LinkSpeeds {
            inside_gb_per_s: self.inside_gb_per_s.unwrap_or(known.inside_gb_per_s),
            inside_hop_us: self.inside_hop_us.unwrap_or(known.inside_hop_us),
            nic_gb_per_s: self.nic_gb_per_s.unwrap_or(known.nic_gb_per_s),
            nic_hop_us: self.nic_hop_us.unwrap_or(known.nic_hop_us),
            nic_message_us: self.nic_message_us.unwrap_or(known.nic_message_us),
            launch_us: self.launch_us.unwrap_or(known.launch_us),
        }
    }
}

impl From<LinkSpeeds> for LinkSettings {
    fn from(speeds: LinkSpeeds) -> Self {
        Self {
            inside_gb_per_s: Some(speeds.inside_gb_per_s),
            inside_hop_us: Some(speeds.inside_hop_us),
            nic_gb_per_s: Some(speeds.nic_gb_per_s),
            nic_hop_us: Some(speeds.nic_hop_us),
            nic_message_us: Some(speeds.nic_message_us),
            launch_us: Some(speeds.launch_us),
        }
    }
}

/// `inside_gb_per_s = 339, ...`: what was set, and `of the device` for nothing.
impl fmt::Display for LinkSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = self.values().into_iter().filter_map(|(name, value)| Some(format!("{name} = {}", value?)));
        let set: Vec<_> = set.collect();
        f.write_str(if set.is_empty() { "of the device" } else { "" })?;
        f.write_str(&set.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_set_is_the_devices() {
        let set = LinkSettings { nic_gb_per_s: Some(25.0), ..LinkSettings::default() };
        let speeds = set.on("gfx942:xnack-");
        assert_eq!(speeds, LinkSpeeds { nic_gb_per_s: 25.0, ..DeviceLinks::of("gfx942").speeds() });
        assert_eq!(LinkSettings::from(speeds).on("sm_90"), speeds);
        assert_eq!(set.to_string(), "nic_gb_per_s = 25");
        assert_eq!(LinkSettings::default().to_string(), "of the device");
    }

    #[test]
    fn speeds_that_no_link_has_are_refused() {
        assert_eq!(LinkSettings::from(LinkSpeeds::default()).check(), Ok(()));
        for given in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let error = LinkSettings { inside_gb_per_s: Some(given), ..LinkSettings::default() }.check();
            let text = error.unwrap_err().to_string();
            assert!(text.contains("links.inside_gb_per_s") && text.contains("above 0"), "{text}");
        }
        assert_eq!(LinkSettings { nic_hop_us: Some(0.0), ..LinkSettings::default() }.check(), Ok(()));
        let negative = LinkSettings { nic_hop_us: Some(-0.1), ..LinkSettings::default() };
        assert!(negative.check().unwrap_err().to_string().contains("links.nic_hop_us = -0.1"));
    }
}
