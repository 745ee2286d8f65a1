//! Different calls on members, with and without the comparison of calls: no rank hangs, and all ranks report the error.
#![expect(clippy::disallowed_methods, reason = "tests of real threads run on the machine's time")]

use std::time::{Duration, Instant};

use crate::common::mismatch::{AT_ONCE, Memory, ODD, Place, RANKS, Seen, checked, failures, judge};
use crate::common::{all_well, jit, on_ranks, world_config};
use anabranch_ccl::{
    Algorithm, Call, CclConfig, Choice, Collective, Communicator, DataType, Error, LocationKind, ReduceOp,
    Tensor,
};
use anabranch_conformance::ccl::{self as conformance, Case, ListCase, Numbers, Scratch, Trial};
use anabranch_hip::{DeviceBuffer, GraphExec, Stream};
use anabranch_ranks::GroupRank;
use anabranch_shmem::{Error as WorldError, Fault, World, WorldConfig};

/// The call of one member.
#[derive(Clone)]
struct Made {
    collective: Collective,
    data_type: DataType,
    count: u64,
    op: ReduceOp,
    root: u32,
    input: Place,
    output: Place,
    /// Counts per member, or splits: uneven.
    sends: Option<Vec<u64>>,
    expects: Vec<u64>,
}

impl Made {
    const fn new(collective: Collective) -> Self {
        let (input, output) = (Place::Local, Place::Local);
        let (data_type, op) = (DataType::F32, ReduceOp::Sum);
        Self {
            collective,
            data_type,
            count: 48,
            op,
            root: 0,
            input,
            output,
            sends: None,
            expects: Vec::new(),
        }
    }

    fn with_memory(self, input: Place, output: Place) -> Self {
        Self { input, output, ..self }
    }

    fn with_splits(self, sends: &[u64], expects: &[u64]) -> Self {
        Self { sends: Some(sends.into()), expects: expects.into(), ..self }
    }

    fn with_call<T>(&self, memory: &Memory, rank: GroupRank, then: impl FnOnce(&Call<'_>) -> T) -> T {
        let tensor = |place, count, output| memory.tensor(place, self.data_type, count, output);
        let all = self.count * u64::from(RANKS);
        let (op, root) = (self.op, GroupRank::new(self.root));
        let input = |count| tensor(self.input, count, false);
        let output = |count| tensor(self.output, count, true);
        let sum = |counts: &[u64]| counts.iter().sum();
        let call = match (self.collective, &self.sends) {
            (Collective::AllToAll, Some(sends)) => Call::AllToAllUneven {
                output: output(sum(&self.expects)),
                input: input(sum(sends)),
                output_splits: &self.expects,
                input_splits: sends,
            },
            (Collective::ReduceScatter, Some(_)) => Call::ReduceScatterUneven {
                output: output(self.expects[rank.index()]),
                input: input(sum(&self.expects)),
                op,
                counts: &self.expects,
            },
            (_, Some(_)) => Call::AllGatherUneven {
                output: output(sum(&self.expects)),
                input: input(self.expects[rank.index()]),
                counts: &self.expects,
            },
            (Collective::AllReduce, _) => {
                Call::AllReduce { output: output(self.count), input: input(self.count), op }
            }
            (Collective::Reduce, _) => {
                Call::Reduce { output: output(self.count), input: input(self.count), op, root }
            }
            (Collective::AllGather, _) => Call::AllGather { output: output(all), input: input(self.count) },
            (Collective::Broadcast, _) => Call::Broadcast { tensor: input(self.count), root },
            (Collective::Barrier, _) => Call::Barrier,
            (other, _) => panic!("{other} is not in the table"),
        };
        then(&call)
    }
}

/// Compiles and loads the kernels of all calls, so that measured times are those of the calls.
fn load(communicator: &mut Communicator, memory: &Memory, calls: &[&Made]) -> Result<(), Error> {
    let rank = communicator.rank();
    for made in calls {
        made.with_call(memory, rank, |call| communicator.prepare(call).map(drop))?;
    }
    let world = communicator.world();
    Ok(world.barrier(world.group(), "all is loaded")?)
}

/// One call on each rank; that of one rank differs.
fn mismatch(usual: &Made, odd: &Made) -> Vec<Seen> {
    mismatch_with(&checked(), usual, odd)
}

fn mismatch_with(config: &CclConfig, usual: &Made, odd: &Made) -> Vec<Seen> {
    failures(&world_config(), RANKS, |world| {
        let mut communicator = Communicator::new(world, world.group(), config.clone())?;
        let stream = world.device().create_stream()?;
        let memory = Memory::new(world)?;
        let rank = communicator.rank();
        let made = if rank.get() == ODD { odd } else { usual };
        load(&mut communicator, &memory, &[usual, made])?;
        let run = |communicator: &mut Communicator, made: &Made| {
            made.with_call(&memory, rank, |call| communicator.run(call, &stream))
        };
        // Equal calls precede the different ones.
        for _ in 0..2 {
            run(&mut communicator, usual)?.join(AT_ONCE)?;
        }
        let start = Instant::now();
        let work = run(&mut communicator, made)?;
        let error = work.join(AT_ONCE).unwrap_err();
        let took = start.elapsed();
        let next = run(&mut communicator, usual).unwrap_err().to_string();
        // The work still returns the mismatch after the communicator was dropped.
        drop(communicator);
        assert_eq!(work.poll().unwrap_err().to_string(), error.to_string());
        memory.keep();
        Ok(Seen { error, cause: world.check().unwrap_err().to_string(), next, took })
    })
}

/// Every field of a call, different on one rank.
#[test]
fn difference_in_any_field_is_reported_on_all_ranks() {
    use Collective::{AllGather, AllReduce, Broadcast, Reduce};
    let (local, symmetric) = (Place::Local, Place::Symmetric(0));
    let reduce = Made::new(AllReduce);
    let cases = [
        (reduce.clone(), Made::new(AllGather), "the collective"),
        (reduce.clone(), Made::new(Collective::Barrier), "the collective"),
        (reduce.clone(), Made { data_type: DataType::I32, ..reduce.clone() }, "the data type"),
        (reduce.clone(), Made { op: ReduceOp::Max, ..reduce.clone() }, "the operator"),
        (
            Made { op: ReduceOp::PreMulSum(2.0), ..reduce.clone() },
            Made { op: ReduceOp::PreMulSum(3.0), ..reduce.clone() },
            "the scalar",
        ),
        (
            Made { op: ReduceOp::PreMulSum(-2.0), data_type: DataType::I32, ..reduce.clone() },
            Made { op: ReduceOp::PreMulSum(3.0), data_type: DataType::I32, ..reduce.clone() },
            "the scalar",
        ),
        (reduce.clone(), Made { count: 49, ..reduce.clone() }, "the count"),
        (Made { count: 4, ..reduce.clone() }, Made { count: 16, ..reduce.clone() }, "the number of blocks"),
        (Made::new(Broadcast), Made { root: 2, ..Made::new(Broadcast) }, "the root"),
        (Made::new(Reduce), Made { root: 1, ..Made::new(Reduce) }, "the root"),
        (
            Made::new(AllGather),
            Made::new(AllGather).with_splits(&[48; 3], &[48; 3]),
            "whether counts are given per member",
        ),
        (reduce.clone(), reduce.clone().with_memory(symmetric, local), "the memory of the input"),
        (reduce.clone(), reduce.clone().with_memory(local, Place::Registered(0)), "the memory of the output"),
    ];
    // The automatic choice: with packets the number of blocks depends on the count.
    let config = checked().algorithm(Some(Algorithm::Packets));
    for (usual, odd, field) in cases {
        let text = judge(&mismatch_with(&config, &usual, &odd), &[field]);
        assert!(text.starts_with("members made different calls: rank 1 made call 3: "), "{text}");
        assert!(text.contains(", but rank 0 made call 3: "), "{text}");
        if matches!(usual.op, ReduceOp::PreMulSum(_)) {
            let scalars =
                [&odd.op, &usual.op].map(|op| op.to_string().replace("premul_sum(", "by ").replace(')', ""));
            assert!(scalars.iter().all(|scalar| text.contains(scalar)), "{scalars:?}: {text}");
        }
    }
}

/// A split mismatch concerns two members; all ranks report it.
#[test]
fn split_mismatch_is_reported_on_all_ranks() {
    let exchange =
        |sends: &[u64], expects: &[u64]| Made::new(Collective::AllToAll).with_splits(sends, expects);
    let text = judge(&mismatch(&exchange(&[4; 3], &[4; 3]), &exchange(&[4; 3], &[4, 4, 5])), &[]);
    assert!(text.ends_with("rank 2 sends 4 elements to rank 1, which expects 5"), "{text}");
    let text = judge(&mismatch(&exchange(&[4; 3], &[4; 3]), &exchange(&[0, 4, 4], &[4; 3])), &[]);
    assert!(text.ends_with("rank 1 sends 0 elements to rank 0, which expects 4"), "{text}");
    let gather = |counts: &[u64]| Made::new(Collective::AllGather).with_splits(&[], counts);
    let text = judge(&mismatch(&gather(&[3, 2, 1]), &gather(&[3, 2, 2])), &[]);
    assert!(text.contains("rank 2 sends 1 elements to rank 1, which expects 2"), "{text}");
    assert!(text.contains("counts [3, 2, 2]") && text.contains("counts [3, 2, 1]"), "{text}");
    let scatter = |counts: &[u64]| Made::new(Collective::ReduceScatter).with_splits(&[], counts);
    let text = judge(&mismatch(&scatter(&[3, 2, 1]), &scatter(&[3, 2, 2])), &[]);
    assert!(text.contains("rank 1 sends 2 elements to rank 2, which expects 1"), "{text}");
    assert!(text.contains("counts [3, 2, 2]") && text.contains("counts [3, 2, 1]"), "{text}");
}

/// The offsets of buffers that peers read or write.
#[test]
fn different_offsets_of_mapped_buffers_are_reported() {
    let made = |input, output| Made::new(Collective::AllGather).with_memory(input, output);
    let (local, symmetric) = (Place::Local, Place::Symmetric);
    let all = |usual: Made, odd: Made, algorithm, fields: &[&str]| {
        let config = checked().algorithm(Some(algorithm));
        judge(&mismatch_with(&config, &usual, &odd), fields)
    };
    let gather = |place| made(local, place);
    let output = "the offset of the output";
    all(gather(symmetric(0)), gather(symmetric(256)), Algorithm::Direct, &[output]);
    let registration = "the registration of the output";
    all(gather(Place::Registered(0)), gather(Place::Registered(1)), Algorithm::Direct, &[registration]);
    let reduce = |input, output| Made::new(Collective::AllReduce).with_memory(input, output);
    let input = "the offset of the input";
    let usual = || reduce(symmetric(0), symmetric(0));
    all(usual(), reduce(symmetric(64), symmetric(0)), Algorithm::Pull, &[input]);
    all(usual(), reduce(symmetric(0), symmetric(64)), Algorithm::Push, &[output]);
    let broadcast = |place| Made::new(Collective::Broadcast).with_memory(place, place);
    all(broadcast(symmetric(0)), broadcast(symmetric(64)), Algorithm::TwoHop, &[output]);
}

/// Phases on one member only, which change its sequence of barriers.
#[test]
fn different_phases_are_reported_on_all_ranks() {
    let config = checked().algorithm(Some(Algorithm::Push));
    let seen = failures(&world_config(), RANKS, |world| {
        let mut communicator = Communicator::new(world, world.group(), config.clone())?;
        let stream = world.device().create_stream()?;
        let memory = Memory::new(world)?;
        let made = Made::new(Collective::AllReduce);
        let phased = Some(world.rank().get() == ODD);
        let choice = Choice { algorithm: Some(Algorithm::Push), phased, ..Choice::default() };
        let prepared =
            made.with_call(&memory, communicator.rank(), |call| communicator.prepare_as(call, choice))?;
        world.barrier(world.group(), "all is loaded")?;
        let start = Instant::now();
        let error = communicator.launch(&prepared, &stream)?.join(AT_ONCE).unwrap_err();
        let took = start.elapsed();
        let next = communicator.launch(&prepared, &stream).unwrap_err().to_string();
        memory.keep();
        Ok(Seen { error, cause: world.check().unwrap_err().to_string(), next, took })
    });
    let text = judge(&seen, &["whether it has phases"]);
    assert!(text.contains("by push in phases on") && text.contains("phases (yes and no)"), "{text}");
}

/// Equal calls of every collective with the check on: results are those without the check.
#[test]
fn equal_calls_pass_with_correct_results() {
    for (ranks, wave) in [(1, 4), (3, 1), (4, 4)] {
        let done = on_ranks(ranks, wave, &world_config(), &jit(), |world| {
            let stream = world.device().create_stream()?;
            let mut communicator = Communicator::new(world, world.group(), checked())?;
            let mut scratch = Scratch::new(world, &communicator, 1 << 20)?;
            let mut done = 0;
            for case in cases(ranks) {
                conformance::run(&mut communicator, &mut scratch, &case, &stream)?.unwrap();
                done += 1;
            }
            // Equal lists of tensors, and messages in between, which are not compared.
            let types = [DataType::Bf16, DataType::F32, DataType::U8];
            let mut numbers = Numbers(ranks.into());
            for _ in 0..60 {
                let (case, algorithm) = ListCase::any(&mut numbers, ranks, &types, 3000);
                let choice = Choice { algorithm: Some(algorithm), ..Choice::default() };
                Trial::from(case).run(&mut communicator, &mut scratch, choice, &stream)?.unwrap();
                done += 1;
            }
            scratch.release()?;
            Ok(done)
        });
        assert!(all_well(done)[0] > 160);
    }
}

fn cases(ranks: u32) -> Vec<Case> {
    let places = [LocationKind::Symmetric, LocationKind::Local, LocationKind::Registered];
    let mut all = Vec::new();
    for collective in Collective::ALL {
        for (index, location) in places.into_iter().enumerate() {
            for form in 0..4 {
                for count in [3, 2500] {
                    let (in_place, uneven) = (form % 2 == 1, form / 2 == 1);
                    let root = GroupRank::new(index as u32 % ranks);
                    let case = Case::new(collective, DataType::F32, count);
                    all.push(Case { location, in_place, uneven, root, ..case });
                }
            }
        }
    }
    all.retain(Case::is_defined);
    all
}

/// Two graphs of two calls each, and their tensors.
struct Captured {
    graphs: [GraphExec; 2],
    input: DeviceBuffer,
    output: DeviceBuffer,
}

const ELEMENTS: usize = 1000;

impl Captured {
    fn new(world: &World, communicator: &mut Communicator, stream: &Stream) -> Result<Self, Error> {
        let buffer = || world.device().allocate(ELEMENTS * 4);
        let (input, output) = (buffer()?, buffer()?);
        let tensor = |buffer: &DeviceBuffer| {
            // SAFETY: the whole buffer, which is kept beside the graphs.
            unsafe { Tensor::local(buffer.address(), DataType::U32, ELEMENTS as u64) }
        };
        let (from, to) = (tensor(&input), tensor(&output));
        let call = Call::AllReduce { output: to, input: from, op: ReduceOp::Sum };
        let mut capture = || -> Result<GraphExec, Error> {
            let prepared = communicator.prepare(&call)?;
            stream.begin_capture()?;
            for _ in 0..2 {
                drop(communicator.launch(&prepared, stream)?);
            }
            Ok(stream.end_capture()?.instantiate()?)
        };
        let graphs = [capture()?, capture()?];
        Ok(Self { graphs, input, output })
    }

    fn launch(&self, which: usize, stream: &Stream) -> Result<(), Error> {
        // SAFETY: the tensors and the communicator outlive the replay, which every test waits for.
        Ok(unsafe { self.graphs[which].launch(stream) }?)
    }
}

#[test]
fn replayed_graphs_are_compared() {
    all_well(on_ranks(RANKS, 4, &world_config(), &jit(), |world| {
        let mut communicator = Communicator::new(world, world.group(), checked())?;
        let stream = world.device().create_stream()?;
        let mut captured = Captured::new(world, &mut communicator, &stream)?;
        for replay in 0..100u32 {
            let mine: Vec<u32> = (0..ELEMENTS as u32).map(|i| i * replay + world.rank().get()).collect();
            captured.input.copy_from_host(0, bytemuck::cast_slice(&mine))?;
            captured.launch(replay as usize % 2, &stream)?;
            // Eager calls of the same communicator between replays.
            drop(communicator.run(&Call::Barrier, &stream)?);
            world.synchronize(&stream)?;
            let mut sums = vec![0u32; ELEMENTS];
            captured.output.copy_to_host(0, bytemuck::cast_slice_mut(&mut sums))?;
            let expected = |i: u32| RANKS * i * replay + (0..RANKS).sum::<u32>();
            assert!(sums.iter().zip(0..).all(|(sum, i)| *sum == expected(i)), "replay {replay}");
        }
        Ok(())
    }));
}

/// Equal calls in two graphs that one rank replays in another order: only the sequence numbers differ.
#[test]
fn graphs_replayed_in_another_order_are_reported() {
    let seen = failures(&world_config(), RANKS, |world| {
        let mut communicator = Communicator::new(world, world.group(), checked())?;
        let stream = world.device().create_stream()?;
        let captured = Captured::new(world, &mut communicator, &stream)?;
        communicator.prepare(&Call::Barrier)?;
        world.barrier(world.group(), "all is loaded")?;
        let start = Instant::now();
        for which in [0, 0, usize::from(world.rank().get() == ODD)] {
            captured.launch(which, &stream)?;
        }
        world.synchronize(&stream).unwrap_err();
        let cause = world.check().unwrap_err().to_string();
        let error = communicator.run(&Call::Barrier, &stream).unwrap_err();
        let next = error.to_string();
        Ok(Seen { error, cause, next, took: start.elapsed() })
    });
    let text = judge(&seen, &["the number of the call"]);
    assert!(
        text.contains("rank 1 made call 3: all_reduce") && text.contains("rank 0 made call 1: "),
        "{text}"
    );
}

/// Two concurrent replays of graphs of one communicator, whose launches would use the same flags.
#[test]
fn overlapping_launches_are_reported() {
    let seen = failures(&world_config(), 2, |world| {
        let mut communicator = Communicator::new(world, world.group(), checked())?;
        let (stream, other) = (world.device().create_stream()?, world.device().create_stream()?);
        let captured = Captured::new(world, &mut communicator, &stream)?;
        communicator.prepare(&Call::Barrier)?;
        world.barrier(world.group(), "all is loaded")?;
        let start = Instant::now();
        // Rank 0 waits for rank 1 and meanwhile replays again, on another stream.
        if world.rank().get() == 0 {
            captured.launch(0, &stream)?;
            captured.launch(1, &other)?;
        } else {
            std::thread::sleep(Duration::from_millis(300));
        }
        let cause = loop {
            if let Err(cause) = world.check() {
                break cause.to_string();
            }
            assert!(start.elapsed() < AT_ONCE);
            if world.rank().get() == 0 {
                std::thread::sleep(Duration::from_millis(1));
            } else {
                // Rank 1 does not take part. The exit of rank 0 ends its wait.
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        let error = communicator.run(&Call::Barrier, &stream).unwrap_err();
        // Launches in flight end before their memory is freed.
        for stream in [&stream, &other] {
            world.synchronize(stream).unwrap_err();
        }
        let next = error.to_string();
        Ok(Seen { error, cause, next, took: start.elapsed() })
    });
    for Seen { error, cause, .. } in seen {
        let Error::Shmem(WorldError::Fault(Fault::Reported { rank, phase, detail, .. })) = &error else {
            panic!("{error}")
        };
        assert_eq!((rank.get(), phase.as_str()), (0, "overlap with an earlier call"), "{cause}");
        assert!(detail.contains("one after the other"), "{detail}");
    }
}

/// One rank does not make a call: the waits of the others end at the deadline with an error that names the rank and the phase.
fn absent(config: &CclConfig) -> Vec<Seen> {
    const DEADLINE: Duration = Duration::from_secs(2);
    let world_config = WorldConfig { operation_deadline: DEADLINE, ..world_config() };
    let seen = failures(&world_config, RANKS, |world| {
        let mut communicator = Communicator::new(world, world.group(), config.clone())?;
        let stream = world.device().create_stream()?;
        let memory = Memory::new(world)?;
        let made = Made::new(Collective::AllReduce);
        let rank = communicator.rank();
        load(&mut communicator, &memory, &[&made])?;
        let start = Instant::now();
        let error = if rank.get() == ODD {
            while world.check().is_ok() && start.elapsed() < 5 * DEADLINE {
                std::thread::sleep(Duration::from_millis(10));
            }
            Error::Shmem(world.check().unwrap_err())
        } else {
            let work = made.with_call(&memory, rank, |call| communicator.run(call, &stream))?;
            work.join(5 * DEADLINE).unwrap_err()
        };
        let took = start.elapsed();
        let next =
            made.with_call(&memory, rank, |call| communicator.run(call, &stream).unwrap_err()).to_string();
        memory.keep();
        Ok(Seen { error, cause: world.check().unwrap_err().to_string(), next, took })
    });
    for (rank, Seen { took, .. }) in seen.iter().enumerate() {
        // The missing rank gets an error when the others leave.
        let most = if rank as u32 == ODD { 4 } else { 1 };
        assert!(*took < DEADLINE + Duration::from_secs(most), "rank {rank}: {took:?}");
    }
    seen
}

fn absent_is_named(config: &CclConfig, operation: &str, phase: &str) {
    for Seen { error, .. } in absent(config) {
        let Error::Shmem(WorldError::Fault(Fault::DeadlineExpired(expired))) = &error else {
            panic!("{error}")
        };
        let found = (expired.operation.as_str(), expired.phase.as_str(), expired.peer.get());
        assert_eq!(found, (operation, phase, ODD), "{error}");
    }
}

#[test]
fn missing_call_names_the_rank() {
    absent_is_named(&checked(), "ccl check", "barrier");
}

#[test]
#[ignore = "extended"]
fn missing_call_names_the_rank_without_a_check() {
    for (algorithm, phase) in [(Algorithm::Packets, "packets of a peer"), (Algorithm::Push, "barrier")] {
        absent_is_named(&CclConfig::default().algorithm(Some(algorithm)), "ccl", phase);
    }
}
