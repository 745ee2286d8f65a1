//! Kernels that wait for peers fit on the device together, or the plan is refused.

use std::time::Duration;

use crate::common::{Case, Uploaded, all_well, judge_output, oracle, round, run_expert, world_config};
use anabranch_conformance::ep::reference::ReferenceExpert;
use anabranch_ep::{Error, ExpertOutput, ExpertParallel, Payload};
use anabranch_hip::Stream;
use anabranch_shmem::LaunchOrder;

/// The host machine keeps 16 blocks of four waves of 64 lanes resident.
const RESIDENT: u32 = 16;

#[test]
fn grids_of_all_slots_and_plans_fit_together() {
    let mut case = Case::new(2, 64);
    case.config = case.config.slots(2);
    all_well(case.on_ranks(&world_config(), |world| {
        let make = || ExpertParallel::new(world, world.group(), case.config.clone());
        let blocks = |ep: &ExpertParallel| {
            let tokens = case.config.max_tokens;
            ep.combine_geometry(tokens).blocks.max(ep.dispatch_geometry(tokens).unwrap().blocks)
        };
        let first = make()?;
        assert_eq!(blocks(&first), 4, "the default is unchanged");
        let second = make()?;
        // The teams' barriers have taken a part, too.
        assert_eq!(blocks(&second), 3);
        assert!(2 * (blocks(&first) + blocks(&second)) <= RESIDENT);
        // 1/64 for each team's barrier, 8/16, 6/16: one more block fits, but not one for each of two slots.
        let refused = make().err();
        let Some(Error::Shmem(anabranch_shmem::Error::Residency { asked, resident, in_use_percent })) =
            refused
        else {
            panic!("{refused:?}")
        };
        assert_eq!((asked, resident), (2, RESIDENT));
        assert!((92..=93).contains(&in_use_percent), "{in_use_percent}");
        drop(first);
        let third = make()?;
        assert_eq!(blocks(&third), 4);
        for ep in [&second, &third] {
            let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
            let stream = world.device().create_stream()?;
            round(ep, &expert, &stream, world, &case, 1)?;
        }
        Ok(())
    }));
}

#[test]
fn plans_in_one_order_share_the_device_and_run_one_after_the_other() {
    let mut case = Case::new(2, 64);
    case.config = case.config.slots(2);
    case.config.max_blocks = RESIDENT - 1;
    all_well(case.on_ranks(&world_config(), |world| {
        let (order, device) = (LaunchOrder::new(world)?, world.device());
        let plans: Vec<_> = (0..3)
            .map(|_| ExpertParallel::in_order(world, world.group(), case.config.clone(), &order))
            .collect::<Result<_, _>>()?;
        for ep in &plans {
            assert_eq!(ep.limits().resident_blocks, RESIDENT - 1);
        }
        let alone = ExpertParallel::new(world, world.group(), case.config.clone()).err();
        assert!(matches!(alone, Some(Error::Shmem(anabranch_shmem::Error::Residency { .. }))), "{alone:?}");

        // A stream that stands still holds up the launches of the other plans on other streams.
        let inputs = case.inputs(1);
        let streams = [device.create_stream()?, device.create_stream()?, device.create_stream()?];
        let mut word = device.allocate(8)?;
        word.fill(0)?;
        // SAFETY: the word lives until the stream has passed it below.
        unsafe { streams[0].wait_value64_at_least(word.address(), 1) }?;
        let uploaded: Vec<_> =
            plans.iter().map(|ep| Uploaded::new(device, &case.config, &inputs[ep.rank().index()])).collect();
        let mut dispatched = Vec::new();
        for ((ep, stream), rows) in plans.iter().zip(&streams).zip(&uploaded) {
            dispatched.push(ep.dispatch(stream, &rows.tokens(&case.config))?);
        }
        let last = device.create_event()?;
        streams[2].record(&last)?;
        anabranch_clock::sleep(Duration::from_millis(200));
        assert!(!last.is_done()?, "the third plan's launch did not wait for the first's");
        word.copy_from_host(0, &1u64.to_le_bytes())?;

        // Combines in another order than the dispatches.
        let sent = case.sent(&inputs);
        let oracle = oracle(&case, &sent);
        for (index, dispatched) in dispatched.into_iter().enumerate().rev() {
            let (ep, stream, rows) = (&plans[index], &streams[index], &uploaded[index]);
            let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
            // SAFETY: the window lives as long as the plan.
            unsafe { expert.run(stream, &dispatched, dispatched.combine_rows())? };
            ep.combine(stream, ExpertOutput::InWindow, dispatched, rows.combine_output(&case.config))?;
        }
        for ((ep, stream), rows) in plans.iter().zip(&streams).zip(&uploaded) {
            world.synchronize(stream)?;
            judge_output(&oracle, ep.rank(), &rows.read_output(&case.config));
        }
        Ok(())
    }));
}

#[test]
fn plans_in_one_order_are_captured_on_several_streams() {
    let mut case = Case::new(2, 64);
    case.config.max_blocks = RESIDENT - 1;
    captured_on_two_streams(&case);
}

#[test]
fn plans_by_copy_engine_in_one_order_are_captured_on_several_streams() {
    let mut case = Case::new(2, 64);
    case.config = case.config.payload(Payload::CopyEngine);
    captured_on_two_streams(&case);
}

fn captured_on_two_streams(case: &Case) {
    all_well(case.on_ranks(&world_config(), |world| {
        let (order, device) = (LaunchOrder::new(world)?, world.device());
        let plan = || ExpertParallel::in_order(world, world.group(), case.config.clone(), &order);
        let (plans, mut all) = ([plan()?, plan()?], Vec::new());
        let streams = [device.create_stream()?, device.create_stream()?];
        for ep in &plans {
            let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
            round(ep, &expert, &streams[0], world, case, 1)?;
            let uploaded = Uploaded::new(device, &case.config, &case.input(ep.rank().get(), 2));
            all.push((ep, expert, uploaded));
        }
        let (fork, join) = (device.create_event()?, device.create_event()?);
        streams[0].begin_capture()?;
        streams[0].record(&fork)?;
        streams[1].wait_event(&fork)?;
        let staging = device.allocate(0)?;
        for ((ep, expert, uploaded), stream) in all.iter().zip(&streams) {
            let dispatched = ep.dispatch(stream, &uploaded.tokens(&case.config))?;
            let experts = run_expert(expert, stream, &dispatched, case, &staging)?;
            ep.combine(stream, experts, dispatched, uploaded.combine_output(&case.config))?;
        }
        streams[1].record(&join)?;
        streams[0].wait_event(&join)?;
        let graph = streams[0].end_capture()?.instantiate()?;
        for replay in 2..12 {
            for (ep, _, uploaded) in &mut all {
                uploaded.refill(&case.input(ep.rank().get(), replay));
            }
            // SAFETY: buffers, plans and world live until the stream was waited for.
            unsafe { graph.launch(&streams[0])? };
            world.synchronize(&streams[0])?;
            let inputs = case.inputs(replay);
            for (ep, _, uploaded) in &all {
                judge_output(&oracle(case, &inputs), ep.rank(), &uploaded.read_output(&case.config));
            }
        }
        Ok(())
    }));
}

/// Dispatches and ends the operation.
fn call(ep: &ExpertParallel, stream: &Stream, rows: &Uploaded, case: &Case) -> Result<(), Error> {
    let dispatched = ep.dispatch(stream, &rows.tokens(&case.config))?;
    ep.release(stream, dispatched)
}

#[test]
fn calls_and_graphs_of_plans_in_one_order_run_one_after_the_other() {
    let mut case = Case::new(2, 64);
    case.config.max_blocks = RESIDENT - 1;
    all_well(case.on_ranks(&world_config(), |world| {
        let (order, device) = (LaunchOrder::new(world)?, world.device());
        let plan = || ExpertParallel::in_order(world, world.group(), case.config.clone(), &order);
        let plans = [plan()?, plan()?, plan()?, plan()?];
        let rows = Uploaded::new(device, &case.config, &case.input(world.rank().get(), 1));
        let stream = || device.create_stream();
        let streams = [stream()?, stream()?, stream()?, stream()?];
        for ep in &plans {
            call(ep, &streams[0], &rows, &case)?;
        }
        world.synchronize(&streams[0])?;
        let capture = |number: usize| {
            streams[number].begin_capture()?;
            call(&plans[number], &streams[number], &rows, &case)?;
            Ok::<_, Error>(streams[number].end_capture()?.instantiate()?)
        };
        let graphs = [capture(1)?, capture(2)?];
        let turn = |number: usize| match number {
            // SAFETY: buffers, plans and world live until the stream was waited for.
            1 | 2 => Ok(unsafe { graphs[number - 1].launch(&streams[number]) }?),
            _ => call(&plans[number], &streams[number], &rows, &case),
        };
        let (mut word, last) = (device.allocate(8)?, device.create_event()?);
        // A call before a graph, a graph before a graph, a graph before a call: the first is on a stream that stands still.
        for first in 0..3 {
            word.fill(0)?;
            // SAFETY: the word lives until the stream has passed it below.
            unsafe { streams[first].wait_value64_at_least(word.address(), 1) }?;
            turn(first)?;
            turn(first + 1)?;
            streams[first + 1].record(&last)?;
            anabranch_clock::sleep(Duration::from_millis(200));
            let has_waited = !last.is_done()?;
            word.copy_from_host(0, &1u64.to_le_bytes())?;
            streams.iter().try_for_each(|stream| world.synchronize(stream))?;
            assert!(has_waited, "launch {} did not wait for the one before", first + 1);
        }
        Ok(())
    }));
}

#[test]
fn captures_that_are_open_at_once_have_one_order_each() {
    let mut case = Case::new(2, 64);
    case.config.max_blocks = RESIDENT - 1;
    all_well(case.on_ranks(&world_config(), |world| {
        let (order, device) = (LaunchOrder::new(world)?, world.device());
        let plan = || ExpertParallel::in_order(world, world.group(), case.config.clone(), &order);
        let plans = [plan()?, plan()?];
        let rows = Uploaded::new(device, &case.config, &case.input(world.rank().get(), 1));
        let (stream, event) = (|| device.create_stream(), || device.create_event());
        let captures = [[stream()?, stream()?], [stream()?, stream()?]];
        let (mut word, fork, done) = (device.allocate(8)?, event()?, [event()?, event()?]);
        word.fill(0)?;
        for ep in &plans {
            call(ep, &captures[0][0], &rows, &case)?;
        }
        world.synchronize(&captures[0][0])?;
        for [main, side] in &captures {
            main.begin_capture()?;
            main.record(&fork)?;
            side.wait_event(&fork)?;
            // SAFETY: the word lives until the graph was waited for.
            unsafe { main.wait_value64_at_least(word.address(), 1) }?;
        }
        for (number, ep) in plans.iter().enumerate() {
            captures.iter().try_for_each(|streams| call(ep, &streams[number], &rows, &case))?;
        }
        let mut graphs = Vec::new();
        for ([main, side], done) in captures.iter().zip(&done) {
            side.record_in_replays(done)?;
            side.record(&fork)?;
            main.wait_event(&fork)?;
            graphs.push(main.end_capture()?.instantiate()?);
        }
        for (graph, [main, _]) in graphs.iter().zip(&captures) {
            // SAFETY: buffers, plans and world live until the streams were waited for.
            unsafe { graph.launch(main) }?;
        }
        anabranch_clock::sleep(Duration::from_millis(200));
        let have_waited = [!done[0].is_done()?, !done[1].is_done()?];
        word.copy_from_host(0, &1u64.to_le_bytes())?;
        captures.iter().try_for_each(|[main, _]| world.synchronize(main))?;
        assert_eq!(have_waited, [true; 2], "a second launch did not wait for the first of its capture");
        Ok(())
    }));
}
