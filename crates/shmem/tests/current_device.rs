//! Every call while another device is current than the rank's, as on the threads of a framework; it is still current behind each call,
//! whether that succeeds, fails or panics.

use core::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::support::altered::{altered, on_rank, setup};
use crate::support::engines::exchange;
use crate::support::{Bench, all, engines};
use anabranch_hip::{Device, DeviceAddress, HipError, Runtime};
use anabranch_ranks::GroupRank;
use anabranch_shmem::{
    DEFAULT_ALIGNMENT, Error, HeapMode, Signal, SignalOp, SoftwareConfig, World, spawn_threads,
};

const RANKS: u32 = 2;
/// A device of the machine that is no rank's.
const FOREIGN_DEVICE: c_int = RANKS as c_int;

/// What is current for the calling thread, and another one made current.
struct Current(Runtime);

impl Current {
    fn set(&self, device: c_int) {
        // SAFETY: no pointers; the machine has the device.
        let code = unsafe { (self.0.api().hipSetDevice)(device) };
        assert_eq!(code, HipError::SUCCESS);
    }

    fn get(&self) -> c_int {
        let mut device = -1;
        // SAFETY: the call writes one int.
        let code = unsafe { (self.0.api().hipGetDevice)(&raw mut device) };
        assert_eq!(code, HipError::SUCCESS);
        device
    }

    /// Makes a call under the other device, which must be current behind it.
    fn around<T>(&self, what: &str, call: impl FnOnce() -> T) -> T {
        self.set(FOREIGN_DEVICE);
        let value = call();
        assert_eq!(self.get(), FOREIGN_DEVICE, "{what}");
        value
    }
}

/// The calls of a world and of what is made from it, each with its result looked at.
fn use_all(world: &World, current: &Current) -> Result<(), Error> {
    let device = world.device().clone();
    let group = world.group();
    let peer = GroupRank::new(1 - world.rank().get());
    let team = current.around("team", || world.team(group))?;
    let mut memory = current.around("allocate", || world.allocate(group, 4096, DEFAULT_ALIGNMENT, "rows"))?;
    let words = current.around("allocate", || world.allocate(group, 64, DEFAULT_ALIGNMENT, "words"))?;
    let stream = current.around("stream", || device.create_stream())?;
    let [event, later] = [0, 1].map(|_| current.around("event", || device.create_timing_event()).unwrap());
    let mut buffer = current.around("buffer", || device.allocate(4096))?;
    // Whose it is can be asked: it is not the current device's.
    let owner = current.around("owner", || device.allocation_of(buffer.address()))?.0;
    assert_eq!(owner, device.ordinal().0);
    current.around("write", || memory.write(0, &[3; 4096]))?;
    current.around("fill", || buffer.fill(world.rank().get() as u8 + 1))?;
    // SAFETY: the buffer outlives the registration, which is released on all below.
    let registration =
        current.around("register", || unsafe { world.register(group, buffer.address(), 4096, "buffer") })?;
    let mut seen = [0; 4];
    let theirs = registration.peer_address(peer).unwrap();
    // SAFETY: registered with 4096 bytes, and not released yet.
    current.around("read", || unsafe { device.read_memory(theirs, &mut seen) })?;
    assert_eq!(seen, [peer.get() as u8 + 1; 4]);
    current.around("record", || stream.record(&event))?;
    // SAFETY: all live until the stream is synchronised below.
    current.around("put", || unsafe {
        let signal = Signal { memory: &words, offset: 0, value: 7, op: SignalOp::Set };
        team.put_signal(&stream, &memory, 0, buffer.address(), 1000, signal, peer)
    })?;
    current.around("wait", || team.signal_wait(&stream, &words, 0, 7, peer))?;
    current.around("begin capture", || stream.begin_capture())?;
    current.around("barrier", || team.barrier(&stream))?;
    let graph = current.around("end capture", || stream.end_capture())?;
    let replay = current.around("instantiate", || graph.instantiate())?;
    for _ in 0..3 {
        // SAFETY: the team lives until the stream is synchronised below.
        current.around("launch a graph", || unsafe { replay.launch(&stream) })?;
    }
    current.around("record", || stream.record(&later))?;
    current.around("synchronize", || world.synchronize(&stream))?;
    assert!(current.around("elapsed", || event.microseconds_until(&later))? >= 0.0);
    let mut rows = [0; 1001];
    current.around("read", || memory.read(0, &mut rows))?;
    assert!(rows[..1000].iter().all(|byte| *byte == peer.get() as u8 + 1) && rows[1000] == 3);
    current.around("meet", || world.barrier(group, "all have read"))?;
    current.around("exchange", || exchange(world, 2))?;

    // What is refused, before and after the runtime was asked.
    let refused =
        current.around("too much", || world.allocate(group, 1 << 40, DEFAULT_ALIGNMENT, "too much"));
    assert!(refused.unwrap_err().to_string().contains("cannot hold"));
    // SAFETY: refused before anything is used.
    let refused =
        current.around("nowhere", || unsafe { world.register(group, DeviceAddress(64), 8, "nowhere") });
    assert!(matches!(refused, Err(Error::Transport(_))));
    let refused = current.around("out of memory", || device.allocate(1 << 50));
    assert!(refused.unwrap_err().to_string().contains("hipMalloc"));
    // SAFETY: refused before anything moves.
    let refused = current
        .around("out of range", || unsafe { team.put(&stream, &memory, 4000, buffer.address(), 1000, peer) });
    assert!(matches!(refused, Err(Error::Invalid { .. })));

    current.around("release", || registration.release())?;
    current.around("free", || memory.free())?;
    current.around("drop", move || drop((team, words, event, later, graph, replay, stream, buffer)));
    current.around("check", || world.check())
}

fn current_of(device: &Device) -> Current {
    Current(device.runtime().clone())
}

fn every_call(benches: &[Bench]) {
    for bench in benches {
        std::thread::scope(|scope| {
            for rendezvous in anabranch_bootstrap::threads(RANKS) {
                scope.spawn(move || {
                    use anabranch_bootstrap::Rendezvous as _;
                    let setup = bench.setup(rendezvous.rank()).unwrap();
                    let current = current_of(&setup.device);
                    let join = || {
                        World::join(setup.config, setup.device, setup.jit, std::sync::Arc::new(rendezvous))
                    };
                    let world = current.around("join", join).unwrap();
                    use_all(&world, &current).unwrap();
                    current.around("leave", || world.leave()).unwrap();
                    current.around("leave the rendezvous", || world.rendezvous().leave()).unwrap();
                    current.around("drop", move || drop(world));
                });
            }
        });
    }
}

#[test]
fn every_call_works_and_leaves_the_callers_device_current() {
    every_call(&[Bench::with_wave(RANKS + 1, 4)]);
}

#[test]
#[ignore = "extended"]
fn every_call_with_other_heaps_and_engines_leaves_the_callers_device_current() {
    let software = SoftwareConfig::default();
    every_call(&[
        Bench::in_mode(RANKS + 1, HeapMode::Flat),
        engines::bench(RANKS + 1, 4, HeapMode::Static, software),
        engines::bench(RANKS + 1, 1, HeapMode::Flat, software),
    ]);
}

/// Rank 1's table refuses memory while a world is joined: both fail, with the caller's device current.
#[test]
fn a_join_that_fails_leaves_the_callers_device_current() {
    unsafe extern "C" fn refuse(_pointer: *mut *mut core::ffi::c_void, _bytes: usize) -> HipError {
        HipError::OUT_OF_MEMORY
    }
    let bench = Bench::new(RANKS + 1);
    let (whole, broken) = (
        bench.runtime(),
        altered(&bench, |api| {
            api.hipMalloc = refuse;
            api.hipExtMallocWithFlags = None;
        }),
    );
    std::thread::scope(|scope| {
        for rendezvous in anabranch_bootstrap::threads(RANKS) {
            let (bench, whole, broken) = (&bench, &whole, &broken);
            scope.spawn(move || {
                use anabranch_bootstrap::Rendezvous as _;
                let runtime = if rendezvous.rank().get() == 1 { broken } else { whole };
                let setup = setup(bench, runtime, rendezvous.rank()).unwrap();
                let current = current_of(&setup.device);
                let join =
                    || World::join(setup.config, setup.device, setup.jit, std::sync::Arc::new(rendezvous));
                let text = current.around("join", join).unwrap_err().to_string();
                assert!(
                    text.contains("allocate the heap failed on rank 1") || text.contains("heap"),
                    "{text}"
                );
            });
        }
    });
}

#[test]
fn a_guard_restores_the_current_device_after_a_panic() {
    let bench = Bench::new(RANKS + 1);
    let device = bench.setup_on(1).unwrap().device;
    let current = current_of(&device);
    let panicked = current.around("panic", || {
        catch_unwind(AssertUnwindSafe(|| {
            let _guard = device.guard().unwrap();
            assert_eq!(current.get(), 1);
            panic!("on purpose");
        }))
    });
    assert!(panicked.is_err());
    // Nested ones restore in turn.
    current.around("nested", || {
        let outer = device.guard().unwrap();
        let inner = bench.setup_on(0).unwrap().device;
        let guard = inner.guard().unwrap();
        assert_eq!(current.get(), 0);
        drop(guard);
        assert_eq!(current.get(), 1);
        drop(outer);
    });
}

/// A call that does not put back what was current is noticed by `around`.
#[test]
fn a_device_that_is_not_put_back_is_noticed() {
    let bench = Bench::new(RANKS + 1);
    let results = spawn_threads(
        RANKS,
        |rank| bench.setup(rank),
        |world: &World| {
            assert!(on_rank(world.rank().get()));
            let current = current_of(world.device());
            let noticed = catch_unwind(AssertUnwindSafe(|| {
                current.around("forgotten", || current.set(world.device().ordinal().0 as c_int));
            }));
            current.set(0);
            Ok::<_, Error>(noticed.is_err())
        },
    );
    assert_eq!(all(results), [true; RANKS as usize]);
}
