//! Collectives by copy engine on the host runtime, where streams copy.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use anabranch_ccl::conformance::{self, Level, Sweep, Trial};
use anabranch_ccl::{Algorithm, CclConfig};
use common::{all_well, jit, on_ranks, world_config};

fn by_engine(ranks: u32, wave: u32, config: &CclConfig, most: usize) {
    let sweep = Sweep { ranks, lanes: 2, staging_bytes: 16 << 10, most_bytes: 1 << 20, level: Level::Full };
    let mut points = conformance::sweep(&sweep);
    points.retain(|point| point.choice.algorithm == Some(Algorithm::CopyEngine));
    let lists = points.iter().filter(|point| matches!(point.trial, Trial::List(_))).count();
    assert!(points.len() > 100, "{} {lists}", points.len());
    let every = points.len().div_ceil(most);
    let points: Vec<_> = points.into_iter().step_by(every).collect();
    let tallies = all_well(on_ranks(ranks, wave, &world_config(), &jit(), |world| {
        let stream = world.device().create_stream()?;
        conformance::run_points(world, config, &points, &stream)
    }));
    for (rank, tally) in tallies.iter().enumerate() {
        assert!(tally.failures.is_empty(), "rank {rank}: {} wrong: {:?}", tally.failures.len(), tally.failures.first());
    }
}

#[test]
fn sweep_of_four() {
    let config = CclConfig { max_blocks: 2, staging_bytes: 16 << 10, ..CclConfig::default() };
    by_engine(4, 4, &config, usize::MAX / 2);
}
