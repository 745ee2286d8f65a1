//! The speed of the links, which other benchmarks quote as what could be reached.

use std::time::Duration;

use anabranch::{Error, Group, GroupRank, RuntimeKind, World};
use anabranch_transport::TransportKind;

use super::device::{Links, Mechanism, Pattern};
use super::statistics::{Samples, gigabytes_per_second, slowest_of_ranks};

/// How long a stream full of repetitions may take: each may take `deadline.operation`, and few come near it.
pub(crate) fn patience(world: &World) -> Duration {
    patience_of(world.operation_deadline())
}

/// So that a short deadline, which is for a peer that does not come, leaves a long row of repetitions time.
const LEAST_PATIENCE: Duration = Duration::from_secs(120);

fn patience_of(operation: Duration) -> Duration {
    operation.saturating_mul(12).max(LEAST_PATIENCE)
}

/// Gives every member's numbers to every member, in group order. Collective over the group.
pub(crate) fn gather(world: &World, group: &Group, step: &str, mine: &[f64]) -> Result<Vec<Vec<f64>>, Error> {
    let bytes: Vec<u8> = mine.iter().flat_map(|value| value.to_le_bytes()).collect();
    let all = world.exchange(group, step, &bytes)?;
    let number = |chunk: &[u8]| {
        f64::from_bits(chunk.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte)))
    };
    Ok(all.iter().map(|bytes| bytes.chunks_exact(8).map(number).collect()).collect())
}

/// Whether it holds on all members. Collective over the group.
pub(crate) fn all_agree(world: &World, group: &Group, step: &str, mine: bool) -> Result<bool, Error> {
    let all = world.exchange(group, step, &[u8::from(mine)])?;
    Ok(all.iter().all(|answer| answer.as_slice() == [1]))
}

/// Every rank acts and receives.
pub(crate) const EVERY_RANK: Role = Role { acts: true, receives: true };

/// Blocks of a copy kernel on a large GPU: as many as the links' best speed takes. Loads come with fewer, because each block
/// that waits for a far load has its requests queue up at the peer; measured on four H200.
pub(crate) fn copy_blocks(world: &World, mechanism: Mechanism, peers: u32) -> u32 {
    let large = world.device().multiprocessors() >= 32;
    match mechanism {
        _ if !large => 4.max(peers),
        Mechanism::Load => (8 * peers).max(24),
        Mechanism::Store | Mechanism::CopyEngine => 64_u32.next_multiple_of(peers),
    }
}

/// Rounds of a ping whose payloads are compared.
const VERIFIED_ROUNDS: u32 = 32;

/// Bytes that a rank moves in one timed sample, if its runs are smaller.
const SAMPLE_BYTES: u64 = 64 << 20;

/// Repetitions of one pattern: the time of each in microseconds, the slowest rank's, and whether all bytes arrived.
pub(crate) struct Timed {
    pub(crate) samples: Samples,
    pub(crate) verified: bool,
}

/// What a rank does in a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Role {
    /// It pushes or pulls.
    pub(crate) acts: bool,
    /// It gets bytes.
    pub(crate) receives: bool,
}

/// Runs a pattern `iters` times on the ranks that act, each repetition after a barrier. Collective.
pub(crate) fn time(
    world: &World,
    links: &mut Links,
    mechanism: Mechanism,
    pattern: &Pattern,
    iters: u32,
    blocks: u32,
    role: Role,
) -> anyhow::Result<Timed> {
    let device = world.device();
    let stream = device.create_stream().map_err(Error::from)?;
    let seed = links.next_seed();
    links.fill(&stream, pattern, mechanism.pushes(), seed)?;
    // Small patterns run several times in a row, so that a launch's delay does not count as the links'.
    let moved = pattern.bytes * u64::from(pattern.peers);
    let runs = (SAMPLE_BYTES / moved.max(1)).clamp(1, 32) as u32;
    let mut events = Vec::new();
    // The first repetitions warm up and are not counted.
    let warm = 2;
    for _ in 0..iters + warm {
        links.team.barrier(&stream).map_err(Error::from)?;
        let event = || device.create_timing_event().map_err(Error::from);
        let (start, end) = (event()?, event()?);
        stream.record(&start).map_err(Error::from)?;
        for _ in 0..if role.acts { runs } else { 0 } {
            links.run(&stream, mechanism, pattern, blocks)?;
        }
        stream.record(&end).map_err(Error::from)?;
        events.push((start, end));
    }
    links.team.barrier(&stream).map_err(Error::from)?;
    world.synchronize_within(&stream, patience(world)).map_err(Error::from)?;
    let mut times = Vec::new();
    for (start, end) in events.iter().skip(warm as usize) {
        times.push(start.microseconds_until(end).map_err(Error::from)? / f64::from(runs));
    }
    let right = !role.receives || links.verify(&stream, pattern, mechanism.pushes(), seed)?;
    let slowest = slowest_of_ranks(&gather(world, links.team.group(), "link times", &times)?);
    let verified = all_agree(world, links.team.group(), "link bytes", right)?;
    Ok(Timed { samples: Samples::new(slowest), verified })
}

/// GB/s per rank and direction with every rank storing to all others at once; `None` for a single rank, and where some rank is
/// reachable only by NIC, not by stores. Collective.
pub(crate) fn speed(world: &World) -> anyhow::Result<Option<f64>> {
    let peers = world.size() - 1;
    // Every rank has one on another machine, or none has.
    if peers == 0 || world.routes().iter().any(|route| route.kind == TransportKind::Rdma) {
        return Ok(None);
    }
    store_speed(world, world.group())
}

/// [`speed`] among the members of a group that map each other's memory, at least two. Collective over the group.
pub(crate) fn store_speed(world: &World, group: &Group) -> anyhow::Result<Option<f64>> {
    let peers = group.size() - 1;
    let host = world.device().runtime().kind() == RuntimeKind::Host;
    let wanted: u64 = if host { 256 << 10 } else { 64 << 20 };
    // A quarter of the heap at most, for two areas with a part for each rank.
    let room = world.heap_usage().heap_bytes / 8 / u64::from(group.size());
    let bytes = wanted.min(room) / 4096 * 4096;
    if bytes == 0 {
        return Ok(None);
    }
    let mut links = Links::new(world, group, bytes * u64::from(group.size()))?;
    let pattern = Pattern { first_step: 1, peers, bytes, stride: bytes };
    let timed = time(
        world,
        &mut links,
        Mechanism::Store,
        &pattern,
        10,
        copy_blocks(world, Mechanism::Store, peers),
        EVERY_RANK,
    )?;
    links.free()?;
    Ok(timed.verified.then(|| gigabytes_per_second(bytes * u64::from(peers), timed.samples.median())))
}

/// One way between the first two members: half of a round trip, over many in one launch; and whether all bytes were right. A launch before
/// the timed ones compares what arrives in every round; the timed ones send the same way and do not look. Collective over the areas' group.
pub(crate) fn ping(
    world: &World,
    links: &mut Links,
    bytes: u64,
    iters: u32,
    rounds: u32,
) -> anyhow::Result<(Samples, bool)> {
    let me = links.team.rank().get();
    let device = world.device();
    let stream = device.create_stream().map_err(Error::from)?;
    links.forget_wrong()?;
    links.team.barrier(&stream).map_err(Error::from)?;
    if me < 2 {
        links.ping(&stream, GroupRank::new(1 - me), me == 0, bytes, VERIFIED_ROUNDS, true)?;
    }
    world.synchronize_within(&stream, patience(world)).map_err(Error::from)?;
    let verified = all_agree(world, links.team.group(), "ping payloads", links.nothing_wrong()?)?;
    let mut events = Vec::new();
    for _ in 0..=iters {
        links.team.barrier(&stream).map_err(Error::from)?;
        let event = || device.create_timing_event().map_err(Error::from);
        let (start, end) = (event()?, event()?);
        stream.record(&start).map_err(Error::from)?;
        if me < 2 {
            links.ping(&stream, GroupRank::new(1 - me), me == 0, bytes, rounds, false)?;
        }
        stream.record(&end).map_err(Error::from)?;
        events.push((start, end));
    }
    world.synchronize_within(&stream, patience(world)).map_err(Error::from)?;
    let mut times = Vec::new();
    for (start, end) in events.iter().skip(1) {
        times.push(start.microseconds_until(end).map_err(Error::from)? / f64::from(2 * rounds));
    }
    let samples = Samples::new(slowest_of_ranks(&gather(world, links.team.group(), "ping times", &times)?));
    Ok((samples, verified))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_have_more_time_than_one_operation() {
        let seconds = |operation| patience_of(Duration::from_secs(operation)).as_secs();
        assert_eq!([1, 10, 600].map(seconds), [120, 120, 7200]);
        assert_eq!(patience_of(Duration::MAX), Duration::MAX);
    }
}
