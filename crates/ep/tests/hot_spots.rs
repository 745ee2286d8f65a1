//! Soft hot spots: every token names one expert of the first rank, and experts anywhere beside it, so that one rank receives a row of
//! every token while the others receive some.

use crate::expert_major_common;

use std::time::Duration;

use crate::common::{Case, Routing, all_well, on_ranks, oracle, round, run, world_config};
use anabranch_conformance::ep::reference::ReferenceExpert;
use anabranch_ep::{CombineSource, EpConfig, EpShape, ExpertMajorConfig, ExpertParallel, Mode};
use anabranch_ranks::GroupRank;
use anabranch_shmem::WorldConfig;

fn soft(ranks: u32, wave: u32) -> Case {
    let config = EpConfig::new(EpShape { hidden: 64, experts: 4 * ranks, top_k: 4, max_tokens: 40 });
    Case { config, routing: Routing::SoftHot, ..Case::new(ranks, wave) }
}

#[test]
fn every_token_goes_to_the_first_rank_and_some_to_the_others() {
    let case = Case { tokens: vec![40], ..soft(4, 1) };
    let inputs = case.inputs(3);
    for input in &inputs {
        for ids in input.ids.chunks_exact(4) {
            let mut distinct = ids.to_vec();
            distinct.sort_unstable();
            distinct.dedup();
            assert!(ids[0] == 0 && distinct.len() == 4, "{ids:?}");
        }
    }
    let oracle = oracle(&case, &inputs);
    let received = |rank| oracle.dispatch(GroupRank::new(rank)).unwrap().total();
    assert_eq!(received(0), 160);
    assert!((1..4).all(|rank| (20..160).contains(&received(rank))), "{:?}", [1, 2, 3].map(received));
}

#[test]
#[ignore = "extended"]
fn every_wave_width_mode_and_way() {
    for wave in [1, 4, 32, 64] {
        for (mode, source) in [
            (Mode::Slotted, CombineSource::Window),
            (Mode::Compact, CombineSource::Window),
            (Mode::Slotted, CombineSource::Buffer),
            (Mode::Compact, CombineSource::Buffer),
        ] {
            let mut case = soft(4, wave);
            case.config = case.config.mode(mode).combine_source(source);
            run(&Case { staged: source == CombineSource::Buffer, ..case.clone() }, 2);
            case.config = case.config.max_recv(37);
            run(&Case { staged: source == CombineSource::Buffer, ..case }, 2);
        }
    }
}

#[test]
fn by_expert() {
    for (ranks, wave) in [(2, 4), (4, 32), (5, 1)] {
        expert_major_common::run(&soft(ranks, wave), ExpertMajorConfig::new().alignment(8), 2);
    }
}

#[test]
fn many_tokens_of_eight_ranks_end_promptly() {
    // The longest wait.
    let config = WorldConfig { operation_deadline: Duration::from_secs(2), ..world_config() };
    for mode in [Mode::Slotted, Mode::Compact] {
        let mut case = soft(8, 1);
        case.config =
            EpConfig::new(EpShape { hidden: 64, experts: 32, top_k: 4, max_tokens: 400 }).mode(mode);
        case.tokens = vec![400];
        all_well(on_ranks(8, 1, &config, |world| {
            let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
            let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
            let stream = world.device().create_stream()?;
            (0..3).try_for_each(|number| round(&ep, &expert, &stream, world, &case, number))
        }));
    }
}
