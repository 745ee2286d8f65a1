//! Reads the kernel's folders: `class/infiniband/NAME` (`Documentation/ABI/stable/sysfs-class-infiniband` of Linux) and the PCI device
//! behind each.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use anabranch_transport::PciAddress;

use super::distance::PciLocation;
use super::error::{NicTreeError, NicTreeResult};
use super::gid::{Gid, GidKind};
use super::machine::{Machine, Nic};
use super::pci::PciPath;
use super::port::{LinkLayer, Port, PortState};

/// Where Linux shows devices.
pub const SYSTEM_FOLDER: &str = "/sys";

impl Machine {
    /// Reads the NICs. `root` is usually [`SYSTEM_FOLDER`]. A machine without the folder `class/infiniband` has none; a NIC that cannot be
    /// read as expected is there with its problems. Not collective.
    ///
    /// # Errors
    /// [`NicTreeError::Read`] for the folder itself.
    pub fn read(root: &Path) -> NicTreeResult<Self> {
        let folder = root.join("class/infiniband");
        let mut nics = Vec::new();
        for name in match names(&folder) {
            Err(NicTreeError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => Vec::new(),
            other => other?,
        } {
            nics.push(nic(root, &folder.join(&name), name));
        }
        Ok(Self::new(nics))
    }
}

impl PciLocation {
    /// Where a PCI device is. `root` is usually [`SYSTEM_FOLDER`]. Not collective.
    ///
    /// # Errors
    /// [`NicTreeError::Read`] if the kernel does not show the device, [`NicTreeError::Content`] for a NUMA node that is none.
    pub fn of_device(root: &Path, address: PciAddress) -> NicTreeResult<Self> {
        Self::behind(root, &root.join("bus/pci/devices").join(address.to_string()))
    }

    /// Where the device behind a link is.
    fn behind(root: &Path, link: &Path) -> NicTreeResult<Self> {
        let resolve = |path: &Path| {
            fs::canonicalize(path).map_err(|source| NicTreeError::Read { path: path.to_owned(), source })
        };
        let (folder, devices) = (resolve(link)?, resolve(root)?.join("devices"));
        let inner = folder.strip_prefix(&devices).unwrap_or(&folder);
        let names: Vec<&str> = inner.iter().filter_map(|name| name.to_str()).collect();
        let numa = optional(&folder.join("numa_node"))?;
        let numa = match numa.as_deref() {
            // The kernel says -1 where it does not know.
            None | Some("-1") => None,
            Some(text) => Some(text.parse().map_err(|_| NicTreeError::Content {
                path: folder.join("numa_node"),
                text: text.to_owned(),
                expected: "the number of a NUMA node, or -1",
            })?),
        };
        Ok(Self { path: PciPath::of_folders(names), numa })
    }
}

/// The names in a folder, in order.
fn names(folder: &Path) -> NicTreeResult<Vec<String>> {
    let failed = |source| NicTreeError::Read { path: folder.to_owned(), source };
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        found.extend(entry.map_err(failed)?.file_name().into_string());
    }
    Ok(found.into_iter().collect())
}

/// A file's content without the space around it; `None` if the kernel has no such file.
fn optional(file: &Path) -> NicTreeResult<Option<String>> {
    match fs::read(file) {
        Ok(bytes) => match String::from_utf8(bytes) {
            Ok(text) => Ok(Some(text.trim().to_owned())),
            Err(error) => Err(NicTreeError::Content {
                path: file.to_owned(),
                text: String::from_utf8_lossy(error.as_bytes()).into_owned(),
                expected: "text",
            }),
        },
        Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(NicTreeError::Read { path: file.to_owned(), source }),
    }
}

fn required(file: &Path) -> NicTreeResult<String> {
    let missing = || NicTreeError::Read { path: file.to_owned(), source: io::ErrorKind::NotFound.into() };
    optional(file)?.ok_or_else(missing)
}

/// An error and its cause in one line.
fn words(error: &NicTreeError) -> String {
    match error {
        NicTreeError::Read { source, .. } => format!("{error}: {source}"),
        _ => error.to_string(),
    }
}

fn nic(root: &Path, folder: &Path, name: String) -> Nic {
    let mut problems = Vec::new();
    let mut text = |file: &str| match optional(&folder.join(file)) {
        Ok(found) => found.unwrap_or_default(),
        Err(error) => {
            problems.push(words(&error));
            String::new()
        }
    };
    let node_type = text("node_type");
    let node_type = node_type.split_once(": ").map_or(node_type.as_str(), |(_, kind)| kind).to_owned();
    let firmware = text("fw_ver");
    let link = folder.join("device");
    let nowhere = PciLocation { path: None, numa: None };
    let place = match fs::symlink_metadata(&link) {
        // Only a NIC in software has no device.
        Err(error) if error.kind() == io::ErrorKind::NotFound => nowhere,
        _ => PciLocation::behind(root, &link).unwrap_or_else(|error| {
            problems.push(words(&error));
            nowhere
        }),
    };
    let driver = fs::read_link(link.join("driver")).ok();
    let driver =
        driver.as_deref().and_then(Path::file_name).and_then(|name| name.to_str()).map(str::to_owned);
    let ports = ports(&folder.join("ports"), &mut problems);
    Nic { name, driver, place, node_type, firmware, ports, problems }
}

/// The ports in a folder, by number.
fn ports(folder: &Path, problems: &mut Vec<String>) -> Vec<Port> {
    let mut found = Vec::new();
    match numbers(folder) {
        Err(error) => problems.push(words(&error)),
        Ok(numbers) => {
            for number in numbers {
                match port(&folder.join(number.to_string()), number) {
                    Ok(port) => found.push(port),
                    Err(error) => problems.push(words(&error)),
                }
            }
        }
    }
    found
}

/// Names that are numbers, in ascending order.
fn numbers(folder: &Path) -> NicTreeResult<Vec<u32>> {
    let mut found: Vec<u32> = names(folder)?.iter().filter_map(|name| name.parse().ok()).collect();
    found.sort_unstable();
    Ok(found)
}

fn port(folder: &Path, number: u32) -> NicTreeResult<Port> {
    let state = required(&folder.join("state"))?;
    let known = state.split_once(':').and_then(|(value, _)| PortState::of(value.trim().parse().ok()?));
    let known = known.ok_or_else(|| NicTreeError::Content {
        path: folder.join("state"),
        text: state,
        expected: "a port's state, as \"4: ACTIVE\"",
    })?;
    let layer = required(&folder.join("link_layer"))?;
    let link_layer = match layer.as_str() {
        "InfiniBand" => LinkLayer::Infiniband,
        "Ethernet" => LinkLayer::Ethernet,
        _ => {
            let path = folder.join("link_layer");
            return Err(NicTreeError::Content {
                path,
                text: layer,
                expected: "\"InfiniBand\" or \"Ethernet\"",
            });
        }
    };
    let physical = optional(&folder.join("phys_state"))?.unwrap_or_default();
    let gids = gids(folder)?;
    let mut interfaces: Vec<String> = Vec::new();
    for interface in gids.iter().filter_map(|gid| gid.interface.as_ref()) {
        if !interfaces.contains(interface) {
            interfaces.push(interface.clone());
        }
    }
    Ok(Port {
        number,
        state: known,
        physical_state: physical.split_once(": ").map_or(physical.as_str(), |(_, state)| state).to_owned(),
        link_layer,
        rate_mbps: rate(&folder.join("rate"))?,
        lid: lid(&folder.join("lid"))?,
        interfaces,
        gids,
    })
}

/// `400 Gb/sec (4X NDR)`, `2.5 Gb/sec (1X SDR)`: in megabits a second. 0 where there is no file.
fn rate(file: &Path) -> NicTreeResult<u32> {
    let Some(text) = optional(file)? else { return Ok(0) };
    let number = text.split_once(" Gb/sec").map(|(number, _)| number);
    let megabits = number.and_then(|number| {
        let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
        let (whole, tenths) = (whole.parse::<u32>().ok()?, tenths.parse::<u32>().ok()?);
        if tenths > 9 { None } else { whole.checked_mul(1000)?.checked_add(tenths * 100) }
    });
    megabits.ok_or_else(|| NicTreeError::Content {
        path: file.to_owned(),
        text,
        expected: "a rate, as \"400 Gb/sec (4X NDR)\"",
    })
}

/// `0x1a`; 0 where there is no file.
fn lid(file: &Path) -> NicTreeResult<u16> {
    let Some(text) = optional(file)? else { return Ok(0) };
    let digits = text.strip_prefix("0x").and_then(|digits| u16::from_str_radix(digits, 16).ok());
    let expected = "a local identifier, as 0x1a";
    digits.ok_or_else(|| NicTreeError::Content { path: file.to_owned(), text, expected })
}

/// The addresses of a port, empty places left out: the kernel refuses to say what kind those are.
fn gids(port: &Path) -> NicTreeResult<Vec<Gid>> {
    let mut found = Vec::new();
    let folder = port.join("gids");
    let places = match numbers(&folder) {
        Err(NicTreeError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(found);
        }
        other => other?,
    };
    for index in places {
        let file = folder.join(index.to_string());
        let text = required(&file)?;
        let Ok(value) = text.parse::<Ipv6Addr>() else {
            let expected = "an address of 16 bytes, as fe80:0000:0000:0000:0202:c9ff:fe00:0001";
            return Err(NicTreeError::Content { path: file, text, expected });
        };
        if value.is_unspecified() || value.octets()[8..].iter().all(|byte| *byte == 0) {
            continue;
        }
        let attributes =
            |kind: &str| -> PathBuf { port.join("gid_attrs").join(kind).join(index.to_string()) };
        let kind = match optional(&attributes("types"))?.as_deref() {
            // Kernels before 4.5 know one kind only and have no file.
            None | Some("IB/RoCE v1") => GidKind::InfinibandOrRoceV1,
            Some("RoCE v2") => GidKind::RoceV2,
            Some(text) => {
                return Err(NicTreeError::Content {
                    path: attributes("types"),
                    text: text.to_owned(),
                    expected: "\"IB/RoCE v1\" or \"RoCE v2\"",
                });
            }
        };
        // InfiniBand ports refuse to name an interface.
        let interface = optional(&attributes("ndevs")).ok().flatten().filter(|name| !name.is_empty());
        found.push(Gid { index, value, kind, interface });
    }
    Ok(found)
}
