//! Peers that cannot be reached, and code that must not compile.

use anabranch_conformance::shmem::{
    ATOMICS, ATOMICS_UNIT, AtomicArgs, BARRIER, BARRIER_UNIT, BarrierArgs, COPY, COPY_UNIT, CopyArgs,
    CopyCase, spec,
};
use anabranch_hip_jit::{Error, Kernel, KernelSpec, KernelUnit};
use anabranch_shmem::device_api::{BarrierWorkspace, phase_name};
use bytemuck::Zeroable as _;

use crate::device_api::ranks::{OPERATION, Ranks, jit, pointer, read};

const UNREACHABLE: u32 = 2;

/// Rank 0 of two, with no mapping of rank 1.
fn ranks_apart() -> Ranks {
    let mut ranks = Ranks::new(2, 4, 32 << 10);
    let own = ranks.bases()[0];
    ranks.set_bases(0, &[own, 0]);
    ranks
}

fn check_report(ranks: &mut Ranks, peer: u32) {
    let record = ranks.fault(0).unwrap();
    assert_eq!((phase_name(record.phase), record.peer), (Some("peer not mapped"), peer));
    assert_eq!((record.operation, record.rank), (OPERATION, 0));
    // Nothing was touched, anywhere.
    ranks.compare(&ranks.initial).unwrap();
    ranks.set_budget(std::time::Duration::from_secs(60));
}

#[test]
fn copies_to_a_peer_that_is_not_mapped_touch_nothing_and_say_so() {
    let mut ranks = ranks_apart();
    // Rank 1 is not mapped; rank 2 does not exist.
    for peer in [1, 2] {
        for kind in 0..=6 {
            for scope in 0..3 {
                let case = CopyCase {
                    remote: 4096,
                    local: 8192,
                    bytes: 8,
                    signal: 64,
                    value: 1,
                    peer,
                    signal_op: 0,
                };
                let cases = ranks.buffer(0, &[case; 3]);
                let statuses = ranks.buffer(0, &[u32::MAX; 3]);
                let arguments = |rank| {
                    (rank == 0).then(|| CopyArgs {
                        team: ranks.team(0),
                        cases: pointer(&cases),
                        statuses: pointer(&statuses),
                        case_count: 3,
                        kind,
                        scope,
                        operation: OPERATION,
                    })
                };
                ranks.run(&spec(&COPY_UNIT), COPY, 2, 8, arguments);
                assert_eq!(read::<u32>(&statuses), [UNREACHABLE; 3], "kind {kind}, scope {scope}");
                check_report(&mut ranks, peer);
            }
        }
    }
}

#[test]
fn atomics_on_a_peer_that_is_not_mapped_touch_nothing_and_say_so() {
    let mut ranks = ranks_apart();
    // The kernel also works on the own heap, so the word's operations change nothing there: adding 0.
    for kind in [0, 1] {
        let log = ranks.buffer(0, &[0u64; 2 * 4 * 3]);
        ranks.run(&spec(&ATOMICS_UNIT), ATOMICS, 1, 4, |rank| {
            (rank == 0).then(|| AtomicArgs {
                team: ranks.team(0),
                log: pointer(&log),
                words: 256,
                participants: 4,
                rounds: 1,
                kind,
                element_bytes: 8,
                operation: OPERATION,
                ways: 3,
                reserved: 0,
                ..AtomicArgs::zeroed()
            })
        });
        check_report(&mut ranks, 1);
    }
}

#[test]
fn a_barrier_with_a_peer_that_is_not_mapped_ends_at_once() {
    let ranks = ranks_apart();
    let threads = ranks.block_threads();
    let log = ranks.buffer(0, &vec![0u64; 3 * threads as usize]);
    let words = ranks.buffer(0, &vec![0u64; threads as usize]);
    let took = ranks.run(&spec(&BARRIER_UNIT), BARRIER, 1, threads, |rank| {
        (rank == 0).then(|| BarrierArgs {
            team: ranks.team(0),
            workspace: BarrierWorkspace { flags: 128, epoch: pointer(&words) },
            log: pointer(&log),
            statuses: crate::device_api::ranks::pointer_at(&words, 8),
            slots: 1024,
            skew_ns: 0,
            first_round: 0,
            rounds: 1,
            kind: 1,
            operation: OPERATION,
        })
    });
    assert!(took < std::time::Duration::from_secs(1));
    let statuses: Vec<u32> = read(&words)[2..2 + threads as usize].to_vec();
    assert!(statuses.iter().all(|status| *status == UNREACHABLE), "{statuses:?}");
    assert_eq!(ranks.fault(0).and_then(|record| phase_name(record.phase)), Some("peer not mapped"));
}

#[test]
fn ranks_and_offsets_do_not_come_from_bare_numbers() {
    static RIGHT: KernelUnit =
        unit!("right", "shmem::p(grid, context, word, 1u, shmem::GroupRank{args.rank});");
    static BARE_RANK: KernelUnit = unit!("bare_rank", "shmem::p(grid, context, word, 1u, args.rank);");
    static BARE_OFFSET: KernelUnit = unit!(
        "bare_offset",
        "u64 at = 64; shmem::put<shmem::Wave, u32>(grid, context, at, nullptr, 0, context.rank());"
    );
    static NARROW_ATOMIC: KernelUnit =
        unit!("narrow", "shmem::atomic_add(grid, context, word.cast<u16>(), u16(1), context.rank());");
    let jit = jit();
    let target = "host:wave4".parse().unwrap();
    jit.compile(&KernelSpec::new(&RIGHT), &target).unwrap();
    for unit in [&BARE_RANK, &BARE_OFFSET, &NARROW_ATOMIC] {
        let result = jit.compile(&KernelSpec::new(unit), &target);
        assert!(matches!(result, Err(Error::Compile(_))), "{}: {result:?}", unit.name);
    }
}

#[test]
fn debug_builds_reject_divergent_waves_and_misaligned_words() {
    static TWO_PEERS: KernelUnit = unit!(
        "two_peers",
        "u32* own = shmem::own_pointer(grid, context, word);
         shmem::put<shmem::Wave>(grid, context, word + 64, own, 9, shmem::GroupRank{grid.lane() % 2});"
    );
    static CROOKED: KernelUnit =
        unit!("crooked", "shmem::p(grid, context, shmem::Symmetric<u32>{66}, 1u, context.rank());");
    for unit in [&TWO_PEERS, &CROOKED] {
        let ranks = Ranks::new(2, 4, 4096);
        let checked = KernelSpec::new(unit).with("SHMEM_DEBUG", 1);
        ranks.run(&checked, Kernel::new(unit, "anabranch_test"), 1, 4, |rank| {
            (rank == 0).then(|| ranks.team(0))
        });
        let record = ranks.fault(0).unwrap();
        assert_eq!(phase_name(record.phase), Some("misuse"), "{}", unit.name);
        ranks.compare(&ranks.initial).unwrap();
    }
}
