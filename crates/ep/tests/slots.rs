//! Slots of operations in flight, several plans in one world, ranks out of step.
#![expect(
    clippy::disallowed_methods,
    reason = "tests of real threads and processes run on the machine's time"
)]

use crate::common::{
    Case, Numbers, Routing, all_well, depart, judge_rows, land, on_ranks, oracle, round, work, world_config,
};
use anabranch_conformance::ep::reference::ReferenceExpert;
use anabranch_ep::{Error, ExpertOutput, ExpertParallel, Mode};
use anabranch_hip::Stream;
use anabranch_ranks::GlobalRank;
use anabranch_shmem::World;

fn two_slots(ranks: u32, wave: u32) -> Case {
    let mut case = Case::new(ranks, wave);
    case.config = case.config.slots(2);
    case
}

/// A plan for a case, its reference expert, and a stream.
struct Rank {
    ep: ExpertParallel,
    expert: ReferenceExpert,
    stream: Stream,
}

impl Rank {
    fn new(world: &World, case: &Case) -> Result<Self, Error> {
        Self::of_group(world, world.group(), case)
    }

    fn of_group(world: &World, group: &anabranch_ranks::Group, case: &Case) -> Result<Self, Error> {
        let ep = ExpertParallel::new(world, group, case.config.clone())?;
        let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
        Ok(Self { ep, expert, stream: world.device().create_stream()? })
    }

    fn round(&self, world: &World, case: &Case, number: u64) -> Result<(), Error> {
        round(&self.ep, &self.expert, &self.stream, world, case, number)
    }
}

fn on_case(case: &Case, test: impl Fn(&World, &Rank) -> Result<(), Error> + Sync) {
    all_well(case.on_ranks(&world_config(), |world| test(world, &Rank::new(world, case)?)));
}

fn two_in_flight(waves: &[u32]) {
    for (wave, mode) in waves.iter().flat_map(|&wave| [(wave, Mode::Slotted), (wave, Mode::Compact)]) {
        let mut case = two_slots(4, wave);
        case.config = case.config.mode(mode);
        on_case(&case, |world, Rank { ep, expert, stream }| {
            for number in 0..20 {
                let mut other = case.clone();
                other.routing = if number % 4 == 3 { Routing::Hot } else { Routing::Random };
                other.tokens = vec![5, 40, 33, 0];
                let first = depart(ep, stream, &case, number)?;
                let second = depart(ep, stream, &other, number + 100)?;
                world.synchronize(stream)?;
                for flight in [&first, &second] {
                    let inputs = flight.case.inputs(flight.number);
                    judge_rows(
                        &oracle(&flight.case, &inputs),
                        ep.rank(),
                        world.device(),
                        ep,
                        &flight.dispatched,
                    );
                }
                work(expert, stream, &first.dispatched)?;
                work(expert, stream, &second.dispatched)?;
                let landed = if number % 2 == 0 {
                    [land(ep, stream, first)?, land(ep, stream, second)?]
                } else {
                    [land(ep, stream, second)?, land(ep, stream, first)?]
                };
                world.synchronize(stream)?;
                for landed in &landed {
                    landed.judge(ep.rank());
                }
            }
            Ok(())
        });
    }
}

#[test]
fn two_operations_in_flight_end_in_either_order() {
    two_in_flight(&[4]);
}

#[test]
#[ignore = "extended"]
fn two_operations_in_flight_with_waves_of_one_lane() {
    two_in_flight(&[1]);
}

#[test]
fn a_dispatch_without_a_free_slot_is_refused_and_changes_nothing() {
    let case = two_slots(3, 1);
    on_case(&case, |world, rank| {
        let Rank { ep, expert, stream } = rank;
        for number in 0..3 {
            let flights = [depart(ep, stream, &case, number)?, depart(ep, stream, &case, number + 50)?];
            let refused = depart(ep, stream, &case, 9).err();
            assert!(matches!(refused, Some(Error::SlotsBusy { slots: 2 })), "{refused:?}");
            for flight in flights {
                work(expert, stream, &flight.dispatched)?;
                let landed = land(ep, stream, flight)?;
                world.synchronize(stream)?;
                landed.judge(ep.rank());
            }
            rank.round(world, &case, number)?;
        }
        Ok(())
    });
}

#[test]
fn a_released_slot_is_used_again() {
    let case = two_slots(4, 1);
    on_case(&case, |world, rank| {
        let Rank { ep, expert, stream } = rank;
        for number in 0..30 {
            let released = depart(ep, stream, &case, number)?;
            if number % 3 == 0 {
                // With another operation on the other slot meanwhile.
                let flight = depart(ep, stream, &case, number + 60)?;
                ep.release(stream, released.dispatched)?;
                work(expert, stream, &flight.dispatched)?;
                let landed = land(ep, stream, flight)?;
                world.synchronize(stream)?;
                landed.judge(ep.rank());
            } else {
                ep.release(stream, released.dispatched)?;
                // The buffers of the released dispatch live until here.
                world.synchronize(stream)?;
            }
            rank.round(world, &case, number + 30)?;
        }
        Ok(())
    });
}

#[test]
fn a_handle_of_another_plan_is_refused() {
    let case = two_slots(2, 1);
    on_case(&case, |world, rank| {
        let other = Rank::new(world, &case)?;
        let flight = depart(&other.ep, &rank.stream, &case, 1)?;
        let output = flight.uploaded.output();
        let refused = rank.ep.combine(&rank.stream, ExpertOutput::InWindow, flight.dispatched, output);
        assert!(matches!(refused, Err(Error::ForeignHandle)), "{refused:?}");
        let flight = depart(&rank.ep, &rank.stream, &case, 1)?;
        let refused = other.ep.release(&rank.stream, flight.dispatched);
        assert!(matches!(refused, Err(Error::ForeignHandle)), "{refused:?}");
        world.synchronize(&rank.stream)?;
        // One slot of each is lost; the other works.
        rank.round(world, &case, 2)?;
        other.round(world, &case, 3)
    });
}

#[test]
fn a_dropped_handle_keeps_its_slot() {
    let case = two_slots(3, 1);
    on_case(&case, |world, rank| {
        let Rank { ep, stream, .. } = rank;
        drop(depart(ep, stream, &case, 0)?.dispatched);
        world.synchronize(stream)?;
        rank.round(world, &case, 1)?;
        let second = depart(ep, stream, &case, 2)?;
        let refused = depart(ep, stream, &case, 3).err();
        assert!(matches!(refused, Some(Error::SlotsBusy { slots: 2 })), "{refused:?}");
        ep.release(stream, second.dispatched)?;
        world.synchronize(stream)?;
        rank.round(world, &case, 4)
    });
}

#[test]
fn operations_may_change_streams_without_a_wait_of_the_host() {
    for slots in [1, 2] {
        let mut case = Case::new(4, 1);
        case.config = case.config.slots(slots);
        on_case(&case, |world, Rank { ep, expert, stream }| {
            let side = world.device().create_stream()?;
            let mut landed = Vec::new();
            for number in 0..12 {
                let (there, back) = if number % 3 == 0 { (stream, &side) } else { (&side, stream) };
                let flight = depart(ep, there, &case, number)?;
                work(expert, there, &flight.dispatched)?;
                // What the experts wrote is the caller's to order; the slot itself is the plan's.
                let worked = world.device().create_event()?;
                there.record(&worked)?;
                back.wait_event(&worked)?;
                landed.push(land(ep, back, flight)?);
            }
            world.synchronize(stream)?;
            world.synchronize(&side)?;
            for landed in &landed {
                landed.judge(ep.rank());
            }
            // Without an expert nothing but the plan's own events orders the two streams.
            for number in 0..12 {
                let released = depart(ep, stream, &case, number)?;
                ep.release(&side, released.dispatched)?;
                world.synchronize(&side)?;
            }
            Ok(())
        });
    }
}

#[test]
fn plans_of_several_groups_alternate() {
    let everybody = Case::new(5, 1);
    // In an order of its own; without rank 0; overlapping; one rank alone.
    let groups: [&[u32]; 5] = [&[3, 1, 4, 2], &[2, 0], &[4], &[0, 2, 3], &[1, 0, 4, 3, 2]];
    all_well(on_ranks(5, 1, &world_config(), |world| {
        let whole = Rank::new(world, &everybody)?;
        let mut parts = Vec::new();
        for (index, members) in groups.iter().enumerate() {
            let members: Vec<_> = members.iter().map(|rank| GlobalRank::new(*rank)).collect();
            if !members.contains(&world.rank()) {
                continue;
            }
            let group = world.group().subset_of_ranks(&members).map_err(anabranch_shmem::Error::from)?;
            let mut case = Case::new(group.size(), 1);
            case.config = anabranch_ep::EpConfig::new(anabranch_ep::EpShape {
                hidden: 64,
                experts: 7,
                top_k: 4,
                max_tokens: 20,
            })
            .slots(1 + index as u32 % 2)
            .mode([Mode::Compact, Mode::Slotted][index / 2 % 2]);
            case.tokens = vec![20, 3, 11];
            let rank = Rank::of_group(world, &group, &case)?;
            assert_eq!(rank.ep.group().global(rank.ep.rank()), Some(world.rank()));
            parts.push((index as u64, case, rank));
        }
        for number in 0..10 {
            whole.round(world, &everybody, number)?;
            for (index, case, rank) in &parts {
                rank.round(world, case, number * 7 + index)?;
            }
        }
        // Two plans over everybody in flight at once, the second in another order of ranks.
        if let Some((_, case, rank)) = parts.last() {
            let flight = depart(&whole.ep, &whole.stream, &everybody, 77)?;
            work(&whole.expert, &whole.stream, &flight.dispatched)?;
            rank.round(world, case, 78)?;
            let landed = land(&whole.ep, &whole.stream, flight)?;
            world.synchronize(&whole.stream)?;
            landed.judge(whole.ep.rank());
        }
        Ok(())
    }));
}

#[test]
fn late_ranks_receive_all_rows() {
    for (slots, mode) in [(1, Mode::Slotted), (2, Mode::Slotted), (1, Mode::Compact), (2, Mode::Compact)] {
        let mut case = Case::new(4, 1);
        case.config = case.config.slots(slots).mode(mode);
        on_case(&case, |world, Rank { ep, expert, stream }| {
            // The same numbers on all ranks say who is late where.
            let mut numbers = Numbers(u64::from(slots));
            let me = ep.rank().get();
            let pause = |place: u64| {
                if place % 4 == u64::from(me) {
                    std::thread::sleep(std::time::Duration::from_micros(place / 4 % 3000));
                }
            };
            let mut landed = Vec::new();
            for number in 0..50 {
                let places = [numbers.next(), numbers.next(), numbers.next()];
                pause(places[0]);
                let flight = depart(ep, stream, &case, number)?;
                pause(places[1]);
                work(expert, stream, &flight.dispatched)?;
                pause(places[2]);
                landed.push(land(ep, stream, flight)?);
                // Some rounds pile up on the stream, some do not.
                if number % 5 == u64::from(me) {
                    world.synchronize(stream)?;
                }
            }
            world.synchronize(stream)?;
            for landed in &landed {
                landed.judge(ep.rank());
            }
            Ok(())
        });
    }
}
