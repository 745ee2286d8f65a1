//! Dispatch and combine in halves: other work between them, plans that interleave, graphs, ranks that do all in one.

use crate::common;

use crate::common::{
    Case, all_well, depart, judge_dropped, judge_rows, on_ranks, oracle, work, world_config,
};
use crate::split_common::{Rank, interleaved, other_work};
use anabranch_ep::{EpConfig, EpShape, Error, ExpertOutput, Mode};

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (wave, mode) in [(1, Mode::Slotted), (4, Mode::Compact), (32, Mode::Slotted), (64, Mode::Compact)] {
        let mut case = Case::new(4, wave);
        case.config = case.config.mode(mode).max_recv(if wave > 4 { 45 } else { 0 });
        case.staged = wave % 32 == 0;
        cases.push(case);
    }
    cases
}

#[test]
fn send_and_recv_with_other_work_between_equal_the_whole() {
    for case in cases() {
        all_well(case.on_ranks(&world_config(), |world| {
            let mut rank = Rank::new(world, &case)?;
            let stream = world.device().create_stream()?;
            for number in 0..4 {
                rank.refill(number)?;
                let mut kept = Vec::new();
                let sent = rank.send(&stream)?;
                assert_eq!(sent.tokens() as usize, rank.uploaded.count);
                kept.push(other_work(&stream, world.device())?);
                // The tokens are on their way, and their buffer is free, in stream order.
                let rows = &rank.uploaded.rows;
                let zeros = common::upload(world.device(), &vec![0; rows.len()]);
                // SAFETY: both live until the stream was waited for.
                unsafe { stream.copy_async(rows.address(), zeros.address(), rows.len())? };
                let dispatched = rank.ep.dispatch_recv(&stream, sent)?;
                world.synchronize(&stream)?;
                let inputs = case.inputs(number);
                let oracle = oracle(&case, &inputs);
                judge_rows(&oracle, rank.ep.rank(), world.device(), &rank.ep, &dispatched);
                judge_dropped(&oracle, world.device(), &rank.ep, &stream, &dispatched)?;
                let sent = rank.offer(&stream, dispatched)?;
                kept.push(other_work(&stream, world.device())?);
                rank.sum(&stream, sent)?;
                world.synchronize(&stream)?;
                rank.judge(number);
                for buffer in kept.iter().flatten() {
                    let mut bytes = [0; 4096];
                    buffer.copy_to_host(0, &mut bytes)?;
                    assert!(bytes.iter().all(|byte| *byte == 7));
                }
            }
            Ok(())
        }));
    }
}

#[test]
fn ranks_may_split_different_operations() {
    for case in cases() {
        all_well(case.on_ranks(&world_config(), |world| {
            let mut rank = Rank::new(world, &case)?;
            let stream = world.device().create_stream()?;
            for number in 0..6 {
                rank.refill(number)?;
                if (number + u64::from(world.rank().get())).is_multiple_of(2) {
                    rank.whole(&stream)?;
                } else {
                    let sent = rank.send(&stream)?;
                    let dispatched = rank.ep.dispatch_recv(&stream, sent)?;
                    let sent = rank.offer(&stream, dispatched)?;
                    rank.sum(&stream, sent)?;
                }
                world.synchronize(&stream)?;
                rank.judge(number);
            }
            Ok(())
        }));
    }
}

#[test]
fn two_plans_interleave() {
    for (wave, modes) in [(1, [Mode::Slotted, Mode::Compact]), (4, [Mode::Compact, Mode::Compact])] {
        let mut cases = [Case::new(3, wave), Case::new(3, wave)];
        for (case, mode) in cases.iter_mut().zip(modes) {
            case.config = case.config.clone().mode(mode).slots(2);
        }
        cases[1].tokens = vec![2, 40, 11];
        all_well(on_ranks(3, wave, &world_config(), |world| {
            let [mut one, mut two] = [Rank::new(world, &cases[0])?, Rank::new(world, &cases[1])?];
            let streams = [world.device().create_stream()?, world.device().create_stream()?];
            for number in 0..10 {
                one.refill(number)?;
                two.refill(number + 50)?;
                // On one stream, on two, and the second plan's first.
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
fn as_many_are_in_flight_as_there_are_slots() {
    let mut case = Case::new(3, 1);
    case.config = case.config.slots(2);
    all_well(on_ranks(3, 1, &world_config(), |world| {
        let rank = Rank::new(world, &case)?;
        let stream = world.device().create_stream()?;
        let sent = [rank.send(&stream)?, rank.send(&stream)?];
        let refused = depart(&rank.ep, &stream, &case, 1).err();
        assert!(matches!(refused, Some(Error::SlotsBusy { slots: 2 })), "{refused:?}");
        for sent in sent {
            let dispatched = rank.ep.dispatch_recv(&stream, sent)?;
            let sent = rank.offer(&stream, dispatched)?;
            // Not before it was received.
            let other = Rank::new(world, &case)?;
            rank.sum(&stream, sent)?;
            // A half of another plan is refused.
            let foreign = other.send(&stream)?;
            let refused = rank.ep.dispatch_recv(&stream, foreign).err();
            assert!(matches!(refused, Some(Error::ForeignHandle)), "{refused:?}");
            world.synchronize(&stream)?;
            rank.judge(0);
        }
        Ok(())
    }));
}

#[test]
#[ignore = "extended"]
fn a_thousand_replays_of_interleaved_halves_with_new_inputs() {
    for mode in [Mode::Slotted, Mode::Compact] {
        let mut cases = [Case::new(2, 1), Case::new(2, 1)];
        for (case, tokens) in cases.iter_mut().zip([vec![6, 3], vec![1, 5]]) {
            case.config = EpConfig::new(EpShape { hidden: 16, experts: 5, top_k: 2, max_tokens: 6 })
                .mode(mode)
                .max_recv(7);
            case.tokens = tokens;
        }
        all_well(on_ranks(2, 1, &world_config(), |world| {
            let [mut one, mut two] = [Rank::new(world, &cases[0])?, Rank::new(world, &cases[1])?];
            let stream = world.device().create_stream()?;
            stream.begin_capture()?;
            interleaved(&one, &two, &stream, &stream)?;
            let graph = stream.end_capture()?.instantiate()?;
            for replay in 0..1000 {
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

#[test]
fn halves_on_several_streams_keep_their_order() {
    let mut case = Case::new(4, 1);
    case.config = case.config.slots(2);
    all_well(on_ranks(4, 1, &world_config(), |world| {
        let mut rank = Rank::new(world, &case)?;
        let streams = [world.device().create_stream()?, world.device().create_stream()?];
        for number in 0..8 {
            rank.refill(number)?;
            let sent = rank.send(&streams[0])?;
            let dispatched = rank.ep.dispatch_recv(&streams[1], sent)?;
            work(&rank.expert, &streams[1], &dispatched)?;
            let sent = rank.ep.combine_send(&streams[1], ExpertOutput::InWindow, dispatched)?;
            rank.sum(&streams[0], sent)?;
            world.synchronize(&streams[0])?;
            rank.judge(number);
        }
        Ok(())
    }));
}
