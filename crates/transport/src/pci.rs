//! Places on the PCI bus.

use std::fmt;
use std::str::FromStr;

/// A place on the PCI bus. Written `0000:c1:00.0`: domain, bus, device and function, in hexadecimal. Ordered as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// Segment of the bus. Two devices of a large machine may differ in nothing else.
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

/// A text that is no place on the PCI bus.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no PCI address: expected domain:bus:device.function in hexadecimal, as 0000:c1:00.0")]
pub struct UnknownPciAddress {
    /// The text.
    pub given: String,
}

impl FromStr for PciAddress {
    type Err = UnknownPciAddress;

    /// Reads an address as Linux and the runtimes write it; upper case letters are taken too.
    fn from_str(text: &str) -> Result<Self, UnknownPciAddress> {
        parse(text).ok_or_else(|| UnknownPciAddress { given: text.to_owned() })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written_alike() {
        let address: PciAddress = "0001:C1:1f.7".parse().unwrap();
        assert_eq!(address, PciAddress { domain: 1, bus: 0xc1, device: 0x1f, function: 7 });
        for text in ["0001:c1:1f.7", "0000:c1:00.0", "10000:e1:1f.7"] {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), text);
        }
        assert!("0000:ff:00.0".parse::<PciAddress>().unwrap() < address, "ordered as written");
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for wrong in [
            "",
            "c1:00.0",
            "0000:c1:00",
            "0000:c1:20.0",
            "0000:c1:00.8",
            "0000:+1:00.0",
            "0000:100:00.0",
            "100000000:c1:00.0",
            "0000:c1:00.0 ",
        ] {
            let error = wrong.parse::<PciAddress>().unwrap_err().to_string();
            assert!(error.contains(&format!("{wrong:?}")) && error.contains("0000:c1:00.0"), "{error}");
        }
    }
}
