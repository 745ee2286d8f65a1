//! Replays of routings of plans that are drawn at random, and at every wave width.

use super::on_case;
use crate::common::{Case, round};
use anabranch_ep::{EpConfig, EpShape, Mode, ROW_TYPES};
use proptest::prelude::*;

prop_compose! {
    fn any_case(waves: Vec<u32>, types: usize)(
        ranks in 1u32..=9, wave in prop::sample::select(waves), top_k in 1u32..=8,
        experts in 1u32..40, max_tokens in 1u32..150, cap in 0u32..300, staged in prop::bool::ANY,
        tokens in proptest::collection::vec(0u32..150, 1..4), compact in prop::bool::ANY,
        blocks in 0u32..6, scales in 0u32..3, element in 0..types, weights in prop::bool::ANY,
    ) -> Case {
        let mut case = Case::new(ranks, wave);
        let element = ROW_TYPES[element % ROW_TYPES.len()];
        case.config = EpConfig::new(EpShape { hidden: 32, experts, top_k, max_tokens })
            .dispatch_type(element)
            .max_recv(if cap == 0 { 0 } else { cap.max(ranks) })
            .scale_bytes(scales * 4)
            .mode(if compact { Mode::Compact } else { Mode::Slotted })
            .combine_weights(weights)
            .launch(blocks, 0);
        case.tokens = tokens;
        case.staged = staged;
        case
    }
}

fn replay_twice(case: &Case) {
    on_case(case, |rank| {
        let routing = rank.keep(5)?;
        rank.replay(&routing, 5, 21)?;
        rank.replay(&routing, 5, 22)
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn other_tokens_use_the_saved_routing(case in any_case(vec![4], 1)) {
        replay_twice(&case);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    #[ignore = "extended"]
    fn other_tokens_of_every_type_use_the_saved_routing(case in any_case(vec![1, 4, 32, 64], 6)) {
        replay_twice(&case);
    }
}

fn several_replays(waves: &[u32]) {
    for &wave in waves {
        for (mode, staged) in [(Mode::Slotted, wave == 4), (Mode::Compact, wave != 4)] {
            let mut case = Case::new(4, wave);
            case.config = case.config.mode(mode).max_recv(if wave == 1 { 0 } else { 57 }).scale_bytes(8);
            case.staged = staged;
            on_case(&case, |rank| {
                let routings = [rank.keep(5)?, rank.keep(6)?, rank.keep(9)?];
                for payload in 30..39 {
                    // In turn, so that a row of the compact mode gets other owners from one to the next.
                    let (which, kept) = [(0, 5), (1, 6), (2, 9)][payload as usize % 3];
                    rank.replay(&routings[which], kept, payload)?;
                    if payload % 4 == 0 {
                        round(&rank.ep, &rank.expert, &rank.stream, rank.world, &rank.case, payload)?;
                    }
                }
                Ok(())
            });
        }
    }
}

#[test]
fn several_replays_in_both_modes() {
    several_replays(&[4]);
}

#[test]
#[ignore = "extended"]
fn several_replays_at_every_wave_width_in_both_modes() {
    several_replays(&[1, 32, 64]);
}
