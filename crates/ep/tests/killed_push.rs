//! Ranks that are killed, stall or fail around a combine that pushes, whole or in halves: every survivor ends with an error that
//! names the rank, in time. And ranks that go another way than their peers, which is a fault.

use crate::common::{
    Case, Flight, Uploaded, all_well, depart, failure, on_ranks, round, run_expert, window_bytes,
    world_config,
};
use crate::killed_common::{DEADLINE, End, RANKS, failing_thread, stalling_thread, survive_all};
use anabranch_conformance::ep::reference::ReferenceExpert;
use anabranch_ep::{CombineSent, CombineSource, Error, ExpertParallel};
use anabranch_hip::Stream;
use anabranch_testkit::test_path;

/// All ranks push: in plans that know nothing else, and in plans for both ways.
const SOURCES: [CombineSource; 2] = [CombineSource::Buffer, CombineSource::Any];

fn pushing(source: CombineSource) -> Case {
    let mut case = Case::new(RANKS, 1);
    case.config = case.config.combine_source(source);
    case.staged = true;
    case
}

#[test]
fn killed_before_or_in_push() {
    let scripts = [("combine", 1, 0), ("combining", 2, 1), ("combining", 3, 2), ("combining", 0, 3)];
    survive_all(test_path!("killed_before_or_in_push"), CombineSource::Buffer, End::Killed, &scripts);
}

#[test]
fn killed_before_or_in_push_of_a_plan_for_both_ways() {
    let scripts = [("combine", 2, 0), ("combining", 1, 4), ("compact-combine", 3, 0), ("running", 0, 20)];
    let test = test_path!("killed_before_or_in_push_of_a_plan_for_both_ways");
    survive_all(test, CombineSource::Any, End::Killed, &scripts);
}

#[test]
#[ignore = "extended"]
fn killed_in_the_halves_of_push() {
    let scripts = [
        ("half-combining", 2, 0),
        ("half-combining", 0, 1),
        ("half-combine", 3, 2),
        ("half-summing", 1, 3),
        ("half-summing", 2, 4),
    ];
    survive_all(test_path!("killed_in_the_halves_of_push"), CombineSource::Buffer, End::Killed, &scripts);
}

#[test]
#[ignore = "extended"]
fn stalled_before_push() {
    let scripts = [("combine", 1, 0), ("compact-combine", 0, 1)];
    survive_all(test_path!("stalled_before_push"), CombineSource::Buffer, End::Stalled, &scripts);
}

#[test]
#[ignore = "extended"]
fn stalled_between_the_halves_of_push() {
    let scripts = [("half-combine", 2, 0), ("half-combine", 0, 1)];
    survive_all(test_path!("stalled_between_the_halves_of_push"), CombineSource::Any, End::Stalled, &scripts);
}

/// Dispatches, works, and pushes the first half; the buffers live as long as what this returns.
fn push_half(
    ep: &ExpertParallel,
    expert: &ReferenceExpert,
    stream: &Stream,
    case: &Case,
) -> Result<(CombineSent, Uploaded), Error> {
    let Flight { dispatched, uploaded, .. } = depart(ep, stream, case, 3)?;
    let staging = stream.device().allocate(window_bytes(ep))?;
    let experts = run_expert(expert, stream, &dispatched, case, &staging)?;
    let sent = ep.combine_send(stream, experts, dispatched)?;
    stream.synchronize()?;
    Ok((sent, uploaded))
}

#[test]
#[ignore = "extended"]
fn failed_thread_around_push_is_named_by_the_others() {
    for source in SOURCES {
        let case = pushing(source);
        // Before it pushes, with its dispatch dropped.
        let texts = failing_thread(&case, |ep, _, stream| {
            let flight = depart(ep, stream, &case, 3)?;
            stream.synchronize()?;
            drop(flight.dispatched);
            Err(Error::ForeignHandle)
        });
        assert!(texts[1].contains("belongs to another plan"), "{texts:?}");
        // Between the halves, with the second never begun.
        let texts = failing_thread(&case, |ep, expert, stream| {
            drop(push_half(ep, expert, stream, &case)?);
            panic!("an experiment")
        });
        assert!(texts[1].contains("rank 1 panicked: an experiment"), "{texts:?}");
        // Its plan has one slot, which a dropped handle keeps.
        let texts = failing_thread(&case, |ep, expert, stream| {
            drop(push_half(ep, expert, stream, &case)?);
            Ok(())
        });
        assert!(texts[1].contains("all 1 slots have a dispatch in flight"), "{texts:?}");
    }
}

#[test]
#[ignore = "extended"]
fn stopped_thread_around_push_is_named() {
    for source in SOURCES {
        let case = pushing(source);
        let texts = stalling_thread(&case, "ep combine", |ep, expert, stream, stall| {
            let flight = depart(ep, stream, &case, 3)?;
            let staging = stream.device().allocate(window_bytes(ep))?;
            let experts = run_expert(expert, stream, &flight.dispatched, &case, &staging)?;
            stall();
            // Its own call finds the world given up.
            ep.combine(stream, experts, flight.dispatched, flight.uploaded.output())
        });
        assert!(texts[1].contains("rank 1 in ep combine"), "{texts:?}");
        // What it pushed has come, so that the others go on to their next dispatch.
        let texts = stalling_thread(&case, "ep dispatch", |ep, expert, stream, stall| {
            let (sent, uploaded) = push_half(ep, expert, stream, &case)?;
            stall();
            ep.combine_recv(stream, sent, uploaded.output())
        });
        assert!(texts[1].contains("rank 1 in ep dispatch"), "{texts:?}");
    }
}

/// All ranks drop a handle: its slot is lost, and the other one still serves.
#[test]
fn dropped_send_loses_only_its_slot() {
    for source in SOURCES {
        let mut case = pushing(source);
        case.config = case.config.slots(2);
        all_well(on_ranks(RANKS, 1, &world_config(), |world| {
            let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
            let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
            let stream = world.device().create_stream()?;
            round(&ep, &expert, &stream, world, &case, 1)?;
            drop(push_half(&ep, &expert, &stream, &case)?);
            for number in 0..4 {
                round(&ep, &expert, &stream, world, &case, number)?;
            }
            let flight = depart(&ep, &stream, &case, 5)?;
            let refused = depart(&ep, &stream, &case, 6).err();
            assert!(matches!(refused, Some(Error::SlotsBusy { slots: 2 })), "{refused:?}");
            ep.release(&stream, flight.dispatched)?;
            Ok(world.synchronize(&stream)?)
        }));
    }
}

/// One rank drops its send and continues in its other slot, where no peer waits for it.
#[test]
fn wait_for_a_rank_in_another_slot_expires() {
    let mut case = pushing(CombineSource::Buffer);
    case.config = case.config.slots(2);
    let config = anabranch_shmem::WorldConfig { operation_deadline: DEADLINE, ..world_config() };
    let results = on_ranks(RANKS, 1, &config, |world| {
        let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
        let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
        let stream = world.device().create_stream()?;
        if world.rank().get() == 1 {
            drop(push_half(&ep, &expert, &stream, &case)?);
        } else {
            round(&ep, &expert, &stream, world, &case, 3)?;
        }
        round(&ep, &expert, &stream, world, &case, 4)
    });
    for (rank, result) in results.iter().enumerate() {
        let text = failure(result);
        assert!(text.contains("in ep dispatch"), "{rank}: {text}");
        assert!(rank == 1 || text.contains("rank 1"), "{rank}: {text}");
    }
}

/// What rank 2 does while the others do the opposite or another thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goes {
    Pulls,
    Pushes,
    PullsInHalves,
    PushesInHalves,
    Releases,
}

fn go(
    goes: Goes,
    ep: &ExpertParallel,
    expert: &ReferenceExpert,
    stream: &Stream,
    case: &Case,
) -> Result<(), Error> {
    let case = Case { staged: matches!(goes, Goes::Pushes | Goes::PushesInHalves), ..case.clone() };
    let Flight { dispatched, uploaded, .. } = depart(ep, stream, &case, 1)?;
    let staging = stream.device().allocate(window_bytes(ep))?;
    if goes == Goes::Releases {
        ep.release(stream, dispatched)?;
    } else {
        let experts = run_expert(expert, stream, &dispatched, &case, &staging)?;
        if matches!(goes, Goes::PullsInHalves | Goes::PushesInHalves) {
            let sent = ep.combine_send(stream, experts, dispatched)?;
            ep.combine_recv(stream, sent, uploaded.output())?;
        } else {
            ep.combine(stream, experts, dispatched, uploaded.output())?;
        }
    }
    // The buffers live until the kernels are over.
    stream.synchronize()?;
    Ok(())
}

#[test]
fn rank_with_another_combine_way_is_named() {
    for (source, odd, others) in [
        (CombineSource::Any, Goes::Pulls, Goes::Pushes),
        (CombineSource::Any, Goes::Pushes, Goes::PullsInHalves),
        (CombineSource::Any, Goes::PushesInHalves, Goes::Pulls),
        (CombineSource::Any, Goes::PullsInHalves, Goes::PushesInHalves),
        (CombineSource::Any, Goes::Releases, Goes::Pushes),
        (CombineSource::Buffer, Goes::Releases, Goes::PushesInHalves),
        (CombineSource::Buffer, Goes::Pushes, Goes::Releases),
    ] {
        let mut case = Case::new(3, 1);
        case.config = case.config.combine_source(source);
        let results = on_ranks(3, 1, &world_config(), |world| {
            let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
            let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
            let stream = world.device().create_stream()?;
            let goes = if ep.rank().get() == 2 { odd } else { others };
            go(goes, &ep, &expert, &stream, &case)?;
            Ok(world.synchronize(&stream)?)
        });
        for (rank, result) in results.iter().enumerate() {
            let text = failure(result);
            assert!(text.contains("a peer that combines another way"), "{odd:?}, {others:?}, {rank}: {text}");
            assert!(rank == 2 || text.contains("rank 2"), "{odd:?}, {others:?}, {rank}: {text}");
        }
    }
}
