//! Who a peer is, as far as reaching its memory is concerned.

use std::fmt;

use anabranch_ranks::GlobalRank;
use serde::{Deserialize, Serialize};

/// Names one running machine: an override from the configuration, the kernel's boot id, or the host's name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HostIdentity(pub String);

impl fmt::Display for HostIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Names one process of a host. The number alone does not: containers on one host count from 1 each, and
/// numbers are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// The process number, for people.
    pub pid: u32,
    /// Distinguishes processes with equal numbers; equal in all threads of a process.
    pub nonce: u64,
}

/// What ranks exchange about themselves before memory is mapped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerInfo {
    /// The rank in the world.
    pub rank: GlobalRank,
    /// Its machine, as far as ways to its memory are concerned.
    pub host: HostIdentity,
    /// The machine whose NICs it shares with the other ranks there. Another than [`Self::host`] only where ranks of one machine count as
    /// on several.
    pub nics_of: HostIdentity,
    /// Its process.
    pub process: ProcessIdentity,
    /// The runtime's word: `amd`, `nvidia`, `host`.
    pub runtime: String,
    /// Distinguishes several instances of a runtime in one process; 0 where a process can only have one.
    pub instance: u64,
    /// HIP's index of its device in its process. Means something only to ranks of the same process.
    pub device: u32,
    /// PCI address of the device: its identity on the host.
    pub pci: String,
    /// The device's architecture, as reported.
    pub arch: String,
}

impl PeerInfo {
    /// Whether both run on one host.
    pub fn same_host(&self, other: &Self) -> bool {
        self.host == other.host
    }

    /// Whether both choose among the same NICs.
    pub fn same_nics(&self, other: &Self) -> bool {
        self.nics_of == other.nics_of
    }

    /// Whether both are threads of one process, so that an address of one is an address of the other.
    pub fn same_process(&self, other: &Self) -> bool {
        self.same_host(other) && self.process == other.process
    }
}
