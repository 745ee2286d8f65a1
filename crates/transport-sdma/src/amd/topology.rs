//! The tree in which the kernel driver (KFD) describes the GPUs of a machine and the links between them.
//!
//! A folder for each node, named by its number, holds `gpu_id` (0 for a CPU), `properties`, and folders `io_links/N` and
//! `p2p_links/N` with `properties` each; a line is a name and a decimal number (`kfd_topology.c` of Linux). A node of a GPU that
//! this process may not use is there and cannot be read.
//!
//! The thunk counts only nodes that it can use, so that its numbers differ from the tree's in a container with some of the GPUs
//! (`topology_sysfs_map_node_id` in the thunk's `topology.c`). Numbers of this tree are therefore never handed to the runtime:
//! a GPU is found there by domain and location ([`super::Driver::node`]).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anabranch_transport::PciAddress;

use super::address::GpuAddress;
use super::error::{AmdError, AmdResult};
use super::link::{Link, LinkKind};

/// Where Linux shows the tree.
pub const NODES_FOLDER: &str = "/sys/class/kfd/kfd/topology/nodes";

/// Where Linux shows PCI devices, each in a folder with its address as name.
pub const PCI_FOLDER: &str = "/sys/bus/pci/devices";

/// A node with a GPU, or with a partition of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// The node's number in the tree.
    pub node: u32,
    /// The driver's name for the GPU.
    pub gpu_id: u32,
    /// PCI segment.
    pub domain: u32,
    /// Bus, device and function in the low 16 bits. Of a GPU with partitions, newer kernels put the partition's number into
    /// bits 28 to 31, and some older ones into the function.
    pub location_id: u32,
    /// PCI device id.
    pub device_id: u32,
    /// Architecture as a number: 90402 is gfx942, 120500 is gfx1250. 0 if the kernel does not say.
    pub gfx_target_version: u32,
    /// GPUs connected by xGMI share this number. 0 if there are no such links.
    pub hive_id: u64,
    /// Place of the GPU among those of its hive, which the table of engines counts by: the file `xgmi_physical_id` of the PCI device,
    /// read as a decimal number (the places that matter have one digit). `None` if the kernel does not say.
    pub xgmi_physical_id: Option<u32>,
    /// Compute dies of this node. `None` if the kernel does not say.
    pub compute_dies: Option<u32>,
    /// Engines for general use. They have the numbers from 0 on.
    pub engines: u32,
    /// Engines for links between GPUs. Their numbers follow those of the general engines.
    pub xgmi_engines: u32,
    /// Queues that each engine holds.
    pub queues_per_engine: u32,
    /// Links to other nodes; those in `io_links` first.
    pub links: Vec<Link>,
}

impl Gpu {
    /// The place on the bus, as far as the location says it.
    pub fn pci(&self) -> PciAddress {
        PciAddress {
            domain: self.domain,
            bus: (self.location_id >> 8) as u8,
            device: (self.location_id >> 3) as u8 & 0x1f,
            function: self.location_id as u8 & 7,
        }
    }

    /// All engines, of both classes.
    pub(crate) fn all_engines(&self) -> u32 {
        self.engines.saturating_add(self.xgmi_engines)
    }

    /// The best description of the way to a node: an xGMI link before others, `io_links` before `p2p_links`.
    pub(crate) fn link_to(&self, node: u32) -> Option<&Link> {
        let mut ways = self.links.iter().filter(|link| link.to == node);
        ways.clone().find(|link| link.kind == LinkKind::Xgmi).or_else(|| ways.next())
    }

    fn same_device(&self, pci: PciAddress) -> bool {
        let own = self.pci();
        (own.domain, own.bus, own.device) == (pci.domain, pci.bus, pci.device)
    }

    /// The partition's number, if the GPU at this place has several nodes.
    fn partition(&self) -> u32 {
        let high = self.location_id >> 28;
        if high == 0 { self.location_id & 7 } else { high }
    }
}

/// The nodes of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    gpus: Vec<Gpu>,
    cpus: Vec<u32>,
    hidden: Vec<u32>,
}

impl Topology {
    /// Reads the tree. `nodes` is usually [`NODES_FOLDER`], and `pci` [`PCI_FOLDER`]. Not collective.
    ///
    /// # Errors
    /// [`AmdError::Read`], [`AmdError::Line`] or [`AmdError::Property`]: which file, which line, and what was expected.
    pub fn read(nodes: &Path, pci: &Path) -> AmdResult<Self> {
        Self::read_with(nodes, pci, &|path| fs::read_to_string(path))
    }

    /// As [`read`](Self::read), with the way to read a file. (The kernel hides a node by letting files be opened and refusing
    /// to read them, which a test cannot do with files of its own.)
    pub(super) fn read_with(
        nodes: &Path,
        pci: &Path,
        read: &dyn Fn(&Path) -> io::Result<String>,
    ) -> AmdResult<Self> {
        let mut tree = Self::default();
        for (node, folder) in numbered(nodes)? {
            let Some(id) = Properties::number(&folder.join("gpu_id"), read)? else {
                tree.hidden.push(node);
                continue;
            };
            if id == 0 {
                tree.cpus.push(node);
                continue;
            }
            match gpu(node, id, &folder, pci, read)? {
                Some(gpu) => tree.gpus.push(gpu),
                None => tree.hidden.push(node),
            }
        }
        Ok(tree)
    }

    /// The GPUs, by number of their nodes.
    pub fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    /// Nodes that are CPUs.
    pub fn cpus(&self) -> &[u32] {
        &self.cpus
    }

    /// Nodes that this process may not read: GPUs that it was not given.
    pub fn hidden(&self) -> &[u32] {
        &self.hidden
    }

    /// The GPU at an address.
    ///
    /// # Errors
    /// [`AmdError::NoSuchGpu`], with what there is; [`AmdError::Partitioned`] if the address means several nodes, as it does for a
    /// GPU with partitions when it names none, or when the kernel does not number them.
    pub fn find(&self, asked: &GpuAddress) -> AmdResult<&Gpu> {
        let here: Vec<&Gpu> = self.gpus.iter().filter(|gpu| gpu.same_device(asked.pci)).collect();
        let meant: Vec<&Gpu> = match asked.partition {
            Some(partition) if here.len() > 1 => {
                here.into_iter().filter(|gpu| gpu.partition() == partition).collect()
            }
            // A whole GPU is its own first part.
            Some(0) => here.into_iter().filter(|gpu| gpu.pci() == asked.pci).collect(),
            Some(_) => Vec::new(),
            None if here.len() > 1 => here,
            None => here.into_iter().filter(|gpu| gpu.pci() == asked.pci).collect(),
        };
        if meant.len() > 1 {
            return Err(AmdError::Partitioned { asked: *asked, partitions: meant.len() });
        }
        let found = meant.first().copied();
        found.ok_or_else(|| AmdError::NoSuchGpu {
            asked: *asked,
            shown: self.gpus.iter().map(|gpu| self.address(gpu)).collect(),
            hidden: self.hidden.len(),
        })
    }

    /// The address under which [`find`](Self::find) finds a GPU of this tree.
    pub fn address(&self, gpu: &Gpu) -> GpuAddress {
        let pci = gpu.pci();
        let divided = self.gpus.iter().filter(|other| other.same_device(pci)).count() > 1;
        GpuAddress { pci, partition: divided.then(|| gpu.partition()) }
    }

    /// Whether the GPU is shown as several nodes.
    pub(super) fn is_divided(&self, gpu: &Gpu) -> bool {
        self.address(gpu).partition.is_some()
    }
}

/// Folders with numbers as names, in ascending order. One that is not there has none.
fn numbered(folder: &Path) -> AmdResult<Vec<(u32, PathBuf)>> {
    let failed = |source| AmdError::Read { path: folder.to_owned(), source };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
            found.push((number, entry.path()));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Lines of names and numbers.
struct Properties {
    file: PathBuf,
    text: String,
}

impl Properties {
    /// Reads a file; `None` if this process may not.
    fn open(file: &Path, read: &dyn Fn(&Path) -> io::Result<String>) -> AmdResult<Option<Self>> {
        match read(file) {
            Ok(text) => Ok(Some(Self { file: file.to_owned(), text })),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
            Err(source) => Err(AmdError::Read { path: file.to_owned(), source }),
        }
    }

    /// Reads a file that holds one number; `None` if this process may not.
    fn number(file: &Path, read: &dyn Fn(&Path) -> io::Result<String>) -> AmdResult<Option<u32>> {
        let Some(content) = Self::open(file, read)? else { return Ok(None) };
        let text = content.text.trim();
        text.parse().map(Some).map_err(|_| AmdError::Line {
            path: content.file.clone(),
            line: 1,
            text: text.to_owned(),
            expected: "a decimal number of 32 bits",
        })
    }

    /// A property that older kernels lack.
    fn get<T: core::str::FromStr>(&self, name: &str, expected: &'static str) -> AmdResult<Option<T>> {
        for (index, line) in self.text.lines().enumerate() {
            let mut words = line.split_whitespace();
            if words.next() != Some(name) {
                continue;
            }
            let value = words.next().filter(|_| words.next().is_none()).and_then(|word| word.parse().ok());
            return value.map(Some).ok_or_else(|| AmdError::Line {
                path: self.file.clone(),
                line: index + 1,
                text: line.to_owned(),
                expected,
            });
        }
        Ok(None)
    }

    /// A property of 32 bits that older kernels lack.
    fn optional(&self, name: &'static str) -> AmdResult<Option<u32>> {
        self.get(name, "the name and a decimal number of 32 bits")
    }

    /// A property of 32 bits that every kernel gives.
    fn required(&self, property: &'static str) -> AmdResult<u32> {
        let value = self.optional(property)?;
        value.ok_or_else(|| AmdError::Property { path: self.file.clone(), property })
    }
}

fn gpu(
    node: u32,
    gpu_id: u32,
    folder: &Path,
    pci: &Path,
    read: &dyn Fn(&Path) -> io::Result<String>,
) -> AmdResult<Option<Gpu>> {
    let Some(properties) = Properties::open(&folder.join("properties"), read)? else { return Ok(None) };
    let mut gpu = Gpu {
        node,
        gpu_id,
        domain: properties.required("domain")?,
        location_id: properties.required("location_id")?,
        device_id: properties.required("device_id")?,
        gfx_target_version: properties.optional("gfx_target_version")?.unwrap_or(0),
        hive_id: properties.get("hive_id", "the name and a decimal number of 64 bits")?.unwrap_or(0),
        xgmi_physical_id: None,
        compute_dies: properties.optional("num_xcc")?,
        engines: properties.required("num_sdma_engines")?,
        xgmi_engines: properties.required("num_sdma_xgmi_engines")?,
        queues_per_engine: properties.required("num_sdma_queues_per_engine")?,
        links: links(&folder.join("io_links"), read)?,
    };
    gpu.links.extend(links(&folder.join("p2p_links"), read)?);
    let physical = pci.join(gpu.pci().to_string()).join("xgmi_physical_id");
    gpu.xgmi_physical_id = match Properties::number(&physical, read) {
        // The file is there on GPUs with xGMI only, and the folder not for all partitions.
        Err(AmdError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => None,
        other => other?,
    };
    Ok(Some(gpu))
}

/// The links in a folder; those to a hidden node cannot be read and are left out.
fn links(folder: &Path, read: &dyn Fn(&Path) -> io::Result<String>) -> AmdResult<Vec<Link>> {
    let mut found = Vec::new();
    let numbers = match numbered(folder) {
        // Kernels before 5.19 have no `p2p_links`.
        Err(AmdError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(found),
        other => other?,
    };
    for (_, place) in numbers {
        let Some(properties) = Properties::open(&place.join("properties"), read)? else { continue };
        let recommended = properties.optional("recommended_sdma_engine_id_mask")?;
        found.push(Link {
            to: properties.required("node_to")?,
            kind: LinkKind::of(properties.required("type")?),
            recommended_engines: recommended.filter(|mask| *mask != 0),
            flags: properties.required("flags")?,
            file: properties.file,
        });
    }
    Ok(found)
}
