//! Layout of the memory of the links of one communicator (`ccl/links.h`). Pure arithmetic.

use anabranch_hip::DeviceAddress;
use anabranch_hip_jit::DevicePointer;
use anabranch_ranks::LinkSpeeds;
use anabranch_shmem::{SymmetricMemory, TeamView};

use crate::device::args::{LinkState, Links};
use crate::device::channel::ALIGNMENT;

/// Channels on a large GPU with members on several nodes: a NIC is slower than links within a node, and fewer blocks fill it. Large groups
/// have fewer, so that their slots are not too small.
pub(crate) const INTERNODE_CHANNELS: u32 = 32;

/// Slots of a link: `LINK_DEPTH` in `ccl/links.h`.
pub(crate) const DEPTH: u32 = 4;
/// Links from one member to another: one of data of one hop, and one of results and of forwarded data.
pub(crate) const STREAMS: u32 = 2;

/// Requests to a NIC for each chunk sent: the chunk and its counter.
pub(super) const GIVEN: u64 = 2;
/// Requests to a NIC for each chunk received: the counter that frees the slot.
pub(super) const TAKEN: u64 = 1;
/// Requests per chunk of a member that sends as many as it receives.
const CHUNK_REQUESTS: u32 = (GIVEN + TAKEN) as u32;

/// Bytes between the counters of two links: `LINK_LINE` in `ccl/links.h`.
const LINK_LINE: u64 = 64;
/// The most bytes of a slot: more chunks in flight, not longer chunks, fill a link.
const MOST_SLOT_BYTES: u64 = 128 << 10;
/// Bytes of local memory before the counters: `LOCAL_LINKS` in `ccl/links.h`.
const LOCAL_LINKS: u32 = 8;

/// The memory of the links of one communicator. Offsets in the allocation of the communicator; equal on all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkLayout {
    /// `[channels][streams][members]` lines: chunks that each source has sent.
    pub arrived: u64,
    /// `[channels][streams][members]` lines: chunks that each target has received.
    pub consumed: u64,
    /// `[channels][streams][members as sources][depth]` slots that peers write.
    pub incoming: u64,
    /// `[channels][streams][members as targets][depth]` slots that the NIC reads.
    pub outgoing: u64,
    /// `[channels][streams][members]` counters, accessed by this rank only.
    pub states: u64,
    /// End of the links.
    pub end: u64,
    /// Bytes of a slot, a multiple of 256.
    pub slot_bytes: u64,
}

impl LinkLayout {
    /// Links between all pairs of `members` members, from offset `start` on, for launches of up to `channels` blocks, with about `bytes`
    /// bytes of slots.
    pub fn new(start: u64, members: u32, channels: u32, bytes: u64) -> Self {
        let links = u64::from(channels) * u64::from(STREAMS) * u64::from(members);
        let slots = links * u64::from(DEPTH);
        let slot_bytes = (bytes / (2 * slots) / ALIGNMENT * ALIGNMENT).clamp(ALIGNMENT, MOST_SLOT_BYTES);
        Self::with(start, members, channels, slot_bytes)
    }

    /// Links with slots of `slot_bytes` bytes: a multiple of 16.
    pub fn with(start: u64, members: u32, channels: u32, slot_bytes: u64) -> Self {
        let links = u64::from(channels) * u64::from(STREAMS) * u64::from(members);
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

    /// Bytes of local memory of a block: its counters, then an address and a counter for each port of a step.
    pub const fn local_bytes(members: u32) -> u32 {
        LOCAL_LINKS + 16 * STREAMS * members + 16 * most_ports(members)
    }

    /// The view for the kernel.
    pub(crate) fn links(&self, team: TeamView, memory: &SymmetricMemory, operation: u32) -> Links {
        self.links_at(team, memory.offset(), memory.address(), operation)
    }

    /// The view for the kernel of links in an allocation at offset `offset` of every heap, mapped at `memory` on this rank.
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

/// The most ports of a step: sources, the sum of previous nodes, and targets, for as many members.
pub(super) const fn most_ports(members: u32) -> u32 {
    2 * members + 2
}

/// Bytes of a chunk from which bytes, not requests, limit a NIC; a power of two.
pub(crate) fn full_chunk_bytes(speeds: &LinkSpeeds) -> u64 {
    (speeds.bytes_worth(CHUNK_REQUESTS).ceil() as u64).checked_next_power_of_two().unwrap_or(1 << 63)
}

/// The number of channels, 1 to `most`, for links between `members` members with `staging_bytes` bytes of slots: as many as leave each slot
/// capacity for a chunk that fills a NIC. All members share the bytes, so that larger groups have fewer channels.
pub(crate) fn channels_for(members: u32, staging_bytes: u64, most: u32, speeds: &LinkSpeeds) -> u32 {
    let full = full_chunk_bytes(speeds);
    let is_full = |channels: &u32| LinkLayout::new(0, members, *channels, staging_bytes).slot_bytes >= full;
    (1..=most).rev().find(is_full).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn full_chunk_takes_at_least_as_long_as_its_requests() {
        let speeds = LinkSpeeds::default();
        let requests = f64::from(CHUNK_REQUESTS) * speeds.nic_message_us;
        let us = |bytes: u64| speeds.between_us(bytes as f64);
        assert!(us(full_chunk_bytes(&speeds)) >= requests && us(full_chunk_bytes(&speeds) / 2) < requests);
    }

    #[test]
    fn larger_groups_have_fewer_channels_with_full_chunks() {
        let of = |members| channels_for(members, 512 << 20, 32, &LinkSpeeds::default());
        let channels: Vec<_> = [2, 8, 64, 128, 256, 512, 1024].map(of).into();
        assert!(channels.is_sorted_by(|one, next| one >= next), "{channels:?}");
        assert_eq!((channels[0], channels[2]), (32, 32), "enough bytes for all channels");
        assert!(channels[6] > 0 && channels[6] < channels[4] && channels[4] < 32, "{channels:?}");
        for (members, channels) in [2, 8, 64, 128, 256, 512, 1024].into_iter().zip(&channels) {
            let slot = |channels| LinkLayout::new(0, members, channels, 512 << 20).slot_bytes;
            assert!(slot(*channels) >= full_chunk_bytes(&LinkSpeeds::default()), "{members}");
            assert!(
                *channels == 32 || slot(channels + 1) < full_chunk_bytes(&LinkSpeeds::default()),
                "{members}"
            );
        }
        assert_eq!(channels_for(64, 4096, 32, &LinkSpeeds::default()), 1, "slots too small for full chunks");
        assert_eq!(channels_for(2, 512 << 20, 4, &LinkSpeeds::default()), 4, "at most the given channels");
    }

    proptest! {
        #[test]
        fn slots_fit_into_the_given_bytes(members in 1u32..200, channels in 1u32..200, bytes in 4096u64..1 << 32) {
            let layout = LinkLayout::new(7, members, channels, bytes);
            let links = u64::from(channels * STREAMS * members);
            let slots = 2 * links * u64::from(DEPTH) * layout.slot_bytes;
            prop_assert!(slots <= bytes || layout.slot_bytes == ALIGNMENT);
            prop_assert!(layout.slot_bytes.is_multiple_of(256));
            prop_assert_eq!(layout.outgoing - layout.incoming, slots / 2);
            prop_assert!(layout.states >= layout.outgoing + slots / 2 && layout.end >= layout.states + links * 16);
        }
    }
}
