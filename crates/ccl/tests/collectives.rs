//! Every collective, algorithm, form and location against the oracle, on the host runtime.

use crate::common::{all_well, jit, jit_of, on_ranks, world_config};
use anabranch_ccl::{Algorithm, CclConfig, Collective, Communicator, DataType, LocationKind};
use anabranch_conformance::ccl::{self as conformance, Case, Scratch};
use anabranch_hip_jit::{ConstantsMode, Jit};
use anabranch_ranks::GroupRank;

const LOCATIONS: [LocationKind; 3] = [LocationKind::Symmetric, LocationKind::Local, LocationKind::Registered];

/// Every form of every collective for one type.
fn cases(members: u32, data_type: DataType, counts: &[u64]) -> Vec<Case> {
    let mut all = Vec::new();
    for collective in Collective::ALL {
        for (index, count) in counts.iter().enumerate() {
            for location in LOCATIONS {
                for in_place in [false, true] {
                    for uneven in [false, true] {
                        all.push(Case {
                            location,
                            in_place,
                            uneven,
                            offset: [0, 0, 1, 3][index % 4],
                            root: GroupRank::new(index as u32 % members),
                            seed: index as u64,
                            ..Case::new(collective, data_type, *count)
                        });
                    }
                }
            }
        }
    }
    all.retain(Case::is_defined);
    all
}

fn check(ranks: u32, wave: u32, data_type: DataType, counts: &[u64], config: &CclConfig) -> usize {
    check_with(&jit(), ranks, wave, data_type, counts, config)
}

fn check_with(
    jit: &Jit,
    ranks: u32,
    wave: u32,
    data_type: DataType,
    counts: &[u64],
    config: &CclConfig,
) -> usize {
    let results = on_ranks(ranks, wave, &world_config(), jit, |world| {
        let stream = world.device().create_stream()?;
        let mut done = 0;
        for algorithm in [None].into_iter().chain(Algorithm::ALL.map(Some)) {
            let config = config.clone().algorithm(algorithm);
            let mut communicator = Communicator::new(world, world.group(), config)?;
            let mut scratch = Scratch::new(world, &communicator, 2 << 20)?;
            for case in cases(ranks, data_type, counts) {
                match conformance::run(&mut communicator, &mut scratch, &case, &stream) {
                    Ok(verdict) => verdict.unwrap(),
                    Err(anabranch_ccl::Error::Algorithm { .. }) => continue,
                    Err(error) => return Err(error),
                }
                done += 1;
            }
            scratch.release()?;
        }
        Ok(done)
    });
    all_well(results)[0]
}

const COUNTS: [u64; 7] = [0, 1, 3, 17, 64, 255, 4099];

#[test]
fn every_form_on_three_ranks() {
    let done = check(3, 4, DataType::F32, &COUNTS, &CclConfig::default());
    assert!(done > 1000, "{done}");
}

#[test]
#[ignore = "extended"]
fn small_staging_takes_many_steps() {
    let config = CclConfig { staging_bytes: 4096, max_blocks: 2, ..CclConfig::default() };
    check(4, 1, DataType::Bf16, &[5, 20_000], &config);
}

#[test]
fn groups_of_one_and_two() {
    check(1, 4, DataType::I64, &COUNTS, &CclConfig::default());
    check(2, 4, DataType::U8, &COUNTS, &CclConfig::default());
}

/// As on GPUs.
#[test]
fn kernels_that_know_the_number_of_members() {
    let jit = jit_of(|config| config.constants = ConstantsMode::Always);
    check_with(&jit, 3, 4, DataType::F16, &[1, 255, 4099], &CclConfig::default());
}

/// Communicators of many groups get smaller and smaller until none fits, and one of a single member always does.
#[test]
fn communicators_share_the_blocks_of_the_device() {
    all_well(on_ranks(2, 4, &world_config(), &jit(), |world| {
        let stream = world.device().create_stream()?;
        let config =
            CclConfig { shared_blocks: 4, staging_bytes: 4096, pipe_bytes: 4096, ..CclConfig::default() };
        let run = |communicator: &mut Communicator| {
            let mut scratch = Scratch::new(world, communicator, 4096)?;
            let case = Case::new(Collective::AllReduce, DataType::F32, 100);
            conformance::run(communicator, &mut scratch, &case, &stream)?.unwrap();
            scratch.release()
        };
        let mut all = Vec::new();
        let refused = loop {
            match Communicator::new(world, world.group(), config.clone()) {
                Ok(communicator) => all.push(communicator),
                Err(error) => break error,
            }
        };
        assert!(refused.to_string().contains("ccl.max_blocks"), "{refused}");
        let blocks: Vec<_> = all.iter().map(Communicator::channels).collect();
        assert!(blocks[0] == 4 && blocks[1] == 4 && blocks[blocks.len() - 1] == 1, "{blocks:?}");
        assert!(blocks.is_sorted_by(|one, next| one >= next) && blocks.len() > 7, "{blocks:?}");
        all.iter_mut().try_for_each(run)?;
        let rest = world.residency_share();
        let _rest =
            (rest.free_blocks(1024) > 0).then(|| rest.reserve_up_to(1, u32::MAX, 1024)).transpose()?;
        let own = world.group().subset(&[GroupRank::new(world.rank().get())]).unwrap();
        let mut alone = Communicator::new(world, &own, config.clone())?;
        assert_eq!(alone.channels(), 4);
        let large =
            CclConfig { max_blocks: 32, staging_bytes: 64 << 20, pipe_bytes: 16 << 20, ..config.clone() };
        let bytes = Communicator::most_heap_bytes(world, 1, &large)?;
        assert!(bytes < 7 << 20, "{bytes}");
        run(&mut alone)
    }));
}
