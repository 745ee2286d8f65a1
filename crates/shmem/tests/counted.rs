//! What worlds take from their runtime, counted call by call: worlds that all their ranks make, use and leave at once, round after round in
//! one process, give all of it back. Alone in its process, so that nobody else's calls, files and threads are counted.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use core::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};

use anabranch_hip::types::{
    HipEvent, HipGraph, HipGraphExec, HipIpcMemHandle, HipMemAllocationProperties,
    HipMemGenericAllocationHandle, HipModule, HipStream,
};
use anabranch_hip::{DeviceOrdinal, HipApi, HipError};
use anabranch_shmem::{DEFAULT_ALIGNMENT, Error, HeapMode, SoftwareConfig, World, spawn_threads};
use anabranch_testkit::Resources;
use support::altered::{altered, setup};
use support::engines::{self, exchange};
use support::{Bench, all};

const RANKS: u32 = 4;
/// Of each kind of world; a thousand in all.
const ROUNDS: u32 = 250;

/// The table that does the work, one for all machines.
static REAL: OnceLock<HipApi> = OnceLock::new();

/// How often something was made, and how many of them there are.
#[derive(Debug)]
struct Counter {
    what: &'static str,
    made: AtomicI64,
    live: AtomicI64,
}

impl Counter {
    fn count(&self, code: HipError, step: i64) -> HipError {
        if code == HipError::SUCCESS {
            self.made.fetch_add(step.max(0), Ordering::Relaxed);
            self.live.fetch_add(step, Ordering::Relaxed);
        }
        code
    }
}

/// For each kind of resource its functions, with what a success of theirs adds to the number that there are.
macro_rules! counted {
    ($($counter:ident $what:literal {
        $($step:literal $name:ident($($argument:ident: $kind:ty),*);)*
        $(optional $(+ $more:literal)? $(- $less:literal)? $other:ident($($oargument:ident: $okind:ty),*);)*
    })*) => {
        $(static $counter: Counter = Counter { what: $what, made: AtomicI64::new(0), live: AtomicI64::new(0) };)*

        static COUNTERS: &[&Counter] = &[$(&$counter),*];

        /// The functions of a table, counted.
        #[allow(non_snake_case, reason = "functions carry the C names")]
        fn count_calls(api: &mut HipApi) {
            let _first = REAL.get_or_init(|| *api);
            $(
                $({
                    unsafe extern "C" fn $name($($argument: $kind),*) -> HipError {
                        // SAFETY: the arguments are the caller's.
                        $counter.count(unsafe { (REAL.get().unwrap().$name)($($argument),*) }, $step)
                    }
                    api.$name = $name;
                })*
                $({
                    unsafe extern "C" fn $other($($oargument: $okind),*) -> HipError {
                        // SAFETY: the arguments are the caller's.
                        let code = unsafe { (REAL.get().unwrap().$other.unwrap())($($oargument),*) };
                        $counter.count(code, 0 $(+ $more)? $(- $less)?)
                    }
                    if api.$other.is_some() {
                        api.$other = Some($other);
                    }
                })*
            )*
        }
    };
}

counted! {
    MEMORY "device memory" {
        1 hipMalloc(pointer: *mut *mut c_void, bytes: usize);
        -1 hipFree(pointer: *mut c_void);
        optional + 1 hipExtMallocWithFlags(pointer: *mut *mut c_void, bytes: usize, flags: c_uint);
    }
    HOST_MEMORY "pinned memory" {
        1 hipHostMalloc(pointer: *mut *mut c_void, bytes: usize, flags: c_uint);
        -1 hipHostFree(pointer: *mut c_void);
    }
    REGISTERED "registered host memory" {
        1 hipHostRegister(pointer: *mut c_void, bytes: usize, flags: c_uint);
        -1 hipHostUnregister(pointer: *mut c_void);
    }
    IPC "IPC mappings" {
        1 hipIpcOpenMemHandle(pointer: *mut *mut c_void, handle: HipIpcMemHandle, flags: c_uint);
        -1 hipIpcCloseMemHandle(pointer: *mut c_void);
    }
    STREAMS "streams" {
        1 hipStreamCreateWithFlags(stream: *mut HipStream, flags: c_uint);
        1 hipStreamCreateWithPriority(stream: *mut HipStream, flags: c_uint, priority: c_int);
        -1 hipStreamDestroy(stream: HipStream);
    }
    EVENTS "events" {
        1 hipEventCreateWithFlags(event: *mut HipEvent, flags: c_uint);
        -1 hipEventDestroy(event: HipEvent);
    }
    MODULES "modules" {
        1 hipModuleLoadData(module: *mut HipModule, image: *const c_void);
        -1 hipModuleUnload(module: HipModule);
    }
    GRAPHS "graphs" {
        1 hipStreamEndCapture(stream: HipStream, graph: *mut HipGraph);
        -1 hipGraphDestroy(graph: HipGraph);
    }
    REPLAYS "instantiated graphs" {
        1 hipGraphInstantiateWithFlags(exec: *mut HipGraphExec, graph: HipGraph, flags: c_ulonglong);
        -1 hipGraphExecDestroy(exec: HipGraphExec);
    }
    RANGES "reserved ranges" {
        optional + 1 hipMemAddressReserve(
            pointer: *mut *mut c_void, bytes: usize, alignment: usize, address: *mut c_void, flags: c_ulonglong
        );
        optional - 1 hipMemAddressFree(pointer: *mut c_void, bytes: usize);
    }
    PHYSICAL "physical memory" {
        optional + 1 hipMemCreate(
            handle: *mut HipMemGenericAllocationHandle, bytes: usize,
            properties: *const HipMemAllocationProperties, flags: c_ulonglong
        );
        optional + 1 hipMemImportFromShareableHandle(
            handle: *mut HipMemGenericAllocationHandle, shareable: *mut c_void, kind: c_int
        );
        optional - 1 hipMemRelease(handle: HipMemGenericAllocationHandle);
    }
    MAPPED "mapped physical memory" {
        optional + 1 hipMemMap(
            pointer: *mut c_void, bytes: usize, offset: usize, handle: HipMemGenericAllocationHandle,
            flags: c_ulonglong
        );
        optional - 1 hipMemUnmap(pointer: *mut c_void, bytes: usize);
    }
}

fn live() -> Vec<(&'static str, i64)> {
    COUNTERS.iter().map(|counter| (counter.what, counter.live.load(Ordering::Relaxed))).collect()
}

/// Copies by every route, a team, a barrier in a replayed graph, and a registered buffer.
fn use_world(world: &World) -> Result<(), Error> {
    exchange(world, 1)?;
    let team = world.team(world.group())?;
    let memory = world.allocate(world.group(), 4096, DEFAULT_ALIGNMENT, "rows")?;
    let stream = world.device().create_stream()?;
    stream.begin_capture()?;
    team.barrier(&stream)?;
    let replay = stream.end_capture()?.instantiate()?;
    // SAFETY: the team lives until the stream is synchronised below.
    unsafe { replay.launch(&stream) }?;
    world.synchronize(&stream)?;
    let buffer = world.device().allocate(4096)?;
    // SAFETY: the buffer outlives the registration.
    unsafe { world.register(world.group(), buffer.address(), 64, "buffer") }?.release()?;
    // One member frees by its drop alone.
    if world.rank().get() != 1 {
        drop(memory);
    }
    Ok(())
}

#[test]
fn rounds_of_worlds_give_back_all_that_they_took() {
    let software = SoftwareConfig::default();
    let benches = [
        Bench::with_wave(RANKS, 4),
        Bench::in_mode(RANKS, HeapMode::Flat),
        engines::bench(RANKS, 1, HeapMode::Static, software),
        engines::bench(RANKS, 4, HeapMode::Flat, software),
    ];
    for (number, bench) in benches.iter().enumerate() {
        let runtime = altered(bench, count_calls);
        let once = || all(spawn_threads(RANKS, |rank| setup(bench, &runtime, rank), use_world));
        let free = |ordinal| runtime.device(DeviceOrdinal(ordinal)).unwrap().memory_info().unwrap().0;
        // The first rounds start the machine's threads and load the kernels.
        for _ in 0..5 {
            once();
        }
        let made = MEMORY.made.load(Ordering::Relaxed);
        let (before, of_process, memory) = (live(), Resources::now().unwrap(), [0, 1, 2, 3].map(free));
        for _ in 0..ROUNDS {
            once();
        }
        assert_eq!(live(), before, "bench {number}");
        assert_eq!([0, 1, 2, 3].map(free), memory, "bench {number}: bytes of device memory");
        let after = Resources::now().unwrap();
        assert!(after.files <= of_process.files, "bench {number}: {of_process:?} {after:?}");
        assert!(after.threads <= of_process.threads, "bench {number}: {of_process:?} {after:?}");
        // One stream too many would show.
        let stream = runtime.device(DeviceOrdinal(1)).unwrap().create_stream().unwrap();
        assert_ne!(live(), before, "bench {number}");
        drop(stream);
        // The counts are those of rounds: each rank takes memory in each.
        assert!(MEMORY.made.load(Ordering::Relaxed) >= made + i64::from(ROUNDS * RANKS), "bench {number}");
    }
    for used in [&HOST_MEMORY, &STREAMS, &EVENTS, &MODULES, &GRAPHS, &REPLAYS, &RANGES, &PHYSICAL, &MAPPED] {
        assert!(used.made.load(Ordering::Relaxed) > 0, "{used:?}");
    }
}
