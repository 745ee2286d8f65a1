//! A machine leaves nothing behind. Alone in its process, as it counts the process's files and threads.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests call the C table with locals of theirs, or with arguments that it must refuse"
)]

use std::ptr::null_mut;

use crate::common::{Gpu, LIMIT, Word, config, ok, until, within};
use anabranch_hip_host::HostConfig;
use anabranch_testkit::{Resources, is_alone, test_path};

/// Uses a machine and drops it, with work still running in it every other time.
fn cycle(number: u32) {
    let wave_width = [1, 4, 32, 64][number as usize % 4];
    let gpu = Gpu::new(HostConfig { devices: 3, wave_width, ..config() });
    gpu.set_device(2);
    let words = gpu.malloc(16);
    let mut pinned = null_mut();
    ok(unsafe { (gpu.api().hipHostMalloc)(&raw mut pinned, 100, 0) });
    let mut range = null_mut();
    ok(unsafe { gpu.api().hipMemAddressReserve.unwrap()(&raw mut range, 1 << 20, 0, null_mut(), 0) });
    let (stream, other) = (gpu.stream(), gpu.stream());
    let event = gpu.event();
    let module = gpu.module();
    let store = gpu.function(module, "store_word").unwrap();
    gpu.launch(store, (2, 65, 64), stream, Word { word: words, value: 1 });
    ok(gpu.record(event, stream));
    ok(gpu.wait_event(other, event));
    ok(gpu.sync(stream));
    assert_eq!(gpu.read::<u64>(words, 1), [1]);
    if number.is_multiple_of(2) {
        // Never satisfied: 4000 lanes wait, blocks queue up behind them, and a stream behind those.
        let wait = gpu.function(module, "wait_word").unwrap();
        gpu.launch(wait, (16, 500, 64), stream, Word { word: words, value: 2 });
        ok(gpu.record(event, stream));
        ok(gpu.wait_event(other, event));
        gpu.launch(store, (1, 1, 0), other, Word { word: words, value: 1 });
        gpu.free(words);
    }
}

#[test]
fn a_hundred_machines_leave_nothing() {
    if !is_alone(test_path!("a_hundred_machines_leave_nothing")) {
        return;
    }
    within(LIMIT, || {
        for number in 0..8 {
            cycle(number);
        }
        let before = Resources::now().unwrap();
        for number in 0..100 {
            cycle(number);
        }
        until("threads are gone", || Resources::now().unwrap().threads <= 3);
        let after = Resources::now().unwrap();
        assert_eq!(after.files, before.files, "files");
        // The allocator of the C library may keep a few more ranges; a leak would be a hundred.
        assert!(
            after.mappings <= before.mappings + 20,
            "mappings: {} and then {}",
            before.mappings,
            after.mappings
        );
    });
}
