//! The cases of FlyDSL's sweep of dispatch and combine (its pull request 522) by their names, and the three that it left out, scaled to
//! four ranks on the host runtime: hidden 7168 is 256 here, 3584 is 128, and batches above 128 are 1024 and 2048. Where its combine
//! has the small type of its dispatch, ours sums bf16. Results are compared bit by bit, through the codec where there is one.

use crate::expert_major_common;

use std::time::Duration;

use crate::common::{Case, Numbers, Routing, run};
use anabranch_ep::plan::Plan;
use anabranch_ep::{
    CombineCodec, CombineSource, DataType, EpConfig, EpShape, Error, ExpertMajorConfig, Fp8Format, Mode,
};

const RANKS: u32 = 4;
const EXPERTS: u32 = 32 * RANKS;
const TOP_K: u32 = 8;

/// What is special about a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Special {
    /// Experts leave their output in a buffer of their own.
    Push,
    /// Experts write the combine window, which peers read.
    ZeroCopy,
    /// One of the two, drawn once for all ranks.
    RandomZeroCopy,
    /// Pushed as fp8.
    Fp8DirectCast,
    /// Expert-major, weighted sums.
    StdMoe,
    /// Pushed, with room for so many rows.
    Cap(u32),
}
use Special::{Cap, Fp8DirectCast, Push, RandomZeroCopy, StdMoe, ZeroCopy};

/// Name, dispatch type, hidden, most tokens, special.
type Named = (&'static str, DataType, u32, u32, Special);

const CASES: [Named; 19] = {
    use DataType::{Bf16, F4E2m1, F8E4m3, F8E4m3Fnuz};
    [
        ("bf16_baseline", Bf16, 256, 128, Push),
        ("bf16_fp8_direct_cast", Bf16, 256, 128, Fp8DirectCast),
        ("bf16_zero_copy", Bf16, 256, 128, ZeroCopy),
        ("bf16_std_moe", Bf16, 256, 128, StdMoe),
        ("bf16_baseline_large", Bf16, 256, 1024, Push),
        ("bf16_fp8_direct_cast_large", Bf16, 256, 1024, Fp8DirectCast),
        ("float8_e4m3fn_dispatch", F8E4m3, 256, 128, Push),
        ("float8_e4m3fnuz_dispatch", F8E4m3Fnuz, 256, 128, Push),
        ("fp4_dispatch", F4E2m1, 128, 128, Push),
        ("bf16_std_moe_large", Bf16, 256, 1024, StdMoe),
        ("bf16_recv_cap_token_size", Bf16, 256, 128, Cap(RANKS * 128)),
        ("bf16_recv_cap_half", Bf16, 256, 128, Cap(RANKS * 64)),
        ("mixed_float8_e4m3fn_dispatch_bf16_combine_zero_copy", F8E4m3, 256, 128, ZeroCopy),
        ("mixed_fp4_dispatch_bf16_combine_zero_copy", F4E2m1, 128, 128, ZeroCopy),
        ("mixed_float8_e4m3fn_dispatch_bf16_combine_no_zero_copy", F8E4m3, 256, 128, Push),
        ("mixed_float8_e4m3fn_dispatch_bf16_combine_bs4_random_zc", F8E4m3, 256, 4, RandomZeroCopy),
        ("mixed_float8_e4m3fn_dispatch_bf16_combine_bs32_random_zc", F8E4m3, 256, 32, RandomZeroCopy),
        ("mixed_float8_e4m3fn_dispatch_bf16_combine_bs8K_random_zc", F8E4m3, 256, 2048, RandomZeroCopy),
        ("mixed_float8_e4m3fnuz_dispatch_bf16_combine_no_zero_copy", F8E4m3Fnuz, 256, 128, Push),
    ]
};

fn config(element: DataType, hidden: u32, tokens: u32) -> EpConfig {
    EpConfig::new(EpShape { hidden, experts: EXPERTS, top_k: TOP_K, max_tokens: tokens })
        .dispatch_type(element)
        .combine_type(DataType::Bf16)
}

fn case(config: EpConfig, special: Special) -> Case {
    let tokens = config.max_tokens;
    let codec = CombineCodec::Fp8Direct(Fp8Format::E4m3fn);
    let (source, staged) = match special {
        ZeroCopy | StdMoe | RandomZeroCopy => (CombineSource::Window, false),
        Push | Fp8DirectCast | Cap(_) => (CombineSource::Buffer, true),
    };
    let mut config = config.combine_source(source);
    match special {
        Fp8DirectCast => config = config.combine_codec(codec),
        Cap(rows) => config = config.max_recv(rows).mode(Mode::Slotted),
        _ => {}
    }
    // Every rank full: what FlyDSL measures.
    Case { config, staged, tokens: vec![tokens], ..Case::new(RANKS, 4) }
}

#[test]
#[ignore = "extended"]
fn nineteen_sweep_cases() {
    let mut drawn = Numbers(19);
    for (name, element, hidden, tokens, special) in CASES {
        println!("{name}");
        let special = match special {
            RandomZeroCopy if drawn.below(2) == 0 => Push,
            RandomZeroCopy => ZeroCopy,
            other => other,
        };
        let case = case(config(element, hidden, tokens), special);
        if special == StdMoe {
            expert_major_common::run(&case, ExpertMajorConfig::new(), 1);
        } else {
            run(&case, 1);
        }
    }
}

#[test]
fn names_are_those_of_the_sweep_and_random_cases_draw_both() {
    let mut names: Vec<_> = CASES.iter().map(|case| case.0).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), CASES.len());
    let mut drawn = Numbers(19);
    let draws: Vec<_> = (0..3).map(|_| drawn.below(2)).collect();
    assert!(draws.contains(&0) && draws.contains(&1), "{draws:?}");
}

#[test]
fn bf16_zerocopy_fp8_direct_cast() {
    let config = config(DataType::Bf16, 256, 128)
        .combine_source(CombineSource::Window)
        .combine_codec(CombineCodec::Fp8Direct(Fp8Format::E4m3fn));
    let refused = Plan::new(config, RANKS).unwrap_err();
    assert!(matches!(refused, Error::Unsupported { field: "combine_source", .. }), "{refused}");
}

/// What FlyDSL excludes: expert-major sums that travel as fp8, and through the other codecs.
#[test]
fn bf16_std_moe_fp8_direct_cast() {
    let pushed = case(config(DataType::Bf16, 256, 128), Fp8DirectCast);
    expert_major_common::run(&pushed, ExpertMajorConfig::new(), 1);
    for codec in ["fp8_block", "fp4_block"] {
        let config = pushed.config.clone().combine_codec(codec.parse().unwrap());
        expert_major_common::run(&Case { config, ..pushed.clone() }, ExpertMajorConfig::new(), 1);
    }
}

/// One row for each source: in FlyDSL it stalled for seconds. Here the deadline of the worlds is the limit.
#[test]
fn bf16_recv_cap_min() {
    let start = anabranch_clock::Moment::now();
    run(&case(config(DataType::Bf16, 256, 128), Cap(RANKS)), 3);
    assert!(start.elapsed() < Duration::from_mins(1));
}

/// All tokens to one rank: in FlyDSL a remote atomic livelocked.
#[test]
fn bf16_forced_hot_spot() {
    for special in [Push, ZeroCopy] {
        let mut case = case(config(DataType::Bf16, 256, 128), special);
        case.routing = Routing::Hot;
        run(&case, 3);
    }
}
