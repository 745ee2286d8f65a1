//! Copies to many members side by side, in the order of a stream.

use crate::support::{Bench, all};
use anabranch_hip::{DeviceAddress, Stream};
use anabranch_ranks::GroupRank;
use anabranch_shmem::{
    DEFAULT_ALIGNMENT, Error, MAX_COPY_STREAMS, PeerCopy, SymmetricMemory, Team, World, spawn_threads,
};

const RANKS: u32 = 3;
/// Long enough to be cut, of an odd length.
const BYTES: u64 = (1 << 20) + 11;

fn byte_of(from: u32, round: u32) -> u8 {
    (from * 50 + round * 7 + 1) as u8
}

/// This rank's bytes to every member's part for it, its own last.
fn copies(team: &Team, data: &SymmetricMemory, source: DeviceAddress) -> Vec<PeerCopy> {
    let me = team.rank().get();
    (1..=RANKS)
        .map(|by| GroupRank::new((me + by) % RANKS))
        .map(|peer| {
            let target = data.peer_address(peer).unwrap().offset(u64::from(me) * BYTES);
            PeerCopy { peer, target, source, bytes: BYTES }
        })
        .collect()
}

/// Fills the source behind what is on the stream, copies, and fills it again behind the join.
fn exchange(
    team: &Team,
    stream: &Stream,
    data: &SymmetricMemory,
    source: DeviceAddress,
    round: u32,
) -> Result<(), Error> {
    let me = team.rank().get();
    // SAFETY: the buffer outlives the stream's work, which the callers wait for.
    unsafe { stream.fill_async(source, byte_of(me, round), BYTES as usize) }?;
    // SAFETY: each member has a part for each other; barriers before and behind keep rounds apart.
    unsafe { team.copy_to_peers(stream, &copies(team, data, source), &[data.usage()]) }?;
    // What follows is behind the copies, which would bring this otherwise.
    // SAFETY: as above.
    unsafe { stream.fill_async(source, 0, BYTES as usize) }?;
    team.barrier(stream)
}

fn check(data: &SymmetricMemory, round: u32) {
    let mut seen = vec![0; BYTES as usize];
    for from in 0..RANKS {
        data.read(u64::from(from) * BYTES, &mut seen).unwrap();
        assert!(seen.iter().all(|byte| *byte == byte_of(from, round)), "from {from}, round {round}");
    }
}

#[test]
fn copies_to_all_members_are_ordered_with_the_stream() {
    let bench = Bench::with_wave(RANKS, 4);
    all(spawn_threads(
        RANKS,
        |rank| bench.setup(rank),
        |world: &World| {
            let team = world.team(world.group())?;
            let data = world.allocate(world.group(), u64::from(RANKS) * BYTES, DEFAULT_ALIGNMENT, "data")?;
            let source = world.device().allocate(BYTES as usize)?;
            let stream = world.device().create_stream()?;
            let mut round = 0;
            // Without `prepare_copies`, one stream for each member.
            for streams in [None, Some(0), Some(1), Some(MAX_COPY_STREAMS)] {
                if let Some(streams) = streams {
                    team.prepare_copies(streams)?;
                }
                for _ in 0..4 {
                    round += 1;
                    exchange(&team, &stream, &data, source.address(), round)?;
                    world.synchronize(&stream)?;
                    check(&data, round);
                    world.barrier(world.group(), "checked")?;
                }
                stream.begin_capture()?;
                exchange(&team, &stream, &data, source.address(), 99)?;
                let graph = stream.end_capture()?.instantiate()?;
                for _ in 0..3 {
                    // SAFETY: everything that the graph uses lives until the stream was waited for.
                    unsafe { graph.launch(&stream) }?;
                    world.synchronize(&stream)?;
                    check(&data, 99);
                    world.barrier(world.group(), "checked a replay")?;
                }
            }
            Ok::<_, Error>(())
        },
    ));
}

#[test]
fn invalid_copies_are_refused_before_any_is_queued() {
    let bench = Bench::with_wave(2, 4);
    all(spawn_threads(
        2,
        |rank| bench.setup(rank),
        |world: &World| {
            let team = world.team(world.group())?;
            let buffer = world.device().allocate(64)?;
            let stream = world.device().create_stream()?;
            let copy = |peer| PeerCopy {
                peer: GroupRank::new(peer),
                target: buffer.address(),
                source: buffer.address().offset(32),
                bytes: 16,
            };
            // SAFETY: the copies lie in the buffer, which outlives them; most are refused.
            let launch = |copies: &[PeerCopy]| unsafe { team.copy_to_peers(&stream, copies, &[]) };
            let refused = launch(&[copy(2)]).unwrap_err();
            assert!(refused.to_string().starts_with("copy_to_peers: group rank 2"), "{refused}");
            let refused = team.prepare_copies(MAX_COPY_STREAMS + 1).unwrap_err().to_string();
            assert!(refused.contains("17") && refused.contains("0 to 16"), "{refused}");
            stream.begin_capture()?;
            assert!(matches!(launch(&[copy(0)]), Err(Error::InvalidState { .. })));
            drop(stream.end_capture()?);
            launch(&[])?;
            launch(&[PeerCopy { bytes: 0, ..copy(1) }])?;
            launch(&[copy(world.rank().get())])?;
            world.synchronize(&stream)?;
            Ok::<_, Error>(())
        },
    ));
}

/// The streams of a team that is dropped stay until its copies are over.
#[test]
fn dropped_team_finishes_its_copies() {
    let bench = Bench::with_wave(RANKS, 4);
    all(spawn_threads(
        RANKS,
        |rank| bench.setup(rank),
        |world: &World| {
            let data = world.allocate(world.group(), u64::from(RANKS) * BYTES, DEFAULT_ALIGNMENT, "data")?;
            let source = world.device().allocate(BYTES as usize)?;
            let stream = world.device().create_stream()?;
            for round in 0..10 {
                let team = world.team(world.group())?;
                exchange(&team, &stream, &data, source.address(), round)?;
                drop(team);
                world.synchronize(&stream)?;
                check(&data, round);
                world.barrier(world.group(), "checked")?;
            }
            Ok::<_, Error>(())
        },
    ));
}
