//! Operations on several streams, captured and not, keep their order on a slot; and poison in the middle of a launch leaves
//! counts of zero.
#![expect(
    clippy::disallowed_methods,
    reason = "tests of real threads and processes run on the machine's time"
)]

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::common::{
    Case, Routing, Uploaded, all_well, judge_output, judge_rows, on_ranks, oracle, work, world_config,
};
use anabranch_conformance::ep::reference::ReferenceExpert;
use anabranch_ep::{Error, ExpertOutput, ExpertParallel};

#[test]
fn captures_on_two_streams_may_use_one_slot() {
    let case = Case::new(2, 1);
    all_well(on_ranks(2, 1, &world_config(), |world| {
        let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
        let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
        let inputs = case.inputs(7);
        let mut captured = Vec::new();
        for _ in 0..2 {
            let stream = world.device().create_stream()?;
            let uploaded = Uploaded::new(world.device(), &case.config, &inputs[ep.rank().index()]);
            stream.begin_capture()?;
            let dispatched = ep.dispatch(&stream, &uploaded.tokens(&case.config))?;
            work(&expert, &stream, &dispatched)?;
            ep.combine(&stream, ExpertOutput::InWindow, dispatched, uploaded.output())?;
            captured.push((stream.end_capture()?.instantiate()?, uploaded, stream));
        }
        for (graph, uploaded, stream) in &captured {
            // SAFETY: the buffers outlive the wait below.
            unsafe { graph.launch(stream)? };
            world.synchronize(stream)?;
            judge_output(&oracle(&case, &inputs), ep.rank(), &uploaded.read_output(&case.config));
        }
        Ok(())
    }));
}

/// Rank 1 is late with its first operation while rank 0 would already start the next one on another stream.
fn operations_on_two_streams(capture_between: bool) {
    let case = Case::new(2, 1);
    all_well(on_ranks(2, 1, &world_config(), |world| {
        let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
        let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
        let device = world.device();
        let [first, captured, second] =
            [device.create_stream()?, device.create_stream()?, device.create_stream()?];
        let me = ep.rank();
        let inputs = case.inputs(1);
        let one = Uploaded::new(device, &case.config, &inputs[me.index()]);
        let two = Uploaded::new(device, &case.config, &case.input(me.get(), 2));
        let dispatched = ep.dispatch(&first, &one.tokens(&case.config))?;
        if me.get() == 1 {
            world.synchronize(&first)?;
            std::thread::sleep(Duration::from_millis(200));
            judge_rows(&oracle(&case, &inputs), me, device, &ep, &dispatched);
        }
        work(&expert, &first, &dispatched)?;
        ep.combine(&first, ExpertOutput::InWindow, dispatched, one.output())?;
        if capture_between {
            captured.begin_capture()?;
            let dispatched = ep.dispatch(&captured, &two.tokens(&case.config))?;
            ep.combine(&captured, ExpertOutput::InWindow, dispatched, two.output())?;
            captured.end_capture()?;
        }
        let dispatched = ep.dispatch(&second, &two.tokens(&case.config))?;
        work(&expert, &second, &dispatched)?;
        ep.combine(&second, ExpertOutput::InWindow, dispatched, two.output())?;
        world.synchronize(&first)?;
        world.synchronize(&second)?;
        judge_output(&oracle(&case, &inputs), me, &one.read_output(&case.config));
        Ok(())
    }));
}

#[test]
fn an_operation_on_another_stream_waits_for_the_slot() {
    operations_on_two_streams(false);
}

#[test]
fn a_capture_between_two_operations_does_not_lose_their_order() {
    operations_on_two_streams(true);
}

#[test]
fn poison_while_a_dispatch_starts_leaves_counts_of_zero() {
    let rows = Case { routing: Routing::Hot, ..Case::new(1, 1) };
    let no_rows = Case { routing: Routing::Nowhere, ..rows.clone() };
    for attempt in 0..80u64 {
        let seen = Mutex::new(u32::MAX);
        // The world ends poisoned, which is what its rank reports; the count is what matters.
        let _poisoned = on_ranks(1, 1, &world_config(), |world| {
            let ep = ExpertParallel::new(world, world.group(), rows.config.clone().launch(4, 1))?;
            let stream = world.device().create_stream()?;
            let one = Uploaded::new(world.device(), &rows.config, &rows.input(0, 1));
            let two = Uploaded::new(world.device(), &rows.config, &no_rows.input(0, 2));
            let first = ep.dispatch(&stream, &one.tokens(&rows.config))?;
            ep.release(&stream, first)?;
            world.synchronize(&stream)?;
            let second = ep.dispatch(&stream, &two.tokens(&rows.config))?;
            let start = Instant::now();
            while start.elapsed() < Duration::from_nanos(attempt * 400) {
                std::hint::spin_loop();
            }
            world.poison("the test's moment");
            stream.synchronize()?;
            let mut count = [0; 4];
            // SAFETY: the counts belong to the slot that the handle holds.
            unsafe { world.device().read_memory(second.counts(), &mut count)? };
            *seen.lock().unwrap() = u32::from_ne_bytes(count);
            Ok::<(), Error>(())
        });
        assert_eq!(
            *seen.lock().unwrap(),
            0,
            "attempt {attempt}: the rows of the operation before are still counted"
        );
    }
}
