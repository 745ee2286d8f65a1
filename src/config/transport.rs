//! The tables of the configuration that are about transports, as plain nested structs.

use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::units::{ByteSize, Period};

/// A way of moving bytes, by its name in `transport.order`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum TransportName {
    /// Peer memory, mapped.
    P2p,
    /// Copy engines.
    Sdma,
    /// A NIC.
    Rdma,
}

impl TransportName {
    /// The name as written in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::P2p => "p2p",
            Self::Sdma => "sdma",
            Self::Rdma => "rdma",
        }
    }
}

/// `[transport]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct TransportConfig {
    /// Transports in order of preference; the first that reaches a peer is its route.
    pub order: Vec<TransportName>,
    /// Peer memory has no settings.
    pub p2p: P2pConfig,
    /// Copy engines.
    pub sdma: SdmaConfig,
    /// NICs.
    pub rdma: RdmaConfig,
}

impl Default for TransportConfig {
    fn default() -> Self {
        Self {
            order: vec![TransportName::P2p],
            p2p: P2pConfig::default(),
            sdma: SdmaConfig::default(),
            rdma: RdmaConfig::default(),
        }
    }
}

/// `[transport.p2p]`: no settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct P2pConfig {}

/// `[transport.sdma]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct SdmaConfig {
    /// Queues to each peer, over which the waves of a kernel are spread.
    pub queues: u32,
    /// Bytes of a queue's ring, a power of two.
    pub ring_bytes: ByteSize,
    /// The most bytes of one copy packet, a multiple of 32; `None` means what the engine takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub most_copy_bytes: Option<ByteSize>,
}

impl Default for SdmaConfig {
    fn default() -> Self {
        Self { queues: 2, ring_bytes: ByteSize(64 << 10), most_copy_bytes: None }
    }
}

/// What serves as a rank's NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum NicDriverName {
    /// The machine's NICs, by libibverbs: a thread of the host posts what kernels ask for.
    #[default]
    Verbs,
    /// The machine's ConnectX, by libmlx5: kernels write its queues. Nothing else is taken in its place.
    Mlx5,
    /// `mlx5` where that can be opened and makes a queue pair, else `verbs`, with the reason in reports and in the log.
    Auto,
    /// A network of libfabric's: a thread of the host posts what kernels ask for.
    Libfabric,
    /// NICs in software, which talk over sockets: for trials without hardware.
    Software,
}

/// `[transport.rdma]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct RdmaConfig {
    /// What serves as a rank's NIC.
    pub driver: NicDriverName,
    /// Queue pairs to each peer, over which the waves of a kernel are spread.
    pub queues: u32,
    /// Entries of a send queue, a power of two.
    pub entries: u32,
    /// How long a peer's NIC has to answer.
    pub patience: Period,
    /// Which NICs may be used, or may not (`^`); empty means every NIC that is hardware.
    pub nics: Vec<String>,
    /// Which address of the port; `None` means the best by its kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid_index: Option<u32>,
    /// Traffic class of packets.
    pub traffic_class: u8,
    /// Service level, on Ethernet the priority.
    pub service_level: u8,
    /// With the driver `libfabric`: its provider by name; `None` means the first that it lists and that serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fabric_provider: Option<String>,
    /// With the driver `software`: the address at which each NIC listens and by which others reach it; `None` means sockets of this
    /// machine. What goes over it is not encrypted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub software_address: Option<IpAddr>,
    /// With the driver `software`: whether each NIC has atomic operations.
    pub software_atomics: bool,
}

impl Default for RdmaConfig {
    fn default() -> Self {
        Self {
            driver: NicDriverName::Verbs,
            queues: 2,
            entries: 256,
            patience: Period(Duration::from_secs(10)),
            nics: Vec::new(),
            gid_index: None,
            traffic_class: 0,
            service_level: 0,
            fabric_provider: None,
            software_address: None,
            software_atomics: true,
        }
    }
}
