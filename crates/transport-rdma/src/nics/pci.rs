//! The way to a device on the PCI bus from the host bridge.

use core::fmt;

use anabranch_transport::PciAddress;

/// The way from a host bridge to a device: the bridge's name (`pci0000:00`), then each PCI bridge, then the device.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PciPath {
    host_bridge: String,
    ways: Vec<PciAddress>,
    address: PciAddress,
}

impl PciPath {
    /// Reads the names of a device's folders below `/sys/devices`, host bridge first. What follows the device (the kernel's
    /// auxiliary devices) is left out. `None` if there is no PCI device in it.
    pub fn of_folders<'a>(folders: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let mut host_bridge = None;
        let mut ways: Vec<PciAddress> = Vec::new();
        for folder in folders {
            match folder.parse() {
                Ok(address) => ways.push(address),
                // A domain behind a bridge of its own (VMD) has a host bridge within the path: the way starts anew there.
                Err(_) if is_host_bridge(folder) => {
                    host_bridge = Some(folder.to_owned());
                    ways.clear();
                }
                Err(_) if ways.is_empty() => {}
                Err(_) => break,
            }
        }
        let address = ways.pop()?;
        Some(Self { host_bridge: host_bridge?, ways, address })
    }

    /// The device's own address.
    pub fn address(&self) -> PciAddress {
        self.address
    }

    /// The host bridge's name.
    pub(crate) fn host_bridge(&self) -> &str {
        &self.host_bridge
    }

    /// The PCI bridges on the way, the root port first.
    pub(crate) fn bridges(&self) -> &[PciAddress] {
        &self.ways
    }
}

/// `pci0000:00`: `pci`, the domain, and the bus.
fn is_host_bridge(name: &str) -> bool {
    let numbers = name.strip_prefix("pci").and_then(|rest| rest.split_once(':'));
    numbers.is_some_and(|(domain, bus)| {
        domain.len() >= 4
            && bus.len() == 2
            && (domain.bytes().chain(bus.bytes())).all(|b| b.is_ascii_hexdigit())
    })
}

impl fmt::Display for PciPath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.host_bridge)?;
        self.ways.iter().try_for_each(|bridge| write!(out, "/{bridge}"))?;
        write!(out, "/{}", self.address)
    }
}
