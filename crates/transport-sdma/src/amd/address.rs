//! Where a GPU is: on the PCI bus, and which part of it.

use core::fmt;

use anabranch_transport::PciAddress;

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
