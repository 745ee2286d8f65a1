//! The device functions by copy engines: the same cases, with rings of two packets, copies cut to pieces, and an engine that lets
//! packets overtake where it may.

use anabranch_conformance::shmem::{COPY_UNIT, CopyKind};
use anabranch_testkit::mutant;
use anabranch_transport_sdma::DeviceQueue;

use crate::device_api::copy::{HEAP, SCOPES, check, check_on, copies, scopes};
use crate::device_api::message;
use crate::device_api::ranks::{EngineSetup, Ranks, WAVES};

fn matrix(wave: u32) {
    let mut state = 100 + u64::from(wave);
    for (size, queues) in [(2, 1), (3, 2)] {
        let setup = EngineSetup { queues, ..EngineSetup::default() };
        let mut ranks = Ranks::with_engines(size, wave, HEAP, &setup);
        let spec = ranks.spec(&COPY_UNIT);
        for kind in CopyKind::ALL {
            for scope in scopes(kind) {
                let cases = copies(size, kind, &mut state);
                check(&mut ranks, &spec, kind, *scope, &cases).unwrap();
            }
        }
        assert!((0..size).all(|rank| ranks.stopped(rank).is_empty()));
    }
}

#[test]
#[ignore = "extended"]
fn every_copy_by_engine_with_waves_of_1() {
    matrix(WAVES[0]);
}

#[test]
fn every_copy_by_engine_with_waves_of_4() {
    matrix(WAVES[1]);
}

#[test]
#[ignore = "extended"]
fn every_copy_by_engine_with_waves_of_32() {
    matrix(WAVES[2]);
}

#[test]
#[ignore = "extended"]
fn every_copy_by_engine_with_waves_of_64() {
    matrix(WAVES[3]);
}

/// Eight waves of a kernel share one queue, in which two operations of a copy and a signal fill all there is.
#[test]
#[ignore = "extended"]
fn eight_waves_share_the_smallest_ring() {
    for wave in [1, 4, 32] {
        let setup = EngineSetup { queues: 1, ring_bytes: DeviceQueue::LEAST_RING, ..EngineSetup::default() };
        let mut ranks = Ranks::with_engines(2, wave, HEAP, &setup);
        let spec = ranks.spec(&COPY_UNIT);
        let mut state = u64::from(wave);
        for kind in [CopyKind::Put, CopyKind::GetNbi, CopyKind::PutSignal, CopyKind::PutSignalNbi] {
            for scope in SCOPES {
                let cases = copies(2, kind, &mut state);
                check_on(&mut ranks, &spec, kind, scope, &cases, (2, 4 * wave)).unwrap();
            }
        }
        assert!((0..2).all(|rank| ranks.stopped(rank).is_empty()));
    }
}

#[test]
#[ignore = "extended"]
fn messages_by_engine_arrive_whole_and_in_order_at_every_scope() {
    for wave in WAVES {
        let mut state = u64::from(wave);
        let mut ranks = Ranks::with_engines(3, wave, 32 << 10, &EngineSetup::default());
        for case in message::cases(|scope| 67 + 16 * scope) {
            message::check(&mut ranks, &case, &mut state);
        }
    }
}

#[test]
fn empty_messages_by_engine_still_signal() {
    let mut ranks = Ranks::with_engines(2, 4, 32 << 10, &EngineSetup::default());
    for case in message::cases(|_| 0) {
        message::check(&mut ranks, &message::Case { signal_op: 1, ..case }, &mut 5);
    }
}

#[test]
#[ignore = "extended"]
fn mutants_of_copies_by_engine_are_caught() {
    let mut ranks = Ranks::with_engines(2, 4, HEAP, &EngineSetup::default());
    let mut state = 5;
    for (broken, kind, scope) in [
        ("LENGTH_PLUS_ONE", CopyKind::Put, 1),
        ("LENGTH_MINUS_ONE", CopyKind::GetNbi, 2),
        ("WRONG_PEER", CopyKind::PutNbi, 2),
        ("EMPTY_IS_SILENT", CopyKind::PutSignal, 2),
    ] {
        let cases = copies(2, kind, &mut state);
        let spec = ranks.spec(&COPY_UNIT);
        check(&mut ranks, &spec, kind, scope, &cases).unwrap();
        let broken_spec = spec.edited(&mutant(broken));
        let found = check(&mut ranks, &broken_spec, kind, scope, &cases);
        assert!(found.is_err(), "{broken} of kind {kind:?} at scope {scope} was not noticed");
    }
}
