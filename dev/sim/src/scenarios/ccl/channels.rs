//! The channels of a communicator before a run and behind it.

use anabranch_ccl::lowered::ChannelLayout;
use anabranch_ccl::lowered::ChannelState;
use anabranch_hip_jit::bytemuck::Zeroable as _;

use super::super::bench::Bench;
use super::round::Draw;
use crate::{Case, Failure};

/// Bits of an epoch where epochs are short: the fewest that there can be.
const SHORT: u32 = 2;
/// `MEET_STRIDE` in `ccl/meet.h`.
const MEET_STRIDE: u64 = 64;

/// Bits of a case's epochs.
pub(super) const fn epoch_bits(case: &Case) -> u32 {
    if case.staged { SHORT } else { u32::BITS }
}

/// Channels have been used before: as often as brings their counters' wrap into the run, or never.
pub(super) fn prepare(
    bench: &mut Bench,
    case: &Case,
    layout: &ChannelLayout,
    draw: &mut Draw,
) -> Result<(), Failure> {
    let mask = (1 << epoch_bits(case)) - 1;
    let channels: Vec<[u64; 3]> = (0..case.blocks)
        .map(|_| [0; 3].map(|_| if draw.below(2) == 0 { 0 } else { mask - draw.below(4).min(mask) }))
        .collect();
    for rank in 0..case.ranks as usize {
        let heap = bench.ranks[rank].heap;
        let states: Vec<_> = channels
            .iter()
            .map(|[epoch, meets, uses]| ChannelState {
                epoch: *epoch,
                meets: *meets,
                uses: *uses,
                ..ChannelState::zeroed()
            })
            .collect();
        bench.put(heap, layout.channels, &states)?;
        for (channel, [_, meets, _]) in channels.iter().enumerate() {
            for source in 0..u64::from(case.ranks) {
                let word = layout.flags + (channel as u64 * u64::from(case.ranks) + source) * MEET_STRIDE;
                bench.put(heap, word, &[meets & mask])?;
            }
        }
    }
    Ok(())
}

/// All members have advanced their channels alike.
pub(super) fn judge(bench: &Bench, case: &Case, layout: &ChannelLayout) -> Result<(), Failure> {
    // Epoch, meetings and uses of each.
    let channels = |rank: usize| {
        let states =
            bench.get::<ChannelState>(bench.ranks[rank].heap, layout.channels, case.blocks as usize)?;
        let counters =
            states.iter().map(|channel| [channel.epoch, channel.meets, channel.uses]).collect::<Vec<_>>();
        Ok::<_, Failure>(counters)
    };
    let first = channels(0)?;
    for rank in 1..bench.ranks.len() {
        let other = channels(rank)?;
        if let Some(channel) = (0..first.len()).find(|channel| first[*channel] != other[*channel]) {
            return Err(Failure::new(format!(
                "channel {channel} of rank {rank} is {:?}, and of rank 0 {:?}",
                other[channel], first[channel]
            )));
        }
    }
    Ok(())
}
