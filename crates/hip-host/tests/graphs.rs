//! Capture, graphs, and what a capture refuses.
#![allow(
    clippy::undocumented_unsafe_blocks,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests call the C table with locals of theirs, or with arguments that it must refuse"
)]

mod common;

use std::ptr::null_mut;

use anabranch_hip::HipError;
use anabranch_hip::types::{HipGraph, HipGraphExec, HipStream, flags};
use common::{Gpu, LIMIT, PingPong, Word, config, ok, within};

fn begin(gpu: &Gpu, stream: HipStream, mode: i32) {
    ok(unsafe { (gpu.api().hipStreamBeginCapture)(stream, mode) });
}

fn end(gpu: &Gpu, stream: HipStream) -> Result<HipGraph, HipError> {
    let mut graph = null_mut();
    let code = unsafe { (gpu.api().hipStreamEndCapture)(stream, &raw mut graph) };
    if code == HipError::SUCCESS { Ok(graph) } else { Err(code) }
}

fn instantiate(gpu: &Gpu, graph: HipGraph) -> HipGraphExec {
    let mut executable = null_mut();
    ok(unsafe { (gpu.api().hipGraphInstantiateWithFlags)(&raw mut executable, graph, 0) });
    ok(unsafe { (gpu.api().hipGraphDestroy)(graph) });
    executable
}

fn status(gpu: &Gpu, stream: HipStream) -> i32 {
    let mut status = -1;
    ok(unsafe { (gpu.api().hipStreamIsCapturing)(stream, &raw mut status) });
    status
}

#[test]
fn a_graph_with_fork_and_join_replays_100_times() {
    within(LIMIT, || {
        let gpu = Gpu::new(config());
        let api = gpu.api();
        let words = gpu.malloc(64);
        let at = |index: usize| words.wrapping_byte_add(index * 8);
        let (main, side) = (gpu.stream(), gpu.stream());
        let (fork, join) = (gpu.event(), gpu.event());
        let module = gpu.module();
        let step = gpu.function(module, "step_word").unwrap();
        let copy_word = |target, source, stream| unsafe {
            (api.hipMemcpyAsync)(target, source, 8, anabranch_hip::types::memcpy_kind::DEFAULT, stream)
        };
        begin(&gpu, main, flags::CAPTURE_MODE_THREAD_LOCAL);
        assert_eq!((status(&gpu, main), status(&gpu, side)), (1, 0));
        ok(gpu.record(fork, main));
        ok(gpu.wait_event(side, fork));
        assert_eq!(status(&gpu, side), 1);
        // Counts runs; the argument is frozen, the memory is not.
        gpu.launch(step, (1, 1, 0), main, Word { word: at(0), value: 1 });
        // Fill, then write, then copy on the side branch.
        ok(unsafe { (api.hipMemsetAsync)(at(1), 0xff, 8, side) });
        ok(unsafe {
            api.hipStreamWaitValue64.unwrap()(side, at(1), u64::MAX, flags::WAIT_VALUE_EQUAL, u64::MAX)
        });
        ok(unsafe { api.hipStreamWriteValue64.unwrap()(side, at(1), 40, 0) });
        gpu.launch(step, (1, 1, 0), side, Word { word: at(1), value: 1 });
        ok(copy_word(at(2), at(1), side));
        ok(gpu.record(join, side));
        ok(gpu.wait_event(main, join));
        // After both branches.
        ok(copy_word(at(3), at(0), main));
        gpu.launch(step, (1, 1, 0), main, Word { word: at(2), value: 2 });
        let graph = end(&gpu, main).unwrap();
        assert_eq!((status(&gpu, main), status(&gpu, side)), (0, 0));
        assert_eq!(gpu.read::<u64>(words, 8), [0; 8], "capturing runs nothing");
        assert_eq!(unsafe { (api.hipEventQuery)(join) }, HipError::CAPTURED_EVENT);
        let executable = instantiate(&gpu, graph);
        // The graph keeps its kernels.
        ok(unsafe { (api.hipModuleUnload)(module) });
        ok(unsafe { api.hipGraphUpload.unwrap()(executable, main) });
        for run in 1..=100_u64 {
            ok(unsafe { (api.hipGraphLaunch)(executable, main) });
            if run % 10 == 0 {
                ok(gpu.sync(main));
                assert_eq!(gpu.read::<u64>(words, 4), [run, 41, 83, run]);
            }
        }
        ok(unsafe { (api.hipGraphLaunch)(executable, main) });
        ok(unsafe { (api.hipGraphExecDestroy)(executable) });
        ok(gpu.sync(main));
        assert_eq!(gpu.read::<u64>(words, 1), [101]);
        // The streams work as before.
        ok(gpu.record(join, side));
        ok(unsafe { (api.hipEventSynchronize)(join) });
    });
}

#[test]
fn branches_of_a_graph_may_wait_for_each_other() {
    within(LIMIT, || {
        let gpu = Gpu::new(config());
        let words = gpu.malloc(16);
        let other = words.wrapping_byte_add(8);
        let (main, side) = (gpu.stream(), gpu.stream());
        let (fork, join) = (gpu.event(), gpu.event());
        let kernel = gpu.kernel("ping_pong");
        begin(&gpu, main, flags::CAPTURE_MODE_RELAXED);
        ok(gpu.record(fork, main));
        ok(gpu.wait_event(side, fork));
        gpu.launch(kernel, (1, 1, 0), main, PingPong { mine: words, theirs: other, rounds: 50 });
        gpu.launch(kernel, (1, 1, 0), side, PingPong { mine: other, theirs: words, rounds: 50 });
        ok(gpu.record(join, side));
        ok(gpu.wait_event(main, join));
        let executable = instantiate(&gpu, end(&gpu, main).unwrap());
        ok(unsafe { (gpu.api().hipGraphLaunch)(executable, main) });
        ok(gpu.sync(main));
        assert_eq!(gpu.read::<u64>(words, 2), [50, 50]);
    });
}

#[test]
fn calls_that_no_capture_can_hold_invalidate_it() {
    within(LIMIT, || {
        let gpu = Gpu::new(config());
        let api = gpu.api();
        let stream = gpu.stream();
        let memory = gpu.malloc(64);
        let image = common::image(1);
        let mut event_word = 0_u64;
        let illegal: [(&str, &dyn Fn() -> HipError); 8] = [
            ("malloc", &|| {
                let mut pointer = null_mut();
                unsafe { (api.hipMalloc)(&raw mut pointer, 64) }
            }),
            ("free", &|| unsafe { (api.hipFree)(memory) }),
            ("module", &|| {
                let mut module = null_mut();
                unsafe { (api.hipModuleLoadData)(&raw mut module, image.as_ptr().cast()) }
            }),
            ("memcpy", &|| {
                let mut word = event_word;
                unsafe { (api.hipMemcpy)((&raw mut word).cast(), memory, 8, 4) }
            }),
            ("memset", &|| unsafe { (api.hipMemset)(memory, 0, 8) }),
            ("stream sync", &|| gpu.sync(stream)),
            ("stream query", &|| unsafe { (api.hipStreamQuery)(stream) }),
            ("device sync", &|| unsafe { (api.hipDeviceSynchronize)() }),
        ];
        for (name, call) in illegal {
            begin(&gpu, stream, flags::CAPTURE_MODE_THREAD_LOCAL);
            assert_eq!(call(), HipError::STREAM_CAPTURE_UNSUPPORTED, "{name}");
            assert_eq!(status(&gpu, stream), flags::CAPTURE_STATUS_INVALIDATED, "{name}");
            let fill = unsafe { (api.hipMemsetAsync)(memory, 0, 8, stream) };
            assert_eq!(fill, HipError::STREAM_CAPTURE_INVALIDATED, "{name}");
            assert_eq!(end(&gpu, stream), Err(HipError::STREAM_CAPTURE_INVALIDATED), "{name}");
            assert_eq!(status(&gpu, stream), flags::CAPTURE_STATUS_NONE, "{name}");
            ok(gpu.sync(stream));
        }
        event_word += gpu.read::<u64>(memory, 1)[0];
        assert_eq!(event_word, 0, "the memory was not freed");
    });
}

#[test]
fn capture_modes_restrict_the_threads_that_they_name() {
    within(LIMIT, || {
        let gpu = Gpu::new(config());
        let stream = gpu.stream();
        let elsewhere = |gpu: &Gpu| {
            let (runtime, mut pointer) = (gpu.runtime.clone(), 0_usize);
            let code = std::thread::scope(|scope| {
                let thread = scope.spawn(|| {
                    let mut found = null_mut();
                    let code = unsafe { (runtime.api().hipMalloc)(&raw mut found, 64) };
                    (code, found as usize)
                });
                let (code, found) = thread.join().unwrap();
                pointer = found;
                code
            });
            if pointer != 0 {
                ok(unsafe { (gpu.runtime.api().hipFree)(pointer as *mut _) });
            }
            code
        };
        begin(&gpu, stream, flags::CAPTURE_MODE_RELAXED);
        ok(elsewhere(&gpu));
        let own = gpu.malloc(64);
        gpu.free(own);
        end(&gpu, stream).unwrap();
        begin(&gpu, stream, flags::CAPTURE_MODE_GLOBAL);
        assert_eq!(elsewhere(&gpu), HipError::STREAM_CAPTURE_UNSUPPORTED);
        assert_eq!(end(&gpu, stream), Err(HipError::STREAM_CAPTURE_INVALIDATED));
        begin(&gpu, stream, flags::CAPTURE_MODE_THREAD_LOCAL);
        let runtime = gpu.runtime.clone();
        let address = stream as usize;
        let thread = std::thread::spawn(move || {
            let mut pointer = null_mut();
            ok(unsafe { (runtime.api().hipMalloc)(&raw mut pointer, 64) });
            let mut graph = null_mut();
            unsafe { (runtime.api().hipStreamEndCapture)(address as *mut _, &raw mut graph) }
        });
        assert_eq!(thread.join().unwrap(), HipError::STREAM_CAPTURE_WRONG_THREAD);
        assert_eq!(end(&gpu, stream), Err(HipError::STREAM_CAPTURE_INVALIDATED));
    });
}

#[test]
fn captures_that_do_not_fit_together_are_refused() {
    within(LIMIT, || {
        let gpu = Gpu::new(config());
        let api = gpu.api();
        let word = gpu.malloc(8);
        let (first, second) = (gpu.stream(), gpu.stream());
        let (event, outside) = (gpu.event(), gpu.event());
        assert_eq!(end(&gpu, first), Err(HipError::ILLEGAL_STATE));
        let null = unsafe { (api.hipStreamBeginCapture)(null_mut(), 0) };
        assert_eq!(null, HipError::STREAM_CAPTURE_UNSUPPORTED);

        // A branch that is not joined.
        begin(&gpu, first, flags::CAPTURE_MODE_RELAXED);
        ok(gpu.record(event, first));
        ok(gpu.wait_event(second, event));
        ok(unsafe { (api.hipMemsetAsync)(word, 1, 8, second) });
        assert_eq!(end(&gpu, second), Err(HipError::STREAM_CAPTURE_UNMATCHED));
        assert_eq!(end(&gpu, first), Err(HipError::STREAM_CAPTURE_INVALIDATED));
        begin(&gpu, first, flags::CAPTURE_MODE_RELAXED);
        ok(gpu.record(event, first));
        ok(gpu.wait_event(second, event));
        ok(unsafe { (api.hipMemsetAsync)(word, 1, 8, second) });
        assert_eq!(end(&gpu, first), Err(HipError::STREAM_CAPTURE_UNJOINED));
        assert_eq!(status(&gpu, second), flags::CAPTURE_STATUS_NONE);

        // Two captures.
        begin(&gpu, first, flags::CAPTURE_MODE_RELAXED);
        begin(&gpu, second, flags::CAPTURE_MODE_RELAXED);
        ok(gpu.record(event, first));
        assert_eq!(gpu.wait_event(second, event), HipError::STREAM_CAPTURE_MERGE);
        assert_eq!(end(&gpu, first), Err(HipError::STREAM_CAPTURE_INVALIDATED));
        assert_eq!(end(&gpu, second), Err(HipError::STREAM_CAPTURE_INVALIDATED));

        // Work outside of the capture.
        ok(gpu.record(outside, second));
        begin(&gpu, first, flags::CAPTURE_MODE_RELAXED);
        assert_eq!(gpu.wait_event(first, outside), HipError::STREAM_CAPTURE_ISOLATION);
        assert_eq!(end(&gpu, first), Err(HipError::STREAM_CAPTURE_INVALIDATED));

        // The null stream beside a blocking stream's capture.
        let mut blocking = null_mut();
        ok(unsafe { (api.hipStreamCreateWithFlags)(&raw mut blocking, 0) });
        begin(&gpu, blocking, flags::CAPTURE_MODE_RELAXED);
        let code = unsafe { (api.hipMemsetAsync)(word, 1, 8, null_mut()) };
        assert_eq!(code, HipError::STREAM_CAPTURE_IMPLICIT);
        ok(unsafe { (api.hipStreamDestroy)(blocking) });

        // A destroyed stream takes its capture along.
        begin(&gpu, first, flags::CAPTURE_MODE_GLOBAL);
        ok(unsafe { (api.hipStreamDestroy)(first) });
        gpu.malloc(8);
        ok(gpu.sync(null_mut()));
    });
}
