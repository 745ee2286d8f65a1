//! Heaps in flat ranges: sizes, what cannot be had, failures in the middle, and the order in which all goes.
#![allow(non_snake_case, reason = "the names are HIP's")]

use core::ffi::{c_int, c_ulonglong, c_void};
use std::sync::{Arc, Mutex, OnceLock};

use crate::support::altered::{altered, on_rank, setup};
use crate::support::{Bench, all, check_flat, error_texts};
use anabranch_bootstrap::Rendezvous as _;
use anabranch_hip::types::{HipMemAllocationProperties, HipMemGenericAllocationHandle, device_attribute};
use anabranch_hip::{HipApi, HipError};
use anabranch_ranks::GlobalRank;
use anabranch_shmem::{DEFAULT_ALIGNMENT, Error, HeapMode, World, spawn_threads};
use anabranch_transport::{
    Audience, Operation, PeerInfo, PeerMemory, Reach, Refusal, Region, Scope, Support, Transport,
    TransportKind,
};

fn flat(ranks: u32) -> Bench {
    Bench::in_mode(ranks, HeapMode::Flat)
}

/// The error texts of a world that no rank could join; each rank has its own.
fn refused(bench: &Bench, change: impl Fn(GlobalRank, &mut HipApi)) -> Vec<String> {
    let make = |rank: GlobalRank| {
        let runtime = altered(bench, |api| change(rank, api));
        setup(bench, &runtime, rank)
    };
    error_texts(spawn_threads(3, make, |_: &World| Ok::<_, Error>(())))
}

#[test]
fn a_rank_without_virtual_memory_is_named_on_all() {
    unsafe extern "C" fn no(value: *mut c_int, attribute: c_int, _device: c_int) -> HipError {
        assert_eq!(attribute, device_attribute::VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
        // SAFETY: the caller's place.
        unsafe { value.write(0) };
        HipError::SUCCESS
    }
    unsafe extern "C" fn unknown(_value: *mut c_int, _attribute: c_int, _device: c_int) -> HipError {
        HipError::INVALID_VALUE
    }
    let bench = flat(3);
    let changes: [fn(&mut HipApi); 4] = [
        |api| api.hipMemCreate = None,
        |api| api.hipMemImportFromShareableHandle = None,
        |api| api.hipDeviceGetAttribute = no,
        |api| api.hipDeviceGetAttribute = unknown,
    ];
    for change in changes {
        let texts = refused(&bench, |rank, api| {
            if rank.get() == 1 {
                change(api);
            }
        });
        let own = "no memory for heap.bytes = 4194304 on device 1: heap.mode = flat cannot be had of the host runtime";
        assert_eq!(texts[1], own);
        for text in [&texts[0], &texts[2]] {
            assert!(
                text.starts_with(&format!("join failed on rank 1: {own}: device 1 has no virtual")),
                "{text}"
            );
        }
    }
}

#[test]
fn what_does_not_fit_is_named_on_all() {
    let mut bench = flat(3);
    bench.config.heap_bytes = 1 << 62;
    for text in refused(&bench, |_, _| ()) {
        assert!(text.contains("heap.mode = flat cannot be had"), "{text}");
    }
    bench.config.heap_bytes = 1 << 40;
    let texts = refused(&bench, |_, _| ());
    assert!(texts[0].contains("no memory for heap.bytes = 1099511627776 on device 0"), "{texts:?}");
    let cause = "1099511627776 bytes of uncached physical memory cannot be allocated: hipMemCreate: hipErrorOutOfMemory";
    assert!(texts[1].contains("allocate the heap failed on rank 0") && texts[1].contains(cause), "{texts:?}");
}

#[test]
fn modes_that_differ_are_named() {
    let bench = flat(3);
    let make = |rank: GlobalRank| {
        let mut setup = bench.setup(rank)?;
        if rank.get() == 2 {
            setup.config.heap_mode = HeapMode::Static;
        }
        Ok(setup)
    };
    for text in error_texts(spawn_threads(3, make, |_: &World| Ok::<_, Error>(()))) {
        assert_eq!(text, "join: heap.mode differs: rank 2 has static, rank 0 has flat");
    }
}

#[test]
fn the_stride_suits_devices_of_different_granularities() {
    static UNITS: [usize; 3] = [64 << 10, 192 << 10, 128 << 10];
    unsafe extern "C" fn granularity(
        bytes: *mut usize,
        properties: *const HipMemAllocationProperties,
        _option: c_int,
    ) -> HipError {
        // SAFETY: the caller's properties and place.
        unsafe { bytes.write(UNITS[(*properties).location.id as usize]) };
        HipError::SUCCESS
    }
    let bench = flat(3);
    let runtime = altered(&bench, |api| api.hipMemGetAllocationGranularity = Some(granularity));
    let strides = all(spawn_threads(
        3,
        |rank| setup(&bench, &runtime, rank),
        |world: &World| {
            check_flat(world);
            Ok::<_, Error>(world.flat_heap().unwrap().stride)
        },
    ));
    assert_eq!(strides, [(4_u64 << 20).next_multiple_of(384 << 10); 3]);
}

#[test]
fn parts_of_the_heap_can_be_registered() {
    for mode in HeapMode::ALL {
        let bench = Bench::in_mode(2, mode);
        all(spawn_threads(
            2,
            |rank| bench.setup(rank),
            |world: &World| {
                let mut memory = world.allocate(world.group(), 4096, DEFAULT_ALIGNMENT, "memory")?;
                memory.write(512, &[7 + world.rank().get() as u8])?;
                // SAFETY: the allocation outlives the registration.
                let part =
                    unsafe { world.register(world.group(), memory.address().offset(512), 64, "part") }?;
                for peer in world.group().ranks() {
                    let address = part.peer_address(peer).unwrap();
                    assert_eq!(address, memory.peer_address(peer).unwrap().offset(512));
                    let mut byte = [0];
                    // SAFETY: registered, and not released.
                    unsafe { world.device().read_memory(address, &mut byte) }?;
                    assert_eq!(u32::from(byte[0]), 7 + peer.get());
                }
                part.release()
            },
        ));
    }
}

/// What was called, and on which rank's thread, in order, on a runtime whose functions are these.
static CALLS: Mutex<Vec<(&'static str, String)>> = Mutex::new(Vec::new());
static ORIGINAL: OnceLock<HipApi> = OnceLock::new();

fn note(call: &'static str) {
    let thread = std::thread::current().name().unwrap_or_default().to_owned();
    CALLS.lock().unwrap().push((call, thread));
}

unsafe extern "C" fn counted_unmap(pointer: *mut c_void, bytes: usize) -> HipError {
    note("unmap");
    // SAFETY: the caller's arguments.
    unsafe { ORIGINAL.get().unwrap().hipMemUnmap.unwrap()(pointer, bytes) }
}

unsafe extern "C" fn counted_free(pointer: *mut c_void, bytes: usize) -> HipError {
    note("free");
    // SAFETY: the caller's arguments.
    unsafe { ORIGINAL.get().unwrap().hipMemAddressFree.unwrap()(pointer, bytes) }
}

unsafe extern "C" fn counted_release(handle: HipMemGenericAllocationHandle) -> HipError {
    note("release");
    // SAFETY: the caller's arguments.
    unsafe { ORIGINAL.get().unwrap().hipMemRelease.unwrap()(handle) }
}

unsafe extern "C" fn counted_map(
    pointer: *mut c_void,
    bytes: usize,
    offset: usize,
    handle: HipMemGenericAllocationHandle,
    flags: c_ulonglong,
) -> HipError {
    note("map");
    // SAFETY: the caller's arguments.
    unsafe { ORIGINAL.get().unwrap().hipMemMap.unwrap()(pointer, bytes, offset, handle, flags) }
}

#[test]
fn peers_are_unmapped_everywhere_before_anything_is_freed() {
    const RANKS: usize = 3;
    let bench = flat(RANKS as u32);
    ORIGINAL.set(*bench.runtime().api()).unwrap();
    let runtime = altered(&bench, |api| {
        api.hipMemMap = Some(counted_map);
        api.hipMemUnmap = Some(counted_unmap);
        api.hipMemAddressFree = Some(counted_free);
        api.hipMemRelease = Some(counted_release);
    });
    let device = bench.setup_on(0).unwrap().device;
    let (before, _) = device.memory_info().unwrap();
    let held = all(spawn_threads(
        RANKS as u32,
        |rank| setup(&bench, &runtime, rank),
        |_: &World| Ok::<_, Error>(before - device.memory_info()?.0),
    ));
    assert!(held.iter().all(|held| *held >= 4 << 20), "the heap counts as device memory: {held:?}");
    assert_eq!(device.memory_info().unwrap().0, before);
    let calls = CALLS.lock().unwrap();
    let threads =
        |call| calls.iter().filter(move |(other, _)| *other == call).map(|(_, thread)| thread.as_str());
    let count = |call| threads(call).count();
    assert_eq!((count("map"), count("unmap")), (RANKS * RANKS, RANKS * RANKS));
    assert_eq!((count("free"), count("release")), (RANKS, RANKS));
    // Ranks of one process take turns: each maps its own, then each maps its peers'.
    let (own, peers) =
        (["rank 0", "rank 1", "rank 2"], ["rank 0", "rank 0", "rank 1", "rank 1", "rank 2", "rank 2"]);
    assert_eq!(threads("map").collect::<Vec<_>>(), [&own[..], &peers].concat());
    assert_eq!(threads("unmap").take(peers.len()).collect::<Vec<_>>(), peers);
    let first_end = calls.iter().position(|(call, _)| ["free", "release"].contains(call)).unwrap();
    let unmapped = calls[..first_end].iter().filter(|(call, _)| *call == "unmap").count();
    // All slots of peers, and at least the first one of the rank's own.
    assert!(unmapped > RANKS * (RANKS - 1), "{calls:?}");
}

/// The original functions for the test below.
static MAPPING: OnceLock<HipApi> = OnceLock::new();

#[test]
fn a_slot_that_cannot_be_mapped_is_named_and_all_is_taken_back() {
    /// Fails on rank 1 when a peer's memory is to be readable, which is behind the mapping.
    unsafe extern "C" fn refuse(
        pointer: *mut c_void,
        bytes: usize,
        access: *const anabranch_hip::types::HipMemAccessDescriptor,
        count: usize,
    ) -> HipError {
        static OWN: Mutex<bool> = Mutex::new(false);
        if on_rank(1) && std::mem::replace(&mut *OWN.lock().unwrap(), true) {
            return HipError::NOT_SUPPORTED;
        }
        // SAFETY: the caller's arguments.
        unsafe { MAPPING.get().unwrap().hipMemSetAccess.unwrap()(pointer, bytes, access, count) }
    }
    let bench = flat(3);
    MAPPING.set(*bench.runtime().api()).unwrap();
    let runtime = altered(&bench, |api| api.hipMemSetAccess = Some(refuse));
    let devices: Vec<_> = (0..3).map(|device| bench.setup_on(device).unwrap().device).collect();
    let free = || devices.iter().map(|device| device.memory_info().unwrap().0).collect::<Vec<_>>();
    let before = free();
    let make = |rank| setup(&bench, &runtime, rank);
    let texts = error_texts(spawn_threads(3, make, |_: &World| Ok::<_, Error>(())));
    let own = &texts[1];
    for words in [
        "no transport reaches rank 0: p2p: ",
        "slot 0 of the flat range at 0x",
        "hipMemSetAccess: hipErrorNotSupported",
    ] {
        assert!(own.contains(words), "{own}");
    }
    for text in [&texts[0], &texts[2]] {
        assert_eq!(*text, format!("map the peers' heaps failed on rank 1: {own}"));
    }
    assert_eq!(free(), before, "every rank's memory is free again");
}

/// A user's own `p2p`.
#[derive(Debug)]
struct Brought;

impl Transport for Brought {
    fn kind(&self) -> TransportKind {
        TransportKind::P2p
    }

    fn support(&self, _: Operation, _: Scope) -> Support {
        Support::Unsupported
    }

    fn reaches(&self, peer: &PeerInfo) -> Result<Reach, Refusal> {
        Err(Refusal::OtherHost { local: peer.host.clone(), peer: peer.host.clone() })
    }

    fn export(&self, _: Region, _: Audience) -> Result<Vec<u8>, anabranch_transport::Error> {
        Ok(Vec::new())
    }

    fn open(
        &self,
        peer: &PeerInfo,
        _: &[u8],
        _: u64,
    ) -> Result<Box<dyn PeerMemory>, anabranch_transport::Error> {
        Err(anabranch_transport::Error::Offer { peer: peer.rank, kind: self.kind(), problem: "none" })
    }

    fn close(&mut self) {}
}

#[test]
fn a_brought_p2p_is_refused_with_flat_heaps() {
    let bench = flat(2);
    std::thread::scope(|scope| {
        for rendezvous in anabranch_bootstrap::threads(2) {
            let bench = &bench;
            scope.spawn(move || {
                let rank = rendezvous.rank();
                let setup = bench.setup(rank).unwrap();
                let rendezvous = Arc::new(rendezvous);
                let brought: Vec<Box<dyn Transport>> = match rank.get() {
                    1 => vec![Box::new(Brought)],
                    _ => Vec::new(),
                };
                let joined = World::join_with(setup.config, setup.device, setup.jit, rendezvous, brought);
                let text = joined.unwrap_err().to_string();
                assert!(
                    text.contains("heap.mode = flat: static, as flat ranges need the built-in transport p2p"),
                    "{text}"
                );
                assert_eq!(text.contains("failed on rank 1"), rank.get() != 1);
            });
        }
    });
}
