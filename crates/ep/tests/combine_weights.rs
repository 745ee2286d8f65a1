//! Combined weights: pulled and pushed, whole and in halves, as they were dispatched and as experts left them.

use crate::common;

use crate::common::{
    Case, Uploaded, all_well, depart, judge_output, judge_weights, on_ranks, oracle, run, run_expert,
    window_bytes, work, world_config,
};
use anabranch_conformance::ep::reference::ReferenceExpert;
use anabranch_ep::{
    CombineOutput, CombineSource, DataType, Dispatched, EpConfig, EpShape, Error, ExpertParallel, Mode, Plan,
};
use anabranch_hip::Device;
use anabranch_ranks::GroupRank;
use proptest::prelude::*;

fn weighted(ranks: u32, wave: u32) -> Case {
    let mut case = Case::new(ranks, wave);
    case.config = case.config.combine_weights(true);
    case
}

prop_compose! {
    fn any_case(waves: Vec<u32>)(
        ranks in 1u32..=7, wave in prop::sample::select(waves), top_k in 1u32..=32,
        experts in 1u32..40, max_tokens in 1u32..50, cap in 0u32..200, staged in prop::bool::ANY,
        tokens in proptest::collection::vec(0u32..50, 1..4), compact in prop::bool::ANY,
        pulls in prop::bool::ANY, wide in prop::bool::ANY,
    ) -> Case {
        let mut case = weighted(ranks, wave);
        let source = if pulls && !staged { CombineSource::Window } else { CombineSource::Any };
        case.config = EpConfig::new(EpShape { hidden: 16, experts, top_k, max_tokens })
            .max_recv(if cap == 0 { 0 } else { cap.max(ranks) })
            .mode(if compact { Mode::Compact } else { Mode::Slotted })
            .combine_type(if wide { DataType::F32 } else { DataType::Bf16 })
            .combine_source(source)
            .combine_weights(true);
        case.tokens = tokens;
        case.staged = staged;
        case
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn dispatched_weights_are_summed_over_the_ranks(case in any_case(vec![4])) {
        run(&case, 2);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    #[ignore = "extended"]
    fn dispatched_weights_are_summed_at_every_wave_width(case in any_case(vec![1, 4, 32, 64])) {
        run(&case, 2);
    }
}

/// What an expert leaves as a weight: another number on every rank, in every row and place.
fn left(rank: GroupRank, row: usize, k: usize) -> f32 {
    // Magnitudes far apart, so that the order of a sum shows.
    let scale = [1.0e-3, 1.0, 4.0e3][rank.index() % 3];
    (1 + rank.index() * 7 + row * 31 + k * 3) as f32 / 7.0 * scale
}

/// Writes the whole weight window.
fn leave(device: &Device, plan: &Plan, me: GroupRank, dispatched: &Dispatched) {
    let top_k = plan.config().top_k as usize;
    let rows = 0..plan.rows() as usize;
    let weights: Vec<f32> = rows.flat_map(|row| (0..top_k).map(move |k| left(me, row, k))).collect();
    // SAFETY: the window belongs to the slot that the handle holds, and the dispatch was waited for.
    unsafe { device.write_memory(dispatched.combine_weights(), common::bytes_of(&weights)).unwrap() };
}

#[test]
fn weights_that_experts_leave_are_summed_in_rank_order() {
    for (wave, mode, staged, halves) in [
        (1, Mode::Slotted, false, false),
        (4, Mode::Compact, false, true),
        (32, Mode::Slotted, true, true),
        (64, Mode::Compact, true, false),
    ] {
        let mut case = weighted(4, wave);
        case.config = case.config.mode(mode).max_recv(if wave == 4 { 0 } else { 61 });
        case.staged = staged;
        all_well(on_ranks(4, wave, &world_config(), |world| {
            let device = world.device();
            let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
            let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
            let stream = device.create_stream()?;
            let staging = device.allocate(window_bytes(&ep))?;
            for number in 0..4 {
                let inputs = case.inputs(number);
                let uploaded = Uploaded::new(device, &case.config, &inputs[ep.rank().index()]);
                let tokens = uploaded.tokens(&case.config);
                let dispatched = if halves {
                    let sent = ep.dispatch_send(&stream, &tokens)?;
                    ep.dispatch_recv(&stream, sent)?
                } else {
                    ep.dispatch(&stream, &tokens)?
                };
                // The third round sums what was dispatched.
                world.synchronize(&stream)?;
                let leaves = number != 2;
                if leaves {
                    leave(device, ep.plan(), ep.rank(), &dispatched);
                }
                let experts = run_expert(&expert, &stream, &dispatched, &case, &staging)?;
                let output = uploaded.combine_output(&case.config);
                if halves {
                    let sent = ep.combine_send(&stream, experts, dispatched)?;
                    ep.combine_recv(&stream, sent, output)?;
                } else {
                    ep.combine(&stream, experts, dispatched, output)?;
                }
                world.synchronize(&stream)?;
                let oracle = oracle(&case, &inputs);
                judge_output(&oracle, ep.rank(), &uploaded.read_output(&case.config));
                let weights = uploaded.read_weights(&case.config);
                if leaves {
                    let judged = oracle
                        .combine(ep.rank())
                        .unwrap()
                        .compare_weights(&weights, |copy, k| left(copy.destination, copy.row, k));
                    judged.unwrap();
                } else {
                    judge_weights(&oracle, ep.rank(), &weights);
                }
            }
            Ok(())
        }));
    }
}

#[test]
fn replays_combine_the_weights_of_their_inputs() {
    for (staged, mode) in [(false, Mode::Compact), (true, Mode::Slotted)] {
        let mut case = weighted(3, 1);
        (case.config, case.staged) = (case.config.mode(mode), staged);
        all_well(on_ranks(3, 1, &world_config(), |world| {
            let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
            let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
            let (device, me) = (world.device(), ep.rank());
            let stream = device.create_stream()?;
            let staging = device.allocate(window_bytes(&ep))?;
            let mut uploaded = Uploaded::new(device, &case.config, &case.input(me.get(), 0));
            stream.begin_capture()?;
            let dispatched = ep.dispatch(&stream, &uploaded.tokens(&case.config))?;
            let experts = run_expert(&expert, &stream, &dispatched, &case, &staging)?;
            ep.combine(&stream, experts, dispatched, uploaded.combine_output(&case.config))?;
            let graph = stream.end_capture()?.instantiate()?;
            for replay in 0..30 {
                let case = case.varied(replay);
                uploaded.refill(&case.input(me.get(), replay));
                // SAFETY: buffers, plan and world live until the stream was waited for.
                unsafe { graph.launch(&stream)? };
                world.synchronize(&stream)?;
                let inputs = case.inputs(replay);
                judge_output(&oracle(&case, &inputs), me, &uploaded.read_output(&case.config));
                judge_weights(&oracle(&case, &inputs), me, &uploaded.read_weights(&case.config));
            }
            Ok(())
        }));
    }
}

#[test]
fn room_for_weights_is_given_exactly_where_the_plan_has_them() {
    for planned in [true, false] {
        let mut case = Case::new(2, 1);
        case.config = case.config.combine_weights(planned).slots(3);
        all_well(on_ranks(2, 1, &world_config(), |world| {
            let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
            let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
            let stream = world.device().create_stream()?;
            let flight = depart(&ep, &stream, &case, 1)?;
            assert_eq!(flight.dispatched.combine_weights().is_null(), !planned);
            work(&expert, &stream, &flight.dispatched)?;
            let other = flight.uploaded.combine_output(&case.config.clone().combine_weights(!planned));
            let experts = anabranch_ep::ExpertOutput::InWindow;
            let refused = ep.combine(&stream, experts, flight.dispatched, other);
            assert!(
                matches!(&refused, Err(Error::Argument { planned: text, .. }) if *text == format!("combine_weights = {planned}")),
                "{refused:?}"
            );
            // Room that is too small.
            if planned && ep.rank().get() == 0 {
                let flight_output = flight.uploaded.combine_output(&case.config);
                // SAFETY: nothing is launched with it.
                let small = unsafe { anabranch_ep::DeviceSlice::from_raw(other.rows.address(), 4) };
                let output = CombineOutput { weights: Some(small), ..flight_output };
                let tokens = flight.uploaded.tokens(&case.config);
                assert!(tokens.count > 1);
                let next = ep.dispatch(&stream, &tokens)?;
                let refused = ep.combine(&stream, experts, next, output);
                assert!(matches!(refused, Err(Error::Shape { .. })), "{refused:?}");
            } else if planned {
                let tokens = flight.uploaded.tokens(&case.config);
                drop(ep.dispatch(&stream, &tokens)?);
            }
            world.synchronize(&stream)?;
            // The last slot works.
            common::round(&ep, &expert, &stream, world, &case, 2)
        }));
    }
}

#[test]
fn a_plan_without_them_has_no_byte_of_them() {
    let plan = |config: EpConfig| Plan::new(config, 4).unwrap();
    let config = EpConfig::new(EpShape { hidden: 128, experts: 16, top_k: 6, max_tokens: 40 });
    for source in [CombineSource::Window, CombineSource::Buffer, CombineSource::Any] {
        let config = config.clone().combine_source(source);
        let (without, with) = (plan(config.clone()), plan(config.combine_weights(true)));
        assert_eq!(without.layout().combine_weights, without.layout().bytes);
        assert_eq!(without.layout().pushed_weights, without.layout().bytes);
        // A window of rows, and one of places where rows are pushed, each rounded up to 256 bytes.
        let pushed = if source == CombineSource::Window { 0 } else { u64::from(with.fan_out()) * 40 };
        let bytes = |rows: u64| (rows * 6 * 4).next_multiple_of(256);
        assert_eq!(with.heap_bytes() - without.heap_bytes(), bytes(with.rows()) + bytes(pushed));
    }
}
