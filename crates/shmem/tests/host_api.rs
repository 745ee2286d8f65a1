//! The heap from the host: copies and signals in the order of a stream.

use std::time::Duration;

use crate::support::{Bench, all};
use anabranch_ranks::GroupRank;
use anabranch_shmem::{
    DEFAULT_ALIGNMENT, Error, HeapMode, RankError, SdmaConfig, Signal, SignalOp, World, spawn_threads,
};
use anabranch_transport::TransportKind;

const BYTES: usize = 10_007;

/// What rank `from` sends in a round; odd lengths and offsets show copies that are rounded.
fn bytes_of(from: u32, round: u64) -> Vec<u8> {
    (0..BYTES as u64).map(|at| (at * 7 + u64::from(from) * 31 + round * 13) as u8).collect()
}

/// A ring: each rank puts to the next one, signals behind it, and reads what came from the one before, over both ways.
#[test]
fn signalled_puts_are_seen_and_gets_fetch() {
    for (wave, mode, engines) in [
        (1, HeapMode::Static, false),
        (32, HeapMode::Static, false),
        (1, HeapMode::Flat, false),
        (4, HeapMode::Static, true),
        (32, HeapMode::Flat, true),
    ] {
        let mut bench = Bench::with_wave(3, wave).with_mode(mode);
        if engines {
            bench.config.transports = vec![TransportKind::Sdma, TransportKind::P2p];
            bench.config.sdma =
                SdmaConfig { ring_bytes: 256, most_copy_bytes: 2048, ..SdmaConfig::default() };
        }
        all(spawn_threads(
            3,
            |rank| bench.setup(rank),
            |world: &World| {
                let team = world.team(world.group())?;
                let data = world.allocate(world.group(), 16 << 10, DEFAULT_ALIGNMENT, "data")?;
                let words = world.allocate(world.group(), 64, DEFAULT_ALIGNMENT, "words")?;
                let stream = world.device().create_stream()?;
                let (me, size) = (team.rank().get(), team.size());
                let (next, before) =
                    (GroupRank::new((me + 1) % size), GroupRank::new((me + size - 1) % size));
                let mut source = world.device().allocate(BYTES)?;
                let fetched = world.device().allocate(BYTES)?;
                for round in 1..=20u64 {
                    source.copy_from_host(0, &bytes_of(me, round))?;
                    let added = Signal { memory: &words, offset: 8, value: 1, op: SignalOp::Add };
                    let set = Signal { memory: &words, offset: 16, value: round, op: SignalOp::Set };
                    // SAFETY: the buffers live until the stream is synchronised below.
                    unsafe {
                        team.put_signal(&stream, &data, 3, source.address(), BYTES, added, next)?;
                        team.signal_wait(&stream, &words, 8, round, before)?;
                        // What came before the signal is there, here and for others that hear of it.
                        team.signal(&stream, set, before)?;
                        team.signal_wait(&stream, &words, 16, round, next)?;
                        team.get(&stream, fetched.address(), &data, 3, BYTES, next)?;
                    }
                    world.synchronize(&stream)?;
                    let mut got = vec![0; BYTES];
                    data.read(3, &mut got)?;
                    assert_eq!(got, bytes_of(before.get(), round), "put, round {round}");
                    fetched.copy_to_host(0, &mut got)?;
                    assert_eq!(got, bytes_of(me, round), "get, round {round}");
                    team.barrier(&stream)?;
                    world.synchronize(&stream)?;
                }
                let mut edge = [1; 3];
                data.read(0, &mut edge)?;
                assert_eq!(edge, [0; 3]);
                data.read(3 + BYTES as u64, &mut edge)?;
                assert_eq!(edge, [0; 3]);
                Ok::<_, Error>(())
            },
        ));
    }
}

fn invalid(result: Result<(), Error>, text: &str) -> bool {
    matches!(result, Err(Error::Invalid { given, .. }) if given.contains(text))
}

#[test]
fn invalid_arguments_are_refused_before_any_copy() {
    let bench = Bench::new(2);
    all(spawn_threads(
        2,
        |rank| bench.setup(rank),
        |world: &World| {
            let team = world.team(world.group())?;
            let data = world.allocate(world.group(), 64, DEFAULT_ALIGNMENT, "data")?;
            let alone = world.group().subset_of_ranks(&[world.rank()])?;
            let own = world.allocate(&alone, 64, DEFAULT_ALIGNMENT, "own")?;
            let stream = world.device().create_stream()?;
            let source = world.device().allocate(64)?;
            let peer = GroupRank::new(1 - team.rank().get());
            let set = |memory, offset| Signal { memory, offset, value: 1, op: SignalOp::Set };
            // SAFETY: refused before anything moves.
            let put = |memory, offset, bytes, to| unsafe {
                team.put(&stream, memory, offset, source.address(), bytes, to)
            };
            let far = put(&data, 60, 5, peer).unwrap_err();
            assert_eq!(far.to_string(), "put: 5 bytes at 60; allowed: bytes 0..64 of the allocation");
            assert!(invalid(put(&data, u64::MAX, 5, peer), "5 bytes at 18446744073709551615"));
            assert!(invalid(put(&data, 0, 5, GroupRank::new(2)), "group rank 2"));
            assert!(invalid(put(&own, 0, 5, peer), &peer.to_string()));
            let odd = team.signal(&stream, set(&data, 4), peer).unwrap_err();
            assert_eq!(odd.to_string(), "signal: a word at offset 4; allowed: multiples of 8");
            assert!(invalid(team.signal(&stream, set(&data, 64), peer), "8 bytes at 64"));
            let from = team.signal_wait(&stream, &data, 0, 1, GroupRank::new(9));
            assert!(invalid(from, "group rank 9"));
            // SAFETY: the data is not put, because the signal is refused.
            let both =
                unsafe { team.put_signal(&stream, &data, 0, source.address(), 8, set(&data, 1), peer) };
            assert!(invalid(both, "a word at offset 1"));
            world.synchronize(&stream)?;
            assert!(stream.is_idle()?);
            Ok::<_, Error>(())
        },
    ));
}

#[test]
fn a_signal_that_never_comes_is_named() {
    let mut bench = Bench::new(2);
    bench.config.operation_deadline = Duration::from_millis(300);
    let results = spawn_threads(
        2,
        |rank| bench.setup(rank),
        |world: &World| {
            let team = world.team(world.group())?;
            let words = world.allocate(world.group(), 64, DEFAULT_ALIGNMENT, "words")?;
            let stream = world.device().create_stream()?;
            team.signal_wait(&stream, &words, 8, 5, GroupRank::new(1 - team.rank().get()))?;
            world.synchronize(&stream)
        },
    );
    for result in results {
        let Err(RankError::Work { error, .. }) = result else { panic!("{result:?}") };
        let text = error.to_string();
        assert!(text.contains("in signal wait (signal), epoch 5: expected 0x5, saw 0x0"), "{text}");
    }
}
