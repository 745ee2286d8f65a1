//! What makes queue pairs and keys: the seam between this transport and a NIC, real or in software.

use std::fmt;
use std::sync::Arc;

use anabranch_hip::{Device, DeviceAddress, RuntimeKind};
use anabranch_ranks::GlobalRank;
use anabranch_transport::Region;

use crate::error::Result;
use crate::provider::Provider;

/// A NIC that serves one rank, chosen and opened.
pub trait NicDriver: fmt::Debug + Send + Sync {
    /// The format of its entries.
    fn provider(&self) -> Provider;

    /// Which NIC and port it is, and why that one; for people.
    fn describe(&self) -> String;

    /// What it can do.
    fn limits(&self) -> NicLimits;

    /// What orders what reads and atomic operations bring before their completion. Where nothing does, the transport refuses what
    /// brings values to kernels.
    fn read_order(&self) -> ReadOrder {
        ReadOrder::Ordered
    }

    /// What it does not do that others do, a clause each; for people.
    fn lacks(&self) -> Vec<&'static str> {
        let mut lacks = Vec::new();
        if self.read_order() == ReadOrder::Unordered {
            lacks.push("no gets nor fetches, as nothing orders what they bring before their completion in memory of the host");
        }
        if self.limits().atomics == Atomics::None {
            lacks.push("no atomic operations nor signals that add, as the NIC has no atomic operations");
        }
        lacks
    }

    /// Whether queue pairs have receives for immediate values, so that peers may write with them; both ends of one have the same driver.
    /// Where not, a write with an immediate value is refused before anything moves: it would stop the queue pair.
    fn takes_immediates(&self) -> bool {
        false
    }

    /// Lets the NIC read and write a range of memory of the rank's device (or of the host), and peers who have the remote key do so
    /// with it. Entries name it by the addresses that kernels use. Not collective.
    ///
    /// # Errors
    /// What the NIC's library or the range refuses.
    fn register(&self, region: Region) -> Result<Arc<dyn Registered>>;

    /// Makes a reliably connected queue pair for a peer, not connected yet. Its peer makes one for this rank with the same channel.
    ///
    /// # Errors
    /// [`crate::NicError::Limit`] for more entries than there may be; the library's.
    fn create_queue(&self, spec: QueueSpec) -> Result<Arc<dyn NicQueue>>;
}

/// What orders what a read or a fetch brings to the rank's device before the completion that says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOrder {
    /// [`QueueWords::completions`] lies in the same memory, or the driver orders the two.
    Ordered,
    /// mlx5: completions lie in other memory, and kernels post a DUMP entry after what fetches values: the NIC reads the device's memory
    /// before it completes the entry, and a read over PCI Express passes no write before it.
    Dumped,
    /// Nothing: completions lie in memory of the host. What is read into memory of the host is there with its completion.
    Unordered,
}

impl ReadOrder {
    /// The number that kernels know it by ([`RdmaQueue::read_order`](crate::RdmaQueue::read_order)).
    pub const fn number(self) -> u32 {
        match self {
            Self::Unordered => 0,
            Self::Ordered => 1,
            Self::Dumped => 2,
        }
    }
}

/// The order of a driver that writes completions to pinned memory of the host: the memory of devices made of threads is the
/// same, and that of a GPU another, for which the driver has `otherwise`.
pub(crate) fn order_from_host(device: &Device, otherwise: ReadOrder) -> ReadOrder {
    if device.runtime().kind() == RuntimeKind::Host { ReadOrder::Ordered } else { otherwise }
}

/// What a NIC can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicLimits {
    /// The most bytes of one write or read.
    pub most_message_bytes: u32,
    /// The most bytes that an entry can carry itself, at least 8.
    pub inline_bytes: u32,
    /// Which atomic operations there are.
    pub atomics: Atomics,
}

/// Atomic operations of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Atomics {
    /// None.
    None,
    /// Fetch-and-add and compare-and-swap of 64 bits.
    Standard,
    /// Also those with masks, of 32 and 64 bits, which make every operation of the matrix.
    Masked,
}

impl Atomics {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::None, Self::Standard, Self::Masked];

    /// The number that kernels are compiled with (`RDMA_ATOMICS`).
    pub const fn number(self) -> u32 {
        self as u32
    }
}

impl fmt::Display for Atomics {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::None => "no atomic operations",
            Self::Standard => "atomic operations of 64 bits alone",
            Self::Masked => "atomic operations with masks",
        })
    }
}

/// Which queue pair is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSpec {
    /// Whom it goes to.
    pub peer: GlobalRank,
    /// Which of the queue pairs to that peer.
    pub channel: u32,
    /// Entries of 64 bytes, a power of two.
    pub entries: u32,
}

/// Registered memory; dropping it ends the NIC's access.
pub trait Registered: fmt::Debug + Send + Sync {
    /// The key for entries of this rank.
    fn local_key(&self) -> u32;

    /// The key for entries of peers.
    fn remote_key(&self) -> u32;
}

/// A queue pair. Dropping it ends it; no kernel uses it then.
pub trait NicQueue: fmt::Debug + Send + Sync {
    /// What the peer's driver needs to connect its queue pair to this one: bytes to be sent to it.
    fn endpoint(&self) -> Vec<u8>;

    /// Connects it to the queue pair that the peer described. Once. The peer may not have connected its own yet: what is sent
    /// meanwhile arrives later.
    ///
    /// # Errors
    /// [`crate::NicError::Endpoint`]; the library's.
    fn connect(&self, peer: GlobalRank, endpoint: &[u8]) -> Result<()>;

    /// Where kernels find it. Valid as long as the queue pair is, but for [`QueueWords::path_mtu`], which [`Self::connect`] may change.
    fn words(&self) -> QueueWords;

    /// Which it is, for people.
    fn describe(&self) -> String;

    /// Ends what is under way and takes no more requests, where that can be done while its memory stays as it is: kernels may be in
    /// flight that never end, and after this the queue is leaked. The default continues with it.
    fn stop(&self, reason: &str) {
        let _ = reason;
    }

    /// Why it does nothing any more, with the NIC's syndrome in words, if it has stopped.
    fn stopped(&self) -> Option<String>;

    /// Of one that has stopped: whether all that its NIC says is that something else had failed before. That is a request of the peer's that
    /// was refused here, which stops both ends, or an entry whose own completion was overwritten. The peer may know more then.
    fn is_consequence(&self) -> bool;

    /// Of one that has not stopped: what it was given and has not answered. `None` where everything was answered, and of drivers that
    /// cannot say it.
    fn unanswered(&self) -> Option<UnansweredRequests> {
        None
    }
}

/// Requests of a queue pair that are on their way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnansweredRequests {
    /// The position of the oldest, or its low bits: what distinguishes it from the others.
    pub oldest: u64,
    /// How many, and the oldest one, for people.
    pub words: String,
}

/// Where kernels find a queue pair. Addresses are valid for kernels of the rank's device; null where the provider has no such thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueWords {
    /// The send queue, `entries` times 64 bytes (`bnxt_re`: consecutive entries of 48 bytes), zeros at first.
    pub ring: DeviceAddress,
    /// Entries of the ring, a power of two.
    pub entries: u32,
    /// Where the NIC writes completions: a collapsed completion queue entry of the provider's, at first of mlx5 all ones, of others
    /// zeros.
    ///
    /// In the same memory as what the queue's reads and atomic operations bring (a device's own, for device memory): writes of a NIC to
    /// two memories have no order, and kernels take what was read to be there when this says so. A driver that cannot do so says it
    /// ([`NicDriver::read_order`]); hardware drivers have completions in pinned host memory.
    pub completions: DeviceAddress,
    /// mlx5: the two words of the doorbell record, 64 bits aligned; the second is the send queue's.
    pub doorbell_record: DeviceAddress,
    /// The 64-bit word whose store rings the NIC's doorbell.
    pub doorbell: DeviceAddress,
    /// `bnxt_re`: the table of message sequence numbers, 8 bytes a row, twice as many rows as `entries`: the NIC counts messages modulo
    /// half its slots rounded up to a power of two (`npsn` of ROCm's mori, `providers/bnxt/bnxt.cpp`).
    pub sequence_table: DeviceAddress,
    /// Number of the queue pair, 24 bits.
    pub number: u32,
    /// Bytes of a packet on the path: once the queue pair is connected, what both ends agreed on. Kernels count packets by it.
    pub path_mtu: u32,
    /// Providers whose doorbell carries a value of the owner's: that value.
    pub doorbell_value: u64,
}
