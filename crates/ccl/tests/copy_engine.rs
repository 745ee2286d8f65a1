//! Collectives by copy engine on the host runtime, where streams copy. The sweep and the graph tests cover them, too.
#![expect(clippy::disallowed_methods, reason = "tests of real threads run on the machine's time")]

use std::sync::Barrier;
use std::time::{Duration, Instant};

use crate::common::mismatch::{Memory, ODD, Place, RANKS, Seen, checked, failures, judge};
use crate::common::processes::{address_file, process_world};
use crate::common::{all_well, failure, jit, on_ranks, world_config};
use anabranch_ccl::{
    Algorithm, BarrierMode, Call, CclConfig, Check, Choice, Collective, Communicator, DATA_TYPES, DataType,
    Error, LocationKind, ReduceOp, Tensor,
};
use anabranch_conformance::ccl::{
    self as conformance, Captured, Case, Form, ListCase, ListForm, Numbers, Scratch, Trial,
};
use anabranch_hip::Stream;
use anabranch_ranks::GroupRank;
use anabranch_shmem::{SdmaConfig, World, WorldConfig};
use anabranch_testkit::{Ranks, role, test_path};
use anabranch_transport::TransportKind;

const BY_ENGINE: Choice =
    Choice { algorithm: Some(Algorithm::CopyEngine), blocks: None, block_bytes: None, phased: None };

fn config() -> CclConfig {
    CclConfig { max_blocks: 2, staging_bytes: 16 << 10, ..CclConfig::default() }
}

/// Every form with a copy engine variant, with counts around zero, odd byte counts, and one and several rounds through the staging.
fn cases(members: u32) -> Vec<Case> {
    let mut all = Vec::new();
    for (number, form) in (0u64..).zip(Form::all()) {
        for (place, count) in (0u64..).zip([0, 1, 17, 1023, 9001]) {
            for in_place in [false, true] {
                let data_type = [DataType::U8, DataType::Bf16, DataType::F32][(place % 3) as usize];
                let location =
                    [LocationKind::Symmetric, LocationKind::Registered][((number + place) % 2) as usize];
                let case = Case {
                    uneven: form.uneven,
                    root: GroupRank::new((number as u32 + place as u32) % members),
                    location,
                    in_place,
                    offset: place % 4,
                    seed: number * 16 + place,
                    ..Case::new(form.collective, data_type, count)
                };
                if case.is_defined() && Algorithm::CopyEngine.allows(&case.shape(members)).is_ok() {
                    all.push(case);
                }
            }
        }
    }
    all
}

/// Runs trials on one communicator, with calls by other algorithms in between if `between`. All results must be right.
fn run_all(world: &World, config: CclConfig, trials: &[Trial], between: bool) -> Result<(), Error> {
    let stream = world.device().create_stream()?;
    let mut all = Communicator::new(world, world.group(), config)?;
    let bytes = trials.iter().map(|trial| trial.scratch_bytes(all.size())).max().unwrap_or(0);
    let mut scratch = Scratch::new(world, &all, bytes.max(256 << 10))?;
    let mut numbers = Numbers(5);
    for trial in trials {
        trial.run(&mut all, &mut scratch, BY_ENGINE, &stream)?.unwrap();
        if between {
            let (case, algorithm) = Case::any(&mut numbers, all.size(), &[DataType::F32], 3000);
            let choice = Choice { algorithm: Some(algorithm), ..Choice::default() };
            conformance::run_as(&mut all, &mut scratch, &case, choice, &stream)?.unwrap();
        }
    }
    scratch.release()
}

fn trials(members: u32) -> Vec<Trial> {
    let mut numbers = Numbers(3);
    let mut all: Vec<Trial> = cases(members).into_iter().map(Trial::from).collect();
    while all.len() < 24 || !all.len().is_multiple_of(8) {
        let (case, algorithm) = ListCase::any(&mut numbers, members, &DATA_TYPES, 3000);
        if case.form == ListForm::GatherMany && algorithm == Algorithm::CopyEngine {
            all.push(case.into());
        }
    }
    all
}

#[test]
#[ignore = "extended"]
fn groups_of_one_to_eight_among_other_algorithms() {
    for (ranks, wave) in [(1, 4), (2, 64), (3, 1), (5, 32), (8, 4)] {
        all_well(on_ranks(ranks, wave, &world_config(), &jit(), |world| {
            run_all(world, config(), &trials(ranks), true)
        }));
    }
}

fn stream_barriers(groups: &[(u32, u32)]) {
    let config = CclConfig { barriers: BarrierMode::Stream, ..config() };
    for &(ranks, wave) in groups {
        all_well(on_ranks(ranks, wave, &world_config(), &jit(), |world| {
            run_all(world, config.clone(), &trials(ranks), true)
        }));
    }
}

/// Without a reduction no kernel runs: streams do the barriers. Calls by kernels run in between.
#[test]
fn stream_barriers_replace_kernels() {
    stream_barriers(&[(3, 4)]);
}

#[test]
#[ignore = "extended"]
fn stream_barriers_of_other_groups_and_wave_widths() {
    stream_barriers(&[(2, 4), (3, 1), (5, 32)]);
}

/// Kernels write the copies into queues with rings of a few packets.
#[test]
#[ignore = "extended"]
fn copies_by_queues_that_kernels_write() {
    for (ranks, wave) in [(2, 4), (4, 32), (5, 1)] {
        let sdma = SdmaConfig { ring_bytes: 256, most_copy_bytes: 4096, ..SdmaConfig::default() };
        let transports = vec![TransportKind::Sdma, TransportKind::P2p];
        let world = WorldConfig { transports, sdma, ..world_config() };
        all_well(on_ranks(ranks, wave, &world, &jit(), |world| {
            assert!(world.routes().iter().all(|route| route.kind == TransportKind::Sdma));
            run_all(world, config(), &trials(ranks), true)
        }));
    }
}

#[test]
fn between_processes() {
    if let Some(role) = role() {
        let world = process_world(&role);
        run_all(&world, config(), &trials(3), true).unwrap();
        world.leave().unwrap();
        return;
    }
    let file = address_file("copy-engine");
    let ranks = Ranks::start(test_path!("between_processes"), 3, &file.display().to_string()).unwrap();
    ranks.succeed(Duration::from_secs(120)).unwrap();
}

#[test]
fn long_copies_are_split_over_streams() {
    let long = |collective| Case::new(collective, DataType::U8, 1_500_001).into();
    let trials: Vec<Trial> = vec![long(Collective::AllGather), long(Collective::Broadcast)];
    for copy_streams in [0, 3] {
        let config = CclConfig { copy_streams: Some(copy_streams), ..config() };
        all_well(on_ranks(2, 4, &world_config(), &jit(), |world| {
            run_all(world, config.clone(), &trials, false)
        }));
    }
}

#[test]
fn calls_without_copy_engine_form_are_refused() {
    all_well(on_ranks(3, 4, &world_config(), &jit(), |world| {
        let memory = Memory::new(world)?;
        let mut all = Communicator::new(world, world.group(), config())?;
        let at = |place, count, output| memory.tensor(place, DataType::F32, count, output);
        let (op, root) = (ReduceOp::Sum, GroupRank::new(0));
        let (symmetric, local) = (Place::Symmetric(0), Place::Local);
        let (reached, input) = (at(symmetric, 12, true), at(symmetric, 12, false));
        let splits: &[u64] = &[4, 4, 4];
        for (call, reason) in [
            (
                Call::AllGather { output: at(local, 12, true), input: at(symmetric, 4, false) },
                "all_gather cannot be done by copy-engine: peers have to reach the output",
            ),
            (
                Call::AllReduce { output: at(local, 12, true), input, op },
                "all_reduce cannot be done by copy-engine: peers have to reach the output",
            ),
            (
                Call::AllToAllUneven { output: reached, input, output_splits: splits, input_splits: splits },
                "all_to_all cannot be done by copy-engine: members do not know the offsets in the outputs of their peers",
            ),
            (
                Call::Reduce { output: reached, input, op, root },
                "reduce cannot be done by copy-engine: it is for all_reduce, reduce_scatter and collectives that only move bytes",
            ),
        ] {
            let refused = all.prepare_as(&call, BY_ENGINE).unwrap_err().to_string();
            assert!(refused.contains(reason), "{refused}");
        }
        Ok(())
    }));
}

#[test]
fn fingerprint_detects_a_different_algorithm() {
    let config = config().check_calls(Check::Fingerprint);
    all_well(on_ranks(3, 4, &world_config(), &jit(), |world| {
        run_all(world, config.clone(), &trials(3)[..16], true)
    }));
    let seen = failures(&world_config(), RANKS, |world| {
        let stream = world.device().create_stream()?;
        let memory = Memory::new(world)?;
        let mut all = Communicator::new(world, world.group(), checked())?;
        let algorithm = if world.rank().get() == ODD { Algorithm::Direct } else { Algorithm::CopyEngine };
        let tensor = |count, output| memory.tensor(Place::Symmetric(0), DataType::F32, count, output);
        let call = Call::AllGather { output: tensor(48, true), input: tensor(16, false) };
        let choice = Choice { algorithm: Some(algorithm), ..Choice::default() };
        let started = Instant::now();
        let prepared = all.prepare_as(&call, choice)?;
        let error = all.launch(&prepared, &stream)?.join(Duration::from_secs(30)).unwrap_err();
        let took = started.elapsed();
        let cause = world.check().unwrap_err().to_string();
        let next = all.launch(&prepared, &stream).map(drop).unwrap_err().to_string();
        memory.keep();
        Ok(Seen { error, cause, next, took })
    });
    let text = judge(&seen, &["the algorithm"]);
    assert!(text.contains("copy-engine") && text.contains("direct"), "{text}");
}

/// Rank 1 never makes its third call. The other ranks report it within the deadline, and the queued copies after the barrier cause no
/// fault.
fn missing_member(calls: &[(Collective, BarrierMode)]) {
    const DEADLINE: Duration = Duration::from_secs(2);
    for &(collective, barriers) in calls {
        let config = || CclConfig { barriers, ..config() };
        let config_of_world = WorldConfig { operation_deadline: DEADLINE, ..world_config() };
        let case = Case::new(collective, DataType::F32, 500);
        // All ranks wait until all have their error: otherwise a rank that ends is reported, too.
        let all_failed = Barrier::new(4);
        let waited = |world: &World| {
            let stream = world.device().create_stream()?;
            let mut all = Communicator::new(world, world.group(), config())?;
            let mut scratch = Scratch::new(world, &all, case.scratch_bytes(4))?;
            let calls = if world.rank().get() == 1 { 2 } else { 3 };
            let mut took = Duration::ZERO;
            for _ in 0..calls {
                let started = Instant::now();
                let ended = conformance::run_as(&mut all, &mut scratch, &case, BY_ENGINE, &stream);
                took = started.elapsed();
                match ended {
                    Ok(verdict) => assert_eq!(verdict, Ok(())),
                    Err(error) => return Ok::<_, Error>((took, Some(error), (stream, all, scratch))),
                }
            }
            Ok((took, None, (stream, all, scratch)))
        };
        let results = on_ranks(4, 4, &config_of_world, &jit(), |world| {
            let ended = waited(world);
            all_failed.wait();
            ended.map(|(took, error, kept)| {
                drop(kept);
                assert!(took < 3 * DEADLINE, "{took:?}");
                error.map(|error| error.to_string())
            })
        });
        for (rank, result) in results.iter().enumerate() {
            // `leave` of a failed world returns its failure.
            let text = failure(result.as_ref().unwrap_err());
            assert!(rank == 1 || text.contains("rank 1"), "{collective}, {rank}: {text}");
        }
    }
}

#[test]
fn missing_member_is_named_within_the_deadline() {
    missing_member(&[(Collective::AllReduce, BarrierMode::Kernel)]);
}

#[test]
#[ignore = "extended"]
fn missing_member_of_a_gather_is_named_within_the_deadline() {
    missing_member(&[BarrierMode::Kernel, BarrierMode::Stream].map(|mode| (Collective::AllGather, mode)));
}

fn captured(
    all: &mut Communicator,
    stream: &Stream,
    trials: Vec<(Trial, Algorithm)>,
) -> Result<Captured, Error> {
    let (captured, verdict) = Captured::new(all, stream, trials)?;
    verdict.unwrap();
    Ok(captured)
}

/// Graphs of copies and kernels, with changing inputs, among eager calls of the same communicator and graphs of another one.
#[test]
fn graph_replays_alternate_with_eager_calls() {
    all_well(on_ranks(4, 4, &world_config(), &jit(), |world| {
        let [first, second] = [world.device().create_stream()?, world.device().create_stream()?];
        let mut all = Communicator::new(world, world.group(), config())?;
        let reversed = conformance::Subset::new([3, 2, 1, 0]).group(world.group()).unwrap();
        let mut other = Communicator::new(world, &reversed, config())?;
        let of = |collective, count| Trial::from(Case::new(collective, DataType::F32, count));
        let engine = |collective, count| (of(collective, count), Algorithm::CopyEngine);
        let mixed = vec![
            engine(Collective::AllGather, 700),
            (of(Collective::AllReduce, 4000), Algorithm::Push),
            engine(Collective::AllReduce, 9000),
            (of(Collective::AllToAll, 300), Algorithm::Staged),
            engine(Collective::AllToAll, 300),
            engine(Collective::ReduceScatter, 1500),
            (of(Collective::AllGather, 50), Algorithm::Packets),
        ];
        let mut mixed = captured(&mut all, &first, mixed)?;
        let mut alone = captured(&mut other, &second, vec![engine(Collective::AllToAll, 999)])?;
        let eager = Case::new(Collective::AllGather, DataType::F32, 321);
        let mut scratch = Scratch::new(world, &all, eager.scratch_bytes(4))?;
        for round in 0..25 {
            let (of_mixed, of_alone) = (mixed.refill(&all, round)?, alone.refill(&other, round)?);
            mixed.launch(&all, &first)?;
            alone.launch(&other, &second)?;
            world.synchronize(&first)?;
            world.synchronize(&second)?;
            mixed.judge(&of_mixed)?.unwrap();
            alone.judge(&of_alone)?.unwrap();
            conformance::run_as(&mut all, &mut scratch, &eager, BY_ENGINE, &first)?.unwrap();
        }
        mixed.release()?;
        alone.release()?;
        scratch.release()
    }));
}

/// An eager call by copy engine while another thread captures such a call. The two share no stream.
#[test]
fn eager_calls_while_a_capture_is_open() {
    const COUNT: u64 = 2000;
    all_well(on_ranks(2, 4, &world_config(), &jit(), |world| {
        let [captured, eager] = [world.device().create_stream()?, world.device().create_stream()?];
        let mut all = Communicator::new(world, world.group(), config())?;
        let mut memory = world.allocate(world.group(), 3 * 4 * COUNT, 256, "two halves")?;
        let me = world.rank().get() as u8;
        memory.write(0, &vec![me + 1; 4 * COUNT as usize])?;
        let (graph, prepared) = {
            let input = Tensor::symmetric(&memory, 0, DataType::F32, COUNT)?;
            let output = Tensor::symmetric(&memory, 4 * COUNT, DataType::F32, 2 * COUNT)?;
            let prepared = all.prepare_as(&Call::AllGather { output, input }, BY_ENGINE)?;
            captured.begin_capture()?;
            drop(all.launch(&prepared, &captured)?);
            all.launch(&prepared, &eager)?.join(Duration::from_secs(20))?;
            drop(all.launch(&prepared, &captured)?);
            (captured.end_capture()?.instantiate()?, prepared)
        };
        let expect = |memory: &anabranch_shmem::SymmetricMemory| {
            let mut seen = vec![0; 8 * COUNT as usize];
            memory.read(4 * COUNT, &mut seen).unwrap();
            let (one, two) = seen.split_at(4 * COUNT as usize);
            assert!(one.iter().all(|byte| *byte == 1) && two.iter().all(|byte| *byte == 2));
        };
        expect(&memory);
        memory.write(4 * COUNT, &vec![0; 8 * COUNT as usize])?;
        world.barrier(world.group(), "cleared")?;
        // SAFETY: buffers, communicator and world live until the test has synchronized the stream.
        unsafe { graph.launch(&captured) }?;
        world.synchronize(&captured)?;
        expect(&memory);
        assert!(prepared.describe().contains("copy-engine, 1 blocks"), "{}", prepared.describe());
        Ok(())
    }));
}
