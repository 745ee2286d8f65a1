//! Many teams at once: made while barriers of others are in flight, over groups that overlap in every way.

use std::time::Duration;

use crate::support::{Bench, all};
use anabranch_hip::{DeviceAddress, Stream};
use anabranch_ranks::{GlobalRank, Group};
use anabranch_shmem::{DEFAULT_ALIGNMENT, Error, SymmetricMemory, Team, World, spawn_threads};

const RANKS: u32 = 4;
const ROUNDS: u64 = 3;
const WORD: u64 = 8;
/// Bytes of one team's slots in one round.
const ROW: u64 = RANKS as u64 * WORD;

/// A bench whose kernels wait long enough for a machine that is busy with other tests.
fn bench() -> Bench {
    let mut bench = Bench::new(RANKS);
    bench.config.operation_deadline = Duration::from_secs(60);
    bench.config.rendezvous_deadline = Duration::from_secs(60);
    bench
}

/// Every list of distinct ranks that is not empty, the orders of one set next to each other.
fn ordered_subsets() -> Vec<Vec<GlobalRank>> {
    fn extend(prefix: &[u32], found: &mut Vec<Vec<u32>>) {
        for rank in (0..RANKS).filter(|rank| !prefix.contains(rank)) {
            let longer = [prefix, &[rank]].concat();
            extend(&longer, found);
            found.push(longer);
        }
    }
    let mut found = Vec::new();
    extend(&[], &mut found);
    found.sort_by_key(|list| {
        let mut set = list.clone();
        set.sort_unstable();
        (set, list.clone())
    });
    found.into_iter().map(|list| list.into_iter().map(GlobalRank::new).collect()).collect()
}

/// What `rank` writes as a member of the team of this number.
fn word_of(team: usize, round: u64, rank: GlobalRank) -> u64 {
    1 + u64::from(rank.get()) + 16 * round + 1024 * team as u64
}

/// Where the rows of a round lie for the team of this number.
fn row_of(team: usize, round: u64) -> u64 {
    (team as u64 * ROUNDS + round) * ROW
}

/// Puts this rank's word of the round into its slot at every member, over the team.
fn put_row(
    team: &Team,
    number: usize,
    round: u64,
    stream: &Stream,
    slots: &SymmetricMemory,
    word: DeviceAddress,
) -> Result<(), Error> {
    let slot = row_of(number, round) + u64::from(team.rank().get()) * WORD;
    for peer in team.group().ranks() {
        // SAFETY: the word lives, and stays as it is, until the caller has synchronised the stream.
        unsafe { team.put(stream, slots, slot, word, WORD as usize, peer) }?;
    }
    Ok(())
}

/// The words of device memory.
fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

/// How often a row that should be complete after a barrier was, and how often it was not.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    complete: usize,
    incomplete: usize,
}

/// A team for every ordered subset, all alive at once, each with a barrier a round on one of a few streams. Nothing is waited
/// for between them, so that teams are made while barriers of others are in flight. Without barriers rank 0 writes when the
/// others have read: what they would then see at worst.
fn every_team(world: &World, with_barriers: bool) -> Result<Seen, Error> {
    let subsets = ordered_subsets();
    let bytes = row_of(subsets.len(), 0);
    let slots = world.allocate(world.group(), bytes, DEFAULT_ALIGNMENT, "slots")?;
    let mine: Vec<u8> = (0..subsets.len())
        .flat_map(|team| (0..ROUNDS).map(move |round| (team, round)))
        .flat_map(|(team, round)| word_of(team, round, world.rank()).to_le_bytes())
        .collect();
    let mut source = world.device().allocate(mine.len())?;
    source.copy_from_host(0, &mine)?;
    let mut seen = world.device().allocate(bytes as usize)?;
    seen.fill(0)?;
    let streams = (0..3).map(|_| world.device().create_stream()).collect::<Result<Vec<_>, _>>()?;
    let mut teams = Vec::new();

    let hold_back = !with_barriers && world.rank().get() == 0;
    for round in 0..ROUNDS {
        for (number, members) in subsets.iter().enumerate().filter(|(_, list)| list.contains(&world.rank())) {
            if round == 0 {
                let team = world.team(&world.group().subset_of_ranks(members)?)?;
                check_tables(&team, members)?;
                teams.push((number, team));
            }
            let (_, team) = teams.iter().find(|(made, _)| *made == number).unwrap();
            let stream = &streams[(number + round as usize) % streams.len()];
            let word = source.address().offset((number as u64 * ROUNDS + round) * WORD);
            if !hold_back {
                put_row(team, number, round, stream, &slots, word)?;
            }
            if with_barriers {
                team.barrier(stream)?;
            }
            let row = row_of(number, round);
            // SAFETY: both live until the streams are synchronised below, and nothing else uses the target.
            unsafe {
                stream.copy_async(seen.address().offset(row), slots.address().offset(row), ROW as usize)
            }?;
        }
    }
    for stream in &streams {
        world.synchronize(stream)?;
    }
    if !with_barriers {
        world.barrier(world.group(), "the others have read")?;
        if hold_back {
            for (number, team) in &teams {
                put_row(team, *number, 0, &streams[0], &slots, source.address())?;
            }
            world.synchronize(&streams[0])?;
        }
    }
    let mut rows = vec![0; bytes as usize];
    seen.copy_to_host(0, &mut rows)?;
    let rows = words(&rows);

    let mut result = Seen::default();
    for (number, team) in &teams {
        for round in 0..ROUNDS {
            // Each member's word in the place that it has in this team, and nothing where no member is.
            let mut expected: Vec<u64> =
                team.group().members().iter().map(|member| word_of(*number, round, *member)).collect();
            expected.resize(RANKS as usize, 0);
            let start = (row_of(*number, round) / WORD) as usize;
            if rows[start..start + RANKS as usize] == expected {
                result.complete += 1;
            } else {
                result.incomplete += 1;
            }
        }
    }
    // No rank takes its memory away from a put that is on its way.
    world.barrier(world.group(), "all have seen")?;
    Ok(result)
}

/// What kernels of the team find: its members' heaps, in group order.
fn check_tables(team: &Team, members: &[GlobalRank]) -> Result<(), Error> {
    let view = team.view();
    assert_eq!(team.group().members(), members);
    assert_eq!((view.size as usize, members[view.rank as usize]), (members.len(), team.world().rank()));
    let mut table = vec![0; members.len() * WORD as usize];
    // SAFETY: the view's table has one address for each member, and is read only while the team lives.
    unsafe { team.world().device().read_memory(view.peer_bases.address(), &mut table) }?;
    let bases: Vec<u64> = members.iter().map(|member| team.world().peer_base(*member).unwrap().0).collect();
    assert_eq!(words(&table), bases);
    Ok(())
}

#[test]
fn every_ordered_subset_of_four_ranks_gets_a_team_and_barriers() {
    let subsets = ordered_subsets();
    assert_eq!(subsets.len(), 64);
    assert!(subsets.iter().enumerate().all(|(at, list)| !subsets[..at].contains(list)));
    let of = |rank: u32| subsets.iter().filter(move |list| list.contains(&GlobalRank::new(rank)));

    let bench = bench();
    let seen = all(spawn_threads(RANKS, |rank| bench.setup(rank), |world| every_team(world, true)));
    for (rank, seen) in (0..).zip(&seen) {
        assert_eq!(
            *seen,
            Seen { complete: of(rank).count() * ROUNDS as usize, incomplete: 0 },
            "rank {rank}"
        );
    }
    // The check can fail: without barriers the words of rank 0 are missing on all others.
    let seen = all(spawn_threads(RANKS, |rank| bench.setup(rank), |world| every_team(world, false)));
    for (rank, seen) in (0..).zip(&seen).skip(1) {
        let with_zero = of(rank).filter(|list| list.contains(&GlobalRank::new(0))).count();
        assert!(seen.incomplete >= with_zero * ROUNDS as usize, "rank {rank}: {seen:?}");
    }
}

#[test]
fn teams_are_made_and_used_while_another_barrier_waits() {
    let bench = bench();
    let lists: [&[u32]; 6] = [&[0, 1, 2, 3], &[3, 2, 1, 0], &[1, 3], &[2, 0], &[3, 1, 2], &[0]];
    all(spawn_threads(
        RANKS,
        |rank| bench.setup(rank),
        |world: &World| {
            let everybody = world.team(world.group())?;
            let (waiting, busy) = (world.device().create_stream()?, world.device().create_stream()?);
            let slots = world.allocate(world.group(), row_of(lists.len(), 0), DEFAULT_ALIGNMENT, "slots")?;
            let late = world.rank().get() == 0;
            if !late {
                everybody.barrier(&waiting)?;
            }
            let mut word = world.device().allocate(WORD as usize)?;
            for (number, list) in lists.iter().enumerate() {
                let members: Vec<GlobalRank> = list.iter().copied().map(GlobalRank::new).collect();
                if !members.contains(&world.rank()) {
                    continue;
                }
                // The barrier that waits holds up neither the making of teams nor their barriers on another stream.
                let team = world.team(&world.group().subset_of_ranks(&members)?)?;
                check_tables(&team, &members)?;
                for round in 0..ROUNDS {
                    word.copy_from_host(0, &word_of(number, round, world.rank()).to_le_bytes())?;
                    put_row(&team, number, round, &busy, &slots, word.address())?;
                    team.barrier(&busy)?;
                    world.synchronize(&busy)?;
                    let mut row = vec![0; members.len() * WORD as usize];
                    slots.read(row_of(number, round), &mut row)?;
                    let expected: Vec<u64> =
                        members.iter().map(|member| word_of(number, round, *member)).collect();
                    assert_eq!(words(&row), expected, "team {list:?}, round {round}");
                }
                assert_eq!(waiting.is_idle()?, late);
            }
            world.barrier(world.group(), "all teams were used")?;
            assert_eq!(waiting.is_idle()?, late);
            world.barrier(world.group(), "all have looked")?;
            if late {
                everybody.barrier(&waiting)?;
            }
            world.synchronize(&waiting)
        },
    ));
}

#[test]
fn the_teams_of_a_mesh_are_used_in_turn() {
    let bench = bench();
    all(spawn_threads(
        RANKS,
        |rank| bench.setup(rank),
        |world: &World| {
            let mesh = Group::world(RANKS)?.mesh(&[("dp", 2), ("tp", 2)])?;
            let me = world.group().rank_of(world.rank()).unwrap();
            // Each rank makes its own group along each axis; the groups of one axis do not share a member.
            let groups = [
                mesh.group_along("tp", me)?,
                mesh.group_along("dp", me)?,
                mesh.group_over(&["tp", "dp"], me)?,
            ];
            let teams = groups.iter().map(|group| world.team(group)).collect::<Result<Vec<_>, _>>()?;
            let slots = world.allocate(world.group(), row_of(64, 0), DEFAULT_ALIGNMENT, "slots")?;
            let stream = world.device().create_stream()?;
            let mut word = world.device().allocate(WORD as usize)?;
            for turn in 0..30 {
                let number = turn % teams.len();
                let team = &teams[number];
                word.copy_from_host(0, &word_of(turn, 0, world.rank()).to_le_bytes())?;
                put_row(team, turn, 0, &stream, &slots, word.address())?;
                team.barrier(&stream)?;
                world.synchronize(&stream)?;
                let mut row = vec![0; team.size() as usize * WORD as usize];
                slots.read(row_of(turn, 0), &mut row)?;
                let expected: Vec<u64> =
                    groups[number].members().iter().map(|member| word_of(turn, 0, *member)).collect();
                assert_eq!(words(&row), expected, "turn {turn}");
            }
            Ok::<_, Error>(())
        },
    ));
}
