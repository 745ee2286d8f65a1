//! Laws of the expert-major plan: parts do not overlap, sizes are what the formulas say, numbers that cannot be used are refused.

use anabranch_ep::expert_major::ExpertRowSource;
use anabranch_ep::{EpConfig, EpShape, ExpertMajorConfig, ExpertMajorPlan, Plan};
use anabranch_ranks::GroupRank;
use proptest::prelude::*;

fn plan() -> impl Strategy<Value = Plan> {
    (1u32..500, 1u32..400, 1u32..=32, 1u32..2000, 1u32..40, 0u32..64).prop_map(
        |(units, experts, top_k, max_tokens, ranks, scale_words)| {
            let config = EpConfig::new(EpShape { hidden: units * 8, experts, top_k, max_tokens })
                .scale_bytes(scale_words * 4);
            Plan::new(config, ranks).unwrap()
        },
    )
}

proptest! {
    #[test]
    fn parts_are_apart_and_aligned(plan in plan(), rank in any::<u32>(), power in 0u32..=10, tiles in 0u32..9) {
        let rank = GroupRank::new(rank % plan.ranks());
        let alignment = 1u32 << power;
        let pairs = plan.rows() * u64::from(plan.config().top_k);
        let most = pairs.next_multiple_of(alignment.into());
        let capacity = (u64::from(tiles) * u64::from(alignment)).min(most) as u32;
        let config = ExpertMajorConfig::new().capacity(capacity).alignment(alignment);
        let layout = ExpertMajorPlan::new(&plan, rank, config).unwrap();
        let rows = if capacity == 0 { plan.rows().next_multiple_of(alignment.into()) } else { capacity.into() };
        prop_assert_eq!(u64::from(layout.capacity()), rows);
        prop_assert!(layout.capacity().is_multiple_of(alignment));
        let experts = u64::from(layout.local_experts());
        prop_assert_eq!(layout.experts().to_vec(), plan.placement().range(rank).collect::<Vec<_>>());
        let slots = experts * rows;
        let places = layout.layout();
        let parts = [
            (places.counts, experts * 4),
            (places.pairs, experts * 4),
            (places.source_offsets, experts * u64::from(plan.ranks() + 1) * 4),
            (places.sources, slots * size_of::<ExpertRowSource>() as u64),
            (places.slot_map, pairs * 4),
            (places.scales, slots * u64::from(plan.config().scale_bytes)),
            (places.rows, slots * u64::from(plan.row_bytes())),
            (layout.bytes(), 0),
        ];
        for two in parts.windows(2) {
            prop_assert!(two[0].0 + two[0].1 <= two[1].0 && two[1].0 < two[0].0 + two[0].1 + 256, "{two:?}");
        }
        prop_assert!(parts.iter().all(|(start, _)| start.is_multiple_of(256)));
        prop_assert_eq!(layout.output_bytes(), slots * u64::from(plan.combine_row_bytes()));
    }
}

#[test]
fn invalid_numbers_are_refused() {
    let plan =
        Plan::new(EpConfig::new(EpShape { hidden: 128, experts: 16, top_k: 4, max_tokens: 40 }), 4).unwrap();
    let refused = |plan: &Plan, rank, config| {
        ExpertMajorPlan::new(plan, GroupRank::new(rank), config).unwrap_err().to_string()
    };
    let config = ExpertMajorConfig::new;
    for alignment in [0, 3, 2048, u32::MAX] {
        let text = refused(&plan, 0, config().alignment(alignment));
        assert_eq!(text, format!("alignment is {alignment}; allowed are powers of two from 1 to 1024"));
    }
    let text = refused(&plan, 0, config().capacity(12).alignment(8));
    assert_eq!(text, "capacity is 12; it must be a multiple of the alignment, 8 rows");
    let text = refused(&plan, 0, config().capacity(641));
    assert_eq!(
        text,
        "capacity is 641; allowed are 0 (the window's rows) to 640, all pairs that a rank can receive"
    );
    assert!(ExpertMajorPlan::new(&plan, GroupRank::new(0), config().capacity(640)).is_ok());
    assert_eq!(refused(&plan, 4, config()), "rank is 4; the group has 4 ranks");
    // Slots are numbered in 32 bits, and the last two numbers are taken.
    let large = Plan::new(EpConfig::new(EpShape { hidden: 8, experts: 4, top_k: 1, max_tokens: 1 << 26 }), 2)
        .unwrap();
    assert!(ExpertMajorPlan::new(&large, GroupRank::new(0), config()).is_ok());
    let many = Plan::new(EpConfig::new(EpShape { hidden: 8, experts: 64, top_k: 1, max_tokens: 1 << 26 }), 2)
        .unwrap();
    let text = refused(&many, 1, config());
    assert_eq!(text, "capacity is 0; 32 local experts times 134217728 rows must be at most 4294967294");
    let pairs =
        Plan::new(EpConfig::new(EpShape { hidden: 8, experts: 4, top_k: 32, max_tokens: 1 << 26 }), 2)
            .unwrap();
    let text = refused(&pairs, 0, config());
    let allowed = "the window's 134217728 rows times 32 experts a token must be at most 4294967294";
    assert_eq!(text, format!("max_tokens is 67108864; {allowed}"));
    let wide =
        Plan::new(EpConfig::new(EpShape { hidden: 1 << 20, experts: 256, top_k: 1, max_tokens: 1 << 20 }), 4)
            .unwrap();
    let text = refused(&wide, 0, config().capacity(1 << 22));
    assert!(
        text.contains("64 local experts with 4194304 rows each need")
            && text.contains("more than 281474976710656"),
        "{text}"
    );
}
