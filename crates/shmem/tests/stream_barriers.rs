//! Stream barriers: order, a missing member, capture.
#![expect(clippy::disallowed_methods, reason = "tests of real threads run on the machine's time")]

use std::time::{Duration, Instant};

use crate::support::{Bench, all};
use anabranch_shmem::{DEFAULT_ALIGNMENT, Error, RankError, StreamBarrier, Team, World, spawn_threads};

/// What rank `from` writes in a round.
fn word(from: u32, round: u64) -> u64 {
    round * 100 + u64::from(from)
}

fn enqueue(barrier: &mut StreamBarrier, team: &Team, stream: &anabranch_hip::Stream) -> Result<(), Error> {
    let uses = [barrier.usage()];
    team.launch_in_order(stream, &uses, || barrier.enqueue(team, stream)).map(drop)
}

#[test]
fn writes_before_a_stream_barrier_are_visible_after_it() {
    for ranks in [1, 2, 5] {
        let bench = Bench::new(ranks);
        all(spawn_threads(
            ranks,
            |rank| bench.setup(rank),
            |world: &World| {
                let team = world.team(world.group())?;
                let mut barrier = team.stream_barrier()?;
                let size = u64::from(world.size());
                let slots = world.allocate(world.group(), size * 8, DEFAULT_ALIGNMENT, "slots")?;
                let (stream, me) = (world.device().create_stream()?, world.rank().get());
                let sources = world.device().allocate(64 * 8)?;
                let seen = world.device().allocate((64 * size * 8) as usize)?;
                for round in 0..64u64 {
                    let source = sources.address().offset(round * 8);
                    // SAFETY: all of it lives until the stream is synchronised; each rank writes a slot of its own, between two
                    // meetings, and reads between the next two.
                    unsafe {
                        stream.write_value64(source, word(me, round))?;
                        for peer in world.group().ranks() {
                            let slot = slots.peer_address(peer).unwrap().offset(u64::from(me) * 8);
                            stream.copy_async(slot, source, 8)?;
                        }
                        enqueue(&mut barrier, &team, &stream)?;
                        let target = seen.address().offset(round * size * 8);
                        stream.copy_async(target, slots.address(), (size * 8) as usize)?;
                        // No rank writes the next round before all have read this one.
                        enqueue(&mut barrier, &team, &stream)?;
                    }
                }
                world.synchronize(&stream)?;
                let mut words = vec![0; (64 * size * 8) as usize];
                seen.copy_to_host(0, &mut words)?;
                for (at, bytes) in words.chunks(8).enumerate() {
                    let (round, from) = (at as u64 / size, at as u64 % size);
                    let read = u64::from_le_bytes(bytes.try_into().unwrap());
                    assert_eq!(read, word(from as u32, round), "round {round}, from {from}");
                }
                Ok::<_, Error>(())
            },
        ));
    }
}

#[test]
fn missing_member_is_named_and_the_stream_drains() {
    let mut bench = Bench::new(3);
    bench.config.operation_deadline = Duration::from_millis(400);
    let reported = std::sync::Barrier::new(3);
    let results = spawn_threads(
        3,
        |rank| bench.setup(rank),
        |world: &World| {
            let team = world.team(world.group())?;
            let mut barrier = team.stream_barrier()?;
            let stream = world.device().create_stream()?;
            let started = Instant::now();
            let comes = if world.rank().get() == 1 { 3 } else { 5 };
            for _ in 0..comes {
                enqueue(&mut barrier, &team, &stream)?;
            }
            let ended = world.synchronize(&stream);
            // All barriers that were put on the stream have passed.
            assert!(stream.is_idle()?, "rank {}", world.rank());
            assert!(started.elapsed() < Duration::from_secs(4));
            // No rank leaves before all have their error: leaving would be another.
            reported.wait();
            ended
        },
    );
    for (rank, result) in results.into_iter().enumerate() {
        match result {
            Err(RankError::Work { error, .. }) if rank != 1 => {
                let text = error.to_string();
                assert!(
                    text.contains("waited")
                        && text.contains("for rank 1 in stream barrier (arrival), epoch 4"),
                    "{text}"
                );
            }
            // It did its part, and cannot leave a world that has failed.
            other => assert!(rank == 1 && other.is_err(), "{rank}: {other:?}"),
        }
    }
}

#[test]
fn stream_barrier_in_a_capture_is_refused() {
    let bench = Bench::new(1);
    all(spawn_threads(
        1,
        |rank| bench.setup(rank),
        |world: &World| {
            let team = world.team(world.group())?;
            let mut barrier = team.stream_barrier()?;
            let stream = world.device().create_stream()?;
            stream.begin_capture()?;
            let refused = enqueue(&mut barrier, &team, &stream).unwrap_err();
            assert!(matches!(refused, Error::InvalidState { .. }), "{refused}");
            stream.end_capture()?;
            Ok::<_, Error>(())
        },
    ));
}
