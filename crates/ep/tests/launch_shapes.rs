//! Blocks of every number of waves, with rows that are whole numbers of what a wave moves at a time and rows that are not: the
//! launches have the shape that was asked for, and all kernels are right in it, bit by bit.

use crate::expert_major_common;

use crate::common::{Case, all_well, on_ranks, round, world_config};
use crate::expert_major_common::Bench;
use anabranch_conformance::ep::reference::ReferenceExpert;
use anabranch_ep::{CombineSource, EpConfig, EpShape, ExpertMajorConfig, ExpertParallel, Mode};

const WAVES: [u32; 5] = [1, 2, 4, 8, 16];

/// 16-byte units that a lane of dispatch moves at a time, the most of any kernel; others move a divisor of it.
const UNITS_A_LANE: u32 = 4;

/// Hidden sizes of bf16: one unit; what a wave moves at a time, a unit less and a unit more; several times that, and one and a half.
fn hidden_sizes(wave: u32) -> [u32; 6] {
    let (unit, wide) = (8, 8 * wave * UNITS_A_LANE);
    [unit, wide, wide - unit, wide + unit, 3 * wide, wide + wide / 2]
}

/// A case of each hidden size.
fn cases(wave: u32, waves: u32, mode: Mode, source: CombineSource) -> Vec<Case> {
    let case = |hidden| {
        let config = EpConfig::new(EpShape { hidden, experts: 7, top_k: 3, max_tokens: 33 })
            .mode(mode)
            .combine_source(source)
            .launch(3, waves);
        let staged = source == CombineSource::Buffer;
        // Ranks whose rows are cut into segments, or given to one wave each, and one without tokens.
        Case { config, staged, tokens: vec![33, 2, 0], ..Case::new(3, wave) }
    };
    hidden_sizes(wave).into_iter().map(case).collect()
}

/// A round of each case by plans whose every launch has `waves` waves a block.
fn run(cases: &[Case], waves: u32) {
    let wave = cases[0].wave;
    all_well(on_ranks(3, wave, &world_config(), |world| {
        let stream = world.device().create_stream()?;
        cases.iter().try_for_each(|case| {
            let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
            let tokens = case.tokens_of(ep.rank().get());
            for geometry in
                [ep.dispatch_geometry(tokens)?, ep.combine_geometry(tokens), ep.combine_push_geometry(tokens)]
            {
                assert_eq!(geometry.block_threads, waves * wave, "{geometry:?}");
            }
            let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
            round(&ep, &expert, &stream, world, case, 1)
        })
    }));
}

fn slotted_and_pulled(wave: u32) {
    for waves in WAVES {
        run(&cases(wave, waves, Mode::Slotted, CombineSource::Window), waves);
    }
}

#[test]
fn every_number_of_waves_with_rows_of_every_kind_slotted_and_pulled() {
    slotted_and_pulled(4);
}

#[test]
#[ignore = "extended"]
fn every_number_of_waves_of_64_with_rows_of_every_kind_slotted_and_pulled() {
    slotted_and_pulled(64);
}

#[test]
#[ignore = "extended"]
fn every_number_of_waves_with_rows_of_every_kind_compact_and_pushed() {
    for wave in [4, 64] {
        for waves in WAVES {
            run(&cases(wave, waves, Mode::Compact, CombineSource::Buffer), waves);
        }
    }
}

#[test]
#[ignore = "extended"]
fn every_number_of_waves_by_expert() {
    for wave in [4, 64] {
        for waves in WAVES {
            let cases = cases(wave, waves, Mode::Auto, CombineSource::Window);
            all_well(on_ranks(3, wave, &world_config(), |world| {
                let stream = world.device().create_stream()?;
                cases.iter().try_for_each(|case| {
                    let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
                    let mut bench = Bench::new(world, &ep, ExpertMajorConfig::new().alignment(4))?;
                    assert_eq!(bench.layout.geometry().block_threads, waves * wave);
                    expert_major_common::round(&ep, &mut bench, &stream, world, case, 1).map(drop)
                })
            }));
        }
    }
}
