//! The settings of a rank's NIC.

use std::time::Duration;

use anabranch_transport::limits::{self, SharedSetting};

use super::LinkLayer;
use crate::error::{NicError, Result};

/// How a rank uses its NIC. Equal on all ranks, except for [`Self::nics`] and [`Self::gid_index`], which may follow the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaConfig {
    /// Queue pairs to each peer, within [`limits::QUEUES`]. Waves of a kernel are spread over them.
    pub queues: u32,
    /// Entries of a send queue (of 64 bytes each; a request takes one or two), a power of two from [`Self::LEAST_ENTRIES`] to
    /// [`Self::MOST_ENTRIES`].
    pub entries: u32,
    /// How long a peer's NIC has to answer before its queue pair fails.
    pub patience: Duration,
    /// Which NICs may be used (`transport.rdma.nics`): `NAME`, `NAME:PORT`, `=NAME`, and `^` before an entry that leaves NICs out, as
    /// [`NicFilter`](crate::nics::NicFilter) reads them. Empty: every NIC that is hardware.
    pub nics: Vec<String>,
    /// Which address of the port (`transport.rdma.gid_index`), an index of its table of GIDs. `None`: chosen by
    /// [`choose_gid`](crate::nics::choose_gid).
    pub gid_index: Option<u32>,
    /// Traffic class of packets (`transport.rdma.traffic_class`): on Ethernet the IP header's byte, its upper six bits being the
    /// DSCP; on InfiniBand that of the global header.
    pub traffic_class: u8,
    /// Service level (`transport.rdma.service_level`), at most [`Self::MOST_SERVICE_LEVEL`]; on Ethernet the priority, at most
    /// [`Self::MOST_PRIORITY`].
    pub service_level: u8,
}

impl RdmaConfig {
    /// The least send queue.
    pub const LEAST_ENTRIES: u32 = limits::SEND_ENTRIES.least as u32;
    /// The largest send queue.
    pub const MOST_ENTRIES: u32 = limits::SEND_ENTRIES.most as u32;
    /// The largest of `bnxt_re`: an entry is three slots, and its table of message sequence numbers names the first of them in 16 bits
    /// (`bnxt_re_msns.start_idx` in rdma-core's `providers/bnxt_re/bnxt_re-abi.h`).
    pub const MOST_ENTRIES_OF_BNXT: u32 = 16 << 10;
    /// The highest service level of InfiniBand.
    pub const MOST_SERVICE_LEVEL: u8 = limits::SERVICE_LEVEL.most as u8;
    /// The highest priority of Ethernet (802.1Q), which has 3 bits for it.
    pub const MOST_PRIORITY: u8 = 7;

    /// The settings that are equal on all ranks.
    pub fn shared(&self) -> [SharedSetting; 5] {
        let (least, most) = (limits::PATIENCE.start(), limits::PATIENCE.end());
        let refused = !limits::PATIENCE.contains(&self.patience);
        let allowed = refused.then(|| format!("{least:?} to {most:?}"));
        [
            limits::QUEUES.setting("transport.rdma.queues", self.queues),
            limits::SEND_ENTRIES.setting("transport.rdma.entries", self.entries),
            ("transport.rdma.patience", format!("{:?}", self.patience), allowed),
            ("transport.rdma.traffic_class", self.traffic_class.to_string(), None),
            limits::SERVICE_LEVEL.setting("transport.rdma.service_level", self.service_level),
        ]
    }

    /// Whether a NIC whose wire is this one has the service level.
    ///
    /// # Errors
    /// [`NicError::Limit`].
    pub(crate) fn check_service_level(&self, link_layer: LinkLayer, nic: &str) -> Result<()> {
        let most = match link_layer {
            LinkLayer::Infiniband => Self::MOST_SERVICE_LEVEL,
            LinkLayer::Ethernet => Self::MOST_PRIORITY,
        };
        if self.service_level <= most {
            return Ok(());
        }
        Err(NicError::Limit {
            what: "transport.rdma.service_level",
            given: self.service_level.into(),
            allowed: format!("0 to {most}"),
            nic: nic.to_owned(),
        })
    }
}

impl Default for RdmaConfig {
    fn default() -> Self {
        Self {
            queues: 2,
            entries: 256,
            patience: Duration::from_secs(10),
            nics: Vec::new(),
            gid_index: None,
            traffic_class: 0,
            service_level: 0,
        }
    }
}
