//! A peer's memory as it is reachable here.

use std::sync::Arc;

use anabranch_hip::{DeviceAddress, IpcMapping, VirtualMapping};
use anabranch_transport::{Origin, PeerMemory};

/// An opened region. The variant says where the address comes from, and with it what dropping has to do.
#[derive(Debug)]
pub enum Mapping {
    /// This rank's own memory; nothing to undo.
    Own {
        /// Its address.
        address: DeviceAddress,
        /// Bytes.
        bytes: u64,
    },
    /// Memory of another rank of this process at that rank's own address. Nothing to undo: peer access stays
    /// enabled, as other users of the process may rely on it.
    SameProcess {
        /// Its address.
        address: DeviceAddress,
        /// Bytes.
        bytes: u64,
    },
    /// A region inside an allocation of another process. The last region of an allocation unmaps it.
    Ipc {
        /// The mapped allocation.
        allocation: Arc<IpcMapping>,
        /// Where the region starts in it.
        offset: u64,
        /// Bytes.
        bytes: u64,
    },
    /// A region in a slot of a flat range. The last region of a slot unmaps it.
    Virtual {
        /// The slot.
        slot: Arc<VirtualMapping>,
        /// Where the region starts in it.
        offset: u64,
        /// Bytes.
        bytes: u64,
    },
}

impl PeerMemory for Mapping {
    fn address(&self) -> u64 {
        match self {
            Self::Own { address, .. } | Self::SameProcess { address, .. } => address.0,
            Self::Ipc { allocation, offset, .. } => allocation.address().offset(*offset).0,
            Self::Virtual { slot, offset, .. } => slot.address().offset(*offset).0,
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Own { bytes, .. }
            | Self::SameProcess { bytes, .. }
            | Self::Ipc { bytes, .. }
            | Self::Virtual { bytes, .. } => *bytes,
        }
    }

    fn origin(&self) -> Origin {
        match self {
            Self::Own { .. } => Origin::Own,
            Self::SameProcess { .. } => Origin::SameProcess,
            Self::Ipc { .. } => Origin::Ipc,
            Self::Virtual { .. } => Origin::Virtual,
        }
    }
}
