//! Types of expert ids.

use crate::common::{Case, Routing, Uploaded, all_well, depart, run, world_config};
use crate::engine::{self, Route, by_engine};
use crate::expert_major_common;
use crate::nodes;
use crate::nodes_common::{WAYS, across};
use anabranch_ep::{DataType, EpConfig, EpShape, Error, ExpertMajorConfig, ExpertParallel, Mode, Plan};

fn with_wide_ids(mut case: Case) -> Case {
    case.config = case.config.id_type(DataType::I64);
    case
}

#[test]
fn ids_of_64_bits() {
    for mode in [Mode::Slotted, Mode::Compact] {
        let mut case = with_wide_ids(Case::new(3, 4));
        case.config = case.config.mode(mode);
        for number in 0..5 {
            run(&case.varied(number), 1);
        }
    }
}

#[test]
#[ignore = "extended"]
fn ids_of_64_bits_to_experts_engines_and_nodes() {
    let case = Case { routing: Routing::Invalid, ..with_wide_ids(Case::new(3, 4)) };
    expert_major_common::run(&case, ExpertMajorConfig::new(), 3);
    engine::run(&with_wide_ids(by_engine(3, 4)), Route::Queues, 5);
    for way in WAYS {
        nodes::run(&with_wide_ids(across(&[2, 2], 4, way)), 5);
    }
}

/// Cut to 32 bits, such an id would name an expert.
#[test]
fn an_id_beyond_32_bits_is_reported() {
    let case = Case { routing: Routing::Invalid, ..with_wide_ids(Case::new(2, 4)) };
    all_well(case.on_ranks(&world_config(), |world| {
        let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
        let stream = world.device().create_stream()?;
        let flight = depart(&ep, &stream, &case, 0)?;
        let is_invalid = |id: &i32| *id < -1 || *id >= case.config.experts as i32;
        let ids = case.input(ep.rank().get(), 0).ids;
        let invalid = ids.iter().filter(|id| is_invalid(id)).count();
        match ep.check_ids(&stream) {
            Ok(()) => assert_eq!(invalid, 0),
            Err(Error::InvalidExpert { count, id, .. }) => {
                assert_eq!((count as usize, id), (invalid, i32::MIN));
            }
            Err(error) => return Err(error),
        }
        assert!(invalid > 0 || ids.is_empty());
        ep.release(&stream, flight.dispatched)
    }));
}

#[test]
fn other_types_and_short_tensors_are_refused() {
    let shape = EpShape { hidden: 128, experts: 4, top_k: 2, max_tokens: 8 };
    let error = Plan::new(EpConfig::new(shape).id_type(DataType::U32), 2).unwrap_err().to_string();
    assert!(error.contains("id_type") && error.contains("i32 and i64"), "{error}");
    let case = with_wide_ids(Case::new(1, 4));
    all_well(case.on_ranks(&world_config(), |world| {
        let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
        let stream = world.device().create_stream()?;
        let narrow = Case::new(1, 4);
        let uploaded = Uploaded::new(world.device(), &narrow.config, &narrow.input(0, 0));
        let error = ep.dispatch(&stream, &uploaded.tokens(&case.config)).unwrap_err().to_string();
        assert!(error.contains("[40 tokens][3 top_k] i64 needs 960"), "{error}");
        Ok(())
    }));
}
