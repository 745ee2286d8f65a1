//! Addresses of a slot on one rank.

use core::mem::offset_of;

use anabranch_hip::DeviceAddress;

use crate::args::SlotState;
use crate::plan::{OwnLayout, Plan, SlotLayout};

/// Addresses of the parts of one slot on one rank, for kernels.
#[derive(Clone, Copy, Debug)]
pub struct SlotAddresses {
    number: u32,
    heap: DeviceAddress,
    heap_offset: u64,
    layout: SlotLayout,
    pulls: bool,
    weights: bool,
    own: DeviceAddress,
    parts: OwnLayout,
}

impl SlotAddresses {
    /// Bytes of a slot's own memory.
    pub fn own_bytes(plan: &Plan) -> u64 {
        OwnLayout::of(plan).bytes
    }

    /// The plan's slot of this number, with the start of its symmetric part, as an address and as an offset in the heap, and of its
    /// own memory.
    pub fn new(
        plan: &Plan,
        number: u32,
        (heap, heap_offset): (DeviceAddress, u64),
        own: DeviceAddress,
    ) -> Self {
        let (pulls, weights) = (plan.config().combine_source.pulls(), plan.config().combine_weights);
        Self {
            number,
            heap,
            heap_offset,
            layout: *plan.layout(),
            pulls,
            weights,
            own,
            parts: OwnLayout::of(plan),
        }
    }

    /// The slot's number in the plan.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// An address of the slot's own memory as an offset from its start.
    pub fn own_offset(&self, address: DeviceAddress) -> usize {
        (address.0 - self.own.0) as usize
    }

    /// The slot's offset in the heap.
    pub fn heap_offset(&self) -> u64 {
        self.heap_offset
    }

    /// Rows received.
    pub fn rows(&self) -> DeviceAddress {
        self.heap.offset(self.layout.rows)
    }

    /// Meta records received.
    pub fn meta(&self) -> DeviceAddress {
        self.heap.offset(self.layout.meta)
    }

    /// Null where nothing is pulled.
    pub fn combine_rows(&self) -> DeviceAddress {
        if self.pulls { self.heap.offset(self.layout.combine_rows) } else { DeviceAddress::NULL }
    }

    /// Null where weights are not combined.
    pub fn combine_weights(&self) -> DeviceAddress {
        if self.weights { self.heap.offset(self.layout.combine_weights) } else { DeviceAddress::NULL }
    }

    /// The late window, in a plan with late weights.
    pub fn late_weights(&self) -> DeviceAddress {
        self.heap.offset(self.layout.late_weights)
    }

    /// Whether the range and the slot's windows have bytes in common.
    pub fn overlaps(&self, address: DeviceAddress, bytes: u64) -> bool {
        let start = self.heap.0;
        address.0 < start + self.layout.bytes && start < address.0 + bytes
    }

    /// The slot's words.
    pub fn state(&self) -> DeviceAddress {
        self.own.offset(self.parts.state)
    }

    /// Copies that were dropped, one u32.
    pub fn dropped_count(&self) -> DeviceAddress {
        self.state().offset(offset_of!(SlotState, dropped_count) as u64)
    }

    /// Copies for masked ranks, one u32.
    pub fn masked_count(&self) -> DeviceAddress {
        self.state().offset(offset_of!(SlotState, masked_count) as u64)
    }

    /// Which ranks the last combine left out, `[ranks]` u64, in a plan with masks.
    pub fn settled(&self) -> DeviceAddress {
        self.own.offset(self.parts.settled)
    }

    /// Staged rows, which copy engines read or kernels put.
    pub fn staged_rows(&self) -> DeviceAddress {
        self.heap.offset(self.layout.staged_rows)
    }

    /// Their meta records.
    pub fn staged_meta(&self) -> DeviceAddress {
        self.heap.offset(self.layout.staged_meta)
    }

    /// Positions after the packets in the queues of engines, `[ranks]`.
    pub fn posted(&self) -> DeviceAddress {
        self.own.offset(self.parts.posted)
    }

    /// Tokens for each node, in a plan whose tokens go once to each.
    #[cfg(feature = "rdma")]
    pub fn relayed(&self) -> DeviceAddress {
        self.own.offset(self.parts.relayed)
    }

    /// Rows of each source for each rank of this node, in such a plan.
    #[cfg(feature = "rdma")]
    pub fn forwarded(&self) -> DeviceAddress {
        self.own.offset(self.parts.forwarded)
    }

    /// Copies for each rank, `[ranks]` u32.
    pub fn routed(&self) -> DeviceAddress {
        self.own.offset(self.parts.routed)
    }

    /// Copies for each rank that a count adds up, `[ranks]` u32; zero between launches.
    pub fn tally(&self) -> DeviceAddress {
        self.own.offset(self.parts.tally)
    }

    /// Where this rank's rows begin at each rank, `[ranks]` u32.
    pub fn bases(&self) -> DeviceAddress {
        self.own.offset(self.parts.bases)
    }

    /// Capacity for this rank's rows at each rank, `[ranks]` u32.
    pub fn capacity(&self) -> DeviceAddress {
        self.own.offset(self.parts.capacity)
    }

    /// Rows received from each rank, `[ranks]` u32.
    pub fn counts(&self) -> DeviceAddress {
        self.own.offset(self.parts.counts)
    }

    /// Running sum of the counts, `[ranks + 1]` u32.
    pub fn offsets(&self) -> DeviceAddress {
        self.own.offset(self.parts.offsets)
    }

    /// The send map, `[max_tokens][fan_out]` u64.
    pub fn send_map(&self) -> DeviceAddress {
        self.own.offset(self.parts.send_map)
    }

    /// The number of tokens of the last dispatch, in plans with device token counts.
    pub fn token_count(&self) -> DeviceAddress {
        self.state().offset(offset_of!(SlotState, token_count) as u64)
    }
}
