//! Expert-major rows and back on the host runtime, judged bit by bit.

use crate::common::{Case, Routing, Uploaded, all_well, world_config};
use crate::expert_major_common::{CANARY, run, write};
use anabranch_ep::{
    COMBINED_TYPES, DataType, DispatchCast, EpConfig, EpShape, ExpertMajor, ExpertMajorConfig,
    ExpertMajorPlan, ExpertMajorRows, ExpertParallel, Fp8Format, Mode, Plan, ROW_TYPES, ScaleLayout,
};
use anabranch_ranks::GroupRank;

#[test]
fn every_wave_width() {
    for wave in [1, 4, 32, 64] {
        run(&Case::new(4, wave), ExpertMajorConfig::new(), 3);
        run(&Case::new(3, wave), ExpertMajorConfig::new().alignment(16), 1);
    }
}

#[test]
fn every_number_of_ranks() {
    for ranks in [1, 2, 3, 5] {
        run(&Case::new(ranks, 1), ExpertMajorConfig::new().alignment(8), 2);
    }
}

fn types(dispatch_types: &[DataType]) {
    for &dispatch in dispatch_types {
        for combine in COMBINED_TYPES {
            let mut case = Case::new(2, 4);
            case.config = case.config.dispatch_type(dispatch).combine_type(combine).scale_bytes(20);
            run(&case, ExpertMajorConfig::new().alignment(4), 2);
        }
    }
}

#[test]
fn one_dispatch_type_and_every_combine_type() {
    types(&[DataType::F8E4m3]);
}

#[test]
#[ignore = "extended"]
fn every_dispatch_type_and_every_combine_type() {
    types(&ROW_TYPES);
}

#[test]
fn extreme_routings() {
    for routing in [Routing::Hot, Routing::Nowhere, Routing::Invalid] {
        for wave in [1, 32] {
            let mut case = Case::new(4, wave);
            case.routing = routing;
            run(&case, ExpertMajorConfig::new().alignment(2), 2);
        }
    }
}

#[test]
fn every_capacity_keeps_the_first_pairs_and_drops_the_rest() {
    let mut dropped = 0;
    for (capacity, alignment) in [(1, 1), (2, 2), (8, 8), (24, 8), (64, 64), (360, 1)] {
        for (routing, wave) in [(Routing::Random, 1), (Routing::Hot, 4)] {
            let mut case = Case::new(3, wave);
            case.routing = routing;
            let config = ExpertMajorConfig::new().capacity(capacity).alignment(alignment);
            dropped += run(&case, config, 2);
        }
    }
    assert!(dropped > 0, "no case has more pairs than room");
}

#[test]
#[ignore = "extended"]
fn both_modes_with_and_without_capacity_for_all_rows() {
    for mode in [Mode::Slotted, Mode::Compact] {
        for (max_recv, wave) in [(0, 1), (0, 32), (4, 1), (30, 4), (1000, 64)] {
            for routing in [Routing::Random, Routing::Hot] {
                let mut case = Case::new(4, wave);
                case.config = case.config.mode(mode).max_recv(max_recv);
                case.routing = routing;
                run(&case, ExpertMajorConfig::new().alignment(8), 2);
            }
        }
    }
}

#[test]
fn odd_shapes() {
    for (hidden, experts, top_k, tokens) in
        [(8, 1, 1, 1), (24, 2, 1, 3), (64, 3, 32, 5), (1000, 64, 8, 9), (72, 257, 9, 130)]
    {
        for wave in [1, 32] {
            // With three experts on four ranks one rank has none.
            let mut case = Case::new(4, wave);
            case.config = EpConfig::new(EpShape { hidden, experts, top_k, max_tokens: tokens });
            case.tokens = vec![tokens, tokens / 2, 0];
            run(&case, ExpertMajorConfig::new().alignment(4), 2);
        }
    }
}

#[test]
fn many_launch_shapes_give_the_same_bits() {
    for (blocks, waves) in [(1, 1), (1, 4), (3, 2), (8, 1), (64, 4), (200, 2)] {
        let mut case = Case::new(2, 4);
        case.config = case.config.launch(blocks, waves);
        run(&case, ExpertMajorConfig::new().alignment(32), 2);
    }
}

#[test]
fn an_alignment_of_a_thousand_rows() {
    let mut case = Case::new(2, 4);
    case.config = EpConfig::new(EpShape { hidden: 8, experts: 4, top_k: 2, max_tokens: 7 });
    run(&case, ExpertMajorConfig::new().alignment(1024), 2);
}

#[test]
fn scales_by_column_are_those_by_row() {
    for (wave, scale_bytes, capacity, routing) in
        [(1, 20, 0, Routing::Random), (4, 16, 8, Routing::Hot), (64, 4, 0, Routing::Nowhere)]
    {
        let mut case = Case::new(3, wave);
        case.config = case.config.scale_bytes(scale_bytes);
        case.routing = routing;
        let rows = all_well(case.on_ranks(&world_config(), |world| {
            let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
            let layout = |scales| {
                let config = ExpertMajorConfig::new().capacity(capacity).alignment(4).scale_layout(scales);
                let layout = ExpertMajor::new(&ep, config).unwrap();
                write(world.device(), layout.counts(), &vec![CANARY; layout.plan().bytes() as usize]);
                layout
            };
            let mut layouts =
                [ScaleLayout::Columns, ScaleLayout::PackedColumns, ScaleLayout::Rows].map(layout);
            let stream = world.device().create_stream()?;
            let uploaded = Uploaded::new(world.device(), &case.config, &case.inputs(1)[ep.rank().index()]);
            // Columns by the kernel of the dispatch, the others by their own.
            let dispatched = layouts[0].dispatch(&ep, &stream, &uploaded.tokens(&case.config))?;
            for layout in &mut layouts[1..] {
                layout.expand(&stream, &dispatched)?;
            }
            world.synchronize(&stream)?;
            let [columns, packed, rows] =
                layouts.map(|layout| ExpertMajorRows::read(world.device(), &layout).unwrap().experts);
            for ((columns, packed), rows) in columns.iter().zip(&packed).zip(&rows) {
                assert_eq!(columns.rows, rows.rows);
                assert_eq!(columns.scales, rows.scales);
                let width = scale_bytes as usize;
                let expected: Vec<u8> = rows.scales.chunks_exact(width).flat_map(packed_row).collect();
                assert_eq!(packed.scales, expected);
            }
            ep.release(&stream, dispatched)?;
            world.synchronize(&stream)?;
            Ok(rows.iter().map(|expert| expert.sources.len()).sum::<usize>())
        }));
        assert_eq!(rows.iter().sum::<usize>() > 0, !matches!(routing, Routing::Nowhere));
    }
}

#[test]
fn scales_of_a_cast_are_not_packed() {
    let shape = EpShape { hidden: 128, experts: 4, top_k: 2, max_tokens: 4 };
    let config = EpConfig::new(shape)
        .dispatch_cast(DispatchCast::Fp8Block(Fp8Format::E4m3fn))
        .dispatch_type(DataType::F8E4m3)
        .cast_from(DataType::Bf16);
    let plan = Plan::new(config, 2).unwrap();
    let config = ExpertMajorConfig::new().scale_layout(ScaleLayout::PackedColumns);
    let refused = ExpertMajorPlan::new(&plan, GroupRank::new(0), config).unwrap_err().to_string();
    assert!(refused.contains("scale_layout") && refused.contains("powers of two"), "{refused}");
}

/// The exponents of f32 scales, a byte each, with zeros up to a whole word.
fn packed_row(scales: &[u8]) -> Vec<u8> {
    let exponent = |scale: &[u8]| (u32::from_ne_bytes(scale.try_into().unwrap()) >> 23) as u8;
    let mut bytes: Vec<u8> = scales.chunks_exact(4).map(exponent).collect();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}
