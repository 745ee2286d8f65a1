//! Dispatch and combine whose rows copy engines move: by copies of streams, and by queues that kernels write; judged bit by bit.

use crate::common;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{
    Case, Routing, all_well, cache, depart, jit, judge_dropped, judge_rows, land, machine, on_ranks,
    on_ranks_with, oracle, round, tools, work, world_config,
};
use crate::killed_common::{RANKS, stalling_thread_in};
use crate::split_common::{Rank, interleaved, other_work};
use anabranch_clock::Moment;
use anabranch_conformance::ep::reference::ReferenceExpert;
use anabranch_ep::{
    CombineCodec, CombineSource, DataType, DispatchCast, EpConfig, EpShape, Error, ExpertParallel, Fp8Format,
    Mode, OnTimeout, Payload, Plan,
};
use anabranch_hip::DeviceOrdinal;
use anabranch_hip_jit::{Jit, JitConfig};
use anabranch_ranks::GlobalRank;
use anabranch_shmem::{EngineFaults, SdmaConfig, SoftwareConfig, World, WorldConfig};
use anabranch_testkit::{Ranks, meet, mutant, role, test_path};
use anabranch_transport::TransportKind;

/// How ranks reach each other, and so which engines copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// Streams copy.
    P2p,
    /// Kernels write queues, whose rings hold a few packets.
    Queues,
}

const ROUTES: [Route; 2] = [Route::P2p, Route::Queues];

impl Route {
    fn config(self) -> WorldConfig {
        let base = world_config();
        if self == Self::P2p {
            return base;
        }
        let sdma = SdmaConfig { ring_bytes: 4096, most_copy_bytes: 4096, ..SdmaConfig::default() };
        WorldConfig { transports: vec![TransportKind::Sdma, TransportKind::P2p], sdma, ..base }
    }

    fn check(self, world: &World) {
        let kind = if self == Self::P2p { TransportKind::P2p } else { TransportKind::Sdma };
        assert!(world.routes().iter().all(|route| route.kind == kind));
        let all = (0..world.size()).map(GlobalRank::new);
        assert!(all.into_iter().all(|rank| world.queues_to(rank).is_empty() == (self == Self::P2p)));
    }
}

pub(crate) fn by_engine(ranks: u32, wave: u32) -> Case {
    let mut case = Case::new(ranks, wave);
    case.config = case.config.payload(Payload::CopyEngine);
    case
}

/// Rounds of whole operations, with other tokens and routings each.
pub(crate) fn run(case: &Case, route: Route, rounds: u64) {
    all_well(case.on_ranks(&route.config(), |world| {
        route.check(world);
        run_rounds(world, case, rounds)
    }));
}

fn run_rounds(world: &World, case: &Case, rounds: u64) -> Result<(), Error> {
    let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
    let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
    let stream = world.device().create_stream()?;
    for number in 0..rounds {
        round(&ep, &expert, &stream, world, &case.varied(number), number)?;
    }
    Ok(())
}

fn whole_operations(groups: &[(u32, u32)]) {
    for route in ROUTES {
        for &(ranks, wave) in groups {
            let mut case = by_engine(ranks, wave);
            case.staged = wave == 4;
            run(&case, route, 5);
        }
    }
}

#[test]
fn whole_operations_on_one_and_four_ranks() {
    whole_operations(&[(1, 4), (4, 4)]);
}

#[test]
#[ignore = "extended"]
fn whole_operations_at_every_wave_width() {
    whole_operations(&[(1, 32), (2, 1), (3, 32), (5, 64)]);
}

#[test]
fn caps_scales_and_both_sources_of_rows() {
    for route in ROUTES {
        for (source, staged) in [(CombineSource::Window, false), (CombineSource::Buffer, true)] {
            let mut case = by_engine(4, 4);
            case.config = case.config.max_recv(30).scale_bytes(12).combine_source(source);
            case.staged = staged;
            run(&case, route, 5);
        }
    }
}

#[test]
fn rows_are_cast() {
    for route in ROUTES {
        let mut case = by_engine(3, 32);
        case.config.hidden = 256;
        let config = case.config.dispatch_type(DataType::F8E4m3);
        case.config = config.dispatch_cast(DispatchCast::Fp8Block(Fp8Format::E4m3fn));
        run(&case, route, 5);
    }
}

#[test]
fn send_and_recv_with_other_work_between_equal_the_whole() {
    for route in ROUTES {
        let mut case = by_engine(4, 4);
        case.config = case.config.max_recv(45);
        all_well(case.on_ranks(&route.config(), |world| {
            let mut rank = Rank::new(world, &case)?;
            let (stream, side) = (world.device().create_stream()?, world.device().create_stream()?);
            for number in 0..6 {
                rank.refill(number)?;
                let mut kept = Vec::new();
                let sent = rank.send(&stream)?;
                kept.push(other_work(&stream, world.device())?);
                let zeros = common::upload(world.device(), &vec![0; rank.uploaded.rows.len()]);
                // The tokens are staged, and their buffer is free, in stream order.
                // SAFETY: both live until the stream was waited for.
                unsafe {
                    stream.copy_async(rank.uploaded.rows.address(), zeros.address(), zeros.len())?;
                }
                // The second half on the same stream, or on another.
                let later = if number % 2 == 0 { &stream } else { &side };
                let dispatched = rank.ep.dispatch_recv(later, sent)?;
                world.synchronize(later)?;
                let inputs = case.inputs(number);
                let oracle = oracle(&case, &inputs);
                judge_rows(&oracle, rank.ep.rank(), world.device(), &rank.ep, &dispatched);
                judge_dropped(&oracle, world.device(), &rank.ep, later, &dispatched)?;
                let sent = rank.offer(later, dispatched)?;
                kept.push(other_work(later, world.device())?);
                rank.sum(&stream, sent)?;
                world.synchronize(&stream)?;
                world.synchronize(&side)?;
                rank.judge(number);
            }
            Ok(())
        }));
    }
}

#[test]
fn two_plans_interleave_with_several_slots() {
    for route in ROUTES {
        let mut cases = [by_engine(3, 4), by_engine(3, 4)];
        for case in &mut cases {
            case.config = case.config.clone().slots(2);
        }
        cases[1].tokens = vec![2, 40, 11];
        all_well(on_ranks(3, 4, &route.config(), |world| {
            let [mut one, mut two] = [Rank::new(world, &cases[0])?, Rank::new(world, &cases[1])?];
            let streams = [world.device().create_stream()?, world.device().create_stream()?];
            for number in 0..9 {
                one.refill(number)?;
                two.refill(number + 50)?;
                match number % 3 {
                    0 => interleaved(&one, &two, &streams[0], &streams[0])?,
                    1 => interleaved(&one, &two, &streams[0], &streams[1])?,
                    _ => interleaved(&two, &one, &streams[1], &streams[0])?,
                }
                world.synchronize(&streams[0])?;
                world.synchronize(&streams[1])?;
                one.judge(number);
                two.judge(number + 50);
            }
            Ok(())
        }));
    }
}

#[test]
fn replays_of_interleaved_halves_with_new_inputs() {
    for route in ROUTES {
        let mut cases = [by_engine(2, 4), by_engine(2, 4)];
        for (case, tokens) in cases.iter_mut().zip([vec![6, 3], vec![1, 5]]) {
            let config = EpConfig::new(EpShape { hidden: 16, experts: 5, top_k: 2, max_tokens: 6 })
                .mode(Mode::Slotted)
                .max_recv(7);
            case.config = config.payload(Payload::CopyEngine);
            case.tokens = tokens;
        }
        all_well(on_ranks(2, 4, &route.config(), |world| {
            let [mut one, mut two] = [Rank::new(world, &cases[0])?, Rank::new(world, &cases[1])?];
            let stream = world.device().create_stream()?;
            stream.begin_capture()?;
            interleaved(&one, &two, &stream, &stream)?;
            let graph = stream.end_capture()?.instantiate()?;
            for replay in 0..200 {
                one.refill(replay)?;
                two.refill(replay + 5000)?;
                // SAFETY: buffers, plans and world live until the stream was waited for.
                unsafe { graph.launch(&stream)? };
                world.synchronize(&stream)?;
                one.judge(replay);
                two.judge(replay + 5000);
            }
            Ok(())
        }));
    }
}

/// Operations that follow each other without a wait on the host: slots, staging and flags are used again as soon as may be.
#[test]
fn consecutive_replays_need_no_wait() {
    for route in ROUTES {
        let case = by_engine(4, 1);
        all_well(on_ranks(4, 1, &route.config(), |world| {
            let mut rank = Rank::new(world, &case)?;
            let stream = world.device().create_stream()?;
            rank.refill(3)?;
            stream.begin_capture()?;
            rank.whole(&stream)?;
            rank.whole(&stream)?;
            let graph = stream.end_capture()?.instantiate()?;
            for _ in 0..40 {
                // SAFETY: buffers, plan and world live until the stream was waited for.
                unsafe { graph.launch(&stream)? };
            }
            world.synchronize(&stream)?;
            rank.judge(3);
            Ok(())
        }));
    }
}

#[test]
fn releases_between_combines() {
    for route in ROUTES {
        let case = by_engine(3, 4);
        all_well(on_ranks(3, 4, &route.config(), |world| {
            let mut rank = Rank::new(world, &case)?;
            let stream = world.device().create_stream()?;
            for number in 0..4 {
                rank.refill(number)?;
                let sent = rank.send(&stream)?;
                let dispatched = rank.ep.dispatch_recv(&stream, sent)?;
                rank.ep.release(&stream, dispatched)?;
                rank.whole(&stream)?;
                world.synchronize(&stream)?;
                rank.judge(number);
            }
            Ok(())
        }));
    }
}

/// A half that no second half receives costs its slot; what it sent is complete before its memory goes.
#[test]
fn dropped_send_loses_only_its_slot() {
    for route in ROUTES {
        let mut case = by_engine(3, 4);
        case.config = case.config.slots(2);
        all_well(on_ranks(3, 4, &route.config(), |world| {
            for number in 0..3 {
                let rank = Rank::new(world, &case)?;
                let stream = world.device().create_stream()?;
                drop(rank.send(&stream)?);
                round(&rank.ep, &rank.expert, &stream, world, &case, number)?;
                let uploaded = rank.uploaded;
                let sent = rank.ep.dispatch_send(&stream, &uploaded.tokens(&case.config))?;
                let dispatched = rank.ep.dispatch_recv(&stream, sent)?;
                let full = rank.ep.dispatch_send(&stream, &uploaded.tokens(&case.config)).err();
                assert!(matches!(full, Some(Error::SlotsBusy { slots: 2 })), "{full:?}");
                rank.ep.release(&stream, dispatched)?;
                world.synchronize(&stream)?;
            }
            Ok(())
        }));
    }
}

#[test]
fn between_processes() {
    const RANKS: u32 = 3;
    const LIMIT: Duration = Duration::from_secs(30);
    if let Some(role) = role() {
        let (route, file) = role.argument.split_once(' ').unwrap();
        let route = if route == "queues" { Route::Queues } else { Route::P2p };
        let rendezvous = Arc::new(meet(&role, Path::new(file), LIMIT, || ()).unwrap());
        let device = machine(role.size, 4).runtime().device(DeviceOrdinal(role.rank)).unwrap();
        let world = World::join(route.config(), device, jit(), rendezvous).unwrap();
        route.check(&world);
        run_rounds(&world, &by_engine(RANKS, 4), 6).unwrap();
        world.leave().unwrap();
        return;
    }
    for route in ["p2p", "queues"] {
        let name = format!("engine-{route}-{}-address", std::process::id());
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_file(&file);
        let argument = format!("{route} {}", file.display());
        let ranks = Ranks::start(test_path!("between_processes"), RANKS, &argument).unwrap();
        ranks.succeed(Duration::from_secs(120)).unwrap();
    }
}

/// A member that does not come to the second half, or to the next operation, is waited for no longer than the deadline, and named.
#[test]
#[ignore = "extended"]
fn missing_member_is_named() {
    for route in ROUTES {
        let case = by_engine(RANKS, 1);
        let texts = stalling_thread_in(&route.config(), &case, "ep dispatch", |ep, expert, stream, stall| {
            stall();
            // One of its own calls finds the world given up: the first, if the others' reports are there already.
            let flight = depart(ep, stream, &case, 3)?;
            work(expert, stream, &flight.dispatched)?;
            land(ep, stream, flight).map(|_| ())
        });
        assert!(texts[1].contains("rank 1 in ep dispatch"), "{texts:?}");
        let texts = stalling_thread_in(&route.config(), &case, "ep combine", |ep, expert, stream, stall| {
            let flight = depart(ep, stream, &case, 3)?;
            work(expert, stream, &flight.dispatched)?;
            stall();
            land(ep, stream, flight).map(|_| ())
        });
        assert!(texts[1].contains("rank 1 in ep combine"), "{texts:?}");
    }
}

fn with_software(software: SoftwareConfig) -> WorldConfig {
    let base = Route::Queues.config();
    let sdma = SdmaConfig { software, ..base.sdma };
    WorldConfig { sdma, ..base }
}

/// Engines that move a few bytes at a time, packets overtaking each other where they may: flags still come last.
#[test]
fn slow_engines_change_nothing() {
    for seed in 0..6 {
        let software = SoftwareConfig { stride: 64, steps: 1, seed, ..SoftwareConfig::default() };
        let mut case = by_engine(3, 4);
        case.config.hidden = 1024;
        all_well(on_ranks(3, 4, &with_software(software), |world| run_rounds(world, &case, 3)));
    }
}

/// Rounds whose buffer of experts' rows is cleared after the second half of combine, when others may still sum.
fn reuse_buffers(world: &World, case: &Case, rounds: u64) -> Result<(), Error> {
    let mut rank = Rank::new(world, case)?;
    let stream = world.device().create_stream()?;
    let zeros = common::upload(world.device(), &vec![0; rank.staging.len()]);
    for number in 0..rounds {
        rank.refill(number)?;
        rank.whole(&stream)?;
        // SAFETY: both live until the stream was waited for.
        unsafe { stream.copy_async(rank.staging.address(), zeros.address(), zeros.len())? };
        world.synchronize(&stream)?;
        rank.judge(number);
    }
    Ok(())
}

fn staged() -> Case {
    let mut case = by_engine(3, 4);
    case.config.hidden = 1024;
    case.staged = true;
    // Some have little to send and much to sum, and others the other way.
    case.routing = Routing::SoftHot;
    case
}

#[test]
#[ignore = "extended"]
fn buffer_is_free_after_the_receive() {
    for seed in 0..4 {
        let software = SoftwareConfig { stride: 64, steps: 1, seed, ..SoftwareConfig::default() };
        for world in [world_config(), with_software(software)] {
            all_well(on_ranks(3, 4, &world, |world| reuse_buffers(world, &staged(), 6)));
        }
    }
}

/// The mutants: a flag before its rows, the epoch of a flag before its count, and a second half that leaves its engines alone. With slow engines some rank sees it soon.
#[test]
#[ignore = "extended"]
fn mutants_are_caught() {
    for name in ["SDMA_FLAG_LOW_FIRST", "ENGINE_FLAG_FIRST", "ENGINE_UNWAITED"] {
        let mut config = JitConfig::new(cache());
        config.edits = mutant(name);
        let jit = Jit::new(config, tools());
        let mut case = by_engine(3, 4);
        case.config.hidden = 1024;
        let work = |world: &World| {
            run_rounds(world, &case, 6)?;
            reuse_buffers(world, &staged(), 6)
        };
        let caught = (0..20).any(|seed| {
            let software = SoftwareConfig { stride: 64, steps: 1, seed, ..SoftwareConfig::default() };
            let world = WorldConfig { operation_deadline: Duration::from_secs(3), ..with_software(software) };
            let results = on_ranks_with(&jit, 3, 4, &world, work);
            results.iter().any(Result::is_err)
        });
        assert!(caught, "{name} was not seen");
    }
}

/// Engines that stand still: every rank ends with an error that says what it waited for, in time.
#[test]
fn stalled_engine_is_reported_within_the_deadline() {
    let deadline = Duration::from_secs(2);
    for packets in [20, 31] {
        let faults = EngineFaults { stalls_after: Some(packets), ..EngineFaults::default() };
        let software = SoftwareConfig { faults, ..SoftwareConfig::default() };
        let world = WorldConfig { operation_deadline: deadline, ..with_software(software) };
        let case = by_engine(3, 4);
        let start = Moment::now();
        let results = on_ranks(3, 4, &world, |world| run_rounds(world, &case, 50));
        let took = start.elapsed();
        assert!((deadline / 2..deadline * 5).contains(&took), "{took:?}");
        for result in &results {
            let text = common::failure(result);
            let waits = [
                "completion by a copy engine",
                "room in a queue of copy engines",
                "ep dispatch",
                "ep combine",
            ];
            assert!(waits.iter().any(|wait| text.contains(wait)), "{text}");
        }
    }
}

#[test]
fn options_without_engine_support_are_refused_by_name() {
    let base = || {
        EpConfig::new(EpShape { hidden: 128, experts: 8, top_k: 2, max_tokens: 16 })
            .payload(Payload::CopyEngine)
    };
    Plan::new(base(), 4).unwrap();
    let mask = OnTimeout::Mask { patience: Duration::from_secs(1) };
    let codec = CombineCodec::Fp8Direct(Fp8Format::E4m3fn);
    let refused = [
        ("mode", base().mode(Mode::Compact)),
        (
            "mode",
            EpConfig::new(EpShape { hidden: 128, experts: 8, top_k: 2, max_tokens: 4096 })
                .payload(Payload::CopyEngine),
        ),
        ("on_timeout", base().mode(Mode::Slotted).on_timeout(mask)),
        ("combine_codec", base().combine_source(CombineSource::Buffer).combine_codec(codec)),
        ("combine_weights", base().combine_weights(true)),
        ("late_weights", base().late_weights(true)),
    ];
    for (expected, config) in refused {
        let error = Plan::new(config, 4).unwrap_err();
        assert!(matches!(error, Error::Unsupported { field, .. } if field == expected), "{error}");
        assert!(
            error.to_string().starts_with(&format!("payload is copy-engine, and {expected} is ")),
            "{error}"
        );
    }
}

#[test]
fn engine_plans_refuse_saved_routings() {
    all_well(on_ranks(2, 4, &world_config(), |world| {
        let ep = ExpertParallel::new(world, world.group(), by_engine(2, 4).config)?;
        assert!(matches!(ep.allocate_routing().unwrap_err(), Error::NotPlanned { .. }));
        Ok(())
    }));
    let results = on_ranks(2, 4, &world_config(), |world| {
        let payload = Payload::ALL[world.rank().index()];
        ExpertParallel::new(world, world.group(), Case::new(2, 4).config.payload(payload)).map(|_| ())
    });
    for result in &results {
        let text = common::failure(result);
        assert!(text.contains("payload") && text.contains("copy-engine"), "{text}");
    }
}
