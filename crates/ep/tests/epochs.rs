//! Where epochs begin, and where the half of them that flags carry comes round.

use std::mem::offset_of;

use crate::common::{Case, Uploaded, all_well, on_ranks, round, world_config};
use anabranch_conformance::ep::reference::ReferenceExpert;
use anabranch_ep::plan::FLAG_STRIDE;
use anabranch_ep::simulation::SlotState;
use anabranch_ep::{Error, ExpertParallel, Mode};
use anabranch_hip::{DeviceAddress, Stream};
use anabranch_shmem::World;

/// The epoch before the wrap: five more operations, and the flags' half is zero.
const NEAR: u64 = (1 << 32) - 5;

/// Makes the one slot look as after [`NEAR`] operations: the state's epochs, and the words that the last of them would have left.
fn age(world: &World, ep: &ExpertParallel, stream: &Stream, case: &Case) -> Result<(), Error> {
    let device = world.device();
    let team = world.team(world.group())?;
    let uploaded = Uploaded::new(device, &case.config, &case.input(ep.rank().get(), 0));
    let dispatched = ep.dispatch(stream, &uploaded.tokens(&case.config))?;
    let layout = *ep.plan().layout();
    let slot = DeviceAddress(dispatched.rows().0 - layout.rows);
    let state = DeviceAddress(dispatched.dropped_count().0 - offset_of!(SlotState, dropped_count) as u64);
    ep.release(stream, dispatched)?;
    let ranks = u64::from(ep.plan().ranks());
    let mut words: Vec<DeviceAddress> = (0..ranks)
        .flat_map(|rank| {
            [layout.dispatch_flags, layout.combine_flags].map(|flags| flags + rank * u64::from(FLAG_STRIDE))
        })
        .map(|offset| slot.offset(offset))
        .collect();
    if ep.plan().mode() == Mode::Compact {
        let word = |source, destination| layout.count_matrix + source * layout.count_stride + destination * 8;
        words.extend((0..ranks).flat_map(|source| (0..ranks).map(move |to| slot.offset(word(source, to)))));
    }
    let epochs = [offset_of!(SlotState, dispatch_epoch), offset_of!(SlotState, combine_epoch)];
    // No rank writes words before all have ended, or starts before all have written.
    team.barrier(stream)?;
    world.synchronize(stream)?;
    for epoch in epochs {
        let mut seen = [0; 8];
        let address = state.offset(epoch as u64);
        // SAFETY: the words are the slot's, and nothing is in flight on any rank.
        unsafe { device.read_memory(address, &mut seen)? };
        assert_eq!(u64::from_ne_bytes(seen), 1, "the word is the epoch");
        // SAFETY: as above.
        unsafe { device.write_memory(address, &NEAR.to_ne_bytes())? };
    }
    for word in words {
        let mut seen = [0; 8];
        // SAFETY: as above.
        unsafe { device.read_memory(word, &mut seen)? };
        assert_eq!(u64::from_ne_bytes(seen) as u32, 1, "the word is a flag");
        // SAFETY: as above.
        unsafe { device.write_memory(word, &(NEAR as u32).to_ne_bytes())? };
    }
    team.barrier(stream)?;
    Ok(world.synchronize(stream)?)
}

#[test]
fn operations_continue_when_flag_epochs_wrap() {
    for (mode, wave, staged) in [
        (Mode::Slotted, 1, false),
        (Mode::Slotted, 32, true),
        (Mode::Compact, 4, false),
        (Mode::Compact, 1, true),
    ] {
        let mut case = Case { staged, ..Case::new(3, wave) };
        case.config = case.config.mode(mode);
        all_well(on_ranks(3, wave, &world_config(), |world| {
            let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
            let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
            let stream = world.device().create_stream()?;
            age(world, &ep, &stream, &case)?;
            (0..12).try_for_each(|number| round(&ep, &expert, &stream, world, &case, number))
        }));
    }
}

/// Flags that another plan left would be of epochs to come.
#[test]
fn plan_in_reused_memory_starts_at_epoch_one() {
    for mode in [Mode::Slotted, Mode::Compact] {
        let mut case = Case::new(3, 4);
        case.config = case.config.mode(mode);
        all_well(on_ranks(3, 4, &world_config(), |world| {
            let stream = world.device().create_stream()?;
            let mut places = Vec::new();
            // Memory that was given back is handed out again when all have reported it.
            while places.len() < 8 {
                let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
                let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
                (0..3).try_for_each(|number| round(&ep, &expert, &stream, world, &case, number))?;
                let uploaded = Uploaded::new(world.device(), &case.config, &case.input(ep.rank().get(), 0));
                let dispatched = ep.dispatch(&stream, &uploaded.tokens(&case.config))?;
                let place = dispatched.rows();
                ep.release(&stream, dispatched)?;
                world.synchronize(&stream)?;
                if places.contains(&place) {
                    return Ok(());
                }
                places.push(place);
            }
            panic!("no place was used twice: {places:?}")
        }));
    }
}
