//! Captured and replayed calls, with new data in each replay and all bytes compared after it.

use crate::common::{all_well, jit, on_ranks, world_config};
use anabranch_ccl::{
    Algorithm, Call, CclConfig, Collective, Communicator, DataType, Error, LocationKind, ReduceOp, Tensor,
};
use anabranch_conformance::ccl::{self as conformance, Captured, Case, Numbers, Replays, Trial};
use anabranch_hip::Stream;
use anabranch_ranks::GroupRank;

const RANKS: u32 = 4;
const WAVE: u32 = 4;
/// Replays of the long test; each is two or three collectives.
const REPLAYS: u64 = 1000;
const TYPES: [DataType; 2] = [DataType::F32, DataType::Bf16];

fn config() -> CclConfig {
    CclConfig { max_blocks: 2, staging_bytes: 32 << 10, ..CclConfig::default() }
}

/// Captures cases; their first run must be right.
fn captured(
    communicator: &mut Communicator,
    stream: &Stream,
    cases: Vec<(impl Into<Trial>, Algorithm)>,
) -> Result<Captured, Error> {
    let (captured, verdict) = Captured::new(communicator, stream, cases)?;
    verdict.unwrap();
    Ok(captured)
}

fn any_cases(numbers: &mut Numbers, calls: u64, most: u64) -> Vec<(Trial, Algorithm)> {
    (0..calls).map(|_| Trial::any(numbers, RANKS, &TYPES, most)).collect()
}

#[test]
fn mixed_graphs_replay_among_eager_calls() {
    let replays = Replays { count: REPLAYS, types: TYPES.to_vec(), most_count: 12_000, seed: 7 };
    let tallies = all_well(on_ranks(RANKS, WAVE, &world_config(), &jit(), |world| {
        let stream = world.device().create_stream()?;
        conformance::run_replays(world, &config(), &replays, &stream)
    }));
    for (rank, tally) in tallies.iter().enumerate() {
        assert!(tally.calls > 2 * REPLAYS, "rank {rank}: {} calls", tally.calls);
        assert!(tally.failures.is_empty(), "rank {rank}: {:?}", tally.failures.first());
        // Messages and lists of tensors are among them.
        assert!(tally.lists.iter().all(|count| *count > REPLAYS / 20), "rank {rank}: {:?}", tally.lists);
    }
}

#[test]
fn two_graphs_interleave_without_host_waits() {
    all_well(on_ranks(RANKS, WAVE, &world_config(), &jit(), |world| {
        let stream = world.device().create_stream()?;
        let mut all = Communicator::new(world, world.group(), config())?;
        let mut numbers = Numbers(11);
        let (one, two) = (any_cases(&mut numbers, 3, 900), any_cases(&mut numbers, 2, 5000));
        let mut one = captured(&mut all, &stream, one)?;
        let mut two = captured(&mut all, &stream, two)?;
        for round in 0..30 {
            let (of_one, of_two) = (one.refill(&all, round)?, two.refill(&all, 1000 + round)?);
            // Replays write the same outputs; in place they would start with results.
            for _ in 0..3 {
                if (round % 2) == 0 {
                    one.launch(&all, &stream)?;
                    two.launch(&all, &stream)?;
                } else {
                    two.launch(&all, &stream)?;
                    one.launch(&all, &stream)?;
                }
                if one.is_in_place() || two.is_in_place() {
                    break;
                }
            }
            world.synchronize(&stream)?;
            one.judge(&of_one)?.unwrap();
            two.judge(&of_two)?.unwrap();
        }
        one.release()?;
        two.release()
    }));
}

#[test]
fn graphs_of_two_communicators_run_concurrently() {
    all_well(on_ranks(RANKS, WAVE, &world_config(), &jit(), |world| {
        let [first, second] = [world.device().create_stream()?, world.device().create_stream()?];
        let mut all = Communicator::new(world, world.group(), config())?;
        let reversed = conformance::Subset::new([3, 2, 1, 0]).group(world.group()).unwrap();
        let mut other = Communicator::new(world, &reversed, config())?;
        let mut numbers = Numbers(13);
        let (one, two) = (any_cases(&mut numbers, 3, 2000), any_cases(&mut numbers, 3, 2000));
        let mut one = captured(&mut all, &first, one)?;
        let mut two = captured(&mut other, &second, two)?;
        for round in 0..40 {
            let (of_one, of_two) = (one.refill(&all, round)?, two.refill(&other, round)?);
            // In different orders on different ranks: the communicators share nothing.
            if (u64::from(world.rank().get()) + round).is_multiple_of(2) {
                one.launch(&all, &first)?;
                two.launch(&other, &second)?;
            } else {
                two.launch(&other, &second)?;
                one.launch(&all, &first)?;
            }
            world.synchronize(&first)?;
            world.synchronize(&second)?;
            one.judge(&of_one)?.unwrap();
            two.judge(&of_two)?.unwrap();
        }
        one.release()?;
        two.release()
    }));
}

/// A broadcast on one stream, and on another stream an all_gather of its result, ordered by `wait_on`.
#[test]
fn capture_over_two_streams_keeps_the_order_of_wait_on() {
    const COUNT: u64 = 3000;
    all_well(on_ranks(RANKS, WAVE, &world_config(), &jit(), |world| {
        let [first, second] = [world.device().create_stream()?, world.device().create_stream()?];
        let mut one = Communicator::new(world, world.group(), config())?;
        let mut two = Communicator::new(world, world.group(), config())?;
        let mut memory = world.allocate(world.group(), (1 + u64::from(RANKS)) * 4 * COUNT, 256, "chain")?;
        let all = 4 * COUNT as usize;
        let root = GroupRank::new(2);
        let graph = {
            let tensor = Tensor::symmetric(&memory, 0, DataType::F32, COUNT)?;
            let output = Tensor::symmetric(&memory, 4 * COUNT, DataType::F32, u64::from(RANKS) * COUNT)?;
            let broadcast = one.prepare(&Call::Broadcast { tensor, root })?;
            let gather = two.prepare(&Call::AllGather { output, input: tensor })?;
            let eager = one.launch(&broadcast, &first)?;
            world.synchronize(&first)?;
            assert!(eager.is_over());
            first.begin_capture()?;
            let captured = one.launch(&broadcast, &first)?;
            captured.wait_on(&second)?;
            two.launch(&gather, &second)?.wait_on(&first)?;
            let graph = first.end_capture()?.instantiate()?;
            assert!(!captured.is_over(), "the runtime refuses the query, and the graph may be launched");
            graph
        };
        for replay in 0..50u8 {
            let byte = |rank: u8| replay.wrapping_mul(5).wrapping_add(rank);
            memory.write(0, &vec![byte(world.rank().get() as u8); all])?;
            memory.write(all as u64, &vec![0xee; all * RANKS as usize])?;
            // SAFETY: buffers, communicators and world live until the test has synchronized the streams.
            unsafe { graph.launch(&first) }?;
            world.synchronize(&first)?;
            let mut seen = vec![0; all * (1 + RANKS as usize)];
            memory.read(0, &mut seen)?;
            assert!(seen.iter().all(|seen| *seen == byte(2)), "replay {replay}");
        }
        Ok(())
    }));
}

#[test]
fn captured_barrier_replays() {
    all_well(on_ranks(RANKS, WAVE, &world_config(), &jit(), |world| {
        let stream = world.device().create_stream()?;
        let mut all = Communicator::new(world, world.group(), config())?;
        let empty =
            Case { location: LocationKind::Local, ..Case::new(Collective::AllReduce, DataType::F32, 0) };
        let sum = Case { op: ReduceOp::Max, ..Case::new(Collective::AllReduce, DataType::F32, 77) };
        let cases = vec![
            (Case::new(Collective::Barrier, DataType::U8, 0), Algorithm::Packets),
            (empty, Algorithm::TwoShotPackets),
            (sum, Algorithm::Pull),
            (Case::new(Collective::Barrier, DataType::U8, 0), Algorithm::Packets),
        ];
        let mut captured = captured(&mut all, &stream, cases)?;
        for replay in 0..20 {
            captured.replay(&all, &stream, replay)?.unwrap();
        }
        captured.release()
    }));
}
