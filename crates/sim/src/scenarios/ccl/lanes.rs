//! The lanes of a channel before a run and behind it.

use anabranch_ccl::args::LaneState;
use anabranch_ccl::channel::ChannelLayout;
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

/// Lanes have been used before: as often as brings their counters' wrap into the run, or never.
pub(super) fn prepare(
    bench: &mut Bench,
    case: &Case,
    layout: &ChannelLayout,
    draw: &mut Draw,
) -> Result<(), Failure> {
    let mask = (1 << epoch_bits(case)) - 1;
    let lanes: Vec<[u64; 3]> = (0..case.blocks)
        .map(|_| [0; 3].map(|_| if draw.below(2) == 0 { 0 } else { mask - draw.below(4).min(mask) }))
        .collect();
    for rank in 0..case.ranks as usize {
        let heap = bench.ranks[rank].heap;
        let states: Vec<_> = lanes
            .iter()
            .map(|[epoch, meets, uses]| LaneState {
                epoch: *epoch,
                meets: *meets,
                uses: *uses,
                ..LaneState::zeroed()
            })
            .collect();
        bench.put(heap, layout.lanes, &states)?;
        for (lane, [_, meets, _]) in lanes.iter().enumerate() {
            for source in 0..u64::from(case.ranks) {
                let word = layout.flags + (lane as u64 * u64::from(case.ranks) + source) * MEET_STRIDE;
                bench.put(heap, word, &[meets & mask])?;
            }
        }
    }
    Ok(())
}

/// All members have advanced their lanes alike.
pub(super) fn judge(bench: &Bench, case: &Case, layout: &ChannelLayout) -> Result<(), Failure> {
    // Epoch, meetings, uses and chunks of each.
    let lanes = |rank: usize| {
        let states = bench.get::<LaneState>(bench.ranks[rank].heap, layout.lanes, case.blocks as usize)?;
        let counters =
            states.iter().map(|lane| [lane.epoch, lane.meets, lane.uses, lane.chunks]).collect::<Vec<_>>();
        Ok::<_, Failure>(counters)
    };
    let first = lanes(0)?;
    for rank in 1..bench.ranks.len() {
        let other = lanes(rank)?;
        if let Some(lane) = (0..first.len()).find(|lane| first[*lane] != other[*lane]) {
            return Err(Failure::new(format!(
                "lane {lane} of rank {rank} is {:?}, and of rank 0 {:?}",
                other[lane], first[lane]
            )));
        }
    }
    Ok(())
}
