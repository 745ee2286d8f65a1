//! How far a NIC is from a GPU, by the way that their packets take on the PCI bus.

use core::fmt;

use super::pci::PciPath;

/// PCI bridges that two devices have in common: among devices at [`Distance::Bridges`], the more the nearer (some GPUs have a switch
/// of their own within, so that none is nearer than that).
pub(super) fn depth(one: &PciLocation, other: &PciLocation) -> usize {
    match (&one.path, &other.path) {
        (Some(from), Some(to)) if from.host_bridge() == to.host_bridge() => shared_bridges(from, to),
        _ => 0,
    }
}

fn shared_bridges(from: &PciPath, to: &PciPath) -> usize {
    from.bridges().iter().zip(to.bridges()).take_while(|(left, right)| left == right).count()
}

fn same_device(from: &PciPath, to: &PciPath) -> bool {
    let (one, other) = (from.address(), to.address());
    (one.domain, one.bus, one.device) == (other.domain, other.bus, other.device)
}

/// Where a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciLocation {
    /// The way to it, if it is on the PCI bus.
    pub path: Option<PciPath>,
    /// Its NUMA node, if the kernel says one.
    pub numa: Option<u32>,
}

/// How far two devices are from each other, near before far. In brackets the words of NCCL's and ROCm's topology listings for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Distance {
    /// Below the same PCI switch, or functions of one device: packets cross one switch at most (PIX).
    Switch,
    /// Below the same root port, by several switches: packets do not reach the host bridge (PXB).
    Bridges,
    /// By the same host bridge, or on the same NUMA node (PHB, NODE).
    Node,
    /// By the link between NUMA nodes, or the distance is unknown (SYS).
    System,
    /// One of the two is not on the PCI bus.
    Unknown,
}

impl Distance {
    /// Between two devices.
    pub fn between(one: &PciLocation, other: &PciLocation) -> Self {
        let (Some(from), Some(to)) = (&one.path, &other.path) else { return Self::Unknown };
        if from.host_bridge() == to.host_bridge() {
            let shared = shared_bridges(from, to);
            let below = (from.bridges().len() - shared).max(to.bridges().len() - shared);
            return match (shared, below) {
                _ if below == 0 && same_device(from, to) => Self::Switch,
                (0, _) => Self::Node,
                // The last bridge in common is the switch's upper port; each side has one lower port of it, or the device itself.
                (_, 0 | 1) => Self::Switch,
                _ => Self::Bridges,
            };
        }
        match (one.numa, other.numa) {
            (Some(one), Some(other)) if one == other => Self::Node,
            _ => Self::System,
        }
    }

    /// The word of topology listings.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Switch => "PIX",
            Self::Bridges => "PXB",
            Self::Node => "PHB",
            Self::System => "SYS",
            Self::Unknown => "?",
        }
    }

    /// The same in words.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Switch => "below the same PCI switch",
            Self::Bridges => "below the same root port, by several switches",
            Self::Node => "on the same NUMA node",
            Self::System => "by the link between NUMA nodes",
            Self::Unknown => "at a distance that is not known",
        }
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} ({})", self.describe(), self.word())
    }
}
