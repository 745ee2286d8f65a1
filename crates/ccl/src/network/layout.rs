//! The memory of one communicator's links: what is in `ccl/links.h`. Pure arithmetic.

use anabranch_hip::DeviceAddress;
use anabranch_hip_jit::DevicePointer;
use anabranch_shmem::{SymmetricMemory, TeamView};

use super::schedule::{DEPTH, STREAMS};
use crate::device::args::{LinkState, Links};
use crate::device::channel::ALIGNMENT;

/// Lanes on a large GPU where members are on several nodes: a NIC is slower than links inside, and takes fewer blocks to fill. Many
/// members have fewer, so that their slots are not too short.
pub(crate) const CROSSING_LANES: u32 = 32;

/// Bytes between two words that different members write: `LINK_LINE` in `ccl/links.h`.
const LINK_LINE: u64 = 64;
/// Slots are not made larger: more in flight, and not longer chunks, is what fills a link.
const MOST_SLOT_BYTES: u64 = 128 << 10;
/// Local memory of a block before the counters: `LOCAL_LINKS` in `ccl/links.h`.
const LOCAL_LINKS: u32 = 8;

/// The memory of one communicator's links. Offsets in the communicator's allocation; equal on all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkLayout {
    /// `[lanes][streams][members]` lines: chunks that each source has given.
    pub arrived: u64,
    /// `[lanes][streams][members]` lines: chunks that each target has taken.
    pub consumed: u64,
    /// `[lanes][streams][members as sources][depth]` slots that peers write.
    pub incoming: u64,
    /// `[lanes][streams][members as targets][depth]` slots that the NIC reads.
    pub outgoing: u64,
    /// `[lanes][streams][members]` counters, used by this rank alone.
    pub states: u64,
    /// Where it ends.
    pub end: u64,
    /// Bytes of a slot, a multiple of 256.
    pub slot_bytes: u64,
}

impl LinkLayout {
    /// Links between all of `members` members from byte `start` on, for launches of up to `lanes` blocks: about `bytes` bytes of
    /// slots.
    pub fn new(start: u64, members: u32, lanes: u32, bytes: u64) -> Self {
        let links = u64::from(lanes) * u64::from(STREAMS) * u64::from(members);
        let slots = links * u64::from(DEPTH);
        let slot_bytes = (bytes / (2 * slots) / ALIGNMENT * ALIGNMENT).clamp(ALIGNMENT, MOST_SLOT_BYTES);
        Self::with(start, members, lanes, slot_bytes)
    }

    /// The same with slots of so many bytes: a multiple of 16.
    pub fn with(start: u64, members: u32, lanes: u32, slot_bytes: u64) -> Self {
        let links = u64::from(lanes) * u64::from(STREAMS) * u64::from(members);
        let slots = links * u64::from(DEPTH);
        let mut end = start.next_multiple_of(ALIGNMENT);
        let mut place = |bytes: u64| {
            let start = end;
            end = (start + bytes).next_multiple_of(ALIGNMENT);
            start
        };
        let arrived = place(links * LINK_LINE);
        let consumed = place(links * LINK_LINE);
        let incoming = place(slots * slot_bytes);
        let outgoing = place(slots * slot_bytes);
        let states = place(links * size_of::<LinkState>() as u64);
        Self { arrived, consumed, incoming, outgoing, states, end, slot_bytes }
    }

    /// Local memory of a block: its counters, then an address and a number for each port of a step.
    pub const fn local_bytes(members: u32) -> u32 {
        LOCAL_LINKS + 16 * STREAMS * members + 16 * most_ports(members)
    }

    /// What the kernel gets.
    pub(crate) fn links(&self, team: TeamView, memory: &SymmetricMemory, operation: u32) -> Links {
        self.links_at(team, memory.offset(), memory.address(), operation)
    }

    /// The same for links in an allocation that lies `offset` bytes into the heap, and here at `memory`.
    pub fn links_at(&self, team: TeamView, offset: u64, memory: DeviceAddress, operation: u32) -> Links {
        Links {
            team,
            states: DevicePointer::new(memory.offset(self.states)),
            heap: memory.0 - offset,
            arrived: offset + self.arrived,
            consumed: offset + self.consumed,
            incoming: offset + self.incoming,
            outgoing: offset + self.outgoing,
            slot_bytes: self.slot_bytes,
            operation,
            reserved: 0,
        }
    }
}

/// Ports of a step: sources, the sum of the members before and targets, for as many members.
pub(super) const fn most_ports(members: u32) -> u32 {
    2 * members + 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn slots_fit_their_bytes(members in 1u32..200, lanes in 1u32..200, bytes in 4096u64..1 << 32) {
            let layout = LinkLayout::new(7, members, lanes, bytes);
            let links = u64::from(lanes * STREAMS * members);
            let slots = 2 * links * u64::from(DEPTH) * layout.slot_bytes;
            prop_assert!(slots <= bytes || layout.slot_bytes == ALIGNMENT);
            prop_assert!(layout.slot_bytes.is_multiple_of(256));
            prop_assert_eq!(layout.outgoing - layout.incoming, slots / 2);
            prop_assert!(layout.states >= layout.outgoing + slots / 2 && layout.end >= layout.states + links * 16);
        }
    }
}
