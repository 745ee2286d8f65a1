//! Internode collectives against the oracle, bit by bit. The nodes are configured: every rank is on this machine and maps the memory of the
//! others, which the device functions of the heap use.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{all_well, jit, on_ranks, run_all, world_config};
use anabranch_ccl::{
    Across, Algorithm, Call, CclConfig, Check, Choice, Collective, Communicator, DATA_TYPES, DataType, Error,
    LocationKind, ReduceOp, Tensor,
};
use anabranch_conformance::ccl::oracle::Data;
use anabranch_conformance::ccl::{self as conformance, Case, Entry, ListCase, ListForm, Scratch, Trial};
use anabranch_hip::with_causes;
use anabranch_hip_jit::Jit;
use anabranch_ranks::GroupRank;
use anabranch_shmem::{RankError, WorldConfig};

const LOCATIONS: [LocationKind; 3] = [LocationKind::Symmetric, LocationKind::Local, LocationKind::Registered];

fn config(nodes: &[u32], across: Across) -> CclConfig {
    let nodes = Some(Arc::from(nodes));
    CclConfig { max_blocks: 2, staging_bytes: 64 << 10, across, nodes, ..CclConfig::default() }
}

/// Every form of every collective for one type.
fn cases(members: u32, data_type: DataType, counts: &[u64]) -> Vec<Case> {
    let mut all = Vec::new();
    let mut turn = 0;
    for collective in Collective::ALL {
        for count in counts {
            for in_place in [false, true] {
                for uneven in [false, true] {
                    turn += 1;
                    let sums = collective.reduces() && data_type.is_float();
                    all.push(Case {
                        location: LOCATIONS[turn % 3],
                        in_place,
                        uneven,
                        offset: [0, 0, 1, 3][turn % 4],
                        root: GroupRank::new(turn as u32 % members),
                        seed: turn as u64,
                        // Sums of these inputs depend on the order.
                        data: if sums { Data::Normal } else { Data::Exact },
                        ..Case::new(collective, data_type, *count)
                    });
                }
            }
        }
    }
    all.retain(Case::is_defined);
    all
}

/// Runs cases on all ranks. Returns the number of cases, and of those by node.
fn check(nodes: &[u32], wave: u32, across: Across, cases: &[Case], jit: &Jit) -> (usize, usize) {
    let ranks = nodes.len() as u32;
    let results = on_ranks(ranks, wave, &world_config(), jit, |world| {
        let stream = world.device().create_stream()?;
        let mut communicator = Communicator::new(world, world.group(), config(nodes, across))?;
        let mut scratch = Scratch::new(world, &communicator, 2 << 20)?;
        let done = run_all(&mut communicator, &mut scratch, cases, across, &stream)?;
        scratch.release()?;
        Ok(done)
    });
    all_well(results)[0]
}

const COUNTS: [u64; 6] = [0, 1, 17, 64, 1021, 9001];

#[test]
fn every_form_on_two_nodes_of_two() {
    let cases = cases(4, DataType::Bf16, &COUNTS);
    let (all, by_node) = check(&[0, 0, 1, 1], 4, Across::Direct, &cases, &jit());
    assert!(all > 100 && by_node == 0, "{all}");
    let (all, by_node) = check(&[0, 0, 1, 1], 4, Across::Node, &cases, &jit());
    assert!(all == by_node + COUNTS.len() && by_node > 50, "{all} {by_node}");
}

#[test]
#[ignore = "extended"]
fn every_form_on_other_nodes() {
    for (nodes, wave) in [
        (&[0, 0, 0, 0, 1, 1, 1, 1][..], 1),
        (&[0, 0, 1, 1, 2, 2], 32),
        (&[0, 1, 1, 1], 64),
        (&[0, 0, 0, 1, 2, 2], 4),
        (&[0, 1, 0, 1], 4),
        (&[0, 1], 4),
    ] {
        let cases = cases(nodes.len() as u32, DataType::F32, &COUNTS[1..]);
        let (all, by_node) = check(nodes, wave, Across::Direct, &cases, &jit());
        assert!(all > 80 && by_node == 0, "{nodes:?} {all}");
        let (_, by_node) = check(nodes, wave, Across::Node, &cases, &jit());
        // Reductions run by node only if the members of each node are contiguous.
        let expected = match nodes {
            [0, 1] => 0..1,
            [0, 1, 0, 1] => 5..40,
            _ => 20..200,
        };
        assert!(expected.contains(&by_node), "{nodes:?} {by_node}");
    }
}

#[test]
#[ignore = "extended"]
fn every_type_and_operator() {
    for across in [Across::Direct, Across::Node] {
        let mut cases = Vec::new();
        for data_type in DATA_TYPES {
            for (turn, op) in
                ReduceOp::all(-3.0).into_iter().enumerate().filter(|(_, op)| op.supports(data_type))
            {
                for collective in [Collective::AllReduce, Collective::ReduceScatter, Collective::Reduce] {
                    let offset = turn as u64 % 2;
                    cases.push(Case { op, offset, ..Case::new(collective, data_type, 300) });
                }
            }
        }
        let (all, _) = check(&[0, 0, 1, 1], 4, across, &cases, &jit());
        assert_eq!(all, cases.len());
    }
}

#[test]
#[ignore = "extended"]
fn auto_selects_the_faster_form() {
    let by_node = |nodes: &[u32], collective, data_type, count| {
        let case = Case { data: Data::Normal, ..Case::new(collective, data_type, count) };
        let (all, by_node) = check(nodes, 4, Across::Auto, &[case], &jit());
        assert_eq!(all, 1);
        by_node == 1
    };
    let (even, uneven) = ([0, 0, 1, 1], [0, 1, 1, 1]);
    assert!(by_node(&even, Collective::AllReduce, DataType::F32, 70_000));
    assert!(!by_node(&even, Collective::AllReduce, DataType::F32, 100));
    assert!(!by_node(&even, Collective::ReduceScatter, DataType::Bf16, 70_000), "unrounded sums are longer");
    assert!(by_node(&uneven, Collective::AllGather, DataType::F32, 70_000));
    assert!(!by_node(&uneven, Collective::AllGather, DataType::F32, 100));
    let short = cases(4, DataType::F32, &[0, 1]);
    for nodes in [&even, &uneven] {
        let (all, _) = check(nodes, 4, Across::Auto, &short, &jit());
        assert_eq!(all, short.len());
    }
    let two_of_eight: Vec<u32> = (0..16).map(|member| member / 8).collect();
    assert!(by_node(&two_of_eight, Collective::AllToAll, DataType::U8, 64));
    assert!(!by_node(&two_of_eight, Collective::AllToAll, DataType::U8, 40_000));
}

#[test]
fn several_tensors_are_gathered() {
    let nodes = [0, 0, 1, 1];
    let entry = |index: u64| Entry {
        data_type: [DataType::F32, DataType::U8, DataType::Bf16][index as usize % 3],
        count: [0, 1, 1000, 5000][index as usize % 4],
        input: LOCATIONS[index as usize % 3],
        output: LOCATIONS[(index as usize + 1) % 3],
        offset: index % 3,
        in_place: false,
        route: (0, 0),
    };
    all_well(on_ranks(4, 4, &world_config(), &jit(), |world| {
        let stream = world.device().create_stream()?;
        for across in [Across::Direct, Across::Node] {
            let mut communicator = Communicator::new(world, world.group(), config(&nodes, across))?;
            let case = ListCase { form: ListForm::GatherMany, entries: (0..9).map(entry).collect(), seed: 3 };
            let trial = Trial::from(case);
            let mut scratch = Scratch::new(world, &communicator, trial.scratch_bytes(4))?;
            trial.run(&mut communicator, &mut scratch, Choice::default(), &stream)?.unwrap();
            scratch.release()?;
        }
        Ok(())
    }));
}

#[test]
#[ignore = "extended"]
fn captured_sequence_replays() {
    for nodes in [&[0, 0, 1, 1][..], &[0, 1, 1, 1]] {
        let cases = |seed: u64| {
            let case = |collective| {
                let base = Case::new(collective, DataType::F32, 5000);
                Case { seed, root: GroupRank::new(2), data: Data::Normal, ..base }
            };
            Collective::ALL.map(case)
        };
        all_well(on_ranks(4, 4, &world_config(), &jit(), |world| {
            let stream = world.device().create_stream()?;
            let mut communicator = Communicator::new(world, world.group(), config(nodes, Across::Auto))?;
            let mut scratches = Vec::new();
            for case in cases(0) {
                let mut scratch = Scratch::new(world, &communicator, 1 << 20)?;
                conformance::run(&mut communicator, &mut scratch, &case, &stream)?.unwrap();
                scratches.push(scratch);
            }
            stream.begin_capture()?;
            for (case, scratch) in cases(0).iter().zip(&scratches) {
                let choice = Choice::default();
                drop(conformance::launch(&mut communicator, scratch, case, choice, &stream)?);
            }
            let graph = stream.end_capture()?.instantiate()?;
            for seed in 1..20 {
                let cases = cases(seed);
                let filled = cases
                    .iter()
                    .zip(&mut scratches)
                    .map(|(case, scratch)| conformance::fill(&communicator, scratch, case));
                let filled = filled.collect::<Result<Vec<_>, _>>()?;
                // SAFETY: the communicator and the buffers stay until the stream has passed it, below.
                unsafe { graph.launch(&stream) }?;
                world.synchronize(&stream)?;
                for (filled, scratch) in filled.iter().zip(&scratches) {
                    filled.judge(scratch)?.unwrap();
                }
                // Calls between replays advance the counters.
                conformance::run(&mut communicator, &mut scratches[0], &cases[0], &stream)?.unwrap();
            }
            scratches.into_iter().try_for_each(Scratch::release)
        }));
    }
}

#[test]
fn features_of_one_node_are_refused() {
    let uneven = [0, 1, 1, 1];
    all_well(on_ranks(4, 4, &world_config(), &jit(), |world| {
        let make = |config| Communicator::new(world, world.group(), config);
        let text = |error: Error| with_causes(&error);
        let checked = CclConfig { check: Check::Fingerprint, ..config(&uneven, Across::Auto) };
        let error = text(make(checked).map(drop).unwrap_err());
        assert!(error.contains("ccl.check") && error.contains("2 nodes"), "{error}");
        let error = text(make(config(&[0, 1], Across::Auto)).map(drop).unwrap_err());
        assert_eq!(error, "nodes is 2; allowed is one for each member");

        let mut communicator = make(config(&[0, 1, 0, 1], Across::Node))?;
        let buffer = world.device().allocate(4096)?;
        // SAFETY: the buffer outlives its calls, none of which is launched.
        let tensor = unsafe { Tensor::local(buffer.address(), DataType::F32, 8) };
        let call = Call::AllReduce { output: tensor, input: tensor, op: ReduceOp::Sum };
        let error = text(communicator.prepare(&call).map(drop).unwrap_err());
        let expected = "all_reduce cannot be done by network-by-node: sums are in group-rank order, and the members of \
                        each node are not contiguous in the group";
        assert_eq!(error, expected);
        // SAFETY: as above.
        let (output, input) = unsafe {
            let tensor = |offset| Tensor::local(buffer.address().offset(offset), DataType::F32, 4);
            (tensor(0), tensor(64))
        };
        let splits = [1; 4];
        let pairs = Call::AllToAllUneven { output, input, output_splits: &splits, input_splits: &splits };
        let error = text(communicator.prepare(&pairs).map(drop).unwrap_err());
        assert!(error.contains("counts that only pairs know cannot be packed"), "{error}");
        let asked = Choice { algorithm: Some(Algorithm::Push), ..Choice::default() };
        let error = text(communicator.prepare_as(&call, asked).map(drop).unwrap_err());
        assert!(error.contains("network-by-node") || error.contains("push"), "{error}");
        let send = Call::Send { tensor, to: GroupRank::new((world.rank().get() + 1) % 4) };
        let error = text(communicator.prepare(&send).map(drop).unwrap_err());
        assert!(error.contains("a message between two members") && error.contains("2 nodes"), "{error}");

        let mut communicator = make(config(&uneven, Across::Auto))?;
        let error = text(communicator.prepare_as(&call, asked).map(drop).unwrap_err());
        assert!(error.contains("all_reduce cannot be done by push: members are on several nodes"), "{error}");
        let blocks = Choice { blocks: Some(3), ..Choice::default() };
        let error = text(communicator.prepare_as(&call, blocks).map(drop).unwrap_err());
        assert_eq!(error, "blocks is 3; allowed is 1 to the communicator's channels");
        Ok(())
    }));
}

#[test]
fn missing_member_is_named() {
    let short = WorldConfig { operation_deadline: Duration::from_millis(700), ..world_config() };
    for (nodes, across) in [(&[0, 0, 1, 1][..], Across::Node), (&[0, 1, 1, 1], Across::Direct)] {
        let results = on_ranks(4, 4, &short, &jit(), |world| {
            let stream = world.device().create_stream()?;
            let mut communicator = Communicator::new(world, world.group(), config(nodes, across))?;
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
        assert!(!errors.is_empty(), "{results:?}");
        let named = errors.iter().any(|text| text.contains("rank 2") && text.contains("ccl"));
        assert!(named, "{errors:#?}");
    }
}
