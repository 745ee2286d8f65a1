//! Team barriers back to back, with ranks that come late.

use std::time::Duration;

use anabranch_conformance::shmem::{BARRIER, BARRIER_UNIT, BarrierArgs, spec};
use anabranch_hip::DeviceBuffer;
use anabranch_hip_jit::KernelSpec;
use anabranch_shmem::device_api::{BarrierWorkspace, phase_name};

use anabranch_conformance::shmem::mixed;
use anabranch_testkit::mutant;

use crate::device_api::ranks::{OPERATION, Ranks, WAVES, pointer, pointer_at, read};

const FLAGS: u64 = 128;
const SLOTS: u64 = 1024;
pub(crate) const HEAP: usize = 64 << 10;

/// What a rank must have read after round `round`, `[size + 1][threads]`.
pub(crate) fn expected(rank: u32, size: u32, threads: u32, round: u32) -> Vec<u64> {
    let value = |from: u32, thread: u32| {
        let number = (u64::from(round) * u64::from(size) + u64::from(from)) * u64::from(threads);
        mixed(number + u64::from((thread + 1) % threads))
    };
    let put = (0..size).flat_map(|from| (0..threads).map(move |thread| (from, thread)));
    let mut all: Vec<u64> =
        put.map(|(from, thread)| value(from, thread).wrapping_add(u64::from(rank))).collect();
    all.extend((0..threads).map(|thread| !value((rank + 1) % size, thread)));
    all
}

struct Setup {
    ranks: Ranks,
    threads: u32,
    rounds: u32,
    logs: Vec<DeviceBuffer>,
    /// The epoch, then the statuses.
    words: Vec<DeviceBuffer>,
}

impl Setup {
    fn new(size: u32, wave: u32, rounds: u32) -> Self {
        Self::on(Ranks::new(size, wave, HEAP), rounds)
    }

    fn on(mut ranks: Ranks, rounds: u32) -> Self {
        let size = ranks.size();
        for rank in 0..size {
            ranks.poke(rank, FLAGS, &vec![0; BarrierWorkspace::flag_bytes(size) as usize]);
        }
        let threads = ranks.block_threads();
        let logs = ranks.buffers((rounds * (size + 1) * threads * 8) as usize);
        let words = ranks.buffers(8 + threads as usize * 4);
        Self { ranks, threads, rounds, logs, words }
    }

    fn arguments(&self, rank: u32, first_round: u32, rounds: u32, kind: u32, skew: Duration) -> BarrierArgs {
        let words = &self.words[rank as usize];
        BarrierArgs {
            team: self.ranks.team(rank),
            workspace: BarrierWorkspace { flags: FLAGS, epoch: pointer(words) },
            log: pointer(&self.logs[rank as usize]),
            statuses: pointer_at(words, 8),
            slots: SLOTS,
            skew_ns: skew.as_nanos() as u64,
            first_round,
            rounds,
            kind,
            operation: OPERATION,
        }
    }

    /// The first rank and round in which something else was read, or the epochs' mistake.
    fn compare(&self) -> Result<(), String> {
        let size = self.ranks.size();
        for rank in 0..size {
            let log: Vec<u64> = read(&self.logs[rank as usize]);
            let per_round = ((size + 1) * self.threads) as usize;
            for (round, log) in log.chunks(per_round).enumerate() {
                if log != expected(rank, size, self.threads, round as u32) {
                    return Err(format!("rank {rank} read something else after round {round}"));
                }
            }
            let epoch = read::<u64>(&self.words[rank as usize])[0];
            if epoch != u64::from(self.rounds) {
                return Err(format!("the epoch of rank {rank} is {epoch}"));
            }
        }
        Ok(())
    }

    fn statuses(&self, rank: u32) -> Vec<u32> {
        read::<u32>(&self.words[rank as usize])[2..].to_vec()
    }
}

fn check(size: u32, wave: u32, spec: &KernelSpec, skew: Duration) -> Result<(), String> {
    check_on(Ranks::new(size, wave, HEAP), spec, [0, 1, 1, 0], 50, skew)
}

/// Four launches of `rounds` barriers of these kinds: the epoch goes on from one to the next.
pub(crate) fn check_on(
    ranks: Ranks,
    spec: &KernelSpec,
    kinds: [u32; 4],
    rounds: u32,
    skew: Duration,
) -> Result<(), String> {
    let setup = Setup::on(ranks, 4 * rounds);
    for (kind, launch) in kinds.into_iter().zip(0..) {
        setup.ranks.run_well(spec, BARRIER, 1, setup.threads, |rank| {
            Some(setup.arguments(rank, launch * rounds, rounds, kind, skew))
        });
    }
    for rank in 0..setup.ranks.size() {
        assert!(setup.statuses(rank).iter().all(|status| *status == 0));
    }
    setup.compare()
}

#[test]
fn two_hundred_rounds_back_to_back() {
    for wave in WAVES {
        for size in [2, 3, 4] {
            check(size, wave, &spec(&BARRIER_UNIT), Duration::ZERO).unwrap();
        }
    }
}

#[test]
fn late_ranks_are_waited_for() {
    for (size, wave) in [(4, 1), (3, 4), (2, 32)] {
        check(size, wave, &spec(&BARRIER_UNIT), Duration::from_micros(200)).unwrap();
    }
}

#[test]
fn a_team_of_one_passes() {
    check(1, 4, &spec(&BARRIER_UNIT), Duration::ZERO).unwrap();
}

#[test]
fn more_members_than_lanes() {
    check(6, 4, &spec(&BARRIER_UNIT), Duration::ZERO).unwrap();
    check(9, 1, &spec(&BARRIER_UNIT), Duration::ZERO).unwrap();
}

#[test]
fn a_barrier_that_does_not_wait_is_noticed() {
    let broken = spec(&BARRIER_UNIT).edited(&mutant("EPOCH_LOOSE"));
    assert!(check(3, 4, &broken, Duration::from_micros(300)).is_err());
}

#[test]
fn a_member_that_does_not_come_is_named_and_the_epoch_stays() {
    let budget = Duration::from_millis(40);
    for wave in [1, 32] {
        let mut setup = Setup::new(3, wave, 5);
        setup.ranks.set_budget(budget);
        let took = setup.ranks.run(&spec(&BARRIER_UNIT), BARRIER, 1, setup.threads, |rank| {
            (rank != 1).then(|| setup.arguments(rank, 0, 5, 1, Duration::ZERO))
        });
        assert!(took < budget + Duration::from_secs(1), "{took:?}");
        for rank in [0, 2] {
            assert!(setup.statuses(rank).iter().all(|status| *status == 1));
            let record = setup.ranks.fault(rank).unwrap();
            assert_eq!((phase_name(record.phase), record.peer), (Some("team_sync"), 1));
            assert_eq!((record.expected, record.seen, record.rank), (1, 0, rank));
            assert_eq!(read::<u64>(&setup.words[rank as usize])[0], 0);
        }
        assert_eq!(setup.ranks.fault(1).map(|record| record.state), None);
    }
}

/// Meetings of one block and then another, with nothing else put: how much each queue pair to rank 1 has had from rank 0.
pub(crate) fn posted_in_turns(ranks: Ranks, spec: &KernelSpec) -> Vec<u64> {
    let rounds = 6;
    let setup = Setup::on(ranks, rounds);
    setup.ranks.run_well(spec, BARRIER, 3, setup.threads, |rank| {
        Some(setup.arguments(rank, 0, rounds, 2, Duration::ZERO))
    });
    for rank in 0..setup.ranks.size() {
        assert_eq!(read::<u64>(&setup.words[rank as usize])[0], u64::from(rounds));
        assert_eq!(setup.statuses(rank)[0], 0);
    }
    setup.ranks.posted(0, 1)
}
