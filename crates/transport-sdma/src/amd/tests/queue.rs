//! Queues over a thunk in memory: nothing is lost, whatever fails.

use std::error::Error as _;
use std::sync::Arc;
use std::thread;

use super::fake::{Behind, FakeThunk, Step};
use super::tree::{Tree, connect, eight_mi300x, kernel_mask};
use crate::amd::{AmdEngines, AmdError, DEFAULT_RING_BYTES, GpuAddress, PciAddress, RingPlace, ThunkDriver};

fn address(text: &str) -> GpuAddress {
    text.parse::<PciAddress>().unwrap().into()
}

fn engines_with(thunk: FakeThunk) -> AmdEngines {
    let mut gpus = eight_mi300x();
    connect(&mut gpus, kernel_mask);
    let topology = Arc::new(Tree::new(2, &gpus).read());
    let driver = Arc::new(ThunkDriver::new(thunk).unwrap());
    AmdEngines::new(&address("0000:0c:00.0"), topology, driver, DEFAULT_RING_BYTES).unwrap()
}

fn engines() -> (AmdEngines, Behind) {
    let (thunk, behind) = FakeThunk::new(8);
    (engines_with(thunk), behind)
}

/// From place 3 to place 2: engine 10.
fn peer() -> GpuAddress {
    address("0000:1c:00.0")
}

#[test]
fn a_queue_describes_itself_and_frees_everything_in_order() {
    let (engines, behind) = engines();
    assert_eq!(engines.source().node, 2);
    assert_eq!(engines.origin(), "a fake thunk");
    behind.calls();
    let queue = engines.create(Some(&peer()), 0).unwrap();
    assert_eq!(behind.calls(), [Step::Allocate, Step::Map, Step::Create, Step::Reaches]);
    assert_eq!((queue.engine(), queue.ring_bytes(), queue.ring_place()), (10, 256 << 10, RingPlace::Device));
    assert_eq!(queue.ring_address(), 0x7000_0000);
    let base = 0x7000_0000 + (256 << 10);
    assert_eq!(
        [queue.write_pointer(), queue.read_pointer(), queue.doorbell()],
        [base + 8, base + 16, base + 64]
    );
    assert!(queue.device_ringable());
    assert!(queue.reason().contains("recommends the engines 0x400"), "{}", queue.reason());
    assert_eq!((engines.in_use(10), behind.held()), (1, (1, 1)));
    queue.close().unwrap();
    assert_eq!(behind.calls(), [Step::Destroy, Step::Unmap, Step::Free]);
    assert_eq!((engines.in_use(10), behind.held(), engines.lost()), (0, (0, 0), 0));
}

#[test]
fn a_queue_within_the_gpu_is_on_a_general_engine() {
    let (engines, _behind) = engines();
    let queue = engines.create(None, 7).unwrap();
    assert_eq!(queue.engine(), 0);
    let error = engines.create(None, 8).unwrap_err();
    assert!(matches!(error, AmdError::TooManyChannels { asked: 9, allowed: 8, .. }), "{error}");
}

#[test]
fn a_doorbell_of_the_host_alone_is_reported() {
    let (thunk, _behind) = FakeThunk::new(8);
    let engines = engines_with(thunk.host_only());
    assert!(!engines.create(Some(&peer()), 0).unwrap().device_ringable());
}

#[test]
fn a_hundred_rounds_leave_nothing() {
    let (engines, behind) = engines();
    for round in 0..100 {
        let queues: Vec<_> = (0..8).map(|channel| engines.create(Some(&peer()), channel).unwrap()).collect();
        assert_eq!((behind.held(), engines.in_use(10)), ((8, 8), 8), "round {round}");
        drop(queues);
        assert_eq!((behind.held(), engines.in_use(10)), ((0, 0), 0), "round {round}");
    }
    assert_eq!(engines.lost(), 0);
}

/// Whatever step fails, at whatever queue: what was made before stays, what was begun goes.
#[test]
fn a_failure_in_the_middle_gives_back_what_was_made() {
    for step in [Step::Allocate, Step::Map, Step::Create, Step::Reaches] {
        for times in 0..3 {
            let (engines, behind) = engines();
            behind.fail(step, times);
            let mut queues = Vec::new();
            let error = loop {
                match engines.create(Some(&peer()), 0) {
                    Ok(queue) => queues.push(queue),
                    Err(error) => break error,
                }
            };
            let AmdError::Call { place, .. } = &error else { panic!("{error}") };
            assert_eq!(*place, format!("{step:?}"));
            let there = times as usize;
            assert_eq!((queues.len(), behind.held()), (there, (there, there)), "{step:?}");
            assert_eq!((engines.in_use(10), engines.lost()), (times, 0));
            behind.heal();
            queues.push(engines.create(Some(&peer()), 0).unwrap());
            drop(queues);
            assert_eq!(behind.held(), (0, 0), "{step:?}");
        }
    }
}

#[test]
fn a_queue_that_cannot_be_used_is_taken_away() {
    let (engines, behind) = engines();
    behind.return_a_bad_doorbell();
    let error = engines.create(Some(&peer()), 0).unwrap_err();
    assert!(matches!(error, AmdError::Returned { .. }) && error.to_string().contains("doorbell"), "{error}");
    assert_eq!((behind.held(), engines.in_use(10), engines.lost()), ((0, 0), 0, 0));
}

/// What cannot be given back after a failure is said with it, and a ring stays as long as its queue may be there.
#[test]
fn a_failure_of_giving_back_is_not_hidden() {
    for (undo, held) in [(Step::Destroy, (1, 1)), (Step::Unmap, (1, 0)), (Step::Free, (1, 0))] {
        let (engines, behind) = engines();
        behind.fail(Step::Reaches, 0);
        behind.fail(undo, 0);
        let error = engines.create(Some(&peer()), 0).unwrap_err();
        assert!(matches!(error, AmdError::Undo { .. }), "{error}");
        assert!(error.to_string().contains(&format!("{undo:?}")), "{error}");
        assert!(error.source().unwrap().to_string().contains("Reaches"));
        assert_eq!((behind.held(), engines.in_use(10), engines.lost()), (held, 1, 1), "{undo:?}");
    }
}

#[test]
fn a_queue_that_cannot_be_destroyed_keeps_ring_and_slot() {
    for (step, held) in [(Step::Destroy, (1, 1)), (Step::Unmap, (1, 0)), (Step::Free, (1, 0))] {
        for by_hand in [true, false] {
            let (engines, behind) = engines();
            let queue = engines.create(Some(&peer()), 0).unwrap();
            behind.fail(step, 0);
            if by_hand {
                let error = queue.close().unwrap_err();
                assert!(error.to_string().contains(&format!("{step:?}")), "{error}");
            } else {
                drop(queue);
            }
            assert_eq!((behind.held(), engines.in_use(10), engines.lost()), (held, 1, 1), "{step:?}");
        }
    }
}

/// Another process holds five of eight: the fourth queue of this world is refused by the driver.
#[test]
fn an_engine_that_others_fill_is_exhausted() {
    let (thunk, behind) = FakeThunk::new(3);
    let engines = engines_with(thunk);
    let queues: Vec<_> = (0..3).map(|channel| engines.create(Some(&peer()), channel).unwrap()).collect();
    let error = engines.create(Some(&peer()), 3).unwrap_err();
    let text = error.to_string();
    let AmdError::Exhausted { engine: 10, channel: 3, in_use: 3, queues_per_engine: 8, source, .. } = error
    else {
        panic!("{text}")
    };
    assert!(matches!(source.as_deref(), Some(AmdError::QueueRefused { code: 6, engine: 10, node: 1, .. })));
    for said in [
        "0000:1c:00.0",
        "channel 3",
        "engine 10",
        "0000:0c:00.0",
        "HIP's own copies",
        "other worlds and processes",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    assert_eq!((behind.held(), engines.in_use(10)), ((3, 3), 3));
    drop(queues);
    assert!(engines.create(Some(&peer()), 3).is_ok());
}

/// This world alone fills the engine: the driver is not asked.
#[test]
fn an_engine_that_this_world_fills_is_exhausted() {
    let (engines, behind) = engines();
    let _queues: Vec<_> = (0..8).map(|_| engines.create(Some(&peer()), 0).unwrap()).collect();
    behind.calls();
    let error = engines.create(Some(&peer()), 0).unwrap_err();
    assert!(matches!(error, AmdError::Exhausted { in_use: 8, source: None, .. }), "{error}");
    assert_eq!(behind.calls(), []);
}

#[test]
fn threads_share_engines() {
    let (engines, behind) = engines();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let two = [engines.create(Some(&peer()), 0).unwrap(), engines.create(None, 0).unwrap()];
                    assert!(two.iter().all(|queue| engines.in_use(queue.engine()) >= 1));
                }
            });
        }
    });
    assert_eq!((behind.held(), engines.in_use(0), engines.in_use(10)), ((0, 0), 0, 0));
}

#[test]
fn an_old_driver_is_refused() {
    for (major, minor) in [(1, 16), (0, 99)] {
        let (thunk, behind) = FakeThunk::new(8);
        let error = ThunkDriver::new(thunk.of_version(major, minor)).unwrap_err();
        let said = format!("KFD {major}.{minor}, and queues on a chosen engine need 1.17");
        assert!(error.to_string().contains(&said), "{error}");
        assert_eq!(behind.calls(), [Step::Version]);
    }
    for (major, minor) in [(1, 17), (2, 0)] {
        let (thunk, _behind) = FakeThunk::new(8);
        assert!(ThunkDriver::new(thunk.of_version(major, minor)).is_ok());
    }
}

#[test]
fn closed_engines_make_no_queues_and_keep_those_there_are() {
    let (engines, behind) = engines();
    let queue = engines.create(Some(&peer()), 0).unwrap();
    engines.close();
    let error = engines.create(Some(&peer()), 0).unwrap_err();
    assert!(matches!(error, AmdError::Closed { .. }), "{error}");
    assert_eq!(behind.held(), (1, 1));
    drop(engines);
    queue.close().unwrap();
    assert_eq!(behind.held(), (0, 0));
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_made() {
    let mut gpus = eight_mi300x();
    connect(&mut gpus, kernel_mask);
    let topology = Arc::new(Tree::new(2, &gpus).read());
    let (thunk, behind) = FakeThunk::new(8);
    let driver: Arc<ThunkDriver<FakeThunk>> = Arc::new(ThunkDriver::new(thunk).unwrap());
    let new = |source: &str, bytes| {
        AmdEngines::new(&address(source), Arc::clone(&topology), Arc::clone(&driver) as _, bytes)
    };
    behind.calls();
    for bytes in [0, 2048, 4096 + 32, 1 << 32] {
        let error = new("0000:0c:00.0", bytes).unwrap_err();
        assert!(matches!(error, AmdError::Ring { given, .. } if given == bytes), "{error}");
    }
    assert!(matches!(new("0000:0d:00.0", 4096), Err(AmdError::NoSuchGpu { .. })));
    assert_eq!(behind.calls(), []);
    let engines = new("0000:0c:00.0", 4096).unwrap();
    behind.calls();
    assert!(matches!(engines.create(Some(&address("0000:0d:00.0")), 0), Err(AmdError::NoSuchGpu { .. })));
    assert!(matches!(engines.create(Some(&peer()), 8), Err(AmdError::TooManyChannels { .. })));
    assert!(matches!(engines.create(Some(&peer()), u32::MAX), Err(AmdError::TooManyChannels { .. })));
    assert_eq!(behind.calls(), []);
    behind.fail(Step::Node, 0);
    assert!(new("0000:0c:00.0", 4096).is_err(), "a GPU that the runtime does not show");
}

#[test]
fn choices_are_reported_without_making_a_queue() {
    let (engines, behind) = engines();
    behind.calls();
    let choices = engines.choices(Some(&peer()), 2).unwrap();
    assert_eq!(choices.iter().map(|choice| choice.engine).collect::<Vec<_>>(), [10, 10]);
    assert_eq!(behind.calls(), []);
}
