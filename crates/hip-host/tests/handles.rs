//! The safe handles on the host machine: what they refuse before a call is made.
#![expect(
    clippy::disallowed_methods,
    reason = "tests of real threads and processes run on the machine's time"
)]

use core::ffi::c_int;
use std::num::NonZeroUsize;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_hip::{Binding, Device, DeviceOrdinal, Error, HipError, Runtime, RuntimeKind};
use anabranch_hip_host::{Actor, FaultKind, HostConfig, HostMachine, Step};

fn device() -> Device {
    let config = HostConfig { devices: 2, workers: NonZeroUsize::new(1), ..HostConfig::default() };
    HostMachine::new(config).unwrap().runtime().device(DeviceOrdinal(0)).unwrap()
}

fn refused<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::RuntimeMismatch { .. }))
}

#[test]
fn handles_of_two_machines_do_not_mix() {
    let (one, other) = (device(), device());
    assert_eq!(one.ordinal(), other.ordinal(), "only the runtimes differ");
    let stream = one.create_stream().unwrap();
    let (event, strange) = (one.create_timing_event().unwrap(), other.create_timing_event().unwrap());
    assert!(refused(&stream.wait_event(&strange)));
    assert!(refused(&event.microseconds_until(&strange)));
    assert!(refused(&one.can_access_peer(&other)));
    assert!(refused(&one.enable_peer_access(&other)));
    let bytes = one.physical_granularity().unwrap();
    let range = one.reserve(bytes, bytes).unwrap();
    let strange = Arc::new(other.create_physical(bytes).unwrap());
    let memory = Arc::new(one.create_physical(bytes).unwrap());
    assert!(refused(&range.map(0, &strange, std::slice::from_ref(&one))));
    assert!(refused(&range.map(0, &memory, &[one.clone(), other])));
    let mapping = range.map(0, &memory, std::slice::from_ref(&one)).unwrap();
    assert_eq!((mapping.address(), mapping.len()), (range.address(), bytes));
    // A place that is taken, and the same place when it is free again; the range goes before its mapping.
    assert!(range.map(0, &memory, std::slice::from_ref(&one)).is_err());
    drop(mapping);
    let mapping = range.map(0, &memory, std::slice::from_ref(&one)).unwrap();
    drop(range);
    // SAFETY: mapped with at least 8 bytes.
    unsafe { one.write_memory(mapping.address(), &[7; 8]) }.unwrap();
    assert!(one.has_virtual_memory().unwrap());
    let neighbour = one.runtime().device(DeviceOrdinal(1)).unwrap();
    assert!(one.can_access_peer(&neighbour).unwrap());
    stream.wait_event(&neighbour.create_event().unwrap()).unwrap();
}

#[test]
fn virtual_memory_of_amds_runtime_is_taken_from_a_version_on() {
    #[derive(Debug)]
    struct Host(Runtime);
    impl Binding for Host {
        fn bind(&self) {
            let _: &_ = self.0.api();
        }
    }
    unsafe extern "C" fn of_rocm_7_1(version: *mut c_int) -> HipError {
        // SAFETY: the caller's place.
        unsafe { version.write(70_152_802) };
        HipError::SUCCESS
    }
    unsafe extern "C" fn of_rocm_7_2(version: *mut c_int) -> HipError {
        // SAFETY: as above.
        unsafe { version.write(70_226_015) };
        HipError::SUCCESS
    }
    type Version = unsafe extern "C" fn(*mut c_int) -> HipError;
    let host = device().runtime().clone();
    for (kind, version, has) in [
        (RuntimeKind::Amd, of_rocm_7_1 as Version, false),
        (RuntimeKind::Amd, of_rocm_7_2, true),
        (RuntimeKind::Nvidia, of_rocm_7_1, true),
    ] {
        let mut api = *host.api();
        api.hipRuntimeGetVersion = version;
        let runtime = Runtime::new(kind, api, Some(Arc::new(Host(host.clone()))), "altered".to_owned());
        let device = runtime.device(DeviceOrdinal(0)).unwrap();
        assert_eq!(device.has_virtual_memory().unwrap(), has, "{kind}");
    }
}

struct Panicking;

impl Actor for Panicking {
    #[expect(clippy::panic, reason = "what the test is about")]
    fn step(&mut self) -> Step {
        panic!("an engine of this test")
    }
}

#[test]
fn a_panicking_engine_loses_the_devices_without_a_hang() {
    let config = HostConfig { devices: 2, workers: NonZeroUsize::new(1), ..HostConfig::default() };
    let machine = HostMachine::new(config).unwrap();
    let device = machine.runtime().device(DeviceOrdinal(1)).unwrap();
    let stream = device.create_stream().unwrap();
    stream.synchronize().unwrap();
    machine.spawn_actor(Box::new(Panicking));
    let until = Instant::now() + Duration::from_secs(20);
    while machine.last_fault().is_none_or(|fault| fault.device != 1) {
        assert!(Instant::now() < until, "the panic is told to nobody");
        std::thread::yield_now();
    }
    let fault = machine.last_fault().unwrap();
    assert_eq!((fault.kind, fault.kernel.as_str()), (FaultKind::Panicked, "(engine)"));
    let lost = stream.synchronize().unwrap_err();
    assert_eq!(lost.code(), Some(HipError::LAUNCH_FAILURE), "{lost}");
}

#[test]
fn an_imported_descriptor_stays_the_callers() {
    let device = device();
    let bytes = device.physical_granularity().unwrap();
    let exported = device.create_physical(bytes).unwrap();
    let descriptor = exported.export().unwrap();
    for _ in 0..2 {
        // SAFETY: the size is that of the exported memory.
        let imported = unsafe { device.import_physical(descriptor.as_fd(), bytes) }.unwrap();
        assert_eq!(imported.len(), bytes);
    }
}

#[test]
fn words_of_pinned_memory_are_checked_and_shared() {
    let buffer = device().allocate_host(24).unwrap();
    for offset in [17, 20, 24, usize::MAX - 7, usize::MAX] {
        assert!(matches!(buffer.atomic_u64(offset), Err(Error::OutOfRange { .. })), "{offset}");
    }
    assert!(matches!(buffer.atomic_u64(4), Err(Error::OutOfRange { .. })));
    buffer.write(8, &7_u64.to_ne_bytes()).unwrap();
    assert_eq!(buffer.atomic_u64(8).unwrap().load(std::sync::atomic::Ordering::Relaxed), 7);
    let mut back = [0; 8];
    buffer.read(8, &mut back).unwrap();
    assert_eq!(u64::from_ne_bytes(back), 7);
    assert!(buffer.read(17, &mut back).is_err() && buffer.write(usize::MAX, &back).is_err());
}
