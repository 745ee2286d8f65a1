//! Collectives captured into graphs and replayed, with new data each time and every byte judged behind every replay.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use anabranch_ccl::conformance::{self, Case, Filled, Scratch};
use anabranch_ccl::{
    Algorithm, Call, CclConfig, Choice, Collective, Communicator, DataType, Error, LocationKind, ReduceOp,
    Tensor,
};
use anabranch_hip::{GraphExec, Stream};
use anabranch_ranks::GroupRank;
use anabranch_shmem::World;
use common::{Numbers, all_well, any_case, jit, on_ranks, world_config};

const RANKS: u32 = 4;
const WAVE: u32 = 4;
/// Replays of the long test; each is two or three collectives.
const REPLAYS: u64 = 1000;
const TYPES: [DataType; 2] = [DataType::F32, DataType::Bf16];

fn config() -> CclConfig {
    CclConfig { max_blocks: 2, staging_bytes: 32 << 10, ..CclConfig::default() }
}

/// A captured sequence of calls of one communicator, each with buffers of its own.
struct Captured {
    calls: Vec<(Case, Scratch)>,
    graph: GraphExec,
}

impl Captured {
    /// Each call runs once before the capture, which loads its kernels.
    fn new(
        world: &World,
        communicator: &mut Communicator,
        stream: &Stream,
        cases: Vec<(Case, Algorithm)>,
    ) -> Result<Self, Error> {
        let choice = |algorithm| Choice { algorithm: Some(algorithm), ..Choice::default() };
        let mut calls = Vec::new();
        for (case, algorithm) in cases {
            let mut scratch = Scratch::new(world, communicator, case.scratch_bytes(communicator.size()))?;
            conformance::run_as(communicator, &mut scratch, &case, choice(algorithm), stream)?.unwrap();
            calls.push((case, scratch, algorithm));
        }
        stream.begin_capture()?;
        for (case, scratch, algorithm) in &calls {
            // The stream's order is enough.
            drop(conformance::launch(communicator, scratch, case, choice(*algorithm), stream)?);
        }
        let graph = stream.end_capture()?.instantiate()?;
        Ok(Self { calls: calls.into_iter().map(|(case, scratch, _)| (case, scratch)).collect(), graph })
    }

    /// New data; nothing of it may be in flight.
    fn refill(&mut self, communicator: &Communicator, seed: u64) -> Result<Vec<Filled>, Error> {
        let fill = |(case, scratch): &mut (Case, Scratch)| {
            case.seed = seed;
            conformance::fill(communicator, scratch, case)
        };
        self.calls.iter_mut().map(fill).collect()
    }

    fn launch(&self, stream: &Stream) -> Result<(), Error> {
        // SAFETY: buffers, communicator and world live until the stream was waited for.
        Ok(unsafe { self.graph.launch(stream) }?)
    }

    fn judge(&self, filled: &[Filled], replay: u64) -> Result<(), Error> {
        for (filled, (_, scratch)) in filled.iter().zip(&self.calls) {
            filled.judge(scratch)?.unwrap_or_else(|failure| panic!("replay {replay}: {failure}"));
        }
        Ok(())
    }

    fn replay(
        &mut self,
        communicator: &Communicator,
        stream: &Stream,
        world: &World,
        replay: u64,
    ) -> Result<(), Error> {
        let filled = self.refill(communicator, replay)?;
        self.launch(stream)?;
        world.synchronize(stream)?;
        self.judge(&filled, replay)
    }

    fn is_in_place(&self) -> bool {
        self.calls.iter().any(|(case, _)| case.in_place)
    }

    fn release(self) -> Result<(), Error> {
        self.calls.into_iter().try_for_each(|(_, scratch)| scratch.release())
    }
}

fn any_cases(numbers: &mut Numbers, calls: u64, most: u64) -> Vec<(Case, Algorithm)> {
    (0..calls).map(|_| any_case(numbers, RANKS, &TYPES, most)).collect()
}

/// A communicator of this rank's pair: of ranks 2 and 0, or 3 and 1, in this order.
fn pair(world: &World) -> Result<Communicator, Error> {
    let mut mine = None;
    for members in [[2, 0], [3, 1]] {
        if members.contains(&world.rank().get()) {
            let group = conformance::Subset::new(members).group(world.group()).unwrap();
            mine = Some(Communicator::new(world, &group, config())?);
        }
    }
    Ok(mine.unwrap())
}

#[test]
fn many_replays_of_mixed_graphs_among_eager_calls_and_other_groups() {
    all_well(on_ranks(RANKS, WAVE, &world_config(), &jit(), |world| {
        let stream = world.device().create_stream()?;
        let mut all = Communicator::new(world, world.group(), config())?;
        let mut two = pair(world)?;
        let mut numbers = Numbers(7);
        let mut graphs = Vec::new();
        for (calls, most) in [(1, 30), (3, 300), (2, 3000), (1, 12_000), (4, 1000)] {
            let cases = any_cases(&mut numbers, calls, most);
            graphs.push(Captured::new(world, &mut all, &stream, cases)?);
        }
        let mut scratch = Scratch::new(world, &all, 256 << 10)?;
        let mut scratch_of_two = Scratch::new(world, &two, 256 << 10)?;
        for replay in 0..REPLAYS {
            let index = numbers.below(graphs.len() as u64) as usize;
            graphs[index].replay(&all, &stream, world, replay)?;
            let (eager, algorithm) = any_case(&mut numbers, RANKS, &TYPES, 500);
            let (other, of_two) = any_case(&mut numbers, 2, &TYPES, 500);
            let choice = |algorithm| Choice { algorithm: Some(algorithm), ..Choice::default() };
            if replay % 3 == 1 {
                let verdict =
                    conformance::run_as(&mut all, &mut scratch, &eager, choice(algorithm), &stream)?;
                verdict.unwrap_or_else(|failure| panic!("eager behind replay {replay}: {failure}"));
            }
            if replay % 4 == 2 {
                let verdict =
                    conformance::run_as(&mut two, &mut scratch_of_two, &other, choice(of_two), &stream)?;
                verdict.unwrap_or_else(|failure| panic!("the pair behind replay {replay}: {failure}"));
            }
        }
        graphs.into_iter().try_for_each(Captured::release)?;
        scratch.release()?;
        scratch_of_two.release()
    }));
}

#[test]
fn two_graphs_interleaved_without_a_wait_between_them() {
    all_well(on_ranks(RANKS, WAVE, &world_config(), &jit(), |world| {
        let stream = world.device().create_stream()?;
        let mut all = Communicator::new(world, world.group(), config())?;
        let mut numbers = Numbers(11);
        let (one, two) = (any_cases(&mut numbers, 3, 900), any_cases(&mut numbers, 2, 5000));
        let mut one = Captured::new(world, &mut all, &stream, one)?;
        let mut two = Captured::new(world, &mut all, &stream, two)?;
        for round in 0..30 {
            let (of_one, of_two) = (one.refill(&all, round)?, two.refill(&all, 1000 + round)?);
            // What they leave lies where the next replay leaves the same; in place they would begin with results.
            for _ in 0..3 {
                if (round % 2) == 0 {
                    one.launch(&stream)?;
                    two.launch(&stream)?;
                } else {
                    two.launch(&stream)?;
                    one.launch(&stream)?;
                }
                if one.is_in_place() || two.is_in_place() {
                    break;
                }
            }
            world.synchronize(&stream)?;
            one.judge(&of_one, round)?;
            two.judge(&of_two, round)?;
        }
        one.release()?;
        two.release()
    }));
}

#[test]
fn graphs_of_two_communicators_at_once_on_two_streams() {
    all_well(on_ranks(RANKS, WAVE, &world_config(), &jit(), |world| {
        let [first, second] = [world.device().create_stream()?, world.device().create_stream()?];
        let mut all = Communicator::new(world, world.group(), config())?;
        let reversed = conformance::Subset::new([3, 2, 1, 0]).group(world.group()).unwrap();
        let mut other = Communicator::new(world, &reversed, config())?;
        let mut numbers = Numbers(13);
        let (one, two) = (any_cases(&mut numbers, 3, 2000), any_cases(&mut numbers, 3, 2000));
        let mut one = Captured::new(world, &mut all, &first, one)?;
        let mut two = Captured::new(world, &mut other, &second, two)?;
        for round in 0..40 {
            let (of_one, of_two) = (one.refill(&all, round)?, two.refill(&other, round)?);
            // In other orders on other ranks: they share nothing.
            if (u64::from(world.rank().get()) + round).is_multiple_of(2) {
                one.launch(&first)?;
                two.launch(&second)?;
            } else {
                two.launch(&second)?;
                one.launch(&first)?;
            }
            world.synchronize(&first)?;
            world.synchronize(&second)?;
            one.judge(&of_one, round)?;
            two.judge(&of_two, round)?;
        }
        one.release()?;
        two.release()
    }));
}

/// A broadcast on one stream, and on another one an all_gather of what it brings, behind it by `wait_on`.
#[test]
fn a_capture_across_streams_keeps_the_order_that_wait_on_gives() {
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
            first.begin_capture()?;
            one.launch(&broadcast, &first)?.wait_on(&second)?;
            two.launch(&gather, &second)?.wait_on(&first)?;
            first.end_capture()?.instantiate()?
        };
        for replay in 0..50u8 {
            let byte = |rank: u8| replay.wrapping_mul(5).wrapping_add(rank);
            memory.write(0, &vec![byte(world.rank().get() as u8); all])?;
            memory.write(all as u64, &vec![0xee; all * RANKS as usize])?;
            // SAFETY: buffers, communicators and world live until the streams were waited for.
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
fn a_captured_barrier_and_an_empty_call_replay_too() {
    all_well(on_ranks(RANKS, WAVE, &world_config(), &jit(), |world| {
        let stream = world.device().create_stream()?;
        let mut all = Communicator::new(world, world.group(), config())?;
        let empty =
            Case { location: LocationKind::Local, ..Case::new(Collective::AllReduce, DataType::F32, 0) };
        let sum = Case { op: ReduceOp::Max, ..Case::new(Collective::AllReduce, DataType::F32, 77) };
        let cases = vec![
            (Case::new(Collective::Barrier, DataType::U8, 0), Algorithm::Packets),
            (empty, Algorithm::TwoShotPackets),
            (Case::new(Collective::Barrier, DataType::U8, 0), Algorithm::Staged),
            (sum, Algorithm::Pull),
            (Case::new(Collective::Barrier, DataType::U8, 0), Algorithm::Direct),
        ];
        let cases: Vec<_> = cases
            .into_iter()
            .filter(|(case, algorithm)| algorithm.allows(&case.shape(RANKS)).is_ok())
            .collect();
        assert!(cases.len() >= 4);
        let mut captured = Captured::new(world, &mut all, &stream, cases)?;
        (0..20).try_for_each(|replay| captured.replay(&all, &stream, world, replay))?;
        captured.release()
    }));
}
