//! Places on the PCI bus: an address, and the way to it from the host bridge.

use core::fmt;
use core::str::FromStr;

use super::error::{NicTreeError, NicTreeResult};

/// A place on the PCI bus. Written `0000:c1:00.0`: domain, bus, device and function, in hexadecimal. Ordered as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// Segment of the bus.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device on the bus, 0 to 31.
    pub device: u8,
    /// Function of the device, 0 to 7.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

impl FromStr for PciAddress {
    type Err = NicTreeError;

    /// Reads an address as Linux and the runtimes write it; upper case letters are taken too.
    fn from_str(text: &str) -> NicTreeResult<Self> {
        parse(text).ok_or_else(|| NicTreeError::Address { given: text.to_owned() })
    }
}

fn parse(text: &str) -> Option<PciAddress> {
    let (domain, rest) = text.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    let hexadecimal = |digits: &str, most: u32| {
        let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let value = plain.then(|| u32::from_str_radix(digits, 16).ok()).flatten()?;
        (value <= most).then_some(value)
    };
    Some(PciAddress {
        domain: hexadecimal(domain, u32::MAX)?,
        bus: hexadecimal(bus, 0xff)? as u8,
        device: hexadecimal(device, 0x1f)? as u8,
        function: hexadecimal(function, 7)? as u8,
    })
}

/// The way from a host bridge to a device: the bridge's name (`pci0000:00`), then each PCI bridge, then the device.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PciPath {
    host_bridge: String,
    ways: Vec<PciAddress>,
    address: PciAddress,
}

impl PciPath {
    /// Reads the names of a device's folders below `/sys/devices`, host bridge first. What comes behind the device (the kernel's
    /// auxiliary devices) is left out. `None` if there is no PCI device in it.
    pub fn of_folders<'a>(folders: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let mut host_bridge = None;
        let mut ways: Vec<PciAddress> = Vec::new();
        for folder in folders {
            match parse(folder) {
                Some(address) => ways.push(address),
                // A domain behind a bridge of its own (VMD) has a host bridge within the path: the way starts anew there.
                None if is_host_bridge(folder) => {
                    host_bridge = Some(folder.to_owned());
                    ways.clear();
                }
                None if ways.is_empty() => {}
                None => break,
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
    pub fn host_bridge(&self) -> &str {
        &self.host_bridge
    }

    /// The PCI bridges on the way, the root port first.
    pub fn bridges(&self) -> &[PciAddress] {
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
