//! What a process takes from its runtime, counted call by call.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use core::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};

use anabranch_hip::types::{
    HipEvent, HipGraph, HipGraphExec, HipIpcMemHandle, HipMemAllocationProperties,
    HipMemGenericAllocationHandle, HipModule, HipStream,
};
use anabranch_hip::{HipApi, HipError};

/// The table that does the work, one for all machines.
static REAL: OnceLock<HipApi> = OnceLock::new();

/// How often something was made, and how many of them there are.
#[derive(Debug)]
pub(crate) struct Counter {
    what: &'static str,
    made: AtomicI64,
    live: AtomicI64,
}

impl Counter {
    /// How many were made so far.
    pub(crate) fn made(&self) -> i64 {
        self.made.load(Ordering::Relaxed)
    }

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
        $(pub(crate) static $counter: Counter = Counter { what: $what, made: AtomicI64::new(0), live: AtomicI64::new(0) };)*

        static COUNTERS: &[&Counter] = &[$(&$counter),*];

        /// The functions of a table, counted.
        #[allow(non_snake_case, reason = "functions carry the C names")]
        pub(crate) fn count_calls(api: &mut HipApi) {
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

/// How many there are of each kind.
pub(crate) fn live() -> Vec<(&'static str, i64)> {
    COUNTERS.iter().map(|counter| (counter.what, counter.live.load(Ordering::Relaxed))).collect()
}
