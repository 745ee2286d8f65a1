//! Experts placed by a table: unevenly, on several ranks, on all of them; judged bit by bit.

use crate::common;
use crate::expert_major_common;

use crate::common::{Case, Numbers, Routing, failure, on_ranks, world_config};
use anabranch_ep::{EpConfig, EpShape, Error, ExpertMajorConfig, ExpertParallel, Mode, PlacementTable};
use anabranch_ranks::GroupRank;
use proptest::prelude::*;

fn table(ranks_of_experts: impl IntoIterator<Item = Vec<u32>>) -> PlacementTable {
    PlacementTable::new(
        ranks_of_experts.into_iter().map(|ranks| ranks.into_iter().map(GroupRank::new).collect()),
    )
}

/// One to `most` ranks for each expert, in any order.
fn random(experts: u32, ranks: u32, most: u32, seed: u64) -> PlacementTable {
    let mut numbers = Numbers(seed);
    table((0..experts).map(|_| {
        let mut all: Vec<u32> = (0..ranks).collect();
        let count = 1 + numbers.below(most.min(ranks));
        (0..count).map(|_| all.swap_remove(numbers.below(all.len() as u32) as usize)).collect()
    }))
}

/// Token-major and expert-major.
fn run_both(case: &Case) {
    common::run(case, 2);
    expert_major_common::run(case, ExpertMajorConfig::new().alignment(4), 2);
}

fn uneven_and_replicated_tables(waves: &[u32]) {
    for &wave in waves {
        let mut case = Case::new(4, wave);
        let experts = case.config.experts;
        // All on the last rank but one.
        case.config =
            case.config.placement(table((0..experts).map(|expert| vec![if expert == 0 { 1 } else { 3 }])));
        run_both(&case);
        // Everything everywhere: then the replica alone decides.
        let everywhere = (0..experts).map(|expert| (0..4).map(|rank| (rank + expert) % 4).collect());
        case.config = case.config.placement(table(everywhere));
        run_both(&case);
        case.routing = Routing::Invalid;
        case.config = case.config.placement(random(experts, 4, 3, wave.into()));
        run_both(&case);
    }
}

#[test]
fn uneven_and_replicated_tables_match_the_oracle() {
    uneven_and_replicated_tables(&[4]);
}

#[test]
#[ignore = "extended"]
fn uneven_and_replicated_tables_at_every_wave_width() {
    uneven_and_replicated_tables(&[1, 32, 64]);
}

#[test]
fn a_hot_expert_on_several_ranks_is_shared_by_them() {
    let mut case = Case::new(4, 4);
    case.config = EpConfig::new(EpShape { hidden: 64, experts: 4, top_k: 1, max_tokens: 16 })
        .placement(table([vec![0, 1, 2, 3], vec![1], vec![2], vec![3]]));
    case.tokens = vec![16];
    case.routing = Routing::Hot;
    let inputs = case.inputs(0);
    assert!(inputs.iter().all(|input| input.ids.iter().all(|id| *id == 0)));
    let oracle = common::oracle(&case, &inputs);
    for rank in 0..4 {
        assert_eq!(oracle.dispatch(GroupRank::new(rank)).unwrap().counts(), [4; 4]);
    }
    run_both(&case);
}

#[test]
fn tables_that_differ_among_ranks_are_an_error_on_all() {
    let results = on_ranks(2, 1, &world_config(), |world| {
        let mine = world.rank().get();
        let config = EpConfig::new(EpShape { hidden: 64, experts: 2, top_k: 1, max_tokens: 4 })
            .placement(table([vec![0], vec![mine]]));
        ExpertParallel::new(world, world.group(), config).map(|_| ())
    });
    for result in &results {
        let text = failure(result);
        assert!(text.contains("placement") && text.contains("0;1"), "{text}");
    }
}

#[test]
fn a_table_for_another_group_is_refused() {
    let results = on_ranks(2, 1, &world_config(), |world| {
        let config = EpConfig::new(EpShape { hidden: 64, experts: 2, top_k: 1, max_tokens: 4 })
            .placement(table([vec![0], vec![2]]));
        let refused = ExpertParallel::new(world, world.group(), config).map(|_| ());
        assert!(
            matches!(&refused, Err(Error::Config { field: "placement", given, .. }) if given.starts_with("expert 1 ")),
            "{refused:?}"
        );
        Ok(())
    });
    common::all_well(results);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, ..ProptestConfig::default() })]

    #[test]
    #[ignore = "extended"]
    fn random_tables(
        ranks in 1u32..=5, wave in prop::sample::select(vec![1u32, 4, 32]), experts in 1u32..16, top_k in 1u32..7,
        most in 1u32..5, seed in any::<u64>(), compact in any::<bool>(), max_recv in prop_oneof![Just(0u32), 5u32..40],
        tokens in prop::collection::vec(0u32..20, 1..4),
    ) {
        let mut case = Case::new(ranks, wave);
        case.config = EpConfig::new(EpShape { hidden: 32, experts, top_k, max_tokens: 20 })
            .placement(random(experts, ranks, most, seed))
            .mode(if compact { Mode::Compact } else { Mode::Slotted })
            .max_recv(max_recv);
        case.tokens = tokens;
        run_both(&case);
    }
}
