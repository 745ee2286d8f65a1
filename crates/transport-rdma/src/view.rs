//! What kernels know of a queue pair.

use anabranch_hip_jit::{DevicePointer, device_struct};

use crate::posted::PostedRequest;

device_struct! {
    /// A range of this rank's memory that its NIC may read and write.
    pub struct RdmaRange {
        /// Its first byte.
        pub address: u64,
        /// Bytes.
        pub bytes: u64,
        /// The key by which entries name it.
        pub key: u32,
        /// Zero.
        pub reserved: u32,
    }
}

device_struct! {
    /// How kernels of a rank reach a peer by its NIC: one of its queue pairs to that peer (`rdma/queue.h`).
    pub struct RdmaQueue {
        /// The send queue, entries of 64 bytes: [`PostedRequest`]s where the host posts, else in the NIC's format.
        pub ring: DevicePointer<PostedRequest>,
        /// The collapsed completion queue entry, 64 bytes.
        pub completions: DevicePointer<u64>,
        /// mlx5: the doorbell record.
        pub doorbell_record: DevicePointer<u32>,
        /// The doorbell.
        pub doorbell: DevicePointer<u64>,
        /// `bnxt_re`: message sequence numbers.
        pub sequence_table: DevicePointer<u64>,
        /// The position, in entries, up to which room is taken. mlx5: bit 63 says that the entry before is of two blocks; `bnxt_re`:
        /// bits 40 to 63 are the next packet sequence number. `committed` and `completed` start as the position.
        pub reserved: DevicePointer<u64>,
        /// The position up to which entries have been made known.
        pub committed: DevicePointer<u64>,
        /// The position up to which entries are known to be complete.
        pub completed: DevicePointer<u64>,
        /// Where what atomic operations and reads of single values bring is put: [`Self::results_bytes`], zeros before the first use.
        /// Uncached memory of the device, registered, and this queue's own.
        pub results: DevicePointer<u64>,
        /// Where this rank's registered memory is, the heap first.
        pub ranges: DevicePointer<RdmaRange>,
        /// Where the peer's heap starts, by the address that its NIC knows it by.
        pub remote_base: u64,
        /// Bytes of it.
        pub remote_bytes: u64,
        /// Providers whose doorbell carries a value of the owner's: that value.
        pub doorbell_value: u64,
        /// Entries of the ring, a power of two.
        pub entries: u32,
        /// Number of the queue pair.
        pub number: u32,
        /// The key of the peer's heap.
        pub remote_key: u32,
        /// The key of `results`.
        pub results_key: u32,
        /// Ranges in `ranges`.
        pub range_count: u32,
        /// The most bytes of one write or read, at least 1.
        pub most_message_bytes: u32,
        /// `bnxt_re`: bytes of a packet on the path, at least 1.
        pub path_mtu: u32,
        /// How the peer is reached: [`ROUTE_MAPPING`] or [`ROUTE_NIC`].
        pub route: u32,
        /// The peer, as a rank of the group whose table this stands in; for fault records.
        pub peer: u32,
        /// 1: the peer's NIC takes immediate values ([`NicDriver::takes_immediates`](crate::NicDriver::takes_immediates)); else 0.
        pub immediates: u32,
        /// [`ReadOrder::number`](crate::ReadOrder::number): 0 refuses what brings values, 1 needs nothing for it, 2 puts a DUMP entry
        /// behind it.
        pub read_order: u32,
        /// Zero.
        pub reserved_word: u32,
    }
}

impl RdmaQueue {
    /// Bytes of [`Self::results`] of a ring with `entries`: for each entry a value and the position that waits for it, and one more
    /// place for unused values.
    pub const fn results_bytes(entries: u32) -> u64 {
        (entries as u64 + 1) * 16
    }
}

/// [`RdmaQueue::route`]: by loads and stores; there is no queue pair.
pub const ROUTE_MAPPING: u32 = 0;
/// [`RdmaQueue::route`]: by this queue pair.
pub const ROUTE_NIC: u32 = 3;
