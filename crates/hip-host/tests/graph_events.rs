//! Events that launches of graphs wait for or record.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests call the C table with locals of theirs, or with arguments that it must refuse"
)]

use std::ptr::null_mut;

use crate::common::{Gpu, LIMIT, Word, config, ok, within};
use crate::graphs::{begin, end, instantiate};
use anabranch_hip::HipError;
use anabranch_hip::types::flags;

#[test]
fn events_order_launches_of_graphs_with_each_other_and_with_other_work() {
    within(LIMIT, || {
        let gpu = Gpu::new(config());
        let api = gpu.api();
        let record = |event, stream| unsafe {
            api.hipEventRecordWithFlags.unwrap()(event, stream, flags::EVENT_RECORD_EXTERNAL)
        };
        let wait =
            |event, stream| unsafe { (api.hipStreamWaitEvent)(stream, event, flags::EVENT_WAIT_EXTERNAL) };
        let words = gpu.malloc(16);
        let gate = words.wrapping_byte_add(8);
        let (main, side, event) = (gpu.stream(), gpu.stream(), gpu.event());
        assert_eq!(
            (record(event, main), wait(event, main)),
            (HipError::INVALID_VALUE, HipError::INVALID_VALUE)
        );
        let number = |stream| {
            let (mut status, mut number) = (-1, u64::MAX);
            ok(unsafe { api.hipStreamGetCaptureInfo.unwrap()(stream, &raw mut status, &raw mut number) });
            (status, number)
        };
        let step = gpu.kernel("step_word");
        // Runs are counted between the event's records.
        let capture = || {
            begin(&gpu, main, flags::CAPTURE_MODE_THREAD_LOCAL);
            let (status, number) = number(main);
            assert_eq!(status, flags::CAPTURE_STATUS_ACTIVE);
            ok(wait(event, main));
            gpu.launch(step, (1, 1, 0), main, Word { word: words, value: 1 });
            ok(record(event, main));
            (instantiate(&gpu, end(&gpu, main).unwrap()), number)
        };
        let ((first, one), (second, two)) = (capture(), capture());
        assert!(one != two && number(main) == (flags::CAPTURE_STATUS_NONE, 0));
        // Work before the graphs that does not end before the host lets it.
        ok(unsafe { api.hipStreamWaitValue64.unwrap()(side, gate, 1, flags::WAIT_VALUE_EQUAL, u64::MAX) });
        ok(gpu.record(event, side));
        let third = gpu.stream();
        ok(unsafe { (api.hipGraphLaunch)(first, main) });
        ok(unsafe { (api.hipGraphLaunch)(second, third) });
        ok(gpu.wait_event(side, event));
        assert_eq!(unsafe { (api.hipEventQuery)(event) }, HipError::NOT_READY, "the second graph's record");
        assert_eq!((Gpu::peek(words), unsafe { (api.hipStreamQuery)(third) }), (0, HipError::NOT_READY));
        Gpu::poke(gate, 1);
        ok(gpu.sync(side));
        assert_eq!(Gpu::peek(words), 2, "both graphs come before what waits for the event");
        ok(unsafe { (api.hipEventQuery)(event) });
    });
}

#[test]
fn refused_launch_of_a_graph_leaves_its_events_as_they_were() {
    within(LIMIT, || {
        let gpu = Gpu::new(config());
        let api = gpu.api();
        let (main, event) = (gpu.stream(), gpu.event());
        begin(&gpu, main, flags::CAPTURE_MODE_RELAXED);
        ok(unsafe { api.hipEventRecordWithFlags.unwrap()(event, main, flags::EVENT_RECORD_EXTERNAL) });
        let executable = instantiate(&gpu, end(&gpu, main).unwrap());
        ok(gpu.record(event, main));
        ok(unsafe { (api.hipEventSynchronize)(event) });
        // The null stream would have to wait for work of a capture.
        let mut blocking = null_mut();
        ok(unsafe { (api.hipStreamCreateWithFlags)(&raw mut blocking, 0) });
        begin(&gpu, blocking, flags::CAPTURE_MODE_RELAXED);
        let refused = unsafe { (api.hipGraphLaunch)(executable, null_mut()) };
        assert_eq!(refused, HipError::STREAM_CAPTURE_IMPLICIT);
        ok(unsafe { (api.hipEventQuery)(event) });
    });
}

#[test]
fn event_recorded_in_a_graph_reports_the_lost_device() {
    within(LIMIT, || {
        let gpu = Gpu::new(config());
        let api = gpu.api();
        let (main, capturing, event, fork) = (gpu.stream(), gpu.stream(), gpu.event(), gpu.event());
        begin(&gpu, main, flags::CAPTURE_MODE_RELAXED);
        ok(unsafe { api.hipEventRecordWithFlags.unwrap()(event, main, flags::EVENT_RECORD_EXTERNAL) });
        let executable = instantiate(&gpu, end(&gpu, main).unwrap());
        let lost = HipError::LAUNCH_FAILURE;
        // The event is of device 0, which is not lost; the launch is given to a stream of device 1, which is.
        gpu.set_device(1);
        let (failing, other) = (gpu.stream(), gpu.event());
        begin(&gpu, capturing, flags::CAPTURE_MODE_RELAXED);
        begin(&gpu, failing, flags::CAPTURE_MODE_RELAXED);
        ok(gpu.record(other, failing));
        let (launching, gate) = (gpu.stream(), gpu.malloc(8));
        ok(unsafe {
            api.hipStreamWaitValue64.unwrap()(launching, gate, 1, flags::WAIT_VALUE_EQUAL, u64::MAX)
        });
        gpu.launch(gpu.kernel("diverge"), (1, 2, 0), launching, 0_u32);
        ok(unsafe { (api.hipGraphLaunch)(executable, launching) });
        Gpu::poke(gate, 1);
        assert_eq!(gpu.sync(launching), lost);
        assert_eq!(unsafe { (api.hipEventSynchronize)(event) }, lost);
        assert_eq!(unsafe { (api.hipEventQuery)(event) }, lost);
        // A capture that began before the loss takes no event of the lost device.
        assert_eq!(gpu.record(other, failing), lost);
        assert_eq!(gpu.wait_event(failing, other), lost);
        ok(gpu.record(fork, capturing));
    });
}
