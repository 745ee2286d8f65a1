//! Expert-major rows contracted into a buffer and pushed from there, through every codec: judged bit by bit.

use crate::common::{Case, Routing, Uploaded, all_well, depart, oracle, world_config};
use crate::expert_major_common::{Bench, Guarded, round, run};
use anabranch_conformance::ep::oracle::FactorExperts;
use anabranch_ep::{
    COMBINED_TYPES, CombineCodec, CombineSource, DataType, DeviceSlice, Dispatched, EpConfig, EpShape, Error,
    ExpertMajor, ExpertMajorConfig, ExpertMajorPlan, ExpertParallel, Mode, Plan, ROW_TYPES,
};
use anabranch_hip::Stream;
use anabranch_ranks::GroupRank;
use anabranch_shmem::World;

fn pushing(ranks: u32, wave: u32) -> Case {
    let mut case = Case::new(ranks, wave);
    case.config = case.config.combine_source(CombineSource::Buffer);
    case.staged = true;
    case
}

/// What every test of one plan begins with.
fn on_plans(case: &Case, test: impl Fn(&World, &ExpertParallel, &Stream) -> Result<(), Error> + Sync) {
    all_well(case.on_ranks(&world_config(), |world| {
        let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
        let stream = world.device().create_stream()?;
        test(world, &ep, &stream)?;
        world.synchronize(&stream).map_err(Error::from)
    }));
}

#[test]
#[ignore = "extended"]
fn every_codec_of_every_type_at_every_wave_width() {
    for (codec, wave) in CombineCodec::ALL.into_iter().zip([1, 4, 32, 64, 4, 32]) {
        for element in COMBINED_TYPES {
            let mut case = pushing(3, wave);
            case.config = case.config.combine_type(element).combine_codec(codec);
            run(&case, ExpertMajorConfig::new().alignment(8), 2);
        }
    }
}

fn types_and_ranks(pairs: impl Iterator<Item = (DataType, u32)>) {
    for (dispatch, ranks) in pairs {
        for codec in ["fp8_direct", "fp8_block_fnuz", "fp4_block"] {
            let mut case = pushing(ranks, 4);
            case.config = case.config.dispatch_type(dispatch).combine_codec(codec.parse().unwrap());
            run(&case, ExpertMajorConfig::new(), 1);
        }
    }
}

#[test]
fn one_and_four_ranks() {
    types_and_ranks([1, 4].into_iter().map(|ranks| (DataType::Bf16, ranks)));
}

#[test]
#[ignore = "extended"]
fn every_dispatch_type_and_number_of_ranks() {
    types_and_ranks(ROW_TYPES.into_iter().zip([1, 2, 4, 5, 3, 8]));
}

#[test]
#[ignore = "extended"]
fn both_modes_with_small_capacity_and_extreme_routings() {
    let mut dropped = 0;
    for mode in [Mode::Slotted, Mode::Compact] {
        for (codec, (max_recv, capacity)) in
            CombineCodec::ALL.into_iter().zip([(4, 0), (30, 8), (0, 2), (61, 0), (17, 4), (0, 0)])
        {
            for routing in [Routing::Random, Routing::Hot, Routing::Nowhere, Routing::Invalid] {
                let mut case = pushing(4, 4);
                case.config = case.config.combine_codec(codec).mode(mode).max_recv(max_recv);
                case.routing = routing;
                dropped += run(&case, ExpertMajorConfig::new().capacity(capacity), 1);
            }
        }
    }
    assert!(dropped > 0, "no case has more pairs than room");
}

/// A plan for both ways: contracts into the window and into a buffer take turns.
#[test]
fn pull_and_push_alternate() {
    let case = Case::new(3, 4);
    assert_eq!(case.config.combine_source, CombineSource::Any);
    on_plans(&case, |world, ep, stream| {
        let config = ExpertMajorConfig::new().alignment(4);
        let mut window = Bench::new(world, ep, config)?;
        let mut buffer = Bench::new(world, ep, config)?.pushing(world.device());
        for number in 0..8 {
            let bench = if number % 3 == 1 { &mut window } else { &mut buffer };
            round(ep, bench, stream, world, &case, number)?;
        }
        Ok(())
    });
}

#[test]
fn a_captured_push_is_replayed_with_other_inputs() {
    for (codec, mode) in [("fp8_direct", Mode::Slotted), ("fp4_block", Mode::Compact)] {
        let mut case = pushing(3, 4);
        case.config = case.config.combine_codec(codec.parse().unwrap()).mode(mode);
        on_plans(&case, |world, ep, stream| {
            let me = ep.rank();
            let mut bench = Bench::new(world, ep, ExpertMajorConfig::new())?.pushing(world.device());
            let mut uploaded = Uploaded::new(world.device(), &case.config, &case.input(me.get(), 0));
            stream.begin_capture()?;
            let dispatched = ep.dispatch(stream, &uploaded.tokens(&case.config))?;
            let experts = bench.work(stream, &dispatched)?;
            ep.combine(stream, experts, dispatched, uploaded.output())?;
            let graph = stream.end_capture()?.instantiate()?;
            for replay in 0..40 {
                let case = case.varied(replay);
                let inputs = case.inputs(replay);
                uploaded.refill(&inputs[me.index()]);
                uploaded.output.fill(0xee)?;
                // SAFETY: buffers, plan and world live until the stream was waited for.
                unsafe { graph.launch(stream)? };
                world.synchronize(stream)?;
                let oracle = oracle(&case, &inputs);
                let contracted =
                    oracle.contracted(bench.layout.plan().capacity() as usize, FactorExperts).unwrap();
                let output = uploaded.read_output(&case.config);
                if let Err(mismatch) = oracle.combine(me).unwrap().compare_output(&output, &contracted) {
                    panic!("{me}, replay {replay}: {mismatch}");
                }
            }
            Ok(())
        });
    }
}

/// The rows of the layout are read by the experts alone: after them they may hold the sums.
#[test]
fn the_layouts_rows_may_hold_the_sums() {
    let mut case = pushing(3, 4);
    case.config = case.config.combine_codec("fp8_block".parse().unwrap());
    on_plans(&case, |world, ep, stream| {
        let me = ep.rank();
        let mut bench = Bench::new(world, ep, ExpertMajorConfig::new())?;
        for number in 0..3 {
            let inputs = case.inputs(number);
            let uploaded = Uploaded::new(world.device(), &case.config, &inputs[me.index()]);
            let dispatched = ep.dispatch(stream, &uploaded.tokens(&case.config))?;
            bench.layout.expand(stream, &dispatched)?;
            // SAFETY: the experts were made for this layout.
            unsafe { bench.experts.run(stream, &bench.layout, bench.output.slice())? };
            // SAFETY: the layout outlives the stream's work, and its experts are done in stream order.
            let rows = unsafe {
                DeviceSlice::from_raw(bench.layout.rows(), bench.layout.plan().output_bytes() as usize)
            };
            let experts = bench.layout.contract_into(stream, &dispatched, bench.output.slice(), rows)?;
            ep.combine(stream, experts, dispatched, uploaded.output())?;
            world.synchronize(stream)?;
            let oracle = oracle(&case, &inputs);
            let contracted =
                oracle.contracted(bench.layout.plan().capacity() as usize, FactorExperts).unwrap();
            let output = uploaded.read_output(&case.config);
            oracle.combine(me).unwrap().compare_output(&output, &contracted).unwrap();
        }
        Ok(())
    });
}

fn expect<T>(outcome: Result<T, Error>, words: &[&str]) {
    let text = outcome.err().map_or_else(|| "no error".to_owned(), |error| error.to_string());
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
}

#[test]
fn invalid_arguments_are_refused_before_a_launch() {
    let mut case = Case::new(2, 1);
    case.config = case.config.slots(2);
    on_plans(&case, |world, ep, stream| {
        let other = ExpertParallel::new(world, world.group(), case.config.clone())?;
        let mut bench = Bench::new(world, ep, ExpertMajorConfig::new())?.pushing(world.device());
        let first = depart(ep, stream, &case, 1)?;
        let second = depart(ep, stream, &case, 2)?;
        let foreign = depart(&other, stream, &case, 3)?;
        let (experts, buffer) = (bench.output.slice(), bench.contracted.as_ref().unwrap().slice());
        let into = |bench: &Bench, dispatched: &Dispatched, output: DeviceSlice| {
            bench.layout.contract_into(stream, dispatched, experts, output)
        };
        // SAFETY: nothing is launched with these ranges: they are refused first.
        let range = |address, bytes| unsafe { DeviceSlice::from_raw(address, bytes) };
        let whole = buffer.len();
        let dispatched = &first.dispatched;
        expect(into(&bench, dispatched, buffer), &["do not hold this dispatch"]);
        bench.layout.expand(stream, dispatched)?;
        expect(into(&bench, &second.dispatched, buffer), &["do not hold this dispatch"]);
        expect(into(&bench, &foreign.dispatched, buffer), &["another plan"]);
        let what = "the buffer of contracted rows";
        let shape = format!("[{} rows][128 hidden] bf16 needs {whole}", ep.plan().rows());
        expect(into(&bench, dispatched, range(buffer.address(), whole - 1)), &[what, &shape]);
        let odd = buffer.address().offset(8);
        expect(into(&bench, dispatched, range(odd, whole)), &[what, "multiple of 16"]);
        // The experts' last row, and the first byte of the slot map.
        let last = experts.address().offset(experts.len() as u64 - 256);
        expect(into(&bench, dispatched, range(last, whole)), &[what, "overlaps the experts' output"]);
        // Of the two ranges that end in the map or start in it, the one on the side where the experts' output is not.
        let map = bench.layout.slot_map();
        let start = if experts.address() < map { map.0 } else { map.0 - whole as u64 + 16 };
        let range_at_map = range(anabranch_hip::DeviceAddress(start), whole);
        expect(into(&bench, dispatched, range_at_map), &[what, "overlaps the slot map"]);
        let window = dispatched.combine_rows();
        expect(into(&bench, dispatched, range(window, whole)), &[what, "own windows"]);
        // And then all goes well.
        let output = into(&bench, dispatched, buffer)?;
        ep.combine(stream, output, first.dispatched, first.uploaded.output())?;
        ep.release(stream, second.dispatched)?;
        other.release(stream, foreign.dispatched)?;
        Ok(())
    });
}

/// Each plan has the forms of the contract that its combine can take on, and says so of the others.
#[test]
fn a_plan_has_the_contract_that_its_combine_takes() {
    for (source, given) in
        [(CombineSource::Window, "a buffer"), (CombineSource::Buffer, "the combine window")]
    {
        let mut case = Case::new(2, 1);
        case.config = case.config.combine_source(source);
        on_plans(&case, |world, ep, stream| {
            let mut layout = ExpertMajor::new(ep, ExpertMajorConfig::new())?;
            let flight = depart(ep, stream, &case, 1)?;
            layout.expand(stream, &flight.dispatched)?;
            let experts = Guarded::new(world.device(), layout.plan().output_bytes() as usize);
            let buffer = Guarded::new(world.device(), layout.plan().contracted_bytes() as usize);
            let words =
                [&*format!("is in {given}"), &*format!("the plan was made for combine_source {source}")];
            let rows = experts.slice();
            if source.pushes() {
                expect(layout.contract(stream, &flight.dispatched, rows), &words);
                let output = flight.uploaded.output().into();
                expect(layout.check_combine(ep, rows, &flight.dispatched, &output), &words);
            } else {
                expect(layout.contract_into(stream, &flight.dispatched, rows, buffer.slice()), &words);
            }
            ep.release(stream, flight.dispatched)?;
            world.synchronize(stream).map_err(Error::from)
        });
    }
}

/// A codec is for rows that are pushed. With it the plan of an expert-major combine is made, without it refused, with the reason.
#[test]
fn every_codec_has_a_plan_or_a_reason() {
    for codec in CombineCodec::ALL.into_iter().filter(|codec| *codec != CombineCodec::None) {
        let plan = |source| {
            let config = EpConfig::new(EpShape { hidden: 256, experts: 64, top_k: 8, max_tokens: 128 })
                .combine_source(source)
                .combine_codec(codec);
            let plan = Plan::new(config, 4)?;
            ExpertMajorPlan::new(&plan, GroupRank::new(1), ExpertMajorConfig::new())
        };
        assert_eq!(plan(CombineSource::Buffer).unwrap().contracted_bytes(), 4 * 128 * 512);
        for source in [CombineSource::Window, CombineSource::Any] {
            expect(plan(source), &[&format!("combine_codec is {codec}, and combine_source is {source}")]);
        }
    }
}
