//! Compact dispatch: what decides about rows and counts, in shapes of every kind.

use crate::common::{Case, Routing, run};
use anabranch_ep::{DataType, EpConfig, EpShape, Mode};

fn compact(ranks: u32, wave: u32) -> Case {
    let mut case = Case::new(ranks, wave);
    case.config = case.config.mode(Mode::Compact);
    case
}

#[test]
fn every_wave_width_and_number_of_ranks() {
    for wave in [1, 4, 32, 64] {
        run(&compact(4, wave), 3);
    }
    for ranks in [1, 2, 3, 5, 7, 9] {
        run(&compact(ranks, 4), 2);
    }
}

#[test]
fn extreme_routings_with_and_without_capacity() {
    for routing in [Routing::Hot, Routing::Nowhere, Routing::Invalid] {
        for max_recv in [0, 4, 31] {
            let mut case = compact(4, 4);
            case.config = case.config.max_recv(max_recv);
            case.routing = routing;
            run(&case, 2);
        }
    }
}

#[test]
fn many_tokens_over_several_tiles_and_blocks() {
    for (blocks, waves) in [(1, 1), (3, 2), (16, 4)] {
        let mut case = compact(3, 4);
        // More than 512 tokens a rank: compact by itself.
        case.config = EpConfig::new(EpShape { hidden: 16, experts: 12, top_k: 4, max_tokens: 700 })
            .launch(blocks, waves);
        case.tokens = vec![700, 133, 0];
        run(&case, 2);
        case.config = case.config.max_recv(1000);
        run(&case, 2);
    }
}

#[test]
fn small_types_scales_and_staging() {
    for (dispatch, staged) in [(DataType::F8E4m3, false), (DataType::F4E2m1, true), (DataType::F32, true)] {
        let mut case = compact(3, 32);
        case.config = case.config.dispatch_type(dispatch).scale_bytes(20).max_recv(50);
        case.staged = staged;
        run(&case, 2);
    }
}
