//! Ranks that are threads of one process: no handle is created or opened for any of their memory, whichever call exchanges it, and access between
//! their devices is enabled by name.

use core::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::altered::{altered, setup};
use crate::support::engines::{self, exchange};
use crate::support::{Bench, all};
use anabranch_hip::types::{HipIpcMemHandle, HipMemGenericAllocationHandle};
use anabranch_hip::{HipError, Runtime};
use anabranch_hip_host::{HostConfig, HostMachine};
use anabranch_ranks::GlobalRank;
use anabranch_shmem::{DEFAULT_ALIGNMENT, Error, HeapMode, SoftwareConfig, World, spawn_threads};

static HANDLES: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn get_handle(_handle: *mut HipIpcMemHandle, _pointer: *mut c_void) -> HipError {
    HANDLES.fetch_add(1, Ordering::Relaxed);
    HipError::INVALID_VALUE
}

unsafe extern "C" fn open_handle(_: *mut *mut c_void, _: HipIpcMemHandle, _: c_uint) -> HipError {
    HANDLES.fetch_add(1, Ordering::Relaxed);
    HipError::INVALID_CONTEXT
}

unsafe extern "C" fn export(
    _shareable: *mut c_void,
    _handle: HipMemGenericAllocationHandle,
    _kind: c_int,
    _flags: c_ulonglong,
) -> HipError {
    HANDLES.fetch_add(1, Ordering::Relaxed);
    HipError::INVALID_VALUE
}

unsafe extern "C" fn import(_: *mut HipMemGenericAllocationHandle, _: *mut c_void, _: c_int) -> HipError {
    HANDLES.fetch_add(1, Ordering::Relaxed);
    HipError::INVALID_VALUE
}

/// Heap, teams, registered buffers, parts of the heap registered again, and queues of engines: all pointers that ranks tell each other.
fn exchange_every_pointer(world: &World) -> Result<(), Error> {
    exchange(world, 2)?;
    let mut buffer = world.device().allocate(4096)?;
    buffer.copy_from_host(512, &world.rank().get().to_le_bytes())?;
    let memory = world.allocate(world.group(), 64, DEFAULT_ALIGNMENT, "words")?;
    // SAFETY: both outlive their registrations, which are released on all ranks below.
    let (outside, inside) = unsafe {
        (
            world.register(world.group(), buffer.address().offset(512), 64, "buffer")?,
            world.register(world.group(), memory.address(), 64, "part of the heap")?,
        )
    };
    for peer in world.group().ranks() {
        let mut word = [0; 4];
        // SAFETY: registered with 64 bytes and not released yet.
        unsafe { world.device().read_memory(outside.peer_address(peer).unwrap(), &mut word) }?;
        assert_eq!(u32::from_le_bytes(word), peer.get());
        assert_eq!(inside.peer_address(peer), memory.peer_address(peer));
    }
    outside.release()?;
    inside.release()
}

#[test]
fn no_handle_is_made_or_opened_for_a_peer_of_the_same_process() {
    let software = SoftwareConfig::default();
    for bench in [
        Bench::with_wave(3, 4),
        Bench::with_wave(3, 4).with_mode(HeapMode::Flat),
        engines::bench(3, 4, HeapMode::Static, software),
        engines::bench(3, 4, HeapMode::Flat, software),
    ] {
        let runtime = altered(&bench, |api| {
            api.hipIpcGetMemHandle = get_handle;
            api.hipIpcOpenMemHandle = open_handle;
            api.hipMemExportToShareableHandle = Some(export);
            api.hipMemImportFromShareableHandle = Some(import);
        });
        all(spawn_threads(3, |rank| setup(&bench, &runtime, rank), exchange_every_pointer));
        assert_eq!(HANDLES.load(Ordering::Relaxed), 0);
    }
}

static ENABLED: Mutex<BTreeSet<(c_int, c_int)>> = Mutex::new(BTreeSet::new());
static REAL: Mutex<Option<Runtime>> = Mutex::new(None);

unsafe extern "C" fn enable(peer: c_int, flags: c_uint) -> HipError {
    let real = REAL.lock().unwrap().clone().unwrap();
    let mut current = -1;
    // SAFETY: the call writes one int.
    let code = unsafe { (real.api().hipGetDevice)(&raw mut current) };
    assert_eq!(code, HipError::SUCCESS);
    ENABLED.lock().unwrap().insert((current, peer));
    // SAFETY: the arguments are the caller's.
    unsafe { (real.api().hipDeviceEnablePeerAccess)(peer, flags) }
}

/// Ranks whose devices are not in their order: what is enabled are the devices, not the ranks' numbers. The second world finds access
/// enabled already, and nothing of that is left as the last error.
#[test]
fn access_is_enabled_between_the_devices_and_not_between_the_ranks_numbers() {
    const DEVICES: [u32; 3] = [4, 1, 3];
    let bench = Bench::new(5);
    *REAL.lock().unwrap() = Some(bench.runtime());
    let runtime = altered(&bench, |api| api.hipDeviceEnablePeerAccess = enable);
    for _ in 0..2 {
        ENABLED.lock().unwrap().clear();
        all(spawn_threads(
            3,
            |rank| setup(&bench, &runtime, GlobalRank::new(DEVICES[rank.index()])),
            |world: &World| {
                exchange(world, 1)?;
                // SAFETY: no arguments; reads and clears the thread's last error.
                let last = unsafe { (world.device().runtime().api().hipGetLastError)() };
                assert_eq!(last, HipError::SUCCESS);
                Ok::<_, Error>(())
            },
        ));
        let pairs = DEVICES.into_iter().flat_map(|one| DEVICES.map(|other| (one as c_int, other as c_int)));
        let expected: BTreeSet<_> = pairs.filter(|(one, other)| one != other).collect();
        assert_eq!(*ENABLED.lock().unwrap(), expected);
    }
}

/// An error of other code is still there when that code asks for it.
#[test]
fn an_unrelated_last_error_is_not_swallowed() {
    let machine = HostMachine::new(HostConfig { devices: 2, ..HostConfig::default() }).unwrap();
    let runtime = machine.runtime();
    let [one, other] = [0, 1].map(|ordinal| runtime.device(anabranch_hip::DeviceOrdinal(ordinal)).unwrap());
    let mut pointer = std::ptr::null_mut();
    // SAFETY: the call writes one pointer, or none.
    let failed = unsafe { (runtime.api().hipMalloc)(&raw mut pointer, 1 << 50) };
    assert_ne!(failed, HipError::SUCCESS);
    one.enable_peer_access(&other).unwrap();
    let _buffer = one.allocate(64).unwrap();
    // SAFETY: no arguments; reads and clears the thread's last error.
    assert_eq!(unsafe { (runtime.api().hipGetLastError)() }, failed);
    // Enabled already: that code alone is taken away.
    one.enable_peer_access(&other).unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { (runtime.api().hipGetLastError)() }, HipError::SUCCESS);
}
