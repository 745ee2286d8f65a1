//! Sends and receives, with all surrounding memory compared, on the host runtime.

use std::sync::Barrier;
use std::time::Duration;

use crate::common::processes::{address_file, process_world};
use crate::common::{all_well, jit, on_ranks, world_config};
use anabranch_ccl::{Call, CclConfig, Collective, Communicator, DataType, Error, PointToPoint, Tensor};
use anabranch_conformance::ccl::Numbers;
use anabranch_hip::{DeviceBuffer, Stream};
use anabranch_ranks::GroupRank;
use anabranch_shmem::{Fault, RankError, World, WorldConfig};
use anabranch_testkit::{Ranks, role, test_path};

const CANARY: u64 = 64;
const UNTOUCHED: u8 = 0xa5;

/// A message from one rank to another.
#[derive(Clone, Copy, Debug)]
struct Message {
    from: u32,
    to: u32,
    data_type: DataType,
    count: u64,
    seed: u64,
}

impl Message {
    fn draw(numbers: &mut Numbers, ranks: u32, most_bytes: u64) -> Self {
        let types = [DataType::U8, DataType::Bf16, DataType::F32, DataType::F64];
        let data_type = types[numbers.below(4) as usize];
        let edges = [0, 1, 15, 255, 256, 257, 1024, 4096, 8191, most_bytes];
        let drawn = numbers.below(most_bytes);
        let bytes = if numbers.below(2) == 0 { edges[numbers.below(10) as usize] } else { drawn };
        Self {
            from: numbers.below(ranks.into()) as u32,
            to: numbers.below(ranks.into()) as u32,
            data_type,
            count: bytes / u64::from(data_type.bytes()),
            seed: numbers.next(),
        }
    }

    fn bytes(&self) -> u64 {
        self.count * u64::from(self.data_type.bytes())
    }

    fn payload(&self) -> Vec<u8> {
        let mut numbers = Numbers(self.seed);
        (0..self.bytes()).map(|_| numbers.next() as u8).collect()
    }
}

/// Memory of one rank, and its expected contents.
struct Memory {
    device: DeviceBuffer,
    image: Vec<u8>,
}

impl Memory {
    fn new(world: &World, bytes: u64) -> Result<Self, Error> {
        Ok(Self { device: world.device().allocate(bytes as usize)?, image: Vec::new() })
    }

    fn clear(&mut self) {
        self.image = vec![UNTOUCHED; CANARY as usize];
    }

    /// Reserves an offset after the others, with canaries around it, aligned to the element and often no more.
    fn place(&mut self, message: &Message, skew: u64) -> u64 {
        let size = u64::from(message.data_type.bytes());
        let at = (self.image.len() as u64).next_multiple_of(16) + skew * size;
        self.image.resize((at + message.bytes() + CANARY) as usize, UNTOUCHED);
        at
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        self.image[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    }

    fn tensor(&self, at: u64, message: &Message) -> Tensor<'static> {
        // SAFETY: inside the buffer, whose size `check` has compared; every test waits for its calls before it drops it.
        unsafe { Tensor::local(self.device.address().offset(at), message.data_type, message.count) }
    }

    fn write(&mut self) -> Result<(), Error> {
        assert!(self.image.len() <= self.device.len(), "{} bytes", self.image.len());
        Ok(self.device.copy_from_host(0, &self.image)?)
    }

    /// The first wrong byte.
    fn wrong(&self) -> Result<Option<usize>, Error> {
        let mut seen = vec![0; self.image.len()];
        self.device.copy_to_host(0, &mut seen)?;
        Ok((0..seen.len()).find(|at| seen[*at] != self.image[*at]))
    }

    fn check(&self, what: &str) -> Result<(), Error> {
        let wrong = self.wrong()?;
        assert!(wrong.is_none(), "{what}: byte {wrong:?} of {}", self.image.len());
        Ok(())
    }
}

/// The messages of this rank, and the expected contents of its memory.
fn part(
    me: u32,
    messages: &[Message],
    numbers: &mut Numbers,
    memory: &mut Memory,
) -> Result<Vec<PointToPoint<'static>>, Error> {
    memory.clear();
    let (mut calls, mut received) = (Vec::new(), Vec::new());
    for message in messages {
        // All ranks draw the same numbers.
        let skews = [numbers.below(4), numbers.below(4)];
        if message.from == me {
            let at = memory.place(message, skews[0]);
            memory.put(at, &message.payload());
            calls.push((at, message, false));
        }
        if message.to == me {
            let at = memory.place(message, skews[1]);
            received.push((at, message));
            calls.push((at, message, true));
        }
    }
    memory.write()?;
    for (at, message) in received {
        memory.put(at, &message.payload());
    }
    let call = |(at, message, is_receive): (u64, &Message, bool)| {
        let tensor = memory.tensor(at, message);
        if is_receive {
            PointToPoint::receive(tensor, GroupRank::new(message.from))
        } else {
            PointToPoint::send(tensor, GroupRank::new(message.to))
        }
    };
    Ok(calls.into_iter().map(call).collect())
}

/// A random order that preserves the order of messages of one peer and direction.
fn shuffled<'a>(calls: Vec<PointToPoint<'a>>, numbers: &mut Numbers) -> Vec<PointToPoint<'a>> {
    let key = |call: &PointToPoint<'_>| match call {
        PointToPoint::Send { to, .. } => (false, Some(*to)),
        PointToPoint::Receive { from, .. } => (true, *from),
    };
    let mut keys: Vec<_> = calls.iter().map(key).collect();
    for index in (1..keys.len()).rev() {
        keys.swap(index, numbers.below(index as u64 + 1) as usize);
    }
    let mut left = calls;
    keys.iter()
        .map(|wanted| {
            let at = left.iter().position(|call| key(call) == *wanted).unwrap();
            left.remove(at)
        })
        .collect()
}

fn config(pipe_bytes: u64, max_blocks: u32) -> CclConfig {
    CclConfig { pipe_bytes, max_blocks, staging_bytes: 64 << 10, ..CclConfig::default() }
}

/// Rounds of random batches, then of the same messages one by one.
fn exchange(world: &World, config: &CclConfig, rounds: u64, most_bytes: u64) -> Result<(), Error> {
    let stream = world.device().create_stream()?;
    let mut communicator = Communicator::new(world, world.group(), config.clone())?;
    let mut memory = Memory::new(world, 8 << 20)?;
    let (me, ranks) = (world.rank().get(), world.size());
    for round in 0..rounds {
        let mut numbers = Numbers(round);
        let count = numbers.below(12 + u64::from(ranks)) as usize;
        let messages: Vec<_> = (0..count).map(|_| Message::draw(&mut numbers, ranks, most_bytes)).collect();
        let calls = part(me, &messages, &mut numbers, &mut memory)?;
        let calls = shuffled(calls, &mut Numbers(round ^ u64::from(me) << 32));
        let work = communicator.run(&Call::Batch(&calls), &stream)?;
        work.join(world.operation_deadline())?;
        memory.check(&format!("{me}, round {round}, {}: {messages:?}", work.describe()))?;
        // One by one, in list order on all ranks, so that no wait is circular.
        let apart: Vec<_> = messages.iter().filter(|message| message.from != message.to).copied().collect();
        for call in part(me, &apart, &mut numbers, &mut memory)? {
            let call = match call {
                PointToPoint::Send { tensor, to } => Call::Send { tensor, to },
                PointToPoint::Receive { tensor, from } => Call::Receive { tensor, from },
            };
            drop(communicator.run(&call, &stream)?);
        }
        world.synchronize(&stream)?;
        memory.check(&format!("{me}, round {round}, one by one: {apart:?}"))?;
    }
    Ok(())
}

fn random_messages(ranks: u32, wave: u32, config: &CclConfig, rounds: u64, most_bytes: u64) {
    all_well(on_ranks(ranks, wave, &world_config(), &jit(), |world| {
        exchange(world, config, rounds, most_bytes)
    }));
}

#[test]
fn random_batches_over_small_pipes() {
    random_messages(3, 4, &config(4096, 2), 25, 20_000);
    random_messages(4, 1, &config(32 << 10, 1), 15, 20_000);
}

#[test]
#[ignore = "extended"]
fn random_batches_over_many_pipes() {
    random_messages(2, 4, &config(16 << 20, 0), 20, 300_000);
    // More blocks than the device has multiprocessors: all pipes of a peer.
    random_messages(2, 4, &config(16 << 20, 40), 8, 600_000);
    random_messages(5, 32, &config(4 << 20, 0), 10, 60_000);
}

#[test]
fn single_rank_sends_to_itself() {
    random_messages(1, 4, &config(4096, 1), 20, 20_000);
    random_messages(1, 4, &config(4096, 0), 20, 20_000);
    random_messages(1, 4, &config(1 << 20, 0), 8, 600_000);
}

#[test]
fn messages_between_processes() {
    if let Some(role) = role() {
        let world = process_world(&role);
        exchange(&world, &config(64 << 10, 0), 10, 50_000).unwrap();
        world.leave().unwrap();
        return;
    }
    let file = address_file("messages");
    let ranks =
        Ranks::start(test_path!("messages_between_processes"), 3, &file.display().to_string()).unwrap();
    ranks.succeed(Duration::from_secs(120)).unwrap();
}

/// Two ranks with a communicator and 1 MiB each.
fn pair<T: Send>(
    world: &WorldConfig,
    work: impl Fn(&World, &mut Communicator, &mut Memory, &Stream) -> Result<T, Error> + Sync,
) -> Vec<Result<T, RankError<Error>>> {
    on_ranks(2, 4, world, &jit(), |world| {
        let stream = world.device().create_stream()?;
        let mut communicator = Communicator::new(world, world.group(), config(1 << 20, 0))?;
        let mut memory = Memory::new(world, 4 << 20)?;
        work(world, &mut communicator, &mut memory, &stream)
    })
}

fn message(from: u32, bytes: u64) -> Message {
    Message { from, to: 1 - from, data_type: DataType::U8, count: bytes, seed: bytes }
}

#[test]
fn send_within_pipe_capacity_completes_before_the_receive() {
    let sent = Barrier::new(2);
    let results = pair(&world_config(), |world, communicator, memory, stream| {
        let me = world.rank().get();
        // Longer than a slot, and as many messages as documented.
        let messages = [message(0, 100_000), message(0, 0), message(0, 7), message(0, 300)];
        let calls = part(me, &messages, &mut Numbers(1), memory)?;
        if me == 1 {
            sent.wait();
        }
        communicator.run(&Call::Batch(&calls), stream)?.join(world.operation_deadline())?;
        if me == 0 {
            sent.wait();
        }
        memory.check("the messages")
    });
    all_well(results);
}

#[test]
fn wrong_byte_is_found_at_any_offset() {
    let results = pair(&world_config(), |world, communicator, memory, stream| {
        let calls = part(world.rank().get(), &[message(0, 99), message(1, 5)], &mut Numbers(1), memory)?;
        communicator.run(&Call::Batch(&calls), stream)?.join(world.operation_deadline())?;
        memory.check("the messages")?;
        for at in 0..memory.image.len() {
            memory.image[at] ^= 1;
            assert_eq!(memory.wrong()?, Some(at));
            memory.image[at] ^= 1;
        }
        Ok(())
    });
    all_well(results);
}

#[test]
fn different_lengths_are_reported() {
    for (sent, received) in [(100, 50), (50, 100), (0, 1), (200_000, 100_000), (3_000_000, 0)] {
        let results = pair(&world_config(), |world, communicator, memory, stream| {
            let me = world.rank().get();
            let message = message(0, if me == 0 { sent } else { received });
            let calls = part(me, &[message], &mut Numbers(1), memory)?;
            let before = memory.image.clone();
            let done = communicator.run(&Call::Batch(&calls), stream)?.join(world.operation_deadline());
            if me == 1 {
                // Nothing was received.
                memory.image = vec![UNTOUCHED; before.len()];
                memory.check("the receiver's memory")?;
            }
            done
        });
        let Err(RankError::Work { error, .. }) = &results[1] else { panic!("{results:?}") };
        let Error::Shmem(anabranch_shmem::Error::Fault(Fault::DeadlineExpired(expired))) = error else {
            panic!("{error:?}")
        };
        assert_eq!(
            (expired.phase.as_str(), expired.expected, expired.seen),
            ("bytes of the message from the peer", received, sent)
        );
    }
}

#[test]
fn missing_peer_is_named_in_time() {
    let world = WorldConfig { operation_deadline: Duration::from_millis(700), ..world_config() };
    for (bytes, is_receive) in [(8, true), (3_000_000, false)] {
        let results = pair(&world, |world, communicator, memory, stream| {
            let me = world.rank().get();
            if me == 1 {
                return Ok(());
            }
            let calls = part(me, &[message(u32::from(is_receive), bytes)], &mut Numbers(1), memory)?;
            communicator.run(&Call::Batch(&calls), stream)?.join(Duration::from_secs(20))
        });
        let Err(RankError::Work { error, .. }) = &results[0] else { panic!("{results:?}") };
        let text = anabranch_hip::with_causes(error);
        let phase = if is_receive { "message from the peer" } else { "free slot for a message to the peer" };
        // The exit of the peer may be detected first.
        assert!(text.contains("rank 1") && (text.contains(phase) || text.contains("left")), "{text}");
    }
}

#[test]
fn messages_interleave_with_collectives() {
    let results = on_ranks(3, 4, &world_config(), &jit(), |world| {
        let stream = world.device().create_stream()?;
        let mut communicator = Communicator::new(world, world.group(), config(8192, 2))?;
        let mut memory = Memory::new(world, 1 << 20)?;
        let me = world.rank().get();
        for round in 0..10 {
            let mut numbers = Numbers(round);
            // Rank 2 does not take part.
            let messages =
                [0, 1].map(|from| Message { from, to: 1 - from, ..Message::draw(&mut numbers, 2, 9000) });
            let calls = part(me, &messages, &mut numbers, &mut memory)?;
            drop(communicator.run(&Call::Barrier, &stream)?);
            if me < 2 {
                let work = communicator.run(&Call::Batch(&calls), &stream)?;
                assert_eq!(work.sequence(), round + 1);
            }
            let work = communicator.run(&Call::Barrier, &stream)?;
            assert_eq!(work.sequence(), 2 * round + 2, "messages are not counted with collectives");
            work.join(world.operation_deadline())?;
            memory.check("the messages")?;
        }
        Ok(())
    });
    all_well(results);
}

#[test]
fn captured_batch_with_long_list_replays() {
    // 40 messages each way do not fit into the arguments.
    for count in [3, 40] {
        let results = pair(&world_config(), |world, communicator, memory, stream| {
            let me = world.rank().get();
            let messages: Vec<_> =
                (0..2 * count).map(|index| message(index % 2, u64::from(index) * 37)).collect();
            let calls = part(me, &messages, &mut Numbers(1), memory)?;
            communicator.run(&Call::Batch(&calls), stream)?.join(world.operation_deadline())?;
            memory.check("before the capture")?;
            let prepared = communicator.prepare(&Call::Batch(&calls))?;
            stream.begin_capture()?;
            drop(communicator.launch(&prepared, stream)?);
            let graph = stream.end_capture()?.instantiate()?;
            drop(prepared);
            // These would overwrite a freed list.
            let shorter = Call::Batch(&calls[..calls.len() - 1]);
            let others: Vec<_> = (0..4).map(|_| communicator.prepare(&shorter)).collect::<Result<_, _>>()?;
            for _ in 0..20 {
                let expected = memory.image.clone();
                part(me, &messages, &mut Numbers(1), memory)?;
                assert_eq!(expected, memory.image);
                // SAFETY: memory and communicator outlive the replays, which are alone on the stream.
                unsafe { graph.launch(stream) }?;
                stream.synchronize()?;
                memory.check("a replay")?;
            }
            drop(others);
            Ok(())
        });
        all_well(results);
    }
}

#[test]
fn invalid_messages_are_refused_before_launch() {
    let results = pair(&world_config(), |world, communicator, memory, _| {
        let me = world.rank();
        let other = GroupRank::new(1 - me.get());
        let mine = GroupRank::new(me.get());
        memory.clear();
        let of = |at: u64, bytes: u64| memory.tensor(at, &message(0, bytes));
        let (one, two) = (of(0, 100), of(50, 100));
        let mut refused = |call: &Call<'_>| communicator.prepare(call).map(|_| ()).unwrap_err();
        assert!(matches!(refused(&Call::Receive { tensor: one, from: None }), Error::Missing { .. }));
        let far = GroupRank::new(2);
        assert!(matches!(refused(&Call::Send { tensor: one, to: far }), Error::Member { members: 2, .. }));
        let Error::SelfMessages { sent, received, .. } = refused(&Call::Send { tensor: one, to: mine })
        else {
            panic!("a send to oneself alone")
        };
        assert_eq!((sent, received), (vec![100], vec![]));
        for (first, second) in [
            (PointToPoint::receive(one, other), PointToPoint::receive(two, other)),
            (PointToPoint::receive(one, other), PointToPoint::send(two, other)),
            (PointToPoint::send(one, mine), PointToPoint::receive(one, mine)),
        ] {
            let refused = refused(&Call::Batch(&[first, second]));
            assert!(
                matches!(refused, Error::Overlap { collective: Collective::SendReceive, .. }),
                "{refused}"
            );
        }
        // SAFETY: never used.
        let odd = unsafe { Tensor::local(memory.device.address().offset(2), DataType::F32, 1) };
        assert!(matches!(refused(&Call::Send { tensor: odd, to: other }), Error::Alignment { .. }));
        drop(
            communicator
                .prepare(&Call::Batch(&[PointToPoint::send(one, other), PointToPoint::send(two, other)]))?,
        );
        Ok(())
    });
    all_well(results);
}
