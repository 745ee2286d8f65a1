//! More ranks on one host and in one process than any GPU server of eight has devices: a rack of 72, and 128.

use crate::support::{Bench, all};
use anabranch_ranks::GroupRank;
use anabranch_shmem::{DEFAULT_ALIGNMENT, Error, Signal, SignalOp, World, spawn_threads};

/// Every rank writes its number and a signal to the ranks one and 67 further, and reads what came from those before it.
fn use_world(world: &World) -> Result<(), Error> {
    let (me, size) = (world.rank().get(), world.size());
    let team = world.team(world.group())?;
    let slots = world.allocate(world.group(), u64::from(size) * 8, DEFAULT_ALIGNMENT, "slots")?;
    let words = world.allocate(world.group(), u64::from(size) * 8, DEFAULT_ALIGNMENT, "words")?;
    let stream = world.device().create_stream()?;
    let mut mine = world.device().allocate(8)?;
    mine.copy_from_host(0, &u64::from(me + 1).to_le_bytes())?;
    let place = u64::from(me) * 8;
    let distances = [1, 67];
    for distance in distances {
        let peer = GroupRank::new((me + distance) % size);
        let signal = Signal { memory: &words, offset: place, value: 9, op: SignalOp::Set };
        // SAFETY: the buffer lives until the stream is synchronised below; each rank has a slot of its own.
        unsafe { team.put_signal(&stream, &slots, place, mine.address(), 8, signal, peer)? };
    }
    for distance in distances {
        let from = GroupRank::new((me + size - distance) % size);
        team.signal_wait(&stream, &words, u64::from(from.get()) * 8, 9, from)?;
    }
    team.barrier(&stream)?;
    world.synchronize(&stream)?;
    let mut seen = vec![0; size as usize * 8];
    slots.read(0, &mut seen)?;
    for (from, word) in (0..size).zip(seen.chunks_exact(8)) {
        let sent = distances.iter().any(|distance| (from + distance) % size == me);
        let expected = if sent { u64::from(from + 1) } else { 0 };
        assert_eq!(u64::from_le_bytes(word.try_into().unwrap()), expected, "from {from} to {me}");
    }
    // A group of the last ranks alone, in reverse: no table is sized by the number of devices in a server.
    let last: Vec<_> = world.group().members().iter().copied().rev().take(size as usize - 60).collect();
    if last.contains(&world.rank()) {
        let team = world.team(&world.group().subset_of_ranks(&last)?)?;
        team.barrier(&stream)?;
        world.synchronize(&stream)?;
    }
    world.barrier(world.group(), "all have read")
}

#[test]
#[ignore = "extended"]
fn worlds_of_72_and_128_ranks_in_one_process() {
    for (ranks, wave) in [(72, 32), (128, 1)] {
        let mut bench = Bench::with_wave(ranks, wave);
        bench.config.heap_bytes = 1 << 20;
        bench.config.rendezvous_deadline = std::time::Duration::from_secs(120);
        bench.config.operation_deadline = std::time::Duration::from_secs(60);
        all(spawn_threads(ranks, |rank| bench.setup(rank), use_world));
    }
}
