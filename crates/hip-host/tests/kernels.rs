//! Kernels: what lanes, waves, blocks and grids do, and what is refused.
#![expect(
    clippy::disallowed_methods,
    reason = "tests of real threads and processes run on the machine's time"
)]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests call the C table with locals of theirs, or with arguments that it must refuse"
)]

use std::ffi::c_void;
use std::ptr::null_mut;
use std::time::Instant;

use crate::common::{Gpu, LIMIT, PingPong, Word, config, image, ok, until, within};
use anabranch_hip::HipError;
use anabranch_hip_host::{FaultKind, HostConfig};

#[repr(C)]
#[derive(Clone, Copy)]
struct Copy_ {
    target: *mut c_void,
    source: *mut c_void,
    count: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Rounds {
    memory: *mut c_void,
    rounds: u32,
}

fn with_width(wave_width: u32) -> HostConfig {
    HostConfig { wave_width, ..config() }
}

#[test]
fn copies_with_any_grid() {
    within(LIMIT, || {
        let gpu = Gpu::new(config());
        let values: Vec<u32> = (0..10_007_u32).map(|value| value.wrapping_mul(2_654_435_761)).collect();
        let (source, target) = (gpu.malloc(values.len() * 4), gpu.malloc(values.len() * 4));
        let kernel = gpu.kernel("copy");
        gpu.write(source, &values);
        // The last grid is 25 times what the device keeps resident.
        for shape in [(1, 1, 0), (3, 7, 0), (4, 1024, 0), (100, 1024, 0)] {
            gpu.write(target, &vec![0_u32; values.len()]);
            gpu.launch(kernel, shape, null_mut(), Copy_ { target, source, count: values.len() as u32 });
            ok(gpu.sync(null_mut()));
            assert_eq!(gpu.read::<u32>(target, values.len()), values, "{shape:?}");
        }
    });
}

#[test]
fn block_barriers_hold_all_lanes() {
    within(LIMIT, || {
        for width in [1, 32] {
            let gpu = Gpu::new(with_width(width));
            let (blocks, threads, rounds) = (5_u32, 256_u32, 20_u32);
            let out = gpu.malloc((blocks * threads * 8) as usize);
            let kernel = gpu.kernel("block_sum");
            gpu.launch(kernel, (blocks, threads, threads * 8), null_mut(), Rounds { memory: out, rounds });
            ok(gpu.sync(null_mut()));
            let sums = gpu.read::<u64>(out, (blocks * threads) as usize);
            for (index, sum) in sums.iter().enumerate() {
                let block = index as u64 / u64::from(threads);
                let wanted: u64 = (0..u64::from(rounds))
                    .flat_map(|round| (0..u64::from(threads)).map(move |thread| thread + round + block))
                    .sum();
                assert_eq!(*sum, wanted, "width {width}, lane {index}");
            }
        }
    });
}

#[test]
fn local_memory_is_aligned_and_poisoned() {
    within(LIMIT, || {
        let gpu = Gpu::new(config());
        let out = gpu.malloc(16);
        gpu.launch(gpu.kernel("local_contents"), (1, 3, 64), null_mut(), Word { word: out, value: 0 });
        ok(gpu.sync(null_mut()));
        assert_eq!(gpu.read::<u64>(out, 2), [0xCBCB_CBCB_CBCB_CBCB, 0]);
    });
}

#[test]
fn all_lanes_of_a_full_device_spin_on_one_worker() {
    within(LIMIT, || {
        let gpu = Gpu::new(HostConfig { workers: 1.try_into().ok(), ..config() });
        let counter = gpu.malloc(8);
        let rounds = 3;
        let kernel = gpu.kernel("grid_barrier");
        gpu.launch(kernel, (16, 256, 0), null_mut(), Rounds { memory: counter, rounds });
        ok(gpu.sync(null_mut()));
        assert_eq!(gpu.read::<u64>(counter, 1), [4096 * u64::from(rounds)]);
    });
}

#[test]
fn waves_exchange_at_every_width() {
    within(LIMIT, || {
        for width in [1, 4, 32, 64] {
            let gpu = Gpu::new(with_width(width));
            let kernel = gpu.kernel("exchange_check");
            // 100 and 7 leave the last wave incomplete.
            for (blocks, threads) in [(3_u32, 256_u32), (2, 100), (2, 7), (1, 1)] {
                let errors = gpu.malloc((blocks * threads * 8) as usize);
                gpu.write(errors, &vec![u64::MAX; (blocks * threads) as usize]);
                gpu.launch(kernel, (blocks, threads, 0), null_mut(), Rounds { memory: errors, rounds: 9 });
                ok(gpu.sync(null_mut()));
                let found = gpu.read::<u64>(errors, (blocks * threads) as usize);
                assert!(found.iter().all(|count| *count == 0), "width {width}, {blocks} x {threads}");
            }
        }
    });
}

#[test]
fn divergence_is_reported_and_loses_the_device() {
    within(LIMIT, || {
        let is = |number: u32, kind: FaultKind| match (number, kind) {
            (0, FaultKind::BarrierSites { site, others }) => (site, others) == (100, 200),
            (1, FaultKind::BarrierAfterExit { site }) => site == 101,
            (2, FaultKind::WaveSites { site, others }) => (site, others) == (102, 202),
            (3, FaultKind::WaveAfterExit { site }) => site == 103,
            (4, FaultKind::WaveAtBarrier { wave_site, barrier_site }) => {
                (wave_site, barrier_site) == (204, 104)
            }
            _ => false,
        };
        for number in 0..5 {
            let gpu = Gpu::new(with_width(4));
            let stream = gpu.stream();
            gpu.launch(gpu.kernel("diverge"), (6, 64, 0), stream, number);
            assert_eq!(gpu.sync(stream), HipError::LAUNCH_FAILURE, "kind {number}");
            let fault = gpu.machine.last_fault().expect("a fault");
            assert!(is(number, fault.kind), "kind {number}: {fault}");
            assert_eq!((fault.device, fault.kernel.as_str()), (0, "diverge"));
            // The device is lost, the other one is not, and handles can still be given back.
            let mut pointer = null_mut();
            assert_eq!(unsafe { (gpu.api().hipMalloc)(&raw mut pointer, 64) }, HipError::LAUNCH_FAILURE);
            assert_eq!(unsafe { (gpu.api().hipDeviceSynchronize)() }, HipError::LAUNCH_FAILURE);
            ok(unsafe { (gpu.api().hipStreamDestroy)(stream) });
            gpu.set_device(1);
            let word = gpu.malloc(8);
            gpu.launch(gpu.kernel("store_word"), (1, 4, 0), null_mut(), Word { word, value: 5 });
            ok(gpu.sync(null_mut()));
            assert_eq!(gpu.read::<u64>(word, 1), [5]);
        }
    });
}

#[test]
fn a_fault_ends_kernels_and_streams_that_wait_on_the_same_device() {
    within(LIMIT, || {
        let gpu = Gpu::new(config());
        let (waiting, failing) = (gpu.stream(), gpu.stream());
        let word = gpu.malloc(8);
        let event = gpu.event();
        gpu.launch(gpu.kernel("wait_word"), (4, 64, 0), waiting, Word { word, value: 1 });
        ok(gpu.record(event, waiting));
        gpu.set_device(1);
        let other = gpu.stream();
        ok(gpu.wait_event(other, event));
        gpu.set_device(0);
        gpu.launch(gpu.kernel("diverge"), (1, 2, 0), failing, 0_u32);
        assert_eq!(gpu.sync(waiting), HipError::LAUNCH_FAILURE);
        assert_eq!(unsafe { (gpu.api().hipEventSynchronize)(event) }, HipError::LAUNCH_FAILURE);
        ok(gpu.sync(other));
    });
}

#[test]
fn stack_overflow_is_caught() {
    within(LIMIT, || {
        for name in ["use_stack", "use_stack_and_yield"] {
            let small = HostConfig { lane_stack_bytes: 16 << 10, ..config() };
            let gpu = Gpu::new(small);
            let word = gpu.malloc(8);
            let stream = gpu.stream();
            let kernel = gpu.kernel(name);
            gpu.launch(kernel, (1, 4, 0), stream, Word { word, value: 8 << 10 });
            ok(gpu.sync(stream));
            // Over the stack, within the red zone.
            gpu.launch(kernel, (1, 4, 0), stream, Word { word, value: 20 << 10 });
            assert_eq!(gpu.sync(stream), HipError::LAUNCH_FAILURE, "{name}");
            let fault = gpu.machine.last_fault().expect("a fault");
            assert_eq!(fault.kind, FaultKind::StackOverflow { bytes: 16 << 10 }, "{name}");
        }
    });
}

#[test]
fn kernels_wait_for_each_other_across_streams_and_devices() {
    within(LIMIT, || {
        for workers in [1, 2] {
            let gpu = Gpu::new(HostConfig { workers: workers.try_into().ok(), ..config() });
            let words = gpu.malloc(32);
            let at = |index: usize| words.wrapping_byte_add(index * 8);
            let (first, second) = (gpu.stream(), gpu.stream());
            let rounds = 500;
            let kernel = gpu.kernel("ping_pong");
            gpu.launch(kernel, (1, 1, 0), first, PingPong { mine: at(0), theirs: at(1), rounds });
            gpu.launch(kernel, (1, 1, 0), second, PingPong { mine: at(1), theirs: at(0), rounds });
            ok(gpu.sync(first));
            ok(gpu.sync(second));
            gpu.launch(kernel, (1, 1, 0), first, PingPong { mine: at(2), theirs: at(3), rounds });
            gpu.set_device(1);
            let third = gpu.stream();
            let there = gpu.kernel("ping_pong");
            gpu.launch(there, (1, 1, 0), third, PingPong { mine: at(3), theirs: at(2), rounds });
            ok(gpu.sync(third));
            ok(gpu.sync(first));
            assert_eq!(gpu.read::<u64>(words, 4), [rounds; 4]);
        }
    });
}

#[test]
fn many_devices_wait_for_one_another() {
    within(LIMIT, || {
        let devices = 24_u64;
        let gpu = Gpu::new(HostConfig { devices: devices as u32, ..config() });
        let mut count = 0;
        ok(unsafe { (gpu.api().hipGetDeviceCount)(&raw mut count) });
        assert_eq!(count, 24);
        let counter = gpu.malloc(8);
        let mut streams = Vec::new();
        for device in 0..devices {
            gpu.set_device(device as i32);
            let stream = gpu.stream();
            // One of 24 kernels adds; all wait for the one behind.
            gpu.launch(
                gpu.kernel("wait_word"),
                (2, 32, 0),
                stream,
                Word { word: counter, value: devices - device },
            );
            gpu.launch(gpu.kernel("step_word"), (1, 1, 0), stream, Word { word: counter, value: 1 });
            streams.push(stream);
        }
        Gpu::poke(counter, 1);
        for stream in streams {
            ok(gpu.sync(stream));
        }
        assert_eq!(Gpu::peek(counter), devices + 1);
    });
}

#[test]
fn machines_of_different_widths_share_a_process() {
    within(LIMIT, || {
        let machines: Vec<_> = [1, 4, 64].into_iter().map(|width| Gpu::new(with_width(width))).collect();
        // Interleaved on one thread: each call is for the machine that was asked.
        let words: Vec<_> = machines.iter().map(|gpu| gpu.malloc(8)).collect();
        for (gpu, word) in machines.iter().zip(&words) {
            gpu.set_device(1);
            gpu.launch(
                gpu.kernel("store_word"),
                (1, 64, 0),
                null_mut(),
                Word { word: *word, value: u64::from(gpu.width) },
            );
        }
        for (gpu, word) in machines.iter().zip(&words) {
            let mut device = -1;
            ok(unsafe { (gpu.api().hipGetDevice)(&raw mut device) });
            assert_eq!(device, 1);
            ok(gpu.sync(null_mut()));
            assert_eq!(gpu.read::<u64>(*word, 1), [u64::from(gpu.width)]);
        }
        // A stream of one machine is unknown to another.
        assert_eq!(machines[1].sync(machines[0].stream()), HipError::INVALID_HANDLE);
    });
}

#[test]
fn bad_launches_are_refused() {
    within(LIMIT, || {
        let gpu = Gpu::new(config());
        let word = Word { word: gpu.malloc(8), value: 0 };
        let kernel = gpu.kernel("store_word");
        let launch = |shape| gpu.try_launch(kernel, shape, null_mut(), word);
        assert_eq!(launch((0, 1, 0)), HipError::INVALID_CONFIGURATION);
        assert_eq!(launch((1, 0, 0)), HipError::INVALID_CONFIGURATION);
        assert_eq!(launch((1, 1025, 0)), HipError::INVALID_CONFIGURATION);
        assert_eq!(launch((1, 1, 64 * 1024 + 1)), HipError::LAUNCH_OUT_OF_RESOURCES);
        ok(launch((1, 1024, 64 * 1024)));
        let narrow = gpu.kernel("narrow");
        assert_eq!(gpu.try_launch(narrow, (1, 33, 0), null_mut(), word), HipError::INVALID_CONFIGURATION);
        let mut parameters = [(&raw const word).cast_mut().cast::<c_void>()];
        let code = unsafe {
            (gpu.api().hipModuleLaunchKernel)(
                kernel,
                1,
                2,
                1,
                1,
                1,
                1,
                0,
                null_mut(),
                parameters.as_mut_ptr(),
                null_mut(),
            )
        };
        assert_eq!(code, HipError::INVALID_CONFIGURATION);
        gpu.set_device(1);
        let elsewhere = gpu.stream();
        assert_eq!(gpu.try_launch(kernel, (1, 1, 0), elsewhere, word), HipError::INVALID_HANDLE);
        assert_eq!(gpu.try_launch(elsewhere, (1, 1, 0), elsewhere, word), HipError::INVALID_HANDLE);
    });
}

#[test]
fn bad_modules_are_refused() {
    within(LIMIT, || {
        let gpu = Gpu::new(config());
        let mut module = null_mut();
        let mut load =
            |bytes: &[u8]| unsafe { (gpu.api().hipModuleLoadData)(&raw mut module, bytes.as_ptr().cast()) };
        assert_eq!(load(&[7; 128]), HipError::INVALID_IMAGE);
        let mut other_processor = image(1)[..4096].to_vec();
        other_processor[18] = 243;
        assert_eq!(load(&other_processor), HipError::NO_BINARY_FOR_GPU);
        let mut broken = image(1);
        broken[0x40..0x200].fill(0xee);
        assert_eq!(load(&broken), HipError::SHARED_OBJECT_INIT_FAILED);
        let module = gpu.module();
        assert_eq!(gpu.function(module, "absent"), Err(HipError::NOT_FOUND));
        assert_eq!(gpu.function(module, "foreign"), Err(HipError::INVALID_IMAGE));
        let wide = Gpu::new(with_width(32));
        let mut loaded = null_mut();
        let image = image(4);
        ok(unsafe { (wide.api().hipModuleLoadData)(&raw mut loaded, image.as_ptr().cast()) });
        assert_eq!(wide.function(loaded, "copy"), Err(HipError::NO_BINARY_FOR_GPU));
    });
}

#[test]
fn unloading_waits_for_no_launch_and_breaks_none() {
    within(LIMIT, || {
        let gpu = Gpu::new(config());
        let words = gpu.malloc(16);
        let after = words.wrapping_byte_add(8);
        let stream = gpu.stream();
        let module = gpu.module();
        let wait = gpu.function(module, "wait_word").unwrap();
        let store = gpu.function(module, "store_word").unwrap();
        gpu.launch(wait, (2, 64, 0), stream, Word { word: words, value: 1 });
        gpu.launch(store, (1, 1, 0), stream, Word { word: after, value: 9 });
        ok(unsafe { (gpu.api().hipModuleUnload)(module) });
        let late = gpu.try_launch(store, (1, 1, 0), stream, Word { word: after, value: 8 });
        assert_eq!(late, HipError::INVALID_HANDLE);
        assert_eq!(unsafe { (gpu.api().hipModuleUnload)(module) }, HipError::INVALID_HANDLE);
        Gpu::poke(words, 1);
        ok(gpu.sync(stream));
        assert_eq!(gpu.read::<u64>(after, 1), [9]);
        // The loader must not take a later image for the one before.
        for _ in 0..20 {
            let module = gpu.module();
            gpu.function(module, "copy").unwrap();
            ok(unsafe { (gpu.api().hipModuleUnload)(module) });
        }
    });
}

#[test]
fn a_grid_of_the_reported_occupancy_is_resident() {
    within(LIMIT, || {
        let gpu = Gpu::new(config());
        let kernel = gpu.kernel("grid_barrier");
        for threads in [96_u32, 768, 1024] {
            let mut blocks = 0;
            ok(unsafe {
                (gpu.api().hipModuleOccupancyMaxActiveBlocksPerMultiprocessor)(
                    &raw mut blocks,
                    kernel,
                    threads as i32,
                    1024,
                )
            });
            let device = gpu.runtime.device(anabranch_hip::DeviceOrdinal(0)).unwrap();
            assert_eq!(device.arch(), "host:wave1");
            let grid = blocks as u32 * device.multiprocessors();
            let counter = gpu.malloc(8);
            gpu.launch(kernel, (grid, threads, 1024), null_mut(), Rounds { memory: counter, rounds: 2 });
            ok(gpu.sync(null_mut()));
            assert_eq!(gpu.read::<u64>(counter, 1), [u64::from(grid * threads * 2)]);
        }
    });
}

#[test]
fn the_clock_runs_and_resting_workers_wake() {
    within(LIMIT, || {
        let gpu = Gpu::new(config());
        let words = gpu.malloc(16);
        let clock = gpu.kernel("clock_word");
        let mut last = 0;
        for _ in 0..5 {
            gpu.launch(clock, (1, 1, 0), null_mut(), Word { word: words, value: 0 });
            ok(gpu.sync(null_mut()));
            let now = gpu.read::<u64>(words, 1)[0];
            assert!(now > last);
            last = now;
        }
        // A kernel that waits long enough for its worker to rest still sees the word soon.
        let word = words.wrapping_byte_add(8);
        let stream = gpu.stream();
        gpu.launch(gpu.kernel("wait_word"), (1, 64, 0), stream, Word { word, value: 3 });
        let start = Instant::now();
        until("the worker rests", || start.elapsed().as_millis() > 50);
        assert_eq!(unsafe { (gpu.api().hipStreamQuery)(stream) }, HipError::NOT_READY);
        Gpu::poke(word, 3);
        ok(gpu.sync(stream));
    });
}
