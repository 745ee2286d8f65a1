//! Launches by table: what is launched is what was measured, results do not change, and members agree on it.

use std::sync::Arc;

use crate::common::{Case, all_well, failure, on_ranks, round, world_config};
use anabranch_conformance::ep::reference::ReferenceExpert;
use anabranch_ep::launch::{Launch, LaunchTable};
use anabranch_ep::{EpConfig, EpShape, ExpertParallel};

/// The table of three ranks with rows of 256 elements; dispatch of many tokens has this many blocks.
fn table(device: &str, blocks: u32) -> Arc<LaunchTable> {
    let text = format!(
        "device = \"{device}\"\n[[launches]]\nranks = 3\ndispatch_type = \"bf16\"\ncombine_type = \"bf16\"\nhidden = 256\ntop_k = 3\n\
         dispatch = [{{ up_to = 1, max_blocks = 2, waves_per_block = 3, segments = 2 }}, {{ max_blocks = {blocks}, \
         waves_per_block = 2, segments = 1 }}]\n\
         combine_pull = [{{ max_blocks = 3, waves_per_block = 1, segments = 4 }}]\n\
         combine_push = [{{ up_to = 30, max_blocks = 1, waves_per_block = 5, segments = 2 }}, {{ max_blocks = 4, \
         waves_per_block = 2, segments = 3 }}]\n"
    );
    Arc::new(LaunchTable::parse(&text).unwrap())
}

const HOST: &str = "anabranch host device";

fn case(wave: u32, staged: bool, config: EpConfig) -> Case {
    Case { config, staged, tokens: vec![40, 1, 17], ..Case::new(3, wave) }
}

#[test]
fn launches_are_those_of_the_table_and_results_do_not_change() {
    for wave in [1, 32] {
        for staged in [false, true] {
            let case = case(
                wave,
                staged,
                EpConfig::new(EpShape { hidden: 256, experts: 9, top_k: 3, max_tokens: 40 })
                    .table(table(HOST, 5)),
            );
            all_well(on_ranks(3, wave, &world_config(), |world| {
                let mut ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
                assert_eq!(ep.plan().launch_choice().name(), "table");
                let shape = |blocks, waves| (blocks, waves * wave);
                let dispatch = ep.dispatch_geometry(40)?;
                assert_eq!((dispatch.blocks, dispatch.block_threads), shape(5, 2));
                assert_eq!(ep.dispatch_geometry(1)?.block_threads, 3 * wave);
                let (pull, push) = (ep.combine_geometry(40), ep.combine_push_geometry(40));
                assert_eq!((pull.blocks, pull.block_threads), shape(3, 1));
                assert_eq!((push.blocks, push.block_threads), shape(4, 2));
                assert_eq!(ep.combine_push_geometry(30).block_threads, 5 * wave);
                let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
                let stream = world.device().create_stream()?;
                for number in 0..2 {
                    round(&ep, &expert, &stream, world, &case, number)?;
                }
                // Any other shape, another on every rank, within what the plan took of the device.
                let launch = Launch { max_blocks: 1 + ep.rank().get(), waves_per_block: 4, segments: 2 };
                ep.force_launch(Some(launch));
                assert_eq!(ep.combine_push_geometry(40).blocks, launch.max_blocks);
                round(&ep, &expert, &stream, world, &case, 2)?;
                ep.force_launch(Some(Launch { max_blocks: 1 << 20, ..launch }));
                assert!(ep.combine_push_geometry(40).blocks <= ep.limits().resident_blocks);
                round(&ep, &expert, &stream, world, &case, 3)?;
                ep.force_launch(None);
                assert_eq!(ep.dispatch_geometry(40)?, dispatch);
                Ok(())
            }));
        }
    }
}

#[test]
fn members_with_other_launches_are_refused_and_other_rows_do_not_matter() {
    let made = |tables: [Arc<LaunchTable>; 3]| {
        on_ranks(3, 4, &world_config(), |world| {
            let table = Arc::clone(&tables[world.rank().index()]);
            let config =
                EpConfig::new(EpShape { hidden: 256, experts: 9, top_k: 3, max_tokens: 40 }).table(table);
            let ep = ExpertParallel::new(world, world.group(), config)?;
            Ok(ep.plan().launch_choice().name())
        })
    };
    for result in made([table(HOST, 5), table(HOST, 6), table(HOST, 5)]) {
        let said = failure(&result);
        assert!(said.contains("table") && said.contains(HOST), "{said}");
    }
    // A table of another device says nothing here.
    for result in made([table(HOST, 5), table("another device", 5), table(HOST, 5)]) {
        assert!(failure(&result).contains("none"), "{}", failure(&result));
    }
    let mut more = LaunchTable::clone(&table(HOST, 5));
    let other = more.launches[0].clone();
    more.put(anabranch_ep::launch::Launches { hidden: 512, ..other });
    let names = all_well(made([table(HOST, 5), Arc::new(more), table(HOST, 5)]));
    assert_eq!(names, ["table"; 3]);
}
