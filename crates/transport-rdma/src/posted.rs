//! Requests that a thread of the host posts: what kernels write where they cannot write a NIC's own queue.

use anabranch_hip_jit::device_struct;

device_struct! {
    /// An entry of a send queue of [`Provider::Posted`](crate::Provider::Posted), 64 bytes, in memory of the host that kernels write.
    ///
    /// Kernels fill everything but `stamp`, release at system scope, and store `stamp`. Behind the entries of a request they store the
    /// position to which all are filled at `doorbell` (64 bits), in ascending order.
    pub struct PostedRequest {
        /// The position of this entry plus one, stored last: an entry of an earlier lap has another.
        pub stamp: u64,
        /// The local side of a write or read: an address in a registered range. Of operations that fetch: where the old value goes.
        pub local: u64,
        /// The address at the peer.
        pub remote: u64,
        /// What is added or swapped in; of `WRITE_VALUE`, the bytes, the first in the low byte.
        pub value: u64,
        /// What a compare-and-swap expects.
        pub compare: u64,
        /// Bytes of a write or read; of `WRITE_VALUE` 1, 2, 4 or 8.
        pub bytes: u32,
        /// What is asked for, a [`PostedOpcode`].
        pub opcode: u32,
        /// The key of `local`.
        pub local_key: u32,
        /// The key at the peer.
        pub remote_key: u32,
        /// Sent with `WRITE_IMMEDIATE`, in host byte order.
        pub immediate: u32,
        /// [`POSTED_FENCED`] or zero.
        pub flags: u32,
    }
}

/// Of [`PostedRequest::flags`]: not before the reads and atomic operations in front of it are done (verbs call it a fence).
pub const POSTED_FENCED: u32 = 1;

/// [`PostedRequest::opcode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum PostedOpcode {
    /// `bytes` from `local` to `remote`.
    Write = 1,
    /// The same, and `immediate` to the peer's receive queue.
    WriteImmediate = 2,
    /// `bytes` from `remote` to `local`.
    Read = 3,
    /// The low `bytes` of `value` to `remote`, in one piece.
    WriteValue = 4,
    /// 64 bits: the old value goes to `local`.
    FetchAdd = 5,
    /// 64 bits: `value` where `compare` was; the old value goes to `local`.
    CompareSwap = 6,
}

/// Words of 64 bits at `completions` of a posted queue. Word 0: the position up to which entries are complete. Word 1: zero, or, when
/// the queue pair has failed, the verbs status of the entry that failed, plus one, with its position above it (`position << 8 | status + 1`);
/// stored before word 0 stands still.
pub const POSTED_COMPLETION_WORDS: u64 = 2;
