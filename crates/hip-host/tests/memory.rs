//! Memory: allocations, limits, addresses, peers, copies, virtual memory, and what is refused.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests call the C table with locals of theirs, or with arguments that it must refuse"
)]

use std::ffi::c_void;
use std::ptr::null_mut;

use crate::common::{Gpu, LIMIT, Word, config, ok, until, within};
use anabranch_hip::types::{
    HipIpcMemHandle, HipMemAccessDescriptor, HipMemAllocationProperties, HipMemLocation,
    HipPointerAttributes, flags, memcpy_kind, memory_type,
};
use anabranch_hip::{DeviceOrdinal, HipError};
use anabranch_hip_host::{Error, HostConfig, HostMachine};

#[test]
fn configurations_are_checked() {
    let bad = |change: fn(&mut HostConfig)| {
        let mut config = config();
        change(&mut config);
        HostMachine::new(config).err().map(|error| error.to_string())
    };
    assert_eq!(bad(|c| c.wave_width = 16).unwrap(), "wave width 16 is not one of 1, 4, 32, 64");
    assert_eq!(bad(|c| c.devices = 0).unwrap(), "devices is 0, outside 1..=1024");
    assert!(bad(|c| c.lanes_per_multiprocessor = 512).unwrap().contains("outside 1024..=65536"));
    let config = HostConfig { lane_stack_bytes: 1024, ..config() };
    assert!(matches!(HostMachine::new(config), Err(Error::Range { field: "lane_stack_bytes", .. })));
}

#[test]
fn the_limit_holds_and_memory_comes_back() {
    within(LIMIT, || {
        let gpu = Gpu::new(HostConfig { memory_bytes: 16 << 20, ..config() });
        let try_malloc = |bytes: usize| {
            let mut pointer = null_mut();
            (unsafe { (gpu.api().hipMalloc)(&raw mut pointer, bytes) }, pointer)
        };
        for _ in 0..20 {
            let (code, first) = try_malloc(10 << 20);
            ok(code);
            assert_eq!(try_malloc(7 << 20).0, HipError::OUT_OF_MEMORY);
            assert_eq!(try_malloc(usize::MAX).0, HipError::OUT_OF_MEMORY);
            let (mut free, mut total) = (0, 0);
            ok(unsafe { (gpu.api().hipMemGetInfo)(&raw mut free, &raw mut total) });
            assert_eq!((free, total), (6 << 20, 16 << 20));
            gpu.free(first);
        }
        let (code, nothing) = try_malloc(0);
        ok(code);
        assert!(nothing.is_null());
        gpu.free(nothing);
        gpu.set_device(1);
        let (code, other) = try_malloc(16 << 20);
        ok(code);
        gpu.free(other);
    });
}

#[test]
fn addresses_are_known_until_freed() {
    within(LIMIT, || {
        let gpu = Gpu::new(config());
        gpu.set_device(1);
        let memory = gpu.malloc(1000);
        let inside = memory.wrapping_byte_add(999);
        let (mut base, mut bytes) = (null_mut(), 0);
        let range = |base: &mut *mut c_void, bytes: &mut usize, pointer| unsafe {
            (gpu.api().hipMemGetAddressRange)(&raw mut *base, &raw mut *bytes, pointer)
        };
        ok(range(&mut base, &mut bytes, inside));
        assert_eq!((base, bytes), (memory, 1000));
        assert_eq!(range(&mut base, &mut bytes, memory.wrapping_byte_add(1000)), HipError::NOT_FOUND);
        let attributes = |pointer: *mut c_void| {
            let mut found = HipPointerAttributes::default();
            ok(unsafe { (gpu.api().hipPointerGetAttributes)(&raw mut found, pointer) });
            (found.memory_type, found.device)
        };
        assert_eq!(attributes(inside), (memory_type::DEVICE, 1));
        let mut local = 0_u64;
        assert_eq!(attributes((&raw mut local).cast()), (memory_type::UNREGISTERED, -1));
        let free = |pointer| unsafe { (gpu.api().hipFree)(pointer) };
        assert_eq!(free(inside), HipError::INVALID_VALUE);
        assert_eq!(free((&raw mut local).cast()), HipError::INVALID_VALUE);
        assert_eq!(unsafe { (gpu.api().hipHostFree)(memory) }, HipError::INVALID_VALUE);
        ok(free(memory));
        assert_eq!(free(memory), HipError::INVALID_VALUE);
        assert_eq!(range(&mut base, &mut bytes, memory), HipError::NOT_FOUND);
        assert_eq!(unsafe { (gpu.api().hipGetLastError)() }, HipError::NOT_FOUND);
        ok(unsafe { (gpu.api().hipGetLastError)() });
    });
}

#[test]
fn memory_freed_under_a_running_kernel_stays_until_the_kernel_ends() {
    within(LIMIT, || {
        let gpu = Gpu::new(config());
        let (go, word) = (gpu.malloc(8), gpu.malloc(8));
        let stream = gpu.stream();
        gpu.launch(gpu.kernel("wait_word"), (1, 1, 0), stream, Word { word: go, value: 1 });
        gpu.launch(gpu.kernel("store_word"), (1, 1, 0), stream, Word { word, value: 2 });
        let used = || {
            let (mut free, mut total) = (0, 0);
            ok(unsafe { (gpu.api().hipMemGetInfo)(&raw mut free, &raw mut total) });
            total - free
        };
        gpu.free(word);
        assert_eq!(used(), 2 * 4096);
        Gpu::poke(go, 1);
        ok(gpu.sync(stream));
        until("the memory is given back", || used() == 4096);
    });
}

#[test]
fn host_memory_has_one_address() {
    within(LIMIT, || {
        let gpu = Gpu::new(config());
        let mut pinned = null_mut();
        ok(unsafe { (gpu.api().hipHostMalloc)(&raw mut pinned, 4096, flags::HOST_MALLOC_MAPPED) });
        let mut there = null_mut();
        ok(unsafe { (gpu.api().hipHostGetDevicePointer)(&raw mut there, pinned, 0) });
        assert_eq!(there, pinned);
        gpu.launch(gpu.kernel("store_word"), (1, 1, 0), null_mut(), Word { word: there, value: 77 });
        ok(gpu.sync(null_mut()));
        assert_eq!(Gpu::peek(pinned), 77);
        let mut own = vec![0_u64; 64];
        let own_pointer: *mut c_void = own.as_mut_ptr().cast();
        let device_pointer = |there: &mut *mut c_void| unsafe {
            (gpu.api().hipHostGetDevicePointer)(&raw mut *there, own_pointer, 0)
        };
        assert_eq!(device_pointer(&mut there), HipError::INVALID_VALUE);
        let register =
            |bytes| unsafe { (gpu.api().hipHostRegister)(own_pointer, bytes, flags::HOST_REGISTER_MAPPED) };
        ok(register(512));
        assert_eq!(register(8), HipError::HOST_MEMORY_ALREADY_REGISTERED);
        ok(device_pointer(&mut there));
        assert_eq!(there, own_pointer);
        let unregister = || unsafe { (gpu.api().hipHostUnregister)(own_pointer) };
        ok(unregister());
        assert_eq!(unregister(), HipError::HOST_MEMORY_NOT_REGISTERED);
        ok(unsafe { (gpu.api().hipHostFree)(pinned) });
        assert_eq!(unsafe { (gpu.api().hipHostFree)(pinned) }, HipError::INVALID_VALUE);
    });
}

#[test]
fn peer_access_is_a_state_with_codes() {
    within(LIMIT, || {
        let gpu = Gpu::new(config());
        let enable = |peer| unsafe { (gpu.api().hipDeviceEnablePeerAccess)(peer, 0) };
        assert_eq!(enable(0), HipError::INVALID_DEVICE);
        assert_eq!(enable(2), HipError::INVALID_DEVICE);
        ok(enable(1));
        assert_eq!(enable(1), HipError::PEER_ACCESS_ALREADY_ENABLED);
        gpu.set_device(1);
        ok(enable(0));
        gpu.set_device(0);
        let can = |device, peer| {
            let mut can = -1;
            ok(unsafe { (gpu.api().hipDeviceCanAccessPeer)(&raw mut can, device, peer) });
            can
        };
        assert_eq!((can(0, 1), can(1, 0), can(1, 1)), (1, 1, 0));
        // The safe handles see the same.
        let (first, second) =
            (gpu.runtime.device(DeviceOrdinal(0)).unwrap(), gpu.runtime.device(DeviceOrdinal(1)).unwrap());
        first.enable_peer_access(&second).unwrap();
        first.enable_peer_access(&second).unwrap();
    });
}

#[test]
fn copies_are_checked_and_cross_devices() {
    within(LIMIT, || {
        let gpu = Gpu::new(config());
        let here = gpu.malloc(64);
        gpu.set_device(1);
        let there = gpu.malloc(64);
        let mut host = [7_u64; 8];
        let host_pointer: *mut c_void = host.as_mut_ptr().cast();
        let copy = |target, source: *mut c_void, bytes, kind| unsafe {
            (gpu.api().hipMemcpy)(target, source.cast_const(), bytes, kind)
        };
        ok(copy(here, host_pointer, 64, memcpy_kind::HOST_TO_DEVICE));
        ok(copy(there, here, 64, memcpy_kind::DEVICE_TO_DEVICE));
        assert_eq!(gpu.read::<u64>(there, 8), [7; 8]);
        assert_eq!(copy(here, host_pointer, 65, memcpy_kind::HOST_TO_DEVICE), HipError::INVALID_VALUE);
        assert_eq!(copy(here, host_pointer, 64, memcpy_kind::DEVICE_TO_DEVICE), HipError::INVALID_VALUE);
        assert_eq!(copy(host_pointer, host_pointer, 8, memcpy_kind::DEVICE_TO_HOST), HipError::INVALID_VALUE);
        assert_eq!(copy(null_mut(), here, 8, memcpy_kind::DEFAULT), HipError::INVALID_VALUE);
        assert_eq!(copy(here, there, 8, 9), HipError::INVALID_MEMCPY_DIRECTION);
        ok(copy(null_mut(), null_mut(), 0, memcpy_kind::DEFAULT));
        ok(unsafe { (gpu.api().hipMemset)(there, 0x1ff, 16) });
        assert_eq!(gpu.read::<u64>(there, 3), [u64::MAX, u64::MAX, 7]);
        assert_eq!(unsafe { (gpu.api().hipMemset)(host_pointer, 0, 8) }, HipError::INVALID_VALUE);
        // Large and asynchronous: in pieces, with a pageable source that changes afterwards.
        let count = 700_001;
        let large = gpu.malloc(count * 8);
        let mut values: Vec<u64> = (0..count as u64).collect();
        let stream = gpu.stream();
        ok(unsafe {
            let bytes = count * 8;
            (gpu.api().hipMemcpyAsync)(
                large,
                values.as_ptr().cast(),
                bytes,
                memcpy_kind::HOST_TO_DEVICE,
                stream,
            )
        });
        values.fill(0);
        // One word up: source and target overlap.
        ok(unsafe {
            let (target, bytes) = (large.wrapping_byte_add(8), (count - 1) * 8);
            (gpu.api().hipMemcpyAsync)(target, large, bytes, memcpy_kind::DEVICE_TO_DEVICE, stream)
        });
        ok(unsafe {
            let bytes = count * 8;
            (gpu.api().hipMemcpyAsync)(
                values.as_mut_ptr().cast(),
                large,
                bytes,
                memcpy_kind::DEVICE_TO_HOST,
                stream,
            )
        });
        // A pageable target holds the data when the call returns.
        assert!(values.iter().enumerate().all(|(index, value)| *value == index.saturating_sub(1) as u64));
    });
}

#[test]
fn a_process_cannot_open_its_own_handle() {
    within(LIMIT, || {
        let gpu = Gpu::new(config());
        let memory = gpu.malloc(100_000);
        let handle_of = |pointer| {
            let mut handle = HipIpcMemHandle { reserved: [0; 64] };
            let code = unsafe { (gpu.api().hipIpcGetMemHandle)(&raw mut handle, pointer) };
            if code == HipError::SUCCESS { Ok(handle) } else { Err(code) }
        };
        let handle = handle_of(memory).unwrap();
        assert_eq!(handle_of(memory.wrapping_byte_add(4097)).unwrap(), handle);
        let mut local = 0_u64;
        assert_eq!(handle_of((&raw mut local).cast()), Err(HipError::INVALID_VALUE));
        // Neither on this machine nor on another one of the process.
        for machine in [gpu, Gpu::new(config())] {
            let open = |handle| {
                let mut pointer = null_mut();
                unsafe { (machine.api().hipIpcOpenMemHandle)(&raw mut pointer, handle, 1) }
            };
            assert_eq!(open(handle), HipError::INVALID_CONTEXT);
            assert_eq!(open(HipIpcMemHandle { reserved: [0; 64] }), HipError::INVALID_HANDLE);
            let mut flipped = handle;
            flipped.reserved[20] ^= 1;
            assert_eq!(open(flipped), HipError::INVALID_HANDLE);
            let close = unsafe { (machine.api().hipIpcCloseMemHandle)(memory) };
            assert_eq!(close, HipError::INVALID_VALUE);
        }
    });
}

#[test]
fn physical_memory_is_mapped_where_it_was_reserved() {
    within(LIMIT, || {
        let gpu = Gpu::new(HostConfig { memory_bytes: 1 << 20, ..config() });
        let api = gpu.api();
        let properties = HipMemAllocationProperties {
            kind: flags::MEM_ALLOCATION_TYPE_PINNED,
            requested_handle_type: flags::MEM_HANDLE_TYPE_POSIX_FD,
            location: HipMemLocation { kind: flags::MEM_LOCATION_TYPE_DEVICE, id: 1 },
            win32_handle_meta_data: null_mut(),
            compression_type: 0,
            gpu_direct_rdma_capable: 0,
            usage: 0,
        };
        let mut unit = 0;
        ok(unsafe { api.hipMemGetAllocationGranularity.unwrap()(&raw mut unit, &raw const properties, 0) });
        let create = |bytes| {
            let mut handle = null_mut();
            (unsafe { api.hipMemCreate.unwrap()(&raw mut handle, bytes, &raw const properties, 0) }, handle)
        };
        assert_eq!(create(unit + 1).0, HipError::INVALID_VALUE);
        assert_eq!(create(2 << 20).0, HipError::OUT_OF_MEMORY);
        let (code, memory) = create(unit);
        ok(code);
        let mut range = null_mut();
        ok(unsafe { api.hipMemAddressReserve.unwrap()(&raw mut range, unit * 4, unit * 8, null_mut(), 0) });
        assert_eq!(range as usize % (unit * 8), 0);
        let map = |index: usize, handle| unsafe {
            api.hipMemMap.unwrap()(range.wrapping_byte_add(unit * index), unit, 0, handle, 0)
        };
        let mut descriptor = -1_i32;
        ok(unsafe { api.hipMemExportToShareableHandle.unwrap()((&raw mut descriptor).cast(), memory, 1, 0) });
        let mut again = null_mut();
        let shareable = descriptor as usize as *mut c_void;
        ok(unsafe { api.hipMemImportFromShareableHandle.unwrap()(&raw mut again, shareable, 1) });
        drop(unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(descriptor) });
        // The same memory twice, side by side.
        ok(map(0, memory));
        ok(map(1, again));
        assert_eq!(map(1, memory), HipError::INVALID_VALUE);
        assert_eq!(map(4, memory), HipError::INVALID_VALUE);
        let fill = |bytes| unsafe { (api.hipMemset)(range, 3, bytes) };
        assert_eq!(fill(8), HipError::INVALID_VALUE, "no access yet");
        let access =
            HipMemAccessDescriptor { location: properties.location, flags: flags::MEM_ACCESS_READ_WRITE };
        ok(unsafe { api.hipMemSetAccess.unwrap()(range, unit * 2, &raw const access, 1) });
        ok(fill(unit * 2));
        assert_eq!(fill(unit * 2 + 1), HipError::INVALID_VALUE);
        let second = range.wrapping_byte_add(unit);
        ok(unsafe { (api.hipMemset)(range, 9, 1) });
        assert_eq!(gpu.read::<u8>(second, 2), [9, 3]);
        // Released memory stays while it is mapped.
        ok(unsafe { api.hipMemRelease.unwrap()(memory) });
        assert_eq!(create(1 << 20).0, HipError::OUT_OF_MEMORY);
        let free = || unsafe { api.hipMemAddressFree.unwrap()(range, unit * 4) };
        assert_eq!(free(), HipError::INVALID_VALUE, "still mapped");
        ok(unsafe { api.hipMemUnmap.unwrap()(range, unit * 2) });
        ok(unsafe { api.hipMemRelease.unwrap()(again) });
        assert_eq!(unsafe { api.hipMemRelease.unwrap()(again) }, HipError::INVALID_HANDLE);
        ok(free());
        let (code, all) = create(1 << 20);
        ok(code);
        ok(unsafe { api.hipMemRelease.unwrap()(all) });
    });
}
