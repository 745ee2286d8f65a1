//! Dispatch and combine on the host runtime, judged bit by bit.

use crate::common::{Case, Routing, run};
use anabranch_ep::{COMBINED_TYPES, DataType, EpConfig, EpShape, ROW_TYPES};

#[test]
fn every_wave_width() {
    for wave in [1, 4, 32, 64] {
        run(&Case::new(4, wave), 3);
    }
}

#[test]
fn every_number_of_ranks() {
    for ranks in [1, 2, 3, 5, 7, 8] {
        run(&Case::new(ranks, 1), 2);
    }
}

fn types(dispatch_types: &[DataType]) {
    for &dispatch in dispatch_types {
        for (combine, staged) in COMBINED_TYPES.into_iter().zip([false, true, false]) {
            let mut case = Case::new(3, 4);
            case.config = case.config.dispatch_type(dispatch).combine_type(combine).scale_bytes(20);
            case.staged = staged;
            run(&case, 2);
        }
    }
}

#[test]
fn types_scales_and_staging() {
    types(&[DataType::F8E4m3]);
}

#[test]
#[ignore = "extended"]
fn every_type_with_scales_and_staging() {
    types(&ROW_TYPES);
}

#[test]
fn extreme_routings() {
    for routing in [Routing::Hot, Routing::Nowhere, Routing::Invalid] {
        let mut case = Case::new(4, 4);
        case.routing = routing;
        run(&case, 2);
    }
}

#[test]
fn odd_shapes() {
    for (hidden, experts, top_k, tokens) in [
        (8, 1, 1, 1),
        (24, 2, 1, 3),
        (64, 3, 32, 5),
        (1000, 64, 8, 9),
        (72, 257, 9, 130),
        (64, 1_000_003, 6, 7),
    ] {
        for wave in [1, 32] {
            let mut case = Case::new(4, wave);
            case.config = EpConfig::new(EpShape { hidden, experts, top_k, max_tokens: tokens });
            case.tokens = vec![tokens, tokens / 2, 0];
            run(&case, 2);
        }
    }
}

#[test]
fn many_launch_shapes_give_the_same_bits() {
    for (blocks, waves) in [(1, 1), (1, 4), (3, 2), (8, 1), (16, 4)] {
        let mut case = Case::new(2, 4);
        case.config = case.config.launch(blocks, waves);
        run(&case, 2);
    }
}
