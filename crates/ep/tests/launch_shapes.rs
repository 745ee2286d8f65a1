//! Blocks of every number of waves, with rows that are whole numbers of what a wave moves at a time and rows that are not: the
//! launches have the shape that was asked for, and all kernels are right in it, bit by bit.

mod common;
mod expert_major_common;

use anabranch_ep::reference::ReferenceExpert;
use anabranch_ep::{CombineSource, EpConfig, ExpertMajorConfig, ExpertParallel, Mode};
use common::{Case, all_well, on_ranks, round, world_config};
use expert_major_common::Bench;

const WAVES: [u32; 5] = [1, 2, 4, 8, 16];

/// 16-byte units that a lane of dispatch moves at a time, the most of any kernel; others move a divisor of it.
const UNITS_A_LANE: u32 = 4;

/// Hidden sizes of bf16: one unit; what a wave moves at a time, a unit less and a unit more; several times that, and one and a half.
fn hidden_sizes(wave: u32) -> [u32; 6] {
    let (unit, wide) = (8, 8 * wave * UNITS_A_LANE);
    [unit, wide, wide - unit, wide + unit, 3 * wide, wide + wide / 2]
}

fn cases(wave: u32, waves: u32, mode: Mode) -> impl Iterator<Item = Case> {
    hidden_sizes(wave).into_iter().map(move |hidden| {
        let config = EpConfig::new(hidden, 7, 3, 33).mode(mode).launch(3, waves);
        // Ranks whose rows are cut into segments, or given to one wave each, and one without tokens.
        Case { config, tokens: vec![33, 2, 0], ..Case::new(3, wave) }
    })
}

/// Whole rounds by a plan whose every launch has `waves` waves a block.
fn run(case: &Case, waves: u32) {
    all_well(on_ranks(case.ranks, case.wave, &world_config(), |world| {
        let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
        let tokens = case.tokens_of(ep.rank().get());
        for geometry in
            [ep.dispatch_geometry(tokens)?, ep.combine_geometry(tokens), ep.combine_push_geometry(tokens)]
        {
            assert_eq!(geometry.block_threads, waves * case.wave, "{geometry:?}");
        }
        let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
        let stream = world.device().create_stream()?;
        round(&ep, &expert, &stream, world, case, 1)
    }));
}

#[test]
fn every_number_of_waves_with_rows_of_every_kind_slotted_and_pulled() {
    for wave in [4, 64] {
        for waves in WAVES {
            for mut case in cases(wave, waves, Mode::Slotted) {
                case.config = case.config.combine_source(CombineSource::Window);
                run(&case, waves);
            }
        }
    }
}

#[test]
fn every_number_of_waves_with_rows_of_every_kind_compact_and_pushed() {
    for wave in [4, 64] {
        for waves in WAVES {
            for mut case in cases(wave, waves, Mode::Compact) {
                case.config = case.config.combine_source(CombineSource::Buffer);
                case.staged = true;
                run(&case, waves);
            }
        }
    }
}

#[test]
fn every_number_of_waves_by_expert() {
    for wave in [4, 64] {
        for waves in WAVES {
            for case in cases(wave, waves, Mode::Auto) {
                all_well(on_ranks(case.ranks, case.wave, &world_config(), |world| {
                    let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
                    let mut bench = Bench::new(world, &ep, ExpertMajorConfig::new().alignment(4))?;
                    assert_eq!(bench.layout.geometry().block_threads, waves * case.wave);
                    let stream = world.device().create_stream()?;
                    expert_major_common::round(&ep, &mut bench, &stream, world, &case, 1)
                }));
            }
        }
    }
}
