//! Kernels that wait for peers fit on the device together, or the plan is refused.

use crate::common::{Case, all_well, on_ranks, round, world_config};
use anabranch_conformance::ep::reference::ReferenceExpert;
use anabranch_ep::{Error, ExpertParallel};

/// The host machine keeps 16 blocks of four waves of 64 lanes resident.
const RESIDENT: u32 = 16;

#[test]
fn grids_of_all_slots_and_plans_fit_together() {
    let mut case = Case::new(2, 64);
    case.config = case.config.slots(2);
    all_well(on_ranks(case.ranks, case.wave, &world_config(), |world| {
        let make = || ExpertParallel::new(world, world.group(), case.config.clone());
        let blocks = |ep: &ExpertParallel| {
            let tokens = case.config.max_tokens;
            ep.combine_geometry(tokens).blocks.max(ep.dispatch_geometry(tokens).unwrap().blocks)
        };
        let first = make()?;
        assert_eq!(blocks(&first), 4, "the default is unchanged");
        let second = make()?;
        // The teams' barriers have taken a part, too.
        assert_eq!(blocks(&second), 3);
        assert!(2 * (blocks(&first) + blocks(&second)) <= RESIDENT);
        // 1/64 for each team's barrier, 8/16, 6/16: one more block fits, but not one for each of two slots.
        let refused = make().err();
        let Some(Error::Shmem(anabranch_shmem::Error::Residency { asked, resident, in_use_percent })) =
            refused
        else {
            panic!("{refused:?}")
        };
        assert_eq!((asked, resident), (2, RESIDENT));
        assert!((92..=93).contains(&in_use_percent), "{in_use_percent}");
        drop(first);
        let third = make()?;
        assert_eq!(blocks(&third), 4);
        for ep in [&second, &third] {
            let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
            let stream = world.device().create_stream()?;
            round(ep, &expert, &stream, world, &case, 1)?;
        }
        Ok(())
    }));
}
