//! Expert-major rows and back in random worlds, judged bit by bit.

use crate::common::{Case, Routing};
use crate::expert_major_common::run;
use anabranch_ep::{COMBINED_TYPES, EpConfig, EpShape, ExpertMajorConfig, Mode, Plan, ROW_TYPES};
use proptest::prelude::*;

/// Pairs of a row and an expert that a rank can have.
fn most_pairs(case: &Case) -> u32 {
    Plan::new(case.config.clone(), case.ranks).unwrap().rows() as u32 * case.config.top_k
}

/// A world with its plan, and a capacity from one tile of the alignment to the worst case, or chosen by the plan.
fn world() -> impl Strategy<Value = (Case, ExpertMajorConfig)> {
    let shape =
        (1u32..=5, prop::sample::select(vec![1u32, 4, 32, 64]), 1u32..20, 1u32..=9, 1u32..30, 1u32..9);
    let kinds = (
        prop::sample::select(ROW_TYPES.to_vec()),
        prop::sample::select(COMBINED_TYPES.to_vec()),
        prop::sample::select(vec![Routing::Random, Routing::Hot, Routing::Nowhere, Routing::Invalid]),
        prop::collection::vec(0u32..30, 1..5),
        0u32..4,
        prop::sample::select(vec![Mode::Slotted, Mode::Compact]),
    );
    (shape, kinds, 0u32..=5, any::<u32>(), any::<u32>(), 0u32..9, 0u32..4).prop_map(
        |(shape, kinds, power, capacity, cap, blocks, waves)| {
            let (ranks, wave, experts, top_k, max_tokens, units) = shape;
            let (dispatch, combine, routing, tokens, scale_words, mode) = kinds;
            // Some windows hold only a part of what comes.
            let max_recv = if cap % 3 == 0 { 0 } else { ranks + cap % (ranks * max_tokens) };
            let mut case = Case::new(ranks, wave);
            // Whole rows of every type.
            case.config = EpConfig::new(EpShape { hidden: units * 32, experts, top_k, max_tokens })
                .dispatch_type(dispatch)
                .combine_type(combine)
                .scale_bytes(scale_words * 4)
                .mode(mode)
                .max_recv(max_recv)
                .launch(blocks, waves);
            case.routing = routing;
            case.tokens = tokens;
            let alignment = 1u32 << power;
            let worst = most_pairs(&case).div_ceil(alignment);
            let config =
                ExpertMajorConfig::new().capacity(capacity % (worst + 1) * alignment).alignment(alignment);
            (case, config)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    #[ignore = "extended"]
    fn expand_and_contract_match_the_oracle((case, layout) in world()) {
        run(&case, layout, 2);
    }

    #[test]
    #[ignore = "extended"]
    fn full_capacity_keeps_the_first_pairs((case, _) in world(), rows in 1u32..4) {
        let rows = rows.min(most_pairs(&case));
        run(&case, ExpertMajorConfig::new().capacity(rows), 1);
    }
}
