//! Layout of the memory of one communicator: flags, packets, staging and counters of its channels. Pure arithmetic.

use anabranch_hip::DeviceAddress;
use anabranch_hip_jit::DevicePointer;
use anabranch_shmem::{SymmetricMemory, TeamView};

use crate::device::args::{ChannelState, CommView, Fingerprint, ROW_WORDS};

/// Bytes between the barrier flags of two sources: `MEET_STRIDE` in `ccl/meet.h`.
pub(crate) const MEET_STRIDE: u64 = 64;
/// Packets of one source, stage and parity of a channel.
pub const PACKET_UNITS: u32 = 512;
const PACKET_BYTES: u64 = 16;
/// Parities times stages.
const PACKET_SETS: u64 = 4;
/// The most channels of a communicator.
pub(crate) const MOST_BLOCKS: u32 = 1024;
/// The least bytes of staging of a communicator.
pub(crate) const LEAST_STAGING: u64 = 4096;
/// The most bytes of staging by default.
pub(crate) const MOST_STAGING: u64 = 512 << 20;
/// Alignment of the parts, bytes.
pub(crate) const ALIGNMENT: u64 = 256;

/// Offsets of the parts in the communicator's allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelLayout {
    /// Flags of barriers.
    pub flags: u64,
    /// Packets.
    pub packets: u64,
    /// Staging.
    pub staging: u64,
    /// Counters of channels, accessed by this rank only.
    pub channels: u64,
    /// Bytes in total.
    pub bytes: u64,
    /// Packets of one source, stage and parity.
    pub packet_units: u32,
    /// Bytes of the part of one source in one half.
    pub staging_bytes: u64,
}

impl ChannelLayout {
    /// The layout for `channels` channels and `members` members, with `packet_units` packets per source and about `staging` bytes of
    /// staging in total.
    pub fn new(members: u32, channels: u32, packet_units: u32, staging: u64) -> Self {
        let pieces = u64::from(channels) * 2 * u64::from(members);
        let staging_bytes = (staging / pieces / ALIGNMENT * ALIGNMENT).max(ALIGNMENT);
        Self::with(members, channels, packet_units, staging_bytes)
    }

    /// The layout with `staging_bytes` bytes of staging per channel, half and source: a multiple of 16.
    pub fn with(members: u32, channels: u32, packet_units: u32, staging_bytes: u64) -> Self {
        let (members, count) = (u64::from(members), u64::from(channels));
        let pieces = count * 2 * members;
        let mut end = 0u64;
        let mut place = |bytes: u64| {
            let start = end;
            end = (start + bytes).next_multiple_of(ALIGNMENT);
            start
        };
        let flags = place(count * members * MEET_STRIDE);
        let packets = place(count * PACKET_SETS * members * u64::from(packet_units) * PACKET_BYTES);
        let staging = place(pieces * staging_bytes);
        let channels = place(count * size_of::<ChannelState>() as u64);
        Self { flags, packets, staging, channels, bytes: end, packet_units, staging_bytes }
    }

    /// The layout for the comparison of calls: one channel without packets, whose staging holds a fingerprint and a row of each member.
    pub fn of_check(members: u32) -> Self {
        let message = (size_of::<Fingerprint>() + 8 * ROW_WORDS) as u64;
        Self::new(members, 1, 0, 2 * u64::from(members) * message.next_multiple_of(ALIGNMENT))
    }

    /// The view for kernels.
    pub(crate) fn comm(&self, team: TeamView, memory: &SymmetricMemory, operation: u32) -> CommView {
        self.view_at(team, memory.offset(), memory.address(), operation)
    }

    /// The view for kernels of an allocation at offset `start` of every heap, mapped at `address` on this rank.
    pub fn view_at(&self, team: TeamView, start: u64, address: DeviceAddress, operation: u32) -> CommView {
        CommView {
            team,
            channels: DevicePointer::new(address.offset(self.channels)),
            flags: start + self.flags,
            packets: start + self.packets,
            staging: start + self.staging,
            staging_bytes: self.staging_bytes,
            heap: address.0 - start,
            packet_units: self.packet_units,
            operation,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staging_of_the_check_holds_a_record_per_member() {
        for members in [1, 2, 3, 8, 63, 64, 65, 1000] {
            let layout = ChannelLayout::of_check(members);
            // A fingerprint, and 64 splits or 32 tensors of a list.
            let message = 20 * 8 + 64 * 16;
            assert!((message..message + ALIGNMENT).contains(&layout.staging_bytes), "{members}: {layout:?}");
            let end = layout.staging + 2 * u64::from(members) * layout.staging_bytes;
            assert!(end <= layout.channels && layout.channels < layout.bytes, "{members}: {layout:?}");
        }
    }
}
