//! Expert-major rows in graphs, with several dispatches in flight, and in the wrong order.

use crate::common::{Case, Routing, Uploaded, all_well, depart, failure, oracle, world_config};
use crate::expert_major_common::{Bench, CANARY, Guarded, read, round, run, write};
use anabranch_conformance::ep::ElementValues as _;
use anabranch_conformance::ep::oracle::{ExpertOutputs, FactorExperts, Oracle};
use anabranch_ep::{
    COMBINED_TYPES, DeviceSlice, EpConfig, EpShape, Error, ExpertMajor, ExpertMajorConfig, ExpertMajorRows,
    ExpertOutput, ExpertParallel, LayoutOutput, LocalExpertCounter, Mode, PlacementTable,
};
use anabranch_hip::Stream;
use anabranch_ranks::GroupRank;
use anabranch_shmem::World;

/// What every test begins with.
fn on_plans(case: &Case, test: impl Fn(&World, &ExpertParallel, &Stream) -> Result<(), Error> + Sync) {
    all_well(case.on_ranks(&world_config(), |world| {
        let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
        let stream = world.device().create_stream()?;
        test(world, &ep, &stream)?;
        world.synchronize(&stream).map_err(Error::from)
    }));
}

fn judge_output(
    oracle: &Oracle<'_>,
    me: GroupRank,
    output: &[u8],
    capacity: u32,
    experts: impl ExpertOutputs,
) {
    let contracted = oracle.contracted(capacity as usize, experts).unwrap();
    if let Err(mismatch) = oracle.combine(me).unwrap().compare_output(output, &contracted) {
        panic!("{me}: {mismatch}");
    }
}

#[test]
fn forty_replays_with_new_tokens_and_routings() {
    for (wave, capacity, mode) in [(1, 0, Mode::Slotted), (4, 8, Mode::Compact), (32, 0, Mode::Compact)] {
        let mut case = Case::new(3, wave);
        case.config = case.config.mode(mode);
        let config = ExpertMajorConfig::new().capacity(capacity).alignment(8);
        on_plans(&case, |world, ep, stream| {
            let me = ep.rank();
            let mut bench = Bench::new(world, ep, config)?;
            let mut uploaded = Uploaded::new(world.device(), &case.config, &case.input(me.get(), 0));
            // Eager and captured operations take turns.
            round(ep, &mut bench, stream, world, &case, 1)?;
            stream.begin_capture()?;
            let dispatched = ep.dispatch(stream, &uploaded.tokens(&case.config))?;
            bench.work(stream, &dispatched)?;
            ep.combine(stream, ExpertOutput::InWindow, dispatched, uploaded.output())?;
            let graph = stream.end_capture()?.instantiate()?;
            for replay in 0..40 {
                let case = case.varied(replay);
                let inputs = case.inputs(replay);
                uploaded.refill(&inputs[me.index()]);
                uploaded.output.fill(0xee)?;
                bench.paint(world.device());
                // SAFETY: buffers, plan and world live until the stream was waited for.
                unsafe { graph.launch(stream)? };
                world.synchronize(stream)?;
                let oracle = oracle(&case, &inputs);
                bench.judge(&oracle, ep, world.device());
                bench.judge_canaries(world.device());
                let capacity = bench.layout.plan().capacity();
                judge_output(&oracle, me, &uploaded.read_output(&case.config), capacity, FactorExperts);
                if replay % 8 == 5 {
                    round(ep, &mut bench, stream, world, &case, replay)?;
                }
            }
            Ok(())
        });
    }
}

/// Experts whose output is their input.
struct Unchanged;

impl ExpertOutputs for Unchanged {
    fn row(&self, oracle: &Oracle<'_>, _: u32, source: GroupRank, token: usize, values: &mut [f32]) {
        let combination = oracle.combine(source).unwrap();
        let copy = combination.copies(token).next().unwrap();
        oracle.shape().dispatch.decode(copy.payload, values);
    }
}

#[test]
fn experts_may_work_in_place() {
    for element in COMBINED_TYPES {
        let mut case = Case::new(3, 4);
        case.config = case.config.dispatch_type(element).combine_type(element);
        on_plans(&case, |world, ep, stream| {
            let mut layout = ExpertMajor::new(ep, ExpertMajorConfig::new())?;
            for number in 0..3 {
                let flight = depart(ep, stream, &case, number)?;
                layout.expand(stream, &flight.dispatched)?;
                let bytes = layout.plan().output_bytes() as usize;
                // SAFETY: the layout outlives the stream's work.
                let rows = unsafe { DeviceSlice::from_raw(layout.rows(), bytes) };
                layout.contract(stream, &flight.dispatched, rows)?;
                ep.combine(stream, ExpertOutput::InWindow, flight.dispatched, flight.uploaded.output())?;
                world.synchronize(stream)?;
                let inputs = case.inputs(number);
                let output = flight.uploaded.read_output(&case.config);
                let capacity = layout.plan().capacity();
                judge_output(&oracle(&case, &inputs), ep.rank(), &output, capacity, Unchanged);
            }
            Ok(())
        });
    }
}

#[test]
fn two_dispatches_in_flight_use_two_layouts_or_alternate() {
    let mut case = Case::new(3, 4);
    case.config = case.config.slots(2);
    on_plans(&case, |world, ep, stream| {
        let config = ExpertMajorConfig::new().alignment(4);
        let mut benches = [Bench::new(world, ep, config)?, Bench::new(world, ep, config)?];
        let flights = [depart(ep, stream, &case, 1)?, depart(ep, stream, &case, 2)?];
        for (bench, flight) in benches.iter_mut().zip(&flights) {
            bench.work(stream, &flight.dispatched)?;
        }
        world.synchronize(stream)?;
        let capacity = benches[0].layout.plan().capacity();
        for (bench, number) in benches.iter().zip([1, 2]) {
            bench.judge(&oracle(&case, &case.inputs(number)), ep, world.device());
        }
        // One layout for both, one after the other, on another stream than the dispatches'.
        let side = world.device().create_stream()?;
        for (flight, number) in flights.iter().zip([1, 2]) {
            benches[0].work(&side, &flight.dispatched)?;
            world.synchronize(&side)?;
            benches[0].judge(&oracle(&case, &case.inputs(number)), ep, world.device());
        }
        for (flight, number) in flights.into_iter().zip([1, 2]) {
            ep.combine(stream, ExpertOutput::InWindow, flight.dispatched, flight.uploaded.output())?;
            world.synchronize(stream)?;
            let output = flight.uploaded.read_output(&case.config);
            judge_output(&oracle(&case, &case.inputs(number)), ep.rank(), &output, capacity, FactorExperts);
        }
        Ok(())
    });
}

#[test]
fn given_weights_take_the_place_of_the_dispatched() {
    for wave in [1, 32] {
        let case = Case::new(3, wave);
        on_plans(&case, |world, ep, stream| {
            let device = world.device();
            let mut bench = Bench::new(world, ep, ExpertMajorConfig::new().capacity(8))?;
            let flight = depart(ep, stream, &case, 1)?;
            let window = bench.layout.plan().contracted_bytes() as usize;
            let sums = |bench: &Bench, given: Option<DeviceSlice>| -> Result<Vec<u8>, Error> {
                write(device, flight.dispatched.combine_rows(), &vec![CANARY; window]);
                let experts = LayoutOutput { rows: bench.output.slice(), weights: given };
                bench.layout.contract(stream, &flight.dispatched, experts)?;
                world.synchronize(stream)?;
                Ok(read(device, flight.dispatched.combine_rows(), window))
            };
            bench.work(stream, &flight.dispatched)?;
            let once = sums(&bench, None)?;
            // Twice the weights give twice the sums, exactly.
            let sources =
                read(device, bench.layout.sources(), bench.layout.plan().weight_bytes() as usize * 5);
            let twice = sources.chunks_exact(20).flat_map(|source| {
                (2.0 * f32::from_ne_bytes(source[16..].try_into().unwrap())).to_ne_bytes()
            });
            let mut given = device.allocate(bench.layout.plan().weight_bytes() as usize).unwrap();
            given.copy_from_host(0, &twice.collect::<Vec<u8>>()).unwrap();
            // SAFETY: the buffer outlives the work, which `sums` waits for.
            let doubled = sums(&bench, Some(unsafe { DeviceSlice::of(&given) }))?;
            let value =
                |bytes: &[u8]| f32::from_bits(u32::from(u16::from_ne_bytes([bytes[0], bytes[1]])) << 16);
            let row = ep.plan().combine_row_bytes() as usize;
            let mut received = 0;
            for (one, two) in once.chunks_exact(row).zip(doubled.chunks_exact(row)) {
                if one.iter().all(|byte| *byte == CANARY) {
                    assert_eq!(one, two, "a row that was not received is written");
                    continue;
                }
                received += 1;
                for (one, two) in one.chunks_exact(2).zip(two.chunks_exact(2)) {
                    assert_eq!((2.0 * value(one)).to_bits(), value(two).to_bits());
                }
            }
            assert!(received > 0);
            ep.combine(stream, ExpertOutput::InWindow, flight.dispatched, flight.uploaded.output())
        });
    }
}

fn expect(error: Option<Error>, words: &[&str]) {
    let text = error.map_or_else(|| "no error".to_owned(), |error| error.to_string());
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
}

#[test]
fn invalid_arguments_are_refused_before_a_launch() {
    let mut case = Case::new(2, 1);
    case.config = case.config.slots(2);
    case.tokens = vec![40, 17]; // without tokens every output is valid
    on_plans(&case, |world, ep, stream| {
        let other = ExpertParallel::new(world, world.group(), case.config.clone())?;
        let mut bench = Bench::new(world, ep, ExpertMajorConfig::new().capacity(16))?;
        let first = depart(ep, stream, &case, 1)?;
        let second = depart(ep, stream, &case, 2)?;
        let foreign = depart(&other, stream, &case, 3)?;
        let output = bench.output.slice();
        let dispatched = &first.dispatched;
        let not_expanded = ["do not hold this dispatch"];
        expect(bench.layout.contract(stream, dispatched, output).err(), &not_expanded);
        expect(bench.layout.expand(stream, &foreign.dispatched).err(), &["another plan"]);
        bench.layout.expand(stream, dispatched)?;
        expect(bench.layout.contract(stream, &second.dispatched, output).err(), &not_expanded);
        expect(bench.layout.contract(stream, &foreign.dispatched, output).err(), &["another plan"]);
        // SAFETY: nothing is launched with these ranges: they are refused first.
        let part = |skip: u64, less: usize| unsafe {
            DeviceSlice::from_raw(output.address().offset(skip), output.len() - less)
        };
        let local = bench.layout.plan().local_experts();
        let shape = format!("[{local} local experts][16 rows][128 hidden] bf16 needs {}", output.len());
        expect(
            bench.layout.contract(stream, dispatched, part(0, 1)).err(),
            &["the experts' output has", &shape],
        );
        expect(bench.layout.contract(stream, dispatched, part(8, 0)).err(), &["multiple of 16"]);
        let bytes = bench.layout.plan().weight_bytes() as usize;
        for (skip, len, words) in [(0, bytes - 4, "the weights has"), (2, bytes, "multiple of 4")] {
            // SAFETY: as above.
            let weights = unsafe { DeviceSlice::from_raw(output.address().offset(skip), len) };
            let given = LayoutOutput { rows: output, weights: Some(weights) };
            expect(bench.layout.contract(stream, dispatched, given).err(), &["the weights", words]);
        }
        // The same of a combine, and what it writes.
        let row = first.uploaded.output();
        let checked = |of, experts, dispatched, output: DeviceSlice| {
            bench.layout.check_combine(of, experts, dispatched, &output.into()).err()
        };
        expect(checked(&other, output, dispatched, row), &["another plan"]);
        expect(checked(ep, output, &foreign.dispatched, row), &["another plan"]);
        expect(checked(ep, output, &second.dispatched, row), &["combine", not_expanded[0]]);
        expect(checked(ep, part(0, 1), dispatched, row), &["the experts' output has", &shape]);
        // SAFETY: as above.
        let (short, odd) = unsafe {
            (
                DeviceSlice::from_raw(row.address(), row.len() - 1),
                DeviceSlice::from_raw(row.address().offset(8), row.len()),
            )
        };
        expect(checked(ep, output, dispatched, short), &["the combine output has"]);
        expect(checked(ep, output, dispatched, odd), &["the combine output", "multiple of 16"]);
        assert!(checked(ep, output, dispatched, row).is_none());
        let counts = bench.counts.slice();
        // SAFETY: as above.
        let (short, odd) = unsafe {
            (
                DeviceSlice::from_raw(counts.address(), counts.len() - 1),
                DeviceSlice::from_raw(counts.address().offset(2), counts.len()),
            )
        };
        let counted = |slice| bench.layout.local_expert_counts(stream, dispatched, slice).err();
        expect(counted(short), &["the local expert counts has", "local experts] u32"]);
        expect(counted(odd), &["multiple of 4"]);
        expect(
            bench.layout.local_expert_counts(stream, &foreign.dispatched, counts).err(),
            &["another plan"],
        );
        // And then all goes well.
        bench.layout.contract(stream, dispatched, output)?;
        bench.work(stream, &second.dispatched)?;
        world.synchronize(stream)?;
        bench.judge(&oracle(&case, &case.inputs(2)), ep, world.device());
        // A later dispatch on a slot is another one.
        ep.combine(stream, ExpertOutput::InWindow, first.dispatched, row)?;
        ep.combine(stream, ExpertOutput::InWindow, second.dispatched, second.uploaded.output())?;
        let third = depart(ep, stream, &case, 4)?;
        let fourth = depart(ep, stream, &case, 5)?;
        for flight in [&third, &fourth] {
            expect(bench.layout.contract(stream, &flight.dispatched, output).err(), &not_expanded);
        }
        ep.release(stream, third.dispatched)?;
        ep.release(stream, fourth.dispatched)?;
        other.release(stream, foreign.dispatched)?;
        world.synchronize(stream)?;
        Ok(())
    });
}

#[test]
fn counts_alone_need_no_layout() {
    for (wave, routing) in
        [(1, Routing::Hot), (4, Routing::Random), (32, Routing::Nowhere), (64, Routing::Invalid)]
    {
        let mut case = Case::new(3, wave);
        case.routing = routing;
        on_plans(&case, |world, ep, stream| {
            let counter = LocalExpertCounter::new(ep)?;
            let output = Guarded::new(world.device(), counter.local_experts() as usize * 4);
            for number in 0..3 {
                let flight = depart(ep, stream, &case, number)?;
                counter.local_expert_counts(stream, &flight.dispatched, output.slice())?;
                ep.release(stream, flight.dispatched)?;
                world.synchronize(stream)?;
                let inputs = case.inputs(number);
                let first = ep.plan().placement().range(ep.rank()).start;
                let expected: Vec<u8> = (0..counter.local_experts())
                    .flat_map(|local| {
                        let named = |id: &&i32| **id == (first + local) as i32;
                        let count = inputs.iter().flat_map(|input| input.ids.iter()).filter(named).count();
                        (count as u32).to_ne_bytes()
                    })
                    .collect();
                assert_eq!(output.read(), expected);
            }
            Ok(())
        });
    }
}

#[test]
#[ignore = "extended"]
fn a_layout_with_experts_that_do_not_fit_local_memory_is_refused() {
    let mut case = Case::new(1, 1);
    case.config = EpConfig::new(EpShape { hidden: 8, experts: 100_000_000, top_k: 1, max_tokens: 1 });
    on_plans(&case, |_, ep, _| {
        let words = ["experts is 100000000", "bytes of local memory and has"];
        expect(ExpertMajor::new(ep, ExpertMajorConfig::new()).err(), &words);
        expect(LocalExpertCounter::new(ep).err(), &words);
        Ok(())
    });
}

#[test]
fn buffers_are_freed_after_the_kernels_that_use_them() {
    let case = Case::new(2, 1);
    on_plans(&case, |world, ep, stream| {
        for number in 0..10 {
            let mut bench = Bench::new(world, ep, ExpertMajorConfig::new().alignment(16))?;
            let flight = depart(ep, stream, &case, number)?;
            bench.work(stream, &flight.dispatched)?;
            let Bench { layout, output, counts, .. } = bench;
            // Its launches may still be queued.
            drop(layout);
            world.synchronize(stream)?;
            assert_eq!(read(world.device(), counts.slice().address(), 4).len(), 4);
            drop(output);
            ep.release(stream, flight.dispatched)?;
        }
        Ok(())
    });
}

#[test]
fn a_peer_that_dispatches_without_the_numbers_of_pairs_is_a_fault() {
    for mode in [Mode::Slotted, Mode::Compact] {
        let mut case = Case::new(3, 4);
        case.config = case.config.mode(mode);
        let mut config = world_config();
        config.operation_deadline = std::time::Duration::from_secs(3);
        let results = case.on_ranks(&config, |world| {
            let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
            let stream = world.device().create_stream()?;
            let mut layout = ExpertMajor::new(&ep, ExpertMajorConfig::new())?;
            let uploaded = Uploaded::new(world.device(), &case.config, &case.input(ep.rank().get(), 0));
            let tokens = uploaded.tokens(&case.config);
            let dispatched = if ep.rank().get() == 1 {
                ep.dispatch(&stream, &tokens)?
            } else {
                layout.dispatch(&ep, &stream, &tokens)?
            };
            world.synchronize(&stream)?;
            drop(dispatched);
            Ok(())
        });
        let texts: Vec<_> = results.iter().filter(|result| result.is_err()).map(failure).collect();
        let says = |text: &String| text.contains("rank 1 dispatches without experts' rows, and rank");
        assert!(texts.iter().any(says), "{texts:#?}");
    }
}

/// Rows that a rank has no room for: the first of each source are numbered and counted alone, whichever block and tile has the first that
/// does not fit, and however many tokens come before it. Also of experts on several ranks.
#[test]
fn a_rank_without_room_for_all_rows_places_the_first_of_each_source() {
    for (wave, mode, max_recv, max_tokens) in [
        (1, Mode::Slotted, 9, 40),
        (4, Mode::Compact, 23, 40),
        (32, Mode::Slotted, 330, 200),
        (4, Mode::Compact, 250, 170),
        (64, Mode::Slotted, 240, 130),
    ] {
        for (routing, blocks) in [(Routing::Hot, 1), (Routing::Random, 3), (Routing::Random, 5)] {
            let mut case = Case::new(3, wave);
            case.routing = routing;
            let shape = EpShape { hidden: 32, experts: 6, top_k: 3, max_tokens };
            case.config = EpConfig::new(shape).mode(mode).max_recv(max_recv).launch(blocks, 2);
            if blocks == 5 {
                let on = |ranks: &[u32]| ranks.iter().copied().map(GroupRank::new).collect();
                let table = [on(&[0, 2]), on(&[1]), on(&[2, 1, 0]), on(&[1, 0]), on(&[2]), on(&[0])];
                case.config = case.config.placement(PlacementTable::new(table));
            }
            case.tokens = vec![max_tokens, max_tokens - 3, 1];
            run(&case, ExpertMajorConfig::new().alignment(2), 2);
        }
    }
}

/// A rank whose experts do not fit a block's local memory in one kernel takes two, and sends numbers to the others.
#[test]
fn a_rank_may_take_two_kernels_where_others_take_one() {
    let experts = 4000;
    let mut case = Case::new(3, 4);
    let shape = EpShape { hidden: 16, experts, top_k: 3, max_tokens: 12 };
    let table = (0..experts).map(|expert| vec![GroupRank::new(if expert < 3 { expert } else { 1 })]);
    case.config = EpConfig::new(shape).mode(Mode::Slotted).placement(PlacementTable::new(table));
    case.tokens = vec![12, 7, 9];
    all_well(case.on_ranks(&world_config(), |world| {
        let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
        let config = ExpertMajorConfig::new().capacity(8);
        let stream = world.device().create_stream()?;
        let mut layout = ExpertMajor::new(&ep, config)?;
        assert_eq!(layout.is_one_kernel(), ep.rank().get() != 1, "{}", ep.rank());
        let inputs = case.inputs(0);
        let sent = case.sent(&inputs);
        let (me, device) = (ep.rank(), world.device());
        let uploaded = Uploaded::new(device, &case.config, &inputs[me.index()]);
        let dispatched = layout.dispatch(&ep, &stream, &uploaded.tokens(&case.config))?;
        world.synchronize(&stream)?;
        let seen = ExpertMajorRows::read(device, &layout)?;
        oracle(&case, &sent).expert_major(me, 8, 1).unwrap().compare(&seen).unwrap();
        ep.release(&stream, dispatched)?;
        Ok::<_, Error>(world.synchronize(&stream)?)
    }));
}
