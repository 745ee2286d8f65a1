//! Internode collectives by software NICs against the oracle, bit by bit. Ranks are threads configured as different nodes, so that peers
//! are not mapped.

use std::time::Duration;

use crate::common::nics::on_nodes;
use crate::common::{all_well, run_all, world_config};
use anabranch_ccl::{Across, CclConfig, Choice, Collective, Communicator, DataType, LocationKind};
use anabranch_conformance::ccl::oracle::Data;
use anabranch_conformance::ccl::{self as conformance, Case, Level, Replays, Scratch, Sweep, Trial};
use anabranch_hip::with_causes;
use anabranch_ranks::GroupRank;
use anabranch_shmem::{RankError, WorldConfig};
use anabranch_softnic::{Adversary, SoftNicConfig, SoftNics};

fn config(across: Across) -> CclConfig {
    CclConfig { max_blocks: 2, staging_bytes: 64 << 10, across, ..CclConfig::default() }
}

fn cases(members: u32, data_type: DataType, counts: &[u64]) -> Vec<Case> {
    let locations = [LocationKind::Symmetric, LocationKind::Local];
    let mut all = Vec::new();
    for collective in Collective::ALL {
        for (turn, count) in counts.iter().enumerate() {
            for uneven in [false, true] {
                all.push(Case {
                    uneven,
                    location: locations[turn % 2],
                    in_place: turn % 3 == 1,
                    offset: [0, 1][turn % 2],
                    root: GroupRank::new((turn as u32 + 1) % members),
                    seed: turn as u64,
                    data: if collective.reduces() && data_type.is_float() {
                        Data::Normal
                    } else {
                        Data::Exact
                    },
                    ..Case::new(collective, data_type, *count)
                });
            }
        }
    }
    all.retain(Case::is_defined);
    all
}

/// Runs cases on all ranks. Returns the number of cases, and of those by node.
fn check(nodes: &[u32], wave: u32, soft: &SoftNicConfig, across: Across, cases: &[Case]) -> (usize, usize) {
    let results = on_nodes(nodes, wave, &SoftNics::in_process(soft.clone()), &world_config(), |world| {
        let here = world.rank().index();
        for (peer, rank) in world.group().members().iter().enumerate() {
            assert_eq!(world.peer_base(*rank).is_some(), nodes[peer] == nodes[here], "{peer}");
        }
        let stream = world.device().create_stream()?;
        let mut communicator = Communicator::new(world, world.group(), config(across))?;
        let mut scratch = Scratch::new(world, &communicator, 1 << 20)?;
        let done = run_all(&mut communicator, &mut scratch, cases, across, &stream)?;
        scratch.release()?;
        Ok(done)
    });
    all_well(results)[0]
}

const COUNTS: [u64; 4] = [1, 17, 1021, 6000];

#[test]
fn two_nodes_of_two() {
    let cases = cases(4, DataType::Bf16, &COUNTS);
    let (all, by_node) = check(&[0, 0, 1, 1], 4, &SoftNicConfig::default(), Across::Direct, &cases);
    assert_eq!((all, by_node), (cases.len(), 0));
    let (_, by_node) = check(&[0, 0, 1, 1], 4, &SoftNicConfig::default(), Across::Node, &cases);
    assert!(by_node > 15, "{by_node}");
}

#[test]
#[ignore = "extended"]
fn other_nodes_with_other_wave_widths() {
    for (nodes, wave) in [
        (&[0, 0, 0, 0, 1, 1, 1, 1][..], 1),
        (&[0, 0, 1, 1, 2, 2], 32),
        (&[0, 1, 1, 1], 64),
        (&[0, 0, 0, 1, 2, 2], 4),
        (&[0, 1], 4),
    ] {
        let cases = cases(nodes.len() as u32, DataType::F32, &COUNTS[1..]);
        let (all, _) = check(nodes, wave, &SoftNicConfig::default(), Across::Direct, &cases);
        assert!(all > 25, "{nodes:?}: {all}");
        let (_, by_node) = check(nodes, wave, &SoftNicConfig::default(), Across::Node, &cases);
        assert_eq!(by_node > 10, nodes.len() > 2, "{nodes:?}: {by_node}");
    }
}

#[test]
fn nic_that_delays_requests() {
    let cases = cases(4, DataType::F32, &COUNTS[2..]);
    for seed in 0..3 {
        let soft = SoftNicConfig { adversary: Some(Adversary::new(seed)), ..SoftNicConfig::default() };
        check(&[0, 0, 1, 1], 4, &soft, Across::Direct, &cases);
        check(&[0, 0, 1, 1], 4, &soft, Across::Node, &cases);
    }
}

#[test]
fn missing_member_is_named() {
    let short = WorldConfig { operation_deadline: Duration::from_millis(900), ..world_config() };
    for (nodes, across) in [(&[0, 0, 1, 1][..], Across::Node), (&[0, 1, 1, 1], Across::Direct)] {
        let results = on_nodes(nodes, 4, &SoftNics::in_process(SoftNicConfig::default()), &short, |world| {
            let stream = world.device().create_stream()?;
            let mut communicator = Communicator::new(world, world.group(), config(across))?;
            let mut scratch = Scratch::new(world, &communicator, 1 << 20)?;
            let case = Case::new(Collective::AllReduce, DataType::F32, 30_000);
            conformance::run(&mut communicator, &mut scratch, &case, &stream)?.unwrap();
            world.barrier(world.group(), "before the last call")?;
            if world.rank().get() != 2 {
                let work =
                    conformance::launch(&mut communicator, &scratch, &case, Choice::default(), &stream)?;
                work.join(Duration::from_secs(30))?;
            }
            // The exit of a rank ends the others.
            let _ = world.barrier(world.group(), "after the last call");
            Ok(())
        });
        let errors: Vec<_> = results
            .iter()
            .filter_map(|result| match result {
                Err(RankError::Work { error, .. }) => Some(with_causes(error)),
                _ => None,
            })
            .collect();
        let named = errors.iter().any(|text| text.contains("rank 2") && text.contains("ccl"));
        assert!(named, "{errors:#?} {results:?}");
    }
}

/// The calls of `bench ccl --check`, of few types and with every fifth call. Intranode algorithms and messages are not supported between
/// nodes: calls use supported algorithms, and the rest is reported with the reason.
#[test]
#[ignore = "extended"]
fn internode_check_skips_unsupported_calls_with_reason() {
    let sweep =
        Sweep { ranks: 3, channels: 2, staging_bytes: 64 << 10, most_bytes: 256 << 10, level: Level::Sample };
    let mut points: Vec<_> = conformance::sweep(&sweep).into_iter().step_by(5).collect();
    for point in &mut points {
        if let Trial::Collective(case) = &mut point.trial
            && case.collective.reduces()
        {
            case.data_type = if case.op.supports(DataType::F32) { DataType::F32 } else { DataType::U8 };
        }
    }
    let replays = Replays { count: 12, types: vec![DataType::F32], most_count: 6000, seed: 1 };
    let soft = SoftNics::in_process(SoftNicConfig::default());
    let tallies = all_well(on_nodes(&[0, 0, 1], 4, &soft, &world_config(), |world| {
        let stream = world.device().create_stream()?;
        let swept = conformance::run_points(world, &config(Across::Auto), &points, &stream)?;
        let replayed = conformance::run_replays(world, &config(Across::Auto), &replays, &stream)?;
        Ok([swept, replayed])
    }));
    for [swept, replayed] in &tallies {
        for tally in [swept, replayed] {
            let wrong: Vec<_> =
                tally.failures.iter().map(|(subset, failure)| format!("{subset}: {failure}")).collect();
            assert!(wrong.is_empty(), "{wrong:?}");
            let left_out = |what: &str| tally.left_out.iter().find(|(left, _)| left.what == what);
            for what in ["packets", "push"] {
                let (left, _) = left_out(what).unwrap();
                assert!(left.why.contains("members are on several nodes"), "{}", left.why);
            }
            let (left, count) = left_out("batch of messages").unwrap();
            assert!(left.why.contains("memory that all members map") && *count > 0, "{}", left.why);
        }
        assert!(swept.internode > 50, "{}", swept.internode);
    }
    // Groups on one node, which do not contain rank 2, run all calls.
    for [swept, _] in &tallies[..2] {
        assert!(swept.calls > swept.internode && swept.lists.iter().all(|count| *count > 0), "{swept:?}");
    }
    // Both forms were used: their sum exceeds the number of points.
    let members: u64 = points.iter().map(|point| u64::from(point.subset.len())).sum();
    let (calls, left): (u64, u64) = tallies.iter().fold((0, 0), |(calls, left), [swept, _]| {
        let messages = swept
            .left_out
            .iter()
            .filter(|(left, _)| left.what.contains("message") || left.what.contains("send"));
        (calls + swept.calls, left + messages.map(|(_, count)| count).sum::<u64>())
    });
    assert!(calls > members - left, "{calls} {members} {left}");
}
