//! Bad input: an error before anything moves, and the next good operation works.

use crate::common;

use crate::common::{
    Case, Routing, Uploaded, all_well, depart, land, on_ranks, oracle, round, window_bytes, work,
    world_config,
};
use anabranch_conformance::ep::reference::ReferenceExpert;
use anabranch_ep::{DataType, DeviceSlice, EpConfig, Error, ExpertOutput, ExpertParallel, Tokens};
use anabranch_hip::{DeviceAddress, DeviceBuffer, DeviceOrdinal};
use anabranch_hip_host::{HostConfig, HostMachine};
use anabranch_shmem::{Error as WorldError, RankSetup, World, WorldConfig, spawn_threads};

fn slice(buffer: &DeviceBuffer, skip: u64, bytes: usize) -> DeviceSlice {
    // SAFETY: nothing is launched with these ranges: they are refused first.
    unsafe { DeviceSlice::from_raw(buffer.address().offset(skip), bytes) }
}

fn nowhere(bytes: usize) -> DeviceSlice {
    // SAFETY: as above.
    unsafe { DeviceSlice::from_raw(DeviceAddress::NULL, bytes) }
}

/// Wrong forms of good tensors, and what must be in the error's text.
fn wrong_tokens(good: Tokens, buffers: &Uploaded) -> Vec<(Tokens, &'static [&'static str])> {
    let (rows, ids) = (good.rows.len(), good.ids.len());
    let weights = good.weights.unwrap();
    let scales = good.scales.unwrap();
    vec![
        (Tokens { count: 41, ..good }, &["the number of tokens is 41", "max_tokens = 40"]),
        (Tokens { count: usize::MAX, ..good }, &["max_tokens = 40"]),
        (
            Tokens { data_type: DataType::F32, ..good },
            &["the type of the token rows is f32", "made for bf16"],
        ),
        (
            Tokens { rows: slice(&buffers.rows, 0, rows - 1), ..good },
            &["the token rows has", "[40 tokens][128 hidden] bf16 needs 10240"],
        ),
        (Tokens { rows: slice(&buffers.rows, 8, rows), ..good }, &["the token rows at 0x", "multiple of 16"]),
        (Tokens { rows: nowhere(rows), ..good }, &["the token rows at 0x0"]),
        (
            Tokens { ids: slice(&buffers.ids, 0, ids - 4), ..good },
            &["the expert ids has", "[3 top_k] i32 needs 480"],
        ),
        (Tokens { ids: slice(&buffers.ids, 2, ids), ..good }, &["the expert ids at 0x", "multiple of 4"]),
        (
            Tokens { weights: Some(slice(&buffers.weights, 0, weights.len() - 1)), ..good },
            &["the weights has 479 bytes", "needs 480"],
        ),
        (
            Tokens { weights: Some(slice(&buffers.weights, 1, weights.len())), ..good },
            &["the weights at 0x", "multiple of 4"],
        ),
        (
            Tokens { scales: None, ..good },
            &["the length of a token's scales is 0 bytes, but the plan was made for 12 bytes"],
        ),
        (
            Tokens { scales: Some(slice(&buffers.scales, 0, scales.len() - 1)), ..good },
            &["the scales has 479 bytes", "[40 tokens][12 bytes] needs 480"],
        ),
        (
            Tokens { scales: Some(slice(&buffers.scales, 2, scales.len())), ..good },
            &["the scales at 0x", "multiple of 4"],
        ),
    ]
}

/// A plan with its reference expert that runs one good round whenever it is asked.
struct Good {
    ep: ExpertParallel,
    expert: ReferenceExpert,
    stream: anabranch_hip::Stream,
    case: Case,
}

impl Good {
    fn new(world: &World, case: &Case) -> Result<Self, Error> {
        let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
        let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
        Ok(Self { ep, expert, stream: world.device().create_stream()?, case: case.clone() })
    }

    fn round(&self, world: &World, number: u64) -> Result<(), Error> {
        round(&self.ep, &self.expert, &self.stream, world, &self.case, number)
    }
}

fn expect(error: Option<Error>, words: &[&str]) {
    let text = error.map_or_else(|| "no error".to_owned(), |error| error.to_string());
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
}

fn changed(base: &EpConfig, change: impl FnOnce(&mut EpConfig)) -> EpConfig {
    let mut config = base.clone();
    change(&mut config);
    config
}

#[test]
fn wrong_tensors_are_refused_before_a_launch() {
    let mut case = Case::new(3, 1);
    case.config = case.config.scale_bytes(12);
    case.tokens = vec![40];
    all_well(on_ranks(3, 1, &world_config(), |world| {
        let good = Good::new(world, &case)?;
        let buffers = Uploaded::new(world.device(), &case.config, &case.input(world.rank().get(), 0));
        let wrong = wrong_tokens(buffers.tokens(&case.config), &buffers);
        for (number, (tokens, words)) in wrong.iter().enumerate() {
            expect(good.ep.dispatch(&good.stream, tokens).err(), words);
            good.round(world, number as u64)?;
        }
        // Only one rank is wrong, the others wait for its right call.
        if world.rank().get() == 1 {
            expect(good.ep.dispatch(&good.stream, &wrong[0].0).err(), wrong[0].1);
        }
        good.round(world, 99)
    }));
}

#[test]
fn scales_without_a_plan_for_them_are_refused_and_weights_may_be_left_out() {
    let mut case = Case::new(2, 1);
    case.tokens = vec![20];
    all_well(on_ranks(2, 1, &world_config(), |world| {
        let good = Good::new(world, &case)?;
        let buffers = Uploaded::new(world.device(), &case.config, &case.input(world.rank().get(), 0));
        let right = buffers.tokens(&case.config);
        let with_scales = Tokens { scales: Some(slice(&buffers.rows, 0, 20 * 16)), ..right };
        let words = ["the length of a token's scales is 16 bytes, but the plan was made for 0 bytes"];
        expect(good.ep.dispatch(&good.stream, &with_scales).err(), &words);
        good.round(world, 1)?;
        let without_weights = good.ep.dispatch(&good.stream, &Tokens { weights: None, ..right })?;
        good.ep.release(&good.stream, without_weights)?;
        world.synchronize(&good.stream)?;
        good.round(world, 2)
    }));
}

#[test]
fn wrong_output_loses_only_its_slot() {
    let mut case = Case::new(2, 1);
    case.tokens = vec![40, 33];
    case.config = case.config.slots(5);
    all_well(on_ranks(2, 1, &world_config(), |world| {
        let good = Good::new(world, &case)?;
        let Good { ep, expert, stream, .. } = &good;
        let staging = world.device().allocate(window_bytes(ep))?;
        for (number, words) in [
            ["the combine output has", "[128 hidden] bf16 needs"],
            ["the combine output at 0x", "multiple of 16"],
            ["the experts' output has", "[80 rows][128 hidden] bf16 needs 20480"],
            ["the experts' output at 0x", "multiple of 16"],
        ]
        .iter()
        .enumerate()
        {
            let flight = depart(ep, stream, &case, number as u64)?;
            work(expert, stream, &flight.dispatched)?;
            let right = flight.uploaded.output();
            let output = &flight.uploaded.output;
            let (experts, output) = match number {
                0 => (ExpertOutput::InWindow, slice(output, 0, right.len() - 1)),
                1 => (ExpertOutput::InWindow, slice(output, 4, right.len())),
                2 => (ExpertOutput::Staged(slice(&staging, 0, staging.len() - 1)), right),
                _ => (ExpertOutput::Staged(slice(&staging, 8, staging.len())), right),
            };
            expect(ep.combine(stream, experts, flight.dispatched, output).err(), words);
            good.round(world, number as u64 + 10)?;
        }
        let flight = depart(ep, stream, &case, 30)?;
        expect(depart(ep, stream, &case, 31).err(), &["all 5 slots have a dispatch in flight"]);
        work(expert, stream, &flight.dispatched)?;
        let landed = land(ep, stream, flight)?;
        world.synchronize(stream)?;
        landed.judge(ep.rank());
        Ok(())
    }));
}

#[test]
fn configurations_that_differ_name_the_field_on_all_ranks() {
    let case = Case::new(4, 1);
    all_well(on_ranks(4, 1, &world_config(), |world| {
        let base = &case.config;
        let others: [(&str, EpConfig); 8] = [
            ("hidden", changed(base, |config| config.hidden = 256)),
            ("experts", changed(base, |config| config.experts = 16)),
            ("top_k", changed(base, |config| config.top_k = 4)),
            ("max_tokens", changed(base, |config| config.max_tokens = 41)),
            ("dispatch_type", base.clone().dispatch_type(DataType::F32)),
            ("combine_type", base.clone().combine_type(DataType::F32)),
            ("scale_bytes", base.clone().scale_bytes(8)),
            ("slots", base.clone().slots(3)),
        ];
        for (number, (field, other)) in others.into_iter().enumerate() {
            let odd = number as u32 % 4;
            let config = if world.rank().get() == odd { other } else { base.clone() };
            let error = ExpertParallel::new(world, world.group(), config).err();
            let differs = matches!(&error, Some(Error::Shmem(WorldError::Differs { field: named, .. })) if named == field);
            assert!(differs, "{field}: {error:?}");
            expect(error, &[&format!("rank {odd} has")]);
        }
        Good::new(world, &case)?.round(world, 1)
    }));
}

#[test]
fn invalid_configuration_is_an_error_on_all_ranks() {
    let case = Case::new(3, 1);
    all_well(on_ranks(3, 1, &world_config(), |world| {
        let base = &case.config;
        for (field, config) in [
            ("hidden", changed(base, |config| config.hidden = 12)),
            ("hidden", changed(base, |config| config.hidden = 0)),
            ("experts", changed(base, |config| config.experts = 0)),
            ("top_k", changed(base, |config| config.top_k = 33)),
            ("max_tokens", changed(base, |config| config.max_tokens = 0)),
            ("scale_bytes", base.clone().scale_bytes(6)),
            ("slots", base.clone().slots(0)),
        ] {
            let error = ExpertParallel::new(world, world.group(), config).err();
            let named = matches!(&error, Some(Error::Config { field: named, .. }) if *named == field);
            assert!(named, "{field}: {error:?}");
        }
        // On one rank only: the launch shape is each rank's own, but it has to be possible.
        let mut config = base.clone();
        if world.rank().get() == 2 {
            config = config.launch(4, 17);
        }
        let error = ExpertParallel::new(world, world.group(), config).err();
        if world.rank().get() == 2 {
            expect(error, &["waves_per_block is 17"]);
        } else {
            expect(error, &["ep plan failed on rank 2", "waves_per_block is 17"]);
        }
        Good::new(world, &case)?.round(world, 1)
    }));
}

#[test]
fn launch_shapes_may_differ_between_ranks() {
    let mut case = Case::new(4, 4);
    case.tokens = vec![40, 2];
    all_well(on_ranks(4, 4, &world_config(), |world| {
        let rank = world.rank().get();
        let mut mine = case.clone();
        mine.config = mine.config.launch(1 + rank * 3, 1 + rank);
        let good = Good::new(world, &mine)?;
        (0..5).try_for_each(|number| good.round(world, number))
    }));
}

#[test]
fn small_heap_names_the_missing_bytes_on_all_ranks() {
    let case = Case::new(3, 1);
    let slot = anabranch_ep::Plan::new(case.config.clone(), 3).unwrap().heap_bytes();
    let config = WorldConfig { heap_bytes: 1 << 20, ..world_config() };
    all_well(on_ranks(3, 1, &config, |world| {
        for slots in [1, 20] {
            let mut large = case.config.clone().slots(slots);
            // One slot that is too large; many that are too many.
            large.max_tokens = if slots == 1 { 2000 } else { 40 };
            let error = ExpertParallel::new(world, world.group(), large).err();
            let Some(Error::Shmem(WorldError::HeapExhausted {
                needed, largest, missing, heap_bytes, ..
            })) = &error
            else {
                panic!("{error:?}");
            };
            assert_eq!((*missing, *heap_bytes), (needed - largest, 1 << 20));
            expect(error, &["are missing; raise heap.bytes (now 1048576)"]);
        }
        // What was allocated before the failure is free again: nearly the whole heap can be used.
        let most = ((1 << 20) / slot - 1) as u32;
        let mut all = case.clone();
        all.config = all.config.slots(most);
        Good::new(world, &all)?.round(world, 1)
    }));
}

#[test]
fn out_of_memory_on_one_rank_is_an_error_on_all_ranks() {
    let config = HostConfig { devices: 3, memory_bytes: 64 << 20, ..HostConfig::default() };
    let machine = HostMachine::new(config).unwrap();
    let (runtime, jit) = (machine.runtime(), common::jit());
    let case = Case::new(3, 1);
    all_well(spawn_threads(
        3,
        |rank| {
            let device = runtime.device(DeviceOrdinal(rank.get()))?;
            let config = WorldConfig { heap_bytes: 16 << 20, ..world_config() };
            Ok(RankSetup { config, device, jit: jit.clone() })
        },
        |world| {
            let mut taken = Vec::new();
            let mut size = if world.rank().get() == 1 { 32 << 20 } else { 0 };
            while size >= 4096 {
                match world.device().allocate(size) {
                    Ok(buffer) => taken.push(buffer),
                    Err(_) => size /= 2,
                }
            }
            let large = changed(&case.config.clone().slots(3), |config| config.max_tokens = 400);
            let error = ExpertParallel::new(world, world.group(), large).err();
            if world.rank().get() == 1 {
                expect(error, &["hipErrorOutOfMemory"]);
            } else {
                expect(error, &["ep slots failed on rank 1", "hipErrorOutOfMemory"]);
            }
            drop(taken);
            Good::new(world, &case)?.round(world, 1)
        },
    ));
}

#[test]
fn the_first_invalid_id_is_reported_and_then_forgotten() {
    for wave in [1, 4, 32] {
        let mut case = Case::new(4, wave);
        case.routing = Routing::Invalid;
        case.config = case.config.slots(2);
        let clean = Case { routing: Routing::Random, ..case.clone() };
        all_well(on_ranks(4, wave, &world_config(), |world| {
            let good = Good::new(world, &case)?;
            let Good { ep, expert, stream, .. } = &good;
            for number in 0..6 {
                // The values around the range, and the far ends.
                let mut inputs = case.inputs(number);
                let experts = case.config.experts as i32;
                for (input, odd) in inputs.iter_mut().zip([i32::MIN, i32::MAX, -2, experts]) {
                    if let Some(id) = input.ids.get_mut(number as usize * 2 % 7) {
                        *id = odd;
                    }
                }
                let uploaded = Uploaded::new(world.device(), &case.config, &inputs[ep.rank().index()]);
                let dispatched = ep.dispatch(stream, &uploaded.tokens(&case.config))?;
                work(expert, stream, &dispatched)?;
                ep.combine(stream, ExpertOutput::InWindow, dispatched, uploaded.output())?;
                let seen = ep.check_ids(stream);
                let oracle = oracle(&case, &inputs);
                common::judge_output(&oracle, ep.rank(), &uploaded.read_output(&case.config));
                let expected = oracle.invalid_ids(ep.rank()).unwrap();
                match (expected.first, seen) {
                    (None, Ok(())) => assert!(case.tokens_of(ep.rank().get()) < 10),
                    (Some(first), Err(Error::InvalidExpert { rank, count, token, id, experts })) => {
                        assert_eq!((rank, token, id), (first.rank, first.token, first.id));
                        assert_eq!((u64::from(count), experts), (expected.count, case.config.experts));
                    }
                    (expected, seen) => panic!("{expected:?} {seen:?}"),
                }
                ep.check_ids(stream)?;
                round(ep, expert, stream, world, &clean, number)?;
                ep.check_ids(stream)?;
            }
            // Two in flight: both report.
            let flights = [depart(ep, stream, &case, 0)?, depart(ep, stream, &case, 1)?];
            if case.tokens_of(ep.rank().get()) > 10 {
                assert!(matches!(ep.check_ids(stream), Err(Error::InvalidExpert { .. })));
                assert!(matches!(ep.check_ids(stream), Err(Error::InvalidExpert { .. })));
                ep.check_ids(stream)?;
            }
            for flight in flights {
                work(expert, stream, &flight.dispatched)?;
                let landed = land(ep, stream, flight)?;
                world.synchronize(stream)?;
                landed.judge(ep.rank());
            }
            Ok(())
        }));
    }
}
