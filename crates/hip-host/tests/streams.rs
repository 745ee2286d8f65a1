//! Streams, events, words, actors, and the null stream's order.
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
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::common::{Gpu, LIMIT, Word, config, ok, until, within};
use anabranch_hip::HipError;
use anabranch_hip::types::{HipStream, flags};
use anabranch_hip_host::{Actor, Step};

fn query(gpu: &Gpu, stream: HipStream) -> HipError {
    unsafe { (gpu.api().hipStreamQuery)(stream) }
}

#[test]
fn a_stream_keeps_its_order() {
    within(LIMIT, || {
        let gpu = Gpu::new(config());
        let word = gpu.malloc(8);
        let (stream, step) = (gpu.stream(), gpu.kernel("step_word"));
        ok(unsafe { (gpu.api().hipMemsetAsync)(word, 0, 8, stream) });
        let mut wanted = 0_u64;
        for index in 0..200 {
            gpu.launch(step, (2, 8, 0), stream, Word { word, value: index });
            wanted = wanted.wrapping_mul(index).wrapping_add(1);
        }
        ok(gpu.sync(stream));
        assert_eq!(gpu.read::<u64>(word, 1), [wanted]);
        ok(query(&gpu, stream));
    });
}

#[test]
fn events_order_streams_and_measure_time() {
    within(LIMIT, || {
        let gpu = Gpu::new(config());
        let words = gpu.malloc(16);
        let (go, word) = (words, words.wrapping_byte_add(8));
        let (first, second) = (gpu.stream(), gpu.stream());
        let (begin, middle, end, never) = (gpu.event(), gpu.event(), gpu.event(), gpu.event());
        let elapsed = |from, to| {
            let mut milliseconds = f32::NAN;
            let code = unsafe { (gpu.api().hipEventElapsedTime)(&raw mut milliseconds, from, to) };
            if code == HipError::SUCCESS { Ok(milliseconds) } else { Err(code) }
        };
        assert_eq!(elapsed(begin, end), Err(HipError::INVALID_HANDLE));
        assert_eq!(unsafe { (gpu.api().hipGetLastError)() }, HipError::INVALID_HANDLE);
        ok(gpu.wait_event(second, never));
        ok(gpu.record(begin, first));
        gpu.launch(gpu.kernel("wait_word"), (1, 32, 0), first, Word { word: go, value: 1 });
        gpu.launch(gpu.kernel("store_word"), (1, 1, 0), first, Word { word, value: 10 });
        ok(gpu.record(middle, first));
        ok(gpu.wait_event(second, middle));
        gpu.launch(gpu.kernel("step_word"), (1, 1, 0), second, Word { word, value: 3 });
        ok(gpu.record(end, second));
        let event_query = |event| unsafe { (gpu.api().hipEventQuery)(event) };
        assert_eq!(event_query(end), HipError::NOT_READY);
        assert_eq!(elapsed(begin, end), Err(HipError::NOT_READY));
        assert_eq!(query(&gpu, second), HipError::NOT_READY);
        // "Not ready" is an answer and no error.
        ok(unsafe { (gpu.api().hipGetLastError)() });
        // The stream's thread records `begin`: without this wait it may do so after the sleep has begun.
        ok(unsafe { (gpu.api().hipEventSynchronize)(begin) });
        std::thread::sleep(Duration::from_millis(20));
        Gpu::poke(go, 1);
        ok(unsafe { (gpu.api().hipEventSynchronize)(end) });
        ok(event_query(middle));
        assert_eq!(gpu.read::<u64>(word, 1), [31]);
        let (half, whole) = (elapsed(begin, middle).unwrap(), elapsed(begin, end).unwrap());
        // Elapsed times are milliseconds in an f32, which rounds 20 ms by up to 2 ns.
        assert!(half >= 20.0 - 1e-5 && whole >= half && whole < 30_000.0, "{half} {whole}");
        assert!(elapsed(end, begin).unwrap() <= 0.0);
        let mut untimed = null_mut();
        ok(unsafe { (gpu.api().hipEventCreateWithFlags)(&raw mut untimed, flags::EVENT_DISABLE_TIMING) });
        ok(gpu.record(untimed, first));
        ok(gpu.sync(first));
        assert_eq!(elapsed(begin, untimed), Err(HipError::INVALID_HANDLE));
    });
}

#[test]
fn words_are_waited_for_and_written() {
    within(LIMIT, || {
        let gpu = Gpu::new(config());
        let (waited, written) = (gpu.malloc(8), gpu.malloc(8));
        let api = gpu.api();
        // (condition, value, mask, a word that does not satisfy it, one that does)
        let cases = [
            (flags::WAIT_VALUE_GREATER_OR_EQUAL, 5, u64::MAX, 4, 6),
            (flags::WAIT_VALUE_GREATER_OR_EQUAL, 1, u64::MAX, u64::MAX, 1),
            (flags::WAIT_VALUE_EQUAL, 5, 0xff, 6, 0x105),
            (flags::WAIT_VALUE_AND, 0b100, u64::MAX, 0b011, 0b110),
            (flags::WAIT_VALUE_NOR, 1, u64::MAX, u64::MAX - 1, 0),
        ];
        for (number, (kind, value, mask, before, after)) in cases.into_iter().enumerate() {
            let stream = gpu.stream();
            let number = number as u64 + 1;
            Gpu::poke(waited, before);
            ok(unsafe { api.hipStreamWaitValue64.unwrap()(stream, waited, value, kind, mask) });
            ok(unsafe { api.hipStreamWriteValue64.unwrap()(stream, written, number, 0) });
            std::thread::sleep(Duration::from_millis(5));
            assert_eq!(query(&gpu, stream), HipError::NOT_READY, "case {number}");
            assert_eq!(Gpu::peek(written), number - 1);
            Gpu::poke(waited, after);
            ok(gpu.sync(stream));
            assert_eq!(Gpu::peek(written), number);
        }
        let mut local = 0_u64;
        let stream = gpu.stream();
        let write = |pointer| unsafe { api.hipStreamWriteValue64.unwrap()(stream, pointer, 1, 0) };
        assert_eq!(write((&raw mut local).cast()), HipError::INVALID_VALUE);
        assert_eq!(write(written.wrapping_byte_add(4)), HipError::INVALID_VALUE);
    });
}

#[test]
fn the_null_stream_comes_between() {
    within(LIMIT, || {
        let gpu = Gpu::new(config());
        let words = gpu.malloc(24);
        let (go, word, free_word) = (words, words.wrapping_byte_add(8), words.wrapping_byte_add(16));
        let mut blocking = null_mut();
        ok(unsafe { (gpu.api().hipStreamCreateWithFlags)(&raw mut blocking, 0) });
        let independent = gpu.stream();
        let (wait, step) = (gpu.kernel("wait_word"), gpu.kernel("step_word"));
        gpu.launch(wait, (1, 1, 0), blocking, Word { word: go, value: 1 });
        gpu.launch(step, (1, 1, 0), blocking, Word { word, value: 0 });
        gpu.launch(step, (1, 1, 0), null_mut(), Word { word, value: 5 });
        gpu.launch(step, (1, 1, 0), blocking, Word { word, value: 7 });
        gpu.launch(step, (1, 1, 0), independent, Word { word: free_word, value: 7 });
        ok(gpu.sync(independent));
        assert_eq!(query(&gpu, null_mut()), HipError::NOT_READY);
        assert_eq!(Gpu::peek(word), 0);
        Gpu::poke(go, 1);
        ok(unsafe { (gpu.api().hipDeviceSynchronize)() });
        assert_eq!(gpu.read::<u64>(word, 1), [(5 + 1) * 7 + 1]);
    });
}

#[test]
fn handles_that_are_none_are_refused() {
    within(LIMIT, || {
        let gpu = Gpu::new(config());
        let api = gpu.api();
        let bad: *mut c_void = 0x1230 as *mut c_void;
        let invalid = |code| assert_eq!(code, HipError::INVALID_HANDLE);
        invalid(gpu.sync(bad));
        invalid(query(&gpu, bad));
        let event = gpu.event();
        invalid(gpu.record(event, bad));
        let stream = gpu.stream();
        invalid(gpu.record(bad, stream));
        invalid(gpu.wait_event(stream, bad));
        invalid(gpu.wait_event(stream, stream));
        invalid(unsafe { (api.hipEventDestroy)(stream) });
        invalid(unsafe { (api.hipStreamDestroy)(event) });
        invalid(unsafe { (api.hipGraphLaunch)(bad, stream) });
        invalid(unsafe { (api.hipGraphDestroy)(bad) });
        invalid(unsafe { (api.hipModuleUnload)(bad) });
        ok(unsafe { (api.hipStreamDestroy)(stream) });
        invalid(unsafe { (api.hipStreamDestroy)(stream) });
        ok(unsafe { (api.hipEventDestroy)(event) });
        invalid(unsafe { (api.hipEventQuery)(event) });
        assert_eq!(unsafe { (api.hipSetDevice)(9) }, HipError::INVALID_DEVICE);
        assert_eq!(unsafe { (api.hipSetDevice)(-1) }, HipError::INVALID_DEVICE);
        assert_eq!(unsafe { (api.hipGetDeviceCount)(null_mut()) }, HipError::INVALID_VALUE);
        let name = unsafe { std::ffi::CStr::from_ptr((api.hipGetErrorName)(HipError::NOT_READY)) };
        assert_eq!(name.to_str().unwrap(), "hipErrorNotReady");
        // An event belongs to its device.
        let event = gpu.event();
        gpu.set_device(1);
        invalid(gpu.record(event, null_mut()));
    });
}

#[test]
fn calls_without_a_machine_are_refused() {
    within(LIMIT, || {
        let table = *Gpu::new(config()).api();
        // The machine is gone; this thread still points at it, another has never had one.
        let mut count = 0;
        assert_eq!(unsafe { (table.hipGetDeviceCount)(&raw mut count) }, HipError::DEINITIALIZED);
        let elsewhere = std::thread::spawn(move || {
            let mut count = 0;
            unsafe { (table.hipGetDeviceCount)(&raw mut count) }
        });
        assert_eq!(elsewhere.join().unwrap(), HipError::NOT_INITIALIZED);
    });
}

struct Doorbell {
    word: Arc<AtomicU32>,
    rung: Arc<AtomicU32>,
}

impl Actor for Doorbell {
    fn step(&mut self) -> Step {
        match self.word.swap(0, Ordering::AcqRel) {
            0 => Step::Waiting,
            u32::MAX => Step::Finished,
            value => {
                self.rung.fetch_add(value, Ordering::AcqRel);
                Step::Progress
            }
        }
    }
}

#[test]
fn actors_run_until_they_finish() {
    within(LIMIT, || {
        let gpu = Gpu::new(config());
        let (word, rung) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        gpu.machine.spawn_actor(Box::new(Doorbell { word: Arc::clone(&word), rung: Arc::clone(&rung) }));
        for round in 1..=3 {
            word.store(1, Ordering::Release);
            gpu.machine.wake();
            until("the actor hears", || rung.load(Ordering::Acquire) == round);
        }
        word.store(u32::MAX, Ordering::Release);
        until("the actor is dropped", || Arc::strong_count(&word) == 1);
    });
}
