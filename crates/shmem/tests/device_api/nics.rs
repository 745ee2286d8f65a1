//! The device functions by NICs in software: the same cases, with rings of 16 entries, messages cut to pieces of 96 bytes, and an adversary
//! that does in another order what it may.

use std::sync::Arc;
use std::time::Duration;

use anabranch_conformance::shmem::{
    ATOMICS, ATOMICS_UNIT, AtomicCase, AtomicKind, AtomicWays, BARRIER_UNIT, COPY_UNIT, CopyCase, CopyKind,
};
use anabranch_testkit::mutant;
use anabranch_transport::Region;
use anabranch_transport_rdma::device::{
    PHASE_NIC_OUT_OF_RANGE, PHASE_NIC_UNREGISTERED, PHASE_NIC_UNSUPPORTED,
};
use anabranch_transport_rdma::{
    Atomics, NicDriver, NicError, NicLimits, NicQueue, Provider, QueueSpec, Registered,
};

use crate::device_api::atomics;
use crate::device_api::copy::{HEAP, SCOPES, check, check_on, copies, scopes};
use crate::device_api::message;
use crate::device_api::ranks::{NicSetup, Ranks, WAVES};

fn matrix(wave: u32) {
    let mut state = 100 + u64::from(wave);
    for (size, queues, seed) in [(2, 1, None), (3, 2, Some(wave.into()))] {
        let mut ranks = Ranks::with_nics(size, wave, HEAP, &NicSetup::new(queues, seed));
        let spec = ranks.spec(&COPY_UNIT);
        for kind in CopyKind::ALL {
            for scope in scopes(kind) {
                let cases = copies(size, kind, &mut state);
                check(&mut ranks, &spec, kind, *scope, &cases).unwrap();
            }
        }
        for rank in 0..size {
            assert_eq!(ranks.stopped_nics(rank), Vec::<String>::new());
        }
    }
}

#[test]
#[ignore = "extended"]
fn every_copy_by_nic_with_waves_of_1() {
    matrix(WAVES[0]);
}

#[test]
#[ignore = "extended"]
fn every_copy_by_nic_with_waves_of_4() {
    matrix(WAVES[1]);
}

#[test]
fn every_copy_by_nic_with_waves_of_32() {
    matrix(WAVES[2]);
}

#[test]
#[ignore = "extended"]
fn every_copy_by_nic_with_waves_of_64() {
    matrix(WAVES[3]);
}

#[test]
#[ignore = "extended"]
fn eight_waves_share_the_smallest_send_queue() {
    for wave in [1, 4, 32] {
        let mut ranks = Ranks::with_nics(2, wave, HEAP, &NicSetup::new(1, Some(3)));
        let spec = ranks.spec(&COPY_UNIT);
        let mut state = u64::from(wave);
        for kind in [CopyKind::Put, CopyKind::GetNbi, CopyKind::PutSignal, CopyKind::PutSignalNbi] {
            for scope in SCOPES {
                let cases = copies(2, kind, &mut state);
                check_on(&mut ranks, &spec, kind, scope, &cases, (2, 4 * wave)).unwrap();
            }
        }
    }
}

#[test]
#[ignore = "extended"]
fn messages_by_nic_arrive_whole_and_in_order_at_every_scope() {
    for (wave, seed) in WAVES.into_iter().zip([None, Some(1), Some(2), None]) {
        let mut state = u64::from(wave);
        let mut ranks = Ranks::with_nics(3, wave, 32 << 10, &NicSetup::new(2, seed));
        for case in message::cases(|scope| 67 + 16 * scope) {
            message::check(&mut ranks, &case, &mut state);
        }
    }
}

#[test]
fn empty_messages_by_nic_still_signal() {
    let mut ranks = Ranks::with_nics(2, 4, 32 << 10, &NicSetup::new(2, None));
    for case in message::cases(|_| 0) {
        message::check(&mut ranks, &message::Case { signal_op: 1, ..case }, &mut 5);
    }
}

#[test]
fn barriers_by_nic_meet_and_complete() {
    for (size, wave, seed) in [(2, 1, None), (3, 4, Some(5)), (4, 32, Some(6)), (2, 64, None), (6, 4, None)] {
        let ranks = Ranks::with_nics(size, wave, crate::device_api::barrier::HEAP, &NicSetup::new(2, seed));
        let spec = ranks.spec(&BARRIER_UNIT);
        crate::device_api::barrier::check_on(ranks, &spec, [1; 4], 10, Duration::from_micros(20)).unwrap();
    }
}

/// By another queue pair an epoch could land before the one before it, and the word would go back.
#[test]
fn barriers_of_changing_blocks_use_one_queue_pair() {
    let ranks = || Ranks::with_nics(2, 4, crate::device_api::barrier::HEAP, &NicSetup::new(3, Some(4)));
    let spec = ranks().spec(&BARRIER_UNIT);
    assert_eq!(crate::device_api::barrier::posted_in_turns(ranks(), &spec), [6, 0, 0]);
    let broken = spec.edited(&mutant("SYNC_BY_ANY_QUEUE"));
    assert_eq!(crate::device_api::barrier::posted_in_turns(ranks(), &broken), [2, 2, 2]);
}

/// What a block has put in one launch comes before what it puts in the next, however many waves it has then: by another queue pair the word
/// that it sets could go back.
#[test]
#[ignore = "extended"]
fn blocks_keep_their_queue_pairs_in_launches_of_more_waves() {
    const WAVE: u32 = 4;
    let posted = |broken: Option<&str>| {
        let mut ranks = Ranks::with_nics(2, WAVE, HEAP, &NicSetup::new(2, Some(10)));
        let spec = ranks.spec(&COPY_UNIT);
        let spec = broken.map_or(spec.clone(), |broken| spec.edited(&mutant(broken)));
        // Block 0 does the first and the last, block 1 the other one: a copy and a signal each.
        let to = |peer| {
            [0, 256, 512].map(|at| crate::device_api::copy::one(peer, 8192 + at, 4096 + at, 64)).to_vec()
        };
        [1, 4].map(|waves| {
            let cases = [to(1), to(0)];
            let grid = (2, waves * WAVE);
            check_on(&mut ranks, &spec, CopyKind::PutSignal, 2, &cases, grid).unwrap();
            ranks.posted(0, 1)
        })
    };
    assert_eq!(posted(None), [[4, 2], [8, 4]]);
    assert_eq!(posted(Some("QUEUE_BY_GRID")), [[4, 2], [10, 2]]);
}

#[test]
#[ignore = "extended"]
fn contended_atomics_by_nic_give_exact_totals() {
    for (wave, seed) in [(4, Some(7)), (32, Some(8))] {
        let mut ranks = Ranks::with_nics(3, wave, 4096, &NicSetup::new(2, seed));
        let spec = ranks.spec(&ATOMICS_UNIT);
        for case in AtomicCase::all() {
            atomics::check(&mut ranks, &spec, case).unwrap();
        }
    }
}

/// A NIC that has these atomic operations alone.
#[derive(Debug)]
struct Limited(Arc<dyn NicDriver>, Atomics);

impl NicDriver for Limited {
    fn provider(&self) -> Provider {
        self.0.provider()
    }

    fn describe(&self) -> String {
        self.0.describe()
    }

    fn limits(&self) -> NicLimits {
        NicLimits { atomics: self.1, ..self.0.limits() }
    }

    fn register(&self, region: Region) -> Result<Arc<dyn Registered>, NicError> {
        self.0.register(region)
    }

    fn create_queue(&self, spec: QueueSpec) -> Result<Arc<dyn NicQueue>, NicError> {
        self.0.create_queue(spec)
    }
}

fn with_standard_atomics(size: u32, wave: u32) -> Ranks {
    with_atomics(size, wave, Atomics::Standard)
}

fn with_atomics(size: u32, wave: u32, atomics: Atomics) -> Ranks {
    let setup = NicSetup::new(2, Some(9));
    Ranks::with_drivers(size, wave, 4096, &setup, |driver| Arc::new(Limited(driver, atomics)))
}

#[test]
#[ignore = "extended"]
fn wide_atomics_are_made_of_standard_ones() {
    for wave in [1, 32] {
        let mut ranks = with_standard_atomics(3, wave);
        let spec = ranks.spec(&ATOMICS_UNIT);
        for case in AtomicCase::all().filter(|case| case.element_bytes == 8) {
            atomics::check(&mut ranks, &spec, case).unwrap();
        }
    }
}

#[test]
fn what_the_nic_does_not_have_is_a_fault_and_nothing_moves() {
    for kind in [AtomicKind::Add, AtomicKind::FetchAdd, AtomicKind::Or, AtomicKind::Swap] {
        let case = AtomicCase { kind, element_bytes: 4, is_signed: false };
        let ranks = with_standard_atomics(2, 4);
        let spec = ranks.spec(&ATOMICS_UNIT);
        let logs = ranks.buffers(1 << 16);
        ranks.run(&spec, ATOMICS, 1, 8, |rank| {
            (rank == 0).then(|| atomics::arguments(&ranks, rank, &logs[0], case, AtomicWays::Nic))
        });
        let record = ranks.fault(0).unwrap();
        assert_eq!((record.phase, record.peer, record.seen), (PHASE_NIC_UNSUPPORTED, 1, 4));
        assert_eq!(ranks.heap(1), ranks.initial[1]);
    }
}

#[test]
#[ignore = "extended"]
fn without_atomics_each_operation_on_a_word_is_a_fault_with_its_number_and_nothing_moves() {
    // FETCH_ADD, SWAP, COMPARE_SWAP and FETCH_ADD of `rdma/operation.h`.
    for (kind, opcode) in [
        (AtomicKind::Add, 4),
        (AtomicKind::Swap, 6),
        (AtomicKind::CompareSwap, 5),
        (AtomicKind::SignalAdd, 4),
    ] {
        let case = AtomicCase { kind, element_bytes: 8, is_signed: false };
        let ranks = with_atomics(2, 4, Atomics::None);
        let spec = ranks.spec(&ATOMICS_UNIT);
        let logs = ranks.buffers(1 << 16);
        ranks.run(&spec, ATOMICS, 1, 8, |rank| {
            (rank == 0).then(|| atomics::arguments(&ranks, rank, &logs[0], case, AtomicWays::Nic))
        });
        let record = ranks.fault(0).unwrap();
        let said = (record.phase, record.peer, record.expected, record.seen);
        assert_eq!(said, (PHASE_NIC_UNSUPPORTED, 1, opcode, 8), "{kind:?}");
        assert_eq!(ranks.heap(1), ranks.initial[1]);
    }
    // Nor does a copy with a signal that adds behind it.
    for kind in [CopyKind::PutSignal, CopyKind::PutSignalNbi] {
        let ranks = with_atomics(2, 4, Atomics::None);
        let spec = ranks.spec(&COPY_UNIT);
        let case = CopyCase { signal: 2048, signal_op: 1, ..crate::device_api::copy::one(1, 512, 1024, 64) };
        crate::device_api::copy::launch_one(&ranks, &spec, kind, &case);
        let record = ranks.fault(0).unwrap();
        let said = (record.phase, record.peer, record.expected, record.seen);
        assert_eq!(said, (PHASE_NIC_UNSUPPORTED, 1, 4, 8), "{kind:?}");
        // A copy that was given to the NIC would come.
        anabranch_clock::sleep(Duration::from_millis(50));
        assert_eq!(ranks.heap(1), ranks.initial[1], "{kind:?}");
    }
}

#[test]
fn memory_that_the_nic_does_not_know_or_reach_is_a_fault_and_nothing_moves() {
    // Both ranges are within this rank's view; rank 1's heap ends at HEAP, and rank 0's local range begins behind its own.
    for (remote, local, phase) in [
        (8192, HEAP as u64, PHASE_NIC_UNREGISTERED),
        (HEAP as u64 - 32, 8192, PHASE_NIC_OUT_OF_RANGE),
        (u64::MAX - 4096, 8192, PHASE_NIC_OUT_OF_RANGE),
    ] {
        for kind in [CopyKind::Put, CopyKind::GetNbi, CopyKind::PutSignal] {
            let ranks = Ranks::with_nics(2, 4, HEAP, &NicSetup::new(1, None));
            let case = crate::device_api::copy::one(1, remote, local, 64);
            let spec = ranks.spec(&COPY_UNIT);
            crate::device_api::copy::launch_one(&ranks, &spec, kind, &case);
            let record = ranks.fault(0).unwrap();
            assert_eq!((record.phase, record.peer), (phase, 1), "{kind:?}");
            assert_eq!(ranks.heap(1), ranks.initial[1], "{kind:?}");
            assert_eq!(ranks.stopped_nics(0), Vec::<String>::new());
        }
    }
}

#[test]
#[ignore = "extended"]
fn mutants_of_copies_by_nic_are_caught() {
    let mut state = 5;
    for (broken, kind, scope) in [
        ("LENGTH_PLUS_ONE", CopyKind::Put, 1),
        ("LENGTH_MINUS_ONE", CopyKind::GetNbi, 2),
        ("EMPTY_IS_SILENT", CopyKind::PutSignal, 2),
    ] {
        let mut ranks = Ranks::with_nics(2, 4, HEAP, &NicSetup::new(2, None));
        let cases = copies(2, kind, &mut state);
        let spec = ranks.spec(&COPY_UNIT);
        check(&mut ranks, &spec, kind, scope, &cases).unwrap();
        let broken_spec = spec.edited(&mutant(broken));
        let found = check(&mut ranks, &broken_spec, kind, scope, &cases);
        assert!(found.is_err(), "{broken} of kind {kind:?} at scope {scope} was not noticed");
    }
}
