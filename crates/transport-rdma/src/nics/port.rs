//! A port of a NIC as the kernel describes it.

use core::fmt;

use serde::{Deserialize, Serialize};

use super::gid::Gid;

/// Whether a port can carry messages (`ib_port_state`; the file holds `4: ACTIVE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortState {
    /// No link.
    Down,
    /// A link, not configured yet (InfiniBand without a subnet manager stays here).
    Initialising,
    /// Configured, not in use yet.
    Armed,
    /// Carries messages.
    Active,
    /// Active until a moment ago; the link may come back.
    Deferred,
}

impl PortState {
    /// The state of a number.
    pub(super) fn of(number: u32) -> Option<Self> {
        Some(match number {
            1 => Self::Down,
            2 => Self::Initialising,
            3 => Self::Armed,
            4 => Self::Active,
            5 => Self::Deferred,
            _ => return None,
        })
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Down => "DOWN",
            Self::Initialising => "INIT",
            Self::Armed => "ARMED",
            Self::Active => "ACTIVE",
            Self::Deferred => "ACTIVE_DEFER",
        })
    }
}

/// What a port's wire is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LinkLayer {
    /// InfiniBand.
    Infiniband,
    /// Ethernet: RoCE.
    Ethernet,
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Infiniband => "InfiniBand",
            Self::Ethernet => "Ethernet",
        })
    }
}

/// A port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its number, from 1 on.
    pub number: u32,
    /// Whether it carries messages.
    pub state: PortState,
    /// What the physical layer does (`LinkUp`, `Polling`, `Disabled`), for people. Empty if the kernel does not say.
    pub physical_state: String,
    /// What its wire is.
    pub link_layer: LinkLayer,
    /// Rate in megabits a second; 0 if the kernel does not say.
    pub rate_mbps: u32,
    /// InfiniBand: the local identifier. 0 on Ethernet.
    pub lid: u16,
    /// Network interfaces behind it, each once, in the order of its addresses.
    pub interfaces: Vec<String>,
    /// Its addresses, empty places left out.
    pub gids: Vec<Gid>,
}

impl fmt::Display for Port {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "port {}, {}, {}", self.number, self.link_layer, self.state)?;
        if self.rate_mbps > 0 {
            write!(out, ", {} Gb/s", f64::from(self.rate_mbps) / 1000.0)?;
        }
        if !self.interfaces.is_empty() {
            write!(out, ", {}", self.interfaces.join(" and "))?;
        }
        Ok(())
    }
}
