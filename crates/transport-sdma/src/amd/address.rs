//! Where a GPU is: on the PCI bus, and which part of it.

use core::fmt;
use core::str::FromStr;

use super::error::AmdError;

/// A place on the PCI bus. Written `0000:c1:00.0`: domain, bus, device and function, in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// Segment of the bus. Two GPUs of a large machine may differ in nothing else.
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
    type Err = AmdError;

    fn from_str(text: &str) -> Result<Self, AmdError> {
        parse(text).ok_or_else(|| AmdError::Address { given: text.to_owned() })
    }
}

fn parse(text: &str) -> Option<PciAddress> {
    let (domain, rest) = text.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    let hex = |digits: &str, most: u32| {
        let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let value = plain.then(|| u32::from_str_radix(digits, 16).ok()).flatten()?;
        (value <= most).then_some(value)
    };
    Some(PciAddress {
        domain: hex(domain, u32::MAX)?,
        bus: hex(bus, 0xff)? as u8,
        device: hex(device, 0x1f)? as u8,
        function: hex(function, 7)? as u8,
    })
}

/// A GPU as a program means it: a place on the bus and, where the kernel shows a GPU as several, which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuAddress {
    /// The place on the bus.
    pub pci: PciAddress,
    /// The partition, from 0 on. `None` means the whole GPU, and is refused for one that has partitions: runtimes report the
    /// same place for all of them, or put the partition where the function is.
    pub partition: Option<u32>,
}

impl From<PciAddress> for GpuAddress {
    fn from(pci: PciAddress) -> Self {
        Self { pci, partition: None }
    }
}

impl fmt::Display for GpuAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.partition {
            Some(partition) => write!(out, "{}, partition {partition}", self.pci),
            None => write!(out, "{}", self.pci),
        }
    }
}
