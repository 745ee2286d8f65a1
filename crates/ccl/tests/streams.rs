//! Communicators and streams: several calls in flight, one communicator on several streams, early drops, and `Work`.
#![expect(clippy::disallowed_methods, reason = "tests of real threads run on the machine's time")]

use std::sync::Barrier;
use std::time::{Duration, Instant};

use crate::common::{all_well, failure, jit, on_ranks, world_config};
use anabranch_ccl::{
    Algorithm, Call, CclConfig, Check, Choice, Collective, Communicator, DataType, Error, LocationKind,
    Tensor,
};
use anabranch_conformance::ccl::{self as conformance, Case, Numbers, Scratch, Subset};
use anabranch_ranks::{GlobalRank, GroupRank};
use anabranch_shmem::{Fault, RankError, World, WorldConfig};

const RANKS: u32 = 4;
const WAVE: u32 = 4;
const TYPES: [DataType; 2] = [DataType::F32, DataType::Bf16];

fn config() -> CclConfig {
    CclConfig { max_blocks: 2, staging_bytes: 32 << 10, ..CclConfig::default() }
}

fn communicator(world: &World, members: &[u32]) -> Result<Communicator, Error> {
    let group = Subset::new(members.iter().copied()).group(world.group()).unwrap();
    Communicator::new(world, &group, config())
}

/// A collective that the algorithm can run.
fn done_by(algorithm: Algorithm) -> Collective {
    let all = [Collective::AllGather, Collective::AllReduce, Collective::Broadcast];
    let can = |collective: &Collective| {
        algorithm.allows(&Case::new(*collective, DataType::F32, 2000).shape(RANKS)).is_ok()
    };
    all.into_iter().find(can).unwrap()
}

#[test]
fn communicators_of_overlapping_groups_run_concurrently() {
    const GROUPS: [&[u32]; 6] = [&[0, 1, 2, 3], &[3, 1, 0, 2], &[2, 0], &[1, 3], &[0, 3, 1], &[2]];
    all_well(on_ranks(RANKS, WAVE, &world_config(), &jit(), |world| {
        let mut channels = Vec::new();
        for (index, members) in GROUPS.into_iter().enumerate() {
            if members.contains(&world.rank().get()) {
                let communicator = communicator(world, members)?;
                let scratch = Scratch::new(world, &communicator, 256 << 10)?;
                // Members of one group draw the same numbers.
                let numbers = Numbers(index as u64);
                channels.push((communicator, scratch, numbers, world.device().create_stream()?));
            }
        }
        for round in 0..60 {
            let mut flying = Vec::new();
            // Ranks launch in different orders.
            let count = channels.len();
            for step in 0..count {
                let index = (step + round + world.rank().index()) % count;
                let (communicator, scratch, numbers, stream) = &mut channels[index];
                let (case, algorithm) = Case::any(numbers, communicator.size(), &TYPES, 2500);
                let filled = conformance::fill(communicator, scratch, &case)?;
                let choice = Choice { algorithm: Some(algorithm), ..Choice::default() };
                let work = conformance::launch(communicator, scratch, &case, choice, stream)?;
                flying.push((index, filled, work));
            }
            for (index, filled, work) in flying.iter().rev() {
                work.join(world.operation_deadline())?;
                let verdict = filled.judge(&channels[*index].1)?;
                verdict.unwrap_or_else(|failure| panic!("round {round}: {failure}"));
            }
        }
        channels.into_iter().try_for_each(|(_, scratch, ..)| scratch.release())
    }));
}

#[test]
fn calls_on_several_streams_run_in_order() {
    all_well(on_ranks(RANKS, WAVE, &world_config(), &jit(), |world| {
        let mut all = communicator(world, &[1, 3, 0, 2])?;
        let mut places = Vec::new();
        for _ in 0..3 {
            places.push((Scratch::new(world, &all, 256 << 10)?, world.device().create_stream()?));
        }
        let mut numbers = Numbers(3);
        let mut sequence = 0;
        for round in 0..60 {
            let mut flying = Vec::new();
            for (index, (scratch, stream)) in places.iter_mut().enumerate() {
                let (case, algorithm) = Case::any(&mut numbers, RANKS, &TYPES, 2500);
                let filled = conformance::fill(&all, scratch, &case)?;
                let choice = Choice { algorithm: Some(algorithm), ..Choice::default() };
                let work = conformance::launch(&mut all, scratch, &case, choice, stream)?;
                sequence += 1;
                assert_eq!(work.sequence(), sequence);
                flying.push((index, filled, work));
            }
            // The last call follows the others.
            flying[2].2.join(world.operation_deadline())?;
            for (index, filled, work) in &flying {
                assert!(work.poll()?, "{} is incomplete after a later call", work.describe());
                filled.judge(&places[*index].0)?.unwrap_or_else(|failure| panic!("round {round}: {failure}"));
            }
        }
        places.into_iter().try_for_each(|(scratch, _)| scratch.release())
    }));
}

/// Rank 1 is late. The others drop the communicator and its works while its kernels wait for rank 1.
#[test]
fn dropped_communicator_completes_its_calls() {
    let meet = Barrier::new(RANKS as usize);
    all_well(on_ranks(RANKS, WAVE, &world_config(), &jit(), |world| {
        let stream = world.device().create_stream()?;
        for (round, algorithm) in Algorithm::ALL.into_iter().enumerate() {
            let mut all = communicator(world, &[0, 1, 2, 3])?;
            let mut scratch = Scratch::new(world, &all, 256 << 10)?;
            let collective = done_by(algorithm);
            let case = Case { seed: round as u64, ..Case::new(collective, DataType::F32, 2000) };
            let choice = Choice { algorithm: Some(algorithm), ..Choice::default() };
            let filled = conformance::fill(&all, &mut scratch, &case)?;
            if world.rank().get() == 1 {
                // After all ranks have dropped it.
                meet.wait();
                std::thread::sleep(Duration::from_millis(20));
                drop(conformance::launch(&mut all, &scratch, &case, choice, &stream)?);
                drop(all);
            } else {
                let work = conformance::launch(&mut all, &scratch, &case, choice, &stream)?;
                drop(all);
                assert!(!work.poll()?, "{algorithm} did not wait for rank 1");
                drop(work);
                meet.wait();
            }
            // A new communicator, while calls of the first may be in flight.
            let mut next = communicator(world, &[0, 1, 2, 3])?;
            let mut other = Scratch::new(world, &next, 256 << 10)?;
            conformance::run_as(&mut next, &mut other, &case, choice, &stream)?.unwrap();
            world.synchronize(&stream)?;
            filled.judge(&scratch)?.unwrap_or_else(|failure| panic!("{algorithm}: {failure}"));
            scratch.release()?;
            other.release()?;
        }
        Ok(())
    }));
}

#[test]
fn join_returns_within_its_timeout() {
    let (launched, looked) = (Barrier::new(RANKS as usize), Barrier::new(RANKS as usize));
    all_well(on_ranks(RANKS, WAVE, &world_config(), &jit(), |world| {
        let stream = world.device().create_stream()?;
        let mut all = communicator(world, &[0, 1, 2, 3])?;
        let mut scratch = Scratch::new(world, &all, 64 << 10)?;
        let case = Case::new(Collective::AllReduce, DataType::F32, 1000);
        let filled = conformance::fill(&all, &mut scratch, &case)?;
        let work = if world.rank().get() == 2 {
            launched.wait();
            looked.wait();
            conformance::launch(&mut all, &scratch, &case, Choice::default(), &stream)?
        } else {
            let work = conformance::launch(&mut all, &scratch, &case, Choice::default(), &stream)?;
            launched.wait();
            assert!(!work.poll()?);
            let start = Instant::now();
            let limit = Duration::from_millis(60);
            let error = work.join(limit).unwrap_err();
            let took = start.elapsed();
            assert!(
                matches!(&error, Error::Shmem(anabranch_shmem::Error::StreamBusy { waited }) if *waited >= limit),
                "{error:?}"
            );
            assert!(took >= limit && took < limit + Duration::from_secs(2), "{took:?}");
            // The timeout has no effect.
            assert!(!work.poll()?);
            looked.wait();
            work
        };
        work.join(world.operation_deadline())?;
        assert!(work.poll()?);
        assert!(
            work.describe().contains("all_reduce f32 sum 1000 elements over 4 ranks"),
            "{}",
            work.describe()
        );
        filled.judge(&scratch)?.unwrap();
        scratch.release()
    }));
}

/// A broadcast, and on another stream and communicator an all_gather of its result. Rank 3 is late with the broadcast.
#[test]
fn wait_on_orders_another_stream() {
    const COUNT: u64 = 3000;
    all_well(on_ranks(RANKS, WAVE, &world_config(), &jit(), |world| {
        let [first, second] = [world.device().create_stream()?, world.device().create_stream()?];
        let mut one = communicator(world, &[0, 1, 2, 3])?;
        let mut two = communicator(world, &[3, 2, 1, 0])?;
        let members = u64::from(RANKS);
        let mut memory = world.allocate(world.group(), (1 + members) * 4 * COUNT, 256, "chain")?;
        let all = 4 * COUNT as usize;
        for round in 0..20u8 {
            let byte = |rank: u8| round.wrapping_mul(9).wrapping_add(rank);
            memory.write(0, &vec![byte(world.rank().get() as u8); all])?;
            memory.write(all as u64, &vec![0xee; all * RANKS as usize])?;
            {
                let tensor = Tensor::symmetric(&memory, 0, DataType::F32, COUNT)?;
                let output = Tensor::symmetric(&memory, 4 * COUNT, DataType::F32, members * COUNT)?;
                let root = GroupRank::new(3);
                if world.rank().get() == 3 {
                    std::thread::sleep(Duration::from_millis(5));
                }
                one.run(&Call::Broadcast { tensor, root }, &first)?.wait_on(&second)?;
                let gathered = two.run(&Call::AllGather { output, input: tensor }, &second)?;
                // The broadcast of the next round follows it.
                gathered.wait_on(&first)?;
            }
            world.synchronize(&first)?;
            let mut seen = vec![0; all * (1 + RANKS as usize)];
            memory.read(0, &mut seen)?;
            assert!(seen.iter().all(|seen| *seen == byte(3)), "round {round}");
        }
        Ok(())
    }));
}

/// Rank 1 never calls. `join` on the others names rank 1 and the phase, soon after the deadline.
fn member_that_never_calls(algorithms: &[Algorithm]) {
    const DEADLINE: Duration = Duration::from_secs(1);
    for &algorithm in algorithms {
        let ended = Barrier::new(RANKS as usize);
        let world_of_test = WorldConfig { operation_deadline: DEADLINE, ..world_config() };
        let results = on_ranks(RANKS, WAVE, &world_of_test, &jit(), |world| {
            let stream = world.device().create_stream()?;
            let mut all = communicator(world, &[3, 1, 0, 2])?;
            let mut scratch = Scratch::new(world, &all, 256 << 10)?;
            let collective = done_by(algorithm);
            let case = Case::new(collective, DataType::F32, 2000);
            let choice = Choice { algorithm: Some(algorithm), ..Choice::default() };
            // Once all of them.
            conformance::run_as(&mut all, &mut scratch, &case, choice, &stream)?.unwrap();
            let mut said = None;
            if world.rank().get() != 1 {
                let start = Instant::now();
                let work = conformance::launch(&mut all, &scratch, &case, choice, &stream)?;
                said = Some((work.join(Duration::from_secs(30)), start.elapsed()));
            }
            // An earlier exit would be reported as a failure.
            ended.wait();
            if let Some((outcome, took)) = said {
                let error = outcome.unwrap_err();
                assert!(took < DEADLINE + Duration::from_secs(1), "{algorithm}: {took:?}");
                let Error::Shmem(anabranch_shmem::Error::Fault(fault)) = &error else {
                    panic!("{algorithm}: {error:?}")
                };
                let Fault::DeadlineExpired(expired) = fault else { panic!("{algorithm}: {fault}") };
                assert_eq!(expired.peer, GlobalRank::new(1), "{algorithm}: {fault}");
                assert_eq!(expired.operation, "ccl");
                let awaited = if algorithm.is_packets() { "packets of a peer" } else { "barrier" };
                assert_eq!(expired.phase, awaited, "{algorithm}");
                // The world has failed: later calls return the same error and launch nothing.
                let again = conformance::launch(&mut all, &scratch, &case, choice, &stream).unwrap_err();
                assert_eq!(again.to_string(), error.to_string());
            }
            Ok(())
        });
        // `leave` of a failed world returns its failure.
        let panicked: Vec<_> = results
            .iter()
            .filter_map(|result| result.as_ref().err())
            .filter(|error| matches!(error, RankError::Panicked { .. } | RankError::Work { .. }))
            .map(failure)
            .collect();
        assert!(panicked.is_empty(), "{}", panicked.join("\n"));
    }
}

#[test]
fn member_that_never_calls_is_named_in_time() {
    member_that_never_calls(&[Algorithm::Packets, Algorithm::Push]);
}

#[test]
#[ignore = "extended"]
fn member_that_never_calls_is_named_by_every_algorithm() {
    member_that_never_calls(&Algorithm::ALL);
}

/// Calls on local memory in a group of one.
#[test]
fn group_of_one_does_not_wait() {
    all_well(on_ranks(2, WAVE, &world_config(), &jit(), |world| {
        let stream = world.device().create_stream()?;
        if world.rank().get() == 1 {
            let mut alone = communicator(world, &[1])?;
            let mut scratch = Scratch::new(world, &alone, 64 << 10)?;
            for collective in Collective::ALL {
                let case =
                    Case { location: LocationKind::Local, ..Case::new(collective, DataType::F32, 100) };
                conformance::run(&mut alone, &mut scratch, &case, &stream)?.unwrap();
            }
            scratch.release()?;
        }
        Ok(())
    }));
}

/// Two communicators of the same ranks, which rank 1 uses in another order.
#[test]
fn different_communicator_order_is_reported_with_calls() {
    for check in [Check::Off, Check::Fingerprint] {
        let deadline = WorldConfig { operation_deadline: Duration::from_millis(1500), ..world_config() };
        let config = CclConfig { check, ..config() };
        let results = on_ranks(2, WAVE, &deadline, &jit(), |world| {
            let stream = world.device().create_stream()?;
            let mut both = Vec::new();
            for _ in 0..2 {
                let communicator = Communicator::new(world, world.group(), config.clone())?;
                let scratch = Scratch::new(world, &communicator, 64 << 10)?;
                both.push((communicator, scratch));
            }
            // In the same order first.
            for (communicator, scratch) in &mut both {
                let case = Case::new(Collective::AllGather, DataType::F32, 5);
                conformance::run(communicator, scratch, &case, &stream)?.unwrap();
            }
            let (communicator, scratch) = &mut both[world.rank().index()];
            let case = Case::new(Collective::AllReduce, DataType::F32, 1000 + u64::from(world.rank().get()));
            conformance::run(communicator, scratch, &case, &stream)?.unwrap();
            Ok(())
        });
        for result in results {
            let Err(RankError::Work { error, .. }) = result else { panic!("{result:?}") };
            let text = error.to_string();
            for (rank, communicator) in [(0, 1), (1, 2)] {
                let call = format!("call 2 of communicator {communicator} of ranks 0, 1, all_reduce");
                assert!(text.contains(&call), "rank {rank}: {text}");
                assert!(text.contains(&format!("f32 sum {} elements", 1000 + rank)), "rank {rank}: {text}");
            }
        }
    }
}
