//! Layout of the memory of the pipes of one communicator, and how messages are divided. Pure arithmetic.

use anabranch_hip::DeviceAddress;
use anabranch_hip_jit::DevicePointer;
use anabranch_shmem::{SymmetricMemory, TeamView};

use crate::device::args::{PipeState, Pipes};
use crate::device::channel::ALIGNMENT;

/// Bytes between the counters of two pipes: `PIPE_LINE` in `ccl/pipe.h`.
const PIPE_LINE: u64 = 64;
/// Slots of a pipe: one being read, one being written, and two in flight.
const PIPE_DEPTH: u32 = 4;
/// The most pipes from one member to another: blocks that fill a link. On two H100 of one host, 2026-11-27, a send and a receive of 1 GiB at
/// once ran at 257 GB/s with 16, at 300 with 32, and at 302 with 64, in slots of 128 KiB. On four H200, 2026-11-28, with 32 pipes between
/// neighbours: at 207 GB/s in slots of 64 KiB, at 298 of 128 KiB, and at 341 of 256 KiB.
const MOST_PIPES: u32 = 32;
/// The least bytes of a slot if there are several pipes.
const SLOT_BYTES: u64 = 16 << 10;
/// Bytes of a message per pipe.
const PIPE_GRAIN: u64 = 8 << 10;
/// Bytes of local memory for each pipe of a block: `CURSOR_BYTES` and `LOCAL_CURSORS` in `ccl/pipe.h`.
const CURSOR_BYTES: u32 = 24;
const LOCAL_CURSORS: u32 = 16;
/// Bytes of local memory of a block for its pipes.
pub(crate) const PIPE_LOCAL_BYTES: u32 = 8 << 10;

/// The memory of the pipes of one communicator. Offsets in the allocation of the communicator; equal on all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipeLayout {
    /// `[members][width]` lines: chunks that have arrived, headers.
    pub arrived: u64,
    /// `[members][width]` lines: chunks that were received.
    pub consumed: u64,
    /// `[members][width][depth]` slots.
    pub slots: u64,
    /// Counters, accessed by this rank only.
    pub states: u64,
    /// End of the pipes.
    pub end: u64,
    /// Pipes from one member to another.
    pub width: u32,
    /// Slots of each pipe.
    pub depth: u32,
    /// Bytes of a slot.
    pub slot_bytes: u64,
}

impl PipeLayout {
    /// Pipes between all pairs of `members` members, from offset `start` on, for launches of up to `channels` blocks, with about `bytes`
    /// bytes of slots at each member.
    pub fn new(start: u64, members: u32, channels: u32, bytes: u64) -> Self {
        let of_pair = bytes / u64::from(members) / u64::from(PIPE_DEPTH);
        // A launch of few blocks to and from all members needs local memory for all pipes of each block.
        let served =
            u64::from(PIPE_LOCAL_BYTES / CURSOR_BYTES) * u64::from(channels) / (2 * u64::from(members));
        let most = u64::from(MOST_PIPES.min(channels)).min(served).max(1);
        let width = (of_pair / SLOT_BYTES).clamp(1, most);
        let slot_bytes = (of_pair / width / ALIGNMENT * ALIGNMENT).max(ALIGNMENT);
        let pairs = u64::from(members) * width;
        let mut end = start.next_multiple_of(ALIGNMENT);
        let mut place = |bytes: u64| {
            let start = end;
            end = (start + bytes).next_multiple_of(ALIGNMENT);
            start
        };
        let arrived = place(pairs * PIPE_LINE);
        let consumed = place(pairs * PIPE_LINE);
        let slots = place(pairs * u64::from(PIPE_DEPTH) * slot_bytes);
        let states = place(pairs * size_of::<PipeState>() as u64);
        Self { arrived, consumed, slots, states, end, width: width as u32, depth: PIPE_DEPTH, slot_bytes }
    }

    const fn least_bytes(&self) -> u64 {
        if self.slot_bytes < PIPE_GRAIN { self.slot_bytes } else { PIPE_GRAIN }
    }

    /// Pipes that a message of `bytes` bytes uses. `cut_of` in `ccl/pipe.h` cuts it.
    pub(crate) fn pipes_of(&self, bytes: u64) -> u32 {
        let share = bytes.div_ceil(self.width.into()).next_multiple_of(256);
        let chunk = share.max(self.least_bytes()).min(self.slot_bytes);
        bytes.div_ceil(chunk).clamp(1, self.width.into()) as u32
    }

    /// Bytes of local memory of a block, in a launch of `blocks` blocks with `pipes` pipes in total.
    pub fn local_bytes(pipes: u32, blocks: u32) -> u32 {
        LOCAL_CURSORS + pipes.div_ceil(blocks) * CURSOR_BYTES
    }

    /// The view for the kernel.
    pub(crate) fn pipes(&self, team: TeamView, memory: &SymmetricMemory, operation: u32) -> Pipes {
        self.pipes_at(team, memory.offset(), memory.address(), operation)
    }

    /// The view for the kernel of pipes in an allocation at offset `offset` of every heap, mapped at `memory` on this rank.
    pub fn pipes_at(&self, team: TeamView, offset: u64, memory: DeviceAddress, operation: u32) -> Pipes {
        Pipes {
            team,
            states: DevicePointer::new(memory.offset(self.states)),
            arrived: offset + self.arrived,
            consumed: offset + self.consumed,
            slots: offset + self.slots,
            slot_bytes: self.slot_bytes,
            width: self.width,
            depth: self.depth,
            least_bytes: self.least_bytes() as u32,
            operation,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pipes_fit_into_staging_with_their_cursors_in_local_memory(
            members in 1u32..200, channels in 1u32..200, bytes in 4096u64..1 << 30, length in 0u64..1 << 40,
        ) {
            let layout = PipeLayout::new(7, members, channels, bytes);
            let slots = u64::from(members * layout.width * layout.depth) * layout.slot_bytes;
            // One slot per pair is the minimum.
            prop_assert!(slots <= bytes || layout.slot_bytes == ALIGNMENT && layout.width == 1);
            prop_assert!(layout.states > layout.slots && layout.end >= layout.states + u64::from(members) * 16);
            prop_assert!((1..=layout.width).contains(&layout.pipes_of(length)));
            let all = 2 * members * layout.width;
            let fits = PipeLayout::local_bytes(all, channels.min(all)) <= LOCAL_CURSORS + PIPE_LOCAL_BYTES;
            prop_assert!(fits || layout.width == 1);
        }
    }
}
