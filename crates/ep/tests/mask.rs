//! Masked ranks: by hand, after an expired wait, late, and after a reset. Results are compared bit by bit.

use crate::common;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::common::{Case, Routing, Uploaded, all_well, failure, judge_output, on_ranks, work, world_config};
use crate::mask_common::{LIMIT, PATIENCE, Rank, group_ranks, masking, oracle_without, others};
use anabranch_ep::{
    CombineCodec, CombineSource, DataType, EpConfig, EpShape, Error, ExpertOutput, Fp8Format, MaskCause,
    Mode, OnTimeout, Plan,
};
use anabranch_ranks::{ErrorKind, GroupRank};
use anabranch_shmem::WorldConfig;

fn on_case(case: &Case, test: impl Fn(&Rank<'_>) -> Result<(), Error> + Sync) {
    let config = WorldConfig { operation_deadline: Duration::from_secs(30), ..world_config() };
    all_well(case.on_ranks(&config, |world| {
        let rank = Rank::new(world, case)?;
        test(&rank)?;
        rank.meet("end of the test")
    }));
}

/// The case with rows in the window, in a buffer, and in a buffer of a plan for both.
fn ways(case: &Case) -> [Case; 3] {
    let of = |source, staged| {
        let mut case = case.clone();
        case.config = case.config.combine_source(source);
        case.staged = staged;
        case
    };
    [of(CombineSource::Window, false), of(CombineSource::Buffer, true), of(CombineSource::Any, true)]
}

#[test]
#[ignore = "extended"]
fn ranks_masked_by_hand_are_left_out_until_a_reset() {
    for wave in [1, 4, 32, 64] {
        for mut case in ways(&masking(4, wave)) {
            if wave == 32 {
                // Some copies are dropped, some masked.
                case.config = case.config.max_recv(30).scale_bytes(20);
            }
            // What a plan may have besides.
            let (weights, count) = (wave == 4 || wave == 64, wave == 64);
            case.config = case.config.combine_weights(weights).device_token_count(count);
            on_case(&case, |rank| {
                rank.round(0)?;
                assert_eq!(rank.masked()?, []);
                // Two and one that do not work together, and each knows it; one alone.
                let apart: &[u32] = match rank.me() {
                    0 | 3 => &[1, 2],
                    1 => &[0, 2, 3],
                    _ => &[0, 1, 3],
                };
                rank.mask(apart)?;
                rank.mask(apart)?;
                let masked = rank.masked()?;
                assert!(masked.iter().all(|one| one.cause == MaskCause::ByHand), "{masked:?}");
                assert_eq!(masked.iter().map(|one| one.rank).collect::<Vec<_>>(), group_ranks(apart));
                (1..3).try_for_each(|number| rank.round_without(number, apart))?;
                // Three work together again, then all. Their slots were used different numbers of times.
                if rank.me() == 0 || rank.me() == 3 {
                    rank.round_without(3, apart)?;
                }
                if rank.me() != 1 {
                    rank.reset(&[3, 0, 2])?;
                    (4..6).try_for_each(|number| rank.round_without(number, &[1]))?;
                }
                rank.reset(&[0, 1, 2, 3])?;
                assert_eq!(rank.masked()?, []);
                (6..8).try_for_each(|number| rank.round(number))
            });
        }
    }
}

#[test]
#[ignore = "extended"]
fn a_rank_that_does_not_dispatch_is_masked_and_late_rows_do_no_harm() {
    for (index, mut case) in ways(&masking(4, 4)).into_iter().enumerate() {
        case.config = case.config.combine_weights(index != 1);
        let late = [1, 0, 3][index];
        let rest = others(&case, &[late]);
        on_case(&case, |rank| {
            (0..2).try_for_each(|number| rank.round(number))?;
            if rank.me() == late {
                // It stands still until the others have gone on without it.
                rank.meet("two rounds without a rank")?;
                let (uploaded, dispatched) = rank.dispatch(2)?;
                // What the others sent before they missed it.
                rank.judge_rows(2, &dispatched, &[]);
                rank.meet("late rows are there")?;
                // They have not sent it their combine flags: it masks them, and sums what it has itself.
                rank.combine(2, (uploaded, dispatched), &rest)?;
                rank.judge_timed_out(&rest, "ep combine", 3)?;
                // No wait for the masked ranks is left.
                rank.round_without(3, &rest)?;
            } else {
                let (uploaded, dispatched) = rank.dispatch(2)?;
                rank.judge_timed_out(&[late], "ep dispatch", 3)?;
                rank.judge_rows(2, &dispatched, &[late]);
                rank.combine(2, (uploaded, dispatched), &[late])?;
                rank.round_without(3, &[late])?;
                rank.meet("two rounds without a rank")?;
                // A dispatch whose rows are looked at while the late ones come.
                let held = rank.dispatch(4)?;
                rank.meet("late rows are there")?;
                rank.judge_rows(4, &held.1, &[late]);
                rank.combine(4, held, &[late])?;
            }
            rank.reset(&[0, 1, 2, 3])?;
            (5..8).try_for_each(|number| rank.round(number))
        });
    }
}

#[test]
#[ignore = "extended"]
fn a_rank_that_does_not_combine_is_masked_and_still_gets_its_own_late() {
    for (index, mut case) in ways(&masking(4, 4)).into_iter().enumerate() {
        case.config = case.config.combine_weights(index != 1);
        let late = [2, 1, 0][index];
        let rest = others(&case, &[late]);
        on_case(&case, |rank| {
            rank.round(0)?;
            let (uploaded, dispatched) = rank.dispatch(1)?;
            let kept = rank.ep.allocate_routing().unwrap_err();
            assert!(matches!(&kept, Error::NotPlanned { why, .. } if why.contains("masks ranks")), "{kept}");
            rank.judge_rows(1, &dispatched, &[]);
            if rank.me() == late {
                rank.meet("two rounds without a rank")?;
                // The others' rows of this combine are as they were: it sums them all.
                rank.combine(1, (uploaded, dispatched), &[])?;
                assert_eq!(rank.masked()?, []);
                // It learns that they have gone on when they do not come.
                let (uploaded, dispatched) = rank.dispatch(2)?;
                rank.judge_timed_out(&rest, "ep dispatch", 3)?;
                rank.combine(2, (uploaded, dispatched), &rest)?;
            } else {
                rank.combine(1, (uploaded, dispatched), &[late])?;
                rank.judge_timed_out(&[late], "ep combine", 2)?;
                (2..4).try_for_each(|number| rank.round_without(number, &[late]))?;
                rank.meet("two rounds without a rank")?;
                rank.round_without(4, &[late])?;
            }
            rank.reset(&[0, 1, 2, 3])?;
            (5..7).try_for_each(|number| rank.round(number))
        });
    }
}

#[test]
#[ignore = "extended"]
fn a_rank_that_is_missed_in_one_slot_is_masked_in_all() {
    let mut case = masking(3, 4);
    case.config = case.config.slots(2).combine_source(CombineSource::Window);
    let late = 2;
    on_case(&case, |rank| {
        rank.round(0)?;
        let (first, second) = (rank.dispatch(1)?, rank.dispatch(2)?);
        if rank.me() == late {
            rank.meet("the others have combined")?;
            rank.combine(1, first, &[])?;
            rank.combine(2, second, &[0, 1])?;
        } else {
            rank.combine(1, first, &[late])?;
            rank.judge_timed_out(&[late], "ep combine", 2)?;
            // Without another wait, though its rows had come.
            rank.combine(2, second, &[late])?;
            let again = (rank.dispatch(3)?, rank.dispatch(4)?);
            rank.combine(4, again.1, &[late])?;
            rank.combine(3, again.0, &[late])?;
            rank.judge_timed_out(&[late], "ep combine", 2)?;
            rank.meet("the others have combined")?;
        }
        rank.reset(&[0, 1, 2])?;
        let (first, second) = (rank.dispatch(5)?, rank.dispatch(6)?);
        rank.combine(6, second, &[])?;
        rank.combine(5, first, &[])
    });
}

#[test]
#[ignore = "extended"]
fn halves_mask_too() {
    for (index, case) in ways(&masking(3, 4)).into_iter().enumerate() {
        let late = index as u32;
        on_case(&case, |rank| {
            rank.round(0)?;
            if rank.me() == late {
                rank.meet("a round in halves")?;
                return rank.reset(&[0, 1, 2]).and_then(|()| rank.round(2));
            }
            let uploaded = Uploaded::new(rank.world.device(), &case.config, &case.input(rank.me(), 1));
            let sent = rank.ep.dispatch_send(&rank.stream, &uploaded.tokens(&case.config))?;
            let dispatched = rank.ep.dispatch_recv(&rank.stream, sent)?;
            rank.world.synchronize(&rank.stream)?;
            rank.judge_timed_out(&[late], "ep dispatch", 2)?;
            rank.judge_rows(1, &dispatched, &[late]);
            let staging = rank.world.device().allocate(common::window_bytes(&rank.ep))?;
            let experts = common::run_expert(&rank.expert, &rank.stream, &dispatched, &case, &staging)?;
            let sent = rank.ep.combine_send(&rank.stream, experts, dispatched)?;
            rank.ep.combine_recv(&rank.stream, sent, uploaded.output())?;
            rank.world.synchronize(&rank.stream)?;
            let inputs = case.inputs(1);
            let oracle = oracle_without(&case, &inputs, &[late]);
            judge_output(&oracle, rank.ep.rank(), &uploaded.read_output(&case.config));
            rank.meet("a round in halves")?;
            rank.reset(&[0, 1, 2]).and_then(|()| rank.round(2))
        });
    }
}

#[test]
#[ignore = "extended"]
fn encoded_rows_and_many_ranks() {
    let mut case = masking(9, 32);
    case.config = EpConfig::new(EpShape { hidden: 256, experts: 37, top_k: 9, max_tokens: 20 })
        .combine_source(CombineSource::Buffer)
        .combine_codec(CombineCodec::Fp8Block(Fp8Format::E4m3fn))
        .combine_type(DataType::F32)
        .on_timeout(OnTimeout::Mask { patience: PATIENCE });
    case.staged = true;
    for routing in [Routing::Random, Routing::Hot, Routing::Invalid] {
        case.routing = routing;
        on_case(&case, |rank| {
            let apart: &[u32] = if [0, 4, 8].contains(&rank.me()) { &[1, 2, 3, 5, 6, 7] } else { &[0, 4, 8] };
            rank.mask(apart)?;
            (0..2).try_for_each(|number| rank.round_without(number, apart))?;
            rank.reset(&[0, 1, 2, 3, 4, 5, 6, 7, 8])?;
            rank.round(2)
        });
    }
}

#[test]
fn graphs_follow_the_mask() {
    let mut case = masking(3, 4);
    case.config = case.config.combine_source(CombineSource::Window);
    on_case(&case, |rank| {
        let (stream, config) = (&rank.stream, &case.config);
        let mut uploaded = Uploaded::new(rank.world.device(), config, &case.input(rank.me(), 0));
        stream.begin_capture()?;
        let refused = rank.ep.masked(stream).unwrap_err();
        assert!(matches!(refused, Error::CallOrder { .. }), "{refused}");
        let refused = rank.ep.mask_rank(stream, GroupRank::new((rank.me() + 1) % 3)).unwrap_err();
        assert!(matches!(refused, Error::CallOrder { .. }), "{refused}");
        let dispatched = rank.ep.dispatch(stream, &uploaded.tokens(config))?;
        work(&rank.expert, stream, &dispatched)?;
        rank.ep.combine(stream, ExpertOutput::InWindow, dispatched, uploaded.output())?;
        let graph = stream.end_capture()?.instantiate()?;
        let mut replay = |number: u64, masked: &[u32]| -> Result<(), Error> {
            let case = case.varied(number);
            uploaded.refill(&case.input(rank.me(), number));
            uploaded.output.fill(0xee)?;
            // SAFETY: buffers, plan and world live until the stream was waited for.
            unsafe { graph.launch(stream)? };
            rank.world.synchronize(stream)?;
            let inputs = case.inputs(number);
            let oracle = oracle_without(&case, &inputs, masked);
            judge_output(&oracle, rank.ep.rank(), &uploaded.read_output(&case.config));
            Ok(())
        };
        (0..5).try_for_each(|number| replay(number, &[]))?;
        let apart: &[u32] = if rank.me() == 1 { &[0, 2] } else { &[1] };
        rank.mask(apart)?;
        (5..10).try_for_each(|number| replay(number, apart))?;
        rank.reset(&[0, 1, 2])?;
        (10..15).try_for_each(|number| replay(number, &[]))?;
        // A replay that one rank leaves out.
        if rank.me() != 0 {
            replay(15, &[0])?;
            // Fifteen replays, and the epoch that the reset left out.
            rank.judge_timed_out(&[0], "ep dispatch", 17)?;
            replay(16, &[0])?;
        }
        rank.reset(&[0, 1, 2])?;
        (17..20).try_for_each(|number| replay(number, &[]))
    });
}

#[test]
fn reset_needs_all_its_ranks_and_no_operation_in_flight() {
    let case = masking(3, 1);
    on_case(&case, |rank| {
        rank.round(0)?;
        let reset = |ranks: &[u32], limit| rank.ep.reset_mask(&rank.stream, &group_ranks(ranks), limit);
        let me = rank.me();
        for (ranks, words) in [
            (vec![me, 3], "no rank of the group"),
            (vec![me, me], "named twice"),
            (vec![(me + 1) % 3], "not among the ranks of its reset"),
        ] {
            let refused = reset(&ranks, LIMIT).unwrap_err().to_string();
            assert!(refused.contains(words), "{refused}");
        }
        let refused = rank.ep.mask_rank(&rank.stream, rank.ep.rank()).unwrap_err().to_string();
        assert!(refused.contains("does not mask itself"), "{refused}");
        // A dispatch that rank 1 holds.
        let held = rank.dispatch(1)?;
        if me == 1 {
            let refused = reset(&[0, 1, 2], LIMIT).unwrap_err();
            assert!(matches!(refused, Error::CallOrder { call: "reset_mask", .. }), "{refused}");
            rank.combine(1, held, &[])?;
        } else {
            // Rank 1 is in its reset, so the combine does not get its flag.
            rank.combine(1, held, &[1])?;
            let refused = reset(&[0, 1, 2], LIMIT).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Peer);
            assert!(refused.to_string().contains("failed on rank 1: reset_mask: 1 operations"), "{refused}");
        }
        // A reset to which rank 2 does not come in time, and then it does. Nothing has changed, and the world goes on.
        let early = Duration::from_millis(200);
        if me != 2 {
            rank.mask(&[2])?;
            let missed = reset(&[0, 1, 2], early).unwrap_err();
            let missed = anabranch_hip::with_causes(&missed);
            assert!(missed.contains("mask reset"), "{missed}");
            assert_eq!(rank.masked()?.last().map(|one| one.rank), Some(GroupRank::new(2)));
        }
        rank.meet("after the missed reset")?;
        if me == 2 {
            reset(&[0, 1, 2], LIMIT).unwrap_err();
        }
        rank.reset(&[0, 1, 2])?;
        rank.round(2)?;
        // A half of a dispatch, whose flags are sent: no later dispatch takes them for its own.
        let uploaded = Uploaded::new(rank.world.device(), &case.config, &case.input(me, 9));
        drop(rank.ep.dispatch_send(&rank.stream, &uploaded.tokens(&case.config))?);
        rank.world.synchronize(&rank.stream)?;
        rank.reset(&[0, 1, 2])?;
        (10..14).try_for_each(|number| rank.round(number))?;
        // A dispatch whose handle is dropped; the reset frees the slot.
        drop(rank.dispatch(3)?);
        let busy = rank.dispatch(4).err().unwrap();
        assert!(matches!(busy, Error::SlotsBusy { .. }), "{busy}");
        rank.reset(&[0, 1, 2])?;
        rank.round(4)
    });
}

#[test]
fn a_thread_that_fails_is_masked_and_its_loss_counts_when_the_plan_is_gone() {
    let case = masking(3, 4);
    let went_on = AtomicU32::new(0);
    let config = WorldConfig { operation_deadline: Duration::from_secs(30), ..world_config() };
    let results = case.on_ranks(&config, |world| {
        let rank = Rank::new(world, &case)?;
        (0..2).try_for_each(|number| rank.round(number))?;
        if rank.me() == 1 {
            return Err(Error::ForeignHandle);
        }
        let (uploaded, dispatched) = rank.dispatch(2)?;
        rank.judge_timed_out(&[1], "ep dispatch", 3)?;
        rank.combine(2, (uploaded, dispatched), &[1])?;
        rank.round_without(3, &[1])?;
        rank.reset(&[0, 2])?;
        rank.round_without(4, &[1])?;
        // No rank leaves before the other has ended.
        world.barrier(&world.group().excluding(&[GroupRank::new(1)]).unwrap(), "the survivors' end")?;
        world.check()?;
        drop(rank);
        let lost = world.check().unwrap_err().to_string();
        assert!(lost.contains("rank 1 died"), "{lost}");
        went_on.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
    assert_eq!(went_on.load(Ordering::Relaxed), 2);
    let texts: Vec<_> = results.iter().map(failure).collect();
    assert!(texts[1].contains("belongs to another plan"), "{texts:?}");
    assert!([0, 2].iter().all(|rank| texts[*rank].contains("rank 1 died")), "{texts:?}");
}

#[test]
fn what_cannot_be_masked_is_refused_with_the_reason() {
    let config = |patience| {
        EpConfig::new(EpShape { hidden: 128, experts: 8, top_k: 2, max_tokens: 16 })
            .on_timeout(OnTimeout::Mask { patience })
    };
    for mode in [Mode::Compact, Mode::Auto] {
        let mut compact = config(PATIENCE).mode(mode);
        compact.max_tokens = 1000;
        let refused = Plan::new(compact, 4).unwrap_err().to_string();
        assert!(refused.contains("mode is compact; allowed then is slotted: ranks that differ"), "{refused}");
    }
    let refused = Plan::new(config(Duration::ZERO), 4).unwrap_err().to_string();
    assert!(refused.contains("is 0ns; allowed is more than none"), "{refused}");
    // Plans without masks are unchanged.
    let (with, without) = (
        Plan::new(config(PATIENCE), 4).unwrap(),
        Plan::new(EpConfig::new(EpShape { hidden: 128, experts: 8, top_k: 2, max_tokens: 16 }), 4).unwrap(),
    );
    assert_eq!(without.layout().push_rows, without.layout().combine_rows);
    assert_eq!(without.combine_local_bytes(), 16);
    // Both windows, of which the second has a place for every rank.
    let (rows, row) = (with.rows(), u64::from(with.combine_row_bytes()));
    assert_eq!(with.layout().push_rows, (with.layout().combine_rows + rows * row).next_multiple_of(256));
    assert_eq!(with.layout().bytes, (with.layout().push_rows + 4 * 16 * row).next_multiple_of(256));

    let worlds = |patience| {
        let results = on_ranks(2, 1, &world_config(), |world| {
            let mut case = Case::new(2, 1);
            case.config = match patience {
                None => case.config,
                Some(patience) => case.config.on_timeout(OnTimeout::Mask { patience }),
            };
            let rank = Rank::new(world, &case)?;
            rank.masked().map(|_| ())
        });
        results.iter().map(failure).collect::<Vec<_>>()
    };
    for refused in worlds(None) {
        assert!(refused.contains("the plan has no mask: on_timeout is fault"), "{refused}");
    }
    for refused in worlds(Some(Duration::from_secs(20))) {
        assert!(refused.contains("less than the world's operation deadline, 20s"), "{refused}");
    }
}
