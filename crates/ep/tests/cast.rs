//! Rows cast inside dispatch on the host runtime, judged bit by bit: codes, scales, and what combine makes of them.

use crate::expert_major_common;
use anabranch_conformance::ep::ElementValues as _;

use crate::common::{
    Case, Input, Numbers, Routing, Uploaded, all_well, judge_output, judge_rows, on_ranks, oracle, round,
    run, work, world_config,
};
use anabranch_conformance::ep::reference::ReferenceExpert;
use anabranch_ep::{
    DataType, DeviceSlice, DispatchCast, EpConfig, EpShape, Error, ExpertMajorConfig, ExpertOutput,
    ExpertParallel, Fp8Format, Mode, Plan, Tokens,
};
use proptest::prelude::*;

const FORMATS: [Fp8Format; 2] = [Fp8Format::E4m3fn, Fp8Format::E4m3fnuz];

/// The configuration with rows of `from` cast to `format`.
fn casting(config: EpConfig, format: Fp8Format, from: DataType) -> EpConfig {
    let cast = DispatchCast::Fp8Block(format);
    config.dispatch_cast(cast).cast_from(from).dispatch_type(cast.data_type().unwrap())
}

fn case(ranks: u32, wave: u32, hidden: u32, format: Fp8Format, from: DataType) -> Case {
    let mut case = Case::new(ranks, wave);
    case.config.hidden = hidden;
    case.config = casting(case.config, format, from);
    case
}

#[test]
#[ignore = "extended"]
fn every_wave_width_mode_and_type() {
    for (wave, hidden) in [(1, 128), (4, 384), (32, 2176), (64, 1152)] {
        for mode in [Mode::Slotted, Mode::Compact] {
            for (format, from) in FORMATS.into_iter().zip([DataType::Bf16, DataType::F32]) {
                let mut case = case(3, wave, hidden, format, from);
                case.config = case.config.mode(mode);
                case.staged = mode == Mode::Compact;
                run(&case, 2);
            }
        }
    }
    run(&case(2, 32, 256, Fp8Format::E4m3fnuz, DataType::F16), 2);
}

#[test]
fn copies_beyond_capacity_are_dropped_and_the_others_are_cast() {
    for mode in [Mode::Slotted, Mode::Compact] {
        for routing in [Routing::Hot, Routing::Random, Routing::Invalid] {
            let mut case = case(3, 4, 256, Fp8Format::E4m3fn, DataType::Bf16);
            case.config = case.config.mode(mode).max_recv(20);
            case.routing = routing;
            run(&case, 2);
        }
    }
}

#[test]
fn few_and_many_blocks_and_waves() {
    for (blocks, waves) in [(1, 1), (3, 2), (16, 4)] {
        let mut case = case(2, 4, 640, Fp8Format::E4m3fn, DataType::Bf16);
        case.config = case.config.launch(blocks, waves);
        for tokens in [vec![1, 2], vec![40, 3]] {
            case.tokens = tokens;
            run(&case, 2);
        }
    }
}

#[test]
fn expert_major_rows_have_the_scales() {
    for (wave, mode) in [(4, Mode::Slotted), (32, Mode::Compact)] {
        let mut case = case(3, wave, 384, Fp8Format::E4m3fn, DataType::Bf16);
        case.config = case.config.mode(mode);
        expert_major_common::run(&case, ExpertMajorConfig::new().alignment(16), 2);
    }
}

/// Rows with blocks of zeros, of numbers too small for a scale of their own, of the largest numbers, and of what is none.
fn odd_rows(case: &Case, rank: u32, numbers: &mut Numbers) -> Input {
    let mut input = case.input(rank, 5);
    let from = case.config.cast_from;
    let odd =
        [0.0, -0.0, 1e-42, -3e-38, 1e-30, 3e38, -6e4, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1.0, -2.5];
    let mut values = vec![0.0; input.tokens.len() * 8 / from.bits() as usize];
    from.decode(&input.tokens, &mut values);
    for block in values.chunks_mut(128) {
        // Of one kind, of kinds mixed, or left alone.
        let one = odd[numbers.below(odd.len() as u32) as usize];
        match numbers.below(4) {
            0 => block.fill(one),
            1 => block[numbers.below(128) as usize] = one,
            2 => block.fill_with(|| odd[numbers.below(7) as usize]),
            _ => {}
        }
    }
    from.encode(&values, &mut input.tokens);
    input
}

fn every_kind_of_number(casts: &[(Fp8Format, DataType, u32)]) {
    for &(format, from, wave) in casts {
        let case = case(2, wave, 512, format, from);
        all_well(on_ranks(2, wave, &world_config(), |world| {
            let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
            let stream = world.device().create_stream()?;
            let mut numbers = Numbers(11);
            let inputs = [0, 1].map(|rank| odd_rows(&case, rank, &mut numbers));
            let uploaded = Uploaded::new(world.device(), &case.config, &inputs[ep.rank().index()]);
            let dispatched = ep.dispatch(&stream, &uploaded.tokens(&case.config))?;
            world.synchronize(&stream)?;
            let sent = case.sent(&inputs);
            judge_rows(&oracle(&case, &sent), ep.rank(), world.device(), &ep, &dispatched);
            ep.release(&stream, dispatched)?;
            world.synchronize(&stream).map_err(Error::from)
        }));
    }
}

#[test]
fn every_kind_of_number_has_its_code_and_scale() {
    every_kind_of_number(&[(Fp8Format::E4m3fnuz, DataType::F16, 4)]);
}

#[test]
#[ignore = "extended"]
fn every_kind_of_number_of_every_type_has_its_code_and_scale() {
    every_kind_of_number(&[
        (Fp8Format::E4m3fn, DataType::Bf16, 32),
        (Fp8Format::E4m3fn, DataType::F32, 64),
        (Fp8Format::E4m3fnuz, DataType::F32, 1),
    ]);
}

#[test]
fn in_halves_with_other_operations_between() {
    for mode in [Mode::Slotted, Mode::Compact] {
        let mut case = case(3, 4, 256, Fp8Format::E4m3fn, DataType::Bf16);
        case.config = case.config.mode(mode).slots(2);
        all_well(on_ranks(3, 4, &world_config(), |world| {
            let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
            let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
            let stream = world.device().create_stream()?;
            for number in 0..4 {
                let inputs = case.inputs(number);
                let uploaded = Uploaded::new(world.device(), &case.config, &inputs[ep.rank().index()]);
                let sent = ep.dispatch_send(&stream, &uploaded.tokens(&case.config))?;
                round(&ep, &expert, &stream, world, &case, number + 100)?;
                let dispatched = ep.dispatch_recv(&stream, sent)?;
                work(&expert, &stream, &dispatched)?;
                let combining = ep.combine_send(&stream, ExpertOutput::InWindow, dispatched)?;
                ep.combine_recv(&stream, combining, uploaded.output())?;
                world.synchronize(&stream)?;
                let cast = case.sent(&inputs);
                judge_output(&oracle(&case, &cast), ep.rank(), &uploaded.read_output(&case.config));
            }
            Ok(())
        }));
    }
}

fn refused(config: EpConfig) -> String {
    Plan::new(config, 2).unwrap_err().to_string()
}

#[test]
fn invalid_configurations_are_refused_with_the_reason() {
    let new = |hidden| EpConfig::new(EpShape { hidden, experts: 8, top_k: 2, max_tokens: 16 });
    let fnuz = casting(new(256), Fp8Format::E4m3fnuz, DataType::Bf16);
    for (config, words) in [
        (
            fnuz.clone().dispatch_type(DataType::F8E4m3),
            ["dispatch_type is float8_e4m3fn", "fp8_block_fnuz allowed are float8_e4m3fnuz"],
        ),
        (fnuz.clone().dispatch_type(DataType::Bf16), ["dispatch_type is bf16", "float8_e4m3fnuz"]),
        (fnuz.clone().cast_from(DataType::F8E4m3), ["cast_from is float8_e4m3fn", "bf16, f16, f32"]),
        (casting(new(192), Fp8Format::E4m3fn, DataType::Bf16), ["hidden is 192", "multiple of 128"]),
        (fnuz.clone().scale_bytes(12), ["scale_bytes is 12", "8 bytes a token: leave it at 0"]),
    ] {
        let text = refused(config);
        assert!(words.iter().all(|word| text.contains(word)), "{words:?} are not in: {text}");
    }
    // The plan sets the scales, and takes its own configuration again.
    let plan = Plan::new(fnuz, 2).unwrap();
    assert_eq!((plan.config().scale_bytes, plan.row_bytes(), plan.token_bytes()), (8, 256, 512));
    // And the numbers of pairs.
    assert_eq!(plan.meta_bytes(), (8_u32 + 8 * 2 + 8 + 4 * 2).next_multiple_of(16));
    assert_eq!(Plan::new(plan.config().clone(), 2).unwrap(), plan);
}

#[test]
fn wrong_rows_and_scales_are_refused_before_a_launch() {
    let mut case = case(2, 1, 128, Fp8Format::E4m3fn, DataType::Bf16);
    case.tokens = vec![20];
    all_well(on_ranks(2, 1, &world_config(), |world| {
        let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
        let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
        let stream = world.device().create_stream()?;
        let uploaded = Uploaded::new(world.device(), &case.config, &case.input(ep.rank().get(), 0));
        let good = uploaded.tokens(&case.config);
        // SAFETY: nothing is launched with these ranges: they are refused first.
        let part = |bytes| unsafe { DeviceSlice::from_raw(uploaded.rows.address(), bytes) };
        let wrong = [
            (
                Tokens { data_type: DataType::F8E4m3, ..good },
                "the type of the token rows is float8_e4m3fn, but the plan was made for bf16",
            ),
            (Tokens { rows: part(20 * 128), ..good }, "[20 tokens][128 hidden] bf16 needs 5120"),
            (
                Tokens { scales: Some(part(20 * 4)), ..good },
                "the length of a token's scales is 4 bytes, but the plan was made for none: dispatch_cast fp8_block",
            ),
        ];
        for (number, (tokens, words)) in wrong.iter().enumerate() {
            let text = ep.dispatch(&stream, tokens).map(|_| ()).unwrap_err().to_string();
            assert!(text.contains(words), "{words:?} is not in: {text}");
            round(&ep, &expert, &stream, world, &case, number as u64)?;
        }
        Ok(())
    }));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Any group, sizes, launch shape and room.
    #[test]
    #[ignore = "extended"]
    fn any_case(
        (ranks, blocks, hidden) in (1u32..6, 1u32..12, 1u32..6),
        (top_k, experts) in (1u32..9, 1u32..20),
        (cap, tokens) in (0u32..60, prop::collection::vec(0u32..=40, 1..5)),
        (wide, compact, staged, invalid) in any::<(bool, bool, bool, bool)>(),
        wave in prop_oneof![Just(1u32), Just(4), Just(32)],
        number in any::<u32>(),
    ) {
        let (format, from) = (FORMATS[blocks as usize % 2], if wide { DataType::F32 } else { DataType::Bf16 });
        let config = EpConfig::new(EpShape { hidden: hidden * 128, experts, top_k, max_tokens: 40 })
            .mode(if compact { Mode::Compact } else { Mode::Slotted })
            .max_recv(if cap == 0 { 0 } else { cap.max(ranks) })
            .launch(blocks, 0);
        let case = Case {
            config: casting(config, format, from),
            routing: if invalid { Routing::Invalid } else { Routing::Random },
            tokens,
            staged,
            ..Case::new(ranks, wave)
        };
        all_well(on_ranks(ranks, wave, &world_config(), |world| {
            let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
            let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
            let stream = world.device().create_stream()?;
            round(&ep, &expert, &stream, world, &case, number.into())
        }));
    }
}
