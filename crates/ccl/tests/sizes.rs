//! Collectives of one to nine ranks: odd, prime and no powers of two, and more than the GPUs of a server.

use crate::common::{all_well, jit, on_ranks, world_config};
use anabranch_ccl::{Algorithm, CclConfig, Choice, Communicator, DataType, LocationKind};
use anabranch_conformance::ccl::{self as conformance, Case, Form, Scratch};
use anabranch_ranks::GroupRank;

/// Every form by every algorithm that can run it, with a count that no number of ranks divides.
#[test]
fn every_form_and_algorithm_on_one_to_nine_ranks() {
    let jit = jit();
    for ranks in 1..=9 {
        let wave = [1, 4, 32][ranks as usize % 3];
        let config = CclConfig { max_blocks: 2, staging_bytes: 16 << 10, ..CclConfig::default() };
        let done = all_well(on_ranks(ranks, wave, &world_config(), &jit, |world| {
            let stream = world.device().create_stream()?;
            let mut all = Communicator::new(world, world.group(), config.clone())?;
            let mut scratch = Scratch::new(world, &all, 256 << 10)?;
            let mut done = 0;
            for (number, form) in (0u64..).zip(Form::all()) {
                let case = Case {
                    uneven: form.uneven,
                    root: GroupRank::new(number as u32 % ranks),
                    location: LocationKind::Symmetric,
                    seed: number,
                    ..Case::new(form.collective, DataType::F32, 1009)
                };
                for algorithm in Algorithm::ALL {
                    if !case.is_defined() || algorithm.allows(&case.shape(ranks)).is_err() {
                        continue;
                    }
                    let choice = Choice { algorithm: Some(algorithm), ..Choice::default() };
                    let verdict = conformance::run_as(&mut all, &mut scratch, &case, choice, &stream)?;
                    assert_eq!(verdict, Ok(()), "{ranks} ranks, {case:?}, {algorithm:?}");
                    done += 1;
                }
            }
            scratch.release()?;
            Ok(done)
        }));
        // Every collective runs by packets or staging, and by one algorithm with mapped buffers.
        assert!(done.iter().all(|cases| *cases == done[0] && *cases >= 2 * Form::all().len()), "{done:?}");
    }
}
