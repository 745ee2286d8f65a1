//! The combine that pushes, and codecs: judged bit by bit, and nothing written outside its window.

use crate::common;

use crate::common::{
    Case, Numbers, Routing, Uploaded, all_well, failure, judge_output, on_ranks, oracle, round, run,
    window_bytes, world_config,
};
use anabranch_conformance::ep::oracle::{GivenRows, Shape};
use anabranch_conformance::ep::reference::ReferenceExpert;
use anabranch_ep::{
    COMBINED_TYPES, CombineCodec, CombineSource, DataType, DeviceSlice, EpConfig, EpShape, Error,
    ExpertOutput, ExpertParallel, Mode, Plan,
};
use anabranch_shmem::World;

fn pushing(ranks: u32, wave: u32) -> Case {
    let mut case = Case::new(ranks, wave);
    case.config = case.config.combine_source(CombineSource::Buffer);
    case.staged = true;
    case
}

#[test]
fn every_wave_width_and_number_of_ranks() {
    for (ranks, wave) in [(4, 1), (4, 4), (4, 32), (4, 64), (1, 4), (2, 4), (3, 1), (5, 1), (8, 1), (9, 4)] {
        run(&pushing(ranks, wave), 3);
    }
}

/// [`dropped_copies_are_not_waited_for`] has the other codecs.
#[test]
fn a_codec_of_single_precision() {
    let mut case = pushing(3, 4);
    let codec = "fp8_block".parse().unwrap();
    case.config = case.config.combine_type(DataType::F32).combine_codec(codec);
    run(&case, 2);
}

#[test]
#[ignore = "extended"]
fn every_codec_of_every_type_at_every_wave_width() {
    for codec in CombineCodec::ALL {
        for (element, wave) in COMBINED_TYPES.into_iter().zip([4, 32, 1]) {
            let mut case = pushing(3, wave);
            case.config = case.config.combine_type(element).combine_codec(codec);
            run(&case, 2);
        }
        let mut case = pushing(2, 64);
        case.config = case.config.combine_codec(codec).dispatch_type(DataType::F8E4m3);
        run(&case, 2);
    }
}

#[test]
#[ignore = "extended"]
fn shapes_that_leave_lanes_and_blocks_without_work() {
    for (hidden, experts, top_k, tokens) in
        [(128, 1, 1, 1), (384, 2, 1, 3), (640, 64, 8, 9), (1152, 5, 32, 20), (256, 257, 9, 130)]
    {
        for (codec, wave) in CombineCodec::ALL.into_iter().zip([1, 4, 64, 32, 1, 32]) {
            let mut case = pushing(4, wave);
            let config = EpConfig::new(EpShape { hidden, experts, top_k, max_tokens: tokens });
            case.config = config.combine_source(CombineSource::Buffer).combine_codec(codec);
            case.tokens = vec![tokens, tokens / 2, 0];
            run(&case, 2);
        }
    }
    // Rows that no codec has, of units that are no multiple of a wave.
    for hidden in [8, 24, 1000] {
        let mut case = pushing(3, 32);
        case.config = EpConfig::new(EpShape { hidden, experts: 7, top_k: 3, max_tokens: 20 })
            .combine_source(CombineSource::Buffer);
        run(&case, 2);
    }
}

#[test]
fn extreme_routings_and_launch_shapes() {
    for routing in [Routing::Hot, Routing::Nowhere, Routing::Invalid] {
        let mut case = pushing(4, 4);
        case.config = case.config.combine_codec("fp8_block".parse().unwrap());
        case.routing = routing;
        run(&case, 2);
    }
    for (blocks, waves) in [(1, 1), (1, 4), (3, 2), (8, 1), (16, 4)] {
        let mut case = pushing(2, 4);
        case.config = case.config.launch(blocks, waves);
        run(&case, 2);
    }
}

/// Copies that were dropped have no place in the window: what came is summed, through every codec.
#[test]
fn dropped_copies_are_not_waited_for() {
    for mode in [Mode::Slotted, Mode::Compact] {
        for (codec, max_recv) in CombineCodec::ALL.into_iter().zip([4, 9, 30, 61, 17, 100]) {
            for routing in [Routing::Random, Routing::Hot] {
                let mut case = pushing(4, 4);
                case.config = case.config.combine_codec(codec).mode(mode).max_recv(max_recv);
                case.routing = routing;
                run(&case, 2);
            }
        }
    }
}

/// Pushing, pulling and giving back in turn, on the same slots: the windows share their memory.
#[test]
fn both_ways_take_turns_on_one_window() {
    let case = Case::new(4, 4);
    assert_eq!(case.config.combine_source, CombineSource::Any);
    all_well(on_ranks(4, 4, &world_config(), |world| {
        let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
        let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
        let stream = world.device().create_stream()?;
        for number in 0..12 {
            let staged = [false, true, true, false][number as usize % 4];
            round(&ep, &expert, &stream, world, &Case { staged, ..case.clone() }, number)?;
            if number % 3 == 0 {
                let uploaded =
                    Uploaded::new(world.device(), &case.config, &case.input(ep.rank().get(), number));
                let dispatched = ep.dispatch(&stream, &uploaded.tokens(&case.config))?;
                ep.release(&stream, dispatched)?;
                world.synchronize(&stream)?;
            }
        }
        Ok(())
    }));
}

/// Replays of one graph with other tokens, routings and rows each time, into a buffer that is pushed from.
#[test]
fn a_captured_push_is_replayed_with_other_inputs() {
    for codec in ["none", "fp8_block"] {
        let mut case = pushing(3, 4);
        case.config = case.config.combine_codec(codec.parse().unwrap());
        all_well(on_ranks(3, 4, &world_config(), |world| {
            let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
            let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
            let stream = world.device().create_stream()?;
            let me = ep.rank();
            let mut uploaded = Uploaded::new(world.device(), &case.config, &case.input(me.get(), 0));
            let staging = world.device().allocate(window_bytes(&ep))?;
            stream.begin_capture()?;
            let dispatched = ep.dispatch(&stream, &uploaded.tokens(&case.config))?;
            let experts = common::run_expert(&expert, &stream, &dispatched, &case, &staging)?;
            ep.combine(&stream, experts, dispatched, uploaded.output())?;
            let graph = stream.end_capture()?.instantiate()?;
            for replay in 1..60 {
                let routing = [Routing::Random, Routing::Hot, Routing::Invalid][replay as usize % 3];
                let case = Case { routing, ..case.clone() };
                let inputs = case.inputs(replay);
                uploaded.refill(&inputs[me.index()]);
                uploaded.output.fill(0xee)?;
                // SAFETY: buffers, plan and world live until the stream was waited for.
                unsafe { graph.launch(&stream)? };
                world.synchronize(&stream)?;
                judge_output(&oracle(&case, &inputs), me, &uploaded.read_output(&case.config));
            }
            Ok(())
        }));
    }
}

/// Byte of the memory around windows and buffers.
const CANARY: u8 = 0xa5;

/// Every byte of this rank's symmetric heap that is not of the plan, as a canary; and what of the push window may not be written.
#[test]
fn nothing_is_written_outside_the_window() {
    for codec in CombineCodec::ALL {
        let mut case = pushing(4, 4);
        // Every token goes to all ranks, so that every place of the window is used.
        case.config = EpConfig::new(EpShape { hidden: 128, experts: 4, top_k: 4, max_tokens: 24 });
        case.config = case.config.combine_source(CombineSource::Buffer).combine_codec(codec);
        case.tokens = vec![24];
        all_well(on_ranks(4, 4, &world_config(), |world| guarded(world, &case)));
    }
}

fn guarded(world: &World, case: &Case) -> Result<(), Error> {
    const BYTES: usize = 1 << 16;
    let before = world.allocate(world.group(), BYTES as u64, 256, "canary before")?;
    let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
    let after = world.allocate(world.group(), BYTES as u64, 256, "canary after")?;
    let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
    let stream = world.device().create_stream()?;
    let canary = vec![CANARY; BYTES];
    for part in [&before, &after] {
        // SAFETY: the allocation has these bytes, and no other work uses it.
        unsafe { world.device().write_memory(part.address(), &canary)? };
    }
    // The slot ends with the window; the canary after it begins there, or at the next multiple of the alignment.
    let plan = ep.plan();
    let layout = plan.layout();
    let window = u64::from(plan.fan_out() * plan.config().max_tokens * plan.combine_wire_bytes());
    assert_eq!((layout.combine_rows + window).next_multiple_of(256), layout.bytes);
    let gap = after.offset() - before.offset() - BYTES as u64 - layout.bytes;
    assert!(gap < 4096, "the canaries are not beside the slot: {gap} bytes between");
    let all_ranks: Vec<i32> = (0..4).collect();
    let mut inputs = case.inputs(3);
    for input in &mut inputs {
        input.ids = all_ranks.repeat(24);
    }
    for _ in 0..3 {
        let uploaded = Uploaded::new(world.device(), &case.config, &inputs[ep.rank().index()]);
        let dispatched = ep.dispatch(&stream, &uploaded.tokens(&case.config))?;
        let staging = world.device().allocate(window_bytes(&ep))?;
        let experts = common::run_expert(&expert, &stream, &dispatched, case, &staging)?;
        ep.combine(&stream, experts, dispatched, uploaded.output())?;
        world.synchronize(&stream)?;
        judge_output(&oracle(case, &inputs), ep.rank(), &uploaded.read_output(&case.config));
    }
    for (part, which) in [(&before, "before"), (&after, "after")] {
        let mut seen = vec![0; BYTES];
        // SAFETY: as above.
        unsafe { world.device().read_memory(part.address(), &mut seen)? };
        let hit = seen.iter().position(|byte| *byte != CANARY);
        assert_eq!(hit, None, "{} was written {which} the slot", ep.rank());
    }
    Ok(())
}

/// Rows that were not received are not read, let alone sent: the caller's buffer holds NaNs there.
#[test]
fn rows_that_did_not_come_are_not_pushed() {
    for codec in CombineCodec::ALL {
        let mut case = pushing(3, 4);
        case.config = case.config.combine_codec(codec);
        all_well(on_ranks(3, 4, &world_config(), |world| {
            let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
            let stream = world.device().create_stream()?;
            let inputs = case.inputs(5);
            let me = ep.rank();
            let oracle = oracle(&case, &inputs);
            let row = ep.plan().combine_row_bytes() as usize;
            let tables: Vec<_> = (0..3).map(|rank| table(&oracle, &case, rank, row)).collect();
            let uploaded = Uploaded::new(world.device(), &case.config, &inputs[me.index()]);
            let dispatched = ep.dispatch(&stream, &uploaded.tokens(&case.config))?;
            let staging = common::upload(world.device(), &tables[me.index()]);
            // SAFETY: the buffer lives until the stream was waited for.
            let experts = ExpertOutput::Staged(unsafe { DeviceSlice::of(&staging) });
            ep.combine(&stream, experts, dispatched, uploaded.output())?;
            world.synchronize(&stream)?;
            let rows: Vec<_> = tables.iter().map(Vec::as_slice).collect();
            let given = GivenRows::new(&Shape::new(&case.config, 3), &rows).unwrap();
            let output = uploaded.read_output(&case.config);
            oracle.combine(me).unwrap().compare_output(&output, &given).unwrap();
            assert!(
                output.chunks_exact(2).all(|bits| !half::bf16::from_le_bytes([bits[0], bits[1]]).is_nan())
            );
            Ok(())
        }));
    }
}

/// Random bf16 rows of all magnitudes that a sum of three may have, where the oracle has a row, and NaNs elsewhere.
fn table(
    oracle: &anabranch_conformance::ep::oracle::Oracle<'_>,
    case: &Case,
    rank: u32,
    row: usize,
) -> Vec<u8> {
    let rows = case.ranks as usize * case.config.max_tokens as usize;
    let mut bytes: Vec<u8> = (0..rows * row / 2).flat_map(|_| half::bf16::NAN.to_le_bytes()).collect();
    let mut numbers = Numbers(u64::from(rank) + 1);
    for expected in oracle.dispatch(anabranch_ranks::GroupRank::new(rank)).unwrap().rows() {
        // Every exponent but the last two, subnormals and zeros among them; blocks of one magnitude and of many.
        let base = numbers.below(250);
        for (column, element) in bytes[expected.index * row..][..row].chunks_exact_mut(2).enumerate() {
            let spread = if column / 32 % 2 == 0 { numbers.below(6) } else { numbers.below(250) };
            let exponent = (base + spread).min(252);
            let value = f32::from_bits((numbers.next() as u32 & 0x807f_0000) | (exponent << 23));
            element.copy_from_slice(&half::bf16::from_f32(value).to_le_bytes());
        }
    }
    bytes
}

#[test]
fn combinations_that_make_no_sense_are_refused_with_the_reason() {
    let base = || EpConfig::new(EpShape { hidden: 256, experts: 64, top_k: 8, max_tokens: 128 });
    let fp8: CombineCodec = "fp8_block".parse().unwrap();
    for source in [CombineSource::Window, CombineSource::Any] {
        let refused = Plan::new(base().combine_source(source).combine_codec(fp8), 4).unwrap_err().to_string();
        let reason = format!(
            "combine_codec is fp8_block, and combine_source is {source}; allowed then is buffer: rows are encoded while"
        );
        assert!(refused.contains(&reason), "{refused}");
    }
    for (codec, hidden, block) in [("fp8_direct", 264, 16), ("fp8_block", 192, 128), ("fp4_block", 48, 32)] {
        let config = EpConfig::new(EpShape { hidden, experts: 64, top_k: 8, max_tokens: 128 })
            .combine_source(CombineSource::Buffer);
        let refused = Plan::new(config.combine_codec(codec.parse().unwrap()), 4).unwrap_err().to_string();
        let reason = format!("hidden is {hidden}; the codec {codec} needs a multiple of {block} elements");
        assert!(refused.contains(&reason), "{refused}");
    }
}

#[test]
fn windows_are_as_large_as_what_is_asked_for() {
    let bytes = |source, codec: &str, ranks| {
        let config = EpConfig::new(EpShape { hidden: 256, experts: 64, top_k: 8, max_tokens: 128 })
            .combine_source(source)
            .combine_codec(codec.parse().unwrap());
        let plan = Plan::new(config, ranks).unwrap();
        plan.layout().bytes - plan.layout().combine_rows
    };
    let row = 512;
    for ranks in [2, 8, 64] {
        let places = u64::from(ranks).min(8);
        assert_eq!(bytes(CombineSource::Window, "none", ranks), u64::from(ranks) * 128 * row);
        assert_eq!(bytes(CombineSource::Buffer, "none", ranks), places * 128 * row);
        assert_eq!(bytes(CombineSource::Any, "none", ranks), u64::from(ranks) * 128 * row);
        assert_eq!(bytes(CombineSource::Buffer, "fp8_direct", ranks), places * 128 * row / 2);
        assert_eq!(bytes(CombineSource::Buffer, "fp8_block", ranks), places * 128 * (row / 2 + 16));
        assert_eq!(bytes(CombineSource::Buffer, "fp4_block", ranks), places * 128 * (row / 4 + 16));
    }
}

#[test]
fn output_in_the_wrong_place_is_refused() {
    for (source, staged, words) in [
        (
            CombineSource::Buffer,
            false,
            "in the combine window, but the plan was made for combine_source buffer",
        ),
        (CombineSource::Window, true, "in a buffer, but the plan was made for combine_source window"),
    ] {
        let mut case = Case::new(2, 1);
        case.config = case.config.combine_source(source).slots(2);
        all_well(on_ranks(2, 1, &world_config(), |world| {
            let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
            let stream = world.device().create_stream()?;
            let uploaded = Uploaded::new(world.device(), &case.config, &case.input(ep.rank().get(), 1));
            let staging = world.device().allocate(window_bytes(&ep))?;
            let dispatched = ep.dispatch(&stream, &uploaded.tokens(&case.config))?;
            assert_eq!(dispatched.combine_rows().is_null(), source == CombineSource::Buffer);
            // SAFETY: the buffer lives until the stream was waited for.
            let buffer = ExpertOutput::Staged(unsafe { DeviceSlice::of(&staging) });
            let experts = if staged { buffer } else { ExpertOutput::InWindow };
            let refused =
                ep.combine(&stream, experts, dispatched, uploaded.output()).unwrap_err().to_string();
            assert!(refused.contains(words), "{refused}");
            // The other slot still goes the right way.
            let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
            round(&ep, &expert, &stream, world, &Case { staged: !staged, ..case.clone() }, 2)
        }));
    }
}

#[test]
fn a_buffer_within_the_windows_is_refused() {
    let case = Case::new(2, 1);
    all_well(on_ranks(2, 1, &world_config(), |world| {
        let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
        let stream = world.device().create_stream()?;
        let uploaded = Uploaded::new(world.device(), &case.config, &case.input(ep.rank().get(), 1));
        let dispatched = ep.dispatch(&stream, &uploaded.tokens(&case.config))?;
        // SAFETY: the window has these bytes.
        let window = unsafe { DeviceSlice::from_raw(dispatched.combine_rows(), window_bytes(&ep)) };
        let refused = ep.combine(&stream, ExpertOutput::Staged(window), dispatched, uploaded.output());
        let refused = refused.unwrap_err().to_string();
        assert!(
            refused.contains("the experts' output at 0x") && refused.contains("own windows"),
            "{refused}"
        );
        Ok(world.synchronize(&stream)?)
    }));
}

#[test]
fn a_rank_that_goes_the_other_way_is_a_fault_that_names_it() {
    let case = Case::new(3, 1);
    let results = on_ranks(3, 1, &world_config(), |world| {
        let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
        let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
        let stream = world.device().create_stream()?;
        let staged = ep.rank().get() == 2;
        round(&ep, &expert, &stream, world, &Case { staged, ..case.clone() }, 1)
    });
    for (rank, result) in results.iter().enumerate() {
        let text = failure(result);
        assert!(text.contains("a peer that combines another way"), "{rank}: {text}");
        assert!(
            text.contains("expects that it pushes its rows")
                || text.contains("expects that it has its rows pulled"),
            "{rank}: {text}"
        );
        assert!(rank == 2 || text.contains("rank 2"), "{rank}: {text}");
    }
}
