//! Dispatch and combine across nodes that are given to the plan: every rank reaches every other, and the kernels put to ranks of other nodes
//! by the device functions of the heap, as they do over a NIC. Judged bit by bit.

use crate::common;
use crate::nodes_common;

use crate::common::{
    Case, Routing, all_well, depart, judge_dropped, judge_rows, land, on_ranks, oracle, round, work,
    world_config,
};
use crate::nodes_common::{GROUPS, WAYS, across, on};
use crate::split_common::{Rank, interleaved, other_work};
use anabranch_conformance::ep::reference::ReferenceExpert;
use anabranch_ep::{
    Across, CombineSource, DataType, DispatchCast, EpConfig, EpShape, Error, ExpertParallel, Fp8Format,
    Nodes, PlacementTable,
};
use anabranch_ranks::GroupRank;

/// Rounds of whole operations, with other tokens and routings each.
pub(crate) fn run(case: &Case, rounds: u64) {
    all_well(case.on_ranks(&world_config(), |world| {
        let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
        assert!(ep.plan().across().is_some_and(|(_, way)| way == case.config.across));
        let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
        let stream = world.device().create_stream()?;
        for number in 0..rounds {
            round(&ep, &expert, &stream, world, &case.varied(number), number)?;
        }
        Ok(())
    }));
}

fn whole_operations(widths: [Option<u32>; 5]) {
    for way in WAYS {
        for (sizes, wave) in GROUPS.into_iter().zip(widths) {
            let Some(wave) = wave else { continue };
            let mut case = across(sizes, wave, way);
            case.staged = wave == 4;
            run(&case, 5);
        }
    }
}

#[test]
fn whole_operations_over_nodes_of_equal_and_uneven_sizes() {
    whole_operations([None, Some(4), None, None, Some(4)]);
}

#[test]
#[ignore = "extended"]
fn whole_operations_over_nodes_of_all_shapes_at_every_wave_width() {
    whole_operations([1, 4, 32, 64, 4].map(Some));
}

#[test]
fn many_rounds_use_the_slot_again() {
    for way in WAYS {
        let mut case = across(&[2, 2], 4, way);
        case.config = case.config.launch(3, 2);
        run(&case, 25);
    }
}

#[test]
fn nodes_whose_ranks_do_not_lie_together() {
    for way in WAYS {
        run(&on(&Nodes::new(&[7, 9, 7, 9, 9]), 4, way), 5);
    }
}

/// Tokens of several tiles, in several blocks and parts of rows, with caps, so that rows are dropped.
#[test]
fn caps_scales_tiles_and_both_sources_of_rows() {
    for way in WAYS {
        for (source, staged) in [(CombineSource::Window, false), (CombineSource::Buffer, true)] {
            let mut case = across(&[2, 2], 4, way);
            case.config.max_tokens = 150;
            case.config = case.config.max_recv(200).scale_bytes(12).combine_source(source).launch(5, 2);
            case.tokens = vec![150, 3, 70, 131];
            case.staged = staged;
            run(&case, 5);
        }
    }
}

#[test]
fn rows_are_cast() {
    for way in WAYS {
        let mut case = across(&[1, 3], 32, way);
        case.config.hidden = 256;
        let config = case.config.dispatch_type(DataType::F8E4m3);
        case.config = config.dispatch_cast(DispatchCast::Fp8Block(Fp8Format::E4m3fn));
        run(&case, 5);
    }
}

/// An expert on several ranks: which of them works is decided by the source's number of the token.
#[test]
fn experts_on_several_ranks() {
    for way in WAYS {
        let mut case = across(&[3, 1, 2], 4, way);
        let ranks = |expert: u32| (0..=expert % 3).map(|i| GroupRank::new((expert + 2 * i) % 6)).collect();
        case.config.placement = Some(PlacementTable::new((0..case.config.experts).map(ranks)));
        run(&case, 5);
    }
}

#[test]
fn send_and_recv_with_other_work_between_equal_the_whole() {
    for way in WAYS {
        for staged in [false, true] {
            let mut case = across(&[2, 2], 4, way);
            case.config = case.config.max_recv(45);
            case.staged = staged;
            all_well(case.on_ranks(&world_config(), |world| {
                let mut rank = Rank::new(world, &case)?;
                let (stream, side) = (world.device().create_stream()?, world.device().create_stream()?);
                for number in 0..6 {
                    rank.refill(number)?;
                    let sent = rank.send(&stream)?;
                    let mut kept = vec![other_work(&stream, world.device())?];
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
}

#[test]
fn replays_of_interleaved_halves_with_new_inputs() {
    for way in WAYS {
        let mut cases = [across(&[2, 1], 4, way), across(&[2, 1], 4, way)];
        for (case, tokens) in cases.iter_mut().zip([vec![6, 3], vec![1, 5]]) {
            let config =
                EpConfig::new(EpShape { hidden: 16, experts: 5, top_k: 2, max_tokens: 6 }).max_recv(7);
            case.config = config.nodes(nodes_common::map(&[2, 1])).across(way);
            case.tokens = tokens;
        }
        all_well(on_ranks(3, 4, &world_config(), |world| {
            let [mut one, mut two] = [Rank::new(world, &cases[0])?, Rank::new(world, &cases[1])?];
            let stream = world.device().create_stream()?;
            stream.begin_capture()?;
            interleaved(&one, &two, &stream, &stream)?;
            let graph = stream.end_capture()?.instantiate()?;
            for replay in 0..60 {
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

/// Operations that follow each other without a wait on the host: slots, staging, relay windows and flags are used again as soon as
/// may be.
#[test]
#[ignore = "extended"]
fn consecutive_replays_need_no_wait() {
    for way in WAYS {
        let case = across(&[2, 2], 1, way);
        all_well(on_ranks(4, 1, &world_config(), |world| {
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
fn several_slots_and_releases_between_combines() {
    for way in WAYS {
        let mut case = across(&[1, 2], 4, way);
        case.config = case.config.slots(2);
        all_well(on_ranks(3, 4, &world_config(), |world| {
            let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
            let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
            let stream = world.device().create_stream()?;
            for number in 0..6 {
                let one = depart(&ep, &stream, &case, 2 * number)?;
                let two = depart(&ep, &stream, &case, 2 * number + 1)?;
                if number % 2 == 0 {
                    ep.release(&stream, one.dispatched)?;
                    work(&expert, &stream, &two.dispatched)?;
                    let landed = land(&ep, &stream, two)?;
                    world.synchronize(&stream)?;
                    landed.judge(ep.rank());
                } else {
                    work(&expert, &stream, &one.dispatched)?;
                    work(&expert, &stream, &two.dispatched)?;
                    let landed = [land(&ep, &stream, two)?, land(&ep, &stream, one)?];
                    world.synchronize(&stream)?;
                    for one in &landed {
                        one.judge(ep.rank());
                    }
                }
            }
            Ok(())
        }));
    }
}

/// Who gives a slot back that others combine is reported, on both sides of a link between nodes.
#[test]
fn release_against_combine_is_a_fault() {
    for way in WAYS {
        let case = across(&[2, 1], 4, way);
        let results = on_ranks(3, 4, &world_config(), |world| {
            let rank = Rank::new(world, &case)?;
            let stream = world.device().create_stream()?;
            let sent = rank.send(&stream)?;
            let dispatched = rank.ep.dispatch_recv(&stream, sent)?;
            world.synchronize(&stream)?;
            if rank.ep.rank().get() == 0 {
                rank.ep.release(&stream, dispatched)?;
            } else {
                let sent = rank.offer(&stream, dispatched)?;
                rank.sum(&stream, sent)?;
            }
            Ok(world.synchronize(&stream)?)
        });
        for result in &results {
            let text = common::failure(result);
            assert!(text.contains("a peer that combines another way"), "{text}");
        }
    }
}

#[test]
fn a_direct_plan_is_chosen_for_few_tokens() {
    let case = across(&[2, 2], 4, Across::Auto);
    all_well(on_ranks(4, 4, &world_config(), |world| {
        let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
        assert_eq!(ep.plan().across().map(|(_, way)| way), Some(Across::Direct));
        let refused = ep.allocate_routing().unwrap_err().to_string();
        assert!(refused.contains("on several nodes"), "{refused}");
        Ok::<_, Error>(())
    }));
    let mut hot = across(&[2, 2], 4, Across::Direct);
    hot.routing = Routing::Hot;
    run(&hot, 1);
}
