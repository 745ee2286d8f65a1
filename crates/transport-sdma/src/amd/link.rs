//! A link between two nodes, as the kernel describes it.

use std::path::PathBuf;

/// The kind of a link; numbers of `HSA_IOLINKTYPE` in `hsakmttypes.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkKind {
    /// PCI Express.
    Pcie,
    /// AMD's links between GPUs, and on some machines to the host.
    Xgmi,
    /// Another number.
    Other(u32),
}

impl LinkKind {
    pub(super) fn of(number: u32) -> Self {
        match number {
            2 => Self::Pcie,
            11 => Self::Xgmi,
            other => Self::Other(other),
        }
    }
}

impl core::fmt::Display for LinkKind {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Pcie => write!(out, "PCIe"),
            Self::Xgmi => write!(out, "xGMI"),
            Self::Other(number) => write!(out, "link type {number}"),
        }
    }
}

/// One way out of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The file that describes it.
    pub file: PathBuf,
    /// The node at its other end, in the numbering of the tree.
    pub to: u32,
    /// Its kind.
    pub kind: LinkKind,
    /// Engines that the kernel recommends for it, a bit for each: the property `recommended_sdma_engine_id_mask`. `None` if the
    /// kernel does not know the property (it came with KFD 1.17) or recommends nothing.
    pub recommended_engines: Option<u32>,
    /// The property `flags`, bits as in `HSA_LINKPROPERTY`.
    pub flags: u32,
}

impl Link {
    const FLAGS_HOLD: u32 = 1 << 0;
    const NO_ATOMICS_64: u32 = 1 << 3;
    const NO_PEER_TO_PEER: u32 = 1 << 4;

    /// Whether the flags say anything, and then whether `bit` is clear; otherwise what is known of the kind.
    fn allows(&self, bit: u32) -> bool {
        if self.flags & Self::FLAGS_HOLD == 0 { self.kind == LinkKind::Xgmi } else { self.flags & bit == 0 }
    }

    /// Whether atomics of 64 bits are known to pass. Where they do not, an engine signals with fences.
    pub(crate) fn carries_atomics_64(&self) -> bool {
        self.allows(Self::NO_ATOMICS_64)
    }

    /// Whether the node's engines are known to reach memory at the other end.
    pub(crate) fn reaches_memory(&self) -> bool {
        self.allows(Self::NO_PEER_TO_PEER)
    }
}
